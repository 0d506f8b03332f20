//! [`Ownership`]: the right of an open database to its folder, from the open to the close.
//!
//! Every call asks it first. `open.rs` makes it of the lock that it took, and `close.rs` ends it.
//!
//! Invariant: nothing is read or written after [`Ownership::mark_closed`], nor in a child of the process that
//! opened the database. The lock is released last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::db::context::DbContext;
use crate::error::{Error, Result};
use crate::fs::LockGuard;
use crate::shared::CommitCursorWriter;
use crate::types::{Opened, Process};

/// The lock of an open database; dropped, the database is closed.
pub(in crate::db) struct HeldLock {
    pub(in crate::db) _lock: Box<dyn LockGuard>,
    pub(in crate::db) _opened: Opened,
}

/// The right of an open database to its folder.
pub(in crate::db) struct Ownership {
    // Fixed after the open.
    /// The process that opened it. No other one may use it.
    process: Process,
    context: DbContext,
    /// Says whether another process has fenced this one.
    cursor: Arc<CommitCursorWriter>,

    /// Stored with release, loaded with acquire: a call that finds it set finds all that was written before.
    closed: AtomicBool,
    /// `None` once it is released. Locked by a close for its whole duration.
    lock: Mutex<Option<HeldLock>>,
}

/// The lock of the folder during a close.
pub(in crate::db) struct Closing<'a>(MutexGuard<'a, Option<HeldLock>>);

impl Closing<'_> {
    /// Releases the folder: the next process may open the database at once.
    pub(in crate::db) fn release(mut self) {
        *self.0 = None;
    }
}

impl Ownership {
    pub(in crate::db) fn new(
        context: &DbContext,
        cursor: Arc<CommitCursorWriter>,
        lock: HeldLock,
    ) -> Ownership {
        Ownership {
            process: Process::current(),
            context: context.clone(),
            cursor,
            closed: AtomicBool::new(false),
            lock: Mutex::new(Some(lock)),
        }
    }

    /// Returns an error in a child of the process that opened the database.
    #[inline]
    pub(in crate::db) fn check_process(&self) -> Result<()> {
        self.process.check()
    }

    /// Returns `false` in a child of the process that opened the database. Nothing is locked or written
    /// there.
    pub(in crate::db) fn is_own(&self) -> bool {
        self.process.is_current()
    }

    /// Returns an error if the database is closed, or belongs to a parent process.
    #[inline]
    pub(in crate::db) fn check_not_closed(&self) -> Result<()> {
        self.process.check()?;
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::closed());
        }
        Ok(())
    }

    /// Returns an error if the database is closed, was opened read-only, or belongs to another
    /// process.
    pub(in crate::db) fn check_writable(&self) -> Result<()> {
        self.check_not_closed()?;
        self.cursor.check()?;
        if self.context.is_read_only { Err(Error::read_only()) } else { Ok(()) }
    }

    /// The error of writes, if the database takes none for as long as it is open.
    pub(in crate::db) fn why_read_only(&self) -> Option<Error> {
        if let Err(error) = self.process.check() {
            return Some(error);
        }
        if self.context.is_read_only {
            return Some(Error::read_only());
        }
        self.cursor.check().err()
    }

    /// Returns `true` if nothing is written: no thread runs, and memtables have the entries of the log.
    pub(in crate::db) fn is_read_only(&self) -> bool {
        self.context.is_read_only
    }

    /// Returns `true` if another process may write meanwhile, so that files of the log and the manifest
    /// change.
    pub(in crate::db) fn has_live_writer(&self) -> bool {
        self.context.other.is_some()
    }

    /// Returns `true` if another process has taken the database over.
    pub(in crate::db) fn is_fenced(&self) -> bool {
        self.cursor.is_fenced()
    }

    /// Returns the error of writes if another process has taken the database over.
    pub(in crate::db) fn check_not_fenced(&self) -> Result<()> {
        self.cursor.check()
    }

    /// The commit cursor, through which another process fences this one.
    pub(in crate::db) fn cursor(&self) -> &CommitCursorWriter {
        &self.cursor
    }

    /// Begins a close; `None` if the database is closed, or if a listener of it asks and another close is under way.
    pub(in crate::db) fn begin_close(&self, is_in_listener: bool) -> Option<Closing<'_>> {
        // The other close waits for the thread of the listener.
        let lock = if is_in_listener { self.lock.try_lock()? } else { self.lock.lock() };
        lock.is_some().then_some(Closing(lock))
    }

    /// Refuses all calls from now on.
    pub(in crate::db) fn mark_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Ends the commit cursor of a database whose log has ended.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::ErrorKind::Fenced): the cursor does not change.
    pub(in crate::db) fn end_cursor(&self) -> Result<()> {
        let DbContext { fs, dir, epoch, .. } = &self.context;
        self.cursor.close(&**fs, dir, *epoch)
    }

    /// Drops the lock in a child of the process that opened the database, unless the parent was closing it.
    /// Only the child's copy is closed, which would keep the lock after the parent's death.
    pub(in crate::db) fn leave_to_parent(&self) {
        let lock = self.lock.try_lock().and_then(|mut lock| lock.take());
        drop(lock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{BackgroundMode, Db};
    use crate::error::ErrorKind;
    use crate::fs::MemFs;

    fn open(fs: &Arc<MemFs>) -> Result<Db> {
        Db::builder("/db").fs(fs.clone()).background(BackgroundMode::Stepped).open()
    }

    #[test]
    fn the_folder_is_free_once_the_close_has_released_it() {
        let fs = Arc::new(MemFs::new());
        let db = open(&fs).unwrap();
        let ownership = &db.inner().ownership;
        ownership.check_writable().unwrap();
        ownership.mark_closed();
        assert_eq!(ownership.check_writable().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(open(&fs).unwrap_err().kind(), ErrorKind::Locked, "the close has not ended");
        ownership.begin_close(false).expect("it is open").release();
        assert!(ownership.begin_close(false).is_none(), "a second close does nothing");
        open(&fs).unwrap();
    }
}
