//! The value store: the storage of values that are too large for tables.
//!
//! Each partition has its own store, which [`ValueStoreFactory::open`] opens. The engine stores a *handle*
//! instead of the value: some bytes that mean something to the store alone. A store of files takes the names
//! of its files from [`StoreContext::new_chunk`]; a value in it never changes.
//!
//! The life of a value:
//!
//! ```text
//! put            the value is in the store; its handle is pending, and a crash or an abort loses it
//! sync           the value is on the device
//! (the log)      the handle is committed: from now on the value must stay
//! edit, apply    a flush writes the handle to a table: the edit *adds* the value
//! value          reads of the key
//! relocate       a compaction may move the value: the edit adds the new one and drops the old one
//! edit, apply    no table of the newest version names the handle any more: the edit *drops* the value
//! reclaim        no reader sees it any more: the store frees its space
//! ```
//!
//! The life of a store:
//!
//! ```text
//! open           with the sections that the manifest has: those of all edits, or a state and the edits
//!                after it
//! is_durable     for each handle at the end of the log that is not known to be synced
//! edit, apply    the values that only the log named, which the open wrote to tables
//! snapshot       the chunk files that it needs: an open for writing removes all others
//! (use)          put, value, relocate, sync, edit, apply, reclaim, plan_moves, stats, named_chunks: on
//!                any thread, at the same time; `apply` and `reclaim` one at a time, in the order of edits
//! (close)        the store is dropped; nothing else is called
//! ```
//!
//! A database that is opened read-only, and a follower, call `open`, `apply` and `value`, and nothing that
//! writes: see [`StoreContext::is_read_only`].
//!
//! Invariants:
//! 1. A handle enters the log only after `put` has returned it. The log counts as durable through the
//!    handle, and a table with the handle is installed, only after a `sync` that began after `put` or
//!    `relocate` returned the handle. The engine makes these calls; a store syncs by itself only to bound what
//!    is not synced.
//! 2. Every handle in a table of a durable version was added by one edit and is dropped by one edit: by
//!    that of a job, or, if its entry was lost to damage, by one of [`Dropped::Unnamed`]. A value that
//!    no edit added, and that no frame of the log names, is free at the next open.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::Entry;
use super::ValueStoreStats;
use super::store_context::{ChunkId, StoreContext, StoreSection};
use crate::error::{Error, Result};
use crate::types::Process;

/// A factory of the value stores of partitions.
pub trait ValueStoreFactory: Send + Sync + 'static {
    /// The name under which partitions store it.
    fn name(&self) -> &str;

    /// Parameters to be stored with the partition. A [`HookProvider`](super::HookProvider) makes the factory
    /// of them at the next open.
    fn params(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Returns the parameters to be stored with a partition that has a store of this name with the parameters
    /// `stored`: they may keep a version that its values need. Default: [`ValueStoreFactory::params`].
    fn params_over(&self, stored: &[u8]) -> Vec<u8> {
        let _ = stored;
        self.params()
    }

    /// The length from which on a value goes to the store, in bytes. Asked when a store is opened or
    /// configured.
    fn threshold_bytes(&self) -> u64;

    /// Opens the store of a partition. `sections` are those that the manifest keeps for it, in the order of
    /// their edits: the store applies them, as [`ValueStore::apply`] does. No reader needs what they dropped,
    /// unless the database is read-only. A follower gets no sections here, but by `apply`.
    ///
    /// # Errors
    /// Corruption of a section; those of the file system. The open of the database fails.
    fn open(&self, context: StoreContext, sections: &[StoreSection])
    -> Result<Arc<dyn ValueStore>>;

    /// Gives the parameters of this factory to `store`, which a factory of the same name has opened. They are
    /// stored with the partition by then. Default: nothing.
    ///
    /// # Errors
    /// The caller of the database gets them; the parameters take effect at the next open.
    fn configure(&self, store: &dyn ValueStore) -> Result<()> {
        let _ = store;
        Ok(())
    }
}

/// The value store of a partition. The page of the module has the order of the calls.
///
/// A panic counts as an error of the call. No call writes to the database: some are made under a lock that
/// writers wait for. [`ValueStore::edit`] and [`ValueStore::snapshot`] are made under the lock of the versions;
/// [`ValueStore::begin_sync`] and [`ValueStore::sync`] under that of the log, if it begins a segment while too many
/// files wait for a sync; [`ValueStore::value`] and [`StoredValue::is_in_doubt`] under that of the log, for a
/// batch after a failed sync. Readers wait for none of these locks.
pub trait ValueStore: Any + Send + Sync {
    /// Stores the value of `key`, a stored key; returns its handle. Until the handle is in the log
    /// it is pending: a crash loses it, and so does dropping the result without
    /// [`PendingHandle::keep`].
    ///
    /// # Errors
    /// The write fails with them, and nothing of it is committed.
    ///
    /// # Durability
    /// None, before [`ValueStore::sync`].
    fn put(&self, key: &[u8], value: &[u8]) -> Result<PendingHandle>;

    /// The value of a handle. It touches no file: a missing one is an error of the read.
    ///
    /// # Errors
    /// Corruption if it is no handle; [`ErrorKind::Unsupported`](crate::error::ErrorKind::Unsupported) if a later version wrote it.
    fn value(&self, handle: &[u8]) -> Result<Box<dyn StoredValue + '_>>;

    /// Returns the new place of a value in a job. Called for every handle that survives a compaction, and for
    /// every value in a table that is as long as the threshold; in a flush, only as [`RelocationJob::Rescue`]. The
    /// default moves nothing.
    ///
    /// # Errors
    /// They fail the job, and with it the merge of all other keys. In a compaction, a value that cannot be
    /// moved now better stays where it is.
    fn relocate(&self, entry: Entry<'_>, job: RelocationJob) -> Result<Relocation> {
        let _ = (entry, job);
        Ok(Relocation::Stay)
    }

    /// Begins to write to the device what [`ValueStore::sync`] would make durable, and does not wait. The
    /// log calls it before it syncs its own file, and calls `sync` after that. Makes nothing durable; the
    /// default does nothing.
    fn begin_sync(&self) {}

    /// Makes every value durable whose `put` or `relocate` has returned. An `Ok` after an error also covers
    /// the values before the error, except those that are [in doubt](StoredValue::is_in_doubt). A sync that
    /// the store made by itself, and that failed, fails the next call.
    ///
    /// # Errors
    /// The database then refuses logged writes until it has written its memtables to tables. In these flushes
    /// `relocate` moves the values that are in doubt. [`ValueStoreStats::sync_failure_count`] must have counted
    /// the failure before this returns: a job whose values may have been in the failed sync is not installed.
    fn sync(&self) -> Result<()>;

    /// Returns the section to be stored with an edit of the manifest. It changes nothing: the edit may fail.
    /// Called under the lock of the versions, so it must not call the database, and should touch no file; for
    /// [`Dropped::Unnamed`] without a lock. An empty section of such an edit says that it drops nothing.
    ///
    /// # Errors
    /// The job fails. For [`Dropped::Unnamed`] those of `named`, and corruption of `state`. A partition is dropped
    /// all the same, and the next open deletes its files.
    fn edit(&self, edit: StoreEdit<'_>) -> Result<Vec<u8>>;

    /// Applies the section of a durable edit; returns the bytes of the values that it dropped, which stay until
    /// they are [reclaimed](ValueStore::reclaim). Secondaries that read them may hold no more than
    /// [`Options::leased_bytes_max`] allows.
    ///
    /// Called in the order of the edits. A section may be applied twice.
    ///
    /// # Errors
    /// The section is applied again before any later one, at run time or at the next open.
    ///
    /// [`Options::leased_bytes_max`]: crate::options::Options::leased_bytes_max
    fn apply(&self, number: u64, section: &[u8]) -> Result<u64>;

    /// Returns the state as of the applied edits. Called under the lock of the versions, after every section
    /// of the partition was applied; it must not call the database.
    fn snapshot(&self) -> StoreSnapshot;

    /// Frees the values that were dropped at or before edit `number`, which no reader can see any more, and
    /// files that no edit named. With 0 the files alone, after [`StoreWishes::remove_later`].
    ///
    /// # Errors
    /// It is called again.
    ///
    /// [`StoreWishes::remove_later`]: super::StoreWishes::remove_later
    fn reclaim(&self, number: u64) -> Result<()>;

    /// Returns what values should be moved, if the tables that name them are rewritten. Background work asks
    /// while the store [has files](ValueStoreStats::chunk_count), and so does the application. A call gives up
    /// the plan of the call before. The default has none.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`](crate::error::ErrorKind::NoSpace) if there is no room for the [`within`](MoveRequest::within) that was asked for.
    fn plan_moves(&self, request: &MoveRequest<'_>) -> Result<MovePlan> {
        let _ = request;
        Ok(MovePlan::Nothing(None))
    }

    /// Returns what the store has on the device, and what it did since the open. By
    /// [`ValueStoreStats::chunk_count`] the engine knows whether there is anything to maintain.
    ///
    /// # Cost
    /// For [`StoreFigures::Counts`] it should be that of a lock, however many files there are: threads ask at
    /// each wake-up.
    fn stats(&self, figures: StoreFigures) -> ValueStoreStats;

    /// Returns the chunk files that the tables of one version of the partition name values of, for a backup or a
    /// checkpoint. `sections` are those of the version: a store that applies them to an empty state has what the
    /// tables name. The present state of this store may be another: values that the version does not name may be
    /// reclaimed during the call, and those that it names are not.
    ///
    /// `None`, the default: not known. Then each backup reads all chunk files, and a checkpoint fails with
    /// [`ErrorKind::Unsupported`](crate::error::ErrorKind::Unsupported).
    ///
    /// # Errors
    /// Sections that the store did not make.
    ///
    /// # Durability
    /// The files and their names are durable.
    fn named_chunks(&self, sections: &[StoreSection]) -> Result<Option<Vec<NamedChunk>>> {
        let _ = sections;
        Ok(None)
    }
}

/// A chunk file that tables name values of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedChunk {
    /// The file.
    pub id: ChunkId,
    /// The end of the last such value. The bytes before it never change.
    pub end: u64,
    /// Values may be appended to it. A checkpoint copies such a file, and links others.
    pub is_open: bool,
}

/// A value in a store, by its handle.
#[expect(clippy::len_without_is_empty, reason = "no caller needs it")]
pub trait StoredValue {
    /// The length of the value, in bytes.
    fn len(&self) -> u64;

    /// Reads the value into `buf`, which is as long.
    ///
    /// # Errors
    /// Corruption if it is damaged or not there; the content of `buf` is undefined then.
    fn read_into(&self, buf: &mut [u8]) -> Result<()>;

    /// Begins to read the first `len` bytes from the device, so that [`StoredValue::read_into`] finds them in
    /// a cache, and does not wait. A scan of values calls it, from the second large value of an end on, for
    /// those that come next; with 8 MiB for a longer value. The default does nothing.
    fn prefetch(&self, len: u64) {
        let _ = len;
    }

    /// Reads the value from the device and compares it with its checksums and with its stored key.
    /// `advance` receives the number of bytes that were read; its errors end the call.
    ///
    /// # Errors
    /// Corruption that names file and offset.
    fn verify(&self, key: &[u8], advance: &mut dyn FnMut(u64) -> Result<()>) -> Result<()>;

    /// Returns `true` if the complete value is on the device, and makes it durable there. Recovery calls it
    /// for handles whose frames are not known to be synced, and ends the log before the first frame that
    /// lacks a value.
    ///
    /// # Errors
    /// The open fails, but for an error of a device that cannot be read.
    fn is_durable(&self) -> Result<bool>;

    /// Returns `true` if a failed sync leaves it unknown what the device has of the value: no batch with
    /// the handle is committed any more. Asked after a sync failed. Default: no.
    fn is_in_doubt(&self) -> bool {
        false
    }
}

/// The figures of a value store that a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFigures {
    /// [`ValueStoreStats::chunk_count`] and [`ValueStoreStats::sync_failure_count`]; the others may be left at
    /// their defaults.
    Counts,
    /// All.
    All,
}

/// The state of a value store.
#[derive(Clone, Debug, Default)]
pub struct StoreSnapshot {
    /// The state as a section, for a new manifest generation: it replaces those of all edits so far.
    pub section: Vec<u8>,
    /// The chunk files that the store needs. An open removes all other chunk files of the folder.
    pub chunks: Vec<ChunkId>,
}

/// The effect of an edit on the values of a partition.
#[derive(Debug)]
pub struct StoreEdit<'a> {
    /// Values that tables name from now on, and that no edit added before. What a flush dropped is
    /// among them, and in `dropped` too.
    pub added: &'a [AddedValue],
    /// Values that no table of the new version names any more.
    pub dropped: Dropped<'a>,
}

/// The values that an edit drops.
pub enum Dropped<'a> {
    /// Those of these handles.
    Handles(&'a [Vec<u8>]),
    /// All, with the partition. The section reaches [`ValueStore::apply`], but not the manifest.
    Partition,
    /// Those that `state` has and no handle of `named` names. Needed after entries of tables were lost to
    /// damage. Later edits may have been applied meanwhile.
    Unnamed {
        /// The section of a [`StoreSnapshot`].
        state: &'a [u8],
        /// The handles in all tables of the same edit. Nothing is dropped after an error.
        named: &'a mut dyn Iterator<Item = Result<Vec<u8>>>,
    },
}

impl<'a> StoreEdit<'a> {
    /// An edit that adds these values.
    pub fn adding(added: &'a [AddedValue]) -> StoreEdit<'a> {
        StoreEdit { added, dropped: Dropped::Handles(&[]) }
    }

    /// An edit that adds nothing.
    pub fn dropping(dropped: Dropped<'a>) -> StoreEdit<'a> {
        StoreEdit { added: &[], dropped }
    }
}

impl fmt::Debug for Dropped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dropped::Handles(handles) => f.debug_tuple("Handles").field(handles).finish(),
            Dropped::Partition => f.write_str("Partition"),
            Dropped::Unnamed { .. } => f.write_str("Unnamed"),
        }
    }
}

/// A question for values that should be moved.
#[derive(Clone, Copy, Debug, Default)]
pub struct MoveRequest<'a> {
    /// The application asks: values that could not be moved before are tried again.
    pub is_asked: bool,
    /// The application asks for the values of these stored keys to be moved into the order of their keys:
    /// from the first to the second, both included, and without a second one all from the first on.
    pub within: Option<(&'a [u8], Option<&'a [u8]>)>,
}

/// The answer to a [`MoveRequest`].
pub enum MovePlan {
    /// The tables with these keys are to be rewritten, so that [`ValueStore::relocate`] moves values.
    Rewrite {
        /// The keys.
        span: KeySpan,
        /// Called when a job of the plan has failed, and when the jobs of a request with
        /// [`within`](MoveRequest::within) have ended. After the jobs of another request comes the next one.
        ended: MovesEnded,
    },
    /// There is nothing to be moved now. The error says why values that should be moved are left where they
    /// are, if there are such values.
    Nothing(Option<Error>),
}

/// Takes the end of the jobs of a [`MovePlan`], with the error of one that failed: its values are moved no
/// more until a plan has them again. Returns the reason why values are left where they are, if there are
/// such values.
pub type MovesEnded = Arc<dyn Fn(Option<&Error>) -> Option<Error> + Send + Sync>;

/// The job that passes a value to [`ValueStore::relocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelocationJob {
    /// A compaction. The value may stay where it is.
    Compaction,
    /// A flush after a failed sync, for a value that is [in doubt](StoredValue::is_in_doubt). It should move:
    /// an error fails the flush, which is tried again, and without an error the log names the value no more.
    Rescue,
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
    /// As [`Dropped::Handles`].
    pub dropped: Vec<Vec<u8>>,
    /// Values that the job moved: kept with its tables, discarded if it fails.
    pub relocated: Vec<PendingHandle>,
    /// [`ValueStoreStats::sync_failure_count`] when the job began.
    pub sync_failure_count: u64,
}

impl JobValues {
    /// Returns `true` if the store need not hear of the job.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.dropped.is_empty()
    }

    /// The effect of their edit.
    pub fn edit(&self) -> StoreEdit<'_> {
        StoreEdit { added: &self.added, dropped: Dropped::Handles(&self.dropped) }
    }
}

/// The place of a value after a compaction.
#[derive(Debug)]
pub enum Relocation {
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
