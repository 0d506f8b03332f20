//! [`Key`]: types whose encodings are ordered as their values are.
//!
//! Called for each key of a table and of an index. The encoding is part of the stored data: it is never changed, a new
//! one gets another name ([`Key::name`]).
//!
//! ```text
//! type                     bytes                                                              name
//! u8 .. u128               big-endian                                                         u8
//! i8 .. i128               big-endian, with the sign bit inverted                             i8
//! bool, char               one byte, 0 or 1; as u32                                           bool, char
//! String, Vec<u8>          its bytes, with 00 as 01 01 and 01 as 01 02; then 00               string, bytes
//! [T; N], tuples           the parts, one after another                                       [u8; 4], (u8, string)
//! Option<T>                00 for `None`; 01, then the value                                  option<u8>
//! ```
//!
//! Invariants:
//! 1. `encode(a) < encode(b)` if and only if `a < b`.
//! 2. No encoding is a proper prefix of another one of its type, so that parts may follow each other.
//! 3. No encoding is empty.

use std::ops::{Bound, RangeBounds};

/// A type of keys. Its encoding has the order of its values: that of [`Ord`], and for strings and byte strings that of
/// their bytes.
///
/// Implemented for the integers with a fixed size, `bool`, `char`, `String`, `Vec<u8>`, arrays, tuples of 2 to 6 parts
/// and `Option`. An application has no reason to implement it: a type of its own is converted to one of these.
pub trait Key: Sized + 'static {
    /// The form that calls take: `&str` for `String`, `&[u8]` for `Vec<u8>`, `(&str, u32)` for `(String, u32)`, and the
    /// type itself for integers.
    type View<'a>: Copy;

    /// Returns the form that calls take.
    fn view(&self) -> Self::View<'_>;

    /// Appends the encoding of `key` to `out`.
    fn write(key: Self::View<'_>, out: &mut Vec<u8>);

    /// Takes a key from the start of `bytes`; `None` if no key is encoded there.
    fn read(bytes: &mut &[u8]) -> Option<Self>;

    /// Returns the name of type and encoding, which is stored with a table.
    fn name() -> String;
}

/// The first parts of a tuple key, for [`TableRows::prefix`](crate::TableRows::prefix): `(a,)` or `(a, b)` for a key
/// `(a, b, c)`.
pub trait KeyPrefix<K> {
    /// Appends the encoding of the parts to `out`.
    fn write(self, out: &mut Vec<u8>);
}

/// Returns the encoding of `key`.
pub(crate) fn encode<K: Key>(key: K::View<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(size_of::<K>().max(16));
    K::write(key, &mut out);
    out
}

/// Returns the key whose encoding is exactly `bytes`.
pub(crate) fn decode<K: Key>(mut bytes: &[u8]) -> Option<K> {
    let key = K::read(&mut bytes)?;
    bytes.is_empty().then_some(key)
}

/// Returns the range of encodings. With `are_parts`, keys may have more parts after these, as those of an index do.
pub(crate) fn bounds<'a, K: Key>(
    range: &impl RangeBounds<K::View<'a>>,
    are_parts: bool,
) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let start = match range.start_bound() {
        Bound::Excluded(key) if are_parts => {
            after(encode::<K>(*key)).map_or_else(nothing, Bound::Included)
        }
        bound => bound.map(|key| encode::<K>(*key)),
    };
    let end = match range.end_bound() {
        Bound::Included(key) if are_parts => {
            after(encode::<K>(*key)).map_or(Bound::Unbounded, Bound::Excluded)
        }
        bound => bound.map(|key| encode::<K>(*key)),
    };
    (start, end)
}

/// A start after every key: the longest keys end long before 64 KiB.
fn nothing() -> Bound<Vec<u8>> {
    Bound::Excluded(vec![0xff; siltstone::limits::USER_KEY_BYTES_MAX])
}

/// The first key after all that begin with `prefix`; `None` if there is none.
fn after(mut prefix: Vec<u8>) -> Option<Vec<u8>> {
    while prefix.last() == Some(&0xff) {
        prefix.pop();
    }
    *prefix.last_mut()? += 1;
    Some(prefix)
}

macro_rules! integers {
    ($($type:ident)*) => {$(
        impl Key for $type {
            type View<'a> = $type;

            fn view(&self) -> $type {
                *self
            }

            fn write(key: $type, out: &mut Vec<u8>) {
                // The minimum is the sign bit, or 0 of an unsigned type.
                out.extend_from_slice(&(key ^ <$type>::MIN).to_be_bytes());
            }

            fn read(bytes: &mut &[u8]) -> Option<$type> {
                let (number, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(<$type>::from_be_bytes(*number) ^ <$type>::MIN)
            }

            fn name() -> String {
                stringify!($type).to_owned()
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);

impl Key for bool {
    type View<'a> = bool;

    fn view(&self) -> bool {
        *self
    }

    fn write(key: bool, out: &mut Vec<u8>) {
        out.push(key.into());
    }

    fn read(bytes: &mut &[u8]) -> Option<bool> {
        match u8::read(bytes)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn name() -> String {
        "bool".to_owned()
    }
}

impl Key for char {
    type View<'a> = char;

    fn view(&self) -> char {
        *self
    }

    fn write(key: char, out: &mut Vec<u8>) {
        u32::write(key.into(), out);
    }

    fn read(bytes: &mut &[u8]) -> Option<char> {
        char::from_u32(u32::read(bytes)?)
    }

    fn name() -> String {
        "char".to_owned()
    }
}

impl Key for Vec<u8> {
    type View<'a> = &'a [u8];

    fn view(&self) -> &[u8] {
        self
    }

    fn write(key: &[u8], out: &mut Vec<u8>) {
        for byte in key {
            match byte {
                0 | 1 => out.extend_from_slice(&[1, byte + 1]),
                _ => out.push(*byte),
            }
        }
        out.push(0);
    }

    fn read(bytes: &mut &[u8]) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        loop {
            match u8::read(bytes)? {
                0 => return Some(key),
                1 => key.push(u8::read(bytes)?.checked_sub(1).filter(|byte| *byte < 2)?),
                byte => key.push(byte),
            }
        }
    }

    fn name() -> String {
        "bytes".to_owned()
    }
}

impl Key for String {
    type View<'a> = &'a str;

    fn view(&self) -> &str {
        self
    }

    fn write(key: &str, out: &mut Vec<u8>) {
        <Vec<u8>>::write(key.as_bytes(), out);
    }

    fn read(bytes: &mut &[u8]) -> Option<String> {
        String::from_utf8(<Vec<u8>>::read(bytes)?).ok()
    }

    fn name() -> String {
        "string".to_owned()
    }
}

impl<T: Key, const N: usize> Key for [T; N] {
    type View<'a> = [T::View<'a>; N];

    fn view(&self) -> [T::View<'_>; N] {
        self.each_ref().map(T::view)
    }

    fn write(key: [T::View<'_>; N], out: &mut Vec<u8>) {
        const { assert!(N > 0, "a key is not empty") };
        key.into_iter().for_each(|part| T::write(part, out));
    }

    fn read(bytes: &mut &[u8]) -> Option<[T; N]> {
        let parts: Option<Vec<T>> = (0..N).map(|_| T::read(bytes)).collect();
        parts?.try_into().ok()
    }

    fn name() -> String {
        format!("[{}; {N}]", T::name())
    }
}

impl<T: Key> Key for Option<T> {
    type View<'a> = Option<T::View<'a>>;

    fn view(&self) -> Option<T::View<'_>> {
        self.as_ref().map(T::view)
    }

    fn write(key: Option<T::View<'_>>, out: &mut Vec<u8>) {
        bool::write(key.is_some(), out);
        if let Some(key) = key {
            T::write(key, out);
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Option<T>> {
        Some(if bool::read(bytes)? { Some(T::read(bytes)?) } else { None })
    }

    fn name() -> String {
        format!("option<{}>", T::name())
    }
}

macro_rules! tuples {
    ($($($part:ident $at:tt)*;)*) => {$(
        impl<$($part: Key),*> Key for ($($part,)*) {
            type View<'a> = ($($part::View<'a>,)*);

            fn view(&self) -> Self::View<'_> {
                ($(self.$at.view(),)*)
            }

            fn write(key: Self::View<'_>, out: &mut Vec<u8>) {
                $($part::write(key.$at, out);)*
            }

            fn read(bytes: &mut &[u8]) -> Option<Self> {
                Some(($($part::read(bytes)?,)*))
            }

            fn name() -> String {
                format!("({})", [$($part::name()),*].join(", "))
            }
        }
    )*};
}

tuples! {
    A 0 B 1;
    A 0 B 1 C 2;
    A 0 B 1 C 2 D 3;
    A 0 B 1 C 2 D 3 E 4;
    A 0 B 1 C 2 D 3 E 4 F 5;
}

macro_rules! prefixes {
    ($($($part:ident $at:tt)* => $($rest:ident)*;)*) => {$(
        impl<'a, $($part: Key,)* $($rest: Key),*> KeyPrefix<($($part,)* $($rest,)*)> for ($($part::View<'a>,)*) {
            fn write(self, out: &mut Vec<u8>) {
                $($part::write(self.$at, out);)*
            }
        }
    )*};
}

prefixes! {
    A 0 => B;
    A 0 => B C;
    A 0 B 1 => C;
    A 0 => B C D;
    A 0 B 1 => C D;
    A 0 B 1 C 2 => D;
    A 0 => B C D E;
    A 0 B 1 => C D E;
    A 0 B 1 C 2 => D E;
    A 0 B 1 C 2 D 3 => E;
    A 0 => B C D E F;
    A 0 B 1 => C D E F;
    A 0 B 1 C 2 => D E F;
    A 0 B 1 C 2 D 3 => E F;
    A 0 B 1 C 2 D 3 E 4 => F;
}
