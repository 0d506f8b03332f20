//! [`LogTail`]: the log of a database that another process writes, read once.
//!
//! It reads the headers of all frames, in order, and notes the places of the sections of each
//! partition. A sealed segment with an index of its sections is passed: the headers of a partition
//! are read when it is requested. So are the sections themselves: a partition costs its own bytes.
//!
//! Invariants:
//! 1. Nothing is noted beyond the end that the caller gives as committed, or after the end of a
//!    segment that the next one names.
//! 2. A partition's sections are noted in the order of their sequences, each once.
//! 3. An index is a hint. If the frames do not match it, the log is read from the beginning and
//!    walked.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{OpenFiles, TableFile};
use crate::types::{FileNo, PartitionId, SeqNo};
use crate::version::{DbVersion, PartitionVersion};
use crate::wal::{
    Attested, Control, IndexedSections, LogPlace, LogReader, LogReaderOptions, Lsn, MustReach,
    PassedSegment, Record, SectionPlace, SegmentHeader, SegmentSource,
};

/// Bytes of other partitions between two sections that are read with them. A read takes as long as
/// a copy of about so many bytes.
const BETWEEN_BYTES_MAX: u64 = 8 << 10;

/// A part of the log that belongs to a partition and is not read yet.
pub(super) enum PendingSection {
    /// Operations.
    Section {
        /// The segment.
        segment: FileNo,
        /// The place of the frame in the log.
        lsn: u64,
        /// The place in the segment.
        place: SectionPlace,
    },
    /// The primary continues in another memtable.
    Switch,
    /// All sections of a sealed segment, by its index.
    Indexed(Indexed),
}

/// The sections of a partition in a sealed segment.
pub(super) struct Indexed {
    pub(super) header: Arc<SegmentHeader>,
    pub(super) sections: IndexedSections,
}

impl PendingSection {
    fn is_flushed(&self, flushed: SeqNo) -> bool {
        match self {
            PendingSection::Section { place, .. } => place.last_seq() <= flushed,
            // A switch alone is not.
            PendingSection::Indexed(Indexed { sections, .. }) => {
                sections.operations > 0 && sections.last_seq <= flushed
            }
            PendingSection::Switch => false,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            PendingSection::Section { place, .. } => place.len as u64,
            PendingSection::Indexed(Indexed { sections, .. }) => sections.bytes,
            PendingSection::Switch => 0,
        }
    }
}

/// The place up to which the log was read, and the sections noted for each partition.
pub(super) struct LogTail {
    reader: LogReader,
    uses_indexes: bool,
    pending: BTreeMap<PartitionId, VecDeque<PendingSection>>,
}

impl LogTail {
    /// Opens the log of `version`, from the place where a replay begins. With `uses_indexes` it
    /// passes segments that have an index of their sections.
    ///
    /// # Errors
    /// [`ErrorKind::FileGone`] for a missing segment: a newer manifest does not list it.
    pub(super) fn open(
        files: &Arc<OpenFiles>,
        dir: &Path,
        version: &DbVersion,
        uses_indexes: bool,
    ) -> Result<LogTail> {
        let sources =
            version.log_segments.keys().map(|number| source(files, dir, version, *number));
        let mut options = LogReaderOptions::new(version.db_id);
        // Bodies are read later, and only those of requested partitions.
        options.headers_only = true;
        options.replay_from = version.replay_from.map(|from| from.position());
        let reader = LogReader::new(sources.collect::<Result<_>>()?, options)?;
        Ok(LogTail { reader, uses_indexes, pending: BTreeMap::new() })
    }

    /// Adds the further segments of `version`. Returns `false` if the log must be read from the
    /// beginning: its place is in a segment that is not listed any more.
    ///
    /// # Errors
    /// As [`LogTail::open`].
    pub(super) fn follow(
        &mut self,
        files: &Arc<OpenFiles>,
        dir: &Path,
        version: &DbVersion,
    ) -> Result<bool> {
        let listed = &version.log_segments;
        let present = self.reader.position().place.segment;
        // A segment is removed only when nothing needs it: its operations are in tables.
        if !listed.contains_key(&present) {
            return Ok(false);
        }
        let last = self.reader.last_listed();
        let listed_now = listed.keys().copied();
        let new: Vec<FileNo> =
            listed_now.filter(|number| self.reader.source(*number).is_none()).collect();
        // A new segment that comes before one that was already read cannot be read in order any
        // more.
        if new.first().is_some_and(|first| last.is_some_and(|last| *first < last)) {
            return Ok(false);
        }
        for number in new {
            self.reader.add_segment(source(files, dir, version, number)?);
        }
        // Closes files that the primary has deleted: an open handle would keep their space.
        self.reader.forget_passed(|number| listed.contains_key(&number));
        Ok(true)
    }

    /// The place up to which the written log is known durable: frames and headers attest it, and so
    /// do the flushes in `version`. The log must reach `committed`, if that is known.
    ///
    /// # Errors
    /// Those of [`LogReader::attested`].
    pub(super) fn attested(&self, version: &DbVersion, committed: Option<Lsn>) -> Result<Attested> {
        self.reader.attested(version.log_durable_through(), committed)
    }

    /// The place after the last frame that begins at `last` or before it. The log must reach `committed`.
    ///
    /// # Errors
    /// Those of [`LogReader::attested`].
    pub(super) fn end_of(&self, last: SeqNo, committed: Lsn) -> Result<Lsn> {
        Ok(self.reader.attested(last, Some(committed))?.durable)
    }

    /// Notes the sections before `reach`. `applied` returns the sequence through which a partition
    /// is complete.
    ///
    /// # Errors
    /// Those of reading; [`ErrorKind::NeedsManifest`] for a partition that `version` does not know
    /// yet.
    pub(super) fn scan(
        &mut self,
        reach: Lsn,
        version: &DbVersion,
        applied: impl Fn(PartitionId) -> SeqNo,
    ) -> Result<()> {
        self.reader.look_again(reach);
        loop {
            while self.uses_indexes
                && let Some(passed) = self.reader.pass_indexed()?
            {
                note_passed(&mut self.pending, passed, version, &applied)?;
            }
            let Some(frame) = self.reader.next_frame()? else { break };
            let batch = match frame.record {
                Record::Batch(batch) => batch,
                Record::Control(Control::MemtableSwitch { partition, .. }) => {
                    self.pending.entry(partition).or_default().push_back(PendingSection::Switch);
                    continue;
                }
                Record::Control(_) => continue,
            };
            for place in batch.places() {
                let Some(partition) = partition_of(version, place.partition)? else { continue };
                // Sections that a table of the version has are not noted: the reader finds them in
                // the table.
                let known = applied(place.partition).max(partition.flushed_through);
                if place.last_seq() > known {
                    let lsn = frame.lsn.0;
                    let segment = frame.place.segment;
                    let section = PendingSection::Section { segment, lsn, place };
                    self.pending.entry(place.partition).or_default().push_back(section);
                }
            }
        }
        Ok(())
    }

    /// The place after the last frame that was read, in the log; `None` if there is no log.
    pub(super) fn lsn(&self) -> Option<Lsn> {
        self.reader.lsn()
    }

    /// The end of the last frame that was read; `None` if there is no log.
    pub(super) fn end(&self) -> Option<LogPlace> {
        self.reader.lsn().map(|_| self.reader.position().place)
    }

    /// The last logged sequence that was read.
    pub(super) fn last_seq(&self) -> SeqNo {
        self.reader.position().last_seq
    }

    /// Returns an error if the log ends before the place that it must reach.
    ///
    /// # Errors
    /// Those of [`LogReader::check_reaches`].
    pub(super) fn check_reaches(&self, must: &MustReach) -> Result<()> {
        self.reader.check_reaches(must)
    }

    /// Drops noted sections that tables of `version` have, and dropped partitions.
    pub(super) fn prune(&mut self, version: &DbVersion) {
        self.pending.retain(|id, pending| {
            let Some(partition) = version.partitions.get(*id) else { return false };
            let flushed = partition.flushed_through;
            // A switch between flushed sections is dropped with them; one before a remaining
            // section stays. Searched from the end: sections of a partition are in order, so
            // everything before the last flushed one is flushed as well.
            let last = pending.iter().rposition(|pending| pending.is_flushed(flushed));
            pending.drain(..last.map_or(0, |last| last + 1));
            true
        });
    }

    /// Bytes of the sections that were noted for a partition.
    pub(super) fn noted_bytes(&self, id: PartitionId) -> u64 {
        self.pending.get(&id).into_iter().flatten().map(PendingSection::bytes).sum()
    }

    /// Takes out the noted sections of a partition.
    pub(super) fn take(&mut self, id: PartitionId) -> VecDeque<PendingSection> {
        self.pending.get_mut(&id).map(std::mem::take).unwrap_or_default()
    }

    /// The segment that holds a section that was noted.
    ///
    /// # Errors
    /// [`ErrorKind::FileGone`] if it is not listed any more.
    pub(super) fn source(&self, number: FileNo) -> Result<&SegmentSource> {
        self.reader.source(number).ok_or_else(|| {
            Error::new(ErrorKind::FileGone, format!("segment {number} of the log is gone"))
        })
    }
}

/// The partition of `version` that the log names; `None` if it was dropped.
fn partition_of(version: &DbVersion, id: PartitionId) -> Result<Option<&PartitionVersion>> {
    let partition = version.partitions.get(id);
    if partition.is_none() && id >= version.next_partition {
        let message = format!("the log names partition {id}, which was created since");
        return Err(Error::new(ErrorKind::NeedsManifest, message));
    }
    Ok(partition.map(|partition| &**partition))
}

/// Notes for each partition in `pending` the sections of a segment that was passed by its index.
fn note_passed(
    pending: &mut BTreeMap<PartitionId, VecDeque<PendingSection>>,
    passed: PassedSegment,
    version: &DbVersion,
    applied: &impl Fn(PartitionId) -> SeqNo,
) -> Result<()> {
    let PassedSegment { header, groups } = passed;
    for sections in groups {
        let id = sections.partition;
        let Some(partition) = partition_of(version, id)? else { continue };
        let known = applied(id).max(partition.flushed_through);
        // A switch is noted in any case: it may come before sections of the next segment.
        if sections.last_seq > known || sections.switches > 0 {
            let header = header.clone();
            let indexed = Indexed { header, sections };
            pending.entry(id).or_default().push_back(PendingSection::Indexed(indexed));
        }
    }
    Ok(())
}

/// For each of `pending`, the place in its segment up to which one read pays off.
///
/// Sections that lie close together are read with the bytes between them, because a read costs as
/// much as the copy of some kilobytes. Beyond that a partition should cost its own bytes, not those
/// of the others: reading ahead to the last section of a segment would copy all of the segment.
/// Nothing after the last section is read, because the primary may be writing there at this moment.
pub(super) fn ends_of_runs(pending: &VecDeque<PendingSection>) -> Vec<u64> {
    let mut ends = Vec::with_capacity(pending.len());
    // The segment and the beginning of the following run, and its end.
    let mut later: Option<(FileNo, u64, u64)> = None;
    for next in pending.iter().rev() {
        let PendingSection::Section { segment, place, .. } = next else {
            // It is read by its own runs.
            ends.push(0);
            continue;
        };
        let own_end = place.offset + place.len as u64;
        let end = match later {
            Some((run, start, end))
                if run == *segment && start.saturating_sub(own_end) <= BETWEEN_BYTES_MAX =>
            {
                end
            }
            _ => own_end,
        };
        later = Some((*segment, place.offset, end));
        ends.push(end);
    }
    ends.reverse();
    ends
}

fn source(
    files: &Arc<OpenFiles>,
    dir: &Path,
    version: &DbVersion,
    number: FileNo,
) -> Result<SegmentSource> {
    let epoch = version.log_segments[&number];
    let path = FileName::new(FileKind::Wal, number, epoch).path(dir);
    let file = TableFile::open(files, &path).map_err(|error| gone(&path, error))?;
    // A live log may have many segments, so they count as open files, and a segment may be opened
    // again. Without a lease it may be deleted by then, as at any other look: a newer manifest does
    // not list it.
    Ok(SegmentSource { number, epoch, path, file: Arc::new(file) })
}

/// The error of a file that is not there: the primary deleted it.
fn gone(path: &Path, error: Error) -> Error {
    if error.is_missing() {
        let message = format!("{} is gone", path.display());
        return Error::because(ErrorKind::FileGone, message, error);
    }
    error
}
