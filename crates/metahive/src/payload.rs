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
//!      0     8  seq         sequence number of the entry, as stored next to it, little-endian
//!      8     8  sum         checksum of the entry
//!     16     3  sum of sum  low bytes of the checksum of the checksum
//! ```
//!
//! In tables whose seal has a version below 3, the checksum of the checksum is there with all of its 8
//! bytes. The length of a payload tells which form it has. Both forms are read everywhere, and the short
//! one is written.
//!
//! 3 bytes are enough, because the checksum of the checksum only tells damaged metadata from a damaged
//! entry. 1 of 2^24 damaged checksums seems sound, and its entry damaged: then there is an error where a
//! repair was possible. An entry that is damaged together with its checksum passes for sound with the
//! same chance, and is refused by the digest of its block (32 bits).
//!
//! A provider other than integrity stores its own bytes after the first 8.

use std::cmp::Ordering;
use std::fmt;

use lsm_core::codec::{Malformed, Reader, put_u64};
use lsm_core::error::Result;
use lsm_core::hooks::NoteForm;
use lsm_core::types::SeqNo;

use crate::checksum;

/// The ending of metadata keys, which user keys must not have.
pub const SUFFIX: u8 = 0x01;

/// Length of the sequence number at the head of every provider's payload, in bytes.
pub const HEAD_BYTES: usize = 8;

/// Length of integrity's payload, in bytes.
pub const PAYLOAD_BYTES: usize = HEAD_BYTES + METADATA_BYTES;

/// Length of the part of it after the sequence number.
pub(crate) const METADATA_BYTES: usize = 8 + SHORT_BYTES;

/// That length in tables of earlier versions.
pub(crate) const LONG_METADATA_BYTES: usize = 16;

/// Bytes of the checksum of the checksum.
const SHORT_BYTES: usize = 3;
const SHORT_MASK: u64 = (1 << (8 * SHORT_BYTES)) - 1;

/// The checksum of a checksum, as far as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumOfSum {
    /// Its low 24 bits.
    Short(u32),
    /// All of it, in tables of earlier versions.
    Whole(u64),
}

impl SumOfSum {
    /// The checksum of `sum`.
    #[inline]
    pub fn new(sum: u64) -> SumOfSum {
        SumOfSum::Short((checksum::hash(sum) & SHORT_MASK) as u32)
    }

    /// Returns `true` if it is the checksum of `sum`, as far as it is stored.
    #[inline]
    pub fn is_of(self, sum: u64) -> bool {
        match self {
            SumOfSum::Short(short) => checksum::hash(sum) & SHORT_MASK == u64::from(short),
            SumOfSum::Whole(whole) => checksum::hash(sum) == whole,
        }
    }
}

impl fmt::Display for SumOfSum {
    /// Hex digits: two for each byte that is stored.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SumOfSum::Short(short) => write!(f, "{short:06x}"),
            SumOfSum::Whole(whole) => write!(f, "{whole:016x}"),
        }
    }
}

/// The form of metadata that is made of a checksum: V+ of integrity without its sequence number.
pub(crate) struct Metadata;

impl NoteForm for Metadata {
    fn payload_bytes(&self) -> usize {
        METADATA_BYTES
    }

    fn put_payloads(&self, notes: &[u64], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.resize(start + notes.len() * METADATA_BYTES, 0);
        let (payloads, _) = out[start..].as_chunks_mut();
        for (payload, sum) in payloads.iter_mut().zip(notes) {
            *payload = Payload::metadata_of(*sum);
        }
        Ok(())
    }
}

/// V+ of integrity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Sequence number of the entry.
    pub seq: SeqNo,
    /// Its checksum.
    pub sum: u64,
    /// The checksum of the checksum.
    pub sum_of_sum: SumOfSum,
}

impl Payload {
    /// The payload for an entry with this checksum.
    #[inline]
    pub fn new(seq: SeqNo, sum: u64) -> Payload {
        Payload { seq, sum, sum_of_sum: SumOfSum::new(sum) }
    }

    /// Returns `true` if the two checksums agree. Then neither is damaged, but for 1 in 2^24.
    #[inline]
    pub fn is_sound(&self) -> bool {
        self.sum_of_sum.is_of(self.sum)
    }

    /// Returns `true` if its checksum was `sum` before it was damaged, which is asked of thousands of sums.
    pub(crate) fn was(&self, sum: u64) -> bool {
        // The short form alone would agree with one of thousands by chance. In damage of one byte the
        // other seven bytes decide, too.
        let difference = sum ^ self.sum;
        let is_of_one_byte = difference >> (difference.trailing_zeros() & !7 & 63) <= 0xff;
        let is_enough = is_of_one_byte || matches!(self.sum_of_sum, SumOfSum::Whole(_));
        is_enough && self.sum_of_sum.is_of(sum)
    }

    /// The bytes of [`Payload::new`].
    #[inline]
    pub(crate) fn bytes_of(seq: SeqNo, sum: u64) -> [u8; PAYLOAD_BYTES] {
        let mut bytes = [0; PAYLOAD_BYTES];
        bytes[..HEAD_BYTES].copy_from_slice(&seq.get().to_le_bytes());
        bytes[HEAD_BYTES..].copy_from_slice(&Payload::metadata_of(sum));
        bytes
    }

    /// Those after the sequence number.
    #[inline]
    pub(crate) fn metadata_of(sum: u64) -> [u8; METADATA_BYTES] {
        let mut bytes = [0; METADATA_BYTES];
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        bytes[8..].copy_from_slice(&checksum::hash(sum).to_le_bytes()[..SHORT_BYTES]);
        bytes
    }

    /// The checksum in what [`Payload::metadata_of`] returned, and whether the two agree.
    #[inline]
    pub(crate) fn short_sum(metadata: &[u8; METADATA_BYTES]) -> (u64, bool) {
        let [sum @ .., a, b, c] = *metadata;
        let sum = u64::from_le_bytes(sum);
        (sum, SumOfSum::Short(u32::from_le_bytes([a, b, c, 0])).is_of(sum))
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.seq.get().to_le_bytes().to_vec();
        put_u64(&mut bytes, self.sum);
        match self.sum_of_sum {
            SumOfSum::Short(short) => bytes.extend_from_slice(&short.to_le_bytes()[..SHORT_BYTES]),
            SumOfSum::Whole(whole) => put_u64(&mut bytes, whole),
        }
        bytes
    }

    /// From bytes. A sequence number beyond 56 bits is damage like any other: its upper bits are
    /// dropped, and it then belongs to no entry.
    ///
    /// # Errors
    /// If their number is that of neither form.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Payload, Malformed> {
        let mut reader = Reader::new(bytes);
        let seq = reader.u64()?;
        // Masked and no error: the bits above may be the damage, and the checksums are of use
        // without them.
        let seq = SeqNo::new(seq & SeqNo::MAX.get()).expect("masked to 56 bits");
        let payload = Payload::after_seq(seq, &bytes[HEAD_BYTES..]);
        payload.ok_or(reader.malformed("length of metadata"))
    }

    /// From what is stored after the sequence number; `None` if its length is that of neither form.
    #[inline]
    pub(crate) fn after_seq(seq: SeqNo, metadata: &[u8]) -> Option<Payload> {
        let (sum, rest) = metadata.split_first_chunk()?;
        let sum_of_sum = match *rest {
            [a, b, c] => SumOfSum::Short(u32::from_le_bytes([a, b, c, 0])),
            _ => SumOfSum::Whole(u64::from_le_bytes(rest.try_into().ok()?)),
        };
        Some(Payload { seq, sum: u64::from_le_bytes(*sum), sum_of_sum })
    }
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
        [head @ .., SUFFIX] => Some(head),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_payload_lies_as_the_table_says() {
        let seq = SeqNo::new(0x0102).expect("small");
        let short = Payload { seq, sum: 3, sum_of_sum: SumOfSum::Short(0x04_0506) };
        let whole = Payload { seq, sum: 3, sum_of_sum: SumOfSum::Whole(4) };
        let head = [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(short.encode(), [&head[..], &[6, 5, 4]].concat());
        assert_eq!(whole.encode(), [&head[..], &4u64.to_le_bytes()].concat());
        for payload in [short, whole] {
            assert_eq!(Payload::decode(&payload.encode()), Ok(payload));
        }
        let longest = [&whole.encode()[..], &[0]].concat();
        for len in (0..=longest.len()).filter(|len| ![PAYLOAD_BYTES, 24].contains(len)) {
            assert!(Payload::decode(&longest[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn the_short_checksum_of_a_checksum_is_the_beginning_of_the_whole_one() {
        let sum = 0x0123_4567_89ab_cdef;
        let whole = checksum::hash(sum);
        let made = Payload::new(SeqNo::MAX, sum);
        assert_eq!(Payload::bytes_of(SeqNo::MAX, sum)[..], made.encode());
        assert_eq!(made.encode()[16..], whole.to_le_bytes()[..3]);
        assert_eq!(made.sum_of_sum.to_string(), format!("{:06x}", whole & 0xff_ffff));
        for of in [made.sum_of_sum, SumOfSum::Whole(whole)] {
            assert!(of.is_of(sum) && !of.is_of(sum ^ 1));
        }
        for bit in 0..24 {
            let SumOfSum::Short(short) = made.sum_of_sum else { unreachable!("it was just made") };
            assert!(!SumOfSum::Short(short ^ 1 << bit).is_of(sum), "{bit}");
        }
    }

    #[test]
    fn a_short_checksum_of_a_checksum_suffices_only_where_one_byte_is_damaged() {
        let sum = 0x0123_4567_89ab_cdef_u64;
        let whole = Payload {
            sum_of_sum: SumOfSum::Whole(checksum::hash(sum)),
            ..Payload::new(SeqNo::ZERO, sum)
        };
        for (damage, is_enough) in
            [(1, true), (0xff << 56, true), (0x0180, false), (1 | 1 << 63, false)]
        {
            let short = Payload { sum: sum ^ damage, ..Payload::new(SeqNo::ZERO, sum) };
            let whole = Payload { sum: sum ^ damage, ..whole };
            assert_eq!((short.was(sum), whole.was(sum)), (is_enough, true), "{damage:#x}");
            assert!(!short.was(sum ^ 2) && !whole.was(sum ^ 2));
        }
    }

    proptest! {
        #[test]
        fn metadata_keys_sort_as_if_they_were_spelled_out(
            key in prop::collection::vec(0u8..3, 1..5),
            next in prop::collection::vec(0u8..3, 1..6),
        ) {
            let plus = metadata_key(&key);
            prop_assert_eq!(metadata_key_precedes(&key, &next), plus < next);
            prop_assert_eq!(entry_key(&plus), Some(&key[..]));
        }
    }
}
