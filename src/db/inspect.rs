//! Verification, statistics and health of a [`Db`].

use lsm_core::db::{Health, LeaseHolder, VerifyOptions, VerifyReport};
use lsm_core::error::Result;
use lsm_core::stats::Stats;

use super::Db;

/// Verification, statistics and health.
impl Db {
    /// Reads every live file and reports all damage. It reads each table with all of its contents, the
    /// log up to its end at the time of the call, and the manifest. Reads bypass the block cache and,
    /// if the system allows it, the page cache; bytes that are not synced yet come from the page cache.
    /// Writes, flushes and compactions continue during the call. Nothing is repaired.
    ///
    /// # Errors
    /// Damage and unreadable files are in the report; they are not errors of this call. Neither are files that only a
    /// build with another feature can read ([`VerifyReport::unsupported`]).
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the process has no file handle left: that says nothing of a file.
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) for a closed database;
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a mark of another
    /// database.
    ///
    /// # Cost
    /// Reads the whole database; [`VerifyOptions::bytes_per_second`] limits the rate. Holds the
    /// index and the Bloom filter of one table in memory. A table that becomes obsolete stays until
    /// this call has read it.
    ///
    /// # Examples
    /// ```
    /// use siltstone::VerifyOptions;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// db.partition("users")?.put("alice", "admin")?;
    /// let report = db.verify(VerifyOptions::default().bytes_per_second(50 << 20))?;
    /// assert!(report.is_sound(), "{:?}", report.damage());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = Db::builder("/db").fs(fs.clone()).open()?;
    /// # db.partition("users")?;
    /// let secondary = Db::secondary_builder("/db").fs(fs).open()?;
    /// assert_eq!(db.lease_holders()?.len(), 1);
    /// # drop(secondary);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn lease_holders(&self) -> Result<Vec<LeaseHolder>> {
        self.0.lease_holders()
    }

    /// Returns the counters and sizes of the database and of each partition.
    ///
    /// # Cost
    /// A look at each partition and its levels, at each chunk file, and at each shard of the cache, at most 64.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// db.partition("users")?.put("alice", "admin")?;
    /// let stats = db.stats();
    /// println!("{} bytes of memory, {} on disk", stats.memory_used_bytes, stats.disk_bytes);
    /// assert!(stats.partitions.iter().any(|partition| partition.name == "users"));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Returns the health of the database: whether it accepts writes, whether background work keeps
    /// up, and how far each resource is from its limit.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let health = db.health();
    /// assert!(health.is_healthy(), "{health}");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn health(&self) -> Health {
        self.0.health()
    }

    /// Confirms that the calendar is right: entries expire by it again.
    ///
    /// A calendar that jumps by more than a minute is not believed for an hour. Meanwhile entries
    /// expire by the time that the monotonic clock expects, and [`Db::health`] reports the jump
    /// (`Health::clock_jump`). Call this if the jump is right. Without a jump it has no effect.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// // After a time service has corrected the calendar by more than a minute.
    /// db.confirm_clock();
    /// assert!(db.health().clock_jump.is_none());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn confirm_clock(&self) {
        self.0.confirm_clock();
    }
}
