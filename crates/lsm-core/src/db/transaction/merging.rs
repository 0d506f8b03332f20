//! Own operands of a transaction: merged into its other writes at once, and into stored values when they are read.
//!
//! A merge reads nothing, so two transactions that merge operands into one key do not conflict.

use std::sync::Arc;

use super::own::OwnWrite;
use crate::db::write::operator_of;
use crate::db::{Partition, Snapshot};
use crate::error::Result;
use crate::partition::PartitionState;
use crate::read::AliveAt;
use crate::types::{KeyForm, Slice};

/// The fold of own operands in a partition, and its own entries that have not expired.
pub(super) struct Merging {
    state: Arc<PartitionState>,
    /// At the time of the snapshot.
    alive: Option<AliveAt>,
}

impl Merging {
    pub(super) fn of(partition: &Partition, snapshot: &Snapshot) -> Merging {
        Merging { state: partition.state().clone(), alive: partition.alive_at(snapshot) }
    }

    /// The value, unless an own entry of this key with it has expired.
    pub(super) fn shown(&self, key: &[u8], value: Slice) -> Option<Slice> {
        // Own keys are as they were given.
        let alive = self.alive.as_ref().map(|alive| alive.of(KeyForm::AsGiven));
        if alive.is_none_or(|alive| alive.has(key, Some(&value))) { Some(value) } else { None }
    }

    /// Returns `true` if own entries with this key are there whatever their values are; `None` if that depends on them.
    pub(super) fn is_shown(&self, key: &[u8]) -> Option<bool> {
        let Some(alive) = &self.alive else { return Some(true) };
        (!alive.reads_values()).then(|| alive.of(KeyForm::AsGiven).has(key, None))
    }

    /// The value of a key that `own` sets or deletes, also if it has expired.
    ///
    /// # Errors
    /// Those of the value store.
    pub(super) fn value(&self, key: &[u8], own: &OwnWrite) -> Result<Option<Slice>> {
        own.value(&self.state, key)
    }

    /// `operand` merged into `base`, or the value that it is without one.
    ///
    /// # Errors
    /// Those of the merge operator.
    pub(super) fn fold(&self, key: &[u8], base: Option<Slice>, operand: &[u8]) -> Result<Slice> {
        let operator = operator_of(&self.state, key)?;
        let stored = self.state.key_form.stored(key.to_vec());
        let base = base.map(|base| base.to_vec());
        Ok(operator.fold(&stored, base, std::iter::once(operand))?.into())
    }
}

/// The value of a key with this own state, whose stored value `read` returns.
pub(super) fn seen(
    (partition, snapshot): (&Partition, &Snapshot),
    key: &[u8],
    own: Option<&OwnWrite>,
    read: impl FnOnce() -> Result<Option<Slice>>,
) -> Result<Option<Slice>> {
    match own {
        None => read(),
        Some(OwnWrite::Merge(operand)) => {
            let base = read()?;
            let merging = Merging::of(partition, snapshot);
            let value = merging.fold(key, base, operand)?;
            Ok(merging.shown(key, value))
        }
        Some(own) => {
            let merging = Merging::of(partition, snapshot);
            Ok(merging.value(key, own)?.and_then(|value| merging.shown(key, value)))
        }
    }
}
