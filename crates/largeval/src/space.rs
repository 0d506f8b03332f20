//! [`Space`] and [`ChunkInfo`]: the space that large values use.

use std::path::PathBuf;

use lsm_core::hooks::ChunkId;
use lsm_core::types::SeqNo;

use crate::store::LargeStore;

/// The bytes of a partition's chunk files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Space {
    /// Length of all chunk files, as the folder has them: also of those that are being written, by streams and by
    /// compactions, and of those that could not be removed yet. Without tables, and without what exports and checkpoints
    /// write to other folders.
    pub total_bytes: u64,
    /// Values that tables name, with their keys and checksums.
    pub live_bytes: u64,
    /// Values that were written, or are being written, and that no table names yet.
    pub pending_bytes: u64,
    /// Garbage: bytes that are not needed any more and will be reclaimed.
    pub dead_bytes: u64,
    /// Garbage that readers of older versions may hold: iterators, readers of values, running
    /// checkpoints.
    pub pinned_bytes: u64,
    /// The sequence number of the oldest snapshot of the database, see `Snapshot::seq`. Values that
    /// were overwritten or deleted after it count as live while it is held. `None` without a
    /// snapshot.
    pub oldest_snapshot: Option<SeqNo>,
}

/// A chunk file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkInfo {
    /// Its identity.
    pub id: ChunkId,
    /// Its path.
    pub path: PathBuf,
    /// Its last offset: its length in bytes.
    pub last_offset: u64,
    /// The smallest stored key whose value was flushed to it; empty, as `largest`, before the first.
    pub smallest: Vec<u8>,
    /// The largest stored key whose value was flushed to it.
    pub largest: Vec<u8>,
    /// Values in it that tables name.
    pub live_blocks: u64,
    /// Bytes of them.
    pub live_bytes: u64,
    /// Bytes of values that no table names yet.
    pub pending_bytes: u64,
    /// Bytes that are not needed any more.
    pub dead_bytes: u64,
    /// Nothing is appended to it any more.
    pub is_sealed: bool,
    /// Compactions move its values elsewhere.
    pub is_moving: bool,
}

impl LargeStore {
    /// Returns the use of the bytes of the chunk files. The store does not know the snapshots of
    /// the database.
    pub fn space(&self) -> Space {
        if !self.0.process.is_current() {
            return Space::default();
        }
        let state = self.0.state.lock();
        let mut space = Space { pinned_bytes: state.chunks.held_bytes(), ..Space::default() };
        for chunk in state.chunks.by_id.values() {
            space.total_bytes = space.total_bytes.saturating_add(chunk.end);
            space.live_bytes = space.live_bytes.saturating_add(chunk.live.bytes);
            space.pending_bytes = space.pending_bytes.saturating_add(chunk.unnamed_bytes());
            space.dead_bytes = space.dead_bytes.saturating_add(chunk.garbage_bytes());
        }
        for doomed in &state.doomed {
            space.total_bytes = space.total_bytes.saturating_add(doomed.bytes);
            space.dead_bytes = space.dead_bytes.saturating_add(doomed.bytes);
        }
        space
    }

    /// Returns all chunk files, oldest first.
    pub fn chunk_infos(&self) -> Vec<ChunkInfo> {
        if !self.0.process.is_current() {
            return Vec::new();
        }
        self.0.with_chunks(|chunks| {
            let infos = chunks.by_id.iter().map(|(id, chunk)| ChunkInfo {
                id: *id,
                path: self.0.context.chunk_path(*id),
                last_offset: chunk.end,
                smallest: chunk.smallest.clone(),
                largest: chunk.largest.clone(),
                live_blocks: chunk.live.blocks,
                live_bytes: chunk.live.bytes,
                pending_bytes: chunk.unnamed_bytes(),
                dead_bytes: chunk.garbage_bytes(),
                is_sealed: !chunk.is_open,
                is_moving: chunk.is_moving,
            });
            infos.collect()
        })
    }
}
