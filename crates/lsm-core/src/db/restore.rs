//! [`Restorer`]: entries of gaps come from a copy elsewhere. Called by `Partition::repair`, by repairs, and for
//! hooks that may know a copy.
//!
//! The partition's filter knows the copy; it returns the entries of a gap (`hooks/sealer.rs`). They
//! are added as by an ingest, as one write at a new sequence number, in the same edit that closes the
//! gap: the copy decides about a key of the gap, whatever older entries there are.
//!
//! ```text
//! ask the copy -> leave out keys with newer entries -> write tables
//!   -> between two groups of writers: look again, take a number, install tables and closing
//! ```
//!
//! Invariants:
//! 1. No write is overruled: a key with an entry newer than the gap does not change.
//! 2. Reads through earlier snapshots are still refused in the gap.
//! 3. No key is added that a put would refuse, or would store in another form.

use std::sync::Arc;

use super::exchange::check_stored_key;
use super::gaps::{borrowed, closing};
use super::install::{Installation, Installer};
use super::job::{JobRunner, StartedJob};
use super::job_parts::JobParts;
use super::jobs::Jobs;
use super::log::Log;
use super::ownership::Ownership;
use crate::error::Result;
use crate::hooks::{Event, OwnedEntry, Sealer};
use crate::iter::InternalIter;
use crate::memtable::{Memtable, SlabPool, TrueEntry};
use crate::partition::{PartitionState, ReadView};
use crate::read::{Bounds, Source};
use crate::types::{EntryKind, Gap, Gaps, InGap, KeyRef, MemtableId, SeqNo, Trailer};
use crate::version::{Change, HookRecord, PartitionVersion, SstMeta, TableContext};

/// Most attempts for a gap if there are writes into it meanwhile.
const ATTEMPTS: usize = 8;

/// The part of an open gap that is restored.
struct GapPart<'g> {
    gap: &'g Gap,
    within: Gap,
    /// The parts that stay open.
    rest: Vec<Gap>,
}

/// A key of a gap, with the value of the copy.
struct Restored {
    key: Vec<u8>,
    value: Vec<u8>,
    /// The newest entry of the key in the partition.
    newest: Option<SeqNo>,
}

/// Restores the entries of gaps from a copy.
pub(super) struct Restorer {
    log: Arc<Log>,
    runner: Arc<JobRunner>,
    jobs: Arc<Jobs>,
    installer: Arc<Installer>,
    /// Says whether the database was opened for reading.
    ownership: Arc<Ownership>,
}

impl Restorer {
    pub(super) fn new(parts: &JobParts, installer: Arc<Installer>) -> Restorer {
        let JobParts { log, runner, jobs, ownership, .. } = parts.clone();
        Restorer { log, runner, jobs, installer, ownership }
    }

    /// Asks again for the entries of the gaps of a partition, if its filter knows a copy. A failure
    /// is not reported here: the remaining gap reports it.
    pub(super) fn retry_gaps(&self, partition: &Arc<PartitionState>) {
        let everything = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let _ = self.restore_gaps(partition, &everything);
    }

    /// Closes the gaps within `bounds` with the entries of the copy.
    ///
    /// # Errors
    /// Of the copy; of reading, writing and installing.
    pub(super) fn restore_gaps(
        &self,
        partition: &Arc<PartitionState>,
        bounds: &Bounds,
    ) -> Result<()> {
        let hooks = partition.hooks();
        let gaps = partition.view().version.gaps.clone();
        let is_wanted = gaps.open().next().is_some() && !self.ownership.is_read_only();
        if !is_wanted || !hooks.sealer().is_some_and(Sealer::restores) {
            return Ok(());
        }
        let _entered = self.jobs.enter(partition);
        self.log.check_open()?;
        for gap in gaps.open() {
            let Some((within, rest)) = gap.split(borrowed(bounds)) else { continue };
            let part = GapPart { gap, within, rest };
            for _ in 0..ATTEMPTS {
                if self.restore(partition, &part)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Restores a part of a gap; `false` if there was a write into it meanwhile.
    fn restore(&self, partition: &Arc<PartitionState>, part: &GapPart<'_>) -> Result<bool> {
        let within = &part.within;
        // The view first: if hooks change after it, nothing is installed.
        let view = partition.pin();
        let hooks = partition.hooks();
        let gaps = &view.version.gaps;
        // Entries that are lost in an overlapping gap may be newer.
        let beside = gaps.open().filter(|it| it.from <= within.to && within.from <= it.to);
        let through = beside.map(|it| it.through).max().unwrap_or(within.through);
        let asked = Gap { through, ..within.clone() };
        let sealer = hooks.sealer().filter(|sealer| sealer.restores());
        let answer = sealer.map_or(Ok(None), |sealer| sealer.restore(&asked))?;
        // No copy knows an answer. That is no race with a writer, so another attempt would be in
        // vain.
        let Some(entries) = answer else { return Ok(true) };
        // Before anything is written: the entries of the copy do not pass the check of a put.
        for entry in &entries {
            check_stored_key(partition, &hooks.rules, partition.key_form, &entry.key)?;
        }
        let Some(restored) = self.restored(&view, gaps, &asked, entries)? else { return Ok(true) };
        let tables = self.write_restored(partition, &view.version, &restored)?;
        let ran_with = &view.version.hooks;
        let installed = self.install_restored(partition, part, ran_with, tables, &restored)?;
        if installed {
            for Restored { key, .. } in restored {
                let partition = partition.name.to_string();
                self.runner.events.tell(&Event::Repaired {
                    partition,
                    key,
                    source: "replica".to_owned(),
                });
            }
        }
        Ok(installed)
    }

    /// The keys whose values come from the copy; `None` if it has unacceptable ones.
    fn restored(
        &self,
        view: &ReadView,
        gaps: &Gaps,
        asked: &Gap,
        mut entries: Vec<OwnedEntry>,
    ) -> Result<Option<Vec<Restored>>> {
        // Of one key the newest first: only that one counts.
        entries.sort_by(|a, b| (&a.key, b.seq).cmp(&(&b.key, a.seq)));
        let mut newest = NewestEntries::of(&self.runner.tables, view)?;
        let mut last: Option<Vec<u8>> = None;
        let mut restored = Vec::new();
        for entry in entries {
            let is_older = last.as_ref() == Some(&entry.key);
            let is_asked = entry.seq <= asked.through && *asked.from <= entry.key[..];
            // A copy may return more than requested. Outside of the gap the partition's own entries
            // count.
            if is_older || !is_asked || entry.key[..] > *asked.to {
                continue;
            }
            last = Some(entry.key.clone());
            // A handle leads into the copy's own store. The gap stays open, because the closing
            // would hide an omitted entry for good.
            if !entry.verified || !matches!(entry.kind, EntryKind::Value | EntryKind::Tombstone) {
                return Ok(None);
            }
            let found = newest.seq_of(&entry.key)?;
            // Its value is lost, and the one that a replica has may have the operand in it.
            if newest.is_operand {
                return Ok(None);
            }
            let is_deleted = entry.seq < view.deleted_at(&entry.key, SeqNo::MAX);
            let is_known =
                is_deleted || gaps.effect_on(&entry.key, SeqNo::MAX, found).0 == InGap::Unaffected;
            // The closing hides older entries, so a deletion needs no entry.
            if !is_known && entry.kind == EntryKind::Value {
                let OwnedEntry { key, value, .. } = entry;
                restored.push(Restored { key, value, newest: found });
            }
        }
        Ok(Some(restored))
    }

    fn write_restored(
        &self,
        partition: &Arc<PartitionState>,
        version: &Arc<PartitionVersion>,
        restored: &[Restored],
    ) -> Result<Vec<SstMeta>> {
        // Irrelevant, except that nothing flushed is newer: all get another one.
        let seq = self.runner.commit.visible_seq();
        let entries: Vec<TrueEntry> = restored
            .iter()
            .map(|it| TrueEntry {
                key: it.key.clone(),
                trailer: Trailer::new(seq, EntryKind::Value),
                value: it.value.clone(),
            })
            .collect();
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let empty = Memtable::new(MemtableId(1), &Arc::new(SlabPool::new(0)));
        let memtable = empty.mended(&entries).expect("each key came once");
        let memtables = [memtable];
        let merge = crate::compaction::Merge::flush(&memtables, version);
        let job = StartedJob { version: version.clone(), ..self.runner.start(partition) };
        Ok(self.runner.run(&job, &merge, &|| false)?.tables)
    }

    /// Installs tables and closing as one write; `false` if a key has a newer entry by now, or the
    /// gap has changed.
    fn install_restored(
        &self,
        partition: &Arc<PartitionState>,
        part: &GapPart<'_>,
        ran_with: &Arc<[HookRecord]>,
        mut tables: Vec<SstMeta>,
        restored: &[Restored],
    ) -> Result<bool> {
        // Once before writers have to wait, so that the sync below has little left to do.
        self.log.sync_all()?;
        // No group commits from the check to the installation, so no key gets a newer entry between
        // them.
        let mut between = self.log.lock();
        // Durability: all earlier numbers, as for an ingest.
        let ready = self
            .log
            .sync_all()
            .and_then(|()| self.is_unchanged(partition, ran_with, part.gap, restored));
        match ready {
            Ok(true) => {}
            unready => {
                // No edit names them, and the next attempt writes others.
                self.installer.removal().forget(&tables);
                return unready;
            }
        }
        let seq = between.take_seqs(1);
        // One number for tables and closing, above everything that was lost: a reader that sees the
        // gap closed sees the values, and an earlier snapshot is still refused.
        tables.iter_mut().for_each(|meta| meta.global_seq = Some(seq));
        let levels = self.jobs.reserve_levels(partition, &tables);
        let id = partition.id;
        let added = tables.iter().zip(&levels).map(|(meta, level)| Change::TableAdded {
            partition: id,
            level: *level as u8,
            meta: meta.clone(),
        });
        let mut changes: Vec<Change> = added.chain([Change::LastSeq(seq)]).collect();
        // In the edit that adds the tables: after a separate earlier one, a crash in between would
        // make every key of the gap read as deleted.
        changes.extend(closing(id, part.gap, &part.within, &part.rest, seq));
        let installation = Installation { made: &tables, ..Installation::foreign(changes) };
        let installed = self.installer.install(partition, installation);
        if let Ok(true) = installed {
            // After the edit: a reader at this number must find the tables.
            self.runner.commit.publish_unlogged(&between);
        }
        drop(between);
        self.jobs.release_levels(partition, &tables);
        match installed {
            Ok(true) => Ok(true),
            Ok(false) => Err(partition.dropped_error()),
            Err(error) => Err(error),
        }
    }

    /// Returns `true` if gap, hooks and keys have not changed since the copy was asked.
    fn is_unchanged(
        &self,
        partition: &Arc<PartitionState>,
        hooks: &Arc<[HookRecord]>,
        gap: &Gap,
        restored: &[Restored],
    ) -> Result<bool> {
        self.log.check_open()?;
        partition.check_live()?;
        let view = partition.pin();
        if !view.version.gaps.contains(gap) || view.version.hooks != *hooks {
            return Ok(false);
        }
        let mut newest = NewestEntries::of(&self.runner.tables, &view)?;
        for it in restored {
            if newest.seq_of(&it.key)? != it.newest {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Finds the newest entries of keys. A clear or a deleted range counts as a deletion of each of its keys.
struct NewestEntries<'v> {
    sources: Vec<Source>,
    view: &'v ReadView,
    /// The last answer was about an operand.
    is_operand: bool,
}

impl<'v> NewestEntries<'v> {
    fn of(tables: &Arc<TableContext>, view: &'v ReadView) -> Result<NewestEntries<'v>> {
        let sources = Source::all(view, tables)?;
        Ok(NewestEntries { sources, view, is_operand: false })
    }

    fn seq_of(&mut self, key: &[u8]) -> Result<Option<SeqNo>> {
        let deleted = self.view.deleted_at(key, SeqNo::MAX);
        let mut newest = Some(deleted).filter(|seq| *seq > SeqNo::ZERO);
        self.is_operand = false;
        for source in &mut self.sources {
            source.seek(Some(KeyRef::seek(key, SeqNo::MAX)))?;
            if source.valid() && source.key().user == key {
                let trailer = source.key().trailer;
                if Some(trailer.seq()) > newest {
                    newest = Some(trailer.seq());
                    self.is_operand = trailer.kind() == Some(EntryKind::Operand);
                }
            }
        }
        Ok(newest)
    }
}
