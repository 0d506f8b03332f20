//! The data that the locks of the log guard: [`WriterState`] that of the writer, [`SyncState`] that of the syncs.
//!
//! The files that work on the log use it; it knows none of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::lengths::Recent;
use super::marks::Marks;
use super::notices::DurabilityWaiters;
use crate::error::Error;
use crate::fs::File;
use crate::types::{FileNo, PartitionId, SeqNo};
use crate::wal::{
    Control, FramePlace, Lsn, Reserved, Section, SectionIndexBuilder, SegmentHeader, SegmentWriter,
    frame,
};

/// The state that the holder of the writer's lock owns.
pub(super) struct WriterState {
    /// The next sequence number.
    pub(super) next_seq: SeqNo,
    /// Frames that are encoded and not yet appended.
    pub(super) buffer: Vec<u8>,
    /// The last sequence number in a frame, appended or in the buffer.
    pub(super) encoded_seq: SeqNo,
    /// The last sequence number in an appended frame.
    pub(super) logged_seq: SeqNo,
    /// The end of the last appended batch; markers may follow it.
    pub(super) batches_end: Lsn,
    pub(super) run: PartitionRun,
    /// The batches in the buffer whose writers ask for a sync.
    pub(super) askers: u64,
    pub(super) segment: Option<SegmentWriter>,
    /// The frames of the present segment, for the index of its sections.
    pub(super) sections: SectionIndexBuilder,
    /// Places at which a replay may begin.
    pub(super) marks: Marks,
    /// Segments that were sealed and have no index yet.
    pub(super) sealed: Vec<SealedSegment>,
    /// `true` if a segment was begun since this was last taken.
    pub(super) segment_switched: bool,
    /// A segment that is ready to be begun.
    pub(super) reserve: Option<(Reserved, FileNo)>,
    /// Segments that were made and that the manifest refused. It may list one on the device until
    /// its next edit, so their files stay until then; the next segment is one of them.
    pub(super) unlisted: Vec<(Reserved, FileNo)>,
    pub(super) recent: Recent,
    /// Closed segments that are still live.
    pub(super) closed: VecDeque<BegunSegment>,
    /// Live segments that will never be used.
    pub(super) spoiled: Vec<FileNo>,
    /// `true` if a spoiled segment may hold a header that ends the present one here.
    pub(super) must_switch: bool,
    /// Memtable switches that are not in the log yet, and how many of them are in the buffer.
    pub(super) switches: Vec<Control>,
    pub(super) switches_encoded: usize,
}

/// The last batches of the log, all of one partition.
pub(super) struct PartitionRun {
    /// `None` for one batch over several partitions.
    pub(super) partition: Option<PartitionId>,
    /// The last sequence number before them.
    pub(super) before: SeqNo,
}

impl WriterState {
    pub(super) fn new(last_seq: SeqNo, segment_bytes_max: u64) -> WriterState {
        WriterState {
            next_seq: last_seq.plus(1),
            buffer: Vec::new(),
            encoded_seq: last_seq,
            logged_seq: last_seq,
            batches_end: Lsn(0),
            run: PartitionRun { partition: None, before: last_seq },
            askers: 0,
            segment: None,
            sections: SectionIndexBuilder::default(),
            marks: Marks::new(segment_bytes_max),
            sealed: Vec::new(),
            segment_switched: false,
            reserve: None,
            unlisted: Vec::new(),
            recent: Recent::default(),
            closed: VecDeque::new(),
            spoiled: Vec::new(),
            must_switch: false,
            switches: Vec::new(),
            switches_encoded: 0,
        }
    }

    /// Discards the encoded frames; the memtable switches in them stay due.
    pub(super) fn clear_buffer(&mut self) {
        self.buffer.clear();
        self.encoded_seq = self.logged_seq;
        self.switches_encoded = 0;
        self.askers = 0;
    }

    pub(super) fn lsn(&self) -> Lsn {
        self.segment.as_ref().map_or(Lsn(0), SegmentWriter::lsn)
    }

    /// Returns `true` if `len` more bytes fit after the buffer.
    pub(super) fn fits(&self, len: usize) -> bool {
        let Some(segment) = &self.segment else { return false };
        // The buffer counts, because its frames go into the segment before this one.
        !self.must_switch && !segment.is_failed() && segment.fits(self.buffer.len() + len)
    }

    /// The maximum length of the encoded pending memtable switches, in bytes.
    pub(super) fn switches_len_max(&self) -> usize {
        (self.switches.len() - self.switches_encoded) * frame::CONTROL_FRAME_LEN_MAX
    }

    /// Notes a batch before it is encoded: a refused one ends the run as well.
    pub(super) fn note_run(&mut self, sections: &[Section<'_>]) {
        let partition = match sections {
            [section] => Some(section.partition),
            _ => None,
        };
        if partition.is_none() || self.run.partition != partition {
            self.run = PartitionRun { partition, before: self.encoded_seq };
        }
    }

    /// The place after the buffer, for a frame that attests `durable`.
    pub(super) fn place(&self, durable: Lsn) -> FramePlace {
        let segment = self.segment.as_ref().expect("a frame that fits has a segment");
        let header = segment.header();
        let offset = segment.offset() + self.buffer.len() as u64;
        let lsn = header.lsn_at(offset);
        FramePlace {
            salt: header.salt,
            epoch: header.epoch,
            offset,
            lsn,
            // A sync covers only appended bytes, so this is only a guard: the encoder panics if a
            // frame attests more than lies before it.
            durable: durable.min(lsn),
        }
    }
}

/// A segment that the log has left for another one.
pub(super) struct SealedSegment {
    pub(super) segment: SegmentWriter,
    /// The last logged sequence in it.
    pub(super) last_seq: SeqNo,
    pub(super) sections: SectionIndexBuilder,
}

/// A segment with a header, where its last frame ends, and what follows, in bytes.
#[derive(Clone, Copy)]
pub(in crate::db) struct BegunSegment {
    pub(in crate::db) header: SegmentHeader,
    pub(in crate::db) end: u64,
    /// Length of its index of sections; 0 without one.
    pub(in crate::db) index_bytes: u64,
}

impl BegunSegment {
    pub(in crate::db) fn of(segment: &SegmentWriter) -> BegunSegment {
        BegunSegment { header: *segment.header(), end: segment.offset(), index_bytes: 0 }
    }

    /// Its end in the log.
    pub(in crate::db) fn end_lsn(&self) -> crate::wal::Lsn {
        self.header.lsn_at(self.end)
    }
}

/// The ends of the log in the kernel and on the device, and the segments in between.
pub(super) struct SyncState {
    pub(super) appended_lsn: Lsn,
    pub(super) appended_seq: SeqNo,
    pub(super) durable_lsn: Lsn,
    pub(super) durable_seq: SeqNo,
    /// The largest number through which a caller was promised that every logged operation is durable.
    /// Numbers of unlogged operations are never reached by `durable_seq`.
    pub(super) reported_seq: SeqNo,
    /// The present segment, and closed ones before it that were not synced since.
    pub(super) unsynced: Vec<UnsyncedSegment>,
    /// `true` if a thread syncs.
    pub(super) running: bool,
    /// The thread that syncs waits for those who may ask for the same sync.
    pub(super) is_gathering: bool,
    /// The times that a sync was asked for: by the writer of an appended batch, by a notice, or by a caller that waits.
    pub(super) askers: u64,
    /// Those for which the last sync was made.
    pub(super) durable_askers: u64,
    /// Their number once each one that the last sync has released asks again.
    pub(super) expected_askers: u64,
    /// Why the log takes no more.
    pub(super) failed: Option<Error>,
    /// `true` if a frame after the last sync attests it.
    pub(super) marked: bool,
    pub(super) waiters: DurabilityWaiters,
}

/// A segment that the next sync includes.
#[derive(Clone)]
pub(super) struct UnsyncedSegment {
    pub(super) number: FileNo,
    pub(super) file: Arc<dyn File>,
    /// Its header is durable.
    pub(super) has_next_header: bool,
}

impl UnsyncedSegment {
    pub(super) fn of(segment: &SegmentWriter, has_next_header: bool) -> UnsyncedSegment {
        let number = segment.header().number;
        UnsyncedSegment { number, file: segment.file().clone(), has_next_header }
    }
}

impl SyncState {
    pub(super) fn new(last_seq: SeqNo) -> SyncState {
        SyncState {
            appended_lsn: Lsn(0),
            appended_seq: last_seq,
            durable_lsn: Lsn(0),
            durable_seq: last_seq,
            reported_seq: last_seq,
            unsynced: Vec::new(),
            running: false,
            is_gathering: false,
            askers: 0,
            durable_askers: 0,
            expected_askers: 0,
            failed: None,
            // A log without a frame has nothing that a mark could attest.
            marked: true,
            waiters: DurabilityWaiters::default(),
        }
    }

    /// Returns `true` if the header of this segment is durable, or the segment is removed.
    pub(super) fn has_next_header(&self, number: FileNo) -> bool {
        let unsynced = self.unsynced.iter().find(|segment| segment.number == number);
        unsynced.is_none_or(|segment| segment.has_next_header)
    }

    /// Notes that the headers of the segments through `number` are durable.
    pub(super) fn note_next_header(&mut self, number: FileNo) {
        let unsynced = self.unsynced.iter_mut().filter(|segment| segment.number <= number);
        unsynced.for_each(|segment| segment.has_next_header = true);
    }
}

/// The next task of the log thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::db) enum LogTask {
    /// Nothing is unsynced or unattested.
    Idle,
    /// Frames wait for their sync.
    Sync,
    /// The last sync is not attested yet.
    Mark,
}

/// The present task, and the time since which the log thread has seen it.
#[derive(Default)]
pub(super) struct TaskAge(pub(super) Option<(LogTask, Duration)>);

impl TaskAge {
    /// The time for which `task` has been due, at `now`.
    pub(super) fn age(&mut self, task: LogTask, now: Duration) -> Duration {
        match self.0 {
            // After a clock went back, the count starts again: a due task waits for the interval
            // once more, and not until the clock has caught up.
            Some((same, since)) if same == task && since <= now => now.saturating_sub(since),
            _ => {
                self.0 = Some((task, now));
                Duration::ZERO
            }
        }
    }
}
