//! Moments of the calendar as text: RFC 3339 in UTC, or seconds since 1970. Durations as `90m`, `24h` or `7d`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY_SECONDS: u64 = 24 * 3600;
const EXPECTED: &str = "expected a moment such as 2026-11-28T09:30:00Z or 2026-11-28T10:30:00.5+01:00, or the seconds \
                        since 1970";

/// Parses `2026-11-28T09:30:00Z`, with any fraction and offset, or seconds since 1970.
pub(crate) fn parse(text: &str) -> Result<SystemTime, String> {
    let since_1970 = match text.contains('-') {
        true => of_calendar(text),
        false => seconds(text),
    };
    since_1970.and_then(|time| UNIX_EPOCH.checked_add(time)).ok_or_else(|| EXPECTED.to_owned())
}

/// Parses a number with the unit `s`, `m`, `h` or `d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit_seconds = match unit {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(DAY_SECONDS),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    let seconds = unit_seconds.zip(number).and_then(|(unit, number)| number.checked_mul(unit));
    let message = "expected a duration such as 30s, 90m, 24h or 7d";
    seconds.map(Duration::from_secs).ok_or_else(|| message.to_owned())
}

/// Seconds with a fraction, if any.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole = digits(whole, 1..=12)?;
    Some(Duration::new(whole, nanoseconds(fraction)?))
}

/// The fraction of a second that these digits are.
fn nanoseconds(fraction: &str) -> Option<u32> {
    digits(fraction, 1..=9)?;
    format!("{fraction:0<9}").parse().ok()
}

/// The number of this many digits, and nothing else.
fn digits(text: &str, lengths: std::ops::RangeInclusive<usize>) -> Option<u64> {
    let is_number = lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

fn of_calendar(text: &str) -> Option<Duration> {
    let (date, time) = text.split_at_checked(10)?;
    let time = time.strip_prefix(['T', 't', ' '])?;
    let zone_at = time.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = time.split_at(zone_at);
    let mut parts = time.splitn(3, ':');
    let hour = digits(parts.next()?, 2..=2).filter(|hour| *hour < 24)?;
    let minute = digits(parts.next()?, 2..=2).filter(|minute| *minute < 60)?;
    let (second, fraction) = parts.next().map(|it| it.split_once('.').unwrap_or((it, "0")))?;
    let second = digits(second, 2..=2).filter(|second| *second < 60)?;
    let of_day = Duration::new(hour * 3600 + minute * 60 + second, nanoseconds(fraction)?);
    let local = Duration::from_secs(days_of(date)? * DAY_SECONDS) + of_day;
    if zone.eq_ignore_ascii_case("z") {
        return Some(local);
    }
    let (hours, minutes) = zone[1..].split_once(':')?;
    let hours = digits(hours, 2..=2).filter(|hours| *hours < 24)?;
    let minutes = digits(minutes, 2..=2).filter(|minutes| *minutes < 60)?;
    let offset = Duration::from_secs(hours * 3600 + minutes * 60);
    if zone.starts_with('+') { local.checked_sub(offset) } else { local.checked_add(offset) }
}

/// The days from 1970 to a date.
fn days_of(date: &str) -> Option<u64> {
    let mut parts = date.split('-');
    let year = digits(parts.next()?, 4..=4).filter(|year| *year >= 1970)?;
    let month = digits(parts.next()?, 2..=2).filter(|month| (1..=12).contains(month))?;
    let of_month = month_days(year, month);
    let day = digits(parts.next()?, 2..=2).filter(|day| (1..=of_month).contains(day))?;
    let years: u64 = (1970..year).map(year_days).sum();
    let months: u64 = (1..month).map(|month| month_days(year, month)).sum();
    parts.next().is_none().then_some(years + months + day - 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_days(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(text: &str) -> Option<u128> {
        parse(text)
            .ok()
            .map(|time| time.duration_since(UNIX_EPOCH).expect("after 1970").as_millis())
    }

    #[test]
    fn moments_are_read_as_written() {
        // The seconds are those of `date -u +%s -d`.
        for (moment, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600_000),
            ("2026-11-28T09:30:00Z", 1_795_858_200_000),
            ("2026-11-28T10:30:00.5+01:00", 1_795_858_200_500),
            ("2026-11-28 04:00:00-05:30", 1_795_858_200_000),
            ("2100-03-01T00:00:00Z", 4_107_542_400_000),
            ("1795858200", 1_795_858_200_000),
            ("1795858200.25", 1_795_858_200_250),
        ] {
            assert_eq!(milliseconds(moment), Some(expected), "{moment}");
        }
        for wrong in [
            "",
            "now",
            "-1",
            "1e9",
            "1.",
            "2026-11-28",
            "2026-11-28T09:30:00",
            "2026-11-28T09:30Z",
            "2026-11-31T09:30:00Z",
            "2100-02-29T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-11-28T24:00:00Z",
            "2026-11-28T09:60:00Z",
            "2026-11-28T09:30:00+1:00",
            "2026-11-28T09:30:00Zulu",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "2026-11-28\u{e9}09:30:00Z",
            "2026-11-2\u{e9}T09:30:00Z",
        ] {
            assert_eq!(milliseconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn moments_are_written_as_they_are_read() {
        for moment in [
            "1970-01-01T00:00:00.000Z",
            "2000-02-29T23:59:59.999Z",
            "2026-12-31T00:00:00.001Z",
            "2100-03-01T12:34:56.000Z",
        ] {
            let time = parse(moment).unwrap().duration_since(UNIX_EPOCH).unwrap();
            assert_eq!(remote::UtcTime(time).to_string(), moment);
        }
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse_duration("90m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(7 * DAY_SECONDS)));
        for wrong in ["", "90", "m", "1.5h", "-1s", "9999999999999999999d", "1 h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
