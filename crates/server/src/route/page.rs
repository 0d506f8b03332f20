//! The page of a router for people: the nodes, with their roles, levels, lag and health.

use super::backends::Backends;
use super::cluster::Described;
use super::counts::KINDS;
use super::shards::Shards;
use crate::front::Front;
use crate::page::{Page, time};

/// The page; `unready` is the reason why requests should go elsewhere.
pub(crate) fn page(front: &Front, backends: &Backends, unready: Option<&str>) -> String {
    let mut page = Page::new("siltstone router");
    page.verdict("ready", &unready.map(str::to_owned).into_iter().collect::<Vec<_>>());
    let version = env!("CARGO_PKG_VERSION");
    page.line(&format!("version {version}, process {}", std::process::id()));
    page.line(&format!(
        "{} clients of at most {}; strong reads by the policy {}",
        front.client_count(),
        front.limits.clients,
        backends.options().policy
    ));
    page.line(&format!(
        "{} times a request waited for a node, {} requests were refused after that, {} writes have an unknown outcome",
        backends.sum(|counts| &counts.waits),
        backends.sum(|counts| &counts.refused),
        backends.sum(|counts| &counts.unknown)
    ));
    if let Some(shards) = backends.shards() {
        shards_table(&mut page, shards);
    }
    let nodes = backends.described();
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

/// The shards, with their slots.
fn shards_table(page: &mut Page, shards: &Shards) {
    let map = shards.map();
    page.heading("Shards");
    page.line(&format!("map {}; hash slots 0 to 16383", map.number()));
    if let Some(moving) = &map.moving {
        page.line(&format!(
            "slots {} are on their way from {} to {}: {}",
            moving.slots,
            map.shards()[moving.from].name,
            map.shards()[moving.to].name,
            moving.step.name()
        ));
    }
    let rows = map.shards().iter().enumerate().map(|(place, shard)| {
        let slots = map.slots_of(place);
        vec![shard.name.clone(), slots.len().to_string(), slots.to_string(), shard.nodes.join(", ")]
    });
    page.table(&["shard", "slots", "ranges", "nodes"], &rows.collect::<Vec<_>>());
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
