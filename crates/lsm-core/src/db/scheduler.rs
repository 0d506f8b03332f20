//! [`Worker`] for an open database: the pieces of work of the background threads.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::background::{Background, Worker};
use super::jobs::{FlushTurn, PickedSound, RangeGoal};
#[cfg(doc)]
use super::stall::Stall;
use super::{BackgroundMode, DbInner};
use crate::compaction::Finish;
use crate::error::{Error, Result};
use crate::partition::PartitionState;
use crate::read::Bounds;
use crate::version::UserRange;

impl Worker for DbInner {
    fn background(&self) -> &Background {
        &self.background
    }

    fn check_working(&self) -> Result<()> {
        self.check_writable()
    }

    fn flush_one(&self) -> Result<bool> {
        // A fenced database has no work left: its results would not count.
        if self.ownership.is_fenced() { Ok(false) } else { self.flusher.flush_one() }
    }

    fn compact_one(&self) -> Result<bool> {
        if self.ownership.is_fenced() { Ok(false) } else { self.compact_one() }
    }

    fn tend_log(&self) -> Result<Option<Duration>> {
        if self.ownership.is_fenced() {
            return Ok(None);
        }
        // First: writers may need it within milliseconds, and a sync takes longer.
        self.setup.slabs.prepare();
        // Before the log, which fails where the disk is full.
        let cursor = self.tend_cursor();
        let sync_interval = Duration::from_millis(self.setup.options.sync_interval_ms);
        let log = self.log.tend(self.background.now(), sync_interval)?;
        Ok(log.into_iter().chain(cursor).min())
    }

    fn tend_log_now(&self) -> Result<bool> {
        if self.ownership.is_fenced() {
            return Ok(false);
        }
        self.tend_cursor();
        self.log.tend_now()
    }

    fn remove_obsolete(&self) -> Result<()> {
        self.removal.remove()
    }

    fn finish_removing(&self) -> Result<()> {
        self.removal.finish()
    }

    fn holds_obsolete(&self) -> bool {
        !self.ownership.is_fenced() && self.removal.is_due()
    }

    fn waits_for_release(&self) -> bool {
        !self.ownership.is_fenced() && (self.jobs.waits_for_time() || self.reclaimer.holds_values())
    }

    fn has_work(&self) -> bool {
        !self.ownership.is_fenced() && self.has_work()
    }

    fn ease(&self) {
        self.stall.ease();
    }
}

impl DbInner {
    /// As [`Stall::admit`].
    #[inline]
    pub(super) fn admit<'a>(
        &self,
        partitions: impl Iterator<Item = &'a PartitionState> + Clone,
        bytes: u64,
    ) -> Result<()> {
        match self.background.mode() {
            BackgroundMode::Threads => self.stall.admit(None, partitions, bytes),
            BackgroundMode::Stepped => {
                self.stall.admit(Some(&|| self.background.step(self)), partitions, bytes)
            }
        }
    }

    /// Picks, for any partition, and runs one compaction; `false` if none is due.
    pub(super) fn compact_one(&self) -> Result<bool> {
        // Large values are moved only when no compaction is due, because writers wait for
        // compactions. A failed compaction comes after them: while it fails, the moves would never
        // free space.
        match self.jobs.pick_sound() {
            PickedSound::Due(claimed) => self.compactor.run_in_background(&claimed),
            PickedSound::Nothing => self.reclaimer.tend(),
            PickedSound::OnlyFailing => match self.reclaimer.tend() {
                Ok(true) => Ok(true),
                tended => self.try_again().and_then(|done| if done { Ok(true) } else { tended }),
            },
        }
    }

    /// Picks and runs a compaction, also of a partition whose last one failed.
    fn try_again(&self) -> Result<bool> {
        self.jobs.pick()?.map_or(Ok(false), |claimed| self.compactor.run_in_background(&claimed))
    }

    /// Compacts a range of a partition to the bottom, on the calling thread.
    pub(super) fn compact(&self, partition: &Arc<PartitionState>, bounds: &Bounds) -> Result<()> {
        self.flusher.flush_now(partition)?;
        let range = UserRange { start: end_of(&bounds.0), end: end_of(&bounds.1) };
        if matches!((range.start, range.end), (Some(start), Some(end)) if start > end) {
            return Ok(());
        }
        // Filters see every table that exists now, a value store may move its values, and hidden
        // entries of a removed filter are dropped.
        let view = partition.view();
        let has_hidden = view.version.tables().any(|(_, table)| table.meta.hidden > 0);
        let has_hooks = !partition.hooks().filters.is_empty() || partition.store().is_some();
        let rewrites_all = has_hidden || has_hooks;
        drop(view);
        // A number that is allocated now is above that of every existing table.
        let goal = RangeGoal {
            range,
            through: self.commit.visible_seq(),
            rewrite_before: rewrites_all.then(|| self.runner.factory.numbers.allocate()),
            finish: Finish::LastLevel,
        };
        self.compactor.reach(partition, goal)?;
        // After the tables of the range are where they stay: those that exist now are merged with their
        // neighbours once, so that the call ends however the outputs are cut.
        let finish = Finish::Packed(self.runner.factory.numbers.allocate());
        self.compactor.reach(partition, RangeGoal { finish, ..goal })
    }

    /// Waits until no compaction runs; no flush runs either while the result lives.
    pub(super) fn wait_for_jobs(&self) -> FlushTurn<'_> {
        while self.jobs.is_running() {
            self.background.wait_for_news();
        }
        self.jobs.flush_turn()
    }

    /// Returns `true` if there is something to flush, to compact or to remove.
    pub(super) fn has_work(&self) -> bool {
        self.log.has_failed() || self.jobs.has_work() || self.reclaimer.has_value_goal()
    }

    /// The failure that prevents background work at present, or the first damage that a compaction met.
    pub(super) fn background_error(&self) -> Option<Error> {
        self.background.error().or_else(|| self.jobs.damage())
    }
}

/// The key at which a range ends; compactions take the tables around it whole, so the bound may be
/// inclusive or exclusive.
fn end_of(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::{BackgroundMode, Db};
    use crate::fs::MemFs;

    /// Threads of a database that works step by step do nothing when they are woken, so each wake-up
    /// counts.
    #[test]
    fn a_writer_whose_memtable_takes_a_slab_wakes_the_thread_that_prepares_the_next_ones() {
        let builder = Db::builder("/db").fs(Arc::new(MemFs::new()));
        let db = builder.background(BackgroundMode::Stepped).open().unwrap();
        let p = db.partition("p").unwrap();
        let inner = db.inner();
        inner.tend_log().unwrap();
        assert_eq!(inner.setup.slabs.idle_bytes(), 0, "none was taken");
        // Beyond the first slabs of a memtable, which are short and come from the allocator.
        for n in 0..2000_u32 {
            p.put(n.to_be_bytes(), [7; 900]).unwrap();
        }
        assert_eq!(inner.setup.slabs.idle_bytes(), 0, "a writer prepares none");
        inner.tend_log().unwrap();
        let prepared = inner.setup.slabs.idle_bytes();
        assert!(prepared > 0);
        let mut takes = 0;
        for n in 2000..6000_u32 {
            let wakes = inner.background.wakes();
            p.put(n.to_be_bytes(), [7; 900]).unwrap();
            if inner.setup.slabs.idle_bytes() < prepared {
                takes += 1;
                assert!(
                    inner.background.wakes() > wakes,
                    "put {n} takes a slab and wakes no thread"
                );
                inner.tend_log().unwrap();
                assert_eq!(inner.setup.slabs.idle_bytes(), prepared);
            }
        }
        assert!(takes > 0);
    }
}
