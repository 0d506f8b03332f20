//! [`Retention`]: the part of a bucket that is kept, by its age and by leases. All times are those of the store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use siltstone::Result;

use crate::bucket::Bucket;
use crate::format::number_of_base;
use crate::lease::{BucketLease, FoundLease};

/// The bases and leases of a bucket.
pub(crate) struct Retention {
    /// The bases with the times of their puts, oldest first.
    pub(crate) bases: Vec<(u64, Duration)>,
    /// Those that count: all, before [`Retention::expire`].
    pub(crate) leases: Vec<FoundLease>,
}

impl Retention {
    pub(crate) fn read(bucket: &Bucket) -> Result<Retention> {
        Ok(Retention { bases: Retention::read_bases(bucket)?, leases: BucketLease::list(bucket)? })
    }

    pub(crate) fn read_bases(bucket: &Bucket) -> Result<Vec<(u64, Duration)>> {
        let bases = bucket.list("base")?.objects;
        let bases = bases.iter().filter_map(|it| Some((number_of_base(&it.name)?, it.modified)));
        Ok(bases.collect())
    }

    /// The last time at which something was put: the clock of the store is at it, or after it.
    pub(crate) fn last_put(&self) -> Duration {
        let bases = self.bases.iter().map(|(_, modified)| *modified);
        bases.chain(self.leases.iter().map(|it| it.renewed)).max().unwrap_or_default()
    }

    /// The newest base that is at least `age` old: with it each state of that time can be made.
    pub(crate) fn base_of_age(&self, now: Duration, age: Duration) -> Option<u64> {
        let old = self.bases.iter().filter(|(_, modified)| now.saturating_sub(*modified) >= age);
        old.map(|(number, _)| *number).max()
    }

    /// Keeps the leases that are live, and returns the others.
    pub(crate) fn expire(
        &mut self,
        mut is_live: impl FnMut(&FoundLease) -> bool,
    ) -> Vec<FoundLease> {
        self.leases.extract_if(.., |it| !is_live(it)).collect()
    }

    /// The newest base, up to `base`, with which the states of all leases can be made.
    pub(crate) fn base_under_leases(&self, base: u64) -> Option<u64> {
        let lowest = self.leases.iter().map(|it| it.lease.number).min();
        let lowest = lowest.unwrap_or(u64::MAX).min(base);
        self.bases.iter().map(|(number, _)| *number).filter(|number| *number <= lowest).max()
    }

    /// The objects that open files of readers need.
    pub(crate) fn held(&self) -> BTreeSet<Arc<str>> {
        self.leases.iter().flat_map(|it| it.lease.objects.iter().cloned()).collect()
    }
}
