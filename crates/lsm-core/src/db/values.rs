//! [`ValueReclaimer`]: the maintenance of large values, the background work that reclaims the space of values that no
//! reader needs.
//!
//! Called by the compaction threads when no other compaction is due, and again every second as long
//! as a store holds values.
//!
//! ```text
//! an idle memtable -> flushed by age -> no flush for some time -> overlapping tables are merged
//! to the last level, where deleted and overwritten handles meet -> the store gets each of them, in
//! the edit -> chunks with much garbage: the tables whose handles point there are rewritten, and the
//! values are moved on the way
//! a memtable whose handles name many bytes -> flushed when the store requests it ([`StoreWishes`]),
//! and merged when level 0 is full
//! ```
//!
//! Invariant: nothing here decides which entries may be dropped. Compactions decide, by their
//! rules; this file only starts them where no size does.
//!
//! [`StoreWishes`]: crate::hooks::StoreWishes

mod gc_goals;
mod reclaim;
mod recount;

use std::sync::Arc;

pub(super) use gc_goals::{BlobGcGoals, CountingTurn, Goal};
use gc_goals::{IdleState, PlannedMoves};

use super::background::{Background, BackgroundMode};
use super::compaction::Compactor;
use super::flush::Flusher;
use super::job::JobRunner;
use super::job_parts::JobParts;
use super::jobs::{ErasedShare, Jobs, RangeStep, erasable};
use super::log::Log;
use super::removal::Removal;
use crate::error::{Error, Result};
use crate::hooks::{AttachedStore, KeySpan, MovePlan, MoveRequest};
use crate::partition::PartitionState;
use crate::types::SeqNo;
use crate::version::{PartitionVersion, Table};

/// Returns `true` if a table shares keys with one on a deeper level, or both lie on level 0.
fn is_over_another(version: &PartitionVersion, level: usize, table: &Table) -> bool {
    let range = table.meta.range();
    let deeper = &version.levels[level + 1..];
    if deeper.iter().any(|deeper| !deeper.overlapping(range).is_empty()) {
        return true;
    }
    let others = version.levels[0].tables().iter();
    let mut others = others.filter(|other| other.meta.file != table.meta.file);
    level == 0 && others.any(|other| other.meta.overlaps(range))
}

/// The hull of the tables in which entries may be shadowed: by a table of another level, by a deleted range, or since
/// a snapshot was released.
fn shadowed(version: &PartitionVersion, held: &[SeqNo], overlaps: bool) -> Option<KeySpan> {
    let erasable = erasable(version, held, ErasedShare::Any);
    let mut hull = None;
    for (level, table) in version.tables() {
        let meta = &table.meta;
        let is_alone = !(overlaps && is_over_another(version, level, table));
        if meta.droppable(held) == 0 && !erasable.contains(&meta.file) && is_alone {
            continue;
        }
        hull = Some(KeySpan::hull(hull, &meta.smallest.user, &meta.largest.user));
    }
    hull
}

/// Reclaims the space of large values that no reader needs.
pub(super) struct ValueReclaimer {
    goals: Arc<BlobGcGoals>,
    log: Arc<Log>,
    runner: Arc<JobRunner>,
    jobs: Arc<Jobs>,
    background: Arc<Background>,
    removal: Arc<Removal>,
    flusher: Arc<Flusher>,
    compactor: Arc<Compactor>,
}

impl ValueReclaimer {
    pub(super) fn new(
        parts: &JobParts,
        goals: Arc<BlobGcGoals>,
        removal: Arc<Removal>,
        flusher: Arc<Flusher>,
        compactor: Arc<Compactor>,
    ) -> ValueReclaimer {
        let JobParts { log, runner, jobs, background, .. } = parts.clone();
        ValueReclaimer { goals, log, runner, jobs, background, removal, flusher, compactor }
    }

    /// The goals of value stores.
    pub(super) fn goals(&self) -> &BlobGcGoals {
        &self.goals
    }

    /// Returns `true` if a partition has values in its store: then a thread looks from time to time.
    pub(super) fn holds_values(&self) -> bool {
        let partitions = self.runner.catalog.with_stores();
        partitions
            .iter()
            .any(|partition| partition.store().is_some_and(|store| store.holds_values()))
    }

    /// Returns `true` while tables are being merged for a store.
    pub(super) fn has_value_goal(&self) -> bool {
        self.goals.has_goal()
    }

    /// Does one piece of due work for large values; `false` if there is none.
    pub(super) fn tend(&self) -> Result<bool> {
        let now = self.background.now();
        // A test that steps manually sees everything that is due, without waiting.
        let is_threaded = self.background.mode() == BackgroundMode::Threads;
        let mut partitions = self.runner.catalog.with_stores();
        self.goals.take_turns(&mut partitions);
        for partition in partitions {
            if is_threaded && self.goals.was_looked_at(partition.id, now) {
                continue;
            }
            // Before anything can fail or panic: then the next attempt begins with another partition.
            self.goals.note_turn(partition.id);
            // A count reads all tables of a partition, and one runs at a time. A thread that finds
            // another one counting continues with other work; the next look counts.
            if let Some(turn) = self.goals.try_counting_turn()
                && self.recount_values(&partition, &turn)?
            {
                return Ok(true);
            }
            let Some(store) = partition.store() else { continue };
            // A goal of a store may remain that a compaction of another thread has emptied. It must
            // still be given up, because `wait_idle` waits for it.
            if !store.holds_values() && self.goals.goal(partition.id).is_none() {
                continue;
            }
            // The memtable first: no compaction sees a deletion that is only in memory.
            if self.flush_by_age(&partition) || self.step_to_goal(&partition, store)? {
                return Ok(true);
            }
            if self.goals.goal(partition.id).is_none() {
                self.goals.note_look(partition.id, now);
            }
        }
        Ok(false)
    }

    /// Seals the active memtable once it is old.
    fn flush_by_age(&self, partition: &Arc<PartitionState>) -> bool {
        let active = partition.view().active.clone();
        let with_entries = (!active.is_empty()).then_some(active.id);
        if !self.goals.is_old(partition.id, with_entries, self.background.now()) {
            return false;
        }
        // Only sealed. The flush thread writes it, so that this thread holds no turn to flush.
        self.flusher.seal(partition);
        true
    }

    /// Takes one step towards the goal of a partition, if it has one or should have.
    fn step_to_goal(&self, partition: &Arc<PartitionState>, store: &AttachedStore) -> Result<bool> {
        let mut present = self.goals.goal(partition.id);
        loop {
            if let Some(goal) = &present {
                match self.jobs.pick_range(partition, goal.as_range())? {
                    RangeStep::Run(claimed) => {
                        let done = self.compactor.run_in_background(&claimed);
                        return done.inspect_err(|error| {
                            self.give_up(partition, store, goal, error);
                        });
                    }
                    // No wait: the thread has other partitions, and the job that is in the way
                    // wakes it when it ends.
                    RangeStep::Wait => return Ok(false),
                    // Moving may be due at once, so the store is asked again: after `wait_idle` no
                    // work must be left. A store never names a chunk again that a goal did not
                    // empty, so this ends.
                    RangeStep::Done | RangeStep::Stuck(_) => {}
                }
            }
            let Some(choice) = self.goals.choose(partition.id, present.as_ref()) else {
                return Ok(false);
            };
            let next = match &present {
                Some(_) => self.plan_moves(store, &MoveRequest::default())?.0,
                None => self.next_goal(partition, store)?,
            };
            present = choice.set(next);
            if present.is_none() {
                return Ok(false);
            }
        }
    }

    fn next_goal(&self, partition: &PartitionState, store: &AttachedStore) -> Result<Option<Goal>> {
        let version = partition.view().version.clone();
        let idle_state =
            self.goals.idle_state(partition.id, version.flushed_through, self.background.now());
        let overlaps = idle_state == IdleState::Unmerged;
        if idle_state != IdleState::Busy
            && let Some(goal) = self.settling_goal(&version, overlaps)
        {
            return Ok(Some(goal));
        }
        Ok(self.plan_moves(store, &MoveRequest::default())?.0)
    }

    /// Gives up the goal of moving values, after a job for it failed. The same values would be copied repeatedly for
    /// it; the store names fewer of them, or names them later.
    pub(super) fn give_up(
        &self,
        partition: &PartitionState,
        store: &AttachedStore,
        goal: &Arc<Goal>,
        error: &Error,
    ) {
        if let Some(moves) = &goal.moves
            && let Some(choice) = self.goals.choose(partition.id, Some(goal))
        {
            moves.end(store, Some(error));
            choice.set(None);
        }
    }

    /// The goal of merging shadowed entries with those that shadow them, see [`shadowed`].
    pub(super) fn settling_goal(&self, version: &PartitionVersion, overlaps: bool) -> Option<Goal> {
        let span = shadowed(version, &self.jobs.held_snapshots(), overlaps)?;
        Some(Goal { span, through: self.runner.commit.visible_seq(), moves: None })
    }

    /// The goal of a store for moving values: to rewrite all tables with keys of its plan. Without one, the
    /// reason why values are left where they are, if there are such values.
    pub(super) fn plan_moves(
        &self,
        store: &AttachedStore,
        request: &MoveRequest<'_>,
    ) -> Result<(Option<Goal>, Option<Error>)> {
        // A store that has not applied an edit would take the garbage of that edit for live values.
        self.runner.catalog.obsolete().notify_all_stores()?;
        // The space of files that the last goal emptied is room for the next. A failure is noted separately.
        let _ = self.removal.remove();
        match store.call("plan_moves", |store| store.plan_moves(request))? {
            MovePlan::Rewrite { span, ended } => {
                // After the plan: a job that began before may have passed values that should be moved.
                let rewrite_before = self.runner.factory.numbers.allocate();
                let moves = Some(PlannedMoves { rewrite_before, ended });
                Ok((Some(Goal { span, through: self.runner.commit.visible_seq(), moves }), None))
            }
            MovePlan::Nothing(unmoved) => Ok((None, unmoved)),
        }
    }
}

#[cfg(test)]
mod tests;
