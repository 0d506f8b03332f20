//! Values that are stored apart: what they count for, and which limits they have. Used by
//! `write.rs`.

use crate::error::{Error, Result};
use crate::options::Options;
use crate::partition::PartitionState;
use crate::types::EntryKind;

/// The size for which a handle counts where memory and merges are concerned, in bytes.
pub(super) const HANDLE_BYTES: u64 = 80;

fn is_stored_apart(partition: &PartitionState, len: u64) -> bool {
    partition.store().is_some_and(|store| store.wants(len))
}

/// The bytes that an operation with a value of `len` bytes brings into the tree.
pub(super) fn inline_bytes(partition: &PartitionState, kind: EntryKind, len: u64) -> u64 {
    let apart = kind == EntryKind::Value && is_stored_apart(partition, len);
    if apart { HANDLE_BYTES } else { len }
}

/// Values in a value store may have any length.
pub(super) fn check_value(
    options: &Options,
    partition: &PartitionState,
    value: &[u8],
) -> Result<()> {
    let len = value.len() as u64;
    if len > options.value_bytes_max && !is_stored_apart(partition, len) {
        return Err(Error::limit("value length", len, options.value_bytes_max));
    }
    Ok(())
}
