//! [`EntrySum`]: the checksum that protects an operation from the caller's buffer to the table.
//!
//! It is made of the caller's own bytes before anything is copied. It is compared with the section
//! before the section goes to the log, kept beside the entry in the memtable, and checked by the
//! flush. So a bit that flips in any copy on the way is noticed.
//!
//! Invariant: it exists in memory only. No file stores one, so its form may change.

use super::{EntryKind, SeqNo, Trailer};
use crate::codec::checksum64;

/// Odd, so that every bit of what it multiplies counts.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Checksum of an operation that has no sequence number yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntrySum(u64);

impl EntrySum {
    /// The checksum of an operation on the key with the checksum `key_hash`.
    #[inline]
    pub fn new(key_hash: u64, kind: EntryKind, value: &[u8]) -> EntrySum {
        let kind = (kind as u64 + 1).wrapping_mul(SPREAD);
        // Rotated: else a key that equals its value would cancel out nearly all of the sum.
        EntrySum(key_hash.rotate_left(32) ^ checksum64(value).wrapping_add(kind))
    }

    /// The checksum of the entry that the operation becomes.
    #[inline]
    #[must_use]
    pub fn numbered(self, seq: SeqNo) -> EntrySum {
        // Plus one, so that the number 0 changes the sum as well.
        EntrySum(self.0 ^ (seq.get() + 1).wrapping_mul(SPREAD))
    }

    /// In how many bits two checksums differ.
    pub fn differing_bits(self, other: EntrySum) -> u32 {
        (self.0 ^ other.0).count_ones()
    }

    /// The checksum of the entry of `key`; `None` if the trailer is of no kind that there is.
    pub fn of_entry(key: &[u8], trailer: Trailer, value: &[u8]) -> Option<EntrySum> {
        let sum = EntrySum::new(checksum64(key), trailer.kind()?, value);
        Some(sum.numbered(trailer.seq()))
    }
}

/// The checksums of an operation, of the caller's own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationSum {
    /// The checksum of the stored key, which filters over keys are asked by.
    pub key_hash: u64,
    /// The checksum of the whole.
    pub sum: EntrySum,
}

impl OperationSum {
    /// Those of an operation.
    #[inline]
    pub fn new(kind: EntryKind, key: &[u8], value: &[u8]) -> OperationSum {
        let key_hash = checksum64(key);
        OperationSum { key_hash, sum: EntrySum::new(key_hash, kind, value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_an_entry_counts() {
        let seq = |n| SeqNo::new(n).unwrap();
        let key = *b"key";
        let value = *b"value";
        let trailer = Trailer::new(seq(7), EntryKind::Value);
        let sum = EntrySum::of_entry(&key, trailer, &value);
        for bit in 0..8 * value.len() {
            let mut damaged = value;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(EntrySum::of_entry(&key, trailer, &damaged), sum);
        }
        for bit in 0..8 * key.len() {
            let mut damaged = key;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(EntrySum::of_entry(&damaged, trailer, &value), sum);
        }
        for other in [
            Trailer::new(seq(8), EntryKind::Value),
            Trailer::new(seq(7), EntryKind::Handle),
            Trailer::new(seq(7), EntryKind::Tombstone),
        ] {
            assert_ne!(EntrySum::of_entry(&key, other, &value), sum);
        }
        // Bytes that move from the key to the value.
        assert_ne!(EntrySum::of_entry(b"keyv", trailer, b"alue"), sum);
    }
}
