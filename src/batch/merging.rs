//! Merges of operands in a [`Batch`].

use super::{Batch, PartitionBatch};
use crate::partition::Partition;

impl Batch {
    /// Merges `operand` into the value of `key` in `partition`; see [`Partition::merge`].
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use siltstone::operators::IntegerOperator;
    /// use siltstone::{Durability, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().merge_operator(Arc::new(IntegerOperator::Add));
    /// let stock = db.partition_with("stock", options)?;
    /// // Moves two pieces: no reader sees one half of it.
    /// let [less, more] = [-2i64, 2].map(i64::to_le_bytes);
    /// db.batch().merge(&stock, "store", less).merge(&stock, "shop", more).commit(Durability::Os)?;
    /// assert_eq!(stock.get("shop")?.as_deref(), Some(&more[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn merge(
        self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> Batch {
        Batch(self.0.merge(&partition.0, key, operand))
    }
}

impl PartitionBatch<'_> {
    /// Merges `operand` into the value of `key`; see [`Partition::merge`].
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use siltstone::operators::IntegerOperator;
    /// use siltstone::{Durability, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().merge_operator(Arc::new(IntegerOperator::Add));
    /// let stock = db.partition_with("stock", options)?;
    /// // Moves two pieces: no reader sees one half of it.
    /// let [less, more] = [-2i64, 2].map(i64::to_le_bytes);
    /// let mut batch = db.batch();
    /// batch.of(&stock).merge("store", less).merge("shop", more);
    /// batch.commit(Durability::Os)?;
    /// assert_eq!(stock.get("shop")?.as_deref(), Some(&more[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn merge(&mut self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> &mut Self {
        self.batch.0.add_merge(&self.partition.0, key.as_ref(), operand.as_ref());
        self
    }
}
