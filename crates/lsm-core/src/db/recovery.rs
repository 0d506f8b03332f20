//! Recovery: manifest, replay, a new epoch, and only then the first write. docs/RECOVERY.md goes
//! through the crash cases. A read-only open ends with the replay: see `read_only.rs`.
//!
//! Invariants:
//! 1. Nothing that recovery read is deleted before the recovered state is durable elsewhere: the
//!    entries of the log go to new tables, the manifest to a new generation.
//! 2. The switch is one step: the new generation holds the new epoch, the new tables and the end
//!    of the old log; the old one naming it makes it valid. A crash before leaves the old state.
//!    LevelDB replaces a file that names the manifest; that file could be lost or damaged as well.
//! 3. Replay never resyncs a file in place: the page cache may have bytes that the disk never got.
//! 4. Files that the new generation does not name are deleted as soon as no secondary reads them,
//!    except foreign ones, which are never touched.

mod log;
mod orphans;
mod tables;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) use log::LogFiles;
pub(super) use orphans::OrphanFiles;

use super::catalog::DEFAULT;
use super::context::DbContext;
use super::hook_binding::{HooksOf, resolve};
use super::log::RetentionLimits;
use crate::clock::Clock;
use crate::compaction::{SyncLater, TableFactory};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{self, FileKind, FileName};
use crate::fs::{AppendMode, Fs, OpenFiles};
use crate::hooks::{AttachedStore, EventQueue, HookProvider, StoreWishes, ValueStoreFactory};
use crate::limits::SEQNO_MAX;
use crate::memtable::Memtable;
use crate::options::{Options, PartitionOptions};
use crate::shared::CommitCursorWriter;
use crate::types::{DbId, Epoch, FileNo, FileNumbers, PartitionId, SeqNo};
use crate::version::{
    Change, DbVersion, Fork, LogCut, Manifest, Recovered, RetainedSegment, VersionEdit, VersionSet,
    apply, next_free, recover,
};
use crate::wal::{LogPlace, SEGMENT_HEADER_BYTES};
use tables::{ReplayedTables, store_sections};

/// Returns an error if half of the numbers are used. Numbers only grow, and running out of them
/// would be a panic in the middle of a write. No real database uses half of them; one that claims
/// so is damaged, or its folder has a file with such a name.
fn check_room(what: &str, used: u64, max: u64) -> Result<()> {
    if used <= max / 2 {
        return Ok(());
    }
    Err(Error::limit(&format!("the largest of the {what} in use"), used, max / 2))
}

/// The parts of a database after recovery.
pub(super) struct RecoveredState {
    pub(super) versions: VersionSet,
    /// The newest sequence number that was used.
    pub(super) last_seq: SeqNo,
    /// The operations that the log has and no table does: empty if a new epoch was begun.
    pub(super) memtables: BTreeMap<PartitionId, Arc<Memtable>>,
    /// The segments that stay, with their bytes.
    pub(super) segments: Vec<(FileNo, u64)>,
    /// Files of epochs before.
    pub(super) orphans: OrphanFiles,
    /// Shows secondaries the new epoch.
    pub(super) cursor: Arc<CommitCursorWriter>,
}

/// The content of the folder before this epoch.
pub(super) struct OpenPlan {
    /// Files in the folder that are ours.
    names: Vec<FileName>,
    /// Names of database files in the folder, of files of any kind.
    taken: Vec<FileName>,
    /// Their lengths in bytes.
    lengths: HashMap<FileName, u64>,
    /// The remains of files that were never finished.
    temporary: Vec<String>,
    pub(super) recovered: Option<Recovered>,
    pub(super) version: DbVersion,
    /// The end of the previous epochs, if a promotion must be finished.
    fork: Option<ForkEnd>,
    /// The claim whose lock this process holds.
    pub(super) claim: Option<Epoch>,
}

/// The fields of a fork other than its state.
struct ForkEnd {
    begins: Epoch,
    cut: Option<LogPlace>,
}

/// The names in a folder that are those of a database.
struct Listing {
    names: Vec<FileName>,
    taken: Vec<FileName>,
    lengths: HashMap<FileName, u64>,
    temporary: Vec<String>,
}

impl Listing {
    fn of(fs: &dyn Fs, dir: &Path) -> Result<Listing> {
        // One listing for all files: a second one could show another state of the folder.
        let entries = fs.list(dir, "")?;
        let names = entries.iter().filter_map(|entry| FileName::parse(&entry.name)).collect();
        let lengths =
            entries.iter().filter_map(|entry| Some((FileName::parse(&entry.name)?, entry.len)));
        let lengths = lengths.collect();
        let temporary = entries.iter().map(|entry| &entry.name);
        let temporary = temporary.filter(|name| names::is_temporary(name)).cloned().collect();
        // The name of a folder or a link is not available for a file.
        let taken = fs.list_names(dir, "")?;
        let taken = taken.iter().filter_map(|name| FileName::parse(name)).collect();
        Ok(Listing { names, taken, lengths, temporary })
    }
}

impl OpenPlan {
    /// Reads the manifest. `random` provides the id of a database that does not exist yet; without
    /// it nothing is created.
    ///
    /// # Errors
    /// Corruption; [`ErrorKind::Unsupported`] if newer code is needed; a missing database, without
    /// `random`.
    pub(super) fn read(
        fs: &dyn Fs,
        dir: &Path,
        random: Option<&mut dyn FnMut() -> u64>,
    ) -> Result<OpenPlan> {
        let Listing { names, taken, lengths, temporary } = Listing::of(fs, dir)?;
        let recovered = recover(fs, dir, &names)?;
        let version = match (&recovered, random) {
            (Some(recovered), random) => {
                if random.is_some() {
                    recovered.check_writable(dir)?;
                }
                recovered.version.clone()
            }
            // Creating a database in this folder would be the friendly answer to a lost manifest.
            // It would also delete every table as an orphan file.
            (None, _) if !names.is_empty() => {
                let what = "the folder holds files of a database, but no manifest";
                return Err(Error::corruption(dir, None, what));
            }
            (None, None) => {
                let nothing = std::io::Error::from(std::io::ErrorKind::NotFound);
                return Err(Error::io("find a database in", dir, nothing));
            }
            (None, Some(random)) => {
                // Random, because a file of another database with the same number must not verify
                // here.
                let id = u128::from(random()) << 64 | u128::from(random());
                DbVersion::empty(DbId(id))
            }
        };
        let fork = None;
        Ok(OpenPlan { names, taken, lengths, temporary, recovered, version, fork, claim: None })
    }

    /// The folder with the state of `version`, to look at its log.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn of_version(fs: &dyn Fs, dir: &Path, version: DbVersion) -> Result<OpenPlan> {
        let Listing { names, taken, lengths, temporary } = Listing::of(fs, dir)?;
        let recovered = None;
        let fork = None;
        Ok(OpenPlan { names, taken, lengths, temporary, recovered, version, fork, claim: None })
    }

    /// The folder as of a fork: later writes of older epochs do not count.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn of_fork(fs: &dyn Fs, dir: &Path, fork: Fork) -> Result<OpenPlan> {
        let mut plan = OpenPlan::of_version(fs, dir, fork.version)?;
        let manifests = plan.names.iter().copied();
        let manifests = manifests.filter(|name| name.kind == FileKind::Manifest);
        let manifests = manifests.filter(|name| *name != fork.generation);
        // Those of the new epoch were made by a process that died before it used them.
        let (older, garbage) = manifests.partition(|name| name.epoch < fork.begins);
        plan.recovered = Some(Recovered {
            version: plan.version.clone(),
            generation: fork.generation,
            end: 0,
            older,
            garbage,
            torn: false,
            writable: true,
            has_derived_salts: fork.has_derived_salts,
        });
        plan.fork = Some(ForkEnd { begins: fork.begins, cut: fork.cut });
        Ok(plan)
    }

    /// The context of the new epoch.
    ///
    /// # Errors
    /// A limit, if a number is used up.
    pub(super) fn context(
        &self,
        fs: &Arc<dyn Fs>,
        dir: &Path,
        clock: &Arc<dyn Clock>,
        files: Arc<OpenFiles>,
        is_read_only: bool,
        events: EventQueue,
    ) -> Result<DbContext> {
        let next_file = self.next_file();
        // A reader uses no numbers, so it may open a database that has none left.
        if !is_read_only {
            check_room("file numbers", next_file.0, u64::MAX)?;
            check_room("edit numbers", self.version.edit_number, u64::MAX)?;
        }
        let epoch = if is_read_only { self.version.epoch } else { self.next_epoch()? };
        Ok(DbContext {
            fs: fs.clone(),
            dir: dir.to_owned(),
            files,
            clock: clock.clone(),
            db_id: self.version.db_id,
            epoch,
            numbers: Arc::new(FileNumbers::new(next_file)),
            under_way: Arc::default(),
            is_read_only,
            other: None,
            events,
            wishes: StoreWishes::default(),
        })
    }

    /// The hooks of every partition, whose stores have applied the sections in the manifest.
    pub(super) fn hooks(
        &self,
        context: &DbContext,
        provider: Option<&dyn HookProvider>,
    ) -> Result<HooksOf> {
        let mut all = HooksOf::new();
        for partition in self.version.partitions.values() {
            let hooks = resolve(
                &partition.name,
                &partition.hooks,
                provider,
                Some(&|factory: &dyn ValueStoreFactory| {
                    let context = context.store_context(partition.id, &partition.name);
                    // With the sections, before the replay: a handle in the log may refer to a file
                    // that an edit adds.
                    AttachedStore::open(factory, context, &partition.store_sections)
                }),
            )?;
            all.insert(partition.id, hooks);
        }
        Ok(all)
    }

    /// Replays the log into tables and makes the state of the new epoch durable.
    ///
    /// A crash before the new generation is published leaves tables without a name in a manifest:
    /// the old manifest and the old log count, and the next open makes the tables again. A crash
    /// before the old generation names the new one leaves garbage, which the next open removes. A
    /// later crash leaves old files, and the new generation counts.
    pub(super) fn begin_epoch(
        self,
        context: &DbContext,
        options: &Options,
        hooks: &HooksOf,
    ) -> Result<RecoveredState> {
        let DbContext { fs, dir, numbers, clock, .. } = context;
        let dir = dir.as_path();
        let epoch = context.epoch;
        // The tables share one sync of the folder: there may be thousands of them.
        // A database that is being opened has no statistics yet.
        let later = Some(SyncLater::new(options.open_files_max));
        let factory = TableFactory { later, under_way: None, ..context.factory() };
        let mut tables = ReplayedTables::new(&self.version, &factory, hooks, clock.unix_time());
        let bytes_max = options.write_buffer_bytes;
        let (end, mut rest) =
            self.replay(&LogFiles::of(context), bytes_max, hooks, |full| tables.write(full))?;
        // The rest goes to tables as well, although a memtable would be faster. Otherwise the old
        // segments would have to stay, and the next recovery would replay a log of two epochs.
        tables.write(&mut rest)?;
        tables.sync()?;
        // The maximum, because partitions without a log use numbers that no frame has. With a
        // reused number an old entry could hide a new one.
        let last_seq = end.last_seq.max(self.last_known_seq());
        check_room("sequence numbers", last_seq.get(), SEQNO_MAX)?;
        let replayed = std::mem::take(&mut tables.changes);
        let mut changes = self.epoch_changes(context, options, replayed, end.place, last_seq)?;
        let number = self.version.edit_number + 1;
        let sections = store_sections(&tables.added, hooks)?;
        changes.extend(sections.iter().map(|(partition, bytes)| Change::StoreSection {
            partition: *partition,
            number,
            bytes: bytes.clone(),
        }));
        let version = apply(&self.version, &VersionEdit { number, changes })
            .map_err(|refused| Error::corruption(dir, None, refused.0))?;
        let name = FileName::new(FileKind::Manifest, numbers.allocate(), epoch);
        // Before the manifest of the epoch: a secondary that finds that manifest waits for this
        // cursor to begin.
        let cursor = Arc::new(CommitCursorWriter::create(&**fs, dir, version.db_id, epoch));
        let manifest = Manifest::create(&**fs, dir, name, &version)?;
        // From here on the new generation may count, even if a later step fails: the tables stay.
        tables.keep();
        self.supersede_old(&**fs, dir, name)?;
        let bytes_max = options.manifest_bytes_max;
        let mut versions = VersionSet::new(
            fs.clone(),
            dir.to_owned(),
            numbers.clone(),
            bytes_max,
            version,
            manifest,
            cursor.clone(),
        );
        if self.recovered.is_some() {
            // Durability: with an edit after its snapshot the new generation counts even if the old
            // ones, or their content, reappear because a sync of the folder failed.
            versions.install(vec![Change::LastSeq(last_seq)])?;
        }
        // After the edit is durable: a store may delete the files that an edit drops.
        for (partition, bytes) in &sections {
            if let Some(store) = &hooks[partition].store {
                store.call("apply", |store| store.apply(number, bytes))?;
            }
        }
        // Last. Until here a crash may need every file that was found.
        let orphans = self.orphans(&**fs, dir, versions.current(), hooks)?;
        let memtables = BTreeMap::new();
        Ok(RecoveredState { versions, last_seq, memtables, segments: Vec::new(), orphans, cursor })
    }

    /// Records in the old generation that the manifest continues in `new`.
    fn supersede_old(&self, fs: &dyn Fs, dir: &Path, new: FileName) -> Result<()> {
        match &self.recovered {
            // After a fork the first edit decides. The old generation may still be written to, and
            // does not count any more once a generation of a later epoch has an edit.
            Some(recovered) if self.fork.is_none() => {
                let old = recovered.generation;
                // The step that decides: invariant 2.
                Manifest::reopen(fs, dir, old, &recovered.version)?.supersede(new)
            }
            _ => Ok(()),
        }
    }

    /// The changes that begin the epoch of `context` after a log that ended at `place`, with the tables of `replayed`.
    fn epoch_changes(
        &self,
        context: &DbContext,
        options: &Options,
        replayed: Vec<Change>,
        place: LogPlace,
        last_seq: SeqNo,
    ) -> Result<Vec<Change>> {
        let LogPlace { segment, offset } = place;
        // The end of the old log is recorded. Its files may reappear if a sync of the folder fails,
        // and a torn frame at its end must never count later.
        let cut = self.recovered.is_some().then_some(LogCut { segment, offset, last_seq });
        // First, as in a snapshot: beginning an epoch clears the place where the old log was
        // closed, and must not clear later changes.
        let mut changes = vec![Change::EpochBegan { epoch: context.epoch, cut }];
        changes.extend(replayed);
        if self.recovered.is_none() {
            changes.push(self.first_partition());
        }
        // The version after this edit names no segment, so nothing can be replayed twice.
        let segments = self.version.log_segments.keys();
        changes.extend(segments.map(|file| Change::SegmentRemoved { file: *file }));
        changes.push(Change::LastSeq(last_seq));
        changes.extend(self.retention(RetentionLimits::of(options), context, place, last_seq)?);
        Ok(changes)
    }

    /// The changes that keep the log of the epoch before, which ended at `place`, for those who follow the changes.
    ///
    /// # Durability
    /// The segments that are kept are synced: the process before may have ended without a sync of the last frames,
    /// and these are read after a crash. If a sync fails, nothing of the log is kept. An error instead would leave the
    /// segment to the next open, whose sync may succeed although the data of the failed one is lost.
    fn retention(
        &self,
        limits: RetentionLimits,
        context: &DbContext,
        place: LogPlace,
        last_seq: SeqNo,
    ) -> Result<Vec<Change>> {
        let LogPlace { segment, offset } = place;
        // Without a header nothing was logged.
        let is_silent = offset < SEGMENT_HEADER_BYTES;
        let mut left = Vec::new();
        let mut kept = limits;
        // Later ones are a reserve, or of a writer that was fenced.
        for (number, epoch) in self.version.log_segments.range(..=segment) {
            if !limits.is_on() || is_silent {
                break;
            }
            let name = FileName::new(FileKind::Wal, *number, *epoch);
            let path = name.path(&context.dir);
            if context.fs.open_append(&path, AppendMode::Existing)?.sync().is_err() {
                kept = RetentionLimits::default();
                break;
            }
            let since = context.clock.unix_time().as_secs();
            let segment = RetainedSegment { epoch: *epoch, bytes: self.len_of(&name), since };
            left.push((*number, segment));
        }
        let now = context.clock.unix_time();
        let decision = kept.keep(&self.version.retained, left, now);
        let mut changes = decision.changes;
        // The files of those that are not kept any more are among the orphans.
        if limits.is_on() && self.recovered.is_some() {
            let mut ends = self.version.retained.ends.iter();
            let (epoch, end) = match ends.next_back().filter(|_| is_silent) {
                // The numbers that such an epoch used are missing after the log before it.
                Some((epoch, before)) => (*epoch, LogCut { last_seq, ..*before }),
                None => (self.version.epoch, LogCut { segment, offset, last_seq }),
            };
            changes.push(Change::RetainedEnd { epoch, end });
        }
        Ok(changes)
    }

    /// The change that makes the partition which every new database has.
    fn first_partition(&self) -> Change {
        Change::PartitionCreated {
            id: self.version.next_partition,
            name: DEFAULT.to_owned(),
            options: PartitionOptions::default(),
            hooks: Vec::new(),
            created_at_edit: self.version.edit_number + 1,
        }
    }

    fn next_epoch(&self) -> Result<Epoch> {
        if let Some(fork) = &self.fork {
            return Ok(fork.begins);
        }
        let next = self.version.epoch.0.checked_add(1);
        next.map(Epoch).ok_or_else(|| {
            Error::new(ErrorKind::LimitExceeded, "the database was opened 2^32 times")
        })
    }

    /// A file number that no name in the folder has.
    fn next_file(&self) -> FileNo {
        // Including orphan files: a new file must not get the name of one that cannot be deleted.
        next_free(self.version.next_file, &self.taken)
    }

    /// The largest sequence number in the manifest.
    pub(super) fn last_known_seq(&self) -> SeqNo {
        let partitions = self.version.partitions.values();
        let in_tables = partitions.map(|partition| partition.tables_through()).max();
        in_tables.unwrap_or_default().max(self.version.last_seq)
    }

    /// The path of a live segment.
    pub(super) fn segment_path(&self, number: FileNo, dir: &Path) -> PathBuf {
        let epoch = self.version.log_segments.get(&number).copied().unwrap_or_default();
        FileName::new(FileKind::Wal, number, epoch).path(dir)
    }

    /// The length of a file in the folder, in bytes; 0 for any other.
    pub(super) fn len_of(&self, name: &FileName) -> u64 {
        self.lengths.get(name).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
