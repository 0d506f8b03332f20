//! Measures remote storage: siltstone-remote, and SlateDB on the same server. See `run.sh`, and `docs/remote.md`.

mod backups;
mod bench;
mod hits;
mod local;
mod reader;
mod slate;
mod store;
mod stored;
mod takeover;
mod versus;
mod versus_crash;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::bench::{Bench, Outcome};
use crate::store::Meter;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// Reads and unsynced writes, with and without a remote.
    Local,
    /// Synced writes under `Ack::Local`, and without a remote.
    Synced,
    /// Commits under `Ack::Stored`, and puts of the store.
    Stored,
    /// The time until an eager reader sees a commit.
    Visible,
    /// Gets of a reader, cold and warm, and the requests that they take.
    Gets,
    /// Memory and caches of a reader.
    Bounds,
    /// Hit rate of a reader's cache on disk, with and without its rule of admission.
    Hits,
    /// Fills the database of the takeovers.
    Fill,
    /// Takeovers of that database.
    Takeover,
    /// Backups in the bucket, by threads.
    Backups,
    /// Durable puts of both engines.
    VersusPuts,
    /// Gets and scans of both engines.
    VersusReads,
    /// Openings of both engines after a crash.
    VersusCrash,
    /// Requests and bytes of a million puts of both engines.
    VersusMillion,
    /// A child of `VersusCrash`: writes, and dies.
    ChildSiltstone,
    /// The same with SlateDB.
    ChildSlate,
}

#[derive(Parser)]
struct Arguments {
    #[arg(value_enum)]
    measurement: Measurement,
    /// Folder for the databases.
    #[arg(long)]
    dir: PathBuf,
    /// The bucket.
    #[arg(long)]
    url: String,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Milliseconds that each request takes longer.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 20, 100])]
    delays: Vec<u64>,
    /// Seconds of each loop of writers.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Gigabytes of the database of the takeovers.
    #[arg(long, default_value_t = 10.0)]
    gigabytes: f64,
    /// The prefix of a child.
    #[arg(long, default_value = "")]
    prefix: String,
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    std::fs::create_dir_all(&arguments.dir)?;
    let meter = Meter::new(Bench::store(&arguments.url)?);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let bench = Bench {
        meter,
        url: arguments.url.clone(),
        dir: arguments.dir,
        rounds: arguments.rounds,
        delays: arguments.delays,
        seconds: arguments.seconds,
        records: arguments.records,
        runtime,
        run: std::process::id(),
    };
    match arguments.measurement {
        Measurement::Local => local::unsynced(&bench),
        Measurement::Synced => local::synced(&bench),
        Measurement::Stored => stored::commits(&bench),
        Measurement::Visible => reader::visible(&bench),
        Measurement::Gets => reader::gets(&bench),
        Measurement::Bounds => reader::bounds(&bench),
        Measurement::Hits => hits::rates(&bench),
        Measurement::Fill => takeover::fill(&bench, arguments.gigabytes),
        Measurement::Takeover => takeover::take_over(&bench),
        Measurement::Backups => backups::backups(&bench),
        Measurement::VersusPuts => versus::puts(&bench),
        Measurement::VersusReads => versus::reads(&bench),
        Measurement::VersusMillion => versus::million(&bench),
        Measurement::VersusCrash => versus_crash::opens(&bench, &arguments.url),
        Measurement::ChildSiltstone => versus_crash::child_siltstone(&bench, &arguments.prefix),
        Measurement::ChildSlate => versus_crash::child_slate(&bench, &arguments.prefix),
    }
}
