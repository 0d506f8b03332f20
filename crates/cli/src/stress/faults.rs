//! [`FaultyDisk`]: a file system whose calls fail now and then, as those of a disk that is full, worn or pulled out.
//!
//! Used by `stress-writer` alone. A write that fails has written nothing, or its beginning. A sync that fails has synced
//! nothing. Each failure is an I/O error or a full disk, and the next call may succeed.
//!
//! Invariant: no byte that a call has read or acknowledged is changed: a store may report failures, and loses nothing.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone::fs::{
    AppendMode, Caps, DirEntry, File, FolderLook, FolderState, Fs, HeldDir, LockGuard, MapMode,
    MappedBytes, SharedWords,
};
use siltstone::{Error, Result};
use testkit::rng::mix64;

/// The choice of the calls that fail.
pub(super) struct Faults {
    seed: u64,
    /// One of so many calls fails.
    one_in: u64,
    // Both are counters; no other value depends on them.
    calls: AtomicU64,
    failed: AtomicU64,
}

impl Faults {
    pub(super) fn new(seed: u64, one_in: u64) -> Arc<Faults> {
        let [calls, failed] = [(); 2].map(|()| AtomicU64::new(0));
        Arc::new(Faults { seed, one_in, calls, failed })
    }

    /// The number of calls that have failed.
    pub(super) fn count(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// A random number if the next call fails.
    fn draw(&self) -> Option<u64> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let drawn = mix64(self.seed ^ mix64(call));
        let fails = drawn.is_multiple_of(self.one_in);
        self.failed.fetch_add(fails.into(), Ordering::Relaxed);
        fails.then(|| mix64(drawn))
    }

    fn check(&self, verb: &str, path: &Path) -> Result<()> {
        self.draw().map_or(Ok(()), |drawn| Err(error_of(verb, path, drawn)))
    }
}

fn error_of(verb: &str, path: &Path, drawn: u64) -> Error {
    let error = match drawn.is_multiple_of(3) {
        true => io::Error::new(io::ErrorKind::StorageFull, "no space left, by --fault-one-in"),
        false => io::Error::other("a failure of the disk, by --fault-one-in"),
    };
    Error::io(verb, path, error)
}

/// The file system.
pub(super) struct FaultyDisk {
    pub(super) inner: Arc<dyn Fs>,
    pub(super) faults: Arc<Faults>,
}

impl FaultyDisk {
    fn file(&self, path: &Path, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(FaultyFile { inner, path: path.to_owned(), faults: self.faults.clone() })
    }
}

impl Fs for FaultyDisk {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.faults.check("create", dir)?;
        self.inner.create_dir(dir)
    }

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        self.faults.check("create", path)?;
        Ok(self.file(path, self.inner.open_append(path, mode)?))
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.faults.check("open", path)?;
        Ok(self.file(path, self.inner.open_read(path)?))
    }

    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        self.faults.check("write", path)?;
        self.inner.put_if_absent(path, content)
    }

    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        self.faults.check("list", dir)?;
        self.inner.list(dir, prefix)
    }

    fn list_names(&self, dir: &Path, prefix: &str) -> Result<Vec<String>> {
        self.faults.check("list", dir)?;
        self.inner.list_names(dir, prefix)
    }

    fn delete(&self, path: &Path) -> Result<()> {
        self.faults.check("delete", path)?;
        self.inner.delete(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.faults.check("link", to)?;
        self.inner.link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.faults.check("sync", dir)?;
        self.inner.sync_dir(dir)
    }

    fn sync_names(&self, dir: &Path, names: &[PathBuf]) -> Result<()> {
        self.faults.check("sync", dir)?;
        self.inner.sync_names(dir, names)
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

    fn map_words(&self, path: &Path, mode: MapMode) -> Result<Option<Arc<dyn SharedWords>>> {
        self.inner.map_words(path, mode)
    }

    fn machine_run(&self) -> Option<u64> {
        self.inner.machine_run()
    }

    fn folder_state(&self, dir: &Path, wanted: FolderState) -> Result<FolderLook> {
        self.inner.folder_state(dir, wanted)
    }

    fn failure(&self) -> Option<String> {
        self.inner.failure()
    }

    fn hold_dir(&self, dir: &Path) -> Result<HeldDir> {
        let HeldDir { path, fs } = self.inner.hold_dir(dir)?;
        let faults = self.faults.clone();
        let fs = fs.map(|inner| Arc::new(FaultyDisk { inner, faults }) as Arc<dyn Fs>);
        Ok(HeldDir { path, fs })
    }
}

/// A file of it.
struct FaultyFile {
    inner: Arc<dyn File>,
    path: PathBuf,
    faults: Arc<Faults>,
}

impl FaultyFile {
    /// The part of `bytes` that a failing write leaves.
    fn beginning(drawn: u64, bytes: usize) -> Range<usize> {
        0..if drawn & 1 == 0 { 0 } else { mix64(drawn) as usize % (bytes + 1) }
    }
}

impl File for FaultyFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        let Some(drawn) = self.faults.draw() else { return self.inner.append(bytes) };
        self.inner.append(&bytes[FaultyFile::beginning(drawn, bytes.len())])?;
        Err(error_of("append to", &self.path, drawn))
    }

    fn append_pieces(&self, pieces: &[&[u8]]) -> Result<()> {
        let Some(drawn) = self.faults.draw() else { return self.inner.append_pieces(pieces) };
        let bytes = pieces.concat();
        self.inner.append(&bytes[FaultyFile::beginning(drawn, bytes.len())])?;
        Err(error_of("append to", &self.path, drawn))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.faults.check("read", &self.path)?;
        self.inner.read_at(offset, buf)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.inner.prefetch(offset, len);
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.faults.check("read", &self.path)?;
        self.inner.read_cached_at(offset, buf)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.faults.check("read", &self.path)?;
        self.inner.read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        self.faults.check("sync", &self.path)?;
        self.inner.sync()
    }

    fn gather_time(&self) -> Duration {
        self.inner.gather_time()
    }

    fn begin_sync(&self) {
        self.inner.begin_sync();
    }

    fn begin_next_sync(&self) -> Result<()> {
        self.inner.begin_next_sync()
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn readable(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.faults.check("read", &self.path)?;
        self.inner.readable(range)
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.faults.check("extend", &self.path)?;
        self.inner.preallocate(len)
    }

    fn map_appends(&self) -> bool {
        self.inner.map_appends()
    }

    fn map(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        self.inner.map(offset, len)
    }

    fn overwrite(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.faults.check("write", &self.path)?;
        self.inner.overwrite(offset, bytes)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.faults.check("punch", &self.path)?;
        self.inner.punch(offset, len)
    }
}
