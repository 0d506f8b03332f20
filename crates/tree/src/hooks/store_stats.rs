//! [`ValueStoreStats`]: the figures of a value store, for `Db::stats`.

use std::fmt;

use crate::types::DisplayBytes;

/// The chunk files of the value store of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ValueStoreStats {
    /// Number of chunk files on disk.
    pub chunk_count: u64,
    /// Length of all chunk files, in bytes, with those that could not be removed yet.
    pub bytes: u64,
    /// Bytes of values that tables name.
    pub live_bytes: u64,
    /// Bytes of values that no table names yet, with those that are being written.
    pub pending_bytes: u64,
    /// Bytes that no new reader reaches; background work frees them.
    pub dead_bytes: u64,
    /// Bytes among the dead ones that readers of an older version may hold.
    pub pinned_bytes: u64,
    /// Chunk files made since the open.
    pub created_count: u64,
    /// Chunk files since the open that take no more values.
    pub sealed_count: u64,
    /// Chunk files removed since the open.
    pub reclaimed_count: u64,
    /// Bytes appended to chunk files since the open.
    pub written_bytes: u64,
    /// Bytes of values that compactions moved since the open; a part of the bytes written.
    pub moved_bytes: u64,
    /// Length of the chunk files removed since the open, in bytes.
    pub reclaimed_bytes: u64,
    /// Failed syncs of chunk files since the open.
    pub sync_failure_count: u64,
    /// The last failed sync of a chunk file, while the file has values that no table names yet. Flushes write
    /// them to other files.
    pub failure: Option<String>,
    /// The reason why values are not moved out of chunk files with much garbage, if they are not: it names
    /// the bytes that have to be free, or the error. They are tried again when there is room, and after some
    /// time.
    pub unmoved: Option<String>,
    /// The error of the last large value that was put, if it could not be written. One for lack of space is
    /// left out as soon as there is room for the value.
    pub refused: Option<String>,
}

impl fmt::Display for ValueStoreStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = DisplayBytes(self.bytes);
        let live = DisplayBytes(self.live_bytes);
        let dead = DisplayBytes(self.dead_bytes);
        write!(f, "{} chunk files, {bytes}, {live} live, {dead} dead", self.chunk_count)?;
        let troubles = [&self.failure, &self.unmoved, &self.refused];
        troubles.into_iter().flatten().try_for_each(|trouble| write!(f, "; {trouble}"))
    }
}
