//! Making the log durable: one sync for all waiting threads, and the latch after a failed one.
//!
//! The latch is here because only a sync of the log can set it, and only a new log can clear it. So
//! this is the one owner of "the log takes no more writes", and there is no second copy that could
//! disagree.

use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::Log;
use super::notices::Waiting;
use super::state::{LogTask, SyncState, UnsyncedSegment};
use crate::db::events::Notice;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::is_out_of_handles;
use crate::hooks::catch_engine;
use crate::types::{FileNo, PartitionId, SeqNo};
use crate::version::LogCut;
use crate::wal::{Lsn, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentWriter};

impl Log {
    /// The place up to which the log is durable.
    pub(in crate::db) fn durable_lsn(&self) -> Lsn {
        Lsn(self.durable_lsn.load(Ordering::Acquire))
    }

    /// Returns `true` if a notice waits for a sync that has not begun.
    pub(super) fn is_sync_wanted(&self) -> bool {
        self.sync.lock().waiters.wants_sync
    }

    /// Requests a sync of the appended frames by the log thread.
    pub(in crate::db) fn want_sync(&self) {
        let thread_knows = std::mem::replace(&mut self.sync.lock().waiters.wants_sync, true);
        if !thread_knows {
            self.env.wake_log_thread();
        }
    }

    /// The newest number through which every logged operation is durable. Readers saw `visible` before the
    /// call.
    pub(in crate::db) fn durable_through(&self, visible: SeqNo) -> SeqNo {
        let mut sync = self.sync.lock();
        // Visible operations were appended before, if they are logged.
        if sync.failed.is_none() && sync.durable_lsn >= sync.appended_lsn {
            sync.reported_seq = sync.reported_seq.max(visible);
        }
        sync.durable_seq.max(sync.reported_seq)
    }

    /// Notes the promise to a caller that every logged operation through `seq` is durable.
    fn note_reported(&self, seq: SeqNo) {
        let mut sync = self.sync.lock();
        sync.reported_seq = sync.reported_seq.max(seq);
    }

    /// The number of segments that are open because they wait for a sync, with the present one.
    pub(super) fn unsynced_count(&self) -> usize {
        self.sync.lock().unsynced.len()
    }

    /// The error for which the log takes no more writes, if a sync failed and no new log has begun
    /// since.
    pub(in crate::db) fn failure(&self) -> Option<Error> {
        self.sync.lock().failed.clone()
    }

    /// Returns `true` if a sync failed, and no new log has begun since.
    pub(in crate::db) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns an error if the log takes no more writes.
    pub(in crate::db) fn check(&self) -> Result<()> {
        if !self.has_failed() {
            return Ok(());
        }
        // A new log may have begun since.
        self.failure().map_or(Ok(()), Err)
    }

    /// Returns an error if the database takes no writes, for another reason than the log.
    pub(in crate::db) fn check_writable(&self) -> Result<()> {
        self.env.check_writable()
    }

    /// Returns an error if the database takes no writes, because of the log or for another reason.
    pub(in crate::db) fn check_open(&self) -> Result<()> {
        self.env.check_writable()?;
        self.check()
    }

    /// The next task for the log.
    pub(in crate::db) fn task(&self) -> LogTask {
        let sync = self.sync.lock();
        if sync.failed.is_some() {
            // A failed log is not touched until a new one begins: another sync would report
            // success.
            LogTask::Idle
        } else if sync.durable_lsn < sync.appended_lsn {
            LogTask::Sync
        } else if !sync.marked {
            LogTask::Mark
        } else {
            LogTask::Idle
        }
    }

    /// Notes an append, with `askers` batches whose writers ask for a sync.
    pub(super) fn note_appended(&self, lsn: Lsn, seq: SeqNo, askers: u64) {
        let mut sync = self.sync.lock();
        sync.appended_lsn = lsn;
        sync.appended_seq = seq;
        self.note_askers(&mut sync, askers);
    }

    /// Notes that so many callers ask for a sync of what is appended.
    fn note_askers(&self, sync: &mut SyncState, askers: u64) {
        sync.askers += askers;
        if sync.is_gathering && sync.askers >= sync.expected_askers {
            self.asked.notify_one();
        }
    }

    pub(super) fn note_begun(&self, segment: &SegmentWriter) {
        let mut sync = self.sync.lock();
        // Kept until it is synced: a closed segment with unsynced frames must be synced before its
        // successor.
        sync.unsynced.push(UnsyncedSegment::of(segment, false));
        sync.appended_lsn = segment.lsn();
    }

    /// Notes that everything before `segment` is in tables, and with it every operation through
    /// `seq`.
    pub(super) fn note_restarted(&self, segment: &SegmentWriter, seq: SeqNo) {
        let mut sync = self.sync.lock();
        assert!(!sync.running, "none begins while one has failed");
        // Feeds that came after the failure: they may find that their token is too old now.
        let due = sync.waiters.take_all();
        // The files of the old log leave the list together with the failure: another sync of them
        // would report success although pages are lost.
        *sync = SyncState {
            reported_seq: sync.reported_seq.max(seq),
            appended_lsn: segment.lsn(),
            durable_lsn: segment.lsn(),
            unsynced: vec![UnsyncedSegment::of(segment, true)],
            ..SyncState::new(seq)
        };
        self.durable_lsn.store(segment.lsn().0, Ordering::Release);
        self.has_failed.store(false, Ordering::Release);
        drop(sync);
        self.synced.notify_all();
        if !due.is_empty() {
            self.env.answer(due, Ok(()));
        }
    }

    /// Notes that a durable frame, which ends at `lsn`, attests the last sync.
    pub(super) fn note_marked(&self, lsn: Lsn) {
        let mut sync = self.sync.lock();
        // A later sync has no frame after it that attests it.
        sync.marked |= sync.durable_lsn == lsn;
    }

    /// Waits until the log is durable through `lsn`; syncs it if no other thread does.
    ///
    /// # Errors
    /// Those of the sync, or of one that failed before. The log takes no more writes then.
    pub(in crate::db) fn sync_through(&self, lsn: Lsn) -> Result<()> {
        // The sync that runs may have read its target before this frame was appended, so the place is
        // compared again after it.
        let Some(mut sync) = self.begin_sync(|sync| sync.durable_lsn >= lsn)? else {
            return Ok(());
        };
        self.gather(&mut sync);
        // Read before the sync: bytes that are appended during the sync may not be part of it.
        let target_lsn = sync.appended_lsn;
        let target_seq = sync.appended_seq;
        let askers = sync.askers;
        let unsynced = sync.unsynced.clone();
        // Before the sync as well: a notice that arrives during it needs another one.
        let was_wanted = std::mem::take(&mut sync.waiters.wants_sync);
        // Not held during the sync: appends take this lock.
        drop(sync);
        // The log may have failed while this thread gathered.
        let result = self.latch_failure(|| self.check().and_then(|()| self.sync_files(&unsynced)));
        let mut sync = self.sync.lock();
        sync.running = false;
        // A sync of values that failed during this one: this one does not cover them.
        let result = result.and_then(|()| sync.failed.clone().map_or(Ok(()), Err));
        let mut due = Vec::new();
        if result.is_ok() {
            sync.expected_askers = sync.askers + (askers - sync.durable_askers);
            sync.durable_askers = askers;
            due = self.note_durable(&mut sync, target_lsn, target_seq);
            // All but the present one are closed and now durable.
            let present = unsynced.last().map_or(FileNo(0), |segment| segment.number);
            sync.unsynced.retain(|segment| segment.number >= present);
            sync.note_next_header(present);
        } else if sync.failed.is_none() {
            // It was not begun for want of a handle: whoever waits for it waits for the next one.
            sync.waiters.wants_sync |= was_wanted;
        }
        drop(sync);
        self.synced.notify_all();
        if !due.is_empty() {
            self.env.answer(due, Ok(()));
        }
        self.notify_thread();
        result
    }

    /// Waits until the header of segment `number` is durable, with those of the segments before it.
    ///
    /// # Errors
    /// As [`Log::sync_through`].
    ///
    /// # Cost
    /// A sync of each segment whose header is not durable yet: of one, if the log thread keeps up.
    pub(super) fn sync_header(&self, number: FileNo) -> Result<()> {
        let Some(sync) = self.begin_sync(|sync| sync.has_next_header(number))? else {
            return Ok(());
        };
        // In order: recovery takes a torn header before an intact one for damage.
        let wanted = sync.unsynced.iter().filter(|it| it.number <= number && !it.has_next_header);
        let wanted: Vec<_> = wanted.cloned().collect();
        drop(sync);
        // Without segments that have durable headers: this makes no place durable.
        let result = self.latch_failure(|| self.sync_segments(&wanted));
        let mut sync = self.sync.lock();
        sync.running = false;
        if result.is_ok() {
            sync.note_next_header(number);
        }
        drop(sync);
        self.synced.notify_all();
        result
    }

    /// Makes the header of the present segment durable, while there is little after it.
    pub(super) fn sync_present_header(&self) -> Result<()> {
        let sync = self.sync.lock();
        let present = sync.unsynced.last().filter(|segment| !segment.has_next_header);
        let present = present.map(|segment| segment.number);
        let has_failed = sync.failed.is_some();
        drop(sync);
        match present {
            Some(number) if !has_failed => self.sync_header(number),
            _ => Ok(()),
        }
    }

    /// Waits until no thread syncs and takes the turn; `None` as soon as it `is_done`.
    fn begin_sync(
        &self,
        is_done: impl Fn(&SyncState) -> bool,
    ) -> Result<Option<MutexGuard<'_, SyncState>>> {
        let mut sync = self.sync.lock();
        loop {
            if is_done(&sync) {
                return Ok(None);
            }
            if let Some(error) = &sync.failed {
                return Err(error.clone());
            }
            if !sync.running {
                break;
            }
            self.synced.wait(&mut sync);
        }
        // Only one thread syncs. The others wait for the condition variable and share the result;
        // concurrent calls of `fdatasync` on one file would queue up in the kernel, and only one of
        // them would get an error.
        sync.running = true;
        Ok(Some(sync))
    }

    /// Waits a moment for the writers that the last sync has released, if a sync takes long. A sync that begins at once
    /// covers only the others, and those wait for the next one: the writers fall into two halves that take turns, and
    /// each commit takes the time of two syncs.
    fn gather(&self, sync: &mut MutexGuard<'_, SyncState>) {
        let file = sync.unsynced.last().map(|segment| segment.file.clone());
        let time = file.map_or(Duration::ZERO, |file| file.gather_time());
        if time.is_zero() {
            return;
        }
        sync.is_gathering = true;
        self.asked.wait_while_for(
            sync,
            |sync| sync.askers < sync.expected_askers && sync.failed.is_none(),
            time,
        );
        sync.is_gathering = false;
    }

    /// Returns the outcome of a sync; the log takes no more writes after a failure.
    fn latch_failure(&self, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        // A panic is latched like an error. It must not leave `running` set: all later syncs would
        // wait for ever.
        let result = catch_engine("a sync of the log", sync);
        // Latched before `running` is reset. A second `fdatasync` of this file would report
        // success, because the kernel may have marked the failed pages clean.
        // A file that could not be opened was not synced, and another attempt may find a descriptor.
        result.map_err(|error| match is_out_of_handles(&error) {
            true => error,
            false => self.fail(error),
        })
    }

    /// Notes that the log is durable up to here; returns the due notices.
    fn note_durable(&self, sync: &mut SyncState, lsn: Lsn, seq: SeqNo) -> Vec<Notice> {
        // A sync that began before segments were removed may end after that.
        sync.durable_lsn = sync.durable_lsn.max(lsn);
        self.durable_lsn.store(sync.durable_lsn.0, Ordering::Release);
        sync.durable_seq = sync.durable_seq.max(seq);
        // The log thread appends a frame that attests this sync. Without it, recovery could not
        // distinguish rot in the last frames from a torn tail.
        sync.marked = false;
        // Taken under the lock and called without it: a notice may call the database.
        let (due, last) = sync.waiters.take_due(seq, lsn);
        sync.reported_seq = sync.reported_seq.max(last);
        due
    }

    /// Notes that the log begins with `first` now, whose header is durable: everything before it is in
    /// tables.
    pub(super) fn note_removed(&self, first: &SegmentHeader) {
        let mut sync = self.sync.lock();
        // Their files are closed. Otherwise the next sync would write bytes that no one reads.
        sync.unsynced.retain(|segment| segment.number >= first.number);
        let begin = first.lsn_at(SEGMENT_HEADER_BYTES);
        let mut due = Vec::new();
        if sync.failed.is_none() && sync.durable_lsn < begin {
            due = self.note_durable(&mut sync, begin, first.previous_seq);
        }
        drop(sync);
        self.synced.notify_all();
        if !due.is_empty() {
            self.env.answer(due, Ok(()));
        }
    }

    /// Waits until everything appended is durable.
    pub(in crate::db) fn sync_all(&self) -> Result<()> {
        let lsn = self.sync.lock().appended_lsn;
        self.sync_through(lsn)
    }

    /// Waits until every logged operation through `seq` is durable.
    pub(in crate::db) fn sync_through_seq(&self, seq: SeqNo) -> Result<()> {
        // The place of a number in the log is not known, so the whole log is synced. The sync is
        // usually shared with a writer that waits anyway.
        let mut sync = self.sync.lock();
        if sync.durable_seq >= seq {
            return Ok(());
        }
        self.note_askers(&mut sync, 1);
        let end = sync.appended_lsn;
        drop(sync);
        self.sync_through(end)?;
        self.note_reported(seq);
        Ok(())
    }

    /// The last durable number, if a flush of `partition` through `seq` need not wait for the log: every later
    /// batch is of that partition. Then the tables of the flush hold everything that a crash could remove from
    /// the log.
    pub(super) fn durable_before_run(&self, partition: PartitionId, seq: SeqNo) -> Option<SeqNo> {
        let sync = self.sync.lock();
        let failed = sync.failed.is_some();
        let durable = sync.durable_seq;
        // Released before the lock of the writer is taken, which comes before it in order. Meanwhile the
        // durable part may only grow.
        drop(sync);
        let may_lag = !failed && durable < seq && self.lock().has_run_of(partition, durable);
        may_lag.then_some(durable)
    }

    /// Takes no more writes until a new log begins, because of `error` of a sync, of the log or of values; returns
    /// the error for all callers from now on.
    pub(in crate::db) fn fail(&self, error: Error) -> Error {
        let message = "a sync of the log failed; writes are refused until the memtables are \
                       written to new files";
        let latched = match error.kind() {
            // Another writer has the database: no new files, and no further attempt.
            ErrorKind::Fenced => error,
            _ => Error::because(ErrorKind::ReadOnly, message, error),
        };
        let mut sync = self.sync.lock();
        let is_news = sync.failed.is_none();
        // The first error stays: later ones are its consequences, and all callers should see one
        // cause.
        let latched = sync.failed.get_or_insert(latched).clone();
        self.has_failed.store(true, Ordering::Release);
        let refused = sync.waiters.take_all();
        drop(sync);
        self.synced.notify_all();
        self.asked.notify_all();
        if !refused.is_empty() {
            self.env.answer(refused, Err(latched.clone()));
        }
        if is_news {
            self.env.log_failed(&latched);
        }
        latched
    }

    /// Waits until no sync runs. None begins while one has failed.
    pub(in crate::db) fn wait_for_failed_sync(&self) {
        let mut sync = self.sync.lock();
        while sync.running {
            self.synced.wait(&mut sync);
        }
    }

    /// The last place at which a replay may begin if everything below `low` is in tables, for the edit
    /// that adds the tables and removes the segments `removed`. `None` if there is no new one.
    pub(super) fn replay_place(&self, low: Lsn, removed: &[FileNo]) -> Option<LogCut> {
        // While the log has failed no segment is removed, and replay begins in the first one.
        if self.failure().is_some() {
            return None;
        }
        // Durability: the frames of a dropped partition are in no table and may not be durable, although
        // nothing needs them. A replay from a place among them would miss earlier frames.
        let durable = self.durable_lsn();
        let place = self.writer.lock().marks.take_through(low.min(durable))?;
        (!removed.contains(&place.segment)).then_some(place)
    }

    /// Queues `notice` until every logged operation through `seq` is durable, or cannot be made
    /// durable. If that is known already it is called at once.
    pub(in crate::db) fn notify(&self, seq: SeqNo, notice: Notice) {
        let mut sync = self.sync.lock();
        // A number alone is not enough: the numbers of unlogged operations never reach
        // `durable_seq`. When the log is durable up to its present end, everything before this call
        // is.
        let end = sync.appended_lsn;
        let known = if sync.durable_seq >= seq || sync.durable_lsn >= end {
            Some(Ok(()))
        } else if sync.waiters.is_shut {
            Some(Err(Error::closed()))
        } else {
            sync.failed.clone().map(Err)
        };
        if let Some(outcome) = known {
            if outcome.is_ok() {
                sync.reported_seq = sync.reported_seq.max(seq);
            }
            drop(sync);
            // Not under the lock: a notice may call the database.
            notice(outcome);
            return;
        }
        sync.waiters.waiting.push(Waiting { seq, end, notice });
        self.note_askers(&mut sync, 1);
        // One wake-up for all notices before the next sync. A sync for each of them would undo
        // group commit.
        let thread_knows = std::mem::replace(&mut sync.waiters.wants_sync, true);
        drop(sync);
        if !thread_knows {
            self.env.wake_log_thread();
        }
    }

    /// Makes these segments durable, with the values that their frames point to.
    fn sync_files(&self, segments: &[UnsyncedSegment]) -> Result<()> {
        // The device works on values and log at the same time. A second thread for the values would
        // do as well; its start takes longer than what it saves for values of 64 KiB.
        self.env.begin_sync_of_values();
        self.sync_segments(segments)?;
        // Durability: no place in the log counts as durable before the values of the handles below it
        // are. Their handles are written, so their `put` has returned. The frames may be on the device
        // before the values, as they may be without any sync: recovery reads the values of all frames
        // that no later one attests.
        self.env.sync_values()
    }

    fn sync_segments(&self, segments: &[UnsyncedSegment]) -> Result<()> {
        self.env.counters().wal_syncs.add(segments.len() as u64);
        let Some((last, earlier)) = segments.split_last() else { return Ok(()) };
        // In the order of the segments, and none after a failure: the durable part of the log must be a
        // prefix. A file system that ships changes ships them in this order, so all wait once: the last segment was
        // written after the others.
        earlier.iter().try_for_each(|segment| segment.file.sync_locally())?;
        last.file.sync()
    }
}
