//! Memory for the nodes of a memtable: slabs that are filled from front to back and return to a
//! pool as a whole.
//!
//! An entry costs no call of the allocator, and a store that has filled its first memtables touches
//! no fresh page any more: the slabs of a flushed memtable serve the next one. Until then the log
//! thread prepares slabs ahead: the kernel clears a fresh one for 0.3 ms, and for 5 ms on a virtual
//! machine whose host has to find the memory. A writer would wait for that at each slab. Used by
//! the skiplist, which knows the contents of the memory; nothing here reads it.
//!
//! Invariants:
//! 1. A slab is owned by one [`Arena`] or is idle in one pool, never both.
//! 2. An arena hands out each byte once, and frees its slabs only when it is dropped. So allocated
//!    memory stays valid, and in place, as long as the arena lives.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::memory::{LINE_BYTES, SLAB_BYTES, Slab};
use crate::types::Process;

/// Every allocation begins at a multiple of it.
pub(super) const ALIGNMENT: usize = 8;

/// Length of the slabs that are kept for reuse: a huge page, which a search over a large memtable needs,
/// because every step of it goes to another page.
const POOLED_BYTES: usize = SLAB_BYTES;
/// The number of slabs that are prepared ahead. With one, it might be taken while the next one is
/// prepared.
const SPARE_SLABS: usize = 2;
/// A memtable begins with slabs of these lengths, so that one of a few entries stays small. They
/// come from the allocator, which keeps as much for reuse as they need.
const FIRST_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Slabs that no memtable took for so long return to the system: the burst of writes is over.
const UNUSED_MAX: Duration = Duration::from_secs(5);

/// The slabs of a pool.
#[derive(Default)]
struct Idle {
    slabs: Vec<Slab>,
    /// One was taken at or before this time of the clock.
    used_at: Duration,
}

/// Slabs that no memtable uses, kept for the next one. One for a whole store.
pub struct SlabPool {
    // Fixed after construction.
    idle_max: usize,
    process: Process,
    // Guarded by its own lock, a leaf.
    idle: Mutex<Idle>,
    // Hints for the thread that prepares slabs, which looks at `idle` itself: relaxed.
    /// A slab was taken since the last call of [`SlabPool::prepare`], and few are left.
    is_short: AtomicBool,
    /// As `is_short`, and no thread was notified.
    is_untold: AtomicBool,
    /// A slab was taken since the last call of [`SlabPool::give_up_unused`]. Relaxed.
    was_taken: AtomicBool,
}

impl SlabPool {
    /// An empty pool that keeps at most `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> SlabPool {
        let idle_max = usize::try_from(bytes_max).unwrap_or(usize::MAX) / POOLED_BYTES;
        SlabPool {
            idle_max,
            process: Process::current(),
            idle: Mutex::default(),
            is_short: AtomicBool::new(false),
            is_untold: AtomicBool::new(false),
            was_taken: AtomicBool::new(false),
        }
    }

    /// Memory that lies idle, in bytes.
    pub fn idle_bytes(&self) -> u64 {
        (self.idle.lock().slabs.len() * POOLED_BYTES) as u64
    }

    fn take(&self) -> Slab {
        self.was_taken.store(true, Ordering::Relaxed);
        let mut idle = self.idle.lock();
        let taken = idle.slabs.pop();
        let is_short = idle.slabs.len() < self.spare_max();
        // A new slab is a call of the allocator, and often of the kernel.
        drop(idle);
        if is_short {
            self.is_short.store(true, Ordering::Relaxed);
            self.is_untold.store(true, Ordering::Relaxed);
        }
        taken.unwrap_or_else(|| Slab::new(POOLED_BYTES))
    }

    fn spare_max(&self) -> usize {
        SPARE_SLABS.min(self.idle_max)
    }

    /// Returns `true` once whenever a thread should call [`SlabPool::prepare`].
    #[inline]
    pub fn take_short(&self) -> bool {
        // Loaded first: a swap at each group of writes would be an exclusive access to the line.
        self.is_untold.load(Ordering::Relaxed) && self.is_untold.swap(false, Ordering::Relaxed)
    }

    /// Prepares slabs for a memtable that grows; nothing if no slab was taken since the last call.
    ///
    /// # Cost
    /// Milliseconds of the kernel's work a slab, with no lock held.
    pub fn prepare(&self) {
        if !self.is_short.swap(false, Ordering::Relaxed) {
            return;
        }
        while self.idle.lock().slabs.len() < self.spare_max() {
            let mut slab = Slab::new(POOLED_BYTES);
            slab.populate();
            self.give_back(vec![slab]);
        }
    }

    /// Frees the idle slabs if none was taken for some seconds before `now`. Returns the time to the next look; `None`
    /// if no slab is idle.
    pub fn give_up_unused(&self, now: Duration) -> Option<Duration> {
        let mut idle = self.idle.lock();
        if self.was_taken.swap(false, Ordering::Relaxed) {
            idle.used_at = now;
        }
        if idle.slabs.is_empty() {
            return None;
        }
        let left = (idle.used_at + UNUSED_MAX).saturating_sub(now);
        if !left.is_zero() {
            return Some(left);
        }
        let unused = std::mem::take(&mut idle.slabs);
        // Freeing a slab may be a system call.
        drop(idle);
        drop(unused);
        None
    }

    fn give_back(&self, slabs: Vec<Slab>) {
        let mut surplus = Vec::new();
        let mut idle = self.idle.lock();
        for slab in slabs {
            // Bounded by the write buffer: a burst that needed more memory returns it to the
            // system.
            if slab.bytes() == POOLED_BYTES && idle.slabs.len() < self.idle_max {
                idle.slabs.push(slab);
            } else {
                surplus.push(slab);
            }
        }
        // Freeing a slab may be a system call.
        drop(idle);
        drop(surplus);
    }
}

/// The memory of one skiplist. Takes none before the first allocation.
pub(super) struct Arena {
    pool: Arc<SlabPool>,
    slabs: Vec<Slab>,
    /// The free end of the newest slab.
    free: NonNull<u8>,
    free_bytes: usize,
    used_bytes: u64,
}

// SAFETY: `free` points into a slab of `slabs`, which moves with it. Slabs have no tie to a thread.
unsafe impl Send for Arena {}

impl Arena {
    pub(super) fn new(pool: Arc<SlabPool>) -> Arena {
        let free = NonNull::dangling();
        Arena { pool, slabs: Vec::new(), free, free_bytes: 0, used_bytes: 0 }
    }

    pub(super) fn pool(&self) -> &Arc<SlabPool> {
        &self.pool
    }

    /// Bytes handed out.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Uninitialised memory of `bytes` bytes, aligned to [`ALIGNMENT`], valid and without another
    /// owner until the arena is dropped.
    ///
    /// # Panics
    /// Beyond the length of a pooled slab; the callers keep far below.
    #[inline]
    pub(super) fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        if bytes > self.free_bytes {
            self.begin_slab(bytes);
        }
        let start = self.free;
        // SAFETY: `bytes` is at most `free_bytes`, so the result lies in the newest slab or just
        // after it.
        self.free = unsafe { start.add(bytes) };
        self.free_bytes -= bytes;
        self.used_bytes += bytes as u64;
        start
    }

    /// As [`Arena::allocate`], from the beginning of a cache line on.
    pub(super) fn allocate_lines(&mut self, bytes: usize) -> NonNull<u8> {
        // A slab begins with a line. So the gap, which counts as used, depends on no address, and a
        // memtable is full at the same entry in every run.
        let mut gap = self.free.as_ptr().align_offset(LINE_BYTES);
        if gap + bytes > self.free_bytes {
            self.begin_slab(bytes);
            gap = 0;
        }
        self.allocate(gap);
        self.allocate(bytes)
    }

    #[cold]
    fn begin_slab(&mut self, bytes: usize) {
        assert!(bytes <= POOLED_BYTES, "an entry of the memtable takes {bytes} bytes");
        // An entry that does not fit into the next of the first slabs gets a later one.
        let mut following = FIRST_BYTES.iter().skip(self.slabs.len());
        let slab = match following.find(|first| **first >= bytes) {
            Some(first) => Slab::new(*first),
            None => self.pool.take(),
        };
        self.free = slab.start();
        // The rest of the slab before is wasted: entries are short, and a search for a fitting rest
        // would cost each allocation.
        self.free_bytes = slab.bytes();
        self.slabs.push(slab);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // In a child of the process, another thread may have held the lock at the fork.
        if self.pool.process.is_current() {
            self.pool.give_back(std::mem::take(&mut self.slabs));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(arena: &mut Arena, bytes: usize) {
        for n in 0..bytes / 64 {
            let start = arena.allocate(60);
            assert_eq!(start.as_ptr() as usize % ALIGNMENT, 0);
            // SAFETY: 60 bytes were just handed out.
            unsafe { start.write_bytes(n as u8, 60) };
        }
    }

    #[test]
    fn slabs_serve_the_next_arena_and_the_pool_is_bounded() {
        let pool = Arc::new(SlabPool::new(3 * POOLED_BYTES as u64));
        let mut arena = Arena::new(pool.clone());
        assert!(arena.slabs.is_empty());
        fill(&mut arena, 64);
        assert_eq!((arena.slabs.len(), arena.slabs[0].bytes()), (1, FIRST_BYTES[0]));
        fill(&mut arena, 5 * POOLED_BYTES);
        assert_eq!(arena.used_bytes(), 64 + 5 * POOLED_BYTES as u64);
        assert_eq!(pool.idle_bytes(), 0);
        drop(arena);
        assert_eq!(pool.idle_bytes(), 3 * POOLED_BYTES as u64);
        let mut second = Arena::new(pool.clone());
        fill(&mut second, 3 * POOLED_BYTES);
        assert!(pool.idle_bytes() < 2 * POOLED_BYTES as u64);
    }

    #[test]
    fn slabs_are_prepared_once_a_memtable_grows() {
        let pool = Arc::new(SlabPool::new(8 * POOLED_BYTES as u64));
        let mut arena = Arena::new(pool.clone());
        arena.allocate(64);
        // A store of small memtables takes no more memory than they do.
        pool.prepare();
        assert!(!pool.take_short() && pool.idle_bytes() == 0);
        fill(&mut arena, 2 * POOLED_BYTES);
        assert!(pool.take_short() && !pool.take_short());
        pool.prepare();
        assert_eq!(pool.idle_bytes(), (SPARE_SLABS * POOLED_BYTES) as u64);
        let prepared = pool.idle.lock().slabs[1].start();
        fill(&mut arena, POOLED_BYTES);
        assert_eq!(arena.slabs.last().unwrap().start(), prepared);
        assert!(pool.take_short());
        // Without a bound on idle slabs that allows them, none are prepared.
        let pool = Arc::new(SlabPool::new(0));
        fill(&mut Arena::new(pool.clone()), 2 * POOLED_BYTES);
        pool.prepare();
        assert!(!pool.take_short() && pool.idle_bytes() == 0);
    }

    #[test]
    fn lines_begin_with_a_line_and_take_the_same_memory_wherever_the_slabs_lie() {
        let mut strays = Vec::new();
        let mut used = Vec::new();
        for run in 1..20 {
            // The allocator has another address for each first slab.
            strays.push(Slab::new(16 * run));
            let mut arena = Arena::new(Arc::new(SlabPool::new(0)));
            for n in 0..5000 {
                arena.allocate(8 * (n % 9));
                let start = arena.allocate_lines(512);
                assert_eq!(start.as_ptr() as usize % LINE_BYTES, 0);
                let slab = arena.slabs.last().unwrap();
                let offset = start.as_ptr() as usize - slab.start().as_ptr() as usize;
                assert!(offset + 512 <= slab.bytes());
            }
            used.push(arena.used_bytes());
        }
        assert!(used.iter().all(|bytes| *bytes == used[0]), "{used:?}");
    }

    #[test]
    fn an_entry_beyond_the_first_slabs_gets_one_that_it_fits() {
        let mut arena = Arena::new(Arc::new(SlabPool::new(0)));
        arena.allocate(100_000);
        assert_eq!(arena.slabs[0].bytes(), 256 << 10);
        arena.allocate(POOLED_BYTES);
        assert_eq!(arena.slabs[1].bytes(), POOLED_BYTES);
    }
}
