//! [`Db`]: an open database.
//!
//! Each call is a few lines over the engine's (design note 8). The documentation of a call stands
//! here, where applications read it.

use std::fmt;
use std::path::Path;

use lsm_core::db::{Durable, Health, VerifyOptions, VerifyReport};
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
    /// database if there is nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another process, or this one, has the
    /// database open; [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) if the manifest or
    /// the log is damaged.
    ///
    /// # Cost
    /// Reads the manifest and the log since the last flushes, and writes what the log held to
    /// tables.
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Db::builder(path).open()
    }

    /// Returns a builder with default options for the database in the folder `path`.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref())
    }

    /// Opens the partition `name`, and creates it with default options if it does not exist. An
    /// existing partition keeps the options and hooks that it was given last.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the partition needs a hook
    /// whose code is not there, see [`Builder::hooks`];
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) or
    /// [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) for a name that is out of the
    /// [limits](crate::limits).
    ///
    /// # Durability
    /// A created partition is durable once this returns.
    ///
    /// # Cost
    /// An edit of the manifest, with its sync, if the partition is created.
    pub fn partition(&self, name: &str) -> Result<Partition> {
        self.0.partition(name).map(Partition)
    }

    /// Opens the partition `name`, and never creates it.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`](crate::ErrorKind::PartitionNotFound) if there is no such
    /// partition; otherwise as [`Db::partition`].
    pub fn open_partition(&self, name: &str) -> Result<Partition> {
        self.0.open_partition(name).map(Partition)
    }

    /// Returns whether there is a partition `name`. It may be dropped by the next moment;
    /// [`Db::open_partition`] checks and opens in one step.
    pub fn has_partition(&self, name: &str) -> bool {
        self.0.has_partition(name)
    }

    /// Opens the partition `name` with `options`: creates it if it does not exist, changes it if
    /// it has other options. Options that are fixed at creation must agree. If `options` name
    /// hooks, the partition has exactly those from then on; otherwise it keeps its own.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a value out of its
    /// range, or a change of an option that is fixed at creation;
    /// [`ErrorKind::ReservedKey`](crate::ErrorKind::ReservedKey) if a hook refuses keys that the
    /// partition has, as MetaHive refuses keys that end in `0x01`. Then delete those keys and call
    /// [`Partition::compact`]; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if another
    /// metadata provider made the metadata that its tables have. After this error all of `options` but the hooks are in force.
    ///
    /// # Durability
    /// The options are durable once this returns.
    ///
    /// # Cost
    /// An edit of the manifest if something changed. Turning MetaHive on reads all keys of the
    /// partition while writers wait.
    pub fn partition_with(&self, name: &str, options: PartitionOptions) -> Result<Partition> {
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

    /// Drops the partition `name` with all of its data. Handles to it are refused from then on;
    /// iterators and snapshots that exist go on reading it.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`](crate::ErrorKind::PartitionNotFound) if there is no such partition.
    ///
    /// # Durability
    /// Durable once this returns. The files go when the last reader of them is gone.
    pub fn drop_partition(&self, name: &str) -> Result<()> {
        self.0.drop_partition(name)
    }

    /// Returns an empty batch.
    #[inline]
    pub fn batch(&self) -> Batch {
        Batch(self.0.batch())
    }

    /// Begins a transaction, which reads the database as it is now.
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

    /// Has the log synced and calls `notice` once every logged operation up to `seq` is on the device,
    /// or once it is known that they cannot be made durable. Returns without waiting, so a program
    /// needs no thread that waits.
    ///
    /// `notice` is called exactly once: on this thread before this returns, if the operations are
    /// durable already, and else on a thread of the database. There it must not block: what it
    /// delays are background work and other notices. Writes that would have to wait are refused in it,
    /// as in an [`EventListener`](crate::EventListener). Closing the database syncs the log first, and
    /// calls the notices that are left.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `seq` was not written
    /// yet, [`ErrorKind::Closed`](crate::ErrorKind::Closed): then `notice` is not called. It is told
    /// the error of a failed sync, after which it is unknown whether the operations are durable.
    ///
    /// # Cost
    /// One sync for all notices and waiters that came while the sync before it ran.
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

    /// Has the log synced and returns a future that is ready once every logged operation up to `seq`
    /// is on the device, or once it is known that they cannot be made durable: [`Db::on_durable`] for
    /// async code, with any runtime. Dropping the future is fine; the log is synced all the same.
    ///
    /// # Errors
    /// The future returns those of [`Db::on_durable`].
    pub fn durable(&self, seq: SeqNo) -> Durable {
        self.0.durable(seq)
    }

    /// Returns the newest operation that is on the device together with every logged one before
    /// it.
    pub fn durable_seq(&self) -> SeqNo {
        self.0.durable_seq()
    }

    /// Returns the newest operation that readers see.
    pub fn visible_seq(&self) -> SeqNo {
        self.0.visible_seq()
    }

    /// Writes the memtables of all partitions to tables and waits until the tables are installed.
    ///
    /// # Errors
    /// The failure of the flush. Nothing is lost: the data stays in the memtables and in the log.
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
    /// The failure of background work, if that is what keeps it from being finished.
    pub fn wait_idle(&self) -> Result<()> {
        self.0.wait_idle()
    }

    /// Copies the database to the folder `dir`, which must be empty or not exist, while writing
    /// goes on. The copy opens as a database. It has every commit that was acknowledged before
    /// this call and is the state after some commit at or after the call; partitions without a log
    /// are in it as of the same moment. It has the same database id.
    ///
    /// The copy shares bytes with this database where the file system can link. It is independent
    /// all the same, because neither ever changes a table.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there are files in
    /// `dir`; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if a partition has a value
    /// store that is not there or cannot be copied; the errors of flushing, of files and of value
    /// stores. What was made is then removed, except the folder. The leftovers of a crash are
    /// refused as a database.
    ///
    /// # Durability
    /// The copy is durable once this returns.
    ///
    /// # Cost
    /// A flush of all partitions, a link or a copy of each table, three syncs. Writers wait only
    /// while memtables are sealed.
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<()> {
        self.0.checkpoint(dir)
    }

    /// Reads every live file and reports all damage: each table with all of its contents, the log
    /// up to its end at the call, the manifest. Reads go past the block cache and, where the
    /// system allows it, past the page cache; bytes that were not synced yet can only come from
    /// the page cache. Writes, flushes and compactions go on meanwhile. Nothing is repaired.
    ///
    /// # Errors
    /// Damage is in the report and no error, and so is a file that cannot be read.
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) for a closed database,
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a mark of another
    /// one.
    ///
    /// # Cost
    /// Reads the whole database; [`VerifyOptions::bytes_per_second`] limits the rate. Holds the
    /// index and the Bloom filter of one table in memory. Tables that become obsolete stay until
    /// they were read.
    pub fn verify(&self, options: VerifyOptions<'_>) -> Result<VerifyReport> {
        self.0.verify(options)
    }

    /// Returns the counters and sizes of the database and of each partition.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Returns whether writes are accepted, whether background work keeps up, and how far each
    /// resource is from its limit.
    pub fn health(&self) -> Health {
        self.0.health()
    }

    /// Closes the database: ends background work, syncs the log and marks its end. Memtables are
    /// not flushed; the next open replays the log. Every other handle is refused from then on with
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    ///
    /// # Errors
    /// The errors that dropping the handles would have hidden.
    ///
    /// # Durability
    /// Every logged write is durable once this returns without an error. What a partition without
    /// a log has in memory is lost; call [`Db::flush`] before.
    pub fn close(self) -> Result<()> {
        self.0.close()
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
