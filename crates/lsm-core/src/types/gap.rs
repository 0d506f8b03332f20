//! [`Gap`]: a range of a partition in which entries are lost, because they are damaged beyond
//! repair. All gaps of a partition are its [`Gaps`](super::Gaps).
//!
//! A compaction may not know which key a damaged entry had. It may not write anything under a
//! guessed key, and it may not leave the entry out: then a read would return an older version from
//! a deeper level. So it writes the sound entries, and the manifest stores the range of the lost
//! ones. Gets and cursors compare what they find with the gaps.
//!
//! A gap is a range of internal keys, from the sound entry before the damage to the sound entry
//! behind it, and a sequence number: no lost entry is newer than that. Inside the range, a read is
//! answered only by an entry for which no lost one can be newer.
//!
//! An earlier form poisoned the damaged entry under the key that it had. If the damage is in the
//! key, the poison hides a key that nobody wrote, and the true key reads as an older version.
//!
//! Invariants:
//! 1. Inside an open gap, no read is answered by an older entry, wherever compactions have moved
//!    that.
//! 2. A closed gap hides the entries that an open gap refuses, for reads from the sequence on at
//!    which it was closed. For snapshots before that sequence it is open.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Bound;

use super::SeqNo;

/// See the module. Keys are as they are stored. Gaps sort by their first keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gap {
    /// The key of the sound entry before.
    pub from: Box<[u8]>,
    /// Versions of `from` older than this may be lost too; zero if none can be.
    pub from_below: SeqNo,
    /// The key of the sound entry behind.
    pub to: Box<[u8]>,
    /// `true` if versions of `to` may be lost.
    pub to_included: bool,
    /// No lost entry is newer than this.
    pub through: SeqNo,
    /// Since when the loss is accepted, if it is.
    pub closed_at: Option<SeqNo>,
}

/// The effect of a gap on an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InGap {
    /// The answer stands.
    Sound,
    /// The answer may be older than a lost entry.
    Unknown,
    /// The answer is older than an accepted loss: the entry does not exist any more.
    Hidden,
}

impl Gap {
    /// The newest sequence that a lost version of `key` may have; `None` if the gap does not
    /// reach the key.
    pub(super) fn newest_lost(&self, key: &[u8]) -> Option<SeqNo> {
        match key.cmp(&self.from) {
            Ordering::Less => return None,
            Ordering::Equal => {
                // `from_below` itself is the sound version.
                let below = SeqNo::new(self.from_below.get().checked_sub(1)?)?;
                return Some(below.min(self.through));
            }
            Ordering::Greater => {}
        }
        match key.cmp(&self.to) {
            Ordering::Less => Some(self.through),
            Ordering::Equal if self.to_included => Some(self.through),
            _ => None,
        }
    }

    /// The effect on a read of `key` at `seq`, by what it found: an entry with the sequence
    /// `found`, or none.
    pub fn judge(&self, key: &[u8], seq: SeqNo, found: Option<SeqNo>) -> InGap {
        let Some(newest) = self.newest_lost(key) else { return InGap::Sound };
        // A lost entry newer than `seq` would not be seen anyway, so it needs no newer answer.
        if found.is_some_and(|found| found >= newest.min(seq)) {
            return InGap::Sound;
        }
        // By the reader's number: a snapshot from before the acceptance keeps being refused, as
        // before it.
        if self.is_open_at(seq) { InGap::Unknown } else { InGap::Hidden }
    }

    /// Returns `true` if a read at `seq` is refused in it.
    pub fn is_open_at(&self, seq: SeqNo) -> bool {
        self.closed_at.is_none_or(|closed| seq < closed)
    }

    /// Returns `true` if a walk at `seq` over the keys between `lower` and `upper` passes keys that
    /// may be lost.
    pub(super) fn is_passed(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, seq: SeqNo) -> bool {
        // A reader that sees the sound version of `from` sees no lost version of it.
        let has_from = seq < self.from_below;
        let starts_behind = match upper {
            Bound::Unbounded => false,
            Bound::Included(upper) => *upper < *self.from || (upper == &*self.from && !has_from),
            Bound::Excluded(upper) => *upper <= *self.from,
        };
        let ends_before = match lower {
            Bound::Unbounded => false,
            Bound::Included(lower) => {
                *lower > *self.to || (lower == &*self.to && !self.to_included)
            }
            Bound::Excluded(lower) => *lower >= *self.to,
        };
        // The gap may lie between two versions of one key, both of which are sound.
        let is_empty = self.from == self.to && !has_from && !self.to_included;
        !starts_behind && !ends_before && !is_empty
    }

    /// The part of it within `bounds`, as a gap of its own, and what is left on either side.
    pub fn split(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Option<(Gap, Vec<Gap>)> {
        if !self.is_passed(bounds.0, bounds.1, SeqNo::ZERO) {
            return None;
        }
        let mut within = self.clone();
        let mut rest = Vec::new();
        let (start, is_start_within) = match bounds.0 {
            Bound::Unbounded => (None, false),
            Bound::Included(key) => (Some(key), true),
            Bound::Excluded(key) => (Some(key), false),
        };
        // The two parts meet at a bound without a hole and without an overlap: a key that belongs
        // to neither would read as if nothing had been lost.
        if let Some(start) = start.filter(|start| **start > *self.from) {
            rest.push(Gap { to: start.into(), to_included: !is_start_within, ..self.clone() });
            within.from = start.into();
            within.from_below = if is_start_within { SeqNo::MAX } else { SeqNo::ZERO };
        }
        let (end, is_end_within) = match bounds.1 {
            Bound::Unbounded => (None, false),
            Bound::Included(key) => (Some(key), true),
            Bound::Excluded(key) => (Some(key), false),
        };
        if let Some(end) = end.filter(|end| **end < *self.to) {
            let from_below = if is_end_within { SeqNo::ZERO } else { SeqNo::MAX };
            rest.push(Gap { from: end.into(), from_below, ..self.clone() });
            within.to = end.into();
            within.to_included = is_end_within;
        }
        // Bounds that cross have nothing between them.
        if within.from > within.to {
            return None;
        }
        Some((within, rest))
    }

    /// The reason why it is impossible, if it is.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if self.from > self.to { Some("it ends before it begins") } else { None }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.from.escape_ascii();
        let to = self.to.escape_ascii();
        write!(f, "keys from \"{from}\" to \"{to}\" through sequence {}", self.through)?;
        match self.closed_at {
            Some(seq) => write!(f, ", accepted as lost at sequence {seq}"),
            None => Ok(()),
        }
    }
}

/// As its text: for people, who decide what becomes of it.
#[cfg(feature = "serde")]
impl serde::Serialize for Gap {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(n: u64) -> SeqNo {
        SeqNo::new(n).unwrap()
    }

    fn gap(from: &str, below: u64, to: &str, to_included: bool, through: u64) -> Gap {
        Gap {
            from: from.as_bytes().into(),
            from_below: seq(below),
            to: to.as_bytes().into(),
            to_included,
            through: seq(through),
            closed_at: None,
        }
    }

    #[track_caller]
    fn check(gap: &Gap, key: &str, at: u64, found: Option<u64>, expected: InGap) {
        assert_eq!(gap.judge(key.as_bytes(), seq(at), found.map(seq)), expected, "{key} at {at}");
    }

    #[test]
    fn keys_between_are_answered_by_newer_entries_alone() {
        let gap = gap("b", 0, "d", false, 10);
        for key in ["a", "b", "d", "e"] {
            check(&gap, key, 20, None, InGap::Sound);
        }
        check(&gap, "c", 20, None, InGap::Unknown);
        check(&gap, "c", 20, Some(3), InGap::Unknown);
        check(&gap, "c", 20, Some(11), InGap::Sound);
        // The snapshot sees the sound one alone: a lost one that it would see is not newer.
        check(&gap, "c", 5, Some(5), InGap::Sound);
        check(&gap, "c", 5, Some(4), InGap::Unknown);
    }

    #[test]
    fn of_the_first_key_older_versions_may_be_lost_and_of_the_last_all() {
        let gap = gap("b", 8, "d", true, 10);
        check(&gap, "b", 20, Some(8), InGap::Sound);
        check(&gap, "b", 7, Some(3), InGap::Unknown);
        check(&gap, "d", 20, Some(7), InGap::Unknown);
        check(&gap, "d", 20, Some(10), InGap::Sound);
    }

    #[test]
    fn a_closed_gap_hides_what_is_older_and_stays_open_for_snapshots_before() {
        let gap = Gap { closed_at: Some(seq(15)), ..gap("b", 0, "d", false, 10) };
        check(&gap, "c", 20, Some(3), InGap::Hidden);
        check(&gap, "c", 15, None, InGap::Hidden);
        check(&gap, "c", 14, None, InGap::Unknown);
        check(&gap, "c", 20, Some(12), InGap::Sound);
    }

    #[test]
    fn a_part_that_is_taken_out_leaves_both_sides() {
        let gap = gap("b", 4, "f", true, 10);
        let bounds = (Bound::Included(&b"c"[..]), Bound::Excluded(&b"e"[..]));
        let (within, rest) = gap.split(bounds).unwrap();
        let all = [&rest[0], &within, &rest[1]];
        for key in ["a", "b", "c", "d", "e", "f", "g"] {
            for at in [3, 20] {
                let judge = |gap: &Gap| gap.judge(key.as_bytes(), seq(at), None);
                let parts = all.iter().filter(|part| judge(part) == InGap::Unknown).count();
                assert_eq!(parts, usize::from(judge(&gap) == InGap::Unknown), "{key} at {at}");
            }
        }
        assert_eq!(within.judge(b"c", seq(20), None), InGap::Unknown);
        assert_eq!(within.judge(b"e", seq(20), None), InGap::Sound);
        assert!(gap.split((Bound::Excluded(b"f"), Bound::Unbounded)).is_none());
    }

    #[test]
    fn walks_are_refused_where_they_pass_a_gap() {
        fn bound(text: &str) -> Bound<&[u8]> {
            match text.split_at(1) {
                ("[", key) => Bound::Included(key.as_bytes()),
                ("(", key) => Bound::Excluded(key.as_bytes()),
                _ => Bound::Unbounded,
            }
        }
        let check = |gap: &Gap, lower, upper, at, expected| {
            let passed = gap.is_passed(bound(lower), bound(upper), seq(at));
            assert_eq!(passed, expected, "{lower} {upper} at {at}");
        };
        let it = gap("b", 0, "d", false, 10);
        check(&it, "-", "-", 20, true);
        check(&it, "[a", "[b", 20, false);
        check(&it, "[a", "[bb", 20, true);
        check(&it, "[d", "-", 20, false);
        check(&it, "(c", "(d", 20, true);
        let it = gap("b", 8, "d", true, 10);
        check(&it, "[a", "[b", 8, false);
        check(&it, "[a", "[b", 7, true);
        check(&it, "[a", "(b", 7, false);
        check(&it, "[d", "-", 20, true);
        check(&it, "(d", "-", 20, false);
        assert!(!gap("b", 0, "b", false, 10).is_passed(Bound::Unbounded, Bound::Unbounded, seq(9)));
        // Nothing but older versions of one key, which a reader may see or not.
        let it = gap("b", 5, "b", false, 10);
        check(&it, "-", "-", 4, true);
        check(&it, "-", "-", 5, false);
    }
}
