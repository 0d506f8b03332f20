//! Point reads of a table: from the Bloom by way of the index to one block.
//!
//! Called by [`read::get`](crate::read::get), and by verified reads and repairs, which want the block
//! as well.

use std::sync::Arc;

use super::SstReader;
use crate::error::Result;
use crate::options::PrefixExtractor;
use crate::sstable::block::Block;
use crate::sstable::block_entry::BlockEntry;
use crate::sstable::hidden::hidden_trailer;
use crate::sstable::index_cursor::IndexCursor;
use crate::sstable::stored::Extent;
use crate::sstable::unparsed_seek::{UnparsedSeek, seek_unparsed};
use crate::types::{KeyRef, SeqNo, Slice, Trailer};

/// The way in which a search has blocks read: through the cache or past it.
type Load = fn(&SstReader, Extent) -> Result<Arc<Block>>;

/// A scan of a file on another machine asks for so many bytes at first: reads of single blocks would be a wait each.
const SCAN_BYTES: u64 = 128 << 10;

/// The only block of a table that can hold a key, by its number in the index and its place in the file.
#[derive(Clone, Copy)]
pub struct TargetBlock {
    number: usize,
    extent: Extent,
}

/// The end of a search of a block in its place.
enum InPlace {
    /// Trailer and value of the entry, if there is one.
    Found(Option<(Trailer, Slice)>),
    /// The block is needed as a whole.
    Undecided(Arc<Block>),
}

/// The end of a search for a key.
pub(in crate::sstable) struct LookupResult {
    pub extent: Extent,
    pub block: Arc<Block>,
    pub found: Option<BlockEntry>,
}

impl LookupResult {
    /// Trailer and value of what was found.
    #[inline]
    fn value(self) -> Option<(Trailer, Slice)> {
        let found = self.found?;
        Some((found.trailer, self.block.slice(found.value, found.value_len)))
    }
}

impl SstReader {
    /// Returns `true` if the table may hold the user key with this
    /// `bloom_hash`.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.bloom.as_ref().is_none_or(|bloom| bloom.may_contain(hash))
    }

    /// Returns `true` if the table's bloom lacks a user key of the table, or its prefix.
    pub fn is_missing_in_bloom(&self, user_key: &[u8]) -> bool {
        self.bloom.as_ref().is_some_and(|bloom| bloom.lacks(user_key).is_some())
    }

    /// Returns `false` if no key of the table has the prefix with this `bloom_hash` by `extractor`; `None` if the
    /// table was written without it.
    pub fn may_have_prefix(&self, extractor: PrefixExtractor, hash: u64) -> Option<bool> {
        let bloom = self.bloom.as_ref().filter(|bloom| bloom.extractor() == Some(extractor))?;
        Some(bloom.may_contain(hash))
    }

    /// Has the processor fetch what [`SstReader::may_contain`] looks at.
    #[inline]
    pub fn prefetch_bloom(&self, hash: u64) {
        if let Some(bloom) = &self.bloom {
            bloom.prefetch(hash);
        }
    }

    /// The newest entry of `user_key` that is not newer than `seq`, of whatever kind. `hash` is
    /// the key's `bloom_hash`.
    ///
    /// # Errors
    /// `Corruption` or `Io` where a block cannot be read; damage names the key.
    pub fn get(&self, user_key: &[u8], hash: u64, seq: SeqNo) -> Result<Option<(Trailer, Slice)>> {
        // The filter is in memory, so a miss reads neither index nor block.
        if !self.may_contain(hash) {
            return Ok(None);
        }
        let Some(seq) = self.stored_seq(seq) else { return Ok(None) };
        self.value_of(KeyRef::seek(user_key, seq)).map_err(|e| e.at_key(user_key))
    }

    /// The sequence by which a reader at `seq` searches the stored ones. `None` if it sees nothing of the table:
    /// of an ingested table it sees all entries or none.
    #[inline]
    pub(in crate::sstable) fn stored_seq(&self, seq: SeqNo) -> Option<SeqNo> {
        match self.global_seq {
            None => Some(seq),
            Some(global) => (seq >= global).then_some(SeqNo::MAX),
        }
    }

    /// The block that a get of `user_key` looks into; the processor begins to fetch it from the cache. `None` if the
    /// get finds its block in another way.
    pub fn prepare_get(&self, user_key: &[u8], seq: SeqNo) -> Option<TargetBlock> {
        let cache = self.cache.as_ref()?;
        if self.global_seq.is_some() || self.index.levels() > 1 {
            return None;
        }
        let number = self.index.lower_bound(KeyRef::seek(user_key, seq));
        let extent = self.index.extent(number)?;
        cache.prefetch_place(self.file, extent.offset);
        self.index.prefetch_block(number);
        Some(TargetBlock { number, extent })
    }

    /// The blocks in which keys from `start` to before `end` may lie, of so many: entries of the first level of the
    /// index, which stand for several blocks each in a large table.
    pub fn blocks_within(&self, start: &[u8], end: Option<&[u8]>) -> (usize, usize) {
        let count = self.index.block().len();
        let first = self.index.lower_bound(KeyRef::seek(start, SeqNo::MAX));
        let last = end.map_or(count, |end| {
            (self.index.lower_bound(KeyRef::seek(end, SeqNo::MAX)) + 1).min(count)
        });
        (last.saturating_sub(first), count)
    }

    /// Begins to read the blocks that a scan from `target` on comes to first. Errors are those of the seek.
    pub fn ask_block(&self, target: Option<KeyRef<'_>>) -> Result<()> {
        let mut index = IndexCursor::new();
        let extent = match target {
            Some(target) => index.seek(self, target),
            None => index.first(self).map(Some),
        };
        if let Some(extent) = extent? {
            self.read_extent_ahead(Extent { len: extent.len.max(SCAN_BYTES), ..extent });
        }
        Ok(())
    }

    /// Has the device read a block that the cache does not keep. Does not wait for it.
    pub fn read_ahead(&self, block: &TargetBlock) {
        self.read_extent_ahead(block.extent);
    }

    fn read_extent_ahead(&self, extent: Extent) {
        let cache = self.cache.as_ref();
        if !cache.is_some_and(|cache| cache.keeps(self.file, extent.offset)) {
            self.source.file.prefetch(extent.offset, extent.len);
        }
    }

    /// The rest of a get that was prepared.
    ///
    /// # Errors
    /// Those of [`SstReader::get`].
    pub fn get_in(
        &self,
        block: TargetBlock,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<Option<(Trailer, Slice)>> {
        let found = self.value_in(block, KeyRef::seek(user_key, seq));
        found.map_err(|error| error.at_key(user_key))
    }

    /// Searches by stored sequences; `None` after all blocks.
    #[inline(always)]
    pub(in crate::sstable) fn find(
        &self,
        user_key: &[u8],
        seq: SeqNo,
        load: Load,
    ) -> Result<Option<LookupResult>> {
        let target = KeyRef::seek(user_key, seq);
        let Some(extent) = self.locate(target, load)? else {
            return Ok(None);
        };
        self.find_in(extent, load(self, extent)?, target, load).map(Some)
    }

    /// Searches in a block, and after it where that is needed.
    #[inline(always)]
    fn find_in(
        &self,
        extent: Extent,
        block: Arc<Block>,
        target: KeyRef<'_>,
        load: Load,
    ) -> Result<LookupResult> {
        let found = block.find(target.user, target.trailer.seq());
        let result = LookupResult { extent, block, found };
        if result.found.is_none() && result.block.hidden_len() > 0 {
            return self.find_in_next_blocks(result, target, load);
        }
        Ok(result)
    }

    /// As [`SstReader::find`] where only trailer and value are wanted.
    #[inline(always)]
    fn value_of(&self, target: KeyRef<'_>) -> Result<Option<(Trailer, Slice)>> {
        let Some((number, extent)) = self.locate_numbered(target, SstReader::block)? else {
            return Ok(None);
        };
        self.index.prefetch_block(number);
        self.value_in(TargetBlock { number, extent }, target)
    }

    /// As [`SstReader::value_of`], in the only block that can hold the target.
    #[inline(always)]
    fn value_in(&self, at: TargetBlock, target: KeyRef<'_>) -> Result<Option<(Trailer, Slice)>> {
        let found = match self.search_in_place(at, target)? {
            InPlace::Found(found) => found,
            InPlace::Undecided(block) => {
                self.find_in(at.extent, block, target, SstReader::block)?.value()
            }
        };
        // Of an ingested table, readers see another sequence number than the stored one.
        let global = self.global_seq;
        Ok(found.map(|(trailer, value)| match global {
            None => (trailer, value),
            Some(seq) => (trailer.with_seq(seq), value),
        }))
    }

    /// Searches a block that is in the cache in its place, without a count of references to it.
    #[inline(always)]
    fn search_in_place(
        &self,
        TargetBlock { number, extent }: TargetBlock,
        target: KeyRef<'_>,
    ) -> Result<InPlace> {
        let mut found = None;
        let mut is_undecided = false;
        let is_kept = self.cache.as_ref().is_some_and(|cache| {
            cache.look(self.file, extent.offset, &mut |block| {
                self.index.note_block(number, block);
                match block.find(target.user, target.trailer.seq()) {
                    Some(entry) => {
                        found = Some((entry.trailer, block.slice(entry.value, entry.value_len)));
                    }
                    // Hidden entries are known to the block alone, so it is fetched after all.
                    None => is_undecided = block.has_hidden(),
                }
            })
        });
        match (is_kept, is_undecided) {
            (true, false) => Ok(InPlace::Found(found)),
            (true, true) => self.block(extent).map(InPlace::Undecided),
            (false, _) => self.search_unparsed(TargetBlock { number, extent }, target),
        }
    }

    /// Searches a block that the cache does not have: where it lies in the mapped file, or in a buffer of the
    /// thread if the cache does not want it.
    #[inline(never)]
    fn search_unparsed(
        &self,
        TargetBlock { number, extent }: TargetBlock,
        target: KeyRef<'_>,
    ) -> Result<InPlace> {
        let is_wanted = self.is_wanted(extent);
        let found = match &self.mapped {
            Some(mapped) => {
                let payload = mapped.payload(&self.source, number, extent)?;
                payload.and_then(|payload| self.seek_unparsed(payload, target))
            }
            None if is_wanted => None,
            None => self
                .source
                .look_at(extent, |payload| self.seek_unparsed(payload, target))?
                .flatten(),
        };
        match found {
            Some(found) => Ok(InPlace::Found(found)),
            None => self.read_block(extent, is_wanted).map(InPlace::Undecided),
        }
    }

    /// Looks for the target in a payload. `None` if the block is to be parsed instead.
    #[expect(clippy::option_option, reason = "a missing key is an answer, too")]
    #[inline]
    fn seek_unparsed(
        &self,
        payload: &[u8],
        target: KeyRef<'_>,
    ) -> Option<Option<(Trailer, Slice)>> {
        let may_have_hidden = self.hidden_suffix().is_some();
        Some(match seek_unparsed(payload, target.user, target.trailer.seq(), may_have_hidden)? {
            UnparsedSeek::Missing => None,
            UnparsedSeek::Found(trailer, value) => {
                Some((trailer, Slice::copy_from(&payload[value])))
            }
        })
    }

    /// Goes on where a block of hidden entries may part a key from its older versions: where its
    /// last entry is hidden and has exactly the user key that is searched for. Such keys are reserved,
    /// so this is rare.
    #[cold]
    fn find_in_next_blocks(
        &self,
        mut result: LookupResult,
        target: KeyRef<'_>,
        load: Load,
    ) -> Result<LookupResult> {
        let mut index = None;
        while result.block.ends_hidden_with(target.user, &self.properties.hidden_suffix) {
            let next = match &mut index {
                None => {
                    let mut cursor = IndexCursor::new();
                    cursor.seek(self, target)?;
                    index.insert(cursor).next(self)?
                }
                Some(cursor) => cursor.next(self)?,
            };
            let Some(extent) = next else { break };
            let block = load(self, extent)?;
            let found = block.find(target.user, target.trailer.seq());
            result = LookupResult { extent, block, found };
            if result.found.is_some() {
                break;
            }
        }
        Ok(result)
    }

    /// The only data block that can hold the hidden entry of this whole key.
    pub(in crate::sstable) fn block_of_hidden(
        &self,
        key: &[u8],
        seq: SeqNo,
        is_fresh: bool,
    ) -> Result<Option<(Extent, Arc<Block>)>> {
        let load = if is_fresh { SstReader::fresh_block } else { SstReader::block };
        let extent = self.locate(KeyRef::new(key, hidden_trailer(seq)), load)?;
        extent.map(|extent| Ok((extent, load(self, extent)?))).transpose()
    }

    /// The only data block that can hold an entry of the target's user key not before `target`.
    #[inline]
    pub(super) fn locate(&self, target: KeyRef<'_>, load: Load) -> Result<Option<Extent>> {
        Ok(self.locate_numbered(target, load)?.map(|(_, extent)| extent))
    }

    /// As [`SstReader::locate`], with the number of the block in its leaf of the index.
    #[inline]
    fn locate_numbered(&self, target: KeyRef<'_>, load: Load) -> Result<Option<(usize, Extent)>> {
        let number = self.index.lower_bound(target);
        let Some(extent) = self.index.extent(number) else {
            return Ok(None);
        };
        // The usual case: the index of a table of the default size is one block, which is always in
        // memory.
        if self.index.levels() == 1 {
            return Ok(Some((number, extent)));
        }
        let leaf = load(self, extent)?;
        let at = leaf.lower_bound(target);
        if at == leaf.len() {
            // The separator of the index partition is not before the target, so one of its entries
            // must not be either.
            return Err(self.index_levels_disagree());
        }
        self.leaf_extent(&leaf, at).map(|extent| Some((at, extent)))
    }
}
