//! [`Snapshot`]: the database at one moment.

use std::fmt;

use lsm_core::error::Result;
use lsm_core::read::{Cursor, KeyRange, Keys, Range, RemainingTime};
use lsm_core::types::{SeqNo, Slice};
use metahive::{Verified, VerifiedRange};

use crate::partition::Partition;
use crate::readable::Readable;

/// The state of the whole database at one moment. Cheap to clone.
///
/// A snapshot pins no memory and no file, but compactions keep every version that it sees until
/// its last clone is dropped. A snapshot can read a partition that was dropped later, through an
/// older handle to the partition.
#[derive(Clone)]
pub struct Snapshot(pub(crate) lsm_core::Snapshot);

impl Snapshot {
    /// Returns the sequence number of the newest operation that the snapshot sees.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let commit = db.partition("users")?.put("alice", "admin")?;
    /// assert_eq!(db.snapshot().seq(), commit.seq);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn seq(&self) -> SeqNo {
        self.0.seq()
    }

    /// Returns the value that `key` had in `partition`.
    ///
    /// # Errors
    /// The errors of [`Partition::get`];
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the partition belongs to
    /// another database.
    ///
    /// # Cost
    /// As [`Partition::get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.put("alice", "author")?;
    /// users.put("bob", "author")?;
    /// assert_eq!(before.get(&users, "alice")?.as_deref(), Some(&b"admin"[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn get(&self, partition: &Partition, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.0.get(&partition.0, key)
    }

    /// Returns the values that `keys` had in `partition`, in the order of `keys`. Errors
    /// are those of [`Snapshot::get`], of any of the keys. Cost is that of [`Partition::multi_get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.put("bob", "author")?;
    /// let roles = before.multi_get(&users, &["bob", "alice"])?;
    /// assert!(roles[0].is_none() && roles[1].as_deref() == Some(&b"admin"[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        partition: &Partition,
        keys: &[K],
    ) -> Result<Vec<Option<Slice>>> {
        self.0.multi_get(&partition.0, keys)
    }

    /// Returns whether `key` existed in `partition`. Errors and cost are those of
    /// [`Snapshot::get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.put("alice", "author")?;
    /// users.put("bob", "author")?;
    /// assert!(!before.contains(&users, "bob")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn contains(&self, partition: &Partition, key: impl AsRef<[u8]>) -> Result<bool> {
        self.0.contains(&partition.0, key)
    }

    /// Returns `partition` as the snapshot sees it, for code that takes a
    /// [`Readable`](crate::Readable).
    ///
    /// # Examples
    /// ```
    /// use siltstone::Readable;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.put("alice", "author")?;
    /// users.put("bob", "author")?;
    /// // For code that takes any `Readable`.
    /// assert_eq!(before.of(&users).keys().count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn of(&self, partition: &Partition) -> PartitionSnapshot {
        // Owned, so that iterators and threads may keep it. Both are counted references.
        PartitionSnapshot { snapshot: self.clone(), partition: partition.clone() }
    }

    /// Returns a double-ended iterator over the keys and values in `range` of `partition`. Errors are
    /// items, as for [`Partition::range`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.put("alice", "author")?;
    /// users.put("bob", "author")?;
    /// assert_eq!(before.range(&users, "a".."z").count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn range(&self, partition: &Partition, range: impl KeyRange) -> Range {
        self.0.range(&partition.0, range)
    }

    /// Returns all keys and values that were in `partition`. Double-ended.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.put("alice", "author")?;
    /// users.put("bob", "author")?;
    /// for entry in before.iter(&users) {
    ///     let (name, role) = entry?;
    ///     assert_eq!((&name[..], &role[..]), (&b"alice"[..], &b"admin"[..]));
    /// }
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn iter(&self, partition: &Partition) -> Range {
        self.0.iter(&partition.0)
    }

    /// Returns the keys that began with `prefix`, and their values, in `partition`. Double-ended.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.put("alice", "author")?;
    /// users.put("bob", "author")?;
    /// assert_eq!(before.prefix(&users, "b").count(), 0);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn prefix(&self, partition: &Partition, prefix: impl AsRef<[u8]>) -> Range {
        self.0.prefix(&partition.0, prefix)
    }

    /// Returns a double-ended iterator over all keys of `partition`. It reads no large values.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.put("alice", "author")?;
    /// users.put("bob", "author")?;
    /// assert_eq!(before.keys(&users).count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn keys(&self, partition: &Partition) -> Keys {
        self.0.keys(&partition.0)
    }

    /// Returns the first key of `partition` and its value, as [`Partition::first`] does.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.clear()?;
    /// assert_eq!(before.first(&users)?.expect("alice").0, b"alice");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn first(&self, partition: &Partition) -> Result<Option<(Slice, Slice)>> {
        self.iter(partition).next().transpose()
    }

    /// Returns the last key of `partition` and its value, as [`Partition::last`] does.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.put("bob", "author")?;
    /// assert_eq!(before.last(&users)?.expect("alice").0, b"alice");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn last(&self, partition: &Partition) -> Result<Option<(Slice, Slice)>> {
        self.iter(partition).next_back().transpose()
    }

    /// Returns a cursor over the keys that were in `range` of `partition`, as
    /// [`Partition::cursor_in`] does.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.put("alice", "author")?;
    /// users.put("bob", "author")?;
    /// let mut cursor = before.cursor_in(&users, "b"..);
    /// cursor.seek_to_first()?;
    /// assert!(!cursor.valid());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn cursor_in(&self, partition: &Partition, range: impl KeyRange) -> Cursor {
        self.0.cursor_in(&partition.0, range)
    }

    /// Returns a cursor over `partition`. The first seek reports an error of this call.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.put("alice", "author")?;
    /// users.put("bob", "author")?;
    /// let mut cursor = before.cursor(&users);
    /// cursor.seek_to_last()?;
    /// assert_eq!(cursor.key(), b"alice");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn cursor(&self, partition: &Partition) -> Cursor {
        self.0.cursor(&partition.0)
    }

    /// Returns the time after which the entry of `key` in `partition` is not there any more; `None` if it is not there.
    /// It counts from the time of the snapshot, whose reads all have that time. A snapshot from before the first rule
    /// of the database sees entries without a limit.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::{PartitionOptions, RemainingTime, TtlRule};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().ttl(&TtlRule::in_value(0));
    /// let sessions = db.partition_with("sessions", options)?;
    /// sessions.put("ann", 0u64.to_be_bytes())?; // for ever
    /// let left = db.snapshot().remaining_time(&sessions, "ann")?;
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

    /// Returns the value that `key` had in `partition` if it agrees with its metadata, as
    /// [`Partition::verified_get`] does.
    ///
    /// # Errors
    /// Those of [`Partition::verified_get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().metahive(Default::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// ledger.put("alice", "12")?;
    /// let before = db.snapshot();
    /// ledger.put("alice", "7")?;
    /// let verified = before.verified_get(&ledger, "alice")?.expect("it was there");
    /// assert_eq!(&verified.value[..], b"12");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn verified_get(
        &self,
        partition: &Partition,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Verified>> {
        metahive::verified_get_at(&self.0, &partition.0, key)
    }

    /// Returns the keys and values in `range` of `partition` that agree with their metadata, as
    /// [`Partition::verified_range`] does.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().metahive(Default::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// ledger.put("alice", "12")?;
    /// let before = db.snapshot();
    /// ledger.put("alice", "7")?;
    /// assert_eq!(before.verified_range(&ledger, ..).count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn verified_range(&self, partition: &Partition, range: impl KeyRange) -> VerifiedRange {
        metahive::verified_range_at(&self.0, &partition.0, range)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One partition as a snapshot sees it: [`Snapshot::of`]. Cheap to clone; it keeps the snapshot.
#[derive(Clone, Debug)]
pub struct PartitionSnapshot {
    snapshot: Snapshot,
    partition: Partition,
}

impl PartitionSnapshot {
    /// Returns the snapshot.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let view = db.snapshot().of(&users);
    /// assert_eq!(view.snapshot().seq(), db.visible_seq());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Returns the partition.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// assert_eq!(db.snapshot().of(&users).partition().name(), "users");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Returns the time after which the entry of `key` is not there any more, as [`Snapshot::remaining_time`] does.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// assert_eq!(db.snapshot().of(&users).remaining_time("bob")?, None);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn remaining_time(&self, key: impl AsRef<[u8]>) -> Result<Option<RemainingTime>> {
        self.snapshot.remaining_time(&self.partition, key)
    }
}

impl Readable for PartitionSnapshot {
    type Range = Range;
    type Keys = Keys;
    type Cursor = Cursor;

    #[inline]
    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.snapshot.get(&self.partition, key)
    }

    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        self.snapshot.multi_get(&self.partition, keys)
    }

    fn range(&self, range: impl KeyRange) -> Range {
        self.snapshot.range(&self.partition, range)
    }

    fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.snapshot.prefix(&self.partition, prefix)
    }

    fn keys(&self) -> Keys {
        self.snapshot.keys(&self.partition)
    }

    fn cursor_in(&self, range: impl KeyRange) -> Cursor {
        self.snapshot.cursor_in(&self.partition, range)
    }

    fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.snapshot.contains(&self.partition, key)
    }
}
