//! [`Block`]: a value in a chunk file, read and verified.
//!
//! Everything that is returned was verified before: the whole value by its root hash, a part of it
//! by the checksums of its sub-blocks, which the root hash covers.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use lsm_core::codec::checksum64;
use lsm_core::error::{Error, Result};
use lsm_core::fs::File;
use lsm_core::threads;
use lsm_core::zstandard::lacks_zstd;

use crate::format::{BLOCK_HEADER_BYTES, Form, Handle, key_of_front};
use crate::packing::{SubBlockCodec, unpack};
use crate::sub_blocks::{Place, SubBlocks};

/// From this length on a value is read by several threads, if the machine has them.
const PARALLEL_BYTES_MIN: u64 = 32 << 20;
/// As [`PARALLEL_BYTES_MIN`], for a value that is decompressed, which takes the processor longer.
const PARALLEL_UNPACKED_BYTES_MIN: u64 = 8 << 20;
/// More threads than this gain nothing: the memory is the limit.
const PARALLEL_THREADS_MAX: usize = 4;
/// At most so many bytes of a value that are not in memory are prefetched at once. A longer read is
/// left to the system, which reads ahead in larger pieces, until so much of it is left.
pub const PREFETCH_BYTES_MAX: u64 = 8 << 20;

/// The threads that read a value at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parallelism {
    /// One for small values, several for large ones.
    #[default]
    Auto,
    /// So many, whatever the length; at least one.
    Threads(usize),
}

impl Parallelism {
    /// The threads that read `len` bytes that are stored as they are.
    fn threads(self, len: u64) -> usize {
        self.threads_from(PARALLEL_BYTES_MIN, len)
    }

    /// The threads that read and decompress a value of `len` bytes.
    fn threads_to_unpack(self, len: u64) -> usize {
        self.threads_from(PARALLEL_UNPACKED_BYTES_MIN, len)
    }

    /// The threads for `len` bytes if several are worth it from `parallel_min` bytes on.
    fn threads_from(self, parallel_min: u64, len: u64) -> usize {
        match self {
            Parallelism::Threads(count) => count.max(1),
            Parallelism::Auto if len < parallel_min => 1,
            Parallelism::Auto => {
                let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
                cores.min(PARALLEL_THREADS_MAX)
            }
        }
    }
}

/// The source of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteSource {
    /// Any cache.
    Cached,
    /// The device, past every cache if the system allows it.
    Device,
}

/// The choice of a walk to decompress what it reads, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpacks {
    /// It also finds bytes that no reader can decompress.
    Yes,
    /// It compares checksums alone.
    No,
}

/// A value and the file that it lies in.
#[derive(Clone)]
pub struct Block {
    pub file: Arc<dyn File>,
    /// For errors.
    pub path: Arc<Path>,
    pub handle: Handle,
    pub source: ByteSource,
}

/// Sub-blocks from `first` on, as they are stored, to be read by one thread.
struct Share<'a> {
    first: u64,
    buf: &'a mut [u8],
    /// Receives the checksums of what was read.
    sums: &'a mut [u64],
}

impl Block {
    fn corruption(&self, offset: u64, what: &str) -> Error {
        Error::corruption(&*self.path, offset, what)
    }

    /// The length of the file.
    ///
    /// # Errors
    /// Corruption: it ends inside the block.
    pub fn file_bytes(&self) -> Result<u64> {
        let bytes = self.file.len()?;
        if self.handle.end() > bytes {
            return Err(self.corruption(self.handle.offset, "a chunk file ends inside a value"));
        }
        Ok(bytes)
    }

    /// Fills `buf` from `offset` of the file.
    fn fill(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let got = match self.source {
            ByteSource::Cached => self.file.read_at(offset, buf)?,
            ByteSource::Device => self.file.read_at_uncached(offset, buf)?,
        };
        // The value was complete before its handle was given out.
        if got < buf.len() {
            return Err(self.corruption(offset + got as u64, "a chunk file ends inside a value"));
        }
        Ok(())
    }

    /// As [`Block::fill`], for a reader that reads on until `end`. The part of that range that is
    /// not in the system's cache is read ahead, and no more.
    ///
    /// Without that, the reader waits for the device at each sub-block, and the system takes the
    /// second one for the begin of a longer walk and reads megabytes after the value.
    fn fill_until(&self, end: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        let is_last = offset + buf.len() as u64 >= end;
        let is_long = end - offset > PREFETCH_BYTES_MAX;
        if is_last || is_long || self.source == ByteSource::Device {
            return self.fill(offset, buf);
        }
        let got = self.file.read_cached_at(offset, buf)?;
        if got == buf.len() {
            return Ok(());
        }
        let at = offset + got as u64;
        self.file.prefetch(at, end - at);
        self.fill(at, &mut buf[got..])
    }

    /// Reads sub-blocks from `first` on into `buf`, which begins and ends where sub-blocks do, and
    /// sums each.
    fn read_sub_blocks(&self, first: u64, buf: &mut [u8], sums: &mut [u64]) -> Result<()> {
        let size = self.handle.sub_block_bytes();
        let mut at = self.handle.value_offset() + first * size;
        let end = at + buf.len() as u64;
        for (piece, sum) in buf.chunks_mut(size as usize).zip(sums) {
            self.fill_until(end, at, piece)?;
            *sum = checksum64(piece);
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// The table of the sub-blocks, verified by the root hash.
    pub fn sub_blocks(&self) -> Result<SubBlocks> {
        let handle = &self.handle;
        // The handle is not trusted for an allocation: the file must be that long.
        self.file_bytes()?;
        let mut bytes = vec![0; (handle.sub_block_count() * handle.entry_bytes()) as usize];
        self.fill(handle.table_offset(), &mut bytes)?;
        SubBlocks::decode(handle, &bytes)
            .map_err(|malformed| self.corruption(handle.table_offset(), malformed.what))
    }

    /// Reads the whole value into `buf`, which is as long.
    pub fn read_whole(&self, buf: &mut [u8], parallelism: Parallelism) -> Result<()> {
        let handle = &self.handle;
        assert_eq!(buf.len() as u64, handle.len, "the caller knows the length");
        if !handle.is_stored_as_given() {
            return self.read_compressed(buf, parallelism);
        }
        let mut sums = vec![0; handle.sub_block_count() as usize];
        let share = sums.len().div_ceil(parallelism.threads(handle.len)).max(1);
        // On this thread: starting another costs more than reading a small value.
        if share >= sums.len() {
            self.read_sub_blocks(0, buf, &mut sums)?;
        } else {
            let share_bytes = share * handle.sub_block_bytes() as usize;
            let shares = buf.chunks_mut(share_bytes).zip(sums.chunks_mut(share)).enumerate();
            let shares = shares.map(|(part, (buf, sums))| {
                let first = (part * share) as u64;
                Share { first, buf, sums }
            });
            each_share(shares.collect(), |Share { first, buf, sums }| {
                self.read_sub_blocks(first, buf, sums)
            })?;
        }
        self.check_as_given(sums)
    }

    /// Compares the checksums of an uncompressed value with its root hash. The root hash alone
    /// decides: the table is read only to name the damaged sub-block.
    fn check_as_given(&self, sums: Vec<u64>) -> Result<()> {
        let handle = &self.handle;
        let found = SubBlocks::as_given(handle, sums);
        if found.root_of(handle.len) == handle.root {
            return Ok(());
        }
        Err(self.blame(found.sums()))
    }

    /// Reads a whole value with compressed sub-blocks.
    fn read_compressed(&self, buf: &mut [u8], parallelism: Parallelism) -> Result<()> {
        let handle = &self.handle;
        let count = handle.sub_block_count() as usize;
        if count == 1 {
            return self.read_only_sub_block(buf);
        }
        let table = self.sub_blocks()?;
        let share = count.div_ceil(parallelism.threads_to_unpack(handle.len)).max(1);
        if share >= count {
            return self.read_range(0, buf, &table);
        }
        let share_bytes = share * handle.sub_block_bytes() as usize;
        let shares = buf.chunks_mut(share_bytes).enumerate();
        each_share(shares.collect(), |(part, buf)| {
            self.read_range((part * share_bytes) as u64, buf, &table)
        })
    }

    /// Reads a value of one sub-block, which is compressed. The handle has its stored length, so its table is
    /// not read.
    fn read_only_sub_block(&self, buf: &mut [u8]) -> Result<()> {
        let handle = &self.handle;
        let mut packed = vec![0; handle.stored_len() as usize];
        self.fill(handle.value_offset(), &mut packed)?;
        let mut found = SubBlocks::default();
        found.push(handle.form, checksum64(&packed), packed.len());
        if found.root_of(handle.len) != handle.root {
            return Err(self.blame(found.sums()));
        }
        self.unpack(handle.value_offset(), &packed, buf)
    }

    /// Decompresses a verified sub-block.
    fn unpack(&self, offset: u64, packed: &[u8], target: &mut [u8]) -> Result<()> {
        let codec = match self.handle.form {
            Form::Compressed { codec, .. } => codec,
            // Such a value has no compressed sub-block.
            Form::Plain => SubBlockCodec::Lz4,
        };
        if !codec.is_built_in() {
            return Err(lacks_zstd(&*self.path, "a large value is compressed"));
        }
        if unpack(codec, packed, target) {
            return Ok(());
        }
        Err(self.corruption(offset, "a sub-block of a value cannot be decompressed"))
    }

    /// Verifies the bytes of the whole value, which is stored uncompressed.
    ///
    /// # Errors
    /// Corruption.
    pub fn verify_whole(&self, value: &[u8]) -> Result<()> {
        let sub_blocks = value.chunks(self.handle.sub_block_bytes() as usize);
        self.check_as_given(sub_blocks.map(checksum64).collect())
    }

    /// The error of a value whose stored sub-blocks have these checksums, at least one of them
    /// wrong.
    fn blame(&self, found: &[u64]) -> Error {
        let table = match self.sub_blocks() {
            Ok(table) => table,
            Err(error) => return error,
        };
        // If none differs, the bytes changed between two reads: the error names the first.
        let first = found.iter().zip(table.sums()).position(|(found, sum)| found != sum);
        let place = table.place(&self.handle, first.unwrap_or(0) as u64);
        self.corruption(place.offset, "a sub-block of a value does not agree with its checksum")
    }

    /// Reads the stored bytes of a sub-block into `buf`, which is as long, and verifies them. The
    /// reader reads on until `end`.
    pub fn read_stored(&self, place: &Place, end: u64, buf: &mut [u8]) -> Result<()> {
        self.fill_until(end, place.offset, buf)?;
        if checksum64(buf) != place.sum {
            let what = "a sub-block of a value does not agree with its checksum";
            return Err(self.corruption(place.offset, what));
        }
        Ok(())
    }

    /// Starts to read about those bytes from the device that a reader of the first `len` bytes of
    /// the value needs.
    pub fn prefetch(&self, len: u64) {
        let handle = &self.handle;
        let start = handle.value_offset();
        // The table of several compressed sub-blocks lies after all of them, and is read first.
        let has_table = !handle.is_stored_as_given() && handle.sub_block_count() > 1;
        // Not beyond the stored length: another value follows.
        if len < handle.stored_len() {
            self.file.prefetch(start, len);
            if has_table {
                self.file.prefetch(handle.table_offset(), handle.end() - handle.table_offset());
            }
        } else {
            let end = if has_table { handle.end() } else { handle.table_offset() };
            self.file.prefetch(start, end - start);
        }
    }

    /// Reads a whole sub-block into `buf`; `packed` is room for its compressed form. The reader reads on until
    /// `end`.
    fn read_sub_block(
        &self,
        place: &Place,
        end: u64,
        buf: &mut [u8],
        packed: &mut Vec<u8>,
    ) -> Result<()> {
        if !place.is_compressed() {
            return self.read_stored(place, end, buf);
        }
        packed.resize(place.stored_len, 0);
        self.read_stored(place, end, packed)?;
        self.unpack(place.offset, packed, buf)
    }

    /// Reads `buf.len()` bytes from `offset` of the value, with the table that
    /// [`Block::sub_blocks`] returned. Whole sub-blocks are read directly into `buf`; others are
    /// read whole for their checksum.
    pub fn read_range(&self, offset: u64, buf: &mut [u8], table: &SubBlocks) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let size = self.handle.sub_block_bytes();
        let last = table.place(&self.handle, (offset + buf.len() as u64 - 1) / size);
        let end = last.offset + last.stored_len as u64;
        let mut packed = Vec::new();
        let mut scratch = Vec::new();
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let index = at / size;
            let place = table.place(&self.handle, index);
            let skip = (at - index * size) as usize;
            let wanted = (place.len - skip).min(rest.len());
            let (piece, after) = rest.split_at_mut(wanted);
            // Into the buffer of the caller, without a copy. A part of a sub-block cannot be
            // verified by itself.
            if wanted == place.len {
                self.read_sub_block(&place, end, piece, &mut packed)?;
            } else {
                scratch.resize(place.len, 0);
                self.read_sub_block(&place, end, &mut scratch, &mut packed)?;
                piece.copy_from_slice(&scratch[skip..skip + wanted]);
            }
            at += wanted as u64;
            rest = after;
        }
        Ok(())
    }

    /// Reads all of the block, a sub-block at a time, and decompresses it if `unpacks`. `each` gets
    /// the stored length of each sub-block. Returns the key.
    ///
    /// # Errors
    /// Corruption of any byte of the block; those of `each`.
    pub fn walk(
        &self,
        unpacks: Unpacks,
        mut each: impl FnMut(u64) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let handle = &self.handle;
        self.file_bytes()?;
        // After the check: the length of the key in a damaged handle may be up to 4 GiB.
        let mut front = vec![0; BLOCK_HEADER_BYTES as usize + handle.key_len as usize];
        self.fill(handle.offset, &mut front)?;
        let key = key_of_front(handle, &front)
            .map_err(|malformed| self.corruption(handle.offset, malformed.what))?;
        let table = self.sub_blocks()?;
        let mut packed = Vec::new();
        // One sub-block at a time. A value may be larger than memory, and a verification must read
        // it all the same.
        let mut sub_block = vec![0; handle.sub_block_bytes().min(handle.len) as usize];
        let end = handle.table_offset();
        for index in 0..handle.sub_block_count() {
            let place = table.place(handle, index);
            match unpacks {
                Unpacks::Yes => {
                    self.read_sub_block(&place, end, &mut sub_block[..place.len], &mut packed)?;
                }
                Unpacks::No => {
                    self.read_stored(&place, end, &mut sub_block[..place.stored_len])?;
                }
            }
            each(place.stored_len as u64)?;
        }
        Ok(key.to_vec())
    }
}

/// Calls `read` for each of the shares, with as many threads as there are shares.
fn each_share<S: Send>(shares: Vec<S>, read: impl Fn(S) -> Result<()> + Sync) -> Result<()> {
    threads::for_each("siltstone-value", shares.len(), shares, read)
}

#[cfg(test)]
mod tests;
