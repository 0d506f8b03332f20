//! [`Expiries`]: the times at which the entries of a table expire, as the manifest stores them.
//!
//! `compaction/outputs.rs` makes them through [`ExpiryNotes`]; the caller of the picker reads them.
//! `edit.rs` describes the bytes.
//!
//! Invariants:
//! 1. No entry of the table expires before `earliest`.
//! 2. Groups ascend. All entries of a group have expired at its `latest`, so the entries that make
//!    a table due can be removed.

use std::sync::Arc;

use crate::codec::{Malformed, Reader, put_u64, put_varint};
use crate::hooks::Ageing;

/// A table distinguishes so many groups of entries.
pub const GROUPS_MAX: usize = 16;
/// A table is due when more than one of so many of its entries have expired.
const EXPIRED_SHARE: u64 = 10;

/// Entries of a table that expire one soon after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiring {
    /// The moment at which the last of them expires.
    pub latest: u64,
    /// The number of entries.
    pub entries: u64,
}

/// The times at which the entries of a table expire. Moments are in the unit of the filter of
/// `rule`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiries {
    /// The mark of the filter that computed them: [`Ageing::rule`].
    pub rule: u64,
    /// The moment at which the first entry expires; `None` if none ever does.
    pub earliest: Option<u64>,
    /// The moment at which expired entries were kept, because a snapshot sees them.
    pub left_at: Option<u64>,
    /// All entries that expire, except those that were kept.
    pub groups: Arc<[Expiring]>,
}

impl Expiries {
    /// Returns `true` if enough of a table of `entries` entries has expired at `now` to rewrite it:
    /// more than a tenth, or an entry that has stayed for long enough. By a rule without such a time,
    /// all entries that ever expire are enough too.
    pub fn is_due(&self, entries: u64, ageing: &Ageing, now: u64) -> bool {
        let gone = self.groups.partition_point(|group| group.latest <= now);
        let expired = self.groups[..gone].iter().map(|group| group.entries);
        // Saturating, because the counts come from the manifest.
        let expired = expired.fold(0, u64::saturating_add);
        if expired.saturating_mul(EXPIRED_SHARE) > entries {
            return true;
        }
        match ageing.expiry.stays_for() {
            // The earliest moment rather than the groups, whose moments are rounded up.
            Some(stays_for) => has_stayed(self.earliest, stays_for, now),
            None => expired > 0 && gone == self.groups.len(),
        }
    }

    /// Returns `true` if the entries that were kept for a snapshot have stayed for long enough. A
    /// rewrite removes them only if that snapshot was released.
    pub fn is_left_due(&self, ageing: &Ageing, now: u64) -> bool {
        let stays_for = ageing.expiry.stays_for();
        stays_for.is_some_and(|stays_for| has_stayed(self.left_at, stays_for, now))
    }

    /// Returns `true` if time alone can make the table due.
    pub fn can_expire(&self) -> bool {
        self.earliest.is_some() || self.left_at.is_some()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u64(&mut out, self.rule);
        let moments = [self.earliest, self.left_at];
        out.push(u8::from(moments[0].is_some()) | u8::from(moments[1].is_some()) << 1);
        moments.iter().flatten().for_each(|moment| put_varint(&mut out, *moment));
        for Expiring { latest, entries } in &self.groups[..] {
            put_varint(&mut out, *latest);
            put_varint(&mut out, *entries);
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Expiries, Malformed> {
        let mut r = Reader::new(bytes);
        let rule = r.u64()?;
        let present = r.u8()?;
        // A bit that this code does not know could stand for more numbers.
        if present > 3 {
            return Err(r.malformed("unknown flags of the expiry times"));
        }
        let earliest = if present & 1 != 0 { Some(r.varint()?) } else { None };
        let left_at = if present & 2 != 0 { Some(r.varint()?) } else { None };
        let mut groups: Vec<Expiring> = Vec::new();
        while !r.is_empty() {
            let group = Expiring { latest: r.varint()?, entries: r.varint()? };
            if groups.last().is_some_and(|last| last.latest >= group.latest) {
                return Err(r.malformed("expiring entries do not ascend"));
            }
            groups.push(group);
        }
        Ok(Expiries { rule, earliest, left_at, groups: groups.into() })
    }
}

/// Returns `true` if `stays_for` has passed since the moment, if there is one.
fn has_stayed(since: Option<u64>, stays_for: u64, now: u64) -> bool {
    since.is_some_and(|since| since.saturating_add(stays_for) <= now)
}

/// The notes on the table that is being written.
#[derive(Debug, Default)]
pub struct ExpiryNotes {
    earliest: Option<u64>,
    left_at: Option<u64>,
    /// Apart from each other, ascending.
    spans: Vec<NotedGroup>,
}

#[derive(Debug)]
struct NotedGroup {
    first: u64,
    group: Expiring,
}

impl ExpiryNotes {
    /// Notes an entry that expires at `at`.
    pub fn note(&mut self, at: u64) {
        self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
        let place = self.spans.partition_point(|span| span.group.latest < at);
        match self.spans.get_mut(place) {
            // An entry inside a group is counted at the latest moment of the group: a late rewrite
            // is harmless, an early one is useless.
            Some(span) if span.first <= at => span.group.entries += 1,
            _ => {
                let group = Expiring { latest: at, entries: 1 };
                self.spans.insert(place, NotedGroup { first: at, group });
            }
        }
        if self.spans.len() > GROUPS_MAX {
            self.join_closest();
        }
    }

    /// Notes an entry that had expired at `now` and is kept for a snapshot.
    pub fn note_left(&mut self, now: u64) {
        self.left_at = Some(now);
    }

    /// Joins the two neighbours that lose the least by it: the entries of the first wait for the
    /// second.
    fn join_closest(&mut self) {
        let pairs = self.spans.windows(2).enumerate();
        // At most 17 groups, so the pairs are looked at one by one.
        let closest = pairs.min_by_key(|(_, pair)| waiting(pair)).map(|(at, _)| at);
        let at = closest.expect("there are more than two");
        let before = self.spans.remove(at);
        self.spans[at].first = before.first;
        self.spans[at].group.entries += before.group.entries;
    }

    /// Ends the table; later notes are about the next one.
    pub fn take(&mut self, rule: u64) -> Expiries {
        let ExpiryNotes { earliest, left_at, spans } = std::mem::take(self);
        Expiries { rule, earliest, left_at, groups: spans.iter().map(|span| span.group).collect() }
    }
}

/// The time that the entries of the first of two groups wait for the second, added up.
fn waiting(pair: &[NotedGroup]) -> u128 {
    let late = pair[1].group.latest - pair[0].group.latest;
    u128::from(late) * u128::from(pair[0].group.entries)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hooks::Expiry;

    struct Rule(Option<u64>);

    impl Expiry for Rule {
        fn expires_at(&self, _key: &[u8], _value: Option<&[u8]>) -> Option<u64> {
            None
        }

        fn now(&self, unix_time: Duration) -> u64 {
            unix_time.as_secs()
        }

        fn stays_for(&self) -> Option<u64> {
            self.0
        }
    }

    fn noted(moments: impl IntoIterator<Item = u64>) -> Expiries {
        let mut notes = ExpiryNotes::default();
        moments.into_iter().for_each(|at| notes.note(at));
        notes.take(7)
    }

    fn ageing(stays_for: Option<u64>) -> Ageing {
        Ageing { expiry: Arc::new(Rule(stays_for)), rule: 7 }
    }

    #[test]
    fn groups_count_every_entry_and_are_never_early() {
        let moments: Vec<u64> = (1..5000).map(|n| n * 7919 * 7919 % 99_991).collect();
        let expiries = noted(moments.iter().copied().chain([u64::MAX]));
        assert!(expiries.groups.len() <= GROUPS_MAX);
        assert_eq!(expiries.earliest, moments.iter().min().copied());
        for now in (0..100_000).step_by(500).chain([u64::MAX]) {
            let groups = expiries.groups.iter().filter(|group| group.latest <= now);
            let counted: u64 = groups.map(|group| group.entries).sum();
            let true_count = moments.iter().chain([&u64::MAX]).filter(|at| **at <= now).count();
            assert!(counted <= true_count as u64, "{counted} of {true_count} at {now}");
            // One outlier does not reduce the resolution: a group is about a sixteenth.
            assert!(counted + 1500 >= true_count as u64, "{counted} of {true_count} at {now}");
        }
    }

    #[test]
    fn a_table_is_due_when_more_than_a_tenth_has_expired() {
        let expiries = noted((0..11).chain([1000]));
        assert!(!expiries.is_due(110, &ageing(None), 9));
        assert!(expiries.is_due(100, &ageing(None), 10));
        assert!(!expiries.is_due(110, &ageing(None), 999), "11 of 110 are not more");
        assert!(expiries.is_due(110, &ageing(None), 1000), "all that ever expires has");
    }

    #[test]
    fn the_last_of_a_table_that_ever_expire_may_stay_as_long_as_others() {
        let expiries = noted([50]);
        assert!(expiries.is_due(1000, &ageing(None), 50));
        assert!(!expiries.is_due(1000, &ageing(Some(100)), 149));
        assert!(expiries.is_due(1000, &ageing(Some(100)), 150));
        assert!(expiries.is_due(9, &ageing(Some(100)), 50), "one of nine is much");
    }

    #[test]
    fn what_stays_for_too_long_makes_a_table_due() {
        let mut notes = ExpiryNotes::default();
        notes.note(50);
        notes.note(500);
        let expiries = notes.take(7);
        assert!(!expiries.is_due(1000, &ageing(Some(100)), 149));
        assert!(expiries.is_due(1000, &ageing(Some(100)), 150));
        assert!(!expiries.is_due(1000, &ageing(None), 499));
        notes.note_left(200);
        let left = notes.take(7);
        assert!(left.is_left_due(&ageing(Some(100)), 300));
        assert!(!left.is_left_due(&ageing(Some(100)), 299));
        assert!(!left.is_left_due(&ageing(None), u64::MAX));
        assert!(!left.is_due(1000, &ageing(Some(100)), 300), "that takes a released snapshot");
    }

    #[test]
    fn a_table_without_anything_that_expires_is_never_due() {
        let expiries = noted([]);
        assert!(!expiries.can_expire() && !expiries.is_due(0, &ageing(Some(0)), u64::MAX));
    }

    #[test]
    fn bytes_read_back_and_nonsense_is_refused() {
        let expiries = Expiries { left_at: Some(3), ..noted([5, 900, 70]) };
        let bytes = expiries.encode();
        assert_eq!(Expiries::decode(&bytes).unwrap(), expiries);
        assert_eq!(Expiries::decode(&noted([]).encode()).unwrap(), noted([]));
        assert!(Expiries::decode(&bytes[..7]).is_err());
        let mut unknown = bytes.clone();
        unknown[8] = 4;
        assert!(Expiries::decode(&unknown).is_err());
        let last_group = [&bytes[..], &[1, 1]].concat();
        assert!(Expiries::decode(&last_group).is_err(), "groups ascend");
    }
}
