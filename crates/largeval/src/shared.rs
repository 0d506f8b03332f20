//! [`Shared`]: the state that puts, jobs and readers of a store share: its chunk files, their
//! writers, and their live values. `writing.rs` writes blocks, `syncing.rs` syncs the files, and `blob_gc.rs`
//! moves values.
//!
//! Locks: `syncing`, over the syncs of files; `state`, for a few lines only. They are taken in this
//! order. No file is touched under `state`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lsm_core::clock::Pace;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::fs::{File, SharedFile};
use lsm_core::hooks::{ChunkChange, ChunkId, PendingHandle, StoreContext, StoreSection};
use lsm_core::types::Process;
use parking_lot::Mutex;

use crate::block::{Block, ByteSource};
use crate::chunk_writer::ChunkWriter;
use crate::chunks::{Chunk, Chunks, DeadChunk};
use crate::format::Handle;
use crate::mapped::MappedChunk;
use crate::options::LargeValueOptions;
use crate::syncs::Syncs;

/// Idle writers: so many puts can run at the same time without making a chunk file.
const IDLE_WRITERS_MAX: usize = 4;
/// A value from this share of a chunk on ends its chunk file, and begins one if its length is known
/// before, so that its space is free at once when it is deleted.
pub(crate) const OWN_CHUNK_SHARE: u64 = 4;
/// Chunk files that a store keeps for reading: open, within what the database may have open, and mapped if
/// values were lent.
const OPEN_FILES_MAX: usize = 128;
/// Handles of at least so many bytes of new values trigger a flush. Fewer would make a table for a
/// few handles.
const FLUSH_BYTES_MIN: u64 = 64 << 20;

/// The state that puts, jobs and readers of a store share.
pub struct Shared {
    pub(crate) context: StoreContext,
    /// The process of the store; no other one takes the locks or writes.
    pub(crate) process: Process,
    pub(crate) state: Mutex<StoreState>,
    /// Held over the syncs of files.
    pub(crate) syncing: Mutex<()>,
    pub(crate) counters: StoreCounters,
}

/// Since the open. Relaxed: they order nothing.
#[derive(Default)]
pub(crate) struct StoreCounters {
    pub(crate) chunks_created: AtomicU64,
    pub(crate) chunks_sealed: AtomicU64,
    pub(crate) chunks_reclaimed: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_moved: AtomicU64,
    pub(crate) bytes_reclaimed: AtomicU64,
}

/// An open chunk file.
#[derive(Clone)]
pub(crate) struct OpenChunk {
    pub(crate) file: Arc<dyn File>,
    /// For errors. Kept with the file: making it for each value costs more than finding the file.
    pub(crate) path: Arc<Path>,
}

/// A chunk file that is kept for reading.
pub(crate) struct ReadFile {
    shared: Arc<SharedFile>,
    /// The turn in which it was used last.
    used: u64,
    /// Its values that were lent; nothing is mapped before one is.
    mapped: Arc<MappedChunk>,
}

pub(crate) struct StoreState {
    pub(crate) options: LargeValueOptions,
    pub(crate) chunks: Chunks,
    /// Lengths of the files that were there at the open.
    pub(crate) found: BTreeMap<ChunkId, u64>,
    pub(crate) idle: Vec<ChunkWriter>,
    /// The writer of compactions, apart from the others so that what they write stays together.
    pub(crate) mover: Option<ChunkWriter>,
    /// Files that are read.
    files: BTreeMap<ChunkId, ReadFile>,
    turn: u64,
    /// For a follower: files without values that are needed now. They are not kept.
    gone: BTreeSet<ChunkId>,
    pub(crate) syncs: Syncs,
    /// Bytes of new values until a flush is requested. A limit by age alone would let the garbage
    /// of a steady writer grow with the speed of the disk.
    until_flush: u64,
    /// Values were put since chunks were last chosen to be moved.
    pub(crate) is_put_to: bool,
    /// Files that are not needed and could not be removed.
    pub(crate) doomed: Vec<DeadChunk>,
    pub(crate) pace: Pace,
    /// Until this time, jobs move no values from tables to chunk files: one could not be written.
    pub(crate) relocates_from: Duration,
    /// The last value of the application that could not be written, until one is.
    pub(crate) refusal: Option<PutRefusal>,
}

impl StoreState {
    /// Keeps a file open for reading, and closes those that were not read for longest. The set of
    /// all open files may close it earlier. The result is to be dropped without the lock.
    #[must_use]
    pub(crate) fn keep_open(
        &mut self,
        chunk: ChunkId,
        shared: Arc<SharedFile>,
    ) -> Option<ReadFile> {
        let mut closed = None;
        if self.gone.contains(&chunk) {
            return closed;
        }
        while self.files.len() >= OPEN_FILES_MAX {
            // A walk over all of them costs less than the open that follows.
            let oldest = self.files.iter().min_by_key(|(_, file)| file.used);
            let Some(oldest) = oldest.map(|(chunk, _)| *chunk) else { break };
            closed = self.files.remove(&oldest);
        }
        self.turn += 1;
        let kept = ReadFile { shared, used: self.turn, mapped: Arc::default() };
        self.files.insert(chunk, kept).or(closed)
    }

    /// Takes out the files without values that are needed now. A reader of an older version opens
    /// its file again. To be dropped without the lock, as it closes and unmaps.
    #[must_use]
    pub(crate) fn take_dead_files(&mut self) -> Vec<ReadFile> {
        let StoreState { chunks, files, gone, .. } = self;
        gone.retain(|id| !chunks.is_needed(*id));
        // A file that only the log names is among them, too, until a table names one of its values.
        gone.extend(files.keys().filter(|id| !chunks.is_needed(**id)));
        gone.iter().filter_map(|id| files.remove(id)).collect()
    }
}

/// The last value of the application that could not be written, with its error. An application may put only
/// large values. Then no other report shows that all of them are refused.
#[derive(Clone, Debug)]
pub(crate) struct PutRefusal {
    error: Error,
    /// Bytes that the value takes, as far as they were known.
    needs: u64,
    /// Bytes that were free then.
    free: u64,
}

impl Shared {
    pub(crate) fn new(context: StoreContext, options: LargeValueOptions) -> Result<Shared> {
        let mut found = BTreeMap::new();
        // The lengths on disk: after a crash a chunk may be longer than any edit records; the
        // excess counts as garbage.
        for entry in context.fs.list(&context.dir, "")? {
            if let Some(chunk) = ChunkId::of_name(&entry.name) {
                found.insert(chunk, entry.len);
            }
        }
        let state = StoreState {
            options,
            chunks: Chunks::default(),
            found,
            idle: Vec::new(),
            mover: None,
            files: BTreeMap::new(),
            turn: 0,
            gone: BTreeSet::new(),
            syncs: Syncs::default(),
            until_flush: FLUSH_BYTES_MIN,
            is_put_to: false,
            doomed: Vec::new(),
            pace: Pace::new(options.move_bytes_per_second),
            relocates_from: Duration::ZERO,
            refusal: None,
        };
        Ok(Shared {
            context,
            process: Process::current(),
            state: Mutex::new(state),
            syncing: Mutex::new(()),
            counters: StoreCounters::default(),
        })
    }

    pub(crate) fn options(&self) -> LargeValueOptions {
        self.state.lock().options
    }

    pub(crate) fn with_chunks<T>(&self, look: impl FnOnce(&Chunks) -> T) -> T {
        look(&self.state.lock().chunks)
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.context.clock.unix_time().as_micros() as u64
    }

    // ---- writing ------------------------------------------------------------------------------

    /// Takes a writer back after a whole block of this stored length. A large value is the last of
    /// its file: otherwise the space of the file would be free only after the small values that
    /// follow it.
    pub(crate) fn give_back(&self, mut writer: ChunkWriter, stored_len: u64) {
        let mut state = self.state.lock();
        writer.is_full |= stored_len >= state.options.chunk_bytes / OWN_CHUNK_SHARE;
        self.keep_or_seal(&mut state, writer);
    }

    /// Requests a flush of the memtable when its handles name many bytes: compactions see no
    /// overwrite before.
    pub(crate) fn note_put(&self, stored_len: u64) {
        let mut state = self.state.lock();
        state.is_put_to = true;
        state.until_flush = state.until_flush.saturating_sub(stored_len);
        if state.until_flush == 0 {
            // A share of the live values, so that tables are not merged again for a few of them:
            // the share of garbage that chunk files may have.
            let share = u64::from(state.options.garbage_permille);
            let live = state.chunks.live_bytes() / 1000 * share;
            state.until_flush = live.max(FLUSH_BYTES_MIN);
            self.context.wishes.flush(self.context.partition);
        }
    }

    /// Keeps a writer for the next put, or ends its file.
    pub(crate) fn keep_or_seal(&self, state: &mut StoreState, writer: ChunkWriter) {
        let entry = state.chunks.by_id.entry(writer.chunk).or_default();
        entry.end = entry.end.max(writer.end);
        let is_condemned = state.syncs.is_condemned(writer.chunk);
        let is_full = writer.is_full || is_condemned || writer.end >= state.options.chunk_bytes;
        if is_full || state.idle.len() >= IDLE_WRITERS_MAX {
            self.seal(state, writer.chunk);
        } else {
            state.idle.push(writer);
        }
    }

    /// Seals the chunks of idle writers that are `due`: they take no more values.
    pub(crate) fn seal_idle(&self, state: &mut StoreState, due: impl Fn(&Chunk) -> bool) {
        let StoreState { chunks, idle, mover, .. } = &mut *state;
        let at_rest = idle.iter().chain(mover.as_ref()).map(|writer| writer.chunk);
        let due: Vec<ChunkId> =
            at_rest.filter(|chunk| chunks.by_id.get(chunk).is_some_and(&due)).collect();
        idle.retain(|writer| !due.contains(&writer.chunk));
        mover.take_if(|writer| due.contains(&writer.chunk));
        for chunk in due {
            self.seal(state, chunk);
        }
    }

    /// The chunk takes no more values.
    pub(crate) fn seal(&self, state: &mut StoreState, chunk: ChunkId) {
        if let Some(entry) = state.chunks.by_id.get_mut(&chunk).filter(|entry| entry.is_open) {
            entry.is_open = false;
            self.counters.chunks_sealed.fetch_add(1, Ordering::Relaxed);
            self.context.report(chunk, ChunkChange::Sealed, entry.end);
        }
    }

    /// The handle of a complete block, which is discarded unless the handle is kept.
    pub(crate) fn pending(self: &Arc<Self>, handle: Handle) -> PendingHandle {
        self.state.lock().chunks.add_pending(&handle);
        // The handle keeps it alive, which may be dropped after the last use of the partition.
        let shared = self.clone();
        PendingHandle::new(handle.encode(), move || {
            shared.state.lock().chunks.abort(&handle);
            // A file that cannot be removed now is removed later.
            let _ = shared.remove_dead();
        })
    }

    /// Takes a writer back whose block was abandoned; without a writer the file takes no more.
    pub(crate) fn block_given_up(&self, chunk: ChunkId, writer: Option<ChunkWriter>) {
        // Read from the file: a failed append may have written a part, which takes space as well.
        let end = self.open_chunk(chunk).and_then(|open| open.file.len());
        let mut state = self.state.lock();
        if let Some(entry) = state.chunks.by_id.get_mut(&chunk) {
            entry.end = end.unwrap_or(entry.end).max(entry.end);
            entry.unfinished = 0;
        }
        match writer {
            Some(writer) => self.keep_or_seal(&mut state, writer),
            None => self.seal(&mut state, chunk),
        }
        drop(state);
        let _ = self.remove_dead();
    }

    /// Notes how a value of about `bytes` bytes was written.
    pub(crate) fn note_put_outcome<T>(&self, bytes: u64, outcome: &Result<T>) {
        let refusal = match outcome {
            Ok(_) => None,
            // Others concern the value, or the whole database.
            Err(error) if !matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Io) => return,
            Err(error) => {
                let free = self.free_bytes();
                Some(PutRefusal { error: error.clone(), needs: bytes, free })
            }
        };
        self.state.lock().refusal = refusal;
    }

    /// The reason why the last value was refused, unless there is room for it by now.
    pub(crate) fn present_refusal(self: &Arc<Self>) -> Option<Error> {
        let PutRefusal { error, needs, free } = self.state.lock().refusal.clone()?;
        if error.kind() != ErrorKind::NoSpace {
            return Some(error);
        }
        // More than there was, too: a quota may refuse what the disk has room for.
        (self.free_bytes() <= needs.max(free)).then_some(error)
    }

    // ---- reading ------------------------------------------------------------------------------

    /// The open file of a chunk.
    pub(crate) fn open_chunk(&self, chunk: ChunkId) -> Result<OpenChunk> {
        let mut state = self.state.lock();
        state.turn += 1;
        let turn = state.turn;
        let known = state.files.get_mut(&chunk).map(|file| {
            file.used = turn;
            file.shared.clone()
        });
        drop(state);
        if let Some(shared) = known {
            let path = shared.path().clone();
            let file = shared.file().map_err(|error| self.unopened(chunk, &path, error))?;
            return Ok(OpenChunk { file, path });
        }
        let path = self.context.chunk_path(chunk);
        let opened = self.context.files.open(&path).and_then(|shared| Ok((shared.file()?, shared)));
        let (file, shared) = opened.map_err(|error| self.unopened(chunk, &path, error))?;
        let path = shared.path().clone();
        // Two readers may have opened it at once. The last user of the other file closes it.
        let closed = self.state.lock().keep_open(chunk, shared);
        drop(closed);
        Ok(OpenChunk { file, path })
    }

    /// The mapping of a chunk file that was just opened.
    pub(crate) fn mapped_chunk(&self, chunk: ChunkId) -> Arc<MappedChunk> {
        let state = self.state.lock();
        // A failed sync may have lost bytes that memory still has: each value is verified again.
        if state.syncs.is_condemned(chunk) {
            return Arc::default();
        }
        // The file may have been closed meanwhile. Then no other reader uses this mapping.
        state.files.get(&chunk).map(|file| file.mapped.clone()).unwrap_or_default()
    }

    /// The error of a chunk file that could not be opened.
    fn unopened(&self, chunk: ChunkId, path: &Path, error: Error) -> Error {
        if let Some(other) = self.context.other.as_ref().filter(|_| error.is_missing()) {
            return other.missing(&self.context, path, error, |sections| names(sections, chunk));
        }
        match (error.is_missing(), self.context.is_following) {
            // Only this store deletes the files of an open database, and not before the last reader
            // is done.
            (true, false) => Error::corruption(path, None, "a chunk file is missing"),
            (true, true) => {
                let message =
                    "the primary has deleted a chunk file that this secondary reads; read again";
                Error::because(ErrorKind::FileGone, message, error)
            }
            (false, _) => error,
        }
    }

    /// The handle of these bytes.
    ///
    /// # Errors
    /// Corruption for bytes that are no handle; [`ErrorKind::Unsupported`] for one of a later version.
    pub(crate) fn handle(&self, handle: &[u8]) -> Result<Handle> {
        // Recovery would take such a value for a lost one, and lose it for good.
        if Handle::is_newer(handle) {
            let name = &self.context.partition_name;
            let message = format!("partition {name:?} has a large value of a later version");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Handle::decode(handle)
            .map_err(|malformed| Error::corruption(&self.context.dir, None, malformed.what))
    }

    /// The value of a handle.
    pub(crate) fn block(&self, handle: &[u8], source: ByteSource) -> Result<Block> {
        self.block_of(self.handle(handle)?, source)
    }

    /// The value of a decoded handle.
    pub(crate) fn block_of(&self, handle: Handle, source: ByteSource) -> Result<Block> {
        let OpenChunk { file, path } = self.open_chunk(handle.chunk)?;
        Ok(Block { file, path, handle, source })
    }

    // ---- letting go ---------------------------------------------------------------------------

    /// Removes the files that are not needed any more.
    ///
    /// # Errors
    /// Those of the file system: tried again at the next call, for which the engine is asked.
    pub(crate) fn remove_dead(&self) -> Result<()> {
        let mut state = self.state.lock();
        let StoreState { chunks, idle, mover, .. } = &mut *state;
        let mut dead = chunks.take_dead(|id| {
            // An open chunk is removed only if its writer is idle here: a writer in use may still
            // append to it.
            let before = idle.len() + usize::from(mover.is_some());
            idle.retain(|writer| writer.chunk != id);
            mover.take_if(|writer| writer.chunk == id);
            idle.len() + usize::from(mover.is_some()) < before
        });
        let mut closed = Vec::new();
        for chunk in &dead {
            // Closed before it is deleted: the system keeps the space of a file as long as it is
            // open or mapped.
            closed.extend(state.files.remove(&chunk.id));
            state.syncs.forget(chunk.id);
        }
        dead.append(&mut state.doomed);
        drop(state);
        drop(closed);
        let mut result = Ok(());
        for chunk in dead {
            match self.context.fs.delete(&self.context.chunk_path(chunk.id)) {
                Ok(()) => {
                    self.counters.chunks_reclaimed.fetch_add(1, Ordering::Relaxed);
                    self.counters.bytes_reclaimed.fetch_add(chunk.bytes, Ordering::Relaxed);
                    self.context.report(chunk.id, ChunkChange::Reclaimed, chunk.bytes);
                }
                Err(error) => {
                    // No count and no edit has it any more: this list alone remembers the file
                    // until the next open.
                    self.state.lock().doomed.push(chunk);
                    self.context.wishes.remove_later(self.context.partition);
                    result = result.and(Err(error));
                }
            }
        }
        result
    }
}

/// Returns `true` if a table names values of the chunk file, by the sections of a store.
fn names(sections: &[StoreSection], chunk: ChunkId) -> bool {
    let mut named = Chunks::default();
    let are_whole = sections.iter().all(|(number, section)| named.apply(*number, section).is_ok());
    are_whole && named.by_id.get(&chunk).is_some_and(Chunk::has_named_values)
}

#[cfg(test)]
mod tests;
