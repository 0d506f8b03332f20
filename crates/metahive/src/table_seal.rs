//! What a table's properties say of its metadata.
//!
//! Written when a table ends, read when a job that has the table among its inputs starts, and by
//! verified reads and scrubs.
//!
//! ```text
//! name          encoding             meaning
//! version       1 byte               1
//! algorithm     1 byte               number of the checksum
//! provider      length, bytes        name of the provider
//! sealed        varint               entries that have metadata
//! split         varint               of them, those that may lie in another block than it
//! open          varint               pairs that the table's end came between
//!   key         length, bytes        of the entry
//!   payload     length, bytes        its V+, sequence number first
//! checksum      8 bytes              XXH3-64 of all before
//! ```
//!
//! A table may end inside the run of keys that lies between K and K+ only past the bound of a
//! group. The metadata of the pairs that are open there is kept here, in the table of its entry,
//! so that each table can be verified without its neighbour.
//!
//! Invariants:
//! 1. A table that has this property has metadata for each of its entries: what is missing there
//!    is damage.
//! 2. A property that does not decode still marks its table as sealed.

use lsm_core::codec::{Malformed, Reader, checksum64, put_bytes, put_u64, put_varint};
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::Properties;

use crate::checksum;

/// Name of the property.
pub const PROPERTY: &str = "metahive";

const VERSION: u8 = 1;

/// What a table's property says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSeal {
    /// Name of the provider.
    pub provider: String,
    /// Number of entries that have metadata.
    pub sealed: u64,
    /// How many of them may lie in another block than their metadata.
    pub split_pairs: u64,
    /// Key and V+ of the entries whose metadata would lie behind the end of the table.
    pub open: Vec<(Vec<u8>, Vec<u8>)>,
}

impl TableSeal {
    /// The V+ of a pair that the table's end came between, by key and stored sequence number.
    pub fn open_payload(&self, key: &[u8], stored_seq: u64) -> Option<&[u8]> {
        let mut open = self.open.iter();
        let head = stored_seq.to_le_bytes();
        open.find(|(k, payload)| k == key && payload.starts_with(&head)).map(|(_, p)| &p[..])
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, checksum::ALGORITHM];
        put_bytes(&mut out, self.provider.as_bytes());
        put_varint(&mut out, self.sealed);
        put_varint(&mut out, self.split_pairs);
        put_varint(&mut out, self.open.len() as u64);
        for (key, payload) in &self.open {
            put_bytes(&mut out, key);
            put_bytes(&mut out, payload);
        }
        let sum = checksum64(&out);
        put_u64(&mut out, sum);
        out
    }

    /// What the table says, `None` if it is not sealed. A damaged property counts as one with
    /// nothing in it: sealed, of this provider, with no pair open.
    ///
    /// # Errors
    /// `Unsupported` if it was sealed by another provider or a newer version.
    pub fn of(properties: &Properties, provider: &str) -> Result<Option<TableSeal>> {
        let Some(bytes) = properties.0.get(PROPERTY) else { return Ok(None) };
        let Ok(seal) = checked(bytes).and_then(decode) else {
            return Ok(Some(TableSeal { provider: provider.to_owned(), ..TableSeal::default() }));
        };
        match seal {
            Some(seal) if seal.provider == provider => Ok(Some(seal)),
            other => {
                let by =
                    other.map_or("a newer version".to_owned(), |s| format!("{:?}", s.provider));
                let what = format!("a table was sealed by {by}, this is {provider:?}");
                Err(Error::new(ErrorKind::Unsupported, what))
            }
        }
    }
}

fn checked(bytes: &[u8]) -> Result<&[u8], Malformed> {
    let body_len = bytes.len().saturating_sub(8);
    let mut reader = Reader::new(bytes);
    let body = reader.take(body_len)?;
    if reader.u64()? != checksum64(body) {
        return Err(reader.malformed("checksum of the seal"));
    }
    Ok(body)
}

/// `None` for a version or an algorithm that is not known.
fn decode(bytes: &[u8]) -> Result<Option<TableSeal>, Malformed> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != VERSION || reader.u8()? != checksum::ALGORITHM {
        return Ok(None);
    }
    let provider = String::from_utf8(reader.bytes()?.to_vec())
        .map_err(|_| reader.malformed("name of a provider"))?;
    let (sealed, split_pairs) = (reader.varint()?, reader.varint()?);
    let count = reader.varint()?;
    let mut open = Vec::new();
    for _ in 0..count {
        open.push((reader.bytes()?.to_vec(), reader.bytes()?.to_vec()));
    }
    reader.finish()?;
    Ok(Some(TableSeal { provider, sealed, split_pairs, open }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(bytes: Vec<u8>) -> Properties {
        Properties([(PROPERTY.to_owned(), bytes)].into())
    }

    #[test]
    fn the_property_reads_back_and_stays_a_seal_when_damaged() {
        let open = vec![(b"T".to_vec(), 7u64.to_le_bytes().to_vec())];
        let seal = TableSeal { provider: "integrity".into(), sealed: 300, split_pairs: 2, open };
        let bytes = seal.encode();
        assert_eq!(bytes[..12], *b"\x01\x01\x09integrity");
        assert_eq!(bytes[12..16], [0xac, 0x02, 2, 1]);
        assert_eq!(bytes[16..27], *b"\x01T\x08\x07\0\0\0\0\0\0\0");
        assert_eq!(bytes.len(), 27 + 8);
        let read = TableSeal::of(&properties(bytes.clone()), "integrity").unwrap();
        assert_eq!(read.as_ref(), Some(&seal));
        assert!(read.unwrap().open_payload(b"T", 7).is_some());

        assert!(TableSeal::of(&properties(bytes.clone()), "other").is_err());
        assert_eq!(TableSeal::of(&Properties::default(), "integrity").unwrap(), None);
        for i in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[i] ^= 0x10;
            let read = TableSeal::of(&properties(damaged), "integrity").unwrap().unwrap();
            assert_eq!((read.sealed, read.open.len()), (0, 0));
            let cut = properties(bytes[..i].to_vec());
            assert!(TableSeal::of(&cut, "integrity").unwrap().is_some());
        }
    }
}
