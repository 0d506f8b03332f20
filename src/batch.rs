//! [`Batch`]: operations that are committed together.

use std::fmt;

use lsm_core::db::Commit;
use lsm_core::error::Result;
use lsm_core::options::Durability;
use lsm_core::types::SeqNo;

use crate::large::PendingBlob;
use crate::partition::Partition;

/// Operations on any partitions of one database that become visible, and durable, together or not
/// at all.
///
/// Operations on one key count in their order. If an operation exceeds a limit,
/// [`commit`](Batch::commit) reports it and writes nothing.
///
/// # Examples
/// A batch is filled in one expression, or in place ([`Batch::of`]), as in a loop:
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
///     batch.of(&names).put(number.to_be_bytes(), "nobody");
/// }
/// batch.commit(Durability::Sync)?;
/// # db.close()
/// # }
/// ```
#[must_use = "a batch does nothing until it is committed"]
pub struct Batch(pub(crate) lsm_core::Batch);

impl Batch {
    /// Sets `key` to `value` in `partition`.
    #[inline]
    pub fn put(
        self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Batch {
        Batch(self.0.put(&partition.0, key, value))
    }

    /// Deletes `key` in `partition`. A key that does not exist is no error.
    #[inline]
    pub fn delete(self, partition: &Partition, key: impl AsRef<[u8]>) -> Batch {
        Batch(self.0.delete(&partition.0, key))
    }

    /// Sets the key of a value that was streamed in: [`BlobWriter::finish`] made it. It becomes
    /// visible with the other operations, or not at all.
    ///
    /// [`BlobWriter::finish`]: crate::large_values::BlobWriter::finish
    pub fn put_blob(mut self, blob: PendingBlob) -> Batch {
        blob.0.add_to(&mut self.0);
        self
    }

    /// Requires that nobody else writes to `key` in `partition` behind the sequence number `at_most`
    /// before the batch is committed. If somebody did, [`commit`](Batch::commit) returns
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) and writes nothing.
    ///
    /// `at_most` is the moment at which the key was read: [`Db::visible_seq`](crate::Db::visible_seq)
    /// from before the read, or [`Snapshot::seq`](crate::Snapshot::seq). It may also be the commit
    /// that wrote the key ([`Commit::seq`](crate::Commit)), or the sequence number of the value
    /// ([`Cursor::seq`](crate::Cursor::seq)). Where the key does not exist and tables were written
    /// since, the batch may be refused though nobody wrote; read again and take a newer number.
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

    /// Returns the part of the batch that concerns `partition`, to be filled in place.
    #[inline]
    pub fn of<'a>(&'a mut self, partition: &'a Partition) -> PartitionBatch<'a> {
        PartitionBatch { batch: self, partition }
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no operation.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Commits the operations. An empty batch writes nothing and returns the newest commit.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if a [requirement](Batch::require) does
    /// not hold; a limit, a dropped partition, a partition of another database, a closed or read-only store:
    /// nothing is written then. After an I/O error the batch is not visible and never returns,
    /// unless the error came from the sync that [`Durability::Sync`] asks for: then the batch is
    /// visible, and it is unknown whether it is durable.
    ///
    /// # Durability
    /// As `durability` says.
    ///
    /// # Cost
    /// One `write` for the whole group of batches that commit together, and with
    /// [`Durability::Sync`] one sync for all that wait for one. The writer waits while compactions
    /// are behind.
    pub fn commit(self, durability: Durability) -> Result<Commit> {
        self.0.commit(durability)
    }

    /// Commits as [`Batch::commit`] does, but returns an error where that would wait for
    /// compactions. It still waits for the sync that [`Durability::Sync`] asks for.
    ///
    /// # Errors
    /// [`ErrorKind::WouldStall`](crate::ErrorKind::WouldStall) with the reason: nothing was
    /// written. All others as [`Batch::commit`].
    pub fn try_commit(self, durability: Durability) -> Result<Commit> {
        self.0.try_commit(durability)
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The part of a batch that concerns one partition: [`Batch::of`].
pub struct PartitionBatch<'a> {
    batch: &'a mut Batch,
    partition: &'a Partition,
}

impl PartitionBatch<'_> {
    /// Sets `key` to `value`.
    #[inline]
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.batch.0.add_put(&self.partition.0, key.as_ref(), value.as_ref());
        self
    }

    /// Requires that nobody else writes to `key` behind `at_most`, as [`Batch::require`] does.
    #[inline]
    pub fn require(&mut self, key: impl AsRef<[u8]>, at_most: SeqNo) -> &mut Self {
        self.batch.0.add_require(&self.partition.0, key.as_ref(), at_most);
        self
    }

    /// Deletes `key`. A key that does not exist is no error.
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
