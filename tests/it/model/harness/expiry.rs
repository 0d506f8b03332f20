//! Entries that expire: time passes between the operations, and the oracle knows the rule.
//!
//! The oracle keeps what was written. Before it is compared, what has expired is left out, at the time of the reader.

use std::sync::Arc;
use std::time::Duration;

use siltstone::{RemainingTime, TimeWidth, TtlFilter, TtlRule};

use super::*;

/// A value lives so many seconds.
const LIVES_FOR: u64 = 30;

/// The number that a value begins with is the second in which it was written; no value is shorter by accident, see
/// [`Harness::value`].
fn rule() -> TtlRule {
    TtlRule::in_value(0)
        .width(TimeWidth::U32)
        .time_to_live(Duration::from_secs(LIVES_FOR))
        // A day would keep what has expired for all of a case.
        .stays_at_most(Duration::from_secs(40))
}

/// The time at which a value expires.
fn expires_at(value: &[u8]) -> Option<u64> {
    let written = u64::from(u32::from_be_bytes(*value.first_chunk()?));
    (written > 0).then_some(written + LIVES_FOR)
}

pub(super) fn is_alive(value: &[u8], now: u64) -> bool {
    expires_at(value).is_none_or(|at| at > now)
}

impl Harness {
    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_secs()
    }

    /// Moves the clock to the time of the last values, and so many seconds beyond.
    pub(super) fn pass(&mut self, seconds: u8) {
        let to = u64::from(self.values) + u64::from(seconds);
        self.clock.pass(to.saturating_sub(self.now()));
    }

    /// The contents that a reader of `incarnation` sees at `now`; `None` is a reader that sees everything.
    pub(super) fn seen(
        &self,
        incarnation: u32,
        contents: &Rc<Contents>,
        now: Option<u64>,
    ) -> Rc<Contents> {
        let Some(now) = now.filter(|_| self.expiring.contains(&incarnation)) else {
            return contents.clone();
        };
        let alive = contents.iter().filter(|(_, value)| is_alive(value, now));
        Rc::new(alive.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// The options with the rule, if the partition may have it; `None` if it stays as it is: a partition with a rule
    /// over values has no large values, and here no merges, whose results depend on the time of the folds.
    pub(super) fn expiring_options(
        &self,
        name: &str,
        options: &PartitionOptions,
        expires: bool,
    ) -> Option<PartitionOptions> {
        let part = self.parts.iter().find(|part| part.name == name);
        let has_rule = part.is_some_and(|part| self.expiring.contains(&part.incarnation));
        if !expires {
            return (!has_rule).then(|| options.clone());
        }
        let has_others = part.is_some_and(|part| {
            part.handle.space().is_some() || part.handle.merge_operator().is_some()
        });
        (!has_others).then(|| options.clone().filter(Arc::new(TtlFilter::stored(&rule()))))
    }

    /// Notes that the partition has the rule.
    pub(super) fn note_rule(&mut self, name: &str) {
        let part = self.parts.iter().find(|part| part.name == name).expect("it was configured");
        self.expiring.insert(part.incarnation);
        self.has_rule = true;
    }

    /// Compares the time that a key has left, and what a read of everything finds: what is there, or it was removed.
    pub(super) fn check_expiry(&self, part: &Part, key: &[u8]) {
        let raw = self.oracle.contents(part.name);
        let expires = self.expiring.contains(&part.incarnation);
        let expected = raw.get(key).filter(|value| !expires || is_alive(value, self.now()));
        let left = part.handle.remaining_time(key).unwrap();
        let at = expected.and_then(|value| expires_at(value)).filter(|_| expires);
        assert_eq!(
            left,
            expected.map(|_| match at {
                Some(at) => RemainingTime::Limited(Duration::from_secs(at - self.now())),
                None => RemainingTime::Unlimited,
            })
        );
        match part.handle.with_expired().get(key).unwrap() {
            None => assert!(expected.is_none()),
            Some(value) => {
                let is_newest = raw.get(key).is_some_and(|it| **it == *value);
                // After a power cut the oracle has what readers saw.
                let is_unknown = self.is_cut && expires && !is_alive(&value, self.now());
                assert!(is_newest || is_unknown, "an older version is back");
            }
        }
    }
}
