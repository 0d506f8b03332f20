//! The bytes of a stream of entries.
//!
//! ```text
//! stream: header, a record for each entry, end; numbers are little-endian
//!
//! header                                 entry                          end
//!  0  8  magic "siltstrm"                 0  1  kind, 1                  0  1  kind, 2
//!  8  4  version, 1                       1  3  zero                     1  7  zero
//! 12  4  number of partitions             4  4  partition, from 0        8  8  number of entries
//! 16     of each partition:               8  8  length of the value     16  8  zero
//!        1  length of the name           16  4  length of the key       24  8  checksum
//!        1  flags: 1 = large values      20  4  zero
//!        -  name, UTF-8                  24  -  key
//!  -  8  checksum                         -  8  checksum
//!                                         -     value, in pieces of 256 KiB; the last is shorter
//!                                               8 bytes after each piece: checksum
//! ```
//!
//! A checksum is the XXH3-64 of the bytes between it and the previous checksum, with the previous
//! checksum as the seed; the first has the seed 0. So each checksum covers everything before it, and
//! the last one the whole stream: an entry that is missing, repeated or at another place does not
//! verify. An empty value has no piece.
//!
//! The writer writes the entries of a partition in ascending order of their keys, and partitions in the
//! order of the header. A reader does not depend on the order.
//!
//! Invariant: no length is used for more memory than one piece, one key or one name before the bytes
//! are there.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use lsm_core::codec::{Malformed, Reader, checksum64_seeded, put_u32, put_u64};
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::limits::{PARTITIONS_MAX, USER_KEY_BYTES_MAX};

use crate::options::StreamPartition;

/// The first bytes of a stream.
pub(crate) const MAGIC: [u8; 8] = *b"siltstrm";
const VERSION: u32 = 1;
/// Bytes of a piece of a value.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;
/// Bytes of an entry before its key, and of an end before its checksum.
const HEAD_BYTES: usize = 24;
const KIND_ENTRY: u8 = 1;
const KIND_END: u8 = 2;
const FLAG_LARGE_VALUES: u8 = 1;

/// The head of a record, without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordHead {
    Entry { partition: u32, value_len: u64, key_len: u32 },
    End { entries: u64 },
}

impl RecordHead {
    fn decode(bytes: &[u8]) -> Result<RecordHead, Malformed> {
        let mut r = Reader::new(bytes);
        let kind = r.u8()?;
        let zero = r.take(3)?;
        let partition = r.u32()?;
        let number = r.u64()?;
        let key_len = r.u32()?;
        // Refused rather than ignored: a later version may give these bits a meaning that changes
        // how the record is read.
        if zero != [0; 3] || r.u32()? != 0 {
            return Err(r.malformed("unknown bits in a record"));
        }
        match kind {
            KIND_ENTRY if key_len as usize <= USER_KEY_BYTES_MAX => {
                Ok(RecordHead::Entry { partition, value_len: number, key_len })
            }
            KIND_ENTRY => Err(r.malformed("a key that is longer than any key may be")),
            KIND_END if partition == 0 && key_len == 0 => Ok(RecordHead::End { entries: number }),
            _ => Err(r.malformed("a record of an unknown kind")),
        }
    }

    fn encode(self) -> Vec<u8> {
        // The kind and the three zeros after it are one little-endian number.
        let mut out = Vec::with_capacity(HEAD_BYTES);
        match self {
            RecordHead::Entry { partition, value_len, key_len } => {
                put_u32(&mut out, KIND_ENTRY.into());
                put_u32(&mut out, partition);
                put_u64(&mut out, value_len);
                put_u32(&mut out, key_len);
            }
            RecordHead::End { entries } => {
                put_u32(&mut out, KIND_END.into());
                put_u32(&mut out, 0);
                put_u64(&mut out, entries);
                put_u32(&mut out, 0);
            }
        }
        put_u32(&mut out, 0);
        debug_assert_eq!(out.len(), HEAD_BYTES);
        out
    }
}

/// Writes the parts of a stream, each with its checksum.
pub(crate) struct StreamWriter<'w> {
    out: &'w mut dyn Write,
    sum: u64,
}

impl<'w> StreamWriter<'w> {
    /// Begins a stream.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn begin(
        out: &'w mut dyn Write,
        partitions: &[StreamPartition],
    ) -> Result<StreamWriter<'w>> {
        let mut header = MAGIC.to_vec();
        put_u32(&mut header, VERSION);
        put_u32(&mut header, partitions.len() as u32);
        for partition in partitions {
            let flags = if partition.has_large_values { FLAG_LARGE_VALUES } else { 0 };
            header.extend_from_slice(&[partition.name.len() as u8, flags]);
            header.extend_from_slice(partition.name.as_bytes());
        }
        let mut writer = StreamWriter { out, sum: 0 };
        writer.part(header)?;
        Ok(writer)
    }

    /// Begins an entry; its pieces follow.
    ///
    /// # Errors
    /// Those of the writer.
    pub(crate) fn entry(&mut self, partition: u32, key: &[u8], value_len: u64) -> Result<()> {
        let head = RecordHead::Entry { partition, value_len, key_len: key.len() as u32 };
        let mut part = head.encode();
        part.extend_from_slice(key);
        self.part(part)
    }

    /// Writes a piece of a value.
    ///
    /// # Errors
    /// Those of the writer.
    pub(crate) fn piece(&mut self, piece: &[u8]) -> Result<()> {
        // The piece is not copied to append its sum. A second call costs less than copying 256 KiB.
        self.sum = checksum64_seeded(piece, self.sum);
        self.out.write_all(piece)?;
        Ok(self.out.write_all(&self.sum.to_le_bytes())?)
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// Those of the writer.
    pub(crate) fn end(mut self, entries: u64) -> Result<()> {
        self.part(RecordHead::End { entries }.encode())?;
        Ok(self.out.flush()?)
    }

    /// Writes a part and its checksum in one call.
    fn part(&mut self, mut part: Vec<u8>) -> Result<()> {
        self.sum = checksum64_seeded(&part, self.sum);
        // Heads and keys are short, so one call of `out` for both: it may be an unbuffered pipe.
        put_u64(&mut part, self.sum);
        Ok(self.out.write_all(&part)?)
    }
}

/// Reads the parts of a stream and verifies each.
pub(crate) struct StreamReader<'r> {
    from: &'r mut dyn Read,
    source: PathBuf,
    /// Offset in the stream, in bytes.
    offset: u64,
    /// Offset of the part that is being read.
    part_at: u64,
    part: Vec<u8>,
    sum: u64,
}

impl<'r> StreamReader<'r> {
    /// Begins to read a stream whose magic was read already.
    pub(crate) fn after_magic(from: &'r mut dyn Read, source: PathBuf) -> StreamReader<'r> {
        let offset = MAGIC.len() as u64;
        StreamReader { from, source, offset, part_at: 0, part: MAGIC.to_vec(), sum: 0 }
    }

    /// Reads the rest of the header; returns the partitions.
    ///
    /// # Errors
    /// Damage; a newer version.
    pub(crate) fn header(&mut self) -> Result<Vec<StreamPartition>> {
        let mut numbers = Reader::new(self.read(8)?);
        let numbers = numbers.u32().and_then(|version| Ok((version, numbers.u32()?)));
        let (version, count) = numbers.map_err(|malformed| self.damage(malformed.what))?;
        if version != VERSION {
            let message = format!("version {version} of a stream; this version reads {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        // The checksum of the header follows it, so its numbers are bounded while they are read.
        if count as usize > PARTITIONS_MAX {
            return Err(self.damage("more partitions than a database may have"));
        }
        let mut partitions = Vec::new();
        for _ in 0..count {
            let front = self.read(2)?;
            // At most 255 bytes, so nothing has to bound it.
            let name_len = usize::from(front[0]);
            let flags = front[1];
            let name = self.read(name_len)?.to_vec();
            if flags & !FLAG_LARGE_VALUES != 0 {
                return Err(self.damage("unknown flags of a partition"));
            }
            let Ok(name) = String::from_utf8(name) else {
                return Err(self.damage("the name of a partition is not UTF-8"));
            };
            partitions.push(StreamPartition { name, has_large_values: flags != 0 });
        }
        self.check()?;
        Ok(partitions)
    }

    /// Reads the head of the next record, and its key.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn record(&mut self) -> Result<(RecordHead, &[u8])> {
        self.begin_part();
        let head = RecordHead::decode(self.read(HEAD_BYTES)?);
        let head = head.map_err(|malformed| self.damage(malformed.what))?;
        // Bounded by `decode`, because the checksum that covers the length follows the key.
        if let RecordHead::Entry { key_len, .. } = head {
            self.read(key_len as usize)?;
        }
        self.check()?;
        Ok((head, &self.part[HEAD_BYTES..]))
    }

    /// Reads a piece of a value.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn piece(&mut self, len: u64) -> Result<&[u8]> {
        debug_assert!(len <= PIECE_BYTES);
        self.begin_part();
        self.read(len as usize)?;
        self.check()?;
        Ok(&self.part)
    }

    /// Checks that `head` is the end of a stream with `entries` entries.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn check_end(&self, head: RecordHead, entries: u64) -> Result<()> {
        if head == (RecordHead::End { entries }) {
            return Ok(());
        }
        Err(self.damage("the end of a stream counts other entries than came"))
    }

    /// Damage of the part that was read last.
    pub(crate) fn damage(&self, what: &str) -> Error {
        Error::corruption(&self.source, self.part_at, what)
    }

    fn begin_part(&mut self) {
        // The buffer is kept. A stream of small entries would otherwise allocate for each.
        self.part.clear();
        self.part_at = self.offset;
    }

    /// Reads further bytes of the part.
    fn read(&mut self, len: usize) -> Result<&[u8]> {
        let start = self.part.len();
        self.part.resize(start + len, 0);
        let mut filled = start;
        while filled < self.part.len() {
            match self.from.read(&mut self.part[filled..]) {
                Ok(0) => {
                    let what = "the stream ends before its end record";
                    return Err(Error::corruption(&self.source, self.offset, what));
                }
                Ok(read) => {
                    filled += read;
                    self.offset += read as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("read", &self.source, e)),
            }
        }
        Ok(&self.part[start..])
    }

    /// Reads the checksum of the part and compares it.
    fn check(&mut self) -> Result<()> {
        let len = self.part.len();
        let sum = checksum64_seeded(&self.part, self.sum);
        // Before anything of the part is used: no caller gets lengths and keys of a damaged one.
        let is_right = self.read(size_of::<u64>())? == sum.to_le_bytes();
        self.part.truncate(len);
        if !is_right {
            return Err(self.damage("a part of a stream does not agree with its checksum"));
        }
        self.sum = sum;
        Ok(())
    }
}
