//! [`BlockBuilder`]: fills the payload of a data or index block. Used by the table writer alone;
//! `block.rs` describes the bytes.
//!
//! Invariant: keys, hidden ones included, arrive in strictly ascending internal order. The caller
//! has checked that.

use std::cmp::Ordering;

use crate::codec::{put_u32, put_u64, put_varint};
use crate::error::Result;
use crate::hooks::NoteForm;
use crate::types::{EntryKind, KeyRef, SeqNo, Trailer};

use super::block_entry::{Head, PrefixedKey, RESTART_ENTRIES, compare_tails};
use super::block_search::common_len;
use super::block_tail::{TAIL_BYTES, put_common};
use super::hidden::{HIDDEN_HEAD_BYTES_MAX, put_hidden, put_short_hidden, short_payload};

/// A block under construction.
#[derive(Default)]
pub(super) struct BlockBuilder {
    base_seq: SeqNo,
    payload: Vec<u8>,
    /// Offset of each restart entry.
    restarts: Vec<u32>,
    /// Range of the present restart key in the payload.
    restart_key: std::ops::Range<usize>,
    /// Range of the first key in the payload.
    first_key: std::ops::Range<usize>,
    /// Visible entries.
    count: u32,
    /// The key of each visible entry, once hidden ones lie among them.
    owners: Vec<KeyOffsets>,
    has_hidden: bool,
    /// The payloads of hidden entries as long as each visible entry has one: see `hidden.rs`.
    column: Vec<u8>,
    /// Notes on the entries after those, whose payloads are still to be made.
    notes: Vec<u64>,
    /// Number of both, and bytes of each payload.
    column_entries: u32,
    column_width: usize,
    /// Hidden entries of this block lie among the visible ones, because one of them fits no column.
    is_mixed: bool,
    /// A block with a column was finished.
    had_column: bool,
    /// Bytes of the hidden entries, in the form in which they lie among the visible ones.
    hidden_bytes: usize,
    /// Number and sum of the notes whose payloads are made.
    noted: u64,
    sum_of_notes: u64,
}

/// A key in the payload of a block under construction.
struct KeyOffsets {
    /// The offset at which the entry begins.
    start: usize,
    /// The offset of its restart key.
    restart: usize,
    shared: usize,
    suffix: usize,
    suffix_len: usize,
    trailer: Trailer,
}

impl BlockBuilder {
    /// An empty block. No entry is older than `base_seq`.
    pub(super) fn new(base_seq: SeqNo) -> BlockBuilder {
        BlockBuilder { base_seq, ..BlockBuilder::default() }
    }

    /// Hidden entries may come: remember where their owners lie.
    pub(super) fn expect_hidden(&mut self) {
        self.has_hidden = true;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    /// Number of visible entries.
    pub(super) fn entries(&self) -> u32 {
        self.count
    }

    /// Bytes of the payload if it were finished now, with hidden entries among the visible ones: then it
    /// does not grow where a column must be given up.
    pub(super) fn payload_bytes(&self) -> usize {
        let in_column = if self.is_mixed { 0 } else { self.hidden_bytes };
        self.payload.len() + in_column + 4 * self.restarts.len() + TAIL_BYTES
    }

    /// Returns `true` if a block with a column of hidden entries was finished.
    pub(super) fn had_column(&self) -> bool {
        self.had_column
    }

    /// Bytes of its hidden entries.
    pub(super) fn hidden_bytes(&self) -> usize {
        self.hidden_bytes
    }

    /// The most that an entry adds to the payload.
    pub(super) fn entry_bytes_max(key: KeyRef<'_>, value_len: usize) -> usize {
        // Header, three lengths of at most 5 bytes, a sequence of at most 8, a restart offset.
        1 + 15 + 8 + 4 + key.user.len() + value_len
    }

    /// The most that a hidden entry adds to the payload.
    pub(super) fn hidden_bytes_max(key: KeyRef<'_>, payload_len: usize) -> usize {
        HIDDEN_HEAD_BYTES_MAX + key.user.len() + payload_len
    }

    /// Appends a hidden entry, whose key is that of its owner and `suffix_len` bytes more. The owner is the
    /// last visible entry if `is_of_last`. Every earlier note has its payload.
    pub(super) fn add_hidden(
        &mut self,
        key: KeyRef<'_>,
        suffix_len: usize,
        payload: &[u8],
        is_of_last: bool,
    ) {
        let seq = key.trailer.seq();
        let back = if is_of_last && self.count > 0 {
            Some(1)
        } else {
            self.back_to(&key.user[..key.user.len() - suffix_len], seq)
        };
        if let Some(short) = short_payload(seq, back, payload) {
            if self.fits_column(short.len()) {
                self.column.extend_from_slice(short);
                self.count_in_column(short.len());
            } else {
                self.mix_short(short);
            }
            return;
        }
        self.mix();
        let start = self.payload.len();
        put_hidden(&mut self.payload, key.user, seq, self.base_seq, back, payload);
        self.hidden_bytes += self.payload.len() - start;
    }

    /// Notes the visible entry that was added last: its hidden entry will have the payload of this note, of
    /// `width` bytes. Returns `false` if it does not fit the column.
    #[inline]
    pub(super) fn note(&mut self, note: u64, width: usize) -> bool {
        if !self.fits_column(width) {
            return false;
        }
        self.notes.push(note);
        self.count_in_column(width);
        true
    }

    /// Makes the payloads of all notes.
    ///
    /// # Errors
    /// Those of the form.
    pub(super) fn make_payloads(&mut self, form: &dyn NoteForm) -> Result<()> {
        if self.notes.is_empty() {
            return Ok(());
        }
        self.noted += self.notes.len() as u64;
        self.sum_of_notes = self.notes.iter().fold(self.sum_of_notes, |a, b| a.wrapping_add(*b));
        form.put_payloads(&self.notes, &mut self.column)?;
        self.notes.clear();
        Ok(())
    }

    /// Appends the hidden entry that has the payload of this note after its owner, the last entry, among
    /// the entries. Every earlier note has its payload.
    ///
    /// # Errors
    /// Those of the form.
    #[cold]
    pub(super) fn note_among_entries(&mut self, note: u64, form: &dyn NoteForm) -> Result<()> {
        let mut payload = Vec::new();
        form.put_payloads(&[note], &mut payload)?;
        self.mix_short(&payload);
        self.noted += 1;
        self.sum_of_notes = self.sum_of_notes.wrapping_add(note);
        Ok(())
    }

    /// Takes back the last note, whose payload has `width` bytes. Nothing was added after it.
    pub(super) fn take_back_note(&mut self, note: u64, width: usize) {
        self.hidden_bytes -= 1 + width;
        if self.notes.pop().is_some() {
            self.column_entries -= 1;
        } else {
            assert!(
                self.is_mixed,
                "a payload in the column is made when nothing is taken back any more"
            );
            self.payload.truncate(self.payload.len() - 1 - width);
            self.noted -= 1;
            self.sum_of_notes = self.sum_of_notes.wrapping_sub(note);
        }
    }

    /// Number and sum of the notes whose payloads are made.
    pub(super) fn noted(&self) -> (u64, u64) {
        (self.noted, self.sum_of_notes)
    }

    /// Returns `true` if the next visible entry ends the column, because the last one has no hidden entry.
    #[inline]
    pub(super) fn ends_column(&self) -> bool {
        self.has_hidden && self.column_entries != self.count && !self.is_mixed
    }

    /// Returns `true` if a payload of `len` bytes of the last visible entry goes to the column.
    #[inline]
    fn fits_column(&self, len: usize) -> bool {
        let is_next = self.column_entries + 1 == self.count && !self.is_mixed;
        is_next && (self.count == 1 || self.column_width == len)
    }

    #[inline]
    fn count_in_column(&mut self, len: usize) {
        self.column_width = len;
        self.column_entries += 1;
        // As if it lay among the entries: see `payload_bytes`.
        self.hidden_bytes += 1 + len;
    }

    /// Appends a hidden entry after its owner, the last entry, among the entries.
    #[cold]
    fn mix_short(&mut self, payload: &[u8]) {
        self.mix();
        put_short_hidden(&mut self.payload, payload);
        self.hidden_bytes += 1 + payload.len();
    }

    /// From here on hidden entries lie among the visible ones, and those of the column go there.
    #[cold]
    fn mix(&mut self) {
        debug_assert!(self.notes.is_empty(), "their payloads are made first");
        self.is_mixed = true;
        self.place_owners();
        if self.column_entries == 0 {
            return;
        }
        let step = 1 + self.column_width;
        let column_entries = self.column_entries as usize;
        let old = std::mem::take(&mut self.payload);
        let mut payload = Vec::with_capacity(old.len() + column_entries * step);
        let mut start = 0;
        for (i, short) in self.column.chunks(self.column_width).enumerate() {
            let end = self.owners.get(i + 1).map_or(old.len(), |next| next.start);
            payload.extend_from_slice(&old[start..end]);
            put_short_hidden(&mut payload, short);
            start = end;
        }
        payload.extend_from_slice(&old[start..]);
        // Each entry moves by what is put after those in front of it.
        for (i, owner) in self.owners.iter_mut().enumerate() {
            owner.start += step * i.min(column_entries);
            owner.suffix += step * i.min(column_entries);
            owner.restart += step * first_of_group(i).min(column_entries);
        }
        for (i, restart) in self.restarts.iter_mut().enumerate() {
            *restart += (step * (i * RESTART_ENTRIES as usize).min(column_entries)) as u32;
        }
        let last_group = step * first_of_group(self.owners.len() - 1).min(column_entries);
        self.restart_key = self.restart_key.start + last_group..self.restart_key.end + last_group;
        self.payload = payload;
        self.column.clear();
        self.column_entries = 0;
    }

    /// Finds out where the visible entries lie, among which there is no hidden one yet.
    fn place_owners(&mut self) {
        if self.owners.len() == self.count as usize {
            return;
        }
        self.owners.clear();
        let end = self.payload.len();
        // What a head may load beyond it.
        self.payload.resize(end + TAIL_BYTES, 0);
        let mut start = 0;
        let mut restart = 0;
        while start < end {
            let head = Head::known(&self.payload, start);
            let Head { shared, suffix_len, suffix, value_len, delta, .. } = head;
            if first_of_group(self.owners.len()) == self.owners.len() {
                restart = suffix;
            }
            let seq = SeqNo::new(self.base_seq.get() + delta).expect("it was a sequence number");
            let kind = EntryKind::from_u8(head.header).expect("it was a kind");
            let trailer = Trailer::new(seq, kind);
            self.owners.push(KeyOffsets { start, restart, shared, suffix, suffix_len, trailer });
            start = suffix + suffix_len + value_len;
        }
        self.payload.truncate(end);
    }

    /// Returns by how many visible entries before the end the entry of `user` and `seq` lies, if it
    /// is here.
    fn back_to(&mut self, user: &[u8], seq: SeqNo) -> Option<usize> {
        self.place_owners();
        let at = self.owners.partition_point(|owner| self.order(owner, user, seq).is_lt());
        let found = self.owners.get(at)?;
        self.order(found, user, seq).is_eq().then(|| self.owners.len() - at)
    }

    fn joined(&self, placed: &KeyOffsets) -> PrefixedKey<'_> {
        let shared = &self.payload[placed.restart..placed.restart + placed.shared];
        let suffix = &self.payload[placed.suffix..placed.suffix + placed.suffix_len];
        PrefixedKey { shared, suffix }
    }

    /// Internal order of an entry against the entry of `user` and `seq`.
    fn order(&self, placed: &KeyOffsets, user: &[u8], seq: SeqNo) -> Ordering {
        let key = self.joined(placed);
        compare_tails(key.shared, key.suffix, user).then_with(|| seq.cmp(&placed.trailer.seq()))
    }

    /// Returns `true` if hidden entries may come.
    pub(super) fn expects_hidden(&self) -> bool {
        self.has_hidden
    }

    /// Appends an entry.
    pub(super) fn add(&mut self, key: KeyRef<'_>, value: &[u8]) {
        self.add_head(key, value.len());
        self.payload.extend_from_slice(value);
    }

    /// Completes the payload of a block whose only entry is this one, without its value. Returns what
    /// stands before the value and what stands after it.
    pub(super) fn finish_around_value(
        &mut self,
        key: KeyRef<'_>,
        value_len: usize,
    ) -> (&[u8], &[u8]) {
        assert!(self.is_empty(), "the entry is the only one");
        self.add_head(key, value_len);
        let value_at = self.payload.len();
        self.finish(key.user).split_at(value_at)
    }

    /// Appends an entry without its value.
    fn add_head(&mut self, key: KeyRef<'_>, value_len: usize) {
        if self.ends_column() {
            self.mix();
        }
        let kind = key.trailer.kind().expect("a written entry has a kind");
        let delta = key.trailer.seq().get().checked_sub(self.base_seq.get());
        let delta = delta.expect("no entry is older than the base sequence");
        // A restart at fixed intervals: the index of an entry tells which restart key it shares
        // bytes with, and nothing is stored for that.
        let is_restart = self.count.is_multiple_of(RESTART_ENTRIES);
        let shared = if is_restart {
            let at = u32::try_from(self.payload.len()).expect("blocks are far below 4 GiB");
            self.restarts.push(at);
            0
        } else {
            // Compared with the restart key and not with the neighbour, which may share more: any
            // entry is then rebuilt from two places.
            common_len(&self.payload[self.restart_key.clone()], key.user)
        };
        let suffix = &key.user[shared..];
        let head = self.payload.len();
        self.payload.push(kind as u8);
        put_varint(&mut self.payload, shared as u64);
        put_varint(&mut self.payload, suffix.len() as u64);
        put_varint(&mut self.payload, value_len as u64);
        // Relative to the base of the table, most sequence numbers take two or three bytes instead
        // of seven.
        put_varint(&mut self.payload, delta);
        let start = self.payload.len();
        self.payload.extend_from_slice(suffix);
        if is_restart {
            self.restart_key = start..self.payload.len();
            if self.count == 0 {
                self.first_key = self.restart_key.clone();
            }
        }
        if self.is_mixed {
            self.owners.push(KeyOffsets {
                start: head,
                restart: self.restart_key.start,
                shared,
                suffix: start,
                suffix_len: suffix.len(),
                trailer: key.trailer,
            });
        }
        self.count += 1;
    }

    /// Completes the payload. `last_key` is the user key of the last visible entry. No note is left to be
    /// without a payload.
    pub(super) fn finish(&mut self, last_key: &[u8]) -> &[u8] {
        assert!(!self.is_empty(), "a block has an entry");
        if self.column_entries > 0 && self.column_entries != self.count {
            self.mix();
        }
        self.had_column |= self.column_entries > 0;
        self.payload.extend_from_slice(&self.column);
        // Keys ascend, so what the first and the last share, all share.
        let common = if self.count == 0 {
            0
        } else {
            common_len(&self.payload[self.first_key.clone()], last_key)
        };
        for restart in &self.restarts {
            put_u32(&mut self.payload, *restart);
        }
        put_u64(&mut self.payload, self.base_seq.get());
        let width = if self.column_entries > 0 { self.column_width } else { 0 };
        put_u32(&mut self.payload, put_common(common, width));
        put_u32(&mut self.payload, self.count);
        &self.payload
    }

    /// Empties the builder for the next block.
    pub(super) fn clear(&mut self) {
        self.payload.clear();
        // One huge value must not stay allocated for the rest of the file.
        if self.payload.capacity() > 4 << 20 {
            self.payload.shrink_to(1 << 20);
        }
        self.restarts.clear();
        self.restart_key = 0..0;
        self.first_key = 0..0;
        self.count = 0;
        self.owners.clear();
        self.column.clear();
        self.column_entries = 0;
        self.is_mixed = false;
        self.hidden_bytes = 0;
        self.noted = 0;
        self.sum_of_notes = 0;
    }
}

/// The entry whose key the keys of the group of entry `i` share bytes with.
fn first_of_group(i: usize) -> usize {
    i - i % RESTART_ENTRIES as usize
}
