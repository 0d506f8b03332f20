//! Appends to logs and manifests: with a commit in each, they are most of the changes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{JournalState, Shipper};
use crate::folder::StoredChange;
use crate::noted::NotedChange;

/// The part of the time of a put that the sync before it may wait for further commits, and the most of it.
const GATHER_PART: u32 = 8;
const GATHER_MAX: Duration = Duration::from_millis(2);

/// A change takes no further append beyond so many bytes: they are copied under the lock of the state.
pub(super) const MERGED_BYTES_MAX: usize = 64 << 10;

impl JournalState {
    /// Adds an append to the last change that waits, if that is one of the bytes before it. It gets no mark of its own:
    /// a change is in one object as a whole.
    fn merge_append(&mut self, name: &str, offset: u64, pieces: &[&[u8]], len: usize) -> bool {
        let Some(NotedChange::Whole(StoredChange::Append { name: last, offset: begin, bytes })) =
            self.pending.back_mut()
        else {
            return false;
        };
        let fits = bytes.len() + len <= MERGED_BYTES_MAX;
        if !fits || *begin + bytes.len() as u64 != offset || last != name {
            return false;
        }
        pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        self.pending_bytes += len;
        true
    }
}

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
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let mut state = self.state.lock();
        if !state.merge_append(name, offset, pieces, len) {
            drop(state);
            let append = StoredChange::Append { name: name.into(), offset, bytes: pieces.concat() };
            state = self.state.lock();
            state.note(NotedChange::Whole(append));
        }
        state.waiting_bytes()
    }
}
