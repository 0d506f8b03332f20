//! The deletion of backups, and of the shared files that no other backup needs.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::create::number_after;
use super::format::{BackupRecord, is_piece, record_name};
use super::purge_record::PurgeRecord;
use super::{BackupFolder, READING, Records};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
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
        if !self.records()?.ids().contains(&backup_id) {
            return Err(self.no_backup(backup_id));
        }
        self.purge(|ids| ids.iter().copied().filter(|id| *id == backup_id).collect())
    }

    fn purge(&self, choose: impl Fn(&[u32]) -> Vec<u32>) -> Result<PurgeSummary> {
        // Without a backup there may be no folder, and nothing to lock.
        if self.numbers()?.is_empty() && self.shared()?.is_empty() {
            return Ok(PurgeSummary::default());
        }
        let _lock = self.lock()?;
        let reading = self.fs.try_lock(&self.dir.join(READING))?;
        let _reading = reading.ok_or_else(|| self.locked("another process reads backups in"))?;
        let mut gone = BTreeSet::new();
        loop {
            let records = self.records()?;
            let ids = records.ids();
            let chosen = choose(&ids);
            gone.extend(chosen.iter().copied());
            // Listed after the records: what they name is there, or was lost.
            let mut deleted = self.shared()?;
            let needed = needed(&records, &chosen)?;
            deleted.retain(|name, _| is_piece(name) && !needed.contains(&**name));
            if chosen.is_empty() && deleted.is_empty() {
                self.delete_records(&records.left)?;
                // What an earlier round has chosen is gone, if another purge has taken it over.
                gone.retain(|id| !ids.contains(id));
                return self.delete_shared(deleted, gone);
            }
            let record = PurgeRecord {
                number: number_after(records.last)?,
                previous: records.purge_number(),
                kept: ids.iter().copied().filter(|id| !chosen.contains(id)).collect(),
                deleted: deleted.keys().cloned().collect(),
            };
            let path = self.dir.join(record_name(record.number));
            // Durability: before anything is deleted, so that no backup is published that needs it. The number may have
            // been free again: then there is a newer purge, and backups after that do not look at this record.
            if self.fs.put_if_absent(&path, &record.encode())?
                && self.records()?.newest_purge_after(record.number)?.is_none()
            {
                let purge = records.purge.iter().map(|purge| purge.number);
                let left = chosen.iter().copied().chain(records.left.iter().copied()).chain(purge);
                self.delete_records(&left.collect::<Vec<_>>())?;
                return self.delete_shared(deleted, gone);
            }
        }
    }

    fn delete_records(&self, numbers: &[u32]) -> Result<()> {
        for number in numbers {
            self.fs.delete(&self.dir.join(record_name(*number)))?;
        }
        match numbers {
            [] => Ok(()),
            _ => self.fs.sync_dir(&self.dir),
        }
    }

    /// Deletes shared files, and the remains of those that were not finished.
    fn delete_shared(
        &self,
        mut deleted: BTreeMap<String, u64>,
        backups: BTreeSet<u32>,
    ) -> Result<PurgeSummary> {
        let unfinished = self.shared()?.into_iter();
        deleted.extend(unfinished.filter(|(name, _)| name.ends_with(TEMPORARY_SUFFIX)));
        let backups = backups.into_iter().collect();
        let mut summary = PurgeSummary { backups, ..PurgeSummary::default() };
        let dir = self.shared_dir();
        for (name, len) in deleted {
            self.fs.delete(&dir.join(&name))?;
            summary.files += 1;
            summary.bytes += len;
        }
        self.fs.sync_dir(&dir)?;
        Ok(summary)
    }
}

/// The shared files that backups need, but for `chosen`.
fn needed<'a>(records: &'a Records, chosen: &[u32]) -> Result<HashSet<&'a str>> {
    if let Some((id, error)) = records.damaged.iter().find(|(id, _)| !chosen.contains(id)) {
        let message = format!(
            "backup {id} is damaged, so it is not known which shared files it needs; delete it first"
        );
        return Err(Error::because(error.kind(), message, error.clone()));
    }
    let kept = records.sound.values().filter(|record| !chosen.contains(&record.id));
    Ok(kept.flat_map(BackupRecord::pieces).map(|piece| &*piece.name).collect())
}
