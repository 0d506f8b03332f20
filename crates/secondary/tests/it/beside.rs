//! A read-only open beside the process that writes.

use lsm_core::ErrorKind;
use lsm_core::db::{BackgroundMode, VerifyOptions};
use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, OpKind};

use super::*;

fn beside(fs: &Arc<dyn Fs>) -> Db {
    let builder = Db::builder(DIR).fs(fs.clone()).options(options());
    builder.beside_writer(true).open().unwrap()
}

#[test]
fn a_cursor_that_its_primary_could_not_delete_keeps_nobody_out() {
    let fault = FaultFs::over_mem(MemFs::new());
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    p.put("k", "1").unwrap();
    let cursor = FaultAt::Nth { kind: OpKind::Delete, suffix: "cursor-00000001".into(), nth: 0 };
    fault.add_rule(FaultRule::once(cursor, FaultAction::Eio));
    drop(p);
    db.close().unwrap_err();
    let open = beside(&fs);
    let found = open.partition("p").unwrap().get("k").unwrap();
    assert_eq!(found.as_deref(), Some(&b"1"[..]));
}

/// With a limit of 0 bytes the primary deletes the lease as soon as a table can go.
#[test]
fn a_lost_lease_is_no_damage() {
    let fs = in_memory();
    let options = Options::new().leased_bytes_max(0);
    let db = Db::builder(DIR).fs(fs.clone()).options(options).background(BackgroundMode::Stepped);
    let db = db.open().unwrap();
    let p = flushed(&db);
    let open = beside(&fs);
    p.put("k", "2").unwrap();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    let lost = open.verify(VerifyOptions::default()).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LeaseLost, "{lost}");
    let lost = open.partition("p").unwrap().get("k").unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LeaseLost, "{lost}");
}

#[test]
fn a_table_that_is_missing_although_a_lease_holds_it_is_damage() {
    let fs = in_memory();
    let db = primary(&fs);
    flushed(&db);
    let open = beside(&fs);
    let names = fs.list_names(DIR.as_ref(), "").unwrap();
    let table = names.iter().find(|name| name.ends_with(".sst")).unwrap();
    fs.delete(&Path::new(DIR).join(table)).unwrap();
    let report = open.verify(VerifyOptions::default()).unwrap();
    assert_eq!(report.damage().len(), 1, "{report}");
    let damaged = open.partition("p").unwrap().get("k").unwrap_err();
    assert!(damaged.is_corruption(), "{damaged}");
}
