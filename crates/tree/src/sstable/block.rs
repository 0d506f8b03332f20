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
//! from two places. Beside the payload, a block holds 12 bytes an entry (`indexed_block.rs`): its
//! offset, and the 8 bytes of its key that follow the common prefix, as a word. Words decide nearly
//! every comparison of a search. Hidden entries have no word; a block that has some holds the 4-byte
//! offset of each in a list of its own.
//!
//! Invariants of a [`Block`], which everything after [`Block::parse`] relies on:
//! 1. Each entry decodes, lies inside the entries, and has a known kind and a valid key length.
//! 2. Word `i` is that of entry `i`, and keys ascend strictly.
//! 3. Each hidden entry decodes, lies inside the entries, has an owner or a key of its own, and
//!    sorts between its neighbours.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::codec::{Malformed, Reader};
use crate::memory::{BlockBuffer, SlotPool};
use crate::types::{InternalKey, Slice};

use super::block_check::BlockPass;
use super::block_entry::{Head, bad};
use super::block_tail::BlockTail;
use super::hidden::HiddenEntries;
use super::indexed_block::{IndexedBlock, Numbers};
use super::stored::StoredPayload;

/// The counts of references of a block, and what owns its memory.
const COUNTS_BYTES: usize = 16 + BlockBuffer::OWN_BYTES;
/// Shortest entry: a header and four one-byte varints.
const ENTRY_BYTES_MIN: usize = 5;

/// A parsed block.
pub struct Block {
    /// The payload and the numbers that a search uses.
    data: IndexedBlock,
    pub(super) hidden: HiddenEntries,
    /// A hook has seen that no entry is missing: see [`TableBlock::is_whole`]. Relaxed: two who look
    /// at once see the same.
    ///
    /// [`TableBlock::is_whole`]: super::TableBlock::is_whole
    pub(super) is_whole: AtomicBool,
}

impl Deref for Block {
    type Target = IndexedBlock;

    #[inline]
    fn deref(&self) -> &IndexedBlock {
        &self.data
    }
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
            Some(at) => Head::known(payload, *at as usize).suffix,
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
        let data = IndexedBlock::new(bytes.clone(), &numbers);
        Ok(Block { data, hidden, is_whole: AtomicBool::new(false) })
    }

    /// The payload and the numbers that a search uses.
    #[inline]
    pub fn data(&self) -> &IndexedBlock {
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
