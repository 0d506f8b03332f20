//! [`Passed`]: the events of a script.

use siltstone::Stats;

/// The events of a script, for tests that check that it passed certain places.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passed {
    pub flushes: u64,
    pub compactions: u64,
    pub moves: u64,
    pub ingests: u64,
    /// Transactions that were refused.
    pub conflicts: u64,
    /// Tables of a FIFO that were the oldest ones.
    pub fifo_removed: u64,
    pub wal_segments_most: u64,
    pub tables_most: u64,
    /// Flushes after which the manifest had deleted ranges, and those of them with a snapshot held.
    pub with_ranges: u64,
    pub with_ranges_and_snapshot: u64,
    /// Memory of open tables, dictionaries included.
    pub open_table_bytes_most: u64,
}

impl Passed {
    /// Takes in the sizes of a store.
    pub fn note(&mut self, stats: &Stats) {
        let tables = stats.partitions.iter().flat_map(|p| &p.levels).map(|l| l.table_count);
        self.tables_most = self.tables_most.max(tables.sum());
        self.wal_segments_most = self.wal_segments_most.max(stats.wal_segment_count);
        self.open_table_bytes_most = self.open_table_bytes_most.max(stats.open_table_bytes);
    }

    /// Adds the events of another script.
    pub fn add(&mut self, more: &Passed) {
        self.flushes += more.flushes;
        self.compactions += more.compactions;
        self.moves += more.moves;
        self.ingests += more.ingests;
        self.conflicts += more.conflicts;
        self.fifo_removed += more.fifo_removed;
        self.with_ranges += more.with_ranges;
        self.with_ranges_and_snapshot += more.with_ranges_and_snapshot;
        self.wal_segments_most = self.wal_segments_most.max(more.wal_segments_most);
        self.tables_most = self.tables_most.max(more.tables_most);
        self.open_table_bytes_most = self.open_table_bytes_most.max(more.open_table_bytes_most);
    }
}
