//! Savepoints of a [`Transaction`].

use lsm_core::error::Result;

use super::Transaction;

/// Savepoints.
impl Transaction {
    /// Marks the present state of the own writes, for [`Transaction::rollback_to_savepoint`]. Savepoints form a
    /// stack.
    ///
    /// # Cost
    /// None by itself. While there is a savepoint, the transaction also keeps what each write replaces, and a deletion
    /// of a range or of everything copies the own writes to its partition.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&users, "alice", "admin");
    /// transaction.set_savepoint();
    /// transaction.put(&users, "alice", "guest");
    /// transaction.put(&users, "bob", "author");
    /// transaction.rollback_to_savepoint()?;
    /// transaction.commit(Durability::Os)?;
    /// assert_eq!(users.get("alice")?.as_deref(), Some(&b"admin"[..]));
    /// assert!(!users.contains("bob")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn set_savepoint(&mut self) {
        self.0.set_savepoint();
    }

    /// Takes back all writes and requirements since the newest savepoint, and removes this savepoint. Reads since then
    /// are validated all the same, because the caller knows their results; locks stay. Ranges and cursors that
    /// began before show what they showed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there is no savepoint.
    ///
    /// # Cost
    /// That of the writes that are taken back.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let mut transaction = db.transaction();
    /// for (name, role) in [("alice", "admin"), ("bob", ""), ("carol", "author")] {
    ///     transaction.set_savepoint();
    ///     transaction.put(&users, name, role);
    ///     match role {
    ///         "" => transaction.rollback_to_savepoint()?, // leaves this one out
    ///         _ => transaction.pop_savepoint()?,
    ///     }
    /// }
    /// transaction.commit(Durability::Os)?;
    /// assert_eq!(users.keys().count(), 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn rollback_to_savepoint(&mut self) -> Result<()> {
        self.0.rollback_to_savepoint()
    }

    /// Removes the newest savepoint and keeps the writes since.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there is no savepoint.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let mut transaction = db.transaction();
    /// transaction.set_savepoint();
    /// transaction.pop_savepoint()?;
    /// assert!(transaction.rollback_to_savepoint().is_err());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn pop_savepoint(&mut self) -> Result<()> {
        self.0.pop_savepoint()
    }
}
