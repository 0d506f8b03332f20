//! The edits that a value store is notified of: each value is added by one edit and dropped by one,
//! whatever jobs, failures and reopenings come in between.

use std::sync::Arc;

use lsm_core::fs::{FaultFs, Fs, FsOp, MemFs, OpKind};
use siltstone::hooks::ValueStore;
use siltstone::{BackgroundMode, Db, Durability, Hooks, Options, PartitionOptions};

use crate::store::stepped;
use crate::test_value_store::{FailureMode, ShelfProvider, TestValueStore};

const LEN: usize = 200;

fn open(fs: &MemFs, shelf: &TestValueStore) -> Db {
    open_on(Arc::new(fs.clone()), shelf)
}

fn open_on(fs: Arc<dyn Fs>, shelf: &TestValueStore) -> Db {
    let builder = stepped(fs, "/db", 7).options(Options::new().write_buffer_bytes(64 << 10));
    builder.hooks(Arc::new(ShelfProvider(shelf.clone()))).open().unwrap()
}

fn options(shelf: &TestValueStore) -> PartitionOptions {
    PartitionOptions::new().hooks(Hooks::new().value_store(Arc::new(shelf.clone())))
}

#[test]
fn each_value_is_added_once_and_dropped_once() {
    for moves in [false, true] {
        let fs = MemFs::new();
        let shelf = TestValueStore::moving(moves);
        let mut db = open(&fs, &shelf);
        db.partition_with("p", options(&shelf)).unwrap();
        for round in 0..4_u8 {
            let p = db.partition("p").unwrap();
            for n in 0..20_u8 {
                // Twice into one memtable: the first never reaches a table.
                p.put([n % 10], vec![round; LEN]).unwrap();
            }
            p.delete([round]).unwrap();
            match round {
                0 => p.flush().unwrap(),
                1 => p.compact(..).unwrap(),
                // The rest is only in the log.
                _ => {
                    db.close().unwrap();
                    db = open(&fs, &shelf);
                }
            }
        }
        let p = db.partition("p").unwrap();
        p.compact(..).unwrap();
        db.wait_idle().unwrap();
        assert_eq!(p.iter().count(), 9);
        assert_eq!((shelf.named(), shelf.live()), (9, 9), "moves: {moves}");
    }
}

#[test]
fn values_moved_by_a_failed_job_are_released() {
    let fs = MemFs::new();
    let shelf = TestValueStore::moving(true);
    let db = open(&fs, &shelf);
    let p = db.partition_with("p", options(&shelf)).unwrap();
    for n in 0..10_u8 {
        p.put([n], vec![n; LEN]).unwrap();
    }
    p.flush().unwrap();
    shelf.fuse.set("edit", FailureMode::Panic);
    p.compact(..).unwrap_err();
    assert_eq!(shelf.live(), 10, "the copies are gone");
    shelf.fuse.clear();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!((shelf.named(), shelf.live()), (10, 10));
    assert_eq!(p.get([3]).unwrap().unwrap(), vec![3; LEN]);
}

/// The moved values may have been in that sync, and the store syncs them no more.
#[test]
fn a_move_during_which_a_sync_of_the_store_failed_is_not_installed() {
    let fs = MemFs::new();
    let faults = FaultFs::over_mem(fs.clone());
    let shelf = TestValueStore::moving(true);
    let db = open_on(Arc::new(faults.clone()), &shelf);
    let p = db.partition_with("p", options(&shelf)).unwrap();
    for n in 0..10_u8 {
        p.put([n], vec![n; LEN]).unwrap();
    }
    p.flush().unwrap();
    let failing = shelf.clone();
    faults.set_observer(Arc::new(move |op: &FsOp| {
        if op.kind == OpKind::Sync && op.path.extension().is_some_and(|ending| ending == "sst") {
            failing.note_failed_sync();
        }
    }));
    p.compact(..).unwrap_err();
    assert_eq!(shelf.live(), 10, "the copies are gone");
    faults.clear_observer();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!((shelf.named(), shelf.live()), (10, 10));
}

#[test]
fn values_of_a_dropped_partition_are_freed_with_their_last_reader() {
    let fs = MemFs::new();
    let shelf = TestValueStore::default();
    let db = open(&fs, &shelf);
    let p = db.partition_with("p", options(&shelf)).unwrap();
    p.put("flushed", vec![1; LEN]).unwrap();
    p.flush().unwrap();
    p.put("in memory", vec![2; LEN]).unwrap();
    let reader = p.iter();
    db.drop_partition("p").unwrap();
    db.wait_idle().unwrap();
    assert_eq!(shelf.live(), 2, "a reader is left");
    assert_eq!(reader.map(|pair| pair.unwrap().1.len()).collect::<Vec<_>>(), [LEN, LEN]);
    db.wait_idle().unwrap();
    assert_eq!(shelf.live(), 0);
}

#[test]
fn a_pending_value_commits_with_other_keys_or_is_released() {
    let fs = MemFs::new();
    let shelf = TestValueStore::default();
    let db = lsm_core::Db::builder("/db")
        .fs(Arc::new(fs.clone()))
        .background(BackgroundMode::Stepped)
        .hooks(Arc::new(ShelfProvider(shelf.clone())))
        .open()
        .unwrap();
    let hooks = Hooks::new().value_store(Arc::new(shelf.clone()));
    let p = db.partition_with("p", Default::default(), Some(hooks)).unwrap();
    let mut batch = db.batch();
    batch.add_pending(&p, b"large", shelf.put(b"large", &[5; LEN]).unwrap());
    batch.add_put(&p, b"small", b"next to it");
    drop(batch);
    assert_eq!((shelf.live(), p.get("large").unwrap()), (0, None));
    let mut batch = db.batch();
    batch.add_pending(&p, b"large", shelf.put(b"large", &[5; LEN]).unwrap());
    batch.add_put(&p, b"small", b"next to it");
    batch.commit(Durability::Sync).unwrap();
    assert_eq!(p.get("large").unwrap().unwrap(), vec![5; LEN]);
    assert_eq!(p.get("small").unwrap().unwrap(), b"next to it");
}

#[test]
fn a_value_that_is_stored_apart_counts_as_its_handle_for_stalls() {
    let fs = MemFs::new();
    let shelf = TestValueStore::default();
    let db = open(&fs, &shelf);
    let p = db.partition_with("p", options(&shelf)).unwrap();
    // The values of many write buffers: as handles they do not fill one.
    for n in 0..100_u8 {
        p.try_put([n], vec![n; 64 << 10]).unwrap();
    }
    assert_eq!(shelf.live(), 100);
}

/// Like the store of an application that keeps an index of its values.
#[test]
fn a_store_that_writes_to_the_database_in_its_put_puts_both() {
    let fs = MemFs::new();
    let shelf = TestValueStore::default();
    let db = open(&fs, &shelf);
    let p = db.partition_with("p", options(&shelf)).unwrap();
    let index = db.partition("index").unwrap();
    let written = index.clone();
    shelf.call_in_put(move || {
        written.put("of", "large").unwrap();
    });
    p.put("large", vec![1; LEN]).unwrap();
    // The same value, and a batch.
    let own = p.clone();
    shelf.call_in_put(move || {
        own.put("small", "in the table").unwrap();
    });
    p.put("other", vec![2; LEN]).unwrap();
    let batched = db.batch().put(&index, "in", "a batch");
    shelf.call_in_put(move || {
        batched.commit(siltstone::Durability::Os).unwrap();
    });
    p.put("third", vec![3; LEN]).unwrap();
    db.close().unwrap();
    let db = open(&fs, &shelf);
    let p = db.partition("p").unwrap();
    for (key, byte) in [("large", 1), ("other", 2), ("third", 3)] {
        assert_eq!(p.get(key).unwrap().unwrap(), vec![byte; LEN]);
    }
    assert_eq!(p.get("small").unwrap().unwrap(), b"in the table");
    let index = db.partition("index").unwrap();
    let pairs: Vec<_> = index.iter().map(|pair| pair.unwrap().0.to_vec()).collect();
    assert_eq!(pairs, [&b"in"[..], b"of"]);
}

/// Values 1 to 5 are in the value store, `b` and `y` in the table; `a` to `z` is the order of the
/// keys.
#[test]
fn a_scan_of_values_has_the_next_ones_read_ahead_and_a_scan_of_keys_none() {
    let fs = MemFs::new();
    let shelf = TestValueStore::default();
    let db = open(&fs, &shelf);
    let p = db.partition_with("p", options(&shelf)).unwrap();
    for key in ["c", "d", "e", "f", "z"] {
        p.put(key, vec![1; LEN]).unwrap();
    }
    p.put("b", "small").unwrap();
    p.put("y", "small").unwrap();
    p.flush().unwrap();
    assert_eq!(p.keys().count(), 7);
    let mut scan = p.iter();
    scan.next().unwrap().unwrap();
    assert_eq!(shelf.take_reads(), [""; 0], "no large value is near for all it knows");
    scan.next().unwrap().unwrap();
    assert_eq!(shelf.take_reads(), ["read 1"], "a second one may not be needed");
    scan.next().unwrap().unwrap();
    let all_read_ahead = ["ahead 3", "ahead 4", "ahead 5", "read 2"];
    assert_eq!(shelf.take_reads(), all_read_ahead, "each before the value that was asked for");
    assert_eq!(scan.map(|pair| pair.unwrap().1.len()).sum::<usize>(), 3 * LEN + 5);
    assert_eq!(shelf.take_reads(), ["read 3", "read 4", "read 5"], "none twice");
    let mut back = p.iter().rev();
    back.by_ref().take(2).for_each(|pair| drop(pair.unwrap()));
    assert_eq!(shelf.take_reads(), ["read 5"]);
    back.next().unwrap().unwrap();
    let all_read_ahead = ["ahead 3", "ahead 2", "ahead 1", "read 4"];
    assert_eq!(shelf.take_reads(), all_read_ahead, "in the order in which they come");
    assert_eq!(back.map(|pair| pair.unwrap().1.len()).sum::<usize>(), 3 * LEN + 5);
    assert_eq!(shelf.take_reads(), ["read 3", "read 2", "read 1"], "none twice");
    // A store that panics there does not affect the scan.
    shelf.fuse.set("prefetch", FailureMode::Panic);
    assert_eq!(p.range("c"..).map(|pair| pair.unwrap().1.len()).sum::<usize>(), 5 * LEN + 5);
}

/// A value is requested while fewer than 8 MiB are ahead of the scan.
#[test]
fn a_scan_reads_no_more_ahead_than_its_limits() {
    let fs = MemFs::new();
    let shelf = TestValueStore::default();
    let db = open(&fs, &shelf);
    let p = db.partition_with("p", options(&shelf)).unwrap();
    for n in 0..10_u8 {
        p.put([n], vec![n; 3 << 20]).unwrap();
    }
    for n in 10..110_u8 {
        p.put([n], vec![n; LEN]).unwrap();
    }
    let mut scan = p.iter();
    scan.next().unwrap().unwrap();
    assert_eq!(shelf.take_reads(), ["read 1"]);
    scan.next().unwrap().unwrap();
    assert_eq!(shelf.take_reads(), ["ahead 3", "ahead 4", "ahead 5", "read 2"]);
    scan.next().unwrap().unwrap();
    assert_eq!(shelf.take_reads(), ["ahead 6", "read 3"]);
    let mut scan = p.range([10]..);
    scan.next().unwrap().unwrap();
    scan.next().unwrap().unwrap();
    assert_eq!(shelf.take_reads().len(), 64 + 2, "keys");
}
