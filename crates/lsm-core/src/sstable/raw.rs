//! [`RawIter`]: a cursor over all entries of a table, hidden ones included. For compactions with a
//! sealing filter, verified reads, exports and tools.
//!
//! Hidden entries are shown as what they stand for: tombstones with their whole key, their owner's
//! sequence number and their whole payload. Each entry has a place that names it for as long as
//! the file lives.
//!
//! Invariants:
//! 1. Entries come in strictly ascending internal order, in the tolerant mode too.
//! 2. What is not handed over is an error or in [`RawIter::damage`].

use std::sync::Arc;

use super::block::Block;
use super::index::IndexCursor;
use super::iter::{READ_AHEAD_BYTES, ReadAhead};
use super::present::{Body, Present};
use super::reader::SstReader;
use super::stored::{Access, Extent};
use super::suspect::Suspect;
use super::{RawDamage, RawMode};
use crate::error::{Error, Result};
use crate::hooks::OwnedEntry;
use crate::iter::InternalIter;
use crate::types::KeyRef;

impl RawMode {
    fn access(self) -> Access {
        if self.uncached { Access::Uncached } else { Access::Plain }
    }
}

/// A cursor over all entries of a table. It keeps the table open.
pub struct RawIter {
    reader: Arc<SstReader>,
    mode: RawMode,
    ahead: ReadAhead,
    index: IndexCursor,
    block: Option<(Extent, Body)>,
    present: Present,
    is_valid: bool,
    damage: Vec<RawDamage>,
}

impl RawIter {
    pub(super) fn new(reader: Arc<SstReader>, mode: RawMode) -> RawIter {
        RawIter {
            mode,
            ahead: ReadAhead::new(mode.access(), READ_AHEAD_BYTES),
            index: IndexCursor::new(&reader),
            block: None,
            present: Present::new(),
            is_valid: false,
            damage: Vec::new(),
            reader,
        }
    }

    /// Returns `true` if a compaction filter added the entry. Only while [`InternalIter::valid`].
    #[inline]
    pub fn hidden(&self) -> bool {
        debug_assert!(self.is_valid, "the cursor is on an entry");
        self.present.is_hidden
    }

    /// Where the entry lies: offset of its block in the file, which entry of the block it is with
    /// hidden ones counted, and whether the block verified. Only while [`InternalIter::valid`].
    #[inline]
    pub fn origin(&self) -> (u64, u32, bool) {
        let (extent, body) = self.loaded();
        match body {
            Body::Sound(_) => {
                // A block has fewer entries than bytes, and those are counted in 32 bits.
                let entry = self.present.visible + self.present.hidden;
                (extent.offset, entry as u32, true)
            }
            Body::Suspect(suspect) => {
                (extent.offset, suspect.entries[self.present.visible].index, false)
            }
        }
    }

    /// The damaged blocks that this tolerant cursor met so far, each once, in the order in which
    /// it met them.
    pub fn damage(&self) -> &[RawDamage] {
        &self.damage
    }

    #[inline]
    fn loaded(&self) -> &(Extent, Body) {
        debug_assert!(self.is_valid, "the cursor is on an entry");
        self.block.as_ref().expect("a valid cursor has a block")
    }

    /// Makes the block at `extent`, which the index cursor is on, the present one.
    fn load(&mut self, extent: Extent) -> Result<&Body> {
        if self.block.as_ref().is_none_or(|(present, _)| *present != extent) {
            self.block = None;
            self.present.leave_block();
            let body = match self.read(extent) {
                Ok(block) => Body::Sound(block),
                Err(error) if self.mode.tolerant && error.is_corruption() => {
                    self.read_again(extent, error)?
                }
                Err(error) => return Err(error),
            };
            self.block = Some((extent, body));
        }
        Ok(&self.block.as_ref().expect("it was just loaded").1)
    }

    fn read(&mut self, extent: Extent) -> Result<Arc<Block>> {
        if self.mode.read_ahead {
            let stored = self.ahead.stored(&self.reader, extent)?;
            return self.reader.open_block(extent, stored);
        }
        if self.mode.uncached {
            let payload = self.reader.source().read_by(Access::Uncached, extent)?;
            return self.reader.parse(extent, payload).map(Arc::new);
        }
        self.reader.block(extent)
    }

    /// Reads a block that did not verify past every cache, and takes what it can get.
    #[cold]
    fn read_again(&mut self, extent: Extent, error: Error) -> Result<Body> {
        let body = read_suspect(&self.reader, Access::Uncached, extent, self.mode.complete)?;
        let mut suspect = match body {
            Body::Suspect(suspect) => suspect,
            Body::Sound(_) => return Ok(body),
        };
        let (before, end) = self.index.bounds(&self.reader);
        suspect.keep_ordered(before.as_ref(), &end);
        if self.mode.complete && !suspect.is_complete {
            return Err(error);
        }
        if self.damage.iter().all(|known| known.block_offset != extent.offset) {
            self.damage.push(RawDamage {
                block_offset: extent.offset,
                error,
                suspects: suspect.entries.len() as u32,
                is_lossy: !suspect.is_complete,
                keys: (before.map(|key| key.user.to_vec()), end.user.to_vec()),
            });
        }
        Ok(Body::Suspect(suspect))
    }

    #[inline]
    fn enter(&mut self, visible: usize, hidden: usize) {
        let (_, body) = self.block.as_ref().expect("a block is loaded");
        let suffix = &self.reader.properties().hidden_suffix;
        self.present.enter(body, suffix, visible, hidden);
        self.is_valid = true;
    }

    /// Moves to the first entry of the block, or of a later one if nothing of this decodes.
    fn enter_first(&mut self, mut extent: Option<Extent>) -> Result<()> {
        self.is_valid = false;
        while let Some(present) = extent {
            if self.load(present)?.counts() != (0, 0) {
                self.enter(0, 0);
                break;
            }
            extent = self.index.next(&self.reader)?;
        }
        Ok(())
    }

    /// Moves to the last entry of the block, or of an earlier one if nothing of this decodes.
    fn enter_last(&mut self, mut extent: Option<Extent>) -> Result<()> {
        self.is_valid = false;
        while let Some(present) = extent {
            let (visible, hidden) = self.load(present)?.counts();
            if (visible, hidden) != (0, 0) {
                self.enter_before(visible, hidden);
                break;
            }
            extent = self.index.prev(&self.reader)?;
        }
        Ok(())
    }

    /// Moves to the entry before the one that has `visible` and `hidden` entries before it; there
    /// is one in the block.
    fn enter_before(&mut self, visible: usize, hidden: usize) {
        let (_, body) = self.block.as_ref().expect("a block is loaded");
        let is_hidden = match body {
            Body::Suspect(_) => false,
            Body::Sound(block) => match (visible.checked_sub(1), hidden.checked_sub(1)) {
                (Some(v), Some(h)) => block.hidden()[h] > block.offsets[v],
                (before, _) => before.is_none(),
            },
        };
        if is_hidden {
            self.enter(visible, hidden - 1);
        } else {
            self.enter(visible - 1, hidden);
        }
    }

    #[cold]
    fn next_block(&mut self) -> Result<()> {
        self.is_valid = false;
        let extent = self.index.next(&self.reader)?;
        self.enter_first(extent)
    }

    #[cold]
    fn prev_block(&mut self) -> Result<()> {
        self.is_valid = false;
        let extent = self.index.prev(&self.reader)?;
        self.enter_last(extent)
    }

    /// Entries of the block before the first that is not before `target`.
    fn lower_bound(&mut self, extent: Extent, target: KeyRef<'_>) -> Result<(usize, usize)> {
        let reader = self.reader.clone();
        Ok(match self.load(extent)? {
            Body::Sound(block) => block.lower_bound_all(target, &reader.properties().hidden_suffix),
            Body::Suspect(suspect) => (suspect.lower_bound(target), 0),
        })
    }
}

impl InternalIter for RawIter {
    fn valid(&self) -> bool {
        self.is_valid
    }

    #[inline]
    fn key(&self) -> KeyRef<'_> {
        debug_assert!(self.is_valid, "the cursor is on an entry");
        KeyRef::new(&self.present.key, self.present.trailer)
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.present.value(&self.loaded().1)
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.is_valid = false;
        let extent = self.index.first(&self.reader)?;
        self.enter_first(Some(extent))
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.is_valid = false;
        let extent = self.index.last(&self.reader)?;
        self.enter_last(Some(extent))
    }

    fn seek(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.is_valid = false;
        let Some(extent) = self.index.seek(&self.reader, target)? else {
            return Ok(());
        };
        let (visible, hidden) = self.lower_bound(extent, target)?;
        if (visible, hidden) == self.load(extent)?.counts() {
            return self.next_block();
        }
        self.enter(visible, hidden);
        Ok(())
    }

    fn seek_before(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.is_valid = false;
        let Some(extent) = self.index.seek(&self.reader, target)? else {
            return self.seek_to_last();
        };
        let (visible, hidden) = self.lower_bound(extent, target)?;
        if (visible, hidden) == (0, 0) {
            return self.prev_block();
        }
        self.enter_before(visible, hidden);
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let counts = self.loaded().1.counts();
        let (mut visible, mut hidden) = (self.present.visible, self.present.hidden);
        // Suspect entries are counted as visible ones.
        if self.present.is_hidden && counts.1 > 0 {
            hidden += 1;
        } else {
            visible += 1;
        }
        if (visible, hidden) == counts {
            return self.next_block();
        }
        self.enter(visible, hidden);
        Ok(())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        assert!(self.is_valid, "prev needs an entry");
        let (visible, hidden) = (self.present.visible, self.present.hidden);
        if (visible, hidden) == (0, 0) {
            return self.prev_block();
        }
        self.enter_before(visible, hidden);
        Ok(())
    }
}

/// Reads a block that may be damaged; if `mend`, a flipped bit is turned back. Bytes that cannot be
/// read at all are a block of nothing.
fn read_suspect(reader: &SstReader, access: Access, extent: Extent, mend: bool) -> Result<Body> {
    let source = reader.source();
    let stored = match source.read_stored(access, extent) {
        Err(error) if error.is_corruption() => return Ok(Body::Suspect(Suspect::default())),
        stored => stored?,
    };
    if let Ok(block) = reader.open_block(extent, &stored) {
        return Ok(Body::Sound(block));
    }
    let mended = if mend { source.with_one_bit_turned(extent.offset, &stored) } else { None };
    let payload = source.unpack_unverified(extent.offset, mended.as_ref().unwrap_or(&stored));
    let suspect = payload.map(|payload| Suspect::decode(&payload, reader.hidden_suffix()));
    let mut suspect = suspect.unwrap_or_default();
    suspect.is_mended = mended.is_some();
    Ok(Body::Suspect(suspect))
}

/// See [`SstReader::entry_at`].
pub(super) fn entry_at(
    reader: &SstReader,
    block_offset: u64,
    entry: u32,
    uncached: bool,
) -> Result<Option<OwnedEntry>> {
    let mut index = IndexCursor::new(reader);
    let mut extent = index.first(reader)?;
    while extent.offset != block_offset {
        match index.next(reader)? {
            Some(next) => extent = next,
            None => return Ok(None),
        }
    }
    let access = RawMode { uncached, ..RawMode::default() }.access();
    let body = read_suspect(reader, access, extent, true)?;
    let mut present = Present::new();
    let suffix = &reader.properties().hidden_suffix;
    let (visible, hidden) = match &body {
        Body::Suspect(suspect) if (entry as usize) < suspect.entries.len() => (entry as usize, 0),
        Body::Sound(block) if (entry as usize) < block.len() + block.hidden().len() => {
            block.counts_before(entry as usize)
        }
        _ => return Ok(None),
    };
    present.enter(&body, suffix, visible, hidden);
    let Some(kind) = present.trailer.kind() else { return Ok(None) };
    let verified = match &body {
        Body::Sound(_) => true,
        Body::Suspect(suspect) => suspect.is_mended,
    };
    Ok(Some(OwnedEntry {
        key: present.key.clone(),
        seq: present.trailer.seq(),
        kind,
        value: present.value(&body).to_vec(),
        verified,
    }))
}
