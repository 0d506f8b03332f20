//! `stress`: a load that checks itself, on a disk of the user, with a process that is killed again and again.
//!
//! The operations of each commit follow from the seed and the number of the commit, so that the writer (`stress-writer`, a
//! process of its own) and this process, which compares, agree on them without a file. Each commit also stores its number.
//! The writer prints a number before a commit begins and after it was acknowledged. After a kill, the database must have
//! exactly the state after the commit whose number it stores; this is at least the last acknowledged one.
//!
//! With `--fault-one-in` calls of the writer's disk fail. A commit that fails is tried again with the same number until it is
//! acknowledged: its operations have the same effect twice. The comparison reads without faults.
//!
//! Invariant: the exit status is 0 only if every state was read to the end and equals the model.

mod faults;
mod operations;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use siltstone::fs::Fs;
use siltstone::operators::SetBitsOperator;
use siltstone::{
    Batch, Db, Error, ErrorKind, LargeValueOptions, MetaHiveOptions, Partition, PartitionOptions,
    Transaction, TtlRule, VerifyOptions,
};
use testkit::Rng;
use testkit::rng::mix64;

use crate::files;
use crate::output::{Failure, Output, note};
use crate::progress;

use faults::{Faults, FaultyDisk};
use operations::{ExpectedState, LARGE_BYTES, Operation, PARTITIONS, Work, work};

/// The partition with the number of the last commit.
const COUNTER: &str = "counter";
/// Memory of writes, small so that there are many flushes and compactions.
const WRITE_BUFFER_BYTES: u64 = 4 << 20;
/// The pause before a call of the writer is tried again while its disk fails, and the number of its attempts. The store
/// resumes by itself before.
const FAULT_PAUSE: Duration = Duration::from_millis(2);
const FAULT_ATTEMPTS: u32 = 30_000;

/// Arguments of `stress`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder on the disk to be tested, in which the database is made
    folder: PathBuf,
    /// Repeat the run of this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Times that the writer is killed
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Number of different keys in each partition
    #[arg(long, default_value = "5000", value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Commits of a writer until it is killed, at most
    #[arg(long, default_value = "4000", value_parser = clap::value_parser!(u64).range(1..))]
    commits: u64,
    /// One of so many calls of the writer's disk fails: writes, also in their middle, syncs, reads, new files, by an error
    /// of the disk or for lack of space
    #[arg(long, value_parser = clap::value_parser!(u64).range(20..))]
    fault_one_in: Option<u64>,
    /// Keep the database also after success
    #[arg(long)]
    keep: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `stress-writer`.
#[derive(Debug, clap::Args)]
pub(crate) struct WriterArgs {
    /// Folder of the database
    database: PathBuf,
    /// Seed of the operations
    seed: u64,
    /// Number of different keys
    keys: u64,
    /// One of so many calls of the disk fails
    #[arg(long)]
    fault_one_in: Option<u64>,
    /// Seed of the faults
    #[arg(long, default_value = "0")]
    fault_seed: u64,
}

/// An open database with its partitions.
struct Stressed {
    db: Db,
    partitions: Vec<Partition>,
    counter: Partition,
}

impl Stressed {
    fn open(path: &Path, fs: Arc<dyn Fs>) -> Result<Stressed, Failure> {
        let builder = Db::builder(path).fs(fs);
        let db = builder.write_buffer_bytes(WRITE_BUFFER_BYTES).open()?;
        let options = [
            PartitionOptions::new(),
            PartitionOptions::new().metahive(MetaHiveOptions::default()),
            PartitionOptions::new()
                .large_values(LargeValueOptions::new().threshold_bytes(LARGE_BYTES as u64)),
            PartitionOptions::new().merge_operator(Arc::new(SetBitsOperator)),
            PartitionOptions::new().ttl(&TtlRule::in_value(0)),
        ];
        let mut partitions = Vec::new();
        for (name, options) in PARTITIONS.into_iter().zip(options) {
            partitions.push(db.partition_with(name, options)?);
        }
        let counter = db.partition(COUNTER)?;
        Ok(Stressed { db, partitions, counter })
    }

    /// The number of the last commit that the database has.
    fn last_commit(&self) -> Result<u64, Failure> {
        let stored = self.counter.get("commit")?;
        let number = stored.map(|number| number[..].try_into().map(u64::from_be_bytes));
        number
            .unwrap_or(Ok(0))
            .map_err(|_| Failure::NotFound("the number of the last commit is damaged".into()))
    }

    /// Does the work of the commit with this number.
    fn commit(&self, work: &Work, number: u64) -> siltstone::Result<()> {
        match work.is_transaction {
            true => self.transaction(work, number)?.commit(work.durability).map(drop),
            false => self.batch(&work.operations, number).commit(work.durability).map(drop),
        }
    }

    /// A transaction with a lock, and with writes that are rolled back.
    fn transaction(&self, work: &Work, number: u64) -> siltstone::Result<Transaction> {
        let mut transaction = self.db.transaction();
        transaction.get_for_update(&self.counter, "commit")?;
        for operation in &work.operations {
            match operation {
                Operation::Put(at, key, value) => {
                    transaction.put(&self.partitions[*at], key, value);
                }
                Operation::Merge(at, key, operand) => {
                    transaction.merge(&self.partitions[*at], key, operand);
                }
                Operation::Delete(at, key) => transaction.delete(&self.partitions[*at], key),
                Operation::DeleteRange(at, from, to) => {
                    transaction.delete_range(&self.partitions[*at], &from[..]..&to[..]);
                }
                Operation::Clear(at) => transaction.clear(&self.partitions[*at]),
            }
        }
        transaction.set_savepoint();
        transaction.put(&self.partitions[0], "rolled back", "");
        transaction.clear(&self.partitions[1]);
        transaction.rollback_to_savepoint()?;
        transaction.put(&self.counter, "commit", number.to_be_bytes());
        Ok(transaction)
    }

    fn batch(&self, operations: &[Operation], commit: u64) -> Batch {
        let mut batch = self.db.batch();
        for operation in operations {
            match operation {
                Operation::Put(at, key, value) => {
                    batch.of(&self.partitions[*at]).put(key, value);
                }
                Operation::Merge(at, key, operand) => {
                    batch.of(&self.partitions[*at]).merge(key, operand);
                }
                Operation::Delete(at, key) => {
                    batch.of(&self.partitions[*at]).delete(key);
                }
                Operation::DeleteRange(at, from, to) => {
                    batch.of(&self.partitions[*at]).delete_range(&from[..]..&to[..]);
                }
                Operation::Clear(at) => {
                    batch.of(&self.partitions[*at]).clear();
                }
            }
        }
        batch.put(&self.counter, "commit", commit.to_be_bytes())
    }
}

/// Commits until it is killed.
pub(crate) fn write(args: &WriterArgs) -> Result<(), Failure> {
    let faults = args.fault_one_in.map(|one_in| Faults::new(args.fault_seed, one_in));
    let fs = match faults.clone() {
        Some(faults) => Arc::new(FaultyDisk { inner: files::files(), faults }),
        None => files::files(),
    };
    let attempts = if faults.is_some() { FAULT_ATTEMPTS } else { 1 };
    let stressed = patiently(attempts, || Stressed::open(&args.database, fs.clone()))?;
    let mut commit = patiently(attempts, || stressed.last_commit())?;
    let mut out = Output::new(false);
    let mut shown = 0;
    loop {
        commit += 1;
        let work = work(args.seed, commit, args.keys);
        out.raw(format!("begun {commit}\n").as_bytes())?;
        out.flush()?;
        patiently(attempts, || Ok(stressed.commit(&work, commit)?))?;
        out.raw(format!("done {commit}\n").as_bytes())?;
        if let Some(count) = faults.as_ref().map(|it| it.count()).filter(|count| *count > shown) {
            out.raw(format!("faults {count}\n").as_bytes())?;
            shown = count;
        }
        out.flush()?;
        // From the number as well, so that a run of one seed does the same.
        let maintained = match mix64(commit) % 1500 {
            0 => stressed.db.flush(),
            1 => stressed.partitions[commit as usize % PARTITIONS.len()].compact(..),
            _ => Ok(()),
        };
        match maintained {
            // The jobs in the background try it again.
            Err(error) if is_of_disk(&error) && faults.is_some() => {}
            maintained => maintained?,
        }
    }
}

/// Returns `true` for an error that a failing disk causes.
fn is_of_disk(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::ReadOnly)
}

/// Calls `call` until it succeeds, for as long as the disk is the reason why it does not, and at most so often.
fn patiently<T>(attempts: u32, mut call: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    for _ in 1..attempts {
        match call() {
            Err(Failure::Engine(error)) if is_of_disk(&error) => {
                // An early end is one more attempt.
                std::thread::park_timeout(FAULT_PAUSE);
            }
            outcome => return outcome,
        }
    }
    call()
}

/// Runs the rounds.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let seed = args.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish() >> 16);
    let path = args.folder.join(format!("siltstone-stress-{seed}"));
    if path.exists() {
        return Err(Failure::Usage(format!("{} exists", path.display())));
    }
    note(format_args!("siltstone: seed {seed}, in {}", path.display()));
    progress::watch_for_interrupt()?;
    let mut state = ExpectedState::new();
    let mut rng = Rng::new(seed);
    let mut rounds = 0;
    let mut faults = 0;
    while rounds < args.rounds && !progress::is_interrupted() {
        let life = WriterLife {
            seed,
            commits: rng.range(1..args.commits + 1),
            fault_seed: rng.next_u64(),
        };
        let survived = round(args, life, &path, &mut state);
        if let Err(failure) = survived.map(|count| faults += count) {
            note(format_args!(
                "siltstone: failed after {rounds} kills, {} commits; --seed {seed} repeats the operations\n  \
                 the database stays in {}",
                state.commit,
                path.display()
            ));
            return Err(failure);
        }
        rounds += 1;
    }
    if !args.keep {
        std::fs::remove_dir_all(&path).map_err(|e| Failure::io("remove", &path, &e))?;
    }
    let commits = state.commit;
    let mut out = Output::new(args.json);
    let interrupted = if rounds < args.rounds { ", interrupted" } else { "" };
    let failed = if faults > 0 { format!("{faults} faults of the disk, ") } else { String::new() };
    out.line(
        format_args!(
            "{rounds} kills, {failed}{commits} commits, nothing lost, seed {seed}{interrupted}"
        ),
        &json!({ "kills": rounds, "faults": faults, "commits": commits, "seed": seed }),
    )?;
    out.finish()
}

/// The work of a writer until it is killed.
struct WriterLife {
    seed: u64,
    commits: u64,
    fault_seed: u64,
}

/// One life of a writer, and the comparison of its end. Returns the faults of its disk.
fn round(
    args: &Args,
    life: WriterLife,
    path: &Path,
    state: &mut ExpectedState,
) -> Result<u64, Failure> {
    let WriterLife { seed, commits, fault_seed } = life;
    let program = std::env::current_exe().map_err(|e| Failure::io("find", path, &e))?;
    let mut command = Command::new(&program);
    files::hand_keys_to(&mut command);
    command.arg("stress-writer").arg(path).args([seed, args.keys].map(|it| it.to_string()));
    if let Some(one_in) = args.fault_one_in {
        command.args([format!("--fault-one-in={one_in}"), format!("--fault-seed={fault_seed}")]);
    }
    let mut writer = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::io("run", &program, &e))?;
    let WriterEnd { begun, done, faults } =
        killed_after(&mut writer, state.commit + commits, path)?;
    let stressed = Stressed::open(path, files::files())?;
    let stored = stressed.last_commit()?;
    if stored < done.max(state.commit) || stored > begun.max(state.commit) {
        return Err(Failure::NotFound(format!(
            "the last commit is {stored}; {done} was acknowledged, and {begun} had begun"
        )));
    }
    state.advance(seed, args.keys, stored);
    for (at, partition) in stressed.partitions.iter().enumerate() {
        if let Some(what) = state.difference(at, partition)? {
            return Err(Failure::NotFound(format!("after commit {stored}: {what}")));
        }
    }
    let report = stressed.db.verify(VerifyOptions::new())?;
    if let Some(damage) = report.damage().first() {
        return Err(Failure::NotFound(format!("after commit {stored}: {damage}")));
    }
    stressed.db.close()?;
    Ok(faults)
}

/// The last numbers of a writer that was killed.
#[derive(Default)]
struct WriterEnd {
    begun: u64,
    /// Acknowledged.
    done: u64,
    faults: u64,
}

/// Reads what the writer prints, and kills it when it has begun the commit `last`.
fn killed_after(writer: &mut Child, last: u64, path: &Path) -> Result<WriterEnd, Failure> {
    let mut end = WriterEnd::default();
    let mut is_killed = false;
    let printed = writer.stdout.take().expect("its output is a pipe");
    for line in BufReader::new(printed).lines() {
        let line = line.map_err(|e| Failure::io("read the writer of", path, &e))?;
        let Some((word, number)) = line.split_once(' ') else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        let known = match word {
            "begun" => &mut end.begun,
            "done" => &mut end.done,
            _ => &mut end.faults,
        };
        *known = number.max(*known);
        // What it had printed before it died is still read.
        if !is_killed && end.begun >= last {
            is_killed = true;
            writer.kill().map_err(|e| Failure::io("kill the writer of", path, &e))?;
        }
    }
    let status = writer.wait().map_err(|e| Failure::io("wait for the writer of", path, &e))?;
    // Ctrl-C ends the writer, too, because it is of the same group: as a kill does.
    match is_killed || progress::is_interrupted() {
        true => Ok(end),
        false => Err(Failure::NotFound(format!("the writer ended by itself: {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use siltstone::fs::MemFs;

    use super::*;

    /// Two sources of one seed agree, and each way to differ is found and named.
    #[test]
    fn a_state_that_differs_from_the_commits_is_named() {
        let stressed = Stressed::open(Path::new("/db"), Arc::new(MemFs::new())).unwrap();
        let mut state = ExpectedState::new();
        let mut transactions = 0;
        for commit in 1..=300 {
            let work = work(7, commit, 50);
            transactions += u32::from(work.is_transaction);
            stressed.commit(&work, commit).unwrap();
            // As after a failure that had an effect.
            stressed.commit(&work, commit).unwrap();
        }
        assert!(transactions > 20);
        assert_eq!(stressed.last_commit().unwrap(), 300);
        state.advance(7, 50, 300);
        for (at, partition) in stressed.partitions.iter().enumerate() {
            assert!(state.partitions[at].len() > 5, "{}", PARTITIONS[at]);
            assert_eq!(state.difference(at, partition).unwrap(), None);
        }
        let hidden = stressed.partitions[4].with_expired().keys().count();
        assert!(hidden > state.partitions[4].len(), "some have expired");
        let plain = &stressed.partitions[0];
        let (key, _) = plain.first().unwrap().unwrap();
        let (last, _) = plain.last().unwrap().unwrap();
        for (changed, content, what) in [
            (&key[..], Some("other"), "has another value"),
            (&key[..], None, "is lost"),
            (&last[..], None, "is lost"),
            (&b"a"[..], Some("new"), "was deleted and is there"),
            (&b"z"[..], Some("new"), "was deleted and is there"),
        ] {
            let stored = plain.get(changed).unwrap();
            match content {
                Some(content) => plain.put(changed, content).unwrap(),
                None => plain.delete(changed).unwrap(),
            };
            let found = state.difference(0, plain).unwrap().unwrap_or_default();
            assert!(found.ends_with(what) && found.contains("plain"), "{what}: {found}");
            match stored {
                Some(stored) => plain.put(changed, stored).unwrap(),
                None => plain.delete(changed).unwrap(),
            };
            assert_eq!(state.difference(0, plain).unwrap(), None);
        }
    }
}
