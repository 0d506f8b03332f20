//! The order of encoded keys, and their bytes.

use std::fmt::Debug;

use proptest::prelude::*;

use crate::key::{Key, KeyPrefix, bounds, decode, encode};

/// Checks the invariants of encodings for two keys.
fn check<K: Key + Ord + Debug>(a: &K, b: &K) -> Result<(), TestCaseError> {
    let encoded = encode::<K>(a.view());
    let other = encode::<K>(b.view());
    prop_assert_eq!(encoded.cmp(&other), a.cmp(b));
    prop_assert!(decode::<K>(&encoded).as_ref() == Some(a));
    prop_assert!(!encoded.is_empty());
    prop_assert!(encoded == other || !other.starts_with(&encoded), "a prefix of the other");
    // Followed by anything it still ends where it ends.
    let followed = [&encoded[..], &other[..]].concat();
    let mut rest = &followed[..];
    prop_assert!(K::read(&mut rest).as_ref() == Some(a));
    prop_assert_eq!(rest, &other[..]);
    for len in 0..encoded.len() {
        prop_assert_eq!(decode::<K>(&encoded[..len]), None);
    }
    Ok(())
}

/// Bytes near the ones that are escaped, and all others.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![prop::collection::vec(0..4_u8, 0..6), prop::collection::vec(any::<u8>(), 0..6)]
}

fn string() -> impl Strategy<Value = String> {
    prop_oneof!["[\u{0}-\u{3}a]{0,4}", ".{0,5}"]
}

macro_rules! ordered {
    ($($name:ident: $type:ty = $strategy:expr;)*) => {
        proptest! {$(
            #[test]
            fn $name(a in $strategy, b in $strategy) {
                check::<$type>(&a, &b)?;
                check::<$type>(&a, &a)?;
            }
        )*}
    };
}

ordered! {
    small_integers_are_ordered: (u8, i8) = any::<(u8, i8)>();
    integers_of_two_bytes_are_ordered: (u16, i16) = any::<(u16, i16)>();
    integers_of_four_bytes_are_ordered: (u32, i32) = any::<(u32, i32)>();
    integers_of_eight_bytes_are_ordered: (i64, u64) = (-3..3_i64, any::<u64>());
    long_integers_are_ordered: (i64, u128, i128) = any::<(i64, u128, i128)>();
    bool_and_char_are_ordered: (bool, char) = any::<(bool, char)>();
    strings_are_ordered: String = string();
    byte_strings_are_ordered: Vec<u8> = bytes();
    arrays_are_ordered: [i8; 3] = any::<[i8; 3]>();
    arrays_of_strings_are_ordered: [String; 2] = [string(), string()];
    options_are_ordered: Option<i16> = any::<Option<i16>>();
    nested_tuples_are_ordered: (Option<String>, (bool, Vec<u8>), [u8; 2], i8) =
        (prop::option::of(string()), (any::<bool>(), bytes()), any::<[u8; 2]>(), any::<i8>());
}

proptest! {
    #[test]
    fn tuples_are_ordered(
        a in (string(), bytes(), any::<u8>()),
        b in (string(), bytes(), any::<u8>()),
    ) {
        check::<(String, Vec<u8>, u8)>(&a, &b)?;
    }

    #[test]
    fn any_bytes_decode_to_a_key_of_these_bytes_or_to_none(bytes in bytes()) {
        type Long = (Vec<u8>, Option<u8>);
        if let Some(key) = decode::<Long>(&bytes) {
            prop_assert_eq!(encode::<Long>(key.view()), bytes.clone());
        }
        if let Some(key) = decode::<(String, bool)>(&bytes) {
            prop_assert_eq!(encode::<(String, bool)>(key.view()), bytes.clone());
        }
        if let Some(key) = decode::<char>(&bytes) {
            prop_assert_eq!(encode::<char>(key), bytes);
        }
    }
}

#[track_caller]
fn golden<K: Key>(key: K::View<'_>, name: &str, bytes: &[u8]) {
    assert_eq!((K::name().as_str(), &encode::<K>(key)[..]), (name, bytes));
}

#[test]
fn keys_have_the_bytes_of_the_table() {
    golden::<u16>(258, "u16", &[1, 2]);
    golden::<i16>(-2, "i16", &[0x7f, 0xfe]);
    golden::<i8>(1, "i8", &[0x81]);
    golden::<bool>(true, "bool", &[1]);
    golden::<char>('a', "char", &[0, 0, 0, 97]);
    golden::<String>("a\0", "string", &[97, 1, 1, 0]);
    golden::<Vec<u8>>(&[0, 1, 2], "bytes", &[1, 1, 1, 2, 2, 0]);
    golden::<[u8; 2]>([7, 0], "[u8; 2]", &[7, 0]);
    golden::<Option<u8>>(None, "option<u8>", &[0]);
    golden::<Option<u8>>(Some(0), "option<u8>", &[1, 0]);
    golden::<(String, u8)>(("", 9), "(string, u8)", &[0, 9]);
}

#[test]
fn the_first_parts_of_a_tuple_are_a_prefix_of_its_encoding() {
    fn check<K: Key>(parts: impl KeyPrefix<K>, key: K::View<'_>) {
        let mut prefix = Vec::new();
        parts.write(&mut prefix);
        let key = encode::<K>(key);
        assert!(key.starts_with(&prefix) && key != prefix);
    }
    check::<(String, u32)>(("a",), ("a", 7));
    check::<(i8, String, bool)>((-1, "b"), (-1, "b", true));
    check::<(u8, u8, u8, u8, u8, u8)>((1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6));
}

#[test]
fn a_range_of_first_parts_has_all_that_follows_them() {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    assert_eq!(bounds::<u8>(&(1..=7), true), (Included(vec![1]), Excluded(vec![8])));
    assert_eq!(bounds::<u8>(&(Excluded(7), Included(255)), true), (Included(vec![8]), Unbounded));
    assert_eq!(bounds::<u16>(&(..=255), true), (Unbounded, Excluded(vec![1])));
    assert!(matches!(bounds::<u8>(&(Excluded(255), Unbounded), true), (Excluded(_), Unbounded)));
}
