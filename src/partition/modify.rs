//! Read, modify, write on one key of a [`Partition`].

use lsm_core::db::{Swap, Updated};
use lsm_core::error::Result;
use lsm_core::options::WriteOptions;

use super::Partition;

/// Read-modify-write.
impl Partition {
    /// Calls `change` with the value of `key` and sets `key` to the result; a result of `None` deletes
    /// the key. `change` gets `None` for a key that does not exist. Returns the old value, the result of the
    /// last call of `change`, and the commit. No concurrent update is lost: if
    /// another writer changes the key during the call, `change` is called again with the newer value.
    /// So `change` must have no side effects.
    ///
    /// # Errors
    /// The errors of [`Partition::get`] and [`Partition::put`]; never
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict).
    ///
    /// # Durability
    /// As [`Partition::put`].
    ///
    /// # Cost
    /// A get and a put for each call of `change`. No lock is held between the two.
    ///
    /// # Examples
    /// ```
    /// # use siltstone::Db;
    /// # fn main() -> siltstone::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary folder");
    /// # let db = Db::open(dir.path())?;
    /// let words = db.partition("words")?;
    /// words.update("greeting", |_| Some("hello"))?;
    /// let greeting =
    ///     words.update("greeting", |old| Some([old.unwrap_or_default(), b", world"].concat()))?;
    /// assert_eq!(greeting.old.as_deref(), Some(&b"hello"[..]));
    /// assert_eq!(greeting.new.as_deref(), Some(&b"hello, world"[..]));
    /// # db.close()
    /// # }
    /// ```
    pub fn update<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Updated<V>> {
        self.0.update(key, change)
    }

    /// Updates `key` as [`Partition::update`] does, with the given options. Errors, durability
    /// and cost of each write are those of [`Partition::put_with`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let votes = db.partition("votes")?;
    /// votes.update_with("yes", Durability::Sync, |old| {
    ///     let old = old.map_or(0, |old| u64::from_be_bytes(old.try_into().expect("8 bytes")));
    ///     Some((old + 1).to_be_bytes())
    /// })?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn update_with<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
        change: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Updated<V>> {
        self.0.update_with(key, options, change)
    }

    /// Sets `key` to `new` if its value equals `expected`; otherwise returns the value that it has. An
    /// `expected` of `None` stands for a key that does not exist; a `new` of `None` deletes the key.
    ///
    /// # Errors
    /// The errors of [`Partition::get`] and [`Partition::put`]. A different value is not an error.
    ///
    /// # Durability
    /// As [`Partition::put`].
    ///
    /// # Cost
    /// A get, and a put if the value equals `expected`. Both are repeated if another writer wrote an
    /// equal value during the call.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Db, Swap};
    ///
    /// # fn main() -> siltstone::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary folder");
    /// # let db = Db::open(dir.path())?;
    /// let leases = db.partition("leases")?;
    /// assert!(leases.compare_and_set("printer", None, Some(b"alice"))?.is_done());
    /// match leases.compare_and_set("printer", None, Some(b"bob"))? {
    ///     Swap::Done(_) => unreachable!("alice has it"),
    ///     Swap::Differs(owner) => assert_eq!(owner.as_deref(), Some(&b"alice"[..])),
    /// }
    /// # db.close()
    /// # }
    /// ```
    pub fn compare_and_set(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap> {
        self.0.compare_and_set(key, expected, new)
    }

    /// Sets `key` as [`Partition::compare_and_set`] does, with the given options. Errors,
    /// durability and cost of the write are those of [`Partition::put_with`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let leases = db.partition("leases")?;
    /// let swap = leases.compare_and_set_with("printer", None, Some(b"alice"), Durability::Sync)?;
    /// assert!(swap.is_done());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn compare_and_set_with(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Swap> {
        self.0.compare_and_set_with(key, expected, new, options)
    }
}
