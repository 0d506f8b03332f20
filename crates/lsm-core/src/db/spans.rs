//! Deleted ranges in edits: those of flushed memtables are added, those without older entries are removed.
//!
//! `types/spans.rs` defines them. Called for each edit of a partition.
//!
//! Invariant: a deleted range is in the version for as long as a table of the version may have an entry that it
//! hides, and as long as it reaches a gap: a restored entry of that may be older.

use std::collections::HashSet;
use std::ops::Bound;

use super::gaps::gaps_after;
use crate::compaction::Erased;
use crate::types::{DeletedRange, DeletedRanges, FileNo, Gaps, PartitionId, SeqNo};
use crate::version::{Change, PartitionVersion, SstMeta};

/// The readers that an edit must keep deleted ranges for.
pub(super) struct SpanReaders {
    /// The sequence numbers of the snapshots, ascending. A later snapshot sees every range of an edit.
    pub(super) held: Vec<SeqNo>,
    /// The oldest one, or that of the next snapshot.
    pub(super) oldest: SeqNo,
}

/// The changes that keep these deleted ranges.
pub(super) fn spans_added(
    partition: PartitionId,
    spans: &DeletedRanges,
) -> impl Iterator<Item = Change> + use<> {
    spans.list().into_iter().map(move |span| Change::SpanAdded { partition, span })
}

/// The tables of a job, and the deleted ranges that hide nothing in them.
pub(super) struct ErasedTables<'a> {
    pub(super) made: HashSet<FileNo>,
    pub(super) erased: &'a Erased,
}

/// Removes from `changes` the deleted ranges that will hide nothing, and drops such ranges of `partition`. A range
/// that is newer than the oldest snapshot stays: a transaction that read inside of it must find it. One that newer
/// ranges cover for every reader goes: a queue deletes the same range again and again.
///
/// # Cost
/// For each deleted range, a look at the tables of level 0, and in deeper levels at those in the range.
pub(super) fn update_spans(
    partition: &PartitionVersion,
    changes: &mut Vec<Change>,
    erased: &ErasedTables<'_>,
    readers: &SpanReaders,
) {
    let oldest_snapshot = readers.oldest;
    let has_added = changes.iter().any(|change| matches!(change, Change::SpanAdded { .. }));
    if partition.spans.is_empty() && !has_added {
        return;
    }
    let after = TablesAfter::of(partition, changes, erased);
    changes.retain(|change| match change {
        Change::SpanAdded { span, .. } => span.seq > oldest_snapshot || after.may_be_below(span),
        _ => true,
    });
    let covering = spans_in(changes);
    let needed = (!covering.is_empty() && !partition.spans.is_empty())
        .then(|| partition.spans.and(&covering).distinguished_by(&readers.held).numbers());
    let all = partition.spans.list().into_iter();
    let spent = all.filter(|span| {
        needed.as_ref().is_some_and(|needed| !needed.contains(&span.seq))
            || (span.seq <= oldest_snapshot && !after.may_be_below(span))
    });
    changes.extend(spent.map(|span| Change::SpanRemoved { partition: partition.id, span }));
}

/// The deleted ranges that `changes` add.
fn spans_in(changes: &[Change]) -> DeletedRanges {
    let added = changes.iter().filter_map(|change| match change {
        Change::SpanAdded { span, .. } => Some(span.clone()),
        _ => None,
    });
    DeletedRanges::of(&added.collect::<Vec<_>>())
}

/// The tables and gaps of a partition after an edit.
struct TablesAfter<'a> {
    partition: &'a PartitionVersion,
    removed: HashSet<FileNo>,
    added: Vec<SstMeta>,
    gaps: Gaps,
    erased: &'a ErasedTables<'a>,
}

impl<'a> TablesAfter<'a> {
    fn of(
        partition: &'a PartitionVersion,
        changes: &[Change],
        erased: &'a ErasedTables<'a>,
    ) -> TablesAfter<'a> {
        let gaps = gaps_after(partition, changes);
        let mut after =
            TablesAfter { partition, removed: HashSet::new(), added: Vec::new(), gaps, erased };
        for change in changes {
            match change {
                Change::TableRemoved { file, .. } => drop(after.removed.insert(*file)),
                Change::TableAdded { meta, .. } => after.added.push(meta.clone()),
                _ => {}
            }
        }
        after
    }

    /// Returns `true` if an entry that `span` hides may be in one of them, or be lost.
    fn may_be_below(&self, span: &DeletedRange) -> bool {
        let end = span.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        if self.gaps.meet(Bound::Included(&span.start), end) {
            return true;
        }
        let ErasedTables { made, erased } = self.erased;
        let in_added = self.added.iter().any(|meta| {
            meta.may_be_below(span)
                && !(made.contains(&meta.file) && span.seq <= erased.through(meta))
        });
        in_added
            || !self
                .partition
                .tables_below(span, |_, table| self.removed.contains(&table.meta.file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::drawing::{draw, seq};
    use crate::types::Gap;

    const ID: PartitionId = PartitionId(0);

    fn span((start, end, n): (&str, &str, u64)) -> DeletedRange {
        let [start, end] = [start, end].map(|key| key.as_bytes().into());
        DeletedRange { start, end: Some(end), seq: seq(n) }
    }

    /// Above a table that no range covers: none of them is spent.
    fn check(
        held: &[u64],
        before: &[(&str, &str, u64)],
        added: &[(&str, &str, u64)],
        removed: &[(&str, &str, u64)],
    ) {
        let mut version = draw("L6: 1:a-z");
        let before: Vec<_> = before.iter().copied().map(span).collect();
        version.spans = DeletedRanges::of(&before);
        let added = added.iter().copied().map(span);
        let mut changes: Vec<_> =
            added.map(|span| Change::SpanAdded { partition: ID, span }).collect();
        let removed = removed.iter().copied().map(span);
        let removed = removed.map(|span| Change::SpanRemoved { partition: ID, span });
        let expected: Vec<_> = changes.iter().cloned().chain(removed).collect();
        let held: Vec<_> = held.iter().map(|n| seq(*n)).collect();
        let oldest = held.first().copied().unwrap_or(seq(99));
        let erased = Erased::default();
        let tables = ErasedTables { made: HashSet::new(), erased: &erased };
        update_spans(&version, &mut changes, &tables, &SpanReaders { held, oldest });
        assert_eq!(changes, expected);
    }

    /// A gap anywhere in the partition kept every range.
    #[test]
    fn a_gap_keeps_the_ranges_that_reach_it() {
        let mut version = draw("L6: 1:a-z");
        let gap = Gap {
            from: b"a".as_slice().into(),
            from_below: SeqNo::ZERO,
            to: b"b".as_slice().into(),
            to_included: true,
            through: seq(3),
            closed_at: None,
        };
        version.gaps.add(gap);
        version.spans = DeletedRanges::of(&[("b", "d", 5), ("e", "f", 6)].map(span));
        let mut changes = Vec::new();
        let erased = Erased::default();
        let tables = ErasedTables { made: HashSet::new(), erased: &erased };
        let readers = SpanReaders { held: Vec::new(), oldest: seq(99) };
        update_spans(&version, &mut changes, &tables, &readers);
        let spent = span(("e", "f", 6));
        assert_eq!(changes, [Change::SpanRemoved { partition: ID, span: spent }]);
    }

    #[test]
    fn a_range_goes_when_newer_ones_cover_it_for_every_reader() {
        let old = ("b", "d", 20);
        check(&[], &[old], &[("b", "d", 30)], &[old]);
        check(&[], &[old], &[("a", "c", 30), ("c", "e", 31)], &[old]);
        check(&[15, 30], &[old], &[("b", "d", 30)], &[old]);
        // A key is left, or nothing is new.
        check(&[], &[old], &[("b", "c", 30)], &[]);
        check(&[], &[old, ("b", "d", 30)], &[], &[]);
        // A snapshot sees the older one and not the newer one.
        check(&[20], &[old], &[("b", "d", 30)], &[]);
        check(&[29], &[old], &[("b", "d", 30)], &[]);
        check(&[29], &[old, ("b", "d", 25)], &[("b", "d", 30)], &[old]);
    }
}
