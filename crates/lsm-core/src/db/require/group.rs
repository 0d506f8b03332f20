//! [`GroupWrites`]: the writes of the earlier members of a group, which are in no memtable yet.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::Subject;
use super::seek::is_before_end;
use crate::db::prepared::Prepared;
use crate::types::{DeletedRange, EntryKind, PartitionId, SeqNo};

/// The writes of a group. Filled only if a member of the group has requirements.
#[derive(Default)]
pub(in crate::db) struct GroupWrites<'a> {
    keys: BTreeSet<(PartitionId, &'a [u8])>,
    cleared: BTreeSet<PartitionId>,
    erased: Vec<(PartitionId, DeletedRange)>,
    /// Members of the group that were looked at.
    pub(in crate::db) members: usize,
}

impl<'a> GroupWrites<'a> {
    /// Takes in the operations of a batch.
    pub(in crate::db) fn add(&mut self, batch: &'a Prepared<'_>) {
        for section in batch.sections() {
            for place in section.places.as_slice() {
                let id = section.partition.id;
                let key = &section.bytes[place.key.clone()];
                match place.kind {
                    EntryKind::Clear => drop(self.cleared.insert(id)),
                    EntryKind::DeleteRange => {
                        let end = Some(&section.bytes[place.value.clone()]);
                        let end = end.filter(|end| !end.is_empty()).map(Into::into);
                        self.erased
                            .push((id, DeletedRange { start: key.into(), end, seq: SeqNo::MAX }));
                    }
                    _ => drop(self.keys.insert((id, key))),
                }
            }
        }
    }

    /// Returns `true` if the partition is cleared.
    pub(super) fn clears(&self, partition: PartitionId) -> bool {
        self.cleared.contains(&partition)
    }

    /// Returns `true` if a range with a key of `subject` is deleted in the partition.
    pub(super) fn erases(&self, partition: PartitionId, subject: &Subject) -> bool {
        let mut spans = self.erased.iter().filter(|(id, _)| *id == partition).map(|(_, span)| span);
        spans.any(|span| match subject {
            Subject::Key { key, .. } => span.contains(key),
            Subject::Range((lower, upper)) => {
                let lower = lower.as_ref().map(Vec::as_slice);
                span.meets(lower, upper.as_ref().map(Vec::as_slice))
            }
        })
    }

    /// A key of `subject`, in this partition, that is written.
    pub(super) fn writes_to<'k>(
        &'k self,
        partition: PartitionId,
        subject: &'k Subject,
    ) -> Option<&'k [u8]> {
        let keys: &BTreeSet<(PartitionId, &'k [u8])> = &self.keys;
        let (lower, upper) = match subject {
            Subject::Key { key, .. } => {
                return keys.get(&(partition, &**key)).map(|(_, key)| *key);
            }
            Subject::Range(range) => range,
        };
        let lower = match lower {
            Bound::Included(first) => Bound::Included((partition, &first[..])),
            Bound::Excluded(before) => Bound::Excluded((partition, &before[..])),
            Bound::Unbounded => Bound::Included((partition, &[][..])),
        };
        // The end is compared by hand: the map panics for bounds that cross.
        let (id, key) = keys.range((lower, Bound::Unbounded)).next()?;
        (*id == partition && is_before_end(upper, key)).then_some(*key)
    }
}
