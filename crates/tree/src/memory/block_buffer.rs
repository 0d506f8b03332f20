//! [`BlockBuffer`]: the words and the bytes of a block, shared by reference count, on the heap or in a slot.
//!
//! A point read finds both through the addresses that it has next to the key. It does not touch the
//! owner of the memory, whose cache line no processor has.
//!
//! Invariants:
//! 1. `words` and `bytes` are addresses of initialised memory of `owner`, of so many words and bytes.
//! 2. Memory that an owner has is never written to, and stays in place as long as the owner lives.

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::slots::{SlabStart, SlotPool, UsedSlot};
use crate::types::Slice;

/// The words and the bytes of a block, on the heap or in a slot of a slab.
#[derive(Clone)]
pub struct BlockBuffer {
    words: NonNull<u64>,
    bytes: NonNull<u8>,
    word_count: u32,
    byte_count: u32,
    owner: Arc<MemoryOwner>,
}

enum MemoryOwner {
    Heap(OnHeap),
    Slot(UsedSlot),
}

struct OnHeap {
    words: Box<[u64]>,
    bytes: Arc<[u8]>,
}

// SAFETY: the memory belongs to the owner, which moves with it and has no tie to a thread, and no
// one writes to it (invariant 2).
unsafe impl Send for BlockBuffer {}
// SAFETY: shared, the memory is only read (invariant 2).
unsafe impl Sync for BlockBuffer {}

impl BlockBuffer {
    /// The reference counts and the owner, in bytes.
    pub const OWN_BYTES: usize = size_of::<MemoryOwner>() + 16;

    /// Words and bytes that lie on the heap.
    ///
    /// # Panics
    /// If there are 2^32 of either.
    pub fn new(words: Vec<u64>, bytes: Arc<[u8]>) -> BlockBuffer {
        let word_count = u32::try_from(words.len()).expect("blocks are shorter than 4 GiB");
        let byte_count = u32::try_from(bytes.len()).expect("blocks are shorter than 4 GiB");
        let owner = Arc::new(MemoryOwner::Heap(OnHeap { words: words.into(), bytes }));
        let MemoryOwner::Heap(heap) = &*owner else { unreachable!("it was just made") };
        let words = NonNull::from(&*heap.words).cast();
        let bytes = NonNull::from(&*heap.bytes).cast();
        BlockBuffer { words, bytes, word_count, byte_count, owner }
    }

    /// A copy in a slot of `pool`. `None` if the pool has none for it with at most `free_bytes_max`
    /// of free memory, or if it is in a slot already.
    pub fn moved(&self, pool: &Arc<SlotPool>, free_bytes_max: u64) -> Option<BlockBuffer> {
        if matches!(*self.owner, MemoryOwner::Slot(_)) {
            return None;
        }
        let taken = pool.take(self.len(), free_bytes_max)?;
        let words = taken.start.cast::<u64>();
        // SAFETY: the slot has room for the words and the bytes after them, is aligned to a line,
        // and has no other user yet. The sources are initialised and do not overlap it.
        let bytes = unsafe {
            words.copy_from_nonoverlapping(self.words, self.words().len());
            let bytes = words.add(self.words().len()).cast::<u8>();
            bytes.copy_from_nonoverlapping(self.bytes, self.bytes().len());
            bytes
        };
        let owner = Arc::new(MemoryOwner::Slot(taken.slot));
        Some(BlockBuffer { words, bytes, owner, ..*self })
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &[u64] {
        // SAFETY: `words` names so many initialised words of the owner (invariant 1), which are not written
        // to (invariant 2), and the owner lives as long as `self`.
        unsafe { slice::from_raw_parts(self.words.as_ptr(), self.word_count as usize) }
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes` names so many initialised bytes of the owner (invariant 1), which are not written
        // to (invariant 2), and the owner lives as long as `self`.
        unsafe { slice::from_raw_parts(self.bytes.as_ptr(), self.byte_count as usize) }
    }

    /// Words and bytes together, in bytes.
    fn len(&self) -> usize {
        size_of_val(self.words()) + self.bytes().len()
    }

    /// `len` bytes from `start` as an owned string. Bytes in a slot are copied: one string that a
    /// caller keeps would keep a slab.
    #[inline]
    pub fn slice(&self, start: usize, len: usize) -> Slice {
        // Short ones without a look at the owner.
        if len <= Slice::COPY_BYTES_MAX {
            return Slice::copy_from(&self.bytes()[start..start + len]);
        }
        match &*self.owner {
            MemoryOwner::Heap(heap) => Slice::share(&heap.bytes, start, len),
            MemoryOwner::Slot(_) => Slice::copy_from(&self.bytes()[start..start + len]),
        }
    }

    /// Memory that they take, in bytes: that of the slot if they are in one.
    pub fn memory_bytes(&self) -> usize {
        match &*self.owner {
            MemoryOwner::Heap(_) => self.len(),
            MemoryOwner::Slot(slot) => slot.bytes(),
        }
    }

    /// Returns `true` if they lie in this slab.
    pub fn are_in(&self, slab: SlabStart) -> bool {
        SlabStart::of(self.words) == slab
    }
}
