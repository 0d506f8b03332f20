//! The counters of the engine, and the copy of them that `Db::stats` returns.
//!
//! Counters are relaxed atomics that background work and the commit path increment. No decision
//! depends on them. Point reads increment none.

mod display;

use std::time::Duration;

pub use crate::hooks::ValueStoreStats;
use crate::types::Counter;

/// Everything that is counted since the open.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes of keys and values that were written by the application.
    pub user_bytes: Counter,
    /// Batches committed.
    pub batches: Counter,
    /// Bytes appended to the WAL.
    pub wal_bytes: Counter,
    /// Syncs of the WAL.
    pub wal_syncs: Counter,
    /// Bytes of tables written by flushes.
    pub flush_bytes: Counter,
    /// Flushes done.
    pub flushes: Counter,
    /// Bytes of tables read by compactions.
    pub compaction_read_bytes: Counter,
    /// Bytes of tables written by compactions.
    pub compaction_written_bytes: Counter,
    /// Compactions done, trivial moves included.
    pub compactions: Counter,
    /// Trivial moves done.
    pub trivial_moves: Counter,
    /// Time that flushes and compactions waited for the rate of background writes, in nanoseconds.
    pub background_wait_nanos: Counter,
    /// Time that writers were held back, in nanoseconds.
    pub stall_nanos: Counter,
    /// Tables that FIFO partitions have removed.
    pub fifo_removed_tables: Counter,
    /// Their bytes.
    pub fifo_removed_bytes: Counter,
    /// Requests for a locked key that had to wait.
    pub lock_waits: Counter,
    /// Waits that ended because the time was over.
    pub lock_timeouts: Counter,
    /// Requests that were refused because of a deadlock.
    pub deadlocks: Counter,
}

/// One level of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LevelStats {
    /// Number of tables of the level.
    pub table_count: u64,
    /// Bytes of these tables on disk.
    pub bytes: u64,
    /// Number of entries in these tables, tombstones included.
    pub entry_count: u64,
    /// Number of tombstones among the entries.
    pub tombstone_count: u64,
}

/// One partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PartitionStats {
    /// Name of the partition.
    pub name: String,
    /// Memory of the memtables of the partition, in bytes.
    pub memtable_bytes: u64,
    /// Number of memtables that wait for their flush.
    pub sealed_memtable_count: u64,
    /// Levels of the partition, level 0 first.
    pub levels: Vec<LevelStats>,
    /// Number of deleted ranges that may hide entries of tables: gets, scans and merges look at them.
    pub deleted_range_count: u64,
    /// Operands of merges that reads, flushes and compactions have folded since the open.
    pub operands_folded: u64,
    /// Entries that flushes and compactions have removed since the open because they had expired.
    pub expired_removed_count: u64,
    /// Bytes that compactions have to move before every level is within its target.
    pub compaction_debt_bytes: u64,
    /// The delay of writes to it, in thousandths: at 0 there is none, at 1000 writes are stopped.
    pub pressure_permille: u32,
    /// The strongest cause of the delay, if there is one.
    pub pressure_reason: Option<&'static str>,
    /// The chunk files of its large values, if it keeps values apart.
    pub value_store: Option<ValueStoreStats>,
}

/// A copy of all counts, from `Db::stats`. Prints itself as lines of text for people; the text may change with each
/// version.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// The partitions in the order of their names.
    pub partitions: Vec<PartitionStats>,
    /// Bytes of keys and values that the application wrote since the open. A large value counts with the
    /// length of its handle; [`ValueStoreStats::written_bytes`] counts its bytes.
    pub user_bytes: u64,
    /// Batches committed since the open.
    pub batch_count: u64,
    /// Bytes appended to the WAL since the open.
    pub wal_bytes: u64,
    /// Syncs of the WAL since the open.
    pub wal_sync_count: u64,
    /// Bytes that flushes wrote since the open.
    pub flush_bytes: u64,
    /// Flushes since the open.
    pub flush_count: u64,
    /// Bytes that compactions read since the open.
    pub compaction_read_bytes: u64,
    /// Bytes that compactions wrote since the open.
    pub compaction_written_bytes: u64,
    /// Compactions since the open.
    pub compaction_count: u64,
    /// Compactions among them that only moved a table.
    pub trivial_move_count: u64,
    /// Time that flushes and compactions have waited since the open for the rate of background writes, see
    /// [`Options::background_bytes_per_second`](crate::options::Options::background_bytes_per_second). Jobs
    /// that wait at the same time are added up.
    pub background_waited: Duration,
    /// The rate now, in bytes a second; 0 is no limit.
    pub background_bytes_per_second: u64,
    /// Time by which writers were delayed since the open.
    pub stalled: Duration,
    /// Log segments on disk.
    pub wal_segment_count: u64,
    /// Bytes of all live tables.
    pub table_bytes: u64,
    /// Bytes of all log segments, with the space that is reserved for writes to come.
    pub wal_disk_bytes: u64,
    /// Bytes of the log that are kept for those who follow the changes, see
    /// [`Options::log_retained_bytes`](crate::options::Options::log_retained_bytes).
    pub log_retained_bytes: u64,
    /// The segments that these bytes are in.
    pub log_retained_segment_count: u64,
    /// Bytes of the manifest.
    pub manifest_disk_bytes: u64,
    /// Bytes of the database on the disk, as its folder has them: live tables, those that are being written,
    /// obsolete files that wait for readers or for their deletion, chunk files, log, manifest and commit
    /// cursor. Without locks, claims and leases, which have some bytes each, and without what exports and
    /// checkpoints write to other folders.
    pub disk_bytes: u64,
    /// Bytes of obsolete files and large values that no view here holds: secondaries may read them still,
    /// or they are about to be deleted.
    pub leased_bytes: u64,
    /// Bytes in the block cache; of one that is [shared](crate::Resources), those of this database, for which all
    /// of its blocks are looked at.
    pub cache_bytes: u64,
    /// Tables that FIFO partitions have removed since the open, see
    /// [`CompactionStyle::Fifo`](crate::options::CompactionStyle::Fifo).
    pub fifo_removed_table_count: u64,
    /// Bytes of these tables.
    pub fifo_removed_bytes: u64,
    /// Requests of transactions since the open for a locked key that had to wait.
    pub lock_wait_count: u64,
    /// Waits among them that ended in [`ErrorKind::LockTimeout`](crate::error::ErrorKind::LockTimeout).
    pub lock_timeout_count: u64,
    /// Requests since the open that were refused as [`ErrorKind::Deadlock`](crate::error::ErrorKind::Deadlock).
    pub deadlock_count: u64,
    /// Block cache lookups that found their block.
    pub cache_hits: u64,
    /// Block cache lookups that did not find their block.
    pub cache_misses: u64,
    /// Tables that scans within one prefix have asked for it since the open, see
    /// [`PartitionOptions::prefix_extractor`](crate::options::PartitionOptions::prefix_extractor).
    pub prefix_asked_count: u64,
    /// Tables among them that do not have the prefix, so that the scan did not search them.
    pub prefix_spared_count: u64,
    /// Memory of open tables' indexes and filters, in bytes.
    pub open_table_bytes: u64,
    /// Bytes of open tables that are read through mappings, see
    /// [`Options::tables_mapped`](crate::options::Options::tables_mapped). Their pages are memory of the
    /// system's page cache.
    pub mapped_table_bytes: u64,
    /// Tables and chunk files that are open for reading now.
    pub open_files: u64,
    /// The maximum number of them, see [`Options::open_files_max`](crate::options::Options::open_files_max).
    pub open_files_max: u64,
    /// Number of times since the open that one of them was opened again.
    pub file_reopen_count: u64,
    /// Memory of all memtables, in bytes.
    pub memtable_bytes: u64,
    /// The bytes that memtables, block cache and open tables may take together: three times the
    /// write buffers, the cache's capacity (from 16 MiB on with an eighth of it, for free places in its
    /// memory), and what the open tables' indexes and filters take. It is exceeded by at most the
    /// batches that are being written while memory runs full, and the memtables' filters: 4 KiB each,
    /// and at most about 11 bytes a key. A cache that is [shared](crate::Resources) counts with its whole capacity.
    pub memory_budget_bytes: u64,
    /// The bytes that they take now.
    pub memory_used_bytes: u64,
    /// The file system encrypts the files of the database. That of a primary of a bucket encrypts its folder, and that of
    /// a reader the bucket.
    pub is_encrypted: bool,
    /// The reason why the store refuses writes, if it does. The store resumes without help, unless it
    /// was opened read-only.
    pub read_only_because: Option<String>,
    /// The newest failure of background work without a later success.
    pub background_error: Option<String>,
}

impl Stats {
    /// Bytes of the log, of flushes and of compactions for each of [`Stats::user_bytes`]; 0 before the first
    /// write. Chunk files of large values and the manifest are not in it.
    pub fn write_amplification(&self) -> f64 {
        let written = self.wal_bytes + self.flush_bytes + self.compaction_written_bytes;
        if self.user_bytes == 0 { 0.0 } else { written as f64 / self.user_bytes as f64 }
    }
}
