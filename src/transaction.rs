//! [`Transaction`]: reads and writes that are committed together, if nobody came in between.

use std::fmt;

use lsm_core::db::{Commit, TransactionRange};
use lsm_core::error::Result;
use lsm_core::options::Durability;
use lsm_core::read::KeyRange;
use lsm_core::types::Slice;

use crate::partition::Partition;
use crate::readable::Readable;
use crate::snapshot::Snapshot;

/// Reads and writes on any partitions of one database that are committed together, if nobody else
/// wrote what they read: [`Db::transaction`](crate::Db::transaction).
///
/// A transaction reads the database at the moment when it began, with its own writes on top. It holds
/// no lock and makes nobody wait. [`Transaction::commit`] validates what was read: keys, also those
/// that did not exist, and of a range the part that was iterated over, with the gaps between its
/// keys. If anybody else has written there since the transaction began, the commit is refused with
/// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict), and nothing is written. Then run all of it
/// again, with a new transaction.
///
/// So committed transactions are serializable: the database is as if they had run one after
/// another, together with all other batches, in the order of their sequence numbers. Keys that a
/// transaction writes and does not read are not validated.
///
/// A transaction keeps its reads and writes in memory until it ends. Dropping it forgets all of them.
///
/// # Examples
/// ```
/// use siltstone::{Db, Durability, ErrorKind, Partition, Result};
///
/// /// Adds one to the number of visits, whoever else does.
/// fn visit(db: &Db, page: &Partition) -> Result<u32> {
///     loop {
///         let mut transaction = db.transaction();
///         let visits = match transaction.get(page, "visits")? {
///             Some(visits) => u32::from_be_bytes(visits[..].try_into().expect("four bytes")),
///             None => 0,
///         };
///         transaction.put(page, "visits", (visits + 1).to_be_bytes());
///         match transaction.commit(Durability::Os) {
///             Err(error) if error.kind() == ErrorKind::Conflict => continue,
///             committed => return committed.map(|_| visits + 1),
///         }
///     }
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
    /// Returns the snapshot that the transaction reads. What is read through it is not validated
    /// and does not show own writes.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.snapshot().clone())
    }

    /// Returns the value of `key` in `partition`: the transaction's own, or the one at its
    /// snapshot.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn get(&self, partition: &Partition, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.0.get(&partition.0, key)
    }

    /// Returns whether `key` exists in `partition`. Errors are those of [`Transaction::get`].
    pub fn contains(&self, partition: &Partition, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(partition, key)?.is_some())
    }

    /// Returns the keys and values in `range` of `partition`, with the writes that the transaction
    /// made before this call. Double-ended; errors are items, as for [`Partition::range`]. Only the
    /// part that is iterated over is validated.
    pub fn range(&self, partition: &Partition, range: impl KeyRange) -> TransactionRange {
        self.0.range(&partition.0, range)
    }

    /// Returns all keys and values in `partition`, as [`Transaction::range`] does.
    pub fn iter(&self, partition: &Partition) -> TransactionRange {
        self.range(partition, ..)
    }

    /// Returns the keys that begin with `prefix`, and their values, in `partition`, as
    /// [`Transaction::range`] does.
    pub fn prefix(&self, partition: &Partition, prefix: impl AsRef<[u8]>) -> TransactionRange {
        self.0.prefix(&partition.0, prefix)
    }

    /// Returns `partition` as the transaction sees it, for code that reads whatever is
    /// [`Readable`](crate::Readable).
    pub fn of<'a>(&'a self, partition: &'a Partition) -> PartitionTransaction<'a> {
        PartitionTransaction { transaction: self, partition }
    }

    /// Sets `key` to `value` in `partition`. If that exceeds a limit, the commit reports it.
    pub fn put(&mut self, partition: &Partition, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.0.put(&partition.0, key, value);
    }

    /// Deletes `key` in `partition`. A key that does not exist is no error.
    pub fn delete(&mut self, partition: &Partition, key: impl AsRef<[u8]>) {
        self.0.delete(&partition.0, key);
    }

    /// Commits the writes, if nobody else has written what was read. A transaction without writes
    /// always succeeds: it is as if it had run when it began.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict), after which the transaction is to be
    /// run again from its reads on; a partition that was dropped meanwhile, read or written; all
    /// others as [`Batch::commit`](crate::Batch::commit). Nothing is written then.
    ///
    /// # Durability
    /// As `durability` says, as a batch.
    ///
    /// # Cost
    /// That of a batch. Each key read is looked up in the memtables while other writers wait, and each
    /// range is searched there, beyond some thousand keys only after it was done without making
    /// anybody wait. Tables are read, without making anybody wait, if some were written since the
    /// transaction began.
    pub fn commit(self, durability: Durability) -> Result<Commit> {
        self.0.commit(durability)
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
    transaction: &'a Transaction,
    partition: &'a Partition,
}

impl Readable for PartitionTransaction<'_> {
    type Range = TransactionRange;

    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.transaction.get(self.partition, key)
    }

    fn range(&self, range: impl KeyRange) -> TransactionRange {
        self.transaction.range(self.partition, range)
    }

    fn prefix(&self, prefix: impl AsRef<[u8]>) -> TransactionRange {
        self.transaction.prefix(self.partition, prefix)
    }
}
