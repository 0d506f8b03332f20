//! `Db::stats`: a copy of the counters of all parts.

use std::sync::Arc;
use std::time::Duration;

use super::stall::Pressure;
use super::{DbInner, Partition};
use crate::compaction::compaction_debt;
use crate::partition::PartitionState;
use crate::stats::{LevelStats, PartitionStats, Stats};
use crate::version::{Level, Table};

fn level_stats(level: &Level) -> LevelStats {
    let tables = level.tables();
    LevelStats {
        table_count: tables.len() as u64,
        bytes: level.bytes(),
        entry_count: tables.iter().map(|table| table.meta.entries).sum(),
        tombstone_count: tables.iter().map(|table| table.meta.tombstones).sum(),
    }
}

/// The statistics of a partition whose writers are under `pressure`.
fn partition_stats(partition: &PartitionState, pressure: Pressure) -> PartitionStats {
    let view = partition.view();
    let store = partition.store();
    PartitionStats {
        name: partition.name.to_string(),
        memtable_bytes: view.memtable_bytes(),
        sealed_memtable_count: view.sealed.len() as u64,
        levels: view.version.levels.iter().map(level_stats).collect(),
        deleted_range_count: view.span_layers().joined().list().len() as u64,
        operands_folded: partition.operator().map_or(0, |operator| operator.folded()),
        expired_removed_count: partition.expired_removed.get(),
        compaction_debt_bytes: compaction_debt(&view.version),
        pressure_permille: pressure.permille,
        pressure_reason: (pressure.permille > 0).then_some(pressure.cause.text()),
        value_store: store.map(|store| store.stats().unwrap_or_default()),
    }
}

/// The sum of a figure of all tables.
fn sum_of_tables(partitions: &[Arc<PartitionState>], figure: fn(&Table) -> u64) -> u64 {
    let views = partitions.iter().map(|partition| partition.pin());
    views.map(|view| view.version.tables().map(|(_, table)| figure(table)).sum::<u64>()).sum()
}

impl Partition {
    /// The statistics of this partition alone; of one that was dropped, those of an empty one.
    ///
    /// # Cost
    /// That of its tables, however many partitions there are.
    pub fn stats(&self) -> PartitionStats {
        if !self.db().is_own() {
            return PartitionStats { name: self.name().to_owned(), ..PartitionStats::default() };
        }
        partition_stats(self.state(), self.db().scheduler.stall().pressure(self.state()))
    }
}

impl DbInner {
    /// Memory that no memtable of the database takes. What many databases share belongs to none of them.
    fn idle_slab_bytes(&self) -> u64 {
        if self.setup.resources.is_some() { 0 } else { self.setup.slabs.idle_bytes() }
    }

    /// The bytes of all files, with the parts that are in `stats`.
    fn disk_bytes(&self, stats: &Stats, leased_file_bytes: u64) -> u64 {
        let stores = stats.partitions.iter().filter_map(|p| p.value_store.as_ref());
        stats.table_bytes
            + stores.map(|store| store.bytes).sum::<u64>()
            + self.catalog.obsolete().pinned_bytes()
            + leased_file_bytes
            + self.context.under_way.bytes(&*self.context.fs)
            + self.catalog.cursor_bytes()
            + stats.wal_disk_bytes
            + stats.log_retained_bytes
            + stats.manifest_disk_bytes
    }

    /// Returns the statistics of the database.
    pub(super) fn stats(&self) -> Stats {
        let partitions = self.catalog.partitions();
        let tables = || partitions.iter().map(|partition| partition.pin());
        let cache = self.setup.cache.stats();
        let counters = &self.counters;
        let files = &self.context.files;
        let buffers = self.setup.options.memtable_bytes_max();
        let leased_file_bytes = self.leased_file_bytes();
        let mut stats = Stats {
            partitions: self.partition_stats(&partitions),
            user_bytes: counters.user_bytes.get(),
            batch_count: counters.batches.get(),
            wal_bytes: counters.wal_bytes.get(),
            wal_sync_count: counters.wal_syncs.get(),
            flush_bytes: counters.flush_bytes.get(),
            flush_count: counters.flushes.get(),
            compaction_read_bytes: counters.compaction_read_bytes.get(),
            compaction_written_bytes: counters.compaction_written_bytes.get(),
            compaction_count: counters.compactions.get(),
            trivial_move_count: counters.trivial_moves.get(),
            background_waited: Duration::from_nanos(counters.background_wait_nanos.get()),
            background_bytes_per_second: self.runner.io.limiter().bytes_per_second(),
            stalled: Duration::from_nanos(counters.stall_nanos.get()),
            fifo_removed_table_count: counters.fifo_removed_tables.get(),
            fifo_removed_bytes: counters.fifo_removed_bytes.get(),
            lock_wait_count: counters.lock_waits.get(),
            lock_timeout_count: counters.lock_timeouts.get(),
            deadlock_count: counters.deadlocks.get(),
            wal_segment_count: self.catalog.current().log_segments.len() as u64,
            wal_disk_bytes: self.log.disk_bytes(),
            log_retained_segment_count: self.catalog.current().retained.segments.len() as u64,
            log_retained_bytes: self.catalog.current().retained.bytes(),
            manifest_disk_bytes: self.catalog.manifest_bytes(),
            disk_bytes: 0,
            leased_bytes: leased_file_bytes
                .saturating_add(self.catalog.obsolete().leased_value_bytes(0)),
            table_bytes: tables().map(|view| view.version.bytes()).sum(),
            cache_bytes: cache.bytes,
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            prefix_asked_count: self.setup.tables.prefix_counts.asked.get(),
            prefix_spared_count: self.setup.tables.prefix_counts.spared.get(),
            open_table_bytes: sum_of_tables(&partitions, Table::memory_bytes),
            mapped_table_bytes: sum_of_tables(&partitions, Table::mapped_bytes),
            open_files: files.open_count() as u64,
            open_files_max: files.limit() as u64,
            file_reopen_count: files.reopened_count(),
            memtable_bytes: tables().map(|view| view.memtable_bytes()).sum(),
            memory_budget_bytes: buffers.saturating_add(cache.memory_bytes_max()),
            memory_used_bytes: 0,
            is_encrypted: self.context.fs.caps().is_encrypted,
            read_only_because: self.why_read_only().map(|error| error.to_string()),
            background_error: self.scheduler.error().map(|error| error.to_string()),
        };
        stats.disk_bytes = self.disk_bytes(&stats, leased_file_bytes);
        stats.memory_budget_bytes =
            stats.memory_budget_bytes.saturating_add(stats.open_table_bytes);
        stats.memory_used_bytes = stats.memtable_bytes
            + self.idle_slab_bytes()
            + cache.memory_bytes()
            + stats.open_table_bytes;
        stats
    }

    /// Those of the partitions, in the order of their names.
    fn partition_stats(&self, partitions: &[Arc<PartitionState>]) -> Vec<PartitionStats> {
        let stall = self.scheduler.stall();
        let stats = partitions.iter().map(|it| partition_stats(it, stall.pressure(it)));
        let mut stats: Vec<PartitionStats> = stats.collect();
        stats.sort_by(|a, b| a.name.cmp(&b.name));
        stats
    }
}
