//! Backups: folders of backups that share what is the same.

use std::ffi::c_char;
use std::ptr;

use engine::Result;

use crate::db::Db;
use crate::error::Failure;
use crate::raw::{free, give, guard, null, object, path, set};

/// A folder of backups of one database.
pub struct BackupEngine(engine::backup::BackupEngine);

/// A backup.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupInfo {
    /// Its number, from 1 on.
    pub backup_id: u32,
    /// The seconds since 1970 at which it was made.
    pub timestamp: u64,
    /// The sequence number of its last commit.
    pub seq: u64,
    /// The bytes of all its files.
    pub size: u64,
    /// The bytes that it added to the folder.
    pub new_bytes: u64,
    /// The number of its files.
    pub number_files: u64,
    /// The number of partitions without a log, which are as of their last flush.
    pub unlogged: u64,
}

impl From<&engine::backup::BackupInfo> for BackupInfo {
    fn from(backup: &engine::backup::BackupInfo) -> BackupInfo {
        BackupInfo {
            backup_id: backup.backup_id,
            timestamp: backup.timestamp,
            seq: backup.seq.get(),
            size: backup.size,
            new_bytes: backup.new_bytes,
            number_files: backup.number_files,
            unlogged: backup.unlogged.len() as u64,
        }
    }
}

/// Opens the folder of backups `dir`, which the first backup makes. Copies, restores and verifies at most
/// `bytes_per_second`; 0 is no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_backup_engine_open(
    dir: *const c_char,
    bytes_per_second: u64,
    error: *mut *mut Failure,
) -> *mut BackupEngine {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let engine = engine::backup::BackupEngine::open(path(dir, "dir")?);
            Ok(give(BackupEngine(engine.rate_limit(bytes_per_second))))
        })
    }
}

/// Frees a backup engine. The backups stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_backup_engine_free(engine: *mut BackupEngine) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(engine) };
}

/// Runs a call that is about one backup.
///
/// # Safety
/// Contract 1 of `raw`.
unsafe fn with(
    engine: *const BackupEngine,
    info: *mut BackupInfo,
    error: *mut *mut Failure,
    call: impl FnOnce(&engine::backup::BackupEngine) -> Result<engine::backup::BackupInfo>,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let backup = call(&object(engine, "engine")?.0)?;
            set(info, BackupInfo::from(&backup));
            Ok(true)
        })
    }
}

/// Makes a backup of an open database, while writes continue. `info` may be NULL, here and in the other functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_backup_create(
    engine: *const BackupEngine,
    db: *const Db,
    info: *mut BackupInfo,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { with(engine, info, error, |engine| engine.create_backup(&object(db, "db")?.0)) }
}

/// Makes a backup of the database in the folder `path`, which another process may write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_backup_create_of(
    engine: *const BackupEngine,
    path: *const c_char,
    info: *mut BackupInfo,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        with(engine, info, error, |engine| {
            engine.create_backup_of(engine::Db::builder(self::path(path, "path")?))
        })
    }
}

/// Sets `count` to the number of backups, and fills `infos` with the oldest of them, at most `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_backup_info(
    engine: *const BackupEngine,
    infos: *mut BackupInfo,
    capacity: usize,
    count: *mut usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`, and `infos` has `capacity` elements.
    unsafe {
        guard(error, false, || {
            let backups = object(engine, "engine")?.0.info()?;
            if infos.is_null() && capacity > 0 {
                return Err(null("infos"));
            }
            for (at, backup) in backups.iter().take(capacity).enumerate() {
                set(infos.add(at), BackupInfo::from(backup));
            }
            set(count, backups.len());
            Ok(true)
        })
    }
}

/// Reads every file of a backup, or of all backups if `backup_id` is 0, and compares it with its checksums. Sets
/// `damage_count` to the number of damaged files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_backup_verify(
    engine: *const BackupEngine,
    backup_id: u32,
    damage_count: *mut usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let backup_id = (backup_id != 0).then_some(backup_id);
            let report = object(engine, "engine")?.0.verify(backup_id)?;
            set(damage_count, report.damaged.len());
            Ok(true)
        })
    }
}

/// Makes a database of a backup, of the newest one if `backup_id` is 0, in the empty folder `into`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_backup_restore(
    engine: *const BackupEngine,
    backup_id: u32,
    into: *const c_char,
    info: *mut BackupInfo,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        with(engine, info, error, |engine| match backup_id {
            0 => engine.restore_latest(path(into, "into")?),
            backup_id => engine.restore(backup_id, path(into, "into")?),
        })
    }
}

/// Deletes all backups but the newest `keep`, and sets `deleted` to their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_backup_purge_old(
    engine: *const BackupEngine,
    keep: usize,
    deleted: *mut usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            set(deleted, object(engine, "engine")?.0.purge_old(keep)?.backups.len());
            Ok(true)
        })
    }
}

/// Deletes a backup, which may be damaged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_backup_delete(
    engine: *const BackupEngine,
    backup_id: u32,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { guard(error, false, || object(engine, "engine")?.0.delete(backup_id).map(|_| true)) }
}
