//! [`DeletedRange`]: a range of keys that was deleted at a sequence number. An entry inside with a smaller number is
//! absent for every reader that sees the span. All spans of a memtable or partition are its [`DeletedRanges`].
//!
//! As clears ([`ClearSeqs`](super::ClearSeqs)), spans lie in memtables and in the version of a partition, and
//! not in tables. Reads compare the number of the entry that they find with the spans over its key; merges leave
//! out what the durable spans hide. A span over all keys is a clear.
//!
//! A tombstone in the tables, as other engines have it, was rejected: each read would have to search the
//! tombstones of each table, and the ends of tables would have to cut them.
//!
//! Spans that overlap are cut at each other's ends into parts, so that a search compares a logarithmic number of
//! keys. A part knows the numbers of all spans over it.
//!
//! Invariants:
//! 1. Parts ascend. Each reaches to the next one, and the last one to the end of all keys.
//! 2. The first part has a number, and neighbours have different numbers: equal sets of spans are equal values.
//! 3. A span stays for as long as an entry below it may be in a table.

use std::collections::HashSet;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use super::{ClearSeqs, SeqNo, first_not_below, prefix8};

/// A deleted range of stored keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeletedRange {
    /// The first key; empty for a span from the first key of all.
    pub start: Arc<[u8]>,
    /// The first key after it; `None` if it has no end.
    pub end: Option<Arc<[u8]>>,
    /// Entries below this number are absent.
    pub seq: SeqNo,
}

impl DeletedRange {
    /// The span of the stored keys within `bounds`; `None` if no key can lie in them.
    pub fn within(bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>), seq: SeqNo) -> Option<DeletedRange> {
        let start = match &bounds.0 {
            Bound::Unbounded => Vec::new(),
            Bound::Included(first) => first.clone(),
            Bound::Excluded(before) => successor(before),
        };
        let end = match &bounds.1 {
            Bound::Unbounded => None,
            Bound::Included(last) => Some(successor(last)),
            Bound::Excluded(end) => Some(end.clone()),
        };
        let is_empty = end.as_ref().is_some_and(|end| *end <= start);
        (!is_empty).then(|| DeletedRange { start: start.into(), end: end.map(Into::into), seq })
    }

    /// Returns `true` if it holds every key.
    pub fn is_all(&self) -> bool {
        self.start.is_empty() && self.end.is_none()
    }

    /// Returns `true` if the key lies in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.start <= *key && self.end.as_ref().is_none_or(|end| *key < **end)
    }

    /// Returns `true` if a key of it may lie within the bounds.
    pub fn meets(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
        let begins_after = match upper {
            Bound::Unbounded => false,
            Bound::Included(last) => *last < *self.start,
            Bound::Excluded(end) => *end <= *self.start,
        };
        let ends_before = match (&self.end, lower) {
            (None, _) | (_, Bound::Unbounded) => false,
            (Some(end), Bound::Included(first)) => **end <= *first,
            (Some(end), Bound::Excluded(before)) => **end <= *successor(before),
        };
        !begins_after && !ends_before
    }
}

impl fmt::Display for DeletedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keys from \"{}\"", self.start.escape_ascii())?;
        match &self.end {
            Some(end) => write!(f, " to before \"{}\"", end.escape_ascii())?,
            None => write!(f, " on")?,
        }
        write!(f, " at sequence {}", self.seq)
    }
}

/// The smallest key after `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// The spans of a partition or memtable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedRanges(Option<Arc<CutSpans>>);

/// Spans, cut into parts.
#[derive(Debug, PartialEq, Eq)]
struct CutSpans {
    /// The bytes that all starts begin with.
    shared_len: usize,
    /// `prefix8` of each start after the shared bytes. They decide nearly every comparison and lie together, so that
    /// a search does not go to the memory of the starts.
    words: Vec<u64>,
    parts: Vec<SpanCut>,
    /// The newest number of all.
    newest: SeqNo,
}

/// The keys from `start` to the start of the next part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SpanCut {
    start: Arc<[u8]>,
    /// The numbers of the spans over it, ascending; none between spans.
    seqs: Arc<[SeqNo]>,
}

/// The keys around one for which a reader sees the same newest span.
#[derive(Clone, Debug, Default)]
pub struct SpanPart {
    /// The first key, if it is not the first of all.
    pub start: Option<Arc<[u8]>>,
    /// The first key after it.
    pub end: Option<Arc<[u8]>>,
    /// The newest span over it that the reader sees, or zero.
    pub seq: SeqNo,
}

impl SpanPart {
    /// Returns `true` if the key lies in it.
    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_ref().is_none_or(|start| **start <= *key)
            && self.end.as_ref().is_none_or(|end| *key < **end)
    }
}

impl DeletedRanges {
    /// The spans of a list in any order.
    pub fn of(list: &[DeletedRange]) -> DeletedRanges {
        match list {
            [] => DeletedRanges::default(),
            [span] => {
                let first = (span.start.clone(), [span.seq].into());
                let end = span.end.clone().map(|end| (end, [].into()));
                DeletedRanges::of_parts(std::iter::once(first).chain(end))
            }
            // Halves first: added one by one, each span would copy all parts before it.
            list => {
                let (left, right) = list.split_at(list.len() / 2);
                DeletedRanges::of(left).and(&DeletedRanges::of(right))
            }
        }
    }

    /// Parts in ascending order, which may be equal to their neighbours.
    fn of_parts(all: impl Iterator<Item = (Arc<[u8]>, Arc<[SeqNo]>)>) -> DeletedRanges {
        let mut parts: Vec<SpanCut> = Vec::new();
        let mut newest = SeqNo::ZERO;
        for (start, seqs) in all {
            let before = parts.last().map_or(&[][..], |part| &part.seqs);
            if *before == *seqs {
                continue;
            }
            newest = newest.max(seqs.last().copied().unwrap_or_default());
            parts.push(SpanCut { start, seqs });
        }
        // `None` for the usual partition: a check for it is one comparison with null.
        let ends = parts.first().zip(parts.last());
        // In ascending order, so all between the two share these bytes.
        let shared_len = ends.map(|(first, last)| shared_len(&first.start, &last.start));
        DeletedRanges(shared_len.map(|shared_len| {
            let words = parts.iter().map(|part| prefix8(&part.start[shared_len..])).collect();
            Arc::new(CutSpans { shared_len, words, parts, newest })
        }))
    }

    /// Returns `true` if there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The number of the newest one, or zero.
    #[inline]
    pub fn newest(&self) -> SeqNo {
        self.0.as_ref().map_or(SeqNo::ZERO, |cut| cut.newest)
    }

    fn parts(&self) -> &[SpanCut] {
        self.0.as_ref().map_or(&[], |cut| &cut.parts)
    }

    /// The number of parts.
    pub fn part_count(&self) -> usize {
        self.parts().len()
    }

    /// The number of sequence numbers of all parts.
    pub fn seq_count(&self) -> usize {
        self.parts().iter().map(|part| part.seqs.len()).sum()
    }

    /// The numbers of all of them.
    pub fn numbers(&self) -> HashSet<SeqNo> {
        self.parts().iter().flat_map(|part| part.seqs.iter().copied()).collect()
    }

    /// All of them, by number and then by key. Spans of one number that touch are one.
    pub fn list(&self) -> Vec<DeletedRange> {
        let mut all: Vec<DeletedRange> = Vec::new();
        // For each number that the part before has, the place of its span; ascending, as the numbers of a part. So
        // both are walked once: with a search for each number, spans that overlap cost the square of their number.
        let mut open: Vec<(SeqNo, usize)> = Vec::new();
        for part in self.parts() {
            let mut before = open.iter().copied().peekable();
            let mut places = Vec::with_capacity(part.seqs.len());
            for seq in &*part.seqs {
                while let Some((_, ended)) = before.next_if(|(other, _)| other < seq) {
                    all[ended].end = Some(part.start.clone());
                }
                places.push(before.next_if(|(other, _)| other == seq).map(|(_, at)| at));
            }
            before.for_each(|(_, ended)| all[ended].end = Some(part.start.clone()));
            open.clear();
            for (seq, place) in part.seqs.iter().zip(places) {
                let place = place.unwrap_or_else(|| {
                    all.push(DeletedRange { start: part.start.clone(), end: None, seq: *seq });
                    all.len() - 1
                });
                open.push((*seq, place));
            }
        }
        all.sort_by(|a, b| (a.seq, &a.start).cmp(&(b.seq, &b.start)));
        all
    }

    /// The place of the part that the key lies in; `None` before the first one.
    #[inline]
    fn place_of(&self, key: &[u8]) -> Option<usize> {
        let CutSpans { shared_len, words, parts, .. } = self.0.as_deref()?;
        let passed = match key.strip_prefix(&parts[0].start[..*shared_len]) {
            Some(rest) => {
                let word = prefix8(rest);
                let below = first_not_below(words, word);
                // Nearly always none: a second search of the words would cost as much as the first.
                if words.get(below) == Some(&word) {
                    let equal = words[below..].partition_point(|other| *other == word);
                    let equal = &parts[below..below + equal];
                    below + equal.partition_point(|part| *part.start <= *key)
                } else {
                    below
                }
            }
            None => parts.partition_point(|part| *part.start <= *key),
        };
        passed.checked_sub(1)
    }

    /// The newest span over `key` that a reader at `seq` sees, or zero.
    #[inline]
    pub fn at(&self, key: &[u8], seq: SeqNo) -> SeqNo {
        let Some(place) = self.place_of(key) else { return SeqNo::ZERO };
        newest_at(&self.parts()[place].seqs, seq)
    }

    /// The oldest span over `key` above the sequence number `seq` of an entry.
    pub fn above(&self, key: &[u8], seq: SeqNo) -> Option<SeqNo> {
        oldest_above(&self.parts()[self.place_of(key)?].seqs, seq)
    }

    /// The keys around `key` for which a reader at `seq` sees the same spans.
    fn part_at(&self, key: &[u8], seq: SeqNo) -> SpanPart {
        let place = self.place_of(key);
        let parts = self.parts();
        let next = place.map_or(0, |place| place + 1);
        SpanPart {
            start: place.map(|place| parts[place].start.clone()),
            end: parts.get(next).map(|part| part.start.clone()),
            seq: place.map_or(SeqNo::ZERO, |place| newest_at(&parts[place].seqs, seq)),
        }
    }

    /// The parts that keys from `first` to `last`, both included, lie in: their numbers. A part without a span is
    /// among them, the keys before all spans too.
    fn over<'a>(&'a self, first: &[u8], last: &'a [u8]) -> impl Iterator<Item = &'a [SeqNo]> {
        let place = self.place_of(first);
        let before: Option<&[SeqNo]> = if place.is_none() { Some(&[]) } else { None };
        let within = self.parts()[place.unwrap_or(0)..].iter();
        let within = within.take_while(move |part| *part.start <= *last);
        before.into_iter().chain(within.map(|part| &*part.seqs))
    }

    /// If spans above `seq` cover all keys from `first` to `last`, the number from which on nothing of an entry at
    /// `seq` is seen there.
    pub fn above_all(&self, first: &[u8], last: &[u8], seq: SeqNo) -> Option<SeqNo> {
        if self.newest() <= seq {
            return None;
        }
        self.over(first, last)
            .map(|seqs| oldest_above(seqs, seq))
            .try_fold(SeqNo::ZERO, |newest, above| Some(newest.max(above?)))
    }

    /// Returns `true` if a reader at `seq` sees spans above `below` over all keys from `first` to `last`.
    pub fn hide_all(&self, first: &[u8], last: &[u8], seq: SeqNo, below: SeqNo) -> bool {
        self.newest() > below && self.over(first, last).all(|seqs| newest_at(seqs, seq) > below)
    }

    /// The newest span over a key within the bounds, or zero.
    pub fn newest_within(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> SeqNo {
        let from = match lower {
            Bound::Unbounded => 0,
            Bound::Included(first) => self.place_of(first).unwrap_or(0),
            Bound::Excluded(before) => self.place_of(&successor(before)).unwrap_or(0),
        };
        let parts = self.parts()[from.min(self.parts().len())..].iter();
        let parts = parts.take_while(|part| match upper {
            Bound::Unbounded => true,
            Bound::Included(last) => *part.start <= *last,
            Bound::Excluded(end) => *part.start < *end,
        });
        parts.filter_map(|part| part.seqs.last().copied()).max().unwrap_or_default()
    }

    /// These and others.
    #[must_use]
    pub fn and(&self, others: &DeletedRanges) -> DeletedRanges {
        if others.is_empty() {
            return self.clone();
        }
        if self.is_empty() {
            return others.clone();
        }
        self.combined(others, |own, other| {
            if other.is_empty() || own.is_empty() {
                return if own.is_empty() { other.clone() } else { own.clone() };
            }
            ClearSeqs::of([&own[..], &other[..]].concat()).all().into()
        })
    }

    /// These without others; `None` if one of the others is not among these.
    pub fn without(&self, others: &DeletedRanges) -> Option<DeletedRanges> {
        let mut is_missing = false;
        let rest = self.combined(others, |own, other| {
            is_missing |= other.iter().any(|seq| own.binary_search(seq).is_err());
            own.iter().filter(|seq| other.binary_search(seq).is_err()).copied().collect()
        });
        (!is_missing).then_some(rest)
    }

    /// Walks the parts of both, and takes `combine` of each pair that overlaps.
    fn combined(
        &self,
        others: &DeletedRanges,
        mut combine: impl FnMut(&Arc<[SeqNo]>, &Arc<[SeqNo]>) -> Arc<[SeqNo]>,
    ) -> DeletedRanges {
        let none: Arc<[SeqNo]> = [].into();
        let mut left = self.parts().iter().peekable();
        let mut right = others.parts().iter().peekable();
        let mut own = &none;
        let mut other = &none;
        let parts = std::iter::from_fn(|| {
            let start = match (left.peek(), right.peek()) {
                (None, None) => return None,
                (Some(part), None) | (None, Some(part)) => part.start.clone(),
                (Some(a), Some(b)) => a.start.clone().min(b.start.clone()),
            };
            if let Some(part) = left.next_if(|part| part.start == start) {
                own = &part.seqs;
            }
            if let Some(part) = right.next_if(|part| part.start == start) {
                other = &part.seqs;
            }
            Some((start, combine(own, other)))
        });
        DeletedRanges::of_parts(parts)
    }

    /// The spans that distinguish readers, as [`ClearSeqs::distinguished_by`].
    #[must_use]
    pub fn distinguished_by(&self, snapshots: &[SeqNo]) -> DeletedRanges {
        DeletedRanges::of_parts(self.parts().iter().map(|part| {
            // The usual part has one span, and keeps it.
            if part.seqs.len() < 2 {
                return (part.start.clone(), part.seqs.clone());
            }
            let seqs = ClearSeqs::of(part.seqs.to_vec()).distinguished_by(snapshots);
            (part.start.clone(), seqs.all().into())
        }))
    }
}

/// The number of bytes that both begin with.
fn shared_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn newest_at(seqs: &[SeqNo], seq: SeqNo) -> SeqNo {
    let seen = seqs.partition_point(|other| *other <= seq);
    seqs[..seen].last().copied().unwrap_or_default()
}

fn oldest_above(seqs: &[SeqNo], seq: SeqNo) -> Option<SeqNo> {
    seqs.get(seqs.partition_point(|other| *other <= seq)).copied()
}

/// Spans from several places, that count together.
#[derive(Clone, Debug, Default)]
pub struct SpanLayers(Vec<DeletedRanges>);

impl SpanLayers {
    /// The layers of a list.
    pub fn of(layers: impl Iterator<Item = DeletedRanges>) -> SpanLayers {
        SpanLayers(layers.filter(|spans| !spans.is_empty()).collect())
    }

    /// Returns `true` if there is no span.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys around `key` for which a reader at `seq` sees the same newest span.
    pub fn part_at(&self, key: &[u8], seq: SeqNo) -> SpanPart {
        let mut all = SpanPart::default();
        for layer in &self.0 {
            let part = layer.part_at(key, seq);
            all.start = all.start.max(part.start);
            all.end = match (all.end.take(), part.end) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            all.seq = all.seq.max(part.seq);
        }
        all
    }

    /// All of them as one.
    pub fn joined(&self) -> DeletedRanges {
        self.0.iter().fold(DeletedRanges::default(), |all, layer| all.and(layer))
    }
}

#[cfg(test)]
mod tests;
