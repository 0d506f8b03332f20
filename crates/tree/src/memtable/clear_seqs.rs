//! The clear sequences that were inserted into a memtable as operations: see
//! [`ClearSeqs`](crate::types::ClearSeqs).
//!
//! Invariant: a clear sequence is stored before the sequence number at which it counts is published, so a
//! reader that sees the number sees the clear sequence. A sealed memtable gets no further ones.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::{Memtable, MemtableWriter, NotNewer, add};
use crate::types::{ClearSeqs, DeletedRange, DeletedRanges, SeqNo};

/// Memory that a clear sequence counts for, in bytes.
const CLEAR_SEQ_BYTES: u64 = 16;
/// The number of clear sequences in the first chunk. Each further chunk has twice as many as the one before.
const FIRST_CHUNK: usize = 4;
/// More chunks than memory has room for.
const CHUNK_COUNT: usize = 40;

/// The clear sequences of one memtable.
#[derive(Default)]
pub(super) struct OwnClearSeqs {
    /// The newest one, or zero. Ordered by the visible sequence, which is stored after it: relaxed.
    newest: AtomicU64,
    /// The number of entries that were inserted before the newest clear sequence. Relaxed, a hint.
    entries_below: AtomicU64,
    all: Ascending,
}

/// Ascending numbers. The one thread that commits appends, and readers search meanwhile: a read
/// through an older snapshot must not wait, so a list under a lock was rejected.
#[derive(Default)]
struct Ascending {
    /// Stored with release after the number: a reader that sees the count sees the numbers.
    count: AtomicUsize,
    /// Made by the first number: almost no memtable has one.
    chunks: OnceLock<Box<[Chunk; CHUNK_COUNT]>>,
}

type Chunk = OnceLock<Box<[AtomicU64]>>;

impl Ascending {
    /// Appends a number. By one thread at a time.
    fn push(&self, seq: SeqNo) {
        let at = self.count.load(Ordering::Relaxed);
        let chunk = chunk_of(at);
        let chunks = self.chunks.get_or_init(|| Box::new([const { OnceLock::new() }; CHUNK_COUNT]));
        let numbers = chunks[chunk].get_or_init(|| {
            let zeros = (0..FIRST_CHUNK << chunk).map(|_| AtomicU64::new(0));
            zeros.collect()
        });
        numbers[at - start_of(chunk)].store(seq.get(), Ordering::Relaxed);
        // Last, so that a reader never looks at a number that is not stored yet.
        self.count.store(at + 1, Ordering::Release);
    }

    fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The number at a place below the length.
    fn at(&self, at: usize) -> SeqNo {
        let chunk = chunk_of(at);
        let numbers = self.chunks.get().and_then(|chunks| chunks[chunk].get());
        let number = numbers.expect("a number is stored before it counts")[at - start_of(chunk)]
            .load(Ordering::Relaxed);
        SeqNo::new(number).expect("it came in as a SeqNo")
    }

    /// The greatest number that is not above `seq`.
    fn last_through(&self, seq: SeqNo) -> Option<SeqNo> {
        let mut start = 0;
        let mut end = self.len();
        while start < end {
            let middle = usize::midpoint(start, end);
            if self.at(middle) <= seq {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        Some(self.at(start.checked_sub(1)?))
    }
}

/// The chunk in which a number is.
fn chunk_of(at: usize) -> usize {
    (at / FIRST_CHUNK + 1).ilog2() as usize
}

/// The place of the first number of a chunk.
fn start_of(chunk: usize) -> usize {
    FIRST_CHUNK * ((1 << chunk) - 1)
}

/// The clear sequences of all these memtables.
pub fn clear_seqs_of(memtables: &[Arc<Memtable>]) -> ClearSeqs {
    ClearSeqs::of(memtables.iter().flat_map(|memtable| memtable.clear_seqs()).collect())
}

/// The deleted ranges of all these memtables.
pub fn spans_of(memtables: &[Arc<Memtable>]) -> DeletedRanges {
    memtables.iter().fold(DeletedRanges::default(), |all, memtable| all.and(&memtable.spans()))
}

/// Deleted ranges: see `spans.rs`.
impl Memtable {
    /// The number of the newest span, or zero.
    #[inline]
    pub fn newest_span(&self) -> SeqNo {
        self.spans.newest()
    }

    /// The newest span over `key` that a reader at `seq` sees, or zero.
    pub fn span_at(&self, key: &[u8], seq: SeqNo) -> SeqNo {
        self.spans.at(key, seq)
    }

    /// The layers of the spans.
    pub fn span_layers(&self) -> Vec<DeletedRanges> {
        self.spans.layers()
    }

    /// All spans.
    pub fn spans(&self) -> DeletedRanges {
        // Newest, and so smallest, first.
        self.span_layers().iter().rev().fold(DeletedRanges::default(), |all, layer| all.and(layer))
    }
}

impl Memtable {
    /// The newest clear sequence, or zero.
    #[inline]
    pub fn newest_clear(&self) -> SeqNo {
        let newest = self.clear_seqs.newest.load(Ordering::Relaxed);
        SeqNo::new(newest).expect("it came in as a SeqNo")
    }

    /// The newest clear sequence that a reader at `seq` sees.
    pub fn clear_at(&self, seq: SeqNo) -> Option<SeqNo> {
        self.clear_seqs.all.last_through(seq)
    }

    /// The clear sequences that were inserted, ascending.
    pub fn clear_seqs(&self) -> Vec<SeqNo> {
        let all = &self.clear_seqs.all;
        (0..all.len()).map(|at| all.at(at)).collect()
    }

    /// The number of entries that were inserted after the newest clear sequence.
    pub fn entries_above_clear_seqs(&self) -> u64 {
        let below = self.clear_seqs.entries_below.load(Ordering::Relaxed);
        self.entry_count().saturating_sub(below)
    }

    /// Copies the clear sequences of `other` into a memtable that has none.
    pub(super) fn take_clear_seqs_of(&self, other: &Memtable) {
        other.clear_seqs().into_iter().for_each(|clear_seq| self.clear_seqs.all.push(clear_seq));
        let below = other.clear_seqs.entries_below.load(Ordering::Relaxed);
        self.clear_seqs.entries_below.store(below, Ordering::Relaxed);
        self.clear_seqs.newest.store(other.newest_clear().get(), Ordering::Relaxed);
    }
}

impl MemtableWriter<'_> {
    /// Applies the operation that clears the partition.
    #[cold]
    pub(super) fn clear(&mut self, seq: SeqNo, lsn: u64) -> Result<u64, NotNewer> {
        let table = self.table;
        // A clear writes to every key, so it must be newer than all of them.
        if seq <= table.last_seq() {
            return Err(NotNewer);
        }
        table.clear_seqs.all.push(seq);
        table.clear_seqs.entries_below.store(table.entry_count(), Ordering::Relaxed);
        table.clear_seqs.newest.store(seq.get(), Ordering::Relaxed);
        add(&table.bytes, CLEAR_SEQ_BYTES);
        table.note_operation(seq, lsn);
        Ok(CLEAR_SEQ_BYTES)
    }

    /// Applies an operation that deletes the keys of a range.
    #[cold]
    pub(super) fn delete_range(&mut self, span: DeletedRange, lsn: u64) -> Result<u64, NotNewer> {
        let table = self.table;
        let seq = span.seq;
        // As a clear: it may write to every key, so it must be newer than all of them.
        if seq <= table.last_seq() {
            return Err(NotNewer);
        }
        let bytes = table.spans.push(span);
        add(&table.bytes, bytes);
        table.note_operation(seq, lsn);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(n: u64) -> SeqNo {
        SeqNo::new(n).unwrap()
    }

    #[test]
    fn numbers_are_found_in_every_chunk() {
        let all = Ascending::default();
        assert_eq!(all.last_through(seq(9)), None);
        for n in 1..=200 {
            all.push(seq(10 * n));
            assert_eq!(all.len() as u64, n);
            assert_eq!(all.last_through(seq(9)), None);
            for at in 1..=n {
                assert_eq!(all.at(at as usize - 1), seq(10 * at));
                let found = [10 * at, 10 * at + 9].map(|n| all.last_through(seq(n)));
                assert_eq!(found, [Some(seq(10 * at)); 2], "{at} of {n}");
            }
        }
    }
}
