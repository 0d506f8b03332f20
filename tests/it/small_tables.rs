//! Tables of few entries: many short lives of a database leave few of them.

use std::sync::Arc;

use lsm_core::fs::MemFs;
use siltstone::{BackgroundMode, Db, Partition, PartitionOptions};

/// A value of so many bytes is longer than a block.
const LONG: usize = 5000;

fn open(fs: &MemFs, background: BackgroundMode) -> Db {
    Db::builder("/db").fs(Arc::new(fs.clone())).background(background).open().unwrap()
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn table_count(partition: &Partition) -> u64 {
    partition.stats().levels.iter().map(|level| level.table_count).sum()
}

fn check(partition: &Partition, expected: impl Iterator<Item = u32>) {
    let rows: Vec<_> = partition.iter().map(Result::unwrap).collect();
    let keys: Vec<_> = expected.collect();
    assert_eq!(rows.len(), keys.len());
    for ((found, value), n) in rows.iter().zip(keys) {
        assert_eq!(found[..], key(n));
        assert_eq!(value[..], key(n));
    }
}

/// 600 processes with one put each left 600 tables of 400 bytes on level 6, and `compact` changed nothing.
#[test]
fn many_opens_with_one_put_each_leave_few_tables() {
    let fs = MemFs::new();
    let mut written = 0;
    for n in 0..100 {
        let db = open(&fs, BackgroundMode::Stepped);
        let p = db.partition("p").unwrap();
        p.put(key(n), key(n)).unwrap();
        db.wait_idle().unwrap();
        written += db.stats().compaction_written_bytes;
        // 4 on level 0, 8 of equal size, and a few larger ones.
        assert!(table_count(&p) <= 18, "{} after {n}", table_count(&p));
        db.close().unwrap();
    }
    // Each byte is written once for each doubling, at most.
    assert!(written < 100 * 600 * 7, "{written}");
    let db = open(&fs, BackgroundMode::Stepped);
    let p = db.partition("p").unwrap();
    check(&p, 0..100);
    p.compact(..).unwrap();
    assert_eq!(table_count(&p), 1);
    check(&p, 0..100);
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

/// Threads find no time in a process that lives for milliseconds.
#[test]
fn a_close_does_merges_that_cost_little() {
    let fs = MemFs::new();
    for n in 0..60 {
        let db = open(&fs, BackgroundMode::Threads);
        db.partition("p").unwrap().put(key(n), key(n)).unwrap();
        db.close().unwrap();
    }
    let db = open(&fs, BackgroundMode::Threads);
    let p = db.partition("p").unwrap();
    assert!(table_count(&p) <= 18, "{}", table_count(&p));
    check(&p, 0..60);
}

#[test]
fn deleted_keys_and_several_partitions_stay_as_they_are_read() {
    let fs = MemFs::new();
    let names = ["a", "b", "c"];
    for n in 0..60 {
        let db = open(&fs, BackgroundMode::Stepped);
        for name in names {
            let p = db.partition(name).unwrap();
            p.put(key(n), key(n)).unwrap();
            if n % 3 == 2 {
                p.delete(key(n - 1)).unwrap();
            }
        }
        db.wait_idle().unwrap();
        db.close().unwrap();
    }
    let db = open(&fs, BackgroundMode::Stepped);
    for name in names {
        let p = db.partition(name).unwrap();
        assert!(table_count(&p) <= 18, "{}", table_count(&p));
        check(&p, (0..60).filter(|n| n % 3 != 1));
        p.compact(..).unwrap();
        assert_eq!(table_count(&p), 1);
        check(&p, (0..60).filter(|n| n % 3 != 1));
    }
}

#[test]
fn a_held_snapshot_sees_its_versions_after_small_tables_are_merged() {
    let db = open(&MemFs::new(), BackgroundMode::Stepped);
    let p = db.partition("p").unwrap();
    let mut snapshots = Vec::new();
    for n in 0..40 {
        p.put(key(n), key(n)).unwrap();
        db.flush().unwrap();
        snapshots.push(db.snapshot());
        db.wait_idle().unwrap();
    }
    for n in 0..40 {
        p.delete(key(n)).unwrap();
        db.flush().unwrap();
        db.wait_idle().unwrap();
    }
    p.compact(..).unwrap();
    for (at, snapshot) in snapshots.iter().enumerate() {
        let keys: Vec<_> = snapshot.keys(&p).map(|key| key.unwrap().to_vec()).collect();
        assert_eq!(keys, (0..=at as u32).map(|n| key(n).to_vec()).collect::<Vec<_>>());
    }
    check(&p, 0..0);
    drop(snapshots);
    p.compact(..).unwrap();
    assert_eq!(table_count(&p), 0);
}

/// Each table of a sequential load is moved down and stays as it was flushed.
#[test]
fn a_sequential_load_is_not_rewritten() {
    let builder = Db::builder("/db").fs(Arc::new(MemFs::new())).write_buffer_bytes(128 << 10);
    let db = builder.background(BackgroundMode::Stepped).open().unwrap();
    let options =
        PartitionOptions::new().table_bytes(128 << 10).compression(siltstone::Compression::None);
    let p = db.partition_with("p", options).unwrap();
    for n in 0..400u32 {
        p.put(key(n), [n as u8; LONG]).unwrap();
        while db.step().unwrap() {}
    }
    assert_eq!(db.stats().compaction_written_bytes, 0);
    p.compact(..).unwrap();
    // The rest of the load alone is a small table; it has a full one beside it.
    assert_eq!(db.stats().compaction_written_bytes, 0);
}
