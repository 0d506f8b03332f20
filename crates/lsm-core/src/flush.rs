//! From sealed memtables to a level-0 table.
//!
//! Called by background work and, after a replay, by the open. Everything that it writes is
//! durable when it returns; installing is up to the caller.

use std::sync::Arc;

use crate::compaction::{KeyBelow, Outputs, TableFactory, write_survivors};
use crate::error::Result;
use crate::iter::MergeIter;
use crate::memtable::Memtable;
use crate::types::SeqNo;
use crate::version::{PartitionVersion, SstMeta};

/// Writes what survives of `memtables` to one table; `None` if nothing does. `version` holds the
/// partition's older tables, and `snapshots` what must stay visible.
///
/// # Errors
/// Those of the files; nothing is left behind then but perhaps an orphan.
///
/// # Cost
/// One file, two syncs.
pub fn flush(
    memtables: &[Arc<Memtable>],
    version: &PartitionVersion,
    snapshots: &[SeqNo],
    factory: &TableFactory,
) -> Result<Option<SstMeta>> {
    let mut entries = MergeIter::new(memtables.iter().map(|memtable| memtable.iter()).collect());
    // Sequence numbers are stored relative to this: everything flushed so far lies below it.
    let base_seq = version.flushed_through;
    let outputs = Outputs::new(factory, &version.options, 0, base_seq);
    let mut below = KeyBelow::for_flush(version);
    let tables = write_survivors(&mut entries, snapshots, &mut below, None, outputs, &|| false)?;
    assert!(tables.len() <= 1, "nothing splits a flush");
    Ok(tables.into_iter().next())
}
