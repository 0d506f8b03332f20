//! One run: one engine, a new database, workloads one after another, everything it cost as JSON.
//!
//! Unless `--no-settle` is given, everything is flushed and compacted before each workload that reads what
//! others wrote, and at the end: then every engine reads from tables in order, and none hides
//! work that it put off. The time of it is counted in the totals and not in the workloads.

use std::num::{NonZeroU16, NonZeroU64};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::bench::measure::{Usage, disk_bytes};
use testkit::bench::{Bench, Kind, Plan, Ack};

use crate::cost::{Begun, RunArgs};
use crate::engines::{Fault, Peer, Task};
use crate::settings::Settings;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: RunArgs,
    /// Workloads in order, separated by commas
    #[arg(long, required = true, value_delimiter = ',')]
    workloads: Vec<Kind>,
    /// Records of the data set
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Operations of each workload that is not a fill [default: the records]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Seconds after which a workload that is not a fill ends, even if operations are left
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Run a thread next to each workload that only looks at the clock, and report its longest pause
    #[arg(long)]
    idle_loop: bool,
    /// Bytes of a key
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(8..))]
    key_size: u16,
    /// Bytes of a value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=64 << 20))]
    value_size: u32,
    /// Milliseconds between two syncs that siltstone does by itself; 0 for none, as its rivals
    #[arg(long, default_value_t = 0)]
    sync_interval_ms: u64,
    /// Threads that work at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Writes per second during the reads of `readwhilewriting` [default: as many as possible]
    #[arg(long)]
    write_rate: Option<NonZeroU64>,
    /// Compress with LZ4; fails for an engine that was compiled without it
    #[arg(long)]
    lz4: bool,
    /// Mebibytes of the block cache [default: 256]
    #[arg(long)]
    cache_mib: Option<NonZeroU16>,
    /// Leave it to the engine when to flush and compact
    #[arg(long)]
    no_settle: bool,
    /// Close the database after the last workload and open it again, before anything is settled
    #[arg(long)]
    reopen: bool,
}

impl Args {
    fn plan(&self) -> Plan {
        Plan {
            records: self.records,
            ops: self.ops,
            limit: self.seconds.map(Duration::from_secs),
            idle_loop: self.idle_loop,
            key_bytes: self.key_size.into(),
            value_bytes: self.value_size as usize,
            threads: self.threads,
            write_rate: self.write_rate,
            when: Ack::Os,
            seed: self.common.seed,
        }
    }

    fn json(&self) -> Value {
        json!({
            "records": self.records,
            "ops": self.ops,
            "seconds": self.seconds,
            "idle_loop": self.idle_loop,
            "key_size": self.key_size,
            "value_size": self.value_size,
            "seed": self.common.seed,
            "sync_interval_ms": self.sync_interval_ms,
            "settles": !self.no_settle,
            "reopens": self.reopen,
            "threads": self.threads,
            "write_rate": self.write_rate,
            "lz4": self.lz4,
            "cache_mib": self.cache_mib,
            "memory_mib": self.common.memory_mib,
        })
    }
}

/// Runs what the arguments say and writes the result.
pub fn run(args: &Args) -> Result<(), Fault> {
    let sequence: Vec<&str> = args.workloads.iter().map(|kind| kind.name()).collect();
    args.common.run(&sequence.join(","), args.json(), Measure(args))
}

/// The engine's rows of one run.
struct Rows {
    rows: Vec<Value>,
    is_settled: bool,
}

impl Rows {
    /// Flushes and compacts everything, and says what that cost.
    fn settle<P: Peer>(&mut self, engine: &P, folder: &Path) -> Result<(), Fault> {
        let before = Usage::now(engine.written_bytes());
        let start = Instant::now();
        engine.settle()?;
        let elapsed = start.elapsed();
        let spent = Usage::now(engine.written_bytes()).since(&before);
        self.is_settled = true;
        self.rows.push(json!({
            "workload": "settle",
            "seconds": elapsed.as_secs_f64(),
            "cpu_seconds": spent.cpu.as_secs_f64(),
            "bytes_written": spent.written_bytes,
            "disk_bytes": disk_bytes(folder),
        }));
        Ok(())
    }
}

/// One run of the engine that the arguments name.
struct Measure<'a>(&'a Args);

impl Task for Measure<'_> {
    type Outcome = Result<Value, Fault>;

    fn with<P: Peer>(self) -> Result<Value, Fault> {
        measure::<P>(self.0)
    }
}

/// Closes the database and opens it again. Returns it, with what that took and the space that it had before.
fn reopen<P: Peer>(engine: P, folder: &Path, settings: &Settings) -> Result<(P, Value), Fault> {
    let filled_bytes = disk_bytes(folder);
    let start = Instant::now();
    engine.close()?;
    let closed = start.elapsed();
    let start = Instant::now();
    let engine = P::open(folder, settings)?;
    // An engine may put off reading its files to the first call.
    engine.get(&[0; 16])?;
    let costs = json!({
        "filled_bytes": filled_bytes,
        "close_seconds": closed.as_secs_f64(),
        "reopen_seconds": start.elapsed().as_secs_f64(),
    });
    Ok((engine, costs))
}

fn measure<P: Peer>(args: &Args) -> Result<Value, Fault> {
    let folder = args.common.dir.as_path();
    let mut settings = Settings { lz4: args.lz4, ..Settings::new(args.sync_interval_ms) };
    if let Some(mebibytes) = args.cache_mib {
        settings.cache_bytes = usize::from(mebibytes.get()) << 20;
    }
    let mut engine = P::open(folder, &settings)?;
    let mut bench = Bench::new(args.plan(), engine.clone());
    let mut rows = Rows { rows: Vec::new(), is_settled: true };
    let begun = Begun::now(&engine);

    for &kind in &args.workloads {
        if kind.needs_data() && !bench.is_loaded()? {
            let outcome = bench.run(Kind::FillRandom, "load", folder, &mut |_| ())?;
            rows.is_settled = false;
            rows.rows.push(outcome.json());
        }
        if !args.no_settle && kind.reads() && !rows.is_settled {
            rows.settle(&engine, folder)?;
        }
        let outcome = bench.run(kind, kind.name(), folder, &mut |_| ())?;
        // Not by what was written: whether a thread next to the readers came to write depends on
        // time, and all engines must be settled alike.
        rows.is_settled &= kind.only_reads();
        rows.rows.push(outcome.json());
    }
    let record_bytes = bench.record_bytes();
    let user_bytes = bench.user_bytes_written();
    // Its handle: an engine is closed with the last one.
    drop(bench);
    let mut reopened = Value::Null;
    if args.reopen {
        (engine, reopened) = reopen(engine, folder, &settings)?;
    }
    if !args.no_settle && !rows.is_settled {
        rows.settle(&engine, folder)?;
    }

    let cost = begun.cost(&engine, folder);
    let live_bytes = engine.count()? * record_bytes;
    engine.close()?;
    let mut total = cost.json(user_bytes, live_bytes);
    if let (Some(total), Value::Object(reopened)) = (total.as_object_mut(), reopened) {
        total.extend(reopened);
    }
    Ok(json!({ "workloads": rows.rows, "total": total }))
}
