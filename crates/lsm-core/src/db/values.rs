//! Tending large values: what a partition with a value store does without being asked, so that the
//! space of values that nobody reads comes back.
//!
//! Asked by the compaction threads when no other compaction is due, and looked at again every second
//! as long as a store holds values.
//!
//! ```text
//! a memtable that rests -> flushed by age -> no flush for a while -> tables that overlap are merged
//! to the last level, where deleted and overwritten handles meet -> the store hears of each, in the
//! edit -> chunks with much garbage: the tables whose handles point there are rewritten, and the
//! values move on the way
//! ```
//!
//! Invariant: nothing here decides what may go. Compactions do, by their rules; this only has them
//! run where no size asks for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::DbInner;
use super::jobs::{JobsHost, RangeGoal, RangeStep};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::ValueStore;
use crate::partition::PartitionState;
use crate::types::{FileNo, MemtableId, PartitionId, SeqNo};
use crate::version::{PartitionVersion, Table, UserRange};

/// A memtable of a partition with large values is flushed when it is this old: a deletion in it may
/// give back gigabytes.
const FLUSH_AGE: Duration = Duration::from_secs(5);
/// Tables are merged to the last level when nothing was flushed for so long.
const QUIET_AGE: Duration = Duration::from_secs(5);

/// The keys of tables that a store wants to be rewritten, so that [`ValueStore::carry`] moves
/// values.
type Span = (Vec<u8>, Vec<u8>);

/// See the module. The lock is a leaf, held for a few lines.
#[derive(Default)]
pub(super) struct ValueTending(Mutex<HashMap<PartitionId, Tending>>);

#[derive(Default)]
struct Tending {
    /// The active memtable when it was first seen with entries, and when.
    active: Option<(MemtableId, Duration)>,
    /// The sequence through which everything is flushed, and since when that is so.
    flushed: Option<(SeqNo, Duration)>,
    /// The sequence through which everything was flushed when tables were merged last.
    settled: Option<SeqNo>,
    goal: Option<Arc<Goal>>,
}

/// Tables to be brought to the last level.
struct Goal {
    span: Span,
    through: SeqNo,
    /// As [`RangeGoal::rewrite_before`].
    rewrite_before: Option<FileNo>,
}

impl Goal {
    fn as_range(&self) -> RangeGoal<'_> {
        let range = UserRange { start: Some(&self.span.0), end: Some(&self.span.1) };
        RangeGoal { range, through: self.through, rewrite_before: self.rewrite_before }
    }
}

impl ValueTending {
    /// Returns `true` while tables are being brought to the last level.
    pub(super) fn has_goal(&self) -> bool {
        self.0.lock().values().any(|tending| tending.goal.is_some())
    }

    /// Forgets a partition that was dropped.
    pub(super) fn forget(&self, partition: PartitionId) {
        self.0.lock().remove(&partition);
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

/// The hull of the tables in which something may be shadowed: by a table of another level, or since
/// a snapshot was released.
fn unsettled(version: &PartitionVersion, held: &[SeqNo], overlaps: bool) -> Option<Span> {
    let mut hull: Option<Span> = None;
    for (level, table) in version.tables() {
        let meta = &table.meta;
        if meta.droppable(held) == 0 && !(overlaps && is_over_another(version, level, table)) {
            continue;
        }
        let smallest = meta.smallest.user.to_vec();
        let largest = meta.largest.user.to_vec();
        hull = Some(match hull {
            None => (smallest, largest),
            Some((start, end)) => (start.min(smallest), end.max(largest)),
        });
    }
    hull
}

impl DbInner {
    /// Returns `true` if a partition has values in its store: then somebody looks from time to time.
    pub(super) fn holds_values(&self) -> bool {
        let partitions = self.catalog.partitions();
        partitions
            .iter()
            .any(|partition| partition.store().is_some_and(|store| store.holds_values()))
    }

    /// Does one piece of what is due for large values; `false` if nothing is.
    pub(super) fn tend_values(&self) -> Result<bool> {
        for partition in self.catalog.partitions() {
            let Some(store) = partition.store().filter(|store| store.holds_values()) else {
                continue;
            };
            if self.flush_by_age(&partition) || self.settle_values(&partition, &**store)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Seals the active memtable once it is old.
    fn flush_by_age(&self, partition: &Arc<PartitionState>) -> bool {
        let now = self.background.now();
        let active = partition.view().active.clone();
        let mut all = self.values.0.lock();
        let tending = all.entry(partition.id).or_default();
        if active.is_empty() {
            tending.active = None;
            return false;
        }
        let (_, since) = match tending.active {
            Some(seen) if seen.0 == active.id => seen,
            _ => *tending.active.insert((active.id, now)),
        };
        if now.saturating_sub(since) < FLUSH_AGE {
            return false;
        }
        tending.active = None;
        drop(all);
        self.seal(&mut self.between_groups(), partition);
        true
    }

    /// Takes one step towards the goal of a partition, if it has one or should have.
    fn settle_values(
        &self,
        partition: &Arc<PartitionState>,
        store: &dyn ValueStore,
    ) -> Result<bool> {
        let present = self.values.0.lock().entry(partition.id).or_default().goal.clone();
        let goal = match present {
            Some(goal) => goal,
            None => match self.next_goal(partition, store) {
                None => return Ok(false),
                Some(goal) => {
                    let goal = Arc::new(goal);
                    let mut all = self.values.0.lock();
                    all.entry(partition.id).or_default().goal = Some(goal.clone());
                    goal
                }
            },
        };
        match self.jobs.pick_range(self, partition, goal.as_range())? {
            RangeStep::Run(claimed) => self.run_in_background(&claimed),
            RangeStep::Wait => Ok(false),
            RangeStep::Done | RangeStep::Stuck(_) => {
                self.values.0.lock().entry(partition.id).or_default().goal = None;
                Ok(false)
            }
        }
    }

    fn next_goal(&self, partition: &PartitionState, store: &dyn ValueStore) -> Option<Goal> {
        let now = self.background.now();
        let version = partition.view().version.clone();
        let through = self.commit.visible_seq();
        let flushed = version.flushed_through;
        let mut all = self.values.0.lock();
        let tending = all.entry(partition.id).or_default();
        let (_, since) = match tending.flushed {
            Some(seen) if seen.0 == flushed => seen,
            _ => *tending.flushed.insert((flushed, now)),
        };
        let overlaps = tending.settled != Some(flushed);
        let is_quiet = now.saturating_sub(since) >= QUIET_AGE;
        if is_quiet {
            tending.settled = Some(flushed);
        }
        drop(all);
        if is_quiet && let Some(span) = unsettled(&version, &self.held_snapshots(), overlaps) {
            return Some(Goal { span, through, rewrite_before: None });
        }
        self.moving_goal(store)
    }

    /// The goal of a store that wants values to be moved.
    fn moving_goal(&self, store: &dyn ValueStore) -> Option<Goal> {
        let span = store.moving()?;
        // Behind it: a job that began before may have passed values that are to be moved.
        let rewrite_before = Some(self.world.numbers.allocate());
        let span = (span.smallest, span.largest);
        Some(Goal { span, through: self.commit.visible_seq(), rewrite_before })
    }

    /// Brings the space of values back that nobody reads, as far as it goes now: what it does by
    /// itself after some seconds.
    pub(super) fn reclaim_values(&self, partition: &Arc<PartitionState>) -> Result<()> {
        self.flush_now(partition)?;
        let Some(store) = partition.store() else { return Ok(()) };
        let version = partition.view().version.clone();
        if let Some(span) = unsettled(&version, &self.held_snapshots(), true) {
            let goal = Goal { span, through: self.commit.visible_seq(), rewrite_before: None };
            self.reach(partition, goal.as_range())?;
        }
        while let Some(goal) = self.moving_goal(&**store) {
            self.reach(partition, goal.as_range())?;
        }
        self.finish_removing()
    }

    /// Runs compactions on the calling thread until a goal is reached.
    pub(super) fn reach(&self, partition: &Arc<PartitionState>, goal: RangeGoal<'_>) -> Result<()> {
        loop {
            self.check_open()?;
            partition.check_live()?;
            match self.jobs.pick_range(self, partition, goal)? {
                RangeStep::Done => return Ok(()),
                RangeStep::Run(claimed) => {
                    self.run_claimed(&claimed)?;
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
