//! [`LogWriter`]: frames into the buffer, and the buffer into the present segment.
//!
//! Used by the leader of a group, for marks and for the clean end of the log. A frame is encoded
//! for the place after the buffer. So the caller checks [`LogWriter::has_room`] before it encodes,
//! and appends the buffer first if there is no room.

use parking_lot::MutexGuard;

use super::Log;
use super::state::{PartitionRun, WriterState};
use crate::error::Result;
use crate::types::{MemtableId, PartitionId, SeqNo};
use crate::version::{Change, LogCut};
use crate::wal::{Control, FramePlace, LogPlace, Lsn, Section, frame};

/// A buffer that grew beyond this for one large batch is shrunk again.
const BUFFER_BYTES_KEPT: usize = 4 << 20;
/// The frame of a batch from this size on goes to the segment from its sections' own buffers, if it is
/// alone in its group: a copy would cost more than further pieces of the append do.
const LONE_BATCH_BYTES: usize = 2 << 10;
/// The same of any batch: a copy would cost more than a further call of the file does.
const LARGE_BATCH_BYTES: usize = 64 << 10;
/// More than any control frame takes.
const CONTROL_BYTES_MAX: usize = 128;

/// The log under its lock: the right to append.
pub(in crate::db) struct LogWriter<'a> {
    pub(super) log: &'a Log,
    pub(super) state: MutexGuard<'a, WriterState>,
}

impl Log {
    /// Waits for the writer's lock. While the result lives no other thread appends a frame or
    /// begins a segment.
    pub(in crate::db) fn lock(&self) -> LogWriter<'_> {
        LogWriter { log: self, state: self.writer.lock() }
    }

    /// As [`Log::lock`]; `None` if another thread has the lock.
    pub(in crate::db) fn try_lock(&self) -> Option<LogWriter<'_>> {
        Some(LogWriter { log: self, state: self.writer.try_lock()? })
    }
}

impl LogWriter<'_> {
    /// The sequence number that is taken next.
    pub(in crate::db) fn next_seq(&self) -> SeqNo {
        self.state.next_seq
    }

    /// The sequence number that was taken last.
    pub(in crate::db) fn last_seq(&self) -> SeqNo {
        SeqNo::new(self.state.next_seq.get() - 1).expect("the next one is above it")
    }

    /// Settles the log through its end: see [`LogEnv::settle_log`](super::LogEnv::settle_log).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](crate::error::ErrorKind::Fenced): the last append does not count.
    pub(in crate::db) fn settle(&self) -> Result<()> {
        self.log.env.settle_log(self.state.lsn())
    }

    /// Takes the next `count` sequence numbers and returns the first. They are used up even if the
    /// operation fails.
    pub(in crate::db) fn take_seqs(&mut self, count: u64) -> SeqNo {
        let first = self.state.next_seq;
        self.state.next_seq = first.plus(count);
        first
    }

    /// The end of the log, without the buffer.
    pub(in crate::db) fn lsn(&self) -> Lsn {
        self.state.lsn()
    }

    /// Returns `true` if a batch fits into the present segment after the encoded frames.
    pub(in crate::db) fn has_room(&self, sections: &[Section<'_>]) -> bool {
        self.state.fits(frame::batch_frame_len_max(sections) + self.state.switches_len_max())
    }

    /// Notes that the writer of the next batch asks for a sync.
    pub(in crate::db) fn note_asker(&mut self) {
        self.state.askers += 1;
    }

    /// Encodes a batch into the buffer, under the next `operations` sequence numbers, which the
    /// caller takes; returns the begin of its frame. Begins a segment if the present one has no
    /// room; the buffer is appended before that, see [`LogWriter::append`].
    ///
    /// # Errors
    /// Those of a new segment. Nothing is encoded then.
    pub(in crate::db) fn encode_batch(
        &mut self,
        sections: &[Section<'_>],
        operations: u64,
    ) -> Result<Lsn> {
        let (place, first, previous) = self.begin_batch(sections, operations)?;
        let state = &mut *self.state;
        let len = frame::encode_batch(&mut state.buffer, &place, first, previous, sections) as u64;
        state.sections.note_batch(place.offset, len, first, previous, sections);
        Ok(place.lsn)
    }

    /// Returns `true` if a batch should be appended by [`LogWriter::append_large`]. `is_alone` means that its
    /// group has no other.
    pub(in crate::db) fn is_large(sections: &[Section<'_>], is_alone: bool) -> bool {
        let bytes: usize = sections.iter().map(|section| section.bytes.len()).sum();
        bytes >= if is_alone { LONE_BATCH_BYTES } else { LARGE_BATCH_BYTES }
    }

    /// Appends a batch as [`LogWriter::encode_batch`] and [`LogWriter::append`] do together, without
    /// a copy of its sections. The buffer was appended before.
    ///
    /// # Errors
    /// Those of both. The frame does not count then, now or after a crash.
    pub(in crate::db) fn append_large(
        &mut self,
        sections: &[Section<'_>],
        operations: u64,
    ) -> Result<Lsn> {
        let (place, first, previous) = self.begin_batch(sections, operations)?;
        let start = self.state.buffer.len();
        frame::encode_batch_header(&mut self.state.buffer, &place, first, previous, sections);
        let header = self.state.buffer.len() - start;
        let body: usize = sections.iter().map(|section| section.bytes.len()).sum();
        let padding = frame::padding(header + body);
        let len = (header + body + padding.len()) as u64;
        self.state.sections.note_batch(place.offset, len, first, previous, sections);
        self.append_with(sections, padding)?;
        Ok(place.lsn)
    }

    /// Makes room for a batch in the segment, and counts its sequence numbers as encoded. Returns the
    /// place of its frame, after the due memtable switches, its first sequence number, and the last
    /// one of the frames before it.
    fn begin_batch(
        &mut self,
        sections: &[Section<'_>],
        operations: u64,
    ) -> Result<(FramePlace, SeqNo, SeqNo)> {
        // Checked again after the commit path: a failed append has already begun the next segment,
        // and may have encoded memtable switches into it.
        if !self.has_room(sections) {
            let begun = self.begin_segment(frame::batch_frame_len_max(sections));
            begun.inspect_err(|error| self.log.note_refusal(error))?;
        }
        // The switches come first: replay assigns the operations of this frame to the new
        // memtables.
        self.encode_switches();
        // `durable` may grow until the append. A smaller value is correct: a frame may attest less.
        let place = self.state.place(self.log.durable_lsn());
        self.state.note_run(sections);
        let first = self.state.next_seq;
        let previous = self.state.encoded_seq;
        // Counted before the append. If that fails, `clear_buffer` sets it back to the last number
        // that is in a segment, so the next frame does not attest a number that was never logged.
        self.state.encoded_seq = first.plus(operations - 1);
        Ok((place, first, previous))
    }

    /// Notes that later operations of `partition` go to `memtable`.
    pub(in crate::db) fn note_switch(&mut self, partition: PartitionId, memtable: MemtableId) {
        self.state.switches.push(Control::MemtableSwitch { partition, memtable });
    }

    /// Encodes the memtable switches that are not in the buffer yet: later operations go to the new
    /// memtables.
    pub(super) fn encode_switches(&mut self) {
        for idx in self.state.switches_encoded..self.state.switches.len() {
            let control = self.state.switches[idx];
            self.encode_control(control);
        }
        // They leave the list with the append and not here: if their frames are discarded, they
        // must be encoded again. Otherwise a replay would put later operations into memtables that
        // are in tables.
        self.state.switches_encoded = self.state.switches.len();
    }

    fn encode_control(&mut self, control: Control) {
        let place = self.state.place(self.log.durable_lsn());
        let previous = self.state.encoded_seq;
        let state = &mut *self.state;
        let len = frame::encode_control(&mut state.buffer, &place, previous, control) as u64;
        match control {
            Control::MemtableSwitch { partition, .. } => {
                state.sections.note_switch(place.offset, len, partition);
            }
            _ => state.sections.note_other(place.offset, len),
        }
    }

    /// Appends the buffer to the segment: one `write`.
    ///
    /// # Errors
    /// Then none of the frames that were in the buffer count, now or after a crash.
    pub(in crate::db) fn append(&mut self) -> Result<()> {
        if self.state.buffer.is_empty() {
            return Ok(());
        }
        self.append_with(&[], &[])
    }

    /// Appends the buffer, the sections of the batch whose header comes last in it, and `padding`.
    fn append_with(&mut self, sections: &[Section<'_>], padding: &[u8]) -> Result<()> {
        let state = &mut *self.state;
        let segment = state.segment.as_mut().expect("a frame was encoded for it");
        // One call for the whole group. The bodies of a large batch are appended from the memory of
        // their sections.
        let start = segment.offset();
        let appended = match sections {
            [] => segment.append(&state.buffer),
            [section] => segment.append_pieces(&[&state.buffer, section.bytes, padding]),
            sections => {
                let bodies = sections.iter().map(|section| section.bytes);
                let pieces: Vec<&[u8]> =
                    [&*state.buffer].into_iter().chain(bodies).chain([padding]).collect();
                segment.append_pieces(&pieces)
            }
        };
        let lsn = segment.lsn();
        self.log.files.note_appended(segment.offset());
        let len = segment.offset() - start;
        if let Err(error) = appended {
            self.log.note_refusal(&error);
            state.clear_buffer();
            // Any part of the buffer may be in the file. The header of the next segment records
            // that none of it counts, and is durable before the writers get the error. The tempting
            // alternative, a truncation of the file, is another write to a file that has just
            // failed, and a crash may undo it. If no segment can be begun now, the next write tries
            // again.
            let _ = self.begin_segment(0);
            return Err(error);
        }
        state.buffer.clear();
        // One huge batch would otherwise keep its memory until the database is closed.
        state.buffer.shrink_to(BUFFER_BYTES_KEPT);
        // A control frame changes no sequence number and is no reason to keep a segment.
        if state.logged_seq != state.encoded_seq {
            state.logged_seq = state.encoded_seq;
            state.batches_end = lsn;
            self.log.note_accepted();
        }
        state.marks.note(lsn, segment.end(), state.logged_seq);
        state.switches.drain(..state.switches_encoded);
        state.switches_encoded = 0;
        state.recent.appends += 1;
        state.recent.bytes = state.recent.bytes.saturating_add(len);
        self.log.env.counters().wal_bytes.add(len);
        // Only after the append: a sync that reads this place must find the bytes in the file.
        let askers = std::mem::take(&mut self.state.askers);
        self.log.note_appended(lsn, self.state.logged_seq, askers);
        // One wake-up for all appends until the thread has looked, see `notify_thread`.
        self.log.notify_thread();
        Ok(())
    }

    /// Returns `true` if every batch of the log lies below `low`.
    pub(super) fn ends_below(&self, low: Lsn) -> bool {
        self.state.batches_end <= low
    }

    /// Returns `true` if all operations after `durable` are of `partition`, including those that are encoded
    /// and not appended.
    pub(super) fn has_run_of(&self, partition: PartitionId, durable: SeqNo) -> bool {
        let PartitionRun { partition: run_of, before } = self.state.run;
        run_of == Some(partition) && before <= durable
    }

    /// Appends a control frame.
    pub(super) fn append_control(&mut self, control: Control) -> Result<()> {
        // The buffer is appended first, because its frames are encoded for the present segment.
        if !self.state.fits(CONTROL_BYTES_MAX + self.state.switches_len_max()) {
            self.append()?;
            self.begin_segment(CONTROL_BYTES_MAX)?;
        }
        self.encode_switches();
        self.encode_control(control);
        self.append()?;
        // A clean close is durable in the manifest, which must name no place after a fence.
        self.settle()
    }

    /// Ends the log cleanly: a last frame, then a durable edit that names the log's end.
    pub(in crate::db) fn close(&mut self) -> Result<()> {
        if self.state.segment.is_none() {
            return Ok(());
        }
        // Both come before the last frame, because this frame attests the sync and the last edit.
        // An edit after it would not be attested.
        self.log.sync_all()?;
        self.remove_unused()?;
        // Only the last sync makes this frame attest anything. It attests the one before.
        self.append_control(Control::CleanClose { manifest_edit: self.log.env.durable_edit() })?;
        self.log.sync_all()?;
        let segment = self.state.segment.as_ref().expect("a frame was just appended");
        let LogPlace { segment, offset } = segment.end();
        let cut = LogCut { segment, offset, last_seq: self.state.logged_seq };
        // The manifest names the end as well. If the device lost the last frames and returned
        // zeros, nothing in the log would show that they existed.
        self.log.env.install_edit(vec![Change::LogClosed(cut)])?;
        if self.log.settings.fs.caps().punch {
            // The log is closed even if this fails, and the next open removes the file.
            let _ = self.give_back();
        }
        Ok(())
    }
}
