//! [`LargeValueOptions`]: the options of the large values of a partition.
//!
//! They are stored with the partition, as parameters of its value store:
//!
//! ```text
//! 0   1  version, 1; 2 if values are or were compressed; 3 if with zstd
//! 1   1  binary logarithm of the sub-block size
//! 2   2  garbage ratio in thousandths
//! 4   1  from version 2 on: compression of new values, 0 none, 1 LZ4, in version 3 also 2 zstd
//! 5   3  zero; in version 1, from 4 on
//! 8   8  threshold in bytes, 2^64-1 if large values are off
//! 16  8  chunk size in bytes
//! 24  8  bytes that may be moved a second, 0 for no limit
//! ```
//!
//! A partition whose parameters have version 2 or 3 keeps that version when compression is switched off or changed:
//! handles of compressed values may be in tables and in the log, and a program that does not know them
//! must not open it.

use lsm_core::codec::Reader;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::options::Compression;

const VERSION: u8 = 1;
const VERSION_COMPRESSED: u8 = 2;
const VERSION_ZSTD: u8 = 3;
/// Bytes of stored parameters.
const PARAMS_BYTES: usize = 32;

/// Smallest threshold, in bytes.
pub const THRESHOLD_BYTES_MIN: u64 = 256;
/// Smallest chunk size, in bytes.
pub const CHUNK_BYTES_MIN: u64 = 4 << 10;
/// Smallest and largest size of a sub-block, as binary logarithms: 256 bytes and 16 MiB.
pub const SUB_BLOCK_LOG2: std::ops::RangeInclusive<u8> = 8..=24;

/// Options of the large values of a partition. They are stored with the partition. A change takes effect
/// at once for new values, and in compactions for existing values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct LargeValueOptions {
    pub(crate) threshold_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) sub_block_log2: u8,
    pub(crate) garbage_permille: u16,
    pub(crate) move_bytes_per_second: u64,
    pub(crate) compression: Compression,
}

impl Default for LargeValueOptions {
    fn default() -> LargeValueOptions {
        LargeValueOptions {
            threshold_bytes: 64 << 10,
            chunk_bytes: 256 << 20,
            sub_block_log2: 18,
            garbage_permille: 250,
            move_bytes_per_second: 0,
            compression: Compression::None,
        }
    }
}

impl LargeValueOptions {
    /// Returns the defaults.
    pub fn new() -> LargeValueOptions {
        LargeValueOptions::default()
    }

    /// Returns options without large values: values in chunk files move back to the tables when these are
    /// compacted, except values that are too long for a table.
    pub fn off() -> LargeValueOptions {
        LargeValueOptions { threshold_bytes: u64::MAX, ..LargeValueOptions::default() }
    }

    /// Sets the minimum length, in bytes, of a value that goes to a chunk file. Default 64 KiB; at least
    /// 256.
    pub fn threshold_bytes(mut self, bytes: u64) -> LargeValueOptions {
        self.threshold_bytes = bytes;
        self
    }

    /// Sets the length, in bytes, at which a chunk file accepts no more values; its last value may make it
    /// longer. Default 256 MiB, at least 4 KiB.
    pub fn chunk_bytes(mut self, bytes: u64) -> LargeValueOptions {
        self.chunk_bytes = bytes;
        self
    }

    /// Sets the size, in bytes, of the sub-blocks of a value, which have a checksum each. A read of a small
    /// range reads a whole sub-block. A power of two from 256 bytes to 16 MiB; default 256 KiB. In effect
    /// for values written from then on.
    pub fn sub_block_bytes(mut self, bytes: u32) -> LargeValueOptions {
        // 0 is out of the range. A setter returns no error, so `check` does it.
        self.sub_block_log2 = if bytes.is_power_of_two() { bytes.ilog2() as u8 } else { 0 };
        self
    }

    /// Sets the share of garbage in a chunk file, in thousandths, at which its live values are moved so that
    /// the file can be removed. Default 250; from 1 to 1000, where 1000 means that the whole file must be
    /// garbage. In effect at once.
    pub fn garbage_permille(mut self, permille: u16) -> LargeValueOptions {
        self.garbage_permille = permille;
        self
    }

    /// Sets the maximum number of bytes of values that are moved per second. Default 0, which is no limit.
    /// In effect at once.
    pub fn move_bytes_per_second(mut self, bytes: u64) -> LargeValueOptions {
        self.move_bytes_per_second = bytes;
        self
    }

    /// Sets the compression of values in chunk files. Default [`Compression::None`]. With
    /// [`Compression::Lz4`] or [`Compression::Zstd`], each sub-block is compressed by itself, without a dictionary, and
    /// stored uncompressed if that saves less than an eighth; a value with a compressed sub-block cannot be mapped. In
    /// effect for values written from then on; values that are moved keep their form.
    ///
    /// After it was set for a partition, programs of versions that do not know it cannot open the
    /// partition any more.
    pub fn compression(mut self, compression: Compression) -> LargeValueOptions {
        self.compression = compression;
        self
    }

    /// Returns `true` unless they are [`LargeValueOptions::off`].
    pub fn is_on(&self) -> bool {
        self.threshold_bytes != u64::MAX
    }

    /// Checks every range.
    ///
    /// # Errors
    /// A limit.
    pub(crate) fn check(&self) -> Result<()> {
        let limit = |what, got, limit| Err(Error::limit(what, got, limit));
        if self.threshold_bytes < THRESHOLD_BYTES_MIN {
            return limit("threshold_bytes", self.threshold_bytes, THRESHOLD_BYTES_MIN);
        }
        if self.chunk_bytes < CHUNK_BYTES_MIN {
            return limit("chunk_bytes", self.chunk_bytes, CHUNK_BYTES_MIN);
        }
        if !SUB_BLOCK_LOG2.contains(&self.sub_block_log2) {
            return limit("log2 of sub_block_bytes", self.sub_block_log2.into(), 24);
        }
        if !(1..=1000).contains(&self.garbage_permille) {
            return limit("garbage_permille", self.garbage_permille.into(), 1000);
        }
        match self.compression {
            Compression::None | Compression::Lz4 | Compression::Zstd => Ok(()),
            other => Err(Error::new(ErrorKind::Unsupported, format!("{other:?} of large values"))),
        }
    }

    /// Checks what this build can do, apart from ranges. Stored options are not checked so: a partition that another
    /// build has set can still be read as far as its files allow.
    ///
    /// # Errors
    /// `Unsupported`: it lacks a feature.
    pub(crate) fn check_built_in(&self) -> Result<()> {
        if self.compression.is_built_in() {
            return Ok(());
        }
        let message = "compression of large values with zstd: this build lacks the feature `zstd`";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// As parameters.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.encode_as(self.version())
    }

    fn version(&self) -> u8 {
        match self.compression {
            Compression::None => VERSION,
            Compression::Zstd => VERSION_ZSTD,
            // `check` has refused every other.
            _ => VERSION_COMPRESSED,
        }
    }

    /// As parameters of a partition that has the parameters `stored`: never of a lower version.
    pub(crate) fn encode_over(&self, stored: &[u8]) -> Vec<u8> {
        // Handles of that version may be in its tables and its log. A program that reads only lower ones
        // must still refuse the partition.
        let known = stored.first().filter(|version| **version <= VERSION_ZSTD);
        self.encode_as(known.map_or(0, |version| *version).max(self.version()))
    }

    fn encode_as(&self, version: u8) -> Vec<u8> {
        let mut out = vec![version, self.sub_block_log2];
        out.extend_from_slice(&self.garbage_permille.to_le_bytes());
        out.extend_from_slice(&[self.compression as u8, 0, 0, 0]);
        for n in [self.threshold_bytes, self.chunk_bytes, self.move_bytes_per_second] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        debug_assert_eq!(out.len(), PARAMS_BYTES);
        out
    }

    /// The options of parameters; `None` if they are not known.
    pub(crate) fn decode(params: &[u8]) -> Option<LargeValueOptions> {
        if params.len() != PARAMS_BYTES {
            return None;
        }
        let mut r = Reader::new(params);
        let version = r.u8().ok()?;
        let sub_block_log2 = r.u8().ok()?;
        let garbage = r.take(2).ok()?;
        let garbage_permille = u16::from_le_bytes(garbage.try_into().ok()?);
        let compression = match (version, r.u8().ok()?) {
            // Zero in version 1. Another number there is from newer code.
            (VERSION, 0) => Compression::None,
            (VERSION_COMPRESSED, number @ 0..=1) => Compression::from_u8(number)?,
            (VERSION_ZSTD, number) => Compression::from_u8(number)?,
            _ => return None,
        };
        if r.take(3).ok()? != [0; 3] {
            return None;
        }
        let options = LargeValueOptions {
            threshold_bytes: r.u64().ok()?,
            chunk_bytes: r.u64().ok()?,
            sub_block_log2,
            garbage_permille,
            move_bytes_per_second: r.u64().ok()?,
            compression,
        };
        options.check().ok()?;
        Some(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_read_back_and_other_parameters_are_not_understood() {
        let options = LargeValueOptions::new()
            .threshold_bytes(1000)
            .chunk_bytes(1 << 20)
            .sub_block_bytes(4096)
            .garbage_permille(500)
            .move_bytes_per_second(7);
        let params = options.encode();
        assert_eq!(LargeValueOptions::decode(&params), Some(options));
        assert_eq!(LargeValueOptions::decode(&params[1..]), None);
        assert_eq!(LargeValueOptions::decode(&[&[4], &params[1..]].concat()), None);
        assert!(!LargeValueOptions::off().is_on() && options.is_on());
    }

    /// A version that does not know compression reads only version 1.
    #[test]
    fn parameters_have_version_2_from_the_first_compression_on() {
        let plain = LargeValueOptions::new();
        let compressed = plain.compression(Compression::Lz4);
        assert_eq!((plain.encode()[0], compressed.encode()[0]), (1, 2));
        let zstd = plain.compression(Compression::Zstd);
        assert_eq!((zstd.encode()[0], LargeValueOptions::decode(&zstd.encode())), (3, Some(zstd)));
        for options in [plain, compressed, zstd] {
            let over = options.encode_over(&zstd.encode());
            assert_eq!((over[0], LargeValueOptions::decode(&over)), (3, Some(options)));
        }
        assert_eq!(zstd.encode_over(&compressed.encode()), zstd.encode());
        for options in [plain, compressed] {
            let over = options.encode_over(&compressed.encode());
            assert_eq!((over[0], LargeValueOptions::decode(&over)), (2, Some(options)));
            assert_eq!(options.encode_over(&plain.encode()), options.encode());
        }
        let mut unknown = compressed.encode();
        unknown[4] = 2;
        assert_eq!(LargeValueOptions::decode(&unknown), None);
        let mut early = compressed.encode();
        early[0] = 1;
        assert_eq!(LargeValueOptions::decode(&early), None, "version 1 has no compression");
    }

    #[test]
    fn options_out_of_their_range_are_refused() {
        let fine = LargeValueOptions::new();
        fine.check().unwrap();
        for refused in [
            fine.threshold_bytes(THRESHOLD_BYTES_MIN - 1),
            fine.chunk_bytes(CHUNK_BYTES_MIN - 1),
            fine.sub_block_bytes(1000),
            fine.sub_block_bytes(128),
            fine.garbage_permille(0),
            fine.garbage_permille(1001),
        ] {
            refused.check().unwrap_err();
        }
    }
}
