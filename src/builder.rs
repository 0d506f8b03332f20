//! [`Builder`]: options for opening a database, and its file system, clock and listeners.
//!
//! A `Builder` wraps the builder of the engine and registers the hooks of this crate.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use lsm_core::Resources;
use lsm_core::clock::Clock;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::fs::Fs;
use lsm_core::hooks::{EventListener, HookProvider, HookSources, MergeOperator};
use lsm_core::options::Options;
use metahive::MetaHiveOptions;

use crate::db::Db;
use crate::provided::ProvidedHooks;

/// Options for opening a database, and its file system, clock and listeners.
///
/// None of this is stored: each open may choose other values.
///
/// # Examples
/// A database in memory, for a test:
/// ```
/// use std::sync::Arc;
///
/// use siltstone::Db;
/// use siltstone::fs::MemFs;
///
/// # fn main() -> siltstone::Result<()> {
/// let db = Db::builder("/db").fs(Arc::new(MemFs::new())).cache_bytes(1 << 20).open()?;
/// db.partition("users")?.put("alice", "admin")?;
/// db.close()
/// # }
/// ```
#[must_use = "a builder does nothing until it opens"]
pub struct Builder {
    pub(crate) engine: lsm_core::Builder,
    /// The source of the application's own hooks.
    // Both are kept until the open, because the calls that set them may come in any order and one
    // provider answers for both.
    application: Option<Arc<dyn HookProvider>>,
    /// Of each partition that was named.
    metahive: HashMap<String, MetaHiveOptions>,
    operators: Vec<Arc<dyn MergeOperator>>,
}

impl Builder {
    pub(crate) fn new(dir: &Path) -> Builder {
        Builder::of_engine(lsm_core::Db::builder(dir))
    }

    pub(crate) fn of_engine(engine: lsm_core::Builder) -> Builder {
        Builder { engine, application: None, metahive: HashMap::new(), operators: Vec::new() }
    }

    /// Sets all options at once and replaces options that were set before. The page of [`Options`]
    /// has units, defaults and ranges.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Db, Options};
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// let options = Options::new().cache_bytes(64 << 20).compaction_threads(2);
    /// let db = Db::builder("/db").fs(fs).options(options).open()?;
    /// assert_eq!(db.options().compaction_threads, 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn options(mut self, options: Options) -> Builder {
        self.engine = self.engine.options(options);
        self
    }

    /// Sets the size of the block cache in bytes; see [`Options::cache_bytes`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// // In a container, whose limit the default does not know.
    /// let db = Db::builder("/db").fs(fs).cache_bytes(128 << 20).open()?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn cache_bytes(mut self, bytes: u64) -> Builder {
        self.engine = self.engine.cache_bytes(bytes);
        self
    }

    /// Sets the memory for active memtables in bytes; see [`Options::write_buffer_bytes`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// let db = Db::builder("/db").fs(fs).write_buffer_bytes(16 << 20).open()?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn write_buffer_bytes(mut self, bytes: u64) -> Builder {
        self.engine = self.engine.write_buffer_bytes(bytes);
        self
    }

    /// Sets the maximum length of log segments in bytes; see [`Options::wal_segment_bytes`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// let db = Db::builder("/db").fs(fs).wal_segment_bytes(8 << 20).open()?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn wal_segment_bytes(mut self, bytes: u64) -> Builder {
        self.engine = self.engine.wal_segment_bytes(bytes);
        self
    }

    /// Sets the time, in milliseconds, within which a write of
    /// [`Durability::Os`](crate::Durability::Os) reaches the device; see
    /// [`Options::sync_interval_ms`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// // A power cut loses at most a tenth of a second of `Durability::Os`.
    /// let db = Db::builder("/db").fs(fs).sync_interval_ms(100).open()?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn sync_interval_ms(mut self, interval_ms: u64) -> Builder {
        self.engine = self.engine.sync_interval_ms(interval_ms);
        self
    }

    /// Sets the file system that holds the database: [`MemFs`](crate::fs::MemFs) for tests, or an
    /// implementation by the application. Default: [`OsFs`](crate::fs::OsFs).
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use siltstone::Db;
    /// use siltstone::fs::MemFs;
    ///
    /// let fs = Arc::new(MemFs::new());
    /// let db = Db::builder("/db").fs(fs.clone()).open()?;
    /// db.partition("users")?.put("alice", "admin")?;
    /// db.close()?;
    /// // The file system outlives the database.
    /// assert!(Db::builder("/db").fs(fs).open()?.has_partition("users"));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn fs(mut self, fs: Arc<dyn Fs>) -> Builder {
        self.engine = self.engine.fs(fs);
        self
    }

    /// Sets the clock. It times background work; the order of commits does not depend on it. Default:
    /// [`SystemClock`](crate::clock::SystemClock).
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use siltstone::Db;
    /// use siltstone::clock::Clock;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// /// A clock for tests, at a fixed time.
    /// #[derive(Debug)]
    /// struct Stopped;
    ///
    /// impl Clock for Stopped {
    ///     fn now(&self) -> Duration {
    ///         Duration::from_secs(1)
    ///     }
    ///
    ///     fn unix_time(&self) -> Duration {
    ///         Duration::from_secs(1_700_000_000)
    ///     }
    /// }
    ///
    /// let db = Db::builder("/db").fs(fs).clock(Arc::new(Stopped)).open()?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Builder {
        self.engine = self.engine.clock(clock);
        self
    }

    /// Shares cache, memory, threads, rate and open files with other databases; see [`Resources`]. Default: the
    /// database has its own.
    ///
    /// # Examples
    /// ```
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// let resources = siltstone::Resources::new(siltstone::ResourceOptions::new())?;
    /// let db = siltstone::Db::builder("/db").fs(fs).resources(&resources).open()?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn resources(mut self, resources: &Resources) -> Builder {
        self.engine = self.engine.resources(resources);
        self
    }

    /// Adds a listener for background events. May be called several times.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use siltstone::{Db, Event, EventListener};
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// struct Print;
    ///
    /// impl EventListener for Print {
    ///     fn on_event(&self, event: &Event) {
    ///         println!("{event:?}");
    ///     }
    /// }
    ///
    /// let db = Db::builder("/db").fs(fs).listener(Arc::new(Print)).open()?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn listener(mut self, listener: Arc<dyn EventListener>) -> Builder {
        self.engine = self.engine.listener(listener);
        self
    }

    /// Adds a source of the application's own hooks: filters that are not part of this crate,
    /// [`MetaHive`](crate::MetaHive) with a metadata provider of the application, and value stores.
    /// It is asked before those that were added earlier, and before the hooks of this crate. Default: none.
    ///
    /// If the code of a hook is not found, the partition opens without it if the hook allows that
    /// ([`WhenAbsent`](crate::hooks::WhenAbsent)). MetaHive and all compaction filters of this crate
    /// allow it. Flushes and compactions then run without the hook until [`Db::partition_with`]
    /// supplies it, and [`Db::health`] names the hook.
    pub fn hooks(mut self, provider: Arc<dyn HookProvider>) -> Builder {
        self.application = Some(HookSources::before(provider, self.application));
        self
    }

    /// Sets whether the open is read-only. A read-only open creates, changes and removes no file and
    /// starts no background thread. It serves a full disk, a read-only medium, a folder without write
    /// permission, or a copy that must not change. Default: `false`.
    ///
    /// Readers see the same state as after an open for writing: the log is replayed into memory.
    /// Every write, and every call that would write to the folder, fails with
    /// [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly). [`Partition::export`] to another folder
    /// works, so it can copy the data from a full disk.
    ///
    /// Several handles and processes may read at the same time. While a reader has the database open,
    /// an open for writing returns [`ErrorKind::Locked`](crate::ErrorKind::Locked), and vice versa. If
    /// the file `LOCK` is missing or cannot be opened, there is no such protection. If another process
    /// writes then, reads of what it deletes return [`ErrorKind::FileGone`](crate::ErrorKind::FileGone).
    ///
    /// [`Partition::export`]: crate::Partition::export
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Db, ErrorKind};
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// Db::builder("/db").fs(fs.clone()).open()?.partition("users")?.put("alice", "admin")?;
    /// let db = Db::builder("/db").fs(fs).read_only(true).open()?;
    /// let users = db.open_partition("users")?;
    /// assert!(users.contains("alice")?);
    /// assert_eq!(users.put("bob", "author").expect_err("nothing is written").kind(), ErrorKind::ReadOnly);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn read_only(mut self, is_read_only: bool) -> Builder {
        self.engine = self.engine.read_only(is_read_only);
        self
    }

    /// Sets whether the database is opened as with [`read_only`](Self::read_only) while another
    /// process may have it open for writing. The handle shows the state that was committed at the
    /// open, and never changes. Default: `false`. A [`Secondary`](crate::secondary::Secondary)
    /// follows the writer instead.
    ///
    /// The data that the writer has not flushed is replayed into memory, at most three times
    /// [`Options::write_buffer_bytes`](crate::Options::write_buffer_bytes). A lease, a small file
    /// in the folder, keeps the writer from deleting the tables that this handle reads, until the
    /// database is closed. If the folder cannot be written, there is no lease, and reads of files that the
    /// writer has deleted return [`ErrorKind::FileGone`](crate::ErrorKind::FileGone).
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// let writer = Db::builder("/db").fs(fs.clone()).open()?;
    /// writer.partition("users")?.put("alice", "admin")?;
    /// let reader = Db::builder("/db").fs(fs).beside_writer(true).open()?;
    /// assert!(reader.open_partition("users")?.contains("alice")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn beside_writer(mut self, is_beside: bool) -> Builder {
        self.engine = self.engine.beside_writer(is_beside);
        self
    }

    /// Sets whether the open takes the database over from a process on this machine that has it
    /// open for writing. That process is fenced, as by [`Db::promote`], which does the same for a
    /// secondary. Default: `false`; [`open`](Self::open) then returns
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked). A read-only open takes nothing over:
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument).
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Db, ErrorKind};
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// let old = Db::builder("/db").fs(fs.clone()).open()?;
    /// let users = old.partition("users")?;
    /// users.put("alice", "admin")?;
    /// let new = Db::builder("/db").fs(fs).take_over(true).open()?;
    /// assert!(new.partition("users")?.contains("alice")?);
    /// assert_eq!(users.put("bob", "author").expect_err("it is fenced").kind(), ErrorKind::Fenced);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn take_over(mut self, takes_over: bool) -> Builder {
        self.engine = self.engine.take_over(takes_over);
        self
    }

    /// Sets whether [`open`](Self::open) makes the folder and the database if they do not exist. Default:
    /// `true`. With `false` it returns [`ErrorKind::Io`](crate::ErrorKind::Io) with
    /// [`NotFound`](std::io::ErrorKind::NotFound), and makes nothing: neither the folder nor a file. An open
    /// that is read-only never makes a database.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// // A typing error in the path makes no empty database.
    /// let refused = Db::builder("/bd").fs(fs).create_if_missing(false).open().expect_err("no database");
    /// let cause = refused.io_source().map(std::io::Error::kind);
    /// assert_eq!(cause, Some(std::io::ErrorKind::NotFound));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn create_if_missing(mut self, creates: bool) -> Builder {
        self.engine = self.engine.create_if_missing(creates);
        self
    }

    /// Sets whether [`open`](Self::open) refuses a folder that has a database. Default: `false`. With `true` it
    /// returns [`ErrorKind::Io`](crate::ErrorKind::Io) with
    /// [`AlreadyExists`](std::io::ErrorKind::AlreadyExists), and changes nothing; a process that writes the
    /// database is not fenced, either. An open that is read-only ignores this option.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// Db::builder("/db").fs(fs.clone()).error_if_exists(true).open()?.close()?;
    /// assert!(Db::builder("/db").fs(fs).error_if_exists(true).open().is_err());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn error_if_exists(mut self, refuses: bool) -> Builder {
        self.engine = self.engine.error_if_exists(refuses);
        self
    }

    /// Supplies the parts of the MetaHive of `partition` that are not stored: replica, error handler,
    /// repair options, and the code of a metadata provider. They are available before the first
    /// compaction, which may run before a call of [`Db::partition_with`] could supply them.
    ///
    /// This call has no effect on a partition without MetaHive and does not turn MetaHive on:
    /// [`PartitionOptions::metahive`](crate::PartitionOptions::metahive) does that. A hook that
    /// [`hooks`](Self::hooks) provides takes precedence. Default: repairs run without these parts.
    ///
    /// [`open`](Self::open) returns [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if
    /// another metadata provider made the metadata of the partition.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Db, MetaHiveOptions};
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// // Usually with a replica or an error handler.
    /// let db = Db::builder("/db").fs(fs).metahive("ledger", MetaHiveOptions::default()).open()?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn metahive(mut self, partition: &str, options: MetaHiveOptions) -> Builder {
        // By name, because the partition may not exist yet, and its id is known to the database
        // alone.
        self.metahive.insert(partition.to_owned(), options);
        self
    }

    /// Supplies a merge operator of the application. May be called several times. Partitions whose stored name and
    /// parameters are those of the operator use it; a name alone turns nothing on:
    /// [`PartitionOptions::merge_operator`](crate::PartitionOptions::merge_operator) does that. The operators of
    /// [`operators`](crate::operators) need no supply.
    ///
    /// Without the code of its operator a partition opens. Its operands stay, flushes and compactions keep them, and
    /// reads and merges of their keys return [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use siltstone::operators::MergeOperator;
    /// use siltstone::{Db, PartitionOptions, Result};
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// /// The longest text.
    /// struct Longest;
    ///
    /// impl MergeOperator for Longest {
    ///     fn name(&self) -> &str {
    ///         "longest"
    ///     }
    ///
    ///     fn merge(&self, _key: &[u8], value: &mut Vec<u8>, operand: &[u8]) -> Result<()> {
    ///         if operand.len() > value.len() {
    ///             value.clear();
    ///             value.extend_from_slice(operand);
    ///         }
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let db = Db::builder("/db").fs(fs.clone()).open()?;
    /// let options = PartitionOptions::new().merge_operator(Arc::new(Longest));
    /// db.partition_with("names", options)?.merge("user", "bob")?;
    /// db.close()?;
    /// let db = Db::builder("/db").fs(fs).merge_operator(Arc::new(Longest)).open()?;
    /// let names = db.partition("names")?;
    /// names.merge("user", "robert")?;
    /// assert_eq!(names.get("user")?.as_deref(), Some(&b"robert"[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn merge_operator(mut self, operator: Arc<dyn MergeOperator>) -> Builder {
        self.operators.push(operator);
        self
    }

    /// Opens the database. Creates the folder and the database if they do not exist, unless
    /// [`create_if_missing`](Self::create_if_missing) is off.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for an option out of its
    /// range; otherwise as [`Db::open`]. With [`Builder::read_only`] also:
    /// [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) if the log needs more memory
    /// than three times [`Options::write_buffer_bytes`]; [`ErrorKind::Io`](crate::ErrorKind::Io) with
    /// [`NotFound`](std::io::ErrorKind::NotFound) if there is no database. Those of
    /// [`create_if_missing`](Self::create_if_missing) and [`error_if_exists`](Self::error_if_exists).
    ///
    /// # Cost
    /// As [`Db::open`].
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// let db = Db::builder("/db").fs(fs).cache_bytes(64 << 20).open()?;
    /// db.partition("users")?.put("alice", "admin")?;
    /// db.close()?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn open(self) -> Result<Db> {
        self.into_engine().open().map(Db).map_err(with_advice)
    }

    /// The builder of the engine, with all hooks.
    pub(crate) fn into_engine(self) -> lsm_core::Builder {
        // Also for an application without own hooks: a partition names MetaHive, expiry and large
        // values like any hook, and without this an open would not find their code.
        let own = Arc::new(ProvidedHooks { metahive: self.metahive, operators: self.operators });
        // The application first, also for names of siltstone: it may have a MetaHive with an
        // own provider, which has the same name.
        self.engine.hooks(match self.application {
            Some(first) => HookSources::before(first, Some(own)),
            None => own,
        })
    }
}

/// Names the way out of a database that is refused as damaged.
#[cold]
fn with_advice(error: Error) -> Error {
    if !error.is_corruption() {
        return error;
    }
    let advice =
        "the database does not open; `siltstone repair` makes a new one of what can be read";
    Error::because(ErrorKind::Corruption, advice, error)
}
