//! [`TableParts`]: everything after the data blocks of a table, loaded when the table is opened.
//!
//! The parts vouch for each other: the footer has the places of the others, and the properties have
//! the checksums of bloom and index and one of their own. This reveals a fault in memory that
//! happened before a block's own checksum was made.

use std::sync::Arc;

use super::block::Block;
use super::bloom::Bloom;
use super::footer::{Footer, HAS_HIDDEN, HAS_TAIL_CHECKSUMS};
use super::index::Index;
use super::properties::SstProperties;
use super::stored::{BlockCodec, Extent, StoredPayload, TableSource};
use crate::error::{Error, Result};
use crate::options::Compression;
use crate::zstandard::{self, Dictionary};

/// Everything of a table except its data blocks.
pub(super) struct TableParts {
    pub bloom: Option<Bloom>,
    pub index: Index,
    pub footer: Footer,
    pub footer_at: u64,
    pub properties: SstProperties,
}

/// Decodes the properties, and holds them against the footer.
pub(super) fn load_properties(
    source: &TableSource,
    footer: &Footer,
    payload: &[u8],
) -> Result<SstProperties> {
    let offset = footer.properties.offset;
    let has_checksums = footer.compatible & HAS_TAIL_CHECKSUMS != 0;
    // Before the fields are decoded: a damaged tag could be taken for one of a later version.
    if has_checksums && !SstProperties::own_checksum_agrees(payload) {
        let what = "the properties' own checksum does not match";
        return Err(source.corruption(offset, what));
    }
    let properties = SstProperties::decode(source, offset, payload)?;
    let says_hidden = footer.incompatible & HAS_HIDDEN != 0;
    // One of the two is damaged. Reading hidden entries as visible ones would return wrong data, so
    // neither is believed.
    if says_hidden == properties.hidden_suffix.is_empty() {
        let what = "footer and properties differ about hidden entries";
        return Err(source.corruption(offset, what));
    }
    if has_checksums && properties.tail_checksums.is_empty() {
        return Err(source.corruption(offset, "properties lack the checksums of the index"));
    }
    Ok(properties)
}

/// The needs of the data blocks when they are decompressed.
///
/// # Errors
/// Corruption of the dictionary; `Unsupported` in a build without zstd, for a table that has it.
pub(super) fn load_codec(source: &TableSource, properties: &SstProperties) -> Result<BlockCodec> {
    let stored = match properties.dictionary {
        Some((extent, checksum)) => source.read_expected(extent, Some(checksum)),
        None => return codec_of(source, properties, None),
    };
    let payload = stored.map_err(|error| named(error, source, properties))?;
    codec_of(source, properties, Some(&payload.bytes[..payload.len]))
}

/// As [`load_codec`], with the bytes of the dictionary.
pub(super) fn codec_of(
    source: &TableSource,
    properties: &SstProperties,
    bytes: Option<&[u8]>,
) -> Result<BlockCodec> {
    // Also where the footer is lost, which has the bit.
    if properties.compression == Compression::Zstd as u8 && !zstandard::IS_BUILT_IN {
        return Err(source.lacks_zstd());
    }
    // Zero where the properties are lost.
    let payload_bytes_max = Some(properties.block_bytes_max).filter(|most| *most > 0);
    let Some(bytes) = bytes else { return Ok(BlockCodec { dictionary: None, payload_bytes_max }) };
    let dictionary = Dictionary::new(bytes).map(Arc::new);
    let offset = properties.dictionary.map(|(extent, _)| extent.offset);
    if dictionary.is_none() {
        return Err(source.corruption(offset, "the dictionary of the table cannot be used"));
    }
    Ok(BlockCodec { dictionary, payload_bytes_max })
}

/// Corruption of the dictionary, named so.
fn named(error: Error, source: &TableSource, properties: &SstProperties) -> Error {
    let offset = properties.dictionary.map(|(extent, _)| extent.offset);
    match error.damage() {
        Some(damage) => {
            source.corruption(offset, format!("the dictionary of the table: {}", damage.what))
        }
        None => error,
    }
}

pub(super) fn load_bloom(
    source: &TableSource,
    footer: &Footer,
    properties: &SstProperties,
) -> Result<Option<Bloom>> {
    if footer.bloom.len == 0 {
        return Ok(None);
    }
    // The bloom comes first after the data, and the top of the index last.
    let expected = properties.tail_checksums.first().copied();
    let payload = source.read_expected(footer.bloom, expected)?;
    Bloom::parse(&payload.bytes[..payload.len])
        .map_err(|e| source.corruption(footer.bloom.offset, e.to_string()))
}

pub(super) fn load_index(
    source: &TableSource,
    footer: &Footer,
    properties: &SstProperties,
) -> Result<Index> {
    let expected = properties.tail_checksums.last().copied();
    index_of(source, footer, source.read_expected(footer.index, expected)?)
}

pub(super) fn parse(
    source: &TableSource,
    extent: Extent,
    payload: StoredPayload,
    hidden_suffix: Option<&[u8]>,
) -> Result<Block> {
    Block::parse(payload, hidden_suffix)
        .map_err(|e| source.corruption(extent.offset, e.to_string()))
}

/// The top of the index in a payload.
pub(super) fn index_of(
    source: &TableSource,
    footer: &Footer,
    payload: StoredPayload,
) -> Result<Index> {
    let block = parse(source, footer.index, payload, None)?;
    Index::new(block, footer.index_levels)
        .ok_or_else(|| source.corruption(footer.index.offset, "index entries do not name blocks"))
}
