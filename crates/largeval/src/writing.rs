//! [`BlockWriter`]: a block on its way into a chunk file, a piece at a time.
//!
//! A chunk file has one writer at a time. Whoever writes takes it out of the store's pool and gives
//! it back behind a whole block; a writer that fails is never used again, because the place of what
//! it would append is in doubt.

use std::sync::Arc;

use lsm_core::codec::{checksum64, put_u64};
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::fs::File;
use lsm_core::hooks::{ChunkId, PendingHandle};

use crate::format::{CHUNK_HEADER_BYTES, Handle, block_front, root_of};
use crate::shared::Shared;

/// The store hears of what was appended at least this often, in bytes.
const NOTED_BYTES: u64 = 4 << 20;

/// A chunk file that takes blocks.
pub struct ChunkWriter {
    pub chunk: ChunkId,
    pub file: Arc<dyn File>,
    /// Length of the file, in bytes.
    pub end: u64,
    /// It takes no more blocks.
    pub is_full: bool,
    /// The bytes that the store was not told of yet.
    unnoted: u64,
}

impl ChunkWriter {
    /// Of an empty file; its header is appended at once.
    pub fn new(chunk: ChunkId, file: Arc<dyn File>, header: &[u8]) -> Result<ChunkWriter> {
        file.append(header)?;
        let end = CHUNK_HEADER_BYTES;
        Ok(ChunkWriter { chunk, file, end, is_full: false, unnoted: end })
    }

    fn append(&mut self, shared: &Shared, bytes: &[u8]) -> Result<()> {
        self.file.append(bytes)?;
        self.end += bytes.len() as u64;
        self.unnoted += bytes.len() as u64;
        if self.unnoted >= NOTED_BYTES {
            self.note(shared)?;
        }
        Ok(())
    }

    /// Tells the store how much was appended.
    fn note(&mut self, shared: &Shared) -> Result<()> {
        let bytes = std::mem::take(&mut self.unnoted);
        shared.note_appended(self.chunk, &self.file, bytes)
    }
}

/// See the module.
pub struct BlockWriter {
    shared: Arc<Shared>,
    /// Taken out at the end, and after a failure.
    writer: Option<ChunkWriter>,
    handle: Handle,
    /// Checksums of the sub-blocks that were appended, bound to no place.
    sums: Vec<u64>,
    /// The begin of a sub-block.
    buffer: Vec<u8>,
    is_failed: bool,
}

impl BlockWriter {
    /// Begins a block for `key`, a stored key.
    pub fn new(
        shared: &Arc<Shared>,
        mut writer: ChunkWriter,
        key: &[u8],
        sub_block_log2: u8,
        stored_us: u64,
    ) -> Result<BlockWriter> {
        let handle = Handle {
            chunk: writer.chunk,
            offset: writer.end,
            key_len: key.len() as u32,
            sub_block_log2,
            len: 0,
            stored_us,
            root: 0,
        };
        // The front has no length of the value, which is known only at its end.
        let appended = writer.append(shared, &block_front(&handle, key));
        let mut block = BlockWriter {
            shared: shared.clone(),
            writer: Some(writer),
            handle,
            sums: Vec::new(),
            buffer: Vec::new(),
            is_failed: appended.is_err(),
        };
        match appended {
            Ok(()) => Ok(block),
            Err(error) => {
                block.give_up();
                Err(error)
            }
        }
    }

    /// Bytes of the value so far.
    pub fn len(&self) -> u64 {
        self.handle.len
    }

    /// Appends to the value. After an error nothing comes of the block.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        let size = self.handle.sub_block_bytes() as usize;
        self.handle.len += bytes.len() as u64;
        while !bytes.is_empty() {
            // A whole sub-block goes to the file without a copy.
            if self.buffer.is_empty() && bytes.len() >= size {
                let (piece, rest) = bytes.split_at(size);
                self.sub_block(piece)?;
                bytes = rest;
                continue;
            }
            let (piece, rest) = bytes.split_at(bytes.len().min(size - self.buffer.len()));
            self.buffer.extend_from_slice(piece);
            bytes = rest;
            if self.buffer.len() == size {
                self.flush_buffer()?;
            }
        }
        Ok(())
    }

    fn flush_buffer(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = if buffer.is_empty() { Ok(()) } else { self.sub_block(&buffer) };
        buffer.clear();
        self.buffer = buffer;
        result
    }

    fn sub_block(&mut self, piece: &[u8]) -> Result<()> {
        self.sums.push(checksum64(piece));
        self.append(piece)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(writer) = self.writer.as_mut().filter(|_| !self.is_failed) else {
            return Err(Error::new(ErrorKind::Io, "an earlier write of this value failed"));
        };
        let appended = writer.append(&self.shared, bytes);
        self.is_failed = appended.is_err();
        appended
    }

    /// Ends the block; its handle, pending.
    pub fn finish(mut self) -> Result<(PendingHandle, ChunkWriter)> {
        self.flush_buffer()?;
        self.handle.root = root_of(self.handle.len, &self.sums);
        let binding = self.handle.binding();
        let mut sums = Vec::with_capacity(8 * self.sums.len());
        for (index, sum) in self.sums.iter().enumerate() {
            put_u64(&mut sums, binding.apply(*sum, index as u64));
        }
        self.append(&sums)?;
        let noted = self.writer.as_mut().map_or(Ok(()), |writer| writer.note(&self.shared));
        self.is_failed = noted.is_err();
        noted?;
        let writer = self.writer.take().expect("only the end takes it");
        debug_assert_eq!(writer.end, self.handle.end());
        Ok((self.shared.pending(self.handle), writer))
    }

    /// Lets the block go: what was written of it is garbage.
    fn give_up(&mut self) {
        if let Some(writer) = self.writer.take() {
            let whole = (!self.is_failed).then_some(writer);
            self.shared.block_given_up(self.handle.chunk, whole);
        }
    }
}

impl Drop for BlockWriter {
    fn drop(&mut self) {
        self.give_up();
    }
}
