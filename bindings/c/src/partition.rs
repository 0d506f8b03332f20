//! Partitions: reads and writes of keys.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::slice;

use engine::Result;
use engine::large_values::ReadBlobs;

use crate::db::{Db, Snapshot, durability};
use crate::error::Failure;
use crate::options::PartitionOptions;
use crate::raw::{bytes, free, give, guard, object, range, set, text};
use crate::value::{Commit, Value};

/// A partition: a key space with its own tables and options.
pub struct Partition(pub(crate) engine::Partition);

/// Opens the partition `name`. `options` may be NULL: an existing partition keeps its options, and a new one has the
/// defaults. Other options are stored. Without `create` it must exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_open(
    db: *const Db,
    name: *const c_char,
    options: *const PartitionOptions,
    create: bool,
    error: *mut *mut Failure,
) -> *mut Partition {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let (db, name) = (&object(db, "db")?.0, text(name, "name")?);
            if !create {
                db.open_partition(name)?;
            }
            let opened = match options.as_ref() {
                Some(options) => db.partition_with(name, options.0.clone())?,
                None => db.partition(name)?,
            };
            Ok(give(Partition(opened)))
        })
    }
}

/// Frees a partition object. The partition stays in the database.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_partition_free(partition: *mut Partition) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(partition) };
}

/// Runs a write.
///
/// # Safety
/// Contract 1 of `raw`.
unsafe fn write(
    partition: *const Partition,
    commit: *mut Commit,
    error: *mut *mut Failure,
    call: impl FnOnce(&engine::Partition) -> Result<engine::Commit>,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let made = call(&object(partition, "partition")?.0)?;
            set(commit, made.into());
            Ok(true)
        })
    }
}

/// Sets a key to a value. With `sync` the device has it when the call returns. `commit` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_put(
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    sync: bool,
    commit: *mut Commit,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        write(partition, commit, error, |it| {
            let (key, value) = (bytes(key, key_len, "key")?, bytes(value, value_len, "value")?);
            it.put_with(key, value, durability(sync))
        })
    }
}

/// Sets a key to `value`, if it has the value `expected`; `is_set` says whether it had. NULL is a key that does not exist,
/// before or after the call. `commit` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_compare_and_set(
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    expected: *const c_void,
    expected_len: usize,
    value: *const c_void,
    value_len: usize,
    sync: bool,
    is_set: *mut bool,
    commit: *mut Commit,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let partition = &object(partition, "partition")?.0;
            let key = bytes(key, key_len, "key")?;
            let before = bytes(expected, expected_len, "expected")?;
            let before = (!expected.is_null()).then_some(before);
            let after = bytes(value, value_len, "value")?;
            let after = (!value.is_null()).then_some(after);
            let swap = partition.compare_and_set_with(key, before, after, durability(sync))?;
            set(is_set, matches!(swap, engine::Swap::Done(_)));
            if let engine::Swap::Done(made) = swap {
                set(commit, made.into());
            }
            Ok(true)
        })
    }
}

/// Deletes a key. A key that does not exist is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_delete(
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    sync: bool,
    commit: *mut Commit,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        write(partition, commit, error, |it| {
            it.delete_with(bytes(key, key_len, "key")?, durability(sync))
        })
    }
}

/// Merges an operand into the value of a key. The partition needs a merge operator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_merge(
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    operand: *const c_void,
    operand_len: usize,
    sync: bool,
    commit: *mut Commit,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        write(partition, commit, error, |it| {
            let key = bytes(key, key_len, "key")?;
            it.merge_with(key, bytes(operand, operand_len, "operand")?, durability(sync))
        })
    }
}

/// Deletes the keys from `start` on and before `stop`, in one operation. NULL is no bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_delete_range(
    partition: *const Partition,
    start: *const c_void,
    start_len: usize,
    stop: *const c_void,
    stop_len: usize,
    sync: bool,
    commit: *mut Commit,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        write(partition, commit, error, |it| {
            it.delete_range_with(range(start, start_len, stop, stop_len)?, durability(sync))
        })
    }
}

/// Deletes the keys that begin with a prefix, in one operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_delete_prefix(
    partition: *const Partition,
    prefix: *const c_void,
    prefix_len: usize,
    sync: bool,
    commit: *mut Commit,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        write(partition, commit, error, |it| {
            it.delete_prefix_with(bytes(prefix, prefix_len, "prefix")?, durability(sync))
        })
    }
}

/// Deletes all keys of a partition, in one operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_clear(
    partition: *const Partition,
    sync: bool,
    commit: *mut Commit,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { write(partition, commit, error, |it| it.clear_with(durability(sync))) }
}

/// Sets `value` to the value of a key, or to NULL if there is none: now, or in a snapshot that is not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_get(
    partition: *const Partition,
    snapshot: *const Snapshot,
    key: *const c_void,
    key_len: usize,
    value: *mut *mut Value,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let (partition, key) =
                (&object(partition, "partition")?.0, bytes(key, key_len, "key")?);
            let found = match snapshot.as_ref() {
                Some(snapshot) => snapshot.0.of(partition).get_ref(key)?,
                None => partition.get_ref(key)?,
            };
            set(value, found.map_or(ptr::null_mut(), |found| give(Value::from(found))));
            Ok(true)
        })
    }
}

/// Sets `exists` to whether there is a key: now, or in a snapshot that is not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_contains(
    partition: *const Partition,
    snapshot: *const Snapshot,
    key: *const c_void,
    key_len: usize,
    exists: *mut bool,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let (partition, key) =
                (&object(partition, "partition")?.0, bytes(key, key_len, "key")?);
            let found = match snapshot.as_ref() {
                Some(snapshot) => snapshot.0.contains(partition, key)?,
                None => partition.contains(key)?,
            };
            set(exists, found);
            Ok(true)
        })
    }
}

/// Sets `values[i]` to the value of the key `keys[i]` with `key_lens[i]` bytes, or to NULL, for each of `count` keys: all
/// of one moment, or of a snapshot that is not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_multi_get(
    partition: *const Partition,
    snapshot: *const Snapshot,
    count: usize,
    keys: *const *const c_void,
    key_lens: *const usize,
    values: *mut *mut Value,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`, and each array has `count` elements.
    unsafe {
        guard(error, false, || {
            let partition = &object(partition, "partition")?.0;
            if count == 0 {
                return Ok(true);
            }
            object(keys, "keys")?;
            object(key_lens, "key_lens")?;
            object(values.cast_const(), "values")?;
            let pairs = slice::from_raw_parts(keys, count);
            let lens = slice::from_raw_parts(key_lens, count);
            let wanted = pairs.iter().zip(lens).map(|(key, len)| bytes(*key, *len, "a key"));
            let wanted = wanted.collect::<Result<Vec<&[u8]>>>()?;
            let found = match snapshot.as_ref() {
                Some(snapshot) => snapshot.0.multi_get(partition, &wanted)?,
                None => partition.multi_get(&wanted)?,
            };
            for (at, found) in found.into_iter().enumerate() {
                let value = found.map_or(ptr::null_mut(), |found| give(Value::from(found)));
                set(values.add(at), value);
            }
            Ok(true)
        })
    }
}

/// Compacts the keys from `start` on and before `stop` to the bottom level. NULL is no bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_compact(
    partition: *const Partition,
    start: *const c_void,
    start_len: usize,
    stop: *const c_void,
    stop_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, false, || {
            let range = range(start, start_len, stop, stop_len)?;
            object(partition, "partition")?.0.compact(range).map(|()| true)
        })
    }
}
