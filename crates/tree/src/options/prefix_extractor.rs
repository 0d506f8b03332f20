//! [`PrefixExtractor`]: the part of a key that the blooms of tables have in addition to the whole key.
//!
//! Invariants:
//! 1. The keys with one prefix are all keys that begin with its bytes. So they are neighbours, and a key between two of
//!    them has the same prefix.
//! 2. The numbers are on disk: in the options of a partition, and in each bloom with prefixes.

use std::fmt;
use std::ops::Bound;

/// The prefix of a key, by which scans pass over tables: `prefix_extractor` in RocksDB. See
/// [`PartitionOptions::prefix_extractor`](super::PartitionOptions::prefix_extractor).
///
/// # Examples
/// ```
/// use tree::options::PrefixExtractor;
///
/// assert_eq!(PrefixExtractor::Fixed(4).of(b"user17"), Some(&b"user"[..]));
/// assert_eq!(PrefixExtractor::Fixed(4).of(b"usr"), None);
/// assert_eq!(PrefixExtractor::Through(b'/').of(b"bin/ls"), Some(&b"bin/"[..]));
/// assert_eq!(PrefixExtractor::Through(b'/').to_string(), "through:0x2f");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PrefixExtractor {
    /// So many bytes from the first on, at least 1. A shorter key has no prefix.
    Fixed(u16),
    /// The bytes up to the first one of this value, with it. A key without that byte has no prefix.
    Through(u8),
}

impl PrefixExtractor {
    /// Returns the prefix of `key`, if it has one.
    #[inline]
    pub fn of(self, key: &[u8]) -> Option<&[u8]> {
        match self {
            PrefixExtractor::Fixed(len) => key.get(..usize::from(len)),
            PrefixExtractor::Through(byte) => {
                let at = key.iter().position(|it| *it == byte)?;
                Some(&key[..=at])
            }
        }
    }

    /// Returns the prefix that every key from `lower` to `upper` has, if there is one.
    pub(crate) fn of_range<'a>(
        self,
        lower: Bound<&'a [u8]>,
        upper: Bound<&[u8]>,
    ) -> Option<&'a [u8]> {
        let (Bound::Included(first) | Bound::Excluded(first)) = lower else { return None };
        let prefix = self.of(first)?;
        let ends_inside = match upper {
            Bound::Included(last) => last.starts_with(prefix),
            Bound::Excluded(end) => end.starts_with(prefix) || is_successor(end, prefix),
            // No key follows those that begin with bytes of the largest value alone.
            Bound::Unbounded => prefix.iter().all(|byte| *byte == 0xff),
        };
        ends_inside.then_some(prefix)
    }

    /// The number on disk.
    pub(crate) fn number(self) -> u32 {
        match self {
            PrefixExtractor::Fixed(len) => 1 | u32::from(len) << 8,
            PrefixExtractor::Through(byte) => 2 | u32::from(byte) << 8,
        }
    }

    /// The extractor with this number; `None` for a number that no extractor of this version has.
    pub(crate) fn from_number(number: u32) -> Option<PrefixExtractor> {
        let rest = number >> 8;
        match number & 0xff {
            1 if rest > 0 => u16::try_from(rest).ok().map(PrefixExtractor::Fixed),
            2 => u8::try_from(rest).ok().map(PrefixExtractor::Through),
            _ => None,
        }
    }
}

impl fmt::Display for PrefixExtractor {
    /// As the command takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrefixExtractor::Fixed(len) => write!(f, "fixed:{len}"),
            PrefixExtractor::Through(byte) => write!(f, "through:{byte:#04x}"),
        }
    }
}

/// Returns `true` if `end` is the first key after all keys that begin with `prefix`.
fn is_successor(end: &[u8], prefix: &[u8]) -> bool {
    // Bytes of the largest value cannot be increased.
    let Some(at) = prefix.iter().rposition(|byte| *byte != 0xff) else { return false };
    end.len() == at + 1 && end[..at] == prefix[..at] && end[at] == prefix[at] + 1
}

#[cfg(test)]
mod tests {
    use std::ops::RangeBounds;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const EXTRACTORS: [PrefixExtractor; 5] = [
        PrefixExtractor::Fixed(1),
        PrefixExtractor::Fixed(2),
        PrefixExtractor::Through(0),
        PrefixExtractor::Through(1),
        PrefixExtractor::Through(0xff),
    ];

    #[test]
    fn numbers_read_back_and_others_are_no_extractor() {
        let most = [PrefixExtractor::Fixed(u16::MAX), PrefixExtractor::Through(b'/')];
        for extractor in EXTRACTORS.into_iter().chain(most) {
            assert_eq!(PrefixExtractor::from_number(extractor.number()), Some(extractor));
        }
        assert_eq!(PrefixExtractor::Fixed(4).number(), 0x401);
        assert_eq!(PrefixExtractor::Through(b'/').number(), 0x2f02);
        for number in [0, 1, 3, 0x103, 0x1_0002, 0x100_0001, u32::MAX] {
            assert_eq!(PrefixExtractor::from_number(number), None, "{number:#x}");
        }
    }

    fn at(key: &str) -> Bound<&[u8]> {
        Bound::Included(key.as_bytes())
    }

    fn before(key: &str) -> Bound<&[u8]> {
        Bound::Excluded(key.as_bytes())
    }

    #[test]
    fn a_range_has_a_prefix_only_if_it_lies_inside() {
        let four = PrefixExtractor::Fixed(4);
        for (lower, upper, inside) in [
            (at("user"), before("uses"), true),
            (at("user17"), before("uses"), true),
            (before("user17"), at("user18"), true),
            // One key further.
            (at("user"), at("uses"), false),
            (at("user"), before("uses\0"), false),
            (at("user"), Bound::Unbounded, false),
            // Shorter keys lie in it.
            (at("use"), before("usf"), false),
            (Bound::Unbounded, before("user"), false),
        ] {
            let found = four.of_range(lower, upper);
            assert_eq!(found, inside.then_some(&b"user"[..]), "{lower:?} {upper:?}");
        }
        let last = PrefixExtractor::Fixed(2);
        let all = Bound::Included(&b"\xff\xff\x01"[..]);
        assert_eq!(last.of_range(all, Bound::Unbounded), Some(&b"\xff\xff"[..]));
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        vec(prop_oneof![Just(0), Just(1), Just(2), Just(0xfe), Just(0xff)], 0..4)
    }

    fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
        prop_oneof![
            1 => Just(Bound::Unbounded),
            3 => key().prop_map(Bound::Included),
            3 => key().prop_map(Bound::Excluded),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn every_key_of_a_range_has_its_prefix(lower in bound(), upper in bound(), key in key()) {
            let lower = lower.as_ref().map(Vec::as_slice);
            let upper = upper.as_ref().map(Vec::as_slice);
            let range = (lower, upper);
            let is_within = RangeBounds::<[u8]>::contains(&range, &key[..]);
            for extractor in EXTRACTORS {
                if let Some(prefix) = extractor.of_range(lower, upper)
                    && is_within
                {
                    prop_assert_eq!(extractor.of(&key), Some(prefix), "{} {:?}", extractor, range);
                }
            }
        }
    }
}
