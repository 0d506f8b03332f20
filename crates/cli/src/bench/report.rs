//! Prints what was measured: a row as each workload ends, or one JSON object at the end.
//!
//! Latencies are in microseconds. Write amplification is bytes written to log and tables by bytes
//! of keys and values written; space amplification is bytes on the device by bytes of live records. A
//! figure that the machine cannot tell is `-`, or null in JSON.

use std::path::Path;

use serde_json::{Value, json};

use super::Args;
use super::measure::{Memory, Usage};
use super::run::{Outcome, Tally};
use crate::output::{Failure, Output};

/// Collects and prints.
pub(crate) struct Report {
    out: Output,
    is_json: bool,
    config: Value,
    rows: Vec<Value>,
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

fn per(bytes: u64, base: u64) -> Option<f64> {
    (base > 0).then(|| bytes as f64 / base as f64)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A figure with `digits` behind the point, or `-`.
fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

impl Report {
    /// Prints the head.
    pub(crate) fn new(args: &Args, folder: &Path) -> Result<Report, Failure> {
        let config = json!({
            "records": args.records,
            "ops": args.ops,
            "key_size": args.key_size,
            "value_size": args.value_size,
            "threads": args.threads,
            "durability": format!("{:?}", args.durability()).to_lowercase(),
            "cache_bytes": args.cache,
            "write_buffer_bytes": args.write_buffer,
            "compression": args.compression.map(|c| format!("{c:?}").to_lowercase()),
            "seed": args.seed,
            "folder": folder.display().to_string(),
            "version": env!("CARGO_PKG_VERSION"),
        });
        let mut out = Output::new(args.json);
        if !args.json {
            let head = format!(
                "{} records of {} + {} bytes, {} thread(s), durability {:?}, in {}\n\n\
                 {:<17} {:>10} {:>12} {:>9} {:>9} {:>9} {:>10} {:>8} {:>8} {:>6} {:>9}",
                args.records,
                args.key_size,
                args.value_size,
                args.threads,
                args.durability(),
                folder.display(),
                "workload",
                "ops",
                "ops/s",
                "p50 us",
                "p99 us",
                "p99.9 us",
                "max us",
                "cpu s",
                "rss MiB",
                "wamp",
                "disk MiB",
            );
            out.line(head, &Value::Null)?;
            out.flush()?;
        }
        Ok(Report { out, is_json: args.json, config, rows: Vec::new() })
    }

    /// Prints one workload.
    pub(crate) fn add(&mut self, outcome: &Outcome) -> Result<(), Failure> {
        self.rows.push(row_json(outcome));
        if !self.is_json {
            self.out.line(row_text(outcome), &Value::Null)?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Prints the sums. `spent` covers everything, the background work at the end included.
    pub(crate) fn finish(
        &mut self,
        spent: &Usage,
        user_bytes: u64,
        live_bytes: u64,
        disk_bytes: u64,
    ) -> Result<(), Failure> {
        let memory = Memory::now();
        let write_amplification = per(spent.written_bytes, user_bytes);
        let space_amplification = per(disk_bytes, live_bytes);
        let json = json!({
            "config": self.config,
            "workloads": self.rows,
            "total": {
                "cpu_seconds": spent.cpu.as_secs_f64(),
                "peak_memory_bytes": memory.peak_bytes,
                "user_bytes_written": user_bytes,
                "bytes_written": spent.written_bytes,
                "write_amplification": write_amplification,
                "live_bytes": live_bytes,
                "disk_bytes": disk_bytes,
                "space_amplification": space_amplification,
            },
        });
        let text = format!(
            "\nall in all, with the background work: cpu {:.1} s, peak memory {} MiB, \
             write amplification {}, {:.1} MiB on disk for {:.1} MiB live: {}",
            spent.cpu.as_secs_f64(),
            figure(memory.peak_bytes.map(mebibytes), 1),
            figure(write_amplification, 2),
            mebibytes(disk_bytes),
            mebibytes(live_bytes),
            figure(space_amplification, 2),
        );
        self.out.line(text, &json)?;
        self.out.flush()
    }
}

fn ops_per_second(tally: &Tally, outcome: &Outcome) -> f64 {
    tally.ops as f64 / outcome.elapsed.as_secs_f64().max(1e-9)
}

fn row_text(outcome: &Outcome) -> String {
    let tally = &outcome.tally;
    let quantile = |q| micros(tally.latencies.value_at_quantile(q));
    let mut text = format!(
        "{:<17} {:>10} {:>12.0} {:>9.2} {:>9.2} {:>9.2} {:>10.1} {:>8.2} {:>8} {:>6} {:>9.1}",
        outcome.name,
        tally.ops,
        ops_per_second(tally, outcome),
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
        micros(tally.latencies.max()),
        outcome.usage.cpu.as_secs_f64(),
        figure(outcome.memory.resident_bytes.map(mebibytes), 1),
        figure(per(outcome.usage.written_bytes, outcome.user_bytes_written()), 2),
        mebibytes(outcome.disk_bytes),
    );
    if tally.missed > 0 {
        text += &format!("  {} of {} not found", tally.missed, tally.found + tally.missed);
    }
    if let Some(beside) = &outcome.beside {
        text += &format!("  beside: {:.0} writes/s", ops_per_second(beside, outcome));
    }
    text
}

fn row_json(outcome: &Outcome) -> Value {
    let tally = &outcome.tally;
    let quantile = |q| micros(tally.latencies.value_at_quantile(q));
    let beside = outcome.beside.as_ref().map(|beside| {
        json!({
            "ops": beside.ops,
            "ops_per_second": ops_per_second(beside, outcome),
            "p99_us": micros(beside.latencies.value_at_quantile(0.99)),
            "max_us": micros(beside.latencies.max()),
        })
    });
    json!({
        "workload": outcome.name,
        "threads": outcome.threads,
        "ops": tally.ops,
        "seconds": outcome.elapsed.as_secs_f64(),
        "ops_per_second": ops_per_second(tally, outcome),
        "p50_us": quantile(0.5),
        "p99_us": quantile(0.99),
        "p999_us": quantile(0.999),
        "max_us": micros(tally.latencies.max()),
        "cpu_seconds": outcome.usage.cpu.as_secs_f64(),
        "resident_bytes": outcome.memory.resident_bytes,
        "peak_memory_bytes": outcome.memory.peak_bytes,
        "user_bytes_written": outcome.user_bytes_written(),
        "bytes_written": outcome.usage.written_bytes,
        "write_amplification": per(outcome.usage.written_bytes, outcome.user_bytes_written()),
        "user_bytes_scanned": tally.read_bytes,
        "disk_bytes": outcome.disk_bytes,
        "found": tally.found,
        "missed": tally.missed,
        "writes_beside": beside,
    })
}
