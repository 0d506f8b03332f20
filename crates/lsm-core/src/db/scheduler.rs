//! [`Scheduler`]: the background work of an open database, and its order.
//!
//! It is made of the parts that do the work, and knows no handle: flushes (`flush.rs`), compactions and repairs
//! (`compaction.rs`), the space of large values (`values.rs`), the log (`log_upkeep.rs`), and the removal of
//! files (`removal.rs`). The threads of `background.rs` call it as their [`Worker`]. `jobs.rs` says what runs and
//! what is due, and `stall.rs` delays writers while work is left.
//!
//! Invariant: after a fence no piece of work begins, because its results would not count.

use std::sync::Arc;
use std::time::Duration;

use super::background::{Background, BackgroundMode, Worker};
use super::compaction::Compactor;
use super::context::DbContext;
use super::flush::Flusher;
use super::install::Installer;
use super::job::JobRunner;
use super::job_parts::JobParts;
use super::jobs::{DbJobsEnv, FlushTurn, HealthyPick, Jobs};
use super::log::Log;
use super::log_upkeep::LogUpkeep;
use super::ownership::Ownership;
use super::removal::Removal;
use super::resources::WriteMemory;
use super::restore::Restorer;
use super::sealing::{MemtableLimits, MemtableSealer};
use super::stall::{DbStallEnv, Stall};
use super::thread_pool::ThreadPool;
use super::values::{BlobGcGoals, ValueReclaimer};
use super::write_budget::BudgetShare;
use crate::error::{Error, Result};
use crate::options::{Options, WriteOptions};
use crate::partition::PartitionState;
use crate::read::Bounds;
use crate::types::PartitionId;

/// The background work of an open database.
pub(super) struct Scheduler {
    flusher: Arc<Flusher>,
    compactor: Arc<Compactor>,
    reclaimer: ValueReclaimer,
    log: LogUpkeep,
    jobs: Arc<Jobs>,
    stall: Arc<Stall>,
    background: Arc<Background>,
    ownership: Arc<Ownership>,
    /// The database's share of a write buffer that several databases have in common.
    share: Option<Arc<BudgetShare>>,
}

impl Scheduler {
    /// Builds the parts over those that an open database has already. No thread runs before
    /// [`Scheduler::start`].
    pub(super) fn new(
        context: &DbContext,
        options: &Options,
        memory: &WriteMemory,
        log: &Arc<Log>,
        runner: &Arc<JobRunner>,
        background: &Arc<Background>,
        ownership: &Arc<Ownership>,
    ) -> Scheduler {
        let JobRunner { catalog, commit, events, counters, .. } = &**runner;
        let jobs_env = DbJobsEnv::of(catalog, &runner.snapshots, commit, &runner.calendar);
        let jobs = Arc::new(Jobs::new(Arc::new(jobs_env)));
        let share = memory.budget.as_ref().map(|budget| budget.enter(background.clone()));
        let stall_env = DbStallEnv {
            share: share.clone(),
            catalog: catalog.clone(),
            log: log.clone(),
            jobs: jobs.clone(),
            background: background.clone(),
            events: events.clone(),
            counters: counters.clone(),
        };
        let stall = Arc::new(Stall::new(options.write_buffer_bytes, Arc::new(stall_env)));
        let limits = MemtableLimits {
            write_buffer_bytes: options.write_buffer_bytes,
            wal_bytes_max: options.wal_bytes_max,
            slabs: memory.slabs.clone(),
            share: share.clone(),
            wishes: context.wishes.clone(),
        };
        let parts = JobParts {
            log: log.clone(),
            runner: runner.clone(),
            jobs: jobs.clone(),
            background: background.clone(),
            ownership: ownership.clone(),
        };
        let sealer = Arc::new(MemtableSealer::new(&parts, stall.clone(), limits));
        let removal = Arc::new(Removal::new(&parts, context.wishes.clone()));
        let values: Arc<BlobGcGoals> = Arc::default();
        let installer =
            Arc::new(Installer::new(&parts, stall.clone(), removal.clone(), values.clone()));
        let flusher = Arc::new(Flusher::new(&parts, sealer, installer.clone()));
        let restorer = Arc::new(Restorer::new(&parts, installer.clone()));
        let compactor = Arc::new(Compactor::new(&parts, installer, restorer));
        let reclaimer =
            ValueReclaimer::new(&parts, values, removal, flusher.clone(), compactor.clone());
        Scheduler {
            reclaimer,
            log: LogUpkeep {
                log: log.clone(),
                catalog: catalog.clone(),
                ownership: ownership.clone(),
                slabs: memory.slabs.clone(),
                slab_clock: memory.clock.clone(),
                fs: context.fs.clone(),
                sync_interval: Duration::from_millis(options.sync_interval_ms),
            },
            share,
            flusher,
            compactor,
            jobs,
            stall,
            background: background.clone(),
            ownership: ownership.clone(),
        }
    }

    /// Starts the threads, or takes those of a pool.
    ///
    /// # Errors
    /// If the operating system gives none.
    pub(super) fn start(
        self: &Arc<Self>,
        compaction_threads: usize,
        pool: Option<&Arc<ThreadPool>>,
    ) -> Result<()> {
        self.background.start(self, compaction_threads, pool)
    }

    /// Ends the count of the memtables of a closed database in those of many.
    pub(super) fn leave_budget(&self) {
        if let Some(share) = &self.share {
            share.leave();
        }
    }

    /// The flushes, and the resumption after a failed sync of the log.
    pub(super) fn flusher(&self) -> &Flusher {
        &self.flusher
    }

    /// The check of batches, and the sealing of memtables.
    #[inline]
    pub(super) fn sealer(&self) -> &MemtableSealer {
        self.flusher.sealer()
    }

    /// The installation of changes of a partition.
    pub(super) fn installer(&self) -> &Installer {
        self.flusher.installer()
    }

    /// The removal of files that nothing names.
    pub(super) fn removal(&self) -> &Removal {
        self.flusher.installer().removal()
    }

    /// The compactions and repairs.
    pub(super) fn compactor(&self) -> &Compactor {
        &self.compactor
    }

    /// The restoration of lost entries from a copy.
    pub(super) fn restorer(&self) -> &Restorer {
        self.compactor.restorer()
    }

    /// The upkeep of large values.
    pub(super) fn reclaimer(&self) -> &ValueReclaimer {
        &self.reclaimer
    }

    /// The running jobs, and the due ones.
    pub(super) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// The delays of writers.
    #[inline]
    pub(super) fn stall(&self) -> &Stall {
        &self.stall
    }

    /// The threads, their failures, and the time.
    pub(super) fn background(&self) -> &Background {
        &self.background
    }

    /// As [`Stall::admit`], or [`Stall::try_admit`] for a write that does not wait; without threads the writer does the
    /// work that it waits for.
    #[inline]
    pub(super) fn admit<'a>(
        &self,
        partitions: impl Iterator<Item = &'a PartitionState> + Clone,
        bytes: u64,
        options: WriteOptions,
    ) -> Result<()> {
        if !options.waits {
            return self.stall.try_admit(partitions, bytes);
        }
        match self.background.mode() {
            BackgroundMode::Threads => self.stall.admit(None, partitions, bytes),
            BackgroundMode::Stepped => {
                self.stall.admit(Some(&|| self.background.step(self)), partitions, bytes)
            }
        }
    }

    /// As [`Background::step`].
    pub(super) fn step(&self) -> Result<bool> {
        self.background.step(self)
    }

    /// As [`Background::wait_idle`].
    pub(super) fn wait_idle(&self) -> Result<()> {
        self.background.wait_idle(self)
    }

    /// Flushes a partition, and compacts a range of it to the bottom, on the calling thread.
    pub(super) fn compact(&self, partition: &Arc<PartitionState>, bounds: &Bounds) -> Result<()> {
        self.flusher.flush_now(partition)?;
        self.compactor.compact(partition, bounds)
    }

    /// Picks, for any partition, and runs one compaction; `false` if none is due.
    fn compact_next(&self) -> Result<bool> {
        // Large values are moved only when no compaction is due, because writers wait for
        // compactions. A failed compaction comes after them: while it fails, the moves would never
        // free space.
        match self.jobs.pick_healthy() {
            HealthyPick::Due(claimed) => self.compactor.run_in_background(&claimed),
            HealthyPick::Nothing => self.reclaimer.tend(),
            HealthyPick::OnlyFailing => match self.reclaimer.tend() {
                Ok(true) => Ok(true),
                tended => self.try_again().and_then(|done| if done { Ok(true) } else { tended }),
            },
        }
    }

    /// Picks and runs a compaction, also of a partition whose last one failed.
    fn try_again(&self) -> Result<bool> {
        self.jobs.pick()?.map_or(Ok(false), |claimed| self.compactor.run_in_background(&claimed))
    }

    /// Waits until no compaction runs; no flush runs either while the result lives.
    pub(super) fn wait_for_jobs(&self) -> FlushTurn<'_> {
        while self.jobs.is_running() {
            self.background.wait_for_news();
        }
        self.jobs.flush_turn()
    }

    /// Forgets the work of a dropped partition.
    pub(super) fn forget(&self, partition: PartitionId) {
        self.jobs.forget(partition);
        self.reclaimer.goals().forget(partition);
    }

    /// The failure that prevents background work at present, or the first damage that a compaction met.
    pub(super) fn error(&self) -> Option<Error> {
        self.background.error().or_else(|| self.jobs.damage())
    }
}

impl Worker for Scheduler {
    fn background(&self) -> &Background {
        &self.background
    }

    fn check_working(&self) -> Result<()> {
        self.ownership.check_writable()
    }

    fn flush_one(&self) -> Result<bool> {
        if self.ownership.is_fenced() {
            return Ok(false);
        }
        self.sealer().seal_if_asked();
        self.flusher.flush_one()
    }

    fn compact_one(&self) -> Result<bool> {
        if self.ownership.is_fenced() { Ok(false) } else { self.compact_next() }
    }

    fn compaction_rest(&self) -> Duration {
        let rest = self.compactor.rest();
        if rest.is_zero() || self.stall.waits_for_compactions() { Duration::ZERO } else { rest }
    }

    fn tend_log(&self) -> Result<Option<Duration>> {
        if self.ownership.is_fenced() { Ok(None) } else { self.log.tend(self.background.now()) }
    }

    fn tend_log_now(&self) -> Result<bool> {
        if self.ownership.is_fenced() {
            Ok(false)
        } else {
            self.log.tend_now(self.background.now())
        }
    }

    fn remove_obsolete(&self) -> Result<()> {
        self.removal().remove()
    }

    fn finish_removing(&self) -> Result<()> {
        self.removal().finish()
    }

    fn holds_obsolete(&self) -> bool {
        !self.ownership.is_fenced() && self.removal().is_due()
    }

    fn waits_for_release(&self) -> bool {
        !self.ownership.is_fenced() && (self.jobs.waits_for_time() || self.reclaimer.holds_values())
    }

    fn give_up_memory(&self) -> Option<Duration> {
        self.log.give_up_unused_slabs()
    }

    fn has_work(&self) -> bool {
        let is_due =
            self.log.has_failed() || self.jobs.has_work() || self.reclaimer.has_value_goal();
        !self.ownership.is_fenced() && is_due
    }

    fn ease(&self) {
        self.stall.ease();
    }
}

#[cfg(test)]
mod tests;
