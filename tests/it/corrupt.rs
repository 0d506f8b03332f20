//! Damage of every kind to every file of a small store, and the results that a user then gets.
//!
//! Each case copies the store, damages one thing, and opens it twice. Allowed are: the complete
//! correct data; `Corruption` or `Unsupported` that names a file, at open or at a read; and, only
//! for the last frames of a log that was not closed, an earlier prefix of the commit order. Not
//! allowed are: wrong data, a key that is silently missing, a panic.
//!
//! Every single bit of every file is flipped.

mod harms;
mod tables;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, Fs, MemFs};
use lsm_core::internals::names::{FileKind, FileName};
use lsm_core::internals::version::recover;
use siltstone::{Compression, Db, Error, ErrorKind, Options, Partition, PartitionOptions};
use testkit::Rng;

use crate::store::stepped;

const DIR: &str = "/db";
const PARTITIONS: [&str; 3] = ["default", "packed", "plain"];
const KEYS: usize = 44;

type Content = BTreeMap<&'static str, BTreeMap<Vec<u8>, Vec<u8>>>;

fn options() -> Options {
    Options::new()
        .cache_bytes(256 << 10)
        .write_buffer_bytes(1 << 20)
        .wal_segment_bytes(4 << 10)
        .wal_bytes_max(1 << 20)
        .compaction_threads(1)
}

fn partition_options(compression: Compression) -> PartitionOptions {
    PartitionOptions::new()
        .compression(compression)
        .block_bytes(192)
        .table_bytes(1 << 10)
        .level0_tables(2)
        .level_base_bytes(1 << 10)
        .level_multiplier(2)
}

/// The log is mapped with even seeds: one epoch of each store has a mapped log, and one has not.
/// Tables are mapped with every third seed.
fn open(fs: &MemFs, seed: u64) -> siltstone::Result<Db> {
    let options =
        options().wal_mapped(seed.is_multiple_of(2)).tables_mapped(seed.is_multiple_of(3));
    stepped(Arc::new(fs.clone()), DIR, seed).options(options).open()
}

fn copy_of(fs: &MemFs) -> MemFs {
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number:03}").into_bytes()
}

/// A closed store and everything that was ever committed to it.
struct Store {
    name: &'static str,
    fs: MemFs,
    /// The content after each commit; the first one is empty.
    history: Vec<Content>,
    /// At least two later frames prove that the commits up to here are durable.
    attested: usize,
    is_closed: bool,
    /// The folder at earlier times.
    past: Vec<MemFs>,
}

impl Store {
    fn last(&self) -> usize {
        self.history.len() - 1
    }

    fn kind(path: &Path) -> Option<FileKind> {
        FileName::parse(path.file_name()?.to_str()?).map(|name| name.kind)
    }

    fn files(&self, kind: FileKind) -> Vec<PathBuf> {
        let mut paths = self.fs.paths();
        paths.retain(|path| Store::kind(path) == Some(kind));
        paths
    }
}

/// Writes the store.
struct Scribe {
    rng: Rng,
    history: Vec<Content>,
}

impl Scribe {
    fn new(seed: u64) -> Scribe {
        let empty = PARTITIONS.map(|name| (name, BTreeMap::new()));
        Scribe { rng: Rng::new(seed), history: vec![empty.into()] }
    }

    /// Commits `count` batches over all partitions. Each batch writes its number into `default`,
    /// which says which prefix a recovered store has.
    fn commit(&mut self, db: &Db, count: usize) {
        let partitions = PARTITIONS.map(|name| db.partition(name).unwrap());
        for _ in 0..count {
            let number = self.history.len();
            let mut content = self.history[number - 1].clone();
            let mut batch = db.batch();
            batch =
                put(batch, &mut content, &partitions[0], b"count", number.to_string().as_bytes());
            for partition in &partitions[1..] {
                for _ in 0..=self.rng.next_u64() % 2 {
                    let key = key((self.rng.next_u64() % KEYS as u64) as usize);
                    if self.rng.next_u64().is_multiple_of(6) {
                        content.get_mut(partition.name()).unwrap().remove(&key);
                        batch = batch.delete(partition, &key);
                    } else {
                        let value = format!("{number:04}{}", "ab".repeat(number % 23));
                        batch = put(batch, &mut content, partition, &key, value.as_bytes());
                    }
                }
            }
            batch.commit(siltstone::Durability::Os).unwrap();
            self.history.push(content);
        }
    }
}

fn put(
    batch: siltstone::Batch,
    content: &mut Content,
    partition: &Partition,
    key: &[u8],
    value: &[u8],
) -> siltstone::Batch {
    content.get_mut(partition.name()).unwrap().insert(key.to_vec(), value.to_vec());
    batch.put(partition, key, value)
}

fn build(name: &'static str, seed: u64, is_closed: bool) -> Store {
    let fs = MemFs::new();
    let mut scribe = Scribe::new(seed);
    let mut past = Vec::new();
    let db = open(&fs, seed).unwrap();
    db.partition_with("packed", partition_options(Compression::Lz4)).unwrap();
    db.partition_with("plain", partition_options(Compression::None)).unwrap();
    for _ in 0..3 {
        scribe.commit(&db, 18);
        db.flush().unwrap();
        db.wait_idle().unwrap();
    }
    for name in &PARTITIONS[1..] {
        db.partition(name).unwrap().compact(..).unwrap();
    }
    scribe.commit(&db, 3);
    db.close().unwrap();
    // A second epoch: upper levels, then a log of several segments.
    let db = open(&fs, seed + 1).unwrap();
    past.push(copy_of(&fs));
    scribe.commit(&db, 10);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    past.push(copy_of(&fs));
    for count in [20, 15] {
        scribe.commit(&db, count);
        db.wait_idle().unwrap();
        past.push(copy_of(&fs));
    }
    scribe.commit(&db, 2);
    db.partition("plain").unwrap();
    let flushed_alone = db.partition("packed").unwrap();
    flushed_alone.compact(key(0)..=key(0)).unwrap();
    past.push(copy_of(&fs));
    scribe.commit(&db, 10);
    db.wait_idle().unwrap();
    let attested = scribe.history.len() - 1;
    past.push(copy_of(&fs));
    scribe.commit(&db, 7);
    let left = if is_closed {
        db.close().unwrap();
        copy_of(&fs)
    } else {
        copy_of(&fs)
    };
    Store { name, fs: left, history: scribe.history, attested, is_closed, past }
}

/// The outcomes that a case may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// All data, as without the damage.
    Whole,
    /// `open` reported the damage.
    Refused,
    /// Some reads reported the damage; all others were correct.
    Unreadable,
    /// The log ended before its last commits.
    Prefix,
}

/// The effect that a case may have on the commits at the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Nothing,
    /// Commits that no later frame proves durable.
    Unattested,
    /// Any: bytes that are missing from the end of the log prove nothing.
    Tail,
}

/// An error must be of the kinds that report damage, and must have a place.
fn check_error(error: &Error, at: &str) -> Result<(), String> {
    let named = match error.kind() {
        ErrorKind::Corruption => error.damage().is_some_and(|d| d.file.starts_with(DIR)),
        ErrorKind::Unsupported => error.to_string().contains(DIR),
        _ => false,
    };
    if named { Ok(()) } else { Err(format!("{at}: {error:?}")) }
}

/// Keys and values in the order of a scan, and whether it reached its end.
type Scanned = (Vec<(Vec<u8>, Vec<u8>)>, bool);

/// The result of reading one partition.
struct Reads {
    name: &'static str,
    gets: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    unreadable: Vec<(Option<Vec<u8>>, Error)>,
    forward: Scanned,
    backward: Scanned,
}

impl Reads {
    fn of(db: &Db, name: &'static str) -> Result<Reads, String> {
        let partition = db.partition(name).map_err(|e| format!("partition {name}: {e}"))?;
        let mut gets = BTreeMap::new();
        let mut unreadable = Vec::new();
        let keys = (0..=KEYS).map(key).chain([b"count".to_vec(), b"zzz".to_vec()]);
        for key in keys {
            match partition.get(&key) {
                Ok(value) => drop(gets.insert(key, value.map(|value| value.to_vec()))),
                Err(error) => unreadable.push((Some(key), error)),
            }
        }
        let mut scan = |pairs: &mut dyn Iterator<Item = siltstone::Result<_>>| {
            let mut seen = Vec::new();
            for pair in pairs {
                match pair {
                    Ok((key, value)) => {
                        let key: siltstone::Slice = key;
                        let value: siltstone::Slice = value;
                        seen.push((key.to_vec(), value.to_vec()));
                    }
                    Err(error) => {
                        unreadable.push((None, error));
                        return (seen, false);
                    }
                }
            }
            (seen, true)
        };
        let forward = scan(&mut partition.iter());
        let backward = scan(&mut partition.iter().rev());
        Ok(Reads { name, gets, unreadable, forward, backward })
    }

    fn check(&self, expected: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<(), String> {
        let name = self.name;
        for (key, error) in &self.unreadable {
            check_error(error, "read")?;
            let damage = error.damage().ok_or("a read was refused without damage")?;
            if damage.partition.as_deref() != Some(name) {
                return Err(format!("{name}: the damage names another partition: {error}"));
            }
            if key.is_some() && damage.key != *key {
                return Err(format!("{name}: the damage does not name the key: {error}"));
            }
        }
        for (key, value) in &self.gets {
            if expected.get(key) != value.as_ref() {
                let key = key.escape_ascii();
                return Err(format!("{name}: get of {key} gave {value:?}"));
            }
        }
        let pairs = || expected.iter().map(|(key, value)| (key.clone(), value.clone()));
        check_scan(name, &self.forward, pairs().collect())?;
        check_scan(name, &self.backward, pairs().rev().collect())
    }
}

fn check_scan(
    name: &str,
    (seen, is_complete): &Scanned,
    expected: Vec<(Vec<u8>, Vec<u8>)>,
) -> Result<(), String> {
    let wanted =
        if *is_complete { &expected[..] } else { &expected[..seen.len().min(expected.len())] };
    if seen == wanted {
        return Ok(());
    }
    Err(format!("{name}: a scan saw {} entries of {}, or wrong ones", seen.len(), expected.len()))
}

/// Opens the damaged copy twice and reads everything.
fn examine(store: &Store, fs: &MemFs, loss: Loss) -> Result<Outcome, String> {
    let mut outcome = Outcome::Whole;
    for pass in 0..2 {
        let db = match open(fs, 99 + pass) {
            Ok(db) => db,
            Err(error) if pass == 0 => {
                return check_error(&error, "open").map(|()| Outcome::Refused);
            }
            Err(error) => return Err(format!("the second open was refused: {error:?}")),
        };
        if db.partition_names() != PARTITIONS {
            return Err(format!("partitions: {:?}", db.partition_names()));
        }
        let reads = PARTITIONS.iter().map(|name| Reads::of(&db, name));
        let reads = reads.collect::<Result<Vec<_>, _>>()?;
        let count = match reads[0].gets.get(&b"count"[..]) {
            None => store.last(),
            Some(None) => 0,
            Some(Some(count)) => {
                std::str::from_utf8(count).ok().and_then(|c| c.parse().ok()).ok_or("no count")?
            }
        };
        let least = match loss {
            Loss::Nothing => store.last(),
            Loss::Unattested => store.attested,
            Loss::Tail => 0,
        };
        let expected = store.history.get(count).filter(|_| count >= least);
        let expected = expected.ok_or_else(|| {
            format!("commit {count} is the last of {}, at least {least} are durable", store.last())
        })?;
        for reads in &reads {
            reads.check(&expected[reads.name])?;
        }
        if reads.iter().any(|reads| !reads.unreadable.is_empty()) {
            outcome = outcome.max(Outcome::Unreadable);
        }
        if count < store.last() {
            outcome = outcome.max(Outcome::Prefix);
        }
        db.close().map_err(|e| format!("close: {e}"))?;
    }
    Ok(outcome)
}

/// Counts outcomes and collects what was not allowed.
#[derive(Default)]
struct Tally {
    cases: BTreeMap<&'static str, BTreeMap<Outcome, u64>>,
    failures: Vec<String>,
}

impl Tally {
    /// Runs one case: `harm` damages a copy.
    fn case(
        &mut self,
        store: &Store,
        kind: &'static str,
        loss: Loss,
        what: impl Fn() -> String,
        harm: impl FnOnce(&MemFs) -> siltstone::Result<()>,
    ) -> Option<Outcome> {
        let fs = copy_of(&store.fs);
        harm(&fs).unwrap();
        let loss = if store.is_closed { Loss::Nothing } else { loss };
        let examined = catch_unwind(AssertUnwindSafe(|| examine(store, &fs, loss)));
        match examined.unwrap_or_else(|_| Err("panicked".to_owned())) {
            Ok(outcome) => {
                *self.cases.entry(kind).or_default().entry(outcome).or_default() += 1;
                Some(outcome)
            }
            Err(fault) => {
                self.failures.push(format!("{} store, {}: {fault}", store.name, what()));
                None
            }
        }
    }

    /// Prints the summary, and fails if a case did.
    #[track_caller]
    #[expect(clippy::print_stdout, reason = "the summary of a test")]
    fn finish(self, store: &Store) {
        let total: u64 = self.cases.values().flat_map(|outcomes| outcomes.values()).sum();
        println!(
            "{} store: {total} cases on {} files: {:?}",
            store.name,
            store.fs.paths().len(),
            self.cases
        );
        // One of each kind: the same failure at every byte adds no information.
        let mut sorts = BTreeMap::new();
        for failure in &self.failures {
            let sort = failure.replace(|c: char| c.is_ascii_hexdigit(), "");
            sorts.entry(sort).or_insert((0, failure)).0 += 1;
        }
        let shown: Vec<_> =
            sorts.values().map(|(n, first)| format!("{n} times: {first}")).collect();
        let shown = shown.join("\n");
        assert!(self.failures.is_empty(), "{} failures:\n{shown}", self.failures.len());
        assert!(total > 0);
    }
}
