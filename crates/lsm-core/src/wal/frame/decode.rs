//! Decodes frames in three steps: [`Prefix`] finds the length, [`verifies`] checks the checksum,
//! [`decode_fields`] reads the fields.
//!
//! Called by the reader, the look-ahead and the survey; `frame.rs` describes the layout. This file
//! compares lengths only with the bytes that it is given. The caller compares them with the file.
//!
//! Invariants:
//! 1. No input panics, and the directory gets no more entries than the header has room for.

use super::{
    CHECKED_BYTES_MAX, CHECKSUM_LEN, Control, FRAME_ALIGNMENT, HEADER_BYTES_MAX, KIND_BATCH,
    KIND_BATCH_OF_SEVERAL, KIND_CLEAN_CLOSE, KIND_EPOCH_START, KIND_IDLE_MARKER, KIND_LONG_BATCH,
    KIND_MEMTABLE_SWITCH, SHORT_HEADER_BYTES_MAX, is_kind, short_check,
};
use crate::codec::{Malformed, Reader, checksum64_seeded};
use crate::limits::FORMAT_BATCH_BYTES_MAX;
use crate::types::{MemtableId, PartitionId, SeqNo};

/// The front of a frame's header: enough to find its ends. Not verified.
#[derive(Clone, Copy, Debug)]
pub(in crate::wal) struct Prefix {
    pub(in crate::wal) kind: u8,
    /// Length of the whole header, at most [`HEADER_BYTES_MAX`].
    pub(in crate::wal) header_len: usize,
    /// Length of the body, at most [`FORMAT_BATCH_BYTES_MAX`].
    pub(in crate::wal) body_len: u64,
    pub(in crate::wal) lag: u64,
    /// Offset of the short check in the header, if there is one.
    check_at: usize,
    fields_at: usize,
}

impl Prefix {
    /// Reads the front of a frame from up to [`PREFIX_BYTES_MAX`](super::PREFIX_BYTES_MAX) bytes.
    pub(in crate::wal) fn decode(bytes: &[u8]) -> Result<Prefix, Malformed> {
        let mut reader = Reader::new(bytes);
        // The caller checks the checksum: it needs the whole header, whose length follows.
        reader.u64()?;
        let kind = reader.u8()?;
        if !is_kind(kind) {
            return Err(reader.malformed("unknown kind of frame"));
        }
        // Not compared with the bytes given: they are only the front of the header.
        let rest = reader.varint_u32()? as usize;
        let header_len = reader.position() + rest;
        let body_len = reader.varint()?;
        let lag = reader.varint()?;
        let fields_at = reader.position();
        let has_directory = kind == KIND_BATCH_OF_SEVERAL || kind == KIND_LONG_BATCH;
        let has_body = kind == KIND_BATCH || has_directory;
        // The short check belongs to the front: without it this is no long header.
        let check_len = if kind == KIND_LONG_BATCH { CHECKSUM_LEN } else { 0 };
        let check_at = fields_at;
        let fields_at = fields_at + check_len;
        let len_max = if has_directory { HEADER_BYTES_MAX } else { SHORT_HEADER_BYTES_MAX };
        // Bounds before anything is read: a length from the file must not decide how much memory is
        // allocated.
        if fields_at > header_len
            || header_len > len_max
            || body_len > FORMAT_BATCH_BYTES_MAX
            || (body_len > 0 && !has_body)
        {
            return Err(reader.malformed("impossible length of a frame"));
        }
        Ok(Prefix { kind, header_len, body_len, lag, check_at, fields_at })
    }

    /// Returns `true` if the header is long enough to have a short check, and `header` begins with
    /// one that does not match: then it is no header, and need not be read to its end.
    pub(in crate::wal) fn fails_short_check(&self, header: &[u8], seed: u64) -> bool {
        if self.kind != KIND_LONG_BATCH {
            return false;
        }
        let Some(front) = header.get(CHECKSUM_LEN..self.check_at) else {
            return true;
        };
        let check = header.get(self.check_at..).and_then(|rest| rest.first_chunk::<CHECKSUM_LEN>());
        check.is_none_or(|check| u64::from_le_bytes(*check) != short_check(front, seed))
    }

    /// Returns `true` if only the checksum of the whole header, however long, distinguishes it from
    /// other bytes: only in segments of the first format version.
    pub(in crate::wal) fn lacks_short_check(&self) -> bool {
        self.kind == KIND_BATCH_OF_SEVERAL && self.header_len > CHECKED_BYTES_MAX
    }

    /// Length of the whole frame.
    pub(in crate::wal) fn frame_len(&self) -> u64 {
        (self.header_len as u64 + self.body_len).next_multiple_of(FRAME_ALIGNMENT as u64)
    }
}

/// Returns `true` if `header`, the whole header of a frame, carries its checksum under `seed`.
pub(in crate::wal) fn verifies(header: &[u8], seed: u64) -> bool {
    header
        .split_first_chunk::<CHECKSUM_LEN>()
        .is_some_and(|(sum, covered)| u64::from_le_bytes(*sum) == checksum64_seeded(covered, seed))
}

/// One section of a frame, as its directory describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wal) struct DirectoryEntry {
    pub(in crate::wal) partition: PartitionId,
    pub(in crate::wal) operations: u32,
    pub(in crate::wal) first_seq: SeqNo,
    /// Offset of the section in the body, in bytes.
    pub(in crate::wal) start: u64,
    pub(in crate::wal) len: usize,
    pub(in crate::wal) checksum: u64,
}

/// The fields of a frame's header after its [`Prefix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wal) enum Fields {
    /// A batch; its sections are in the directory.
    Batch { first_seq: SeqNo, last_seq: SeqNo, previous_seq: SeqNo },
    /// A control frame.
    Control { last_seq: SeqNo, salt: u64, control: Control },
}

/// Decodes a whole header. The sections of a batch replace what is in `directory`.
pub(in crate::wal) fn decode_fields(
    header: &[u8],
    prefix: &Prefix,
    directory: &mut Vec<DirectoryEntry>,
) -> Result<Fields, Malformed> {
    directory.clear();
    let mut reader = Reader::new(header);
    reader.take(prefix.fields_at)?;
    let fields = match prefix.kind {
        KIND_BATCH | KIND_BATCH_OF_SEVERAL | KIND_LONG_BATCH => {
            decode_batch(&mut reader, prefix, directory)?
        }
        kind => decode_control(&mut reader, kind)?,
    };
    // Bytes left over would make two encodings of one frame.
    reader.finish()?;
    Ok(fields)
}

fn sequence(reader: &mut Reader<'_>) -> Result<SeqNo, Malformed> {
    let n = reader.varint()?;
    SeqNo::new(n).ok_or(reader.malformed("sequence number exceeds 56 bits"))
}

fn decode_batch(
    reader: &mut Reader<'_>,
    prefix: &Prefix,
    directory: &mut Vec<DirectoryEntry>,
) -> Result<Fields, Malformed> {
    let first_seq = sequence(reader)?;
    let operations = reader.varint()?;
    let gap = reader.varint()?;
    let impossible = reader.malformed("impossible sequence numbers");
    // The chain of numbers is stored as a gap, which is 0 in nearly every frame and takes one byte.
    let previous_seq = first_seq
        .get()
        .checked_sub(1)
        .and_then(|n| n.checked_sub(gap))
        .and_then(SeqNo::new)
        .ok_or(impossible)?;
    let last_seq = operations
        .checked_sub(1)
        .and_then(|n| first_seq.get().checked_add(n))
        .and_then(SeqNo::new)
        .ok_or(impossible)?;
    if prefix.kind == KIND_BATCH {
        let len = usize::try_from(prefix.body_len).map_err(|_| impossible)?;
        directory.push(DirectoryEntry {
            partition: PartitionId(reader.varint_u32()?),
            operations: u32::try_from(operations).map_err(|_| impossible)?,
            first_seq,
            start: 0,
            len,
            checksum: reader.u64()?,
        });
        return Ok(Fields::Batch { first_seq, last_seq, previous_seq });
    }

    let count = reader.varint()?;
    // `count` is a number from the file, so nothing is reserved for it: a header too short for its
    // entries ends the loop at its own end.
    let mut start = 0;
    let mut seen = 0;
    for _ in 0..count {
        let partition = PartitionId(reader.varint_u32()?);
        let operations_here = reader.varint_u32()?;
        let len = reader.varint_u32()?;
        let checksum = reader.u64()?;
        // Checked before the sum is used: each summand is below 2^32, so neither overflows before
        // it passes its bound.
        let first = first_seq.get().checked_add(seen).and_then(SeqNo::new).ok_or(impossible)?;
        let len_here = usize::try_from(len).map_err(|_| impossible)?;
        directory.push(DirectoryEntry {
            partition,
            operations: operations_here,
            first_seq: first,
            start,
            len: len_here,
            checksum,
        });
        start += u64::from(len);
        seen += u64::from(operations_here);
        if operations_here == 0 || start > prefix.body_len || seen > operations {
            return Err(impossible);
        }
    }
    // The front has the totals as well: a directory with other totals is not valid.
    if start != prefix.body_len || seen != operations {
        return Err(impossible);
    }
    Ok(Fields::Batch { first_seq, last_seq, previous_seq })
}

fn decode_control(reader: &mut Reader<'_>, kind: u8) -> Result<Fields, Malformed> {
    let last_seq = sequence(reader)?;
    let salt = reader.u64()?;
    let control = match kind {
        KIND_MEMTABLE_SWITCH => Control::MemtableSwitch {
            partition: PartitionId(reader.varint_u32()?),
            memtable: MemtableId(reader.varint()?),
        },
        KIND_IDLE_MARKER => Control::IdleMarker { manifest_edit: reader.varint()? },
        KIND_CLEAN_CLOSE => Control::CleanClose { manifest_edit: reader.varint()? },
        KIND_EPOCH_START => Control::EpochStart,
        _ => return Err(reader.malformed("unknown kind of frame")),
    };
    Ok(Fields::Control { last_seq, salt, control })
}
