//! Windows: positional reads and writes, and folders.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// `FILE_SHARE_READ | FILE_SHARE_WRITE` of `winnt.h`: without `FILE_SHARE_DELETE`.
const NO_RENAME: u32 = 1 | 2;
/// `FILE_FLAG_BACKUP_SEMANTICS` of `winbase.h`: allows to open a folder.
const FOLDER: u32 = 0x0200_0000;

// The two calls below move the cursor of the file as well, which nothing depends on.

pub(in crate::fs) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(buf, offset)
}

pub(in crate::fs) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.seek_write(bytes, offset)
}

/// Writes the first piece that is not empty: the system takes several only in whole pages.
pub(in crate::fs) fn write_pieces_at(
    file: &File,
    pieces: &[io::IoSlice<'_>],
    offset: u64,
) -> io::Result<usize> {
    let first = pieces.iter().find(|piece| !piece.is_empty());
    first.map_or(Ok(0), |piece| write_at(file, piece, offset))
}

/// Opens a folder. As long as it is open, it cannot be renamed or removed.
pub(in crate::fs) fn open_folder(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).share_mode(NO_RENAME).custom_flags(FOLDER).open(path)
}

/// Returns an error if there is no such folder, and does nothing: a program without privileges cannot sync a
/// folder. The journal of NTFS has the name of a file before the system calls the file synced.
pub(in crate::fs) fn sync_folder(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
}
