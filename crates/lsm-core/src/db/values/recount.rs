//! Counting the values of a partition again, after entries of its tables were lost.
//!
//! A value store is notified of a handle when a table gets it, and again when no table has it any more.
//! A job that finds damage beyond repair leaves out entries that it cannot read. So the store is not
//! notified of their handles, and their values would take space for ever. Once the gap is closed, by
//! the owner or by a replica, all tables of the partition are read, and the store drops the values that
//! none names.
//!
//! ```text
//! the state of the store and the version, as of one edit -> read the tables of that version
//!   -> an edit that drops the values of the state that no table names
//! ```
//!
//! A walk over the chunk files was tempting instead. They do not have the lengths of values, and a
//! deleted value looks like a lost one.
//!
//! Invariants:
//! 1. A value is dropped once. The state has it and no table of its version does, so no later edit of a
//!    job drops it; and one count runs at a time.
//! 2. A closed gap stays in the manifest until the values are counted. So a count that a crash or an
//!    error interrupted is made after the next open.

use std::sync::Arc;
use std::vec;

use super::{CountingTurn, ValueReclaimer};
use crate::db::log::Log;
use crate::error::{Error, Result};
use crate::hooks::{AttachedStore, Dropped, StoreEdit};
use crate::iter::InternalIter;
use crate::partition::PartitionState;
use crate::sstable::{ReadMode, SstIter};
use crate::types::{EntryKind, SeqNo};
use crate::version::{Change, PartitionVersion, Table, TableContext};

impl ValueReclaimer {
    /// Drops the values of a partition that no table names, if a gap was closed since the last
    /// count; `false` if none was.
    ///
    /// # Errors
    /// Those of reading the tables, of the store and of the manifest. The next try is made when another
    /// gap is closed, and after the next open.
    pub(in crate::db) fn recount_values(
        &self,
        partition: &Arc<PartitionState>,
        _turn: &CountingTurn<'_>,
    ) -> Result<bool> {
        let newest = newest_closed(&partition.view().version);
        let Some(newest) = newest.filter(|newest| self.goals.begin_count(partition.id, *newest))
        else {
            return Ok(false);
        };
        if let Some(store) = partition.store().filter(|store| store.holds_values()) {
            self.drop_unnamed(partition, store)?;
        }
        // Only after a whole count: until then the closed gap stays, and with it the reason to
        // count again.
        self.goals.end_count(partition.id, newest);
        Ok(true)
    }

    fn drop_unnamed(
        &self,
        partition: &Arc<PartitionState>,
        store: &Arc<AttachedStore>,
    ) -> Result<()> {
        let Some((counted, state)) = self.state_of_one_edit(partition, store)? else {
            return Ok(());
        };
        let tables: Vec<_> = counted.tables().map(|(_, table)| table.clone()).collect();
        let mut named = NamedHandles {
            log: &self.log,
            context: &self.runner.tables,
            tables: tables.into_iter(),
            entries: None,
        };
        let unnamed = Dropped::Unnamed { state: &state, named: &mut named };
        let section = store.call("edit", |store| store.edit(StoreEdit::dropping(unnamed)))?;
        if section.is_empty() {
            return Ok(());
        }
        let mut editing = self.runner.catalog.edit()?;
        // The tables were read without a lock, and the partition may have been dropped meanwhile.
        if !editing.current().partitions.contains_key(partition.id) {
            return Ok(());
        }
        let number = editing.next_number();
        let bytes = section.clone();
        let change = Change::StoreSection { partition: partition.id, number, bytes };
        let version = editing.install(vec![change])?;
        partition.install(version.partitions[&partition.id].clone(), None);
        let before = partition.past_versions();
        self.runner.catalog.obsolete().add_values(number, partition, store, &section, before);
        drop(editing);
        // If it were held, it would count as a reader of the values that this edit drops.
        drop(counted);
        self.removal.finish()
    }

    /// The version of a partition, and the state of its store as of the same edit; `None` if it was
    /// dropped.
    fn state_of_one_edit(
        &self,
        partition: &PartitionState,
        store: &AttachedStore,
    ) -> Result<Option<(Arc<PartitionVersion>, Vec<u8>)>> {
        loop {
            self.runner.catalog.obsolete().notify_all_stores()?;
            let editing = self.runner.catalog.edit()?;
            let Some(version) = editing.current().partitions.get(partition.id) else {
                return Ok(None);
            };
            // Under the lock of the manifest, so that no edit comes between the version and the
            // state. If the store was not notified of an edit, that is done without the lock, and
            // the loop looks again.
            if let Some(state) = self.runner.catalog.obsolete().store_state(partition.id, store) {
                return Ok(Some((version.clone(), state?.section)));
            }
        }
    }
}

fn newest_closed(version: &PartitionVersion) -> Option<SeqNo> {
    version.gaps.iter().filter_map(|gap| gap.closed_at).max()
}

/// The handles of all entries of some tables.
struct NamedHandles<'a> {
    /// Says whether the database is closed.
    log: &'a Log,
    context: &'a TableContext,
    tables: vec::IntoIter<Arc<Table>>,
    /// The entries of the table under way.
    entries: Option<SstIter>,
}

impl NamedHandles<'_> {
    fn advance(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let Some(entries) = self.entries.as_mut().filter(|entries| entries.valid()) else {
                let Some(table) = self.tables.next() else { return Ok(None) };
                // Once a table: a count over a large partition must not delay a close.
                self.log.check_open()?;
                // Past the cache: a count reads every block once.
                let mut entries = table.reader(self.context)?.iter(ReadMode::Streaming);
                entries.seek(None)?;
                self.entries = Some(entries);
                continue;
            };
            let is_handle = entries.key().trailer.kind() == Some(EntryKind::Handle);
            let handle = is_handle.then(|| entries.value().to_vec());
            entries.next()?;
            if handle.is_some() {
                return Ok(handle);
            }
        }
    }
}

impl Iterator for NamedHandles<'_> {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Result<Vec<u8>>> {
        self.advance().transpose()
    }
}
