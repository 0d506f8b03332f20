//! Transactions.

use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use engine::Result;

use crate::db::{Db, durability};
use crate::error::Failure;
use crate::partition::Partition;
use crate::raw::{bytes, free, give, guard, guard_taking, object, object_mut, range, set};
use crate::value::{Commit, Value};

/// Reads and writes that are committed together, or refused with SILTSTONE_CONFLICT.
pub struct Transaction(pub(crate) engine::Transaction);

/// Begins a transaction, which reads the present state of the database.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_begin(
    db: *const Db,
    error: *mut *mut Failure,
) -> *mut Transaction {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || Ok(give(Transaction(object(db, "db")?.0.transaction()))))
    }
}

/// Rolls a transaction back, and frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_free(transaction: *mut Transaction) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(transaction) };
}

/// Commits a transaction, and frees it, also after a failure. After SILTSTONE_CONFLICT and SILTSTONE_DEADLOCK repeat
/// the whole work in a new one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_commit(
    transaction: *mut Transaction,
    sync: bool,
    commit: *mut Commit,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1, 2 and 3 of `raw`.
    unsafe {
        guard_taking(transaction, "transaction", error, false, |transaction| {
            set(commit, transaction.0.commit(durability(sync))?.into());
            Ok(true)
        })
    }
}

/// Uses a transaction.
///
/// # Safety
/// Contracts 1 and 2 of `raw`.
unsafe fn with(
    transaction: *mut Transaction,
    partition: *const Partition,
    error: *mut *mut Failure,
    call: impl FnOnce(&mut engine::Transaction, &engine::Partition) -> Result<()>,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let partition = &object(partition, "partition")?.0;
            call(&mut object_mut(transaction, "transaction")?.0, partition)?;
            Ok(true)
        })
    }
}

/// Sets `value` to the value of a key, or to NULL: the one that the transaction wrote, or that of its begin. With
/// `for_update` the key is locked until the transaction ends, and this and later calls read its newest value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_get(
    transaction: *mut Transaction,
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    for_update: bool,
    value: *mut *mut Value,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        with(transaction, partition, error, |running, of| {
            let key = bytes(key, key_len, "key")?;
            let found = match for_update {
                true => running.get_for_update(of, key)?,
                false => running.get(of, key)?,
            };
            set(value, found.map_or(ptr::null_mut(), |found| give(Value::from(found))));
            Ok(())
        })
    }
}

/// Sets how long a lock of a key is waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_set_lock_timeout_ms(
    transaction: *mut Transaction,
    timeout_ms: u64,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let running = &mut object_mut(transaction, "transaction")?.0;
            running.set_lock_timeout(Duration::from_millis(timeout_ms));
            Ok(true)
        })
    }
}

/// Sets a key to a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_put(
    transaction: *mut Transaction,
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        with(transaction, partition, error, |running, to| {
            running.put(to, bytes(key, key_len, "key")?, bytes(value, value_len, "value")?);
            Ok(())
        })
    }
}

/// Deletes a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_delete(
    transaction: *mut Transaction,
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        with(transaction, partition, error, |running, of| {
            running.delete(of, bytes(key, key_len, "key")?);
            Ok(())
        })
    }
}

/// Merges an operand into the value of a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_merge(
    transaction: *mut Transaction,
    partition: *const Partition,
    key: *const c_void,
    key_len: usize,
    operand: *const c_void,
    operand_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        with(transaction, partition, error, |running, of| {
            running.merge(of, bytes(key, key_len, "key")?, bytes(operand, operand_len, "operand")?);
            Ok(())
        })
    }
}

/// Deletes the keys from `start` on and before `stop`. NULL is no bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_delete_range(
    transaction: *mut Transaction,
    partition: *const Partition,
    start: *const c_void,
    start_len: usize,
    stop: *const c_void,
    stop_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        with(transaction, partition, error, |running, of| {
            running.delete_range(of, range(start, start_len, stop, stop_len)?);
            Ok(())
        })
    }
}

/// Notes a place to which the writes can be rolled back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_set_savepoint(
    transaction: *mut Transaction,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            object_mut(transaction, "transaction")?.0.set_savepoint();
            Ok(true)
        })
    }
}

/// Undoes the writes since the last savepoint, and removes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_rollback_to_savepoint(
    transaction: *mut Transaction,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            object_mut(transaction, "transaction")?.0.rollback_to_savepoint().map(|()| true)
        })
    }
}
