//! [`Blocks`]: the block cache, one for all tables of a database.
//!
//! It is sharded, and it resists scans: a block that is read replaces another only at a second
//! request for it, and never one that is in use. If the cache is full, a reader first asks whether
//! it [wants](BlockCache::wants) a block: a point read does not even parse one that is not wanted.
//! The weight of a block is the memory of the parsed block.
//!
//! Blocks of short values are kept in slots of slabs (`memory/slots.rs`), because an allocator
//! keeps more memory for blocks that many threads make and drop. The slots of a slab have one
//! length. If the lengths of blocks change, the free slots of the former lengths are useless. So a
//! slab is made only while the free slots are at most an eighth of the kept blocks; other blocks
//! stay on the heap, and so do all blocks of a small cache. If blocks and free slots exceed the
//! capacity and an eighth of it, the cache drops the blocks in the slab with the fewest used slots,
//! and then the slab.
//!
//! So the memory is at most the capacity and an eighth of it, plus 2 MiB for each dropped slab with
//! a block in use: a cursor uses one block of each table that it reads from, and a thread the block
//! that it is inserting. A value that a caller keeps is a copy and keeps no slot.
//!
//! Invariants:
//! 1. Threads count hits and misses in different stripes of the counters, so that they do not write to
//!    one cache line.
//! 2. `bytes` is the sum of the weights of all blocks; a thread that changes a shard adds the
//!    difference before it releases the lock of the shard.

mod admission;
mod hash_table;
mod part;
mod shard;

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

pub use self::part::{CachePart, DbCache};

use self::admission::AdmissionFilter;
use self::hash_table::TableAddress;
use self::shard::{CachedBlock, Shard};
use crate::memory::{Closed, SLAB_BYTES, SlotPool};
use crate::sstable::{Block, BlockCache, IndexedBlock};
use crate::types::{FileNo, Process};

const SHARDS_MAX: u64 = 64;
/// A shard is at least so large: it keeps no block that is larger than itself.
const SHARD_BYTES_MIN: u64 = 4 << 20;

/// Free slots may take this part of what is kept, and of the capacity.
const FREE_PART: u64 = 8;
/// Slabs without a block may take this part of the capacity. Compactions drop many blocks at once
/// and insert as many soon after.
const IDLE_PART: u64 = 4;

type Key = (FileNo, u64);

/// Bits of a file number, and of an offset, that stay in their places in a part: see `part.rs`.
const LOW_BITS: u32 = 40;

/// The number of the part whose block a key is of.
#[inline]
fn part_of((file, _): Key) -> u64 {
    file.0 >> LOW_BITS
}

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
    /// Memory of slabs that no block takes, in bytes.
    pub free_bytes: u64,
}

impl CacheStats {
    /// Memory of the kept blocks and of free slots, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes + self.free_bytes
    }

    /// The most that they may take, in bytes.
    pub fn memory_bytes_max(&self) -> u64 {
        memory_bytes_max(self.capacity)
    }
}

/// The block cache.
pub struct Blocks {
    /// None with capacity 0, otherwise a power of two.
    shards: Box<[RwLock<Shard>]>,
    /// Of the hash table of each shard, for prefetches.
    table_addresses: Box<[TableAddress]>,
    admission: Arc<AdmissionFilter>,
    capacity: u64,
    /// No other one takes the locks.
    process: Process,
    slots: Arc<SlotPool>,
    // Relaxed: the sum decides only how much memory is used.
    bytes: AtomicU64,
    counters: CacheCounters,
    usage: Mutex<Usage>,
}

impl Blocks {
    /// A cache of about `capacity` bytes; 0 keeps nothing.
    pub fn new(capacity: u64) -> Blocks {
        // A small cache has fewer shards: each keeps only blocks that are smaller than itself.
        let count = match capacity {
            0 => 0,
            _ => 1 << (capacity / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX).ilog2(),
        };
        let admission = Arc::new(AdmissionFilter::new(capacity));
        let shards =
            (0..count).map(|_| RwLock::new(Shard::new(capacity / count, admission.clone())));
        Blocks {
            shards: shards.collect(),
            table_addresses: (0..count).map(|_| TableAddress::default()).collect(),
            admission,
            capacity,
            process: Process::current(),
            slots: Arc::new(SlotPool::new(capacity / IDLE_PART)),
            bytes: AtomicU64::new(0),
            counters: CacheCounters::new(),
            usage: Mutex::new(Usage { lookups: 0, unread_tables: UNREAD_TABLES_MAX }),
        }
    }

    /// The number of the shard of a key with this hash; meaningless with capacity 0.
    #[inline]
    fn number(&self, hash: u64) -> usize {
        // The places in the shards use the low bits.
        (hash >> 40) as usize & self.shards.len().wrapping_sub(1)
    }

    /// The shard of a key with this hash; `None` with capacity 0, and in a child of the process.
    #[inline]
    fn shard(&self, hash: u64) -> Option<&RwLock<Shard>> {
        if !self.process.is_current() {
            return None;
        }
        self.shards.get(self.number(hash))
    }

    /// Changes shard `number`, and the sum of the weights with it.
    fn change<T>(&self, number: usize, change: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = self.shards[number].write();
        let before = shard.bytes();
        let result = change(&mut shard);
        self.table_addresses[number].note(shard.places());
        // The sum wraps if a shard has less than before. It is updated under the lock, so that no
        // thread subtracts a block that is not in the sum yet.
        self.bytes.fetch_add(shard.bytes().wrapping_sub(before), Ordering::Relaxed);
        result
    }

    /// The block, in a slot if there is one for it.
    fn moved(&self, block: Arc<Block>) -> Arc<Block> {
        let free_bytes_max = self.bytes.load(Ordering::Relaxed) / FREE_PART;
        block.moved(&self.slots, free_bytes_max).map_or(block, Arc::new)
    }

    /// Gives up slabs with few used slots, and the blocks in them, until blocks and free slots take
    /// `bytes_max` at most.
    ///
    /// # Cost
    /// A look at each block of the cache for each slab.
    fn give_up_sparse_slabs(&self, bytes_max: u64) {
        while self.bytes.load(Ordering::Relaxed) + self.slots.free_bytes() > bytes_max {
            match self.slots.close_sparsest() {
                None => return,
                Some(Closed::Idle) => {}
                Some(Closed::Slab(slab)) => {
                    for number in 0..self.shards.len() {
                        let gone = self.change(number, |shard| shard.remove_from(slab));
                        drop(gone);
                    }
                }
            }
        }
    }

    /// The memory of the blocks of a part, and their number.
    fn part(&self, number: u64) -> [u64; 2] {
        let parts = self.shards.iter().map(|shard| shard.read().part(number));
        parts.fold([0, 0], |sum, part| [sum[0] + part[0], sum[1] + part[1]])
    }

    /// Drops the blocks of a part.
    fn remove_part(&self, part: u64) {
        if !self.process.is_current() {
            return;
        }
        for number in 0..self.shards.len() {
            // A shard without a block of it is not locked for writing.
            if self.shards[number].read().part(part) == [0, 0] {
                continue;
            }
            // The lock ends with the statement: blocks are dropped without it.
            let gone = self.change(number, |shard| shard.remove_part(part));
            drop(gone);
        }
    }

    /// Hits and misses since the start, and what is kept now.
    pub fn stats(&self) -> CacheStats {
        let (hits, misses) = self.counters.totals();
        let mut stats = CacheStats {
            hits,
            misses,
            bytes: 0,
            capacity: self.capacity,
            blocks: 0,
            free_bytes: self.slots.free_bytes(),
        };
        for shard in &self.shards {
            let shard = shard.read();
            stats.bytes += shard.bytes();
            stats.blocks += shard.len() as u64;
        }
        stats
    }
}

impl BlockCache for Blocks {
    fn is_in_use(&self) -> bool {
        let (hits, misses) = self.counters.totals();
        self.usage.lock().is_in_use(hits + misses)
    }

    #[inline]
    fn get(&self, file: FileNo, offset: u64) -> Option<Arc<Block>> {
        let key = (file, offset);
        let hash = Mix.hash_one(key);
        let shard = self.shard(hash);
        let found = shard.and_then(|shard| shard.read().get(key, hash).map(CachedBlock::block));
        self.counters.count(found.is_some());
        found
    }

    #[inline]
    fn look(&self, file: FileNo, offset: u64, look: &mut dyn FnMut(&IndexedBlock)) -> bool {
        let key = (file, offset);
        let hash = Mix.hash_one(key);
        let found = self.shard(hash).is_some_and(|shard| match shard.read().get(key, hash) {
            Some(kept) => {
                look(&kept.data);
                true
            }
            None => false,
        });
        self.counters.count(found);
        found
    }

    #[inline]
    fn prefetch_place(&self, file: FileNo, offset: u64) {
        let hash = Mix.hash_one((file, offset));
        if let Some(table) = self.table_addresses.get(self.number(hash)) {
            table.prefetch(hash);
        }
    }

    #[inline]
    fn keeps(&self, file: FileNo, offset: u64) -> bool {
        let key = (file, offset);
        let hash = Mix.hash_one(key);
        self.shard(hash).is_some_and(|shard| shard.read().peek(key, hash).is_some())
    }

    fn wants(&self, file: FileNo, offset: u64, memory_bytes: u64) -> bool {
        let hash = Mix.hash_one((file, offset));
        let Some(shard) = self.shard(hash) else { return false };
        if shard.read().has_room(memory_bytes) {
            return true;
        }
        if !self.admission.has(hash) {
            self.admission.note(hash);
            return false;
        }
        // The lock ends with the statement: blocks are dropped without it.
        let gone = self.change(self.number(hash), Shard::make_room);
        gone.is_some()
    }

    fn insert(&self, file: FileNo, offset: u64, block: Arc<Block>) -> Arc<Block> {
        let key = (file, offset);
        let hash = Mix.hash_one(key);
        if self.shards.is_empty() {
            return block;
        }
        let block = self.moved(block);
        // The lock ends with the statement: blocks are dropped without it.
        let gone = self.change(self.number(hash), |shard| shard.insert(key, hash, block.clone()));
        drop(gone);
        self.give_up_sparse_slabs(memory_bytes_max(self.capacity));
        block
    }

    fn has_room(&self, file: FileNo, offset: u64, memory_bytes: u64) -> bool {
        let shard = self.shard(Mix.hash_one((file, offset)));
        shard.is_some_and(|shard| shard.read().has_room(memory_bytes))
    }

    fn insert_where_free(&self, file: FileNo, offset: u64, block: Arc<Block>) {
        let key = (file, offset);
        let hash = Mix.hash_one(key);
        if !self.shards.is_empty() {
            let block = self.moved(block);
            let refused =
                self.change(self.number(hash), |shard| shard.insert_where_free(key, hash, block));
            drop(refused);
            self.give_up_sparse_slabs(memory_bytes_max(self.capacity));
        }
    }

    fn remove(&self, file: FileNo, offset: u64) -> Option<Arc<Block>> {
        let key = (file, offset);
        let hash = Mix.hash_one(key);
        let number = self.number(hash);
        self.shards.get(number)?;
        self.change(number, |shard| shard.remove(key, hash))
    }
}

/// The memory that a cache of this capacity may take with its free slots, in bytes.
fn memory_bytes_max(capacity: u64) -> u64 {
    // A cache that is too small for the first slab takes none.
    let free = Some(capacity / FREE_PART).filter(|bytes| *bytes >= SLAB_BYTES as u64);
    capacity.saturating_add(free.unwrap_or(0))
}

/// Hashes file numbers and offsets, which an attacker does not choose: two multiplications.
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

    // The trait requires it. The keys here are numbers and call `write_u64` alone.
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

/// Hits and misses. All orderings are relaxed: the sums are statistics.
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

/// The use of the cache by readers, as seen at the begin of each table.
struct Usage {
    /// Lookups until the last table began.
    lookups: u64,
    /// Tables in a row that began with no lookup since the one before.
    unread_tables: u32,
}

/// Readers that ask less often than once in so many tables are not readers of what is written now. More than one,
/// because several jobs can begin a table at the same time.
const UNREAD_TABLES_MAX: u32 = 8;

impl Usage {
    fn is_in_use(&mut self, lookups: u64) -> bool {
        self.unread_tables = match lookups == self.lookups {
            true => self.unread_tables.saturating_add(1),
            false => 0,
        };
        self.lookups = lookups;
        self.unread_tables < UNREAD_TABLES_MAX
    }
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
