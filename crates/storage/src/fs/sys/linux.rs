//! Calls of Linux for open files: to reserve and return space, to read from its cache alone, to write back,
//! and to map. `plain.rs` has the same calls for all others.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

use super::super::shared_map::{MappedWords, file_bytes, is_coherent};
use super::super::{MapMode, SharedWords, uncached, writeback};
use super::At;
use crate::codec::checksum64;
use crate::error::{Error, Result};

pub(in crate::fs) use super::super::map::{MappedAppends, map_read};

/// [`punch_hole`] gives space back.
pub(in crate::fs) const CAN_PUNCH: bool = true;

/// Extends the file from `old` to `len` bytes, with their space.
pub(in crate::fs) fn reserve(file: &File, old: u64, len: u64) -> io::Result<()> {
    let reserved = retry_on_intr(|| fallocate(file, FallocateFlags::empty(), old, len - old));
    match reserved {
        // A medium that cannot reserve still gets the length; lack of space shows at the append.
        // Unlike fallocate this could cut off an append that runs meanwhile and passes `len`; the
        // engine preallocates before it appends.
        Err(Errno::OPNOTSUPP) => file.set_len(len),
        done => done.map_err(io::Error::from),
    }
}

pub(in crate::fs) fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    retry_on_intr(|| fallocate(file, flags, offset, len)).map_err(io::Error::from)
}

/// Makes the system start to read the range.
pub(in crate::fs) fn prefetch(file: &File, offset: u64, len: u64) {
    uncached::prefetch_to_cache(file.as_fd(), offset, len);
}

/// Reads the bytes that the system has in its cache; `None` if it cannot tell.
pub(in crate::fs) fn read_cached(file: &File, offset: u64, buf: &mut [u8]) -> Option<usize> {
    uncached::read_cached(file.as_fd(), offset, buf)
}

/// Makes the system forget its cached pages of the range.
pub(in crate::fs) fn drop_from_cache(file: &File, offset: u64, len: u64) {
    uncached::drop_from_cache(file.as_fd(), offset, len);
}

pub(in crate::fs) fn begin_writeback(file: &File) {
    writeback::begin_writeback(file.as_fd());
}

pub(in crate::fs) fn begin_next_writeback(file: &File) -> io::Result<()> {
    writeback::begin_next_writeback(file.as_fd())
}

/// Maps a file of this machine; `None` for one that other machines may share.
pub(in crate::fs) fn map_words(at: &At<'_>, mode: MapMode) -> Result<Option<Arc<dyn SharedWords>>> {
    let opened = match mode {
        MapMode::Create(_) => at.create_new(),
        MapMode::Write => at.open_existing(),
        MapMode::Read => at.open_read(),
    };
    let file = opened.map_err(|e| Error::io("open", at.path, e))?;
    let mapped = map_file(&file, mode).map_err(|e| Error::io("map", at.path, e));
    if let (MapMode::Create(_), Ok(None) | Err(_)) = (mode, &mapped) {
        // It was just made, and no other process knows it.
        let _ = at.unlink();
    }
    Ok(mapped?.map(|words| Arc::new(words) as Arc<dyn SharedWords>))
}

fn map_file(file: &File, mode: MapMode) -> io::Result<Option<MappedWords>> {
    if !is_coherent(file.as_fd())? {
        return Ok(None);
    }
    if let MapMode::Create(words) = mode {
        reserve(file, 0, file_bytes(words))?;
    }
    MappedWords::map(file.as_fd(), mode != MapMode::Read).map(Some)
}

/// The boot of this machine, as a number.
pub(in crate::fs) fn machine_run() -> Option<u64> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    Some(checksum64(&boot))
}
