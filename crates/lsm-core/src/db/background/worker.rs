//! [`Worker`]: the pieces of background work of a database; [`Task`]: its kinds.
//!
//! `background.rs` and `thread_pool.rs` call them, `scheduler.rs` implements them.

use std::cell::Cell;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Background;
use crate::db::errors::Reason;
use crate::error::{Error, ErrorKind, Result};

/// Pieces of background work, each done on the calling thread.
pub(in crate::db) trait Worker: Send + Sync {
    /// Whose threads do it.
    fn background(&self) -> &Background;

    /// An error once the database is closed.
    fn check_working(&self) -> Result<()>;

    /// Flushes one partition; `false` if there was nothing to flush.
    fn flush_one(&self) -> Result<bool>;

    /// Runs one compaction; `false` if none was due.
    fn compact_one(&self) -> Result<bool>;

    /// So long no thread of a pool begins a compaction, unless a notice comes before: see
    /// [`BackgroundIo::rest`](super::super::background_io).
    fn compaction_rest(&self) -> Duration {
        Duration::ZERO
    }

    /// Syncs and marks the log when due; returns when to look again, `None` for after the next
    /// notice.
    fn tend_log(&self) -> Result<Option<Duration>>;

    /// Does the due work for the log without waiting for its age; `false` if there was none.
    fn tend_log_now(&self) -> Result<bool>;

    /// Removes obsolete files that have no holder, unless another thread is removing; notes its own
    /// failure.
    fn remove_obsolete(&self) -> Result<()>;

    /// As [`Worker::remove_obsolete`], after any other thread that is removing.
    fn finish_removing(&self) -> Result<()>;

    /// Returns `true` if something obsolete waits for its last holder.
    fn holds_obsolete(&self) -> bool;

    /// Returns `true` if tables may become due without a notice: because snapshots are released,
    /// entries expire, or large values are idle.
    fn waits_for_release(&self) -> bool;

    /// Returns memory to the system that no writer took for a while; returns when to look again, `None` for after
    /// the next notice.
    fn give_up_memory(&self) -> Option<Duration>;

    /// Returns `true` if there is something to flush or to compact.
    fn has_work(&self) -> bool;

    /// Has writers that wait look again.
    fn ease(&self);
}

thread_local! {
    static IS_LOG_THREAD: Cell<bool> = const { Cell::new(false) };
    static IS_POOL_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` on a thread that works for many databases. It waits for none of them: another one may need it to
/// end the wait.
pub(in crate::db) fn is_pool_thread() -> bool {
    IS_POOL_THREAD.get()
}

/// A kind of background work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::db) enum Task {
    Flush,
    Compaction,
    Log,
}

impl Task {
    /// Notes that this thread does it.
    pub(in crate::db) fn mark_thread(self) {
        IS_LOG_THREAD.set(self == Task::Log);
    }

    /// Notes that this thread does it for many databases.
    pub(in crate::db) fn mark_pool_thread(self) {
        self.mark_thread();
        IS_POOL_THREAD.set(true);
    }

    /// Returns `true` on a thread for the log, if this is its work.
    pub(super) fn is_of_this_thread(self) -> bool {
        IS_LOG_THREAD.get() && self == Task::Log
    }

    /// Its name in those of threads.
    pub(in crate::db) fn thread_name(self) -> &'static str {
        match self {
            Task::Flush => "flush",
            Task::Compaction => "compact",
            Task::Log => "log",
        }
    }

    /// Its name in the error after a panic.
    pub(in crate::db) fn name(self) -> &'static str {
        match self {
            Task::Flush => "a flush",
            Task::Compaction => "a compaction",
            Task::Log => "the upkeep of the log",
        }
    }

    /// The work that fails if it does.
    pub(super) fn reason(self) -> Reason {
        match self {
            Task::Flush => Reason::Flush,
            Task::Compaction => Reason::Compaction,
            Task::Log => Reason::ReserveSegment,
        }
    }
}

/// Starts a thread.
///
/// # Errors
/// If the operating system gives none.
pub(in crate::db) fn spawn_thread(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.clone()).spawn(work);
    thread
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start thread {name}: {error}")))
}
