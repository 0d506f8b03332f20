//! The log as feeds of changes see it: how far it is durable, the wait for more, and its end.
//!
//! Called by `db/changes.rs`. A feed waits where writers wait for a sync, so neither an append nor a sync does
//! anything for it.

use std::time::Duration;

use super::Log;
use super::state::SyncState;
use crate::db::events::Notice;
use crate::error::Error;
use crate::types::SeqNo;
use crate::wal::Lsn;

impl Log {
    /// The end of the durable part of the log, and the last number before it.
    pub(in crate::db) fn durable_point(&self) -> (Lsn, SeqNo) {
        let sync = self.sync.lock();
        (sync.durable_lsn, sync.durable_seq)
    }

    /// Waits until the log is durable beyond the place `mark` or has ended, for at most `time`.
    pub(in crate::db) fn wait_durable_after(&self, mark: u64, time: Duration) {
        let mut sync = self.sync.lock();
        self.synced.wait_while_for(&mut sync, |sync| is_pending_after(sync, mark), time);
    }

    /// Queues `notice` until operations are durable beyond the place `mark`, or the log has ended. Requests no
    /// sync.
    pub(in crate::db) fn notify_durable_after(&self, mark: u64, notice: Notice) {
        let mut sync = self.sync.lock();
        if is_pending_after(&sync, mark) {
            let seq = sync.durable_seq;
            sync.waiters.add_after(seq, notice);
            return;
        }
        drop(sync);
        // Not under the lock: a notice may call the database.
        notice(Ok(()));
    }

    /// Refuses the waiting notices, and later ones: the log has ended.
    pub(in crate::db) fn shut_notices(&self) {
        let mut sync = self.sync.lock();
        // Under the lock under which notices are added: a later one is refused at once, and none
        // waits for a sync that no thread will make.
        sync.waiters.is_shut = true;
        let refused = sync.waiters.take_all();
        drop(sync);
        // Feeds of changes wait there, too.
        self.synced.notify_all();
        if !refused.is_empty() {
            self.env.answer(refused, Err(Error::closed()));
        }
    }
}

/// Returns `true` if nothing after the place `mark` is durable, and something may become so.
fn is_pending_after(sync: &SyncState, mark: u64) -> bool {
    sync.durable_lsn.0 <= mark && !sync.waiters.is_shut
}
