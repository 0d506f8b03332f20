//! Reclaiming the space of large values on demand: the work that `values.rs` does after some seconds, on
//! the calling thread and at once.
//!
//! Invariant: goals are chosen through `values.rs`, one at a time, because a store gives up its previous
//! choice when it is asked again.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::ValueReclaimer;
use crate::error::{ErrorKind, Result};
use crate::hooks::{AttachedStore, MoveRequest};
use crate::partition::PartitionState;
use crate::read::Bounds;

/// The number of checks whether emptied chunk files are removed, if there is too little room for the next: a
/// finished background job holds them for a moment.
const LOOKS_FOR_ROOM: u32 = 8;

impl ValueReclaimer {
    /// Reclaims the space of values that no reader needs, as far as possible now: the work that the
    /// background does after some seconds. The values of the stored keys `moved` are moved, if some
    /// are named.
    pub(in crate::db) fn reclaim_values(
        &self,
        partition: &Arc<PartitionState>,
        moved: Option<Bounds>,
    ) -> Result<()> {
        // A deletion that is only in memory frees nothing.
        self.flusher.flush_now(partition)?;
        let Some(store) = partition.store() else { return Ok(()) };
        // The version is dropped before the goal runs: while it is held, values that the compaction drops
        // count as read, and would stay when this returns.
        let settling = self.settling_goal(&partition.view().version, true);
        if let Some(goal) = settling {
            self.compactor.reach(partition, goal.as_range())?;
        }
        let moved = self.move_values(partition, store, moved);
        // Waits for any thread that removes files, so that the space is free when the call returns,
        // unless a reader holds it. Also after a failure, which may concern few of the values.
        self.removal.finish().and(moved)
    }

    /// Moves the values that are due, and before them those of the keys `within`.
    ///
    /// # Errors
    /// Those of the jobs; the reason why values are not moved.
    fn move_values(
        &self,
        partition: &Arc<PartitionState>,
        store: &AttachedStore,
        mut within: Option<Bounds>,
    ) -> Result<()> {
        let mut looks = LOOKS_FOR_ROOM;
        let mut reallocates = false;
        let mut asked = true;
        // One goal after the other, alternating with the background, which may work on one.
        loop {
            let present = self.goals.goal(partition.id);
            if let Some(goal) = &present {
                let reached = self.compactor.reach(partition, goal.as_range());
                if let Err(error) = reached {
                    self.give_up(partition, store, goal, &error);
                    let fits_less = goal.moves.is_some() && !reallocates;
                    if !fits_less || error.kind() != ErrorKind::NoSpace {
                        return Err(error);
                    }
                    continue;
                }
                if let Some(moves) = goal.moves.as_ref().filter(|_| reallocates)
                    && let Some(error) = moves.end(store, None)
                {
                    return Err(error);
                }
            }
            // The space of emptied files is room for the next. A failure is returned at the end.
            let _ = self.removal.finish();
            match self.goals.choose(partition.id, present.as_ref()) {
                Some(choice) => {
                    reallocates = within.is_some();
                    let keys = within.take();
                    // After the goal for these keys, the store chooses its own goal.
                    let request = match reallocates || std::mem::take(&mut asked) {
                        true => request_of(keys.as_ref()),
                        false => MoveRequest::default(),
                    };
                    let (next, unmoved) = self.plan_moves(store, &request)?;
                    if choice.set(next).is_none() && !reallocates {
                        let Some(why) = unmoved else { return Ok(()) };
                        // Emptied files are room as soon as the last job or reader releases them.
                        let is_held = self.runner.catalog.obsolete().holds_values_of(partition.id);
                        if why.kind() != ErrorKind::NoSpace || !is_held || looks == 0 {
                            return Err(why);
                        }
                        looks -= 1;
                        self.background.wait_for_news();
                    }
                }
                // Another thread chooses. Of two choices, the second would undo the first.
                None => self.background.wait_for_news(),
            }
            self.log.check_open()?;
            partition.check_live()?;
        }
    }

    /// Reclaims until no dropped value of a partition is left, or for so long; `true` if none is.
    pub(in crate::db) fn wait_reclaimed(
        &self,
        partition: &Arc<PartitionState>,
        timeout: Duration,
    ) -> Result<bool> {
        let begun = self.background.now();
        loop {
            let reclaimed = self.reclaim_values(partition, None);
            if !self.runner.catalog.obsolete().holds_values_of(partition.id) {
                return reclaimed.map(|()| true);
            }
            let is_over = self.background.now().saturating_sub(begun) >= timeout;
            match reclaimed {
                // There may be room for the rest once the readers are done.
                Err(error) if is_over || error.kind() != ErrorKind::NoSpace => return Err(error),
                _ if is_over => return Ok(false),
                _ => {}
            }
            // A reader that ends gives no notice, so this looks again from time to time.
            self.background.wait_for_news();
        }
    }
}

/// The request of the application to move the values of these keys, or those that should be moved in any case.
fn request_of(keys: Option<&Bounds>) -> MoveRequest<'_> {
    let within = keys.map(|(lower, upper)| {
        let from = match lower {
            Bound::Included(key) | Bound::Excluded(key) => &key[..],
            Bound::Unbounded => &[],
        };
        let to = match upper {
            Bound::Included(key) | Bound::Excluded(key) => Some(&key[..]),
            Bound::Unbounded => None,
        };
        (from, to)
    });
    MoveRequest { is_asked: true, within }
}
