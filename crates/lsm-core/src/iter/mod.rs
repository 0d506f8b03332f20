//! Ordered cursors over internal keys, and what is built from them.
//!
//! Every implementation of [`InternalIter`] owes its callers the following. The merge, the visible
//! iteration and compactions rely on each point.
//!
//! - *Order.* Entries come in internal order: user keys ascending, versions of one user key newest
//!   first. `next` and `prev` visit the same entries in opposite orders, and no entry twice.
//! - *Position.* A cursor is on an entry or it is invalid. It is invalid before its first seek,
//!   past either end, and after an error. `valid` tells these apart from an entry and from nothing
//!   else: the end is told from an error by the `Result` of the move alone.
//! - *Seeks are absolute.* Each of the four works from any state, forgets an earlier error, and may
//!   be repeated. `seek` and `seek_before` split the entries at the target: one finds the first
//!   that is not before it, the other the last that is.
//! - *Steps are relative.* `next` and `prev` may be called only on an entry. A step off either end
//!   succeeds and leaves the cursor invalid; it does not wrap and does not remember the end, so
//!   coming back takes a seek.
//! - *Turning.* A step may follow a step in the other direction, or any seek.
//! - *Errors.* A move that fails leaves the cursor invalid until the next seek. It is never taken
//!   for an end, so nobody concludes from it that a key is absent. A seek behind damaged bytes may
//!   succeed.
//! - *Bytes.* The cursor owns or pins what `key` and `value` lend, and the borrow ends with the
//!   next move: whoever keeps a key copies it, and whoever keeps a large value asks for a
//!   [`Slice`](crate::types::Slice), which shares the block.
//! - *Snapshots.* A cursor over a memtable may meet entries that were inserted after it was made.
//!   They are newer than any sequence number that the reader sees, and the visible iteration passes
//!   over them.

/// Implements the moves of [`InternalIter`], and `valid` and `value`, for an enum of cursors: each
/// goes to the cursor of the present variant. A `dyn InternalIter` would be shorter, and would make
/// each step of every merge a virtual call.
macro_rules! forward_to_variants {
    ($cursors:ident: $($variant:ident),+) => {
        #[inline]
        fn valid(&self) -> bool {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.valid(),)+
            }
        }

        #[inline]
        fn value(&self) -> &[u8] {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.value(),)+
            }
        }

        fn seek_to_first(&mut self) -> Result<()> {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.seek_to_first(),)+
            }
        }

        fn seek_to_last(&mut self) -> Result<()> {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.seek_to_last(),)+
            }
        }

        fn seek(&mut self, target: KeyRef<'_>) -> Result<()> {
            match self {
                $($cursors::$variant(cursor, ..) => cursor.seek(target),)+
            }
        }

        fn seek_before(&mut self, target: KeyRef<'_>) -> Result<()> {
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
    };
}

mod merge;
mod visible;

use crate::error::Result;
use crate::types::{KeyRef, Trailer};

pub(crate) use forward_to_variants;
pub use merge::MergeIter;
pub use visible::VisibleIter;

/// Steps over versions of one key before a seek is cheaper.
const STEPS_BEFORE_SEEK: usize = 8;

/// A cursor over entries in internal order.
pub trait InternalIter {
    /// Returns `true` if the cursor is on an entry.
    fn valid(&self) -> bool;

    /// Returns the entry's key, which lives until the next move. Only while
    /// [`InternalIter::valid`].
    fn key(&self) -> KeyRef<'_>;

    /// Returns the entry's value, which lives until the next move. Only while
    /// [`InternalIter::valid`].
    fn value(&self) -> &[u8];

    /// Moves to the first entry; without entries, the cursor is invalid.
    fn seek_to_first(&mut self) -> Result<()>;

    /// Moves to the last entry; without entries, the cursor is invalid.
    fn seek_to_last(&mut self) -> Result<()>;

    /// Moves to the first entry that is not before `target`; invalid if all are before it.
    fn seek(&mut self, target: KeyRef<'_>) -> Result<()>;

    /// Moves to the last entry that is before `target`; invalid if none is.
    fn seek_before(&mut self, target: KeyRef<'_>) -> Result<()>;

    /// Moves one entry forward; from the last one, past the end. Only while
    /// [`InternalIter::valid`].
    fn next(&mut self) -> Result<()>;

    /// Moves one entry back; from the first one, past the front. Only while
    /// [`InternalIter::valid`].
    fn prev(&mut self) -> Result<()>;

    /// Moves on from the entries of the user key `user` to the first of a later key, if the cursor
    /// is on one of them.
    fn pass(&mut self, user: &[u8]) -> Result<()> {
        // Most keys have few versions, and a step stays in its block; a seek searches from the
        // index on.
        for _ in 0..STEPS_BEFORE_SEEK {
            if !self.valid() || self.key().user != user {
                return Ok(());
            }
            self.next()?;
        }
        if self.valid() && self.key().user == user {
            // Trailer::LAST sorts behind every version that can exist.
            self.seek(KeyRef::new(user, Trailer::LAST))?;
            if self.valid() && self.key().user == user {
                self.next()?;
            }
        }
        Ok(())
    }
}
