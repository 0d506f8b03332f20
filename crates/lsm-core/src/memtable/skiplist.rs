//! A skiplist of keys with their versions: one writer, any number of readers without a lock.
//!
//! A key is one node, and its versions are a chain under it, newest first. Overwriting a key finds
//! its node and puts a version on top; a scan passes a key in one step however often it was
//! written. Called by `mod.rs`, `iter.rs` and `protection.rs`; together with its submodules and
//! `arena.rs` the only code of the memtable with `unsafe`.
//!
//! ```text
//! node      link h-1 | .. | link 0 | Node | key bytes        a pointer to a node is to its `Node`
//! link      the next node at this level, and the word of its key (see shared_prefix.rs)
//! version   Version | ChainLinks, but for the oldest | value bytes, or a Pinned
//! ```
//!
//! Most steps of a search are decided by the word in the link, so only nodes that the search
//! passes through are touched, and of a node the one line that the link is in.
//!
//! Invariants:
//! 1. Memory of nodes and versions comes from the list's arena and is given up when the list is
//!    dropped, never before. Nothing is ever unlinked.
//! 2. Nodes are initialised before a pointer to them is stored, with release; readers load such
//!    pointers with acquire. After that only `back`, `newest` and the links change, all atomics;
//!    versions and keys never change.
//! 3. Only who holds `writer` stores anything.
//! 4. The writer stores a link's `next` first and its `word` second, with release; readers load
//!    them the other way round, with acquire. Nodes that take a link over have ever smaller keys.
//!    So the key of the `next` that a reader sees is at most the one that the `word` belongs to:
//!    a word below the target's is reason to step on, an equal one to compare keys, and a larger
//!    one at most leads the search down early, where it finds its way.
//! 5. `back` points to a node that was the predecessor once and is still before it; what came in
//!    between is found by walking forward.
//! 6. A version's trailer is smaller than that of the version above it.

mod ahead;
mod cursor;
mod node;
mod version;
mod writer;

/// The atomics of the list, so that a model of it can be checked.
mod atomic {
    #[cfg(loom)]
    pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
    #[cfg(not(loom))]
    pub(super) use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
}

use std::cmp::Ordering::{Equal, Greater, Less};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use parking_lot::Mutex;

use super::arena::SlabPool;
use super::shared_prefix::SharedPrefix;
use atomic::{AtomicUsize, Ordering};
use node::{Link, Node, Tower, key_of};
use writer::InsertState;

pub(super) use ahead::AHEAD_MAX;
pub(super) use cursor::ListCursor;
pub(super) use node::NodeRef;
pub(super) use version::{NewValue, VersionRef};
pub(super) use writer::{Inserted, NewEntry, Writer};

/// Levels of the tallest node: a list of 2^20 keys makes full use of them.
const HEIGHT_MAX: usize = if cfg!(loom) { 2 } else { 20 };

/// See the module.
pub(super) struct SkipList {
    shared: SharedPrefix,
    /// Owned: made by `Box`, freed by the drop.
    head: NonNull<[Link; HEIGHT_MAX]>,
    /// Levels in use: a hint to begin with, so relaxed.
    height: AtomicUsize,
    writer: Mutex<InsertState>,
}

// SAFETY: what the pointers lead to belongs to the list and goes along with it; it is changed only
// through atomics and under the mutex, by invariants 2 and 3. Pinned buffers are `Send` and `Sync`.
unsafe impl Send for SkipList {}
// SAFETY: as above.
unsafe impl Sync for SkipList {}

impl SkipList {
    pub(super) fn new(pool: Arc<SlabPool>, shared: SharedPrefix) -> SkipList {
        let head = Box::new(std::array::from_fn(|_| Link::new(ptr::null_mut(), u64::MAX)));
        let head = NonNull::from(Box::leak(head));
        let writer = InsertState::new(pool, tower_of_head(head));
        SkipList { shared, head, height: AtomicUsize::new(0), writer: Mutex::new(writer) }
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
    fn head(&self) -> Tower {
        tower_of_head(self.head)
    }

    /// The node of `key`.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        let word = self.shared.word(key);
        let mut at = self.head();
        // A height that is out of date costs only more steps: levels above it have few nodes, and
        // every node is on level 0.
        let mut level = self.height.load(Ordering::Relaxed);
        // The last node whose key was too large: it is often the next one further down too.
        let mut bound = ptr::null_mut();
        while level > 0 {
            // SAFETY: the head has all levels, and `at` was reached at this one.
            let (seen, next) = unsafe { at.link(level - 1) }.load();
            if seen <= word
                && next != bound
                && let Some(node) = NonNull::new(next)
            {
                // A smaller word decides without a look at the key, which saves a cache miss at
                // most steps.
                if seen < word {
                    at = Tower::of(node);
                    continue;
                }
                // SAFETY: of this list.
                match unsafe { key_of(node) }.cmp(key) {
                    Less => {
                        at = Tower::of(node);
                        continue;
                    }
                    // SAFETY: of this list.
                    Equal => return Some(unsafe { NodeRef::new(node) }),
                    Greater => bound = next,
                }
            }
            level -= 1;
        }
        None
    }

    /// The last node before `key`, as a tower, and the first one that is not before it.
    fn around(&self, key: &[u8]) -> (Tower, *mut Node) {
        let word = self.shared.word(key);
        let mut at = self.head();
        let mut level = self.height.load(Ordering::Relaxed).max(1);
        let mut bound = ptr::null_mut();
        loop {
            // SAFETY: the head has all levels, and `at` was reached at this one.
            let (seen, next) = unsafe { at.link(level - 1) }.load();
            // On the lowest level the word may belong to a node behind `next`: see invariant 4.
            if (seen <= word || level == 1)
                && next != bound
                && let Some(node) = NonNull::new(next)
            {
                // SAFETY: of this list.
                if seen < word || unsafe { key_of(node) } < key {
                    at = Tower::of(node);
                    continue;
                }
                bound = next;
            }
            level -= 1;
            if level == 0 {
                return (at, next);
            }
        }
    }

    fn node_at(&self, tower: Tower) -> Option<NodeRef<'_>> {
        // SAFETY: every tower but the head's has a node of this list behind it.
        (tower != self.head()).then(|| unsafe { NodeRef::new(tower.0.cast()) })
    }

    /// The first node that is not before `key`.
    pub(super) fn at_or_after(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        let (_, next) = self.around(key);
        // SAFETY: of this list.
        NonNull::new(next).map(|node| unsafe { NodeRef::new(node) })
    }

    /// The last node before `key`.
    pub(super) fn before(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        self.node_at(self.around(key).0)
    }

    pub(super) fn first(&self) -> Option<NodeRef<'_>> {
        // SAFETY: the head has all levels; the node is of this list.
        unsafe {
            let (_, next) = self.head().link(0).load();
            NonNull::new(next).map(|node| NodeRef::new(node))
        }
    }

    pub(super) fn last(&self) -> Option<NodeRef<'_>> {
        let mut at = self.head();
        for level in (0..self.height.load(Ordering::Relaxed).max(1)).rev() {
            // SAFETY: the head has all levels, and `at` was reached at this one or a higher one.
            while let (_, next) = unsafe { at.link(level) }.load()
                && let Some(node) = NonNull::new(next)
            {
                at = Tower::of(node);
            }
        }
        self.node_at(at)
    }

    /// The node before `node`, which is of this list.
    pub(super) fn previous(&self, node: NodeRef<'_>) -> Option<NodeRef<'_>> {
        // SAFETY: the field is an atomic of a live node.
        // `back` is a hint, see invariant 5. An exact link back would need two stores that readers
        // see as one.
        let back = unsafe { (*node.node.as_ptr()).back.load(Ordering::Acquire) };
        let mut at = NonNull::new(back).map_or(self.head(), Tower::of);
        loop {
            // SAFETY: all nodes have a link 0.
            let (_, next) = unsafe { at.link(0) }.load();
            match NonNull::new(next) {
                Some(next) if next != node.node => at = Tower::of(next),
                _ => return self.node_at(at),
            }
        }
    }
}

fn tower_of_head(head: NonNull<[Link; HEIGHT_MAX]>) -> Tower {
    // SAFETY: the place behind the array is in bounds of its allocation; link 0 is its last one.
    Tower(unsafe { head.cast::<Link>().add(HEIGHT_MAX) })
}

impl Drop for SkipList {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and nobody reads the list any more.
        drop(unsafe { Box::from_raw(self.head.as_ptr()) });
    }
}

#[cfg(test)]
mod tests;
