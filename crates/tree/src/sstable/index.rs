//! The index: finds the data block that can hold a key. The writer builds it; readers search it, and
//! `index_cursor.rs` walks it.
//!
//! It has one entry for each data block. The key of the entry is a separator: no key of the block
//! is after it, and every key of the next block is. The value is the block's offset and length, as
//! varints. Entries are stored in blocks of the format of data blocks. A large index has two
//! levels: index partitions, which are read through the block cache, and one block above them with the
//! last separator of each.
//!
//! The form of a separator: if two neighbouring blocks have different user keys at their border, it
//! is a user key as short as possible with [`Trailer::LAST`], so it is after all versions of its
//! key. If the versions of one user key span blocks, it is the whole last internal key.
//!
//! In memory it has two fast paths (design notes 25 and 34). Without the tops, point reads take 1.05 times
//! as long, without the notes of where blocks lie 1.19 times.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::codec::{VARINT_BYTES_MAX, put_varint, varint_at};
use crate::error::Result;
use crate::memory::{LINE_BYTES, prefetch_lines};
use crate::types::{KeyRef, SeqNo, Trailer, first_not_below};

use super::block::Block;
use super::block_builder::BlockBuilder;
use super::block_search::common_len;
use super::indexed_block::IndexedBlock;
use super::stored::{Extent, StoredPayload};

/// An index whose entries take more than this is split into index partitions. At 4 KiB a block this
/// covers about 200 MiB of data: tables of the default size do without a second look-up.
pub(super) const INDEX_BYTES_MAX: usize = 1 << 20;
/// Entries of an index between two of its tops: their words take two lines of memory.
const GROUP: usize = 16;
/// The lines that a search asks for at the place of a block: the search index of 33 entries.
const MARK_LINES: usize = 7;
/// Partitions are this much smaller than the limit, so that a split index has several.
const PARTITION_FRACTION: usize = 32;

/// Appends to `out` the shortest user key that is not before `last` and before `next`.
pub(super) fn put_separator(out: &mut Vec<u8>, last: &[u8], next: &[u8]) {
    let common = common_len(last, next);
    // One byte more of `next` is after `last`; it is before `next` if it is not all of it.
    let cut = if common + 1 < next.len() { &next[..=common] } else { last };
    // A separator that is no shorter than the last key has nothing for it.
    out.extend_from_slice(if cut.len() < last.len() { cut } else { last });
}

struct Fence {
    /// End of its separator in the pool of keys; it begins where the one before ends.
    key_end: usize,
    trailer: Trailer,
    extent: Extent,
}

/// Collects the fences of a table.
pub(super) struct IndexBuilder {
    keys: Vec<u8>,
    fences: Vec<Fence>,
    /// See [`INDEX_BYTES_MAX`]; smaller in tests.
    bytes_max: usize,
}

impl IndexBuilder {
    pub(super) fn new(bytes_max: usize) -> IndexBuilder {
        IndexBuilder { keys: Vec::new(), fences: Vec::new(), bytes_max }
    }

    /// Adds the data block at `extent`, whose last key is `last`; `next` is the first user key
    /// after it.
    pub(super) fn add(&mut self, last: KeyRef<'_>, next: Option<&[u8]>, extent: Extent) {
        let trailer = match next {
            Some(next) if next == last.user => {
                self.keys.extend_from_slice(last.user);
                last.trailer
            }
            Some(next) => {
                // A short separator instead of the last key: the index is in memory, and most of a
                // key says nothing about the border.
                put_separator(&mut self.keys, last.user, next);
                Trailer::LAST
            }
            None => {
                self.keys.extend_from_slice(last.user);
                Trailer::LAST
            }
        };
        self.fences.push(Fence { key_end: self.keys.len(), trailer, extent });
    }

    /// Bytes of the index if it were finished now, about.
    pub(super) fn payload_bytes(&self) -> usize {
        self.keys.len() + 16 * self.fences.len()
    }

    /// Hands the payloads of the index to `write`, the top one last; returns the number of levels
    /// and where the top lies.
    pub(super) fn finish(
        &self,
        mut write: impl FnMut(&[u8]) -> Result<Extent>,
    ) -> Result<(u8, Extent)> {
        let mut block = BlockBuilder::new(SeqNo::ZERO);
        let last = self.fences().last().expect("a table has a block").0;
        // One level if possible: a second one costs each read one more search, and a cache lookup.
        if self.payload_bytes() <= self.bytes_max {
            for (key, extent) in self.fences() {
                add_extent(&mut block, key, extent);
            }
            return Ok((1, write(block.finish(last.user))?));
        }
        let mut top = BlockBuilder::new(SeqNo::ZERO);
        // The minimum serves tests, whose limit is a few bytes.
        let partition_bytes = (self.bytes_max / PARTITION_FRACTION).max(64);
        for (key, extent) in self.fences() {
            add_extent(&mut block, key, extent);
            if block.payload_bytes() >= partition_bytes || key == last {
                let extent = write(block.finish(key.user))?;
                block.clear();
                // Under its last separator, so that a search in the top finds the only partition
                // that can have a key.
                add_extent(&mut top, key, extent);
            }
        }
        Ok((2, write(top.finish(last.user))?))
    }

    /// The fences with their separators, in order.
    fn fences(&self) -> impl Iterator<Item = (KeyRef<'_>, Extent)> {
        let starts = std::iter::once(0).chain(self.fences.iter().map(|fence| fence.key_end));
        self.fences.iter().zip(starts).map(|(fence, start)| {
            (KeyRef::new(&self.keys[start..fence.key_end], fence.trailer), fence.extent)
        })
    }
}

/// Adds an entry that names the block at `extent`.
fn add_extent(block: &mut BlockBuilder, key: KeyRef<'_>, extent: Extent) {
    let mut value = Vec::with_capacity(2 * VARINT_BYTES_MAX);
    put_varint(&mut value, extent.offset);
    put_varint(&mut value, extent.len);
    block.add(key, &value);
}

/// The extent that entry `i` of an index block names.
pub(super) fn extent_at(block: &Block, i: usize) -> Option<Extent> {
    let value = block.value(i);
    let (offset, offset_len) = varint_at(value, 0)?;
    let (len, len_len) = varint_at(value, offset_len)?;
    (offset_len + len_len == value.len()).then_some(Extent { offset, len })
}

/// The place of a block.
struct BlockPlace {
    /// Its offset in the file.
    start: u64,
    /// The address of its search index when a reader found it in the cache last; 0 if none did. Perhaps the block has
    /// left since, so no one reads what lies there. Relaxed: a hint to the processor may name any address.
    memory: AtomicUsize,
}

impl BlockPlace {
    fn at(start: u64) -> BlockPlace {
        BlockPlace { start, memory: AtomicUsize::new(0) }
    }
}

/// The index of an open table, or its upper level.
pub(super) struct Index {
    block: Arc<Block>,
    /// Those of the blocks of all entries, and one more: the end of the last. The blocks lie one after
    /// the other.
    places: Box<[BlockPlace]>,
    /// The last word of each [`GROUP`] of entries: they lead a search to one group.
    tops: Box<[u64]>,
    levels: u8,
}

impl Index {
    /// Takes in a parsed block; `None` if its entries do not name blocks one after the other.
    pub(super) fn new(block: Block, levels: u8) -> Option<Index> {
        let mut places = Vec::with_capacity(block.len() + 1);
        for i in 0..block.len() {
            let extent = extent_at(&block, i)?;
            if places.is_empty() {
                places.push(BlockPlace::at(extent.offset));
            }
            // Blocks that overlap or leave holes are none that the writer made.
            if places[i].start != extent.offset {
                return None;
            }
            places.push(BlockPlace::at(extent.offset.checked_add(extent.len)?));
        }
        let tops = block.words().chunks_exact(GROUP).map(|words| words[GROUP - 1]).collect();
        Some(Index { block: Arc::new(block), places: places.into(), tops, levels })
    }

    /// Index of the first entry that is not before `target`; the number of entries if all are.
    #[inline]
    pub(super) fn lower_bound(&self, target: KeyRef<'_>) -> usize {
        let near = self.block.near_by(target, |word| self.first_not_below(word));
        self.block.first_of(near, target)
    }

    /// The address that is noted of the block of entry `i`; 0 without one.
    #[cfg(test)]
    pub(super) fn noted(&self, i: usize) -> usize {
        self.places[i].memory.load(Ordering::Relaxed)
    }

    /// Index of the first entry whose word is not below `word`.
    #[inline]
    fn first_not_below(&self, word: u64) -> usize {
        let group = GROUP * first_not_below(&self.tops, word);
        // The words of one group and the places of its blocks come from memory at the same time. A
        // search over all words waits for several lines of them in turn, and then for the place.
        let places = self.places[group..].as_ptr();
        prefetch_lines(places.cast(), GROUP * size_of::<BlockPlace>() / LINE_BYTES);
        let words = &self.block.words()[group..];
        let words = &words[..words.len().min(GROUP)];
        group + words.iter().map(|w| usize::from(*w < word)).sum::<usize>()
    }

    /// Levels: 1, or 2 where the entries name index partitions.
    pub(super) fn levels(&self) -> u8 {
        self.levels
    }

    /// The entries.
    pub(super) fn block(&self) -> &Arc<Block> {
        &self.block
    }

    /// The extent that entry `i` names; `None` after the last.
    #[inline]
    pub(super) fn extent(&self, i: usize) -> Option<Extent> {
        // Extents come from an array of offsets, so a read decodes no index value.
        let end = self.places.get(i + 1)?.start;
        let offset = self.places[i].start;
        Some(Extent { offset, len: end - offset })
    }

    /// Has the processor fetch the search index of the block of entry `i` from where they lay last, while the cache looks
    /// for the block.
    #[inline]
    pub(super) fn prefetch_block(&self, i: usize) {
        if self.levels == 1 {
            let memory = self.places[i].memory.load(Ordering::Relaxed);
            if memory != 0 {
                prefetch_lines(std::ptr::without_provenance(memory), MARK_LINES);
            }
        }
    }

    /// Notes where the cache keeps the block of entry `i`.
    #[inline]
    pub(super) fn note_block(&self, i: usize, block: &IndexedBlock) {
        if self.levels == 1 {
            let memory = &self.places[i].memory;
            let address = block.address();
            // Threads that read the same blocks write to no line of another one.
            if memory.load(Ordering::Relaxed) != address {
                memory.store(address, Ordering::Relaxed);
            }
        }
    }

    /// Returns the entry that names the block at `offset`.
    pub(super) fn position(&self, offset: u64) -> Option<usize> {
        let found = self.places.binary_search_by_key(&offset, |place| place.start);
        found.ok().filter(|at| at + 1 < self.places.len())
    }

    /// An index of blocks whose keys no one knows: good to walk along, not to search.
    /// `None` for no blocks: an index needs one.
    pub(super) fn without_keys(blocks: &[Extent]) -> Option<Index> {
        if blocks.is_empty() {
            return None;
        }
        let mut builder = IndexBuilder::new(usize::MAX);
        for (number, extent) in (0u64..).zip(blocks) {
            // Big-endian, so that the numbers ascend as keys do.
            let key = number.to_be_bytes();
            builder.add(KeyRef::new(&key, Trailer::LAST), None, *extent);
        }
        let mut payload = Vec::new();
        builder
            .finish(|bytes| {
                payload.extend_from_slice(bytes);
                Ok(Extent { offset: 0, len: 0 })
            })
            .ok()?;
        let len = payload.len();
        let block = Block::parse(StoredPayload { bytes: payload.into(), len }, None).ok()?;
        Index::new(block, 1)
    }

    /// Memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let places = size_of_val(&*self.places) + size_of_val(&*self.tops);
        self.block.memory_bytes() + places as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::{EntryKind, InternalKey};

    /// A key after `shared` bytes that all keys have.
    fn key_of(shared: usize, (rest, seq): &(String, u64)) -> InternalKey {
        let trailer = Trailer::new(SeqNo::new(*seq).unwrap(), EntryKind::Value);
        InternalKey { user: [&[b'k'; 17][..shared], rest.as_bytes()].concat().into(), trailer }
    }

    proptest! {
        /// Of any number of entries: less than a group, whole groups, and a rest. Many words are equal:
        /// those of the versions of one key, and of keys whose first 8 bytes are.
        #[test]
        fn a_search_by_groups_finds_what_a_search_of_all_entries_finds(
            separators in prop::collection::btree_set(("[a-d]{1,3}", 0u64..5), 1..150),
            targets in prop::collection::vec(("[a-e]{0,4}", 0u64..6), 20),
            shared in 0usize..18,
        ) {
            let mut keys: Vec<InternalKey> = separators.iter().map(|key| key_of(shared, key)).collect();
            keys.sort();
            let mut builder = BlockBuilder::new(SeqNo::ZERO);
            for (at, key) in (0..).zip(&keys) {
                add_extent(&mut builder, key.as_ref(), Extent { offset: 10 * at, len: 10 });
            }
            let bytes: Arc<[u8]> = builder.finish(&keys.last().unwrap().user).into();
            let payload = StoredPayload { len: bytes.len(), bytes };
            let index = Index::new(Block::parse(payload, None).unwrap(), 1).unwrap();
            for target in keys.iter().cloned().chain(targets.iter().map(|key| key_of(shared, key))) {
                let expected = keys.partition_point(|key| *key < target);
                prop_assert_eq!(index.lower_bound(target.as_ref()), expected);
            }
        }
    }
}
