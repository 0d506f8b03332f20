//! [`RawIter`]: a cursor over all entries of a table, hidden ones included. For compactions with a
//! filter that seals, verified reads, exports and tools.
//!
//! It shows a hidden entry in full: a tombstone with its whole key, its owner's sequence number and
//! its whole payload. Each entry has a place that names it for as long as the file exists.
//!
//! `walk.rs` has blocks, seeks and errors of all cursors; this file has the entries, and the
//! treatment of damaged blocks.
//!
//! Invariants:
//! 1. Entries come in strictly ascending internal order, in the tolerant modes too.
//! 2. An entry that is not handed over is an error, or part of [`RawIter::damage`].

use std::sync::Arc;

use super::RawDamage;
use super::block::Block;
use super::index_cursor::IndexCursor;
use super::raw_entry::{CurrentEntry, RawBlock};
use super::read_ahead::{READ_AHEAD_BYTES, ReadAhead};
use super::reader::SstReader;
use super::stored::{Access, Extent};
use super::tolerant::block::TolerantBlock;
use super::walk::{BlockWalk, Entries};
use crate::error::{Error, Result};
use crate::iter::InternalIter;
use crate::types::KeyRef;

/// The way in which a raw cursor reads, and its treatment of damaged blocks.
///
/// In the tolerant modes a block that does not verify is read once more past every cache. If it
/// still does not, its entries are handed over as damaged, as far as they decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RawMode {
    /// One block after the other, through the block cache. A damaged block is an error.
    #[default]
    Cached,
    /// As [`RawMode::Cached`], and tolerant: for looking at a few keys, damaged ones too.
    Suspects,
    /// Many blocks at once, forward, without looking into the block cache or filling it. A damaged
    /// block is an error.
    Streaming,
    /// As [`RawMode::Streaming`], and tolerant, from the device: past every cache where the system
    /// allows it.
    Scrub,
}

impl RawMode {
    fn access(self) -> Access {
        match self {
            RawMode::Scrub => Access::Uncached,
            _ => Access::Plain,
        }
    }

    fn reads_ahead(self) -> bool {
        matches!(self, RawMode::Streaming | RawMode::Scrub)
    }

    fn is_tolerant(self) -> bool {
        matches!(self, RawMode::Suspects | RawMode::Scrub)
    }
}

/// A cursor over all entries of a table. It keeps the table open.
pub struct RawIter {
    walk: BlockWalk<AllEntries>,
}

/// All entries of sound blocks, and those of damaged ones that still decode.
struct AllEntries {
    mode: RawMode,
    ahead: ReadAhead,
    present: CurrentEntry,
    damage: Vec<RawDamage>,
}

impl RawIter {
    pub(super) fn new(reader: Arc<SstReader>, mode: RawMode) -> RawIter {
        let entries = AllEntries {
            mode,
            ahead: ReadAhead::new(mode.access(), READ_AHEAD_BYTES),
            present: CurrentEntry::new(),
            damage: Vec::new(),
        };
        RawIter { walk: BlockWalk::new(reader, entries) }
    }

    /// Returns `true` if a compaction filter added the entry. Only while [`InternalIter::valid`].
    #[inline]
    pub fn hidden(&self) -> bool {
        debug_assert!(self.walk.valid(), "the cursor is on an entry");
        self.walk.entries().present.is_hidden
    }

    /// Returns the entry's place: offset of its block in the file, its index in the block with
    /// hidden ones counted, and `true` if the block verified. Only while [`InternalIter::valid`].
    #[inline]
    pub fn origin(&self) -> (u64, u32, bool) {
        let (extent, body) = self.walk.block();
        let present = &self.walk.entries().present;
        match body {
            RawBlock::Intact(_) => {
                // A block has fewer entries than bytes, and those are counted in 32 bits.
                let entry = present.visible + present.hidden;
                (extent.offset, entry as u32, true)
            }
            RawBlock::Damaged(damaged) => {
                (extent.offset, damaged.entries[present.visible].index, false)
            }
        }
    }

    /// The damaged blocks that this tolerant cursor met so far, each once, in the order in which
    /// it met them.
    pub fn damage(&self) -> &[RawDamage] {
        &self.walk.entries().damage
    }
}

impl InternalIter for RawIter {
    #[inline]
    fn valid(&self) -> bool {
        self.walk.valid()
    }

    #[inline]
    fn key(&self) -> KeyRef<'_> {
        debug_assert!(self.walk.valid(), "the cursor is on an entry");
        let present = &self.walk.entries().present;
        KeyRef::new(&present.key, present.trailer)
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.walk.entries().present.value(&self.walk.block().1)
    }

    fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        self.walk.seek(target)
    }

    fn seek_before(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        self.walk.seek_before(target)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.walk.next()
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.walk.prev()
    }
}

impl AllEntries {
    fn read_sound(&mut self, reader: &SstReader, extent: Extent) -> Result<Arc<Block>> {
        if self.mode.reads_ahead() {
            let stored = self.ahead.stored(reader, extent)?;
            return reader.open_block(extent, stored);
        }
        reader.block(extent)
    }

    /// Reads a block that did not verify past every cache, and takes what it can get.
    #[cold]
    fn read_again(
        &mut self,
        reader: &SstReader,
        index: &IndexCursor,
        extent: Extent,
        error: Error,
    ) -> Result<RawBlock> {
        // Past every cache: a bit that flipped in a cache is then not taken for damage of the file.
        let body = read_damaged(reader, extent)?;
        let mut damaged = match body {
            RawBlock::Damaged(damaged) => damaged,
            // The damage was in a cache, and not in the file.
            RawBlock::Intact(_) => return Ok(body),
        };
        // The index verified, the block did not. An entry outside of these keys is damaged itself,
        // and out of order it would end the walk of the caller.
        let (before, end) = index.bounds(reader);
        damaged.keep_ordered(before.as_ref(), &end);
        // Seeks may come back to the block; it is reported once.
        if self.damage.iter().all(|known| known.block_offset != extent.offset) {
            self.damage.push(RawDamage {
                block_offset: extent.offset,
                error,
                suspects: damaged.entries.len() as u32,
                is_lossy: !damaged.is_complete,
                keys: (before.map(|key| key.user.to_vec()), end.user.to_vec()),
            });
        }
        Ok(RawBlock::Damaged(damaged))
    }

    /// Moves to the entry that has `visible` and `hidden` entries of the block before it.
    #[inline]
    fn enter(&mut self, reader: &SstReader, body: &RawBlock, visible: usize, hidden: usize) {
        self.present.enter(body, &reader.properties().hidden_suffix, visible, hidden);
    }

    /// Moves to the entry before the one that has `visible` and `hidden` entries before it; returns
    /// `false` if that is the first.
    fn enter_before(
        &mut self,
        reader: &SstReader,
        body: &RawBlock,
        visible: usize,
        hidden: usize,
    ) -> bool {
        if (visible, hidden) == (0, 0) {
            return false;
        }
        let is_hidden = match body {
            RawBlock::Damaged(_) => false,
            RawBlock::Intact(block) => match (visible.checked_sub(1), hidden.checked_sub(1)) {
                // The one further back in the block is the later entry.
                (Some(v), Some(h)) => block.is_hidden_after(h, v),
                (before, _) => before.is_none(),
            },
        };
        if is_hidden {
            self.enter(reader, body, visible, hidden - 1);
        } else {
            self.enter(reader, body, visible - 1, hidden);
        }
        true
    }
}

/// Numbers of visible and hidden entries of the block before the first that is not before `target`.
fn lower_bound(reader: &SstReader, body: &RawBlock, target: KeyRef<'_>) -> (usize, usize) {
    match body {
        RawBlock::Intact(block) => {
            block.lower_bound_all(target, &reader.properties().hidden_suffix)
        }
        RawBlock::Damaged(damaged) => (damaged.lower_bound(target), 0),
    }
}

impl Entries for AllEntries {
    type Block = RawBlock;

    fn read(
        &mut self,
        reader: &SstReader,
        index: &IndexCursor,
        extent: Extent,
    ) -> Result<RawBlock> {
        self.present.leave_block();
        match self.read_sound(reader, extent) {
            Ok(block) => Ok(RawBlock::Intact(block)),
            Err(error) if self.mode.is_tolerant() && error.is_corruption() => {
                self.read_again(reader, index, extent, error)
            }
            Err(error) => Err(error),
        }
    }

    fn first(&mut self, reader: &SstReader, body: &RawBlock) -> bool {
        if body.counts() == (0, 0) {
            return false;
        }
        self.enter(reader, body, 0, 0);
        true
    }

    fn last(&mut self, reader: &SstReader, body: &RawBlock) -> bool {
        let (visible, hidden) = body.counts();
        self.enter_before(reader, body, visible, hidden)
    }

    fn seek(&mut self, reader: &SstReader, body: &RawBlock, target: KeyRef<'_>) -> bool {
        let (visible, hidden) = lower_bound(reader, body, target);
        if (visible, hidden) == body.counts() {
            return false;
        }
        self.enter(reader, body, visible, hidden);
        true
    }

    fn seek_before(&mut self, reader: &SstReader, body: &RawBlock, target: KeyRef<'_>) -> bool {
        let (visible, hidden) = lower_bound(reader, body, target);
        self.enter_before(reader, body, visible, hidden)
    }

    #[inline]
    fn next(&mut self, reader: &SstReader, body: &RawBlock) -> bool {
        let counts = body.counts();
        let mut visible = self.present.visible;
        let mut hidden = self.present.hidden;
        // Suspect entries are counted as visible ones.
        if self.present.is_hidden && counts.1 > 0 {
            hidden += 1;
        } else {
            visible += 1;
        }
        if (visible, hidden) == counts {
            return false;
        }
        self.enter(reader, body, visible, hidden);
        true
    }

    #[inline]
    fn prev(&mut self, reader: &SstReader, body: &RawBlock) -> bool {
        self.enter_before(reader, body, self.present.visible, self.present.hidden)
    }
}

/// Reads a block that may be damaged, past every cache. Bytes that cannot be read at all are a block of
/// nothing.
fn read_damaged(reader: &SstReader, extent: Extent) -> Result<RawBlock> {
    let source = reader.source();
    let stored = match source.read_stored(Access::Uncached, extent) {
        // The block ends after the end of the file, which was cut. The walk goes on after it.
        Err(error) if error.is_corruption() => {
            return Ok(RawBlock::Damaged(TolerantBlock::default()));
        }
        stored => stored?,
    };
    // The first reading may have been damaged on its way: the device has the block whole.
    if let Ok(block) = reader.open_block(extent, &stored) {
        return Ok(RawBlock::Intact(block));
    }
    let payload = source.unverified_payload(extent.offset, &stored);
    let damaged = payload.map(|payload| TolerantBlock::decode(&payload, reader.hidden_suffix()));
    Ok(RawBlock::Damaged(damaged.unwrap_or_default()))
}

impl SstReader {
    /// A cursor over all entries, hidden ones included, before the first.
    pub fn raw_iter(self: &Arc<Self>, mode: RawMode) -> RawIter {
        RawIter::new(self.clone(), mode)
    }
}
