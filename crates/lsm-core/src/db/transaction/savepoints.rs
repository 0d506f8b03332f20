//! Savepoints of a transaction, and the states that a rollback brings back.
//!
//! A savepoint has the first state of each key that was written since, so that it costs nothing by itself: copies
//! of the writes would make a savepoint for each record of a long transaction quadratic, and so would each state of a
//! key that is merged into again and again.
//!
//! Invariants:
//! 1. Writes before the first savepoint keep no state.
//! 2. What was read stays noted: the caller knows it, whatever is taken back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::own::{OwnPartitions, OwnWrite, OwnWrites};
use crate::error::{Error, ErrorKind, Result};
use crate::types::PartitionId;

/// The savepoints of a transaction, the newest last.
#[derive(Default)]
pub(super) struct Savepoints(Vec<Savepoint>);

/// The parts of a transaction that a rollback restores, as they were.
pub(super) struct Savepoint {
    undo: BTreeMap<PartitionId, Undo>,
    pub(super) required_len: usize,
    pub(super) refused: Option<Error>,
}

/// The own writes to a partition as they were, as far as they changed until the next savepoint.
#[derive(Default)]
struct Undo {
    /// All of them, before the first deletion of a range.
    all: Option<Arc<OwnWrites>>,
    /// The first states of the keys that were written before that; `None` if the key had not been written.
    entries: HashMap<Vec<u8>, Option<OwnWrite>>,
}

impl Savepoints {
    /// Notes the own state of `key` before a write to it.
    pub(super) fn note_entry(&mut self, partition: PartitionId, own: &OwnWrites, key: &[u8]) {
        if let Some(undo) = self.undo_of(partition)
            && undo.all.is_none()
            && !undo.entries.contains_key(key)
        {
            undo.entries.insert(key.to_vec(), own.entries.get(key).cloned());
        }
    }

    /// Notes all own writes to a partition before the deletion of a range.
    pub(super) fn note_all(&mut self, partition: PartitionId, own: &Arc<OwnWrites>) {
        if let Some(undo) = self.undo_of(partition) {
            undo.all.get_or_insert_with(|| own.clone());
        }
    }

    fn undo_of(&mut self, partition: PartitionId) -> Option<&mut Undo> {
        Some(self.0.last_mut()?.undo.entry(partition).or_default())
    }

    /// Adds a savepoint to a transaction with so many requirements, and its error.
    pub(super) fn set(&mut self, required_len: usize, refused: Option<Error>) {
        self.0.push(Savepoint { undo: BTreeMap::new(), required_len, refused });
    }

    /// Takes back the writes since the newest savepoint, and removes and returns it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is none.
    pub(super) fn roll_back(&mut self, writes: &mut OwnPartitions) -> Result<Savepoint> {
        let mut savepoint = self.take()?;
        for (partition, undo) in std::mem::take(&mut savepoint.undo) {
            let (_, own) = writes.get_mut(&partition).expect("it was written to");
            undo.apply(own);
        }
        Ok(savepoint)
    }

    /// Removes the newest savepoint, and keeps what was done since.
    ///
    /// # Errors
    /// As [`Savepoints::roll_back`].
    pub(super) fn pop(&mut self) -> Result<()> {
        for (partition, undo) in self.take()?.undo {
            if let Some(older) = self.undo_of(partition) {
                older.follow(undo);
            }
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Savepoint> {
        let message = "the transaction has no savepoint";
        self.0.pop().ok_or_else(|| Error::new(ErrorKind::InvalidArgument, message))
    }
}

impl Undo {
    /// Adds what was noted after it: an older state counts.
    fn follow(&mut self, newer: Undo) {
        if self.all.is_none() {
            self.all = newer.all;
            for (key, before) in newer.entries {
                self.entries.entry(key).or_insert(before);
            }
        }
    }

    fn apply(self, own: &mut Arc<OwnWrites>) {
        if let Some(all) = self.all {
            *own = all;
        }
        for (key, before) in self.entries {
            let entries = &mut Arc::make_mut(own).entries;
            match before {
                Some(before) => drop(entries.insert(key, before)),
                None => drop(entries.remove(&key)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Slice;

    /// Each write kept a copy of the state before it: merges into one key were quadratic in memory.
    #[test]
    fn of_a_key_that_is_written_again_and_again_the_first_state_is_kept() {
        let value: Arc<[u8]> = b"value".as_slice().into();
        let mut own = OwnWrites::default();
        let mut savepoints = Savepoints::default();
        savepoints.set(0, None);
        for _ in 0..100 {
            savepoints.note_entry(PartitionId(1), &own, b"key");
            let state = OwnWrite::Put(Slice::share(&value, 0, 5));
            own.entries.insert(b"key".to_vec(), state);
        }
        assert_eq!(Arc::strong_count(&value), 2, "the present state shares it");
    }
}
