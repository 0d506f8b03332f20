//! The deleted ranges that were inserted into a memtable as operations: see [`DeletedRanges`].
//!
//! The one thread that commits adds spans, and readers search meanwhile without a lock. The spans lie in a few
//! layers. An addition joins the newest layers as long as they are not much larger than it, so that a span is
//! copied a few times, and a search looks at a few layers.
//!
//! Invariant: a span is stored before the sequence number at which it counts is published, so a reader that sees
//! the number sees the span. A sealed memtable gets no further ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use crate::types::{DeletedRange, DeletedRanges, SeqNo};

/// Memory that a part counts for in addition to its key, in bytes.
const PART_BYTES: u64 = 96;
/// A layer is joined with a newer one that has at least one of so many of its parts and numbers. With 2 the layers of 1,000
/// spans are ten, and each get searches all of them.
const JOINED_SHARE: usize = 8;

/// The spans of one memtable.
#[derive(Default)]
pub(super) struct OwnSpans {
    /// The newest one, or zero. Ordered by the visible sequence, which is stored after it: relaxed.
    newest: AtomicU64,
    /// Oldest and largest first.
    layers: ArcSwapOption<Vec<DeletedRanges>>,
}

impl OwnSpans {
    /// The number of the newest span, or zero.
    #[inline]
    pub(super) fn newest(&self) -> SeqNo {
        let newest = self.newest.load(Ordering::Relaxed);
        SeqNo::new(newest).expect("it came in as a SeqNo")
    }

    /// The newest span over `key` that a reader at `seq` sees, or zero.
    pub(super) fn at(&self, key: &[u8], seq: SeqNo) -> SeqNo {
        let layers = self.layers.load();
        let found = layers.iter().flat_map(|layers| layers.iter()).map(|layer| layer.at(key, seq));
        found.max().unwrap_or_default()
    }

    pub(super) fn layers(&self) -> Vec<DeletedRanges> {
        self.layers.load().as_ref().map_or_else(Vec::new, |layers| layers.to_vec())
    }

    /// Copies the spans of `other`, if there are none yet.
    pub(super) fn take(&self, other: &OwnSpans) {
        self.layers.store(other.layers.load_full());
        self.newest.store(other.newest().get(), Ordering::Relaxed);
    }

    /// Adds a span, newer than all others; returns the memory that it takes, in bytes. By one thread at a time.
    pub(super) fn push(&self, span: DeletedRange) -> u64 {
        let seq = span.seq;
        let ends = span.start.len() + span.end.as_ref().map_or(0, |end| end.len());
        let mut newest = DeletedRanges::of(&[span]);
        let mut layers = self.layers();
        let mut before = 0;
        while let Some(layer) =
            layers.pop_if(|layer| weight(layer) <= JOINED_SHARE * weight(&newest))
        {
            before += layer.seq_count();
            newest = layer.and(&newest);
        }
        // Spans that overlap are noted once for each part that they reach. It counts, so that the write buffer
        // bounds what the process uses.
        let grown = newest.seq_count().saturating_sub(before + 1) * size_of::<SeqNo>();
        layers.push(newest);
        self.layers.store(Some(Arc::new(layers)));
        self.newest.store(seq.get(), Ordering::Relaxed);
        PART_BYTES * 2 + (ends + grown) as u64
    }
}

/// The parts and numbers that a copy of a layer copies. A range that is deleted again and again is one part.
fn weight(layer: &DeletedRanges) -> usize {
    layer.part_count() + layer.seq_count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(n: u64) -> SeqNo {
        SeqNo::new(n).unwrap()
    }

    fn key(n: u64) -> Vec<u8> {
        format!("{:04}", n * 37 % 1000).into_bytes()
    }

    /// Many spans lie in few layers, and each is found at its key and by its readers.
    #[test]
    fn spans_are_found_in_every_layer() {
        let own = OwnSpans::default();
        for n in 1..=1000u64 {
            let start: Arc<[u8]> = key(n).into();
            let end = [&start[..], &[0]].concat().into();
            own.push(DeletedRange { start, end: Some(end), seq: seq(n) });
            assert_eq!(own.newest(), seq(n));
            assert!(own.layers().len() <= 6, "{} layers of {n}", own.layers().len());
        }
        for n in 1..=1000u64 {
            assert_eq!(own.at(&key(n), seq(5000)), seq(n));
            assert_eq!(own.at(&key(n), seq(n - 1)), SeqNo::ZERO);
            assert_eq!(own.at(&[&key(n)[..], b"x"].concat(), seq(5000)), SeqNo::ZERO);
        }
    }

    /// Spans that overlap, or are equal as those of a queue, are copied as seldom as others.
    #[test]
    fn spans_over_the_same_keys_are_copied_a_few_times() {
        const COUNT: u64 = 4000;
        // The same range, and one that moves on.
        for step in [0, 1] {
            let own = OwnSpans::default();
            let mut copied = 0;
            for n in 1..=COUNT {
                let ends = [n * step, n * step + 20].map(|at| format!("{at:04}").into_bytes());
                let [start, end] = ends.map(Arc::from);
                own.push(DeletedRange { start, end: Some(end), seq: seq(n) });
                copied += own.layers().last().map_or(0, DeletedRanges::seq_count);
                assert!(own.layers().len() <= 6, "{} layers of {n}", own.layers().len());
            }
            let bound = COUNT as usize * if step == 0 { 32 } else { 32 * 20 };
            assert!(copied <= bound, "step {step}: {copied} numbers");
            assert_eq!(
                own.at(format!("{:04}", COUNT * step + 19).as_bytes(), seq(9999)),
                seq(COUNT)
            );
        }
    }
}
