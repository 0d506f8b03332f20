//! [`CalendarGuard`]: the time of the calendar, as far as the monotonic clock justifies it.
//!
//! Entries expire by it. A calendar may be wrong for a moment, and entries that are removed then
//! are lost. So the distance between the two clocks counts: a distance that differs from the
//! confirmed one is believed when it has lasted, or when the owner confirms it.
//!
//! Invariants:
//! 1. The time that it shows is never later than the calendar's, and runs ahead of the confirmed distance
//!    by [`SLACK`] at most.
//! 2. The distance at the open is confirmed: nothing that outlives a process says how long it was
//!    closed. Later ones are confirmed by [`CONFIRMED_AFTER`], or by the owner.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;

use super::Clock;

/// Smaller differences are no jump: calendars are corrected by seconds, and the two clocks are not read at
/// the same moment.
pub const SLACK: Duration = Duration::from_secs(60);
/// A calendar that was set wrong is noticed within this time, and expiry can wait so long.
pub const CONFIRMED_AFTER: Duration = Duration::from_secs(3600);

/// A jump of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ClockJump {
    /// The time since 1970 that the monotonic clock expects.
    pub expected: Duration,
    /// The time since 1970 by the calendar.
    pub found: Duration,
}

impl fmt::Display for ClockJump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (distance, sense) = match self.found.checked_sub(self.expected) {
            Some(ahead) => (ahead, "ahead of"),
            None => (self.expected.saturating_sub(self.found), "after"),
        };
        let found = self.found.as_secs();
        let distance = distance.as_secs();
        write!(
            f,
            "the calendar reads {found} s since 1970, {distance} s {sense} the monotonic clock"
        )
    }
}

/// Both clocks at one moment.
#[derive(Clone, Copy)]
struct BothClocks {
    monotonic: Duration,
    calendar: Duration,
}

impl BothClocks {
    fn of(clock: &dyn Clock) -> BothClocks {
        BothClocks { monotonic: clock.since_boot(), calendar: clock.unix_time() }
    }

    /// The calendar less the monotonic clock, in nanoseconds.
    fn distance(self) -> i128 {
        self.calendar.as_nanos().cast_signed() - self.monotonic.as_nanos().cast_signed()
    }

    /// The time that the calendar has if the distance is this one.
    fn expected(self, distance: i128) -> Duration {
        let nanos = u64::try_from(self.monotonic.as_nanos().cast_signed() + distance);
        // A measured distance leads to no time before 1970, and to none 500 years later.
        Duration::from_nanos(nanos.unwrap_or_default())
    }

    fn jump_from(self, distance: i128) -> ClockJump {
        ClockJump { expected: self.expected(distance), found: self.calendar }
    }
}

fn differ(left: i128, right: i128) -> bool {
    left.abs_diff(right) > SLACK.as_nanos()
}

/// Another distance than the confirmed one.
struct Unconfirmed {
    distance: i128,
    /// By the monotonic clock.
    since: Duration,
}

struct Distances {
    confirmed: i128,
    unconfirmed: Option<Unconfirmed>,
}

/// The calendar's time, checked against the monotonic clock.
pub struct CalendarGuard(Mutex<Distances>);

impl CalendarGuard {
    /// Begins with the present distance.
    pub fn new(clock: &dyn Clock) -> CalendarGuard {
        let confirmed = BothClocks::of(clock).distance();
        CalendarGuard(Mutex::new(Distances { confirmed, unconfirmed: None }))
    }

    /// The time since 1970 that is justified now; the jump, if the calendar has jumped since the last look.
    pub fn look(&self, clock: &dyn Clock) -> (Duration, Option<ClockJump>) {
        let now = BothClocks::of(clock);
        let distance = now.distance();
        let mut state = self.0.lock();
        if !differ(distance, state.confirmed) {
            state.unconfirmed = None;
            return (now.calendar, None);
        }
        let mut jump = None;
        match &state.unconfirmed {
            Some(known) if !differ(distance, known.distance) => {
                if now.monotonic.saturating_sub(known.since) >= CONFIRMED_AFTER {
                    *state = Distances { confirmed: distance, unconfirmed: None };
                    return (now.calendar, None);
                }
            }
            _ => {
                state.unconfirmed = Some(Unconfirmed { distance, since: now.monotonic });
                jump = Some(now.jump_from(state.confirmed));
            }
        }
        // Invariant 1, also after the calendar went back.
        (now.calendar.min(now.expected(state.confirmed)), jump)
    }

    /// The jump that waits to be confirmed.
    pub fn jump(&self, clock: &dyn Clock) -> Option<ClockJump> {
        let now = BothClocks::of(clock);
        let confirmed = self.0.lock().confirmed;
        differ(now.distance(), confirmed).then(|| now.jump_from(confirmed))
    }

    /// Confirms the calendar as it is.
    pub fn confirm(&self, clock: &dyn Clock) {
        let confirmed = BothClocks::of(clock).distance();
        *self.0.lock() = Distances { confirmed, unconfirmed: None };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two clocks that stand still until they are moved, in seconds.
    #[derive(Default)]
    struct Two(Mutex<(u64, u64)>);

    impl Clock for Two {
        fn now(&self) -> Duration {
            Duration::from_secs(self.0.lock().0)
        }

        fn unix_time(&self) -> Duration {
            Duration::from_secs(self.0.lock().1)
        }
    }

    /// Sets both clocks; the time that is justified, and whether a jump is found.
    fn check(guard: &CalendarGuard, clock: &Two, both: (u64, u64), expected: (u64, bool)) {
        *clock.0.lock() = both;
        let (time, jump) = guard.look(clock);
        assert_eq!((time.as_secs(), jump.is_some()), expected, "at {both:?}");
    }

    #[test]
    fn the_calendar_counts_as_far_as_the_monotonic_clock_justifies_it() {
        let clock = Two::default();
        *clock.0.lock() = (1000, 50_000);
        let guard = CalendarGuard::new(&clock);
        check(&guard, &clock, (1100, 50_100), (50_100, false));
        let slack = SLACK.as_secs();
        check(&guard, &clock, (1100, 50_100 + slack), (50_100 + slack, false));
        check(&guard, &clock, (1100, 50_101 + slack), (50_100, true));
        check(&guard, &clock, (1200, 50_201 + slack), (50_200, false));
        // Another jump begins the wait again, and the way back ends it.
        check(&guard, &clock, (1300, 4_000_000_000), (50_300, true));
        check(&guard, &clock, (1301, 50_301), (50_301, false));
        check(&guard, &clock, (1302, 4_000_000_000), (50_302, true));
    }

    #[test]
    fn a_jump_counts_once_it_has_lasted_or_is_confirmed() {
        let clock = Two::default();
        let guard = CalendarGuard::new(&clock);
        let wait = CONFIRMED_AFTER.as_secs();
        check(&guard, &clock, (10, 900_010), (10, true));
        check(&guard, &clock, (9 + wait, 900_009 + wait), (9 + wait, false));
        check(&guard, &clock, (10 + wait, 900_010 + wait), (900_010 + wait, false));
        assert!(guard.jump(&clock).is_none());
        check(&guard, &clock, (20 + wait, 2_000_000), (900_020 + wait, true));
        assert_eq!(guard.jump(&clock).map(|it| it.found.as_secs()), Some(2_000_000));
        guard.confirm(&clock);
        check(&guard, &clock, (21 + wait, 2_000_001), (2_000_001, false));
    }

    /// A calendar that runs twice as fast jumps again and again, and is never confirmed.
    #[test]
    fn a_calendar_that_runs_away_is_not_followed() {
        let clock = Two::default();
        let guard = CalendarGuard::new(&clock);
        for second in 0..20_000 {
            *clock.0.lock() = (second, 2 * second);
            let time = guard.look(&clock).0.as_secs();
            assert!(time <= second + SLACK.as_secs(), "{time} after {second} seconds");
        }
    }

    #[test]
    fn a_calendar_that_goes_back_counts_at_once_and_its_return_is_no_jump() {
        let clock = Two::default();
        *clock.0.lock() = (0, 1_000_000);
        let guard = CalendarGuard::new(&clock);
        check(&guard, &clock, (5, 0), (0, true));
        check(&guard, &clock, (10, 1_000_010), (1_000_010, false));
        // Once the earlier time has lasted, the way ahead is a jump like others.
        let wait = CONFIRMED_AFTER.as_secs();
        check(&guard, &clock, (20, 20), (20, true));
        check(&guard, &clock, (20 + wait, 20 + wait), (20 + wait, false));
        check(&guard, &clock, (30 + wait, 1_000_030), (30 + wait, true));
    }
}
