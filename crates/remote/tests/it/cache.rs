//! The caches of readers: GETs that they save, and ranges.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use remote::{CacheFigures, Remote, RemoteReader, Store, StoreResult};
use siltstone::fs::{CrashOutcome, FolderState, Fs, MemFs};
use siltstone::large_values::ReadBlobs;
use siltstone::secondary::Level;
use siltstone::{BackgroundMode, Durability, LargeValueOptions, PartitionOptions};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, remote_of, with_clock, with_threads};
use crate::store_layer::{Layered, StoreLayer};

type Ranges = Arc<Mutex<Vec<(String, Range<u64>)>>>;

/// A store that notes the ranges that are got.
struct Noting(Arc<dyn Store>, Ranges);

impl StoreLayer for Noting {
    fn inner(&self) -> &dyn Store {
        &*self.0
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.1.lock().push((name.to_owned(), range.clone()));
        self.0.get_range(name, range)
    }
}

/// A database with a table of some hundred kilobytes and a large value, and the ranges that readers get of it.
struct Shipped {
    store: Arc<dyn Store>,
    ranges: Ranges,
    folder: tempfile::TempDir,
}

const ENTRIES: u32 = 3000;
const LARGE_BYTES: usize = 8 << 20;

fn value(number: u32) -> Vec<u8> {
    Rng::new(u64::from(number)).bytes(200)
}

impl Shipped {
    fn new() -> Shipped {
        let store = Remote::memory().unwrap().store();
        let folder = tempfile::tempdir().unwrap();
        let primary = Remote::with_store(store.clone()).primary(folder.path().join("db")).unwrap();
        let db = primary.builder().open().unwrap();
        let options = PartitionOptions::default().large_values(LargeValueOptions::default());
        let users = db.partition_with("users", options).unwrap();
        for number in 0..ENTRIES {
            users.put(number.to_be_bytes(), value(number)).unwrap();
        }
        users.put_with("large", vec![7; LARGE_BYTES], Durability::Sync).unwrap();
        db.flush().unwrap();
        db.close().unwrap();
        Shipped { store, ranges: Ranges::default(), folder }
    }

    fn remote(&self) -> Remote {
        Remote::with_store(Layered::new(Noting(self.store.clone(), self.ranges.clone())))
    }

    fn cached(&self) -> Remote {
        self.remote().cache_dir(self.folder.path().join("cache"), 32 << 20)
    }
}

/// Reads all entries by a new reader.
fn read_all(remote: &Remote) -> CacheFigures {
    let reader = remote.reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    let view = users.at(Level::Strong).unwrap();
    for number in 0..ENTRIES {
        assert_eq!(view.get(number.to_be_bytes()).unwrap().unwrap(), value(number));
    }
    reader.cache_figures()
}

#[test]
fn a_reader_that_starts_again_gets_no_block_again() {
    let shipped = Shipped::new();
    let first = read_all(&shipped.cached());
    assert!(first.gets > 0 && first.has_disk, "{first:?}");
    shipped.ranges.lock().clear();
    let again = read_all(&shipped.cached());
    assert_eq!(again.gets, 0, "{first:?} {again:?} {:?}", shipped.ranges.lock());
    assert!(again.disk_hits > 0 && again.disk_bytes <= 32 << 20, "{again:?}");
}

#[test]
fn readers_of_a_remote_share_its_cache_and_another_remote_has_none() {
    let shipped = Shipped::new();
    let remote = shipped.cached();
    let reader = remote.reader().unwrap();
    read_all(&remote);
    assert_eq!(read_all(&remote.clone()).gets, 0);
    let other = read_all(&shipped.cached());
    assert!(!other.has_disk && other.gets > 0, "{other:?}");
    drop(reader);
    assert!(read_all(&shipped.cached()).has_disk);
}

#[test]
fn a_read_of_a_part_of_a_large_value_gets_that_part() {
    let shipped = Shipped::new();
    let reader = shipped.remote().reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    let view = users.at(Level::Strong).unwrap();
    let large = view.open_blob("large").unwrap().unwrap();
    let before = reader.cache_figures();
    shipped.ranges.lock().clear();
    let mut part = vec![0; 100 << 10];
    large.read_exact_at(5 << 20, &mut part).unwrap();
    assert_eq!(part, vec![7; 100 << 10]);
    let after = reader.cache_figures();
    let got = after.got_bytes - before.got_bytes;
    assert!(got < 512 << 10, "{got} bytes: {:?}", shipped.ranges.lock());
    // The whole value comes by few GETs, not by one a block.
    let mut whole = vec![0; LARGE_BYTES];
    large.read_exact_at(0, &mut whole).unwrap();
    let gets = reader.cache_figures().gets - after.gets;
    assert!(gets <= 40, "{gets} gets");
}

#[test]
fn the_first_get_from_a_table_takes_two_gets_of_the_store() {
    let store = Remote::memory().unwrap().store();
    let folder = tempfile::tempdir().unwrap();
    let primary = Remote::with_store(store.clone()).primary(folder.path()).unwrap();
    let db = primary.builder().open().unwrap();
    let users = db.partition("users").unwrap();
    // Bloom filter and index are longer than a block of the cache.
    for number in 0..60_000_u32 {
        users.put(number.to_be_bytes(), &value(number)[..40]).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    primary.ship().unwrap();
    let ranges = Ranges::default();
    let noting = Layered::new(Noting(store, ranges.clone()));
    let secondary = Remote::with_store(noting).reader().unwrap().secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    let view = users.at(Level::Strong).unwrap();
    ranges.lock().clear();
    assert_eq!(*view.get(30_000_u32.to_be_bytes()).unwrap().unwrap(), value(30_000)[..40]);
    let of_tables = ranges.lock().iter().filter(|(name, _)| name.starts_with("table/")).count();
    // All that lies after the entries, and the block with the entry.
    assert_eq!(of_tables, 2, "{:?}", ranges.lock());
}

/// A look at the folder: its GETs, and its answer.
fn look(reader: &RemoteReader, store: &SimStore, wanted: FolderState) -> (u64, FolderState) {
    let before = store.gets.load(Ordering::Relaxed);
    let state = reader.folder_state(Path::new(""), wanted).unwrap().state;
    (store.gets.load(Ordering::Relaxed) - before, state)
}

/// The thread of an eager reader looks without end.
#[test]
fn a_look_for_what_has_come_takes_one_get_and_no_turn_for_the_boundary() {
    let mut rng = Rng::new(61);
    let objects = Objects::default();
    let store = SimStore::new(objects.clone(), rng.fork());
    let primary = remote_of(&store, &MemFs::new(), &mut rng).primary("/db").unwrap();
    let db = primary.builder().open().unwrap();
    let store = SimStore::new(objects, rng.fork());
    let reader = remote_of(&store, &MemFs::new(), &mut rng).reader().unwrap();
    let [current, settled] = [FolderState::Current, FolderState::Settled];
    assert_eq!(look(&reader, &store, current), (2, current), "the boundary, too");
    assert_eq!(look(&reader, &store, settled), (1, settled));
    db.partition("users").unwrap().put_with("k", "v", Durability::Sync).unwrap();
    primary.ship().unwrap();
    let news = primary.status().number - reader.number();
    assert_eq!(look(&reader, &store, settled), (news + 1, settled));
    assert_eq!(reader.number(), primary.status().number);
}

/// With the calls at once that a program makes: more of them are no faster where nothing is found.
#[test]
fn a_look_of_an_idle_reader_is_one_get() {
    let mut rng = Rng::new(62);
    let objects = Objects::default();
    let store = SimStore::new(objects.clone(), rng.fork());
    let primary = with_clock(&store, &MemFs::new(), &mut rng).primary("/db").unwrap();
    let db = primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    db.partition("users").unwrap().put_with("k", "v", Durability::Sync).unwrap();
    let store = SimStore::new(objects.clone(), rng.fork());
    let reader = with_threads(&store, &MemFs::new(), &mut rng).lease(None).reader().unwrap();
    look(&reader, &store, FolderState::Settled);
    for _ in 0..600 {
        objects.advance(Duration::from_secs(1));
        assert_eq!(look(&reader, &store, FolderState::Settled).0, 1);
    }
    // What comes is seen at the next look, and a strong look asks for the boundary.
    db.partition("users").unwrap().put_with("k", "w", Durability::Sync).unwrap();
    let (gets, _) = look(&reader, &store, FolderState::Settled);
    assert_eq!((reader.number(), gets), (primary.status().number, 3), "one, and the two after it");
    look(&reader, &store, FolderState::Settled);
    let strong = look(&reader, &store, FolderState::Current);
    assert_eq!(strong, (2, FolderState::Current));
}

#[test]
fn a_scan_of_a_table_gets_more_each_time() {
    const BLOCK: u64 = 64 << 10;
    let shipped = Shipped::new();
    let secondary = shipped.remote().reader().unwrap().secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    let view = users.at(Level::Strong).unwrap();
    // The footer, Bloom filter and index.
    assert!(view.get((ENTRIES - 1).to_be_bytes()).unwrap().is_some());
    shipped.ranges.lock().clear();
    let scanned = view.range(..(ENTRIES - 1).to_be_bytes());
    assert!(scanned.map(|entry| entry.unwrap().1.to_vec()).eq((0..ENTRIES - 1).map(value)));
    let mut ranges = shipped.ranges.lock().clone();
    ranges.retain(|(name, _)| name.starts_with("table/"));
    let blocks: Vec<u64> = ranges.iter().map(|(_, it)| (it.end - it.start) / BLOCK).collect();
    assert!(blocks.starts_with(&[1, 2, 4]) && blocks.len() == 4, "{ranges:?}");
}

#[test]
fn an_open_of_the_own_folder_reads_each_part_of_the_log_by_one_get() {
    let store = Remote::memory().unwrap().store();
    let fs = MemFs::new();
    let primary = Remote::with_store(store.clone()).fs(Arc::new(fs.clone())).stepped();
    let primary = primary.primary("/db").unwrap();
    let db = primary.builder().open().unwrap();
    let users = db.partition("users").unwrap();
    for number in 0..32_u32 {
        users.put_with(number.to_be_bytes(), vec![7; 64 << 10], Durability::Sync).unwrap();
    }
    // A base, which names the log as objects.
    primary.ship().unwrap();
    let killed = fs.crash_clone(CrashOutcome::Nothing, &mut || 0);
    let ranges = Ranges::default();
    let noting = Layered::new(Noting(store, ranges.clone()));
    let remote = Remote::with_store(noting).fs(Arc::new(killed)).stepped();
    let again = remote.primary("/db").unwrap();
    let mut parts: Vec<String> = ranges.lock().iter().map(|(name, _)| name.clone()).collect();
    parts.retain(|name| name.starts_with("part/"));
    parts.sort_unstable();
    let all = parts.len();
    parts.dedup();
    assert!(all > 0 && parts.len() == all, "{:?}", ranges.lock());
    drop(again);
}
