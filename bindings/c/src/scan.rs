//! Scans of transactions: entries of a range, one after the other.

use std::ffi::c_void;
use std::ptr;

use engine::{Slice, TransactionRange};

use crate::error::Failure;
use crate::partition::Partition;
use crate::raw::{free, give, guard, object, object_mut, range, set};
use crate::transaction::Transaction;

/// A scan of a range as a transaction sees it. The part that it has passed counts as read by the transaction.
pub struct Scan {
    entries: TransactionRange,
    is_reverse: bool,
    entry: Option<(Slice, Slice)>,
}

/// Returns a scan over the keys from `start` on and before `stop`, as the transaction sees them at this moment with its own
/// writes; NULL is no bound. With `reverse` it goes from the last key to the first. It is on no entry at first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_transaction_scan(
    transaction: *const Transaction,
    partition: *const Partition,
    start: *const c_void,
    start_len: usize,
    stop: *const c_void,
    stop_len: usize,
    reverse: bool,
    error: *mut *mut Failure,
) -> *mut Scan {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let partition = &object(partition, "partition")?.0;
            let bounds = range(start, start_len, stop, stop_len)?;
            let entries = object(transaction, "transaction")?.0.range(partition, bounds);
            Ok(give(Scan { entries, is_reverse: reverse, entry: None }))
        })
    }
}

/// Moves to the next entry, and sets `found` to whether there is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_scan_next(
    scan: *mut Scan,
    found: *mut bool,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let scan = object_mut(scan, "scan")?;
            // Before the move: after a failure the scan is on no entry.
            scan.entry = None;
            let next = match scan.is_reverse {
                true => scan.entries.next_back(),
                false => scan.entries.next(),
            };
            scan.entry = next.transpose()?;
            set(found, scan.entry.is_some());
            Ok(true)
        })
    }
}

/// Returns the key of the entry, and sets `len` to its length; NULL if the scan is on none. The bytes live until the scan is
/// moved or freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_scan_key(scan: *const Scan, len: *mut usize) -> *const c_void {
    // SAFETY: contract 1 of `raw`.
    unsafe { lent(scan.as_ref().and_then(|scan| scan.entry.as_ref()).map(|(key, _)| key), len) }
}

/// Returns the value of the entry, as siltstone_scan_key does the key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_scan_value(scan: *const Scan, len: *mut usize) -> *const c_void {
    // SAFETY: contract 1 of `raw`.
    unsafe { lent(scan.as_ref().and_then(|scan| scan.entry.as_ref()).map(|(_, value)| value), len) }
}

/// # Safety
/// Contract 1 of `raw` for `len`.
unsafe fn lent(found: Option<&Slice>, len: *mut usize) -> *const c_void {
    let Some(found) = found else { return ptr::null() };
    // SAFETY: contract 1 of `raw`.
    unsafe { set(len, found.len()) };
    found.as_ptr().cast()
}

/// Frees a scan, and what it holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_scan_free(scan: *mut Scan) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(scan) };
}
