//! [`RateLimiter`]: a [`Pace`] that many threads share, with urgent threads ahead of others.
//!
//! For the bytes that flushes and compactions write. A thread asks for bytes that it has just written, and waits
//! until they are within the limit; then the next thread may pass. So one request is under way at most, and an
//! urgent thread waits for no more than that.
//!
//! Invariants:
//! 1. While a caller's `goes_on` runs, no lock is held, and the caller does not count as waiting: `goes_on` may do other
//!    work, which asks for bytes itself and would wait for its own caller.
//! 2. No priority starves: one that others have passed [`PASSED_MAX`] times is next.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{Clock, PARK_MAX, Pace};

/// So many requests may pass one of a lower priority that waits.
const PASSED_MAX: u32 = 9;

/// The urgency of background writes, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPriority {
    /// Flushes: writers stop while too much memory waits for them.
    Flush,
    /// Compactions of level 0: writers stop while it has too many tables.
    Level0,
    /// Compactions of deeper levels.
    Deep,
}

const PRIORITIES: usize = 3;

/// A limit of bytes a second that many threads share.
pub struct RateLimiter {
    // Fixed after construction.
    clock: Arc<dyn Clock>,
    state: Mutex<LimiterState>,
    /// Threads wait here for their turn.
    changed: Condvar,
    /// Relaxed: it is read without the lock by threads that need not wait.
    bytes_per_second: AtomicU64,
}

struct LimiterState {
    pace: Pace,
    /// Threads that wait, by priority.
    waiting: [u32; PRIORITIES],
    /// Requests that passed those that wait, by priority.
    passed: [u32; PRIORITIES],
}

impl LimiterState {
    /// The priority that is next among those that wait.
    fn next(&self) -> Option<usize> {
        let mut waiting = (0..PRIORITIES).filter(|priority| self.waiting[*priority] > 0);
        let first = waiting.clone().next()?;
        Some(waiting.find(|priority| self.passed[*priority] >= PASSED_MAX).unwrap_or(first))
    }

    /// Lets one request of a priority through.
    fn take(&mut self, priority: usize, bytes: u64, now: Duration) {
        self.pace.take(bytes, now);
        self.passed[priority] = 0;
        for lower in priority + 1..PRIORITIES {
            self.passed[lower] += u32::from(self.waiting[lower] > 0);
        }
    }
}

impl RateLimiter {
    /// A limit of so many bytes a second by `clock`; 0 is none.
    pub fn new(bytes_per_second: u64, clock: Arc<dyn Clock>) -> RateLimiter {
        RateLimiter {
            clock,
            state: Mutex::new(LimiterState {
                pace: Pace::new(bytes_per_second),
                waiting: [0; PRIORITIES],
                passed: [0; PRIORITIES],
            }),
            changed: Condvar::new(),
            bytes_per_second: AtomicU64::new(bytes_per_second),
        }
    }

    /// The limit at present; 0 is none.
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second.load(Ordering::Relaxed)
    }

    /// Changes the limit, for threads that wait now, too.
    pub fn set_bytes_per_second(&self, bytes_per_second: u64) {
        let mut state = self.state.lock();
        // What was taken at the former rate is forgotten: a wait of minutes at a low rate would go on at a high one.
        state.pace = Pace::new(bytes_per_second);
        self.bytes_per_second.store(bytes_per_second, Ordering::Relaxed);
        drop(state);
        self.wake();
    }

    /// Has the threads that wait ask their `goes_on` at once.
    pub fn wake(&self) {
        // Under the lock: a thread that is about to sleep holds it, so it cannot miss this.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Waits until `bytes` more are within the limit, as long as `goes_on` returns `true`. Returns the time that
    /// it waited.
    pub fn request(
        &self,
        priority: IoPriority,
        bytes: u64,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Duration {
        if self.bytes_per_second() == 0 || bytes == 0 {
            return Duration::ZERO;
        }
        let priority = priority as usize;
        let started = self.clock.now();
        while !self.try_take(priority, bytes) && goes_on() {}
        self.clock.now().saturating_sub(started)
    }

    /// Takes `bytes` without a wait: later requests wait for them.
    pub fn charge(&self, bytes: u64) {
        if self.bytes_per_second() == 0 {
            return;
        }
        self.state.lock().pace.take(bytes, self.clock.now());
    }

    /// The time until all that was taken is within the limit.
    pub fn debt(&self) -> Duration {
        if self.bytes_per_second() == 0 {
            return Duration::ZERO;
        }
        self.state.lock().pace.left(self.clock.now())
    }

    /// Takes `bytes` if it is the turn of `priority`, otherwise waits for a moment.
    fn try_take(&self, priority: usize, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let now = self.clock.now();
        let left = state.pace.left(now);
        state.waiting[priority] += 1;
        let is_taken = left.is_zero() && state.next() == Some(priority);
        if is_taken {
            state.take(priority, bytes, now);
        } else {
            let wait = if left.is_zero() { PARK_MAX } else { left.min(PARK_MAX) };
            self.changed.wait_for(&mut state, wait);
        }
        state.waiting[priority] -= 1;
        drop(state);
        if is_taken {
            self.changed.notify_all();
        }
        is_taken
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("bytes_per_second", &self.bytes_per_second())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that each look moves on.
    struct Ticking(Mutex<Duration>, Duration);

    impl Clock for Ticking {
        fn now(&self) -> Duration {
            let mut now = self.0.lock();
            *now += self.1;
            *now
        }
    }

    fn ticking(tick_ms: u64) -> Arc<Ticking> {
        let start = Duration::from_secs(100);
        Arc::new(Ticking(Mutex::new(start), Duration::from_millis(tick_ms)))
    }

    #[test]
    fn all_requests_together_keep_to_the_limit() {
        let clock = ticking(10);
        let limiter = RateLimiter::new(1 << 20, clock.clone());
        let mut waited = Duration::ZERO;
        for priority in [IoPriority::Deep, IoPriority::Flush, IoPriority::Level0, IoPriority::Deep]
        {
            waited += limiter.request(priority, 1 << 20, &mut || true);
        }
        // The last one is within the limit only a second later.
        assert!(waited >= Duration::from_millis(2900), "{waited:?}");
        assert!(clock.now() < Duration::from_secs(105));
    }

    #[test]
    fn without_a_limit_no_request_waits() {
        let limiter = RateLimiter::new(0, ticking(0));
        let waited = limiter.request(IoPriority::Deep, u64::MAX, &mut || unreachable!());
        assert_eq!(waited, Duration::ZERO);
        limiter.request(IoPriority::Deep, u64::MAX, &mut || unreachable!());
    }

    /// Many threads write without a limit, and must not meet at its lock.
    #[test]
    fn without_a_limit_no_call_takes_the_lock() {
        let limiter = RateLimiter::new(0, ticking(0));
        let held = limiter.state.lock();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                limiter.charge(1 << 30);
                limiter.request(IoPriority::Deep, 1, &mut || unreachable!());
                sender.send(limiter.debt()).unwrap();
            });
            let debt = receiver.recv_timeout(Duration::from_secs(20));
            drop(held);
            assert_eq!(debt, Ok(Duration::ZERO));
        });
    }

    #[test]
    fn what_is_charged_is_paid_by_later_requests() {
        let limiter = RateLimiter::new(1 << 20, ticking(0));
        limiter.charge(10 << 20);
        // Unused time of 50 ms was left.
        assert_eq!(limiter.debt(), Duration::from_millis(9950));
        let mut looks = 0;
        limiter.request(IoPriority::Flush, 1, &mut || {
            looks += 1;
            false
        });
        assert_eq!(looks, 1);
        limiter.set_bytes_per_second(1 << 20);
        assert_eq!(limiter.debt(), Duration::ZERO);
    }

    #[test]
    fn a_caller_that_goes_on_no_more_waits_no_more() {
        // The clock stands still, so that the limit lets nothing more through.
        let limiter = RateLimiter::new(1 << 20, ticking(0));
        limiter.request(IoPriority::Deep, 1 << 30, &mut || true);
        let mut looks = 0;
        limiter.request(IoPriority::Flush, 1, &mut || {
            looks += 1;
            looks < 3
        });
        assert_eq!(looks, 3);
        assert_eq!(limiter.state.lock().waiting, [0; PRIORITIES]);
    }

    #[test]
    fn a_request_within_goes_on_does_not_wait_for_its_caller() {
        let limiter = RateLimiter::new(1 << 20, ticking(300));
        limiter.request(IoPriority::Deep, 1 << 20, &mut || true);
        let mut is_first = true;
        limiter.request(IoPriority::Deep, 1, &mut || {
            // As a merge of level 0 in the middle of a deep one, longer than what may pass a request that waits.
            for _ in 0..if std::mem::take(&mut is_first) { 3 * PASSED_MAX } else { 0 } {
                let mut looks = 0;
                limiter.request(IoPriority::Level0, 1 << 10, &mut || {
                    looks += 1;
                    assert!(looks < 1000, "it waits for its caller");
                    true
                });
            }
            true
        });
        assert!(!is_first);
    }

    #[test]
    fn a_new_limit_ends_the_waits_of_the_former_one() {
        let limiter = RateLimiter::new(1 << 20, ticking(0));
        limiter.request(IoPriority::Deep, 1 << 40, &mut || true);
        let mut is_first = true;
        limiter.request(IoPriority::Deep, 1, &mut || {
            assert!(std::mem::take(&mut is_first), "the new limit lets it through");
            limiter.set_bytes_per_second(2 << 20);
            true
        });
        assert!(!is_first);
        assert_eq!(limiter.bytes_per_second(), 2 << 20);
    }

    /// The order in which requests that wait all the time pass.
    fn order(waiting: [u32; PRIORITIES], count: usize) -> Vec<usize> {
        let pace = Pace::new(0);
        let mut state = LimiterState { pace, waiting, passed: [0; PRIORITIES] };
        (0..count)
            .map(|_| {
                let next = state.next().expect("some wait");
                state.take(next, 1, Duration::ZERO);
                next
            })
            .collect()
    }

    #[test]
    fn flushes_go_ahead_of_compactions_and_starve_none() {
        assert_eq!(order([1, 1, 1], 9), [0; 9]);
        let order_of_all = order([1, 1, 1], 1000);
        for (priority, least) in [(0, 780), (1, 90), (2, 90)] {
            let count = order_of_all.iter().filter(|it| **it == priority).count();
            assert!(count >= least, "{priority}: {count}");
        }
        assert_eq!(order([0, 2, 1], 9), [1; 9]);
        assert_eq!(order([0, 0, 1], 3), [2; 3]);
    }
}
