//! The tasks of the log thread: syncs for callers that do not wait, and after the interval; marks;
//! the reserve, which it keeps and frees; indexes of sealed segments.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Log;
use super::state::{LogTask, TaskAge};
use crate::error::Result;
use crate::wal::Control;

/// An idle log is marked this long after its last sync. Due tasks are looked for as often.
const MARK_AFTER: Duration = Duration::from_millis(10);
/// A log that is not synced by interval is looked at this often.
const LOOK_AT_UNSYNCED: Duration = Duration::from_secs(1);
/// An idle log frees its reserved space after this long.
const RESERVE_KEPT: Duration = Duration::from_secs(1);

impl Log {
    /// Wakes the log thread, unless it knows already.
    #[inline]
    pub(super) fn notify_thread(&self) {
        // Loaded first: a swap at each append would write to a cache line that others read.
        if !self.reported.load(Ordering::Relaxed) && !self.reported.swap(true, Ordering::AcqRel) {
            self.env.wake_log_thread();
        }
    }

    /// Syncs and marks the log when due, and keeps a reserve while there are writes; returns the
    /// time to look again, `None` for the next wake-up.
    ///
    /// `sync_interval` is the maximum age of unsynced frames; zero leaves syncing to the operating
    /// system and to commits that request it.
    pub(in crate::db) fn tend(
        &self,
        now: Duration,
        sync_interval: Duration,
    ) -> Result<Option<Duration>> {
        let task = self.task();
        let age = self.ages.lock().age(task, now);
        let mut next = MARK_AFTER;
        match task {
            LogTask::Idle => {
                // Cleared before the second look. In the other order an append between the two
                // would find the flag set and not wake the thread, and its frame would wait for the
                // next append.
                self.reported.store(false, Ordering::Release);
                // An append that ran before this store saw the flag set and did not wake the
                // thread. Both sides take the lock of `sync`, so a later append sees the flag
                // cleared, and an earlier append is visible here.
                if self.task() == LogTask::Idle {
                    return self.rest(age);
                }
                // This thread continues anyway, so appends need not wake it.
                self.reported.store(true, Ordering::Release);
            }
            LogTask::Sync if self.is_sync_wanted() => self.sync_now()?,
            LogTask::Sync if sync_interval.is_zero() => next = LOOK_AT_UNSYNCED,
            // Counted from the moment at which this thread first saw unsynced frames, so no frame
            // waits much longer than the interval.
            LogTask::Sync if age >= sync_interval => self.sync_now()?,
            // Not at once: under load the next frame attests the sync, and a mark would cost
            // another sync.
            LogTask::Mark if age >= MARK_AFTER => self.mark()?,
            LogTask::Sync | LogTask::Mark => {}
        }
        // While there is little after the header: a flush that releases earlier segments needs it
        // durable, and would wait for all of a full segment.
        self.sync_present_header()?;
        // Before the reserve, which a full disk may refuse for long: the sealed segments stay in
        // memory, with open files, until they are indexed.
        self.index_sealed()?;
        // After the sync, so that a full disk does not prevent that.
        self.ensure_reserve()?;
        Ok(Some(next))
    }

    fn sync_now(&self) -> Result<()> {
        self.sync_all()?;
        // Frames that were appended during the sync have been unsynced since then at most, not
        // since the last look.
        *self.ages.lock() = TaskAge::default();
        Ok(())
    }

    /// Does the tasks of a log that has been idle for `age`.
    fn rest(&self, age: Duration) -> Result<Option<Duration>> {
        if age < RESERVE_KEPT {
            return Ok(Some(RESERVE_KEPT.saturating_sub(age)));
        }
        // Not at once: between two bursts of writes the reserve would be freed and made again, at
        // three syncs each.
        self.release_reserve()?;
        Ok(None)
    }

    /// Does the due tasks now, without waiting for their age; `false` if there was none.
    pub(in crate::db) fn tend_now(&self) -> Result<bool> {
        self.index_sealed()?;
        match self.task() {
            LogTask::Sync => self.sync_all()?,
            LogTask::Mark => {
                self.ensure_reserve()?;
                self.mark()?;
            }
            LogTask::Idle => {
                self.release_reserve()?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Appends and syncs a frame that attests the last sync and the manifest's last edit.
    fn mark(&self) -> Result<()> {
        let mut writer = self.lock();
        self.env.check_writable()?;
        self.check()?;
        // Checked again under the lock: a group may have appended meanwhile. Its frames need a sync
        // before a mark can attest them.
        if self.task() != LogTask::Mark {
            return Ok(());
        }
        writer.append_control(Control::IdleMarker { manifest_edit: self.env.durable_edit() })?;
        let lsn = writer.lsn();
        drop(writer);
        // Synced itself: an unsynced mark attests nothing after a power cut.
        self.sync_through(lsn)?;
        self.note_marked(lsn);
        Ok(())
    }
}
