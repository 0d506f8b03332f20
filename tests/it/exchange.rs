//! Checkpoints, exports and ingests: round trips against a model, refusals, crashes and faults.

mod bulk;
mod crash;
mod refusal;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_core::fs::{CrashOutcome, Fs, MemFs};
use proptest::prelude::*;
use siltstone::{
    Db, Durability, ErrorKind, ExportSummary, Options, Partition, PartitionOptions, Slice, Snapshot,
};

use crate::store::{Content, content, stepped};

fn options() -> Options {
    Options::new()
        .write_buffer_bytes(16 << 10)
        .wal_segment_bytes(4 << 10)
        .cache_bytes(64 << 10)
        .compaction_threads(1)
}

fn try_open(fs: Arc<dyn Fs>, dir: &str, salt: u64) -> siltstone::Result<Db> {
    stepped(fs, dir, salt).options(options()).open()
}

/// A store that runs in steps; the salt determines its database id.
fn open(fs: &MemFs, dir: &str, salt: u64) -> Db {
    try_open(Arc::new(fs.clone()), dir, salt).unwrap()
}

/// Options with which a few kilobytes make many tables and levels.
fn small() -> PartitionOptions {
    PartitionOptions::new()
        .block_bytes(128)
        .table_bytes(1 << 10)
        .level0_tables(2)
        .level_base_bytes(2 << 10)
        .level_multiplier(3)
}

fn collect(range: impl Iterator<Item = siltstone::Result<(Slice, Slice)>>) -> Content {
    range.map(|pair| pair.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

fn within(content: &Content, range: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Content {
    let is_in = |key: &Vec<u8>| std::ops::RangeBounds::contains(range, key);
    content.iter().filter(|(k, _)| is_in(k)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// All results that a reader can get from a partition.
fn check(partition: &Partition, expected: &Content, absent: &[Vec<u8>]) {
    assert_eq!(&content(partition), expected);
    assert_eq!(&collect(partition.iter().rev()), expected);
    for (key, value) in expected {
        assert_eq!(partition.get(key).unwrap().as_deref(), Some(&value[..]), "{key:?}");
    }
    let mut cursor = partition.cursor();
    for key in absent {
        assert_eq!(partition.get(key).unwrap().as_deref(), expected.get(key).map(|v| &v[..]));
        cursor.seek(key).unwrap();
        let next = expected.range(key.clone()..).next();
        assert_eq!(cursor.valid().then(|| cursor.key()), next.map(|(key, _)| &key[..]));
        if cursor.valid() {
            cursor.prev().unwrap();
            let before = expected.range(..key.clone()).next_back();
            assert_eq!(cursor.valid().then(|| cursor.key()), before.map(|(key, _)| &key[..]));
        }
    }
}

fn names(fs: &MemFs, dir: &str) -> Vec<String> {
    let entries = fs.list(Path::new(dir), "").unwrap();
    entries.into_iter().map(|entry| entry.name).collect()
}

/// Ends the loop of a thread, also when the test fails.
struct Stop<'a>(&'a AtomicU64);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Relaxed);
    }
}

/// Tables in the folder that no manifest names. An open removes them, so a test must look before.
fn check_no_orphans(fs: &MemFs, dir: &str, db: &Db) {
    let tables: u64 =
        db.stats().partitions.iter().flat_map(|p| &p.levels).map(|l| l.table_count).sum();
    let files = names(fs, dir).iter().filter(|name| name.ends_with(".sst")).count();
    assert_eq!(files as u64, tables, "{:?}", names(fs, dir));
}

#[test]
fn a_checkpoint_is_the_state_at_the_call_and_is_independent() {
    let fs = MemFs::new();
    let db = open(&fs, "/db", 1);
    let logged = db.partition_with("logged", small()).unwrap();
    let unlogged = db.partition_with("unlogged", small().logged(false)).unwrap();
    for n in 0..400_u32 {
        db.batch()
            .put(&logged, (n % 90).to_be_bytes(), n.to_string())
            .commit(Durability::default())
            .unwrap();
        unlogged.put((n % 70).to_be_bytes(), vec![n as u8; 30]).unwrap();
        if n % 5 == 0 {
            logged.delete((n % 13).to_be_bytes()).unwrap();
        }
        if n == 200 {
            db.wait_idle().unwrap();
        }
    }
    let expected = [content(&logged), content(&unlogged)];
    let last = db.visible_seq();
    db.checkpoint("/copy").unwrap();
    logged.put("later", "1").unwrap();
    db.wait_idle().unwrap();
    logged.compact(..).unwrap();
    db.wait_idle().unwrap();
    for round in 0..3 {
        let copy = open(&fs, "/copy", 7);
        let [a, b] = ["logged", "unlogged"].map(|name| copy.partition(name).unwrap());
        if round == 0 {
            assert_eq!([content(&a), content(&b)], expected);
            assert!(copy.visible_seq() >= last);
            check_no_orphans(&fs, "/copy", &copy);
        }
        assert_eq!(a.get("later").unwrap(), None);
        a.put("mine", round.to_string()).unwrap();
        a.compact(..).unwrap();
        copy.wait_idle().unwrap();
        assert_eq!(copy.partition_names(), ["default", "logged", "unlogged"]);
        copy.close().unwrap();
    }
    assert_eq!(logged.get("mine").unwrap(), None);
    assert_eq!(content(&unlogged), expected[1]);
    // A checkpoint of a checkpoint, and of an empty database.
    open(&fs, "/copy", 7).checkpoint("/again").unwrap();
    let again = open(&fs, "/again", 8).partition("logged").unwrap();
    assert_eq!(again.get("mine").unwrap().as_deref(), Some(&b"2"[..]));
    open(&fs, "/empty", 9).checkpoint("/empty copy").unwrap();
    assert_eq!(open(&fs, "/empty copy", 1).partition_names(), ["default"]);
}

#[test]
fn a_folder_with_files_takes_neither_checkpoint_nor_export() {
    let fs = MemFs::new();
    let db = open(&fs, "/db", 1);
    let p = db.partition("default").unwrap();
    p.put("k", "v").unwrap();
    fs.create_dir(Path::new("/full")).unwrap();
    fs.write_raw(Path::new("/full/file"), b"mine").unwrap();
    for dir in ["/db", "/full"] {
        let before = names(&fs, dir);
        assert_eq!(db.checkpoint(dir).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(p.export(.., dir).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(names(&fs, dir), before);
    }
    fs.create_dir(Path::new("/fresh")).unwrap();
    db.checkpoint("/fresh").unwrap();
    let there = ErrorKind::InvalidArgument;
    assert_eq!(db.checkpoint("/fresh").unwrap_err().kind(), there);
    assert_eq!(p.ingest("/fresh").unwrap_err().kind(), there);
    assert_eq!(p.ingest("/nowhere").unwrap_err().kind(), there);
}

#[test]
fn a_checkpoint_during_writes_is_a_prefix_with_all_acknowledged_commits() {
    let dir = tempfile::tempdir().unwrap();
    let options = options().write_buffer_bytes(64 << 10).wal_segment_bytes(32 << 10);
    let db = Db::builder(dir.path().join("db")).options(options).open().unwrap();
    let [left, right] = ["left", "right"].map(|name| db.partition_with(name, small()).unwrap());
    let acknowledged = AtomicU64::new(0);
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..u64::MAX {
                if stop.load(Ordering::Relaxed) == 1 {
                    break;
                }
                let key = (n % 200).to_be_bytes();
                let batch =
                    db.batch().put(&left, key, n.to_string()).put(&right, key, vec![7; 200]);
                let batch = batch.put(&left, "n", n.to_string()).put(&right, "n", n.to_string());
                batch.commit(Durability::default()).unwrap();
                acknowledged.store(n, Ordering::Release);
            }
        });
        let _stop = Stop(&stop);
        for round in 0..12 {
            let before = acknowledged.load(Ordering::Acquire);
            let copy = dir.path().join(format!("copy{round}"));
            db.checkpoint(&copy).unwrap();
            let copy = Db::open(copy).unwrap();
            let [a, b] = ["left", "right"].map(|name| copy.partition(name).unwrap());
            let [n, m]: [u64; 2] = [&a, &b].map(|p| {
                let count = p.get("n").unwrap();
                count.map_or(0, |n| std::str::from_utf8(&n).unwrap().parse().unwrap())
            });
            assert_eq!((n, n >= before), (m, true), "acknowledged {before}, a batch split");
            for back in 0..n.min(200) {
                let key = ((n - back) % 200).to_be_bytes();
                assert_eq!(a.get(key).unwrap().as_deref(), Some((n - back).to_string().as_bytes()));
                assert!(b.contains(key).unwrap());
            }
        }
    });
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Flush,
    Work,
    Compact,
    Snapshot,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0), Just(0xff), Just(b'a'), any::<u8>()];
    prop_oneof![
        3 => prop::collection::vec(byte, 0..3),
        1 => prop::collection::vec(any::<u8>(), 1..12),
        1 => any::<u8>().prop_map(|byte| [&[b'x'; 60][..], &[byte]].concat()),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20),
        (any::<u8>(), 100..900_usize).prop_map(|(byte, len)| vec![byte; len]),
    ];
    prop_oneof![
        20 => (key(), value).prop_map(|(k, v)| Step::Put(k, v)),
        5 => key().prop_map(Step::Delete),
        1 => Just(Step::Flush),
        2 => Just(Step::Work),
        1 => Just(Step::Compact),
        2 => Just(Step::Snapshot),
    ]
}

fn bounds() -> impl Strategy<Value = (Bound<Vec<u8>>, Bound<Vec<u8>>)> {
    let bound = || {
        prop_oneof![
            2 => Just(Bound::Unbounded),
            1 => key().prop_map(Bound::Included),
            1 => key().prop_map(Bound::Excluded),
        ]
    };
    (bound(), bound())
}

/// A partition with its model and the snapshots that were taken of it.
struct Harness {
    fs: MemFs,
    dir: &'static str,
    db: Db,
    partition: Partition,
    model: Content,
    snapshots: Vec<(Snapshot, Content)>,
}

impl Harness {
    fn new(fs: &MemFs, dir: &'static str, salt: u64) -> Harness {
        let db = open(fs, dir, salt);
        let partition = db.partition_with("p", small()).unwrap();
        let fs = fs.clone();
        Harness { fs, dir, db, partition, model: Content::new(), snapshots: Vec::new() }
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Put(key, value) => {
                    self.partition.put(key, value).unwrap();
                    self.model.insert(key.clone(), value.clone());
                }
                Step::Delete(key) => {
                    self.partition.delete(key).unwrap();
                    self.model.remove(key);
                }
                Step::Flush => self.db.flush().unwrap(),
                Step::Work => _ = self.db.step().unwrap(),
                Step::Compact => self.partition.compact(..).unwrap(),
                Step::Snapshot => {
                    self.snapshots.push((self.db.snapshot(), self.model.clone()));
                }
            }
        }
    }

    fn check(&self, absent: &[Vec<u8>]) {
        check(&self.partition, &self.model, absent);
        for (snapshot, expected) in &self.snapshots {
            assert_eq!(&collect(snapshot.iter(&self.partition)), expected);
            for key in absent.iter().chain(self.model.keys()) {
                let found = snapshot.get(&self.partition, key).unwrap();
                assert_eq!(found.as_deref(), expected.get(key).map(|value| &value[..]));
            }
        }
    }

    fn reopen(self) -> Harness {
        let Harness { fs, dir, db, partition, model, snapshots } = self;
        drop((partition, snapshots));
        db.close().unwrap();
        let db = open(&fs, dir, 99);
        check_no_orphans(&fs, dir, &db);
        let partition = db.partition("p").unwrap();
        Harness { fs, dir, db, partition, model, snapshots: Vec::new() }
    }

    /// Ingests and updates the model. Existing iterators must not change.
    fn ingest(&mut self, from: &str, exported: &Content) {
        let front = self.partition.iter();
        let back = self.partition.iter();
        let mut begun = self.partition.iter();
        let first = begun.next().map(Result::unwrap);
        let before = self.model.clone();
        let summary = self.partition.ingest(from).unwrap();
        assert_eq!(summary.entries, exported.len() as u64);
        assert_eq!(summary.seq, self.db.visible_seq());
        self.model.extend(exported.clone());
        assert_eq!(collect(front), before);
        assert_eq!(collect(back.rev()), before);
        let first = first.map(|(k, v)| Ok((k, v)));
        assert_eq!(collect(first.into_iter().chain(begun)), before);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn an_ingest_is_newer_than_existing_entries_and_older_than_later_ones(
        source in prop::collection::vec(step(), 1..120),
        later in prop::collection::vec(step(), 0..20),
        target in prop::collection::vec(step(), 0..120),
        after in prop::collection::vec(step(), 0..60),
        range in bounds(),
        probes in prop::collection::vec(key(), 8),
    ) {
        let fs = MemFs::new();
        let mut from = Harness::new(&fs, "/from", 1);
        from.run(&source);
        let exported = within(&from.model, &range);
        let summary = from.partition.export(range.clone(), "/export").unwrap();
        prop_assert_eq!(summary.entries, exported.len() as u64);
        from.run(&later);

        let mut to = Harness::new(&fs, "/to", 2);
        to.run(&target);
        to.snapshots.push((to.db.snapshot(), to.model.clone()));
        to.ingest("/export", &exported);
        to.check(&probes);
        to.run(&after);
        to.check(&probes);
        // Twice, and from a partition that was itself ingested into; and at last back into the
        // first one.
        to.ingest("/export", &exported);
        to.check(&probes);
        to.partition.export(.., "/second").unwrap();
        let second = to.model.clone();
        from.ingest("/second", &second);
        from.check(&probes);
        let mut to = to.reopen();
        to.check(&probes);
        to.partition.compact(..).unwrap();
        to.db.wait_idle().unwrap();
        to.check(&probes);
        to.run(&source);
        to.db.checkpoint("/copy").unwrap();
        to.check(&probes);
        let copy = open(&fs, "/copy", 3).partition("p").unwrap();
        check(&copy, &to.model, &probes);
        to.reopen().check(&probes);
        from.reopen().check(&probes);
    }
}

fn exported(fs: &MemFs, range: std::ops::Range<u32>, value: &str, dir: &str) -> ExportSummary {
    let db = open(fs, &format!("{dir} source"), 50);
    let p = db.partition_with("p", small()).unwrap();
    range.for_each(|n| _ = p.put(n.to_be_bytes(), value).unwrap());
    p.export(.., dir).unwrap()
}

fn levels(db: &Db) -> Vec<u64> {
    let stats = db.stats();
    let partition = stats.partitions.iter().find(|p| &*p.name == "p").unwrap();
    partition.levels.iter().map(|level| level.table_count).collect()
}

#[test]
fn an_ingest_goes_to_the_deepest_level_without_overlap() {
    let fs = MemFs::new();
    let tables = exported(&fs, 0..100, &"v".repeat(40), "/a").tables as u64;
    assert!(tables > 2);
    exported(&fs, 200..210, "w", "/b");
    let db = open(&fs, "/db", 1);
    let p = db.partition_with("p", small().level_base_bytes(1 << 20)).unwrap();
    p.ingest("/a").unwrap();
    assert_eq!(levels(&db), [0, 0, 0, 0, 0, 0, tables]);
    p.ingest("/a").unwrap();
    assert_eq!(levels(&db), [tables, 0, 0, 0, 0, 0, tables]);
    p.ingest("/b").unwrap();
    assert_eq!(levels(&db), [tables, 0, 0, 0, 0, 0, tables + 1]);
    // A memtable in the range is flushed first, a memtable outside it is not.
    p.put(1000_u32.to_be_bytes(), "nearby").unwrap();
    p.put(205_u32.to_be_bytes(), "older").unwrap();
    p.ingest("/b").unwrap();
    assert_eq!(levels(&db), [tables + 2, 0, 0, 0, 0, 0, tables + 1]);
    assert_eq!(p.get(205_u32.to_be_bytes()).unwrap().as_deref(), Some(&b"w"[..]));
    p.put(1001_u32.to_be_bytes(), "nearby").unwrap();
    p.put(206_u32.to_be_bytes(), "newer").unwrap();
    exported(&fs, 3000..3001, "x", "/c");
    p.ingest("/c").unwrap();
    assert_eq!(levels(&db), [tables + 2, 0, 0, 0, 0, 0, tables + 2]);
    assert_eq!(p.get(206_u32.to_be_bytes()).unwrap().as_deref(), Some(&b"newer"[..]));
    db.wait_idle().unwrap();
    assert_eq!(p.get(206_u32.to_be_bytes()).unwrap().as_deref(), Some(&b"newer"[..]));
    assert_eq!(content(&p).len(), 100 + 10 + 2 + 1);
}

#[test]
fn earlier_writes_are_durable_after_an_ingest_or_a_bulk_load_of_nothing() {
    for is_bulk in [false, true] {
        let fs = MemFs::new();
        let db = open(&fs, "/db", 1);
        let p = db.partition("p").unwrap();
        p.put("k", "v").unwrap();
        if is_bulk {
            p.bulk_load([("", ""); 0]).unwrap();
        } else {
            assert_eq!(p.export("x"..="y", "/export").unwrap().entries, 0);
            p.ingest("/export").unwrap();
        }
        let left = fs.crash_clone(CrashOutcome::Nothing, &mut || 0);
        let db = open(&left, "/db", 2);
        assert!(db.partition("p").unwrap().contains("k").unwrap(), "bulk: {is_bulk}");
    }
}

#[test]
fn concurrent_writes_are_before_or_after_an_ingest() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::builder(dir.path().join("db")).options(options()).open().unwrap();
    let p = db.partition_with("p", small()).unwrap();
    for n in 0..50_u32 {
        p.put(n.to_be_bytes(), "ingested").unwrap();
    }
    p.export(.., dir.path().join("export")).unwrap();
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut last = BTreeMap::new();
            for n in 0..u32::MAX {
                if stop.load(Ordering::Relaxed) == 1 {
                    break;
                }
                let key = (n % 60).to_be_bytes();
                last.insert(key, (p.put(key, n.to_string()).unwrap().seq, n));
            }
            last
        });
        let stopping = Stop(&stop);
        let mut newest = p.ingest(dir.path().join("export")).unwrap();
        for _ in 0..15 {
            let snapshot = db.snapshot();
            let before = collect(snapshot.iter(&p));
            newest = p.ingest(dir.path().join("export")).unwrap();
            assert_eq!(collect(snapshot.iter(&p)), before);
        }
        drop(stopping);
        for (key, (seq, n)) in writer.join().unwrap() {
            assert_ne!(seq, newest.seq);
            let is_ingested = u32::from_be_bytes(key) < 50 && seq < newest.seq;
            let expected = if is_ingested { "ingested".to_owned() } else { n.to_string() };
            assert_eq!(p.get(key).unwrap().as_deref(), Some(expected.as_bytes()));
        }
    });
    db.wait_idle().unwrap();
    assert!(content(&p).len() >= 50);
}
