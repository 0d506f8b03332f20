//! [`SstIter`]: a cursor over a table, for scans (through the block cache) and for compaction
//! (past it, with large reads).
//!
//! The key is rebuilt into a buffer at every move, because nearly every caller compares it; the
//! value is lent from the block.

use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::iter::InternalIter;
use crate::types::{KeyRef, SeqNo, Slice, Trailer};

use super::block::{Block, RESTART_ENTRIES};
use super::index::IndexCursor;
use super::reader::SstReader;
use super::stored::{Access, Extent};
use super::table_block::{BlockCheck, TableBlock};

/// Room for a key from the start: a short scan should not grow its buffer step by step.
const KEY_BYTES_TYPICAL: usize = 64;

/// Bytes that a streaming cursor reads at once.
pub(super) const READ_AHEAD_BYTES: u64 = 256 << 10;

/// How a cursor reads blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// One by one, through the block cache.
    Cached,
    /// Many at once, forward, without looking into the cache or filling it.
    Streaming,
}

/// A cursor over the visible entries of a table. It keeps the table open.
pub struct SstIter {
    reader: Arc<SstReader>,
    /// The reader's, kept at hand.
    global_seq: Option<SeqNo>,
    mode: ReadMode,
    /// Sees each block before anything of it is handed out.
    check: Option<Arc<dyn BlockCheck>>,
    ahead: ReadAhead,
    index: IndexCursor,
    /// The block of the present entry, and where it lies.
    block: Option<(Extent, Arc<Block>)>,
    /// The present entry in its block.
    at: usize,
    is_valid: bool,
    key: Vec<u8>,
    trailer: Trailer,
    /// Where the value lies in the block.
    value: Range<usize>,
    /// Where the present group's restart key lies in the block.
    restart: Range<usize>,
}

impl SstIter {
    pub(super) fn new(reader: Arc<SstReader>, mode: ReadMode) -> SstIter {
        SstIter {
            mode,
            check: None,
            ahead: ReadAhead::new(Access::Plain, READ_AHEAD_BYTES),
            index: IndexCursor::new(&reader),
            block: None,
            at: 0,
            is_valid: false,
            key: Vec::with_capacity(KEY_BYTES_TYPICAL),
            trailer: Trailer::LAST,
            value: 0..0,
            restart: 0..0,
            global_seq: reader.global_seq(),
            reader,
        }
    }

    /// The value as an owned string: small ones copied, large ones sharing the block. Only while
    /// [`InternalIter::valid`].
    pub fn value_slice(&self) -> Slice {
        self.present().slice(self.value.start, self.value.len())
    }

    /// The same cursor, which shows each block to `check` before it hands out anything of it.
    #[must_use]
    pub fn checked_by(self, check: Option<Arc<dyn BlockCheck>>) -> SstIter {
        SstIter { check, ..self }
    }

    /// The table.
    pub fn table(&self) -> &SstReader {
        &self.reader
    }

    /// Where the entry lies: offset of its block in the file, and its index in the block. Only
    /// while [`InternalIter::valid`].
    pub fn place(&self) -> (u64, usize) {
        debug_assert!(self.is_valid, "the cursor is on an entry");
        (self.block.as_ref().expect("a valid cursor has a block").0.offset, self.at)
    }

    /// The sequence number that the file has for the entry: another than the key's in an ingested
    /// table. Only while [`InternalIter::valid`].
    pub fn stored_seq(&self) -> SeqNo {
        let block = self.present();
        block.trailer(block.head(self.at)).seq()
    }

    fn present(&self) -> &Block {
        debug_assert!(self.is_valid, "the cursor is on an entry");
        &self.block.as_ref().expect("a valid cursor has a block").1
    }

    /// Makes the block at `extent` the present one; returns how many entries it has.
    fn load(&mut self, extent: Extent) -> Result<&Block> {
        if self.block.as_ref().is_none_or(|(present, _)| *present != extent) {
            self.block = None;
            let mut block = match self.mode {
                ReadMode::Cached => self.reader.block(extent)?,
                ReadMode::Streaming => {
                    let stored = self.ahead.stored(&self.reader, extent)?;
                    self.reader.open_block(extent, stored)?
                }
            };
            if let Some(check) = &self.check {
                let mut shown = TableBlock::new(&self.reader, extent, block, false);
                check.check(&mut shown)?;
                block = shown.into_block();
            }
            self.block = Some((extent, block));
        }
        Ok(&self.block.as_ref().expect("it was just loaded").1)
    }

    /// Makes entry `at` of the present block the present one.
    #[inline]
    fn enter(&mut self, at: usize) {
        let block = &*self.block.as_ref().expect("a block is loaded").1;
        let head = block.head(at);
        let suffix = head.suffix..head.suffix + head.suffix_len;
        self.key.clear();
        let group = RESTART_ENTRIES as usize;
        if at.is_multiple_of(group) {
            self.restart = suffix.clone();
        } else {
            // Inside a group that the cursor is already in, the restart key is known.
            if !self.is_valid || at / group != self.at / group {
                self.restart = block.restart_range(at);
            }
            let shared = self.restart.start..self.restart.start + head.shared;
            self.key.extend_from_slice(&block.bytes[shared]);
        }
        self.key.extend_from_slice(&block.bytes[suffix.clone()]);
        self.trailer = block.trailer(head);
        if let Some(seq) = self.global_seq {
            self.trailer = self.trailer.with_seq(seq);
        }
        self.value = suffix.end..suffix.end + head.value_len;
        self.at = at;
        self.is_valid = true;
    }

    /// Moves to the first entry of the block, or of a later one if this has only hidden ones.
    fn enter_first(&mut self, mut extent: Option<Extent>) -> Result<()> {
        self.is_valid = false;
        while let Some(present) = extent {
            if !self.load(present)?.is_empty() {
                self.enter(0);
                break;
            }
            extent = self.index.next(&self.reader)?;
        }
        Ok(())
    }

    /// Moves to the last entry of the block, or of an earlier one if this has only hidden ones.
    fn enter_last(&mut self, mut extent: Option<Extent>) -> Result<()> {
        self.is_valid = false;
        while let Some(present) = extent {
            if let Some(last) = self.load(present)?.len().checked_sub(1) {
                self.enter(last);
                break;
            }
            extent = self.index.prev(&self.reader)?;
        }
        Ok(())
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

    fn seek_stored(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.is_valid = false;
        let Some(extent) = self.index.seek(&self.reader, target)? else {
            return Ok(());
        };
        let block = self.load(extent)?;
        let at = block.lower_bound(target);
        if at == block.len() {
            // The target lies between the last key of this block and its separator.
            return self.next_block();
        }
        self.enter(at);
        Ok(())
    }

    fn seek_stored_before(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.is_valid = false;
        let Some(extent) = self.index.seek(&self.reader, target)? else {
            return self.seek_to_last();
        };
        let at = self.load(extent)?.lower_bound(target);
        if at == 0 {
            return self.prev_block();
        }
        self.enter(at - 1);
        Ok(())
    }

    /// Stored sequences say nothing here: there is one entry of a user key, so it is the one that
    /// the target asks for, or the next one is.
    #[cold]
    fn seek_ingested(&mut self, target: KeyRef<'_>) -> Result<()> {
        self.seek_stored(KeyRef::seek(target.user, SeqNo::MAX))?;
        while self.is_valid && self.key() < target {
            self.next()?;
        }
        Ok(())
    }
}

impl InternalIter for SstIter {
    fn valid(&self) -> bool {
        self.is_valid
    }

    fn key(&self) -> KeyRef<'_> {
        debug_assert!(self.is_valid, "the cursor is on an entry");
        KeyRef::new(&self.key, self.trailer)
    }

    fn value(&self) -> &[u8] {
        &self.present().bytes[self.value.clone()]
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
        if self.global_seq.is_some() {
            return self.seek_ingested(target);
        }
        self.seek_stored(target)
    }

    fn seek_before(&mut self, target: KeyRef<'_>) -> Result<()> {
        if self.global_seq.is_none() {
            return self.seek_stored_before(target);
        }
        self.seek_ingested(target)?;
        if self.is_valid { self.prev() } else { self.seek_to_last() }
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if self.at + 1 == self.present().len() {
            return self.next_block();
        }
        self.enter(self.at + 1);
        Ok(())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        assert!(self.is_valid, "prev needs an entry");
        if self.at == 0 {
            return self.prev_block();
        }
        self.enter(self.at - 1);
        Ok(())
    }
}

/// A piece of the file that was read in one go.
pub(super) struct ReadAhead {
    access: Access,
    /// Bytes to read at once, at least.
    most: u64,
    bytes: Vec<u8>,
    /// Where it lies in the file.
    offset: u64,
}

impl ReadAhead {
    /// Nothing read yet.
    pub(super) fn new(access: Access, most: u64) -> ReadAhead {
        ReadAhead { access, most, bytes: Vec::new(), offset: 0 }
    }

    /// The stored block at `extent`, read together with what follows it if it is not here.
    pub(super) fn stored(&mut self, reader: &SstReader, extent: Extent) -> Result<&[u8]> {
        let source = reader.source();
        let len = source.checked_len(extent)?;
        let have = extent.offset.checked_sub(self.offset);
        let start = match have.and_then(|start| usize::try_from(start).ok()) {
            Some(start) if start.checked_add(len).is_some_and(|end| end <= self.bytes.len()) => {
                start
            }
            _ => {
                let data_end =
                    reader.properties().data_bytes.clamp(extent.end(), source.file_bytes);
                let most = self.most.max(extent.len).min(data_end - extent.offset);
                // What is here is void from now on, also if the read fails.
                self.bytes.clear();
                self.offset = extent.offset;
                let mut bytes = std::mem::take(&mut self.bytes);
                bytes.resize(usize::try_from(most).expect("at most a block or the read-ahead"), 0);
                source.read_exact(self.access, extent.offset, &mut bytes)?;
                self.bytes = bytes;
                0
            }
        };
        Ok(&self.bytes[start..start + len])
    }
}
