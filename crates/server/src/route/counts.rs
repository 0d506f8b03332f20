//! The counts of a router: of each node, and over all of them.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;

use super::choice::Need;
use crate::exposition::{Histogram, count, value};

/// The kinds of requests: by the level that decides about their node.
pub(super) const KINDS: [&str; 6] = ["write", "strong", "3", "4", "5", "none"];

/// The kind of a request with this need; those that neither read nor write data themselves, such as `EXEC`, have none.
fn kind_of(need: Option<Need>) -> usize {
    match need {
        Some(Need::Write) => 0,
        Some(Need::Strong) => 1,
        Some(Need::Session(_)) => 2,
        Some(Need::Prefix) => 3,
        Some(Need::Weak) => 4,
        None => 5,
    }
}

/// The counts of one node.
#[derive(Debug, Default)]
pub(crate) struct NodeCounts {
    /// By kind.
    pub(super) latencies: [Histogram; KINDS.len()],
    pub(super) errors: AtomicU64,
    pub(super) returned: AtomicU64,
    pub(super) lost: AtomicU64,
}

impl NodeCounts {
    /// Notes the replies to requests that were sent together and took so long.
    pub(crate) fn answered(&self, needs: &[Option<Need>], replies: &[Bytes], took: Duration) {
        for (need, reply) in needs.iter().zip(replies) {
            self.latencies[kind_of(*need)].add(took);
            if reply.starts_with(b"-") {
                count(&self.errors);
            }
        }
    }

    /// Notes a request that has to be tried again, or answered without the node.
    pub(crate) fn returned(&self) {
        count(&self.returned);
    }

    /// Notes a connection that ended before its replies.
    pub(crate) fn lost(&self) {
        count(&self.lost);
    }

    /// Requests by kind, errors, returned requests and lost connections.
    pub(super) fn row(&self) -> impl Iterator<Item = u64> {
        let others = [&self.errors, &self.returned, &self.lost].map(value);
        self.latencies.iter().map(Histogram::count).chain(others)
    }

    pub(super) fn requests(&self) -> u64 {
        self.latencies.iter().map(Histogram::count).sum()
    }
}

/// The counts of a router over all nodes.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests that waited for a node, and those that were refused after that.
    pub(crate) waits: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Writes without a reply.
    pub(crate) unknown: AtomicU64,
    /// Long values that were read from several nodes, and parts that a node refused.
    pub(crate) parallel_reads: AtomicU64,
    pub(crate) refused_parts: AtomicU64,
}
