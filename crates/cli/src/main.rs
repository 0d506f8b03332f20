//! The `siltstone` command: measures, loads, reads and inspects databases.
//!
//! This file defines the subcommands and the exit status; each group of subcommands has its own file.
//! Results go to standard output, everything else to standard error.
//!
//! Invariants:
//! 1. Exit status: 0 success; 1 damage, not found, or a failed operation; 2 wrong usage.
//! 2. A subcommand that only reads never creates a database or a partition.

mod admin;
mod backup;
mod bench;
mod bucket;
mod bytes;
mod chunks;
mod diff;
mod dump;
#[cfg(feature = "encryption")]
mod encryption;
mod engine;
mod exchange;
mod explain;
mod files;
mod folder;
mod gaps;
mod levels;
mod load;
mod merge;
mod moment;
#[cfg(all(feature = "server", unix))]
mod operate;
mod output;
mod partition;
mod parts;
mod progress;
mod promote;
mod read;
mod readers;
mod remotes;
mod repair;
mod resp;
#[cfg(feature = "server")]
mod route;
mod scrub;
mod secondary;
#[cfg(feature = "server")]
mod serve;
#[cfg(feature = "server")]
mod shards;
mod shell;
mod simulate;
mod source;
mod stats;
mod streams;
mod stress;
mod svg;
#[cfg(feature = "tls")]
mod tls;
mod verify;
mod watch;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::output::{Failure, LogFormat, Output, set_log_format};

/// Measures, loads, reads and inspects siltstone databases
#[derive(Debug, Parser)]
#[command(name = "siltstone", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Open encrypted databases with the keys of this file: on each line an identifier and 64 hex digits, the last line
    /// for new files; `$SILTSTONE_KEY_FILE` without this
    #[cfg(feature = "encryption")]
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Form of what the command says on standard error: lines of text, or an object of JSON each
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs workloads on a new database and prints their speed
    Bench(bench::Args),
    /// Loads files or rows into a partition, or compares them with it
    Load(load::Args),
    /// Reads subcommands line by line, for one database
    ///
    /// A line is a subcommand without the name of the database: `get alice`, `scan --limit 10`. `use NAME` sets the partition,
    /// `exit` ends. Output that is longer than the terminal goes through $PAGER, or `less`. Builds with the feature
    /// `shell` edit and complete lines.
    Shell(shell::Args),
    /// Prints the value of a key
    Get(read::GetArgs),
    /// Sets a key to a value
    Put(write::PutArgs),
    /// Merges an operand into the value of a key, by the merge operator of the partition
    Merge(merge::MergeArgs),
    /// Deletes a key, or all keys of a range
    Delete(write::DeleteArgs),
    /// Prints entries in key order
    Scan(read::ScanArgs),
    /// Prints the number of entries
    Count(read::CountArgs),
    /// Compacts partitions to the bottom level
    ///
    /// Deleted, overwritten and expired entries leave the disk, unless a reader still needs them.
    Compact(admin::CompactArgs),
    /// Prints statistics, health and limits
    ///
    /// Counters begin at 0 when the command opens the database. If another process writes, the
    /// command shows the state at its start; only that process knows its counters (`Db::stats`).
    Stats(stats::Args),
    /// Lists the partitions
    Partitions(admin::PartitionsArgs),
    /// Creates, drops or clears a partition, or shows and changes its options
    #[command(subcommand)]
    Partition(partition::PartitionCommand),
    /// Prints the keys that differ between two databases
    ///
    /// `<` is only in the first, `>` only in the second, `!` has another value. The exit status is 0 if nothing differs, and 1
    /// otherwise. Databases that other processes write are compared as of the start.
    Diff(diff::Args),
    /// Lists ranges of lost entries, repairs them, or accepts the loss
    #[command(subcommand)]
    Gaps(gaps::GapsCommand),
    /// Reads every file of the database and reports all damage
    ///
    /// The command opens the database, which recovers it, unless another process writes it or the folder
    /// cannot be written. It repairs nothing. The exit status is 1 if there is damage.
    Verify(verify::Args),
    /// Makes a new database of everything that can be read of a damaged one
    ///
    /// The damaged database is not changed: it may lie on a read-only medium, and files of it may be missing, the manifest
    /// too. The report names what is lost, by key where that is known. No other process may have it open.
    Repair(repair::Args),
    /// Compares every entry with its metadata and reports all differences
    Scrub(scrub::Args),
    /// Prints every stored version of a key, with its place and its verdict
    Explain(explain::Args),
    /// Prints the tables of each level
    Levels(levels::Args),
    /// Prints the chunk files of large values, with their live and dead bytes
    Chunks(chunks::Args),
    /// Prints the meaning of each byte of a database file
    Dump(dump::Args),
    /// Copies a database, with hard links if possible
    ///
    /// Another process may write the database meanwhile: the copy has what it had committed, and its log is copied as
    /// well. The sequence number of the last commit in it is printed.
    Checkpoint(exchange::CheckpointArgs),
    /// Makes, lists, verifies, restores and deletes backups that share what is the same
    ///
    /// A backup may be made while another process writes the database. docs/backup.md describes costs and guarantees.
    #[command(subcommand)]
    Backup(backup::BackupCommand),
    /// Writes a range of entries to tables or to a stream, for any database
    ///
    /// If another process writes, the export has everything that it has committed at the start.
    Export(exchange::ExportArgs),
    /// Adds the entries of an export to a partition
    ///
    /// They replace entries with the same keys. All other entries of the partition stay.
    Ingest(exchange::IngestArgs),
    /// Adds the entries of a stream, or of text of `db_dump`
    ///
    /// They replace entries with the same keys. All other entries of the partitions stay.
    Import(streams::ImportArgs),
    /// Follows a database that another process writes, and prints the lag
    Secondary(secondary::Args),
    /// Serves a database over TCP, by the protocol of Redis
    ///
    /// It runs until SIGTERM or Ctrl-C, answers what it has received, and closes the database.
    #[cfg(feature = "server")]
    Serve(Box<serve::Args>),
    /// Passes requests on to the nodes of a database that `serve` serves
    ///
    /// Writes go to the primary, and each read goes to a node that can serve its level. It runs until SIGTERM or Ctrl-C.
    #[cfg(feature = "server")]
    Route(Box<route::Args>),
    /// Makes maps of shards, and moves hash slots from one shard to another
    ///
    /// Each shard is a database with a primary and readers of its own (`serve --shard`), and `route --shards` sends each key
    /// to the shard that owns its slot. docs/shards.md describes the steps and the guarantees.
    #[cfg(feature = "server")]
    #[command(subcommand)]
    Shards(Box<shards::Command>),
    /// Starts and stops readers by load, and lists them for routers
    ///
    /// A reader serves when it is in the file of the nodes, and ends once it is out of it and quiet. It runs until SIGTERM or
    /// Ctrl-C, and ends its readers then. docs/readers.md describes targets and times.
    #[cfg(all(feature = "server", unix))]
    Operate(Box<operate::Args>),
    /// Prints the commits of a database in their order, until interrupted
    ///
    /// Only durable commits are printed. A line is a change: the token to go on with, the partition, the change.
    Watch(watch::Args),
    /// Lists the secondaries that hold files of a database
    Readers(readers::Args),
    /// Computes what a database of a size will cost, without its data
    ///
    /// Write and space amplification, the tables that a get asks, and the tables of each level, over the number of
    /// records: the engine chooses the compactions of tables that have sizes and ranges of keys alone. docs/scale.md
    /// compares it with real runs.
    Simulate(simulate::Args),
    /// Checks the disk and siltstone by a random load, with a writer that is killed again and again
    ///
    /// After each kill everything is compared with what must be there, and all files are verified. The seed is printed.
    /// A kill of a process does not show what a power cut does to the disk.
    Stress(stress::Args),
    /// The writer of `stress`
    #[command(hide = true)]
    StressWriter(stress::WriterArgs),
    /// A process of `bench scid`
    #[command(hide = true)]
    BenchScidNode(bench::scid::NodeArgs),
    /// Takes a database from the process that writes it, which is fenced
    Promote(promote::Args),
    /// Restores, verifies, copies or takes over a database in a bucket, or shows why its objects are there
    ///
    /// A URL names the bucket: `file:///folder`, and what the features of this build add, such as `s3://bucket/prefix`.
    /// Credentials come from the provider's usual variables.
    #[command(subcommand)]
    Remote(remotes::RemoteCommand),
    /// Makes keys, lists the keys of files, and changes the key of a database
    #[cfg(feature = "encryption")]
    #[command(subcommand)]
    Encryption(encryption::EncryptionCommand),
    /// Prints a completion script for a shell
    Completions(Completions),
    /// Writes the manual pages into a folder, one for each subcommand
    Man(Man),
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

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
struct Man {
    /// The folder, which must exist, such as `/usr/local/share/man/man1`
    folder: PathBuf,
}

fn man(args: &Man) -> Result<(), Failure> {
    let written = clap_mangen::generate_to(Cli::command(), &args.folder);
    written.map_err(|e| Failure::io("write manual pages into", &args.folder, &e))
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Bench(args) => bench::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Shell(args) => shell::run(&args, Cli::command()),
        Command::Get(args) => read::get(&args),
        Command::Put(args) => write::put(&args),
        Command::Merge(args) => merge::merge(&args),
        Command::Delete(args) => write::delete(&args),
        Command::Scan(args) => read::scan(&args),
        Command::Count(args) => read::count(&args),
        Command::Compact(args) => admin::compact(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Partitions(args) => admin::partitions(&args),
        Command::Partition(command) => partition::run(&command),
        Command::Diff(args) => diff::run(&args),
        Command::Gaps(command) => gaps::run(&command),
        Command::Verify(args) => verify::run(&args),
        Command::Repair(args) => repair::run(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Levels(args) => levels::run(&args),
        Command::Chunks(args) => chunks::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Checkpoint(args) => exchange::checkpoint(&args),
        Command::Backup(command) => backup::run(&command),
        Command::Export(args) => exchange::export(&args),
        Command::Ingest(args) => exchange::ingest(&args),
        Command::Import(args) => streams::import(&args),
        Command::Secondary(args) => secondary::run(&args),
        #[cfg(feature = "server")]
        Command::Serve(args) => serve::run(&args),
        #[cfg(feature = "server")]
        Command::Route(args) => route::run(&args),
        #[cfg(feature = "server")]
        Command::Shards(command) => shards::run(&command),
        #[cfg(all(feature = "server", unix))]
        Command::Operate(args) => operate::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Readers(args) => readers::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Stress(args) => stress::run(&args),
        Command::StressWriter(args) => stress::write(&args),
        Command::BenchScidNode(args) => bench::scid::run_node(&args),
        Command::Promote(args) => promote::run(&args),
        Command::Remote(command) => remotes::run(&command),
        #[cfg(feature = "encryption")]
        Command::Encryption(command) => encryption::run(&command),
        Command::Completions(args) => completions(&args),
        Command::Man(args) => man(&args),
    }
}

/// Raises the number of files that this process may open to its maximum: with a large database, a
/// table that is closed for others is opened again at each read. The library does not change the
/// limit, because it belongs to the application.
#[cfg(unix)]
fn raise_open_files_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If it is refused, the limit does not change, and the database keeps to it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// There is no such limit.
#[cfg(not(unix))]
fn raise_open_files_limit() {}

/// Reads the keys, if a file of them was named.
#[cfg(feature = "encryption")]
fn use_keys(cli: &Cli) -> Result<(), Failure> {
    let named = std::env::var_os(files::KEY_FILE_VARIABLE).filter(|path| !path.is_empty());
    match cli.key_file.clone().or(named.map(PathBuf::from)) {
        Some(path) => files::use_keys(&path),
        None => Ok(()),
    }
}

/// There are no keys.
#[cfg(not(feature = "encryption"))]
#[expect(clippy::unnecessary_wraps, reason = "with the feature it can fail")]
fn use_keys(_: &Cli) -> Result<(), Failure> {
    Ok(())
}

fn main() -> ExitCode {
    raise_open_files_limit();
    let cli = Cli::parse();
    set_log_format(cli.log_format);
    match use_keys(&cli).and_then(|()| run(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report();
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
