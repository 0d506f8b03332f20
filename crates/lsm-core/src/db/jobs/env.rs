//! The calls of [`Jobs`](super::Jobs) to an open database.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::JobsEnv;
use crate::clock::ClockJump;
use crate::db::DbInner;
use crate::partition::PartitionState;
use crate::types::{PartitionId, SeqNo};

impl JobsEnv for DbInner {
    fn partition(&self, id: PartitionId) -> Option<Arc<PartitionState>> {
        self.catalog.with_id(id)
    }

    fn take_changed(&self) -> BTreeSet<PartitionId> {
        self.catalog.work().take_changed()
    }

    fn has_sealed(&self) -> bool {
        self.catalog.work().has_sealed()
    }

    fn oldest_snapshot(&self) -> SeqNo {
        self.snapshots.oldest(|| self.commit.visible_seq())
    }

    fn held_snapshots(&self) -> Vec<SeqNo> {
        self.snapshots.for_job(|| self.commit.visible_seq()).registered
    }

    fn now(&self) -> Duration {
        self.background.now()
    }

    fn unix_time(&self) -> Duration {
        self.runner.calendar.unix_time()
    }
}

impl DbInner {
    /// The jump of the calendar, if a partition has entries that expire by it.
    pub(in crate::db) fn clock_jump(&self) -> Option<ClockJump> {
        let jump = self.runner.calendar.jump()?;
        let partitions = self.catalog.partitions();
        let is_awaited = partitions.iter().any(|it| it.load_hooks().ageing().is_some());
        is_awaited.then_some(jump)
    }

    /// Believes the clock as it is.
    pub(in crate::db) fn confirm_clock(&self) {
        self.runner.calendar.confirm();
        // More may be due by it.
        self.background.wake_all();
    }
}
