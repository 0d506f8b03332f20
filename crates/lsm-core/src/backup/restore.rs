//! A database from a backup: its files, and the manifest last. A checkpoint makes its folder by the same [`NewFiles`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::format::{BackupRecord, PIECE_HEADER_BYTES, SharedPiece, StoredFile, open_piece};
use super::{BackupFolder, BackupInfo, Records, THREAD};
use crate::clock::Pace;
use crate::db::make_empty_folder;
use crate::db::open::random_from_hasher_keys;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{AppendMode, File, Fs};
use crate::threads::for_each;
use crate::types::FileNo;
use crate::version::{DbVersion, Manifest};

/// The file numbers of two databases that were restored from one backup begin at different places, this many at most
/// apart. Otherwise both would give the same names to different files, and backups share files by name.
const NUMBERS_APART: u64 = 1 << 48;

impl BackupFolder {
    /// Makes a database of the backup `backup_id` in the folder `into`, which must be empty or not exist. The backup
    /// is not changed. The database has the id of the one that was backed up, and a history of its own from then on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there is no such backup, or if there are files in `into`; corruption that
    /// names the damaged file of the backup; [`ErrorKind::Locked`] if another process deletes backups; those of
    /// writing. The files are removed then. After a crash `into` is refused as a database.
    ///
    /// # Durability
    /// The database is durable once this returns.
    ///
    /// # Cost
    /// Reads and writes all bytes of the backup, and verifies them. The next open replays the log that is in it.
    pub fn restore(&self, backup_id: u32, into: impl AsRef<Path>) -> Result<BackupInfo> {
        self.restore_chosen(|_| Some(backup_id), into.as_ref())
    }

    /// As [`BackupFolder::restore`], of the newest backup.
    ///
    /// # Errors
    /// As [`BackupFolder::restore`]; corruption if the newest backup is damaged.
    pub fn restore_latest(&self, into: impl AsRef<Path>) -> Result<BackupInfo> {
        self.restore_chosen(|records| records.ids().last().copied(), into.as_ref())
    }

    fn restore_chosen(
        &self,
        choose: impl FnOnce(&Records) -> Option<u32>,
        into: &Path,
    ) -> Result<BackupInfo> {
        let _reading = self.lock_reading()?;
        let mut records = self.records()?;
        let Some(id) = choose(&records) else {
            let message = format!("there is no backup in {}", self.dir.display());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        if let Some(error) = records.damaged.remove(&id) {
            return Err(error);
        }
        let record = records.sound.remove(&id).ok_or_else(|| self.no_backup(id))?;
        match self.restore_record(&record, into) {
            Ok(()) => Ok(BackupInfo::of(&record)),
            // Where there are no locks, a purge may have deleted it meanwhile.
            Err(error) if error.is_corruption() && !self.records()?.counts(id) => {
                let message = format!("backup {id} was deleted while it was restored");
                Err(Error::because(ErrorKind::InvalidArgument, message, error))
            }
            Err(error) => Err(error),
        }
    }

    fn restore_record(&self, record: &BackupRecord, into: &Path) -> Result<()> {
        make_empty_folder(&*self.database_fs, into)?;
        let pace = Mutex::new(Pace::new(self.bytes_per_second));
        let made = NewFiles::new(&*self.database_fs, into);
        let files = for_each(THREAD, self.threads, record.files.iter().collect(), |file| {
            let target = made.create(file.name)?;
            self.restore_file(file, &*target, &pace)
        });
        made.publish(files, &record.version)
    }

    fn restore_file(&self, file: &StoredFile, target: &dyn File, pace: &Mutex<Pace>) -> Result<()> {
        for piece in &file.pieces {
            self.read_piece(piece, pace, |content| target.append(content))?;
        }
        target.sync()
    }

    /// Waits until `bytes` more are within the rate.
    pub(super) fn keep_pace(&self, pace: &Mutex<Pace>, bytes: u64) {
        let debt = {
            let mut pace = pace.lock();
            pace.take(bytes, self.clock.now());
            pace.debt()
        };
        while debt.park(|| self.clock.now()) {}
    }

    /// Reads and verifies a piece.
    pub(super) fn read_piece(
        &self,
        piece: &SharedPiece,
        pace: &Mutex<Pace>,
        then: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let path = self.shared_dir().join(&piece.name);
        self.keep_pace(pace, piece.len);
        let file = match self.fs.open_read(&path) {
            Err(error) if error.is_missing() => {
                return Err(Error::corruption(
                    path,
                    None,
                    "a shared file of the backup is missing",
                ));
            }
            opened => opened?,
        };
        // One byte more than there should be, so that a longer file is found.
        let mut bytes = vec![0; PIECE_HEADER_BYTES + piece.len as usize + 1];
        let got = file.read_at(0, &mut bytes)?;
        then(open_piece(piece, &bytes[..got], &path)?)
    }
}

/// The files of a database that is being made in a folder.
pub(super) struct NewFiles<'a> {
    fs: &'a dyn Fs,
    dir: &'a Path,
    /// Not the files that are there already: these are of another call with this folder, which may succeed.
    made: Mutex<Vec<PathBuf>>,
}

impl<'a> NewFiles<'a> {
    pub(super) fn new(fs: &'a dyn Fs, dir: &'a Path) -> NewFiles<'a> {
        NewFiles { fs, dir, made: Mutex::default() }
    }

    /// Creates the file `name`, which must not be there.
    pub(super) fn create(&self, name: FileName) -> Result<Arc<dyn File>> {
        let path = name.path(self.dir);
        let file = self.fs.open_append(&path, AppendMode::IfAbsent)?;
        self.made.lock().push(path);
        Ok(file)
    }

    /// Gives the file `from` the name `name` here, too. Returns `false` if that cannot be done, for whatever reason:
    /// a copy shows whether it matters.
    pub(super) fn link(&self, from: &Path, name: FileName) -> bool {
        let path = name.path(self.dir);
        let is_linked = self.fs.caps().link && self.fs.link(from, &path).is_ok();
        if is_linked {
            self.made.lock().push(path);
        }
        is_linked
    }

    /// Makes the folder a database with the state `version`. If that fails, or if `files` is the error of a file,
    /// removes the files.
    pub(super) fn publish(self, files: Result<()>, version: &DbVersion) -> Result<()> {
        let NewFiles { fs, dir, made } = self;
        let made = made.into_inner();
        let mut version = version.clone();
        let apart = random_from_hasher_keys() % NUMBERS_APART;
        let number = FileNo(version.next_file.0.saturating_add(apart));
        version.next_file = FileNo(number.0.saturating_add(1));
        let manifest = FileName::new(FileKind::Manifest, number, version.epoch);
        let published = files
            .and_then(|()| fs.sync_names(dir, &made))
            .and_then(|()| Manifest::create(fs, dir, manifest, &version).map(drop));
        if published.is_err() {
            // The manifest first: without it the rest is no database.
            let removed = fs.delete(&manifest.path(dir));
            if removed.and_then(|()| fs.sync_dir(dir)).is_ok() {
                made.iter().for_each(|path| drop(fs.delete(path)));
            }
        }
        published
    }
}
