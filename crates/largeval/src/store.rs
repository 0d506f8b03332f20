//! [`LargeValues`], which makes the stores of partitions, and [`LargeStore`], the store of one: the
//! calls of the engine. The work is done by `shared.rs`, `syncing.rs` and `blob_gc.rs`.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lsm_core::clock::Pace;
use lsm_core::codec::Malformed;
use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::fs::AppendMode;
use lsm_core::hooks::{
    self, Dropped, Entry, MovePlan, MoveRequest, NamedChunk, PendingHandle, Relocation,
    RelocationJob, StoreContext, StoreEdit, StoreFigures, StoreSection, StoredValue, ValueStore,
    ValueStoreFactory,
};
use lsm_core::stats::ValueStoreStats;
use lsm_core::types::EntryKind;

use crate::block::{Block, ByteSource, Parallelism, Unpacks};
use crate::choosing::Due;
use crate::chunks::{Chunks, Unnamed};
use crate::format::Handle;
use crate::options::LargeValueOptions;
use crate::shared::{Shared, StoreState};

/// Makes the value store of a partition with large values.
#[derive(Clone, Debug)]
pub struct LargeValues {
    options: LargeValueOptions,
}

impl LargeValues {
    /// The name under which partitions store it.
    pub const NAME: &'static str = "largeval";

    /// Uses these options.
    ///
    /// # Errors
    /// A limit, for an option out of its range; `Unsupported`, for a compression that this build lacks.
    pub fn new(options: LargeValueOptions) -> Result<LargeValues> {
        options.check()?;
        options.check_built_in()?;
        Ok(LargeValues { options })
    }

    /// Uses stored parameters; `None` if they are not known.
    pub fn from_params(params: &[u8]) -> Option<LargeValues> {
        Some(LargeValues { options: LargeValueOptions::decode(params)? })
    }
}

impl ValueStoreFactory for LargeValues {
    fn name(&self) -> &str {
        LargeValues::NAME
    }

    fn params(&self) -> Vec<u8> {
        self.options.encode()
    }

    fn params_over(&self, stored: &[u8]) -> Vec<u8> {
        self.options.encode_over(stored)
    }

    fn threshold_bytes(&self) -> u64 {
        self.options.threshold_bytes
    }

    fn open(
        &self,
        context: StoreContext,
        sections: &[StoreSection],
    ) -> Result<Arc<dyn ValueStore>> {
        let store = LargeStore(Arc::new(Shared::new(context, self.options)?));
        for (number, section) in sections {
            store.apply(*number, section)?;
        }
        let shared = &store.0;
        if !shared.context.is_read_only {
            // No reader needs what was dropped before. The engine removes the files.
            let mut state = shared.state.lock();
            state.chunks.reclaim_all();
            state.chunks.take_dead(|_| false);
        }
        Ok(Arc::new(store))
    }

    fn configure(&self, store: &dyn ValueStore) -> Result<()> {
        let any: &dyn Any = store;
        let store = any.downcast_ref::<LargeStore>().ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "the store has no large values")
        })?;
        let mut state = store.0.state.lock();
        state.options = self.options;
        // The debt of the old limit is dropped: a higher limit would otherwise come into effect
        // late.
        state.pace = Pace::new(self.options.move_bytes_per_second);
        Ok(())
    }
}

/// The store of the large values of one partition.
#[derive(Clone)]
pub struct LargeStore(pub(crate) Arc<Shared>);

impl LargeStore {
    /// The present options.
    pub fn options(&self) -> LargeValueOptions {
        self.0.options()
    }

    /// Writes a value; returns its stored length, too.
    fn write(&self, key: &[u8], value: &[u8]) -> Result<(PendingHandle, u64)> {
        let block = self.0.begin(key, Some(value.len() as u64))?;
        let finished = block.put(value)?;
        // Before the commit of the value: the next put need not wait for it, and a discarded block
        // is garbage in the middle of the file.
        self.0.give_back(finished.writer, finished.stored_len);
        Ok((finished.pending, finished.stored_len))
    }

    /// The chunk files as the sections of one version say.
    fn named(&self, sections: &[StoreSection]) -> Result<Chunks> {
        let mut named = Chunks::default();
        for (number, section) in sections {
            named.apply(*number, section).map_err(|malformed| self.corruption(&malformed))?;
        }
        Ok(named)
    }

    /// Writes a value of a table to a chunk file, unless that fails: then it stays in the table.
    fn relocate_value(&self, entry: Entry<'_>) -> Relocation {
        // On a full disk each value of a job would make a file and remove it.
        if self.0.rests_from_relocating() {
            return Relocation::Stay;
        }
        match self.write(entry.key, entry.value) {
            Ok((pending, _)) => Relocation::Moved(pending),
            Err(_) => {
                self.0.rest_from_relocating();
                Relocation::Stay
            }
        }
    }

    /// The section that drops the values of `state` that no handle of `named` names; empty if there are none.
    fn unnamed(
        &self,
        state: &[u8],
        named: &mut dyn Iterator<Item = Result<Vec<u8>>>,
    ) -> Result<Vec<u8>> {
        let mut unnamed = Unnamed::of(state).map_err(|malformed| self.corruption(&malformed))?;
        for handle in named {
            // An unreadable handle may be any of them.
            let Ok(handle) = Handle::decode(&handle?) else { return Ok(Vec::new()) };
            unnamed.name(&handle);
        }
        Ok(unnamed.section().unwrap_or_default())
    }

    /// The error of invalid bytes of a section.
    fn corruption(&self, malformed: &Malformed) -> Error {
        Error::corruption(&self.0.context.dir, None, malformed.what)
    }
}

impl ValueStore for LargeStore {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<PendingHandle> {
        let written = self.write(key, value);
        self.0.note_put_outcome(value.len() as u64, &written);
        let (pending, stored_len) = written?;
        self.0.note_put(stored_len);
        Ok(pending)
    }

    fn value(&self, handle: &[u8]) -> Result<Box<dyn StoredValue + '_>> {
        Ok(Box::new(LargeValue { shared: &self.0, handle: self.0.handle(handle)? }))
    }

    fn relocate(&self, entry: Entry<'_>, job: RelocationJob) -> Result<Relocation> {
        match (entry.kind, job) {
            (EntryKind::Value, _) => Ok(self.relocate_value(entry)),
            (EntryKind::Handle, RelocationJob::Compaction) => Ok(self.0.relocate_handle(entry)),
            (EntryKind::Handle, RelocationJob::Rescue) => self.0.rescue_handle(entry),
            _ => Ok(Relocation::Stay),
        }
    }

    fn begin_sync(&self) {
        self.0.begin_sync();
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn edit(&self, edit: StoreEdit<'_>) -> Result<Vec<u8>> {
        match edit.dropped {
            Dropped::Unnamed { state, named } => self.unnamed(state, named),
            Dropped::Handles(dropped) => Ok(Chunks::section(edit.added, dropped)),
            Dropped::Partition => Ok(Chunks::dropped_section()),
        }
    }

    fn apply(&self, number: u64, section: &[u8]) -> Result<u64> {
        let mut state = self.0.state.lock();
        let applied = state.chunks.apply(number, section);
        let StoreState { chunks, found, .. } = &mut *state;
        // Known at an open alone.
        if !found.is_empty() {
            for (id, chunk) in &mut chunks.by_id {
                chunk.end = chunk.end.max(found.get(id).copied().unwrap_or_default());
            }
        }
        let dropped_bytes = chunks.held_bytes_of(number);
        // A follower is not notified of a file that its primary deletes, and would keep its space.
        let closed = self.0.context.is_following.then(|| state.take_dead_files());
        drop(state);
        drop(closed);
        applied.map_err(|malformed| self.corruption(&malformed))?;
        Ok(dropped_bytes)
    }

    fn snapshot(&self) -> hooks::StoreSnapshot {
        let mut state = self.0.state.lock();
        // An open takes a snapshot last. The chunks that come later are new.
        state.found.clear();
        let chunks = state.chunks.by_id.keys().copied().collect();
        hooks::StoreSnapshot { section: state.chunks.state(), chunks }
    }

    fn reclaim(&self, number: u64) -> Result<()> {
        self.0.state.lock().chunks.reclaim(number);
        self.0.remove_dead()
    }

    fn plan_moves(&self, request: &MoveRequest<'_>) -> Result<MovePlan> {
        let moment = self.0.moment();
        let mut state = self.0.state.lock();
        let span = match request.within {
            Some((from, to)) => {
                // An open chunk is never chosen. The newest values would not be moved.
                self.0.seal_idle(&mut state, |_| true);
                state.chunks.choose_within(from, to, moment)?
            }
            None => {
                let garbage_permille = state.options.garbage_permille.into();
                // An open chunk is never chosen. Without puts, one that is nearly all garbage would
                // stay open until the database is closed.
                self.0.seal_idle(&mut state, |chunk| chunk.is_worth_moving(garbage_permille));
                // Without new puts, all that is due at once: each choice walks over the tables of
                // its keys.
                let all = !std::mem::take(&mut state.is_put_to);
                let due = Due { garbage_permille, all, asked: request.is_asked };
                state.chunks.choose_moving(due, moment)
            }
        };
        let Some(span) = span else {
            return Ok(MovePlan::Nothing(state.chunks.unmoved().cloned()));
        };
        drop(state);
        let shared = self.0.clone();
        let ended = Arc::new(move |error: Option<&Error>| {
            let moment = shared.moment();
            let mut state = shared.state.lock();
            if let Some(error) = error {
                state.chunks.note_job_failed(error, moment);
            }
            state.chunks.unmoved().cloned()
        });
        Ok(MovePlan::Rewrite { span, ended })
    }

    fn stats(&self, figures: StoreFigures) -> ValueStoreStats {
        let mut stats = ValueStoreStats::default();
        let state = self.0.state.lock();
        // A file that could not be removed is in the folder, though no count has it any more.
        stats.chunk_count = (state.chunks.by_id.len() + state.doomed.len()) as u64;
        stats.sync_failure_count = state.syncs.failures;
        drop(state);
        if figures == StoreFigures::Counts {
            return stats;
        }
        let space = self.space();
        let counters = &self.0.counters;
        stats.bytes = space.total_bytes;
        stats.live_bytes = space.live_bytes;
        stats.pending_bytes = space.pending_bytes;
        stats.dead_bytes = space.dead_bytes;
        stats.pinned_bytes = space.pinned_bytes;
        stats.created_count = counters.chunks_created.load(Ordering::Relaxed);
        stats.sealed_count = counters.chunks_sealed.load(Ordering::Relaxed);
        stats.reclaimed_count = counters.chunks_reclaimed.load(Ordering::Relaxed);
        stats.written_bytes = counters.bytes_written.load(Ordering::Relaxed);
        stats.moved_bytes = counters.bytes_moved.load(Ordering::Relaxed);
        stats.reclaimed_bytes = counters.bytes_reclaimed.load(Ordering::Relaxed);
        stats.refused = self.0.present_refusal().map(|error| error.to_string());
        let state = self.0.state.lock();
        stats.unmoved = state.chunks.unmoved().map(ToString::to_string);
        stats.failure = state.present_failure().map(ToString::to_string);
        stats
    }

    fn named_chunks(&self, sections: &[StoreSection]) -> Result<Option<Vec<NamedChunk>>> {
        let shared = &self.0;
        // The files that the version names, and no others: those of older versions may be removed
        // meanwhile.
        let named = self.named(sections)?;
        let mut state = shared.state.lock();
        // A checkpoint links what is not open, and copies the rest.
        shared.seal_idle(&mut state, |_| true);
        let known = &state.chunks.by_id;
        let chunks = named.by_id.iter().filter(|(_, chunk)| chunk.has_named_values());
        let chunks = chunks.map(|(id, chunk)| {
            let is_open = known.get(id).is_some_and(|known| known.is_open);
            NamedChunk { id: *id, end: chunk.end, is_open }
        });
        Ok(Some(chunks.collect()))
    }
}

/// A value by its handle.
struct LargeValue<'a> {
    shared: &'a Shared,
    handle: Handle,
}

impl LargeValue<'_> {
    fn block(&self, source: ByteSource) -> Result<Block> {
        self.shared.block_of(self.handle, source)
    }
}

impl StoredValue for LargeValue<'_> {
    fn len(&self) -> u64 {
        self.handle.len
    }

    fn read_into(&self, buf: &mut [u8]) -> Result<()> {
        self.block(ByteSource::Cached)?.read_whole(buf, Parallelism::Auto)
    }

    fn prefetch(&self, len: u64) {
        // A file that cannot be opened is an error of the read.
        if let Ok(block) = self.block(ByteSource::Cached) {
            block.prefetch(len);
        }
    }

    fn verify(&self, key: &[u8], advance: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let block = self.block(ByteSource::Device)?;
        let found = block.walk(Unpacks::Yes, advance)?;
        // The handle's root hash covers the value and not the key. Only here are both compared. A block without a
        // key is of a value whose key came after it.
        if !found.is_empty() && found != key {
            let what = "a value belongs to another key";
            return Err(Error::corruption(&*block.path, block.handle.offset, what));
        }
        Ok(())
    }

    fn is_durable(&self) -> Result<bool> {
        let shared = self.shared;
        if !shared.context.is_read_only {
            // Durability: the bytes may be in the page cache alone, where the previous process left
            // them. Then a read of the device shows whether it has them.
            let chunk = self.handle.chunk;
            if !shared.state.lock().syncs.probed.contains(&chunk) {
                let path = shared.context.chunk_path(chunk);
                match shared.context.fs.open_append(&path, AppendMode::Existing) {
                    Ok(file) => file.sync()?,
                    // Never synced, or torn where it begins.
                    Err(error) if error.is_missing() || error.is_corruption() => return Ok(false),
                    Err(error) => return Err(error),
                }
                shared.state.lock().syncs.probed.insert(chunk);
            }
        }
        let source =
            if shared.context.is_read_only { ByteSource::Cached } else { ByteSource::Device };
        // The check is whether the bytes are those that were written. A sub-block that cannot be
        // decompressed is damage of its key: the log must not end before it, and lose the later
        // writes of other keys.
        let walked = self.block(source).and_then(|block| block.walk(Unpacks::No, |_| Ok(())));
        match walked {
            Ok(_) => Ok(true),
            Err(error) if error.is_corruption() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn is_in_doubt(&self) -> bool {
        self.shared.state.lock().syncs.is_condemned(self.handle.chunk)
    }
}

#[cfg(test)]
mod tests;
