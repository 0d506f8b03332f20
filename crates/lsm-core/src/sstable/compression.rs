//! The forms of a payload in a stored block, and LZ4 for payloads that are compressed at once. Used by
//! `stored.rs`; larger payloads go through `stream_compressor.rs`.
//!
//! ```text
//! compression  payload
//! 0            as it is
//! 1            varint length of the plain payload; LZ4 block
//! 2            varint length of the plain payload; varint length of its rest; LZ4 block of all in front
//!              of the rest; the rest as it is
//! ```
//!
//! In a block with a column of hidden entries (`hidden.rs`) the rest begins with the column. Checksums do not
//! compress, and without them among the entries LZ4 finds longer matches in less time.
//!
//! Invariant: no allocation depends on an unchecked length. A plain length is compared with the most that LZ4
//! can make of the stored bytes.

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

use super::block_tail::BlockTail;
use crate::codec::{put_varint, varint_at};
use crate::limits::BLOCK_BYTES_MAX;

/// LZ4 cannot expand further than this, so a larger claim is a lie.
const LZ4_RATIO_MAX: u64 = 255;
/// The defect of a payload that LZ4 does not accept.
const UNDECODABLE: &str = "LZ4 block does not decode";

/// The form of a payload in the file. Its number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompressionKind {
    /// As it is.
    None = 0,
    /// An LZ4 block.
    Lz4 = 1,
    /// An LZ4 block of its front; the rest as it is.
    Lz4Front = 2,
}

impl CompressionKind {
    /// The kind with this number, if this version knows it.
    pub(super) fn from_u8(n: u8) -> Option<CompressionKind> {
        match n {
            0 => Some(CompressionKind::None),
            1 => Some(CompressionKind::Lz4),
            2 => Some(CompressionKind::Lz4Front),
            _ => None,
        }
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
        let column = BlockTail::of(payload).and_then(|tail| tail.column());
        let (front, rest) = payload.split_at(column.map_or(payload.len(), |column| column.start));
        let compressed = &mut self.compressed;
        compressed.clear();
        put_varint(compressed, payload.len() as u64);
        if !rest.is_empty() {
            put_varint(compressed, rest.len() as u64);
        }
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

/// Returns `true` if the compressed form saves an eighth.
pub(super) fn is_worth_it(compressed_len: usize, plain_len: usize) -> bool {
    compressed_len <= plain_len - plain_len / 8
}

/// A compressed payload in its parts.
#[derive(Clone, Copy)]
pub(super) struct CompressedPayload<'p> {
    /// Length of the plain payload.
    pub plain_len: usize,
    lz4: &'p [u8],
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
        let (plain, lz4, rest) = parts_of(kind, payload).ok_or(UNDECODABLE)?;
        let reach = (lz4.len() as u64).saturating_mul(LZ4_RATIO_MAX);
        // The claimed length decides how much memory is allocated, and it comes from the device.
        let front = plain.checked_sub(rest.len() as u64).filter(|front| *front <= reach);
        if plain > BLOCK_BYTES_MAX || front.is_none() {
            return Err("LZ4 block claims too many bytes");
        }
        let plain_len = usize::try_from(plain).map_err(|_| "LZ4 block does not fit into memory")?;
        Ok(CompressedPayload { plain_len, lz4, rest })
    }

    /// Decompresses it into `out`, which has its plain length.
    ///
    /// # Errors
    /// The defect.
    pub(super) fn decompress_into(&self, out: &mut [u8]) -> Result<(), &'static str> {
        let (front, rest) = out.split_at_mut(self.plain_len - self.rest.len());
        match decompress_into(self.lz4, front) {
            Ok(got) if got == front.len() => {
                rest.copy_from_slice(self.rest);
                Ok(())
            }
            _ => Err(UNDECODABLE),
        }
    }
}

/// The plain length of a compressed payload, its LZ4 block, and its rest.
fn parts_of(kind: CompressionKind, payload: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (plain, mut head) = varint_at(payload, 0)?;
    let mut rest_len = 0;
    if kind == CompressionKind::Lz4Front {
        let (len, len_len) = varint_at(payload, head)?;
        rest_len = usize::try_from(len).ok()?;
        head += len_len;
    }
    let lz4_len = payload.len().checked_sub(head)?.checked_sub(rest_len)?;
    let (lz4, rest) = payload[head..].split_at(lz4_len);
    Some((plain, lz4, rest))
}
