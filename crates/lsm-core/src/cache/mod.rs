//! [`Blocks`]: the block cache, one for all tables of a database.
//!
//! It is sharded, and it resists scans: a new block replaces a block in use only after a second
//! request for it. The weight of a block is the memory that the parsed block takes.
//!
//! Invariant: threads count hits and misses in different stripes of the counters, so that they do
//! not write to one cache line.

mod shard;

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;

use self::shard::{CachedBlock, Shard};
use crate::sstable::{Block, BlockCache, BlockData};
use crate::types::FileNo;

const SHARDS_MAX: u64 = 64;
/// A shard is not smaller than this: it keeps no block that is larger than itself.
const SHARD_BYTES_MIN: u64 = 4 << 20;

type Key = (FileNo, u64);

/// The counts of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks that were found; twice where a get did not find its key in a block with hidden entries.
    pub hits: u64,
    /// Blocks that were not.
    pub misses: u64,
    /// Memory that the kept blocks take, in bytes.
    pub bytes: u64,
    /// The memory that it may take, in bytes.
    pub capacity: u64,
    /// Number of kept blocks.
    pub blocks: u64,
}

/// The block cache.
pub struct Blocks {
    /// None with capacity 0, otherwise a power of two.
    shards: Box<[RwLock<Shard>]>,
    capacity: u64,
    counters: CacheCounters,
}

impl Blocks {
    /// A cache of about `capacity` bytes; 0 keeps nothing.
    pub fn new(capacity: u64) -> Blocks {
        // A small cache has fewer shards: each keeps only blocks that are smaller than itself.
        let count = match capacity {
            0 => 0,
            _ => 1 << (capacity / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX).ilog2(),
        };
        let shards = (0..count).map(|_| RwLock::new(Shard::new(capacity / count)));
        Blocks { shards: shards.collect(), capacity, counters: CacheCounters::new() }
    }

    /// The shard of a key with this hash; `None` with capacity 0.
    #[inline]
    fn shard(&self, hash: u64) -> Option<&RwLock<Shard>> {
        // The maps of the shards use the low bits and the seven highest ones.
        self.shards.get((hash >> 40) as usize & self.shards.len().wrapping_sub(1))
    }

    /// Hits and misses since the start, and what is kept now.
    pub fn stats(&self) -> CacheStats {
        let (hits, misses) = self.counters.totals();
        let mut stats = CacheStats { hits, misses, bytes: 0, capacity: self.capacity, blocks: 0 };
        for shard in &self.shards {
            let shard = shard.read();
            stats.bytes += shard.bytes();
            stats.blocks += shard.len() as u64;
        }
        stats
    }
}

impl BlockCache for Blocks {
    #[inline]
    fn get(&self, file: FileNo, offset: u64) -> Option<Arc<Block>> {
        let key = (file, offset);
        let shard = self.shard(Mix.hash_one(key));
        let found = shard.and_then(|shard| shard.read().get(key).map(CachedBlock::block));
        self.counters.count(found.is_some());
        found
    }

    #[inline]
    fn look(&self, file: FileNo, offset: u64, look: &mut dyn FnMut(&BlockData)) -> bool {
        let key = (file, offset);
        let shard = self.shard(Mix.hash_one(key));
        let found = shard.is_some_and(|shard| match shard.read().get(key) {
            Some(kept) => {
                look(&kept.data);
                true
            }
            None => false,
        });
        self.counters.count(found);
        found
    }

    fn insert(&self, file: FileNo, offset: u64, block: &Arc<Block>) {
        let key = (file, offset);
        let hash = Mix.hash_one(key);
        if let Some(shard) = self.shard(hash) {
            // The lock ends with the statement: blocks are dropped without it.
            let gone = shard.write().insert(key, hash, block.clone());
            drop(gone);
        }
    }

    fn has_room(&self, file: FileNo, offset: u64, memory_bytes: u64) -> bool {
        let shard = self.shard(Mix.hash_one((file, offset)));
        shard.is_some_and(|shard| shard.read().has_room(memory_bytes))
    }

    fn insert_beside(&self, file: FileNo, offset: u64, block: Arc<Block>) {
        let key = (file, offset);
        let hash = Mix.hash_one(key);
        if let Some(shard) = self.shard(hash) {
            let refused = shard.write().insert_beside(key, hash, block);
            drop(refused);
        }
    }

    fn remove(&self, file: FileNo, offset: u64) -> Option<Arc<Block>> {
        let key = (file, offset);
        let shard = self.shard(Mix.hash_one(key))?;
        shard.write().remove(key)
    }
}

/// Hashes file numbers and offsets, which no stranger chooses: two multiplications.
#[derive(Clone, Copy)]
struct Mix;

impl BuildHasher for Mix {
    type Hasher = MixHasher;

    fn build_hasher(&self) -> MixHasher {
        MixHasher(0)
    }
}

struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        // The cache chooses shards by the high bits and places by the low ones.
        self.0 ^ self.0 >> 32
    }

    // The trait asks for it. The keys here are numbers and call `write_u64` alone.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0.rotate_left(29) ^ n).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.0 = mixed ^ mixed >> 29;
    }
}

const STRIPES: usize = 32;

#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Hits and misses. All orderings are relaxed: sums are for people, nothing hangs on them.
struct CacheCounters([Stripe; STRIPES]);

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The stripe of this thread; beyond the last until it is chosen.
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

#[inline]
fn stripe() -> usize {
    STRIPE.with(|stripe| {
        if stripe.get() >= STRIPES {
            // Round robin: thread ids would put several threads on one stripe by chance.
            stripe.set(NEXT_STRIPE.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        stripe.get()
    })
}

impl CacheCounters {
    fn new() -> CacheCounters {
        CacheCounters(std::array::from_fn(|_| Stripe::default()))
    }

    #[inline]
    fn count(&self, hit: bool) {
        let stripe = &self.0[stripe()];
        let counter = if hit { &stripe.hits } else { &stripe.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// All hits and all misses.
    fn totals(&self) -> (u64, u64) {
        self.0.iter().fold((0, 0), |(hits, misses), stripe| {
            let more_hits = stripe.hits.load(Ordering::Relaxed);
            (hits + more_hits, misses + stripe.misses.load(Ordering::Relaxed))
        })
    }
}

#[cfg(test)]
mod tests;
