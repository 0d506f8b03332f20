//! [`Db`]: an open database.
//!
//! Each method calls the engine's method of the same name (design note 8). The documentation of a
//! method is in this file, where applications read it.

use std::fmt;
use std::path::Path;

use lsm_core::db::{Durable, Health, LeaseHolder, VerifyOptions, VerifyReport};
use lsm_core::error::Result;
use lsm_core::options::Options;
use lsm_core::stats::Stats;
use lsm_core::types::SeqNo;

use crate::batch::Batch;
use crate::builder::Builder;
use crate::options::PartitionOptions;
use crate::partition::Partition;
use crate::snapshot::Snapshot;
use crate::transaction::Transaction;

/// An open database. Cheap to clone; all clones are the same database.
///
/// Partitions, snapshots, cursors and iterators keep the database open as well. Dropping the last
/// of all handles closes it, as [`Db::close`] does.
#[derive(Clone)]
pub struct Db(pub(crate) lsm_core::Db);

impl Db {
    /// Opens the database in the folder `path` with default options. Creates the folder and the
    /// database if they do not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another process, or this one, has the
    /// database open; [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) if the manifest or
    /// the log is damaged.
    ///
    /// # Cost
    /// Reads the manifest and the part of the log that is not in tables, and writes that part to
    /// tables.
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        // Through the builder, which adds the hooks of this crate. The engine's own open would find
        // none.
        Db::builder(path).open()
    }

    /// Returns a builder with default options for the database in the folder `path`.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref())
    }

    /// Opens the partition `name`, and creates it with default options if it does not exist. An
    /// existing partition keeps its stored options and hooks.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the partition needs a hook
    /// whose code is missing, see [`Builder::hooks`];
    /// [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) for a name or a number of partitions
    /// outside the [limits](crate::limits); [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly) if it would
    /// have to be created in a database that was opened read-only.
    ///
    /// # Durability
    /// A created partition is durable once this returns.
    ///
    /// # Cost
    /// An edit of the manifest, with its sync, if the partition is created.
    pub fn partition(&self, name: &str) -> Result<Partition> {
        self.0.partition(name).map(Partition)
    }

    /// Opens the partition `name`. Does not create it.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`](crate::ErrorKind::PartitionNotFound) if there is no such
    /// partition; otherwise as [`Db::partition`].
    pub fn open_partition(&self, name: &str) -> Result<Partition> {
        self.0.open_partition(name).map(Partition)
    }

    /// Returns whether there is a partition `name`. Another thread may drop it right after this call;
    /// [`Db::open_partition`] checks and opens in one step.
    pub fn has_partition(&self, name: &str) -> bool {
        self.0.has_partition(name)
    }

    /// Opens the partition `name` with `options`: creates it if it does not exist, changes it if
    /// it has other options. Options that are fixed at creation must agree. If `options` name
    /// hooks, they replace all hooks of the partition; otherwise the partition keeps its hooks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a value out of its
    /// range, or a change of an option that is fixed at creation.
    ///
    /// [`ErrorKind::ReservedKey`](crate::ErrorKind::ReservedKey) if a hook refuses keys that the
    /// partition has, as MetaHive refuses keys that end in `0x01`. Delete those keys, call
    /// [`Partition::compact`], and try again.
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if another metadata provider made
    /// the metadata in the tables.
    ///
    /// After these errors nothing of `options` is in effect. If the manifest cannot be written, nothing is
    /// in effect either until the database is closed; the next open may find the change.
    ///
    /// # Durability
    /// Options and hooks are durable together, and take effect, once this returns. A flush or compaction
    /// that began with other hooks installs nothing and is run again.
    ///
    /// # Cost
    /// An edit of the manifest if something changed. Turning MetaHive on reads all keys of the
    /// partition while writers wait.
    pub fn partition_with(&self, name: &str, options: PartitionOptions) -> Result<Partition> {
        // Before the engine is asked, so that options of large values out of their range change
        // nothing.
        let (stored, hooks) = options.into_parts()?;
        self.0.partition_with(name, stored, hooks).map(Partition)
    }

    /// Returns the options with which this handle opened the database.
    pub fn options(&self) -> &Options {
        self.0.options()
    }

    /// Returns the names of all partitions, in order.
    pub fn partition_names(&self) -> Vec<String> {
        self.0.partition_names()
    }

    /// Drops the partition `name` with all of its data. Calls on its handles return an error from
    /// then on; existing iterators and snapshots can still read it.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`](crate::ErrorKind::PartitionNotFound) if there is no such partition;
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for the partition `default`, which
    /// always exists: [`Partition::clear`] empties it.
    ///
    /// # Durability
    /// Durable once this returns. The files are deleted after their last reader ends.
    ///
    /// # Cost
    /// One edit of the manifest. A background thread takes the blocks of the tables out of the cache.
    pub fn drop_partition(&self, name: &str) -> Result<()> {
        self.0.drop_partition(name)
    }

    /// Returns an empty batch.
    #[inline]
    pub fn batch(&self) -> Batch {
        Batch(self.0.batch())
    }

    /// Begins a transaction, which reads the current state of the database.
    ///
    /// # Cost
    /// That of a snapshot, which the transaction holds until it ends.
    pub fn transaction(&self) -> Transaction {
        Transaction(self.0.transaction())
    }

    /// Takes a snapshot of the whole database.
    ///
    /// # Cost
    /// Pins no memory and no file. Compactions keep every version that the snapshot sees until its
    /// last clone is dropped.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.snapshot())
    }

    /// Waits until every logged operation up to `seq` is on the device, and syncs the log if
    /// needed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `seq` was not written
    /// yet; the error of the sync, after which it is unknown whether the operations are durable.
    ///
    /// # Cost
    /// One sync, shared by all who wait; none if a sync has passed `seq` already.
    pub fn wait_durable(&self, seq: SeqNo) -> Result<()> {
        self.0.wait_durable(seq)
    }

    /// Requests a sync of the log and calls `notice` when every logged operation up to `seq` is on the
    /// device, or when the sync has failed. Returns without waiting, so the program needs no waiting
    /// thread.
    ///
    /// `notice` is called exactly once. If the operations are durable already, it is called on this
    /// thread before this method returns; otherwise it is called on a thread of the database. There it
    /// must not block, because it would delay background work and other notices. A write that would
    /// have to wait fails inside `notice`, as in an [`EventListener`](crate::EventListener). Closing the
    /// database syncs the log first, and then calls the remaining notices.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `seq` was not written
    /// yet; [`ErrorKind::Closed`](crate::ErrorKind::Closed). In both cases `notice` is not called.
    /// `notice` receives the error of a failed sync; then it is unknown whether the operations are
    /// durable.
    ///
    /// # Cost
    /// One sync for all notices and waiters that arrived during the previous sync.
    ///
    /// # Examples
    /// ```
    /// use std::sync::mpsc;
    ///
    /// # use siltstone::Db;
    /// # fn main() -> siltstone::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary folder");
    /// # let db = Db::open(dir.path())?;
    /// let events = db.partition("events")?;
    /// let (acknowledge, acknowledged) = mpsc::channel();
    /// for n in 0..3_u32 {
    ///     let commit = events.put(n.to_be_bytes(), "it happened")?;
    ///     let acknowledge = acknowledge.clone();
    ///     db.on_durable(commit.seq, move |outcome| {
    ///         let _ = acknowledge.send((n, outcome));
    ///     })?;
    /// }
    /// drop(acknowledge);
    /// assert_eq!(acknowledged.iter().filter(|(_, outcome)| outcome.is_ok()).count(), 3);
    /// # db.close()
    /// # }
    /// ```
    pub fn on_durable(
        &self,
        seq: SeqNo,
        notice: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<()> {
        self.0.on_durable(seq, notice)
    }

    /// Requests a sync of the log and returns a future that is ready when every logged operation up to
    /// `seq` is on the device, or when the sync has failed. It is [`Db::on_durable`] for async code and
    /// works with any runtime. Dropping the future does not cancel the sync.
    ///
    /// # Errors
    /// The future returns the errors of [`Db::on_durable`].
    pub fn durable(&self, seq: SeqNo) -> Durable {
        self.0.durable(seq)
    }

    /// Returns the sequence number through which every logged operation is on the device.
    pub fn durable_seq(&self) -> SeqNo {
        self.0.durable_seq()
    }

    /// Returns whether another process has taken the database over, by a promotion or an explicit
    /// take-over: then no write of this handle succeeds any more
    /// ([`ErrorKind::Fenced`](crate::ErrorKind::Fenced)). `false` does not promise that the next
    /// write succeeds.
    ///
    /// # Cost
    /// One load from memory.
    pub fn is_fenced(&self) -> bool {
        self.0.is_fenced()
    }

    /// Returns the sequence number of the newest operation that readers see.
    pub fn visible_seq(&self) -> SeqNo {
        self.0.visible_seq()
    }

    /// Writes the memtables of all partitions to tables and waits until the tables are installed.
    ///
    /// # Errors
    /// The failure of the flush. The data stays in the memtables and in the log.
    ///
    /// # Durability
    /// Every write that returned before this call is durable, also in partitions without a log.
    ///
    /// # Cost
    /// One table and one edit of the manifest for each partition with data in memory.
    pub fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    /// Waits until no background work is left.
    ///
    /// # Errors
    /// The failure of background work, if it prevents the work from finishing.
    pub fn wait_idle(&self) -> Result<()> {
        self.0.wait_idle()
    }

    /// Copies the database to the folder `dir`, which must be empty or not exist. Writers continue
    /// during the call. The copy opens as a database with the same database id. It contains every
    /// commit that returned before this call. Its content is a prefix of the commit history;
    /// partitions without a log have the state of the same moment.
    ///
    /// The copy shares bytes with this database if the file system supports hard links. It is
    /// independent of this database, because no database ever changes a table.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there are files in
    /// `dir`; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if a partition has a value
    /// store whose code is missing or that cannot be copied; the errors of the flush, of files and of
    /// value stores. After an error, the files of the copy are removed, the folder stays. A copy that
    /// a crash left incomplete does not open as a database.
    ///
    /// # Durability
    /// The copy is durable once this returns.
    ///
    /// # Cost
    /// A flush of all partitions, a link or a copy of each table, and three syncs. Writers wait only
    /// while memtables are sealed.
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<()> {
        self.0.checkpoint(dir)
    }

    /// Reads every live file and reports all damage. It reads each table with all of its contents, the
    /// log up to its end at the time of the call, and the manifest. Reads bypass the block cache and,
    /// if the system allows it, the page cache; bytes that are not synced yet come from the page cache.
    /// Writes, flushes and compactions continue during the call. Nothing is repaired.
    ///
    /// # Errors
    /// Damage and unreadable files are in the report; they are not errors of this call.
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) for a closed database;
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a mark of another
    /// database.
    ///
    /// # Cost
    /// Reads the whole database; [`VerifyOptions::bytes_per_second`] limits the rate. Holds the
    /// index and the Bloom filter of one table in memory. A table that becomes obsolete stays until
    /// this call has read it.
    pub fn verify(&self, options: VerifyOptions<'_>) -> Result<VerifyReport> {
        self.0.verify(options)
    }

    /// Returns the secondaries that hold files of the database, as far as they are known: the
    /// process of each and the age of the oldest state that it reads. [`Stats::leased_bytes`] is
    /// the size of the files that they hold together, and
    /// [`Options::leased_bytes_max`](crate::Options::leased_bytes_max) bounds it.
    ///
    /// # Errors
    /// Those of the file system; a closed database.
    ///
    /// # Cost
    /// Lists the folder and reads a small file for each secondary.
    pub fn lease_holders(&self) -> Result<Vec<LeaseHolder>> {
        self.0.lease_holders()
    }

    /// Returns the counters and sizes of the database and of each partition.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Returns the health of the database: whether it accepts writes, whether background work keeps
    /// up, and how far each resource is from its limit.
    pub fn health(&self) -> Health {
        self.0.health()
    }

    /// Confirms that the calendar is right: entries expire by it again.
    ///
    /// A calendar that jumps by more than a minute is not believed for an hour. Meanwhile entries
    /// expire by the time that the monotonic clock expects, and [`Db::health`] reports the jump
    /// (`Health::clock_jump`). Call this if the jump is right. Without a jump it has no effect.
    pub fn confirm_clock(&self) {
        self.0.confirm_clock();
    }

    /// Closes the database: flushes the partitions without a log and those with at least 1 MiB in
    /// memory, ends background work, syncs the log and marks its end. The next open replays the rest
    /// from the log. Calls on all other handles then return
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    ///
    /// # Errors
    /// The errors of this work. Dropping the last handle does the same work and hides its errors.
    ///
    /// # Durability
    /// Every write is durable once this returns without an error, also in partitions without a log.
    ///
    /// # Cost
    /// For each partition that is flushed: a table, its syncs and an edit of the manifest. In
    /// addition, two syncs of the log and an edit.
    pub fn close(self) -> Result<()> {
        self.0.close()
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
