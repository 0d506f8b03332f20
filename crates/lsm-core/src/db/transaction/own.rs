//! The own writes of a transaction.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::db::Partition;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::PendingHandle;
use crate::partition::PartitionState;
use crate::read::Bounds;
use crate::types::{DeletedRange, DeletedRanges, PartitionId, SeqNo, Slice};

/// The own writes to each partition.
pub(super) type OwnPartitions = BTreeMap<PartitionId, (Partition, Arc<OwnWrites>)>;

/// The own state of a key.
#[derive(Clone)]
pub(super) enum OwnWrite {
    /// It has this value.
    Put(Slice),
    /// It is deleted.
    Delete,
    /// This operand is merged into its stored value.
    Merge(Slice),
    /// It has this value, which is in the value store of the partition already.
    Apart(Arc<OwnPending>),
}

impl OwnWrite {
    /// The value that the key has by this write alone.
    ///
    /// # Errors
    /// Those of the value store.
    pub(super) fn value(
        &self,
        partition: &Arc<PartitionState>,
        key: &[u8],
    ) -> Result<Option<Slice>> {
        match self {
            OwnWrite::Put(value) | OwnWrite::Merge(value) => Ok(Some(value.clone())),
            OwnWrite::Delete => Ok(None),
            OwnWrite::Apart(pending) => pending.read(partition, key).map(Some),
        }
    }
}

/// A value that is in its store. Ranges and savepoints share it with the own writes. The value is discarded if the last
/// of them is dropped before a commit, or if the commit is refused.
pub(super) struct OwnPending {
    handle: Vec<u8>,
    /// Until the commit takes it.
    pending: Mutex<Option<PendingHandle>>,
}

impl OwnPending {
    pub(super) fn new(pending: PendingHandle) -> OwnPending {
        OwnPending { handle: pending.bytes().to_vec(), pending: Mutex::new(Some(pending)) }
    }

    /// The pending value, which the commit takes.
    pub(super) fn take(&self) -> Option<PendingHandle> {
        self.pending.lock().take()
    }

    pub(super) fn handle(&self) -> Slice {
        Slice::copy_from(&self.handle)
    }

    fn read(&self, partition: &Arc<PartitionState>, key: &[u8]) -> Result<Slice> {
        let store = partition.store().expect("only its store made the handle");
        let read = store.read(&self.handle).map_err(|error| {
            // No snapshot keeps the value once a commit has taken it, and no file is damaged if it goes.
            if error.is_corruption() && self.pending.lock().is_none() {
                let message =
                    "the streamed value may be gone: its transaction has ended; read the key again";
                return Error::because(ErrorKind::FileGone, message, error);
            }
            error
        });
        Ok(read.map_err(|error| error.at_key(key).in_partition(&partition.name))?.into())
    }
}

/// The own writes to a partition.
#[derive(Clone, Default)]
pub(super) struct OwnWrites {
    /// The sum of the operations on each key. All are newer than the deletions of ranges over their keys.
    pub(super) entries: BTreeMap<Vec<u8>, OwnWrite>,
    /// The deleted ranges, of keys as they were given.
    erased: DeletedRanges,
}

/// A number for own deletions of ranges: their order does not matter.
const OWN: SeqNo = SeqNo::MAX;
/// The state of a key in a deleted range.
const DELETED: &OwnWrite = &OwnWrite::Delete;

impl OwnWrites {
    /// The own state of a key; `None` if it was not written.
    pub(super) fn get(&self, key: &[u8]) -> Option<&OwnWrite> {
        self.entries.get(key).or_else(|| self.erases(key).then_some(DELETED))
    }

    /// Returns `true` if nothing was written.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.erased.is_empty()
    }

    /// Returns `true` if a deleted range holds the key.
    pub(super) fn erases(&self, key: &[u8]) -> bool {
        !self.erased.is_empty() && self.erased.at(key, OWN) == OWN
    }

    /// The deletion of the keys within `bounds`; `None` if no key can lie in them.
    pub(super) fn span_of(bounds: &Bounds) -> Option<DeletedRange> {
        DeletedRange::within(bounds, OWN)
    }

    /// Deletes the keys of a span.
    pub(super) fn erase(&mut self, span: DeletedRange) {
        self.entries.retain(|key, _| !span.contains(key));
        self.erased = self.erased.and(&DeletedRanges::of(&[span]));
    }

    /// The deleted ranges.
    pub(super) fn erased(&self) -> impl Iterator<Item = Bounds> + use<> {
        self.erased.list().into_iter().map(|DeletedRange { start, end, .. }| {
            let upper = end.map_or(Bound::Unbounded, |end| Bound::Excluded(end.to_vec()));
            // From the empty key on is from the first one of all.
            (Bound::Included(start.to_vec()), upper)
        })
    }
}

/// Own operations within bounds, from either end.
pub(super) struct OwnRange {
    writes: Arc<OwnWrites>,
    /// The part of the range that is left.
    bounds: Bounds,
}

impl OwnRange {
    pub(super) fn new(writes: Arc<OwnWrites>, bounds: Bounds) -> OwnRange {
        OwnRange { writes, bounds }
    }

    pub(super) fn writes(&self) -> &Arc<OwnWrites> {
        &self.writes
    }

    fn rest(&self) -> Option<btree_map::Range<'_, Vec<u8>, OwnWrite>> {
        if is_empty(&self.bounds) {
            return None;
        }
        let (lower, upper) = &self.bounds;
        Some(self.writes.entries.range::<[u8], _>((borrowed(lower), borrowed(upper))))
    }
}

impl Iterator for OwnRange {
    type Item = (Vec<u8>, OwnWrite);

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
