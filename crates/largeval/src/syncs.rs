//! [`Syncs`]: the files of a store that wait for a sync, and those whose sync failed.
//!
//! `syncing.rs` makes the syncs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lsm_core::error::Error;
use lsm_core::fs::File;
use lsm_core::hooks::ChunkId;

/// The syncs of a store, guarded by the lock of its state.
#[derive(Default)]
pub(crate) struct Syncs {
    /// Files with bytes that are not known to be on the device, and the sum of these bytes.
    pub(crate) unsynced: BTreeMap<ChunkId, Arc<dyn File>>,
    pub(crate) unsynced_bytes: u64,
    /// Files whose names are not known to be on the device.
    pub(crate) unnamed: BTreeSet<ChunkId>,
    /// Files whose sync failed: their content on the device is unknown for good.
    pub(crate) condemned: BTreeSet<ChunkId>,
    /// The number of failed syncs, and the last of them.
    pub(crate) failures: u64,
    pub(crate) failure: Option<Error>,
    /// A failed sync that was not reported to the database yet.
    pub(crate) untold: Option<Error>,
    /// Files that recovery has synced, so that one is not synced for each of its values.
    pub(crate) probed: BTreeSet<ChunkId>,
}

impl Syncs {
    /// Notes that the folder has the name of this file, which is new.
    pub(crate) fn note_name(&mut self, chunk: ChunkId) {
        self.unnamed.insert(chunk);
    }

    /// Notes files again whose sync was not begun, with so many bytes.
    pub(crate) fn keep_unsynced(&mut self, files: BTreeMap<ChunkId, Arc<dyn File>>, bytes: u64) {
        self.unsynced_bytes += bytes;
        for (chunk, file) in files {
            self.unsynced.entry(chunk).or_insert(file);
        }
    }

    /// Returns `true` if a sync of the file failed.
    pub(crate) fn is_condemned(&self, chunk: ChunkId) -> bool {
        self.condemned.contains(&chunk)
    }

    /// Forgets a file that is removed.
    pub(crate) fn forget(&mut self, chunk: ChunkId) {
        self.unsynced.remove(&chunk);
        self.unnamed.remove(&chunk);
        self.condemned.remove(&chunk);
    }
}
