//! Prints what was measured: a row as each workload ends, or one JSON object at the end.
//!
//! Latencies are in microseconds. Write amplification is bytes written to log and tables by bytes
//! of keys and values written; space amplification is bytes on the device by bytes of live records.
//! A figure that the machine cannot provide is `-`, or null in JSON.

use std::path::Path;

use serde_json::{Value, json};
use testkit::bench::Outcome;
use testkit::bench::measure::{Memory, Usage};
use testkit::bench::run::{micros, per};

use super::Args;
use crate::output::{Failure, Output};

/// Collects and prints.
pub(crate) struct Report {
    out: Output,
    is_json: bool,
    config: Value,
    rows: Vec<Value>,
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A figure with `digits` decimal places, or `-`.
fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

impl Report {
    /// Prints the head.
    pub(crate) fn new(args: &Args, folder: &Path) -> Result<Report, Failure> {
        let config = json!({
            "records": args.records,
            "ops": args.ops,
            "seconds": args.seconds,
            "idle_loop": args.idle_loop,
            "key_size": args.key_size,
            "value_size": args.value_size,
            "threads": args.threads,
            "write_rate": args.write_rate,
            "tables_mapped": args.tables_mapped,
            "durability": format!("{:?}", args.durability).to_lowercase(),
            "cache_bytes": args.cache,
            "write_buffer_bytes": args.write_buffer,
            "background_bytes_per_second": args.background_rate,
            "log_segment_bytes": args.log_segment,
            "log_written": args.log_written,
            "metahive": args.metahive,
            "large_values_from": args.large_values,
            "verified": args.verified,
            "compression": args.compression.map(|c| format!("{c:?}").to_lowercase()),
            "seed": args.seed,
            "folder": folder.display().to_string(),
            "version": env!("CARGO_PKG_VERSION"),
        });
        let mut out = Output::new(args.json);
        if !args.json {
            let head = format!(
                "{} records of {} + {} bytes{}, {} thread(s), durability {:?}, in {}\n\n\
                 {:<17} {:>10} {:>12} {:>9} {:>9} {:>9} {:>10} {:>8} {:>8} {:>6} {:>9}",
                args.records,
                args.key_size,
                args.value_size,
                match (args.metahive, args.verified) {
                    (false, _) => "",
                    (true, false) => " with MetaHive",
                    (true, true) => " with MetaHive, verified",
                },
                args.threads,
                args.durability,
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
        self.rows.push(outcome.json());
        if !self.is_json {
            self.out.line(row_text(outcome), &Value::Null)?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Prints the sums. `spent` covers everything, including the background work at the end.
    pub(crate) fn finish(
        &mut self,
        spent: &Usage,
        user_bytes: u64,
        live_bytes: u64,
        disk_bytes: Option<u64>,
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
             write amplification {}, {} MiB on disk for {:.1} MiB live: {}",
            spent.cpu.as_secs_f64(),
            figure(memory.peak_bytes.map(mebibytes), 1),
            figure(write_amplification, 2),
            figure(disk_bytes.map(mebibytes), 1),
            mebibytes(live_bytes),
            figure(space_amplification, 2),
        );
        self.out.line(text, &json)?;
        self.out.flush()
    }
}

fn row_text(outcome: &Outcome) -> String {
    let tally = &outcome.tally;
    let quantile = |q| micros(tally.latencies.value_at_quantile(q));
    let mut text = format!(
        "{:<17} {:>10} {:>12.0} {:>9.2} {:>9.2} {:>9.2} {:>10.1} {:>8.2} {:>8} {:>6} {:>9}",
        outcome.name,
        tally.ops,
        outcome.ops_per_second(),
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
        micros(tally.latencies.max()),
        outcome.usage.cpu.as_secs_f64(),
        figure(outcome.memory.resident_bytes.map(mebibytes), 1),
        figure(per(outcome.usage.written_bytes, outcome.user_bytes_written()), 2),
        figure(outcome.disk_bytes.map(mebibytes), 1),
    );
    if tally.missed > 0 {
        text += &format!("  {} of {} not found", tally.missed, tally.found + tally.missed);
    }
    if let Some(pause) = outcome.idle_pause {
        text += &format!("  idle loop: at most {:.1} us", pause.as_secs_f64() * 1e6);
    }
    if let Some(beside) = &outcome.beside {
        text += &format!("  beside: {:.0} writes/s", outcome.per_second(beside));
    }
    text
}
