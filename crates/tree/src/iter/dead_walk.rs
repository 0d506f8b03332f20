//! [`DeadWalk`]: a walk over entries that its reader does not see, and the memory of such walks.
//!
//! Used by [`VisibleIter`](super::VisibleIter). A queue is put at one end and deleted at the other,
//! so every search for its first entry passes the tombstones of all entries that it ever held.
//! After [`LOOK`] of them the walk looks for a known dead range ([`DeadEntries::find`]) and
//! continues after its end. It adds the entries that it passes itself to that range
//! ([`DeadEntries::remember`]).
//!
//! Invariants:
//! 1. A range that is remembered was walked from its start to its end in all sources of the reader's view, or
//!    known before, or passed over because a deleted range hides it. Every key in it has a newest version at or below `seq`, which is a tombstone or lies
//!    below the reader's clear sequence, and no version above `seq`.
//! 2. `since` is no smaller than the numbers of these versions, and of the clear or deleted range if one lies below
//!    it. So each reader from `since` to `seq` finds the range dead as well.

use super::Direction;
use crate::types::{SeqNo, Trailer};

/// The number of entries in a row that are passed before a range is looked for, and between two
/// looks.
const LOOK: u32 = 8;
/// The number of entries after which a range is remembered. Short pieces keep the time under the
/// writer's lock short.
const PIECE: u32 = 256;
/// Fewer entries are not worth remembering.
const WORTH: u32 = 8;
/// Entries that are so young stay out of a range. With them it would be of no use to readers whose
/// sequence number is a little older, as those of other threads are.
const YOUNG: u64 = 16;

/// A range of user keys, without its end, in which a reader at `since` or later sees no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadRange {
    /// The first key.
    pub start: Vec<u8>,
    /// The first key after it.
    pub end: Vec<u8>,
    /// The oldest reader that it holds for.
    pub since: SeqNo,
}

/// The memory of walks over dead entries, and the entries that have expired for the reader.
pub trait DeadEntries {
    /// Returns `true` if there is one.
    fn is_kept(&self) -> bool;

    /// Returns `true` if the reader must ask for each entry whether it has expired.
    #[inline]
    fn may_expire(&self) -> bool {
        false
    }

    /// Returns `true` if the entry, the newest version of its key, has expired for the reader. No such key is part of
    /// a range: for another reader it may not have.
    fn is_expired(&self, user: &[u8], trailer: Trailer, value: &[u8]) -> bool {
        let _ = (user, trailer, value);
        false
    }

    /// Returns the range around `user` that a reader at `seq` may pass over.
    fn find(&self, user: &[u8], seq: SeqNo) -> Option<DeadRange>;

    /// Adds a range that a reader at `seq` has passed over.
    fn remember(&self, range: &DeadRange, seq: SeqNo);
}

/// No memory.
impl DeadEntries for () {
    fn is_kept(&self) -> bool {
        false
    }

    fn find(&self, _: &[u8], _: SeqNo) -> Option<DeadRange> {
        None
    }

    fn remember(&self, _: &DeadRange, _: SeqNo) {}
}

/// A piece that is being walked.
#[derive(Default)]
struct DeadPiece {
    range: DeadRange,
    count: u32,
    is_open: bool,
}

/// The walk of one cursor. It costs nothing before [`LOOK`] entries in a row.
pub(super) struct DeadWalk {
    direction: Direction,
    /// Entries passed.
    count: u32,
    /// The walk met a version that is newer than the reader, and older versions of that key may
    /// follow.
    is_tainted: bool,
    piece: Option<Box<DeadPiece>>,
}

impl DeadWalk {
    #[inline]
    pub(super) fn new(direction: Direction) -> DeadWalk {
        DeadWalk { direction, count: 0, is_tainted: false, piece: None }
    }

    /// Notes a version that is newer than the reader, at `seq`: its key is no part of a range.
    pub(super) fn taint(&mut self, memory: &impl DeadEntries, seq: SeqNo) {
        self.is_tainted = true;
        self.end(memory, seq);
    }

    /// Notes a key that the reader at `seq` does not see: its newest version for that reader, and the
    /// reader's clear sequence. Returns the range to skip, if it is known.
    #[inline]
    pub(super) fn pass(
        &mut self,
        memory: &impl DeadEntries,
        user: &[u8],
        trailer: Trailer,
        (seq, clear_seq): (SeqNo, SeqNo),
    ) -> Option<DeadRange> {
        self.count += 1;
        if self.count < LOOK || !memory.is_kept() {
            self.is_tainted = false;
            return None;
        }
        // The entry is dead for a reader that sees the tombstone or the clear that hides it.
        let since = if trailer.seq() < clear_seq { clear_seq } else { trailer.seq() };
        self.pass_many(memory, user, since, seq)
    }

    #[inline(never)]
    fn pass_many(
        &mut self,
        memory: &impl DeadEntries,
        user: &[u8],
        since: SeqNo,
        seq: SeqNo,
    ) -> Option<DeadRange> {
        let is_apart = std::mem::take(&mut self.is_tainted) || since.get() + YOUNG > seq.get();
        if is_apart {
            self.end(memory, seq);
        } else {
            self.extend(user, since);
        }
        if self.count.is_multiple_of(LOOK)
            && let Some(known) = memory.find(user, seq)
        {
            // Up to the known range, which holds this entry.
            self.end(memory, seq);
            let piece = self.piece.get_or_insert_default();
            let border = match self.direction {
                Direction::Forward => &known.end,
                Direction::Backward => &known.start,
            };
            piece.range.start.clone_from(border);
            piece.range.end.clone_from(border);
            piece.is_open = true;
            return Some(known);
        }
        if self.piece.as_ref().is_some_and(|piece| piece.count >= PIECE) {
            self.end(memory, seq);
            // The next piece begins where this one ends, so that the two are one range.
            if let Some(piece) = &mut self.piece {
                match self.direction {
                    Direction::Forward => piece.range.start.clone_from(&piece.range.end),
                    Direction::Backward => piece.range.end.clone_from(&piece.range.start),
                }
                piece.is_open = true;
            }
        }
        None
    }

    /// Takes a key into the present piece.
    fn extend(&mut self, user: &[u8], since: SeqNo) {
        let piece = self.piece.get_or_insert_default();
        let DeadRange { start, end, since: oldest } = &mut piece.range;
        if self.direction == Direction::Forward || !piece.is_open {
            end.clear();
            end.extend_from_slice(user);
            end.push(0);
        }
        if self.direction == Direction::Backward || !piece.is_open {
            start.clear();
            start.extend_from_slice(user);
        }
        piece.is_open = true;
        piece.count += 1;
        *oldest = since.max(*oldest);
    }

    /// Notes that the walk passes over keys that the deleted range at `since` hides, without a look at them.
    pub(super) fn pass_over(&mut self, memory: &impl DeadEntries, since: SeqNo, seq: SeqNo) {
        if since.get() + YOUNG > seq.get() {
            self.end(memory, seq);
        } else if let Some(piece) = self.piece.as_mut().filter(|piece| piece.is_open) {
            // The piece reaches over them as soon as a key after them is added.
            piece.range.since = since.max(piece.range.since);
        }
    }

    /// Remembers the present piece, if it is worth it; the next key begins another one.
    pub(super) fn end(&mut self, memory: &impl DeadEntries, seq: SeqNo) {
        let Some(piece) = &mut self.piece else { return };
        if piece.count >= WORTH {
            memory.remember(&piece.range, seq);
        }
        piece.count = 0;
        piece.is_open = false;
        piece.range.since = SeqNo::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ops::Bound;
    use std::rc::Rc;

    use super::super::VisibleIter;
    use super::super::merge::tests::{Calls, Counted, ListIter, key};
    use super::*;
    use crate::types::{EntryKind, InternalKey};

    /// Keeps what it is given as it is.
    #[derive(Default)]
    struct KeptRanges(RefCell<Vec<DeadRange>>);

    impl DeadEntries for &KeptRanges {
        fn is_kept(&self) -> bool {
            true
        }

        fn find(&self, user: &[u8], seq: SeqNo) -> Option<DeadRange> {
            let kept = self.0.borrow();
            let mut around = kept.iter().filter(|range| {
                range.start[..] <= *user && *user < range.end[..] && range.since <= seq
            });
            around.next().cloned()
        }

        fn remember(&self, range: &DeadRange, _: SeqNo) {
            assert!(range.start < range.end);
            self.0.borrow_mut().push(range.clone());
        }
    }

    fn user(n: u64) -> [u8; 2] {
        (n as u16).to_be_bytes()
    }

    fn has(range: &DeadRange, n: u64) -> bool {
        range.start[..] <= user(n)[..] && user(n)[..] < range.end[..]
    }

    /// The entries of a partition, each key put and deleted but for those of `live`.
    fn entries(count: u64, live: &[u64]) -> Vec<(InternalKey, Vec<u8>)> {
        let mut entries = Vec::new();
        for n in 0..count {
            entries.push((key(&user(n), 2 * n + 1, EntryKind::Value), vec![1]));
            if !live.contains(&n) {
                entries.push((key(&user(n), 2 * n + 2, EntryKind::Tombstone), vec![]));
            }
        }
        entries.sort();
        entries
    }

    /// The first or the last key that a reader at `seq` sees, and the steps to it.
    fn end_of(
        entries: &[(InternalKey, Vec<u8>)],
        seq: u64,
        kept: &KeptRanges,
        direction: Direction,
    ) -> (Option<Vec<u8>>, usize) {
        let calls = Rc::new(Calls::default());
        let inner = Counted { list: ListIter::new(entries.to_vec()), calls: Rc::clone(&calls) };
        let seq = SeqNo::new(seq).unwrap();
        let iter = VisibleIter::new(inner, seq, Bound::Unbounded, Bound::Unbounded);
        let mut iter = iter.with_memory(kept);
        match direction {
            Direction::Forward => iter.seek_to_first().unwrap(),
            Direction::Backward => iter.seek_to_last().unwrap(),
        }
        (iter.valid().then(|| iter.key().to_vec()), calls.steps.get())
    }

    /// A search for the first entry of a queue walked over all that was ever deleted.
    #[test]
    fn a_second_walk_passes_over_what_the_first_one_met() {
        for (live, direction) in [(999, Direction::Forward), (0, Direction::Backward)] {
            let entries = entries(1000, &[live]);
            let kept = KeptRanges::default();
            let (found, steps) = end_of(&entries, 5000, &kept, direction);
            assert_eq!(found.unwrap(), user(live));
            assert!(steps >= 999, "{steps} steps");
            let mut fewest = usize::MAX;
            // The pieces are used one after the other; this test does not join those that touch.
            for _ in 0..3 {
                let (found, steps) = end_of(&entries, 5000, &kept, direction);
                assert_eq!(found.unwrap(), user(live));
                fewest = fewest.min(steps);
            }
            assert!(fewest < 120, "{fewest} steps");
        }
    }

    #[test]
    fn a_range_has_no_key_that_is_newer_than_its_reader_and_none_that_is_young() {
        for (live, direction) in [(99, Direction::Forward), (0, Direction::Backward)] {
            let mut entries = entries(100, &[live]);
            // Put again after the reader's moment.
            entries.push((key(&user(50), 900, EntryKind::Value), vec![1]));
            entries.sort();
            let kept = KeptRanges::default();
            end_of(&entries, 300, &kept, direction);
            let ranges = kept.0.borrow();
            assert!(!ranges.is_empty());
            for range in &*ranges {
                assert!(!has(range, 50) && !has(range, live), "{range:?}");
                let newest = (0..100).rev().find(|n| has(range, *n)).unwrap();
                assert_eq!(range.since.get(), 2 * newest + 2);
            }
            let kept = KeptRanges::default();
            end_of(&entries, 200, &kept, direction);
            let ranges = kept.0.borrow();
            assert!(ranges.iter().all(|range| range.since.get() + YOUNG <= 200));
        }
    }

    /// A seek to the end of a range must find versions that are newer than the reader.
    #[test]
    fn the_key_after_a_range_may_be_newer_than_the_reader() {
        let mut entries = entries(100, &[99]);
        entries.push((key(&user(40), 900, EntryKind::Value), vec![1]));
        entries.sort();
        let kept = KeptRanges::default();
        let known = DeadRange { start: vec![0], end: user(40).to_vec(), since: SeqNo::ZERO };
        kept.0.borrow_mut().push(known);
        end_of(&entries, 300, &kept, Direction::Forward);
        let ranges = kept.0.borrow();
        assert!(ranges.len() > 1);
        assert!(
            ranges
                .iter()
                .all(|range| range.end[..] <= user(40)[..] || range.start[..] > user(40)[..])
        );
    }

    #[test]
    fn a_few_entries_are_not_worth_a_range() {
        let count = u64::from(LOOK + WORTH) - 1;
        let entries = entries(count, &[count - 1]);
        let kept = KeptRanges::default();
        end_of(&entries, 300, &kept, Direction::Forward);
        assert!(kept.0.borrow().is_empty());
    }
}
