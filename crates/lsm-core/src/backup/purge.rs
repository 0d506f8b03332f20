//! The deletion of backups, and of the shared files that no other backup needs.

use std::collections::HashSet;

use super::format::{BackupRecord, is_piece, record_name};
use super::{BackupFolder, READING};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::TEMPORARY_SUFFIX;

/// The backups and shared files that [`BackupFolder::purge_old`] and [`BackupFolder::delete`] have deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PurgeSummary {
    /// The backups, ascending.
    pub backups: Vec<u32>,
    /// The number of shared files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl BackupFolder {
    /// Deletes all backups but the newest `keep`, and every shared file that none of them needs. The rest of an
    /// interrupted backup goes as well.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if another process works in the folder; corruption that names a damaged backup: which
    /// shared files it needs is not known, so none is deleted until it is deleted by [`BackupFolder::delete`]; those of
    /// the file system.
    ///
    /// # Durability
    /// After a crash in the middle each backup is whole or gone; a repeated call deletes the rest.
    pub fn purge_old(&self, keep: usize) -> Result<PurgeSummary> {
        self.purge(|ids| ids[..ids.len().saturating_sub(keep)].to_vec())
    }

    /// Deletes the backup `backup_id`, which may be damaged, and every shared file that no other one needs.
    ///
    /// # Errors
    /// As [`BackupFolder::purge_old`]; [`ErrorKind::InvalidArgument`] if there is no such backup.
    ///
    /// # Durability
    /// As [`BackupFolder::purge_old`].
    pub fn delete(&self, backup_id: u32) -> Result<PurgeSummary> {
        if !self.ids()?.contains(&backup_id) {
            let message = format!("there is no backup {backup_id} in {}", self.dir.display());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.purge(|_| vec![backup_id])
    }

    fn purge(&self, choose: impl FnOnce(&[u32]) -> Vec<u32>) -> Result<PurgeSummary> {
        let mut summary = PurgeSummary::default();
        let ids = self.ids()?;
        // Without a backup there may be no folder, and nothing to lock.
        if ids.is_empty() && self.shared()?.is_empty() {
            return Ok(summary);
        }
        let _lock = self.lock()?;
        let reading = self.fs.try_lock(&self.dir.join(READING))?;
        let _reading = reading.ok_or_else(|| self.locked("another process reads backups in"))?;
        for id in choose(&self.ids()?) {
            self.fs.delete(&self.dir.join(record_name(id)))?;
            summary.backups.push(id);
        }
        // Durability: before the shared files that these records name.
        self.fs.sync_dir(&self.dir)?;
        self.collect(&mut summary)?;
        Ok(summary)
    }

    /// Deletes the shared files that no record names, and the remains of files that were not finished.
    fn collect(&self, summary: &mut PurgeSummary) -> Result<()> {
        let records = self.records()?;
        if let Some((id, error)) = records.damaged.into_iter().next() {
            let message = format!(
                "backup {id} is damaged, so it is not known which shared files it needs; delete it first"
            );
            return Err(Error::because(error.kind(), message, error));
        }
        let needed: HashSet<&str> =
            records.sound.values().flat_map(BackupRecord::pieces).map(|it| &*it.name).collect();
        let dir = self.shared_dir();
        for (name, len) in self.shared()? {
            let is_unfinished = name.ends_with(TEMPORARY_SUFFIX);
            if is_unfinished || is_piece(&name) && !needed.contains(&*name) {
                self.fs.delete(&dir.join(&name))?;
                summary.files += 1;
                summary.bytes += len;
            }
        }
        self.fs.sync_dir(&dir)
    }
}
