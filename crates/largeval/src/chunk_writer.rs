//! [`ChunkWriter`]: a chunk file that takes blocks.
//!
//! A chunk file has one writer at a time. A thread that writes takes it out of the store's pool and
//! returns it after a whole block; a writer that fails is never used again, because the place of
//! its next append is unknown.

use std::sync::Arc;

use lsm_core::error::Result;
use lsm_core::fs::File;
use lsm_core::hooks::ChunkId;

/// The write to the device starts when a value is so long, and again after each further part of
/// this length: the sync at the end has less to wait for.
const BEGUN_BYTES_LONG: u64 = 4 << 20;
/// As [`BEGUN_BYTES_LONG`], for the bytes of many values. Starting takes as long as putting a value
/// of 1 MB, so few of them should wait for it.
const BEGUN_BYTES: u64 = 16 << 20;

/// A chunk file that takes blocks.
pub struct ChunkWriter {
    pub chunk: ChunkId,
    pub file: Arc<dyn File>,
    /// Length of the file, in bytes.
    pub end: u64,
    /// It takes no more blocks.
    pub is_full: bool,
    /// The bytes that were not reported to the store yet.
    pub unnoted: u64,
    /// The bytes after the last request to write to the device.
    unbegun: u64,
}

impl ChunkWriter {
    /// The writer of an empty file.
    pub fn new(chunk: ChunkId, file: Arc<dyn File>) -> ChunkWriter {
        ChunkWriter { chunk, file, end: 0, is_full: false, unnoted: 0, unbegun: 0 }
    }

    /// Appends these bytes in one call.
    pub fn append(&mut self, pieces: &[&[u8]]) -> Result<()> {
        self.file.append_pieces(pieces)?;
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        self.end += bytes;
        self.unnoted += bytes;
        self.unbegun += bytes;
        Ok(())
    }

    /// Starts the write to the device if there are enough bytes, after a block of `block` bytes so
    /// far.
    pub fn begin_sync(&mut self, block: u64) {
        let enough = if block >= BEGUN_BYTES_LONG { BEGUN_BYTES_LONG } else { BEGUN_BYTES };
        if self.unbegun >= enough {
            self.unbegun = 0;
            self.file.begin_sync();
        }
    }
}
