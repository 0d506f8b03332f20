//! [`Calendar`]: the time by which entries expire, for jobs and for the search of what is due.
//!
//! [`CalendarGuard`] decides how far the clock of the database is believed; this file notifies listeners.

use std::sync::Arc;
use std::time::Duration;

use super::DbInner;
use super::events::Events;
use crate::clock::{CalendarGuard, Clock, ClockJump};
use crate::hooks::Event;

/// The time by which entries expire, for jobs and for the search of due tables.
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

    /// The time since 1970 by which entries expire. Allowed under any lock.
    pub(super) fn unix_time(&self) -> Duration {
        let (time, jump) = self.guard.look(&*self.clock);
        if let Some(jump) = jump {
            self.events.tell(&Event::ClockJumped(jump));
        }
        time
    }
}

impl DbInner {
    /// The jump of the calendar that delays the expiry of entries.
    pub(super) fn clock_jump(&self) -> Option<ClockJump> {
        let Calendar { clock, guard, .. } = &self.runner.calendar;
        let jump = guard.jump(&**clock)?;
        let partitions = self.catalog.partitions();
        let is_awaited = partitions.iter().any(|it| it.load_hooks().ageing().is_some());
        is_awaited.then_some(jump)
    }

    /// Believes the clock as it is.
    pub(super) fn confirm_clock(&self) {
        let Calendar { clock, guard, .. } = &self.runner.calendar;
        guard.confirm(&**clock);
        // More may be due by it.
        self.background.wake_all();
    }
}
