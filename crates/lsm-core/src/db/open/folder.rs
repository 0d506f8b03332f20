//! The folder of a database at an open: what is expected there, and how it is held and locked, or leased.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::db::concurrent_reader;
use crate::db::ownership::{HeldLock, WriterEpoch};
use crate::db::read_only::lock_for_reading;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{FolderFs, Fs, LockGuard, names};
use crate::types::Opened;
use crate::version::Missing;

/// The way in which a folder is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::db) enum OpenMode {
    /// Alone, for everything.
    Writing,
    /// While no one writes.
    Reading,
    /// While somebody may write.
    WithLiveWriter,
}

/// The answers to the question whether an open for writing may make a database, and use an existing one.
#[derive(Clone, Copy)]
pub(in crate::db) struct OpenCheck {
    pub(in crate::db) creates: bool,
    pub(in crate::db) refuses_existing: bool,
}

impl Default for OpenCheck {
    fn default() -> OpenCheck {
        OpenCheck { creates: true, refuses_existing: false }
    }
}

impl OpenCheck {
    /// Checks what lies in `dir` by the names of its files.
    fn look(self, fs: &dyn Fs, dir: &Path) -> Result<()> {
        // The usual open costs no listing.
        if self.creates && !self.refuses_existing {
            return Ok(());
        }
        match names::in_dir(fs, dir) {
            Ok(files) => self.check(dir, !files.is_empty()),
            Err(error) if error.is_missing() => self.check(dir, false),
            Err(error) => Err(error),
        }
    }

    /// Checks whether a database may be missing in `dir`, or may be there. `exists` says which it is.
    ///
    /// # Errors
    /// Those of the file system for a file that is missing, or exists already.
    pub(in crate::db) fn check(self, dir: &Path, exists: bool) -> Result<()> {
        if !exists && !self.creates {
            return Err(Error::io("find a database in", dir, io::ErrorKind::NotFound.into()));
        }
        if exists && self.refuses_existing {
            let exists = io::ErrorKind::AlreadyExists.into();
            return Err(Error::io("make a database in", dir, exists));
        }
        Ok(())
    }
}

/// The folder of a database, held and locked, or leased.
pub(in crate::db) struct DbFolder {
    pub(in crate::db) fs: Arc<dyn Fs>,
    pub(in crate::db) dir: PathBuf,
    pub(in crate::db) lock: HeldLock,
    pub(in crate::db) missing: Missing,
    pub(in crate::db) writer_epoch: Option<WriterEpoch>,
}

impl DbFolder {
    pub(in crate::db) fn find(
        fs: Arc<dyn Fs>,
        dir: &Path,
        access: OpenMode,
        takes_over: bool,
        expected: OpenCheck,
    ) -> Result<DbFolder> {
        let opened = Opened::note()?;
        if takes_over && access != OpenMode::Writing {
            let message = "take_over and a read-only open exclude each other";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if access == OpenMode::Writing {
            // Before anything is made or fenced: a refused open leaves the folder, and the process that
            // writes in it, as they were.
            expected.look(&*fs, dir)?;
            fs.create_dir(dir)?;
        }
        // The folder is held open from here on. If its path is renamed or replaced meanwhile, all
        // files still come from the folder that is locked.
        let (fs, dir) = FolderFs::hold(fs, dir)?;
        let mut missing = Missing::Damage;
        let mut writer_epoch = None;
        let lock: Box<dyn LockGuard> = match access {
            // Before anything is read: what another writer changes meanwhile would be read half.
            OpenMode::Writing => {
                let (taken, lock) = WriterEpoch::take(&*fs, &dir, takes_over)?;
                writer_epoch = Some(taken);
                lock
            }
            OpenMode::Reading => {
                let held = lock_for_reading(&*fs, &dir)?;
                missing = held.missing;
                held.guard
            }
            OpenMode::WithLiveWriter => {
                let held = concurrent_reader::hold(&fs, &dir, Box::new(random_from_hasher_keys))?;
                missing = held.missing();
                Box::new(held)
            }
        };
        let lock = HeldLock { _lock: lock, _opened: opened };
        Ok(DbFolder { fs, dir, lock, missing, writer_epoch })
    }
}

/// Distinct on every call and in every process, which is all that ids, salts and the names of leases
/// ask for.
pub(crate) fn random_from_hasher_keys() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
