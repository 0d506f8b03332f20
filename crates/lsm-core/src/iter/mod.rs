//! Ordered cursors over internal keys, and what is built from them.
//!
//! A cursor is before the first entry, on an entry, or past an end. It lends what it points at:
//! `key` and `value` live until it moves.
//!
//! Error rule: a move that fails leaves the cursor invalid; it stays so until the next seek. An
//! error is never taken for an end.

mod merge;
mod visible;

use crate::error::Result;
use crate::types::KeyRef;

pub use merge::MergeIter;
pub use visible::VisibleIter;

/// A cursor over entries in internal order.
pub trait InternalIter {
    /// Returns `true` if the cursor is on an entry.
    fn valid(&self) -> bool;

    /// The entry's key. Only while [`InternalIter::valid`].
    fn key(&self) -> KeyRef<'_>;

    /// The entry's value. Only while [`InternalIter::valid`].
    fn value(&self) -> &[u8];

    /// Moves to the first entry.
    fn seek_to_first(&mut self) -> Result<()>;

    /// Moves to the last entry.
    fn seek_to_last(&mut self) -> Result<()>;

    /// Moves to the first entry that is not before `target`.
    fn seek(&mut self, target: KeyRef<'_>) -> Result<()>;

    /// Moves to the last entry that is before `target`.
    fn seek_before(&mut self, target: KeyRef<'_>) -> Result<()>;

    /// Moves one entry forward. Only while [`InternalIter::valid`].
    fn next(&mut self) -> Result<()>;

    /// Moves one entry back. Only while [`InternalIter::valid`].
    fn prev(&mut self) -> Result<()>;
}
