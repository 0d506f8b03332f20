//! [`RemoteReader`]: the folder of a database in a bucket, for secondaries of any machine. Its file system is read-only:
//! a replay of the journal, and blocks of objects in a bounded cache.
//!
//! Invariants:
//! 1. Changes are taken in in their order, those of a journal object under one lock: the folder is a prefix of
//!    the history, and a name is there before a manifest names it.
//! 2. A look at the journal ends with an answer that no further object exists, which was asked for after the look
//!    began.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_core::fs::{AppendMode, Caps, DirEntry, File, FolderState, Fs, LockGuard};
use parking_lot::Mutex;
use siltstone::{Db, Error, Result};

use crate::cache::ObjectCache;
use crate::folder::Folder;
use crate::opening::{journal_object, load};
use crate::remote_file::RemoteFile;
use crate::settings::{Ack, Settings};

/// The path of the folder, in the file system of a reader.
const DIR: &str = "/remote";

/// The folder of a database in a bucket, for reading. See [`Remote::reader`](crate::Remote::reader).
#[derive(Clone)]
pub struct RemoteReader {
    state: Arc<ReaderState>,
}

struct ReaderState {
    bucket: crate::bucket::Bucket,
    cache: Arc<ObjectCache>,
    /// Held over a look at the journal: one thread asks, and the others get its answer.
    turn: Mutex<()>,
    /// A leaf.
    folder: Mutex<Folder>,
}

impl RemoteReader {
    pub(crate) fn open(remote: &Settings) -> Result<RemoteReader> {
        let bucket = remote.bucket();
        let folder = load(&bucket)?;
        let cache = Arc::new(ObjectCache::new(bucket.clone(), remote.cache_bytes));
        let state = ReaderState { bucket, cache, turn: Mutex::new(()), folder: Mutex::new(folder) };
        Ok(RemoteReader { state: Arc::new(state) })
    }

    /// Returns options of a secondary of this folder. Several may be opened.
    pub fn secondary(&self) -> siltstone::secondary::Builder {
        Db::secondary_builder(DIR).fs(Arc::new(self.clone()))
    }

    /// Takes in what is new in the journal. A secondary does that by itself whenever it catches up.
    ///
    /// # Errors
    /// Those of the store; corruption of an object. The folder then has all objects before the damaged one, and nothing of it.
    ///
    /// # Cost
    /// A GET for each new object, and one that finds none.
    pub fn refresh(&self) -> Result<()> {
        let _turn = self.state.turn.lock();
        loop {
            let number = self.number() + 1;
            let Some(object) = journal_object(&self.state.bucket, number)? else { return Ok(()) };
            self.state.folder.lock().take_in(&object)?;
        }
    }

    /// Returns the number of the last journal object that the folder has.
    pub fn number(&self) -> u64 {
        self.state.folder.lock().number
    }

    /// Returns the bytes of objects in the cache.
    pub fn cache_bytes(&self) -> u64 {
        self.state.cache.bytes()
    }

    fn read_only(path: &Path) -> Error {
        Error::io("write", path, io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

impl Fs for RemoteReader {
    fn caps(&self) -> Caps {
        Caps { link: false, punch: false, process_lock: false }
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        Err(RemoteReader::read_only(dir))
    }

    fn open_append(&self, path: &Path, _mode: AppendMode) -> Result<Arc<dyn File>> {
        Err(RemoteReader::read_only(path))
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let file = self.state.folder.lock().file(name).cloned();
        match file {
            Some(file) => {
                Ok(Arc::new(RemoteFile::new(file, self.state.cache.clone(), PathBuf::from(path))))
            }
            None => Err(Error::io("open", path, io::ErrorKind::NotFound.into())),
        }
    }

    fn put_if_absent(&self, path: &Path, _content: &[u8]) -> Result<bool> {
        Err(RemoteReader::read_only(path))
    }

    fn list(&self, _dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        let folder = self.state.folder.lock();
        let files = folder.files.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(files
            .map(|(name, file)| DirEntry { name: name.clone(), len: file.read().len })
            .collect())
    }

    fn delete(&self, path: &Path) -> Result<()> {
        Err(RemoteReader::read_only(path))
    }

    fn link(&self, _from: &Path, to: &Path) -> Result<()> {
        Err(RemoteReader::read_only(to))
    }

    fn sync_dir(&self, _dir: &Path) -> Result<()> {
        Ok(())
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        Err(RemoteReader::read_only(path))
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        Err(Error::io("open", path, io::ErrorKind::NotFound.into()))
    }

    fn free_bytes(&self, _dir: &Path) -> Result<u64> {
        Ok(0)
    }

    fn folder_state(&self, _dir: &Path) -> Result<FolderState> {
        self.refresh()?;
        Ok(match self.state.folder.lock().ack {
            Ack::Stored => FolderState::Current,
            // Commits are acknowledged that the bucket does not have.
            Ack::Local => FolderState::Settled,
        })
    }
}
