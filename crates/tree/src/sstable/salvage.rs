//! [`salvage`]: opens a table for a job although a part after its data blocks is damaged.
//!
//! Called when the table of a repair does not open.
//! Everything after the data serves searches, and a repair walks. So the bloom is left out, and the
//! index is rebuilt from the data blocks, which verify only at their own offsets.
//!
//! ```text
//! footer       one bit turned, such that its checksum agrees; else the blocks of the whole file, if
//!              all of them verify
//! properties   one bit turned, such that the block's checksum or their own agrees; else without
//! index        one bit turned, such that its checksum or that in the properties agrees; else the
//!              blocks that verify one after the other
//! ```
//!
//! Invariants:
//! 1. A repair walks a salvaged table from the front to the end. No one searches it.
//! 2. Where blocks are missing, [`SstReader::is_cut_short`] returns `true`.

use std::path::PathBuf;
use std::sync::Arc;

use super::SstIdentity;
use super::block::Block;
use super::compression::CompressionKind;
use super::footer::{Footer, HAS_HIDDEN, HAS_OPERANDS, HAS_TAIL_CHECKSUMS, HAS_ZSTD};
use super::index::{Index, extent_at};
use super::properties::SstProperties;
use super::reader::SstReader;
use super::stored::{
    Access, BlockCodec, Extent, ONE_BIT_BYTES_MAX, StoredPayload, TRAILER_BYTES, TableSource,
};
use super::tail::{TableParts, codec_of, index_of, load_codec, load_properties};
use crate::codec::checksum128;
use crate::error::Result;
use crate::fs::File;
use crate::limits::BLOCK_BYTES_MAX;
use crate::options::Compression;

/// Bytes that are hashed in the search for the ends of blocks, for each byte of the file.
const HASHED_A_BYTE: u64 = 1 << 10;
/// Bytes that are hashed in any file.
const HASHED_MIN: u64 = 1 << 30;

/// A table that was opened in spite of damage.
pub struct Salvaged {
    /// To be walked, not to be searched.
    pub reader: SstReader,
    /// Each damage, and the source of the contents now.
    pub repaired: Vec<(&'static str, &'static str)>,
}

/// Opens a table that [`SstReader::open`] refuses as damaged. `file_hash` is the manifest's: another
/// table in its place is not taken for it. `suffix` is that of hidden keys in its partition. `None` if
/// nothing can be made of it.
///
/// # Errors
/// `Io`; `Unsupported` for formats that this version does not know.
///
/// # Cost
/// A search for the end of each block, if the index is lost.
pub fn salvage(
    file: Arc<dyn File>,
    path: PathBuf,
    identity: SstIdentity,
    file_hash: u128,
    suffix: &[u8],
) -> Result<Option<Salvaged>> {
    let file_bytes = file.len()?;
    let path = path.into();
    let unique_id = identity.unique_id();
    let source = TableSource { file, path, unique_id, file_bytes, codec: BlockCodec::default() };
    let mut table = Salvaging { source, identity, file_hash, repaired: Vec::new() };
    // Without a footer nothing says where the data ends, and blocks of the index could pass for
    // data.
    let Some((footer, footer_at)) = table.footer()? else { return Ok(None) };
    let properties = table.properties(&footer, suffix)?;
    table.codec(&properties)?;
    let Some((index, is_cut_short)) = table.index(&footer, &properties)? else { return Ok(None) };
    if footer.bloom.len > 0 {
        table.repaired_bloom(&footer, &properties)?;
    }
    // No bloom: a walk asks none, and one that is damaged could deny a key.
    let parts = TableParts { bloom: None, index, footer, footer_at, properties };
    let Salvaging { source, repaired, .. } = table;
    let reader = SstReader::of_parts(source, identity, parts, None).walked_only(is_cut_short);
    Ok(Some(Salvaged { reader, repaired }))
}

/// A table's account of itself, where no manifest describes it.
pub struct FoundTable {
    /// As its blocks have it.
    pub identity: SstIdentity,
    /// The hash in its footer.
    pub file_hash: u128,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Its properties.
    pub properties: SstProperties,
}

/// The table in `file` by its own footer and properties.
///
/// # Errors
/// `Corruption` if they are damaged; `Unsupported`; `Io`.
pub fn identify(file: Arc<dyn File>, path: PathBuf) -> Result<FoundTable> {
    let file_bytes = file.len()?;
    let codec = BlockCodec::default();
    let mut source = TableSource { file, path: path.into(), unique_id: 0, file_bytes, codec };
    let (footer, footer_at) = Footer::read(&source, Access::Uncached)?;
    source.unique_id = footer.unique_id;
    let payload = source.read_by(Access::Uncached, footer.properties)?;
    let properties = load_properties(&source, &footer, &payload.bytes[..payload.len])?;
    let identity =
        SstIdentity { db_id: footer.db_id, file: properties.file, epoch: properties.epoch };
    if identity.unique_id() != footer.unique_id {
        return Err(source.corruption(footer_at, "footer and properties name different tables"));
    }
    Ok(FoundTable { identity, file_hash: footer.file_hash, bytes: file_bytes, properties })
}

struct Salvaging {
    source: TableSource,
    identity: SstIdentity,
    file_hash: u128,
    repaired: Vec<(&'static str, &'static str)>,
}

/// The result, or nothing where it was damage that kept it away.
fn unless_damaged<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_corruption() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Salvaging {
    fn footer(&mut self) -> Result<Option<(Footer, u64)>> {
        if let Some(read) = unless_damaged(Footer::read(&self.source, Access::Uncached))? {
            // A sound footer of another table is not damage that one bit explains.
            return Ok(Some(read).filter(|(footer, _)| self.is_ours(footer)));
        }
        if let Some(mended) = Footer::mended(&self.source).filter(|(it, _)| self.is_ours(it)) {
            self.repaired.push(("the footer is damaged", "one-bit search"));
            return Ok(Some(mended));
        }
        let found = self.footer_of_blocks()?;
        if found.is_some() {
            self.repaired.push(("the footer is damaged", "the blocks before it"));
        }
        Ok(found)
    }

    fn is_ours(&self, footer: &Footer) -> bool {
        footer.unique_id == self.source.unique_id
            && footer.db_id == self.identity.db_id
            && footer.file_hash == self.file_hash
    }

    /// A footer for the blocks of the file, which verify one after the other: the last are the
    /// properties.
    fn footer_of_blocks(&self) -> Result<Option<(Footer, u64)>> {
        let source = &self.source;
        let blocks = blocks_between(source, 0, source.file_bytes)?;
        let mut checksums = Vec::new();
        for block in &blocks {
            let mut checksum = [0; 8];
            source.read_exact(Access::Plain, block.end() - 8, &mut checksum)?;
            checksums.extend_from_slice(&checksum);
        }
        let Some(last) = blocks.last().copied() else { return Ok(None) };
        // The manifest's hash covers the checksums of all blocks: equal means that none is missing
        // or foreign.
        if checksum128(&checksums) != self.file_hash {
            return Ok(None);
        }
        let payload = source.read_by(Access::Uncached, last)?;
        let payload = &payload.bytes[..payload.len];
        let decoded = unless_damaged(SstProperties::decode(source, last.offset, payload))?;
        let Some(properties) = decoded.filter(|it| it.has_own_checksum) else { return Ok(None) };
        let first = blocks.partition_point(|extent| extent.offset < properties.data_bytes);
        let mut tail = blocks[first..].to_vec();
        // It lies between the index and the properties.
        tail.retain(|block| properties.dictionary.is_none_or(|(it, _)| it != *block));
        let [.., index, _] = tail[..] else { return Ok(None) };
        let has_bloom = properties.bloom_bits_per_key > 0;
        let bloom = tail.first().filter(|_| has_bloom).copied();
        let partitions = tail.len() - 2 - usize::from(has_bloom).min(tail.len() - 2);
        let footer = Footer {
            compatible: HAS_TAIL_CHECKSUMS,
            incompatible: known_features(&properties),
            index_levels: if partitions > 0 { 2 } else { 1 },
            db_id: self.identity.db_id,
            unique_id: source.unique_id,
            bloom: bloom.unwrap_or(Extent { offset: 0, len: 0 }),
            index,
            properties: last,
            file_hash: self.file_hash,
        };
        Ok(Some((footer, last.end())))
    }

    /// The properties as they were written; without them what else is known.
    fn properties(&mut self, footer: &Footer, suffix: &[u8]) -> Result<SstProperties> {
        let extent = footer.properties;
        let source = &self.source;
        if let Some(stored) = unless_damaged(source.read_stored(Access::Uncached, extent))? {
            if let Some(payload) = unless_damaged(source.open(extent.offset, &stored))? {
                let payload = &payload.bytes[..payload.len];
                if let Some(read) = unless_damaged(load_properties(source, footer, payload))? {
                    return Ok(read);
                }
                // The block verifies and its content does not: the bit was turned in memory, before
                // the block got its checksum.
                if let Some(read) = with_one_bit_turned(source, footer, payload) {
                    self.repaired.push(("the properties are damaged", "one-bit search"));
                    return Ok(read);
                }
            } else if let Some(turned) = source.with_one_bit_turned(extent.offset, &stored) {
                let payload = &turned[..turned.len() - TRAILER_BYTES];
                if let Some(read) = unless_damaged(load_properties(source, footer, payload))? {
                    self.repaired.push(("the properties are damaged", "one-bit search"));
                    return Ok(read);
                }
            }
        }
        self.repaired.push(("the properties are damaged", "none: what they say is lost"));
        let has_hidden = footer.incompatible & HAS_HIDDEN != 0;
        let hidden_suffix = if has_hidden { suffix.to_vec() } else { Vec::new() };
        let data_bytes = self.data_end(footer)?;
        let dictionary = self.dictionary(footer)?;
        Ok(SstProperties { data_bytes, hidden_suffix, dictionary, ..SstProperties::default() })
    }

    /// The place of the dictionary, where the properties do not say it.
    fn dictionary(&self, footer: &Footer) -> Result<Option<(Extent, u64)>> {
        let offset = footer.index.end();
        let len = footer.properties.offset.saturating_sub(offset);
        if footer.incompatible & HAS_ZSTD == 0 || len <= TRAILER_BYTES as u64 {
            return Ok(None);
        }
        let extent = Extent { offset, len };
        let stored = unless_damaged(self.source.read_stored(Access::Uncached, extent))?;
        let checksum = stored.and_then(|stored| stored.last_chunk().copied());
        Ok(checksum.map(|checksum| (extent, u64::from_le_bytes(checksum))))
    }

    /// Loads the needs of the blocks when they are decompressed. Without its dictionary a table has the blocks that were written
    /// before there was one.
    fn codec(&mut self, properties: &SstProperties) -> Result<()> {
        if let Some(codec) = unless_damaged(load_codec(&self.source, properties))? {
            self.source.codec = codec;
            return Ok(());
        }
        let source = &self.source;
        let Some((extent, checksum)) = properties.dictionary else { return Ok(()) };
        let stored = unless_damaged(source.read_stored(Access::Uncached, extent))?;
        let turned = stored
            .and_then(|stored| source.with_one_bit_turned_for(extent.offset, &stored, checksum));
        let payload = turned.and_then(|it| source.unverified_payload(extent.offset, &it));
        let bytes = payload.as_ref().map(|payload| &payload.bytes[..payload.len]);
        let mended = bytes.map(|bytes| unless_damaged(codec_of(source, properties, Some(bytes))));
        let way = match mended.transpose()?.flatten() {
            Some(codec) => {
                self.source.codec = codec;
                "one-bit search"
            }
            None => {
                self.source.codec = codec_of(&self.source, properties, None)?;
                "none: the blocks that need it are lost"
            }
        };
        self.repaired.push(("the dictionary is damaged", way));
        Ok(())
    }

    /// The end of the data, where the properties do not say it.
    fn data_end(&self, footer: &Footer) -> Result<u64> {
        if footer.bloom.len > 0 {
            return Ok(footer.bloom.offset);
        }
        // Without a bloom the index comes first after the data: its partitions, or its only block.
        let first_partition = if footer.index_levels == 2 {
            let top = unless_damaged(self.source.read_by(Access::Uncached, footer.index))?;
            let top = top.map(|payload| index_of(&self.source, footer, payload));
            top.and_then(Result::ok).and_then(|top| top.extent(0)).map(|extent| extent.offset)
        } else {
            None
        };
        Ok(first_partition.unwrap_or(footer.index.offset))
    }

    /// An index, and whether data blocks are missing in it.
    fn index(
        &mut self,
        footer: &Footer,
        properties: &SstProperties,
    ) -> Result<Option<(Index, bool)>> {
        let data_end = properties.data_bytes;
        let named = self.named_blocks(footer, properties)?;
        // An index may verify and lack blocks at its end, if it was short when it got its checksum.
        if let Some(blocks) = named.filter(|blocks| end_of(blocks) == data_end) {
            return Ok(Index::without_keys(&blocks).map(|index| (index, false)));
        }
        self.repaired.push(("the index is damaged", "the data blocks"));
        let blocks = blocks_between(&self.source, 0, data_end)?;
        let is_cut_short = end_of(&blocks) != data_end;
        Ok(Index::without_keys(&blocks).map(|index| (index, is_cut_short)))
    }

    /// The data blocks that the index names.
    fn named_blocks(
        &mut self,
        footer: &Footer,
        properties: &SstProperties,
    ) -> Result<Option<Vec<Extent>>> {
        let checksums = &properties.tail_checksums;
        let Some(top) = self.index_block(footer.index, checksums.last().copied())? else {
            return Ok(None);
        };
        let Ok(top) = index_of(&self.source, footer, top) else { return Ok(None) };
        let entries: Vec<Extent> = (0..top.block().len()).filter_map(|i| top.extent(i)).collect();
        if footer.index_levels == 1 {
            return Ok(Some(entries).filter(|it| it.first().is_some_and(|it| it.offset == 0)));
        }
        let mut named: Vec<Extent> = Vec::new();
        let first = usize::from(footer.bloom.len > 0);
        for (i, partition) in entries.into_iter().enumerate() {
            let expected = checksums.get(first + i).copied();
            let Some(leaf) = self.index_block(partition, expected)? else { return Ok(None) };
            let Ok(leaf) = Block::parse(leaf, None) else { return Ok(None) };
            for at in 0..leaf.len() {
                let end = end_of(&named);
                match extent_at(&leaf, at) {
                    Some(extent) if extent.offset == end => named.push(extent),
                    _ => return Ok(None),
                }
            }
        }
        Ok(Some(named))
    }

    /// A block of the index as it was written.
    fn index_block(
        &mut self,
        extent: Extent,
        expected: Option<u64>,
    ) -> Result<Option<StoredPayload>> {
        let source = &self.source;
        let stored = unless_damaged(source.read_stored(Access::Uncached, extent))?;
        let Some(stored) = stored else { return Ok(None) };
        let Some((_, checksum)) = stored.split_last_chunk::<8>() else { return Ok(None) };
        let wanted = expected.unwrap_or(u64::from_le_bytes(*checksum));
        if source.is_block(extent.offset, &stored) && *checksum == wanted.to_le_bytes() {
            return unless_damaged(source.open(extent.offset, &stored));
        }
        let turned = source.with_one_bit_turned_for(extent.offset, &stored, wanted);
        let payload = turned.and_then(|it| source.unverified_payload(extent.offset, &it));
        if payload.is_some() {
            self.repaired.push(("the index is damaged", "one-bit search"));
        }
        Ok(payload)
    }

    /// Reports a damaged Bloom filter. The job makes another.
    fn repaired_bloom(&mut self, footer: &Footer, properties: &SstProperties) -> Result<()> {
        let expected = properties.tail_checksums.first().copied();
        if unless_damaged(self.source.read_expected(footer.bloom, expected))?.is_none() {
            self.repaired.push(("the bloom is damaged", "the keys"));
        }
        Ok(())
    }
}

/// The end of the last of the blocks.
fn end_of(blocks: &[Extent]) -> u64 {
    blocks.last().map_or(0, |last| last.end())
}

/// Properties with one bit turned, such that their own checksum agrees.
fn with_one_bit_turned(
    source: &TableSource,
    footer: &Footer,
    payload: &[u8],
) -> Option<SstProperties> {
    // Each candidate is decoded, so the cost grows with the square of the length.
    if payload.len() > ONE_BIT_BYTES_MAX {
        return None;
    }
    let mut turned = payload.to_vec();
    for bit in 0..8 * turned.len() {
        turned[bit / 8] ^= 1 << (bit % 8);
        // Most candidates end at their checksum; formats of later versions are none.
        if let Ok(read) = load_properties(source, footer, &turned)
            && read.has_own_checksum
        {
            return Some(read);
        }
        turned[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

/// The blocks from `start` on that verify one after the other, up to `end`.
pub(super) fn blocks_between(source: &TableSource, start: u64, end: u64) -> Result<Vec<Extent>> {
    // The search hashes every possible length at a place. Its work is bounded, because bytes that
    // are no blocks must not decide how long a job takes.
    let mut budget = HASHED_MIN.saturating_add(source.file_bytes.saturating_mul(HASHED_A_BYTE));
    let mut blocks: Vec<Extent> = Vec::new();
    let mut at = start;
    let mut guess = 0;
    while at < end {
        let Some(len) = block_at(source, at, end, guess, &mut budget)? else { break };
        blocks.push(Extent { offset: at, len });
        // Blocks of a table are of similar length, so the last one says how much to read.
        guess = len;
        at += len;
    }
    Ok(blocks)
}

/// The length of the block that begins at `offset`, if one does. `guess` is that of the one before.
fn block_at(
    source: &TableSource,
    offset: u64,
    end: u64,
    guess: u64,
    budget: &mut u64,
) -> Result<Option<u64>> {
    let most = (end - offset).min(BLOCK_BYTES_MAX + TRAILER_BYTES as u64);
    let mut have = 2 * guess.max(32 << 10);
    let mut tried = TRAILER_BYTES;
    loop {
        have = have.min(most);
        let Some(bytes) =
            unless_damaged(source.read_stored(Access::Plain, Extent { offset, len: have }))?
        else {
            return Ok(None);
        };
        for len in tried + 1..=bytes.len() {
            // Few of 256 bytes are a packing: the others need no checksum.
            if CompressionKind::from_u8(bytes[len - TRAILER_BYTES]).is_none() {
                continue;
            }
            // Spent before the hash, so that also a search that finds nothing ends.
            let Some(left) = budget.checked_sub(len as u64) else { return Ok(None) };
            *budget = left;
            if source.is_block(offset, &bytes[..len]) {
                return Ok(Some(len as u64));
            }
        }
        if have == most {
            return Ok(None);
        }
        // Shorter lengths were tried with the smaller piece.
        tried = bytes.len();
        have *= 2;
    }
}

/// The features of a table with these properties, as far as they are needed to read it.
fn known_features(properties: &SstProperties) -> u64 {
    let hidden = if properties.hidden_suffix.is_empty() { 0 } else { HAS_HIDDEN };
    let operands = if properties.operands > 0 { HAS_OPERANDS } else { 0 };
    let zstd = if properties.compression == Compression::Zstd as u8 { HAS_ZSTD } else { 0 };
    hidden | operands | zstd
}
