//! Time as an argument. Only stalls, the age of unsynced writes, limits of reading and statistics
//! use it; it never orders anything.

mod pace;

use std::time::{Duration, Instant};

pub use pace::Pace;

/// A monotonic clock.
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that reads zero now.
    #[expect(clippy::disallowed_methods, reason = "the one place where real time enters")]
    pub fn new() -> SystemClock {
        SystemClock(Instant::now())
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
