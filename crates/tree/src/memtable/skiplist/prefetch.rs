//! Searches of several keys at once: for gets, and so that the following insertions find their memory in the
//! processor's cache.
//!
//! A search waits for its block of lane 0 and for the nodes next to its place. Searches of
//! different keys do not depend on each other: while one waits, the others continue.
//!
//! Insertions do not keep the result, because each changes the places of the next ones. The search
//! of an insertion is short if all its memory is cached.

use std::ptr::NonNull;

use super::lanes::{Hint, LaneBlock, fetch_link};
use super::node::prefetch_node;
use super::{NodeRef, SkipList, Writer};

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

impl LaneBlock {
    /// The first place whose word is not less than `word`, and prefetches the node there or before it; for a block of lane 0.
    /// By the words alone: a look at a key would wait for it.
    #[inline]
    fn fetch_place(&self, word: u64) -> usize {
        let mut place = 0;
        let mut size = self.limit();
        while size > 0 {
            let half = size / 2;
            let is_before = self.word(place + half) < word;
            place += if is_before { half + 1 } else { 0 };
            size = if is_before { size - half - 1 } else { half };
        }
        match place < self.limit() && self.word(place) == word {
            true => prefetch_node(self.target(place)),
            false => fetch_link(place.checked_sub(1).and_then(|it| NonNull::new(self.target(it)))),
        }
        place
    }

    /// As [`Lanes::search`], from a place of [`LaneBlock::fetch_place`] on.
    #[inline]
    fn search_from(&self, mut place: usize, key: &[u8], word: u64) -> Hint {
        let end = self.limit();
        while place < end && self.word(place) == word && self.key(place) < key {
            place += 1;
        }
        self.hint(place, end, key, word)
    }
}

impl SkipList {
    /// Finds the nodes of `keys`, at most [`PREFETCH_MAX`], and prefetches their newest versions.
    ///
    /// # Cost
    /// A search for each key. All keys together wait for memory about as long as one search.
    pub(in crate::memtable) fn find_all(
        &self,
        keys: &[&[u8]],
    ) -> [Option<NodeRef<'_>>; PREFETCH_MAX] {
        let mut searches = [None; PREFETCH_MAX];
        for (search, key) in searches.iter_mut().zip(keys) {
            let word = self.shared.word(key);
            *search = self.lanes.fetch_block(key, word).map(|block| (block, 0, word));
        }
        for (block, place, word) in searches.iter_mut().flatten() {
            *place = block.fetch_place(*word);
        }
        let mut found = [None; PREFETCH_MAX];
        for ((node, search), key) in found.iter_mut().zip(searches).zip(keys) {
            let Some((block, place, word)) = search else { continue };
            *node = self.at(block.search_from(place, key, word), key).filter(|it| it.key() == *key);
            if let Some(node) = node {
                node.newest().prefetch();
            }
        }
        found
    }
}
