//! The memtable: recent operations in order, in memory.
//!
//! Filled by the commit path (and by replay), read by everybody, flushed once it is sealed. Behind
//! this one type lies crossbeam's concurrent skiplist; keys and values stay in the section that
//! the WAL was written from, so an entry is one node and no copy.
//!
//! Invariants:
//! 1. Inserts come in commit order and only while the memtable is active; a sealed one never
//!    changes again.
//! 2. A lookup allocates nothing.
//! 3. Internal keys are unique, because sequence numbers are.

mod iter;

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Atomic};

use crossbeam_skiplist::SkipMap;

use crate::types::{KeyRef, MemtableId, Operation, SeqNo, Slice, Trailer, prefix8};

pub use iter::MemtableIter;

/// What a node costs beside its key and value: the node with its tower and its allocation.
const NODE_BYTES: u64 = 88;

/// An entry: where it lies in its section. Ordered by internal key.
#[derive(Clone)]
struct Entry {
    prefix: u64,
    trailer: Trailer,
    section: Arc<[u8]>,
    key_start: u32,
    key_len: u32,
    value_start: u32,
    value_len: u32,
}

impl Entry {
    #[inline]
    fn user_key(&self) -> &[u8] {
        let start = self.key_start as usize;
        &self.section[start..start + self.key_len as usize]
    }

    #[inline]
    fn key(&self) -> KeyRef<'_> {
        KeyRef::new(self.user_key(), self.trailer)
    }

    fn value(&self) -> &[u8] {
        let start = self.value_start as usize;
        &self.section[start..start + self.value_len as usize]
    }

    fn value_slice(&self) -> Slice {
        Slice::share(&self.section, self.value_start as usize, self.value_len as usize)
    }
}

/// What the skiplist is searched by: an entry or a key that lies elsewhere.
trait Sought {
    fn parts(&self) -> (u64, KeyRef<'_>);
}

impl Sought for Entry {
    #[inline]
    fn parts(&self) -> (u64, KeyRef<'_>) {
        (self.prefix, self.key())
    }
}

struct Target<'a> {
    prefix: u64,
    key: KeyRef<'a>,
}

impl Sought for Target<'_> {
    #[inline]
    fn parts(&self) -> (u64, KeyRef<'_>) {
        (self.prefix, self.key)
    }
}

fn compare(a: (u64, KeyRef<'_>), b: (u64, KeyRef<'_>)) -> Ordering {
    a.0.cmp(&b.0).then_with(|| a.1.cmp(&b.1))
}

impl Ord for Entry {
    #[inline]
    fn cmp(&self, other: &Entry) -> Ordering {
        compare(self.parts(), other.parts())
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

// Searching through a trait object is what lets a borrowed key find an owned one: the map's
// lookups ask for `K: Borrow<Q>`, and no owned key with the caller's bytes exists.
impl<'a> Borrow<dyn Sought + 'a> for Entry {
    fn borrow(&self) -> &(dyn Sought + 'a) {
        self
    }
}

impl Ord for dyn Sought + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.parts(), other.parts())
    }
}

impl PartialOrd for dyn Sought + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Sought + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for dyn Sought + '_ {}

/// Recent operations of one partition.
pub struct Memtable {
    /// Its place in the order of the partition's memtables.
    pub id: MemtableId,
    entries: SkipMap<Entry, ()>,
    // Written by the one committing thread, read by anybody as a hint: relaxed.
    bytes: AtomicU64,
    entry_count: AtomicU64,
    first_lsn: AtomicU64,
    last_seq: AtomicU64,
}

impl Memtable {
    /// An empty memtable.
    pub fn new(id: MemtableId) -> Memtable {
        Memtable {
            id,
            entries: SkipMap::new(),
            bytes: AtomicU64::new(0),
            entry_count: AtomicU64::new(0),
            first_lsn: AtomicU64::new(u64::MAX),
            last_seq: AtomicU64::new(0),
        }
    }

    /// Inserts one operation of `section`, whose frame lies at `lsn` in the WAL (`u64::MAX` for an
    /// unlogged one). Returns the memory that it took, in bytes.
    pub fn insert(&self, seq: SeqNo, lsn: u64, section: &Arc<[u8]>, operation: &Operation) -> u64 {
        let key = &section[operation.key.clone()];
        let offset = |at: usize| u32::try_from(at).expect("a section is at most 2 GiB");
        let entry = Entry {
            prefix: prefix8(key),
            trailer: Trailer::new(seq, operation.kind),
            section: section.clone(),
            key_start: offset(operation.key.start),
            key_len: offset(operation.key.len()),
            value_start: offset(operation.value.start),
            value_len: offset(operation.value.len()),
        };
        let bytes = NODE_BYTES + (operation.key.len() + operation.value.len()) as u64;
        self.entries.insert(entry, ());
        self.bytes.fetch_add(bytes, Atomic::Relaxed);
        self.entry_count.fetch_add(1, Atomic::Relaxed);
        self.first_lsn.fetch_min(lsn, Atomic::Relaxed);
        self.last_seq.fetch_max(seq.get(), Atomic::Relaxed);
        bytes
    }

    /// The newest entry of `key` that a reader at `seq` sees: its trailer and value.
    pub fn get(&self, key: &[u8], seq: SeqNo) -> Option<(Trailer, Slice)> {
        if self.is_empty() {
            return None;
        }
        let target = Target { prefix: prefix8(key), key: KeyRef::seek(key, seq) };
        let found = self.entries.lower_bound::<dyn Sought>(Bound::Included(&target))?;
        let entry = found.key();
        (entry.user_key() == key).then(|| (entry.trailer, entry.value_slice()))
    }

    /// A cursor over the entries.
    pub fn iter(self: &Arc<Self>) -> MemtableIter {
        MemtableIter::new(self.clone())
    }

    /// Memory taken, in bytes (an estimate that counts the allocator's rounding in).
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Atomic::Relaxed)
    }

    /// How many entries there are.
    pub fn entry_count(&self) -> u64 {
        self.entry_count.load(Atomic::Relaxed)
    }

    /// Whether nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.entry_count() == 0
    }

    /// Where in the WAL the oldest entry lies; `None` if there is none or it is not logged.
    pub fn first_lsn(&self) -> Option<u64> {
        Some(self.first_lsn.load(Atomic::Relaxed)).filter(|lsn| *lsn != u64::MAX)
    }

    /// The newest sequence number inserted.
    pub fn last_seq(&self) -> SeqNo {
        SeqNo::new(self.last_seq.load(Atomic::Relaxed)).expect("it came in as a SeqNo")
    }
}

#[cfg(test)]
mod tests;
