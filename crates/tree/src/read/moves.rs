//! [`ReadCursor`]: the moves of a cursor, whatever it reads.

use super::Cursor;
use crate::error::Result;

/// A cursor over keys and values in order. It lends the present key and value until it moves. Before
/// the first seek, and after a move that failed, it is on no key.
///
/// Implemented by [`Cursor`], and by the cursor of a transaction.
///
/// # Examples
/// ```
/// use tree::read::ReadCursor;
///
/// fn last_key(cursor: &mut impl ReadCursor) -> storage::Result<Option<Vec<u8>>> {
///     cursor.seek_to_last()?;
///     Ok(cursor.valid().then(|| cursor.key().to_vec()))
/// }
/// ```
pub trait ReadCursor {
    /// Returns `true` if the cursor is on a key.
    fn valid(&self) -> bool;

    /// Returns the present key.
    ///
    /// # Panics
    /// If the cursor is not valid.
    fn key(&self) -> &[u8];

    /// Returns the present value.
    ///
    /// # Errors
    /// Corruption of the record; those of the store of large values.
    ///
    /// # Panics
    /// If the cursor is not valid.
    fn value(&self) -> Result<&[u8]>;

    /// Moves to the first key.
    fn seek_to_first(&mut self) -> Result<()>;

    /// Moves to the last key.
    fn seek_to_last(&mut self) -> Result<()>;

    /// Moves to the first key at or after `key`.
    fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<()>;

    /// Moves to the first key strictly after `key`.
    fn seek_after(&mut self, key: impl AsRef<[u8]>) -> Result<()>;

    /// Moves to the last key before `key`.
    fn seek_before(&mut self, key: impl AsRef<[u8]>) -> Result<()>;

    /// Moves to the next key. A cursor on no key stays there.
    fn next(&mut self) -> Result<()>;

    /// Moves to the previous key. A cursor on no key stays there.
    fn prev(&mut self) -> Result<()>;
}

impl ReadCursor for Cursor {
    #[inline]
    fn valid(&self) -> bool {
        Cursor::valid(self)
    }

    #[inline]
    fn key(&self) -> &[u8] {
        Cursor::key(self)
    }

    #[inline]
    fn value(&self) -> Result<&[u8]> {
        Cursor::value(self)
    }

    fn seek_to_first(&mut self) -> Result<()> {
        Cursor::seek_to_first(self)
    }

    fn seek_to_last(&mut self) -> Result<()> {
        Cursor::seek_to_last(self)
    }

    fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        Cursor::seek(self, key)
    }

    fn seek_after(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        Cursor::seek_after(self, key)
    }

    fn seek_before(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        Cursor::seek_before(self, key)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        Cursor::next(self)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        Cursor::prev(self)
    }
}
