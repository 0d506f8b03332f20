//! Pointers of a caller as references, and the end of panics. Every function of the interface goes through here.
//!
//! The safety of this crate is the caller's part of a contract, which the header states, and this crate's:
//!
//! 1. A pointer to an object is NULL or was returned by this library and not freed since. A pointer to bytes is valid
//!    for its length during the call. A pointer to an output is NULL or valid for writes.
//! 2. An object that only one thread at a time may use is used by one at a time. So a unique reference to it is
//!    unique.
//! 3. Objects are boxes. A box is made by [`give`], and ended by [`free`] alone.
//! 4. Nothing that is lent to a caller outlives what owns it: the header says for each function until when.
//! 5. A function of the caller may be called from any thread, and from several at once, with its context, until its
//!    destructor is called. It returns: it does not unwind, and does not jump out.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::slice;
use std::thread;

use engine::{Error, ErrorKind, Result};

use crate::error::Failure;

thread_local! {
    /// Whether this thread runs a hook of the caller.
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a hook of the caller, within which [`guard`] refuses every call.
pub fn in_hook<T>(hook: impl FnOnce() -> T) -> T {
    // A destructor may run in a hook: one that frees the last object of another hook.
    let before = IN_HOOK.replace(true);
    // It does not unwind, by contract 5.
    let result = hook();
    IN_HOOK.set(before);
    result
}

/// Runs `call`; a failure and a panic go to `error`, and `failed` is returned. Refuses a call from a hook: a close, a
/// flush or a write would wait for the very job that waits for the hook.
///
/// # Safety
/// Contract 1 for `error`.
pub unsafe fn guard<T>(error: *mut *mut Failure, failed: T, call: impl FnOnce() -> Result<T>) -> T {
    // What a panic leaves inside of the engine is its own concern: its locks have no poison, and each of its calls is
    // whole or not at all.
    let outcome = match IN_HOOK.get() {
        false => {
            catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(of_panic(&*panic)))
        }
        true => {
            let message = "a hook may call no function of siltstone but those of its output";
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
    };
    match outcome {
        Ok(result) => result,
        Err(cause) => {
            // SAFETY: contract 1.
            if let Some(place) = unsafe { error.as_mut() } {
                *place = give(Failure::new(cause));
            }
            failed
        }
    }
}

/// [`guard`] for a call that ends the object at `pointer`, also if it is refused or fails.
///
/// # Safety
/// Contracts 1, 2 and 3, for `error` and `pointer`.
pub unsafe fn guard_taking<T: Send + 'static, R>(
    pointer: *mut T,
    what: &str,
    error: *mut *mut Failure,
    failed: R,
    call: impl FnOnce(T) -> Result<R>,
) -> R {
    // SAFETY: contracts 1, 2 and 3. In a hook it is freed here, and `guard` does not run its call.
    unsafe {
        if IN_HOOK.get() {
            free(pointer);
        }
        guard(error, failed, || {
            object(pointer.cast_const(), what)?;
            call(*Box::from_raw(pointer))
        })
    }
}

/// Returns `true` on a thread that runs a hook of the caller.
pub fn is_in_hook() -> bool {
    IN_HOOK.get()
}

/// Runs `call`, which returns nothing and cannot fail.
pub fn quietly(call: impl FnOnce()) {
    // A panic of a drop: there is no place for it, and the object is gone.
    drop(catch_unwind(AssertUnwindSafe(call)));
}

fn of_panic(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    Error::new(ErrorKind::Internal, format!("a panic: {}", text.unwrap_or("without a text")))
}

/// An object for the caller.
pub fn give<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Frees an object.
///
/// # Safety
/// Contracts 1 and 3.
pub unsafe fn free<T: Send + 'static>(object: *mut T) {
    if object.is_null() {
        return;
    }
    // SAFETY: by contract 3 it was made by `give`, and is freed once.
    let object = ManuallyDrop::new(unsafe { Box::from_raw(object) });
    if !IN_HOOK.get() {
        quietly(|| drop(ManuallyDrop::into_inner(object)));
        return;
    }
    // It may be the last one of its database, whose close waits for the job that calls the hook. Without a thread it
    // stays for ever, which a hook must expect that frees what it should not.
    let freeing = thread::Builder::new().name("siltstone-free".to_owned());
    drop(freeing.spawn(move || quietly(|| drop(ManuallyDrop::into_inner(object)))));
}

pub(crate) fn null(what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{what} is NULL"))
}

/// The object at `pointer`.
///
/// # Safety
/// Contract 1; the result ends with the call.
pub unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: contract 1.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// The object at `pointer`, for a change.
///
/// # Safety
/// Contracts 1 and 2; the result ends with the call.
pub unsafe fn object_mut<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: contracts 1 and 2.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(what))
}

/// The `len` bytes at `data`.
///
/// # Safety
/// Contract 1; the result ends with the call.
pub unsafe fn bytes<'a>(data: *const c_void, len: usize, what: &str) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() || isize::try_from(len).is_err() {
        return Err(null(what));
    }
    // SAFETY: contract 1; the length fits into an `isize`.
    Ok(unsafe { slice::from_raw_parts(data.cast(), len) })
}

/// Both ends of a range of keys.
pub type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The range from `start` on and before `stop`.
///
/// # Safety
/// Contract 1; the result ends with the call.
pub unsafe fn range<'a>(
    start: *const c_void,
    start_len: usize,
    stop: *const c_void,
    stop_len: usize,
) -> Result<KeyBounds<'a>> {
    // SAFETY: contract 1.
    let (lower, upper) =
        unsafe { (bytes(start, start_len, "start")?, bytes(stop, stop_len, "stop")?) };
    Ok((
        if start.is_null() { Bound::Unbounded } else { Bound::Included(lower) },
        if stop.is_null() { Bound::Unbounded } else { Bound::Excluded(upper) },
    ))
}

/// The text at `text`.
///
/// # Safety
/// Contract 1; the result ends with the call.
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: contract 1; the header says that it ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, format!("{what} is not UTF-8: {text:?}"))
    })
}

/// The path at `path`.
///
/// # Safety
/// Contract 1.
pub unsafe fn path(path: *const c_char, what: &str) -> Result<PathBuf> {
    if path.is_null() {
        return Err(null(what));
    }
    #[cfg(unix)]
    {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;

        // SAFETY: contract 1; the header says that it ends with a zero.
        Ok(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()).into())
    }
    #[cfg(not(unix))]
    {
        // SAFETY: as the caller's.
        Ok(unsafe { text(path, what) }?.into())
    }
}

/// Writes `value` to `place`, if the caller wants it.
///
/// # Safety
/// Contract 1.
pub unsafe fn set<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: contract 1. What was there is the caller's, and is not dropped.
        unsafe { place.write(value) };
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;
    use std::ptr;

    use super::*;
    use crate::error::{Kind, siltstone_error_free, siltstone_error_kind, siltstone_error_message};

    #[test]
    fn a_panic_is_an_error_and_does_not_leave_the_call() {
        type Call = Box<dyn FnOnce() -> Result<bool>>;
        let calls: [(Call, &str); 3] = [
            (Box::new(|| -> Result<bool> { panic!("of {}", 1) }), "a panic: of 1"),
            (Box::new(|| -> Result<bool> { panic!("plain") }), "a panic: plain"),
            (Box::new(|| -> Result<bool> { panic_any(7) }), "a panic: without a text"),
        ];
        for (call, text) in calls {
            let mut error = ptr::null_mut();
            // SAFETY: the place of the error is a variable, and the error is freed once.
            unsafe {
                assert!(!guard(&raw mut error, false, call));
                assert_eq!(siltstone_error_kind(error), Kind::SiltstoneInternal);
                assert_eq!(CStr::from_ptr(siltstone_error_message(error)).to_str(), Ok(text));
                siltstone_error_free(error);
            }
        }
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("in a drop");
            }
        }
        // SAFETY: it was made by `give`. The second call has no place for its error.
        unsafe {
            free(give(Panics));
            assert!(!guard(ptr::null_mut(), false, || panic!("no one asks")));
        }
    }

    #[test]
    fn null_is_no_object_and_no_bytes() {
        // SAFETY: NULL may be passed for each.
        unsafe {
            assert!(object::<u8>(ptr::null(), "it").is_err() && text(ptr::null(), "it").is_err());
            assert!(
                object_mut::<u8>(ptr::null_mut(), "it").is_err()
                    && path(ptr::null(), "it").is_err()
            );
            assert_eq!(bytes(ptr::null(), 0, "it").expect("no bytes"), b"");
            let refused = bytes(ptr::null(), 1, "it").expect_err("one byte of nothing");
            assert_eq!(refused.to_string(), "it is NULL");
            set(ptr::null_mut::<u8>(), 7);
            free(ptr::null_mut::<u8>());
        }
    }
}
