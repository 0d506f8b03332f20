//! The footer: the last bytes of a table, from which all else is found.
//!
//! ```text
//! offset  size  name           meaning
//! 0       8     compatible     feature bits that any reader may ignore: 0 = the properties have
//!                              checksums of themselves and of the blocks before them
//! 8       8     read           feature bits that a mere reader may ignore
//! 16      8     incompatible   feature bits that every reader must know: 0 = data blocks hold
//!                              hidden entries, whose suffix is in the properties; 1 = they may
//!                              have the short form; 2 = they may lie in a column; 3 = entries may
//!                              be operands of merges; 4 = blocks may be compressed with zstd;
//!                              5 = a key may be empty
//! 24      1     checksum       1 = XXH3-64
//! 25      1     trailer        bytes after the payload of each block: 9
//! 26      1     index levels   1 or 2
//! 27      5     reserved       0
//! 32      16    db id
//! 48      16    unique id      hash of database, file number and epoch
//! 64      16    bloom          u64 offset, u64 length; both 0 without one
//! 80      16    index          the same
//! 96      16    properties     the same
//! 112     16    file hash      XXH3-128 over the checksums of all blocks in file order
//! 128     4     footer length  152
//! 132     4     version        1
//! 136     8     magic          "siltsst\n"
//! 144     8     checksum       XXH3-64 of all bytes before, seeded with the file's length
//! ```
//!
//! Length, version, magic and checksum lie at the same distance from the end in every version.

use crate::codec::{Malformed, Reader, checksum64_seeded, put_u32, put_u64, put_u128};
use crate::error::{Error, ErrorKind, Result};
use crate::types::DbId;
use crate::zstandard;

use super::stored::{Access, Extent, TableSource};

/// Length of the footer that this version writes, in bytes.
pub(super) const FOOTER_BYTES: usize = 152;
/// A footer of a later version may be longer, up to this.
const FOOTER_BYTES_MAX: usize = 4096;
/// Bytes from the footer length to the end.
const ENDING_BYTES: usize = 24;
/// Stands 16 bytes before the end of a table, little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"siltsst\n");
const VERSION: u32 = 1;
const CHECKSUM_XXH3_64: u8 = 1;
/// Incompatible feature: data blocks hold hidden entries.
pub(super) const HAS_HIDDEN: u64 = 1 << 0;
/// Incompatible feature: hidden entries may have the short form. Code that knows it reads that form in any
/// table; the bit keeps older code from taking it for damage.
pub(super) const HAS_SHORT_HIDDEN: u64 = 1 << 1;
/// Incompatible feature: hidden entries may lie in a column after the entries of their block.
pub(super) const HAS_HIDDEN_COLUMN: u64 = 1 << 2;
/// Incompatible feature: data blocks may hold operands of merges, which older code takes for damage.
pub(super) const HAS_OPERANDS: u64 = 1 << 3;
/// Incompatible feature: data blocks may be compressed with zstd, and the table may have a dictionary.
pub(super) const HAS_ZSTD: u64 = 1 << 4;
/// Incompatible feature: a key may be empty, which older code takes for damage.
pub(super) const HAS_EMPTY_KEY: u64 = 1 << 5;
/// Compatible feature: the properties have fields 22 and 24.
pub(super) const HAS_TAIL_CHECKSUMS: u64 = 1 << 0;
/// Incompatible feature bits that this version knows.
const INCOMPATIBLE_KNOWN: u64 =
    HAS_HIDDEN | HAS_SHORT_HIDDEN | HAS_HIDDEN_COLUMN | HAS_OPERANDS | HAS_ZSTD | HAS_EMPTY_KEY;

/// The fields of the footer in order, for descriptions: length in bytes and name.
pub(super) const FOOTER_FIELDS: [(usize, &str); 20] = [
    (8, "compatible features"),
    (8, "read-compatible features"),
    (8, "incompatible features"),
    (1, "checksum kind"),
    (1, "block trailer bytes"),
    (1, "index levels"),
    (5, "reserved"),
    (16, "db id"),
    (16, "unique id"),
    (8, "bloom offset"),
    (8, "bloom length"),
    (8, "index offset"),
    (8, "index length"),
    (8, "properties offset"),
    (8, "properties length"),
    (16, "file hash"),
    (4, "footer length"),
    (4, "version"),
    (8, "magic"),
    (8, "checksum"),
];

/// A decoded footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    /// Compatible feature bits, known or not.
    pub compatible: u64,
    /// Incompatible feature bits; all known.
    pub incompatible: u64,
    pub index_levels: u8,
    pub db_id: DbId,
    pub unique_id: u128,
    /// The bloom; of length 0 without one.
    pub bloom: Extent,
    pub index: Extent,
    pub properties: Extent,
    pub file_hash: u128,
}

impl Footer {
    /// Appends the footer of a file that will be `file_bytes` long with it.
    pub(super) fn encode(&self, out: &mut Vec<u8>, file_bytes: u64) {
        let start = out.len();
        for features in [self.compatible, 0, self.incompatible] {
            put_u64(out, features);
        }
        let trailer = super::stored::TRAILER_BYTES as u8;
        out.extend_from_slice(&[CHECKSUM_XXH3_64, trailer, self.index_levels, 0, 0, 0, 0, 0]);
        put_u128(out, self.db_id.0);
        put_u128(out, self.unique_id);
        for extent in [self.bloom, self.index, self.properties] {
            put_u64(out, extent.offset);
            put_u64(out, extent.len);
        }
        put_u128(out, self.file_hash);
        put_u32(out, FOOTER_BYTES as u32);
        put_u32(out, VERSION);
        put_u64(out, MAGIC);
        let checksum = checksum64_seeded(&out[start..], file_bytes);
        put_u64(out, checksum);
        assert_eq!(out.len() - start, FOOTER_BYTES, "the table above is the footer");
    }

    /// Reads the footer of `source`; returns it with the offset at which it begins.
    ///
    /// # Errors
    /// `Corruption`; `Unsupported` for an intact footer of a version, or with incompatible
    /// features, that this code does not know, or this build lacks.
    pub(super) fn read(source: &TableSource, access: Access) -> Result<(Footer, u64)> {
        // One read, also for a longer footer of a later version.
        let reach = source.file_bytes.min(FOOTER_BYTES_MAX as u64);
        let mut buf = [0; FOOTER_BYTES_MAX];
        let buf = &mut buf[..reach as usize];
        let buf_at = source.file_bytes - reach;
        source.read_exact(access, buf_at, buf)?;
        let Some((_, ending)) = buf.split_last_chunk::<ENDING_BYTES>() else {
            return Err(source.corruption(buf_at, "file is too short for a table"));
        };
        let Ok(ending) = Ending::decode(ending) else {
            return Err(source.corruption(buf_at, "footer is incomplete"));
        };
        // The magic before the checksum: the message then tells a foreign file from a damaged
        // table.
        if ending.magic != MAGIC {
            return Err(source.corruption(buf_at, "file does not end with the magic of a table"));
        }
        let Some(start) = buf.len().checked_sub(ending.footer_len as usize) else {
            return Err(source.corruption(buf_at, "footer length does not fit the file"));
        };
        let footer = &buf[start..];
        let covered = footer.len().saturating_sub(8);
        // Seeded with the length, so that a table that was cut or grew does not verify.
        if checksum64_seeded(&footer[..covered], source.file_bytes) != ending.checksum {
            return Err(source.corruption(buf_at, "footer checksum does not match"));
        }
        let at = source.file_bytes - u64::from(ending.footer_len);
        // After the checksum: only an intact footer can say that it needs newer code.
        let decoded = if ending.version == VERSION {
            Footer::decode(footer, at)
        } else {
            Ok(Err(format!("table format version {}", ending.version)))
        };
        match decoded {
            Ok(Ok(footer)) if footer.incompatible & HAS_ZSTD != 0 && !zstandard::IS_BUILT_IN => {
                Err(source.lacks_zstd())
            }
            Ok(Ok(footer)) => Ok((footer, at)),
            Ok(Err(needed)) => {
                let what = format!("{needed} in {}", source.path.display());
                Err(Error::new(ErrorKind::Unsupported, what))
            }
            Err(bad) => Err(source.corruption(at + bad.at as u64, bad.what)),
        }
    }

    /// The footer of `source` with the one bit turned that makes its checksum agree, if there is one.
    pub(super) fn mended(source: &TableSource) -> Option<(Footer, u64)> {
        let at = source.file_bytes.checked_sub(FOOTER_BYTES as u64)?;
        let mut bytes = [0; FOOTER_BYTES];
        source.read_exact(Access::Uncached, at, &mut bytes).ok()?;
        // The bits of the checksum too: it may be what is damaged.
        for bit in 0..8 * FOOTER_BYTES {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (covered, checksum) = bytes.split_last_chunk::<8>()?;
            if checksum64_seeded(covered, source.file_bytes) == u64::from_le_bytes(*checksum) {
                return Some((Footer::decode(&bytes, at).ok()?.ok()?, at));
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        None
    }

    /// Decodes the bytes of a footer that begins at `at` of its file. The inner error says what in
    /// it needs newer code.
    fn decode(bytes: &[u8], at: u64) -> Result<Result<Footer, String>, Malformed> {
        let mut reader = Reader::new(bytes);
        let compatible = reader.u64()?;
        // Read-compatible features do not keep this code from reading.
        reader.take(8)?;
        let incompatible = reader.u64()?;
        let unknown = incompatible & !INCOMPATIBLE_KNOWN;
        if unknown != 0 {
            return Ok(Err(format!("unknown incompatible table features {unknown:#x}")));
        }
        let checksum = reader.u8()?;
        let trailer = reader.u8()?;
        if checksum != CHECKSUM_XXH3_64 || usize::from(trailer) != super::stored::TRAILER_BYTES {
            return Ok(Err(format!("block checksum {checksum} of {trailer} bytes")));
        }
        let index_levels = reader.u8()?;
        if !(1..=2).contains(&index_levels) {
            return Err(reader.malformed("number of index levels is neither 1 nor 2"));
        }
        reader.take(5)?;
        let db_id = DbId(reader.u128()?);
        let unique_id = reader.u128()?;
        let mut extents = [Extent { offset: 0, len: 0 }; 3];
        for extent in &mut extents {
            extent.offset = reader.u64()?;
            extent.len = reader.u64()?;
            // Here and not at the read: what lies beyond could be read as a block of another file's
            // old bytes.
            if extent.end() > at {
                return Err(reader.malformed("block lies beyond the footer"));
            }
        }
        let [bloom, index, properties] = extents;
        let file_hash = reader.u128()?;
        Ok(Ok(Footer {
            compatible,
            incompatible,
            index_levels,
            db_id,
            unique_id,
            bloom,
            index,
            properties,
            file_hash,
        }))
    }
}

/// The last fields of a footer, which lie at the same distance from the end in every version.
struct Ending {
    footer_len: u32,
    version: u32,
    magic: u64,
    checksum: u64,
}

impl Ending {
    fn decode(bytes: &[u8; ENDING_BYTES]) -> Result<Ending, Malformed> {
        let mut reader = Reader::new(bytes);
        Ok(Ending {
            footer_len: reader.u32()?,
            version: reader.u32()?,
            magic: reader.u64()?,
            checksum: reader.u64()?,
        })
    }
}
