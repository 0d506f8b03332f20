//! [`RawBlock`]: a block of the raw walk. [`CurrentEntry`]: the entry of the block that the walk is on.
//!
//! Used by `raw.rs` alone. An entry is rebuilt into buffers that stay, so a step allocates nothing.

use std::ops::Range;
use std::sync::Arc;

use super::block::Block;
use super::block_entry::RESTART_ENTRIES;
use super::hidden::{Owner, hidden_trailer};
use super::tolerant::block::TolerantBlock;
use crate::types::Trailer;

/// A block of the walk.
pub(super) enum RawBlock {
    Intact(Arc<Block>),
    Damaged(TolerantBlock),
}

impl RawBlock {
    /// Number of visible and of hidden entries. Damaged ones are not distinguished.
    pub(super) fn counts(&self) -> (usize, usize) {
        match self {
            RawBlock::Intact(block) => (block.len(), block.hidden_len()),
            RawBlock::Damaged(damaged) => (damaged.entries.len(), 0),
        }
    }
}

/// No entry has this index, and no group.
const NONE: usize = usize::MAX;

/// An entry of a block, rebuilt.
pub(super) struct CurrentEntry {
    /// Visible and hidden entries before it in the block.
    pub(super) visible: usize,
    pub(super) hidden: usize,
    pub(super) is_hidden: bool,
    pub(super) key: Vec<u8>,
    /// The visible entry that `key` is the key of.
    key_of: usize,
    pub(super) trailer: Trailer,
    /// Range of the value in the block, unless it is in `expanded`.
    value: Range<usize>,
    is_expanded: bool,
    expanded: Vec<u8>,
    /// The group whose restart key lies at `restart` in the block.
    restart_of: usize,
    restart: Range<usize>,
}

impl CurrentEntry {
    pub(super) fn new() -> CurrentEntry {
        CurrentEntry {
            visible: 0,
            hidden: 0,
            is_hidden: false,
            key: Vec::new(),
            key_of: NONE,
            trailer: Trailer::LAST,
            value: 0..0,
            is_expanded: false,
            expanded: Vec::new(),
            restart_of: NONE,
            restart: 0..0,
        }
    }

    /// Another block is the present one from now on.
    pub(super) fn leave_block(&mut self) {
        self.key_of = NONE;
        self.restart_of = NONE;
    }

    /// Takes in the entry that has `visible` and `hidden` entries of `body` before it.
    #[inline]
    pub(super) fn enter(&mut self, body: &RawBlock, suffix: &[u8], visible: usize, hidden: usize) {
        self.visible = visible;
        self.hidden = hidden;
        let block = match body {
            RawBlock::Intact(block) => block,
            RawBlock::Damaged(damaged) => return self.enter_damaged(damaged),
        };
        if block.is_hidden_next(visible, hidden) {
            self.enter_hidden(block, suffix);
        } else {
            self.enter_visible(block);
        }
    }

    #[inline]
    fn enter_visible(&mut self, block: &Block) {
        let head = block.head(self.visible);
        let suffix = head.suffix..head.suffix + head.suffix_len;
        self.key.clear();
        if head.shared > 0 {
            // Inside a group that the cursor is already in, the restart key is known.
            let group = self.visible / RESTART_ENTRIES as usize;
            if group != self.restart_of {
                self.restart = block.restart_range(self.visible);
                self.restart_of = group;
            }
            let shared = self.restart.start..self.restart.start + head.shared;
            self.key.extend_from_slice(&block.bytes()[shared]);
        }
        self.key.extend_from_slice(&block.bytes()[suffix.clone()]);
        self.key_of = self.visible;
        self.trailer = block.trailer(head);
        self.value = suffix.end..suffix.end + head.value_len;
        self.is_hidden = false;
        self.is_expanded = false;
    }

    #[inline]
    fn enter_hidden(&mut self, block: &Block, suffix: &[u8]) {
        let head = block.hidden_head(self.hidden);
        match head.owner {
            // The entry that the cursor was on.
            Owner::Near(back) if self.visible - back == self.key_of => {
                // The key of the owner is in the buffer already, so only the suffix is missing.
                self.key.extend_from_slice(suffix);
                self.trailer = hidden_trailer(self.trailer.seq());
            }
            _ => self.trailer = block.hidden_key(self.hidden, suffix, &mut self.key),
        }
        self.key_of = NONE;
        head.expand(block.bytes(), self.trailer.seq(), &mut self.expanded);
        self.is_hidden = true;
        self.is_expanded = true;
    }

    #[cold]
    fn enter_damaged(&mut self, damaged: &TolerantBlock) {
        let entry = &damaged.entries[self.visible];
        damaged.expand(entry, &mut self.key, &mut self.expanded);
        self.trailer = entry.trailer;
        self.is_hidden = entry.is_hidden();
        self.is_expanded = true;
    }

    pub(super) fn value<'a>(&'a self, body: &'a RawBlock) -> &'a [u8] {
        match body {
            RawBlock::Intact(block) if !self.is_expanded => &block.bytes()[self.value.clone()],
            _ => &self.expanded,
        }
    }
}
