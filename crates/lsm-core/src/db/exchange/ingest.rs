//! `Partition::ingest`: adds the tables of an export, as one write.
//!
//! All work that does not block writers is done first: checking, linking, flushing overlapping
//! memtables, syncing the log. Then, between two groups of writers, the ingest takes its sequence
//! number, becomes durable as one edit, and visible.
//!
//! Invariants:
//! 1. At the sequence number that it takes, every older entry of its keys is in tables: memtables
//!    are checked first, and must hold nothing older.
//! 2. The log is durable through all sequence numbers before it when the edit is written; otherwise
//!    a crash could keep the ingest and lose earlier writes.
//! 3. Nothing is visible beyond its sequence number before its edit is installed, so no snapshot
//!    sees a part of it.
//! 4. Its number is used up even if it fails: the edit may be on disk.

use std::path::Path;
use std::sync::Arc;

use super::arrival::Arrival;
use super::description::ExportDescription;
use crate::db::flush::newest_sealed;
use crate::db::hook_binding::{check_no_reserved_key, check_tables};
use crate::db::install::Installation;
use crate::db::log::SegmentRelease;
use crate::db::{DbInner, Partition};
use crate::error::Result;
use crate::hooks::PartitionHooks;
use crate::iter::InternalIter;
use crate::partition::PartitionState;
use crate::types::{KeyRef, SeqNo};
use crate::version::{Change, HookRecord, SstMeta};

/// The result of an ingest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestSummary {
    /// Number of tables.
    pub tables: usize,
    /// Number of keys.
    pub entries: u64,
    /// Length of all tables together, in bytes.
    pub bytes: u64,
    /// The sequence number of all of them; for an empty export the newest visible one.
    pub seq: SeqNo,
}

impl IngestSummary {
    /// The summary of these tables.
    pub(super) fn of(tables: &[SstMeta], seq: SeqNo) -> IngestSummary {
        IngestSummary {
            tables: tables.len(),
            entries: tables.iter().map(|meta| meta.entries).sum(),
            bytes: tables.iter().map(|meta| meta.bytes).sum(),
            seq,
        }
    }
}

impl Partition {
    /// Adds the export that [`Partition::export`] of this or another database wrote to the folder
    /// `dir`: sets all of its keys at once, as one operation. It shadows writes that were
    /// acknowledged before; writes that begin after it win; existing snapshots and iterators do not
    /// see it. Keys that it does not have do not change.
    ///
    /// Its files are linked if the file system supports that, so `dir` must not be written to
    /// afterwards; it may be removed.
    ///
    /// If the exporting partition reserves an ending of keys for hidden entries, this partition
    /// reserves it from now on, and gets the filter that adds them, if its code is available.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `dir` holds no export, or one of a partition whose rules
    /// for keys contradict this one's; [`ErrorKind::ReservedKey`] if this partition has keys with
    /// the ending that would be reserved, or the export has keys with one that is;
    /// [`ErrorKind::Unsupported`] if newer code wrote it; corruption that names file and offset,
    /// and the key if a filter found it; a limit that a key or value exceeds. Nothing is changed
    /// then. If the manifest cannot be written, the export is not visible, and it is unknown
    /// whether it will be after the next open.
    ///
    /// # Durability
    /// Durable once this returns, with every logged write before it.
    ///
    /// # Cost
    /// Reads the export once to check it. Flushes the memtables if they hold keys in its range.
    /// Writers wait for one edit of the manifest, and for a flush of the entries that were written
    /// into the range during this call.
    ///
    /// [`ErrorKind::InvalidArgument`]: crate::ErrorKind::InvalidArgument
    /// [`ErrorKind::ReservedKey`]: crate::ErrorKind::ReservedKey
    /// [`ErrorKind::Unsupported`]: crate::ErrorKind::Unsupported
    pub fn ingest(&self, dir: impl AsRef<Path>) -> Result<IngestSummary> {
        let db = self.db();
        let state = self.state();
        let dir = dir.as_ref();
        let mut arrival = Arrival::begin(db, state)?;
        let description = ExportDescription::read(&*db.context.fs, dir)?;
        arrival.check(dir, &description)?;
        arrival.place(dir, &description)?;
        let check = |arrival: &mut Arrival<'_>| arrival.check(dir, &description);
        let seq = db.install_arrival(state, &mut arrival, check)?;
        Ok(IngestSummary::of(&arrival.tables, seq))
    }
}

/// Returns `true` if a memtable holds a key in the range of one of the tables.
fn memtables_overlap(partition: &PartitionState, tables: &[SstMeta]) -> Result<bool> {
    let view = partition.pin();
    for memtable in view.memtables() {
        let mut entries = memtable.iter();
        for meta in tables {
            entries.seek(Some(KeyRef::seek(&meta.smallest.user, SeqNo::MAX)))?;
            if entries.valid() && *entries.key().user <= *meta.largest.user {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The changes that add these tables under the number `seq`, and the hooks whose rules the partition
/// takes over.
fn changes_of(
    partition: &PartitionState,
    tables: &[SstMeta],
    levels: &[usize],
    seq: SeqNo,
    hooks: Option<Vec<HookRecord>>,
) -> Vec<Change> {
    let id = partition.id;
    let added = tables.iter().cloned().zip(levels).map(|(meta, level)| Change::TableAdded {
        partition: id,
        level: *level as u8,
        meta,
    });
    let rules = hooks.map(|hooks| {
        let options = (*partition.view().version.options).clone();
        Change::PartitionOptionsChanged { id, options, hooks }
    });
    added.chain([Change::LastSeq(seq)]).chain(rules).collect()
}

impl DbInner {
    /// Checks what the partition has against the rules that come with an arrival.
    fn check_present(&self, partition: &PartitionState, hooks: &PartitionHooks) -> Result<()> {
        let view = partition.pin();
        check_tables(&self.setup.tables, &partition.name, hooks, &view.version)?;
        let suffix = &hooks.rules.reserved_suffix;
        check_no_reserved_key(&self.setup.tables, partition, &view, suffix)
    }

    /// Adds the tables of an arrival to the partition; returns their sequence number, or without tables the present one.
    /// `check` is called if the rules for keys changed since the arrival was checked. Every earlier logged write is durable
    /// after it, also without tables.
    pub(super) fn install_arrival<'a>(
        &self,
        partition: &Arc<PartitionState>,
        arrival: &mut Arrival<'a>,
        check: impl FnOnce(&mut Arrival<'a>) -> Result<()>,
    ) -> Result<SeqNo> {
        let flusher = self.scheduler.flusher();
        // Older entries of these keys must be below the ingested tables, because a read stops at
        // the first place that has the key.
        if memtables_overlap(partition, &arrival.tables)? {
            self.scheduler.sealer().seal(&mut self.log.lock(), partition);
            flusher.finish_flushes(std::slice::from_ref(partition))?;
        }
        // Once before writers have to wait, so that the sync below has little left to do.
        self.log.sync_all()?;
        if arrival.tables.is_empty() {
            return Ok(self.commit.visible_seq());
        }
        // No other flush from here on: present writes are newer than the ingest and must stay above
        // it.
        let turn = self.scheduler.jobs().flush_turn();
        let mut between = self.log.lock();
        self.check_open()?;
        partition.check_live()?;
        if memtables_overlap(partition, &arrival.tables)? {
            self.scheduler.sealer().seal(&mut between, partition);
            if let Some(newest) = newest_sealed(partition) {
                flusher.flush_partition(&turn, partition, newest, SegmentRelease::Later)?;
            }
        }
        // Again under the lock: every number below the one that is taken must be durable before the
        // edit that names it.
        self.log.sync_all()?;
        // The check ran without a lock. It is repeated only if the rules changed.
        if arrival.rules_epoch != partition.rules_epoch() {
            check(arrival)?;
        }
        let (hooks, records) = arrival.hooks.take().unzip();
        if let Some(hooks) = &hooks {
            self.check_present(partition, hooks)?;
        }
        let seq = between.take_seqs(1);
        // One number for all: a snapshot sees all of the ingest or nothing of it.
        arrival.tables.iter_mut().for_each(|meta| meta.global_seq = Some(seq));
        // Until the edit is installed: a compaction that began meanwhile could write into these
        // ranges.
        let levels = self.scheduler.jobs().reserve_levels(partition, &arrival.tables);
        let changes = changes_of(partition, &arrival.tables, &levels, seq, records);
        // Before the edit, which may be on disk even if installing it fails.
        arrival.keep_files();
        let values = std::mem::take(&mut arrival.values);
        let installed = self.scheduler.installer().install(
            partition,
            Installation { made: &arrival.tables, values, hooks, ..Installation::foreign(changes) },
        );
        if let Ok(true) = installed {
            // Still between two groups: the next batch gets a higher number and must not be visible
            // first.
            self.commit.publish_unlogged(&between);
        }
        drop(between);
        drop(turn);
        self.scheduler.jobs().release_levels(partition, &arrival.tables);
        if installed? {
            Ok(seq)
        } else {
            // Its drop is durable, and about to be reported.
            Err(partition.dropped_error())
        }
    }
}
