//! [`Jobs`]: the running flushes and compactions, and the choice of the next one.
//!
//! Called by `flush.rs` and `compaction.rs` before and after their work; by ingests, which put
//! tables into levels during running compactions; by callers that wait for the end of all jobs. It
//! opens no file and installs nothing. It reads the state of the database through its [`JobsEnv`].
//!
//! Invariants:
//! 1. Only the holder of the [`FlushTurn`] flushes.
//! 2. Two compactions share no input and no output range: `Busy`, claimed and released under one
//!    lock. A version is read under that lock, and a claim is released after the view has the
//!    result, so no job sees inputs that are removed.
//! 3. A table that turned out damaged stays claimed: it is not compacted again until the next open, or until no
//!    reader sees it, and the rest of the partition continues.

mod env;
mod repairs;
mod triggers;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

pub(super) use env::DbJobsEnv;
pub(super) use repairs::RepairStep;
pub(super) use triggers::{ErasedShare, erasable};

use triggers::{Claims, JobsState, PickContext};

use super::spans::SpanReaders;
use crate::compaction::{Compaction, Finish, RangePick, ingest_level};
use crate::error::{Error, Result};
use crate::partition::{PartitionState, WorkList};
use crate::types::{FileNo, PartitionId, SeqNo};
use crate::version::{PartitionVersion, SstMeta, UserRange};

/// The calls of [`Jobs`] to the database, under its lock: they take no lock above that.
pub(super) trait JobsEnv: Send + Sync {
    /// The partition with that id, if it exists.
    fn partition(&self, id: PartitionId) -> Option<Arc<PartitionState>>;

    /// The partitions whose tables or hooks changed since the last call; at the first all that have
    /// tables.
    fn take_changed(&self) -> BTreeSet<PartitionId>;

    /// Returns `true` if a memtable waits for its flush.
    fn has_sealed(&self) -> bool;

    /// The oldest sequence number that a reader may still use.
    fn oldest_snapshot(&self) -> SeqNo;

    /// The live snapshots, ascending.
    fn held_snapshots(&self) -> Vec<SeqNo>;

    /// The time by the database's clock.
    fn now(&self) -> Duration;

    /// Time since the beginning of 1970, by the same clock.
    fn unix_time(&self) -> Duration;
}

static NONE: BTreeSet<FileNo> = BTreeSet::new();

/// The running flushes and compactions, and the candidates for the next.
pub(super) struct Jobs {
    // Fixed after construction.
    env: Arc<dyn JobsEnv>,
    /// Held while a flush runs, and while memtables must stay unflushed. Taken before the commit
    /// path's lock. Contains the partitions whose last flush failed.
    flushing: Mutex<BTreeSet<PartitionId>>,
    state: Mutex<JobsState>,
    /// `true` if some table keeps entries for snapshots, or has some that expire, as of the last
    /// pick: a thread looks again from time to time. Relaxed: it is a hint.
    waits_for_time: AtomicBool,
    /// See [`Jobs::news`]. Relaxed: a merge that sees it late gives way a little later.
    news: AtomicU64,
}

/// A compaction whose inputs and output range no other job uses until it is released.
pub(super) struct Claimed {
    pub(super) partition: Arc<PartitionState>,
    pub(super) compaction: Compaction,
    /// The version that it was picked from.
    pub(super) version: Arc<PartitionVersion>,
}

/// The most urgent compaction of the partitions whose last one did not fail.
pub(super) enum HealthyPick {
    /// This one.
    Due(Box<Claimed>),
    /// None, and some partitions were skipped.
    OnlyFailing,
    /// Nothing is due at all.
    Nothing,
}

/// The next step of a compaction that the user requested.
pub(super) enum RangeStep {
    /// This compaction.
    Run(Claimed),
    /// A running job is in the way; try again when it is done.
    Wait,
    /// The goal is reached.
    Done,
    /// Nothing runs and the range cannot be compacted; with the error, if damage is the reason.
    Stuck(Option<Error>),
}

/// The range of a compaction that the user requested, and the tables that it must include.
#[derive(Clone, Copy)]
pub(super) struct RangeGoal<'a> {
    pub(super) range: UserRange<'a>,
    /// The last sequence that is waited for.
    pub(super) through: SeqNo,
    /// Every table with a smaller number is to be rewritten.
    pub(super) rewrite_before: Option<FileNo>,
    /// The end.
    pub(super) finish: Finish,
}

/// The right to flush: while it lives, only its holder flushes.
pub(super) struct FlushTurn<'a> {
    failing: MutexGuard<'a, BTreeSet<PartitionId>>,
    _held: HeldTurn,
}

thread_local! {
    static TURNS: Cell<usize> = const { Cell::new(0) };
}

/// Counts the turn among those of its thread.
struct HeldTurn;

impl HeldTurn {
    fn new() -> HeldTurn {
        TURNS.set(TURNS.get() + 1);
        HeldTurn
    }
}

impl Drop for HeldTurn {
    fn drop(&mut self) {
        TURNS.set(TURNS.get() - 1);
    }
}

/// Returns `true` if this thread has the turn to flush of any database.
pub(super) fn holds_flush_turn() -> bool {
    TURNS.get() > 0
}

/// Work in a partition other than a compaction: a close waits until it is dropped.
pub(super) struct Entered<'a> {
    jobs: &'a Jobs,
    partition: Arc<PartitionState>,
}

impl Jobs {
    /// No job runs.
    pub(super) fn new(env: Arc<dyn JobsEnv>) -> Jobs {
        Jobs {
            env,
            flushing: Mutex::default(),
            state: Mutex::default(),
            waits_for_time: AtomicBool::new(false),
            news: AtomicU64::new(0),
        }
    }

    /// The readers that an edit keeps deleted ranges for.
    pub(super) fn span_readers(&self) -> SpanReaders {
        SpanReaders { held: self.held_snapshots(), oldest: self.oldest_snapshot() }
    }

    /// The oldest sequence number that a reader may still use.
    pub(super) fn oldest_snapshot(&self) -> SeqNo {
        self.env.oldest_snapshot()
    }

    /// The live snapshots, ascending.
    pub(super) fn held_snapshots(&self) -> Vec<SeqNo> {
        self.env.held_snapshots()
    }

    /// Waits until no flush runs, and takes the turn.
    pub(super) fn flush_turn(&self) -> FlushTurn<'_> {
        let failing = self.flushing.lock();
        FlushTurn { failing, _held: HeldTurn::new() }
    }

    /// Picks, over all partitions, the most urgent compaction, and claims it. Partitions whose last
    /// one failed come after all others.
    ///
    /// # Errors
    /// If none can be picked because of the hooks of a partition.
    pub(super) fn pick(&self) -> Result<Option<Claimed>> {
        let (claimed, failing) = self.pick_most_urgent(true, u64::MAX);
        if claimed.is_some() { Ok(claimed) } else { failing.map(|_| None) }
    }

    /// As [`Jobs::pick`], but skips the partitions whose last compaction failed, or whose hooks
    /// return an error.
    pub(super) fn pick_healthy(&self) -> HealthyPick {
        match self.pick_most_urgent(false, u64::MAX) {
            (Some(claimed), _) => HealthyPick::Due(Box::new(claimed)),
            (None, Ok(false)) => HealthyPick::Nothing,
            (None, _) => HealthyPick::OnlyFailing,
        }
    }

    /// As [`Jobs::pick_healthy`], of the compactions that read no more than so many bytes.
    pub(super) fn pick_cheap(&self, bytes_max: u64) -> Option<Claimed> {
        self.pick_most_urgent(false, bytes_max).0
    }

    /// The most urgent compaction, claimed; one of a partition whose last one failed only if no other is
    /// due and `tried_again`; none that reads more than `bytes_max`. Also returns whether one was skipped,
    /// or the error of hooks.
    fn pick_most_urgent(
        &self,
        tried_again: bool,
        bytes_max: u64,
    ) -> (Option<Claimed>, Result<bool>) {
        let mut state = self.state.lock();
        // The most urgent one over all partitions, not the next in turn: a partition that stalls
        // its writers must not wait for one that has time.
        let mut best: Option<Claimed> = None;
        let mut best_rank = (false, f64::NEG_INFINITY);
        let mut failing = Ok(false);
        let context = PickContext::of(&*self.env);
        for partition in state.take_candidates(&*self.env, &context) {
            let picked = state.look_at(&partition, &context);
            let claim = state.claims.entry(partition.id).or_default();
            match picked {
                Err(error) => {
                    // Kept, so that writers that are stopped by the partition's tables get the
                    // reason.
                    claim.failure = Some(error.clone());
                    failing = failing.and(Err(error));
                }
                Ok(None) => claim.failure = None,
                Ok(Some((job, _))) if job.bytes() > bytes_max => {}
                Ok(Some(_)) if claim.failure.is_some() && !tried_again => {
                    failing = failing.map(|_| true);
                }
                Ok(Some((compaction, version))) => {
                    // A partition whose last compaction failed comes last. Otherwise a damaged one
                    // would be picked again and again, and the others would wait.
                    let rank = (claim.failure.is_none(), compaction.score);
                    // Of equal ranks the first wins, which has the smallest id.
                    if rank > best_rank {
                        best_rank = rank;
                        best = Some(Claimed { partition, compaction, version });
                    }
                }
            }
        }
        self.waits_for_time.store(!state.waiting.is_empty(), Ordering::Relaxed);
        if let Some(claimed) = &best {
            // Under the lock under which it was picked, so two threads never pick the same tables.
            state.claim(claimed.partition.id, &claimed.compaction);
        }
        (best, failing)
    }

    /// Picks and claims the most urgent merge of a level 0, if one is due in a partition whose last
    /// compaction did not fail.
    pub(super) fn pick_level0(&self) -> Option<Claimed> {
        let mut state = self.state.lock();
        let due = state.level0_due(&*self.env);
        let (partition, compaction, version) =
            due.into_iter().max_by(|a, b| a.1.score.total_cmp(&b.1.score))?;
        state.claim(partition.id, &compaction);
        Some(Claimed { partition, compaction, version })
    }

    /// A number that grows when tables are installed or a claim is released: a merge of a level 0 may
    /// have become due.
    pub(super) fn news(&self) -> u64 {
        self.news.load(Ordering::Relaxed)
    }

    /// Notes that tables were installed.
    pub(super) fn note_tables(&self) {
        self.news.fetch_add(1, Ordering::Relaxed);
    }

    /// Picks and claims the next step towards `goal`.
    ///
    /// # Errors
    /// If a hook of the partition panics.
    pub(super) fn pick_range(
        &self,
        partition: &Arc<PartitionState>,
        goal: RangeGoal<'_>,
    ) -> Result<RangeStep> {
        let mut state = self.state.lock();
        let claim = state.claims.entry(partition.id).or_default();
        let version = partition.view().version.clone();
        let context = PickContext::of(&*self.env);
        claim.release_unseen(partition, &context.held);
        let mut picked = claim.pick_range(partition, &version, &context, &goal, &NONE)?;
        // Last, because what the other steps rewrite is done then.
        if matches!(picked, RangePick::Done) && !version.spans.is_empty() {
            let outdated = erasable(&version, &context.held, ErasedShare::Any);
            picked = claim.pick_range(partition, &version, &context, &goal, &outdated)?;
        }
        Ok(match picked {
            RangePick::Done => RangeStep::Done,
            RangePick::Due(compaction) => {
                state.claim(partition.id, &compaction);
                RangeStep::Run(Claimed { partition: partition.clone(), compaction, version })
            }
            // Only the end of a running job can unblock it. Without one the caller would wait for
            // ever.
            RangePick::Blocked if claim.running > 0 => RangeStep::Wait,
            RangePick::Blocked => RangeStep::Stuck(claim.damage()),
        })
    }

    /// Releases a claim: with the new tables of the compaction, which are in the view, or with its
    /// error. A damaged input stays claimed; all of them do if the error names none.
    pub(super) fn finish(&self, claimed: &Claimed, outcome: Result<&[SstMeta], &Error>) {
        let Claimed { partition, compaction, .. } = claimed;
        let mut state = self.state.lock();
        let claim = state.leave(partition.id);
        // Damage has no second attempt that others should come before.
        claim.failure = outcome.err().filter(|error| !error.is_corruption()).cloned();
        match outcome {
            Ok(outputs) => {
                claim.busy.release(compaction);
                claim.forget_repairs(partition);
                claim.pointers.finished(compaction, outputs.iter().map(|meta| meta.file));
            }
            Err(error) if error.is_corruption() => {
                // The claim of the damaged input stays. It would fail again, and every new attempt would read it.
                claim.busy.release(compaction);
                let damaged = named_input(compaction, error).unwrap_or_else(|| compaction.clone());
                claim.busy.claim(&damaged);
                claim.damaged.push((damaged, error.clone()));
            }
            Err(_) => claim.busy.release(compaction),
        }
        state.forget_if_dropped(partition);
        drop(state);
        self.note_tables();
    }

    /// Begins work in a partition that a close waits for.
    pub(super) fn enter(&self, partition: &Arc<PartitionState>) -> Entered<'_> {
        self.state.lock().enter(partition.id);
        Entered { jobs: self, partition: partition.clone() }
    }

    /// Chooses a level for each finished table of an ingest, and keeps compactions out of its range
    /// there until [`Jobs::release_levels`].
    pub(super) fn reserve_levels(
        &self,
        partition: &PartitionState,
        tables: &[SstMeta],
    ) -> Vec<usize> {
        let mut state = self.state.lock();
        let claim = state.claims.entry(partition.id).or_default();
        let version = partition.view().version.clone();
        let mut levels = Vec::with_capacity(tables.len());
        for meta in tables {
            let level = ingest_level(&version, &claim.busy, meta.range());
            // Reserved at once: the next table of the same ingest must find the level taken.
            claim.busy.reserve(level, meta);
            levels.push(level);
        }
        levels
    }

    /// Gives back what [`Jobs::reserve_levels`] took.
    pub(super) fn release_levels(&self, partition: &PartitionState, tables: &[SstMeta]) {
        let mut state = self.state.lock();
        let claim = state.claims.entry(partition.id).or_default();
        tables.iter().for_each(|meta| claim.busy.unreserve(meta.file));
        // A compaction that these ranges blocked may be due.
        state.candidates.insert(partition.id);
        drop(state);
        self.note_tables();
    }

    /// Returns `true` if something runs, or could be picked.
    pub(super) fn has_work(&self) -> bool {
        let mut state = self.state.lock();
        let context = PickContext::of(&*self.env);
        let mut is_due = false;
        // All of them, even if one is known to be due: candidates that are taken out and not looked
        // at would be forgotten.
        for partition in state.take_candidates(&*self.env, &context) {
            // A refusal by hooks counts as work: the attempt reports the error.
            is_due |= !matches!(state.look_at(&partition, &context), Ok(None));
        }
        is_due || state.running > 0 || self.env.has_sealed()
    }

    /// Returns `true` if a table may become due without any call, because snapshots are released or
    /// entries expire.
    pub(super) fn waits_for_time(&self) -> bool {
        self.waits_for_time.load(Ordering::Relaxed)
    }

    /// Returns `true` if a compaction or an ingest runs.
    pub(super) fn is_running(&self) -> bool {
        self.state.lock().running > 0
    }

    /// The reason why compactions of a partition make no progress: the error of the last one, or damage if
    /// nothing else runs or is due.
    pub(super) fn failure_of(&self, partition: &PartitionState) -> Option<Error> {
        let mut state = self.state.lock();
        let claim = state.claims.get(&partition.id)?;
        let damage = claim.damage().filter(|_| claim.busy.claims() == claim.damaged.len());
        if claim.failure.is_some() || damage.is_none() {
            return claim.failure.clone();
        }
        let picked = state.look_at(partition, &PickContext::of(&*self.env));
        damage.filter(|_| matches!(picked, Ok(None)))
    }

    /// Forgets the failures of compactions of a dropped partition.
    pub(super) fn forget(&self, partition: PartitionId) {
        let mut state = self.state.lock();
        if state.claims.get(&partition).is_some_and(|claim| claim.running == 0) {
            state.claims.remove(&partition);
        }
    }

    /// The first damage that keeps tables from compactions.
    pub(super) fn damage(&self) -> Option<Error> {
        self.state.lock().claims.values().find_map(Claims::damage)
    }
}

/// The claim of the input alone that the error names.
fn named_input(compaction: &Compaction, error: &Error) -> Option<Compaction> {
    let file = &error.damage()?.file;
    let mut tables = compaction.tables();
    let (level, table) = tables.find(|(_, it)| file.ends_with(it.meta.file_name().to_string()))?;
    Some(Compaction::repair(level, table.clone()))
}

impl FlushTurn<'_> {
    /// The partition to be flushed next: the one with the most sealed memory. Those whose last
    /// flush failed come after all others, so that a bad disk or hook delays only its own
    /// partition.
    pub(super) fn largest(&self, work: &WorkList, logged_too: bool) -> Option<PartitionId> {
        work.most_sealed(|id, is_logged| (logged_too || !is_logged) && !self.has_failed(id))
            .or_else(|| work.most_sealed(|_, is_logged| logged_too || !is_logged))
    }

    /// Returns `true` if the last flush of the partition failed.
    pub(super) fn has_failed(&self, partition: PartitionId) -> bool {
        self.failing.contains(&partition)
    }

    /// Notes the outcome of a flush of the partition.
    pub(super) fn note(&mut self, partition: &PartitionState, worked: bool) {
        if worked {
            self.failing.remove(&partition.id);
        } else {
            self.failing.insert(partition.id);
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut state = self.jobs.state.lock();
        state.leave(self.partition.id);
        state.forget_if_dropped(&self.partition);
    }
}

#[cfg(test)]
mod tests;
