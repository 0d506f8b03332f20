//! The header of a segment: which file this is, and how it continues the segment before.
//!
//! `writer.rs` encodes it; `reader.rs` decodes it. A header is accepted only if its checksum
//! agrees; the magic alone proves nothing.
//!
//! ```text
//! offset size  name
//!      0    8  magic "SILTWAL\n"
//!      8    4  format version, 6; versions 1 to 5 are read. From 3 on a section may clear its
//!              partition, from 4 on delete a range of keys, from 5 on merge operands,
//!              from 6 on write to the empty key
//!     12    4  checksum id of header, frames and sections: 1 = XXH3-64
//!     16    4  feature bits: compatible (unknown ones are ignored)
//!     20    4  feature bits: read-compatible (ignored: no open appends to an older segment)
//!     24    4  feature bits: incompatible (unknown ones forbid reading)
//!     28    4  epoch
//!     32   16  database id
//!     48    8  file number
//!     56    8  salt: seeds the checksum of every frame here; from version 2 on `salt_of` database,
//!              epoch and number, so that it is known when this header is lost; before, random
//!     64    8  LSN of this header's first byte
//!     72    8  number of the segment before, 0 = first of its epoch
//!     80    8  end of the segment before, in bytes: the bytes after it were refused
//!     88    8  last durable manifest edit
//!     96    8  LSN up to which the log was known durable
//!    104    8  last logged sequence before this segment
//!    112    8  zeros
//!    120    8  XXH3-64 of bytes 0..120
//! ```
//!
//! Invariants:
//! 1. In every version the checksum is at offset 120 and covers all bytes before it, so that a
//!    version or a feature is believed only when its bytes verify.
//! 2. All integers are little-endian.

use std::path::Path;

use super::{LogPlace, Lsn};
use crate::codec::{Malformed, Reader, checksum64, put_u64};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::File;
use crate::types::{DbId, Epoch, FileNo, SeqNo};

/// Length of a segment's header in bytes: where its first frame begins.
pub const SEGMENT_HEADER_BYTES: u64 = 128;

pub(super) const HEADER_LEN: usize = 128;
/// The first bytes of a segment.
pub const MAGIC: [u8; 8] = *b"SILTWAL\n";
const VERSION: u32 = 6;
/// The version without operations on the empty key.
const VERSION_WITHOUT_EMPTY_KEY: u32 = 5;
/// The version without operations that merge operands.
const VERSION_WITHOUT_OPERANDS: u32 = 4;
/// The version without operations that delete a range of keys.
const VERSION_WITHOUT_RANGES: u32 = 3;
/// The version without operations that clear a partition.
const VERSION_WITHOUT_CLEAR: u32 = 2;
/// The first version. Its salts are random, and its long headers have no short check.
const VERSION_RANDOM_SALT: u32 = 1;
const CHECKSUM_ID: u32 = 1;
const VERSIONS_READ: [u32; 6] = [
    VERSION,
    VERSION_WITHOUT_EMPTY_KEY,
    VERSION_WITHOUT_OPERANDS,
    VERSION_WITHOUT_RANGES,
    VERSION_WITHOUT_CLEAR,
    VERSION_RANDOM_SALT,
];

const _: () = assert!(HEADER_LEN as u64 == SEGMENT_HEADER_BYTES && HEADER_LEN.is_multiple_of(8));

/// A segment's account of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The database it belongs to.
    pub db: DbId,
    /// The epoch in which it was written.
    pub epoch: Epoch,
    /// Its file number; never 0.
    pub number: FileNo,
    /// Makes the frames of this segment verify in no other: derived by [`salt_of`], or random in a
    /// segment of the first format version.
    pub salt: u64,
    /// Place of its first byte in the log.
    pub base: Lsn,
    /// The segment before and its end; `None` for the first of an epoch.
    pub previous: Option<LogPlace>,
    /// The last manifest edit that was durable when this segment was begun.
    pub manifest_edit: u64,
    /// The place up to which the log was known durable when this segment was begun.
    pub durable: Lsn,
    /// The last logged sequence before this segment.
    pub previous_seq: SeqNo,
}

/// The state of the first bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderState {
    /// A header that verifies.
    Valid(SegmentHeader),
    /// Only zeros, or no bytes: not written yet, or lost.
    Zero,
    /// Something else.
    Garbage(&'static str),
}

/// Returns the salt of a segment.
///
/// It is a function of the manifest's data about the segment, so that frames can be recognised when
/// the header is lost. A user who only writes values into a database does not know its id, so no
/// value can look like a frame of it.
pub fn salt_of(db: DbId, epoch: Epoch, number: FileNo) -> u64 {
    let mut bytes = [0; 28];
    bytes[..16].copy_from_slice(&db.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&epoch.0.to_le_bytes());
    bytes[20..].copy_from_slice(&number.0.to_le_bytes());
    checksum64(&bytes)
}

impl SegmentHeader {
    /// The place in the log of the byte at `offset` of this segment.
    ///
    /// # Panics
    /// Beyond 64 bits; decoding refuses headers that come near.
    pub fn lsn_at(&self, offset: u64) -> Lsn {
        self.base.checked_plus(offset).expect("a log has less than 2^64 bytes")
    }

    /// Names and bytes of the fields before the checksum, in order: the one list for encoding and
    /// descriptions.
    pub(super) fn fields(&self) -> [(&'static str, Vec<u8>); 17] {
        let previous = self.previous.unwrap_or(LogPlace { segment: FileNo(0), offset: 0 });
        [
            ("magic", MAGIC.to_vec()),
            ("format version", VERSION.to_le_bytes().to_vec()),
            ("checksum kind", CHECKSUM_ID.to_le_bytes().to_vec()),
            ("compatible features", vec![0; 4]),
            ("read-compatible features", vec![0; 4]),
            ("incompatible features", vec![0; 4]),
            ("epoch", self.epoch.0.to_le_bytes().to_vec()),
            ("database id", self.db.0.to_le_bytes().to_vec()),
            ("file number", self.number.0.to_le_bytes().to_vec()),
            ("salt", self.salt.to_le_bytes().to_vec()),
            ("LSN", self.base.0.to_le_bytes().to_vec()),
            ("segment before", previous.segment.0.to_le_bytes().to_vec()),
            ("end of the segment before", previous.offset.to_le_bytes().to_vec()),
            ("last durable manifest edit", self.manifest_edit.to_le_bytes().to_vec()),
            ("durable LSN", self.durable.0.to_le_bytes().to_vec()),
            ("last sequence before", self.previous_seq.get().to_le_bytes().to_vec()),
            // Room for a later version. Readers of this version ignore it.
            ("zeros", vec![0; 8]),
        ]
    }

    /// Returns the bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        assert!(self.number.0 != 0 && self.durable <= self.base);
        let mut out = Vec::with_capacity(HEADER_LEN);
        for (_, bytes) in self.fields() {
            out.extend_from_slice(&bytes);
        }
        let sum = checksum64(&out);
        put_u64(&mut out, sum);
        out.try_into().expect("the fields are as long as the header")
    }

    /// The header of the segment in `file`; `None` if there is none that verifies.
    ///
    /// # Errors
    /// Those of reading; `Unsupported` for a header that verifies but needs newer code.
    pub fn read(file: &dyn File, path: &Path) -> Result<Option<SegmentHeader>> {
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(0, &mut bytes)?;
        Ok(match Self::decode(&bytes[..got], path)? {
            HeaderState::Valid(header) => Some(header),
            HeaderState::Zero | HeaderState::Garbage(_) => None,
        })
    }

    /// Decodes `bytes`, the front of the file `path`.
    ///
    /// # Errors
    /// `Unsupported` for a header that verifies but needs newer code.
    pub(super) fn decode(bytes: &[u8], path: &Path) -> Result<HeaderState> {
        // A reserved segment is all zeros until it is begun, which is no damage.
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(HeaderState::Zero);
        }
        let Some((covered, sum)) =
            bytes.first_chunk::<HEADER_LEN>().and_then(|bytes| bytes.split_last_chunk::<8>())
        else {
            return Ok(HeaderState::Garbage("segment header is incomplete"));
        };
        // The magic before the checksum: the message then distinguishes a foreign file from a
        // damaged header.
        if covered[..8] != MAGIC {
            return Ok(HeaderState::Garbage("segment has no magic"));
        }
        if checksum64(covered) != u64::from_le_bytes(*sum) {
            return Ok(HeaderState::Garbage("segment header checksum does not match"));
        }
        match Self::decode_verified(&covered[8..]) {
            Ok(Ok(header)) => Ok(HeaderState::Valid(header)),
            Ok(Err(needed)) => {
                let message = format!("{} needs newer code: {needed}", path.display());
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            // The bytes verify, so no torn write looks like this.
            Err(bad) => Err(Error::corruption(path, bad.at as u64 + 8, bad.what)),
        }
    }

    /// Decodes the bytes between magic and checksum, which verified. The inner error names the part
    /// that needs newer code.
    fn decode_verified(bytes: &[u8]) -> Result<Result<SegmentHeader, String>, Malformed> {
        let mut reader = Reader::new(bytes);
        // Read only after the checksum agrees: a flipped bit in the version must not ask for newer
        // code.
        let version = reader.u32()?;
        if !VERSIONS_READ.contains(&version) {
            return Ok(Err(format!("log format version {version}")));
        }
        let checksum = reader.u32()?;
        if checksum != CHECKSUM_ID {
            return Ok(Err(format!("log checksum {checksum}")));
        }
        // Compatible and read-compatible features: neither keeps this code from reading.
        let _ignored = reader.u64()?;
        let incompatible = reader.u32()?;
        if incompatible != 0 {
            return Ok(Err(format!("log features {incompatible:#x}")));
        }
        let header = Self::decode_fields(&mut reader)?;
        // The look-ahead derives the salt when the header is lost, so a header with another salt
        // would make its frames invisible.
        if version != VERSION_RANDOM_SALT && !header.has_derived_salt() {
            return Err(reader.malformed("salt does not match the segment"));
        }
        Ok(Ok(header))
    }

    /// Returns `true` if the salt is derived by [`salt_of`], as in every segment but those of the
    /// first format version.
    pub(super) fn has_derived_salt(&self) -> bool {
        self.salt == salt_of(self.db, self.epoch, self.number)
    }

    fn decode_fields(reader: &mut Reader<'_>) -> Result<SegmentHeader, Malformed> {
        let epoch = Epoch(reader.u32()?);
        let db = DbId(reader.u128()?);
        let number = FileNo(reader.u64()?);
        let salt = reader.u64()?;
        let base = Lsn(reader.u64()?);
        let previous = LogPlace { segment: FileNo(reader.u64()?), offset: reader.u64()? };
        let manifest_edit = reader.u64()?;
        let durable = Lsn(reader.u64()?);
        let previous_seq =
            SeqNo::new(reader.u64()?).ok_or(reader.malformed("sequence number exceeds 56 bits"))?;
        // So that no sum of a base and an offset in a file overflows.
        if base.0 > u64::MAX / 2 || durable > base {
            return Err(reader.malformed("log position is out of range"));
        }
        // 0 is no file number, so it can mean that there is none.
        let previous = (previous.segment.0 != 0).then_some(previous);
        Ok(SegmentHeader {
            db,
            epoch,
            number,
            salt,
            base,
            previous,
            manifest_edit,
            durable,
            previous_seq,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHECKSUM_AT: usize = 120;

    fn header() -> SegmentHeader {
        SegmentHeader {
            db: DbId(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100),
            epoch: Epoch(3),
            number: FileNo(0x2a),
            salt: 0xba2f_988b_214e_9385,
            base: Lsn(0x1_0000),
            previous: Some(LogPlace { segment: FileNo(0x29), offset: 0xff80 }),
            manifest_edit: 17,
            durable: Lsn(0xff00),
            previous_seq: SeqNo::new(1000).unwrap(),
        }
    }

    fn decode(bytes: &[u8]) -> Result<HeaderState> {
        SegmentHeader::decode(bytes, Path::new("x"))
    }

    #[test]
    fn golden_segment_header() {
        let parts: [&[u8]; 16] = [
            b"SILTWAL\n",                                            // magic
            &[6, 0, 0, 0],                                           // version
            &[1, 0, 0, 0],                                           // checksum id
            &[0; 12],                                                // feature bits
            &[3, 0, 0, 0],                                           // epoch
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], // database
            &[0x2a, 0, 0, 0, 0, 0, 0, 0],                            // number
            &[133, 147, 78, 33, 139, 152, 47, 186],                  // salt
            &[0, 0, 1, 0, 0, 0, 0, 0],                               // base LSN
            &[0x29, 0, 0, 0, 0, 0, 0, 0],                            // previous number
            &[0x80, 0xff, 0, 0, 0, 0, 0, 0],                         // previous end
            &[17, 0, 0, 0, 0, 0, 0, 0],                              // manifest edit
            &[0, 0xff, 0, 0, 0, 0, 0, 0],                            // durable LSN
            &[0xe8, 3, 0, 0, 0, 0, 0, 0],                            // previous sequence
            &[0; 8],                                                 // zeros
            &[107, 60, 76, 90, 159, 42, 87, 147],                    // checksum
        ];
        assert_eq!(header().encode().as_slice(), parts.concat());
    }

    #[test]
    fn headers_read_back_and_no_flip_or_truncation_passes() {
        let bytes = header().encode();
        assert_eq!(decode(&bytes).unwrap(), HeaderState::Valid(header()));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(decode(&bad).unwrap(), HeaderState::Garbage(_)), "bit {bit}");
        }
        for len in 1..bytes.len() {
            assert!(matches!(decode(&bytes[..len]).unwrap(), HeaderState::Garbage(_)));
        }
        assert_eq!(decode(&[]).unwrap(), HeaderState::Zero);
        assert_eq!(decode(&[0; 500]).unwrap(), HeaderState::Zero);
    }

    #[test]
    fn a_header_of_the_first_version_may_have_any_salt_and_a_later_one_its_own() {
        for (version, salt, is_accepted) in [
            (1, 77, true),
            (1, header().salt, true),
            (2, header().salt, true),
            (2, 77, false),
            (3, header().salt, true),
            (3, 77, false),
            (4, 77, false),
            (4, header().salt, true),
            (5, 77, false),
            (5, header().salt, true),
            (6, 77, false),
        ] {
            let mut bytes = SegmentHeader { salt, ..header() }.encode();
            bytes[8] = version;
            let sum = checksum64(&bytes[..CHECKSUM_AT]);
            bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(decode(&bytes).is_ok(), is_accepted, "version {version}");
        }
    }

    #[test]
    fn unknown_versions_and_incompatible_features_are_refused() {
        for (at, expected) in [(8, false), (12, false), (16, true), (20, true), (24, false)] {
            let mut bytes = header().encode();
            bytes[at] = 7;
            let sum = checksum64(&bytes[..CHECKSUM_AT]);
            bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
            let state = decode(&bytes);
            assert_eq!(state.is_ok(), expected, "byte {at}");
            if let Err(e) = state {
                assert_eq!(e.kind(), ErrorKind::Unsupported);
            }
        }
    }

    proptest! {
        #[test]
        fn no_header_that_verifies_panics(
            edits in prop::collection::vec((8..CHECKSUM_AT, any::<u8>()), 0..8),
            lie in (28..112_usize, 1..17_usize, any::<bool>()),
        ) {
            let mut bytes = header().encode();
            edits.iter().for_each(|(at, byte)| bytes[*at] = *byte);
            let (at, len, ones) = lie;
            bytes[at..(at + len).min(112)].fill(if ones { 0xff } else { 0 });
            let sum = checksum64(&bytes[..CHECKSUM_AT]);
            bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
            if let Ok(HeaderState::Valid(header)) = decode(&bytes) {
                // No file is longer than this, so no place in one overflows the log's.
                prop_assert!(header.lsn_at(i64::MAX as u64) >= header.base);
                prop_assert!(header.durable <= header.base);
            }
        }
    }
}
