//! [`VersionSet`]: the current version of the database, and the one path that replaces it.
//!
//! `db` holds it under one lock. Background work takes this lock, and so do the calls that create
//! or drop partitions. Reads never take it, and a write only to register a segment, so the sync of
//! the manifest may run under it.
//!
//! Invariants:
//! 1. The current version is the durable state of the manifest, or one edit older.
//! 2. The order is always: sync the bytes of files, sync the folder, append and sync the edit. Only
//!    then does a caller delete old files. Generations of the manifest are such files: see
//!    [`VersionSet::take_past`].
//! 3. An edit is current, and has effects, only when the commit cursor has settled it: after a fence of
//!    another process it never is, and the files that it names stay.
//! 4. After a failed append or sync, nothing more is appended to that generation. The next edit
//!    goes to a new generation, whose snapshot uses up the number of the edit in doubt.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Change, DbVersion, Manifest, PartitionVersion, VersionEdit, WriteFence, apply};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fs::names::{FileKind, FileName};
use crate::types::{Epoch, FileNumbers, PartitionId};

/// The whole state of a partition's value store, as a section.
type StateOf = dyn Fn(PartitionId) -> Option<Vec<u8>> + Send;

/// The current version of the database, and the only path that replaces it.
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
    fence: Arc<dyn WriteFence>,
    /// Number of the last edit that was tried.
    last_number: u64,
    state_of: Option<Box<StateOf>>,
    /// Generations that become obsolete with the next settled edit.
    older: Vec<Replaced>,
    /// Obsolete generations, until the owner takes them.
    past: Vec<PastGeneration>,
}

/// A replaced generation that recovery needs until its successor has an edit.
struct Replaced {
    name: FileName,
    /// As far as it is known.
    bytes: u64,
    /// It durably names its successor.
    names_successor: bool,
}

/// A generation that recovery does not need any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastGeneration {
    /// The name.
    pub name: FileName,
    /// The length in bytes, if it is known.
    pub bytes: u64,
    /// The edit that made it obsolete: a secondary that reads an older one may read it. 0 if none may.
    pub edit: u64,
}

impl VersionSet {
    /// Continues from `current`, which `manifest` holds durably, and settles edits with `fence`. A set
    /// that was opened read-only takes no edit.
    pub fn new(
        fs: Arc<dyn Fs>,
        dir: PathBuf,
        numbers: Arc<FileNumbers>,
        manifest_bytes_max: u64,
        current: DbVersion,
        manifest: Manifest,
        fence: Arc<dyn WriteFence>,
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
            fence,
            state_of: None,
            older: Vec::new(),
            past: Vec::new(),
        }
    }

    /// The current version.
    pub fn current(&self) -> &Arc<DbVersion> {
        &self.current
    }

    /// The generation that edits go to, and its length in bytes; `None` if a failed write has left
    /// that in doubt.
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

    /// Sets the function that returns the whole state of a partition's value store. A new
    /// generation contains it instead of all sections. If it returns none, the sections are kept.
    pub fn set_state_of(
        &mut self,
        state_of: impl Fn(PartitionId) -> Option<Vec<u8>> + Send + 'static,
    ) {
        self.state_of = Some(Box::new(state_of));
    }

    /// Returns an error if no edit may ever be installed.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`]; [`ErrorKind::Fenced`] if the database is another process's.
    pub fn check_writable(&self) -> Result<()> {
        self.manifest.check_writable()?;
        self.fence.check()
    }

    /// Returns `true` if an edit is in doubt: it may be on disk, until a later one is installed.
    pub fn is_in_doubt(&self) -> bool {
        self.manifest.is_failed()
    }

    /// Makes an edit of `changes` durable and current.
    ///
    /// # Errors
    /// Those of the manifest. The edit is then not current, but may be on disk: the files that it names must
    /// stay until another edit is installed. [`ErrorKind::Fenced`] if the database is another process's.
    ///
    /// # Cost
    /// One append and one sync; now and then a new generation.
    pub fn install(&mut self, changes: Vec<Change>) -> Result<&Arc<DbVersion>> {
        let installed = self.write(changes);
        if let Err(error) = &installed {
            self.fence.note_failure(error);
        }
        installed.map(|()| &self.current)
    }

    fn write(&mut self, changes: Vec<Change>) -> Result<()> {
        // This check only saves work: the check that counts is the one after the append.
        self.check_writable()?;
        if self.manifest.is_failed() {
            self.begin_generation()?;
        // Twice the snapshot at least: a large database would otherwise write one with nearly every
        // edit.
        } else if self.manifest.bytes() > self.manifest_bytes_max.max(2 * self.snapshot_bytes) {
            // If this fails, the present generation still takes edits.
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
        // After the append and before all effects of the edit: see `WriteFence`.
        self.fence.settle_edit(edit.number)?;
        self.current = Arc::new(next);
        // Only now is the new generation in use, which makes the older ones obsolete.
        for Replaced { name, bytes, names_successor } in self.older.drain(..) {
            // A generation that names no successor is deleted at once, even if a secondary reads it:
            // with it, damage to the front of the new generation would make recovery begin at the old
            // one, and nothing would show that edits are missing. Garbage is read by no one.
            let edit = if names_successor { edit.number } else { 0 };
            self.past.push(PastGeneration { name, bytes, edit });
        }
        Ok(())
    }

    /// Takes out the generations that became obsolete since the last call, for the owner to delete: garbage
    /// and those that no secondary may read at once, the others when no secondary reads an edit before
    /// theirs.
    pub fn take_past(&mut self) -> Vec<PastGeneration> {
        std::mem::take(&mut self.past)
    }

    /// Replaces the sections of single edits by one section, the store's whole state.
    fn compact_store_sections(&self, version: &mut DbVersion) {
        let Some(state_of) = &self.state_of else { return };
        let with_sections: Vec<Arc<PartitionVersion>> = version
            .partitions
            .values()
            // A single section replaces no older ones.
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

    /// Switches to a new generation. The old one stays until an edit is in the new one.
    fn begin_generation(&mut self) -> Result<()> {
        // A new number for each attempt: the file of a failed one may exist.
        let name = FileName::new(FileKind::Manifest, self.numbers.allocate(), self.epoch);
        let mut version = (*self.current).clone();
        // The number of an edit in doubt is skipped: if it is on disk after all, nothing follows
        // it.
        version.edit_number = self.last_number;
        self.compact_store_sections(&mut version);
        let new = Manifest::create(&*self.fs, &self.dir, name, &version).inspect_err(|_| {
            // Its name is used; the file may exist. Nothing names it, so it is not read.
            self.older.push(Replaced { name, bytes: 0, names_successor: false });
        })?;
        let names_successor = !self.manifest.is_failed() && self.manifest.supersede(name).is_ok();
        // The new one may be used although nothing names it: recovery begins at the newest generation
        // with an edit of its own, and until there is one, at the old one, which lacks nothing that was
        // acknowledged.
        let bytes = self.manifest.bytes();
        self.older.push(Replaced { name: self.manifest.name(), bytes, names_successor });
        self.snapshot_bytes = new.bytes();
        self.manifest = new;
        self.current = Arc::new(version);
        Ok(())
    }
}
