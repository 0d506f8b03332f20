//! [`ReadLease`]: the time for which a primary knows that its state is the newest one, without a call of the store.
//!
//! ```text
//! primary    proof sent ----- stored, or seen          serves for 15/16 of the lease
//!               |<---------------- lease ---------------->|
//! claimant                          claim stored ------ waits for the lease ------>| acknowledges
//! ```
//!
//! A *proof* is a journal object that the primary has put, or a look that finds no object under its next number. Both
//! show that no claim was stored before. So a claim is stored after the proof was sent, and the lease is over before its
//! claimant acknowledges anything. Called by `shipper.rs` and `shipper/lease.rs`.
//!
//! Invariants:
//! 1. A lease counts from the time before the first attempt of its proof.
//! 2. No two clocks are compared, only their rates: a sixteenth is left out for clocks that run apart. The clock goes on
//!    while the machine is suspended.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use siltstone::{Error, ErrorKind, Result};

use crate::bucket::Bucket;
use crate::format::READ_LEASE_MAX;
use crate::settings::{Ack, Settings};
use crate::store::Timer;

/// The read lease of a primary. All times are those of [`Timer::since_boot`](crate::Timer::since_boot).
pub(crate) struct ReadLease {
    /// The time for which claimants wait; zero for none.
    length: Duration,
    /// The time of the newest proof in nanoseconds, and one; 0 for none. Stored with release after the answer of the
    /// store, loaded with acquire.
    proven: AtomicU64,
    /// Asked for since the last renewal by the thread. No other value depends on it.
    is_used: AtomicBool,
}

impl ReadLease {
    pub(crate) fn new(length: Duration) -> ReadLease {
        ReadLease { length, proven: AtomicU64::new(0), is_used: AtomicBool::new(false) }
    }

    /// Notes a proof that was sent at `sent` or later.
    pub(crate) fn renew(&self, sent: Duration) {
        let nanos = u64::try_from(sent.as_nanos()).unwrap_or(u64::MAX - 1);
        self.proven.fetch_max(nanos + 1, Ordering::Release);
    }

    /// The time at which the newest proof was sent.
    fn proven(&self) -> Option<Duration> {
        self.proven.load(Ordering::Acquire).checked_sub(1).map(Duration::from_nanos)
    }

    /// Returns whether a proof was sent at `asked` or later.
    pub(crate) fn is_proven_since(&self, asked: Duration) -> bool {
        self.proven().is_some_and(|proven| proven >= asked)
    }

    /// Returns whether no claimant has acknowledged anything until `now`.
    pub(crate) fn is_held(&self, now: Duration) -> bool {
        if self.length.is_zero() {
            return false;
        }
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        let kept = self.length.saturating_sub(self.length / 16);
        self.proven().is_some_and(|proven| now.saturating_sub(proven) < kept)
    }

    /// The time between two calls of [`ReadLease::is_due`]; `None` without a lease.
    pub(crate) fn interval(&self) -> Option<Duration> {
        (!self.length.is_zero()).then_some(self.length / 4)
    }

    /// Returns whether the lease is used, and ends soon.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        let is_fresh =
            self.proven().is_some_and(|proven| now.saturating_sub(proven) < self.length / 4);
        !is_fresh && self.is_used.swap(false, Ordering::Relaxed)
    }
}

/// The lease that a claim names.
pub(crate) fn named_lease(remote: &Settings, timer: &dyn Timer) -> Result<Duration> {
    if remote.read_lease > READ_LEASE_MAX {
        let message = format!(
            "a read lease of {} s: it is at most {} s, because a takeover waits for it",
            remote.read_lease.as_secs(),
            READ_LEASE_MAX.as_secs()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    // A takeover may lose what was acknowledged, so no state of such a primary is known to last. And by a clock that
    // stands still while the machine is suspended, a lease would seem to be held after its end.
    if remote.ack == Ack::Local || timer.since_boot().is_none() {
        return Ok(Duration::ZERO);
    }
    Ok(Duration::from_millis(remote.read_lease.as_nanos().div_ceil(1_000_000) as u64))
}

/// Waits until no writer before the claim may still serve reads from its memory. No lease was renewed after the claim
/// was stored, so it is over that time after the moment `claimed` or before.
pub(crate) fn wait_for_leases(bucket: &Bucket, claimed: Duration, wait: Duration) {
    loop {
        let passed = bucket.timer.now().saturating_sub(claimed);
        if passed >= wait {
            return;
        }
        bucket.timer.wait(wait.saturating_sub(passed));
    }
}
