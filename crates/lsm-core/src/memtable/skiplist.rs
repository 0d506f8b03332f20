//! A skiplist of keys with their versions: one writer, any number of readers without a lock.
//!
//! A key is one node, and its versions are a chain under it, newest first. Overwriting a key finds
//! its node and puts a version on top; a scan passes a key in one step however often it was
//! written. Called by `mod.rs`, `iter.rs` and `protection.rs`; together with its submodules and
//! `arena.rs` the only code of the memtable with `unsafe`.
//!
//! ```text
//! node      link | Node | key bytes                          a pointer to a node is to its `Node`
//! link      the next node, and the word of its key (see shared_prefix.rs)
//! version   Version | ChainLinks, but for the oldest | value bytes, or a Pinned
//! ```
//!
//! The express lanes, which lead a search to a node near its key, are rows of blocks (`lanes.rs`). Most
//! steps of a search are decided by words in these, so of the nodes only those beside the key are touched.
//!
//! Invariants:
//! 1. Memory of nodes and versions comes from the list's arena and is given up when the list is
//!    dropped, never before. Nothing is ever unlinked.
//! 2. Nodes are initialised before a pointer to them is stored, with release; readers load such
//!    pointers with acquire. After that only `back`, `newest` and the link change, all atomics;
//!    versions and keys never change.
//! 3. Only the holder of `writer` stores anything.
//! 4. The writer stores a link's `next` first and its `word` second, with release; readers load
//!    them the other way round, with acquire. Nodes that take a link over have ever smaller keys.
//!    So the key of the `next` that a reader sees is at most the one that the `word` belongs to: a
//!    word below that of the target is reason to step on. With a larger one the target was not
//!    published when the search began.
//! 5. `back` points to a node that was the predecessor once and is still before it; what came in
//!    between is found by walking forward.
//! 6. A version's trailer is smaller than that of the version above it.

mod ahead;
mod cursor;
mod lanes;
mod node;
mod version;
mod writer;

/// The atomics of the list, so that a model of it can be checked.
mod atomic {
    #[cfg(loom)]
    pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU16, AtomicU64, Ordering};
    #[cfg(not(loom))]
    pub(super) use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU64, Ordering};
}

use std::cmp::Ordering::{Equal, Greater, Less};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use parking_lot::Mutex;

use super::arena::SlabPool;
use super::shared_prefix::SharedPrefix;
use atomic::Ordering;
use lanes::{Hint, Lanes};
use node::{Anchor, Link};
use writer::InsertState;

pub(super) use ahead::AHEAD_MAX;
pub(super) use cursor::ListCursor;
pub(super) use node::NodeRef;
pub(super) use version::{NewValue, VersionRef};
pub(super) use writer::{Inserted, NewEntry, Writer};

/// See the module.
pub(super) struct SkipList {
    shared: SharedPrefix,
    /// Owned: made by `Box`, freed by the drop.
    head: NonNull<Link>,
    lanes: Lanes,
    writer: Mutex<InsertState>,
}

// SAFETY: what the pointers lead to belongs to the list and goes along with it; it is changed only
// through atomics and under the mutex, by invariants 2 and 3. Pinned buffers are `Send` and `Sync`.
unsafe impl Send for SkipList {}
// SAFETY: as above.
unsafe impl Sync for SkipList {}

impl SkipList {
    pub(super) fn new(pool: Arc<SlabPool>, shared: SharedPrefix) -> SkipList {
        let head = NonNull::from(Box::leak(Box::new(Link::new(ptr::null_mut(), u64::MAX))));
        let writer = Mutex::new(InsertState::new(pool));
        SkipList { shared, head, lanes: Lanes::new(), writer }
    }

    pub(super) fn shared(&self) -> &SharedPrefix {
        &self.shared
    }

    /// The right to insert.
    #[inline]
    pub(super) fn writer(&self) -> Writer<'_> {
        Writer { list: self, state: self.writer.lock() }
    }

    #[inline]
    fn head(&self) -> Anchor {
        // SAFETY: the place behind the link is in bounds of its allocation.
        Anchor(unsafe { self.head.add(1) })
    }

    /// The node of `key`, or the head or a node before it.
    #[inline]
    fn enter(&self, key: &[u8], word: u64) -> Result<NodeRef<'_>, Anchor> {
        match self.lanes.search(key, word) {
            // SAFETY: of this list.
            Hint::At(node) => Ok(unsafe { NodeRef::new(node) }),
            Hint::Between { before, .. } => Err(before.map_or(self.head(), Anchor::of)),
        }
    }

    /// The node of `key`.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        let word = self.shared.word(key);
        let mut at = match self.enter(key, word) {
            Ok(node) => return Some(node),
            Err(before) => before,
        };
        loop {
            // SAFETY: the head, or of this list.
            let (seen, next) = unsafe { at.link() }.load();
            // The lanes may lag behind. A smaller word decides without a look at the key.
            let node = NonNull::new(next).filter(|_| seen <= word)?;
            if seen == word {
                // SAFETY: of this list.
                let node = unsafe { NodeRef::new(node) };
                match node.key().cmp(key) {
                    Less => {}
                    Equal => return Some(node),
                    Greater => return None,
                }
            }
            at = Anchor::of(node);
        }
    }

    /// The node of `key`; or the last node before it or the head, and the first node that is not before it.
    fn around(&self, key: &[u8]) -> Result<NodeRef<'_>, (Anchor, Option<NodeRef<'_>>)> {
        let word = self.shared.word(key);
        let mut at = match self.enter(key, word) {
            Ok(node) => return Ok(node),
            Err(before) => before,
        };
        loop {
            // SAFETY: the head, or of this list.
            let (seen, next) = unsafe { at.link() }.load();
            let Some(next) = NonNull::new(next) else { return Err((at, None)) };
            // SAFETY: of this list.
            let node = unsafe { NodeRef::new(next) };
            // A greater word may belong to a node behind this one: see invariant 4.
            if seen >= word && node.key() >= key {
                return Err((at, Some(node)));
            }
            at = Anchor::of(next);
        }
    }

    fn node_at(&self, anchor: Anchor) -> Option<NodeRef<'_>> {
        // SAFETY: every anchor but the head has a node of this list behind it.
        (anchor != self.head()).then(|| unsafe { NodeRef::new(anchor.0.cast()) })
    }

    /// The first node that is not before `key`.
    pub(super) fn at_or_after(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        match self.around(key) {
            Ok(node) => Some(node),
            Err((_, after)) => after,
        }
    }

    /// The last node before `key`.
    pub(super) fn before(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        match self.around(key) {
            Ok(node) => self.previous(node),
            Err((before, _)) => self.node_at(before),
        }
    }

    pub(super) fn first(&self) -> Option<NodeRef<'_>> {
        // SAFETY: the head; the node is of this list.
        unsafe {
            let (_, next) = self.head().link().load();
            NonNull::new(next).map(|node| NodeRef::new(node))
        }
    }

    pub(super) fn last(&self) -> Option<NodeRef<'_>> {
        let mut at = self.lanes.last().map_or(self.head(), Anchor::of);
        // SAFETY: the head, or of this list.
        while let (_, next) = unsafe { at.link() }.load()
            && let Some(node) = NonNull::new(next)
        {
            at = Anchor::of(node);
        }
        self.node_at(at)
    }

    /// The node before `node`, which is of this list.
    pub(super) fn previous(&self, node: NodeRef<'_>) -> Option<NodeRef<'_>> {
        // SAFETY: the field is an atomic of a live node.
        // `back` is a hint, see invariant 5. An exact link back would need two stores that readers
        // see as one.
        let back = unsafe { (*node.node.as_ptr()).back.load(Ordering::Acquire) };
        let mut at = NonNull::new(back).map_or(self.head(), Anchor::of);
        loop {
            // SAFETY: the head, or of this list.
            let (_, next) = unsafe { at.link() }.load();
            match NonNull::new(next) {
                Some(next) if next != node.node => at = Anchor::of(next),
                _ => return self.node_at(at),
            }
        }
    }
}

impl Drop for SkipList {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and nobody reads the list any more.
        drop(unsafe { Box::from_raw(self.head.as_ptr()) });
    }
}

#[cfg(test)]
mod tests;
