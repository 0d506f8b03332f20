//! [`SstIter`]: a cursor over the visible entries of a table, for scans (through the block cache)
//! and for compactions (past the cache, with large reads).
//!
//! `walk.rs` has blocks, seeks and errors of all cursors; this file has the entries. The key is rebuilt into a
//! buffer at every move, because nearly every caller compares it. The value is lent from the block.

mod prefetch;
mod unparsed;
mod verified;

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::hooks::VerifiedBlock;
use crate::iter::{InternalIter, MergeSource, step_to_next_key};
use crate::types::{KeyRef, SeqNo, Slice, Trailer, prefix8};

use super::block::Block;
use super::block_entry::{Head, RESTART_ENTRIES};
use super::block_search::Near;
use super::index_cursor::IndexCursor;
use super::read_ahead::{READ_AHEAD_BYTES, ReadAhead, ReadMode};
use super::reader::SstReader;
use super::stored::{Access, Extent, LARGE_PAYLOAD_BYTES};
use super::table_block::{BlockCheck, TableBlock};
use super::unparsed::{CursorBlock, UnparsedCursor};
use super::walk::{BlockWalk, Entries};
use prefetch::{AHEAD_BYTES, AHEAD_LINES, STEP_LINES, lines_before};

pub use verified::JobCheck;

/// Room for a key from the start: a short scan should not grow its buffer step by step.
const KEY_BYTES_TYPICAL: usize = 64;
/// Suffixes of up to this length are copied by instructions of this width, without a call. So many bytes
/// follow the entries of a block.
const SHORT_BYTES: usize = 16;
const GROUP: usize = RESTART_ENTRIES as usize;
/// No group of entries has this number.
const NO_GROUP: usize = usize::MAX;

/// A cursor over the visible entries of a table. It keeps the table open.
pub struct SstIter {
    walk: BlockWalk<VisibleEntries>,
}

impl SstReader {
    /// A cursor over all entries, before the first.
    pub fn iter(self: &Arc<Self>, mode: ReadMode) -> SstIter {
        self.checked_iter(mode, None)
    }

    /// As [`SstReader::iter`], which passes each block to `check` before it returns an entry of it.
    pub fn checked_iter(
        self: &Arc<Self>,
        mode: ReadMode,
        check: Option<Arc<dyn BlockCheck>>,
    ) -> SstIter {
        let entries = VisibleEntries::new(mode, check, self.global_seq());
        SstIter { walk: BlockWalk::new(self.clone(), entries) }
    }
}

/// The visible entries of sound blocks.
struct VisibleEntries {
    // Fixed after construction.
    mode: ReadMode,
    /// Sees each block before anything of it is handed out.
    check: Option<Arc<dyn BlockCheck>>,
    /// A copy of that of the table's reader.
    global_seq: Option<SeqNo>,
    ahead: ReadAhead,
    // Of the present block.
    /// The results of the check for its entries, if it is that of a job.
    verified: VerifiedBlock,
    /// Number of its entries.
    count: usize,
    /// No hidden entries lie among them: each begins where the one before ends.
    is_dense: bool,
    /// The places of entries in an unparsed block.
    unparsed: UnparsedCursor,
    /// An entry of an unparsed block is not as it must be.
    is_damaged: bool,
    /// The sequence that the file has for the present entry of an unparsed block.
    unparsed_seq: SeqNo,
    // The present entry.
    /// Its index in its block.
    at: usize,
    key: Vec<u8>,
    trailer: Trailer,
    /// Range of the value in the block.
    value: Range<usize>,
    /// The group whose restart key lies at `restart` in the block.
    restart_of: usize,
    restart: Range<usize>,
}

impl SstIter {
    /// Returns the value as an owned string: small ones copied, large ones sharing the block. Only
    /// while [`InternalIter::valid`].
    pub fn value_slice(&self) -> Slice {
        let value = &self.walk.entries().value;
        match &self.walk.block().1 {
            CursorBlock::Parsed(block) => block.slice(value.start, value.len()),
            CursorBlock::Unparsed(_) => Slice::copy_from(self.value()),
        }
    }

    /// The table.
    pub fn table(&self) -> &SstReader {
        self.walk.reader()
    }

    /// Returns the entry's place: offset of its block in the file, and its index in the block. Only
    /// while [`InternalIter::valid`].
    pub fn place(&self) -> (u64, usize) {
        (self.walk.block().0.offset, self.walk.entries().at)
    }

    /// The sequence number that the file has for the entry: another than the key's in an ingested
    /// table. Only while [`InternalIter::valid`].
    pub fn stored_seq(&self) -> SeqNo {
        let entries = self.walk.entries();
        match &self.walk.block().1 {
            CursorBlock::Parsed(block) => block.trailer(block.head(entries.at)).seq(),
            CursorBlock::Unparsed(_) => entries.unparsed_seq,
        }
    }

    /// Has the processor fetch memory that a seek to `target` waits for.
    pub fn prefetch(&self, target: KeyRef<'_>) {
        self.walk.reader().prefetch(target);
    }

    /// Seeks in an ingested table. Stored sequences say nothing there: a user key has one entry, so
    /// it is the one that the target asks for, or the next one is.
    #[cold]
    fn seek_ingested(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.walk.seek(Some(KeyRef::seek(target.user, SeqNo::MAX)))?;
        while self.valid() && self.key() < target {
            self.walk.next()?;
        }
        Ok(())
    }
}

impl MergeSource for SstIter {
    #[inline]
    fn prefix(&self) -> u64 {
        let entries = self.walk.entries();
        let CursorBlock::Parsed(block) = &self.walk.block().1 else { return prefix8(&entries.key) };
        debug_assert_eq!(block.key_prefix(entries.at), prefix8(&entries.key), "of the key");
        block.key_prefix(entries.at)
    }
}

impl InternalIter for SstIter {
    #[inline]
    fn valid(&self) -> bool {
        self.walk.valid()
    }

    #[inline]
    fn key(&self) -> KeyRef<'_> {
        debug_assert!(self.walk.valid(), "the cursor is on an entry");
        let entries = self.walk.entries();
        KeyRef::new(&entries.key, entries.trailer)
    }

    #[inline(always)]
    fn value(&self) -> &[u8] {
        match &self.walk.block().1 {
            CursorBlock::Parsed(block) => &block.bytes()[self.walk.entries().value.clone()],
            CursorBlock::Unparsed(block) => {
                self.walk.entries().unparsed_value(self.walk.reader(), block)
            }
        }
    }

    fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        match target {
            Some(target) if self.walk.entries().global_seq.is_some() => self.seek_ingested(target),
            _ => self.walk.seek(target),
        }
    }

    fn seek_before(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        match target {
            Some(target) if self.walk.entries().global_seq.is_some() => {
                self.seek_ingested(target)?;
                // By way of the first entry that is not before the target: stored order cannot be
                // searched backwards.
                if self.valid() { self.walk.prev() } else { self.walk.seek_before(None) }
            }
            _ => self.walk.seek_before(target),
        }
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.walk.next()
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.walk.prev()
    }

    #[inline]
    fn next_key(&mut self, room: &mut Vec<u8>) -> Result<()> {
        // Entries with different words have different keys: nearly always, nothing is compared.
        let VisibleEntries { at, count, .. } = *self.walk.entries();
        if let CursorBlock::Parsed(block) = &self.walk.block().1
            && at + 1 < count
            && block.word_changes(at)
        {
            return self.walk.next();
        }
        step_to_next_key(self, room)
    }

    fn run_before(&self, until: Option<KeyRef<'_>>) -> usize {
        match &self.walk.block().1 {
            CursorBlock::Parsed(block) => block.run_before(self.walk.entries().at, until),
            CursorBlock::Unparsed(_) => 0,
        }
    }

    #[inline]
    fn next_in_run(&mut self) -> Result<Trailer> {
        let (_, entries, block) = self.walk.on_block();
        let CursorBlock::Parsed(block) = block else { unreachable!("there is no run") };
        entries.enter_next(block);
        Ok(entries.trailer)
    }
}

impl VisibleEntries {
    fn new(
        mode: ReadMode,
        check: Option<Arc<dyn BlockCheck>>,
        global_seq: Option<SeqNo>,
    ) -> VisibleEntries {
        VisibleEntries {
            mode,
            check,
            global_seq,
            ahead: ReadAhead::new(Access::Plain, READ_AHEAD_BYTES),
            verified: VerifiedBlock::default(),
            count: 0,
            is_dense: false,
            unparsed: UnparsedCursor::new(),
            is_damaged: false,
            unparsed_seq: SeqNo::ZERO,
            at: 0,
            key: Vec::with_capacity(KEY_BYTES_TYPICAL),
            trailer: Trailer::LAST,
            value: 0..0,
            restart_of: NO_GROUP,
            restart: 0..0,
        }
    }

    /// Notes that `block` is the present one. The position in another block is void.
    fn enter_block(&mut self, block: &Block) {
        self.count = block.len();
        self.is_dense = block.is_dense();
        // The restart key of the old one must not be used in it.
        self.restart_of = NO_GROUP;
    }

    /// Makes entry `at` of the block the present one.
    fn enter(&mut self, block: &Block, at: usize) {
        let head = block.head(at);
        let suffix = head.suffix..head.suffix + head.suffix_len;
        self.key.clear();
        let group = at / GROUP;
        if at.is_multiple_of(GROUP) {
            self.restart = suffix.clone();
            self.restart_of = group;
        } else {
            // Inside a group that the cursor is already in, the restart key is known.
            if group != self.restart_of {
                self.restart = block.restart_range(at);
                self.restart_of = group;
            }
            let shared = self.restart.start..self.restart.start + head.shared;
            // Shared bytes come from the restart key and not from the entry before. So a step
            // backwards costs as much as a step forwards.
            self.key.extend_from_slice(&block.bytes()[shared]);
        }
        self.enter_head(block, at, head);
    }

    /// Makes the entry after the present one the present one.
    #[inline]
    fn enter_next(&mut self, block: &Block) {
        let at = self.at + 1;
        let offset = if self.is_dense { self.value.end } else { block.offset(at) as usize };
        self.touch(block, offset + AHEAD_BYTES, STEP_LINES);
        let head = block.head_at(offset);
        if at.is_multiple_of(GROUP) {
            self.restart = head.suffix..head.suffix + head.suffix_len;
            self.restart_of = at / GROUP;
        }
        // Keys ascend from the restart key on. So what this one has in common with that, the one between
        // them has, too, whatever its head says: these bytes stay where they are.
        self.key.truncate(head.shared);
        self.enter_head(block, at, head);
    }

    /// Makes entry `at`, which has this head, the present one; `key` has the bytes that the entry shares.
    #[inline]
    fn enter_head(&mut self, block: &Block, at: usize, head: Head) {
        let suffix = head.suffix..head.suffix + head.suffix_len;
        match block.bytes()[head.suffix..].first_chunk::<SHORT_BYTES>() {
            Some(short) if head.suffix_len <= SHORT_BYTES => {
                self.key.extend_from_slice(short);
                self.key.truncate(head.shared + head.suffix_len);
            }
            _ => self.key.extend_from_slice(&block.bytes()[suffix.clone()]),
        }
        self.trailer = block.trailer(head);
        if let Some(seq) = self.global_seq {
            self.trailer = self.trailer.with_seq(seq);
        }
        self.value = suffix.end..suffix.end + head.value_len;
        self.at = at;
    }
}

impl Entries for VisibleEntries {
    type Block = CursorBlock;

    fn read(
        &mut self,
        reader: &SstReader,
        index: &IndexCursor,
        extent: Extent,
    ) -> Result<CursorBlock> {
        // A check wants the block as a whole.
        if self.mode == ReadMode::Cached && self.check.is_none() {
            let block = reader.cursor_block(index.number(), extent)?;
            match &block {
                CursorBlock::Parsed(block) => {
                    self.enter_block(block);
                    VisibleEntries::expect_next_block(reader, extent);
                }
                CursorBlock::Unparsed(block) => {
                    self.count = block.len();
                    self.unparsed.leave_block();
                }
            }
            return Ok(block);
        }
        let block = match self.mode {
            ReadMode::Cached => reader.block(extent)?,
            // Not kept in the cache: a compaction reads each block once, and would push out what
            // reads use.
            ReadMode::Streaming if extent.len >= LARGE_PAYLOAD_BYTES as u64 => {
                reader.block_alone(extent)?
            }
            ReadMode::Streaming => {
                let stored = self.ahead.stored(reader, extent)?;
                reader.open_block(extent, stored)?
            }
        };
        let block = match &self.check {
            None => block,
            Some(check) => {
                // Before any entry of the block is returned, because the check may refuse the block.
                let mut shown = TableBlock::new(reader, extent, block, false);
                check.check(&mut shown, &mut self.verified)?;
                shown.into_block()
            }
        };
        self.enter_block(&block);
        Ok(CursorBlock::Parsed(block))
    }

    #[inline]
    fn first(&mut self, reader: &SstReader, block: &CursorBlock) -> bool {
        let block = match block {
            CursorBlock::Parsed(block) => block,
            CursorBlock::Unparsed(block) => return self.enter_unparsed(reader, block, 0),
        };
        if block.is_empty() {
            return false;
        }
        self.touch(block, 0, AHEAD_LINES);
        self.enter(block, 0);
        true
    }

    #[inline]
    fn last(&mut self, reader: &SstReader, block: &CursorBlock) -> bool {
        let Some(last) = self.count.checked_sub(1) else {
            return false;
        };
        match block {
            CursorBlock::Parsed(block) => {
                self.touch(block, lines_before(block, last), AHEAD_LINES + 1);
                self.enter(block, last);
                true
            }
            CursorBlock::Unparsed(block) => self.enter_unparsed(reader, block, last),
        }
    }

    #[inline]
    fn seek(&mut self, reader: &SstReader, body: &CursorBlock, target: KeyRef<'_>) -> bool {
        let block = match body {
            CursorBlock::Parsed(block) => block,
            CursorBlock::Unparsed(block) => return self.seek_unparsed(reader, block, target),
        };
        // A binary search over the words of the block, see `block_search.rs`. No key is rebuilt for
        // it but that of the entry that is entered.
        let near = block.near(target);
        let (Near::At(at) | Near::AtOrNext(at)) = near;
        if at == self.count {
            return false;
        }
        self.touch(block, block.offset(at) as usize, AHEAD_LINES);
        self.enter(block, at);
        // The key was put together just now. In an ingested table the trailer is not the stored one;
        // there the target is the newest version, which is before none of either.
        let is_before =
            matches!(near, Near::AtOrNext(_)) && KeyRef::new(&self.key, self.trailer) < target;
        !is_before || self.next(reader, body)
    }

    #[inline]
    fn seek_before(&mut self, reader: &SstReader, block: &CursorBlock, target: KeyRef<'_>) -> bool {
        let block = match block {
            CursorBlock::Parsed(block) => block,
            CursorBlock::Unparsed(block) => {
                return self.seek_before_unparsed(reader, block, target);
            }
        };
        let Some(before) = block.lower_bound(target).checked_sub(1) else {
            return false;
        };
        self.touch(block, lines_before(block, before), AHEAD_LINES + 1);
        self.enter(block, before);
        true
    }

    #[inline]
    fn next(&mut self, reader: &SstReader, block: &CursorBlock) -> bool {
        if self.at + 1 == self.count {
            return false;
        }
        match block {
            CursorBlock::Parsed(block) => {
                self.enter_next(block);
                true
            }
            CursorBlock::Unparsed(block) => {
                self.step_unparsed(reader, block, self.at + 1, Ordering::Greater)
            }
        }
    }

    #[inline]
    fn prev(&mut self, reader: &SstReader, block: &CursorBlock) -> bool {
        let Some(before) = self.at.checked_sub(1) else {
            return false;
        };
        match block {
            CursorBlock::Parsed(block) => {
                self.touch(block, lines_before(block, before), STEP_LINES);
                self.enter(block, before);
                true
            }
            CursorBlock::Unparsed(block) => {
                self.step_unparsed(reader, block, before, Ordering::Less)
            }
        }
    }

    fn check_end(&mut self, reader: &SstReader, extent: Extent) -> Result<()> {
        if !std::mem::take(&mut self.is_damaged) {
            return Ok(());
        }
        // The checksum of a copy, and the parse of it, say where it is wrong.
        reader.block(extent)?;
        Err(reader.source().corruption(extent.offset, "block has changed while it was read"))
    }
}

#[cfg(test)]
mod tests;
