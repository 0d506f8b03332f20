//! The own writes of a transaction.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;
use std::sync::Arc;

use crate::read::Bounds;
use crate::types::Slice;

/// The newest own operation on each key of a partition: a value, or `None` for a deletion.
pub(super) type OwnWrites = BTreeMap<Vec<u8>, Option<Slice>>;

/// Own operations within bounds, from either end.
pub(super) struct OwnRange {
    writes: Arc<OwnWrites>,
    /// Of what is left.
    bounds: Bounds,
}

impl OwnRange {
    pub(super) fn new(writes: Arc<OwnWrites>, bounds: Bounds) -> OwnRange {
        OwnRange { writes, bounds }
    }

    fn rest(&self) -> Option<btree_map::Range<'_, Vec<u8>, Option<Slice>>> {
        if is_empty(&self.bounds) {
            return None;
        }
        let (lower, upper) = &self.bounds;
        Some(self.writes.range::<[u8], _>((borrowed(lower), borrowed(upper))))
    }
}

impl Iterator for OwnRange {
    type Item = (Vec<u8>, Option<Slice>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.rest()?.next()?;
        let item = (key.clone(), value.clone());
        // Bounds and no borrowed iterator: the range owns what it walks, and its transaction stays
        // free to write.
        self.bounds.0 = Bound::Excluded(item.0.clone());
        Some(item)
    }
}

impl DoubleEndedIterator for OwnRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        let (key, value) = self.rest()?.next_back()?;
        let item = (key.clone(), value.clone());
        self.bounds.1 = Bound::Excluded(item.0.clone());
        Some(item)
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Returns `true` if no key can lie within the bounds: a map panics for some of those.
fn is_empty((lower, upper): &Bounds) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(first), Bound::Included(last)) => first > last,
        (Bound::Included(first) | Bound::Excluded(first), Bound::Excluded(end))
        | (Bound::Excluded(first), Bound::Included(end)) => first >= end,
    }
}
