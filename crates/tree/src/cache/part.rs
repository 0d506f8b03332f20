//! [`CachePart`]: the part of a block cache that one of many databases uses.
//!
//! The key of a block has the number of the part in the upper bits of its file number, whose own upper bits are in
//! those of the offset. So the cache needs no other key, and a database without others pays nothing. The file
//! numbers of a restored database need all bits: see `backup/restore.rs`.
//!
//! Invariant: two blocks never have the same key. A block whose offset needs the upper bits is not cached, nor is any
//! of a part whose number does not fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Blocks, CacheCounters, CacheStats, Key, LOW_BITS};
use crate::sstable::{Block, BlockCache, IndexedBlock};
use crate::types::FileNo;

const PARTS_MAX: u64 = 1 << (u64::BITS - LOW_BITS);

/// The part of a block cache that one database uses.
pub struct CachePart {
    blocks: Arc<Blocks>,
    /// Never given to another part of the cache.
    number: u64,
    counters: CacheCounters,
    is_left: AtomicBool,
}

impl CachePart {
    /// The part with a number that no other part of `blocks` has had.
    pub fn new(blocks: Arc<Blocks>, number: u64) -> CachePart {
        let counters = CacheCounters::new();
        CachePart { blocks, number, counters, is_left: AtomicBool::new(false) }
    }

    /// The key of a block in the whole cache, if it may be kept.
    #[inline]
    fn key(&self, file: FileNo, offset: u64) -> Option<Key> {
        let fits = offset >> LOW_BITS == 0 && self.number < PARTS_MAX;
        let upper = file.0 >> LOW_BITS;
        let lower = file.0 ^ upper << LOW_BITS;
        fits.then_some((FileNo(self.number << LOW_BITS | lower), upper << LOW_BITS | offset))
    }

    /// As [`CachePart::key`]; none after the part was left.
    fn key_to_keep(&self, file: FileNo, offset: u64) -> Option<Key> {
        self.key(file, offset).filter(|_| !self.is_left.load(Ordering::Relaxed))
    }

    /// The hits and misses of the part, and what it keeps; the capacity is that of the whole cache.
    ///
    /// # Cost
    /// A look at each shard of the cache, at most 64.
    pub fn stats(&self) -> CacheStats {
        let (hits, misses) = self.counters.totals();
        let [bytes, blocks] = self.blocks.part(self.number);
        let capacity = self.blocks.capacity;
        CacheStats { hits, misses, bytes, capacity, blocks, free_bytes: 0 }
    }

    /// Gives back what the part keeps, and keeps nothing more.
    ///
    /// # Cost
    /// A look at each block of the shards that have a block of the part.
    pub fn leave(&self) {
        if !self.is_left.swap(true, Ordering::Relaxed) {
            self.blocks.remove_part(self.number);
        }
    }
}

impl Drop for CachePart {
    fn drop(&mut self) {
        self.leave();
    }
}

impl BlockCache for CachePart {
    fn is_in_use(&self) -> bool {
        self.blocks.is_in_use()
    }

    fn get(&self, file: FileNo, offset: u64) -> Option<Arc<Block>> {
        let found = self.key(file, offset).and_then(|(file, offset)| self.blocks.get(file, offset));
        self.counters.count(found.is_some());
        found
    }

    fn look(&self, file: FileNo, offset: u64, look: &mut dyn FnMut(&IndexedBlock)) -> bool {
        let key = self.key(file, offset);
        let found = key.is_some_and(|(file, offset)| self.blocks.look(file, offset, look));
        self.counters.count(found);
        found
    }

    fn prefetch_place(&self, file: FileNo, offset: u64) {
        if let Some((file, offset)) = self.key(file, offset) {
            self.blocks.prefetch_place(file, offset);
        }
    }

    fn keeps(&self, file: FileNo, offset: u64) -> bool {
        self.key(file, offset).is_some_and(|(file, offset)| self.blocks.keeps(file, offset))
    }

    fn wants(&self, file: FileNo, offset: u64, memory_bytes: u64) -> bool {
        let key = self.key_to_keep(file, offset);
        key.is_some_and(|(file, offset)| self.blocks.wants(file, offset, memory_bytes))
    }

    fn insert(&self, file: FileNo, offset: u64, block: Arc<Block>) -> Arc<Block> {
        match self.key_to_keep(file, offset) {
            Some((file, offset)) => self.blocks.insert(file, offset, block),
            None => block,
        }
    }

    fn has_room(&self, file: FileNo, offset: u64, memory_bytes: u64) -> bool {
        let key = self.key_to_keep(file, offset);
        key.is_some_and(|(file, offset)| self.blocks.has_room(file, offset, memory_bytes))
    }

    fn insert_where_free(&self, file: FileNo, offset: u64, block: Arc<Block>) {
        if let Some((file, offset)) = self.key_to_keep(file, offset) {
            self.blocks.insert_where_free(file, offset, block);
        }
    }

    fn remove(&self, file: FileNo, offset: u64) -> Option<Arc<Block>> {
        let (file, offset) = self.key(file, offset)?;
        self.blocks.remove(file, offset)
    }
}

/// The block cache of one database: its own, or its part of one of many databases.
#[derive(Clone)]
pub enum DbCache {
    /// Its own.
    Own(Arc<Blocks>),
    /// Its part of another one.
    Part(Arc<CachePart>),
}

impl DbCache {
    /// A cache of its own.
    pub fn own(bytes: u64) -> DbCache {
        DbCache::Own(Arc::new(Blocks::new(bytes)))
    }

    /// The cache, for readers and writers of tables; `None` if it keeps nothing.
    pub fn blocks(&self) -> Option<Arc<dyn BlockCache>> {
        match self {
            DbCache::Own(blocks) if blocks.capacity == 0 => None,
            DbCache::Part(part) if part.blocks.capacity == 0 => None,
            DbCache::Own(blocks) => Some(blocks.clone()),
            DbCache::Part(part) => Some(part.clone()),
        }
    }

    /// Its figures.
    pub fn stats(&self) -> CacheStats {
        match self {
            DbCache::Own(blocks) => blocks.stats(),
            DbCache::Part(part) => part.stats(),
        }
    }

    /// Gives back what a closed database keeps in a cache of many.
    pub fn leave(&self) {
        if let DbCache::Part(part) = self {
            part.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_file_and_offset_has_a_key_of_its_own() {
        let blocks = Arc::new(Blocks::new(0));
        let ends = [0, 1, (1 << LOW_BITS) - 1];
        let files = [0, 1, 1 << LOW_BITS, 1 << 48, (1 << 48) + 1, (1 << LOW_BITS) - 1, u64::MAX];
        let mut keys = std::collections::BTreeSet::new();
        for number in [0, 1, PARTS_MAX - 1] {
            let part = CachePart::new(blocks.clone(), number);
            for file in files {
                for offset in ends {
                    let key = part.key(FileNo(file), offset).unwrap();
                    assert_eq!(key.0.0 >> LOW_BITS, number);
                    assert!(keys.insert(key), "{number} {file} {offset}");
                }
                assert_eq!(part.key(FileNo(file), 1 << LOW_BITS), None);
            }
        }
        assert_eq!(CachePart::new(blocks, PARTS_MAX).key(FileNo(0), 0), None);
    }
}
