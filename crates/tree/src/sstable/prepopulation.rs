//! [`CachePrepopulation`]: blocks of tables that a job writes, which go into the block cache at once.
//!
//! Made by `compaction/outputs.rs`, filled by the writers of its tables. Without it the cache is cold
//! after each flush and each compaction: every block that is needed again is read, verified and parsed
//! by a reader who waits for it. Nothing leaves the cache for a fresh block, and none goes in while no reader asks for blocks.
//!
//! A block comes from the payload that is sealed for the file, and passes the check of a block that was
//! read. No one looks it up before the edit that names its table is installed.
//!
//! Invariant: dropped before [`CachePrepopulation::keep`], it takes out what it put in. After that, blocks of
//! tables that an edit removes leave with them (`db/obsolete.rs`). Those of tables whose own edit fails
//! stay until others need their room: no one looks them up.

use std::sync::Arc;

use parking_lot::Mutex;

use super::BlockCache;
use super::block::Block;
use super::stored::{StoredPayload, copied};
use crate::types::FileNo;

/// Blocks whose entries are longer than this on average are left to the readers. A page of memory costs
/// the writer some 2 us whatever is in it: with values of a few KiB that would be a large part of a put.
const ENTRY_BYTES_MAX: u64 = 512;
/// Memory that a parsed block takes for each entry and for itself, without the payload, about.
const ENTRY_BYTES: u64 = 12;
const BLOCK_BYTES: u64 = 192;

/// Puts the blocks that a job writes into the cache, and takes them out if the job fails.
pub struct CachePrepopulation {
    cache: Arc<dyn BlockCache>,
    /// The places of the blocks that must leave if the job fails.
    kept: Mutex<Vec<(FileNo, u64)>>,
}

impl CachePrepopulation {
    /// Blocks of tables whose readers will look into `cache`.
    pub fn new(cache: Arc<dyn BlockCache>) -> CachePrepopulation {
        CachePrepopulation { cache, kept: Mutex::default() }
    }

    /// Returns `true` if the blocks of a table that begins now should be added: if readers ask for blocks. In a load
    /// they would only cost memory, and a fifth of the processor time.
    pub fn is_wanted(&self) -> bool {
        self.cache.is_in_use()
    }

    /// A copy of the payload of the block that `file` will have at `offset`, if it is to be kept.
    pub(super) fn copy(
        &self,
        file: FileNo,
        offset: u64,
        payload: &[u8],
        entries: u32,
    ) -> Option<Arc<[u8]>> {
        let len = payload.len() as u64;
        let entries = u64::from(entries);
        let memory_bytes = len + ENTRY_BYTES * entries + BLOCK_BYTES;
        let is_wanted = len <= ENTRY_BYTES_MAX * entries;
        let is_kept = is_wanted && self.cache.has_room(file, offset, memory_bytes);
        is_kept.then(|| copied(payload))
    }

    /// Keeps the block of this payload, which was sealed for `file` at `offset`.
    pub(super) fn add(
        &self,
        file: FileNo,
        offset: u64,
        bytes: Arc<[u8]>,
        hidden_suffix: Option<&[u8]>,
    ) {
        let len = bytes.len();
        // A block that does not parse is not cached: a read of the file reports its place.
        let Ok(block) = Block::parse(StoredPayload { bytes, len }, hidden_suffix) else { return };
        self.kept.lock().push((file, offset));
        self.cache.insert_where_free(file, offset, Arc::new(block));
    }

    /// Lets the blocks stay: their tables are the caller's from now on.
    pub fn keep(&self) {
        self.kept.lock().clear();
    }
}

impl Drop for CachePrepopulation {
    fn drop(&mut self) {
        for (file, offset) in self.kept.get_mut().drain(..) {
            self.cache.remove(file, offset);
        }
    }
}
