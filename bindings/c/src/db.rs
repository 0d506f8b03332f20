//! Databases and snapshots.

use std::ffi::c_char;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

use engine::{Durability, Result, SeqNo, VerifyOptions};

use crate::error::Failure;
use crate::options::OpenOptions;
use crate::raw::{free, give, guard, object, path, quietly, set, text};
use crate::value::Value;

/// An open database.
pub struct Db(pub(crate) engine::Db);

/// The whole database at one moment.
pub struct Snapshot(pub(crate) engine::Snapshot);

/// The durability of a write.
pub fn durability(sync: bool) -> Durability {
    if sync { Durability::Sync } else { Durability::Os }
}

/// Returns the version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn siltstone_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Opens the database in the folder `path`. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_open(
    path: *const c_char,
    options: *const OpenOptions,
    error: *mut *mut Failure,
) -> *mut Db {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let builder = builder(self::path(path, "path")?, options.as_ref());
            Ok(give(Db(builder.open()?)))
        })
    }
}

fn builder(path: PathBuf, options: Option<&OpenOptions>) -> engine::Builder {
    let builder = engine::Db::builder(path);
    let Some(options) = options else { return builder };
    let builder = builder
        .options(options.engine.clone())
        .create_if_missing(options.create_if_missing)
        .error_if_exists(options.error_if_exists)
        .read_only(options.read_only)
        .beside_writer(options.beside_writer)
        .take_over(options.take_over)
        .hooks(Arc::new(options.hooks.clone()));
    let listeners = options.listeners.iter();
    let builder = listeners.fold(builder, |it, listener| it.listener(listener.clone()));
    match &options.resources {
        Some(resources) => builder.resources(resources),
        None => builder,
    }
}

/// What a repair has found. `siltstone repair` also prints the places and the keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairReport {
    /// Whether every key is what it was.
    pub is_complete: bool,
    /// The entries of the new database.
    pub entries: u64,
    /// The damaged places.
    pub damaged: u64,
    /// The damaged places that have their content again.
    pub repaired: u64,
    /// The ranges of keys that may be absent, have an older value, or be ones that were deleted.
    pub doubtful: u64,
}

/// Writes everything that can be read of the database in the folder `path`, which is not changed, to a new one in the folder
/// `into`, which must be empty. `options` may be NULL; they supply the hooks that its partitions need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_repair(
    path: *const c_char,
    into: *const c_char,
    options: *const OpenOptions,
    report: *mut RepairReport,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let builder = builder(self::path(path, "path")?, options.as_ref());
            let found = builder.repair_into(self::path(into, "into")?)?;
            let made = RepairReport {
                is_complete: found.is_complete(),
                entries: found.partitions.iter().map(|it| it.entries).sum(),
                damaged: found.damage.len() as u64,
                repaired: found.repaired.len() as u64,
                doubtful: found.doubtful.len() as u64,
            };
            set(report, made);
            Ok(true)
        })
    }
}

/// Closes the database: ends background work, and syncs the log. Later calls on it, and on all that came of it, fail with
/// SILTSTONE_CLOSED; iterators that are on an entry still lend it. The object stays until it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_close(db: *const Db, error: *mut *mut Failure) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { with(db, error, |db| db.clone().close()) }
}

/// Frees a database. The last object of a database that is freed closes it, as siltstone_close does, without its errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_db_free(db: *mut Db) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(db) };
}

/// Runs a call of a database that returns nothing.
///
/// # Safety
/// Contract 1 of `raw`.
unsafe fn with(
    db: *const Db,
    error: *mut *mut Failure,
    call: impl FnOnce(&engine::Db) -> Result<()>,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { guard(error, false, || call(&object(db, "db")?.0).map(|()| true)) }
}

/// Writes the memtables of all partitions to tables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_flush(db: *const Db, error: *mut *mut Failure) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { with(db, error, engine::Db::flush) }
}

/// Changes the bytes a second that flushes and compactions write, also of those that run now; 0 is no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_set_background_bytes_per_second(
    db: *const Db,
    bytes: u64,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { with(db, error, |db| db.set_background_bytes_per_second(bytes)) }
}

/// Waits until no background work is left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_wait_idle(db: *const Db, error: *mut *mut Failure) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { with(db, error, engine::Db::wait_idle) }
}

/// Waits until the commit `seq` is on the device. One to a partition without a log is only after siltstone_flush.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_wait_durable(
    db: *const Db,
    seq: u64,
    error: *mut *mut Failure,
) -> bool {
    // The largest number there is stands for one that cannot be: the call refuses it.
    let seq = SeqNo::new(seq).unwrap_or(SeqNo::MAX);
    // SAFETY: contract 1 of `raw`.
    unsafe { with(db, error, |db| db.wait_durable(seq)) }
}

/// Copies the database to the folder `dir`, by hard links where it can.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_checkpoint(
    db: *const Db,
    dir: *const c_char,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { with(db, error, |db| db.checkpoint(path(dir, "dir")?).map(drop)) }
}

/// Drops the partition `name` with its data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_drop_partition(
    db: *const Db,
    name: *const c_char,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { with(db, error, |db| db.drop_partition(text(name, "name")?)) }
}

/// Reads every file, at most `bytes_per_second` (0: as fast as it can). Sets `damage_count` to the number of damaged
/// places, which is 0 for a sound database. Fails after that if there are files that this build cannot read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_verify(
    db: *const Db,
    bytes_per_second: u64,
    damage_count: *mut usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        with(db, error, |db| {
            let report = db.verify(VerifyOptions::new().bytes_per_second(bytes_per_second))?;
            set(damage_count, report.damage().len());
            let unread = report.unsupported.into_iter().next();
            unread.map_or(Ok(()), |file| {
                Err(engine::Error::new(engine::ErrorKind::Unsupported, file))
            })
        })
    }
}

/// Returns the statistics as JSON, with the names of Stats in the documentation of the Rust crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_stats_json(
    db: *const Db,
    error: *mut *mut Failure,
) -> *mut Value {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let text = serde_json::to_string(&object(db, "db")?.0.stats());
            let text = text.map_err(|error| {
                engine::Error::new(engine::ErrorKind::Internal, format!("no statistics: {error}"))
            })?;
            Ok(give(Value::from(engine::Slice::from(text))))
        })
    }
}

/// Takes a snapshot of the whole database.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_snapshot_create(
    db: *const Db,
    error: *mut *mut Failure,
) -> *mut Snapshot {
    // SAFETY: contract 1 of `raw`.
    unsafe { guard(error, ptr::null_mut(), || Ok(give(Snapshot(object(db, "db")?.0.snapshot())))) }
}

/// Returns the sequence number of the last operation that a snapshot shows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_snapshot_seq(snapshot: *const Snapshot) -> u64 {
    let mut seq = 0;
    // SAFETY: contract 1 of `raw`.
    if let Some(snapshot) = unsafe { snapshot.as_ref() } {
        quietly(|| seq = snapshot.0.seq().get());
    }
    seq
}

/// Frees a snapshot: compactions may remove what only it shows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_snapshot_free(snapshot: *mut Snapshot) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(snapshot) };
}
