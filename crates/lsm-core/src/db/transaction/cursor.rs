//! [`TransactionCursor`]: moves both ways over the state that a transaction sees, including its own
//! writes.
//!
//! Made of ranges, one for each change of direction, so that its reads are noted like those of an
//! iterator.
//!
//! Invariant: `walk` has arrived at the present key in its direction; without a present key it is not
//! used.

use std::ops::Bound;
use std::sync::OnceLock;

use super::range::SeenValue;
use super::{Transaction, TransactionRange};
use crate::db::Partition;
use crate::error::Result;
use crate::read::{Bounds, RangeEnd, ReadCursor};
use crate::types::Slice;

/// A cursor over the keys of one partition within bounds, as a transaction sees them. Before the first
/// seek, and after a move that failed, it is on no key.
///
/// # Cost
/// Values are read on demand. A seek, and a move against the direction of the last one, cost what the first item of a
/// [`TransactionRange`] costs.
pub struct TransactionCursor<'a> {
    transaction: &'a Transaction,
    partition: &'a Partition,
    bounds: Bounds,
    walk: Option<(RangeEnd, TransactionRange)>,
    present: Option<Present>,
}

/// The key that a cursor is on.
struct Present {
    key: Slice,
    seen: SeenValue,
    /// Read on demand.
    value: OnceLock<Slice>,
}

impl<'a> TransactionCursor<'a> {
    pub(super) fn new(
        transaction: &'a Transaction,
        partition: &'a Partition,
        bounds: Bounds,
    ) -> TransactionCursor<'a> {
        TransactionCursor { transaction, partition, bounds, walk: None, present: None }
    }

    /// Moves to the first key at or after `lower`, or after the lower bound if that is later.
    fn walk_forward(&mut self, lower: Bound<Vec<u8>>) -> Result<()> {
        let own = self.bounds.0.clone();
        // The narrower range, because it is the one that is noted: a wider one would make the
        // commit fail for a write to a key that the cursor could not have shown.
        let lower = if is_later(&own, &lower) { own } else { lower };
        let range = self.transaction.scan(self.partition, (lower, self.bounds.1.clone()), false);
        self.go_on(RangeEnd::Front, range)
    }

    /// Moves to the last key before `upper`, or before the upper bound if that comes earlier.
    fn walk_backward(&mut self, upper: Bound<Vec<u8>>) -> Result<()> {
        let own = self.bounds.1.clone();
        let upper = if is_earlier(&own, &upper) { own } else { upper };
        let range = self.transaction.scan(self.partition, (self.bounds.0.clone(), upper), false);
        self.go_on(RangeEnd::Back, range)
    }

    fn go_on(&mut self, end: RangeEnd, mut range: TransactionRange) -> Result<()> {
        // Before the move, so that a move that fails leaves the cursor on no key.
        self.present = None;
        self.walk = None;
        let next = range.step(end).transpose()?;
        self.present = next.map(|(key, seen)| Present { key, seen, value: OnceLock::new() });
        self.walk = Some((end, range));
        Ok(())
    }
}

/// Returns `true` if a range from `own` on begins after one from `other` on.
fn is_later(own: &Bound<Vec<u8>>, other: &Bound<Vec<u8>>) -> bool {
    match (own, other) {
        (Bound::Unbounded, _) => false,
        (_, Bound::Unbounded) => true,
        // At the same key an excluded bound begins later.
        (Bound::Excluded(own), Bound::Included(other)) => own >= other,
        (
            Bound::Included(own) | Bound::Excluded(own),
            Bound::Included(other) | Bound::Excluded(other),
        ) => own > other,
    }
}

/// Returns `true` if a range up to `own` ends before one up to `other`.
fn is_earlier(own: &Bound<Vec<u8>>, other: &Bound<Vec<u8>>) -> bool {
    match (own, other) {
        (Bound::Unbounded, _) => false,
        (_, Bound::Unbounded) => true,
        // At the same key an excluded bound ends earlier.
        (Bound::Excluded(own), Bound::Included(other)) => own <= other,
        (
            Bound::Included(own) | Bound::Excluded(own),
            Bound::Included(other) | Bound::Excluded(other),
        ) => own < other,
    }
}

impl ReadCursor for TransactionCursor<'_> {
    fn valid(&self) -> bool {
        self.present.is_some()
    }

    fn key(&self) -> &[u8] {
        &self.present.as_ref().expect("the cursor is on no key").key
    }

    fn value(&self) -> Result<&[u8]> {
        let present = self.present.as_ref().expect("the cursor is on no key");
        if let Some(value) = present.value.get() {
            return Ok(value);
        }
        let (_, walk) = self.walk.as_ref().expect("it has arrived at the key");
        let value = walk.read(&present.key, &present.seen)?;
        Ok(present.value.get_or_init(|| value))
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.walk_forward(Bound::Unbounded)
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.walk_backward(Bound::Unbounded)
    }

    fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.walk_forward(Bound::Included(key.as_ref().to_vec()))
    }

    fn seek_after(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.walk_forward(Bound::Excluded(key.as_ref().to_vec()))
    }

    fn seek_before(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.walk_backward(Bound::Excluded(key.as_ref().to_vec()))
    }

    fn next(&mut self) -> Result<()> {
        let Some(Present { key, .. }) = &self.present else { return Ok(()) };
        match self.walk.take() {
            // In the direction of the last move the same iterator continues, and notes one range
            // for all of the walk.
            Some((RangeEnd::Front, range)) => self.go_on(RangeEnd::Front, range),
            _ => self.walk_forward(Bound::Excluded(key.to_vec())),
        }
    }

    fn prev(&mut self) -> Result<()> {
        let Some(Present { key, .. }) = &self.present else { return Ok(()) };
        match self.walk.take() {
            Some((RangeEnd::Back, range)) => self.go_on(RangeEnd::Back, range),
            _ => self.walk_backward(Bound::Excluded(key.to_vec())),
        }
    }
}
