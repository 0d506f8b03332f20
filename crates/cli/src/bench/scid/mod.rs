//! `bench scid`: the experiment of the SCID thesis. One primary and two secondaries, each a process of
//! its own; a client that asks one of them at a time.
//!
//! A share of the keys is strong: a read of such a key must see every write before it. Four ways of
//! serving are compared:
//!
//! ```text
//! setup        a write waits for          a strong read goes to        other reads go to
//! baseline   both secondaries           a secondary, as it is        a secondary, as it is
//! offloaded  no other process           a secondary, at level 1      a secondary, as it is
//! optimal    no other process           the primary                  a secondary, as it is
//! ```
//!
//! In the baseline a write is done when both secondaries have applied it: synchronous replication.
//! All ways use the same processes, the same pipes and the same operations. `link.rs` is the
//! client's side of a process, `node.rs` the process, `rounds.rs` the order of the runs and their
//! summary. With `--tcp` the processes are servers, and `served.rs` is the client's side of one.

mod link;
mod node;
mod plot;
mod report;
mod rounds;
mod series;
mod served;

use std::path::{Path, PathBuf};

use siltstone::clock::{Clock, SystemClock};
use testkit::Rng;
use testkit::bench::measure::processor_time;
use testkit::rng::mix64;
use testkit::workload::{KeySpace, Zipfian};

use self::link::{Link, Node};
use self::series::{Load, Measured, Series, Setup};
use self::served::ServedNode;
use crate::bench::folder::Folder;
use crate::output::{Failure, Output, note};
use crate::svg;

pub(crate) use self::node::{Args as NodeArgs, run as run_node};

const KEY_BYTES: usize = 16;
/// Records that the fill writes at once, where it can.
const FILL_RECORDS: usize = 100;

/// Arguments of `bench scid`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Records of the data set
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Operations of each run
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    ops: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 1000)]
    value_size: u32,
    /// Percent between two shares of strong keys
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100))]
    step: u64,
    /// Rounds that count; each runs all points, and one more runs before the first
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Workload to run; may be given several times [default: all]
    #[arg(long, value_enum)]
    load: Vec<Load>,
    /// Run servers, and ask them over TCP
    #[arg(long)]
    tcp: bool,
    /// Place of the servers in a bucket, which has none of their databases yet
    #[arg(long, value_name = "URL", requires = "tcp")]
    remote: Option<String>,
    /// Folder for the databases [default: a fresh one, removed at the end]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Draw the results into files in this folder
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The begin of the names of drawings.
    fn prefix(&self) -> &'static str {
        match (self.tcp, &self.remote) {
            (false, _) => "scid",
            (true, None) => "scid-tcp",
            (true, Some(_)) => "scid-bucket",
        }
    }
}

/// The processes of one run.
struct Cluster<L: Link> {
    primary: L,
    secondaries: [L; 2],
    next: usize,
    /// The last write since the processes were idle.
    last: Option<L::Written>,
}

impl Cluster<Node> {
    fn start(folder: &Path) -> Result<Cluster<Node>, Failure> {
        let primary = Node::start(folder, "primary")?;
        let secondaries = [Node::start(folder, "secondary")?, Node::start(folder, "secondary")?];
        Ok(Cluster { primary, secondaries, next: 0, last: None })
    }
}

impl Cluster<ServedNode> {
    /// Starts servers of a folder, or with `remote` of a place in a bucket.
    fn serve(folder: &Path, remote: Option<&str>) -> Result<Cluster<ServedNode>, Failure> {
        let primary = ServedNode::primary(folder, remote)?;
        let secondaries =
            [ServedNode::reader(folder, remote)?, ServedNode::reader(folder, remote)?];
        Ok(Cluster { primary, secondaries, next: 0, last: None })
    }
}

impl<L: Link> Cluster<L> {
    /// The secondaries in turns.
    fn secondary(&mut self) -> &mut L {
        self.next = 1 - self.next;
        &mut self.secondaries[self.next]
    }

    fn put(&mut self, setup: Setup, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let written = self.primary.put(key, value)?;
        if setup == Setup::Baseline {
            self.catch_up(&written)?;
        }
        self.last = Some(written);
        Ok(())
    }

    /// Has both secondaries apply everything through `written`.
    fn catch_up(&mut self, written: &L::Written) -> Result<(), Failure> {
        // Both at once: the caller waits for the slower one.
        for secondary in &mut self.secondaries {
            secondary.ask_to_reach(written)?;
        }
        for secondary in &mut self.secondaries {
            secondary.reached()?;
        }
        Ok(())
    }

    /// Brings the processes to the state in which every run begins: the primary has everything in
    /// its lowest level and nothing in memory, and both secondaries are up to date. Without the
    /// compaction, the flushes and merges that one run leaves would fall into the time of the next
    /// one.
    fn settle(&mut self) -> Result<(), Failure> {
        self.next = 0;
        let Some(written) = self.last.take() else { return Ok(()) };
        self.primary.rest()?;
        self.catch_up(&written)
    }

    /// The processor time that all processes have taken, the client's included, in nanoseconds.
    fn processor_time(&mut self) -> Result<u64, Failure> {
        let mut all = own_processor_time();
        for node in std::iter::once(&mut self.primary).chain(&mut self.secondaries) {
            all += node.processor_time()?;
        }
        Ok(all)
    }

    fn get(
        &mut self,
        setup: Setup,
        is_strong: bool,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, Failure> {
        match setup {
            Setup::Optimal if is_strong => self.primary.get(true, key),
            Setup::Offloaded if is_strong => self.secondary().get(true, key),
            _ => self.secondary().get(false, key),
        }
    }

    fn stop(self) -> Result<(), Failure> {
        let [first, second] = self.secondaries;
        first.stop()?;
        second.stop()?;
        self.primary.stop()
    }
}

/// One measurement: `load` in one `setup`, with `strong` percent of the keys strong.
struct Run<'a> {
    args: &'a Args,
    load: Load,
    setup: Setup,
    strong: u64,
}

impl Run<'_> {
    fn measure<L: Link>(&self, cluster: &mut Cluster<L>, seed: u64) -> Result<Measured, Failure> {
        let Args { records, ops, value_size, .. } = *self.args;
        let keys = KeySpace::new(records, KEY_BYTES);
        let zipfian = Zipfian::new(records);
        let mut rng = Rng::new(seed);
        let mut value = rng.bytes(value_size as usize);
        let mut key = Vec::new();
        cluster.settle()?;
        let clock = SystemClock::new();
        let worked = cluster.processor_time()?;
        let started = clock.now();
        let mut done = 0;
        while done < ops {
            let record = zipfian.next(&mut rng);
            keys.record(record, &mut key);
            let is_strong = mix64(record) % 100 < self.strong;
            if self.load != Load::Reads {
                value[..8].copy_from_slice(&done.to_le_bytes());
                cluster.put(self.setup, &key, &value)?;
                done += 1;
            }
            if self.load != Load::Writes && done < ops {
                let found = cluster.get(self.setup, is_strong, &key)?;
                let is_fresh = self.setup == Setup::Baseline || is_strong;
                if is_fresh && self.load == Load::Mixed && found.as_deref() != Some(&value[..]) {
                    let message = "a read that must see the write before it does not";
                    return Err(Failure::Usage(message.to_owned()));
                }
                done += 1;
            }
        }
        let took = clock.now().saturating_sub(started);
        let worked = cluster.processor_time()?.saturating_sub(worked);
        Ok(Measured {
            rate: ops as f64 / took.as_secs_f64(),
            processor_us: worked as f64 / 1e3 / ops as f64,
        })
    }
}

/// The processor time that this process has taken, in nanoseconds.
fn own_processor_time() -> u64 {
    processor_time().as_nanos() as u64
}

/// Fills the database that all runs of a workload use.
fn fill<L: Link>(cluster: &mut Cluster<L>, args: &Args) -> Result<(), Failure> {
    let keys = KeySpace::new(args.records, KEY_BYTES);
    let value = Rng::new(args.seed).bytes(args.value_size as usize);
    let mut key = Vec::new();
    for first in (0..args.records).step_by(FILL_RECORDS) {
        let records = (first..args.records).take(FILL_RECORDS).map(|record| {
            keys.record(record, &mut key);
            (key.clone(), &value[..])
        });
        let records: Vec<_> = records.collect();
        cluster.last = cluster.primary.fill(&records)?;
    }
    cluster.settle()
}

/// Runs all rounds of a workload on these processes, and ends them.
fn measured<L: Link>(
    args: &Args,
    load: Load,
    mut cluster: Cluster<L>,
) -> Result<Vec<Series>, Failure> {
    fill(&mut cluster, args)?;
    let series = rounds::measure(args, load, &mut cluster)?;
    cluster.stop()?;
    Ok(series)
}

/// Runs the experiment and reports.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let folder = Folder::new(args.dir.as_deref())?;
    let mut out = Output::new(args.json);
    let mut all = Vec::new();
    let loads = Load::ALL.into_iter();
    for load in loads.filter(|load| args.load.is_empty() || args.load.contains(load)) {
        let place = folder.path().join(load.name());
        let series = if args.tcp {
            let remote = args.remote.as_ref().map(|url| format!("{url}/{}", load.name()));
            measured(args, load, Cluster::serve(&place, remote.as_deref())?)?
        } else {
            measured(args, load, Cluster::start(&place)?)?
        };
        out.line(report::text(load, &series), &report::json(load, &series))?;
        out.flush()?;
        if let Some(svg) = &args.svg {
            let path = svg.join(format!("{}-{}.svg", args.prefix(), load.name().to_lowercase()));
            svg::save(&path, &plot::draw(load.title(), &series))?;
        }
        all.push((load, series));
    }
    if let Some(svg) = args.svg.as_ref().filter(|_| args.tcp) {
        svg::save(&svg.join(format!("{}-strong.svg", args.prefix())), &plot::draw_strong(&all))?;
    }
    out.finish()?;
    if let Folder::Given(path) = &folder {
        note(format_args!("the databases stay in {}", path.display()));
    }
    Ok(())
}
