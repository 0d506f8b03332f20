//! [`BlobGcGoals`]: the goals of value stores, and the turns of partitions to choose one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::compaction::Finish;
use crate::db::jobs::RangeGoal;
use crate::error::Error;
use crate::hooks::{AttachedStore, KeySpan, MovesEnded};
use crate::partition::PartitionState;
use crate::types::{FileNo, MemtableId, PartitionId, SeqNo};
use crate::version::UserRange;

/// A memtable of a partition with large values is flushed when it is this old: a deletion in it may
/// free gigabytes.
pub(super) const FLUSH_AGE: Duration = Duration::from_secs(5);

/// Tables are merged to the last level when nothing was flushed for so long.
pub(super) const QUIET_AGE: Duration = Duration::from_secs(5);

/// Threads look for due work in a partition no more often than this: they wake at every flush, and
/// a look passes over all tables.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Held while the values of a partition are counted.
pub(in crate::db) type CountingTurn<'a> = MutexGuard<'a, ()>;

/// The background work of value stores, by partition.
#[derive(Default)]
pub(in crate::db) struct BlobGcGoals {
    /// A leaf, held for a few lines.
    of: Mutex<HashMap<PartitionId, PartitionGc>>,
    /// Held while the values of a partition are counted.
    counting: Mutex<()>,
    /// The number of the partition that had its turn last. Relaxed: it only determines with which
    /// partition a thread begins.
    last_turn: AtomicU32,
}

#[derive(Default)]
struct PartitionGc {
    /// The active memtable when it was first seen with entries, and the time.
    active: Option<(MemtableId, Duration)>,
    /// The sequence through which everything is flushed, and the time since which that holds.
    flushed: Option<(SeqNo, Duration)>,
    /// The sequence through which everything was flushed at the last merge of tables.
    merged: Option<SeqNo>,
    goal: Option<Arc<Goal>>,
    /// A thread chooses the next goal.
    is_choosing: bool,
    /// The time of the last look for a goal that found none.
    looked: Option<Duration>,
    /// The newest closing of a gap after which a count of the values was begun.
    count_begun: Option<SeqNo>,
    /// The same for one that was ended.
    count_ended: Option<SeqNo>,
}

/// The state of a partition's tables between two flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleState {
    /// Something was flushed a moment ago.
    Busy,
    /// Nothing was flushed for some time, and tables were not merged since the last flush.
    Unmerged,
    /// They were: only released snapshots make work.
    Merged,
}

/// Tables that should be merged to the last level.
pub(in crate::db) struct Goal {
    pub(in crate::db) span: KeySpan,
    pub(in crate::db) through: SeqNo,
    /// The plan of the store that the goal is for, if it is to move values.
    pub(in crate::db) moves: Option<PlannedMoves>,
}

/// A plan of a value store to move values.
pub(in crate::db) struct PlannedMoves {
    /// As [`RangeGoal::rewrite_before`].
    pub(super) rewrite_before: FileNo,
    pub(super) ended: MovesEnded,
}

impl PlannedMoves {
    /// Ends the plan, with the error of a job that failed. Returns the reason why values of the store are left
    /// where they are.
    pub(in crate::db) fn end(&self, store: &AttachedStore, error: Option<&Error>) -> Option<Error> {
        // A panic is a reason as good as others.
        store.call("the end of moves", |_| Ok((self.ended)(error))).unwrap_or_else(Some)
    }
}

impl Goal {
    pub(in crate::db) fn as_range(&self) -> RangeGoal<'_> {
        let range = UserRange { start: Some(&self.span.smallest), end: Some(&self.span.largest) };
        let rewrite_before = self.moves.as_ref().map(|moves| moves.rewrite_before);
        RangeGoal { range, through: self.through, rewrite_before, finish: Finish::Clean }
    }
}

impl BlobGcGoals {
    /// Returns `true` while tables are being merged to the last level.
    pub(in crate::db) fn has_goal(&self) -> bool {
        self.of.lock().values().any(|state| state.goal.is_some())
    }

    pub(in crate::db) fn goal(&self, partition: PartitionId) -> Option<Arc<Goal>> {
        self.of.lock().entry(partition).or_default().goal.clone()
    }

    /// Begins the choice of the next goal after the one that was `reached`; `None` if another thread
    /// has chosen meanwhile, or is about to. If two threads asked a store, it would give up the
    /// first choice at the second.
    pub(in crate::db) fn choose(
        &self,
        partition: PartitionId,
        reached: Option<&Arc<Goal>>,
    ) -> Option<Choice<'_>> {
        let mut all = self.of.lock();
        let state = all.entry(partition).or_default();
        let is_same = match (&state.goal, reached) {
            (None, None) => true,
            (Some(present), Some(reached)) => Arc::ptr_eq(present, reached),
            _ => false,
        };
        // Another thread is choosing, or has chosen since the caller looked: its choice counts.
        if state.is_choosing || !is_same {
            return None;
        }
        state.is_choosing = true;
        Some(Choice { goals: self, partition })
    }

    /// Rotates partitions, which are sorted by number, so that those after the last turn come first. Without
    /// turns a partition that always has something due, or always fails, would be the only one looked at.
    pub(super) fn take_turns(&self, partitions: &mut [Arc<PartitionState>]) {
        let last = PartitionId(self.last_turn.load(Ordering::Relaxed));
        let after = partitions.partition_point(|partition| partition.id <= last);
        partitions.rotate_left(after);
    }

    pub(super) fn note_turn(&self, partition: PartitionId) {
        self.last_turn.store(partition.0, Ordering::Relaxed);
    }

    /// Returns `true` if nothing was due in a partition a moment before `now`, and it has no goal since.
    pub(super) fn was_looked_at(&self, partition: PartitionId, now: Duration) -> bool {
        let all = self.of.lock();
        // Another thread may have chosen a goal since, and may have failed at it: `wait_idle` waits for
        // that.
        let state = all.get(&partition).filter(|state| state.goal.is_none());
        let looked = state.and_then(|state| state.looked);
        looked.is_some_and(|looked| now.saturating_sub(looked) < LOOK_AGAIN)
    }

    pub(super) fn note_look(&self, partition: PartitionId, now: Duration) {
        self.of.lock().entry(partition).or_default().looked = Some(now);
    }

    /// Notes the active memtable of a partition, unless it is empty, at `now`; returns `true`, and
    /// forgets it, once it is old.
    pub(super) fn is_old(
        &self,
        partition: PartitionId,
        active: Option<MemtableId>,
        now: Duration,
    ) -> bool {
        let mut all = self.of.lock();
        let state = all.entry(partition).or_default();
        let Some(active) = active else {
            state.active = None;
            return false;
        };
        let (_, since) = match state.active {
            Some(seen) if seen.0 == active => seen,
            _ => *state.active.insert((active, now)),
        };
        let is_old = now.saturating_sub(since) >= FLUSH_AGE;
        if is_old {
            state.active = None;
        }
        is_old
    }

    /// Notes the flushed sequence of a partition at `now`; once nothing was flushed for some time,
    /// returns the tables to look at: also overlapping ones, if they were not merged since.
    pub(super) fn idle_state(
        &self,
        partition: PartitionId,
        flushed: SeqNo,
        now: Duration,
    ) -> IdleState {
        let mut all = self.of.lock();
        let state = all.entry(partition).or_default();
        let (_, since) = match state.flushed {
            Some(seen) if seen.0 == flushed => seen,
            _ => *state.flushed.insert((flushed, now)),
        };
        if now.saturating_sub(since) < QUIET_AGE {
            return IdleState::Busy;
        }
        // Without a flush since then the same tables overlap, and a merge of them would free
        // nothing.
        if state.merged.replace(flushed) == Some(flushed) {
            return IdleState::Merged;
        }
        IdleState::Unmerged
    }

    /// Waits for the turn to count the values of a partition.
    pub(in crate::db) fn wait_for_counting_turn(&self) -> CountingTurn<'_> {
        self.counting.lock()
    }

    /// The turn to count the values of a partition, unless another thread has it.
    pub(super) fn try_counting_turn(&self) -> Option<CountingTurn<'_>> {
        self.counting.try_lock()
    }

    /// Notes that a count begins after the closing of a gap; `false` if one has begun before.
    pub(in crate::db) fn begin_count(&self, partition: PartitionId, closed_at: SeqNo) -> bool {
        let mut all = self.of.lock();
        let begun = &mut all.entry(partition).or_default().count_begun;
        let is_first = begun.is_none_or(|begun| begun < closed_at);
        if is_first {
            *begun = Some(closed_at);
        }
        is_first
    }

    /// Notes that the count after the closing of a gap has ended.
    pub(in crate::db) fn end_count(&self, partition: PartitionId, closed_at: SeqNo) {
        self.of.lock().entry(partition).or_default().count_ended = Some(closed_at);
    }

    /// Returns `true` if a count has ended that began after the closing of a gap.
    pub(in crate::db) fn has_counted(&self, partition: PartitionId, closed_at: SeqNo) -> bool {
        let all = self.of.lock();
        let ended = all.get(&partition).and_then(|state| state.count_ended);
        ended.is_some_and(|ended| ended >= closed_at)
    }

    /// Forgets a partition that was dropped.
    pub(in crate::db) fn forget(&self, partition: PartitionId) {
        self.of.lock().remove(&partition);
    }
}

/// The choice of the next goal of a partition, by one thread at a time. Dropped, also by a panic of
/// the store, it chose nothing.
pub(in crate::db) struct Choice<'a> {
    goals: &'a BlobGcGoals,
    partition: PartitionId,
}

impl Choice<'_> {
    pub(in crate::db) fn set(&self, goal: Option<Goal>) -> Option<Arc<Goal>> {
        let goal = goal.map(Arc::new);
        // Not created again: a partition that was dropped meanwhile stays forgotten.
        if let Some(state) = self.goals.of.lock().get_mut(&self.partition) {
            state.goal.clone_from(&goal);
        }
        goal
    }
}

impl Drop for Choice<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.goals.of.lock().get_mut(&self.partition) {
            state.is_choosing = false;
        }
    }
}
