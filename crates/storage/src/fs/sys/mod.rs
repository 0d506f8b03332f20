//! The calls below [`OsFs`](super::OsFs) that differ from system to system: those that find and open files,
//! and those that do more with an open one than std can.
//!
//! Called by `os.rs` and `held.rs` alone. The only place in `fs` that depends on the system: a new difference
//! is a function with one name in each of the files, so that the callers do not know of it. A missing feature
//! is `None`, nothing, or an error of the kind `Unsupported`, as the docs of [`Fs`](super::Fs) and
//! [`File`](super::File) define for each call.
//!
//! Invariants:
//! 1. The files found by [`At`] and the positional calls are of one system: `unix.rs`, or `paths.rs` with
//!    `windows.rs` and `win32.rs` or `unknown.rs`.
//! 2. `linux.rs` and `plain.rs` have the same functions. Only the former changes more of a file than std can.

#![allow(
    clippy::disallowed_methods,
    reason = "the part of the seam that opens files; not all systems need it"
)]

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(unix))]
mod paths;
#[cfg(not(target_os = "linux"))]
mod plain;
#[cfg(unix)]
mod unix;
#[cfg(not(any(unix, windows)))]
mod unknown;
#[cfg(windows)]
#[expect(unsafe_code, reason = "calls of the system that std does not have in a usable form")]
mod win32;
#[cfg(windows)]
mod windows;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::names::TEMPORARY_SUFFIX;
use crate::machine;

#[cfg(target_os = "linux")]
pub(super) use linux::*;
#[cfg(not(unix))]
pub(super) use paths::{Folder, PathAt as At};
#[cfg(not(target_os = "linux"))]
pub(super) use plain::{NeverMapped as MappedAppends, *};
#[cfg(unix)]
pub(super) use unix::*;
#[cfg(not(any(unix, windows)))]
pub(super) use unknown::*;
#[cfg(windows)]
pub(super) use win32::*;
#[cfg(windows)]
pub(super) use windows::*;

/// Distinguishes unfinished files of concurrent publications of this process.
pub(super) static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);

/// A name next to `path` for an unfinished file. A file that a crash left may have it.
fn temporary_name(path: &Path) -> PathBuf {
    let number = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
    let mut name = OsString::from(path);
    name.push(format!(".{}-{number}{TEMPORARY_SUFFIX}", machine::process_id()));
    PathBuf::from(name)
}
