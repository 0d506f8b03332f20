//! [`Gap`]: a range of a partition in which entries are lost, because they are damaged beyond
//! repair. All gaps of a partition are its [`Gaps`](super::Gaps).
//!
//! A compaction may not know which key a damaged entry had. It may not write anything under a guessed key,
//! and it may not leave the entry out: then a read would return an older version from a deeper level. So it
//! writes the intact entries, and the manifest stores the range of the lost ones. Gets and cursors compare
//! what they find with the gaps.
//!
//! A gap is a range of internal keys, from the last intact entry before the damage to the first one
//! after it, and a sequence number: no lost entry is newer than that. Inside the range, a read is
//! answered only by an entry for which no lost one can be newer.
//!
//! An earlier form poisoned the damaged entry under the key that it had. If the damage is in the key, the
//! poison hides a key that was never written, and the true key reads as an older version.
//!
//! Invariants:
//! 1. Inside an open gap, no read is answered by an older entry, wherever compactions have moved
//!    that entry.
//! 2. A closed gap hides the entries that an open gap refuses, for reads at or after the sequence
//!    at which it was closed. For snapshots before that sequence it is open.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Bound, RangeBounds};

use super::SeqNo;

/// A range in which entries are lost. Its keys are stored keys. Gaps sort by their first keys. For
/// a gap within one key, `from_below` alone says which versions may be lost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gap {
    /// The key of the intact entry before the gap.
    pub from: Box<[u8]>,
    /// Versions of `from` older than this may be lost too; zero if none can be.
    pub from_below: SeqNo,
    /// The key of the intact entry after the gap.
    pub to: Box<[u8]>,
    /// `true` if versions of `to` may be lost.
    pub to_included: bool,
    /// No lost entry is newer than this.
    pub through: SeqNo,
    /// The sequence number from which on the loss is accepted; `None` while it is not.
    pub closed_at: Option<SeqNo>,
}

/// The effect of a gap on an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InGap {
    /// The gap does not change the answer.
    Unaffected,
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
                // `from_below` itself is the intact version.
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
    pub fn effect_on(&self, key: &[u8], seq: SeqNo, found: Option<SeqNo>) -> InGap {
        let Some(newest) = self.newest_lost(key) else { return InGap::Unaffected };
        // A lost entry newer than `seq` would not be seen anyway, so it needs no newer answer.
        if found.is_some_and(|found| found >= newest.min(seq)) {
            return InGap::Unaffected;
        }
        // By the reader's number: a snapshot from before the acceptance is refused as before.
        if self.is_open_at(seq) { InGap::Unknown } else { InGap::Hidden }
    }

    /// Returns `true` if a read at `seq` is refused in it.
    pub fn is_open_at(&self, seq: SeqNo) -> bool {
        self.closed_at.is_none_or(|closed| seq < closed)
    }

    /// Returns `true` if a walk at `seq` over the keys between `lower` and `upper` passes keys that
    /// may be lost.
    pub(super) fn is_passed(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, seq: SeqNo) -> bool {
        let bounds = (lower, upper);
        // A reader that sees the intact version of `from` sees no lost version of it. Where the gap lies
        // between two versions of one key, this alone counts.
        if seq < self.from_below && RangeBounds::<[u8]>::contains(&bounds, &*self.from) {
            return true;
        }
        if self.from == self.to || is_empty(lower, upper) {
            return false;
        }
        let starts_after = match upper {
            Bound::Unbounded => false,
            Bound::Included(upper) | Bound::Excluded(upper) => *upper <= *self.from,
        };
        let ends_before = match lower {
            Bound::Unbounded => false,
            Bound::Included(lower) if self.to_included => *lower > *self.to,
            Bound::Included(lower) | Bound::Excluded(lower) => *lower >= *self.to,
        };
        !starts_after && !ends_before
    }

    /// The part of it within `bounds`, as a gap of its own, and what is left on either side.
    pub fn split(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Option<(Gap, Vec<Gap>)> {
        if !self.is_passed(bounds.0, bounds.1, SeqNo::ZERO) {
            return None;
        }
        let mut within = self.clone();
        // The parts meet at a bound without a hole and without an overlap. A key that belonged to
        // none would read as if nothing had been lost. The loss of one that belonged to two would
        // be accepted although the caller did not ask for it.
        let before = within.cut_before(bounds.0);
        let after = within.cut_after(bounds.1);
        Some((within, before.into_iter().chain(after).collect()))
    }

    /// Cuts off what lies before `lower` and returns it; `None` if nothing does.
    fn cut_before(&mut self, lower: Bound<&[u8]>) -> Option<Gap> {
        let (key, is_kept) = match lower {
            Bound::Unbounded => return None,
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
        };
        // At `from` itself, older versions of it may have to go.
        let is_at_from = *key == *self.from && !is_kept && self.from_below > SeqNo::ZERO;
        if *key <= *self.from && !is_at_from {
            return None;
        }
        let before = Gap { to: key.into(), to_included: !is_kept, ..self.clone() };
        self.from = key.into();
        self.from_below = if is_kept { SeqNo::MAX } else { SeqNo::ZERO };
        Some(before)
    }

    /// As [`Gap::cut_before`], after `upper`.
    fn cut_after(&mut self, upper: Bound<&[u8]>) -> Option<Gap> {
        let (key, is_kept) = match upper {
            Bound::Unbounded => return None,
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
        };
        let is_at_to = *key == *self.to && !is_kept && self.to_included && self.from < self.to;
        if *key >= *self.to && !is_at_to {
            return None;
        }
        let from_below = if is_kept { SeqNo::ZERO } else { SeqNo::MAX };
        let after = Gap { from: key.into(), from_below, ..self.clone() };
        self.to = key.into();
        self.to_included = is_kept;
        Some(after)
    }

    /// The reason why it is impossible, if it is.
    pub fn fault(&self) -> Option<&'static str> {
        if self.from > self.to { Some("it ends before it begins") } else { None }
    }
}

/// Returns `true` if no key can lie between the bounds.
fn is_empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(first), Bound::Included(last)) => first > last,
        (Bound::Included(first) | Bound::Excluded(first), Bound::Excluded(end))
        | (Bound::Excluded(first), Bound::Included(end)) => first >= end,
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

/// Serialized as its text: people decide how to react to it.
#[cfg(feature = "serde")]
impl serde::Serialize for Gap {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
