//! [`Link`]: a process of the experiment, as its client sees it; [`Node`], one that is reached through pipes.
//!
//! ```text
//! request   verb u8, sequence u64, epoch u32, key length u32, value length u32, key, value
//! answer    status u8, sequence u64, epoch u32, value length u32, value
//! ```
//!
//! All numbers are little-endian. Requests and answers take turns on a pipe each way.

use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use siltstone::{Commit, Epoch, SeqNo};

use crate::output::Failure;

/// The verbs of requests.
pub(super) const GET: u8 = 0;
pub(super) const GET_STRONG: u8 = 1;
pub(super) const PUT: u8 = 2;
pub(super) const REACH: u8 = 3;
pub(super) const REST: u8 = 4;
pub(super) const COST: u8 = 5;
/// The statuses of answers.
pub(super) const FOUND: u8 = 0;
pub(super) const MISSING: u8 = 1;
pub(super) const FAILED: u8 = 2;

pub(super) const REQUEST_BYTES: usize = 21;
pub(super) const ANSWER_BYTES: usize = 17;

/// A process of the experiment, as its client sees it.
pub(super) trait Link: Sized {
    /// A write, as another process is asked for it.
    type Written;

    /// Writes.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Self::Written, Failure>;

    /// Writes many records. Returns the last write.
    fn fill(&mut self, records: &[(Vec<u8>, &[u8])]) -> Result<Option<Self::Written>, Failure> {
        let mut last = None;
        for (key, value) in records {
            last = Some(self.put(key, value)?);
        }
        Ok(last)
    }

    /// Reads.
    fn get(&mut self, is_strong: bool, key: &[u8]) -> Result<Option<Vec<u8>>, Failure>;

    /// Asks a secondary to apply everything through `written`; [`Link::reached`] waits for that.
    fn ask_to_reach(&mut self, written: &Self::Written) -> Result<(), Failure>;

    /// Waits until a secondary has applied what it was asked for.
    fn reached(&mut self) -> Result<(), Failure>;

    /// Waits until the process has no background work.
    fn rest(&mut self) -> Result<(), Failure>;

    /// The processor time that the process has taken, in nanoseconds.
    fn processor_time(&mut self) -> Result<u64, Failure>;

    /// Ends the process.
    fn stop(self) -> Result<(), Failure>;
}

/// A process of the experiment that is reached through pipes.
pub(super) struct Node {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    buffer: Vec<u8>,
}

/// An answer.
pub(super) struct Answer {
    pub(super) commit: Commit,
    pub(super) value: Option<Vec<u8>>,
}

fn broken(action: &str, e: &std::io::Error) -> Failure {
    Failure::Io(format!("cannot {action} a process of the experiment: {e}"))
}

/// The number in the bytes from `at` on.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The number in the bytes from `at` on.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Node {
    /// Starts a process for the database in `folder`.
    pub(super) fn start(folder: &Path, role: &str) -> Result<Node, Failure> {
        let program = std::env::current_exe().map_err(|e| broken("find", &e))?;
        let mut command = Command::new(program);
        command.arg("bench-scid-node").arg(role).arg(folder);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|e| broken("start", &e))?;
        let requests = child.stdin.take();
        let answers = child.stdout.take().expect("it is piped");
        let mut node =
            Node { child, requests, answers: BufReader::new(answers), buffer: Vec::new() };
        // The process reports when it is ready.
        node.answer()?;
        Ok(node)
    }

    fn ask(&mut self, verb: u8, commit: Commit, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.buffer.clear();
        self.buffer.push(verb);
        self.buffer.extend_from_slice(&commit.seq.get().to_le_bytes());
        self.buffer.extend_from_slice(&commit.epoch.0.to_le_bytes());
        self.buffer.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(value);
        let requests = self.requests.as_mut().expect("it is closed by `stop` alone");
        requests.write_all(&self.buffer).map_err(|e| broken("ask", &e))
    }

    /// Waits for an answer.
    pub(super) fn answer(&mut self) -> Result<Answer, Failure> {
        let mut head = [0; ANSWER_BYTES];
        self.answers.read_exact(&mut head).map_err(|e| broken("hear", &e))?;
        let mut value = vec![0; u32_at(&head, 13) as usize];
        self.answers.read_exact(&mut value).map_err(|e| broken("hear", &e))?;
        let seq = SeqNo::new(u64_at(&head, 1)).unwrap_or_default();
        let commit = Commit { seq, epoch: Epoch(u32_at(&head, 9)) };
        match head[0] {
            FOUND => Ok(Answer { commit, value: Some(value) }),
            MISSING => Ok(Answer { commit, value: None }),
            _ => Err(Failure::Io(String::from_utf8_lossy(&value).into_owned())),
        }
    }
}

impl Link for Node {
    type Written = Commit;

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Commit, Failure> {
        self.ask(PUT, nothing(), key, value)?;
        Ok(self.answer()?.commit)
    }

    fn get(&mut self, is_strong: bool, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        self.ask(if is_strong { GET_STRONG } else { GET }, nothing(), key, &[])?;
        Ok(self.answer()?.value)
    }

    fn ask_to_reach(&mut self, written: &Commit) -> Result<(), Failure> {
        self.ask(REACH, *written, &[], &[])
    }

    fn reached(&mut self) -> Result<(), Failure> {
        self.answer().map(drop)
    }

    /// Makes the primary flush and compact everything, too.
    fn rest(&mut self) -> Result<(), Failure> {
        self.ask(REST, nothing(), &[], &[])?;
        self.answer().map(drop)
    }

    fn processor_time(&mut self) -> Result<u64, Failure> {
        self.ask(COST, nothing(), &[], &[])?;
        let value = self.answer()?.value.unwrap_or_default();
        Ok(if value.len() == 8 { u64_at(&value, 0) } else { 0 })
    }

    fn stop(mut self) -> Result<(), Failure> {
        drop(self.requests.take());
        let status = self.child.wait().map_err(|e| broken("end", &e))?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::Io(format!("a process of the experiment ended with {status}"))),
        }
    }
}

fn nothing() -> Commit {
    Commit { seq: SeqNo::ZERO, epoch: Epoch(0) }
}
