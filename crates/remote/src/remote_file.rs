//! [`RemoteFile`]: a file in the bucket, read by ranges.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use lsm_core::fs::File;
use parking_lot::RwLock;
use siltstone::{Error, Result};

use crate::cache::ObjectCache;
use crate::folder::FileBytes;

/// The local copy of a file in the bucket, once there is one.
pub(crate) type LocalCopy = Arc<OnceLock<Arc<dyn File>>>;

/// Looks at the journal again, for a file whose objects are missing.
pub(crate) trait Renewal: Send + Sync {
    fn renew(&self) -> Result<()>;
}

/// A file in the bucket. It grows with the journal, and is never written here.
pub(crate) struct RemoteFile {
    file: Arc<RwLock<FileBytes>>,
    cache: Arc<ObjectCache>,
    path: PathBuf,
    renewal: Option<Arc<dyn Renewal>>,
}

impl RemoteFile {
    pub(crate) fn new(
        file: Arc<RwLock<FileBytes>>,
        cache: Arc<ObjectCache>,
        path: PathBuf,
    ) -> RemoteFile {
        RemoteFile { file, cache, path, renewal: None }
    }

    /// The same file, for a reader: objects may be deleted after a newer base has others with the same bytes.
    pub(crate) fn renewed_by(self, renewal: Arc<dyn Renewal>) -> RemoteFile {
        RemoteFile { renewal: Some(renewal), ..self }
    }

    fn read(&self, offset: u64, buf: &mut [u8], is_cached: bool) -> Result<usize> {
        match (self.cache.read_at(&self.file, offset, buf, is_cached), &self.renewal) {
            (Err(error), Some(renewal)) if error.is_missing() => {
                renewal.renew()?;
                self.cache.read_at(&self.file, offset, buf, is_cached)
            }
            (read, _) => read,
        }
    }

    fn read_only(&self, verb: &str) -> Error {
        Error::io(verb, &self.path, io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

impl File for RemoteFile {
    fn append(&self, _bytes: &[u8]) -> Result<()> {
        Err(self.read_only("append to"))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read(offset, buf, true)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.cache.prefetch(&self.file, offset..offset + len);
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        // From the bucket: damage in the cache does not count.
        self.read(offset, buf, false)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.file.read().len)
    }

    fn preallocate(&self, _len: u64) -> Result<()> {
        Err(self.read_only("extend"))
    }

    fn punch(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(self.read_only("punch"))
    }
}
