//! A file system in memory that models power cuts: [`MemFs`].
//!
//! Used by tests of every layer and for databases that need not outlive their process. It models
//! the weakest medium that [`Fs`] allows: bytes and names become durable separately, and only by
//! their own sync; [`MemFs::crash_clone`] then returns one of the states that are possible after
//! the cut.
//!
//! Invariants:
//! 1. Every change of bytes or names takes the state's lock exclusively and a sequence number,
//!    except those of `mem/raw.rs`; so a crash clone sees one moment of the whole file system.
//! 2. Lock order: state, then inode. Reads of bytes take the inode's lock alone.
//! 3. [`File::sync`] moves bytes and length, never a name; [`Fs::sync_dir`] names, never bytes.

mod content;
mod crash;
mod file;
mod inode;
mod raw;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use self::content::Content;
use self::crash::Fate;
use self::inode::{Cell, Inode};
use self::state::{Dir, FileTree, NameFate};
use super::words::HeapWords;
use super::{AppendMode, Caps, DirEntry, File, Fs, LockGuard, MapMode, SharedWords};
use crate::error::{Error, Result};

pub(super) use self::file::MemFile;

pub use self::crash::CrashOutcome;
pub use self::inode::SyncLoss;

/// A file system in memory. Clones share its state.
#[derive(Clone)]
pub struct MemFs {
    shared: Arc<MemShared>,
}

struct MemShared {
    state: RwLock<FileTree>,
    /// The locks that are held. A crash clone starts with none.
    locks: Arc<Mutex<BTreeMap<PathBuf, Holders>>>,
    /// Files that are words of memory, by their paths. They take no space; a crash clone starts with none.
    words: Mutex<BTreeMap<PathBuf, Arc<HeapWords>>>,
}

impl Default for MemFs {
    fn default() -> MemFs {
        MemFs::new()
    }
}

impl MemFs {
    /// An empty file system without a capacity limit. The folder `/` and
    /// the one of bare names exist.
    pub fn new() -> MemFs {
        let dirs = ["/", ""].map(|root| (PathBuf::from(root), Dir::default()));
        MemFs::with(FileTree { dirs: dirs.into(), next_seq: 0, next_id: 0, capacity: None })
    }

    fn with(state: FileTree) -> MemFs {
        let state = RwLock::new(state);
        let shared = MemShared { state, locks: Arc::default(), words: Mutex::default() };
        MemFs { shared: Arc::new(shared) }
    }

    /// Returns a state that a power cut at this moment could leave: a new file system with nothing
    /// pending and no lock held, which shares untouched bytes with this one. This one is not
    /// affected. The result depends on nothing but the state, `outcome` and the numbers from
    /// `random`, which should use all 64 bits.
    #[must_use]
    pub fn crash_clone(&self, outcome: CrashOutcome, random: &mut dyn FnMut() -> u64) -> MemFs {
        let state = self.shared.state.write();
        let pending = match outcome {
            CrashOutcome::Prefix => state.pending_seqs(),
            _ => Vec::new(),
        };
        // The numbers are drawn under the lock of the state, so that the image is one moment.
        let mut fate = Fate::new(outcome, &pending, random);
        let mut cells: HashMap<u64, Arc<Cell>> = HashMap::new();
        let mut dirs = BTreeMap::new();
        for (path, dir) in &state.dirs {
            let mut names = dir.durable.clone();
            for change in &dir.pending {
                if fate.keeps_name(change.seq) {
                    change.apply(&mut names);
                }
            }
            // By id: two names of one file are one file after the cut too.
            for cell in names.values_mut() {
                let left = cells
                    .entry(cell.id)
                    .or_insert_with(|| Cell::new(cell.id, fate.inode(&cell.inode.read())));
                *cell = Arc::clone(left);
            }
            let dir = Dir { durable: names.clone(), names, pending: Vec::new() };
            dirs.insert(path.clone(), dir);
        }
        let FileTree { next_seq, next_id, capacity, .. } = *state;
        MemFs::with(FileTree { dirs, next_seq, next_id, capacity })
    }

    /// Limits the bytes that all named files may take together; `None` lifts the limit. Beyond it
    /// creation, growth and preallocation fail with [`io::ErrorKind::StorageFull`]; an append
    /// writes what fits first.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.state.write().capacity = bytes;
    }

    /// Does to the pending changes of `path` what a failed sync does on real media: they count as
    /// clean from now on, so that a later sync succeeds and does not save them.
    ///
    /// # Errors
    /// `Io` if there is no such file.
    pub fn lose_unsynced(&self, path: &Path, loss: SyncLoss) -> Result<()> {
        let state = self.shared.state.write();
        let cell = state.find(path).map_err(|e| Error::io("open", path, e))?;
        cell.edit(|inode| inode.lose_pending(loss));
        Ok(())
    }

    /// Does what a failed sync of the folder `dir` does: changes of names stay visible, but will
    /// never be durable.
    ///
    /// # Errors
    /// `Io` if there is no such folder.
    pub fn lose_unsynced_names(&self, dir: &Path) -> Result<()> {
        let mut state = self.shared.state.write();
        let dir = state.dir(dir).map_err(|e| Error::io("open", dir, e))?;
        // The names stay visible. Only the crash image lacks them.
        dir.pending.clear();
        Ok(())
    }

    /// As [`Fs::put_if_absent`], but the name still needs [`Fs::sync_dir`]: the state before the
    /// last of its steps.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn put_with_pending_name(&self, path: &Path, content: &[u8]) -> Result<bool> {
        self.put(path, content, NameFate::Pending)
    }

    fn put(&self, path: &Path, content: &[u8], fate: NameFate) -> Result<bool> {
        let inode = Inode::durable(Content::from_bytes(content));
        match self.shared.state.write().create(path, inode, fate) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(Error::io("publish", path, e)),
        }
    }

    pub(super) fn open_append_mem(&self, path: &Path, mode: AppendMode) -> Result<Arc<MemFile>> {
        let mut state = self.shared.state.write();
        let (operation, cell) = match mode {
            AppendMode::IfAbsent => {
                ("create", state.create(path, Inode::default(), NameFate::Pending))
            }
            AppendMode::Existing => ("open", state.find(path).cloned()),
        };
        let cell = cell.map_err(|e| Error::io(operation, path, e))?;
        Ok(self.open(path, cell, true))
    }

    pub(super) fn open_read_mem(&self, path: &Path) -> Result<Arc<MemFile>> {
        let cell = self.shared.state.read().find(path).cloned();
        Ok(self.open(path, cell.map_err(|e| Error::io("open", path, e))?, false))
    }

    fn open(&self, path: &Path, cell: Arc<Cell>, is_writable: bool) -> Arc<MemFile> {
        Arc::new(MemFile::new(Arc::clone(&self.shared), path, cell, is_writable))
    }
}

impl Fs for MemFs {
    fn caps(&self) -> Caps {
        Caps { link: true, punch: true, process_lock: true, is_encrypted: false, is_far: false }
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        let mut state = self.shared.state.write();
        for folder in dir.ancestors() {
            if state.find(folder).is_ok() {
                let e = io::ErrorKind::AlreadyExists.into();
                return Err(Error::io("create the folder", folder, e));
            }
        }
        for folder in dir.ancestors() {
            state.dirs.entry(folder.to_owned()).or_default();
        }
        Ok(())
    }

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        Ok(self.open_append_mem(path, mode)?)
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        Ok(self.open_read_mem(path)?)
    }

    /// Only this one file becomes durable by it, although a real folder's sync would include the
    /// other names.
    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        self.put(path, content, NameFate::Durable)
    }

    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        let state = self.shared.state.read();
        let Some(found) = state.dirs.get(dir) else {
            return Err(Error::io("list", dir, io::ErrorKind::NotFound.into()));
        };
        let from_prefix = found.names.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let named = from_prefix.take_while(|(name, _)| name.starts_with(prefix));
        let mut entries: Vec<DirEntry> = named
            .map(|(name, cell)| DirEntry {
                name: name.to_string(),
                len: cell.inode.read().cache.len(),
            })
            .collect();
        drop(state);
        let words = self.shared.words.lock();
        for (path, words) in words.iter().filter(|(path, _)| path.parent() == Some(dir)) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(prefix) {
                let len = words.words().len() as u64 * 8;
                entries.push(DirEntry { name: name.to_owned(), len });
            }
        }
        entries.sort_unstable();
        Ok(entries)
    }

    fn map_words(&self, path: &Path, mode: MapMode) -> Result<Option<Arc<dyn SharedWords>>> {
        let mut words = self.shared.words.lock();
        let refused = match (words.get(path), mode) {
            (None, MapMode::Create(count)) => {
                let made = HeapWords::zeros(count);
                words.insert(path.to_owned(), made.clone());
                return Ok(Some(made));
            }
            (Some(_), MapMode::Create(_)) => io::ErrorKind::AlreadyExists,
            (Some(found), _) => return Ok(Some(found.clone())),
            (None, _) => io::ErrorKind::NotFound,
        };
        Err(Error::io("map", path, refused.into()))
    }

    /// The address of the state: clones that share it run on the same machine.
    fn machine_run(&self) -> Option<u64> {
        Some(Arc::as_ptr(&self.shared) as usize as u64)
    }

    fn delete(&self, path: &Path) -> Result<()> {
        self.shared.words.lock().remove(path);
        let mut state = self.shared.state.write();
        if state.find(path).is_err() {
            return Ok(());
        }
        state.set(path, None, NameFate::Pending).map_err(|e| Error::io("delete", path, e))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.shared.state.write();
        let linked = state.find(from).cloned().and_then(|cell| {
            if state.find(to).is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            state.set(to, Some(cell), NameFate::Pending)
        });
        linked.map_err(|e| Error::io("link", to, e))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let mut state = self.shared.state.write();
        let found = state.dir(dir).map_err(|e| Error::io("sync the folder", dir, e))?;
        for change in found.pending.drain(..) {
            change.apply(&mut found.durable);
        }
        Ok(())
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        let is_words = self.shared.words.lock().contains_key(path);
        let mut state = self.shared.state.write();
        if !is_words && state.find(path).is_err() {
            // Like a real lock file, it stays when the lock is released.
            let created = state.create(path, Inode::default(), NameFate::Pending);
            created.map_err(|e| Error::io("open", path, e))?;
        }
        let mut locks = self.shared.locks.lock();
        // A second lock of one process is refused as well, as by the locks of the system.
        if locks.contains_key(path) {
            return Ok(None);
        }
        locks.insert(path.to_owned(), Holders::Writer);
        drop(locks);
        Ok(Some(self.guard(path)))
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        let is_words = self.shared.words.lock().contains_key(path);
        if !is_words {
            self.shared.state.read().find(path).map_err(|e| Error::io("open", path, e))?;
        }
        let mut locks = self.shared.locks.lock();
        match locks.entry(path.to_owned()).or_insert(Holders::Readers(0)) {
            Holders::Writer => return Ok(None),
            Holders::Readers(count) => *count += 1,
        }
        drop(locks);
        Ok(Some(self.guard(path)))
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        let mut state = self.shared.state.write();
        state.dir(dir).map_err(|e| Error::io("get the free space of", dir, e))?;
        Ok(state.free())
    }
}

/// The holders of a lock.
enum Holders {
    Writer,
    /// This number of readers; at least one while the lock is in the map.
    Readers(usize),
}

impl MemFs {
    /// The guard that releases one hold of the lock `path`.
    fn guard(&self, path: &Path) -> Box<dyn LockGuard> {
        Box::new(MemLock { locks: Arc::clone(&self.shared.locks), path: path.to_owned() })
    }
}

struct MemLock {
    locks: Arc<Mutex<BTreeMap<PathBuf, Holders>>>,
    path: PathBuf,
}

impl LockGuard for MemLock {}

impl Drop for MemLock {
    fn drop(&mut self) {
        let mut locks = self.locks.lock();
        match locks.get_mut(&self.path) {
            // The entry is removed with its last holder, so that a count of 0 never stands for a
            // lock.
            Some(Holders::Readers(count)) if *count > 1 => *count -= 1,
            _ => drop(locks.remove(&self.path)),
        }
    }
}
