//! Past faults: each test describes one that was found and fixed.

use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, Fs, MemFs};
use siltstone::{Db, Durability, ErrorKind, Options, Partition};
use testkit::rng::Rng;

use crate::store::stepped;

fn tiny() -> Options {
    let options = Options::new().cache_bytes(0).write_buffer_bytes(4 << 10);
    options.wal_segment_bytes(4 << 10).wal_bytes_max(8 << 10)
}

fn open(fs: &MemFs) -> (Db, Partition) {
    open_with(fs, tiny())
}

/// Nothing is flushed before the close.
fn open_roomy(fs: &MemFs) -> (Db, Partition) {
    open_with(fs, tiny().write_buffer_bytes(1 << 20))
}

fn open_with(fs: &MemFs, options: Options) -> (Db, Partition) {
    let db = stepped(Arc::new(fs.clone()), "/db", 1).options(options).open().unwrap();
    let partition = db.partition("p").unwrap();
    (db, partition)
}

/// A frame too large for the reserved segment got a segment with a later number. The reserve, used
/// next, then came before it in the order of the log, and the next open met a chain that begins in
/// the middle: `Corruption` after a clean close.
#[test]
fn a_frame_larger_than_the_reserve_keeps_the_segments_in_order() {
    let fs = MemFs::new();
    let (db, p) = open_roomy(&fs);
    p.put("a", vec![1; 3000]).unwrap();
    p.put("b", vec![2; 3000]).unwrap();
    db.wait_idle().unwrap();
    p.put("c", vec![3; 5000]).unwrap();
    p.put("d", "").unwrap();
    db.close().unwrap();
    drop(p);
    let (_db, p) = open(&fs);
    let keys: Vec<_> = p.keys().map(|key| key.unwrap().to_vec()).collect();
    assert_eq!(keys, [b"a", b"b", b"c", b"d"]);
}

/// The zeros of a new segment were not durable before its header was written, so a power cut could
/// leave arbitrary bytes instead of the header. Recovery rightly reports these as damage.
#[test]
fn no_power_cut_leaves_garbage_for_a_segments_header() {
    for seed in 0..200 {
        let fs = MemFs::new();
        let (_db, p) = open(&fs);
        p.put("a", "1").unwrap();
        p.put("b", vec![2; 4000]).unwrap();
        p.put("c", "3").unwrap();
        let mut random = Rng::new(seed);
        let left = fs.crash_clone(CrashOutcome::Garbage, &mut || random.next_u64());
        let (_db, p) = open(&left);
        let keys: Vec<_> = p.keys().map(|key| key.unwrap().to_vec()).collect();
        assert!(
            [&b"a"[..], b"b", b"c"].starts_with(&keys.iter().map(|k| &k[..]).collect::<Vec<_>>())
        );
    }
}

/// Writers waited for sealed memtables of a dropped partition, which no job flushes: writers of
/// other partitions, and its own, which should have got an error.
#[test]
fn a_dropped_partition_delays_no_writer() {
    let (db, p) = open(&MemFs::new());
    let dropped = db.partition("dropped").unwrap();
    let batch = (0..5u8).fold(db.batch(), |batch, n| batch.put(&dropped, [n], vec![n; 4000]));
    batch.commit(Durability::Os).unwrap();
    assert_eq!(db.stats().partitions[2].pressure_permille, 1000);
    db.drop_partition("dropped").unwrap();
    p.put("k", "v").unwrap();
    let refused = dropped.put("k", "v").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PartitionNotFound);
}

/// Replaying a log of more than a write buffer makes several tables. A tombstone in a later one was
/// compared with the tables from before the replay, found nothing to delete, and was dropped; the
/// value in an earlier one came back.
#[test]
fn a_replay_in_several_tables_keeps_what_its_tombstones_delete() {
    let fs = MemFs::new();
    let (db, p) = open_roomy(&fs);
    p.put("deleted", "v").unwrap();
    p.put("large", vec![0; 6000]).unwrap();
    p.delete("deleted").unwrap();
    db.close().unwrap();
    drop(p);
    let (_db, p) = open(&fs);
    assert_eq!(p.get("deleted").unwrap(), None);
    assert_eq!(p.iter().count(), 1);
}

/// The first put preallocated a segment of 64 MiB, and the next segment came soon after it: a disk
/// of 64 MiB was too small for a store.
#[test]
fn one_put_makes_a_folder_of_less_than_a_mebibyte() {
    let fs = MemFs::new();
    let capacity = 1 << 30;
    fs.set_capacity(Some(capacity));
    let db = stepped(Arc::new(fs.clone()), "/db", 1).open().unwrap();
    let taken = || capacity - fs.free_bytes(Path::new("/db")).unwrap();
    assert!(taken() < 1 << 20, "an empty store takes {} bytes", taken());
    db.partition("default").unwrap().put("a", "1").unwrap();
    assert!(taken() < 1 << 20, "a store with one entry takes {} bytes", taken());
}

/// A store with a write buffer of 2 MiB works permanently within 16 MiB.
#[test]
fn a_small_store_works_on_a_small_disk() {
    let fs = MemFs::new();
    let capacity = 16 << 20;
    fs.set_capacity(Some(capacity));
    let options = Options::new().write_buffer_bytes(2 << 20).cache_bytes(0);
    let db = stepped(Arc::new(fs.clone()), "/db", 1).options(options).open().unwrap();
    let partition = db.partition("default").unwrap();
    let mut random = Rng::new(7);
    let mut written = 0_usize;
    while written < 60 << 20 {
        let mut value = vec![0; 1000];
        value.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
        let key = format!("{:04}", random.next_u64() % 2000);
        partition.put(&key, &value).unwrap_or_else(|error| panic!("after {written}: {error}"));
        written += value.len();
        if random.next_u64().is_multiple_of(100) {
            db.step().unwrap_or_else(|error| panic!("after {written}: {error}"));
        }
    }
    db.wait_idle().unwrap();
    assert_eq!(partition.keys().count(), 2000);
}
