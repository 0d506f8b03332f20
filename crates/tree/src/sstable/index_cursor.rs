//! [`IndexCursor`]: a walk along the index of an open table, through index partitions where it has two levels.

use std::sync::Arc;

use super::block::Block;
use super::reader::SstReader;
use super::stored::Extent;
use crate::error::Result;
use crate::types::{InternalKey, KeyRef};

/// A place in the index of a table: an entry of a leaf, or past the end.
pub(super) struct IndexCursor {
    /// The index partition that `top_at` names, once it is read; none with one level, where the only index
    /// block takes its place and no reference needs to be counted.
    partition: Option<Arc<Block>>,
    /// Entry of the leaf.
    at: usize,
    /// Entry of the top block that names the leaf, where there are two levels.
    top_at: usize,
}

impl IndexCursor {
    pub(super) fn new() -> IndexCursor {
        IndexCursor { partition: None, at: 0, top_at: 0 }
    }

    /// The block whose entry the cursor is on.
    #[inline]
    fn leaf<'a>(&'a self, reader: &'a SstReader) -> &'a Block {
        self.partition.as_ref().unwrap_or(reader.index().block())
    }

    /// Makes the leaf that `top_at` names present.
    fn load(&mut self, reader: &SstReader, top_at: usize) -> Result<()> {
        let index = reader.index();
        if index.levels() == 1 || (self.partition.is_some() && self.top_at == top_at) {
            return Ok(());
        }
        // Before the read: after a failed one the old index partition must not pass for the new.
        self.partition = None;
        let extent = index.extent(top_at).expect("the caller found it in the index");
        let leaf = reader.block(extent)?;
        // A partition without entries would have no last one to move to.
        if leaf.is_empty() {
            return Err(reader.index_levels_disagree());
        }
        self.partition = Some(leaf);
        self.top_at = top_at;
        Ok(())
    }

    /// The separators before and after the data block here: each of its keys is after the first
    /// and not after the second.
    pub(super) fn bounds(&self, reader: &SstReader) -> (Option<InternalKey>, InternalKey) {
        let top = reader.index().block();
        let before = match self.at.checked_sub(1) {
            Some(at) => Some(self.leaf(reader).whole_key(at)),
            None if reader.index().levels() == 1 => None,
            None => self.top_at.checked_sub(1).map(|top_at| top.whole_key(top_at)),
        };
        (before, self.leaf(reader).whole_key(self.at))
    }

    /// The number of the data block here in its leaf, from 0.
    pub(super) fn number(&self) -> usize {
        self.at
    }

    /// The data block here.
    pub(super) fn extent(&self, reader: &SstReader) -> Result<Extent> {
        if reader.index().levels() == 1 {
            return Ok(reader.index().extent(self.at).expect("the cursor is on an entry"));
        }
        reader.leaf_extent(self.leaf(reader), self.at)
    }

    /// Moves to the only block that can hold the first entry not before `target`, if it is not
    /// the first of the next block; `None` if all are before it.
    pub(super) fn seek(
        &mut self,
        reader: &SstReader,
        target: KeyRef<'_>,
    ) -> Result<Option<Extent>> {
        if reader.index().levels() == 2 {
            let top_at = reader.index().lower_bound(target);
            if top_at == reader.index().block().len() {
                return Ok(None);
            }
            self.load(reader, top_at)?;
        }
        // The separators of a leaf ascend, which parsing has checked, so a search in them is
        // enough.
        let (at, count) = match &self.partition {
            Some(leaf) => (leaf.lower_bound(target), leaf.len()),
            None => (reader.index().lower_bound(target), reader.index().block().len()),
        };
        let is_past_end = at == count;
        self.at = at;
        if is_past_end {
            // The top says that the last separator of this leaf is not before the target.
            return if reader.index().levels() == 1 {
                Ok(None)
            } else {
                Err(reader.index_levels_disagree())
            };
        }
        self.extent(reader).map(Some)
    }

    /// Moves to the first block.
    pub(super) fn first(&mut self, reader: &SstReader) -> Result<Extent> {
        self.load(reader, 0)?;
        self.at = 0;
        self.extent(reader)
    }

    /// Moves to the last block.
    pub(super) fn last(&mut self, reader: &SstReader) -> Result<Extent> {
        self.load(reader, reader.index().block().len() - 1)?;
        self.at = self.leaf(reader).len() - 1;
        self.extent(reader)
    }

    /// Moves to the next block, if there is one.
    pub(super) fn next(&mut self, reader: &SstReader) -> Result<Option<Extent>> {
        if self.at + 1 < self.leaf(reader).len() {
            self.at += 1;
        } else if reader.index().levels() == 2 && self.top_at + 1 < reader.index().block().len() {
            self.load(reader, self.top_at + 1)?;
            self.at = 0;
        } else {
            return Ok(None);
        }
        self.extent(reader).map(Some)
    }

    /// Moves to the block before, if there is one.
    pub(super) fn prev(&mut self, reader: &SstReader) -> Result<Option<Extent>> {
        if self.at > 0 {
            self.at -= 1;
        } else if reader.index().levels() == 2 && self.top_at > 0 {
            self.load(reader, self.top_at - 1)?;
            self.at = self.leaf(reader).len() - 1;
        } else {
            return Ok(None);
        }
        self.extent(reader).map(Some)
    }
}

impl SstReader {
    /// Returns offset and stored length of each data block, in order. Ends after the first error.
    pub fn blocks(&self) -> impl Iterator<Item = Result<(u64, u64)>> {
        let mut cursor = Some(IndexCursor::new());
        let mut is_first = true;
        std::iter::from_fn(move || {
            let index = cursor.as_mut()?;
            let next = if is_first { index.first(self).map(Some) } else { index.next(self) };
            is_first = false;
            if !matches!(next, Ok(Some(_))) {
                cursor = None;
            }
            next.transpose().map(|extent| extent.map(|extent| (extent.offset, extent.len)))
        })
    }
}
