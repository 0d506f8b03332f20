//! A file of [`MemFs`](super::MemFs): the visible bytes, the durable ones, and the pending changes.
//!
//! Used by `mem/mod.rs` (operations) and `mem/crash.rs` (the state after a crash).
//!
//! Invariants:
//! 1. Unless `is_stale`, applying `pending` in order to `durable` gives `cache`.
//! 2. `pending` is ordered by `seq`, which counts over all files and folders of the file system.

use std::sync::Arc;

use parking_lot::RwLock;

use super::content::Content;

/// The state in which a failed sync leaves its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyncLoss {
    /// Marked clean and still readable, though the device never gets them (as on ext4 and XFS).
    Kept,
    /// Gone from reads too (as on Btrfs).
    Reverted,
}

#[derive(Clone)]
pub(super) enum ContentChange {
    /// `is_stored`: through a mapping; a killed process may have stored any parts of it.
    Write {
        offset: u64,
        bytes: Arc<[u8]>,
        is_stored: bool,
    },
    Grow {
        len: u64,
    },
    Punch {
        offset: u64,
        len: u64,
    },
}

impl ContentChange {
    pub(super) fn apply(&self, content: &mut Content) {
        match self {
            ContentChange::Write { offset, bytes, .. } => content.write(*offset, bytes),
            ContentChange::Grow { len } => content.grow(*len),
            ContentChange::Punch { offset, len } => content.punch(*offset, *len),
        }
    }

    /// The length that the file has at least once this is done.
    pub(super) fn end(&self) -> u64 {
        match self {
            ContentChange::Write { offset, bytes, .. } => offset + bytes.len() as u64,
            ContentChange::Grow { len } => *len,
            ContentChange::Punch { .. } => 0,
        }
    }
}

#[derive(Clone)]
pub(super) struct PendingChange {
    pub(super) seq: u64,
    pub(super) change: ContentChange,
}

#[derive(Clone, Default)]
pub(super) struct Inode {
    pub(super) cache: Content,
    pub(super) durable: Content,
    pub(super) pending: Vec<PendingChange>,
    /// A sync lost changes that reads still see.
    is_stale: bool,
}

impl Inode {
    /// A file whose bytes are durable.
    pub(super) fn durable(content: Content) -> Inode {
        Inode { cache: content.clone(), durable: content, pending: Vec::new(), is_stale: false }
    }

    /// Returns `true` if the bytes after a power cut are exactly those that reads see.
    pub(super) fn is_clean(&self) -> bool {
        self.pending.is_empty() && !self.is_stale
    }

    pub(super) fn change(&mut self, seq: u64, change: ContentChange) {
        change.apply(&mut self.cache);
        self.pending.push(PendingChange { seq, change });
    }

    pub(super) fn sync(&mut self) {
        for pending in self.pending.drain(..) {
            pending.change.apply(&mut self.durable);
        }
    }

    pub(super) fn lose_pending(&mut self, loss: SyncLoss) {
        self.pending.clear();
        match loss {
            // Reads see bytes that no later sync makes durable.
            SyncLoss::Kept => self.is_stale = true,
            SyncLoss::Reverted => *self = Inode::durable(self.durable.clone()),
        }
    }

    /// Changes the stored bytes directly, as a fault would.
    pub(super) fn tamper(&mut self, edit: impl Fn(&mut Content)) {
        // In both: reads see the bytes that a device changed, and a crash does not undo the change.
        edit(&mut self.cache);
        edit(&mut self.durable);
    }
}

/// An inode as names and open files hold it; shared between them as hard links are.
///
/// The inode itself is shared between a file system and its crash clones until one changes it.
pub(super) struct Cell {
    pub(super) id: u64,
    pub(super) inode: RwLock<Arc<Inode>>,
}

impl Cell {
    pub(super) fn new(id: u64, inode: Arc<Inode>) -> Arc<Cell> {
        Arc::new(Cell { id, inode: RwLock::new(inode) })
    }

    /// Runs `edit` on the inode, which is copied first if a crash clone shares it.
    pub(super) fn edit<T>(&self, edit: impl FnOnce(&mut Inode) -> T) -> T {
        edit(Arc::make_mut(&mut self.inode.write()))
    }
}
