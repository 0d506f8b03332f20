//! Writes to one [`Partition`]: puts, deletions and clears.

use lsm_core::db::Commit;
use lsm_core::error::Result;
use lsm_core::options::WriteOptions;
use lsm_core::read::KeyRange;

use super::Partition;

/// Writing.
impl Partition {
    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) or
    /// [`ErrorKind::ReservedKey`](crate::ErrorKind::ReservedKey); a dropped partition; a full disk; a
    /// closed or read-only store. After an error the write is not visible and does not appear later.
    ///
    /// # Durability
    /// [`Durability::Os`](crate::Durability::Os): the kernel has the write once this returns.
    /// [`Partition::put_with`] and [`Db::wait_durable`](crate::Db::wait_durable) wait for the device.
    /// In a partition without a log, the write is durable after a flush.
    ///
    /// # Cost
    /// One append to the log for the whole group of writers that commit together. The writer waits if
    /// compactions are behind.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// users.put(b"bob", [1, 2, 3])?;
    /// users.put(7u64.to_be_bytes(), String::from("sorted by number"))?;
    /// assert_eq!(users.iter().count(), 3);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Commit> {
        self.0.put(key, value)
    }

    /// Sets `key` to `value` with the given options: a [`Durability`](crate::Durability), or
    /// [`WriteOptions`].
    ///
    /// # Errors
    /// The errors of [`Partition::put`]. With [`Durability::Sync`](crate::Durability::Sync) also
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) in a partition without a
    /// log, and the error of the sync. If the sync fails, the write is visible, and it is unknown
    /// whether it is durable.
    ///
    /// # Durability
    /// With [`Durability::Sync`](crate::Durability::Sync), this write and every earlier logged write
    /// are on the device once this returns.
    ///
    /// # Cost
    /// That of [`Partition::put`]. [`Durability::Sync`](crate::Durability::Sync) adds one sync, which
    /// all waiting writers share.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let orders = db.partition("orders")?;
    /// // On the device once this returns.
    /// orders.put_with("17", "paid", Durability::Sync)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        self.0.put_with(key, value, options)
    }

    /// Sets `key` to `value` as [`Partition::put`] does, but returns an error instead of waiting for
    /// compactions.
    ///
    /// # Errors
    /// [`ErrorKind::WouldStall`](crate::ErrorKind::WouldStall) with the reason; nothing was written.
    /// All other errors are those of [`Partition::put`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::ErrorKind;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let metrics = db.partition("metrics")?;
    /// match metrics.try_put("cpu", "0.7") {
    ///     Err(error) if error.kind() == ErrorKind::WouldStall => println!("dropped: {error}"),
    ///     put => drop(put?),
    /// }
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn try_put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Commit> {
        self.0.try_put(key, value)
    }

    /// Returns the name and the parameters of the merge operator that is stored with the partition, also if its code is
    /// missing.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use siltstone::PartitionOptions;
    /// use siltstone::operators::AppendOperator;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().merge_operator(Arc::new(AppendOperator::new(",")));
    /// let tags = db.partition_with("tags", options)?;
    /// assert_eq!(tags.merge_operator(), Some(("append".to_owned(), b",".to_vec())));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[must_use]
    pub fn merge_operator(&self) -> Option<(String, Vec<u8>)> {
        self.0.merge_operator()
    }

    /// Merges `operand` into the value of `key`, by the merge operator of the partition
    /// ([`PartitionOptions::merge_operator`](crate::PartitionOptions::merge_operator)). The operand becomes the value
    /// of a key that has none. Nothing is read.
    ///
    /// # Errors
    /// Those of [`Partition::put`]; those with which the operator refuses the operand;
    /// [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) for an operand beyond
    /// [`OPERAND_BYTES_MAX`](crate::limits::OPERAND_BYTES_MAX);
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the partition has no operator, or its code is
    /// missing. Nothing is written then.
    ///
    /// # Durability
    /// That of [`Partition::put`].
    ///
    /// # Cost
    /// That of [`Partition::put`], and for each 64th version of a key in memory a fold of its operands since the last
    /// fold. A later read folds at most so many operands of each memtable, and one for each table and snapshot that
    /// keeps one.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use siltstone::PartitionOptions;
    /// use siltstone::operators::AppendOperator;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().merge_operator(Arc::new(AppendOperator::new(",")));
    /// let tags = db.partition_with("tags", options)?;
    /// tags.merge("photo", "beach")?;
    /// tags.merge("photo", "summer")?;
    /// assert_eq!(tags.get("photo")?.as_deref(), Some(&b"beach,summer"[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<Commit> {
        self.0.merge(key, operand)
    }

    /// Merges `operand` into the value of `key` as [`Partition::merge`] does, with the given options. Errors and
    /// durability are also those of [`Partition::put_with`].
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use siltstone::operators::IntegerOperator;
    /// use siltstone::{Durability, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().merge_operator(Arc::new(IntegerOperator::Max));
    /// let marks = db.partition_with("marks", options)?;
    /// marks.merge_with("height", 7i64.to_le_bytes(), Durability::Sync)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn merge_with(
        &self,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        self.0.merge_with(key, operand, options)
    }

    /// Deletes `key`. A key that does not exist is no error. Errors, durability and cost are those
    /// of [`Partition::put`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// users.delete("alice")?;
    /// users.delete("bob")?; // no error
    /// assert!(users.get("alice")?.is_none());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<Commit> {
        self.0.delete(key)
    }

    /// Deletes `key` with the given options. Errors, durability and cost are those of
    /// [`Partition::put_with`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let sessions = db.partition("sessions")?;
    /// sessions.put("token", "alice")?;
    /// sessions.delete_with("token", Durability::Sync)?;
    /// assert!(!sessions.contains("token")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn delete_with(
        &self,
        key: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        self.0.delete_with(key, options)
    }

    /// Deletes every key, in one operation: of any partition, including `default`. Existing
    /// snapshots and iterators still see the keys. [`Batch::clear`](crate::Batch::clear) does the
    /// same together with other operations.
    ///
    /// A [requirement](crate::Batch::require) or a transaction that relies on a key of the
    /// partition conflicts with it. Compaction filters are not called. Gaps stay listed, but do not
    /// refuse reads of older entries.
    ///
    /// # Errors
    /// Those of [`Partition::delete`].
    ///
    /// # Durability
    /// That of [`Partition::delete`]: it is one record of the log.
    ///
    /// # Cost
    /// That of one deletion, whatever the number of keys. Whole tables are deleted soon after, in
    /// the background, without being read (those of a partition with large values are read). Until
    /// then a scan skips them. The entries that an older snapshot sees take space until it is
    /// dropped.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> siltstone::Result<()> {
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = siltstone::Db::builder("/db").fs(fs).open()?;
    /// let cache = db.partition("cache")?;
    /// cache.put("key", "old")?;
    /// let before = db.snapshot();
    /// cache.clear()?;
    /// assert!(cache.first()?.is_none());
    /// assert_eq!(before.get(&cache, "key")?.as_deref(), Some(&b"old"[..]));
    ///
    /// // Replaces everything at once: no reader sees the partition empty.
    /// db.batch().clear(&cache).put(&cache, "key", "new").commit(siltstone::Durability::Os)?;
    /// # drop(before);
    /// # db.close()
    /// # }
    /// ```
    pub fn clear(&self) -> Result<Commit> {
        // The engine has only the call with options.
        self.0.clear_with(WriteOptions::default())
    }

    /// Deletes every key as [`Partition::clear`] does, with the given options. Errors and
    /// durability are those of [`Partition::delete_with`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let cache = db.partition("cache")?;
    /// cache.put("key", "value")?;
    /// cache.clear_with(Durability::Sync)?;
    /// assert!(cache.first()?.is_none());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn clear_with(&self, options: impl Into<WriteOptions>) -> Result<Commit> {
        self.0.clear_with(options)
    }

    /// Deletes every key within `range`. It is one operation with one sequence number, whatever the number of keys,
    /// and becomes visible at once. Keys that are written later are not deleted. If no key can lie within the bounds,
    /// nothing is deleted and nothing is written: a scan of the same bounds returns nothing.
    ///
    /// Older snapshots and readers still see the entries, and a [transaction](crate::Transaction) that has read a key
    /// or a range inside fails with a conflict.
    ///
    /// # Errors
    /// Those of [`Partition::delete`]; a bound that is longer than a key may be.
    ///
    /// # Durability
    /// That of [`Partition::delete`]: it is one record of the log.
    ///
    /// # Cost
    /// That of one deletion. Tables whose keys all lie inside are deleted soon after, in the background, without being
    /// read (those of a partition with large values are read). Tables are rewritten if the range hides a tenth of
    /// their blocks or more; what is hidden in others goes with later compactions. Until then the range is kept in memory and in
    /// the manifest, gets compare what they find with it, and scans pass over it in one seek:
    /// [`PartitionStats::deleted_range_count`](crate::PartitionStats::deleted_range_count). The entries that an older
    /// snapshot sees take space until it is dropped.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let events = db.partition("events")?;
    /// for day in ["2025-12-30", "2025-12-31", "2026-01-01"] {
    ///     events.put(day, "...")?;
    /// }
    /// events.delete_range(.."2026")?;
    /// assert_eq!(events.keys().count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn delete_range(&self, range: impl KeyRange) -> Result<Commit> {
        self.0.delete_range_with(range, WriteOptions::default())
    }

    /// Deletes every key within `range` as [`Partition::delete_range`] does, with the given options. Errors and
    /// durability are those of [`Partition::delete_with`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let events = db.partition("events")?;
    /// events.put("2025-12-31", "...")?;
    /// events.delete_range_with("2025".."2026", Durability::Sync)?;
    /// assert!(events.first()?.is_none());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn delete_range_with(
        &self,
        range: impl KeyRange,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        self.0.delete_range_with(range, options)
    }

    /// Deletes every key that begins with `prefix`, as [`Partition::delete_range`] does. The empty prefix deletes all
    /// keys.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice/name", "Alice")?;
    /// users.put("alice/mail", "alice@example.org")?;
    /// users.put("bob/name", "Bob")?;
    /// users.delete_prefix("alice/")?;
    /// assert_eq!(users.keys().count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn delete_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Commit> {
        self.0.delete_prefix_with(prefix, WriteOptions::default())
    }

    /// Deletes every key that begins with `prefix` as [`Partition::delete_prefix`] does, with the given options.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice/name", "Alice")?;
    /// users.delete_prefix_with("alice/", Durability::Sync)?;
    /// assert!(users.first()?.is_none());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn delete_prefix_with(
        &self,
        prefix: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<Commit> {
        self.0.delete_prefix_with(prefix, options)
    }

    /// Deletes `key` as [`Partition::delete`] does, but returns an error instead of waiting for
    /// compactions. The errors are those of [`Partition::try_put`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let metrics = db.partition("metrics")?;
    /// metrics.put("cpu", "0.7")?;
    /// if let Err(error) = metrics.try_delete("cpu") {
    ///     println!("later: {error}");
    /// }
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn try_delete(&self, key: impl AsRef<[u8]>) -> Result<Commit> {
        self.0.try_delete(key)
    }
}
