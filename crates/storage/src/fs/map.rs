//! [`MappedAppends`]: appends to a preallocated file that are stored through a shared mapping; and
//! [`map_read`]: a file of tables or of large values that is read through one.
//!
//! Called by `fs/os.rs`. Appends are those to the segments of the log. A store into a mapped page costs a
//! copy, an append by `write` a system call: 148 bytes take 0.04 us and 0.69 us (ext4, Linux 6.18). Both put
//! the bytes into the same page of the kernel, so a killed process loses neither. It must never fail an
//! append: bytes that cannot be stored are left to `write`, which reports the cause.
//!
//! A store cannot return an error. A page that the kernel cannot provide ends the process with
//! SIGBUS. So a range of the file is reserved, written with zeros and populated before it is stored
//! to: each of these calls returns an error, and then nothing is stored. Reserving and populating
//! alone would do. But a fault that has to make the page takes 6 us, and writing zeros 0.5 us
//! (ext4), so the zeros make it three times as fast as well.
//!
//! Writeback protects pages again, and a store to a protected page calls the file system again.
//! That fails after its journal was aborted. So a sync ends the mapping. `docs/MEDIA.md` describes
//! the remaining danger.
//!
//! Invariants:
//! 1. A mapping is of a range that `fallocate` has reserved, of at most [`LONG_MAPPING_BYTES`].
//! 2. Only bytes after the last append are written with zeros, and they are zeros before.
//! 3. Nothing is stored outside of the mapping, or after a failure.
//! 4. A file that is mapped for reading is never overwritten, truncated or punched by this process.

use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use memmap2::{Advice, Mmap, MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, fallocate, fstatfs};
use rustix::param::page_size;

use super::shared_map::is_coherent;
use super::whole::write_all;
use super::{MappedBytes, MappedFile};

/// The append that makes a mapping this long takes 0.07 ms. 1 MiB is no faster all in all and takes
/// 0.29 ms, which is then p99.9 of puts of 1,000 bytes. With 64 KiB more than 1 % of them make one.
const MAPPING_BYTES: u64 = 256 << 10;
/// The same for short appends. Of puts of 116 bytes one in 7,000 makes a mapping then, and p99.9 is 8 to
/// 10 us. With 256 KiB it is one in 1,700, and p99.9 38 to 41 us. The price is that the rare put that
/// makes a mapping waits four times as long.
const LONG_MAPPING_BYTES: u64 = 1 << 20;
/// Appends up to this length are short.
const SHORT_APPEND_BYTES: usize = 256;
/// A shorter mapping costs more than it saves.
const MAPPING_BYTES_MIN: u64 = 16 << 10;
/// The kernel is asked for at most so many pages at a time.
const PAGES_ASKED: usize = 1024;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The file systems whose mappings are known, as `fstatfs` names them, and the longest append that
/// is faster through one there. On others (copy-on-write, network, stacked, FUSE) a store may need
/// space or a server, and cannot report that there is none.
const FILE_SYSTEMS: [(u64, usize); 3] = [
    (0xef53, 8 << 10),      // ext4
    (0x5846_5342, 8 << 10), // XFS
    (0x0102_1994, 2 << 10), // tmpfs
];

/// The state of a file whose appends may be stored through a mapping.
pub(super) struct MappedAppends {
    /// The end of what is preallocated.
    end: u64,
    append_bytes_max: usize,
    /// Bytes that were appended since the last sync.
    unsynced: u64,
    mapping: Option<Mapping>,
}

impl MappedAppends {
    /// Returns the state of `file`, which is preallocated to `end`; `None` if its file system is not
    /// one of those that are known to support it.
    pub(super) fn of(file: impl AsFd, end: u64) -> Option<MappedAppends> {
        // Its type differs between architectures.
        let kind = fstatfs(file).ok()?.f_type as u64;
        let (_, append_bytes_max) = FILE_SYSTEMS.into_iter().find(|(known, _)| *known == kind)?;
        Some(MappedAppends { end, append_bytes_max, unsynced: 0, mapping: None })
    }

    /// Stores `pieces`, one after the other, at `offset`, the end of the last append. Returns `false`
    /// if they must be written instead; nothing was stored then.
    pub(super) fn store(&mut self, file: impl AsFd, offset: u64, pieces: &[&[u8]]) -> bool {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.unsynced = self.unsynced.saturating_add(len as u64);
        // Their sum decides: a mapping that is made for the short front of a long append is useless
        // after it.
        if len > self.append_bytes_max {
            return false;
        }
        // The next range is mapped when the present one is full. An append that crosses its end
        // goes into a new mapping as a whole.
        if self.mapping.as_ref().is_none_or(|mapping| !mapping.covers(offset, len)) {
            let is_short = len <= SHORT_APPEND_BYTES;
            let len_max = if is_short { LONG_MAPPING_BYTES } else { MAPPING_BYTES };
            self.map_next(file.as_fd(), offset, len_max);
        }
        match &mut self.mapping {
            Some(mapping) if mapping.covers(offset, len) => {
                let mut at = offset;
                for piece in pieces {
                    mapping.store(at, piece);
                    at += piece.len() as u64;
                }
                true
            }
            _ => false,
        }
    }

    /// Ends the mapping because the file is synced: its pages will be protected. A log that is
    /// synced after each write is never mapped.
    pub(super) fn note_sync(&mut self) {
        self.unsynced = 0;
        self.mapping = None;
    }

    /// Ends the mapping because space of the file is freed.
    pub(super) fn note_punch(&mut self) {
        self.mapping = None;
    }

    /// Maps the range after `offset`, up to `len_max` bytes and as long as the bytes that were
    /// appended since the last sync: so the zeros at most double the next sync.
    fn map_next(&mut self, file: BorrowedFd<'_>, offset: u64, len_max: u64) {
        self.mapping = None;
        let left = self.end.saturating_sub(offset);
        // A writer that syncs each write never has much unsynced, so it never pays for a mapping.
        let len = self.unsynced.min(len_max).min(left);
        if len < MAPPING_BYTES_MIN {
            return;
        }
        match Mapping::make(file, offset, len) {
            Ok(mapping) => self.mapping = Some(mapping),
            // An old kernel, no space, no address space, or a device that fails: the file is
            // written from now on.
            Err(_) => self.end = 0,
        }
    }
}

/// A mapped range of a file, whose pages exist.
struct Mapping {
    start: u64,
    memory: MmapRaw,
}

impl Mapping {
    /// Maps `len` bytes at `offset`. They are zeros; bytes before them are not touched.
    fn make(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Mapping> {
        // The space may have been freed since the file was preallocated.
        rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), offset, len))?;
        let end = offset + len;
        let mut at = offset;
        // The pages are written before they are mapped. Otherwise the first store to each page
        // would be a fault in which the file system allocates a block, and an error there is a
        // signal.
        while at < end {
            let count = ZEROS.len().min(usize::try_from(end - at).unwrap_or(ZEROS.len()));
            write_all(&ZEROS[..count], at, |part, at| Ok(rustix::io::pwrite(file, part, at)?))?;
            at += count as u64;
        }
        Mapping::populated(file, offset, usize::try_from(len).map_err(io::Error::other)?)
    }

    /// Maps `len` bytes at `offset` and has the kernel provide their pages: an error if it cannot,
    /// or does not know how (before Linux 5.14).
    fn populated(file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Mapping> {
        let memory = MmapOptions::new().offset(offset).len(len).map_raw(&file)?;
        memory.advise(Advice::PopulateWrite)?;
        Ok(Mapping { start: offset, memory })
    }

    fn covers(&self, offset: u64, len: usize) -> bool {
        let skip = offset.checked_sub(self.start).and_then(|skip| usize::try_from(skip).ok());
        let end = skip.and_then(|skip| skip.checked_add(len));
        end.is_some_and(|end| end <= self.memory.len())
    }

    fn store(&mut self, offset: u64, bytes: &[u8]) {
        assert!(self.covers(offset, bytes.len()), "the caller asked");
        let skip = usize::try_from(offset - self.start).expect("it is less than the length");
        // SAFETY: `memory` is `memory.len()` bytes, mapped writable until it is dropped, and by the
        // assert `skip + bytes.len()` is at most that. `bytes` cannot overlap: no reference into
        // `memory` is ever made, so `bytes` is other memory. `&mut self` excludes other stores of
        // this process; changes of the file by other processes and by `write` happen in the kernel,
        // and nothing in this process reads `memory`.
        unsafe {
            let to = self.memory.as_mut_ptr().add(skip);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}

/// Maps `len` bytes of `file` at `offset` for reading. `None` if the file system is not known to be
/// local to this machine, or if the system refuses; also without the feature `mmap`.
pub(super) fn map_read(file: impl AsFd, offset: u64, len: usize) -> Option<MappedBytes> {
    let file = file.as_fd();
    if !cfg!(feature = "mmap") || len == 0 || !is_coherent(file).ok()? {
        return None;
    }
    let mut options = MmapOptions::new();
    options.offset(offset).len(len);
    // SAFETY: by invariant 4 nothing in this process changes or shortens the mapped range. Other
    // processes must not write to the files of a database; `docs/MEDIA.md` says so.
    let memory = unsafe { options.map(&file) }.ok()?;
    Some(Arc::new(memory))
}

impl MappedFile for Mmap {
    /// From Linux 5.14 on.
    fn populate(&self, range: Range<usize>) -> bool {
        self.advise_range(Advice::PopulateRead, range.start, range.len()).is_ok()
    }

    fn is_resident(&self, range: Range<usize>) -> bool {
        let page_bytes = page_size();
        let start = range.start / page_bytes * page_bytes;
        self.get(start..range.end)
            .is_none_or(|bytes| bytes.chunks(page_bytes * PAGES_ASKED).all(are_pages_resident))
    }
}

/// Returns `false` if the kernel does not have all pages of `bytes`, which begin where a page does.
fn are_pages_resident(bytes: &[u8]) -> bool {
    let mut pages = [1; PAGES_ASKED];
    let count = bytes.len().div_ceil(page_size());
    assert!(count <= PAGES_ASKED, "the caller divides what is longer");
    // SAFETY: `bytes` is mapped as long as it is borrowed, and the call only asks about its pages. It
    // writes a byte for each of these to `pages`, which has room for them by the assert.
    let done = unsafe { mincore(bytes.as_ptr().cast(), bytes.len(), pages.as_mut_ptr()) };
    // The other bits of a byte mean nothing yet.
    done != 0 || pages[..count].iter().all(|page| page & 1 == 1)
}

unsafe extern "C" {
    /// Of the C library, which std links; rustix does not have it.
    fn mincore(start: *const c_void, len: usize, pages: *mut u8) -> c_int;
}

#[cfg(test)]
mod tests;
