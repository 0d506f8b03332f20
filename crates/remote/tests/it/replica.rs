//! Damaged tables of a primary are repaired from its bucket, and never by an older value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use remote::{Ack, Primary, Remote};
use siltstone::fs::MemFs;
use siltstone::metahive::{RepairOptions, Replica, ScrubOptions};
use siltstone::raw::EntryKind;
use siltstone::{
    BackgroundMode, Compression, Db, Durability, Event, EventListener, LargeValueOptions,
    MetaHiveOptions, Partition, PartitionOptions, SeqNo,
};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, with_clock};

const KEYS: u32 = 60;

/// A primary whose partition `p` is repaired from its bucket, and from nothing else.
struct Scene {
    objects: Objects,
    store: Arc<SimStore>,
    disk: MemFs,
    rng: Rng,
    remote: Remote,
    primary: Primary,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The sources of the repairs.
    sources: Arc<Mutex<Vec<String>>>,
}

struct Heard(Arc<Mutex<Vec<String>>>);

impl EventListener for Heard {
    fn on_event(&self, event: &Event) {
        if let Event::Repaired { source, .. } = event {
            self.0.lock().push(source.clone());
        }
    }
}

fn key_of(number: u32) -> Vec<u8> {
    format!("key {number:03}").into_bytes()
}

fn hive(replica: Arc<dyn Replica>) -> MetaHiveOptions {
    let options = RepairOptions { log: false, replica: Some(replica), ..RepairOptions::default() };
    MetaHiveOptions::new().repair_options(options)
}

impl Scene {
    fn new(seed: u64, ack: Ack) -> Scene {
        let mut rng = Rng::new(seed);
        let objects = Objects::default();
        let store = SimStore::new(objects.clone(), rng.fork());
        let disk = MemFs::new();
        let remote = with_clock(&store, &disk, &mut rng).ack(ack);
        let primary = remote.primary("/db").unwrap();
        let sources = Arc::default();
        Scene { objects, store, disk, rng, remote, primary, model: BTreeMap::new(), sources }
    }

    fn options(&self) -> PartitionOptions {
        let options = PartitionOptions::new().compression(Compression::None).level0_tables(100);
        options.block_bytes(512).metahive(hive(self.primary.replica("p")))
    }

    fn open(&self) -> (Db, Partition) {
        let heard = self.sources.clone();
        let builder = self.primary.builder().background(BackgroundMode::Stepped);
        let builder = builder.metahive("p", hive(self.primary.replica("p")));
        let db = builder.listener(Arc::new(Heard(heard))).open().unwrap();
        let p = db.partition_with("p", self.options()).unwrap();
        (db, p)
    }

    /// Writes all keys, and flushes them to a table.
    fn write(&mut self, db: &Db, p: &Partition, round: u32) {
        for number in 0..KEYS {
            let value = format!("value {number} of round {round} ").repeat(3).into_bytes();
            if (number + round).is_multiple_of(7) {
                p.delete(key_of(number)).unwrap();
                self.model.remove(&key_of(number));
                continue;
            }
            p.put(key_of(number), &value).unwrap();
            self.model.insert(key_of(number), value);
        }
        db.flush().unwrap();
    }

    /// A closed database with two tables of all keys.
    fn filled(seed: u64) -> Scene {
        let mut scene = Scene::new(seed, Ack::Stored);
        let (db, p) = scene.open();
        scene.write(&db, &p, 1);
        p.compact(..).unwrap();
        scene.write(&db, &p, 2);
        drop(p);
        db.close().unwrap();
        scene
    }

    /// The tables on the disk, oldest first.
    fn tables(&self) -> Vec<PathBuf> {
        let mut paths = self.disk.paths();
        paths.retain(|path| path.extension().is_some_and(|it| it == "sst"));
        paths.sort();
        paths
    }

    /// The object of a table.
    fn object_of(&self, table: &Path) -> String {
        let front = format!("table/{}", table.file_name().unwrap().to_str().unwrap());
        let objects = self.objects.lock();
        objects.keys().find(|name| name.starts_with(&front)).unwrap().clone()
    }

    /// Compacts, and checks that everything is as it was written.
    fn check_repaired(&self, p: &Partition) {
        p.compact(..).unwrap();
        assert_eq!(p.gaps().len(), 0, "{:?}", self.sources.lock());
        assert_eq!(content(p), self.model);
        assert!(p.scrub(ScrubOptions::new()).unwrap().is_sound());
        assert!(self.sources.lock().iter().any(|source| source == "replica"));
        // The bucket has the repaired table.
        let reader = self.remote.reader().unwrap();
        let read = reader.builder().open().unwrap();
        assert_eq!(content(&read.partition("p").unwrap()), self.model);
    }
}

fn content(p: &Partition) -> BTreeMap<Vec<u8>, Vec<u8>> {
    p.iter()
        .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
        .collect()
}

fn corrupt(disk: &MemFs, path: &Path, at: std::ops::Range<u64>) {
    at.for_each(|offset| disk.corrupt(path, offset, 0x55).unwrap());
}

/// The place of `needle` in a table.
fn place_of(disk: &MemFs, path: &Path, needle: &[u8]) -> u64 {
    let bytes = disk.read_raw(path).unwrap();
    bytes.windows(needle.len()).position(|window| window == needle).unwrap() as u64
}

#[test]
fn a_damaged_entry_is_repaired_from_the_bucket() {
    let scene = Scene::filled(201);
    let newest = scene.tables().pop().unwrap();
    let at = place_of(&scene.disk, &newest, b"value 30 of round 2");
    corrupt(&scene.disk, &newest, at..at + 9);
    let (_db, p) = scene.open();
    assert!(p.get(key_of(30)).unwrap_err().is_corruption());
    scene.check_repaired(&p);
}

#[test]
fn a_damaged_block_and_a_damaged_table_are_repaired_from_the_bucket() {
    for (seed, whole) in [(202, false), (203, true)] {
        let mut scene = Scene::filled(seed);
        let newest = scene.tables().pop().unwrap();
        let len = scene.disk.read_raw(&newest).unwrap().len() as u64;
        corrupt(&scene.disk, &newest, if whole { 0..len } else { 100..900 });
        let (db, p) = scene.open();
        // A newer write stays.
        p.put(key_of(31), "newer").unwrap();
        scene.model.insert(key_of(31), b"newer".to_vec());
        scene.check_repaired(&p);
        drop(p);
        db.close().unwrap();
        let (_db, p) = scene.open();
        assert_eq!(content(&p), scene.model);
    }
}

#[test]
fn a_gap_of_an_earlier_run_is_repaired_from_the_states_before_it() {
    let mut scene = Scene::filled(204);
    let newest = scene.tables().pop().unwrap();
    corrupt(&scene.disk, &newest, 100..900);
    // Without the replica the repair leaves a gap, and the bucket gets it.
    let db = scene.primary.builder().background(BackgroundMode::Stepped).open().unwrap();
    let p = db.partition("p").unwrap();
    p.compact(..).unwrap();
    assert!(!p.gaps().is_empty());
    for round in 0..20_u32 {
        // Many states later.
        p.put_with("later", round.to_be_bytes(), Durability::Sync).unwrap();
        scene.model.insert(b"later".to_vec(), round.to_be_bytes().to_vec());
    }
    drop(p);
    db.close().unwrap();
    let (_db, p) = scene.open();
    scene.check_repaired(&p);
}

/// The bytes that were shipped have the damage, or the bucket has lost them.
#[test]
fn a_bucket_with_the_same_damage_leaves_the_gap_and_shows_no_older_value() {
    let scene = Scene::filled(205);
    let newest = scene.tables().pop().unwrap();
    let bytes = scene.disk.read_raw(&newest).unwrap().len() as u64;
    corrupt(&scene.disk, &newest, 0..bytes);
    let name = scene.object_of(&newest);
    let before = scene.objects.lock()[&name].to_vec();
    let mut objects = scene.objects.lock();
    objects.get_mut(&name).unwrap().iter_mut().for_each(|byte| *byte ^= 0x55);
    drop(objects);
    let (_db, p) = scene.open();
    p.compact(..).unwrap();
    assert!(!p.gaps().is_empty());
    for number in 0..KEYS {
        assert!(p.get(key_of(number)).unwrap_err().is_corruption(), "{number}");
    }
    assert!(!scene.sources.lock().iter().any(|source| source == "replica"));
    // The object is brought back.
    *scene.objects.lock().get_mut(&name).unwrap() = before.into();
    p.repair(..).unwrap();
    scene.check_repaired(&p);
}

/// A compaction has written the damage. The states before have the tables that it has read.
#[test]
fn a_table_that_was_shipped_with_its_damage_is_repaired_from_those_it_was_made_of() {
    let scene = Scene::filled(210);
    let (db, p) = scene.open();
    p.compact(..).unwrap();
    drop(p);
    db.close().unwrap();
    let table = scene.tables().pop().unwrap();
    corrupt(&scene.disk, &table, 100..900);
    let name = scene.object_of(&table);
    let mut objects = scene.objects.lock();
    objects.get_mut(&name).unwrap()[100..900].iter_mut().for_each(|byte| *byte ^= 0x55);
    drop(objects);
    let (_db, p) = scene.open();
    scene.check_repaired(&p);
}

/// The newest states cannot be read. Those before them have the tables that the damaged one was made of.
#[test]
fn states_that_the_bucket_has_lost_are_passed_over() {
    for (seed, is_journal) in [(211, false), (212, true)] {
        let scene = Scene::filled(seed);
        let (db, p) = scene.open();
        p.compact(..).unwrap();
        drop(p);
        db.close().unwrap();
        let table = scene.tables().pop().unwrap();
        // A single entry is asked for first, and then its gap.
        let at = place_of(&scene.disk, &table, b"value 30 of round 2");
        corrupt(&scene.disk, &table, at..at + 9);
        let mut objects = scene.objects.lock();
        if is_journal {
            let last = objects.keys().filter(|name| name.starts_with("journal/")).max().unwrap();
            let last = last.clone();
            objects.get_mut(&last).unwrap().iter_mut().for_each(|byte| *byte ^= 0x55);
        } else {
            drop(objects);
            let name = scene.object_of(&table);
            objects = scene.objects.lock();
            objects.remove(&name);
        }
        drop(objects);
        let (_db, p) = scene.open();
        p.compact(..).unwrap();
        assert_eq!(p.gaps().len(), 0, "{is_journal} {:?}", scene.sources.lock());
        assert_eq!(content(&p), scene.model);
        assert!(scene.sources.lock().iter().any(|source| source == "replica"));
    }
}

#[test]
fn an_entry_that_is_newer_than_the_bucket_is_not_answered_by_an_older_one() {
    let scene = Scene::new(206, Ack::Local);
    let (db, p) = scene.open();
    let old = p.put_with("k", "old", Durability::Sync).unwrap().seq;
    db.flush().unwrap();
    scene.primary.ship().unwrap();
    let new = p.put_with("k", "new", Durability::Sync).unwrap().seq;
    let replica = scene.primary.replica("p");
    assert!(replica.fetch(b"k", new).unwrap().is_none());
    assert!(replica.fetch_range(b"a", b"z", new).unwrap().is_none());
    let then = replica.fetch_range(b"a", b"z", old).unwrap().unwrap();
    assert_eq!((then.len(), &then[0].value[..], then[0].seq), (1, &b"old"[..], old));
    db.flush().unwrap();
    scene.primary.ship().unwrap();
    let now = replica.fetch_range(b"a", b"z", new).unwrap().unwrap();
    assert_eq!((now.len(), &now[0].value[..]), (1, &b"new"[..]));
    assert_eq!(replica.fetch(b"k", new).unwrap().unwrap().value, b"new");
    assert_eq!(replica.fetch(b"k", old).unwrap().unwrap().value, b"old");
    assert!(replica.fetch(b"k", SeqNo::MAX).unwrap().is_none());
}

#[test]
fn a_replica_of_a_fenced_primary_returns_nothing_of_the_next_writer() {
    let mut scene = Scene::new(207, Ack::Stored);
    let (db, p) = scene.open();
    let own = p.put_with("k", "own", Durability::Sync).unwrap().seq;
    db.flush().unwrap();
    let disk = MemFs::new();
    let second = with_clock(&scene.store, &disk, &mut scene.rng).take_over("/db").unwrap();
    let new = second.builder().background(BackgroundMode::Stepped).open().unwrap();
    let theirs = new.partition("p").unwrap().put_with("k", "theirs", Durability::Sync).unwrap().seq;
    new.flush().unwrap();
    assert!(theirs > own);
    let replica = scene.primary.replica("p");
    assert_eq!(replica.fetch(b"k", own).unwrap().unwrap().value, b"own");
    assert!(replica.fetch(b"k", theirs).unwrap().is_none());
    assert!(replica.fetch_range(b"a", b"z", theirs).unwrap().is_none());
    let then = replica.fetch_range(b"a", b"z", own).unwrap().unwrap();
    assert_eq!((then.len(), &then[0].value[..]), (1, &b"own"[..]));
}

#[test]
fn a_bucket_that_is_away_is_asked_once_in_a_minute() {
    let scene = Scene::new(208, Ack::Stored);
    let (db, p) = scene.open();
    let seq = p.put_with("k", "v", Durability::Sync).unwrap().seq;
    db.flush().unwrap();
    let replica = scene.primary.replica("p");
    scene.store.fails_one_of.store(1, Ordering::Relaxed);
    assert!(replica.fetch(b"k", seq).is_err());
    scene.store.fails_one_of.store(0, Ordering::Relaxed);
    let gets = scene.store.gets.load(Ordering::Relaxed);
    assert!(replica.fetch(b"k", seq).is_err() && replica.fetch_range(b"a", b"z", seq).is_err());
    assert_eq!(scene.store.gets.load(Ordering::Relaxed), gets);
    scene.objects.advance(Duration::from_secs(61));
    assert_eq!(replica.fetch(b"k", seq).unwrap().unwrap().value, b"v");
    // Many entries of a repair cost no look at the journal each, also while commits go on.
    let gets = scene.store.gets.load(Ordering::Relaxed);
    for number in 0..100_u32 {
        p.put_with("other", "v", Durability::Sync).unwrap();
        assert!(replica.fetch(&key_of(number), seq).unwrap().is_none());
    }
    assert_eq!(scene.store.gets.load(Ordering::Relaxed), gets);
}

fn large(number: u32) -> Vec<u8> {
    vec![number as u8; 5000 + number as usize]
}

#[test]
fn large_values_of_a_damaged_table_are_repaired_from_the_bucket() {
    for whole in [false, true] {
        let scene = Scene::new(209, Ack::Stored);
        let (db, p) = scene.open();
        let options = scene.options().large_values(LargeValueOptions::new().threshold_bytes(1000));
        db.partition_with("p", options).unwrap();
        for number in 0..20 {
            p.put(key_of(number), large(number)).unwrap();
        }
        db.flush().unwrap();
        assert_ne!(p.versions(key_of(3)).unwrap()[0].kind, EntryKind::Value);
        drop(p);
        db.close().unwrap();
        let table = scene.tables().pop().unwrap();
        if whole {
            let bytes = scene.disk.read_raw(&table).unwrap().len() as u64;
            corrupt(&scene.disk, &table, 0..bytes);
        } else {
            // In a handle of the first block.
            corrupt(&scene.disk, &table, 150..155);
        }
        let (_db, p) = scene.open();
        p.compact(..).unwrap();
        assert_eq!(p.gaps().len(), 0, "{whole}");
        for number in 0..20 {
            assert_eq!(p.get(key_of(number)).unwrap().unwrap(), large(number), "{whole} {number}");
        }
        assert!(scene.sources.lock().iter().any(|source| source == "replica"), "{whole}");
        // A handle stays one. The values of a gap are in the table now.
        let has_handles = p.versions(key_of(3)).unwrap()[0].kind != EntryKind::Value;
        assert_eq!(has_handles, !whole);
    }
}
