//! [`TransactionRange`]: the stored entries at the snapshot, merged with the writes of the
//! transaction.

use std::cmp::Ordering;
use std::sync::Arc;

use super::merging::Merging;
use super::own::{OwnRange, OwnWrite, OwnWrites};
use super::reads::ScanMark;
use crate::error::Result;
use crate::read::Range;
use crate::types::Slice;

/// An end of a range.
#[derive(Clone, Copy)]
pub(super) enum RangeEnd {
    Front,
    Back,
}

/// An iterator with a peek at both ends.
struct BothEnds<I: Iterator> {
    inner: I,
    front: Option<I::Item>,
    back: Option<I::Item>,
}

impl<I: DoubleEndedIterator> BothEnds<I> {
    fn new(inner: I) -> BothEnds<I> {
        BothEnds { inner, front: None, back: None }
    }

    fn peek(&mut self, end: RangeEnd) -> Option<&I::Item> {
        match end {
            RangeEnd::Front => {
                if self.front.is_none() {
                    // The last item may have been peeked at from the other end.
                    self.front = self.inner.next().or_else(|| self.back.take());
                }
                self.front.as_ref()
            }
            RangeEnd::Back => {
                if self.back.is_none() {
                    self.back = self.inner.next_back().or_else(|| self.front.take());
                }
                self.back.as_ref()
            }
        }
    }

    /// Takes what was peeked at.
    fn take(&mut self, end: RangeEnd) -> Option<I::Item> {
        match end {
            RangeEnd::Front => self.front.take(),
            RangeEnd::Back => self.back.take(),
        }
    }
}

/// Keys of a range as a transaction sees them, from either end. Ends after an error.
pub struct TransactionKeys(TransactionRange);

impl TransactionRange {
    /// Only the keys.
    pub fn keys(self) -> TransactionKeys {
        TransactionKeys(self)
    }
}

fn key_of(entry: Result<(Slice, Slice)>) -> Result<Slice> {
    entry.map(|(key, _)| key)
}

impl Iterator for TransactionKeys {
    type Item = Result<Slice>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(key_of)
    }
}

impl DoubleEndedIterator for TransactionKeys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(key_of)
    }
}

impl std::iter::FusedIterator for TransactionKeys {}

/// Keys and values of a range as a transaction sees them, from either end. Ends after an error.
pub struct TransactionRange {
    stored: BothEnds<Range>,
    own: BothEnds<OwnRange>,
    /// The deleted ranges are among these.
    erased: Arc<OwnWrites>,
    scan: ScanMark,
    merging: Merging,
    has_ended: bool,
}

impl TransactionRange {
    pub(super) fn new(
        stored: Range,
        own: OwnRange,
        scan: ScanMark,
        merging: Merging,
    ) -> TransactionRange {
        TransactionRange {
            erased: own.writes().clone(),
            stored: BothEnds::new(stored),
            own: BothEnds::new(own),
            scan,
            merging,
            has_ended: false,
        }
    }

    /// The next key from `end`, and its value.
    fn step(&mut self, end: RangeEnd) -> Option<Result<(Slice, Slice)>> {
        while !self.has_ended {
            let order = match (self.stored.peek(end), self.own.peek(end)) {
                (None, None) => break,
                // An error has no key to be ordered by. It comes first, so that no later key hides
                // it.
                (Some(_), None) | (Some(Err(_)), _) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                // Backwards the greater key comes first.
                (Some(Ok((stored, _))), Some((own, _))) => match end {
                    RangeEnd::Front => stored[..].cmp(own),
                    RangeEnd::Back => own[..].cmp(stored),
                },
            };
            if order == Ordering::Less {
                let entry = self.stored.take(end)?;
                if entry.as_ref().is_ok_and(|(key, _)| self.erased.erases(key)) {
                    continue;
                }
                match &entry {
                    Ok((key, _)) => self.scan.reach(end, key),
                    // Without `finish`: keys after the damage were not read, and cannot conflict.
                    Err(_) => self.has_ended = true,
                }
                return Some(entry);
            }
            // Shadowed by its own one, or the base of own operands.
            let stored = if order == Ordering::Equal { self.stored.take(end) } else { None };
            let (key, own) = self.own.take(end)?;
            let value = match &own {
                OwnWrite::Merge(operand) => {
                    let base = stored.and_then(Result::ok).map(|(_, value)| value);
                    self.merging.fold(&key, base, operand).map(Some)
                }
                own => self.merging.value(&key, own),
            };
            let value = match value {
                Ok(Some(value)) => value,
                Ok(None) => continue,
                Err(error) => {
                    self.has_ended = true;
                    return Some(Err(error));
                }
            };
            let Some(value) = self.merging.shown(&key, value) else { continue };
            self.scan.reach(end, &key);
            return Some(Ok((key.into(), value)));
        }
        if !self.has_ended {
            self.has_ended = true;
            // The range between the last key and the end was read too: a key that another
            // transaction puts there is a conflict.
            self.scan.finish();
        }
        None
    }
}

impl Iterator for TransactionRange {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(RangeEnd::Front)
    }
}

impl DoubleEndedIterator for TransactionRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(RangeEnd::Back)
    }
}

impl std::iter::FusedIterator for TransactionRange {}
