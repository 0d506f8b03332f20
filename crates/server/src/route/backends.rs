//! [`Backends`]: the nodes of a router, of one database or of several shards.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::cluster::{Cluster, ClusterOptions, Described};
use super::counts::Counts;
use super::shards::Shards;
use crate::exposition::value;

/// The nodes of a router.
#[derive(Clone)]
pub(super) enum Backends {
    Cluster(Arc<Cluster>),
    Shards(Arc<Shards>),
}

impl Backends {
    /// The nodes, of each shard if there are several.
    pub(super) fn clusters(&self) -> Vec<Arc<Cluster>> {
        match self {
            Backends::Cluster(cluster) => vec![cluster.clone()],
            Backends::Shards(shards) => shards.known().clusters.clone(),
        }
    }

    pub(super) fn options(&self) -> &ClusterOptions {
        match self {
            Backends::Cluster(cluster) => &cluster.options,
            Backends::Shards(shards) => &shards.options,
        }
    }

    pub(super) fn shards(&self) -> Option<&Shards> {
        match self {
            Backends::Cluster(_) => None,
            Backends::Shards(shards) => Some(shards),
        }
    }

    /// All nodes with what is known about them.
    pub(super) fn described(&self) -> Vec<Described> {
        self.clusters().iter().flat_map(|cluster| cluster.described()).collect()
    }

    /// The sum of a count.
    pub(super) fn sum(&self, count: fn(&Counts) -> &AtomicU64) -> u64 {
        self.clusters().iter().map(|cluster| value(count(&cluster.counts))).sum()
    }
}
