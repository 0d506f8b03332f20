//! The pages of a server: the page for people at `/`, `/metrics`, `/healthz` and `/readyz`.

use crate::health::Reason;
use crate::http::{Answer, Pages};
use crate::level::Token;
use crate::metrics;
use crate::node::{Primary, Reader, Role};
use crate::page::{Page, ROWS_MAX, bytes, time};
use crate::shared::Shared;

impl Pages for Shared {
    fn answer(&self, path: &str) -> Option<Answer> {
        match path {
            "/" => Some(Answer::page(page(self))),
            "/metrics" => Some(Answer::text("200 OK", metrics::text(self))),
            "/healthz" => Some(Answer::text("200 OK", "ok\n")),
            "/readyz" => Some(Answer::readiness(unready(self))),
            _ => None,
        }
    }
}

/// The reason why requests should go elsewhere.
fn unready(shared: &Shared) -> Option<&'static str> {
    if shared.front.is_draining() {
        return Some("the server ends");
    }
    match &*shared.node.role() {
        Role::Primary(primary) if primary.is_fenced() => {
            Some("another primary has taken the database over")
        }
        Role::Primary(_) | Role::Reader(_) => None,
    }
}

/// The page for people.
fn page(shared: &Shared) -> String {
    let name = if shared.node.is_primary() { "primary" } else { "reader" };
    let mut page = Page::new(&format!("siltstone {name} at {}", shared.address));
    page.verdict("ready", &unready(shared).map(str::to_owned).into_iter().collect::<Vec<_>>());
    let version = env!("CARGO_PKG_VERSION");
    let token = Token(shared.node.latest());
    page.line(&format!("version {version}, process {}, commit {token}", std::process::id()));
    let clients = shared.front.client_count();
    let most = shared.options.limits.clients;
    page.line(&format!("{clients} clients of at most {most}"));
    page.heading("Health of the database");
    let reasons: Vec<String> = shared.health().iter().map(Reason::to_string).collect();
    page.verdict("healthy", &reasons);
    page.heading("Reads by level");
    let levels = shared.metrics.reads().into_iter().zip(1..);
    let rows: Vec<Vec<String>> =
        levels.map(|(count, level)| vec![format!("{level}"), count.to_string()]).collect();
    page.table(&["level", "reads"], &rows);
    page.heading("Times of reads");
    let rows = shared.metrics.read_times.rows().into_iter().map(|row| {
        let partition = if row.partition.is_empty() { "all others" } else { &*row.partition };
        let level = row.level.to_string();
        vec![partition.to_owned(), level, row.count.to_string(), time(row.mean_micros)]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    page.table(&["partition", "level", "reads", "mean time"], &rows);
    page.heading("Commands");
    let rows: Vec<Vec<String>> = shared
        .metrics
        .commands()
        .map(|(name, count, errors, micros)| {
            vec![name.to_owned(), count.to_string(), errors.to_string(), time(micros)]
        })
        .collect();
    page.table(&["command", "requests", "errors", "mean time"], &rows);
    if let Some(record) = shared.node.record() {
        page.heading(&format!("Slots of shard {}", record.name));
        let rows = record.states().map(|(state, slots)| {
            vec![state.to_owned(), slots.len().to_string(), slots.to_string()]
        });
        page.table(&["state", "slots", "ranges"], &rows);
    }
    if let Some(calls) = shared.node.place.storage_calls() {
        page.heading("Requests to the bucket");
        page.table(&["kind", "requests", "price on S3 Standard"], &calls.cells());
    }
    page.heading("Partitions");
    match &*shared.node.role() {
        Role::Primary(primary) => of_primary(&mut page, primary),
        Role::Reader(reader) => of_reader(&mut page, reader),
    }
    page.into_text()
}

fn of_primary(page: &mut Page, primary: &Primary) {
    let stats = primary.db.stats();
    let rows = stats.partitions.iter().map(|partition| {
        let tables: u64 = partition.levels.iter().map(|level| level.table_count).sum();
        let size: u64 = partition.levels.iter().map(|level| level.bytes).sum();
        let memory = bytes(partition.memtable_bytes);
        vec![partition.name.clone(), tables.to_string(), bytes(size), memory]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    page.table(&["partition", "tables", "size", "memtables"], &rows);
}

fn of_reader(page: &mut Page, reader: &Reader) {
    let names = reader.secondary.partition_names();
    let rows = names.iter().enumerate().map(|(at, name)| {
        // Those beyond are counted, and not opened.
        let opened = if at < ROWS_MAX { reader.partition(name).ok().flatten() } else { None };
        let lag = opened.map(|partition| partition.lag());
        let operations = lag.as_ref().and_then(|lag| lag.operations);
        let age = lag.and_then(|lag| lag.age);
        let operations = operations.map_or("unknown".to_owned(), |it| it.to_string());
        let age = age.map_or("unknown".to_owned(), |it| time(it.as_secs_f64() * 1e6));
        vec![name.clone(), operations, age]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    page.table(&["partition", "lag in operations", "lag in time"], &rows);
}
