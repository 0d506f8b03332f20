//! The tasks of the log thread: syncs for callers that do not wait, and after the interval; marks;
//! the reserve, which it keeps and frees; indexes of sealed segments.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::sync::LogChore;
use super::{Log, LogHost};
use crate::error::Result;
use crate::wal::Control;

/// An idle log is marked this long after its last sync. Due tasks are looked for as often.
const MARK_AFTER: Duration = Duration::from_millis(10);
/// A log that is not synced by interval is looked at this often.
const LOOK_AT_UNSYNCED: Duration = Duration::from_secs(1);
/// An idle log frees its reserved space after this long.
const RESERVE_KEPT: Duration = Duration::from_secs(1);

/// The present chore, and the time since which the log thread has seen it.
#[derive(Default)]
pub(super) struct LogWatch(Option<(LogChore, Duration)>);

impl LogWatch {
    /// The time for which `chore` has been due, at `now`.
    fn age(&mut self, chore: LogChore, now: Duration) -> Duration {
        match self.0 {
            // After a clock went back, the count starts again: a due chore waits for the interval
            // once more, and not until the clock has caught up.
            Some((same, since)) if same == chore && since <= now => now.saturating_sub(since),
            _ => {
                self.0 = Some((chore, now));
                Duration::ZERO
            }
        }
    }
}

impl Log {
    /// Wakes the log thread, unless it knows already.
    #[inline]
    pub(super) fn tell_thread(&self, host: &dyn LogHost) {
        // Loaded first: a swap at each append would write to a cache line that others read.
        if !self.told.load(Ordering::Relaxed) && !self.told.swap(true, Ordering::AcqRel) {
            host.wake_log_thread();
        }
    }

    /// Syncs and marks the log when due, and keeps a reserve while there are writes; returns the
    /// time to look again, `None` for the next wake-up of the host.
    ///
    /// `sync_interval` is the maximum age of unsynced frames; zero leaves syncing to the operating
    /// system and to commits that request it.
    pub(in crate::db) fn tend(
        &self,
        host: &dyn LogHost,
        now: Duration,
        sync_interval: Duration,
    ) -> Result<Option<Duration>> {
        let chore = self.chore();
        let age = self.watch.lock().age(chore, now);
        let mut next = MARK_AFTER;
        match chore {
            LogChore::Rest => {
                // Cleared before the second look. In the other order an append between the two
                // would find `told` set and not wake the thread, and its frame would wait for the
                // next append.
                self.told.store(false, Ordering::Release);
                // An append that ran before this store saw the flag set and did not wake the
                // thread. Both sides take the lock of `sync`, so a later append sees the flag
                // cleared, and an earlier append is visible here.
                if self.chore() == LogChore::Rest {
                    return self.rest(host, age);
                }
                // This thread continues anyway, so appends need not wake it.
                self.told.store(true, Ordering::Release);
            }
            LogChore::Sync if self.is_sync_wanted() => self.sync_now(host)?,
            LogChore::Sync if sync_interval.is_zero() => next = LOOK_AT_UNSYNCED,
            // Counted from the moment at which this thread first saw unsynced frames, so no frame
            // waits much longer than the interval.
            LogChore::Sync if age >= sync_interval => self.sync_now(host)?,
            // Not at once: under load the next frame attests the sync, and a mark would cost
            // another sync.
            LogChore::Mark if age >= MARK_AFTER => self.mark(host)?,
            LogChore::Sync | LogChore::Mark => {}
        }
        // While there is little after the header: a flush that releases earlier segments needs it
        // durable, and would wait for all of a full segment.
        self.sync_present_header(host)?;
        // Before the reserve, which a full disk may refuse for long: the sealed segments stay in
        // memory, with open files, until they are indexed.
        self.index_sealed(host)?;
        // After the sync, so that a full disk does not prevent that.
        self.ensure_reserve(host)?;
        Ok(Some(next))
    }

    fn sync_now(&self, host: &dyn LogHost) -> Result<()> {
        self.sync_all(host)?;
        // Frames that were appended during the sync have been unsynced since then at most, not
        // since the last look.
        *self.watch.lock() = LogWatch::default();
        Ok(())
    }

    /// Does the tasks of a log that has been idle for `age`.
    fn rest(&self, host: &dyn LogHost, age: Duration) -> Result<Option<Duration>> {
        if age < RESERVE_KEPT {
            return Ok(Some(RESERVE_KEPT.saturating_sub(age)));
        }
        // Not at once: between two bursts of writes the reserve would be freed and made again, at
        // three syncs each.
        self.release_reserve(host)?;
        Ok(None)
    }

    /// Does the due tasks now, without waiting for their age; `false` if there was none.
    pub(in crate::db) fn tend_now(&self, host: &dyn LogHost) -> Result<bool> {
        self.index_sealed(host)?;
        match self.chore() {
            LogChore::Sync => self.sync_all(host)?,
            LogChore::Mark => {
                self.ensure_reserve(host)?;
                self.mark(host)?;
            }
            LogChore::Rest => {
                self.release_reserve(host)?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Appends and syncs a frame that attests the last sync and the manifest's last edit.
    fn mark(&self, host: &dyn LogHost) -> Result<()> {
        let mut writer = self.lock(host);
        host.check_open()?;
        // Checked again under the lock: a group may have appended meanwhile. Its frames need a sync
        // before a mark can attest them.
        if self.chore() != LogChore::Mark {
            return Ok(());
        }
        writer.append_control(Control::IdleMarker { manifest_edit: host.durable_edit() })?;
        let lsn = writer.lsn();
        drop(writer);
        // Synced itself: an unsynced mark attests nothing after a power cut.
        self.sync_through(host, lsn)?;
        self.note_marked(lsn);
        Ok(())
    }
}
