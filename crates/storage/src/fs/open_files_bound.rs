//! [`OpenFilesBound`]: the number of open files of many sets.
//!
//! Each set ([`OpenFiles`]) has a bound of its own as well. If all of them together have too many open files, the sets
//! close one each, in turn.
//!
//! Invariant: no lock is held while a set closes a file.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::OpenFiles;

/// A bound of the open files of many sets.
#[derive(Debug)]
pub struct OpenFilesBound {
    limit: usize,
    /// Relaxed: the bound may be exceeded for a moment.
    open: AtomicUsize,
    /// The next one to close a file first. Some may be dropped already.
    sets: Mutex<VecDeque<Weak<OpenFiles>>>,
}

impl OpenFilesBound {
    /// A bound of so many files, at least one.
    pub fn new(limit: usize) -> OpenFilesBound {
        // With 0 a file would be closed between its opening and its first read.
        let limit = limit.max(1);
        OpenFilesBound { limit, open: AtomicUsize::new(0), sets: Mutex::default() }
    }

    /// The most files that are open at once.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of files that are open.
    pub fn open_count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn add_set(&self, set: Weak<OpenFiles>) {
        let mut sets = self.sets.lock();
        sets.retain(|set| set.strong_count() > 0);
        sets.push_back(set);
    }

    pub(super) fn note_opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Closes files until no more than the bound are open, or no set has one to close.
    pub(super) fn close_beyond(&self) {
        let mut looks = self.sets.lock().len();
        while self.open_count() > self.limit && looks > 0 {
            let Some(set) = self.sets.lock().pop_front() else { return };
            let closed = set.upgrade().is_some_and(|set: Arc<OpenFiles>| set.close_one());
            self.sets.lock().push_back(set);
            // Once around without a file to close is enough.
            looks = if closed { self.sets.lock().len() } else { looks - 1 };
        }
    }
}
