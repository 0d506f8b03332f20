//! K+ and V+: key and payload of a metadata entry.
//!
//! A metadata entry is a normal point tombstone of the engine. A node without MetaHive reads past
//! it and removes it in a compaction.
//!
//! Its key is the key of the entry with one byte `0x01` appended. Its sequence number is that of
//! the entry. Its payload:
//!
//! ```text
//! offset  size  name        meaning
//!      0     8  seq         sequence number of the entry, as stored beside it, little-endian
//!      8     8  sum         checksum of the entry
//!     16     8  sum of sum  checksum of the checksum
//! ```
//!
//! A provider other than integrity stores its own bytes after the first 8.

use std::cmp::Ordering;

use lsm_core::codec::{Malformed, Reader};
use lsm_core::types::{EntryKind, SeqNo};

use crate::checksum;

/// The ending of metadata keys, which user keys must not have.
pub const SUFFIX: u8 = 0x01;

/// Length of the sequence number at the head of every provider's payload, in bytes.
pub const HEAD_BYTES: usize = 8;

/// Length of integrity's payload, in bytes.
pub const PAYLOAD_BYTES: usize = 24;

/// V+ of integrity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Sequence number of the entry.
    pub seq: SeqNo,
    /// Its checksum.
    pub sum: u64,
    /// The checksum of the checksum.
    pub sum_of_sum: u64,
}

impl Payload {
    /// The payload for an entry with this checksum.
    #[inline]
    pub fn new(seq: SeqNo, sum: u64) -> Payload {
        Payload { seq, sum, sum_of_sum: checksum::hash(sum) }
    }

    /// As bytes.
    #[inline]
    pub fn encode(&self) -> [u8; PAYLOAD_BYTES] {
        let mut bytes = [0; PAYLOAD_BYTES];
        bytes[..8].copy_from_slice(&self.seq.get().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sum.to_le_bytes());
        bytes[16..].copy_from_slice(&self.sum_of_sum.to_le_bytes());
        bytes
    }

    /// From bytes. A sequence number beyond 56 bits is damage like any other: its upper bits are
    /// dropped, and it then belongs to no entry.
    ///
    /// # Errors
    /// If there are not exactly [`PAYLOAD_BYTES`].
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Payload, Malformed> {
        let mut reader = Reader::new(bytes);
        let seq = reader.u64()?;
        let payload = Payload {
            // Masked and no error: the bits above may be the damage, and the checksums are of use
            // without them.
            seq: SeqNo::new(seq & SeqNo::MAX.get()).expect("masked to 56 bits"),
            sum: reader.u64()?,
            sum_of_sum: reader.u64()?,
        };
        reader.finish()?;
        Ok(payload)
    }
}

/// Returns `true` if an entry is metadata: its key has the suffix, it is a tombstone, and its payload begins
/// with its own stored sequence number. A deletion has no payload and is never taken for it.
#[inline]
pub fn is_metadata(key: &[u8], kind: EntryKind, payload: &[u8], stored_seq: SeqNo) -> bool {
    entry_key(key).is_some()
        && kind == EntryKind::Tombstone
        && payload.first_chunk().is_some_and(|head| u64::from_le_bytes(*head) == stored_seq.get())
}

/// The metadata key of `key`.
pub fn metadata_key(key: &[u8]) -> Vec<u8> {
    let mut plus = Vec::with_capacity(key.len() + 1);
    plus.extend_from_slice(key);
    plus.push(SUFFIX);
    plus
}

/// The key whose metadata key this is, if it can be one.
#[inline]
pub fn entry_key(key: &[u8]) -> Option<&[u8]> {
    match key {
        // No user key is empty, so the ending by itself is the metadata of nothing.
        [head @ .., SUFFIX] if !head.is_empty() => Some(head),
        _ => None,
    }
}

/// Returns `true` if the metadata key of `key` sorts before `next`.
#[inline]
pub(crate) fn metadata_key_precedes(key: &[u8], next: &[u8]) -> bool {
    let (head, tail) = next.split_at(key.len().min(next.len()));
    match key[..head.len()].cmp(head) {
        // `next` begins with the key, or ends within it and has no tail.
        Ordering::Equal => *tail > [SUFFIX][..],
        order => order.is_lt(),
    }
}

/// Does what [`metadata_key_precedes`] does, for a `next` that sorts behind `key`.
#[inline]
pub(crate) fn metadata_key_precedes_behind(key: &[u8], next: &[u8]) -> bool {
    match next.get(key.len()) {
        // It does not begin with the key, and so differs from it in a byte before: few keys get
        // further, so nearly none is compared.
        None => true,
        // It differs before, or continues the key with more than the suffix.
        Some(byte) if *byte > SUFFIX => true,
        Some(_) => metadata_key_precedes(key, next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_payload_lies_as_the_table_says() {
        let payload = Payload { seq: SeqNo::new(0x0102).expect("small"), sum: 3, sum_of_sum: 4 };
        let bytes = payload.encode();
        assert_eq!(bytes[..8], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..], [3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Payload::decode(&bytes), Ok(payload));
        assert!(Payload::decode(&bytes[..23]).is_err());
        assert!(Payload::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn a_deletion_is_never_taken_for_metadata() {
        let seq = SeqNo::new(9).expect("small");
        let bytes = Payload::new(seq, 1).encode();
        let tombstone = EntryKind::Tombstone;
        assert!(is_metadata(b"k\x01", tombstone, &bytes, seq));
        assert!(!is_metadata(b"k\x01", tombstone, b"", seq));
        assert!(!is_metadata(b"k\x01", tombstone, &bytes, SeqNo::ZERO));
        assert!(!is_metadata(b"k\x01", EntryKind::Value, &bytes, seq));
        assert!(!is_metadata(b"k\x02", tombstone, &bytes, seq));
        assert!(!is_metadata(b"\x01", tombstone, &bytes, seq));
    }

    proptest! {
        #[test]
        fn metadata_keys_sort_as_if_they_were_spelled_out(
            key in prop::collection::vec(0u8..3, 1..5),
            next in prop::collection::vec(0u8..3, 1..6),
        ) {
            let plus = metadata_key(&key);
            prop_assert_eq!(metadata_key_precedes(&key, &next), plus < next);
            if key < next {
                prop_assert_eq!(metadata_key_precedes_behind(&key, &next), plus < next);
            }
            prop_assert_eq!(entry_key(&plus), Some(&key[..]));
        }
    }
}
