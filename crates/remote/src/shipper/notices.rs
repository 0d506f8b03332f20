//! Notices that the bucket has a commit.
//!
//! A commit that is durable was appended to the log, so the changes that were noted until then have it. It is stored
//! once they are. The journal knows no sequence numbers, and needs none.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::MutexGuard;
use siltstone::{Error, ErrorKind, Result, SeqNo};

use super::{JournalState, Shipper};

/// Called once, with the outcome.
pub(crate) type StoredNotice = Box<dyn FnOnce(Result<()>) + Send>;

/// Sequence numbers that wait for the changes before them. More are not remembered: then the answer is an older one.
const SEQS_MAX: usize = 1000;

/// Notices, and the sequence numbers that are known to be stored.
#[derive(Default)]
pub(super) struct StoredNotices {
    /// With the marks that they wait for.
    waiting: Vec<(u64, StoredNotice)>,
    /// Sequence numbers that were durable when so many changes were noted, in their order.
    durable: VecDeque<(u64, SeqNo)>,
    stored_seq: SeqNo,
    is_closed: bool,
}

impl StoredNotices {
    /// The notices whose changes are stored, now that `stored` are.
    pub(super) fn take_due(&mut self, stored: u64) -> Vec<StoredNotice> {
        while let Some((_, seq)) = self.durable.front().copied().filter(|(mark, _)| *mark <= stored)
        {
            self.durable.pop_front();
            self.stored_seq = self.stored_seq.max(seq);
        }
        let due = self.waiting.extract_if(.., |(mark, _)| *mark <= stored);
        due.map(|(_, notice)| notice).collect()
    }

    /// All notices: nothing more is stored.
    fn take_all(&mut self) -> Vec<StoredNotice> {
        self.waiting.drain(..).map(|(_, notice)| notice).collect()
    }

    /// Notes that `seq` is durable, with the changes until `mark`.
    fn note_durable(&mut self, mark: u64, seq: SeqNo) {
        if let Some((last, known)) = self.durable.back_mut()
            && *last == mark
        {
            *known = seq.max(*known);
            return;
        }
        if self.durable.len() < SEQS_MAX {
            self.durable.push_back((mark, seq));
        }
    }
}

/// Calls notices, not under a lock. One that panics stops no other, and no thread.
pub(super) fn call(notices: Vec<StoredNotice>, outcome: &Result<()>) {
    for notice in notices {
        let outcome = outcome.clone();
        // The panic was reported by its hook.
        let _ = catch_unwind(AssertUnwindSafe(|| notice(outcome)));
    }
}

/// Ends the journal with an error, and all that wait for it.
pub(super) fn end(mut state: MutexGuard<'_, JournalState>, error: Error) -> Error {
    let error = state.ended.get_or_insert(error).clone();
    let notices = state.notices.take_all();
    drop(state);
    call(notices, &Err(error.clone()));
    error
}

impl Shipper {
    /// Calls `notice` once all changes that are noted are stored, or once it is certain that this primary does not
    /// store them.
    pub(crate) fn on_stored(&self, notice: StoredNotice) {
        let mut state = self.state.lock();
        let outcome = if state.stored >= state.noted {
            Ok(())
        } else if let Some(error) = &state.ended {
            Err(error.clone())
        } else if state.notices.is_closed {
            Err(closed())
        } else {
            let mark = state.noted;
            state.notices.waiting.push((mark, notice));
            return;
        };
        drop(state);
        notice(outcome);
    }

    /// Ends the notices, at the drop of the primary: no one puts the changes any more.
    pub(crate) fn close_notices(&self) {
        let mut state = self.state.lock();
        state.notices.is_closed = true;
        let waiting = state.notices.take_all();
        drop(state);
        call(waiting, &Err(closed()));
    }

    /// The highest sequence number that is known to be stored. `durable` is one that was durable before this call.
    pub(crate) fn stored_seq(&self, durable: SeqNo) -> SeqNo {
        let mut state = self.state.lock();
        let stored = state.stored;
        let noted = state.noted;
        if stored >= noted {
            state.notices.stored_seq = state.notices.stored_seq.max(durable);
        } else {
            state.notices.note_durable(noted, durable);
        }
        state.notices.stored_seq
    }
}

fn closed() -> Error {
    let message = "the primary was dropped before the bucket had the commit";
    Error::new(ErrorKind::Closed, message)
}
