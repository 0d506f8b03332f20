//! [`StallEnv`]: the calls of the stall to the rest of the database, and [`DbStallEnv`], which makes them.

use std::sync::Arc;
use std::time::Duration;

use super::{Pressure, SEALED_HARD, SEALED_SOFT, StallCause};
use crate::db::background::Background;
use crate::db::catalog::Catalog;
use crate::db::errors::Reason;
use crate::db::events::Events;
use crate::db::jobs::Jobs;
use crate::db::log::Log;
use crate::db::write_budget::BudgetShare;
use crate::error::{Error, Result};
use crate::hooks::Event;
use crate::partition::PartitionState;
use crate::stats::Counters;

/// The calls of the stall to the rest of the database.
pub(in crate::db) trait StallEnv: Send + Sync {
    /// All partitions that exist.
    fn partitions(&self) -> Vec<Arc<PartitionState>>;

    /// The time.
    fn now(&self) -> Duration;

    /// Returns an error if the database takes no writes, for any reason.
    fn check_open(&self) -> Result<()>;

    /// The failure that prevents background work from removing the `cause` that delays writes to
    /// `partition`. Unrelated failures do not count.
    fn obstacle(&self, partition: &PartitionState, cause: StallCause) -> Option<Error>;

    /// Notes the sealed memory of the database; returns the pressure of that of all that share it. Called
    /// under the stall's lock.
    fn pressure_of_all(&self, _sealed_bytes: u64) -> Pressure {
        Pressure::NONE
    }

    /// Returns `true` if threads that other databases use as well do the background work.
    fn shares_threads(&self) -> bool {
        false
    }

    /// Queues an event. Called under the stall's lock.
    fn tell(&self, event: &Event);

    /// Calls the listeners.
    fn deliver(&self);

    /// The counters of the time that writers wait.
    fn counters(&self) -> &Counters;
}

/// The parts of an open database that the stall calls.
pub(in crate::db) struct DbStallEnv {
    pub(in crate::db) catalog: Arc<Catalog>,
    pub(in crate::db) log: Arc<Log>,
    pub(in crate::db) jobs: Arc<Jobs>,
    pub(in crate::db) background: Arc<Background>,
    pub(in crate::db) events: Arc<Events>,
    pub(in crate::db) counters: Arc<Counters>,
    /// The database's share of a write buffer that several databases have in common.
    pub(in crate::db) share: Option<Arc<BudgetShare>>,
}

impl StallEnv for DbStallEnv {
    fn partitions(&self) -> Vec<Arc<PartitionState>> {
        self.catalog.partitions()
    }

    fn now(&self) -> Duration {
        self.background.now()
    }

    fn check_open(&self) -> Result<()> {
        self.log.check_open()
    }

    fn obstacle(&self, partition: &PartitionState, cause: StallCause) -> Option<Error> {
        match cause {
            // Every flush of any partition lowers the sum, so any failing one is an obstacle.
            StallCause::Sealed => self.background.failure_of(Reason::Flush),
            StallCause::Level0 | StallCause::Debt => self.jobs.failure_of(partition),
        }
    }

    fn pressure_of_all(&self, sealed_bytes: u64) -> Pressure {
        let Some(share) = &self.share else { return Pressure::NONE };
        let half = share.budget().bytes_max() / 2;
        let sealed = share.note_sealed(sealed_bytes);
        Pressure::of(StallCause::Sealed, sealed, half * SEALED_SOFT, half * SEALED_HARD)
    }

    fn shares_threads(&self) -> bool {
        self.share.is_some()
    }

    fn tell(&self, event: &Event) {
        self.events.tell(event);
    }

    fn deliver(&self) {
        self.events.deliver();
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
