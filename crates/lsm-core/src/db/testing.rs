//! A database with only a log, for the tests of the parts of the write path.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::background::BackgroundMode;
use super::background_io::BackgroundIo;
use super::catalog::Catalog;
use super::commit::CommitEnv;
use super::commit::Deletion;
use super::events::Notice;
use super::leases::LeaseTable;
use super::log::{Log, LogEnv, LogSettings, LogWriter, RetentionLimits};
use super::obsolete::ObsoleteFiles;
use super::prepared::Prepared;
use crate::batch::SectionReader;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{FaultFs, FolderFs, Fs, MemFs, OpenFiles};
use crate::hooks::PartitionHooks;
use crate::options::{Options, PartitionOptions};
use crate::partition::PartitionState;
use crate::shared::CommitCursorWriter;
use crate::stats::Counters;
use crate::types::{DbId, Epoch, FileNo, FileNumbers, PartitionId, SeqNo};
use crate::version::{Change, DbVersion, Manifest, PartitionVersion, VersionSet};
use crate::wal::{LogReader, LogReaderOptions, Lsn, Record, SegmentSource};

pub(super) const DB: DbId = DbId(7);
pub(super) const EPOCH: Epoch = Epoch(3);
pub(super) const DIR: &str = "/db";

/// An environment that records its calls. Its manifest is durable at once.
#[derive(Default)]
pub(super) struct TestEnv {
    pub(super) edits: Mutex<Vec<Vec<Change>>>,
    listed: Mutex<BTreeSet<FileNo>>,
    pub(super) refuses_edits: AtomicBool,
    pub(super) failures: Mutex<Vec<Error>>,
    pub(super) wakes: AtomicU64,
    /// The error of every settle.
    pub(super) fence: Mutex<Option<Error>>,
    /// A batch that begins with this key is refused.
    pub(super) refused_key: Mutex<Option<String>>,
    /// The files that were released.
    pub(super) gone: Mutex<Vec<String>>,
    /// The outcome of syncs of values, if they fail.
    pub(super) values: Mutex<Option<Error>>,
    /// Groups that were committed.
    pub(super) groups: AtomicU64,
    pub(super) counters: Arc<Counters>,
}

impl TestEnv {
    /// Files of the log that were synced.
    pub(super) fn syncs(&self) -> u64 {
        self.counters.wal_syncs.get()
    }

    /// The live segments.
    pub(super) fn listed(&self) -> Vec<FileNo> {
        self.listed.lock().iter().copied().collect()
    }
}

impl LogEnv for TestEnv {
    fn install_edit(&self, changes: Vec<Change>) -> Result<()> {
        if self.refuses_edits.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Io, "no edits today"));
        }
        let mut listed = self.listed.lock();
        for change in &changes {
            match change {
                Change::SegmentAdded { file, .. } => assert!(listed.insert(*file), "added twice"),
                Change::SegmentRemoved { file } => assert!(listed.remove(file), "not there"),
                _ => {}
            }
        }
        self.edits.lock().push(changes);
        Ok(())
    }

    fn settle_log(&self, _end: Lsn) -> Result<()> {
        match &*self.fence.lock() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn make_obsolete(&self, files: Vec<(FileName, u64)>) {
        self.gone.lock().extend(files.into_iter().map(|(name, _)| name.to_string()));
    }

    fn durable_edit(&self) -> u64 {
        self.edits.lock().len() as u64
    }

    fn is_segment_listed(&self, number: FileNo) -> Result<bool> {
        Ok(self.listed.lock().contains(&number))
    }

    fn begin_sync_of_values(&self) {}

    fn sync_values(&self) -> Result<()> {
        self.values.lock().clone().map_or(Ok(()), Err)
    }

    fn check_writable(&self) -> Result<()> {
        Ok(())
    }

    fn log_failed(&self, error: &Error) {
        self.failures.lock().push(error.clone());
    }

    fn answer(&self, notices: Vec<Notice>, outcome: Result<()>) {
        notices.into_iter().for_each(|notice| notice(outcome.clone()));
    }

    fn wake_log_thread(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl CommitEnv for TestEnv {
    fn check_batch(&self, batch: &Prepared<'_>) -> Result<()> {
        let bytes = &batch.sections()[0].bytes;
        let first = SectionReader::new(bytes).next_operation().unwrap().unwrap();
        match &*self.refused_key.lock() {
            Some(key) if key.as_bytes() == &bytes[first.key] => {
                Err(Error::new(ErrorKind::ReservedKey, "refused"))
            }
            _ => Ok(()),
        }
    }

    fn after_group(&self, _: &mut LogWriter<'_>, _: Vec<Deletion>) {
        self.groups.fetch_add(1, Ordering::Relaxed);
    }
}

/// A partition without tables.
pub(super) fn partition(logged: bool) -> Arc<PartitionState> {
    partition_with(0, logged)
}

/// As [`partition`], with this id.
pub(super) fn partition_with(id: u32, logged: bool) -> Arc<PartitionState> {
    let mut version = version_of(id, &format!("partition-{id}"));
    version.options = Arc::new(PartitionOptions::new().logged(logged));
    Arc::new(PartitionState::alone(version, PartitionHooks::default()))
}

/// The version of a partition without tables.
pub(super) fn version_of(id: u32, name: &str) -> PartitionVersion {
    PartitionVersion {
        id: PartitionId(id),
        name: name.into(),
        options: Arc::default(),
        levels: Default::default(),
        flushed_through: SeqNo::ZERO,
        created_at_edit: 1,
        hooks: Arc::new([]),
        gaps: crate::types::Gaps::default(),
        clear_seqs: crate::types::ClearSeqs::default(),
        spans: crate::types::DeletedRanges::default(),
        store_sections: Vec::new(),
    }
}

/// A catalog of an empty database in memory.
pub(super) fn catalog() -> Catalog {
    let fs = Arc::new(MemFs::new());
    let dir = Path::new(DIR);
    fs.create_dir(dir).unwrap();
    let version = DbVersion::empty(DB);
    let name = FileName::new(FileKind::Manifest, FileNo(1), EPOCH);
    let manifest = Manifest::create(&*fs, dir, name, &version).unwrap();
    let numbers = Arc::new(FileNumbers::new(FileNo(2)));
    let cursor = Arc::new(CommitCursorWriter::none());
    let leases = LeaseTable::new(Arc::new(SystemClock::new()), u64::MAX);
    let obsolete = ObsoleteFiles::new(fs.clone(), dir.to_owned(), leases, Arc::default());
    let set =
        VersionSet::new(fs, dir.to_owned(), numbers, 1 << 20, version, manifest, cursor.clone());
    Catalog::new(set, cursor, obsolete)
}

/// A log over a file system in memory with injected failures.
pub(super) struct TestLog {
    pub(super) mem: MemFs,
    pub(super) faults: FaultFs,
    /// Over `faults`: the file system of the log, and of other callers of syncs of the folder.
    pub(super) folder: Arc<FolderFs>,
    pub(super) env: Arc<TestEnv>,
    pub(super) log: Log,
}

impl TestLog {
    /// With segments of at most `segment_bytes_max` bytes.
    pub(super) fn new(segment_bytes_max: u64) -> TestLog {
        TestLog::with_open_files(segment_bytes_max, usize::MAX)
    }

    /// The same, of a database that may have so many files open.
    pub(super) fn with_open_files(segment_bytes_max: u64, open_files_max: usize) -> TestLog {
        let mem = MemFs::new();
        let faults = FaultFs::over_mem(mem.clone());
        faults.create_dir(Path::new(DIR)).unwrap();
        let folder = Arc::new(FolderFs::new(Arc::new(faults.clone())));
        let settings = LogSettings {
            fs: folder.clone(),
            files: OpenFiles::new(folder.clone(), open_files_max),
            dir: DIR.into(),
            db_id: DB,
            epoch: EPOCH,
            numbers: Arc::new(FileNumbers::new(FileNo(1))),
            segment_bytes_max,
            is_mapped: true,
            kept: RetentionLimits::default(),
        };
        let env = Arc::new(TestEnv::default());
        TestLog { mem, faults, folder, log: Log::new(settings, SeqNo::ZERO, env.clone()), env }
    }

    /// The existing segment files that the environment was not asked to delete.
    pub(super) fn segment_files(&self) -> Vec<String> {
        let names = self.mem.list(Path::new(DIR), "").unwrap().into_iter();
        let names = names.map(|entry| entry.name).filter(|name| name.ends_with(".wal"));
        names.filter(|name| !self.env.gone.lock().contains(name)).collect()
    }
}

/// The first sequence numbers of the batches that a reader finds in `segments` of `mem`.
pub(super) fn batches_in(mem: &MemFs, segments: &[FileNo]) -> Result<Vec<u64>> {
    let mut sources = Vec::new();
    for number in segments {
        let path = FileName::new(FileKind::Wal, *number, EPOCH).path(Path::new(DIR));
        let file = mem.open_read(&path)?;
        sources.push(SegmentSource { number: *number, epoch: EPOCH, path, file });
    }
    let mut reader = LogReader::new(sources, LogReaderOptions::new(DB))?;
    let mut found = Vec::new();
    while let Some(frame) = reader.next_frame()? {
        if let Record::Batch(batch) = frame.record {
            found.push(batch.first_seq.get());
        }
    }
    reader.end()?;
    Ok(found)
}

/// Background writes without a limit.
pub(super) fn unlimited_io() -> BackgroundIo {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    BackgroundIo::new(&Options::default(), &clock, None, BackgroundMode::Threads, Arc::default())
}
