//! [`Db`]: an open database.
//!
//! Each method calls the engine's method of the same name (design note 8). The documentation of a
//! method is where applications read it: in this file and in its folder.

mod changes;
mod durable;
mod inspect;
mod streams;
mod transact;

use std::fmt;
use std::path::Path;

use lsm_core::error::Result;
use lsm_core::options::Options;
use lsm_core::types::SeqNo;

use crate::batch::Batch;
use crate::builder::Builder;
use crate::options::PartitionOptions;
use crate::partition::Partition;
use crate::snapshot::Snapshot;
use crate::transaction::Transaction;

pub use transact::TransactOptions;

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
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let db = Db::open(path)?;
    /// db.partition("users")?.put("alice", "admin")?;
    /// db.close()?;
    /// assert!(Db::open(path)?.partition("users")?.contains("alice")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        // Through the builder, which adds the hooks of this crate. The engine's own open would find
        // none.
        Db::builder(path).open()
    }

    /// Returns a builder with default options for the database in the folder `path`.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let db = Db::builder(path).cache_bytes(64 << 20).write_buffer_bytes(16 << 20).open()?;
    /// assert_eq!(db.options().cache_bytes, 64 << 20);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref())
    }

    /// Opens the partition `name`, and creates it with default options if it does not exist. An
    /// existing partition keeps its stored options and hooks.
    ///
    /// The partition `default` exists in every database and cannot be dropped: it is a place for programs that
    /// need one key space only, and for the command without `--partition`. It costs nothing while it is empty, and
    /// every other name serves as well.
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
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// assert_eq!(db.partition("users")?.get("alice")?.as_deref(), Some(&b"admin"[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn partition(&self, name: &str) -> Result<Partition> {
        self.0.partition(name).map(Partition)
    }

    /// Opens the partition `name`. Does not create it.
    ///
    /// # Errors
    /// [`ErrorKind::PartitionNotFound`](crate::ErrorKind::PartitionNotFound) if there is no such
    /// partition; otherwise as [`Db::partition`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::ErrorKind;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let missing = db.open_partition("usres").expect_err("a typing error");
    /// assert_eq!(missing.kind(), ErrorKind::PartitionNotFound);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn open_partition(&self, name: &str) -> Result<Partition> {
        self.0.open_partition(name).map(Partition)
    }

    /// Returns whether there is a partition `name`. Another thread may drop it right after this call;
    /// [`Db::open_partition`] checks and opens in one step.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// db.partition("users")?;
    /// assert!(db.has_partition("users") && !db.has_partition("posts"));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn has_partition(&self, name: &str) -> bool {
        self.0.has_partition(name)
    }

    /// Opens the partition `name` with `options`: creates it if it does not exist, changes it if
    /// it has other options. Options that are not set count with their defaults: to change one, begin with
    /// [`Partition::options`]. Filters that `options` name replace all filters of the partition.
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
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Compression, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().compression(Compression::None);
    /// db.partition_with("photos", options)?;
    /// // The options are stored, so the name is enough later.
    /// assert_eq!(db.partition("photos")?.options().get_compression(), Compression::None);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn partition_with(&self, name: &str, options: PartitionOptions) -> Result<Partition> {
        // Before the engine is asked, so that options of large values out of their range change
        // nothing.
        let (stored, hooks) = options.into_parts()?;
        self.0.partition_with(name, stored, hooks).map(Partition)
    }

    /// Returns the options with which this handle opened the database.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// assert_eq!(db.options().sync_interval_ms, 1000);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn options(&self) -> &Options {
        self.0.options()
    }

    /// Changes [`Options::background_bytes_per_second`], also for flushes and compactions that run now. Until
    /// the database is closed: an option of the next open is independent of it. 0 is no limit.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) below 64 KiB a second;
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) after a close.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// // At night the disk belongs to compactions.
    /// db.set_background_bytes_per_second(0)?;
    /// // During the day most of it is for others.
    /// db.set_background_bytes_per_second(20 << 20)?;
    /// assert_eq!(db.stats().background_bytes_per_second, 20 << 20);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn set_background_bytes_per_second(&self, bytes: u64) -> Result<()> {
        self.0.set_background_bytes_per_second(bytes)
    }

    /// Returns the names of all partitions, in order. [`default`](Db::partition) is always one of them.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// db.partition("users")?;
    /// db.partition("posts")?;
    /// assert_eq!(db.partition_names(), ["default", "posts", "users"]);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use siltstone::ErrorKind;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let cache = db.partition("cache")?;
    /// cache.put("key", "value")?;
    /// db.drop_partition("cache")?;
    /// let gone = cache.get("key").expect_err("the handle outlives its partition");
    /// assert_eq!(gone.kind(), ErrorKind::PartitionNotFound);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn drop_partition(&self, name: &str) -> Result<()> {
        self.0.drop_partition(name)
    }

    /// Returns an empty batch.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let posts = db.partition("posts")?;
    /// db.batch()
    ///     .put(&users, "bob", "author")
    ///     .put(&posts, "bob/1", "hello")
    ///     .delete(&users, "alice")
    ///     .commit(Durability::Sync)?;
    /// assert!(posts.contains("bob/1")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn batch(&self) -> Batch {
        Batch(self.0.batch())
    }

    /// Begins a transaction, which reads the current state of the database. [`Db::transact`] also commits it, and
    /// repeats it after conflicts.
    ///
    /// # Cost
    /// That of a snapshot, which the transaction holds until it ends.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let mut transaction = db.transaction();
    /// if !transaction.contains(&users, "alice")? {
    ///     transaction.put(&users, "alice", "admin");
    /// }
    /// // Fails if another writer has added alice meanwhile.
    /// transaction.commit(Durability::Os)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn transaction(&self) -> Transaction {
        Transaction(self.0.transaction())
    }

    /// Takes a snapshot of the whole database.
    ///
    /// # Cost
    /// Pins no memory and no file. Compactions keep every version that the snapshot sees until its
    /// last clone is dropped.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let before = db.snapshot();
    /// users.delete("alice")?;
    /// assert!(before.contains(&users, "alice")? && !users.contains("alice")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.snapshot())
    }

    /// Returns the sequence number of the newest operation that readers see.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let commit = db.partition("users")?.put("alice", "admin")?;
    /// assert_eq!(db.visible_seq(), commit.seq);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn visible_seq(&self) -> SeqNo {
        self.0.visible_seq()
    }

    /// Returns the sequence number of the newest operation that readers see, after those that the log has and that readers
    /// are about to see. Readers of another file system, such as those of a bucket, may see such an operation before
    /// [`Db::visible_seq`] has it.
    ///
    /// # Cost
    /// Waits for the commit that is being written, if there is one.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let commit = db.partition("users")?.put("alice", "admin")?;
    /// assert_eq!(db.newest_seq(), commit.seq);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn newest_seq(&self) -> SeqNo {
        self.0.newest_seq()
    }

    /// As [`Db::newest_seq`], without waiting: `None` while a commit is being written.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// assert_eq!(db.try_newest_seq(), Some(db.newest_seq()));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn try_newest_seq(&self) -> Option<SeqNo> {
        self.0.try_newest_seq()
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
    ///
    /// # Examples
    /// ```
    /// use siltstone::PartitionOptions;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// // Without a log, a write is durable after a flush.
    /// let cache = db.partition_with("cache", PartitionOptions::new().logged(false))?;
    /// cache.put("key", "value")?;
    /// db.flush()?;
    /// assert_eq!(cache.stats().levels[0].table_count, 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    /// Waits until no background work is left.
    ///
    /// # Errors
    /// The failure of background work, if it prevents the work from finishing.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.bulk_load((0..1000u32).map(|n| (n.to_be_bytes(), "user")))?;
    /// // No flush or compaction runs when this returns, for example before a measurement.
    /// db.wait_idle()?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn wait_idle(&self) -> Result<()> {
        self.0.wait_idle()
    }

    /// Copies the database to the folder `dir`, which must be empty or not exist. Writers continue
    /// during the call. The copy opens as a database with the same database id. It contains every
    /// commit that returned before this call. Its content is the state after the commit whose sequence
    /// number is returned; partitions without a log have the state of the same moment.
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
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let db = Db::open(path.join("data"))?;
    /// db.partition("users")?.put("alice", "admin")?;
    /// db.checkpoint(path.join("monday"))?;
    /// db.partition("users")?.delete("alice")?;
    ///
    /// let monday = Db::open(path.join("monday"))?;
    /// assert!(monday.partition("users")?.contains("alice")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<SeqNo> {
        self.0.checkpoint(dir)
    }

    /// Closes the database: flushes the partitions without a log and those with at least 1 MiB in memory, ends background
    /// work, syncs the log and marks its end. The next open replays the rest from the log. Calls on all other handles then
    /// return [`ErrorKind::Closed`](crate::ErrorKind::Closed). In an [`EventListener`](crate::EventListener) of this database
    /// it returns at once if another close is under way, which waits for the listener: then it promises nothing.
    ///
    /// # Errors
    /// The errors of this work. Dropping the last handle does the same work and hides its errors.
    ///
    /// # Durability
    /// Every write is durable once this returns without an error, also in partitions without a log.
    ///
    /// # Cost
    /// For each partition that is flushed: a table, its syncs and an edit of the manifest. In
    /// addition, two syncs of the log and an edit. With [`Resources`](crate::Resources), a look at each block of the
    /// shared cache.
    ///
    /// # Examples
    /// ```
    /// use siltstone::ErrorKind;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// // Reports an error that a drop of the handles would hide.
    /// db.close()?;
    /// assert_eq!(users.get("alice").expect_err("it is closed").kind(), ErrorKind::Closed);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn close(self) -> Result<()> {
        self.0.close()
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
