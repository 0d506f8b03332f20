//! The express lanes of a list: the way from a key to a node near it.
//!
//! The lanes of a textbook skiplist are lists themselves. A search reads one node after the other, and
//! waits for memory at nearly each. Here a lane is a row of blocks, as in a B+-tree: the entries of a
//! block of lane 0 are nodes, and those of a block of lane `n` are blocks of lane `n - 1`. A search
//! reads one block of each lane, whose lines come from memory together.
//!
//! ```text
//! block    lane | entry count | entry 0 | .. | entry 62          16 lines of 64 bytes
//! entry    the word of the first key behind it | the node, or the block
//! ```
//!
//! Readers take no lock, so the writer may move entries of a block while it is searched. For that reason
//! lanes are only hints, and the list alone has the truth: the search gives a node that is before the key,
//! and the reader walks on from there. A sequence lock in each block is the tempting way, but then
//! readers wait for a writer that has lost its processor.
//!
//! Invariants:
//! 1. Blocks are initialised before a pointer to them is stored, with release, and stay where they are.
//! 2. The first key of a block never changes, unless the block is the first one of its lane.
//! 3. The key of a place in a block only ever becomes smaller. The writer stores the target of a place
//!    first and its word second, with release; readers load them the other way round, with acquire. So
//!    a reader that has seen a key in a place finds there a target whose key is not greater.
//! 4. A block is split in this order: a new block gets the second half, it is linked into the lane
//!    above, the count of the old one falls. Places behind the count get smaller keys than they had, as 3
//!    requires for a reader that knows the old count.
//! 5. A node comes into the lanes after it came into the list, because a reader that has it asks for its
//!    neighbours.

use std::ptr::{self, NonNull};

use super::super::arena::Arena;
use super::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use super::node::{Link, Node, key_of};
use crate::memory::prefetch;

/// Entries of a block: 1 KiB with its head. With 31 a random fill and what follows make 1 to 4 % less.
const ENTRIES_MAX: usize = if cfg!(loom) { 2 } else { 63 };
/// A block is half full when the next one begins, so these are enough for all keys that fit in memory.
const LANES_MAX: usize = 16;
const LINE_BYTES: usize = 64;

#[repr(C)]
struct Entry {
    word: AtomicU64,
    /// A [`Node`] in lane 0, a [`Block`] of the lane below in others.
    target: AtomicPtr<Node>,
}

/// See the module.
#[repr(C)]
pub(super) struct Block {
    lane: usize,
    count: AtomicUsize,
    entries: [Entry; ENTRIES_MAX],
}

/// The result of a search.
#[derive(Clone, Copy)]
pub(super) enum Hint {
    /// The node of the key.
    At(NonNull<Node>),
    Between {
        /// A node before the key, for the writer the last one; `None` for the head.
        before: Option<NonNull<Node>>,
        /// The node behind it with its word, of which only the writer can be sure; `None` if it is
        /// in another block.
        after: Option<(NonNull<Node>, u64)>,
    },
}

impl Hint {
    /// The place in a list without nodes.
    const NOWHERE: Hint = Hint::Between { before: None, after: None };
}

/// The blocks of the writer's last search, by lane, with the place in each.
pub(super) struct Path([(NonNull<Block>, usize); LANES_MAX]);

impl Path {
    pub(super) fn new() -> Path {
        Path([(NonNull::dangling(), 0); LANES_MAX])
    }

    /// Goes one node on if that is `node` and in the same block; returns `false` otherwise.
    ///
    /// # Safety
    /// The path is of a search since which no block was split, in a list that is not empty.
    pub(super) unsafe fn pass(&mut self, node: NonNull<Node>) -> bool {
        let (block, place) = &mut self.0[0];
        // SAFETY: blocks live as long as the list.
        let block = unsafe { block.as_ref() };
        let is_next = *place < block.count() && block.target(*place) == node.as_ptr();
        *place += usize::from(is_next);
        is_next
    }
}

impl Entry {
    #[inline(always)]
    fn store(&self, word: u64, target: *mut Node) {
        self.target.store(target, Ordering::Release);
        self.word.store(word, Ordering::Release);
    }
}

impl Block {
    fn new(arena: &mut Arena, lane: usize) -> NonNull<Block> {
        let block = arena.allocate_aligned(size_of::<Block>(), LINE_BYTES).cast::<Block>();
        let entries = std::array::from_fn(|_| Entry {
            word: AtomicU64::new(0),
            target: AtomicPtr::new(ptr::null_mut()),
        });
        // SAFETY: just allocated, of this length and more than its alignment.
        unsafe { block.write(Block { lane, count: AtomicUsize::new(0), entries }) };
        block
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn word(&self, place: usize) -> u64 {
        self.entries[place].word.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn target(&self, place: usize) -> *mut Node {
        self.entries[place].target.load(Ordering::Acquire)
    }

    /// # Safety
    /// The lane is not 0, and the place was in front of the count.
    #[inline(always)]
    unsafe fn below(&self, place: usize) -> &Block {
        // SAFETY: the caller's promise, and invariant 1.
        unsafe { &*self.target(place).cast::<Block>() }
    }

    /// The first key behind a place, which was in front of the count.
    fn key(&self, place: usize) -> &[u8] {
        let mut target = self.target(place);
        for _ in 0..self.lane {
            // SAFETY: a block of the lane below, by invariant 1; none is empty.
            target = unsafe { &*target.cast::<Block>() }.target(0);
        }
        // SAFETY: behind a place in lane 0 is a node of the list.
        unsafe { key_of(NonNull::new_unchecked(target)) }
    }

    /// The first place from `low` on whose key is not before `key`, nor `key` itself if `or_equal` is set.
    #[inline(always)]
    fn place_behind(&self, mut low: usize, key: &[u8], word: u64, or_equal: bool) -> usize {
        let mut size = self.count() - low;
        while size > 0 {
            let half = size / 2;
            let seen = self.word(low + half);
            let is_before = if seen == word {
                // Rare. The words decide nothing.
                let order = self.key(low + half).cmp(key);
                order.is_lt() || or_equal && order.is_eq()
            } else {
                seen < word
            };
            // Without a branch, which would be guessed wrong half of the time.
            low += if is_before { half + 1 } else { 0 };
            size = if is_before { size - half - 1 } else { half };
        }
        low
    }

    /// The result of a search that ends in this block of lane 0, in front of `place`.
    #[inline(always)]
    fn hint(&self, place: usize, key: &[u8], word: u64) -> Hint {
        let after = (place < self.count()).then(|| (self.word(place), self.target(place)));
        let after = after.and_then(|(word, node)| Some((NonNull::new(node)?, word)));
        match after {
            // SAFETY: in lane 0 targets are nodes of the list.
            Some((node, seen)) if seen == word && unsafe { key_of(node) } == key => Hint::At(node),
            _ => {
                let before = place.checked_sub(1);
                let before = before.and_then(|before| NonNull::new(self.target(before)));
                Hint::Between { before, after }
            }
        }
    }

    /// Asks for what an insertion of `key` needs of the nodes beside it; of a block of lane 0.
    #[inline]
    pub(super) fn fetch_nodes(&self, key: &[u8], word: u64) {
        match self.hint(self.place_behind(0, key, word, false), key, word) {
            Hint::At(node) => prefetch(node.as_ptr().cast()),
            Hint::Between { before, after } => {
                fetch_neighbours(before, after.map(|(node, _)| node))
            }
        }
    }

    /// Asks for all lines.
    #[inline(always)]
    fn fetch(&self) {
        let start = ptr::from_ref(self).cast::<u8>();
        for line in 0..size_of::<Block>().div_ceil(LINE_BYTES) {
            prefetch(start.wrapping_add(line * LINE_BYTES));
        }
    }

    /// Puts an entry into a place; those from there on move. Only the writer calls this.
    fn put(&self, place: usize, word: u64, target: *mut Node) {
        let count = self.count();
        for from in (place..count).rev() {
            self.entries[from + 1].store(self.word(from), self.target(from));
        }
        self.entries[place].store(word, target);
        self.count.store(count + 1, Ordering::Release);
    }
}

/// Asks for the lines that change when a node comes between two.
#[inline(always)]
fn fetch_neighbours(before: Option<NonNull<Node>>, after: Option<NonNull<Node>>) {
    if let Some(before) = before {
        prefetch(before.as_ptr().cast::<u8>().wrapping_sub(size_of::<Link>()));
    }
    if let Some(after) = after {
        prefetch(after.as_ptr().cast());
    }
}

/// See the module.
pub(super) struct Lanes {
    /// The only block of the highest lane; null while the list is empty.
    top: AtomicPtr<Block>,
}

impl Lanes {
    pub(super) fn new() -> Lanes {
        Lanes { top: AtomicPtr::new(ptr::null_mut()) }
    }

    #[inline(always)]
    fn top(&self) -> Option<&Block> {
        // SAFETY: null or a block, which lives as long as the list.
        unsafe { self.top.load(Ordering::Acquire).as_ref() }
    }

    /// The block of lane 0 for a key; `visit` gets the blocks above, with the place in each.
    #[inline(always)]
    fn descend(
        &self,
        key: &[u8],
        word: u64,
        mut visit: impl FnMut(&Block, usize),
    ) -> Option<&Block> {
        let mut block = self.top()?;
        while block.lane > 0 {
            // What is before all keys behind place 1 is behind place 0.
            let place = block.place_behind(1, key, word, true) - 1;
            visit(block, place);
            // SAFETY: in front of the count, of a lane above 0.
            block = unsafe { block.below(place) };
            block.fetch();
        }
        Some(block)
    }

    /// Returns the node of `key`, or a node before it; `word` is the word of `key`.
    #[inline]
    pub(super) fn search(&self, key: &[u8], word: u64) -> Hint {
        let Some(block) = self.descend(key, word, |_, _| ()) else { return Hint::NOWHERE };
        block.hint(block.place_behind(0, key, word, false), key, word)
    }

    /// As [`Lanes::search`]; `path` leads to the place of the key then. For the writer.
    #[inline]
    pub(super) fn search_noting(&self, key: &[u8], word: u64, path: &mut Path) -> Hint {
        let above = &mut path.0;
        let block = self.descend(key, word, |block, place| {
            above[block.lane] = (NonNull::from(block), place);
        });
        let Some(block) = block else { return Hint::NOWHERE };
        let place = block.place_behind(0, key, word, false);
        path.0[0] = (NonNull::from(block), place);
        let hint = block.hint(place, key, word);
        if let Hint::Between { before, after } = hint {
            fetch_neighbours(before, after.map(|(after, _)| after));
        }
        hint
    }

    /// Asks for the block in which a search for `key` ends, and returns it.
    #[inline]
    pub(super) fn fetch_block(&self, key: &[u8], word: u64) -> Option<&Block> {
        self.descend(key, word, |_, _| ())
    }

    /// The number of lanes.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.top().map_or(0, |top| top.lane + 1)
    }

    /// The last node of the last block, which others may follow.
    pub(super) fn last(&self) -> Option<NonNull<Node>> {
        let mut block = self.top()?;
        while block.lane > 0 {
            // SAFETY: in front of the count, of a lane above 0.
            block = unsafe { block.below(block.count() - 1) };
        }
        NonNull::new(block.target(block.count() - 1))
    }

    /// Adds a node at the place to which `path` leads, and leads it behind the node. Returns `false` if
    /// it leads nowhere then. Only the writer calls this.
    ///
    /// # Safety
    /// The path is of a search since which no block was split, or the list was empty.
    pub(super) unsafe fn add(
        &self,
        arena: &mut Arena,
        path: &mut Path,
        node: NonNull<Node>,
        word: u64,
    ) -> bool {
        if self.top().is_none() {
            let block = Block::new(arena, 0);
            // SAFETY: just made.
            unsafe { block.as_ref() }.put(0, word, node.as_ptr());
            self.top.store(block.as_ptr(), Ordering::Release);
            path.0[0] = (block, 1);
            return true;
        }
        let (block, place) = path.0[0];
        // SAFETY: blocks live as long as the list.
        let block = unsafe { block.as_ref() };
        if block.count() < ENTRIES_MAX {
            block.put(place, word, node.as_ptr());
            path.0[0].1 += 1;
            return true;
        }
        self.split(arena, path, block, place, word, node.as_ptr());
        false
    }

    /// Adds an entry at a place of a full block.
    #[cold]
    fn split(
        &self,
        arena: &mut Arena,
        path: &Path,
        block: &Block,
        place: usize,
        word: u64,
        target: *mut Node,
    ) {
        // Ascending keys leave full blocks behind.
        let kept = if place == ENTRIES_MAX { ENTRIES_MAX } else { ENTRIES_MAX / 2 };
        let made = Block::new(arena, block.lane);
        // SAFETY: just made.
        let second = unsafe { made.as_ref() };
        for from in kept..ENTRIES_MAX {
            second.put(from - kept, block.word(from), block.target(from));
        }
        // An entry between the two goes to the first one: the first key of the second never changes.
        let is_in_second = place > kept || kept == ENTRIES_MAX;
        if is_in_second {
            second.put(place - kept, word, target);
        }
        let (first_word, made) = (second.word(0), made.as_ptr().cast::<Node>());
        if ptr::from_ref(block) == self.top.load(Ordering::Relaxed) {
            let top = Block::new(arena, block.lane + 1);
            // SAFETY: just made.
            let above = unsafe { top.as_ref() };
            above.put(0, 0, ptr::from_ref(block).cast_mut().cast());
            above.put(1, first_word, made);
            self.top.store(top.as_ptr(), Ordering::Release);
        } else {
            let (above, below) = path.0[block.lane + 1];
            // SAFETY: blocks live as long as the list.
            let above = unsafe { above.as_ref() };
            if above.count() < ENTRIES_MAX {
                above.put(below + 1, first_word, made);
            } else {
                self.split(arena, path, above, below + 1, first_word, made);
            }
        }
        block.count.store(kept, Ordering::Release);
        if !is_in_second {
            block.put(place, word, target);
        }
    }
}
