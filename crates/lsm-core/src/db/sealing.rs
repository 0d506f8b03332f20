//! [`MemtableSealer`]: the work between two groups of writes: each batch is checked before it is written, and memtables that
//! have grown too large are sealed after it.
//!
//! Called by the leader of a group, under the lock of the log's writer.

use std::sync::Arc;

use super::background::Background;
use super::catalog::Catalog;
use super::commit::{CommitEnv, CommitPath, Deletion};
use super::job_parts::JobParts;
use super::log::{Log, LogWriter};
use super::prepared::Prepared;
use super::stall::Stall;
use super::write_budget::BudgetShare;
use crate::error::Result;
use crate::hooks::{OpenWishes, StoreWishes};
use crate::memtable::SlabPool;
use crate::partition::PartitionState;
use crate::version::Change;

/// Checks the batches of a group, and seals memtables.
pub(super) struct MemtableSealer {
    catalog: Arc<Catalog>,
    log: Arc<Log>,
    commit: Arc<CommitPath>,
    stall: Arc<Stall>,
    background: Arc<Background>,
    limits: MemtableLimits,
}

/// The limits of the memory in memtables, and its sources.
pub(super) struct MemtableLimits {
    /// The largest memtable is sealed when all together have so many bytes.
    pub(super) write_buffer_bytes: u64,
    /// A memtable that pins so much of the log is sealed.
    pub(super) wal_bytes_max: u64,
    pub(super) slabs: Arc<SlabPool>,
    /// The database's share of a write buffer that several databases have in common.
    pub(super) share: Option<Arc<BudgetShare>>,
    /// Value stores ask here for flushes.
    pub(super) wishes: StoreWishes,
}

impl CommitEnv for MemtableSealer {
    fn check_batch(&self, batch: &Prepared<'_>) -> Result<()> {
        self.log.check_open()?;
        for section in batch.sections() {
            section.partition.check_live()?;
            section.partition.check_codec()?;
            if section.partition.is_doubtful() {
                // A drop that may be on disk is finished or ruled out first: a write that is
                // acknowledged now would be lost at the next open if the drop counts.
                self.rule_out_drop(&section.partition)?;
            }
            section.check_rules()?;
            section.check_values()?;
        }
        Ok(())
    }

    fn after_group(&self, writer: &mut LogWriter<'_>, deletions: Vec<Deletion>) {
        // The largest memtable, not the one that was just written to: a flush of it frees most, and
        // many small partitions are not flushed one by one.
        let bytes = self.commit.active_bytes();
        let is_asked = self.limits.share.as_ref().is_some_and(|share| share.note_active(bytes));
        if is_asked || bytes >= self.limits.write_buffer_bytes {
            self.seal_largest(writer);
        }
        for Deletion { partition, span } in deletions {
            // It is in a memtable first, and tables below it can be dropped only when it is in the
            // manifest.
            let view = partition.view();
            let frees =
                span.map_or_else(|| view.frees_tables(), |span| view.frees_tables_in(&span));
            if frees {
                self.seal(writer, &partition);
            }
        }
        if let Some(wishes) = self.limits.wishes.take() {
            self.fulfil(writer, &wishes);
        }
        // The log thread prepares memory for the memtables: see `memtable/arena.rs`.
        if self.limits.slabs.take_short() {
            self.background.wake_all();
        }
        // Once a segment: a look at each group would walk the work list at every commit.
        if writer.take_segment_switched() {
            self.seal_for_log_size(writer);
        }
    }
}

impl MemtableSealer {
    pub(super) fn new(
        parts: &JobParts,
        stall: Arc<Stall>,
        limits: MemtableLimits,
    ) -> MemtableSealer {
        let JobParts { log, runner, background, .. } = parts.clone();
        MemtableSealer {
            catalog: runner.catalog.clone(),
            log,
            commit: runner.commit.clone(),
            stall,
            background,
            limits,
        }
    }

    /// Notes the memory of the active memtables for other databases.
    pub(super) fn note_memory(&self) {
        if let Some(share) = &self.limits.share {
            share.set_active(self.commit.active_bytes());
        }
    }

    /// Seals the largest memtable if other databases need its memory.
    pub(super) fn seal_if_asked(&self) {
        if self.limits.share.as_ref().is_some_and(|share| share.take_asked()) {
            self.seal_largest(&mut self.log.lock());
        }
    }

    fn seal_largest(&self, writer: &mut LogWriter<'_>) {
        let largest = self.catalog.work().largest_active();
        if let Some(largest) = largest.and_then(|id| self.catalog.with_id(id)) {
            self.seal(writer, &largest);
        }
    }

    /// Computes the pressure on the writers of a partition again, after it installed tables.
    pub(super) fn update_pressure(&self, partition: &PartitionState) {
        self.stall.update(std::iter::once(partition));
    }

    /// Wakes writers that wait, to look again.
    pub(super) fn ease(&self) {
        self.stall.ease();
    }

    /// As [`MemtableSealer::seal`], once no group is being committed.
    pub(super) fn seal_now(&self, partition: &PartitionState) {
        self.seal(&mut self.log.lock(), partition);
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
        let pinning_before = end.saturating_sub(self.limits.wal_bytes_max);
        let pinning = self.catalog.work().active_before(pinning_before);
        let mut sealed: Vec<Arc<PartitionState>> =
            pinning.into_iter().filter_map(|id| self.catalog.with_id(id)).collect();
        sealed.retain(|partition| self.commit.seal(writer, partition));
        // Once for all of them: there may be thousands, and writers wait.
        self.sealed(sealed.iter().map(|partition| &**partition));
    }

    /// Delays writers by the memory of memtables that were sealed, and requests their flush.
    fn sealed<'a>(&self, partitions: impl Iterator<Item = &'a PartitionState>) {
        self.note_memory();
        self.stall.update(partitions);
        self.background.wake_all();
    }

    /// Seals a partition's active memtable, unless it is empty, and requests its flush. The caller
    /// holds the lock between two groups.
    pub(super) fn seal(&self, writer: &mut LogWriter<'_>, partition: &PartitionState) {
        if self.commit.seal(writer, partition) {
            self.sealed(std::iter::once(partition));
        }
    }

    /// Makes durable that a partition whose drop failed still exists: an edit goes into a manifest
    /// generation that does not have the drop. Under the commit path's lock.
    #[cold]
    fn rule_out_drop(&self, partition: &PartitionState) -> Result<()> {
        self.catalog.install(vec![Change::LastSeq(self.commit.visible_seq())])?;
        partition.set_doubtful(false);
        Ok(())
    }
}
