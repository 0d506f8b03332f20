//! From sealed memtables to a level-0 table.
//!
//! Called by background work and, after a replay, by the open. Everything that it writes is
//! durable when it returns; installing is up to the caller.

use std::sync::Arc;

use crate::compaction::{JobOutcome, KeyBelow, Outputs, Stages, TableFactory, write_survivors};
use crate::error::Result;
use crate::hooks;
use crate::iter::MergeIter;
use crate::memtable::Memtable;
use crate::version::PartitionVersion;

/// Writes what survives of `memtables` to at most one table. `version` holds the partition's older
/// tables.
///
/// # Errors
/// Those of the files and of the filters; nothing is left behind then but perhaps an orphan.
///
/// # Cost
/// One file, two syncs.
pub fn flush(
    memtables: &[Arc<Memtable>],
    version: &PartitionVersion,
    mut stages: Stages<'_>,
    factory: &TableFactory,
) -> Result<JobOutcome> {
    stages.start(&hooks::Job {
        partition: &version.name,
        kind: hooks::JobKind::Flush,
        level_from: 0,
        level_to: 0,
        bottom: version.tables().next().is_none(),
        snapshots: stages.registered(),
        inputs: &[],
        repaired: &[],
        partial: false,
    })?;
    let mut entries = MergeIter::new(memtables.iter().map(|memtable| memtable.iter()).collect());
    // Sequence numbers are stored relative to this: everything flushed so far lies below it.
    let base_seq = version.flushed_through;
    let suffix = &stages.hooks().rules.reserved_suffix;
    let outputs = Outputs::new(factory, &version.options, 0, base_seq, suffix);
    let below = KeyBelow::for_flush(version);
    write_survivors(&mut entries, None, stages, below, None, outputs, &|| false)
}
