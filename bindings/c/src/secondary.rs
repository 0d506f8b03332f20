//! Secondaries: read-only instances that follow a database which another process writes.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use engine::secondary::{Level, ReadOptions, Target};
use engine::{Epoch, Error, ErrorKind, Result, SeqNo};

use crate::db::Db;
use crate::error::Failure;
use crate::iter::Iter;
use crate::options::OpenOptions;
use crate::raw::{bytes, free, give, guard, object, path, range, set, text};
use crate::value::{Commit, Value};

/// A read-only instance of a database that another process writes.
pub struct Secondary(pub(crate) engine::secondary::Secondary);

/// A partition of a secondary.
pub struct SecondaryPartition(engine::secondary::SecondaryPartition);

/// How new a read of a secondary is. docs/secondary.md describes the levels.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLevel {
    /// What the secondary has.
    SiltstoneLevelEventual = 0,
    /// The same moment in all partitions.
    SiltstoneLevelPrefix = 1,
    /// At least the commit of a token.
    SiltstoneLevelSession = 2,
    /// Everything that was committed before the read.
    SiltstoneLevelStrong = 3,
}

/// The options of a read.
///
/// # Safety
/// Contract 1 of `raw`. The level is a number that C may have made of anything, so it is one here, too.
unsafe fn read_options(level: u32, token: *const Commit, wait_ms: u64) -> Result<ReadOptions> {
    let level = match level {
        0 => Level::Eventual,
        1 => Level::Prefix,
        2 => {
            // SAFETY: contract 1 of `raw`.
            let token = unsafe { object(token, "token") }?;
            Level::Session(commit_of(*token)?)
        }
        3 => Level::Strong,
        other => {
            let message = format!("there is no level {other}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
    };
    Ok(ReadOptions::new(level).wait(Duration::from_millis(wait_ms)))
}

fn commit_of(token: Commit) -> Result<engine::Commit> {
    let seq = SeqNo::new(token.seq).ok_or_else(|| {
        let message = format!("{} is no sequence number", token.seq);
        Error::new(ErrorKind::InvalidArgument, message)
    })?;
    Ok(engine::Commit { seq, epoch: Epoch(token.epoch) })
}

/// Opens a secondary of the database in the folder `path`. `options` may be NULL; those that are about writing are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_secondary_open(
    path: *const c_char,
    options: *const OpenOptions,
    error: *mut *mut Failure,
) -> *mut Secondary {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let mut builder = engine::Db::secondary_builder(self::path(path, "path")?);
            if let Some(options) = options.as_ref() {
                let hooks = Arc::new(options.hooks.clone());
                builder = builder.options(options.engine.clone()).hooks(hooks);
                if let Some(resources) = &options.resources {
                    builder = builder.resources(resources);
                }
            }
            Ok(give(Secondary(builder.open()?)))
        })
    }
}

/// Frees a secondary. Its files are free when its partitions and iterators are freed as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_secondary_free(secondary: *mut Secondary) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(secondary) };
}

/// Catches up with all that is committed. Sets `commit` to what is visible then; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_secondary_sync(
    secondary: *const Secondary,
    commit: *mut Commit,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let reached = object(secondary, "secondary")?.0.sync(Target::Latest)?;
            set(commit, reached.into());
            Ok(true)
        })
    }
}

/// Opens the partition `name` of a secondary. It must exist; sync the secondary to see new ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_secondary_partition_open(
    secondary: *const Secondary,
    name: *const c_char,
    error: *mut *mut Failure,
) -> *mut SecondaryPartition {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let opened = object(secondary, "secondary")?.0.partition(text(name, "name")?)?;
            Ok(give(SecondaryPartition(opened)))
        })
    }
}

/// Frees a partition of a secondary.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_secondary_partition_free(partition: *mut SecondaryPartition) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(partition) };
}

/// Sets `value` to the value of a key, or to NULL if there is none, as new as `level` (a siltstone_level_t) asks. The
/// level SILTSTONE_LEVEL_SESSION needs a `token`, others ignore it. Catches up for at most `wait_ms`, and fails with
/// SILTSTONE_BEHIND then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_secondary_get(
    partition: *const SecondaryPartition,
    level: u32,
    token: *const Commit,
    wait_ms: u64,
    key: *const c_void,
    key_len: usize,
    value: *mut *mut Value,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let options = read_options(level, token, wait_ms)?;
            let key = bytes(key, key_len, "key")?;
            let found = object(partition, "partition")?.0.get_with(key, &options)?;
            set(value, found.map_or(ptr::null_mut(), |found| give(Value::from(found))));
            Ok(true)
        })
    }
}

/// Returns an iterator over the keys from `start` on and before `stop`, as siltstone_iter_create does, of a state that is as
/// new as siltstone_secondary_get says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_secondary_iter_create(
    partition: *const SecondaryPartition,
    level: u32,
    token: *const Commit,
    wait_ms: u64,
    start: *const c_void,
    start_len: usize,
    stop: *const c_void,
    stop_len: usize,
    error: *mut *mut Failure,
) -> *mut Iter {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let options = read_options(level, token, wait_ms)?;
            let range = range(start, start_len, stop, stop_len)?;
            let reading = object(partition, "partition")?.0.read(&options)?;
            Ok(give(Iter(reading.cursor_in(range))))
        })
    }
}

/// Takes the database over from its writer, which is fenced, and opens it for writing, without hooks of the application:
/// partitions get their merge operators by siltstone_partition_open. The secondary stays, and is still to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_secondary_promote(
    secondary: *const Secondary,
    error: *mut *mut Failure,
) -> *mut Db {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            Ok(give(Db(engine::Db::promote(&object(secondary, "secondary")?.0)?)))
        })
    }
}
