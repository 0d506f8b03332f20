//! [`ReadAhead`]: pieces of a table's file, each read at once and handed out block by block.
//!
//! Used by the streaming cursors and by verification. Both read forward and bypass the block cache.

use super::reader::SstReader;
use super::stored::{Access, Extent};
use crate::error::Result;

/// Bytes that a streaming cursor reads at once.
pub(super) const READ_AHEAD_BYTES: u64 = 256 << 10;

/// The way in which a cursor reads blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// One by one, through the block cache.
    Cached,
    /// Many at once, forward, without looking into the cache or filling it.
    Streaming,
}

/// A piece of the file that was read in one go.
pub(super) struct ReadAhead {
    access: Access,
    /// Bytes to read at once, at least.
    most: u64,
    bytes: Vec<u8>,
    /// Offset of the piece in the file.
    offset: u64,
}

impl ReadAhead {
    /// Returns an empty buffer.
    pub(super) fn new(access: Access, most: u64) -> ReadAhead {
        ReadAhead { access, most, bytes: Vec::new(), offset: 0 }
    }

    /// The stored block at `extent`, read together with what follows it if it is not here.
    pub(super) fn stored(&mut self, reader: &SstReader, extent: Extent) -> Result<&[u8]> {
        let source = reader.source();
        let len = source.checked_len(extent)?;
        let have = extent.offset.checked_sub(self.offset);
        let start = match have.and_then(|start| usize::try_from(start).ok()) {
            Some(start) if start.checked_add(len).is_some_and(|end| end <= self.bytes.len()) => {
                start
            }
            _ => {
                self.fill(reader, extent)?;
                0
            }
        };
        Ok(&self.bytes[start..start + len])
    }

    /// Reads a piece that begins with the block at `extent`.
    fn fill(&mut self, reader: &SstReader, extent: Extent) -> Result<()> {
        let source = reader.source();
        // Up to the end of the data: what comes after it a walk does not read.
        let data_end = reader.properties().data_bytes.clamp(extent.end(), source.file_bytes);
        // At least the block itself: a large value may be longer than the read-ahead.
        let most = self.most.max(extent.len).min(data_end - extent.offset);
        // The old bytes are void from now on, also if the read fails.
        let mut bytes = std::mem::take(&mut self.bytes);
        self.offset = extent.offset;
        // All of it is written over: only what it grows by is cleared.
        bytes.resize(usize::try_from(most).expect("at most a block or the read-ahead"), 0);
        source.read_exact(self.access, extent.offset, &mut bytes)?;
        self.bytes = bytes;
        Ok(())
    }
}
