//! The calls of `linux.rs` on all other systems, where std alone serves.
//!
//! Nothing is mapped, no space is freed before a file is deleted, and the cache of the system is neither read
//! nor emptied.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::super::{MapMode, MappedBytes, SharedWords};
use super::At;
use crate::error::Result;

/// [`punch_hole`] returns an error.
pub(in crate::fs) const CAN_PUNCH: bool = false;

/// Extends the file to `len` bytes. Lack of space shows at the append.
pub(in crate::fs) fn reserve(file: &File, _old: u64, len: u64) -> io::Result<()> {
    file.set_len(len)
}

pub(in crate::fs) fn punch_hole(_file: &File, _offset: u64, _len: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(in crate::fs) fn prefetch(_file: &File, _offset: u64, _len: u64) {}

pub(in crate::fs) fn read_cached(_file: &File, _offset: u64, _buf: &mut [u8]) -> Option<usize> {
    None
}

pub(in crate::fs) fn drop_from_cache(_file: &File, _offset: u64, _len: u64) {}

pub(in crate::fs) fn begin_writeback(_file: &File) {}

#[expect(clippy::unnecessary_wraps, reason = "on Linux the device may fail")]
pub(in crate::fs) fn begin_next_writeback(_file: &File) -> io::Result<()> {
    Ok(())
}

pub(in crate::fs) fn map_read(_file: &File, _offset: u64, _len: usize) -> Option<MappedBytes> {
    None
}

#[expect(clippy::unnecessary_wraps, reason = "on Linux a file may be missing")]
pub(in crate::fs) fn map_words(
    _at: &At<'_>,
    _mode: MapMode,
) -> Result<Option<Arc<dyn SharedWords>>> {
    Ok(None)
}

pub(in crate::fs) fn machine_run() -> Option<u64> {
    None
}

/// Stands in for the type of `fs/map.rs`, which documents each call. There is never a value.
pub(in crate::fs) enum NeverMapped {}

impl NeverMapped {
    pub(in crate::fs) fn of(_file: &File, _end: u64) -> Option<NeverMapped> {
        None
    }

    pub(in crate::fs) fn store(&mut self, _: &File, _offset: u64, _pieces: &[&[u8]]) -> bool {
        match *self {}
    }

    pub(in crate::fs) fn note_sync(&mut self) {
        match *self {}
    }

    pub(in crate::fs) fn note_punch(&mut self) {
        match *self {}
    }
}
