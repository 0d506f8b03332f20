//! Batches.

use std::ffi::c_void;
use std::mem;
use std::ptr;

use engine::{Result, SeqNo};

use crate::db::{Db, durability};
use crate::error::Failure;
use crate::partition::Partition;
use crate::raw::{
    bytes, free, give, guard, guard_taking, is_in_hook, object, object_mut, range, set,
};
use crate::stream::ValueWriter;
use crate::value::Commit;

/// Operations that are committed together.
pub struct Batch {
    db: engine::Db,
    inner: engine::Batch,
}

/// Returns an empty batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_create(
    db: *const Db,
    error: *mut *mut Failure,
) -> *mut Batch {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let db = object(db, "db")?.0.clone();
            Ok(give(Batch { inner: db.batch(), db }))
        })
    }
}

/// Frees a batch. What was not committed is discarded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_free(batch: *mut Batch) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(batch) };
}

/// Adds an operation.
///
/// # Safety
/// Contracts 1 and 2 of `raw`.
unsafe fn add(
    batch: *mut Batch,
    partition: *const Partition,
    error: *mut *mut Failure,
    add: impl FnOnce(engine::Batch, &engine::Partition) -> Result<engine::Batch>,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let partition = &object(partition, "partition")?.0;
            let batch = object_mut(batch, "batch")?;
            let empty = batch.db.batch();
            batch.inner = add(mem::replace(&mut batch.inner, empty), partition)?;
            Ok(true)
        })
    }
}

/// Adds a put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_put(
    batch: *mut Batch,
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        let key = bytes(key, key_len, "key");
        let value = bytes(value, value_len, "value");
        guard_add(batch, partition, error, (key, value), |batch, to, key, value| {
            batch.put(to, key, value)
        })
    }
}

/// Adds a deletion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_delete(
    batch: *mut Batch,
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        let key = bytes(key, key_len, "key");
        guard_add(batch, partition, error, (key, Ok(())), |batch, of, key, ()| {
            batch.delete(of, key)
        })
    }
}

/// Requires that no one has written to a key after the sequence number `at_most`: or the commit is SILTSTONE_CONFLICT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_require(
    batch: *mut Batch,
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    at_most: u64,
    error: *mut *mut Failure,
) -> bool {
    // The largest number is one that nothing comes after.
    let at_most = SeqNo::new(at_most).unwrap_or(SeqNo::MAX);
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        let key = bytes(key, key_len, "key");
        guard_add(batch, partition, error, (key, Ok(())), |batch, of, key, ()| {
            batch.require(of, key, at_most)
        })
    }
}

/// Adds a merge.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_merge(
    batch: *mut Batch,
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    operand: *const c_void,
    operand_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        let key = bytes(key, key_len, "key");
        let operand = bytes(operand, operand_len, "operand");
        guard_add(batch, partition, error, (key, operand), |batch, of, key, operand| {
            batch.merge(of, key, operand)
        })
    }
}

/// Adds the deletion of the keys from `start` on and before `stop`. NULL is no bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_delete_range(
    batch: *mut Batch,
    partition: *const Partition,
    start: *const c_void,
    start_len: usize,
    stop: *const c_void,
    stop_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        let range = range(start, start_len, stop, stop_len);
        guard_add(batch, partition, error, (range, Ok(())), |batch, of, range, ()| {
            batch.delete_range(of, range)
        })
    }
}

/// Adds the deletion of the keys that begin with a prefix.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_delete_prefix(
    batch: *mut Batch,
    partition: *const Partition,
    prefix: *const c_void,
    prefix_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        let prefix = bytes(prefix, prefix_len, "prefix");
        guard_add(batch, partition, error, (prefix, Ok(())), |batch, of, prefix, ()| {
            batch.delete_prefix(of, prefix)
        })
    }
}

/// Adds the deletion of all keys of a partition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_clear(
    batch: *mut Batch,
    partition: *const Partition,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { add(batch, partition, error, |batch, of| Ok(batch.clear(of))) }
}

/// Adds an operation of two checked arguments. They are checked before the batch is taken out of its place, so a refused
/// argument leaves it as it was.
///
/// # Safety
/// Contracts 1 and 2 of `raw`.
unsafe fn guard_add<A, B>(
    batch: *mut Batch,
    partition: *const Partition,
    error: *mut *mut Failure,
    (first, second): (Result<A>, Result<B>),
    call: impl FnOnce(engine::Batch, &engine::Partition, A, B) -> engine::Batch,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        let Some((first, second)) = guard(error, None, || Ok(Some((first?, second?)))) else {
            return false;
        };
        add(batch, partition, error, |batch, of| Ok(call(batch, of, first, second)))
    }
}

/// Adds a value that was written as a stream. Frees the writer, also after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_put_writer(
    batch: *mut Batch,
    writer: *mut ValueWriter,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1, 2 and 3 of `raw`.
    unsafe {
        guard_taking(writer, "writer", error, false, |writer| {
            let pending = writer.finish()?;
            let batch = object_mut(batch, "batch")?;
            let empty = batch.db.batch();
            batch.inner = mem::replace(&mut batch.inner, empty).put_blob(pending);
            Ok(true)
        })
    }
}

/// Returns the number of operations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_count(batch: *const Batch) -> usize {
    // SAFETY: contract 1 of `raw`.
    unsafe { batch.as_ref() }.map_or(0, |batch| batch.inner.len())
}

/// Commits the operations. The batch is empty afterwards, also after a failure, and can be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_batch_commit(
    batch: *mut Batch,
    sync: bool,
    commit: *mut Commit,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        if is_in_hook()
            && let Some(batch) = batch.as_mut()
        {
            // What a hook drops is freed by another thread.
            free(give(mem::replace(&mut batch.inner, batch.db.batch())));
        }
        guard(error, false, || {
            let batch = object_mut(batch, "batch")?;
            let empty = batch.db.batch();
            let made = mem::replace(&mut batch.inner, empty).commit(durability(sync))?;
            set(commit, made.into());
            Ok(true)
        })
    }
}
