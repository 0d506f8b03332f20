//! [`Slab`]: one piece of memory of the allocator, as long as a huge page or shorter.
//!
//! Memtables fill slabs from front to back (`memtable/arena.rs`), the block cache cuts them into slots
//! (`slots.rs`). Nothing here reads the memory.
//!
//! Invariants:
//! 1. A slab is the only owner of its memory, which stays where it is as long as the slab lives.
//! 2. A slab begins with a cache line, so that its owner need not look at the address to align its
//!    contents: the offset of a thing in a slab is the same in every run.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::prefetch::LINE_BYTES;

/// Length and alignment of the longest slabs: those of a huge page on the common machines.
pub const SLAB_BYTES: usize = 2 << 20;
/// No page of a machine is shorter.
const PAGE_BYTES_MIN: usize = 4 << 10;

/// A piece of memory of the allocator, as long as a huge page or shorter.
pub struct Slab {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a slab is the only owner of its memory, and has no tie to a thread.
unsafe impl Send for Slab {}

impl Slab {
    /// A slab of uninitialised memory; one of [`SLAB_BYTES`] asks for a huge page.
    pub fn new(bytes: usize) -> Slab {
        let slab = Slab::of_small_pages(bytes);
        if bytes == SLAB_BYTES {
            ask_for_huge_pages(slab.start, bytes);
        }
        slab
    }

    /// A slab of uninitialised memory, whose pages the kernel provides one by one.
    pub fn of_small_pages(bytes: usize) -> Slab {
        assert!(bytes > 0, "a slab has memory");
        let alignment = if bytes == SLAB_BYTES { SLAB_BYTES } else { LINE_BYTES };
        let layout = Layout::from_size_align(bytes, alignment).expect("slabs are of a few MiB");
        // SAFETY: `alloc` demands a length above 0, which the assert checks.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Slab { start, layout }
    }

    /// The address of the memory.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The address of the byte at `offset`.
    ///
    /// # Panics
    /// Beyond the slab.
    pub fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.bytes(), "offset {offset} is beyond the slab");
        // SAFETY: by the assert, `offset` is within the memory of the slab.
        unsafe { self.start.add(offset) }
    }

    /// Length of the memory.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Has the kernel provide all of its memory now. `MADV_POPULATE_WRITE` would do so too, but it holds
    /// the lock of the address space that `mmap` and `munmap` of all threads wait for.
    pub fn populate(&mut self) {
        for offset in (0..self.bytes()).step_by(PAGE_BYTES_MIN) {
            // SAFETY: `offset` is below the length of the slab, which owns its memory. Volatile, because the
            // compiler may remove a store that is never read.
            unsafe { self.start.add(offset).write_volatile(0) };
        }
    }

    /// Frees the slab and returns its pages to the system. The allocator alone may keep freed
    /// memory that lies between other memory.
    ///
    /// # Cost
    /// Two system calls.
    pub fn give_back(self) {
        if self.bytes() == SLAB_BYTES {
            forget_pages(self.start, self.bytes());
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc` with this layout, and this slab is its only owner.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Asks the kernel to back the memory by huge pages. If the kernel refuses, nothing changes.
#[cfg(all(target_os = "linux", not(miri)))]
fn ask_for_huge_pages(start: NonNull<u8>, bytes: usize) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the range is a whole allocation that the caller owns, and the advice changes neither
    // its content nor its protection.
    let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn ask_for_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

/// Gives the pages of memory that is about to be freed to the system.
#[cfg(all(target_os = "linux", not(miri)))]
fn forget_pages(start: NonNull<u8>, bytes: usize) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the range is a whole allocation of whole pages that the caller owns. Its content is lost,
    // and the caller frees it.
    let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontNeed) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn forget_pages(_start: NonNull<u8>, _bytes: usize) {}
