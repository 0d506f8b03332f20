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
mod beside;
mod bytes;
mod dump;
mod engine;
mod exchange;
mod explain;
mod levels;
mod load;
mod output;
mod parts;
mod progress;
mod read;
mod scrub;
mod secondary;
mod stats;
mod verify;
mod write;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::output::{Failure, Output};

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
    /// Reads every file of the database and names all damage
    Verify(verify::Args),
    /// Holds every entry against its metadata and names all that disagree
    Scrub(scrub::Args),
    /// Prints every stored version of a key, where it lies, and whether it is what was written
    Explain(explain::Args),
    /// Shows the tables on each level
    Levels(levels::Args),
    /// Prints what each byte of a file of a database means
    Dump(dump::Args),
    /// Copies a database; what can be linked is
    Checkpoint(exchange::CheckpointArgs),
    /// Writes entries to tables that any database takes in
    Export(exchange::ExportArgs),
    /// Takes an export in
    Ingest(exchange::IngestArgs),
    /// Follows a database that another process writes, and prints how far behind it is
    Secondary(secondary::Args),
    /// Prints a script that completes the arguments of this command in a shell
    Completions(Completions),
}

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

fn completions(args: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "siltstone", &mut script);
    let mut out = Output::new(false);
    out.raw(&script)?;
    out.finish()
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
        Command::Verify(args) => verify::run(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Levels(args) => levels::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Checkpoint(args) => exchange::checkpoint(&args),
        Command::Export(args) => exchange::export(&args),
        Command::Ingest(args) => exchange::ingest(&args),
        Command::Secondary(args) => secondary::run(&args),
        Command::Completions(args) => completions(&args),
    }
}

/// Lets this process open as many files as it may: with a large database, a table that is closed
/// for others is opened again at each read. The library leaves the limit alone, because it is the
/// application's.
fn raise_open_files_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If it is refused, the limit stays what it was, and the database keeps to that.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn main() -> ExitCode {
    raise_open_files_limit();
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

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}
