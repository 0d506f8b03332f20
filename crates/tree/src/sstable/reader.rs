//! [`SstReader`]: an open table. Its version holds it, and all threads that read it share it.
//!
//! The bloom, the top of the index, the dictionary and the properties stay in memory as long as it lives. All other
//! blocks are read on demand and kept by the [`BlockCache`].
//!
//! Invariants:
//! 1. Opening refuses a file whose identity, length or hash is not the manifest's.
//! 2. A point read needs one data block: no separator lies between a key and the reader's target.
//! 3. A miss allocates nothing once its blocks are cached.
//! 4. The entries of an ingested table have its global sequence wherever they are read. Stored
//!    sequences only order them inside the file. Such a table has one entry of each user key.

pub(super) mod lookup;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::fs::File;
use crate::options::Compression;
use crate::types::{FileNo, KeyRef, SeqNo};

use super::block::Block;
use super::bloom::Bloom;
use super::footer::Footer;
use super::index::{Index, extent_at};
use super::mapped::MappedBlocks;
use super::properties::SstProperties;
use super::stored::{Access, BlockCodec, Extent, StoredPayload, TableSource};
use super::tail::{TableParts, load_bloom, load_codec, load_index, load_properties, parse};
use super::unparsed::{CursorBlock, UnparsedBlock};
use super::unparsed_seek::UNPARSED_BYTES_MAX;
use super::{BlockCache, SstIdentity};

/// An open table.
pub struct SstReader {
    source: TableSource,
    identity: SstIdentity,
    /// The number under which its blocks are cached: the one in the file's name.
    file: FileNo,
    /// The sequence that all entries have instead of their stored ones.
    global_seq: Option<SeqNo>,
    cache: Option<Arc<dyn BlockCache>>,
    bloom: Option<Bloom>,
    /// The index, or its upper level.
    index: Index,
    footer: Footer,
    footer_at: u64,
    properties: SstProperties,
    /// The data blocks, where they are read through a mapping. There is no cache then.
    mapped: Option<MappedBlocks>,
    /// See [`SstReader::hook_value`].
    hook_value: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Two marks of a table that is open in spite of damage: see `salvage.rs`.
    is_walked_only: bool,
    is_cut_short: bool,
}

impl SstReader {
    /// Opens the table in `file`. `expected` is length and hash as the manifest has them.
    ///
    /// # Errors
    /// `Corruption` with path and offset, also for a sound table that is another one;
    /// `Unsupported` for formats and features that this version does not know; `Io`.
    ///
    /// # Cost
    /// Four reads: footer, bloom block, index, properties; one more for a dictionary.
    pub fn open(
        file: Arc<dyn File>,
        path: PathBuf,
        identity: SstIdentity,
        expected: Option<(u64, u128)>,
        cache: Option<Arc<dyn BlockCache>>,
    ) -> Result<SstReader> {
        let file_bytes = file.len()?;
        let path: Arc<Path> = path.into();
        let unique_id = identity.unique_id();
        let codec = BlockCodec::default();
        let mut source = TableSource { file, path, unique_id, file_bytes, codec };
        if let Some((bytes, _)) = expected.filter(|(bytes, _)| *bytes != file_bytes) {
            let what = format!("file has {file_bytes} bytes, the manifest says {bytes}");
            return Err(source.corruption(file_bytes.min(bytes), what));
        }
        // Identity and hash first: blocks of another sound table would be reported as damaged.
        let (footer, footer_at) = Footer::read(&source, Access::Plain)?;
        if footer.unique_id != source.unique_id || footer.db_id != identity.db_id {
            return Err(source.corruption(footer_at, "file is a different table"));
        }
        if expected.is_some_and(|(_, hash)| hash != footer.file_hash) {
            return Err(source.corruption(footer_at, "file hash differs from the manifest's"));
        }
        // The properties before bloom and index, because they have the checksums of both.
        let payload = source.read(footer.properties)?;
        let properties = load_properties(&source, &footer, &payload.bytes[..payload.len])?;
        source.codec = load_codec(&source, &properties)?;
        let bloom = load_bloom(&source, &footer, &properties)?;
        let index = load_index(&source, &footer, &properties)?;
        let parts = TableParts { bloom, index, footer, footer_at, properties };
        Ok(SstReader::of_parts(source, identity, parts, cache))
    }

    pub(super) fn of_parts(
        source: TableSource,
        identity: SstIdentity,
        parts: TableParts,
        cache: Option<Arc<dyn BlockCache>>,
    ) -> SstReader {
        let TableParts { bloom, index, footer, footer_at, properties } = parts;
        SstReader {
            source,
            identity,
            file: identity.file,
            global_seq: None,
            cache,
            bloom,
            index,
            footer,
            footer_at,
            properties,
            mapped: None,
            hook_value: OnceLock::new(),
            is_walked_only: false,
            is_cut_short: false,
        }
    }

    /// Reads data blocks through a mapping of the file from now on, and past the cache, if the table is not
    /// compressed, its index is one block, and the medium maps files. Otherwise nothing changes.
    #[must_use]
    pub fn map(self) -> SstReader {
        // What is compressed cannot be searched where it lies. With an index of two levels the number of a block is
        // not known, and its index partitions need the cache.
        let is_plain = self.properties.compression == Compression::None as u8;
        if !is_plain || self.index.levels() > 1 {
            return self;
        }
        let count = self.index.block().len();
        match MappedBlocks::of(&self.source, self.properties.data_bytes, count) {
            Some(mapped) => SstReader { mapped: Some(mapped), cache: None, ..self },
            None => self,
        }
    }

    /// Bytes of the file that are read through a mapping.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped.as_ref().map_or(0, |mapped| mapped.file().len() as u64)
    }

    /// The file as it is mapped, up to the end of its data blocks; empty if it is not.
    #[inline]
    pub(super) fn mapped_file(&self) -> &[u8] {
        self.mapped.as_ref().map_or(&[], MappedBlocks::file)
    }

    /// The block at `extent`, the entry `number` of its index block, for a cursor: where it lies in the mapped file, from the cache,
    /// or as it was read if the cache does not want it (design note 18).
    pub(super) fn cursor_block(&self, number: usize, extent: Extent) -> Result<CursorBlock> {
        let may_have_hidden = self.hidden_suffix().is_some();
        if let Some(mapped) = &self.mapped {
            let payload = mapped.payload(&self.source, number, extent)?;
            let unparsed = payload.and_then(|payload| {
                // It lies in memory, so the number fits.
                UnparsedBlock::mapped(extent.offset as usize, payload, may_have_hidden)
            });
            return match unparsed {
                Some(block) => Ok(CursorBlock::Unparsed(block)),
                None => self.read_block(extent, false).map(CursorBlock::Parsed),
            };
        }
        self.index.prefetch_block(number);
        if let Some(block) =
            self.cache.as_ref().and_then(|cache| cache.get(self.file, extent.offset))
        {
            self.index.note_block(number, block.data());
            return Ok(CursorBlock::Parsed(block));
        }
        let is_wanted = self.is_wanted(extent);
        if is_wanted {
            return self.read_block(extent, true).map(CursorBlock::Parsed);
        }
        let payload = self.source.read(extent)?;
        let is_short = payload.len <= UNPARSED_BYTES_MAX;
        let unparsed = is_short.then(|| UnparsedBlock::read(&payload, may_have_hidden));
        match unparsed.flatten() {
            Some(block) => Ok(CursorBlock::Unparsed(block)),
            None => Ok(CursorBlock::Parsed(Arc::new(self.parse(extent, payload)?))),
        }
    }

    /// The cache that keeps its blocks, with the number that they are kept under.
    #[inline]
    pub(super) fn cache(&self) -> Option<(&dyn BlockCache, FileNo)> {
        self.cache.as_deref().map(|cache| (cache, self.file))
    }

    /// Has the processor fetch what a seek to `target` waits for, if the index has one level: the place at which the
    /// cache keeps the block, and the block where it lay last. The seek searches the index again: by then it is in the
    /// processor's cache, while to keep what was found would be one more state of every cursor.
    pub fn prefetch(&self, target: KeyRef<'_>) {
        if self.index.levels() > 1 {
            return;
        }
        let number = self.index.lower_bound(target);
        if let Some(cache) = &self.cache
            && let Some(extent) = self.index.extent(number)
        {
            cache.prefetch_place(self.file, extent.offset);
            self.index.prefetch_block(number);
        }
    }

    /// A table whose index has no keys, and, if it `is_cut_short`, not all blocks.
    pub(super) fn walked_only(self, is_cut_short: bool) -> SstReader {
        SstReader { is_walked_only: true, is_cut_short, ..self }
    }

    /// Returns `true` if the table can be walked along and not be searched.
    pub(super) fn is_walked_only(&self) -> bool {
        self.is_walked_only
    }

    /// Returns `true` if data blocks are missing after the last that the index names.
    pub(super) fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    /// This table under the number `file`, which is another than the one in its identity if it was
    /// ingested, and with `global_seq` as the sequence of all its entries if that is given.
    #[must_use]
    pub fn placed(self, file: FileNo, global_seq: Option<SeqNo>) -> SstReader {
        SstReader { file, global_seq, ..self }
    }

    /// The table's account of itself.
    pub fn properties(&self) -> &SstProperties {
        &self.properties
    }

    /// The value that a hook made of the table at its first call, kept as long as the table is open.
    /// `None` if another hook keeps something else here: a table has one such value.
    #[inline]
    pub fn hook_value<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.hook_value.get_or_init(|| Box::new(make())).downcast_ref()
    }

    /// The number of the file.
    #[inline]
    pub(super) fn file(&self) -> FileNo {
        self.file
    }

    /// The identity of the file.
    pub fn identity(&self) -> SstIdentity {
        self.identity
    }

    /// The sequence that all entries have instead of their stored ones, if it was ingested.
    pub fn global_seq(&self) -> Option<SeqNo> {
        self.global_seq
    }

    /// Memory that the open table holds outside the cache, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let bloom = self.bloom.as_ref().map_or(0, Bloom::memory_bytes);
        let marks = self.mapped.as_ref().map_or(0, MappedBlocks::memory_bytes);
        let dictionary = self.source.codec.dictionary.as_ref().map_or(0, |it| it.memory_bytes());
        bloom + self.index.memory_bytes() + (marks + dictionary + size_of::<SstReader>()) as u64
    }

    /// Returns the number of bytes of data blocks before `user_key`, about. Where the index cannot
    /// be read it answers as for a key after all others.
    pub fn approximate_offset(&self, user_key: &[u8]) -> u64 {
        match self.locate(KeyRef::seek(user_key, SeqNo::MAX), SstReader::block) {
            Ok(Some(extent)) => extent.offset,
            _ => self.properties.data_bytes,
        }
    }

    /// The block at `extent`, from the cache if it is there; kept there if it was not.
    #[inline]
    pub(super) fn block(&self, extent: Extent) -> Result<Arc<Block>> {
        if let Some(cache) = &self.cache
            && let Some(block) = cache.get(self.file, extent.offset)
        {
            return Ok(block);
        }
        self.read_block(extent, self.is_wanted(extent))
    }

    /// The block from the file; kept in the cache if it `is_wanted` there.
    #[cold]
    fn read_block(&self, extent: Extent, is_wanted: bool) -> Result<Arc<Block>> {
        let block = self.parsed(Access::Plain, extent)?;
        // After it is parsed: a block with a wrong checksum or a malformed entry never enters the
        // cache.
        Ok(if is_wanted { self.keep(extent, block) } else { block })
    }

    /// Returns `true` if the cache wants the block at `extent`, which it has not.
    fn is_wanted(&self, extent: Extent) -> bool {
        // About what a parsed block of short entries takes: its numbers come to the payload. An estimate is
        // enough, because a block that is put in makes room for itself.
        let memory_bytes = extent.len + extent.len / 4;
        self.cache.as_ref().is_some_and(|it| it.wants(self.file, extent.offset, memory_bytes))
    }

    /// The block from the device, past every cache; it takes the place of the cached one.
    #[cold]
    pub(super) fn fresh_block(&self, extent: Extent) -> Result<Arc<Block>> {
        Ok(self.keep(extent, self.parsed(Access::Uncached, extent)?))
    }

    fn parsed(&self, access: Access, extent: Extent) -> Result<Arc<Block>> {
        let mapped = self.mapped.as_ref().filter(|_| access == Access::Plain);
        let copy = mapped.map(|mapped| mapped.copy(&self.source, extent)).transpose()?.flatten();
        let payload = match (copy, self.partition_checksum(extent)) {
            (Some(copy), _) => copy,
            (None, Some(expected)) => self.source.read_expected(extent, Some(expected))?,
            (None, None) => self.source.read_by(access, extent)?,
        };
        Ok(Arc::new(self.parse(extent, payload)?))
    }

    /// Puts the block at `extent` into the cache, in the place of one that is there. Returns what is to
    /// be used from now on.
    pub(super) fn keep(&self, extent: Extent, block: Arc<Block>) -> Arc<Block> {
        match &self.cache {
            Some(cache) => cache.insert(self.file, extent.offset, block),
            None => block,
        }
    }

    /// Takes the blocks of the table out of the cache: no one will ask for them but those who read an
    /// older version.
    ///
    /// # Cost
    /// A look into the cache for each block that the index names; reads nothing. Blocks of an index
    /// partition that is not in the cache stay until others need their room.
    pub fn forget_blocks(&self) {
        let Some(cache) = &self.cache else { return };
        for i in 0..self.index.block().len() {
            let Some(extent) = self.index.extent(i) else { break };
            let gone = cache.remove(self.file, extent.offset);
            // In an index of two levels these are index partitions.
            let Some(leaf) = gone.filter(|_| self.index.levels() > 1) else { continue };
            for extent in (0..leaf.len()).filter_map(|at| extent_at(&leaf, at)) {
                cache.remove(self.file, extent.offset);
            }
        }
    }

    /// The checksum that the properties have of the index partition at `extent`.
    fn partition_checksum(&self, extent: Extent) -> Option<u64> {
        // Data blocks have no second checksum: the properties would grow with the table.
        if self.index.levels() == 1 || extent.offset < self.properties.data_bytes {
            return None;
        }
        let at = self.index.position(extent.offset)?;
        let first = usize::from(self.footer.bloom.len > 0);
        self.properties.tail_checksums.get(first + at).copied()
    }

    /// A large block, read alone: what is not compressed has no second copy; the cache does not see it.
    #[cold]
    pub(super) fn block_alone(&self, extent: Extent) -> Result<Arc<Block>> {
        let payload = self.source.read(extent)?;
        self.parse(extent, payload).map(Arc::new)
    }

    /// A block that was read along with its neighbours; the cache does not see it.
    pub(super) fn open_block(&self, extent: Extent, stored: &[u8]) -> Result<Arc<Block>> {
        let payload = self.source.open(extent.offset, stored)?;
        self.parse(extent, payload).map(Arc::new)
    }

    /// Checks the payload of a data block or index partition.
    pub(super) fn parse(&self, extent: Extent, payload: StoredPayload) -> Result<Block> {
        parse(&self.source, extent, payload, self.hidden_suffix())
    }

    /// The suffix of hidden keys, in a table that has some.
    pub(super) fn hidden_suffix(&self) -> Option<&[u8]> {
        Some(&*self.properties.hidden_suffix).filter(|suffix| !suffix.is_empty())
    }

    /// Returns the number of the data block at `extent`, from 0.
    pub(super) fn number_of(&self, extent: Extent) -> Option<u64> {
        if self.index.levels() == 1 {
            return self.index.position(extent.offset).map(|at| at as u64);
        }
        let mut before = 0;
        for i in 0..self.index.block().len() {
            let leaf = self.block(self.index.extent(i)?).ok()?;
            let last = extent_at(&leaf, leaf.len().checked_sub(1)?)?;
            // Blocks lie in order, so the last one of a partition says if the block lies after it.
            if last.offset < extent.offset {
                before += leaf.len() as u64;
                continue;
            }
            let mut entries = 0..leaf.len();
            let at = entries.find(|at| extent_at(&leaf, *at) == Some(extent))?;
            return Some(before + at as u64);
        }
        None
    }

    /// The extent of the data block with this number; `None` if there is none.
    pub(super) fn extent_of(&self, number: u64) -> Result<Option<Extent>> {
        let Ok(number) = usize::try_from(number) else { return Ok(None) };
        match self.blocks().nth(number) {
            None => Ok(None),
            Some(Ok((offset, len))) => Ok(Some(Extent { offset, len })),
            Some(Err(error)) => Err(error),
        }
    }

    /// The extent that entry `i` of an index partition names.
    pub(super) fn leaf_extent(&self, leaf: &Block, i: usize) -> Result<Extent> {
        extent_at(leaf, i)
            .ok_or_else(|| self.source.corruption(None, "index entry does not name a block"))
    }

    /// Both levels of the index verified, and they contradict each other.
    #[cold]
    pub(super) fn index_levels_disagree(&self) -> Error {
        self.source.corruption(None, "index partition ends before its separator")
    }

    pub(super) fn source(&self) -> &TableSource {
        &self.source
    }

    /// The footer, and where it begins.
    pub(super) fn footer(&self) -> (&Footer, u64) {
        (&self.footer, self.footer_at)
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }
}
