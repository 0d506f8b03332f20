//! The log through a mapping, on the real file system: when it is used, and what a failed sync
//! makes of it. Crashes, faults and damage are tested both ways elsewhere.

use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{AppendMode, FaultAction, FaultAt, FaultFs, FaultRule, Fs, OpKind, OsFs};
use siltstone::{BackgroundMode, Db, Durability, ErrorKind, Options, Partition};

fn open(folder: &Path, fs: Arc<dyn Fs>, is_mapped: bool) -> Db {
    let options = Options::new().wal_mapped(is_mapped).sync_interval_ms(0).cache_bytes(1 << 20);
    let builder = Db::builder(folder).options(options).fs(fs);
    builder.background(BackgroundMode::Stepped).open().unwrap()
}

/// Puts until the log has grown by `bytes`, without a sync.
fn put_bytes(partition: &Partition, first: usize, bytes: usize) -> usize {
    let mut number = first;
    for _ in 0..bytes / 200 {
        partition.put(format!("{number:08}"), vec![b'x'; 200]).unwrap();
        number += 1;
    }
    number
}

/// Returns whether a segment of the log in `folder` is mapped into this process.
fn is_mapped(folder: &Path) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let folder = folder.to_str().unwrap();
    maps.lines().any(|line| line.contains(folder) && line.contains(".wal"))
}

/// Returns whether the file system of `folder` is one whose files are mapped.
fn is_borne(folder: &Path) -> bool {
    let file = OsFs.open_append(&folder.join("probe"), AppendMode::IfAbsent).unwrap();
    file.preallocate(1 << 20).unwrap();
    file.map_appends()
}

#[test]
fn the_log_is_mapped_where_it_may_be_and_while_nobody_asks_for_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let is_borne = is_borne(&dir);
    for is_asked in [true, false] {
        let folder = dir.join(format!("mapped-{is_asked}"));
        let db = open(&folder, Arc::new(OsFs), is_asked);
        let partition = db.partition("p").unwrap();
        for number in 0..100 {
            let batch = db.batch().put(&partition, format!("{number}"), vec![b'x'; 1000]);
            batch.commit(Durability::Sync).unwrap();
        }
        assert!(!is_mapped(&folder), "each write was synced");
        let next = put_bytes(&partition, 0, 200 << 10);
        // The first segments are short: the end of one is written.
        let last = (0..600).any(|more| {
            put_bytes(&partition, next + more, 200);
            is_mapped(&folder)
        });
        assert_eq!(last, is_borne && is_asked, "asked for: {is_asked}");
        db.wait_durable(db.visible_seq()).unwrap();
        let count = partition.iter().map(Result::unwrap).count();
        db.close().unwrap();
        assert!(!is_mapped(&folder), "closed");
        let db = open(&folder, Arc::new(OsFs), !is_asked);
        assert_eq!(db.partition("p").unwrap().iter().map(Result::unwrap).count(), count);
    }
}

#[test]
fn a_failed_sync_of_a_mapped_log_is_reported_and_the_store_goes_on_in_a_new_file() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("db");
    let fs = FaultFs::new(Arc::new(OsFs));
    let db = open(&folder, Arc::new(fs.clone()), true);
    let partition = db.partition("p").unwrap();
    let next = put_bytes(&partition, 0, 300 << 10);
    let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".wal".to_owned(), nth: 0 };
    fs.add_rule(FaultRule::once(at, FaultAction::Eio));
    let batch = db.batch().put(&partition, "synced", "x");
    assert_eq!(batch.commit(Durability::Sync).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(partition.put("refused", "x").unwrap_err().kind(), ErrorKind::ReadOnly);
    db.wait_idle().unwrap();
    let end = put_bytes(&partition, next, 300 << 10);
    db.wait_durable(db.visible_seq()).unwrap();
    drop(partition);
    drop(db);
    let db = open(&folder, Arc::new(OsFs), true);
    let partition = db.partition("p").unwrap();
    assert_eq!(
        partition.iter().map(Result::unwrap).count(),
        end + 1,
        "and the one that was visible"
    );
    assert!(partition.get("synced").unwrap().is_some());
}
