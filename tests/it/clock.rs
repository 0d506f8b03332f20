//! [`ManualClock`]: a clock that stands still until it is moved, so that a test is a function of its
//! seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone::clock::Clock;

/// The calendar and the monotonic clock in one. Clones are the same clock.
#[derive(Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    pub fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn unix_time(&self) -> Duration {
        self.now()
    }
}
