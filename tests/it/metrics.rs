//! Metrics: the text is in the format of Prometheus, and the facade gets the same figures.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit,
};
use siltstone::large_values::LargeValueOptions;
use siltstone::metrics::{MetricKind, all, prometheus, publish};
use siltstone::secondary::{SecondaryStats, Target};
use siltstone::{CompactionStyle, Db, PartitionOptions, ResourceOptions, Resources};

const LABELS: [(&str, &str); 1] = [("db", "a \"b\"")];

/// A sample: its name with the labels in order, and its value.
type Samples = BTreeMap<String, f64>;

fn is_name(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

/// Takes the labels of a sample, `{a="b"}` or nothing. Returns them and the rest.
fn labels(text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let Some(mut rest) = text.strip_prefix('{') else { return Some((BTreeMap::new(), text)) };
    let mut labels = BTreeMap::new();
    loop {
        let (name, after) = rest.split_once("=\"")?;
        let mut content = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => content.push(match chars.next()?.1 {
                    'n' => '\n',
                    c @ ('"' | '\\') => c,
                    _ => return None,
                }),
                (_, '\n') => return None,
                (_, c) => content.push(c),
            }
        };
        if !is_name(name) || labels.insert(name.to_owned(), content).is_some() {
            return None;
        }
        rest = &after[end + 1..];
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        rest = rest.strip_prefix(',')?;
    }
}

/// Reads the text format of Prometheus, version 0.0.4. The types are those that the text states.
fn parse(text: &str) -> Result<(Samples, BTreeMap<String, String>), String> {
    let mut samples = Samples::new();
    let mut types: BTreeMap<String, String> = BTreeMap::new();
    let mut helped = BTreeSet::new();
    let mut current = String::new();
    if !text.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }
    for line in text.lines() {
        let wrong = Err(line.to_owned());
        if let Some(help) = line.strip_prefix("# HELP ") {
            let Some((name, text)) = help.split_once(' ') else { return wrong };
            name.clone_into(&mut current);
            if !helped.insert(current.clone()) || text.is_empty() {
                return wrong;
            }
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = kind.split_once(' ') else { return wrong };
            let is_known = ["counter", "gauge"].contains(&kind);
            if name != current || !is_known || types.insert(name.into(), kind.into()).is_some() {
                return wrong;
            }
        } else {
            let end = line.find(['{', ' ']).unwrap_or(line.len());
            let name = &line[..end];
            // All samples of a metric follow its two lines.
            if !is_name(name) || name != current || !types.contains_key(name) {
                return wrong;
            }
            let Some((labels, value)) = labels(&line[end..]) else { return wrong };
            let value = value.strip_prefix(' ').and_then(|value| value.parse::<f64>().ok());
            let Some(value) = value.filter(|value| !value.is_nan()) else { return wrong };
            if samples.insert(format!("{name}{labels:?}"), value).is_some() {
                return wrong;
            }
        }
    }
    Ok((samples, types))
}

/// A recorder that keeps everything.
#[derive(Default)]
struct Kept {
    figures: Mutex<BTreeMap<String, Arc<Cell>>>,
    described: Mutex<BTreeMap<String, String>>,
}

#[derive(Default)]
struct Cell(AtomicU64);

impl CounterFn for Cell {
    fn increment(&self, _: u64) {
        unreachable!("counters are absolute");
    }

    fn absolute(&self, value: u64) {
        self.0.store((value as f64).to_bits(), Ordering::Relaxed);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, _: f64) {
        unreachable!("gauges are set");
    }

    fn decrement(&self, _: f64) {
        unreachable!("gauges are set");
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

impl Kept {
    fn cell(&self, key: &Key) -> Arc<Cell> {
        let labels: BTreeMap<String, String> =
            key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        let name = format!("{}{labels:?}", key.name());
        self.figures.lock().unwrap().entry(name).or_default().clone()
    }

    fn describe(&self, kind: &str, name: KeyName) {
        self.described.lock().unwrap().insert(name.as_str().to_owned(), kind.to_owned());
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe("counter", name);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe("gauge", name);
    }

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// A database with a partition whose name needs escapes, and one with large values.
fn filled(path: &std::path::Path) -> Db {
    let db = Db::open(path).unwrap();
    let odd = db.partition("odd \"name\" \\ of\ntwo lines").unwrap();
    let options = PartitionOptions::new().large_values(LargeValueOptions::new());
    let large = db.partition_with("large", options).unwrap();
    for n in 0..100_u32 {
        odd.put(n.to_be_bytes(), [7; 100]).unwrap();
    }
    large.put("large", vec![1; 1 << 20]).unwrap();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    db
}

/// The sample of `name` with these labels and that of the database.
fn value_of(samples: &Samples, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels: BTreeMap<_, _> = labels.iter().chain(&LABELS).copied().collect();
    samples.get(&format!("{name}{labels:?}")).copied()
}

/// The figures of a secondary that has looked at its primary.
fn followed(path: &std::path::Path) -> SecondaryStats {
    let secondary = Db::secondary(path).unwrap();
    secondary.sync(Target::Latest).unwrap();
    secondary.stats()
}

#[test]
fn a_lag_that_is_not_known_has_no_sample() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).close().unwrap();
    let samples = parse(&prometheus(&followed(dir.path()), &LABELS)).unwrap().0;
    let in_large = [("partition", "large")];
    let lag = "siltstone_secondary_partition_lag_operations";
    assert_eq!(value_of(&samples, lag, &in_large), None);
    assert_eq!(value_of(&samples, "siltstone_secondary_live_primary", &[]), Some(0.0));
    assert!(value_of(&samples, "siltstone_secondary_partition_seq", &in_large) > Some(100.0));
}

#[test]
fn metrics_are_valid_text_of_prometheus_and_the_facade_gets_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let db = filled(dir.path());
    let stats = db.stats();
    let health = db.health();
    let usage = Resources::new(ResourceOptions::new()).unwrap().usage();
    let followed = followed(dir.path());
    let own = prometheus(&stats, &LABELS) + &prometheus(&health, &LABELS);
    let text = own + &prometheus(&usage, &LABELS) + &prometheus(&followed, &LABELS);
    let (samples, types) = parse(&text).unwrap_or_else(|line| panic!("{line}\n{text}"));

    let names: BTreeSet<&str> = all().iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), all().len());
    assert!(types.keys().map(String::as_str).eq(names));
    for metric in all() {
        let is_counter = metric.kind == MetricKind::Counter;
        assert_eq!(metric.name.ends_with("_total"), is_counter, "{}", metric.name);
        assert!(metric.help.ends_with('.') && !metric.help.contains(['\\', '\n']));
    }
    let odd = "odd \"name\" \\ of\ntwo lines";
    assert_eq!(value_of(&samples, "siltstone_batches_total", &[]), Some(stats.batch_count as f64));
    assert_eq!(value_of(&samples, "siltstone_disk_bytes", &[]), Some(stats.disk_bytes as f64));
    let entries: f64 = (0..stats.partitions[0].levels.len())
        .map(|level| {
            let labels = [("partition", odd), ("level", &level.to_string())];
            value_of(&samples, "siltstone_level_entries", &labels).expect("each level has a sample")
        })
        .sum();
    assert_eq!(entries as u64, 100);
    assert!(
        value_of(&samples, "siltstone_values_live_bytes", &[("partition", "large")]).unwrap()
            >= 1_048_576.0
    );
    assert_eq!(value_of(&samples, "siltstone_values_live_bytes", &[("partition", odd)]), None);
    assert_eq!(value_of(&samples, "siltstone_read_only", &[]), Some(0.0));
    assert_eq!(value_of(&samples, "siltstone_resources_databases", &[]), Some(0.0));
    let lag = "siltstone_secondary_partition_lag_operations";
    assert_eq!(value_of(&samples, lag, &[("partition", "large")]), Some(0.0));

    let kept = Kept::default();
    metrics::with_local_recorder(&kept, || {
        publish(&stats, &LABELS);
        publish(&health, &LABELS);
        publish(&usage, &LABELS);
        publish(&followed, &LABELS);
    });
    let figures = kept.figures.into_inner().unwrap();
    let published: Samples = figures
        .iter()
        .map(|(name, cell)| (name.clone(), f64::from_bits(cell.0.load(Ordering::Relaxed))))
        .collect();
    // The facade's counters are whole numbers.
    let whole = samples.iter().map(|(name, value)| match name.contains("_seconds_total") {
        true => (name.clone(), value.trunc()),
        false => (name.clone(), *value),
    });
    assert_eq!(published, whole.collect());
    assert_eq!(kept.described.into_inner().unwrap(), types);
    db.close().unwrap();
}

/// The samples of the health of `db`.
fn health_of(db: &Db) -> Samples {
    parse(&prometheus(&db.health(), &LABELS)).unwrap().0
}

#[test]
fn the_health_is_a_metric_for_each_reason_and_limit() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path()).unwrap();
    db.partition("leveled").unwrap().put("a", "1").unwrap();
    let style = CompactionStyle::Fifo { bytes_max: 1 << 30, seconds_max: u64::MAX };
    db.partition_with("fifo", PartitionOptions::new().compaction_style(style)).unwrap();
    let samples = health_of(&db);
    let reasons = ["files_deleted", "writes_refused", "commit_cursor_failing", "storage_failing"];
    for reason in reasons.into_iter().chain(["stalled_partitions", "oldest_snapshot_seconds"]) {
        let name = format!("siltstone_{reason}");
        assert_eq!(value_of(&samples, &name, &[]), Some(0.0), "{reason}");
    }
    assert_eq!(value_of(&samples, "siltstone_healthy", &[]), Some(1.0));
    let limit = "siltstone_partition_level0_tables_max";
    let health = db.health();
    let leveled = health.partitions.iter().find(|it| it.name == "leveled").unwrap();
    let tables_max = leveled.level0_tables.hard as f64;
    assert_eq!(value_of(&samples, limit, &[("partition", "leveled")]), Some(tables_max));
    assert_eq!(value_of(&samples, limit, &[("partition", "fifo")]), Some(f64::INFINITY));

    let snapshot = db.snapshot();
    assert!(value_of(&health_of(&db), "siltstone_oldest_snapshot_seconds", &[]).unwrap() > 0.0);
    drop(snapshot);
    std::fs::remove_dir_all(dir.path()).unwrap();
    let samples = health_of(&db);
    assert_eq!(value_of(&samples, "siltstone_files_deleted", &[]), Some(1.0));
    assert_eq!(value_of(&samples, "siltstone_healthy", &[]), Some(0.0));
}

#[test]
fn text_that_is_not_of_prometheus_is_refused() {
    let good = "# HELP a_total A.\n# TYPE a_total counter\na_total{b=\"\\\\\\\"\\n\"} 1\n";
    assert!(parse(good).is_ok());
    for wrong in [
        "a 1\n",
        "# HELP a A.\na 1\n",
        "# HELP a A.\n# TYPE a gauge\na 1\na 2\n",
        "# HELP a A.\n# TYPE a gauge\nb 1\n",
        "# HELP a A.\n# TYPE a gauge\na{b=\"c} 1\n",
        "# HELP a A.\n# TYPE a gauge\na{b=\"c\",b=\"d\"} 1\n",
        "# HELP a A.\n# TYPE a gauge\na x\n",
        "# HELP a A.\n# TYPE a gauge\na 1",
        "# HELP a A.\n# TYPE a gauge\na 1\n# HELP a A.\n",
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}
