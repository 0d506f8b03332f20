//! [`ExportRange`]: the entries that an export reads: the keys of a range, in their versions up to one
//! sequence number, and the hidden entries of these.
//!
//! The loop of `survivors.rs` asks it for each entry. A pure rule.
//!
//! Invariant: a hidden entry is inside if and only if its owner is. Its own key may lie after the
//! end of the range: it sorts after its owner, and after keys that continue the owner's key with
//! a zero byte.

use std::ops::{Bound, RangeBounds};

use crate::types::{KeyRef, SeqNo};
use crate::version::UserRange;

/// The side of a range on which an entry lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeSide {
    /// The export reads it.
    Inside,
    /// The export passes over it.
    Outside,
    /// Neither it nor anything after it is read.
    After,
}

/// The range of keys that a job or an export lets through, with the hidden entries of these keys.
#[derive(Clone, Debug)]
pub struct ExportRange {
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    seq: SeqNo,
    suffix: Vec<u8>,
    /// The last key that may be inside, or belong to one that is; `None` without an end.
    last: Option<Vec<u8>>,
}

impl ExportRange {
    /// Stored keys within `bounds`, in the versions up to `seq`. Keys of hidden entries have
    /// `suffix` beyond those of their owners.
    pub fn new(bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>), seq: SeqNo, suffix: &[u8]) -> ExportRange {
        let last = match &bounds.1 {
            Bound::Unbounded => None,
            // The end is an owner itself here, so its own hidden entry counts too.
            Bound::Included(end) => Some(last_of(end, suffix).max([end, suffix].concat())),
            Bound::Excluded(end) => Some(last_of(end, suffix)),
        };
        ExportRange { bounds, seq, suffix: suffix.to_vec(), last }
    }

    /// A range that holds all keys inside.
    pub(crate) fn range(&self) -> UserRange<'_> {
        fn end(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
            match bound {
                Bound::Included(key) | Bound::Excluded(key) => Some(key),
                Bound::Unbounded => None,
            }
        }
        UserRange { start: end(&self.bounds.0), end: end(&self.bounds.1) }
    }

    /// The side of the range on which an entry lies. Entries are asked for in ascending order, from
    /// the start of [`ExportRange::range`].
    pub(super) fn place(&self, key: KeyRef<'_>, is_hidden: bool) -> RangeSide {
        // `last` and not the end: after the end there may be hidden entries of owners before it.
        if self.last.as_ref().is_some_and(|last| key.user > &last[..]) {
            return RangeSide::After;
        }
        // A damaged hidden key may lack the suffix; then its own key decides.
        let owner = if is_hidden { key.user.strip_suffix(&self.suffix[..]) } else { None };
        let start = self.bounds.0.as_ref();
        let end = self.bounds.1.as_ref();
        let bounds = (start.map(Vec::as_slice), end.map(Vec::as_slice));
        let is_inside = RangeBounds::<[u8]>::contains(&bounds, owner.unwrap_or(key.user));
        // Versions from after the export's snapshot are `Outside`: an older one of the key may
        // follow.
        if is_inside && key.trailer.seq() <= self.seq {
            RangeSide::Inside
        } else {
            RangeSide::Outside
        }
    }
}

/// The last hidden key of an owner before `end`, or `end` if none lies after that: its owner is a
/// prefix of `end`, and the shortest such one has the last.
fn last_of(end: &[u8], suffix: &[u8]) -> Vec<u8> {
    let owner = (0..end.len()).find(|len| end[*len..] <= *suffix);
    owner.map_or_else(|| end.to_vec(), |len| [&end[..len], suffix].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{EntryKind, Trailer};
    use proptest::prelude::*;

    const SUFFIX: &[u8] = &[1];

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2)], 0..5)
    }

    proptest! {
        #[test]
        fn a_hidden_entry_goes_where_its_owner_goes(
            owners in prop::collection::btree_set(key(), 1..40),
            start in key(),
            end in key(),
            kinds in (0u8..3, 0u8..3),
        ) {
            let bound = |kind, key: &Vec<u8>| match kind {
                0 => Bound::Unbounded,
                1 => Bound::Included(key.clone()),
                _ => Bound::Excluded(key.clone()),
            };
            let bounds = (bound(kinds.0, &start), bound(kinds.1, &end));
            let seq = SeqNo::new(9).unwrap();
            let range = ExportRange::new(bounds.clone(), seq, SUFFIX);
            // The suffix is reserved.
            let owners: Vec<_> = owners.into_iter().filter(|key| !key.ends_with(SUFFIX)).collect();
            let mut entries = Vec::new();
            for owner in &owners {
                entries.push((owner.clone(), false, owner));
                entries.push(([&owner[..], SUFFIX].concat(), true, owner));
            }
            entries.sort();
            let from = range.range().start.unwrap_or_default().to_vec();
            let mut found = Vec::new();
            for (key, is_hidden, _) in entries.iter().filter(|(key, ..)| *key >= from) {
                let key = KeyRef::new(key, Trailer::new(seq, EntryKind::Value));
                match range.place(key, *is_hidden) {
                    RangeSide::Inside => found.push((key.user.to_vec(), *is_hidden)),
                    RangeSide::Outside => {}
                    RangeSide::After => break,
                }
            }
            let expected: Vec<_> = entries
                .iter()
                .filter(|(_, _, owner)| RangeBounds::<Vec<u8>>::contains(&bounds, *owner))
                .map(|(key, is_hidden, _)| (key.clone(), *is_hidden))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn newer_versions_are_passed_over() {
        let at = |seq| Trailer::new(SeqNo::new(seq).unwrap(), EntryKind::Value);
        let range =
            ExportRange::new((Bound::Unbounded, Bound::Unbounded), SeqNo::new(5).unwrap(), SUFFIX);
        assert_eq!(range.place(KeyRef::new(b"k", at(5)), false), RangeSide::Inside);
        assert_eq!(range.place(KeyRef::new(b"k", at(6)), false), RangeSide::Outside);
        assert_eq!(range.place(KeyRef::new(b"k\x01", at(6)), true), RangeSide::Outside);
    }
}
