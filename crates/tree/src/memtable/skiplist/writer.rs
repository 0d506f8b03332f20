//! The one writer of a skiplist, and the hint that remembers its last position.
//!
//! An ascending fill searches nothing: each entry belongs right after the previous one.
//!
//! Layout and invariants are in `skiplist.rs`.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::super::arena::{ALIGNMENT, Arena, SlabPool};
use super::SkipList;
use super::atomic::{AtomicPtr, Ordering};
use super::lanes::{Hint, Path};
use super::node::{Anchor, Link, Node, NodeRef, key_of};
use super::version::{NewValue, Pinned, Version, VersionRef, unpin, version_bytes, write_version};
use crate::types::{EntryChecksum, Trailer};

/// A node, and the place right after it.
#[derive(Clone, Copy)]
struct InsertHint {
    node: NonNull<Node>,
    word: u64,
}

pub(super) struct InsertState {
    arena: Arena,
    /// The newest one.
    pinned: Option<NonNull<Pinned>>,
    /// Set if `path` leads to its place.
    insert_hint: Option<InsertHint>,
    path: Path,
}

impl InsertState {
    pub(super) fn new(pool: Arc<SlabPool>) -> InsertState {
        InsertState { arena: Arena::new(pool), pinned: None, insert_hint: None, path: Path::new() }
    }

    /// Writes the version of `entry`.
    ///
    /// # Safety
    /// As [`write_version`].
    unsafe fn write(
        &mut self,
        start: NonNull<u8>,
        entry: &NewEntry<'_>,
        older: Option<VersionRef<'_>>,
    ) -> NonNull<Version> {
        let NewEntry { trailer, sum, value, .. } = entry;
        // SAFETY: as this function requires, `start` is unused, aligned memory of the length of the version,
        // and `older` is of this list.
        unsafe { write_version(start, *trailer, *sum, value, older, &mut self.pinned) }
    }
}

impl Drop for InsertState {
    fn drop(&mut self) {
        // SAFETY: only `write_version` fills `pinned`. The state is dropped with its list, so no thread reads
        // the list any more, and the memory of the arena is freed after this.
        unsafe { unpin(self.pinned.take()) }
    }
}

/// An entry on its way in.
pub(in crate::memtable) struct NewEntry<'a> {
    pub(in crate::memtable) key: &'a [u8],
    /// The upper half of the checksum of the key.
    pub(in crate::memtable) key_check: u32,
    pub(in crate::memtable) trailer: Trailer,
    pub(in crate::memtable) sum: EntryChecksum,
    pub(in crate::memtable) value: NewValue<'a>,
}

/// The result of an insertion.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::memtable) enum Inserted {
    /// The key is a new one.
    Key,
    /// The key has one version more, on top of so many.
    Version {
        /// The versions below.
        depth: u32,
    },
    /// Nothing was inserted: the key has a version that is as new or newer.
    NotNewer,
}

/// The right to insert.
pub(in crate::memtable) struct Writer<'l> {
    pub(super) list: &'l SkipList,
    pub(super) state: MutexGuard<'l, InsertState>,
}

impl Writer<'_> {
    /// Memory taken by nodes and versions, in bytes.
    pub(in crate::memtable) fn used_bytes(&self) -> u64 {
        self.state.arena.used_bytes()
    }

    pub(in crate::memtable) fn pool(&self) -> &Arc<SlabPool> {
        self.state.arena.pool()
    }

    /// Inserts an entry.
    #[inline]
    pub(in crate::memtable) fn insert(&mut self, entry: &NewEntry<'_>) -> Inserted {
        let word = self.list.shared.word(entry.key);
        match self.locate(entry.key, word) {
            Hint::At(node) => self.add_version(node, entry),
            Hint::Between { before, after } => {
                self.add_node(entry, word, before, after);
                Inserted::Key
            }
        }
    }

    /// Finds `key`, and sets the path to its place. No other thread inserts, so the hint is exact.
    #[inline]
    fn locate(&mut self, key: &[u8], word: u64) -> Hint {
        let state = &mut *self.state;
        let near =
            state.insert_hint.and_then(|insert_hint| insert_hint.hint(&state.path, key, word));
        let hint = match near {
            Some(hint) => hint,
            None => {
                // A panic after this must not leave a hint with the path of another key.
                state.insert_hint = None;
                self.list.lanes.search_noting(key, word, &mut state.path)
            }
        };
        if let Hint::At(node) = hint {
            // SAFETY: the path is of the last search, or was moved on since; a split removes the hint and
            // with it the path. The list has a node, so it is not empty.
            let is_after = unsafe { state.path.pass(node) };
            state.insert_hint = is_after.then_some(InsertHint { node, word });
        }
        hint
    }

    fn add_version(&mut self, node: NonNull<Node>, entry: &NewEntry<'_>) -> Inserted {
        // SAFETY: the hint of a search of `self.list` names a node of that list, which lives as long as the
        // writer.
        let newest = unsafe { NodeRef::new(node) }.newest();
        // Versions are chained newest first, and readers rely on this order. The commit path never
        // gets here; a damaged log may.
        if newest.trailer().seq() >= entry.trailer.seq() {
            return Inserted::NotNewer;
        }
        let start = self.state.arena.allocate(version_bytes(&entry.value, true));
        // SAFETY: the arena has just returned `version_bytes` of aligned memory without another owner, and
        // `newest` is a version of this list.
        let version = unsafe { self.state.write(start, entry, Some(newest)) };
        // SAFETY: `node` lives as long as the list, and the field is an atomic, so readers may load it
        // meanwhile.
        unsafe { (*node.as_ptr()).newest.store(version.as_ptr(), Ordering::Release) };
        Inserted::Version { depth: newest.depth() + 1 }
    }

    /// Adds the node of a new key, which belongs between the two of the hint.
    fn add_node(
        &mut self,
        entry: &NewEntry<'_>,
        word: u64,
        before: Option<NonNull<Node>>,
        after: Option<NonNull<Node>>,
    ) {
        let node_bytes = size_of::<Node>() + entry.key.len().next_multiple_of(ALIGNMENT);
        // Link, node, key and first version are one allocation, so that a get of a key that was
        // written once touches neighbouring cache lines.
        let bytes = size_of::<Link>() + node_bytes + version_bytes(&entry.value, false);
        let state = &mut *self.state;
        let start = state.arena.allocate(bytes);
        let anchor = before.map_or(self.list.head(), Anchor::of);
        // SAFETY: the anchor is of the head or of a node that the search of this list found, which live as
        // long as the list.
        let link = unsafe { anchor.link() };
        // Usually the link is not in the processor's cache: it is stored to without a load.
        let after = match after {
            Some(after) => after.as_ptr(),
            // Relaxed: only writers store links, one at a time, under the lock that this one holds.
            None => link.0.load(Ordering::Relaxed),
        };
        // SAFETY: all within the memory that was just allocated, aligned by the sizes of the
        // preceding parts; no other thread has its address.
        let node = unsafe {
            start.cast::<Link>().write(Link(AtomicPtr::new(after)));
            let node = start.add(size_of::<Link>()).cast::<Node>();
            let version = state.write(node.cast::<u8>().add(node_bytes), entry, None);
            node.write(Node {
                newest: AtomicPtr::new(version.as_ptr()),
                key_len: u32::try_from(entry.key.len()).expect("limits::INTERNAL_KEY_BYTES_MAX"),
                key_check: entry.key_check,
            });
            let key = node.add(1).cast::<u8>();
            key.copy_from_nonoverlapping(NonNull::from(entry.key).cast(), entry.key.len());
            node
        };
        link.0.store(node.as_ptr(), Ordering::Release);
        let arena = &mut state.arena;
        let is_last = after.is_null();
        // SAFETY: `locate` has just set the path to this place, and no block was split since.
        let is_after = unsafe { self.list.lanes.add(arena, &mut state.path, node, word, is_last) };
        state.insert_hint = is_after.then_some(InsertHint { node, word });
    }
}

impl InsertHint {
    /// The place of `key` if it is right after the hinted node, whose path is `path`.
    #[inline]
    fn hint(self, path: &Path, key: &[u8], word: u64) -> Option<Hint> {
        // SAFETY: a hint names a node that this writer inserted or found in its list, where nodes stay
        // (invariant 1 of `skiplist.rs`).
        let follows = self.word < word || self.word == word && unsafe { key_of(self.node) } < key;
        if !follows {
            return None;
        }
        // SAFETY: no block was split since the path was made: the hint was removed there.
        let Some((next, next_word)) = (unsafe { path.following() }) else {
            // SAFETY: as for the key above: the node and its link live as long as the list.
            let link = unsafe { Anchor::of(self.node).link() };
            // Relaxed: only writers store links. A node in the next block needs a search, because
            // its word is not in this block.
            let is_last = link.0.load(Ordering::Relaxed).is_null();
            return is_last.then_some(Hint::Between { before: Some(self.node), after: None });
        };
        // SAFETY: `next` is a target of lane 0, so it is a node of the list.
        match word.cmp(&next_word).then_with(|| key.cmp(unsafe { key_of(next) })) {
            Less => Some(Hint::Between { before: Some(self.node), after: Some(next) }),
            Equal => Some(Hint::At(next)),
            Greater => None,
        }
    }
}
