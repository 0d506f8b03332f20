//! Damage of every kind to every file of a small store, and what a user then sees.
//!
//! Each case copies the store, harms one thing, and opens it twice. What is allowed: the complete
//! right data; `Corruption` or `Unsupported` that names a file, at open or at a read; and, only
//! for the last frames of a log that was not closed, an earlier prefix of the commit order. What
//! is not: wrong data, a key that is silently missing, a panic.
//!
//! Every single bit of every file is flipped.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, Fs, MemFs};
use lsm_core::internals::names::{FileKind, FileName};
use lsm_core::internals::version::recover;
use siltstone::{
    BackgroundMode, Compression, Db, Error, ErrorKind, Options, Partition, PartitionOptions,
};
use testkit::Rng;

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

fn open(fs: &MemFs, seed: u64) -> siltstone::Result<Db> {
    let mut rng = Rng::new(seed);
    Db::builder(DIR)
        .fs(Arc::new(fs.clone()))
        .options(options())
        .background(BackgroundMode::Stepped)
        .random(move || rng.next_u64())
        .open()
}

fn copy_of(fs: &MemFs) -> MemFs {
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number:03}").into_bytes()
}

/// A store at rest and everything that was ever committed to it.
struct Store {
    name: &'static str,
    fs: MemFs,
    /// The content after each commit; the first is empty.
    history: Vec<Content>,
    /// The commits up to here are attested as durable by at least two later frames.
    attested: usize,
    is_closed: bool,
    /// The folder as it was at earlier moments.
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

    /// Commits `count` batches over all partitions. Each counts itself in `default`, which tells
    /// what prefix a recovered store is.
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
    /// All data, as if nothing had happened.
    Whole,
    /// `open` said what is damaged.
    Refused,
    /// Some reads said what is damaged; all others were right.
    Unreadable,
    /// The log ended before its last commits.
    Prefix,
}

/// The effect that a case may have on the commits at the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Nothing,
    /// Those that no later frame attests.
    Unattested,
    /// Any: bytes that are gone from the log's end attest nothing.
    Tail,
}

/// An error must be of the kinds that tell of damage, and say where.
fn check_error(error: &Error, at: &str) -> Result<(), String> {
    let named = match error.kind() {
        ErrorKind::Corruption => error.damage().is_some_and(|d| d.file.starts_with(DIR)),
        ErrorKind::Unsupported => error.to_string().contains(DIR),
        _ => false,
    };
    if named { Ok(()) } else { Err(format!("{at}: {error:?}")) }
}

/// Keys and values in the order of a scan, and whether it came to its end.
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

/// Opens the harmed copy twice and reads everything.
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

/// Counts outcomes and gathers what was not allowed.
#[derive(Default)]
struct Tally {
    cases: BTreeMap<&'static str, BTreeMap<Outcome, u64>>,
    failures: Vec<String>,
}

impl Tally {
    /// One case: `harm` damages a copy.
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
        // One of each sort: the same failure at every byte tells nothing more.
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

fn loss_at(path: &Path, loss: Loss) -> Loss {
    if Store::kind(path) == Some(FileKind::Wal) { loss } else { Loss::Nothing }
}

fn flip_bits(store: &Store) {
    let mut tally = Tally::default();
    for path in store.fs.paths() {
        let len = store.fs.read_raw(&path).unwrap().len();
        for at in 0..len {
            for bit in 0..8 {
                let loss = loss_at(&path, Loss::Unattested);
                tally.case(
                    store,
                    "flips",
                    loss,
                    || format!("bit {bit} of byte {at} of {} flipped", path.display()),
                    |fs| fs.corrupt(&path, at as u64, 1 << bit),
                );
            }
        }
    }
    tally.finish(store);
}

#[test]
fn no_flipped_bit_of_a_closed_store_passes() {
    flip_bits(&build("closed", 1, true));
}

#[test]
fn no_flipped_bit_of_a_crashed_store_passes() {
    flip_bits(&build("crashed", 1, false));
}

/// Lengths to which files are cut: all of them, in the zeros behind a log every 64th.
fn lengths(bytes: &[u8]) -> Vec<u64> {
    let content = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    (0..bytes.len()).filter(|at| *at <= content + 8 || at % 64 == 0).map(|at| at as u64).collect()
}

fn cut_and_extend(store: &Store) {
    let mut tally = Tally::default();
    for path in store.fs.paths() {
        let bytes = store.fs.read_raw(&path).unwrap();
        let name = path.display();
        for len in lengths(&bytes) {
            let loss = loss_at(&path, Loss::Tail);
            tally.case(
                store,
                "cuts",
                loss,
                || format!("{name} cut to {len} bytes"),
                |fs| fs.truncate_raw(&path, len),
            );
        }
        let mut rng = Rng::new(5);
        for count in [1, 7, 8, 24, 512, 4096] {
            let zeros = bytes.len() as u64 + count;
            tally.case(
                store,
                "zeros",
                Loss::Nothing,
                || format!("{name} extended by {count} zeros"),
                |fs| fs.truncate_raw(&path, zeros),
            );
            let garbage = (0..count).map(|_| rng.next_u64() as u8);
            let bytes: Vec<u8> = bytes.iter().copied().chain(garbage).collect();
            tally.case(
                store,
                "garbage",
                Loss::Nothing,
                || format!("{name} extended by {count} bytes of garbage"),
                |fs| fs.write_raw(&path, &bytes),
            );
        }
    }
    tally.finish(store);
}

#[test]
fn no_cut_or_extended_file_of_a_closed_store_passes() {
    cut_and_extend(&build("closed", 2, true));
}

#[test]
fn no_cut_or_extended_file_of_a_crashed_store_passes() {
    cut_and_extend(&build("crashed", 2, false));
}

fn overwrite(store: &Store) {
    const SECTOR: usize = 512;
    let mut tally = Tally::default();
    for path in store.fs.paths() {
        let bytes = store.fs.read_raw(&path).unwrap();
        let name = path.display();
        for (at, &byte) in bytes.iter().enumerate() {
            let set = if at % 2 == 0 { 0 } else { 0xff };
            if byte == set || (byte == 0 && at % 16 != 1) {
                continue;
            }
            let mask = byte ^ set;
            let loss = loss_at(&path, Loss::Unattested);
            tally.case(
                store,
                "bytes",
                loss,
                || format!("byte {at} of {name} set to {set:#x}"),
                |fs| fs.corrupt(&path, at as u64, mask),
            );
        }
        let sectors: Vec<usize> = (0..bytes.len()).step_by(SECTOR).collect();
        let end = |at: usize| (at + SECTOR).min(bytes.len());
        for (number, &at) in sectors.iter().enumerate() {
            let mut zeroed = bytes.clone();
            zeroed[at..end(at)].fill(0);
            let loss = loss_at(&path, Loss::Tail);
            tally.case(
                store,
                "zeroed",
                loss,
                || format!("sector {at} of {name} zeroed"),
                |fs| fs.write_raw(&path, &zeroed),
            );
            for &other in &sectors[number + 1..] {
                let len = (end(at) - at).min(end(other) - other);
                let mut swapped = bytes.clone();
                let (left, right) = swapped.split_at_mut(other);
                left[at..at + len].swap_with_slice(&mut right[..len]);
                tally.case(
                    store,
                    "sector swaps",
                    loss,
                    || format!("sectors {at} and {other} of {name} swapped"),
                    |fs| fs.write_raw(&path, &swapped),
                );
            }
        }
    }
    tally.finish(store);
}

#[test]
fn no_overwritten_byte_or_sector_of_a_closed_store_passes() {
    overwrite(&build("closed", 3, true));
}

#[test]
fn no_overwritten_byte_or_sector_of_a_crashed_store_passes() {
    overwrite(&build("crashed", 3, false));
}

fn mix_up_files(store: &Store, twin: &Store) {
    let mut tally = Tally::default();
    for kind in [FileKind::Sst, FileKind::Wal, FileKind::Manifest] {
        let files = store.files(kind);
        for (number, path) in files.iter().enumerate() {
            let name = path.display();
            let bytes = store.fs.read_raw(path).unwrap();
            let outcome = tally.case(
                store,
                "missing",
                Loss::Nothing,
                || format!("{name} missing"),
                |fs| fs.remove_raw(path),
            );
            assert_ne!(outcome, Some(Outcome::Whole), "{name} is not needed");
            for other in &files[number + 1..] {
                let others = store.fs.read_raw(other).unwrap();
                tally.case(
                    store,
                    "file swaps",
                    Loss::Nothing,
                    || format!("{name} and {} swapped", other.display()),
                    |fs| {
                        fs.write_raw(path, &others)?;
                        fs.write_raw(other, &bytes)
                    },
                );
            }
            for (age, past) in store.past.iter().enumerate() {
                let Ok(stale) = past.read_raw(path) else { continue };
                let loss = loss_at(path, Loss::Tail);
                tally.case(
                    store,
                    "stale",
                    loss,
                    || format!("{name} as it was at moment {age}"),
                    |fs| fs.write_raw(path, &stale),
                );
            }
            for other in twin.files(kind) {
                let foreign = twin.fs.read_raw(&other).unwrap();
                // A reserve is nothing but zeros, whose ever it is.
                let is_zeros = foreign.iter().all(|byte| *byte == 0);
                let loss = if is_zeros { loss_at(path, Loss::Tail) } else { Loss::Nothing };
                tally.case(
                    store,
                    "foreign",
                    loss,
                    || format!("{name} replaced by {} of a twin", other.display()),
                    |fs| fs.write_raw(path, &foreign),
                );
            }
        }
    }
    for (path, age) in store
        .past
        .iter()
        .enumerate()
        .flat_map(|(age, past)| past.paths().into_iter().map(move |path| (path, age)))
    {
        if store.fs.read_raw(&path).is_err() {
            let bytes = store.past[age].read_raw(&path).unwrap();
            tally.case(
                store,
                "back",
                Loss::Nothing,
                || format!("{} of moment {age} is back", path.display()),
                |fs| fs.write_raw(&path, &bytes),
            );
        }
    }
    for path in twin.fs.paths() {
        if store.fs.read_raw(&path).is_err() {
            let bytes = twin.fs.read_raw(&path).unwrap();
            tally.case(
                store,
                "besides",
                Loss::Nothing,
                || format!("{} of a twin besides", path.display()),
                |fs| fs.write_raw(&path, &bytes),
            );
        }
    }
    tally.finish(store);
}

#[test]
fn no_missing_stale_or_foreign_file_of_a_closed_store_passes() {
    mix_up_files(&build("closed", 4, true), &build("twin", 5, true));
    mix_up_files(&build("closed", 4, true), &build("older twin", 5, false));
}

#[test]
fn no_missing_stale_or_foreign_file_of_a_crashed_store_passes() {
    mix_up_files(&build("crashed", 4, false), &build("twin", 5, false));
}

#[test]
fn foreign_files_in_the_folder_do_not_matter_and_stay() {
    let store = build("closed", 6, true);
    let names = [
        ".DS_Store",
        "notes.txt",
        "LOCK2",
        "0000.sst",
        "0000000000000001-00000001.SST",
        "0000000000000001-00000001.sst.bak",
        "notes.manifest.tmp",
        "backup/0000000000000001-00000001.sst",
    ];
    let mut tally = Tally::default();
    for name in names {
        let fs = copy_of(&store.fs);
        let path = Path::new(DIR).join(name);
        let put = |fs: &MemFs| {
            fs.create_dir(path.parent().unwrap())?;
            fs.write_raw(&path, b"not ours")
        };
        let outcome =
            tally.case(&store, "besides", Loss::Nothing, || format!("{name} besides"), put);
        assert!(outcome.is_none_or(|outcome| outcome == Outcome::Whole), "{name}: {outcome:?}");
        put(&fs).unwrap();
        open(&fs, 1).unwrap().close().unwrap();
        assert_eq!(fs.read_raw(&path).unwrap(), b"not ours", "{name}");
    }
    tally.finish(&store);
}

/// The user keys that a table may hold, and its partition's name.
struct Extent {
    partition: String,
    path: PathBuf,
    keys: std::ops::RangeInclusive<Vec<u8>>,
}

fn tables(fs: &MemFs) -> Vec<Extent> {
    let names = fs.list(Path::new(DIR), "").unwrap();
    let names: Vec<_> = names.iter().filter_map(|entry| FileName::parse(&entry.name)).collect();
    let version = recover(fs, Path::new(DIR), &names).unwrap().unwrap().version;
    let mut tables = Vec::new();
    for partition in version.partitions.values() {
        tables.extend(partition.tables().map(|(_, table)| {
            let meta = &table.meta;
            let name = FileName::new(FileKind::Sst, meta.file, meta.epoch);
            Extent {
                partition: partition.name.to_string(),
                path: name.path(Path::new(DIR)),
                keys: meta.smallest.user.to_vec()..=meta.largest.user.to_vec(),
            }
        }));
    }
    tables
}

#[test]
fn a_damaged_table_hides_no_key_outside_it() {
    let store = build("closed", 7, true);
    let content = &store.history[store.last()];
    let tables = tables(&store.fs);
    assert!(tables.len() >= 8, "{} tables", tables.len());
    for table in &tables {
        let fs = copy_of(&store.fs);
        fs.remove_raw(&table.path).unwrap();
        let db = open(&fs, 1).unwrap();
        for name in PARTITIONS {
            let partition = db.partition(name).unwrap();
            for (key, value) in &content[name] {
                match partition.get(key) {
                    Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
                    Err(error) => {
                        assert_eq!(name, table.partition, "{error}");
                        assert!(table.keys.contains(key), "{error}");
                        assert_eq!(error.damage().unwrap().file, table.path);
                    }
                }
            }
            let is_other = name != table.partition;
            let pairs = partition.iter().flatten().count();
            assert!(!is_other || pairs == content[name].len());
        }
        // A new value for a key of the lost table can be written and read.
        let partition = db.partition(&table.partition).unwrap();
        partition.put(table.keys.start(), "new").unwrap();
        assert_eq!(partition.get(table.keys.start()).unwrap().as_deref(), Some(&b"new"[..]));
    }
}

/// Every key reads right, or names the damaged table.
fn check_readable(db: &Db, content: &Content, damaged: &Path) {
    for name in PARTITIONS {
        let partition = db.partition(name).unwrap();
        for (key, value) in &content[name] {
            match partition.get(key) {
                Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
                Err(error) => assert_eq!(error.damage().unwrap().file, damaged, "{error}"),
            }
        }
    }
}

#[test]
fn compaction_keeps_the_good_data_names_the_bad_table_and_rests() {
    let store = build("closed", 8, true);
    let tables = tables(&store.fs);
    let mut named = 0;
    for table in tables.iter().filter(|table| table.partition != "default") {
        let fs = copy_of(&store.fs);
        // A data block: the table opens, and the merge fails in its middle.
        fs.corrupt(&table.path, 20, 0x10).unwrap();
        let db = open(&fs, 1).unwrap();
        let mut content = store.history[store.last()].clone();
        let partition = db.partition(&table.partition).unwrap();
        for number in 0..KEYS {
            let value = format!("new {number}");
            partition.put(key(number), &value).unwrap();
            let content = content.get_mut(partition.name()).unwrap();
            content.insert(key(number), value.into_bytes());
            if number % 11 == 0 {
                db.flush().unwrap();
            }
        }
        let mut steps = 0;
        while db.step().unwrap() {
            steps += 1;
            assert!(steps < 1000, "background work never ends");
        }
        let refused = partition.compact(..);
        let _ = db.wait_idle();
        let stats = db.stats();
        if let Err(error) = refused {
            assert_eq!(error.damage().unwrap().file, table.path, "{error}");
            assert_eq!(error.damage().unwrap().partition.as_ref(), Some(&table.partition));
            let said = stats.background_error.expect("the damage is told");
            assert!(said.contains(table.path.to_str().unwrap()), "{said}");
            assert!(said.contains(&table.partition), "{said}");
            named += 1;
        }
        // At rest: further steps run no job, and nothing is written.
        let done = db.stats();
        for _ in 0..10 {
            db.step().unwrap();
        }
        let after = db.stats();
        assert_eq!(done.compaction_count, after.compaction_count);
        assert_eq!(done.compaction_read_bytes, after.compaction_read_bytes);
        check_readable(&db, &content, &table.path);
        db.close().unwrap();
        check_readable(&open(&fs, 2).unwrap(), &content, &table.path);
    }
    assert!(named > 0, "no compaction met the damage");
}
