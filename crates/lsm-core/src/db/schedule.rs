//! [`Schedule`]: wake-ups of background work, its failures, and the time of the next attempt.
//!
//! Used by `background.rs` under its lock. Plain data: it waits for nothing and calls nothing.
//!
//! Invariant: a failure is kept until the same kind of work succeeds, and the wait before the next
//! attempt grows with the failures in a row.

use std::collections::BTreeMap;
use std::time::Duration;

use super::errors::{BackgroundFailure, Failing, Reason};
use crate::error::{Error, ErrorKind};

/// The wait before a second attempt of failed work. Callers that wait for news look again as often,
/// for work that gives no notice.
pub(super) const RETRY: Duration = Duration::from_millis(250);

/// Wake-ups, failures and attempts of background work.
#[derive(Default)]
pub(super) struct Schedule {
    pub(super) stop: bool,
    /// Grows whenever there may be new work.
    pub(super) ticket: u64,
    /// Threads that are looking for work or doing it.
    pub(super) active: usize,
    /// Compaction threads that wait for a ticket or a time.
    pub(super) idle_compactors: usize,
    /// By the work that failed and has not succeeded since, with the attempt that failed last.
    failing: BTreeMap<Reason, (Failing, Attempt)>,
    /// The newest attempt that has begun.
    newest: Attempt,
}

/// An attempt to do a piece of work. Attempts ascend in the order in which they begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Attempt(u64);

/// The consequence of the outcome of a piece of work.
pub(super) struct Noted {
    /// The delay before the next attempt.
    pub(super) retry: Duration,
    /// `true` if listeners should get the failure.
    pub(super) is_news: bool,
}

impl Schedule {
    /// Begins an attempt. All attempts that begin later are greater.
    pub(super) fn begin(&mut self) -> Attempt {
        self.newest.0 += 1;
        self.newest
    }

    /// Keeps or clears the failure of a kind of work, at `now`.
    pub(super) fn note(
        &mut self,
        work: Reason,
        attempt: Attempt,
        outcome: Result<(), &Error>,
        now: Duration,
    ) -> Noted {
        match outcome {
            Ok(()) => {
                self.failing.remove(&work);
                Noted { retry: RETRY, is_news: false }
            }
            // The failed sync that made the store read-only is reported separately, and ends
            // without this work.
            Err(error) if matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::Closed) => {
                Noted { retry: RETRY, is_news: false }
            }
            Err(error) => {
                let mut failing = self.failing.remove(&work).map(|(failing, _)| failing);
                let is_news = Failing::count(&mut failing, work, error.clone(), now);
                let retry = failing.as_ref().map_or(RETRY, Failing::delay);
                self.failing.extend(failing.map(|failing| (work, (failing, attempt))));
                Noted { retry, is_news }
            }
        }
    }

    /// Clears the failure of a kind of work that another thread did.
    pub(super) fn clear(&mut self, work: Reason) {
        self.failing.remove(&work);
    }

    /// The failure of work that callers may wait for: they do not wait for the removal of obsolete
    /// files.
    pub(super) fn error(&self) -> Option<Error> {
        self.error_after(Attempt::default())
    }

    /// As [`Schedule::error`], of an attempt that began after `attempt`.
    pub(super) fn error_after(&self, attempt: Attempt) -> Option<Error> {
        let awaited = self.failing.iter().filter(|(work, _)| **work != Reason::Obsolete);
        let mut failed = awaited.map(|(_, failed)| failed);
        failed.find(|(_, last)| *last > attempt).map(|(failing, _)| failing.error.clone())
    }

    /// The failure that prevents this work.
    pub(super) fn failure_of(&self, work: Reason) -> Option<Error> {
        self.failing.get(&work).map(|(failing, _)| failing.error.clone())
    }

    /// The failures at `now`.
    pub(super) fn failures(&self, now: Duration) -> Vec<BackgroundFailure> {
        self.failing.values().map(|(failing, _)| failing.reported(now)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io() -> Error {
        Error::new(ErrorKind::Io, "no")
    }

    fn fail(schedule: &mut Schedule, work: Reason, now: Duration) -> Noted {
        let attempt = schedule.begin();
        schedule.note(work, attempt, Err(&io()), now)
    }

    #[test]
    fn a_failure_is_kept_until_the_same_work_succeeds() {
        let mut schedule = Schedule::default();
        let now = Duration::from_secs(5);
        let first = fail(&mut schedule, Reason::Flush, now);
        let second = fail(&mut schedule, Reason::Flush, now);
        assert!(first.is_news && !second.is_news && second.retry > first.retry);
        let attempt = schedule.begin();
        schedule.note(Reason::Compaction, attempt, Ok(()), now);
        assert!(schedule.error().is_some());
        schedule.note(Reason::Flush, attempt, Ok(()), now);
        assert!(schedule.error().is_none() && schedule.failures(now).is_empty());
    }

    #[test]
    fn who_asks_for_later_attempts_hears_of_no_earlier_one() {
        let mut schedule = Schedule::default();
        let under_way = schedule.begin();
        let asked = schedule.begin();
        schedule.note(Reason::Flush, under_way, Err(&io()), Duration::ZERO);
        assert!(schedule.error().is_some() && schedule.error_after(asked).is_none());
        // A later failure of work that no caller waits for is no reason to repeat the earlier one.
        fail(&mut schedule, Reason::Obsolete, Duration::ZERO);
        assert!(schedule.error_after(asked).is_none());
        fail(&mut schedule, Reason::Compaction, Duration::ZERO);
        assert!(schedule.error_after(asked).is_some());
    }

    #[test]
    fn no_one_waits_for_what_is_obsolete() {
        let mut schedule = Schedule::default();
        fail(&mut schedule, Reason::Obsolete, Duration::ZERO);
        assert!(schedule.error().is_none());
        assert_eq!(schedule.failures(Duration::ZERO).len(), 1);
    }

    #[test]
    fn what_a_closed_or_read_only_store_refuses_is_no_failure_of_the_work() {
        let mut schedule = Schedule::default();
        for kind in [ErrorKind::ReadOnly, ErrorKind::Closed] {
            let attempt = schedule.begin();
            let refused = Error::new(kind, "no");
            let noted = schedule.note(Reason::Flush, attempt, Err(&refused), Duration::ZERO);
            assert!(!noted.is_news && schedule.error().is_none());
        }
    }
}
