//! A file system that fails on request: [`FaultFs`] wraps another one, counts its operations, and
//! fails the calls that its rules name.
//!
//! Used by the fault and crash tests: a run without rules counts the operations, then each of them
//! is failed in its turn, or a crash image is taken before it by the observer. With no rule and no
//! observer it changes nothing.
//!
//! Invariants:
//! 1. Every call of [`Fs`] and [`File`] that touches the medium gets one index; indexes are dense,
//!    from 0. [`Fs::caps`] gets none.
//! 2. Observer and wrapped file system are called outside the locks of this one.
//! 3. A failed call leaves the medium exactly in the state that its action describes.

mod rule;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use self::rule::ArmedRule;
use super::mem::{MemFile, MemFs, SyncLoss};
use super::{
    AppendMode, Caps, DirEntry, File, Fs, HeldDir, LockGuard, MapMode, MappedBytes, SharedWords,
};
use crate::error::{Error, Result};

pub use self::rule::{FaultAction, FaultAt, FaultRule, FsOp, OpKind};

/// Called before each operation is carried out.
pub type Observer = dyn Fn(&FsOp) + Send + Sync;

/// A file system that counts, reports and fails the operations of another. Clones share all.
#[derive(Clone)]
pub struct FaultFs {
    shared: Arc<FaultShared>,
}

struct FaultShared {
    // Fixed after construction.
    fs: Arc<dyn Fs>,
    /// `fs` again if it is one whose syncs can be made to fail in full.
    mem: Option<MemFs>,
    // Next index, next mutation, broken operations. Indexes are handed out under `table`.
    counts: FaultCounts,
    observer: RwLock<Option<Arc<Observer>>>,
    table: Mutex<RuleTable>,
}

#[derive(Default)]
struct FaultCounts {
    ops: AtomicU64,
    mutations: AtomicU64,
    faults: AtomicU64,
}

#[derive(Default)]
struct RuleTable {
    rules: Vec<ArmedRule>,
    log: Option<Vec<FsOp>>,
}

impl FaultFs {
    /// Wraps any file system. A lost or lied sync is one that does not reach `fs`.
    pub fn new(fs: Arc<dyn Fs>) -> FaultFs {
        FaultFs::wrap(fs, None)
    }

    /// Wraps a [`MemFs`], where a lost sync also takes away what a later one could save.
    pub fn over_mem(mem: MemFs) -> FaultFs {
        FaultFs::wrap(Arc::new(mem.clone()), Some(mem))
    }

    fn wrap(fs: Arc<dyn Fs>, mem: Option<MemFs>) -> FaultFs {
        let shared = FaultShared {
            fs,
            mem,
            counts: FaultCounts::default(),
            observer: RwLock::default(),
            table: Mutex::default(),
        };
        FaultFs { shared: Arc::new(shared) }
    }

    /// Adds a rule. Of several rules that hit an operation the oldest acts.
    pub fn add_rule(&self, rule: FaultRule) {
        self.shared.table.lock().rules.push(ArmedRule { rule, passed: 0 });
    }

    /// Drops all rules.
    pub fn heal(&self) {
        self.shared.table.lock().rules.clear();
    }

    /// Returns the number of operations so far, which is the index of the next one.
    pub fn op_count(&self) -> u64 {
        self.shared.counts.ops.load(Ordering::Relaxed)
    }

    /// Returns the number of operations so far that mutate.
    pub fn mutation_count(&self) -> u64 {
        self.shared.counts.mutations.load(Ordering::Relaxed)
    }

    /// Returns the number of operations that rules broke.
    pub fn fault_count(&self) -> u64 {
        self.shared.counts.faults.load(Ordering::Relaxed)
    }

    /// Starts to keep a log of the operations, from empty.
    pub fn start_log(&self) {
        self.shared.table.lock().log = Some(Vec::new());
    }

    /// The log since [`FaultFs::start_log`], which ends with this.
    pub fn take_log(&self) -> Vec<FsOp> {
        self.shared.table.lock().log.take().unwrap_or_default()
    }

    /// Calls `observer` before each later operation, on its thread and before rules are applied, so
    /// that it may add some. It operates on the wrapped file system, or on this one with care: then it
    /// is called again.
    pub fn set_observer(&self, observer: Arc<Observer>) {
        *self.shared.observer.write() = Some(observer);
    }

    /// Removes the observer.
    pub fn clear_observer(&self) {
        *self.shared.observer.write() = None;
    }

    /// Numbers, logs and announces an operation; returns its action.
    fn begin(&self, kind: OpKind, path: &Arc<Path>, len: usize) -> Option<FaultAction> {
        self.begin_len(kind, path, len as u64)
    }

    fn begin_len(&self, kind: OpKind, path: &Arc<Path>, len: u64) -> Option<FaultAction> {
        let counts = &self.shared.counts;
        let op = {
            let mut table = self.shared.table.lock();
            let index = counts.ops.fetch_add(1, Ordering::Relaxed);
            let mutation = counts.mutations.fetch_add(kind.mutates().into(), Ordering::Relaxed);
            let op = FsOp { index, mutation, kind, path: Arc::clone(path), len };
            if let Some(log) = &mut table.log {
                log.push(op.clone());
            }
            op
        };
        // Cloned, so that the observer is called without the lock and may replace itself.
        let observer = self.shared.observer.read().clone();
        if let Some(observer) = observer {
            observer(&op);
        }
        let mut table = self.shared.table.lock();
        // Every rule sees every operation, so that none miscounts because another one acted.
        let mut action = None;
        for armed in &mut table.rules {
            if armed.hits(&op) && action.is_none() {
                action = Some(armed.rule.action);
            }
        }
        if action.is_some() {
            counts.faults.fetch_add(1, Ordering::Relaxed);
        }
        drop(table);
        let panics = action == Some(FaultAction::Panic);
        assert!(!panics, "injected panic of {kind:?} on {}", path.display());
        action
    }

    /// As [`FaultFs::begin`], for operations that can only fail.
    fn check(&self, kind: OpKind, operation: &str, path: &Arc<Path>, len: u64) -> Result<()> {
        match self.begin_len(kind, path, len) {
            None => Ok(()),
            Some(action) => Err(Error::io(operation, path, action.error())),
        }
    }

    fn check_path(&self, kind: OpKind, operation: &str, path: &Path) -> Result<Arc<Path>> {
        let path = Arc::from(path);
        self.check(kind, operation, &path, 0)?;
        Ok(path)
    }

    fn file(&self, path: Arc<Path>, inner: Wrapped) -> Arc<dyn File> {
        Arc::new(FaultFile { fs: self.clone(), path, inner })
    }

    /// Loses the unsynced names of a folder, where that is possible.
    fn lose_names(&self, dir: &Path) -> Result<()> {
        self.shared.mem.as_ref().map_or(Ok(()), |mem| mem.lose_unsynced_names(dir))
    }
}

impl Fs for FaultFs {
    fn caps(&self) -> Caps {
        self.shared.fs.caps()
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.check_path(OpKind::CreateDir, "create the folder", dir)?;
        self.shared.fs.create_dir(dir)
    }

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        let (kind, operation) = match mode {
            AppendMode::IfAbsent => (OpKind::Create, "create"),
            AppendMode::Existing => (OpKind::OpenExisting, "open"),
        };
        let path = self.check_path(kind, operation, path)?;
        let inner = match &self.shared.mem {
            Some(mem) => Wrapped::Mem(mem.open_append_mem(&path, mode)?),
            None => Wrapped::Any(self.shared.fs.open_append(&path, mode)?),
        };
        Ok(self.file(path, inner))
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        let path = self.check_path(OpKind::OpenRead, "open", path)?;
        let inner = match &self.shared.mem {
            Some(mem) => Wrapped::Mem(mem.open_read_mem(&path)?),
            None => Wrapped::Any(self.shared.fs.open_read(&path)?),
        };
        Ok(self.file(path, inner))
    }

    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        let path = Arc::from(path);
        let Some(action) = self.begin(OpKind::PutIfAbsent, &path, content.len()) else {
            return self.shared.fs.put_if_absent(&path, content);
        };
        let failure = Error::io("publish", &path, action.error());
        if matches!(action, FaultAction::Eio | FaultAction::Enospc | FaultAction::Emfile) {
            return Err(failure);
        }
        // All but the last step, the sync of the folder, which is lost or a lie.
        let is_put = match &self.shared.mem {
            Some(mem) => mem.put_with_pending_name(&path, content)?,
            None => self.shared.fs.put_if_absent(&path, content)?,
        };
        if let (true, FaultAction::SyncLost | FaultAction::SyncReverted, Some(dir)) =
            (is_put, action, path.parent())
        {
            self.lose_names(dir)?;
        }
        if !is_put || action == FaultAction::SyncLie { Ok(is_put) } else { Err(failure) }
    }

    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        self.check_path(OpKind::List, "list", dir)?;
        self.shared.fs.list(dir, prefix)
    }

    fn list_names(&self, dir: &Path, prefix: &str) -> Result<Vec<String>> {
        self.check_path(OpKind::List, "list", dir)?;
        self.shared.fs.list_names(dir, prefix)
    }

    /// Not counted: such a file has no durable content.
    fn map_words(&self, path: &Path, mode: MapMode) -> Result<Option<Arc<dyn SharedWords>>> {
        // Words that are there are memory: no access to them is an operation.
        if matches!(mode, MapMode::Create(_)) {
            self.check_path(OpKind::MapWords, "map", path)?;
        }
        self.shared.fs.map_words(path, mode)
    }

    fn machine_run(&self) -> Option<u64> {
        self.shared.fs.machine_run()
    }

    fn delete(&self, path: &Path) -> Result<()> {
        self.check_path(OpKind::Delete, "delete", path)?;
        self.shared.fs.delete(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.check_path(OpKind::Link, "link", to)?;
        self.shared.fs.link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let path = Arc::from(dir);
        match self.begin(OpKind::SyncDir, &path, 0) {
            None => self.shared.fs.sync_dir(dir),
            // A device that acknowledges a sync and does nothing.
            Some(FaultAction::SyncLie) => Ok(()),
            Some(action) => {
                if matches!(action, FaultAction::SyncLost | FaultAction::SyncReverted) {
                    self.lose_names(dir)?;
                }
                Err(Error::io("sync the folder", dir, action.error()))
            }
        }
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.check_path(OpKind::Lock, "lock", path)?;
        self.shared.fs.try_lock(path)
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.check_path(OpKind::LockShared, "lock", path)?;
        self.shared.fs.try_lock_shared(path)
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.check_path(OpKind::FreeBytes, "get the free space of", dir)?;
        self.shared.fs.free_bytes(dir)
    }

    /// Resolves the path alone: every later call still comes through here, to be counted.
    fn hold_dir(&self, dir: &Path) -> Result<HeldDir> {
        Ok(HeldDir { path: self.shared.fs.hold_dir(dir)?.path, fs: None })
    }
}

/// The wrapped file. A [`MemFile`] is known by its type because a lost sync needs more of it than
/// [`File`] offers, and the trait of production code should not grow for the tests.
enum Wrapped {
    Any(Arc<dyn File>),
    Mem(Arc<MemFile>),
}

struct FaultFile {
    fs: FaultFs,
    path: Arc<Path>,
    inner: Wrapped,
}

impl FaultFile {
    fn inner(&self) -> &dyn File {
        match &self.inner {
            Wrapped::Any(file) => &**file,
            Wrapped::Mem(file) => &**file,
        }
    }

    fn lose_unsynced(&self, loss: SyncLoss) {
        if let Wrapped::Mem(file) = &self.inner {
            file.lose_unsynced(loss);
        }
    }

    fn check(&self, kind: OpKind, operation: &str, len: u64) -> Result<()> {
        self.fs.check(kind, operation, &self.path, len)
    }
}

impl File for FaultFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        let Some(action) = self.fs.begin(OpKind::Append, &self.path, bytes.len()) else {
            return self.inner().append(bytes);
        };
        if let FaultAction::ShortWrite(n) | FaultAction::ShortWriteNoSpace(n) = action {
            let n = usize::try_from(n).unwrap_or(usize::MAX).min(bytes.len());
            // A part is written and the call fails, as on a disk that fills up in the middle of a
            // write.
            self.inner().append(&bytes[..n])?;
        }
        Err(Error::io("append to", &self.path, action.error()))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.check(OpKind::Read, "read", buf.len() as u64)?;
        self.inner().read_at(offset, buf)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.check(OpKind::Read, "read", buf.len() as u64)?;
        self.inner().read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        let Some(action) = self.fs.begin(OpKind::Sync, &self.path, 0) else {
            return self.inner().sync();
        };
        match action {
            FaultAction::SyncLie => return Ok(()),
            FaultAction::SyncLost => self.lose_unsynced(SyncLoss::Kept),
            FaultAction::SyncReverted => self.lose_unsynced(SyncLoss::Reverted),
            _ => {}
        }
        Err(Error::io("sync", &self.path, action.error()))
    }

    fn begin_sync(&self) {
        if self.fs.begin(OpKind::BeginSync, &self.path, 0).is_none() {
            self.inner().begin_sync();
        }
    }

    fn begin_next_sync(&self) -> Result<()> {
        self.check(OpKind::BeginNextSync, "write back", 0)?;
        self.inner().begin_next_sync()
    }

    fn len(&self) -> Result<u64> {
        self.check(OpKind::Len, "get the length of", 0)?;
        self.inner().len()
    }

    fn readable(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.check(OpKind::Read, "read", 0)?;
        self.inner().readable(range)
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.check(OpKind::Preallocate, "preallocate", len)?;
        self.inner().preallocate(len)
    }

    fn map_appends(&self) -> bool {
        self.fs.begin(OpKind::Map, &self.path, 0).is_none() && self.inner().map_appends()
    }

    fn map(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        match self.fs.begin(OpKind::Map, &self.path, len) {
            None => self.inner().map(offset, len),
            Some(_) => None,
        }
    }

    fn overwrite(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(OpKind::Overwrite, "write over a part of", bytes.len() as u64)?;
        self.inner().overwrite(offset, bytes)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.check(OpKind::Punch, "punch a hole in", len)?;
        self.inner().punch(offset, len)
    }
}
