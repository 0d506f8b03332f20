//! [`TransactionRange`]: the stored entries at the snapshot, merged with the writes of the
//! transaction.

use std::cmp::Ordering;
use std::sync::Arc;

use super::merging::Merging;
use super::own::{OwnRange, OwnWrite, OwnWrites};
use super::reads::ScanMark;
use crate::error::{Error, Result};
use crate::read::{LazyRange, RangeEnd};
use crate::types::Slice;

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
    /// Only the keys. Reads no large values.
    pub fn keys(mut self) -> TransactionKeys {
        self.stored.inner.stop_reading_ahead();
        TransactionKeys(self)
    }
}

fn key_of(entry: Result<(Slice, SeenValue)>) -> Result<Slice> {
    entry.map(|(key, _)| key)
}

impl Iterator for TransactionKeys {
    type Item = Result<Slice>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.step(RangeEnd::Front).map(key_of)
    }
}

impl DoubleEndedIterator for TransactionKeys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.step(RangeEnd::Back).map(key_of)
    }
}

impl std::iter::FusedIterator for TransactionKeys {}

/// The value of a key at which a range has arrived, for as long as it does not move.
pub(super) enum SeenValue {
    /// That of the stored key which an end is on.
    Stored(RangeEnd),
    /// The sum of an own write and of the stored value below own operands.
    Own(OwnWrite, Option<RangeEnd>),
    /// It was needed to see whether the entry has expired.
    Read(Slice),
}

/// Keys and values of a range as a transaction sees them, from either end. Ends after an error.
pub struct TransactionRange {
    stored: BothEnds<LazyRange>,
    own: BothEnds<OwnRange>,
    /// The deleted ranges are among these.
    erased: Arc<OwnWrites>,
    scan: ScanMark,
    merging: Merging,
    has_ended: bool,
}

impl TransactionRange {
    pub(super) fn new(
        stored: LazyRange,
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

    /// The next key from `end`, and its value, which is not read yet.
    pub(super) fn step(&mut self, end: RangeEnd) -> Option<Result<(Slice, SeenValue)>> {
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
                let (key, at) = match self.stored.take(end)? {
                    Ok(entry) => entry,
                    // Without `finish`: keys after the damage were not read, and cannot conflict.
                    Err(error) => return self.fail(error),
                };
                if self.erased.erases(&key) {
                    continue;
                }
                self.scan.reach(end, &key);
                return Some(Ok((key, SeenValue::Stored(at))));
            }
            // Shadowed by its own one, or the base of own operands.
            let stored = if order == Ordering::Equal { self.stored.take(end) } else { None };
            let (key, own) = self.own.take(end)?;
            if matches!(own, OwnWrite::Delete) {
                continue;
            }
            let base = stored.and_then(Result::ok).map(|(_, at)| at);
            let mut value = SeenValue::Own(own, base);
            match self.merging.is_shown(&key) {
                Some(false) => continue,
                Some(true) => {}
                None => match self.read(&key, &value) {
                    Err(error) => return self.fail(error),
                    Ok(read) => match self.merging.shown(&key, read) {
                        None => continue,
                        Some(read) => value = SeenValue::Read(read),
                    },
                },
            }
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

    /// The value of `key`, at which the last step arrived.
    pub(super) fn read(&self, key: &[u8], value: &SeenValue) -> Result<Slice> {
        match value {
            SeenValue::Read(value) => Ok(value.clone()),
            SeenValue::Stored(end) => self.stored.inner.value(*end),
            SeenValue::Own(OwnWrite::Merge(operand), base) => {
                let base = base.map(|end| self.stored.inner.value(end)).transpose()?;
                self.merging.fold(key, base, operand)
            }
            SeenValue::Own(own, _) => {
                Ok(self.merging.value(key, own)?.expect("a step passes over deletions"))
            }
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the item that the iterator returns")]
    fn fail<T>(&mut self, error: Error) -> Option<Result<T>> {
        self.has_ended = true;
        Some(Err(error))
    }

    fn entry(&mut self, end: RangeEnd) -> Option<Result<(Slice, Slice)>> {
        match self.step(end)?.and_then(|(key, value)| Ok((self.read(&key, &value)?, key))) {
            Ok((value, key)) => Some(Ok((key, value))),
            Err(error) => self.fail(error),
        }
    }
}

impl Iterator for TransactionRange {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.entry(RangeEnd::Front)
    }
}

impl DoubleEndedIterator for TransactionRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.entry(RangeEnd::Back)
    }
}

impl std::iter::FusedIterator for TransactionRange {}
