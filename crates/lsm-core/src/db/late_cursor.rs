//! The commit cursor of an epoch that began without one, because its file could not be made.
//!
//! Called by the thread that tends the log (`scheduler.rs`). Until there is a file, secondaries read what the log
//! attests, and no process can take the database over. See `shared/commit_cursor/words.rs`.

use std::time::Duration;

use super::DbInner;

impl DbInner {
    /// Makes the commit cursor, if an attempt is due; returns the time to the next one, `None` if none is
    /// needed.
    ///
    /// # Cost
    /// A lock for a moment. An attempt makes a file of 8 KiB, and stands between two groups of commits while it
    /// copies them.
    pub(super) fn tend_cursor(&self) -> Option<Duration> {
        let now = self.background.now();
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
        let Some(file) = later.make_file(&*self.context.fs) else { return };
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
