//! The names of [`MemFs`](super::MemFs): folders, their durable names, and their pending changes.
//!
//! Used by `mem/mod.rs`, which holds the lock around it. It never touches bytes, it only counts
//! them.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::inode::{Cell, Inode};

/// Free space that is reported when there is no capacity limit, in bytes.
const FREE_BYTES_UNLIMITED: u64 = 1 << 50;

/// All names, and the counts over the whole file system. Guarded by one lock.
pub(super) struct FileTree {
    pub(super) dirs: BTreeMap<PathBuf, Dir>,
    pub(super) next_seq: u64,
    pub(super) next_id: u64,
    pub(super) capacity: Option<u64>,
}

pub(super) type Names = BTreeMap<Arc<str>, Arc<Cell>>;

/// A folder: the visible names, the durable ones, and the pending changes.
#[derive(Default)]
pub(super) struct Dir {
    pub(super) names: Names,
    pub(super) durable: Names,
    pub(super) pending: Vec<PendingName>,
}

/// A name that was made to mean a file, or to mean nothing.
pub(super) struct PendingName {
    pub(super) seq: u64,
    name: Arc<str>,
    cell: Option<Arc<Cell>>,
}

impl PendingName {
    pub(super) fn apply(&self, names: &mut Names) {
        match &self.cell {
            Some(cell) => names.insert(Arc::clone(&self.name), Arc::clone(cell)),
            None => names.remove(&self.name),
        };
    }
}

/// The fate of a changed name in a crash: it survives at once, or waits for the folder's sync.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NameFate {
    Durable,
    Pending,
}

impl Dir {
    fn set(&mut self, change: PendingName, fate: NameFate) {
        change.apply(&mut self.names);
        match fate {
            NameFate::Pending => self.pending.push(change),
            NameFate::Durable => {
                // A later sync of the folder must not bring the older meaning of the name back.
                self.pending.retain(|earlier| earlier.name != change.name);
                change.apply(&mut self.durable);
            }
        }
    }
}

impl FileTree {
    pub(super) fn dir(&mut self, path: &Path) -> io::Result<&mut Dir> {
        self.dirs.get_mut(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<&Arc<Cell>> {
        let (dir, name) = split(path)?;
        let cell = self.dirs.get(dir).and_then(|dir| dir.names.get(name));
        cell.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn next_seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq
    }

    /// Makes `path` mean `cell`, or nothing.
    pub(super) fn set(
        &mut self,
        path: &Path,
        cell: Option<Arc<Cell>>,
        fate: NameFate,
    ) -> io::Result<()> {
        let (dir, name) = split(path)?;
        let change = PendingName { seq: self.next_seq(), name: Arc::from(name), cell };
        self.dir(dir)?.set(change, fate);
        Ok(())
    }

    /// Gives the free name `path` to a new file.
    pub(super) fn create(
        &mut self,
        path: &Path,
        inode: Inode,
        fate: NameFate,
    ) -> io::Result<Arc<Cell>> {
        if self.find(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.dir(split(path)?.0)?;
        // As on a disk: where no byte is free, no empty file can be made either.
        if self.free() == 0 || inode.cache.allocated_bytes() > self.free() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.next_id += 1;
        let cell = Cell::new(self.next_id, Arc::new(inode));
        self.set(path, Some(Arc::clone(&cell)), fate)?;
        Ok(cell)
    }

    /// Free space in bytes: the capacity without all files that have a name.
    pub(super) fn free(&self) -> u64 {
        let Some(capacity) = self.capacity else {
            return FREE_BYTES_UNLIMITED;
        };
        let mut seen = HashSet::new();
        let cells = self.dirs.values().flat_map(|dir| dir.names.values());
        // A file with two names takes its space once.
        let once = cells.filter(|cell| seen.insert(cell.id));
        let used: u64 = once.map(|cell| cell.inode.read().cache.allocated_bytes()).sum();
        capacity.saturating_sub(used)
    }

    /// Sequence numbers of all pending changes, in order.
    pub(super) fn pending_seqs(&self) -> Vec<u64> {
        let mut seen = HashSet::new();
        let mut seqs = Vec::new();
        for dir in self.dirs.values() {
            seqs.extend(dir.pending.iter().map(|change| change.seq));
            // A file that was made and removed again has no name now. A crash may keep the one
            // change and lose the other, and then its bytes count.
            let created = dir.pending.iter().filter_map(|change| change.cell.as_ref());
            for cell in dir.durable.values().chain(dir.names.values()).chain(created) {
                if seen.insert(cell.id) {
                    seqs.extend(cell.inode.read().pending.iter().map(|change| change.seq));
                }
            }
        }
        seqs.sort_unstable();
        seqs
    }
}

/// Folder and name of a path.
fn split(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent().zip(name).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
