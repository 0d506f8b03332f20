//! [`BackupFolder`]: backups of a database in one folder, which share what is the same.
//!
//! A backup is read from the files of the database, as a secondary reads them, so that it runs next to a writer of any
//! process, calls no hook and flushes nothing. [Design note
//! 47](../../../../docs/design/0047-backups-share-pieces-of-files.md) has the reasons.
//!
//! ```text
//! format.rs    the bytes of records and shared files
//! source.rs    the files of a state, and their pieces
//! create.rs    a new backup
//! checkpoint.rs    a database of the files themselves, linked where that is possible
//! restore.rs   a database from a backup
//! verify.rs    damage, with the backups that need the damaged file
//! purge.rs     what is deleted
//! purge_record.rs    the bytes of its record
//! ```
//!
//! Invariants:
//! 1. A record is published after all its pieces are durable.
//! 2. A backup counts if the newest purge is older than it, or has kept it.
//! 3. A shared file is published whole, and is deleted only after a purge record names it. No backup that counts names
//!    it then: one that was made before the purge is not kept, and one that is published after the purge looks at its
//!    record.
//!
//! So the folder is safe without locks, which a bucket does not have. Those of a file system make others fail early.

mod checkpoint;
mod create;
mod format;
mod purge;
mod purge_record;
mod restore;
mod source;
#[cfg(test)]
mod tests;
mod verify;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{Fs, LockGuard, OsFs};
use crate::types::SeqNo;

use format::{BackupRecord, PIECE_HEADER_BYTES, id_of_record, record_name};
use purge_record::{PURGE_MAGIC, PurgeRecord};

pub use crate::db::BackupSource;
pub use checkpoint::CheckpointInfo;
pub use format::{PIECE_BYTES_MAX, PIECE_MAGIC, RECORD_MAGIC};
pub use purge::PurgeSummary;
pub use verify::{BackupReport, DamagedBackupFile};

/// The folder of the shared files.
const SHARED: &str = "shared";
/// Held by a process that changes the folder.
const LOCK: &str = "LOCK";
/// Held by processes that read it, and by one that deletes.
const READING: &str = "READING";
/// The name of threads that copy files.
const THREAD: &str = "siltstone-backup";

/// A backup in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupInfo {
    /// Its number, from 1 on. Never used again as long as a later backup is there.
    pub backup_id: u32,
    /// The time at which it was made, in seconds since 1970.
    pub timestamp: u64,
    /// The last commit in it.
    pub seq: SeqNo,
    /// Bytes of its files, those that it shares included.
    pub size: u64,
    /// Bytes that it has added to the folder.
    pub new_bytes: u64,
    /// The number of files of the database.
    pub number_files: u64,
    /// The names of the partitions without a log: of these it has what was flushed.
    pub unlogged: Vec<String>,
}

impl BackupInfo {
    fn of(record: &BackupRecord) -> BackupInfo {
        let partitions = record.version.partitions.values();
        let unlogged = partitions.filter(|it| !it.options.logged).map(|it| it.name.to_string());
        BackupInfo {
            backup_id: record.id,
            timestamp: record.time,
            seq: record.seq,
            size: record.bytes(),
            new_bytes: record.new_bytes,
            number_files: record.files.len() as u64,
            unlogged: unlogged.collect(),
        }
    }
}

/// Backups of one database in a folder.
pub struct BackupFolder {
    fs: Arc<dyn Fs>,
    /// Of restored databases.
    database_fs: Arc<dyn Fs>,
    dir: PathBuf,
    clock: Arc<dyn Clock>,
    bytes_per_second: u64,
    threads: usize,
}

impl BackupFolder {
    /// Opens the folder of backups `dir`, which is created by the first backup.
    pub fn open(dir: impl AsRef<Path>) -> BackupFolder {
        BackupFolder {
            fs: Arc::new(OsFs),
            database_fs: Arc::new(OsFs),
            dir: dir.as_ref().to_owned(),
            clock: Arc::new(SystemClock::new()),
            bytes_per_second: 0,
            threads: 1,
        }
    }

    /// Uses this file system for the backups, and for restored databases.
    #[must_use]
    pub fn fs(mut self, fs: Arc<dyn Fs>) -> BackupFolder {
        self.database_fs = fs.clone();
        self.fs = fs;
        self
    }

    /// Uses this file system for restored databases alone.
    #[must_use]
    pub fn database_fs(mut self, fs: Arc<dyn Fs>) -> BackupFolder {
        self.database_fs = fs;
        self
    }

    /// Uses this clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> BackupFolder {
        self.clock = clock;
        self
    }

    /// Reads no more than so many bytes a second. 0, the default: no limit.
    #[must_use]
    pub fn rate_limit(mut self, bytes_per_second: u64) -> BackupFolder {
        self.bytes_per_second = bytes_per_second;
        self
    }

    /// Copies, restores and verifies so many files at a time, each with a thread and 8 MiB of memory. Default: 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> BackupFolder {
        self.threads = threads;
        self
    }

    /// Returns the backups, the oldest first, without those of [`BackupFolder::corrupted`].
    ///
    /// # Errors
    /// Those of the file system.
    pub fn info(&self) -> Result<Vec<BackupInfo>> {
        let Records { sound, .. } = self.records()?;
        Ok(sound.values().map(BackupInfo::of).collect())
    }

    /// Returns the backups whose records cannot be read, each with the reason.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn corrupted(&self) -> Result<Vec<(u32, Error)>> {
        Ok(self.records()?.damaged.into_iter().collect())
    }

    /// All records of the folder.
    fn records(&self) -> Result<Records> {
        let mut records = Records::default();
        let numbers = self.numbers()?;
        for &number in numbers.iter().rev() {
            records.last = records.last.max(number);
            if !records.counts(number) {
                records.left.push(number);
                continue;
            }
            match self.record(number) {
                Ok(NumberedRecord::Backup(record)) => drop(records.sound.insert(number, *record)),
                Ok(NumberedRecord::Purge(record)) if records.purge.is_none() => {
                    records.purge = Some(record);
                }
                Ok(NumberedRecord::Purge(_)) => records.left.push(number),
                Err(error) if error.is_corruption() || error.kind() == ErrorKind::Unsupported => {
                    records.damaged.insert(number, error);
                }
                // A purge that is not in this list has deleted it, or the folder lists what cannot be opened.
                Err(error) if error.is_missing() && records.purge.is_none() => {
                    if self.numbers()? != numbers {
                        return self.records();
                    }
                    records.damaged.insert(number, error);
                }
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(records)
    }

    /// The numbers of all records, ascending.
    fn numbers(&self) -> Result<Vec<u32>> {
        let listed = match self.fs.list(&self.dir, "") {
            Err(error) if error.is_missing() => Vec::new(),
            listed => listed?,
        };
        let mut numbers: Vec<u32> = listed.iter().filter_map(|it| id_of_record(&it.name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn record(&self, number: u32) -> Result<NumberedRecord> {
        let path = self.dir.join(record_name(number));
        let bytes = crate::version::read_all(&*self.fs.open_read(&path)?)?;
        if bytes.starts_with(&PURGE_MAGIC) {
            return PurgeRecord::decode(&bytes, number, &path).map(NumberedRecord::Purge);
        }
        BackupRecord::decode(&bytes, number, &path).map(|it| NumberedRecord::Backup(Box::new(it)))
    }

    /// The error about a backup that does not count.
    fn no_backup(&self, id: u32) -> Error {
        let message = format!("there is no backup {id} in {}", self.dir.display());
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// The shared files, with their lengths.
    fn shared(&self) -> Result<BTreeMap<String, u64>> {
        let listed = match self.fs.list(&self.shared_dir(), "") {
            Err(error) if error.is_missing() => Vec::new(),
            listed => listed?,
        };
        Ok(listed.into_iter().map(|entry| (entry.name, entry.len)).collect())
    }

    fn shared_dir(&self) -> PathBuf {
        self.dir.join(SHARED)
    }

    /// Takes the lock of those that change the folder.
    fn lock(&self) -> Result<Box<dyn LockGuard>> {
        let lock = self.fs.try_lock(&self.dir.join(LOCK))?;
        lock.ok_or_else(|| self.locked("another process makes or deletes backups in"))
    }

    /// Takes the lock of those that read the folder: shared, so that nothing is deleted meanwhile.
    fn lock_reading(&self) -> Result<Option<Box<dyn LockGuard>>> {
        match self.fs.try_lock_shared(&self.dir.join(READING)) {
            Ok(None) => Err(self.locked("another process deletes backups in")),
            Ok(lock) => Ok(lock),
            // No backup was made here by this code, or the medium has no locks: so nothing is deleted.
            Err(_) => Ok(None),
        }
    }

    fn locked(&self, what: &str) -> Error {
        Error::new(ErrorKind::Locked, format!("{what} {}", self.dir.display()))
    }
}

/// The record with a number.
enum NumberedRecord {
    Backup(Box<BackupRecord>),
    Purge(PurgeRecord),
}

/// The records of a folder.
#[derive(Default)]
struct Records {
    /// Backups that count.
    sound: BTreeMap<u32, BackupRecord>,
    damaged: BTreeMap<u32, Error>,
    /// The newest purge.
    purge: Option<PurgeRecord>,
    /// Records that do not count: of older purges, and of backups that the newest purge has not kept.
    left: Vec<u32>,
    /// The greatest number, or 0.
    last: u32,
}

impl Records {
    fn counts(&self, number: u32) -> bool {
        let purge = self.purge.as_ref().filter(|purge| purge.number > number);
        purge.is_none_or(|purge| purge.kept.contains(&number))
    }

    /// The numbers of all backups, ascending.
    fn ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.sound.keys().chain(self.damaged.keys()).copied().collect();
        ids.sort_unstable();
        ids
    }

    /// The newest purge, if it is newer than the record `number`.
    ///
    /// # Errors
    /// That of a newer record which cannot be read: it may be one of a purge.
    fn newest_purge_after(&self, number: u32) -> Result<Option<&PurgeRecord>> {
        match self.damaged.range(number.saturating_add(1)..).next() {
            Some((_, error)) => Err(error.clone()),
            None => Ok(self.purge.as_ref().filter(|purge| purge.number > number)),
        }
    }

    /// The number of the newest purge, or 0.
    fn purge_number(&self) -> u32 {
        self.purge.as_ref().map_or(0, |purge| purge.number)
    }
}

/// The length of a shared file with so many bytes of content.
fn file_bytes(content: u64) -> u64 {
    PIECE_HEADER_BYTES as u64 + content
}
