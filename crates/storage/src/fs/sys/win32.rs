//! Calls of Windows that std does not have in a usable form: a lock that does not cover the bytes of a file,
//! and free space.
//!
//! Called by `os.rs` through `sys`. On Windows a locked range cannot be written or read through another
//! handle. `File::try_lock` of std locks the whole file, so the owner of a lease could not append to it, and
//! a primary could not read it. Here the lock is one byte beyond the bytes of any file.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::io::AsRawHandle;
use std::path::Path;
use std::ptr;

/// `LOCKFILE_FAIL_IMMEDIATELY` and `LOCKFILE_EXCLUSIVE_LOCK` of `minwinbase.h`.
const AT_ONCE: u32 = 1;
const EXCLUSIVE: u32 = 2;
/// `ERROR_LOCK_VIOLATION` and `ERROR_IO_PENDING` of `winerror.h`: another handle has the lock.
const HELD: [Option<i32>; 2] = [Some(33), Some(997)];
/// The upper half of the offset of the locked byte, 2^62: beyond the longest file.
const OFFSET_HIGH: u32 = 1 << 30;

/// `OVERLAPPED` of `minwinbase.h`.
#[repr(C)]
struct Overlapped {
    internal: usize,
    internal_high: usize,
    offset: u32,
    offset_high: u32,
    event: *mut c_void,
}

#[link(name = "kernel32")]
unsafe extern "system" {
    fn LockFileEx(
        file: *mut c_void,
        flags: u32,
        reserved: u32,
        len_low: u32,
        len_high: u32,
        overlapped: *mut Overlapped,
    ) -> i32;

    fn UnlockFileEx(
        file: *mut c_void,
        reserved: u32,
        len_low: u32,
        len_high: u32,
        overlapped: *mut Overlapped,
    ) -> i32;

    fn GetDiskFreeSpaceExW(
        folder: *const u16,
        free_to_caller: *mut u64,
        total: *mut u64,
        free: *mut u64,
    ) -> i32;
}

fn locked_byte() -> Overlapped {
    Overlapped {
        internal: 0,
        internal_high: 0,
        offset: 0,
        offset_high: OFFSET_HIGH,
        event: ptr::null_mut(),
    }
}

/// Locks the file until it is closed, for itself or shared, without waiting. Returns `false` if it is locked
/// by another handle.
pub(in crate::fs) fn try_lock(file: &File, is_exclusive: bool) -> io::Result<bool> {
    let flags = AT_ONCE | if is_exclusive { EXCLUSIVE } else { 0 };
    let mut overlapped = locked_byte();
    // SAFETY: the handle is open as long as `file` is borrowed. It was not opened for overlapped calls, and
    // the call does not wait, so the system does not use `overlapped` after it returns.
    let done = unsafe { LockFileEx(file.as_raw_handle(), flags, 0, 1, 0, &raw mut overlapped) };
    if done != 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if HELD.contains(&error.raw_os_error()) { Ok(false) } else { Err(error) }
}

/// Releases the lock. The system would do so after the file is closed, but not at once.
pub(in crate::fs) fn unlock(file: &File) -> io::Result<()> {
    let mut overlapped = locked_byte();
    // SAFETY: as in `try_lock`.
    let done = unsafe { UnlockFileEx(file.as_raw_handle(), 0, 1, 0, &raw mut overlapped) };
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Free space where the folder lies, in bytes.
pub(in crate::fs) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let name: Vec<u16> = folder.as_os_str().encode_wide().chain([0]).collect();
    let mut free = 0;
    // SAFETY: `name` ends with a zero, `free` is writable, and the call takes null for what is not asked for.
    let done = unsafe {
        GetDiskFreeSpaceExW(name.as_ptr(), &raw mut free, ptr::null_mut(), ptr::null_mut())
    };
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(free) }
}
