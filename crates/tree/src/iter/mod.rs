//! Ordered cursors over internal keys, and the cursors that are built from them.
//!
//! Every implementation of [`InternalIter`] has the following obligations. The merge, the visible
//! iteration and compactions rely on each of them.
//!
//! ```text
//! state              valid   key, value   next, prev   seeks     how it comes about
//! before any seek    no      forbidden    forbidden    allowed   a new cursor
//! on an entry        yes     allowed      allowed      allowed   a move that returned `Ok`
//! past an end        no      forbidden    forbidden    allowed   a move that returned `Ok`
//! after an error     no      forbidden    forbidden    allowed   a move that returned `Err`
//! ```
//!
//! A forbidden call is a mistake of the caller. It may panic or do nothing; it never shows an
//! entry.
//!
//! - *Order.* Entries come in internal order: user keys ascending, versions of one user key newest
//!   first. `next` and `prev` visit the same entries in opposite orders, and no entry twice.
//! - *Ends and errors.* `valid` does not distinguish an end from an error. Only the `Result` of the move
//!   does, so the caller looks at it before it concludes that a key is absent.
//! - *Seeks are absolute.* Each works in every state, forgets an earlier error, and may be repeated.
//!   `seek` and `seek_before` split the entries at the target: `seek` finds the first entry that is not
//!   before it, `seek_before` the last one that is. A target need not be an entry.
//! - *Steps are relative.* A step off either end succeeds and leaves the cursor past that end. It
//!   does not wrap, and it does not remember the end: to come back, the caller seeks.
//! - *Turning.* A step may follow a step in the other direction, or any seek.
//! - *Errors.* A move that fails leaves the cursor invalid until the next seek. A seek past damaged
//!   bytes may succeed. An implementation never skips an entry that it cannot read silently: it
//!   returns an error or, in the tolerant modes of `sstable::RawIter`, a finding.
//! - *Bytes.* The cursor owns or pins the bytes that `key` and `value` lend. The borrow ends with
//!   the next move. A caller that keeps a key copies it; a caller that keeps a large value asks for
//!   a [`Slice`](crate::types::Slice), which shares the block.
//! - *Lifetime.* A cursor keeps the memtable or the open table alive, and not the file on the disk:
//!   its caller pins the view that it came from.
//! - *Snapshots.* A cursor over a memtable may meet entries that were inserted after it was made.
//!   They are newer than any sequence number that the reader sees, and the visible iteration passes
//!   over them.
//!
//! One cursor promises less: `sstable::TolerantIter`, the walk of a repair over a damaged table. It
//! allows a `seek` without a target as its first move, then `next` alone. The other moves return
//! `InvalidArgument`.

/// Implements [`InternalIter`] but for `key` for an enum of cursors: each call goes to the cursor of the present
/// variant. A `dyn InternalIter` would be shorter, and would make each step of every merge a virtual call.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_to_variants {
    ($cursors:ident: $($variant:ident),+) => {
        #[inline]
        fn valid(&self) -> bool {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.valid(),)+
            }
        }

        #[inline(always)]
        fn value(&self) -> &[u8] {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.value(),)+
            }
        }

        fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.seek(target),)+
            }
        }

        fn seek_before(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.seek_before(target),)+
            }
        }

        #[inline]
        fn next(&mut self) -> Result<()> {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.next(),)+
            }
        }

        #[inline]
        fn prev(&mut self) -> Result<()> {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.prev(),)+
            }
        }

        #[inline]
        fn next_key(&mut self, room: &mut Vec<u8>) -> Result<()> {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.next_key(room),)+
            }
        }

        fn run_before(&self, until: Option<KeyRef<'_>>) -> usize {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.run_before(until),)+
            }
        }

        #[inline(always)]
        fn next_in_run(&mut self) -> Result<Trailer> {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.next_in_run(),)+
            }
        }
    };
}

mod dead_walk;
mod floors;
mod merge;
mod visible;

use crate::error::Result;
use crate::types::{KeyRef, SeqNo, Trailer};

pub use dead_walk::{DeadEntries, DeadRange};
pub use floors::Floors;
pub use forward_to_variants;
pub use merge::{MergeIter, MergeSource};
pub use visible::VisibleIter;

/// Steps over versions of one key before a seek is cheaper.
const STEPS_BEFORE_SEEK: usize = 8;

/// A cursor over entries in internal order. The page of the module has the obligations.
pub trait InternalIter {
    /// Returns `true` if the cursor is on an entry.
    fn valid(&self) -> bool;

    /// Returns the entry's key, which lives until the next move. Only while
    /// [`InternalIter::valid`].
    fn key(&self) -> KeyRef<'_>;

    /// Returns the entry's value, which lives until the next move. Only while
    /// [`InternalIter::valid`].
    fn value(&self) -> &[u8];

    /// Moves to the first entry that is not before `target`, without a target to the first entry of all.
    /// Invalid if there is none.
    fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()>;

    /// Moves to the last entry that is before `target`, without a target to the last entry of all. Invalid if
    /// there is none.
    fn seek_before(&mut self, target: Option<KeyRef<'_>>) -> Result<()>;

    /// Moves one entry forward; from the last one, past the end. Only while
    /// [`InternalIter::valid`].
    fn next(&mut self) -> Result<()>;

    /// Moves one entry back; from the first one, past the front. Only while
    /// [`InternalIter::valid`].
    fn prev(&mut self) -> Result<()>;

    /// Moves to the first entry of a later user key; past the end without one. Only while
    /// [`InternalIter::valid`]. `room` is for a copy of the present key, if one is needed.
    #[inline]
    fn next_key(&mut self, room: &mut Vec<u8>) -> Result<()> {
        step_to_next_key(self, room)
    }

    /// Returns a number of entries after the present one, which make up a run: all are before `until`, and
    /// each has another user key than the one before it. 0 says nothing, and is the default. Only while
    /// [`InternalIter::valid`].
    #[inline]
    fn run_before(&self, _until: Option<KeyRef<'_>>) -> usize {
        0
    }

    /// As [`InternalIter::next`], to an entry of the run that the last call of
    /// [`InternalIter::run_before`] returned; returns its trailer. Only such steps came after that call. A cursor
    /// that knows runs overrides it, because it need not look for an end.
    #[inline]
    fn next_in_run(&mut self) -> Result<Trailer> {
        self.next()?;
        Ok(self.key().trailer)
    }
}

/// The direction of a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To greater keys.
    Forward,
    /// To smaller keys.
    Backward,
}

/// A cursor that can skip the entries which a deleted range hides.
pub trait SkipOlder: InternalIter {
    /// Moves in `direction` past the entries on this side of `border`, a user key: forward those of smaller keys,
    /// backward those of this key and of greater ones; without it, all. Every entry that it passes is older than
    /// `seq`. Returns `false` if the cursor does not know that without a read, and has not moved. It may stop earlier.
    /// Only while [`InternalIter::valid`]. Default: `false`.
    ///
    /// # Errors
    /// Those of a seek.
    fn skip_older(
        &mut self,
        direction: Direction,
        border: Option<&[u8]>,
        seq: SeqNo,
    ) -> Result<bool> {
        let _ = (direction, border, seq);
        Ok(false)
    }
}

/// Moves in `direction` past all entries on this side of `border`; see [`SkipOlder`].
pub(crate) fn skip_to_border<I: InternalIter>(
    iter: &mut I,
    direction: Direction,
    border: Option<&[u8]>,
) -> Result<()> {
    match (direction, border) {
        (Direction::Forward, Some(border)) => iter.seek(Some(KeyRef::seek(border, SeqNo::MAX))),
        (Direction::Forward, None) => {
            iter.seek_before(None)?;
            if iter.valid() { iter.next() } else { Ok(()) }
        }
        (Direction::Backward, border) => {
            iter.seek_before(Some(KeyRef::seek(border.unwrap_or_default(), SeqNo::MAX)))
        }
    }
}

/// The move of [`InternalIter::next_key`] for any cursor: by comparing the keys of entries.
#[inline]
pub fn step_to_next_key<I: InternalIter + ?Sized>(iter: &mut I, room: &mut Vec<u8>) -> Result<()> {
    room.clear();
    room.extend_from_slice(iter.key().user);
    // Most keys have few versions, and a step stays in its block; a seek searches from the index on.
    for _ in 0..=STEPS_BEFORE_SEEK {
        iter.next()?;
        if !iter.valid() || iter.key().user != room {
            return Ok(());
        }
    }
    // Trailer::LAST sorts after every version that can exist.
    iter.seek(Some(KeyRef::new(room, Trailer::LAST)))?;
    if iter.valid() && iter.key().user == room {
        iter.next()?;
    }
    Ok(())
}
