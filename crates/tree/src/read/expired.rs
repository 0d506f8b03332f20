//! [`Alive`]: the entries that have not expired at the time of a reader, in a partition whose rule hides expired ones.
//!
//! The newest visible version of a key decides, as it does for a tombstone: if it has expired, the key is not there,
//! and no older version is looked at. Nothing of this is remembered, because time may go back: see `clock/guard.rs`.
//!
//! A value that has expired is no base for the operands above it. What they make of nothing, or of a base that is
//! there, expires by its own time.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::ExpiryClock;
use crate::hooks::{Expiry, PartitionHooks};
use crate::types::{EntryKind, KeyForm};

/// The time after which an entry is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemainingTime {
    /// This long; zero for an entry that has expired.
    Limited(Duration),
    /// The entry does not expire by a stored rule.
    Unlimited,
}

impl RemainingTime {
    /// The time that an entry of this user key has at `unix_time`; `value` is `None` if it is stored apart. `hooks` are
    /// those of its partition.
    pub fn of(
        hooks: &PartitionHooks,
        key: &[u8],
        value: Option<&[u8]>,
        unix_time: Duration,
    ) -> RemainingTime {
        let expires = hooks.ageing().and_then(|ageing| {
            let moment = ageing.expiry.expires_at(key, value)?;
            ageing.expiry.unix_time(moment)
        });
        match expires {
            Some(at) => RemainingTime::Limited(at.saturating_sub(unix_time)),
            None => RemainingTime::Unlimited,
        }
    }
}

/// The time of a reader.
#[derive(Clone, Copy)]
pub enum ReadTime<'a> {
    /// This one, in the unit of the rule.
    At(u64),
    /// That of the clock when an entry is found: a read of one key that does not expire soon looks at no exact clock.
    Now(&'a dyn ExpiryClock),
}

/// The rule of a partition, and the time of a reader.
#[derive(Clone, Copy)]
pub struct Alive<'a> {
    /// The rule of the partition.
    pub rule: &'a Arc<dyn Expiry>,
    /// The form of its keys.
    pub key_form: KeyForm,
    /// The time of the read.
    pub time: ReadTime<'a>,
}

impl Alive<'_> {
    /// Returns `true` if an entry of this stored key and kind is there; `value` is not that of an operand.
    pub fn has(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        let Some(at) = self.rule.expires_at(self.key_form.user(key), value) else { return true };
        match self.time {
            ReadTime::At(now) => at > now,
            ReadTime::Now(clock) => {
                at > self.rule.now(clock.unix_time_at_most())
                    || at > self.rule.now(clock.unix_time())
            }
        }
    }

    /// The same at one time, for all entries of a read.
    pub fn fixed(self) -> AliveAt {
        let now = match self.time {
            ReadTime::At(now) => now,
            ReadTime::Now(clock) => self.rule.now(clock.unix_time()),
        };
        AliveAt { rule: self.rule.clone(), now }
    }
}

/// As [`Alive`], for a reader that reads many entries at one time.
#[derive(Clone)]
pub struct AliveAt {
    rule: Arc<dyn Expiry>,
    now: u64,
}

impl AliveAt {
    /// The entries that have not expired at this time since 1970.
    pub fn new(rule: &Arc<dyn Expiry>, unix_time: Duration) -> AliveAt {
        AliveAt { rule: rule.clone(), now: rule.now(unix_time) }
    }

    /// For keys of this form.
    pub fn of(&self, key_form: KeyForm) -> Alive<'_> {
        Alive { rule: &self.rule, key_form, time: ReadTime::At(self.now) }
    }

    /// Returns `true` if the rule reads values, so that those of operands must be made.
    pub fn reads_values(&self) -> bool {
        self.rule.reads_values()
    }
}

/// The value by which an entry of this kind expires; `None` if the time can only be in the key.
pub fn value_of_entry(kind: Option<EntryKind>, value: &[u8]) -> Option<&[u8]> {
    (kind == Some(EntryKind::Value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filters::{TtlFilter, TtlRule};
    use crate::hooks::CompactionFilterFactory;

    /// An exact time, and one that is later by less than a second.
    struct TwoTimes;

    impl ExpiryClock for TwoTimes {
        fn unix_time(&self) -> Duration {
            Duration::from_millis(10_990)
        }

        fn unix_time_at_most(&self) -> Duration {
            Duration::from_millis(11_010)
        }
    }

    /// The cheap clock is ahead of the exact one, which decides where they differ.
    #[test]
    fn an_entry_that_expires_between_the_two_clocks_is_there() {
        let rule = TtlFilter::stored(&TtlRule::in_value(0)).expiry().unwrap();
        let now =
            Alive { rule: &rule, key_form: KeyForm::default(), time: ReadTime::Now(&TwoTimes) };
        for (second, is_there) in [(9, false), (10, false), (11, true), (12, true)] {
            let value = u64::to_be_bytes(second);
            assert_eq!(now.has(b"k", Some(&value)), is_there, "{second}");
            assert_eq!(now.fixed().of(now.key_form).has(b"k", Some(&value)), is_there, "{second}");
        }
    }
}
