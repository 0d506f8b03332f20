//! [`LogSearch`]: operations of one partition, found in the log by their sequence numbers.
//!
//! Repairs search here: `compaction/repair.rs` for tables, `memtable_repair.rs` for memtables. A damaged
//! range of memory or of a file has many entries, and a log may be long, so the sequence numbers
//! that a repair knows beforehand are found in one pass over the log.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::batch::SectionReader;
use crate::codec::Malformed;
use crate::compaction::TableFactory;
use crate::error::{Error, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{File, Fs, OpenFiles, TableFile};
use crate::hooks::OwnedEntry;
use crate::types::{DbId, Epoch, FileNo, PartitionId, SeqNo};
use crate::wal::{LogReader, LogReaderOptions, Record, SectionRef, SegmentSource};

/// The log of this epoch, in the segments that were live when the search began. It keeps no
/// reference to the database, because a walk over tables may outlive the call that began it.
pub(super) struct LogSearch {
    fs: Arc<dyn Fs>,
    /// Bounds how many segments are open at once.
    files: Option<Arc<OpenFiles>>,
    dir: PathBuf,
    db_id: DbId,
    partition: PartitionId,
    segments: BTreeMap<FileNo, Epoch>,
    /// The sequence numbers that the first pass looks for.
    foreseen: BTreeSet<SeqNo>,
    /// The result of that pass; `None` before it. Locked during the pass, so that two concurrent
    /// callers read once.
    read: Mutex<Option<LogFindings>>,
}

/// The result of one pass over the log.
#[derive(Default)]
struct LogFindings {
    entries: HashMap<SeqNo, OwnedEntry>,
    /// The reason why the log could not be read to its end, if it could not.
    failure: Option<Error>,
}

impl LogFindings {
    fn of(&self, seq: SeqNo) -> Result<Option<OwnedEntry>> {
        match (self.entries.get(&seq), &self.failure) {
            (Some(entry), _) => Ok(Some(entry.clone())),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Ok(None),
        }
    }

    /// Takes the wanted operations of a section.
    fn take(
        &mut self,
        section: &SectionRef<'_>,
        wanted: &BTreeSet<SeqNo>,
    ) -> std::result::Result<(), Malformed> {
        let last = section.first_seq.plus(u64::from(section.operations.max(1)) - 1);
        // Most sections have no wanted operation, and need no decoding.
        if wanted.range(section.first_seq..=last).next().is_none() {
            return Ok(());
        }
        let mut seq = section.first_seq;
        let mut operations = SectionReader::new(&section.bytes);
        while let Some(operation) = operations.next_operation()? {
            if wanted.contains(&seq) && operation.kind.is_of_entry() {
                let entry = OwnedEntry {
                    key: section.bytes[operation.key].to_vec(),
                    seq,
                    kind: operation.kind,
                    value: section.bytes[operation.value].to_vec(),
                    verified: true,
                };
                self.entries.insert(seq, entry);
            }
            seq = seq.plus(1);
        }
        Ok(())
    }
}

impl LogSearch {
    /// Begins a search for the operations of `foreseen`, and maybe for others.
    pub(super) fn new(
        place: &TableFactory,
        segments: BTreeMap<FileNo, Epoch>,
        partition: PartitionId,
        foreseen: impl IntoIterator<Item = SeqNo>,
    ) -> LogSearch {
        LogSearch {
            fs: place.fs.clone(),
            files: place.files.clone(),
            dir: place.dir.clone(),
            db_id: place.db_id,
            partition,
            segments,
            foreseen: foreseen.into_iter().collect(),
            read: Mutex::default(),
        }
    }

    /// Returns the operation of `seq`, if a live segment of the log still has it.
    ///
    /// # Errors
    /// Those of reading the log, if it ends at one before that operation.
    ///
    /// # Cost
    /// The first call reads the log, and so does each call for a number that was not foreseen.
    pub(super) fn find(&self, seq: SeqNo) -> Result<Option<OwnedEntry>> {
        // Read separately: the first pass ended once it had the foreseen ones.
        if !self.foreseen.contains(&seq) {
            return self.read(&BTreeSet::from([seq])).of(seq);
        }
        self.read.lock().get_or_insert_with(|| self.read(&self.foreseen)).of(seq)
    }

    /// Returns the operations of `seqs`, as far as the live segments of the log have them and can be read.
    ///
    /// # Cost
    /// Reads the log, at most to its end.
    pub(super) fn find_all(&self, seqs: &BTreeSet<SeqNo>) -> HashMap<SeqNo, OwnedEntry> {
        self.read(seqs).entries
    }

    /// Reads the log until all of `wanted` are found.
    fn read(&self, wanted: &BTreeSet<SeqNo>) -> LogFindings {
        // Again, if a segment went between its opening and its reading: at most once for each.
        let mut looks = self.segments.len();
        loop {
            let mut findings = LogFindings::default();
            match self.read_frames(wanted, &mut findings) {
                Err(error) if error.is_missing() && looks > 0 => looks -= 1,
                Err(error) => {
                    findings.failure = Some(error);
                    return findings;
                }
                Ok(()) => return findings,
            }
        }
    }

    fn read_frames(&self, wanted: &BTreeSet<SeqNo>, findings: &mut LogFindings) -> Result<()> {
        let mut reader = self.open_log()?;
        // Ends early: the rest of a long log has no wanted operation.
        while findings.entries.len() < wanted.len()
            && let Some(frame) = reader.next_frame()?
        {
            let Record::Batch(batch) = &frame.record else { continue };
            for section in batch.sections() {
                // The section verified with its frame. If it is malformed anyway, the search
                // continues, because the next section may have the entry.
                if let Err(fault) = findings.take(&section, wanted) {
                    findings.failure = Some(Error::corruption(&self.dir, None, fault.to_string()));
                }
            }
        }
        Ok(())
    }

    fn open_log(&self) -> Result<LogReader> {
        let mut sources = Vec::new();
        for (&number, &epoch) in &self.segments {
            let path = FileName::new(FileKind::Wal, number, epoch).path(&self.dir);
            match self.open_segment(&path) {
                Ok(file) => sources.push(SegmentSource { number, epoch, path, file }),
                // A flush has removed it since: tables have its operations, and the rest is a log, too.
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        let mut options = LogReaderOptions::new(self.db_id);
        // The sections of other partitions are not read from the device.
        options.only = Some(self.partition);
        LogReader::new(sources, options)
    }

    /// Opens a segment, for a log may have more of them than the process may have files open.
    fn open_segment(&self, path: &Path) -> Result<Arc<dyn File>> {
        match &self.files {
            Some(files) => Ok(Arc::new(TableFile::open(files, path)?)),
            None => self.fs.open_read(path),
        }
    }
}

#[cfg(test)]
mod tests;
