//! Time as an argument. Only stalls, the age of unsynced writes, entries that expire, limits of
//! reading and statistics use it; it never orders anything.

mod guard;
mod pace;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use guard::{CONFIRMED_AFTER, CalendarGuard, ClockJump, SLACK};
pub use pace::Pace;

/// A monotonic clock.
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// Time since some fixed moment, which also goes on while the machine is suspended, where the system
    /// has such a clock: it distinguishes a jump of [`Clock::unix_time`] from time that passed. The time of
    /// [`Clock::now`] by default.
    fn since_boot(&self) -> Duration {
        self.now()
    }

    /// Time since the beginning of 1970, by the machine's calendar; it may go backwards, and it may be
    /// wrong. Noted with large values, and the time by which entries expire, as far as a
    /// [`CalendarGuard`] lets it.
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

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn since_boot(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::try_from(time).unwrap_or_default()
    }
}
