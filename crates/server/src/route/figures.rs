//! The figures of a router: what it counts, and its pages.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;

use super::choice::{Need, NodeRole};
use super::cluster::{Cluster, Described};
use super::page::page;
use crate::exposition::{Exposition, Histogram, count, value};
use crate::front::Front;
use crate::http::{Answer, Pages};
use crate::metrics::{connections, predictions};

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
    latencies: [Histogram; KINDS.len()],
    errors: AtomicU64,
    returned: AtomicU64,
    lost: AtomicU64,
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

    fn requests(&self) -> u64 {
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
}

/// The pages of a router.
pub(crate) struct RouterPages {
    pub(crate) front: Arc<Front>,
    pub(crate) cluster: Arc<Cluster>,
}

impl RouterPages {
    /// The reason why requests should go elsewhere.
    fn unready(&self) -> Option<&'static str> {
        if self.front.is_draining() {
            return Some("the router ends");
        }
        let is_up = self.cluster.views().iter().any(|view| view.role.is_some());
        (!is_up).then_some("no node is up")
    }
}

impl Pages for RouterPages {
    fn answer(&self, path: &str) -> Option<Answer> {
        match path {
            "/" => Some(Answer::page(page(&self.front, &self.cluster, self.unready()))),
            "/metrics" => Some(Answer::text("200 OK", text(&self.front, &self.cluster))),
            "/healthz" => Some(Answer::text("200 OK", "ok\n")),
            "/readyz" => Some(Answer::readiness(self.unready())),
            _ => None,
        }
    }
}

/// All metrics, in the text format of Prometheus.
fn text(front: &Front, cluster: &Cluster) -> String {
    let mut out = Exposition::new("siltstone_router_");
    let is_up = !front.is_draining();
    out.one("up", "gauge", "Whether the router accepts requests.", u8::from(is_up));
    connections(&mut out, front);
    cluster.dialer.figures(&mut out);
    let counts = &cluster.counts;
    let help = "Times that a request waited because no node could serve it.";
    out.one("waits_total", "counter", help, value(&counts.waits));
    let help = "Requests that were refused because no node could serve them.";
    out.one("refused_requests_total", "counter", help, value(&counts.refused));
    let help = "Writes without a reply, which were answered as UNKNOWN.";
    out.one("unknown_writes_total", "counter", help, value(&counts.unknown));
    predictions(&mut out, cluster.predictor.as_ref());
    let nodes = cluster.described();
    roles(&mut out, &nodes);
    requests(&mut out, &nodes);
    out.into_text()
}

fn roles(out: &mut Exposition, nodes: &[Described]) {
    out.head("node_up", "gauge", "Whether the node has answered the last question.");
    for node in nodes.iter().filter(|node| !node.is_leaving()) {
        let labels = [("node", node.address()), ("role", node.role)];
        out.line("node_up", &labels, u8::from(node.view.role.is_some()));
    }
    out.head("node_requests", "gauge", "Requests that the node has not answered.");
    for node in nodes {
        out.line("node_requests", &[("node", node.address())], node.view.load);
    }
    out.head("node_seconds", "gauge", "Usual time of a request.");
    for node in nodes {
        let seconds = node.view.micros as f64 / 1e6;
        out.line("node_seconds", &[("node", node.address())], seconds);
    }
    let help = "Operations of the primary that the reader does not have yet, by the last question.";
    out.head("node_lag_operations", "gauge", help);
    for node in nodes.iter().filter(|node| node.view.role == Some(NodeRole::Reader)) {
        if let Some(lag) = node.lag {
            out.line("node_lag_operations", &[("node", node.address())], lag);
        }
    }
}

/// A counter of a node.
type Counter = fn(&NodeCounts) -> &AtomicU64;

fn requests(out: &mut Exposition, nodes: &[Described]) {
    let counters: [(&str, &str, Counter); 3] = [
        ("errors_total", "Replies of the node that are errors.", |counts| &counts.errors),
        (
            "returned_requests_total",
            "Requests that the node refused or did not answer: reads go to another node.",
            |counts| &counts.returned,
        ),
        ("lost_connections_total", "Connections that ended before a reply.", |counts| &counts.lost),
    ];
    for (name, help, counter) in counters {
        out.head(name, "counter", help);
        for node in nodes {
            out.line(name, &[("node", node.address())], value(counter(&node.node.counts)));
        }
    }
    let help = "Time until the last reply of the requests that were sent to the node together.";
    out.head("request_seconds", "histogram", help);
    for node in nodes.iter().filter(|node| node.node.counts.requests() > 0) {
        for (kind, latencies) in KINDS.iter().zip(&node.node.counts.latencies) {
            if latencies.count() > 0 {
                let labels = [("node", node.address()), ("level", *kind)];
                out.histogram("request_seconds", &labels, latencies);
            }
        }
    }
}
