//! [`Shard`]: blocks under one lock, and the choice of those to evict.
//!
//! Used by [`Blocks`](super::Blocks) alone, which has many shards. The policy is S3-FIFO (Yang et
//! al., SOSP 2023). New blocks enter a short queue, the young one. Blocks that are used again while
//! they are in it move to the queue of the old ones. The others leave the cache and are remembered
//! (`admission.rs`): one that returns is old at once. So a scan passes through the young queue and
//! does not evict old blocks. In a full shard, blocks that are read skip the young queue: a first
//! request is remembered, and a second one makes an old block, if the block that is next to be evicted
//! was not used.
//!
//! Blocks of deleted tables are removed at once. Their keys stay in the queues until they come to
//! the front, or until there are more of them than blocks.
//!
//! Invariants:
//! 1. Each key of `kept` is in a queue. A queue may have keys that `kept` does not have.
//! 2. `bytes` and `young_bytes` are the sums of the weights of all and of the young blocks.
//! 3. `parts` has the weights and the number of the blocks of each part that has blocks.
//! 4. A lookup changes nothing but the count of uses of a block.

use std::collections::{BTreeMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::admission::AdmissionFilter;
use super::hash_table::HashTable;
use super::{Key, Mix, part_of};
use crate::memory::{SlabStart, prefetch};
use crate::sstable::{Block, IndexedBlock};

/// The bytes that the cache itself needs for a block: its place in the hash table, including free
/// places, and in a queue.
const PLACE_BYTES: u64 = 128;
/// The young blocks take this part of the capacity once the shard is full.
const YOUNG_PART: u64 = 10;
/// The queues are cleaned once they have more keys without a block than this.
const VOID_KEYS_MIN: usize = 64;
/// A block that is requested twice may replace one of the next so many. With random reads of data
/// beyond the cache, all blocks are worth the same, and a quarter of the second requests finds one
/// to replace. With more looks most of them do, without a gain; with one look a cache takes half as
/// long again to follow readers that turn to other data.
const LOOKS: usize = 2;
/// Uses beyond this number are not counted: a block that was used often leaves after as many turns.
const USES_MAX: u8 = 3;

/// A block in the shard. With its key it has the size of a cache line (`hash_table.rs`).
pub(super) struct CachedBlock {
    block: Arc<Block>,
    /// The data of the block, here for searches that need nothing else of it.
    pub(super) data: IndexedBlock,
    is_old: bool,
    /// Uses since the block came or was last passed over, up to [`USES_MAX`]. Relaxed: a lost count
    /// makes a block leave a little earlier.
    uses: AtomicU8,
}

const _: () = assert!(HashTable::<CachedBlock>::PLACE_BYTES == 64, "a cache line");

impl CachedBlock {
    /// The block, to keep.
    #[inline]
    pub(super) fn block(&self) -> Arc<Block> {
        // The processor starts no load after the atomic count of a reference until the count has
        // come from memory. So all lines are prefetched together, before it. The counts lie before the
        // block.
        prefetch(Arc::as_ptr(&self.block).cast::<u8>().wrapping_sub(2 * size_of::<usize>()));
        self.data.prefetch();
        self.block.clone()
    }
}

/// Blocks under one lock, with the S3-FIFO queues.
pub(super) struct Shard {
    kept: HashTable<CachedBlock>,
    young: VecDeque<Key>,
    old: VecDeque<Key>,
    admission: Arc<AdmissionFilter>,
    /// Keys in the queues whose blocks were taken out, at most.
    void_keys: usize,
    bytes: u64,
    young_bytes: u64,
    capacity: u64,
    /// Bytes and blocks of each database that shares the cache, so that its figures cost no look at each block.
    parts: BTreeMap<u64, [u64; 2]>,
}

impl Shard {
    /// An empty shard of `capacity` bytes.
    pub(super) fn new(capacity: u64, admission: Arc<AdmissionFilter>) -> Shard {
        Shard {
            kept: HashTable::new(),
            young: VecDeque::new(),
            old: VecDeque::new(),
            admission,
            void_keys: 0,
            bytes: 0,
            young_bytes: 0,
            capacity,
            parts: BTreeMap::new(),
        }
    }

    /// The places of its blocks.
    pub(super) fn places(&self) -> &HashTable<CachedBlock> {
        &self.kept
    }

    /// The block of `key`, of this hash. It does not count as a use.
    #[inline]
    pub(super) fn peek(&self, key: Key, hash: u64) -> Option<&CachedBlock> {
        self.kept.get(key, hash)
    }

    /// The block of `key`, of this hash, whose use is counted.
    #[inline]
    pub(super) fn get(&self, key: Key, hash: u64) -> Option<&CachedBlock> {
        let kept = self.kept.get(key, hash)?;
        let uses = kept.uses.load(Ordering::Relaxed);
        // A block in steady use is not written to: its line stays in the caches of all processors.
        if uses < USES_MAX {
            kept.uses.store(uses + 1, Ordering::Relaxed);
        }
        Some(kept)
    }

    /// Puts a block in, whose key has this hash. Returns the blocks that it replaces, for the caller
    /// to drop without the lock.
    pub(super) fn insert(&mut self, key: Key, hash: u64, block: Arc<Block>) -> Vec<Arc<Block>> {
        let mut gone = Vec::new();
        let weight = weight(&block);
        // It would evict all others and then itself.
        if weight > self.capacity {
            return gone;
        }
        self.bytes += weight;
        // Two threads may have missed the block at once, or one has read it past the caches because
        // its checksum did not match.
        if let Some(kept) = self.kept.get_mut(key, hash) {
            let old_weight = self::weight(&kept.block);
            self.bytes -= old_weight;
            // The number of its blocks stays above 0 in between.
            if let Some([bytes, _]) = self.parts.get_mut(&part_of(key)) {
                *bytes = *bytes + weight - old_weight;
            }
            if !kept.is_old {
                self.young_bytes = self.young_bytes + weight - old_weight;
            }
            kept.data = block.data().clone();
            gone.push(std::mem::replace(&mut kept.block, block));
        } else {
            let is_old = self.admission.has(hash);
            if is_old {
                self.old.push_back(key);
            } else {
                self.young.push_back(key);
                self.young_bytes += weight;
            }
            let [bytes, blocks] = self.parts.entry(part_of(key)).or_default();
            *bytes += weight;
            *blocks += 1;
            let data = block.data().clone();
            let uses = AtomicU8::new(0);
            self.kept.insert(key, hash, CachedBlock { block, data, is_old, uses });
        }
        while self.bytes > self.capacity {
            let Some(block) = self.evict(usize::MAX) else { break };
            gone.push(block);
        }
        gone
    }

    /// Returns `true` if a block of so many bytes of memory fits without an eviction.
    pub(super) fn has_room(&self, memory_bytes: u64) -> bool {
        self.bytes + memory_bytes + PLACE_BYTES <= self.capacity
    }

    /// Inserts a block if no other has to leave. Returns the block that did not stay, for the
    /// caller to drop without the lock.
    pub(super) fn insert_where_free(
        &mut self,
        key: Key,
        hash: u64,
        block: Arc<Block>,
    ) -> Option<Arc<Block>> {
        if !self.has_room(block.memory_bytes()) {
            return Some(block);
        }
        self.insert(key, hash, block).pop()
    }

    /// Takes out the block of `key`, which has this hash.
    pub(super) fn remove(&mut self, key: Key, hash: u64) -> Option<Arc<Block>> {
        let kept = self.kept.remove(key, hash)?;
        let weight = weight(&kept.block);
        self.bytes -= weight;
        self.forget(key, weight);
        if !kept.is_old {
            self.young_bytes -= weight;
        }
        self.void_keys += 1;
        // Without this, a shard that is never full would collect keys without bound. The pass costs
        // each removed block two steps.
        if self.void_keys > self.kept.len().max(VOID_KEYS_MIN) {
            self.void_keys = 0;
            let kept = &self.kept;
            self.young.retain(|key| kept.get(*key, Mix.hash_one(key)).is_some());
            self.old.retain(|key| kept.get(*key, Mix.hash_one(key)).is_some());
        }
        Some(kept.block)
    }

    /// A block of this weight has left.
    fn forget(&mut self, key: Key, weight: u64) {
        let part = part_of(key);
        let [bytes, blocks] = self.parts.get_mut(&part).expect("it had the block");
        *bytes -= weight;
        *blocks -= 1;
        if *blocks == 0 {
            self.parts.remove(&part);
        }
    }

    /// The memory of the blocks of a part, and their number.
    pub(super) fn part(&self, number: u64) -> [u64; 2] {
        self.parts.get(&number).copied().unwrap_or_default()
    }

    /// Takes out the blocks of a part.
    pub(super) fn remove_part(&mut self, number: u64) -> Vec<Arc<Block>> {
        if !self.parts.contains_key(&number) {
            return Vec::new();
        }
        let part = self.kept.iter().filter(|(key, _)| part_of(*key) == number);
        let keys: Vec<Key> = part.map(|(key, _)| key).collect();
        keys.into_iter().filter_map(|key| self.remove(key, Mix.hash_one(key))).collect()
    }

    /// Takes out the blocks that lie in this slab.
    pub(super) fn remove_from(&mut self, slab: SlabStart) -> Vec<Arc<Block>> {
        let inside = self.kept.iter().filter(|(_, kept)| kept.data.is_in(slab));
        let keys: Vec<Key> = inside.map(|(key, _)| key).collect();
        keys.into_iter().filter_map(|key| self.remove(key, Mix.hash_one(key))).collect()
    }

    /// Evicts a block for one that was requested twice. `None` if all of the next [`LOOKS`] were
    /// used since they were last looked at: they are worth no less than the other.
    pub(super) fn make_room(&mut self) -> Option<Arc<Block>> {
        self.evict(LOOKS)
    }

    /// Evicts the first block in turn that was not used since its last turn. `None` from an empty
    /// shard, and if none of `looks` blocks is such a block.
    fn evict(&mut self, mut looks: usize) -> Option<Arc<Block>> {
        while looks > 0 {
            // While the young are more than their part they make room for one another, so that a
            // scan replaces what it has read itself.
            let is_young = self.old.is_empty() || self.young_bytes * YOUNG_PART > self.capacity;
            let queue = if is_young { &mut self.young } else { &mut self.old };
            let key = queue.pop_front()?;
            let hash = Mix.hash_one(key);
            let Some(kept) = self.kept.get_mut(key, hash) else {
                self.void_keys = self.void_keys.saturating_sub(1);
                continue;
            };
            looks -= 1;
            let weight = weight(&kept.block);
            let uses = kept.uses.get_mut();
            if !kept.is_old {
                self.young_bytes -= weight;
            }
            if *uses > 0 {
                // A young block that was used has earned its place; an old one has spent one use.
                *uses = if kept.is_old { *uses - 1 } else { 0 };
                kept.is_old = true;
                self.old.push_back(key);
                continue;
            }
            let kept = self.kept.remove(key, hash).expect("it was just found");
            self.bytes -= weight;
            self.forget(key, weight);
            if !kept.is_old {
                self.admission.note(hash);
            }
            return Some(kept.block);
        }
        None
    }

    /// Memory that the kept blocks take, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of keys in the queues.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Number of kept blocks.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }
}

fn weight(block: &Block) -> u64 {
    block.memory_bytes() + PLACE_BYTES
}
