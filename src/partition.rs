//! [`Partition`]: a handle to one key space.

mod integrity;
mod modify;
mod read;
mod write;

use std::fmt;
use std::path::Path;

use lsm_core::db::{BulkLoad, ExportOptions, ExportSummary, IngestSummary};
use lsm_core::error::{Error, Result};
use lsm_core::read::KeyRange;

use crate::options::PartitionOptions;
use crate::{TtlFilter, TtlRule};

/// A handle to one partition: a column family, which is a key space with its own tables and options.
/// A handle is cheap to clone and keeps the database open.
///
/// Keys and values are byte strings, and keys sort bytewise. A key may be empty; the limits are
/// in [`limits`](crate::limits) and [`Options`](crate::Options).
#[derive(Clone)]
pub struct Partition(pub(crate) lsm_core::Partition);

/// Options and maintenance.
impl Partition {
    /// Returns the name.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// assert_eq!(db.partition("users")?.name(), "users");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the stored options. They name no hooks, so
    /// [`Db::partition_with`](crate::Db::partition_with) with these options leaves the hooks unchanged.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// // Changes one option and leaves the others.
    /// db.partition_with("users", users.options().bloom_bits_per_key(14))?;
    /// assert_eq!(users.options().get_bloom_bits_per_key(), 14);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn options(&self) -> PartitionOptions {
        // Without hooks, which means to `partition_with` that they stay. So options that are read,
        // changed and given back change nothing else.
        self.0.options().into()
    }

    /// Returns the name and the parameters of each compaction filter that is stored with the partition, in the order in
    /// which they run, also of those whose code is missing. A program can see by them whether it has given a partition its
    /// rule of expiry.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{PartitionOptions, TtlFilter, TtlRule};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().ttl(&TtlRule::in_value(0));
    /// let sessions = db.partition_with("sessions", options)?;
    /// assert_eq!(sessions.filters()[0].0, TtlFilter::NAME);
    /// assert!(db.partition("users")?.filters().is_empty());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[must_use]
    pub fn filters(&self) -> Vec<(String, Vec<u8>)> {
        self.0.filters()
    }

    /// Returns the stored rule of expiry, if the partition has one. A [`TtlFilter`] of code is none.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{PartitionOptions, TtlRule};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let rule: TtlRule = "value:0,ms".parse()?;
    /// let sessions = db.partition_with("sessions", PartitionOptions::new().ttl(&rule))?;
    /// assert_eq!(sessions.ttl(), Some(rule));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[must_use]
    pub fn ttl(&self) -> Option<TtlRule> {
        let filters = self.filters();
        let (_, params) = filters.iter().find(|(name, _)| name == TtlFilter::NAME)?;
        TtlRule::from_stored(params)
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
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// users.flush()?;
    /// assert_eq!(users.stats().levels[0].table_count, 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    /// Flushes the partition and compacts `range` to the bottom level. This removes deleted and
    /// overwritten data in the range, unless a snapshot needs it.
    ///
    /// # Errors
    /// The errors of the flush and of the compaction. After an error no data is lost.
    ///
    /// # Cost
    /// Rewrites the tables above the bottom level that have keys in `range`, the tables of the
    /// bottom level that they overlap, and the tables of the bottom level from which something can
    /// be removed; a table without overlap is moved and not rewritten. Neighbours of the bottom level
    /// that have less than a quarter of [`table_bytes`](crate::PartitionOptions::table_bytes) each are
    /// merged, each table once; one that has nearly all bytes of such a run stays, from 1 MiB on. In a
    /// partition with compaction filters, MetaHive or large values it rewrites every table that has
    /// keys in `range`. Writers continue during the call.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let events = db.partition("events")?;
    /// events.put("2026-01-01", "it happened")?;
    /// events.delete("2026-01-01")?;
    /// // Frees the space of what was deleted in January.
    /// events.compact("2026-01".."2026-02")?;
    /// assert_eq!(events.len_approx()?, 0);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// users.export(.., "/export")?;
    /// let copy = db.partition("copy")?;
    /// copy.ingest("/export")?;
    /// assert_eq!(copy.get("alice")?.as_deref(), Some(&b"admin"[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn export(&self, range: impl KeyRange, dir: impl AsRef<Path>) -> Result<ExportSummary> {
        self.0.export(range, dir)
    }

    /// [`Partition::export`] with options: for example without the metadata of MetaHive, for a
    /// partition that is to have none.
    ///
    /// # Errors
    /// As for [`Partition::export`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::{ExportOptions, MetaHiveOptions, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().metahive(MetaHiveOptions::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// ledger.put("alice", "12")?;
    /// // For a partition without MetaHive.
    /// let summary = ledger.export_with(.., "/export", ExportOptions::default().hidden_entries(false))?;
    /// assert_eq!(summary.entries, 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let summary = users.export("a".."b", "/export")?;
    /// users.clear()?;
    /// assert_eq!(users.ingest("/export")?.entries, summary.entries);
    /// assert!(users.contains("alice")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let lines = db.partition("lines")?;
    /// let text = "first\nsecond\n";
    /// lines.bulk_load_by(|load| {
    ///     for (number, line) in text.lines().enumerate() {
    ///         load.put((number as u64).to_be_bytes(), line)?;
    ///     }
    ///     Ok::<(), siltstone::Error>(())
    /// })?;
    /// assert_eq!(lines.len_approx()?, 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
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
