//! The value store: the storage of values that are too large for tables.
//!
//! Each partition has its own store, which [`ValueStoreFactory::open`] opens. The engine stores a handle
//! instead of the value. For each edit, it tells the store which handles the tables added and dropped,
//! and the manifest stores the section that the store returns.
//!
//! Invariants:
//! 1. A handle enters the log only after `put` has returned it. The log counts as durable through the
//!    handle, and a table with the handle is installed, only after a `sync` that began after `put` or
//!    `carry` returned the handle.
//! 2. Every handle in a table of a durable version was added by one edit and is dropped by one edit: by
//!    that of a job, or, if its entry was lost to damage, by that of [`ValueStore::unnamed`]. A value that
//!    no edit added, and that no frame of the log names, is free at the next open.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ChunkId, Entry, StoreContext};
use crate::error::{Error, ErrorKind, Result};
use crate::stats::ValueStoreStats;
use crate::types::Process;

/// A factory of the value stores of partitions.
pub trait ValueStoreFactory: Send + Sync + 'static {
    /// The name under which partitions store it.
    fn name(&self) -> &str;

    /// Parameters to be stored with the partition.
    fn params(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Returns the parameters to be stored with a partition that has a store of this name with the parameters
    /// `stored`: they may keep a version that its values need. Default: [`ValueStoreFactory::params`].
    fn params_over(&self, stored: &[u8]) -> Vec<u8> {
        let _ = stored;
        self.params()
    }

    /// Opens the store of a partition. Edits that the manifest keeps for it come next, by
    /// [`ValueStore::apply`].
    fn open(&self, context: StoreContext) -> Result<Arc<dyn ValueStore>>;
}

/// The value store of a partition.
///
/// A panic of a call counts as an error. [`ValueStore::wants`] is the exception: its panic unwinds to the
/// writer, before anything was written.
pub trait ValueStore: Any + Send + Sync {
    /// Takes over parameters that were stored with the partition since it was opened.
    fn configure(&self, params: &[u8]) -> Result<()> {
        let _ = params;
        Ok(())
    }

    /// Returns `true` if a value of `len` bytes goes to the store.
    fn wants(&self, len: u64) -> bool;

    /// Stores the value of `key`, a stored key; returns its handle. Until the handle is in the log
    /// it is pending: a crash loses it, and so does dropping the result without
    /// [`PendingHandle::keep`].
    fn put(&self, key: &[u8], value: &[u8]) -> Result<PendingHandle>;

    /// Makes every value durable whose `put` or `carry` has returned. An `Ok` after an error also covers
    /// the values before the error, except those that are [in doubt](ValueStore::is_in_doubt).
    ///
    /// After an error the database refuses logged writes until it has written its memtables to tables. In
    /// these flushes `rescue` moves the values that are in doubt.
    fn sync(&self) -> Result<()>;

    /// Begins to write to the device what [`ValueStore::sync`] would make durable, and does not wait. The
    /// log calls it before it syncs its own file, and calls `sync` behind that. Makes nothing durable.
    fn begin_sync(&self) {}

    /// Returns the number of calls of [`ValueStore::sync`] that failed, for a store with values in doubt.
    /// A job whose values may have been in one of them is not installed.
    fn sync_failures(&self) -> u64 {
        0
    }

    /// Returns `true` if a failed sync leaves it unknown what the device has of the value: no batch with
    /// the handle is committed any more. Asked after a sync failed.
    fn is_in_doubt(&self, handle: &[u8]) -> bool {
        let _ = handle;
        false
    }

    /// Returns `true` if the complete value of a handle is on the device. Recovery calls it for handles
    /// whose frames are not known to be synced.
    fn probe(&self, handle: &[u8]) -> Result<bool>;

    /// Length of the value of a handle, in bytes.
    fn len(&self, handle: &[u8]) -> Result<u64>;

    /// Fills `buf` with the bytes of the value from `offset`.
    ///
    /// # Errors
    /// Corruption if they are damaged or not there; the content of `buf` is undefined then.
    fn read_into(&self, handle: &[u8], offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Returns the new place of a value in a compaction. Called for every surviving handle, and for every
    /// value in a table that the store [`wants`](ValueStore::wants). A value that cannot be moved now stays
    /// where it is. An error fails the job, and with it the merge of all other keys.
    fn carry(&self, entry: Entry<'_>) -> Result<Carry> {
        let _ = entry;
        Ok(Carry::Stay)
    }

    /// As [`ValueStore::carry`], in a flush after a failed sync, for a handle that is
    /// [in doubt](ValueStore::is_in_doubt). An error fails the flush, which is tried again: the log names the
    /// value no more behind it.
    fn rescue(&self, entry: Entry<'_>) -> Result<Carry> {
        self.carry(entry)
    }

    /// Returns the section to be stored with an edit of the manifest. Called under the lock of the
    /// versions, so it must not call the database.
    fn edit(&self, edit: &StoreEdit<'_>) -> Vec<u8>;

    /// Applies the section of a durable edit. Called at run time, in recovery and by followers, in the
    /// order of the edits. A section may be applied twice. A section that failed is applied again before
    /// any later section, at run time or at the next open.
    fn apply(&self, number: u64, section: &[u8]) -> Result<()>;

    /// Returns the whole state as a section, for a new manifest generation. Called under the lock of the
    /// versions, after every section of the partition was applied; it must not call the database.
    fn snapshot(&self) -> Vec<u8>;

    /// Returns the section of an edit that drops the values which `state` has and no handle of `named`
    /// names; `None` if there are none. `state` is what [`ValueStore::snapshot`] returned, and `named` are
    /// the handles in all tables of the same edit. Later edits may have been applied meanwhile. Called
    /// after entries of tables were lost to damage.
    ///
    /// # Errors
    /// Those of `named`; corruption of `state`. Nothing is dropped then.
    fn unnamed(
        &self,
        state: &[u8],
        named: &mut dyn Iterator<Item = Result<Vec<u8>>>,
    ) -> Result<Option<Vec<u8>>> {
        let _ = (state, named);
        Ok(None)
    }

    /// Frees the values that were dropped at or before edit `number`, which no reader can see any more, and
    /// files that no edit named.
    /// Called again if it fails.
    fn reclaim(&self, number: u64) -> Result<()>;

    /// Returns the bytes of the values that edit `number` dropped, 0 once they are reclaimed. Secondaries
    /// that read them may hold no more than [`Options::leased_bytes_max`] allows.
    ///
    /// [`Options::leased_bytes_max`]: crate::options::Options::leased_bytes_max
    fn dropped_bytes(&self, number: u64) -> u64 {
        let _ = number;
        0
    }

    /// Returns the chunk files that the store needs after the applied edits. An open removes all other
    /// chunk files of the folder.
    fn chunks(&self) -> Vec<ChunkId> {
        Vec::new()
    }

    /// Returns `true` while there are values, or files of values. Then background work reclaims the space
    /// of values that no reader needs.
    fn holds_values(&self) -> bool {
        false
    }

    /// Returns what the store has on the disk, and what it did since the open.
    fn stats(&self) -> ValueStoreStats {
        ValueStoreStats::default()
    }

    /// Returns the keys whose tables should be rewritten now, so that [`ValueStore::carry`] moves values;
    /// `None` if there are none. Called again after that has succeeded or failed. If the application `asked`,
    /// values that could not be moved before are tried again.
    fn moving(&self, asked: bool) -> Option<KeySpan> {
        let _ = asked;
        None
    }

    /// As [`ValueStore::moving`], when the application asks for the values of the stored keys from `from` to
    /// `to` to be moved into the order of their keys; both are included, and without `to` all from `from`
    /// on.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if there is no room for them. Nothing is moved then.
    fn reallocating(&self, from: &[u8], to: Option<&[u8]>) -> Result<Option<KeySpan>> {
        let _ = (from, to);
        Ok(None)
    }

    /// A job failed that was to move the values of [`ValueStore::moving`] or [`ValueStore::reallocating`].
    /// They are moved no more until the store names them again.
    fn move_failed(&self, error: &Error) {
        let _ = error;
    }

    /// Returns the reason why values that should be moved are left where they are, if there are such values.
    fn unmoved(&self) -> Option<Error> {
        None
    }

    /// Begins to read the first `len` bytes of the value from the device, so that
    /// [`ValueStore::read_into`] finds them in a cache, and does not wait. A scan of values calls it,
    /// from the second large value of an end on, for those that come next; with 8 MiB for a longer value.
    fn prefetch(&self, handle: &[u8], len: u64) {
        let _ = (handle, len);
    }

    /// Reads a value from the device and compares it with its checksums and with its stored key.
    /// `advance` receives the number of bytes that were read; its errors end the call.
    ///
    /// # Errors
    /// Corruption that names file and offset.
    fn verify(
        &self,
        key: &[u8],
        handle: &[u8],
        advance: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let _ = (key, handle, advance);
        Ok(())
    }

    /// Copies every value that the tables of one version of the partition name into the folder `dir`, for a
    /// checkpoint. `sections` are those of the version: a store that applies them to an empty state has what the
    /// tables name. The present state of this store may be another: values that the version does not name may be
    /// reclaimed during the call, and those that it names are not. Later changes do not change the copy.
    ///
    /// The call adds the path of every file to `made` before it creates the file. If the checkpoint fails,
    /// now or later, the database removes these files. The database uses names that begin with a
    /// hexadecimal number, and `LOCK` and `EXPORT`; chunk files keep their names.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if it is not implemented: then the checkpoint fails.
    ///
    /// # Durability
    /// The copies and their names are durable once this returns. The manifest of the checkpoint is written
    /// later.
    fn checkpoint(
        &self,
        sections: &[StoreSection],
        dir: &Path,
        made: &mut Vec<PathBuf>,
    ) -> Result<()> {
        let _ = (sections, dir, made);
        Err(Error::new(ErrorKind::Unsupported, "the value store supports no checkpoints"))
    }
}

/// The number of an edit of the manifest, and the section that a value store has made for it.
pub type StoreSection = (u64, Arc<[u8]>);

/// The effect of an edit on the values of a partition.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreEdit<'a> {
    /// The number of the edit.
    pub number: u64,
    /// Values that tables name from now on, and that no edit added before. What a flush dropped is
    /// among them, and in `dropped` too.
    pub added: &'a [AddedValue],
    /// Handles that no table of the new version names any more.
    pub dropped: &'a [Vec<u8>],
    /// The partition is dropped with all of its values; its section reaches
    /// [`ValueStore::apply`], but not the manifest.
    pub partition_dropped: bool,
}

/// Stored keys from the first to the last, both included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpan {
    /// The first.
    pub smallest: Vec<u8>,
    /// The last.
    pub largest: Vec<u8>,
}

impl KeySpan {
    /// Returns the hull of `span`, if there is one, and of the keys from `smallest` to `largest`.
    pub fn hull(span: Option<KeySpan>, smallest: &[u8], largest: &[u8]) -> KeySpan {
        let Some(mut span) = span else {
            return KeySpan { smallest: smallest.to_vec(), largest: largest.to_vec() };
        };
        if *smallest < *span.smallest {
            span.smallest = smallest.to_vec();
        }
        if *largest > *span.largest {
            span.largest = largest.to_vec();
        }
        span
    }
}

/// A value that an edit adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedValue {
    /// The stored key.
    pub key: Vec<u8>,
    /// The handle.
    pub handle: Vec<u8>,
}

/// The effect of a job on the values of a partition.
#[derive(Debug, Default)]
pub struct JobValues {
    /// As [`StoreEdit::added`].
    pub added: Vec<AddedValue>,
    /// As [`StoreEdit::dropped`].
    pub dropped: Vec<Vec<u8>>,
    /// Values that the job moved: kept with its tables, let go if it fails.
    pub carried: Vec<PendingHandle>,
    /// [`ValueStore::sync_failures`] when the job began.
    pub sync_failures: u64,
}

impl JobValues {
    /// Returns `true` if the store need not hear of the job.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.dropped.is_empty()
    }

    /// The edit with this number.
    pub fn edit(&self, number: u64) -> StoreEdit<'_> {
        StoreEdit { number, added: &self.added, dropped: &self.dropped, partition_dropped: false }
    }
}

/// The place of a value after a compaction.
#[derive(Debug)]
pub enum Carry {
    /// It stays where it is.
    Stay,
    /// It lies in the store, under this handle.
    Moved(PendingHandle),
    /// It lies in the table.
    Inline(Vec<u8>),
}

/// The handle of a value that was put and is not in the log yet.
pub struct PendingHandle {
    bytes: Vec<u8>,
    abort: Option<Box<dyn FnOnce() + Send>>,
    process: Process,
}

impl PendingHandle {
    /// A handle; `abort` is called if it is dropped without being kept.
    pub fn new(bytes: Vec<u8>, abort: impl FnOnce() + Send + 'static) -> PendingHandle {
        PendingHandle { bytes, abort: Some(Box::new(abort)), process: Process::current() }
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
        if let Some(abort) = self.abort.take()
            && self.process.is_current()
        {
            abort();
        }
    }
}

impl fmt::Debug for PendingHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingHandle").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
