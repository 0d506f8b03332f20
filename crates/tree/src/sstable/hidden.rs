//! Hidden entries: the form of a compaction filter's entries in a data block.
//!
//! A hidden entry belongs to a visible entry, its owner. Its key is the owner's user key with the
//! table's hidden suffix. Its trailer has the owner's sequence number and the kind tombstone.
//! `block_builder.rs` writes it, `block_check.rs` checks it, and `raw.rs` shows it as an entry.
//!
//! Nearly every block has one hidden entry right after each visible one, with a payload of the same
//! short length. The payloads then lie in a column after the entries, and nothing else of them is
//! stored:
//!
//! ```text
//! size   name      meaning
//! width  payload   of the hidden entry of the first visible one, "left out" as below
//! ..               and so on, one for each visible entry
//! ```
//!
//! `width` is in the tail of the block (`block.rs`), and 1 to 15. Plain readers do not come by, and
//! compression, which could save nothing, leaves the column as it is (`compression.rs`). Tables with a column
//! have the feature `HAS_HIDDEN_COLUMN` (`footer.rs`).
//!
//! In any other block, hidden entries lie in their sort order among the visible ones, and plain readers
//! pass over them. They have one of three forms.
//!
//! Near form, where the owner is in the same block:
//!
//! ```text
//! size    name     meaning
//! 1       header   0x30; with 0x40 if the sequence number is left out; with 0x80 if `back` is 1
//!                  and left out, as a writer does
//! varint  back     the owner is this many visible entries before; at least 1
//! varint  payload  length of the payload as stored
//! ..      payload
//! ```
//!
//! Short form, a near form with all of that left out, in tables with the feature `HAS_SHORT_HIDDEN`
//! (`footer.rs`):
//!
//! ```text
//! size    name     meaning
//! 1       header   0xf0 plus the length of the payload as stored, 1 to 15
//! ..      payload
//! ```
//!
//! Plain form, for all others:
//!
//! ```text
//! size    name     meaning
//! 1       header   0x10, or 0x50 if the sequence number is left out
//! varint  shared   0
//! varint  key      length of the whole key, suffix included
//! varint  payload  length of the payload as stored
//! varint  seq      sequence number less the block's base_seq
//! ..      key
//! ..      payload
//! ```
//!
//! "Left out": the payload begins with the owner's sequence number as 8 bytes, little-endian. They
//! are not stored, because the entry has that number already. A writer leaves them out wherever it
//! can.

use std::cmp::Ordering;
use std::ops::Range;

use crate::codec::{put_varint, varint_at};
use crate::hooks::NOTED_BYTES_MAX;
use crate::types::{EntryKind, SeqNo, Trailer};

use super::block_entry::Head;

/// The header of the usual hidden entry: near, with `back` and the sequence number left out. A length in
/// its low bits makes it a short one.
const USUAL: u8 = HIDDEN_BIT | NEAR_BIT | SEQ_LEFT_OUT_BIT | BACK_LEFT_OUT_BIT;
/// The longest payload of the short form.
const SHORT_BYTES_MAX: usize = 15;
/// In the header of every hidden entry.
pub(super) const HIDDEN_BIT: u8 = 0x10;
/// The owner is in the same block, and key and sequence number are implied.
const NEAR_BIT: u8 = 0x20;
/// The payload begins with the sequence number, which is left out.
const SEQ_LEFT_OUT_BIT: u8 = 0x40;
/// The owner is the visible entry before, and that is not said.
const BACK_LEFT_OUT_BIT: u8 = 0x80;
/// Most bytes that a stored hidden entry has beyond key and payload.
pub(super) const HIDDEN_HEAD_BYTES_MAX: usize = 1 + 15 + 8;
/// Bytes of a sequence number at the front of a payload.
const SEQ_BYTES: usize = 8;

/// The place of a hidden entry's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The key of the visible entry this many before, with the suffix.
    Near(usize),
    /// A stored key: start, length, and the sequence number less the block's base.
    Plain(usize, usize, u64),
}

/// The places of the hidden entries of a block.
#[derive(Clone)]
pub(super) enum HiddenEntries {
    /// There are none.
    None,
    /// Among the visible ones, at these offsets.
    Mixed(Box<[u32]>),
    /// Each visible entry has one directly after it.
    Column(HiddenColumn),
}

/// The payloads of hidden entries that lie after all entries of a block, one for each visible entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HiddenColumn {
    /// Offset in the payload of the block.
    pub start: usize,
    /// Bytes of each, 1 to 15.
    pub width: usize,
}

impl HiddenColumn {
    /// The column at `start`. `None` if no column has this width.
    #[inline]
    pub(super) fn at(start: usize, width: usize) -> Option<HiddenColumn> {
        is_short(width).then_some(HiddenColumn { start, width })
    }

    /// Range of the payload that belongs to visible entry `i`.
    #[inline]
    pub(super) fn payload(&self, i: usize) -> Range<usize> {
        let start = self.start + i * self.width;
        start..start + self.width
    }

    /// The hidden entry of visible entry `i`.
    #[inline]
    pub(super) fn head(&self, i: usize) -> HiddenHead {
        HiddenHead { owner: Owner::Near(1), lacks_seq: true, payload: self.payload(i) }
    }
}

/// A hidden entry as it lies in a block.
#[derive(Clone, Debug)]
pub(super) struct HiddenHead {
    pub owner: Owner,
    /// `true` if the payload lacks the sequence number in front.
    lacks_seq: bool,
    /// Range of the payload; not yet held against the end of the entries.
    pub payload: Range<usize>,
}

impl HiddenHead {
    /// Decodes the hidden entry at `at`.
    #[inline]
    pub(super) fn decode(bytes: &[u8], at: usize) -> Option<HiddenHead> {
        if let Some(payload) = HiddenHead::usual_payload(bytes, at) {
            return Some(HiddenHead { owner: Owner::Near(1), lacks_seq: true, payload });
        }
        // After the usual ones, which include all headers with a length in their low bits.
        let header = *bytes.get(at)?;
        let lacks_seq = header & SEQ_LEFT_OUT_BIT != 0;
        let lacks_back = header & BACK_LEFT_OUT_BIT != 0;
        match header & !(SEQ_LEFT_OUT_BIT | BACK_LEFT_OUT_BIT) {
            near if near == HIDDEN_BIT | NEAR_BIT => {
                let (back, back_len) = if lacks_back { (1, 0) } else { varint_at(bytes, at + 1)? };
                let (len, len_len) = varint_at(bytes, at + 1 + back_len)?;
                let start = at + 1 + back_len + len_len;
                // Checked, because repairs decode bytes that no checksum has confirmed.
                let payload = start..start.checked_add(usize::try_from(len).ok()?)?;
                let owner = Owner::Near(usize::try_from(back).ok()?);
                Some(HiddenHead { owner, lacks_seq, payload })
            }
            HIDDEN_BIT if !lacks_back => {
                let head = Head::decode(bytes, at)?;
                // A hidden entry that has its own key never shares a part of it, so this is damage.
                if head.shared != 0 {
                    return None;
                }
                let start = head.suffix.checked_add(head.suffix_len)?;
                let payload = start..start.checked_add(head.value_len)?;
                let owner = Owner::Plain(head.suffix, head.suffix_len, head.delta);
                Some(HiddenHead { owner, lacks_seq, payload })
            }
            _ => None,
        }
    }

    /// Returns the end of the hidden entry at `at`, if it belongs to the entry before and is short. The
    /// caller compares it with the end of the entries.
    #[inline]
    pub(super) fn usual_end(bytes: &[u8], at: usize) -> Option<usize> {
        let [header, len, ..] = *bytes.get(at..)? else { return None };
        if header > USUAL {
            return Some(at + 1 + usize::from(header - USUAL));
        }
        // Only a length of one byte is usual.
        let is_usual = header & !SEQ_LEFT_OUT_BIT == USUAL & !SEQ_LEFT_OUT_BIT && len < 0x80;
        is_usual.then_some(at + 2 + usize::from(len))
    }

    /// The payload of the hidden entry at `at` without its sequence number, if that is left out, and the
    /// entry belongs to the entry before and is short. The caller compares its end with that of the
    /// entries.
    #[inline]
    pub(super) fn usual_payload(bytes: &[u8], at: usize) -> Option<Range<usize>> {
        let [header, len, ..] = *bytes.get(at..)? else { return None };
        if header > USUAL {
            return Some(at + 1..at + 1 + usize::from(header - USUAL));
        }
        (header == USUAL && len < 0x80).then_some(at + 2..at + 2 + usize::from(len))
    }

    /// Length of the whole payload, in bytes.
    pub(super) fn payload_len(&self) -> usize {
        self.payload.len() + if self.lacks_seq { SEQ_BYTES } else { 0 }
    }

    /// The payload after its first 8 bytes, if it has so many. A writer leaves those out if they
    /// are the sequence number.
    #[inline]
    pub(super) fn after_seq<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let stored = &bytes[self.payload.clone()];
        if self.lacks_seq { Some(stored) } else { stored.get(SEQ_BYTES..) }
    }

    /// Puts the whole payload of the entry with sequence number `seq` into `out`.
    #[inline]
    pub(super) fn expand(&self, bytes: &[u8], seq: SeqNo, out: &mut Vec<u8>) {
        out.clear();
        if self.lacks_seq {
            out.extend_from_slice(&seq.get().to_le_bytes());
        }
        out.extend_from_slice(&bytes[self.payload.clone()]);
    }
}

/// Appends a hidden entry to the payload of a block.
pub(super) fn put_hidden(
    out: &mut Vec<u8>,
    key: &[u8],
    seq: SeqNo,
    base_seq: SeqNo,
    back: Option<usize>,
    payload: &[u8],
) {
    let seq_bytes = seq.get().to_le_bytes();
    // The usual form has neither key nor sequence number: both follow from the entry before.
    if let Some(back) = back {
        put_near(out, seq_bytes, back, payload);
        return;
    }
    let rest = payload.strip_prefix(&seq_bytes);
    let left_out = if rest.is_some() { SEQ_LEFT_OUT_BIT } else { 0 };
    let stored = rest.unwrap_or(payload);
    let delta = seq.get().checked_sub(base_seq.get());
    out.push(HIDDEN_BIT | left_out);
    put_varint(out, 0);
    put_varint(out, key.len() as u64);
    put_varint(out, stored.len() as u64);
    put_varint(out, delta.expect("no entry is older than the base sequence"));
    out.extend_from_slice(key);
    out.extend_from_slice(stored);
}

/// Appends a hidden entry to the payload of a block, right after its owner, in the short form.
pub(super) fn put_short_hidden(out: &mut Vec<u8>, payload: &[u8]) {
    assert!(is_short(payload.len()), "it has the short form");
    out.push(USUAL | payload.len() as u8);
    out.extend_from_slice(payload);
}

/// The payload of a hidden entry without its sequence number, if its owner is right before it and it is short.
pub(super) fn short_payload(seq: SeqNo, back: Option<usize>, payload: &[u8]) -> Option<&[u8]> {
    let rest = payload.strip_prefix(&seq.get().to_le_bytes())?;
    (back == Some(1) && is_short(rest.len())).then_some(rest)
}

fn is_short(len: usize) -> bool {
    (1..=SHORT_BYTES_MAX).contains(&len)
}

const _: () = assert!(NOTED_BYTES_MAX == SHORT_BYTES_MAX, "each has the short form");

/// Appends a hidden entry whose owner is `back` visible entries before.
fn put_near(out: &mut Vec<u8>, seq: [u8; SEQ_BYTES], back: usize, payload: &[u8]) {
    // Any payload that begins so is shortened: a reader puts the same 8 bytes back.
    let rest = payload.strip_prefix(&seq);
    let left_out = if rest.is_some() { SEQ_LEFT_OUT_BIT } else { 0 };
    let stored = rest.unwrap_or(payload);
    let back_left_out = if back == 1 { BACK_LEFT_OUT_BIT } else { 0 };
    out.push(HIDDEN_BIT | NEAR_BIT | left_out | back_left_out);
    if back != 1 {
        put_varint(out, back as u64);
    }
    put_varint(out, stored.len() as u64);
    out.extend_from_slice(stored);
}

/// The trailer of a hidden entry.
pub(super) fn hidden_trailer(seq: SeqNo) -> Trailer {
    Trailer::new(seq, EntryKind::Tombstone)
}

/// A key in pieces, for the check of the order in a block.
#[derive(Clone, Copy)]
pub(super) struct KeyPieces<'a> {
    pub pieces: [&'a [u8]; 3],
    pub trailer: Trailer,
    /// The 8 bytes after the block's common prefix, if the key is known to have that.
    pub word: Option<u64>,
}

impl KeyPieces<'_> {
    /// Returns `true` if the key sorts after `last`; all do where there is none.
    pub(super) fn is_after(&self, last: Option<&KeyPieces<'_>>) -> bool {
        last.is_none_or(|last| last.order(self).is_lt())
    }

    /// Internal order.
    pub(super) fn order(&self, other: &KeyPieces<'_>) -> Ordering {
        let words = match (self.word, other.word) {
            // Equal words say nothing, and without both there is nothing to compare: the pieces
            // decide.
            (Some(a), Some(b)) => a.cmp(&b),
            _ => Ordering::Equal,
        };
        words
            .then_with(|| compare_pieces(self.pieces, other.pieces))
            .then_with(|| other.trailer.cmp(&self.trailer))
    }
}

/// Order of two strings in three pieces each.
fn compare_pieces(mut a: [&[u8]; 3], mut b: [&[u8]; 3]) -> Ordering {
    let mut i = 0;
    let mut j = 0;
    loop {
        while i < 3 && a[i].is_empty() {
            i += 1;
        }
        while j < 3 && b[j].is_empty() {
            j += 1;
        }
        if i == 3 || j == 3 {
            // The longer string is the greater one.
            return (i < 3).cmp(&(j < 3));
        }
        let len = a[i].len().min(b[j].len());
        let order = a[i][..len].cmp(&b[j][..len]);
        if order != Ordering::Equal {
            return order;
        }
        a[i] = &a[i][len..];
        b[j] = &b[j][len..];
    }
}
