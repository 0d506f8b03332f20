//! [`Shared`]: what puts, jobs and readers of a store share: its chunk files, their writers, and what
//! lives in them.
//!
//! Locks, none of which is taken while one below it is held: `syncing`, over the syncs of files;
//! `state`, over nothing but a few lines. No file is touched under `state`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_core::clock::Pace;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::fs::{AppendMode, File};
use lsm_core::hooks::{Carry, ChunkChange, ChunkId, Entry, PendingHandle, StoreContext};
use lsm_core::limits::FORMAT_VALUE_BYTES_MAX;
use parking_lot::Mutex;

use crate::block::{Block, Parallelism, Source};
use crate::chunks::{Chunks, DeadChunk};
use crate::format::{CHUNK_HEADER_BYTES, Handle, chunk_header};
use crate::options::LargeValueOptions;
use crate::writing::{BlockWriter, ChunkWriter};

/// Writers at rest: so many puts can run at the same time without making a chunk file.
const IDLE_WRITERS_MAX: usize = 4;
/// A value from this share of a chunk on ends its chunk file, and begins one if its length is known
/// before, so that its space comes back at once when it is deleted.
const OWN_CHUNK_SHARE: u64 = 4;
/// Chunk files that are held open for reading.
const OPEN_FILES_MAX: usize = 128;
/// Bytes of chunk files of one store that may wait for a sync, besides what writers have not noted
/// yet: a synced put waits for no more than these. It does not bound what recovery reads: that
/// checks all values of the frames that no sync of the log has attested.
const UNSYNCED_BYTES_MAX: u64 = 64 << 20;
/// Chunk files that may wait for a sync. Each stays open until then.
const UNSYNCED_FILES_MAX: usize = 64;

/// The state that puts, jobs and readers of a store share.
pub struct Shared {
    pub(crate) context: StoreContext,
    pub(crate) state: Mutex<State>,
    /// Held over the syncs of files.
    syncing: Mutex<()>,
    pub(crate) counters: Counters,
}

/// Since the open. Relaxed: they order nothing.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) chunks_created: AtomicU64,
    pub(crate) chunks_reclaimed: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_moved: AtomicU64,
    pub(crate) bytes_reclaimed: AtomicU64,
}

pub(crate) struct State {
    pub(crate) options: LargeValueOptions,
    pub(crate) chunks: Chunks,
    /// Lengths of the files that were there at the open.
    pub(crate) found: BTreeMap<ChunkId, u64>,
    pub(crate) idle: Vec<ChunkWriter>,
    /// The writer of compactions, apart from the others so that what they write stays together.
    pub(crate) mover: Option<ChunkWriter>,
    /// Open files, with the turn in which each was used last.
    files: BTreeMap<ChunkId, (u64, Arc<dyn File>)>,
    turn: u64,
    /// Files with bytes that are not known to be on the device, and how many these are in all.
    unsynced: BTreeMap<ChunkId, Arc<dyn File>>,
    unsynced_bytes: u64,
    /// Files that recovery has synced, so that one is not synced for each of its values.
    pub(crate) probed: BTreeSet<ChunkId>,
    /// Names in the folder are not known to be on the device.
    is_dir_unsynced: bool,
    /// Files whose sync failed: it is unknown for good what the device has of them.
    pub(crate) condemned: BTreeSet<ChunkId>,
    /// The failed syncs, and the last of them.
    pub(crate) sync_failures: u64,
    pub(crate) failure: Option<Error>,
    /// A failed sync that the database has not asked for and does not know of yet.
    pub(crate) untold: Option<Error>,
    /// Files that are not needed and could not be removed.
    pub(crate) doomed: Vec<DeadChunk>,
    pub(crate) pace: Pace,
}

impl State {
    /// The last failed sync, while values that no table names lie in condemned files.
    pub(crate) fn present_failure(&self) -> Option<&Error> {
        let by_id = &self.chunks.by_id;
        let mut condemned = self.condemned.iter().filter_map(|id| by_id.get(id));
        let has_values = condemned.any(|chunk| chunk.pending.blocks > 0);
        self.failure.as_ref().filter(|_| has_values)
    }

    /// Keeps a file open for reading, and closes those that were not read for longest.
    fn keep_open(&mut self, chunk: ChunkId, file: Arc<dyn File>) {
        while self.files.len() >= OPEN_FILES_MAX {
            let oldest = self.files.iter().min_by_key(|(_, (used, _))| *used);
            let Some(oldest) = oldest.map(|(chunk, _)| *chunk) else { break };
            self.files.remove(&oldest);
        }
        self.turn += 1;
        self.files.insert(chunk, (self.turn, file));
    }
}

impl Shared {
    pub(crate) fn new(context: StoreContext, options: LargeValueOptions) -> Result<Shared> {
        let mut found = BTreeMap::new();
        for entry in context.fs.list(&context.dir, "")? {
            if let Some(chunk) = ChunkId::of_name(&entry.name) {
                found.insert(chunk, entry.len);
            }
        }
        let state = State {
            options,
            chunks: Chunks::default(),
            found,
            idle: Vec::new(),
            mover: None,
            files: BTreeMap::new(),
            turn: 0,
            unsynced: BTreeMap::new(),
            unsynced_bytes: 0,
            probed: BTreeSet::new(),
            is_dir_unsynced: false,
            condemned: BTreeSet::new(),
            sync_failures: 0,
            failure: None,
            untold: None,
            doomed: Vec::new(),
            pace: Pace::new(options.move_bytes_per_second),
        };
        Ok(Shared {
            context,
            state: Mutex::new(state),
            syncing: Mutex::new(()),
            counters: Counters::default(),
        })
    }

    pub(crate) fn options(&self) -> LargeValueOptions {
        self.state.lock().options
    }

    pub(crate) fn with_chunks<T>(&self, look: impl FnOnce(&Chunks) -> T) -> T {
        look(&self.state.lock().chunks)
    }

    fn now_us(&self) -> u64 {
        self.context.clock.unix_time().as_micros() as u64
    }

    // ---- writing ------------------------------------------------------------------------------

    /// Begins a block; of `len` bytes, if that is known.
    pub(crate) fn begin(self: &Arc<Self>, key: &[u8], len: Option<u64>) -> Result<BlockWriter> {
        if self.context.is_read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the database is open for reading alone"));
        }
        let mut state = self.state.lock();
        let options = state.options;
        let is_own = len.is_none_or(|len| len >= options.chunk_bytes / OWN_CHUNK_SHARE);
        let idle = if is_own { None } else { state.idle.pop() };
        drop(state);
        let writer = match idle {
            Some(writer) => writer,
            None => self.new_writer()?,
        };
        BlockWriter::new(self, writer, key, options.sub_block_log2, self.now_us())
    }

    fn new_writer(&self) -> Result<ChunkWriter> {
        let context = &self.context;
        let chunk = context.new_chunk();
        let path = context.chunk_path(chunk);
        let file = context.fs.open_append(&path, AppendMode::IfAbsent)?;
        let mut state = self.state.lock();
        state.is_dir_unsynced = true;
        let entry = state.chunks.by_id.entry(chunk).or_default();
        entry.is_open = true;
        entry.end = CHUNK_HEADER_BYTES;
        state.keep_open(chunk, file.clone());
        drop(state);
        self.counters.chunks_created.fetch_add(1, Ordering::Relaxed);
        self.context.tell_of(chunk, ChunkChange::Created, CHUNK_HEADER_BYTES);
        // The store knows the file before its header is written, so that it removes the file if
        // that fails.
        let header = chunk_header(chunk, context.partition, context.db_id);
        ChunkWriter::new(chunk, file, &header).inspect_err(|_| self.block_given_up(chunk, None))
    }

    /// Takes a writer back behind a whole block of this length. A large value is the last of its file:
    /// else the space of the file would come back only with the small ones that came behind it.
    pub(crate) fn give_back(&self, mut writer: ChunkWriter, len: u64) {
        let mut state = self.state.lock();
        writer.is_full |= len >= state.options.chunk_bytes / OWN_CHUNK_SHARE;
        self.keep_or_seal(&mut state, writer);
    }

    /// Keeps a writer for the next put, or ends its file.
    fn keep_or_seal(&self, state: &mut State, writer: ChunkWriter) {
        let entry = state.chunks.by_id.entry(writer.chunk).or_default();
        entry.end = entry.end.max(writer.end);
        let is_condemned = state.condemned.contains(&writer.chunk);
        let is_full = writer.is_full || is_condemned || writer.end >= state.options.chunk_bytes;
        if is_full || state.idle.len() >= IDLE_WRITERS_MAX {
            self.seal(state, writer.chunk);
        } else {
            state.idle.push(writer);
        }
    }

    /// The chunks of writers at rest take no more values.
    pub(crate) fn seal_idle(&self, state: &mut State) {
        let mut writers = std::mem::take(&mut state.idle);
        writers.extend(state.mover.take());
        for writer in writers {
            self.seal(state, writer.chunk);
        }
    }

    /// The chunk takes no more values.
    pub(crate) fn seal(&self, state: &mut State, chunk: ChunkId) {
        if let Some(entry) = state.chunks.by_id.get_mut(&chunk).filter(|entry| entry.is_open) {
            entry.is_open = false;
            self.context.tell_of(chunk, ChunkChange::Sealed, entry.end);
        }
    }

    /// Notes appended bytes; syncs all files if too much is not on the device.
    ///
    /// # Errors
    /// Those of the sync, or of one of the file that failed before.
    pub(crate) fn note_appended(
        &self,
        chunk: ChunkId,
        file: &Arc<dyn File>,
        bytes: u64,
    ) -> Result<()> {
        self.counters.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        let mut state = self.state.lock();
        if state.condemned.contains(&chunk) {
            return Err(doubtful());
        }
        state.unsynced.entry(chunk).or_insert_with(|| file.clone());
        state.unsynced_bytes += bytes;
        let is_too_much = state.unsynced_bytes >= UNSYNCED_BYTES_MAX
            || state.unsynced.len() >= UNSYNCED_FILES_MAX;
        drop(state);
        if !is_too_much {
            return Ok(());
        }
        self.sync().inspect_err(|error| self.state.lock().untold = Some(error.clone()))
    }

    /// The handle of a block that is all there: let go unless it is kept.
    pub(crate) fn pending(self: &Arc<Self>, handle: Handle) -> PendingHandle {
        self.state.lock().chunks.add_pending(&handle);
        let shared = self.clone();
        PendingHandle::new(handle.encode(), move || {
            shared.state.lock().chunks.abort(&handle);
            // What cannot be removed now is removed with what is reclaimed next.
            let _ = shared.remove_dead();
        })
    }

    /// Takes a writer back whose block came to nothing; without one the file takes no more.
    pub(crate) fn block_given_up(&self, chunk: ChunkId, writer: Option<ChunkWriter>) {
        let end = self.file(chunk).and_then(|file| file.len());
        let mut state = self.state.lock();
        if let Some(entry) = state.chunks.by_id.get_mut(&chunk) {
            entry.end = end.unwrap_or(entry.end).max(entry.end);
        }
        match writer {
            Some(writer) => self.keep_or_seal(&mut state, writer),
            None => self.seal(&mut state, chunk),
        }
        drop(state);
        let _ = self.remove_dead();
    }

    /// Makes everything durable that was appended before the call, in files that are not condemned.
    ///
    /// # Errors
    /// Those of the sync. The files that were to be synced are condemned then.
    pub(crate) fn sync(&self) -> Result<()> {
        let _turn = self.syncing.lock();
        let mut state = self.state.lock();
        let is_dir_unsynced = std::mem::take(&mut state.is_dir_unsynced);
        // Taken out before the syncs: bytes that are appended meanwhile are noted anew.
        let unsynced = std::mem::take(&mut state.unsynced);
        state.unsynced_bytes = 0;
        drop(state);
        let mut result = Ok(());
        if is_dir_unsynced {
            result = self.context.fs.sync_dir(&self.context.dir);
        }
        let files: Vec<Arc<dyn File>> = unsynced.values().cloned().collect();
        result = result.and_then(|()| self.context.fs.sync_files(&files));
        result.map_err(|error| {
            let mut state = self.state.lock();
            state.is_dir_unsynced |= is_dir_unsynced;
            self.condemn(&mut state, unsynced.into_keys().collect(), error)
        })
    }

    /// Nothing is appended to these files any more, or read from the device where another place can be
    /// had: a sync of one of them failed. Which one is not told.
    fn condemn(&self, state: &mut State, chunks: Vec<ChunkId>, error: Error) -> Error {
        let State { idle, mover, .. } = state;
        idle.retain(|writer| !chunks.contains(&writer.chunk));
        mover.take_if(|writer| chunks.contains(&writer.chunk));
        for chunk in &chunks {
            // Appended to while the sync failed.
            state.unsynced.remove(chunk);
            self.seal(state, *chunk);
        }
        state.condemned.extend(chunks);
        state.sync_failures += 1;
        let message = "a sync of a chunk file failed; its values are written again";
        let error = Error::because(ErrorKind::Io, message, error);
        state.failure = Some(error.clone());
        error
    }

    // ---- reading ------------------------------------------------------------------------------

    /// The open file of a chunk.
    pub(crate) fn file(&self, chunk: ChunkId) -> Result<Arc<dyn File>> {
        let mut state = self.state.lock();
        state.turn += 1;
        let turn = state.turn;
        if let Some((used, file)) = state.files.get_mut(&chunk) {
            *used = turn;
            return Ok(file.clone());
        }
        drop(state);
        let path = self.context.chunk_path(chunk);
        let file = self.context.fs.open_read(&path).map_err(|error| {
            match (error.is_missing(), self.context.is_following) {
                (true, false) => Error::corruption(&path, None, "a chunk file is missing"),
                (true, true) => {
                    let message = "the primary has deleted a chunk file that is read here";
                    Error::because(ErrorKind::FileGone, message, error)
                }
                (false, _) => error,
            }
        })?;
        self.state.lock().keep_open(chunk, file.clone());
        Ok(file)
    }

    pub(crate) fn handle(&self, handle: &[u8]) -> Result<Handle> {
        Handle::decode(handle)
            .map_err(|malformed| Error::corruption(&self.context.dir, None, malformed.what))
    }

    /// The value of a handle.
    pub(crate) fn block(&self, handle: &[u8], source: Source) -> Result<Block> {
        let handle = self.handle(handle)?;
        let path = self.context.chunk_path(handle.chunk);
        Ok(Block { file: self.file(handle.chunk)?, path, handle, source })
    }

    // ---- letting go ---------------------------------------------------------------------------

    /// Removes the files that are not needed any more.
    ///
    /// # Errors
    /// Those of the file system: tried again at the next call.
    pub(crate) fn remove_dead(&self) -> Result<()> {
        let mut state = self.state.lock();
        let State { chunks, idle, mover, .. } = &mut *state;
        let mut dead = chunks.take_dead(|id| {
            // An open chunk goes only if its writer is at rest here: a writer in use may still
            // append to it.
            let before = idle.len() + usize::from(mover.is_some());
            idle.retain(|writer| writer.chunk != id);
            mover.take_if(|writer| writer.chunk == id);
            idle.len() + usize::from(mover.is_some()) < before
        });
        for chunk in &dead {
            state.files.remove(&chunk.id);
            state.unsynced.remove(&chunk.id);
            state.condemned.remove(&chunk.id);
        }
        dead.append(&mut state.doomed);
        drop(state);
        let mut result = Ok(());
        for chunk in dead {
            match self.context.fs.delete(&self.context.chunk_path(chunk.id)) {
                Ok(()) => {
                    self.counters.chunks_reclaimed.fetch_add(1, Ordering::Relaxed);
                    self.counters.bytes_reclaimed.fetch_add(chunk.bytes, Ordering::Relaxed);
                    self.context.tell_of(chunk.id, ChunkChange::Reclaimed, chunk.bytes);
                }
                Err(error) => {
                    self.state.lock().doomed.push(chunk);
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    // ---- moving -------------------------------------------------------------------------------

    /// Waits as long as the limit on moving asks for.
    fn keep_pace(&self, bytes: u64) {
        let clock = &self.context.clock;
        let now = clock.now();
        let mut state = self.state.lock();
        state.pace.take(bytes, now);
        // A limit that is set meanwhile is in the state at once, and in effect for the next piece.
        let debt = state.pace.debt();
        drop(state);
        while debt.park(|| clock.now()) {}
    }

    /// Copies a value to the end of another chunk, verified on its way.
    fn relocate(self: &Arc<Self>, key: &[u8], block: &Block) -> Result<PendingHandle> {
        let from = block.handle;
        let options = self.options();
        let sums = block.sums()?;
        let mover = self.state.lock().mover.take();
        let writer = match mover {
            Some(writer) if writer.end < options.chunk_bytes => writer,
            Some(full) => {
                self.seal(&mut self.state.lock(), full.chunk);
                self.new_writer()?
            }
            None => self.new_writer()?,
        };
        let log2 = from.sub_block_log2;
        let mut to = BlockWriter::new(self, writer, key, log2, from.stored_us)?;
        let mut piece = vec![0; from.sub_block_bytes().min(from.len) as usize];
        while to.len() < from.len {
            let len = (from.len - to.len()).min(from.sub_block_bytes()) as usize;
            block.read_range(to.len(), &mut piece[..len], &sums)?;
            to.push(&piece[..len])?;
            self.keep_pace(len as u64);
        }
        let (pending, writer) = to.finish()?;
        self.counters.bytes_moved.fetch_add(from.len, Ordering::Relaxed);
        let mut state = self.state.lock();
        match state.mover {
            None => state.mover = Some(writer),
            Some(_) => self.keep_or_seal(&mut state, writer),
        }
        Ok(pending)
    }

    /// Moves the value of a handle if its chunk is to be emptied or condemned, or if it is large no more.
    pub(crate) fn carry_handle(self: &Arc<Self>, entry: Entry<'_>) -> Result<Carry> {
        let handle = self.handle(entry.value)?;
        let state = self.state.lock();
        let is_small = handle.len < state.options.threshold_bytes;
        let is_moving = state.condemned.contains(&handle.chunk)
            || state.chunks.by_id.get(&handle.chunk).is_some_and(|chunk| chunk.is_moving);
        drop(state);
        let goes_back = is_small && handle.len <= FORMAT_VALUE_BYTES_MAX;
        // Most stay: no file is opened for them.
        if !goes_back && !is_moving {
            return Ok(Carry::Stay);
        }
        let block = self.block(entry.value, Source::Cached)?;
        if goes_back {
            let mut value = vec![0; handle.len as usize];
            block.read_whole(&mut value, Parallelism::Threads(1))?;
            return Ok(Carry::Inline(value));
        }
        Ok(Carry::Moved(self.relocate(entry.key, &block)?))
    }
}

/// The error of a value in a file whose sync failed.
fn doubtful() -> Error {
    let message = "a sync of its chunk file failed; the value has to be written again";
    Error::new(ErrorKind::Io, message)
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::time::Duration;

    use lsm_core::clock::Clock;
    use lsm_core::fs::{Fs, MemFs};
    use lsm_core::hooks::EventQueue;
    use lsm_core::types::{DbId, Epoch, FileNo, FileNumbers, PartitionId};

    use super::*;

    /// A second passes at each look, and the limit is lifted at the third.
    #[derive(Default)]
    struct Lifting {
        looks: AtomicU64,
        store: OnceLock<Arc<Shared>>,
    }

    impl Clock for Lifting {
        fn now(&self) -> Duration {
            let looks = self.looks.fetch_add(1, Ordering::Relaxed);
            if let (2, Some(store)) = (looks, self.store.get()) {
                store.state.lock().pace = Pace::new(0);
            }
            Duration::from_secs(looks)
        }
    }

    #[test]
    fn a_limit_that_changes_while_somebody_waits_for_it_stays_changed() {
        let clock = Arc::new(Lifting::default());
        let fs = MemFs::new();
        fs.create_dir("/db".as_ref()).unwrap();
        let context = StoreContext {
            partition: PartitionId(1),
            partition_name: "p".into(),
            db_id: DbId(1),
            epoch: Epoch(1),
            dir: "/db".into(),
            fs: Arc::new(fs),
            clock: clock.clone(),
            numbers: Arc::new(FileNumbers::new(FileNo(1))),
            is_read_only: false,
            is_following: false,
            events: EventQueue::default(),
        };
        let options = LargeValueOptions::new().move_bytes_per_second(1000);
        let store = Arc::new(Shared::new(context, options).unwrap());
        clock.store.set(store.clone()).ok().unwrap();
        store.keep_pace(5000);
        let looks = clock.looks.load(Ordering::Relaxed);
        assert!(looks > 4, "{looks} looks: it waited");
        store.keep_pace(1 << 30);
        let looks = clock.looks.load(Ordering::Relaxed) - looks;
        assert_eq!(looks, 2, "one to take, and one that finds nothing to wait for");
    }
}
