//! [`Block`]: a data or index block in memory, checked completely when it is made.
//!
//! Made by the reader of tables, kept by the block cache, searched in `block_search.rs`, walked
//! by [`SstIter`](super::SstIter). It never reads a file.
//!
//! Payload:
//!
//! ```text
//! offset  size  name      meaning
//! 0       ..    entries   one after the other, in strictly ascending internal order
//! ..      4*r   restarts  u32 offset of each restart entry: every 16th, from the first
//! n-16    8     base_seq  u64, what the sequences of the entries count from
//! n-8     4     common    u32, length of a prefix that all keys of the block have
//! n-4     4     count     u32, number of entries, at least 1; r = count / 16 rounded up
//! ```
//!
//! Entry:
//!
//! ```text
//! size    name       meaning
//! 1       header     kind in the low 4 bits; 0x10 hidden (reserved: a compaction filter's entry,
//!                    with a form that says to which entry before it it belongs); rest 0
//! varint  shared     bytes that the user key has in common with its restart key, at least
//!                    `common`; 0 in a restart entry
//! varint  suffix     length of the rest of the user key
//! varint  value      length of the value
//! varint  seq        sequence number less base_seq
//! ..      suffix     the rest of the user key
//! ..      value
//! ```
//!
//! A key shares with its restart key, not with its neighbour, so that any entry can be rebuilt
//! from two places. Beside the payload a block holds 12 bytes an entry: its offset, and the 8
//! bytes of its key that follow the common prefix as a word, which decide nearly every comparison
//! of a search. (Words and offsets in one array were tried: no faster.)
//!
//! Invariants of a [`Block`], which everything behind [`Block::parse`] relies on:
//! 1. Each entry decodes, lies inside the entries, and has a known kind and a valid key length.
//! 2. `words[i]` is the word of entry `i`, and keys ascend strictly.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::codec::{Malformed, Reader, varint_at};
use crate::limits::{FORMAT_VALUE_BYTES_MAX, INTERNAL_KEY_BYTES_MAX, SEQNO_MAX};
use crate::types::{EntryKind, SeqNo, Slice, Trailer};

use super::block_search::{JoinedKey, compare_joined, joined_word};
use super::stored::Payload;

/// Every how manyth entry stores its key whole.
pub(super) const RESTART_ENTRIES: u32 = 16;
/// Bytes behind the restart offsets.
pub(super) const TAIL_BYTES: usize = 16;
/// Shortest entry: a header and four one-byte varints.
const ENTRY_BYTES_MIN: usize = 5;

const KIND_BITS: u8 = 0x0f;
const HIDDEN_BIT: u8 = 0x10;

/// A parsed block.
pub struct Block {
    /// The payload, and in an uncompressed block what was stored behind it.
    pub(super) bytes: Arc<[u8]>,
    pub(super) words: Box<[u64]>,
    pub(super) offsets: Box<[u32]>,
    base_seq: u64,
    /// Length of the common prefix.
    common: u32,
    /// Where the first key begins.
    first_key: u32,
    /// The common prefix, if it is not longer: it is compared in every search, and here it costs
    /// no further line of memory.
    common_copy: [u8; COMMON_COPY_BYTES],
}

/// Longest common prefix that a block keeps beside its numbers.
const COMMON_COPY_BYTES: usize = 16;

/// The numbers in front of an entry.
#[derive(Clone, Copy)]
pub(super) struct Head {
    header: u8,
    pub shared: usize,
    pub suffix_len: usize,
    pub value_len: usize,
    delta: u64,
    /// Where the suffix begins in the payload.
    pub suffix: usize,
}

impl Head {
    /// Decodes the head at `at`. The 16 bytes behind the entries make it safe to load 8 at once.
    #[inline(always)]
    pub(super) fn decode(bytes: &[u8], at: usize) -> Option<Head> {
        let word = u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?);
        if word & 0x8080_8000 != 0 {
            return Head::decode_long(bytes, at);
        }
        let byte = |i: u32| (word >> (8 * i)) as u8 as usize;
        let (delta, delta_len) = match word >> 32 & 0x8080_8080 {
            // The sequence passes the word.
            0x8080_8080 => varint_at(bytes, at + 4)?,
            more => {
                let len = (!more & 0x8080_8080).trailing_zeros() / 8 + 1;
                let kept = word >> 32 & ((1 << (8 * len)) - 1);
                if len > 1 && kept >> (8 * (len - 1)) == 0 {
                    return None;
                }
                let n = kept & 0x7f
                    | kept >> 1 & 0x3f80
                    | kept >> 2 & 0x1f_c000
                    | kept >> 3 & 0xfe0_0000;
                (n, len as usize)
            }
        };
        Some(Head {
            header: word as u8,
            shared: byte(1),
            suffix_len: byte(2),
            value_len: byte(3),
            delta,
            suffix: at + 4 + delta_len,
        })
    }

    #[cold]
    fn decode_long(bytes: &[u8], at: usize) -> Option<Head> {
        let header = *bytes.get(at)?;
        let mut at = at + 1;
        let mut varint = || {
            let (n, len) = varint_at(bytes, at)?;
            at += len;
            Some(n)
        };
        let shared = usize::try_from(varint()?).ok()?;
        let suffix_len = usize::try_from(varint()?).ok()?;
        let value_len = usize::try_from(varint()?).ok()?;
        let delta = varint()?;
        Some(Head { header, shared, suffix_len, value_len, delta, suffix: at })
    }
}

/// What a look-up found: an entry without its user key, which is the one that was asked for.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub trailer: Trailer,
    /// Where the value begins in the payload.
    pub value: usize,
    pub value_len: usize,
}

/// The key of an entry, in pieces.
#[derive(Clone, Copy)]
pub(super) struct EntryKey<'a> {
    pub key: JoinedKey<'a>,
    pub trailer: Trailer,
}

impl Block {
    /// Checks a payload completely.
    ///
    /// # Errors
    /// What is wrong, and at which byte.
    pub(super) fn parse(payload: Payload) -> Result<Block, Malformed> {
        let Payload { bytes, len } = payload;
        let payload = &bytes[..len];
        let tail = len.checked_sub(TAIL_BYTES).ok_or(bad("block has no tail", len))?;
        let mut reader = Reader::new(&payload[tail..]);
        let (base_seq, common, count) = (reader.u64()?, reader.u32()?, reader.u32()?);
        let restart_bytes = 4 * u64::from(count.div_ceil(RESTART_ENTRIES));
        let end = usize::try_from(restart_bytes).ok().and_then(|bytes| tail.checked_sub(bytes));
        let end = end.ok_or(bad("restarts pass the front of the block", tail))?;
        let count = count as usize;
        if count == 0 || count > end / ENTRY_BYTES_MIN {
            return Err(bad("entry count does not fit the block", tail));
        }
        let mut check = Check {
            payload,
            end,
            common: common as usize,
            base_seq,
            restarts: Reader::new(&payload[end..tail]),
            words: Vec::with_capacity(count),
            offsets: Vec::with_capacity(count),
        };
        check.entries(count)?;
        let (words, offsets) = (check.words.into(), check.offsets.into());
        let first_key = Head::decode(payload, 0).ok_or(bad("bad entry", 0))?.suffix;
        let mut common_copy = [0; COMMON_COPY_BYTES];
        if let Some(copy) = common_copy.get_mut(..common as usize) {
            copy.copy_from_slice(&payload[first_key..first_key + copy.len()]);
        }
        let first_key = first_key as u32;
        Ok(Block { words, offsets, base_seq, common, first_key, common_copy, bytes })
    }

    /// Number of entries; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Memory that the block takes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + 12 * self.offsets.len() + size_of::<Block>() + 32) as u64
    }

    /// The prefix that all keys have.
    #[inline]
    pub(super) fn common_prefix(&self) -> &[u8] {
        let len = self.common as usize;
        let start = self.first_key as usize;
        self.common_copy.get(..len).unwrap_or_else(|| &self.bytes[start..start + len])
    }

    /// Length of the common prefix.
    #[inline]
    pub(super) fn common_len(&self) -> usize {
        self.common as usize
    }

    #[inline]
    pub(super) fn head(&self, i: usize) -> Head {
        let head = Head::decode(&self.bytes, self.offsets[i] as usize);
        head.expect("entries were decoded when the block was parsed")
    }

    /// Where the restart key of entry `i` lies in the payload.
    #[inline]
    pub(super) fn restart_range(&self, i: usize) -> Range<usize> {
        let head = self.head(i - i % RESTART_ENTRIES as usize);
        head.suffix..head.suffix + head.suffix_len
    }

    #[inline]
    pub(super) fn trailer(&self, head: Head) -> Trailer {
        let seq = SeqNo::new(self.base_seq + head.delta);
        let kind = EntryKind::from_u8(head.header & KIND_BITS);
        Trailer::new(seq.expect("checked by parse"), kind.expect("checked by parse"))
    }

    /// The key of entry `i`.
    #[inline]
    pub(super) fn key(&self, i: usize) -> EntryKey<'_> {
        let head = self.head(i);
        let restart = if head.shared == 0 { 0..0 } else { self.restart_range(i) };
        let shared = &self.bytes[restart][..head.shared];
        let suffix = &self.bytes[head.suffix..head.suffix + head.suffix_len];
        EntryKey { key: JoinedKey { shared, suffix }, trailer: self.trailer(head) }
    }

    /// The value of entry `i`.
    pub(super) fn value(&self, i: usize) -> &[u8] {
        let head = self.head(i);
        let start = head.suffix + head.suffix_len;
        &self.bytes[start..start + head.value_len]
    }

    /// `len` bytes from `start`, as an owned string.
    #[inline]
    pub(super) fn slice(&self, start: usize, len: usize) -> Slice {
        Slice::share(&self.bytes, start, len)
    }
}

fn bad(what: &'static str, at: usize) -> Malformed {
    Malformed { what, at }
}

/// The one pass over a block's entries that makes them trusted.
struct Check<'a> {
    payload: &'a [u8],
    /// Where the entries end.
    end: usize,
    common: usize,
    base_seq: u64,
    restarts: Reader<'a>,
    words: Vec<u64>,
    offsets: Vec<u32>,
}

impl<'a> Check<'a> {
    fn entries(&mut self, count: usize) -> Result<(), Malformed> {
        let mut at = 0;
        let mut restart: &[u8] = &[];
        let mut common_prefix: &[u8] = &[];
        let mut last: Option<(JoinedKey<'a>, Trailer)> = None;
        for i in 0..count {
            let head = Head::decode(self.payload, at).ok_or(bad("bad entry", at))?;
            let trailer = self.trailer(head, at)?;
            let (suffix, next) = self.body(head, at)?;
            if (i as u32).is_multiple_of(RESTART_ENTRIES) {
                if self.restarts.u32()? as usize != at || head.shared != 0 {
                    return Err(bad("restart is not where it is said to be", at));
                }
                restart = suffix;
                if i == 0 {
                    common_prefix = suffix.get(..self.common).unwrap_or(&[]);
                }
                if common_prefix.len() != self.common || !suffix.starts_with(common_prefix) {
                    return Err(bad("key lacks the common prefix", at));
                }
            } else if head.shared > restart.len() || head.shared < self.common {
                return Err(bad("shared length does not fit", at));
            }
            let key = JoinedKey { shared: &restart[..head.shared], suffix };
            let word = joined_word(key, self.common);
            if let (Some(&before), Some((last_key, last_trailer))) = (self.words.last(), last) {
                // Behind a prefix that all have, words ascend with the keys; equal ones decide
                // nothing.
                let order = before.cmp(&word).then_with(|| compare_joined(last_key, key));
                if order.then(trailer.cmp(&last_trailer)) != Ordering::Less {
                    return Err(bad("keys do not ascend", at));
                }
            }
            self.words.push(word);
            self.offsets.push(at as u32);
            last = Some((key, trailer));
            at = next;
        }
        if at == self.end { Ok(()) } else { Err(bad("bytes left over", at)) }
    }

    fn trailer(&self, head: Head, at: usize) -> Result<Trailer, Malformed> {
        if head.header & HIDDEN_BIT != 0 {
            return Err(bad("hidden entry in a table without hidden entries", at));
        }
        if head.header & !KIND_BITS != 0 {
            return Err(bad("unknown header bits", at));
        }
        let kind = EntryKind::from_u8(head.header).ok_or(bad("unknown entry kind", at))?;
        let seq = self.base_seq.checked_add(head.delta).filter(|seq| *seq <= SEQNO_MAX);
        let seq = seq.and_then(SeqNo::new).ok_or(bad("sequence number too large", at))?;
        Ok(Trailer::new(seq, kind))
    }

    /// The suffix, and where the entry ends.
    fn body(&self, head: Head, at: usize) -> Result<(&'a [u8], usize), Malformed> {
        let key_len = head.shared.checked_add(head.suffix_len);
        if !key_len.is_some_and(|len| (1..=INTERNAL_KEY_BYTES_MAX).contains(&len)) {
            return Err(bad("key length out of range", at));
        }
        if head.value_len as u64 > FORMAT_VALUE_BYTES_MAX {
            return Err(bad("value length out of range", at));
        }
        let value = head.suffix + head.suffix_len;
        let next = value + head.value_len;
        if next > self.end {
            return Err(bad("entry passes the end", at));
        }
        Ok((&self.payload[head.suffix..value], next))
    }
}
