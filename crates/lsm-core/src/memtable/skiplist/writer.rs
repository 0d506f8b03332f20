//! The one writer of a skiplist, and the finger that it keeps where it was last.
//!
//! An insertion begins its search where the last one ended, as far up as it must: an ascending
//! fill searches nothing, and of a sorted batch each entry begins near the one before.
//!
//! Layout and invariants are in `skiplist.rs`.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::super::arena::{ALIGNMENT, Arena, SlabPool};
use super::atomic::{AtomicPtr, Ordering};
use super::node::{Link, Node, NodeRef, Tower, key_of};
use super::version::{NewValue, Pinned, Version, VersionRef, unpin, version_bytes, write_version};
use super::{HEIGHT_MAX, SkipList};
use crate::types::{EntrySum, Trailer};

/// Neighbours of the place where the writer was last, at one level.
#[derive(Clone, Copy)]
struct Step {
    before: Tower,
    before_word: u64,
    after: *mut Node,
    after_word: u64,
}

pub(super) struct InsertState {
    arena: Arena,
    /// The newest one.
    pinned: Option<NonNull<Pinned>>,
    /// The last search, level by level. From `finger_floor` up the two of a step are neighbours,
    /// and each step lies within the one above.
    finger: [Step; HEIGHT_MAX],
    finger_floor: usize,
    random: u64,
}

impl InsertState {
    pub(super) fn new(pool: Arc<SlabPool>, head: Tower) -> InsertState {
        let nowhere =
            Step { before: head, before_word: 0, after: ptr::null_mut(), after_word: u64::MAX };
        InsertState {
            arena: Arena::new(pool),
            pinned: None,
            finger: [nowhere; HEIGHT_MAX],
            finger_floor: 0,
            random: 0x2545_f491_4f6c_dd1d,
        }
    }

    /// Writes the version that `entry` is.
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
        // SAFETY: the caller's promise.
        unsafe { write_version(start, *trailer, *sum, value, older, &mut self.pinned) }
    }
}

impl Drop for InsertState {
    fn drop(&mut self) {
        // SAFETY: it is dropped with its list. The arena goes after this.
        unsafe { unpin(self.pinned.take()) }
    }
}

/// An entry on its way in.
pub(in crate::memtable) struct NewEntry<'a> {
    pub(in crate::memtable) key: &'a [u8],
    /// The upper half of the checksum of the key.
    pub(in crate::memtable) key_check: u32,
    pub(in crate::memtable) trailer: Trailer,
    pub(in crate::memtable) sum: EntrySum,
    pub(in crate::memtable) value: NewValue<'a>,
}

/// The result of an insertion.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::memtable) enum Inserted {
    /// The key is a new one.
    Key,
    /// The key has one version more.
    Version,
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
            Some(node) => self.add_version(node, entry),
            None => {
                self.add_node(entry, word);
                Inserted::Key
            }
        }
    }

    /// Moves the finger to `key`; stops at once where it finds its node.
    fn locate(&mut self, key: &[u8], word: u64) -> Option<NonNull<Node>> {
        let list = self.list;
        let state = &mut *self.state;
        let top = list.height.load(Ordering::Relaxed).max(1) - 1;
        let mut level = top.max(state.finger_floor);
        // Near the last place, as in ascending fills, the search begins at the bottom.
        if state.finger_floor == 0 && state.finger[0].holds(list, key, word) {
            level = 0;
        } else {
            while level > state.finger_floor && state.finger[level - 1].holds(list, key, word) {
                level -= 1;
            }
            if level == top && !state.finger[level].holds(list, key, word) {
                // The finger is too far on, or too far back. Of all nodes only the head is surely
                // before the key.
                state.finger[level].before = list.head();
            }
        }
        let mut step = state.finger[level];
        // The last node that was too large. The next level often leads to it again, and its key
        // need not be compared once more.
        let mut bound = ptr::null_mut();
        loop {
            // SAFETY: the tower was reached at this level.
            let link = unsafe { step.before.link(level) };
            // Relaxed: only writers store links, one at a time, under the lock that this one holds.
            step.after = link.next.load(Ordering::Relaxed);
            step.after_word = link.word.load(Ordering::Relaxed);
            if step.after_word <= word
                && step.after != bound
                && let Some(node) = NonNull::new(step.after)
            {
                let order = if step.after_word < word {
                    Less
                } else {
                    // SAFETY: of this list.
                    unsafe { key_of(node) }.cmp(key)
                };
                match order {
                    Less => {
                        step.before = Tower::of(node);
                        step.before_word = step.after_word;
                        continue;
                    }
                    Equal => {
                        // The levels below were not searched, so their steps still stand elsewhere.
                        state.finger[level] = step;
                        state.finger_floor = level;
                        return Some(node);
                    }
                    Greater => bound = step.after,
                }
            }
            state.finger[level] = step;
            if level == 0 {
                state.finger_floor = 0;
                return None;
            }
            level -= 1;
        }
    }

    fn add_version(&mut self, node: NonNull<Node>, entry: &NewEntry<'_>) -> Inserted {
        // SAFETY: of this list, which `self.list` keeps.
        let newest = unsafe { NodeRef::new(node) }.newest();
        // Versions are chained newest first, and readers rely on this order. The commit path never
        // gets here; a damaged log may.
        if newest.trailer().seq() >= entry.trailer.seq() {
            return Inserted::NotNewer;
        }
        let start = self.state.arena.allocate(version_bytes(&entry.value, true));
        // SAFETY: just allocated, of that length.
        let version = unsafe { self.state.write(start, entry, Some(newest)) };
        // SAFETY: the field is an atomic of a live node.
        unsafe { (*node.as_ptr()).newest.store(version.as_ptr(), Ordering::Release) };
        Inserted::Version
    }

    fn add_node(&mut self, entry: &NewEntry<'_>, word: u64) {
        let height = self.random_height();
        // Links before the node, so that link `n` is at a fixed distance from it, whatever the
        // height.
        let links = height * size_of::<Link>();
        let node_bytes = size_of::<Node>() + entry.key.len().next_multiple_of(ALIGNMENT);
        // Node, key and first version are one allocation, so that a get of a key that was written
        // once touches neighbouring cache lines.
        let bytes = links + node_bytes + version_bytes(&entry.value, false);
        let start = self.state.arena.allocate(bytes);
        // SAFETY: all within the memory that was just allocated, aligned by the sizes of what lies
        // before; nobody else knows of it.
        let node = unsafe {
            let node = start.add(links).cast::<Node>();
            let version = self.state.write(start.add(links + node_bytes), entry, None);
            let before = self.state.finger[0].before;
            // Null stands for the head, which is no node.
            let back = if before == self.list.head() {
                ptr::null_mut()
            } else {
                before.0.cast::<Node>().as_ptr()
            };
            node.write(Node {
                back: AtomicPtr::new(back),
                newest: AtomicPtr::new(version.as_ptr()),
                key_len: u32::try_from(entry.key.len()).expect("limits::INTERNAL_KEY_BYTES_MAX"),
                key_check: entry.key_check,
            });
            let key = node.add(1).cast::<u8>();
            key.copy_from_nonoverlapping(NonNull::from(entry.key).cast(), entry.key.len());
            for (level, step) in self.state.finger[..height].iter().enumerate() {
                let link = Tower::of(node).0.sub(level + 1);
                link.write(Link::new(step.after, step.after_word));
            }
            node
        };
        self.publish(node, height, word);
    }

    /// Links a node into every level that it has, and puts the finger on it.
    fn publish(&mut self, node: NonNull<Node>, height: usize, word: u64) {
        let after = self.state.finger[0].after;
        // From the lowest level up. A reader that meets the node on a high level can then go down
        // from it.
        for (level, step) in self.state.finger[..height].iter_mut().enumerate() {
            // SAFETY: the tower was reached at this level.
            unsafe { step.before.link(level) }.store(node, word);
            step.before = Tower::of(node);
            step.before_word = word;
        }
        if let Some(after) = NonNull::new(after) {
            // SAFETY: the field is an atomic of a live node.
            unsafe { (*after.as_ptr()).back.store(node.as_ptr(), Ordering::Release) };
        }
        if height > self.list.height.load(Ordering::Relaxed) {
            self.list.height.store(height, Ordering::Relaxed);
        }
    }

    /// One more level with probability 1/2: two links, 32 bytes, a node on average.
    fn random_height(&mut self) -> usize {
        let state = &mut *self.state;
        // xorshift with a fixed seed: the shape of the list depends on the inserts alone, so a run
        // can be repeated.
        state.random ^= state.random << 13;
        state.random ^= state.random >> 7;
        state.random ^= state.random << 17;
        let height = 1 + state.random.trailing_zeros() as usize;
        height.min(HEIGHT_MAX)
    }
}

impl Step {
    /// Returns `true` if `key` belongs between the two.
    #[inline]
    fn holds(&self, list: &SkipList, key: &[u8], word: u64) -> bool {
        let follows = self.before == list.head()
            || self.before_word < word
            // SAFETY: of this list, and not its head.
            || self.before_word == word && unsafe { key_of(self.before.0.cast()) } < key;
        let precedes = self.after.is_null()
            || word < self.after_word
            // SAFETY: of this list.
            || word == self.after_word && key <= unsafe { key_of(NonNull::new_unchecked(self.after)) };
        follows && precedes
    }
}
