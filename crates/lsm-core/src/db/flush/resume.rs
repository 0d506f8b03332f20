//! Resuming after a failed sync of the log.
//!
//! The files whose sync failed are condemned: the kernel may have dropped their pages, so nothing in them is
//! read, synced or trusted again by this process. But everything that readers see is in memory. So the store
//! turns read-only, writes the memtables to new tables, and begins a new log, in a new file. Then it takes
//! writes again. Attempted by any flush: of the flush thread, `Db::step`, or a call of `flush`; and again after
//! each failure, like any flush.
//!
//! Invariants:
//! 1. One edit adds the tables of all logged partitions, removes every segment of the log and lists
//!    the new one. A crash before it finds the old log, in which everything that was synced is
//!    intact; a crash after it finds the tables. Two edits could split a batch.
//! 2. The new segment is durable, header and name, before that edit. Its header has the last
//!    sequence of the log before it, so it does not look like a log that lost something.
//! 3. Nothing is appended to the log between the sealing and the edit: writes are refused, and
//!    control frames too.

use std::sync::Arc;

use super::{FlushedTables, Flusher, newest_sealed};
use crate::db::install::check_synced;
use crate::db::jobs::FlushTurn;
use crate::db::unconfirmed::DoubtfulFiles;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::hooks::{AttachedStore, Event, PendingHandle};
use crate::partition::PartitionState;
use crate::types::{Epoch, FileNo, SeqNo};
use crate::version::{Change, DbVersion};

/// A partition whose memtables are in tables that are not installed yet.
type Rewritten = (Arc<PartitionState>, FlushedTables);

/// A partition, its value store, and the section of an edit about dropped handles.
type StoreSection<'a> = (&'a PartitionState, &'a Arc<AttachedStore>, Vec<u8>);

impl Flusher {
    /// Writes the memtables to new files and takes writes again. The caller holds the turn to
    /// flush, and nothing else.
    ///
    /// # Errors
    /// Those of the new files, or of the manifest. The store does not change: it is readable, and
    /// the next attempt may succeed.
    ///
    /// # Cost
    /// A table for each logged partition that was written to, a segment, and an edit.
    pub(super) fn resume(&self, turn: &FlushTurn<'_>) -> Result<()> {
        self.ownership.check_not_closed()?;
        // A sync that still runs could end after the restart, and would then note places of the old
        // log as durable.
        self.log.wait_for_failed_sync();
        // Before the tables are written: without a manifest they could not be installed.
        let mut editing = self.runner.catalog.edit()?;
        editing.ensure_writable()?;
        // Under the lock: after it the edit of a job may fail, and note the files that it may name.
        let doubtful = self.runner.catalog.unconfirmed().take();
        drop(editing);
        self.release_unconfirmed(doubtful);
        let mut partitions = self.runner.catalog.partitions();
        // Partitions without a log lost nothing and are flushed as usual.
        partitions.retain(|partition| partition.logged);
        // All memtables are sealed under one lock of the log: a batch over two partitions is then
        // sealed in both or in none.
        let mut between = self.log.lock();
        partitions.iter().for_each(|partition| self.sealer.seal(&mut between, partition));
        drop(between);
        let mut rewritten: Vec<Rewritten> = Vec::new();
        for partition in partitions {
            let Some(newest) = newest_sealed(&partition) else { continue };
            // The log will not name their values any more, so values in doubt are written again
            // (`rescues`).
            match self.write_sealed(turn, &partition, newest, true) {
                Ok(written) => rewritten.push((partition, written)),
                Err(error) => {
                    self.discard(&rewritten);
                    return Err(error);
                }
            }
        }
        // The tables contain handles, and the values that these point to must be durable first.
        if let Err(error) =
            self.runner.catalog.sync_values().and_then(|()| check_all_synced(&rewritten))
        {
            self.discard(&rewritten);
            return Err(error);
        }
        self.begin_again(&mut rewritten)?;
        for (partition, written) in &rewritten {
            self.sealer.update_pressure(partition);
            self.count_flush(partition, written);
        }
        // Files that cannot be removed now are removed later, and the failure is noted there.
        let _ = self.installer.removal().remove();
        // Only now, because a listener may write at once.
        self.runner.events.tell(&Event::Resumed);
        self.background.flush_worked();
        self.background.wake_all();
        self.sealer.ease();
        Ok(())
    }

    /// Installs the tables and the new log, and releases the old segments.
    fn begin_again(&self, rewritten: &mut [Rewritten]) -> Result<()> {
        let relocated = rewritten.iter_mut().map(|(_, written)| &mut written.made.values.relocated);
        let relocated: Vec<PendingHandle> = relocated.flat_map(std::mem::take).collect();
        let rewritten = &*rewritten;
        let mut writer = self.log.lock();
        // `close` ends the log under the same lock, so it is either done or not begun here.
        let ready = self.ownership.check_not_closed().and_then(|()| check_hooks(rewritten));
        let fresh = ready.and_then(|()| writer.fresh_segment());
        let segment = fresh.inspect_err(|_| self.discard(rewritten))?;
        let number = segment.header().number;
        let mut versions = self.runner.catalog.edit()?;
        let edit = NewLog::plan(
            versions.current(),
            versions.next_number(),
            rewritten,
            (number, self.log.epoch()),
            self.runner.commit.visible_seq(),
        )
        .inspect_err(|_| {
            // Nothing names them yet.
            self.log.delete_unnamed(number);
            self.discard(rewritten);
        })?;
        let NewLog { number: edit, changes, kept, dropped, sections, condemned, forgotten } = edit;
        let relocated = self.runner.catalog.unconfirmed().until_installed(relocated);
        let installed = versions.install(changes);
        let version = match installed {
            Ok(version) => version,
            Err(error) => {
                // The edit may be on disk.
                let tables = rewritten.iter().flat_map(|(_, written)| &written.made.tables);
                self.runner.catalog.unconfirmed().note(tables.cloned(), number);
                return Err(error);
            }
        };
        relocated.keep();
        for (partition, written) in &kept {
            let through = Some(written.through);
            partition.install(version.partitions[&partition.id].clone(), through);
        }
        for (partition, store, bytes) in &sections {
            let before = partition.past_versions();
            self.runner.catalog.obsolete().add_values(edit, partition, store, bytes, before);
        }
        drop(versions);
        // After the edit and under the lock of the log: the next frame must not go to a segment
        // that the manifest does not list.
        writer.restart(segment);
        drop(writer);
        self.log.make_obsolete(condemned);
        self.runner.catalog.make_obsolete(forgotten);
        dropped
            .iter()
            .for_each(|(_, written)| self.installer.removal().forget(&written.made.tables));
        self.runner.catalog.obsolete().notify_stores();
        Ok(())
    }

    /// Releases files of earlier attempts, once the manifest takes edits again.
    fn release_unconfirmed(&self, doubtful: DoubtfulFiles) {
        let DoubtfulFiles { tables, segments, values } = doubtful;
        // With a number, like files that an edit dropped: a secondary without a cursor may have
        // read the failed edit.
        self.runner
            .catalog
            .make_obsolete(tables.iter().map(|meta| (meta.file_name(), meta.bytes)).collect());
        self.log.make_obsolete(segments);
        drop(values);
    }

    fn discard(&self, rewritten: &[Rewritten]) {
        rewritten
            .iter()
            .for_each(|(_, written)| self.installer.removal().forget(&written.made.tables));
    }
}

/// The edit that replaces the old log by tables and a new segment, and the parts of it that are
/// needed afterwards.
struct NewLog<'a> {
    number: u64,
    changes: Vec<Change>,
    /// The tables of partitions that exist.
    kept: Vec<&'a Rewritten>,
    /// Those of partitions that were dropped meanwhile.
    dropped: Vec<&'a Rewritten>,
    sections: Vec<StoreSection<'a>>,
    /// The segments that count no more.
    condemned: Vec<FileNo>,
    /// Those that were kept for those who follow the changes, with their lengths in bytes.
    forgotten: Vec<(FileName, u64)>,
}

impl<'a> NewLog<'a> {
    /// The edit number `number`, after `current`.
    ///
    /// # Errors
    /// Those of value stores, which are asked for their sections.
    fn plan(
        current: &DbVersion,
        number: u64,
        rewritten: &'a [Rewritten],
        (segment, epoch): (FileNo, Epoch),
        last_seq: SeqNo,
    ) -> Result<NewLog<'a>> {
        let condemned: Vec<_> = current.log_segments.keys().copied().collect();
        // All of the old log in this edit, even segments whose sync worked: see invariant 1.
        let mut changes: Vec<Change> =
            condemned.iter().map(|file| Change::SegmentRemoved { file: *file }).collect();
        changes.push(Change::SegmentAdded { file: segment, epoch });
        // The commits between them and the new segment are in no log any more.
        let forgotten = current.retained.segments.iter();
        changes.extend(forgotten.clone().map(|(file, _)| Change::SegmentForgotten { file: *file }));
        let forgotten = forgotten
            .map(|(file, kept)| (FileName::new(FileKind::Wal, *file, kept.epoch), kept.bytes));
        let forgotten = forgotten.collect();
        let (kept, dropped): (Vec<&Rewritten>, Vec<&Rewritten>) = rewritten
            .iter()
            .partition(|(partition, _)| current.partitions.contains_key(partition.id));
        for (partition, written) in &kept {
            changes.extend(written.changes(partition.id));
        }
        // Only of the kept partitions: the store of a dropped one was notified that all of its
        // values are dropped.
        let sections = store_sections(&kept)?;
        changes.extend(sections.iter().map(|(partition, _, bytes)| Change::StoreSection {
            partition: partition.id,
            number,
            bytes: bytes.clone(),
        }));
        changes.push(Change::LastSeq(last_seq));
        Ok(NewLog { number, changes, kept, dropped, sections, condemned, forgotten })
    }
}

/// Returns an error if a sync of values failed while tables were written.
fn check_all_synced(rewritten: &[Rewritten]) -> Result<()> {
    rewritten.iter().try_for_each(|(partition, written)| match partition.store() {
        Some(store) => check_synced(store, &written.made.values),
        None => Ok(()),
    })
}

/// Returns an error if a partition has got other hooks since its tables were written; the next
/// attempt uses these.
fn check_hooks(rewritten: &[Rewritten]) -> Result<()> {
    let mut partitions = rewritten.iter();
    match partitions.find(|(partition, written)| partition.view().version.hooks != written.hooks) {
        None => Ok(()),
        Some((partition, _)) => {
            let message =
                format!("the hooks of partition {:?} changed; it is flushed again", partition.name);
            Err(Error::new(ErrorKind::Io, message))
        }
    }
}

fn store_sections<'a>(kept: &[&'a Rewritten]) -> Result<Vec<StoreSection<'a>>> {
    let with_store = kept.iter().filter_map(|(partition, written)| {
        let store = partition.store().filter(|_| !written.made.values.is_empty())?;
        let section = store.call("edit", |store| store.edit(written.made.values.edit()));
        Some(section.map(|section| (&**partition, store, section)))
    });
    with_store.collect()
}

#[cfg(test)]
mod doubt;
#[cfg(test)]
mod tests;
