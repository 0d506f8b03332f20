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
//! n-4     4     count     u32, number of visible entries; r = count / 16 rounded up
//! ```
//!
//! In a table with hidden entries (`hidden.rs`) these lie among the others, in their order, but
//! restarts, common prefix and count know nothing of them. Only in such a table may count be 0.
//!
//! Entry:
//!
//! ```text
//! size    name       meaning
//! 1       header     kind in the low 4 bits; 0x10 hidden: not this form but those in `hidden.rs`;
//!                    rest 0
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
//! of a search. Hidden entries have neither: a block that has some holds 4 bytes for each, apart.
//!
//! Invariants of a [`Block`], which everything behind [`Block::parse`] relies on:
//! 1. Each entry decodes, lies inside the entries, and has a known kind and a valid key length.
//! 2. `words[i]` is the word of entry `i`, and keys ascend strictly.
//! 3. Each hidden entry decodes, lies inside the entries, has an owner or a key of its own, and
//!    sorts between its neighbours.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::codec::{Malformed, Reader, varint_at};
use crate::limits::{FORMAT_VALUE_BYTES_MAX, INTERNAL_KEY_BYTES_MAX};
use crate::types::{EntryKind, KeyRef, SeqNo, Slice, Trailer, prefix8};

use super::block_search::{JoinedKey, compare_joined, joined_word};
use super::hidden::{HIDDEN_BIT, HiddenHead, Owner, PiecedKey, hidden_trailer};
use super::stored::Payload;

/// Every how manyth entry stores its key whole.
pub(super) const RESTART_ENTRIES: u32 = 16;
/// Bytes behind the restart offsets.
pub(super) const TAIL_BYTES: usize = 16;
/// Shortest entry: a header and four one-byte varints.
const ENTRY_BYTES_MIN: usize = 5;

const KIND_BITS: u8 = 0x0f;

/// A parsed block.
pub struct Block {
    /// The payload, and in an uncompressed block what was stored behind it.
    pub(super) bytes: Arc<[u8]>,
    pub(super) words: Box<[u64]>,
    pub(super) offsets: Box<[u32]>,
    /// Offsets of the hidden entries, where there are any.
    hidden: Option<Box<[u32]>>,
    base_seq: u64,
    /// Length of the common prefix.
    pub(super) common: usize,
    /// Where the first visible key begins; 0 without one.
    first_key: usize,
}

/// The numbers in front of an entry.
#[derive(Clone, Copy)]
pub(super) struct Head {
    header: u8,
    pub shared: usize,
    pub suffix_len: usize,
    pub value_len: usize,
    /// Sequence number less the base.
    pub delta: u64,
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

/// An entry of a block.
#[derive(Clone, Copy)]
pub(super) struct EntryRef<'a> {
    pub key: JoinedKey<'a>,
    pub trailer: Trailer,
    /// Where the value begins in the payload.
    pub value: usize,
    pub value_len: usize,
}

impl Block {
    /// Checks a payload completely. Hidden entries are accepted with the table's `hidden_suffix`.
    ///
    /// # Errors
    /// What is wrong, and at which byte.
    pub(super) fn parse(
        payload: Payload,
        hidden_suffix: Option<&[u8]>,
    ) -> Result<Block, Malformed> {
        let Payload { bytes, len } = payload;
        let payload = &bytes[..len];
        let tail = len.checked_sub(TAIL_BYTES).ok_or(bad("block has no tail", len))?;
        let mut reader = Reader::new(&payload[tail..]);
        let (base_seq, common, count) = (reader.u64()?, reader.u32()?, reader.u32()?);
        let restart_bytes = 4 * u64::from(count.div_ceil(RESTART_ENTRIES));
        let end = usize::try_from(restart_bytes).ok().and_then(|bytes| tail.checked_sub(bytes));
        let end = end.ok_or(bad("restarts pass the front of the block", tail))?;
        let count = count as usize;
        let is_hollow = count == 0 && (hidden_suffix.is_none() || end == 0 || common != 0);
        if is_hollow || count > end / ENTRY_BYTES_MIN {
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
            hidden_suffix,
            hidden: Vec::new(),
            last_hidden: None,
        };
        check.entries(count)?;
        let hidden = (!check.hidden.is_empty()).then(|| check.hidden.into());
        let (words, offsets): (_, Box<[u32]>) = (check.words.into(), check.offsets.into());
        let first_key = match offsets.first() {
            Some(at) => Head::decode(payload, *at as usize).ok_or(bad("bad entry", 0))?.suffix,
            None => 0,
        };
        Ok(Block { words, offsets, hidden, base_seq, common: common as usize, first_key, bytes })
    }

    /// Number of visible entries; 0 only in a block of hidden ones alone.
    #[inline]
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether all entries are hidden.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Memory that the block takes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let offsets = 12 * self.offsets.len() + 4 * self.hidden().len();
        (self.bytes.len() + offsets + size_of::<Block>() + 32) as u64
    }

    /// Offsets of the hidden entries, ascending.
    #[inline]
    pub(super) fn hidden(&self) -> &[u32] {
        self.hidden.as_deref().unwrap_or_default()
    }

    /// The hidden entry at an offset of [`Block::hidden`].
    #[inline]
    pub(super) fn hidden_head(&self, offset: u32) -> HiddenHead {
        let head = HiddenHead::decode(&self.bytes, offset as usize);
        head.expect("entries were decoded when the block was parsed")
    }

    /// Puts the key of hidden entry `h` into `out`; returns its trailer.
    pub(super) fn hidden_key(&self, h: usize, suffix: &[u8], out: &mut Vec<u8>) -> Trailer {
        out.clear();
        let offset = self.hidden()[h];
        match self.hidden_head(offset).owner {
            Owner::Plain(start, len, delta) => {
                out.extend_from_slice(&self.bytes[start..start + len]);
                hidden_trailer(self.seq(delta))
            }
            Owner::Near(back) => {
                let before = self.offsets.partition_point(|visible| *visible < offset);
                let owner = self.entry(before - back);
                out.extend_from_slice(owner.key.shared);
                out.extend_from_slice(owner.key.suffix);
                out.extend_from_slice(suffix);
                hidden_trailer(owner.trailer.seq())
            }
        }
    }

    /// Number of entries before the first that is not before `target`: visible and hidden ones.
    pub(super) fn lower_bound_all(&self, target: KeyRef<'_>, suffix: &[u8]) -> (usize, usize) {
        let (mut low, mut high) = (0, self.hidden().len());
        let mut key = Vec::new();
        while low < high {
            let middle = low + (high - low) / 2;
            let trailer = self.hidden_key(middle, suffix, &mut key);
            if KeyRef::new(&key, trailer) < target {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (self.lower_bound(target), low)
    }

    /// How many visible and how many hidden entries lie before entry `i` of all.
    pub(super) fn counts_before(&self, i: usize) -> (usize, usize) {
        let (mut visible, mut hidden) = (0, 0);
        while visible + hidden < i {
            let next = self.hidden().get(hidden);
            if next.is_some_and(|at| self.offsets.get(visible).is_none_or(|other| other > at)) {
                hidden += 1;
            } else {
                visible += 1;
            }
        }
        (visible, hidden)
    }

    /// The sequence number `delta` above the base.
    #[inline]
    pub(super) fn seq(&self, delta: u64) -> SeqNo {
        SeqNo::new(self.base_seq + delta).expect("checked by parse")
    }

    /// Whether the last entry is a hidden one with this user key: then the next block may hold
    /// visible entries of it.
    pub(super) fn ends_hidden_with(&self, user_key: &[u8], hidden_suffix: &[u8]) -> bool {
        let Some(last) = self.hidden().last() else { return false };
        if self.offsets.last().is_some_and(|visible| visible > last) {
            return false;
        }
        match self.hidden_head(*last).owner {
            Owner::Plain(start, len, _) => self.bytes[start..start + len] == *user_key,
            Owner::Near(back) => user_key
                .strip_suffix(hidden_suffix)
                .is_some_and(|owner| self.entry(self.len() - back).key.is(owner)),
        }
    }

    /// The prefix that all keys have.
    #[inline]
    pub(super) fn common_prefix(&self) -> &[u8] {
        &self.bytes[self.first_key..self.first_key + self.common]
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
        let kind = EntryKind::from_u8(head.header & KIND_BITS);
        Trailer::new(self.seq(head.delta), kind.expect("checked by parse"))
    }

    /// Entry `i`, its key in two pieces.
    #[inline]
    pub(super) fn entry(&self, i: usize) -> EntryRef<'_> {
        let head = self.head(i);
        let restart = if head.shared == 0 { 0..0 } else { self.restart_range(i) };
        let shared = &self.bytes[restart][..head.shared];
        let value = head.suffix + head.suffix_len;
        EntryRef {
            key: JoinedKey { shared, suffix: &self.bytes[head.suffix..value] },
            trailer: self.trailer(head),
            value,
            value_len: head.value_len,
        }
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
    /// The table's, if it may have hidden entries.
    hidden_suffix: Option<&'a [u8]>,
    hidden: Vec<u32>,
    /// The hidden entry behind the last visible one, if there is one.
    last_hidden: Option<PiecedKey<'a>>,
}

impl<'a> Check<'a> {
    fn entries(&mut self, count: usize) -> Result<(), Malformed> {
        let mut at = 0;
        let mut restart: &[u8] = &[];
        let mut common_prefix: &[u8] = &[];
        let mut last: Option<(JoinedKey<'a>, Trailer)> = None;
        for i in 0..count {
            // There are bytes behind the entries, so that this one exists.
            if self.payload[at] & HIDDEN_BIT != 0 {
                at = self.hidden_run(at)?;
            }
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
            if let Some(hidden) = self.last_hidden.take() {
                let here = self.pieced(key, trailer, word);
                if hidden.order(&here) != Ordering::Less {
                    return Err(bad("keys do not ascend", at));
                }
            }
            self.words.push(word);
            self.offsets.push(at as u32);
            last = Some((key, trailer));
            at = next;
        }
        at = self.hidden_run(at)?;
        if at == self.end { Ok(()) } else { Err(bad("bytes left over", at)) }
    }

    fn trailer(&self, head: Head, at: usize) -> Result<Trailer, Malformed> {
        if head.header & !KIND_BITS != 0 {
            return Err(bad("unknown header bits", at));
        }
        let kind = EntryKind::from_u8(head.header).ok_or(bad("unknown entry kind", at))?;
        Ok(Trailer::new(self.seq(head.delta, at)?, kind))
    }

    fn seq(&self, delta: u64, at: usize) -> Result<SeqNo, Malformed> {
        let seq = self.base_seq.checked_add(delta).and_then(SeqNo::new);
        seq.ok_or(bad("sequence number too large", at))
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

/// The hidden entries of a block.
impl<'a> Check<'a> {
    /// Takes in the hidden entries from `at` on; returns where the next visible one begins.
    fn hidden_run(&mut self, mut at: usize) -> Result<usize, Malformed> {
        while at < self.end && self.payload[at] & HIDDEN_BIT != 0 {
            at = self.hidden_entry(at)?;
        }
        Ok(at)
    }

    /// Takes in the hidden entry at `at`; returns where it ends.
    fn hidden_entry(&mut self, at: usize) -> Result<usize, Malformed> {
        let Some(suffix) = self.hidden_suffix else {
            return Err(bad("hidden entry in a table without hidden entries", at));
        };
        let head = HiddenHead::decode(self.payload, at).ok_or(bad("bad hidden entry", at))?;
        if head.payload.end > self.end {
            return Err(bad("entry passes the end", at));
        }
        if head.payload_len() as u64 > FORMAT_VALUE_BYTES_MAX {
            return Err(bad("value length out of range", at));
        }
        let is_behind_owner = head.owner == Owner::Near(1) && self.last_hidden.is_none();
        let here = match head.owner {
            Owner::Near(back) => self.near(back, suffix, at)?,
            Owner::Plain(start, len, delta) => {
                let key = &self.payload[start..start + len];
                if len <= suffix.len() || !key.ends_with(suffix) {
                    return Err(bad("hidden key lacks the suffix", at));
                }
                let trailer = hidden_trailer(self.seq(delta, at)?);
                PiecedKey { pieces: [key, &[], &[]], trailer, word: None }
            }
        };
        let len: usize = here.pieces.iter().map(|piece| piece.len()).sum();
        if len > INTERNAL_KEY_BYTES_MAX {
            return Err(bad("key length out of range", at));
        }
        // Right behind its owner it is in order.
        if !is_behind_owner {
            let before =
                self.last_hidden.or_else(|| self.visible(self.offsets.len().checked_sub(1)?));
            if before.is_some_and(|before| before.order(&here) != Ordering::Less) {
                return Err(bad("keys do not ascend", at));
            }
        }
        self.last_hidden = Some(here);
        self.hidden.push(at as u32);
        Ok(head.payload.end)
    }

    /// The key of a hidden entry whose owner is `back` visible entries before.
    fn near(&self, back: usize, suffix: &'a [u8], at: usize) -> Result<PiecedKey<'a>, Malformed> {
        let owner = self.offsets.len().checked_sub(back).and_then(|i| self.visible(i));
        let mut key = owner.ok_or(bad("hidden entry without an owner", at))?;
        let rest = key.pieces[0].len() + key.pieces[1].len() - self.common;
        if rest < 8 {
            let tail = prefix8(suffix) >> (8 * rest);
            key.word = key.word.map(|word| word | tail);
        }
        key.pieces[2] = suffix;
        key.trailer = hidden_trailer(key.trailer.seq());
        Ok(key)
    }

    /// The visible entry `i`, which was taken in already.
    fn visible(&self, i: usize) -> Option<PiecedKey<'a>> {
        let head = Head::decode(self.payload, *self.offsets.get(i)? as usize)?;
        let group = i - i % RESTART_ENTRIES as usize;
        let restart = Head::decode(self.payload, self.offsets[group] as usize)?.suffix;
        let shared = &self.payload[restart..restart + head.shared];
        let suffix = &self.payload[head.suffix..head.suffix + head.suffix_len];
        let trailer = self.trailer(head, 0).ok()?;
        Some(self.pieced(JoinedKey { shared, suffix }, trailer, self.words[i]))
    }

    fn pieced(&self, key: JoinedKey<'a>, trailer: Trailer, word: u64) -> PiecedKey<'a> {
        PiecedKey { pieces: [key.shared, key.suffix, &[]], trailer, word: Some(word) }
    }
}
