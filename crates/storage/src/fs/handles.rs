//! The file handles of the process: who gives some back when there is none left for an open.
//!
//! A process may hold only so many files open, whichever database, secondary or part of one holds them. So
//! [`with_handle`] surrounds the calls of the system that open a file or a folder, and asks all sets of open
//! files of the process, also those of other databases. The alternative, a share of the limit for each set,
//! must be small enough for any number of sets, and a single one then opens files again and again.
//!
//! Invariants:
//! 1. No caller of [`with_handle`] holds a lock that [`HandleHolder::close_half`] takes.
//! 2. Threads that find no handle at the same moment do not wait for each other, and none of them fails because of
//!    another.
//! 3. No open waits for the lock of the list: a child of the process may find it taken for good.

use std::io;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::machine::is_out_of_handles;

/// Attempts to read the list while another thread adds a set to it.
const ATTEMPTS: u32 = 1000;

/// The sets of this process.
static HOLDERS: HandleHolders = HandleHolders(RwLock::new(Vec::new()));

/// A set of files that can be closed, and opened again when they are used.
pub(super) trait HandleHolder: Send + Sync {
    /// Closes half of the files. Returns `false` if it closes none.
    fn close_half(&self) -> bool;
}

/// Sets of files; some may be dropped already.
struct HandleHolders(RwLock<Vec<Weak<dyn HandleHolder>>>);

/// Adds a set to those that are asked.
pub(super) fn add_holder(holder: Weak<dyn HandleHolder>) {
    HOLDERS.add(holder);
}

/// Calls `open`, which opens one file. As long as the process has no handle left for it, sets close files, and
/// it is called again: files of the sets are opened again when they are used, and other files are not.
///
/// # Errors
/// Those of `open`. That of a process without a handle if the sets have no file left to close.
pub(super) fn with_handle<T>(open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    HOLDERS.with_handle(open)
}

impl HandleHolders {
    fn add(&self, holder: Weak<dyn HandleHolder>) {
        let mut holders = self.0.write();
        holders.retain(|holder| holder.strong_count() > 0);
        holders.push(holder);
    }

    fn with_handle<T>(&self, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let mut is_any_closed = true;
        loop {
            match open() {
                // Once more if none is closed: another thread may have closed all of them just before.
                Err(error) if is_out_of_handles(&error) && is_any_closed => {
                    is_any_closed = self.close_half();
                }
                opened => return opened,
            }
        }
    }

    /// Lets each set close half of its files. Half at once: after one for each open, the next open would find no
    /// handle again. Returns `false` if no set closes any.
    #[cold]
    fn close_half(&self) -> bool {
        let holders: Vec<Arc<_>> = self.alive();
        // Each of them, not up to the first that closes some.
        holders.iter().filter(|holder| holder.close_half()).count() > 0
    }

    fn alive(&self) -> Vec<Arc<dyn HandleHolder>> {
        for _ in 0..ATTEMPTS {
            if let Some(holders) = self.0.try_read() {
                return holders.iter().filter_map(Weak::upgrade).collect();
            }
            std::thread::yield_now();
        }
        // In a child whose parent added a set at the moment of the fork.
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::machine::out_of_handles;

    /// Files that are open.
    struct Files(AtomicUsize);

    impl HandleHolder for Files {
        fn close_half(&self) -> bool {
            let open = self.0.load(Ordering::Relaxed);
            self.0.store(open / 2, Ordering::Relaxed);
            open > 0
        }
    }

    fn holders(sets: &[Arc<Files>]) -> HandleHolders {
        let holders = HandleHolders(RwLock::default());
        for set in sets {
            let set: Weak<Files> = Arc::downgrade(set);
            holders.add(set);
        }
        holders
    }

    fn set(open: usize) -> Arc<Files> {
        Arc::new(Files(AtomicUsize::new(open)))
    }

    /// An open that succeeds if at most `most` files of the sets are open.
    fn open(sets: &[Arc<Files>], most: usize) -> io::Result<usize> {
        let open = sets.iter().map(|set| set.0.load(Ordering::Relaxed)).sum();
        if open > most { Err(out_of_handles()) } else { Ok(open) }
    }

    #[test]
    fn all_sets_close_files_until_one_can_be_opened() {
        let sets = [set(5), set(0), set(3)];
        let holders = holders(&sets);
        assert_eq!(holders.with_handle(|| open(&sets, 2)).unwrap(), 1, "5 + 3, 2 + 1, 1 + 0");
        drop(sets);
        assert!(holders.with_handle(|| Err::<(), _>(out_of_handles())).is_err());
        let missing = holders.with_handle(|| Err::<(), _>(io::ErrorKind::NotFound.into()));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn handles_that_another_thread_has_given_back_are_found() {
        let mut calls = 0;
        let opened = holders(&[set(0)]).with_handle(|| {
            calls += 1;
            if calls == 1 { Err(out_of_handles()) } else { Ok(()) }
        });
        assert!(opened.is_ok() && calls == 2);
    }

    #[test]
    fn a_thread_that_asks_the_sets_keeps_no_other_from_it() {
        let sets = [set(1)];
        let holders = holders(&sets);
        let _asking = holders.0.read();
        assert_eq!(holders.with_handle(|| open(&sets, 0)).unwrap(), 0);
    }
}
