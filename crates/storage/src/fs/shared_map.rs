//! [`MappedWords`]: a small file of the machine, mapped into memory and shared.
//!
//! Called by `os.rs` alone. Only file systems of this machine are mapped: on a network file system
//! a store would reach other machines late or never, and a reader would take an old state for the
//! present.
//!
//! Invariants:
//! 1. A mapping has the words that the file had when it was made, and their space is reserved, so that a
//!    store never finds the disk full. No access goes past the end of the file, also where a page is longer.
//! 2. Such a file is never made shorter: it is made whole under a fresh name, and only ever
//!    deleted, which does not affect the mapping.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::SharedWords;

/// The length of a file is a multiple of this, in bytes: the page of most machines, so that nothing is gained
/// by less. Earlier versions made files of 64 KiB, the largest page.
const STEP_BYTES: u64 = 4 << 10;
/// Longest file that is mapped, in bytes.
const MAPPED_BYTES_MAX: u64 = 1 << 20;

/// Magic numbers of file systems that live on this machine alone: ext, XFS, btrfs, tmpfs, overlay,
/// ZFS, F2FS. Any other may be shared with machines that do not see a store.
const LOCAL: [u64; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1, 0xf2f5_2010];

/// A mapped file.
pub(super) struct MappedWords {
    // Invariant: `start` is the first byte of a live shared mapping of `len` bytes.
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the mapping is memory of the process, bound to no thread, and everything in it is read
// and written as atomics.
unsafe impl Send for MappedWords {}
// SAFETY: shared, every access is to an atomic.
unsafe impl Sync for MappedWords {}

/// The length of a file of `words` words, in bytes.
pub(super) fn file_bytes(words: usize) -> u64 {
    (words as u64 * 8).next_multiple_of(STEP_BYTES)
}

/// Returns `true` if all processes that map the file see each other's stores.
pub(super) fn is_coherent(file: BorrowedFd<'_>) -> io::Result<bool> {
    let stat = rustix::io::retry_on_intr(|| rustix::fs::fstatfs(file))?;
    Ok(LOCAL.contains(&(stat.f_type as u64)))
}

impl MappedWords {
    /// Maps all of `file`, to be written as well if `is_writable`.
    ///
    /// # Errors
    /// Those of the system; [`io::ErrorKind::InvalidData`] for a file that no [`file_bytes`] made.
    pub(super) fn map(file: BorrowedFd<'_>, is_writable: bool) -> io::Result<MappedWords> {
        let bytes = rustix::fs::fstat(file)?.st_size as u64;
        // Any other length is that of an unfinished file, or of another one.
        if bytes == 0 || !bytes.is_multiple_of(STEP_BYTES) || bytes > MAPPED_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let len = bytes as usize;
        let write = if is_writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let protection = ProtFlags::READ | write;
        // SAFETY: a null address lets the system choose a range that nothing else uses.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(MappedWords { start, len })
    }
}

impl SharedWords for MappedWords {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `start` begins a live mapping of `len` bytes, page-aligned and so aligned for
        // words, which stays until `self` is dropped. Every pattern of bits is a word. Other
        // processes change the bytes meanwhile, which atomics allow.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len / 8) }
    }
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of the mapping, and no borrow of it is left. If the
        // call fails the range stays mapped, which is harmless.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::error::ErrorKind;
    use crate::fs::{AppendMode, Fs, MapMode, OsFs};

    #[test]
    fn two_mappings_of_a_file_are_the_same_words() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        let Some(one) = OsFs.map_words(&path, MapMode::Create(20)).unwrap() else {
            return; // Not on a medium that is mapped.
        };
        let other = OsFs.map_words(&path, MapMode::Read).unwrap().unwrap();
        assert!(one.words().len() >= 20 && one.words().len() == other.words().len());
        one.words()[19].store(7, Ordering::Release);
        assert_eq!(other.words()[19].load(Ordering::Acquire), 7);
        OsFs.delete(&path).unwrap();
        one.words()[19].store(8, Ordering::Release);
        assert_eq!(other.words()[19].load(Ordering::Acquire), 8, "a mapping outlives the name");
    }

    /// Those of the cursor: 1024 words.
    #[test]
    fn a_file_is_as_long_as_its_words_and_one_of_an_earlier_version_is_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        if OsFs.map_words(&path, MapMode::Create(1024)).unwrap().is_none() {
            return; // Not on a medium that is mapped.
        }
        assert_eq!(OsFs.open_read(&path).unwrap().len().unwrap(), 8192);
        OsFs.delete(&path).unwrap();
        let file = OsFs.open_append(&path, AppendMode::IfAbsent).unwrap();
        file.append(&vec![0; 64 << 10]).unwrap();
        let one = OsFs.map_words(&path, MapMode::Write).unwrap().unwrap();
        let other = OsFs.map_words(&path, MapMode::Read).unwrap().unwrap();
        assert_eq!((one.words().len(), other.words().len()), (8192, 8192));
        one.words()[1023].store(7, Ordering::Release);
        assert_eq!(other.words()[1023].load(Ordering::Acquire), 7);
    }

    #[test]
    fn a_file_of_another_length_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        for bytes in [0, 1, 4088, file_bytes(1) + 8, MAPPED_BYTES_MAX + STEP_BYTES] {
            let file = OsFs.open_append(&path, AppendMode::IfAbsent).unwrap();
            file.append(&vec![0; usize::try_from(bytes).unwrap()]).unwrap();
            let refused = OsFs.map_words(&path, MapMode::Read);
            // On a medium that is not mapped nothing is.
            let kind = refused.map(|words| assert!(words.is_none())).map_err(|e| e.kind());
            assert!(kind.is_ok() || kind == Err(ErrorKind::Io), "{bytes}");
            OsFs.delete(&path).unwrap();
        }
        let missing = OsFs.map_words(&dir.path().join("none"), MapMode::Read).err().unwrap();
        assert_eq!(missing.kind(), ErrorKind::Io);
    }
}
