//! The properties of a table: its content and its making, for people, checks and pickers.
//!
//! A block of tagged fields in ascending order of their tags: varint tag, varint length, bytes. A
//! reader ignores an unknown field with an even tag. It refuses a file that has an unknown field
//! with an odd tag. Numbers inside are varints.
//!
//! ```text
//! tag  field
//! 2    values, tombstones, handles, poisons, hidden: five counts, hidden ones in none of the rest
//! 4    raw key bytes, raw value bytes
//! 6    smallest user key
//! 8    largest user key
//! 10   smallest and largest sequence number
//! 12   compression, bloom bits a key
//! 14   file number, epoch
//! 16   data blocks, bytes of all data blocks as stored, largest payload of a block
//! 18   hidden suffix; only with hidden entries
//! 19   operands: their number; only with operands
//! 20   number of user properties, then name and value of each as length and bytes, by ascending
//!      name; only if there are any
//! 21   dictionary: offset and length of its stored block, and its checksum as it is stored, 8 bytes; only
//!      with a dictionary
//! 22   checksums of the blocks between the data and this one, 8 bytes each, as they are stored:
//!      bloom, index partitions, index; that of a dictionary is in field 21
//! 24   checksum: XXH3-64 of all bytes of the payload before this field, which is the last
//! ```
//!
//! The last two repeat what other blocks have. They reveal a fault in memory that happened before a
//! block's own checksum was made. If the footer announces them, they must be there.
//!
//! Nothing in the properties depends on a clock or a machine: equal input makes equal files.

use crate::codec::{Malformed, Reader, checksum64, put_bytes, put_u64, put_varint};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks;
use crate::limits::{INTERNAL_KEY_BYTES_MAX, SEQNO_MAX};
use crate::types::{EntryKind, Epoch, FileNo, SeqNo};

use super::stored::{Extent, TableSource};

/// Longest suffix of hidden keys, in bytes.
pub(super) const HIDDEN_SUFFIX_BYTES_MAX: usize = 16;
/// Longest name of a user property, in bytes.
const USER_NAME_BYTES_MAX: usize = 255;
/// Most bytes of all user properties of a table together, names included.
const USER_BYTES_MAX: usize = 1 << 20;

/// A table's account of its content and of how it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SstProperties {
    /// Entries that are values.
    pub values: u64,
    /// Entries that are tombstones.
    pub tombstones: u64,
    /// Entries that are handles.
    pub handles: u64,
    /// Entries that are operands of merges.
    pub operands: u64,
    /// Records known to be damaged.
    pub poisons: u64,
    /// Entries that a compaction filter added, not counted elsewhere.
    pub hidden: u64,
    /// Bytes of all user keys.
    pub raw_key_bytes: u64,
    /// Bytes of all values.
    pub raw_value_bytes: u64,
    /// First user key.
    pub smallest: Vec<u8>,
    /// Last user key.
    pub largest: Vec<u8>,
    /// Smallest sequence number.
    pub min_seq: SeqNo,
    /// Largest sequence number.
    pub max_seq: SeqNo,
    /// On-disk number of the compression that was asked for; each block says what it has.
    pub compression: u8,
    /// Bits of the Bloom filter per key; 0 where there is none.
    pub bloom_bits_per_key: u32,
    /// File number.
    pub file: FileNo,
    /// Epoch in which it was made.
    pub epoch: Epoch,
    /// Number of data blocks.
    pub data_blocks: u64,
    /// Bytes of all data blocks as stored; they lie at the front of the file.
    pub data_bytes: u64,
    /// Bytes of the largest block, not compressed.
    pub block_bytes_max: u64,
    /// The bytes that the key of a hidden entry has beyond its owner's; empty in a table without
    /// any.
    pub hidden_suffix: Vec<u8>,
    /// The notes of compaction filters.
    pub user: hooks::Properties,
    /// The place of the dictionary of its blocks, and the checksum there.
    pub(super) dictionary: Option<(Extent, u64)>,
    /// The checksums of bloom, index partitions and index, as they are stored; none in a table of
    /// older code.
    pub(super) tail_checksums: Vec<u64>,
    /// The payload has a checksum of its own, which agreed.
    pub(super) has_own_checksum: bool,
}

impl SstProperties {
    /// Entries of all kinds, hidden ones apart.
    pub fn entries(&self) -> u64 {
        [self.values, self.tombstones, self.handles, self.operands, self.poisons].iter().sum()
    }

    /// Counts an entry.
    pub(super) fn count(&mut self, kind: EntryKind, seq: SeqNo, key_len: usize, value_len: usize) {
        if self.entries() == 0 {
            self.min_seq = seq;
            self.max_seq = seq;
        }
        match kind {
            EntryKind::Value => self.values += 1,
            EntryKind::Tombstone => self.tombstones += 1,
            EntryKind::Handle => self.handles += 1,
            EntryKind::Operand => self.operands += 1,
            EntryKind::Poison => self.poisons += 1,
            EntryKind::Clear | EntryKind::DeleteRange => {
                unreachable!("no entry deletes other keys")
            }
        }
        self.min_seq = self.min_seq.min(seq);
        self.max_seq = self.max_seq.max(seq);
        self.raw_key_bytes += key_len as u64;
        self.raw_value_bytes += value_len as u64;
    }

    /// The payload of the properties block.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let counts = [self.values, self.tombstones, self.handles, self.poisons, self.hidden];
        put_numbers(&mut out, 2, &counts);
        put_numbers(&mut out, 4, &[self.raw_key_bytes, self.raw_value_bytes]);
        put_field(&mut out, 6, &self.smallest);
        put_field(&mut out, 8, &self.largest);
        put_numbers(&mut out, 10, &[self.min_seq.get(), self.max_seq.get()]);
        let bloom = u64::from(self.bloom_bits_per_key);
        put_numbers(&mut out, 12, &[u64::from(self.compression), bloom]);
        put_numbers(&mut out, 14, &[self.file.0, u64::from(self.epoch.0)]);
        put_numbers(&mut out, 16, &[self.data_blocks, self.data_bytes, self.block_bytes_max]);
        if !self.hidden_suffix.is_empty() {
            put_field(&mut out, 18, &self.hidden_suffix);
        }
        if self.operands > 0 {
            put_numbers(&mut out, 19, &[self.operands]);
        }
        if !self.user.0.is_empty() {
            let mut field = Vec::new();
            put_varint(&mut field, self.user.0.len() as u64);
            for (name, value) in &self.user.0 {
                put_bytes(&mut field, name.as_bytes());
                put_bytes(&mut field, value);
            }
            put_field(&mut out, 20, &field);
        }
        if let Some((extent, checksum)) = self.dictionary {
            let mut field = Vec::new();
            put_varint(&mut field, extent.offset);
            put_varint(&mut field, extent.len);
            put_u64(&mut field, checksum);
            put_field(&mut out, 21, &field);
        }
        if !self.tail_checksums.is_empty() {
            let mut field = Vec::new();
            self.tail_checksums.iter().for_each(|checksum| put_u64(&mut field, *checksum));
            put_field(&mut out, 22, &field);
        }
        // A checksum of its own, in addition to that of the block: a table whose footer is lost can still
        // be read by these properties, see `salvage.rs`.
        let checksum = checksum64(&out);
        put_field(&mut out, 24, &checksum.to_le_bytes());
        out
    }

    /// Returns `true` if the payload ends in a checksum of its own, which agrees.
    pub(super) fn own_checksum_agrees(payload: &[u8]) -> bool {
        // Tag, length and 8 bytes at the end. The other fields are not decoded: the checksum is there
        // to reveal damage in them.
        let Some((body, field)) = payload.split_last_chunk::<10>() else { return false };
        field[..2] == [24, 8] && field[2..] == checksum64(body).to_le_bytes()
    }

    /// Decodes the payload of the block that lies at `offset` of `source`.
    pub(super) fn decode(
        source: &TableSource,
        offset: u64,
        payload: &[u8],
    ) -> Result<SstProperties> {
        let mut properties = SstProperties::default();
        match properties.fields(payload) {
            Ok(None) => Ok(properties),
            Ok(Some(tag)) => {
                let place = source.path.display();
                let what = format!("table property {tag} that must be understood in {place}");
                Err(Error::new(ErrorKind::Unsupported, what))
            }
            Err(bad) => Err(source.corruption(offset, format!("properties: {bad}"))),
        }
    }

    /// Takes in all fields; stops at the first unknown one that must be understood and returns it.
    fn fields(&mut self, payload: &[u8]) -> Result<Option<u64>, Malformed> {
        let mut reader = Reader::new(payload);
        let mut last = 0;
        while !reader.is_empty() {
            let start = reader.position();
            let tag = reader.varint()?;
            let field = reader.bytes()?;
            // Ascending, so no field comes twice.
            if tag <= last {
                return Err(reader.malformed("tags do not ascend"));
            }
            last = tag;
            // Here and not with the others, because it covers what lies in front of it.
            if tag == 24 {
                if field != checksum64(&payload[..start]).to_le_bytes() {
                    return Err(reader.malformed("the properties' own checksum does not match"));
                }
                self.has_own_checksum = true;
                continue;
            }
            let is_known = self.field(tag, field)?;
            if !is_known && tag % 2 == 1 {
                return Ok(Some(tag));
            }
        }
        Ok(None)
    }

    /// Takes in a field; false if the tag is not known.
    fn field(&mut self, tag: u64, field: &[u8]) -> Result<bool, Malformed> {
        let mut reader = Reader::new(field);
        let r = &mut reader;
        match tag {
            2 => {
                self.values = count(r)?;
                self.tombstones = count(r)?;
                self.handles = count(r)?;
                self.poisons = count(r)?;
                self.hidden = count(r)?;
            }
            4 => {
                self.raw_key_bytes = r.varint()?;
                self.raw_value_bytes = r.varint()?;
            }
            6 => self.smallest = key(r)?,
            8 => self.largest = key(r)?,
            10 => {
                self.min_seq = seq(r)?;
                self.max_seq = seq(r)?;
            }
            12 => {
                let id = r.varint()?;
                self.compression =
                    u8::try_from(id).map_err(|_| r.malformed("compression out of range"))?;
                self.bloom_bits_per_key = r.varint_u32()?;
            }
            14 => {
                self.file = FileNo(r.varint()?);
                self.epoch = Epoch(r.varint_u32()?);
            }
            16 => {
                self.data_blocks = r.varint()?;
                self.data_bytes = r.varint()?;
                self.block_bytes_max = r.varint()?;
            }
            18 => {
                // An empty suffix would make every key a hidden one.
                if !(1..=HIDDEN_SUFFIX_BYTES_MAX).contains(&field.len()) {
                    return Err(r.malformed("length of the hidden suffix out of range"));
                }
                self.hidden_suffix = r.take(field.len())?.to_vec();
            }
            19 => self.operands = count(r)?,
            20 => self.user = user_properties(r)?,
            21 => {
                let extent = Extent { offset: r.varint()?, len: r.varint()? };
                self.dictionary = Some((extent, r.u64()?));
            }
            22 => {
                while !r.is_empty() {
                    self.tail_checksums.push(r.u64()?);
                }
            }
            _ => return Ok(false),
        }
        reader.finish()?;
        Ok(true)
    }
}

/// The numbers that two accounts of a table must agree in.
pub(super) fn numbers(said: &SstProperties, is: &SstProperties) -> [(&'static str, u64, u64); 14] {
    [
        ("values", said.values, is.values),
        ("tombstones", said.tombstones, is.tombstones),
        ("handles", said.handles, is.handles),
        ("poisons", said.poisons, is.poisons),
        ("hidden entries", said.hidden, is.hidden),
        ("key bytes", said.raw_key_bytes, is.raw_key_bytes),
        ("value bytes", said.raw_value_bytes, is.raw_value_bytes),
        ("smallest sequence number", said.min_seq.get(), is.min_seq.get()),
        ("largest sequence number", said.max_seq.get(), is.max_seq.get()),
        ("file", said.file.0, is.file.0),
        ("epoch", u64::from(said.epoch.0), u64::from(is.epoch.0)),
        ("data blocks", said.data_blocks, is.data_blocks),
        ("data bytes", said.data_bytes, is.data_bytes),
        ("largest block", said.block_bytes_max, is.block_bytes_max),
    ]
}

/// A count; bounded so that sums of counts cannot overflow.
fn count(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    let n = reader.varint()?;
    // No table has more entries than there are numbers, and sums of counts cannot overflow then.
    if n <= SEQNO_MAX { Ok(n) } else { Err(reader.malformed("count out of range")) }
}

fn seq(reader: &mut Reader<'_>) -> Result<SeqNo, Malformed> {
    let n = reader.varint()?;
    SeqNo::new(n).ok_or(reader.malformed("sequence number exceeds 56 bits"))
}

fn key(reader: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
    if reader.remaining() > INTERNAL_KEY_BYTES_MAX {
        return Err(reader.malformed("key length out of range"));
    }
    Ok(reader.take(reader.remaining())?.to_vec())
}

/// Checks what is to be noted in a table.
///
/// # Errors
/// `LimitExceeded`.
pub(super) fn check_user_properties(user: &hooks::Properties) -> Result<()> {
    let mut total = 0;
    for (name, value) in &user.0 {
        if name.len() > USER_NAME_BYTES_MAX {
            let limit = USER_NAME_BYTES_MAX as u64;
            return Err(Error::limit("length of a property's name", name.len() as u64, limit));
        }
        total += name.len() + value.len();
    }
    if total > USER_BYTES_MAX {
        let limit = USER_BYTES_MAX as u64;
        return Err(Error::limit("length of a table's properties", total as u64, limit));
    }
    Ok(())
}

fn user_properties(reader: &mut Reader<'_>) -> Result<hooks::Properties, Malformed> {
    let mut user = hooks::Properties::default();
    let count = reader.varint()?;
    let mut total = 0;
    // Nothing is reserved for `count`, which may be a lie. The loop ends with the bytes at the
    // latest.
    for _ in 0..count {
        let name = reader.bytes()?;
        let value = reader.bytes()?;
        total += name.len() + value.len();
        if name.len() > USER_NAME_BYTES_MAX || total > USER_BYTES_MAX {
            return Err(reader.malformed("user properties are too long"));
        }
        let text = std::str::from_utf8(name);
        let name = text.map_err(|_| reader.malformed("name of a user property is not UTF-8"))?;
        // Strictly ascending, so that equal properties have equal bytes and no name comes twice.
        if user.0.last_key_value().is_some_and(|(last, _)| last.as_str() >= name) {
            return Err(reader.malformed("user properties do not ascend"));
        }
        user.0.insert(name.to_owned(), value.to_vec());
    }
    Ok(user)
}

fn put_field(out: &mut Vec<u8>, tag: u64, field: &[u8]) {
    put_varint(out, tag);
    put_bytes(out, field);
}

fn put_numbers(out: &mut Vec<u8>, tag: u64, numbers: &[u64]) {
    let mut field = Vec::new();
    for n in numbers {
        put_varint(&mut field, *n);
    }
    put_field(out, tag, &field);
}
