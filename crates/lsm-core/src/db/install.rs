//! [`Installer`]: the changes of a partition become durable in one edit, and visible in its view.
//!
//! Jobs, ingests, changes of hooks and accepted losses end here. The job itself runs in `job.rs`.
//!
//! Invariants:
//! 1. Everything that an edit names is durable before the edit: table bytes and names, and the
//!    values that tables point to. Inputs are released only after the edit.
//! 2. Hooks are those of the last durable edit. A job that ran with others installs nothing, and is
//!    run again: its outputs may be meaningless to the present hooks.

use std::sync::Arc;

use super::catalog::Catalog;
use super::clear_seqs::update_clear_seqs;
use super::gaps::spent_gaps;
use super::job::JobTables;
use super::job_parts::JobParts;
use super::jobs::Jobs;
use super::log::Log;
use super::removal::Removal;
use super::spans::{ErasedTables, update_spans};
use super::stall::Stall;
use super::values::BlobGcGoals;
use crate::compaction::Erased;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::is_out_of_handles;
use crate::hooks::{AttachedStore, JobValues, PartitionHooks};
use crate::partition::PartitionState;
use crate::types::{Gaps, MemtableId};
use crate::version::{Change, PartitionVersion, SstMeta, Table};

/// The change of a partition in one edit.
pub(super) struct Installation<'a> {
    pub(super) changes: Vec<Change>,
    /// Memtables through this one leave the view.
    pub(super) flushed: Option<MemtableId>,
    /// Tables that become obsolete.
    pub(super) removed: Vec<Arc<Table>>,
    /// Tables that must be removed if nothing is installed.
    pub(super) made: &'a [SstMeta],
    /// The effect on the value store in the same edit.
    pub(super) values: JobValues,
    /// The closed gaps whose hidden entries are not in `made`.
    pub(super) clear_of: Gaps,
    /// The deleted ranges that hide nothing in `made`.
    pub(super) erased: Erased,
    /// Checks the partition under the edit's lock: nothing is installed if this does not hold any
    /// more.
    pub(super) holds: &'a dyn Fn(&PartitionVersion) -> bool,
    /// The hooks whose records are in the edit: jobs run with them once it is durable. The caller
    /// holds the commit path's lock.
    pub(super) hooks: Option<PartitionHooks>,
    /// Entries may become visible that no memtable of the partition had.
    pub(super) is_foreign: bool,
}

impl<'a> Installation<'a> {
    /// The changes of a job, with what it `made`.
    pub(super) fn of_job(changes: Vec<Change>, made: &'a mut JobTables) -> Self {
        Installation {
            values: std::mem::take(&mut made.values),
            clear_of: std::mem::take(&mut made.clear_of),
            erased: std::mem::take(&mut made.erased),
            is_foreign: made.is_repaired,
            made: &made.tables,
            ..Installation::of(changes)
        }
    }

    /// Changes that are no job's.
    pub(super) fn of(changes: Vec<Change>) -> Self {
        let values = JobValues::default();
        Installation {
            changes,
            flushed: None,
            removed: Vec::new(),
            made: &[],
            values,
            clear_of: Gaps::default(),
            erased: Erased::default(),
            holds: &|_| true,
            hooks: None,
            is_foreign: false,
        }
    }

    /// As [`Installation::of`], with entries that no memtable of the partition had.
    pub(super) fn foreign(changes: Vec<Change>) -> Self {
        Installation { is_foreign: true, ..Installation::of(changes) }
    }
}

/// Returns an error if a sync of the store failed since a job began: its values may have been in
/// it.
pub(super) fn check_synced(store: &AttachedStore, values: &JobValues) -> Result<()> {
    if store.sync_failure_count()? == values.sync_failure_count {
        return Ok(());
    }
    let message = "a sync of values failed while a job wrote some; it is run again";
    Err(Error::new(ErrorKind::Io, message))
}

/// Installs the changes of a partition, and what follows from them.
pub(super) struct Installer {
    catalog: Arc<Catalog>,
    log: Arc<Log>,
    jobs: Arc<Jobs>,
    stall: Arc<Stall>,
    removal: Arc<Removal>,
    /// Says since when the values of a partition are counted.
    values: Arc<BlobGcGoals>,
}

impl Installer {
    pub(super) fn new(
        parts: &JobParts,
        stall: Arc<Stall>,
        removal: Arc<Removal>,
        values: Arc<BlobGcGoals>,
    ) -> Installer {
        let JobParts { log, runner, jobs, .. } = parts.clone();
        Installer { catalog: runner.catalog.clone(), log, jobs, stall, removal, values }
    }

    /// The removal of files that nothing names.
    pub(super) fn removal(&self) -> &Removal {
        &self.removal
    }

    /// Makes the values of a store durable.
    ///
    /// # Errors
    /// Those of the store. After a failed sync a new log begins: frames of the old one may name values that were
    /// in the sync, and the next sync would not cover them.
    fn sync_store(&self, partition: &PartitionState, store: &AttachedStore) -> Result<()> {
        let synced = partition.note_sync(store.sync());
        if let Err(error) = &synced
            && !is_out_of_handles(error)
        {
            self.log.fail(error.clone());
        }
        synced
    }

    /// Makes the values durable that tables of a job point to, if the log has not done that.
    fn sync_job_values(
        &self,
        partition: &PartitionState,
        is_flush: bool,
        values: &JobValues,
    ) -> Result<()> {
        // Durability: values that the job moved, and values whose handles never were in a log,
        // before a table points to them. Values of a flush with a log were synced with the log.
        let unsynced = !values.relocated.is_empty() || (is_flush && !partition.logged);
        let Some(store) = partition.store().filter(|_| unsynced) else { return Ok(()) };
        self.sync_store(partition, store)?;
        check_synced(store, values)
    }

    /// The changes that remove the gaps which hide nothing any more; see [`spent_gaps`].
    fn spent_gaps(
        &self,
        partition: &PartitionState,
        current: &PartitionVersion,
        removed: &[Arc<Table>],
        made: &[SstMeta],
        clear_of: &Gaps,
    ) -> Vec<Change> {
        if current.gaps.is_empty() {
            return Vec::new();
        }
        let oldest_reader = self.jobs.oldest_snapshot();
        spent_gaps(current, removed, made, clear_of, |closed_at| {
            let is_counted =
                partition.store().is_none() || self.values.has_counted(partition.id, closed_at);
            closed_at <= oldest_reader && is_counted
        })
    }

    /// Adds and removes the clears and deleted ranges that hide something after an edit, or nothing.
    fn update_deletions(
        &self,
        current: &PartitionVersion,
        changes: &mut Vec<Change>,
        erased: &ErasedTables<'_>,
    ) {
        update_clear_seqs(current, changes);
        update_spans(current, changes, erased, &self.jobs.span_readers());
    }

    /// Makes changes of a partition durable and installs them in its view. `Ok(false)` if the
    /// partition was dropped meanwhile, or does not match the changes any more: nothing is installed
    /// then.
    ///
    /// # Errors
    /// Those of the manifest, after which its tables must stay; those of the value store, after
    /// which nothing was installed and its tables are released.
    pub(super) fn install(
        &self,
        partition: &PartitionState,
        installation: Installation<'_>,
    ) -> Result<bool> {
        let Installation { mut changes, removed, made, values, clear_of, .. } = installation;
        let Installation { flushed, holds, hooks, is_foreign, erased, .. } = installation;
        let synced = self.sync_job_values(partition, flushed.is_some(), &values);
        synced.inspect_err(|_| self.removal.forget(made))?;
        let mut editing = self.catalog.edit()?;
        // Checked under the lock of the manifest, so that no drop comes between the check and the
        // edit.
        let current = editing.current().partitions.get(partition.id).filter(|it| holds(it));
        let Some(current) = current else {
            drop(editing);
            self.removal.forget(made);
            return Ok(false);
        };
        changes.extend(self.spent_gaps(partition, current, &removed, made, &clear_of));
        let made_files = made.iter().map(|meta| meta.file).collect();
        let erased = ErasedTables { made: made_files, erased: &erased };
        self.update_deletions(current, &mut changes, &erased);
        let number = editing.next_number();
        let store = partition.store().filter(|_| !values.is_empty());
        let section = store.map(|store| store.call("edit", |store| store.edit(values.edit())));
        let section = match section.transpose() {
            Ok(section) => section,
            Err(error) => {
                drop(editing);
                self.removal.forget(made);
                return Err(error);
            }
        };
        if let Some(bytes) = &section {
            changes.push(Change::StoreSection {
                partition: partition.id,
                number,
                bytes: bytes.clone(),
            });
        }
        // A failed edit may be on disk all the same, and one of its tables may name the values.
        let relocated = self.catalog.unconfirmed().until_installed(values.relocated);
        let installed = editing.install(changes);
        let version = installed.inspect_err(|_| doubt_hooks(partition, hooks.as_ref()))?;
        relocated.keep();
        let edit = version.edit_number;
        note_clear(&version.partitions[&partition.id], &clear_of, &erased);
        // Before the view: a job takes its view first, and its output under older hooks is not
        // installed.
        hooks.into_iter().for_each(|hooks| partition.attach(hooks));
        // Still under the lock of the manifest: views take versions in, and edits of stores are
        // queued, in the order in which they became durable.
        partition.install_from(&version.partitions[&partition.id], flushed, is_foreign);
        if let (Some(store), Some(bytes)) = (store, section) {
            let before = partition.past_versions();
            self.catalog.obsolete().add_values(number, partition, store, &bytes, before);
        }
        // The manifest has no failed edit any more. Taken under its lock: as soon as that is free,
        // another edit may fail and note values that may be named. Dropped without it: a store may
        // remove files.
        let doubtful = self.catalog.unconfirmed().take_values();
        drop(editing);
        drop(doubtful);
        // After the edit: until it is durable, a crash needs the inputs.
        self.catalog.obsolete().add(edit, removed.iter());
        self.jobs.note_tables();
        self.stall.update(std::iter::once(partition));
        self.catalog.obsolete().notify_stores();
        Ok(true)
    }
}

/// Notes that an edit with these hooks failed: the next open may find them, with their rules for keys. A
/// write that violates these waits until an edit has ruled that out.
fn doubt_hooks(partition: &PartitionState, hooks: Option<&PartitionHooks>) {
    if hooks.is_some() {
        partition.set_doubtful(true);
    }
}

/// Notes at the tables of a job which deleted ranges hide nothing in them.
fn note_erased(version: &PartitionVersion, made: &ErasedTables<'_>) {
    if version.spans.is_empty() {
        return;
    }
    for (_, table) in version.tables().filter(|(_, table)| made.made.contains(&table.meta.file)) {
        table.set_erased_through(made.erased.through(&table.meta));
    }
}

/// Notes at the tables of a job which gaps, and which deleted ranges, hide nothing in them.
fn note_clear(version: &PartitionVersion, clear_of: &Gaps, tables: &ErasedTables<'_>) {
    note_erased(version, tables);
    if clear_of.is_empty() {
        return;
    }
    for (_, table) in version.tables().filter(|(_, table)| tables.made.contains(&table.meta.file)) {
        table.set_clear_of(clear_of.clone());
    }
}
