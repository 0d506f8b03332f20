//! Segments of the log: making and beginning them, keeping one in reserve, releasing them.

use std::path::PathBuf;

use super::lengths::{Recent, SEGMENT_BYTES_MIN};
use super::state::{BegunSegment, SealedSegment};
use super::{Log, LogWriter};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::AppendMode;
use crate::fs::names::{FileKind, FileName};
use crate::types::{FileNo, SeqNo};
use crate::version::Change;
use crate::wal::{
    Lsn, Reserved, SEGMENT_HEADER_BYTES, SectionIndexBuilder, SegmentHeader, SegmentWriter, salt_of,
};

impl Log {
    fn segment_name(&self, number: FileNo) -> FileName {
        FileName::new(FileKind::Wal, number, self.settings.epoch)
    }

    pub(super) fn segment_path(&self, number: FileNo) -> PathBuf {
        self.segment_name(number).path(&self.settings.dir)
    }

    /// Deletes the file of a segment that no edit ever named, so no other process knows it. If that
    /// fails, the next open does it.
    pub(in crate::db) fn delete_unnamed(&self, number: FileNo) {
        // The space counts as taken until the file is gone.
        if self.settings.fs.delete(&self.segment_path(number)).is_ok() {
            self.files.note_gone(number);
        }
    }

    /// Releases segments that the manifest does not list any more, or that a failed edit named which is
    /// out of doubt. A secondary may read them.
    pub(in crate::db) fn make_obsolete(&self, numbers: impl IntoIterator<Item = FileNo>) {
        let files = numbers.into_iter();
        let files = files.map(|number| (self.segment_name(number), self.files.note_gone(number)));
        self.env.make_obsolete(files.collect());
    }

    /// Makes a segment of `wanted` bytes without a header yet, or as close to that as the disk has
    /// room for, and of at least `needed` bytes. Nothing lists it.
    ///
    /// # Durability
    /// Name and zeros are durable once this returns. A header over durable zeros is torn to zeros
    /// or not at all, so any other content is known as damage.
    fn make_segment(&self, wanted: u64, needed: u64) -> Result<(Reserved, FileNo)> {
        let mut bytes = wanted.max(needed);
        loop {
            // A new file for each attempt: it is unspecified how much space a file keeps after a
            // refused preallocation. From the counter of all files: a number that was used for a
            // deleted segment must not name another file.
            let number = self.settings.numbers.allocate();
            let made = self.make_file(number, bytes);
            if !matches!(made, Ok(Ok(_))) {
                self.delete_unnamed(number);
            }
            match made? {
                Ok(reserved) => return Ok((reserved, number)),
                Err(no_room) if bytes <= needed => return Err(no_room),
                // Halved instead of refused: a nearly full disk can still take small writes.
                Err(_) => bytes = (bytes / 2).max(needed),
            }
        }
    }

    /// A segment of `bytes` bytes; the inner error means that the disk has no room for so many.
    fn make_file(&self, number: FileNo, bytes: u64) -> Result<Result<Reserved>> {
        let path = self.segment_path(number);
        let file = self.settings.files.fs().open_append(&path, AppendMode::IfAbsent)?;
        let reserved = match SegmentWriter::create_reserved(file, &path, bytes) {
            Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(Err(error)),
            reserved => reserved?,
        };
        if self.settings.is_mapped {
            reserved.file().map_appends();
        }
        // Both syncs come before anything lists the segment: a listed segment without a file is
        // `Corruption` at the next open.
        // No caller is promised that a remote has it: a frame of it that is acknowledged has a sync of its own.
        reserved.file().sync_locally()?;
        self.settings.fs.sync_names(&self.settings.dir, std::slice::from_ref(&path))?;
        self.files.note_made(number, bytes);
        Ok(Ok(reserved))
    }

    /// The length of a new segment.
    pub(super) fn segment_bytes(&self, recent: Recent) -> u64 {
        recent.segment_bytes(self.settings.segment_bytes_max)
    }

    /// Registers a segment in the manifest; the same edit removes `spoiled` ones. If the manifest
    /// refuses it, it is returned with the error.
    fn list_segment(
        &self,
        made: (Reserved, FileNo),
        spoiled: &[FileNo],
    ) -> Result<(Reserved, FileNo), ((Reserved, FileNo), Error)> {
        // In one edit: a spoiled segment may have a header that continues the present segment. It
        // must be gone before the present one can be removed, see invariant 5 of `mod.rs`.
        let mut changes = removals(spoiled);
        changes.push(Change::SegmentAdded { file: made.1, epoch: self.settings.epoch });
        match self.env.install_edit(changes) {
            Ok(()) => Ok(made),
            Err(error) => Err((made, error)),
        }
    }

    /// Keeps one segment ready after the present one.
    pub(super) fn ensure_reserve(&self) -> Result<()> {
        let wants_reserve = self.lock().wants_reserve();
        if wants_reserve { self.make_reserve() } else { Ok(()) }
    }

    /// Makes a segment ready, unless one is.
    fn make_reserve(&self) -> Result<()> {
        let mut writer = self.lock();
        if writer.state.reserve.is_some() {
            return Ok(());
        }
        // Sizes are read under the lock, but the file is made without it: a preallocation takes
        // three syncs, and writers would wait for them.
        let wanted = self.segment_bytes(writer.state.recent);
        let unlisted = writer.take_unlisted(0);
        drop(writer);
        // Without the writer's lock: this syncs a file, the folder and the manifest.
        let made = match unlisted {
            Some(made) => made,
            None => self.make_segment(wanted, SEGMENT_BYTES_MIN.min(wanted))?,
        };
        let listed = self.list_segment(made, &[]);
        let mut writer = self.lock();
        let (reserved, number) = match listed {
            Ok(listed) => listed,
            Err((made, error)) => {
                writer.state.unlisted.push(made);
                return Err(error);
            }
        };
        // A new log may have begun meanwhile, without the reserve.
        if !self.env.is_segment_listed(number)? {
            return Ok(());
        }
        let present = writer.present();
        if writer.state.reserve.is_none() && present.is_none_or(|present| present < number) {
            writer.state.reserve = Some((reserved, number));
        } else {
            // The log continued meanwhile, in a segment with a larger number.
            writer.state.spoiled.push(number);
        }
        Ok(())
    }

    /// Frees the reserved space of the log on the disk: an idle log may stay so for long.
    ///
    /// # Cost
    /// An edit of the manifest under the writer's lock, if there is a reserve. Not without the
    /// lock: a segment that was begun meanwhile would come after one that is listed and empty,
    /// which after a crash looks as if the log ended there.
    pub(in crate::db) fn release_reserve(&self) -> Result<()> {
        let mut writer = self.lock();
        // Halved and not cleared: a store that writes in bursts gets segments of a fitting length
        // at once.
        writer.state.recent.fade();
        writer.remove_unused()?;
        let unused = writer.state.segment.as_ref().map_or(0, SegmentWriter::unused);
        // A little is not freed: later appends would have to take the space again.
        if unused > SEGMENT_BYTES_MIN && self.settings.fs.caps().punch {
            writer.give_back()?;
        }
        Ok(())
    }

    /// The segments that lie wholly below `low`, whose removals go into a manifest edit. Not the
    /// spoiled ones: the next segment's edit removes those under the writer's lock, and a flush
    /// that did so as well would remove one twice. Call [`Log::segments_removed`] when that edit is
    /// durable.
    ///
    /// # Durability
    /// The header after each of them is durable: the rest of the log shows how far it came, so that
    /// the next open can distinguish a log that lost everything from one that never began.
    pub(super) fn obsolete_segments(&self, low: Lsn) -> Result<Vec<FileNo>> {
        if self.failure().is_some() {
            // They are removed when a new log begins; nothing can be made durable before.
            return Ok(Vec::new());
        }
        // First, because leaving the present segment makes it obsolete as well.
        let low = self.leave_spent_segment(low)?;
        let writer = self.lock();
        // A prefix only: segments in the middle have to stay while an older one is needed, because
        // replay follows the chain of headers.
        let closed = writer.state.closed.iter();
        let obsolete: Vec<FileNo> = closed
            .take_while(|closed| closed.end_lsn() <= low)
            .map(|closed| closed.header.number)
            .collect();
        let first = writer.first_after(&obsolete);
        let end = closed_end(&writer, &obsolete);
        drop(writer);
        // Durability: a segment that is kept is read after a crash. Frames of a dropped partition may not be
        // durable yet, and no flush has waited for them.
        if let Some(end) = end.filter(|_| self.settings.kept.is_on()) {
            self.sync_through(end)?;
        }
        // The header of the next segment names the end of the last one of these. It is durable before that
        // is removed.
        if let Some(first) = first.filter(|_| !obsolete.is_empty()) {
            self.sync_header(first.number)?;
        }
        Ok(obsolete)
    }

    /// The last number before the segment that is the first one after `obsolete`. Its header is durable: see
    /// [`Log::obsolete_segments`].
    pub(super) fn last_seq_before_first_after(&self, obsolete: &[FileNo]) -> Option<SeqNo> {
        self.lock().first_after(obsolete).map(|first| first.previous_seq)
    }

    /// Begins the next segment if nothing in the present one is needed, so that a fully flushed
    /// database keeps no log; returns `low`, or the end of the log if it did.
    ///
    /// A concurrent writer waits at most for a header: the file is made before the lock is taken.
    /// Under load this does nothing, because the active memtable needs the present segment.
    fn leave_spent_segment(&self, low: Lsn) -> Result<Lsn> {
        if !self.lock().is_obsolete(low) {
            return Ok(low);
        }
        // The file is made before the lock is taken again, so that a writer does not wait for its
        // syncs.
        self.make_reserve()?;
        let mut writer = self.lock();
        // A batch may have been appended while the lock was free.
        if !writer.is_obsolete(low) {
            return Ok(low);
        }
        // Due memtable switches may be in the buffer.
        writer.append()?;
        writer.begin_segment(0)?;
        Ok(writer.lsn())
    }

    /// Releases segments whose removal is durable.
    pub(super) fn segments_removed(&self, numbers: &[FileNo]) {
        if numbers.is_empty() {
            return;
        }
        let mut writer = self.lock();
        // No later edit must name them again.
        writer.state.closed.retain(|closed| !numbers.contains(&closed.header.number));
        writer.state.spoiled.retain(|number| !numbers.contains(number));
        // Their indexes will not be read.
        let sealed = &mut writer.state.sealed;
        sealed.retain(|sealed| !numbers.contains(&sealed.segment.header().number));
        if let Some(first) = writer.first_after(&[]) {
            writer.state.marks.forget_before(first.number);
            self.note_removed(&first);
        }
        drop(writer);
        if self.settings.kept.is_on() {
            numbers.iter().for_each(|number| {
                self.files.note_gone(*number);
            });
        } else {
            self.make_obsolete(numbers.iter().copied());
        }
    }
}

/// The end of the last one of `obsolete`, which are the first closed segments.
fn closed_end(writer: &LogWriter<'_>, obsolete: &[FileNo]) -> Option<Lsn> {
    let last = obsolete.len().checked_sub(1)?;
    writer.state.closed.get(last).map(BegunSegment::end_lsn)
}

fn removals(segments: &[FileNo]) -> Vec<Change> {
    segments.iter().map(|file| Change::SegmentRemoved { file: *file }).collect()
}

impl LogWriter<'_> {
    fn wants_reserve(&self) -> bool {
        self.state.reserve.is_none() && !self.state.closed.is_empty()
    }

    /// Returns `true` if every batch of the log lies below `low`, and the present segment is longer
    /// than a new one would be. Markers after the last batch are useless without it.
    fn is_obsolete(&self, low: Lsn) -> bool {
        let present = self.state.segment.as_ref();
        let is_long = present.is_some_and(|segment| segment.offset() > SEGMENT_BYTES_MIN);
        is_long && self.ends_below(low)
    }

    /// The header of the first live segment after `obsolete`, which are the first ones.
    fn first_after(&self, obsolete: &[FileNo]) -> Option<SegmentHeader> {
        let closed = self.state.closed.get(obsolete.len()).map(|closed| closed.header);
        closed.or_else(|| self.state.segment.as_ref().map(|segment| *segment.header()))
    }

    /// The number of the present segment.
    fn present(&self) -> Option<FileNo> {
        self.state.segment.as_ref().map(|segment| segment.header().number)
    }

    /// A segment that the manifest refused before, if it may still be begun and has `needed` bytes.
    fn take_unlisted(&mut self, needed: u64) -> Option<(Reserved, FileNo)> {
        let present = self.present();
        let unlisted = &mut self.state.unlisted;
        let fits = unlisted.iter().position(|(reserved, number)| {
            reserved.capacity() >= needed && present.is_none_or(|present| present < *number)
        })?;
        Some(unlisted.swap_remove(fits))
    }

    /// Removes the reserve and all segments that will never be begun from the manifest, and releases
    /// them.
    pub(super) fn remove_unused(&mut self) -> Result<()> {
        // As a spoiled one: if the edit fails, the next segment's edit removes it.
        if let Some((_, number)) = self.state.reserve.take() {
            self.state.spoiled.push(number);
        }
        if self.state.spoiled.is_empty() && self.state.unlisted.is_empty() {
            return Ok(());
        }
        // Before the files are deleted: a listed segment without a file refuses the next open.
        self.log.env.install_edit(removals(&self.state.spoiled))?;
        self.release_unused();
        Ok(())
    }

    /// Releases spoiled segments, whose removal is durable, and those that the manifest refused. The
    /// edit came after each refusal and under this lock, so it went into a generation of the manifest
    /// that does not have the refused ones.
    fn release_unused(&mut self) {
        let refused = std::mem::take(&mut self.state.unlisted);
        let refused = refused.into_iter().map(|(_, number)| number);
        let spoiled = std::mem::take(&mut self.state.spoiled);
        self.log.make_obsolete(refused.chain(spoiled));
    }

    /// Frees the space after the last frame of the present segment.
    pub(super) fn give_back(&self) -> Result<()> {
        self.state.segment.as_ref().map_or(Ok(()), SegmentWriter::give_back)?;
        self.log.files.note_given_back();
        Ok(())
    }

    /// Returns `true` if a segment was begun since the last call.
    pub(in crate::db) fn take_segment_switched(&mut self) -> bool {
        std::mem::take(&mut self.state.segment_switched)
    }

    /// The segments that frames were written to and that are still live, in order.
    pub(in crate::db) fn begun(&self) -> Vec<BegunSegment> {
        let present = self.state.segment.as_ref().map(BegunSegment::of);
        self.state.closed.iter().copied().chain(present).collect()
    }

    /// The header of a segment that follows the present one; every place below `durable` is
    /// durable.
    fn next_header(&self, number: FileNo, durable: Lsn) -> SegmentHeader {
        SegmentHeader {
            db: self.log.settings.db_id,
            epoch: self.log.settings.epoch,
            number,
            salt: salt_of(self.log.settings.db_id, self.log.settings.epoch, number),
            base: self.state.lsn(),
            previous: self.state.segment.as_ref().map(SegmentWriter::end),
            manifest_edit: self.log.env.durable_edit(),
            durable,
            previous_seq: self.state.logged_seq,
        }
    }

    /// Begins the next segment, with room for the due memtable switches and a frame of `len` bytes.
    /// The buffer is empty.
    pub(super) fn begin_segment(&mut self, len: usize) -> Result<()> {
        assert!(self.state.buffer.is_empty(), "its frames belong to the present segment");
        let frames = self.state.switches_len_max() + len;
        let (reserved, number) = self.take_segment(frames as u64)?;
        let header = self.next_header(number, self.log.durable_lsn());
        // The reserve is listed in the manifest already, so only the header is written here.
        let begun = reserved.begin(header);
        if begun.is_err() {
            // The header may be complete in the file, and it names the end of the present segment.
            // An append to that segment would lie after the named end, so the log must continue
            // elsewhere.
            self.state.spoiled.push(number);
            self.state.must_switch = true;
        }
        let segment = begun?;
        // After a normal change of segments the header needs no sync of its own: the next sync of
        // the log includes the file, and no frame in it is acknowledged as durable before.
        let replaces_failed = self.state.segment.as_ref().is_some_and(SegmentWriter::is_failed);
        // Durability: the bytes of a failed append after the end are known not to count before its
        // writers get the error.
        if replaces_failed && let Err(error) = segment.file().sync() {
            return Err(self.log.fail(error));
        }
        // Before the first frame: a sync that begins now must include this file.
        self.log.note_begun(&segment);
        self.log.files.note_begun(number, segment.offset());
        self.state.recent.segments = self.state.recent.segments.saturating_add(1);
        self.state.recent.fade();
        let sections = std::mem::take(&mut self.state.sections);
        if let Some(old) = self.state.segment.replace(segment) {
            self.state.closed.push_back(BegunSegment::of(&old));
            let last_seq = self.state.logged_seq;
            self.state.sealed.push(SealedSegment { segment: old, last_seq, sections });
            // The thread may sleep for a second, and a writer that fills the segment would make the next.
            self.log.env.wake_log_thread();
        }
        // The commit path seals memtables that pin too much of the log when it sees this, after the
        // group.
        self.state.segment_switched = true;
        self.state.must_switch = false;
        self.encode_switches();
        Ok(())
    }

    /// The reserve, or a new segment, with room for frames of `len` bytes; nothing is spoiled then.
    pub(super) fn take_reserve(&mut self, len: u64) -> Result<(Reserved, FileNo)> {
        let needed = len + SEGMENT_HEADER_BYTES;
        if let Some((reserved, number)) = self.state.reserve.take() {
            // A batch that is larger than the reserve gets a segment of its own length.
            if reserved.capacity() >= needed {
                if !self.state.spoiled.is_empty() {
                    let removed = self.log.env.install_edit(removals(&self.state.spoiled));
                    if let Err(error) = removed {
                        self.state.reserve = Some((reserved, number));
                        return Err(error);
                    }
                    self.release_unused();
                }
                return Ok((reserved, number));
            }
            // It has a smaller number than the segment that is made now.
            self.state.spoiled.push(number);
        }
        let made = match self.take_unlisted(needed) {
            Some(made) => made,
            None => {
                let wanted = self.log.segment_bytes(self.state.recent);
                self.log.make_segment(wanted, needed)?
            }
        };
        match self.log.list_segment(made, &self.state.spoiled) {
            Ok(listed) => {
                self.release_unused();
                Ok(listed)
            }
            Err((made, error)) => {
                // Kept for the next attempt: a new file for each would fill the disk.
                self.state.unlisted.push(made);
                Err(error)
            }
        }
    }

    /// A durable segment that continues the log, without any of it, and that nothing lists yet: for
    /// [`LogWriter::restart`]. Frames that were not appended are discarded.
    pub(in crate::db) fn fresh_segment(&mut self) -> Result<SegmentWriter> {
        // Only memtable switches, which stay due: batches are in the buffer only while a group is
        // being committed.
        self.state.clear_buffer();
        let wanted = self.log.segment_bytes(self.state.recent);
        let (reserved, number) = self.log.make_segment(wanted, SEGMENT_HEADER_BYTES)?;
        // When this segment counts, the log before it is in tables.
        let header = self.next_header(number, self.lsn());
        let begun = reserved.begin(header).and_then(|segment| {
            segment.file().sync()?;
            Ok(segment)
        });
        begun.inspect_err(|_| self.log.delete_unnamed(number))
    }

    /// Continues in `segment`, which is durable and listed, and the last one: everything before it
    /// is in tables, and so durable. Ends the failure.
    pub(in crate::db) fn restart(&mut self, segment: SegmentWriter) {
        assert!(self.state.buffer.is_empty() && segment.is_empty());
        self.log.note_restarted(&segment, self.state.logged_seq);
        self.log.files.note_begun(segment.header().number, segment.offset());
        self.state.segment = Some(segment);
        self.state.sections = SectionIndexBuilder::default();
        self.state.marks.clear();
        self.state.reserve = None;
        self.state.closed.clear();
        self.state.sealed.clear();
        // The edit that listed the new segment removed all others.
        self.release_unused();
        self.state.must_switch = false;
    }
}
