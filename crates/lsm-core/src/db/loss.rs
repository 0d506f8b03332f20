//! The owner's decision about lost entries: [`Partition::gaps`] and [`Partition::accept_loss`].
//!
//! Compactions find gaps and the manifest keeps them: see `types/gap.rs`. A closed one leaves the
//! manifest with the job that removes the last entry which it hides.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;

use super::install::gaps_added;
use super::{DbInner, Partition};
use crate::error::Result;
use crate::read::{Bounds, KeyRange, stored_bounds};
use crate::types::{FileNo, Gap, Gaps, PartitionId, SeqNo};
use crate::version::{Change, PartitionVersion, SstMeta, Table, UserRange};

impl Partition {
    /// The ranges of keys that are damaged beyond repair. Reads in them return errors unless a newer entry
    /// is the answer. Keys are stored keys: in a partition that takes any key, those that end in `0x00` or
    /// `0x01` have a zero byte appended.
    pub fn gaps(&self) -> Vec<Gap> {
        self.state().view().version.gaps.open().cloned().collect()
    }

    /// Accepts the loss in `range`: every entry there that is not newer than the loss is hidden for
    /// good, so that no older value appears from a deeper level, and reads and scans succeed again.
    /// Returns the accepted gaps, cut to the range.
    ///
    /// Compactions drop the hidden entries. When these are in no table any more, the gap is
    /// removed. [`Partition::compact`] of the range does that at once.
    ///
    /// Reads through earlier snapshots are still refused there.
    ///
    /// # Cost
    /// Two syncs and an edit. A partition with a value store reads all of its tables, so that the values
    /// of lost entries are dropped.
    ///
    /// # Errors
    /// Those of the manifest; a closed database, a dropped partition.
    ///
    /// # Durability
    /// Durable once this returns.
    pub fn accept_loss(&self, range: impl KeyRange) -> Result<Vec<Gap>> {
        self.db().check_writable()?;
        self.state().check_live()?;
        let bounds = stored_bounds(self.state().key_form, range.bounds());
        let db = self.db();
        // Without a loss in the range nothing is written, so nothing is synced either.
        if parts_within(&self.state().view().version.gaps, &bounds).is_empty() {
            return Ok(Vec::new());
        }
        let given_up = self.close_gaps(&bounds)?;
        // After the gaps are closed, which holds versions that may name the values. The loss is accepted even
        // if this fails. The next open repeats it.
        let _ = db.recount_values(self.state(), &db.values.wait_for_counting_turn());
        Ok(given_up)
    }

    /// Closes the gaps within these bounds; returns their parts there.
    fn close_gaps(&self, bounds: &Bounds) -> Result<Vec<Gap>> {
        let db = self.db();
        // Synced once without the lock, so that the sync below, which delays writers, has little
        // left to do.
        db.log.sync_all()?;
        // No other thread closes gaps meanwhile.
        let mut between = db.between_groups();
        // Durability: all earlier numbers, as for an ingest.
        db.log.sync_all()?;
        let mut editing = db.catalog.edit()?;
        let id = self.state().id;
        let Some(version) = editing.current().partitions.get(id).cloned() else {
            return self.state().check_live().map(|()| Vec::new());
        };
        // Looked up again: a compaction may have found or split gaps since the look above.
        let parts = parts_within(&version.gaps, bounds);
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        // A sequence number of its own, so that no earlier snapshot has it.
        let seq = between.take_seqs(1);
        let mut changes = vec![Change::LastSeq(seq)];
        let mut given_up = Vec::new();
        for (gap, (within, rest)) in parts {
            changes.extend(closing(id, gap, &within, &rest, seq));
            given_up.push(within);
        }
        let version = editing.install(changes)?;
        self.state().install(version.partitions[&id].clone(), None);
        drop(editing);
        db.commit.publish_unlogged(&between);
        Ok(given_up)
    }
}

impl DbInner {
    /// The changes that remove the closed gaps which hide nothing any more after a job has replaced
    /// `removed` by `made`, which has no entry that `clear_of` hide.
    ///
    /// A reader at a snapshot before the closing is still refused there, so a gap outlives such
    /// snapshots. Memtables have nothing older than the flushed entries.
    pub(super) fn spent_gaps(
        &self,
        partition: &PartitionVersion,
        removed: &[Arc<Table>],
        made: &[SstMeta],
        clear_of: &Gaps,
    ) -> Vec<Change> {
        if partition.gaps.is_empty() {
            return Vec::new();
        }
        let oldest_reader = self.snapshots.oldest(|| self.commit.visible_seq());
        let mut closed: Vec<&Gap> = partition.gaps.iter().collect();
        closed.retain(|gap| {
            let closed_at = gap.closed_at.filter(|seq| *seq <= oldest_reader);
            let is_closed_for_all = closed_at.is_some_and(|seq| self.is_counted(partition.id, seq));
            is_closed_for_all && partition.flushed_through >= gap.through
        });
        if closed.is_empty() {
            return Vec::new();
        }
        let gone: HashSet<FileNo> = removed.iter().map(|table| table.meta.file).collect();
        closed.retain(|gap| {
            made_is_clear(gap, made, clear_of) && tables_are_clear(partition, gap, &gone)
        });
        let id = partition.id;
        closed
            .into_iter()
            .map(|gap| Change::GapRemoved { partition: id, gap: gap.clone() })
            .collect()
    }
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

/// The open gaps that reach into `bounds`, each with its part within and the rest on either side.
fn parts_within<'g>(gaps: &'g Gaps, bounds: &Bounds) -> Vec<(&'g Gap, (Gap, Vec<Gap>))> {
    gaps.open().filter_map(|gap| Some((gap, gap.split(borrowed(bounds))?))).collect()
}

fn borrowed(bounds: &Bounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
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
