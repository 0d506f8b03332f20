//! Errors, as objects.

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use engine::{Error, ErrorKind};

use crate::raw::{free, set};

/// Why a function failed.
pub struct Failure {
    error: Error,
    message: CString,
    file: Option<CString>,
}

impl Failure {
    /// Of `error`.
    pub fn new(error: Error) -> Failure {
        let damaged = error.damage().map(|damage| damage.file.as_path());
        let file = damaged.or(error.path()).map(|file| c_text(&file.to_string_lossy()));
        Failure { message: c_text(&error.to_string()), file, error }
    }
}

/// `text` up to its first zero, with one at its end.
fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

/// The kind of a failure. ErrorKind in the documentation of the Rust crate says what each means, and how to react.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A kind that is newer than this header.
    SiltstoneUnknown = 0,
    /// A file operation failed.
    SiltstoneIo = 1,
    /// The device is full.
    SiltstoneNoSpace = 2,
    /// Stored bytes differ from the written bytes.
    SiltstoneCorruption = 3,
    /// Another process, or another handle, has the database open for writing.
    SiltstoneLocked = 4,
    /// A key, value, batch or count exceeds a limit; nothing was written.
    SiltstoneLimitExceeded = 5,
    /// An argument is invalid; nothing was done.
    SiltstoneInvalidArgument = 6,
    /// The key has an ending that the partition reserves; nothing was written.
    SiltstoneReservedKey = 7,
    /// The call would have to wait for compactions; nothing was written.
    SiltstoneWouldStall = 8,
    /// Another writer changed what the batch or transaction depends on; nothing was written.
    SiltstoneConflict = 9,
    /// Another transaction has the lock of a key.
    SiltstoneLockTimeout = 10,
    /// The transaction waits for a key whose owner waits for the transaction.
    SiltstoneDeadlock = 11,
    /// The partition does not exist, or was dropped.
    SiltstonePartitionNotFound = 12,
    /// The store refuses writes.
    SiltstoneReadOnly = 13,
    /// The database was closed, or is that of the parent of this process.
    SiltstoneClosed = 14,
    /// A hook failed or panicked.
    SiltstoneHookPanicked = 15,
    /// Code of the library panicked: a bug.
    SiltstoneInternal = 16,
    /// The files need a newer version, or a feature that this one does not know.
    SiltstoneUnsupported = 17,
    /// The primary deleted a file that a reader reads.
    SiltstoneFileGone = 18,
    /// The manifest that a secondary reads is too old.
    SiltstoneNeedsManifest = 19,
    /// The token names a commit that this database will never have.
    SiltstoneSessionLost = 20,
    /// A secondary lost its lease.
    SiltstoneLeaseLost = 21,
    /// The log does not reach back to the position of a feed.
    SiltstoneTooOld = 22,
    /// The partition has no log.
    SiltstoneNotLogged = 23,
    /// A secondary could not catch up within its time limit.
    SiltstoneBehind = 24,
    /// Another process has taken the database over.
    SiltstoneFenced = 25,
}

impl From<ErrorKind> for Kind {
    fn from(kind: ErrorKind) -> Kind {
        match kind {
            ErrorKind::Io => Kind::SiltstoneIo,
            ErrorKind::NoSpace => Kind::SiltstoneNoSpace,
            ErrorKind::Corruption => Kind::SiltstoneCorruption,
            ErrorKind::Locked => Kind::SiltstoneLocked,
            ErrorKind::LimitExceeded => Kind::SiltstoneLimitExceeded,
            ErrorKind::InvalidArgument => Kind::SiltstoneInvalidArgument,
            ErrorKind::ReservedKey => Kind::SiltstoneReservedKey,
            ErrorKind::WouldStall => Kind::SiltstoneWouldStall,
            ErrorKind::Conflict => Kind::SiltstoneConflict,
            ErrorKind::LockTimeout => Kind::SiltstoneLockTimeout,
            ErrorKind::Deadlock => Kind::SiltstoneDeadlock,
            ErrorKind::PartitionNotFound => Kind::SiltstonePartitionNotFound,
            ErrorKind::ReadOnly => Kind::SiltstoneReadOnly,
            ErrorKind::Closed => Kind::SiltstoneClosed,
            ErrorKind::HookPanicked => Kind::SiltstoneHookPanicked,
            ErrorKind::Internal => Kind::SiltstoneInternal,
            ErrorKind::Unsupported => Kind::SiltstoneUnsupported,
            ErrorKind::FileGone => Kind::SiltstoneFileGone,
            ErrorKind::NeedsManifest => Kind::SiltstoneNeedsManifest,
            ErrorKind::SessionLost => Kind::SiltstoneSessionLost,
            ErrorKind::LeaseLost => Kind::SiltstoneLeaseLost,
            ErrorKind::TooOld => Kind::SiltstoneTooOld,
            ErrorKind::NotLogged => Kind::SiltstoneNotLogged,
            ErrorKind::Behind => Kind::SiltstoneBehind,
            ErrorKind::Fenced => Kind::SiltstoneFenced,
            _ => Kind::SiltstoneUnknown,
        }
    }
}

/// Returns the kind of an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_error_kind(error: *const Failure) -> Kind {
    // SAFETY: contract 1 of `raw`.
    unsafe { error.as_ref() }.map_or(Kind::SiltstoneUnknown, |it| it.error.kind().into())
}

/// Returns the text of an error, which names the file, the offset, the key or the limit. It lives as long as the
/// error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_error_message(error: *const Failure) -> *const c_char {
    // SAFETY: contract 1 of `raw`.
    unsafe { error.as_ref() }.map_or(c"no error".as_ptr(), |it| it.message.as_ptr())
}

/// Returns whether the same call may succeed later without any other action.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_error_is_retryable(error: *const Failure) -> bool {
    // SAFETY: contract 1 of `raw`.
    unsafe { error.as_ref() }.is_some_and(|it| it.error.is_retryable())
}

/// Returns the file of a failed operation or of damage, or NULL. It lives as long as the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_error_file(error: *const Failure) -> *const c_char {
    // SAFETY: contract 1 of `raw`.
    let file = unsafe { error.as_ref() }.and_then(|it| it.file.as_ref());
    file.map_or(ptr::null(), |file| file.as_ptr())
}

/// Sets `offset` to the place of damage in its file. Returns false if it is not known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_error_offset(error: *const Failure, offset: *mut u64) -> bool {
    // SAFETY: contract 1 of `raw`.
    let damage = unsafe { error.as_ref() }.and_then(|it| it.error.damage());
    let Some(found) = damage.and_then(|damage| damage.offset) else { return false };
    // SAFETY: contract 1 of `raw`.
    unsafe { set(offset, found) };
    true
}

/// Returns the damaged key, and sets `len` to its length; NULL if it is not known. It lives as long as the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_error_key(
    error: *const Failure,
    len: *mut usize,
) -> *const c_void {
    // SAFETY: contract 1 of `raw`.
    let damage = unsafe { error.as_ref() }.and_then(|it| it.error.damage());
    let Some(key) = damage.and_then(|damage| damage.key.as_ref()) else { return ptr::null() };
    // SAFETY: contract 1 of `raw`.
    unsafe { set(len, key.len()) };
    key.as_ptr().cast()
}

/// Frees an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_error_free(error: *mut Failure) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(error) };
}
