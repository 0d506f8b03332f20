//! Own operands of a transaction: merged into its other writes at once, and into stored values when they are read.
//!
//! A merge reads nothing, so two transactions that merge operands into one key do not conflict.

use std::sync::Arc;

use super::own::OwnWrite;
use crate::db::Partition;
use crate::db::write::operator_of;
use crate::error::Result;
use crate::partition::PartitionState;
use crate::types::Slice;

/// The fold of own operands in a partition.
pub(super) struct Merging(Arc<PartitionState>);

impl Merging {
    pub(super) fn of(partition: &Partition) -> Merging {
        Merging(partition.state().clone())
    }

    /// `operand` merged into `base`, or the value that it is without one.
    ///
    /// # Errors
    /// Those of the merge operator.
    pub(super) fn fold(&self, key: &[u8], base: Option<Slice>, operand: &[u8]) -> Result<Slice> {
        let operator = operator_of(&self.0, key)?;
        let stored = self.0.key_form.stored(key.to_vec());
        let base = base.map(|base| base.to_vec());
        Ok(operator.fold(&stored, base, std::iter::once(operand))?.into())
    }
}

/// The value of a key with this own state, whose stored value `read` returns.
pub(super) fn seen(
    partition: &Partition,
    key: &[u8],
    own: Option<&OwnWrite>,
    read: impl FnOnce() -> Result<Option<Slice>>,
) -> Result<Option<Slice>> {
    match own {
        None => read(),
        Some(OwnWrite::Delete) => Ok(None),
        Some(OwnWrite::Put(value)) => Ok(Some(value.clone())),
        Some(OwnWrite::Merge(operand)) => {
            let base = read()?;
            Merging::of(partition).fold(key, base, operand).map(Some)
        }
    }
}
