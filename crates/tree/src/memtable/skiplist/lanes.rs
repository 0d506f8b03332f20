//! The express lanes of a list: the way from a key to a node near it.
//!
//! The lanes of a textbook skiplist are lists themselves. A search reads one node after the other,
//! and waits for memory at nearly each. Here a lane is a row of lane blocks, as in a B+-tree: the
//! targets of a block of lane 0 are nodes, and those of a block of lane `n` are blocks of lane `n -
//! 1`. A search reads one block of each lane, whose lines are loaded together. Called by
//! `skiplist.rs`, `writer.rs` and `prefetch.rs`.
//!
//! ```text
//! block    lane | count | limit | first node | entry 0 | .. | entry 62        16 lines of 64 bytes
//! entry    the word of the first key of the target | the target
//! ```
//!
//! Above lane 0 the word of entry 0 is never compared: keys before entry 1 belong to entry 0.
//!
//! Readers take no lock, so the writer may move entries of a block while it is searched. For that
//! reason lanes are only hints, and the list alone is exact: the search returns a node that is
//! before the key, and the reader walks on from there, over about as many nodes as were inserted
//! during its search. A sequence lock in each block is the tempting way, but then readers wait for
//! a writer that has lost its processor.
//!
//! Invariants:
//! 1. Blocks are initialised before a pointer to them is stored, with release, and stay where they are.
//! 2. The first key of a block never changes, unless the block is the first one of its lane.
//! 3. The key of a place in a block only ever becomes smaller, and the places below `limit` are in
//!    the order of their keys. The writer stores the target of a place first and its word second,
//!    with release; readers load them in the other order, with acquire. So a reader that has seen a
//!    key in a place finds there a target whose key is not greater.
//! 4. A block is split in this order: a new block gets the second half, it is linked into the lane
//!    above, `count` of the old one falls. `limit`, which readers use, never falls: a reader that
//!    came before the split finds the second half unchanged.
//! 5. A node is added to the lanes after it was added to the list, because a reader that finds it
//!    reads its neighbours.

use std::ops::Range;
use std::ptr::{self, NonNull};

use super::super::arena::Arena;
use super::atomic::{AtomicPtr, AtomicU16, AtomicU64, Ordering};
use super::node::{Link, Node, key_of};
use crate::memory::{LINE_BYTES, prefetch};

/// Entries of a block: 1 KiB with its header. With 31, a random fill and the workloads after it are
/// 1 to 4 % slower.
const ENTRIES_MAX: usize = if cfg!(loom) { 2 } else { 63 };
/// A block is half full when the next one begins, so these are enough for all keys that fit in memory: 31^16.
const LANES_MAX: usize = 16;

#[repr(C)]
struct LaneEntry {
    word: AtomicU64,
    /// A [`Node`] in lane 0, a [`LaneBlock`] of the lane below in others.
    target: AtomicPtr<Node>,
}

/// A block of a lane, with up to 63 entries.
#[repr(C)]
pub(super) struct LaneBlock {
    lane: u16,
    /// The number of entries. For the writer, so relaxed.
    count: AtomicU16,
    /// The number of entries for readers: the greatest count so far.
    limit: AtomicU16,
    /// The first node; null in the first block of a lane, where it is not needed.
    first: *mut Node,
    entries: [LaneEntry; ENTRIES_MAX],
}

/// The side of an equal key on which a search ends.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Before,
    After,
}

/// The result of a search.
#[derive(Clone, Copy)]
pub(super) enum Hint {
    /// The node of the key.
    At(NonNull<Node>),
    Between {
        /// A node before the key, for the writer the last one; `None` for the head.
        before: Option<NonNull<Node>>,
        /// The next node, which only the writer can rely on; `None` if the block ends before it.
        after: Option<NonNull<Node>>,
    },
}

impl Hint {
    /// The place in a list without nodes.
    const NOWHERE: Hint = Hint::Between { before: None, after: None };
}

/// The blocks of the writer's last search, by lane, with the place in each.
pub(super) struct Path([(NonNull<LaneBlock>, usize); LANES_MAX]);

impl Path {
    pub(super) fn new() -> Path {
        Path([(NonNull::dangling(), 0); LANES_MAX])
    }

    /// Moves one node on if that is `node` and in the same block; returns `false` otherwise.
    ///
    /// # Safety
    /// The path is of a search since which no block was split, in a list that is not empty.
    pub(super) unsafe fn pass(&mut self, node: NonNull<Node>) -> bool {
        let (block, place) = &mut self.0[0];
        // SAFETY: `path` is of a search of this list, so its blocks live as long as the list (invariant 1).
        let block = unsafe { block.as_ref() };
        let is_next = *place < block.count() && block.target(*place) == node.as_ptr();
        *place += usize::from(is_next);
        is_next
    }

    /// The next node with its word; `None` if the block ends before it.
    ///
    /// # Safety
    /// As [`Path::pass`].
    pub(super) unsafe fn following(&self) -> Option<(NonNull<Node>, u64)> {
        let (block, place) = self.0[0];
        // SAFETY: as in `pass`.
        let block = unsafe { block.as_ref() };
        let is_there = place < block.count();
        let node = is_there.then(|| NonNull::new(block.target(place))).flatten()?;
        Some((node, block.word(place)))
    }
}

impl LaneEntry {
    #[inline(always)]
    fn store(&self, word: u64, target: *mut Node) {
        self.target.store(target, Ordering::Release);
        self.word.store(word, Ordering::Release);
    }
}

impl LaneBlock {
    /// An empty block of `lane`.
    fn new(arena: &mut Arena, lane: u16, first: *mut Node) -> NonNull<LaneBlock> {
        let block = arena.allocate_lines(size_of::<LaneBlock>()).cast::<LaneBlock>();
        let entries = std::array::from_fn(|_| LaneEntry {
            word: AtomicU64::new(0),
            target: AtomicPtr::new(ptr::null_mut()),
        });
        let count = AtomicU16::new(0);
        let made = LaneBlock { lane, count, limit: AtomicU16::new(0), first, entries };
        // SAFETY: `allocate_lines` has just returned memory of this length without another owner. It begins
        // with a cache line, which is more than the alignment of a block.
        unsafe { block.write(made) };
        block
    }

    #[inline(always)]
    fn count(&self) -> usize {
        usize::from(self.count.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn limit(&self) -> usize {
        usize::from(self.limit.load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(super) fn word(&self, place: usize) -> u64 {
        self.entries[place].word.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(super) fn target(&self, place: usize) -> *mut Node {
        self.entries[place].target.load(Ordering::Acquire)
    }

    /// # Safety
    /// The lane is not 0, and the place is below a limit that was loaded.
    #[inline(always)]
    unsafe fn below(&self, place: usize) -> &LaneBlock {
        // SAFETY: the caller checked that the lane is not 0, so the target is a block of the lane below,
        // which is initialised and stays in place (invariant 1). The place is below a limit, so the target
        // was stored before.
        unsafe { &*self.target(place).cast::<LaneBlock>() }
    }

    /// The first node of the target in a place below the limit; null in place 0 of a lane's first block
    /// if that lane is not 0.
    #[inline]
    fn first_node(&self, place: usize) -> *mut Node {
        let target = self.target(place);
        if self.lane == 0 {
            return target;
        }
        // SAFETY: above lane 0 a target is a block of the lane below. It is initialised and stays in place
        // (invariant 1), and `first` never changes.
        unsafe { (*target.cast::<LaneBlock>()).first }
    }

    /// The first key of the target in a place below the limit; above lane 0 not in place 0.
    #[inline]
    pub(super) fn key(&self, place: usize) -> &[u8] {
        // SAFETY: above lane 0, only the first block of a lane has no first node, and it is the target of
        // place 0 of the first block above. The callers do not ask for that place, so this is a node of the
        // list.
        unsafe { key_of(NonNull::new_unchecked(self.first_node(place))) }
    }

    /// The first of these places whose key is not less than `key`; with [`Side::After`] the first one whose
    /// key is greater. The end of the places if there is none.
    #[inline(always)]
    fn place_of(&self, places: Range<usize>, key: &[u8], word: u64, side: Side) -> usize {
        let Range { start: mut low, end } = places;
        let mut size = end - low;
        while size > 0 {
            let half = size / 2;
            let seen = self.word(low + half);
            let is_before = if seen == word {
                // The words decide nothing.
                let order = self.key(low + half).cmp(key);
                order.is_lt() || side == Side::After && order.is_eq()
            } else {
                seen < word
            };
            // Without a branch, which would be mispredicted half of the time.
            low += if is_before { half + 1 } else { 0 };
            size = if is_before { size - half - 1 } else { half };
        }
        low
    }

    /// The result of a search that ends in this block of lane 0, before `place`, with `end`
    /// entries.
    #[inline(always)]
    pub(super) fn hint(&self, place: usize, end: usize, key: &[u8], word: u64) -> Hint {
        let seen = (place < end).then(|| self.word(place));
        let after = seen.and_then(|_| NonNull::new(self.target(place)));
        match after {
            // SAFETY: this is a block of lane 0, whose targets are nodes of the list.
            Some(node) if seen == Some(word) && unsafe { key_of(node) } == key => Hint::At(node),
            _ => {
                let before = place.checked_sub(1);
                let before = before.and_then(|before| NonNull::new(self.target(before)));
                Hint::Between { before, after }
            }
        }
    }

    /// Prefetches the nodes that an insertion of `key` needs; for a block of lane 0.
    #[inline]
    pub(super) fn fetch_nodes(&self, key: &[u8], word: u64) {
        let end = self.count();
        let place = self.place_of(0..end, key, word, Side::Before);
        match self.hint(place, end, key, word) {
            Hint::At(node) => prefetch(node.as_ptr().cast()),
            Hint::Between { before, .. } => fetch_link(before),
        }
    }

    /// Asks for all lines.
    #[inline(always)]
    fn fetch(&self) {
        let start = ptr::from_ref(self).cast::<u8>();
        for line in 0..size_of::<LaneBlock>().div_ceil(LINE_BYTES) {
            prefetch(start.wrapping_add(line * LINE_BYTES));
        }
    }

    /// Puts an entry into a place; those from there on move. Only the writer calls this.
    fn put(&self, place: usize, word: u64, target: *mut Node) {
        let count = self.count();
        for from in (place..count).rev() {
            // Relaxed: no other thread stores.
            let entry = &self.entries[from];
            let word = entry.word.load(Ordering::Relaxed);
            self.entries[from + 1].store(word, entry.target.load(Ordering::Relaxed));
        }
        self.entries[place].store(word, target);
        self.set_count(count + 1);
        if count + 1 > usize::from(self.limit.load(Ordering::Relaxed)) {
            self.limit.store(count as u16 + 1, Ordering::Release);
        }
    }

    fn set_count(&self, count: usize) {
        self.count.store(count as u16, Ordering::Relaxed);
    }
}

/// Prefetches the link that changes when a node is inserted after `before`.
#[inline(always)]
pub(super) fn fetch_link(before: Option<NonNull<Node>>) {
    if let Some(before) = before {
        prefetch(before.as_ptr().cast::<u8>().wrapping_sub(size_of::<Link>()));
    }
}

/// The express lanes of a list.
pub(super) struct Lanes {
    /// The only block of the highest lane; null while the list is empty.
    top: AtomicPtr<LaneBlock>,
}

impl Lanes {
    pub(super) fn new() -> Lanes {
        Lanes { top: AtomicPtr::new(ptr::null_mut()) }
    }

    #[inline(always)]
    fn top(&self) -> Option<&LaneBlock> {
        // SAFETY: the pointer is null or of an initialised block, which lives as long as the list (invariant
        // 1).
        unsafe { self.top.load(Ordering::Acquire).as_ref() }
    }

    /// The block of lane 0 for a place next to a key; `visit` gets the blocks above, with the place
    /// in each.
    #[inline(always)]
    fn descend(
        &self,
        key: &[u8],
        word: u64,
        side: Side,
        mut visit: impl FnMut(&LaneBlock, usize),
    ) -> Option<&LaneBlock> {
        let mut block = self.top()?;
        while block.lane > 0 {
            let place = block.place_of(1..block.limit(), key, word, side) - 1;
            visit(block, place);
            // SAFETY: the loop runs above lane 0, and `place_of` returns 1 to the limit, and the place is one
            // less.
            block = unsafe { block.below(place) };
            block.fetch();
        }
        Some(block)
    }

    /// Returns the node of `key`, or a node before it; `word` is the word of `key`.
    #[inline]
    pub(super) fn search(&self, key: &[u8], word: u64) -> Hint {
        let Some(block) = self.descend(key, word, Side::After, |_, _| ()) else {
            return Hint::NOWHERE;
        };
        let end = block.limit();
        block.hint(block.place_of(0..end, key, word, Side::Before), end, key, word)
    }

    /// Returns a node before `key`, or `None` for the head.
    #[inline]
    pub(super) fn search_before(&self, key: &[u8], word: u64) -> Option<NonNull<Node>> {
        let block = self.descend(key, word, Side::Before, |_, _| ())?;
        let place = block.place_of(0..block.limit(), key, word, Side::Before);
        NonNull::new(block.target(place.checked_sub(1)?))
    }

    /// As [`Lanes::search`]; `path` leads to the place of the key then. For the writer.
    #[inline]
    pub(super) fn search_noting(&self, key: &[u8], word: u64, path: &mut Path) -> Hint {
        let above = &mut path.0;
        let block = self.descend(key, word, Side::After, |block, place| {
            above[usize::from(block.lane)] = (NonNull::from(block), place);
        });
        let Some(block) = block else { return Hint::NOWHERE };
        let end = block.count();
        let place = block.place_of(0..end, key, word, Side::Before);
        path.0[0] = (NonNull::from(block), place);
        let hint = block.hint(place, end, key, word);
        if let Hint::Between { before, .. } = hint {
            fetch_link(before);
        }
        hint
    }

    /// Prefetches the block in which a search for `key` ends, and returns it.
    #[inline]
    pub(super) fn fetch_block(&self, key: &[u8], word: u64) -> Option<&LaneBlock> {
        self.descend(key, word, Side::After, |_, _| ())
    }

    /// The number of lanes.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.top().map_or(0, |top| usize::from(top.lane) + 1)
    }

    /// The last node of the last block; the list may have further ones.
    pub(super) fn last(&self) -> Option<NonNull<Node>> {
        let mut block = self.top()?;
        while block.lane > 0 {
            // SAFETY: the loop runs above lane 0, and a block is linked only when it has an entry, so the
            // limit is at least 1.
            block = unsafe { block.below(block.limit() - 1) };
        }
        NonNull::new(block.target(block.limit() - 1))
    }

    /// Adds a node at the place of `path`, and moves the path past the node; `is_last` if it is the
    /// last one of the list. Returns `false` if `path` is invalid afterwards. Only the writer calls
    /// this.
    ///
    /// # Safety
    /// The path is of a search since which no block was split, or the list was empty.
    pub(super) unsafe fn add(
        &self,
        arena: &mut Arena,
        path: &mut Path,
        node: NonNull<Node>,
        word: u64,
        is_last: bool,
    ) -> bool {
        if self.top().is_none() {
            let block = LaneBlock::new(arena, 0, ptr::null_mut());
            // SAFETY: `LaneBlock::new` has just initialised the block.
            unsafe { block.as_ref() }.put(0, word, node.as_ptr());
            self.top.store(block.as_ptr(), Ordering::Release);
            path.0[0] = (block, 1);
            return true;
        }
        let (block, place) = path.0[0];
        // SAFETY: `path` is of a search of this list, so its blocks live as long as the list (invariant 1).
        let block = unsafe { block.as_ref() };
        if block.count() < ENTRIES_MAX {
            block.put(place, word, node.as_ptr());
            path.0[0].1 += 1;
            return true;
        }
        self.split(arena, path, block, is_last, (place, word, node.as_ptr()));
        false
    }

    /// Adds an entry, which is `(place, word, target)`, to a full block.
    #[cold]
    fn split(
        &self,
        arena: &mut Arena,
        path: &Path,
        block: &LaneBlock,
        is_last: bool,
        (place, word, target): (usize, u64, *mut Node),
    ) {
        // Ascending keys leave full blocks. Not so in the middle of a lane: each of the descending
        // keys that may follow there would begin a block.
        let kept = if is_last { ENTRIES_MAX } else { ENTRIES_MAX / 2 };
        // An entry between the two goes to the first one: the first key of the second never changes.
        let is_in_second = is_last || place > kept;
        let first = match (is_last, block.lane) {
            (false, _) => block.first_node(kept),
            (true, 0) => target,
            // SAFETY: above lane 0 the new target is the block of the lane below that the caller has just
            // split off, which is initialised.
            (true, _) => unsafe { (*target.cast::<LaneBlock>()).first },
        };
        let made = LaneBlock::new(arena, block.lane, first);
        // SAFETY: `LaneBlock::new` has just initialised the block.
        let second = unsafe { made.as_ref() };
        for from in kept..ENTRIES_MAX {
            second.put(from - kept, block.word(from), block.target(from));
        }
        if is_in_second {
            second.put(place - kept, word, target);
        }
        let first_word = second.word(0);
        let made = made.as_ptr().cast::<Node>();
        if ptr::from_ref(block) == self.top.load(Ordering::Relaxed) {
            let top = LaneBlock::new(arena, block.lane + 1, ptr::null_mut());
            // SAFETY: `LaneBlock::new` has just initialised the block.
            let above = unsafe { top.as_ref() };
            above.put(0, 0, ptr::from_ref(block).cast_mut().cast());
            above.put(1, first_word, made);
            self.top.store(top.as_ptr(), Ordering::Release);
        } else {
            let (above, below) = path.0[usize::from(block.lane) + 1];
            // SAFETY: as in `add`: a block of the path.
            let above = unsafe { above.as_ref() };
            if above.count() < ENTRIES_MAX {
                above.put(below + 1, first_word, made);
            } else {
                self.split(arena, path, above, is_last, (below + 1, first_word, made));
            }
        }
        block.set_count(kept);
        if !is_in_second {
            block.put(place, word, target);
        }
    }
}
