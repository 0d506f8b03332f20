//! The files in a folder that say which bucket's writer it is: markers, and the lock.
//!
//! Called by `opening.rs`, in the order that its invariants ask for. Each call is one step, and decides nothing.

use std::collections::BTreeSet;

use lsm_core::fs::{LockGuard, RESTORING, SHIPPED_PREFIX};
use siltstone::{Error, ErrorKind, Result};

use super::{LocalFolder, Standing};
use crate::folder::Folder;
use crate::record::{RECORD_PREFIX, StoredRecord};

/// The lock of a folder whose changes are shipped.
const LOCK: &str = "remote-lock";
/// The front of the name of a marker; the claimant follows. The engine opens no folder with a marker, or with
/// `RESTORING`, through another file system, which would ship nothing.
pub(super) const MARKER_PREFIX: &str = SHIPPED_PREFIX;
/// The front of the name of a file that names the claimant of an unfinished restore.
const RESTORING_PREFIX: &str = "remote-restoring-";
/// The content of the marker of a claim of an empty journal, which may not be stored yet.
const FIRST: &[u8] = b"first";

impl LocalFolder {
    pub(super) fn lock(&self) -> Result<Box<dyn LockGuard>> {
        self.fs.create_dir(&self.dir)?;
        let lock = self.fs.try_lock(&self.path(LOCK))?;
        // The lock of the database, too: one that was opened without this crate may be open.
        let is_free = self.fs.try_lock(&self.path("LOCK"))?.is_some();
        lock.filter(|_| is_free).ok_or_else(|| {
            let message =
                format!("another process has the database in {} open", self.dir.display());
            Error::new(ErrorKind::Locked, message)
        })
    }

    pub(super) fn markers(&self) -> Result<BTreeSet<u128>> {
        self.claimants(MARKER_PREFIX)
    }

    /// The claimants that names with this front name.
    fn claimants(&self, front: &str) -> Result<BTreeSet<u128>> {
        let names = self.fs.list_names(&self.dir, front)?;
        let digits = names.iter().filter_map(|name| name.strip_prefix(front));
        Ok(digits.filter_map(|digits| u128::from_str_radix(digits, 16).ok()).collect())
    }

    /// The last journal object that this folder knows to be stored.
    pub(super) fn recorded(&self, markers: &BTreeSet<u128>) -> Result<u64> {
        let mut last = 0;
        for marker in markers {
            last = last.max(StoredRecord::new(&self.dir, *marker).read(&*self.fs)?);
        }
        Ok(last)
    }

    pub(super) fn standing(&self, folder: &Folder, markers: &BTreeSet<u128>) -> Result<Standing> {
        Ok(match folder.number {
            0 => Standing::New,
            _ if markers.contains(&folder.writer) => Standing::Own,
            _ if self.restoring()?.contains(&folder.writer) => Standing::Restoring,
            _ => Standing::Other,
        })
    }

    /// Makes the folder name `claimant`, if it may continue the journal by itself.
    pub(super) fn mark_claim(&self, claimant: u128, standing: Standing) -> Result<()> {
        match standing {
            Standing::New => self.mark(claimant, FIRST),
            Standing::Own => self.mark(claimant, b""),
            Standing::Restoring => self.note_restoring(claimant),
            Standing::Other => Ok(()),
        }
    }

    pub(super) fn mark(&self, claimant: u128, content: &[u8]) -> Result<()> {
        let path = self.path(&format!("{MARKER_PREFIX}{claimant:032x}"));
        self.fs.put_if_absent(&path, content).map(drop)
    }

    /// Returns `true` if the only marker is that of a first claim.
    pub(super) fn is_first(&self, markers: &BTreeSet<u128>) -> Result<bool> {
        let [marker] = *markers.iter().collect::<Vec<_>>() else { return Ok(false) };
        let file = self.fs.open_read(&self.path(&format!("{MARKER_PREFIX}{marker:032x}")))?;
        let mut content = [0; FIRST.len()];
        Ok(file.read_at(0, &mut content)? == FIRST.len() && content == FIRST)
    }

    /// Returns `true` if the folder was to be made as a bucket says, and that has not come to its end.
    pub(super) fn is_restoring(&self) -> Result<bool> {
        Ok(!self.fs.list_names(&self.dir, RESTORING)?.is_empty())
    }

    /// The claimants that have begun to make the folder as the bucket says, and did not come to the end. Versions before
    /// this one name none.
    fn restoring(&self) -> Result<BTreeSet<u128>> {
        self.claimants(RESTORING_PREFIX)
    }

    /// Names the claimant that is about to make the folder as the bucket says, or will when its claim is stored.
    fn note_restoring(&self, claimant: u128) -> Result<()> {
        let path = self.path(&format!("{RESTORING_PREFIX}{claimant:032x}"));
        self.fs.put_if_absent(&path, b"").map(drop)
    }

    pub(super) fn begin_restore(&self, claimant: u128) -> Result<()> {
        self.note_restoring(claimant)?;
        self.unmark(None)
    }

    /// Durable after a sync of the folder.
    pub(super) fn end_restore(&self) -> Result<()> {
        for name in self.fs.list_names(&self.dir, RESTORING)? {
            self.fs.delete(&self.path(&name))?;
        }
        Ok(())
    }

    /// Deletes all markers but that of `kept`.
    pub(super) fn unmark(&self, kept: Option<u128>) -> Result<()> {
        for marker in self.markers()? {
            if Some(marker) != kept {
                self.delete_mark(marker)?;
            }
        }
        self.fs.sync_dir(&self.dir)
    }

    /// Deletes a marker. Durable after a sync of the folder.
    pub(super) fn delete_mark(&self, marker: u128) -> Result<()> {
        self.fs.delete(&self.path(&format!("{RECORD_PREFIX}{marker:032x}")))?;
        self.fs.delete(&self.path(&format!("{MARKER_PREFIX}{marker:032x}")))
    }
}
