//! [`BlockWalk`]: the part that all cursors over a table share: the choice of the next block, its
//! reading, the end of a seek, and the state after an error.
//!
//! [`SstIter`](super::SstIter) and [`RawIter`](super::RawIter) are a walk over their own
//! [`Entries`]: the visible ones of sound blocks, or all of them, of damaged blocks too. The type
//! parameter costs nothing in a step; a call over a `dyn` would be the most expensive part of a
//! step.
//!
//! Invariants:
//! 1. While the walk is valid, a block is loaded, the index cursor is on it, and the entries are on
//!    one of it.
//! 2. A move that fails leaves the walk invalid until the next seek.
//! 3. Where a block has no entry to show, its [`Entries`] are asked why before another one is read.
//! 4. A block is read once as long as the walk stays in it, seeks included.

use std::sync::Arc;

use super::index_cursor::IndexCursor;
use super::reader::SstReader;
use super::stored::Extent;
use crate::error::Result;
use crate::types::KeyRef;

/// The entries of one block at a time: how the block is read, and a position in it.
///
/// The calls that place the cursor return `false` where the block has no such entry; the walk goes
/// on in a neighbour then. Some blocks have no entry at all for a kind of cursor.
pub(super) trait Entries {
    /// A block in memory.
    type Block;

    /// Reads the block at `extent`, which `index` is on. The position in another block is void
    /// from now on.
    fn read(
        &mut self,
        reader: &SstReader,
        index: &IndexCursor,
        extent: Extent,
    ) -> Result<Self::Block>;

    /// Moves to the first entry of the block.
    fn first(&mut self, reader: &SstReader, body: &Self::Block) -> bool;

    /// Moves to the last entry of the block.
    fn last(&mut self, reader: &SstReader, body: &Self::Block) -> bool;

    /// Moves to the first entry of the block that is not before `target`, by stored order.
    fn seek(&mut self, reader: &SstReader, body: &Self::Block, target: KeyRef<'_>) -> bool;

    /// Moves to the last entry of the block that is before `target`, by stored order.
    fn seek_before(&mut self, reader: &SstReader, body: &Self::Block, target: KeyRef<'_>) -> bool;

    /// Moves one entry forward.
    fn next(&mut self, reader: &SstReader, body: &Self::Block) -> bool;

    /// Moves one entry back.
    fn prev(&mut self, reader: &SstReader, body: &Self::Block) -> bool;

    /// Asked where a call returned `false`: an error if there was no entry because the block at `extent` is
    /// damaged. The default is for entries of blocks that were checked as a whole.
    fn check_end(&mut self, _reader: &SstReader, _extent: Extent) -> Result<()> {
        Ok(())
    }
}

/// A walk over the blocks of a table. It keeps the table open.
pub(super) struct BlockWalk<E: Entries> {
    reader: Arc<SstReader>,
    index: IndexCursor,
    /// The block of the present entry, and where it lies.
    block: Option<(Extent, E::Block)>,
    entries: E,
    is_valid: bool,
}

impl<E: Entries> BlockWalk<E> {
    pub(super) fn new(reader: Arc<SstReader>, entries: E) -> BlockWalk<E> {
        let index = IndexCursor::new();
        BlockWalk { reader, index, block: None, entries, is_valid: false }
    }

    pub(super) fn reader(&self) -> &Arc<SstReader> {
        &self.reader
    }

    pub(super) fn entries(&self) -> &E {
        &self.entries
    }

    #[inline]
    pub(super) fn valid(&self) -> bool {
        self.is_valid
    }

    /// The block of the present entry, and where it lies. Only while valid.
    #[inline]
    pub(super) fn block(&self) -> &(Extent, E::Block) {
        debug_assert!(self.is_valid, "the cursor is on an entry");
        self.block.as_ref().expect("a valid cursor has a block")
    }

    /// The entries, for a step within the present block. Only while valid.
    #[inline]
    pub(super) fn on_block(&mut self) -> (&SstReader, &mut E, &E::Block) {
        let (_, body) = self.block.as_ref().expect("a valid cursor has a block");
        (&self.reader, &mut self.entries, body)
    }

    /// Puts another copy of the present block in its place. Only while valid.
    pub(super) fn replace_block(&mut self, body: E::Block) {
        let (_, present) = self.block.as_mut().expect("a valid cursor has a block");
        *present = body;
    }

    pub(super) fn seek(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        self.is_valid = false;
        let Some(target) = target else {
            let extent = self.index.first(&self.reader)?;
            return self.enter_first(Some(extent));
        };
        // After the last separator: no entry of the table is at or after the target.
        let Some(extent) = self.index.seek(&self.reader, target)? else {
            return Ok(());
        };
        self.load(extent)?;
        let (_, body) = self.block.as_ref().expect("it was just loaded");
        self.is_valid = self.entries.seek(&self.reader, body, target);
        // The target lies between the last key of this block and its separator.
        if self.is_valid { Ok(()) } else { self.next_block() }
    }

    pub(super) fn seek_before(&mut self, target: Option<KeyRef<'_>>) -> Result<()> {
        self.is_valid = false;
        let found = match target {
            Some(target) => self.index.seek(&self.reader, target)?.map(|extent| (extent, target)),
            None => None,
        };
        let Some((extent, target)) = found else {
            // After all separators, too: the last entry of the table is before the target.
            let extent = self.index.last(&self.reader)?;
            return self.enter_last(Some(extent));
        };
        self.load(extent)?;
        let (_, body) = self.block.as_ref().expect("it was just loaded");
        self.is_valid = self.entries.seek_before(&self.reader, body, target);
        // The first entry of this block is not before the target, so the one that is sought is the
        // last of the block before.
        if self.is_valid { Ok(()) } else { self.prev_block() }
    }

    #[inline]
    pub(super) fn next(&mut self) -> Result<()> {
        assert!(self.is_valid, "next needs an entry");
        let (_, body) = self.block.as_ref().expect("a valid cursor has a block");
        // Within a block no index and no cache is asked, so most steps touch one block only.
        if self.entries.next(&self.reader, body) {
            return Ok(());
        }
        self.next_block()
    }

    #[inline]
    pub(super) fn prev(&mut self) -> Result<()> {
        assert!(self.is_valid, "prev needs an entry");
        let (_, body) = self.block.as_ref().expect("a valid cursor has a block");
        if self.entries.prev(&self.reader, body) {
            return Ok(());
        }
        self.prev_block()
    }

    /// Makes the block at `extent`, which the index cursor is on, the present one.
    fn load(&mut self, extent: Extent) -> Result<()> {
        if self.block.as_ref().is_some_and(|(present, _)| *present == extent) {
            return Ok(());
        }
        // Dropped first, so that a failure leaves no block that the entries are not on.
        self.block = None;
        let body = self.entries.read(&self.reader, &self.index, extent)?;
        self.block = Some((extent, body));
        Ok(())
    }

    /// Moves to the first entry of the block, or of a later one if this has none to show.
    fn enter_first(&mut self, mut extent: Option<Extent>) -> Result<()> {
        self.is_valid = false;
        // A loop, because a block may consist of entries that this cursor does not show.
        while let Some(here) = extent {
            self.load(here)?;
            let (_, body) = self.block.as_ref().expect("it was just loaded");
            if self.entries.first(&self.reader, body) {
                self.is_valid = true;
                break;
            }
            self.entries.check_end(&self.reader, here)?;
            extent = self.index.next(&self.reader)?;
        }
        Ok(())
    }

    /// Moves to the last entry of the block, or of an earlier one if this has none to show.
    fn enter_last(&mut self, mut extent: Option<Extent>) -> Result<()> {
        self.is_valid = false;
        while let Some(here) = extent {
            self.load(here)?;
            let (_, body) = self.block.as_ref().expect("it was just loaded");
            if self.entries.last(&self.reader, body) {
                self.is_valid = true;
                break;
            }
            self.entries.check_end(&self.reader, here)?;
            extent = self.index.prev(&self.reader)?;
        }
        Ok(())
    }

    /// Asks why the present block had no entry.
    fn check_end(&mut self) -> Result<()> {
        let Some((extent, _)) = self.block else { return Ok(()) };
        self.entries.check_end(&self.reader, extent)
    }

    #[cold]
    fn next_block(&mut self) -> Result<()> {
        self.is_valid = false;
        self.check_end()?;
        let extent = self.index.next(&self.reader)?;
        self.enter_first(extent)
    }

    #[cold]
    fn prev_block(&mut self) -> Result<()> {
        self.is_valid = false;
        self.check_end()?;
        let extent = self.index.prev(&self.reader)?;
        self.enter_last(extent)
    }
}
