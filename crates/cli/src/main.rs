//! The `siltstone` command: benchmarks, loading, reading and looking into databases.
//!
//! This file knows the arguments and the exit codes; the work is in one file per group of
//! subcommands. Results go to standard output, everything else to standard error.
//!
//! Invariants:
//! 1. Exit codes: 0 fine; 1 damage, not found, or a failed operation; 2 wrong usage.
//! 2. A command that only reads never makes a database or a partition.

mod admin;
mod bench;
mod engine;
mod exchange;
mod load;
mod output;
mod read;
mod stats;
mod write;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::output::Failure;

/// Benchmarks, loads, reads and looks into siltstone databases.
#[derive(Debug, Parser)]
#[command(name = "siltstone", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures workloads on a fresh database
    Bench(bench::Args),
    /// Loads files or lines, or compares them with what was loaded
    Load(load::Args),
    /// Prints the value of a key
    Get(read::GetArgs),
    /// Sets a key to a value
    Put(write::PutArgs),
    /// Deletes a key
    Delete(write::DeleteArgs),
    /// Prints entries in key order
    Scan(read::ScanArgs),
    /// Counts the entries
    Count(read::CountArgs),
    /// Merges everything down to the lowest level
    Compact(admin::CompactArgs),
    /// Prints what the engine says of itself
    Stats(stats::Args),
    /// Lists the partitions
    Partitions(admin::PartitionsArgs),
    /// Copies a database; what can be linked is
    Checkpoint(exchange::CheckpointArgs),
    /// Writes entries to tables that any database takes in
    Export(exchange::ExportArgs),
    /// Takes an export in
    Ingest(exchange::IngestArgs),
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Bench(args) => bench::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Get(args) => read::get(&args),
        Command::Put(args) => write::put(&args),
        Command::Delete(args) => write::delete(&args),
        Command::Scan(args) => read::scan(&args),
        Command::Count(args) => read::count(&args),
        Command::Compact(args) => admin::compact(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Partitions(args) => admin::partitions(&args),
        Command::Checkpoint(args) => exchange::checkpoint(&args),
        Command::Export(args) => exchange::export(&args),
        Command::Ingest(args) => exchange::ingest(&args),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            failure.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}
