//! The time that entries have left, as a [`Transaction`] sees them.

use lsm_core::error::Result;
use lsm_core::read::RemainingTime;

use super::{PartitionTransaction, Transaction};
use crate::partition::Partition;

/// Expiry.
impl Transaction {
    /// Returns the time after which the entry of `key` in `partition` is not there any more, own writes included;
    /// `None` if it is not there. It counts from the begin of the transaction, whose reads all have that time.
    ///
    /// # Errors
    /// Those of [`Transaction::get`].
    ///
    /// # Cost
    /// That of [`Transaction::get`]; the key counts as read.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{PartitionOptions, RemainingTime, TtlRule};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().ttl(&TtlRule::in_value(0));
    /// let sessions = db.partition_with("sessions", options)?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&sessions, "ann", 0u64.to_be_bytes()); // for ever
    /// let left = transaction.remaining_time(&sessions, "ann")?;
    /// assert_eq!(left, Some(RemainingTime::Unlimited));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn remaining_time(
        &self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<RemainingTime>> {
        self.0.remaining_time(&partition.0, key)
    }
}

impl PartitionTransaction<'_> {
    /// Returns the time after which the entry of `key` is not there any more, as [`Transaction::remaining_time`] does.
    ///
    /// # Errors
    /// Those of [`Transaction::get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// assert_eq!(db.transaction().of(&users).remaining_time("bob")?, None);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn remaining_time(&self, key: impl AsRef<[u8]>) -> Result<Option<RemainingTime>> {
        self.transaction.remaining_time(self.partition, key)
    }
}
