//! [`Commit`], and options of writes.

use std::hash::{Hash, Hasher};

use pyo3::prelude::*;
use siltstone::{Durability, Epoch, SeqNo, WriteOptions};

use crate::error::{Result, invalid_argument};

/// A commit: its place in the history of the database, and the token for reads of a secondary.
#[pyclass(frozen, eq, hash, get_all, module = "siltstone")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    seq: u64,
    epoch: u32,
}

impl Hash for Commit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.seq, self.epoch).hash(state);
    }
}

#[pymethods]
impl Commit {
    #[new]
    fn new(seq: u64, epoch: u32) -> Commit {
        Commit { seq, epoch }
    }

    // A token goes to other processes.
    fn __getnewargs__(&self) -> (u64, u32) {
        (self.seq, self.epoch)
    }

    fn __repr__(&self) -> String {
        format!("Commit(seq={}, epoch={})", self.seq, self.epoch)
    }
}

impl From<siltstone::Commit> for Commit {
    fn from(commit: siltstone::Commit) -> Commit {
        Commit { seq: commit.seq.get(), epoch: commit.epoch.0 }
    }
}

impl Commit {
    /// The commit as the engine has it.
    pub fn token(&self) -> Result<siltstone::Commit> {
        Ok(siltstone::Commit { seq: seq_no(self.seq)?, epoch: Epoch(self.epoch) })
    }
}

/// The sequence number `n`.
pub fn seq_no(n: u64) -> Result<SeqNo> {
    SeqNo::new(n).ok_or_else(|| invalid_argument(format!("{n} is no sequence number")))
}

/// The options of a write.
pub fn write_options(sync: bool, waits: bool) -> WriteOptions {
    WriteOptions::from(durability(sync)).waits(waits)
}

/// The durability of a write.
pub fn durability(sync: bool) -> Durability {
    if sync { Durability::Sync } else { Durability::Os }
}
