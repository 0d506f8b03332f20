//! The log under the commit path: segments, syncs, markers, and which segments may go.
//!
//! Invariants:
//! 1. A segment is registered in the manifest, and its name durable, before a frame goes into it;
//!    a live segment that is missing at the next open is therefore `Corruption`.
//! 2. Segments are synced in order: what is durable is always a prefix of the log.
//! 3. After a failed append the segment is closed at its last good frame; the header of the next
//!    one, durable before anything in it is acknowledged, names that end.
//! 4. After a failed sync nothing that was written before is synced again: the store turns
//!    read-only, until `resume.rs` has begun the log anew behind tables.
//! 5. Segments are begun in the order of their numbers, because replay follows the numbers. One
//!    that was overtaken, or could not be begun, is spoiled: it leaves the manifest no later than
//!    the next segment is begun, and so before the one that it could name as its last is let go.

use std::collections::VecDeque;
use std::sync::Arc;

use super::DbInner;
use super::verify::Begun;
use crate::error::{Error, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{AppendMode, File};
use crate::types::{FileNo, MemtableId, PartitionId, SeqNo};
use crate::version::{Change, LogCut};
use crate::wal::{
    Control, FramePlace, LogPlace, Lsn, Reserved, SegmentHeader, SegmentWriter, frame, salt_of,
};

/// A buffer that grew beyond this for one large batch is given back.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// What the leader of the commit path owns.
pub(super) struct Pipeline {
    /// The next sequence number.
    pub(super) next_seq: SeqNo,
    /// Frames that are encoded and not yet appended.
    pub(super) buffer: Vec<u8>,
    /// The last sequence number in a frame, appended or in the buffer.
    pub(super) encoded_seq: SeqNo,
    /// Where the frame encoded last begins.
    pub(super) frame_lsn: Lsn,
    /// Whether a segment was begun since this was last taken.
    pub(super) segment_switched: bool,
    /// The last sequence number in an appended frame.
    pub(super) logged_seq: SeqNo,
    pub(super) segment: Option<SegmentWriter>,
    pub(super) reserve: Option<(Reserved, FileNo)>,
    /// Closed segments that are still live.
    pub(super) closed: VecDeque<Begun>,
    /// Live segments that will never be used.
    pub(super) spoiled: Vec<FileNo>,
    /// Whether a spoiled segment may hold a header that ends the present one here.
    pub(super) must_switch: bool,
    /// Memtable switches that are not in the log yet, and how many of them are in the buffer.
    switches: Vec<Control>,
    pub(super) switches_encoded: usize,
}

impl Pipeline {
    pub(super) fn new(last_seq: SeqNo) -> Pipeline {
        Pipeline {
            next_seq: last_seq.plus(1),
            buffer: Vec::new(),
            encoded_seq: last_seq,
            frame_lsn: Lsn(0),
            segment_switched: false,
            logged_seq: last_seq,
            segment: None,
            reserve: None,
            closed: VecDeque::new(),
            spoiled: Vec::new(),
            must_switch: false,
            switches: Vec::new(),
            switches_encoded: 0,
        }
    }

    /// Where the log ends, without the buffer.
    pub(super) fn lsn(&self) -> Lsn {
        self.segment.as_ref().map_or(Lsn(0), SegmentWriter::lsn)
    }

    /// The most that encoding the pending memtable switches takes, in bytes.
    pub(super) fn switches_len_max(&self) -> usize {
        (self.switches.len() - self.switches_encoded) * frame::CONTROL_FRAME_LEN_MAX
    }

    /// Whether a frame of `len` bytes fits behind the buffer.
    pub(super) fn fits(&self, len: usize) -> bool {
        let len = self.buffer.len() + len;
        let fits = |segment: &SegmentWriter| !segment.is_failed() && segment.fits(len);
        !self.must_switch && self.segment.as_ref().is_some_and(fits)
    }

    /// The place behind the buffer, for a frame that attests `durable`.
    pub(super) fn place(&self, durable: Lsn) -> FramePlace {
        let segment = self.segment.as_ref().expect("a frame that fits has a segment");
        let header = segment.header();
        let offset = segment.offset() + self.buffer.len() as u64;
        let (salt, epoch, lsn) = (header.salt, header.epoch, header.lsn_at(offset));
        FramePlace { salt, epoch, offset, lsn, durable: durable.min(lsn) }
    }

    pub(super) fn note_switch(&mut self, partition: PartitionId, memtable: MemtableId) {
        self.switches.push(Control::MemtableSwitch { partition, memtable });
    }

    /// The segments that frames were written to and that are still live, in order.
    pub(super) fn begun(&self) -> Vec<Begun> {
        let present = self.segment.as_ref().map(Begun::of);
        self.closed.iter().copied().chain(present).collect()
    }

    /// Where the log ends as a manifest edit names it.
    fn cut(&self) -> Option<LogCut> {
        let LogPlace { segment, offset } = self.segment.as_ref()?.end();
        Some(LogCut { segment, offset, last_seq: self.logged_seq })
    }
}

/// How far the log is in the kernel, and what has to be synced for that.
#[derive(Default)]
pub(super) struct Written {
    pub(super) lsn: Lsn,
    pub(super) seq: SeqNo,
    /// The present segment's file, and closed ones before it that were not synced since.
    pub(super) files: Vec<Arc<dyn File>>,
}

/// How far the log is on the device.
pub(super) struct SyncState {
    pub(super) lsn: Lsn,
    pub(super) seq: SeqNo,
    pub(super) running: bool,
    pub(super) failed: Option<Error>,
    /// Whether a frame behind the last sync attests it.
    pub(super) marked: bool,
}

impl SyncState {
    pub(super) fn new(last_seq: SeqNo) -> SyncState {
        SyncState { lsn: Lsn(0), seq: last_seq, running: false, failed: None, marked: true }
    }
}

/// What the log thread should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogChore {
    /// Nothing is unsynced or unattested.
    Rest,
    /// Frames wait for their sync.
    Sync,
    /// The last sync is not attested yet.
    Mark,
}

impl DbInner {
    /// How far the log is durable.
    pub(super) fn durable_lsn(&self) -> Lsn {
        self.commit.sync.lock().lsn
    }

    /// The newest sequence number that is durable, with every logged one before it.
    pub(super) fn durable_seq(&self) -> SeqNo {
        self.commit.sync.lock().seq
    }

    /// Appends the pipeline's buffer and says so to those who sync.
    pub(super) fn append_buffer(&self, pipeline: &mut Pipeline) -> Result<()> {
        if pipeline.buffer.is_empty() {
            return Ok(());
        }
        let segment = pipeline.segment.as_mut().expect("a frame was encoded for it");
        let appended = segment.append(&pipeline.buffer);
        let len = pipeline.buffer.len();
        pipeline.buffer.clear();
        pipeline.buffer.shrink_to(BUFFER_BYTES_KEPT);
        if let Err(error) = appended {
            pipeline.encoded_seq = pipeline.logged_seq;
            pipeline.switches_encoded = 0;
            // Any part of the buffer may have reached the file. The next segment's header, which
            // says that none of it counts, is durable before the writers hear of the failure. If
            // no segment can be begun now, the next write tries again.
            let _ = self.next_segment(pipeline, 0);
            return Err(error);
        }
        self.counters.wal_bytes.add(len as u64);
        pipeline.logged_seq = pipeline.encoded_seq;
        pipeline.switches.drain(..std::mem::take(&mut pipeline.switches_encoded));
        let mut written = self.commit.written.lock();
        written.lsn = segment.lsn();
        written.seq = pipeline.logged_seq;
        drop(written);
        self.log_active();
        Ok(())
    }

    /// Begins the next segment, with room for a frame of `len` bytes. The buffer is empty.
    pub(super) fn next_segment(&self, pipeline: &mut Pipeline, len: u64) -> Result<()> {
        assert!(pipeline.buffer.is_empty(), "its frames belong to the present segment");
        let (reserved, number) = self.take_segment(pipeline, len)?;
        let old = pipeline.segment.as_ref();
        let header = SegmentHeader {
            db: self.db_id,
            epoch: self.epoch,
            number,
            salt: salt_of(self.db_id, self.epoch, number),
            base: pipeline.lsn(),
            previous: old.map(SegmentWriter::end),
            manifest_edit: self.durable_edit(),
            durable: self.durable_lsn(),
            previous_seq: pipeline.logged_seq,
        };
        let replaces_failed = old.is_some_and(SegmentWriter::is_failed);
        let segment = reserved.begin(header).inspect_err(|_| {
            // Its header may be whole, and says where the present segment ends.
            pipeline.spoiled.push(number);
            pipeline.must_switch = true;
        })?;
        if replaces_failed && let Err(error) = segment.file().sync() {
            return Err(self.latch_failure(error));
        }
        if let Some(old) = pipeline.segment.replace(segment) {
            pipeline.closed.push_back(Begun::of(&old));
        }
        let segment = pipeline.segment.as_ref().expect("it was just begun");
        let mut written = self.commit.written.lock();
        written.files.push(segment.file().clone());
        written.lsn = segment.lsn();
        drop(written);
        pipeline.segment_switched = true;
        pipeline.must_switch = false;
        self.encode_switches(pipeline);
        Ok(())
    }

    /// Encodes the memtable switches that are not in the buffer yet: what follows goes to the new
    /// memtables.
    pub(super) fn encode_switches(&self, pipeline: &mut Pipeline) {
        for idx in pipeline.switches_encoded..pipeline.switches.len() {
            let (place, control) = (pipeline.place(self.durable_lsn()), pipeline.switches[idx]);
            frame::encode_control(&mut pipeline.buffer, &place, pipeline.encoded_seq, control);
        }
        pipeline.switches_encoded = pipeline.switches.len();
    }

    /// The reserve, or a new segment with room for a frame of `len` bytes; nothing is spoiled then.
    fn take_segment(&self, pipeline: &mut Pipeline, len: u64) -> Result<(Reserved, FileNo)> {
        let bytes = self.options.wal_segment_bytes;
        let room = len + crate::wal::SEGMENT_HEADER_BYTES;
        if room > bytes {
            // The reserve has a smaller number than the segment that is made now.
            pipeline.spoiled.extend(pipeline.reserve.take().map(|(_, number)| number));
        }
        let spoiled = pipeline.spoiled.clone();
        if pipeline.reserve.is_none() {
            pipeline.reserve = Some(self.reserve_segment(room.max(bytes), &spoiled)?);
        } else if !spoiled.is_empty() {
            self.install(
                spoiled.iter().map(|file| Change::SegmentRemoved { file: *file }).collect(),
            )?;
        }
        pipeline.spoiled.clear();
        for number in spoiled {
            // If this fails, the next open removes it.
            let _ = self.delete_segment(number);
        }
        Ok(pipeline.reserve.take().expect("made above if there was none"))
    }

    fn delete_segment(&self, number: FileNo) -> Result<()> {
        self.fs.delete(&FileName::new(FileKind::Wal, number, self.epoch).path(&self.dir))
    }

    /// Makes, preallocates and registers a segment whose header is not written yet; the same edit
    /// removes those that are spoiled.
    fn reserve_segment(&self, bytes: u64, spoiled: &[FileNo]) -> Result<(Reserved, FileNo)> {
        let number = self.numbers.allocate();
        let path = FileName::new(FileKind::Wal, number, self.epoch).path(&self.dir);
        let file = self.fs.open_append(&path, AppendMode::IfAbsent)?;
        let reserved = SegmentWriter::create_reserved(file, &path, bytes).and_then(|reserved| {
            // Durability: its zeros too. A header over them is torn to zeros or not at all, so
            // that one which is neither is known as damage.
            reserved.file().sync()?;
            self.fs.sync_dir(&self.dir)?;
            Ok(reserved)
        });
        let reserved = match reserved {
            Ok(reserved) => reserved,
            Err(error) => {
                // Nothing names it; if this fails too, the next open removes it.
                let _ = self.fs.delete(&path);
                return Err(error);
            }
        };
        let removed = spoiled.iter().map(|file| Change::SegmentRemoved { file: *file });
        let added = Change::SegmentAdded { file: number, epoch: self.epoch };
        self.install(removed.chain([added]).collect())?;
        Ok((reserved, number))
    }

    /// Keeps one segment ready behind the present one.
    pub(super) fn ensure_reserve(&self) -> Result<()> {
        let wanted = |p: &Pipeline| p.reserve.is_none() && !p.closed.is_empty();
        if !wanted(&self.between_groups()) {
            return Ok(());
        }
        let reserve = self.reserve_segment(self.options.wal_segment_bytes, &[])?;
        let mut pipeline = self.between_groups();
        // The log may have been begun anew meanwhile, without the reserve.
        let is_listed = self.catalog.edit()?.current().log_segments.contains_key(&reserve.1);
        if !is_listed {
            return Ok(());
        }
        let is_next = pipeline.segment.as_ref().is_none_or(|s| s.header().number < reserve.1);
        if pipeline.reserve.is_none() && is_next {
            pipeline.reserve = Some(reserve);
        } else {
            // The log went on meanwhile, in a segment with a larger number.
            pipeline.spoiled.push(reserve.1);
        }
        Ok(())
    }

    /// Waits until the log is durable through `lsn`, syncing it if nobody does.
    pub(super) fn sync_through(&self, lsn: Lsn) -> Result<()> {
        let mut sync = self.commit.sync.lock();
        loop {
            if sync.lsn >= lsn {
                return Ok(());
            }
            if let Some(error) = &sync.failed {
                return Err(error.clone());
            }
            if !sync.running {
                break;
            }
            self.commit.synced.wait(&mut sync);
        }
        sync.running = true;
        drop(sync);
        let (target, seq, files) = {
            let written = self.commit.written.lock();
            (written.lsn, written.seq, written.files.clone())
        };
        // Durability: no place in the log is durable before the values are that handles below it
        // point to. Their handles are in what was written, so their `put` has returned.
        let result =
            self.sync_stores().and_then(|()| files.iter().try_for_each(|file| file.sync()));
        self.counters.wal_syncs.add(files.len() as u64);
        let result = result.map_err(|error| self.latch_failure(error));
        let mut sync = self.commit.sync.lock();
        sync.running = false;
        match &result {
            Ok(()) => {
                (sync.lsn, sync.seq, sync.marked) = (target, seq, false);
                // All but the present segment's file are closed and now durable.
                let done = files.len() - 1;
                self.commit.written.lock().files.drain(..done);
            }
            // `latch_failure` has noted it.
            Err(_) => assert!(sync.failed.is_some(), "no sync follows before that is made good"),
        }
        self.commit.synced.notify_all();
        drop(sync);
        self.log_active();
        result
    }

    /// Makes the values durable that handles in the log point to.
    pub(super) fn sync_stores(&self) -> Result<()> {
        let partitions = self.live_partitions();
        partitions.iter().filter_map(|partition| partition.store()).try_for_each(|s| s.sync())
    }

    /// Waits until every logged operation through `seq` is durable.
    pub(super) fn sync_through_seq(&self, seq: SeqNo) -> Result<()> {
        if self.durable_seq() >= seq {
            return Ok(());
        }
        let lsn = self.commit.written.lock().lsn;
        self.sync_through(lsn)
    }

    /// What is left to do for the log.
    pub(super) fn log_chore(&self) -> LogChore {
        let written = self.commit.written.lock().lsn;
        let sync = self.commit.sync.lock();
        if sync.failed.is_some() {
            LogChore::Rest
        } else if sync.lsn < written {
            LogChore::Sync
        } else if !sync.marked {
            LogChore::Mark
        } else {
            LogChore::Rest
        }
    }

    /// Syncs what is written.
    pub(super) fn sync_log(&self) -> Result<()> {
        let lsn = self.commit.written.lock().lsn;
        self.sync_through(lsn)
    }

    /// Appends and syncs a frame that attests the last sync and the manifest's last edit.
    pub(super) fn mark_idle(&self) -> Result<()> {
        let mut pipeline = self.between_groups();
        self.check_open()?;
        if self.log_chore() != LogChore::Mark {
            return Ok(());
        }
        let manifest_edit = self.durable_edit();
        self.append_control(&mut pipeline, Control::IdleMarker { manifest_edit })?;
        let lsn = pipeline.lsn();
        drop(pipeline);
        self.sync_through(lsn)?;
        let mut sync = self.commit.sync.lock();
        // A later sync has nothing behind it that attests it.
        sync.marked |= sync.lsn == lsn;
        Ok(())
    }

    fn append_control(&self, pipeline: &mut Pipeline, control: Control) -> Result<()> {
        const CONTROL_BYTES_MAX: usize = 128;
        if !pipeline.fits(CONTROL_BYTES_MAX) {
            self.next_segment(pipeline, CONTROL_BYTES_MAX as u64)?;
        }
        self.encode_switches(pipeline);
        let place = pipeline.place(self.durable_lsn());
        frame::encode_control(&mut pipeline.buffer, &place, pipeline.encoded_seq, control);
        self.append_buffer(pipeline)
    }

    /// Ends the log cleanly: a last frame, then a durable edit that names the log's end.
    pub(super) fn close_log(&self, pipeline: &mut Pipeline) -> Result<()> {
        if pipeline.segment.is_none() {
            return Ok(());
        }
        self.sync_log()?;
        let manifest_edit = self.durable_edit();
        self.append_control(pipeline, Control::CleanClose { manifest_edit })?;
        self.sync_log()?;
        let cut = pipeline.cut().expect("a frame was just appended");
        self.install(vec![Change::LogClosed(cut)])
    }

    /// The segments that lie wholly below `low`, whose removals go into a manifest edit. Not the
    /// spoiled ones: the next segment's edit removes those under the pipeline's lock, and a flush
    /// that did so as well would remove one twice. Call [`DbInner::segments_removed`] when that edit is durable.
    ///
    /// # Durability
    /// The header behind each of them is durable: what is left of the log says how far it came,
    /// so that the next open can tell a log that lost everything from one that never began.
    pub(super) fn obsolete_segments(&self, low: Lsn) -> Result<Vec<FileNo>> {
        if self.is_log_failed() {
            // They go when the log is begun anew; nothing can be made durable before.
            return Ok(Vec::new());
        }
        let pipeline = self.between_groups();
        let obsolete = pipeline.closed.iter().take_while(|closed| closed.end_lsn() <= low);
        let obsolete: Vec<_> = obsolete.copied().collect();
        drop(pipeline);
        if obsolete.last().is_some_and(|closed| closed.end_lsn() >= self.durable_lsn()) {
            self.sync_log()?;
        }
        Ok(obsolete.into_iter().map(|closed| closed.header.number).collect())
    }

    /// Deletes segments whose removal is durable.
    pub(super) fn segments_removed(&self, numbers: &[FileNo]) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let mut pipeline = self.between_groups();
        pipeline.closed.retain(|closed| !numbers.contains(&closed.header.number));
        pipeline.spoiled.retain(|number| !numbers.contains(number));
        drop(pipeline);
        numbers.iter().try_for_each(|number| self.delete_segment(*number))
    }

    /// Everything in the log below the result is in tables, apart from memtables of `flushing`
    /// through the given id, whose flush is about to be installed.
    pub(super) fn log_low_water(&self, flushing: Option<(PartitionId, MemtableId)>) -> Lsn {
        // Loaded first: whatever is applied later lies above it.
        let applied = self.commit.applied_lsn();
        let mut low = applied;
        for partition in self.live_partitions() {
            for memtable in partition.view().memtables() {
                let covered = flushing
                    .is_some_and(|(id, through)| partition.id == id && memtable.id <= through);
                if let Some(first) = memtable.first_lsn().filter(|_| !covered) {
                    low = low.min(Lsn(first));
                }
            }
        }
        low
    }
}
