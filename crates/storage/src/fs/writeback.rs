//! [`begin_writeback`]: the system begins to write a file to the device before a caller waits for it.
//! [`begin_next_writeback`] first waits for what was begun before.
//!
//! Called by `fs/os.rs`. It makes nothing durable, and no caller may rely on it: neither the length of
//! the file nor the cache of the device is written. A sync of the file follows.

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SYNC_FILE_RANGE_WRITE` of `linux/fs.h`: begins, and does not wait.
const WRITE: c_uint = 2;
/// `SYNC_FILE_RANGE_WAIT_BEFORE`: waits for pages that are being written.
const WAIT_BEFORE: c_uint = 1;
const ENOSYS: c_int = rustix::io::Errno::NOSYS.raw_os_error();
const EINVAL: c_int = rustix::io::Errno::INVAL.raw_os_error();
const ESPIPE: c_int = rustix::io::Errno::SPIPE.raw_os_error();

unsafe extern "C" {
    /// Of the C library, which std links; rustix does not have it.
    fn sync_file_range(fd: c_int, offset: i64, len: i64, flags: c_uint) -> c_int;
}

/// Asks the system to begin writing the dirty pages of a file. Advice: it may do nothing, and a page
/// that it fails to write is reported by the next sync.
pub(super) fn begin_writeback(file: BorrowedFd<'_>) {
    let _ = write_back(file, WRITE);
}

/// As [`begin_writeback`], when the device has those pages that it was given before.
///
/// # Errors
/// Those of the device. The wait takes the error of a failed page as a sync does, and a later sync of the
/// file returns `Ok`: whoever passes over this error loses what was in the page.
pub(super) fn begin_next_writeback(file: BorrowedFd<'_>) -> io::Result<()> {
    match write_back(file, WAIT_BEFORE | WRITE) {
        // Where there is no such call, nothing was waited for, and the sync has the error.
        Err(error) if matches!(error.raw_os_error(), Some(ENOSYS | EINVAL | ESPIPE)) => Ok(()),
        done => done,
    }
}

fn write_back(file: BorrowedFd<'_>, flags: c_uint) -> io::Result<()> {
    // Length 0 means up to the end of the file.
    // SAFETY: the call reads and writes no memory of the process. Its descriptor is borrowed, so it is
    // open until the call returns.
    let done = unsafe { sync_file_range(file.as_raw_fd(), 0, 0, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
