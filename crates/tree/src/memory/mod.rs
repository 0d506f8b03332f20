//! Slabs of memory, for memtables and for the blocks in the cache, and hints about memory.
//!
//! Those of memtables are in huge pages: a search goes to a few distant places of a large memory,
//! and with pages of 4 KiB the processor looks up the address of each in page tables that are not
//! cached themselves.
//!
//! ```text
//! slab.rs          a piece of memory of the length of a huge page
//! slots.rs         slabs that are cut into slots of one length
//! block_buffer.rs  words and bytes of a block, on the heap or in a slot
//! prefetch.rs      a hint to the processor that a line of memory is needed soon
//! ```

#[expect(unsafe_code, reason = "words and bytes that are found without a look at their owner")]
mod block_buffer;
#[allow(unsafe_code, reason = "an instruction that std offers as unsafe only, where there is one")]
mod prefetch;
#[expect(unsafe_code, reason = "memory of the allocator that its owner hands out in pieces")]
mod slab;
mod slots;

pub use block_buffer::BlockBuffer;
pub use prefetch::{LINE_BYTES, prefetch, prefetch_lines};
pub use slab::{SLAB_BYTES, Slab};
pub use slots::{Closed, SlabStart, SlotPool};
