//! [`DbJobsEnv`]: the parts of an open database that its jobs read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::JobsEnv;
use crate::db::calendar::Calendar;
use crate::db::catalog::Catalog;
use crate::db::commit::CommitPath;
use crate::partition::PartitionState;
use crate::snapshot::Snapshots;
use crate::types::{PartitionId, SeqNo};

/// The parts of an open database that its jobs read.
pub(in crate::db) struct DbJobsEnv {
    catalog: Arc<Catalog>,
    snapshots: Arc<Snapshots>,
    commit: Arc<CommitPath>,
    calendar: Arc<Calendar>,
}

impl DbJobsEnv {
    pub(in crate::db) fn of(
        catalog: &Arc<Catalog>,
        snapshots: &Arc<Snapshots>,
        commit: &Arc<CommitPath>,
        calendar: &Arc<Calendar>,
    ) -> DbJobsEnv {
        DbJobsEnv {
            catalog: catalog.clone(),
            snapshots: snapshots.clone(),
            commit: commit.clone(),
            calendar: calendar.clone(),
        }
    }
}

impl JobsEnv for DbJobsEnv {
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
        self.calendar.now()
    }

    fn unix_time(&self) -> Duration {
        self.calendar.unix_time()
    }
}
