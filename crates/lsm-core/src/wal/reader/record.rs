//! The result of the reader: a frame whose bytes are in the reader's buffer.
//!
//! `reader.rs` and `survey.rs` make them, only of verified bytes.
//!
//! Invariants:
//! 1. A section in a [`BatchRef`] agreed with its checksum when the frame was read.

use crate::types::{PartitionId, SeqNo};
use crate::wal::frame::{Control, DirectoryEntry};
use crate::wal::window::LoadedBytes;
use crate::wal::{LogPlace, Lsn};

/// A frame of the log.
#[derive(Clone, Copy, Debug)]
pub struct FrameRef<'a> {
    /// The place where it begins.
    pub place: LogPlace,
    /// The same place in the log.
    pub lsn: Lsn,
    /// The place up to which the log was known durable when it was built.
    #[cfg_attr(
        not(feature = "internals"),
        expect(dead_code, reason = "readers ask for the furthest of all")
    )]
    pub durable: Lsn,
    /// Its content.
    pub record: Record<'a>,
}

/// The content of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Record<'a> {
    /// Operations.
    Batch(BatchRef<'a>),
    /// A control frame.
    Control(Control),
}

/// A batch whose bytes lie in the reader's buffer.
#[derive(Clone, Copy, Debug)]
pub struct BatchRef<'a> {
    /// Sequence of its first operation.
    pub first_seq: SeqNo,
    /// Sequence of its last operation.
    pub last_seq: SeqNo,
    pub(in crate::wal) directory: &'a [DirectoryEntry],
    /// The body, or the part of it that was asked for, from `body_start` of it on.
    pub(in crate::wal) body: LoadedBytes<'a>,
    pub(in crate::wal) body_start: u64,
    /// Offset of that part in the segment.
    pub(in crate::wal) body_at: u64,
}

/// The operations of a batch on one partition.
#[derive(Clone, Copy, Debug)]
pub struct SectionRef<'a> {
    /// The partition.
    pub partition: PartitionId,
    /// Sequence of the section's first operation.
    pub first_seq: SeqNo,
    /// The number of operations in the bytes.
    pub operations: u32,
    /// The operations, encoded; their checksum was verified.
    pub bytes: LoadedBytes<'a>,
}

/// The place of a section in its segment, and its expected content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionPlace {
    /// The partition.
    pub partition: PartitionId,
    /// Sequence of the section's first operation.
    pub first_seq: SeqNo,
    /// The number of operations.
    pub operations: u32,
    /// Offset in the segment, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
    /// The checksum of the bytes.
    pub checksum: u64,
}

impl SectionPlace {
    /// Sequence of the section's last operation.
    pub fn last_seq(&self) -> SeqNo {
        // A section has at least one operation; the bound keeps a wrong 0 from wrapping.
        self.first_seq.plus(u64::from(self.operations.max(1)) - 1)
    }
}

impl SectionRef<'_> {
    /// Sequence of the section's last operation.
    pub fn last_seq(&self) -> SeqNo {
        self.first_seq.plus(u64::from(self.operations.max(1)) - 1)
    }
}

impl<'a> BatchRef<'a> {
    /// The sections, in the order of their sequences; with
    /// [`LogReaderOptions::only`](super::LogReaderOptions::only), those of
    /// that partition.
    pub fn sections(&self) -> impl Iterator<Item = SectionRef<'a>> + use<'a> {
        let body = self.body;
        let body_start = self.body_start;
        self.directory.iter().map(move |entry| SectionRef {
            partition: entry.partition,
            first_seq: entry.first_seq,
            operations: entry.operations,
            // No error: the bytes are in memory and their checksum was compared.
            bytes: section_of(body, body_start, entry).expect("verified before it was yielded"),
        })
    }
}

impl BatchRef<'_> {
    /// The places of all sections, in the order of their sequences.
    pub fn places(&self) -> impl Iterator<Item = SectionPlace> {
        let body = self.body_at - self.body_start;
        self.directory.iter().map(move |entry| SectionPlace {
            partition: entry.partition,
            first_seq: entry.first_seq,
            operations: entry.operations,
            offset: body + entry.start,
            len: entry.len,
            checksum: entry.checksum,
        })
    }
}

/// The bytes of a section in `body`, which holds the frame's body from `body_start` of it on.
pub(in crate::wal) fn section_of<'a>(
    body: LoadedBytes<'a>,
    body_start: u64,
    entry: &DirectoryEntry,
) -> Option<LoadedBytes<'a>> {
    let skip = usize::try_from(entry.start.checked_sub(body_start)?).ok()?;
    body.part(skip..skip.checked_add(entry.len)?)
}
