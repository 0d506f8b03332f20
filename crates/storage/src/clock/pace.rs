//! [`Pace`]: no more than so many bytes a second, by parking the thread that reads.
//!
//! For callers that read a whole store and must leave bandwidth for others: `verify`, and scrubs in
//! sister crates. Unused time is kept only up to [`BURST`], so the limit holds over every second
//! and not on average.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The time by which reading may run ahead of the limit.
const BURST: Duration = Duration::from_millis(50);
/// The longest wait at once: a waiting caller checks this often whether it should stop.
pub(super) const PARK_MAX: Duration = Duration::from_millis(20);

/// A limit of bytes a second, by the clock of its caller.
#[derive(Debug)]
pub struct Pace {
    /// 0 is no limit.
    bytes_per_second: u64,
    /// The time at which everything taken so far is within the limit.
    due: Duration,
    lock: Mutex<()>,
    never: Condvar,
}

impl Pace {
    /// A limit of so many bytes a second; 0 is none.
    pub fn new(bytes_per_second: u64) -> Pace {
        Pace {
            bytes_per_second,
            due: Duration::ZERO,
            lock: Mutex::default(),
            never: Condvar::new(),
        }
    }

    /// Takes `bytes` at the time `now`.
    pub fn take(&mut self, bytes: u64, now: Duration) {
        if self.bytes_per_second > 0 {
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
            let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            self.due = self.due.max(now.saturating_sub(BURST)).saturating_add(cost);
        }
    }

    /// Returns the wait that is due, for a caller that keeps this limit under a lock.
    #[must_use]
    pub fn debt(&self) -> Pace {
        Pace { due: self.due, ..Pace::new(self.bytes_per_second) }
    }

    /// Returns the time after `now` at which everything taken so far is within the limit.
    pub(super) fn left(&self, now: Duration) -> Duration {
        if self.bytes_per_second == 0 { Duration::ZERO } else { self.due.saturating_sub(now) }
    }

    /// Parks for a moment if the limit requires a wait; returns `false` if it does not.
    pub fn park(&self, now: impl Fn() -> Duration) -> bool {
        let left = self.left(now());
        if left.is_zero() {
            return false;
        }
        self.never.wait_for(&mut self.lock.lock(), left.min(PARK_MAX));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn reading_keeps_to_the_limit_by_the_clock_it_is_given() {
        let clock = Cell::new(Duration::from_secs(100));
        let mut pace = Pace::new(1000);
        let mut taken = 0;
        for bytes in [1, 50, 49, 400, 1000, 7] {
            pace.take(bytes, clock.get());
            taken += bytes;
            while pace.park(|| clock.get()) {
                clock.set(clock.get() + Duration::from_millis(90));
            }
            let passed = clock.get().saturating_sub(Duration::from_secs(100)) + BURST;
            assert!(passed >= Duration::from_millis(taken), "{taken} after {passed:?}");
        }
        assert!(clock.get() < Duration::from_secs(103));
        let free = Pace::new(0);
        assert!(!free.park(|| Duration::ZERO));
    }

    #[test]
    fn a_pause_saves_up_nothing() {
        let mut pace = Pace::new(1000);
        pace.take(1000, Duration::from_secs(1));
        pace.take(1000, Duration::from_secs(60));
        assert_eq!(pace.due, Duration::from_secs(61).saturating_sub(BURST));
    }
}
