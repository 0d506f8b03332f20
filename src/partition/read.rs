//! Reads of one [`Partition`]: gets, ranges, cursors and figures.

use lsm_core::error::Result;
use lsm_core::read::{Cursor, KeyRange, Keys, Range};
use lsm_core::stats::PartitionStats;
use lsm_core::types::Slice;

use super::Partition;

/// Reading.
impl Partition {
    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) that names file and key if a block on
    /// the path to the value is damaged; an older value is never returned instead.
    /// [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) for a large value of more than
    /// [`FORMAT_VALUE_BYTES_MAX`](crate::limits::FORMAT_VALUE_BYTES_MAX) bytes, which
    /// [`Partition::open_blob`] reads. A dropped partition; a closed store.
    ///
    /// # Cost
    /// Reads at most one data block per level-0 table and per deeper level, if it is not in the cache.
    /// Takes no lock. Allocates nothing if the key does not exist.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.0.get(key)
    }

    /// Returns whether `key` exists. Errors and cost are those of [`Partition::get`].
    #[inline]
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.0.contains(key)
    }

    /// Returns a double-ended iterator over the keys and values in `range`, as they are at the call:
    /// later writes are not visible. `range` may be any range type of the standard library over any
    /// type that is bytes. A range whose start is greater than its end is empty.
    ///
    /// Errors are items of the iterator. The iterator ends after an error; a new range can start
    /// after the damage.
    ///
    /// # Cost
    /// The first item searches every memtable, every level-0 table and one table of each deeper
    /// level. Each further item costs a few comparisons. The iterator keeps the memtables in memory
    /// and the tables on disk until it is dropped.
    pub fn range(&self, range: impl KeyRange) -> Range {
        self.0.range(range)
    }

    /// Returns all keys and values, as [`Partition::range`] does.
    pub fn iter(&self) -> Range {
        self.0.iter()
    }

    /// Returns the keys that begin with `prefix`, and their values, as [`Partition::range`] does.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.0.prefix(prefix)
    }

    /// Returns a double-ended iterator over all keys. It reads no large values.
    pub fn keys(&self) -> Keys {
        self.0.keys()
    }

    /// Returns a cursor over the partition as it is at the call. A cursor lends keys and values;
    /// [`Partition::range`] copies them. The first seek reports an error of this call.
    pub fn cursor(&self) -> Cursor {
        self.0.cursor()
    }

    /// Returns a cursor over the keys in `range`. Every seek and move stays within the range and reads
    /// nothing outside of it. Otherwise as [`Partition::cursor`].
    pub fn cursor_in(&self, range: impl KeyRange) -> Cursor {
        self.0.cursor_in(range)
    }

    /// Returns the first key and its value; `None` if the partition is empty.
    ///
    /// # Errors
    /// Those of [`Partition::get`].
    ///
    /// # Cost
    /// That of the first item of [`Partition::range`].
    pub fn first(&self) -> Result<Option<(Slice, Slice)>> {
        // An iterator reads nothing before its first step, so this costs one seek.
        self.iter().next().transpose()
    }

    /// Returns the last key and its value; `None` if the partition is empty. Errors and cost are
    /// those of [`Partition::first`].
    pub fn last(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next_back().transpose()
    }

    /// Returns the approximate number of keys. Overwritten and deleted entries count until a
    /// compaction drops them. The number is exact after [`Partition::compact`] over all keys, if
    /// there are no writes and no snapshots.
    ///
    /// # Errors
    /// A dropped partition; a closed store.
    ///
    /// # Cost
    /// A few additions for each table; reads no file.
    pub fn len_approx(&self) -> Result<u64> {
        self.0.len_approx()
    }

    /// Returns the statistics of this partition: a copy. They are among those of
    /// [`Db::stats`](crate::Db::stats) as well, which copies them for all partitions. A dropped
    /// partition has those of an empty one.
    ///
    /// # Cost
    /// A few additions for each table of the partition, however many partitions there are.
    pub fn stats(&self) -> PartitionStats {
        self.0.stats()
    }
}
