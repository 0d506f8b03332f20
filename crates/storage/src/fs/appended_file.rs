//! [`AppendedFile`]: a file of an [`OpenFiles`] that is appended to, and closed while it is idle.
//!
//! A value store has a file for each partition, and an application may have any number of streams. So these
//! files count as open ones, too. But a file is not closed before it is synced: if the device fails to write
//! its pages, the system reports that once, to those who have it open, and a file that is opened later may
//! not get the error.
//!
//! Invariants:
//! 1. The set does not close the file between an append and the sync that makes it durable.
//! 2. A file that is opened again ends after its last append: a file with reserved space there is not
//!    closed.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::open_files::{OpenFiles, SharedFile};
use super::{AppendMode, File, MappedBytes};
use crate::error::Result;

/// A file that is appended to, which the set of open files may close while it is idle.
pub struct AppendedFile {
    shared: Arc<SharedFile>,
    /// A leaf.
    appends: Mutex<Appends>,
}

#[derive(Default)]
struct Appends {
    /// The number of appends that were begun, and how many of them have returned and are durable.
    begun: u64,
    returned: u64,
    durable: u64,
    /// The end of the last append, and of the space that was reserved.
    end: u64,
    reserved: u64,
}

impl Appends {
    fn may_be_closed(&self) -> bool {
        self.begun == self.durable && self.end >= self.reserved
    }
}

impl OpenFiles {
    /// Creates the file at `path`, to be appended to. Closes others of the set if the process has no file
    /// handle left.
    ///
    /// # Errors
    /// Those of [`Fs::open_append`](super::Fs::open_append).
    pub fn create(self: &Arc<Self>, path: &Path) -> Result<Arc<AppendedFile>> {
        let file = self.fs().open_append(path, AppendMode::IfAbsent)?;
        let shared = self.adopt(path, file);
        shared.set_appended(true);
        Ok(Arc::new(AppendedFile { shared, appends: Mutex::default() }))
    }
}

impl AppendedFile {
    /// The file as others read it.
    pub fn shared(&self) -> &Arc<SharedFile> {
        &self.shared
    }

    /// Appends `len` bytes by `append`.
    fn append_by(&self, len: u64, append: impl FnOnce(&dyn File) -> Result<()>) -> Result<()> {
        {
            let mut appends = self.appends.lock();
            appends.begun += 1;
            // Before the file is opened: from here on it stays open.
            self.shared.set_pinned(true);
        }
        let appended = self.shared.file().and_then(|file| append(&*file));
        let mut appends = self.appends.lock();
        appends.returned += 1;
        if appended.is_ok() {
            appends.end += len;
        }
        appended
    }
}

impl File for AppendedFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.append_by(bytes.len() as u64, |file| file.append(bytes))
    }

    fn append_pieces(&self, pieces: &[&[u8]]) -> Result<()> {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.append_by(len, |file| file.append_pieces(pieces))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.shared.file()?.read_at(offset, buf)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        if let Ok(file) = self.shared.file() {
            file.prefetch(offset, len);
        }
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.shared.file()?.read_cached_at(offset, buf)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.shared.file()?.read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        let returned = {
            let appends = self.appends.lock();
            if appends.begun == appends.durable {
                // Another sync was faster, and the file may be closed.
                return Ok(());
            }
            // Not those that were begun: the sync need not cover their bytes, and the file must not be closed
            // under them.
            appends.returned
        };
        self.shared.file()?.sync()?;
        let mut appends = self.appends.lock();
        appends.durable = appends.durable.max(returned);
        if appends.may_be_closed() {
            self.shared.set_pinned(false);
        }
        Ok(())
    }

    fn begin_sync(&self) {
        if let Ok(file) = self.shared.file() {
            file.begin_sync();
        }
    }

    fn begin_next_sync(&self) -> Result<()> {
        self.shared.file()?.begin_next_sync()
    }

    fn len(&self) -> Result<u64> {
        self.shared.file()?.len()
    }

    fn readable(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.shared.file()?.readable(range)
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        {
            let mut appends = self.appends.lock();
            appends.reserved = appends.reserved.max(len);
            self.shared.set_pinned(true);
        }
        self.shared.file()?.preallocate(len)
    }

    fn map(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        self.shared.file().ok()?.map(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.shared.file()?.punch(offset, len)
    }
}

impl Drop for AppendedFile {
    fn drop(&mut self) {
        // Nothing is appended any more. No reader needs the bytes that are not synced by now.
        self.shared.set_appended(false);
        self.shared.set_pinned(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{Caps, DirEntry, FaultFs, Fs, FsOp, LockGuard, MemFs, OpKind};

    fn path(number: usize) -> std::path::PathBuf {
        format!("/d/{number}").into()
    }

    fn set(limit: usize) -> Arc<OpenFiles> {
        let fs = MemFs::new();
        fs.create_dir(Path::new("/d")).unwrap();
        OpenFiles::new(Arc::new(fs), limit)
    }

    fn content(file: &AppendedFile) -> Vec<u8> {
        let mut buf = vec![0; 100];
        let len = file.read_at(0, &mut buf).unwrap();
        buf.truncate(len);
        buf
    }

    #[test]
    fn files_at_rest_are_closed_and_appended_to_where_they_ended() {
        let set = set(3);
        let files: Vec<_> = (0..20).map(|number| set.create(&path(number)).unwrap()).collect();
        for round in 0..3_u8 {
            for file in &files {
                file.append(&[round]).unwrap();
                file.append_pieces(&[b"a", b"b"]).unwrap();
                file.sync().unwrap();
            }
            assert!(set.open_count() <= 3, "{}", set.open_count());
        }
        for file in &files {
            assert_eq!(content(file), *b"\0ab\x01ab\x02ab");
            assert_eq!(file.len().unwrap(), 9);
        }
    }

    /// Called after the next open of an existing file.
    type Call = Box<dyn FnOnce() + Send>;

    /// A file system in which another thread is fast: it does something just after a file was opened.
    #[derive(Clone)]
    struct Busy(MemFs, Arc<Mutex<Option<Call>>>);

    impl Fs for Busy {
        fn caps(&self) -> Caps {
            self.0.caps()
        }

        fn create_dir(&self, dir: &Path) -> Result<()> {
            self.0.create_dir(dir)
        }

        fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
            let file = self.0.open_append(path, mode)?;
            let call = if mode == AppendMode::Existing { self.1.lock().take() } else { None };
            call.into_iter().for_each(|call| call());
            Ok(file)
        }

        fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
            self.0.open_read(path)
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
    }

    /// A reader opened the file, and a writer appended to it, synced it and closed it, before the reader put
    /// its handle into the slot. The next append used that handle, and overwrote the bytes of the writer.
    #[test]
    fn a_handle_from_before_an_append_is_not_used_for_the_next_one() {
        let mem = MemFs::new();
        mem.create_dir(Path::new("/d")).unwrap();
        let busy = Busy(mem, Arc::default());
        let set = OpenFiles::new(Arc::new(busy.clone()), 1);
        let file = set.create(&path(0)).unwrap();
        file.append(b"first ").unwrap();
        file.sync().unwrap();
        // Closes the one at rest.
        let others: Vec<_> = (1..4).map(|number| set.create(&path(number)).unwrap()).collect();
        let writer = file.clone();
        *busy.1.lock() = Some(Box::new(move || {
            writer.append(b"second ").unwrap();
            writer.sync().unwrap();
            others.iter().for_each(|other| drop(other.shared().file().unwrap()));
        }));
        assert!(content(&file).starts_with(b"first "));
        file.append(b"third").unwrap();
        assert_eq!(content(&file), b"first second third");
    }

    /// A sync counted an append that had begun as durable. The file was closed under it, opened again for a
    /// reader, and the next append overwrote its bytes.
    #[test]
    fn a_sync_does_not_count_an_append_that_is_under_way() {
        let set = set(1);
        let file = set.create(&path(0)).unwrap();
        file.append(b"first ").unwrap();
        let appended = file.append_by(7, |handle| {
            file.sync()?;
            // Closes what may be closed.
            let _others: Vec<_> = (1..4).map(|number| set.create(&path(number)).unwrap()).collect();
            assert!(content(&file).starts_with(b"first "));
            handle.append(b"second ")
        });
        appended.unwrap();
        file.append(b"third").unwrap();
        assert_eq!(content(&file), b"first second third");
        // Neither is taken for durable before a sync of its own.
        assert!(set.pinned_count() > 0);
        file.sync().unwrap();
        assert_eq!(set.pinned_count(), 0);
    }

    #[test]
    fn an_append_that_comes_during_a_sync_keeps_the_file_open() {
        let mem = MemFs::new();
        mem.create_dir(Path::new("/d")).unwrap();
        let fs = FaultFs::over_mem(mem);
        let set = OpenFiles::new(Arc::new(fs.clone()), 4);
        let file = set.create(&path(0)).unwrap();
        file.append(b"first").unwrap();
        let writer = file.clone();
        fs.set_observer(Arc::new(move |op: &FsOp| {
            if op.kind == OpKind::Sync {
                writer.append(b"second").unwrap();
            }
        }));
        file.sync().unwrap();
        fs.clear_observer();
        assert_eq!(set.pinned_count(), 1);
        file.sync().unwrap();
        assert_eq!(set.pinned_count(), 0);
    }

    #[test]
    fn a_file_stays_open_until_it_is_synced() {
        let set = set(2);
        let files: Vec<_> = (0..6).map(|number| set.create(&path(number)).unwrap()).collect();
        files.iter().for_each(|file| file.append(b"x").unwrap());
        assert_eq!((set.open_count(), set.pinned_count()), (6, 6));
        files.iter().for_each(|file| file.sync().unwrap());
        assert_eq!(set.pinned_count(), 0);
        let one = set.create(&path(10)).unwrap();
        assert!(set.open_count() <= 3);
        // With space after its end it would be opened at another place.
        one.preallocate(10).unwrap();
        one.append(b"12345").unwrap();
        one.sync().unwrap();
        assert_eq!(set.pinned_count(), 1);
        one.append(b"67890").unwrap();
        one.sync().unwrap();
        assert_eq!(set.pinned_count(), 0);
        let left = set.create(&path(11)).unwrap();
        left.append(b"x").unwrap();
        drop(left);
        assert_eq!(set.pinned_count(), 0);
        // A sync of what is durable opens nothing.
        let before = set.reopened_count();
        files.iter().for_each(|file| file.sync().unwrap());
        assert_eq!(set.reopened_count(), before);
    }
}
