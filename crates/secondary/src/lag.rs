//! [`Lag`]: the distance of a partition from its primary, and the times from which its age is
//! computed.

use std::collections::HashMap;
use std::time::Duration;

use lsm_core::follow::FollowedPartition;
use lsm_core::types::PartitionId;

/// The distance of a partition from its primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// Operations of the primary, over all partitions, since the newest visible operation; 0 if none of
    /// them belongs to this partition. `None` without a primary on this machine.
    pub operations: Option<u64>,
    /// Bytes of the primary's log after the place up to which the partition is complete here,
    /// including those of other partitions; 0 if none belongs to this partition. `None` without a
    /// primary on this machine.
    pub bytes: Option<u64>,
    /// Time since the begin of the last catch-up that found the partition complete. `None` before the
    /// first.
    pub age: Option<Duration>,
}

/// The begin of the last look that found a partition complete.
#[derive(Default)]
pub(crate) struct CompleteAt {
    /// All that have a log.
    pub(crate) logged: Option<Duration>,
    pub(crate) partitions: HashMap<PartitionId, Duration>,
}

impl CompleteAt {
    /// The time of the last look that found this partition complete, by itself or with all.
    pub(crate) fn of(&self, followed: &FollowedPartition) -> Option<Duration> {
        // A sync of all partitions does not cover one without a log, whose newest operations may be
        // in the memory of the primary alone.
        let with_all = self.logged.filter(|_| followed.is_logged());
        with_all.max(self.partitions.get(&followed.id()).copied())
    }
}

/// Returns whether `lag` is known and within `bound`. Every lag is within a missing bound.
pub(crate) fn is_within<T: PartialOrd>(lag: Option<T>, bound: Option<T>) -> bool {
    match (lag, bound) {
        (_, None) => true,
        (Some(lag), Some(bound)) => lag <= bound,
        (None, Some(_)) => false,
    }
}
