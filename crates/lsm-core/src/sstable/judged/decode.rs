//! The entries of a data block, decoded from the front by nothing but their own bytes.
//!
//! The walk of a job uses it for sound blocks, and repairs for damaged ones. It takes the entries
//! that make sense, and says if they are the whole block.

use std::ops::Range;

use crate::limits::{FORMAT_VALUE_BYTES_MAX, INTERNAL_KEY_BYTES_MAX};
use crate::sstable::block_entry::{Head, KIND_BITS, RESTART_ENTRIES};
use crate::sstable::block_tail::BlockTail;
use crate::sstable::hidden::{HIDDEN_BIT, HiddenColumn, HiddenHead, Owner};
use crate::sstable::reader::SstReader;
use crate::types::{EntryKind, KeyRef, SeqNo, Trailer};

/// A visible entry. Ranges are those of the block's payload.
#[derive(Clone, Debug)]
pub(super) struct DecodedSlot {
    /// The end of its key among all keys; it begins where the one before ends.
    pub key_end: usize,
    pub trailer: Trailer,
    pub value: Range<usize>,
    /// The payload of its hidden entry without its sequence number, if that lies among the entries.
    hidden: Option<Range<usize>>,
    /// The index in the block, hidden entries counted.
    pub index: u32,
}

/// The places of the pieces of an entry, for repairs.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    pub start: usize,
    pub shared: Range<usize>,
    pub suffix: Range<usize>,
    pub hidden_at: Range<usize>,
}

/// The entries of one block; its buffers stay.
#[derive(Default)]
pub(super) struct Decoder {
    pub slots: Vec<DecodedSlot>,
    keys: Vec<u8>,
    /// The column of hidden entries, and how many of the slots have one in it.
    column: Option<(HiddenColumn, usize)>,
    /// The judge's notes on the slots.
    pub notes: Vec<u64>,
    /// Only if they are wanted.
    pub pieces: Option<Vec<Pieces>>,
}

impl Decoder {
    /// One that remembers where the pieces of entries lie.
    pub(super) fn with_pieces() -> Decoder {
        Decoder { pieces: Some(Vec::new()), ..Decoder::default() }
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.keys.clear();
        self.column = None;
        self.notes.clear();
        if let Some(pieces) = &mut self.pieces {
            pieces.clear();
        }
    }

    /// The key of an entry.
    #[inline]
    pub(super) fn key(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.slots[at - 1].key_end };
        &self.keys[start..self.slots[at].key_end]
    }

    /// The payload of the hidden entry of slot `at` without its sequence number, if that lies in the block.
    #[inline]
    pub(super) fn hidden(&self, at: usize) -> Option<Range<usize>> {
        match &self.column {
            Some((column, entries)) => (at < *entries).then(|| column.payload(at)),
            None => self.slots[at].hidden.clone(),
        }
    }

    /// The column of hidden entries, if each slot has one in it: its range, and the bytes of each.
    pub(super) fn whole_column(&self) -> Option<(Range<usize>, usize)> {
        let (column, entries) = self.column.filter(|(_, entries)| *entries == self.slots.len())?;
        Some((column.start..column.start + entries * column.width, column.width))
    }

    /// Adds an entry whose bytes lie elsewhere, with the judge's note on it.
    pub(super) fn push(
        &mut self,
        key: KeyRef<'_>,
        value: Range<usize>,
        hidden: Option<Range<usize>>,
        index: u32,
        note: u64,
    ) {
        self.keys.extend_from_slice(key.user);
        let trailer = key.trailer;
        self.slots.push(DecodedSlot { key_end: self.keys.len(), trailer, value, hidden, index });
        self.notes.push(note);
    }

    /// Takes in the entries of `payload`; whether that is all of it.
    pub(super) fn decode(&mut self, payload: &[u8], reader: &SstReader) -> bool {
        self.clear();
        self.walk(payload, reader.hidden_suffix()).is_some()
    }

    fn walk(&mut self, payload: &[u8], suffix: Option<&[u8]>) -> Option<()> {
        let tail = BlockTail::of(payload)?;
        let has_column = tail.width > 0;
        if has_column {
            suffix?;
        }
        let mut at = 0;
        let mut restart = 0..0;
        let mut index = 0;
        let is_whole = loop {
            if at >= tail.start {
                break false;
            }
            // The bit alone decides: a damaged one makes the rest fail to decode, or the judge
            // refuse it. Beside a column no hidden entry lies among the visible ones.
            let end = if payload[at] & HIDDEN_BIT != 0 && !has_column {
                self.take_hidden(payload, at, tail.start, suffix)
            } else {
                self.visible(payload, at, &tail, &mut restart, index)
            };
            let Some(end) = end else { break false };
            at = end;
            // An entry with a hidden one in the column counts twice.
            index += if has_column { 2 } else { 1 };
            if tail.are_all(self.slots.len(), at) {
                break true;
            }
        };
        if has_column {
            self.take_column(&tail, at, is_whole)?;
        }
        is_whole.then_some(())
    }

    /// Takes in the column behind the entries, which end at `end`.
    fn take_column(&mut self, tail: &BlockTail, end: usize, is_whole: bool) -> Option<()> {
        let column = tail.column_behind(end, is_whole)?;
        // Of a wrong number of entries, the payloads of the last ones would lie behind the column.
        let entries = self.slots.len().min((tail.start - column.start) / column.width);
        self.column = Some((column, entries));
        if let Some(pieces) = &mut self.pieces {
            for (i, pieces) in pieces.iter_mut().enumerate().take(entries) {
                pieces.hidden_at = column.payload(i);
            }
        }
        Some(())
    }

    #[inline]
    fn visible(
        &mut self,
        payload: &[u8],
        at: usize,
        tail: &BlockTail,
        restart: &mut Range<usize>,
        index: u32,
    ) -> Option<usize> {
        let head = Head::decode(payload, at)?;
        let suffix = head.suffix..head.suffix.checked_add(head.suffix_len)?;
        let value = suffix.end..suffix.end.checked_add(head.value_len)?;
        let is_restart = self.slots.len().is_multiple_of(RESTART_ENTRIES as usize);
        // Lengths are added with checks: in a damaged block each of them may be any number.
        let key_len = head.shared.checked_add(head.suffix_len)?;
        let is_possible = value.end <= tail.start
            && head.header & !KIND_BITS == 0
            && (1..=INTERNAL_KEY_BYTES_MAX).contains(&key_len)
            // No writer makes a longer value, so this is damage even where the block has room for
            // it.
            && head.value_len as u64 <= FORMAT_VALUE_BYTES_MAX
            && if is_restart { head.shared == 0 } else { head.shared <= restart.len() };
        if !is_possible {
            return None;
        }
        let kind = EntryKind::from_u8(head.header)?;
        let seq = tail.base_seq.checked_add(head.delta).and_then(SeqNo::new)?;
        if is_restart {
            *restart = suffix.clone();
        }
        let shared = restart.start..restart.start + head.shared;
        self.keys.extend_from_slice(&payload[shared.clone()]);
        self.keys.extend_from_slice(&payload[suffix.clone()]);
        let key_end = self.keys.len();
        let trailer = Trailer::new(seq, kind);
        let end = value.end;
        self.slots.push(DecodedSlot { key_end, trailer, value, hidden: None, index });
        if let Some(pieces) = &mut self.pieces {
            pieces.push(Pieces { start: at, shared, suffix, hidden_at: end..end });
        }
        Some(end)
    }

    /// Takes in a hidden entry, for its owner if that is in the block.
    #[inline]
    fn take_hidden(
        &mut self,
        payload: &[u8],
        at: usize,
        tail: usize,
        suffix: Option<&[u8]>,
    ) -> Option<usize> {
        suffix?;
        // What MetaHive writes: right behind its owner, and short.
        if let Some(stored) = HiddenHead::usual_payload(payload, at)
            && stored.end <= tail
            && self.pieces.is_none()
        {
            let end = stored.end;
            self.slots.last_mut()?.hidden = Some(stored);
            return Some(end);
        }
        let head = HiddenHead::decode(payload, at)?;
        // The length comes from bytes that no checksum has confirmed.
        if head.payload.end > tail {
            return None;
        }
        if let Owner::Near(back) = head.owner {
            // The distance comes from the bytes and may lead before the first entry.
            let owner = self.slots.len().checked_sub(back)?;
            let slot = self.slots.get_mut(owner)?;
            let behind = head.behind_seq(payload);
            slot.hidden = behind.map(|behind| head.payload.end - behind.len()..head.payload.end);
            if let Some(pieces) = &mut self.pieces {
                pieces[owner].hidden_at = at..head.payload.end;
            }
        }
        Some(head.payload.end)
    }
}
