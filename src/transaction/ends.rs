//! The ends of a partition, as a [`Transaction`] sees it.

use lsm_core::error::Result;
use lsm_core::types::Slice;

use super::Transaction;
use crate::partition::Partition;

impl Transaction {
    /// Returns the first key of `partition` and its value, with the own writes. The keys up to it count as read.
    ///
    /// # Errors
    /// Those of [`Transaction::get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let queue = db.partition("queue")?;
    /// queue.put(1u64.to_be_bytes(), "job")?;
    /// // Takes the job, which no other transaction takes as well.
    /// let job = db.transact(|transaction| {
    ///     let Some((key, job)) = transaction.first(&queue)? else { return Ok::<_, siltstone::Error>(None) };
    ///     transaction.delete(&queue, key);
    ///     Ok(Some(job))
    /// })?;
    /// assert_eq!(job.as_deref(), Some(&b"job"[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn first(&self, partition: &Partition) -> Result<Option<(Slice, Slice)>> {
        self.iter(partition).next().transpose()
    }

    /// Returns the last key of `partition` and its value, as [`Transaction::first`] does.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "bob", "author");
    /// assert_eq!(transaction.last(&users)?.expect("its own").0, b"bob");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn last(&self, partition: &Partition) -> Result<Option<(Slice, Slice)>> {
        self.iter(partition).next_back().transpose()
    }
}
