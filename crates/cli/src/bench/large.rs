//! `bench large`: the workload of large values, as in the paper: see `testkit::bench::large`.

use std::path::{Path, PathBuf};

use serde_json::json;
use siltstone::large_values::Parallelism;
use siltstone::{
    Compression, Db, Durability, Error, LargeValueOptions, MetaHiveOptions, Partition,
    PartitionOptions,
};
use testkit::bench::Ack;
use testkit::bench::large::{
    DEFAULT_WORKLOAD, LargeBench, LargeEngine, LargeFailure, LargePlan, MixTime, SizeRates,
};
use testkit::bench::measure::Memory;

use super::folder::{Folder, PARTITION, parse_bytes};
use super::large_files::FilePerValue;
use super::large_plots as plots;
use crate::files;
use crate::output::{Failure, Output, note};

/// The shortest time between two attempts to reclaim space while a view keeps it.
const RECLAIMS_MAX: usize = 1000;

/// Arguments of `bench large`.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub(crate) struct Args {
    /// Sizes, repetitions and mixes [default: those built in]
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Values of each size, such as 512MiB, but three at least [default: the workload's]
    #[arg(long, value_parser = parse_bytes)]
    bytes_per_size: Option<u64>,
    /// Leave out sizes above this, such as 64MiB
    #[arg(long, value_parser = parse_bytes)]
    size_max: Option<u64>,
    /// Give every entry metadata: the partition has MetaHive
    #[arg(long)]
    metahive: bool,
    /// Compress the values with LZ4
    #[arg(long)]
    lz4: bool,
    /// So many of 64 bytes of a value are random in a row, and the rest are zeros
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..=64))]
    random_of_64: u8,
    /// Folder for the database [default: a fresh one in the system's temporary folder, removed
    /// at the end]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Then measure the same operations with a file for each value
    #[arg(long)]
    files: bool,
    /// Draw the results into this folder: figure-6.svg (operations), figure-7.svg (mixes),
    /// figure-8.svg (gets over those of files, with --files) and figure-9.svg (gets by several threads),
    /// as the paper numbers them
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// A partition with large values, as the workload sees it.
struct Measured {
    db: Db,
    partition: Partition,
}

impl LargeEngine for Measured {
    type Error = Error;

    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Error> {
        let durability = match when {
            Ack::Os => Durability::Os,
            Ack::Sync => Durability::Sync,
        };
        self.partition.put_with(key, value, durability).map(drop)
    }

    fn get(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Error> {
        let len = self.partition.get_into(key, buf, Parallelism::Auto)?;
        Ok(len.map(|len| len as usize))
    }

    fn get_by(&self, key: &[u8], buf: &mut [u8], threads: usize) -> Result<Option<usize>, Error> {
        let len = self.partition.get_into(key, buf, Parallelism::Threads(threads))?;
        Ok(len.map(|len| len as usize))
    }

    fn lend(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<Option<bool>, Error> {
        let value = self.partition.get_ref(key)?;
        Ok(Some(value.inspect(|value| visit(value)).is_some()))
    }

    fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.partition.delete(key).map(drop)
    }

    fn reclaim(&self) -> Result<(), Error> {
        for _ in 0..RECLAIMS_MAX {
            self.partition.reclaim()?;
            // A view that background work holds for a short time keeps the files that it can read.
            self.db.wait_idle()?;
            let space = self.partition.space().unwrap_or_default();
            if space.live_bytes > 0 || space.total_bytes == 0 {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Runs the workload and reports.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let plan = plan(args)?;
    let folder = Folder::new(args.dir.as_deref())?;
    let db = files::builder(folder.path()).open()?;
    let compression = if args.lz4 { Compression::Lz4 } else { Compression::None };
    let large = LargeValueOptions::default().compression(compression);
    let mut options = PartitionOptions::new().large_values(large);
    if args.metahive {
        options = options.metahive(MetaHiveOptions::default());
    }
    let partition = db.partition_with(PARTITION, options)?;
    let measured = Measured { db: db.clone(), partition };
    let bench = LargeBench::new(&measured, &plan, args.seed);
    let mut bench = bench.random_of_64(args.random_of_64.into());
    let done =
        bench.run(&mut |next| note(format_args!("{next} ..."))).map_err(|failure| match failure {
            LargeFailure::Engine(error) => Failure::Engine(error),
            LargeFailure::Wrong(key) => Failure::NotFound(format!("{key} reads back wrong")),
        });
    let done = done?;
    drop(bench);
    let peak = Memory::now().peak_bytes;
    let files = args.files.then(|| measure_files(args, &plan, folder.path())).transpose()?;

    if let Some(folder) = &args.plots {
        plots::write(folder, &done, files.as_deref())?;
    }
    let mut out = Output::new(args.json);
    let head = format_args!(
        "bytes/ms {:>11} {:>5} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
        "value", "times", "put", "put synced", "get", "memcpy", "lent first", "lent", "delete"
    );
    if !args.json {
        out.line(head, &json!(null))?;
    }
    for rate in &done.sizes {
        out.line(rate_text(rate), &rate_json(rate))?;
    }
    if !args.json {
        for rate in done.sizes.iter().filter(|rate| !rate.get_by.is_empty()) {
            out.line(threads_text(rate), &json!(null))?;
        }
    }
    if let Some(files) = &files {
        if !args.json {
            out.line("a file for each value", &json!(null))?;
        }
        for rate in files {
            out.line(rate_text(rate), &json!({ "files": rate_json(rate) }))?;
        }
    }
    for mix in &done.mixes {
        out.line(mix_text(mix), &mix_json(mix))?;
    }
    let space = measured.partition.space().map_or(0, |space| space.total_bytes);
    out.line(
        format_args!("bytes left in chunk files {space}; peak memory {}", peak.unwrap_or(0)),
        &json!({ "chunk_bytes": space, "peak_memory_bytes": peak }),
    )?;
    out.finish()?;
    drop(measured);
    db.close()?;
    folder.end()
}

/// The rates of a file for each value. Reads by several threads and the mixes are left out.
fn measure_files(args: &Args, plan: &LargePlan, folder: &Path) -> Result<Vec<SizeRates>, Failure> {
    let plan = LargePlan { threads: Vec::new(), mixes: Vec::new(), ..plan.clone() };
    let files = FilePerValue::new(folder).map_err(|e| Failure::io("make files in", folder, &e))?;
    let done = LargeBench::new(&files, &plan, args.seed)
        .run(&mut |next| note(format_args!("files: {next} ...")))
        .map_err(|failure| match failure {
            LargeFailure::Engine(e) => Failure::io("use the files in", folder, &e),
            LargeFailure::Wrong(key) => Failure::NotFound(format!("{key} reads back wrong")),
        })?;
    Ok(done.sizes)
}

#[expect(clippy::disallowed_methods, reason = "the file is outside every database")]
fn plan(args: &Args) -> Result<LargePlan, Failure> {
    let mut plan = match &args.workload {
        None => parsed(DEFAULT_WORKLOAD, "the built-in workload")?,
        Some(path) => {
            let text = std::fs::read(path).map_err(|e| Failure::io("read", path, &e))?;
            parsed(&String::from_utf8_lossy(&text), &path.display().to_string())?
        }
    };
    plan.bytes_per_size = args.bytes_per_size.unwrap_or(plan.bytes_per_size);
    if let Some(max) = args.size_max {
        plan.leave_out_above(max);
    }
    if plan.mix_weights.iter().all(|&weight| weight == 0) {
        return Err(Failure::Usage("no size is left to measure".to_owned()));
    }
    Ok(plan)
}

fn parsed(workload: &str, place: &str) -> Result<LargePlan, Failure> {
    LargePlan::parse(workload).map_err(|what| Failure::Usage(format!("{place}: {what}")))
}

fn rate_text(rate: &SizeRates) -> String {
    let SizeRates { size, repetitions, put, put_synced, get, memcpy, delete, .. } = rate;
    let lent_first = rate.lent_first.unwrap_or_default();
    let lent = rate.lent.unwrap_or_default();
    format!(
        "{size:>20} {repetitions:>5} {put:>11.0} {put_synced:>11.0} {get:>11.0} {memcpy:>11.0} \
         {lent_first:>11.0} {lent:>11.0} {delete:>11.0}"
    )
}

fn threads_text(rate: &SizeRates) -> String {
    let rates = rate.get_by.iter().map(|(threads, rate)| format!("{threads}: {rate:.0}"));
    format!("{:>20} get by threads {}", rate.size, rates.collect::<Vec<_>>().join(", "))
}

fn rate_json(rate: &SizeRates) -> serde_json::Value {
    let by_threads = rate.get_by.iter().map(|(threads, rate)| (threads.to_string(), json!(rate)));
    json!({
        "size": rate.size,
        "repetitions": rate.repetitions,
        "bytes_per_ms": {
            "put": rate.put,
            "put_synced": rate.put_synced,
            "get": rate.get,
            "memcpy": rate.memcpy,
            "lent_first": rate.lent_first,
            "lent": rate.lent,
            "delete": rate.delete,
        },
        "get_bytes_per_ms_by_threads": by_threads.collect::<serde_json::Map<_, _>>(),
    })
}

fn mix_text(mix: &MixTime) -> String {
    let seconds = mix.took.as_secs_f64();
    format!("{:<12} {} operations, {} bytes, {seconds:.3} s", mix.name, mix.operations, mix.bytes)
}

fn mix_json(mix: &MixTime) -> serde_json::Value {
    json!({
        "mix": mix.name,
        "operations": mix.operations,
        "bytes": mix.bytes,
        "seconds": mix.took.as_secs_f64(),
    })
}
