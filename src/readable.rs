//! [`Readable`]: a trait for reading one partition, at present, in a snapshot or in a transaction.

use lsm_core::error::Result;
use lsm_core::read::{Cursor, KeyRange, Keys, Range, ReadCursor};
use lsm_core::types::Slice;

use crate::partition::Partition;

/// A source of the keys of one partition: a [`Partition`], a partition in a snapshot
/// ([`Snapshot::of`](crate::Snapshot::of)), or a partition in a transaction
/// ([`Transaction::of`](crate::Transaction::of)).
///
/// Generic code takes a `Readable`. Code that has a [`Partition`] can call its methods, which have the
/// same names and need no import.
///
/// # Examples
/// ```
/// use siltstone::{Db, Readable, Result};
///
/// fn total(accounts: &impl Readable) -> Result<u64> {
///     let mut total = 0;
///     for account in accounts.iter() {
///         let (_, balance) = account?;
///         total += u64::from_be_bytes(balance[..].try_into().expect("eight bytes"));
///     }
///     Ok(total)
/// }
///
/// # fn main() -> Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary folder");
/// # let db = Db::open(dir.path())?;
/// let accounts = db.partition("accounts")?;
/// accounts.put("alice", 7_u64.to_be_bytes())?;
/// let before = db.snapshot();
/// accounts.put("bob", 5_u64.to_be_bytes())?;
/// assert_eq!(total(&accounts)?, 12);
/// assert_eq!(total(&before.of(&accounts))?, 7);
/// # db.close()
/// # }
/// ```
pub trait Readable {
    /// The iterator over keys and values.
    type Range: DoubleEndedIterator<Item = Result<(Slice, Slice)>>;

    /// The iterator over keys.
    type Keys: DoubleEndedIterator<Item = Result<Slice>>;

    /// The cursor.
    type Cursor: ReadCursor;

    /// Returns the value of `key`.
    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>>;

    /// Returns the values of `keys`, in their order.
    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>>;

    /// Returns the keys and values in `range`.
    fn range(&self, range: impl KeyRange) -> Self::Range;

    /// Returns the keys that begin with `prefix`, and their values.
    fn prefix(&self, prefix: impl AsRef<[u8]>) -> Self::Range;

    /// Returns all keys.
    fn keys(&self) -> Self::Keys;

    /// Returns a cursor over the keys in `range`. An error is reported by the first seek.
    fn cursor_in(&self, range: impl KeyRange) -> Self::Cursor;

    /// Returns a cursor over all keys, as [`Readable::cursor_in`] does.
    fn cursor(&self) -> Self::Cursor {
        self.cursor_in(..)
    }

    /// Returns whether `key` exists.
    fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        // Right for any source. Those that know a place without its value have a body of their own,
        // because a get may read a large value.
        Ok(self.get(key)?.is_some())
    }

    /// Returns all keys and values.
    fn iter(&self) -> Self::Range {
        self.range(..)
    }

    /// Returns the first key and its value.
    fn first(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next().transpose()
    }

    /// Returns the last key and its value.
    fn last(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next_back().transpose()
    }
}

impl Readable for Partition {
    type Range = Range;
    type Keys = Keys;
    type Cursor = Cursor;

    #[inline]
    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        // The inherent method, by its full name. If that were renamed one day, `self.get` would be
        // this method, which would call itself.
        Partition::get(self, key)
    }

    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        Partition::multi_get(self, keys)
    }

    fn range(&self, range: impl KeyRange) -> Range {
        Partition::range(self, range)
    }

    fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Partition::prefix(self, prefix)
    }

    fn keys(&self) -> Keys {
        Partition::keys(self)
    }

    fn cursor_in(&self, range: impl KeyRange) -> Cursor {
        Partition::cursor_in(self, range)
    }

    fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Partition::contains(self, key)
    }
}
