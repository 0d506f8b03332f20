//! [`UtcTime`]: a time of the calendar as text.

use std::fmt;
use std::time::Duration;

const DAY_SECONDS: u64 = 24 * 3600;
/// Days of 400 years: the calendar repeats itself after them.
const ERA_DAYS: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const DAYS_TO_1970: u64 = 719_468;

/// A time since 1970, such as [`BucketStatus::stored`](crate::BucketStatus::stored). It prints itself in UTC by RFC 3339:
/// `2026-11-28T09:30:00.000Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UtcTime(pub Duration);

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        // Years begin with March here, so that a leap day is the last one of its year.
        let days = seconds / DAY_SECONDS + DAYS_TO_1970;
        let of_era = days % ERA_DAYS;
        let year_of_era =
            (of_era - of_era / 1460 + of_era / 36_524 - of_era / (ERA_DAYS - 1)) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        // The months from March on have 153 days in each five.
        let month_from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = days / ERA_DAYS * 400 + year_of_era + u64::from(month <= 2);
        let hour = seconds / 3600 % 24;
        let minute = seconds / 60 % 60;
        let second = seconds % 60;
        let milliseconds = self.0.subsec_millis();
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seconds: u64, expected: &str) {
        assert_eq!(UtcTime(Duration::from_secs(seconds)).to_string(), expected);
    }

    /// The seconds are those of `date -u +%s -d`.
    #[test]
    fn times_print_as_dates() {
        check(0, "1970-01-01T00:00:00.000Z");
        check(68_169_600, "1972-02-29T00:00:00.000Z");
        check(951_868_799, "2000-02-29T23:59:59.000Z");
        check(951_868_800, "2000-03-01T00:00:00.000Z");
        check(1_795_858_200, "2026-11-28T09:30:00.000Z");
        check(1_798_761_599, "2026-12-31T23:59:59.000Z");
        check(4_107_542_400, "2100-03-01T00:00:00.000Z");
        assert_eq!(UtcTime(Duration::from_millis(1)).to_string(), "1970-01-01T00:00:00.001Z");
        // No time stops it.
        assert!(UtcTime(Duration::MAX).to_string().ends_with(".999Z"));
    }
}
