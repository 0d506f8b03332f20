//! [`KeyForm`]: the form in which a partition stores the keys that users give it.
//!
//! Hooks choose it when a partition is made, so that no user key equals the key of a hidden entry.
//! Every way in and out of a partition uses it.
//!
//! Invariants:
//! 1. Stored keys sort as user keys do, and no two keys have the same stored form.
//! 2. The form of a partition never changes. The numbers are on disk.

use std::borrow::Cow;

/// Longest stored key that is built without an allocation, in bytes.
const ROOM_BYTES: usize = 256;

/// The form in which a partition stores user keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum KeyForm {
    /// As they are given; keys with the reserved suffix are refused.
    #[default]
    AsGiven = 0,
    /// Every key with a zero byte appended. Partitions of older versions that take any key.
    Terminated = 1,
    /// The empty key, and keys that end in `0x00` or `0x01`, with a zero byte appended, all others as they
    /// are given: then a stored key that ends in zero was one byte shorter, and none ends in `0x01`.
    Escaped = 2,
}

impl KeyForm {
    /// The form with this number, if there is one.
    pub fn from_u8(number: u8) -> Option<KeyForm> {
        [KeyForm::AsGiven, KeyForm::Terminated, KeyForm::Escaped].get(usize::from(number)).copied()
    }

    /// Returns `true` if every key is welcome.
    #[inline]
    pub fn takes_any_key(self) -> bool {
        self != KeyForm::AsGiven
    }

    #[inline]
    fn lengthens(self, key: &[u8]) -> bool {
        match self {
            KeyForm::AsGiven => false,
            KeyForm::Terminated => true,
            KeyForm::Escaped => matches!(key, [] | [.., 0 | 1]),
        }
    }

    /// Calls `look` with the stored form of `key`. Allocates only for keys of more than 255 bytes
    /// that are stored longer.
    #[inline]
    pub fn with_stored<T>(self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> T {
        if !self.lengthens(key) {
            return look(key);
        }
        let mut room = [0; ROOM_BYTES];
        // On the stack, because every get of such a key comes through here.
        match room.get_mut(..key.len()).filter(|_| key.len() < ROOM_BYTES) {
            Some(copy) => {
                copy.copy_from_slice(key);
                look(&room[..=key.len()])
            }
            None => look(&[key, &[0]].concat()),
        }
    }

    /// The stored form of `key`, which is borrowed if it is stored as it is.
    pub fn stored_of(self, key: &[u8]) -> Cow<'_, [u8]> {
        if self.lengthens(key) { Cow::Owned([key, &[0]].concat()) } else { Cow::Borrowed(key) }
    }

    /// The stored form of `key`.
    pub fn stored(self, mut key: Vec<u8>) -> Vec<u8> {
        if self.lengthens(&key) {
            key.push(0);
        }
        key
    }

    /// The user key of `stored`. A damaged stored key may lack its zero byte; it is returned
    /// unchanged.
    #[inline]
    pub fn user(self, stored: &[u8]) -> &[u8] {
        match (self, stored) {
            (KeyForm::Terminated | KeyForm::Escaped, [key @ .., 0]) => key,
            _ => stored,
        }
    }

    /// Returns `true` if some key is stored as `stored`.
    pub fn is_stored(self, stored: &[u8]) -> bool {
        match self {
            KeyForm::AsGiven => true,
            KeyForm::Terminated => stored.ends_with(&[0]),
            KeyForm::Escaped => match stored {
                [.., before, 0] => *before < 2,
                [last] => *last != 1,
                [.., last] => *last >= 2,
                [] => false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORMS: [KeyForm; 3] = [KeyForm::AsGiven, KeyForm::Terminated, KeyForm::Escaped];

    #[test]
    fn numbers_are_those_on_disk() {
        for form in FORMS {
            assert_eq!(KeyForm::from_u8(form as u8), Some(form));
        }
        assert_eq!(KeyForm::from_u8(3), None);
    }

    #[test]
    fn long_keys_are_stored_as_short_ones() {
        for len in [1, ROOM_BYTES - 2, ROOM_BYTES - 1, ROOM_BYTES, ROOM_BYTES + 1] {
            let key = vec![1; len];
            let stored = [&key[..], &[0]].concat();
            KeyForm::Escaped.with_stored(&key, |found| assert_eq!(found, stored));
        }
    }

    proptest! {
        #[test]
        fn stored_keys_sort_as_keys_and_come_back(
            a in prop::collection::vec(0u8..4, 0..6),
            b in prop::collection::vec(0u8..4, 0..6),
        ) {
            for form in FORMS {
                let stored = form.stored(a.clone());
                let other = form.stored(b.clone());
                prop_assert_eq!(stored.cmp(&other), a.cmp(&b));
                prop_assert_eq!(form.user(&stored), &a[..]);
                form.with_stored(&a, |found| assert_eq!(found, stored));
                prop_assert!(form.is_stored(&stored));
                prop_assert!(form == KeyForm::AsGiven || !stored.ends_with(&[1]));
                // Bytes that are no stored form come from no key.
                prop_assert_eq!(form.is_stored(&a), form.stored(form.user(&a).to_vec()) == a);
            }
        }
    }
}
