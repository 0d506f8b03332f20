//! [`SlotPool`]: slabs that are cut into slots, for the blocks that the block cache keeps.
//!
//! A slab is cut into slots of one length. The lengths, the classes, rise by a sixteenth, so that
//! at most that part of a slot is unused. Slots are handed out from the slab with the lowest
//! number, so that others become empty. Empty slabs are kept for the next blocks, up to a number,
//! because the kernel takes 0.1 ms and more to clear a fresh one; others are returned to the
//! system. With blocks of the allocator instead, a process of two threads with a cache of 256 MiB
//! takes 653 MiB instead of 486 (design note 34).
//!
//! Free slots of one class are useless to another. So the pool cuts a slab only if an empty one is
//! there or a new one leaves no more free memory than its caller allows; otherwise it hands out
//! nothing. If the lengths of blocks change, slabs with few used slots would stay: the caller
//! closes one by [`SlotPool::close_sparsest`], and drops its blocks in it. A slot of a closed slab
//! is not handed out again, unless its class needs a further slab.
//!
//! Invariants:
//! 1. A slot is owned by one [`UsedSlot`] or is free.
//! 2. A slab in `cut` has a used slot.
//! 3. `open` has, for each class, the slabs with a free slot that are not closed.
//! 4. `free_bytes` is the memory of the idle slabs and of those in `cut` that are not closed, without
//!    their used slots.

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use super::prefetch::LINE_BYTES;
use super::slab::{SLAB_BYTES, Slab};
use crate::types::Process;

/// The shortest and the longest slot. Shorter blocks are too few to matter; for longer ones the
/// heap takes whole pages.
const SLOT_BYTES_MIN: usize = 1 << 10;
const SLOT_BYTES_MAX: usize = 64 << 10;
/// Each class is longer than the one before by this part of it.
const CLASS_STEP_PART: usize = 16;

/// Slabs that are cut into slots, one pool for a block cache.
pub struct SlotPool {
    // Fixed after construction.
    /// Lengths of the slots of each class, ascending.
    class_bytes: Vec<usize>,
    idle_max: usize,
    process: Process,
    // Guarded by its own lock, a leaf. Memory is asked for under it, once for hundreds of slots.
    slabs: Mutex<Slabs>,
}

struct Slabs {
    /// By the number of the slab.
    cut: Vec<Option<CutSlab>>,
    /// Numbers that no slab has.
    vacant: BTreeSet<u32>,
    open: Vec<BTreeSet<u32>>,
    /// Without a used slot.
    idle: Vec<Slab>,
    free_bytes: u64,
}

struct CutSlab {
    memory: Slab,
    class: usize,
    slot_bytes: usize,
    free: Vec<u16>,
    is_closed: bool,
}

impl CutSlab {
    fn new(memory: Slab, class: usize, slot_bytes: usize) -> CutSlab {
        let count = (SLAB_BYTES / slot_bytes) as u16;
        let free = (0..count).rev().collect();
        CutSlab { memory, class, slot_bytes, free, is_closed: false }
    }

    fn used_bytes(&self) -> u64 {
        ((SLAB_BYTES / self.slot_bytes - self.free.len()) * self.slot_bytes) as u64
    }

    fn free_bytes(&self) -> u64 {
        SLAB_BYTES as u64 - self.used_bytes()
    }

    /// The address of the memory, which identifies the slab.
    fn start(&self) -> SlabStart {
        SlabStart::of(self.memory.start())
    }
}

/// The address of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabStart(usize);

impl SlabStart {
    /// The address of the slab that memory at this place would be in.
    #[inline]
    pub fn of<T>(place: NonNull<T>) -> SlabStart {
        SlabStart(place.addr().get() & !(SLAB_BYTES - 1))
    }
}

/// A slot in use. Dropped, it is free again.
pub(super) struct UsedSlot {
    pool: Arc<SlotPool>,
    slab: u32,
    index: u16,
    bytes: u32,
}

impl UsedSlot {
    /// Its length.
    pub(super) fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

impl Drop for UsedSlot {
    fn drop(&mut self) {
        // In a child of the process, another thread may have held the lock at the fork.
        if self.pool.process.is_current() {
            self.pool.give_back(self.slab, self.index);
        }
    }
}

/// A slot that is not filled yet.
pub(super) struct Taken {
    pub slot: UsedSlot,
    /// The memory of the slot: uninitialised, aligned to a line.
    pub start: NonNull<u8>,
}

impl SlotPool {
    /// A pool without memory. It keeps empty slabs of at most `idle_bytes_max` bytes.
    pub fn new(idle_bytes_max: u64) -> SlotPool {
        let idle_max = usize::try_from(idle_bytes_max).unwrap_or(usize::MAX) / SLAB_BYTES;
        let classes = std::iter::successors(Some(SLOT_BYTES_MIN), |bytes| {
            Some((bytes + bytes / CLASS_STEP_PART) & !(LINE_BYTES - 1))
        });
        let class_bytes: Vec<usize> =
            classes.take_while(|bytes| *bytes <= SLOT_BYTES_MAX).collect();
        let slabs = Slabs {
            cut: Vec::new(),
            vacant: BTreeSet::new(),
            open: vec![BTreeSet::new(); class_bytes.len()],
            idle: Vec::new(),
            free_bytes: 0,
        };
        let process = Process::current();
        SlotPool { class_bytes, idle_max, process, slabs: Mutex::new(slabs) }
    }

    /// Memory of all slabs.
    #[cfg(test)]
    pub fn slab_bytes(&self) -> u64 {
        let slabs = self.slabs.lock();
        let count = slabs.cut.iter().flatten().count() + slabs.idle.len();
        (count * SLAB_BYTES) as u64
    }

    /// Memory of slabs that no slot in use takes, without closed slabs.
    pub fn free_bytes(&self) -> u64 {
        self.slabs.lock().free_bytes
    }

    /// A slot of at least `bytes`. `None` if no class is so long, or if a further slab would leave more
    /// than `free_bytes_max` free.
    pub(super) fn take(self: &Arc<Self>, bytes: usize, free_bytes_max: u64) -> Option<Taken> {
        let class = self.class_bytes.partition_point(|slot_bytes| *slot_bytes < bytes);
        let slot_bytes = *self.class_bytes.get(class)?;
        if bytes < SLOT_BYTES_MIN {
            return None;
        }
        let mut slabs = self.slabs.lock();
        let number = match slabs.open[class].first() {
            Some(number) => *number,
            None => slabs.add(class, slot_bytes, free_bytes_max)?,
        };
        let slab = slabs.cut[number as usize].as_mut().expect("an open slab is there");
        let index = slab.free.pop().expect("an open slab has a free slot");
        let start = slab.memory.at(usize::from(index) * slot_bytes);
        if slab.free.is_empty() {
            slabs.open[class].remove(&number);
        }
        slabs.free_bytes -= slot_bytes as u64;
        let slot = UsedSlot { pool: self.clone(), slab: number, index, bytes: slot_bytes as u32 };
        Some(Taken { slot, start })
    }

    /// Returns an idle slab to the system, or closes the slab with the fewest bytes in use: the
    /// caller then drops its blocks in it. `None` if no slab is left to close.
    pub fn close_sparsest(&self) -> Option<Closed> {
        let mut slabs = self.slabs.lock();
        if let Some(idle) = slabs.idle.pop() {
            slabs.free_bytes -= SLAB_BYTES as u64;
            // A system call, without the lock.
            drop(slabs);
            idle.give_back();
            return Some(Closed::Idle);
        }
        let numbered = slabs.cut.iter().enumerate();
        let candidates = numbered.filter_map(|(at, slab)| Some((at, slab.as_ref()?)));
        let open = candidates.filter(|(_, slab)| !slab.is_closed);
        let number = open.min_by_key(|(_, slab)| slab.used_bytes())?.0;
        let slab = slabs.cut[number].as_mut()?;
        slab.is_closed = true;
        let class = slab.class;
        let freed = slab.free_bytes();
        let start = slab.start();
        slabs.free_bytes -= freed;
        slabs.open[class].remove(&(number as u32));
        Some(Closed::Slab(start))
    }

    fn give_back(&self, number: u32, index: u16) {
        let mut slabs = self.slabs.lock();
        let surplus = slabs.free(number, index, self.idle_max);
        // A system call, without the lock.
        drop(slabs);
        if let Some(slab) = surplus {
            slab.give_back();
        }
    }
}

/// The result of [`SlotPool::close_sparsest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// An idle slab has gone.
    Idle,
    /// The slab that begins here is freed once it has no used slot.
    Slab(SlabStart),
}

impl Slabs {
    /// Adds a slab for a class that has no free slot; returns its number.
    fn add(&mut self, class: usize, slot_bytes: usize, free_bytes_max: u64) -> Option<u32> {
        let memory = match self.idle.pop() {
            Some(idle) => idle,
            None if self.free_bytes + SLAB_BYTES as u64 > free_bytes_max => return None,
            None => {
                if let Some(number) = self.reopen(class) {
                    return Some(number);
                }
                self.free_bytes += SLAB_BYTES as u64;
                // Blocks of tables that go empty slabs all the time. To clear huge pages for those that
                // follow cost overwrites a quarter of their processor time.
                Slab::of_small_pages(SLAB_BYTES)
            }
        };
        let slab = CutSlab::new(memory, class, slot_bytes);
        let number = match self.vacant.pop_first() {
            Some(number) => number,
            None => {
                self.cut.push(None);
                (self.cut.len() - 1) as u32
            }
        };
        self.cut[number as usize] = Some(slab);
        self.open[class].insert(number);
        Some(number)
    }

    /// Opens a closed slab of the class again: its memory is there anyway.
    fn reopen(&mut self, class: usize) -> Option<u32> {
        let closed = self.cut.iter_mut().enumerate().find_map(|(at, slab)| {
            let slab = slab.as_mut()?;
            (slab.is_closed && slab.class == class && !slab.free.is_empty()).then_some((at, slab))
        });
        let (at, slab) = closed?;
        slab.is_closed = false;
        self.free_bytes += slab.free_bytes();
        self.open[class].insert(at as u32);
        Some(at as u32)
    }

    /// Frees a slot; returns a slab that is not to be kept.
    fn free(&mut self, number: u32, index: u16, idle_max: usize) -> Option<Slab> {
        let place = &mut self.cut[number as usize];
        let slab = place.as_mut().expect("a slab with a slot in use is there");
        slab.free.push(index);
        let is_closed = slab.is_closed;
        let class = slab.class;
        if !is_closed {
            self.free_bytes += slab.slot_bytes as u64;
            self.open[class].insert(number);
        }
        if slab.used_bytes() > 0 {
            return None;
        }
        let memory = place.take()?.memory;
        self.open[class].remove(&number);
        self.vacant.insert(number);
        if is_closed || self.idle.len() >= idle_max {
            self.free_bytes -= if is_closed { 0 } else { SLAB_BYTES as u64 };
            return Some(memory);
        }
        self.idle.push(memory);
        None
    }
}

#[cfg(test)]
mod tests;
