//! A file system as the device has it: [`Uncached`] reads past every cache. The other functions here empty
//! the cache of the system, fill it, and read it alone.
//!
//! Verification reads the log and the manifest through it, with the same code as recovery does.
//! Bytes that were written and not synced yet exist in a cache alone, so they come from there.
//!
//! Invariant: only reads differ, of files that are open for reading alone; everything else is passed on unchanged.

use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use super::{AppendMode, Caps, DirEntry, File, Fs, HeldDir, LockGuard};
use crate::error::Result;

/// Pages are at most this large on the machines we know (64 KiB on some ARM and POWER kernels).
/// The kernel keeps a page that a DONTNEED range covers only in part, so ranges are widened to it.
#[cfg(target_os = "linux")]
const PAGE_BYTES_MAX: u64 = 64 << 10;

/// The wrapped file system, read by [`File::read_at_uncached`] alone.
pub struct Uncached(pub Arc<dyn Fs>);

struct UncachedFile(Arc<dyn File>);

impl Fs for Uncached {
    fn caps(&self) -> Caps {
        self.0.caps()
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.0.create_dir(dir)
    }

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        self.0.open_append(path, mode)
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        Ok(Arc::new(UncachedFile(self.0.open_read(path)?)))
    }

    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        self.0.put_if_absent(path, content)
    }

    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        self.0.list(dir, prefix)
    }

    fn delete(&self, path: &Path) -> Result<()> {
        self.0.delete(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.0.sync_dir(dir)
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.0.try_lock(path)
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.0.try_lock_shared(path)
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.0.free_bytes(dir)
    }

    fn hold_dir(&self, dir: &Path) -> Result<HeldDir> {
        let HeldDir { path, fs } = self.0.hold_dir(dir)?;
        // Wrapped again, otherwise the folder would be read through the caches from here on.
        Ok(HeldDir { path, fs: fs.map(|fs| Arc::new(Uncached(fs)) as Arc<dyn Fs>) })
    }
}

impl File for UncachedFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read_at_uncached(offset, buf)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn readable(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.0.readable(range)
    }

    fn len(&self) -> Result<u64> {
        self.0.len()
    }
}

/// Asks the kernel to forget its clean pages of the range. If the kernel does not, the following
/// read is an ordinary one.
#[cfg(target_os = "linux")]
pub(super) fn drop_from_cache(file: BorrowedFd<'_>, offset: u64, len: u64) {
    let start = offset - offset % PAGE_BYTES_MAX;
    let end = offset.saturating_add(len).checked_next_multiple_of(PAGE_BYTES_MAX);
    // Length 0 means up to the end of the file.
    let len = std::num::NonZeroU64::new(end.unwrap_or(start) - start);
    let _ = rustix::fs::fadvise(file, start, len, rustix::fs::Advice::DontNeed);
}

/// Makes the kernel start to read the range. If the kernel does not, the read itself waits.
#[cfg(target_os = "linux")]
pub(super) fn prefetch_to_cache(file: BorrowedFd<'_>, offset: u64, len: u64) {
    // Length 0 would mean up to the end of the file.
    if let Some(len) = std::num::NonZeroU64::new(len) {
        let _ = rustix::fs::fadvise(file, offset, Some(len), rustix::fs::Advice::WillNeed);
    }
}

/// Reads the bytes that the kernel has in its cache, up to the first byte that it does not have; `None` if it
/// cannot tell, or if the read fails: an ordinary read then returns the error.
#[cfg(target_os = "linux")]
pub(super) fn read_cached(file: BorrowedFd<'_>, offset: u64, buf: &mut [u8]) -> Option<usize> {
    use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, preadv2};

    match preadv2(file, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT) {
        Ok(got) => Some(got),
        Err(Errno::AGAIN) => Some(0),
        Err(_) => None,
    }
}
