//! The verification of backups: every shared file is read once.

use std::collections::BTreeMap;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::format::{BackupRecord, SharedPiece, record_name};
use super::{BackupFolder, THREAD};
use crate::clock::Pace;
use crate::error::{Error, Result};
use crate::threads::for_each;

/// A damaged file, and the backups that cannot be restored without it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DamagedBackupFile {
    /// The file.
    pub path: PathBuf,
    /// The damage.
    pub error: Error,
    /// The backups that need it, ascending.
    pub backups: Vec<u32>,
}

/// The findings of [`BackupFolder::verify`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BackupReport {
    /// The backups that were verified, ascending.
    pub backups: Vec<u32>,
    /// The number of shared files that were read.
    pub files: u64,
    /// Their bytes, without their headers.
    pub bytes: u64,
    /// All damaged files.
    pub damaged: Vec<DamagedBackupFile>,
}

impl BackupReport {
    /// Returns `true` if nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.damaged.is_empty()
    }
}

impl BackupFolder {
    /// Reads every file of the backup `backup_id`, or of all backups, and compares it with its checksums.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if there is no such backup;
    /// [`Locked`](crate::ErrorKind::Locked) if another process deletes backups; those of the file system. Damage is no
    /// error but part of the report.
    ///
    /// # Cost
    /// Reads each shared file once, however many backups need it.
    pub fn verify(&self, backup_id: Option<u32>) -> Result<BackupReport> {
        let _reading = self.lock_reading()?;
        let mut records = self.records()?;
        if let Some(id) = backup_id {
            if !records.ids().contains(&id) {
                return Err(self.no_backup(id));
            }
            records.damaged.retain(|damaged, _| *damaged == id);
            records.sound.retain(|sound, _| *sound == id);
        }
        let mut report = BackupReport::default();
        for (id, error) in records.damaged {
            let path = self.dir.join(record_name(id));
            report.damaged.push(DamagedBackupFile { path, error, backups: vec![id] });
            report.backups.push(id);
        }
        report.backups.extend(records.sound.keys());
        report.backups.sort_unstable();
        self.verify_pieces(records.sound.values(), &mut report)?;
        if !report.damaged.is_empty() {
            // Where there are no locks, a purge may have deleted backups meanwhile.
            let now = self.records()?;
            for damaged in &mut report.damaged {
                damaged.backups.retain(|id| now.counts(*id));
            }
            report.damaged.retain(|damaged| !damaged.backups.is_empty());
        }
        Ok(report)
    }

    fn verify_pieces<'a>(
        &self,
        records: impl Iterator<Item = &'a BackupRecord>,
        report: &mut BackupReport,
    ) -> Result<()> {
        let mut needed: BTreeMap<&str, (&SharedPiece, Vec<u32>)> = BTreeMap::new();
        for record in records {
            for piece in record.pieces() {
                let (_, backups) = needed.entry(&piece.name).or_insert_with(|| (piece, Vec::new()));
                if backups.last() != Some(&record.id) {
                    backups.push(record.id);
                }
            }
        }
        let pace = Mutex::new(Pace::new(self.bytes_per_second));
        report.files = needed.len() as u64;
        report.bytes = needed.values().map(|(piece, _)| piece.len).sum();
        let damaged = Mutex::new(&mut report.damaged);
        for_each(
            THREAD,
            self.threads,
            needed.into_iter().collect(),
            |(name, (piece, backups))| match self.read_piece(piece, &pace, |_| Ok(())) {
                Err(error) if error.is_corruption() || error.io_source().is_some() => {
                    let path = self.shared_dir().join(name);
                    damaged.lock().push(DamagedBackupFile { path, error, backups });
                    Ok(())
                }
                read => read,
            },
        )?;
        report.damaged.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(())
    }
}
