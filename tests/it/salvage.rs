//! Repairs of damaged databases: every fault of every file, against a model that knows each value a key ever had.
//!
//! The rule is the same for every fault: a key outside of the doubtful ones of the report is what it was, and every key
//! that is there has a value that it had once.

mod faults;
mod into;
mod random;
mod removed;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, MemFs};
use lsm_core::internals::names::{FileKind, FileName};
use siltstone::operators::IntegerOperator;
use siltstone::{
    Db, Durability, LargeValueOptions, MetaHiveOptions, Options, PartitionOptions, PrefixExtractor,
    Result, SalvageReport, VerifyOptions,
};
use testkit::Rng;

use crate::store::{Content, content, stepped};

const DIR: &str = "/db";
const NEW: &str = "/new";

/// The partitions of the model: plain, with MetaHive, with large values, and with a merge operator.
const PARTITIONS: [&str; 4] = ["plain", "hive", "large", "sums"];

type State = BTreeMap<&'static str, Content>;

fn options() -> Options {
    Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(4 << 10)
}

fn builder(fs: &MemFs, dir: &str, seed: u64) -> siltstone::Builder {
    stepped(Arc::new(fs.clone()), dir, seed).options(options())
}

fn partition_options(name: &str) -> PartitionOptions {
    let options = PartitionOptions::new().block_bytes(128).table_bytes(1 << 10).level0_tables(2);
    let options = options.prefix_extractor(PrefixExtractor::Fixed(2));
    match name {
        "hive" => options.metahive(MetaHiveOptions::default()),
        "large" => options.large_values(LargeValueOptions::default().threshold_bytes(256)),
        "sums" => options.merge_operator(Arc::new(IntegerOperator::Add)),
        _ => options,
    }
}

/// A database and all values that its keys ever had.
pub struct Story {
    pub fs: MemFs,
    pub now: State,
    pub past: BTreeMap<(&'static str, Vec<u8>), BTreeSet<Vec<u8>>>,
    rng: Rng,
}

impl Story {
    /// Writes a database by a seed, with `rounds` of writes, flushes and compactions.
    pub fn new(seed: u64, rounds: usize) -> Story {
        let now = PARTITIONS.map(|name| (name, Content::new())).into();
        let mut story = Story { fs: MemFs::new(), now, past: BTreeMap::new(), rng: Rng::new(seed) };
        let mut db = builder(&story.fs, DIR, seed).open().unwrap();
        for name in PARTITIONS {
            db.partition_with(name, partition_options(name)).unwrap();
        }
        for round in 0..rounds {
            for _ in 0..25 {
                story.write(&db);
            }
            match story.rng.next_u64() % 4 {
                0 => db.flush().unwrap(),
                1 => db.wait_idle().unwrap(),
                2 if round + 1 < rounds => {
                    db.close().unwrap();
                    db = builder(&story.fs, DIR, seed + 1).open().unwrap();
                }
                _ => {}
            }
        }
        // The end of a log that was not closed is not attested: damage there is a torn tail for every reader.
        db.close().unwrap();
        story
    }

    fn write(&mut self, db: &Db) {
        let name = PARTITIONS[(self.rng.next_u64() % 4) as usize];
        let partition = db.open_partition(name).unwrap();
        let key = format!("k{:03}", self.rng.next_u64() % 60).into_bytes();
        match self.rng.next_u64() % 40 {
            0 => {
                partition.clear().unwrap();
                self.now.get_mut(name).unwrap().clear();
            }
            1 | 2 => {
                let end = format!("k{:03}", self.rng.next_u64() % 60).into_bytes();
                partition.delete_range(&key..&end).unwrap();
                self.now.get_mut(name).unwrap().retain(|it, _| *it < key || *it >= end);
            }
            3..8 => {
                partition.delete(&key).unwrap();
                self.now.get_mut(name).unwrap().remove(&key);
            }
            _ if name == "sums" => {
                let add = self.rng.next_u64() % 9;
                partition.merge(&key, add.to_le_bytes()).unwrap();
                let value = partition.get(&key).unwrap().unwrap().to_vec();
                self.note(name, key, value);
            }
            n => {
                let len = if name == "large" { 40 + 20 * n as usize } else { n as usize };
                let value: Vec<u8> = (0..=len).map(|_| self.rng.next_u64() as u8).collect();
                let other = db.open_partition("plain").unwrap();
                // A batch over two partitions: both have it, or none.
                let batch = db.batch().put(&partition, &key, &value).put(&other, b"last", &value);
                batch.commit(Durability::Os).unwrap();
                self.note(name, key, value.clone());
                self.note("plain", b"last".to_vec(), value);
            }
        }
    }

    fn note(&mut self, name: &'static str, key: Vec<u8>, value: Vec<u8>) {
        self.past.entry((name, key.clone())).or_default().insert(value.clone());
        self.now.get_mut(name).unwrap().insert(key, value);
    }

    /// The files of a kind.
    pub fn files(&self, kind: FileKind) -> Vec<PathBuf> {
        let mut paths = self.fs.paths();
        paths.retain(|path| kind_of(path) == Some(kind));
        paths
    }

    /// Damages a copy, repairs it and compares the new database with the model.
    pub fn check(&self, what: &str, damage: impl FnOnce(&MemFs)) -> SalvageReport {
        let fs = copy_of(&self.fs);
        damage(&fs);
        let before = fs.paths().into_iter().map(|path| (fs.read_raw(&path).unwrap(), path));
        let before: Vec<_> = before.collect();
        let report = repair(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
        for (bytes, path) in before {
            assert!(fs.read_raw(&path).unwrap() == bytes, "{what}: {} changed", path.display());
        }
        let db = builder(&fs, NEW, 9).open().unwrap_or_else(|error| panic!("{what}: {error}"));
        let verified = db.verify(VerifyOptions::new()).unwrap();
        assert!(verified.damage().is_empty(), "{what}: {:?}", verified.damage());
        for name in PARTITIONS {
            let found = if db.has_partition(name) {
                content(&db.open_partition(name).unwrap())
            } else {
                assert!(report.is_doubtful(name, b"any"), "{what}: {name} is gone");
                Content::new()
            };
            self.compare(what, name, &found, &report);
        }
        report
    }

    fn compare(&self, what: &str, name: &str, found: &Content, report: &SalvageReport) {
        let (name, now) = self.now.get_key_value(name).unwrap();
        let keys: BTreeSet<_> = now.keys().chain(found.keys()).collect();
        for key in keys {
            let value = found.get(key);
            let shown = key.escape_ascii();
            if !report.is_doubtful(name, key) {
                assert!(value == now.get(key), "{what}: {name} {shown}: {report:?}");
            } else if let Some(value) = value.filter(|_| *name != "sums") {
                // Where an operand is lost, the others are folded all the same.
                let past = self.past.get(&(*name, key.clone()));
                assert!(past.is_some_and(|it| it.contains(value)), "{what}: {name} {shown}");
            }
        }
    }
}

fn kind_of(path: &Path) -> Option<FileKind> {
    FileName::parse(path.file_name()?.to_str()?).map(|it| it.kind)
}

fn copy_of(fs: &MemFs) -> MemFs {
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

fn repair(fs: &MemFs) -> Result<SalvageReport> {
    builder(fs, DIR, 1).repair_into(NEW)
}

/// The whole content of the new database.
fn repaired(fs: &MemFs) -> State {
    let db = builder(fs, NEW, 9).open().unwrap();
    PARTITIONS.map(|name| (name, content(&db.partition(name).unwrap()))).into()
}
