//! [`BlockWriter`]: a block that is written to a chunk file a piece at a time.
//!
//! A chunk file has one writer at a time. A thread that writes takes it out of the store's pool and
//! returns it after a whole block; a writer that fails is never used again, because the place of
//! its next append is unknown.

use std::sync::Arc;

use lsm_core::codec::checksum64;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::fs::File;
use lsm_core::hooks::{ChunkId, PendingHandle};

use crate::format::{CHUNK_HEADER_BYTES, Form, Handle, block_front};
use crate::packing::SubBlockPacker;
use crate::shared::Shared;
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
    unnoted: u64,
    /// The bytes after the last request to write to the device.
    unbegun: u64,
}

impl ChunkWriter {
    /// The writer of an empty file; its header is appended at once.
    pub fn new(
        shared: &Shared,
        chunk: ChunkId,
        file: Arc<dyn File>,
        header: &[u8],
    ) -> Result<ChunkWriter> {
        let mut writer =
            ChunkWriter { chunk, file, end: 0, is_full: false, unnoted: 0, unbegun: 0 };
        writer.append(shared, &[header])?;
        debug_assert_eq!(writer.end, CHUNK_HEADER_BYTES);
        Ok(writer)
    }

    fn append(&mut self, shared: &Shared, pieces: &[&[u8]]) -> Result<()> {
        self.file.append_pieces(pieces)?;
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        self.end += bytes;
        self.unnoted += bytes;
        self.unbegun += bytes;
        // A file that waits for a sync stays open, also that of an idle stream.
        if self.unnoted >= NOTED_BYTES || shared.context.files.is_crowded() {
            self.note(shared)?;
        }
        Ok(())
    }

    /// Starts the write to the device if there are enough bytes, after a block of `block` bytes so
    /// far.
    fn begin_sync(&mut self, block: u64) {
        let enough = if block >= BEGUN_BYTES_LONG { BEGUN_BYTES_LONG } else { BEGUN_BYTES };
        if self.unbegun >= enough {
            self.unbegun = 0;
            self.file.begin_sync();
        }
    }

    /// Tells the store how much was appended.
    fn note(&mut self, shared: &Shared) -> Result<()> {
        let bytes = std::mem::take(&mut self.unnoted);
        shared.note_appended(self.chunk, &self.file, bytes)
    }
}

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
    pub fn compressing(mut self) -> BlockWriter {
        debug_assert!(self.handle.form != Form::Plain, "the table has the stored lengths");
        self.packer = Some(Box::new(SubBlockPacker::new()));
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

    fn append(&mut self, bytes: &[u8], behind: &[u8]) -> Result<()> {
        let Some(writer) = self.writer.as_mut().filter(|_| !self.is_failed) else {
            return Err(Error::new(ErrorKind::Io, "an earlier write of this value failed"));
        };
        // One call for all of them: a call for 60 bytes costs as much as one for 4 KiB.
        let appended = writer.append(&self.shared, &[&self.front, bytes, behind]);
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
            let (piece, behind) = rest.split_at(piece_bytes);
            self.sub_block(piece)?;
            rest = behind;
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
        let noted = self.writer.as_mut().map_or(Ok(()), |writer| writer.note(&self.shared));
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
        if let Form::Compressed { stored_len } = &mut self.handle.form {
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

/// The last value of the application that could not be written, with its error. An application may put only
/// large values. Then no other report shows that all of them are refused.
#[derive(Clone, Debug)]
pub(crate) struct PutRefusal {
    error: Error,
    /// Bytes that the value takes, as far as they were known.
    needs: u64,
    /// Bytes that were free then.
    free: u64,
}

impl Shared {
    /// Notes how a value of about `bytes` bytes was written.
    pub(crate) fn note_put_outcome<T>(&self, bytes: u64, outcome: &Result<T>) {
        let refusal = match outcome {
            Ok(_) => None,
            // Others concern the value, or the whole database.
            Err(error) if !matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Io) => return,
            Err(error) => {
                let free = self.free_bytes();
                Some(PutRefusal { error: error.clone(), needs: bytes, free })
            }
        };
        self.state.lock().refusal = refusal;
    }

    /// The reason why the last value was refused, unless there is room for it by now.
    pub(crate) fn present_refusal(self: &Arc<Self>) -> Option<Error> {
        let PutRefusal { error, needs, free } = self.state.lock().refusal.clone()?;
        if error.kind() != ErrorKind::NoSpace {
            return Some(error);
        }
        // More than there was, too: a quota may refuse what the disk has room for.
        (self.free_bytes() <= needs.max(free)).then_some(error)
    }
}
