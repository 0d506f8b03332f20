//! `bench scid-ml`: predictors of the consistency level of a read, as in the SCID thesis (section 6.3), and its baselines.
//!
//! A trace of operations by Zipf's law is made from a seed. The level of a key is its class by accesses: level 1 for the
//! keys of the fifth of the operations whose keys are accessed most, level 5 for those that are accessed least. Predictors
//! learn from the training part, and guess the level of each read of the test part. `trace.rs` has the operations and
//! their parts, `models.rs` the predictors without learning and the counters, `forest.rs` the random forest, `experiment.rs`
//! the order of all, and `report.rs` its result.

mod experiment;
mod forest;
mod models;
mod report;
mod trace;

use crate::output::{Failure, Output};

/// Arguments of `bench scid-ml`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Keys of the data set
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(10..=trace::RECORDS_MAX))]
    records: u64,
    /// Operations of the trace
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    ops: u64,
    /// Percent of the operations that are updates; the others are reads
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=90))]
    updates: u64,
    /// Trees of the forests; 0 for no forest
    #[arg(long, default_value_t = 60)]
    trees: usize,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the experiment and reports.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let settings = experiment::Settings {
        shape: trace::Shape { records: args.records, ops: args.ops, updates: args.updates },
        trees: args.trees,
        seed: args.seed,
    };
    let mut out = Output::new(args.json);
    out.line(report::head(&settings), &report::settings(&settings))?;
    for split in trace::Split::ALL {
        let outcomes = experiment::run(&settings, split);
        out.line(report::text(split, &outcomes), &report::json(split, &outcomes))?;
        out.flush()?;
    }
    out.finish()
}
