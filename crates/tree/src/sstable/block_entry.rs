//! [`Head`]: the numbers in front of an entry of a block, and the key of an entry in two pieces.
//! [`CheckedEntry`]: the only check of an entry by itself.
//!
//! `block.rs` describes the bytes. Every reader and writer of entries uses these functions; this file
//! knows no block.

use std::cmp::Ordering;
use std::ops::Range;

use crate::codec::{Malformed, varint_at};
use crate::limits::{FORMAT_VALUE_BYTES_MAX, INTERNAL_KEY_BYTES_MAX};
use crate::types::{EntryKind, SeqNo, Trailer, prefix8};

/// Every how manyth entry stores its key whole.
pub(super) const RESTART_ENTRIES: u32 = 16;

pub(super) const KIND_BITS: u8 = 0x0f;

/// Why the head of an entry decodes.
const DECODED: &str = "entries were decoded when the block was parsed";

/// The numbers in front of an entry.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub header: u8,
    pub shared: usize,
    pub suffix_len: usize,
    pub value_len: usize,
    /// Sequence number less the base.
    pub delta: u64,
    /// Offset of the suffix in the payload.
    pub suffix: usize,
}

impl Head {
    /// Decodes the head at `at`. The 16 bytes after the entries make it safe to load 8 at once.
    #[inline(always)]
    pub(super) fn decode(bytes: &[u8], at: usize) -> Option<Head> {
        let word = u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?);
        // The header and three lengths of one byte: nearly every entry. One load then decodes them
        // all.
        if word & 0x8080_8000 != 0 {
            return Head::decode_long(bytes, at);
        }
        let (delta, delta_len) = match first_number((word >> 32) as u32) {
            // The sequence passes the word.
            None => varint_at(bytes, at + 4)?,
            Some((kept, len)) => {
                // A last byte of zero is a longer form of a number that has a shorter one.
                if len > 1 && kept >> (8 * (len - 1)) == 0 {
                    return None;
                }
                (joined_sevens(kept), len as usize)
            }
        };
        Some(Head {
            header: word as u8,
            shared: usize::from((word >> 8) as u8),
            suffix_len: usize::from((word >> 16) as u8),
            value_len: usize::from((word >> 24) as u8),
            delta,
            suffix: at + 4 + delta_len,
        })
    }

    /// As [`Head::decode`], of an entry that decoded when its block was parsed: the form of its numbers
    /// is not checked again.
    ///
    /// # Panics
    /// If no entry begins there.
    #[inline(always)]
    pub(super) fn known(bytes: &[u8], at: usize) -> Head {
        let word = u64::from_le_bytes(*bytes[at..].first_chunk::<8>().expect(DECODED));
        let number = first_number((word >> 32) as u32).filter(|_| word & 0x8080_8000 == 0);
        let Some((kept, delta_len)) = number else {
            return Head::known_long(bytes, at);
        };
        Head {
            header: word as u8,
            shared: usize::from((word >> 8) as u8),
            suffix_len: usize::from((word >> 16) as u8),
            value_len: usize::from((word >> 24) as u8),
            delta: joined_sevens(kept),
            suffix: at + 4 + delta_len as usize,
        }
    }

    #[cold]
    fn known_long(bytes: &[u8], at: usize) -> Head {
        Head::decode(bytes, at).expect(DECODED)
    }

    #[cold]
    fn decode_long(bytes: &[u8], at: usize) -> Option<Head> {
        let header = *bytes.get(at)?;
        let shared_at = at + 1;
        let (shared, len) = varint_at(bytes, shared_at)?;
        let suffix_len_at = shared_at + len;
        let (suffix_len, len) = varint_at(bytes, suffix_len_at)?;
        let value_len_at = suffix_len_at + len;
        let (value_len, len) = varint_at(bytes, value_len_at)?;
        let delta_at = value_len_at + len;
        let (delta, len) = varint_at(bytes, delta_at)?;
        Some(Head {
            header,
            shared: usize::try_from(shared).ok()?,
            suffix_len: usize::try_from(suffix_len).ok()?,
            value_len: usize::try_from(value_len).ok()?,
            delta,
            suffix: delta_at + len,
        })
    }
}

/// A visible entry whose own bytes are as a writer makes them. Its place among the other entries, and the
/// bytes that it shares with its restart key, are not checked.
pub(super) struct CheckedEntry<'a> {
    /// Number of bytes that its key has in common with its restart key.
    pub shared: usize,
    /// The rest of its key.
    pub suffix: &'a [u8],
    pub trailer: Trailer,
    /// The range of its value in the payload. The entry ends with it.
    pub value: Range<usize>,
}

impl<'a> CheckedEntry<'a> {
    /// Decodes and checks the entry at `at` of a payload whose entries end at `end`.
    ///
    /// # Errors
    /// The defect.
    #[inline(always)]
    pub(super) fn at(
        payload: &'a [u8],
        at: usize,
        end: usize,
        base_seq: u64,
    ) -> Result<CheckedEntry<'a>, Malformed> {
        let head = Head::decode(payload, at).ok_or(bad("bad entry", at))?;
        if head.header & !KIND_BITS != 0 {
            return Err(bad("unknown header bits", at));
        }
        let kind = EntryKind::from_u8(head.header).ok_or(bad("unknown entry kind", at))?;
        let trailer = Trailer::new(checked_seq(base_seq, head.delta, at)?, kind);
        // Checked sums: lengths are still what the file says.
        let key_len = head.shared.checked_add(head.suffix_len);
        if key_len.is_none_or(|len| len > INTERNAL_KEY_BYTES_MAX) {
            return Err(bad("key length out of range", at));
        }
        if head.value_len as u64 > FORMAT_VALUE_BYTES_MAX {
            return Err(bad("value length out of range", at));
        }
        let value = head.suffix + head.suffix_len;
        let next = value.checked_add(head.value_len).filter(|next| *next <= end);
        let next = next.ok_or(bad("entry exceeds the block", at))?;
        let suffix = &payload[head.suffix..value];
        Ok(CheckedEntry { shared: head.shared, suffix, trailer, value: value..next })
    }
}

/// The sequence number `delta` above the base, of the entry at `at`.
#[inline(always)]
pub(super) fn checked_seq(base_seq: u64, delta: u64, at: usize) -> Result<SeqNo, Malformed> {
    let seq = base_seq.checked_add(delta).and_then(SeqNo::new);
    seq.ok_or(bad("sequence number exceeds 56 bits", at))
}

/// The bytes of the varint that four bytes begin with, and their number; `None` if it passes them.
#[inline(always)]
fn first_number(bytes: u32) -> Option<(u32, u32)> {
    // A bit for each byte that ends a number.
    let ends = !bytes & 0x8080_8080;
    // Up to the first of them.
    (ends != 0).then(|| (bytes & (ends ^ (ends - 1)), ends.trailing_zeros() / 8 + 1))
}

/// Joins the low seven bits of each of four bytes.
#[inline(always)]
fn joined_sevens(bytes: u32) -> u64 {
    let pairs = bytes & 0x7f_007f | (bytes & 0x7f00_7f00) >> 1;
    u64::from(pairs & 0x3fff | pairs >> 2 & 0xfff_c000)
}

/// The finding of a look-up: an entry without its user key, which is the one that was asked for.
#[derive(Clone, Copy)]
pub(super) struct BlockEntry {
    /// The index among the visible entries.
    pub at: usize,
    pub trailer: Trailer,
    /// Offset of the value in the payload.
    pub value: usize,
    pub value_len: usize,
}

/// The key of an entry, in pieces.
#[derive(Clone, Copy)]
pub(super) struct EntryKey<'a> {
    pub key: PrefixedKey<'a>,
    pub trailer: Trailer,
}

pub(super) fn bad(what: &'static str, at: usize) -> Malformed {
    Malformed { what, at }
}

/// A user key in two pieces: what it shares with its restart key, and the rest.
#[derive(Clone, Copy)]
pub(super) struct PrefixedKey<'a> {
    pub shared: &'a [u8],
    pub suffix: &'a [u8],
}

impl PrefixedKey<'_> {
    /// Length of the key, in bytes.
    #[inline]
    pub(super) fn len(self) -> usize {
        self.shared.len() + self.suffix.len()
    }

    /// Returns `true` if it is `key`.
    pub(super) fn is(self, key: &[u8]) -> bool {
        key.len() == self.shared.len() + self.suffix.len()
            && key[self.shared.len()..] == *self.suffix
            && key[..self.shared.len()] == *self.shared
    }
}

/// The 8 bytes after the first `common` as a word. `common` is at most the length of the shared
/// piece, or that piece is empty.
#[inline]
pub(super) fn prefixed_word(key: PrefixedKey<'_>, common: usize) -> u64 {
    let Some(shared) = key.shared.get(common..) else {
        return prefix8(&key.suffix[common - key.shared.len()..]);
    };
    match shared.len() {
        0 => prefix8(key.suffix),
        len @ 1..8 => prefix8(shared) | prefix8(key.suffix) >> (8 * len),
        _ => prefix8(shared),
    }
}

/// Order of two keys in pieces.
pub(super) fn compare_prefixed(a: PrefixedKey<'_>, b: PrefixedKey<'_>) -> Ordering {
    let split = a.shared.len().min(b.shared.len());
    let (a_head, a_mid) = a.shared.split_at(split);
    let (b_head, b_mid) = b.shared.split_at(split);
    // One of the middles is empty.
    a_head.cmp(b_head).then_with(|| {
        if a_mid.is_empty() {
            compare_tails(b_mid, b.suffix, a.suffix).reverse()
        } else {
            compare_tails(a_mid, a.suffix, b.suffix)
        }
    })
}

/// Order of `first` and `second` put together, against `other`.
#[inline]
pub(super) fn compare_tails(first: &[u8], second: &[u8], other: &[u8]) -> Ordering {
    let split = first.len().min(other.len());
    let (other_head, other_rest) = other.split_at(split);
    first.cmp(other_head).then_with(|| second.cmp(other_rest))
}
