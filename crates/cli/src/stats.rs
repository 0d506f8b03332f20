//! `stats`: statistics and health of the engine, as a table for people or as one JSON object.
//!
//! The only place that knows the fields of [`Stats`]; those of [`Health`] are in `stats/health.rs`.
//! This command opens the database, which replays the log and starts all counters at 0. So the
//! output marks every figure that counts since the open.
//!
//! Invariant: text and JSON are made from the same copy and leave nothing out.

mod health;

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use siltstone::{Health, LevelStats, PartitionStats, Stats, ValueStoreStats};

use crate::bucket::ReadLength;
use crate::engine::Existing;
use crate::output::{Failure, Output};

/// Arguments of `stats`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database, or URL of its bucket
    database: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    prometheus: bool,
    /// Print again every so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    watch: Option<u64>,
    /// Stop after this many prints
    #[arg(long, requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// Prints the statistics of the engine.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let existing = Existing::open_to_read(&args.database, ReadLength::Short)?;
    let mut out = Output::new(args.json);
    let most = if args.watch.is_some() { args.count.unwrap_or(u64::MAX) } else { 1 };
    for round in 0..most {
        if let Some(seconds) = args.watch.filter(|_| round > 0) {
            // The thread is never unparked on purpose; after an early wake-up it prints early.
            std::thread::park_timeout(Duration::from_secs(seconds));
            if !args.json {
                out.raw(b"\n")?;
            }
        }
        let stats = existing.db.stats();
        let health = existing.db.health();
        if args.prometheus {
            out.raw(siltstone::metrics::prometheus(&stats, &[]).as_bytes())?;
            out.raw(siltstone::metrics::prometheus(&health, &[]).as_bytes())?;
            continue;
        }
        out.line(text(&stats, &health), &json(&stats, &health))?;
        out.flush()?;
    }
    out.finish()?;
    Ok(existing.close()?)
}

/// A number of bytes with a unit, exact where it is small.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..0x2800 => format!("{bytes} B"),
        0x2800..0xa0_0000 => format!("{:.1} KiB", bytes as f64 / f64::from(1 << 10)),
        0xa0_0000..0x2_8000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

fn text(stats: &Stats, health: &Health) -> String {
    let mut text = format!(
        "{:<20} {:>5} {:>7} {:>12} {:>12} {:>12}\n",
        "partition", "level", "tables", "size", "entries", "tombstones"
    );
    for partition in &stats.partitions {
        partition_text(&mut text, partition);
    }
    let mut line = |name: &str, value: String| {
        let _ = write!(text, "\n{name:<20} {value}");
    };
    line("on disk", on_disk(stats));
    if stats.is_encrypted {
        line("encryption", "all files are encrypted".to_owned());
    }
    line(
        "memory",
        format!(
            "{} memtables, {} block cache, {} open tables",
            bytes(stats.memtable_bytes),
            bytes(stats.cache_bytes),
            bytes(stats.open_table_bytes)
        ),
    );
    let budget = bytes(stats.memory_budget_bytes);
    line("memory in all", format!("{} of {budget}", bytes(stats.memory_used_bytes)));
    line("files", format!("{} opened again since the open", stats.file_reopen_count));
    line(
        "cache",
        format!("{} hits, {} misses since the open", stats.cache_hits, stats.cache_misses),
    );
    if stats.prefix_asked_count > 0 {
        line("prefixes", prefixes(stats));
    }
    line(
        "written",
        format!(
            "{} by the application in {} batches since the open",
            bytes(stats.user_bytes),
            stats.batch_count
        ),
    );
    line("log", format!("{} in {} syncs", bytes(stats.wal_bytes), stats.wal_sync_count));
    line("flushes", format!("{}, {} written", stats.flush_count, bytes(stats.flush_bytes)));
    line(
        "compactions",
        format!(
            "{} ({} only moved a table), {} read, {} written",
            stats.compaction_count,
            stats.trivial_move_count,
            bytes(stats.compaction_read_bytes),
            bytes(stats.compaction_written_bytes)
        ),
    );
    line("write amplification", amplification(stats).map_or("-".to_owned(), |x| format!("{x:.2}")));
    if stats.background_bytes_per_second > 0 {
        line("background writes", background_writes(stats));
    }
    line("stalled", format!("{:.3} s", stats.stalled.as_secs_f64()));
    // `Health` has all failures of `Stats`, and more.
    text.push_str(&health::text(health));
    text
}

/// The space on the disk by kind of file.
fn on_disk(stats: &Stats) -> String {
    format!(
        "{}: {} in tables, {} in tables for secondaries, {} in chunk files, {} in {} log segments, {} in \
         the manifest",
        bytes(stats.disk_bytes),
        bytes(stats.table_bytes),
        bytes(stats.leased_bytes),
        bytes(chunk_bytes(stats)),
        bytes(stats.wal_disk_bytes),
        stats.wal_segment_count,
        bytes(stats.manifest_disk_bytes)
    )
}

/// The rate of flushes and compactions, and their waits for it.
fn background_writes(stats: &Stats) -> String {
    let rate = bytes(stats.background_bytes_per_second);
    let waited = stats.background_waited.as_secs_f64();
    format!("{rate} a second at most, waited {waited:.3} s")
}

/// The length of the chunk files of all partitions.
fn chunk_bytes(stats: &Stats) -> u64 {
    let stores = stats.partitions.iter().filter_map(|partition| partition.value_store.as_ref());
    stores.map(|store| store.bytes).sum()
}

/// A row for each level that holds tables, then the rest about the partition.
fn partition_text(text: &mut String, partition: &PartitionStats) {
    // A name may have any characters; they are escaped for a terminal.
    let name = partition.name.escape_debug().to_string();
    let mut row = |level: &str, stats: &LevelStats| {
        let _ = writeln!(
            text,
            "{name:<20} {level:>5} {:>7} {:>12} {:>12} {:>12}",
            stats.table_count,
            bytes(stats.bytes),
            stats.entry_count,
            stats.tombstone_count
        );
    };
    let mut sum = LevelStats::default();
    for (level, stats) in partition.levels.iter().enumerate() {
        if stats.table_count > 0 {
            row(&level.to_string(), stats);
        }
        sum.table_count += stats.table_count;
        sum.bytes += stats.bytes;
        sum.entry_count += stats.entry_count;
        sum.tombstone_count += stats.tombstone_count;
    }
    row("all", &sum);
    if partition.memtable_bytes > 0 {
        let size = bytes(partition.memtable_bytes);
        let sealed = partition.sealed_memtable_count;
        let _ = writeln!(text, "  {size} in memtables, {sealed} of them sealed");
    }
    if partition.deleted_range_count > 0 {
        let _ = writeln!(text, "  {} deleted ranges hide entries", partition.deleted_range_count);
    }
    if partition.operands_folded > 0 {
        let _ = writeln!(text, "  {} operands folded", partition.operands_folded);
    }
    if partition.expired_removed_count > 0 {
        let count = partition.expired_removed_count;
        let _ = writeln!(text, "  {count} expired entries removed since the open");
    }
    if let Some(store) = &partition.value_store {
        let _ = writeln!(
            text,
            "  {} in {} chunk files: {} live, {} pending, {} dead; since the open {} written, {} of \
             it moved, {} reclaimed",
            bytes(store.bytes),
            store.chunk_count,
            bytes(store.live_bytes),
            bytes(store.pending_bytes),
            bytes(store.dead_bytes),
            bytes(store.written_bytes),
            bytes(store.moved_bytes),
            bytes(store.reclaimed_bytes)
        );
        if let Some(failure) = &store.failure {
            let _ = writeln!(text, "  large values in doubt: {}", failure.escape_debug());
        }
    }
    if partition.compaction_debt_bytes > 0 {
        let _ = writeln!(text, "  {} to compact", bytes(partition.compaction_debt_bytes));
    }
    if let Some(reason) = partition.pressure_reason {
        let _ =
            writeln!(text, "  writes delayed by {} of 1000: {reason}", partition.pressure_permille);
    }
}

/// The tables that scans asked for a prefix.
fn prefixes(stats: &Stats) -> String {
    let asked = stats.prefix_asked_count;
    format!("{asked} tables asked, {} spared since the open", stats.prefix_spared_count)
}

/// As [`Stats::write_amplification`]; none before the first write.
fn amplification(stats: &Stats) -> Option<f64> {
    (stats.user_bytes > 0).then(|| stats.write_amplification())
}

fn json(stats: &Stats, health: &Health) -> Value {
    json!({
        "partitions": stats.partitions.iter().map(partition_json).collect::<Vec<_>>(),
        "table_bytes": stats.table_bytes,
        "wal_disk_bytes": stats.wal_disk_bytes,
        "log_retained_bytes": stats.log_retained_bytes,
        "log_retained_segment_count": stats.log_retained_segment_count,
        "manifest_disk_bytes": stats.manifest_disk_bytes,
        "disk_bytes": stats.disk_bytes,
        "is_encrypted": stats.is_encrypted,
        "leased_bytes": stats.leased_bytes,
        "wal_segment_count": stats.wal_segment_count,
        "memtable_bytes": stats.memtable_bytes,
        "open_table_bytes": stats.open_table_bytes,
        "mapped_table_bytes": stats.mapped_table_bytes,
        "memory_used_bytes": stats.memory_used_bytes,
        "memory_budget_bytes": stats.memory_budget_bytes,
        "open_files": stats.open_files,
        "open_files_max": stats.open_files_max,
        "background_bytes_per_second": stats.background_bytes_per_second,
        "cache": {
            "bytes": stats.cache_bytes,
            "hits": stats.cache_hits,
            "misses": stats.cache_misses,
        },
        "since_open": {
            "user_bytes": stats.user_bytes,
            "batch_count": stats.batch_count,
            "wal_bytes": stats.wal_bytes,
            "wal_sync_count": stats.wal_sync_count,
            "flush_bytes": stats.flush_bytes,
            "flush_count": stats.flush_count,
            "compaction_read_bytes": stats.compaction_read_bytes,
            "compaction_written_bytes": stats.compaction_written_bytes,
            "compaction_count": stats.compaction_count,
            "trivial_move_count": stats.trivial_move_count,
            "file_reopen_count": stats.file_reopen_count,
            "fifo_removed_table_count": stats.fifo_removed_table_count,
            "fifo_removed_bytes": stats.fifo_removed_bytes,
            "lock_wait_count": stats.lock_wait_count,
            "lock_timeout_count": stats.lock_timeout_count,
            "deadlock_count": stats.deadlock_count,
            "prefix_asked_count": stats.prefix_asked_count,
            "prefix_spared_count": stats.prefix_spared_count,
            "write_amplification": amplification(stats),
            "background_waited_seconds": stats.background_waited.as_secs_f64(),
            "stalled_seconds": stats.stalled.as_secs_f64(),
        },
        "read_only_because": stats.read_only_because,
        "background_error": stats.background_error,
        "health": health::json(health),
    })
}

fn partition_json(partition: &PartitionStats) -> Value {
    let levels = partition.levels.iter().enumerate().map(|(level, stats)| {
        json!({
            "level": level,
            "table_count": stats.table_count,
            "bytes": stats.bytes,
            "entry_count": stats.entry_count,
            "tombstone_count": stats.tombstone_count,
        })
    });
    json!({
        "partition": partition.name,
        "levels": levels.collect::<Vec<_>>(),
        "memtable_bytes": partition.memtable_bytes,
        "sealed_memtable_count": partition.sealed_memtable_count,
        "deleted_range_count": partition.deleted_range_count,
        "operands_folded": partition.operands_folded,
        "expired_removed_count": partition.expired_removed_count,
        "compaction_debt_bytes": partition.compaction_debt_bytes,
        "pressure_permille": partition.pressure_permille,
        "pressure_reason": partition.pressure_reason,
        "value_store": partition.value_store.as_ref().map(value_store_json),
    })
}

pub(super) fn value_store_json(store: &ValueStoreStats) -> Value {
    json!({
        "chunk_count": store.chunk_count,
        "bytes": store.bytes,
        "live_bytes": store.live_bytes,
        "pending_bytes": store.pending_bytes,
        "dead_bytes": store.dead_bytes,
        "pinned_bytes": store.pinned_bytes,
        "since_open": {
            "created_count": store.created_count,
            "sealed_count": store.sealed_count,
            "reclaimed_count": store.reclaimed_count,
            "written_bytes": store.written_bytes,
            "moved_bytes": store.moved_bytes,
            "reclaimed_bytes": store.reclaimed_bytes,
        },
        "failure": store.failure,
        "unmoved": store.unmoved,
        "refused": store.refused,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The fields in the text of a `Debug` that `json` lacks.
    pub(super) fn missing(debug: &str, json: &str) -> BTreeSet<String> {
        let names = debug.split([' ', '{', '[']).filter_map(|word| word.strip_suffix(':'));
        let names = names.filter(|name| name.chars().all(|c| c == '_' || c.is_ascii_lowercase()));
        let names = names.filter(|name| !json.contains(&format!("\"{name}\":")));
        names.map(str::to_owned).collect()
    }

    #[test]
    fn json_has_every_field_of_the_statistics() {
        let stats = Stats::default();
        let json = json(&stats, &Health::default());
        let missing = missing(&format!("{stats:?}"), &json.to_string());
        // In an object of their own, or with the unit in the name.
        let renamed = ["background_waited", "cache_bytes", "cache_hits", "cache_misses", "stalled"];
        assert_eq!(missing, BTreeSet::from(renamed.map(str::to_owned)));
    }

    #[test]
    fn sizes_are_exact_while_they_are_small() {
        let texts = [0, 10_239, 10_240, 10 << 20, 10 << 30].map(bytes);
        assert_eq!(texts, ["0 B", "10239 B", "10.0 KiB", "10.0 MiB", "10.0 GiB"]);
    }

    #[test]
    fn before_the_first_write_there_is_no_amplification() {
        let stats = Stats::default();
        let health = Health::default();
        assert_eq!(json(&stats, &health)["since_open"]["write_amplification"], Value::Null);
        assert!(text(&stats, &health).contains("write amplification  -\n"));
    }
}
