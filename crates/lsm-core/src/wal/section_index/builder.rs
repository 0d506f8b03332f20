//! [`SectionIndexBuilder`]: collects the frames of a segment for its index while they are appended.
//!
//! The writer of the log notes each frame under its lock, so a note is a few comparisons: the
//! builder holds the runs as they will be written, and no list of frames. The tempting alternative,
//! to read the segment again when it is sealed, would not burden the commit path, but would take a
//! tenth of the time that the writes of the segment took.

use std::collections::HashMap;

use super::{
    BYTES_A_RUN, CHECKSUM_LEN, FRONT_LEN, FrameRun, IndexedSections, MAGIC, RUNS_MIN, VERSION,
    index_bytes_max, seed,
};
use crate::codec::{checksum64_seeded, put_u32, put_u64, put_varint};
use crate::types::{PartitionId, SeqNo};
use crate::wal::frame::FRAME_ALIGNMENT;
use crate::wal::{SEGMENT_HEADER_BYTES, Section, SegmentHeader};

const SLOTS: usize = 64;

/// Collects the groups and runs of a segment's index.
pub struct SectionIndexBuilder {
    /// In the order of their first frames, so that none ever moves: with thousands of partitions an
    /// insertion into a sorted list would move most of them.
    groups: Vec<IndexedSections>,
    /// The places of all groups.
    places: HashMap<PartitionId, u32>,
    /// The places of groups that were requested recently, by the last bits of the partition's id. A
    /// lookup at each frame would take one per cent of a put.
    slots: [u32; SLOTS],
    run_count: usize,
    /// With so many runs, `join_runs` checks whether they are too many.
    run_count_due: usize,
    /// Frames of a partition with at most so many units between them share a run.
    join_units: u32,
    /// The place of the next frame.
    end: u64,
    unlogged: u64,
    /// A frame was noted that does not follow the one before, or lies too far: there is no index
    /// then.
    is_given_up: bool,
}

impl Default for SectionIndexBuilder {
    fn default() -> SectionIndexBuilder {
        SectionIndexBuilder {
            groups: Vec::new(),
            places: HashMap::new(),
            slots: [0; SLOTS],
            run_count: 0,
            run_count_due: RUNS_MIN,
            join_units: 0,
            end: SEGMENT_HEADER_BYTES,
            unlogged: 0,
            is_given_up: false,
        }
    }
}

impl SectionIndexBuilder {
    /// Notes the frame of a batch, `len` bytes at `offset`. `first_seq` is its first sequence,
    /// `previous_seq` the last logged one before.
    pub fn note_batch(
        &mut self,
        offset: u64,
        len: u64,
        first_seq: SeqNo,
        previous_seq: SeqNo,
        sections: &[Section<'_>],
    ) {
        let Some(run) = self.next_run(offset, len) else { return };
        let mut seq = first_seq.get() - 1;
        self.unlogged += seq - previous_seq.get();
        for section in sections {
            seq += u64::from(section.operations);
            let group = self.extend(section.partition, run);
            group.operations += u64::from(section.operations);
            group.bytes += section.bytes.len() as u64;
            group.last_seq = SeqNo::new(seq).unwrap_or(SeqNo::MAX);
        }
    }

    /// Notes a frame that switches the memtable of `partition`, `len` bytes at `offset`.
    pub fn note_switch(&mut self, offset: u64, len: u64, partition: PartitionId) {
        let Some(run) = self.next_run(offset, len) else { return };
        self.extend(partition, run).switches += 1;
    }

    /// Notes a frame that concerns no partition, `len` bytes at `offset`.
    pub fn note_other(&mut self, offset: u64, len: u64) {
        let _ = self.next_run(offset, len);
    }

    fn next_run(&mut self, offset: u64, len: u64) -> Option<FrameRun> {
        // Frames that were discarded before they were appended were noted all the same.
        self.is_given_up |= offset != self.end;
        self.end = offset + len;
        let unit = FRAME_ALIGNMENT as u64;
        let start = u32::try_from(offset / unit);
        let end = u32::try_from(self.end / unit);
        let (Ok(start), Ok(end)) = (start, end) else {
            self.is_given_up = true;
            return None;
        };
        (!self.is_given_up).then_some(FrameRun { start, end })
    }

    fn extend(&mut self, partition: PartitionId, run: FrameRun) -> &mut IndexedSections {
        let slot = partition.0 as usize % SLOTS;
        let mut idx = self.slots[slot] as usize;
        if self.groups.get(idx).is_none_or(|group| group.partition != partition) {
            idx = self.group_of(partition);
            self.slots[slot] = idx as u32;
        }
        let group = &mut self.groups[idx];
        match group.runs.last_mut() {
            // Nothing lies between two sections of one frame.
            Some(last) if run.start.saturating_sub(last.end) <= self.join_units => {
                last.end = run.end;
            }
            _ => {
                group.runs.push(run);
                self.run_count += 1;
                if self.run_count >= self.run_count_due {
                    self.join_runs();
                }
            }
        }
        &mut self.groups[idx]
    }

    fn group_of(&mut self, partition: PartitionId) -> usize {
        let next = self.groups.len();
        let place = *self.places.entry(partition).or_insert(next as u32) as usize;
        if place == next {
            self.groups.push(IndexedSections { partition, ..IndexedSections::default() });
        }
        place
    }

    /// Joins runs that lie close together until the number of runs fits the present segment.
    fn join_runs(&mut self) {
        let count_max = usize::try_from(self.end / BYTES_A_RUN).unwrap_or(usize::MAX).max(RUNS_MIN);
        while self.run_count > count_max && self.run_count > self.groups.len() {
            self.join_units = self.join_units.saturating_mul(2).max(8);
            let join_units = self.join_units;
            for group in &mut self.groups {
                group.runs.dedup_by(|next, before| {
                    let is_close = next.start - before.end <= join_units;
                    if is_close {
                        before.end = next.end;
                    }
                    is_close
                });
            }
            self.run_count = self.groups.iter().map(|group| group.runs.len()).sum();
        }
        // Not at each frame: looked at again when there are twice as many.
        self.run_count_due = self.run_count.saturating_mul(2).max(RUNS_MIN);
    }

    /// The length of all runs together, in bytes.
    fn covered(&self) -> u64 {
        let runs = self.groups.iter().flat_map(|group| &group.runs);
        runs.map(|run| run.bytes()).map(|bytes| bytes.end - bytes.start).sum()
    }

    /// Returns the index of the segment with this header, whose frames end at `end` with `last_seq`
    /// as the last logged sequence. `None` if the noted frames are not those of the segment, if the
    /// index would be too long, or if it would save nothing.
    pub fn finish(mut self, header: &SegmentHeader, end: u64, last_seq: SeqNo) -> Option<Vec<u8>> {
        if self.is_given_up || self.end != end {
            return None;
        }
        self.join_runs();
        // A follower of all partitions would read all runs. A walk reads all headers, with the
        // bodies between them, and then all sections.
        if self.covered() > 2 * end {
            return None;
        }
        // Readers search it by partition.
        self.groups.sort_unstable_by_key(|group| group.partition);
        let mut groups = Vec::new();
        for group in &self.groups {
            group.encode(&mut groups);
        }
        let mut out = Vec::with_capacity(FRONT_LEN + groups.len() + CHECKSUM_LEN);
        out.extend_from_slice(&MAGIC);
        put_u32(&mut out, VERSION);
        put_u64(&mut out, end);
        put_u64(&mut out, last_seq.get());
        put_u64(&mut out, self.unlogged);
        put_u32(&mut out, u32::try_from(groups.len()).ok()?);
        put_u32(&mut out, u32::try_from(self.groups.len()).ok()?);
        assert_eq!(out.len(), FRONT_LEN);
        out.extend_from_slice(&groups);
        out.resize(out.len().next_multiple_of(FRAME_ALIGNMENT), 0);
        let sum = checksum64_seeded(&out, seed(header, end));
        put_u64(&mut out, sum);
        (out.len() as u64 <= index_bytes_max(end)).then_some(out)
    }
}

impl IndexedSections {
    fn encode(&self, out: &mut Vec<u8>) {
        let partition = u64::from(self.partition.0);
        let last_seq = self.last_seq.get();
        let numbers = [partition, self.operations, self.bytes, last_seq, self.switches];
        numbers.iter().for_each(|n| put_varint(out, *n));
        put_varint(out, self.runs.len() as u64);
        let mut end = (SEGMENT_HEADER_BYTES / FRAME_ALIGNMENT as u64) as u32;
        for run in &self.runs {
            put_varint(out, u64::from(run.start - end));
            put_varint(out, u64::from(run.end - run.start));
            end = run.end;
        }
    }
}
