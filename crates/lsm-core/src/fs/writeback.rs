//! [`begin_writeback`]: the system begins to write a file to the device before somebody waits for it.
//!
//! Called by `fs/os.rs`. It makes nothing durable, and no caller may rely on it: neither the length of
//! the file nor the cache of the device is written. A sync of the file follows.

use std::ffi::{c_int, c_uint};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SYNC_FILE_RANGE_WRITE` of `linux/fs.h`: begins, and does not wait.
const WRITE: c_uint = 2;

unsafe extern "C" {
    /// Of the C library, which std links; rustix does not have it.
    fn sync_file_range(fd: c_int, offset: i64, len: i64, flags: c_uint) -> c_int;
}

/// Asks the system to begin writing the dirty pages of a file. Advice: it may do nothing, and a page
/// that it fails to write is reported by the next sync.
pub(super) fn begin_writeback(file: BorrowedFd<'_>) {
    // Length 0 means up to the end of the file.
    // SAFETY: the call reads and writes no memory of the process. Its descriptor is borrowed, so it is
    // open until the call returns.
    let _ = unsafe { sync_file_range(file.as_raw_fd(), 0, 0, WRITE) };
}
