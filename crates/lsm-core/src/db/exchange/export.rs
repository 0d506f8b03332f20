//! `Partition::export`: a range of a partition as finished tables with a description.
//!
//! An export is a job like a compaction, whose outputs go to another folder and are not installed.
//! So the filter that seals verifies every entry, a table with a damaged block is repaired first, and
//! hidden entries are exported with their owners. Deciding filters are not called: the export has what a
//! reader sees. Sequence numbers do not change, so that a tool can see the order of the writes; an ingest
//! gives all entries one number of its own database.
//!
//! Invariants:
//! 1. Tables are durable before the description is published.
//! 2. When it fails, its files are removed.
//! 3. Only values are exported: those of handles are read from the value store, and a record that
//!    is known to be damaged fails the export.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::description::ExportDescription;
use crate::compaction::{ExportRange, Merge, TableFactory};
use crate::db::checkpoint::make_empty_folder;
use crate::db::hook_binding::is_operator;
use crate::db::job::StartedJob;
use crate::db::{DbInner, Partition, Snapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::EXPORT;
use crate::hooks::{
    AttachedOperator, AttachedStore, CompactionFilter, CompactionFilterFactory, Decision, Entry,
    Job, KnownAgeing, PartitionHooks,
};
use crate::read::{Bounds, KeyRange, ReadPoint, lost, stored_bounds};
use crate::snapshot::JobSnapshots;
use crate::types::{EntryKind, KeyForm, SeqNo};
use crate::version::{HookRecord, SstMeta};

/// The result of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportSummary {
    /// Number of tables.
    pub tables: usize,
    /// Number of keys.
    pub entries: u64,
    /// Length of all tables together, in bytes.
    pub bytes: u64,
    /// The sequence number up to which the export sees.
    pub seq: SeqNo,
}

/// Options of an export: the parts of a partition that it includes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing by themselves"]
pub struct ExportOptions {
    is_bare: bool,
}

impl ExportOptions {
    /// Returns the defaults.
    pub fn new() -> ExportOptions {
        ExportOptions::default()
    }

    /// Sets whether hidden entries, for example metadata, are exported with their owners. Without
    /// them each entry is verified all the same, keys are in the form that users gave, and any
    /// partition without rules for its keys can ingest the export. Default `true`.
    pub fn hidden_entries(mut self, travel: bool) -> ExportOptions {
        self.is_bare = !travel;
        self
    }
}

impl Partition {
    /// Writes the keys and values in `range`, as they are now, to finished tables in the folder
    /// `dir`, which must be empty or not exist. [`Partition::ingest`] of any database reads them.
    /// Writes continue; later ones are not in the export.
    ///
    /// Hidden entries of a filter that seals are exported with their owners. The filter verifies
    /// every entry; damage is repaired in the export as it would be in a compaction.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there are files in `dir`; corruption that names the key if
    /// an entry is damaged beyond repair; those of the files. Its files are removed then, except
    /// the folder; the remains after a crash have no description and are no export.
    ///
    /// # Durability
    /// Durable once this returns.
    ///
    /// # Cost
    /// Reads the range and writes it, compressed as the partition's deeper levels are.
    pub fn export(&self, range: impl KeyRange, dir: impl AsRef<Path>) -> Result<ExportSummary> {
        self.export_with(range, dir, ExportOptions::new())
    }

    /// [`Partition::export`] with options.
    ///
    /// # Errors
    /// As for [`Partition::export`].
    pub fn export_with(
        &self,
        range: impl KeyRange,
        dir: impl AsRef<Path>,
        options: ExportOptions,
    ) -> Result<ExportSummary> {
        let db = self.db();
        let dir = dir.as_ref();
        let (mut snapshot, mut point) = self.export_point()?;
        make_empty_folder(&*db.context.fs, dir)?;
        let bounds = range.bounds();
        loop {
            let exported = self.export_at(&snapshot, &point, bounds.clone(), dir, options);
            db.events.deliver();
            let Err(error) = &exported else { return exported };
            // A damaged block is repaired, and the export is tried again. A table that lacks entries
            // without a sign where is not: nothing says what the export would lack.
            let names_block = error.damage().is_some_and(|damage| damage.offset.is_some());
            let version = &point.view.version;
            if !names_block
                || !db.scheduler.compactor().repair_table(self.state(), version, error)?
            {
                return exported;
            }
            // A new one: the present snapshot may read the damaged table as long as it lives.
            (snapshot, point) = self.export_point()?;
        }
    }

    /// The state that an attempt exports.
    fn export_point(&self) -> Result<(Snapshot, ReadPoint)> {
        // A snapshot, because an export may take long and compactions must keep the versions that
        // it reads.
        let snapshot = self.open_db().snapshot();
        self.state().check_live()?;
        let point = self.read_point_at(Some(&snapshot))?;
        Ok((snapshot, point))
    }

    /// Exports what a snapshot sees into an empty folder.
    fn export_at(
        &self,
        snapshot: &Snapshot,
        point: &ReadPoint,
        bounds: Bounds,
        dir: &Path,
        options: ExportOptions,
    ) -> Result<ExportSummary> {
        let db = self.db();
        let version = point.view.version.clone();
        let hooks = self.state().hooks();
        let suffix = &hooks.rules.reserved_suffix;
        let bounds = stored_bounds(point.key_form, bounds);
        let lower = &bounds.0;
        let upper = &bounds.1;
        let lower = lower.as_ref().map(Vec::as_slice);
        let upper = upper.as_ref().map(Vec::as_slice);
        // Before any work: an export that silently lacks keys would be a wrong copy.
        if let Some(gap) = point.view.gap_refusing(lower, upper, snapshot.seq()) {
            return Err(lost(gap, &db.setup.tables).in_partition(self.name()));
        }
        let range = ExportRange::new(bounds, snapshot.seq(), suffix);
        // The time of its readers, if they do not see what has expired.
        let as_of = point.alive.as_ref().and_then(|_| snapshot.registered.unix_time());
        let bare = options.is_bare.then_some(point.key_form);
        let tables = {
            // A close waits for this: once the folder is unlocked, another process may remove the
            // files that are read here. Not while events are delivered, because a listener may
            // close the database.
            let _entered = db.scheduler.jobs().enter(self.state());
            // Either a close finds the export, or this check finds the close.
            db.check_not_closed()?;
            db.write_extract(point, as_of, &hooks, &range, bare, dir)
        };
        let tables = tables.map_err(|error| error.in_partition(self.name()))?;
        let description = ExportDescription {
            db_id: db.context.db_id,
            partition: self.name().to_owned(),
            seq: snapshot.seq(),
            options: (*version.options).clone(),
            hooks: travelling(&version.hooks, options),
            tables,
        };
        publish(db, dir, &description)?;
        let metas = &description.tables;
        Ok(ExportSummary {
            tables: metas.len(),
            entries: metas.iter().map(|meta| meta.entries).sum(),
            bytes: metas.iter().map(|meta| meta.bytes).sum(),
            seq: description.seq,
        })
    }
}

impl DbInner {
    /// Writes the tables of an export, durably; a failure leaves no file.
    fn write_extract(
        &self,
        point: &ReadPoint,
        as_of: Option<Duration>,
        hooks: &PartitionHooks,
        range: &ExportRange,
        bare: Option<KeyForm>,
        dir: &Path,
    ) -> Result<Vec<SstMeta>> {
        let inline = point.store.clone().map(|store| Arc::new(InlineValues(store)) as Arc<_>);
        let hooks = PartitionHooks {
            filters: inline.into_iter().chain(hooks.sealing().cloned()).collect(),
            rules: hooks.rules.clone(),
            operator: hooks.operator.clone(),
            base_values: point.store.clone(),
            // What has expired is no base for operands. As a value it is exported, and the next database judges it.
            ageing: KnownAgeing::of(as_of.and_then(|_| hooks.ageing().cloned())),
            missing: missing_operator(hooks.operator.as_ref(), &point.view.version.hooks),
            ..PartitionHooks::default()
        };
        // Numbers of this database: no other table anywhere has the same identity.
        let dir_of_export = dir.to_owned();
        let factory =
            TableFactory { dir: dir_of_export, under_way: None, ..self.context.factory() };
        // Only the newest version inside the range is exported.
        let snapshots = JobSnapshots { respected: vec![point.seq], registered: Vec::new() };
        let memtables: Vec<_> = point.view.memtables().cloned().collect();
        let deletions = (point.view.clear_seqs(), point.view.span_layers().joined());
        let merge = Merge::export(&memtables, &point.view.version, deletions, range).bare(bare);
        let job = StartedJob {
            version: point.view.version.clone(),
            hooks: Arc::new(hooks),
            snapshots,
            deciding: None,
            rescues: false,
            as_of,
        };
        let made = self
            .runner
            .run_into(&factory, &job, &merge, &|| self.scheduler.background().is_stopping())?;
        Ok(made.tables)
    }
}

/// The name of the merge operator, if its code is missing.
fn missing_operator(
    operator: Option<&Arc<AttachedOperator>>,
    records: &[HookRecord],
) -> Option<String> {
    let mut records = records.iter().filter(|record| is_operator(record));
    records.next().filter(|_| operator.is_none()).map(|record| record.name.clone())
}

/// The hooks in the description: no merge operator, because all entries are values;
/// without hidden entries, none that has rules for keys.
fn travelling(hooks: &[HookRecord], options: ExportOptions) -> Vec<HookRecord> {
    let mut hooks = hooks.to_vec();
    hooks.retain(|hook| !is_operator(hook));
    if options.is_bare {
        hooks.retain(|hook| {
            hook.rules.reserved_suffix.is_empty() && !hook.rules.key_form.takes_any_key()
        });
    }
    hooks
}

fn remove_tables(db: &DbInner, dir: &Path, tables: &[SstMeta]) {
    for meta in tables {
        // Files that cannot be removed are left without a description, and are no export.
        let _ = db.context.fs.delete(&meta.file_name().path(dir));
    }
}

/// Publishes the description of the export in `dir`, or removes its tables.
fn publish(db: &DbInner, dir: &Path, description: &ExportDescription) -> Result<()> {
    let path = dir.join(EXPORT);
    // Last, when all tables are durable: the description makes a folder of tables an export.
    match db.context.fs.put_if_absent(&path, &description.encode()) {
        Ok(true) => Ok(()),
        Ok(false) => {
            remove_tables(db, dir, &description.tables);
            let message = format!("{} was created during the export", path.display());
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
        Err(error) => {
            // The description may exist. It must not outlive its tables, so it is deleted first.
            if db.context.fs.delete(&path).and_then(|()| db.context.fs.sync_dir(dir)).is_ok() {
                remove_tables(db, dir, &description.tables);
            }
            Err(error)
        }
    }
}

/// Replaces handles, which are meaningless elsewhere, by their values.
struct InlineValues(Arc<AttachedStore>);

impl CompactionFilterFactory for InlineValues {
    fn name(&self) -> &'static str {
        "inline-values"
    }

    fn start(&self, _job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        Ok(Box::new(InlineValues(self.0.clone())))
    }
}

impl CompactionFilter for InlineValues {
    fn decide(&mut self, entry: Entry<'_>) -> Result<Decision> {
        if entry.kind != EntryKind::Handle {
            return Ok(Decision::Keep);
        }
        let value = self.0.read(entry.value).map_err(|error| error.at_key(entry.key))?;
        Ok(Decision::Replace(value))
    }
}
