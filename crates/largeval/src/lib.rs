//! Large values of a siltstone partition: written once, to chunk files beside the tables, streamed
//! in and out, verified piece by piece, and reclaimed exactly.
//!
//! A value store on the engine's hooks. The tree keeps a handle in the value's place; the value lies
//! in a chunk file, where nothing is ever overwritten. Edits of the manifest say how much of each
//! chunk lives. A chunk in which nothing lives is removed; from one with much garbage compactions
//! move the rest, in the order of the keys.
//!
//! Applications use it through siltstone, `PartitionOptions::large_values`.
//!
//! ```text
//! access      the public calls     store       the value store, its work shared
//! blob_writer streams in           writing     a block on its way into a file
//! blob_reader streams out          block       a block, read and verified
//! space       what is where        chunks      what lives in which chunk, and the sections
//! options     and their bytes      format      chunk files and handles
//! ```

mod access;
mod blob_reader;
mod blob_writer;
mod block;
mod chunks;
mod copying;
mod format;
#[cfg(test)]
mod golden;
mod options;
mod shared;
mod space;
mod store;
mod writing;

pub use access::{
    BlobStat, existing_store_of, get_into, get_range, open_blob, put_stream, stat_blob, store_of,
};
pub use blob_reader::BlobReader;
pub use blob_writer::{BlobWriter, PendingBlob};
pub use block::Parallelism;
pub use options::LargeValueOptions;
pub use space::{ChunkInfo, LargeStats, Space};
pub use store::{LargeStore, LargeValues};
