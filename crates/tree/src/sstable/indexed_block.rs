//! [`IndexedBlock`]: the payload of a block, and the numbers that a search of it uses.
//!
//! Made by [`Block::parse`](super::Block::parse), which checks the payload. The block cache keeps it
//! next to the block, so that a point read searches a block without touching anything else of it.
//!
//! All numbers lie in one piece of memory, the search index, of words of 64 bits. A point read of a block
//! that no processor has cached then waits for the search index once and for the entry once. With words,
//! offsets and numbers in arrays of their own it waited for each of them in turn.
//!
//! ```text
//! word  count  name       meaning
//! 0     1      base       what sequences count from; the highest bit: there are hidden entries
//! 1     1      common     length of the common prefix; in the high 32 bits: offset of the first
//!                         visible key, 0 without one
//! 2     2      prefix     the first 16 bytes of the common prefix as two words, as far as it reaches
//! 4     n      words      of each visible entry the 8 bytes of its key after the common prefix
//! 4+n   n/2    offsets    of the visible entries, two in a word, the first in the low half
//! ```
//!
//! Invariant: words and bytes are as [`Block::parse`](super::Block::parse) made them: each offset names an
//! entry that decodes, and `words` are those of the entries.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::memory::{BlockBuffer, LINE_BYTES, SlabStart, SlotPool, prefetch, prefetch_lines};
use crate::types::{EntryKind, SeqNo, Slice, Trailer, prefix8};

use super::block_entry::{EntryKey, Head, KIND_BITS, PrefixedKey, RESTART_ENTRIES};

/// Words in front of those of the entries.
const HEAD_WORDS: usize = 4;
/// Longest common prefix that the search index hold: it is compared in every search, and here it costs no
/// further line of memory.
const PREFIX_BYTES: usize = 16;
const HAS_HIDDEN: u64 = 1 << 63;
/// Blocks of more entries are those of an index, which are seldom far from the processor.
const TOUCHED_ENTRIES_MAX: usize = 128;

/// The payload of a verified block with the numbers that a search of it uses.
#[derive(Clone)]
pub struct IndexedBlock {
    /// The search index and the payload, and in an uncompressed block the bytes that were stored after it.
    buffer: BlockBuffer,
}

/// The numbers of a block that was checked.
pub(super) struct Numbers<'a> {
    pub base_seq: u64,
    pub has_hidden: bool,
    /// Offset of the first visible key in the payload.
    pub first_key: usize,
    /// Length of the common prefix.
    pub common: usize,
    pub words: &'a [u64],
    pub offsets: &'a [u32],
}

impl IndexedBlock {
    /// The data of a payload that was checked.
    pub(super) fn new(bytes: Arc<[u8]>, numbers: &Numbers<'_>) -> IndexedBlock {
        let Numbers { base_seq, has_hidden, first_key, common, words, offsets } = *numbers;
        let prefix = &bytes[first_key..first_key + common.min(PREFIX_BYTES)];
        let split = prefix.len().min(8);
        let head = [
            // Sequence numbers have 56 bits, so the highest bit is free.
            base_seq | if has_hidden { HAS_HIDDEN } else { 0 },
            common as u64 | (first_key as u64) << 32,
            prefix8(&prefix[..split]),
            prefix8(&prefix[split..]),
        ];
        let mut index = Vec::with_capacity(HEAD_WORDS + words.len() + offsets.len().div_ceil(2));
        index.extend(head);
        index.extend_from_slice(words);
        let pairs = offsets.chunks(2);
        index.extend(pairs.map(|pair| match *pair {
            [low, high] => u64::from(low) | u64::from(high) << 32,
            _ => u64::from(pair[0]),
        }));
        IndexedBlock { buffer: BlockBuffer::new(index, bytes) }
    }

    /// A copy in a slot of `pool`, if there is one with at most `free_bytes_max` of free memory.
    pub(super) fn moved(&self, pool: &Arc<SlotPool>, free_bytes_max: u64) -> Option<IndexedBlock> {
        self.buffer.moved(pool, free_bytes_max).map(|buffer| IndexedBlock { buffer })
    }

    /// Returns `true` if it lies in this slab.
    pub fn is_in(&self, slab: SlabStart) -> bool {
        self.buffer.are_in(slab)
    }

    /// The payload, and in an uncompressed block the bytes that were stored after it.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    #[inline]
    fn index_words(&self) -> &[u64] {
        self.buffer.words()
    }

    /// The address of the search index.
    #[inline]
    pub(super) fn address(&self) -> usize {
        self.index_words().as_ptr().addr()
    }

    /// Number of visible entries; 0 only in a block of hidden ones alone.
    #[inline]
    pub(super) fn len(&self) -> usize {
        // There are n words and half as many words of offsets, rounded up.
        (self.index_words().len() - HEAD_WORDS) * 2 / 3
    }

    /// Memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.buffer.memory_bytes()
    }

    /// Returns `true` if the block has hidden entries.
    #[inline]
    pub(super) fn has_hidden(&self) -> bool {
        self.index_words()[0] & HAS_HIDDEN != 0
    }

    /// The first 8 bytes of the key of visible entry `i`, as [`prefix8`](crate::types::prefix8) has them.
    #[inline]
    pub(super) fn key_prefix(&self, i: usize) -> u64 {
        let index = self.index_words();
        // The word begins after the common prefix.
        let word = index[HEAD_WORDS + i].checked_shr(8 * self.common_len() as u32);
        index[2] | word.unwrap_or(0)
    }

    /// The word of each visible entry.
    #[inline]
    pub(super) fn words(&self) -> &[u64] {
        &self.index_words()[HEAD_WORDS..HEAD_WORDS + self.len()]
    }

    /// Returns `true` if entry `i` and the next one, which is there, have different words, and so
    /// different keys.
    #[inline]
    pub(super) fn word_changes(&self, i: usize) -> bool {
        let index = self.index_words();
        index[HEAD_WORDS + i + 1] != index[HEAD_WORDS + i]
    }

    /// Turns bits of the word of entry `i`.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn damage_word(&mut self, i: usize, bits: u64) {
        let mut index = self.index_words().to_vec();
        index[HEAD_WORDS + i] ^= bits;
        self.buffer = BlockBuffer::new(index, self.bytes().into());
    }

    /// The offset of visible entry `i` in the payload.
    #[inline]
    pub(super) fn offset(&self, i: usize) -> u32 {
        let pair = self.index_words()[HEAD_WORDS + self.len() + i / 2];
        (pair >> (32 * (i % 2))) as u32
    }

    /// Number of visible entries in front of `offset`.
    pub(super) fn visible_before(&self, offset: u32) -> usize {
        let mut low = 0;
        let mut high = self.len();
        while low < high {
            let middle = low + (high - low) / 2;
            if self.offset(middle) < offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Asks for something of each piece of memory that a search is about to need, so that the processor
    /// fetches them while the search waits for the words: the lines of the offsets, and an address
    /// on either page of the payload. Point reads of blocks that are in no processor's cache take a
    /// tenth less time with loads of these, and still less with hints.
    #[inline]
    pub(super) fn touch(&self) {
        self.prefetch_from(HEAD_WORDS + self.len());
    }

    /// Asks for all that a search is going to need: as `IndexedBlock::touch`, and for the words.
    #[inline]
    pub fn prefetch(&self) {
        self.prefetch_from(0);
    }

    /// Asks for the search index from a word on, and for the first and the last line of the payload: they may
    /// lie on two pages.
    #[inline]
    fn prefetch_from(&self, mark: usize) {
        let mark = if self.len() > TOUCHED_ENTRIES_MAX { self.index_words().len() } else { mark };
        let index = self.index_words()[mark..].as_ptr_range();
        let mut at = index.start.cast::<u8>();
        while at < index.end.cast() {
            prefetch(at);
            at = at.wrapping_add(LINE_BYTES);
        }
        let payload = self.bytes().as_ptr_range();
        prefetch(payload.start);
        prefetch(payload.end.wrapping_sub(1));
    }

    /// Asks for the lines after the first one of entry `i`, so that the processor fetches the value
    /// while the head of the entry is decoded: another tenth.
    #[inline]
    pub(super) fn touch_entry(&self, i: usize) {
        self.touch_lines(self.offset(i) as usize + LINE_BYTES, 2);
    }

    /// Asks for `count` lines of the payload from `start` on, which may lie outside of it, also in front.
    #[inline]
    pub(super) fn touch_lines(&self, start: usize, count: usize) {
        prefetch_lines(self.bytes().as_ptr().wrapping_add(start), count);
    }

    /// Length of the common prefix.
    #[inline]
    pub(super) fn common_len(&self) -> usize {
        self.index_words()[1] as u32 as usize
    }

    /// The order of the first bytes of `user_key` and the prefix that all keys have; a key that is
    /// shorter than the prefix is never equal to it.
    #[inline]
    pub(super) fn prefix_order(&self, user_key: &[u8]) -> Ordering {
        let common = self.common_len();
        if common > PREFIX_BYTES || user_key.len() < common {
            return self.long_prefix_order(user_key);
        }
        let high = prefix8(user_key) & first_bytes(common);
        if common <= 8 {
            return high.cmp(&self.index_words()[2]);
        }
        let low = prefix8(&user_key[8..]) & first_bytes(common - 8);
        high.cmp(&self.index_words()[2]).then(low.cmp(&self.index_words()[3]))
    }

    #[cold]
    fn long_prefix_order(&self, user_key: &[u8]) -> Ordering {
        let first_key = (self.index_words()[1] >> 32) as usize;
        let prefix = &self.bytes()[first_key..first_key + self.common_len()];
        user_key[..user_key.len().min(prefix.len())].cmp(prefix)
    }

    /// The sequence number `delta` above the base.
    #[inline]
    pub(super) fn seq(&self, delta: u64) -> SeqNo {
        SeqNo::new((self.index_words()[0] & !HAS_HIDDEN) + delta).expect("checked by parse")
    }

    #[inline]
    pub(super) fn head(&self, i: usize) -> Head {
        self.head_at(self.offset(i) as usize)
    }

    /// The head of the entry at `offset` of the payload.
    #[inline(always)]
    pub(super) fn head_at(&self, offset: usize) -> Head {
        Head::known(self.bytes(), offset)
    }

    /// Returns the range of the payload that holds the restart key of entry `i`.
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

    /// The key of entry `i`.
    #[inline]
    pub(super) fn key(&self, i: usize) -> EntryKey<'_> {
        let head = self.head(i);
        let restart = if head.shared == 0 { 0..0 } else { self.restart_range(i) };
        let shared = &self.bytes()[restart][..head.shared];
        let suffix = &self.bytes()[head.suffix..head.suffix + head.suffix_len];
        EntryKey { key: PrefixedKey { shared, suffix }, trailer: self.trailer(head) }
    }

    /// Returns `true` if entry `i`, which is not the first, has the user key of the entry before
    /// it.
    pub(super) fn is_version(&self, i: usize) -> bool {
        let [before, here] = [self.key(i - 1).key, self.key(i).key];
        before.shared.iter().chain(before.suffix).eq(here.shared.iter().chain(here.suffix))
    }

    /// The value of entry `i`.
    pub(super) fn value(&self, i: usize) -> &[u8] {
        &self.bytes()[self.value_range(i)]
    }

    /// Returns the range of the payload that holds the value of entry `i`; the entry ends with it.
    pub(super) fn value_range(&self, i: usize) -> Range<usize> {
        let head = self.head(i);
        let start = head.suffix + head.suffix_len;
        start..start + head.value_len
    }

    /// `len` bytes from `start`, as an owned string.
    #[inline]
    pub(super) fn slice(&self, start: usize, len: usize) -> Slice {
        self.buffer.slice(start, len)
    }
}

impl fmt::Debug for IndexedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexedBlock").field("entries", &self.len()).finish_non_exhaustive()
    }
}

/// A mask of the first `count` bytes of a big-endian word, up to 8.
#[inline]
fn first_bytes(count: usize) -> u64 {
    !u64::MAX.checked_shr(8 * count as u32).unwrap_or(0)
}
