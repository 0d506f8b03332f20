//! [`SstWriter`]: writes one table. Used by flush, compaction and export.
//!
//! Entries fill a block. Full blocks are sealed into a buffer, which is appended to the file in
//! large pieces. The parts that describe the whole file (bloom, index, properties) stay in memory
//! until the end.
//!
//! Invariants:
//! 1. Keys arrive in strictly ascending internal order, hidden ones included. A violation is a
//!    mistake of the engine and asserts.
//! 2. Equal input makes an equal file.
//! 3. No allocation per entry: buffers grow to their working size and stay.
//! 4. Bounds, sequence range and bloom of a table are those of its visible entries. A hidden key
//!    after its owner must not make two neighbouring tables overlap.

mod hidden;
mod last_entry;

use std::sync::Arc;

use crate::codec::checksum128;
use crate::error::{Error, Result};
use crate::fs::File;
use crate::hooks::{self, EndedBlock, NoteForm};
use crate::limits::{FORMAT_VALUE_BYTES_MAX, INTERNAL_KEY_BYTES_MAX};
use crate::options::Compression;
use crate::types::{InternalKey, KeyRef, SeqNo, hidden_precedes};

use super::block_builder::BlockBuilder;
use super::bloom::BloomBuilder;
use super::footer::{
    FOOTER_BYTES, Footer, HAS_EMPTY_KEY, HAS_HIDDEN, HAS_HIDDEN_COLUMN, HAS_OPERANDS,
    HAS_SHORT_HIDDEN, HAS_TAIL_CHECKSUMS, HAS_ZSTD,
};
use super::hidden::hidden_trailer;
use super::index::{INDEX_BYTES_MAX, IndexBuilder};
use super::pending_file::PendingFile;
use super::properties::{SstProperties, check_user_properties};
use super::stored::{Extent, LARGE_PAYLOAD_BYTES};
use super::{CachePrepopulation, SstIdentity, SstOptions, SstSummary};
use last_entry::LastEntry;

/// A block is ended where that is forbidden before it passes its usual size by so many bytes.
const FORBIDDEN_BYTES_MAX: usize = 1 << 20;
/// After a first entry that has no more than so many bytes beyond the usual size of a block, its hidden entry
/// passes no bound.
const SHORT_BLOCK_BYTES_MAX: usize = FORBIDDEN_BYTES_MAX - (128 << 10);
const _: () = assert!(INTERNAL_KEY_BYTES_MAX + hooks::NOTED_BYTES_MAX < 100 << 10, "it has room");
/// Gathering a shorter value costs next to nothing.
const LONE_VALUE_BYTES_MIN: usize = 2 << 10;

/// Writes a table. Dropped unfinished it leaves a file that no reader accepts.
pub struct SstWriter {
    // Fixed after construction.
    identity: SstIdentity,
    options: SstOptions,
    /// The way of the data blocks into the block cache, if they are to go there.
    prepopulation: Option<Arc<CachePrepopulation>>,
    // The present block, and what is known of the one before.
    block: BlockBuilder,
    last: LastEntry,
    is_cut_allowed: bool,
    /// The block began with an entry so long that a hidden entry may pass the bound of the block: it takes no
    /// notes, and may have ended.
    is_long: bool,
    notes: Notes,
    /// The block that was sealed last: its separator waits for the key after it.
    unindexed: Option<Extent>,
    // The file so far.
    out: PendingFile,
    bloom: BloomBuilder,
    index: IndexBuilder,
    properties: SstProperties,
    smallest: Option<InternalKey>,
}

/// The hidden entries of a table that are made of notes.
#[derive(Default)]
struct Notes {
    form: Option<Arc<dyn NoteForm>>,
    /// Bytes of the payloads of the form; 0 without one.
    bytes: usize,
    /// The blocks that have ended, for a filter that seals.
    ended: Vec<EndedBlock>,
}

impl SstWriter {
    /// A writer of the table `identity` into the empty `file`. No entry will be older
    /// than `base_seq`.
    pub fn new(
        file: Arc<dyn File>,
        identity: SstIdentity,
        base_seq: SeqNo,
        options: SstOptions,
    ) -> SstWriter {
        SstWriter::with_index_limit(file, identity, base_seq, options, INDEX_BYTES_MAX)
    }

    pub(super) fn with_index_limit(
        file: Arc<dyn File>,
        identity: SstIdentity,
        base_seq: SeqNo,
        options: SstOptions,
        index_bytes_max: usize,
    ) -> SstWriter {
        let properties = SstProperties {
            compression: options.compression as u8,
            bloom_bits_per_key: options.bloom_bits_per_key,
            file: identity.file,
            epoch: identity.epoch,
            ..SstProperties::default()
        };
        SstWriter {
            identity,
            options,
            prepopulation: None,
            block: BlockBuilder::new(base_seq),
            last: LastEntry::new(),
            is_cut_allowed: true,
            is_long: false,
            notes: Notes::default(),
            unindexed: None,
            out: PendingFile::new(file, identity.unique_id()),
            bloom: BloomBuilder::new(options.bloom_bits_per_key, options.prefix_extractor),
            index: IndexBuilder::new(index_bytes_max),
            properties,
            smallest: None,
        }
    }

    /// Waits for the device on the way, so that readers need not wait for the whole table.
    pub fn keep_pace(&mut self) {
        self.out.keep_pace();
    }

    /// Gives the data blocks to `prepopulation`, too.
    pub fn set_prepopulation(&mut self, prepopulation: Arc<CachePrepopulation>) {
        self.prepopulation = Some(prepopulation);
    }

    /// Adds an entry after the last.
    ///
    /// # Errors
    /// `LimitExceeded` for a key or value that the format cannot hold; whatever appending to the
    /// file says. After an error the file is to be abandoned.
    ///
    /// # Panics
    /// If the key is not after the last one, older than the base sequence, or a seek target.
    pub fn add(&mut self, key: KeyRef<'_>, value: &[u8]) -> Result<()> {
        check_lengths(key, value)?;
        let is_new_user_key = self.check_order(key);
        let bytes = BlockBuilder::entry_bytes_max(key, value.len());
        self.make_room(bytes, self.is_cut_allowed)?;
        if self.block.is_empty() {
            self.begin_block(key, bytes);
        } else if self.block.ends_column() {
            self.make_payloads()?;
        }
        if self.smallest.is_none() {
            self.smallest = Some(key.to_owned());
        }
        if self.is_alone(value) {
            self.write_alone(key, value)?;
        } else {
            self.block.add(key, value);
        }
        // A hidden key between two versions of a visible one, and equal to it, is possible.
        let is_new_visible = if self.last.is_hidden {
            self.last.visible().user != key.user
        } else {
            is_new_user_key
        };
        if is_new_visible {
            // Once a user key: its versions have one hash.
            self.bloom.add(key.user);
        }
        self.last.set(is_new_user_key, key, false);
        let kind = key.trailer.kind().expect("a written entry has a kind");
        self.properties.count(kind, key.trailer.seq(), key.user.len(), value.len());
        Ok(())
    }

    /// Says whether a block may end before the next entries. Where it may not, it ends all the same
    /// before it passes 1 MiB more than its usual size, and is forced.
    pub fn allow_cut(&mut self, allow: bool) {
        self.is_cut_allowed = allow;
    }

    /// The blocks that have ended, for the caller to take. In a table without a hidden suffix none is listed.
    pub fn ended_blocks(&mut self) -> &mut Vec<EndedBlock> {
        &mut self.notes.ended
    }

    /// Ends the last block.
    ///
    /// # Errors
    /// Those of the append. The file is then useless.
    pub fn end_last_block(&mut self) -> Result<()> {
        if self.block.is_empty() { Ok(()) } else { self.seal_block(false) }
    }

    /// Sets the notes of compaction filters in the table, in the place of what was set before.
    ///
    /// # Errors
    /// `LimitExceeded` for names of more than 255 bytes, or more than 1 MiB in all.
    pub fn set_user_properties(&mut self, user: hooks::Properties) -> Result<()> {
        check_user_properties(&user)?;
        self.properties.user = user;
        Ok(())
    }

    /// Asserts that `key` is after the last; returns whether its user key is another one.
    #[inline]
    fn check_order(&self, key: KeyRef<'_>) -> bool {
        // The key of the last entry does not say that there is none: the empty key is a key.
        if self.smallest.is_none() {
            return true;
        }
        let order = self.last.user.as_slice().cmp(key.user);
        assert!(
            order.is_lt() || (order.is_eq() && key.trailer < self.last.trailer),
            "keys of a table ascend: {key:?} came after \"{}\"",
            self.last.user.escape_ascii()
        );
        if self.last.has_short_hidden {
            let suffix = &self.properties.hidden_suffix[..];
            assert!(
                order.is_lt() && hidden_precedes(&self.last.user, suffix, key.user),
                "keys of a table ascend: {key:?} came after the hidden entry of \"{}\"",
                self.last.user.escape_ascii()
            );
        }
        order.is_lt()
    }

    /// Ends the block if an entry of at most `bytes` must not be added to it.
    #[inline]
    fn make_room(&mut self, bytes: usize, is_cut_allowed: bool) -> Result<()> {
        let grown = self.block.payload_bytes() + bytes;
        let usual = self.options.block_bytes as usize;
        // Hidden entries come on top: a block of a sealed table so has as many entries as any other, and
        // neither scans nor the index have more blocks. At most twice the size, where values are short.
        let most = usual + self.block.hidden_bytes().min(usual);
        // An entry that is longer than a block has one of its own.
        if grown <= most || self.block.is_empty() {
            return Ok(());
        }
        if !is_cut_allowed && grown <= usual.saturating_add(FORBIDDEN_BYTES_MAX) {
            return Ok(());
        }
        self.seal_block(!is_cut_allowed)
    }

    /// Bytes of the file if it were finished now, about.
    pub fn estimated_bytes(&self) -> u64 {
        let open = self.block.payload_bytes() + self.index.payload_bytes() + FOOTER_BYTES;
        self.out.offset() + open as u64 + self.bloom.payload_bytes()
    }

    /// Length of the finished blocks, in bytes.
    pub fn written_bytes(&self) -> u64 {
        self.out.offset()
    }

    /// The visible user key that was added last, if there is one.
    pub fn last_user_key(&self) -> Option<&[u8]> {
        self.smallest.as_ref().map(|_| self.last.visible().user)
    }

    /// Completes the file and syncs it.
    ///
    /// # Errors
    /// Those of the append and the sync. The file is then useless.
    ///
    /// # Panics
    /// Without an entry: an empty table is no table.
    ///
    /// # Durability
    /// The bytes are durable when this returns, the name only after its folder is synced.
    #[cfg(any(test, feature = "internals"))]
    pub fn finish(self) -> Result<SstSummary> {
        let (summary, file) = self.finish_unsynced()?;
        file.sync()?;
        Ok(summary)
    }

    /// Completes the file. The sync is the caller's.
    ///
    /// # Errors
    /// Those of the append. The file is then useless.
    ///
    /// # Panics
    /// Without an entry.
    pub fn finish_unsynced(mut self) -> Result<(SstSummary, Arc<dyn File>)> {
        let smallest = self.smallest.take().expect("a table has an entry");
        self.end_last_block()?;
        self.index_block(None);
        self.properties.data_bytes = self.out.offset();
        self.properties.smallest = smallest.user.to_vec();
        self.properties.largest = self.last.visible().user.to_vec();
        if self.properties.hidden == 0 {
            // A suffix without hidden entries would contradict the footer.
            self.properties.hidden_suffix.clear();
        }
        // In bytes: what comes after it are the checksums of bloom and index.
        let data_blocks = self.out.checksums.len();
        let bloom = match self.bloom.finish() {
            // Neither bloom nor index is compressed: both are read at each open, and bits of a
            // bloom hardly shrink.
            Some(payload) => self.out.block(&payload, Compression::None)?,
            None => Extent { offset: 0, len: 0 },
        };
        let out = &mut self.out;
        let (index_levels, index) =
            self.index.finish(|payload| out.block(payload, Compression::None))?;
        let (tail, _) = out.checksums[data_blocks..].as_chunks::<8>();
        self.properties.tail_checksums = tail.iter().map(|it| u64::from_le_bytes(*it)).collect();
        self.properties.dictionary = out.dictionary()?;
        let properties = out.block(&self.properties.encode(), Compression::None)?;
        let file_hash = checksum128(&out.checksums);
        let footer = Footer {
            compatible: HAS_TAIL_CHECKSUMS,
            incompatible: features(&self.properties, self.block.had_column()),
            index_levels,
            db_id: self.identity.db_id,
            unique_id: self.identity.unique_id(),
            bloom,
            index,
            properties,
            file_hash,
        };
        // Known before the footer, whose checksum is seeded with it.
        let file_bytes = out.offset() + FOOTER_BYTES as u64;
        footer.encode(&mut out.pending, file_bytes);
        out.append()?;
        let file = out.file.clone();
        Ok((self.summary(smallest, file_bytes, file_hash), file))
    }

    fn summary(self, smallest: InternalKey, file_bytes: u64, file_hash: u128) -> SstSummary {
        let properties = &self.properties;
        SstSummary {
            identity: self.identity,
            file_bytes,
            file_hash,
            smallest,
            largest: self.last.visible().to_owned(),
            min_seq: properties.min_seq,
            max_seq: properties.max_seq,
            entries: properties.entries(),
            tombstones: properties.tombstones,
            hidden: properties.hidden,
        }
    }

    /// Called with the first key of each block, and the most bytes of its entry.
    fn begin_block(&mut self, key: KeyRef<'_>, bytes: usize) {
        let short_bytes_max =
            (self.options.block_bytes as usize).saturating_add(SHORT_BLOCK_BYTES_MAX);
        self.is_long = bytes > short_bytes_max;
        // The last key is still that of the sealed block: the new one is remembered after this.
        self.index_block(Some(key.user));
    }

    /// Enters the block that was sealed last into the index, now that `next` after it is known.
    fn index_block(&mut self, next: Option<&[u8]>) {
        let Some(extent) = self.unindexed.take() else { return };
        if self.last.has_short_hidden {
            // A search for the hidden entry must come to this block, too.
            let user = [&self.last.user[..], &self.properties.hidden_suffix[..]].concat();
            let last = KeyRef::new(&user, hidden_trailer(self.last.trailer.seq()));
            self.index.add(last, next, extent);
        } else {
            let last = KeyRef::new(&self.last.user, self.last.trailer);
            self.index.add(last, next, extent);
        }
    }

    /// Ends the block, which is `is_forced` where a cut is forbidden.
    fn seal_block(&mut self, is_forced: bool) -> Result<()> {
        assert!(self.unindexed.is_none(), "a sealed block is indexed before the next");
        self.make_payloads()?;
        self.list_ended(is_forced);
        // The common prefix is that of visible keys. A hidden key near its owner has it through the
        // owner, and any other is stored whole.
        let last = self.last.visible().user;
        let entries = self.block.entries();
        let payload = self.block.finish(last);
        self.properties.data_blocks += 1;
        self.properties.block_bytes_max = self.properties.block_bytes_max.max(payload.len() as u64);
        let file = self.identity.file;
        let offset = self.out.offset();
        let prepopulation = self.prepopulation.as_ref();
        let copy = prepopulation
            .and_then(|prepopulation| prepopulation.copy(file, offset, payload, entries));
        // From the copy, so that the file gets the checksum of these bytes.
        let sealed = copy.as_deref().unwrap_or(payload);
        self.unindexed = Some(self.out.block(sealed, self.options.compression)?);
        if let Some((prepopulation, copy)) = prepopulation.zip(copy) {
            let suffix = &*self.properties.hidden_suffix;
            prepopulation.add(file, offset, copy, Some(suffix).filter(|suffix| !suffix.is_empty()));
        }
        self.block.clear();
        Ok(())
    }
}

impl SstWriter {
    /// Returns `true` if the value is so large that its block has no other entry, and is written without
    /// being gathered first.
    fn is_alone(&self, value: &[u8]) -> bool {
        let block_bytes = self.options.block_bytes as usize;
        let is_plain = self.options.compression == Compression::None;
        let bytes_min = if is_plain && !self.block.expects_hidden() {
            // The next entry would end the block anyway.
            block_bytes.max(LONE_VALUE_BYTES_MIN)
        } else {
            // A hidden entry would pass the bound of the block as well.
            LARGE_PAYLOAD_BYTES.max(block_bytes + FORBIDDEN_BYTES_MAX)
        };
        // It is not where the block must not end before this entry.
        value.len() >= bytes_min && self.block.is_empty()
    }

    /// Writes a block with this entry alone.
    fn write_alone(&mut self, key: KeyRef<'_>, value: &[u8]) -> Result<()> {
        // The hidden entry comes after it.
        debug_assert!(self.is_long || !self.block.expects_hidden(), "no note is taken");
        self.list_ended(true);
        let (before, after) = self.block.finish_around_value(key, value.len());
        let pieces = [before, value, after];
        let bytes = (before.len() + value.len() + after.len()) as u64;
        self.properties.data_blocks += 1;
        self.properties.block_bytes_max = self.properties.block_bytes_max.max(bytes);
        self.unindexed = Some(self.out.block_of_pieces(&pieces, self.options.compression)?);
        self.block.clear();
        Ok(())
    }
}

/// The incompatible features of a table with these properties.
fn features(properties: &SstProperties, has_column: bool) -> u64 {
    let zstd = if properties.compression == Compression::Zstd as u8 { HAS_ZSTD } else { 0 };
    let operands = if properties.operands > 0 { HAS_OPERANDS } else { 0 };
    let hidden = match (properties.hidden > 0, has_column) {
        (false, _) => 0,
        (true, false) => HAS_HIDDEN | HAS_SHORT_HIDDEN,
        (true, true) => HAS_HIDDEN | HAS_SHORT_HIDDEN | HAS_HIDDEN_COLUMN,
    };
    // In the order of keys the empty one is the first.
    let empty = if properties.smallest.is_empty() { HAS_EMPTY_KEY } else { 0 };
    hidden | operands | zstd | empty
}

fn check_lengths(key: KeyRef<'_>, value: &[u8]) -> Result<()> {
    if key.user.len() > INTERNAL_KEY_BYTES_MAX {
        let limit = INTERNAL_KEY_BYTES_MAX as u64;
        return Err(Error::limit("length of a key", key.user.len() as u64, limit));
    }
    if value.len() as u64 > FORMAT_VALUE_BYTES_MAX {
        return Err(Error::limit("value length", value.len() as u64, FORMAT_VALUE_BYTES_MAX));
    }
    Ok(())
}
