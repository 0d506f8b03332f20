//! [`Block`]: a value in a chunk file, read and verified.
//!
//! Everything that is returned was verified before: the whole value by its root hash, a part of it
//! by the checksums of its sub-blocks, which the root hash vouches for.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use lsm_core::codec::checksum64;
use lsm_core::error::{Error, Result};
use lsm_core::fs::{File, MappedBytes};
use parking_lot::Mutex;

use crate::format::{BLOCK_HEADER_BYTES, Handle, SUM_BYTES, key_of_front, root_of};

/// From this length on a value is read by several threads, if the machine has them.
const PARALLEL_BYTES_MIN: u64 = 32 << 20;
/// More threads than this gain nothing: the memory is the limit.
const PARALLEL_THREADS_MAX: usize = 4;

/// The threads that read a value at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parallelism {
    /// One for small values, as many as are worth it for large ones.
    #[default]
    Auto,
    /// So many, whatever the length; at least one.
    Threads(usize),
}

impl Parallelism {
    /// The threads that read `len` bytes.
    fn threads(self, len: u64) -> usize {
        match self {
            Parallelism::Threads(count) => count.max(1),
            Parallelism::Auto if len < PARALLEL_BYTES_MIN => 1,
            Parallelism::Auto => {
                let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
                cores.min(PARALLEL_THREADS_MAX)
            }
        }
    }
}

/// The source of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Any cache.
    Cached,
    /// The device, past every cache where the system allows it.
    Device,
}

/// A value and the file that it lies in.
#[derive(Clone)]
pub struct Block {
    pub file: Arc<dyn File>,
    /// For errors.
    pub path: PathBuf,
    pub handle: Handle,
    pub source: Source,
}

/// Sub-blocks from `first` on, to be read by one thread.
struct Share<'a> {
    first: u64,
    buf: &'a mut [u8],
    sums: &'a mut [u64],
}

/// The shares that no thread has taken yet.
type Shares<'a> = Mutex<Vec<Share<'a>>>;

impl Block {
    fn corruption(&self, offset: u64, what: &str) -> Error {
        Error::corruption(&self.path, offset, what)
    }

    /// Fills `buf` from `offset` of the file.
    fn fill(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let got = match self.source {
            Source::Cached => self.file.read_at(offset, buf)?,
            Source::Device => self.file.read_at_uncached(offset, buf)?,
        };
        // The value was all there before its handle was given out.
        if got < buf.len() {
            return Err(self.corruption(offset + got as u64, "a chunk file ends inside a value"));
        }
        Ok(())
    }

    /// Reads sub-blocks from `first` on into `buf`, which begins and ends where sub-blocks do, and
    /// sums each.
    fn read_sub_blocks(&self, first: u64, buf: &mut [u8], sums: &mut [u64]) -> Result<()> {
        let size = self.handle.sub_block_bytes();
        let mut at = self.handle.value_offset() + first * size;
        for (piece, sum) in buf.chunks_mut(size as usize).zip(sums) {
            self.fill(at, piece)?;
            *sum = checksum64(piece);
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// As [`Block::read_sub_blocks`], the sub-blocks divided evenly over threads.
    fn read_divided(
        &self,
        first: u64,
        buf: &mut [u8],
        sums: &mut [u64],
        threads: usize,
    ) -> Result<()> {
        let share = sums.len().div_ceil(threads).max(1);
        if share >= sums.len() {
            return self.read_sub_blocks(first, buf, sums);
        }
        // Fewer than asked for where the sub-blocks are few: no thread is begun for nothing.
        let threads = sums.len().div_ceil(share);
        let share_bytes = share * self.handle.sub_block_bytes() as usize;
        let shares = buf.chunks_mut(share_bytes).zip(sums.chunks_mut(share)).enumerate();
        let shares = shares.map(|(part, (buf, sums))| {
            let first = first + (part * share) as u64;
            Share { first, buf, sums }
        });
        let shares: Shares<'_> = Mutex::new(shares.collect());
        thread::scope(|scope| {
            let others = (1..threads).map(|_| {
                let thread = thread::Builder::new().name("siltstone-value".to_owned());
                thread.spawn_scoped(scope, || self.read_shares(&shares))
            });
            // A thread that cannot be had leaves its share to the others.
            let others: Vec<_> = others.map_while(io::Result::ok).collect();
            let mut result = self.read_shares(&shares);
            for other in others {
                let joined = other.join().unwrap_or_else(|_| {
                    Err(self.corruption(self.handle.offset, "a thread that read a value panicked"))
                });
                result = result.and(joined);
            }
            result
        })
    }

    fn read_shares(&self, shares: &Shares<'_>) -> Result<()> {
        loop {
            // One at a time, so that a thread that is slow to start, or was not to be had, delays
            // nobody.
            let next = shares.lock().pop();
            let Some(share) = next else { return Ok(()) };
            self.read_sub_blocks(share.first, share.buf, share.sums)?;
        }
    }

    /// The checksums of all sub-blocks, verified by the root hash.
    pub fn sums(&self) -> Result<Vec<u64>> {
        let handle = &self.handle;
        let sums = self.stored_sums()?;
        if root_of(handle.len, &sums) != handle.root {
            let what = "the checksums of a value do not agree with its handle";
            return Err(self.corruption(handle.sums_offset(), what));
        }
        Ok(sums)
    }

    fn stored_sums(&self) -> Result<Vec<u64>> {
        let handle = &self.handle;
        // No memory on the word of the handle: the file must have what it asks for.
        if handle.end() > self.file.len()? {
            return Err(self.corruption(handle.offset, "a chunk file ends inside a value"));
        }
        let mut bytes = vec![0; (handle.sub_block_count() * SUM_BYTES) as usize];
        self.fill(handle.sums_offset(), &mut bytes)?;
        let binding = handle.binding();
        // The binding comes off before the sums are compared: those of another value, or of another
        // place in this one, then agree with nothing.
        let (sums, _) = bytes.as_chunks::<8>();
        let unbind =
            |(at, sum): (usize, &[u8; 8])| binding.apply(u64::from_le_bytes(*sum), at as u64);
        Ok(sums.iter().enumerate().map(unbind).collect())
    }

    /// Reads the whole value into `buf`, which is as long.
    pub fn read_whole(&self, buf: &mut [u8], parallelism: Parallelism) -> Result<()> {
        let handle = &self.handle;
        assert_eq!(buf.len() as u64, handle.len, "the caller knows the length");
        let mut sums = vec![0; handle.sub_block_count() as usize];
        let threads = parallelism.threads(handle.len);
        self.read_divided(0, buf, &mut sums, threads)?;
        // The root hash alone decides. The stored checksums are read only to name the damaged
        // sub-block.
        if root_of(handle.len, &sums) == handle.root {
            return Ok(());
        }
        Err(self.blame(&sums))
    }

    /// Maps the whole value and verifies it; `None` where it cannot be mapped.
    pub fn map_whole(&self) -> Result<Option<MappedBytes>> {
        let handle = &self.handle;
        // A page behind the end of the file would end the process.
        if handle.end() > self.file.len()? {
            return Err(self.corruption(handle.offset, "a chunk file ends inside a value"));
        }
        let Ok(len) = usize::try_from(handle.len) else { return Ok(None) };
        let Some(mapped) = self.file.map(handle.value_offset(), len) else { return Ok(None) };
        let sub_blocks = (*mapped).as_ref().chunks(handle.sub_block_bytes() as usize);
        let sums: Vec<u64> = sub_blocks.map(checksum64).collect();
        if root_of(handle.len, &sums) == handle.root {
            return Ok(Some(mapped));
        }
        Err(self.blame(&sums))
    }

    /// The error of a value whose sub-blocks have these checksums, which are not all right.
    fn blame(&self, found: &[u64]) -> Error {
        let handle = &self.handle;
        let sums = match self.sums() {
            Ok(sums) => sums,
            Err(error) => return error,
        };
        // If none differs, the bytes changed between two readings: the first stands for the value.
        let first = found.iter().zip(&sums).position(|(found, sum)| found != sum).unwrap_or(0);
        let offset = handle.value_offset() + first as u64 * handle.sub_block_bytes();
        self.corruption(offset, "a sub-block of a value does not agree with its checksum")
    }

    /// Reads `buf.len()` bytes from `offset` of the value, with the checksums that
    /// [`Block::sums`] returned. Whole sub-blocks go straight into `buf`; of others the whole is
    /// read for its checksum.
    pub fn read_range(&self, offset: u64, buf: &mut [u8], sums: &[u64]) -> Result<()> {
        let handle = &self.handle;
        let size = handle.sub_block_bytes();
        let mut scratch = Vec::new();
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let index = at / size;
            let start = index * size;
            let sub_block = (handle.len - start).min(size) as usize;
            let skip = (at - start) as usize;
            let wanted = (sub_block - skip).min(rest.len());
            let (piece, behind) = rest.split_at_mut(wanted);
            let mut sum = [0];
            // Into the buffer of the caller, without a copy. A part of a sub-block cannot be
            // verified by itself.
            if wanted == sub_block {
                self.read_sub_blocks(index, piece, &mut sum)?;
            } else {
                scratch.resize(sub_block, 0);
                self.read_sub_blocks(index, &mut scratch, &mut sum)?;
                piece.copy_from_slice(&scratch[skip..skip + wanted]);
            }
            if sum[0] != sums[index as usize] {
                let what = "a sub-block of a value does not agree with its checksum";
                return Err(self.corruption(handle.value_offset() + start, what));
            }
            at += wanted as u64;
            rest = behind;
        }
        Ok(())
    }

    /// Reads all of the block, in pieces, and gives each piece of the value to `each`; returns the
    /// key.
    ///
    /// # Errors
    /// Corruption of any byte of the block; those of `each`.
    pub fn walk(&self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<Vec<u8>> {
        let handle = &self.handle;
        if handle.end() > self.file.len()? {
            return Err(self.corruption(handle.offset, "a chunk file ends inside a value"));
        }
        let mut front = vec![0; BLOCK_HEADER_BYTES as usize + handle.key_len as usize];
        self.fill(handle.offset, &mut front)?;
        let key = key_of_front(handle, &front)
            .map_err(|malformed| self.corruption(handle.offset, malformed.what))?;
        let sums = self.sums()?;
        let size = handle.sub_block_bytes();
        let mut piece = vec![0; size.min(handle.len) as usize];
        let mut at = 0;
        while at < handle.len {
            let len = (handle.len - at).min(size) as usize;
            self.read_range(at, &mut piece[..len], &sums)?;
            each(&piece[..len])?;
            at += len as u64;
        }
        Ok(key.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_threads_read_from_32_mib_on_and_never_more_than_cores() {
        let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let many = cores.min(4);
        for (len, threads) in [(0, 1), ((32 << 20) - 1, 1), (32 << 20, many), (1 << 40, many)] {
            assert_eq!(Parallelism::Auto.threads(len), threads, "{len} bytes");
        }
        assert_eq!(Parallelism::Threads(0).threads(1 << 40), 1);
        assert_eq!(Parallelism::Threads(7).threads(1), 7);
    }
}
