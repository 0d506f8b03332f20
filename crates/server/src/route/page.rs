//! The page of a router for people: the nodes, with their roles, levels, lag and health.

use super::cluster::{Cluster, Described};
use super::figures::KINDS;
use crate::exposition::value;
use crate::front::Front;
use crate::page::{Page, time};

/// The page; `unready` is the reason why requests should go elsewhere.
pub(crate) fn page(front: &Front, cluster: &Cluster, unready: Option<&str>) -> String {
    let mut page = Page::new("siltstone router");
    page.verdict("ready", &unready.map(str::to_owned).into_iter().collect::<Vec<_>>());
    let version = env!("CARGO_PKG_VERSION");
    page.line(&format!("version {version}, process {}", std::process::id()));
    page.line(&format!(
        "{} clients of at most {}; strong reads by the policy {}",
        front.client_count(),
        front.limits.clients,
        cluster.options.policy
    ));
    let counts = &cluster.counts;
    page.line(&format!(
        "{} times a request waited for a node, {} requests were refused after that, {} writes have an unknown outcome",
        value(&counts.waits),
        value(&counts.refused),
        value(&counts.unknown)
    ));
    let nodes = cluster.described();
    page.heading("Nodes");
    let columns = ["node", "role", "commit", "lag in operations", "requests now", "usual time"];
    page.table(&columns, &nodes.iter().map(node).collect::<Vec<_>>());
    page.heading("Health of the databases");
    let columns = ["node", "health"];
    let rows = nodes.iter().map(|node| vec![node.address().to_owned(), node.health()]);
    page.table(&columns, &rows.collect::<Vec<_>>());
    page.heading("Requests by node and level");
    let columns: Vec<&str> =
        ["node"].into_iter().chain(KINDS).chain(["errors", "returned", "lost"]).collect();
    page.table(&columns, &nodes.iter().map(requests).collect::<Vec<_>>());
    page.line(
        "strong: the levels 1, 2 and AUTO; none: what neither reads nor writes data itself, such as EXEC and INFO",
    );
    page.into_text()
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn node(node: &Described) -> Vec<String> {
    vec![
        node.address().to_owned(),
        node.role.to_owned(),
        node.token().unwrap_or_else(unknown),
        node.lag.map_or_else(unknown, |lag| lag.to_string()),
        node.view.load.to_string(),
        time(node.view.micros as f64),
    ]
}

fn requests(node: &Described) -> Vec<String> {
    let mut row = vec![node.address().to_owned()];
    row.extend(node.node.counts.row().map(|count| count.to_string()));
    row
}
