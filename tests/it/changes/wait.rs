//! Waits for changes, and their ends.

use std::sync::Arc;
use std::time::Duration;

use lsm_core::fs::MemFs;
use siltstone::{Db, Durability, ErrorKind, SeqNo};

use super::{builder, line, small};

#[test]
fn a_wait_ends_with_the_commit_or_with_the_time() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition("p").unwrap();
    let mut changes = db.changes(SeqNo::ZERO).unwrap();
    assert!(changes.wait_next(Duration::ZERO).unwrap().is_none());
    let (found, found_here) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || {
        let first = changes.wait_next(Duration::MAX).unwrap().unwrap();
        found.send(line(&first)).unwrap();
        changes.wait_next(Duration::MAX).unwrap_err().kind()
    });
    // An ordinary write, which the interval makes durable.
    p.put("a", "1").unwrap();
    assert_eq!(found_here.recv().unwrap(), "1 p:a=1");
    db.close().unwrap();
    assert_eq!(waiting.join().unwrap(), ErrorKind::Closed);
}

/// Nothing wakes the feed then: it looks from time to time.
#[test]
fn a_feed_that_waits_ends_when_the_database_is_taken_over() {
    let fs = MemFs::new();
    let db = builder(&fs, u64::MAX).open().unwrap();
    db.partition("p").unwrap().put_with("a", "1", Durability::Sync).unwrap();
    let mut changes = db.changes(SeqNo::ZERO).unwrap();
    assert_eq!(line(&changes.wait_next(Duration::MAX).unwrap().unwrap()), "1 p:a=1");
    let waiting = std::thread::spawn(move || changes.wait_next(Duration::MAX).unwrap_err().kind());
    let secondary = Db::secondary_builder("/db").fs(Arc::new(fs.clone())).open().unwrap();
    let promoted = Db::promotion(&secondary).options(small(u64::MAX)).open().unwrap();
    assert_eq!(waiting.join().unwrap(), ErrorKind::Fenced);
    drop((db, promoted));
}
