//! The text of statistics, for people: a line for each partition and for each subject.
//!
//! Programs read the fields. The text leaves out what is zero by its nature, such as the failures of a sound store.

use std::fmt;

use super::{LevelStats, PartitionStats, Stats};
use crate::types::DisplayBytes;

impl fmt::Display for LevelStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LevelStats { table_count, bytes, entry_count, tombstone_count } = self;
        let bytes = DisplayBytes(*bytes);
        write!(
            f,
            "{table_count} tables, {bytes}, {entry_count} entries, {tombstone_count} tombstones"
        )
    }
}

impl fmt::Display for PartitionStats {
    /// A line for the memtables, and a line for each level with tables and for large values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memtables = DisplayBytes(self.memtable_bytes);
        write!(f, "partition {:?}: {memtables} in memtables", self.name)?;
        if self.sealed_memtable_count > 0 {
            write!(f, ", {} wait for a flush", self.sealed_memtable_count)?;
        }
        if self.deleted_range_count > 0 {
            write!(f, ", {} deleted ranges", self.deleted_range_count)?;
        }
        if self.operands_folded > 0 {
            write!(f, ", {} operands folded", self.operands_folded)?;
        }
        if self.expired_removed_count > 0 {
            write!(f, ", {} expired entries removed", self.expired_removed_count)?;
        }
        if self.compaction_debt_bytes > 0 {
            write!(f, ", {} to be compacted", DisplayBytes(self.compaction_debt_bytes))?;
        }
        if let Some(reason) = self.pressure_reason {
            let delay = self.pressure_permille;
            write!(f, ", writes delayed by {delay} thousandths because of {reason}")?;
        }
        let levels = self.levels.iter().enumerate();
        for (number, level) in levels.filter(|(_, level)| level.table_count > 0) {
            write!(f, "\n  level {number}: {level}")?;
        }
        self.value_store.iter().try_for_each(|store| write!(f, "\n  large values: {store}"))
    }
}

impl fmt::Display for Stats {
    /// Without a line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for partition in &self.partitions {
            writeln!(f, "{partition}")?;
        }
        let disk = DisplayBytes(self.disk_bytes);
        let tables = DisplayBytes(self.table_bytes);
        let log = DisplayBytes(self.wal_disk_bytes);
        writeln!(
            f,
            "disk: {disk}; {tables} in tables, {log} in {} segments",
            self.wal_segment_count
        )?;
        if self.is_encrypted {
            writeln!(f, "encryption: all files are encrypted")?;
        }
        let used = DisplayBytes(self.memory_used_bytes);
        let budget = DisplayBytes(self.memory_budget_bytes);
        let memtables = DisplayBytes(self.memtable_bytes);
        let cache = DisplayBytes(self.cache_bytes);
        let open = DisplayBytes(self.open_table_bytes);
        write!(
            f,
            "memory: {used} of {budget}; {memtables} in memtables, {cache} in the block cache, "
        )?;
        writeln!(f, "{open} of open tables")?;
        writeln!(f, "cache: {} hits, {} misses", self.cache_hits, self.cache_misses)?;
        if self.prefix_asked_count > 0 {
            let asked = self.prefix_asked_count;
            writeln!(f, "prefixes: {asked} tables asked, {} spared", self.prefix_spared_count)?;
        }
        let user = DisplayBytes(self.user_bytes);
        writeln!(f, "written: {user} in {} batches", self.batch_count)?;
        let log = DisplayBytes(self.wal_bytes);
        writeln!(f, "log: {log} written, {} syncs", self.wal_sync_count)?;
        writeln!(f, "flushes: {}, {} written", self.flush_count, DisplayBytes(self.flush_bytes))?;
        let read = DisplayBytes(self.compaction_read_bytes);
        let written = DisplayBytes(self.compaction_written_bytes);
        write!(f, "compactions: {}, {read} read, {written} written; ", self.compaction_count)?;
        writeln!(f, "write amplification {:.2}", self.write_amplification())?;
        if self.fifo_removed_table_count > 0 {
            let tables = self.fifo_removed_table_count;
            writeln!(
                f,
                "FIFO: {tables} tables removed, {}",
                DisplayBytes(self.fifo_removed_bytes)
            )?;
        }
        if self.lock_wait_count + self.deadlock_count > 0 {
            let [waits, timeouts] = [self.lock_wait_count, self.lock_timeout_count];
            let deadlocks = self.deadlock_count;
            writeln!(f, "locks: {waits} waits, {timeouts} timeouts, {deadlocks} deadlocks")?;
        }
        write!(f, "files: {} of {} open; ", self.open_files, self.open_files_max)?;
        write!(f, "writers delayed for {:.3} s", self.stalled.as_secs_f64())?;
        if let Some(reason) = &self.read_only_because {
            write!(f, "\nread-only: {reason}")?;
        }
        self.background_error.iter().try_for_each(|error| write!(f, "\nfailed: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::ValueStoreStats;

    #[test]
    fn statistics_print_what_a_person_looks_for() {
        let level =
            LevelStats { table_count: 2, bytes: 20_480, entry_count: 9, tombstone_count: 1 };
        let mut store = ValueStoreStats::default();
        store.unmoved = Some("no room".into());
        let users = PartitionStats {
            name: "us\ners".to_owned(),
            memtable_bytes: 100,
            levels: vec![LevelStats::default(), level],
            deleted_range_count: 3,
            operands_folded: 5,
            pressure_permille: 250,
            pressure_reason: Some("level 0"),
            value_store: Some(store),
            ..PartitionStats::default()
        };
        let stats = Stats {
            partitions: vec![users],
            user_bytes: 10,
            wal_bytes: 15,
            background_error: Some("a flush".to_owned()),
            ..Stats::default()
        };
        let expected = "\
partition \"us\\ners\": 100 B in memtables, 3 deleted ranges, 5 operands folded, writes delayed by 250 thousandths because of level 0
  level 1: 2 tables, 20.0 KiB, 9 entries, 1 tombstones
  large values: 0 chunk files, 0 B, 0 B live, 0 B dead; no room
disk: 0 B; 0 B in tables, 0 B in 0 segments
memory: 0 B of 0 B; 0 B in memtables, 0 B in the block cache, 0 B of open tables
cache: 0 hits, 0 misses
written: 10 B in 0 batches
log: 15 B written, 0 syncs
flushes: 0, 0 B written
compactions: 0, 0 B read, 0 B written; write amplification 1.50
files: 0 of 0 open; writers delayed for 0.000 s
failed: a flush";
        assert_eq!(stats.to_string(), expected);
    }
}
