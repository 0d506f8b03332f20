//! Tables of few entries: many short runs of a database leave few of them, and a request merges
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lsm_core::fs::{FaultFs, FsOp, MemFs, OpKind};
use siltstone::secondary::Level;
use siltstone::{
    BackgroundMode, Builder, Db, LargeValueOptions, MetaHiveOptions, Partition, PartitionOptions,
    TtlFilter, TtlRule,
};
use testkit::Rng;

use crate::clock::ManualClock;
use crate::store::stepped;

/// Tables of 7 equal sizes at the end, 4 of level 0, and one for each doubling up to a sixteenth of
/// a table.
const FEW: u64 = 7 + 4 + 13;

fn builder(fs: &MemFs, background: BackgroundMode) -> Builder {
    Db::builder("/db").fs(Arc::new(fs.clone())).background(background)
}

fn open(fs: &MemFs, background: BackgroundMode) -> Db {
    builder(fs, background).open().unwrap()
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn table_count(partition: &Partition) -> u64 {
    partition.stats().levels.iter().map(|level| level.table_count).sum()
}

#[track_caller]
fn check(partition: &Partition, value: impl Fn(u32) -> Vec<u8>, keys: impl Iterator<Item = u32>) {
    let rows: Vec<_> = partition.iter().map(Result::unwrap).collect();
    let expected: Vec<_> = keys.map(|n| (key(n).to_vec(), value(n))).collect();
    let found: Vec<_> = rows.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert!(found == expected, "{} rows of {}", found.len(), expected.len());
}

fn short(n: u32) -> Vec<u8> {
    key(n).to_vec()
}

/// Opens a database so many times for one put, and returns the bytes that compactions wrote.
fn live_shortly(
    fs: &MemFs,
    lives: u32,
    options: impl Fn() -> PartitionOptions,
    value: impl Fn(u32) -> Vec<u8>,
) -> u64 {
    let mut written = 0;
    for n in 0..lives {
        let db = open(fs, BackgroundMode::Stepped);
        let p = db.partition_with("p", options()).unwrap();
        p.put(key(n), value(n)).unwrap();
        db.wait_idle().unwrap();
        written += db.stats().compaction_written_bytes;
        assert!(table_count(&p) <= FEW, "{} after {n}", table_count(&p));
        db.close().unwrap();
    }
    written
}

/// Checks that short runs leave few tables, and a request one.
#[track_caller]
fn check_lives(options: impl Fn() -> PartitionOptions, value: impl Fn(u32) -> Vec<u8>) {
    const LIVES: u32 = 100;
    let fs = MemFs::new();
    live_shortly(&fs, LIVES, &options, &value);
    let db = open(&fs, BackgroundMode::Stepped);
    let p = db.partition_with("p", options()).unwrap();
    check(&p, &value, 0..LIVES);
    p.compact(..).unwrap();
    assert_eq!(table_count(&p), 1);
    check(&p, &value, 0..LIVES);
    let compacted = db.stats().compaction_count;
    p.compact(..).unwrap();
    assert_eq!(table_count(&p), 1);
    // Filters and stores see the one table once more.
    assert!(db.stats().compaction_count <= compacted + 1);
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

/// 600 processes with one put each used to leave 600 tables of 400 bytes on level 6, and `compact`
/// changed nothing.
#[test]
fn many_opens_with_one_put_each_leave_few_tables() {
    let fs = MemFs::new();
    let written = live_shortly(&fs, 600, PartitionOptions::new, short);
    // A table has 400 bytes in addition to its entry, which has less than 25.
    assert!(written < 2 * 600 * (400 * 8 / 7 + 25 * 14), "{written}");
    let db = open(&fs, BackgroundMode::Stepped);
    let p = db.partition("p").unwrap();
    check(&p, short, 0..600);
    p.compact(..).unwrap();
    assert_eq!(table_count(&p), 1);
    check(&p, short, 0..600);
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

#[test]
fn tables_with_metadata_are_merged() {
    check_lives(|| PartitionOptions::new().metahive(MetaHiveOptions::new()), short);
}

fn with_large_values() -> PartitionOptions {
    let large = LargeValueOptions::new().threshold_bytes(256).chunk_bytes(4 << 10);
    PartitionOptions::new().large_values(large)
}

#[test]
fn tables_with_handles_of_large_values_are_merged() {
    check_lives(with_large_values, |n| vec![n as u8; 300 + n as usize]);
}

/// The first eight bytes of a value are the second at which it expires.
fn expiring(n: u32) -> Vec<u8> {
    let at: u64 = if n % 3 == 2 { 1_000 } else { 1_000_000_000_000 };
    [&at.to_be_bytes()[..], &key(n)].concat()
}

fn open_expiring(fs: &MemFs, clock: &ManualClock) -> (Db, Partition) {
    let builder = builder(fs, BackgroundMode::Stepped).clock(Arc::new(clock.clone()));
    let db = builder.open().unwrap();
    let filter = TtlFilter::stored(&TtlRule::in_value(0));
    let p = db.partition_with("p", PartitionOptions::new().filter(Arc::new(filter))).unwrap();
    (db, p)
}

#[test]
fn what_has_expired_goes_when_small_tables_are_merged() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    for n in 0..100 {
        let (db, p) = open_expiring(&fs, &clock);
        p.put(key(n), expiring(n)).unwrap();
        db.wait_idle().unwrap();
        assert!(table_count(&p) <= FEW, "{} after {n}", table_count(&p));
        db.close().unwrap();
    }
    let (db, p) = open_expiring(&fs, &clock);
    p.compact(..).unwrap();
    assert_eq!(table_count(&p), 1);
    check(&p, expiring, 0..100);
    clock.pass(2_000);
    p.compact(..).unwrap();
    assert_eq!(table_count(&p), 1);
    check(&p, expiring, (0..100).filter(|n| n % 3 != 2));
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

/// Threads have no time in a process that lives for milliseconds.
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
    assert!(table_count(&p) <= FEW, "{}", table_count(&p));
    check(&p, short, 0..60);
}

fn is_left(n: u32) -> bool {
    n % 3 != 1
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
        assert!(table_count(&p) <= FEW, "{}", table_count(&p));
        check(&p, short, (0..60).filter(|n| is_left(*n)));
        p.compact(..).unwrap();
        assert_eq!(table_count(&p), 1);
        check(&p, short, (0..60).filter(|n| is_left(*n)));
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
    assert_eq!(table_count(&p), 1);
    for (at, snapshot) in snapshots.iter().enumerate() {
        let keys: Vec<_> = snapshot.keys(&p).map(|key| key.unwrap().to_vec()).collect();
        assert_eq!(keys, (0..=at as u32).map(|n| key(n).to_vec()).collect::<Vec<_>>());
    }
    check(&p, short, 0..0);
    drop(snapshots);
    p.compact(..).unwrap();
    assert_eq!(table_count(&p), 0);
}

/// Each flush makes a table of one entry. With 1 KiB for a table none of them is small; with 4 KiB all are, since long
/// entries compress.
#[test]
fn a_request_ends_where_each_entry_is_cut_off() {
    for table_bytes in [1 << 10, 4 << 10] {
        for entry_bytes in [10, 100, 500, 5000] {
            check_requests_end(table_bytes, entry_bytes);
        }
    }
}

fn check_requests_end(table_bytes: u64, entry_bytes: usize) {
    let options = PartitionOptions::new().table_bytes(table_bytes).block_bytes(128);
    let fs = FaultFs::over_mem(MemFs::new());
    let db = stepped(Arc::new(fs.clone()), "/db", 1).open().unwrap();
    let p = db.partition_with("p", options.level_base_bytes(4 * table_bytes)).unwrap();
    let made = AtomicU32::new(0);
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let is_table = op.kind == OpKind::Create && op.path.to_string_lossy().ends_with(".sst");
        let number = made.fetch_add(u32::from(is_table), Ordering::Relaxed);
        assert!(number != 2000, "tables are merged again and again");
    }));
    // A table is much smaller than what is counted while it is written.
    for n in 0..60 {
        p.put(key(n), vec![n as u8; entry_bytes]).unwrap();
        db.flush().unwrap();
        db.wait_idle().unwrap();
    }
    check(&p, |n| vec![n as u8; entry_bytes], 0..60);
    for _ in 0..3 {
        p.compact(..).unwrap();
        db.wait_idle().unwrap();
        check(&p, |n| vec![n as u8; entry_bytes], 0..60);
    }
    fs.clear_observer();
}

#[test]
fn a_secondary_follows_merges_of_small_tables() {
    let fs = MemFs::new();
    let db = open(&fs, BackgroundMode::Stepped);
    let p = db.partition("p").unwrap();
    p.put(key(0), key(0)).unwrap();
    let follower = Db::secondary_builder("/db").fs(Arc::new(fs.clone())).open().unwrap();
    let followed = follower.partition("p").unwrap();
    let first = followed.at(Level::Strong).unwrap();
    for n in 1..60 {
        p.put(key(n), key(n)).unwrap();
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let view = followed.at(Level::Strong).unwrap();
        assert_eq!(view.get(key(n)).unwrap().as_deref(), Some(&key(n)[..]));
        assert_eq!(view.keys().count(), n as usize + 1);
    }
    p.compact(..).unwrap();
    assert_eq!(table_count(&p), 1);
    assert_eq!(followed.at(Level::Strong).unwrap().keys().count(), 60);
    assert_eq!(first.keys().count(), 1);
    assert!(follower.verify(Default::default()).unwrap().is_sound());
}

/// Options with which tables are cut in many ways, chosen by the lowest bits of a number.
fn cut_in_many_ways(which: u64) -> PartitionOptions {
    let table_bytes = [1 << 10, 4 << 10, 64 << 10, 1 << 20][which as usize % 4];
    let options = PartitionOptions::new().table_bytes(table_bytes).level0_tables(2);
    let options = options.block_bytes([128, 4096][which as usize / 4 % 2]);
    let options = options.level_base_bytes(2 * table_bytes).level_multiplier(2);
    match which / 8 % 4 {
        0 => options.metahive(MetaHiveOptions::new()),
        1 => options.large_values(LargeValueOptions::new().threshold_bytes(300).chunk_bytes(4096)),
        2 => options.compression(siltstone::Compression::None),
        _ => options,
    }
}

fn open_cut(fs: &MemFs, which: u64) -> (Db, Partition) {
    let db = open(fs, BackgroundMode::Stepped);
    let p = db.partition_with("p", cut_in_many_ways(which)).unwrap();
    (db, p)
}

/// Checks that all pending work ends, and does not change what is read.
fn check_random_life(seed: u64) {
    let mut rng = Rng::new(seed);
    let fs = MemFs::new();
    let which = rng.next_u64();
    let (mut db, mut p) = open_cut(&fs, which);
    let mut expected = BTreeMap::new();
    let mut snapshots = Vec::new();
    for step in 0..150 {
        // Mostly ascending, so that many tables overlap nothing.
        let at = if rng.below(3) == 0 { rng.below(150) as u32 } else { step };
        match rng.below(12) {
            0 => {
                p.delete(key(at)).unwrap();
                expected.remove(key(at).as_slice());
            }
            1 => {
                snapshots.clear();
                (db, p) = {
                    drop(p);
                    db.close().unwrap();
                    open_cut(&fs, which)
                };
            }
            2 => p.compact(..).unwrap(),
            3 => p.compact(key(at)..).unwrap(),
            4 => db.wait_idle().unwrap(),
            5 => snapshots.push((db.snapshot(), expected.clone())),
            6 => drop(snapshots.pop()),
            _ => {
                let value = vec![at as u8; rng.below(600) as usize];
                p.put(key(at), &value).unwrap();
                expected.insert(key(at).to_vec(), value);
                db.flush().unwrap();
                while rng.below(2) == 0 && db.step().unwrap() {}
            }
        }
    }
    db.wait_idle().unwrap();
    p.compact(..).unwrap();
    check_rows(p.iter(), &expected, seed);
    for (snapshot, expected) in &snapshots {
        check_rows(snapshot.iter(&p), expected, seed);
    }
    assert!(db.verify(Default::default()).unwrap().is_sound(), "seed {seed}");
}

#[track_caller]
fn check_rows(
    rows: impl Iterator<Item = siltstone::Result<(siltstone::Slice, siltstone::Slice)>>,
    expected: &BTreeMap<Vec<u8>, Vec<u8>>,
    seed: u64,
) {
    let rows = rows.map(Result::unwrap).map(|(key, value)| (key.to_vec(), value.to_vec()));
    assert!(rows.eq(expected.clone()), "seed {seed}");
}

#[test]
fn random_lives_with_tables_of_every_size_come_to_rest() {
    (0..64).for_each(check_random_life);
}

/// A value of so many bytes is longer than a block.
const LONG: usize = 5000;

/// Each table of a sequential load is moved down and stays as it was flushed.
#[test]
fn a_sequential_load_is_not_rewritten() {
    let builder = builder(&MemFs::new(), BackgroundMode::Stepped).write_buffer_bytes(128 << 10);
    let db = builder.open().unwrap();
    let options =
        PartitionOptions::new().table_bytes(128 << 10).compression(siltstone::Compression::None);
    let p = db.partition_with("p", options).unwrap();
    for n in 0..400 {
        p.put(key(n), [n as u8; LONG]).unwrap();
        while db.step().unwrap() {}
    }
    assert_eq!(db.stats().compaction_written_bytes, 0);
    p.compact(..).unwrap();
    // The rest of the load is a small table; its neighbour is a full one.
    assert_eq!(db.stats().compaction_written_bytes, 0);
}

/// A merge would rewrite a full table for a few entries, each time that one is added.
#[test]
fn a_small_table_between_two_full_ones_stays() {
    let db = open(&MemFs::new(), BackgroundMode::Stepped);
    let options =
        PartitionOptions::new().table_bytes(64 << 10).compression(siltstone::Compression::None);
    let p = db.partition_with("p", options).unwrap();
    for first in [0, 1000, 500] {
        let keys = if first == 500 { 500..501 } else { first..first + 20 };
        for n in keys {
            p.put(key(n), [n as u8; LONG]).unwrap();
        }
        db.flush().unwrap();
    }
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(table_count(&p), 3);
    assert_eq!(db.stats().compaction_written_bytes, 0);
}
