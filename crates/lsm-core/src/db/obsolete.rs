//! [`ObsoleteFiles`]: the files and values that may be removed, and their removal.
//!
//! Every file that an edit has named is deleted here, and nowhere else: tables, segments of the log,
//! also condemned ones, generations of the manifest, and unneeded files that an open finds. Chunk files
//! are deleted with their values. Files that no edit ever named need not come here; no secondary knows
//! of them.
//!
//! A table that left the version waits here until no view holds it: neither a reader, nor an iterator,
//! nor a job. The edit that dropped a file is durable before the file comes here, and the remains
//! after a crash are removed after the next open.
//!
//! A secondary may read a file after the edit that dropped it: its lease names the oldest edit whose version
//! it reads (`shared/lease.rs`). Every file that waits here has the number of its edit, or of a later one,
//! and is deleted only when no lease names an older one. Leases are read before a deletion, and never by a
//! write.
//!
//! Values that an edit dropped wait in the same way. Their store is notified twice: of the edit, as
//! soon as it is durable, and that they cannot be read any more.
//!
//! Invariants:
//! 1. Stores get edits in their order, and one at a time. A failed one is repeated, and no later
//!    edit comes before it.
//! 2. The manifest keeps the sections that a store has not applied: its whole state replaces its
//!    sections only when none of them waits here. Edits are queued under the lock that they are
//!    installed under, so none is missed.
//! 3. In one turn, generations of the manifest are deleted last, garbage first, then the oldest, one
//!    sync of the folder for each: recovery succeeds after every prefix of the deletions, also if the
//!    newest one is damaged.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::leases::{Holds, LeaseTable};
use crate::error::Result;
use crate::fs::names::{FileKind, FileName};
use crate::fs::{FilesUnderWay, Fs};
use crate::hooks::{AttachedStore, StoreSnapshot, catch_engine};
use crate::partition::PartitionState;
use crate::types::PartitionId;
use crate::version::{PartitionVersion, PastGeneration, SstMeta, Table, age_of};

/// A file that is in no version any more.
struct WaitingFile {
    name: FileName,
    bytes: u64,
    /// Held by views of this process. Other files than tables are not held.
    table: Weak<Table>,
    /// The edit that dropped it, or a later one; 0 if no secondary may read it.
    edit: u64,
}

/// Values that an edit dropped.
struct DroppedValues {
    edit: u64,
    partition: PartitionId,
    store: Arc<AttachedStore>,
    /// The edit's record of them, until the store has applied it.
    section: Option<Arc<[u8]>>,
    /// Their bytes, known once the store has applied the record.
    bytes: u64,
    /// The versions before the edit that may still be read.
    before: Vec<Weak<PartitionVersion>>,
}

impl WaitingFile {
    /// Returns `true` if only secondaries may read it.
    fn waits_for_leases(&self) -> bool {
        self.edit > 0 && self.table.strong_count() == 0
    }

    fn is_generation(&self) -> bool {
        self.name.kind == FileKind::Manifest
    }
}

impl DroppedValues {
    /// Returns `true` if nothing in this process reads them.
    fn is_free(&self) -> bool {
        self.section.is_none() && self.before.iter().all(|version| version.strong_count() == 0)
    }
}

/// An edit, its store, and its section for the store.
type UnappliedEdit = (u64, Arc<AttachedStore>, Arc<[u8]>);

/// The files and values that wait for their removal.
pub(super) struct ObsoleteFiles {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    leases: LeaseTable,
    under_way: Arc<FilesUnderWay>,
    waiting: Mutex<Vec<WaitingFile>>,
    /// Tables of dropped partitions whose blocks leave the cache in the next turn.
    stale: Mutex<Vec<Arc<Table>>>,
    /// Oldest first.
    values: Mutex<VecDeque<DroppedValues>>,
    /// Held by the thread that removes files or notifies stores, during their calls; no other lock
    /// is taken outside of it, and only `wait_idle` waits for it.
    turn: Mutex<()>,
}

impl ObsoleteFiles {
    /// Of files in the folder `dir`.
    pub(super) fn new(
        fs: Arc<dyn Fs>,
        dir: PathBuf,
        leases: LeaseTable,
        under_way: Arc<FilesUnderWay>,
    ) -> ObsoleteFiles {
        ObsoleteFiles {
            fs,
            dir,
            leases,
            under_way,
            waiting: Mutex::default(),
            stale: Mutex::default(),
            values: Mutex::default(),
            turn: Mutex::default(),
        }
    }

    /// Adds tables whose removal by `edit`, or by an earlier one, is durable. Their blocks leave the cache,
    /// so that those of new tables have room.
    ///
    /// # Cost
    /// A look into the cache for each block of the tables. That is little compared with the job that has
    /// read them.
    pub(super) fn add<'a>(&self, edit: u64, tables: impl Iterator<Item = &'a Arc<Table>> + Clone) {
        // Here and not when the last reader releases the table: that may be a get, which would wait
        // for thousands of blocks. A reader of an older version reads its blocks again.
        tables.clone().for_each(|table| forget_blocks(table));
        self.add_tables(edit, tables);
    }

    /// As [`ObsoleteFiles::add`], for the tables of a dropped partition: their blocks leave the cache with
    /// the next removal. The caller has not read them, and would wait for a look into the cache for each
    /// block of the partition.
    pub(super) fn add_dropped(&self, edit: u64, tables: Vec<Arc<Table>>) {
        self.add_tables(edit, tables.iter());
        self.stale.lock().extend(tables);
    }

    fn add_tables<'a>(&self, edit: u64, tables: impl Iterator<Item = &'a Arc<Table>>) {
        let entries = tables.map(|table| {
            let name = table.meta.file_name();
            WaitingFile { name, bytes: table.meta.bytes, table: Arc::downgrade(table), edit }
        });
        let entries: Vec<_> = entries.collect();
        self.waiting.lock().extend(entries);
    }

    /// Adds files, with their lengths in bytes, that the durable edit `edit`, or an earlier one, dropped. A
    /// secondary may read them, and nothing in this process does.
    pub(super) fn add_files(&self, edit: u64, files: impl IntoIterator<Item = (FileName, u64)>) {
        let files = files.into_iter().map(|(name, bytes)| {
            self.under_way.remove(&name.path(&self.dir));
            WaitingFile { name, bytes, table: Weak::new(), edit }
        });
        let files: Vec<_> = files.collect();
        self.waiting.lock().extend(files);
    }

    /// Notes that a durable edit lists the tables `added`.
    pub(super) fn note_listed(&self, added: &[FileName]) {
        added.iter().for_each(|name| self.under_way.remove(&name.path(&self.dir)));
    }

    /// Adds generations of the manifest that are history.
    pub(super) fn add_generations(&self, past: Vec<PastGeneration>) {
        for PastGeneration { name, bytes, edit } in past {
            self.add_files(edit, [(name, bytes)]);
        }
    }

    /// Notes that the durable edit `edit` dropped values of a partition, with its section about
    /// them, and the earlier versions that may still be read. Under the lock of the versions, once
    /// the partition has the new version.
    pub(super) fn add_values(
        &self,
        edit: u64,
        partition: &PartitionState,
        store: &Arc<AttachedStore>,
        section: &[u8],
        before: Vec<Weak<PartitionVersion>>,
    ) {
        self.values.lock().push_back(DroppedValues {
            edit,
            partition: partition.id,
            store: store.clone(),
            section: Some(section.into()),
            bytes: 0,
            before,
        });
    }

    /// Adds tables that a job wrote and that no edit named, not even one that failed.
    pub(super) fn add_unnamed(&self, tables: &[SstMeta]) {
        self.add_files(0, tables.iter().map(|meta| (meta.file_name(), meta.bytes)));
    }

    /// Returns `true` if no file waits for its release.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty() && self.values.lock().is_empty()
    }

    /// Bytes of files that are held.
    pub(super) fn pinned_bytes(&self) -> u64 {
        // Counted without an `upgrade`: a strong reference would look like a reader to `take_free`.
        let waiting = self.waiting.lock();
        let held = waiting.iter().filter(|file| file.table.strong_count() > 0);
        held.map(|file| file.bytes).sum()
    }

    /// Bytes of files that nothing in this process holds: secondaries do, or they are about to be
    /// deleted.
    pub(super) fn leased_file_bytes(&self) -> u64 {
        let waiting = self.waiting.lock();
        let free = waiting.iter().filter(|file| file.table.strong_count() == 0);
        free.map(|file| file.bytes).sum()
    }

    /// The holds of secondaries on the waiting files. Everything counts as held if nothing could be
    /// deleted, because no lease is read then, and so does everything that a later edit drops: a
    /// secondary may take its first lease between the look and that edit.
    fn holds(&self) -> Result<Holds> {
        let asks = self.waiting.lock().iter().any(WaitingFile::waits_for_leases);
        if !asks && !self.has_free_values() {
            return Ok(Holds::ALL);
        }
        // Before the leases are read: files that an edit drops from now on count as held, because a
        // secondary may take its first lease in between.
        let newest = self.newest_edit();
        let holds = self
            .leases
            .holds(&*self.fs, &self.dir, |released| self.leased_bytes_after(released))?;
        Ok(holds.through(newest))
    }

    /// The newest edit that dropped a file or a value that waits.
    fn newest_edit(&self) -> u64 {
        let of_files = self.waiting.lock().iter().map(|file| file.edit).max();
        let of_values = self.values.lock().iter().map(|values| values.edit).max();
        of_files.max(of_values).unwrap_or(0)
    }

    /// Bytes of files and values that wait only for secondaries if those need the files that edits
    /// after `released` dropped.
    fn leased_bytes_after(&self, released: u64) -> u64 {
        let waiting = self.waiting.lock();
        let leased = waiting.iter().filter(|file| file.waits_for_leases() && file.edit > released);
        let bytes: u64 = leased.map(|file| file.bytes).sum();
        drop(waiting);
        bytes.saturating_add(self.leased_value_bytes(released))
    }

    /// Bytes of values that nothing in this process reads and that an edit after `released` dropped.
    pub(super) fn leased_value_bytes(&self, released: u64) -> u64 {
        let values = self.values.lock();
        let leased = values.iter().filter(|values| values.edit > released && values.is_free());
        leased.map(|values| values.bytes).fold(0, u64::saturating_add)
    }

    /// Removes the files and values that are not held any more; `None` if another thread does. Not
    /// under a lock.
    ///
    /// # Errors
    /// Those of the file system and of the value stores. The remaining files are tried again.
    pub(super) fn remove(&self) -> Option<Result<()>> {
        Some(self.remove_in_turn(self.turn.try_lock()?))
    }

    /// As [`ObsoleteFiles::remove`], after any other thread that removes.
    pub(super) fn finish_removing(&self) -> Result<()> {
        self.remove_in_turn(self.turn.lock())
    }

    fn remove_in_turn(&self, turn: MutexGuard<'_, ()>) -> Result<()> {
        // First: this thread has the last references, and the files could not be deleted.
        let stale = std::mem::take(&mut *self.stale.lock());
        stale.iter().for_each(|table| forget_blocks(table));
        drop(stale);
        let reported = self.deliver_in_turn(&turn);
        // Leases are read when something is about to be deleted, and never by a write. If they
        // cannot be read, everything counts as held: a file that stays too long costs space, and
        // one that goes too early fails a secondary.
        let leases = self.holds();
        let known = leases.as_ref().copied().unwrap_or(Holds::ALL);
        // Not after a store that failed: it would have to free values that it does not know of yet.
        let values = reported.and_then(|()| self.reclaim_values(known));
        let (generations, others): (Vec<_>, Vec<_>) =
            self.take_free(known).into_iter().partition(WaitingFile::is_generation);
        let mut files = leases.map(|_| ());
        for file in others {
            if let Err(error) = self.delete(&file) {
                // Without its edit: the file was free, it cannot be used again, and no lease needs
                // to be read next time.
                self.waiting.lock().push(WaitingFile { edit: 0, ..file });
                files = files.and(Err(error));
            }
        }
        values.and(files).and(self.delete_generations(generations))
    }

    fn delete(&self, file: &WaitingFile) -> Result<()> {
        let path = file.name.path(&self.dir);
        // After a panic, too, the caller puts the file back.
        catch_engine("the removal of a file", || {
            self.fs.delete(&path)?;
            // Two removals of generations under one sync could reach the disk in the other order.
            if file.is_generation() { self.fs.sync_dir(&self.dir) } else { Ok(()) }
        })
    }

    /// Deletes generations of the manifest in the order of invariant 3. After an error the rest is tried
    /// again.
    fn delete_generations(&self, mut generations: Vec<WaitingFile>) -> Result<()> {
        generations.sort_by_key(|file| (file.edit > 0, age_of(file.name)));
        let mut generations = generations.into_iter();
        while let Some(file) = generations.next() {
            if let Err(error) = self.delete(&file) {
                // With its edit, by which they are sorted again.
                self.waiting.lock().extend(std::iter::once(file).chain(generations));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Notifies value stores of the edits that dropped their values, unless another thread does. A
    /// failed notification is repeated by [`ObsoleteFiles::remove`], and so are the later ones of
    /// that store.
    pub(super) fn notify_stores(&self) {
        if let Some(turn) = self.turn.try_lock() {
            let _ = self.deliver_in_turn(&turn);
        }
    }

    /// As [`ObsoleteFiles::notify_stores`], after any other thread that does.
    ///
    /// # Errors
    /// Those of a store: it does not know all of its values.
    pub(super) fn notify_all_stores(&self) -> Result<()> {
        self.deliver_in_turn(&self.turn.lock())
    }

    fn deliver_in_turn(&self, _turn: &MutexGuard<'_, ()>) -> Result<()> {
        while let Some((edit, store, section)) = self.next_section() {
            // Without the lock of the list: the store does I/O, and installing an edit adds to the
            // list.
            let bytes = store.call("apply", |store| store.apply(edit, &section))?;
            self.note_reported(edit, &section, bytes);
        }
        Ok(())
    }

    fn reclaim_values(&self, leases: Holds) -> Result<()> {
        while let Some(free) = self.take_free_values(leases) {
            let reclaimed = free.store.call("reclaim", |store| store.reclaim(free.edit));
            if let Err(error) = reclaimed {
                // Put back to the front, because values are reclaimed in the order of the edits.
                self.values.lock().push_front(free);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The whole state of a partition's value store, or the error; `None` if it was not notified of
    /// some edits. Called under the lock of the versions.
    pub(super) fn store_state(
        &self,
        partition: PartitionId,
        store: &AttachedStore,
    ) -> Option<Result<StoreSnapshot>> {
        if self.has_unapplied(partition) {
            return None;
        }
        Some(store.call("snapshot", |store| Ok(store.snapshot())))
    }

    /// The oldest edit that its store was not notified of.
    fn next_section(&self) -> Option<UnappliedEdit> {
        self.values
            .lock()
            .iter()
            .find_map(|values| Some((values.edit, values.store.clone(), values.section.clone()?)))
    }

    fn note_reported(&self, edit: u64, reported: &Arc<[u8]>, bytes: u64) {
        for values in self.values.lock().iter_mut().filter(|values| values.edit == edit) {
            // By its section, because one edit may drop values of several partitions.
            if values.section.take_if(|section| Arc::ptr_eq(section, reported)).is_some() {
                values.bytes = bytes;
            }
        }
    }

    fn has_unapplied(&self, partition: PartitionId) -> bool {
        let values = self.values.lock();
        values.iter().any(|values| values.partition == partition && values.section.is_some())
    }

    /// Takes out the oldest edit whose dropped values cannot be read any more. Later ones wait for
    /// it, because a reader of an older version may read the values that they dropped.
    fn take_free_values(&self, leases: Holds) -> Option<DroppedValues> {
        let mut values = self.values.lock();
        let front = values.front()?;
        // Both: readers of this process hold versions, and secondaries hold edits.
        if front.is_free() && leases.release(front.edit) { values.pop_front() } else { None }
    }

    /// Returns `true` if values of a partition that an edit dropped are not reclaimed yet.
    pub(super) fn holds_values_of(&self, partition: PartitionId) -> bool {
        self.values.lock().iter().any(|values| values.partition == partition)
    }

    fn has_free_values(&self) -> bool {
        self.values.lock().front().is_some_and(DroppedValues::is_free)
    }

    /// Takes out the files that are not held.
    fn take_free(&self, leases: Holds) -> Vec<WaitingFile> {
        let mut waiting = self.waiting.lock();
        let (free, held) = waiting.drain(..).partition(|file| {
            file.table.strong_count() == 0 && (file.edit == 0 || leases.release(file.edit))
        });
        *waiting = held;
        free
    }
}

/// Removes the blocks of a table from the cache.
fn forget_blocks(table: &Table) {
    if let Some(reader) = table.opened() {
        reader.forget_blocks();
    }
}

#[cfg(test)]
mod tests;
