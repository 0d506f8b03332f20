//! A partition at run time: its memtables and the version of its tables, as one view.
//!
//! Invariants:
//! 1. `view` is replaced as a whole, under `change`; what a reader loaded never changes.
//! 2. A memtable leaves the view in the same step in which the version that covers it enters.
//! 3. Only the commit path seals, and only between two groups, so a sealed memtable holds every
//!    operation of the partition up to its last sequence.

mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};
use crate::memtable::Memtable;
use crate::types::{MemtableId, PartitionId, SeqNo};
use crate::version::PartitionVersion;

pub use view::ReadView;

/// See the module.
pub struct PartitionState {
    /// Its identity.
    pub id: PartitionId,
    /// Its name.
    pub name: Arc<str>,
    /// Whether its writes pass the WAL.
    pub logged: bool,
    view: ArcSwap<ReadView>,
    /// Held while the view is replaced; the id of the next memtable.
    change: Mutex<MemtableId>,
    // Set once, under the commit path's lock; read anywhere. The visible sequence number at the
    // drop, plus one so that 0 can mean that it lives.
    dropped_at: AtomicU64,
    /// Changed under the commit path's lock.
    doubtful: AtomicBool,
    /// How far writes are held back, in thousandths, and why: written by `db/stall.rs`, relaxed.
    pub pressure: AtomicU32,
}

impl PartitionState {
    /// A partition with the tables of `version` and an empty memtable.
    pub fn new(version: Arc<PartitionVersion>) -> PartitionState {
        let active = Arc::new(Memtable::new(MemtableId(1)));
        PartitionState {
            id: version.id,
            name: version.name.clone(),
            logged: version.options.logged,
            view: ArcSwap::from_pointee(ReadView { active, sealed: Vec::new(), version }),
            change: Mutex::new(MemtableId(2)),
            dropped_at: AtomicU64::new(0),
            doubtful: AtomicBool::new(false),
            pressure: AtomicU32::new(0),
        }
    }

    /// The present view, for the length of a call.
    #[inline]
    pub fn view(&self) -> Guard<Arc<ReadView>> {
        self.view.load()
    }

    /// The present view, to keep.
    pub fn pin(&self) -> Arc<ReadView> {
        self.view.load_full()
    }

    /// Seals the active memtable unless it is empty; returns the id of the new active one.
    /// Only the commit path calls this.
    pub fn seal(&self) -> Option<MemtableId> {
        let mut next = self.change.lock();
        let view = self.view.load_full();
        if view.active.is_empty() {
            return None;
        }
        let id = *next;
        next.0 += 1;
        let mut sealed = Vec::with_capacity(view.sealed.len() + 1);
        sealed.push(view.active.clone());
        sealed.extend_from_slice(&view.sealed);
        let active = Arc::new(Memtable::new(id));
        self.view.store(Arc::new(ReadView { active, sealed, version: view.version.clone() }));
        Some(id)
    }

    /// Takes `version` in and lets the memtables through `flushed_through` go.
    pub fn install(&self, version: Arc<PartitionVersion>, flushed_through: Option<MemtableId>) {
        let _change = self.change.lock();
        let view = self.view.load_full();
        let mut sealed = view.sealed.clone();
        sealed.retain(|memtable| flushed_through.is_none_or(|through| memtable.id > through));
        self.view.store(Arc::new(ReadView { active: view.active.clone(), sealed, version }));
    }

    /// Marks the partition as dropped behind `visible`. Only under the commit path's lock.
    pub fn mark_dropped(&self, visible: SeqNo) {
        self.dropped_at.store(visible.get() + 1, Ordering::Release);
    }

    /// Says whether a drop of it may be on disk that did not take place.
    pub fn set_doubtful(&self, doubtful: bool) {
        self.doubtful.store(doubtful, Ordering::Release);
    }

    /// Whether a drop of it may be on disk that did not take place.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Acquire)
    }

    /// Whether it was dropped.
    pub fn is_dropped(&self) -> bool {
        self.dropped_at.load(Ordering::Acquire) != 0
    }

    /// Whether a snapshot at `seq` was taken while the partition existed.
    pub fn existed_at(&self, seq: SeqNo) -> bool {
        let dropped_at = self.dropped_at.load(Ordering::Acquire);
        dropped_at == 0 || seq.get() < dropped_at
    }

    /// An error if it was dropped.
    #[inline]
    pub fn check_live(&self) -> Result<()> {
        if self.is_dropped() { Err(self.dropped_error()) } else { Ok(()) }
    }

    #[cold]
    fn dropped_error(&self) -> Error {
        let message = format!("partition {:?} was dropped", self.name);
        Error::new(ErrorKind::PartitionNotFound, message)
    }
}
