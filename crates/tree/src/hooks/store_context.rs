//! [`StoreContext`]: the partition, file system and clocks of a value store; [`ChunkId`]: the identity
//! of one of its files.
//!
//! Chunk files are in the folder of the database. The engine assigns their names, so that an open finds
//! unused files even if their partition was dropped.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::event::{ChunkChange, Event};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{Fs, OpenFiles};
use crate::types::{DbId, Epoch, FileNo, FileNumbers, PartitionId};

/// The number of an edit of the manifest, and the section that a value store has made for it.
pub type StoreSection = (u64, Arc<[u8]>);

/// The identity of a chunk file; never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    /// Its file number.
    pub number: FileNo,
    /// The epoch in which it was made.
    pub epoch: Epoch,
}

impl ChunkId {
    /// The chunk file that `name` names, without its folder.
    pub fn of_name(name: &str) -> Option<ChunkId> {
        let name = FileName::parse(name).filter(|name| name.kind == FileKind::Chunk)?;
        Some(ChunkId { number: name.number, epoch: name.epoch })
    }

    /// The path of the file in the folder `dir`.
    pub fn path(self, dir: &Path) -> PathBuf {
        FileName::new(FileKind::Chunk, self.number, self.epoch).path(dir)
    }
}

/// The partition that a value store is opened for, with its file system and clocks.
#[derive(Clone)]
pub struct StoreContext {
    /// The partition.
    pub partition: PartitionId,
    /// The partition's name.
    pub partition_name: Arc<str>,
    /// The database.
    pub db_id: DbId,
    /// The epoch of this writer.
    pub epoch: Epoch,
    /// The folder of the database.
    pub dir: PathBuf,
    /// The file system.
    pub fs: Arc<dyn Fs>,
    /// The set that bounds how many files of the database are open for reading.
    pub files: Arc<OpenFiles>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// The source of file numbers.
    pub numbers: Arc<FileNumbers>,
    /// `true` if the database is open read-only: then the store must not write or sync.
    pub is_read_only: bool,
    /// Another process writes, and deletes files: one that is not there is
    /// [`FileGone`](crate::error::ErrorKind::FileGone), and no damage.
    pub is_following: bool,
    /// Another process that may write, although this is no secondary that follows it.
    pub other: Option<OtherWriter>,
    /// Takes the events for listeners.
    pub events: EventQueue,
    /// Takes the wishes for a sync of the log and for a flush.
    pub wishes: StoreWishes,
}

/// Returns the sections of a partition's store in the newest manifest; `None` without that.
type NewestSections = dyn Fn(PartitionId) -> Option<Vec<StoreSection>> + Send + Sync;

/// A process that may write the database, and delete files that it does not need.
#[derive(Clone)]
pub struct OtherWriter {
    /// Holds the files as long as it is there.
    lease: Option<PathBuf>,
    newest: Arc<NewestSections>,
}

impl OtherWriter {
    /// One that deletes nothing as long as the file `lease` is there.
    pub fn new(
        lease: Option<PathBuf>,
        newest: impl Fn(PartitionId) -> Option<Vec<StoreSection>> + Send + Sync + 'static,
    ) -> OtherWriter {
        OtherWriter { lease, newest: Arc::new(newest) }
    }

    /// The error of the chunk file `path`, whose open failed with `error` because it is not there. It is damage only
    /// if the lease is there, or if the newest manifest still `names` the file.
    pub fn missing(
        &self,
        context: &StoreContext,
        path: &Path,
        error: Error,
        names: impl FnOnce(&[StoreSection]) -> bool,
    ) -> Error {
        if let Some(lease) = &self.lease {
            return match context.fs.open_read(lease) {
                Ok(_) => missing_chunk(path),
                Err(gone) if gone.is_missing() => {
                    let message = "the primary has deleted the lease that held a chunk file";
                    Error::because(ErrorKind::LeaseLost, message, error)
                }
                // The lease may be there or not, so neither verdict would be true.
                Err(unknown) => unknown,
            };
        }
        // Looked at after the file was not found: the edit that drops a file is durable before the file is
        // deleted.
        match (self.newest)(context.partition) {
            Some(sections) if names(&sections) => missing_chunk(path),
            _ => {
                let message = "the primary has deleted a chunk file that is read here";
                Error::because(ErrorKind::FileGone, message, error)
            }
        }
    }
}

fn missing_chunk(path: &Path) -> Error {
    Error::corruption(path, None, "a chunk file is missing")
}

/// The wishes of value stores, which the engine fulfils in the background, after the next commit.
///
/// Both bound what a store cannot bound alone: recovery verifies the values of all frames that no sync of the
/// log attests, and the space of what was overwritten comes back only after a flush.
#[derive(Clone, Default)]
pub struct StoreWishes(Arc<Wished>);

#[derive(Default)]
struct Wished {
    /// There are wishes. Loaded at each commit, which thus takes no lock.
    any: AtomicBool,
    /// A leaf.
    open: Mutex<OpenWishes>,
    /// Partitions with files that could not be removed. A leaf.
    removals: Mutex<BTreeSet<PartitionId>>,
}

/// Wishes that are not fulfilled yet.
#[derive(Default)]
pub struct OpenWishes {
    /// The log is to be synced.
    pub log_sync: bool,
    /// Partitions whose active memtable is to be flushed.
    pub flushes: BTreeSet<PartitionId>,
}

impl StoreWishes {
    /// Has the log synced, so that frames that no sync attests never name more values than the store
    /// leaves unsynced. Allowed under any lock.
    pub fn sync_log(&self) {
        self.add(|open| open.log_sync = true);
    }

    /// Has the active memtable of a partition flushed. Allowed under any lock.
    pub fn flush(&self, partition: PartitionId) {
        self.add(|open| {
            open.flushes.insert(partition);
        });
    }

    /// Has [`ValueStore::reclaim`](super::ValueStore::reclaim) called with edit 0, again and again until that
    /// works: a file of the partition that no edit named could not be removed. Allowed under any lock.
    pub fn remove_later(&self, partition: PartitionId) {
        self.0.removals.lock().insert(partition);
    }

    /// Returns `true` if files are to be removed.
    pub fn has_removals(&self) -> bool {
        !self.0.removals.lock().is_empty()
    }

    /// Returns each partition with files that are to be removed once.
    pub fn take_removals(&self) -> BTreeSet<PartitionId> {
        std::mem::take(&mut *self.0.removals.lock())
    }

    fn add(&self, add: impl FnOnce(&mut OpenWishes)) {
        add(&mut self.0.open.lock());
        // A hint, so relaxed: another commit may take the wish before the caller's own frame is appended. That
        // frame then waits for the next wish.
        self.0.any.store(true, Ordering::Relaxed);
    }

    /// Returns each wish once.
    #[inline]
    pub fn take(&self) -> Option<OpenWishes> {
        // Loaded first: a swap at each commit would be an exclusive access to the line.
        let any = self.0.any.load(Ordering::Relaxed) && self.0.any.swap(false, Ordering::Relaxed);
        any.then(|| std::mem::take(&mut *self.0.open.lock()))
    }
}

/// The way in for events: they are queued, and reported where the engine holds no lock.
#[derive(Clone, Default)]
pub struct EventQueue(Option<Arc<TakeEvent>>);

type TakeEvent = dyn Fn(&Event) + Send + Sync;

impl EventQueue {
    /// A queue that `take` puts events into.
    pub fn new(take: impl Fn(&Event) + Send + Sync + 'static) -> EventQueue {
        EventQueue(Some(Arc::new(take)))
    }

    /// Has the event reported to every listener, soon. Allowed under any lock.
    pub fn tell(&self, event: &Event) {
        if let Some(take) = &self.0 {
            take(event);
        }
    }
}

impl StoreContext {
    /// Returns the identity of a new chunk file.
    pub fn new_chunk(&self) -> ChunkId {
        ChunkId { number: self.numbers.allocate(), epoch: self.epoch }
    }

    /// Has a change reported to listeners, of a chunk file that is `bytes` long, soon. Allowed under any
    /// lock.
    pub fn report(&self, chunk: ChunkId, change: ChunkChange, bytes: u64) {
        let partition = self.partition_name.to_string();
        let path = self.chunk_path(chunk);
        self.events.tell(&Event::ChunkChanged { partition, path, change, bytes });
    }

    /// Returns the path of a chunk file.
    pub fn chunk_path(&self, chunk: ChunkId) -> PathBuf {
        chunk.path(&self.dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wish_is_taken_once() {
        let wishes = StoreWishes::default();
        assert!(wishes.take().is_none());
        let [first, second] = [PartitionId(1), PartitionId(2)];
        let of_a_store = wishes.clone();
        of_a_store.flush(second);
        of_a_store.flush(first);
        of_a_store.flush(second);
        let taken = wishes.take().unwrap();
        assert!(!taken.log_sync && taken.flushes.into_iter().eq([first, second]));
        assert!(wishes.take().is_none());
        of_a_store.sync_log();
        let taken = wishes.take().unwrap();
        assert!(taken.log_sync && taken.flushes.is_empty());
    }
}
