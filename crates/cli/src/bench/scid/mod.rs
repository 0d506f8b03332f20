//! `bench scid`: the experiment of the SCID thesis. One primary and two secondaries, each a process of
//! its own; a client that asks one of them at a time.
//!
//! A share of the keys is strong: a read of such a key must see every write before it. Four ways of
//! serving are compared:
//!
//! ```text
//! way        a write waits for          a strong read goes to        other reads go to
//! baseline   both secondaries           a secondary, as it is        a secondary, as it is
//! offloaded  nobody                     a secondary, at level 1      a secondary, as it is
//! optimal    nobody                     the primary                  a secondary, as it is
//! ```
//!
//! In the baseline a write is done when both secondaries have applied it: synchronous replication. All
//! ways use the same processes, the same pipes and the same operations. `link.rs` is the client's
//! side of a process, `node.rs` the process.

mod link;
mod node;
mod plot;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use siltstone::Commit;
use siltstone::clock::{Clock, SystemClock};
use testkit::Rng;
use testkit::rng::mix64;
use testkit::workload::{KeySpace, Zipfian};

use self::link::Node;
use crate::bench::Folder;
use crate::output::{Failure, Output, note};
use crate::svg;

pub(crate) use self::node::{Args as NodeArgs, run as run_node};

const KEY_BYTES: usize = 16;

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
    /// Runs of each point, of which the median counts
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    turns: u64,
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

/// A workload of the thesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Writes,
    Mixed,
    Reads,
}

impl Load {
    const ALL: [Load; 3] = [Load::Writes, Load::Mixed, Load::Reads];

    fn name(self) -> &'static str {
        match self {
            Load::Writes => "W",
            Load::Mixed => "A",
            Load::Reads => "C",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Load::Writes => "W: writes alone",
            Load::Mixed => "A: half writes, each followed by a read of its key",
            Load::Reads => "C: reads alone",
        }
    }

    /// The ways that differ in it.
    fn ways(self) -> &'static [Way] {
        match self {
            Load::Writes => &[Way::Baseline, Way::Offloaded],
            Load::Mixed | Load::Reads => &[Way::Baseline, Way::Offloaded, Way::Optimal],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Baseline,
    Offloaded,
    Optimal,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Baseline => "baseline",
            Way::Offloaded => "offloaded",
            Way::Optimal => "optimal",
        }
    }
}

/// The throughput of one way over the shares of strong keys, in operations a second.
struct Series {
    way: Way,
    points: Vec<(u64, f64)>,
}

/// The processes of one run.
struct Cluster {
    primary: Node,
    secondaries: [Node; 2],
    next: usize,
}

impl Cluster {
    fn start(folder: &Path) -> Result<Cluster, Failure> {
        let primary = Node::start(folder, "primary")?;
        let secondaries = [Node::start(folder, "secondary")?, Node::start(folder, "secondary")?];
        Ok(Cluster { primary, secondaries, next: 0 })
    }

    /// The secondaries in turns.
    fn secondary(&mut self) -> &mut Node {
        self.next = 1 - self.next;
        &mut self.secondaries[self.next]
    }

    fn put(&mut self, way: Way, key: &[u8], value: &[u8]) -> Result<Commit, Failure> {
        let commit = self.primary.put(key, value)?;
        if way == Way::Baseline {
            // Both at once: the write waits for the slower one.
            for secondary in &mut self.secondaries {
                secondary.ask_to_reach(commit)?;
            }
            for secondary in &mut self.secondaries {
                secondary.answer()?;
            }
        }
        Ok(commit)
    }

    fn get(&mut self, way: Way, is_strong: bool, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        match way {
            Way::Optimal if is_strong => self.primary.get(false, key),
            Way::Offloaded if is_strong => self.secondary().get(true, key),
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

/// One measurement: `load` in one `way`, with `strong` percent of the keys strong.
struct Run<'a> {
    args: &'a Args,
    load: Load,
    way: Way,
    strong: u64,
}

impl Run<'_> {
    /// Operations a second.
    fn measure(&self, cluster: &mut Cluster, seed: u64) -> Result<f64, Failure> {
        let Args { records, ops, value_size, .. } = *self.args;
        let keys = KeySpace::new(records, KEY_BYTES);
        let zipfian = Zipfian::new(records);
        let mut rng = Rng::new(seed);
        let mut value = rng.bytes(value_size as usize);
        let mut key = Vec::new();
        let clock = SystemClock::new();
        let started = clock.now();
        let mut done = 0;
        while done < ops {
            let record = zipfian.next(&mut rng);
            keys.record(record, &mut key);
            let is_strong = mix64(record) % 100 < self.strong;
            if self.load != Load::Reads {
                value[..8].copy_from_slice(&done.to_le_bytes());
                self.write(cluster, &key, &value)?;
                done += 1;
            }
            if self.load != Load::Writes && done < ops {
                let found = cluster.get(self.way, is_strong, &key)?;
                let is_fresh = self.way == Way::Baseline || is_strong;
                if is_fresh && self.load == Load::Mixed && found.as_deref() != Some(&value[..]) {
                    let message = "a read that must see the write before it does not";
                    return Err(Failure::Usage(message.to_owned()));
                }
                done += 1;
            }
        }
        Ok(ops as f64 / clock.now().saturating_sub(started).as_secs_f64())
    }

    fn write(&self, cluster: &mut Cluster, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        cluster.put(self.way, key, value).map(drop)
    }
}

/// Fills the database that all runs of a workload use.
fn fill(cluster: &mut Cluster, args: &Args) -> Result<(), Failure> {
    let keys = KeySpace::new(args.records, KEY_BYTES);
    let value = Rng::new(args.seed).bytes(args.value_size as usize);
    let mut key = Vec::new();
    let mut last = None;
    for record in 0..args.records {
        keys.record(record, &mut key);
        last = Some(cluster.primary.put(&key, &value)?);
    }
    if let Some(commit) = last {
        for secondary in &mut cluster.secondaries {
            secondary.ask_to_reach(commit)?;
            secondary.answer()?;
        }
    }
    Ok(())
}

/// Runs the experiment and reports.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let folder = Folder::new(args.dir.as_deref())?;
    let mut out = Output::new(args.json);
    for load in Load::ALL {
        let place = folder.path().join(load.name());
        let mut cluster = Cluster::start(&place)?;
        fill(&mut cluster, args)?;
        let series = measure_load(args, load, &mut cluster)?;
        cluster.stop()?;
        out.line(text(load, &series), &json(load, &series))?;
        out.flush()?;
        if let Some(svg) = &args.svg {
            let path = svg.join(format!("scid-{}.svg", load.name().to_lowercase()));
            svg::save(&path, &plot::draw(load.title(), &series))?;
        }
    }
    out.finish()?;
    if let Folder::Given(path) = &folder {
        note(format_args!("the databases stay in {}", path.display()));
    }
    Ok(())
}

/// All points of a workload. The ways take turns at each share, so that what else the machine does
/// meets all of them.
fn measure_load(args: &Args, load: Load, cluster: &mut Cluster) -> Result<Vec<Series>, Failure> {
    let ways = load.ways().iter();
    let mut series: Vec<Series> =
        ways.map(|way| Series { way: *way, points: Vec::new() }).collect();
    for strong in (0..=100).step_by(args.step as usize) {
        let mut found = vec![Vec::new(); series.len()];
        for turn in 0..args.turns {
            for (place, of) in series.iter().enumerate() {
                let run = Run { args, load, way: of.way, strong };
                found[place].push(run.measure(cluster, args.seed + strong + turn * 1000)?);
            }
        }
        for (of, mut found) in series.iter_mut().zip(found) {
            found.sort_by(f64::total_cmp);
            of.points.push((strong, found[found.len() / 2]));
        }
    }
    Ok(series)
}

fn text(load: Load, series: &[Series]) -> String {
    let mut text = format!("{}\n{:>8}", load.title(), "strong");
    for of in series {
        text.push_str(&format!("{:>12}", of.way.name()));
    }
    for (place, (strong, base)) in series[0].points.iter().enumerate() {
        text.push_str(&format!("\n{strong:>6} %"));
        for of in series {
            let (_, rate) = of.points[place];
            text.push_str(&format!("{rate:>12.0}"));
        }
        for of in &series[1..] {
            let (_, rate) = of.points[place];
            text.push_str(&format!("  {} x{:.2}", of.way.name(), rate / base));
        }
    }
    text.push('\n');
    text
}

fn json(load: Load, series: &[Series]) -> Value {
    let series: Vec<Value> = series
        .iter()
        .map(|of| {
            let points: Vec<Value> = of
                .points
                .iter()
                .map(|(strong, rate)| json!({ "strong_percent": strong, "ops_per_second": rate }))
                .collect();
            json!({ "way": of.way.name(), "points": points })
        })
        .collect();
    json!({ "workload": load.name(), "series": series })
}
