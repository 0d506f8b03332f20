//! Threads that use one store at the same time: writers, readers, iterators, snapshots, flushes,
//! compactions, and partitions that are created and dropped.
//!
//! Each key has one writer, which counts its versions up, so that every read can be checked by
//! itself: it is never older than the version that was acknowledged before it began, and never goes
//! back for one reader. The reads of snapshots are checked exactly, afterwards, by the sequence
//! number of every write. The number of writes limits a run; the machine decides how threads
//! interleave.

mod ends;
mod history;
mod switched;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lsm_core::fs::{CrashOutcome, Fs, MemFs, OsFs};
use siltstone::{
    BackgroundMode, Db, Durability, ErrorKind, LargeValueOptions, MetaHiveOptions, Options,
    Partition, PartitionOptions, PrefixExtractor, Range, SeqNo, Slice, Snapshot,
};
use testkit::rng::Rng;

use crate::sim::oracle::check_sound;
use history::{Board, History, Place, key, number, value, version_of};

const WRITERS: usize = 3;
const KEYS_PER_WRITER: usize = 80;
const KEYS: usize = WRITERS * KEYS_PER_WRITER;

#[derive(Clone)]
struct Store {
    db: Db,
    a: Partition,
    b: Partition,
    bare: Partition,
}

fn small() -> PartitionOptions {
    PartitionOptions::new()
        .block_bytes(512)
        .table_bytes(8 << 10)
        .level_base_bytes(16 << 10)
        .level0_tables(2)
        .level_multiplier(3)
}

/// As [`small`], but longer values are stored in chunk files.
fn apart() -> PartitionOptions {
    let large = LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256);
    small().large_values(large.chunk_bytes(4 << 10))
}

/// As [`apart`], but every entry has metadata.
fn apart_and_sealed() -> PartitionOptions {
    apart().metahive(MetaHiveOptions::new())
}

fn open(fs: Arc<dyn Fs>, dir: &Path, options: fn() -> PartitionOptions) -> Store {
    let buffers = Options::new()
        .cache_bytes(64 << 10)
        .tables_mapped(true)
        .write_buffer_bytes(32 << 10)
        .wal_segment_bytes(16 << 10)
        .wal_bytes_max(64 << 10)
        .manifest_bytes_max(8 << 10)
        .compaction_threads(2)
        .sync_interval_ms(1);
    let db = Db::builder(dir).fs(fs).options(buffers).open().unwrap();
    let a = db.partition_with("a", options()).unwrap();
    let b = db.partition_with("b", options()).unwrap();
    let bare = db.partition_with("bare", options().logged(false)).unwrap();
    Store { db, a, b, bare }
}

/// Stops the threads that work until the writers are done, also when a check fails.
struct DoneOnDrop<'a>(&'a AtomicBool);

impl Drop for DoneOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Write = (usize, u64, SeqNo);

impl Store {
    fn partition(&self, place: Place) -> &Partition {
        if place == Place::Bare { &self.bare } else { &self.a }
    }

    /// Writes the next version of a key.
    fn write(&self, board: &Board, n: usize, sync: bool) -> siltstone::Result<Write> {
        let (place, key) = key(n);
        let version = board.begin(n);
        let value = value(n, version);
        let sync = sync && place != Place::Bare;
        let commit = if place == Place::Both || sync {
            let mut batch = self.db.batch();
            for partition in [&self.a, &self.b] {
                batch = match &value {
                    Some(value) => batch.put(partition, &key, value),
                    None => batch.delete(partition, &key),
                };
                if place != Place::Both {
                    break;
                }
            }
            batch.commit(if sync { Durability::Sync } else { Durability::Os })
        } else {
            match &value {
                Some(value) => self.partition(place).put(&key, value),
                None => self.partition(place).delete(&key),
            }
        };
        match commit {
            Ok(commit) => {
                board.acknowledge(n, version, sync);
                Ok((n, version, commit.seq))
            }
            Err(error) => {
                board.refused(n);
                Err(error)
            }
        }
    }

    /// Writes the next versions of many keys that are in both partitions, as one batch.
    fn write_together(&self, board: &Board, keys: impl Iterator<Item = usize>) -> Vec<Write> {
        let begun: Vec<_> = keys.map(|n| (n, board.begin(n))).collect();
        let mut batch = self.db.batch();
        for (n, version) in &begun {
            for partition in [&self.a, &self.b] {
                batch = match value(*n, *version) {
                    Some(value) => batch.put(partition, key(*n).1, value),
                    None => batch.delete(partition, key(*n).1),
                };
            }
        }
        let seq = batch.commit(Durability::Os).unwrap().seq;
        begun.iter().for_each(|(n, version)| board.acknowledge(*n, *version, false));
        begun.into_iter().map(|(n, version)| (n, version, seq)).collect()
    }

    #[expect(clippy::unused_self, reason = "it is next to the reads that need more")]
    fn read(&self, partition: &Partition, n: usize) -> Option<u64> {
        let value = partition.get(key(n).1).unwrap();
        value.map(|value| version_of(n, &value))
    }

    /// Reads all keys. Every key that is in both partitions must be the same in both.
    fn read_all(&self) -> BTreeMap<usize, Option<u64>> {
        let read = |n| {
            let (place, _) = key(n);
            let seen = self.read(self.partition(place), n);
            if place == Place::Both {
                assert_eq!(self.read(&self.b, n), seen, "key {n}");
            }
            (n, seen)
        };
        (0..KEYS).map(read).collect()
    }
}

/// The number of a key, and the version in its value.
fn entry(entry: siltstone::Result<(Slice, Slice)>) -> (usize, u64) {
    let (key, value) = entry.unwrap();
    let n = number(&key);
    (n, version_of(n, &value))
}

/// Reads a range to its end, from alternating ends on request, and checks its order.
fn collect(range: Range, both_ends: bool) -> Vec<(usize, u64)> {
    let mut range = range;
    let mut front = Vec::new();
    let mut back = Vec::new();
    while let Some(next) = range.next() {
        front.push(entry(next));
        if both_ends && let Some(next) = range.next_back() {
            back.push(entry(next));
        }
    }
    back.reverse();
    front.append(&mut back);
    // Keys of one kind sort by their numbers.
    assert!(front.is_sorted_by(|x, y| x.0 < y.0), "sorted, each once");
    front
}

struct Reader<'a> {
    store: &'a Store,
    board: &'a Board,
    random: Rng,
    /// The oldest version that a read of the newest state may still return.
    floors: Vec<u64>,
    /// The versions that snapshots returned.
    seen: Vec<(SeqNo, usize, Option<u64>)>,
}

impl Reader<'_> {
    fn floors_now(&self) -> Vec<u64> {
        (0..KEYS).map(|n: usize| self.floors[n].max(self.board.acknowledged(n))).collect()
    }

    fn get(&mut self) {
        let n = self.random.index(KEYS);
        let (place, _) = key(n);
        let from_b = place == Place::Both && self.random.chance(1, 2);
        let partition = if from_b { &self.store.b } else { self.store.partition(place) };
        let floor = self.floors[n].max(self.board.acknowledged(n));
        let seen = self.store.read(partition, n);
        self.floors[n] = self.board.check(n, seen, floor);
    }

    fn iterate(&mut self) {
        let floors = self.floors_now();
        let from_b = self.random.chance(1, 2);
        let partition = if from_b { &self.store.b } else { &self.store.a };
        let seen = collect(partition.prefix("p"), self.random.chance(1, 2));
        let seen: BTreeMap<_, _> = seen.into_iter().collect();
        for n in (0..KEYS).filter(|n| key(*n).0 == Place::Both) {
            self.floors[n] = self.board.check(n, seen.get(&n).copied(), floors[n]);
        }
    }

    fn snapshot(&mut self) {
        let floors = self.floors_now();
        let snapshot = self.store.db.snapshot();
        for _ in 0..20 {
            let n = self.random.index(KEYS);
            let seen = self.through(&snapshot, n);
            self.board.check(n, seen, floors[n]);
            self.seen.push((snapshot.seq(), n, seen));
        }
        if self.random.chance(1, 8) {
            let in_a = collect(snapshot.prefix(&self.store.a, "p"), true);
            let in_b = collect(snapshot.prefix(&self.store.b, "p"), false);
            assert_eq!(in_a, in_b, "a batch is in both partitions or in none");
            let seen: BTreeMap<_, _> = in_a.into_iter().collect();
            let both = (0..KEYS).filter(|n| key(*n).0 == Place::Both);
            self.seen.extend(both.map(|n| (snapshot.seq(), n, seen.get(&n).copied())));
        }
    }

    fn through(&self, snapshot: &Snapshot, n: usize) -> Option<u64> {
        let (place, key) = key(n);
        let get = |partition: &Partition| {
            let value = snapshot.get(partition, &key).unwrap();
            value.map(|value| version_of(n, &value))
        };
        let seen = get(self.store.partition(place));
        if place == Place::Both {
            assert_eq!(get(&self.store.b), seen, "a batch is in both partitions or in none");
        }
        seen
    }
}

fn read_until(
    done: &AtomicBool,
    store: &Store,
    board: &Board,
    random: Rng,
) -> Vec<(SeqNo, usize, Option<u64>)> {
    let mut reader = Reader { store, board, random, floors: vec![0; KEYS], seen: Vec::new() };
    while !done.load(Ordering::Relaxed) {
        for _ in 0..200 {
            reader.get();
        }
        reader.iterate();
        reader.snapshot();
    }
    reader.seen
}

/// Flushes, compacts, changes options and waits until the store is idle, until the writers are
/// done.
fn work_until(done: &AtomicBool, store: &Store, mut random: Rng) {
    while !done.load(Ordering::Relaxed) {
        let partition = *random.pick(&[&store.a, &store.b, &store.bare]);
        match random.below(13) {
            12 => partition.reclaim().unwrap(),
            0..4 => store.db.flush().unwrap(),
            4..6 => partition.compact(..).unwrap(),
            6..9 => {
                let from = key(random.index(KEYS)).1;
                partition.compact(from..).unwrap();
            }
            9 => {
                let options = partition.options().bloom_bits_per_key(random.below(12) as u32);
                let prefixes =
                    [None, Some(PrefixExtractor::Fixed(1)), Some(PrefixExtractor::Fixed(2))];
                let options = options.prefix_extractor(*random.pick(&prefixes));
                store.db.partition_with(partition.name(), options).unwrap();
            }
            10 => store.db.wait_idle().unwrap(),
            _ => store.db.wait_durable(store.db.visible_seq()).unwrap(),
        }
    }
}

/// Creates partitions, fills them, lets background work flush and compact them, and drops them.
fn make_and_drop_until(done: &AtomicBool, store: &Store, mut random: Rng) {
    let mut round = 0u64;
    while !done.load(Ordering::Relaxed) {
        round += 1;
        let name = format!("passing{}", random.below(2));
        let made = store.db.partition_with(&name, small().logged(round.is_multiple_of(2))).unwrap();
        assert_eq!(made.iter().count(), 0, "a new partition is empty");
        let entries_max = *random.pick(&[300, 300, 300, 300, 8000]);
        let entries = random.below(entries_max);
        for n in 0..entries {
            made.put(n.to_be_bytes(), round.to_be_bytes()).unwrap();
        }
        let held = random.chance(1, 4).then(|| made.iter());
        let count = made.iter().count();
        assert!(made.iter().all(|entry| entry.unwrap().1 == round.to_be_bytes()));
        store.db.drop_partition(&name).unwrap();
        assert_eq!(made.get("k").unwrap_err().kind(), ErrorKind::PartitionNotFound);
        assert_eq!(made.put("k", "").unwrap_err().kind(), ErrorKind::PartitionNotFound);
        assert_eq!(held.map_or(count, Iterator::count), count, "an iterator goes on");
    }
}

fn write(
    store: &Store,
    board: &Board,
    writer: usize,
    writes: usize,
    mut random: Rng,
) -> Vec<Write> {
    let mut done = Vec::with_capacity(writes);
    for _ in 0..writes {
        let keys = writer * KEYS_PER_WRITER..(writer + 1) * KEYS_PER_WRITER;
        if random.chance(1, 40) {
            let both = keys.filter(|n| key(*n).0 == Place::Both);
            done.extend(store.write_together(board, both));
            continue;
        }
        let n = keys.start + random.index(KEYS_PER_WRITER);
        let write = store.write(board, n, random.chance(1, 100)).unwrap();
        let expected = value(n, write.1).map(|_| write.1);
        if random.chance(1, 4) {
            let seen = store.read(store.partition(key(n).0), n);
            assert_eq!(seen, expected, "a writer sees what it wrote");
        }
        done.push(write);
    }
    done
}

/// Checks that all levels are within their targets. Closes the store, and checks that the folder
/// has no other file.
fn check_and_close(store: Store, fs: &Arc<dyn Fs>, dir: &Path) {
    store.db.wait_idle().unwrap();
    check_sound(&store.db).unwrap();
    let stats = store.db.stats();
    for partition in &stats.partitions {
        assert_eq!(partition.sealed_memtable_count, 0);
        assert_eq!((partition.compaction_debt_bytes, partition.pressure_permille), (0, 0));
    }
    assert_eq!((&stats.background_error, &stats.read_only_because), (&None, &None));
    // The open store knows which chunk files are deleted; the manifest records it with the next
    // edit.
    let chunks =
        fs.list_names(dir, "").unwrap().into_iter().filter(|name| name.ends_with(".chunk"));
    let stores = stats.partitions.iter().filter_map(|partition| partition.value_store.as_ref());
    assert_eq!(chunks.count() as u64, stores.map(|store| store.chunk_count).sum::<u64>());
    store.db.clone().close().unwrap();
    drop(store);
    // Not while the store is open: its log thread creates a segment, records it, and deletes it
    // again when nothing is written, at any time between two looks.
    let closed = Db::builder(dir).fs(fs.clone()).read_only(true).open().unwrap();
    let stats = closed.stats();
    let files = fs.list(dir, "").unwrap();
    let count = |kind: &str| files.iter().filter(|file| file.name.ends_with(kind)).count() as u64;
    let levels = stats.partitions.iter().flat_map(|partition| &partition.levels);
    assert_eq!(count(".sst"), levels.map(|level| level.table_count).sum::<u64>());
    assert_eq!((count(".wal"), count(".manifest")), (stats.wal_segment_count, 1));
}

fn run(fs: Arc<dyn Fs>, dir: &Path, writes: usize, options: fn() -> PartitionOptions) {
    let store = open(fs.clone(), dir, options);
    let board = Board::new(KEYS);
    let done = AtomicBool::new(false);
    let mut random = Rng::from_env_or(7);
    let mut writes_done = Vec::new();
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        let store = &store;
        let board = &board;
        let done = &done;
        let ending = DoneOnDrop(done);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| (writer, random.fork()))
            .map(|(writer, random)| {
                scope.spawn(move || write(store, board, writer, writes, random))
            })
            .collect();
        let readers: Vec<_> = (0..2)
            .map(|_| random.fork())
            .map(|random| scope.spawn(move || read_until(done, store, board, random)))
            .collect();
        let work = random.fork();
        let partitions = random.fork();
        scope.spawn(move || work_until(done, store, work));
        scope.spawn(move || make_and_drop_until(done, store, partitions));
        let results: Vec<_> =
            writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        drop(ending);
        results.into_iter().for_each(|writes| writes_done.extend(writes.unwrap()));
        readers.into_iter().for_each(|reader| seen.extend(reader.join().unwrap()));
    });
    let history = History::new(KEYS, writes_done);
    for (seq, n, version) in seen {
        assert_eq!(version, history.at(n, seq), "key {n} through a snapshot at {seq}");
    }
    let last = store.db.visible_seq();
    let expected: BTreeMap<_, _> = (0..KEYS).map(|n| (n, history.at(n, last))).collect();
    assert_eq!(store.read_all(), expected);
    check_and_close(store, &fs, dir);
    let store = open(fs.clone(), dir, options);
    assert_eq!(store.read_all(), expected);
    check_and_close(store, &fs, dir);
}

#[test]
fn threads_see_one_order_of_writes() {
    run(Arc::new(MemFs::new()), "/db".as_ref(), 30_000, small);
}

#[test]
fn threads_see_one_order_of_writes_of_large_values() {
    run(Arc::new(MemFs::new()), "/db".as_ref(), 8_000, apart);
}

#[test]
fn threads_see_one_order_of_writes_of_large_values_with_metadata() {
    run(Arc::new(MemFs::new()), "/db".as_ref(), 5_000, apart_and_sealed);
}

#[test]
fn threads_see_one_order_of_writes_on_the_real_file_system() {
    let dir = tempfile::tempdir().unwrap();
    run(Arc::new(OsFs), dir.path(), 5_000, small);
}
