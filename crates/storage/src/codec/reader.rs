//! [`Reader`]: a cursor over untrusted bytes whose every read is checked.

use std::fmt;
use std::ops::Range;

/// Bytes that do not decode: what was wrong, and how far into the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The defect, in one phrase.
    pub what: &'static str,
    /// Its offset in the input, in bytes.
    pub at: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.at)
    }
}

/// Reads integers and byte strings off the front of a slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Returns the number of bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns the number of bytes left.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns `true` if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// An error at the present place.
    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { what, at: self.at }
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..len).ok_or(self.malformed("input ends too early"))?;
        self.at += len;
        Ok(taken)
    }

    /// Bytes that were read before.
    ///
    /// # Panics
    /// If the range is not within what was read.
    pub fn passed(&self, range: Range<usize>) -> &'a [u8] {
        &self.bytes[..self.at][range]
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let rest = &self.bytes[self.at..];
        let taken = *rest.first_chunk::<N>().ok_or(self.malformed("input ends too early"))?;
        self.at += N;
        Ok(taken)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Sixteen bytes, little-endian.
    pub fn u128(&mut self) -> Result<u128, Malformed> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// A varint; only the shortest form of a number is accepted.
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let (n, len) = varint_at(self.bytes, self.at).ok_or(self.malformed("invalid varint"))?;
        self.at += len;
        Ok(n)
    }

    /// A varint that must fit `u32`.
    pub fn varint_u32(&mut self) -> Result<u32, Malformed> {
        let at = self.at;
        u32::try_from(self.varint()?).map_err(|_| Malformed { what: "number exceeds 32 bits", at })
    }

    /// A varint length that must not pass the bytes that are left.
    pub fn length(&mut self) -> Result<usize, Malformed> {
        let at = self.at;
        let n = self.varint()?;
        usize::try_from(n)
            .ok()
            // Checked before anything is taken or reserved: the length comes from the file.
            .filter(|n| *n <= self.remaining())
            .ok_or(Malformed { what: "length exceeds the input", at })
    }

    /// A varint length and as many bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.length()?;
        self.take(len)
    }

    /// Ends the reading: bytes that are left over are an error.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.is_empty() { Ok(()) } else { Err(self.malformed("bytes are left over")) }
    }
}

/// The varint at `bytes[at..]` and its length, if it is whole, fits 64 bits and is the shortest
/// form of its number.
#[inline]
pub fn varint_at(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let rest = bytes.get(at..)?;
    let first = *rest.first()?;
    if first < 0x80 {
        return Some((u64::from(first), 1));
    }
    let mut n = u64::from(first & 0x7f);
    for (i, byte) in rest.iter().enumerate().take(10).skip(1) {
        n |= u64::from(byte & 0x7f) << (7 * i);
        if *byte < 0x80 {
            // The tenth byte has one bit that fits. A last byte of zero would be a second form of a
            // shorter number.
            let overflows = i == 9 && *byte > 1;
            return (!overflows && *byte != 0).then_some((n, i + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{put_bytes, put_varint, varint_len};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_read_back_and_have_one_form(n: u64) {
            let mut out = Vec::new();
            put_varint(&mut out, n);
            prop_assert_eq!(out.len(), varint_len(n));
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.varint(), Ok(n));
            prop_assert_eq!(reader.finish(), Ok(()));
            // A longer form of the same number is refused.
            *out.last_mut().unwrap() |= 0x80;
            out.push(0);
            prop_assert!(Reader::new(&out).varint().is_err());
        }

        #[test]
        fn no_input_panics_or_reads_past_the_end(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.bytes().is_ok() && !reader.is_empty() {}
            prop_assert!(reader.position() <= bytes.len());
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        let mut out = Vec::new();
        put_bytes(&mut out, b"hello");
        put_varint(&mut out, 1 << 40);
        for cut in 0..out.len() {
            let mut reader = Reader::new(&out[..cut]);
            assert!(reader.bytes().and_then(|_| reader.varint()).is_err());
        }
    }
}
