//! [`BackupFs`]: a folder of backups in a bucket, as the file system that a `BackupEngine` uses.
//!
//! A file is an object, which is put and got whole. A bucket has no locks: purge records keep backups whole without
//! them, see `backup/purge_record.rs` of the engine.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;

use lsm_core::fs::{AppendMode, Caps, DirEntry, File, Fs, LockGuard};
use siltstone::{Error, Result};

use crate::bucket::{Bucket, Put};

/// The objects of backups begin with this.
pub(crate) const BACKUPS: &str = "backups";

/// The objects of a bucket as files.
pub(crate) struct BackupFs {
    // Fixed.
    bucket: Bucket,
    is_stepped: bool,
    /// The store enforces put-if-absent.
    probed: OnceLock<()>,
}

impl BackupFs {
    pub(crate) fn new(bucket: Bucket, is_stepped: bool) -> BackupFs {
        BackupFs { bucket, is_stepped, probed: OnceLock::new() }
    }
}

/// The name of the object at `path`.
fn name_of(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

fn unsupported(verb: &str, path: &Path) -> Error {
    Error::io(verb, path, io::ErrorKind::Unsupported.into())
}

impl Fs for BackupFs {
    fn caps(&self) -> Caps {
        Caps { link: false, punch: false, process_lock: false, is_encrypted: false, is_far: false }
    }

    fn create_dir(&self, _dir: &Path) -> Result<()> {
        Ok(())
    }

    fn open_append(&self, path: &Path, _mode: AppendMode) -> Result<Arc<dyn File>> {
        Err(unsupported("append to", path))
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        match self.bucket.get(&name_of(path))? {
            Some(bytes) => Ok(Arc::new(WholeObject { bytes, path: path.to_owned() })),
            None => Err(Error::io("open", path, io::ErrorKind::NotFound.into())),
        }
    }

    fn put_if_absent(&self, path: &Path, content: &[u8]) -> Result<bool> {
        if self.probed.get().is_none() {
            self.bucket.probe(self.is_stepped)?;
            // Another thread may have been faster.
            let _ = self.probed.set(());
        }
        Ok(self.bucket.put_new(&name_of(path), content)? == Put::Stored)
    }

    fn list(&self, dir: &Path, prefix: &str) -> Result<Vec<DirEntry>> {
        let listed = self.bucket.list(&name_of(dir))?.objects.into_iter();
        let entries = listed.filter_map(|object| {
            let (_, name) = object.name.rsplit_once('/')?;
            Some(DirEntry { name: name.to_owned(), len: object.len })
        });
        Ok(entries.filter(|entry| entry.name.starts_with(prefix)).collect())
    }

    fn delete(&self, path: &Path) -> Result<()> {
        self.bucket.delete(&name_of(path))
    }

    fn link(&self, _from: &Path, to: &Path) -> Result<()> {
        Err(unsupported("link", to))
    }

    fn sync_dir(&self, _dir: &Path) -> Result<()> {
        Ok(())
    }

    fn try_lock(&self, _path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        Ok(Some(Box::new(UnheldLock)))
    }

    fn try_lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.try_lock(path)
    }

    fn free_bytes(&self, _dir: &Path) -> Result<u64> {
        Ok(u64::MAX)
    }
}

/// Excludes no one.
struct UnheldLock;

impl LockGuard for UnheldLock {}

/// An object in memory: a record, or a shared file of at most 8 MiB.
struct WholeObject {
    bytes: Vec<u8>,
    path: PathBuf,
}

impl File for WholeObject {
    fn append(&self, _bytes: &[u8]) -> Result<()> {
        Err(unsupported("append to", &self.path))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let len = buf.len().min(self.bytes.len() - from);
        buf[..len].copy_from_slice(&self.bytes[from..from + len]);
        Ok(len)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn preallocate(&self, _len: u64) -> Result<()> {
        Err(unsupported("extend", &self.path))
    }

    fn punch(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(unsupported("punch", &self.path))
    }
}
