//! [`TtlRule`]: a rule for the expiry of entries that can be stored, because it needs no code.
//!
//! ```text
//! byte 0   version, 1
//! byte 1   bit 0: the number is in the value, else in the key; bit 1: its place is counted
//!          from the end; bit 2: little-endian; bit 3: there is a time to live; bit 4: reads see
//!          expired entries
//! byte 2   bytes of the number: 4 or 8
//! byte 3   unit: 0 seconds, 1 milliseconds, 2 microseconds, 3 nanoseconds
//! varint   bytes before the number, or after it where it is counted from the end
//! varint   time to live, in the unit; only where there is one
//! varint   time for which an expired entry may stay, in the unit
//! ```
//!
//! Stored as the parameters of a [`TtlFilter`](super::TtlFilter). Bytes that are not these are no
//! rule: the filter is then missing, and `Db::health` reports that.

use std::time::Duration;

use crate::codec::{Reader, put_varint};
use crate::hooks::Expiry;

const VERSION: u8 = 1;
pub(super) const IN_VALUE: u8 = 1;
pub(super) const FROM_END: u8 = 2;
pub(super) const LITTLE_ENDIAN: u8 = 4;
const HAS_TIME_TO_LIVE: u8 = 8;
pub(super) const SEEN_BY_READS: u8 = 16;

/// The default of [`TtlRule::stays_at_most`].
pub(super) const STAYS_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// The width of a moment in a key or value. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum TimeWidth {
    /// Four bytes.
    U32 = 4,
    /// Eight bytes.
    U64 = 8,
}

/// The unit of a moment. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum TimeUnit {
    /// Seconds.
    Seconds = 0,
    /// Milliseconds.
    Millis = 1,
    /// Microseconds.
    Micros = 2,
    /// Nanoseconds.
    Nanos = 3,
}

impl TimeUnit {
    fn from_u8(number: u8) -> Option<TimeUnit> {
        let all = [TimeUnit::Seconds, TimeUnit::Millis, TimeUnit::Micros, TimeUnit::Nanos];
        all.get(usize::from(number)).copied()
    }

    /// The time of so many units.
    pub(super) fn time(self, units: u64) -> Duration {
        match self {
            TimeUnit::Seconds => Duration::from_secs(units),
            TimeUnit::Millis => Duration::from_millis(units),
            TimeUnit::Micros => Duration::from_micros(units),
            TimeUnit::Nanos => Duration::from_nanos(units),
        }
    }

    /// The number of whole units in `time`.
    pub(super) fn whole(self, time: Duration) -> u64 {
        let units = match self {
            TimeUnit::Seconds => u128::from(time.as_secs()),
            TimeUnit::Millis => time.as_millis(),
            TimeUnit::Micros => time.as_micros(),
            TimeUnit::Nanos => time.as_nanos(),
        };
        // Nanoseconds pass 64 bits in the year 2554. From then on everything that expires has
        // expired.
        u64::try_from(units).unwrap_or(u64::MAX)
    }
}

/// The place of a time in the key or value of each entry, and its meaning.
///
/// The time is an unsigned number of units since 1970, by the clock of the database
/// ([`Clock::unix_time`](crate::clock::Clock::unix_time)). By default it has eight bytes, is big-endian,
/// counts seconds, and is the time of expiry. An entry that is too short for it, or whose time is 0,
/// never expires.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct TtlRule {
    /// As they are stored, without [`HAS_TIME_TO_LIVE`].
    flags: u8,
    /// The number of bytes before it, or after it.
    pub(super) offset: u64,
    pub(super) width: TimeWidth,
    pub(super) unit: TimeUnit,
    pub(super) time_to_live: Option<Duration>,
    pub(super) stays_for: Duration,
}

impl TtlRule {
    fn at(flags: u8, offset: usize) -> TtlRule {
        TtlRule {
            flags,
            offset: offset as u64,
            width: TimeWidth::U64,
            unit: TimeUnit::Seconds,
            time_to_live: None,
            stays_for: STAYS_FOR,
        }
    }

    /// Returns the rule for a time in the key after `offset` bytes.
    pub fn in_key(offset: usize) -> TtlRule {
        TtlRule::at(0, offset)
    }

    /// Returns the rule for a time in the key before the last `offset` bytes.
    pub fn in_key_from_end(offset: usize) -> TtlRule {
        TtlRule::at(FROM_END, offset)
    }

    /// Returns the rule for a time in the value after `offset` bytes.
    ///
    /// Such a partition cannot have large values, because a compaction does not read them.
    pub fn in_value(offset: usize) -> TtlRule {
        TtlRule::at(IN_VALUE, offset)
    }

    /// Returns the rule for a time in the value before the last `offset` bytes. Otherwise as
    /// [`in_value`](Self::in_value).
    pub fn in_value_from_end(offset: usize) -> TtlRule {
        TtlRule::at(IN_VALUE | FROM_END, offset)
    }

    /// Sets the width of the time. Default: [`TimeWidth::U64`].
    pub fn width(mut self, width: TimeWidth) -> TtlRule {
        self.width = width;
        self
    }

    /// Makes the time little-endian. Default: big-endian, as in keys that sort by time.
    pub fn little_endian(mut self) -> TtlRule {
        self.flags |= LITTLE_ENDIAN;
        self
    }

    /// Sets the unit of the time. Default: [`TimeUnit::Seconds`]. A time to live and
    /// [`stays_at_most`](Self::stays_at_most) are rounded down to whole units.
    pub fn unit(mut self, unit: TimeUnit) -> TtlRule {
        self.unit = unit;
        self
    }

    /// Sets a time to live: the time is the time of creation, and the entry expires this much later.
    /// Default: the time is the time of expiry.
    pub fn time_to_live(mut self, time: Duration) -> TtlRule {
        self.time_to_live = Some(time);
        self
    }

    /// Sets the maximum time that an expired entry stays in a table if at most a tenth of its entries has
    /// expired. Then the table is rewritten. Default: one day, so that a table with few expired entries is
    /// rewritten at most once per day.
    pub fn stays_at_most(mut self, time: Duration) -> TtlRule {
        self.stays_for = time;
        self
    }

    /// Sets whether reads see an expired entry as long as no compaction has removed it. Default: no, an
    /// expired entry is not there for any read.
    pub fn reads_see_expired(mut self, are_seen: bool) -> TtlRule {
        self.flags &= !SEEN_BY_READS;
        if are_seen {
            self.flags |= SEEN_BY_READS;
        }
        self
    }

    /// Returns the rule that a partition stores with the filter [`TtlFilter::NAME`](super::TtlFilter::NAME) as these
    /// parameters; `None` if they are no rule of this version.
    pub fn from_stored(params: &[u8]) -> Option<TtlRule> {
        let StoredRule { flags, width, unit, offset, time_to_live, stays_for } =
            TtlRule::from_params(params)?;
        Some(TtlRule {
            flags: flags & !HAS_TIME_TO_LIVE,
            offset: offset as u64,
            width: if width == 4 { TimeWidth::U32 } else { TimeWidth::U64 },
            unit,
            time_to_live: (flags & HAS_TIME_TO_LIVE != 0).then(|| unit.time(time_to_live)),
            stays_for: unit.time(stays_for),
        })
    }

    /// Returns `true` if the rule has this flag.
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The parameters that are stored.
    pub(super) fn params(&self) -> Vec<u8> {
        let mut flags = self.flags;
        if self.time_to_live.is_some() {
            flags |= HAS_TIME_TO_LIVE;
        }
        let mut params = vec![VERSION, flags, self.width as u8, self.unit as u8];
        put_varint(&mut params, self.offset);
        if let Some(time) = self.time_to_live {
            put_varint(&mut params, self.unit.whole(time));
        }
        // Always there, so that a default that changes later does not change stored rules.
        put_varint(&mut params, self.unit.whole(self.stays_for));
        params
    }

    /// The rule of stored parameters; `None` if they are not of this version.
    pub(super) fn from_params(params: &[u8]) -> Option<StoredRule> {
        let mut reader = Reader::new(params);
        if reader.u8().ok()? != VERSION {
            return None;
        }
        let flags = reader.u8().ok()?;
        let known = IN_VALUE | FROM_END | LITTLE_ENDIAN | HAS_TIME_TO_LIVE | SEEN_BY_READS;
        let width = reader.u8().ok()?;
        if flags & !known != 0 || !matches!(width, 4 | 8) {
            return None;
        }
        let unit = TimeUnit::from_u8(reader.u8().ok()?)?;
        let offset = usize::try_from(reader.varint().ok()?).ok()?;
        let has_time_to_live = flags & HAS_TIME_TO_LIVE != 0;
        let time_to_live = if has_time_to_live { reader.varint().ok()? } else { 0 };
        let stays_for = reader.varint().ok()?;
        // To the last byte: a field that this version does not know could change when entries
        // expire.
        reader.finish().ok()?;
        Some(StoredRule { flags, width: width.into(), unit, offset, time_to_live, stays_for })
    }
}

/// A rule as its parameters say it: all times in its unit.
#[derive(Clone, Debug)]
pub(super) struct StoredRule {
    flags: u8,
    width: usize,
    unit: TimeUnit,
    offset: usize,
    time_to_live: u64,
    stays_for: u64,
}

impl StoredRule {
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The time stored in `bytes`, if they are long enough.
    fn timestamp(&self, bytes: &[u8]) -> Option<u64> {
        let start = match self.has(FROM_END) {
            true => bytes.len().checked_sub(self.offset)?.checked_sub(self.width)?,
            false => self.offset,
        };
        // The rule comes from the manifest and the bytes from a user: neither decides about a
        // panic.
        let number = bytes.get(start..start.checked_add(self.width)?)?;
        let mut wide = [0; 8];
        if self.has(LITTLE_ENDIAN) {
            wide[..self.width].copy_from_slice(number);
            return Some(u64::from_le_bytes(wide));
        }
        wide[8 - self.width..].copy_from_slice(number);
        Some(u64::from_be_bytes(wide))
    }
}

impl Expiry for StoredRule {
    fn expires_at(&self, key: &[u8], value: Option<&[u8]>) -> Option<u64> {
        // A value that is stored apart is not here, and its entry stays.
        let bytes = if self.has(IN_VALUE) { value? } else { key };
        let time = self.timestamp(bytes).filter(|time| *time > 0)?;
        // A time beyond the range never comes, so the entry never expires.
        time.checked_add(self.time_to_live)
    }

    fn now(&self, unix_time: Duration) -> u64 {
        self.unit.whole(unix_time)
    }

    fn stays_for(&self) -> Option<u64> {
        Some(self.stays_for)
    }

    fn reads_values(&self) -> bool {
        self.has(IN_VALUE)
    }

    fn hides(&self) -> bool {
        !self.has(SEEN_BY_READS)
    }

    fn unix_time(&self, moment: u64) -> Option<Duration> {
        Some(self.unit.time(moment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(rule: &TtlRule) -> StoredRule {
        TtlRule::from_params(&rule.params()).expect("a rule reads back")
    }

    /// Checks when an entry of this key and value expires.
    fn check(rule: TtlRule, key: &[u8], value: &[u8], expected: Option<u64>) {
        assert_eq!(stored(&rule).expires_at(key, Some(value)), expected, "{rule:?}");
    }

    #[test]
    fn a_moment_is_found_at_its_place() {
        let moment = 0x0102_0304_0506_0708u64;
        let be = [&b"ab"[..], &moment.to_be_bytes(), b"xyz"].concat();
        let le = [&b"ab"[..], &moment.to_le_bytes(), b"xyz"].concat();
        check(TtlRule::in_key(2), &be, b"", Some(moment));
        check(TtlRule::in_key_from_end(3), &be, b"", Some(moment));
        check(TtlRule::in_value(2), b"", &be, Some(moment));
        check(TtlRule::in_value_from_end(3).little_endian(), b"", &le, Some(moment));
        let narrow = TtlRule::in_key(2).width(TimeWidth::U32);
        check(narrow.clone(), &be, b"", Some(0x0102_0304));
        check(narrow.little_endian(), &le, b"", Some(0x0506_0708));
    }

    #[test]
    fn an_entry_without_a_moment_never_expires() {
        check(TtlRule::in_key(0), b"1234567", b"", None);
        check(TtlRule::in_key(1), b"12345678", b"", None);
        check(TtlRule::in_key_from_end(1), b"12345678", b"", None);
        check(TtlRule::in_key(usize::MAX), b"12345678", b"", None);
        check(TtlRule::in_value(0), b"12345678", b"", None);
        check(TtlRule::in_value(0), b"", &[0; 8], None);
        let late = TtlRule::in_value(0).time_to_live(Duration::from_secs(1));
        check(late, b"", &[0xff; 8], None);
        assert_eq!(stored(&TtlRule::in_value(0)).expires_at(b"", None), None);
    }

    #[test]
    fn a_time_to_live_and_the_clock_count_units() {
        let made = TtlRule::in_value(0).time_to_live(Duration::from_millis(2500));
        let value = 1000u64.to_be_bytes();
        check(made.clone(), b"", &value, Some(1002));
        check(made.clone().unit(TimeUnit::Millis), b"", &value, Some(3500));
        check(made.clone().unit(TimeUnit::Micros), b"", &value, Some(2_501_000));
        check(made.clone().unit(TimeUnit::Nanos), b"", &value, Some(2_500_001_000));
        let time = Duration::from_millis(5999);
        assert_eq!(stored(&made).now(time), 5);
        assert_eq!(stored(&made.unit(TimeUnit::Millis)).now(time), 5999);
        assert_eq!(stored(&TtlRule::in_key(0)).stays_for(), Some(86_400));
    }

    #[test]
    fn bytes_of_a_rule_are_these() {
        let rule = TtlRule::in_value_from_end(300)
            .width(TimeWidth::U32)
            .little_endian()
            .unit(TimeUnit::Millis)
            .time_to_live(Duration::from_secs(1))
            .stays_at_most(Duration::from_millis(5));
        assert_eq!(rule.params(), [1, 0b1111, 4, 1, 0xac, 2, 0xe8, 7, 5]);
        assert!(stored(&rule).hides());
        let seen = rule.reads_see_expired(true);
        assert_eq!(seen.params()[1], 0b1_1111);
        assert!(!stored(&seen).hides());
        assert_eq!(TtlRule::in_key(0).params(), [1, 0, 8, 0, 0, 0x80, 0xa3, 5]);
    }

    #[test]
    fn what_is_no_rule_is_none() {
        let good = TtlRule::in_key(3).params();
        assert!(TtlRule::from_params(&good).is_some());
        for at in 0..good.len() {
            assert!(TtlRule::from_params(&good[..at]).is_none(), "{at}");
        }
        assert!(TtlRule::from_params(&[&good[..], &[0]].concat()).is_none());
        for (at, byte) in [(0, 2), (1, 32), (2, 5), (3, 4)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(TtlRule::from_params(&bad).is_none(), "{at}");
        }
    }
}
