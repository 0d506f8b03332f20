//! [`Blocks`]: the block cache, one for all tables of a database.
//!
//! It is sharded, and it resists scans: a new block replaces a block in use only after a second
//! request for it. The weight of a block is the memory that the parsed block takes.
//!
//! Invariant: threads count hits and misses in different stripes of the counters, so that they do
//! not write to one cache line.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::sstable::{Block, BlockCache};
use crate::types::FileNo;

/// The weight of a block in memory, about, for the number of places that the cache prepares.
const BLOCK_BYTES_TYPICAL: u64 = 4 << 10;
/// The bytes that the cache itself needs for a block.
const PLACE_BYTES: u64 = 64;
const SHARDS_MAX: u64 = 64;
/// A shard is not smaller than this: it keeps no block that is larger than itself.
const SHARD_BYTES_MIN: u64 = 4 << 20;

type Key = (FileNo, u64);

/// The counts of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks that were found.
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
    /// `None` with capacity 0.
    cache: Option<Cache<Key, Arc<Block>, Weight, Mix>>,
    counters: CacheCounters,
}

impl Blocks {
    /// A cache of about `capacity` bytes; 0 keeps nothing.
    pub fn new(capacity: u64) -> Blocks {
        let cache = (capacity > 0).then(|| {
            let places = usize::try_from(capacity / BLOCK_BYTES_TYPICAL).unwrap_or(usize::MAX);
            // A small cache has fewer shards: each keeps only blocks that are smaller than itself.
            let shards = (capacity / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
            let options = OptionsBuilder::new()
                .weight_capacity(capacity)
                .estimated_items_capacity(places.max(1))
                .shards(shards as usize)
                .build()
                .expect("capacity and estimate are given");
            Cache::with_options(options, Weight, Mix, DefaultLifecycle::default())
        });
        Blocks { cache, counters: CacheCounters::new() }
    }

    /// Hits and misses since the start, and what is kept now.
    pub fn stats(&self) -> CacheStats {
        let (hits, misses) = self.counters.totals();
        let (bytes, capacity, blocks) = self
            .cache
            .as_ref()
            .map_or((0, 0, 0), |cache| (cache.weight(), cache.capacity(), cache.len() as u64));
        CacheStats { hits, misses, bytes, capacity, blocks }
    }
}

impl BlockCache for Blocks {
    #[inline]
    fn get(&self, file: FileNo, offset: u64) -> Option<Arc<Block>> {
        let found = self.cache.as_ref().and_then(|cache| cache.get(&(file, offset)));
        self.counters.count(found.is_some());
        found
    }

    fn insert(&self, file: FileNo, offset: u64, block: &Arc<Block>) {
        if let Some(cache) = &self.cache {
            cache.insert((file, offset), block.clone());
        }
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Arc<Block>> for Weight {
    fn weight(&self, _: &Key, block: &Arc<Block>) -> u64 {
        block.memory_bytes() + PLACE_BYTES
    }
}

/// Hashes file numbers and offsets, which no stranger chooses: two multiplications.
#[derive(Clone)]
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
