//! The space that tables use: unneeded entries are removed without a call, and the remaining ones
//! are compressed however they were written.

use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, Fs, MemFs, OsFs};
use siltstone::{BackgroundMode, Db, Durability, Options, Partition, PartitionOptions};
use testkit::Rng;

use crate::clock::ManualClock;
use crate::store::stepped;

struct Store {
    clock: ManualClock,
    db: Db,
    p: Partition,
}

#[test]
fn the_size_of_a_range_is_about_its_part_of_the_tables() {
    let Store { db, p, .. } = store();
    let mut rng = Rng::from_env_or(7);
    for n in 0..2000u32 {
        let value: Vec<u8> = (0..100).map(|_| rng.next_u64() as u8).collect();
        p.put(n.to_be_bytes(), value).unwrap();
    }
    p.compact(..).unwrap();
    let all = p.size_approx(..).unwrap();
    let stats = db.stats();
    let levels = stats.partitions.iter().filter(|it| it.name == "p").flat_map(|it| &it.levels);
    assert_eq!(all, levels.map(|level| level.bytes).sum::<u64>());
    // A share of the keys has about this share of the bytes, wherever tables end.
    for (first, last) in [(0u32, 500u32), (500, 1500), (1999, 2000), (700, 710)] {
        let size = p.size_approx(first.to_be_bytes()..last.to_be_bytes()).unwrap();
        let share = all * u64::from(last - first) / 2000;
        assert!(size.abs_diff(share) < 8 << 10, "{first} to {last}: {size} of {share}");
    }
    assert_eq!(p.size_approx(2000u32.to_be_bytes()..).unwrap(), 0);
    assert_eq!(p.size_approx([9]..[1]).unwrap(), 0);
    p.put(9000u32.to_be_bytes(), [7; 100]).unwrap();
    assert_eq!(p.size_approx(..).unwrap(), all, "it is in no table");
}

fn store() -> Store {
    store_in(&MemFs::new(), 8 << 10)
}

fn store_in(fs: &MemFs, write_buffer_bytes: u64) -> Store {
    let clock = ManualClock::default();
    let options = Options::new().cache_bytes(0).write_buffer_bytes(write_buffer_bytes);
    let options = options.wal_segment_bytes(8 << 10).wal_bytes_max(64 << 10);
    let builder = stepped(Arc::new(fs.clone()), "/db", 1).options(options);
    let db = builder.clock(Arc::new(clock.clone())).open().unwrap();
    let options = PartitionOptions::new().block_bytes(1024).table_bytes(64 << 10);
    let p = db.partition_with("p", options.level_base_bytes(256 << 10)).unwrap();
    Store { clock, db, p }
}

impl Store {
    fn settle(&self) {
        while self.db.step().unwrap() {}
    }

    /// Entries of all tables of the partition.
    fn entries(&self) -> u64 {
        let stats = self.db.stats();
        let partition = stats.partitions.iter().find(|partition| partition.name == "p").unwrap();
        partition.levels.iter().map(|level| level.entry_count).sum()
    }

    fn put_all(&self, keys: u32, round: u32) {
        for key in 0..keys {
            self.p.put(format!("key {key:04}"), format!("round {round}")).unwrap();
        }
    }
}

/// Bytes of tables after a load in this order.
fn bytes_after_load(order: &[u32]) -> u64 {
    let store = store_in(&MemFs::new(), 64 << 10);
    for key in order {
        let value = format!("the record of user {key}, written once, with some more words in it");
        store.p.put(format!("user {key:08}"), value).unwrap();
        if key % 64 == 0 {
            store.settle();
        }
    }
    store.db.flush().unwrap();
    store.settle();
    store.db.stats().table_bytes
}

/// Tables of a load in order used to be moved down unchanged, uncompressed, and no merge followed:
/// 108 MiB, where the same rows in another order took 20.
#[test]
fn a_load_in_order_is_compressed_as_one_in_any_order() {
    let sorted: Vec<u32> = (0..60_000).collect();
    let mut shuffled = sorted.clone();
    let mut rng = Rng::new(7);
    for at in (1..shuffled.len()).rev() {
        let other = rng.next_u64() as usize % (at + 1);
        shuffled.swap(at, other);
    }
    let in_order = bytes_after_load(&sorted);
    let in_any = bytes_after_load(&shuffled);
    let difference = in_order.abs_diff(in_any);
    assert!(difference * 10 <= in_order.min(in_any), "{in_order} and {in_any} bytes");
}

/// Versions that a compaction had kept for a snapshot used to stay permanently: nothing else was
/// due in the last level, and not even a compaction of everything looked at it again.
#[test]
fn what_was_kept_for_a_snapshot_goes_some_time_after_its_release() {
    let store = store();
    store.put_all(100, 1);
    let snapshot = store.db.snapshot();
    store.put_all(100, 2);
    store.p.compact(..).unwrap();
    assert_eq!(store.entries(), 200, "the snapshot sees the first hundred");
    store.clock.pass(60);
    store.settle();
    assert_eq!(store.entries(), 200, "it still does");
    drop(snapshot);
    store.settle();
    assert_eq!(store.entries(), 200, "others may be released soon");
    store.clock.pass(60);
    store.settle();
    assert_eq!(store.entries(), 100);
}

#[test]
fn a_compaction_of_everything_drops_what_no_snapshot_needs_any_more() {
    let fs = MemFs::new();
    let store = store_in(&fs, 8 << 10);
    store.put_all(100, 1);
    let snapshot = store.db.snapshot();
    store.p.put("key 0007", "round 2").unwrap();
    store.p.compact(..).unwrap();
    drop(snapshot);
    assert_eq!(store.entries(), 101);
    // A tenth of a hundred is less than becomes due by itself, and tables remember it over a
    // reopening.
    store.clock.pass(60);
    store.settle();
    assert_eq!(store.entries(), 101);
    store.db.clone().close().unwrap();
    drop(store);
    let store = store_in(&fs, 8 << 10);
    store.p.compact(..).unwrap();
    assert_eq!(store.entries(), 100);
}

fn store_without_syncs(fs: &MemFs, background: BackgroundMode) -> Db {
    let options = Options::new().sync_interval_ms(0);
    let builder = Db::builder("/db").options(options).fs(Arc::new(fs.clone()));
    builder.background(background).open().unwrap()
}

/// The log of a database uses no space when everything is in tables.
#[test]
fn a_flushed_database_keeps_no_log() {
    for background in [BackgroundMode::Stepped, BackgroundMode::Threads] {
        let fs = MemFs::new();
        let db = store_without_syncs(&fs, background);
        let [p, q] = ["p", "q"].map(|name| db.partition(name).unwrap());
        let mut random = Rng::new(3);
        let mut expected = Vec::new();
        for round in 0..4_u8 {
            // Before the others: the length of the last segment depends on when the log thread made it.
            q.put([round], [round]).unwrap();
            for key in 0..300_u16 {
                let value = random.bytes(8 << 10);
                p.put(key.to_be_bytes(), &value).unwrap();
                expected.push((key, value));
            }
            p.flush().unwrap();
            let logged = db.stats().wal_disk_bytes;
            assert!(
                logged > 2 << 20,
                "round {round}: the other partition needs its entry: {logged}"
            );
            q.flush().unwrap();
            db.wait_idle().unwrap();
            let logged = db.stats().wal_disk_bytes;
            // A segment up to 256 KiB stays, and up to 256 KiB after its frames.
            assert!(logged <= 512 << 10, "{background:?}, round {round}: {logged} bytes");
        }
        let before = p.put("last", "one").unwrap();
        q.put("last", "one").unwrap();
        drop((p, q, db));
        let db = store_without_syncs(&fs, background);
        let p = db.partition("p").unwrap();
        assert!(db.visible_seq() > before.seq);
        assert_eq!(p.get("last").unwrap().as_deref(), Some(&b"one"[..]));
        for (key, value) in &expected[900..] {
            assert_eq!(p.get(key.to_be_bytes()).unwrap().as_deref(), Some(&value[..]));
        }
    }
}

/// The memtable of a partition that is written to rarely is never the largest: only the length of
/// the log has it flushed.
#[test]
fn a_partition_that_rests_does_not_keep_the_log() {
    let fs = MemFs::new();
    let store = store_in(&fs, 32 << 10);
    let rests = store.db.partition("rests").unwrap();
    for round in 0..3_u32 {
        rests.put("key", round.to_be_bytes()).unwrap();
        let mut most = 0;
        for key in 0..200_u32 {
            store.p.put(key.to_be_bytes(), [7; 2000]).unwrap();
            store.settle();
            most = most.max(store.db.stats().wal_disk_bytes);
        }
        // `wal_bytes_max`, and four segments: those at both ends of it, the one in use, and the next one.
        assert!(most <= (64 << 10) + 4 * (8 << 10), "round {round}: {most} bytes");
        let image = fs.crash_clone(CrashOutcome::Everything, &mut || 0);
        let found = store_in(&image, 32 << 10).db.partition("rests").unwrap().get("key").unwrap();
        assert_eq!(found.as_deref(), Some(&round.to_be_bytes()[..]));
    }
}

/// The lengths of files, and the space that the device has allocated for them.
fn taken(dir: &std::path::Path) -> (u64, u64) {
    let files = OsFs.list(dir, "").unwrap();
    let bytes = files.iter().map(|file| file.len).sum();
    #[cfg(unix)]
    let space = {
        use std::os::unix::fs::MetadataExt;
        let blocks = files.iter().map(|file| dir.join(&file.name).metadata().unwrap().blocks());
        blocks.sum::<u64>() * 512
    };
    #[cfg(not(unix))]
    let space = bytes;
    (bytes, space)
}

/// As the test `size_leak` of sled requires: 16 KiB for a few bytes.
#[test]
fn a_database_of_a_few_bytes_takes_few_bytes() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let db = Db::open(dir.path()).unwrap();
        let p = db.partition("p").unwrap();
        for n in 0..10_u8 {
            p.put_with([n], "value", Durability::Sync).unwrap();
        }
        db.wait_idle().unwrap();
        let (bytes, space) = taken(dir.path());
        // From the second open on, the entries of the log are in a table.
        let table = if round == 0 { 0 } else { 8 << 10 };
        assert!(bytes <= 16_384 + table && space <= 20_480 + table, "open: {bytes}, {space}");
        db.close().unwrap();
        drop(p);
        let (bytes, space) = taken(dir.path());
        assert!(bytes <= 8_192 + table && space <= 8_192 + table, "closed: {bytes}, {space}");
    }
}
