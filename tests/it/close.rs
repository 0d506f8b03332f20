//! Closes of a database: which memtables are flushed, and what stays in the log.

use std::sync::{Arc, Mutex};

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, FsOp, MemFs, OpKind};
use siltstone::Db;

use crate::store::stepped;

fn open(fs: &FaultFs) -> Db {
    stepped(Arc::new(fs.clone()), "/db", 1).open().unwrap()
}

/// Puts so many values of 1,000 bytes into each partition.
fn fill(db: &Db, partitions: [(&str, u32); 3]) {
    for (name, count) in partitions {
        let p = db.partition(name).unwrap();
        for n in 0..count {
            p.put(n.to_be_bytes(), [n as u8; 1000]).unwrap();
        }
    }
}

fn check(db: &Db, partitions: [(&str, u32); 3]) {
    for (name, count) in partitions {
        let p = db.partition(name).unwrap();
        let rows: Vec<_> = p.iter().map(Result::unwrap).collect();
        assert_eq!(rows.len(), count as usize, "{name}");
        for (key, value) in rows {
            assert_eq!(value, [key[3]; 1000], "{name}");
        }
    }
}

const PARTITIONS: [(&str, u32); 3] = [("large", 1200), ("small", 800), ("larger", 3000)];

/// Calls `action` and returns the number of tables that it made.
fn tables_made(fs: &FaultFs, action: impl FnOnce()) -> usize {
    let made = Arc::new(Mutex::new(0));
    let count = made.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let is_table = op.path.extension().is_some_and(|ending| ending == "sst");
        *count.lock().unwrap() += usize::from(is_table && op.kind == OpKind::Create);
    }));
    action();
    fs.clear_observer();
    *made.lock().unwrap()
}

#[test]
fn a_close_flushes_large_memtables_and_the_next_open_replays_the_rest() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = open(&fs);
    fill(&db, PARTITIONS);
    assert_eq!(tables_made(&fs, || db.close().unwrap()), 2);
    let mut reopened = None;
    assert_eq!(tables_made(&fs, || reopened = Some(open(&fs))), 1, "the small one");
    check(&reopened.unwrap(), PARTITIONS);
}

#[test]
fn a_close_that_cannot_flush_leaves_it_to_the_next_open() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = open(&fs);
    fill(&db, PARTITIONS);
    let at = FaultAt::Nth { kind: OpKind::Create, suffix: ".sst".to_owned(), nth: 0 };
    fs.add_rule(FaultRule::sticky(at, FaultAction::Enospc));
    db.close().unwrap();
    assert!(fs.fault_count() > 0, "it tried");
    fs.heal();
    check(&open(&fs), PARTITIONS);
}

/// The folder stays locked while an export reads it: another process may remove files.
#[test]
fn a_close_waits_for_an_export() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = open(&fs);
    fill(&db, PARTITIONS);
    let p = db.partition("larger").unwrap();
    let other = db.partition("other").unwrap();
    let closing = Arc::new(Mutex::new(None));
    let started = closing.clone();
    let to_close = Mutex::new(Some((db, other)));
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let is_exported = op.kind == OpKind::Append && op.path.starts_with("/export");
        let Some((db, other)) = to_close.lock().unwrap().take_if(|_| is_exported) else { return };
        let thread = std::thread::spawn(move || db.close());
        while other.put("until", "it is closed").is_ok() {
            std::thread::yield_now();
        }
        (0..1000).for_each(|_| std::thread::yield_now());
        assert!(!thread.is_finished(), "the export is not finished");
        *started.lock().unwrap() = Some(thread);
    }));
    let _ = p.export(.., "/export");
    fs.clear_observer();
    drop(p);
    closing.lock().unwrap().take().unwrap().join().unwrap().unwrap();
    check(&open(&fs), PARTITIONS);
}
