//! The contents of metadata: integrity, or whatever an application keeps for each entry.
//!
//! The filter calls `make` for each entry that it writes and `check` for each whose metadata it
//! meets. The bytes stand after the 8-byte sequence number at the head of V+. Like integrity's
//! they are hidden from readers and from nodes that know nothing of metadata.
//!
//! Invariant: `make` and `check` do no I/O and take no lock that a writer may hold.

use std::sync::atomic::{AtomicU64, Ordering};

use lsm_core::codec::Reader;
use lsm_core::hooks::Entry;

use crate::checksum;
use crate::payload::{HEAD_BYTES, Payload};
use crate::verdict::{Verdict, judge};

/// Makes and checks the metadata of entries. Bytes in, bytes out.
pub trait MetadataProvider: Send + Sync + 'static {
    /// The name of the provider. Each table stores it, and no provider with another name accepts the
    /// table.
    fn name(&self) -> &str;

    /// Parameters to be stored with the partition.
    fn params(&self) -> Vec<u8> {
        Vec::new()
    }

    /// The metadata of an entry.
    fn make(&self, entry: &Entry<'_>) -> Vec<u8>;

    /// Returns whether the entry and its metadata belong together.
    fn check(&self, entry: &Entry<'_>, metadata: &[u8]) -> Verdict;

    /// Returns the metadata of an unchanged entry from its previous metadata, so that metadata such as
    /// lineage survives compactions. `None` makes new metadata.
    fn carry(&self, entry: &Entry<'_>, metadata: &[u8]) -> Option<Vec<u8>> {
        let _ = (entry, metadata);
        None
    }
}

/// The built-in provider: a checksum of the entry, and 3 bytes of the checksum of that checksum. It also checks
/// the metadata of earlier versions, which has all 8 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Integrity;

impl Integrity {
    /// Its name in tables.
    pub const NAME: &str = "integrity";
}

impl MetadataProvider for Integrity {
    fn name(&self) -> &str {
        Integrity::NAME
    }

    fn params(&self) -> Vec<u8> {
        vec![checksum::ALGORITHM]
    }

    fn make(&self, entry: &Entry<'_>) -> Vec<u8> {
        let sum = checksum::of_entry(entry.key, entry.value, entry.seq, entry.kind);
        Payload::bytes_of(entry.seq, sum)[HEAD_BYTES..].to_vec()
    }

    fn check(&self, entry: &Entry<'_>, metadata: &[u8]) -> Verdict {
        // The stored number and not the one that readers see: an ingest gives a table a new number
        // for readers, and leaves its bytes and metadata as they are.
        let Some(metadata) = Payload::after_seq(entry.stored_seq, metadata) else {
            return Verdict::DataCorrupt;
        };
        let found = checksum::of_entry(entry.key, entry.value, entry.stored_seq, entry.kind);
        judge(found, &metadata)
    }
}

/// A provider that stores the length of each value, and its distance from the mean of the earlier values
/// when the entry was first sealed. A data cleaning step can use these figures without reading values.
///
/// ```text
/// offset  size  name      meaning
///      0     8  length    of the value, in bytes
///      8     8  distance  from the mean length of the values before it, in bytes
/// ```
#[derive(Debug, Default)]
pub struct Statistics {
    // Both are figures on their own; nothing is ordered by them.
    values: AtomicU64,
    bytes: AtomicU64,
}

impl Statistics {
    /// Length and distance in a provider's bytes, if they are this one's.
    pub fn decode(metadata: &[u8]) -> Option<(u64, u64)> {
        let mut reader = Reader::new(metadata);
        let figures = (reader.u64().ok()?, reader.u64().ok()?);
        reader.finish().ok()?;
        Some(figures)
    }
}

impl MetadataProvider for Statistics {
    fn name(&self) -> &'static str {
        "statistics"
    }

    fn make(&self, entry: &Entry<'_>) -> Vec<u8> {
        let length = entry.value.len() as u64;
        // Two jobs may mix their figures here, and the mean is then of both. It is a hint for data
        // cleaning, and worth no lock.
        let bytes = self.bytes.fetch_add(length, Ordering::Relaxed);
        let values = self.values.fetch_add(1, Ordering::Relaxed);
        let mean = bytes.checked_div(values).unwrap_or(length);
        [length.to_le_bytes(), length.abs_diff(mean).to_le_bytes()].concat()
    }

    fn check(&self, entry: &Entry<'_>, metadata: &[u8]) -> Verdict {
        match Statistics::decode(metadata) {
            Some((length, _)) if length == entry.value.len() as u64 => Verdict::Valid,
            Some(_) => Verdict::DataCorrupt,
            None => Verdict::MetadataCorrupt,
        }
    }

    fn carry(&self, _entry: &Entry<'_>, metadata: &[u8]) -> Option<Vec<u8>> {
        Statistics::decode(metadata).map(|_| metadata.to_vec())
    }
}
