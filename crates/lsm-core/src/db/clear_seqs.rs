//! Clear sequences in edits: those of flushed memtables are added, those without older entries are removed.
//!
//! `types/clear_seqs.rs` defines a clear sequence. Called for each edit of a partition.
//!
//! Invariant: a clear sequence is in the version for as long as a table of the version may have an entry
//! below it. It also stays as the oldest above a gap, whose loss it hides, and as the newest below what may be lost: a
//! restored entry may be older.

use std::collections::HashSet;

use super::gaps::gaps_after;
use crate::types::{ClearSeqs, PartitionId, SeqNo};
use crate::version::{Change, PartitionVersion};

/// The changes that keep these clear sequences.
pub(super) fn clear_seqs_added(
    partition: PartitionId,
    clear_seqs: &ClearSeqs,
) -> impl Iterator<Item = Change> {
    clear_seqs.all().iter().map(move |seq| Change::ClearSeqAdded { partition, seq: *seq })
}

/// Removes from `changes` the clear sequences below which nothing will lie, and drops such clear sequences of
/// `partition`. In the edit that makes them useless: every read looks at the existing clear sequences.
pub(super) fn update_clear_seqs(partition: &PartitionVersion, changes: &mut Vec<Change>) {
    let has_added = changes.iter().any(|change| matches!(change, Change::ClearSeqAdded { .. }));
    if partition.clear_seqs.is_empty() && !has_added {
        return;
    }
    // For the tables after this edit: the job that installs it may have removed the last entry
    // below a clear sequence.
    let oldest = oldest_after(partition, changes);
    let by_gaps = needed_by_gaps(partition, changes);
    changes.retain(|change| match change {
        Change::ClearSeqAdded { seq, .. } => oldest < *seq || by_gaps.contains(seq),
        _ => true,
    });
    let all = partition.clear_seqs.all().iter();
    let spent = all.filter(|clear_seq| oldest >= **clear_seq && !by_gaps.contains(clear_seq));
    changes.extend(
        spent.map(|clear_seq| Change::ClearSeqRemoved { partition: partition.id, seq: *clear_seq }),
    );
}

/// The clear sequences that the gaps after the changes need. A read of a gap finds the oldest above it, and a later one
/// hides no more of what was lost.
fn needed_by_gaps(partition: &PartitionVersion, changes: &[Change]) -> HashSet<SeqNo> {
    let added = changes.iter().filter_map(|change| match change {
        Change::ClearSeqAdded { seq, .. } => Some(*seq),
        _ => None,
    });
    let all = partition.clear_seqs.and(&ClearSeqs::of(added.collect()));
    let gaps = gaps_after(partition, changes);
    let needed = gaps.iter().flat_map(|gap| [all.at(gap.through), all.above(gap.through)]);
    needed.flatten().collect()
}

/// The oldest sequence in the future tables of the partition.
fn oldest_after(partition: &PartitionVersion, changes: &[Change]) -> SeqNo {
    let mut removed = HashSet::new();
    let mut oldest = SeqNo::MAX;
    for change in changes {
        match change {
            Change::TableRemoved { file, .. } => drop(removed.insert(*file)),
            Change::TableAdded { meta, .. } => oldest = oldest.min(meta.oldest()),
            _ => {}
        }
    }
    // One that moves is removed and added.
    let staying = partition.tables().filter(|(_, table)| !removed.contains(&table.meta.file));
    staying.map(|(_, table)| table.meta.oldest()).fold(oldest, SeqNo::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::drawing::{draw, seq, table};
    use crate::types::{FileNo, Gap};

    const ID: PartitionId = PartitionId(0);

    fn gap() -> Gap {
        Gap {
            from: b"a".as_slice().into(),
            from_below: SeqNo::ZERO,
            to: b"b".as_slice().into(),
            to_included: true,
            through: seq(10),
            closed_at: None,
        }
    }

    /// The number of a table is a tenth of its only sequence number.
    fn check(version: &PartitionVersion, changes: Vec<Change>, expected: &[Change]) {
        let mut spent = changes.clone();
        update_clear_seqs(version, &mut spent);
        assert_eq!(spent, expected, "from {changes:?}");
    }

    fn added(n: u64) -> Change {
        Change::ClearSeqAdded { partition: ID, seq: seq(n) }
    }

    fn removed(n: u64) -> Change {
        Change::ClearSeqRemoved { partition: ID, seq: seq(n) }
    }

    fn table_removed(file: u64) -> Change {
        Change::TableRemoved { partition: ID, level: 6, file: FileNo(file) }
    }

    fn table_added(text: &str) -> Change {
        Change::TableAdded { partition: ID, level: 6, meta: table(text) }
    }

    #[test]
    fn a_clear_sequence_stays_as_long_as_a_table_reaches_below() {
        let mut version = draw("L5: 3:a-c\nL6: 2:a-m");
        check(&version, vec![added(21), added(20)], &[added(21)]);
        version.clear_seqs = ClearSeqs::of(vec![seq(15), seq(25), seq(35)]);
        check(&version, Vec::new(), &[removed(15)]);
        let merged = [table_removed(2), table_added("4:a-b")];
        check(&version, merged.to_vec(), &[&merged[..], &[removed(15), removed(25)]].concat());
        // One that moves.
        let moved = [table_removed(2), table_added("2:a-m")];
        check(&version, moved.to_vec(), &[&moved[..], &[removed(15)]].concat());
    }

    /// A partition with a gap kept every clear sequence.
    #[test]
    fn a_gap_keeps_the_clear_sequences_next_to_it() {
        let mut version = draw("L6: 2:a-m");
        version.clear_seqs = ClearSeqs::of(vec![seq(15)]);
        let found = Change::GapAdded { partition: ID, gap: gap() };
        check(&version, vec![found.clone()], &[found]);
        version.gaps.add(gap());
        check(&version, vec![added(9), added(7)], &[added(9)]);
        check(&version, vec![added(16)], &[]);
        let spent = Change::GapRemoved { partition: ID, gap: gap() };
        check(&version, vec![spent.clone()], &[spent, removed(15)]);
    }
}
