//! Opening: lock, manifest, replay, a new epoch, and only then the first write.
//!
//! Invariants:
//! 1. Nothing that recovery read is deleted before the recovered state is durable elsewhere: what
//!    the log held goes to new tables, the manifest to a new generation.
//! 2. The switch is one step: the new generation holds the new epoch, the new tables and the end
//!    of the old log; the old one naming it makes it valid. A crash before leaves the old state.
//! 3. Replay never resyncs a file in place: the page cache may hold what the disk never got.
//! 4. Afterwards the folder holds no file that the new generation does not name, except foreign
//!    ones, which are never touched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, RwLock};

use super::DbInner;
use super::background::{Background, BackgroundMode};
use super::commit::CommitPath;
use super::handle::Db;
use super::partitions::{DEFAULT, Partitions};
use crate::cache::Blocks;
use crate::clock::{Clock, SystemClock};
use crate::compaction::TableFactory;
use crate::error::{Error, ErrorKind, Result};
use crate::flush::flush;
use crate::fs::names::{self, FileKind, FileName};
use crate::fs::{Fs, OsFs};
use crate::limits::SEQNO_MAX;
use crate::options::{Options, PartitionOptions};
use crate::partition::PartitionState;
use crate::replay::Replay;
use crate::snapshot::Snapshots;
use crate::sstable::BlockCache;
use crate::stats::Counters;
use crate::types::{DbId, Epoch, FileNo, PartitionId, SeqNo};
use crate::version::{
    Change, DbVersion, FileNumbers, LogCut, Manifest, Recovered, TableContext, VersionEdit,
    VersionSet, apply, recover, retire,
};
use crate::wal::{LogEnd, LogPlace, LogReader, LogReaderOptions, SegmentHeader, SegmentSource};

/// Options for opening a database, and the world that it lives in.
#[must_use = "a builder does nothing until it opens"]
pub struct Builder {
    dir: PathBuf,
    options: Options,
    fs: Arc<dyn Fs>,
    clock: Arc<dyn Clock>,
    mode: BackgroundMode,
    random: Option<Box<dyn FnMut() -> u64 + Send>>,
}

impl Builder {
    pub(super) fn new(dir: &Path) -> Builder {
        Builder {
            dir: dir.to_owned(),
            options: Options::default(),
            fs: Arc::new(OsFs),
            clock: Arc::new(SystemClock::new()),
            mode: BackgroundMode::Threads,
            random: None,
        }
    }

    /// All options at once.
    pub fn options(mut self, options: Options) -> Builder {
        self.options = options;
        self
    }

    /// [`Options::cache_bytes`].
    pub fn cache_bytes(mut self, bytes: u64) -> Builder {
        self.options.cache_bytes = bytes;
        self
    }

    /// [`Options::write_buffer_bytes`].
    pub fn write_buffer_bytes(mut self, bytes: u64) -> Builder {
        self.options.write_buffer_bytes = bytes;
        self
    }

    /// [`Options::sync_interval_ms`].
    pub fn sync_interval_ms(mut self, interval_ms: u64) -> Builder {
        self.options.sync_interval_ms = interval_ms;
        self
    }

    /// Another file system, for tests and exotic media. Default: the operating system's.
    pub fn fs(mut self, fs: Arc<dyn Fs>) -> Builder {
        self.fs = fs;
        self
    }

    /// Another clock. Default: the machine's monotonic one.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Builder {
        self.clock = clock;
        self
    }

    /// Who does background work. Default: threads.
    pub fn background(mut self, mode: BackgroundMode) -> Builder {
        self.mode = mode;
        self
    }

    /// Another source of random numbers, which name databases and salt log segments. Default: the
    /// operating system's, through the standard library's hasher keys.
    pub fn random(mut self, random: impl FnMut() -> u64 + Send + 'static) -> Builder {
        self.random = Some(Box::new(random));
        self
    }

    /// Opens the database; creates folder and database if there is nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an option out of its range; otherwise as [`Db::open`].
    pub fn open(self) -> Result<Db> {
        self.options.check()?;
        let Builder { dir, options, fs, clock, mode, random } = self;
        let mut random = random.unwrap_or_else(|| Box::new(random_from_hasher_keys));
        fs.create_dir(&dir)?;
        let Some(lock) = fs.try_lock(&dir.join(names::LOCK))? else {
            let message = format!("the database in {} is open elsewhere", dir.display());
            return Err(Error::new(ErrorKind::Locked, message));
        };
        let cache = Arc::new(Blocks::new(options.cache_bytes));
        let opening = Opening::read(&*fs, &dir, &mut random)?;
        let (numbers, versions) = opening.begin_epoch(&fs, &dir, &options)?;
        let version = versions.current().clone();
        let block_cache = (options.cache_bytes > 0).then(|| cache.clone() as Arc<dyn BlockCache>);
        let mut partitions = Partitions::default();
        for partition in version.partitions.values() {
            partitions.add(Arc::new(PartitionState::new(partition.clone())));
        }
        let inner = Arc::new(DbInner {
            tables: Arc::new(TableContext {
                fs: fs.clone(),
                dir: dir.clone(),
                db_id: version.db_id,
                cache: block_cache,
            }),
            fs,
            dir,
            options,
            db_id: version.db_id,
            epoch: version.epoch,
            cache,
            numbers,
            snapshots: Arc::new(Snapshots::default()),
            counters: Counters::default(),
            random: Mutex::new(random),
            commit: CommitPath::new(version.last_seq),
            background: Background::new(mode, clock),
            jobs: super::jobs::Jobs::default(),
            stall: super::stall::Stall::default(),
            obsolete: super::obsolete::ObsoleteFiles::default(),
            edit_number: AtomicU64::new(version.edit_number),
            versions: Mutex::new(versions),
            partitions: RwLock::new(partitions),
            failure: Mutex::new(None),
            closed: AtomicBool::new(false),
            shut: AtomicBool::new(false),
            lock: Mutex::new(Some(lock)),
        });
        inner.live_partitions().iter().for_each(|partition| inner.update_pressure(partition));
        let db = Db::new(inner);
        db.inner().start_background()?;
        Ok(db)
    }
}

/// Distinct on every call and in every process, which is all that ids and salts ask for.
fn random_from_hasher_keys() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// Numbers only grow, and running out of them would be a panic in the middle of a write. No
/// database comes half way; one that says so is damaged, or holds a file with such a name.
fn check_room(what: &str, used: u64, max: u64) -> Result<()> {
    if used <= max / 2 {
        return Ok(());
    }
    Err(Error::limit(&format!("the largest of the {what} in use"), used, max / 2))
}

/// What lies in the folder before this epoch.
struct Opening {
    /// Names in the folder that are ours.
    names: Vec<FileName>,
    /// Leftovers of files that were never finished.
    temporary: Vec<String>,
    recovered: Option<Recovered>,
    version: DbVersion,
}

impl Opening {
    fn read(fs: &dyn Fs, dir: &Path, random: &mut dyn FnMut() -> u64) -> Result<Opening> {
        let entries = fs.list(dir, "")?;
        let names: Vec<FileName> =
            entries.iter().filter_map(|entry| FileName::parse(&entry.name)).collect();
        let temporary = entries.iter().map(|entry| &entry.name);
        let temporary = temporary.filter(|name| names::is_temporary(name)).cloned().collect();
        let recovered = recover(fs, dir, &names)?;
        let version = match &recovered {
            Some(recovered) if !recovered.writable => {
                let message = format!("{} needs newer code for writing", dir.display());
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            Some(recovered) => recovered.version.clone(),
            None if !names.is_empty() => {
                let what = "the folder holds files of a database, but no manifest";
                return Err(Error::corruption(dir, None, what));
            }
            None => {
                let id = u128::from(random()) << 64 | u128::from(random());
                DbVersion::empty(DbId(id))
            }
        };
        Ok(Opening { names, temporary, recovered, version })
    }

    /// Replays the log into tables and makes the state of the new epoch durable.
    fn begin_epoch(
        self,
        fs: &Arc<dyn Fs>,
        dir: &Path,
        options: &Options,
    ) -> Result<(Arc<FileNumbers>, VersionSet)> {
        let used = self.names.iter().map(|name| FileNo(name.number.0.saturating_add(1)));
        let next_file = used.max().unwrap_or_default().max(self.version.next_file);
        check_room("file numbers", next_file.0, u64::MAX)?;
        check_room("edit numbers", self.version.edit_number, u64::MAX)?;
        let numbers = Arc::new(FileNumbers::new(next_file));
        let epoch = Epoch(self.version.epoch.0.checked_add(1).ok_or_else(|| {
            Error::new(ErrorKind::LimitExceeded, "the database was opened 2^32 times")
        })?);
        let factory = TableFactory {
            fs: fs.clone(),
            dir: dir.to_owned(),
            db_id: self.version.db_id,
            epoch,
            numbers: numbers.clone(),
        };
        let (end, mut changes) = self.replay(&factory, options.write_buffer_bytes)?;
        let LogPlace { segment, offset } = end.place;
        let last_seq = end.last_seq.max(self.last_known_seq());
        check_room("sequence numbers", last_seq.get(), SEQNO_MAX)?;
        let cut = self.recovered.is_some().then_some(LogCut { segment, offset, last_seq });
        changes.insert(0, Change::EpochBegan { epoch, cut });
        if self.recovered.is_none() {
            changes.push(Change::PartitionCreated {
                id: self.version.next_partition,
                name: DEFAULT.to_owned(),
                options: PartitionOptions::default(),
                hooks: Vec::new(),
                created_at_edit: self.version.edit_number + 1,
            });
        }
        let segments = self.version.log_segments.keys();
        changes.extend(segments.map(|file| Change::SegmentRemoved { file: *file }));
        changes.push(Change::LastSeq(last_seq));
        let number = self.version.edit_number + 1;
        let version = apply(&self.version, &VersionEdit { number, changes })
            .map_err(|refused| Error::corruption(dir, None, refused.0))?;
        let name = FileName::new(FileKind::Manifest, numbers.allocate(), epoch);
        let manifest = Manifest::create(&**fs, dir, name, &version)?;
        if let Some(recovered) = &self.recovered {
            let old = recovered.generation;
            Manifest::reopen(&**fs, dir, old, &recovered.version)?.supersede(name)?;
        }
        let bytes_max = options.manifest_bytes_max;
        let mut versions = VersionSet::new(
            fs.clone(),
            dir.to_owned(),
            numbers.clone(),
            bytes_max,
            version,
            manifest,
        );
        if self.recovered.is_some() {
            // Durability: with an edit behind its snapshot the new generation counts even if the
            // old ones, or what they say, come back because a sync of the folder failed.
            versions.install(vec![Change::LastSeq(last_seq)])?;
        }
        self.remove_leftovers(&**fs, dir, versions.current());
        Ok((numbers, versions))
    }

    /// The largest sequence number that the manifest knows of.
    fn last_known_seq(&self) -> SeqNo {
        let partitions = self.version.partitions.values();
        let tables = partitions.clone().flat_map(|p| p.tables().map(|(_, t)| t.meta.newest()));
        let flushed = partitions.map(|partition| partition.flushed_through);
        tables.chain(flushed).max().unwrap_or_default().max(self.version.last_seq)
    }

    /// Replays the log; returns its end and the changes that its content amounts to.
    fn replay(&self, factory: &TableFactory, bytes_max: u64) -> Result<(LogEnd, Vec<Change>)> {
        let mut sources = Vec::new();
        for (number, epoch) in &self.version.log_segments {
            let name = FileName::new(FileKind::Wal, *number, *epoch);
            let path = name.path(&factory.dir);
            if !self.names.contains(&name) {
                return Err(Error::corruption(path, None, "a segment of the log is missing"));
            }
            let file = factory.fs.open_read(&path)?;
            sources.push(SegmentSource { number: *number, epoch: *epoch, path, file });
        }
        let paths: BTreeMap<_, _> =
            sources.iter().map(|source| (source.number, source.path.clone())).collect();
        let mut reading = LogReaderOptions::new(self.version.db_id);
        reading.must_reach = self
            .version
            .log_closed
            .map(|LogCut { segment, offset, .. }| LogPlace { segment, offset });
        let mut reader = LogReader::new(sources, reading)?;
        let mut replay = Replay::default();
        let mut tables = Tables { version: self.version.clone(), changes: Vec::new() };
        while let Some(frame) = reader.next_frame()? {
            replay.apply(&self.version, &frame, &paths[&frame.place.segment])?;
            if replay.bytes() >= bytes_max {
                tables.write(&mut replay, factory)?;
            }
        }
        // Judged before the rest is written: a log that is refused leaves no table behind.
        let end = reader.end()?;
        self.check_manifest_reaches(end.manifest_edit, &factory.dir)?;
        self.check_unlisted_segments(factory)?;
        self.check_log_reaches_flushes(&end, factory)?;
        tables.write(&mut replay, factory)?;
        Ok((end, tables.changes))
    }

    /// The log attests an edit: a manifest that ends before it lost its end.
    fn check_manifest_reaches(&self, edit: u64, dir: &Path) -> Result<()> {
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

    /// A segment is begun only when the edit that lists it is durable, and its header says so. One
    /// that is not listed is a leftover if the manifest has that edit; if not, the manifest lost
    /// it, and taking the segment for a leftover would lose what it holds.
    fn check_unlisted_segments(&self, factory: &TableFactory) -> Result<()> {
        for name in &self.names {
            if name.kind != FileKind::Wal || self.version.log_segments.contains_key(&name.number) {
                continue;
            }
            let path = name.path(&factory.dir);
            let file = factory.fs.open_read(&path)?;
            if let Some(header) = SegmentHeader::read(&*file, &path)?
                && header.db == self.version.db_id
            {
                self.check_manifest_reaches(header.manifest_edit, &factory.dir)?;
            }
        }
        Ok(())
    }

    /// What a flush of a logged partition covered was durable in the log first, so a log that
    /// ends before it lost its end: the state would be no prefix of the commit order.
    fn check_log_reaches_flushes(&self, end: &LogEnd, factory: &TableFactory) -> Result<()> {
        // Before its first epoch a database had no log.
        let before_epoch = match self.version.log_cut {
            Some(cut) => cut.last_seq,
            None => SeqNo::ZERO,
        };
        let logged = self.version.partitions.values().filter(|p| p.options.logged);
        let flushed = logged.map(|partition| partition.flushed_through).max().unwrap_or_default();
        if flushed <= end.last_seq.max(before_epoch) {
            return Ok(());
        }
        let listed = self.version.log_segments.iter();
        let in_it = listed.clone().find(|(number, _)| **number == end.place.segment);
        let path = match in_it.or(listed.clone().next()) {
            Some((number, epoch)) => {
                FileName::new(FileKind::Wal, *number, *epoch).path(&factory.dir)
            }
            None => factory.dir.clone(),
        };
        let what = format!(
            "the log ends with sequence {}, but was durable through {flushed}, which is flushed",
            end.last_seq
        );
        Err(Error::corruption(path, end.place.offset, what))
    }

    /// Removes what the new epoch does not need. What cannot be removed now is tried again at the
    /// next open: no later step relies on it.
    fn remove_leftovers(&self, fs: &dyn Fs, dir: &Path, version: &DbVersion) {
        let live: std::collections::HashSet<FileName> = version
            .partitions
            .values()
            .flat_map(|partition| partition.tables())
            .map(|(_, table)| FileName::new(FileKind::Sst, table.meta.file, table.meta.epoch))
            .collect();
        for name in &self.names {
            if name.kind != FileKind::Manifest && !live.contains(name) {
                let _ = fs.delete(&name.path(dir));
            }
        }
        for name in &self.temporary {
            let _ = fs.delete(&dir.join(name));
        }
        if let Some(recovered) = &self.recovered {
            let mut old = recovered.older.clone();
            old.push(recovered.generation);
            let _ = retire(fs, dir, &recovered.garbage, &old);
        }
    }
}

/// The tables that replayed operations were written to.
struct Tables {
    /// What the manifest says, and what was written since: a tombstone may go only if neither
    /// holds anything that it deletes.
    version: DbVersion,
    changes: Vec<Change>,
}

impl Tables {
    fn write(&mut self, replay: &mut Replay, factory: &TableFactory) -> Result<()> {
        let mut changes = Vec::new();
        for (id, memtable) in replay.take() {
            let id: PartitionId = id;
            let seq = memtable.last_seq();
            let partition = &self.version.partitions[&id];
            if let Some(meta) = flush(&[memtable], partition, &[SeqNo::MAX], factory)? {
                changes.push(Change::TableAdded { partition: id, level: 0, meta });
            }
            let memtables_through = Default::default();
            changes.push(Change::FlushedThrough { partition: id, seq, memtables_through });
        }
        let number = self.version.edit_number + 1;
        let edit = VersionEdit { number, changes };
        self.version = apply(&self.version, &edit)
            .map_err(|refused| Error::corruption(&factory.dir, None, refused.0))?;
        self.changes.extend(edit.changes);
        Ok(())
    }
}
