//! [`LogRemains`]: the batches of a damaged log, before the damage and after it.
//!
//! A batch is taken whole or not at all: if one section of a frame does not verify, the frame is lost with all of its
//! partitions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::report::SalvageReport;
use crate::error::{Error, Result};
use crate::fs::names::{self, FileKind, FileName};
use crate::fs::{File, OpenFiles, TableFile};
use crate::memtable::{Memtable, SlabPool};
use crate::options::Options;
use crate::replay::insert_section;
use crate::types::{Epoch, FileNo, MemtableId, PartitionId, SeqNo};
use crate::version::{DbVersion, KnownPartition, LogCut};
use crate::wal::{
    BatchRef, Control, Lsn, Record, SEGMENT_HEADER_BYTES, SectionRef, SegmentHeader, SegmentPiece,
    salt_of, survey_after,
};

/// The memtables of each partition.
pub(super) type Memtables = BTreeMap<PartitionId, Vec<Arc<Memtable>>>;

/// A segment, opened.
struct OpenedSegment {
    path: PathBuf,
    file: Arc<dyn File>,
    len: u64,
    header: Option<SegmentHeader>,
}

/// See the page of the file.
pub(super) struct LogRemains {
    version: DbVersion,
    slabs: Arc<SlabPool>,
    memtables: Memtables,
    /// The partitions of the log are all known: another id is one that was dropped.
    is_complete: bool,
    pub(super) last_seq: SeqNo,
    /// The largest number of an edit that the log attests.
    pub(super) manifest_edit: u64,
}

impl LogRemains {
    pub(super) fn new(options: &Options, version: DbVersion) -> LogRemains {
        LogRemains {
            last_seq: version.last_seq,
            version,
            slabs: Arc::new(SlabPool::new(options.memtable_bytes_max())),
            memtables: BTreeMap::new(),
            is_complete: true,
            manifest_edit: 0,
        }
    }

    /// Takes the memtables out, and the version with the partitions that only the log has.
    pub(super) fn finish(self) -> (Memtables, DbVersion) {
        (self.memtables, self.version)
    }

    /// Reads every segment in the folder: no manifest says which of them count. What is in tables as well has the same
    /// sequence numbers there.
    pub(super) fn read_all(
        &mut self,
        files: &Arc<OpenFiles>,
        dir: &Path,
        report: &mut SalvageReport,
    ) -> Result<()> {
        self.is_complete = false;
        let names = names::in_dir(files.fs(), dir)?;
        let segments = names.iter().filter(|name| name.kind == FileKind::Wal);
        let mut segments: Vec<_> = segments.map(|name| (name.number, name.epoch)).collect();
        segments.sort_unstable_by_key(|(number, epoch)| (*epoch, *number));
        self.read(files, dir, &segments, None, true, report)
    }

    /// Reads segments from the place `from` on.
    pub(super) fn read(
        &mut self,
        files: &Arc<OpenFiles>,
        dir: &Path,
        segments: &[(FileNo, Epoch)],
        from: Option<LogCut>,
        has_derived_salts: bool,
        report: &mut SalvageReport,
    ) -> Result<()> {
        let mut opened = Vec::new();
        for (number, epoch) in segments {
            let path = FileName::new(FileKind::Wal, *number, *epoch).path(dir);
            let file: Arc<dyn File> = match TableFile::open(files, &path) {
                Err(error) if error.is_missing() => {
                    let what = "a segment of the log is missing";
                    report.add(&Error::corruption(&path, None, what), &path);
                    continue;
                }
                file => Arc::new(file?),
            };
            let len = file.len()?;
            let header = SegmentHeader::read(&*file, &path)?;
            // A segment of another database says nothing about this one.
            if header.is_some_and(|header| header.db != self.version.db_id) {
                continue;
            }
            opened.push((*number, *epoch, OpenedSegment { path, file, len, header }));
        }
        for at in 0..opened.len() {
            let (number, epoch, segment) = &opened[at];
            let Some(begin) = begin_in(from, *number) else { continue };
            // What lies after the end that the next segment names was refused.
            let following = opened[at + 1..].iter().filter_map(|(.., next)| next.header?.previous);
            let end = following.clone().find(|place| place.segment == *number);
            let end = end.map_or(segment.len, |place| place.offset.min(segment.len));
            let (header, last_seq) = match segment.header {
                Some(header) => (header, Some(header.previous_seq)),
                None if has_derived_salts => (self.lost_header(*number, *epoch), None),
                None => continue,
            };
            let start = begin.max(SEGMENT_HEADER_BYTES);
            let last_seq = last_seq.filter(|_| start == SEGMENT_HEADER_BYTES);
            if let Some(header) = segment.header {
                self.manifest_edit = self.manifest_edit.max(header.manifest_edit);
            }
            self.walk(segment, &header, last_seq, start..end, report)?;
        }
        Ok(())
    }

    /// A header by which the frames of a segment verify whose own is lost.
    fn lost_header(&self, number: FileNo, epoch: Epoch) -> SegmentHeader {
        let db = self.version.db_id;
        SegmentHeader {
            db,
            epoch,
            number,
            salt: salt_of(db, epoch, number),
            // So that no attestation lies before the log.
            base: Lsn(u64::MAX / 2),
            previous: None,
            manifest_edit: 0,
            durable: Lsn(0),
            previous_seq: SeqNo::ZERO,
        }
    }

    fn walk(
        &mut self,
        segment: &OpenedSegment,
        header: &SegmentHeader,
        last_seq: Option<SeqNo>,
        range: std::ops::Range<u64>,
        report: &mut SalvageReport,
    ) -> Result<()> {
        let path = &segment.path;
        let mut found = false;
        survey_after(&*segment.file, header, last_seq, range, &mut |piece| {
            match piece {
                SegmentPiece::Frame { record, range, .. } => {
                    found = true;
                    match record {
                        Record::Batch(batch) => self.batch(&batch, range.start, path, report),
                        Record::Control(
                            Control::IdleMarker { manifest_edit }
                            | Control::CleanClose { manifest_edit },
                        ) => self.manifest_edit = self.manifest_edit.max(manifest_edit),
                        Record::Control(_) => {}
                    }
                }
                SegmentPiece::Damaged { range, what } => {
                    report.add(&Error::corruption(path, range.start, what), path);
                }
                SegmentPiece::Zeros(_) | SegmentPiece::Index { .. } => {}
            }
            Ok(())
        })?;
        if segment.header.is_none() && found {
            report.add(&Error::corruption(path, 0, "the header of the segment is lost"), path);
        }
        Ok(())
    }

    fn batch(&mut self, batch: &BatchRef<'_>, at: u64, path: &Path, report: &mut SalvageReport) {
        self.last_seq = self.last_seq.max(batch.last_seq);
        for section in batch.sections() {
            if let Err(what) = self.section(&section, at) {
                report.add(&Error::corruption(path, at, what), path);
            }
        }
    }

    fn section(&mut self, section: &SectionRef<'_>, at: u64) -> Result<(), String> {
        let id = section.partition;
        match self.version.partitions.get(id) {
            Some(partition) if section.last_seq() <= partition.flushed_through => return Ok(()),
            Some(_) => {}
            None if self.is_complete => return Ok(()),
            None => self.add_partition(id),
        }
        let memtables = self.memtables.entry(id).or_default();
        if memtables.is_empty() {
            memtables.push(Arc::new(Memtable::new(MemtableId(1), &self.slabs)));
        }
        let newest = memtables.last().expect("one was just made");
        if insert_section(newest, at, section).is_ok() {
            return Ok(());
        }
        // The sequence numbers of an epoch begin after those of the last one, or within them.
        let next = Arc::new(Memtable::new(MemtableId(1), &self.slabs));
        let inserted = insert_section(&next, at, section);
        memtables.push(next);
        inserted.map(|_| ()).map_err(|fault| fault.to_string())
    }

    /// A partition that only the log knows.
    fn add_partition(&mut self, id: PartitionId) {
        let known = KnownPartition::unknown(id, format!("partition-{}", id.0));
        self.version.next_partition = self.version.next_partition.max(PartitionId(id.0 + 1));
        self.version.partitions.insert(Arc::new(known.into_version()));
    }
}

/// The place in a segment from which on it is needed.
fn begin_in(cut: Option<LogCut>, number: FileNo) -> Option<u64> {
    match cut {
        Some(cut) if number < cut.segment => None,
        Some(cut) if number == cut.segment => Some(cut.offset),
        _ => Some(0),
    }
}
