//! [`ManualClock`]: clocks that stand still until a test moves them, so that the seed determines a
//! test.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use siltstone::clock::Clock;

/// A monotonic clock, and the distance of the calendar from it. Clones share one clock.
#[derive(Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>, Arc<AtomicI64>);

impl ManualClock {
    pub fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }

    /// Moves the calendar so many seconds forwards, or backwards.
    pub fn jump(&self, seconds: i64) {
        self.1.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn unix_time(&self) -> Duration {
        let ahead = Duration::from_secs(self.1.load(Ordering::SeqCst).max(0) as u64);
        let back = Duration::from_secs(self.1.load(Ordering::SeqCst).min(0).unsigned_abs());
        (self.now() + ahead).saturating_sub(back)
    }
}
