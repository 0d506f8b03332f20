//! [`Catalog`]: the partitions and files of the database, and the only path that changes them.
//!
//! Called for every edit (flushes, compactions, ingests, the log, creating and dropping partitions)
//! and for the list of live files. It knows no memtable, and its only work is the append and sync
//! of the manifest.
//!
//! Invariants:
//! 1. Every edit goes through [`Editing::install`], which alone notes the number of the last durable
//!    one. The log attests that number, so the next open notices a manifest that lost its end; an
//!    edit without the note would not be attested.
//! 2. Nothing is installed after [`Catalog::shut`] has returned: the folder may belong to another
//!    process.
//! 3. A partition is in the map from the time its creation is durable until its drop is: a
//!    partition in the map may be missing in the versions a moment before, never after.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::obsolete::ObsoleteFiles;
use super::unconfirmed::UnconfirmedFiles;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fs::names::FileName;
use crate::partition::{PartitionState, WorkList};
use crate::shared::CommitCursorWriter;
use crate::types::{MemtableId, PartitionId};
use crate::version::{Change, DbVersion, VersionSet};
use crate::wal::Lsn;

/// Name of the partition that always exists.
pub(super) const DEFAULT: &str = "default";

/// The partitions that exist, by id and by name.
#[derive(Default)]
struct Partitions {
    by_id: BTreeMap<PartitionId, Arc<PartitionState>>,
    by_name: HashMap<String, PartitionId>,
}

/// The partitions of the database, and its current version.
pub(super) struct Catalog {
    /// Held over the manifest's append and sync, and while views take a new version in.
    versions: Mutex<VersionSet>,
    /// Held over the creation, change or drop of a partition. Each is one edit and its effects.
    /// They happen one at a time, so that no two use the same name. It is not the commit path's lock,
    /// because writers need not wait for the manifest.
    structure: Mutex<()>,
    /// A leaf: nothing else is locked while it is held.
    partitions: RwLock<Partitions>,
    /// Number of the last durable edit: stored under `versions` with release, loaded anywhere with
    /// acquire, so that a thread that reads a number finds the files of its edit on the device.
    edit_number: AtomicU64,
    /// Length of the manifest in bytes: stored under `versions`, relaxed, as a figure.
    manifest_bytes: AtomicU64,
    /// Shows secondaries each durable edit.
    cursor: Arc<CommitCursorWriter>,
    /// Files and values that no version names any more wait there, generations of the manifest too.
    obsolete: ObsoleteFiles,
    unconfirmed: UnconfirmedFiles,
    /// The partitions that have work: they note it themselves.
    work: Arc<WorkList>,
    /// Set under `versions` before the lock file is released.
    is_shut: AtomicBool,
    /// Set under `versions` if a panic interrupted an edit: its completed steps are unknown.
    is_torn: AtomicBool,
    /// The work of another thread that waits for the turn, done by the one that ends it.
    #[cfg(test)]
    pub(super) at_release: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Catalog {
    /// Continues from the current version of `versions`. The caller, who knows their hooks, adds
    /// the partitions.
    pub(super) fn new(
        versions: VersionSet,
        cursor: Arc<CommitCursorWriter>,
        obsolete: ObsoleteFiles,
    ) -> Catalog {
        let edit_number = AtomicU64::new(versions.current().edit_number);
        let manifest_bytes = AtomicU64::new(versions.manifest_bytes());
        cursor.note_edit(versions.current().edit_number, versions.generation().0.number);
        Catalog {
            versions: Mutex::new(versions),
            structure: Mutex::new(()),
            partitions: RwLock::default(),
            edit_number,
            manifest_bytes,
            cursor,
            obsolete,
            unconfirmed: UnconfirmedFiles::default(),
            work: Arc::default(),
            is_shut: AtomicBool::new(false),
            is_torn: AtomicBool::new(false),
            #[cfg(test)]
            at_release: Mutex::default(),
        }
    }

    /// Takes the turn to install an edit.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after the database has released its folder; [`ErrorKind::Internal`] after a
    /// panic in the middle of an edit.
    pub(super) fn edit(&self) -> Result<Editing<'_>> {
        let versions = self.versions.lock();
        // Checked under the lock that `shut` takes: no edit can begin after it.
        if self.is_shut.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the database is closed"));
        }
        if self.is_torn.load(Ordering::Acquire) {
            let message = "a panic interrupted a change of the manifest; open the database again";
            return Err(Error::new(ErrorKind::Internal, message));
        }
        // An edit of a destructor that runs during the unwinding of a panic is not interrupted by it.
        let is_exposed = !std::thread::panicking();
        Ok(Editing {
            versions,
            catalog: self,
            is_exposed,
            #[cfg(test)]
            _released: Released(self),
        })
    }

    /// Takes the turn to create, change or drop a partition.
    pub(super) fn change_structure(&self) -> MutexGuard<'_, ()> {
        self.structure.lock()
    }

    /// Makes changes durable that affect no partition's view.
    ///
    /// # Errors
    /// Those of [`Editing::install`].
    pub(super) fn install(&self, changes: Vec<Change>) -> Result<()> {
        self.edit()?.install(changes).map(drop)
    }

    /// Refuses every edit from now on, and waits for the running one.
    pub(super) fn shut(&self) {
        let _versions = self.versions.lock();
        self.is_shut.store(true, Ordering::Release);
    }

    /// The current version, also once the catalog is shut.
    pub(super) fn current(&self) -> Arc<DbVersion> {
        self.versions.lock().current().clone()
    }

    /// Sets the section that a new manifest generation contains instead of all sections of a
    /// partition's value store.
    pub(super) fn set_store_state(
        &self,
        state_of: impl Fn(PartitionId) -> Option<Vec<u8>> + Send + 'static,
    ) {
        self.versions.lock().set_state_of(state_of);
    }

    /// The number of the last durable edit.
    pub(super) fn durable_edit(&self) -> u64 {
        self.edit_number.load(Ordering::Acquire)
    }

    /// Notes that the partitions, or their options, changed with the durable edit `edit`: a secondary that
    /// learns of the number here finds it in the manifest.
    pub(super) fn note_layout(&self, edit: u64) {
        self.cursor.note_layout(edit);
    }

    /// The error of the present generation of the manifest if it is missing in the folder; `None` also during
    /// an edit. Opens the file under `versions`, so that no other generation replaces it meanwhile.
    pub(super) fn missing_manifest(&self, fs: &dyn Fs, dir: &Path) -> Option<Error> {
        let versions = self.versions.try_lock()?;
        let path = versions.generation().0.path(dir);
        fs.open_read(&path).err().filter(Error::is_missing)
    }

    /// Length of the manifest, in bytes.
    pub(super) fn manifest_bytes(&self) -> u64 {
        self.manifest_bytes.load(Ordering::Relaxed)
    }

    /// The files and values that no version names any more.
    pub(super) fn obsolete(&self) -> &ObsoleteFiles {
        &self.obsolete
    }

    /// The files and values of edits that may be in the manifest although their installation failed.
    pub(super) fn unconfirmed(&self) -> &UnconfirmedFiles {
        &self.unconfirmed
    }

    /// Length of the file of the commit cursor, in bytes.
    pub(super) fn cursor_bytes(&self) -> u64 {
        self.cursor.file_bytes()
    }

    /// All partitions that exist, by id.
    pub(super) fn partitions(&self) -> Vec<Arc<PartitionState>> {
        self.partitions.read().by_id.values().cloned().collect()
    }

    /// The partition with that id, if it exists.
    pub(super) fn with_id(&self, id: PartitionId) -> Option<Arc<PartitionState>> {
        self.partitions.read().by_id.get(&id).cloned()
    }

    /// The partition of that name, if it exists.
    pub(super) fn named(&self, name: &str) -> Option<Arc<PartitionState>> {
        let partitions = self.partitions.read();
        partitions.by_id.get(partitions.by_name.get(name)?).cloned()
    }

    /// The names of all partitions, in order.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.partitions.read().by_name.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Everything in the log below the result is in tables, except memtables of `flushing` through
    /// the given id, whose flush is about to be installed. Every frame below `applied` is in the
    /// memtables; loaded before the call, so that later frames lie above it.
    pub(super) fn log_low_water(
        &self,
        applied: Lsn,
        flushing: Option<(PartitionId, MemtableId)>,
    ) -> Lsn {
        // Not the end of the log: a frame that is appended and not applied yet is in no memtable,
        // and its segment must stay.
        self.work.first_pin(flushing).map_or(applied, |pin| applied.min(Lsn(pin)))
    }

    /// The partitions that have work.
    pub(super) fn work(&self) -> &Arc<WorkList> {
        &self.work
    }

    /// All partitions that have a value store, by id.
    pub(super) fn with_stores(&self) -> Vec<Arc<PartitionState>> {
        self.work.stores().into_iter().filter_map(|id| self.with_id(id)).collect()
    }

    /// Takes over files, with their lengths in bytes, to delete them: each was dropped by a durable edit, or
    /// named by one that is known to have failed. Allowed under any lock.
    pub(super) fn make_obsolete(&self, files: Vec<(FileName, u64)>) {
        // The number may be that of an edit after the one that dropped the files: then a lease holds them
        // until it is renewed once more.
        self.obsolete.add_files(self.durable_edit(), files);
    }

    /// Makes the values of all stores durable, not only those of one group of writes: a sync of the log
    /// covers frames of earlier groups as well.
    pub(super) fn sync_values(&self) -> Result<()> {
        for partition in self.with_stores() {
            if let Some(store) = partition.store() {
                partition.note_sync(store.sync())?;
            }
        }
        Ok(())
    }

    /// Adds a partition whose creation is durable.
    pub(super) fn add(&self, partition: Arc<PartitionState>) {
        let mut partitions = self.partitions.write();
        // Both maps under one lock, so that no caller finds a name whose id is unknown.
        partitions.by_name.insert(partition.name.to_string(), partition.id);
        partitions.by_id.insert(partition.id, partition);
    }

    /// Removes a partition whose drop is durable.
    pub(super) fn remove(&self, partition: &PartitionState) {
        let mut partitions = self.partitions.write();
        partitions.by_name.remove(&*partition.name);
        partitions.by_id.remove(&partition.id);
    }
}

/// The turn to install an edit: no other thread installs one while it lives. Other facts about the
/// versions are read through it.
pub(super) struct Editing<'a> {
    versions: MutexGuard<'a, VersionSet>,
    catalog: &'a Catalog,
    /// A panic that unwinds the thread when this is dropped began during the edit.
    is_exposed: bool,
    /// After `versions`, so that it is dropped when the lock is free.
    #[cfg(test)]
    _released: Released<'a>,
}

/// Does the requested work at the end of a turn.
#[cfg(test)]
struct Released<'a>(&'a Catalog);

#[cfg(test)]
impl Drop for Released<'_> {
    fn drop(&mut self) {
        let at_release = self.0.at_release.lock().take();
        if let Some(at_release) = at_release {
            at_release();
        }
    }
}

impl Editing<'_> {
    /// Begins a new manifest generation if the present one takes no more edits: called before work
    /// whose result could not be installed.
    pub(super) fn ensure_writable(&mut self) -> Result<()> {
        self.versions.check_writable()?;
        if self.versions.is_in_doubt() {
            // With an edit after its snapshot the new generation counts. Until then recovery may begin
            // at the old one, with the edit in doubt, and needs the files that it names.
            let last_seq = self.versions.current().last_seq;
            self.install(vec![Change::LastSeq(last_seq)])?;
        }
        Ok(())
    }

    /// Makes an edit of `changes` durable and current.
    ///
    /// # Errors
    /// Those of the manifest. The edit is then not current, but may be on disk: the files that it
    /// names must stay until another edit is installed.
    ///
    /// # Cost
    /// One append and one sync; now and then a new generation.
    pub(super) fn install(&mut self, changes: Vec<Change>) -> Result<&Arc<DbVersion>> {
        let tables: Vec<FileName> = changes.iter().filter_map(added_table).collect();
        let installed = self.versions.install(changes).map(|version| version.edit_number);
        let manifest_bytes = self.versions.manifest_bytes();
        // Also after an error: the append may have made the file longer.
        self.catalog.manifest_bytes.store(manifest_bytes, Ordering::Relaxed);
        let edit_number = installed?;
        self.catalog.obsolete.note_listed(&tables);
        self.catalog.edit_number.store(edit_number, Ordering::Release);
        // After the sync of the manifest: a secondary that learns of the edit here must find it
        // there.
        let (generation, _) = self.versions.generation();
        self.catalog.cursor.note_edit(edit_number, generation.number);
        self.catalog.obsolete.add_generations(self.versions.take_past());
        Ok(self.versions.current())
    }
}

fn added_table(change: &Change) -> Option<FileName> {
    match change {
        Change::TableAdded { meta, .. } => Some(meta.file_name()),
        _ => None,
    }
}

impl Drop for Editing<'_> {
    /// Another edit after one that a panic interrupted could name tables that no view has, or remove
    /// tables that the manifest does not have any more.
    fn drop(&mut self) {
        if self.is_exposed && std::thread::panicking() {
            self.catalog.is_torn.store(true, Ordering::Release);
        }
    }
}

impl Deref for Editing<'_> {
    type Target = VersionSet;

    fn deref(&self) -> &VersionSet {
        &self.versions
    }
}

#[cfg(test)]
mod tests;
