//! The bytes of a chunk file, and of the handles that point into it.
//!
//! ```text
//! chunk file: chunk header, then blocks without a gap; numbers are little-endian
//!
//! chunk header, 64 bytes               block                            handle, 64 or 72 bytes
//!  0  8  magic "siltchnk"               0  4  magic "blok"               0  1  version, 1 to 3
//!  8  2  version, 1                     4  1  version, 1                 1  1  log2 of sub-block size
//! 10  2  zero                           5  1  log2 of sub-block size     2  2  zero
//! 12  4  partition                      6  2  zero                       4  4  epoch of the chunk
//! 16  8  number of the chunk            8  4  epoch of the chunk         8  8  number of the chunk
//! 24  4  epoch of the chunk            12  4  length of the key         16  8  offset of the block
//! 28  4  zero                          16  8  number of the chunk       24  4  length of the key
//! 32 16  database                      24  8  offset of the block       28  4  zero
//! 48  8  zero                          32  8  time stored               32  8  length of the value
//! 56  8  checksum of 0..56             40  8  checksum of 0..40, key    40  8  time stored
//!                                      48     key, as it is stored      48 16  root hash
//!                                             value, in sub-blocks       from version 2 on:
//!                                             table of sub-blocks        64  8  stored length of the value
//!
//! table of sub-blocks, an entry each    version 1: 8 bytes               from version 2 on: 12 bytes
//!                                        0  8  checksum, bound to its     0  8  checksum, bound to its
//!                                              place                            place
//!                                                                         8  4  stored length
//!
//! root hash: XXH3-128 of a record for each sub-block, and of the length of the value (8 bytes)
//!                                       version 1: 8 bytes               from version 2 on: 12 bytes
//!                                        0  8  checksum, not bound        0  8  checksum, not bound
//!                                                                         8  4  stored length
//! ```
//!
//! A value whose key comes after its last byte has a block without a key: the length of the key is 0 in block and
//! handle. The entry that has the handle says the key. A move writes the key into the new block.
//!
//! Times are microseconds since 1970. Checksums are XXH3-64. A block is written in one piece and
//! never changed; it has no trailer, because the handle has its length, and its root hash shows
//! whether it is complete.
//!
//! A handle of version 2 is that of a value that was written with compression. A sub-block is an LZ4
//! block if its stored length is less than its length, and else the bytes of the value. In version 3 it is
//! a frame of Zstandard instead. The chunk file and the front of the block are the same in all versions.
//!
//! Checksums are of the bytes as they are stored. So a sub-block is verified before it is
//! decompressed, and a value is moved and recovered without being compressed or decompressed again.
//! Checksums of the plain bytes would also find a mistake of the compressor, but every move would
//! decompress, and the decompressor would get unverified bytes.
//!
//! Invariant: the root hash covers the value alone (its length and the checksums and stored lengths
//! of its sub-blocks), and not its place: it stays valid when the value is moved.

use lsm_core::codec::{Malformed, Reader, checksum64, put_u32, put_u64, put_u128};
use lsm_core::hooks::ChunkId;
use lsm_core::types::{DbId, Epoch, FileNo, PartitionId};

use crate::options::SUB_BLOCK_LOG2;
use crate::packing::SubBlockCodec;

/// Magic of a chunk file.
pub const MAGIC: [u8; 8] = *b"siltchnk";
const BLOCK_MAGIC: [u8; 4] = *b"blok";
const CHUNK_VERSION: u16 = 1;
const BLOCK_VERSION: u8 = 1;
/// Version of the handle of a value that was written without compression, with LZ4, and with Zstandard.
const HANDLE_VERSION: u8 = 1;
const HANDLE_VERSION_LZ4: u8 = 2;
const HANDLE_VERSION_ZSTD: u8 = 3;

/// Bytes of a chunk header.
pub const CHUNK_HEADER_BYTES: u64 = 64;
/// Bytes of a block before its key.
pub const BLOCK_HEADER_BYTES: u64 = 48;
/// Bytes of a handle of version 1.
pub const HANDLE_BYTES: usize = 64;
/// Bytes of a handle of version 2 or 3.
pub const HANDLE_BYTES_COMPRESSED: usize = 72;
/// Bytes before a block's own checksum.
const BLOCK_SUMMED_BYTES: usize = 40;
/// Longest value of a valid handle: 2^60 bytes.
pub const VALUE_BYTES_MAX: u64 = 1 << 60;

const _: () = assert!(HANDLE_BYTES == 48 + 16 && HANDLE_BYTES_COMPRESSED == HANDLE_BYTES + 8);

/// The form in which the sub-blocks of a value are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// All as they are.
    Plain,
    /// Each compressed, or uncompressed if that saves too little.
    Compressed {
        /// The compression.
        codec: SubBlockCodec,
        /// Stored length of all sub-blocks, in bytes.
        stored_len: u64,
    },
}

/// The place of a value, and its known properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The chunk file.
    pub chunk: ChunkId,
    /// Offset of the block in it, in bytes.
    pub offset: u64,
    /// Length of the stored key, in bytes; 0 also if the block has no key.
    pub key_len: u32,
    /// Binary logarithm of the size of a sub-block.
    pub sub_block_log2: u8,
    /// Length of the value, in bytes.
    pub len: u64,
    /// When it was stored first, in microseconds since 1970.
    pub stored_us: u64,
    /// The root hash.
    pub root: u128,
    /// The form in which the value is stored.
    pub form: Form,
}

impl Handle {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HANDLE_BYTES_COMPRESSED);
        // Version 2 or 3 only if it is needed: older programs read the values of partitions without
        // compression.
        let version = match self.form {
            Form::Plain => HANDLE_VERSION,
            Form::Compressed { codec: SubBlockCodec::Lz4, .. } => HANDLE_VERSION_LZ4,
            Form::Compressed { codec: SubBlockCodec::Zstd, .. } => HANDLE_VERSION_ZSTD,
        };
        out.extend_from_slice(&[version, self.sub_block_log2, 0, 0]);
        put_u32(&mut out, self.chunk.epoch.0);
        put_u64(&mut out, self.chunk.number.0);
        put_u64(&mut out, self.offset);
        put_u32(&mut out, self.key_len);
        put_u32(&mut out, 0);
        put_u64(&mut out, self.len);
        put_u64(&mut out, self.stored_us);
        put_u128(&mut out, self.root);
        if let Form::Compressed { stored_len, .. } = self.form {
            put_u64(&mut out, stored_len);
        }
        out
    }

    /// Returns `true` for the bytes of a handle that a later version of this program wrote.
    pub fn is_newer(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|version| *version > HANDLE_VERSION_ZSTD)
    }

    /// The handle of these bytes.
    ///
    /// # Errors
    /// The bytes are no handle, or one of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Handle, Malformed> {
        let mut r = Reader::new(bytes);
        let version = r.u8()?;
        if !(HANDLE_VERSION..=HANDLE_VERSION_ZSTD).contains(&version) {
            return Err(r.malformed("version of a handle that is not known"));
        }
        let sub_block_log2 = r.u8()?;
        if !SUB_BLOCK_LOG2.contains(&sub_block_log2) || r.take(2)? != [0, 0] {
            return Err(r.malformed("a handle with an impossible sub-block size"));
        }
        let epoch = Epoch(r.u32()?);
        let number = FileNo(r.u64()?);
        let offset = r.u64()?;
        let key_len = r.u32()?;
        if r.u32()? != 0 {
            return Err(r.malformed("a handle with unknown bits"));
        }
        let len = r.u64()?;
        let stored_us = r.u64()?;
        let root = r.u128()?;
        // Bounded here, so that sums of offsets and lengths overflow nowhere.
        if len > VALUE_BYTES_MAX || !(CHUNK_HEADER_BYTES..=VALUE_BYTES_MAX).contains(&offset) {
            return Err(r.malformed("a handle of an impossible place"));
        }
        let form = match version {
            HANDLE_VERSION => Form::Plain,
            HANDLE_VERSION_LZ4 => {
                Form::Compressed { codec: SubBlockCodec::Lz4, stored_len: r.u64()? }
            }
            _ => Form::Compressed { codec: SubBlockCodec::Zstd, stored_len: r.u64()? },
        };
        if let Form::Compressed { codec, stored_len } = form {
            // The second bounds the memory for a value by the length of its file.
            if stored_len > len || stored_len < len.div_ceil(codec.ratio_max()) {
                return Err(r.malformed("a handle of an impossible stored length"));
            }
        }
        r.finish()?;
        let chunk = ChunkId { number, epoch };
        Ok(Handle { chunk, offset, key_len, sub_block_log2, len, stored_us, root, form })
    }

    /// Size of a sub-block, in bytes.
    pub fn sub_block_bytes(&self) -> u64 {
        1 << self.sub_block_log2
    }

    /// The number of sub-blocks.
    pub fn sub_block_count(&self) -> u64 {
        self.len.div_ceil(self.sub_block_bytes())
    }

    /// Length of the sub-block `index`, in bytes; it is one of the value.
    pub fn sub_block_len(&self, index: u64) -> usize {
        let start = index * self.sub_block_bytes();
        debug_assert!(start < self.len);
        (self.len - start).min(self.sub_block_bytes()) as usize
    }

    /// Length of the stored form of the value, in bytes.
    pub fn stored_len(&self) -> u64 {
        match self.form {
            Form::Plain => self.len,
            Form::Compressed { stored_len, .. } => stored_len,
        }
    }

    /// Returns `true` if the stored bytes are those of the value: no sub-block is compressed.
    pub fn is_stored_as_given(&self) -> bool {
        self.stored_len() == self.len
    }

    /// Bytes of a sub-block in the table of sub-blocks.
    pub fn entry_bytes(&self) -> u64 {
        match self.form {
            Form::Plain => 8,
            Form::Compressed { .. } => 12,
        }
    }

    /// Offset of the value in the chunk file, in bytes.
    pub fn value_offset(&self) -> u64 {
        self.offset + BLOCK_HEADER_BYTES + u64::from(self.key_len)
    }

    /// Offset of the table of sub-blocks in the chunk file, in bytes.
    pub fn table_offset(&self) -> u64 {
        self.value_offset() + self.stored_len()
    }

    /// Offset after the block, in bytes.
    pub fn end(&self) -> u64 {
        self.table_offset() + self.sub_block_count() * self.entry_bytes()
    }

    /// Length of the block, in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.end() - self.offset
    }

    /// The binding of checksums to the block's place.
    pub fn binding(&self) -> Binding {
        Binding::of(self.chunk, self.offset)
    }
}

/// Binds the checksum of a sub-block to its place, so that a sub-block which is read from another
/// place never passes.
#[derive(Clone, Copy, Debug)]
pub struct Binding(u64);

impl Binding {
    /// The binding of a block.
    pub fn of(chunk: ChunkId, offset: u64) -> Binding {
        let mut place = Vec::with_capacity(20);
        put_u64(&mut place, chunk.number.0);
        put_u32(&mut place, chunk.epoch.0);
        put_u64(&mut place, offset);
        Binding(checksum64(&place))
    }

    /// Returns the stored form of the checksum `sum` of the sub-block `index`; applied to that
    /// form, it returns the checksum.
    pub fn apply(self, sum: u64, index: u64) -> u64 {
        // Times an odd number: each index has a word of its own, so exchanged sub-blocks of one
        // value are noticed, too.
        sum ^ self.0.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// The header of a chunk file.
pub fn chunk_header(chunk: ChunkId, partition: PartitionId, db: DbId) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    put_u32(&mut out, CHUNK_VERSION.into());
    put_u32(&mut out, partition.0);
    put_u64(&mut out, chunk.number.0);
    put_u32(&mut out, chunk.epoch.0);
    put_u32(&mut out, 0);
    put_u128(&mut out, db.0);
    put_u64(&mut out, 0);
    let sum = checksum64(&out);
    put_u64(&mut out, sum);
    debug_assert_eq!(out.len() as u64, CHUNK_HEADER_BYTES);
    out
}

/// The front of a block: its header and its key. All of it follows from the handle and the key, so
/// a reader compares it whole.
pub fn block_front(handle: &Handle, key: &[u8]) -> Vec<u8> {
    debug_assert_eq!(handle.key_len as usize, key.len());
    let mut out = Vec::with_capacity(BLOCK_HEADER_BYTES as usize + key.len());
    out.extend_from_slice(&BLOCK_MAGIC);
    out.extend_from_slice(&[BLOCK_VERSION, handle.sub_block_log2, 0, 0]);
    put_u32(&mut out, handle.chunk.epoch.0);
    put_u32(&mut out, handle.key_len);
    put_u64(&mut out, handle.chunk.number.0);
    put_u64(&mut out, handle.offset);
    put_u64(&mut out, handle.stored_us);
    debug_assert_eq!(out.len(), BLOCK_SUMMED_BYTES);
    // Covers the key as well. A scrub takes the key from here, to see whether the value belongs to
    // its entry.
    let sum = checksum64(&[&out[..], key].concat());
    put_u64(&mut out, sum);
    out.extend_from_slice(key);
    out
}

/// The key of a block by its front, which belongs to the handle.
///
/// # Errors
/// The front is damaged, or another block's.
pub fn key_of_front<'f>(handle: &Handle, front: &'f [u8]) -> Result<&'f [u8], Malformed> {
    let key = front.get(BLOCK_HEADER_BYTES as usize..).unwrap_or_default();
    // Encoded again and compared as a whole: no field of the header is trusted by itself.
    if key.len() != handle.key_len as usize || block_front(handle, key) != front {
        return Err(Malformed { what: "the header of a block is not the handle's", at: 0 });
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> Handle {
        Handle {
            chunk: ChunkId { number: FileNo(0x2d), epoch: Epoch(3) },
            offset: 64,
            key_len: 3,
            sub_block_log2: 12,
            len: 10_000,
            stored_us: 1_700_000_000_000_000,
            root: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
            form: Form::Plain,
        }
    }

    fn compressed(stored_len: u64) -> Handle {
        Handle { form: Form::Compressed { codec: SubBlockCodec::Lz4, stored_len }, ..handle() }
    }

    #[test]
    fn a_handle_reads_back_and_every_other_length_is_refused() {
        for (handle, handle_bytes, end) in
            [(handle(), 64, 10_000 + 3 * 8), (compressed(700), 72, 700 + 3 * 12)]
        {
            let bytes = handle.encode();
            assert_eq!(bytes.len(), handle_bytes);
            assert_eq!(Handle::decode(&bytes), Ok(handle));
            for len in 0..bytes.len() {
                assert!(Handle::decode(&bytes[..len]).is_err());
            }
            assert!(Handle::decode(&[&bytes[..], &[0]].concat()).is_err());
            assert_eq!((handle.sub_block_count(), handle.value_offset()), (3, 64 + 48 + 3));
            assert_eq!(handle.end(), 64 + 48 + 3 + end);
            assert_eq!((handle.sub_block_len(1), handle.sub_block_len(2)), (4096, 10_000 - 8192));
        }
    }

    #[test]
    fn a_stored_length_that_no_compressor_reaches_is_refused() {
        for (stored_len, is_possible) in
            [(39, false), (40, true), (10_000, true), (10_001, false), (u64::MAX, false)]
        {
            let decoded = Handle::decode(&compressed(stored_len).encode());
            assert_eq!(decoded.is_ok(), is_possible, "{stored_len} of 10000 bytes");
        }
        assert!(compressed(10_000).is_stored_as_given() && !compressed(9999).is_stored_as_given());
        let mut newer = handle().encode();
        newer[0] = HANDLE_VERSION_ZSTD + 1;
        assert!(Handle::is_newer(&newer) && !Handle::is_newer(&compressed(40).encode()));
    }

    #[test]
    fn a_block_is_of_one_place_alone() {
        let one = handle();
        let front = block_front(&one, b"key");
        assert_eq!(key_of_front(&one, &front), Ok(&b"key"[..]));
        let other = Handle { offset: 65, ..one };
        assert!(key_of_front(&other, &front).is_err());
        assert_ne!(one.binding().apply(7, 0), other.binding().apply(7, 0));
        assert_ne!(one.binding().apply(7, 0), one.binding().apply(7, 1));
        assert_eq!(one.binding().apply(one.binding().apply(7, 5), 5), 7);
    }

    #[test]
    fn every_bit_of_a_front_counts() {
        let handle = handle();
        let front = block_front(&handle, b"key");
        for bit in 0..front.len() * 8 {
            let mut damaged = front.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(key_of_front(&handle, &damaged).is_err(), "bit {bit}");
        }
    }
}
