//! [`SharedPrefix`]: the bytes with which all keys of a memtable begin, and the word after them
//! that decides between two keys.
//!
//! A search compares words, which are stored next to the pointers that it follows, and reads a key
//! only if two words are equal. The first eight bytes of a key rarely decide, because keys of one
//! partition often begin alike. So the word is made of the bytes after the shared ones.
//!
//! Invariant: words never contradict the order of their keys; equal words decide nothing. This
//! holds for every key, also for a key that does not begin with the shared bytes.

use crate::types::prefix8;

/// Bytes of a key that a word holds.
const WORD_BYTES: usize = 8;

/// The bytes with which all keys of a memtable begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedPrefix(Box<[u8]>);

impl SharedPrefix {
    /// The prefix that keys between `first` and `last` share, only as long as it improves the words
    /// of `first`: later keys may share less.
    pub(super) fn between(first: &[u8], last: &[u8]) -> SharedPrefix {
        // Keys are sorted, so all keys between the first and the last share their common prefix.
        let shared = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        SharedPrefix(first[..shared.min(first.len().saturating_sub(WORD_BYTES))].into())
    }

    /// Returns `true` if all keys between `first` and `last` have it.
    pub(super) fn fits(&self, first: &[u8], last: &[u8]) -> bool {
        first.starts_with(&self.0) && last.starts_with(&self.0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The word of `key`.
    #[inline]
    pub(super) fn word(&self, key: &[u8]) -> u64 {
        match key.strip_prefix(&*self.0) {
            Some(rest) => prefix8(rest),
            // A key without the prefix sorts before or after all keys that have it, so the least
            // and the greatest word are correct for it.
            None if *key < *self.0 => 0,
            None => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_word_holds_what_differs_and_leaves_room_for_keys_to_come() {
        let shared = SharedPrefix::between(b"user0000000001", b"user0000000512");
        assert_eq!(shared, SharedPrefix(b"user00".as_slice().into()));
        assert_eq!(shared.word(b"user0012345678"), u64::from_be_bytes(*b"12345678"));
        assert_eq!((shared.word(b"useq"), shared.word(b"user01")), (0, u64::MAX));
        assert!(SharedPrefix::between(b"short", b"short2").is_empty());
    }

    proptest! {
        #[test]
        fn words_never_contradict_the_byte_order(
            base in prop::collection::vec(0u8..3, 0..5),
            a in prop::collection::vec(0u8..3, 0..16),
            b in prop::collection::vec(0u8..3, 0..16),
        ) {
            let shared = SharedPrefix(base.into());
            let (low, high) = if a <= b { (a, b) } else { (b, a) };
            prop_assert!(shared.word(&low) <= shared.word(&high));
        }
    }
}
