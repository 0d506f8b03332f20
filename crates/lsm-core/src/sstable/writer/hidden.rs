//! The hidden entries of a table that is written. `sstable/hidden.rs` describes their bytes.

use super::{SstWriter, check_lengths};
use crate::error::Result;
use crate::sstable::block_builder::BlockBuilder;
use crate::sstable::hidden::hidden_trailer;
use crate::sstable::properties::HIDDEN_SUFFIX_BYTES_MAX;
use crate::types::{EntryKind, KeyRef, SeqNo};

/// A payload of so many bytes, behind a block of the usual size, passes no limit.
const SHORT_PAYLOAD_BYTES: usize = 1 << 10;

impl SstWriter {
    /// Adds a hidden entry behind the last. Its key is that of its owner, an entry before it, with
    /// the hidden suffix; its trailer the owner's sequence number and the kind tombstone.
    ///
    /// It belongs to what is before it: no block ends in front of it unless that passes the bound
    /// of [`SstWriter::allow_cut`].
    ///
    /// # Errors
    /// As [`SstWriter::add`].
    ///
    /// # Panics
    /// If the key is not behind the last one, is no tombstone, lacks the suffix, or is the first.
    ///
    /// # Cost
    /// With its owner in the same block: the payload and 2 bytes, or 3 if it is not right before;
    /// 8 less where the payload begins with the sequence number, little-endian; and one less again if it
    /// is right before, and 1 to 15 bytes of the payload remain.
    pub fn add_hidden(&mut self, key: KeyRef<'_>, payload: &[u8]) -> Result<()> {
        check_lengths(key, payload)?;
        let suffix = &self.properties.hidden_suffix;
        let suffix_len = suffix.len();
        assert!(
            suffix_len > 0 && key.user.len() > suffix_len && key.user.ends_with(suffix),
            "a hidden key has the suffix: {key:?}"
        );
        assert!(key.trailer.kind() == Some(EntryKind::Tombstone), "hidden entries are tombstones");
        assert!(self.smallest.is_some(), "a hidden entry has an owner before it");
        let is_new_user_key = self.check_order(key);
        let grown = self.block.payload_bytes() + BlockBuilder::hidden_bytes_max(key, payload.len());
        self.make_room(grown, false)?;
        if self.block.is_empty() {
            self.begin_block(key);
        }
        self.block.add_hidden(key, suffix_len, payload);
        self.set_last(is_new_user_key, key, true);
        self.properties.hidden += 1;
        Ok(())
    }

    /// Adds the hidden entry of the visible entry that was added last.
    ///
    /// # Errors
    /// As [`SstWriter::add`].
    ///
    /// # Cost
    /// Copies the payload. The key is not looked at.
    #[inline]
    pub fn add_hidden_beside(&mut self, key: &[u8], seq: SeqNo, payload: &[u8]) -> Result<()> {
        let suffix_len = self.properties.hidden_suffix.len();
        let is_first = suffix_len > 0 && !self.last_is_hidden && !self.is_hidden_beside;
        let is_its_own =
            key.len() == self.last_user.len() + suffix_len && seq == self.last_trailer.seq();
        assert!(is_first && is_its_own, "a hidden entry beside another is that one's: {key:?}");
        debug_assert!(key.starts_with(&self.last_user), "its key begins with that one's");
        // Most payloads have no chance of being too long.
        let is_short = payload.len() <= SHORT_PAYLOAD_BYTES
            && self.block.payload_bytes() <= self.options.block_bytes as usize;
        // An empty block: the last one has ended behind a large value.
        if !is_short || self.block.is_empty() {
            return self.add_hidden(KeyRef::new(key, hidden_trailer(seq)), payload);
        }
        self.block.add_hidden_beside(seq, payload);
        self.is_hidden_beside = true;
        self.properties.hidden += 1;
        Ok(())
    }

    /// Sets the bytes that the key of every hidden entry has beyond its owner's. To be called
    /// before the first entry by whoever adds hidden ones.
    ///
    /// # Panics
    /// After an entry; if the suffix is empty or longer than 16 bytes.
    pub fn set_hidden_suffix(&mut self, suffix: &[u8]) {
        assert!(self.smallest.is_none(), "the hidden suffix is set before the first entry");
        assert!((1..=HIDDEN_SUFFIX_BYTES_MAX).contains(&suffix.len()), "1 to 16 bytes of suffix");
        self.properties.hidden_suffix = suffix.to_vec();
        self.block.expect_hidden();
    }
}
