//! `siltstone-peers`: the workloads of `siltstone bench`, on siltstone and on other engines.
//!
//! `run.sh` in this folder uses it. `run`, `large` and `features` measure one engine in one process, `report`
//! makes tables of many runs, `quiet` waits for a machine without other work, `check` judges a run
//! by the work of others during it, `warm` makes the host give the machine its memory before
//! anything is measured. `convert` measures nothing: it is here because only this package needs
//! C++.
//!
//! Invariants:
//! 1. A measured engine is used only through `testkit::bench::Engine` and `engines::Peer`.
//! 2. All figures of a report come from its runs.

#![expect(clippy::disallowed_methods, reason = "it measures from outside")]

mod convert;
mod cost;
mod engines;
mod features;
mod large;
mod machine;
mod report;
mod run;
mod settings;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::engines::Fault;

#[derive(Debug, Parser)]
#[command(name = "siltstone-peers", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run workloads on one engine and write what they cost
    Run(run::Args),
    /// Run the workload of large values on one engine and write what it cost
    Large(large::Args),
    /// Run a part of the suite of features on one engine and write its figures
    Features(features::Args),
    /// Wait until others leave the machine alone, and fail if they do not
    Quiet(machine::Args),
    /// Fail if others worked during a run
    Check {
        /// The file that the run wrote
        file: PathBuf,
    },
    /// Make tables of runs
    Report(report::Args),
    /// Convert a database of RocksDB or LevelDB to siltstone's stream of entries, or a stream to a database
    #[command(subcommand)]
    Convert(convert::Args),
    /// List the engines that are compiled in, with their versions
    Engines,
    /// Touch memory and give it back, so that a virtual machine has it
    Warm {
        /// The amount of memory
        #[arg(long, default_value_t = 8)]
        gib: usize,
    },
}

/// Touches every page once.
fn warm(gib: usize) {
    const CHUNK_BYTES: usize = 64 << 20;
    let chunks = (gib << 30) / CHUNK_BYTES;
    // Anything but zero: a page of zeros need not exist.
    let memory: Vec<Vec<u8>> = (0..chunks).map(|n| vec![1 + n as u8 % 255; CHUNK_BYTES]).collect();
    std::hint::black_box(&memory);
}

fn command(cli: &Cli) -> Result<(), Fault> {
    match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Large(args) => large::run(args),
        Command::Features(args) => features::run(args),
        Command::Quiet(args) => machine::wait_until_quiet(args),
        Command::Check { file } => report::check_run(file),
        Command::Report(args) => report::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Engines => {
            let known = engines::NAMES.into_iter();
            for (name, version) in known.filter_map(|name| Some((name, engines::version(name)?))) {
                println!("{name} {version}");
            }
            Ok(())
        }
        Command::Warm { gib } => {
            warm(*gib);
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    match command(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("error: {fault}");
            ExitCode::FAILURE
        }
    }
}
