//! [`BlobReader`]: a reader of parts of a value, which verifies each part before it returns it.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::read::ReadPoint;
use lsm_core::types::Slice;

use crate::block::{Block, Parallelism};
use crate::sub_blocks::SubBlocks;

/// A reader of the value of a key as of the creation of the reader. Later writes and deletes do not
/// affect it. Cheap to clone; each clone has its own position.
///
/// # Cost
/// Memory for one sub-block and for the checksums of the value, 8 bytes per sub-block; of a compressed value
/// for two sub-blocks, and 20 bytes per sub-block. The space of values that were deleted since is reclaimed
/// after the reader is dropped.
#[derive(Clone)]
pub struct BlobReader {
    value: ReadValue,
    position: u64,
    /// The verified sub-block from which small reads are served, and its offset.
    buffer: Vec<u8>,
    buffer_at: u64,
}

#[derive(Clone)]
enum ReadValue {
    Small(Slice),
    Large {
        block: Block,
        table: Arc<SubBlocks>,
        /// Keeps the value where it is.
        _point: ReadPoint,
    },
}

impl BlobReader {
    pub(crate) fn small(value: Slice) -> BlobReader {
        BlobReader { value: ReadValue::Small(value), position: 0, buffer: Vec::new(), buffer_at: 0 }
    }

    pub(crate) fn large(block: Block, point: ReadPoint) -> Result<BlobReader> {
        // At the open: without its table a value cannot be read in parts, and the caller should
        // know before it has passed on the first of them.
        let table = Arc::new(block.sub_blocks()?);
        let value = ReadValue::Large { block, table, _point: point };
        Ok(BlobReader { value, position: 0, buffer: Vec::new(), buffer_at: 0 })
    }

    /// Returns the length of the value, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> u64 {
        match &self.value {
            ReadValue::Small(value) => value.len() as u64,
            ReadValue::Large { block, .. } => block.handle.len,
        }
    }

    /// Returns the root hash of the value, if it is in a chunk file: XXH3-128 of its length and of the checksums of its stored
    /// bytes. Readers of one key with equal root hashes have the same value, also in another process, and after the value has
    /// moved. `None` for a value in a table.
    pub fn root_hash(&self) -> Option<u128> {
        match &self.value {
            ReadValue::Small(_) => None,
            ReadValue::Large { block, .. } => Some(block.handle.root),
        }
    }

    /// Fills `buf` with the bytes from `offset`; the position stays.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if the value is shorter; corruption that names file and offset.
    ///
    /// # Cost
    /// Reads and verifies the sub-blocks that overlap the bytes.
    pub fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if end > self.len() {
            return Err(Error::limit("end of a range", end, self.len()));
        }
        match &self.value {
            ReadValue::Small(value) => buf.copy_from_slice(&value[offset as usize..end as usize]),
            ReadValue::Large { block, table, .. } => block.read_range(offset, buf, table)?,
        }
        Ok(())
    }

    /// Fills `buf`, which is as long as the value, with the threads of `parallelism`: each reads
    /// and verifies an even share.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it is not as long; those of
    /// [`BlobReader::read_exact_at`].
    pub fn read_whole(&self, buf: &mut [u8], parallelism: Parallelism) -> Result<()> {
        if buf.len() as u64 != self.len() {
            let message = format!("a buffer of {} bytes for {}", buf.len(), self.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        match &self.value {
            ReadValue::Small(value) => buf.copy_from_slice(value),
            ReadValue::Large { block, .. } => block.read_whole(buf, parallelism)?,
        }
        Ok(())
    }

    fn read_large(&mut self, buf: &mut [u8]) -> Result<usize> {
        let ReadValue::Large { block, table, .. } = &self.value else { return Ok(0) };
        let handle = block.handle;
        let left = (handle.len - self.position).min(buf.len() as u64) as usize;
        if left == 0 {
            return Ok(0);
        }
        let size = handle.sub_block_bytes();
        let start = self.position / size * size;
        let sub_block = (handle.len - start).min(size) as usize;
        // Large reads pass the buffer: it would copy each byte once more.
        if self.position == start && left >= sub_block {
            block.read_range(start, &mut buf[..sub_block], table)?;
            self.position += sub_block as u64;
            return Ok(sub_block);
        }
        if self.buffer_at != start || self.buffer.len() != sub_block {
            // No byte of it counts before it is verified.
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.resize(sub_block, 0);
            block.read_range(start, &mut buffer, table)?;
            self.buffer = buffer;
            self.buffer_at = start;
        }
        let from = (self.position - start) as usize;
        let len = left.min(sub_block - from);
        buf[..len].copy_from_slice(&self.buffer[from..from + len]);
        self.position += len as u64;
        Ok(len)
    }
}

impl Read for BlobReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.len() {
            return Ok(0);
        }
        if let ReadValue::Small(value) = &self.value {
            let from = &value[self.position as usize..];
            let len = from.len().min(buf.len());
            buf[..len].copy_from_slice(&from[..len]);
            self.position += len as u64;
            return Ok(len);
        }
        Ok(self.read_large(buf)?)
    }
}

impl Seek for BlobReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            // Also after the end, as in a file. A read there returns nothing.
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.len().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a seek before the beginning");
        self.position = position.ok_or_else(before)?;
        Ok(self.position)
    }
}

impl fmt::Debug for BlobReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reader = f.debug_struct("BlobReader");
        reader.field("len", &self.len()).field("position", &self.position).finish_non_exhaustive()
    }
}
