//! [`UnparsedBlock`] and [`UnparsedCursor`]: the way of a cursor through a block that is not parsed
//! or prepared. A seek and a few steps touch a fraction of its lines.
//!
//! Used by [`SstIter`](super::SstIter) for the blocks of mapped tables (`mapped.rs`), where they lie, and for those that
//! the cache does not want, as they were read. Each entry is checked when the
//! cursor comes to it, in the same way as by a point read (`unparsed_seek.rs`), and the cursor compares it with the entry that it
//! comes from. A call returns `None` where something is wrong; a parse then names the defect. Blocks whose
//! hidden entries lie among the others are parsed.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::types::{KeyRef, Trailer};

use super::block::Block;
use super::block_entry::{RESTART_ENTRIES, compare_tails};
use super::stored::StoredPayload;
use super::unparsed_seek::{GROUP_LINES, UnparsedPayload};

const GROUP: usize = RESTART_ENTRIES as usize;
/// No group has this number.
const NO_GROUP: usize = usize::MAX;

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
    /// Number of visible entries, at least 1.
    pub count: usize,
    /// End of the entries.
    end: usize,
    /// The restart offsets.
    restarts: Range<usize>,
    base_seq: u64,
}

impl UnparsedBlock {
    /// The block of a payload that was read. `None` if it is to be parsed.
    pub(super) fn read(payload: &StoredPayload, may_have_hidden: bool) -> Option<UnparsedBlock> {
        let bytes = &payload.bytes[..payload.len];
        UnparsedBlock::of(Some(payload.bytes.clone()), 0, bytes, may_have_hidden)
    }

    /// The block whose payload lies at `start` of the mapped file. `None` if it is to be parsed.
    pub(super) fn mapped(
        start: usize,
        payload: &[u8],
        may_have_hidden: bool,
    ) -> Option<UnparsedBlock> {
        UnparsedBlock::of(None, start, payload, may_have_hidden)
    }

    fn of(
        own: Option<Arc<[u8]>>,
        start: usize,
        payload: &[u8],
        may_have_hidden: bool,
    ) -> Option<UnparsedBlock> {
        let UnparsedPayload { end, ref restarts, base_seq, count, has_column, .. } =
            UnparsedPayload::of(payload)?;
        // In a table with hidden entries they are among the others, unless they have a column.
        let is_usual = has_column == may_have_hidden && count > 0;
        is_usual.then(|| UnparsedBlock {
            own,
            payload: start..start + payload.len(),
            count,
            end,
            restarts: restarts.clone(),
            base_seq,
        })
    }

    /// The block in its bytes, or in those of the mapped file.
    #[inline]
    pub(super) fn view<'a>(&'a self, mapped: &'a [u8]) -> UnparsedPayload<'a> {
        let bytes = self.own.as_deref().unwrap_or(mapped);
        UnparsedPayload {
            bytes: &bytes[self.payload.clone()],
            end: self.end,
            restarts: self.restarts.clone(),
            base_seq: self.base_seq,
            count: self.count,
            has_column: false,
        }
    }
}

/// An entry that a cursor comes to.
pub(super) struct UnparsedEntry<'a> {
    /// The index of the entry in its block.
    pub at: usize,
    /// The two pieces of its key.
    pub shared: &'a [u8],
    pub suffix: &'a [u8],
    pub trailer: Trailer,
    /// The range of its value in the payload.
    pub value: Range<usize>,
}

impl UnparsedEntry<'_> {
    /// Its order against a key.
    #[inline]
    pub(super) fn order(&self, key: KeyRef<'_>) -> Ordering {
        // Newer first: the greater trailer is the earlier.
        compare_tails(self.shared, self.suffix, key.user)
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
        for at in block.group_of(target)? * GROUP..block.count {
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
        let is_followed = if at + 1 == block.count {
            end == block.end
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
        let value = entry.value;
        Some(UnparsedEntry { at, shared, suffix: entry.suffix, trailer: entry.trailer, value })
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
