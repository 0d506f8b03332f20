//! Metrics: the figures of [`Stats`] and [`Health`] for monitoring systems, under one set of names.
//!
//! [`prometheus`] returns them as text that a program serves on its port for metrics. With the feature `metrics`,
//! `publish` gives the same figures under the same names to the recorder of the crate `metrics`. `docs/metrics.md` lists
//! them.
//!
//! Invariant: the table [`all`] is the only list. `tests/tidy/metrics.rs` compares it with the fields of the statistics and
//! with the page.

use std::fmt::Write;
use std::time::Duration;

use ::secondary::{FollowedStats, Lag, SecondaryStats};
use lsm_core::ResourceUsage;
use lsm_core::clock::ClockJump;
use lsm_core::db::{Health, PartitionHealth};
use lsm_core::stats::{LevelStats, PartitionStats, Stats, ValueStoreStats};
use lsm_core::types::SeqNo;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number since the open, which grows. It begins at 0 again with each open.
    Counter,
    /// A number that holds now.
    Gauge,
}

/// A metric: its name, which says its unit, and its meaning.
#[derive(Debug)]
#[non_exhaustive]
pub struct Metric {
    /// The name: `siltstone_wal_written_bytes_total`. That of a counter ends with `_total`.
    pub name: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The meaning, in one sentence.
    pub help: &'static str,
    /// The names of the labels that each sample has.
    pub labels: &'static [&'static str],
    figure: Figure,
}

/// The place of the figure.
#[derive(Clone, Copy, Debug)]
enum Figure {
    Database(fn(&Stats) -> f64),
    Partition(fn(&PartitionStats) -> f64),
    Level(fn(&LevelStats) -> f64),
    ValueStore(fn(&ValueStoreStats) -> f64),
    Health(fn(&Health) -> f64),
    PartitionHealth(fn(&PartitionHealth) -> f64),
    Resources(fn(&ResourceUsage) -> f64),
    Secondary(fn(&SecondaryStats) -> f64),
    Followed(fn(&FollowedStats) -> f64),
}

/// The figures to export. No metric belongs to two of them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Figures<'a> {
    /// From `Db::stats`.
    Stats(&'a Stats),
    /// From `Db::health`.
    Health(&'a Health),
    /// From `Resources::usage`, of many databases together.
    Resources(&'a ResourceUsage),
    /// From `Secondary::stats`.
    Secondary(&'a SecondaryStats),
}

impl<'a> From<&'a Stats> for Figures<'a> {
    fn from(stats: &'a Stats) -> Figures<'a> {
        Figures::Stats(stats)
    }
}

impl<'a> From<&'a Health> for Figures<'a> {
    fn from(health: &'a Health) -> Figures<'a> {
        Figures::Health(health)
    }
}

impl<'a> From<&'a ResourceUsage> for Figures<'a> {
    fn from(usage: &'a ResourceUsage) -> Figures<'a> {
        Figures::Resources(usage)
    }
}

impl<'a> From<&'a SecondaryStats> for Figures<'a> {
    fn from(stats: &'a SecondaryStats) -> Figures<'a> {
        Figures::Secondary(stats)
    }
}

/// A field of the statistics, or of the health, as a number.
trait AsNumber {
    fn as_number(&self) -> f64;
}

/// `u64::MAX` is a limit that does not exist.
impl AsNumber for u64 {
    fn as_number(&self) -> f64 {
        if *self == u64::MAX { f64::INFINITY } else { *self as f64 }
    }
}

impl AsNumber for bool {
    fn as_number(&self) -> f64 {
        f64::from(u8::from(*self))
    }
}

/// Thousandths, as a ratio.
impl AsNumber for u32 {
    fn as_number(&self) -> f64 {
        f64::from(*self) / 1000.0
    }
}

impl AsNumber for Duration {
    fn as_number(&self) -> f64 {
        self.as_secs_f64()
    }
}

/// 0 without one.
impl AsNumber for Option<Duration> {
    fn as_number(&self) -> f64 {
        self.unwrap_or_default().as_number()
    }
}

/// No number without one: there is no sample then.
impl AsNumber for Option<u64> {
    fn as_number(&self) -> f64 {
        self.map_or(f64::NAN, |number| number.as_number())
    }
}

impl AsNumber for SeqNo {
    fn as_number(&self) -> f64 {
        self.get().as_number()
    }
}

/// The age of the last look at the primary; no number before the first.
impl AsNumber for Lag {
    fn as_number(&self) -> f64 {
        self.age.map_or(f64::NAN, |age| age.as_number())
    }
}

impl<T> AsNumber for Vec<T> {
    fn as_number(&self) -> f64 {
        self.len() as f64
    }
}

/// 1 if there is a reason. Its text would be a new series each time.
macro_rules! reasons {
    ($($reason:ty)*) => {
        $(impl AsNumber for Option<$reason> {
            fn as_number(&self) -> f64 {
                self.is_some().as_number()
            }
        })*
    };
}

reasons! { &str String ClockJump }

macro_rules! metrics {
    ($($figure:ident $labels:expr => {
        $($kind:ident $($field:ident).+ $(($($none:tt)?))? $name:literal $help:literal;)*
    })*) => {
        &[$($(Metric {
            name: concat!("siltstone_", $name),
            kind: MetricKind::$kind,
            help: $help,
            labels: &$labels,
            figure: Figure::$figure(|it| it.$($field).+ $(($($none)?))? .as_number()),
        },)*)*]
    };
}

/// Every metric. `partitions`, `levels`, `value_store` and `name` are where samples come from. A figure that [`Stats`] and
/// [`Health`] both have is one of the statistics.
static METRICS: &[Metric] = metrics! {
    Database [] => {
        Counter user_bytes "user_written_bytes_total" "Keys and values that the application wrote; of a large value the handle.";
        Counter batch_count "batches_total" "Batches committed.";
        Counter wal_bytes "wal_written_bytes_total" "Bytes appended to the log.";
        Counter wal_sync_count "wal_syncs_total" "Syncs of the log.";
        Counter flush_bytes "flush_written_bytes_total" "Bytes of tables that flushes wrote.";
        Counter flush_count "flushes_total" "Flushes.";
        Counter compaction_read_bytes "compaction_read_bytes_total" "Bytes of tables that compactions read.";
        Counter compaction_written_bytes "compaction_written_bytes_total" "Bytes of tables that compactions wrote.";
        Counter compaction_count "compactions_total" "Compactions, with those that only moved a table.";
        Counter trivial_move_count "trivial_moves_total" "Compactions that only moved a table.";
        Counter background_waited "background_wait_seconds_total" "Time by which flushes and compactions waited for their rate.";
        Gauge background_bytes_per_second "background_rate_bytes" "Rate of flushes and compactions in bytes a second, 0 for no limit.";
        Counter stalled "stall_seconds_total" "Time by which writers were delayed.";
        Counter fifo_removed_table_count "fifo_removed_tables_total" "Tables that FIFO partitions removed.";
        Counter fifo_removed_bytes "fifo_removed_bytes_total" "Bytes of the tables that FIFO partitions removed.";
        Counter lock_wait_count "lock_waits_total" "Requests of transactions for a locked key that had to wait.";
        Counter lock_timeout_count "lock_timeouts_total" "Waits for a locked key that ended because the time was over.";
        Counter deadlock_count "deadlocks_total" "Requests for a locked key that were refused because of a deadlock.";
        Gauge wal_segment_count "wal_segments" "Segments of the log on disk.";
        Gauge table_bytes "table_bytes" "Bytes of live tables.";
        Gauge wal_disk_bytes "wal_disk_bytes" "Bytes of the segments of the log, with reserved space.";
        Gauge log_retained_bytes "log_retained_bytes" "Bytes of the log that are kept for those who follow the changes.";
        Gauge log_retained_segment_count "log_retained_segments" "Segments that these bytes are in.";
        Gauge manifest_disk_bytes "manifest_disk_bytes" "Bytes of the manifest.";
        Gauge disk_bytes "disk_bytes" "Bytes of the database on the disk.";
        Gauge leased_bytes "leased_bytes" "Bytes of obsolete files that only secondaries hold, or that are about to be deleted.";
        Gauge cache_bytes "cache_bytes" "Bytes in the block cache.";
        Counter cache_hits "cache_hits_total" "Lookups in the block cache that found their block.";
        Counter cache_misses "cache_misses_total" "Lookups in the block cache that did not find their block.";
        Counter prefix_asked_count "prefix_tables_asked_total" "Tables that scans within one prefix asked for it.";
        Counter prefix_spared_count "prefix_tables_spared_total" "Tables among them that were not searched.";
        Gauge open_table_bytes "open_table_bytes" "Memory of the indexes and filters of open tables.";
        Gauge mapped_table_bytes "mapped_table_bytes" "Bytes of open tables that are read through mappings.";
        Gauge open_files "open_files" "Tables and chunk files that are open for reading.";
        Gauge open_files_max "open_files_max" "The maximum of open tables and chunk files.";
        Counter file_reopen_count "file_reopens_total" "Tables and chunk files that were opened again.";
        Gauge memtable_bytes "memtable_bytes" "Memory of all memtables.";
        Gauge memory_budget_bytes "memory_budget_bytes" "Memory that memtables, block cache and open tables may take.";
        Gauge memory_used_bytes "memory_used_bytes" "Memory that memtables, block cache and open tables take.";
        Gauge is_encrypted "encrypted" "1 if the file system encrypts the files of the database, otherwise 0.";
        Gauge read_only_because "read_only" "1 while the store refuses writes, otherwise 0.";
        Gauge background_error "background_failing" "1 while background work fails, otherwise 0.";
    }
    Partition ["partition"] => {
        Gauge memtable_bytes "partition_memtable_bytes" "Memory of the memtables of the partition.";
        Gauge sealed_memtable_count "partition_sealed_memtables" "Memtables that wait for their flush.";
        Gauge deleted_range_count "partition_deleted_ranges" "Deleted ranges that may hide entries of tables.";
        Counter operands_folded "partition_operands_folded_total" "Operands of merges that were folded.";
        Counter expired_removed_count "partition_expired_removed_total" "Entries that flushes and compactions removed because they had expired.";
        Gauge compaction_debt_bytes "partition_compaction_debt_bytes" "Bytes to compact until every level is within its target.";
        Gauge pressure_permille "partition_pressure_ratio" "Delay of writes: at 0 there is none, at 1 writes are stopped.";
        Gauge pressure_reason "partition_slowed" "1 while writes to the partition are slowed down or stopped, otherwise 0.";
    }
    Level ["partition", "level"] => {
        Gauge table_count "level_tables" "Tables of the level.";
        Gauge bytes "level_bytes" "Bytes of the tables of the level.";
        Gauge entry_count "level_entries" "Entries in the tables of the level, with tombstones.";
        Gauge tombstone_count "level_tombstones" "Tombstones in the tables of the level.";
    }
    ValueStore ["partition"] => {
        Gauge chunk_count "values_chunks" "Chunk files of large values.";
        Gauge bytes "values_disk_bytes" "Bytes of the chunk files.";
        Gauge live_bytes "values_live_bytes" "Bytes of large values that tables name.";
        Gauge pending_bytes "values_pending_bytes" "Bytes of large values that no table names yet.";
        Gauge dead_bytes "values_dead_bytes" "Bytes of large values that no new reader reaches.";
        Gauge pinned_bytes "values_pinned_bytes" "Dead bytes that readers of an older version may hold.";
        Counter created_count "values_chunks_created_total" "Chunk files that were made.";
        Counter sealed_count "values_chunks_sealed_total" "Chunk files that take no more values.";
        Counter reclaimed_count "values_chunks_reclaimed_total" "Chunk files that were removed.";
        Counter written_bytes "values_written_bytes_total" "Bytes appended to chunk files.";
        Counter moved_bytes "values_moved_bytes_total" "Bytes of values that compactions moved; a part of those written.";
        Counter reclaimed_bytes "values_reclaimed_bytes_total" "Bytes of the chunk files that were removed.";
        Counter sync_failure_count "values_sync_failures_total" "Failed syncs of chunk files.";
        Gauge failure "values_sync_failing" "1 while a chunk file whose sync failed has values that no table names, otherwise 0.";
        Gauge unmoved "values_not_moved" "1 while values are not moved out of chunk files with much garbage, otherwise 0.";
        Gauge refused "values_refused" "1 if the last large value could not be written, otherwise 0.";
    }
    Health [] => {
        Gauge is_healthy() "healthy" "1 while writes run at full speed and nothing fails, is lost or is damaged, otherwise 0.";
        Gauge deleted "files_deleted" "1 if the folder of the database, or its files, were deleted, otherwise 0.";
        Gauge refused "writes_refused" "1 while the log had no space for the last batch, otherwise 0.";
        Gauge cursor_failure "commit_cursor_failing" "1 while there is no commit cursor, so that secondaries have no strong reads, otherwise 0.";
        Gauge storage_failure "storage_failing" "1 while a storage that works in the background fails, otherwise 0.";
        Gauge stalls "stalled_partitions" "Partitions whose writers are delayed.";
        Gauge background_errors "background_failures" "Failures of background work without a later success.";
        Gauge damage "compaction_damage" "1 while compactions skip a table in which they found damage, otherwise 0.";
        Gauge listener_panic "listener_panicked" "1 if an event listener has panicked since the open, otherwise 0.";
        Gauge clock_jump "clock_jumped" "1 while entries or tables that expire wait for a calendar that jumped, otherwise 0.";
        Gauge sealed_memtable_bytes.value "sealed_memtable_bytes" "Memory of sealed memtables, over all partitions.";
        Gauge sealed_memtable_bytes.hard "sealed_memtable_bytes_max" "Memory of sealed memtables at which writers stop.";
        Gauge wal_bytes.value "wal_pinned_bytes" "Bytes of the log that memtables need.";
        Gauge wal_bytes.hard "wal_pinned_bytes_max" "Bytes of the log at which the memtables that need it are flushed.";
        Gauge oldest_snapshot "oldest_snapshot_seconds" "Age of the oldest snapshot, 0 without snapshots.";
        Gauge pinned_obsolete_bytes "pinned_obsolete_bytes" "Bytes of obsolete tables that readers hold.";
        Gauge open_files.hard "process_open_files_max" "The limit of open files of the process.";
    }
    PartitionHealth ["partition"] => {
        Gauge compaction_debt_bytes.hard "partition_compaction_debt_bytes_max" "Bytes to compact at which writers stop.";
        Gauge level0_tables.hard "partition_level0_tables_max" "Tables of level 0 at which writers stop; without a limit +Inf.";
        Gauge gaps "partition_gaps" "Ranges of keys that are damaged beyond repair, and whose loss is not accepted.";
        Gauge absent_filters "partition_absent_filters" "Compaction filters without which the partition is open.";
    }
    Resources [] => {
        Gauge databases "resources_databases" "Open databases that share the resources and are written to.";
        Gauge threads "resources_threads" "Threads that run for them.";
        Gauge cache_bytes "resources_cache_bytes" "Memory of the shared block cache.";
        Gauge cache_bytes_max "resources_cache_bytes_max" "The most that the shared block cache may take.";
        Gauge active_memtable_bytes "resources_active_memtable_bytes" "Memory of active memtables of all databases.";
        Gauge write_buffer_bytes "resources_write_buffer_bytes" "The most that active memtables of all databases should have.";
        Gauge sealed_memtable_bytes "resources_sealed_memtable_bytes" "Memory of memtables that wait for their flush, of all databases.";
        Gauge followed_memtable_bytes "resources_followed_memtable_bytes" "Memory of the memtables of secondaries.";
        Gauge open_files "resources_open_files" "Tables and chunk files that all databases have open for reading.";
        Gauge open_files_max "resources_open_files_max" "The maximum of them; without a limit +Inf.";
        Gauge background_bytes_per_second "resources_background_rate_bytes" "Rate of flushes and compactions of all databases in bytes a second, 0 for no limit.";
    }
    Secondary [] => {
        Gauge has_live_primary "secondary_live_primary" "1 if a primary on this machine publishes its commits, otherwise 0.";
        Gauge memtable_bytes "secondary_memtable_bytes" "Memory of the memtables of the secondary.";
    }
    Followed ["partition"] => {
        Gauge seq "secondary_partition_seq" "Sequence number up to which the partition is complete.";
        Gauge lag.operations "secondary_partition_lag_operations" "Operations of the primary that the partition lacks, over all partitions; no sample without a primary on this machine.";
        Gauge lag.bytes "secondary_partition_lag_bytes" "Bytes of the log of the primary that the partition lacks, over all partitions; no sample without a primary on this machine.";
        Gauge lag "secondary_partition_lag_seconds" "Time since the begin of the last look that found the partition complete; no sample before the first.";
        Gauge follow_failure "secondary_partition_follow_failing" "1 while the thread that follows the partition fails, otherwise 0.";
    }
};

/// Returns every metric, in the order of [`prometheus`].
///
/// # Examples
/// ```
/// let metric = siltstone::metrics::all().iter().find(|metric| metric.name == "siltstone_disk_bytes");
/// assert!(metric.expect("it is one of them").labels.is_empty());
/// ```
pub fn all() -> &'static [Metric] {
    METRICS
}

/// Returns the figures in the text format of Prometheus (version 0.0.4, content type `text/plain; version=0.0.4`).
/// `figures` are those of `Db::stats`, `Db::health`, `Resources::usage` or `Secondary::stats`; one text may follow the other, because they share no metric.
/// `labels` are added to every sample, for a program with several databases.
///
/// # Cost
/// About 70 bytes for each figure: some 50 of the database, and 45 of each partition.
///
/// # Examples
/// ```
/// use siltstone::metrics::prometheus;
/// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
/// db.partition("users")?.put("alice", "admin")?;
/// let labels = [("db", "main")];
/// let text = prometheus(&db.stats(), &labels) + &prometheus(&db.health(), &labels);
/// assert!(text.contains("siltstone_batches_total{db=\"main\"} 1\n"));
/// assert!(text.contains("siltstone_healthy{db=\"main\"} 1\n"));
/// # Ok::<(), siltstone::Error>(())
/// ```
pub fn prometheus<'a>(figures: impl Into<Figures<'a>>, labels: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut last = "";
    each_sample(figures.into(), labels, |metric, labels, value| {
        if metric.name != last {
            last = metric.name;
            let kind = match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
            };
            let _ = write!(text, "# HELP {last} {}\n# TYPE {last} {kind}\n", metric.help);
        }
        text.push_str(metric.name);
        for (at, (name, content)) in labels.iter().enumerate() {
            let content = content.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
            let _ = write!(text, "{}{name}=\"{content}\"", if at == 0 { '{' } else { ',' });
        }
        text.push_str(if labels.is_empty() { " " } else { "} " });
        let _ = match value.is_finite() {
            true => writeln!(text, "{value}"),
            false => writeln!(text, "+Inf"),
        };
    });
    text
}

/// Gives the figures to the recorder of the crate `metrics`, under the names of [`all`]: counters as absolute and whole
/// numbers, so that times are cut to seconds. Call it again and again, as often as the figures are to be fresh. `figures`
/// are those that [`prometheus`] takes. `labels` are added to every sample.
///
/// # Cost
/// A registration and a store for each figure.
///
/// # Examples
/// ```
/// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
/// siltstone::metrics::publish(&db.stats(), &[("db", "main")]);
/// siltstone::metrics::publish(&db.health(), &[("db", "main")]);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[cfg(feature = "metrics")]
pub fn publish<'a>(figures: impl Into<Figures<'a>>, labels: &[(&str, &str)]) {
    use ::metrics::{Label, counter, describe_counter, describe_gauge, gauge};
    let mut last = "";
    each_sample(figures.into(), labels, |metric, labels, value| {
        let is_first = metric.name != last;
        last = metric.name;
        let labels = labels
            .iter()
            .map(|(name, content)| Label::new((*name).to_owned(), (*content).to_owned()));
        let labels: Vec<Label> = labels.collect();
        match metric.kind {
            MetricKind::Counter => {
                if is_first {
                    describe_counter!(metric.name, metric.help);
                }
                counter!(metric.name, labels).absolute(value as u64);
            }
            MetricKind::Gauge => {
                if is_first {
                    describe_gauge!(metric.name, metric.help);
                }
                gauge!(metric.name, labels).set(value);
            }
        }
    });
}

/// Calls `sample` for each figure, all of one metric one after another.
fn each_sample(
    figures: Figures<'_>,
    labels: &[(&str, &str)],
    mut sample: impl FnMut(&Metric, &[(&str, &str)], f64),
) {
    for metric in METRICS {
        match (metric.figure, figures) {
            (Figure::Database(figure), Figures::Stats(stats)) => {
                sample(metric, labels, figure(stats));
            }
            (Figure::Health(figure), Figures::Health(health)) => {
                sample(metric, labels, figure(health));
            }
            (Figure::PartitionHealth(figure), Figures::Health(health)) => {
                for partition in &health.partitions {
                    let labels = [labels, &[("partition", &partition.name)]].concat();
                    sample(metric, &labels, figure(partition));
                }
            }
            (_, Figures::Stats(stats)) => {
                for partition in &stats.partitions {
                    let labels = [labels, &[("partition", &partition.name)]].concat();
                    of_partition(metric, partition, &labels, &mut sample);
                }
            }
            (Figure::Resources(figure), Figures::Resources(usage)) => {
                sample(metric, labels, figure(usage));
            }
            (Figure::Secondary(figure), Figures::Secondary(stats)) => {
                sample(metric, labels, figure(stats));
            }
            (Figure::Followed(figure), Figures::Secondary(stats)) => {
                for partition in &stats.partitions {
                    let labels = [labels, &[("partition", &partition.name)]].concat();
                    let value = figure(partition);
                    if !value.is_nan() {
                        sample(metric, &labels, value);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Calls `sample` for each figure of one partition. `labels` have its name.
fn of_partition(
    metric: &Metric,
    partition: &PartitionStats,
    labels: &[(&str, &str)],
    sample: &mut impl FnMut(&Metric, &[(&str, &str)], f64),
) {
    match metric.figure {
        Figure::Partition(figure) => sample(metric, labels, figure(partition)),
        Figure::ValueStore(figure) => {
            if let Some(values) = &partition.value_store {
                sample(metric, labels, figure(values));
            }
        }
        Figure::Level(figure) => {
            for (number, level) in partition.levels.iter().enumerate() {
                let number = number.to_string();
                sample(metric, &[labels, &[("level", &number)]].concat(), figure(level));
            }
        }
        _ => {}
    }
}
