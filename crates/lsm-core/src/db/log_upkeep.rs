//! [`LogUpkeep`]: the work of the thread that tends the log, and the commit cursor of an epoch that began without
//! one, because its file could not be made.
//!
//! Called by the scheduler (`scheduler.rs`). Until there is a cursor, secondaries read what the log attests, and no
//! process can take the database over. See `shared/commit_cursor/words.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::catalog::Catalog;
use super::log::Log;
use super::ownership::Ownership;
use crate::clock::Clock;
use crate::error::Result;
use crate::fs::Fs;
use crate::memtable::SlabPool;

/// Tends the log, the memory that memtables take next, and the commit cursor.
pub(super) struct LogUpkeep {
    pub(super) log: Arc<Log>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) ownership: Arc<Ownership>,
    pub(super) slabs: Arc<SlabPool>,
    /// That of all databases that share them.
    pub(super) slab_clock: Arc<dyn Clock>,
    /// The file system of the commit cursor.
    pub(super) fs: Arc<dyn Fs>,
    pub(super) sync_interval: Duration,
}

impl LogUpkeep {
    /// Returns memory to the system that no memtable took for a while; returns when to look again, `None` for after
    /// the next notice.
    pub(super) fn give_up_unused_slabs(&self) -> Option<Duration> {
        self.slabs.give_up_unused(self.slab_clock.now())
    }

    /// Returns `true` after a failed sync of the log, until a flush resumes it.
    pub(super) fn has_failed(&self) -> bool {
        self.log.has_failed()
    }

    /// Syncs and marks the log when due at `now`; returns when to look again, `None` for after the next notice.
    pub(super) fn tend(&self, now: Duration) -> Result<Option<Duration>> {
        // First: writers may need it within milliseconds, and a sync takes longer.
        self.slabs.prepare();
        // Before the log, which fails where the disk is full.
        let cursor = self.tend_cursor(now);
        let log = self.log.tend(now, self.sync_interval)?;
        Ok(log.into_iter().chain(cursor).min())
    }

    /// Does the due work for the log without waiting for its age; `false` if there was none.
    pub(super) fn tend_now(&self, now: Duration) -> Result<bool> {
        self.tend_cursor(now);
        self.log.tend_now()
    }

    /// Makes the commit cursor, if an attempt is due; returns the time to the next one, `None` if none is
    /// needed.
    ///
    /// # Cost
    /// A lock for a moment. An attempt makes a file of 8 KiB, and stands between two groups of commits while it
    /// copies them.
    fn tend_cursor(&self, now: Duration) -> Option<Duration> {
        let later = self.ownership.cursor().later();
        let wait = later.time_to_attempt(now)?;
        if !wait.is_zero() {
            return Some(wait);
        }
        if let Some(_turn) = later.take_turn() {
            self.make_cursor();
        }
        later.time_to_attempt(now)
    }

    fn make_cursor(&self) {
        let later = self.ownership.cursor().later();
        let Some(file) = later.make_file(&*self.fs) else { return };
        // Both, so that nothing is settled, published or installed meanwhile: what the file lacked would be
        // acknowledged here, and cut off by a fence.
        let between = self.log.lock();
        match self.catalog.edit() {
            Ok(_editing) => self.ownership.cursor().appear(file),
            // The next epoch deletes the file, which says nothing.
            Err(error) => later.note_failure(error),
        }
        drop(between);
    }
}
