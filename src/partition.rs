//! [`Partition`]: a handle to one key space.

mod modify;

use std::fmt;
use std::path::Path;

use lsm_core::db::{Commit, ExportSummary, IngestSummary};
use lsm_core::error::Result;
use lsm_core::options::Durability;
use lsm_core::raw::{RawVersion, Walk};
use lsm_core::read::{Cursor, KeyRange, Keys, Range};
use lsm_core::types::{Gap, Slice};
use metahive::{Explanation, ScrubOptions, ScrubReport, Verified, VerifiedRange};

use crate::options::PartitionOptions;

/// A handle to one partition: a key space with its own tables and options, which other databases
/// call a column family. Cheap to clone; it keeps the database open.
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
    /// [`ErrorKind::ReservedKey`](crate::ErrorKind::ReservedKey), and nothing is written; a dropped
    /// partition; a full disk; a closed or read-only store. After an error the write is not
    /// visible and never returns.
    ///
    /// # Durability
    /// As [`Durability::Os`](crate::Durability::Os): in the kernel once this returns. For more use
    /// [`Batch::commit`](crate::Batch::commit) or [`Db::wait_durable`](crate::Db::wait_durable). In
    /// a partition without a log durable after a flush.
    ///
    /// # Cost
    /// One `write` to the log for the whole group of writers that commit together. The writer
    /// waits while compactions are behind.
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Commit> {
        self.0.put(key, value)
    }

    /// Sets `key` to `value`, as durable as `durability` says.
    ///
    /// # Errors
    /// Those of [`Partition::put`]. With [`Durability::Sync`] also
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) in a partition without a
    /// log, and the error of the sync: then the write is visible, and it is unknown whether it is
    /// durable.
    ///
    /// # Durability
    /// With [`Durability::Sync`] the write, and every logged one before it, is on the device once
    /// this returns.
    ///
    /// # Cost
    /// That of [`Partition::put`], and with [`Durability::Sync`] one sync, shared by all who wait
    /// for one.
    #[inline]
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<Commit> {
        self.0.put_with(key, value, durability)
    }

    /// Sets `key` to `value` as [`Partition::put`] does, but returns an error where that would
    /// wait for compactions.
    ///
    /// # Errors
    /// [`ErrorKind::WouldStall`](crate::ErrorKind::WouldStall) with the reason: nothing was
    /// written. All others as [`Partition::put`].
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

    /// Deletes `key`, as durable as `durability` says. Errors, durability and cost are those of
    /// [`Partition::put_with`].
    #[inline]
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<Commit> {
        self.0.delete_with(key, durability)
    }

    /// Deletes `key` as [`Partition::delete`] does, but returns an error where that would wait for
    /// compactions. Errors as [`Partition::try_put`].
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
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) that names file and key if the way
    /// to the value is damaged; an older value is never returned instead. A dropped partition, a
    /// closed store.
    ///
    /// # Cost
    /// Reads at most one data block per level, if it is not in the cache; takes no lock; allocates
    /// nothing if there is no value.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.0.get(key)
    }

    /// Returns whether `key` exists. Errors and cost are those of [`Partition::get`].
    #[inline]
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.0.contains(key)
    }

    /// Returns the keys and values in `range`, as they are now: later writes are not seen.
    /// Double-ended. Every range type of the standard library is accepted, over anything that is
    /// bytes; a range whose start is above its end is empty.
    ///
    /// # Errors
    /// They are items. The iterator ends after one; a new range may go on behind the damage.
    ///
    /// # Cost
    /// The first item searches every memtable, every level-0 table and one table of each deeper
    /// level; the next ones cost a few comparisons each. Memtables and tables that are read stay
    /// in memory and on disk until the iterator is dropped.
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

    /// Returns all keys. Double-ended. Values are never touched.
    pub fn keys(&self) -> Keys {
        self.0.keys()
    }

    /// Returns a cursor over the partition as it is now. It lends keys and values where
    /// [`Partition::range`] copies them. An error is reported by the first seek.
    pub fn cursor(&self) -> Cursor {
        self.0.cursor()
    }

    /// Returns a cursor over the keys in `range`: every seek and move stays within it, and never
    /// reads what lies behind its ends. Otherwise as [`Partition::cursor`].
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
        self.iter().next().transpose()
    }

    /// Returns the last key and its value; `None` if the partition is empty. Errors and cost are
    /// those of [`Partition::first`].
    pub fn last(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next_back().transpose()
    }

    /// Returns about how many keys there are. Overwritten and deleted entries count until a
    /// compaction meets them: the figure is exact after [`Partition::compact`] over all keys, as
    /// long as nothing is written and no snapshot is held.
    ///
    /// # Errors
    /// A dropped partition, a closed store.
    ///
    /// # Cost
    /// A few additions for each table; reads no file.
    pub fn len_approx(&self) -> Result<u64> {
        self.0.len_approx()
    }
}

/// Options and maintenance.
impl Partition {
    /// Returns the name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the stored options. They name no hooks: given to
    /// [`Db::partition_with`](crate::Db::partition_with) they leave the hooks as they are.
    pub fn options(&self) -> PartitionOptions {
        self.0.options().into()
    }

    /// Writes the memtables of this partition to tables and waits until the tables are installed.
    ///
    /// # Errors
    /// The failure of the flush. Nothing is lost: the data stays in the memtables and in the log.
    ///
    /// # Durability
    /// Every write to this partition that returned before this call is durable, also if the
    /// partition has no log.
    ///
    /// # Cost
    /// One table and one edit of the manifest, if there is data in memory.
    pub fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    /// Flushes the partition and compacts `range` to the bottom level. Deleted and overwritten
    /// data in it is gone afterwards, unless a snapshot needs it.
    ///
    /// # Errors
    /// Those of the flush and of the compaction; the data stays as it was.
    ///
    /// # Cost
    /// Reads and writes every table that has keys in `range`. Writing goes on meanwhile.
    pub fn compact(&self, range: impl KeyRange) -> Result<()> {
        self.0.compact(range)
    }

    /// Writes the keys and values in `range`, as they are now, to finished tables in the folder
    /// `dir`, which must be empty or not exist. [`Partition::ingest`] of any database takes them
    /// in. Writing goes on; later writes are not in the export.
    ///
    /// Hidden entries, as those of MetaHive, travel with the entries that they belong to. MetaHive
    /// verifies every entry on its way and repairs it in the export as a compaction would.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there are files in
    /// `dir`; [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) that names the key if an
    /// entry is damaged beyond repair; the errors of files. What was made is then removed, except
    /// the folder. The leftovers of a crash have no description and are refused as an export.
    ///
    /// # Durability
    /// The export is durable once this returns.
    ///
    /// # Cost
    /// Reads the range and writes it, compressed as deep levels of the partition are.
    pub fn export(&self, range: impl KeyRange, dir: impl AsRef<Path>) -> Result<ExportSummary> {
        self.0.export(range, dir)
    }

    /// Takes in an export of this or another database from the folder `dir`: sets all of its keys
    /// at once, as one operation. It overrides writes that were acknowledged before it began;
    /// writes that begin after it override it. Snapshots and iterators that exist do not see it.
    /// Keys that are not in the export stay as they are.
    ///
    /// Its files are linked where the file system can link. So `dir` must not be written to
    /// afterwards; it may be removed.
    ///
    /// If the exporting partition reserves an ending of keys for hidden entries, this partition
    /// reserves it too from then on, and has the filter that adds them wherever its code is there.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `dir` holds no export,
    /// or one whose rules for keys contradict those of this partition;
    /// [`ErrorKind::ReservedKey`](crate::ErrorKind::ReservedKey) if a key has a reserved ending, on
    /// either side; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if newer code wrote
    /// the export; [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) that names file, offset
    /// and, if it is known, the key; a limit that a key or value exceeds. Nothing is changed then.
    /// If the manifest cannot be written, the export is not visible, and it is unknown whether it
    /// is after the next open.
    ///
    /// # Durability
    /// Durable once this returns, with every logged write before it.
    ///
    /// # Cost
    /// Reads the export once to check it. Flushes the memtables if they hold keys in its range.
    /// Writers wait for one edit of the manifest, and for a flush of what was written into the
    /// range during this call.
    pub fn ingest(&self, dir: impl AsRef<Path>) -> Result<IngestSummary> {
        self.0.ingest(dir)
    }
}

/// Integrity: what MetaHive and the stored entries tell.
impl Partition {
    /// Returns the stretches of keys whose entries are damaged beyond repair. A read in one of them
    /// is an error unless a newer write answers it, and so is a scan across it. Keys are as they
    /// are stored: with a zero byte behind them if the partition takes any key.
    pub fn gaps(&self) -> Vec<Gap> {
        self.0.gaps()
    }

    /// Repairs again what could not be repaired: compacts `range`, so that every block in it is
    /// judged with the sources that there are now, and asks the replica for what stood in gaps.
    /// Returns the gaps that are left there. Whenever a replica is given to a partition with gaps, it
    /// is asked as well.
    ///
    /// # Errors
    /// Those of [`Partition::compact`]; of the replica.
    ///
    /// # Durability
    /// Durable once this returns.
    pub fn repair(&self, range: impl KeyRange) -> Result<Vec<Gap>> {
        self.0.repair(range)
    }

    /// Gives up what is lost in `range`, and returns it. Every older entry there is hidden for
    /// good, so that no old value rises from a deeper level; reads and scans answer again.
    /// Snapshots that were taken before stay refused there.
    ///
    /// # Errors
    /// Those of the manifest; a closed database, a dropped partition.
    ///
    /// # Durability
    /// Durable once this returns.
    pub fn accept_loss(&self, range: impl KeyRange) -> Result<Vec<Gap>> {
        self.0.accept_loss(range)
    }

    /// Returns the value of `key` if it agrees with its metadata, with the reason for trusting it:
    /// [`Verified::by`].
    ///
    /// # Errors
    /// Those of [`Partition::get`]; [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) that
    /// names partition, file, block and key if the entry, or the tombstone by which the key is
    /// absent, disagrees with its metadata, or has none in a sealed table, also after the device
    /// was read again; [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the
    /// partition has no MetaHive; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if
    /// another provider or a newer version sealed the table.
    ///
    /// # Cost
    /// That of a get and a checksum of key and value.
    #[inline]
    pub fn verified_get(&self, key: impl AsRef<[u8]>) -> Result<Option<Verified>> {
        metahive::verified_get(&self.0, key)
    }

    /// Returns the keys and values in `range`, as they are now; each block of a table is compared
    /// with its metadata before anything of it is returned.
    ///
    /// # Errors
    /// Those of [`Partition::verified_get`], as items. The iterator ends after one.
    ///
    /// # Cost
    /// That of a range and a checksum for each entry of the blocks that are read.
    pub fn verified_range(&self, range: impl KeyRange) -> VerifiedRange {
        metahive::verified_range(&self.0, range)
    }

    /// Compares every entry in the tables of the partition with its metadata, on the device.
    ///
    /// # Errors
    /// Damage is in the report and no error. A closed store, a dropped partition, a mark of another
    /// partition; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if a filter other than
    /// MetaHive seals the partition.
    ///
    /// # Cost
    /// Reads all tables of the partition past every cache;
    /// [`ScrubOptions::bytes_per_second`] limits the rate.
    pub fn scrub(&self, options: ScrubOptions<'_>) -> Result<ScrubReport> {
        metahive::scrub(&self.0, options)
    }

    /// Returns every stored version of `key`, where each lies, and what its metadata says of it.
    ///
    /// # Errors
    /// Damage is in the explanation and no error; all others as [`Partition::scrub`].
    ///
    /// # Cost
    /// Reads one block, or a few, of each table whose range covers the key.
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
        metahive::explain(&self.0, key.as_ref())
    }

    /// Returns all memtables and tables of the partition at this moment, for reading entries as
    /// they are stored; see [`raw`](crate::raw).
    ///
    /// # Errors
    /// A closed store, a dropped partition.
    ///
    /// # Cost
    /// Memtables and tables stay in memory and on disk until the walk is dropped.
    pub fn walk(&self) -> Result<Walk> {
        Walk::open(&self.0)
    }

    /// Returns every version of `key`, in the form in which keys are stored, newest first.
    ///
    /// # Errors
    /// A table that cannot be opened, or damage that may hide a version; a closed store, a dropped
    /// partition.
    ///
    /// # Cost
    /// Reads one block, or a few, of each table whose range covers the key.
    pub fn versions(&self, key: impl AsRef<[u8]>) -> Result<Vec<RawVersion>> {
        lsm_core::raw::versions(&self.0, key.as_ref())
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
