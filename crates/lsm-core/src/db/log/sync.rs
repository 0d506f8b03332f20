//! Making the log durable: one sync for all who wait, and the latch after one failed.
//!
//! The latch is here because only a sync of the log can set it, and only a log that was begun
//! anew can clear it. So this is the one owner of "the log takes no more", and there is no second
//! copy of it that could disagree.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::notices::Notices;
use super::{Log, LogHost};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::File;
use crate::hooks::catch_engine;
use crate::types::SeqNo;
use crate::wal::{Lsn, SegmentWriter};

/// The places up to which the log is in the kernel and on the device, and what lies between.
pub(super) struct SyncState {
    pub(super) appended_lsn: Lsn,
    appended_seq: SeqNo,
    pub(super) durable_lsn: Lsn,
    pub(super) durable_seq: SeqNo,
    /// The present segment's file, and closed ones before it that were not synced since.
    files: Vec<Arc<dyn File>>,
    /// `true` if somebody syncs.
    running: bool,
    /// Why the log takes no more.
    pub(super) failed: Option<Error>,
    /// `true` if a frame behind the last sync attests it.
    marked: bool,
    pub(super) notices: Notices,
}

impl SyncState {
    pub(super) fn new(last_seq: SeqNo) -> SyncState {
        SyncState {
            appended_lsn: Lsn(0),
            appended_seq: last_seq,
            durable_lsn: Lsn(0),
            durable_seq: last_seq,
            files: Vec::new(),
            running: false,
            failed: None,
            // A log without a frame has nothing that a mark could attest.
            marked: true,
            notices: Notices::default(),
        }
    }
}

/// The next task of the log thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::db) enum LogChore {
    /// Nothing is unsynced or unattested.
    Rest,
    /// Frames wait for their sync.
    Sync,
    /// The last sync is not attested yet.
    Mark,
}

impl Log {
    /// The place up to which the log is durable.
    pub(in crate::db) fn durable_lsn(&self) -> Lsn {
        Lsn(self.durable_lsn.load(Ordering::Acquire))
    }

    /// Returns `true` if somebody wants to hear of a sync that has not begun.
    pub(super) fn is_sync_wanted(&self) -> bool {
        self.sync.lock().notices.wants_sync
    }

    /// The newest sequence number that is durable, with every logged one before it.
    pub(in crate::db) fn durable_seq(&self) -> SeqNo {
        self.sync.lock().durable_seq
    }

    /// Why the log takes no more, if a sync failed and it was not begun anew since.
    pub(in crate::db) fn failure(&self) -> Option<Error> {
        self.sync.lock().failed.clone()
    }

    /// Returns `true` if a sync failed, and the log was not begun anew since.
    pub(in crate::db) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// An error if the log takes no more.
    pub(in crate::db) fn check(&self) -> Result<()> {
        if !self.has_failed() {
            return Ok(());
        }
        // It may have been begun anew since.
        self.failure().map_or(Ok(()), Err)
    }

    /// The next task for the log.
    pub(in crate::db) fn chore(&self) -> LogChore {
        let sync = self.sync.lock();
        if sync.failed.is_some() {
            // A failed log is left alone until it is begun anew: another sync would report success.
            LogChore::Rest
        } else if sync.durable_lsn < sync.appended_lsn {
            LogChore::Sync
        } else if !sync.marked {
            LogChore::Mark
        } else {
            LogChore::Rest
        }
    }

    pub(super) fn note_appended(&self, lsn: Lsn, seq: SeqNo) {
        let mut sync = self.sync.lock();
        sync.appended_lsn = lsn;
        sync.appended_seq = seq;
    }

    pub(super) fn note_begun(&self, segment: &SegmentWriter) {
        let mut sync = self.sync.lock();
        // Kept until it is synced: a closed segment with frames that nobody synced must be synced
        // before its successor.
        sync.files.push(segment.file().clone());
        sync.appended_lsn = segment.lsn();
    }

    /// Everything before `segment` is in tables, and with it every operation through `seq`.
    pub(super) fn note_restarted(&self, segment: &SegmentWriter, seq: SeqNo) {
        let mut sync = self.sync.lock();
        assert!(!sync.running, "none begins while one has failed");
        // The files of the old log leave the list together with the failure: another sync of them
        // would report success although pages are lost.
        *sync = SyncState {
            appended_lsn: segment.lsn(),
            durable_lsn: segment.lsn(),
            files: vec![segment.file().clone()],
            ..SyncState::new(seq)
        };
        self.durable_lsn.store(segment.lsn().0, Ordering::Release);
        self.has_failed.store(false, Ordering::Release);
        drop(sync);
        self.synced.notify_all();
    }

    /// Notes that the last sync is attested by a frame that ends at `lsn`, and that is durable.
    pub(super) fn note_marked(&self, lsn: Lsn) {
        let mut sync = self.sync.lock();
        // A later sync has nothing behind it that attests it.
        sync.marked |= sync.durable_lsn == lsn;
    }

    /// Waits until the log is durable through `lsn`, syncing it if nobody does.
    ///
    /// # Errors
    /// Those of the sync, or of one that failed before. The log takes no more then.
    pub(in crate::db) fn sync_through(&self, host: &dyn LogHost, lsn: Lsn) -> Result<()> {
        let mut sync = self.sync.lock();
        loop {
            if sync.durable_lsn >= lsn {
                return Ok(());
            }
            if let Some(error) = &sync.failed {
                return Err(error.clone());
            }
            if !sync.running {
                break;
            }
            // The sync that runs may have read its target before this frame was appended, so the
            // place is compared again after it.
            self.synced.wait(&mut sync);
        }
        // Only one thread syncs. The others wait for the condition variable and share the result;
        // concurrent calls of `fdatasync` on one file would queue up in the kernel.
        sync.running = true;
        // Read before the sync: bytes that are appended during the sync may not be part of it.
        let target_lsn = sync.appended_lsn;
        let target_seq = sync.appended_seq;
        let files = sync.files.clone();
        // Before the sync as well: a notice that comes during it needs another one.
        sync.notices.wants_sync = false;
        // Not held during the sync: appends take this lock.
        drop(sync);
        // A panic is latched like an error. It must not leave `running` set: all who sync later would
        // wait for ever.
        let result = catch_engine("a sync of the log", || sync_files(host, &files));
        // Latched before `running` is reset. A second `fdatasync` of this file would report
        // success, because the kernel may have marked the failed pages clean.
        let result = result.map_err(|error| self.fail(host, error));
        let mut sync = self.sync.lock();
        sync.running = false;
        let mut due = Vec::new();
        if result.is_ok() {
            sync.durable_lsn = target_lsn;
            self.durable_lsn.store(target_lsn.0, Ordering::Release);
            sync.durable_seq = target_seq;
            // The log thread appends a frame that attests this sync. Without it, recovery could not
            // tell rot in the last frames from a torn tail.
            sync.marked = false;
            // All but the present segment's file are closed and now durable.
            sync.files.drain(..files.len() - 1);
            // Taken under the lock and called without it: a notice may call the database.
            due = sync.notices.take_due(target_seq, target_lsn);
        }
        drop(sync);
        self.synced.notify_all();
        if !due.is_empty() {
            host.answer(due, Ok(()));
        }
        self.tell_thread(host);
        result
    }

    /// Waits until everything that was appended is durable.
    pub(in crate::db) fn sync_all(&self, host: &dyn LogHost) -> Result<()> {
        let lsn = self.sync.lock().appended_lsn;
        self.sync_through(host, lsn)
    }

    /// Waits until every logged operation through `seq` is durable.
    pub(in crate::db) fn sync_through_seq(&self, host: &dyn LogHost, seq: SeqNo) -> Result<()> {
        // The place of a number in the log is not known, so the whole log is synced. The sync is
        // usually shared with a writer that waits anyway.
        if self.durable_seq() >= seq { Ok(()) } else { self.sync_all(host) }
    }

    /// Takes no more until the log is begun anew, because of `error`, which a sync returned; the
    /// error that everybody gets from now on.
    pub(super) fn fail(&self, host: &dyn LogHost, error: Error) -> Error {
        let message = "a sync of the log failed; writes are refused until the memtables are \
                       written to new files";
        let latched = Error::because(ErrorKind::ReadOnly, message, error);
        let mut sync = self.sync.lock();
        let is_news = sync.failed.is_none();
        // The first error stays: later ones are its consequences, and all callers shall see one
        // cause.
        let latched = sync.failed.get_or_insert(latched).clone();
        self.has_failed.store(true, Ordering::Release);
        let refused = sync.notices.take_all();
        drop(sync);
        self.synced.notify_all();
        if !refused.is_empty() {
            host.answer(refused, Err(latched.clone()));
        }
        if is_news {
            host.log_failed(&latched);
        }
        latched
    }

    /// Takes no more until the log is begun anew, because of `error`, which a sync of values returned that
    /// the log did not ask for.
    pub(in crate::db) fn begin_anew(&self, host: &dyn LogHost, error: &Error) {
        self.fail(host, error.clone());
    }

    /// Waits until no sync is under way. None begins while one has failed.
    pub(in crate::db) fn wait_for_failed_sync(&self) {
        let mut sync = self.sync.lock();
        while sync.running {
            self.synced.wait(&mut sync);
        }
    }
}

/// Makes these files of the log durable, with the values that their frames point to.
fn sync_files(host: &dyn LogHost, files: &[Arc<dyn File>]) -> Result<()> {
    // The device works on values and log at the same time. A second thread for the values would
    // do as well; its start takes longer than what it saves for values of 64 KiB.
    host.begin_sync_of_values();
    host.counters().wal_syncs.add(files.len() as u64);
    for file in files {
        // In the order of the segments, and none after a failure: the durable part of the log
        // must be a prefix.
        file.sync()?;
    }
    // Durability: no place in the log counts as durable before the values are that handles below
    // it point to. Their handles are in what was written, so their `put` has returned. The frames
    // may be on the device before the values, as they may be without any sync: recovery reads the
    // values of all frames that nothing behind them attests.
    host.sync_values()
}
