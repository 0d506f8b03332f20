//! The hidden entries of a table that is written. `sstable/hidden.rs` describes their bytes.

use std::sync::Arc;

use super::{SstWriter, check_lengths};
use crate::error::Result;
use crate::hooks::{EndedBlock, NoteForm};
use crate::sstable::block_builder::BlockBuilder;
use crate::sstable::properties::HIDDEN_SUFFIX_BYTES_MAX;
use crate::types::{EntryKind, KeyRef};

impl SstWriter {
    /// Adds a hidden entry after the last. Its key is that of its owner, an entry before it, with
    /// the hidden suffix; its trailer the owner's sequence number and the kind tombstone.
    ///
    /// It belongs to what is before it: no block ends in front of it unless that passes the bound
    /// of [`SstWriter::allow_cut`].
    ///
    /// # Errors
    /// As [`SstWriter::add`].
    ///
    /// # Panics
    /// If the key is not after the last one, is no tombstone, lacks the suffix, or is the first.
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
            suffix_len > 0 && key.user.ends_with(suffix),
            "a hidden key has the suffix: {key:?}"
        );
        assert!(key.trailer.kind() == Some(EntryKind::Tombstone), "hidden entries are tombstones");
        assert!(self.smallest.is_some(), "a hidden entry has an owner before it");
        let is_new_user_key = self.check_order(key);
        self.make_payloads()?;
        let bytes = BlockBuilder::hidden_bytes_max(key, payload.len());
        self.make_room(bytes, false)?;
        if self.block.is_empty() {
            self.begin_block(key, bytes);
        }
        let owner = &key.user[..key.user.len() - suffix_len];
        let last = self.last.visible();
        let is_of_last = last.trailer.seq() == key.trailer.seq() && last.user == owner;
        self.block.add_hidden(key, suffix_len, payload, is_of_last);
        self.last.set(is_new_user_key, key, true);
        self.properties.hidden += 1;
        Ok(())
    }

    /// Adds the hidden entry of the visible entry that was added last, with the payload of this note. Returns
    /// `false` if the entry is in no block that is open and short enough: then there is no hidden entry.
    ///
    /// # Errors
    /// As [`SstWriter::add`], and those of the form of notes.
    ///
    /// # Panics
    /// If the last entry is hidden, or has a hidden entry already. A form of notes has been set.
    ///
    /// # Cost
    /// Keeps the note. Payloads are made when the block ends; their keys are implied.
    #[inline]
    pub fn note(&mut self, note: u64) -> Result<bool> {
        let is_first = !self.last.is_hidden && !self.last.has_short_hidden;
        assert!(is_first, "only one hidden entry follows a visible one");
        debug_assert!(self.notes.form.is_some(), "notes have a form");
        if self.is_long {
            return Ok(false);
        }
        if !self.block.note(note, self.notes.bytes) {
            self.note_among_entries(note)?;
        }
        self.last.has_short_hidden = true;
        self.properties.hidden += 1;
        Ok(true)
    }

    #[cold]
    fn note_among_entries(&mut self, note: u64) -> Result<()> {
        self.make_payloads()?;
        let form = self.notes.form.as_deref().expect("notes have a form");
        self.block.note_among_entries(note, form)
    }

    /// Takes the hidden entry that was added last back, which came by this note.
    ///
    /// # Panics
    /// If the last entry has no such hidden entry.
    pub fn take_back_note(&mut self, note: u64) {
        assert!(std::mem::take(&mut self.last.has_short_hidden), "the last entry was noted");
        self.block.take_back_note(note, self.notes.bytes);
        self.properties.hidden -= 1;
    }

    /// Makes the payloads of the notes in the block.
    pub(super) fn make_payloads(&mut self) -> Result<()> {
        match &self.notes.form {
            Some(form) => self.block.make_payloads(&**form),
            None => Ok(()),
        }
    }

    /// Lists the block under way as ended, its notes with it.
    pub(super) fn list_ended(&mut self, is_forced: bool) {
        if self.block.expects_hidden() {
            let (notes, sum_of_notes) = self.block.noted();
            self.notes.ended.push(EndedBlock { notes, sum_of_notes, is_forced });
        }
    }

    /// Sets the form of the hidden entries that are made of notes. To be called after
    /// [`SstWriter::set_hidden_suffix`].
    ///
    /// # Panics
    /// After an entry, or without a suffix.
    pub fn set_note_form(&mut self, form: Arc<dyn NoteForm>) {
        assert!(
            self.block.expects_hidden() && self.smallest.is_none(),
            "it comes after the suffix"
        );
        self.notes.bytes = form.payload_bytes();
        self.notes.form = Some(form);
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
