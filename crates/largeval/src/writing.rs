//! [`BlockWriter`]: a block that is written to a chunk file a piece at a time.
//!
//! Its writer comes from the store's pool of idle ones, or is that of a new file.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lsm_core::codec::checksum64;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::{ChunkChange, PendingHandle};
use lsm_core::options::Compression;
use lsm_core::zstandard::lacks_zstd;

use crate::chunk_writer::ChunkWriter;
use crate::format::{CHUNK_HEADER_BYTES, Form, Handle, block_front, chunk_header};
use crate::packing::{SubBlockCodec, SubBlockPacker};
use crate::shared::{OWN_CHUNK_SHARE, Shared};
use crate::sub_blocks::SubBlocks;

/// Appended bytes are reported to the store at least this often, in bytes.
const NOTED_BYTES: u64 = 4 << 20;
/// So many bytes of a value in memory are summed and appended at a time, and a sub-block at least.
/// Puts of 1 MB in pieces of 256 KiB take a fifth more time, because the kernel makes smaller
/// pages; pieces of 4 MiB leave the processor's cache between the sum and the append.
const PIECE_BYTES: usize = 1 << 20;
/// A block from this length on has its space reserved before it is written: the kernel copies into
/// reserved space nearly twice as fast (ext4). A synced put of a shorter one would become slower.
const RESERVED_BYTES_MIN: u64 = 512 << 10;

/// A block that is all there.
pub struct FinishedBlock {
    /// Its handle.
    pub pending: PendingHandle,
    /// The writer of its file, for the next block.
    pub writer: ChunkWriter,
    /// Length of the value as it is stored, in bytes.
    pub stored_len: u64,
}

/// A block that is being written.
pub struct BlockWriter {
    shared: Arc<Shared>,
    /// Taken out at the end, and after a failure.
    writer: Option<ChunkWriter>,
    handle: Handle,
    /// The header and the key, until they are appended with the first bytes of the value.
    front: Vec<u8>,
    /// The sub-blocks that were appended.
    table: SubBlocks,
    /// For a value that is compressed here. A value that is moved has its stored form already.
    packer: Option<Box<SubBlockPacker>>,
    /// The begin of a sub-block.
    buffer: Vec<u8>,
    is_failed: bool,
}

impl BlockWriter {
    /// Begins a block for `key`, a stored key, of a value in `form`.
    pub fn new(
        shared: &Arc<Shared>,
        writer: ChunkWriter,
        key: &[u8],
        sub_block_log2: u8,
        stored_us: u64,
        form: Form,
    ) -> BlockWriter {
        let handle = Handle {
            chunk: writer.chunk,
            offset: writer.end,
            key_len: key.len() as u32,
            sub_block_log2,
            len: 0,
            stored_us,
            root: 0,
            form,
        };
        BlockWriter {
            shared: shared.clone(),
            writer: Some(writer),
            handle,
            // It has no length of the value, which is known only at its end.
            front: block_front(&handle, key),
            table: SubBlocks::default(),
            packer: None,
            buffer: Vec::new(),
            is_failed: false,
        }
    }

    /// Compresses the bytes of later pushes and puts.
    pub fn compressing(mut self, codec: SubBlockCodec) -> BlockWriter {
        debug_assert!(self.handle.form != Form::Plain, "the table has the stored lengths");
        self.packer = Some(Box::new(SubBlockPacker::new(codec)));
        self
    }

    /// Bytes of the value so far.
    pub fn len(&self) -> u64 {
        self.handle.len
    }

    /// Appends to the value. After an error the block is abandoned.
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
        self.append_packed(piece, |_| Vec::new())
    }

    /// Appends a sub-block of `len` bytes that is in its stored form already, and verified.
    pub fn push_stored(&mut self, stored: &[u8], len: usize) -> Result<()> {
        debug_assert!(self.packer.is_none() && self.buffer.is_empty());
        self.handle.len += len as u64;
        self.table.push(self.handle.form, checksum64(stored), stored.len());
        self.append(stored, &[])
    }

    /// Appends whole sub-blocks, or the last ones of the value, in their stored form. After them it
    /// appends the bytes that `end` returns once the sub-blocks are in the table.
    fn append_packed(
        &mut self,
        piece: &[u8],
        end: impl FnOnce(&mut Self) -> Vec<u8>,
    ) -> Result<()> {
        let size = self.handle.sub_block_bytes() as usize;
        let form = self.handle.form;
        // Taken out, because the block appends its borrowed result.
        let mut packer = self.packer.take();
        let table = &mut self.table;
        let stored = match &mut packer {
            Some(packer) => packer.pack(piece, size, |stored| {
                table.push(form, checksum64(stored), stored.len());
            }),
            None => {
                for sub_block in piece.chunks(size) {
                    table.push(form, checksum64(sub_block), sub_block.len());
                }
                piece
            }
        };
        let end = end(self);
        let appended = self.append(stored, &end);
        self.packer = packer;
        appended
    }

    fn append(&mut self, bytes: &[u8], after: &[u8]) -> Result<()> {
        let Some(writer) = self.writer.as_mut().filter(|_| !self.is_failed) else {
            return Err(Error::new(ErrorKind::Io, "an earlier write of this value failed"));
        };
        // One call for all of them: a call for 60 bytes costs as much as one for 4 KiB.
        let appended = self.shared.append(writer, &[&self.front, bytes, after]);
        self.front.clear();
        self.is_failed = appended.is_err();
        if !self.is_failed {
            writer.begin_sync(writer.end - self.handle.offset);
            self.shared.state.lock().chunks.note_written(&self.handle, writer.end);
        }
        appended
    }

    /// Ends the block with a value that is in memory as a whole; its handle, pending.
    pub fn put(mut self, value: &[u8]) -> Result<FinishedBlock> {
        debug_assert_eq!(self.handle.len, 0, "nothing was pushed");
        self.handle.len = value.len() as u64;
        // The stored length of a value that is compressed is known only at its end.
        if self.packer.is_none() {
            self.reserve(self.handle.block_bytes())?;
        }
        // Both are powers of two, so that it is a number of whole sub-blocks.
        let piece_bytes = PIECE_BYTES.max(self.handle.sub_block_bytes() as usize);
        let mut rest = value;
        // The last piece is left over: it goes to the file in one call with the table after it.
        while rest.len() > piece_bytes {
            let (piece, after) = rest.split_at(piece_bytes);
            self.sub_block(piece)?;
            rest = after;
        }
        self.end(rest)
    }

    /// Reserves the space of the block, of so many bytes, if it is long.
    pub fn reserve(&mut self, block_bytes: u64) -> Result<()> {
        if block_bytes < RESERVED_BYTES_MIN {
            return Ok(());
        }
        let end = self.handle.offset + block_bytes;
        let writer = self.writer.as_ref().expect("only the end takes it");
        let reserved = writer.file.preallocate(end);
        // It is unspecified how much of the space a file keeps after a failure, so it takes no more
        // values.
        self.is_failed = reserved.is_err();
        reserved
    }

    /// Ends the block; its handle, pending.
    pub fn finish(mut self) -> Result<FinishedBlock> {
        let last = std::mem::take(&mut self.buffer);
        self.end(&last)
    }

    /// Ends the block with the last bytes of its value.
    fn end(mut self, last: &[u8]) -> Result<FinishedBlock> {
        self.append_packed(last, BlockWriter::complete)?;
        let noted = self.writer.as_mut().map_or(Ok(()), |writer| self.shared.note(writer));
        // The store refuses bytes of a file whose sync failed. Such a file takes no more blocks.
        self.is_failed = noted.is_err();
        noted?;
        let writer = self.writer.take().expect("only the end takes it");
        debug_assert_eq!(writer.end, self.handle.end());
        let pending = self.shared.pending(self.handle);
        Ok(FinishedBlock { pending, writer, stored_len: self.handle.stored_len() })
    }

    /// Completes the handle by the table of all sub-blocks; returns the bytes of the table.
    fn complete(&mut self) -> Vec<u8> {
        if let Form::Compressed { stored_len, .. } = &mut self.handle.form {
            *stored_len = self.table.stored_len();
        }
        self.handle.root = self.table.root_of(self.handle.len);
        self.table.encode(&self.handle)
    }

    /// Abandons the block: its written part is garbage.
    fn give_up(&mut self) {
        if let Some(writer) = self.writer.take() {
            // Without a failure the length of the file is known, and the next block begins after
            // the written part of this one.
            let whole = (!self.is_failed).then_some(writer);
            self.shared.block_given_up(self.handle.chunk, whole);
        }
    }
}

impl Drop for BlockWriter {
    fn drop(&mut self) {
        // In a child process the block belongs to the parent, which continues to write it.
        if self.shared.process.is_current() {
            self.give_up();
        }
    }
}

impl Shared {
    /// Begins a block; of `len` bytes, if that is known.
    pub(crate) fn begin(self: &Arc<Self>, key: &[u8], len: Option<u64>) -> Result<BlockWriter> {
        if self.context.is_read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the database was opened read-only"));
        }
        let mut state = self.state.lock();
        let options = state.options;
        if !options.compression.is_built_in() {
            // Another build has set the partition to it.
            let what = "a large value is to be compressed";
            let error = lacks_zstd(&self.context.dir, what);
            return Err(error.in_partition(&self.context.partition_name));
        }
        // A value of unknown length may be long, so it gets a file of its own as a large one does.
        let is_own = len.is_none_or(|len| len >= options.chunk_bytes / OWN_CHUNK_SHARE);
        // The one that was returned last. So successive puts fill one file, and the other writers
        // remain for concurrent puts.
        let idle = if is_own { None } else { state.idle.pop() };
        drop(state);
        let writer = match idle {
            Some(writer) => writer,
            None => self.new_writer()?,
        };
        let log2 = options.sub_block_log2;
        let stored_us = self.now_us();
        Ok(match options.compression {
            Compression::None => BlockWriter::new(self, writer, key, log2, stored_us, Form::Plain),
            compression => {
                // `LargeValueOptions::check` has refused every other.
                let codec = if compression == Compression::Zstd {
                    SubBlockCodec::Zstd
                } else {
                    SubBlockCodec::Lz4
                };
                let form = Form::Compressed { codec, stored_len: 0 };
                BlockWriter::new(self, writer, key, log2, stored_us, form).compressing(codec)
            }
        })
    }

    pub(crate) fn new_writer(&self) -> Result<ChunkWriter> {
        let context = &self.context;
        let chunk = context.new_chunk();
        let path = context.chunk_path(chunk);
        // No number is given twice, so a file of this name belongs to no chunk, and must not be
        // appended to.
        let file = context.files.create(&path)?;
        let shared = file.shared().clone();
        let mut state = self.state.lock();
        state.syncs.note_name(chunk);
        let entry = state.chunks.by_id.entry(chunk).or_default();
        entry.is_open = true;
        entry.end = CHUNK_HEADER_BYTES;
        let closed = state.keep_open(chunk, shared);
        drop(state);
        drop(closed);
        self.counters.chunks_created.fetch_add(1, Ordering::Relaxed);
        self.context.report(chunk, ChunkChange::Created, CHUNK_HEADER_BYTES);
        // The store knows the file before its header is written, so that it removes the file if
        // that fails.
        let header = chunk_header(chunk, context.partition, context.db_id);
        let mut writer = ChunkWriter::new(chunk, file);
        let written = self.append(&mut writer, &[&header]);
        written.inspect_err(|_| self.block_given_up(chunk, None))?;
        debug_assert_eq!(writer.end, CHUNK_HEADER_BYTES);
        Ok(writer)
    }

    /// Appends to a chunk file, and reports it from time to time.
    fn append(&self, writer: &mut ChunkWriter, pieces: &[&[u8]]) -> Result<()> {
        writer.append(pieces)?;
        // A file that waits for a sync stays open, also that of an idle stream.
        if writer.unnoted >= NOTED_BYTES || self.context.files.is_crowded() {
            self.note(writer)?;
        }
        Ok(())
    }

    /// Reports to the syncs how much was appended.
    fn note(&self, writer: &mut ChunkWriter) -> Result<()> {
        let bytes = std::mem::take(&mut writer.unnoted);
        self.note_appended(writer.chunk, &writer.file, bytes)
    }
}
