//! [`MappedBlocks`]: the data blocks of a table, as a mapping of its file has them.
//!
//! A point read searches a mapped block where it lies (`unparsed_seek.rs`), and a cursor goes through it there
//! (`unparsed.rs`): no system call, no copy, and no place in the block cache. The system decides what stays in
//! memory. Used by [`SstReader`](super::SstReader), if
//! [`Options::tables_mapped`](crate::options::Options::tables_mapped) asks for it; everything else, compactions and
//! verification above all, reads the file. Where the whole block is wanted, it is copied and parsed.
//!
//! The checksum of a block is verified at its first read, and at each copy. To verify it at each read
//! would take a third of a point read: it fetches all lines of the block, and a search needs a few.
//!
//! Invariant: a block is marked only after its checksum has agreed and it was found to be stored as it is, not
//! compressed.

use std::sync::atomic::{AtomicU64, Ordering};

use super::compression::CompressionKind;
use super::stored::{Extent, StoredPayload, TRAILER_BYTES, TableSource, copied};
use crate::error::Result;
use crate::fs::MappedBytes;
use crate::memory::prefetch;

/// The data blocks of a table in a mapping, and which of them are verified.
pub(super) struct MappedBlocks {
    /// The file up to the end of its data blocks.
    bytes: MappedBytes,
    /// A bit for each block, by its number in the index: it was verified. Relaxed: who does not see a
    /// mark verifies once more, and no byte depends on it.
    verified: Box<[AtomicU64]>,
}

impl MappedBlocks {
    /// The `count` blocks in the first `data_bytes` of the file. `None` if the medium does not map files, or
    /// the system refuses.
    pub(super) fn of(source: &TableSource, data_bytes: u64, count: usize) -> Option<MappedBlocks> {
        let len = usize::try_from(data_bytes.min(source.file_bytes)).ok()?;
        // Not read ahead: a table may be opened for one key.
        let bytes = source.file.map(0, len)?;
        let verified = (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Some(MappedBlocks { bytes, verified })
    }

    /// The file up to the end of its data blocks.
    #[inline]
    pub(super) fn file(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// Memory of the search index, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.verified)
    }

    /// The block at `extent` as it is stored; `None` if it is none of the data blocks.
    #[inline]
    fn stored(&self, source: &TableSource, extent: Extent) -> Result<Option<&[u8]>> {
        let len = source.checked_len(extent)?;
        let start = usize::try_from(extent.offset).ok();
        Ok(start.and_then(|start| self.file().get(start..)?.get(..len)))
    }

    /// The payload of block `number`, which lies at `extent`, for a search that bears any bytes. `None` if it is
    /// compressed.
    ///
    /// # Errors
    /// `Corruption` if the block was not verified before and its checksum does not agree.
    #[inline]
    pub(super) fn payload(
        &self,
        source: &TableSource,
        number: usize,
        extent: Extent,
    ) -> Result<Option<&[u8]>> {
        let Some(stored) = self.stored(source, extent)? else { return Ok(None) };
        let payload = &stored[..stored.len() - TRAILER_BYTES];
        // A search begins at the end. The block may lie on two pages, and their addresses are looked up at the same
        // time in this way.
        prefetch(payload.as_ptr_range().end);
        prefetch(payload.as_ptr());
        let mark = 1 << (number % 64);
        let Some(word) = self.verified.get(number / 64) else { return Ok(None) };
        if word.load(Ordering::Relaxed) & mark == 0 {
            let (_, kind) = source.verify(extent.offset, stored)?;
            if kind != CompressionKind::None {
                return Ok(None);
            }
            word.fetch_or(mark, Ordering::Relaxed);
        }
        Ok(Some(payload))
    }

    /// A verified copy of the payload at `extent`, decompressed; `None` if it is none of the data blocks.
    ///
    /// # Errors
    /// `Corruption` if the checksum of the copy does not agree.
    pub(super) fn copy(
        &self,
        source: &TableSource,
        extent: Extent,
    ) -> Result<Option<StoredPayload>> {
        let Some(stored) = self.stored(source, extent)? else { return Ok(None) };
        // Copied first: what is verified cannot change any more.
        source.verified_payload(extent.offset, copied(stored)).map(Some)
    }
}
