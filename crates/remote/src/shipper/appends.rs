//! Appends to logs and manifests: with a commit in each, they are most of the changes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shipper;
use crate::folder::StoredChange;
use crate::noted::NotedChange;

/// The part of the time of a put that the sync before it may wait for further commits, and the most of it.
const GATHER_PART: u32 = 8;
const GATHER_MAX: Duration = Duration::from_millis(2);

impl Shipper {
    pub(super) fn note_put_time(&self, time: Duration) {
        self.put_nanos.store(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The time that a sync may wait for further commits: a put takes much longer.
    pub(crate) fn gather_time(&self) -> Duration {
        if !self.acknowledges_stored() {
            return Duration::ZERO;
        }
        let put = Duration::from_nanos(self.put_nanos.load(Ordering::Relaxed));
        (put / GATHER_PART).min(GATHER_MAX)
    }

    /// Notes an append. Returns the bytes that wait.
    pub(crate) fn note_append(&self, name: &str, offset: u64, pieces: &[&[u8]]) -> u64 {
        let append = StoredChange::Append { name: name.into(), offset, bytes: pieces.concat() };
        let mut state = self.state.lock();
        state.note(NotedChange::Whole(append));
        state.waiting_bytes()
    }
}
