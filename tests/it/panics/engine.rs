//! A panic of the engine, or of the file system that it was given, in background work: the work
//! fails and is tried again, nothing hangs, and nothing is lost.

use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind};
use siltstone::{
    BackgroundMode, Class, Db, Durability, ErrorKind, Partition, PartitionOptions, Reason,
};

use super::MODES;

const DIR: &str = "/db";

fn open(fs: &FaultFs, mode: BackgroundMode) -> (Db, Partition) {
    let db = Db::builder(Path::new(DIR)).fs(Arc::new(fs.clone())).background(mode).open().unwrap();
    let options = PartitionOptions::new().level0_tables(2).block_bytes(512);
    let p = db.partition_with("p", options).unwrap();
    (db, p)
}

fn panic_at(fs: &FaultFs, kind: OpKind, suffix: &str) {
    let at = FaultAt::Nth { kind, suffix: suffix.to_owned(), nth: 0 };
    fs.add_rule(FaultRule::sticky(at, FaultAction::Panic));
}

/// Two tables of level 0, which are due for a compaction; each has all keys.
fn fill(db: &Db, p: &Partition, round: u8) {
    for key in 0..100_u8 {
        p.put([key], [round; 50]).unwrap();
    }
    db.flush().unwrap();
}

fn check(p: &Partition, round: u8) {
    let read: Vec<_> = p.iter().map(|entry| entry.unwrap()).collect();
    assert_eq!(read.len(), 100);
    assert!(read.iter().all(|(_, value)| value[..] == [round; 50]));
}

#[test]
fn a_panic_fails_a_compaction_and_the_next_attempt_does_the_work() {
    for mode in MODES {
        let fs = FaultFs::over_mem(MemFs::new());
        let (db, p) = open(&fs, mode);
        fill(&db, &p, 1);
        // The second table makes a compaction due; a read of its inputs panics, whichever thread
        // runs it.
        panic_at(&fs, OpKind::Read, ".sst");
        fill(&db, &p, 2);
        let error = db.wait_idle().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
        assert!(error.to_string().contains("a compaction panicked: injected panic"), "{error}");
        let health = db.health();
        let [failure] = &health.background_errors[..] else { panic!("{health}") };
        assert_eq!((failure.reason, failure.class), (Reason::Compaction, Class::Panic));
        fs.heal();
        db.wait_idle().unwrap();
        assert!(db.health().is_healthy(), "{}", db.health());
        assert_eq!(p.stats().levels[0].table_count, 0, "the inputs were given back and merged");
        check(&p, 2);
        db.close().unwrap();
    }
}

#[test]
fn a_panic_in_an_edit_refuses_further_edits_until_the_next_open() {
    for mode in MODES {
        let mem = MemFs::new();
        let fs = FaultFs::over_mem(mem.clone());
        let (db, p) = open(&fs, mode);
        fill(&db, &p, 1);
        p.put([0], [2; 50]).unwrap();
        panic_at(&fs, OpKind::Append, ".manifest");
        assert_eq!(db.flush().unwrap_err().kind(), ErrorKind::Internal);
        fs.heal();
        let error = db.flush().unwrap_err();
        assert!(error.to_string().contains("open the database again"), "{error}");
        // Writes and reads continue.
        for key in 0..100_u8 {
            p.put([key], [3; 50]).unwrap();
        }
        check(&p, 3);
        drop((db, p));
        let (db, p) = open(&fs, mode);
        check(&p, 3);
        db.flush().unwrap();
        db.wait_idle().unwrap();
        check(&p, 3);
    }
}

#[test]
fn a_panic_in_a_sync_of_the_log_refuses_writes_until_the_log_is_begun_again() {
    for mode in MODES {
        let mem = MemFs::new();
        let fs = FaultFs::over_mem(mem.clone());
        let (db, p) = open(&fs, mode);
        fill(&db, &p, 1);
        panic_at(&fs, OpKind::Sync, ".wal");
        let error = p.put_with([0], [2; 50], Durability::Sync).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        assert!(
            error.to_string().contains("a sync of the log panicked: injected panic"),
            "{error}"
        );
        // The next call does not wait for a sync that never ends.
        assert!(p.put_with([0], [2; 50], Durability::Sync).is_err());
        fs.heal();
        while p.put([0], [3; 50]).is_err() {
            let _ = db.wait_idle();
        }
        for key in 0..100_u8 {
            p.put_with([key], [3; 50], Durability::Sync).unwrap();
        }
        assert!(db.health().is_healthy(), "{}", db.health());
        drop((db, p));
        let (_db, p) = open(&fs, mode);
        check(&p, 3);
    }
}
