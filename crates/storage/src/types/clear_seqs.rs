//! [`ClearSeqs`]: the sequence numbers at which a partition was cleared. An entry below a clear sequence is
//! absent for every reader that sees the clear sequence.
//!
//! A memtable has the clear sequences that were set since the previous flush, the version of a partition has
//! those that are flushed. Reads check both through their view; merges use the durable ones.
//!
//! A tombstone for each key was rejected: now the time to clear a partition does not depend on its
//! size, and its tables are deleted without being read.
//!
//! Invariants:
//! 1. Clear sequences ascend, without duplicates.
//! 2. A clear sequence stays for as long as an entry below it may be in a table.

use std::sync::Arc;

use super::SeqNo;

/// The clear sequences of a partition or memtable, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClearSeqs(Option<Arc<[SeqNo]>>);

impl ClearSeqs {
    /// The clear sequences of a list in any order.
    pub fn of(mut all: Vec<SeqNo>) -> ClearSeqs {
        all.sort_unstable();
        all.dedup();
        // `None` for the usual partition: a check for it is one comparison with null.
        ClearSeqs((!all.is_empty()).then(|| all.into()))
    }

    /// Returns `true` if there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// All of them, ascending.
    pub fn all(&self) -> &[SeqNo] {
        self.0.as_deref().unwrap_or_default()
    }

    /// The newest one that a reader at `seq` sees.
    pub fn at(&self, seq: SeqNo) -> Option<SeqNo> {
        let seen = self.all().partition_point(|clear_seq| *clear_seq <= seq);
        self.all()[..seen].last().copied()
    }

    /// The oldest clear sequence above the sequence number `seq` of an entry.
    pub fn above(&self, seq: SeqNo) -> Option<SeqNo> {
        let passed = self.all().partition_point(|clear_seq| *clear_seq <= seq);
        self.all().get(passed).copied()
    }

    /// These and others.
    #[must_use]
    pub fn and(&self, others: &ClearSeqs) -> ClearSeqs {
        if others.is_empty() {
            return self.clone();
        }
        ClearSeqs::of([self.all(), others.all()].concat())
    }

    /// The clear sequences that distinguish readers: those that differ for a reader at one of `snapshots`
    /// (ascending), or at any later number.
    #[must_use]
    pub fn distinguished_by(&self, snapshots: &[SeqNo]) -> ClearSeqs {
        let all = self.all();
        let mut needed = Vec::new();
        for (number, clear_seq) in all.iter().enumerate() {
            // Every later reader sees the last one.
            let Some(next) = all.get(number + 1) else {
                needed.push(*clear_seq);
                continue;
            };
            // A snapshot between this clear sequence and the next one sees this one and not the next.
            let first = snapshots.partition_point(|snapshot| snapshot < clear_seq);
            if snapshots.get(first).is_some_and(|snapshot| snapshot < next) {
                needed.push(*clear_seq);
            }
        }
        ClearSeqs::of(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seqs(numbers: &[u64]) -> Vec<SeqNo> {
        numbers.iter().map(|n| SeqNo::new(*n).unwrap()).collect()
    }

    fn seq(n: u64) -> SeqNo {
        seqs(&[n])[0]
    }

    #[test]
    fn an_entry_lies_below_the_next_clear_and_a_reader_sees_the_last() {
        let clear_seqs = ClearSeqs::of(seqs(&[20, 10, 20]));
        let below = [9, 10, 11, 19, 20].map(|n| clear_seqs.above(seq(n)).map(SeqNo::get));
        assert_eq!(below, [Some(10), Some(20), Some(20), Some(20), None]);
        let seen = [9, 10, 19, 20, 99].map(|n| clear_seqs.at(seq(n)).map(SeqNo::get));
        assert_eq!(seen, [None, Some(10), Some(10), Some(20), Some(20)]);
        assert_eq!(ClearSeqs::default().above(seq(1)), None);
    }

    #[test]
    fn clears_that_no_reader_distinguishes_are_one() {
        let clear_seqs = ClearSeqs::of(seqs(&[10, 20, 30]));
        let cases: [(&[u64], &[u64]); 5] = [
            (&[], &[30]),
            (&[9, 30, 40], &[30]),
            (&[10], &[10, 30]),
            (&[19, 20], &[10, 20, 30]),
            (&[29, 40], &[20, 30]),
        ];
        for (snapshots, kept) in cases {
            assert_eq!(
                clear_seqs.distinguished_by(&seqs(snapshots)).all(),
                seqs(kept),
                "{snapshots:?}"
            );
        }
    }
}
