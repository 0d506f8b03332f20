//! [`Metrics`]: what the server counts, and its text for Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::commands::COMMANDS;
use crate::front::count;
use crate::node::{Reader, Role};
use crate::predict::Predictor;
use crate::shared::Shared;

/// The upper ends of the buckets of latencies, in microseconds.
const BUCKETS: [u64; 10] =
    [16, 64, 256, 1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000];

/// The counts of one command.
#[derive(Debug, Default)]
struct Counts {
    errors: AtomicU64,
    micros: AtomicU64,
    /// By bucket; the last one has no upper end.
    buckets: [AtomicU64; BUCKETS.len() + 1],
}

/// The counts of a server, from its start on.
#[derive(Debug)]
pub(crate) struct Metrics {
    commands: [Counts; COMMANDS.len()],
    levels: [AtomicU64; 5],
    pub(crate) follow_failures: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            commands: std::array::from_fn(|_| Counts::default()),
            levels: Default::default(),
            follow_failures: AtomicU64::new(0),
        }
    }
}

fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Metrics {
    pub(crate) fn served(&self, level: u8) {
        count(&self.levels[usize::from(level) - 1]);
    }

    pub(crate) fn command(&self, command: usize, took: Duration, is_error: bool) {
        let counts = &self.commands[command];
        let micros = took.as_micros() as u64;
        let bucket = BUCKETS.iter().position(|end| micros <= *end).unwrap_or(BUCKETS.len());
        count(&counts.buckets[bucket]);
        counts.micros.fetch_add(micros, Ordering::Relaxed);
        if is_error {
            count(&counts.errors);
        }
    }

    pub(crate) fn command_count(&self) -> u64 {
        self.commands.iter().flat_map(|counts| &counts.buckets).map(value).sum()
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(
        out,
        "# HELP siltstone_server_{name} {help}\n# TYPE siltstone_server_{name} {kind}"
    );
}

fn line(out: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(out, "siltstone_server_{name}{labels} {value}");
}

fn one(out: &mut String, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
    head(out, name, kind, help);
    line(out, name, "", value);
}

fn levels(out: &mut String, name: &str, help: &str, levels: [u64; 5]) {
    head(out, name, "counter", help);
    for (value, level) in levels.into_iter().zip(1..) {
        line(out, name, &format!("{{level=\"{level}\"}}"), value);
    }
}

/// All metrics, in the text format of Prometheus.
pub(crate) fn text(shared: &Shared) -> String {
    let mut out = String::new();
    let metrics = &shared.metrics;
    one(
        &mut out,
        "up",
        "gauge",
        "Whether the server accepts requests.",
        u8::from(!shared.front.is_draining()),
    );
    one(
        &mut out,
        "primary",
        "gauge",
        "Whether the server is the primary.",
        u8::from(shared.node.is_primary()),
    );
    let process = std::process::id();
    one(&mut out, "process_id", "gauge", "The identifier of the process.", process);
    one(&mut out, "clients", "gauge", "Open connections.", shared.front.client_count());
    let counts = &shared.front.counts;
    let counters = [
        ("connections_total", "Connections that were accepted.", &counts.connections),
        ("refused_connections_total", "Connections above the limit.", &counts.refused),
        ("too_large_requests_total", "Requests above a limit.", &counts.too_large),
        ("idle_connections_total", "Connections that were idle for too long.", &counts.idle),
        ("slow_connections_total", "Connections that did not read their replies.", &counts.slow),
        ("follow_failures_total", "Failed syncs of a reader.", &metrics.follow_failures),
    ];
    for (name, help, counter) in counters {
        one(&mut out, name, "counter", help, value(counter));
    }
    let reads = metrics.levels.each_ref().map(value);
    levels(&mut out, "reads_total", "Reads by the level at which they were served.", reads);
    if let Some(counts) = shared.predictor.as_ref().map(Predictor::counts) {
        let help = "Reads without a level, by the level that was predicted.";
        levels(&mut out, "predictions_total", help, counts.predictions);
        let help = "Predictions that a client has corrected, by the level that was predicted.";
        levels(&mut out, "corrections_total", help, counts.corrections);
    }
    commands(&mut out, metrics);
    match &*shared.node.role() {
        Role::Primary(primary) => {
            out.push_str(&siltstone::metrics::prometheus(&primary.db.stats(), &[]));
        }
        Role::Reader(reader) => lags(&mut out, reader),
    }
    out
}

fn commands(out: &mut String, metrics: &Metrics) {
    let all = COMMANDS.iter().zip(&metrics.commands);
    let used = all.filter(|(_, counts)| counts.buckets.iter().any(|bucket| value(bucket) > 0));
    let used: Vec<_> = used.collect();
    head(out, "errors_total", "counter", "Commands that were answered with an error.");
    for (spec, counts) in &used {
        line(out, "errors_total", &format!("{{command=\"{}\"}}", spec.name), value(&counts.errors));
    }
    head(
        out,
        "command_seconds",
        "histogram",
        "Time from a request to its reply, without the sync.",
    );
    for (spec, counts) in &used {
        let name = spec.name;
        let mut sum = 0;
        for (at, bucket) in counts.buckets.iter().enumerate() {
            sum += value(bucket);
            let end =
                BUCKETS.get(at).map_or("+Inf".to_owned(), |end| (*end as f64 / 1e6).to_string());
            let labels = format!("{{command=\"{name}\",le=\"{end}\"}}");
            line(out, "command_seconds_bucket", &labels, sum);
        }
        let labels = format!("{{command=\"{name}\"}}");
        line(out, "command_seconds_sum", &labels, value(&counts.micros) as f64 / 1e6);
        line(out, "command_seconds_count", &labels, sum);
    }
}

/// The distance of each partition of a reader from the primary.
fn lags(out: &mut String, reader: &Reader) {
    let mut operations = String::new();
    let mut ages = String::new();
    for name in reader.secondary.partition_names() {
        let Ok(Some(partition)) = reader.partition(&name) else { continue };
        let lag = partition.lag();
        let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = format!("{{partition=\"{name}\"}}");
        if let Some(count) = lag.operations {
            line(&mut operations, "lag_operations", &labels, count);
        }
        if let Some(age) = lag.age {
            line(&mut ages, "lag_seconds", &labels, age.as_secs_f64());
        }
    }
    head(
        out,
        "lag_operations",
        "gauge",
        "Operations of the primary that the reader does not have yet.",
    );
    out.push_str(&operations);
    head(out, "lag_seconds", "gauge", "Time since the reader had everything.");
    out.push_str(&ages);
}
