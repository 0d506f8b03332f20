//! The real file system: [`OsFs`], and its files. The system calls, which differ from
//! system to system, are in `sys/`; the same with a folder held open is `held.rs`.
//!
//! Called through [`Fs`] and [`File`] alone. It must never retry a failed sync, and never move an
//! append position backwards.
//!
//! Invariants:
//! 1. All I/O is positional: no call depends on, or moves, a cursor that another call shares.
//! 2. An append reserves its range before it writes, so concurrent appends never overlap.
//! 3. An interrupted call is repeated, a short one is continued; any other error is returned with
//!    operation and path.
//! 4. While appends may be stored through a mapping, one append runs at a time.

#![expect(clippy::disallowed_methods, reason = "with `sys/` the only place that may name std::fs")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::held::HeldFs;
use super::sync_files::sync_files;
use super::sys::{self, At, MappedAppends};
use super::whole::{read_full, write_all, write_all_pieces};
use super::{
    AppendMode, Caps, DirEntry, File, Fs, HeldDir, LockGuard, MapMode, MappedBytes, SharedWords,
};
use crate::error::{Error, Result};
use crate::types::Process;

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsFs;

/// An open file and the place of its next append.
struct OsFile {
    // Fixed after construction.
    file: fs::File,
    path: PathBuf,
    // The place of the next append. Relaxed: the read-modify-write alone keeps ranges apart, and it
    // publishes no other memory.
    position: AtomicU64,
    /// For a file whose appends may be stored through a mapping. Locked for the whole of an append,
    /// a written one included: after one append the next may write zeros.
    mapped: OnceLock<Mutex<MappedAppends>>,
    /// Set by a sync until an append has read it. Relaxed, and not under the lock: a sync should
    /// not wait for an append, and any later append may handle it.
    is_sync_news: AtomicBool,
    /// The only process that may write: a child has the place of the next append as it was at the
    /// fork.
    process: Process,
}

/// Holds the lock as long as the file is open.
struct OsLock {
    file: fs::File,
    process: Process,
}

impl OsLock {
    fn new(file: fs::File) -> OsLock {
        OsLock { file, process: Process::current() }
    }
}

impl LockGuard for OsLock {}

impl Drop for OsLock {
    fn drop(&mut self) {
        // A child of the process has a copy of the open file, with which it would keep the lock. It may close
        // its copy, and must not release the lock of its parent.
        if self.process.is_current() {
            // If this fails, the lock ends with the last copy.
            let _ = sys::unlock(&self.file);
        }
    }
}

impl Fs for OsFs {
    fn caps(&self) -> Caps {
        Caps {
            link: true,
            punch: sys::CAN_PUNCH,
            process_lock: true,
            is_encrypted: false,
            is_far: false,
        }
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        create_dir_durably(dir)
    }

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        open_append(&At::whole(path), mode)
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        open_read(&At::whole(path))
    }

    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        put_if_absent(&At::whole(path), content)
    }

    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        At::whole(dir).list(prefix).map_err(|e| Error::io("list", dir, e))
    }

    fn list_names(&self, dir: &Path, prefix: &str) -> Result<Vec<String>> {
        At::whole(dir).list_names(prefix).map_err(|e| Error::io("list", dir, e))
    }

    fn map_words(&self, path: &Path, mode: MapMode) -> Result<Option<Arc<dyn SharedWords>>> {
        sys::map_words(&At::whole(path), mode)
    }

    fn machine_run(&self) -> Option<u64> {
        sys::machine_run()
    }

    fn delete(&self, path: &Path) -> Result<()> {
        At::whole(path).unlink().map_err(|e| Error::io("delete", path, e))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        At::whole(from).link(&At::whole(to)).map_err(|e| Error::io("link", to, e))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        sync_dir(&At::whole(dir)).map_err(|e| Error::io("sync the folder", dir, e))
    }

    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        sync_files(files)
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        try_lock(&At::whole(path))
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        try_lock_shared(&At::whole(path))
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        At::whole(dir).free_bytes().map_err(|e| Error::io("get the free space of", dir, e))
    }

    fn hold_dir(&self, dir: &Path) -> Result<HeldDir> {
        let (held, path) = HeldFs::open(dir)?;
        Ok(HeldDir { path, fs: Some(held) })
    }
}

pub(super) fn open_append(at: &At<'_>, mode: AppendMode) -> Result<Arc<dyn File>> {
    let path = at.path;
    let file = match mode {
        AppendMode::IfAbsent => at.create_new().map_err(|e| Error::io("create", path, e))?,
        AppendMode::Existing => at.open_existing().map_err(|e| Error::io("open", path, e))?,
    };
    let len = file.metadata().map_err(|e| Error::io("get the length of", path, e))?.len();
    Ok(Arc::new(OsFile::new(file, path, len)))
}

pub(super) fn open_read(at: &At<'_>) -> Result<Arc<dyn File>> {
    let file = at.open_read().map_err(|e| Error::io("open", at.path, e))?;
    // The handle cannot append, so its position is never used.
    Ok(Arc::new(OsFile::new(file, at.path, 0)))
}

pub(super) fn put_if_absent(at: &At<'_>, content: &[u8]) -> Result<bool> {
    // Saves a temporary file; the link below decides, because another process may create the name
    // meanwhile.
    if at.exists() {
        return Ok(false);
    }
    let (file, name) = at.create_temporary().map_err(|e| Error::io("create", at.path, e))?;
    let temporary = at.temporary(&name);
    let published = write_all(content, 0, |part, at| sys::write_at(&file, part, at))
        .map_err(|e| Error::io("write", at.path, e))
        // Durability: the bytes, before they have their name.
        .and_then(|()| file.sync_data().map_err(|e| Error::io("sync", at.path, e)))
        .and_then(|()| match temporary.publish(at) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(Error::io("publish", at.path, e)),
        });
    // If it stays, the next open removes it, and the outcome of the name is known already: an error
    // of this removal would not help the caller.
    let _ = temporary.unlink();
    if published? {
        // Durability: the name; the bytes were synced under their temporary name.
        sync_dir(&at.parent()).map_err(|e| Error::io("sync the folder of", at.path, e))?;
        return Ok(true);
    }
    Ok(false)
}

pub(super) fn try_lock(at: &At<'_>) -> Result<Option<Box<dyn LockGuard>>> {
    let file = at.open_or_create().map_err(|e| Error::io("open", at.path, e))?;
    let is_locked = sys::try_lock(&file, true).map_err(|e| Error::io("lock", at.path, e))?;
    Ok(is_locked.then(|| Box::new(OsLock::new(file)) as Box<dyn LockGuard>))
}

/// Makes the names in a folder durable.
pub(super) fn sync_dir(at: &At<'_>) -> io::Result<()> {
    at.sync_dir()
}

pub(super) fn try_lock_shared(at: &At<'_>) -> Result<Option<Box<dyn LockGuard>>> {
    let file = at.open_read().map_err(|e| Error::io("open", at.path, e))?;
    let is_locked = sys::try_lock(&file, false).map_err(|e| Error::io("lock", at.path, e))?;
    Ok(is_locked.then(|| Box::new(OsLock::new(file)) as Box<dyn LockGuard>))
}

/// Creates a folder whose parent exists, durably; no error if it exists.
pub(super) fn create_one_dir(at: &At<'_>) -> Result<()> {
    match at.make_dir() {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::io("create the folder", at.path, e))
        }
        // A folder of another creator is not durable yet, either.
        _ => sync_dir(&at.parent()).map_err(|e| Error::io("sync the folder of", at.path, e)),
    }
}

impl OsFile {
    fn new(file: fs::File, path: &Path, position: u64) -> OsFile {
        OsFile {
            file,
            path: path.to_owned(),
            position: AtomicU64::new(position),
            mapped: OnceLock::new(),
            is_sync_news: AtomicBool::new(false),
            process: Process::current(),
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        append(&self.position, bytes, |part, at| sys::write_at(&self.file, part, at))
            .map_err(|e| self.failed("append to", e))
    }

    fn write_pieces(&self, pieces: &[&[u8]]) -> Result<()> {
        let mut slices: Vec<io::IoSlice<'_>> =
            pieces.iter().map(|piece| io::IoSlice::new(piece)).collect();
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        let offset = self.position.fetch_add(len, Ordering::Relaxed);
        write_all_pieces(&mut slices, offset, |part, at| sys::write_pieces_at(&self.file, part, at))
            .map_err(|e| self.failed("append to", e))
    }

    /// Stores `pieces` through the mapping; `false` if they must be written. `mapped` stays locked
    /// until they are.
    fn store(&self, mapped: &mut MappedAppends, pieces: &[&[u8]]) -> bool {
        if self.is_sync_news.load(Ordering::Relaxed) {
            self.is_sync_news.store(false, Ordering::Relaxed);
            mapped.note_sync();
        }
        let offset = self.position.load(Ordering::Relaxed);
        let is_stored = mapped.store(&self.file, offset, pieces);
        if is_stored {
            let len = pieces.iter().map(|piece| piece.len() as u64).sum();
            self.position.fetch_add(len, Ordering::Relaxed);
        }
        is_stored
    }

    fn failed(&self, operation: &str, e: io::Error) -> Error {
        Error::io(operation, &self.path, e)
    }
}

impl File for OsFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.process.check()?;
        let Some(mapped) = self.mapped.get() else {
            return self.write(bytes);
        };
        let mut mapped = mapped.lock();
        if self.store(&mut mapped, &[bytes]) { Ok(()) } else { self.write(bytes) }
    }

    fn append_pieces(&self, pieces: &[&[u8]]) -> Result<()> {
        self.process.check()?;
        let Some(mapped) = self.mapped.get() else {
            return self.write_pieces(pieces);
        };
        let mut mapped = mapped.lock();
        if self.store(&mut mapped, pieces) { Ok(()) } else { self.write_pieces(pieces) }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        read_full(buf, offset, |part, at| sys::read_at(&self.file, part, at))
            .map_err(|e| self.failed("read", e))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        sys::prefetch(&self.file, offset, len);
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match sys::read_cached(&self.file, offset, buf) {
            Some(got) => Ok(got),
            None => self.read_at(offset, buf),
        }
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        sys::drop_from_cache(&self.file, offset, buf.len() as u64);
        self.read_at(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        self.process.check()?;
        self.is_sync_news.store(true, Ordering::Relaxed);
        // Durability: fdatasync writes pages that were stored to as well: the kernel knows of the
        // first store to a clean page. It carries a changed length too; on macOS std asks for F_FULLFSYNC.
        self.file.sync_data().map_err(|e| self.failed("sync", e))
    }

    fn begin_sync(&self) {
        sys::begin_writeback(&self.file);
    }

    fn begin_next_sync(&self) -> Result<()> {
        sys::begin_next_writeback(&self.file).map_err(|e| self.failed("write back", e))
    }

    fn len(&self) -> Result<u64> {
        let metadata = self.file.metadata().map_err(|e| self.failed("get the length of", e))?;
        Ok(metadata.len())
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.process.check()?;
        let old = self.len()?;
        if len <= old {
            return Ok(());
        }
        sys::reserve(&self.file, old, len).map_err(|e| self.failed("preallocate", e))
    }

    fn map_appends(&self) -> bool {
        let mapped = self.len().ok().and_then(|end| MappedAppends::of(&self.file, end));
        mapped.is_some_and(|mapped| self.mapped.set(Mutex::new(mapped)).is_ok())
    }

    fn map(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        sys::map_read(&self.file, offset, len)
    }

    fn overwrite(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.process.check()?;
        write_all(bytes, offset, |part, at| sys::write_at(&self.file, part, at))
            .map_err(|e| self.failed("write over a part of", e))
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.process.check()?;
        if len == 0 {
            return Ok(());
        }
        let mut mapped = self.mapped.get().map(Mutex::lock);
        if let Some(mapped) = &mut mapped {
            mapped.note_punch();
        }
        sys::punch_hole(&self.file, offset, len).map_err(|e| self.failed("punch a hole in", e))
    }
}

/// The folder that holds `path`; a bare name is in the current one.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

fn create_dir_durably(dir: &Path) -> Result<()> {
    let mut missing = Vec::new();
    for ancestor in dir.ancestors() {
        if ancestor.as_os_str().is_empty() || ancestor.is_dir() {
            break;
        }
        missing.push(ancestor);
    }
    if missing.is_empty() {
        return sync_parent_of_existing(dir);
    }
    for folder in missing.into_iter().rev() {
        match fs::create_dir(folder) {
            Err(e) if !(e.kind() == io::ErrorKind::AlreadyExists && folder.is_dir()) => {
                return Err(Error::io("create the folder", folder, e));
            }
            // A folder of another creator is not durable yet, either.
            _ => OsFs.sync_dir(parent(folder))?,
        }
    }
    Ok(())
}

/// The folder may stem from a process that was killed between its creation and the sync of its
/// name; a power cut would then lose everything in it.
fn sync_parent_of_existing(dir: &Path) -> Result<()> {
    match OsFs.sync_dir(parent(dir)) {
        // A process that may not read the parent did not create `dir` in it.
        Err(e) if e.io_source().is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied) => {
            Ok(())
        }
        done => done,
    }
}

/// Takes the next range for `bytes` and writes them there.
fn append(
    position: &AtomicU64,
    bytes: &[u8],
    write: impl FnMut(&[u8], u64) -> io::Result<usize>,
) -> io::Result<()> {
    let offset = position.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    write_all(bytes, offset, write)
}

#[cfg(test)]
mod tests;
