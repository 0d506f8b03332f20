//! [`ShippingFs`]: the file system of a primary. It passes all calls on to the local one, and notes each change
//! of the database's folder in the [`Shipper`].
//!
//! Invariants:
//! 1. A change is noted after the local disk has it, and in the order of the changes: each prefix of the journal
//!    is a state that a crash of a machine whose syncs all worked may leave.
//! 2. A table is in the bucket before the journal names it, and its bytes are put by the thread that syncs it.
//! 3. Under [`Ack::Stored`](crate::Ack::Stored) a sync of a file that the journal has returns after its bytes
//!    are stored.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lsm_core::fs::SHIPPED_PREFIX;
use lsm_core::fs::{
    AppendMode, Caps, DirEntry, File, Fs, HeldDir, LockGuard, MapMode, MappedBytes, SharedWords,
};
use parking_lot::Mutex;
use siltstone::{Error, ErrorKind, Result};

use crate::cache::ObjectCache;
use crate::folder::{FileClass, StoredChange, class_of};
use crate::noted::{NotedChange, SyncedFile};
use crate::restorer::FileRestorer;
use crate::shipper::Shipper;

/// The local file system of a primary.
#[derive(Clone)]
pub(crate) struct ShippingFs {
    pub(crate) inner: Arc<dyn Fs>,
    /// The folder of the database.
    pub(crate) root: PathBuf,
    pub(crate) shipper: Arc<Shipper>,
    pub(crate) cache: Arc<ObjectCache>,
    pub(crate) restorer: Arc<FileRestorer>,
    pub(crate) backlog_bytes: u64,
    /// Held as long as the database is open.
    pub(crate) _lock: Arc<dyn LockGuard>,
}

/// A file of the folder that is appended to.
struct ShippedFile {
    // Fixed after the open.
    synced: Arc<SyncedFile>,
    path: PathBuf,
    name: String,
    class: FileClass,
    fs: ShippingFs,
    /// Held over an append, so that changes are noted in the order of the file.
    end: Mutex<AppendEnd>,
}

/// The place of the next append.
struct AppendEnd {
    at: u64,
    /// The part of a table that is in the bucket.
    put: u64,
    /// That of the last change of this file, or of all before it was opened.
    mark: u64,
    /// An append failed: the file has unknown bytes after `at`.
    is_torn: bool,
    /// The journal has all bytes of the file before `at`.
    is_noted: bool,
    /// The next sync returns after all is stored, whatever the acknowledgement is.
    owes_put: bool,
}

impl ShippingFs {
    /// The name and class of a file that is shipped; `None` for other files.
    fn shipped(&self, path: &Path) -> Option<(String, FileClass)> {
        if path.parent() != Some(&self.root) {
            return None;
        }
        let name = path.file_name()?.to_str()?;
        Some((name.to_owned(), class_of(name)?))
    }

    fn note(&self, change: StoredChange) {
        self.shipper.note(NotedChange::Whole(change));
    }

    fn file(
        &self,
        path: &Path,
        (name, class): (String, FileClass),
        file: Arc<dyn File>,
        at: u64,
    ) -> Arc<dyn File> {
        let mark = self.shipper.noted();
        let (is_torn, is_noted, owes_put) = Default::default();
        let end = Mutex::new(AppendEnd { at, put: at, mark, is_torn, is_noted, owes_put });
        let synced = Arc::new(SyncedFile::new(file));
        Arc::new(ShippedFile { synced, path: path.to_owned(), name, class, fs: self.clone(), end })
    }

    /// Waits until everything through `mark` is stored, if a sync means that.
    fn ship(&self, path: &Path, mark: u64) -> Result<()> {
        if !self.shipper.acknowledges_stored() {
            // The thread that ships may have found another writer, or changes that do not fit.
            return self.shipper.check_writer();
        }
        self.ship_through(path, mark)
    }

    fn ship_all(&self, path: &Path) -> Result<()> {
        self.ship_through(path, self.shipper.noted())
    }

    fn ship_through(&self, path: &Path, mark: u64) -> Result<()> {
        let shipped = self.shipper.ship_through(mark);
        shipped.map_err(|error| match error.kind() {
            ErrorKind::Fenced => error,
            // A sync that failed: what is stored is unknown.
            _ => Error::io("sync", path, io::Error::other(error)),
        })
    }

    /// Notes a file that came into the folder as a whole.
    fn note_arrived(&self, path: &Path, name: String, class: FileClass) -> Result<()> {
        let file = self.inner.open_read(path)?;
        let len = file.len()?;
        match class {
            FileClass::Log => {
                let mut bytes = vec![0; len as usize];
                file.read_at(0, &mut bytes)?;
                self.shipper.note_whole(&name, bytes);
            }
            FileClass::Table | FileClass::Chunk => {
                let piece = self.shipper.put_range("table", &name, 0..len, &*file)?;
                self.note(StoredChange::Create { name: name.clone() });
                self.note(StoredChange::Piece { name, piece });
            }
        }
        Ok(())
    }
}

impl Fs for ShippingFs {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.inner.create_dir(dir)
    }

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        let Some((name, class)) = self.shipped(path) else {
            return self.inner.open_append(path, mode);
        };
        match mode {
            AppendMode::IfAbsent => {
                if self.shipper.has(&name) {
                    return Err(Error::io("create", path, io::ErrorKind::AlreadyExists.into()));
                }
                let file = self.inner.open_append(path, mode)?;
                // A table appears when it is synced: before that nothing names it.
                if class != FileClass::Table {
                    self.note(StoredChange::Create { name: name.clone() });
                }
                Ok(self.file(path, (name, class), file, 0))
            }
            AppendMode::Existing => {
                self.restore(&name)?;
                let file = self.inner.open_append(path, mode)?;
                let at = file.len()?;
                Ok(self.file(path, (name, class), file, at))
            }
        }
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        let Some((name, _)) = self.shipped(path) else { return self.inner.open_read(path) };
        if self.shipper.is_doomed(&name) {
            return Err(Error::io("open", path, io::ErrorKind::NotFound.into()));
        }
        if let Some(remote) = self.open_remote(path, &name) {
            return Ok(remote);
        }
        self.inner.open_read(path)
    }

    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        let Some((name, _)) = self.shipped(path) else {
            return self.inner.put_if_absent(path, content);
        };
        if self.shipper.is_doomed(&name) {
            // Its number is not used again, except for a claim: then the name must be free at once.
            self.ship_all(path)?;
        }
        if self.shipper.has(&name) || !self.inner.put_if_absent(path, content)? {
            return Ok(false);
        }
        let mark = self.shipper.note_whole(&name, content.to_vec());
        self.ship(path, mark)?;
        Ok(true)
    }

    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        let mut entries = self.inner.list(dir, prefix)?;
        if dir != self.root {
            return Ok(entries);
        }
        // A promotion through this file system is shipped; the marker refuses others.
        entries.retain(|entry| {
            !self.shipper.is_doomed(&entry.name) && !entry.name.starts_with(SHIPPED_PREFIX)
        });
        for name in self.shipper.remote_only() {
            if name.starts_with(prefix)
                && let Some((file, _)) = self.shipper.remote_file(&name)
            {
                entries.push(DirEntry { len: file.read().len, name });
            }
        }
        entries.sort_unstable();
        entries.dedup_by(|one, other| one.name == other.name);
        Ok(entries)
    }

    fn delete(&self, path: &Path) -> Result<()> {
        let is_noted = self.shipped(path).is_some_and(|(name, _)| {
            self.shipper.note_deletion(&name, path.to_owned(), &self.inner)
        });
        // The local name goes when the deletion is stored.
        if is_noted { Ok(()) } else { self.inner.delete(path) }
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        if let Some((name, _)) = self.shipped(from) {
            self.restore(&name)?;
        }
        self.inner.link(from, to)?;
        match self.shipped(to) {
            Some((name, class)) => self.note_arrived(to, name, class),
            None => Ok(()),
        }
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        // Nothing is acknowledged by this alone, and the journal keeps the order of all changes.
        self.inner.sync_dir(dir)
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.inner.try_lock(path)
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.inner.try_lock_shared(path)
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.inner.free_bytes(dir)
    }

    fn failure(&self) -> Option<String> {
        let failures = [self.shipper.failure(), self.restorer.failure()];
        let failures: Vec<String> = failures.into_iter().flatten().collect();
        (!failures.is_empty()).then(|| failures.join("; "))
    }

    fn map_words(&self, path: &Path, mode: MapMode) -> Result<Option<Arc<dyn SharedWords>>> {
        self.inner.map_words(path, mode)
    }

    fn machine_run(&self) -> Option<u64> {
        self.inner.machine_run()
    }

    fn hold_dir(&self, dir: &Path) -> Result<HeldDir> {
        let held = self.inner.hold_dir(dir)?;
        if dir != self.root {
            return Ok(held);
        }
        let inner = held.fs.unwrap_or_else(|| self.inner.clone());
        let fs = ShippingFs { inner, root: held.path.clone(), ..self.clone() };
        Ok(HeldDir { path: held.path, fs: Some(Arc::new(fs)) })
    }
}

impl ShippedFile {
    fn file(&self) -> &dyn File {
        &*self.synced.file
    }

    /// Syncs the file. The shipper syncs only chunk files.
    fn sync_by(&self, end: u64, sync: impl FnOnce(&dyn File) -> Result<()>) -> Result<()> {
        match self.class {
            FileClass::Chunk => self.synced.sync_by(end, sync),
            FileClass::Table | FileClass::Log => sync(self.file()),
        }
    }

    /// Appends by `append`, and notes it.
    fn append_by(&self, bytes: &[&[u8]], append: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut end = self.end.lock();
        if end.is_torn {
            let torn = io::Error::other("an earlier append failed");
            return Err(Error::io("append to", &self.path, torn));
        }
        end.is_torn = true;
        append()?;
        end.is_torn = false;
        let offset = end.at;
        let len: usize = bytes.iter().map(|piece| piece.len()).sum();
        end.at += len as u64;
        let shipper = &self.fs.shipper;
        let waiting = match self.class {
            FileClass::Log if end.is_noted => shipper.note_append(&self.name, offset, bytes),
            FileClass::Log => {
                match shipper.take_deferred(&self.name) {
                    Some(from) => {
                        let noted = self.note_deferred(from, end.at);
                        noted.inspect_err(|_| shipper.defer(self.name.clone()))?;
                        end.owes_put = true;
                    }
                    None => drop(shipper.note_append(&self.name, offset, bytes)),
                }
                end.is_noted = true;
                shipper.waiting_bytes()
            }
            FileClass::Table => return Ok(()),
            FileClass::Chunk => {
                let file = self.synced.clone();
                let name = self.name.clone();
                shipper.note(NotedChange::Range { name, offset, len: len as u64, file });
                shipper.waiting_bytes()
            }
        };
        end.mark = shipper.noted();
        drop(end);
        if waiting > self.fs.backlog_bytes {
            return self.fs.ship_all(&self.path);
        }
        Ok(())
    }

    /// Notes the bytes of a file of an earlier run up to `end`. The end of a manifest counts from here on: the new
    /// generation has all that was recovered, and the old one names it by the append that was just made.
    fn note_deferred(&self, from: u64, end: u64) -> Result<()> {
        let mut bytes = vec![0; (end - from) as usize];
        if self.file().read_at(from, &mut bytes)? < bytes.len() {
            let what = "the file is shorter than written";
            return Err(Error::corruption(self.path.clone(), from, what));
        }
        let name = self.name.clone();
        if !self.fs.shipper.has(&name) {
            self.fs.note(StoredChange::Create { name: name.clone() });
        }
        self.fs.note(StoredChange::Append { name, offset: from, bytes });
        Ok(())
    }

    /// Puts what is new in a table.
    fn put_table(&self) -> Result<()> {
        let mut end = self.end.lock();
        if end.put == end.at {
            return Ok(());
        }
        let piece = self.fs.shipper.put_range("table", &self.name, end.put..end.at, self.file());
        let piece =
            piece.map_err(|error| Error::io("sync", &self.path, io::Error::other(error)))?;
        if end.put == 0 {
            self.fs.note(StoredChange::Create { name: self.name.clone() });
        }
        self.fs.note(StoredChange::Piece { name: self.name.clone(), piece });
        end.put = end.at;
        Ok(())
    }
}

impl File for ShippedFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.append_by(&[bytes], || self.file().append(bytes))
    }

    fn append_pieces(&self, pieces: &[&[u8]]) -> Result<()> {
        self.append_by(pieces, || self.file().append_pieces(pieces))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file().read_at(offset, buf)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file().prefetch(offset, len);
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file().read_cached_at(offset, buf)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file().read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        // A later append has a sync of its own, and other files have theirs. This one does not wait for puts of them.
        let end = self.end.lock();
        let mark = end.mark;
        let at = end.at;
        drop(end);
        self.sync_by(at, File::sync)?;
        match self.class {
            FileClass::Table => self.put_table(),
            FileClass::Log | FileClass::Chunk => {
                if self.end.lock().owes_put {
                    // What a restart has recovered is stored before the open of the database returns.
                    self.fs.ship_all(&self.path)?;
                    self.end.lock().owes_put = false;
                }
                self.fs.ship(&self.path, mark)
            }
        }
    }

    fn sync_locally(&self) -> Result<()> {
        let end = self.end.lock();
        let owes_put = end.owes_put;
        let at = end.at;
        drop(end);
        if self.class == FileClass::Table || owes_put {
            return self.sync();
        }
        self.sync_by(at, File::sync_locally)?;
        self.fs.shipper.check_writer()
    }

    fn gather_time(&self) -> Duration {
        self.fs.shipper.gather_time()
    }

    fn begin_sync(&self) {
        self.file().begin_sync();
    }

    fn begin_next_sync(&self) -> Result<()> {
        self.file().begin_next_sync()
    }

    fn len(&self) -> Result<u64> {
        self.file().len()
    }

    fn readable(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.file().readable(range)
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.file().preallocate(len)?;
        if self.class != FileClass::Table {
            let extend = StoredChange::Extend { name: self.name.clone(), len };
            let mut end = self.end.lock();
            end.mark = self.fs.shipper.note(NotedChange::Whole(extend));
        }
        Ok(())
    }

    fn map_appends(&self) -> bool {
        // The journal gets the bytes from the call.
        self.file().map_appends()
    }

    fn map(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        self.file().map(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        // The bucket keeps the bytes until the file is deleted. No one reads them.
        self.file().punch(offset, len)
    }
}

#[cfg(test)]
mod tests;
