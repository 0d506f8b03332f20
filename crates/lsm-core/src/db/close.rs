//! Closing: nothing acknowledged is lost, and nothing touches the folder afterwards.

use std::sync::Arc;

use super::log::LogWriter;
use super::ownership::Closing;
use super::{BackgroundMode, DbInner};
use crate::error::{Error, Result};
use crate::partition::PartitionState;

/// A close flushes the partitions with so many bytes in memtables. The next open would replay them
/// from the log, which takes longer, and then flush them all the same.
const FLUSHED_BYTES_MIN: u64 = 1 << 20;
/// A close does so many compactions that are due, if they read no more than so many bytes together. A process
/// that lives for milliseconds leaves its threads no time for any, and the next one leaves one more table.
const MERGES_MAX: usize = 4;
const MERGED_BYTES_MAX: u64 = 1 << 20;

impl DbInner {
    /// Ends everything: background work, the log, the lock. Once; later calls are no-ops.
    pub(super) fn close(&self) -> Result<()> {
        self.ownership.check_process()?;
        let is_in_listener = self.events.is_in_listener();
        let Some(closing) = self.ownership.begin_close(is_in_listener) else { return Ok(()) };
        self.runner.io.lift();
        if self.ownership.is_read_only() {
            self.ownership.mark_closed();
            self.scheduler.background().stop();
            // An export may run.
            drop(self.scheduler.wait_for_jobs());
            self.give_back();
            closing.release();
            return Ok(());
        }
        if let Err(fenced) = self.ownership.check_not_fenced() {
            return self.abandon(closing, fenced);
        }
        if self.log.has_failed() {
            // The last chance to resume. `between.close` below reports the failure.
            let _ = self.scheduler.flusher().flush_one();
        }
        // A first flush while writers continue, so that little is left when they are refused.
        let flushed = self.flush_unlogged();
        self.flush_large();
        self.merge_little();
        let mut between = self.log.lock();
        // Set between two groups: earlier writers were answered, later ones are refused.
        self.ownership.mark_closed();
        let unlogged = self.seal_unlogged(&mut between);
        drop(between);
        // Entries that were acknowledged during the first flush.
        let flushed =
            flushed.and_then(|()| self.scheduler.flusher().flush_sealed(&unlogged, || Ok(())));
        let mut between = self.log.lock();
        let ended = self.log.check().and_then(|()| between.close());
        drop(between);
        self.end_work();
        // No other thread does it from here on, and a sealed segment without an index keeps its file
        // open. An index is a hint, so its failure does not fail the close.
        let _ = self.log.index_sealed();
        // As long as the folder is locked: later a deletion could hit a file of the next process.
        let removed = self.scheduler.removal().remove();
        // After a concurrent fence this returns the error, and the cursor does not change.
        let closed = self.ownership.end_cursor();
        // Last: the next process may open the database as soon as the lock is free.
        closing.release();
        flushed.and(ended).and(removed).and(closed)
    }

    /// Leaves the database to the process that opened it, in a child that drops its handles.
    pub(super) fn leave_to_parent(self: &Arc<Self>) {
        self.ownership.leave_to_parent();
        // The threads of the parent do not exist here, and files, locks and memory are in any state.
        std::mem::forget(self.clone());
    }

    /// Ends everything and writes nothing: the database belongs to another process.
    fn abandon(&self, closing: Closing<'_>, fenced: Error) -> Result<()> {
        self.ownership.mark_closed();
        self.end_work();
        self.log.forget_sealed();
        closing.release();
        Err(fenced)
    }

    /// Ends all work of a database that is marked closed.
    fn end_work(&self) {
        self.log.shut_notices();
        self.scheduler.background().stop();
        // Parked writers look again and find the database closed.
        self.scheduler.stall().ease();
        // Calls that work on threads of their own give up; none may touch the folder afterwards.
        let flushing = self.scheduler.wait_for_jobs();
        // After the last job. From here on no edit can reach the folder, which another process may
        // open.
        self.catalog.shut();
        drop(flushing);
        self.give_back();
    }

    /// Gives back what a database uses of resources that it shares.
    fn give_back(&self) {
        self.scheduler.leave_budget();
        self.setup.cache.leave();
        // Handles, snapshots and values of a feed may live on.
        self.context.files.close_all();
    }

    /// Partitions without a log have nothing else to make them last.
    fn flush_unlogged(&self) -> Result<()> {
        if self.scheduler.background().mode() == BackgroundMode::Threads {
            self.check_open()?;
        }
        let unlogged = self.seal_unlogged(&mut self.log.lock());
        self.scheduler.flusher().finish_flushes(&unlogged)
    }

    /// Flushes memtables that would take long to replay. The log has them as well, so a failure here
    /// does not fail the close. Small memtables stay in the log alone, since a table costs a sync of
    /// its own.
    fn flush_large(&self) {
        let mut large = self.catalog.partitions();
        large.retain(|partition| {
            partition.logged && partition.view().memtable_bytes() >= FLUSHED_BYTES_MIN
        });
        if large.is_empty() || self.log.has_failed() {
            return;
        }
        let _ = self.scheduler.flusher().seal_and_flush(&large);
    }

    /// Does compactions that are due and cost little. The next process tries one that fails again, so the
    /// close does not fail with it.
    fn merge_little(&self) {
        // In steps the owner says when work is done.
        if self.scheduler.background().mode() != BackgroundMode::Threads || self.log.has_failed() {
            return;
        }
        let mut left = MERGED_BYTES_MAX;
        for _ in 0..MERGES_MAX {
            let Some(claimed) = self.scheduler.jobs().pick_cheap(left) else { return };
            left -= claimed.compaction.bytes();
            if self.scheduler.compactor().run_in_background(&claimed).is_err() {
                return;
            }
        }
    }

    fn seal_unlogged(&self, between: &mut LogWriter<'_>) -> Vec<Arc<PartitionState>> {
        let mut unlogged = self.catalog.partitions();
        unlogged.retain(|partition| !partition.logged);
        unlogged.iter().for_each(|partition| self.scheduler.sealer().seal(between, partition));
        unlogged
    }
}
