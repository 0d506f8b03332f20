//! [`Builder`]: options for opening a database, and the world that it runs in.
//!
//! It is the engine's builder with the hooks of this crate always registered.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use lsm_core::clock::Clock;
use lsm_core::error::Result;
use lsm_core::fs::Fs;
use lsm_core::hooks::{EventListener, HookProvider};
use lsm_core::options::Options;
use metahive::MetaHiveOptions;

use crate::db::Db;
use crate::provided::ProvidedHooks;

/// Options for opening a database, and the world that it runs in.
///
/// Nothing of this is stored: each open may choose other values.
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
    application: Option<Arc<dyn HookProvider>>,
    /// Of each partition that was named.
    metahive: HashMap<String, MetaHiveOptions>,
}

impl Builder {
    pub(crate) fn new(dir: &Path) -> Builder {
        let engine = lsm_core::Db::builder(dir);
        Builder { engine, application: None, metahive: HashMap::new() }
    }

    /// Sets all options at once, and so forgets those that were set before. Units, defaults and
    /// ranges are on the page of [`Options`].
    pub fn options(mut self, options: Options) -> Builder {
        self.engine = self.engine.options(options);
        self
    }

    /// Sets the size of the block cache in bytes; see [`Options::cache_bytes`].
    pub fn cache_bytes(mut self, bytes: u64) -> Builder {
        self.engine = self.engine.cache_bytes(bytes);
        self
    }

    /// Sets the memory for active memtables in bytes; see [`Options::write_buffer_bytes`].
    pub fn write_buffer_bytes(mut self, bytes: u64) -> Builder {
        self.engine = self.engine.write_buffer_bytes(bytes);
        self
    }

    /// Sets how long log segments grow, in bytes; see [`Options::wal_segment_bytes`].
    pub fn wal_segment_bytes(mut self, bytes: u64) -> Builder {
        self.engine = self.engine.wal_segment_bytes(bytes);
        self
    }

    /// Sets how late, in milliseconds, a write of [`Durability::Os`](crate::Durability::Os) may
    /// reach the device; see [`Options::sync_interval_ms`].
    pub fn sync_interval_ms(mut self, interval_ms: u64) -> Builder {
        self.engine = self.engine.sync_interval_ms(interval_ms);
        self
    }

    /// Sets the file system that holds the database: [`MemFs`](crate::fs::MemFs) for tests, or one
    /// of the application for exotic media. Default: [`OsFs`](crate::fs::OsFs).
    pub fn fs(mut self, fs: Arc<dyn Fs>) -> Builder {
        self.engine = self.engine.fs(fs);
        self
    }

    /// Sets the clock. It paces background work and never orders anything. Default:
    /// [`SystemClock`](crate::clock::SystemClock).
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Builder {
        self.engine = self.engine.clock(clock);
        self
    }

    /// Adds a listener for background events. May be called several times.
    pub fn listener(mut self, listener: Arc<dyn EventListener>) -> Builder {
        self.engine = self.engine.listener(listener);
        self
    }

    /// Sets where the code of the application's own hooks is: filters that do not come with this
    /// crate, [`MetaHive`](crate::MetaHive) with a metadata provider of the application, value
    /// stores. This provider is asked before the hooks of this crate. Default: none.
    ///
    /// A partition with a hook whose code is not found opens without it if the hook allows that
    /// ([`WhenAbsent`](crate::hooks::WhenAbsent)), as MetaHive and all compaction filters of this
    /// crate do. Flushes and compactions then run without the hook until
    /// [`Db::partition_with`] supplies it.
    pub fn hooks(mut self, provider: Arc<dyn HookProvider>) -> Builder {
        self.application = Some(provider);
        self
    }

    /// Sets whether nothing is written: no file is made, changed or removed, and no background
    /// thread runs. For a full disk, a read-only medium, a folder without permission to write, or a
    /// copy that is to stay as it is. Default: `false`.
    ///
    /// Readers see what they would see after an open for writing: what the log holds is replayed
    /// into memory. Every write, and every call that would write to the folder, fails with
    /// [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly); [`Partition::export`] to another folder
    /// works, and brings the data from a full disk to another one.
    ///
    /// Several handles and processes may read at once. While one does, opening for writing is
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked), and the other way round. Where the file
    /// `LOCK` is missing or may not be opened, nobody is kept out; do not write elsewhere then.
    ///
    /// [`Partition::export`]: crate::Partition::export
    pub fn read_only(mut self, is_read_only: bool) -> Builder {
        self.engine = self.engine.read_only(is_read_only);
        self
    }

    /// Gives the MetaHive of `partition` what is not stored: replica, error handler, repair options,
    /// and the code of a metadata provider. They are there before the first compaction, which may
    /// run before [`Db::partition_with`] could give them.
    ///
    /// Without effect if the partition has no MetaHive, and until it is made: it is turned on by
    /// [`PartitionOptions::metahive`](crate::PartitionOptions::metahive). Hooks that
    /// [`hooks`](Self::hooks) provides come first. Default: an open waits for none of these; repairs
    /// do without.
    ///
    /// [`open`](Self::open) is refused with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)
    /// if another metadata provider made what the partition holds.
    pub fn metahive(mut self, partition: &str, options: MetaHiveOptions) -> Builder {
        self.metahive.insert(partition.to_owned(), options);
        self
    }

    /// Opens the database. Creates the folder and the database if there is nothing.
    ///
    /// # Errors
    /// With [`Builder::read_only`]: [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded)
    /// if the log takes more memory than four times [`Options::write_buffer_bytes`];
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) with
    /// [`NotFound`](std::io::ErrorKind::NotFound) if there is no database.
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for an option out of its
    /// range; otherwise as [`Db::open`].
    ///
    /// # Cost
    /// As [`Db::open`].
    pub fn open(self) -> Result<Db> {
        let hooks = ProvidedHooks { application: self.application, metahive: self.metahive };
        self.engine.hooks(Arc::new(hooks)).open().map(Db)
    }
}
