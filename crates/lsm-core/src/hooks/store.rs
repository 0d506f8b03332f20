//! The value store: where values live that are too large for tables.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::types::PartitionId;

/// A value store: where values of a partition live that are not kept in tables.
///
/// The engine stores a handle in the value's place. It promises: a handle is in the log only after
/// `put` returned it; neither the log is durable through a handle nor a table with it installed
/// before `sync` returned after `put` or `carry` gave it; a handle that was dropped from the last
/// version is reported in the very edit that drops it.
///
/// A call that panics fails as one that returns an error; the exception is [`ValueStore::wants`],
/// whose panic unwinds to whoever writes, before anything was written.
pub trait ValueStore: Send + Sync + 'static {
    /// The name under which partitions store it.
    fn name(&self) -> &str;

    /// Parameters to be stored with the partition.
    fn params(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Returns `true` if a value of `len` bytes goes to the store.
    fn wants(&self, partition: PartitionId, len: u64) -> bool;

    /// Stores a value; returns its handle. Until the handle is in the log it is pending: a crash
    /// loses it, and so does dropping the result without [`PendingHandle::keep`].
    fn put(&self, partition: PartitionId, key: &[u8], value: &[u8]) -> Result<PendingHandle>;

    /// Makes every value durable whose `put` or `carry` has returned. `Ok` after an error speaks
    /// for the values before the error too: what a failed sync of a file may have lost is written
    /// anew. Until then the database takes no writes that are logged.
    fn sync(&self) -> Result<()>;

    /// Returns `true` if the value of a handle is there, by its header and trailer: asked in
    /// recovery.
    fn probe(&self, handle: &[u8]) -> Result<bool>;

    /// Length of the value of a handle, in bytes.
    fn len(&self, handle: &[u8]) -> Result<u64>;

    /// Reads `len` bytes from `offset` of the value.
    fn read(&self, handle: &[u8], offset: u64, len: usize) -> Result<Vec<u8>>;

    /// In a compaction: the handle of the moved value, or `None` if it stays where it is.
    fn carry(&self, handle: &[u8]) -> Result<Option<Vec<u8>>> {
        let _ = handle;
        Ok(None)
    }

    /// The section to be stored with edit `number`, which drops these handles. Called under the
    /// lock of the versions: it calls nothing of the database.
    fn edit(&self, number: u64, dropped: &[Vec<u8>]) -> Vec<u8>;

    /// Takes in the section of a durable edit. Called live, in recovery and by followers, in the
    /// order of the edits; the same section may come twice. One that fails comes again before any
    /// later one, live or at the next open.
    fn apply(&self, number: u64, section: &[u8]) -> Result<()>;

    /// The whole state as a section, for a new manifest generation. Called under the lock of the
    /// versions, when every section of the partition was taken in: it calls nothing of the
    /// database.
    fn snapshot(&self) -> Vec<u8>;

    /// Nobody can read anything any more that was dropped at or before edit `number`. Called again
    /// if it fails.
    fn reclaim(&self, number: u64) -> Result<()>;

    /// Makes a copy in the folder `dir` of every value that tables of `partition` may point to, for
    /// a checkpoint: of all that were put or carried and not reclaimed. None of them is reclaimed
    /// during the call. Later changes here do not change the copy. Called for each partition that
    /// has this store; what it has in `dir` from another call is its own.
    ///
    /// The path of every file is put into `made` before it is made: the database removes them, with
    /// the rest, if the checkpoint fails, here or later. In `dir` the names of the database begin
    /// with a hexadecimal number, or are `LOCK` or `EXPORT`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], if it is not implemented: then there is no checkpoint.
    ///
    /// # Durability
    /// The copies are durable once this returns, names included. The manifest that makes the
    /// folder a database comes after it.
    fn checkpoint(
        &self,
        partition: PartitionId,
        dir: &Path,
        made: &mut Vec<PathBuf>,
    ) -> Result<()> {
        let _ = (partition, dir, made);
        let message = format!("the value store {:?} makes no checkpoints", self.name());
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Bytes that identify the value wherever it lies, for sealing.
    fn identity(&self, handle: &[u8]) -> Result<Vec<u8>>;
}

/// The handle of a value that was put and is not in the log yet.
pub struct PendingHandle {
    bytes: Vec<u8>,
    abort: Option<Box<dyn FnOnce() + Send>>,
}

impl PendingHandle {
    /// A handle; `abort` is called if it is dropped without being kept.
    pub fn new(bytes: Vec<u8>, abort: impl FnOnce() + Send + 'static) -> PendingHandle {
        PendingHandle { bytes, abort: Some(Box::new(abort)) }
    }

    /// The handle's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The handle is in the log now.
    pub fn keep(mut self) {
        self.abort = None;
    }
}

impl Drop for PendingHandle {
    fn drop(&mut self) {
        if let Some(abort) = self.abort.take() {
            abort();
        }
    }
}

impl fmt::Debug for PendingHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingHandle").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
