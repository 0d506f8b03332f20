//! Frames: one batch or one control record of the log, as bytes.
//!
//! The commit path encodes frames under its lock, so the work here is a header of some 30 bytes and
//! one copy per section; the checksums of sections are made before, outside any lock. `reader.rs`,
//! `lookahead.rs` and `survey.rs` decode frames. This file never looks into a section.
//!
//! ```text
//! size   name
//!    8   header checksum: XXH3-64 of the rest of the header, seeded with salt, epoch and offset
//!    1   kind
//!    v   length of the rest of the header after this number, in bytes
//!    v   length of the body (all sections), in bytes
//!    v   durable lag: this frame's LSN less the LSN up to which the log was known durable
//! kind 1, batch of one partition:
//!    v   first sequence
//!    v   operations
//!    v   gap: first sequence - 1 - previous logged sequence
//!    v   partition
//!    8   section checksum: XXH3-64
//! kind 2, batch of several partitions, with a header of at most 128 bytes (in segments of format
//! version 1, of any length):
//!    v   first sequence
//!    v   operations of all sections
//!    v   gap
//!    v   number of sections, then for each { v partition, v operations, v length, 8 checksum }
//! kind 7, batch of several partitions, with a longer header:
//!    8   short check: XXH3-64 of the header from the kind to here, seeded as the header checksum
//!        and with `SHORT_CHECK_SEED`; then as kind 2
//! kinds 3 to 6, control frames, without a body:
//!    v   last logged sequence before this frame
//!    8   salt of the segment, so that they verify when its header is lost
//!        3 memtable switch { v partition, v memtable }   4 idle marker { v manifest edit }
//!        5 clean close { v manifest edit }               6 epoch start { }
//!
//! then the body: the sections one after the other, and zeros up to a multiple of 8
//! ```
//!
//! Invariants:
//! 1. `v` is a varint in its shortest form: a frame has one encoding.
//! 2. The header checksum covers the directory, and so the sections' checksums: one word decides
//!    whether a header is believed, in 8-byte steps and without its body.
//! 3. Sequences are dense: a section begins where the operations of the sections before it end.
//! 4. Kinds are on disk: never renumbered, never reused.
//! 5. A seeded checksum of at most [`CHECKED_BYTES_MAX`] bytes decides if bytes are the front of a
//!    header. So a search for frames among arbitrary bytes costs a constant at each place.

mod decode;

pub(super) use decode::{DirectoryEntry, Fields, Prefix, decode_fields, verifies};

/// Returns `true` if `kind` may be the kind of a frame.
pub(super) fn is_kind(kind: u8) -> bool {
    (KIND_BATCH..=KIND_LONG_BATCH).contains(&kind)
}

use super::Lsn;
use crate::codec::{
    VARINT_BYTES_MAX, checksum64, checksum64_seeded, put_u64, put_varint, varint_len,
};
use crate::limits::{FORMAT_BATCH_BYTES_MAX, PARTITIONS_MAX};
use crate::types::{Epoch, MemtableId, PartitionId, SeqNo};

/// Frames begin at multiples of this many bytes.
pub const FRAME_ALIGNMENT: usize = 8;

const CHECKSUM_LEN: usize = 8;
const KIND_BATCH: u8 = 1;
const KIND_BATCH_OF_SEVERAL: u8 = 2;
const KIND_MEMTABLE_SWITCH: u8 = 3;
const KIND_IDLE_MARKER: u8 = 4;
const KIND_CLEAN_CLOSE: u8 = 5;
const KIND_EPOCH_START: u8 = 6;
const KIND_LONG_BATCH: u8 = 7;

/// Headers up to this length have one checksum; a longer one has a short check of its own.
pub(super) const CHECKED_BYTES_MAX: usize = 128;
/// Distinguishes the short check from the header checksum, which is seeded with the same place.
const SHORT_CHECK_SEED: u64 = 0x5851_f42d_4c95_7f2d;

/// Enough bytes for the fields before those of a kind.
pub(super) const PREFIX_BYTES_MAX: usize = CHECKSUM_LEN + 1 + 3 * VARINT_BYTES_MAX;
/// Longest header without a directory of several sections.
const SHORT_HEADER_BYTES_MAX: usize = PREFIX_BYTES_MAX + 4 * VARINT_BYTES_MAX + 8;
/// Longest entry of a directory: three numbers below 2^35 and a checksum.
const ENTRY_BYTES_MAX: usize = 3 * 5 + 8;
/// Longest header of any frame.
pub(super) const HEADER_BYTES_MAX: usize =
    SHORT_HEADER_BYTES_MAX + CHECKSUM_LEN + PARTITIONS_MAX * ENTRY_BYTES_MAX;

/// The place of a frame; its checksum and its attestation depend on it.
#[derive(Clone, Copy, Debug)]
pub struct FramePlace {
    /// Salt of the segment.
    pub salt: u64,
    /// Epoch of the segment.
    pub epoch: Epoch,
    /// Offset in the segment, in bytes.
    pub offset: u64,
    /// Place in the log.
    pub lsn: Lsn,
    /// The place up to which the log is known durable; at most `lsn`.
    pub durable: Lsn,
}

/// The operations of a batch on one partition.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// The partition.
    pub partition: PartitionId,
    /// The number of operations in the bytes; at least one.
    pub operations: u32,
    /// [`section_checksum`] of the bytes, made outside any lock.
    pub checksum: u64,
    /// The operations, encoded.
    pub bytes: &'a [u8],
}

/// A frame that carries information about the log instead of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Operations of `partition` that follow go to this memtable.
    MemtableSwitch {
        /// The partition.
        partition: PartitionId,
        /// Its new memtable.
        memtable: MemtableId,
    },
    /// Nothing was written for some time: attests the sync before it.
    IdleMarker {
        /// The last durable manifest edit.
        manifest_edit: u64,
    },
    /// The last frame of a log that was closed.
    CleanClose {
        /// The last durable manifest edit.
        manifest_edit: u64,
    },
    /// The first frame of an epoch.
    EpochStart,
}

/// Checksum of a section's bytes.
#[inline]
pub fn section_checksum(bytes: &[u8]) -> u64 {
    checksum64(bytes)
}

/// An upper bound for the length of the frame of these sections, in bytes, wherever it stands.
pub fn batch_frame_len_max(sections: &[Section<'_>]) -> usize {
    let body: usize = sections.iter().map(|s| s.bytes.len()).sum();
    let directory =
        if sections.len() > 1 { CHECKSUM_LEN + sections.len() * ENTRY_BYTES_MAX } else { 0 };
    (SHORT_HEADER_BYTES_MAX + directory + body).next_multiple_of(FRAME_ALIGNMENT)
}

/// An upper bound for the length of a control frame, in bytes.
pub const CONTROL_FRAME_LEN_MAX: usize = SHORT_HEADER_BYTES_MAX.next_multiple_of(FRAME_ALIGNMENT);

/// Appends the frame of a batch to `out` and returns its length: a multiple of 8.
///
/// Each partition has at most one section. `previous_seq` is the last logged sequence before
/// `first_seq`; what lies between went to partitions without a log.
///
/// # Panics
/// Without sections, for a section without operations, for bodies beyond the format's limit: the
/// caller has checked them.
pub fn encode_batch(
    out: &mut Vec<u8>,
    place: &FramePlace,
    first_seq: SeqNo,
    previous_seq: SeqNo,
    sections: &[Section<'_>],
) -> usize {
    let start = out.len();
    // One growth of the buffer for the frame instead of one for each field.
    out.reserve(batch_frame_len_max(sections));
    encode_batch_header(out, place, first_seq, previous_seq, sections);
    for section in sections {
        out.extend_from_slice(section.bytes);
    }
    pad(out, start)
}

/// Appends the frame of a batch to `out` without its body and its padding: for bodies so large that
/// they go to the file from their own buffer. Panics as [`encode_batch`] does.
pub fn encode_batch_header(
    out: &mut Vec<u8>,
    place: &FramePlace,
    first_seq: SeqNo,
    previous_seq: SeqNo,
    sections: &[Section<'_>],
) {
    assert!(previous_seq < first_seq, "sequences grow");
    // The gap makes the chain of numbers complete although unlogged partitions take numbers from
    // the same sequence. Without it, a reader could not distinguish a lost frame from unlogged
    // writes.
    let gap = first_seq.get() - 1 - previous_seq.get();
    if let [section] = sections {
        let body = section.bytes.len();
        assert!(section.operations > 0 && body as u64 <= FORMAT_BATCH_BYTES_MAX);
        let mut header = ShortHeader::new(KIND_BATCH, body as u64, place);
        header.varint(first_seq.get());
        header.varint(u64::from(section.operations));
        header.varint(gap);
        header.varint(u64::from(section.partition.0));
        header.word(section.checksum);
        out.extend_from_slice(header.finish(place));
    } else {
        encode_header_of_several(out, place, first_seq, gap, sections);
    }
}

fn encode_header_of_several(
    out: &mut Vec<u8>,
    place: &FramePlace,
    first_seq: SeqNo,
    gap: u64,
    sections: &[Section<'_>],
) {
    assert!(!sections.is_empty() && sections.len() <= PARTITIONS_MAX);
    assert!(sections.iter().all(|s| s.operations > 0));
    let body: u64 = sections.iter().map(|s| s.bytes.len() as u64).sum();
    assert!(body <= FORMAT_BATCH_BYTES_MAX);
    let operations = sections.iter().map(|s| u64::from(s.operations)).sum();
    let ends = [body, lag(place)];
    let fields = [first_seq.get(), operations, gap, sections.len() as u64];
    // The length of the rest comes before it and is a varint itself, so the rest is measured before
    // anything is written. Moving the written bytes by the varint's length would be a second copy.
    let directory: usize =
        sections.iter().map(|section| varints_len(&directory_entry(section)) + CHECKSUM_LEN).sum();
    let short_rest = varints_len(&ends) + varints_len(&fields) + directory;
    // The kind is decided by the length without the short check, so that the choice does not depend
    // on itself.
    let is_long = CHECKSUM_LEN + 1 + varint_len(short_rest as u64) + short_rest > CHECKED_BYTES_MAX;
    let rest = if is_long { short_rest + CHECKSUM_LEN } else { short_rest };

    let start = out.len();
    // The place of the checksum, which is filled in at the end.
    put_u64(out, 0);
    out.push(if is_long { KIND_LONG_BATCH } else { KIND_BATCH_OF_SEVERAL });
    put_varint(out, rest as u64);
    let rest_at = out.len();
    ends.iter().for_each(|n| put_varint(out, *n));
    if is_long {
        let check = short_check(&out[start + CHECKSUM_LEN..], seed(place));
        put_u64(out, check);
    }
    fields.iter().for_each(|n| put_varint(out, *n));
    for section in sections {
        directory_entry(section).iter().for_each(|n| put_varint(out, *n));
        put_u64(out, section.checksum);
    }
    debug_assert_eq!(out.len() - rest_at, rest);
    let sum = checksum64_seeded(&out[start + CHECKSUM_LEN..], seed(place));
    out[start..start + CHECKSUM_LEN].copy_from_slice(&sum.to_le_bytes());
}

/// The zeros that pad a frame of `len` bytes.
pub fn padding(len: usize) -> &'static [u8] {
    &[0; FRAME_ALIGNMENT][..len.next_multiple_of(FRAME_ALIGNMENT) - len]
}

/// The numbers of a section in the directory, before its checksum.
fn directory_entry(section: &Section<'_>) -> [u64; 3] {
    let partition = u64::from(section.partition.0);
    let operations = u64::from(section.operations);
    [partition, operations, section.bytes.len() as u64]
}

fn varints_len(numbers: &[u64]) -> usize {
    numbers.iter().map(|n| varint_len(*n)).sum()
}

/// Appends a control frame to `out` and returns its length: a multiple of 8. `last_seq` is the
/// last logged sequence before it.
pub fn encode_control(
    out: &mut Vec<u8>,
    place: &FramePlace,
    last_seq: SeqNo,
    control: Control,
) -> usize {
    let (kind, fields): (u8, &[u64]) = match control {
        Control::MemtableSwitch { partition, memtable } => {
            (KIND_MEMTABLE_SWITCH, &[u64::from(partition.0), memtable.0])
        }
        Control::IdleMarker { manifest_edit } => (KIND_IDLE_MARKER, &[manifest_edit]),
        Control::CleanClose { manifest_edit } => (KIND_CLEAN_CLOSE, &[manifest_edit]),
        Control::EpochStart => (KIND_EPOCH_START, &[]),
    };
    let start = out.len();
    let mut header = ShortHeader::new(kind, 0, place);
    header.varint(last_seq.get());
    header.word(place.salt);
    fields.iter().for_each(|n| header.varint(*n));
    out.extend_from_slice(header.finish(place));
    pad(out, start)
}

fn pad(out: &mut Vec<u8>, start: usize) -> usize {
    out.extend_from_slice(padding(out.len() - start));
    out.len() - start
}

fn lag(place: &FramePlace) -> u64 {
    place.lsn.0.checked_sub(place.durable.0).expect("what is durable was written before")
}

fn seed(place: &FramePlace) -> u64 {
    seed_of(place.salt, place.epoch, place.offset)
}

/// The seed of the header checksum. The odd factors spread epoch and offset over the word.
pub(super) fn seed_of(salt: u64, epoch: Epoch, offset: u64) -> u64 {
    // With the offset, a frame that is copied to another place does not verify there.
    salt ^ u64::from(epoch.0).wrapping_mul(0xd6e8_feb8_6659_fd93)
        ^ offset.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The short check of a long header whose bytes from the kind to the check are `front`.
fn short_check(front: &[u8], seed: u64) -> u64 {
    checksum64_seeded(front, seed ^ SHORT_CHECK_SEED)
}

/// A header under construction whose rest is shorter than 128 bytes, so that its length is one
/// byte that can be set last.
struct ShortHeader {
    bytes: [u8; SHORT_HEADER_BYTES_MAX],
    len: usize,
}

const SHORT_REST_AT: usize = CHECKSUM_LEN + 2;
const _: () = assert!(SHORT_HEADER_BYTES_MAX - SHORT_REST_AT < 128);

impl ShortHeader {
    #[inline]
    fn new(kind: u8, body: u64, place: &FramePlace) -> ShortHeader {
        let mut header = ShortHeader { bytes: [0; SHORT_HEADER_BYTES_MAX], len: SHORT_REST_AT };
        header.bytes[CHECKSUM_LEN] = kind;
        header.varint(body);
        header.varint(lag(place));
        header
    }

    #[inline]
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.bytes[self.len] = n as u8 | 0x80;
            self.len += 1;
            n >>= 7;
        }
        self.bytes[self.len] = n as u8;
        self.len += 1;
    }

    #[inline]
    fn word(&mut self, n: u64) {
        self.bytes[self.len..self.len + 8].copy_from_slice(&n.to_le_bytes());
        self.len += 8;
    }

    #[inline]
    fn finish(&mut self, place: &FramePlace) -> &[u8] {
        // Before the checksum, which covers it.
        self.bytes[CHECKSUM_LEN + 1] = (self.len - SHORT_REST_AT) as u8;
        let sum = checksum64_seeded(&self.bytes[CHECKSUM_LEN..self.len], seed(place));
        self.bytes[..CHECKSUM_LEN].copy_from_slice(&sum.to_le_bytes());
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests;
