//! Queues and stacks: walks over deleted entries are remembered, and the remembered walks hide no
//! live entry.
//!
//! The model test uses one partition with long runs of deleted keys, because a walk is looked up
//! only after several of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lsm_core::fs::MemFs;
use siltstone::secondary::{Level, Secondary};
use siltstone::{
    Compression, Db, Durability, LargeValueOptions, MetaHiveOptions, Options, Partition,
    PartitionOptions, Snapshot,
};
use testkit::Rng;

use crate::store::stepped;

/// Keys are below this.
const KEYS: u32 = 400;

type Content = BTreeMap<u32, Vec<u8>>;

fn key(n: u32) -> String {
    format!("key {n:04}")
}

fn number(key: &[u8]) -> u32 {
    std::str::from_utf8(&key[4..]).unwrap().parse().unwrap()
}

/// A partition, its expected content, and snapshots with their expected content.
struct Harness {
    fs: MemFs,
    options: PartitionOptions,
    db: Db,
    p: Partition,
    follower: Secondary,
    content: Content,
    snapshots: Vec<(Snapshot, Content)>,
    writes: u32,
    exports: u32,
}

fn open(fs: &MemFs, options: &PartitionOptions) -> (Db, Partition) {
    let builder = stepped(Arc::new(fs.clone()), "/db", 7);
    let db = builder.options(Options::new().write_buffer_bytes(32 << 10)).open().unwrap();
    let p = db.partition_with("p", options.clone()).unwrap();
    (db, p)
}

fn follow(fs: &MemFs) -> Secondary {
    Db::secondary_builder("/db").fs(Arc::new(fs.clone())).open().unwrap()
}

impl Harness {
    fn new(options: PartitionOptions) -> Harness {
        let fs = MemFs::new();
        let (db, p) = open(&fs, &options);
        let follower = follow(&fs);
        let content = Content::new();
        Harness {
            fs,
            options,
            db,
            p,
            follower,
            content,
            snapshots: Vec::new(),
            writes: 0,
            exports: 0,
        }
    }

    fn put(&mut self, n: u32) {
        self.writes += 1;
        let value = self.writes.to_be_bytes().repeat(1 + self.writes as usize % 90);
        self.p.put(key(n), &value).unwrap();
        self.content.insert(n, value);
    }

    fn delete(&mut self, n: u32) {
        self.p.delete(key(n)).unwrap();
        self.content.remove(&n);
    }

    /// Deletes a run of keys and puts one of them again, in one batch.
    fn batch(&mut self, from: u32, to: u32, kept: u32) {
        let mut batch = self.db.batch();
        let mut of = batch.of(&self.p);
        for n in from..to {
            of.delete(key(n));
            self.content.remove(&n);
        }
        of.put(key(kept), b"kept");
        self.content.insert(kept, b"kept".to_vec());
        batch.commit(Durability::Os).unwrap();
    }

    fn transact(&mut self) {
        let mut transaction = self.db.transaction();
        let first = transaction.iter(&self.p).next().map(|entry| number(&entry.unwrap().0));
        assert_eq!(first, self.content.keys().next().copied());
        if let Some(first) = first {
            transaction.delete(&self.p, key(first));
            transaction.put(&self.p, key(KEYS - 1), b"moved");
            self.content.remove(&first);
            self.content.insert(KEYS - 1, b"moved".to_vec());
        }
        transaction.commit(Durability::Os).unwrap();
    }

    /// Ingests keys from another partition, over the existing ones.
    fn ingest(&mut self, rng: &mut Rng) {
        let start = rng.below(u64::from(KEYS)) as u32;
        let name = format!("from {}", self.exports);
        let dir = format!("/export {}", self.exports);
        self.exports += 1;
        let other = self.db.partition_with(&name, self.options.clone()).unwrap();
        for n in (start..KEYS).step_by(7).take(12) {
            other.put(key(n), b"ingested").unwrap();
            self.content.insert(n, b"ingested".to_vec());
        }
        other.export(.., &dir).unwrap();
        self.p.ingest(&dir).unwrap();
        self.db.drop_partition(&name).unwrap();
    }

    fn reopen(&mut self) {
        self.snapshots.clear();
        self.db.clone().close().unwrap();
        (self.db, self.p) = open(&self.fs, &self.options);
        self.follower = follow(&self.fs);
    }

    fn check(&self, rng: &mut Rng) {
        let first = self.p.first().unwrap().map(|(key, value)| (number(&key), value.to_vec()));
        assert_eq!(first, self.content.iter().next().map(|(n, value)| (*n, value.clone())));
        let last = self.p.last().unwrap().map(|(key, value)| (number(&key), value.to_vec()));
        assert_eq!(last, self.content.iter().next_back().map(|(n, value)| (*n, value.clone())));
        let at = rng.below(u64::from(KEYS)) as u32;
        let mut cursor = self.p.cursor();
        cursor.seek(key(at)).unwrap();
        let expected = self.content.range(at..).next();
        assert_eq!(cursor.valid().then(|| number(cursor.key())), expected.map(|(n, _)| *n));
        cursor.seek_before(key(at)).unwrap();
        let expected = self.content.range(..at).next_back();
        assert_eq!(cursor.valid().then(|| number(cursor.key())), expected.map(|(n, _)| *n));
        let to = at + rng.below(60) as u32;
        let found = self.p.range(key(at)..key(to)).map(|entry| number(&entry.unwrap().0));
        assert!(found.eq(self.content.range(at..to).map(|(n, _)| *n)));
        let found = self.p.range(key(at)..key(to)).rev().map(|entry| number(&entry.unwrap().0));
        assert!(found.eq(self.content.range(at..to).rev().map(|(n, _)| *n)));
    }

    /// Checks the current state of a secondary, which remembers the walks that it made before.
    fn check_follower(&self) {
        let view = self.follower.partition("p").unwrap().at(Level::Strong).unwrap();
        let first = view.iter().next().map(|entry| number(&entry.unwrap().0));
        assert_eq!(first, self.content.keys().next().copied());
        let last = view.iter().next_back().map(|entry| number(&entry.unwrap().0));
        assert_eq!(last, self.content.keys().next_back().copied());
        let found = view.iter().map(|entry| number(&entry.unwrap().0));
        assert!(found.eq(self.content.keys().copied()));
    }

    fn check_all(&self) {
        let found = self.p.iter().map(|entry| entry.unwrap());
        let found: Content = found.map(|(key, value)| (number(&key), value.to_vec())).collect();
        assert_eq!(found, self.content);
        for (snapshot, content) in &self.snapshots {
            let found = snapshot.iter(&self.p).map(|entry| entry.unwrap());
            let found: Content = found.map(|(key, value)| (number(&key), value.to_vec())).collect();
            assert_eq!(found, *content);
            let found = snapshot.iter(&self.p).rev().map(|entry| number(&entry.unwrap().0));
            assert!(found.eq(content.keys().rev().copied()));
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let n = rng.below(u64::from(KEYS)) as u32;
        let run = (n + rng.below(120) as u32).min(KEYS);
        match rng.below(100) {
            0..=24 => self.put(n),
            25..=44 => (n..run).for_each(|n| self.delete(n)),
            45..=54 => self.batch(n, run, n + (run - n) / 2),
            55..=64 => {
                // A queue: first in, first out.
                for _ in 0..20 {
                    if let Some((first, _)) = self.p.first().unwrap() {
                        self.delete(number(&first));
                    }
                }
            }
            65..=69 => (n..run).for_each(|n| self.put(n)),
            70..=74 => self.transact(),
            75..=79 => self.snapshots.push((self.db.snapshot(), self.content.clone())),
            80..=82 if !self.snapshots.is_empty() => {
                let at = rng.below(self.snapshots.len() as u64) as usize;
                self.snapshots.remove(at);
            }
            83..=87 => self.db.flush().unwrap(),
            88..=90 => while self.db.step().unwrap() {},
            91..=92 => self.p.compact(key(n)..key(run)).unwrap(),
            93..=94 => self.ingest(rng),
            95 => {
                self.p.clear().unwrap();
                self.content.clear();
            }
            96 => self.reopen(),
            _ => {}
        }
        self.check(rng);
    }
}

fn run(seed: u64, steps: u32, options: PartitionOptions) {
    let mut rng = Rng::from_env_or(seed);
    let mut harness = Harness::new(options);
    for step in 0..steps {
        harness.step(&mut rng);
        if step % 10 == 0 {
            harness.check_all();
        }
        if step % 3 == 0 {
            harness.check_follower();
        }
    }
    harness.check_all();
    assert!(harness.db.verify(Default::default()).unwrap().is_sound());
}

fn small() -> PartitionOptions {
    PartitionOptions::new().table_bytes(2 << 10).block_bytes(256).compression(Compression::None)
}

#[test]
fn remembered_walks_hide_no_entry() {
    for seed in 0..2 {
        run(seed, 250, small());
    }
}

#[test]
fn remembered_walks_hide_no_entry_with_metahive_and_large_values() {
    run(11, 80, small().metahive(MetaHiveOptions::default()));
    let large = LargeValueOptions::default().threshold_bytes(256);
    run(12, 80, small().large_values(large));
}

/// Producers put entries before and after those that consumers have deleted. An entry that a
/// remembered walk hid would stay.
#[test]
fn queue_consumers_see_every_entry_of_producers() {
    const EACH: u32 = 1500;
    let builder = Db::builder("/db").fs(Arc::new(MemFs::new()));
    let db = builder.write_buffer_bytes(256 << 10).open().unwrap();
    let p = db.partition("p").unwrap();
    let mut popped: Vec<u32> = std::thread::scope(|scope| {
        let mut consumers = Vec::new();
        let mut producers = Vec::new();
        for thread in 0..2 {
            let p = &p;
            producers.push(scope.spawn(move || {
                for n in 0..EACH {
                    // Multiplied, so that the numbers come in no order, each once.
                    let number = (2 * n + thread) * 1009 % (2 * EACH);
                    p.put(key(number), b"value").unwrap();
                }
            }));
        }
        let is_done = Arc::new(AtomicBool::new(false));
        for thread in 0..2 {
            let p = &p;
            let is_done = is_done.clone();
            consumers.push(scope.spawn(move || {
                let mut popped = Vec::new();
                loop {
                    let was_done = is_done.load(Ordering::Acquire);
                    let next = if thread == 0 { p.first() } else { p.last() };
                    match next.unwrap() {
                        Some((found, _)) => {
                            p.delete(&found).unwrap();
                            popped.push(number(&found));
                        }
                        None if was_done => return popped,
                        None => std::thread::yield_now(),
                    }
                }
            }));
        }
        producers.into_iter().for_each(|thread| thread.join().unwrap());
        is_done.store(true, Ordering::Release);
        consumers.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    popped.sort_unstable();
    popped.dedup();
    assert_eq!(popped, (0..2 * EACH).collect::<Vec<_>>());
    assert!((0..2 * EACH).all(|n| p.get(key(n)).unwrap().is_none()));
}

fn table_bytes(p: &Partition) -> u64 {
    p.stats().levels.iter().map(|level| level.bytes).sum()
}

/// One flush of many deletions is merged with the entries that it deletes, without a second flush
/// and without a request.
#[test]
fn the_space_of_many_deleted_entries_comes_back_by_itself() {
    const ENTRIES: u32 = 20_000;
    let db = stepped(Arc::new(MemFs::new()), "/db", 7).open().unwrap();
    let options = PartitionOptions::default().compression(Compression::None);
    let p = db.partition_with("p", options).unwrap();
    for n in 0..ENTRIES {
        p.put(format!("key {n:06}"), [7; 100]).unwrap();
    }
    db.flush().unwrap();
    p.compact(..).unwrap();
    let full = table_bytes(&p);
    for n in 0..ENTRIES - 10 {
        p.delete(format!("key {n:06}")).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let rest = table_bytes(&p);
    assert!(rest < full / 100, "{rest} bytes of {full} are left");
    assert_eq!(p.iter().count(), 10);
}
