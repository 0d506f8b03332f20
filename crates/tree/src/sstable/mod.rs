//! Sorted tables: immutable files of entries in internal order.
//!
//! A flush or a compaction writes a table once ([`SstWriter`]). Then any number of threads read it
//! ([`SstReader`], [`SstIter`]). This folder knows no levels, no versions of the database and no
//! cache; it knows only the contract [`BlockCache`].
//!
//! ```text
//! data block*  bloom block?  index partition*  index block  properties block  footer
//! ```
//!
//! Each block is stored with its compression and a checksum (`stored.rs`). The checksum is seeded
//! with the file's unique id and the block's offset, so a block verifies only in its own place.
//! Index blocks have the format of data blocks.
//!
//! ```text
//! stored.rs, read_ahead.rs            a block in the file, and large reads
//! block.rs, block_check.rs, block_tail.rs   a block in memory, its complete check, its numbers
//! block_entry.rs                      the head and the key of an entry
//! hidden.rs, block_hidden.rs          hidden entries as bytes, and in a block
//! indexed_block.rs, block_search.rs   a block with its search index, and a key in it
//! unparsed.rs, unparsed_seek.rs       a cursor, and a key, in a block that is used once or mapped
//! index.rs, bloom.rs, footer.rs, properties.rs, tail.rs    the rest of the file
//! index_cursor.rs                     a walk along the index
//! reader.rs, reader/lookup.rs, table_block.rs   an open table, its point reads, a block for hooks
//! walk.rs, iter.rs, raw.rs, raw_entry.rs   the cursors
//! tolerant.rs, salvage.rs   reading in spite of damage
//! writer.rs, block_builder.rs         writing
//! compression.rs, stream_compressor.rs   compression; of a payload too large to be compressed at once
//! prepopulation.rs                    written blocks for the block cache
//! verify.rs, describe.rs              checking and describing a whole file
//! ```
//!
//! The entries of a compaction filter are hidden: [`SstReader::get`] and [`SstIter`] never show
//! them.
//!
//! Invariants:
//! 1. A file never changes after [`SstWriter::finish_unsynced`].
//! 2. Bytes from a file are checked completely before any of them is used: checksum first, then
//!    structure, once, when a block enters memory. A block that is used once is not checked where the
//!    search or the cursor does not come by (`unparsed_seek.rs`, `unparsed.rs`).
//! 3. A reader returns what the writer was given, or an error that names file and offset.

mod block;
mod block_builder;
mod block_check;
mod block_entry;
mod block_hidden;
mod block_search;
mod block_tail;
mod bloom;
mod compression;
#[cfg(feature = "internals")]
pub mod decoders;
mod describe;
mod footer;
mod hidden;
mod index;
mod index_cursor;
mod indexed_block;
mod iter;
mod mapped;
mod pending_file;
mod prepopulation;
mod properties;
mod raw;
mod raw_entry;
mod read_ahead;
mod reader;
mod salvage;
mod stored;
mod stream_compressor;
mod table_block;
mod tail;
mod tolerant;
mod unparsed;
mod unparsed_seek;
mod verify;
mod walk;
mod writer;
mod zstd_compressor;

#[cfg(test)]
pub(crate) mod test_file;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use block::Block;
pub use bloom::bloom_hash;
pub use describe::describe;
pub use footer::MAGIC;
pub use indexed_block::IndexedBlock;
pub use iter::{JobCheck, SstIter};
pub use prepopulation::CachePrepopulation;
pub use properties::SstProperties;
pub use raw::{RawIter, RawMode};
pub use read_ahead::ReadMode;
pub use reader::SstReader;
pub use reader::lookup::TargetBlock;
pub use salvage::{FoundTable, Salvaged, identify, salvage};
pub use table_block::{BlockCheck, EntryAt, Hidden, OpenTable, TableBlock};
pub use tolerant::{PlainRepair, TolerantIter};
pub use verify::{Expected, TableDamage, TableFindings};
pub use writer::SstWriter;

use crate::codec::checksum128;
use crate::error::Error;
use crate::options::{Compression, PartitionOptions, PrefixExtractor};
use crate::types::{DbId, Epoch, FileNo, InternalKey, SeqNo};

/// The options by which a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SstOptions {
    /// A data block is closed before it passes this many bytes; a larger entry has a block of its
    /// own. Hidden entries may lengthen it, and so may [`SstWriter::allow_cut`].
    pub block_bytes: u32,
    /// Compression of data blocks.
    pub compression: Compression,
    /// Bits of the Bloom filter per user key; 0 makes none.
    pub bloom_bits_per_key: u32,
    /// The prefixes that the Bloom filter has as well.
    pub prefix_extractor: Option<PrefixExtractor>,
}

impl SstOptions {
    /// Returns what the options of a partition say about its tables, with `compression` chosen by
    /// level.
    pub fn of(partition: &PartitionOptions, compression: Compression) -> SstOptions {
        SstOptions {
            block_bytes: partition.block_bytes,
            compression,
            bloom_bits_per_key: partition.bloom_bits_per_key,
            prefix_extractor: partition.prefix_extractor,
        }
    }
}

/// The identity of a table, which no other table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SstIdentity {
    /// The database.
    pub db_id: DbId,
    /// The file's number.
    pub file: FileNo,
    /// The epoch in which it was made.
    pub epoch: Epoch,
}

impl SstIdentity {
    /// One number for the three, the same wherever it is computed.
    pub fn unique_id(&self) -> u128 {
        let mut bytes = [0; 28];
        bytes[..16].copy_from_slice(&self.db_id.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.file.0.to_le_bytes());
        bytes[24..].copy_from_slice(&self.epoch.0.to_le_bytes());
        checksum128(&bytes)
    }
}

/// A finished table's account of itself, for the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SstSummary {
    /// The identity of the file.
    pub identity: SstIdentity,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// XXH3-128 over the checksums of all blocks.
    pub file_hash: u128,
    /// First visible key.
    pub smallest: InternalKey,
    /// Last visible key. A hidden one may lie after it, and then sorts before every visible key
    /// of the next table of its level.
    pub largest: InternalKey,
    /// Smallest sequence number.
    pub min_seq: SeqNo,
    /// Largest sequence number.
    pub max_seq: SeqNo,
    /// Entries of all kinds, hidden ones apart.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// Entries that a compaction filter added.
    pub hidden: u64,
}

/// A damaged block that a tolerant cursor met.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RawDamage {
    /// Offset of the block in the file.
    pub block_offset: u64,
    /// The defect.
    pub error: Error,
    /// The number of its entries that were handed over as suspect.
    pub suspects: u32,
    /// `true` if entries of it did not decode, or not in order, and were left out.
    pub is_lossy: bool,
    /// User keys between which those of the block lie: the first is missing at the front of the
    /// table, the last may lie after the last of them.
    pub keys: (Option<Vec<u8>>, Vec<u8>),
}

/// A place to keep parsed blocks between reads. Implemented by [`crate::cache`].
pub trait BlockCache: Send + Sync + 'static {
    /// Returns `true` if readers ask for blocks. Called when a job begins a table.
    fn is_in_use(&self) -> bool;

    /// The block of `file` at `offset`, if it is kept.
    fn get(&self, file: FileNo, offset: u64) -> Option<Arc<Block>>;

    /// Calls `look` with the block of `file` at `offset`, if it is kept; returns `false` if not.
    ///
    /// `look` runs under a lock that the insertion of another block waits for. It saves the count
    /// of references to the block, which lies in a line of memory that no processor has cached.
    fn look(&self, file: FileNo, offset: u64, look: &mut dyn FnMut(&IndexedBlock)) -> bool;

    /// Has the processor fetch the place in the map at which the block of `file` at `offset` is kept, long before
    /// the block is asked for.
    fn prefetch_place(&self, file: FileNo, offset: u64);

    /// Returns `true` if the block of `file` at `offset` is kept. It counts neither as a use nor as a hit or a miss.
    fn keeps(&self, file: FileNo, offset: u64) -> bool;

    /// Returns `true` if a block of `file` at `offset` that is not kept, and takes about `memory_bytes`, should
    /// be put in: there is room for it, or it was asked for of late and a block that is not in use has left for it.
    /// Notes that it was asked for.
    fn wants(&self, file: FileNo, offset: u64, memory_bytes: u64) -> bool;

    /// Keeps a block that was read, or a copy of it, which it returns. Others leave for it if there is no
    /// room.
    fn insert(&self, file: FileNo, offset: u64, block: Arc<Block>) -> Arc<Block>;

    /// Returns `true` if a block of `file` at `offset` that takes `memory_bytes` would be kept without
    /// another leaving.
    fn has_room(&self, file: FileNo, offset: u64, memory_bytes: u64) -> bool;

    /// Keeps a block that was written, if there is room for it.
    fn insert_where_free(&self, file: FileNo, offset: u64, block: Arc<Block>);

    /// Takes the block of `file` at `offset` out, and returns it if it was there.
    fn remove(&self, file: FileNo, offset: u64) -> Option<Arc<Block>>;
}
