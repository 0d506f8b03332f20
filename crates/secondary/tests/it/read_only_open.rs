//! A read-only open while another process writes.

use std::sync::Mutex;

use lsm_core::db::{BackgroundMode, VerifyOptions};
use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, OpKind};
use lsm_core::{Error, ErrorKind, Result};

use super::other_side::{Elsewhere, Writer};
use super::*;

fn open_while_written(fs: &Arc<dyn Fs>) -> Db {
    let builder = Db::builder(DIR).fs(fs.clone()).options(options());
    builder.beside_writer(true).open().unwrap()
}

#[test]
fn a_cursor_that_its_primary_could_not_delete_locks_no_one_out() {
    let fault = FaultFs::over_mem(MemFs::new());
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    p.put("k", "1").unwrap();
    let cursor = FaultAt::Nth { kind: OpKind::Delete, suffix: "cursor-00000001".into(), nth: 0 };
    fault.add_rule(FaultRule::once(cursor, FaultAction::Eio));
    drop(p);
    db.close().unwrap_err();
    let open = open_while_written(&fs);
    let found = open.partition("p").unwrap().get("k").unwrap();
    assert_eq!(found.as_deref(), Some(&b"1"[..]));
}

/// With a limit of 0 bytes the primary deletes the lease as soon as a table can be deleted.
#[test]
fn a_lost_lease_is_no_damage() {
    let fs = in_memory();
    let options = Options::new().leased_bytes_max(0);
    let db = Db::builder(DIR).fs(fs.clone()).options(options).background(BackgroundMode::Stepped);
    let db = db.open().unwrap();
    let p = flushed(&db);
    let open = open_while_written(&fs);
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
    let open = open_while_written(&fs);
    let names = fs.list_names(DIR.as_ref(), "").unwrap();
    let table = names.iter().find(|name| name.ends_with(".sst")).unwrap();
    fs.delete(&Path::new(DIR).join(table)).unwrap();
    let report = open.verify(VerifyOptions::default()).unwrap();
    assert_eq!(report.damage().len(), 1, "{report}");
    let damaged = open.partition("p").unwrap().get("k").unwrap_err();
    assert!(damaged.is_corruption(), "{damaged}");
}

/// The content that an open next to the writer shows, and the result of a verification.
fn look(fs: &Arc<dyn Fs>) -> (Result<Content>, Option<Result<bool>>) {
    let builder = Db::builder(DIR).fs(fs.clone()).options(options());
    let opened = builder.background(BackgroundMode::Stepped).beside_writer(true).open();
    let open = match opened {
        Ok(open) => open,
        Err(error) => return (Err(error), None),
    };
    let content = open.open_partition("p").and_then(|partition| {
        let entries = partition.iter();
        entries.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect()
    });
    let verified = open.verify(VerifyOptions::default()).map(|report| {
        assert!(report.is_sound(), "{report}");
        true
    });
    (content, Some(verified))
}

/// An error that asks for another open.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NeedsManifest | ErrorKind::FileGone | ErrorKind::LeaseLost)
}

/// The writer works before every operation of a reader: it seals segments, makes partitions,
/// compacts, and begins generations of the manifest.
fn look_while_writing(has_cursor: bool, has_lease: bool, is_late: bool) {
    let mem = MemFs::new();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let slow = FaultFs::over_mem(mem);
    let fs: Arc<dyn Fs> = Arc::new(Elsewhere {
        fs: Arc::new(slow.clone()),
        is_late,
        is_unwritable: !has_lease,
        before: Mutex::default(),
    });
    let writer = Arc::new(Mutex::new(Writer::new(&plain)));
    if !has_cursor {
        delete_cursor(&plain);
    }
    let mut found = 0;
    for round in 0..36 {
        let what = format!("round {round}, {has_cursor} {has_lease} {is_late}");
        (0..5).for_each(|_| writer.lock().unwrap().step());
        let before = writer.lock().unwrap().states.len() - 1;
        // Sometimes so often that the look cannot end.
        let left = Arc::new(Mutex::new([0, 3, 7, 20, 60, 150][round % 6]));
        let hasty = writer.clone();
        slow.set_observer(Arc::new(move |_| {
            let mut left = left.lock().unwrap();
            if *left > 0 {
                *left -= 1;
                hasty.lock().unwrap().step();
            }
        }));
        let (content, verified) = look(&fs);
        slow.clear_observer();
        match content {
            Ok(content) => {
                let states = &writer.lock().unwrap().states;
                let place = states.iter().rposition(|state| *state == content);
                let place = place.unwrap_or_else(|| panic!("{what}: no state: {}", content.len()));
                assert!(!has_cursor || place >= before, "{what}: {place} after {before}");
                found += 1;
            }
            Err(error) => assert!(is_passing(&error), "{what}: {error}"),
        }
        if let Some(Err(error)) = verified {
            assert!(is_passing(&error), "{what}: verify: {error}");
        }
    }
    assert!(found > 15, "{found}, {has_cursor} {has_lease} {is_late}");
}

#[test]
fn an_active_writer_is_no_damage_for_a_read_only_open() {
    look_while_writing(true, true, false);
    look_while_writing(true, true, true);
    look_while_writing(false, true, false);
}

#[test]
fn an_active_writer_is_no_damage_for_an_open_without_a_lease() {
    for has_cursor in [true, false] {
        look_while_writing(has_cursor, false, false);
    }
}

/// The check used to compare the length of the manifest at the open with that of a file that grows.
#[test]
fn a_manifest_that_grows_while_it_is_verified_is_sound() {
    let fs = in_memory();
    let mut writer = Writer::new(&fs);
    let open = open_while_written(&fs);
    for _ in 0..60 {
        writer.step();
        let report = open.verify(VerifyOptions::default()).unwrap();
        assert!(report.is_sound(), "{report}");
    }
}
