//! Syncs of chunk files, and the reaction to a failed one.
//!
//! Called with every piece that is appended, and by the engine for durable commits and before tables that
//! name values are installed.
//!
//! Invariant: no value of a file whose sync failed counts as durable, and none that was partly
//! written after the failure is committed. The file is condemned for good, because the system may
//! have dropped its pages and a later sync may succeed without them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::fs::{File, is_out_of_handles};
use lsm_core::hooks::ChunkId;
use parking_lot::MutexGuard;

use crate::shared::{Shared, StoreState};

/// Bytes of chunk files of one store that may wait for a sync, in addition to those that writers
/// have not noted yet: a synced put waits for no more than these. After each such sync the log is
/// synced, too, so recovery verifies about as many bytes, and those that were put while the log was
/// synced.
const UNSYNCED_BYTES_MAX: u64 = 64 << 20;
/// Chunk files that may wait for a sync. Each stays open until then.
const UNSYNCED_FILES_MAX: usize = 64;

impl StoreState {
    /// The last failed sync, while values that no table names lie in condemned files.
    pub(crate) fn present_failure(&self) -> Option<&Error> {
        let by_id = &self.chunks.by_id;
        let mut condemned = self.syncs.condemned.iter().filter_map(|id| by_id.get(id));
        let has_values = condemned.any(|chunk| chunk.pending.blocks > 0);
        self.syncs.failure.as_ref().filter(|_| has_values)
    }
}

impl Shared {
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
        let syncs = &mut state.syncs;
        // Before the bytes are noted: a later sync of the file could succeed, and would make them
        // seem durable.
        if syncs.is_condemned(chunk) {
            return Err(doubtful());
        }
        syncs.unsynced.entry(chunk).or_insert_with(|| file.clone());
        syncs.unsynced_bytes += bytes;
        // Files that wait for a sync stay open, those of all stores together.
        let is_too_much = syncs.unsynced_bytes >= UNSYNCED_BYTES_MAX
            || syncs.unsynced.len() >= UNSYNCED_FILES_MAX
            || self.context.files.is_crowded();
        drop(state);
        if !is_too_much {
            return Ok(());
        }
        let turn = self.syncing.lock();
        // Noted before the turn ends: the next caller finds nothing that waits for a sync, and must
        // not take that for success.
        self.sync_unsynced(&turn).inspect_err(|error| {
            // Without a file descriptor nothing was attempted, and the next sync attempts it.
            if !is_out_of_handles(error) {
                self.state.lock().syncs.untold = Some(error.clone());
            }
        })?;
        // The frames of these values are not attested before the log is synced, and recovery would verify
        // all of them.
        self.context.wishes.sync_log();
        Ok(())
    }

    /// Starts to write unsynced bytes to the device.
    pub(crate) fn begin_sync(&self) {
        let unsynced: Vec<_> = self.state.lock().syncs.unsynced.values().cloned().collect();
        // Called without the lock: the system may take long to start. An error is not returned: the
        // following sync returns it, and its caller can react.
        unsynced.iter().for_each(|file| file.begin_sync());
    }

    /// Makes everything durable that was appended before the call, in files that are not condemned.
    ///
    /// # Errors
    /// Those of the sync, or of one that failed since the last call. The files that were to be synced are
    /// condemned then.
    pub(crate) fn sync(&self) -> Result<()> {
        let turn = self.syncing.lock();
        // After the turn, which another thread may have had for a sync that failed.
        let untold = self.state.lock().syncs.untold.take();
        untold.map_or_else(|| self.sync_unsynced(&turn), Err)
    }

    fn sync_unsynced(&self, _turn: &MutexGuard<'_, ()>) -> Result<()> {
        let mut state = self.state.lock();
        let unnamed = std::mem::take(&mut state.syncs.unnamed);
        // Taken out before the syncs: bytes that are appended meanwhile are noted again.
        let unsynced = std::mem::take(&mut state.syncs.unsynced);
        let unsynced_bytes = std::mem::take(&mut state.syncs.unsynced_bytes);
        drop(state);
        let names: Vec<PathBuf> = unnamed.iter().map(|id| self.context.chunk_path(*id)).collect();
        // A synced file without a durable name in the folder is lost after a crash.
        let named = self.context.fs.sync_names(&self.context.dir, &names);
        let files: Vec<Arc<dyn File>> = unsynced.values().cloned().collect();
        // Names that are not known to be durable. Also of files without unsynced bytes: later appends of their
        // writers are refused.
        let doubtful = if named.is_err() { unnamed } else { BTreeSet::new() };
        let result = named.and_then(|()| self.context.fs.sync_files(&files));
        result.map_err(|error| {
            let mut state = self.state.lock();
            if is_out_of_handles(&error) {
                // No sync has failed, so nothing is in doubt.
                state.syncs.unnamed.extend(doubtful);
                state.syncs.keep_unsynced(unsynced, unsynced_bytes);
                return error;
            }
            let chunks: BTreeSet<ChunkId> = unsynced.into_keys().chain(doubtful).collect();
            self.condemn(&mut state, chunks, error)
        })
    }

    /// Condemns these files: nothing more is appended to them, and reads prefer other sources. A
    /// sync of one of them failed; which one is unknown.
    fn condemn(&self, state: &mut StoreState, chunks: BTreeSet<ChunkId>, error: Error) -> Error {
        for chunk in &chunks {
            // Appended to while the sync failed.
            state.syncs.unsynced.remove(chunk);
        }
        let writers = state.idle.iter().chain(&state.mover).map(|writer| writer.chunk);
        let at_rest: Vec<ChunkId> = writers.filter(|chunk| chunks.contains(chunk)).collect();
        state.idle.retain(|writer| !at_rest.contains(&writer.chunk));
        state.mover.take_if(|writer| at_rest.contains(&writer.chunk));
        // A file with a writer in use stays open until the writer is returned: an empty file that
        // takes no more is removed, and with it the mark that fails the next append.
        for chunk in at_rest {
            self.seal(state, chunk);
        }
        state.syncs.condemned.extend(chunks);
        state.syncs.failures += 1;
        let message = "a sync of a chunk file failed; its values are written again";
        // After a fence nothing is written again: callers see the same kind as for other writes.
        let kind = match error.kind() {
            ErrorKind::Fenced => ErrorKind::Fenced,
            _ => ErrorKind::Io,
        };
        let error = Error::because(kind, message, error);
        state.syncs.failure = Some(error.clone());
        error
    }
}

/// The error of a value in a file whose sync failed.
fn doubtful() -> Error {
    let message = "a sync of its chunk file failed; the value has to be written again";
    Error::new(ErrorKind::Io, message)
}
