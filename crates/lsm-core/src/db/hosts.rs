//! The meeting point of the parts of the database: what the log, the commit path and the stall ask
//! of the others.
//!
//! Each part knows the rest only through a small trait that stands beside it; here is what these
//! traits come to in an open database. Nothing else may implement them outside of tests.

use std::sync::Arc;
use std::time::Duration;

use super::commit::CommitHost;
use super::errors::Reason;
use super::events::in_listener;
use super::log::{LogHost, LogWriter, Notice};
use super::prepared::Prepared;
use super::stall::{StallCause, StallHost};
use super::{BackgroundMode, DbInner};
use crate::error::{Error, Result};
use crate::hooks::Event;
use crate::partition::PartitionState;
use crate::stats::Counters;
use crate::types::{Epoch, FileNo, MemtableId, PartitionId, SeqNo};
use crate::version::Change;
use crate::wal::Lsn;

impl LogHost for DbInner {
    fn install_edit(&self, changes: Vec<Change>) -> Result<()> {
        self.catalog.install(changes)
    }

    fn durable_edit(&self) -> u64 {
        self.catalog.durable_edit()
    }

    fn is_segment_listed(&self, number: FileNo) -> Result<bool> {
        Ok(self.catalog.edit()?.current().log_segments.contains_key(&number))
    }

    fn sync_values(&self) -> Result<()> {
        let partitions = self.live_partitions();
        let mut stores = partitions.iter().filter_map(|partition| partition.store());
        stores.try_for_each(|store| store.sync())
    }

    fn check_open(&self) -> Result<()> {
        self.check_open()
    }

    fn log_failed(&self, error: &Error) {
        self.tell(&Event::BackgroundError(error.clone()));
        // `resume.rs` is due.
        self.background.wake_all();
    }

    fn answer(&self, notices: Vec<Notice>, outcome: Result<()>) {
        self.events.answer(notices, &outcome);
        // The log thread does that when it is done.
        if !self.background.is_log_thread() {
            self.background.wake_all();
        }
    }

    fn wake_log_thread(&self) {
        self.background.wake_all();
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl CommitHost for DbInner {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn check_batch(&self, batch: &Prepared) -> Result<()> {
        self.check_open()?;
        for section in batch.sections() {
            section.partition.check_live()?;
            if section.partition.is_doubtful() {
                self.settle(&section.partition)?;
            }
            section.check_rules()?;
        }
        Ok(())
    }

    fn after_group(&self, writer: &mut LogWriter<'_>) {
        if self.commit.active_bytes() >= self.options.write_buffer_bytes {
            let partitions = self.live_partitions();
            if let Some(largest) = partitions.iter().max_by_key(|p| p.view().active.bytes()) {
                self.seal(writer, largest);
            }
        }
        if writer.take_segment_switched() {
            self.seal_for_log_size(writer);
        }
    }
}

impl StallHost for DbInner {
    fn partitions(&self) -> Vec<Arc<PartitionState>> {
        self.live_partitions()
    }

    fn now(&self) -> Duration {
        self.background.now()
    }

    fn check_open(&self) -> Result<()> {
        self.check_open()
    }

    fn obstacle(&self, partition: &PartitionState, cause: StallCause) -> Option<Error> {
        match cause {
            // Every flush lowers the sum, whosever it is, so any that fails stands in the way.
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
        self.tell(event);
    }

    fn deliver(&self) {
        self.deliver();
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl DbInner {
    /// Stands between two groups: nothing is under way while the guard lives.
    pub(super) fn between_groups(&self) -> LogWriter<'_> {
        self.log.lock(self)
    }

    /// Seals every partition whose active memtable pins more of the log than it may grow to.
    fn seal_for_log_size(&self, writer: &mut LogWriter<'_>) {
        let end = writer.lsn().0;
        let mut sealed = self.live_partitions();
        sealed.retain(|partition| {
            let first = partition.view().active.first_lsn();
            first.is_some_and(|lsn| end.saturating_sub(lsn) > self.options.wal_bytes_max)
                && self.seal_memtable(writer, partition)
        });
        // Once for all of them: there may be thousands, and writers wait.
        self.sealed(sealed.iter().map(|partition| &**partition));
    }

    /// Seals a partition's active memtable, unless it is empty, and has it flushed. The caller
    /// stands between two groups.
    pub(super) fn seal(&self, writer: &mut LogWriter<'_>, partition: &PartitionState) {
        if self.seal_memtable(writer, partition) {
            self.sealed(std::iter::once(partition));
        }
    }

    fn seal_memtable(&self, writer: &mut LogWriter<'_>, partition: &PartitionState) -> bool {
        // What a dropped one held is released already.
        if partition.is_dropped() {
            return false;
        }
        let bytes = partition.view().active.bytes();
        let Some(memtable) = partition.seal() else { return false };
        self.commit.note_released(bytes);
        if partition.logged {
            writer.note_switch(partition.id, memtable);
        }
        true
    }

    fn sealed<'a>(&self, partitions: impl Iterator<Item = &'a PartitionState>) {
        self.stall.update(self, partitions);
        self.background.flush_due();
    }

    /// Looks anew at what holds writers back, after a partition took tables in or was dropped.
    pub(super) fn update_pressure(&self, changed: &PartitionState) {
        self.stall.update(self, std::iter::once(changed));
    }

    /// Takes the next sequence number, for what is no batch. Readers see it from the next
    /// [`DbInner::publish`] on; it is used up even if nothing comes of it.
    pub(super) fn take_seq(&self, writer: &mut LogWriter<'_>) -> SeqNo {
        writer.take_seqs(1)
    }

    /// Lets readers see everything up to the last sequence number that was taken.
    pub(super) fn publish(&self, writer: &LogWriter<'_>) {
        self.cursor.note_floor(writer.next_seq().previous());
        self.commit.publish(writer);
    }

    /// Returns `true` if a sync of the log failed, and the log was not begun anew since.
    pub(super) fn is_log_failed(&self) -> bool {
        self.log.failure().is_some()
    }

    /// Makes everything durable that was appended to the log.
    pub(super) fn sync_log(&self) -> Result<()> {
        self.log.sync_all(self)
    }

    /// Waits until every logged operation through `seq` is durable.
    pub(super) fn sync_through_seq(&self, seq: SeqNo) -> Result<()> {
        self.log.sync_through_seq(self, seq)
    }

    /// [`super::log::Log::obsolete_segments`].
    pub(super) fn obsolete_segments(&self, low: Lsn) -> Result<Vec<FileNo>> {
        self.log.obsolete_segments(self, low)
    }

    /// [`super::log::Log::segments_removed`].
    pub(super) fn segments_removed(&self, numbers: &[FileNo]) -> Result<()> {
        self.log.segments_removed(self, numbers)
    }

    /// Everything in the log below the result is in tables, apart from memtables of `flushing`
    /// through the given id, whose flush is about to be installed.
    pub(super) fn log_low_water(&self, flushing: Option<(PartitionId, MemtableId)>) -> Lsn {
        // Loaded first: whatever is applied later lies above it.
        let mut low = self.commit.applied_lsn();
        for partition in self.live_partitions() {
            for memtable in partition.view().memtables() {
                let is_covered = flushing
                    .is_some_and(|(id, through)| partition.id == id && memtable.id <= through);
                if !is_covered && let Some(first) = memtable.first_lsn() {
                    low = low.min(Lsn(first));
                }
            }
        }
        low
    }
}
