//! [`ReplayedTables`]: the first tables of an epoch, made of the replayed log.
//!
//! Used by `db/recovery.rs`, which knows the order of the steps. This file does not know the manifest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::compaction::{JobHooks, JobOutcome, Merge, RunContext, TableFactory};
use crate::db::clear_seqs::clear_seqs_added;
use crate::db::hook_binding::HooksOf;
use crate::db::spans::spans_added;
use crate::error::{Error, Result};
use crate::fs::names::FileName;
use crate::hooks::{AddedValue, StoreEdit};
use crate::memtable::{clear_seqs_of, spans_of};
use crate::replay::Replay;
use crate::types::{PartitionId, SeqNo};
use crate::version::{Change, DbVersion, SstMeta, VersionEdit, apply};

/// The values that the log names, by partition.
pub(super) type AddedValues = BTreeMap<PartitionId, Vec<AddedValue>>;

/// The sections of an edit that adds values to tables.
pub(super) fn store_sections(
    added: &AddedValues,
    hooks: &HooksOf,
) -> Result<Vec<(PartitionId, Vec<u8>)>> {
    let mut sections = Vec::new();
    for (partition, added) in added.iter().filter(|(_, added)| !added.is_empty()) {
        let Some(store) = hooks.get(partition).and_then(|hooks| hooks.store.as_ref()) else {
            continue;
        };
        let section = store.call("edit", |store| store.edit(StoreEdit::adding(added)))?;
        sections.push((*partition, section));
    }
    Ok(sections)
}

/// The tables that replayed operations were written to. If they are dropped before they are kept,
/// they are removed: attempts of an open must not fill a disk that is too full for a new epoch.
pub(super) struct ReplayedTables<'a> {
    factory: &'a TableFactory,
    /// The version of the manifest and of everything that was written since: a tombstone may be
    /// dropped only if neither has an entry that it deletes.
    version: DbVersion,
    pub(super) changes: Vec<Change>,
    /// The values that their handles point to.
    pub(super) added: AddedValues,
    hooks: &'a HooksOf,
    /// Time since 1970 at the open.
    unix_time: Duration,
    made: Vec<FileName>,
}

impl Drop for ReplayedTables<'_> {
    fn drop(&mut self) {
        for name in &self.made {
            // A file that cannot be removed is an orphan file, and the next open removes it.
            let _ = self.factory.fs.delete(&name.path(&self.factory.dir));
        }
    }
}

impl<'a> ReplayedTables<'a> {
    pub(super) fn new(
        version: &DbVersion,
        factory: &'a TableFactory,
        hooks: &'a HooksOf,
        unix_time: Duration,
    ) -> ReplayedTables<'a> {
        let version = version.clone();
        ReplayedTables {
            factory,
            version,
            changes: Vec::new(),
            added: AddedValues::new(),
            hooks,
            unix_time,
            made: Vec::new(),
        }
    }

    /// A manifest may name the tables from now on: they are kept.
    pub(super) fn keep(&mut self) {
        self.made.clear();
    }

    /// Makes all of them durable: before a manifest names them.
    pub(super) fn sync(&self) -> Result<()> {
        if self.made.is_empty() { Ok(()) } else { self.factory.sync_rest() }
    }

    pub(super) fn write(&mut self, replay: &mut Replay) -> Result<()> {
        let factory = self.factory;
        let mut changes = Vec::new();
        let tables = Arc::new(factory.context());
        // One table for each partition, as a flush makes.
        for (id, memtable) in replay.take() {
            let id: PartitionId = id;
            let seq = memtable.last_seq();
            // Only the newest clear sequence matters: every reader of this epoch comes later and is above
            // it.
            let clear_seqs = clear_seqs_of(std::slice::from_ref(&memtable)).distinguished_by(&[]);
            let spans = spans_of(std::slice::from_ref(&memtable)).distinguished_by(&[]);
            let partition = &self.version.partitions[&id];
            let mut hooks = self.hooks.get(&id).cloned().unwrap_or_default();
            let ageing = hooks.ageing().cloned();
            // Filters decide later on entries that they have not seen, in a job that knows the
            // snapshots.
            hooks.filters.retain(|filter| filter.sealer().is_some());
            // With a value store every version is kept: a compaction reports values without a
            // reference, in the edit that drops them.
            let keep_all = hooks.store.is_some();
            // Above the last snapshot nothing is dropped: with one at 0 every version stays, with
            // one at the maximum the newest version of each key.
            let snapshots = [if keep_all { SeqNo::ZERO } else { SeqNo::MAX }];
            let job_hooks = JobHooks::new(&hooks, &snapshots, &[], None).without_readers();
            let job_hooks = job_hooks.ageing(ageing, self.unix_time, hooks.rules.key_form)?;
            let merge = Merge::flush(&[memtable], partition);
            let context = RunContext {
                factory,
                tables: &tables,
                job_hooks,
                should_stop: &|_| false,
                sources: None,
                unix_seconds: self.unix_time.as_secs(),
            };
            match merge.run(context)? {
                JobOutcome::Done { tables, values, .. } => {
                    let names = tables.iter().map(SstMeta::file_name);
                    self.made.extend(names);
                    self.added.entry(id).or_default().extend(values.added);
                    changes.extend(tables.into_iter().map(|meta| Change::TableAdded {
                        partition: id,
                        level: 0,
                        meta,
                    }));
                }
                JobOutcome::Faulty(_) => {
                    let what = "a replayed entry changed in memory";
                    return Err(Error::corruption(&factory.dir, None, what));
                }
            }
            let memtables_through = Default::default();
            changes.push(Change::FlushedThrough { partition: id, seq, memtables_through });
            changes.extend(clear_seqs_added(id, &clear_seqs));
            changes.extend(spans_added(id, &spans));
        }
        let number = self.version.edit_number + 1;
        let edit = VersionEdit { number, changes };
        // Applied at once: the next piece of the log must see these tables, because a tombstone in
        // it may delete one of their entries.
        self.version = apply(&self.version, &edit)
            .map_err(|refused| Error::corruption(&factory.dir, None, refused.0))?;
        self.changes.extend(edit.changes);
        Ok(())
    }
}
