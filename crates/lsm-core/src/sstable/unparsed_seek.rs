//! A point read in the payload of a block that is used once: nothing of it is parsed or kept.
//!
//! [`Block::parse`](super::block::Block::parse) checks all entries and prepares them for searches, which
//! takes longer than everything else that a read does with a block from the page cache. It bisects
//! the restart keys and walks through one group of entries. It checks the entries that it passes, in the same way. It
//! gives up on anything unusual, and then the block is parsed: that names the defect, or goes on where
//! hidden entries ask for more.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Range;

use crate::error::Result;
use crate::memory::prefetch_lines;
use crate::types::{EntryKind, KeyRef, SeqNo, Trailer};

use super::block_entry::{Head, KIND_BITS, RESTART_ENTRIES, compare_tails};
use super::block_tail::BlockTail;
use super::compression::CompressionKind;
use super::hidden::{HIDDEN_BIT, HiddenHead};
use super::stored::{Access, Extent, TableSource};

/// Longest block that is not parsed where it is used once; a thread has buffers of this length. A longer one
/// has values that share its memory.
pub(super) const UNPARSED_BYTES_MAX: usize = 16 << 10;

/// The lines of a group that a search asks for at once.
pub(super) const GROUP_LINES: usize = 16;

/// Buffers for blocks that are looked at once. They keep their length, so that nothing is cleared again.
#[derive(Default)]
struct Scratch {
    stored: Vec<u8>,
    plain: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = const {
        Cell::new(Scratch { stored: Vec::new(), plain: Vec::new() })
    };
}

/// The first `len` bytes of a buffer, which grows to that length.
fn grown(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

impl TableSource {
    /// Shows `look` the payload of the block at `extent`, which is read and verified and not kept. `None` if it
    /// is so long that it should have memory of its own.
    pub(super) fn look_at<T>(
        &self,
        extent: Extent,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let len = self.checked_len(extent)?;
        if len > UNPARSED_BYTES_MAX {
            return Ok(None);
        }
        // Taken out, so that a look inside of `look` would have buffers of its own.
        let mut scratch = SCRATCH.take();
        let looked = self.look_with(&mut scratch, extent.offset, len, look);
        SCRATCH.set(scratch);
        looked
    }

    fn look_with<T>(
        &self,
        scratch: &mut Scratch,
        offset: u64,
        len: usize,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let stored = grown(&mut scratch.stored, len);
        self.read_exact(Access::Plain, offset, stored)?;
        let (len, kind) = self.verify(offset, stored)?;
        if kind == CompressionKind::None {
            return Ok(Some(look(&stored[..len])));
        }
        let compressed = self.compressed(offset, kind, &stored[..len])?;
        if compressed.plain_len > UNPARSED_BYTES_MAX {
            return Ok(None);
        }
        let plain = grown(&mut scratch.plain, compressed.plain_len);
        self.decompress_into(offset, &compressed, plain)?;
        Ok(Some(look(plain)))
    }
}

/// The result of a search in an unparsed payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UnparsedSeek {
    /// The entry, and the range of its value in the payload.
    Found(Trailer, Range<usize>),
    /// The block has no such entry.
    Missing,
}

/// A payload whose tail was read.
pub(super) struct UnparsedPayload<'a> {
    pub bytes: &'a [u8],
    /// End of the entries.
    pub end: usize,
    /// The restart offsets.
    pub restarts: Range<usize>,
    pub base_seq: u64,
    /// Number of visible entries.
    pub count: usize,
    /// The hidden entries lie apart.
    pub has_column: bool,
}

/// Looks for the newest entry of `user_key` that is not newer than `seq`, in a payload that verified.
/// `None` if the block is to be parsed instead.
pub(super) fn seek_unparsed(
    payload: &[u8],
    user_key: &[u8],
    seq: SeqNo,
    may_have_hidden: bool,
) -> Option<UnparsedSeek> {
    let payload = UnparsedPayload::of(payload)?;
    let target = KeyRef::seek(user_key, seq);
    if payload.has_column && !may_have_hidden {
        return None;
    }
    let has_mixed = may_have_hidden && !payload.has_column;
    let found = payload.walk(payload.group_of(target)?, target, has_mixed)?;
    // Where the last entry is a hidden one, older versions of its key may lie in the next block.
    if found == UnparsedSeek::Missing && may_have_hidden { None } else { Some(found) }
}

impl<'a> UnparsedPayload<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Option<UnparsedPayload<'a>> {
        let tail = BlockTail::of(bytes)?;
        let end = tail.entries_end()?;
        let restarts = tail.column_end()?..tail.start;
        Some(UnparsedPayload {
            bytes,
            end,
            restarts,
            base_seq: tail.base_seq,
            count: tail.count as usize,
            has_column: tail.width > 0,
        })
    }

    /// The place of restart `i`.
    pub(super) fn restart(&self, i: usize) -> Option<usize> {
        let at = self.bytes[self.restarts.clone()].get(4 * i..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*at) as usize)
    }

    /// Asks for `count` lines from the one of `offset` on, which may lie after the payload.
    #[inline]
    pub(super) fn touch_lines(&self, offset: usize, count: usize) {
        prefetch_lines(self.bytes.as_ptr().wrapping_add(offset), count);
    }

    /// The group of entries in which the target lies, or after which it would.
    pub(super) fn group_of(&self, target: KeyRef<'_>) -> Option<usize> {
        let mut low = 0;
        let mut high = self.count.div_ceil(RESTART_ENTRIES as usize);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.entry(self.restart(middle)?)?;
            let order = entry.suffix.cmp(target.user);
            // Newer first: the greater trailer is the earlier.
            if order.then(target.trailer.cmp(&entry.trailer)).is_le() {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low.saturating_sub(1))
    }

    /// Walks from the first entry of `group` to the first one that is not before the target.
    fn walk(&self, group: usize, target: KeyRef<'_>, has_mixed: bool) -> Option<UnparsedSeek> {
        let mut at = self.restart(group)?;
        self.touch_lines(at, GROUP_LINES);
        let mut restart_key: &[u8] = &[];
        for i in group * RESTART_ENTRIES as usize..self.count {
            while has_mixed && at < self.end && self.bytes[at] & HIDDEN_BIT != 0 {
                at = HiddenHead::usual_end(self.bytes, at)
                    .or_else(|| Some(HiddenHead::decode(self.bytes, at)?.payload.end))?;
            }
            let entry = self.entry(at)?;
            if i.is_multiple_of(RESTART_ENTRIES as usize) {
                restart_key = entry.suffix;
                if entry.shared != 0 {
                    return None;
                }
            }
            let shared = restart_key.get(..entry.shared)?;
            match compare_tails(shared, entry.suffix, target.user) {
                Ordering::Equal if entry.trailer <= target.trailer => {
                    return Some(UnparsedSeek::Found(entry.trailer, entry.value));
                }
                Ordering::Greater => return Some(UnparsedSeek::Missing),
                // A smaller key, or a version that is newer than the reader.
                _ => at = entry.value.end,
            }
        }
        Some(UnparsedSeek::Missing)
    }

    /// The visible entry at `at`, inside the entries.
    #[inline]
    pub(super) fn entry(&self, at: usize) -> Option<PayloadEntry<'a>> {
        let head = Head::decode(self.bytes, at)?;
        if head.header & !KIND_BITS != 0 {
            return None;
        }
        let seq = self.base_seq.checked_add(head.delta).and_then(SeqNo::new)?;
        let trailer = Trailer::new(seq, EntryKind::from_u8(head.header)?);
        let value = head.suffix.checked_add(head.suffix_len)?;
        let end = value.checked_add(head.value_len).filter(|end| *end <= self.end)?;
        let suffix = &self.bytes[head.suffix..value];
        Some(PayloadEntry { shared: head.shared, suffix, trailer, value: value..end })
    }
}

/// An entry, without the bytes that it shares with its restart key.
pub(super) struct PayloadEntry<'a> {
    pub shared: usize,
    pub suffix: &'a [u8],
    pub trailer: Trailer,
    pub value: Range<usize>,
}
