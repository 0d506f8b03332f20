//! [`NeverMapped`]: nothing is stored through a mapping on systems other than Linux.
//!
//! Stands in for `fs/map.rs` and its `MappedAppends`, which says what each call is. There is never
//! a value.

use std::os::fd::BorrowedFd;

use super::MappedBytes;

/// As `map_read` of `fs/map.rs`: never.
pub(super) fn map_read(_file: BorrowedFd<'_>, _offset: u64, _len: usize) -> Option<MappedBytes> {
    None
}

pub(super) enum NeverMapped {}

impl NeverMapped {
    pub(super) fn of(_file: BorrowedFd<'_>, _end: u64) -> Option<NeverMapped> {
        None
    }

    pub(super) fn store(&mut self, _: BorrowedFd<'_>, _offset: u64, _pieces: &[&[u8]]) -> bool {
        match *self {}
    }

    pub(super) fn note_sync(&mut self) {
        match *self {}
    }

    pub(super) fn note_punch(&mut self) {
        match *self {}
    }
}
