//! Notices: functions that are called when the log is durable, without a thread that waits.
//!
//! A notice makes the log thread sync the log as soon as it can. Notices that arrive during a sync
//! share the next one. The thread that syncs takes out the due notices, and the environment calls them
//! where no lock is held.

use crate::db::events::Notice;
use crate::types::SeqNo;
use crate::wal::Lsn;

/// A notice, and what it waits for.
pub(super) struct Waiting {
    pub(super) seq: SeqNo,
    /// The end of the log when the notice arrived. An unlogged operation never becomes durable by
    /// its number.
    pub(super) end: Lsn,
    pub(super) notice: Notice,
}

/// The notices of a log. Guarded by the lock of `sync.rs`.
#[derive(Default)]
pub(super) struct DurabilityWaiters {
    pub(super) waiting: Vec<Waiting>,
    /// `true` if one of them arrived since the last sync began.
    pub(super) wants_sync: bool,
    /// `true` if nothing will be synced any more.
    pub(super) is_shut: bool,
}

impl DurabilityWaiters {
    /// Takes out the notices that are due when the log is durable through `seq` and `lsn`, in the
    /// order of their operations; returns the last of these, too, or 0.
    pub(super) fn take_due(&mut self, seq: SeqNo, lsn: Lsn) -> (Vec<Notice>, SeqNo) {
        // Either suffices. The place alone would delay a notice of an old operation until
        // everything before the call is durable, too.
        let due = self.waiting.extract_if(.., |w| w.seq <= seq || w.end <= lsn);
        let mut due: Vec<Waiting> = due.collect();
        // A listener that copies commits elsewhere must not get a later one first.
        due.sort_by_key(|waiting| waiting.seq);
        let last = due.last().map_or(SeqNo::ZERO, |waiting| waiting.seq);
        (due.into_iter().map(|waiting| waiting.notice).collect(), last)
    }

    /// Adds a notice of the first operation that is durable after `seq`. It requests no sync.
    pub(super) fn add_after(&mut self, seq: SeqNo, notice: Notice) {
        self.waiting.push(Waiting { seq: seq.plus(1), end: Lsn(u64::MAX), notice });
    }

    pub(super) fn take_all(&mut self) -> Vec<Notice> {
        self.take_due(SeqNo::MAX, Lsn(u64::MAX)).0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// A sync that began before a notice arrived does not cover it.
    #[test]
    fn a_notice_is_due_when_its_own_operations_are_durable() {
        let mut waiters = DurabilityWaiters::default();
        let reported = Arc::new(Mutex::new(Vec::new()));
        // The last one is of an unlogged operation.
        for (seq, end) in [(3, 300), (1, 100), (2, 200), (9, 150)] {
            let reported = reported.clone();
            let notice: Notice = Box::new(move |_| reported.lock().push(seq));
            let seq = SeqNo::new(seq).expect("it is small");
            waiters.waiting.push(Waiting { seq, end: Lsn(end), notice });
        }
        for (seq, lsn, expected) in [(0, 99, vec![]), (1, 150, vec![1, 9]), (3, 300, vec![2, 3])] {
            let (due, _) = waiters.take_due(SeqNo::new(seq).expect("it is small"), Lsn(lsn));
            due.into_iter().for_each(|notice| notice(Ok(())));
            assert_eq!(std::mem::take(&mut *reported.lock()), expected);
        }
    }
}
