//! [`Chunks`]: the live values of each chunk file, and the sections of the manifest that record
//! them.
//!
//! Kept by the store under its lock. Plain data: it opens no file.
//!
//! ```text
//! section: version 1, kind (0 changes, 1 whole state, 2 the partition is dropped), varint count,
//! then for each chunk, in ascending order:
//!   varint number, varint epoch
//!   varint blocks added, bytes added, blocks dropped, bytes dropped
//!   varint last offset of what was added, smallest key, largest key; a key is a varint and bytes
//! ```
//!
//! Invariants:
//! 1. `live` of a chunk is what edits that were taken in have added to it and not dropped. Together
//!    with `pending` (what this process put and no edit has added yet) it is everything that may
//!    still be read; the rest of the file is garbage.
//! 2. An edit counts once, however often its section comes.
//! 3. A chunk whose dropped values exceed its added ones is never removed: its counts are damaged.

use std::collections::BTreeMap;

use lsm_core::codec::{Malformed, Reader, put_bytes, put_varint};
use lsm_core::hooks::{AddedValue, ChunkId};
use lsm_core::types::{Epoch, FileNo};

use crate::choosing::{ChunkRest, MoveChoice};
use crate::format::{Handle, VALUE_BYTES_MAX};

const VERSION: u8 = 1;
const CHANGES: u8 = 0;
const STATE: u8 = 1;
const DROPPED: u8 = 2;

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The number of blocks.
    pub blocks: u64,
    /// Their length with header, key and checksums, in bytes.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, other: Count) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// Subtracts `other`; `false` if it is more than there is.
    fn take(&mut self, other: Count) -> bool {
        let fits = other.blocks <= self.blocks && other.bytes <= self.bytes;
        self.blocks = self.blocks.saturating_sub(other.blocks);
        self.bytes = self.bytes.saturating_sub(other.bytes);
        fits
    }
}

/// The record of a chunk file.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    /// Values that tables name.
    pub live: Count,
    /// Values that were put or moved and that no table names yet.
    pub pending: Count,
    /// Bytes of the block that is being written.
    pub unfinished: u64,
    /// Length of the file, in bytes, as far as it is known.
    pub end: u64,
    /// The smallest key that was added to it; empty, as `largest`, before the first.
    pub smallest: Vec<u8>,
    /// The largest key that was added to it.
    pub largest: Vec<u8>,
    /// A writer may append to it.
    pub is_open: bool,
    /// The last edit that dropped something of it.
    pub last_drop: u64,
    /// Compactions move its values elsewhere.
    pub is_moving: bool,
    /// Its values could not be moved.
    pub rest: Option<ChunkRest>,
    /// The number of times that they could not be read or written.
    pub failures: u32,
    /// More was dropped than added.
    pub is_damaged: bool,
}

impl Chunk {
    /// Bytes of the file that are not needed any more.
    pub fn garbage_bytes(&self) -> u64 {
        let used = self.live.bytes.saturating_add(self.unnamed_bytes());
        self.end.saturating_sub(used.saturating_add(crate::format::CHUNK_HEADER_BYTES))
    }

    /// Bytes of values that no table names yet.
    pub fn unnamed_bytes(&self) -> u64 {
        self.pending.bytes.saturating_add(self.unfinished)
    }

    /// Returns `true` if its values are all named by tables, and at least so many thousandths of it are
    /// garbage.
    pub fn is_worth_moving(&self, garbage_permille: u64) -> bool {
        let has_garbage = self.garbage_bytes() > 0;
        has_garbage && self.garbage_permille() >= garbage_permille && self.is_named()
    }

    /// Thousandths of it that are garbage.
    pub fn garbage_permille(&self) -> u64 {
        // In 128 bits: the length of a chunk may come close to 2^60.
        (u128::from(self.garbage_bytes()) * 1000 / u128::from(self.end.max(1))) as u64
    }

    /// Returns `true` if its values can be moved. An open chunk still gets values, and would never
    /// be empty.
    pub fn is_movable(&self) -> bool {
        !self.is_open && self.rest != Some(ChunkRest::Open) && !self.is_damaged && self.is_named()
    }

    /// Returns `true` if it has values, and tables name all of them.
    fn is_named(&self) -> bool {
        self.pending.blocks == 0 && self.live.blocks > 0
    }

    /// Returns `true` if tables name values of it, or may do so because its counts are damaged.
    pub fn has_named_values(&self) -> bool {
        self.live.blocks > 0 || self.is_damaged
    }

    /// Returns `true` if only readers of old versions may read anything in it.
    fn is_dead(&self) -> bool {
        self.live.blocks == 0 && self.pending.blocks == 0 && !self.is_damaged
    }
}

/// A chunk file that is not needed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadChunk {
    /// Its identity.
    pub id: ChunkId,
    /// Its length in bytes, as far as it is known.
    pub bytes: u64,
}

/// One chunk in a section.
#[derive(Clone, Debug, Default)]
struct Delta {
    added: Count,
    dropped: Count,
    end: u64,
    smallest: Vec<u8>,
    largest: Vec<u8>,
}

impl Delta {
    /// Widens the span of the keys; the first one that is added makes it. The bytes do not say that
    /// there is none: the empty key is a key.
    fn widen(&mut self, is_first: bool, smallest: &[u8], largest: &[u8]) {
        if is_first || *smallest < *self.smallest {
            self.smallest = smallest.to_vec();
        }
        if is_first || *largest > *self.largest {
            self.largest = largest.to_vec();
        }
    }
}

/// The counts of all chunk files of a store.
#[derive(Debug, Default)]
pub struct Chunks {
    /// All that are known.
    pub by_id: BTreeMap<ChunkId, Chunk>,
    /// The last edit that was taken in.
    applied: u64,
    /// No reader needs values that were dropped at or before this edit.
    reclaimed: u64,
    /// Bytes that edits have dropped and that readers may hold, by edit.
    held: BTreeMap<u64, u64>,
    /// The choice of what is moved.
    pub(crate) choice: MoveChoice,
}

impl Chunks {
    /// The section of an edit. Damaged handles are left out: their chunk stays.
    pub fn section(added: &[AddedValue], dropped: &[Vec<u8>]) -> Vec<u8> {
        let mut deltas: BTreeMap<ChunkId, Delta> = BTreeMap::new();
        for added in added {
            let Ok(handle) = Handle::decode(&added.handle) else { continue };
            let delta = deltas.entry(handle.chunk).or_default();
            delta.widen(delta.added.blocks == 0, &added.key, &added.key);
            delta.added.add(Count { blocks: 1, bytes: handle.block_bytes() });
            delta.end = delta.end.max(handle.end());
        }
        for dropped in dropped {
            let Ok(handle) = Handle::decode(dropped) else { continue };
            let delta = deltas.entry(handle.chunk).or_default();
            // The span of its keys is not changed. A narrower one would need all handles of the
            // chunk, and a wider one costs a move some needless tables.
            delta.dropped.add(Count { blocks: 1, bytes: handle.block_bytes() });
        }
        encode(CHANGES, &deltas)
    }

    /// The section of an edit that drops the partition.
    pub fn dropped_section() -> Vec<u8> {
        encode(DROPPED, &BTreeMap::new())
    }

    /// The whole state as a section.
    pub fn state(&self) -> Vec<u8> {
        let mut deltas = BTreeMap::new();
        for (id, chunk) in &self.by_id {
            // Without the pending values. No edit names them yet; after a crash, the flush of the
            // replayed log adds those that are still needed.
            let mut live = chunk.live;
            if chunk.is_damaged {
                // Without a block it would not be listed, and the next open would delete the file
                // as an orphan file.
                live.blocks = live.blocks.max(1);
            }
            if live.blocks > 0 {
                let smallest = chunk.smallest.clone();
                let largest = chunk.largest.clone();
                let dropped = Count::default();
                deltas
                    .insert(*id, Delta { added: live, dropped, end: chunk.end, smallest, largest });
            }
        }
        encode(STATE, &deltas)
    }

    /// Takes in the section of the edit `number`.
    ///
    /// # Errors
    /// The bytes are no section; nothing was changed.
    pub fn apply(&mut self, number: u64, section: &[u8]) -> Result<(), Malformed> {
        let (kind, deltas) = decode(section)?;
        // A state replaces the edits up to its number, and comes first if it comes at all.
        if number <= self.applied {
            return Ok(());
        }
        self.applied = number;
        if kind == STATE {
            self.forget_counts();
        }
        for (id, delta) in deltas {
            let chunk = self.by_id.entry(id).or_default();
            // At an open nothing is pending, so there may be less than this: no error.
            chunk.pending.take(delta.added);
            let is_first = chunk.live.blocks == 0;
            chunk.live.add(delta.added);
            chunk.end = chunk.end.max(delta.end);
            if delta.added.blocks > 0 {
                let mut keys = Delta {
                    smallest: std::mem::take(&mut chunk.smallest),
                    largest: std::mem::take(&mut chunk.largest),
                    ..Delta::default()
                };
                keys.widen(is_first, &delta.smallest, &delta.largest);
                chunk.smallest = keys.smallest;
                chunk.largest = keys.largest;
            }
            if delta.dropped.blocks > 0 {
                // A count that is too low would delete a file that tables name. So the chunk stays,
                // and only its space is lost.
                chunk.is_damaged |= !chunk.live.take(delta.dropped);
                chunk.last_drop = number;
                self.hold(number, delta.dropped.bytes);
            }
        }
        if kind == DROPPED {
            self.hold(number, self.live_bytes());
            for chunk in self.by_id.values_mut() {
                chunk.live = Count::default();
                chunk.pending = Count::default();
                chunk.last_drop = number;
                chunk.is_damaged = false;
            }
        }
        Ok(())
    }

    /// Discards the counts. A whole state in the manifest replaces them; a follower may read it
    /// after the edits that it summarises.
    fn forget_counts(&mut self) {
        self.held.clear();
        self.by_id.retain(|_, chunk| {
            chunk.live = Count::default();
            chunk.is_damaged = false;
            chunk.is_open || chunk.pending.blocks > 0
        });
    }

    /// Notes bytes that an edit dropped.
    fn hold(&mut self, number: u64, bytes: u64) {
        let held = self.held.entry(number).or_default();
        *held = held.saturating_add(bytes);
    }

    /// Returns `true` if values of a chunk are named, or its counts are damaged.
    pub fn is_needed(&self, id: ChunkId) -> bool {
        self.by_id.get(&id).is_some_and(|chunk| !chunk.is_dead())
    }

    /// No reader needs what was dropped at or before the edit `number`.
    pub fn reclaim(&mut self, number: u64) {
        self.reclaimed = self.reclaimed.max(number);
        self.held = self.held.split_off(&(self.reclaimed + 1));
    }

    /// No reader needs anything that was dropped so far: called at an open.
    pub fn reclaim_all(&mut self) {
        self.reclaim(self.applied);
    }

    /// Bytes of the values that tables name.
    pub fn live_bytes(&self) -> u64 {
        self.by_id.values().map(|chunk| chunk.live.bytes).fold(0, u64::saturating_add)
    }

    /// Bytes that were dropped and that readers may hold.
    pub fn held_bytes(&self) -> u64 {
        self.held.values().copied().fold(0, u64::saturating_add)
    }

    /// Bytes that this edit dropped and that readers may hold.
    pub fn held_bytes_of(&self, number: u64) -> u64 {
        self.held.get(&number).copied().unwrap_or_default()
    }

    /// Notes a block that was put or moved.
    pub fn add_pending(&mut self, handle: &Handle) {
        let chunk = self.by_id.entry(handle.chunk).or_default();
        chunk.pending.add(Count { blocks: 1, bytes: handle.block_bytes() });
        chunk.unfinished = 0;
        chunk.end = chunk.end.max(handle.end());
    }

    /// Notes the written length of an incomplete block.
    pub fn note_written(&mut self, begun: &Handle, end: u64) {
        if let Some(chunk) = self.by_id.get_mut(&begun.chunk) {
            chunk.end = chunk.end.max(end);
            chunk.unfinished = end.saturating_sub(begun.offset);
        }
    }

    /// Discards a block that no table will name.
    pub fn abort(&mut self, handle: &Handle) {
        if let Some(chunk) = self.by_id.get_mut(&handle.chunk) {
            chunk.pending.take(Count { blocks: 1, bytes: handle.block_bytes() });
        }
    }

    /// Removes the chunks that are not needed any more, and returns them with their lengths. An open
    /// chunk is removed if `close` closes it.
    pub fn take_dead(&mut self, mut close: impl FnMut(ChunkId) -> bool) -> Vec<DeadChunk> {
        let reclaimed = self.reclaimed;
        let mut dead = Vec::new();
        self.by_id.retain(|id, chunk| {
            // Readers of versions before the last drop may still hold handles of it.
            let is_free = chunk.is_dead() && chunk.last_drop <= reclaimed;
            let goes = is_free && (!chunk.is_open || close(*id));
            if goes {
                dead.push(DeadChunk { id: *id, bytes: chunk.end });
            }
            !goes
        });
        dead
    }
}

/// The values of a whole state that no table names.
pub struct Unnamed(BTreeMap<ChunkId, Count>);

impl Unnamed {
    /// All values of a state: none is named yet.
    ///
    /// # Errors
    /// The bytes are no whole state.
    pub fn of(state: &[u8]) -> Result<Unnamed, Malformed> {
        let (kind, deltas) = decode(state)?;
        // Partial counts would remove values that are still named.
        if kind != STATE {
            return Err(Malformed { what: "a section that is no whole state", at: 1 });
        }
        Ok(Unnamed(deltas.into_iter().map(|(id, delta)| (id, delta.added)).collect()))
    }

    /// Takes out the value of a handle that a table names.
    pub fn name(&mut self, handle: &Handle) {
        if let Some(count) = self.0.get_mut(&handle.chunk) {
            count.take(Count { blocks: 1, bytes: handle.block_bytes() });
        }
    }

    /// The section that drops what is left, if anything is.
    pub fn section(self) -> Option<Vec<u8>> {
        let left = self.0.into_iter().filter(|(_, count)| count.blocks > 0);
        let deltas = left.map(|(id, dropped)| (id, Delta { dropped, ..Delta::default() }));
        let deltas: BTreeMap<ChunkId, Delta> = deltas.collect();
        (!deltas.is_empty()).then(|| encode(CHANGES, &deltas))
    }
}

fn encode(kind: u8, deltas: &BTreeMap<ChunkId, Delta>) -> Vec<u8> {
    let mut out = vec![VERSION, kind];
    put_varint(&mut out, deltas.len() as u64);
    for (id, delta) in deltas {
        put_varint(&mut out, id.number.0);
        put_varint(&mut out, id.epoch.0.into());
        for n in [delta.added.blocks, delta.added.bytes, delta.dropped.blocks, delta.dropped.bytes]
        {
            put_varint(&mut out, n);
        }
        put_varint(&mut out, delta.end);
        put_bytes(&mut out, &delta.smallest);
        put_bytes(&mut out, &delta.largest);
    }
    out
}

fn decode(section: &[u8]) -> Result<(u8, BTreeMap<ChunkId, Delta>), Malformed> {
    let mut r = Reader::new(section);
    if r.u8()? != VERSION {
        return Err(r.malformed("version of a section that is not known"));
    }
    let kind = r.u8()?;
    if kind > DROPPED {
        return Err(r.malformed("kind of a section that is not known"));
    }
    let mut deltas = BTreeMap::new();
    // Nothing is reserved for the count: each chunk takes its bytes.
    for _ in 0..r.varint()? {
        let id = ChunkId { number: FileNo(r.varint()?), epoch: Epoch(r.varint_u32()?) };
        let delta = Delta {
            added: Count { blocks: r.varint()?, bytes: r.varint()? },
            dropped: Count { blocks: r.varint()?, bytes: r.varint()? },
            end: r.varint()?,
            smallest: r.bytes()?.to_vec(),
            largest: r.bytes()?.to_vec(),
        };
        let most = delta.added.bytes.max(delta.dropped.bytes).max(delta.end);
        if most > VALUE_BYTES_MAX {
            return Err(r.malformed("bytes of a chunk that no file can have"));
        }
        // A repeated chunk is also out of order: the second would silently replace the first.
        if deltas.last_key_value().is_some_and(|(last, _)| *last >= id) {
            return Err(r.malformed("chunks of a section out of order"));
        }
        deltas.insert(id, delta);
    }
    r.finish()?;
    Ok((kind, deltas))
}

#[cfg(test)]
mod tests;
