//! [`Db`]: the engine's database, whose partitions are those of this crate.
//!
//! Shadowed here is what returns or takes a type of this crate; all else is the engine's, through
//! `Deref` (design note 6).

use std::fmt;
use std::ops::Deref;
use std::path::Path;

use lsm_core::error::Result;

use crate::builder::Builder;
use crate::options::PartitionOptions;
use crate::partition::Partition;

/// An open database. Cheap to clone; all clones are the same database.
///
/// Dropping the last clone, partition, snapshot and iterator closes it, as [`Db::close`] does.
///
/// What is not listed here is in [`lsm_core::Db`], to which this dereferences: batches, snapshots,
/// flushing, checkpoints, verifying, statistics.
#[derive(Clone)]
pub struct Db(pub(crate) lsm_core::Db);

impl Db {
    /// Opens the database in the folder `path` with default options; creates both if there is
    /// nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another process, or this one, has it
    /// open; corruption if manifest or log are damaged.
    ///
    /// # Cost
    /// Reads the manifest and the log since the last flushes, and writes what the log held to
    /// tables.
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Db::builder(path).open()
    }

    /// Options for opening the database in the folder `path`.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref())
    }

    /// The partition `name`, made with default options if it does not exist. One that exists has
    /// the options and hooks that it was given last.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the partition needs a hook
    /// whose code is not there; see [`Builder::hooks`].
    pub fn partition(&self, name: &str) -> Result<Partition> {
        self.0.partition(name).map(Partition)
    }

    /// The partition `name` with these options: made if it does not exist, changed if it has
    /// others. Options that are fixed at creation must agree. If they name hooks, those are all
    /// that the partition has from then on; if they name none, it keeps its own.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for what is out of range
    /// or fixed when a partition is made;
    /// [`ErrorKind::ReservedKey`](crate::ErrorKind::ReservedKey) if a hook refuses keys that the
    /// partition has, as MetaHive does those that end in `0x01`; then delete them and
    /// [`compact`](lsm_core::Partition::compact). Of `options` all but the hooks are in force
    /// after this error.
    ///
    /// # Cost
    /// One edit of the manifest if something changed. Turning MetaHive on reads all keys of the
    /// partition, while writers wait.
    pub fn partition_with(&self, name: &str, options: PartitionOptions) -> Result<Partition> {
        let (stored, hooks) = options.into_parts();
        self.0.partition_with(name, stored, hooks).map(Partition)
    }

    /// Closes the database: background work ends, the log is synced and ended cleanly. Memtables
    /// are not flushed; the next open replays them. Every other handle refuses from then on.
    ///
    /// # Errors
    /// What dropping the handles could not tell.
    pub fn close(self) -> Result<()> {
        self.0.close()
    }
}

impl Deref for Db {
    type Target = lsm_core::Db;

    #[inline]
    fn deref(&self) -> &lsm_core::Db {
        &self.0
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
