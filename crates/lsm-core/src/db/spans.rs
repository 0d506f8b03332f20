//! Deleted ranges in edits: those of flushed memtables are added, those without older entries are removed.
//!
//! `types/spans.rs` defines them. Called for each edit of a partition.
//!
//! Invariant: a deleted range is in the version for as long as a table of the version may have an entry that it
//! hides, and as long as there is a gap: a restored entry of it may be older.

use std::collections::HashSet;

use super::clear_seqs::will_have_gaps;
use crate::compaction::Erased;
use crate::types::{DeletedRange, DeletedRanges, FileNo, PartitionId, SeqNo};
use crate::version::{Change, PartitionVersion, SstMeta};

/// The changes that keep these deleted ranges.
pub(super) fn spans_added(
    partition: PartitionId,
    spans: &DeletedRanges,
) -> impl Iterator<Item = Change> + use<> {
    spans.list().into_iter().map(move |span| Change::SpanAdded { partition, span })
}

/// The tables of a job, and the deleted ranges that hide nothing in them.
#[derive(Clone, Copy)]
pub(super) struct ErasedTables<'a> {
    pub(super) made: &'a [SstMeta],
    pub(super) erased: &'a Erased,
}

/// Removes from `changes` the deleted ranges that will hide nothing, and drops such ranges of `partition`. A range
/// that is newer than the oldest snapshot stays: a transaction that read inside of it must find it.
///
/// # Cost
/// For each deleted range, a look at the tables of level 0, and in deeper levels at those in the range.
pub(super) fn settle_spans(
    partition: &PartitionVersion,
    changes: &mut Vec<Change>,
    erased: ErasedTables<'_>,
    oldest_snapshot: SeqNo,
) {
    let has_added = changes.iter().any(|change| matches!(change, Change::SpanAdded { .. }));
    if (partition.spans.is_empty() && !has_added) || will_have_gaps(partition, changes) {
        return;
    }
    let after = TablesAfter::of(partition, changes, erased);
    changes.retain(|change| match change {
        Change::SpanAdded { span, .. } => span.seq > oldest_snapshot || after.may_be_below(span),
        _ => true,
    });
    let all = partition.spans.list().into_iter();
    let settled = all.filter(|span| span.seq <= oldest_snapshot && !after.may_be_below(span));
    changes.extend(settled.map(|span| Change::SpanRemoved { partition: partition.id, span }));
}

/// The tables of a partition after an edit.
struct TablesAfter<'a> {
    partition: &'a PartitionVersion,
    removed: HashSet<FileNo>,
    added: Vec<SstMeta>,
    erased: ErasedTables<'a>,
}

impl<'a> TablesAfter<'a> {
    fn of(
        partition: &'a PartitionVersion,
        changes: &[Change],
        erased: ErasedTables<'a>,
    ) -> TablesAfter<'a> {
        let mut after =
            TablesAfter { partition, removed: HashSet::new(), added: Vec::new(), erased };
        for change in changes {
            match change {
                Change::TableRemoved { file, .. } => drop(after.removed.insert(*file)),
                Change::TableAdded { meta, .. } => after.added.push(meta.clone()),
                _ => {}
            }
        }
        after
    }

    /// Returns `true` if an entry that `span` hides may be in one of them.
    fn may_be_below(&self, span: &DeletedRange) -> bool {
        let ErasedTables { made, erased } = self.erased;
        let in_added = self.added.iter().any(|meta| {
            let is_made = made.iter().any(|it| it.file == meta.file);
            meta.may_be_below(span) && !(is_made && span.seq <= erased.through(meta))
        });
        in_added
            || !self
                .partition
                .tables_below(span, |_, table| self.removed.contains(&table.meta.file))
    }
}
