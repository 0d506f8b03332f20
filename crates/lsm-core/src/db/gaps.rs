//! Gaps in edits: those of a job are added, and closed ones that hide nothing any more are removed.
//!
//! `types/gap.rs` defines a gap. Called for each edit of a partition, by the closing of gaps (`loss.rs`), and by
//! the restoration of their entries (`restore.rs`).
//!
//! Invariant: a closed gap is in the version for as long as a table may have an entry that it hides, a snapshot
//! was taken before the closing, or the values of the partition are not counted since.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;

use crate::read::Bounds;
use crate::types::{FileNo, Gap, Gaps, PartitionId, SeqNo};
use crate::version::{Change, PartitionVersion, SstMeta, Table, UserRange};

/// The changes that keep these gaps.
pub(super) fn gaps_added(partition: PartitionId, gaps: &[Gap]) -> Vec<Change> {
    gaps.iter().map(|gap: &Gap| Change::GapAdded { partition, gap: gap.clone() }).collect()
}

/// The gaps of a partition after the changes.
pub(super) fn gaps_after(partition: &PartitionVersion, changes: &[Change]) -> Gaps {
    let mut gaps = partition.gaps.clone();
    for change in changes {
        match change {
            Change::GapAdded { gap, .. } => gaps.add(gap.clone()),
            Change::GapRemoved { gap, .. } => drop(gaps.remove(gap)),
            _ => {}
        }
    }
    gaps
}

/// The changes that remove closed gaps after a job has replaced `removed` by `made`: the gaps that hide nothing
/// any more. `made` has no entry that a gap of `clear_of` hides. `is_past` returns `true` for a closing if all
/// readers are later than it, and the values were counted since.
///
/// A reader at a snapshot before the closing is still refused there, so a gap outlives such
/// snapshots. Memtables have nothing older than the flushed entries.
pub(super) fn spent_gaps(
    partition: &PartitionVersion,
    removed: &[Arc<Table>],
    made: &[SstMeta],
    clear_of: &Gaps,
    is_past: impl Fn(SeqNo) -> bool,
) -> Vec<Change> {
    let mut closed: Vec<&Gap> = partition.gaps.iter().collect();
    closed.retain(|gap| {
        gap.closed_at.is_some_and(&is_past) && partition.flushed_through >= gap.through
    });
    if closed.is_empty() {
        return Vec::new();
    }
    let gone: HashSet<FileNo> = removed.iter().map(|table| table.meta.file).collect();
    closed.retain(|gap| {
        made_is_clear(gap, made, clear_of) && tables_are_clear(partition, gap, &gone)
    });
    let id = partition.id;
    closed.into_iter().map(|gap| Change::GapRemoved { partition: id, gap: gap.clone() }).collect()
}

/// Returns `true` if the tables that a job has made have no entry that a closed gap hides: the job
/// left out the entries that the gaps of `clear_of` hide, or nothing in the tables is older than the
/// loss.
fn made_is_clear(gap: &Gap, made: &[SstMeta], clear_of: &Gaps) -> bool {
    clear_of.contains(gap) || made.iter().all(|meta| meta.oldest() >= gap.through)
}

/// Returns `true` if no table of the partition except those in `gone` has an entry that a closed
/// gap hides.
///
/// # Cost
/// Looks at the tables of level 0, and in deeper levels at those in the range of the gap. The
/// manifest is locked meanwhile, and a partition may have thousands of tables and of gaps.
fn tables_are_clear(partition: &PartitionVersion, gap: &Gap, gone: &HashSet<FileNo>) -> bool {
    let range = UserRange::new(&gap.from, &gap.to);
    partition.levels.iter().enumerate().all(|(number, level)| {
        let tables = if number == 0 { level.tables() } else { level.overlapping(range) };
        tables.iter().all(|table| gone.contains(&table.meta.file) || table.is_clear_of(gap))
    })
}

/// The changes that close the part `within` of an open gap from `seq` on; `rest` stays open.
pub(super) fn closing(
    partition: PartitionId,
    gap: &Gap,
    within: &Gap,
    rest: &[Gap],
    seq: SeqNo,
) -> Vec<Change> {
    let closed = Gap { closed_at: Some(seq), ..within.clone() };
    let mut changes = vec![Change::GapRemoved { partition, gap: gap.clone() }];
    changes.extend(gaps_added(partition, rest));
    changes.push(Change::GapAdded { partition, gap: closed });
    changes
}

/// Bounds in the form that [`Gap::split`] takes.
pub(super) fn borrowed(bounds: &Bounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (bounds.0.as_ref().map(Vec::as_slice), bounds.1.as_ref().map(Vec::as_slice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::drawing::{draw, seq, table};

    fn closed(from: &str, to: &str, through: u64) -> Gap {
        Gap {
            from: from.as_bytes().into(),
            from_below: SeqNo::ZERO,
            to: to.as_bytes().into(),
            to_included: false,
            through: seq(through),
            closed_at: Some(seq(1000)),
        }
    }

    /// A gap that was closed while a job ran may hide entries that the job has written.
    #[test]
    fn a_gap_is_kept_for_what_a_job_wrote_before_it_was_closed() {
        let made = [table("9:a-c"), table("8:m-n")];
        let mut gaps = Gaps::default();
        assert!(made_is_clear(&closed("b", "d", 80), &made, &gaps));
        assert!(!made_is_clear(&closed("b", "d", 81), &made, &gaps));
        gaps.add(closed("b", "d", 81));
        assert!(made_is_clear(&closed("b", "d", 81), &made, &gaps));
    }

    /// Looks at a closed gap from `from` to `to` through sequence `through`, while the tables in
    /// `gone` are replaced. The entries of table `n` of a drawing have the sequence `10 * n`.
    fn is_clear(drawing: &str, (from, to): (&str, &str), through: u64, gone: &[u64]) -> bool {
        let gap = closed(from, to, through);
        let gone = gone.iter().map(|file| FileNo(*file)).collect();
        tables_are_clear(&draw(drawing), &gap, &gone)
    }

    #[test]
    fn a_gap_is_spent_once_no_table_in_its_range_is_older_than_the_loss() {
        let levels = "L0: 9:a-c 8:m-n\nL5: 3:a-d 4:f-k 5:p-q\nL6: 1:a-b 2:r-s";
        assert!(is_clear(levels, ("da", "e"), 100, &[]), "no table is in its range");
        assert!(!is_clear(levels, ("d", "e"), 100, &[]), "a table ends with its first key");
        assert!(!is_clear(levels, ("l", "p"), 80, &[]), "a table begins with its last key");
        assert!(!is_clear(levels, ("ma", "mb"), 81, &[]), "a table of level 0 is older");
        assert!(is_clear(levels, ("ma", "mb"), 80, &[]), "the table of level 0 is newer");
        assert!(!is_clear(levels, ("b", "r"), 100, &[9, 8, 3, 4, 5, 1]));
        assert!(is_clear(levels, ("b", "r"), 100, &[9, 8, 3, 4, 5, 1, 2]), "all are replaced");
    }
}
