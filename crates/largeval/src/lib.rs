//! Large values of a siltstone partition, in chunk files next to the tables. Each value is written
//! once, can be streamed, and is verified in parts.
//!
//! This crate is a value store on the hooks of the engine. The LSM tree stores a handle instead of the
//! value; the value is in a chunk file, which is never overwritten. Edits of the manifest record the
//! number of live bytes of each chunk. A chunk without live values is removed. Compactions move the
//! live values out of a chunk with much garbage, in key order.
//!
//! Applications use it through siltstone, `PartitionOptions::large_values`.
//!
//! ```text
//! access      the public calls     store       the value store, its work shared
//! blob_writer streams in           writing     a block on its way into a file
//! blob_reader streams out          block       a block, read and verified
//! blob_ref    a whole value, lent  mapped      where it lies: a mapped chunk file
//! space       what is where        chunks      what lives in which chunk, and the sections
//! choosing    what is to be moved  blob_gc      what jobs move
//! syncing     failed syncs, too    syncs       the files that wait for a sync
//! shared      what all of them share: chunk files, idle writers (chunk_writer), refused values
//! options     and their bytes      format      chunk files and handles
//! packing     LZ4                  sub_blocks  the table of a value's sub-blocks
//! ```

mod access;
mod blob_gc;
mod blob_reader;
mod blob_ref;
mod blob_writer;
mod block;
mod choosing;
mod chunk_writer;
mod chunks;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod decoders;
mod format;
mod mapped;
mod options;
mod packing;
mod shared;
mod space;
mod store;
mod sub_blocks;
mod syncing;
mod syncs;
#[cfg(test)]
mod tests;
mod writing;

pub use access::{
    BlobStat, existing_store_of, get_into, get_range, get_ref, open_blob, put_stream,
    put_stream_unkeyed, stat_blob, store_of,
};
pub use blob_reader::BlobReader;
pub use blob_ref::BlobRef;
pub use blob_writer::{BlobWriter, PendingBlob};
pub use block::Parallelism;
pub use options::LargeValueOptions;
pub use space::{ChunkInfo, Space};
pub use store::{LargeStore, LargeValues};
