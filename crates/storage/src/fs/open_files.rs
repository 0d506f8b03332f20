//! [`OpenFiles`]: a bounded set of files that are open for reading.
//!
//! A process may have only so many files open, and a database may have any number of tables and of chunk
//! files. Each of them is read through a [`SharedFile`], which opens its file when it is read and may be
//! closed again between two reads. Index and Bloom filter of a table stay in memory all the same, and so
//! does a block in the cache: a read that finds its block there needs no file.
//!
//! The next file to be closed is at the front of a queue. If it was read since it came there, it
//! goes to the end once more. A list in the exact order of use would close better ones, but every
//! read of every thread would take one lock.
//!
//! Invariants:
//! 1. No more than `limit` files are open here, except those that threads are reading or have just
//!    opened, and those that wait for a sync.
//! 2. A file that is closed and opened again is the same file: no name of the database is used
//!    twice, and no file is deleted while it may be read.
//! 3. A handle is not used if another thread has opened and closed the file since it was opened.
//! 4. Lock order: a file's slot and the queue are never held together.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::handles::{HandleHolder, add_holder};
use super::{AppendMode, File, Fs, MappedBytes, OpenFilesBound};
use crate::error::{Error, ErrorKind, Result};
use crate::machine;
use crate::types::Process;

/// So many files may always wait for a sync.
const PINNED_MIN: usize = 8;

/// A bounded set of open files, shared by all tables and chunk files of a database.
pub struct OpenFiles {
    // Fixed after construction.
    fs: Arc<dyn Fs>,
    limit: usize,
    /// That of several sets, if there is one.
    bound: Option<Arc<OpenFilesBound>>,
    process: Process,
    /// Files whose slot is filled. Relaxed: the bound may be exceeded for a moment.
    open: AtomicUsize,
    /// Files that must not be closed: see `fs/appended_file.rs`. Relaxed, as `open`.
    pinned: AtomicUsize,
    /// Files that were opened again since the start; a statistic.
    reopened: AtomicU64,
    /// Every file whose slot is filled, the next to be closed first. Some may be dropped already.
    queue: Mutex<VecDeque<Weak<SharedFile>>>,
}

/// A file of the set: open, or closed until its next read.
pub struct SharedFile {
    set: Arc<OpenFiles>,
    path: Arc<Path>,
    slot: Mutex<HandleSlot>,
    /// It is opened for appending.
    is_appended: AtomicBool,
    /// It must not be closed. Only `set_pinned` changes it, and the count of the set with it.
    is_pinned: AtomicBool,
    /// `true` if it was read since it came to its place in the queue. Relaxed: a hint.
    is_used: AtomicBool,
}

/// The handle of a [`SharedFile`], if it is open.
struct HandleSlot {
    file: Option<Arc<dyn File>>,
    /// The number of handles so far. A handle that was opened before the last of them is discarded: it would
    /// append where the file ended then.
    fillings: u64,
}

impl OpenFiles {
    /// A set of at most `limit` open files of `fs`.
    pub fn new(fs: Arc<dyn Fs>, limit: usize) -> Arc<OpenFiles> {
        OpenFiles::within(fs, limit, None)
    }

    /// As [`OpenFiles::new`], within a bound for several sets.
    pub fn within(
        fs: Arc<dyn Fs>,
        limit: usize,
        bound: Option<Arc<OpenFilesBound>>,
    ) -> Arc<OpenFiles> {
        // A set alone may be as large as the bound.
        let limit = bound.as_ref().map_or(limit, |bound| limit.min(bound.limit()));
        let set = Arc::new(OpenFiles {
            fs,
            bound,
            // With 0 a file would be closed between its opening and its first read.
            limit: limit.max(1),
            process: Process::current(),
            open: AtomicUsize::new(0),
            pinned: AtomicUsize::new(0),
            reopened: AtomicU64::new(0),
            queue: Mutex::default(),
        });
        let holder: Weak<OpenFiles> = Arc::downgrade(&set);
        if let Some(bound) = &set.bound {
            bound.add_set(holder.clone());
        }
        add_holder(holder);
        set
    }

    /// Opens the file at `path` and takes it into the set.
    ///
    /// # Errors
    /// Those of [`Fs::open_read`].
    pub fn open(self: &Arc<Self>, path: &Path) -> Result<Arc<SharedFile>> {
        let file = self.fs.open_read(path)?;
        Ok(self.adopt(path, file))
    }

    /// Adds the file at `path` to the set, which is open as `file`. It is opened for reading if it is
    /// used after the set has closed it.
    pub fn adopt(self: &Arc<Self>, path: &Path, file: Arc<dyn File>) -> Arc<SharedFile> {
        let shared = Arc::new(SharedFile {
            set: self.clone(),
            path: path.into(),
            slot: Mutex::new(HandleSlot { file: Some(file), fillings: 1 }),
            is_appended: AtomicBool::new(false),
            is_pinned: AtomicBool::new(false),
            is_used: AtomicBool::new(true),
        });
        self.admit(&shared);
        shared
    }

    /// The file system of the files.
    pub fn fs(&self) -> &dyn Fs {
        &*self.fs
    }

    /// The process that the set belongs to.
    #[inline]
    pub fn process(&self) -> Process {
        self.process
    }

    /// The most files that are open at once.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of files that are open.
    pub fn open_count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of files that are open until they are synced.
    pub fn pinned_count(&self) -> usize {
        self.pinned.load(Ordering::Relaxed)
    }

    /// Returns `true` if so many files wait for a sync that it is time for one.
    pub fn is_crowded(&self) -> bool {
        self.is_crowded_with(0)
    }

    /// Returns `true` if so many files wait for a sync, with `others` that are none of the set, that it is
    /// time for one.
    pub fn is_crowded_with(&self, others: usize) -> bool {
        self.pinned_count() + others > (self.limit / 2).max(PINNED_MIN)
    }

    /// Returns the number of times that a file was opened again since the start.
    pub fn reopened_count(&self) -> u64 {
        self.reopened.load(Ordering::Relaxed)
    }

    /// Puts a file whose slot was just filled at the end of the queue, and closes others for it.
    fn admit(&self, file: &Arc<SharedFile>) {
        self.open.fetch_add(1, Ordering::Relaxed);
        if let Some(bound) = &self.bound {
            bound.note_opened();
        }
        // The read for which the file was opened does not count as use. Otherwise all files would
        // be marked, and a file that is read often would look like one that was read once.
        file.is_used.store(false, Ordering::Relaxed);
        {
            let mut queue = self.queue.lock();
            // Dropped files leave their places in the queue; they are removed when they are most of
            // it, which costs each of them one look.
            if queue.len() > self.limit.max(self.open_count()).saturating_mul(2) {
                queue.retain(|file| file.strong_count() > 0);
            }
            queue.push_back(Arc::downgrade(file));
        }
        self.close_until(self.limit);
        if let Some(bound) = &self.bound {
            bound.close_beyond();
        }
    }

    /// Closes all files that no one reads at the moment. A later read opens its file again.
    pub fn close_all(&self) {
        self.close_until(0);
    }

    /// Closes the next file in turn. Returns `true` if it has closed one.
    pub(super) fn close_one(&self) -> bool {
        let open = self.open_count();
        open > 0 && self.process.is_current() && self.close_until(open - 1)
    }

    /// Closes files until no more than `most` are open. Returns `true` if it has closed one.
    fn close_until(&self, most: usize) -> bool {
        // Each file is looked at twice at most: then its mark is gone. Other threads may set it
        // again, so the number of looks is bounded as well.
        let looks = 2 * self.queue.lock().len() + 1;
        let mut is_any_closed = false;
        for _ in 0..looks {
            if self.open_count() <= most {
                break;
            }
            let Some(file) = self.queue.lock().pop_front() else { break };
            // A dropped file was closed by its drop.
            let Some(file) = file.upgrade() else { continue };
            if file.is_used.swap(false, Ordering::Relaxed) || !file.close() {
                self.queue.lock().push_back(Arc::downgrade(&file));
            } else {
                is_any_closed = true;
            }
        }
        is_any_closed
    }
}

impl HandleHolder for OpenFiles {
    fn close_half(&self) -> bool {
        let before = self.open_count();
        // The files of a child's parent: closing them would free no handle of the parent.
        if before == 0 || !self.process.is_current() {
            return false;
        }
        self.close_until(before / 2)
    }
}

impl SharedFile {
    /// The path of the file.
    pub fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// The file, which is opened again if the set has closed it. It stays open as long as the result is
    /// used.
    ///
    /// # Errors
    /// Those of [`Fs::open_read`].
    pub fn file(self: &Arc<Self>) -> Result<Arc<dyn File>> {
        self.set.process.check()?;
        self.is_used.store(true, Ordering::Relaxed);
        if let Some(file) = &self.slot.lock().file {
            return Ok(file.clone());
        }
        self.open_again()
    }

    #[cold]
    fn open_again(self: &Arc<Self>) -> Result<Arc<dyn File>> {
        loop {
            let before = self.slot.lock().fillings;
            // Without the lock of the slot: opening a file may close others, which locks their slots.
            let file = match self.is_appended.load(Ordering::Acquire) {
                true => self.set.fs.open_append(&self.path, AppendMode::Existing)?,
                false => self.set.fs.open_read(&self.path)?,
            };
            let mut slot = self.slot.lock();
            if let Some(other) = &slot.file {
                // Another thread was faster.
                return Ok(other.clone());
            }
            if slot.fillings != before {
                // Another thread has opened it, perhaps appended, and it was closed again. This handle
                // appends where the file ended before that, over those bytes.
                continue;
            }
            *slot = HandleSlot { file: Some(file.clone()), fillings: before + 1 };
            drop(slot);
            self.set.reopened.fetch_add(1, Ordering::Relaxed);
            self.set.admit(self);
            return Ok(file);
        }
    }

    /// Sets whether it is opened for appending from now on, or for reading.
    pub(super) fn set_appended(&self, is_appended: bool) {
        self.is_appended.store(is_appended, Ordering::Release);
    }

    /// Sets whether it stays open from now on, or may be closed by the set.
    pub(super) fn set_pinned(&self, is_pinned: bool) {
        // Under the lock of the slot, as a close is: none begins after this.
        let _slot = self.slot.lock();
        if self.is_pinned.swap(is_pinned, Ordering::AcqRel) == is_pinned {
            return;
        }
        match is_pinned {
            true => self.set.pinned.fetch_add(1, Ordering::Relaxed),
            false => self.set.pinned.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Closes the file. Returns `false` if it must not be closed.
    fn close(&self) -> bool {
        let mut slot = self.slot.lock();
        if self.is_pinned.load(Ordering::Acquire) {
            return false;
        }
        if slot.file.take().is_some() {
            self.set.open.fetch_sub(1, Ordering::Relaxed);
            if let Some(bound) = &self.set.bound {
                bound.note_closed();
            }
        }
        true
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // In a child process the file is closed without its lock, which another thread may have held at
        // the fork.
        if self.set.process.is_current() {
            self.close();
        }
    }
}

/// A table's reference to a [`SharedFile`], which fetches the file at each read.
pub struct TableFile(Arc<SharedFile>);

impl TableFile {
    /// Opens the file at `path` in `set`.
    ///
    /// # Errors
    /// Those of [`Fs::open_read`].
    pub fn open(set: &Arc<OpenFiles>, path: &Path) -> Result<TableFile> {
        set.open(path).map(TableFile)
    }

    fn file(&self) -> Result<Arc<dyn File>> {
        self.0.file()
    }
}

impl File for TableFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.file()?.append(bytes)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file()?.read_at(offset, buf)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        // A hint opens no file: the error of an open would be lost, and another file may be closed for it.
        let open = self.0.slot.lock().file.clone();
        if let Some(file) = open {
            file.prefetch(offset, len);
        }
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file()?.read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        self.file()?.sync()
    }

    fn len(&self) -> Result<u64> {
        self.file()?.len()
    }

    fn readable(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.file()?.readable(range)
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.file()?.preallocate(len)
    }

    fn map(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        self.file().ok()?.map(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.file()?.punch(offset, len)
    }
}

/// Returns `true` if the process, or the machine, has no handle for another open file.
pub fn is_out_of_handles(error: &Error) -> bool {
    error.io_source().is_some_and(machine::is_out_of_handles)
}

/// Returns `true` if the device does not give a file's bytes. Other errors say nothing of the bytes: of a
/// file that may not be opened, or a process without memory or free descriptors, the next open knows more.
/// After a failed sync the device may have other bytes than the reads show.
pub fn is_unreadable(error: &Error) -> bool {
    use io::ErrorKind::{Interrupted, OutOfMemory, PermissionDenied, ReadOnlyFilesystem};
    let Some(source) = error.io_source().filter(|_| error.kind() == ErrorKind::Io) else {
        return false;
    };
    let passes =
        matches!(source.kind(), Interrupted | OutOfMemory | PermissionDenied | ReadOnlyFilesystem);
    !passes && !machine::is_out_of_handles(source) && !error.is_failed_sync()
}

#[cfg(test)]
mod tests;
