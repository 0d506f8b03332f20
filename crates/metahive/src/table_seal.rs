//! The property of a table that describes its metadata.
//!
//! It is written at the end of a table. Jobs that read the table, verified reads and scrubs read
//! it.
//!
//! ```text
//! name          encoding             meaning
//! version       1 byte               3; 2 has long payloads (`payload.rs`), and 1 also ends in front of
//!                                    `keys`
//! algorithm     1 byte               number of the checksum
//! provider      length, bytes        name of the provider
//! sealed        varint               entries that have metadata
//! split         varint               of them, those that may lie in another block than it
//! open          varint               pairs that the table's end came between
//!   key         length, bytes        of the entry
//!   payload     length, bytes        its V+, sequence number first
//! keys          varint               different user keys among the entries
//! spans         varint               stretches of blocks, from the first block on
//!   digest      4 bytes              low bits of the sum of the checksums of their entries
//! long          varint               spans of more than one block
//!   span        varint               its number
//!   blocks      varint               how many
//! checksum      8 bytes              XXH3-64 of all before
//! ```
//!
//! The metadata of an entry vouches for that entry alone. Only the digest of its block shows that
//! no entry is missing, and that no entry was added with metadata of its own. The digest is a sum
//! of checksums that the job has computed anyway. A span is one block, except after a forced cut,
//! and except in a table with more blocks than the property can list.
//!
//! Keys can lie between K and K+. A table ends among them only when their group has passed its
//! bound. The property then has the metadata of the pairs that are open at the end, in the table of
//! their entries, so that each table can be verified without its neighbour.
//!
//! Invariants:
//! 1. A table that has this property has metadata for each of its entries: what is missing there is
//!    damage.
//! 2. A property that does not decode still marks its table as sealed.

use lsm_core::codec::{Malformed, Reader, checksum64, put_bytes, put_u32, put_u64, put_varint};
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::Properties;

use crate::checksum;

/// Name of the property.
pub const PROPERTY: &str = "metahive";

/// The damage that digests show.
pub(crate) const INCOMPLETE: &str = "entries of the block are missing, or others have come";

const VERSION: u8 = 3;
/// The version with 8 bytes of the checksum of the checksum in each payload of integrity.
const VERSION_OF_LONG_PAYLOADS: u8 = 2;
/// The version without digests.
const VERSION_WITHOUT_SPANS: u8 = 1;
/// Most spans of a table: beyond that each is twice as long.
const SPANS_MAX: usize = 64 << 10;

/// Consecutive blocks, and the digest of their entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The number of blocks.
    pub blocks: u64,
    /// The low bits of the sum of the checksums of their entries.
    pub digest: u32,
}

/// The contents of a table's property.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSeal {
    /// Name of the provider.
    pub provider: String,
    /// Number of entries that have metadata.
    pub sealed: u64,
    /// About how many of them may lie in another block than their metadata: a cut that the metadata of a pair
    /// forces is seen at the next pair only, and counted there. A figure, on which no read depends.
    pub split_pairs: u64,
    /// Key and V+ of the entries whose metadata would lie after the end of the table.
    pub open: Vec<(Vec<u8>, Vec<u8>)>,
    /// Number of different user keys, where the table says so.
    pub keys: Option<u64>,
    /// Its blocks from the first on; none where the table does not say.
    pub spans: Vec<Span>,
}

impl TableSeal {
    /// The V+ of a pair that the table's end came between, by key and stored sequence number.
    pub fn open_payload(&self, key: &[u8], stored_seq: u64) -> Option<&[u8]> {
        let mut open = self.open.iter();
        let head = stored_seq.to_le_bytes();
        open.find(|(k, payload)| k == key && payload.starts_with(&head)).map(|(_, p)| &p[..])
    }

    /// The span that the block with this number belongs to, and the number of its first block.
    pub fn span_of(&self, number: u64) -> Option<(u64, Span)> {
        let mut first = 0;
        for span in &self.spans {
            if number < first + span.blocks {
                return Some((first, *span));
            }
            first += span.blocks;
        }
        None
    }

    /// The digest of the block with this number, if there is one of it alone.
    pub fn digest_of(&self, number: u64) -> Option<u32> {
        let (_, span) = self.span_of(number)?;
        (span.blocks == 1).then_some(span.digest)
    }

    /// The offsets of the blocks whose entries are not those that were written to them, by the sums of
    /// what is there, block by block. `None` where only the table as a whole shows it.
    pub(crate) fn incomplete(&self, sums: &[(u64, u32)]) -> Vec<Option<u64>> {
        let blocks: u64 = self.spans.iter().map(|span| span.blocks).sum();
        if blocks != sums.len() as u64 {
            // A block may have nothing but metadata. Then the digests as a whole must do.
            let sealed_sum =
                self.spans.iter().fold(0u32, |sum, span| sum.wrapping_add(span.digest));
            let is_whole = self.spans.is_empty() || sealed_sum == sum_of(sums);
            return if is_whole { Vec::new() } else { vec![None] };
        }
        let mut incomplete = Vec::new();
        let mut rest = sums;
        for span in &self.spans {
            let (blocks, after) = rest.split_at(span.blocks as usize);
            if sum_of(blocks) != span.digest {
                incomplete.extend(blocks.iter().map(|(offset, _)| Some(*offset)));
            }
            rest = after;
        }
        incomplete
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
        put_varint(&mut out, self.keys.unwrap_or(self.sealed));
        let spans = halved(self.spans.clone());
        put_varint(&mut out, spans.len() as u64);
        for span in &spans {
            put_u32(&mut out, span.digest);
        }
        let long: Vec<_> = (0u64..).zip(&spans).filter(|(_, span)| span.blocks > 1).collect();
        put_varint(&mut out, long.len() as u64);
        for (number, span) in long {
            put_varint(&mut out, number);
            put_varint(&mut out, span.blocks);
        }
        let sum = checksum64(&out);
        put_u64(&mut out, sum);
        out
    }

    /// Returns `true` if it may hold several versions of one user key.
    pub fn has_versions(&self) -> bool {
        self.keys != Some(self.sealed)
    }

    /// Returns the seal of a table, `None` if it is not sealed. A damaged property counts as one with
    /// nothing in it: sealed, of this provider, with no pair open.
    ///
    /// # Errors
    /// `Unsupported` if it was sealed by another provider or a newer version.
    pub fn of(properties: &Properties, provider: &str) -> Result<Option<TableSeal>> {
        let Some(bytes) = properties.0.get(PROPERTY) else { return Ok(None) };
        // Unsealed would be wrong: then damage of the property would turn the missing metadata of a
        // table into metadata that was never made.
        let Ok(seal) = checked(bytes).and_then(decode) else {
            return Ok(Some(TableSeal { provider: provider.to_owned(), ..TableSeal::default() }));
        };
        match seal {
            Some(seal) if seal.provider == provider => Ok(Some(seal)),
            other => {
                let by =
                    other.map_or("a newer version".to_owned(), |s| format!("{:?}", s.provider));
                let what = format!(
                    "a table was sealed by {by}, this is {provider:?}: compact without MetaHive first"
                );
                Err(Error::new(ErrorKind::Unsupported, what))
            }
        }
    }
}

fn sum_of(blocks: &[(u64, u32)]) -> u32 {
    blocks.iter().fold(0u32, |sum, (_, block)| sum.wrapping_add(*block))
}

/// As many spans as may be, by putting two and two together.
fn halved(mut spans: Vec<Span>) -> Vec<Span> {
    // Halved as a whole: the digest of a longer span is the sum of two, so nothing is computed
    // again.
    while spans.len() > SPANS_MAX {
        spans = spans
            .chunks(2)
            .map(|pair: &[Span]| Span {
                blocks: pair.iter().map(|span| span.blocks).sum(),
                digest: pair.iter().fold(0, |sum: u32, span| sum.wrapping_add(span.digest)),
            })
            .collect();
    }
    spans
}

fn checked(bytes: &[u8]) -> Result<&[u8], Malformed> {
    // A shorter property ends too early for its checksum, which is the error then.
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
    let version = reader.u8()?;
    // The checksum of the property agreed, so this is a newer version and no damage.
    let is_known = [VERSION_WITHOUT_SPANS, VERSION_OF_LONG_PAYLOADS, VERSION].contains(&version);
    if !is_known || reader.u8()? != checksum::ALGORITHM {
        return Ok(None);
    }
    let provider = String::from_utf8(reader.bytes()?.to_vec())
        .map_err(|_| reader.malformed("name of a provider"))?;
    let sealed = reader.varint()?;
    let split_pairs = reader.varint()?;
    let count = reader.varint()?;
    let mut open = Vec::new();
    for _ in 0..count {
        open.push((reader.bytes()?.to_vec(), reader.bytes()?.to_vec()));
    }
    let mut keys = None;
    let mut spans = Vec::new();
    if version != VERSION_WITHOUT_SPANS {
        keys = Some(reader.varint()?);
        spans = read_spans(&mut reader)?;
    }
    reader.finish()?;
    Ok(Some(TableSeal { provider, sealed, split_pairs, open, keys, spans }))
}

fn read_spans(reader: &mut Reader<'_>) -> Result<Vec<Span>, Malformed> {
    let count = reader.varint()?;
    let mut spans = Vec::new();
    for _ in 0..count {
        spans.push(Span { blocks: 1, digest: reader.u32()? });
    }
    for _ in 0..reader.varint()? {
        let number = reader.varint()?;
        let blocks = reader.varint()?;
        let span = usize::try_from(number).ok().and_then(|number| spans.get_mut(number));
        // At least one block, so that every span has a place in the order.
        span.ok_or(reader.malformed("number of a span"))?.blocks = blocks.max(1);
    }
    // Readers add the blocks of spans up.
    let sum = spans.iter().try_fold(0u64, |sum, span| sum.checked_add(span.blocks));
    sum.ok_or(reader.malformed("blocks of spans"))?;
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(bytes: Vec<u8>) -> Properties {
        Properties([(PROPERTY.to_owned(), bytes)].into())
    }

    /// The seal that these bytes are in another version, with a checksum that agrees.
    fn of_version(version: u8, bytes: &[u8]) -> Result<Option<TableSeal>> {
        let mut other = [&[version], &bytes[1..]].concat();
        let sum = checksum64(&other);
        put_u64(&mut other, sum);
        TableSeal::of(&properties(other), "integrity")
    }

    #[test]
    fn more_blocks_than_fit_are_reported_two_by_two() {
        let spans: Vec<_> = (0..=SPANS_MAX as u32).map(|n| Span { blocks: 1, digest: n }).collect();
        let seal = TableSeal { spans, ..TableSeal::default() };
        let read = TableSeal::of(&properties(seal.encode()), "").unwrap().unwrap();
        assert_eq!(read.spans.len(), SPANS_MAX / 2 + 1);
        assert_eq!(read.spans[1], Span { blocks: 2, digest: 5 });
        assert_eq!(read.spans.last(), Some(&Span { blocks: 1, digest: SPANS_MAX as u32 }));
    }

    #[test]
    fn the_digest_of_several_blocks_is_that_of_none_of_them() {
        let spans = vec![Span { blocks: 1, digest: 7 }, Span { blocks: 2, digest: 9 }];
        let seal = TableSeal { spans, ..TableSeal::default() };
        assert_eq!(
            (0..4).map(|number| seal.digest_of(number)).collect::<Vec<_>>(),
            [Some(7), None, None, None]
        );
        assert_eq!(seal.incomplete(&[(0, 7), (9, 4), (20, 5)]), []);
        assert_eq!(seal.incomplete(&[(0, 7), (9, 4), (20, 4)]), [Some(9), Some(20)]);
        // With another number of blocks all digests together decide.
        assert_eq!(seal.incomplete(&[(0, 7), (9, 9)]), []);
        assert_eq!(seal.incomplete(&[(0, 7), (9, 8)]), [None]);
    }

    /// The checksum of the property is right, so that only the sum of the blocks can refuse it.
    #[test]
    fn spans_of_more_blocks_than_there_can_be_are_refused() {
        let spans = vec![Span { blocks: u64::MAX, digest: 7 }, Span { blocks: 3, digest: 9 }];
        let seal = TableSeal { spans, ..TableSeal::default() };
        let read = TableSeal::of(&properties(seal.encode()), "").unwrap().expect("it is sealed");
        assert_eq!(read, TableSeal::default());
        assert_eq!((read.span_of(u64::MAX), read.incomplete(&[(0, 7), (9, 9)])), (None, vec![]));
    }

    #[test]
    fn the_property_reads_back_and_stays_a_seal_when_damaged() {
        let open = vec![(b"T".to_vec(), 7u64.to_le_bytes().to_vec())];
        let spans = vec![Span { blocks: 1, digest: 7 }, Span { blocks: 3, digest: 9 }];
        let seal = TableSeal {
            provider: "integrity".into(),
            sealed: 300,
            split_pairs: 2,
            open,
            keys: Some(299),
            spans,
        };
        assert!(seal.has_versions());
        let bytes = seal.encode();
        assert_eq!(bytes[..12], *b"\x03\x01\x09integrity");
        assert_eq!(bytes[12..16], [0xac, 0x02, 2, 1]);
        assert_eq!(bytes[16..27], *b"\x01T\x08\x07\0\0\0\0\0\0\0");
        assert_eq!(bytes[27..41], [0xab, 0x02, 2, 7, 0, 0, 0, 9, 0, 0, 0, 1, 1, 3]);
        assert_eq!(bytes.len(), 41 + 8);
        let read = TableSeal::of(&properties(bytes.clone()), "integrity").unwrap();
        assert_eq!(read.as_ref(), Some(&seal));
        assert!(read.unwrap().open_payload(b"T", 7).is_some());
        assert_eq!(of_version(2, &bytes[..41]).unwrap().as_ref(), Some(&seal));
        assert!(of_version(4, &bytes[..41]).is_err());
        // A table of the first version has no digests.
        let read = of_version(1, &bytes[..27]).unwrap().unwrap();
        assert_eq!((read.sealed, read.keys, read.spans.len()), (300, None, 0));
        assert!(read.has_versions());

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
