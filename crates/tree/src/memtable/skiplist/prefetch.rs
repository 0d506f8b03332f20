//! Searches of several keys at once, so that the following insertions find their memory in the
//! processor's cache.
//!
//! A search waits for its block of lane 0 and for the nodes next to its place. Searches of
//! different keys do not depend on each other: while one waits, the others continue.
//!
//! The result is not kept, because each insertion changes the places of the next ones. The search
//! of an insertion is short if all its memory is cached.

use super::Writer;

/// The greatest number of keys at a time: about as many lines as a processor loads at a time.
pub(in crate::memtable) const PREFETCH_MAX: usize = 16;

/// A list up to this size is in the processor's cache anyway.
const CACHED_BYTES: u64 = if cfg!(test) { 1 } else { 512 << 10 };

impl Writer<'_> {
    /// Prefetches the memory that the insertions of `keys`, at most [`PREFETCH_MAX`], need.
    ///
    /// # Cost
    /// Two searches for each key. All keys together wait for memory about as long as one search.
    pub(in crate::memtable) fn prefetch_for<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        if self.used_bytes() < CACHED_BYTES {
            return;
        }
        let list = self.list;
        let mut searches = [None; PREFETCH_MAX];
        for (search, key) in searches.iter_mut().zip(keys) {
            let word = list.shared.word(key);
            *search = list.lanes.fetch_block(key, word).map(|block| (block, key, word));
        }
        for (block, key, word) in searches.into_iter().flatten() {
            block.fetch_nodes(key, word);
        }
    }
}
