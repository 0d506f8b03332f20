//! Savepoints of a transaction, and the undo log of its own writes.
//!
//! The log has what each write since the oldest savepoint replaced, so that a savepoint costs nothing by itself: copies
//! of the writes would make a savepoint for each record of a long transaction quadratic.
//!
//! Invariants:
//! 1. Without a savepoint the log is empty.
//! 2. What was read stays noted: the caller knows it, whatever is taken back.

use std::sync::Arc;

use super::own::{OwnPartitions, OwnWrite, OwnWrites};
use crate::error::{Error, ErrorKind, Result};
use crate::types::PartitionId;

/// The savepoints of a transaction.
#[derive(Default)]
pub(super) struct Savepoints {
    points: Vec<Savepoint>,
    undo: Vec<Undo>,
}

/// The parts of a transaction that a rollback restores, as they were.
pub(super) struct Savepoint {
    undo_len: usize,
    pub(super) required_len: usize,
    pub(super) refused: Option<Error>,
}

/// The state that a write replaced.
enum Undo {
    /// The own state of a key.
    Entry { partition: PartitionId, key: Vec<u8>, before: OwnWrite },
    /// Nothing: the key had not been written.
    Unwritten { partition: PartitionId, key: Vec<u8> },
    /// All own writes, by the deletion of a range.
    All { partition: PartitionId, before: Arc<OwnWrites> },
}

impl Savepoints {
    /// Notes the own state of `key` before a write to it.
    pub(super) fn note_entry(&mut self, partition: PartitionId, own: &OwnWrites, key: &[u8]) {
        if !self.points.is_empty() {
            let before = own.entries.get(key).cloned();
            let key = key.to_vec();
            self.undo.push(match before {
                Some(before) => Undo::Entry { partition, key, before },
                None => Undo::Unwritten { partition, key },
            });
        }
    }

    /// Notes all own writes to a partition before the deletion of a range.
    pub(super) fn note_all(&mut self, partition: PartitionId, own: &Arc<OwnWrites>) {
        if !self.points.is_empty() {
            self.undo.push(Undo::All { partition, before: own.clone() });
        }
    }

    /// Adds a savepoint to a transaction with so many requirements, and its error.
    pub(super) fn set(&mut self, required_len: usize, refused: Option<Error>) {
        self.points.push(Savepoint { undo_len: self.undo.len(), required_len, refused });
    }

    /// Takes back the writes since the newest savepoint, and removes and returns it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is none.
    pub(super) fn roll_back(&mut self, writes: &mut OwnPartitions) -> Result<Savepoint> {
        let savepoint = self.take()?;
        // Backwards: a key may have been written several times.
        for undo in self.undo.drain(savepoint.undo_len..).rev() {
            undo.apply(writes);
        }
        Ok(savepoint)
    }

    /// Removes the newest savepoint, and keeps what was done since.
    ///
    /// # Errors
    /// As [`Savepoints::roll_back`].
    pub(super) fn pop(&mut self) -> Result<()> {
        self.take()?;
        if self.points.is_empty() {
            self.undo.clear();
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Savepoint> {
        let message = "the transaction has no savepoint";
        self.points.pop().ok_or_else(|| Error::new(ErrorKind::InvalidArgument, message))
    }
}

impl Undo {
    fn apply(self, writes: &mut OwnPartitions) {
        match self {
            Undo::Entry { partition, key, before } => {
                Arc::make_mut(own_of(writes, partition)).entries.insert(key, before);
            }
            Undo::Unwritten { partition, key } => {
                Arc::make_mut(own_of(writes, partition)).entries.remove(&key);
            }
            Undo::All { partition, before } => *own_of(writes, partition) = before,
        }
    }
}

/// The own writes to a partition that was written to.
fn own_of(writes: &mut OwnPartitions, partition: PartitionId) -> &mut Arc<OwnWrites> {
    let (_, own) = writes.get_mut(&partition).expect("the undo log names what was written to");
    own
}
