//! Iterators over ranges: thin wrappers of two cursors, one for each end.

use std::ops::{Bound, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use super::readahead::ValueReadahead;
use super::{Cursor, ReadPoint};
use crate::error::Result;
use crate::types::Slice;

mod sealed {
    pub trait Sealed {}
}

/// Both ends of a range of keys.
pub type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A range of keys: any range type of the standard library over any type that is bytes. A range whose
/// start is greater than its end is empty.
pub trait KeyRange: sealed::Sealed {
    /// Its ends.
    fn bounds(self) -> Bounds;
}

fn owned<K: AsRef<[u8]>>(key: K) -> Vec<u8> {
    key.as_ref().to_vec()
}

macro_rules! key_range {
    ($(($($generics:tt)*) $type:ty, $range:ident => $bounds:expr;)*) => {$(
        impl $($generics)* sealed::Sealed for $type {}
        impl $($generics)* KeyRange for $type {
            fn bounds(self) -> Bounds {
                let $range = self;
                $bounds
            }
        }
    )*};
}

key_range! {
    () RangeFull, _range => (Bound::Unbounded, Bound::Unbounded);
    (<K: AsRef<[u8]>>) std::ops::Range<K>, range =>
        (Bound::Included(owned(range.start)), Bound::Excluded(owned(range.end)));
    (<K: AsRef<[u8]>>) RangeFrom<K>, range => (Bound::Included(owned(range.start)), Bound::Unbounded);
    (<K: AsRef<[u8]>>) RangeTo<K>, range => (Bound::Unbounded, Bound::Excluded(owned(range.end)));
    (<K: AsRef<[u8]>>) RangeToInclusive<K>, range =>
        (Bound::Unbounded, Bound::Included(owned(range.end)));
    (<K: AsRef<[u8]>>) RangeInclusive<K>, range =>
        (Bound::Included(owned(range.start())), Bound::Included(owned(range.end())));
    (<K: AsRef<[u8]>>) (Bound<K>, Bound<K>), range => (range.0.map(owned), range.1.map(owned));
}

/// The range of all keys that begin with `prefix`.
pub fn prefix_bounds(prefix: &[u8]) -> Bounds {
    // Bytes of 0xff cannot be increased; no key follows a prefix of nothing else.
    let Some(at) = prefix.iter().rposition(|byte| *byte != 0xff) else {
        return (Bound::Included(prefix.to_vec()), Bound::Unbounded);
    };
    let mut end = prefix[..=at].to_vec();
    end[at] += 1;
    (Bound::Included(prefix.to_vec()), Bound::Excluded(end))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    NotStarted,
    Inside,
    Finished,
}

/// A double-ended iterator over the keys and values of a range. It ends after an error; a new
/// iterator can start after the damage. From the second large value of an end on, the next ones are
/// read from the device while the caller uses the present one.
///
/// It holds what a [`Cursor`] holds, until it is dropped: it goes on if the snapshot or the handle that it came
/// from is dropped first, and keeps their memtables, tables and large values, and the database open.
pub struct Range {
    bounds: Bounds,
    point: Result<ReadPoint>,
    front: Option<Cursor>,
    back: Option<Cursor>,
    front_at: End,
    back_at: End,
    front_readahead: ValueReadahead,
    back_readahead: ValueReadahead,
}

impl Range {
    /// Iterates over the keys of `point` within `bounds`.
    pub fn new(bounds: Bounds, point: Result<ReadPoint>) -> Range {
        Range {
            bounds,
            point,
            front: None,
            back: None,
            front_at: End::NotStarted,
            back_at: End::NotStarted,
            front_readahead: ValueReadahead::new(Cursor::next),
            back_readahead: ValueReadahead::new(Cursor::prev),
        }
    }

    /// Returns an iterator over the keys alone, which reads no large values.
    pub fn keys(self) -> Keys {
        Keys(self)
    }

    #[expect(clippy::unnecessary_wraps, reason = "the item that the iterator returns")]
    fn fail<T>(&mut self, error: crate::Error) -> Option<Result<T>> {
        // Both ends: continuing after an error would silently leave keys out.
        self.front_at = End::Finished;
        self.back_at = End::Finished;
        Some(Err(error))
    }

    fn step_front(&mut self) -> Result<bool> {
        if self.front_at == End::Finished {
            return Ok(false);
        }
        if self.front.is_none() {
            // Opened at the first step: a range that is walked from one end needs one cursor.
            self.front = Some(Cursor::open(&self.bounds, self.point.clone()));
        }
        let front = self.front.as_mut().expect("it was just opened");
        if let Some(back) = self.back.as_ref() {
            // The other end stopped at this one: nothing is left between them.
            if self.back_at == End::Finished {
                self.front_at = End::Finished;
                return Ok(false);
            }
            // At every step, because the other end has moved: no key is returned twice.
            front.set_upper_excluded(back.key());
        }
        match self.front_at {
            End::NotStarted => front.seek_to_first()?,
            _ => front.next()?,
        }
        self.front_at = if front.valid() { End::Inside } else { End::Finished };
        Ok(front.valid())
    }

    fn step_back(&mut self) -> Result<bool> {
        if self.back_at == End::Finished {
            return Ok(false);
        }
        if self.back.is_none() {
            self.back = Some(Cursor::open(&self.bounds, self.point.clone()));
        }
        let back = self.back.as_mut().expect("it was just opened");
        if let Some(front) = self.front.as_ref() {
            if self.front_at == End::Finished {
                self.back_at = End::Finished;
                return Ok(false);
            }
            // As in `step_front`: each end stops at the other.
            back.set_lower_excluded(front.key());
        }
        match self.back_at {
            End::NotStarted => back.seek_to_last()?,
            _ => back.prev()?,
        }
        self.back_at = if back.valid() { End::Inside } else { End::Finished };
        Ok(back.valid())
    }

    /// The item at which an end has arrived, once it has moved.
    fn arrived<T>(
        &mut self,
        moved: Result<bool>,
        read: impl FnOnce(&mut Range) -> Result<T>,
    ) -> Option<Result<T>> {
        let item = match moved {
            Ok(false) => return None,
            Ok(true) => read(self),
            Err(error) => Err(error),
        };
        match item {
            Ok(item) => Some(Ok(item)),
            Err(error) => self.fail(error),
        }
    }
}

/// The cursor of an end that has moved to a key.
fn on_key(end: Option<&Cursor>) -> &Cursor {
    end.expect("it is on a key")
}

/// The key and the value of an end that has moved to a key; looks ahead of it.
fn pair(
    end: Option<&Cursor>,
    readahead: &mut ValueReadahead,
    bounds: &Bounds,
    point: &Result<ReadPoint>,
) -> Result<(Slice, Slice)> {
    let cursor = on_key(end);
    readahead.follow(cursor, bounds, point);
    Ok((cursor.key_slice(), cursor.value_slice()?))
}

impl Iterator for Range {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        let moved = self.step_front();
        self.arrived(moved, |range| {
            pair(range.front.as_ref(), &mut range.front_readahead, &range.bounds, &range.point)
        })
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        let moved = self.step_back();
        self.arrived(moved, |range| {
            pair(range.back.as_ref(), &mut range.back_readahead, &range.bounds, &range.point)
        })
    }
}

impl std::iter::FusedIterator for Range {}

/// An end of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeEnd {
    /// That of the smallest key.
    Front,
    /// That of the greatest key.
    Back,
}

/// A range whose values are read on demand: each key comes with the end that is on it until it moves.
pub struct LazyRange {
    range: Range,
    reads_ahead: bool,
}

impl LazyRange {
    /// Iterates over the keys of `point` within `bounds`; `reads_ahead` if most values will be read.
    pub fn new(bounds: Bounds, point: Result<ReadPoint>, reads_ahead: bool) -> LazyRange {
        LazyRange { range: Range::new(bounds, point), reads_ahead }
    }

    /// Reads no large values ahead from now on.
    pub fn stop_reading_ahead(&mut self) {
        self.reads_ahead = false;
    }

    /// Returns the value of the key that `end` is on.
    pub fn value(&self, end: RangeEnd) -> Result<Slice> {
        let range = &self.range;
        on_key(if end == RangeEnd::Front { &range.front } else { &range.back }.as_ref())
            .value_slice()
    }

    fn arrived(&mut self, moved: Result<bool>, end: RangeEnd) -> Option<Result<(Slice, RangeEnd)>> {
        let reads_ahead = self.reads_ahead;
        self.range.arrived(moved, |range| {
            let at = match end {
                RangeEnd::Front => (range.front.as_ref(), &mut range.front_readahead),
                RangeEnd::Back => (range.back.as_ref(), &mut range.back_readahead),
            };
            let cursor = on_key(at.0);
            if reads_ahead {
                at.1.follow(cursor, &range.bounds, &range.point);
            }
            Ok((cursor.key_slice(), end))
        })
    }
}

impl Iterator for LazyRange {
    type Item = Result<(Slice, RangeEnd)>;

    fn next(&mut self) -> Option<Self::Item> {
        let moved = self.range.step_front();
        self.arrived(moved, RangeEnd::Front)
    }
}

impl DoubleEndedIterator for LazyRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        let moved = self.range.step_back();
        self.arrived(moved, RangeEnd::Back)
    }
}

/// A double-ended iterator over the keys of a range.
pub struct Keys(Range);

impl Iterator for Keys {
    type Item = Result<Slice>;

    fn next(&mut self) -> Option<Self::Item> {
        let moved = self.0.step_front();
        self.0.arrived(moved, |range| Ok(on_key(range.front.as_ref()).key_slice()))
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        let moved = self.0.step_back();
        self.0.arrived(moved, |range| Ok(on_key(range.back.as_ref()).key_slice()))
    }
}

impl std::iter::FusedIterator for Keys {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_its_successor_begins() {
        assert_eq!(prefix_bounds(b"ab").1, Bound::Excluded(b"ac".to_vec()));
        assert_eq!(prefix_bounds(b"a\xff\xff").1, Bound::Excluded(b"b".to_vec()));
        assert_eq!(prefix_bounds(b"\xff").1, Bound::Unbounded);
        assert_eq!(prefix_bounds(b"").1, Bound::Unbounded);
    }
}
