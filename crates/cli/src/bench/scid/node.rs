//! A process of the experiment: the primary or a secondary, which answers one request after
//! another.
//!
//! Only `bench scid` starts it; `link.rs` describes the bytes of requests and answers.

use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use siltstone::secondary::{Level, ReadOptions, SecondaryPartition};
use siltstone::{Commit, Db, Epoch, Partition, Result, SeqNo, Slice};

use super::link::{
    ANSWER_BYTES, COST, FAILED, FOUND, GET_STRONG, MISSING, PUT, REACH, REQUEST_BYTES, REST,
    u32_at, u64_at,
};
use super::own_processor_time;
use crate::output::Failure;

/// Name of the partition.
const PARTITION: &str = "bench";

/// Arguments of a process of `bench scid`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Role of the process
    #[arg(value_enum)]
    role: Role,
    /// Folder of the database
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Role {
    /// The primary, which writes.
    Primary,
    /// A secondary, which follows.
    Secondary,
}

/// The partition that is served.
enum Served {
    Primary(Db, Partition),
    Secondary(SecondaryPartition),
}

/// A request.
struct Request {
    verb: u8,
    commit: Commit,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Served {
    /// Executes a request. Returns the commit and the value.
    fn serve(&self, request: &Request) -> Result<(Commit, Option<Slice>)> {
        let Request { verb, commit, key, value } = request;
        match self {
            _ if *verb == COST => {
                let time = own_processor_time().to_le_bytes();
                Ok((*commit, Some(Slice::from(&time[..]))))
            }
            Served::Primary(db, partition) if *verb == REST => {
                partition.compact(..)?;
                Ok((*commit, db.wait_idle().map(|()| None)?))
            }
            Served::Primary(_, partition) if *verb == PUT => Ok((partition.put(key, value)?, None)),
            Served::Primary(_, partition) => Ok((*commit, partition.get(key)?)),
            Served::Secondary(partition) if *verb == REACH => {
                let options = ReadOptions::new(Level::Session(*commit));
                partition.read(&options.wait(Duration::from_secs(10)))?;
                Ok((*commit, None))
            }
            Served::Secondary(partition) if *verb == GET_STRONG => {
                let options = ReadOptions::new(Level::Strong).wait(Duration::from_secs(10));
                Ok((*commit, partition.get_with(key, &options)?))
            }
            Served::Secondary(partition) => Ok((*commit, partition.get(key)?)),
        }
    }
}

/// Serves until the requests end.
pub(crate) fn run(args: &Args) -> std::result::Result<(), Failure> {
    match args.role {
        Role::Primary => {
            let db = Db::open(&args.folder)?;
            let partition = db.partition(PARTITION)?;
            serve(&Served::Primary(db.clone(), partition))?;
            Ok(db.close()?)
        }
        Role::Secondary => {
            let secondary = Db::secondary(&args.folder)?;
            serve(&Served::Secondary(secondary.partition(PARTITION)?))
        }
    }
}

fn serve(served: &Served) -> std::result::Result<(), Failure> {
    let mut requests = BufReader::new(std::io::stdin().lock());
    let mut answers = std::io::stdout().lock();
    let mut answer = Vec::new();
    answer_with(&mut answer, FOUND, nothing(), &[]);
    loop {
        answers.write_all(&answer).map_err(gone)?;
        answers.flush().map_err(gone)?;
        let Some(request) = next_request(&mut requests) else { return Ok(()) };
        match served.serve(&request) {
            Ok((commit, Some(value))) => answer_with(&mut answer, FOUND, commit, &value),
            Ok((commit, None)) => answer_with(&mut answer, MISSING, commit, &[]),
            Err(error) => {
                answer_with(&mut answer, FAILED, nothing(), error.to_string().as_bytes());
            }
        }
    }
}

fn gone(_: std::io::Error) -> Failure {
    Failure::PipeClosed
}

fn nothing() -> Commit {
    Commit { seq: SeqNo::ZERO, epoch: Epoch(0) }
}

/// The next request; `None` when there will be none.
fn next_request(requests: &mut impl Read) -> Option<Request> {
    let mut head = [0; REQUEST_BYTES];
    requests.read_exact(&mut head).ok()?;
    let mut key = vec![0; u32_at(&head, 13) as usize];
    requests.read_exact(&mut key).ok()?;
    let mut value = vec![0; u32_at(&head, 17) as usize];
    requests.read_exact(&mut value).ok()?;
    let commit = Commit { seq: SeqNo::new(u64_at(&head, 1))?, epoch: Epoch(u32_at(&head, 9)) };
    Some(Request { verb: head[0], commit, key, value })
}

fn answer_with(answer: &mut Vec<u8>, status: u8, commit: Commit, value: &[u8]) {
    answer.clear();
    answer.reserve(ANSWER_BYTES + value.len());
    answer.push(status);
    answer.extend_from_slice(&commit.seq.get().to_le_bytes());
    answer.extend_from_slice(&commit.epoch.0.to_le_bytes());
    answer.extend_from_slice(&(value.len() as u32).to_le_bytes());
    answer.extend_from_slice(value);
}
