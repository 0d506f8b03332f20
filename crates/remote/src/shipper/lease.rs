//! The journal's writer and others: pauses for claimants, promises to readers, the fence, and proofs that no other writer has
//! come (the read lease).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone::{Error, ErrorKind, Result};

use super::{PutOutcome, PutTurn, Shipper, notices};
use crate::format::journal_name;
use crate::settings::Ack;

/// The longest promise: a put may wait for so long.
const PROMISE_MAX: Duration = Duration::from_millis(4);
/// The part of the time since the last put that a promise takes, so that puts lose no more than this.
const PROMISE_PART: u32 = 16;

impl Shipper {
    /// Promises to put no object of the journal for the time that is returned, from the call on. So what is stored at the call
    /// stays all that is stored. Zero is no promise: changes wait, or the lease ends before.
    pub(crate) fn promise(&self) -> Duration {
        let now = self.bucket.timer.now();
        let lease_now = self.lease_time();
        let mut state = self.state.lock();
        let time = (now.saturating_sub(state.last_put) / PROMISE_PART).min(PROMISE_MAX);
        // An object whose put has failed may be stored at any time.
        let is_quiet =
            state.turn.is_none() && state.in_flight.is_none() && state.pending.is_empty();
        // The next writer puts nothing before the end of the lease.
        if !is_quiet || state.ended.is_some() || !self.lease.is_held(lease_now + time) {
            return Duration::ZERO;
        }
        state.promised_until = state.promised_until.max(now + time);
        time
    }

    /// Waits until no other writer and no reader counts on it that nothing is put. Called in a turn, so that no promise comes
    /// meanwhile.
    pub(super) fn wait_for_others(&self) {
        loop {
            let pause = self.pause();
            if pause.is_zero() {
                return;
            }
            // It may end early.
            self.bucket.timer.wait(pause);
        }
    }

    /// Puts nothing before this time of the timer: a claimant that asks for it can come first then.
    pub(crate) fn pause_until(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.paused_until.store(nanos, Ordering::Relaxed);
    }

    /// The time for which nothing is put.
    pub(super) fn pause(&self) -> Duration {
        let paused = Duration::from_nanos(self.paused_until.load(Ordering::Relaxed));
        let until = paused.max(self.state.lock().promised_until);
        until.saturating_sub(self.bucket.timer.now())
    }

    /// The time by which proofs are compared. There is no lease where the clock of leases is missing.
    pub(super) fn lease_time(&self) -> Duration {
        let timer = &self.bucket.timer;
        timer.since_boot().unwrap_or_else(|| timer.now())
    }

    pub(crate) fn note_fenced(&self, name: &str) -> Error {
        let message = format!("another writer has taken the database over: it has put {name}");
        let error = Error::new(ErrorKind::Fenced, message);
        notices::end(self.state.lock(), error)
    }

    /// Returns whether the lease shows that no other writer has acknowledged anything until now.
    pub(crate) fn holds_lease(&self) -> bool {
        self.lease.is_held(self.lease_time())
    }

    /// The time between two calls of [`Shipper::renew_if_used`]; `None` without a lease.
    pub(crate) fn lease_interval(&self) -> Option<Duration> {
        self.lease.interval()
    }

    /// Looks, if the lease is used and ends soon.
    ///
    /// # Errors
    /// As [`Shipper::confirm`].
    pub(crate) fn renew_if_used(&self) -> Result<()> {
        let now = self.lease_time();
        if !self.lease.is_due(now) {
            return Ok(());
        }
        self.prove(self.bucket.patience, || self.lease.is_proven_since(now))
    }

    /// Returns once it is certain that no other writer had acknowledged anything when this was called.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if another writer has come; [`ErrorKind::Unsupported`] under [`Ack::Local`]; those of the
    /// store after `patience`.
    pub(crate) fn confirm(&self, patience: Duration) -> Result<()> {
        if self.ack == Ack::Local {
            let message =
                "commits are acknowledged before the bucket has them, so no state is known to last";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let asked = self.lease_time();
        self.prove(patience, || self.lease.is_proven_since(asked) || self.holds_lease())
    }

    /// Looks until `is_proven`. Threads that ask at the same time share a look.
    fn prove(&self, patience: Duration, is_proven: impl Fn() -> bool) -> Result<()> {
        let patience = patience.min(self.bucket.patience);
        let until = self.bucket.timer.now().saturating_add(patience);
        loop {
            let mut state = self.state.lock();
            loop {
                if let Some(error) = &state.ended {
                    return Err(error.clone());
                }
                if is_proven() {
                    return Ok(());
                }
                if state.turn.is_none() {
                    break;
                }
                let left = until.saturating_sub(self.bucket.timer.now());
                if self.shipped.wait_for(&mut state, left).timed_out() {
                    return Err(not_in_time());
                }
            }
            let outcome = Arc::<PutOutcome>::default();
            state.turn = Some(outcome.clone());
            let is_on_its_way = state.in_flight.is_some();
            let next = state.folder.number + 1;
            drop(state);
            let turn = PutTurn(self);
            let left = until.saturating_sub(self.bucket.timer.now());
            let proven = match is_on_its_way {
                // Its number may be stored, and be followed by a claim. Syncs that wait get the error of the put, if
                // they would have no more patience.
                true => {
                    self.finish_put(left, (patience == self.bucket.patience).then_some(&*outcome))
                }
                false => self.look(next, left),
            };
            drop(turn);
            proven?;
        }
    }

    /// Puts the object that is on its way, within `patience`. Called in a turn, whose outcome may get the error.
    fn finish_put(&self, patience: Duration, outcome: Option<&PutOutcome>) -> Result<()> {
        let pause = self.pause();
        if pause > patience {
            return Err(not_in_time());
        }
        let shipped = self.ship_object(&self.bucket.with_patience(patience.saturating_sub(pause)));
        if let (Err(error), Some(outcome)) = (&shipped, outcome) {
            outcome.get_or_init(|| error.clone());
        }
        shipped
    }

    /// Looks for an object under the number `next`, which this writer has put none under. The first one is a claim then,
    /// and a claim is never deleted: if there is none, then no other writer has come. Called in a turn.
    fn look(&self, next: u64, patience: Duration) -> Result<()> {
        let name = journal_name(next);
        let sent = self.lease_time();
        match self.bucket.sibling().with_patience(patience).get(&name)? {
            None => {
                self.lease.renew(sent);
                Ok(())
            }
            Some(_) => Err(self.note_fenced(&name)),
        }
    }
}

fn not_in_time() -> Error {
    let message = "the bucket has not answered in time whether another writer has come";
    Error::new(ErrorKind::Io, message)
}
