//! Recovery: manifest, replay, a new epoch, and only then the first write. An open for reading
//! alone ends with the replay, see `read_only.rs`.
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
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::hooked::resolve;
use super::partitions::DEFAULT;
use crate::batch::SectionReader;
use crate::compaction::{JobOutcome, Merge, Patches, RunContext, Stages, TableFactory};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fs::names::{self, FileKind, FileName};
use crate::hooks::{HookProvider, PartitionHooks, ValueStore};
use crate::limits::SEQNO_MAX;
use crate::memtable::{Memtable, SlabPool};
use crate::options::{Options, PartitionOptions};
use crate::replay::Replay;
use crate::types::{DbId, EntryKind, Epoch, FileNo, PartitionId, SeqNo};
use crate::version::{
    Change, DbVersion, FileNumbers, LogCut, Manifest, Recovered, VersionEdit, VersionSet, apply,
    recover, retire,
};
use crate::wal::{
    LogEnd, LogPlace, LogReader, LogReaderOptions, Lsn, Record, SegmentHeader, SegmentSource,
};

/// Numbers only grow, and running out of them would be a panic in the middle of a write. No
/// database comes half way; one that says so is damaged, or holds a file with such a name.
fn check_room(what: &str, used: u64, max: u64) -> Result<()> {
    if used <= max / 2 {
        return Ok(());
    }
    Err(Error::limit(&format!("the largest of the {what} in use"), used, max / 2))
}

/// The hooks of each partition.
pub(super) type HooksOf = BTreeMap<PartitionId, PartitionHooks>;

/// What an open database begins with.
pub(super) struct Begun {
    pub(super) numbers: Arc<FileNumbers>,
    pub(super) versions: VersionSet,
    /// The newest sequence number that was used.
    pub(super) last_seq: SeqNo,
    /// What the log held and no table does: empty where a new epoch was begun.
    pub(super) memtables: BTreeMap<PartitionId, Arc<Memtable>>,
}

/// What lies in the folder before this epoch.
pub(super) struct Opening {
    /// Names in the folder that are ours.
    names: Vec<FileName>,
    /// Leftovers of files that were never finished.
    temporary: Vec<String>,
    pub(super) recovered: Option<Recovered>,
    pub(super) version: DbVersion,
}

impl Opening {
    /// Reads what the manifest says. `random` names a database that does not exist yet; without it
    /// nothing is made.
    ///
    /// # Errors
    /// Corruption; [`ErrorKind::Unsupported`] if newer code is needed; that there is no database,
    /// without `random`.
    pub(super) fn read(
        fs: &dyn Fs,
        dir: &Path,
        random: Option<&mut dyn FnMut() -> u64>,
    ) -> Result<Opening> {
        let entries = fs.list(dir, "")?;
        let names: Vec<FileName> =
            entries.iter().filter_map(|entry| FileName::parse(&entry.name)).collect();
        let temporary = entries.iter().map(|entry| &entry.name);
        let temporary = temporary.filter(|name| names::is_temporary(name)).cloned().collect();
        let recovered = recover(fs, dir, &names)?;
        let version = match (&recovered, random) {
            (Some(recovered), Some(_)) if !recovered.writable => {
                let message = format!("{} needs newer code for writing", dir.display());
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            (Some(recovered), _) => recovered.version.clone(),
            (None, _) if !names.is_empty() => {
                let what = "the folder holds files of a database, but no manifest";
                return Err(Error::corruption(dir, None, what));
            }
            (None, None) => {
                let nothing = io::Error::from(io::ErrorKind::NotFound);
                return Err(Error::io("find a database in", dir, nothing));
            }
            (None, Some(random)) => {
                let id = u128::from(random()) << 64 | u128::from(random());
                DbVersion::empty(DbId(id))
            }
        };
        Ok(Opening { names, temporary, recovered, version })
    }

    /// The hooks of every partition, their stores told what the manifest keeps for them.
    pub(super) fn hooks(&self, provider: Option<&dyn HookProvider>) -> Result<HooksOf> {
        let mut all = HooksOf::new();
        for partition in self.version.partitions.values() {
            let hooks = resolve(&partition.name, &partition.hooks, provider);
            if let Some(store) = &hooks.store {
                let mut sections = partition.store_sections.iter();
                sections.try_for_each(|(number, bytes)| store.apply(*number, bytes))?;
            }
            all.insert(partition.id, hooks);
        }
        Ok(all)
    }

    /// Replays the log into tables and makes the state of the new epoch durable.
    pub(super) fn begin_epoch(
        self,
        fs: &Arc<dyn Fs>,
        dir: &Path,
        options: &Options,
        hooks: &HooksOf,
    ) -> Result<Begun> {
        let next_file = self.next_file();
        check_room("file numbers", next_file.0, u64::MAX)?;
        check_room("edit numbers", self.version.edit_number, u64::MAX)?;
        let numbers = Arc::new(FileNumbers::new(next_file));
        let epoch = self.next_epoch()?;
        let factory = TableFactory {
            fs: fs.clone(),
            dir: dir.to_owned(),
            db_id: self.version.db_id,
            epoch,
            numbers: numbers.clone(),
        };
        let mut tables = Tables::new(&self.version, &factory, hooks);
        let bytes_max = options.write_buffer_bytes;
        let (end, mut rest) =
            self.replay(&LogFiles { fs: &**fs, dir }, bytes_max, hooks, |full| tables.write(full))?;
        tables.write(&mut rest)?;
        let mut changes = std::mem::take(&mut tables.changes);
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
        // From here on the new generation may count.
        tables.keep();
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
        Ok(Begun { numbers, versions, last_seq, memtables: BTreeMap::new() })
    }

    fn next_epoch(&self) -> Result<Epoch> {
        let next = self.version.epoch.0.checked_add(1);
        next.map(Epoch).ok_or_else(|| {
            Error::new(ErrorKind::LimitExceeded, "the database was opened 2^32 times")
        })
    }

    /// A file number above every name in the folder.
    pub(super) fn next_file(&self) -> FileNo {
        let used = self.names.iter().map(|name| FileNo(name.number.0.saturating_add(1)));
        used.max().unwrap_or_default().max(self.version.next_file)
    }

    /// The largest sequence number that the manifest knows of.
    pub(super) fn last_known_seq(&self) -> SeqNo {
        let partitions = self.version.partitions.values();
        let tables = partitions.clone().flat_map(|p| p.tables().map(|(_, t)| t.meta.newest()));
        let flushed = partitions.map(|partition| partition.flushed_through);
        tables.chain(flushed).max().unwrap_or_default().max(self.version.last_seq)
    }

    /// The live segments, opened.
    fn log_sources(&self, files: &LogFiles<'_>) -> Result<Vec<SegmentSource>> {
        let mut sources = Vec::new();
        for (number, epoch) in &self.version.log_segments {
            let name = FileName::new(FileKind::Wal, *number, *epoch);
            let path = name.path(files.dir);
            if !self.names.contains(&name) {
                return Err(Error::corruption(path, None, "a segment of the log is missing"));
            }
            let file = files.fs.open_read(&path)?;
            sources.push(SegmentSource { number: *number, epoch: *epoch, path, file });
        }
        Ok(sources)
    }

    /// Where the log must be cut because a value is missing that a handle points to. If the frame
    /// with the handle is attested durable, the value was durable too and is damaged: that key
    /// reads so, and the log goes on.
    fn handle_cut(&self, files: &LogFiles<'_>, hooks: &HooksOf) -> Result<Option<LogPlace>> {
        let store =
            |(id, hooks): (&PartitionId, &PartitionHooks)| Some((*id, hooks.store.clone()?));
        let stores: BTreeMap<_, _> = hooks.iter().filter_map(store).collect();
        if stores.is_empty() {
            return Ok(None);
        }
        let segments = self.version.log_segments.len();
        let _span = tracing::info_span!("recovery", segments).entered();
        let sources = self.log_sources(files)?;
        let mut reader = LogReader::new(sources, self.log_reading())?;
        let mut missing: Vec<(LogPlace, Lsn)> = Vec::new();
        while let Some(frame) = reader.next_frame()? {
            if self.lacks_value(&frame.record, &stores)? {
                missing.push((frame.place, frame.lsn));
            }
        }
        let durable = reader.end()?.durable;
        let cut = missing.into_iter().find(|(_, lsn)| *lsn >= durable);
        Ok(cut.map(|(place, _)| place))
    }

    /// What is known of the log before it is read.
    fn log_reading(&self) -> LogReaderOptions {
        let mut reading = LogReaderOptions::new(self.version.db_id);
        if let Some(recovered) = &self.recovered {
            reading.has_derived_salts = recovered.has_derived_salts;
        }
        reading
    }

    /// Whether a handle that is not flushed points to a value that is not there.
    fn lacks_value(
        &self,
        record: &Record<'_>,
        stores: &BTreeMap<PartitionId, Arc<dyn ValueStore>>,
    ) -> Result<bool> {
        let Record::Batch(batch) = record else { return Ok(false) };
        for section in batch.sections() {
            let Some(store) = stores.get(&section.partition) else { continue };
            // What is flushed may have been moved or reclaimed since. The section by itself: of a
            // batch over two partitions one part may be.
            if section.last_seq() <= self.version.partitions[&section.partition].flushed_through {
                continue;
            }
            let mut operations = SectionReader::new(section.bytes);
            // What does not decode is told by the replay itself.
            while let Ok(Some(operation)) = operations.next_operation() {
                if operation.kind == EntryKind::Handle
                    && !store.probe(&section.bytes[operation.value])?
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Replays the log; returns its end and what was replayed last. Whenever that takes
    /// `bytes_max` of memory, `is_full` takes it out.
    pub(super) fn replay(
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
        reading.must_reach = self
            .version
            .log_closed
            .map(|LogCut { segment, offset, .. }| LogPlace { segment, offset });
        reading.cut = self.handle_cut(files, hooks)?;
        let mut reader = LogReader::new(sources, reading)?;
        let mut replay = Replay::new(Arc::new(SlabPool::new(bytes_max)));
        while let Some(frame) = reader.next_frame()? {
            replay.apply(&self.version, &frame, &paths[&frame.place.segment])?;
            if replay.bytes() >= bytes_max {
                is_full(&mut replay)?;
            }
        }
        // Judged before the rest is used: a log that is refused leaves no table behind.
        let end = reader.end()?;
        self.check_manifest_reaches(end.manifest_edit, files.dir)?;
        self.check_unlisted_segments(files)?;
        self.check_log_reaches_flushes(&end, files)?;
        tracing::info!(last_seq = end.last_seq.get(), "the log is replayed");
        Ok((end, replay))
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
    fn check_unlisted_segments(&self, files: &LogFiles<'_>) -> Result<()> {
        for name in &self.names {
            if name.kind != FileKind::Wal || self.version.log_segments.contains_key(&name.number) {
                continue;
            }
            let path = name.path(files.dir);
            let file = files.fs.open_read(&path)?;
            if let Some(header) = SegmentHeader::read(&*file, &path)?
                && header.db == self.version.db_id
            {
                self.check_manifest_reaches(header.manifest_edit, files.dir)?;
            }
        }
        Ok(())
    }

    /// What a flush of a logged partition covered was durable in the log first, so a log that
    /// ends before it lost its end: the state would be no prefix of the commit order.
    fn check_log_reaches_flushes(&self, end: &LogEnd, files: &LogFiles<'_>) -> Result<()> {
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
            Some((number, epoch)) => FileName::new(FileKind::Wal, *number, *epoch).path(files.dir),
            None => files.dir.to_owned(),
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

/// Where the segments of the log lie.
pub(super) struct LogFiles<'a> {
    pub(super) fs: &'a dyn Fs,
    pub(super) dir: &'a Path,
}

/// The tables that replayed operations were written to. Dropped before they are kept, they are
/// removed: a disk that is too full for a new epoch is not filled any further by trying.
struct Tables<'a> {
    factory: &'a TableFactory,
    /// What the manifest says, and what was written since: a tombstone may go only if neither
    /// holds anything that it deletes.
    version: DbVersion,
    changes: Vec<Change>,
    hooks: &'a HooksOf,
    made: Vec<FileName>,
}

impl Drop for Tables<'_> {
    fn drop(&mut self) {
        for name in &self.made {
            // What cannot be removed is a leftover that the next open removes.
            let _ = self.factory.fs.delete(&name.path(&self.factory.dir));
        }
    }
}

impl<'a> Tables<'a> {
    fn new(version: &DbVersion, factory: &'a TableFactory, hooks: &'a HooksOf) -> Tables<'a> {
        let version = version.clone();
        Tables { factory, version, changes: Vec::new(), hooks, made: Vec::new() }
    }

    /// A manifest may name the tables from now on: they stay.
    fn keep(&mut self) {
        self.made.clear();
    }

    fn write(&mut self, replay: &mut Replay) -> Result<()> {
        let factory = self.factory;
        let mut changes = Vec::new();
        let tables = Arc::new(factory.context());
        for (id, memtable) in replay.take() {
            let id: PartitionId = id;
            let seq = memtable.last_seq();
            let partition = &self.version.partitions[&id];
            let mut hooks = self.hooks.get(&id).cloned().unwrap_or_default();
            // What nobody has seen is decided on later, by a job that knows the snapshots.
            hooks.filters.retain(|filter| filter.seals());
            // With a value store every version is kept: values that nothing refers to are reported
            // by a compaction, in the edit that lets them go.
            // Nor is one moved before somebody can report where it was.
            let keep_all = hooks.store.take().is_some();
            let snapshots = [if keep_all { SeqNo::ZERO } else { SeqNo::MAX }];
            let patches = Patches::default();
            let stages = Stages::new(&hooks, &snapshots, &[], &patches, None);
            let merge = Merge::flush(&[memtable], partition);
            let should_stop = &|| false;
            let context =
                RunContext { factory, tables: &tables, stages, should_stop, sources: None };
            match merge.run(context)? {
                JobOutcome::Done { tables, .. } => {
                    let names = tables
                        .iter()
                        .map(|meta| FileName::new(FileKind::Sst, meta.file, meta.epoch));
                    self.made.extend(names);
                    let added = |meta| Change::TableAdded { partition: id, level: 0, meta };
                    changes.extend(tables.into_iter().map(added));
                }
                JobOutcome::Faulty(_) => {
                    let what = "a replayed entry does not hold together";
                    return Err(Error::corruption(&factory.dir, None, what));
                }
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
