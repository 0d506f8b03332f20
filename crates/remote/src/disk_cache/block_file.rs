//! The file of a cache on disk: some blocks of objects, with their names and checksums before them.
//!
//! ```text
//! blocks-{number, 16 hex digits}
//! offset size name
//!      0    8 magic "SILTBLKS"
//!      8    4 format version 1
//!     12    4 length of the header, with its checksum
//!     16    v number of blocks, then each: name of the object, v number of the block in it, v length,
//!             8 XXH3-64 of the block
//!   last    8 checksum of the header: XXH3-64 of all before
//! header      the blocks, in their order
//! ```
//!
//! All integers are little-endian; *v* is a variable-length integer, and a name is a length *v* and so many bytes.

use std::path::Path;
use std::sync::Arc;

use lsm_core::codec::{Malformed, Reader, checksum64, put_bytes, put_u32, put_u64, put_varint};
use lsm_core::fs::Fs;
use siltstone::Result;

const MAGIC: [u8; 8] = *b"SILTBLKS";
const VERSION: u32 = 1;
const FRONT_BYTES: usize = 16;
const VARINT_BYTES_MAX: u64 = 10;
/// The bytes of a header that do not depend on its blocks, at most.
pub(super) const FRAME_BYTES_MAX: u64 = FRONT_BYTES as u64 + VARINT_BYTES_MAX + 8;
/// No header is longer: a file has [`bytes_in_file`] of some megabytes.
const HEADER_BYTES_MAX: u32 = 16 << 20;
const BLOCK_BYTES_MAX: u64 = 16 << 20;
const PREFIX: &str = "blocks-";

/// The name of an object, and the number of a block in it.
pub(crate) type BlockKey = (Arc<str>, u64);

/// A block and its bytes.
pub(crate) type Block = (BlockKey, Arc<[u8]>);

/// The place of a block in a file, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptBlock {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) sum: u64,
}

/// The header of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlockFile {
    pub(super) blocks: Vec<(BlockKey, KeptBlock)>,
    end: u64,
}

/// The bytes of a header.
pub(super) struct HeaderBytes(Vec<u8>);

impl HeaderBytes {
    /// All bytes of the file.
    pub(super) fn pieces<'a>(&'a self, blocks: &'a [Block]) -> Vec<&'a [u8]> {
        let header = std::iter::once(&self.0[..]);
        header.chain(blocks.iter().map(|(_, block)| &block[..])).collect()
    }
}

pub(super) fn file_name(number: u64) -> String {
    format!("{PREFIX}{number:016x}")
}

pub(super) fn number_of_file(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix(PREFIX)?, 16).ok()?;
    (file_name(number) == name).then_some(number)
}

/// The bytes that a block of `len` bytes takes in a file with its part of the header, at most.
pub(super) fn bytes_in_file((object, _): &BlockKey, len: usize) -> u64 {
    (object.len() + len) as u64 + 3 * VARINT_BYTES_MAX + 8
}

/// Returns the header of a file with `blocks`, as bytes and as it is read again.
pub(super) fn encode(blocks: &[Block]) -> (HeaderBytes, BlockFile) {
    let mut out = MAGIC.to_vec();
    put_u32(&mut out, VERSION);
    put_u32(&mut out, 0);
    put_varint(&mut out, blocks.len() as u64);
    let mut places = Vec::new();
    for ((object, number), block) in blocks {
        let sum = checksum64(block);
        put_bytes(&mut out, object.as_bytes());
        put_varint(&mut out, *number);
        put_varint(&mut out, block.len() as u64);
        put_u64(&mut out, sum);
        places.push(((object.clone(), *number), block.len() as u32, sum));
    }
    let header_bytes = out.len() as u32 + 8;
    out[12..FRONT_BYTES].copy_from_slice(&header_bytes.to_le_bytes());
    let sum = checksum64(&out);
    put_u64(&mut out, sum);
    (HeaderBytes(out), BlockFile::new(header_bytes, places))
}

impl BlockFile {
    fn new(header_bytes: u32, blocks: Vec<(BlockKey, u32, u64)>) -> BlockFile {
        let mut end = u64::from(header_bytes);
        let mut placed = Vec::new();
        for (key, len, sum) in blocks {
            placed.push((key, KeptBlock { offset: end, len, sum }));
            end += u64::from(len);
        }
        BlockFile { blocks: placed, end }
    }

    /// The length of the file.
    pub(super) fn len(&self) -> u64 {
        self.end
    }

    /// A file of `len` bytes whose header is not known.
    pub(super) fn unread(len: u64) -> BlockFile {
        BlockFile { blocks: Vec::new(), end: len }
    }

    /// Reads the header of a file; `None` if it is not one, or damaged.
    ///
    /// # Errors
    /// Those of the disk.
    pub(super) fn read(fs: &dyn Fs, path: &Path) -> Result<Option<BlockFile>> {
        let file = fs.open_read(path)?;
        let mut front = [0; FRONT_BYTES];
        if file.read_at(0, &mut front)? < FRONT_BYTES {
            return Ok(None);
        }
        let Ok(len) = front_of(&front) else { return Ok(None) };
        let mut header = vec![0; len as usize];
        if file.read_at(0, &mut header)? < header.len() {
            return Ok(None);
        }
        Ok(decode(&header).ok())
    }
}

/// Decodes the header `bytes`.
#[cfg(feature = "internals")]
pub(crate) fn check_block_file(bytes: &[u8]) {
    let len = front_of(bytes).map_or(0, |len| len as usize);
    if let Some(header) = bytes.get(..len).filter(|header| header.len() >= FRONT_BYTES + 9) {
        let _ = decode(header);
    }
}

/// The length of the header.
fn front_of(front: &[u8]) -> std::result::Result<u32, Malformed> {
    let mut reader = Reader::new(front);
    let is_known = reader.take(MAGIC.len())? == MAGIC && reader.u32()? == VERSION;
    let len = reader.u32()?;
    let is_sound = (FRONT_BYTES as u32 + 9..=HEADER_BYTES_MAX).contains(&len);
    if is_known && is_sound { Ok(len) } else { Err(reader.malformed("no file of blocks")) }
}

fn decode(header: &[u8]) -> std::result::Result<BlockFile, Malformed> {
    let body_end = header.len() - 8;
    let mut sum = Reader::new(&header[body_end..]);
    if sum.u64()? != checksum64(&header[..body_end]) {
        return Err(sum.malformed("the checksum of the header"));
    }
    let mut reader = Reader::new(&header[FRONT_BYTES..body_end]);
    let count = reader.varint()?;
    let mut blocks = Vec::new();
    for _ in 0..count {
        let object = std::str::from_utf8(reader.bytes()?);
        let object: Arc<str> = object.map_err(|_| reader.malformed("a name"))?.into();
        let number = reader.varint()?;
        let len = reader.varint()?;
        if len > BLOCK_BYTES_MAX {
            return Err(reader.malformed("the length of a block"));
        }
        blocks.push(((object, number), len as u32, reader.u64()?));
    }
    reader.finish()?;
    Ok(BlockFile::new(header.len() as u32, blocks))
}
