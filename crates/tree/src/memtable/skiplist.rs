//! A skiplist of keys with their versions: one writer, any number of readers without a lock.
//!
//! A key is one node, and its versions are a chain under it, newest first. Overwriting a key finds
//! its node and puts a version on top; a scan passes a key in one step however often it was
//! written. Called by `mod.rs`, `iter.rs` and `protection.rs`; together with its submodules and
//! `arena.rs` the only code of the memtable with `unsafe`.
//!
//! ```text
//! node      link | Node | key bytes                          a pointer to a node is to its `Node`
//! link      the next node
//! version   Version | ChainLinks, but for the oldest | value bytes, or a Pinned
//! ```
//!
//! The express lanes, which lead a search to a node near its key, are rows of blocks (`lanes.rs`).
//! Words in these decide most steps of a search (see `shared_prefix.rs`), so only the nodes next to
//! the key are touched.
//!
//! A node has no link back. A walk backwards searches each node's predecessor in the lanes. A link
//! back would cost 8 bytes of each node, and a store to the node after each new one.
//!
//! Invariants:
//! 1. Memory of nodes and versions comes from the list's arena and is given up when the list is
//!    dropped, never before. Nothing is ever unlinked.
//! 2. Nodes are initialised before a pointer to them is stored, with release; readers load such
//!    pointers with acquire. After that only `newest` and the link change, both atomics; versions and
//!    keys never change.
//! 3. Only the holder of `writer` stores anything.
//! 4. The lanes return a node before the key, which is the predecessor or was it once; a walk
//!    forward finds the nodes that were inserted in between.
//! 5. A version's trailer is smaller than that of the version above it.

mod atomic;
mod cursor;
mod lanes;
mod node;
mod prefetch;
mod version;
mod writer;

use std::ptr::{self, NonNull};
use std::sync::Arc;

use parking_lot::Mutex;

use super::arena::SlabPool;
use super::shared_prefix::SharedPrefix;
use lanes::{Hint, Lanes};
use node::{Anchor, Link, Node};
use writer::InsertState;

pub(super) use cursor::ListCursor;
pub(super) use node::NodeRef;
pub(super) use prefetch::PREFETCH_MAX;
pub(super) use version::{NewValue, VersionRef};
pub(super) use writer::{Inserted, NewEntry, Writer};

/// A list of keys with their versions, sorted.
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
// SAFETY: shared, readers load atomics and read what never changes (invariant 2), and stores need the mutex
// (invariant 3).
unsafe impl Sync for SkipList {}

impl SkipList {
    pub(super) fn new(pool: Arc<SlabPool>, shared: SharedPrefix) -> SkipList {
        let link = Link(atomic::AtomicPtr::new(ptr::null_mut()));
        let head = NonNull::from(Box::leak(Box::new(link)));
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
        // SAFETY: the head is an allocation of one link, so the place after it is one past its end, which an
        // address may be. It is not read there.
        Anchor(unsafe { self.head.add(1) })
    }

    /// The node of `key`.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        self.at_or_after(key).filter(|node| node.key() == key)
    }

    /// The first node that is not before `key`.
    #[inline]
    pub(super) fn at_or_after(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        self.at(self.lanes.search(key, self.shared.word(key)), key)
    }

    /// The first node that is not before `key`, by the result of a search in the lanes of this list.
    #[inline]
    fn at(&self, hint: Hint, key: &[u8]) -> Option<NodeRef<'_>> {
        match hint {
            // SAFETY: the lanes return only nodes of this list, which lives as long as the borrow of `self`
            // (invariant 1).
            Hint::At(node) => Some(unsafe { NodeRef::new(node) }),
            Hint::Between { before, .. } => self.walk(before, key).1,
        }
    }

    /// From a node before `key`, or the head, to the last one before it; returns that, and the node
    /// after it.
    #[inline]
    fn walk(&self, before: Option<NonNull<Node>>, key: &[u8]) -> (Anchor, Option<NodeRef<'_>>) {
        let mut at = before.map_or(self.head(), Anchor::of);
        loop {
            // SAFETY: `at` is of the head or of a node that this walk reached, and the node after it is
            // linked, so both are initialised and live as long as the borrow of `self` (invariants 1 and 2).
            let next = unsafe { at.link().load().map(|next| NodeRef::new(next)) };
            match next {
                Some(node) if node.key() < key => at = Anchor::of(node.node),
                _ => return (at, next),
            }
        }
    }

    fn node_at(&self, anchor: Anchor) -> Option<NodeRef<'_>> {
        // SAFETY: a link is followed by its node, by the layout; only that of the head has none. The list
        // lives as long as the borrow of `self`.
        (anchor != self.head()).then(|| unsafe { NodeRef::new(anchor.0.cast()) })
    }

    /// The last node before `key`.
    #[inline]
    pub(super) fn before(&self, key: &[u8]) -> Option<NodeRef<'_>> {
        let before = self.lanes.search_before(key, self.shared.word(key));
        self.node_at(self.walk(before, key).0)
    }

    pub(super) fn first(&self) -> Option<NodeRef<'_>> {
        // SAFETY: the head is initialised from the start, and a node that it links lives as long as the list
        // (invariants 1 and 2).
        unsafe { self.head().link().load().map(|node| NodeRef::new(node)) }
    }

    pub(super) fn last(&self) -> Option<NodeRef<'_>> {
        let mut at = self.lanes.last().map_or(self.head(), Anchor::of);
        // SAFETY: `at` is of the head or of a node that this walk reached, which live as long as the list
        // (invariant 1).
        while let Some(next) = unsafe { at.link() }.load() {
            at = Anchor::of(next);
        }
        self.node_at(at)
    }
}

impl Drop for SkipList {
    fn drop(&mut self) {
        // SAFETY: `new` made the head of a box, and this is the only place that frees it. The exclusive
        // borrow shows that no thread reads the list any more.
        drop(unsafe { Box::from_raw(self.head.as_ptr()) });
    }
}

#[cfg(test)]
mod tests;
