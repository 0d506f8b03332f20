//! Features meet: scripts use all of the public interface together, and each kind of fault comes at each place of
//! them. A table counts how often each pair of features was at work in a database that a kind of fault met.
//!
//! The seed of a script determines its environment (encrypted or not, with shared resources or not, in a bucket or
//! not) and its steps. A step takes its numbers from the seed and from its own number alone. So a failed run is made
//! shorter: steps are left out while it still fails, and the message names those that are left.
//!
//! ```text
//! SEED=7 cargo test -p siltstone --test it meet                    another seed
//! MEET_SCRIPTS=2000 cargo test -p siltstone --test it meet         a long run; 12 scripts by default
//! ```
//!
//! Invariant: a store returns no error before the fault comes, and no wrong entry ever.

mod bucket;
mod copies;
mod faults;
mod feed;
mod parts;
mod power;
mod steps;
mod table;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_core::fs::{FsOp, OpKind};
use testkit::Rng;
use testkit::rng::mix64;

use crate::crash::seed_or;
use crate::sim::oracle::guarded;
use faults::{Strike, run_fault};
use steps::Deed;
use table::{Kind, Table};
use world::{Outcome, Trouble, World};

/// Steps of a script.
const STEPS: u64 = 60;
/// Scripts in CI.
const SCRIPTS: u64 = 12;
/// Faults of each kind in a script.
const FAULTS: u64 = 2;
/// Those of the bucket, which half of the scripts have.
const BUCKET_FAULTS: u64 = 4;

/// The generator of a step: its deed, and the numbers of it.
fn step_rng(seed: u64, step: u64) -> Rng {
    Rng::new(mix64(seed) ^ step)
}

/// Does a step of a script.
fn act(world: &mut World, seed: u64, step: u64) -> (Deed, Outcome) {
    let mut rng = step_rng(seed, step);
    let deed = Deed::draw(&mut rng);
    (deed, world.act(deed, &mut rng))
}

fn explained(outcome: Outcome) -> Result<(), String> {
    outcome.map_err(|trouble| match trouble {
        Trouble::Store(error) => format!("{:?}: {error}", error.kind()),
        Trouble::Wrong(what) => what,
    })
}

/// An operation of the storage: the step that makes it, its place among those of the step, and its kind.
#[derive(Clone, Copy, Debug)]
struct Place {
    step: u64,
    offset: u64,
    kind: OpKind,
    len: u64,
    is_of_chunk: bool,
}

/// Runs a script without a fault, and returns the operations of its steps.
fn run_clean(seed: u64, steps: &[u64]) -> Result<Vec<Place>, String> {
    let mut world = World::new(seed);
    explained(world.begin())?;
    let mut places = Vec::new();
    for step in steps.iter().copied() {
        world.fs.start_log();
        let (deed, outcome) = act(&mut world, seed, step);
        let log = world.fs.take_log();
        let checked = outcome.and_then(|()| world.check_now()).and_then(|()| world.check_held());
        explained(checked).map_err(|what| format!("step {step}, {deed:?}: {what}"))?;
        for (offset, op) in log.iter().enumerate() {
            let FsOp { kind, len, .. } = *op;
            let is_of_chunk = op.path.extension().is_some_and(|it| it == "chunk");
            places.push(Place { step, offset: offset as u64, kind, len, is_of_chunk });
        }
    }
    Ok(places)
}

/// Runs a script with all kinds of faults.
fn run_script(seed: u64, table: &Mutex<Table>) -> Result<(), String> {
    let all: Vec<u64> = (0..STEPS).collect();
    let places = guarded(|| run_clean(seed, &all)).map_err(|what| {
        let steps = shortened(seed, &all, |steps| run_clean(seed, steps).map(drop));
        format!("without a fault, steps {steps:?}: {what}")
    })?;
    let mut rng = Rng::new(mix64(seed ^ 0xfa));
    let cuts = power::Cut::draw_all(&places, &mut rng);
    power::run_cuts(seed, &all, &cuts, Some(table)).map_err(|(cut, what)| {
        let steps = shortened(seed, &all, |steps| {
            power::run_cuts(seed, steps, &[cut], None).map_err(|(_, what)| what)
        });
        format!("{cut:?}, steps {steps:?}: {what}")
    })?;
    for kind in Kind::ALL.into_iter().filter(|kind| !power::is_cut(*kind)) {
        let faults = if kind == Kind::Bucket { BUCKET_FAULTS } else { FAULTS };
        for _ in 0..faults {
            let strike = Strike::draw(kind, &places, &mut rng);
            if let Err(what) = guarded(|| run_fault(seed, &all, &strike, Some(table))) {
                let steps =
                    shortened(seed, &all, |steps| match steps.contains(&strike.place.step) {
                        true => run_fault(seed, steps, &strike, None),
                        false => Ok(()),
                    });
                return Err(format!("{strike:?}, steps {steps:?}: {what}"));
            }
        }
    }
    Ok(())
}

/// Leaves out steps while the run still fails.
fn shortened(
    seed: u64,
    all: &[u64],
    run: impl Fn(&[u64]) -> Result<(), String>,
) -> Vec<(u64, Deed)> {
    let mut steps = all.to_vec();
    for step in all {
        let without: Vec<u64> = steps.iter().copied().filter(|other| other != step).collect();
        if guarded(|| run(&without)).is_err() {
            steps = without;
        }
    }
    steps.into_iter().map(|step| (step, Deed::draw(&mut step_rng(seed, step)))).collect()
}

/// The scripts of all threads.
struct Runs {
    seed: u64,
    scripts: u64,
    /// It goes on after a failure.
    is_long: bool,
    next: AtomicU64,
    table: Mutex<Table>,
    failures: Mutex<Vec<String>>,
}

impl Runs {
    fn go_on(&self) {
        loop {
            let script = self.next.fetch_add(1, Ordering::Relaxed);
            let has_failed = !self.failures.lock().unwrap().is_empty();
            if script >= self.scripts || (has_failed && !self.is_long) {
                return;
            }
            let seed = self.seed.wrapping_add(script);
            if let Err(what) = run_script(seed, &self.table) {
                let text = format!("SEED={seed} MEET_SCRIPTS=1: {what}");
                self.failures.lock().unwrap().push(text);
            }
        }
    }
}

#[test]
fn each_pair_of_features_meets_each_kind_of_fault() {
    let scripts = std::env::var("MEET_SCRIPTS").ok();
    let is_long = scripts.is_some();
    let scripts = scripts.map_or(SCRIPTS, |text| text.parse().expect("MEET_SCRIPTS is a number"));
    let seed = seed_or(46);
    let table = Mutex::new(Table::default());
    let failures = Mutex::new(Vec::new());
    let runs = Runs { seed, scripts, is_long, next: AtomicU64::new(0), table, failures };
    std::thread::scope(|scope| {
        scope.spawn(|| runs.go_on());
        scope.spawn(|| runs.go_on());
    });
    let Runs { table, failures, .. } = runs;
    let table = table.into_inner().unwrap();
    println!("{scripts} scripts, SEED={seed}\n{}", table.text());
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(scripts < SCRIPTS || table.missing() == 0, "{} pairs are missing", table.missing());
}
