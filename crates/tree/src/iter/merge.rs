//! Merging cursors into one: a source that holds the current entry, and a binary heap over the others
//! that compares 8-byte prefixes first.
//!
//! After a move only the new head of the source that moved is compared with the best of the others, so
//! a long run from one source costs one comparison an entry however many sources there are, and none
//! where the others are at their ends.
//!
//! A tournament tree would compare fewer keys when sources alternate, but it pays its full height
//! on every move, and scans of a compacted partition read long runs from one source.
//!
//! Invariants:
//! 1. `top` and `rest` hold exactly the valid sources; `rest` is a heap for the present direction, and
//!    nothing in it precedes `top`.
//! 2. The prefix in a [`HeapEntry`] of `rest` is that of the key under its source. That of `top`
//!    is, too, as long as there is a rest to compare it with. The exception: after steps in a
//!    run it is the prefix of an earlier key. Then the current key is before those of all
//!    others.
//! 3. After an error nothing is valid until the next seek.

use std::cmp::Ordering;

use super::{Direction, InternalIter, SkipOlder};
use crate::error::Result;
use crate::types::{KeyRef, SeqNo, Trailer, prefix8};

/// A valid source.
#[derive(Clone, Copy)]
struct HeapEntry {
    /// `prefix8` of the user key under the source.
    prefix: u64,
    /// Its index.
    source: usize,
}

/// No source.
const NOWHERE: HeapEntry = HeapEntry { prefix: 0, source: usize::MAX };

/// Several cursors as one. Equal internal keys come out in the order of the sources.
pub struct MergeIter<I> {
    sources: Vec<I>,
    /// Holds the current entry.
    top: HeapEntry,
    /// The other sources that are valid.
    rest: Vec<HeapEntry>,
    direction: Direction,
    /// The last move was a step of the source on top, which stayed there.
    has_stayed: bool,
    /// A copy of a user key that several sources have.
    shared_key: Vec<u8>,
    prefetch: Option<Prefetch<I>>,
}

/// Asks for what seeks of the sources to the target wait for. An error is one that a seek would return.
type Prefetch<I> = fn(&[I], Option<KeyRef<'_>>) -> Result<()>;

/// A cursor that a merge can have as a source.
pub trait MergeSource: InternalIter {
    /// The first 8 bytes of the user key, as [`prefix8`] returns them. Only while [`InternalIter::valid`]. The
    /// cursor of a table overrides it, because a word of the block has these bytes. It has just written the key
    /// to a buffer, and a load from there would wait for these stores.
    #[inline]
    fn prefix(&self) -> u64 {
        prefix8(self.key().user)
    }
}

impl<I: MergeSource> MergeIter<I> {
    /// Merges `sources`; before the first seek nothing is valid.
    pub fn new(sources: Vec<I>) -> MergeIter<I> {
        // It never holds more, so no move of the merge allocates. One source alone needs no heap.
        let rest = Vec::with_capacity(sources.len().saturating_sub(1));
        let direction = Direction::Forward;
        MergeIter {
            sources,
            top: NOWHERE,
            rest,
            direction,
            has_stayed: false,
            shared_key: Vec::new(),
            prefetch: None,
        }
    }

    /// Calls `prefetch` before the first of several sources seeks.
    #[must_use]
    pub fn with_prefetch(self, prefetch: Prefetch<I>) -> MergeIter<I> {
        MergeIter { prefetch: Some(prefetch), ..self }
    }

    /// The source that holds the current entry. Only while valid.
    #[inline]
    pub fn current(&self) -> &I {
        &self.sources[self.top.source]
    }

    /// The same, to be changed in anything but its place.
    pub fn current_mut(&mut self) -> &mut I {
        &mut self.sources[self.top.source]
    }

    /// Makes nothing valid.
    fn clear(&mut self) {
        self.top = NOWHERE;
        self.rest.clear();
    }

    #[inline(always)]
    fn precedes(&self, a: HeapEntry, b: HeapEntry) -> bool {
        // The prefixes decide nearly always, and comparing them touches no block. Equal prefixes
        // say nothing, since keys may share their first 8 bytes.
        if a.prefix == b.prefix {
            return self.precedes_by_key(a, b);
        }
        (a.prefix < b.prefix) == (self.direction == Direction::Forward)
    }

    #[inline(never)]
    fn precedes_by_key(&self, a: HeapEntry, b: HeapEntry) -> bool {
        let order = self.sources[a.source].key().cmp(&self.sources[b.source].key());
        // Sources are given newest first. Equal internal keys (an entry that recovery wrote twice)
        // must come out in one order from both sides, or a turn would skip or repeat one.
        match (order, self.direction) {
            (Ordering::Equal, Direction::Forward) => a.source < b.source,
            (Ordering::Equal, Direction::Backward) => a.source > b.source,
            (order, Direction::Forward) => order == Ordering::Less,
            (order, Direction::Backward) => order == Ordering::Greater,
        }
    }

    fn sift_down(&mut self, mut parent: usize) {
        loop {
            let mut best = 2 * parent + 1;
            if best >= self.rest.len() {
                return;
            }
            if best + 1 < self.rest.len() && self.precedes(self.rest[best + 1], self.rest[best]) {
                best += 1;
            }
            if !self.precedes(self.rest[best], self.rest[parent]) {
                return;
            }
            self.rest.swap(best, parent);
            parent = best;
        }
    }

    /// Puts the best of the others on top if it precedes what is there.
    #[inline]
    fn fix_top(&mut self) {
        if self.precedes(self.rest[0], self.top) {
            std::mem::swap(&mut self.rest[0], &mut self.top);
            self.sift_down(0);
        }
    }

    /// Moves every source by `place` and builds a new heap.
    fn place_all(
        &mut self,
        direction: Direction,
        mut place: impl FnMut(usize, &mut I) -> Result<()>,
    ) -> Result<()> {
        self.clear();
        self.direction = direction;
        self.has_stayed = false;
        for (index, source) in self.sources.iter_mut().enumerate() {
            if let Err(error) = place(index, source) {
                self.clear();
                return Err(error);
            }
            if !source.valid() {
                continue;
            }
            let prefix = source.prefix();
            let head = HeapEntry { prefix, source: index };
            if self.top.source == NOWHERE.source {
                self.top = head;
            } else {
                self.rest.push(head);
            }
        }
        // From the last parent up: building in place compares fewer keys than adding one by one.
        for parent in (0..self.rest.len() / 2).rev() {
            self.sift_down(parent);
        }
        if !self.rest.is_empty() {
            self.fix_top();
        }
        Ok(())
    }

    #[inline]
    fn top_moved(&mut self, moved: Result<()>) -> Result<()> {
        // An error ends the whole merge. Continuing with the other sources would show older entries
        // of keys whose newest entry lies after the damage.
        if moved.is_err() {
            self.clear();
            return moved;
        }
        let moved_source = self.top.source;
        let top = &self.sources[moved_source];
        if !top.valid() {
            self.leave_top();
        } else if !self.rest.is_empty() {
            // Only the top can be out of order: no other source has moved.
            self.top.prefix = top.prefix();
            self.fix_top();
        }
        self.has_stayed = self.top.source == moved_source;
        Ok(())
    }

    /// The source on top is exhausted. It returns with the next seek, which places all sources.
    #[cold]
    fn leave_top(&mut self) {
        if self.rest.is_empty() {
            self.top = NOWHERE;
            return;
        }
        self.top = self.rest.swap_remove(0);
        self.sift_down(0);
    }

    /// Returns `true` if no other source is on an entry of the present user key. Only while valid.
    #[inline]
    fn is_alone(&self) -> bool {
        // A source that has an entry of the key has it before all greater keys, so the best of the
        // others would be on it.
        self.rest.first().is_none_or(|other| {
            other.prefix != self.top.prefix
                || self.sources[other.source].key().user != self.current().key().user
        })
    }

    /// Moves every source on from its versions of `user`, each in one move: steps of the merge would compare them
    /// all.
    fn pass_versions(&mut self, user: &[u8], room: &mut Vec<u8>) -> Result<()> {
        while self.valid() && self.key().user == user {
            let moved = self.sources[self.top.source].next_key(room);
            self.top_moved(moved)?;
        }
        Ok(())
    }

    /// Turns around: every other source moves to its first entry beyond the current one in the new
    /// direction. Stepping each source once would be cheaper and wrong: after a turn a source may
    /// be several entries away from the current one, on either side.
    fn turn(&mut self, direction: Direction) -> Result<()> {
        let top = self.top.source;
        // A copy, because the moves below borrow all sources.
        let here = self.sources[top].key().to_owned();
        self.place_all(direction, |index, source| {
            if index == top {
                return Ok(());
            }
            match direction {
                Direction::Forward => {
                    source.seek(Some(here.as_ref()))?;
                    // An equal entry of an earlier source was passed already.
                    if index < top && source.valid() && source.key() == here.as_ref() {
                        source.next()?;
                    }
                    Ok(())
                }
                Direction::Backward => {
                    source.seek(Some(here.as_ref()))?;
                    // An equal entry of an earlier source comes next on the way back.
                    let equal = source.valid() && source.key() == here.as_ref();
                    let stays = equal && index < top;
                    if stays { Ok(()) } else { source.seek_before(Some(here.as_ref())) }
                }
            }
        })
    }
}

impl<I: MergeSource> InternalIter for MergeIter<I> {
    #[inline]
    fn valid(&self) -> bool {
        self.top.source != NOWHERE.source
    }

    #[inline]
    fn key(&self) -> KeyRef<'_> {
        self.current().key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.current().value()
    }

    fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        // Each source waits for memory, or for another machine. All of them ask before the first one waits.
        if let (Some(prefetch), 2..) = (self.prefetch, self.sources.len()) {
            prefetch(&self.sources, target)?;
        }
        self.place_all(Direction::Forward, |_, source| source.seek(target))
    }

    fn seek_before(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        self.place_all(Direction::Backward, |_, source| source.seek_before(target))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if self.direction == Direction::Backward {
            self.turn(Direction::Forward)?;
        }
        let moved = self.sources[self.top.source].next();
        self.top_moved(moved)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        if self.direction == Direction::Forward {
            self.turn(Direction::Backward)?;
        }
        let moved = self.sources[self.top.source].prev();
        self.top_moved(moved)
    }

    #[inline]
    fn next_key(&mut self, room: &mut Vec<u8>) -> Result<()> {
        if self.direction == Direction::Backward {
            self.turn(Direction::Forward)?;
        }
        // A source knows its own keys: if no other one has versions of this key, no key is copied and
        // none compared.
        if self.is_alone() {
            let moved = self.sources[self.top.source].next_key(room);
            return self.top_moved(moved);
        }
        let mut key = std::mem::take(&mut self.shared_key);
        key.clear();
        key.extend_from_slice(self.key().user);
        let passed = self.pass_versions(&key, room);
        self.shared_key = key;
        passed
    }

    fn run_before(&self, until: Option<KeyRef<'_>>) -> usize {
        // A source that has just come to the top often leaves it at the next move, and finding out takes a
        // search. Backwards, the others are not in front of the entries that come next.
        if !self.has_stayed || self.direction == Direction::Backward {
            return 0;
        }
        let Some(other) = self.rest.first() else {
            return self.current().run_before(until);
        };
        // In front of all versions of the next other key: no source has versions of a key of the run.
        let other = KeyRef::seek(self.sources[other.source].key().user, SeqNo::MAX);
        self.current().run_before(Some(until.map_or(other, |until| until.min(other))))
    }

    #[inline]
    fn next_in_run(&mut self) -> Result<Trailer> {
        let moved = self.sources[self.top.source].next_in_run();
        if moved.is_err() {
            self.clear();
        }
        moved
    }
}

impl<I: MergeSource + SkipOlder> SkipOlder for MergeIter<I> {
    fn skip_older(
        &mut self,
        direction: Direction,
        border: Option<&[u8]>,
        seq: SeqNo,
    ) -> Result<bool> {
        // Sources that move alone would be on the wrong side of the present entry.
        if direction != self.direction {
            return Ok(false);
        }
        // The source of the present entry alone: another one may have newer entries on the way, and has its turn
        // when the merge comes to it.
        match self.sources[self.top.source].skip_older(direction, border, seq) {
            Ok(false) => Ok(false),
            moved => self.top_moved(moved.map(drop)).map(|()| true),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
