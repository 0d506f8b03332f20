//! The set of live files: levels, edits, and the manifest that makes edits durable.
//!
//! ```text
//! table.rs, level.rs    a live table, and the tables of a level
//! expiries.rs           when the entries of a table expire
//! partition_map.rs      the partitions of a version
//! change.rs, edit.rs    a change of the set, and an edit: a numbered list of changes
//! record.rs             the records inside a change
//! apply.rs              version + edit = next version
//! manifest.rs           the log of edits, as the database writes it
//! recover.rs, tail.rs   the same, as an open and as a secondary read it
//! remains.rs            what verifies of manifests that recovery refuses
//! fork.rs               where a promotion ends the epochs before it: the files of a claim and a fork
//! snapshot.rs           a whole state as bytes, for a fork and a backup
//! set.rs                the current version, and the one path that replaces it
//! write_fence.rs        whether another process has taken the database over
//! level_iter.rs         a level as one cursor
//! far.rs                hints for tables on another machine
//! describe.rs           the content of one manifest file, damage included
//! ```
//!
//! A [`DbVersion`] never changes. [`apply()`] makes the next version from an edit and shares
//! everything that the edit does not touch. Recovery, secondaries and tools use the same function.
//!
//! Invariants:
//! 1. A version is a function of the edits before it and of nothing else.
//! 2. An edit to one partition copies no other partition.
//! 3. File numbers and partition ids only grow.

mod apply;
mod change;
#[cfg(feature = "internals")]
pub mod decoders;
mod describe;
mod edit;
mod expiries;
mod far;
mod fork;
mod level;
mod level_iter;
mod manifest;
mod partition_map;
mod record;
mod recover;
mod remains;
mod retained;
mod set;
mod snapshot;
mod table;
mod tail;
#[cfg(test)]
mod tests;
mod write_fence;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use apply::apply;
pub use change::Change;
pub use describe::{check_generation, describe};
pub use edit::VersionEdit;
pub use expiries::{Expiries, ExpiryNotes};
pub use fork::{
    CLAIM_BYTES, CLAIM_MAGIC, FORK_MAGIC, Fork, check_claim, claim_bytes, describe_claim,
    describe_fork,
};
pub use level::Level;
pub use level_iter::LevelIter;
pub use manifest::{MAGIC, Manifest};
pub use partition_map::PartitionMap;
pub use record::{
    EditFault, FlushBeyondSync, HookKind, HookRecord, LogCut, put_hooks, put_meta, put_options,
    read_hooks, read_meta, read_options,
};
pub use recover::read_all;
pub use recover::{Recovered, age_of, has_begun, is_named, next_free, recover, recover_through};
pub use remains::{KnownPartition, PARTITION_PROPERTY, Remains, partition_record, remains};
pub use retained::{RetainedLog, RetainedSegment};
pub use set::{PastGeneration, VersionSet};
pub use snapshot::{decode_snapshot, encode_snapshot};
pub use table::{Bounds, Kept, Missing, PrefixCounts, SstMeta, Table, TableContext, UserRange};
pub use tail::{ManifestTail, TailNews};
pub use write_fence::WriteFence;

use crate::limits::LEVEL_COUNT;
use crate::options::PartitionOptions;
use crate::types::{
    ClearSeqs, DbId, DeletedRange, DeletedRanges, Epoch, FileNo, Gaps, LogPlace, Lsn, MustReach,
    PartitionId, SeqNo,
};

/// The state of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionVersion {
    /// Its id.
    pub id: PartitionId,
    /// Its name, unique among living partitions.
    pub name: Arc<str>,
    /// Its stored options.
    pub options: Arc<PartitionOptions>,
    /// Its levels; level 0 first.
    pub levels: [Level; LEVEL_COUNT],
    /// Everything up to this sequence is in tables.
    pub flushed_through: SeqNo,
    /// The edit that created it.
    pub created_at_edit: u64,
    /// The hooks that it was made with.
    pub hooks: Arc<[HookRecord]>,
    /// The gaps: ranges of keys with lost entries that could not be repaired.
    pub gaps: Gaps,
    /// The sequence numbers at which it was cleared, as long as tables or gaps may have older entries.
    pub clear_seqs: ClearSeqs,
    /// The deleted ranges of keys, as long as tables or gaps may have older entries in them.
    pub spans: DeletedRanges,
    /// The sections for its value store, with the numbers of the edits, ascending.
    pub store_sections: Vec<(u64, Arc<[u8]>)>,
}

impl PartitionVersion {
    /// All tables with their levels, level 0 first.
    pub fn tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        let levels = self.levels.iter().enumerate();
        levels.flat_map(|(number, level)| level.tables().iter().map(move |table| (number, table)))
    }

    /// The same partition without a table.
    #[must_use]
    pub fn without_tables(&self) -> PartitionVersion {
        PartitionVersion { levels: Default::default(), ..self.clone() }
    }

    /// No operation after this sequence is in a table, or was in one.
    pub fn tables_through(&self) -> SeqNo {
        let in_levels = self.levels.iter().map(Level::newest).max().unwrap_or_default();
        in_levels.max(self.flushed_through)
    }

    /// Returns `true` if an entry below `clear_seq` may be in a table.
    pub fn reaches_below(&self, clear_seq: SeqNo) -> bool {
        self.tables().any(|(_, table)| table.meta.oldest() < clear_seq)
    }

    /// If clears and deleted ranges hide everything of a table, the number from which on readers see nothing of
    /// it.
    pub fn deleted_above(&self, meta: &SstMeta) -> Option<SeqNo> {
        let clear_seq = self.clear_seqs.above(meta.newest());
        let spans = self.spans.above_all(&meta.smallest.user, &meta.largest.user, meta.newest());
        match (clear_seq, spans) {
            (Some(clear_seq), Some(spans)) => Some(clear_seq.min(spans)),
            (clear_seq, spans) => clear_seq.or(spans),
        }
    }

    /// Returns `true` if all entries of a table lie below a clear or deleted ranges, and none of the live snapshots,
    /// ascending, sees one of them. A snapshot that is taken now is above those.
    pub fn is_unseen(&self, meta: &SstMeta, held: &[SeqNo]) -> bool {
        let Some(deleted) = self.deleted_above(meta) else { return false };
        let first = held.partition_point(|snapshot| *snapshot < meta.oldest());
        held.get(first).is_none_or(|snapshot| *snapshot >= deleted)
    }

    /// Calls `see` with the tables that may have an entry which `span` hides, until it returns `false`; returns
    /// `false` then.
    pub fn tables_below(
        &self,
        span: &DeletedRange,
        mut see: impl FnMut(usize, &Arc<Table>) -> bool,
    ) -> bool {
        let range = UserRange { start: Some(&span.start), end: span.end.as_deref() };
        // From the deepest one, which has the oldest entries: a caller that seeks one table finds it there.
        self.levels.iter().enumerate().rev().all(|(number, level)| {
            // Level 0 has no order of keys.
            let tables = if number == 0 { level.tables() } else { level.overlapping(range) };
            tables.iter().all(|table| !table.may_be_below(span) || see(number, table))
        })
    }

    /// Length of all tables together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.levels.iter().map(Level::bytes).sum()
    }
}

/// The state of the whole database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DbVersion {
    /// Identity of the database.
    pub db_id: DbId,
    /// The epoch of the last writer.
    pub epoch: Epoch,
    /// Above every file number that an edit has named.
    pub next_file: FileNo,
    /// Above every partition id that was ever given.
    pub next_partition: PartitionId,
    /// Number of the last edit in this version.
    pub edit_number: u64,
    /// The living partitions.
    pub partitions: PartitionMap,
    /// Every live log segment, reserves included, with the epoch in its name.
    pub log_segments: BTreeMap<FileNo, Epoch>,
    /// The end of the log of the epochs before the present one: replay never reads past it. Absent
    /// in the first epoch.
    pub log_cut: Option<LogCut>,
    /// The end of the present epoch's log, if it was closed cleanly.
    pub log_closed: Option<LogCut>,
    /// Everything in the log before this place is durable, and in tables or of a dropped partition. Absent:
    /// nothing is known about the segments.
    pub replay_from: Option<LogCut>,
    /// The segments that are kept for those who follow the changes.
    pub retained: RetainedLog,
    /// A flush of this epoch that did not wait for the log.
    pub flush_beyond_sync: Option<FlushBeyondSync>,
    /// The largest sequence known when the last edit was made.
    pub last_seq: SeqNo,
}

impl DbVersion {
    /// A database without partitions, before its first edit.
    pub fn empty(db_id: DbId) -> DbVersion {
        DbVersion { db_id, next_file: FileNo(1), ..DbVersion::default() }
    }

    /// The same version without a table.
    #[must_use]
    pub fn without_tables(&self) -> DbVersion {
        let mut copy = self.clone();
        for partition in self.partitions.values() {
            copy.partitions.insert(Arc::new(partition.without_tables()));
        }
        copy
    }

    /// The sequence through which the log was durable, according to flushes of logged partitions.
    pub fn log_durable_through(&self) -> SeqNo {
        let logged = self.partitions.values().filter(|partition| partition.options.logged);
        let flushed = logged.map(|partition| partition.flushed_through).max().unwrap_or_default();
        match self.flush_beyond_sync {
            // A later flush waited for the log.
            Some(ahead) if flushed > ahead.flushed => flushed,
            Some(ahead) => flushed.min(ahead.durable),
            None => flushed,
        }
    }

    /// The ends that the log of this version must reach, according to the manifest.
    pub fn log_must_reach(&self) -> MustReach {
        let closed =
            self.log_closed.map(|LogCut { segment, offset, .. }| LogPlace { segment, offset });
        // Only of logged partitions. Others take numbers from the same sequence and leave no frame.
        let flushed = self.log_durable_through();
        // Before its first epoch a database had no log, and the log of this epoch lacks the durable
        // operations of earlier ones.
        let before = self.log_cut.map_or(SeqNo::ZERO, |cut| cut.last_seq);
        let flushed = if flushed > before { flushed } else { SeqNo::ZERO };
        MustReach { closed, flushed, committed: Lsn::default() }
    }

    /// The last sequence that a flush of any partition covered.
    pub fn flushed_through(&self) -> SeqNo {
        let partitions = self.partitions.values();
        partitions.map(|partition| partition.flushed_through).max().unwrap_or_default()
    }

    /// The living partition of that name.
    #[cfg(any(test, feature = "internals"))]
    pub fn partition_named(&self, name: &str) -> Option<&Arc<PartitionVersion>> {
        self.partitions.named(name)
    }
}
