//! The hidden entries of a table that is written. `sstable/hidden.rs` describes their bytes.

use super::{FORBIDDEN_BYTES_MAX, SstWriter, check_lengths};
use crate::error::Result;
use crate::hooks::BesidePayload;
use crate::limits::INTERNAL_KEY_BYTES_MAX;
use crate::sstable::block_builder::BlockBuilder;
use crate::sstable::hidden::hidden_trailer;
use crate::sstable::properties::HIDDEN_SUFFIX_BYTES_MAX;
use crate::types::{EntryKind, KeyRef};

/// Behind a block that has no more than so many bytes beyond its usual size, a hidden entry beside its
/// owner passes no limit.
const SHORT_BLOCK_BYTES_MAX: usize = FORBIDDEN_BYTES_MAX - (128 << 10);
const _: () = assert!(INTERNAL_KEY_BYTES_MAX + BesidePayload::BYTES_MAX < 100 << 10, "it has room");

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
    /// # Panics
    /// If the last entry is hidden, or has a hidden entry already, or there is no suffix.
    ///
    /// # Cost
    /// Copies the payload. The key is implied.
    #[inline]
    pub fn add_hidden_beside(&mut self, payload: BesidePayload) -> Result<()> {
        let has_suffix = !self.properties.hidden_suffix.is_empty();
        let is_first = has_suffix && !self.last_is_hidden && !self.is_hidden_beside;
        assert!(is_first, "a hidden entry lies beside a visible one, and alone");
        let short_bytes_max = self.options.block_bytes as usize + SHORT_BLOCK_BYTES_MAX;
        // An empty block: the last one has ended behind a large value.
        if self.block.is_empty() || self.block.payload_bytes() > short_bytes_max {
            return self.add_hidden_behind(payload);
        }
        self.block.add_hidden_beside(payload);
        self.is_hidden_beside = true;
        self.properties.hidden += 1;
        Ok(())
    }

    /// Adds the hidden entry of the last entry, where a block may end between the two.
    #[cold]
    fn add_hidden_behind(&mut self, payload: BesidePayload) -> Result<()> {
        let seq = self.last_trailer.seq();
        let key = [&self.last_user[..], &self.properties.hidden_suffix[..]].concat();
        let payload = [&seq.get().to_le_bytes()[..], payload.as_bytes()].concat();
        self.add_hidden(KeyRef::new(&key, hidden_trailer(seq)), &payload)
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
