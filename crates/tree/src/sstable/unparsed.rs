//! [`UnparsedPayload`]: a block that is not parsed or prepared. [`UnparsedCursor`]: the way of a cursor through
//! it. A seek and a few steps touch a fraction of its lines.
//!
//! Used by [`SstIter`](super::SstIter) and point reads (`unparsed_seek.rs`), for the blocks of mapped tables
//! (`mapped.rs`), where they lie, and for those that the cache does not want, as they were read. A seek bisects the
//! restart keys and walks through one group of entries. Each entry is checked when the seek or the cursor comes
//! to it, in the same way as by the parse, and a cursor compares it with the entry that it comes from. A call
//! returns `None` where something is wrong; a parse then names the defect. Blocks whose hidden entries lie among
//! the others are parsed.
//!
//! With a parse at each read, point reads of declined and mapped blocks take 1.19 and 1.46 times as long, and
//! seeks in mapped ones 1.20 times (design note 34).

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::memory::prefetch_lines;
use crate::types::{KeyRef, Trailer};

use super::block::Block;
use super::block_entry::{CheckedEntry, PrefixedKey, RESTART_ENTRIES, compare_tails};
use super::block_tail::BlockTail;
use super::stored::StoredPayload;

pub(super) const GROUP: usize = RESTART_ENTRIES as usize;
/// The lines of a group that a search asks for at once.
pub(super) const GROUP_LINES: usize = 16;
/// No group has this number.
const NO_GROUP: usize = usize::MAX;

/// The numbers of the tail of a payload.
#[derive(Clone, Copy)]
struct Layout {
    /// End of the entries.
    end: usize,
    /// The range of the restart offsets.
    restarts: (usize, usize),
    base_seq: u64,
    /// Number of visible entries, at least 1.
    count: usize,
}

/// A payload whose tail was read.
pub(super) struct UnparsedPayload<'a> {
    pub bytes: &'a [u8],
    layout: Layout,
}

impl<'a> UnparsedPayload<'a> {
    /// The payload of a table that has hidden entries or none. `None` if the block is to be parsed.
    pub(super) fn of(bytes: &'a [u8], may_have_hidden: bool) -> Option<UnparsedPayload<'a>> {
        let tail = BlockTail::of(bytes)?;
        let end = tail.entries_end()?;
        let restarts = (tail.column_end()?, tail.start);
        let count = tail.count as usize;
        // In a table with hidden entries they are among the others, unless they have a column.
        let is_usual = (tail.width > 0) == may_have_hidden && count > 0;
        let layout = Layout { end, restarts, base_seq: tail.base_seq, count };
        is_usual.then_some(UnparsedPayload { bytes, layout })
    }

    /// Number of visible entries, at least 1.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.layout.count
    }

    /// The place of restart `i`.
    pub(super) fn restart(&self, i: usize) -> Option<usize> {
        let (start, end) = self.layout.restarts;
        let at = self.bytes[start..end].get(4 * i..)?.first_chunk::<4>()?;
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
        let mut high = self.layout.count.div_ceil(RESTART_ENTRIES as usize);
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

    /// The visible entry at `at`, inside the entries.
    #[inline]
    pub(super) fn entry(&self, at: usize) -> Option<CheckedEntry<'a>> {
        CheckedEntry::at(self.bytes, at, self.layout.end, self.layout.base_seq).ok()
    }
}

/// A block of a cursor.
pub(super) enum CursorBlock {
    /// Checked as a whole.
    Parsed(Arc<Block>),
    /// Checked entry by entry.
    Unparsed(UnparsedBlock),
}

/// A block whose checksum has agreed.
pub(super) struct UnparsedBlock {
    /// Its bytes, unless they are those of the mapped file.
    own: Option<Arc<[u8]>>,
    /// The range of its payload in them.
    payload: Range<usize>,
    layout: Layout,
}

impl UnparsedBlock {
    /// The block of a payload that was read. `None` if it is to be parsed.
    pub(super) fn read(payload: &StoredPayload, may_have_hidden: bool) -> Option<UnparsedBlock> {
        let UnparsedPayload { layout, .. } =
            UnparsedPayload::of(&payload.bytes[..payload.len], may_have_hidden)?;
        let own = Some(payload.bytes.clone());
        Some(UnparsedBlock { own, payload: 0..payload.len, layout })
    }

    /// The block whose payload lies at `start` of the mapped file. `None` if it is to be parsed.
    pub(super) fn mapped(
        start: usize,
        payload: &[u8],
        may_have_hidden: bool,
    ) -> Option<UnparsedBlock> {
        let UnparsedPayload { layout, .. } = UnparsedPayload::of(payload, may_have_hidden)?;
        Some(UnparsedBlock { own: None, payload: start..start + payload.len(), layout })
    }

    /// Number of visible entries, at least 1.
    pub(super) fn len(&self) -> usize {
        self.layout.count
    }

    /// The block in its bytes, or in those of the mapped file.
    #[inline]
    pub(super) fn view<'a>(&'a self, mapped: &'a [u8]) -> UnparsedPayload<'a> {
        let bytes = self.own.as_deref().unwrap_or(mapped);
        UnparsedPayload { bytes: &bytes[self.payload.clone()], layout: self.layout }
    }
}

/// An entry that a cursor comes to.
pub(super) struct UnparsedEntry<'a> {
    /// The index of the entry in its block.
    pub at: usize,
    pub key: PrefixedKey<'a>,
    pub trailer: Trailer,
    /// The range of its value in the payload.
    pub value: Range<usize>,
}

impl UnparsedEntry<'_> {
    /// Its order against a key.
    #[inline]
    pub(super) fn order(&self, key: KeyRef<'_>) -> Ordering {
        // Newer first: the greater trailer is the earlier.
        compare_tails(self.key.shared, self.key.suffix, key.user)
            .then_with(|| key.trailer.cmp(&self.trailer))
    }
}

/// The places of entries that a cursor knows in the block that it is in.
pub(super) struct UnparsedCursor {
    /// The group whose entries `offsets` are, and how many of them are known.
    group: usize,
    known: usize,
    offsets: [usize; GROUP],
    /// The restart key of that group.
    restart: Range<usize>,
}

impl UnparsedCursor {
    pub(super) fn new() -> UnparsedCursor {
        let offsets = [0; GROUP];
        UnparsedCursor { group: NO_GROUP, known: 0, offsets, restart: 0..0 }
    }

    /// Forgets the places: another block is next.
    pub(super) fn leave_block(&mut self) {
        *self = UnparsedCursor::new();
    }

    /// The first entry that is not before `target`; `None` inside if all are.
    #[expect(clippy::option_option, reason = "the outer one is that of all calls here")]
    pub(super) fn seek<'a>(
        &mut self,
        block: &UnparsedPayload<'a>,
        target: KeyRef<'_>,
    ) -> Option<Option<UnparsedEntry<'a>>> {
        for at in block.group_of(target)? * GROUP..block.layout.count {
            let entry = self.entry(block, at)?;
            if entry.order(target).is_ge() {
                return Some(Some(entry));
            }
        }
        Some(None)
    }

    /// Entry `at`, which the block has.
    ///
    /// # Cost
    /// One entry is decoded where the one before was the last. Otherwise those of the group before it are, unless
    /// the cursor is in the group.
    #[inline]
    pub(super) fn entry<'a>(
        &mut self,
        block: &UnparsedPayload<'a>,
        at: usize,
    ) -> Option<UnparsedEntry<'a>> {
        let index = at % GROUP;
        if at / GROUP != self.group {
            self.begin_group(block, at)?;
        }
        while self.known <= index {
            self.offsets[self.known] = block.entry(self.offsets[self.known - 1])?.value.end;
            self.known += 1;
        }
        let entry = block.entry(self.offsets[index])?;
        let end = entry.value.end;
        // The entries lie one after the other, also across groups: bytes that none owns could hide a lost one.
        let is_followed = if at + 1 == block.layout.count {
            end == block.layout.end
        } else {
            index + 1 < GROUP || block.restart(self.group + 1)? == end
        };
        if !is_followed {
            return None;
        }
        if self.known == index + 1 && self.known < GROUP {
            self.offsets[self.known] = end;
            self.known += 1;
        }
        let shared = block.bytes[self.restart.clone()].get(..entry.shared)?;
        let key = PrefixedKey { shared, suffix: entry.suffix };
        Some(UnparsedEntry { at, key, trailer: entry.trailer, value: entry.value })
    }

    /// Makes the group of entry `at` the one whose places are known.
    fn begin_group(&mut self, block: &UnparsedPayload<'_>, at: usize) -> Option<()> {
        let group = at / GROUP;
        let offset = block.restart(group)?;
        block.touch_lines(offset, GROUP_LINES);
        let restart = block.entry(offset)?;
        // A restart key is whole, and nothing lies in front of the first one.
        if restart.shared != 0 || (group == 0 && offset != 0) {
            return None;
        }
        self.restart = restart.value.start - restart.suffix.len()..restart.value.start;
        (self.group, self.known) = (group, 1);
        self.offsets[0] = offset;
        Some(())
    }
}
