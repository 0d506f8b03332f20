//! The checksum of an entry, and the checksum of that checksum.
//!
//! Called for every entry that is sealed or verified, and by the bit search of a repair.
//!
//! ```text
//! algorithm 0   the paper's: XXH3-64 of key, value, sequence number and kind, XORed. Never written.
//! algorithm 1   the same, each field hashed under a seed of its own
//! ```
//!
//! Without seeds XOR cancels wherever two fields hash alike: an entry whose key equals its value
//! has a checksum that depends on neither, and key and value may change places unseen. The seeds
//! are fixed and public, because an entry must verify on whatever node it moves to. This guards
//! against faults, not against an attacker.
//!
//! Invariants:
//! 1. Seeds and field encodings are on disk: never changed under the same algorithm number.
//! 2. The sum is the XOR of its parts, so one field can change without the others being read.

use lsm_core::codec::checksum64_seeded;
use lsm_core::types::{EntryKind, SeqNo};

/// Number of the algorithm that this version writes and reads.
pub const ALGORITHM: u8 = 1;

// Far apart and odd: the fractional parts of the roots of 2, 3, 5, 7 and 11, as SHA-512 has them.
const KEY_SEED: u64 = 0x6a09_e667_f3bc_c909;
const VALUE_SEED: u64 = 0xbb67_ae85_84ca_a73b;
const _: () =
    assert!(VALUE_SEED == lsm_core::types::VALUE_SEED, "flushes hand checksums of values on");
const SEQ_SEED: u64 = 0x3c6e_f372_fe94_f82b;
#[cfg(test)]
const KIND_SEED: u64 = 0xa54f_f53a_5f1d_36f1;
const SECOND_COPY_SEED: u64 = 0x510e_527f_ade6_82d1;

/// The key's part of the sum.
#[inline]
pub fn of_key(key: &[u8]) -> u64 {
    checksum64_seeded(key, KEY_SEED)
}

/// The value's part of the sum: of a handle or a payload, its bytes.
#[inline]
pub fn of_value(value: &[u8]) -> u64 {
    checksum64_seeded(value, VALUE_SEED)
}

/// The sequence number's part of the sum: 8 bytes, little-endian.
#[inline]
pub fn of_seq(seq: SeqNo) -> u64 {
    checksum64_seeded(&seq.get().to_le_bytes(), SEQ_SEED)
}

/// The kind's part of the sum: the hash of its 1 byte, of which there are few enough to know.
#[inline]
pub fn of_kind(kind: EntryKind) -> u64 {
    match kind {
        EntryKind::Tombstone => 0x8e93_aa5b_9ce6_26fc,
        EntryKind::Value => 0x068c_7f9e_4817_044f,
        EntryKind::Handle => 0x6351_2a29_2027_5df4,
        EntryKind::Operand => 0xd70c_6f64_75cf_79a8,
        EntryKind::Poison => 0x06aa_a440_2e8d_4dbe,
        EntryKind::Clear | EntryKind::DeleteRange => unreachable!("no entry deletes other keys"),
    }
}

/// The checksum of an entry.
#[inline]
pub fn of_entry(key: &[u8], value: &[u8], seq: SeqNo, kind: EntryKind) -> u64 {
    of_entry_with(of_value(value), key, seq, kind)
}

/// The checksum of an entry whose value has the checksum `value_sum`.
#[inline(always)]
pub fn of_entry_with(value_sum: u64, key: &[u8], seq: SeqNo, kind: EntryKind) -> u64 {
    of_key(key) ^ value_sum ^ of_seq(seq) ^ of_kind(kind)
}

/// The sum of the same entry under another sequence number. Key and value are not read, so
/// damage in them stays as visible as it was.
#[inline]
pub fn with_seq(sum: u64, from: SeqNo, to: SeqNo) -> u64 {
    sum ^ of_seq(from) ^ of_seq(to)
}

/// The checksum of a checksum: the second copy in the metadata.
#[inline]
pub fn hash(sum: u64) -> u64 {
    checksum64_seeded(&sum.to_le_bytes(), SECOND_COPY_SEED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsm_core::codec::checksum64;

    fn seq(n: u64) -> SeqNo {
        SeqNo::new(n).expect("test sequences are small")
    }

    fn unseeded(key: &[u8], value: &[u8], n: u64, kind: EntryKind) -> u64 {
        checksum64(key)
            ^ checksum64(value)
            ^ checksum64(&n.to_le_bytes())
            ^ checksum64(&[kind as u8])
    }

    /// Two entries that the paper's sum cannot tell apart, and that this one must.
    fn check(a: (&[u8], &[u8], u64), b: (&[u8], &[u8], u64)) {
        let kind = EntryKind::Value;
        assert_eq!(unseeded(a.0, a.1, a.2, kind), unseeded(b.0, b.1, b.2, kind));
        assert_ne!(of_entry(a.0, a.1, seq(a.2), kind), of_entry(b.0, b.1, seq(b.2), kind));
    }

    #[test]
    fn what_plain_xor_cannot_distinguish_differs() {
        // Key equal to value, replaced as a whole.
        check((b"alpha", b"alpha", 7), (b"beta", b"beta", 7));
        // Key and value have changed places.
        check((b"key", b"value", 7), (b"value", b"key", 7));
        // The key is the encoding of its own sequence number.
        let at_five = 5u64.to_le_bytes();
        let at_six = 6u64.to_le_bytes();
        check((&at_five, b"v", 5), (&at_six, b"v", 6));
        // So is the value.
        check((b"k", &at_five, 5), (b"k", &at_six, 6));
        // The value is the kind's byte.
        assert_ne!(
            of_entry(b"k", &[1], seq(1), EntryKind::Value),
            of_entry(b"k", &[0], seq(1), EntryKind::Tombstone)
        );
    }

    #[test]
    fn the_parts_of_kinds_are_their_hashes() {
        use EntryKind::{Handle, Operand, Poison, Tombstone, Value};
        for kind in [Tombstone, Value, Handle, Operand, Poison] {
            let hash = checksum64_seeded(&[kind as u8], KIND_SEED);
            assert_eq!(of_kind(kind), hash, "{kind:?} {hash:#x}");
        }
    }

    #[test]
    fn the_algorithm_is_what_the_files_say() {
        let sum = of_entry(b"key", b"value", seq(0x0102_0304), EntryKind::Value);
        assert_eq!((sum, hash(sum)), (GOLDEN_SUM, GOLDEN_HASH), "{sum:#x} {:#x}", hash(sum));
        assert_eq!(
            with_seq(sum, seq(0x0102_0304), SeqNo::ZERO),
            of_entry(b"key", b"value", SeqNo::ZERO, EntryKind::Value)
        );
    }

    const GOLDEN_SUM: u64 = 0x2b8b_5893_9528_4aa5;
    const GOLDEN_HASH: u64 = 0xe342_77c3_34fc_d9d2;
}
