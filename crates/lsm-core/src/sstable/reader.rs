//! [`SstReader`]: an open table. Held by its version, shared by all threads that read it.
//!
//! Bloom structure, top of the index and properties stay in memory as long as it lives; all other
//! blocks are read when they are needed and kept by the [`BlockCache`].
//!
//! Invariants:
//! 1. Opening refuses a file of another identity, length or hash than the manifest says.
//! 2. A point read needs one data block: separators never part a key from the reader's target.
//! 3. A miss allocates nothing once its blocks are cached.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::fs::File;
use crate::types::{KeyRef, SeqNo, Slice, Trailer};

use super::block::Block;
use super::bloom::Bloom;
use super::footer::Footer;
use super::index::{Index, extent_at};
use super::iter::{ReadMode, SstIter};
use super::properties::Properties;
use super::stored::{Extent, Payload, Source};
use super::{BlockCache, SstIdentity};

/// An open table.
pub struct SstReader {
    source: Source,
    identity: SstIdentity,
    cache: Option<Arc<dyn BlockCache>>,
    bloom: Option<Bloom>,
    /// The index, or its upper level.
    index: Index,
    file_hash: u128,
    properties: Properties,
}

impl SstReader {
    /// Opens the table in `file`. `expected` is length and hash as the manifest has them.
    ///
    /// # Errors
    /// `Corruption` with path and offset, also for a sound table that is another one;
    /// `Unsupported` for formats and features that this version does not know; `Io`.
    ///
    /// # Cost
    /// Four reads: footer, bloom block, index, properties.
    pub fn open(
        file: Arc<dyn File>,
        path: PathBuf,
        identity: SstIdentity,
        expected: Option<(u64, u128)>,
        cache: Option<Arc<dyn BlockCache>>,
    ) -> Result<SstReader> {
        let file_bytes = file.len()?;
        let path: Arc<Path> = path.into();
        let source = Source { file, path, unique_id: identity.unique_id(), file_bytes };
        if let Some((bytes, _)) = expected.filter(|(bytes, _)| *bytes != file_bytes) {
            let what = format!("file has {file_bytes} bytes, the manifest says {bytes}");
            return Err(source.corruption(file_bytes.min(bytes), what));
        }
        let (footer, footer_at) = Footer::read(&source)?;
        if footer.unique_id != source.unique_id || footer.db_id != identity.db_id {
            return Err(source.corruption(footer_at, "file is another table"));
        }
        if expected.is_some_and(|(_, hash)| hash != footer.file_hash) {
            return Err(source.corruption(footer_at, "file hash is not the manifest's"));
        }
        let bloom = if footer.bloom.len == 0 { None } else { load_bloom(&source, footer.bloom)? };
        let index = load_index(&source, &footer)?;
        let payload = source.read(footer.properties)?;
        let payload = &payload.bytes[..payload.len];
        let properties = Properties::decode(&source, footer.properties.offset, payload)?;
        Ok(SstReader {
            source,
            identity,
            cache,
            bloom,
            index,
            file_hash: footer.file_hash,
            properties,
        })
    }

    /// Whether the table may hold the user key with this [`bloom_hash`](super::bloom_hash).
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.bloom.as_ref().is_none_or(|bloom| bloom.may_contain(hash))
    }

    /// The newest entry of `user_key` that is not newer than `seq`, of whatever kind. `hash` is
    /// the key's [`bloom_hash`](super::bloom_hash).
    ///
    /// # Errors
    /// `Corruption` or `Io` where a block cannot be read; damage names the key.
    pub fn get(&self, user_key: &[u8], hash: u64, seq: SeqNo) -> Result<Option<(Trailer, Slice)>> {
        if !self.may_contain(hash) {
            return Ok(None);
        }
        self.find(user_key, seq).map_err(|e| e.at_key(user_key))
    }

    fn find(&self, user_key: &[u8], seq: SeqNo) -> Result<Option<(Trailer, Slice)>> {
        let target = KeyRef::seek(user_key, seq);
        let Some(extent) = self.locate(target)? else {
            return Ok(None);
        };
        let block = self.block(extent)?;
        let found = block.find(user_key, seq);
        Ok(found.map(|found| (found.trailer, block.slice(found.value, found.value_len))))
    }

    /// The only data block that can hold an entry of the target's user key not before `target`.
    fn locate(&self, target: KeyRef<'_>) -> Result<Option<Extent>> {
        let Some(extent) = self.index.extent(self.index.block().lower_bound(target)) else {
            return Ok(None);
        };
        if self.index.levels() == 1 {
            return Ok(Some(extent));
        }
        let leaf = self.block(extent)?;
        let at = leaf.lower_bound(target);
        if at == leaf.len() {
            return Err(self.split_lies());
        }
        self.leaf_extent(&leaf, at).map(Some)
    }

    /// A cursor over all entries, before the first.
    pub fn iter(self: &Arc<Self>, mode: ReadMode) -> SstIter {
        SstIter::new(self.clone(), mode)
    }

    /// What the table says about itself.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Which file it is.
    pub fn identity(&self) -> SstIdentity {
        self.identity
    }

    /// XXH3-128 over the checksums of all blocks.
    pub fn file_hash(&self) -> u128 {
        self.file_hash
    }

    /// Memory that the open table holds outside the cache, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let bloom = self.bloom.as_ref().map_or(0, Bloom::memory_bytes);
        bloom + self.index.memory_bytes() + size_of::<SstReader>() as u64
    }

    /// How many bytes of data blocks lie before `user_key`, about. Where the index cannot be read
    /// it answers as for a key behind all.
    pub fn approximate_offset(&self, user_key: &[u8]) -> u64 {
        match self.locate(KeyRef::seek(user_key, SeqNo::MAX)) {
            Ok(Some(extent)) => extent.offset,
            _ => self.properties.data_bytes,
        }
    }

    /// The block at `extent`, from the cache if it is there; kept there if it was not.
    #[inline]
    pub(super) fn block(&self, extent: Extent) -> Result<Arc<Block>> {
        if let Some(cache) = &self.cache
            && let Some(block) = cache.get(self.identity.file, extent.offset)
        {
            return Ok(block);
        }
        self.read_block(extent)
    }

    #[cold]
    fn read_block(&self, extent: Extent) -> Result<Arc<Block>> {
        let block = Arc::new(parse(&self.source, extent, self.source.read(extent)?)?);
        if let Some(cache) = &self.cache {
            cache.insert(self.identity.file, extent.offset, &block);
        }
        Ok(block)
    }

    /// A block that was read along with its neighbours; the cache does not see it.
    pub(super) fn open_block(&self, extent: Extent, stored: &[u8]) -> Result<Arc<Block>> {
        let payload = self.source.open(extent.offset, stored)?;
        parse(&self.source, extent, payload).map(Arc::new)
    }

    /// The extent that entry `i` of an index partition names.
    pub(super) fn leaf_extent(&self, leaf: &Block, i: usize) -> Result<Extent> {
        extent_at(leaf, i)
            .ok_or_else(|| self.source.corruption(None, "index entry does not name a block"))
    }

    /// Both levels of the index verified, and they contradict each other.
    #[cold]
    pub(super) fn split_lies(&self) -> Error {
        self.source.corruption(None, "index partition ends before its separator")
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }
}

fn parse(source: &Source, extent: Extent, payload: Payload) -> Result<Block> {
    Block::parse(payload).map_err(|e| source.corruption(extent.offset, e.to_string()))
}

fn load_bloom(source: &Source, extent: Extent) -> Result<Option<Bloom>> {
    let payload = source.read(extent)?;
    Bloom::parse(&payload.bytes[..payload.len])
        .map_err(|e| source.corruption(extent.offset, e.to_string()))
}

fn load_index(source: &Source, footer: &Footer) -> Result<Index> {
    let block = parse(source, footer.index, source.read(footer.index)?)?;
    Index::new(block, footer.index_levels)
        .ok_or_else(|| source.corruption(footer.index.offset, "index entries do not name blocks"))
}
