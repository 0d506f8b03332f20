//! The segments that are kept: they are durable, and verified.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, Fs, MemFs, OpKind};
use siltstone::{Db, Durability, ErrorKind, Result, SeqNo};

use super::{builder, fill, lines, numbers, small};
use crate::store::stepped;

/// The files of the retained segments, the oldest first.
fn retained(fs: &MemFs, count: u64) -> Vec<PathBuf> {
    let names = fs.list(Path::new("/db"), "").unwrap();
    let names = names.into_iter().map(|entry| entry.name).filter(|name| name.ends_with(".wal"));
    let mut names: Vec<_> = names.collect();
    // The number comes first in a name.
    names.sort();
    names.iter().take(count as usize).map(|name| Path::new("/db").join(name)).collect()
}

#[test]
fn verify_reads_the_segments_that_are_retained() {
    let fs = MemFs::new();
    let db = builder(&fs, u64::MAX).open().unwrap();
    fill(&db, 20);
    db.partition("p").unwrap().put_with("x", "unflushed", Durability::Sync).unwrap();
    drop(db);
    let db = builder(&fs, u64::MAX).open().unwrap();
    fill(&db, 20);
    let sound = db.verify(Default::default()).unwrap();
    assert!(sound.is_sound(), "{sound}");
    let files = retained(&fs, db.stats().log_retained_segment_count);
    assert!(files.len() > 6);
    for path in &files {
        // In the header, and in the first frame.
        for offset in [20, 140, 300] {
            fs.corrupt(path, offset, 1).unwrap();
            let report = db.verify(Default::default()).unwrap();
            assert!(!report.is_sound(), "offset {offset} of {}", path.display());
            let is_there = report.damage().iter().all(|damage| damage.file == *path);
            assert!(is_there, "offset {offset} of {}: {report}", path.display());
            assert_eq!(numbers(&db, 0), Err(ErrorKind::Corruption));
            fs.corrupt(path, offset, 1).unwrap();
        }
    }
    let bytes = fs.read_raw(&files[1]).unwrap();
    fs.delete(&files[1]).unwrap();
    let report = db.verify(Default::default()).unwrap();
    assert_eq!(report.damage().len(), 1, "{report}");
    assert!(report.to_string().contains("missing"), "{report}");
    fs.write_raw(&files[1], &bytes).unwrap();
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

/// The process before may have ended without a sync of the last frames.
#[test]
fn a_power_cut_after_a_kill_takes_nothing_of_a_retained_segment() {
    let fs = MemFs::new();
    let killed = FaultFs::over_mem(fs.clone());
    let db = stepped(Arc::new(killed.clone()), "/db", 1).options(small(u64::MAX)).open().unwrap();
    db.partition("p").unwrap().put("a", "1").unwrap();
    // Without a sync, as a kill leaves it: a drop would sync the log.
    killed.add_rule(FaultRule::sticky(FaultAt::Op(killed.op_count()), FaultAction::Eio));
    drop(db);
    let db = builder(&fs, u64::MAX).open().unwrap();
    let cut = fs.crash_clone(CrashOutcome::Nothing, &mut || 0);
    drop(db);
    let db = builder(&cut, u64::MAX).open().unwrap();
    assert_eq!(lines(&mut db.changes(SeqNo::ZERO).unwrap()), ["1 p:a=1"]);
}

/// The next sync of a file may succeed although the data of the failed one is lost.
#[test]
fn nothing_is_kept_of_a_log_whose_sync_fails_at_an_open() {
    let fs = MemFs::new();
    let db = builder(&fs, u64::MAX).open().unwrap();
    db.partition("p").unwrap().put("a", "1").unwrap();
    db.close().unwrap();
    let killed = FaultFs::over_mem(fs.clone());
    let db = open_stepped(&killed).unwrap();
    db.partition("p").unwrap().put("b", "2").unwrap();
    killed.add_rule(FaultRule::sticky(FaultAt::Op(killed.op_count()), FaultAction::Eio));
    drop(db);
    let faulty = FaultFs::over_mem(fs.clone());
    let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".wal".to_owned(), nth: 0 };
    faulty.add_rule(FaultRule::once(at, FaultAction::SyncLost));
    drop(open_stepped(&faulty));
    assert_eq!(faulty.fault_count(), 1);
    let db = builder(&fs, u64::MAX).open().unwrap();
    let token = db.visible_seq();
    db.partition("p").unwrap().put_with("c", "3", Durability::Sync).unwrap();
    let cut = fs.crash_clone(CrashOutcome::Nothing, &mut || 0);
    drop(db);
    let db = builder(&cut, u64::MAX).open().unwrap();
    assert_eq!(db.partition("p").unwrap().keys().count(), 3);
    for token in [0, 1] {
        assert_eq!(numbers(&db, token), Err(ErrorKind::TooOld));
    }
    assert_eq!(lines(&mut db.changes(token).unwrap()), ["3 p:c=3"]);
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

fn open_stepped(fs: &FaultFs) -> Result<Db> {
    stepped(Arc::new(fs.clone()), "/db", 1).options(small(u64::MAX)).open()
}
