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
//! ..      w*c   column    payloads of hidden entries (`hidden.rs`), w bytes for each visible entry
//! ..      4*r   restarts  u32 offset of each restart entry: every 16th, from the first
//! n-16    8     base_seq  u64, what the sequences of the entries count from
//! n-8     3     common    length of a prefix that all keys of the block have
//! n-5     1     width     w: bytes of each payload in the column, 0 without a column
//! n-4     4     count     u32, number c of visible entries; r = c / 16 rounded up
//! ```
//!
//! In a table with hidden entries these are in the column, or lie among the others, in their order. Restarts,
//! common prefix and count know nothing of them. Only in such a table may count be 0.
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
use crate::types::{InternalKey, Slice, Trailer};

use super::block_check::BlockPass;
use super::block_data::{BlockData, Numbers};
use super::block_hidden::HiddenEntries;
use super::block_search::JoinedKey;
use super::block_tail::BlockTail;
use super::stored::StoredPayload;

/// Every how manyth entry stores its key whole.
pub(super) const RESTART_ENTRIES: u32 = 16;
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
    pub(super) hidden: HiddenEntries,
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
        let tail = BlockTail::of(payload).ok_or(bad("block is shorter than its tail", len))?;
        let BlockTail { base_seq, common, .. } = tail;
        let restarts =
            tail.column_end().ok_or(bad("restart offsets exceed the block", tail.start))?;
        let end = tail.entries_end().ok_or(bad("hidden entries exceed the block", tail.start))?;
        let column = tail.column();
        if column.is_some() && hidden_suffix.is_none() {
            return Err(bad("hidden entry in a table without hidden entries", tail.start));
        }
        let count = tail.count as usize;
        // Without visible entries a block has hidden ones alone, and no key to take a common prefix
        // from.
        let is_hollow = count == 0 && (hidden_suffix.is_none() || end == 0 || common != 0);
        // Checked before memory is reserved for `count` entries, because the number comes from the
        // file.
        if is_hollow || count > end / ENTRY_BYTES_MIN {
            return Err(bad("entry count does not fit the block", tail.start));
        }
        // One pass over all entries, when the block enters memory. Checks at each access would be
        // paid by every search, and a forgotten one would be a panic on damaged bytes.
        let mut check = BlockPass {
            payload,
            end,
            common: common as usize,
            base_seq,
            restarts: Reader::new(&payload[restarts..tail.start]),
            words: Vec::with_capacity(count),
            offsets: Vec::with_capacity(count),
            hidden_suffix,
            has_column: column.is_some(),
            hidden: Vec::new(),
            last: None,
            last_hidden: None,
        };
        check.entries(count)?;
        let hidden = match column {
            Some(column) => HiddenEntries::Column(column),
            None if check.hidden.is_empty() => HiddenEntries::None,
            None => HiddenEntries::Mixed(check.hidden.into()),
        };
        let first_key = match check.offsets.first() {
            Some(at) => Head::decode(payload, *at as usize).ok_or(bad("bad entry", 0))?.suffix,
            None => 0,
        };
        let numbers = Numbers {
            base_seq,
            has_hidden: !matches!(hidden, HiddenEntries::None),
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
        let entries = self.len() + self.hidden_len();
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
        let listed = match &self.hidden {
            HiddenEntries::Mixed(offsets) => size_of_val(&**offsets),
            HiddenEntries::None | HiddenEntries::Column(_) => 0,
        };
        let own = size_of::<Block>() + COUNTS_BYTES + listed;
        (self.data.memory_bytes() + own) as u64
    }

    /// The key of visible entry `i`, in one piece.
    pub(super) fn whole_key(&self, i: usize) -> InternalKey {
        let entry = self.key(i);
        let user = [entry.key.shared, entry.key.suffix].concat();
        InternalKey { user: user.into(), trailer: entry.trailer }
    }
}

pub(super) fn bad(what: &'static str, at: usize) -> Malformed {
    Malformed { what, at }
}
