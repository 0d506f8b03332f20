//! [`EntryChecksum`]: the checksum that protects an operation from the caller's buffer to the table.
//!
//! It is computed over the caller's own bytes before anything is copied. It is compared with the
//! section before the section goes to the log, stored with the entry in the memtable, and checked
//! by the flush. So a bit that flips in any copy on the way is noticed.
//!
//! A filter can seal its part for the value: the flush checks that part anyway, and the filter does
//! not hash the value again.
//!
//! Invariant: it exists in memory only. No file stores one, so its form may change, except for its
//! part for the value.

use super::{EntryKind, SeqNo, Trailer};
use crate::codec::{ChecksumSeed, checksum64};

/// Odd, so that every bit of what it multiplies counts.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The seed of the checksums of values, which the metadata of MetaHive has on disk.
pub const VALUE_SEED: u64 = 0xbb67_ae85_84ca_a73b;

static VALUE: ChecksumSeed = ChecksumSeed::new(VALUE_SEED);

/// Checksum of an operation that has no sequence number yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryChecksum(u64);

impl EntryChecksum {
    /// The checksum of an operation on the key with the checksum `key_hash`.
    #[inline]
    pub fn new(key_hash: u64, kind: EntryKind, value: &[u8]) -> EntryChecksum {
        EntryChecksum::of_parts(key_hash, kind, VALUE.checksum64(value))
    }

    #[inline]
    fn of_parts(key_hash: u64, kind: EntryKind, value_sum: u64) -> EntryChecksum {
        let kind = (kind as u64 + 1).wrapping_mul(SPREAD);
        // Rotated: else a key that equals its value would cancel out nearly all of the sum.
        EntryChecksum(key_hash.rotate_left(32) ^ value_sum.wrapping_add(kind))
    }

    /// The checksum of the entry that the operation becomes.
    #[inline]
    #[must_use]
    pub fn numbered(self, seq: SeqNo) -> EntryChecksum {
        // Plus one, so that the number 0 changes the sum as well.
        EntryChecksum(self.0 ^ (seq.get() + 1).wrapping_mul(SPREAD))
    }

    /// In how many bits two checksums differ.
    pub fn differing_bits(self, other: EntryChecksum) -> u32 {
        (self.0 ^ other.0).count_ones()
    }

    /// Returns `true` if this is the checksum of the entry of `key`, and then the checksum of the value under
    /// [`VALUE_SEED`].
    #[inline]
    pub fn confirms(self, key: &[u8], trailer: Trailer, value: &[u8]) -> (bool, Option<u64>) {
        let Some(kind) = trailer.kind() else { return (false, None) };
        let value_sum = VALUE.checksum64(value);
        let sum = EntryChecksum::of_parts(checksum64(key), kind, value_sum).numbered(trailer.seq());
        let is_it = sum == self;
        // There is no checksum to pass on for bytes that do not agree.
        (is_it, is_it.then_some(value_sum))
    }

    /// The checksum of the entry of `key`; `None` if the kind in the trailer is unknown.
    pub fn of_entry(key: &[u8], trailer: Trailer, value: &[u8]) -> Option<EntryChecksum> {
        let sum = EntryChecksum::new(checksum64(key), trailer.kind()?, value);
        Some(sum.numbered(trailer.seq()))
    }
}

/// The checksums of an operation, computed over the caller's own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationChecksum {
    /// The checksum of the stored key, by which Bloom filters are searched.
    pub key_hash: u64,
    /// The checksum of the whole.
    pub sum: EntryChecksum,
}

impl OperationChecksum {
    /// Those of an operation.
    #[inline]
    pub fn new(kind: EntryKind, key: &[u8], value: &[u8]) -> OperationChecksum {
        let key_hash = checksum64(key);
        OperationChecksum { key_hash, sum: EntryChecksum::new(key_hash, kind, value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::checksum64_seeded;

    #[test]
    fn every_bit_of_an_entry_counts() {
        let seq = |n| SeqNo::new(n).unwrap();
        let key = *b"key";
        let value = *b"value";
        let trailer = Trailer::new(seq(7), EntryKind::Value);
        let sum = EntryChecksum::of_entry(&key, trailer, &value);
        for bit in 0..8 * value.len() {
            let mut damaged = value;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(EntryChecksum::of_entry(&key, trailer, &damaged), sum);
        }
        for bit in 0..8 * key.len() {
            let mut damaged = key;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(EntryChecksum::of_entry(&damaged, trailer, &value), sum);
        }
        for other in [
            Trailer::new(seq(8), EntryKind::Value),
            Trailer::new(seq(7), EntryKind::Handle),
            Trailer::new(seq(7), EntryKind::Tombstone),
        ] {
            assert_ne!(EntryChecksum::of_entry(&key, other, &value), sum);
        }
        let sound = sum.unwrap();
        let value_sum = checksum64_seeded(&value, VALUE_SEED);
        assert_eq!(sound.confirms(&key, trailer, &value), (true, Some(value_sum)));
        assert_eq!(sound.confirms(&key, trailer, b"valuf"), (false, None));
        // The flush seals the checksum that it has confirmed, so for every length it must be the
        // one on disk.
        for len in [0, 1, 16, 128, 240, 241, 1_024, 1_025, 70_000] {
            let value: Vec<u8> = (0..len).map(|n| (n * 7 % 251) as u8).collect();
            let sum = EntryChecksum::of_entry(&key, trailer, &value).unwrap();
            let on_disk = checksum64_seeded(&value, VALUE_SEED);
            assert_eq!(sum.confirms(&key, trailer, &value), (true, Some(on_disk)), "{len}");
        }
        // Bytes that move from the key to the value.
        assert_ne!(EntryChecksum::of_entry(b"keyv", trailer, b"alue"), sum);
    }
}
