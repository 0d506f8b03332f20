//! One run: one engine, a new database, workloads one after another, everything it cost as JSON.
//!
//! Unless told otherwise, everything is flushed and compacted before each workload that reads what
//! others wrote, and at the end: then every engine reads from tables in order, and none hides
//! work that it put off. The time of it is counted in the totals and not in the workloads.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::bench::measure::{Memory, Usage, disk_bytes};
use testkit::bench::run::per;
use testkit::bench::{Bench, Kind, Plan, When};

use crate::engines::{self, Fault, Fjall, LevelDb, Peer, Siltstone};
use crate::settings::Settings;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the engine
    #[arg(long)]
    engine: String,
    /// Workloads in order, separated by commas
    #[arg(long, required = true, value_delimiter = ',')]
    workloads: Vec<Kind>,
    /// Records of the data set
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Operations of each workload that is not a fill [default: the records]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Bytes of a key
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(8..))]
    key_size: u16,
    /// Bytes of a value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=64 << 20))]
    value_size: u32,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Milliseconds between two syncs that siltstone does by itself; 0 for none, as its rivals
    #[arg(long, default_value_t = 0)]
    sync_interval_ms: u64,
    /// Leave it to the engine when to flush and compact
    #[arg(long)]
    no_settle: bool,
    /// Folder for the database; must be new or empty
    #[arg(long)]
    dir: PathBuf,
    /// Number of the round, for the report
    #[arg(long, default_value_t = 1)]
    round: u64,
    /// File for the result
    #[arg(long)]
    out: PathBuf,
}

impl Args {
    fn plan(&self) -> Plan {
        Plan {
            records: self.records,
            ops: self.ops,
            key_bytes: self.key_size.into(),
            value_bytes: self.value_size as usize,
            threads: 1,
            when: When::Os,
            seed: self.seed,
        }
    }

    fn json(&self) -> Value {
        json!({
            "records": self.records,
            "ops": self.ops,
            "key_size": self.key_size,
            "value_size": self.value_size,
            "seed": self.seed,
            "sync_interval_ms": self.sync_interval_ms,
            "settles": !self.no_settle,
        })
    }
}

/// Runs what the arguments say and writes the result.
pub fn run(args: &Args) -> Result<(), Fault> {
    std::fs::create_dir_all(&args.dir)?;
    if std::fs::read_dir(&args.dir)?.next().is_some() {
        return Err(format!("{} is not empty", args.dir.display()).into());
    }
    let mut result = match args.engine.as_str() {
        engines::OURS => measure::<Siltstone>(args)?,
        #[cfg(feature = "rocksdb")]
        "rocksdb" => measure::<engines::RocksDb<false>>(args)?,
        #[cfg(feature = "rocksdb")]
        "rocksdb-blob" => measure::<engines::RocksDb<true>>(args)?,
        "fjall" => measure::<Fjall>(args)?,
        "leveldb" => measure::<LevelDb>(args)?,
        other => return Err(format!("no engine {other}; see `engines`").into()),
    };
    let sequence: Vec<&str> = args.workloads.iter().map(|kind| kind.name()).collect();
    result["engine"] = json!(args.engine);
    result["version"] = json!(engines::version(&args.engine));
    result["sequence"] = json!(sequence.join(","));
    result["round"] = json!(args.round);
    result["config"] = args.json();
    std::fs::write(&args.out, format!("{result:#}\n"))?;
    Ok(())
}

/// Processor time of the whole machine up to now, the kernel and stolen time included.
fn machine_cpu() -> Option<Duration> {
    const TICKS_PER_SECOND: u64 = 100;
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let fields = text.lines().next()?.split_whitespace().skip(1);
    // user nice system idle iowait irq softirq steal; what guests use is in user already.
    let ticks: Vec<u64> = fields.take(8).filter_map(|field| field.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some(Duration::from_millis((ticks.iter().sum::<u64>() - idle) * 1000 / TICKS_PER_SECOND))
}

/// Cores that others used on average in `elapsed`. It is what the machine used beyond `own`.
fn cores_of_others(before: Option<Duration>, own: Duration, elapsed: Duration) -> Option<f64> {
    let others = machine_cpu()?.checked_sub(before?)?.saturating_sub(own);
    Some(others.as_secs_f64() / elapsed.as_secs_f64().max(1e-9))
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
        let start = now();
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

fn now() -> Instant {
    Instant::now()
}

fn measure<P: Peer>(args: &Args) -> Result<Value, Fault> {
    let folder = args.dir.as_path();
    let engine = P::open(folder, &Settings::new(args.sync_interval_ms))?;
    let mut bench = Bench::new(args.plan(), engine.clone());
    let mut rows = Rows { rows: Vec::new(), is_settled: true };
    let machine = machine_cpu();
    let before = Usage::now(engine.written_bytes());
    let start = now();

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
        // Not by what was written: whether a thread beside the readers came to write depends on
        // time, and all engines must be settled alike.
        rows.is_settled &= kind.only_reads();
        rows.rows.push(outcome.json());
    }
    if !args.no_settle && !rows.is_settled {
        rows.settle(&engine, folder)?;
    }

    let elapsed = start.elapsed();
    let spent = Usage::now(engine.written_bytes()).since(&before);
    let others = cores_of_others(machine, spent.cpu, elapsed);
    let memory = Memory::now();
    let disk_bytes = disk_bytes(folder);
    let live_bytes = engine.count()? * bench.record_bytes();
    let user_bytes = bench.user_bytes_written();
    drop(bench);
    engine.close()?;
    Ok(json!({
        "workloads": rows.rows,
        "total": {
            "seconds": elapsed.as_secs_f64(),
            "cpu_seconds": spent.cpu.as_secs_f64(),
            "cores_of_others": others,
            "peak_memory_bytes": memory.peak_bytes,
            "user_bytes_written": user_bytes,
            "bytes_written": spent.written_bytes,
            "write_amplification": per(spent.written_bytes, user_bytes),
            "live_bytes": live_bytes,
            "disk_bytes": disk_bytes,
            "space_amplification": per(disk_bytes, live_bytes),
        },
    }))
}
