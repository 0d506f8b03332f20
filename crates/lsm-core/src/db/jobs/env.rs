//! The calls of [`Jobs`](super::Jobs) to an open database.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::JobsEnv;
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
