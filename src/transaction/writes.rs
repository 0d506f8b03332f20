//! Questions about the writes of a [`Transaction`].

use super::Transaction;
use crate::partition::Partition;

impl Transaction {
    /// Returns `true` if it has no writes. The commit of such a transaction writes nothing.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// assert!(db.transaction().is_empty());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if it writes `key`, or deletes it, also with a range. Its reads of the key are not of the database then.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let mut transaction = db.transaction();
    /// transaction.delete_prefix(&users, "a");
    /// assert!(transaction.has_write(&users, "alice") && !transaction.has_write(&users, "ben"));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn has_write(&self, partition: &Partition, key: impl AsRef<[u8]>) -> bool {
        self.0.has_write(&partition.0, key.as_ref())
    }
}
