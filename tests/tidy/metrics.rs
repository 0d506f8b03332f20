//! Metrics: each field of the statistics and of the health is one, and the page lists each.

use std::collections::BTreeSet;

use crate::check;
use crate::source::read;

const TABLE: &str = "src/metrics.rs";
const PAGE: &str = "docs/metrics.md";
const STATISTICS: [&str; 5] = [
    "crates/lsm-core/src/stats.rs",
    "crates/tree/src/hooks/store_stats.rs",
    "crates/lsm-core/src/db/health.rs",
    "crates/lsm-core/src/db/resources.rs",
    "crates/secondary/src/stats.rs",
];
/// The fields that hold other statistics, or name them, and the one that the statistics name otherwise
/// (`read_only_because`).
const PARTS: [&str; 5] = ["partitions", "name", "levels", "value_store", "read_only"];

/// A row of the table of metrics: labels, kind, field, name, help.
fn rows(table: &str) -> Vec<[String; 5]> {
    let mut labels = String::new();
    let mut rows = Vec::new();
    for line in table.lines().map(str::trim) {
        if let Some((_, list)) = line.split_once(" [").filter(|_| line.ends_with("] => {")) {
            let list = list.trim_end_matches("] => {").replace('"', "`");
            labels = list;
        }
        let mut words = line.splitn(3, ' ');
        let kind = words.next().filter(|kind| ["Counter", "Gauge"].contains(kind));
        let (Some(kind), Some(field), Some(texts)) = (kind, words.next(), words.next()) else {
            continue;
        };
        let texts: Vec<&str> = texts.split('"').collect();
        if let ["", name, " ", help, ";"] = texts[..] {
            rows.push([&labels, &kind.to_lowercase(), field, name, help].map(str::to_owned));
        }
    }
    rows
}

/// The names of the public fields of the structs whose names end with `Stats`, `Health` or `Usage`.
fn fields(source: &str) -> BTreeSet<&str> {
    let structs = source.split("pub struct ").skip(1);
    let structs = structs.filter(|text| {
        let name = text.split(" {").next().unwrap_or_default();
        ["Stats", "Health", "Usage"].iter().any(|ending| name.ends_with(ending))
    });
    let lines = structs.flat_map(|text| text.split("\n}").next().unwrap_or_default().lines());
    lines
        .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'))
        .map(|(name, _)| name)
        .collect()
}

fn unit(name: &str) -> &str {
    let mut words = name.split('_');
    words.find(|word| ["bytes", "seconds", "ratio"].contains(word)).unwrap_or("number")
}

#[test]
fn each_field_of_the_statistics_is_a_metric() {
    let table = read(TABLE);
    let rows = rows(&table);
    // `wal_bytes.hard` is of the field `wal_bytes`.
    let listed = rows.iter().filter_map(|row| row[2].split('.').next());
    let listed: BTreeSet<&str> = listed.chain(PARTS).collect();
    let statistics = STATISTICS.map(read).concat();
    let missing = fields(&statistics).into_iter().filter(|field| !listed.contains(field));
    check(missing.map(|field| format!("{TABLE}:1: no metric of the field {field}")).collect());
}

#[test]
fn the_page_lists_each_metric() {
    let rows = rows(&read(TABLE));
    assert!(rows.len() > 40, "{rows:?}");
    let wanted: Vec<String> = rows
        .iter()
        .map(|[labels, kind, _, name, help]| {
            format!("| `siltstone_{name}` | {kind} | {} | {labels} | {help} |", unit(name))
        })
        .collect();
    let page = read(PAGE);
    let listed: Vec<&str> = page.lines().filter(|line| line.starts_with("| `siltstone_")).collect();
    let mut breaches = Vec::new();
    for row in wanted.iter().filter(|row| !listed.contains(&row.as_str())) {
        breaches.push(format!("{PAGE}:1: lacks {row}"));
    }
    for row in listed.iter().filter(|row| !wanted.iter().any(|wanted| wanted == *row)) {
        breaches.push(format!("{PAGE}:1: lists {row}"));
    }
    check(breaches);
}

#[test]
fn tables_and_fields_are_read_as_written() {
    let table =
        "    Level [\"a\", \"b\"] => {\n        Gauge bytes \"level_bytes\" \"Bytes.\";\n    }\n";
    assert_eq!(rows(table), [["`a`, `b`", "gauge", "bytes", "level_bytes", "Bytes."]]);
    let source = "pub struct LevelStats {\n    /// A.\n    pub bytes: u64,\n}\npub struct B {\n    pub c: u8,\n}";
    assert_eq!(fields(source), BTreeSet::from(["bytes"]));
    assert_eq!((unit("stall_seconds_total"), unit("lag_operations")), ("seconds", "number"));
}
