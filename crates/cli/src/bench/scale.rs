//! `bench scale`: the cost of one partition, snapshot or table among many others.
//!
//! Each part has a database of its own. A line gives the time and the processor time of the whole
//! process per operation, so background work counts.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use siltstone::{Compression, Db, Options, Partition, PartitionOptions};
use testkit::Rng;
use testkit::bench::measure::{Memory, Usage};

use super::folder::{Folder, PARTITION, parse_bytes};
use crate::output::{Failure, Output};

/// Operations of a measurement whose operations are fast.
const OPS: u64 = 1000;
/// Operations that each sync the device.
const SYNCED_OPS: u64 = 20;
/// Bytes of the values in the tables.
const VALUE_BYTES: usize = 80;
/// Entries of a table, with keys of 14 bytes.
const ENTRIES_PER_TABLE: u64 = 180;
/// Bytes of a table.
const TABLE_BYTES: u64 = 16 << 10;

/// Arguments of `bench scale`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of partitions, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1000,8192,65400")]
    partitions: Vec<u64>,
    /// Snapshots that are held at once
    #[arg(long, default_value_t = 1_000_000)]
    snapshots: u64,
    /// Tables of one partition
    #[arg(long, default_value_t = 10_000)]
    tables: u64,
    /// Block cache for the tables, such as 64MiB
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes)]
    cache: u64,
    /// Folder for the databases [default: a new one in the temporary folder of the system, which is
    /// removed at the end]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Measures and prints one line after the other.
struct Meter {
    out: Output,
    /// The number and the name of the other things that exist during the measurement.
    beside: String,
}

impl Meter {
    /// Runs `work`, which does `ops` operations, and prints what one of them cost.
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn run<T>(
        &mut self,
        what: &str,
        ops: u64,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let usage = Usage::now(None);
        let start = Instant::now();
        let done = work()?;
        let elapsed_us = start.elapsed().as_secs_f64() * 1e6 / ops as f64;
        let cpu_us = Usage::now(None).since(&usage).cpu.as_secs_f64() * 1e6 / ops as f64;
        let beside = &self.beside;
        self.out.line(
            format_args!("{beside:<20} {what:<40} {elapsed_us:>14.2} us {cpu_us:>14.2} us cpu"),
            &json!({ "beside": beside, "what": what, "ops": ops, "us": elapsed_us, "cpu_us": cpu_us }),
        )?;
        self.out.flush()?;
        Ok(done)
    }

    /// Prints the memory of the process.
    fn memory(&mut self, what: &str) -> Result<(), Failure> {
        let bytes = Memory::now().resident_bytes;
        let beside = &self.beside;
        let mebibytes = bytes.unwrap_or(0) as f64 / f64::from(1 << 20);
        self.out.line(
            format_args!("{beside:<20} {what:<40} {mebibytes:>14.1} MiB"),
            &json!({ "beside": beside, "what": what, "resident_bytes": bytes }),
        )
    }
}

/// Measures and reports.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let folder = Folder::new(args.dir.as_deref())?;
    let mut meter = Meter { out: Output::new(args.json), beside: String::new() };
    for &count in &args.partitions {
        meter.beside = format!("{count} partitions");
        partitions(&mut meter, &folder.path().join(format!("partitions-{count}")), count)?;
    }
    meter.beside = format!("{} snapshots", args.snapshots);
    snapshots(&mut meter, &folder.path().join("snapshots"), args.snapshots)?;
    meter.beside = format!("{} tables", args.tables);
    tables(&mut meter, &folder.path().join("tables"), args)?;
    meter.out.finish()?;
    folder.end()
}

fn name(number: u64) -> String {
    format!("partition {number}")
}

fn create(db: &Db, numbers: std::ops::Range<u64>) -> Result<Vec<Partition>, Failure> {
    numbers.map(|number| Ok(db.partition(&name(number))?)).collect()
}

/// Creates `count` partitions, and measures the last of them and the database that has them all.
fn partitions(meter: &mut Meter, path: &Path, count: u64) -> Result<(), Failure> {
    let db = Db::open(path)?;
    let measured = OPS.min(count);
    let mut all = create(&db, 0..count - measured)?;
    all.extend(meter.run("create one more", measured, || create(&db, count - measured..count))?);
    meter.memory("memory, all empty")?;
    for partition in &all {
        partition.put("key", [7; 8])?;
    }
    meter.memory("memory, all with one entry")?;
    db.close()?;
    drop(all);

    let db = meter.run("open after a write to each", 1, || Ok(Db::open(path)?))?;
    let one = db.partition(&name(count / 2))?;
    meter.run("commit", OPS, || {
        for number in 0..OPS {
            one.put(number.to_be_bytes(), [7; 8])?;
        }
        Ok(())
    })?;
    meter.run("put and flush of one", SYNCED_OPS, || {
        for number in 0..SYNCED_OPS {
            one.put(number.to_be_bytes(), [8; 8])?;
            one.flush()?;
        }
        Ok(())
    })?;
    db.wait_idle()?;
    meter.run("Partition::stats", OPS, || {
        for _ in 0..OPS {
            std::hint::black_box(one.stats());
        }
        Ok(())
    })?;
    meter.run("Db::stats", 1, || {
        std::hint::black_box(db.stats());
        Ok(())
    })?;
    db.flush()?;
    db.close()?;
    drop(one);
    let db = meter.run("open with an empty log", 1, || Ok(Db::open(path)?))?;
    Ok(db.close()?)
}

/// Holds `count` snapshots at different sequence numbers.
fn snapshots(meter: &mut Meter, path: &Path, count: u64) -> Result<(), Failure> {
    let db = Db::open(path)?;
    let partition = db.partition(PARTITION)?;
    let mut held = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    meter.memory("memory before")?;
    meter.run("a put and a snapshot", count, || {
        for number in 0..count {
            partition.put("key", number.to_be_bytes())?;
            held.push(db.snapshot());
        }
        Ok(())
    })?;
    meter.memory("memory, all held")?;
    meter.run("take and release one among them", OPS, || {
        for _ in 0..OPS {
            drop(db.snapshot());
        }
        Ok(())
    })?;
    meter.run("release each", count, || {
        held.clear();
        Ok(())
    })?;
    let oldest = db.snapshot();
    meter.run("put, take and release while one is held", count, || {
        for number in 0..count {
            partition.put("key", number.to_be_bytes())?;
            drop(db.snapshot());
        }
        Ok(())
    })?;
    drop(oldest);
    Ok(db.close()?)
}

fn key(number: u64) -> String {
    format!("key {number:010}")
}

/// Runs and prints `ops` gets of the keys that `next` chooses.
fn gets(
    meter: &mut Meter,
    what: &str,
    partition: &Partition,
    ops: u64,
    mut next: impl FnMut(u64) -> u64,
) -> Result<(), Failure> {
    meter.run(what, ops, || {
        for number in 0..ops {
            std::hint::black_box(partition.get(key(next(number)))?);
        }
        Ok(())
    })
}

/// Reads a partition of many tables.
fn tables(meter: &mut Meter, path: &Path, args: &Args) -> Result<(), Failure> {
    let engine = Options::new().cache_bytes(args.cache);
    let options = PartitionOptions::new().table_bytes(TABLE_BYTES).compression(Compression::None);
    let entries = args.tables * ENTRIES_PER_TABLE;
    let db = Db::builder(path).options(engine.clone()).open()?;
    let partition = db.partition_with(PARTITION, options)?;
    let mut rng = Rng::new(1);
    meter.run("load sorted, per entry", entries, || {
        partition.bulk_load((0..entries).map(|number| (key(number), rng.bytes(VALUE_BYTES))))?;
        Ok(())
    })?;
    db.close()?;
    drop(partition);

    meter.memory("memory before")?;
    let db = meter.run("open", 1, || Ok(Db::builder(path).options(engine).open()?))?;
    meter.memory("memory after the open")?;
    let partition = db.partition(PARTITION)?;
    let stats = partition.stats();
    let count: u64 = stats.levels.iter().map(|level| level.table_count).sum();
    meter.beside = format!("{count} tables");
    gets(meter, "first get of each table", &partition, args.tables, |number| {
        number * ENTRIES_PER_TABLE
    })?;
    gets(meter, "get at random", &partition, entries, |_| rng.below(entries))?;
    gets(meter, "get of 1,000 keys again and again", &partition, entries, |number| {
        number % 1000 * 97 % entries
    })?;
    gets(meter, "get of a missing key", &partition, entries, |number| entries + number)?;
    meter.memory("memory after the gets")?;
    meter.run("scan of 100 entries at random", OPS, || {
        for _ in 0..OPS {
            for entry in partition.range(key(rng.below(entries))..).take(100) {
                std::hint::black_box(entry?);
            }
        }
        Ok(())
    })?;
    Ok(db.close()?)
}
