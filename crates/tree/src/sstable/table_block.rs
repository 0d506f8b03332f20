//! [`TableBlock`]: a data block of an open table with its entries and their hidden entries, for
//! readers that check the entries against the hidden ones.
//!
//! A point read in raw form returns one ([`SstReader::look_up`]). A scan with a [`BlockCheck`]
//! passes each block to the check before it returns an entry of it.
//!
//! Invariants:
//! 1. Entries are read from the block in memory at each look: bytes that were checked once may have
//!    changed since.
//! 2. A block that was read again replaces the block in the cache.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::block::Block;
use super::hidden::{HiddenEntries, HiddenHead};
use super::indexed_block::IndexedBlock;
use super::properties::SstProperties;
use super::reader::SstReader;
use super::reader::lookup::LookupResult;
use super::stored::Extent;
use crate::error::{Error, Result};
use crate::hooks::VerifiedBlock;
use crate::types::{FileNo, KeyRef, SeqNo, Slice, Trailer};

/// Checks each data block before a scan returns an entry of it.
pub trait BlockCheck: Send + Sync + 'static {
    /// Returns an error if no entry of the block may be returned. May read it again. The check of a job puts what the
    /// hidden entries say of the entries into `verified`.
    fn check(&self, block: &mut TableBlock<'_>, verified: &mut VerifiedBlock) -> Result<()>;

    /// An error if the table has not all of its entries. Called after its last block. Default: it has.
    fn end(&self, table: OpenTable<'_>) -> Result<()> {
        let _ = table;
        Ok(())
    }
}

/// The payload of a hidden entry.
#[derive(Clone, Debug)]
pub struct Hidden<'b> {
    head: HiddenHead,
    seq: SeqNo,
    /// The block that it lies in.
    block: Cow<'b, IndexedBlock>,
}

impl Hidden<'_> {
    /// Returns `true` if it lies in the block of its owner.
    #[inline]
    pub fn is_next_to_owner(&self) -> bool {
        matches!(self.block, Cow::Borrowed(_))
    }

    /// Returns what it has after its first 8 bytes, if it is so long. Those are most often the
    /// owner's stored sequence number, and this is all that is stored: it costs no copy.
    #[inline]
    pub fn after_seq(&self) -> Option<&[u8]> {
        self.head.after_seq(self.block.bytes())
    }

    /// Returns the whole payload.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.head.payload_len());
        self.head.expand(self.block.bytes(), self.seq, &mut whole);
        whole
    }
}

/// An open table, as the code of a hook sees it.
#[derive(Clone, Copy)]
pub struct OpenTable<'a>(&'a SstReader);

impl<'a> OpenTable<'a> {
    /// The table of an open reader.
    pub fn new(reader: &'a SstReader) -> OpenTable<'a> {
        OpenTable(reader)
    }

    /// The properties that the table carries.
    #[inline]
    pub fn properties(self) -> &'a SstProperties {
        self.0.properties()
    }

    /// As `SstReader::hook_value`.
    #[inline]
    pub fn hook_value<T: Any + Send + Sync>(self, make: impl FnOnce() -> T) -> Option<&'a T> {
        self.0.hook_value(make)
    }

    pub(super) fn file(self) -> FileNo {
        self.0.file()
    }

    pub(super) fn global_seq(self) -> Option<SeqNo> {
        self.0.global_seq()
    }

    pub(super) fn corruption(self, what: String) -> Error {
        self.0.source().corruption(None, what)
    }
}

/// A visible entry of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryAt {
    index: usize,
    /// Its end in the block's payload.
    end: usize,
}

impl EntryAt {
    /// Its index among the visible entries.
    #[inline]
    pub fn index(self) -> usize {
        self.index
    }
}

/// A data block of an open table. Visible entries are counted from 0; see the module.
#[derive(Clone)]
pub struct TableBlock<'a> {
    reader: &'a SstReader,
    extent: Extent,
    block: Arc<Block>,
    /// `true` if other blocks that are needed are read past every cache as well.
    is_fresh: bool,
}

impl<'a> TableBlock<'a> {
    pub(super) fn new(
        reader: &'a SstReader,
        extent: Extent,
        block: Arc<Block>,
        is_fresh: bool,
    ) -> TableBlock<'a> {
        TableBlock { reader, extent, block, is_fresh }
    }

    /// The block itself.
    pub(super) fn into_block(self) -> Arc<Block> {
        self.block
    }

    /// The table.
    pub fn table(&self) -> OpenTable<'a> {
        OpenTable(self.reader)
    }

    /// Its offset in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.extent.offset
    }

    /// Returns its number among the data blocks of the table, from 0; `None` if the index does not say.
    ///
    /// # Cost
    /// Reads the partitions of a split index up to the block's own.
    pub fn number(&self) -> Option<u64> {
        self.reader.number_of(self.extent)
    }

    /// Returns the data block with this number of the same table; `None` if there is none.
    ///
    /// # Errors
    /// Those of reading the index and the block.
    pub fn sibling(&self, number: u64) -> Result<Option<TableBlock<'a>>> {
        let Some(extent) = self.reader.extent_of(number)? else { return Ok(None) };
        // As this block was read: if the caches are in doubt for one, they are for the other.
        let block = match self.is_fresh {
            true => self.reader.fresh_block(extent)?,
            false => self.reader.block(extent)?,
        };
        Ok(Some(TableBlock::new(self.reader, extent, block, self.is_fresh)))
    }

    /// The suffix of hidden keys; empty in a table without them.
    pub(super) fn hidden_suffix(&self) -> &[u8] {
        self.reader.hidden_suffix().unwrap_or_default()
    }

    /// The payloads of the hidden entries without their first 8 bytes, one after the other, and the length
    /// of each, if they lie so.
    pub(super) fn hidden_column(&self) -> Option<(&[u8], usize)> {
        match &self.block.hidden {
            HiddenEntries::Column(column) => {
                let end = column.start + column.width * self.len();
                Some((&self.block.bytes()[column.start..end], column.width))
            }
            HiddenEntries::None | HiddenEntries::Mixed(_) => None,
        }
    }

    /// Returns `true` if a hook has said so since the block came into memory.
    #[inline]
    pub fn is_whole(&self) -> bool {
        // The flag carries no other data. A reader that misses it checks once more.
        self.block.is_whole.load(Ordering::Relaxed)
    }

    /// Keeps for as long as the block is in memory that it lacks none of its entries.
    pub fn set_whole(&self) {
        self.block.is_whole.store(true, Ordering::Relaxed);
    }

    /// Number of visible entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Returns `true` if all entries are hidden.
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// Entry `i` as the file has it: its place, its key, which is rebuilt in `key`, its value.
    pub fn entry<'b>(&'b self, i: usize, key: &'b mut Vec<u8>) -> (EntryAt, KeyRef<'b>, &'b [u8]) {
        let entry = self.block.key(i);
        key.clear();
        key.extend_from_slice(entry.key.shared);
        key.extend_from_slice(entry.key.suffix);
        let value = self.block.value_range(i);
        let at = EntryAt { index: i, end: value.end };
        (at, KeyRef::new(key, entry.trailer), &self.block.bytes()[value])
    }

    /// Returns `true` if entry `i`, which is not the first, has the user key of the entry before
    /// it.
    #[inline]
    pub fn is_version(&self, i: usize) -> bool {
        let words = self.block.words();
        // Words first: they decide without rebuilding a key.
        words[i - 1] == words[i] && self.block.is_version(i)
    }

    /// Returns `true` if a version of `key` that a reader at `seq` sees is among the entries: by
    /// looking at each of them, and not by the numbers of a search.
    pub fn holds(&self, key: &[u8], seq: SeqNo) -> bool {
        // A reader that sees an ingested table sees all of it.
        let sees_all = self.reader.global_seq().is_some();
        // Words and restarts are not asked: a fault of memory in them is what the caller looks for.
        (0..self.len())
            .map(|i| self.block.key(i))
            .any(|entry| entry.key.is(key) && (sees_all || entry.trailer.seq() <= seq))
    }

    /// Puts the block into the cache with one bit turned of the word that a search uses to find
    /// entry `i`: a fault of memory, for the tests of what finds it.
    ///
    /// # Errors
    /// Those of reading the block.
    #[cfg(any(test, feature = "internals"))]
    pub fn damage_word(&self, i: usize) -> Result<()> {
        let mut damaged =
            self.reader.parse(self.extent, self.reader.source().read(self.extent)?)?;
        damaged.damage_word(i, 1);
        self.reader.keep(self.extent, Arc::new(damaged));
        Ok(())
    }

    /// Which entry of the block it is with hidden ones counted, as in
    /// [`Origin::entry`](crate::hooks::Origin::entry).
    pub fn place(&self, at: EntryAt) -> u32 {
        // A block has fewer entries than bytes, and those are counted in 32 bits.
        self.block.entries_before(at.index) as u32
    }

    /// The hidden entry that belongs to the entry at `at`, which has the user key `key` and the
    /// stored sequence number `seq`. It is looked for where it nearly always lies, right after the
    /// entry; then, by its key, in the block, and in the block of the table that it sorts into.
    ///
    /// # Errors
    /// Corruption of that other block, or of the way to it.
    #[inline]
    pub fn hidden_of(&self, at: EntryAt, key: &[u8], seq: SeqNo) -> Result<Option<Hidden<'_>>> {
        match self.block.next_hidden(at.index, at.end) {
            Some(head) => Ok(Some(Hidden { head, seq, block: Cow::Borrowed(self.block.data()) })),
            None => self.search_hidden(key, seq),
        }
    }

    #[cold]
    fn search_hidden(&self, key: &[u8], seq: SeqNo) -> Result<Option<Hidden<'_>>> {
        // Without a suffix the table was written by no filter that adds hidden entries.
        let Some(suffix) = self.reader.hidden_suffix() else { return Ok(None) };
        let key = [key, suffix].concat();
        if let Some(head) = self.block.find_hidden(&key, seq, suffix) {
            return Ok(Some(Hidden { head, seq, block: Cow::Borrowed(self.block.data()) }));
        }
        // A block may have ended between an entry and its hidden one, where the bound of a block
        // forced it.
        let other = self.reader.block_of_hidden(&key, seq, self.is_fresh)?;
        // This block was searched already.
        let other = other.filter(|(extent, _)| *extent != self.extent);
        Ok(other.and_then(|(_, block)| {
            let head = block.find_hidden(&key, seq, suffix)?;
            Some(Hidden { head, seq, block: Cow::Owned(block.data().clone()) })
        }))
    }

    /// Reads the block once more, past every cache, and keeps that in the cache.
    ///
    /// # Errors
    /// As every reading of a block. This is then what it was.
    pub fn reread(&mut self) -> Result<()> {
        self.block = self.reader.fresh_block(self.extent)?;
        self.is_fresh = true;
        Ok(())
    }

    /// Corruption of this block.
    pub fn corruption(&self, what: impl Into<String>) -> Error {
        self.reader.source().corruption(self.extent.offset, what)
    }
}

impl fmt::Debug for TableBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableBlock")
            .field("offset", &self.extent.offset)
            .field("entries", &self.len())
            .finish_non_exhaustive()
    }
}

/// The finding of a point read in raw form in a table.
pub struct LookUp<'a> {
    /// The block that holds the key if any of the table does.
    pub block: TableBlock<'a>,
    /// The newest entry of the key that the reader sees, of whatever kind.
    pub entry: Option<LookedUp>,
}

/// An entry that [`SstReader::look_up`] came to.
pub struct LookedUp {
    /// The index of the entry in the block.
    pub at: EntryAt,
    /// Kind, and the sequence number that the file has.
    pub stored: Trailer,
    /// Its value, payload or handle.
    pub value: Slice,
}

impl SstReader {
    /// As [`SstReader::get`], with the block in which the search ended. `None` where the bloom or
    /// the index says that the table has no such key, or none that the reader sees. `is_fresh`
    /// reads past every cache.
    ///
    /// # Errors
    /// As [`SstReader::get`].
    #[inline]
    pub fn look_up(
        &self,
        user_key: &[u8],
        hash: u64,
        seq: SeqNo,
        is_fresh: bool,
    ) -> Result<Option<LookUp<'_>>> {
        let Some(seq) = self.stored_seq(seq) else { return Ok(None) };
        if !self.may_contain(hash) {
            return Ok(None);
        }
        let result = match is_fresh {
            false => self.find(user_key, seq, SstReader::block),
            true => self.find_fresh(user_key, seq),
        };
        let Some(result) = result.map_err(|error| error.at_key(user_key))? else { return Ok(None) };
        let block = TableBlock::new(self, result.extent, result.block, is_fresh);
        let entry = result.found.map(|found| LookedUp {
            at: EntryAt { index: found.at, end: found.value + found.value_len },
            stored: found.trailer,
            value: block.block.slice(found.value, found.value_len),
        });
        Ok(Some(LookUp { block, entry }))
    }

    #[cold]
    fn find_fresh(&self, user_key: &[u8], seq: SeqNo) -> Result<Option<LookupResult>> {
        self.find(user_key, seq, SstReader::fresh_block)
    }
}
