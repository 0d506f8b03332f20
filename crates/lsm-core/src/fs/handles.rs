//! The file handles of the process: who gives some back when there is none left for an open.
//!
//! A process may hold only so many files open, whichever database, secondary or part of one holds them. So
//! [`with_handle`] surrounds the calls of the system that open a file or a folder, and asks all sets of open
//! files of the process, also those of other databases. The alternative, a share of the limit for each set,
//! must be small enough for any number of sets, and a single one then opens files again and again.
//!
//! Invariants:
//! 1. No caller of [`with_handle`] holds a lock that [`HandleHolder::close_half`] takes.
//! 2. Nothing waits for the lock of the list here: a child of the process may find it taken for good.

use std::io;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::machine::is_out_of_handles;

/// The sets of this process. Some may be dropped already.
static HOLDERS: Mutex<Vec<Weak<dyn HandleHolder>>> = Mutex::new(Vec::new());

/// A set of files that can be closed, and opened again when they are used.
pub(super) trait HandleHolder: Send + Sync {
    /// Closes half of the files. Returns `false` if it closes none.
    fn close_half(&self) -> bool;
}

/// Adds a set to those that are asked.
pub(super) fn add_holder(holder: Weak<dyn HandleHolder>) {
    let mut holders = HOLDERS.lock();
    holders.retain(|holder| holder.strong_count() > 0);
    holders.push(holder);
}

/// Calls `open`, which opens one file. As long as the process has no handle left for it, sets close files, and
/// it is called again: files of the sets are opened again when they are used, and other files are not.
///
/// # Errors
/// Those of `open`. That of a process without a handle if the sets have no file left to close.
pub(super) fn with_handle<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    loop {
        match open() {
            Err(error) if is_out_of_handles(&error) && give_back() => {}
            opened => return opened,
        }
    }
}

/// Lets each set close half of its files. Half at once: after one for each open, the next open would find no
/// handle again. Returns `false` if no set closes any.
#[cold]
fn give_back() -> bool {
    // Another thread holds it for a moment only, but in a child of the process perhaps for ever.
    let Some(holders) = HOLDERS.try_lock().map(|holders| holders.clone()) else { return false };
    let holders: Vec<Arc<_>> = holders.iter().filter_map(Weak::upgrade).collect();
    // Each of them, not up to the first that closes some.
    holders.iter().filter(|holder| holder.close_half()).count() > 0
}
