//! [`JobRunner`]: a flush, a compaction, an export or a repair runs until it has tables, which are then
//! installed.
//!
//! `flush.rs`, `compaction.rs`, `compaction/repair.rs` and `exchange/export.rs` choose the merge.
//!
//! Invariant: faulty entries reach no table. A run with a fault has no outputs, and ends as corruption that
//! names the table and the block.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::background_io::BackgroundIo;
use super::calendar::Calendar;
use super::catalog::Catalog;
use super::commit::CommitPath;
use super::events::Events;
use super::log_search::LogSearch;
use crate::clock::IoPriority;
use crate::compaction::{Erased, JobHooks, JobOutcome, Merge, RunContext, TableFactory};
use crate::error::{Damage, Error, Result};
use crate::hooks::{Event, Fault, Inject, JobValues, PartitionHooks};
use crate::partition::PartitionState;
use crate::snapshot::{DecidingJob, JobSnapshots, Snapshots};
use crate::stats::Counters;
use crate::types::{Gap, Gaps, PartitionId, SeqNo};
use crate::version::{PartitionVersion, SstMeta, TableContext};

/// The source in the event of a table whose number of entries was recorded wrongly.
const RECOUNTED: &str = "the digests of its blocks";

/// The tables of a job: durable, and not installed yet.
pub(super) struct JobTables {
    pub(super) tables: Vec<SstMeta>,
    /// The effect on the values of the partition's store.
    pub(super) values: JobValues,
    /// The gaps of lost entries of the inputs; to be installed with the tables.
    pub(super) gaps: Vec<Gap>,
    /// Inputs whose number of entries differs from the recorded one. A compaction records it again.
    pub(super) miscounted: Vec<Fault>,
    /// The closed gaps that the job knew: the entries that they hide are in none of the tables.
    pub(super) clear_of: Gaps,
    /// The deleted ranges that hide nothing in the tables.
    pub(super) erased: Erased,
    /// Entries were repaired, so that other keys may be visible than before.
    pub(super) is_repaired: bool,
    /// The number of entries that were removed because they have expired.
    pub(super) expired: u64,
}

impl JobTables {
    /// Length of all tables together, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.tables.iter().map(|meta| meta.bytes).sum()
    }
}

/// The requirements of every run of a job over a partition, from the start of the job on.
pub(super) struct StartedJob {
    /// The tables at the start. No view: it would keep memtables in memory that are flushed while a long job runs.
    pub(super) version: Arc<PartitionVersion>,
    pub(super) hooks: Arc<PartitionHooks>,
    pub(super) snapshots: JobSnapshots,
    /// Until it is dropped new snapshots keep the partition's view. To be held until the job's
    /// result is installed: versions that snapshots kept until then must be kept on.
    pub(super) deciding: Option<DecidingJob>,
    /// The log will not name the values of its entries, so it moves those that are in doubt after a
    /// failed sync.
    pub(super) rescues: bool,
    /// The time since 1970 by which entries have expired; `None` for the present one.
    pub(super) as_of: Option<Duration>,
}

/// Runs jobs. Nothing in it changes; it has no lock.
pub(super) struct JobRunner {
    pub(super) factory: TableFactory,
    pub(super) tables: Arc<TableContext>,
    /// Says which number readers see.
    pub(super) commit: Arc<CommitPath>,
    /// Says which segments of the log are live.
    pub(super) catalog: Arc<Catalog>,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) events: Arc<Events>,
    pub(super) counters: Arc<Counters>,
    /// Says which entries have expired.
    pub(super) calendar: Arc<Calendar>,
    /// The rate at which the jobs write.
    pub(super) io: Arc<BackgroundIo>,
    /// Changes entries between reading and writing: only for tests.
    pub(super) inject: Option<Arc<Inject>>,
}

impl JobRunner {
    /// Begins a flush or a compaction of a partition.
    pub(super) fn start(&self, partition: &Arc<PartitionState>) -> StartedJob {
        self.start_deciding(partition, false)
    }

    /// The same; if the job `decides`, snapshots that are taken from now on keep the present view, until the result is
    /// installed.
    pub(super) fn start_deciding(
        &self,
        partition: &Arc<PartitionState>,
        decides: bool,
    ) -> StartedJob {
        let version = partition.view().version.clone();
        let hooks = partition.hooks();
        let (snapshots, deciding) = if decides || hooks.decides() {
            let (snapshots, deciding) =
                self.snapshots.for_deciding_job(partition, || self.commit.visible_seq());
            (snapshots, Some(deciding))
        } else {
            (self.snapshots.for_job(|| self.commit.visible_seq()), None)
        };
        StartedJob { version, hooks, snapshots, deciding, rescues: false, as_of: None }
    }

    /// Runs a merge of inputs of the job's version until it has tables.
    ///
    /// # Errors
    /// Those of [`Merge::run`]; corruption if an entry is damaged.
    pub(super) fn run(
        &self,
        job: &StartedJob,
        merge: &Merge<'_>,
        should_stop: &dyn Fn() -> bool,
    ) -> Result<JobTables> {
        self.run_into(&self.factory, job, merge, should_stop)
    }

    /// As [`JobRunner::run`], into tables of another maker.
    pub(super) fn run_into(
        &self,
        factory: &TableFactory,
        job: &StartedJob,
        merge: &Merge<'_>,
        should_stop: &dyn Fn() -> bool,
    ) -> Result<JobTables> {
        let StartedJob { version, hooks, snapshots, .. } = job;
        let JobSnapshots { respected, registered } = snapshots;
        let mut job_hooks = JobHooks::new(hooks, respected, registered, self.inject.as_ref());
        job_hooks.rescues = job.rescues;
        let unix_time = self.calendar.unix_time();
        let as_of = job.as_of.unwrap_or(unix_time);
        let job_hooks = job_hooks.ageing(hooks.ageing().cloned(), as_of, hooks.rules.key_form)?;
        let repaired = match merge.is_repair() && hooks.verifying().is_some() {
            // A partition that was dropped needs no repair.
            true => self.catalog.with_id(version.id),
            false => None,
        };
        let sources = repaired.map(|partition| self.repair_sources(partition.pin()));
        let tables = &self.tables;
        let priority = merge.io_priority();
        let paid = Cell::new(0);
        let context = RunContext {
            factory,
            tables,
            job_hooks,
            // First, since a merge that it runs may make this one unwanted.
            should_stop: &|written| {
                should_stop() || self.pay(priority, &paid, written, should_stop)
            },
            sources,
            unix_seconds: unix_time.as_secs(),
        };
        match merge.run(context)? {
            JobOutcome::Faulty(fault) => {
                let Damage { file, offset, what, .. } = self.damage_of(version, &fault);
                let error = Error::corruption(file, offset, what).at_key(&fault.key);
                Err(error.in_partition(&version.name))
            }
            JobOutcome::Done { tables, values, mended, lost, gaps, miscounted, expired } => {
                let is_repaired = !mended.is_empty();
                let counted = miscounted.iter().map(|fault| (fault.clone(), RECOUNTED.into()));
                for (fault, source) in mended.into_iter().chain(counted) {
                    self.events.tell(&Event::Corruption(self.damage_of(version, &fault)));
                    self.events.tell(&Event::Repaired {
                        partition: version.name.to_string(),
                        key: fault.key,
                        source,
                    });
                }
                self.report_lost(version, lost, &gaps);
                let written = tables.iter().map(|meta| meta.bytes).sum();
                // The tables are made, so that they are installed whether they are wanted or not.
                self.pay(priority, &paid, written, should_stop);
                let clear_of = merge.closed_gaps();
                let erased = merge.erased(respected);
                Ok(JobTables {
                    tables,
                    values,
                    gaps,
                    miscounted,
                    clear_of,
                    erased,
                    is_repaired,
                    expired,
                })
            }
        }
    }

    /// Waits until what a job has `written` is within the rate; so much is `paid`. Returns `true` if it is to stop.
    fn pay(
        &self,
        priority: Option<IoPriority>,
        paid: &Cell<u64>,
        written: u64,
        should_stop: &dyn Fn() -> bool,
    ) -> bool {
        let bytes = written.saturating_sub(paid.replace(written));
        priority.is_some_and(|priority| self.io.pay(priority, bytes, should_stop))
    }

    /// A search of the log for entries of a partition, foreseeing these numbers.
    pub(super) fn log_search(
        &self,
        partition: PartitionId,
        foreseen: impl IntoIterator<Item = SeqNo>,
    ) -> LogSearch {
        let segments = self.catalog.current().log_segments.clone();
        LogSearch::new(&self.factory, segments, partition, foreseen)
    }
}

#[cfg(test)]
mod tests;
