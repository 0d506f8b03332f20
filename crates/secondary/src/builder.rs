//! [`Builder`]: from a folder to a [`Secondary`].

use std::path::Path;
use std::sync::Arc;

use lsm_core::Resources;
use lsm_core::clock::Clock;
use lsm_core::error::Result;
use lsm_core::follow::FollowOptions;
use lsm_core::fs::Fs;
use lsm_core::hooks::{HookProvider, HookSources, MergeOperator, SuppliedOperator};
use lsm_core::options::Options;

use crate::secondary::Secondary;
#[cfg(doc)]
use crate::{ErrorKind, Level, OnUnmet};

/// Options for opening a [`Secondary`], and its file system, clock and hooks. None of them is stored.
#[must_use = "a builder does nothing until it opens"]
pub struct Builder(FollowOptions);

impl Secondary {
    /// Opens the database in the folder `path`, which another process may have open.
    ///
    /// # Errors
    /// As [`Builder::open`].
    ///
    /// # Examples
    /// ```
    /// use secondary::{Level, Secondary};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// # let primary = lsm_core::Db::open(path)?;
    /// # primary.partition("users")?.put("alice", "admin")?;
    /// let secondary = Secondary::open(path)?;
    /// assert!(secondary.partition("users")?.at(Level::Strong)?.get("alice")?.is_some());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Secondary> {
        Secondary::builder(path).open()
    }

    /// Returns options for opening the database in the folder `path`.
    ///
    /// # Examples
    /// ```
    /// use secondary::Secondary;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// let secondary = Secondary::builder("/db").fs(fs).memtable_bytes_max(256 << 20).open()?;
    /// # drop(secondary);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref())
    }
}

impl Builder {
    pub(crate) fn new(path: &Path) -> Builder {
        Builder(FollowOptions::new(path))
    }

    /// Sets the file system that holds the database, for tests and other media. Default: that of the
    /// operating system.
    pub fn fs(mut self, fs: Arc<dyn Fs>) -> Builder {
        self.0.fs = fs;
        self
    }

    /// Sets the clock, which times waits, lags and the lease. Default: the monotonic clock of the machine.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Builder {
        // The engine uses it as well, for the beats of its lease. With two clocks a test could not
        // step a secondary through the time of its primary.
        self.0.clock = clock;
        self
    }

    /// Adds a source of the code of the hooks that partitions name. It is asked before those that were
    /// added earlier. Default: none; with `Db::secondary_builder` of the crate `siltstone`, its hooks.
    pub fn hooks(mut self, provider: Arc<dyn HookProvider>) -> Builder {
        // Added, not replaced: an application that names a filter of its own would lose the hooks
        // of siltstone, and could open no partition with large values.
        self.0.hooks = Some(HookSources::before(provider, self.0.hooks));
        self
    }

    /// Supplies a merge operator of the application, as `Builder::merge_operator` of the crate `siltstone` does for a
    /// primary. May be called several times.
    pub fn merge_operator(self, operator: Arc<dyn MergeOperator>) -> Builder {
        self.hooks(Arc::new(SuppliedOperator(operator)))
    }

    /// Sets the options. A secondary uses `cache_bytes`, `open_files_max` and `write_buffer_bytes`
    /// (the memory that it keeps for future memtables); the others have no effect.
    ///
    /// # Examples
    /// ```
    /// use lsm_core::options::Options;
    /// use secondary::Secondary;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # lsm_core::Db::builder("/db").fs(fs.clone()).open()?.partition("users")?;
    /// let options = Options::new().cache_bytes(64 << 20);
    /// let secondary = Secondary::builder("/db").fs(fs).options(options).open()?;
    /// assert_eq!(secondary.partition_names(), ["default", "users"]);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn options(mut self, options: Options) -> Builder {
        self.0.options = options;
        self
    }

    /// Shares the block cache and the bound of open files with databases of the process. Default: it has its own. Its
    /// memtables count in the memory of all, up to half of it, so that the databases write theirs to tables earlier. It
    /// waits for none of them and delays none, and its own limit is still [`Builder::memtable_bytes_max`]. The thread of a
    /// mode that follows stays its own.
    pub fn resources(mut self, resources: &Resources) -> Builder {
        self.0.resources = Some(resources.clone());
        self
    }

    /// Sets whether the secondary takes a lease, which keeps the primary from deleting files that are read.
    /// Default: `true`. On a medium that cannot be written there is never a lease.
    ///
    /// # Examples
    /// ```
    /// use secondary::Secondary;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # lsm_core::Db::builder("/db").fs(fs.clone()).open()?.partition("users")?;
    /// // Writes nothing; files may be deleted while they are read.
    /// let secondary = Secondary::builder("/db").fs(fs).lease(false).open()?;
    /// # drop(secondary);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn lease(mut self, takes_lease: bool) -> Builder {
        self.0.takes_lease = takes_lease;
        self
    }

    /// Sets whether the secondary follows only the flushed tables of the primary, and not its log:
    /// it needs no memory for memtables, and catches up only after a flush. Default: `false`. Then
    /// only [`Level::Eventual`], a [`Level::Bounded`] with large enough bounds, a
    /// [`Level::Session`] whose commit is flushed, and a strong read of a partition without
    /// unflushed data are served; others are [`ErrorKind::NotLogged`], and [`Level::Prefix`] is
    /// [`ErrorKind::Unsupported`].
    ///
    /// # Examples
    /// ```
    /// use secondary::Secondary;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # lsm_core::Db::builder("/db").fs(fs.clone()).open()?.partition("users")?;
    /// let secondary = Secondary::builder("/db").fs(fs).tables_only(true).open()?;
    /// assert_eq!(secondary.memtable_bytes(), 0);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn tables_only(mut self, follows_tables_only: bool) -> Builder {
        self.0.follows_tables_only = follows_tables_only;
        self
    }

    /// Sets the maximum memory for data that the primary has written and not flushed, in bytes.
    /// Default 1 GiB. A partition that would take more keeps its state until the primary has
    /// flushed: reads then return [`ErrorKind::LimitExceeded`], and with [`OnUnmet::Weaker`] the
    /// available state.
    ///
    /// # Examples
    /// ```
    /// use secondary::Secondary;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # lsm_core::Db::builder("/db").fs(fs.clone()).open()?.partition("users")?;
    /// let secondary = Secondary::builder("/db").fs(fs).memtable_bytes_max(128 << 20).open()?;
    /// # drop(secondary);
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn memtable_bytes_max(mut self, bytes: u64) -> Builder {
        self.0.memtable_bytes_max = bytes;
        self
    }

    /// Opens the database, whether another process writes it or not.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] with [`NotFound`](std::io::ErrorKind::NotFound) if there is none; [`ErrorKind::Unsupported`] if newer code wrote
    /// it; corruption of the manifest; those of the file system.
    ///
    /// # Cost
    /// Reads the manifest. The log and the tables are read when a partition needs them.
    ///
    /// # Examples
    /// ```
    /// use secondary::{Level, Secondary};
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # lsm_core::Db::builder("/db").fs(fs.clone()).open()?.partition("users")?;
    /// let secondary = Secondary::builder("/db").fs(fs).open()?;
    /// let users = secondary.partition("users")?;
    /// assert!(users.at(Level::Strong)?.get("alice")?.is_none());
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn open(self) -> Result<Secondary> {
        let clock = self.0.clock.clone();
        Ok(Secondary::new(self.0.open()?, clock))
    }
}
