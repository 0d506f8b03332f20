//! [`SalvageState`]: the partitions of a damaged database, with their tables and hooks and what the log has of them.
//!
//! A manifest that recovery accepts is believed. Otherwise its frames that verify count, and the tables in the folder
//! that none of them removed; such tables name their partitions. A compaction may have replaced such a table, and a
//! clear or deleted range may be lost with an edit, so all keys are in doubt then.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::log::{LogRemains, Memtables};
use super::report::SalvageReport;
use crate::db::catalog::DEFAULT;
use crate::db::context::DbContext;
use crate::db::events::Events;
use crate::db::hook_binding::{HooksOf, is_operator};
use crate::db::open::{Builder, DbFolder};
use crate::db::ownership::fork_for_reading;
use crate::db::recovery::{LogFiles, OpenPlan};
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::fs::names::{self, FileKind, FileName};
use crate::fs::{OpenFiles, TableFile};
use crate::sstable::{FoundTable, identify};
use crate::types::{DbId, EntryKind, InternalKey, PartitionId, SeqNo, Trailer};
use crate::version::DbVersion;
use crate::version::{
    Bounds, KnownPartition, Missing, PARTITION_PROPERTY, Remains, SstMeta, TableContext, remains,
};
use crate::wal::SegmentHeader;

/// See the page of the file.
pub(super) struct SalvageState {
    pub(super) version: DbVersion,
    pub(super) hooks: HooksOf,
    pub(super) tables: Arc<TableContext>,
    pub(super) memtables: Memtables,
    /// The newest sequence number that is known.
    pub(super) last_seq: SeqNo,
    /// The time since 1970 by which values have expired.
    pub(super) unix_time: Duration,
}

const NO_MANIFEST: &str =
    "the manifest is damaged or missing, so a deleted key may be back, and an ingested one older";

impl SalvageState {
    pub(super) fn find(
        builder: &Builder,
        folder: &DbFolder,
        report: &mut SalvageReport,
    ) -> Result<SalvageState> {
        let DbFolder { fs, dir, .. } = folder;
        let unix_time = builder.clock.unix_time();
        let files = OpenFiles::new(fs.clone(), builder.options.open_files_max);
        let planned = match fork_for_reading(&files, dir) {
            Ok(Some(fork)) => OpenPlan::of_fork(&**fs, dir, fork),
            Ok(None) => OpenPlan::read(&**fs, dir, None),
            Err(error) => Err(error),
        };
        let planned = match planned {
            Ok(plan) => Some(plan),
            Err(error) if error.is_corruption() => {
                report.add(&error, dir);
                None
            }
            Err(error) => return Err(error),
        };
        if let Some(plan) = planned
            && let Some(state) = SalvageState::of_plan(builder, folder, &files, plan, report)?
        {
            return Ok(state);
        }
        report.doubt_all(None, NO_MANIFEST);
        let version = version_of_remains(&files, dir, report)?;
        let plan = OpenPlan::of_version(&**fs, dir, version)?;
        let ReadContext { context, hooks, tables } =
            ReadContext::of(builder, folder, &files, &plan)?;
        let mut log = LogRemains::new(&builder.options, plan.version);
        log.read_all(&files, dir, report)?;
        drop(context);
        let last_seq = log.last_seq;
        let (memtables, version) = log.finish();
        // A partition that only the log has, has no hooks.
        let mut hooks = hooks;
        for partition in version.partitions.values() {
            hooks.entry(partition.id).or_default();
        }
        Ok(SalvageState { version, hooks, tables, memtables, last_seq, unix_time })
    }

    /// The state of a manifest that recovery accepts; `None` if the log shows that it has lost edits.
    fn of_plan(
        builder: &Builder,
        folder: &DbFolder,
        files: &Arc<OpenFiles>,
        plan: OpenPlan,
        report: &mut SalvageReport,
    ) -> Result<Option<SalvageState>> {
        let unix_time = builder.clock.unix_time();
        let ReadContext { context, hooks, tables } =
            ReadContext::of(builder, folder, files, &plan)?;
        let last_known = plan.last_known_seq();
        let bytes_max = builder.options.memtable_bytes_max();
        // The log goes into memory as a whole: nothing can be flushed here.
        let replayed = plan.replay(&LogFiles::of(&context), bytes_max, &hooks, |_| Ok(()));
        let error = match replayed {
            Ok((end, mut replay)) => {
                let memtables =
                    replay.take().into_iter().map(|(id, memtable)| (id, vec![memtable])).collect();
                let last_seq = end.last_seq.max(last_known);
                let version = plan.version;
                return Ok(Some(SalvageState {
                    version,
                    hooks,
                    tables,
                    memtables,
                    last_seq,
                    unix_time,
                }));
            }
            Err(error) if error.is_corruption() => error,
            Err(error) => return Err(error),
        };
        report.add(&error, &context.dir);
        let edit_number = plan.version.edit_number;
        if newest_attested_edit(files, &context.dir, &plan.version, report)? > edit_number {
            return Ok(None);
        }
        let replay_from = plan.version.replay_from;
        let segments: Vec<_> = plan.version.log_segments.iter().map(|(n, e)| (*n, *e)).collect();
        let has_salts = plan.log_reading().has_derived_salts;
        let mut log = LogRemains::new(&builder.options, plan.version);
        log.read(files, &context.dir, &segments, replay_from, has_salts, report)?;
        if log.manifest_edit > edit_number {
            return Ok(None);
        }
        let why = "a part of the log is lost, and with it batches whose keys are not known";
        report.doubt_all(None, why);
        let last_seq = log.last_seq.max(last_known);
        let (memtables, version) = log.finish();
        Ok(Some(SalvageState { version, hooks, tables, memtables, last_seq, unix_time }))
    }
}

/// The means to read the files.
struct ReadContext {
    context: DbContext,
    hooks: HooksOf,
    tables: Arc<TableContext>,
}

impl ReadContext {
    fn of(
        builder: &Builder,
        folder: &DbFolder,
        files: &Arc<OpenFiles>,
        plan: &OpenPlan,
    ) -> Result<ReadContext> {
        let events = Arc::new(Events::new(Vec::new()));
        let DbFolder { fs, dir, .. } = folder;
        let context = plan.context(fs, dir, &builder.clock, files.clone(), true, events.queue())?;
        let hooks = plan.hooks(&context, builder.hooks.as_deref())?;
        for partition in plan.version.partitions.values() {
            let operator = partition.hooks.iter().find(|record| is_operator(record));
            if let Some(record) = operator.filter(|_| hooks[&partition.id].operator.is_none()) {
                let name = &record.name;
                let what = format!("the code of the merge operator {name:?} is missing");
                return Err(Error::new(ErrorKind::Unsupported, what).in_partition(&partition.name));
            }
        }
        let tables = context.table_context(None, Missing::Damage, false);
        Ok(ReadContext { context, hooks, tables })
    }
}

/// The database of the frames of manifests that verify, and of the tables in the folder.
fn version_of_remains(
    files: &Arc<OpenFiles>,
    dir: &Path,
    report: &mut SalvageReport,
) -> Result<DbVersion> {
    let fs = files.fs();
    let names = names::in_dir(fs, dir)?;
    if names.is_empty() {
        let nothing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::io("find a database in", dir, nothing));
    }
    let mut remains = remains(fs, dir, &names)?;
    remains.damage.iter().for_each(|error| report.add(error, dir));
    let tables: Vec<_> = names.iter().filter(|name| name.kind == FileKind::Sst).collect();
    let mut found = Vec::new();
    for name in tables {
        let listed = remains.partitions.values().any(|it| it.tables.contains_key(&name.number));
        if listed || remains.removed.contains(&name.number) {
            continue;
        }
        let path = name.path(dir);
        let identified =
            TableFile::open(files, &path).and_then(|file| identify(Arc::new(file), path.clone()));
        match identified {
            Ok(table) => found.push((*name, table)),
            Err(error) if error.is_corruption() => report.add(&error, &path),
            Err(error) => return Err(error),
        }
    }
    let db_id = match remains.db_id.or_else(|| id_of_tables(&found)) {
        Some(db_id) => db_id,
        None => id_of_log(files, dir, &names)?.ok_or_else(|| {
            let what = "neither a manifest nor a table nor a segment of the log says which database this is";
            Error::corruption(dir, None, what)
        })?,
    };
    for (name, table) in found {
        add_table(&mut remains, db_id, name, &table, dir, report);
    }
    if remains.partitions.values().all(|it| it.name != DEFAULT) {
        let id = free_id(&remains);
        remains.partitions.insert(id, KnownPartition::unknown(id, DEFAULT.to_owned()));
    }
    Ok(remains.into_version(db_id))
}

/// The largest number of an edit in the header of a segment. An edit that the manifest has lost may be the one that listed
/// the segment, so all in the folder count, but for those of writers before the last claim.
fn newest_attested_edit(
    files: &Arc<OpenFiles>,
    dir: &Path,
    version: &DbVersion,
    report: &mut SalvageReport,
) -> Result<u64> {
    let mut newest = 0;
    for name in names::in_dir(files.fs(), dir)?.iter().filter(|name| name.kind == FileKind::Wal) {
        let path = name.path(dir);
        let header = TableFile::open(files, &path).and_then(|it| SegmentHeader::read(&it, &path));
        // The others decide, and a repair does not end where it can go on.
        let header = header.unwrap_or_else(|error| {
            report.add(&error, &path);
            None
        });
        let own = header.filter(|it| it.db == version.db_id && it.epoch >= version.epoch);
        newest = newest.max(own.map_or(0, |header| header.manifest_edit));
    }
    Ok(newest)
}

/// The database that most tables name.
fn id_of_tables(found: &[(FileName, FoundTable)]) -> Option<DbId> {
    let mut counts: BTreeMap<u128, usize> = BTreeMap::new();
    found.iter().for_each(|(_, it)| *counts.entry(it.identity.db_id.0).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(id, _)| DbId(id))
}

/// The database of the newest segment of the log.
fn id_of_log(files: &Arc<OpenFiles>, dir: &Path, names: &[FileName]) -> Result<Option<DbId>> {
    for name in names.iter().rev().filter(|name| name.kind == FileKind::Wal) {
        let path = name.path(dir);
        let file = TableFile::open(files, &path)?;
        if let Some(header) = SegmentHeader::read(&file, &path)? {
            return Ok(Some(header.db));
        }
    }
    Ok(None)
}

fn free_id(remains: &Remains) -> PartitionId {
    let known = remains.partitions.keys().chain(&remains.dropped);
    PartitionId(known.map(|id| id.0 + 1).max().unwrap_or(0))
}

/// Adds a table that no manifest lists to the partition that it names.
fn add_table(
    remains: &mut Remains,
    db_id: DbId,
    name: FileName,
    table: &FoundTable,
    dir: &Path,
    report: &mut SalvageReport,
) {
    // A table of another database was ingested: the partition that it names is one of that database.
    let record = table.properties.user.0.get(PARTITION_PROPERTY);
    let record = record.filter(|_| table.identity.db_id == db_id);
    let named = record.and_then(|record| KnownPartition::of_record(record));
    if named.as_ref().is_some_and(|it| remains.dropped.contains(&it.id)) {
        return;
    }
    let mut partition = named.unwrap_or_else(|| {
        let id = free_id(remains);
        let what = "the table does not say which partition it belongs to";
        let mut damage = Damage::of(&Error::corruption(name.path(dir), None, what), dir);
        let lost = KnownPartition::unknown(id, format!("lost-{name}"));
        damage.partition = Some(lost.name.clone());
        report.damage.push(damage);
        lost
    });
    let taken = remains.partitions.values();
    if taken.filter(|it| it.id != partition.id).any(|it| it.name == partition.name) {
        // A partition that was dropped, and another one with its name.
        partition.name = format!("{}-{}", partition.name, partition.id.0);
    }
    let partition = remains.partitions.entry(partition.id).or_insert(partition);
    partition.tables.insert(name.number, meta_of(name, table));
    remains.last_seq = remains.last_seq.max(table.properties.max_seq);
}

/// The manifest's description of a table, as far as the table itself has it.
fn meta_of(name: FileName, table: &FoundTable) -> SstMeta {
    let FoundTable { identity, file_hash, bytes, properties } = table;
    let is_own = identity.file == name.number && identity.epoch == name.epoch;
    let first = Trailer::new(SeqNo::MAX, EntryKind::Value);
    SstMeta {
        file: name.number,
        epoch: name.epoch,
        bytes: *bytes,
        hash: *file_hash,
        smallest: InternalKey { user: properties.smallest.as_slice().into(), trailer: first },
        largest: InternalKey { user: properties.largest.as_slice().into(), trailer: Trailer::LAST },
        bounds: Bounds::INCLUSIVE,
        min_seq: properties.min_seq,
        max_seq: properties.max_seq,
        entries: properties.entries(),
        tombstones: properties.tombstones,
        hidden: properties.hidden,
        global_seq: None,
        foreign: (!is_own).then_some(*identity),
        compression: None,
        kept: Arc::new([]),
        expiries: None,
        written_at: None,
    }
}
