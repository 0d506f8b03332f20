//! Databases with a claim and a fork: one whose promotion was not finished, and one whose next
//! primary died.
//!
//! `BLESS_FIXTURE=promotion/unfinished` and `promotion/finished` write them again, see
//! `fixtures.rs`.

use std::path::Path;
use std::sync::{Arc, Mutex};

use lsm_core::fs::{
    CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, OpKind, is_out_of_handles,
};
use siltstone::VerifyOptions;

use super::*;

use crate::store;

/// The entries that the old primary had acknowledged. They were frozen with the first version of
/// forks.
fn expected() -> BTreeMap<Vec<u8>, Vec<u8>> {
    let entry = |n: u32| (format!("key {n:02}").into_bytes(), format!("value {n}").into_bytes());
    (0..40).map(entry).collect()
}

/// Writes both folders: as a claimant left it that died after it wrote the fork, and as its
/// successor left it after a put.
fn write() -> (MemFs, MemFs) {
    let fs = MemFs::new();
    let stopped = FaultFs::over_mem(fs.clone());
    let old = builder(&fs).fs(Arc::new(stopped.clone())).open().unwrap();
    let p = old.partition("p").unwrap();
    for (number, (key, value)) in expected().into_iter().enumerate() {
        p.put(key, value).unwrap();
        if number == 20 {
            p.flush().unwrap();
        }
    }
    let folder = fs.clone();
    let is_done = Mutex::new(false);
    // The old primary stops before it writes a frame, which is then after the fork.
    stopped.set_observer(Arc::new(move |_| {
        if !std::mem::replace(&mut *is_done.lock().unwrap(), true) {
            let dying = FaultFs::over_mem(folder.clone());
            let suffix = ".manifest".to_owned();
            let at = FaultAt::Nth { kind: OpKind::PutIfAbsent, suffix, nth: 0 };
            dying.add_rule(FaultRule::sticky(at, FaultAction::Eio));
            let claimant = builder(&folder).fs(Arc::new(dying)).take_over(true);
            assert_eq!(claimant.open().err().unwrap().kind(), ErrorKind::Io);
        }
    }));
    let refused = p.put("refused", "behind the fork").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    stopped.clear_observer();
    let unfinished = fs.crash_clone(CrashOutcome::Everything, &mut || 0);
    let next = unfinished.crash_clone(CrashOutcome::Everything, &mut || 0);
    let new = builder(&next).open().unwrap();
    new.partition("p").unwrap().put("key 40", "of the next primary").unwrap();
    (unfinished, next.crash_clone(CrashOutcome::Everything, &mut || 0))
}

fn content(db: &Db) -> store::Content {
    store::content(&db.open_partition("p").unwrap())
}

/// Opens the database read-only, finishes the promotion, and continues to write.
fn check(dir: &Path, expected: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let reader = Db::builder(dir).read_only(true).open().unwrap();
    assert_eq!(content(&reader), *expected);
    reader.close().unwrap();
    let db = Db::open(dir).unwrap();
    assert_eq!(content(&db), *expected);
    db.partition("p").unwrap().delete("key 00").unwrap();
    db.close().unwrap();
    let db = Db::open(dir).unwrap();
    assert_eq!(db.partition("p").unwrap().iter().count(), expected.len() - 1);
    // From now on the claim is the lock of writers, and the state in the fork is no longer needed.
    for name in ["epoch-00000002", "fork-00000002"] {
        assert!(dir.join(name).exists(), "{name}");
    }
}

#[test]
fn a_promotion_of_an_earlier_version_is_finished_and_lives_on() {
    fixtures::bless("promotion/unfinished", || write().0);
    fixtures::bless("promotion/finished", || write().1);
    let mut all = expected();
    check(fixtures::on_disk("promotion/unfinished").path(), &all);
    all.insert(b"key 40".to_vec(), b"of the next primary".to_vec());
    check(fixtures::on_disk("promotion/finished").path(), &all);
}

#[test]
fn the_generator_of_promotions_writes_what_it_says() {
    let (unfinished, finished) = write();
    let logs = files(&unfinished, FileKind::Wal).into_iter();
    let logs = logs.map(|path| unfinished.read_raw(&path).unwrap()).collect::<Vec<_>>().concat();
    assert!(logs.windows(7).any(|bytes| bytes == b"refused"), "a frame is after the fork");
    for (fs, count) in [(unfinished, 40), (finished, 41)] {
        for name in ["epoch-00000002", "fork-00000002"] {
            assert!(fs.paths().contains(&Path::new(DIR).join(name)), "{name}");
        }
        assert_eq!(content(&builder(&fs).open().unwrap()).len(), count);
    }
}

/// The fork stands for the manifest until the promotion is finished.
#[test]
fn a_fork_that_no_handle_is_left_for_is_not_damaged() {
    let fs = FaultFs::over_mem(write().0);
    let reader = builder(&MemFs::new()).fs(Arc::new(fs.clone())).read_only(true).open().unwrap();
    for nth in 0..4 {
        let at = FaultAt::Nth { kind: OpKind::OpenRead, suffix: "fork-00000002".to_owned(), nth };
        fs.add_rule(FaultRule::sticky(at, FaultAction::Emfile));
        match reader.verify(VerifyOptions::new()) {
            Ok(report) => assert!(report.is_sound(), "open {nth}: {report}"),
            Err(error) => assert!(is_out_of_handles(&error), "open {nth}: {error}"),
        }
        fs.heal();
    }
    assert!(fs.fault_count() > 1, "{}", fs.fault_count());
    assert!(reader.verify(VerifyOptions::new()).unwrap().is_sound());
}
