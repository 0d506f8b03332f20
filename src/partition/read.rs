//! Reads of one [`Partition`]: gets, ranges, cursors and figures.

use lsm_core::error::Result;
use lsm_core::read::{Cursor, KeyRange, Keys, Range, RemainingTime};
use lsm_core::stats::PartitionStats;
use lsm_core::types::Slice;

use super::Partition;

/// Reading.
impl Partition {
    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) that names file and key if a block on
    /// the path to the value is damaged; an older value is never returned instead.
    /// [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) for a large value of more than
    /// [`FORMAT_VALUE_BYTES_MAX`](crate::limits::FORMAT_VALUE_BYTES_MAX) bytes, which
    /// [`Partition::open_blob`] reads. A dropped partition; a closed store.
    ///
    /// # Cost
    /// Reads at most one data block per level-0 table and per deeper level, if it is not in the cache.
    /// Takes no lock but that of a part of the block cache. Allocates nothing if the key does not exist.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let role = users.get("alice")?.expect("it was just put");
    /// assert_eq!(&role[..], b"admin");
    /// assert!(users.get("bob")?.is_none());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.0.get(key)
    }

    /// Returns the values of `keys` at one moment, in the order of `keys`. A key may come twice.
    ///
    /// # Errors
    /// Those of [`Partition::get`], of any of the keys.
    ///
    /// # Cost
    /// That of the gets, but they wait together: for memory, and for blocks that are read from the device, which the
    /// system reads ahead where it can (Linux, Android). Takes memory for the values of all keys.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let roles = users.multi_get(&["bob", "alice"])?;
    /// assert!(roles[0].is_none() && roles[1].as_deref() == Some(&b"admin"[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        self.0.multi_get(keys)
    }

    /// Gives `visit` the place in `keys`, and the value, of each of them at one moment, until it returns `false`. Up to 64 keys
    /// come in the order of `keys`. More come in another order, but the first 64 that `visit` is given ascend in their
    /// places, and so does each further 64.
    ///
    /// # Errors
    /// Those of [`Partition::get`], of any of the keys.
    ///
    /// # Cost
    /// That of [`Partition::multi_get`], but one value is held at a time.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let mut bytes = 0;
    /// users.multi_get_each(&["bob", "alice"], |_, role| {
    ///     bytes += role.map_or(0, |role| role.len());
    ///     bytes < 1 << 20
    /// })?;
    /// assert_eq!(bytes, 5);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn multi_get_each<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        visit: impl FnMut(usize, Option<Slice>) -> bool,
    ) -> Result<()> {
        self.0.multi_get_each(keys, visit)
    }

    /// Returns the time after which the entry of `key` expires by the rule of the partition ([`TtlRule`]), at the moment
    /// of the call; `None` if there is no such entry.
    ///
    /// # Errors
    /// Those of [`Partition::get`].
    ///
    /// # Cost
    /// That of [`Partition::get`], but a large value is not read.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// use siltstone::{PartitionOptions, RemainingTime, TtlRule};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// // A value begins with its time of expiry in seconds since 1970.
    /// let options = PartitionOptions::new().ttl(&TtlRule::in_value(0));
    /// let sessions = db.partition_with("sessions", options)?;
    /// sessions.put("old", 1_000_000u64.to_be_bytes())?;
    /// assert!(sessions.get("old")?.is_none() && sessions.remaining_time("old")?.is_none());
    /// let left = sessions.with_expired().remaining_time("old")?;
    /// assert_eq!(left, Some(RemainingTime::Limited(Duration::ZERO)));
    /// sessions.put("stays", "")?;
    /// assert_eq!(sessions.remaining_time("stays")?, Some(RemainingTime::Unlimited));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    ///
    /// [`TtlRule`]: crate::TtlRule
    pub fn remaining_time(&self, key: impl AsRef<[u8]>) -> Result<Option<RemainingTime>> {
        self.0.remaining_time(key)
    }

    /// Returns a handle whose reads see expired entries as long as no compaction has removed them, also its reads through
    /// snapshots and transactions. Without a rule of expiry it is as this one.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{PartitionOptions, TtlRule};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().ttl(&TtlRule::in_value(0));
    /// let sessions = db.partition_with("sessions", options)?;
    /// sessions.put("old", 1_000_000u64.to_be_bytes())?;
    /// assert_eq!((sessions.keys().count(), sessions.with_expired().keys().count()), (0, 1));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[must_use]
    pub fn with_expired(&self) -> Partition {
        Partition(self.0.with_expired())
    }

    /// Returns about how many bytes of tables hold the keys of `range`, to a block at each end. Writes that are not
    /// flushed and large values do not count; versions and deleted entries that a compaction will remove do.
    ///
    /// # Errors
    /// Those of opening a table.
    ///
    /// # Cost
    /// A search in the index of each table that has an end of the range inside.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", [7; 1000])?;
    /// users.flush()?;
    /// assert!(users.size_approx(..)? >= 1000);
    /// assert_eq!(users.size_approx("b"..)?, 0);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn size_approx(&self, range: impl KeyRange) -> Result<u64> {
        self.0.size_approx(range)
    }

    /// Returns whether `key` exists. Errors and cost are those of [`Partition::get`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// assert!(users.contains("alice")? && !users.contains("bob")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.0.contains(key)
    }

    /// Returns a double-ended iterator over the keys and values in `range`, as they are at the call:
    /// later writes are not visible. `range` may be any range type of the standard library over any
    /// type that is bytes. A range whose start is greater than its end is empty.
    ///
    /// Errors are items of the iterator. The iterator ends after an error; a new range can start
    /// after the damage.
    ///
    /// # Cost
    /// The first item searches every memtable, every level-0 table and one table of each deeper
    /// level. Each further item costs a few comparisons. The iterator keeps the memtables in memory
    /// and the tables on disk until it is dropped.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let scores = db.partition("scores")?;
    /// for n in [3u32, 1, 2, 9] {
    ///     scores.put(n.to_be_bytes(), "score")?;
    /// }
    /// let mut low = scores.range(..5u32.to_be_bytes());
    /// let (first, _) = low.next().expect("1 is the first")?;
    /// let (last, _) = low.next_back().expect("3 is the last below 5")?;
    /// assert_eq!((&first[..], &last[..]), (&1u32.to_be_bytes()[..], &3u32.to_be_bytes()[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn range(&self, range: impl KeyRange) -> Range {
        self.0.range(range)
    }

    /// Returns all keys and values, as [`Partition::range`] does.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("bob", "author")?;
    /// users.put("alice", "admin")?;
    /// for entry in users.iter() {
    ///     let (name, role) = entry?;
    ///     println!("{} = {}", name.escape_ascii(), role.escape_ascii());
    /// }
    /// assert_eq!(users.iter().count(), 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn iter(&self) -> Range {
        self.0.iter()
    }

    /// Returns the keys that begin with `prefix`, and their values, as [`Partition::range`] does.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let posts = db.partition("posts")?;
    /// posts.put("alice/1", "hello")?;
    /// posts.put("bob/1", "good morning")?;
    /// posts.put("bob/2", "good night")?;
    /// // The newest two of bob, newest first.
    /// let newest: Vec<_> = posts.prefix("bob/").rev().take(2).collect::<siltstone::Result<_>>()?;
    /// assert_eq!(&newest[0].1[..], b"good night");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.0.prefix(prefix)
    }

    /// Returns a double-ended iterator over all keys. It reads no large values.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let names: Vec<_> = users.keys().collect::<siltstone::Result<_>>()?;
    /// assert_eq!(&names[0][..], b"alice");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn keys(&self) -> Keys {
        self.0.keys()
    }

    /// Returns a cursor over the partition as it is at the call. A cursor lends keys and values;
    /// [`Partition::range`] copies them. The first seek reports an error of this call.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// users.put("bob", "author")?;
    /// let mut cursor = users.cursor();
    /// cursor.seek("b")?;
    /// assert_eq!((cursor.key(), cursor.value()?), (&b"bob"[..], &b"author"[..]));
    /// cursor.prev()?;
    /// assert_eq!(cursor.key(), b"alice");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn cursor(&self) -> Cursor {
        self.0.cursor()
    }

    /// Returns a cursor over the keys in `range`. Every seek and move stays within the range and reads
    /// nothing outside of it. Otherwise as [`Partition::cursor`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// users.put("bob", "author")?;
    /// let mut cursor = users.cursor_in("a".."b");
    /// cursor.seek_to_last()?;
    /// assert_eq!(cursor.key(), b"alice");
    /// cursor.next()?;
    /// assert!(!cursor.valid());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn cursor_in(&self, range: impl KeyRange) -> Cursor {
        self.0.cursor_in(range)
    }

    /// Returns the first key and its value; `None` if the partition is empty.
    ///
    /// # Errors
    /// Those of [`Partition::get`].
    ///
    /// # Cost
    /// That of the first item of [`Partition::range`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let queue = db.partition("queue")?;
    /// queue.put(1u64.to_be_bytes(), "job")?;
    /// while let Some((key, job)) = queue.first()? {
    ///     println!("{}", job.escape_ascii());
    ///     queue.delete(key)?;
    /// }
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn first(&self) -> Result<Option<(Slice, Slice)>> {
        // An iterator reads nothing before its first step, so this costs one seek.
        self.iter().next().transpose()
    }

    /// Returns the last key and its value; `None` if the partition is empty. Errors and cost are
    /// those of [`Partition::first`].
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let log = db.partition("log")?;
    /// log.put(41u64.to_be_bytes(), "entry")?;
    /// let next = match log.last()? {
    ///     Some((key, _)) => u64::from_be_bytes(key[..].try_into().expect("8 bytes")) + 1,
    ///     None => 0,
    /// };
    /// assert_eq!(next, 42);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn last(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next_back().transpose()
    }

    /// Returns the approximate number of keys. Overwritten and deleted entries count until a
    /// compaction drops them. The number is exact after [`Partition::compact`] over all keys, if
    /// there are no writes and no snapshots.
    ///
    /// # Errors
    /// A dropped partition; a closed store.
    ///
    /// # Cost
    /// A few additions for each table; reads no file.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// users.put("bob", "author")?;
    /// assert_eq!(users.len_approx()?, 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn len_approx(&self) -> Result<u64> {
        self.0.len_approx()
    }

    /// Returns the statistics of this partition: a copy. They are among those of
    /// [`Db::stats`](crate::Db::stats) as well, which copies them for all partitions. A dropped
    /// partition has those of an empty one.
    ///
    /// # Cost
    /// A few additions for each table of the partition, however many partitions there are.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// users.flush()?;
    /// println!("{} tables on level 0", users.stats().levels[0].table_count);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn stats(&self) -> PartitionStats {
        self.0.stats()
    }
}
