//! The owner's calls about lost entries: [`Partition::gaps`], [`Partition::accept_loss`] and
//! [`Partition::repair`].
//!
//! Compactions find gaps and the manifest keeps them: see `types/gap.rs`. A closed one leaves the
//! manifest with the job that removes the last entry which it hides.

use super::Partition;
use super::gaps::{borrowed, closing};
use crate::error::Result;
use crate::read::{Bounds, KeyRange, stored_bounds};
use crate::types::{Gap, Gaps};
use crate::version::Change;

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
        let turn = db.scheduler.reclaimer().goals().wait_for_counting_turn();
        let _ = db.scheduler.reclaimer().recount_values(self.state(), &turn);
        Ok(given_up)
    }

    /// Attempts to repair again: compacts `range`, so that every damaged block in it is repaired from the
    /// present sources, and asks the copy that the partition's filter knows for the entries of gaps.
    /// Returns the remaining gaps there.
    ///
    /// # Errors
    /// Those of [`Partition::compact`]; of the copy; [`ErrorKind::InvalidArgument`] if the copy has a key
    /// in another form than the partition stores it.
    ///
    /// # Durability
    /// Durable once this returns.
    ///
    /// [`ErrorKind::InvalidArgument`]: crate::ErrorKind::InvalidArgument
    pub fn repair(&self, range: impl KeyRange) -> Result<Vec<Gap>> {
        self.db().check_writable()?;
        let bounds = stored_bounds(self.state().key_form, range.bounds());
        self.db().scheduler.compact(self.state(), &bounds)?;
        let restored = self.db().scheduler.restorer().restore_gaps(self.state(), &bounds);
        self.db().runner.events.deliver();
        restored?;
        let view = self.state().view();
        let left = view.version.gaps.open().filter_map(|gap| gap.split(borrowed(&bounds)));
        Ok(left.map(|(within, _)| within).collect())
    }

    /// Closes the gaps within these bounds; returns their parts there.
    fn close_gaps(&self, bounds: &Bounds) -> Result<Vec<Gap>> {
        let db = self.db();
        // Synced once without the lock, so that the sync below, which delays writers, has little
        // left to do.
        db.log.sync_all()?;
        // No other thread closes gaps meanwhile.
        let mut between = db.log.lock();
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

/// The open gaps that reach into `bounds`, each with its part within and the rest on either side.
fn parts_within<'g>(gaps: &'g Gaps, bounds: &Bounds) -> Vec<(&'g Gap, (Gap, Vec<Gap>))> {
    gaps.open().filter_map(|gap| Some((gap, gap.split(borrowed(bounds))?))).collect()
}
