//! [`ObsoleteFiles`]: which files and values may go, and removing them.
//!
//! A table that left the version waits here until no view holds it: neither a reader, nor an
//! iterator, nor a job. Removal itself needs no order: the edit that dropped the file is durable,
//! and what a crash leaves behind is removed at the next open.
//!
//! Values that an edit dropped wait in the same way. Their store is told twice: of the edit, as
//! soon as it is durable, and that nobody can read them any more.
//!
//! Invariants:
//! 1. Stores hear of edits in their order, and one at a time. What failed comes again, and until
//!    then no later edit is told.
//! 2. The manifest keeps what a store has not taken in: its whole state takes the place of its
//!    sections only when none of them waits here. Edits are queued under the lock that they are
//!    installed under, so none is missed.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::DbInner;
use super::errors::Reason;
use crate::error::Result;
use crate::fs::Fs;
use crate::fs::names::{FileKind, FileName};
use crate::hooks::{Event, ValueStore, catch};
use crate::partition::PartitionState;
use crate::types::PartitionId;
use crate::version::{PartitionVersion, SstMeta, Table};

/// Values that an edit dropped.
struct DroppedValues {
    edit: u64,
    partition: PartitionId,
    store: Arc<dyn ValueStore>,
    /// What the edit says of them, until the store has taken it in.
    section: Option<Arc<[u8]>>,
    /// The versions before the edit, of which somebody may read them.
    before: Vec<Weak<PartitionVersion>>,
}

/// An edit, its store, and what it says.
type Untold = (u64, Arc<dyn ValueStore>, Arc<[u8]>);

/// See the module.
pub(super) struct ObsoleteFiles {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    waiting: Mutex<Vec<(FileName, Weak<Table>)>>,
    /// Oldest first.
    values: Mutex<VecDeque<DroppedValues>>,
    /// Held by whoever removes things or tells stores, over their calls; nothing is locked outside
    /// of it, and nobody but `wait_idle` waits for it.
    turn: Mutex<()>,
}

impl ObsoleteFiles {
    /// Of tables in the folder `dir`.
    pub(super) fn new(fs: Arc<dyn Fs>, dir: PathBuf) -> ObsoleteFiles {
        ObsoleteFiles {
            fs,
            dir,
            waiting: Mutex::default(),
            values: Mutex::default(),
            turn: Mutex::default(),
        }
    }

    /// Adds tables whose removal is durable.
    pub(super) fn add<'a>(&self, tables: impl Iterator<Item = &'a Arc<Table>>) {
        let entries = tables.map(|table| {
            let name = FileName::new(FileKind::Sst, table.meta.file, table.meta.epoch);
            (name, Arc::downgrade(table))
        });
        self.waiting.lock().extend(entries);
    }

    /// Notes that the durable edit `edit` dropped values of a partition, with what it says of
    /// them. Under the lock of the versions, once the partition has taken the new version in.
    pub(super) fn add_values(
        &self,
        edit: u64,
        partition: &PartitionState,
        store: &Arc<dyn ValueStore>,
        section: &[u8],
    ) {
        self.values.lock().push_back(DroppedValues {
            edit,
            partition: partition.id,
            store: store.clone(),
            section: Some(section.into()),
            before: partition.past_versions(),
        });
    }

    /// Adds tables that a job wrote and that nothing names.
    pub(super) fn add_unnamed(&self, tables: &[SstMeta]) {
        let names = tables.iter().map(|meta| FileName::new(FileKind::Sst, meta.file, meta.epoch));
        self.waiting.lock().extend(names.map(|name| (name, Weak::new())));
    }

    /// Whether files wait for somebody to let go of them.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty() && self.values.lock().is_empty()
    }

    /// Bytes of files that somebody holds.
    pub(super) fn pinned_bytes(&self) -> u64 {
        // Under the lock, so that this looks like no holder to `take_free`.
        let waiting = self.waiting.lock();
        waiting.iter().filter_map(|(_, table)| Some(table.upgrade()?.meta.bytes)).sum()
    }

    /// Removes the files and values that nobody holds any more; `None` if somebody is at it. Not
    /// under a lock.
    ///
    /// # Errors
    /// Those of the file system and of the value stores. What was not removed is tried again.
    pub(super) fn remove(&self) -> Option<Result<()>> {
        Some(self.remove_in_turn(self.turn.try_lock()?))
    }

    /// As [`ObsoleteFiles::remove`], once nobody else is at it.
    pub(super) fn finish_removing(&self) -> Result<()> {
        self.remove_in_turn(self.turn.lock())
    }

    fn remove_in_turn(&self, turn: MutexGuard<'_, ()>) -> Result<()> {
        let values = self.tell_in_turn(&turn).and_then(|()| self.reclaim_values());
        let mut files = Ok(());
        for name in self.take_free() {
            if let Err(error) = self.fs.delete(&name.path(&self.dir)) {
                self.waiting.lock().push((name, Weak::new()));
                files = files.and(Err(error));
            }
        }
        values.and(files)
    }

    /// Tells value stores of the edits that dropped values of theirs, unless somebody is at it. One
    /// that fails is told again, and that of what it failed at, by [`ObsoleteFiles::remove`].
    pub(super) fn tell_stores(&self) {
        if let Some(turn) = self.turn.try_lock() {
            let _ = self.tell_in_turn(&turn);
        }
    }

    fn tell_in_turn(&self, _turn: &MutexGuard<'_, ()>) -> Result<()> {
        while let Some((edit, store, section)) = self.next_section() {
            store.apply(edit, &section)?;
            self.note_told(edit, &section);
        }
        Ok(())
    }

    fn reclaim_values(&self) -> Result<()> {
        while let Some(free) = self.take_free_values() {
            if let Err(error) = free.store.reclaim(free.edit) {
                self.values.lock().push_front(free);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The whole state of a partition's value store, or why there is none; `None` if there are
    /// edits that it was not told of. Called under the lock of the versions.
    pub(super) fn store_state(
        &self,
        partition: PartitionId,
        store: &dyn ValueStore,
    ) -> Option<Result<Vec<u8>>> {
        if self.has_untold(partition) {
            return None;
        }
        Some(catch("a value store", || store.snapshot()))
    }

    /// The oldest edit that its store was not told of.
    fn next_section(&self) -> Option<Untold> {
        self.values
            .lock()
            .iter()
            .find_map(|values| Some((values.edit, values.store.clone(), values.section.clone()?)))
    }

    fn note_told(&self, edit: u64, told: &Arc<[u8]>) {
        for values in self.values.lock().iter_mut().filter(|values| values.edit == edit) {
            values.section.take_if(|section| Arc::ptr_eq(section, told));
        }
    }

    fn has_untold(&self, partition: PartitionId) -> bool {
        let values = self.values.lock();
        values.iter().any(|values| values.partition == partition && values.section.is_some())
    }

    /// Takes out the oldest edit whose dropped values nobody can read any more. Later ones wait
    /// for it, because a reader of an older version may read what they dropped.
    fn take_free_values(&self) -> Option<DroppedValues> {
        let mut values = self.values.lock();
        let is_free = |values: &DroppedValues| {
            let is_held = |version: &Weak<PartitionVersion>| version.strong_count() > 0;
            values.section.is_none() && !values.before.iter().any(is_held)
        };
        if values.front().is_some_and(is_free) { values.pop_front() } else { None }
    }

    /// Takes out what nobody holds.
    fn take_free(&self) -> Vec<FileName> {
        let mut waiting = self.waiting.lock();
        let (free, held) = waiting.drain(..).partition(|(_, table)| table.strong_count() == 0);
        *waiting = held;
        drop(waiting);
        free.into_iter().map(|(name, _): (FileName, Weak<Table>)| name).collect()
    }
}

impl DbInner {
    /// [`ObsoleteFiles::remove`]; the outcome is noted as that of background work.
    pub(super) fn remove_obsolete(&self) -> Result<()> {
        let Some(removed) = self.obsolete.remove() else { return Ok(()) };
        self.background.note_outcome(Reason::Obsolete, removed.as_ref().copied());
        removed
    }

    /// [`ObsoleteFiles::finish_removing`]; the outcome is noted as that of background work.
    pub(super) fn finish_removing(&self) -> Result<()> {
        let removed = self.obsolete.finish_removing();
        self.background.note_outcome(Reason::Obsolete, removed.as_ref().copied());
        removed
    }

    /// Removes tables that a job wrote and that nothing names.
    pub(super) fn forget(&self, tables: &[SstMeta]) {
        self.obsolete.add_unnamed(tables);
        // What cannot be removed now waits with everything else that is obsolete.
        let _ = self.remove_obsolete();
    }

    /// [`ObsoleteFiles::store_state`] of the partition's value store, if it has one.
    pub(super) fn store_state(&self, id: PartitionId) -> Option<Vec<u8>> {
        let store = self.catalog.with_id(id)?.store().cloned()?;
        let state = self.obsolete.store_state(id, &*store)?;
        // The sections that the state would have replaced are as good.
        state.inspect_err(|error| self.tell(&Event::BackgroundError(error.clone()))).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::drawing::{draw, table};
    use crate::error::{Error, ErrorKind};
    use crate::fs::{AppendMode, FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind};
    use crate::hooks::{PartitionHooks, PendingHandle};

    /// Obsolete files of a folder in memory.
    fn obsolete() -> (Arc<FaultFs>, ObsoleteFiles) {
        let fs = Arc::new(FaultFs::over_mem(MemFs::new()));
        fs.create_dir("/db".as_ref()).unwrap();
        (fs.clone(), ObsoleteFiles::new(fs, "/db".into()))
    }

    /// A table with a file.
    fn table_in(fs: &FaultFs) -> Arc<Table> {
        let table = Arc::new(Table::new(table("7:a-b")));
        let name = FileName::new(FileKind::Sst, table.meta.file, table.meta.epoch);
        fs.open_append(&name.path("/db".as_ref()), AppendMode::IfAbsent).unwrap();
        table
    }

    fn files(fs: &FaultFs) -> usize {
        fs.list("/db".as_ref(), "").unwrap().len()
    }

    #[test]
    fn a_table_goes_when_nobody_holds_it_any_more() {
        let (fs, obsolete) = obsolete();
        let table = table_in(&fs);
        obsolete.add([&table].into_iter());
        obsolete.remove().expect("nobody else is at it").unwrap();
        assert_eq!((files(&fs), obsolete.pinned_bytes()), (1, table.meta.bytes));
        drop(table);
        obsolete.remove().expect("nobody else is at it").unwrap();
        assert!(files(&fs) == 0 && obsolete.is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_removed_is_tried_again() {
        let (fs, obsolete) = obsolete();
        let meta = table_in(&fs).meta.clone();
        obsolete.add_unnamed(&[meta]);
        let at = FaultAt::Nth { kind: OpKind::Delete, suffix: ".sst".into(), nth: 0 };
        fs.add_rule(FaultRule::once(at, FaultAction::Eio));
        assert!(obsolete.finish_removing().is_err() && !obsolete.is_empty());
        obsolete.finish_removing().unwrap();
        assert!(files(&fs) == 0 && obsolete.is_empty());
    }

    /// Notes its calls; refuses to take edits in while it is told to.
    #[derive(Default)]
    struct Store {
        calls: Mutex<Vec<String>>,
        refuses: Mutex<bool>,
    }

    impl ValueStore for Store {
        fn name(&self) -> &str {
            "notes"
        }

        fn wants(&self, _: PartitionId, _: u64) -> bool {
            false
        }

        fn put(&self, _: PartitionId, _: &[u8], _: &[u8]) -> Result<PendingHandle> {
            unreachable!("it wants nothing")
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }

        fn probe(&self, _: &[u8]) -> Result<bool> {
            Ok(true)
        }

        fn len(&self, _: &[u8]) -> Result<u64> {
            Ok(0)
        }

        fn read(&self, _: &[u8], _: u64, _: usize) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }

        fn edit(&self, _: u64, _: &[Vec<u8>]) -> Vec<u8> {
            Vec::new()
        }

        fn apply(&self, number: u64, _: &[u8]) -> Result<()> {
            if *self.refuses.lock() {
                return Err(Error::new(ErrorKind::Io, "not now"));
            }
            self.calls.lock().push(format!("apply {number}"));
            Ok(())
        }

        fn snapshot(&self) -> Vec<u8> {
            b"state".to_vec()
        }

        fn reclaim(&self, number: u64) -> Result<()> {
            self.calls.lock().push(format!("reclaim {number}"));
            Ok(())
        }

        fn identity(&self, _: &[u8]) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn stores_hear_of_edits_in_order_and_reclaim_what_nobody_reads() {
        let (_, obsolete) = obsolete();
        let notes = Arc::new(Store::default());
        let store: Arc<dyn ValueStore> = notes.clone();
        let hooks = PartitionHooks { store: Some(store.clone()), ..PartitionHooks::default() };
        let partition = PartitionState::new(
            Arc::new(draw("")),
            hooks,
            &Arc::new(crate::memtable::SlabPool::new(0)),
        );
        let reader = partition.pin();
        partition.install(Arc::new(draw("L6: 1:a-b")), None);
        *notes.refuses.lock() = true;
        obsolete.add_values(4, &partition, &store, b"four");
        obsolete.add_values(5, &partition, &store, b"five");
        obsolete.tell_stores();
        assert!(obsolete.store_state(partition.id, &*store).is_none(), "edit 4 is not told yet");
        *notes.refuses.lock() = false;
        obsolete.tell_stores();
        obsolete.finish_removing().unwrap();
        assert_eq!(*notes.calls.lock(), ["apply 4", "apply 5"], "a reader may read both");
        assert_eq!(obsolete.store_state(partition.id, &*store).unwrap().unwrap(), b"state");
        drop(reader);
        obsolete.finish_removing().unwrap();
        assert_eq!(notes.calls.lock()[2..], ["reclaim 4", "reclaim 5"]);
        assert!(obsolete.is_empty());
    }
}
