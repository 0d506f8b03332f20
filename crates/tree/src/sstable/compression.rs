//! The forms of a payload in a stored block, and LZ4 for payloads that are compressed at once. Used by
//! `stored.rs`; larger payloads go through `stream_compressor.rs`. The compression with zstd is in
//! `zstd_compressor.rs`.
//!
//! ```text
//! compression  payload
//! 0            as it is
//! 1            varint length of the plain payload; LZ4 block
//! 2            varint length of the plain payload; varint length of its rest; LZ4 block of all in front
//!              of the rest; the rest as it is
//! 3, 4         as 1 and 2, with a frame of Zstandard in the place of the LZ4 block
//! 5, 6         as 3 and 4, with the dictionary of the table
//! ```
//!
//! In a block with a column of hidden entries (`hidden.rs`) the rest begins with the column. Checksums do not
//! compress, and without them among the entries LZ4 finds longer matches in less time.
//!
//! Invariant: no allocation depends on an unchecked length. A plain length is compared with the most that LZ4 or
//! Zstandard can make of the stored bytes, and that of a block with zstd with the longest block of its table.

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

use super::block_tail::BlockTail;
use crate::codec::{put_varint, varint_at};
use crate::limits::BLOCK_BYTES_MAX;
use crate::zstandard::{self, Dictionary};

/// LZ4 cannot expand further than this, so a larger claim is a lie.
const LZ4_RATIO_MAX: u64 = 255;
/// The defect of a payload that LZ4 or Zstandard does not accept.
const UNDECODABLE: &str = "LZ4 block does not decode";
const UNDECODABLE_ZSTD: &str = "zstd frame does not decode";

/// The form of a payload in the file. Its number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompressionKind {
    /// As it is.
    None = 0,
    /// An LZ4 block.
    Lz4 = 1,
    /// An LZ4 block of its front; the rest as it is.
    Lz4Front = 2,
    /// A frame of Zstandard.
    Zstd = 3,
    /// A frame of Zstandard of its front; the rest as it is.
    ZstdFront = 4,
    /// As [`CompressionKind::Zstd`], with the dictionary of the table.
    ZstdDictionary = 5,
    /// As [`CompressionKind::ZstdFront`], with the dictionary of the table.
    ZstdDictionaryFront = 6,
}

impl CompressionKind {
    /// The kind with this number, if this version knows it.
    pub(super) fn from_u8(n: u8) -> Option<CompressionKind> {
        match n {
            0 => Some(CompressionKind::None),
            1 => Some(CompressionKind::Lz4),
            2 => Some(CompressionKind::Lz4Front),
            3 => Some(CompressionKind::Zstd),
            4 => Some(CompressionKind::ZstdFront),
            5 => Some(CompressionKind::ZstdDictionary),
            6 => Some(CompressionKind::ZstdDictionaryFront),
            _ => None,
        }
    }

    /// Returns `true` if the payload is a frame of Zstandard, whole or in front.
    pub(super) fn is_zstd(self) -> bool {
        self as u8 >= CompressionKind::Zstd as u8
    }

    /// Returns `true` if the payload needs the dictionary of the table.
    pub(super) fn has_dictionary(self) -> bool {
        self as u8 >= CompressionKind::ZstdDictionary as u8
    }

    /// Returns `true` if a part of the payload is stored as it is.
    fn has_rest(self) -> bool {
        use CompressionKind::{Lz4Front, ZstdDictionaryFront, ZstdFront};
        matches!(self, Lz4Front | ZstdFront | ZstdDictionaryFront)
    }
}

/// Compresses the payloads of data blocks; its buffers stay.
pub(super) struct BlockCompressor {
    table: CompressTable,
    compressed: Vec<u8>,
}

impl BlockCompressor {
    pub(super) fn new() -> BlockCompressor {
        BlockCompressor { table: CompressTable::large(), compressed: Vec::new() }
    }

    /// The payload in the form in which it is to be stored. A block that saves less than an eighth is stored as
    /// it is, because each read would pay for the decompression.
    pub(super) fn compress<'p>(&'p mut self, payload: &'p [u8]) -> (CompressionKind, &'p [u8]) {
        let (front, rest) = front_and_rest(payload);
        let compressed = &mut self.compressed;
        begin(compressed, payload, rest);
        let head = compressed.len();
        // LZ4 output that needs more room than this is not worth keeping, but the encoder wants
        // room for the worst case.
        compressed.resize(head + get_maximum_output_size(front.len()), 0);
        let len = compress_into_with_table(front, &mut compressed[head..], &mut self.table);
        let Ok(len) = len else { return (CompressionKind::None, payload) };
        compressed.truncate(head + len);
        compressed.extend_from_slice(rest);
        match is_worth_it(compressed.len(), payload.len()) {
            false => (CompressionKind::None, payload),
            true if rest.is_empty() => (CompressionKind::Lz4, compressed),
            true => (CompressionKind::Lz4Front, compressed),
        }
    }
}

/// The part of a payload that is compressed, and the rest that is not.
pub(super) fn front_and_rest(payload: &[u8]) -> (&[u8], &[u8]) {
    let column = BlockTail::of(payload).and_then(|tail| tail.column());
    payload.split_at(column.map_or(payload.len(), |column| column.start))
}

/// Puts the lengths of a payload into `compressed`. Its `rest` is not compressed.
pub(super) fn begin(compressed: &mut Vec<u8>, payload: &[u8], rest: &[u8]) {
    compressed.clear();
    put_varint(compressed, payload.len() as u64);
    if !rest.is_empty() {
        put_varint(compressed, rest.len() as u64);
    }
}

/// Returns `true` if the compressed form saves an eighth.
pub(super) fn is_worth_it(compressed_len: usize, plain_len: usize) -> bool {
    compressed_len <= plain_len - plain_len / 8
}

/// A compressed payload in its parts.
#[derive(Clone, Copy)]
pub(super) struct CompressedPayload<'p> {
    kind: CompressionKind,
    /// Length of the plain payload.
    pub plain_len: usize,
    packed: &'p [u8],
    rest: &'p [u8],
}

impl<'p> CompressedPayload<'p> {
    /// The parts of a payload that is not stored as it is.
    ///
    /// # Errors
    /// The defect.
    pub(super) fn of(
        kind: CompressionKind,
        payload: &'p [u8],
    ) -> Result<CompressedPayload<'p>, &'static str> {
        let (undecodable, excess, ratio_max) = match kind.is_zstd() {
            false => (UNDECODABLE, "LZ4 block claims too many bytes", LZ4_RATIO_MAX),
            true => (UNDECODABLE_ZSTD, "zstd frame claims too many bytes", zstandard::RATIO_MAX),
        };
        let (plain, packed, rest) = parts_of(kind, payload).ok_or(undecodable)?;
        let reach = (packed.len() as u64).saturating_mul(ratio_max);
        // The claimed length decides how much memory is allocated, and it comes from the device.
        let front = plain.checked_sub(rest.len() as u64).filter(|front| *front <= reach);
        if plain > BLOCK_BYTES_MAX || front.is_none() {
            return Err(excess);
        }
        let plain_len = usize::try_from(plain).map_err(|_| "block does not fit into memory")?;
        Ok(CompressedPayload { kind, plain_len, packed, rest })
    }

    /// Decompresses it into `out`, which has its plain length, with the dictionary of the table if it has one.
    ///
    /// # Errors
    /// The defect.
    pub(super) fn decompress_into(
        &self,
        out: &mut [u8],
        dictionary: Option<&Dictionary>,
    ) -> Result<(), &'static str> {
        let (front, rest) = out.split_at_mut(self.plain_len - self.rest.len());
        if self.kind.is_zstd() {
            let dictionary = dictionary.filter(|_| self.kind.has_dictionary());
            if self.kind.has_dictionary() && dictionary.is_none() {
                return Err("block needs a dictionary, and the table has none");
            }
            if !zstandard::decompress(self.packed, front, dictionary) {
                return Err(UNDECODABLE_ZSTD);
            }
        } else if !decompress_into(self.packed, front).is_ok_and(|len| len == front.len()) {
            return Err(UNDECODABLE);
        }
        rest.copy_from_slice(self.rest);
        Ok(())
    }
}

/// The plain length of a compressed payload, its compressed bytes, and its rest.
fn parts_of(kind: CompressionKind, payload: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (plain, mut head) = varint_at(payload, 0)?;
    let mut rest_len = 0;
    if kind.has_rest() {
        let (len, len_len) = varint_at(payload, head)?;
        rest_len = usize::try_from(len).ok()?;
        head += len_len;
    }
    let packed_len = payload.len().checked_sub(head)?.checked_sub(rest_len)?;
    let (packed, rest) = payload[head..].split_at(packed_len);
    Some((plain, packed, rest))
}
