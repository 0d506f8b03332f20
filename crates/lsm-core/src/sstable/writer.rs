//! [`SstWriter`]: writes one table. Used by flush, compaction and ingest.
//!
//! Entries fill a block; full blocks are sealed into a buffer that goes to the file in large
//! pieces. What describes the whole file (bloom, index, properties) is kept until the end.
//!
//! Invariants:
//! 1. Keys arrive in strictly ascending internal order; a breach is our mistake and asserts.
//! 2. Equal input makes an equal file.
//! 3. No allocation per entry; buffers grow to their working size and stay.

use std::path::PathBuf;
use std::sync::Arc;

use crate::codec::checksum128;
use crate::error::{Error, Result};
use crate::fs::File;
use crate::limits::{FORMAT_VALUE_BYTES_MAX, INTERNAL_KEY_BYTES_MAX};
use crate::options::Compression;
use crate::types::{InternalKey, KeyRef, SeqNo, Trailer};

use super::block_builder::BlockBuilder;
use super::bloom::BloomBuilder;
use super::footer::{FOOTER_BYTES, Footer};
use super::index::{INDEX_BYTES_MAX, IndexBuilder};
use super::properties::Properties;
use super::stored::{Extent, Sealer};
use super::{SstIdentity, SstOptions, SstSummary};

/// Bytes that are gathered before they go to the file.
const APPEND_BYTES: usize = 256 << 10;

/// Writes a table. Dropped unfinished it leaves a file that no reader accepts.
pub struct SstWriter {
    // Fixed after construction.
    path: PathBuf,
    identity: SstIdentity,
    options: SstOptions,
    // The present block, and what is known of the one before.
    block: BlockBuilder,
    last_user: Vec<u8>,
    last_trailer: Trailer,
    /// The block that was sealed last: its separator waits for the key behind it.
    unindexed: Option<Extent>,
    // The file so far.
    out: Output,
    bloom: BloomBuilder,
    index: IndexBuilder,
    properties: Properties,
    smallest: Option<InternalKey>,
}

impl SstWriter {
    /// A writer of the table `identity` into the empty `file`, which lies at `path`. No entry
    /// will be older than `base_seq`.
    pub fn new(
        file: Arc<dyn File>,
        path: PathBuf,
        identity: SstIdentity,
        base_seq: SeqNo,
        options: SstOptions,
    ) -> SstWriter {
        SstWriter::with_index_limit(file, path, identity, base_seq, options, INDEX_BYTES_MAX)
    }

    pub(super) fn with_index_limit(
        file: Arc<dyn File>,
        path: PathBuf,
        identity: SstIdentity,
        base_seq: SeqNo,
        options: SstOptions,
        index_bytes_max: usize,
    ) -> SstWriter {
        let properties = Properties {
            compression: options.compression as u8,
            bloom_bits_per_key: options.bloom_bits_per_key,
            file: identity.file,
            epoch: identity.epoch,
            ..Properties::default()
        };
        SstWriter {
            path,
            identity,
            options,
            block: BlockBuilder::new(base_seq),
            last_user: Vec::new(),
            last_trailer: Trailer::LAST,
            unindexed: None,
            out: Output {
                file,
                sealer: Sealer::new(identity.unique_id()),
                pending: Vec::with_capacity(APPEND_BYTES + (64 << 10)),
                written: 0,
                checksums: Vec::new(),
            },
            bloom: BloomBuilder::new(options.bloom_bits_per_key),
            index: IndexBuilder::new(index_bytes_max),
            properties,
            smallest: None,
        }
    }

    /// Adds an entry behind the last.
    ///
    /// # Errors
    /// `LimitExceeded` for a key or value that the format cannot hold; whatever appending to the
    /// file says. After an error the file is to be abandoned.
    ///
    /// # Panics
    /// If the key is not behind the last one, older than the base sequence, or a seek target.
    pub fn add(&mut self, key: KeyRef<'_>, value: &[u8]) -> Result<()> {
        check_lengths(key, value)?;
        let order = self.last_user.as_slice().cmp(key.user);
        let is_new_user_key = order.is_lt();
        assert!(
            is_new_user_key || (order.is_eq() && key.trailer < self.last_trailer),
            "keys of a table ascend: {key:?} came after \"{}\"",
            self.last_user.escape_ascii()
        );
        let grown = self.block.payload_bytes() + BlockBuilder::entry_bytes_max(key, value.len());
        if !self.block.is_empty() && grown > self.options.block_bytes as usize {
            self.seal_block()?;
        }
        if self.block.is_empty() {
            self.begin_block(key);
        }
        self.block.add(key, value);
        if is_new_user_key {
            self.bloom.add(key.user);
            self.last_user.clear();
            self.last_user.extend_from_slice(key.user);
        }
        self.last_trailer = key.trailer;
        let kind = key.trailer.kind().expect("a written entry has a kind");
        self.properties.count(kind, key.trailer.seq(), key.user.len(), value.len());
        Ok(())
    }

    /// Bytes of the file if it were finished now, about.
    pub fn estimated_bytes(&self) -> u64 {
        let open = self.block.payload_bytes() + self.index.payload_bytes() + FOOTER_BYTES;
        self.out.offset() + open as u64 + self.bloom.payload_bytes()
    }

    /// The user key that was added last, if there is one.
    pub fn last_user_key(&self) -> Option<&[u8]> {
        self.smallest.as_ref().map(|_| self.last_user.as_slice())
    }

    /// Number of entries so far.
    pub fn entries(&self) -> u64 {
        self.properties.entries()
    }

    /// Where the table is written.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Completes the file and syncs it.
    ///
    /// # Errors
    /// Whatever appending and syncing say; the file is then to be abandoned.
    ///
    /// # Panics
    /// Without an entry: an empty table is no table.
    ///
    /// # Durability
    /// The bytes are durable when this returns, the name only after its folder is synced.
    pub fn finish(mut self) -> Result<SstSummary> {
        let smallest = self.smallest.take().expect("a table has an entry");
        self.seal_block()?;
        self.index_block(None);
        self.properties.data_bytes = self.out.offset();
        self.properties.smallest = smallest.user.to_vec();
        self.properties.largest.clone_from(&self.last_user);
        let bloom = match self.bloom.finish() {
            Some(payload) => self.out.block(&payload, Compression::None)?,
            None => Extent { offset: 0, len: 0 },
        };
        let out = &mut self.out;
        let (index_levels, index) =
            self.index.finish(|payload| out.block(payload, Compression::None))?;
        let properties = out.block(&self.properties.encode(), Compression::None)?;
        let file_hash = checksum128(&out.checksums);
        let footer = Footer {
            index_levels,
            db_id: self.identity.db_id,
            unique_id: self.identity.unique_id(),
            bloom,
            index,
            properties,
            file_hash,
        };
        let file_bytes = out.offset() + FOOTER_BYTES as u64;
        footer.encode(&mut out.pending, file_bytes);
        out.append()?;
        out.file.sync()?;
        Ok(self.summary(smallest, file_bytes, file_hash))
    }

    fn summary(self, smallest: InternalKey, file_bytes: u64, file_hash: u128) -> SstSummary {
        let properties = &self.properties;
        SstSummary {
            identity: self.identity,
            file_bytes,
            file_hash,
            smallest,
            largest: KeyRef::new(&self.last_user, self.last_trailer).to_owned(),
            min_seq: properties.min_seq,
            max_seq: properties.max_seq,
            entries: properties.entries(),
            tombstones: properties.tombstones,
            hidden: properties.hidden,
            raw_bytes: properties.raw_key_bytes + properties.raw_value_bytes,
        }
    }

    /// Called with the first key of each block.
    fn begin_block(&mut self, key: KeyRef<'_>) {
        self.index_block(Some(key.user));
        if self.smallest.is_none() {
            self.smallest = Some(key.to_owned());
        }
    }

    /// Enters the block that was sealed last into the index, now that `next` behind it is known.
    fn index_block(&mut self, next: Option<&[u8]>) {
        if let Some(extent) = self.unindexed.take() {
            let last = KeyRef::new(&self.last_user, self.last_trailer);
            self.index.add(last, next, extent);
        }
    }

    fn seal_block(&mut self) -> Result<()> {
        assert!(self.unindexed.is_none(), "a sealed block is indexed before the next");
        let payload = self.block.finish(&self.last_user);
        self.properties.data_blocks += 1;
        self.properties.block_bytes_max = self.properties.block_bytes_max.max(payload.len() as u64);
        self.unindexed = Some(self.out.block(payload, self.options.compression)?);
        self.block.clear();
        Ok(())
    }
}

fn check_lengths(key: KeyRef<'_>, value: &[u8]) -> Result<()> {
    if key.user.is_empty() || key.user.len() > INTERNAL_KEY_BYTES_MAX {
        let limit = INTERNAL_KEY_BYTES_MAX as u64;
        return Err(Error::limit("length of a key, at least 1,", key.user.len() as u64, limit));
    }
    if value.len() as u64 > FORMAT_VALUE_BYTES_MAX {
        return Err(Error::limit("value length", value.len() as u64, FORMAT_VALUE_BYTES_MAX));
    }
    Ok(())
}

/// The file and what is still to be appended to it.
struct Output {
    file: Arc<dyn File>,
    sealer: Sealer,
    pending: Vec<u8>,
    /// Bytes in the file.
    written: u64,
    /// The checksums of all blocks so far, as they are stored.
    checksums: Vec<u8>,
}

impl Output {
    /// Where the next block will lie.
    fn offset(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    fn block(&mut self, payload: &[u8], compression: Compression) -> Result<Extent> {
        let offset = self.offset();
        let (extent, checksum) = self.sealer.seal(&mut self.pending, offset, payload, compression);
        self.checksums.extend_from_slice(&checksum.to_le_bytes());
        if self.pending.len() >= APPEND_BYTES {
            self.append()?;
        }
        Ok(extent)
    }

    fn append(&mut self) -> Result<()> {
        self.file.append(&self.pending)?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}
