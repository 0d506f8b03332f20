//! [`Transaction`]: reads and writes that are committed together, or refused after a conflict.

mod ends;
mod expiry;
mod locking;
mod merging;
mod savepoints;
mod streamed;
mod writes;

use std::fmt;

use lsm_core::db::{Commit, TransactionCursor, TransactionKeys, TransactionRange};
use lsm_core::error::Result;
use lsm_core::options::WriteOptions;
use lsm_core::read::KeyRange;
use lsm_core::types::{SeqNo, Slice};

use crate::partition::Partition;
use crate::readable::Readable;
use crate::snapshot::Snapshot;

/// A serializable transaction: reads and writes on any partitions of one database.
/// [`Db::transaction`](crate::Db::transaction) begins one, [`Db::transact`](crate::Db::transact) runs one and repeats it
/// after conflicts.
///
/// A transaction reads the database as of its begin, and its own writes. It holds no lock and blocks no other thread,
/// unless it locks keys by [`Transaction::get_for_update`]. [`Transaction::commit`] validates the reads: the keys
/// that were read, including keys that did not exist, and the parts of ranges that were iterated over, including the
/// gaps between their keys. If another writer has changed any of these since the transaction began, the commit
/// returns [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) and writes nothing. Then repeat the whole work in a
/// new transaction; `Db::transact` does that.
///
/// Committed transactions are serializable in the order of their sequence numbers, together with all
/// other batches. Keys that a transaction writes and does not read are not validated.
///
/// A transaction keeps its reads and writes in memory until it ends. Dropping it discards them.
///
/// # Examples
/// ```
/// use siltstone::{Db, Partition, Result};
///
/// /// Increments the number of visits.
/// fn visit(db: &Db, page: &Partition) -> Result<u32> {
///     // Again and again, if another writer comes first.
///     db.transact(|transaction| {
///         let visits = match transaction.get(page, "visits")? {
///             Some(visits) => u32::from_be_bytes(visits[..].try_into().expect("four bytes")),
///             None => 0,
///         };
///         transaction.put(page, "visits", (visits + 1).to_be_bytes());
///         Ok(visits + 1)
///     })
/// }
///
/// # fn main() -> Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary folder");
/// # let db = Db::open(dir.path())?;
/// let page = db.partition("page")?;
/// assert_eq!(visit(&db, &page)?, 1);
/// assert_eq!(visit(&db, &page)?, 2);
/// # db.close()
/// # }
/// ```
#[must_use = "a transaction does nothing until it is committed"]
pub struct Transaction(pub(crate) lsm_core::db::Transaction);

impl Transaction {
    /// Returns the snapshot that the transaction reads. Reads through this snapshot are not validated
    /// and do not see the writes of the transaction.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// // What the transaction began with: without its own writes.
    /// assert!(!transaction.snapshot().contains(&users, "bob")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        // A clone, which may outlive the transaction: the snapshot ends with the last of both.
        Snapshot(self.0.snapshot().clone())
    }

    /// Returns the value of `key` in `partition`: the value that this transaction wrote, the newest one of a key that it
    /// [locked](Transaction::get_for_update), or the value in its snapshot.
    ///
    /// # Errors
    /// The errors of [`Snapshot::get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// assert_eq!(transaction.get(&users, "bob")?.as_deref(), Some(&b"author"[..]));
    /// assert!(users.get("bob")?.is_none()); // not before the commit
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn get(&self, partition: &Partition, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.0.get(&partition.0, key)
    }

    /// Returns the values of `keys` in `partition`, in the order of `keys`, with the writes that the transaction made. Errors
    /// are those of [`Transaction::get`], of any of the keys. Cost is that of [`Partition::multi_get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "carol", "author");
    /// let roles = transaction.multi_get(&users, &["bob", "alice", "carol"])?;
    /// assert!(roles[0].is_none() && roles[1].as_deref() == Some(&b"admin"[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        partition: &Partition,
        keys: &[K],
    ) -> Result<Vec<Option<Slice>>> {
        self.0.multi_get(&partition.0, keys)
    }

    /// Returns whether `key` exists in `partition`. No large value is read. Errors are those of [`Transaction::get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// assert!(transaction.contains(&users, "alice")? && transaction.contains(&users, "bob")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn contains(&self, partition: &Partition, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.0.locate(&partition.0, key.as_ref())?.is_some())
    }

    /// Returns a double-ended iterator over the keys and values in `range` of `partition`, with the
    /// writes that the transaction made before this call. Errors are items, as for
    /// [`Partition::range`]. Only the part that is iterated over is validated.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// assert_eq!(transaction.range(&users, "a".."c").count(), 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn range(&self, partition: &Partition, range: impl KeyRange) -> TransactionRange {
        self.0.range(&partition.0, range)
    }

    /// Returns all keys and values in `partition`, as [`Transaction::range`] does.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// assert_eq!(transaction.iter(&users).count(), 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn iter(&self, partition: &Partition) -> TransactionRange {
        // Through `range`, which notes the part that is iterated over. A transaction that stops
        // early is not refused because of later keys.
        self.range(partition, ..)
    }

    /// Returns the keys that begin with `prefix`, and their values, in `partition`, as
    /// [`Transaction::range`] does.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// assert_eq!(transaction.prefix(&users, "al").count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn prefix(&self, partition: &Partition, prefix: impl AsRef<[u8]>) -> TransactionRange {
        self.0.prefix(&partition.0, prefix)
    }

    /// Returns all keys of `partition`, as [`Transaction::iter`] does.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// assert_eq!(transaction.keys(&users).count(), 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn keys(&self, partition: &Partition) -> TransactionKeys {
        self.iter(partition).keys()
    }

    /// Returns a cursor over the keys of `partition`, with the own writes. What it passes counts as
    /// read. See [`ReadCursor`](crate::ReadCursor).
    ///
    /// # Examples
    /// ```
    /// use siltstone::ReadCursor;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// let mut cursor = transaction.cursor(&users);
    /// cursor.seek_to_last()?;
    /// assert_eq!(cursor.key(), b"bob");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn cursor<'a>(&'a self, partition: &'a Partition) -> TransactionCursor<'a> {
        self.cursor_in(partition, ..)
    }

    /// Returns a cursor over the keys in `range` of `partition`, as [`Transaction::cursor`] does.
    ///
    /// # Examples
    /// ```
    /// use siltstone::ReadCursor;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// let mut cursor = transaction.cursor_in(&users, .."b");
    /// cursor.seek_to_last()?;
    /// assert_eq!(cursor.key(), b"alice");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn cursor_in<'a>(
        &'a self,
        partition: &'a Partition,
        range: impl KeyRange,
    ) -> TransactionCursor<'a> {
        self.0.cursor_in(&partition.0, range)
    }

    /// Returns `partition` as the transaction sees it, for code that takes a
    /// [`Readable`](crate::Readable).
    ///
    /// # Examples
    /// ```
    /// use siltstone::Readable;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// // For code that takes any `Readable`.
    /// assert_eq!(transaction.of(&users).iter().count(), 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn of<'a>(&'a self, partition: &'a Partition) -> PartitionTransaction<'a> {
        PartitionTransaction { transaction: self, partition }
    }

    /// Sets `key` to `value` in `partition`. If they exceed a limit, the commit returns the error.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// transaction.commit(Durability::Os)?;
    /// assert!(users.contains("bob")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn put(&mut self, partition: &Partition, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.0.put(&partition.0, key, value);
    }

    /// Deletes `key` in `partition`. A key that does not exist is no error.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// transaction.delete(&users, "alice");
    /// transaction.commit(Durability::Os)?;
    /// assert!(!users.contains("alice")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn delete(&mut self, partition: &Partition, key: impl AsRef<[u8]>) {
        self.0.delete(&partition.0, key);
    }

    /// Deletes every key within `range` in `partition`: those that the transaction sees, and those that others put
    /// there before the commit. Own writes to these keys before the call are gone, later ones stay. See
    /// [`Partition::delete_range`]. It reads nothing, so it conflicts with no write of others.
    ///
    /// # Cost
    /// Compares each own write to the partition with the range. A later scan of the transaction over the range passes
    /// each stored key in it, until the commit.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let events = db.partition("events")?;
    /// events.put("2025-12-31", "old")?;
    /// let mut transaction = db.transaction();
    /// transaction.delete_range(&events, .."2026");
    /// transaction.put(&events, "2025-12-30", "new");
    /// assert_eq!(transaction.keys(&events).count(), 1);
    /// transaction.commit(Durability::Os)?;
    /// assert_eq!(events.keys().count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn delete_range(&mut self, partition: &Partition, range: impl KeyRange) {
        self.0.delete_range(&partition.0, range);
    }

    /// Deletes every key of `partition` that begins with `prefix`, as [`Transaction::delete_range`] does.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice/name", "Alice")?;
    /// let mut transaction = db.transaction();
    /// transaction.delete_prefix(&users, "alice/");
    /// assert!(transaction.get(&users, "alice/name")?.is_none());
    /// transaction.commit(Durability::Os)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn delete_prefix(&mut self, partition: &Partition, prefix: impl AsRef<[u8]>) {
        self.0.delete_prefix(&partition.0, prefix);
    }

    /// Deletes every key of `partition`: those that the transaction sees, and those that others put there before the
    /// commit. Own writes before the call are gone, later ones stay. See [`Partition::clear`]. It reads nothing, so it
    /// conflicts with no write of others.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let cache = db.partition("cache")?;
    /// cache.put("old", "1")?;
    /// let mut transaction = db.transaction();
    /// transaction.clear(&cache);
    /// transaction.put(&cache, "new", "2");
    /// transaction.commit(Durability::Os)?;
    /// assert_eq!(cache.keys().count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn clear(&mut self, partition: &Partition) {
        self.0.clear(&partition.0);
    }

    /// Requires that no one has written to `key` in `partition` after the sequence number `at_most`, when the
    /// transaction is committed: for a value that was read before it began. Otherwise the commit returns
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict), as for [`Batch::require`](crate::Batch::require).
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Durability, ErrorKind};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let pages = db.partition("pages")?;
    /// let shown = pages.put("home", "a page that somebody edits")?;
    /// pages.put("home", "the edit of somebody else")?;
    /// let mut transaction = db.transaction();
    /// transaction.require(&pages, "home", shown.seq);
    /// transaction.put(&pages, "home", "a late edit");
    /// let refused = transaction.commit(Durability::Os).expect_err("it was written since");
    /// assert_eq!(refused.kind(), ErrorKind::Conflict);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn require(&mut self, partition: &Partition, key: impl AsRef<[u8]>, at_most: SeqNo) {
        self.0.require(&partition.0, key, at_most);
    }

    /// Commits the writes if no other writer has changed what the transaction read. A transaction
    /// without writes, locks and requirements always succeeds, because it read one snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict): repeat the transaction, including its
    /// reads. A partition that the transaction read or wrote and that was dropped since. All other
    /// errors are those of [`Batch::commit`](crate::Batch::commit). After an error, nothing is written,
    /// with the exception that [`Batch::commit`](crate::Batch::commit) describes.
    ///
    /// # Durability
    /// That of `options`, as for a batch.
    ///
    /// # Cost
    /// That of a batch. The commit looks up each key and each range that was read in the memtables,
    /// while other writers wait. With more than some thousand keys it first does so while other
    /// writers proceed. If tables were written since the transaction began, it reads them while other
    /// writers proceed.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Durability, ErrorKind};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let mut transaction = db.transaction();
    /// assert!(transaction.get(&users, "alice")?.is_none());
    /// transaction.put(&users, "alice", "admin");
    ///
    /// users.put("alice", "author")?; // another writer comes first
    /// let refused = transaction.commit(Durability::Os).expect_err("alice was read");
    /// assert_eq!(refused.kind(), ErrorKind::Conflict);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn commit(self, options: impl Into<WriteOptions>) -> Result<Commit> {
        self.0.commit(options)
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One partition as a transaction sees it: [`Transaction::of`].
#[derive(Clone, Copy, Debug)]
pub struct PartitionTransaction<'a> {
    pub(crate) transaction: &'a Transaction,
    pub(crate) partition: &'a Partition,
}

impl<'a> Readable for PartitionTransaction<'a> {
    type Range = TransactionRange;
    type Keys = TransactionKeys;
    type Cursor = TransactionCursor<'a>;

    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.transaction.get(self.partition, key)
    }

    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        self.transaction.multi_get(self.partition, keys)
    }

    fn range(&self, range: impl KeyRange) -> TransactionRange {
        self.transaction.range(self.partition, range)
    }

    fn prefix(&self, prefix: impl AsRef<[u8]>) -> TransactionRange {
        self.transaction.prefix(self.partition, prefix)
    }

    fn keys(&self) -> TransactionKeys {
        self.transaction.keys(self.partition)
    }

    fn cursor_in(&self, range: impl KeyRange) -> TransactionCursor<'a> {
        self.transaction.cursor_in(self.partition, range)
    }

    fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.transaction.contains(self.partition, key)
    }
}
