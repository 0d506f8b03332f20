//! [`Block`]: a data or index block in memory, checked completely when it is made.
//!
//! Made by the reader of tables, kept by the block cache, searched in `block_search.rs`, walked by
//! [`SstIter`](super::SstIter). It never reads a file.
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
//! A key shares bytes with its restart key, not with its neighbour, so any entry can be rebuilt
//! from two places. Beside the payload, a block holds 12 bytes an entry (`block_data.rs`): its
//! offset, and the 8 bytes of its key that follow the common prefix, as a word. Words decide nearly
//! every comparison of a search. Hidden entries have no word; a block that has some holds the 4-byte
//! offset of each in a list of its own.
//!
//! Invariants of a [`Block`], which everything behind [`Block::parse`] relies on:
//! 1. Each entry decodes, lies inside the entries, and has a known kind and a valid key length.
//! 2. Word `i` is that of entry `i`, and keys ascend strictly.
//! 3. Each hidden entry decodes, lies inside the entries, has an owner or a key of its own, and
//!    sorts between its neighbours.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::codec::{Malformed, Reader, varint_at};
use crate::memory::{BlockMemory, SlotPool};
use crate::types::{InternalKey, KeyRef, SeqNo, Slice, Trailer};

use super::block_check::BlockPass;
use super::block_data::{BlockData, Numbers};
use super::block_search::JoinedKey;
use super::hidden::{HiddenHead, Owner, hidden_trailer};
use super::stored::StoredPayload;

/// Every how manyth entry stores its key whole.
pub(super) const RESTART_ENTRIES: u32 = 16;
/// Bytes behind the restart offsets.
pub(super) const TAIL_BYTES: usize = 16;
/// The counts of references of a block, and what owns its memory.
const COUNTS_BYTES: usize = 16 + BlockMemory::OWN_BYTES;
/// Shortest entry: a header and four one-byte varints.
const ENTRY_BYTES_MIN: usize = 5;

pub(super) const KIND_BITS: u8 = 0x0f;
/// Why the head of an entry decodes.
const DECODED: &str = "entries were decoded when the block was parsed";

/// A parsed block.
pub struct Block {
    /// The payload and what a search goes by.
    data: BlockData,
    /// Offsets of the hidden entries, where there are any.
    hidden: Option<Box<[u32]>>,
    /// A hook has seen that no entry is missing: see [`TableBlock::is_whole`]. Relaxed: two who look
    /// at once see the same.
    ///
    /// [`TableBlock::is_whole`]: super::TableBlock::is_whole
    pub(super) is_whole: AtomicBool,
}

impl Deref for Block {
    type Target = BlockData;

    #[inline]
    fn deref(&self) -> &BlockData {
        &self.data
    }
}

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
    /// Decodes the head at `at`. The 16 bytes behind the entries make it safe to load 8 at once.
    #[inline(always)]
    pub(super) fn decode(bytes: &[u8], at: usize) -> Option<Head> {
        let word = u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?);
        // The header and three lengths of one byte: nearly every entry. One load then decodes them
        // all.
        if word & 0x8080_8000 != 0 {
            return Head::decode_long(bytes, at);
        }
        let (delta, delta_len) = match word >> 32 & 0x8080_8080 {
            // The sequence passes the word.
            0x8080_8080 => varint_at(bytes, at + 4)?,
            more => {
                let len = (!more & 0x8080_8080).trailing_zeros() / 8 + 1;
                let kept = word >> 32 & ((1 << (8 * len)) - 1);
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
        let more = word >> 32 & 0x8080_8080;
        if word & 0x8080_8000 != 0 || more == 0x8080_8080 {
            return Head::known_long(bytes, at);
        }
        let delta_len = (!more & 0x8080_8080).trailing_zeros() / 8 + 1;
        let kept = word >> 32 & ((1 << (8 * delta_len)) - 1);
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

/// Joins the low seven bits of each of four bytes.
#[inline(always)]
fn joined_sevens(bytes: u64) -> u64 {
    bytes & 0x7f | bytes >> 1 & 0x3f80 | bytes >> 2 & 0x1f_c000 | bytes >> 3 & 0xfe0_0000
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
    pub key: JoinedKey<'a>,
    pub trailer: Trailer,
}

impl Block {
    /// Checks a payload completely. Hidden entries are accepted with the table's `hidden_suffix`.
    ///
    /// # Errors
    /// The defect, and the byte at which it is.
    pub(super) fn parse(
        payload: StoredPayload,
        hidden_suffix: Option<&[u8]>,
    ) -> Result<Block, Malformed> {
        let StoredPayload { bytes, len } = payload;
        let payload = &bytes[..len];
        let tail = len.checked_sub(TAIL_BYTES).ok_or(bad("block is shorter than its tail", len))?;
        let mut reader = Reader::new(&payload[tail..]);
        let base_seq = reader.u64()?;
        let common = reader.u32()?;
        let count = reader.u32()?;
        let restart_bytes = 4 * u64::from(count.div_ceil(RESTART_ENTRIES));
        let end = usize::try_from(restart_bytes).ok().and_then(|bytes| tail.checked_sub(bytes));
        let end = end.ok_or(bad("restart offsets exceed the block", tail))?;
        let count = count as usize;
        // Without visible entries a block has hidden ones alone, and no key to take a common prefix
        // from.
        let is_hollow = count == 0 && (hidden_suffix.is_none() || end == 0 || common != 0);
        // Checked before memory is reserved for `count` entries, because the number comes from the
        // file.
        if is_hollow || count > end / ENTRY_BYTES_MIN {
            return Err(bad("entry count does not fit the block", tail));
        }
        // One pass over all entries, when the block enters memory. Checks at each access would be
        // paid by every search, and a forgotten one would be a panic on damaged bytes.
        let mut check = BlockPass {
            payload,
            end,
            common: common as usize,
            base_seq,
            restarts: Reader::new(&payload[end..tail]),
            words: Vec::with_capacity(count),
            offsets: Vec::with_capacity(count),
            hidden_suffix,
            // In a sealed table nearly every visible entry has a hidden one.
            hidden: Vec::with_capacity(if hidden_suffix.is_some() { count } else { 0 }),
            last: None,
            last_hidden: None,
        };
        check.entries(count)?;
        let hidden: Option<Box<[u32]>> = (!check.hidden.is_empty()).then(|| check.hidden.into());
        let first_key = match check.offsets.first() {
            Some(at) => Head::decode(payload, *at as usize).ok_or(bad("bad entry", 0))?.suffix,
            None => 0,
        };
        let numbers = Numbers {
            base_seq,
            has_hidden: hidden.is_some(),
            first_key,
            common: common as usize,
            words: &check.words,
            offsets: &check.offsets,
        };
        let data = BlockData::new(bytes.clone(), &numbers);
        Ok(Block { data, hidden, is_whole: AtomicBool::new(false) })
    }

    /// The payload and what a search goes by.
    #[inline]
    pub fn data(&self) -> &BlockData {
        &self.data
    }

    /// A copy in a slot of `pool`, to be kept. `None` if there is no slot for it with at most
    /// `free_bytes_max` of free memory, and for a block whose values are so long that readers share them
    /// instead of a copy.
    pub fn moved(&self, pool: &Arc<SlotPool>, free_bytes_max: u64) -> Option<Block> {
        let entries = self.len() + self.hidden().len();
        if self.bytes().len() > Slice::COPY_BYTES_MAX * entries {
            return None;
        }
        let data = self.data.moved(pool, free_bytes_max)?;
        // The flag carries no other data.
        let is_whole = AtomicBool::new(self.is_whole.load(Ordering::Relaxed));
        Some(Block { data, hidden: self.hidden.clone(), is_whole })
    }

    /// Turns bits of the word of entry `i`.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn damage_word(&mut self, i: usize, bits: u64) {
        self.data.damage_word(i, bits);
    }

    /// Number of visible entries; 0 only in a block of hidden ones alone.
    #[inline]
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Returns `true` if all entries are hidden.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that the block takes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let own = size_of::<Block>() + COUNTS_BYTES + 4 * self.hidden().len();
        (self.data.memory_bytes() + own) as u64
    }

    /// Offsets of the hidden entries, ascending.
    #[inline]
    pub(super) fn hidden(&self) -> &[u32] {
        self.hidden.as_deref().unwrap_or_default()
    }

    /// The hidden entry at an offset of [`Block::hidden`].
    #[inline]
    pub(super) fn hidden_head(&self, offset: u32) -> HiddenHead {
        let head = HiddenHead::decode(self.bytes(), offset as usize);
        head.expect("entries were decoded when the block was parsed")
    }

    /// Puts the key of hidden entry `h` into `out`; returns its trailer.
    pub(super) fn hidden_key(&self, h: usize, suffix: &[u8], out: &mut Vec<u8>) -> Trailer {
        out.clear();
        let offset = self.hidden()[h];
        match self.hidden_head(offset).owner {
            Owner::Plain(start, len, delta) => {
                out.extend_from_slice(&self.bytes()[start..start + len]);
                hidden_trailer(self.seq(delta))
            }
            Owner::Near(back) => {
                let before = self.visible_before(offset);
                let owner = self.key(before - back);
                out.extend_from_slice(owner.key.shared);
                out.extend_from_slice(owner.key.suffix);
                out.extend_from_slice(suffix);
                hidden_trailer(owner.trailer.seq())
            }
        }
    }

    /// Number of entries before the first that is not before `target`: visible and hidden ones.
    pub(super) fn lower_bound_all(&self, target: KeyRef<'_>, suffix: &[u8]) -> (usize, usize) {
        (self.lower_bound(target), self.lower_bound_hidden(target, suffix))
    }

    /// Number of hidden entries before the first that is not before `target`.
    fn lower_bound_hidden(&self, target: KeyRef<'_>, suffix: &[u8]) -> usize {
        let mut low = 0;
        let mut high = self.hidden().len();
        let mut key = Vec::new();
        while low < high {
            let middle = low + (high - low) / 2;
            // Hidden entries have no words, so each step rebuilds a key.
            let trailer = self.hidden_key(middle, suffix, &mut key);
            if KeyRef::new(&key, trailer) < target {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The hidden entry that belongs to visible entry `i`, which ends at `end`, if it is the very
    /// next one: where no other version and no other key sorts between the two. Looks at little
    /// but the bytes behind the entry, which a search has just been near.
    #[inline]
    pub(super) fn next_hidden(&self, i: usize, end: usize) -> Option<HiddenHead> {
        // Behind the last entry lie the restarts; behind another one a header, hidden or not.
        let is_end =
            i + 1 == self.len() && self.hidden().last().is_none_or(|last| (*last as usize) < end);
        let head = if is_end { None } else { HiddenHead::decode(self.bytes(), end) };
        head.filter(|head| head.owner == Owner::Near(1))
    }

    /// The hidden entry with this whole key and sequence number.
    pub(super) fn find_hidden(&self, key: &[u8], seq: SeqNo, suffix: &[u8]) -> Option<HiddenHead> {
        let target = KeyRef::new(key, hidden_trailer(seq));
        let at = self.lower_bound_hidden(target, suffix);
        let offset = *self.hidden().get(at)?;
        let mut found = Vec::new();
        let trailer = self.hidden_key(at, suffix, &mut found);
        (KeyRef::new(&found, trailer) == target).then(|| self.hidden_head(offset))
    }

    /// Returns the number of entries before visible entry `i`, hidden ones counted.
    pub(super) fn entries_before(&self, i: usize) -> usize {
        let offset = self.offset(i);
        i + self.hidden().partition_point(|hidden| *hidden < offset)
    }

    /// The first and the last key of all entries.
    pub(super) fn edges(&self, suffix: &[u8]) -> (InternalKey, InternalKey) {
        let hidden = self.hidden();
        let first = match (self.offsets().next(), hidden.first()) {
            (Some(a), b) if b.is_none_or(|b| a < *b) => self.whole_key(0),
            _ => self.whole_hidden_key(0, suffix),
        };
        let last = match (self.offsets().next_back(), hidden.last()) {
            (Some(a), b) if b.is_none_or(|b| a > *b) => self.whole_key(self.len() - 1),
            _ => self.whole_hidden_key(hidden.len() - 1, suffix),
        };
        (first, last)
    }

    /// The key of visible entry `i`, in one piece.
    pub(super) fn whole_key(&self, i: usize) -> InternalKey {
        let entry = self.key(i);
        let user = [entry.key.shared, entry.key.suffix].concat();
        InternalKey { user: user.into(), trailer: entry.trailer }
    }

    fn whole_hidden_key(&self, h: usize, suffix: &[u8]) -> InternalKey {
        let mut user = Vec::new();
        let trailer = self.hidden_key(h, suffix, &mut user);
        InternalKey { user: user.into(), trailer }
    }

    /// Returns the numbers of visible and of hidden entries before entry `i` of all.
    pub(super) fn counts_before(&self, i: usize) -> (usize, usize) {
        let mut visible = 0;
        let mut hidden = 0;
        while visible + hidden < i {
            let next = self.hidden().get(hidden);
            if next.is_some_and(|at| visible == self.len() || self.offset(visible) > *at) {
                hidden += 1;
            } else {
                visible += 1;
            }
        }
        (visible, hidden)
    }

    /// Returns `true` if the last entry is a hidden one with this user key: then the next block may
    /// hold visible entries of it.
    pub(super) fn ends_hidden_with(&self, user_key: &[u8], hidden_suffix: &[u8]) -> bool {
        let Some(last) = self.hidden().last() else { return false };
        if self.offsets().next_back().is_some_and(|visible| visible > *last) {
            return false;
        }
        match self.hidden_head(*last).owner {
            Owner::Plain(start, len, _) => self.bytes()[start..start + len] == *user_key,
            Owner::Near(back) => user_key
                .strip_suffix(hidden_suffix)
                .is_some_and(|owner| self.key(self.len() - back).key.is(owner)),
        }
    }
}

pub(super) fn bad(what: &'static str, at: usize) -> Malformed {
    Malformed { what, at }
}
