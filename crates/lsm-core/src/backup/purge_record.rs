//! The bytes of a *purge record*: what a purge has kept, and what it deletes.
//!
//! It has a number and a name as the record of a backup, so a purge and a backup cannot take the same number: each of
//! them sees all that came before it.
//!
//! ```text
//! backup-0000000008, numbers are little-endian, lengths varints
//! offset size name
//!      0    8 magic            "SILTPURG"
//!      8    4 format version   1
//!     12    4 number
//!     16    4 previous         number of the purge before, or 0
//!     20    - kept             count; of each backup before this purge that it has kept, its number (4), ascending
//!      -    - deleted          count; of each shared file that it deletes, its name
//!      -    8 checksum         XXH3-64 of all bytes before
//! ```
//!
//! Invariant: a name that a purge deletes is never given to a shared file again, see [`name_since`].

use std::path::Path;

use super::format::{is_piece, malformed, unseal};
use crate::codec::{Malformed, Reader, checksum64, put_bytes, put_u32, put_u64, put_varint};
use crate::error::{Error, Result};

/// The first bytes of a purge record.
pub const PURGE_MAGIC: [u8; 8] = *b"SILTPURG";
const FORMAT_VERSION: u32 = 1;
/// Digits of the number of a purge in the names of shared files.
const PURGE_DIGITS: usize = 8;

/// The record of a purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurgeRecord {
    pub number: u32,
    /// The purge before, or 0.
    pub previous: u32,
    /// The backups before it that count, ascending.
    pub kept: Vec<u32>,
    /// The shared files that it deletes.
    pub deleted: Vec<String>,
}

impl PurgeRecord {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = PURGE_MAGIC.to_vec();
        for number in [FORMAT_VERSION, self.number, self.previous] {
            put_u32(&mut out, number);
        }
        put_varint(&mut out, self.kept.len() as u64);
        self.kept.iter().for_each(|id| put_u32(&mut out, *id));
        put_varint(&mut out, self.deleted.len() as u64);
        self.deleted.iter().for_each(|name| put_bytes(&mut out, name.as_bytes()));
        let sum = checksum64(&out);
        put_u64(&mut out, sum);
        out
    }

    /// Decodes the bytes of the file `path`, which must be the purge record with this number.
    ///
    /// # Errors
    /// `Corruption`; `Unsupported` if newer code made it.
    pub fn decode(bytes: &[u8], number: u32, path: &Path) -> Result<PurgeRecord> {
        let r = unseal(bytes, PURGE_MAGIC, FORMAT_VERSION, path)?;
        let record = PurgeRecord::read(r).map_err(|fault| malformed(path, fault))?;
        if record.number != number {
            return Err(Error::corruption(path, 12, "the record is of another purge"));
        }
        Ok(record)
    }

    fn read(mut r: Reader<'_>) -> Result<PurgeRecord, Malformed> {
        let number = r.u32()?;
        let previous = r.u32()?;
        let kept = (0..r.length()?).map(|_| r.u32()).collect::<Result<_, _>>()?;
        let deleted = (0..r.length()?).map(|_| {
            let name = std::str::from_utf8(r.bytes()?).ok().filter(|name| is_piece(name));
            Ok(name.ok_or(r.malformed("the name of no shared file"))?.to_owned())
        });
        let deleted = deleted.collect::<Result<_, _>>()?;
        r.finish()?;
        Ok(PurgeRecord { number, previous, kept, deleted })
    }
}

/// The name of a shared file that is made after the purge `purge`; 0: before any purge. Its own name is `name`.
pub fn name_since(purge: u32, name: &str) -> String {
    match purge {
        0 => name.to_owned(),
        purge => format!("{purge:0PURGE_DIGITS$x}-{name}"),
    }
}

/// The parts of [`name_since`]. The first part of an own name has more digits.
pub fn split_name(name: &str) -> (u32, &str) {
    let parts = name.split_once('-').filter(|(purge, _)| purge.len() == PURGE_DIGITS);
    let parts = parts.and_then(|(purge, own)| Some((u32::from_str_radix(purge, 16).ok()?, own)));
    parts.unwrap_or((0, name))
}

#[cfg(test)]
mod tests {
    use super::super::format::part_name;
    use super::*;

    #[test]
    fn a_purge_record_has_the_bytes_of_the_table() {
        let deleted = vec![part_name(1, b"one"), name_since(3, &part_name(1, b"two"))];
        let record = PurgeRecord { number: 8, previous: 3, kept: vec![5, 7], deleted };
        let bytes = record.encode();
        assert_eq!(&bytes[..8], b"SILTPURG");
        assert_eq!(bytes[8..29], [1, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0, 2, 5, 0, 0, 0, 7, 0, 0, 0]);
        let path = Path::new("backup-0000000008");
        assert_eq!(PurgeRecord::decode(&bytes, 8, path).unwrap(), record);
        assert!(PurgeRecord::decode(&bytes, 9, path).unwrap_err().is_corruption());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(PurgeRecord::decode(&damaged, 8, path).unwrap_err().is_corruption(), "at {at}");
            assert!(PurgeRecord::decode(&bytes[..at], 8, path).unwrap_err().is_corruption());
        }
    }

    #[test]
    fn the_name_of_a_shared_file_has_the_purge_before_it() {
        let own = part_name(1, b"one");
        assert_eq!(name_since(0, &own), own);
        for purge in [1, 0x1234, u32::MAX] {
            let name = name_since(purge, &own);
            assert!(is_piece(&name));
            assert_eq!(split_name(&name), (purge, &*own));
        }
        assert_eq!(split_name(&own), (0, &*own));
    }
}
