//! Merges of operands in a [`Transaction`].

use super::Transaction;
use crate::partition::Partition;

impl Transaction {
    /// Merges `operand` into the value of `key` in `partition`; see [`Partition::merge`]. It reads nothing, so two
    /// transactions that merge into one key do not conflict. Later reads of the transaction see the result, and are
    /// reads of the key. If the operand is refused, the commit returns the error.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use siltstone::operators::IntegerOperator;
    /// use siltstone::{Durability, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().merge_operator(Arc::new(IntegerOperator::Add));
    /// let visits = db.partition_with("visits", options)?;
    /// let mut transaction = db.transaction();
    /// transaction.merge(&visits, "home", 1i64.to_le_bytes());
    /// // Another writer does not make it conflict.
    /// visits.merge("home", 1i64.to_le_bytes())?;
    /// transaction.commit(Durability::Os)?;
    /// assert_eq!(visits.get("home")?.as_deref(), Some(&2i64.to_le_bytes()[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn merge(
        &mut self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) {
        self.0.merge(&partition.0, key, operand);
    }
}
