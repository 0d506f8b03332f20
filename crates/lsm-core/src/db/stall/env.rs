//! The calls of [`Stall`](super::Stall) to an open database, and the changes that it is notified of.

use std::sync::Arc;
use std::time::Duration;

use super::{SEALED_HARD, SEALED_SOFT, StallCause, StallEnv};
use crate::db::errors::Reason;
use crate::db::events::in_listener;
use crate::db::health::{Health, gauge};
use crate::db::{BackgroundMode, DbInner};
use crate::error::{Error, Result};
use crate::hooks::Event;
use crate::partition::PartitionState;
use crate::stats::Counters;

impl StallEnv for DbInner {
    fn partitions(&self) -> Vec<Arc<PartitionState>> {
        self.catalog.partitions()
    }

    fn now(&self) -> Duration {
        self.background.now()
    }

    fn check_open(&self) -> Result<()> {
        self.check_open()
    }

    fn obstacle(&self, partition: &PartitionState, cause: StallCause) -> Option<Error> {
        match cause {
            // Every flush of any partition lowers the sum, so any failing one is an obstacle.
            StallCause::Sealed => self.background.failure_of(Reason::Flush),
            StallCause::Level0 | StallCause::Debt => self.jobs.failure_of(partition.id),
        }
    }

    fn is_stepped(&self) -> bool {
        self.background.mode() == BackgroundMode::Stepped
    }

    fn step(&self) -> Result<bool> {
        self.background.step(self)
    }

    fn is_in_listener(&self) -> bool {
        in_listener()
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

impl DbInner {
    /// Delays writers by the memory of memtables that were sealed, and requests their flush.
    pub(in crate::db) fn sealed<'a>(&self, partitions: impl Iterator<Item = &'a PartitionState>) {
        self.stall.update(self, partitions);
        self.background.wake_all();
    }

    /// Computes the pressures again, after a partition installed tables or was dropped.
    pub(in crate::db) fn update_pressure(&self, changed: &PartitionState) {
        self.stall.update(self, std::iter::once(changed));
    }

    /// The part of the health of the database that background work and stalls determine.
    pub(in crate::db) fn background_health(&self, partitions: &[Arc<PartitionState>]) -> Health {
        let sealed = self.stall.sealed_bytes();
        Health {
            stalls: self.stall.health(partitions, self.background.now()),
            background_errors: self.background.failures(),
            damage: self.jobs.damage().map(|error| error.to_string()),
            listener_panic: self.events.panic().map(|error| error.to_string()),
            sealed_memtable_bytes: gauge(sealed, self.stall.half_buffer, SEALED_SOFT, SEALED_HARD),
            ..Health::default()
        }
    }
}
