//! Blocks in the form in which they are stored: payload, compression, checksum. Used by the writer,
//! the reader and the cursors of tables.
//!
//! ```text
//! offset  size  name         meaning
//! 0       n     payload      compressed as the next byte says
//! n       1     compression  see `compression.rs`
//! n+1     8     checksum     XXH3-64 of the n+1 bytes before, seeded with file and place
//! ```
//!
//! Invariants:
//! 1. A block verifies only in its own file, at its own offset.
//! 2. No allocation depends on an unchecked length: a stored length is compared with the length of
//!    the file.

use std::cell::Cell;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use super::compression::{BlockCompressor, CompressedPayload, CompressionKind, is_worth_it};
use super::stream_compressor::{Sink, StreamCompressor};
use super::zstd_compressor::ZstdCompressor;
use crate::codec::{Checksum64, checksum64_seeded, put_u64, put_varint, zeroed};
use crate::error::{Error, Result};
use crate::fs::File;
use crate::limits::BLOCK_BYTES_MAX;
use crate::options::Compression;
use crate::zstandard::{self, Compressor, Dictionary, lacks_zstd};

/// Bytes that follow the payload of a stored block.
pub(super) const TRAILER_BYTES: usize = 9;
/// Longest stored block in which a flipped bit is searched: about 0.4 s.
pub(super) const ONE_BIT_BYTES_MAX: usize = 32 << 10;

/// The place of a stored block in its file, trailer included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub offset: u64,
    pub len: u64,
}

impl Extent {
    /// The offset after it; saturates, and is then beyond every file.
    pub(super) fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// Seed of the checksum of the block at `offset`.
pub(super) fn seed(unique_id: u128, offset: u64) -> u64 {
    // An odd factor, so that neighbouring offsets differ in the high bits too.
    unique_id as u64 ^ offset.wrapping_mul(0x9e6c_63d0_876a_9a99)
}

/// A payload from this size on goes to the file in pieces: see [`BlockFramer::frame_pieces`].
pub(super) const LARGE_PAYLOAD_BYTES: usize = 4 << 20;

/// Turns payloads into stored blocks.
pub(super) struct BlockFramer {
    unique_id: u128,
    compressor: BlockCompressor,
    /// Made with the first block that it compresses.
    zstd: Option<Box<ZstdCompressor>>,
}

impl BlockFramer {
    pub(super) fn new(unique_id: u128) -> BlockFramer {
        BlockFramer { unique_id, compressor: BlockCompressor::new(), zstd: None }
    }

    /// The dictionary that blocks were compressed with, if there is one.
    pub(super) fn dictionary(&self) -> Option<&[u8]> {
        self.zstd.as_ref().and_then(|zstd| zstd.dictionary())
    }

    /// Appends `payload` to `out` as the block at `offset`. Returns its extent and checksum.
    pub(super) fn frame(
        &mut self,
        out: &mut Vec<u8>,
        offset: u64,
        payload: &[u8],
        compression: Compression,
    ) -> (Extent, u64) {
        let start = out.len();
        let (kind, stored) = match compression {
            Compression::Lz4 => self.compressor.compress(payload),
            Compression::Zstd => {
                self.zstd.get_or_insert_with(|| Box::new(ZstdCompressor::new())).compress(payload)
            }
            Compression::None => (CompressionKind::None, payload),
        };
        out.extend_from_slice(stored);
        self.end(out, start, offset, kind)
    }

    /// As [`BlockFramer::frame`], of a payload that lies in `pieces` and is not compressed.
    pub(super) fn frame_plain(
        &self,
        out: &mut Vec<u8>,
        offset: u64,
        pieces: &[&[u8]],
    ) -> (Extent, u64) {
        let start = out.len();
        pieces.iter().for_each(|piece| out.extend_from_slice(piece));
        self.end(out, start, offset, CompressionKind::None)
    }

    /// Completes the block at `offset`, whose payload begins at `start` of `out`.
    fn end(
        &self,
        out: &mut Vec<u8>,
        start: usize,
        offset: u64,
        kind: CompressionKind,
    ) -> (Extent, u64) {
        out.push(kind as u8);
        // Over the compressed bytes and the compression byte: nothing is decompressed before it is
        // verified.
        let checksum = checksum64_seeded(&out[start..], seed(self.unique_id, offset));
        put_u64(out, checksum);
        (Extent { offset, len: (out.len() - start) as u64 }, checksum)
    }

    /// Gives the block at `offset`, whose payload is large and lies in `pieces`, to `sink`. Returns its
    /// extent and checksum.
    ///
    /// # Cost
    /// Memory for neither the payload nor its compressed form. It is compressed twice: what is stored
    /// depends on what that saves, and is known only at the end.
    pub(super) fn frame_pieces(
        &self,
        offset: u64,
        pieces: &[&[u8]],
        compression: Compression,
        sink: &mut Sink<'_>,
    ) -> Result<(Extent, u64)> {
        let mut body =
            FramedBody { checksum: Checksum64::seeded(seed(self.unique_id, offset)), len: 0, sink };
        let kind = match compression {
            Compression::Lz4 if body.put_compressed(pieces, compression)? => CompressionKind::Lz4,
            Compression::Zstd if body.put_compressed(pieces, compression)? => CompressionKind::Zstd,
            _ => {
                pieces.iter().try_for_each(|piece| body.put(piece))?;
                CompressionKind::None
            }
        };
        body.put(&[kind as u8])?;
        let checksum = body.checksum.finish();
        let len = body.len + size_of_val(&checksum) as u64;
        sink(&checksum.to_le_bytes())?;
        Ok((Extent { offset, len }, checksum))
    }
}

/// A stored block up to its checksum, on its way to a sink.
struct FramedBody<'b, 's> {
    checksum: Checksum64,
    len: u64,
    sink: &'b mut Sink<'s>,
}

impl FramedBody<'_, '_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.checksum.update(bytes);
        self.len += bytes.len() as u64;
        (self.sink)(bytes)
    }

    /// Puts the compressed form of the pieces; puts nothing and returns `false` if that is not worth it.
    fn put_compressed(&mut self, pieces: &[&[u8]], compression: Compression) -> Result<bool> {
        let plain_len = pieces.iter().map(|piece| piece.len()).sum();
        let mut head = Vec::new();
        put_varint(&mut head, plain_len as u64);
        // The first pass only counts. Keeping its result instead of a second pass would need memory
        // for the whole compressed value.
        let mut compressed_len = head.len();
        let is_whole = compress_pieces(compression, pieces, &mut |bytes| {
            compressed_len += bytes.len();
            Ok(())
        })?;
        if !is_whole || !is_worth_it(compressed_len, plain_len) {
            return Ok(false);
        }
        self.put(&head)?;
        compress_pieces(compression, pieces, &mut |bytes| self.put(bytes))
    }
}

/// Gives the compressed form of the pieces to `sink`, all of it unless it returns `false`.
fn compress_pieces(
    compression: Compression,
    pieces: &[&[u8]],
    sink: &mut Sink<'_>,
) -> Result<bool> {
    match compression {
        Compression::Zstd => Compressor::new().compress_pieces(pieces, sink),
        _ => StreamCompressor::new().compress(pieces, sink).map(|()| true),
    }
}

/// The growth of a thread's heap for blocks, in bytes: below 64 KiB, from which on glibc gives memory back
/// to the system when it is freed.
const HEAP_STEP_BYTES: usize = 56 << 10;

/// Lets the heap of the thread grow by many blocks at a time, where one of `len` bytes is about to be
/// allocated.
///
/// In all threads but the main one, glibc's malloc extends its heap by no more than a call needs, with
/// `mprotect`: that took a tenth of the time of reads that fill an empty cache. A larger allocation that
/// is freed at once leaves its room at the end of the heap. Other allocators lose a call in
/// many by this.
fn grow_heap(len: usize) {
    thread_local! {
        static LEFT: Cell<usize> = const { Cell::new(0) };
    }
    let left = LEFT.get();
    if left >= len {
        LEFT.set(left - len);
    } else if len <= HEAP_STEP_BYTES / 4 {
        drop(black_box(Vec::<u8>::with_capacity(HEAP_STEP_BYTES)));
        LEFT.set(HEAP_STEP_BYTES - len);
    }
}

/// A copy of a payload, to be kept.
pub(super) fn copied(payload: &[u8]) -> Arc<[u8]> {
    grow_heap(payload.len());
    payload.into()
}

/// A payload in memory: the first `len` bytes of `bytes`.
pub(super) struct StoredPayload {
    pub bytes: Arc<[u8]>,
    pub len: usize,
}

/// The way in which bytes are read from the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// As the system does it.
    Plain,
    /// From the device, past every cache where the system allows it.
    Uncached,
}

/// The needs of the blocks of a table, in addition to their own bytes, when they are decompressed.
#[derive(Clone, Default)]
pub(super) struct BlockCodec {
    pub dictionary: Option<Arc<Dictionary>>,
    /// Longest payload with zstd, in bytes, as the properties say it; `None` if they are lost.
    pub payload_bytes_max: Option<u64>,
}

/// The file that blocks are read from, and the identity that they verify against.
#[derive(Clone)]
pub(super) struct TableSource {
    pub file: Arc<dyn File>,
    pub path: Arc<Path>,
    pub unique_id: u128,
    /// Length of the file; no extent passes it.
    pub file_bytes: u64,
    pub codec: BlockCodec,
}

impl TableSource {
    pub(super) fn corruption(
        &self,
        offset: impl Into<Option<u64>>,
        what: impl Into<String>,
    ) -> Error {
        Error::corruption(&*self.path, offset, what)
    }

    /// The error of a table with zstd in a build without it.
    pub(super) fn lacks_zstd(&self) -> Error {
        lacks_zstd(&*self.path, "blocks of a table are compressed")
    }

    /// Fills `buf` from `offset`, in the given way.
    pub(super) fn read_exact(&self, access: Access, offset: u64, buf: &mut [u8]) -> Result<()> {
        let got = match access {
            Access::Plain => self.file.read_at(offset, buf)?,
            Access::Uncached => self.file.read_at_uncached(offset, buf)?,
        };
        if got == buf.len() {
            return Ok(());
        }
        Err(self.corruption(offset, format!("file ends after {got} of {} bytes", buf.len())))
    }

    /// The length of a block that lies in the file and can be held in memory.
    pub(super) fn checked_len(&self, extent: Extent) -> Result<usize> {
        // Before anything is allocated: the extent comes from a block of the file.
        let fits = extent.len > TRAILER_BYTES as u64
            && extent.end() <= self.file_bytes
            && extent.len <= BLOCK_BYTES_MAX + TRAILER_BYTES as u64;
        match usize::try_from(extent.len) {
            Ok(len) if fits => Ok(len),
            _ => {
                let what = format!("block of {} bytes does not fit the file", extent.len);
                Err(self.corruption(extent.offset, what))
            }
        }
    }

    /// Reads and verifies the block at `extent`.
    pub(super) fn read(&self, extent: Extent) -> Result<StoredPayload> {
        self.read_by(Access::Plain, extent)
    }

    /// Reads and verifies the block at `extent`, in the given way.
    pub(super) fn read_by(&self, access: Access, extent: Extent) -> Result<StoredPayload> {
        let len = self.checked_len(extent)?;
        grow_heap(len);
        let mut bytes = zeroed(len);
        // Read straight into the shared buffer, so that a block that is not compressed is never
        // copied.
        let buf = Arc::get_mut(&mut bytes).expect("nobody else has it yet");
        self.read_exact(access, extent.offset, buf)?;
        self.verified_payload(extent.offset, bytes)
    }

    /// The payload of the block at `offset`, whose stored bytes are the caller's to give away.
    pub(super) fn verified_payload(&self, offset: u64, stored: Arc<[u8]>) -> Result<StoredPayload> {
        let (len, kind) = self.verify(offset, &stored)?;
        // With its trailer: 9 bytes more are cheaper than a copy of the payload.
        if kind == CompressionKind::None {
            return Ok(StoredPayload { bytes: stored, len });
        }
        self.decompress(offset, kind, &stored[..len])
    }

    /// Reads and verifies the block at `extent`, whose checksum is to be `expected` where that is
    /// known.
    pub(super) fn read_expected(
        &self,
        extent: Extent,
        expected: Option<u64>,
    ) -> Result<StoredPayload> {
        let Some(expected) = expected else { return self.read(extent) };
        let stored = self.read_stored(Access::Plain, extent)?;
        if !stored.ends_with(&expected.to_le_bytes()) {
            let what = "block checksum is not the one that the properties have";
            return Err(self.corruption(extent.offset, what));
        }
        self.open(extent.offset, &stored)
    }

    /// The payload of a stored block whose checksum does not agree, if it can still be decompressed.
    pub(super) fn unverified_payload(&self, offset: u64, stored: &[u8]) -> Option<StoredPayload> {
        let body = &stored[..stored.len().checked_sub(TRAILER_BYTES)?];
        match CompressionKind::from_u8(stored[body.len()])? {
            CompressionKind::None => Some(StoredPayload { bytes: body.into(), len: body.len() }),
            kind => self.decompress(offset, kind, body).ok(),
        }
    }

    /// The stored block with the one bit turned that makes its checksum agree, if there is one.
    /// The odds that a bit other than the damaged one makes it agree are at most 2^-46.
    ///
    /// # Cost
    /// A checksum of the block for each of its bits: some 7 ms for 4 KiB.
    pub(super) fn with_one_bit_turned(&self, offset: u64, stored: &[u8]) -> Option<Vec<u8>> {
        let (_, checksum) = stored.split_last_chunk::<8>()?;
        self.with_one_bit_turned_for(offset, stored, u64::from_le_bytes(*checksum))
    }

    /// As [`TableSource::with_one_bit_turned`], for a checksum that is known from elsewhere.
    pub(super) fn with_one_bit_turned_for(
        &self,
        offset: u64,
        stored: &[u8],
        stored_checksum: u64,
    ) -> Option<Vec<u8>> {
        let seed = seed(self.unique_id, offset);
        let (body, _) = stored.split_last_chunk::<8>()?;
        // A bit of the checksum itself: the payload is as it was written.
        #[expect(clippy::manual_is_power_of_two, reason = "it counts the bits that differ")]
        if (checksum64_seeded(body, seed) ^ stored_checksum).count_ones() == 1 {
            return Some(stored.to_vec());
        }
        // The search hashes the block once for each of its bits, so its cost grows with the square
        // of the length.
        if stored.len() > ONE_BIT_BYTES_MAX {
            return None;
        }
        let mut turned = stored.to_vec();
        for bit in 0..8 * body.len() {
            turned[bit / 8] ^= 1 << (bit % 8);
            if checksum64_seeded(&turned[..body.len()], seed) == stored_checksum {
                return Some(turned);
            }
            turned[bit / 8] ^= 1 << (bit % 8);
        }
        None
    }

    /// Reads the block at `extent` as it is stored.
    pub(super) fn read_stored(&self, access: Access, extent: Extent) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.checked_len(extent)?];
        self.read_exact(access, extent.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// The payload of a stored block that was read along with its neighbours.
    pub(super) fn open(&self, offset: u64, stored: &[u8]) -> Result<StoredPayload> {
        let (len, kind) = self.verify(offset, stored)?;
        match kind {
            CompressionKind::None => Ok(StoredPayload { bytes: stored[..len].into(), len }),
            kind => self.decompress(offset, kind, &stored[..len]),
        }
    }

    /// Returns `true` if `stored` is a block that was written at `offset`, in every byte.
    pub(super) fn is_block(&self, offset: u64, stored: &[u8]) -> bool {
        self.verify(offset, stored).is_ok()
    }

    /// Checks the trailer; returns length and kind of the payload.
    pub(super) fn verify(&self, offset: u64, stored: &[u8]) -> Result<(usize, CompressionKind)> {
        let Some((body, checksum)) = stored.split_last_chunk::<8>() else {
            return Err(self.corruption(offset, "block is too short"));
        };
        // The checksum first, so that no damaged byte is taken for a compression of newer code.
        if checksum64_seeded(body, seed(self.unique_id, offset)) != u64::from_le_bytes(*checksum) {
            return Err(self.corruption(offset, "block checksum does not match"));
        }
        let Some((kind, payload)) = body.split_last() else {
            return Err(self.corruption(offset, "block is too short"));
        };
        let known = CompressionKind::from_u8(*kind);
        let kind = known.ok_or_else(|| self.corruption(offset, "unknown compression"))?;
        Ok((payload.len(), kind))
    }

    fn decompress(
        &self,
        offset: u64,
        kind: CompressionKind,
        payload: &[u8],
    ) -> Result<StoredPayload> {
        let compressed = self.compressed(offset, kind, payload)?;
        let len = compressed.plain_len;
        let mut bytes = zeroed(len);
        let buf = Arc::get_mut(&mut bytes).expect("nobody else has it yet");
        self.decompress_into(offset, &compressed, buf)?;
        Ok(StoredPayload { bytes, len })
    }

    /// The parts of a payload that is not stored as it is.
    pub(super) fn compressed<'p>(
        &self,
        offset: u64,
        kind: CompressionKind,
        payload: &'p [u8],
    ) -> Result<CompressedPayload<'p>> {
        // A table that says zstd was refused by its footer or its properties.
        if kind.is_zstd() && !zstandard::IS_BUILT_IN {
            return Err(self.corruption(offset, "block says zstd, and its table does not"));
        }
        let parts = CompressedPayload::of(kind, payload);
        let parts = parts.map_err(|what| self.corruption(offset, what))?;
        // Zstandard may expand a few bytes to megabytes, so the ratio alone bounds little.
        let most = self.codec.payload_bytes_max.filter(|_| kind.is_zstd());
        if most.is_some_and(|most| parts.plain_len as u64 > most) {
            return Err(
                self.corruption(offset, "zstd frame claims more bytes than any block of the table")
            );
        }
        Ok(parts)
    }

    /// Decompresses a payload into `out`, which has its plain length.
    pub(super) fn decompress_into(
        &self,
        offset: u64,
        compressed: &CompressedPayload<'_>,
        out: &mut [u8],
    ) -> Result<()> {
        compressed
            .decompress_into(out, self.codec.dictionary.as_deref())
            .map_err(|what| self.corruption(offset, what))
    }
}
