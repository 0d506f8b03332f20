//! [`Partition`]: a handle to one key space.

mod integrity;
mod modify;

use std::fmt;
use std::path::Path;

use lsm_core::db::{BulkLoad, Commit, ExportOptions, ExportSummary, IngestSummary};
use lsm_core::error::{Error, Result};
use lsm_core::options::WriteOptions;
use lsm_core::read::{Cursor, KeyRange, Keys, Range};
use lsm_core::stats::PartitionStats;
use lsm_core::types::Slice;

use crate::options::PartitionOptions;

/// A handle to one partition: a column family, which is a key space with its own tables and options.
/// A handle is cheap to clone and keeps the database open.
///
/// Keys and values are byte strings, and keys sort bytewise. A key has at least one byte; the other
/// limits are in [`limits`](crate::limits) and [`Options`](crate::Options).
#[derive(Clone)]
pub struct Partition(pub(crate) lsm_core::Partition);

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
    #[inline]
    pub fn try_put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Commit> {
        self.0.try_put(key, value)
    }

    /// Deletes `key`. A key that does not exist is no error. Errors, durability and cost are those
    /// of [`Partition::put`].
    #[inline]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<Commit> {
        self.0.delete(key)
    }

    /// Deletes `key` with the given options. Errors, durability and cost are those of
    /// [`Partition::put_with`].
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
    pub fn clear_with(&self, options: impl Into<WriteOptions>) -> Result<Commit> {
        self.0.clear_with(options)
    }

    /// Deletes `key` as [`Partition::delete`] does, but returns an error instead of waiting for
    /// compactions. The errors are those of [`Partition::try_put`].
    #[inline]
    pub fn try_delete(&self, key: impl AsRef<[u8]>) -> Result<Commit> {
        self.0.try_delete(key)
    }
}

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
    /// Takes no lock. Allocates nothing if the key does not exist.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.0.get(key)
    }

    /// Returns whether `key` exists. Errors and cost are those of [`Partition::get`].
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
    pub fn range(&self, range: impl KeyRange) -> Range {
        self.0.range(range)
    }

    /// Returns all keys and values, as [`Partition::range`] does.
    pub fn iter(&self) -> Range {
        self.0.iter()
    }

    /// Returns the keys that begin with `prefix`, and their values, as [`Partition::range`] does.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.0.prefix(prefix)
    }

    /// Returns a double-ended iterator over all keys. It reads no large values.
    pub fn keys(&self) -> Keys {
        self.0.keys()
    }

    /// Returns a cursor over the partition as it is at the call. A cursor lends keys and values;
    /// [`Partition::range`] copies them. The first seek reports an error of this call.
    pub fn cursor(&self) -> Cursor {
        self.0.cursor()
    }

    /// Returns a cursor over the keys in `range`. Every seek and move stays within the range and reads
    /// nothing outside of it. Otherwise as [`Partition::cursor`].
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
    pub fn first(&self) -> Result<Option<(Slice, Slice)>> {
        // An iterator reads nothing before its first step, so this costs one seek.
        self.iter().next().transpose()
    }

    /// Returns the last key and its value; `None` if the partition is empty. Errors and cost are
    /// those of [`Partition::first`].
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
    pub fn len_approx(&self) -> Result<u64> {
        self.0.len_approx()
    }

    /// Returns the statistics of this partition: a copy. They are among those of
    /// [`Db::stats`](crate::Db::stats) as well, which copies them for all partitions. A dropped
    /// partition has those of an empty one.
    ///
    /// # Cost
    /// A few additions for each table of the partition, however many partitions there are.
    pub fn stats(&self) -> PartitionStats {
        self.0.stats()
    }
}

/// Options and maintenance.
impl Partition {
    /// Returns the name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the stored options. They name no hooks, so
    /// [`Db::partition_with`](crate::Db::partition_with) with these options leaves the hooks unchanged.
    pub fn options(&self) -> PartitionOptions {
        // Without hooks, which means to `partition_with` that they stay. So options that are read,
        // changed and given back change nothing else.
        self.0.options().into()
    }

    /// Writes the memtables of this partition to tables and waits until the tables are installed.
    ///
    /// # Errors
    /// The failure of the flush. The data stays in the memtables and in the log.
    ///
    /// # Durability
    /// Every write to this partition that returned before this call is durable, even if the
    /// partition has no log.
    ///
    /// # Cost
    /// One table and one edit of the manifest, if there is data in memory.
    pub fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    /// Flushes the partition and compacts `range` to the bottom level. This removes deleted and
    /// overwritten data in the range, unless a snapshot needs it.
    ///
    /// # Errors
    /// The errors of the flush and of the compaction. After an error no data is lost.
    ///
    /// Rewrites the tables above the bottom level that have keys in `range`, the tables of the
    /// bottom level that they overlap, and the tables of the bottom level from which something can
    /// be removed; a table without overlap is moved and not rewritten. In a partition with
    /// compaction filters, MetaHive or large values it rewrites every table that has keys in
    /// `range`. Writers continue during the call.
    pub fn compact(&self, range: impl KeyRange) -> Result<()> {
        self.0.compact(range)
    }

    /// Writes the keys and values in `range`, as they are at the call, to tables in the folder `dir`,
    /// which must be empty or not exist. [`Partition::ingest`] reads these tables into a partition of
    /// any database. Writers continue during the call; later writes are not in the export.
    ///
    /// The export contains the hidden entries of its entries, for example those of MetaHive. MetaHive
    /// verifies every exported entry, and repairs it in the export as a compaction would.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there are files in
    /// `dir`; [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) that names the key if an
    /// entry is damaged beyond repair; the errors of files. After an error, the files of the export
    /// are removed, the folder stays. An export that a crash left incomplete has no description, and
    /// an ingest refuses it.
    ///
    /// # Durability
    /// The export is durable once this returns.
    ///
    /// # Cost
    /// Reads the range and writes it, with the compression of the deep levels of the partition.
    pub fn export(&self, range: impl KeyRange, dir: impl AsRef<Path>) -> Result<ExportSummary> {
        self.0.export(range, dir)
    }

    /// [`Partition::export`] with options: for example without the metadata of MetaHive, for a
    /// partition that is to have none.
    ///
    /// # Errors
    /// As for [`Partition::export`].
    pub fn export_with(
        &self,
        range: impl KeyRange,
        dir: impl AsRef<Path>,
        options: ExportOptions,
    ) -> Result<ExportSummary> {
        self.0.export_with(range, dir, options)
    }

    /// Adds an export of this or another database from the folder `dir`. It sets all keys of the export
    /// in one atomic operation. The export overrides writes that returned before this call; writes
    /// that begin after this call override the export. Existing snapshots and iterators do not see
    /// it. Keys that are not in the export do not change.
    ///
    /// The files of the export are linked if the file system supports hard links. So `dir` must not be
    /// changed afterwards; it may be removed.
    ///
    /// If the exporting partition reserves an ending of keys for hidden entries, this partition
    /// reserves it too from then on. It also gets the filter that adds these entries, if the code of
    /// the filter is available.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `dir` holds no export,
    /// or one whose rules for keys contradict those of this partition;
    /// [`ErrorKind::ReservedKey`](crate::ErrorKind::ReservedKey) if a key has a reserved ending, on
    /// either side; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if newer code wrote
    /// the export; [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) that names file, offset
    /// and, if it is known, the key; a limit that a key or value exceeds. These errors change nothing.
    /// If the write of the manifest fails, the export is not visible, and it is unknown whether it
    /// will be visible after the next open.
    ///
    /// # Durability
    /// The ingest and every earlier logged write are durable once this returns.
    ///
    /// # Cost
    /// Reads the export once to check it. Flushes the memtables if they hold keys in its range.
    /// Writers wait for one edit of the manifest, and for a flush of the keys that were written into
    /// the range during this call.
    pub fn ingest(&self, dir: impl AsRef<Path>) -> Result<IngestSummary> {
        self.0.ingest(dir)
    }

    /// Loads sorted entries with distinct keys in one atomic operation. The entries go directly to tables
    /// of the deep levels, without the log and the memtables, so each byte is written once.
    ///
    /// Like an ingest, the load overrides writes that returned before its tables are installed, at the
    /// end of the load. Existing snapshots and iterators do not see it, and a transaction that has read
    /// one of its keys conflicts. Large values go to chunk files, if the partition has them. Compaction
    /// filters see the entries in the next compaction.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument), which names the key, if a key
    /// does not sort after the previous key; the errors of a put and of an ingest. These errors change
    /// nothing and leave no file. If the write of the manifest fails, the entries are not visible, and it
    /// is unknown whether they will be visible after the next open.
    ///
    /// # Durability
    /// The entries and every earlier logged write are durable once this returns.
    ///
    /// # Cost
    /// Writes each entry once. Needs memory for a block and for the Bloom filter of a table, and about
    /// 200 bytes for each large value. Flushes the memtables if they hold keys in its range. Writers wait
    /// as for an ingest.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> siltstone::Result<()> {
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = siltstone::Db::builder("/db").fs(fs).open()?;
    /// let squares = db.partition("squares")?;
    /// squares.bulk_load((0..1000u32).map(|n| (n.to_be_bytes(), (n * n).to_string())))?;
    /// assert_eq!(squares.get(12u32.to_be_bytes())?.as_deref(), Some(&b"144"[..]));
    /// # db.close()
    /// # }
    /// ```
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<IngestSummary> {
        self.0.bulk_load(entries)
    }

    /// Loads the entries that `fill` puts, like [`Partition::bulk_load`], from a source that can fail. An
    /// error of `fill` ends the load and changes nothing.
    ///
    /// # Errors
    /// The errors of `fill` and of [`Partition::bulk_load`].
    pub fn bulk_load_by<E: From<Error>>(
        &self,
        fill: impl FnOnce(&mut BulkLoad<'_>) -> Result<(), E>,
    ) -> Result<IngestSummary, E> {
        self.0.bulk_load_by(fill)
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
