//! [`Process`]: the process that made a thing, as distinct from its children.
//!
//! A child of `fork` has a copy of every handle, and none of the threads. It shares files and locks
//! with its parent: a write at its own offsets would destroy the database. So everything that
//! writes files, waits for threads or takes locks stores its process, and returns an error in any
//! other.
//!
//! The system call for the number of the process takes 200 to 300 ns, a quarter of a put. So on
//! Linux a process has a page that the kernel empties in every child (`MADV_WIPEONFORK`), and a
//! check costs two loads, below 1 ns. Without such a page, the system is asked. The alternative, a
//! handler of `pthread_atfork`, is not called by every way to fork.
//!
//! A child cannot open a database of its own either, if its parent had one open at the fork. The locks of the
//! whole program share one table of the threads that wait (`parking_lot`), and a child inherits it with
//! threads that do not exist there.
//!
//! Invariants:
//! 1. The page is never unmapped, and holds one word that is only used as an atomic.
//! 2. Numbers grow from parent to child, so no process has the number of an ancestor.

#[cfg(any(target_os = "linux", target_os = "android"))]
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::machine;

/// A process: the one that made a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// Returns the process of the caller.
    #[inline]
    pub fn current() -> Process {
        Process(current())
    }

    /// Returns `false` in a child of this process.
    #[inline]
    pub fn is_current(self) -> bool {
        current() == self.0
    }

    /// Checks that the caller runs in this process, and not in a child of it. Before any lock is taken: a
    /// lock that another thread held at the fork is never free in the child.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    #[inline]
    pub fn check(self) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(forked()) }
    }
}

/// The databases and secondaries that are open: in the upper half the number of their process, in the lower
/// one their number. A child finds those that its parent had at the fork. One word, so that both are of one
/// process. Relaxed: no other memory depends on it.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// A database or secondary that is open in this process; dropped, it is closed.
#[derive(Debug)]
pub struct Opened(Process);

impl Opened {
    /// Notes one that is about to be opened.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the parent of the process had one open at the fork.
    pub fn note() -> Result<Opened> {
        let process = Process::current();
        let noted = OPENED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |opened| {
            if opened >> 32 == process.0 & COUNT {
                return Some(opened + 1);
            }
            // The open ones belong to the parent, unless their number is 0.
            (opened & COUNT == 0).then_some(process.0 << 32 | 1)
        });
        noted.map(|_| Opened(process)).map_err(|_| opened_by_parent())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // A child does not change the parent's count: it stays refused.
        let _ = OPENED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |opened| {
            let is_own = opened >> 32 == self.0.0 & COUNT && self.0.is_current();
            is_own.then(|| opened - 1)
        });
    }
}

/// The lower half of [`OPENED`].
const COUNT: u64 = u32::MAX as u64;

#[cold]
fn opened_by_parent() -> Error {
    let message = format!(
        "process {} was forked while a database was open: it cannot open one; fork before the first open, or \
         start a program in the child",
        machine::process_id()
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// The error of every call in a child.
#[cold]
fn forked() -> Error {
    let message = format!(
        "process {} was forked from the process that opened the database, and cannot use its handles",
        machine::process_id()
    );
    Error::new(ErrorKind::Closed, message)
}

/// The word of the process; null until it is asked for.
#[cfg(any(target_os = "linux", target_os = "android"))]
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// Stands in for the word where the kernel has none that it empties.
#[cfg(any(target_os = "linux", target_os = "android"))]
static NO_WORD: AtomicU64 = AtomicU64::new(0);

/// The number that was given last, here or in an ancestor: an ordinary word, which a child copies.
#[cfg(any(target_os = "linux", target_os = "android"))]
static LAST: AtomicU64 = AtomicU64::new(0);

#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
fn current() -> u64 {
    let word = WORD.load(Ordering::Acquire);
    if !word.is_null() {
        // SAFETY: it is `NO_WORD`, or the word of a page that is never unmapped (invariant 1).
        let number = unsafe { &*word }.load(Ordering::Relaxed);
        if number != 0 {
            return number;
        }
    }
    first_number()
}

/// The number of a process that has not asked before, or that has no word.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[cold]
fn first_number() -> u64 {
    if WORD.load(Ordering::Acquire).is_null() {
        let word = map_word().unwrap_or((&raw const NO_WORD).cast_mut());
        // Without a lock, which a fork could leave locked. The page of the slower thread is leaked.
        let _ =
            WORD.compare_exchange(std::ptr::null_mut(), word, Ordering::AcqRel, Ordering::Acquire);
    }
    let word = WORD.load(Ordering::Acquire);
    if std::ptr::eq(word, &raw const NO_WORD) {
        return u64::from(machine::process_id());
    }
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    // SAFETY: it is the word of a page that is never unmapped (invariant 1).
    match unsafe { &*word }.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => number,
        // Another thread of this process was faster.
        Err(given) => given,
    }
}

/// A word that is 0 in every child; `None` if the kernel does not do that.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn map_word() -> Option<*mut AtomicU64> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    let len = rustix::param::page_size();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a null address lets the system choose a range that nothing else uses.
    let start =
        unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the range is the mapping that was just made. The advice changes it in children alone, which use
    // it as an atomic (invariant 1).
    if unsafe { madvise(start, len, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: the mapping was just made, and nothing else refers to it. If the call fails it stays.
        let _ = unsafe { munmap(start, len) };
        return None;
    }
    Some(start.cast())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[inline]
fn current() -> u64 {
    u64::from(machine::process_id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_of_a_process_are_in_it() {
        let numbers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(Process::current)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(numbers.iter().all(|process| *process == Process::current()));
        Process::current().check().unwrap();
    }

    #[test]
    fn another_process_is_refused() {
        let other = Process(Process::current().0 + 1);
        let refused = other.check().unwrap_err();
        assert!(!other.is_current() && refused.kind() == ErrorKind::Closed, "{refused}");
    }

    #[test]
    fn what_is_open_is_counted() {
        let two = [Opened::note().unwrap(), Opened::note().unwrap()];
        assert!(OPENED.load(Ordering::Relaxed) & COUNT >= 2);
        drop(two);
        // The count of another process does not belong to this one.
        let before = OPENED.load(Ordering::Relaxed);
        drop(Opened(Process(Process::current().0 + 1)));
        assert!(OPENED.load(Ordering::Relaxed) >> 32 == before >> 32);
    }
}
