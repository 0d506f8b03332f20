//! Searches of several keys side by side, so that the insertions that follow find what they need in
//! the processor's cache.
//!
//! A search in a large list waits for memory at nearly every step, because it reads the address of
//! the next node from the present one. Searches of different keys do not depend on each other: while
//! one waits for its node, the others take a step.
//!
//! Nothing of the result is kept, because each insertion changes the places of the next ones. The
//! search of an insertion that finds all nodes in the cache is short.

use super::Writer;
use super::atomic::Ordering;
use super::node::{Node, Tower};
use crate::memory::prefetch;

/// The greatest number of searches side by side: about as many lines as a processor waits for at a
/// time.
pub(in crate::memtable) const AHEAD_MAX: usize = 16;

/// A list up to this size is in the processor's cache anyway.
const CACHED_BYTES: u64 = if cfg!(test) { 1 } else { 512 << 10 };

/// The search for one key.
#[derive(Clone, Copy)]
struct KeySearch {
    word: u64,
    at: Tower,
    level: usize,
}

impl Writer<'_> {
    /// Fetches what the insertions of `keys`, at most [`AHEAD_MAX`], need from memory.
    ///
    /// # Cost
    /// A search for each key, which together wait for memory about as long as one.
    pub(in crate::memtable) fn fetch_ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        if self.used_bytes() < CACHED_BYTES {
            return;
        }
        let list = self.list;
        let top = list.height.load(Ordering::Relaxed).max(1) - 1;
        let nowhere = KeySearch { word: 0, at: list.head(), level: top };
        let mut searches = [nowhere; AHEAD_MAX];
        let mut running = 0;
        for (search, key) in searches.iter_mut().zip(keys) {
            search.word = list.shared.word(key);
            running += 1;
        }
        while running > 0 {
            let mut next = 0;
            while next < running {
                // SAFETY: each begins at the head, and `self` is the right to insert.
                if unsafe { searches[next].step() } {
                    next += 1;
                } else {
                    running -= 1;
                    searches.swap(next, running);
                }
            }
        }
    }
}

impl KeySearch {
    /// Goes on to the next node, and asks for its links; `false` at the end.
    ///
    /// # Safety
    /// `at` is the head, or a node that this search reached at this level or a higher one; nobody
    /// inserts meanwhile.
    #[inline(always)]
    unsafe fn step(&mut self) -> bool {
        loop {
            // SAFETY: the caller's promise.
            let link = unsafe { self.at.link(self.level) };
            // Relaxed, as in the search of an insertion: nobody else stores links.
            let next: *mut Node = link.next.load(Ordering::Relaxed);
            // The word of the end is the greatest, so there is a next node.
            if link.word.load(Ordering::Relaxed) < self.word
                && let Some(node) = std::ptr::NonNull::new(next)
            {
                self.at = Tower::of(node);
                // The line of this level's link has those of the three below, as a rule.
                prefetch(next.cast::<u8>().wrapping_sub(16 * (self.level + 1)));
                return true;
            }
            if self.level == 0 {
                // Its key is compared if the words are equal, and its link back changes.
                prefetch(next.cast::<u8>());
                return false;
            }
            self.level -= 1;
        }
    }
}
