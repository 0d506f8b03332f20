//! What the log thread does when nobody asks: syncs after the interval, marks, keeps a reserve.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::DbInner;
use super::log::LogChore;
use crate::error::Result;

/// An idle log is marked this long after its last sync. What is due is looked at as often.
const MARK_AFTER: Duration = Duration::from_millis(10);
/// A log that is never synced by itself is looked at this often.
const LOOK_AT_UNSYNCED: Duration = Duration::from_secs(1);

/// Since when the log thread has seen the same chore.
#[derive(Default)]
struct LogWatch(Option<(LogChore, Duration)>);

impl LogWatch {
    /// For how long `chore` has been due, at `now`.
    fn age(&mut self, chore: LogChore, now: Duration) -> Duration {
        match self.0 {
            Some((same, since)) if same == chore => now.saturating_sub(since),
            _ => {
                self.0 = Some((chore, now));
                Duration::ZERO
            }
        }
    }
}

/// What the log thread knows.
#[derive(Default)]
pub(super) struct LogTending {
    /// Whether it has been told; saves the wake-up per write.
    told: AtomicBool,
    watch: Mutex<LogWatch>,
}

impl DbInner {
    /// Tells the log thread that something was written. Cheap when it knows.
    #[inline]
    pub(super) fn log_active(&self) {
        if !self.tending.told.load(Ordering::Relaxed)
            && !self.tending.told.swap(true, Ordering::AcqRel)
        {
            self.background.wake_all();
        }
    }

    /// Syncs and marks the log as they fall due; says when to look again.
    pub(super) fn tend_log(&self) -> Result<Option<Duration>> {
        let next = self.tend_synced()?;
        // Last: a disk without room for a reserve keeps nothing from being synced.
        self.ensure_reserve()?;
        Ok(next)
    }

    fn tend_synced(&self) -> Result<Option<Duration>> {
        let chore = self.log_chore();
        let age = self.tending.watch.lock().age(chore, self.background.now());
        match chore {
            LogChore::Mark if age >= MARK_AFTER => self.mark_idle()?,
            LogChore::Sync => {
                // 0 leaves syncing to the operating system and to commits that ask for it.
                let interval = Duration::from_millis(self.options.sync_interval_ms);
                if interval.is_zero() {
                    return Ok(Some(LOOK_AT_UNSYNCED));
                }
                if age >= interval {
                    self.sync_log()?;
                    *self.tending.watch.lock() = LogWatch::default();
                }
            }
            LogChore::Mark => {}
            LogChore::Rest => {
                self.tending.told.store(false, Ordering::Release);
                // What was written before that store has told nobody.
                if self.log_chore() == LogChore::Rest {
                    return Ok(None);
                }
                self.tending.told.store(true, Ordering::Release);
            }
        }
        Ok(Some(MARK_AFTER))
    }

    /// Does what is due for the log now, without waiting for its age; `false` if there was nothing.
    pub(super) fn tend_log_now(&self) -> Result<bool> {
        match self.log_chore() {
            LogChore::Sync => self.sync_log().map(|()| true),
            LogChore::Mark => self.mark_idle().map(|()| true),
            LogChore::Rest => self.ensure_reserve().map(|()| false),
        }
    }
}
