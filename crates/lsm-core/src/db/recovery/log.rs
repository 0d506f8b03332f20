//! The log of the old epoch: its segments, its replay, and the checks that it is complete.
//!
//! Called by `recovery.rs` and `read_only.rs`. Nothing here writes.
//!
//! Invariant: the log is verified as a whole before anything that was replayed counts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::OpenPlan;
use crate::batch::SectionReader;
use crate::db::context::DbContext;
use crate::db::hook_binding::HooksOf;
use crate::error::{Error, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{OpenFiles, TableFile, is_unreadable};
use crate::hooks::{AttachedStore, PartitionHooks};
use crate::memtable::SlabPool;
use crate::replay::Replay;
use crate::types::{EntryKind, FileNo, PartitionId};
use crate::wal::{
    LogEnd, LogPlace, LogReader, LogReaderOptions, Lsn, Record, SegmentHeader, SegmentSource,
};

/// The handle of a value of a partition.
type NamedHandle = (PartitionId, Vec<u8>);

/// The places of the segments of the log.
pub(in crate::db) struct LogFiles<'a> {
    /// The set that bounds how many of them are open at once: a log may have more segments than the process may
    /// have files open.
    pub(in crate::db) files: &'a Arc<OpenFiles>,
    pub(in crate::db) dir: &'a Path,
}

impl<'a> LogFiles<'a> {
    pub(in crate::db) fn of(context: &'a DbContext) -> LogFiles<'a> {
        LogFiles { files: &context.files, dir: &context.dir }
    }
}

impl OpenPlan {
    /// The live segments, opened.
    pub(in crate::db) fn log_sources(&self, files: &LogFiles<'_>) -> Result<Vec<SegmentSource>> {
        let mut sources = Vec::new();
        for (number, epoch) in &self.version.log_segments {
            let name = FileName::new(FileKind::Wal, *number, *epoch);
            let path = name.path(files.dir);
            // A segment is listed before a frame goes into it and removed from the list before it is
            // deleted. So a missing file is a loss, and not a segment that was never made. Not looked up
            // in the listing of the folder: next to a writer that is older than the manifest.
            let file = match TableFile::open(files.files, &path) {
                Err(error) if error.is_missing() => {
                    return Err(Error::corruption(path, None, "a segment of the log is missing"));
                }
                opened => Arc::new(opened?),
            };
            sources.push(SegmentSource { number: *number, epoch: *epoch, path, file });
        }
        Ok(sources)
    }

    /// The place at which the log must be cut because a value is missing that a handle points to.
    /// Only frames that are not attested durable are checked. The values of earlier frames were
    /// durable, too: if one of them is damaged, its key reports that, and the log continues.
    fn handle_cut(&self, files: &LogFiles<'_>, hooks: &HooksOf) -> Result<Option<LogPlace>> {
        let stores: BTreeMap<_, _> = hooks
            .iter()
            .filter_map(|(id, hooks): (&PartitionId, &PartitionHooks)| {
                Some((*id, hooks.store.clone()?))
            })
            .collect();
        // Without stores there is no handle, and the log need not be read twice.
        if stores.is_empty() {
            return Ok(None);
        }
        let segments = self.version.log_segments.len();
        let _span = tracing::info_span!("recovery", segments).entered();
        let sources = self.log_sources(files)?;
        let mut reader = LogReader::new(sources, self.log_reading())?;
        // Only the end of the log shows what is attested, so the handles are collected first.
        let mut named: Vec<(LogPlace, Lsn, Vec<NamedHandle>)> = Vec::new();
        while let Some(frame) = reader.next_frame()? {
            let handles = self.handles_of(&frame.record, &stores);
            // Frames without handles cannot lack a value.
            if !handles.is_empty() {
                named.push((frame.place, frame.lsn, handles));
            }
        }
        let durable = reader.end()?.durable;
        for (place, _, handles) in named.iter().filter(|(_, lsn, _)| *lsn >= durable) {
            for (partition, handle) in handles {
                let store = &stores[partition];
                let is_durable = store.call("is_durable", |store| match store.value(handle) {
                    // Bytes that are no handle: the value is lost with them.
                    Err(error) if error.is_corruption() => Ok(false),
                    value => value?.is_durable(),
                });
                match is_durable {
                    Ok(true) => {}
                    // At the first such frame and not at that key alone: a log without one of its
                    // commits would be no prefix.
                    Ok(false) => return Ok(Some(*place)),
                    // Its commit may have been acknowledged, so the log does not end there, and an older
                    // value is never shown in its place. Reads of the key report the error.
                    Err(error) if is_unreadable(&error) => {
                        tracing::warn!(%error, "a value of the log cannot be read; its key is kept");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
    }

    /// The facts about the log that are known before it is read.
    pub(in crate::db) fn log_reading(&self) -> LogReaderOptions {
        let mut reading = LogReaderOptions::new(self.version.db_id);
        if let Some(recovered) = &self.recovered {
            reading.has_derived_salts = recovered.has_derived_salts;
        }
        reading.replay_from = self.version.replay_from.map(|from| from.position());
        reading.cut = self.fork.as_ref().and_then(|fork| fork.cut);
        reading
    }

    /// The place in the log of `end`, before which every frame is whole: the frames there are read.
    ///
    /// # Errors
    /// Corruption if the log ends before; those of reading.
    pub(in crate::db) fn place_in_log(&self, files: &LogFiles<'_>, end: Lsn) -> Result<LogPlace> {
        let dir = files.dir;
        let sources = self.log_sources(files)?;
        let reading = LogReaderOptions { reach: end, ..self.log_reading() };
        let mut reader = LogReader::new(sources, reading)?;
        while reader.next_frame()?.is_some() {}
        let place = reader.position().place;
        let replay_from = self.version.replay_from.map(|from| from.position().place);
        match reader.lsn() {
            // Nothing is read before the place where a replay begins.
            Some(lsn) if lsn > end && replay_from == Some(place) => {
                let path = self.segment_path(place.segment, dir);
                let what = format!("the log is flushed through here, but was settled up to {end}");
                Err(Error::corruption(path, place.offset, what))
            }
            // After it if a segment was begun and its header was not settled.
            Some(lsn) if lsn >= end => Ok(place),
            // The writer has not begun its log.
            None if end == Lsn(0) => Ok(LogPlace { segment: FileNo(0), offset: 0 }),
            _ => Err(place.too_short_for(self.segment_path(place.segment, dir), end)),
        }
    }

    /// The handles of a frame that are not flushed.
    fn handles_of(
        &self,
        record: &Record<'_>,
        stores: &BTreeMap<PartitionId, Arc<AttachedStore>>,
    ) -> Vec<NamedHandle> {
        let mut handles = Vec::new();
        let Record::Batch(batch) = record else { return handles };
        for section in batch.sections() {
            if !stores.contains_key(&section.partition) {
                continue;
            }
            // Flushed values may have been moved or reclaimed since. Each section is checked alone,
            // because a batch over two partitions may be flushed in one of them.
            if section.last_seq() <= self.version.partitions[&section.partition].flushed_through {
                continue;
            }
            let mut operations = SectionReader::new(&section.bytes);
            // An operation that does not decode is reported by the replay.
            while let Ok(Some(operation)) = operations.next_operation() {
                if operation.kind == EntryKind::Handle {
                    handles.push((section.partition, section.bytes[operation.value].to_vec()));
                }
            }
        }
        handles
    }

    /// Replays the log; returns its end and the remaining memtables. Whenever they take `bytes_max`
    /// of memory, `is_full` takes them out.
    pub(in crate::db) fn replay(
        &self,
        files: &LogFiles<'_>,
        bytes_max: u64,
        hooks: &HooksOf,
        mut is_full: impl FnMut(&mut Replay) -> Result<()>,
    ) -> Result<(LogEnd, Replay)> {
        let segments = self.version.log_segments.len();
        let _span = tracing::info_span!("recovery", segments).entered();
        let sources = self.log_sources(files)?;
        let paths: BTreeMap<_, _> =
            sources.iter().map(|source| (source.number, source.path.clone())).collect();
        let mut reading = self.log_reading();
        // If frames before the end in the manifest are missing, nothing in the log itself would show
        // that the device lost them.
        reading.must_reach = self.version.log_must_reach();
        // Known before the replay begins: an applied frame cannot be removed again.
        reading.cut = self.handle_cut(files, hooks)?.or(reading.cut);
        let mut reader = LogReader::new(sources, reading)?;
        let mut replay = Replay::new(Arc::new(SlabPool::new(bytes_max)));
        while let Some(frame) = reader.next_frame()? {
            replay.apply(&self.version, &frame, &paths[&frame.place.segment])?;
            // The log may be longer than the memory that the options allow, for example because the
            // write buffer was larger in the last run.
            if replay.bytes() >= bytes_max {
                is_full(&mut replay)?;
            }
        }
        // The verdict comes before the result is used: `ReplayedTables` removes its files if the log is
        // refused.
        let end = reader.end()?;
        // Log and manifest check each other: each may have lost its end without a sign in itself.
        self.check_manifest_reaches(end.manifest_edit, files.dir)?;
        self.check_unlisted_segments(files)?;
        tracing::info!(last_seq = end.last_seq.get(), "the log is replayed");
        Ok((end, replay))
    }

    /// The log attests an edit: a manifest that ends before it lost its end.
    pub(in crate::db) fn check_manifest_reaches(&self, edit: u64, dir: &Path) -> Result<()> {
        match &self.recovered {
            Some(recovered) if edit > self.version.edit_number => {
                let what = format!(
                    "the manifest ends at edit {}, but the log attests edit {edit}",
                    self.version.edit_number
                );
                Err(Error::corruption(recovered.generation.path(dir), recovered.end, what))
            }
            _ => Ok(()),
        }
    }

    /// A segment is begun only when the edit that lists it is durable, and its header has the
    /// number. An unlisted one is an orphan file if the manifest has that edit; if not, the manifest
    /// lost the edit, and treating the segment as an orphan file would lose its content.
    fn check_unlisted_segments(&self, files: &LogFiles<'_>) -> Result<()> {
        for name in &self.names {
            if name.kind != FileKind::Wal || self.version.log_segments.contains_key(&name.number) {
                continue;
            }
            let path = name.path(files.dir);
            let opened = files.files.fs().open_read(&path);
            let file = match opened {
                // A fenced primary may be about to delete files that a settled edit dropped.
                Err(error) if self.fork.is_some() && error.is_missing() => continue,
                opened => opened?,
            };
            if let Some(header) = SegmentHeader::read(&*file, &path)?
                // A segment of another database in this folder is no evidence about this manifest.
                && header.db == self.version.db_id
            {
                self.check_manifest_reaches(header.manifest_edit, files.dir)?;
            }
        }
        Ok(())
    }
}
