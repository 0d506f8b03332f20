//! [`Calendar`]: the time by which entries expire, for readers, for jobs and for the search of what is due.
//!
//! [`CalendarGuard`] decides how far the clock of the database is believed; this file notifies listeners.

use std::sync::Arc;
use std::time::Duration;

use super::events::Events;
use crate::clock::{CalendarGuard, Clock, ClockJump, ExpiryClock};
use crate::hooks::Event;

/// [`Clock::recent_unix_time`] is earlier by less than this: a tick of the kernel takes 10 ms at most.
const RECENT: Duration = Duration::from_millis(50);

/// The time by which entries expire, for readers, jobs and the search of due tables.
pub(super) struct Calendar {
    clock: Arc<dyn Clock>,
    guard: CalendarGuard,
    events: Arc<Events>,
}

impl Calendar {
    /// Believes the clock as it is.
    pub(super) fn new(clock: Arc<dyn Clock>, events: Arc<Events>) -> Calendar {
        let guard = CalendarGuard::new(&*clock);
        Calendar { clock, guard, events }
    }

    /// The time by the clock of the database, which may begin anywhere.
    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The time since 1970 by which entries expire. Allowed under any lock.
    pub(super) fn unix_time(&self) -> Duration {
        let (time, jump) = self.guard.look(&*self.clock);
        if let Some(jump) = jump {
            self.events.tell(&Event::ClockJumped(jump));
        }
        time
    }

    /// The jump of the clock that delays the expiry of entries.
    pub(super) fn jump(&self) -> Option<ClockJump> {
        self.guard.jump(&*self.clock)
    }

    /// Believes the clock as it is.
    pub(super) fn confirm(&self) {
        self.guard.confirm(&*self.clock);
    }
}

impl ExpiryClock for Calendar {
    fn unix_time(&self) -> Duration {
        Calendar::unix_time(self)
    }

    #[inline]
    fn unix_time_at_most(&self) -> Duration {
        // The guard shows no time that is later than the calendar's.
        self.clock.recent_unix_time() + RECENT
    }
}
