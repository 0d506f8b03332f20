//! The maintenance of large values: the background work that reclaims the space of values that no
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

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::jobs::{JobsEnv, RangeGoal, RangeStep};
use super::{BackgroundMode, DbInner};
use crate::compaction::Finish;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{KeySpan, ValueStore};
use crate::partition::PartitionState;
use crate::types::{FileNo, MemtableId, PartitionId, SeqNo};
use crate::version::{PartitionVersion, Table, UserRange};

/// A memtable of a partition with large values is flushed when it is this old: a deletion in it may
/// free gigabytes.
const FLUSH_AGE: Duration = Duration::from_secs(5);
/// Tables are merged to the last level when nothing was flushed for so long.
const QUIET_AGE: Duration = Duration::from_secs(5);
/// Threads look for due work in a partition no more often than this: they wake at every flush, and
/// a look passes over all tables.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Held while the values of a partition are counted.
pub(super) type CountingTurn<'a> = MutexGuard<'a, ()>;

/// The background work of value stores, by partition.
#[derive(Default)]
pub(super) struct ValueTending {
    /// A leaf, held for a few lines.
    of: Mutex<HashMap<PartitionId, Tending>>,
    /// Held while the values of a partition are counted.
    counting: Mutex<()>,
    /// The number of the partition that had its turn last. Relaxed: it only determines with which
    /// partition a thread begins.
    last_turn: AtomicU32,
}

#[derive(Default)]
struct Tending {
    /// The active memtable when it was first seen with entries, and the time.
    active: Option<(MemtableId, Duration)>,
    /// The sequence through which everything is flushed, and the time since which that holds.
    flushed: Option<(SeqNo, Duration)>,
    /// The sequence through which everything was flushed at the last merge of tables.
    settled: Option<SeqNo>,
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
enum IdleState {
    /// Something was flushed a moment ago.
    Busy,
    /// Nothing was flushed for some time, and tables were not merged since the last flush.
    Unsettled,
    /// They were: only released snapshots make work.
    Settled,
}

/// Tables that should be merged to the last level.
pub(super) struct Goal {
    pub(super) span: KeySpan,
    pub(super) through: SeqNo,
    /// As [`RangeGoal::rewrite_before`].
    pub(super) rewrite_before: Option<FileNo>,
}

impl Goal {
    pub(super) fn as_range(&self) -> RangeGoal<'_> {
        let range = UserRange { start: Some(&self.span.smallest), end: Some(&self.span.largest) };
        let finish = Finish::Clean;
        RangeGoal { range, through: self.through, rewrite_before: self.rewrite_before, finish }
    }
}

impl ValueTending {
    /// Returns `true` while tables are being merged to the last level.
    pub(super) fn has_goal(&self) -> bool {
        self.of.lock().values().any(|tending| tending.goal.is_some())
    }

    pub(super) fn goal(&self, partition: PartitionId) -> Option<Arc<Goal>> {
        self.of.lock().entry(partition).or_default().goal.clone()
    }

    /// Begins the choice of the next goal after the one that was `reached`; `None` if another thread
    /// has chosen meanwhile, or is about to. If two threads asked a store, it would give up the
    /// first choice at the second.
    pub(super) fn choose(
        &self,
        partition: PartitionId,
        reached: Option<&Arc<Goal>>,
    ) -> Option<Choice<'_>> {
        let mut all = self.of.lock();
        let tending = all.entry(partition).or_default();
        let is_same = match (&tending.goal, reached) {
            (None, None) => true,
            (Some(present), Some(reached)) => Arc::ptr_eq(present, reached),
            _ => false,
        };
        // Another thread is choosing, or has chosen since the caller looked: its choice counts.
        if tending.is_choosing || !is_same {
            return None;
        }
        tending.is_choosing = true;
        Some(Choice { tending: self, partition })
    }

    /// Rotates partitions, which are sorted by number, so that those after the last turn come first. Without
    /// turns a partition that always has something due, or always fails, would be the only one looked at.
    fn take_turns(&self, partitions: &mut [Arc<PartitionState>]) {
        let last = PartitionId(self.last_turn.load(Ordering::Relaxed));
        let behind = partitions.partition_point(|partition| partition.id <= last);
        partitions.rotate_left(behind);
    }

    fn note_turn(&self, partition: PartitionId) {
        self.last_turn.store(partition.0, Ordering::Relaxed);
    }

    /// Returns `true` if nothing was due in a partition a moment before `now`, and it has no goal since.
    fn was_looked_at(&self, partition: PartitionId, now: Duration) -> bool {
        let all = self.of.lock();
        // Another thread may have chosen a goal since, and may have failed at it: `wait_idle` waits for
        // that.
        let tending = all.get(&partition).filter(|tending| tending.goal.is_none());
        let looked = tending.and_then(|tending| tending.looked);
        looked.is_some_and(|looked| now.saturating_sub(looked) < LOOK_AGAIN)
    }

    fn note_look(&self, partition: PartitionId, now: Duration) {
        self.of.lock().entry(partition).or_default().looked = Some(now);
    }

    /// Notes the active memtable of a partition, unless it is empty, at `now`; returns `true`, and
    /// forgets it, once it is old.
    fn is_old(&self, partition: PartitionId, active: Option<MemtableId>, now: Duration) -> bool {
        let mut all = self.of.lock();
        let tending = all.entry(partition).or_default();
        let Some(active) = active else {
            tending.active = None;
            return false;
        };
        let (_, since) = match tending.active {
            Some(seen) if seen.0 == active => seen,
            _ => *tending.active.insert((active, now)),
        };
        let is_old = now.saturating_sub(since) >= FLUSH_AGE;
        if is_old {
            tending.active = None;
        }
        is_old
    }

    /// Notes the flushed sequence of a partition at `now`; once nothing was flushed for some time,
    /// returns the tables to look at: also overlapping ones, if they were not merged since.
    fn idle_state(&self, partition: PartitionId, flushed: SeqNo, now: Duration) -> IdleState {
        let mut all = self.of.lock();
        let tending = all.entry(partition).or_default();
        let (_, since) = match tending.flushed {
            Some(seen) if seen.0 == flushed => seen,
            _ => *tending.flushed.insert((flushed, now)),
        };
        if now.saturating_sub(since) < QUIET_AGE {
            return IdleState::Busy;
        }
        // Without a flush since then the same tables overlap, and a merge of them would free
        // nothing.
        if tending.settled.replace(flushed) == Some(flushed) {
            return IdleState::Settled;
        }
        IdleState::Unsettled
    }

    /// Waits for the turn to count the values of a partition.
    pub(super) fn wait_for_counting_turn(&self) -> CountingTurn<'_> {
        self.counting.lock()
    }

    /// The turn to count the values of a partition, unless another thread has it.
    fn try_counting_turn(&self) -> Option<CountingTurn<'_>> {
        self.counting.try_lock()
    }

    /// Notes that a count begins after the closing of a gap; `false` if one has begun before.
    pub(super) fn begin_count(&self, partition: PartitionId, closed_at: SeqNo) -> bool {
        let mut all = self.of.lock();
        let begun = &mut all.entry(partition).or_default().count_begun;
        let is_first = begun.is_none_or(|begun| begun < closed_at);
        if is_first {
            *begun = Some(closed_at);
        }
        is_first
    }

    /// Notes that the count after the closing of a gap has ended.
    pub(super) fn end_count(&self, partition: PartitionId, closed_at: SeqNo) {
        self.of.lock().entry(partition).or_default().count_ended = Some(closed_at);
    }

    /// Returns `true` if a count has ended that began after the closing of a gap.
    pub(super) fn has_counted(&self, partition: PartitionId, closed_at: SeqNo) -> bool {
        let all = self.of.lock();
        let ended = all.get(&partition).and_then(|tending| tending.count_ended);
        ended.is_some_and(|ended| ended >= closed_at)
    }

    /// Forgets a partition that was dropped.
    pub(super) fn forget(&self, partition: PartitionId) {
        self.of.lock().remove(&partition);
    }
}

/// The choice of the next goal of a partition, by one thread at a time. Dropped, also by a panic of
/// the store, it chose nothing.
pub(super) struct Choice<'a> {
    tending: &'a ValueTending,
    partition: PartitionId,
}

impl Choice<'_> {
    pub(super) fn set(&self, goal: Option<Goal>) -> Option<Arc<Goal>> {
        let goal = goal.map(Arc::new);
        // Not created again: a partition that was dropped meanwhile stays forgotten.
        if let Some(tending) = self.tending.of.lock().get_mut(&self.partition) {
            tending.goal.clone_from(&goal);
        }
        goal
    }
}

impl Drop for Choice<'_> {
    fn drop(&mut self) {
        if let Some(tending) = self.tending.of.lock().get_mut(&self.partition) {
            tending.is_choosing = false;
        }
    }
}

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

/// The hull of the tables in which entries may be shadowed: by a table of another level, or since a
/// snapshot was released.
fn unsettled(version: &PartitionVersion, held: &[SeqNo], overlaps: bool) -> Option<KeySpan> {
    let mut hull = None;
    for (level, table) in version.tables() {
        let meta = &table.meta;
        if meta.droppable(held) == 0 && !(overlaps && is_over_another(version, level, table)) {
            continue;
        }
        hull = Some(KeySpan::hull(hull, &meta.smallest.user, &meta.largest.user));
    }
    hull
}

impl DbInner {
    /// Returns `true` if a partition has values in its store: then a thread looks from time to time.
    pub(super) fn holds_values(&self) -> bool {
        let partitions = self.catalog.with_stores();
        partitions
            .iter()
            .any(|partition| partition.store().is_some_and(|store| store.holds_values()))
    }

    /// Does one piece of due work for large values; `false` if there is none.
    pub(super) fn tend_values(&self) -> Result<bool> {
        let now = self.background.now();
        // A test that steps manually sees everything that is due, without waiting.
        let is_threaded = self.background.mode() == BackgroundMode::Threads;
        let mut partitions = self.catalog.with_stores();
        self.values.take_turns(&mut partitions);
        for partition in partitions {
            if is_threaded && self.values.was_looked_at(partition.id, now) {
                continue;
            }
            // Before anything can fail or panic: then the next attempt begins with another partition.
            self.values.note_turn(partition.id);
            // A count reads all tables of a partition, and one runs at a time. A thread that finds
            // another one counting continues with other work; the next look counts.
            if let Some(turn) = self.values.try_counting_turn()
                && self.recount_values(&partition, &turn)?
            {
                return Ok(true);
            }
            let Some(store) = partition.store() else { continue };
            // A goal of a store may remain that a compaction of another thread has emptied. It must
            // still be given up, because `wait_idle` waits for it.
            if !store.holds_values() && self.values.goal(partition.id).is_none() {
                continue;
            }
            // The memtable first: no compaction sees a deletion that is only in memory.
            if self.flush_by_age(&partition) || self.settle_values(&partition, &**store)? {
                return Ok(true);
            }
            if self.values.goal(partition.id).is_none() {
                self.values.note_look(partition.id, now);
            }
        }
        Ok(false)
    }

    /// Seals the active memtable once it is old.
    fn flush_by_age(&self, partition: &Arc<PartitionState>) -> bool {
        let active = partition.view().active.clone();
        let with_entries = (!active.is_empty()).then_some(active.id);
        if !self.values.is_old(partition.id, with_entries, self.background.now()) {
            return false;
        }
        // Only sealed. The flush thread writes it, so that this thread holds no turn to flush.
        self.seal(&mut self.between_groups(), partition);
        true
    }

    /// Takes one step towards the goal of a partition, if it has one or should have.
    fn settle_values(
        &self,
        partition: &Arc<PartitionState>,
        store: &dyn ValueStore,
    ) -> Result<bool> {
        let mut present = self.values.goal(partition.id);
        loop {
            if let Some(goal) = &present {
                match self.jobs.pick_range(self, partition, goal.as_range())? {
                    RangeStep::Run(claimed) => {
                        let done = self.run_in_background(&claimed);
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
            let Some(choice) = self.values.choose(partition.id, present.as_ref()) else {
                return Ok(false);
            };
            let next = match &present {
                Some(_) => self.moving_goal(store, false)?,
                None => self.next_goal(partition, store)?,
            };
            present = choice.set(next);
            if present.is_none() {
                return Ok(false);
            }
        }
    }

    fn next_goal(
        &self,
        partition: &PartitionState,
        store: &dyn ValueStore,
    ) -> Result<Option<Goal>> {
        let version = partition.view().version.clone();
        let idle_state =
            self.values.idle_state(partition.id, version.flushed_through, self.background.now());
        let overlaps = idle_state == IdleState::Unsettled;
        if idle_state != IdleState::Busy
            && let Some(goal) = self.settling_goal(&version, overlaps)
        {
            return Ok(Some(goal));
        }
        self.moving_goal(store, false)
    }

    /// Gives up the goal of moving values, after a job for it failed. The same values would be copied repeatedly for
    /// it; the store names fewer of them, or names them later.
    pub(super) fn give_up(
        &self,
        partition: &PartitionState,
        store: &dyn ValueStore,
        goal: &Arc<Goal>,
        error: &Error,
    ) {
        if goal.rewrite_before.is_some()
            && let Some(choice) = self.values.choose(partition.id, Some(goal))
        {
            store.move_failed(error);
            choice.set(None);
        }
    }

    /// The goal of merging shadowed entries with those that shadow them, see [`unsettled`].
    pub(super) fn settling_goal(&self, version: &PartitionVersion, overlaps: bool) -> Option<Goal> {
        let span = unsettled(version, &self.held_snapshots(), overlaps)?;
        Some(Goal { span, through: self.commit.visible_seq(), rewrite_before: None })
    }

    /// The goal of a store for moving values, also if the application `asked`.
    pub(super) fn moving_goal(&self, store: &dyn ValueStore, asked: bool) -> Result<Option<Goal>> {
        // A store that has not applied an edit would take the garbage of that edit for live values.
        self.obsolete.tell_all_stores()?;
        // The space of files that the last goal emptied is room for the next. A failure is noted separately.
        let _ = self.remove_obsolete();
        Ok(store.moving(asked).map(|span| self.goal_of(span)))
    }

    /// The goal of rewriting all tables with keys of the span.
    pub(super) fn goal_of(&self, span: KeySpan) -> Goal {
        // After it: a job that began before may have passed values that should be moved.
        let rewrite_before = Some(self.context.numbers.allocate());
        Goal { span, through: self.commit.visible_seq(), rewrite_before }
    }

    /// Runs compactions on the calling thread until a goal is reached.
    pub(super) fn reach(&self, partition: &Arc<PartitionState>, goal: RangeGoal<'_>) -> Result<()> {
        loop {
            self.check_open()?;
            partition.check_live()?;
            match self.jobs.pick_range(self, partition, goal)? {
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
}

#[cfg(test)]
mod tests;
