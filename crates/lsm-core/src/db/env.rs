//! The connections between the parts of the database: the calls of the commit path, the stall, jobs
//! and background threads to the others.
//!
//! Each part knows the rest only through a small trait next to it; this file implements these
//! traits for an open database. Nothing else may implement them outside of tests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::background::{Background, Worker};
use super::commit::CommitEnv;
use super::errors::Reason;
use super::events::in_listener;
use super::jobs::JobsEnv;
use super::log::LogWriter;
use super::prepared::Prepared;
use super::stall::{StallCause, StallEnv};
use super::{BackgroundMode, DbInner};
use crate::error::{Error, Result};
use crate::hooks::{Event, OpenWishes};
use crate::partition::PartitionState;
use crate::stats::Counters;
use crate::types::{PartitionId, SeqNo};

impl CommitEnv for DbInner {
    fn check_batch(&self, batch: &Prepared<'_>) -> Result<()> {
        self.check_open()?;
        for section in batch.sections() {
            section.partition.check_live()?;
            if section.partition.is_doubtful() {
                // A drop that may be on disk is finished or ruled out first: a write that is
                // acknowledged now would be lost at the next open if the drop counts.
                self.settle(&section.partition)?;
            }
            section.check_rules()?;
            section.check_values()?;
        }
        Ok(())
    }

    fn after_group(&self, writer: &mut LogWriter<'_>, cleared: Vec<Arc<PartitionState>>) {
        // The largest memtable, not the one that was just written to: a flush of it frees most, and
        // many small partitions are not flushed one by one.
        if self.commit.active_bytes() >= self.setup.options.write_buffer_bytes {
            let work = self.catalog.work();
            let largest = work.largest_active().and_then(|id| self.catalog.with_id(id));
            if let Some(largest) = largest {
                self.seal(writer, &largest);
            }
        }
        for partition in cleared {
            // A clear is in a memtable first, and tables below it can be dropped only when it is in
            // the manifest.
            if partition.view().frees_tables() {
                self.seal(writer, &partition);
            }
        }
        if let Some(wishes) = self.context.wishes.take() {
            self.fulfil(writer, &wishes);
        }
        // The log thread prepares memory for the memtables: see `memtable/arena.rs`.
        if self.setup.slabs.take_short() {
            self.background.wake_all();
        }
        // Once a segment: a look at each group would walk the work list at every commit.
        if writer.take_segment_switched() {
            self.seal_for_log_size(writer);
        }
    }
}

impl JobsEnv for DbInner {
    fn partition(&self, id: PartitionId) -> Option<Arc<PartitionState>> {
        self.catalog.with_id(id)
    }

    fn take_changed(&self) -> BTreeSet<PartitionId> {
        self.catalog.work().take_changed()
    }

    fn has_sealed(&self) -> bool {
        self.catalog.work().has_sealed()
    }

    fn oldest_snapshot(&self) -> SeqNo {
        self.snapshots.oldest(|| self.commit.visible_seq())
    }

    fn held_snapshots(&self) -> Vec<SeqNo> {
        self.snapshots.for_job(|| self.commit.visible_seq()).registered
    }

    fn now(&self) -> Duration {
        self.background.now()
    }

    fn unix_time(&self) -> Duration {
        self.runner.calendar.unix_time()
    }
}

impl StallEnv for DbInner {
    fn partitions(&self) -> Vec<Arc<PartitionState>> {
        self.catalog.partitions()
    }

    fn now(&self) -> Duration {
        self.background.now()
    }

    fn check_open(&self) -> Result<()> {
        self.check_open()
    }

    fn obstacle(&self, partition: &PartitionState, cause: StallCause) -> Option<Error> {
        match cause {
            // Every flush of any partition lowers the sum, so any failing one is an obstacle.
            StallCause::Sealed => self.background.failure_of(Reason::Flush),
            StallCause::Level0 | StallCause::Debt => self.jobs.failure_of(partition.id),
        }
    }

    fn is_stepped(&self) -> bool {
        self.background.mode() == BackgroundMode::Stepped
    }

    fn step(&self) -> Result<bool> {
        self.background.step(self)
    }

    fn is_in_listener(&self) -> bool {
        in_listener()
    }

    fn tell(&self, event: &Event) {
        self.events.tell(event);
    }

    fn deliver(&self) {
        self.events.deliver();
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Worker for DbInner {
    fn background(&self) -> &Background {
        &self.background
    }

    fn check_working(&self) -> Result<()> {
        self.check_writable()
    }

    fn flush_one(&self) -> Result<bool> {
        // A fenced database has no work left: its results would not count.
        if self.ownership.is_fenced() { Ok(false) } else { self.flush_one() }
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
        self.remove_obsolete()
    }

    fn finish_removing(&self) -> Result<()> {
        self.finish_removing()
    }

    fn holds_obsolete(&self) -> bool {
        let is_left = !self.catalog.obsolete().is_empty() || self.context.wishes.has_removals();
        !self.ownership.is_fenced() && is_left
    }

    fn waits_for_release(&self) -> bool {
        !self.ownership.is_fenced() && (self.jobs.waits_for_time() || self.holds_values())
    }

    fn has_work(&self) -> bool {
        !self.ownership.is_fenced() && self.has_work()
    }

    fn ease(&self) {
        self.stall.ease();
    }
}

impl DbInner {
    /// Waits until no group is being committed; none begins while the guard lives.
    pub(super) fn between_groups(&self) -> LogWriter<'_> {
        self.log.lock()
    }

    /// Begins what value stores wish.
    fn fulfil(&self, writer: &mut LogWriter<'_>, wishes: &OpenWishes) {
        if wishes.log_sync {
            self.log.want_sync();
        }
        for partition in wishes.flushes.iter().filter_map(|id| self.catalog.with_id(*id)) {
            self.seal(writer, &partition);
        }
    }

    /// Seals every partition whose active memtable pins more of the log than it may grow to.
    fn seal_for_log_size(&self, writer: &mut LogWriter<'_>) {
        let end = writer.lsn().0;
        // A memtable that is written to rarely is never the largest. Without this limit it would
        // keep the log, and the time of the next open, growing.
        let pinning_before = end.saturating_sub(self.setup.options.wal_bytes_max);
        let pinning = self.catalog.work().active_before(pinning_before);
        let mut sealed: Vec<Arc<PartitionState>> =
            pinning.into_iter().filter_map(|id| self.catalog.with_id(id)).collect();
        sealed.retain(|partition| self.commit.seal(writer, partition));
        // Once for all of them: there may be thousands, and writers wait.
        self.sealed(sealed.iter().map(|partition| &**partition));
    }

    /// Seals a partition's active memtable, unless it is empty, and requests its flush. The caller
    /// holds the lock between two groups.
    pub(super) fn seal(&self, writer: &mut LogWriter<'_>, partition: &PartitionState) {
        if self.commit.seal(writer, partition) {
            self.sealed(std::iter::once(partition));
        }
    }

    fn sealed<'a>(&self, partitions: impl Iterator<Item = &'a PartitionState>) {
        self.stall.update(self, partitions);
        self.background.wake_all();
    }

    /// Computes the pressures again, after a partition installed tables or was dropped.
    pub(super) fn update_pressure(&self, changed: &PartitionState) {
        self.stall.update(self, std::iter::once(changed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
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
