//! The memtable: recent operations of one partition, sorted, in memory.
//!
//! The commit path and replay fill it, every reader searches it, and a flush writes it to a table
//! once it is sealed. Keys, versions and all but large values are in slabs of memory, which the next
//! memtable uses again. A large value is in memory that readers share.
//!
//! ```text
//! skiplist.rs, arena.rs   the entries, and their memory
//! shared_prefix.rs        the bytes with which all keys begin, and the words after them
//! bloom.rs                a filter that answers for most missing keys
//! dead_ranges.rs          ranges without visible entries, which a walk need not pass again
//! clear_seqs.rs            the sequence numbers at which the partition was cleared
//! spans.rs                 the ranges of keys that were deleted
//! folds.rs, merging.rs    operands of merges, and their folds
//! iter.rs                 the cursor
//! lookahead.rs            gets of several keys
//! protection.rs           entries that changed in memory, and their repair
//! ```
//!
//! Invariants:
//! 1. Inserts come in commit order and only while the memtable is active. A sealed memtable never
//!    changes.
//! 2. A lookup of a missing key allocates nothing.
//! 3. Every entry of a user key has a greater sequence number than the entries inserted before it.
//! 4. Nothing that outlives a borrow of the memtable points into its slabs.

#[expect(unsafe_code, reason = "memory that is handed out in pieces and reused as a whole")]
mod arena;
mod bloom;
mod clear_seqs;
mod dead_ranges;
mod folds;
mod iter;
mod lookahead;
mod merging;
mod protection;
mod shared_prefix;
#[expect(unsafe_code, reason = "readers follow pointers while one writer inserts")]
mod skiplist;
mod spans;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::iter::DeadRange;
use crate::types::{
    COPIED_VALUE_BYTES_MAX, DeletedRange, EntryKind, MemtableId, Operation, OperationChecksum,
    SectionBytes, SeqNo, Slice, Trailer,
};

pub use arena::SlabPool;
use bloom::MemtableBloom;
use clear_seqs::OwnClearSeqs;
pub use clear_seqs::{clear_seqs_of, spans_of};
use dead_ranges::DeadRanges;
use folds::Folds;
pub use folds::SharedOperator;
pub use iter::MemtableIter;
pub use lookahead::FoundEntry;
pub use protection::{DamagedEntry, TrueEntry};
use shared_prefix::SharedPrefix;
use skiplist::{Inserted, NewEntry, NewValue, PREFETCH_MAX, SkipList, Writer};
use spans::OwnSpans;

/// The number of keys after which their shared prefix is computed.
const KEYS_BEFORE_LOOK: u64 = 512;
/// A list of more entries is not rebuilt for a better shared prefix.
const ENTRIES_REBUILT_MAX: u64 = 4 * KEYS_BEFORE_LOOK;

/// Recent operations of one partition.
pub struct Memtable {
    /// Its place in the order of the partition's memtables.
    pub id: MemtableId,
    first: Arc<SkipList>,
    /// Everything in `first` and the later entries, with words of the bytes after the shared
    /// prefix.
    rebuilt: OnceLock<Arc<SkipList>>,
    bloom: MemtableBloom,
    // Stored under the writer's lock, read by any thread as a hint: relaxed.
    bytes: AtomicU64,
    key_count: AtomicU64,
    entry_count: AtomicU64,
    first_lsn: AtomicU64,
    last_seq: AtomicU64,
    clear_seqs: OwnClearSeqs,
    spans: OwnSpans,
    dead: Arc<DeadRanges>,
    operator: SharedOperator,
    folds: Folds,
}

/// The refusal of an entry that is not newer than the newest one of its key.
#[derive(Debug)]
pub struct NotNewer;

impl Memtable {
    /// An empty memtable that takes its memory from `pool`.
    pub fn new(id: MemtableId, pool: &Arc<SlabPool>) -> Memtable {
        let dead = Arc::new(DeadRanges::new(id));
        Memtable::with_shared(id, pool, SharedPrefix::default(), dead, SharedOperator::default())
    }

    /// An empty memtable that expects keys like those of this one.
    #[must_use]
    pub fn successor(&self, id: MemtableId) -> Memtable {
        let list = self.list();
        let shared = match (list.first(), list.last()) {
            (Some(first), Some(last)) => SharedPrefix::between(first.key(), last.key()),
            _ => SharedPrefix::default(),
        };
        let operator = self.operator.clone();
        Memtable::with_shared(id, list.writer().pool(), shared, self.dead.clone(), operator)
    }

    fn with_shared(
        id: MemtableId,
        pool: &Arc<SlabPool>,
        shared: SharedPrefix,
        dead: Arc<DeadRanges>,
        operator: SharedOperator,
    ) -> Memtable {
        Memtable {
            id,
            first: Arc::new(SkipList::new(pool.clone(), shared)),
            rebuilt: OnceLock::new(),
            bloom: MemtableBloom::default(),
            bytes: AtomicU64::new(0),
            key_count: AtomicU64::new(0),
            entry_count: AtomicU64::new(0),
            first_lsn: AtomicU64::new(u64::MAX),
            last_seq: AtomicU64::new(0),
            clear_seqs: OwnClearSeqs::default(),
            spans: OwnSpans::default(),
            dead,
            operator,
            folds: Folds::default(),
        }
    }

    /// Begins to take the writes of the memtable that it succeeds. No insertion runs.
    pub fn begin(&self) {
        self.dead.switch(self.id);
    }

    /// The ranges without visible entries.
    pub fn dead(&self) -> &DeadRanges {
        &self.dead
    }

    /// The same, without a memory of dead ranges: for a memtable of several partitions.
    #[must_use]
    pub fn without_dead(self) -> Memtable {
        self.dead.close();
        self
    }

    /// The range around `user` that a reader at `seq` may skip, in a view of `epoch` whose active
    /// memtable this is.
    pub fn find_dead(&self, epoch: u64, user: &[u8], seq: SeqNo) -> Option<DeadRange> {
        self.dead.find(self, epoch, user, seq)
    }

    /// Adds a range that a reader at `seq` has walked over in such a view.
    pub fn remember_dead(&self, epoch: u64, range: &DeadRange, seq: SeqNo) {
        self.dead.remember(self, epoch, range, seq);
    }

    #[inline]
    fn list(&self) -> &Arc<SkipList> {
        self.rebuilt.get().unwrap_or(&self.first)
    }

    /// The right to insert. Other callers wait.
    pub fn writer(&self) -> MemtableWriter<'_> {
        loop {
            let list = self.list();
            let writer = list.writer();
            // The previous holder may have moved all entries to another list. An insert into the
            // old one would be lost for new readers.
            if Arc::ptr_eq(list, self.list()) {
                return MemtableWriter { table: self, writer };
            }
        }
    }

    /// The newest entry of `key`, whose hash is `hash`, that a reader at `seq` sees: its trailer and
    /// value.
    // As a call it takes a twentieth of the instructions of a get that finds nothing.
    #[inline(always)]
    pub fn get(&self, key: &[u8], hash: u64, seq: SeqNo) -> Option<(Trailer, Slice)> {
        if !self.bloom.may_contain(hash) {
            return None;
        }
        // The versions are under the key, so a key that was overwritten often costs no further
        // steps in the list.
        let version = self.list().find(key)?.newest().at_most(Trailer::seek(seq))?;
        Some((version.trailer(), version.value_slice()))
    }

    /// The sequence of the newest entry of `key`, whose hash is `hash`.
    pub fn newest_seq(&self, key: &[u8], hash: u64) -> Option<SeqNo> {
        if !self.bloom.may_contain(hash) {
            return None;
        }
        Some(self.list().find(key)?.newest().trailer().seq())
    }

    /// A cursor over the entries.
    #[expect(clippy::iter_not_returning_iterator, reason = "a lending cursor cannot be one")]
    pub fn iter(&self) -> MemtableIter {
        MemtableIter::new(self.list().clone())
    }

    /// As [`Memtable::get`], for an entry that is compared with its checksum.
    ///
    /// # Errors
    /// Corruption of the key if it is not.
    pub fn get_checked(
        &self,
        key: &[u8],
        hash: u64,
        seq: SeqNo,
    ) -> Result<Option<(Trailer, Slice)>> {
        if !self.bloom.may_contain(hash) {
            return Ok(None);
        }
        let Some(node) = self.list().find(key) else { return Ok(None) };
        let Some(version) = node.newest().at_most(Trailer::seek(seq)) else { return Ok(None) };
        // Only on request: a checksum at each get would read key and value once more.
        if !iter::is_intact(node, version) {
            return Err(iter::damaged_at(key));
        }
        Ok(Some((version.trailer(), version.value_slice())))
    }

    /// A cursor that returns an error at an entry whose bytes have changed since its insertion, and
    /// at the end of a walk from the first entry that did not meet all of them: for readers that
    /// make entries durable.
    pub fn checked_iter(&self) -> MemtableIter {
        MemtableIter::new(self.list().clone()).checked(self.entry_count())
    }

    /// Counts a new key, whose checksum is `hash`, and adds it to the filter. Under the writer's lock.
    fn note_key(&self, hash: u64) {
        let count = self.key_count.load(Ordering::Relaxed);
        self.bloom.insert(hash, count);
        // Counted after the filter, which chooses the place of a key by the number of previous
        // keys.
        self.key_count.store(count + 1, Ordering::Relaxed);
    }

    /// Copies the counters of the entries of `other`.
    fn take_counters_of(&self, other: &Memtable) {
        self.entry_count.store(other.entry_count(), Ordering::Relaxed);
        self.bytes.store(other.bytes(), Ordering::Relaxed);
        self.first_lsn.store(other.first_lsn.load(Ordering::Relaxed), Ordering::Relaxed);
        self.last_seq.store(other.last_seq.load(Ordering::Relaxed), Ordering::Relaxed);
        self.take_clear_seqs_of(other);
        self.spans.take(&other.spans);
    }

    /// Notes an operation and the place of its frame in the log. Under the writer's lock.
    #[inline]
    fn note_operation(&self, seq: SeqNo, lsn: u64) {
        // One thread inserts, so a load and a store lose nothing.
        if lsn < self.first_lsn.load(Ordering::Relaxed) {
            self.first_lsn.store(lsn, Ordering::Relaxed);
        }
        if seq.get() > self.last_seq.load(Ordering::Relaxed) {
            self.last_seq.store(seq.get(), Ordering::Relaxed);
        }
    }

    /// Memory taken by the entries, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Memory of the filter over the keys, in bytes; not part of [`Memtable::bytes`].
    pub fn bloom_bytes(&self) -> u64 {
        self.bloom.bytes()
    }

    /// The number of entries.
    pub fn entry_count(&self) -> u64 {
        self.entry_count.load(Ordering::Relaxed)
    }

    /// Returns `true` if nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.entry_count() == 0 && self.newest_clear().max(self.newest_span()) == SeqNo::ZERO
    }

    /// The place of the oldest entry in the WAL; `None` if there is none or it is not logged.
    pub fn first_lsn(&self) -> Option<u64> {
        Some(self.first_lsn.load(Ordering::Relaxed)).filter(|lsn| *lsn != u64::MAX)
    }

    /// The newest sequence number inserted.
    pub fn last_seq(&self) -> SeqNo {
        SeqNo::new(self.last_seq.load(Ordering::Relaxed)).expect("it came in as a SeqNo")
    }
}

/// Inserts into a memtable. One exists at a time.
pub struct MemtableWriter<'a> {
    table: &'a Memtable,
    writer: Writer<'a>,
}

impl MemtableWriter<'_> {
    /// The greatest number of keys for one call of [`MemtableWriter::prefetch_for`].
    pub const PREFETCH_MAX: usize = PREFETCH_MAX;

    /// Prefetches the memory that the insertions of the next keys need, at most
    /// [`MemtableWriter::PREFETCH_MAX`]; `sums` are theirs as far as they are known.
    pub fn prefetch_for<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
        sums: &[OperationChecksum],
    ) {
        let count = self.table.key_count.load(Ordering::Relaxed);
        for sums in sums.iter().take(PREFETCH_MAX) {
            self.table.bloom.fetch(sums.key_hash, count);
        }
        self.writer.prefetch_for(keys);
    }

    /// Inserts one operation of `section`, whose frame is at `lsn` in the WAL (`u64::MAX` for an
    /// unlogged one). `sums` was computed over the caller's own bytes. Returns the memory that it
    /// took, in bytes.
    ///
    /// # Errors
    /// [`NotNewer`]: nothing was inserted. Only a log with wrong numbers leads here.
    #[inline]
    pub fn insert(
        &mut self,
        seq: SeqNo,
        lsn: u64,
        sums: OperationChecksum,
        section: &SectionBytes<'_>,
        operation: &Operation,
    ) -> Result<u64, NotNewer> {
        if !operation.kind.is_of_entry() {
            return self.insert_deletion(seq, lsn, section, operation);
        }
        if self.table.dead.is_used() && operation.kind != EntryKind::Tombstone {
            self.table.dead.cut(&section[operation.key.clone()]);
        }
        let is_copied = operation.value.len() <= COPIED_VALUE_BYTES_MAX;
        let own: Arc<[u8]>;
        let value = match section.shared() {
            _ if is_copied => NewValue::Copied(&section[operation.value.clone()]),
            Some(shared) => NewValue::Shared(shared, operation.value.clone()),
            None => {
                own = section[operation.value.clone()].into();
                NewValue::Shared(&own, 0..own.len())
            }
        };
        let entry = NewEntry {
            key: &section[operation.key.clone()],
            key_check: key_check(sums.key_hash),
            trailer: Trailer::new(seq, operation.kind),
            sum: sums.sum.numbered(seq),
            value,
        };
        let table = self.table;
        // The line is rarely in a cache. It arrives during the search.
        table.bloom.fetch(sums.key_hash, table.key_count.load(Ordering::Relaxed));
        // The real memory, with links and padding, so that the write buffer bounds what the process
        // uses.
        let used_before = self.writer.used_bytes();
        let bytes_before = table.bytes();
        // The filter gets a new key before the sequence number is published, see invariant 2 of
        // `bloom.rs`. An existing key is already in it.
        match self.writer.insert(&entry) {
            Inserted::NotNewer => return Err(NotNewer),
            Inserted::Version { depth } => table.fold_if_due(&entry, depth),
            Inserted::Key => table.note_key(sums.key_hash),
        }
        let shared = if is_copied { 0 } else { operation.value.len() };
        add(&table.bytes, self.writer.used_bytes() - used_before + shared as u64);
        add(&table.entry_count, 1);
        table.note_operation(seq, lsn);
        if table.key_count.load(Ordering::Relaxed) == KEYS_BEFORE_LOOK
            && table.rebuilt.get().is_none()
        {
            self.look_at_keys();
        }
        // With remembered folds and a second list: all that a seal gives back.
        Ok(table.bytes() - bytes_before)
    }

    /// As [`MemtableWriter::insert`], for an operation that deletes many keys.
    #[cold]
    fn insert_deletion(
        &mut self,
        seq: SeqNo,
        lsn: u64,
        section: &SectionBytes<'_>,
        operation: &Operation,
    ) -> Result<u64, NotNewer> {
        if operation.kind == EntryKind::Clear {
            return self.clear(seq, lsn);
        }
        let start = section[operation.key.clone()].into();
        let end = Some(&section[operation.value.clone()]).filter(|end| !end.is_empty());
        self.delete_range(DeletedRange { start, end: end.map(Into::into), seq }, lsn)
    }

    /// Returns `true` if no entry from `start` to before `end` is newer than `seq`; also `false` if
    /// that takes more than `keys_max` comparisons.
    fn is_older(&self, start: &[u8], end: &[u8], seq: SeqNo, keys_max: usize) -> bool {
        if self.table.last_seq() <= seq {
            return true;
        }
        let mut nodes =
            std::iter::successors(self.table.list().at_or_after(start), |node| node.next());
        for _ in 0..keys_max {
            match nodes.next() {
                Some(node) if node.key() < end => {
                    if node.newest().trailer().seq() > seq {
                        return false;
                    }
                }
                _ => return true,
            }
        }
        false
    }

    /// Moves everything to a list whose words decide more, if the keys share a longer prefix than
    /// this list uses.
    ///
    /// Nothing is known about the keys when the first memtable of a partition is made, and words of
    /// a prefix that all keys share would make every step of every search compare keys.
    #[cold]
    fn look_at_keys(&mut self) {
        let table = self.table;
        let list = &*table.first;
        let (Some(first), Some(last)) = (list.first(), list.last()) else { return };
        let fits = !list.shared().is_empty() && list.shared().fits(first.key(), last.key());
        let shared = SharedPrefix::between(first.key(), last.key());
        // Bounded, because other writers wait while this one copies the entries.
        let few = table.entry_count() <= ENTRIES_REBUILT_MAX;
        if fits || shared == *list.shared() || !few {
            return;
        }
        let rebuilt = SkipList::new(self.writer.pool().clone(), shared);
        // Copied before the new list can be seen: a reader that switches to it must find every
        // entry that was visible before.
        copy_entries(list, &mut rebuilt.writer());
        let rebuilt = table.rebuilt.get_or_init(|| Arc::new(rebuilt));
        // Readers in the first list may stay there: it holds everything that was visible when they
        // began. So it is kept, and no reader needs a lock.
        self.writer = rebuilt.writer();
        // The memory of the first list still counts: it is kept for its readers.
        add(&table.bytes, self.writer.used_bytes());
    }
}

/// Adds to a counter that one thread stores, so that a load and a store lose nothing.
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

fn copy_entries(from: &SkipList, to: &mut Writer<'_>) {
    let mut node = from.first();
    while let Some(here) = node {
        let mut versions = vec![here.newest()];
        while let Some(older) = versions[versions.len() - 1].older() {
            versions.push(older);
        }
        // Oldest first, because a list takes a version only if it is the newest of its key.
        for version in versions.into_iter().rev() {
            to.insert(&NewEntry {
                key: here.key(),
                key_check: here.key_check(),
                trailer: version.trailer(),
                sum: version.sum(),
                value: version.new_value(),
            });
        }
        node = here.next();
    }
}

/// The half of a key's checksum that is stored with the key.
fn key_check(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests;
