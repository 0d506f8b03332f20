//! [`Metrics`]: what the server counts, and its text for Prometheus.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;

use crate::commands::COMMANDS;
use crate::exposition::{Exposition, Histogram, count, count_more, value};
use crate::front::Front;
use crate::latencies::ReadTimes;
use crate::node::{Reader, Role};
use crate::predict::Predictor;
use crate::shards::record::Record;
use crate::shared::Shared;

/// The counts of one command.
#[derive(Debug, Default)]
struct Counts {
    errors: AtomicU64,
    latencies: Histogram,
}

/// The counts of a server, from its start on.
#[derive(Debug)]
pub(crate) struct Metrics {
    commands: [Counts; COMMANDS.len()],
    levels: [AtomicU64; 5],
    pub(crate) read_times: ReadTimes,
    pub(crate) follow_failures: AtomicU64,
    /// The failure of the last sync of a reader, if it failed.
    pub(crate) follow_failure: Mutex<Option<String>>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            commands: std::array::from_fn(|_| Counts::default()),
            levels: Default::default(),
            read_times: ReadTimes::default(),
            follow_failures: AtomicU64::new(0),
            follow_failure: Mutex::new(None),
        }
    }
}

impl Metrics {
    /// Notes so many reads at a level.
    pub(crate) fn served(&self, level: u8, number: u64) {
        count_more(&self.levels[usize::from(level) - 1], number);
    }

    /// Notes a number of requests of one command that took so long together; not 0.
    pub(crate) fn command(&self, command: usize, number: u64, took: Duration, are_errors: bool) {
        let counts = &self.commands[command];
        counts.latencies.add_all(number, took);
        if are_errors {
            count_more(&counts.errors, number);
        }
    }

    /// Notes the outcome of a sync of a reader.
    pub(crate) fn followed(&self, failure: Option<String>) {
        if failure.is_some() {
            count(&self.follow_failures);
        }
        *self.follow_failure.lock() = failure;
    }

    /// The reads by level, from 1 on.
    pub(crate) fn reads(&self) -> [u64; 5] {
        self.levels.each_ref().map(value)
    }

    /// The commands that were used: name, requests, errors, mean time in microseconds.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (&'static str, u64, u64, f64)> {
        let all = COMMANDS.iter().zip(&self.commands);
        let used = all.filter(|(_, counts)| counts.latencies.count() > 0);
        used.map(|(spec, counts)| {
            let mean = counts.latencies.mean_micros();
            (spec.name, counts.latencies.count(), value(&counts.errors), mean)
        })
    }

    pub(crate) fn command_count(&self) -> u64 {
        self.commands.iter().map(|counts| counts.latencies.count()).sum()
    }
}

/// The figures of the connections of a server or a router.
pub(crate) fn connections(out: &mut Exposition, front: &Front) {
    out.one("clients", "gauge", "Open connections.", front.client_count());
    let counts = &front.counts;
    let counters = [
        ("connections_total", "Connections that were accepted.", &counts.connections),
        ("refused_connections_total", "Connections above the limit.", &counts.refused),
        ("too_large_requests_total", "Requests above a limit.", &counts.too_large),
        ("idle_connections_total", "Connections that were idle for too long.", &counts.idle),
        ("slow_connections_total", "Connections that did not read their replies.", &counts.slow),
        ("broken_values_total", "Values that could not be read to their end.", &counts.broken),
    ];
    for (name, help, counter) in counters {
        out.one(name, "counter", help, value(counter));
    }
    if let Some(tls) = &front.tls {
        tls.figures(out);
    }
}

fn levels(out: &mut Exposition, name: &str, help: &str, levels: [u64; 5]) {
    out.head(name, "counter", help);
    for (value, level) in levels.into_iter().zip(1..) {
        out.line(name, &[("level", &format!("{level}"))], value);
    }
}

/// The figures of a predictor of levels, if there is one.
pub(crate) fn predictions(out: &mut Exposition, predictor: Option<&Predictor>) {
    let Some(counts) = predictor.map(Predictor::counts) else { return };
    let help = "Reads without a level, by the level that was predicted.";
    levels(out, "predictions_total", help, counts.predictions);
    let help = "Predictions that a client has corrected, by the level that was predicted.";
    levels(out, "corrections_total", help, counts.corrections);
}

/// All metrics, in the text format of Prometheus.
pub(crate) fn text(shared: &Shared) -> String {
    let mut out = Exposition::new("siltstone_server_");
    let metrics = &shared.metrics;
    let is_up = !shared.front.is_draining();
    out.one("up", "gauge", "Whether the server accepts requests.", u8::from(is_up));
    let is_primary = u8::from(shared.node.is_primary());
    out.one("primary", "gauge", "Whether the server is the primary.", is_primary);
    let process = std::process::id();
    out.one("process_id", "gauge", "The identifier of the process.", process);
    connections(&mut out, &shared.front);
    let failures = value(&metrics.follow_failures);
    out.one("follow_failures_total", "counter", "Failed syncs of a reader.", failures);
    let reads = metrics.levels.each_ref().map(value);
    levels(&mut out, "reads_total", "Reads by the level at which they were served.", reads);
    predictions(&mut out, shared.predictor.as_ref());
    commands(&mut out, metrics);
    metrics.read_times.write(&mut out);
    if let Some(record) = shared.node.record() {
        slots(&mut out, &record);
    }
    if let Some(calls) = shared.node.place.storage_calls() {
        calls.figures(&mut out);
        shared.newest.figures(&mut out);
    }
    match &*shared.node.role() {
        Role::Primary(primary) => {
            out.append(&siltstone::metrics::prometheus(&primary.db.stats(), &[]));
            out.append(&siltstone::metrics::prometheus(&primary.db.health(), &[]));
        }
        Role::Reader(reader) => lags(&mut out, reader),
    }
    out.into_text()
}

/// The slots of a shard, by their state.
fn slots(out: &mut Exposition, record: &Record) {
    out.head("shard_slots", "gauge", "Hash slots of the shard, by their state.");
    for (state, slots) in record.states() {
        out.line("shard_slots", &[("shard", &record.name), ("state", state)], slots.len());
    }
}

fn commands(out: &mut Exposition, metrics: &Metrics) {
    let all = COMMANDS.iter().zip(&metrics.commands);
    let used: Vec<_> = all.filter(|(_, counts)| counts.latencies.count() > 0).collect();
    out.head("errors_total", "counter", "Commands that were answered with an error.");
    for (spec, counts) in &used {
        out.line("errors_total", &[("command", spec.name)], value(&counts.errors));
    }
    let help = "Time from a request to its reply, without the sync.";
    out.head("command_seconds", "histogram", help);
    for (spec, counts) in &used {
        out.histogram("command_seconds", &[("command", spec.name)], &counts.latencies);
    }
}

/// The distance of each partition of a reader from the primary.
fn lags(out: &mut Exposition, reader: &Reader) {
    let names = reader.secondary.partition_names();
    let opened = names.iter().filter_map(|name| Some((name, reader.partition(name).ok()??)));
    let lags: Vec<_> = opened.map(|(name, partition)| (name, partition.lag())).collect();
    let help = "Operations of the primary that the reader does not have yet.";
    out.head("lag_operations", "gauge", help);
    for (name, lag) in &lags {
        if let Some(count) = lag.operations {
            out.line("lag_operations", &[("partition", name)], count);
        }
    }
    out.head("lag_seconds", "gauge", "Time since the reader had everything.");
    for (name, lag) in &lags {
        if let Some(age) = lag.age {
            out.line("lag_seconds", &[("partition", name)], age.as_secs_f64());
        }
    }
}
