//! Backups: [`BackupEngine`], with the database and the hooks of this crate; and the checkpoint of a database that another
//! process writes.

use std::path::Path;
use std::sync::Arc;

use lsm_core::clock::Clock;
use lsm_core::error::Result;
use lsm_core::fs::Fs;

pub use lsm_core::backup::{
    BackupInfo, BackupReport, CheckpointInfo, DamagedBackupFile, PurgeSummary,
};

use crate::builder::Builder;
use crate::db::Db;

/// Backups of one database in a folder. What two backups have in common is stored once, and each backup is whole by
/// itself: older ones can be deleted. `docs/backup.md` describes costs and guarantees.
///
/// # Examples
/// ```
/// use siltstone::Db;
/// use siltstone::backup::BackupEngine;
///
/// # fn main() -> siltstone::Result<()> {
/// # let folder = tempfile::tempdir().expect("a temporary folder");
/// # let path = folder.path();
/// let db = Db::open(path.join("data"))?;
/// let backups = BackupEngine::open(path.join("backups"));
/// db.partition("users")?.put("alice", "admin")?;
/// let monday = backups.create_backup(&db)?;
/// db.partition("users")?.delete("alice")?;
/// backups.create_backup(&db)?;
///
/// assert!(backups.verify(None)?.is_sound());
/// backups.restore(monday.backup_id, path.join("restored"))?;
/// let restored = Db::open(path.join("restored"))?;
/// assert!(restored.partition("users")?.contains("alice")?);
/// backups.purge_old(1)?;
/// # Ok(())
/// # }
/// ```
pub struct BackupEngine(lsm_core::backup::BackupFolder);

impl BackupEngine {
    /// Opens the folder of backups `dir`. The first backup creates it.
    ///
    /// # Examples
    /// ```
    /// use siltstone::backup::BackupEngine;
    ///
    /// # fn main() -> siltstone::Result<()> {
    /// # let folder = tempfile::tempdir().expect("a temporary folder");
    /// # let path = folder.path();
    /// assert_eq!(BackupEngine::open(path.join("backups")).info()?, []);
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(dir: impl AsRef<Path>) -> BackupEngine {
        BackupEngine(lsm_core::backup::BackupFolder::open(dir))
    }

    /// Uses this file system for the backups and for restored databases. Default: the operating system's.
    #[must_use]
    pub fn fs(self, fs: Arc<dyn Fs>) -> BackupEngine {
        BackupEngine(self.0.fs(fs))
    }

    /// Uses this file system for restored databases alone.
    #[must_use]
    pub fn database_fs(self, fs: Arc<dyn Fs>) -> BackupEngine {
        BackupEngine(self.0.database_fs(fs))
    }

    /// Uses this clock. Default: the machine's.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> BackupEngine {
        BackupEngine(self.0.clock(clock))
    }

    /// Copies, restores and verifies no more than so many bytes a second. 0, the default: no limit.
    #[must_use]
    pub fn rate_limit(self, bytes_per_second: u64) -> BackupEngine {
        BackupEngine(self.0.rate_limit(bytes_per_second))
    }

    /// Copies, restores and verifies so many files at a time, each with a thread and 8 MiB of memory. More than one is
    /// faster in a bucket, where each call takes long, and on devices that serve several requests at once. Default: 1;
    /// 4 of [`Remote::backups`](https://docs.rs/siltstone-remote).
    #[must_use]
    pub fn threads(self, threads: usize) -> BackupEngine {
        BackupEngine(self.0.threads(threads))
    }

    /// Makes a backup of an open database, while writes continue. It has every commit that returned before the call,
    /// and is the state after the commit [`BackupInfo::seq`]. Partitions without a log are flushed first.
    ///
    /// # Errors
    /// As [`BackupEngine::create_backup_of`]; those of the flush.
    ///
    /// # Durability
    /// The backup is durable once this returns.
    ///
    /// # Cost
    /// As [`BackupEngine::create_backup_of`].
    ///
    /// # Examples
    /// ```
    /// # use siltstone::backup::BackupEngine;
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = siltstone::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let backups = BackupEngine::open("/backups").fs(fs);
    /// let commit = db.partition("users")?.put("alice", "admin")?;
    /// let backup = backups.create_backup(&db)?;
    /// assert!(backup.seq >= commit.seq);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn create_backup(&self, db: &Db) -> Result<BackupInfo> {
        self.0.create_backup(&db.0)
    }

    /// Makes a backup of the database that `source` names, which another process may write meanwhile, or none. It has
    /// every commit that returned before the call; of partitions without a log it has what was flushed. Of the builder,
    /// the folder, the file system, the clock and the hooks count. A backup needs no code of a hook; without that of a
    /// value store it reads all files of the store each time.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another process changes the folder of backups;
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if that has backups of another database;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) with [`NotFound`](std::io::ErrorKind::NotFound) if there is no database;
    /// corruption of the manifest and the log; those of the files, such as
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace); [`ErrorKind::FileGone`](crate::ErrorKind::FileGone) if purges
    /// have deleted again and again what was copied. No backup is added then, unless the file system fails after its
    /// record is there. The others stay as they are. What was copied stays until a purge, and the next backup need not
    /// copy it again.
    ///
    /// # Durability
    /// The backup is durable once this returns.
    ///
    /// # Cost
    /// Reads the manifest, the log's headers, and those pieces of files that no backup in the folder has; writes the
    /// latter, with two syncs for each 8 MiB. 8 MiB of memory. The writer does nothing for it.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    /// # use siltstone::backup::BackupEngine;
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let writer = Db::builder("/db").fs(fs.clone()).open()?;
    /// # let backups = BackupEngine::open("/backups").fs(fs.clone());
    /// # let other_process = Db::builder("/db").fs(fs);
    /// let backup = backups.create_backup_of(other_process)?;
    /// assert_eq!(backup.backup_id, 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn create_backup_of(&self, source: Builder) -> Result<BackupInfo> {
        self.0.create_backup_of(&source.into_engine().backup_source())
    }

    /// Returns the backups, the oldest first, without those of [`BackupEngine::corrupted`].
    ///
    /// # Errors
    /// Those of the file system.
    ///
    /// # Examples
    /// ```
    /// # use siltstone::backup::BackupEngine;
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = siltstone::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let backups = BackupEngine::open("/backups").fs(fs);
    /// backups.create_backup(&db)?;
    /// for backup in backups.info()? {
    ///     println!("{}: {} bytes, through {}", backup.backup_id, backup.size, backup.seq.get());
    /// }
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn info(&self) -> Result<Vec<BackupInfo>> {
        self.0.info()
    }

    /// Returns the numbers of the backups whose records cannot be read, each with the reason.
    ///
    /// # Errors
    /// Those of the file system.
    ///
    /// # Examples
    /// ```
    /// # use siltstone::backup::BackupEngine;
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let backups = BackupEngine::open("/backups").fs(fs);
    /// for (backup_id, error) in backups.corrupted()? {
    ///     println!("backup {backup_id} cannot be restored: {error}");
    /// }
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn corrupted(&self) -> Result<Vec<(u32, crate::Error)>> {
        self.0.corrupted()
    }

    /// Reads every file of the backup `backup_id`, or of all backups, and compares it with its checksums. Damage is no
    /// error: the report names each damaged file, and the backups that need it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there is no such backup;
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another process deletes backups; those of the file system.
    ///
    /// # Cost
    /// Reads each shared file once, however many backups need it.
    ///
    /// # Examples
    /// ```
    /// # use siltstone::backup::BackupEngine;
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = siltstone::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let backups = BackupEngine::open("/backups").fs(fs);
    /// let backup = backups.create_backup(&db)?;
    /// assert!(backups.verify(Some(backup.backup_id))?.is_sound());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn verify(&self, backup_id: Option<u32>) -> Result<BackupReport> {
        self.0.verify(backup_id)
    }

    /// Makes a database of the backup `backup_id` in the folder `into`, which must be empty or not exist. The backup is
    /// not changed. The database is the one that was backed up, with a history of its own from then on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there is no such backup, or if there are
    /// files in `into`; corruption that names the damaged file of the backup;
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another process deletes backups; those of writing. The files
    /// are removed then. After a crash `into` is refused as a database.
    ///
    /// # Durability
    /// The database is durable once this returns.
    ///
    /// # Cost
    /// Reads and verifies all bytes of the backup, and writes them. The next open replays the log that is in it.
    ///
    /// # Examples
    /// ```
    /// # use siltstone::backup::BackupEngine;
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = siltstone::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let backups = BackupEngine::open("/backups").fs(fs.clone());
    /// let backup = backups.create_backup(&db)?;
    /// backups.restore(backup.backup_id, "/restored")?;
    /// let restored = siltstone::Db::builder("/restored").fs(fs).open()?;
    /// assert_eq!(restored.partition_names(), db.partition_names());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn restore(&self, backup_id: u32, into: impl AsRef<Path>) -> Result<BackupInfo> {
        self.0.restore(backup_id, into)
    }

    /// As [`BackupEngine::restore`], of the newest backup.
    ///
    /// # Errors
    /// As [`BackupEngine::restore`]; corruption if the newest backup is damaged.
    ///
    /// # Examples
    /// ```
    /// # use siltstone::backup::BackupEngine;
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = siltstone::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let backups = BackupEngine::open("/backups").fs(fs.clone());
    /// let backup = backups.create_backup(&db)?;
    /// assert_eq!(backups.restore_latest("/restored")?, backup);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn restore_latest(&self, into: impl AsRef<Path>) -> Result<BackupInfo> {
        self.0.restore_latest(into)
    }

    /// Deletes all backups but the newest `keep`, and every shared file that none of them needs. The rest of an
    /// interrupted backup goes as well.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) if another process works in the folder; corruption that names a
    /// damaged backup: which shared files it needs is not known, so none is deleted until [`BackupEngine::delete`] has
    /// deleted it; those of the file system.
    ///
    /// # Durability
    /// After a crash in the middle each backup is whole or gone. A repeated call deletes the rest.
    ///
    /// # Examples
    /// ```
    /// # use siltstone::backup::BackupEngine;
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = siltstone::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let backups = BackupEngine::open("/backups").fs(fs.clone());
    /// backups.create_backup(&db)?;
    /// backups.create_backup(&db)?;
    /// assert_eq!(backups.purge_old(1)?.backups, [1]);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn purge_old(&self, keep: usize) -> Result<PurgeSummary> {
        self.0.purge_old(keep)
    }

    /// Deletes the backup `backup_id`, which may be damaged, and every shared file that no other one needs.
    ///
    /// # Errors
    /// As [`BackupEngine::purge_old`]; [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there is no
    /// such backup.
    ///
    /// # Durability
    /// As [`BackupEngine::purge_old`].
    ///
    /// # Examples
    /// ```
    /// # use siltstone::backup::BackupEngine;
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = siltstone::Db::builder("/db").fs(fs.clone()).open()?;
    /// # let backups = BackupEngine::open("/backups").fs(fs.clone());
    /// let backup = backups.create_backup(&db)?;
    /// backups.delete(backup.backup_id)?;
    /// assert_eq!(backups.info()?, []);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn delete(&self, backup_id: u32) -> Result<PurgeSummary> {
        self.0.delete(backup_id)
    }
}

impl Builder {
    /// Makes a copy of the database in the folder `dir`, which must be empty or not exist, without opening the database:
    /// another process may write it meanwhile, or none. Opened as a database, the copy has every commit that returned
    /// before the call, and is the state after the commit [`CheckpointInfo::seq`]. [`Db::checkpoint`] is the call of the
    /// process that writes; as that one's, the copy shares the bytes of tables if the file system supports links, and has
    /// the same database id and a history of its own.
    ///
    /// The writer does nothing for it, and flushes nothing: the copy has a log, and of partitions without a log it has
    /// what was flushed. Of the builder, the folder, the file system, the clock and the hooks count. No code of a hook is
    /// needed; without that of a value store all of its files are copied. A value store of the application that keeps
    /// values outside of chunk files is not copied. If the machine has crashed and nothing has opened the database since,
    /// the copy has what the log attests as durable.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there are files in `dir`;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) with [`NotFound`](std::io::ErrorKind::NotFound) if there is no database;
    /// corruption of the manifest and the log; those of the files, such as
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace). The files of the copy are removed then, the folder stays. A copy
    /// that a crash left incomplete does not open as a database.
    ///
    /// # Durability
    /// The copy is durable once this returns.
    ///
    /// # Cost
    /// A link or a copy of each table, and of each chunk file whose values are all named by tables; a copy of the other
    /// chunk files and of the log. A sync for each copied file, and three. 1 MiB of memory. The next open of the copy
    /// replays the log.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// let writer = Db::builder("/db").fs(fs.clone()).open()?;
    /// let commit = writer.partition("users")?.put("alice", "admin")?;
    ///
    /// let other_process = Db::builder("/db").fs(fs.clone());
    /// let copied = other_process.checkpoint("/monday")?;
    /// assert_eq!(copied.seq, commit.seq);
    /// let monday = Db::builder("/monday").fs(fs).open()?;
    /// assert!(monday.partition("users")?.contains("alice")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn checkpoint(self, dir: impl AsRef<Path>) -> Result<CheckpointInfo> {
        self.into_engine().backup_source().checkpoint(dir)
    }
}
