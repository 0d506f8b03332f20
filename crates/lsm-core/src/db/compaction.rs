//! Compactions: picking, running, installing. Called by the compaction threads, and by
//! `Partition::compact`, which waits for the result.
//!
//! `crate::compaction` chooses the tables to merge and the entries that survive;
//! [`Jobs`](super::jobs::Jobs) keeps two compactions from using the same tables; `job.rs` runs one
//! until it has tables and installs them. This file connects them.
//!
//! A merge of deep levels on a background thread gives way: between entries it runs a due merge of a
//! level 0 for which no thread is free, since writers wait for that level. The claims keep the two
//! apart as if they ran on two threads. So a level 0 waits for a deep merge only if that has tables
//! of the base level of the same partition, which both need.
//!
//! Invariants:
//! 1. A failed compaction changes nothing but the list of skipped tables: its inputs stay in the
//!    version, and its outputs are removed. A damaged input is repaired by `compaction/repair.rs`.
//! 2. A deep merge has at least half of the time of its thread, except for the end of the last merge
//!    that it gave way to. A merge of a level 0 gives way to none, so at most two run at once.

mod repair;

use std::cell::Cell;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::background::Background;
use super::errors::Reason;
use super::gaps::gaps_added;
use super::install::{Installation, Installer};
use super::job::{JobRunner, JobTables, StartedJob};
use super::job_parts::JobParts;
use super::jobs::{Claimed, Jobs, RangeGoal, RangeStep};
use super::log::Log;
use super::ownership::Ownership;
use super::restore::Restorer;
use crate::compaction::{Compaction, Finish, Merge, Method, Trigger};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{Event, catch_engine};
use crate::partition::PartitionState;
use crate::read::Bounds;
use crate::types::PartitionId;
use crate::version::{Change, SstMeta, UserRange};

/// A deep merge that gives way to merges of level 0.
pub(super) struct L0Preemption {
    started: Duration,
    /// The time that they took.
    given: Cell<Duration>,
    /// [`Jobs::news`](super::jobs::Jobs::news) at the last look; at first a number that it never has.
    seen: Cell<u64>,
}

impl L0Preemption {
    fn of(compaction: &Compaction, now: Duration) -> Option<L0Preemption> {
        let given = Cell::new(Duration::ZERO);
        let seen = Cell::new(u64::MAX);
        (compaction.level_from > 0).then_some(L0Preemption { started: now, given, seen })
    }

    /// Returns `true` if the merge has run at least as long as it has given way.
    fn may_yield(&self, now: Duration) -> bool {
        let given = self.given.get();
        now.saturating_sub(self.started).saturating_sub(given) >= given
    }
}

/// The changes that install a compaction: its inputs leave, its outputs come.
pub(super) fn changes(
    partition: PartitionId,
    compaction: &Compaction,
    outputs: &[SstMeta],
) -> Vec<Change> {
    let removed = compaction.tables().map(|(level, table)| Change::TableRemoved {
        partition,
        level: level as u8,
        file: table.meta.file,
    });
    let added = outputs.iter().map(|meta| Change::TableAdded {
        partition,
        level: compaction.level_to as u8,
        meta: meta.clone(),
    });
    // Removals first: a table that moves is removed and added by one edit.
    removed.chain(added).collect()
}

/// Runs and installs compactions, and repairs of damaged tables.
pub(super) struct Compactor {
    log: Arc<Log>,
    runner: Arc<JobRunner>,
    jobs: Arc<Jobs>,
    background: Arc<Background>,
    installer: Arc<Installer>,
    /// Says whether the database is closed.
    ownership: Arc<Ownership>,
    /// Asked for the entries that a repair could not save.
    restorer: Arc<Restorer>,
}

impl Compactor {
    pub(super) fn new(
        parts: &JobParts,
        installer: Arc<Installer>,
        restorer: Arc<Restorer>,
    ) -> Compactor {
        let JobParts { log, runner, jobs, background, ownership } = parts.clone();
        Compactor { log, runner, jobs, background, installer, ownership, restorer }
    }

    /// The restoration of entries that a repair could not save.
    pub(super) fn restorer(&self) -> &Restorer {
        &self.restorer
    }

    /// As [`BackgroundIo::rest`](super::background_io::BackgroundIo::rest).
    pub(super) fn rest(&self) -> Duration {
        self.runner.io.rest()
    }

    /// Runs a claimed compaction for no particular caller.
    pub(super) fn run_in_background(&self, claimed: &Claimed) -> Result<bool> {
        let preemption = L0Preemption::of(&claimed.compaction, self.background.now());
        match self.run_claimed(claimed, preemption.as_ref()) {
            Ok(()) => {
                self.background.wake_all();
                Ok(true)
            }
            // Not an error of the thread: the damaged inputs stay claimed, and other work
            // continues.
            Err(error) if error.is_corruption() => Ok(true),
            // The job gave up because the partition was dropped.
            Err(_) if claimed.partition.is_dropped() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Runs a due merge of a level 0 that no other thread takes, if there is one. Called in the middle
    /// of a deep merge, without a lock.
    fn run_preempting(&self, preemption: &L0Preemption) {
        let news = self.jobs.news();
        // A sleeping thread takes due work. Checked again at the next look, because it may take
        // something else.
        let seen = preemption.seen.get();
        if seen == news || self.rest().is_zero() && self.background.has_idle_compactor() {
            return;
        }
        let began = self.background.now();
        if !preemption.may_yield(began) {
            return;
        }
        // Before the pick, so that later changes count as news.
        preemption.seen.set(news);
        let Some(claimed) = self.jobs.pick_level0() else { return };
        let attempt = self.background.begin();
        if let Err(error) = self.run_in_background(&claimed) {
            // Noted here, because the outcome of the deep merge is separate.
            self.background.note_outcome(Reason::Compaction, attempt, Err(&error));
        }
        // No listener is called here: one that closes the database would wait for the deep merge.
        let took = self.background.now().saturating_sub(began);
        preemption.given.set(preemption.given.get() + took);
    }

    /// Runs a claimed compaction and installs its result, or repairs the damaged input, after which the
    /// compaction is due again. Releases the claim unless an input is damaged beyond that. If the partition
    /// was dropped meanwhile, that is the error.
    pub(super) fn run_claimed(&self, claimed: &Claimed, l0: Option<&L0Preemption>) -> Result<()> {
        let partition = &claimed.partition;
        // The claim is released also after a panic: inputs that stayed claimed would never be
        // compacted again, and a close would wait for the job.
        let result = catch_engine("a compaction", || self.run_compaction(claimed, l0));
        let result = result.map_err(|error| {
            partition.check_live().err().unwrap_or(error.in_partition(&partition.name))
        });
        if let Err(error) = &result
            && let Some(repaired) = self.repair_input(claimed, error)
        {
            return repaired;
        }
        if let Err(error) = &result
            && let Some(damage) = error.damage()
        {
            self.runner.events.tell(&Event::Corruption(damage.clone()));
        }
        // After the installation, so that the next pick sees the new version.
        self.jobs.finish(claimed, result.as_ref().map(Vec::as_slice));
        result.map(drop)
    }

    /// Runs a compaction and installs its result; returns the tables that it made or moved.
    fn run_compaction(&self, claimed: &Claimed, l0: Option<&L0Preemption>) -> Result<Vec<SstMeta>> {
        let Claimed { partition, compaction, version } = claimed;
        // Before the work, because without a manifest its result could not be installed.
        self.runner.catalog.edit()?.ensure_writable()?;
        let started = self.background.now();
        let _span = tracing::debug_span!(
            "compaction",
            partition = &*partition.name,
            from = compaction.level_from,
            to = compaction.level_to
        )
        .entered();
        // A move changes the manifest alone. No filter sees the entries, so the picker moves no
        // table that filters have to see.
        if compaction.method == Method::Move {
            let moved: Vec<SstMeta> =
                compaction.tables().map(|(_, table)| table.meta.clone()).collect();
            let changes = changes(partition.id, compaction, &moved);
            if self.installer.install(partition, Installation::of(changes))? {
                self.runner.counters.trivial_moves.add(1);
                self.count_compaction(claimed, 0, started);
            }
            return Ok(moved);
        }
        // The removal of live entries is a decision, as that of a filter.
        let is_fifo = compaction.trigger == Trigger::Fifo;
        let job = self.runner.start_deciding(partition, is_fifo);
        // Taken since the pick: the tables wait for its end.
        if is_fifo && compaction.is_seen_by(&job.snapshots.registered) {
            return Ok(Vec::new());
        }
        if compaction.method == Method::Drop {
            let removed = compaction.tables().map(|(_, table)| table.clone()).collect();
            let changes = changes(partition.id, compaction, &[]);
            let installation = Installation { removed, ..Installation::of(changes) };
            if self.installer.install(partition, installation)? {
                self.count_compaction(claimed, 0, started);
            }
            return Ok(Vec::new());
        }
        let merge = Merge::compaction(compaction, version);
        let mut made = self.runner.run(&job, &merge, &|| {
            // A compaction may give up at any time, because its inputs are still live. A close
            // would otherwise wait for minutes.
            let is_unwanted = self.background.is_stopping() || partition.is_dropped();
            if !is_unwanted && let Some(preemption) = l0 {
                self.run_preempting(preemption);
            }
            is_unwanted
        })?;
        // Otherwise the partition was dropped, or its hooks changed: then the same compaction is due again.
        if !self.install_merge(claimed, &job, &mut made)? {
            return Ok(Vec::new());
        }
        self.count_compaction(claimed, made.bytes(), started);
        Ok(made.tables)
    }

    /// Installs the tables of a compaction or a repair in place of its inputs, and counts the bytes. Returns
    /// `false` if the partition was dropped, or its hooks changed.
    pub(super) fn install_merge(
        &self,
        claimed: &Claimed,
        job: &StartedJob,
        made: &mut JobTables,
    ) -> Result<bool> {
        let Claimed { partition, compaction, .. } = claimed;
        let mut changes = changes(partition.id, compaction, &made.tables);
        changes.extend(gaps_added(partition.id, &made.gaps));
        let is_installed = self.installer.install(
            partition,
            Installation {
                removed: compaction.tables().map(|(_, table)| table.clone()).collect(),
                holds: &|current| current.hooks == job.version.hooks,
                ..Installation::of_job(changes, made)
            },
        )?;
        if is_installed {
            self.runner.counters.compaction_read_bytes.add(compaction.bytes());
            self.runner.counters.compaction_written_bytes.add(made.bytes());
            partition.expired_removed.add(made.expired);
        }
        Ok(is_installed)
    }

    /// Counts and reports an installed compaction.
    fn count_compaction(&self, claimed: &Claimed, written_bytes: u64, started: Duration) {
        let compaction = &claimed.compaction;
        let counters = &self.runner.counters;
        counters.compactions.add(1);
        if compaction.trigger == Trigger::Fifo {
            counters.fifo_removed_tables.add(compaction.tables().count() as u64);
            counters.fifo_removed_bytes.add(compaction.bytes());
        }
        self.runner.events.tell(&Event::Compacted {
            partition: claimed.partition.name.to_string(),
            level_from: compaction.level_from,
            level_to: compaction.level_to,
            read_bytes: compaction.bytes(),
            written_bytes,
            took: self.background.now().saturating_sub(started),
        });
    }

    /// Runs compactions on the calling thread until a goal is reached.
    pub(super) fn reach(&self, partition: &Arc<PartitionState>, goal: RangeGoal<'_>) -> Result<()> {
        loop {
            self.log.check_open()?;
            partition.check_live()?;
            match self.jobs.pick_range(partition, goal)? {
                RangeStep::Done => return Ok(()),
                RangeStep::Run(claimed) => {
                    // On the thread of a caller, who waits for this compaction alone.
                    self.run_claimed(&claimed, None)?;
                    self.background.wake_all();
                }
                RangeStep::Wait => self.background.wait_for_news(),
                RangeStep::Stuck(Some(damage)) => return Err(damage),
                RangeStep::Stuck(None) => {
                    return Err(Error::new(ErrorKind::Io, "the range cannot be compacted"));
                }
            }
        }
    }

    /// Compacts the tables of a range of a partition to the bottom, on the calling thread.
    pub(super) fn compact(&self, partition: &Arc<PartitionState>, bounds: &Bounds) -> Result<()> {
        let range = UserRange { start: end_of(&bounds.0), end: end_of(&bounds.1) };
        if matches!((range.start, range.end), (Some(start), Some(end)) if start > end) {
            return Ok(());
        }
        // Filters see every table that exists now, a value store may move its values, and hidden
        // entries of a removed filter are dropped.
        let view = partition.view();
        let has_hidden = view.version.tables().any(|(_, table)| table.meta.hidden > 0);
        let has_hooks = !partition.hooks().filters.is_empty() || partition.store().is_some();
        let rewrites_all = has_hidden || has_hooks;
        drop(view);
        // A number that is allocated now is above that of every existing table.
        let goal = RangeGoal {
            range,
            through: self.runner.commit.visible_seq(),
            rewrite_before: rewrites_all.then(|| self.runner.factory.numbers.allocate()),
            finish: Finish::LastLevel,
        };
        self.reach(partition, goal)?;
        // After the tables of the range are where they stay: those that exist now are merged with their
        // neighbours once, so that the call ends however the outputs are cut.
        let finish = Finish::Packed(self.runner.factory.numbers.allocate());
        self.reach(partition, RangeGoal { finish, ..goal })
    }
}

/// The key at which a range ends; compactions take the tables around it whole, so the bound may be
/// inclusive or exclusive.
fn end_of(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}
