//! Time as an argument. Only stalls, the age of unsynced writes, entries that expire, limits of
//! reading and statistics use it; it never orders anything.

mod pace;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use pace::Pace;

/// A monotonic clock.
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// Time since the beginning of 1970, by the machine's calendar; it may go backwards. Noted with
    /// large values, and compared with the moments at which entries expire.
    #[expect(clippy::disallowed_methods, reason = "the one place where the calendar enters")]
    fn unix_time(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
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
