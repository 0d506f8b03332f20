//! [`NotedChange`]: a change of the folder that waits for its journal object.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_core::fs::{File, is_out_of_handles};
use parking_lot::Mutex;
use siltstone::{Error, Result};

use crate::folder::{ObjectPiece, StoredChange};

/// A local file that is synced by its owner, and by the shipper before a range of it is put.
///
/// Invariant: after a failed sync of one, no sync succeeds. The system reports a failure once, and may have dropped
/// the bytes: the sync of the other one would make them seem durable.
pub(crate) struct SyncedFile {
    // Fixed after construction.
    pub(crate) file: Arc<dyn File>,
    /// Held over a sync, so that none returns while another one fails.
    failure: Mutex<Option<Error>>,
    /// The end of the bytes that a sync has made durable. Changed under the lock of the failure.
    durable: AtomicU64,
}

impl SyncedFile {
    pub(crate) fn new(file: Arc<dyn File>) -> SyncedFile {
        SyncedFile { file, failure: Mutex::new(None), durable: AtomicU64::new(0) }
    }

    /// The end of the bytes that a sync has made durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Relaxed)
    }

    /// Calls `sync`, which syncs the file, with its bytes before `end`.
    pub(crate) fn sync_by(
        &self,
        end: u64,
        sync: impl FnOnce(&dyn File) -> Result<()>,
    ) -> Result<()> {
        let mut failure = self.failure.lock();
        if let Some(error) = &*failure {
            return Err(error.clone());
        }
        sync(&*self.file).inspect_err(|error| {
            // Then nothing was attempted.
            if !is_out_of_handles(error) {
                *failure = Some(error.clone());
            }
        })?;
        self.durable.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }
}

/// A change that is noted and not in an object yet.
pub(crate) enum NotedChange {
    /// As it will be stored.
    Whole(StoredChange),
    /// A range of a chunk file, whose bytes are read when the object is made.
    Range { name: String, offset: u64, len: u64, file: Arc<SyncedFile> },
}

impl NotedChange {
    pub(crate) fn name(&self) -> &str {
        match self {
            NotedChange::Whole(change) => change.name(),
            NotedChange::Range { name, .. } => name,
        }
    }

    pub(crate) fn is_creation(&self) -> bool {
        matches!(self, NotedChange::Whole(StoredChange::Create { .. }))
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            NotedChange::Whole(StoredChange::Append { bytes, .. }) => bytes.len(),
            NotedChange::Whole(_) => 64,
            // The bytes of an object's ranges are in memory at once.
            NotedChange::Range { len, .. } => *len as usize,
        }
    }
}

/// The changes as an object has them: the first range of each file is the piece with all of them.
pub(crate) fn stored_changes(
    changes: Vec<NotedChange>,
    mut pieces: BTreeMap<String, ObjectPiece>,
) -> Vec<StoredChange> {
    let stored = changes.into_iter().filter_map(|change| match change {
        NotedChange::Whole(change) => Some(change),
        NotedChange::Range { name, .. } => {
            let piece = pieces.remove(&name)?;
            Some(StoredChange::Piece { name, piece })
        }
    });
    stored.collect()
}
