//! One job: a flush, a compaction or an export runs until it has tables, which are then installed.
//!
//! ```text
//! run the merge -> tables ---------------------------------> install (not for an export)
//!      ^  \-> faults -> repair them outside of it -\
//!       \------------- run it again ---------------/
//! ```
//!
//! `flush.rs`, `compaction.rs` and `exchange/export.rs` say what to merge. What to try for a faulty
//! entry, and in which order, is up to the partition's filter; `repair.rs` gives it the sources that
//! only the engine has. This file counts the rounds, and tells listeners.
//!
//! Invariants:
//! 1. What a run has found faulty reaches no table: a run with a fault has no outputs.
//! 2. A run never waits for a repair: the filter repairs between two runs, when nothing of the job
//!    is under way, so it may read whatever it likes.
//! 3. Everything that an edit names is durable before the edit: table bytes and names, and the
//!    values that tables point to. Only behind the edit are inputs let go.

use std::sync::Arc;

use super::DbInner;
use crate::compaction::{JobOutcome, Merge, Patches, RunContext, Stages, TableFactory};
use crate::error::{Error, Result};
use crate::hooks::{Event, JobValues, PartitionHooks, catch};
use crate::partition::{PartitionState, ReadView};
use crate::snapshot::{DecidingJob, JobSnapshots};
use crate::types::{Gap, MemtableId, PartitionId};
use crate::version::{Change, SstMeta, Table};

/// Runs of a job over its repaired entries; one that still finds new faults then is given up.
const REPAIR_ROUNDS: usize = 8;

/// The tables of a job: durable, and installed by nobody yet.
pub(super) struct JobTables {
    pub(super) tables: Vec<SstMeta>,
    /// The effect on the values of the partition's store.
    pub(super) values: JobValues,
    /// The gaps in which entries of the inputs are lost; to be installed with the tables.
    pub(super) gaps: Vec<Gap>,
}

impl JobTables {
    /// Length of all tables together, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.tables.iter().map(|meta| meta.bytes).sum()
    }
}

/// The change of a partition in one edit.
pub(super) struct Installation<'a> {
    pub(super) changes: Vec<Change>,
    /// Memtables through this one leave the view.
    pub(super) flushed: Option<MemtableId>,
    /// Tables that become obsolete.
    pub(super) removed: Vec<Arc<Table>>,
    /// Tables that nothing names if nothing is installed.
    pub(super) made: &'a [SstMeta],
    /// The effect that the value store hears of in the same edit.
    pub(super) values: JobValues,
}

impl Installation<'_> {
    /// Changes that are no job's.
    pub(super) fn of(changes: Vec<Change>) -> Self {
        let values = JobValues::default();
        Installation { changes, flushed: None, removed: Vec::new(), made: &[], values }
    }
}

/// The changes that keep these gaps.
pub(super) fn gaps_added(partition: PartitionId, gaps: &[Gap]) -> Vec<Change> {
    gaps.iter().map(|gap: &Gap| Change::GapAdded { partition, gap: gap.clone() }).collect()
}

impl DbInner {
    /// The maker of the tables of flushes and compactions.
    pub(super) fn factory(&self) -> TableFactory {
        TableFactory {
            fs: self.fs.clone(),
            dir: self.dir.clone(),
            db_id: self.db_id,
            epoch: self.epoch,
            numbers: self.numbers.clone(),
        }
    }

    /// The snapshots that a job over `partition` respects if it starts now. While the second part
    /// lives, snapshots keep the partition's view, if its filters decide.
    pub(super) fn snapshots_for(
        &self,
        partition: &Arc<PartitionState>,
        hooks: &PartitionHooks,
    ) -> (JobSnapshots, Option<DecidingJob>) {
        if !hooks.decides() {
            return (self.snapshots.for_job(|| self.visible_seq()), None);
        }
        let (snapshots, job) = self.snapshots.for_deciding_job(partition, || self.visible_seq());
        (snapshots, Some(job))
    }

    /// Runs a merge of inputs that `view` has until it has tables, in the folder of `factory`:
    /// faults are repaired between the runs.
    ///
    /// # Errors
    /// Those of [`Merge::run`]; corruption if every run finds new faults.
    pub(super) fn run_until_tables(
        &self,
        merge: &Merge<'_>,
        view: &Arc<ReadView>,
        hooks: &PartitionHooks,
        snapshots: &JobSnapshots,
        factory: &TableFactory,
        should_stop: &dyn Fn() -> bool,
    ) -> Result<JobTables> {
        let mut patches = Patches::default();
        for _ in 0..=REPAIR_ROUNDS {
            let stages = Stages::new(
                hooks,
                &snapshots.respected,
                &snapshots.registered,
                &patches,
                self.inject.entries.as_ref(),
            );
            let sources = self.judge_sources(view);
            let tables = &self.tables;
            let sources = Some(sources);
            let context = RunContext { factory, tables, stages, should_stop, sources };
            match (merge.run(context)?, hooks.sealing()) {
                (JobOutcome::Done { tables, values, mended, lost, gaps }, _) => {
                    for (fault, source) in mended {
                        self.tell(&Event::Corruption(self.damage_of(view, &fault)));
                        self.tell(&Event::Repaired {
                            partition: view.version.name.to_string(),
                            key: fault.key,
                            source,
                        });
                    }
                    self.tell_lost(view, lost, &gaps);
                    return Ok(JobTables { tables, values, gaps });
                }
                (JobOutcome::Faulty(faults), Some(filter)) => {
                    // Outside of the run: what unwinds here has nothing under way.
                    catch("a repair", || self.repair(view, filter, faults, &mut patches))?;
                }
                // Without a filter there is nobody who could repair it.
                (JobOutcome::Faulty(_), None) => break,
            }
        }
        let what = "a compaction finds new faults in every run";
        Err(Error::corruption(&self.dir, None, what).in_partition(&view.version.name))
    }

    /// Makes changes of a partition durable and lets its view take them in. `Ok(false)` if the
    /// partition was dropped meanwhile: nothing is installed then.
    ///
    /// # Errors
    /// Those of the manifest, after which its tables must stay; those of the value store, after
    /// which nothing was installed and its tables are let go.
    pub(super) fn install_job(
        &self,
        partition: &PartitionState,
        installation: Installation<'_>,
    ) -> Result<bool> {
        let Installation { mut changes, flushed, removed, made, values } = installation;
        // Durability: values that the job moved, and values whose handles never were in a log,
        // before a table points to them.
        let unsynced = !values.carried.is_empty() || (flushed.is_some() && !partition.logged);
        if let Some(store) = partition.store().filter(|_| unsynced) {
            store.sync().inspect_err(|_| self.forget(made))?;
        }
        let mut editing = self.catalog.edit()?;
        if !editing.current().partitions.contains_key(partition.id) {
            drop(editing);
            self.forget(made);
            return Ok(false);
        }
        let number = editing.next_number();
        let store = partition.store().filter(|_| !values.is_empty());
        let section = match store {
            None => None,
            Some(store) => match catch("a value store", || store.edit(&values.edit(number))) {
                Ok(section) => Some(section),
                Err(error) => {
                    drop(editing);
                    self.forget(made);
                    return Err(error);
                }
            },
        };
        if let Some(bytes) = &section {
            changes.push(Change::StoreSection {
                partition: partition.id,
                number,
                bytes: bytes.clone(),
            });
        }
        let installed = editing.install(changes);
        // After an error too: the edit may be on disk.
        values.keep();
        let version = installed?;
        let edit = version.edit_number;
        // While the versions are locked, so that views take versions in, and stores' edits are
        // queued, in the order in which they became durable.
        partition.install(version.partitions[&partition.id].clone(), flushed);
        if let (Some(store), Some(bytes)) = (store, section) {
            self.obsolete.add_values(number, partition, store, &bytes);
        }
        drop(editing);
        self.obsolete.add(edit, removed.iter());
        self.update_pressure(partition);
        self.obsolete.tell_stores();
        Ok(true)
    }
}
