//! `bench`: runs workloads one after another on one database and prints their costs.
//!
//! The data set is `--records` records whose keys are the same however they were filled in, so
//! that any workload can follow any other. A workload that needs data and finds none is preceded
//! by a random fill, reported as `load`.
//!
//! For the workloads and the measurements see `testkit::bench`.

mod engine;
pub(crate) mod folder;
mod large;
mod large_files;
mod large_plots;
mod report;
mod scale;
pub(crate) mod scid;
#[cfg(feature = "scid-ml")]
mod scid_ml;
mod tcp;

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use siltstone::{Compression, LargeValueOptions, MetaHiveOptions, Options, PartitionOptions};
use testkit::bench::measure::{Usage, disk_bytes};
use testkit::bench::{Bench, Engine, Kind, Outcome, Plan};

use self::engine::Measured;
use self::folder::{Folder, PARTITION, parse_bytes, parse_rate};
use self::report::Report;
use crate::files;
use crate::output::Failure;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "a switch of the command line each")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    own_data: Option<OwnData>,
    /// Workloads in order, separated by commas: fillseq, fillrandom, fillbatch, fillsync,
    /// overwrite, readrandom, multireadrandom, readmissing, seekrandom, scan, scan-reverse,
    /// deleterandom, readwhilewriting, ycsb-a to ycsb-f, ycsb-w
    #[arg(required = true, value_delimiter = ',')]
    workloads: Vec<Kind>,
    /// Number of records of the data set
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Operations of each workload that is not a fill, over all threads [default: the records]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Seconds after which a workload that is not a fill ends, even if operations are left
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Run a thread next to each workload that only looks at the clock, and report its longest
    /// pause
    #[arg(long)]
    idle_loop: bool,
    /// Bytes of a key, at least 8
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(8..))]
    key_size: u16,
    /// Bytes of a value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=64 << 20))]
    value_size: u32,
    /// Number of threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Writes per second during the reads of `readwhilewriting` [default: as many as possible]
    #[arg(long)]
    write_rate: Option<NonZeroU64>,
    /// Durability of writes
    #[arg(long, value_enum, default_value_t = Ack::Os)]
    durability: Ack,
    /// Block cache, such as 256MiB [default: the engine's]
    #[arg(long, value_parser = parse_bytes)]
    cache: Option<u64>,
    /// Write buffer, such as 64MiB [default: the engine's]
    #[arg(long, value_parser = parse_bytes)]
    write_buffer: Option<u64>,
    /// Rate of flushes and compactions in bytes a second, such as 20MiB [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    background_rate: Option<u64>,
    /// Longest log segment, such as 1MiB [default: the engine's]
    #[arg(long, value_parser = parse_bytes)]
    log_segment: Option<u64>,
    /// Append to the log only with system calls, not through a mapping
    #[arg(long)]
    log_written: bool,
    /// Read tables without compression through mappings of their files
    #[arg(long)]
    tables_mapped: bool,
    /// Compression of blocks [default: the engine's]
    #[arg(long, value_enum)]
    compression: Option<Compress>,
    /// Give every entry metadata: the partition has MetaHive
    #[arg(long)]
    metahive: bool,
    /// Values from this length on lie in chunk files, such as 4KiB [default: none]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    large_values: Option<u64>,
    /// Compare every entry with its metadata in point reads and in `scan`
    #[arg(long, requires = "metahive")]
    verified: bool,
    /// Folder for the database [default: a new one in the temporary folder of the system, which is
    /// removed at the end]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Compact fully before each workload that reads data of an earlier one
    #[arg(long)]
    compact: bool,
}

/// Benchmarks with a data set of their own.
#[derive(Debug, clap::Subcommand)]
enum OwnData {
    /// Measures values from 100 KB to 645 MB: put, get, delete until the space is back, and mixes
    Large(large::Args),
    /// Measures one partition, snapshot or table among thousands of others
    Scale(scale::Args),
    /// Measures a primary and two secondaries over the share of strong reads
    Scid(scid::Args),
    /// Measures a server that speaks the protocol of Redis, over TCP: the workloads of YCSB
    Tcp(tcp::Args),
    /// Compares predictors of the consistency level of a read, on a trace that is made from a seed
    #[cfg(feature = "scid-ml")]
    ScidMl(scid_ml::Args),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Ack {
    /// In the kernel: survives a killed process
    Os,
    /// On the device: survives a power cut
    Sync,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Compress {
    /// Not at all
    None,
    /// LZ4
    Lz4,
    /// Zstandard, in a build with the feature `zstd`
    Zstd,
}

impl Args {
    fn plan(&self) -> Plan {
        Plan {
            records: self.records,
            ops: self.ops,
            limit: self.seconds.map(Duration::from_secs),
            idle_loop: self.idle_loop,
            key_bytes: usize::from(self.key_size),
            value_bytes: self.value_size as usize,
            threads: self.threads,
            write_rate: self.write_rate,
            when: match self.durability {
                Ack::Os => testkit::bench::Ack::Os,
                Ack::Sync => testkit::bench::Ack::Sync,
            },
            seed: self.seed,
        }
    }

    fn open(&self, folder: &Path) -> Result<Measured, Failure> {
        let options =
            Options::new().wal_mapped(!self.log_written).tables_mapped(self.tables_mapped);
        let options = options.background_bytes_per_second(self.background_rate.unwrap_or(0));
        let mut builder = files::builder(folder).options(options);
        if let Some(bytes) = self.cache {
            builder = builder.cache_bytes(bytes);
        }
        if let Some(bytes) = self.write_buffer {
            builder = builder.write_buffer_bytes(bytes);
        }
        if let Some(bytes) = self.log_segment {
            builder = builder.wal_segment_bytes(bytes);
        }
        let db = builder.open()?;
        let options = match self.compression {
            None => PartitionOptions::new(),
            Some(Compress::None) => PartitionOptions::new().compression(Compression::None),
            Some(Compress::Lz4) => PartitionOptions::new().compression(Compression::Lz4),
            Some(Compress::Zstd) => PartitionOptions::new().compression(Compression::Zstd),
        };
        let options = match self.large_values {
            None => options,
            Some(bytes) => {
                options.large_values(LargeValueOptions::default().threshold_bytes(bytes))
            }
        };
        let options = match self.metahive {
            false => options,
            true => options.metahive(MetaHiveOptions::default()),
        };
        let partition = db.partition_with(PARTITION, options)?;
        Ok(Measured { db, partition, is_verified: self.verified })
    }
}

/// Runs one workload with a progress bar, which is drawn on standard error, and only on a terminal.
fn run_one(
    bench: &mut Bench<Measured>,
    kind: Kind,
    name: &'static str,
    folder: &Path,
) -> Result<Outcome, Failure> {
    let style = "{msg:17} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}";
    let style = ProgressStyle::with_template(style).expect("the template is correct");
    let bar = ProgressBar::new(bench.ops(kind)).with_style(style).with_message(name);
    let outcome = bench.run(kind, name, folder, &mut |ops| bar.set_position(ops));
    bar.finish_and_clear();
    Ok(outcome?)
}

/// Runs the workloads and reports.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.own_data {
        Some(OwnData::Large(args)) => return large::run(args),
        Some(OwnData::Scale(args)) => return scale::run(args),
        Some(OwnData::Scid(args)) => return scid::run(args),
        Some(OwnData::Tcp(args)) => return tcp::run(args),
        #[cfg(feature = "scid-ml")]
        Some(OwnData::ScidMl(args)) => return scid_ml::run(args),
        None => {}
    }
    let folder = Folder::new(args.dir.as_deref())?;
    let measured = args.open(folder.path())?;
    let mut bench = Bench::new(args.plan(), measured.clone());
    let mut report = Report::new(args, folder.path())?;
    let start = Usage::now(measured.written_bytes());

    // A database that existed before is not compact.
    let mut is_compact = args.dir.is_none();
    for &kind in &args.workloads {
        if kind.needs_data() && !bench.is_loaded()? {
            report.add(&run_one(&mut bench, Kind::FillRandom, "load", folder.path())?)?;
            is_compact = false;
        }
        if args.compact && kind.reads() && !is_compact {
            measured.settle()?;
            is_compact = true;
        }
        let outcome = run_one(&mut bench, kind, kind.name(), folder.path())?;
        is_compact &= outcome.user_bytes_written() == 0;
        report.add(&outcome)?;
    }

    measured.db.wait_idle()?;
    let spent = Usage::now(measured.written_bytes()).since(&start);
    let live_bytes = measured.count()? * bench.record_bytes();
    let disk_bytes = disk_bytes(folder.path());
    report.finish(&spent, bench.user_bytes_written(), live_bytes, disk_bytes)?;
    drop(bench);
    let Measured { db, partition, .. } = measured;
    drop(partition);
    db.close()?;
    folder.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_do_not_overflow() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("256MiB"), Ok(256 << 20));
        for wrong in ["", "MiB", "1MB", "-1", "1.5GiB", "99999999999GiB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
