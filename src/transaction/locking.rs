//! Locks that a [`Transaction`] takes on request.

use std::time::Duration;

use lsm_core::error::Result;
use lsm_core::types::Slice;

use super::Transaction;
use crate::partition::Partition;

/// Locks of keys.
///
/// Most transactions need none. If many threads change one key, a commit makes the attempts of the others vain; with a
/// lock they take turns, and no work runs twice. Locks are between the transactions of this process that call
/// [`get_for_update`](Transaction::get_for_update), and are not stored:
///
/// - A write takes no lock and waits for none, be it a put, a batch, or the write of another transaction to a key that it
///   did not lock. If it changes a locked key, the commit of the owner returns
///   [`ErrorKind::Conflict`](crate::ErrorKind::Conflict). So nothing is lost, and transactions with and without locks
///   may run at the same time; a key costs the fewest repetitions if all that change it lock it.
/// - A lock is free as soon as the commit is visible, with [`Durability::Sync`](crate::Durability::Sync) before its sync
///   (after it if a partition without a log is written), or when the transaction is dropped. A rollback to a savepoint
///   frees none.
/// - Ranges and keys that do not exist: a missing key can be locked as others; a range cannot.
impl Transaction {
    /// Locks `key` in `partition` until the transaction ends, and returns its newest value, or the value that this
    /// transaction wrote. It waits while another transaction has the lock.
    ///
    /// The value is the newest one at the call, not the one in the snapshot of the transaction, and so is that of later
    /// gets of the key. The commit validates that no one has written to the key since. Ranges, and keys that are not
    /// locked, are of the snapshot. So lock first, and read other keys after it with this call, too, if they depend on it.
    ///
    /// # Errors
    /// [`ErrorKind::LockTimeout`](crate::ErrorKind::LockTimeout) if the key is not free in time: 1 second, unless
    /// [`Transaction::set_lock_timeout`] sets another. [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock) at once
    /// if the owner of the lock waits for this transaction, directly or through others: drop the transaction and
    /// repeat it, as [`Db::transact`](crate::Db::transact) does. Both name the key. Those of [`Partition::get`].
    ///
    /// # Cost
    /// That of a get, and some 100 bytes of memory and the length of the key until the transaction ends. A waiting
    /// thread sleeps. Waiters get the key in their order. Until the first of them is awake, others may get it.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Db, Partition, Result};
    ///
    /// /// Increments a counter that many threads increment.
    /// fn count(db: &Db, counters: &Partition) -> Result<u64> {
    ///     db.transact(|transaction| {
    ///         let old = transaction.get_for_update(counters, "visits")?;
    ///         let old = old.map_or(0, |old| u64::from_be_bytes(old[..].try_into().expect("8 bytes")));
    ///         transaction.put(counters, "visits", (old + 1).to_be_bytes());
    ///         Ok(old + 1)
    ///     })
    /// }
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let counters = db.partition("counters")?;
    /// assert_eq!(count(&db, &counters)?, 1);
    /// assert_eq!(count(&db, &counters)?, 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn get_for_update(
        &mut self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Slice>> {
        // By `&mut`: a transaction that waited for two keys at once could deadlock in more ways than one.
        self.0.get_for_update(&partition.0, key)
    }

    /// Sets the time for which later calls of [`Transaction::get_for_update`] wait, by the clock of the database.
    /// Default: 1 second. Zero does not wait.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use siltstone::ErrorKind;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let mut first = db.transaction();
    /// first.get_for_update(&users, "alice")?;
    /// let mut second = db.transaction();
    /// second.set_lock_timeout(Duration::ZERO);
    /// let refused = second.get_for_update(&users, "alice").expect_err("the first has it");
    /// assert_eq!(refused.kind(), ErrorKind::LockTimeout);
    /// drop(first);
    /// second.get_for_update(&users, "alice")?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn set_lock_timeout(&mut self, timeout: Duration) {
        self.0.set_lock_timeout(timeout);
    }
}
