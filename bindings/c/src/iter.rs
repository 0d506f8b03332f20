//! Iterators: cursors over a range, in both directions.

use std::ffi::c_void;
use std::ptr;

use engine::{Cursor, Readable, Result};

use crate::db::Snapshot;
use crate::error::Failure;
use crate::partition::Partition;
use crate::raw::{bytes, free, give, guard, object, object_mut, range, set};

/// A cursor over a range. It shows the state of the moment at which it was made.
pub struct Iter(pub(crate) Cursor);

/// Returns an iterator over the keys from `start` on and before `stop`; NULL is no bound. It reads a snapshot that is not
/// NULL, or the present state. It is on no entry at first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_iter_create(
    partition: *const Partition,
    snapshot: *const Snapshot,
    start: *const c_void,
    start_len: usize,
    stop: *const c_void,
    stop_len: usize,
    error: *mut *mut Failure,
) -> *mut Iter {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let partition = &object(partition, "partition")?.0;
            let range = range(start, start_len, stop, stop_len)?;
            let cursor = match snapshot.as_ref() {
                Some(snapshot) => snapshot.0.of(partition).cursor_in(range),
                None => partition.cursor_in(range),
            };
            Ok(give(Iter(cursor)))
        })
    }
}

/// Frees an iterator, and what it holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_iter_free(iter: *mut Iter) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(iter) };
}

/// Moves an iterator.
///
/// # Safety
/// Contracts 1 and 2 of `raw`.
unsafe fn step(
    iter: *mut Iter,
    error: *mut *mut Failure,
    call: impl FnOnce(&mut Cursor) -> Result<()>,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { guard(error, false, || call(&mut object_mut(iter, "iter")?.0).map(|()| true)) }
}

/// Returns whether the iterator is on an entry. It is not before the first move, after the end, and after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_iter_valid(iter: *const Iter) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { iter.as_ref() }.is_some_and(|iter| iter.0.valid())
}

/// Moves to the first entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_iter_seek_to_first(
    iter: *mut Iter,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { step(iter, error, Cursor::seek_to_first) }
}

/// Moves to the last entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_iter_seek_to_last(
    iter: *mut Iter,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { step(iter, error, Cursor::seek_to_last) }
}

/// Moves to the first entry whose key is `key` or after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_iter_seek(
    iter: *mut Iter,
    key: *const c_void,
    key_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { step(iter, error, |cursor| cursor.seek(bytes(key, key_len, "key")?)) }
}

/// Moves to the last entry whose key is before `key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_iter_seek_before(
    iter: *mut Iter,
    key: *const c_void,
    key_len: usize,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { step(iter, error, |cursor| cursor.seek_before(bytes(key, key_len, "key")?)) }
}

/// Moves to the next entry. The iterator must be on one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_iter_next(iter: *mut Iter, error: *mut *mut Failure) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { step(iter, error, |cursor| on_entry(cursor)?.next()) }
}

/// Moves to the previous entry. The iterator must be on one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_iter_prev(iter: *mut Iter, error: *mut *mut Failure) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe { step(iter, error, |cursor| on_entry(cursor)?.prev()) }
}

/// `cursor`, if it is on an entry.
fn on_entry(cursor: &mut Cursor) -> Result<&mut Cursor> {
    if cursor.valid() {
        return Ok(cursor);
    }
    let message = "the iterator is on no entry";
    Err(engine::Error::new(engine::ErrorKind::InvalidArgument, message))
}

/// Returns the key of the entry, and sets `len` to its length; NULL if the iterator is on none. The bytes live until the
/// iterator is moved or freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_iter_key(iter: *const Iter, len: *mut usize) -> *const c_void {
    // SAFETY: contract 1 of `raw`.
    let Some(iter) = (unsafe { iter.as_ref() }).filter(|iter| iter.0.valid()) else {
        return ptr::null();
    };
    let key = iter.0.key();
    // SAFETY: contract 1 of `raw`.
    unsafe { set(len, key.len()) };
    key.as_ptr().cast()
}

/// Returns the value of the entry, and sets `len` to its length. A large value is read by this call. The bytes live until
/// the iterator is moved or freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_iter_value(
    iter: *const Iter,
    len: *mut usize,
    error: *mut *mut Failure,
) -> *const c_void {
    // SAFETY: contract 1 of `raw`.
    unsafe {
        guard(error, ptr::null(), || {
            let cursor = &object(iter, "iter")?.0;
            if !cursor.valid() {
                let message = "the iterator is on no entry";
                return Err(engine::Error::new(engine::ErrorKind::InvalidArgument, message));
            }
            let value = cursor.value()?;
            set(len, value.len());
            Ok(value.as_ptr().cast())
        })
    }
}
