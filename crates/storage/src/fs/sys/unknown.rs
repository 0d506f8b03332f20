//! Systems without positional reads and writes: files are found, and every use of one is an error of the kind
//! `Unsupported`. [`MemFs`](super::super::MemFs), and file systems of applications, work there.

use std::fs::File;
use std::io;
use std::path::Path;

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(in crate::fs) fn read_at(_file: &File, _buf: &mut [u8], _offset: u64) -> io::Result<usize> {
    unsupported()
}

pub(in crate::fs) fn write_at(_file: &File, _bytes: &[u8], _offset: u64) -> io::Result<usize> {
    unsupported()
}

pub(in crate::fs) fn write_pieces_at(
    _file: &File,
    _pieces: &[io::IoSlice<'_>],
    _offset: u64,
) -> io::Result<usize> {
    unsupported()
}

pub(in crate::fs) fn try_lock(_file: &File, _is_exclusive: bool) -> io::Result<bool> {
    unsupported()
}

pub(in crate::fs) fn unlock(_file: &File) -> io::Result<()> {
    unsupported()
}

pub(in crate::fs) fn open_folder(_path: &Path) -> io::Result<File> {
    unsupported()
}

pub(in crate::fs) fn sync_folder(_path: &Path) -> io::Result<()> {
    unsupported()
}

pub(in crate::fs) fn free_bytes(_path: &Path) -> io::Result<u64> {
    unsupported()
}
