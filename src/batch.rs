//! [`Batch`]: operations that are committed together.

mod merging;

use std::fmt;

use lsm_core::db::Commit;
use lsm_core::error::Result;
use lsm_core::options::WriteOptions;
use lsm_core::read::KeyRange;
use lsm_core::types::SeqNo;

use crate::large::PendingBlob;
use crate::partition::Partition;

/// An atomic group of operations on any partitions of one database. All of them become visible and
/// durable together, or none does.
///
/// Operations on one key take effect in their order. If an operation exceeds a limit,
/// [`commit`](Batch::commit) returns an error and writes nothing.
///
/// # Examples
/// A batch can be filled in one expression, or in a loop with [`Batch::of`]:
/// ```
/// use siltstone::{Db, Durability};
///
/// # fn main() -> siltstone::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary folder");
/// # let db = Db::open(dir.path())?;
/// let users = db.partition("users")?;
/// let names = db.partition("names")?;
/// db.batch().put(&users, "bob", "7").put(&names, "7", "bob").commit(Durability::Os)?;
///
/// let mut batch = db.batch();
/// for number in 8..10_u32 {
///     batch.of(&names).put(number.to_be_bytes(), "no one");
/// }
/// batch.commit(Durability::Sync)?;
/// # db.close()
/// # }
/// ```
#[must_use = "a batch does nothing until it is committed"]
pub struct Batch(pub(crate) lsm_core::Batch);

impl Batch {
    /// Sets `key` to `value` in `partition`. Of several puts of one key the last one counts.
    ///
    /// Key and value are copied into the batch at once. Limits and the partition are checked by
    /// [`Batch::commit`], which refuses the whole batch. For operations in a loop, [`Batch::of`] lends the batch.
    ///
    /// # Cost
    /// No I/O: the bytes of key and value, in memory until the commit. A large value also is whole in memory; see
    /// [`Partition::put_stream`](crate::Partition::put_stream).
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// db.batch().put(&users, "alice", "admin").put(&users, "bob", "author").commit(Durability::Os)?;
    /// assert_eq!(users.iter().count(), 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn put(
        self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Batch {
        // By value, so that a batch is one expression. An operation that is refused is reported by
        // the commit: the chain then needs no `?` at each link.
        Batch(self.0.put(&partition.0, key, value))
    }

    /// Deletes `key` in `partition`. A key that does not exist is no error.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("bob", "author")?;
    /// // Renames a key: no reader sees both, or none.
    /// db.batch().delete(&users, "bob").put(&users, "robert", "author").commit(Durability::Os)?;
    /// assert!(!users.contains("bob")? && users.contains("robert")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn delete(self, partition: &Partition, key: impl AsRef<[u8]>) -> Batch {
        Batch(self.0.delete(&partition.0, key))
    }

    /// Deletes every key that `partition` has at this place of the batch: what was written before it,
    /// by earlier operations of the batch too. See [`Partition::clear`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let cache = db.partition("cache")?;
    /// cache.put("old", "1")?;
    /// db.batch().clear(&cache).put(&cache, "new", "2").commit(Durability::Os)?;
    /// assert_eq!(cache.iter().count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn clear(self, partition: &Partition) -> Batch {
        Batch(self.0.clear(&partition.0))
    }

    /// Deletes every key within `range` that `partition` has at this place of the batch: what was written before it, by
    /// earlier operations of the batch too. See [`Partition::delete_range`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let events = db.partition("events")?;
    /// events.put("2025-12-31", "old")?;
    /// db.batch().delete_range(&events, .."2026").put(&events, "2025-12-30", "new").commit(Durability::Os)?;
    /// assert_eq!(events.keys().count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn delete_range(self, partition: &Partition, range: impl KeyRange) -> Batch {
        Batch(self.0.delete_range(&partition.0, range))
    }

    /// Deletes every key that begins with `prefix`, as [`Batch::delete_range`] does.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice/name", "Alice")?;
    /// db.batch().delete_prefix(&users, "alice/").put(&users, "bob/name", "Bob").commit(Durability::Os)?;
    /// assert!(!users.contains("alice/name")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn delete_prefix(self, partition: &Partition, prefix: impl AsRef<[u8]>) -> Batch {
        Batch(self.0.delete_prefix(&partition.0, prefix))
    }

    /// Adds the put of a streamed value, which [`BlobWriter::finish`] returned. The value becomes
    /// visible together with the other operations.
    ///
    /// [`BlobWriter::finish`]: crate::large_values::BlobWriter::finish
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    /// use siltstone::{Durability, LargeValueOptions, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    /// let films = db.partition_with("films", options)?;
    /// let titles = db.partition("titles")?;
    /// let mut writer = films.put_stream("1", None)?;
    /// writer.write_all(&[7; 100_000])?;
    /// let film = writer.finish()?;
    /// db.batch().put_blob(film).put(&titles, "1", "A film").commit(Durability::Sync)?;
    /// assert!(films.contains("1")? && titles.contains("1")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn put_blob(mut self, blob: PendingBlob) -> Batch {
        // The value knows its partition and key. Arguments here could contradict those in its chunk
        // file.
        blob.0.add_to(&mut self.0);
        self
    }

    /// Adds the put of a streamed value in place, as [`Batch::put_blob`] does.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Durability, LargeValueOptions, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    /// let films = db.partition_with("films", options)?;
    /// let mut batch = db.batch();
    /// for name in ["one", "two"] {
    ///     batch.add_blob(films.put_stream(name, None)?.finish()?);
    /// }
    /// batch.commit(Durability::Sync)?;
    /// assert!(films.contains("one")? && films.contains("two")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn add_blob(&mut self, blob: PendingBlob) -> &mut Batch {
        blob.0.add_to(&mut self.0);
        self
    }

    /// Requires that no other writer has written to `key` in `partition` after the sequence number
    /// `at_most`. Otherwise [`commit`](Batch::commit) returns
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) and writes nothing.
    ///
    /// `at_most` is the sequence number of the read of the key:
    /// [`Db::visible_seq`](crate::Db::visible_seq) from before the read, or
    /// [`Snapshot::seq`](crate::Snapshot::seq). It may also be the commit that wrote the key
    /// ([`Commit::seq`](crate::Commit)), or the sequence number of the value
    /// ([`Cursor::seq`](crate::Cursor::seq)). If the key does not exist and tables were written
    /// since, the commit may return a conflict although no one wrote the key; then read the key
    /// again and use a newer number.
    ///
    /// Ingests count as writes. Operations of the batch itself do not.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Db, Durability, ErrorKind};
    ///
    /// # fn main() -> siltstone::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary folder");
    /// # let db = Db::open(dir.path())?;
    /// let users = db.partition("users")?;
    /// let read_at = db.visible_seq();
    /// assert!(users.get("bob")?.is_none());
    ///
    /// let first = db.batch().require(&users, "bob", read_at).put(&users, "bob", "1");
    /// let second = db.batch().require(&users, "bob", read_at).put(&users, "bob", "2");
    /// first.commit(Durability::Os)?;
    /// let refused = second.commit(Durability::Os).expect_err("the name is taken");
    /// assert_eq!(refused.kind(), ErrorKind::Conflict);
    /// # db.close()
    /// # }
    /// ```
    #[inline]
    pub fn require(self, partition: &Partition, key: impl AsRef<[u8]>, at_most: SeqNo) -> Batch {
        Batch(self.0.require(&partition.0, key, at_most))
    }

    /// Returns the part of the batch for `partition`, to add operations in place.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let squares = db.partition("squares")?;
    /// let mut batch = db.batch();
    /// for n in 0..100u32 {
    ///     batch.of(&squares).put(n.to_be_bytes(), (n * n).to_be_bytes());
    /// }
    /// batch.commit(Durability::Os)?;
    /// assert_eq!(squares.len_approx()?, 100);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn of<'a>(&'a mut self, partition: &'a Partition) -> PartitionBatch<'a> {
        PartitionBatch { batch: self, partition }
    }

    /// Returns the number of operations.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let batch = db.batch().put(&users, "alice", "admin").delete(&users, "bob");
    /// assert_eq!(batch.len(), 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no operation.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// assert!(db.batch().is_empty());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Commits the operations. An empty batch writes nothing and returns the newest commit.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if a [requirement](Batch::require) does
    /// not hold; a limit; a dropped partition; a partition of another database; a closed or read-only
    /// store. These errors write nothing.
    ///
    /// After an I/O error the batch is not visible and does not appear later. There is one exception:
    /// if the sync of [`Durability::Sync`](crate::Durability::Sync) fails, the batch is visible, and
    /// it is unknown whether it is durable.
    ///
    /// # Durability
    /// That of `options`: a [`Durability`](crate::Durability), or [`WriteOptions`].
    ///
    /// # Cost
    /// One append to the log for the whole group of batches that commit together.
    /// [`Durability::Sync`](crate::Durability::Sync) adds one sync, which all waiting writers share.
    /// The writer waits if compactions are behind.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let commit = db.batch().put(&users, "alice", "admin").commit(Durability::Os)?;
    /// // The commit names its place in the history, for example to wait for the device later.
    /// db.wait_durable(commit.seq)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn commit(self, options: impl Into<WriteOptions>) -> Result<Commit> {
        // By value: a batch that was committed cannot be committed again by mistake.
        self.0.commit(options)
    }

    /// Commits as [`Batch::commit`] does, but returns an error instead of waiting for compactions. It
    /// still waits for the sync of [`Durability::Sync`](crate::Durability::Sync).
    ///
    /// # Errors
    /// [`ErrorKind::WouldStall`](crate::ErrorKind::WouldStall) with the reason; nothing was written.
    /// All other errors are those of [`Batch::commit`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Durability, ErrorKind};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// match db.batch().put(&users, "alice", "admin").try_commit(Durability::Os) {
    ///     Err(error) if error.kind() == ErrorKind::WouldStall => println!("busy: {error}"),
    ///     committed => drop(committed?),
    /// }
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn try_commit(self, options: impl Into<WriteOptions>) -> Result<Commit> {
        self.0.try_commit(options)
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The part of a batch for one partition: [`Batch::of`].
pub struct PartitionBatch<'a> {
    batch: &'a mut Batch,
    partition: &'a Partition,
}

impl PartitionBatch<'_> {
    /// Sets `key` to `value`.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let mut batch = db.batch();
    /// batch.of(&users).put("alice", "admin").put("bob", "author");
    /// batch.commit(Durability::Os)?;
    /// assert!(users.contains("bob")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.batch.0.add_put(&self.partition.0, key.as_ref(), value.as_ref());
        self
    }

    /// Deletes every key that the partition has at this place of the batch, as [`Batch::clear`] does.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let cache = db.partition("cache")?;
    /// cache.put("old", "1")?;
    /// let mut batch = db.batch();
    /// batch.of(&cache).clear().put("new", "2");
    /// batch.commit(Durability::Os)?;
    /// assert!(!cache.contains("old")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn clear(&mut self) -> &mut Self {
        self.batch.0.add_clear(&self.partition.0);
        self
    }

    /// Deletes every key within `range` that the partition has at this place of the batch, as
    /// [`Batch::delete_range`] does.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let events = db.partition("events")?;
    /// events.put("2025-12-31", "old")?;
    /// let mut batch = db.batch();
    /// batch.of(&events).delete_range(.."2026").put("2026-01-01", "new");
    /// batch.commit(Durability::Os)?;
    /// assert_eq!(events.keys().count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn delete_range(&mut self, range: impl KeyRange) -> &mut Self {
        self.batch.0.add_delete_range(&self.partition.0, range);
        self
    }

    /// Deletes every key that begins with `prefix`, as [`Batch::delete_range`] does.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice/name", "Alice")?;
    /// let mut batch = db.batch();
    /// batch.of(&users).delete_prefix("alice/");
    /// batch.commit(Durability::Os)?;
    /// assert!(users.first()?.is_none());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn delete_prefix(&mut self, prefix: impl AsRef<[u8]>) -> &mut Self {
        self.batch.0.add_delete_prefix(&self.partition.0, prefix.as_ref());
        self
    }

    /// Requires that no other writer has written to `key` after `at_most`, as [`Batch::require`] does.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let read_at = db.visible_seq();
    /// let mut batch = db.batch();
    /// batch.of(&users).require("alice", read_at).put("alice", "admin");
    /// batch.commit(Durability::Os)?; // a conflict if alice was written after `read_at`
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn require(&mut self, key: impl AsRef<[u8]>, at_most: SeqNo) -> &mut Self {
        self.batch.0.add_require(&self.partition.0, key.as_ref(), at_most);
        self
    }

    /// Deletes `key`. A key that does not exist is no error.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut batch = db.batch();
    /// batch.of(&users).delete("alice");
    /// batch.commit(Durability::Os)?;
    /// assert!(!users.contains("alice")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> &mut Self {
        self.batch.0.add_delete(&self.partition.0, key.as_ref());
        self
    }
}

impl fmt::Debug for PartitionBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionBatch")
            .field("partition", &self.partition.name())
            .finish_non_exhaustive()
    }
}
