//! [`ReadView`]: the memtables and tables that a reader pins.

use std::sync::Arc;

use crate::memtable::Memtable;
use crate::version::PartitionVersion;

/// Memtables and tables of a partition at one moment. With a sequence number it is all that the
/// read path needs: `Db`, snapshots and secondaries read through the same functions.
pub struct ReadView {
    /// Takes writes.
    pub active: Arc<Memtable>,
    /// Wait for their flush, newest first.
    pub sealed: Vec<Arc<Memtable>>,
    /// The tables.
    pub version: Arc<PartitionVersion>,
}

impl ReadView {
    /// The memtables, newest first.
    pub fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(&self.sealed)
    }

    /// Memory of all memtables, in bytes.
    pub fn memtable_bytes(&self) -> u64 {
        self.memtables().map(|memtable| memtable.bytes() + memtable.bloom_bytes()).sum()
    }
}
