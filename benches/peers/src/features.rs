//! One run of a part of the suite `features`: what an engine does beyond puts, gets and scans.
//!
//! A figure that is a ratio compares two ways of one engine, or two of its stores, in turns within one process. The
//! rows of the result have a figure, and whether more of it is better.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use testkit::Rng;
use testkit::bench::Ack;

use crate::cost::RunArgs;
use crate::engines::{Fault, Peer, Task};
use crate::machine::Spent;
use crate::report::median;
use crate::settings::{Features, Settings};

/// Turns of two measurements that are compared; the medians count.
const TURNS: u64 = 7;
const VALUE_BYTES: usize = 100;
/// Live ranges, and the keys of each.
const RANGES: u64 = 1_000;
const RANGE_KEYS: u64 = 10;
/// Counters that are read.
const COUNTERS: u64 = 1_000;
/// Keys of a `multi_get`.
const KEYS_AT_ONCE: u64 = 100;
/// The bytes of `user` and nine digits and a slash.
const PREFIX_BYTES: u16 = 14;

/// A feature, or several of one kind.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Part {
    DeleteRange,
    Ranges,
    Merge,
    MultiGet,
    Prefix,
    Backup,
    Fifo,
    Changes,
}

/// Arguments of `features`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: RunArgs,
    /// The part of the suite
    #[arg(long)]
    part: Part,
    /// Divide the numbers of records and calls by this, for tests
    #[arg(long, default_value_t = 1)]
    shrink: u64,
}

/// Runs what the arguments say and writes the result.
pub fn run(args: &Args) -> Result<(), Fault> {
    let config = json!({ "suite": "features", "shrink": args.shrink, "seed": args.common.seed });
    let name = format!("{:?}", args.part);
    args.common.run(&name, config, Measure(args))
}

struct Measure<'a>(&'a Args);

impl Task for Measure<'_> {
    type Outcome = Result<Value, Fault>;

    fn with<P: Peer>(self) -> Result<Value, Fault> {
        let Args { common, part, shrink } = self.0;
        let begun = Spent::now();
        let mut suite = Suite { folder: &common.dir, shrink: *shrink, rows: Vec::new() };
        match part {
            Part::DeleteRange => suite.delete_range::<P>(),
            Part::Ranges => suite.ranges::<P>(),
            Part::Merge => suite.merge::<P>(),
            Part::MultiGet => suite.multi_get::<P>(),
            Part::Prefix => suite.prefix::<P>(),
            Part::Backup => suite.back_up::<P>(),
            Part::Fifo => suite.fifo::<P>(),
            Part::Changes => suite.changes::<P>(),
        }?;
        let others = begun.and_then(|begun| begun.cores_of_others());
        Ok(json!({ "workloads": suite.rows, "total": { "cores_of_others": others } }))
    }
}

fn key(n: u64) -> Vec<u8> {
    [&b"records:"[..], &n.to_be_bytes()].concat()
}

/// Puts so many records in order.
fn fill<P: Peer>(engine: &P, records: u64, value_bytes: usize) -> Result<(), Fault> {
    let mut rng = Rng::new(records);
    let mut batch = Vec::new();
    for n in 0..records {
        batch.push((key(n), rng.bytes(value_bytes)));
        if batch.len() == 1_000 || n + 1 == records {
            engine.put_all(&batch, Ack::Os)?;
            batch.clear();
        }
    }
    Ok(())
}

fn ensure(is_right: bool, what: &'static str) -> Result<(), Fault> {
    if is_right { Ok(()) } else { Err(what.into()) }
}

fn has<T>(outcome: Option<T>) -> Result<T, Fault> {
    outcome.ok_or("the engine does not have this".into())
}

fn seconds(work: impl FnOnce() -> Result<(), Fault>) -> Result<f64, Fault> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

/// The seconds of two pieces of work, which are given the number of the turn, and how many times as long the second
/// takes.
fn compare(
    mut first: impl FnMut(u64) -> Result<(), Fault>,
    mut second: impl FnMut(u64) -> Result<(), Fault>,
) -> Result<[f64; 3], Fault> {
    let mut times = [const { Vec::new() }; 3];
    // The first turn warms up.
    for turn in 0..=TURNS {
        let pair = [seconds(|| first(turn))?, seconds(|| second(turn))?];
        if turn > 0 {
            times[0].push(pair[0]);
            times[1].push(pair[1]);
            times[2].push(pair[1] / pair[0]);
        }
    }
    Ok(times.map(|times| median(times).unwrap_or(f64::NAN)))
}

/// Makes the kernel drop the pages of the files of a store.
fn forget(folder: &Path) -> Result<(), Fault> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            forget(&path)?;
        } else {
            let file = std::fs::File::open(path)?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// The bytes that this process has read by calls of the system.
fn read_bytes() -> Result<u64, Fault> {
    let figures = std::fs::read_to_string("/proc/self/io")?;
    let line = figures.lines().find_map(|line| line.strip_prefix("rchar: "));
    Ok(line.ok_or("the kernel does not count what is read")?.trim().parse()?)
}

/// The end of a figure that is good.
enum Good {
    More,
    Less,
}

/// The stores and the figures of a run.
struct Suite<'a> {
    folder: &'a Path,
    shrink: u64,
    rows: Vec<Value>,
}

impl Suite<'_> {
    fn row(&mut self, name: &str, figure: f64, good: Good) {
        let good = match good {
            Good::More => "more",
            Good::Less => "less",
        };
        self.rows.push(json!({ "workload": name, "figure": figure, "good": good }));
    }

    fn open<P: Peer>(&self, name: &str, settings: &Settings) -> Result<P, Fault> {
        P::open(&self.folder.join(name), settings)
    }

    fn delete_range<P: Peer>(&mut self) -> Result<(), Fault> {
        let records = 10_000_000 / self.shrink;
        let settings = Settings::new(0);
        let empty: P = self.open("empty", &settings)?;
        let full: P = self.open("full", &settings)?;
        fill(&full, records, VALUE_BYTES)?;
        full.settle()?;
        // A new memtable.
        full.put(&key(0), b"", Ack::Os)?;
        let spent = seconds(|| has(full.delete_range(&key(0), &key(records))?))?;
        self.row("delete_range of 10 million keys, us (asked: 50)", spent * 1e6, Good::Less);
        for when in ["at once", "later"] {
            let [_, _, times] = compare(|_| scan_nothing(&empty), |_| scan_nothing(&full))?;
            let name = format!("scan {when}, times that of an empty store (asked: 1)");
            self.row(&name, times, Good::Less);
            full.settle()?;
        }
        Ok(())
    }

    fn ranges<P: Peer>(&mut self) -> Result<(), Fault> {
        let records = (1_000_000 / self.shrink).max(RANGES * RANGE_KEYS * 2);
        let step = records / RANGES;
        let without: P = self.open("without", &Settings::new(0))?;
        let with: P = self.open("with", &Settings::new(0))?;
        for engine in [&without, &with] {
            fill(engine, records, VALUE_BYTES)?;
            engine.settle()?;
        }
        for range in 0..RANGES {
            let first = range * step;
            has(with.delete_range(&key(first), &key(first + RANGE_KEYS))?)?;
        }
        let gets = 200_000 / self.shrink;
        for place in ["in memory", "in tables"] {
            let [ranges, _, without_over_with] = compare(
                |turn| get_after_ranges(&with, turn, gets, step),
                |turn| get_after_ranges(&without, turn, gets, step),
            )?;
            self.row(
                &format!("gets a second, 1,000 ranges {place}"),
                gets as f64 / ranges,
                Good::More,
            );
            let name = format!("gets, 1,000 ranges {place} / no ranges (asked: 0.9)");
            self.row(&name, without_over_with, Good::More);
            has(with.flush()?)?;
        }
        Ok(())
    }

    fn merge<P: Peer>(&mut self) -> Result<(), Fault> {
        let features = Features { counters: true, ..Features::default() };
        let engine: P = self.open("counters", &Settings { features, ..Settings::new(0) })?;
        for counter in ["merged", "updated"] {
            engine.put(counter.as_bytes(), &[0; 8], Ack::Os)?;
        }
        let calls = 50_000 / self.shrink;
        let [merges, _, times] = compare(
            |_| (0..calls).try_for_each(|_| has(engine.merge(b"merged")?)),
            |_| (0..calls).try_for_each(|_| has(engine.update(b"updated")?)),
        )?;
        self.row("increments a second by merge", calls as f64 / merges, Good::More);
        self.row("increments, merge / read and write (asked: 3)", times, Good::More);

        // Counters between plain keys: a single key may lie well or badly in its block.
        for n in 0..COUNTERS {
            engine.put(&key(2 * n), &[0; 8], Ack::Os)?;
            (0..3).try_for_each(|_| has(engine.merge(&key(2 * n + 1))?))?;
        }
        engine.settle()?;
        let gets = 4 * calls;
        let [_, _, share] =
            compare(|_| get_counters(&engine, 1, gets), |_| get_counters(&engine, 0, gets))?;
        self.row("gets, folded counter / plain key (asked: 0.83)", share, Good::More);
        Ok(())
    }

    fn multi_get<P: Peer>(&mut self) -> Result<(), Fault> {
        for (place, records, calls, cache_bytes, asked) in
            [("cache", 1_000_000, 2_000, 256 << 20, 1.3), ("device", 4_000_000, 100, 8 << 20, 3.0)]
        {
            let records = records / self.shrink;
            let engine: P = self.open(place, &Settings { cache_bytes, ..Settings::new(0) })?;
            fill(&engine, records, VALUE_BYTES)?;
            engine.settle()?;
            let calls = calls / self.shrink.min(10);
            let folder = self.folder.join(place);
            let dropped = (place == "device").then_some(&*folder);
            let keys = KeysAtOnce { records, calls, dropped };
            let [at_once, _, times] = compare(
                |turn| keys.read(turn, |keys| engine.multi_get(keys)),
                |turn| keys.read(turn, |keys| get_each(&engine, keys)),
            )?;
            let rate = (calls * KEYS_AT_ONCE) as f64 / at_once;
            self.row(
                &format!("multi_get of 100 keys from the {place}, keys a second"),
                rate,
                Good::More,
            );
            let name = format!("multi_get / gets, from the {place} (asked: {asked})");
            self.row(&name, times, Good::More);
        }
        Ok(())
    }

    fn prefix<P: Peer>(&mut self) -> Result<(), Fault> {
        let users = 50_000 / self.shrink;
        let mut engines = Vec::new();
        for (name, prefix_bytes) in [("with", Some(PREFIX_BYTES)), ("without", None)] {
            // So small that all seven levels have tables.
            let level_base_bytes = Some(users * 400 / 250 + 1024);
            let features = Features { prefix_bytes, level_base_bytes, ..Features::default() };
            let settings = Settings { write_buffer_bytes: 256 << 10, features, ..Settings::new(0) };
            engines.push(self.open::<P>(name, &settings)?);
            fill_users(&engines[engines.len() - 1], users)?;
        }
        let scans = 20_000 / self.shrink;
        let [with, _, times] = compare(
            |turn| scan_missing(&engines[0], turn, scans, users),
            |turn| scan_missing(&engines[1], turn, scans, users),
        )?;
        let found = has(engines[0].count_prefix(user(2).as_bytes())?)?;
        ensure(found >= 4, "an entry with the prefix is missing")?;
        self.row(
            "scans of a missing prefix a second, seven levels",
            scans as f64 / with,
            Good::More,
        );
        self.row("the same, with / without prefix filter (asked: 5)", times, Good::More);
        Ok(())
    }

    fn back_up<P: Peer>(&mut self) -> Result<(), Fault> {
        const VALUE_BYTES: usize = 1_000;
        let records = 500_000 / self.shrink;
        let engine: P = self.open("store", &Settings::new(0))?;
        fill(&engine, records, VALUE_BYTES)?;
        engine.settle()?;
        let backups = self.folder.join("backups");
        let first = seconds(|| has(engine.back_up(&backups)?))?;
        let mut rng = Rng::new(1);
        for _ in 0..records / 100 {
            engine.put(&key(rng.below(records)), &rng.bytes(VALUE_BYTES), Ack::Os)?;
        }
        let before = read_bytes()?;
        let second = seconds(|| has(engine.back_up(&backups)?))?;
        let read = read_bytes()? - before;
        let store_bytes = records as f64 * VALUE_BYTES as f64;
        self.row("first backup, MB a second", store_bytes / 1e6 / first, Good::More);
        self.row("backup after 1 % has changed, seconds", second, Good::Less);
        let name = "the same, bytes read, % of the store (asked: 1)";
        self.row(name, read as f64 * 100.0 / store_bytes, Good::Less);
        Ok(())
    }

    fn fifo<P: Peer>(&mut self) -> Result<(), Fault> {
        let features =
            Features { fifo_bytes: Some((256 << 20) / self.shrink), ..Features::default() };
        let engine: P = self.open("fifo", &Settings { features, ..Settings::new(0) })?;
        let records = 4_000_000 / self.shrink;
        let mut rng = Rng::new(1);
        let value = rng.bytes(VALUE_BYTES);
        let spent =
            seconds(|| (0..records).try_for_each(|n| engine.put(&key(n), &value, Ack::Os)))?;
        self.row("puts a second into a FIFO of 256 MiB", records as f64 / spent, Good::More);
        Ok(())
    }

    fn changes<P: Peer>(&mut self) -> Result<(), Fault> {
        let features = Features { keeps_log: true, ..Features::default() };
        let engine: P = self.open("followed", &Settings { features, ..Settings::new(0) })?;
        let records = 1_000_000 / self.shrink;
        let value = Rng::new(1).bytes(VALUE_BYTES);
        (0..records).try_for_each(|n| engine.put(&key(n), &value, Ack::Os))?;
        // Followers see what is durable.
        engine.put(&key(records), &value, Ack::Sync)?;
        let mut rates = Vec::new();
        for _ in 0..=TURNS {
            let mut seen = 0;
            let spent = seconds(|| {
                has(engine
                    .follow(&mut |key, value| seen += (key.len() + value.len()) as u64 / 116)?)
            })?;
            ensure(seen == records + 1, "a change is missing")?;
            rates.push(seen as f64 / spent);
        }
        self.row("changes followed a second", median(rates).unwrap_or(f64::NAN), Good::More);
        Ok(())
    }
}

fn scan_nothing<P: Peer>(engine: &P) -> Result<(), Fault> {
    (0..20).try_for_each(|_| ensure(engine.count()? == 0, "an entry is left"))
}

/// Reads keys that come after the range of their step.
fn get_after_ranges<P: Peer>(engine: &P, turn: u64, gets: u64, step: u64) -> Result<(), Fault> {
    let mut rng = Rng::new(turn);
    (0..gets).try_for_each(|_| {
        let n = rng.below(RANGES) * step + rng.range(RANGE_KEYS..step);
        ensure(engine.get(&key(n))?.is_some(), "a key is missing")
    })
}

/// Reads the folded counters, which are the odd keys, or the plain ones between them.
fn get_counters<P: Peer>(engine: &P, odd: u64, gets: u64) -> Result<(), Fault> {
    (0..gets).try_for_each(|n| {
        let found = engine.get(&key(2 * (n * 7_919 % COUNTERS) + odd))?;
        ensure(found == Some(8), "a counter is missing")
    })
}

/// Reads of many random keys at once.
struct KeysAtOnce<'a> {
    records: u64,
    calls: u64,
    /// The folder whose pages the kernel drops before: its time is counted on both sides, and is small.
    dropped: Option<&'a Path>,
}

impl KeysAtOnce<'_> {
    fn read(
        &self,
        turn: u64,
        get: impl Fn(&[Vec<u8>]) -> Result<usize, Fault>,
    ) -> Result<(), Fault> {
        self.dropped.map_or(Ok(()), forget)?;
        let mut rng = Rng::new(turn);
        (0..self.calls).try_for_each(|_| {
            let keys: Vec<_> = (0..KEYS_AT_ONCE).map(|_| key(rng.below(self.records))).collect();
            ensure(get(&keys)? == keys.len(), "a key is missing")
        })
    }
}

/// Scans prefixes of users without entries: every other one.
fn scan_missing<P: Peer>(engine: &P, turn: u64, scans: u64, users: u64) -> Result<(), Fault> {
    (0..scans).try_for_each(|n| {
        let missing = user(2 * ((n + turn) * 104_729 % users) + 1);
        ensure(has(engine.count_prefix(missing.as_bytes())?)? == 0, "an entry has the prefix")
    })
}

fn get_each<P: Peer>(engine: &P, keys: &[Vec<u8>]) -> Result<usize, Fault> {
    let mut found = 0;
    for key in keys {
        found += usize::from(engine.get(key)?.is_some());
    }
    Ok(found)
}

fn user(n: u64) -> String {
    format!("user{n:09}/")
}

/// Four entries for every other user, and a table of the first level over all of them.
fn fill_users<P: Peer>(engine: &P, users: u64) -> Result<(), Fault> {
    let value = [b'm'; 80];
    for n in 0..users {
        // In order, a number is followed by one that lies far away.
        let user = user(2 * (n * 7_919 % users));
        for mail in 0..4 {
            engine.put(format!("{user}{mail:04}").as_bytes(), &value, Ack::Os)?;
        }
    }
    has(engine.flush()?)?;
    for n in (0..users).step_by(16) {
        engine.put(format!("{}9999", user(2 * n)).as_bytes(), &value, Ack::Os)?;
    }
    has(engine.flush()?)
}

#[cfg(test)]
mod tests;
