//! [`SectionIndex`]: the partitions of a sealed segment, and the runs of frames that hold the
//! sections of each. With it a follower that catches up with one partition does not walk the
//! headers of the others.
//!
//! The log thread writes it after the last frame of a segment when the next one is begun; nothing
//! waits for that, and nothing syncs it. It is a hint: a segment without a whole one is walked, and
//! a reader that does not know the format ignores it, like all bytes after the end that the next
//! header names. Recovery and promotion do not read it; verification reports damage of it.
//!
//! ```text
//! offset size  name
//!      0   12  magic "SILTSECTIONS"
//!     12    4  version, 1; an index of another version is ignored
//!     16    8  end of the last frame: the offset of this index in the segment
//!     24    8  last logged sequence through there
//!     32    8  sequences between the batches: of partitions without a log
//!     40    4  length of the groups in bytes
//!     44    4  groups
//!     48       groups, one a partition, in ascending order:
//!                v partition
//!                v operations
//!                v bytes of its sections
//!                v last sequence of its last section, 0 = memtable switches alone
//!                v memtable switches
//!                v runs, then for each { v gap, v length }: whole frames, in units of 8 bytes; a gap
//!                  is counted from the end of the run before, the first one from the header's end
//!              zeros up to a multiple of 8
//!          8   XXH3-64 of everything before, seeded as a frame at this offset and with `INDEX_SEED`
//! ```
//!
//! Invariants:
//! 1. Every frame with a section or a memtable switch of a partition lies in a run of its group. A
//!    run may contain other frames as well.
//! 2. An index is believed only whole, at its own offset of its own segment, and if its operations
//!    account for every sequence number of the segment.
//! 3. A group is compared with the frames in its runs. If they differ, the caller walks the log: a
//!    wrong group never hides a section.

mod builder;

pub use builder::SectionIndexBuilder;

use std::ops::Range;

use super::frame::{Control, DirectoryEntry, FRAME_ALIGNMENT, Fields, section_checksum, seed_of};
use super::reader::load_header;
use super::window::Window;
use super::{Lsn, SEGMENT_HEADER_BYTES, SectionRef, SegmentHeader, SegmentSource};
use crate::codec::{Malformed, Reader, checksum64_seeded};
use crate::error::{Error, Result};
use crate::fs::File;
use crate::types::{PartitionId, SeqNo};

const MAGIC: [u8; 12] = *b"SILTSECTIONS";
const VERSION: u32 = 1;
/// Distinguishes its checksum from that of a frame at the same place.
const INDEX_SEED: u64 = 0x2f1c_9a35_77e4_b0d1;
pub(super) const FRONT_LEN: usize = 48;
const CHECKSUM_LEN: usize = 8;
/// The fields of its front, and their lengths in bytes.
pub(super) const FRONT_FIELDS: [(usize, &str); 7] = [
    (MAGIC.len(), "magic"),
    (4, "version"),
    (8, "end of the frames"),
    (8, "last sequence"),
    (8, "sequences between the batches"),
    (4, "length of the groups"),
    (4, "groups"),
];
/// The runs take about three bytes each. With one for so many bytes of the segment, an index takes
/// about a hundredth of it; frames of a partition that lie closer together share a run.
const BYTES_A_RUN: u64 = 256;
/// A small segment may have so many runs, however short it is.
const RUNS_MIN: usize = 64;
/// An index takes at most this share of its segment, and [`INDEX_BYTES_MIN`] in a short one.
const INDEX_SHARE: u64 = 32;
const INDEX_BYTES_MIN: u64 = 4 << 10;
/// Frames of a run are read so many bytes at a time: so much of other partitions' sections may be
/// read with a header.
const READ_BYTES: u64 = 32 << 10;

/// Length of an index whose groups take so many bytes.
fn index_len(groups: u64) -> u64 {
    (FRONT_LEN as u64 + groups).next_multiple_of(FRAME_ALIGNMENT as u64) + CHECKSUM_LEN as u64
}

/// The longest index of a segment whose frames end at `end`, in bytes.
fn index_bytes_max(end: u64) -> u64 {
    (end / INDEX_SHARE).max(INDEX_BYTES_MIN)
}

/// The sections of a sealed segment, by partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionIndex {
    /// The last logged sequence through the end of the segment.
    pub last_seq: SeqNo,
    /// In the order of the partitions.
    pub groups: Vec<IndexedSections>,
    /// Its length in bytes.
    len: u64,
}

/// The sections of one partition in a sealed segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexedSections {
    /// The partition.
    pub partition: PartitionId,
    /// The number of operations in the sections.
    pub operations: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// The last operation; 0 if there are memtable switches alone.
    pub last_seq: SeqNo,
    /// The number of memtable switches.
    pub switches: u64,
    runs: Vec<FrameRun>,
}

/// Whole frames, in units of [`FRAME_ALIGNMENT`]. Short, because a segment may have hundreds of
/// thousands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameRun {
    start: u32,
    end: u32,
}

impl FrameRun {
    fn bytes(self) -> Range<u64> {
        let unit = FRAME_ALIGNMENT as u64;
        u64::from(self.start) * unit..u64::from(self.end) * unit
    }
}

impl IndexedSections {
    /// The number of runs.
    pub(super) fn run_count(&self) -> usize {
        self.runs.len()
    }
}

/// A thing that an index leads to.
#[derive(Clone, Copy, Debug)]
pub enum IndexedItem<'a> {
    /// A section.
    Section {
        /// The place of its frame in the log.
        lsn: Lsn,
        /// Its offset in the segment, in bytes.
        offset: u64,
        /// The section, whose checksum was verified.
        section: SectionRef<'a>,
    },
    /// The partition goes on in another memtable.
    Switch,
}

impl SectionIndex {
    /// Returns the index of the segment in `file`, whose frames end at `end`; `None` if there is no
    /// valid one.
    pub fn read(file: &dyn File, header: &SegmentHeader, end: u64) -> Option<SectionIndex> {
        let mut front = [0; FRONT_LEN];
        // A read error is ignored here: the caller walks the same file, and gets the error there if
        // it concerns the frames.
        let got = file.read_at(end, &mut front).ok()?;
        if got < FRONT_LEN {
            return None;
        }
        let groups_len = groups_len(&front)?;
        let len = index_len(u64::from(groups_len));
        // Before so much memory is asked for.
        if len > index_bytes_max(end) {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        let got = file.read_at(end, &mut bytes).ok()?;
        if got < bytes.len() {
            return None;
        }
        Self::decode(&bytes, header, end).ok()
    }

    /// Decodes `bytes`, the index at `end` of the segment with this header.
    fn decode(bytes: &[u8], header: &SegmentHeader, end: u64) -> Result<SectionIndex, Malformed> {
        let bad = Malformed { what: "no index of sections", at: 0 };
        let (covered, sum) = bytes.split_last_chunk::<CHECKSUM_LEN>().ok_or(bad)?;
        let mut reader = Reader::new(covered);
        if checksum64_seeded(covered, seed(header, end)) != u64::from_le_bytes(*sum) {
            return Err(bad);
        }
        let is_known = reader.take(MAGIC.len())? == MAGIC && reader.u32()? == VERSION;
        if !is_known || reader.u64()? != end {
            return Err(bad);
        }
        let last_seq = SeqNo::new(reader.u64()?).ok_or(bad)?;
        let unlogged = reader.u64()?;
        let groups_len = reader.u32()?;
        let count = reader.u32()?;
        let mut groups: Vec<IndexedSections> = Vec::new();
        let mut operations = 0_u64;
        for _ in 0..count {
            let group = IndexedSections::decode(&mut reader, end)?;
            if groups.last().is_some_and(|before| before.partition >= group.partition)
                || group.last_seq > last_seq
            {
                return Err(reader.malformed("groups are not in order"));
            }
            operations = operations.saturating_add(group.operations);
            groups.push(group);
        }
        let is_padded = covered[reader.position()..].iter().all(|byte| *byte == 0);
        if reader.position() != FRONT_LEN + groups_len as usize
            || bytes.len() as u64 != index_len(u64::from(groups_len))
            || !is_padded
        {
            return Err(reader.malformed("groups of another length"));
        }
        // Logged sequences have no holes, so an index that lacks a section lacks its numbers.
        let counted = header.previous_seq.get().saturating_add(unlogged).saturating_add(operations);
        if counted != last_seq.get() {
            return Err(reader.malformed("operations do not add up"));
        }
        Ok(SectionIndex { last_seq, groups, len: bytes.len() as u64 })
    }

    /// Returns its length in bytes, a multiple of 8.
    pub(super) fn len(&self) -> u64 {
        self.len
    }
}

/// The length of the groups, if `front` is the front of an index.
fn groups_len(front: &[u8; FRONT_LEN]) -> Option<u32> {
    let mut reader = Reader::new(front);
    let magic = reader.take(MAGIC.len()).ok()?;
    reader.take(FRONT_LEN - MAGIC.len() - 8).ok()?;
    let len = reader.u32().ok()?;
    (magic == MAGIC).then_some(len)
}

fn seed(header: &SegmentHeader, end: u64) -> u64 {
    seed_of(header.salt, header.epoch, end) ^ INDEX_SEED
}

impl IndexedSections {
    fn decode(reader: &mut Reader<'_>, end: u64) -> Result<IndexedSections, Malformed> {
        let partition = PartitionId(reader.varint_u32()?);
        let operations = reader.varint()?;
        let bytes = reader.varint()?;
        let last_seq = SeqNo::new(reader.varint()?)
            .ok_or(reader.malformed("sequence number exceeds 56 bits"))?;
        let switches = reader.varint()?;
        // Each takes two bytes at least, so this bounds the memory of the list.
        let count = reader.length()?;
        let mut runs = Vec::new();
        let mut at = SEGMENT_HEADER_BYTES / FRAME_ALIGNMENT as u64;
        for _ in 0..count {
            let start = at.saturating_add(reader.varint()?);
            at = start.saturating_add(reader.varint()?);
            let run = (u32::try_from(start).ok()).zip(u32::try_from(at).ok());
            let (start, end_at) = run.ok_or(reader.malformed("run is out of range"))?;
            let run = FrameRun { start, end: end_at };
            if start == end_at || run.bytes().end > end {
                return Err(reader.malformed("run is out of range"));
            }
            runs.push(run);
        }
        Ok(IndexedSections { partition, operations, bytes, last_seq, switches, runs })
    }

    /// Passes the sections and memtable switches of the partition in `source`, the segment with
    /// this header, to `visit` in their order.
    ///
    /// # Errors
    /// Those of reading and of `visit`. `Corruption` if the frames differ from the index, which may
    /// be noticed only after the last section: then a walk over all frames decides.
    ///
    /// # Cost
    /// Reads the frames of the partition, and with each no more than some kilobytes of the sections
    /// of others.
    pub fn read(
        &self,
        source: &SegmentSource,
        header: &SegmentHeader,
        visit: &mut dyn FnMut(IndexedItem<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut run = RunReader {
            source,
            header,
            window: Window::default(),
            directory: Vec::new(),
            found: IndexedSections { partition: self.partition, ..IndexedSections::default() },
        };
        for range in self.runs.iter().map(|run| run.bytes()) {
            run.read(range, visit)?;
        }
        let found = run.found;
        let is_as_said = (found.operations, found.bytes, found.last_seq, found.switches)
            == (self.operations, self.bytes, self.last_seq, self.switches);
        if is_as_said { Ok(()) } else { Err(misled(source, SEGMENT_HEADER_BYTES)) }
    }
}

/// The error of an index that does not match the frames.
fn misled(source: &SegmentSource, offset: u64) -> Error {
    Error::corruption(&source.path, offset, "frames are not as the index of sections says")
}

/// Reads the runs of a partition one after the other.
struct RunReader<'a> {
    source: &'a SegmentSource,
    header: &'a SegmentHeader,
    window: Window,
    directory: Vec<DirectoryEntry>,
    /// All that was shown.
    found: IndexedSections,
}

impl RunReader<'_> {
    fn read(
        &mut self,
        run: Range<u64>,
        visit: &mut dyn FnMut(IndexedItem<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut at = run.start;
        while at < run.end {
            let ahead = at + READ_BYTES;
            let window = &mut self.window;
            let file = &*self.source.file;
            let range = at..run.end;
            let found = load_header(window, file, self.header, range, ahead, &mut self.directory)?;
            let Ok((prefix, fields)) = found else { return Err(misled(self.source, at)) };
            match fields {
                Fields::Batch { .. } => {
                    for idx in 0..self.directory.len() {
                        let entry = self.directory[idx];
                        if entry.partition == self.found.partition {
                            self.read_section(at, at + prefix.header_len as u64, &entry, visit)?;
                        }
                    }
                }
                Fields::Control { control: Control::MemtableSwitch { partition, .. }, .. }
                    if partition == self.found.partition =>
                {
                    self.found.switches += 1;
                    visit(IndexedItem::Switch)?;
                }
                Fields::Control { .. } => {}
            }
            at += prefix.frame_len();
        }
        Ok(())
    }

    /// Passes a section of the frame at `at`, whose body begins at `body`, to the visitor.
    fn read_section(
        &mut self,
        at: u64,
        body: u64,
        entry: &DirectoryEntry,
        visit: &mut dyn FnMut(IndexedItem<'_>) -> Result<()>,
    ) -> Result<()> {
        let offset = body + entry.start;
        let end = offset + entry.len as u64;
        let bytes = self.window.load(&*self.source.file, offset, entry.len, end)?;
        let is_whole = bytes.len() == entry.len && section_checksum(&bytes) == entry.checksum;
        if !is_whole || entry.first_seq <= self.found.last_seq {
            return Err(misled(self.source, offset));
        }
        let section = SectionRef {
            partition: entry.partition,
            first_seq: entry.first_seq,
            operations: entry.operations,
            bytes,
        };
        self.found.operations += u64::from(entry.operations);
        self.found.bytes += entry.len as u64;
        self.found.last_seq = section.last_seq();
        visit(IndexedItem::Section { lsn: self.header.lsn_at(at), offset, section })
    }
}

#[cfg(test)]
mod tests;
