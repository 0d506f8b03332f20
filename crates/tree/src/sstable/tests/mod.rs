//! Tests of whole tables, and what they share: a file in memory and a model.

mod alone;
mod column;
mod damage;
mod golden;
mod hidden;
mod hidden_by_owner;
mod large;
mod mapped;
mod model;
mod notes;
mod prefetch;
mod verify;
mod zstd;

use std::sync::Arc;

use super::test_file::TestFile;
use super::{SstIdentity, SstOptions, SstReader, SstSummary, SstWriter};
use crate::cache::Blocks;
use crate::error::Result;
use crate::options::Compression;
use crate::types::{DbId, EntryKind, Epoch, FileNo, InternalKey, KeyRef, SeqNo, Trailer};

pub(super) const IDENTITY: SstIdentity =
    SstIdentity { db_id: DbId(0xd0), file: FileNo(7), epoch: Epoch(3) };

/// Entries in internal order.
pub(super) type Entries = Vec<(InternalKey, Vec<u8>)>;

pub(super) fn entry(
    user: &[u8],
    seq: u64,
    kind: EntryKind,
    value: &[u8],
) -> (InternalKey, Vec<u8>) {
    let trailer = Trailer::new(SeqNo::new(seq).unwrap(), kind);
    (KeyRef::new(user, trailer).to_owned(), value.to_vec())
}

pub(super) fn options(block_bytes: u32, compression: Compression) -> SstOptions {
    SstOptions { block_bytes, compression, bloom_bits_per_key: 10, prefix_extractor: None }
}

/// Writes a table, its index split beyond `index_bytes_max`.
pub(super) fn write(
    entries: &Entries,
    options: SstOptions,
    index_bytes_max: usize,
) -> (Vec<u8>, SstSummary) {
    let file = Arc::new(TestFile::default());
    let base = entries.iter().map(|(key, _)| key.trailer.seq()).min().unwrap();
    let mut writer =
        SstWriter::with_index_limit(file.clone(), IDENTITY, base, options, index_bytes_max);
    for (key, value) in entries {
        writer.add(key.as_ref(), value).unwrap();
    }
    let summary = writer.finish().unwrap();
    let bytes = file.0.lock().clone();
    (bytes, summary)
}

pub(super) fn open(bytes: &[u8], expected: Option<(u64, u128)>) -> Result<Arc<SstReader>> {
    let cache = Arc::new(Blocks::new(1 << 20));
    let file = TestFile::holding(bytes);
    SstReader::open(file, "t.sst".into(), IDENTITY, expected, Some(cache)).map(Arc::new)
}

/// Opens a table whose blocks are used once: cursors parse none.
pub(super) fn open_uncached(bytes: &[u8]) -> Result<Arc<SstReader>> {
    let file = TestFile::holding(bytes);
    SstReader::open(file, "t.sst".into(), IDENTITY, None, None).map(Arc::new)
}

/// Opens a table that is read through a mapping of its file, if it can be.
pub(super) fn open_mapped(bytes: &[u8]) -> Result<Arc<SstReader>> {
    let cache = Arc::new(Blocks::new(1 << 20));
    let file = TestFile::holding(bytes);
    let opened = SstReader::open(file, "t.sst".into(), IDENTITY, None, Some(cache));
    opened.map(|reader| Arc::new(reader.map()))
}
