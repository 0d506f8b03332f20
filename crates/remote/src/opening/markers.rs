//! The files in a folder that say which bucket's writer it is: markers, and the lock.
//!
//! Called by `opening.rs`, in the order that its invariants ask for. Each call is one step, and decides nothing.

use std::collections::BTreeSet;

use lsm_core::fs::{LockGuard, RESTORING, SHIPPED_PREFIX};
use siltstone::{Error, ErrorKind, Result};

use super::LocalFolder;
use crate::record::{RECORD_PREFIX, StoredRecord};

/// The lock of a folder whose changes are shipped.
const LOCK: &str = "remote-lock";
/// The front of the name of a marker; the claimant follows. The engine opens no folder with a marker, or with
/// `RESTORING`, through another file system, which would ship nothing.
pub(super) const MARKER_PREFIX: &str = SHIPPED_PREFIX;
/// The content of the marker of a claim of an empty journal, which may not be stored yet.
pub(super) const FIRST: &[u8] = b"first";

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
        let names = self.fs.list_names(&self.dir, MARKER_PREFIX)?;
        let digits = names.iter().filter_map(|name| name.strip_prefix(MARKER_PREFIX));
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

    pub(super) fn begin_restore(&self) -> Result<()> {
        self.fs.put_if_absent(&self.path(RESTORING), b"")?;
        self.unmark(None)
    }

    pub(super) fn end_restore(&self) -> Result<()> {
        self.fs.delete(&self.path(RESTORING))
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
