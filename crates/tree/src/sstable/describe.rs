//! [`describe`]: the meaning of each byte of a table file, for `dump`.
//!
//! It needs no manifest: the file's identity is taken from its own footer. Damaged blocks are
//! described as such, and the description goes on after them.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::codec::describe_fields;
use crate::error::Result;
use crate::fs::File;

use super::block::Block;
use super::block_entry::RESTART_ENTRIES;
use super::block_tail::TAIL_BYTES;
use super::bloom::Bloom;
use super::compression::CompressionKind;
use super::footer::{FOOTER_FIELDS, Footer};
use super::index::{Index, extent_at};
use super::properties::SstProperties;
use super::stored::{Access, BlockCodec, Extent, TRAILER_BYTES, TableSource};
use super::tail::load_codec;

/// Returns the meaning of each byte of the table in `file`: ranges in the file with a text for
/// people, in the order of the file. With `entries`, those of data blocks too, after their block
/// and inside its range; where the block is compressed they have the range of the block.
///
/// # Errors
/// `Corruption` or `Unsupported` where the footer cannot be read: nothing is known then. `Io`.
///
/// # Cost
/// Reads the whole file; the text takes a multiple of it.
pub fn describe(
    file: Arc<dyn File>,
    path: PathBuf,
    entries: bool,
) -> Result<Vec<(Range<u64>, String)>> {
    let file_bytes = file.len()?;
    let codec = BlockCodec::default();
    let mut source = TableSource { file, path: path.into(), unique_id: 0, file_bytes, codec };
    let (footer, footer_at) = Footer::read(&source, Access::Plain)?;
    // From the file itself, because no one says which table it should be.
    source.unique_id = footer.unique_id;
    let mut out = Describer { source, suffix: Vec::new(), lines: Vec::new() };
    // First, because data blocks do not parse without the suffix of hidden keys, which is in them.
    out.properties(footer.properties);
    let data = out.index(&footer);
    for (i, extent) in data.iter().enumerate() {
        out.data_block(i, *extent, entries);
    }
    if footer.bloom.len > 0 {
        out.whole_block(footer.bloom, |payload| match Bloom::parse(payload) {
            Ok(Some(bloom)) => {
                let prefixes = bloom.extractor().map(|it| format!(" with prefixes {it}"));
                format!("bloom block: {} bytes{}", payload.len(), prefixes.unwrap_or_default())
            }
            _ => format!("bloom block: {} bytes", payload.len()),
        });
    }
    out.footer(footer_at)?;
    // A block comes before what is in it.
    out.lines.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
    Ok(out.lines)
}

struct Describer {
    source: TableSource,
    /// The suffix of hidden keys; empty without any.
    suffix: Vec<u8>,
    lines: Vec<(Range<u64>, String)>,
}

impl Describer {
    fn line(&mut self, range: Range<u64>, text: impl Into<String>) {
        self.lines.push((range, text.into()));
    }

    /// Describes the block at `extent` by what `text` makes of its payload.
    fn whole_block(&mut self, extent: Extent, text: impl FnOnce(&[u8]) -> String) {
        let range = payload_range(extent);
        match self.source.read(extent) {
            Ok(payload) => self.line(range, text(&payload.bytes[..payload.len])),
            Err(error) => self.line(range, format!("damaged block: {error}")),
        }
        self.trailer(extent);
    }

    /// The bytes after the payload of a block.
    fn trailer(&mut self, extent: Extent) {
        let mut trailer = [0; TRAILER_BYTES];
        let at = payload_range(extent).end;
        // The block is described as damaged already.
        if self.source.read_exact(Access::Plain, at, &mut trailer).is_err() {
            return;
        }
        let [kind, checksum @ ..] = trailer;
        let name = match CompressionKind::from_u8(kind) {
            Some(CompressionKind::None) => "none",
            Some(CompressionKind::Lz4) => "LZ4",
            Some(CompressionKind::Lz4Front) => "LZ4 in front of the hidden entries",
            Some(CompressionKind::Zstd) => "zstd",
            Some(CompressionKind::ZstdFront) => "zstd in front of the hidden entries",
            Some(CompressionKind::ZstdDictionary) => "zstd with the dictionary",
            Some(CompressionKind::ZstdDictionaryFront) => {
                "zstd with the dictionary, in front of the hidden entries"
            }
            None => "unknown",
        };
        self.line(at..at + 1, format!("compression: {name}"));
        let checksum = u64::from_le_bytes(checksum);
        self.line(at + 1..extent.end(), format!("checksum: {checksum:016x}"));
    }

    fn properties(&mut self, extent: Extent) {
        let source = self.source.clone();
        let mut suffix = Vec::new();
        let mut codec = Ok(BlockCodec::default());
        let mut dictionary = None;
        self.whole_block(extent, |payload| {
            match SstProperties::decode(&source, extent.offset, payload) {
                Ok(properties) => {
                    suffix.clone_from(&properties.hidden_suffix);
                    codec = load_codec(&source, &properties);
                    dictionary = properties.dictionary;
                    format!("properties: {properties:?}")
                }
                Err(error) => format!("damaged properties: {error}"),
            }
        });
        self.suffix = suffix;
        if let Some((extent, _)) = dictionary {
            self.whole_block(extent, |payload| match &codec {
                Ok(_) => format!("dictionary: {} bytes", payload.len()),
                Err(error) => format!("damaged dictionary: {error}"),
            });
        }
        self.source.codec = codec.unwrap_or_default();
    }

    /// Describes the index; returns the data blocks that it names.
    fn index(&mut self, footer: &Footer) -> Vec<Extent> {
        let Some(top) = self.index_block(footer.index, "index") else { return Vec::new() };
        let Some(top) = Index::new(top, footer.index_levels) else {
            self.line(payload_range(footer.index), "index entries do not name blocks");
            return Vec::new();
        };
        let extents: Vec<Extent> = (0..top.block().len()).filter_map(|i| top.extent(i)).collect();
        if top.levels() == 1 {
            return extents;
        }
        let mut data = Vec::new();
        for extent in extents {
            if let Some(leaf) = self.index_block(extent, "index partition") {
                data.extend((0..leaf.len()).filter_map(|i| extent_at(&leaf, i)));
            }
        }
        data
    }

    fn index_block(&mut self, extent: Extent, name: &str) -> Option<Block> {
        let range = payload_range(extent);
        let block = self.source.read(extent).and_then(|payload| {
            Block::parse(payload, None)
                .map_err(|e| self.source.corruption(extent.offset, e.to_string()))
        });
        let text = match &block {
            Ok(block) => {
                let last = block.whole_key(block.len() - 1);
                format!("{name}: {} entries up to {:?}", block.len(), last.as_ref())
            }
            Err(error) => format!("damaged {name}: {error}"),
        };
        self.line(range, text);
        self.trailer(extent);
        block.ok()
    }

    fn data_block(&mut self, i: usize, extent: Extent, entries: bool) {
        let range = payload_range(extent);
        let suffix = self.suffix.clone();
        let read = self.source.read(extent).and_then(|payload| {
            let len = payload.len;
            let suffix = Some(&*suffix).filter(|suffix| !suffix.is_empty());
            Block::parse(payload, suffix)
                .map(|block| (block, len))
                .map_err(|e| self.source.corruption(extent.offset, e.to_string()))
        });
        match read {
            Ok((block, len)) => {
                let (first, last) = block.edges(&suffix);
                let text = format!(
                    "data block {i}: {} entries, {} hidden, {len} bytes, {:?} to {:?}",
                    block.len(),
                    block.hidden_len(),
                    first.as_ref(),
                    last.as_ref(),
                );
                self.line(range.clone(), text);
                if entries {
                    // Offsets in a compressed payload name no places of the file.
                    let is_plain = range.end - range.start == len as u64;
                    self.entries(&block, len, range, is_plain, &suffix);
                }
            }
            Err(error) => self.line(range, format!("damaged data block {i}: {error}")),
        }
        self.trailer(extent);
    }

    fn entries(
        &mut self,
        block: &Block,
        len: usize,
        range: Range<u64>,
        is_plain: bool,
        suffix: &[u8],
    ) {
        let restarts = 4 * block.len().div_ceil(RESTART_ENTRIES as usize);
        let tail = len - TAIL_BYTES;
        let mut key = Vec::new();
        let mut entries = Vec::new();
        for i in 0..block.len() {
            let text = format!(
                "entry {:?}, value of {} bytes",
                block.whole_key(i).as_ref(),
                block.value(i).len()
            );
            entries.push((block.offset(i) as usize..block.value_range(i).end, text));
        }
        for h in 0..block.hidden_len() {
            let trailer = block.hidden_key(h, suffix, &mut key);
            let payload = block.hidden_head(h).payload_len();
            let key = crate::types::KeyRef::new(&key, trailer);
            let text = format!("hidden entry {key:?}, payload of {payload} bytes");
            entries.push((block.hidden_range(h), text));
        }
        entries.sort_unstable_by_key(|(range, _)| range.start);
        for (part, text) in entries {
            let at = if is_plain { part_of(&range, part.start, part.end) } else { range.clone() };
            self.line(at, text);
        }
        if is_plain {
            self.line(part_of(&range, tail - restarts, tail), "restarts");
            self.line(
                part_of(&range, tail, len),
                "base sequence, common prefix, width of the column, count",
            );
        }
    }

    fn footer(&mut self, at: u64) -> Result<()> {
        let len = usize::try_from(self.source.file_bytes - at).unwrap_or(0);
        let mut bytes = vec![0; len];
        self.source.read_exact(Access::Plain, at, &mut bytes)?;
        self.lines.extend(describe_fields(&bytes, at, "footer", FOOTER_FIELDS));
        Ok(())
    }
}

/// The bytes of the file from `start` to `end` of `payload`, which is stored as it is.
fn part_of(payload: &Range<u64>, start: usize, end: usize) -> Range<u64> {
    payload.start + start as u64..payload.start + end as u64
}

/// The range of the payload of a stored block.
fn payload_range(extent: Extent) -> Range<u64> {
    extent.offset..extent.end().saturating_sub(TRAILER_BYTES as u64).max(extent.offset)
}
