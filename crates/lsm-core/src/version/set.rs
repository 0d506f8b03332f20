//! [`VersionSet`]: the current version of the database, and the one path that replaces it.
//!
//! `db` holds it under one lock. Background work takes this lock, and so do the calls that create
//! or drop partitions. Reads never take it, and a write only to register a segment, so the sync of
//! the manifest may run under it.
//!
//! Invariants:
//! 1. The current version is what the manifest durably says, or one edit older.
//! 2. The order is always: sync the bytes of files, sync the folder, append and sync the edit. Only
//!    then does a caller delete old files.
//! 3. An edit is current, and anything follows from it, only when the commit cursor has settled it: behind
//!    a fence of another process it never is, and the files that it names stay.
//! 4. After a failed append or sync, nothing more is appended to that generation. The next edit
//!    goes to a new generation, whose snapshot uses up the number of the edit in doubt.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Change, DbVersion, Manifest, PartitionVersion, VersionEdit, apply};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fs::names::{FileKind, FileName};
use crate::shared::CursorWriter;
use crate::types::{Epoch, FileNumbers, PartitionId};

/// The whole state of a partition's value store, as a section.
type StateOf = dyn Fn(PartitionId) -> Option<Vec<u8>> + Send;

/// See the module.
pub struct VersionSet {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    epoch: Epoch,
    numbers: Arc<FileNumbers>,
    manifest_bytes_max: u64,
    /// Length of the present generation when it was begun: its snapshot.
    snapshot_bytes: u64,
    current: Arc<DbVersion>,
    manifest: Manifest,
    cursor: Arc<CursorWriter>,
    /// Number of the last edit that was tried.
    last_number: u64,
    state_of: Option<Box<StateOf>>,
    /// Generations that were begun, that nothing names, and that were never used.
    garbage: Vec<FileName>,
    /// Generations before the present one that could not be deleted yet.
    older: Vec<FileName>,
}

impl VersionSet {
    /// Goes on from `current`, which `manifest` durably holds, and settles edits in `cursor`. One that
    /// was opened read-only takes no edit.
    pub fn new(
        fs: Arc<dyn Fs>,
        dir: PathBuf,
        numbers: Arc<FileNumbers>,
        manifest_bytes_max: u64,
        current: DbVersion,
        manifest: Manifest,
        cursor: Arc<CursorWriter>,
    ) -> VersionSet {
        VersionSet {
            fs,
            dir,
            epoch: current.epoch,
            numbers,
            manifest_bytes_max,
            snapshot_bytes: manifest.bytes(),
            last_number: current.edit_number,
            current: Arc::new(current),
            manifest,
            cursor,
            state_of: None,
            garbage: Vec::new(),
            older: Vec::new(),
        }
    }

    /// The current version.
    pub fn current(&self) -> &Arc<DbVersion> {
        &self.current
    }

    /// The generation that edits go to, and its length in bytes; `None` where a failed write has
    /// left that in doubt.
    pub fn generation(&self) -> (FileName, Option<u64>) {
        let bytes = (!self.manifest.is_failed()).then(|| self.manifest.bytes());
        (self.manifest.name(), bytes)
    }

    /// Length of the present generation, in bytes.
    pub fn manifest_bytes(&self) -> u64 {
        self.manifest.bytes()
    }

    /// The number that the next edit gets.
    pub fn next_number(&self) -> u64 {
        self.last_number + 1
    }

    /// Says what a new generation puts in the place of all sections of a partition's value store:
    /// its whole state. Where there is none at the time, the sections go on as they are.
    pub fn set_state_of(
        &mut self,
        state_of: impl Fn(PartitionId) -> Option<Vec<u8>> + Send + 'static,
    ) {
        self.state_of = Some(Box::new(state_of));
    }

    /// Begins a new generation if the present one takes no more edits: before work whose result
    /// could not be installed.
    pub fn ensure_writable(&mut self) -> Result<()> {
        self.manifest.check_writable()?;
        self.cursor.check()?;
        if self.manifest.is_failed() { self.begin_generation() } else { Ok(()) }
    }

    /// Makes an edit of `changes` durable and current.
    ///
    /// # Errors
    /// Those of the manifest. The edit is then not current, but may be on disk: the files that it
    /// names must stay until the next open. [`ErrorKind::Fenced`] if the database is another process's.
    ///
    /// # Cost
    /// One append and one sync; now and then a new generation.
    pub fn install(&mut self, changes: Vec<Change>) -> Result<&Arc<DbVersion>> {
        self.manifest.check_writable()?;
        // Only to save the work: the check that counts is the one behind the append.
        self.cursor.check()?;
        if self.manifest.is_failed() {
            self.begin_generation()?;
        // Twice the snapshot at least: a large database would otherwise write one with nearly every
        // edit.
        } else if self.manifest.bytes() > self.manifest_bytes_max.max(2 * self.snapshot_bytes) {
            // The present generation takes edits all the same if this fails.
            if let Err(error) = self.begin_generation()
                && self.manifest.is_failed()
            {
                return Err(error);
            }
        }
        let edit = VersionEdit { number: self.last_number + 1, changes };
        // Before the append: an edit that cannot be applied must not reach the file, where every
        // later open would find it.
        let next = apply(&self.current, &edit).map_err(|refused| {
            let message = format!("an edit was refused: {}", refused.0);
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        // Before the append: after a failed one the number may be on disk, so it is used.
        self.last_number = edit.number;
        // Appended under the lock of the owner, so there is one writer.
        self.manifest.append(&edit)?;
        // Behind the append and before everything that follows from the edit: see `shared/fence.rs`.
        self.cursor.settle_edit(edit.number)?;
        self.current = Arc::new(next);
        // Only now is the new generation in use, which makes the older ones history.
        self.retire_older();
        Ok(&self.current)
    }

    /// Puts one section, the store's whole state, in the place of what came edit by edit.
    fn compact_store_sections(&self, version: &mut DbVersion) {
        let Some(state_of) = &self.state_of else { return };
        let with_sections: Vec<Arc<PartitionVersion>> = version
            .partitions
            .values()
            // A single section has no older ones whose place it could take.
            .filter(|partition| partition.store_sections.len() > 1)
            .cloned()
            .collect();
        for partition in with_sections {
            if let Some(state) = state_of(partition.id) {
                let store_sections = vec![(version.edit_number, state.into())];
                let partition = PartitionVersion { store_sections, ..(*partition).clone() };
                version.partitions.insert(Arc::new(partition));
            }
        }
    }

    /// Goes over to a new generation and retires the old one.
    fn begin_generation(&mut self) -> Result<()> {
        // A new number for each attempt: nobody knows whether the file of a failed one is there.
        let name = FileName::new(FileKind::Manifest, self.numbers.allocate(), self.epoch);
        let mut version = (*self.current).clone();
        // The number of an edit in doubt is passed over: if it is on disk after all, nothing
        // follows it.
        version.edit_number = self.last_number;
        self.compact_store_sections(&mut version);
        let new = Manifest::create(&*self.fs, &self.dir, name, &version).inspect_err(|_| {
            // Its name is used; whether it is there is unknown.
            self.garbage.push(name);
        })?;
        let is_named = !self.manifest.is_failed() && self.manifest.supersede(name).is_ok();
        // Kept although it is superseded: until an edit is in the new generation, recovery begins
        // here.
        self.older.push(self.manifest.name());
        if !is_named {
            // Recovery may still begin with the old one, so the new one must not be used before
            // that is gone. It may be named all the same: if it cannot be used now, it is deleted
            // after the old one, never before.
            if let Err(error) = retire(&*self.fs, &self.dir, &self.garbage, &self.older) {
                self.older.push(name);
                return Err(error);
            }
            self.garbage.clear();
            self.older.clear();
        }
        self.snapshot_bytes = new.bytes();
        self.manifest = new;
        self.current = Arc::new(version);
        Ok(())
    }

    /// Lets the generations go that an edit in a newer one has made history. What cannot be
    /// deleted now goes next time, or at the next open.
    fn retire_older(&mut self) {
        let is_idle = self.older.is_empty() && self.garbage.is_empty();
        if !is_idle && retire(&*self.fs, &self.dir, &self.garbage, &self.older).is_ok() {
            self.garbage.clear();
            self.older.clear();
        }
    }
}

/// Deletes garbage generations, then those that a durable newer one replaces: `old` is everything
/// older, in any order, whether it names its successor or failed before it could.
///
/// The order keeps every prefix of the deletions recoverable: recovery begins at the oldest
/// generation present and follows the names, so garbage must never become the oldest, and a named
/// generation must not go before the one that names it.
///
/// # Errors
/// Those of the file system; call it again.
///
/// # Durability
/// The names are durably gone once this returns.
pub fn retire(fs: &dyn Fs, dir: &Path, garbage: &[FileName], old: &[FileName]) -> Result<()> {
    for name in garbage {
        fs.delete(&name.path(dir))?;
    }
    if !garbage.is_empty() {
        fs.sync_dir(dir)?;
    }
    let mut old = old.to_vec();
    old.sort_unstable();
    // One sync for each: two removals under one sync could reach the disk in the other order.
    for name in old {
        fs.delete(&name.path(dir))?;
        fs.sync_dir(dir)?;
    }
    Ok(())
}
