//! The figures of a router: what it counts, and its pages.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::backends::Backends;
use super::choice::NodeRole;
use super::cluster::Described;
use super::counts::{KINDS, NodeCounts};
use super::page::page;
use super::shards::Shards;
use crate::exposition::{Exposition, value};
use crate::front::Front;
use crate::http::{Answer, Pages};
use crate::metrics::{connections, predictions};

/// The pages of a router.
pub(crate) struct RouterPages {
    pub(crate) front: Arc<Front>,
    pub(crate) nodes: Backends,
}

impl RouterPages {
    /// The reason why requests should go elsewhere.
    fn unready(&self) -> Option<&'static str> {
        if self.front.is_draining() {
            return Some("the router ends");
        }
        let clusters = self.nodes.clusters();
        let is_up = clusters.iter().all(|it| it.views().iter().any(|view| view.role.is_some()));
        let text = if clusters.len() > 1 { "no node of a shard is up" } else { "no node is up" };
        (!is_up).then_some(text)
    }
}

impl Pages for RouterPages {
    fn answer(&self, path: &str) -> Option<Answer> {
        match path {
            "/" => Some(Answer::page(page(&self.front, &self.nodes, self.unready()))),
            "/metrics" => Some(Answer::text("200 OK", text(&self.front, &self.nodes))),
            "/healthz" => Some(Answer::text("200 OK", "ok\n")),
            "/readyz" => Some(Answer::readiness(self.unready())),
            _ => None,
        }
    }
}

/// All metrics, in the text format of Prometheus.
fn text(front: &Front, backends: &Backends) -> String {
    let mut out = Exposition::new("siltstone_router_");
    let is_up = !front.is_draining();
    out.one("up", "gauge", "Whether the router accepts requests.", u8::from(is_up));
    connections(&mut out, front);
    backends.clusters()[0].dialer.figures(&mut out);
    let help = "Times that a request waited because no node could serve it.";
    out.one("waits_total", "counter", help, backends.sum(|counts| &counts.waits));
    let help = "Requests that were refused because no node could serve them.";
    out.one("refused_requests_total", "counter", help, backends.sum(|counts| &counts.refused));
    let help = "Writes without a reply, which were answered as UNKNOWN.";
    out.one("unknown_writes_total", "counter", help, backends.sum(|counts| &counts.unknown));
    let help = "Long values that were read from several nodes at once.";
    out.one("parallel_reads_total", "counter", help, backends.sum(|it| &it.parallel_reads));
    let help = "Parts of long values that a node refused, mostly because it has another version.";
    out.one("refused_parts_total", "counter", help, backends.sum(|it| &it.refused_parts));
    match backends {
        Backends::Cluster(cluster) => predictions(&mut out, cluster.predictor.as_ref()),
        Backends::Shards(shards) => slots(&mut out, shards),
    }
    let nodes = backends.described();
    roles(&mut out, &nodes);
    requests(&mut out, &nodes);
    out.into_text()
}

/// The map of a service of shards.
fn slots(out: &mut Exposition, shards: &Shards) {
    let map = shards.map();
    out.one("map_number", "gauge", "Number of the map of shards.", map.number());
    let moving = map.moving.as_ref().map_or(0, |moving| moving.slots.len());
    out.one("moving_slots", "gauge", "Slots that are on their way to another shard.", moving);
    let help = "Requests that a shard refused because their slots were elsewhere, each time.";
    out.one("moved_requests_total", "counter", help, value(&shards.moved));
    let help = "Looks for a newer map that failed: the router keeps the one that it has.";
    out.one("failed_map_looks_total", "counter", help, value(&shards.failed_looks));
    out.head("shard_slots", "gauge", "Slots of the shard.");
    for (place, shard) in map.shards().iter().enumerate() {
        out.line("shard_slots", &[("shard", &shard.name)], map.slots_of(place).len());
    }
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
    for node in nodes.iter().filter(|node| node.view.role.is_some_and(NodeRole::is_reader)) {
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
