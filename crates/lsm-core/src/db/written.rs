//! From sealed memtables to tables that an edit can install.
//!
//! `jobs.rs` installs them one partition at a time, `resume.rs` all at once.

use std::sync::Arc;
use std::time::Duration;

use super::DbInner;
use crate::error::Result;
use crate::flush::flush;
use crate::hooks::Event;
use crate::partition::PartitionState;
use crate::snapshot::DecidingJob;
use crate::types::{MemtableId, PartitionId, SeqNo};
use crate::version::{Change, SstMeta};

/// Sealed memtables that are in tables which are not installed yet.
pub(super) struct Written {
    pub(super) tables: Vec<SstMeta>,
    /// Handles that no entry refers to any more.
    pub(super) dropped: Vec<Vec<u8>>,
    /// The memtables through this one,
    pub(super) through: MemtableId,
    /// and the operations through this one.
    last_seq: SeqNo,
    took: Duration,
    /// Until it is installed new snapshots keep the partition's view.
    _deciding: Option<DecidingJob>,
}

impl Written {
    /// What installing them changes.
    pub(super) fn changes(&self, partition: PartitionId) -> Vec<Change> {
        let tables = self.tables.iter().cloned();
        let added = tables.map(|meta| Change::TableAdded { partition, level: 0, meta });
        let (seq, memtables_through) = (self.last_seq, self.through);
        added.chain([Change::FlushedThrough { partition, seq, memtables_through }]).collect()
    }
}

impl DbInner {
    /// Writes the sealed memtables of a partition through `through`, which is one of them, to
    /// tables, and installs nothing. The caller holds `Jobs::flushing`.
    pub(super) fn write_sealed(
        &self,
        partition: &Arc<PartitionState>,
        through: MemtableId,
    ) -> Result<Written> {
        let started = self.background.now();
        let _span = tracing::debug_span!("flush", partition = &*partition.name).entered();
        let view = partition.pin();
        let newer = view.sealed.iter().take_while(|memtable| memtable.id > through).count();
        let sealed = &view.sealed[newer..];
        let last_seq = sealed.first().expect("`through` is sealed").last_seq();
        let hooks = partition.hooks();
        let (snapshots, deciding) = self.snapshots_for(partition, &hooks);
        let factory = self.factory();
        let (tables, dropped) =
            self.run_to_tables(&partition.pin(), &hooks, &snapshots, |stages| {
                flush(sealed, &view.version, stages, &factory)
            })?;
        let took = self.background.now().saturating_sub(started);
        Ok(Written { tables, dropped, through, last_seq, took, _deciding: deciding })
    }

    /// Counts and tells a flush that is installed.
    pub(super) fn count_flush(&self, partition: &PartitionState, written: &Written) {
        let bytes = written.tables.iter().map(|meta| meta.bytes).sum();
        self.counters.flush_bytes.add(bytes);
        self.counters.flushes.add(1);
        let (partition, took) = (partition.name.to_string(), written.took);
        self.tell(&Event::Flushed { partition, bytes, took });
    }
}
