//! The reads of a transaction, to be validated when it is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::db::require::{Requirement, Subject};
use crate::partition::PartitionState;
use crate::read::{Bounds, RangeEnd, stored_bounds};
use crate::types::{KeyForm, PartitionId, SeqNo};

/// The reads of a transaction. Under a lock, so that reading needs no `&mut`, and a range no
/// borrow.
#[derive(Default)]
pub(super) struct Reads(Mutex<BTreeMap<PartitionId, PartitionReads>>);

struct PartitionReads {
    partition: Arc<PartitionState>,
    /// Stored keys.
    keys: BTreeSet<Vec<u8>>,
    /// Stored keys that were locked, and the numbers through which their reads saw everything.
    locked: BTreeMap<Vec<u8>, SeqNo>,
    scans: Vec<Scan>,
}

/// A range, and the part that was read from each end.
struct Scan {
    bounds: Bounds,
    front: Option<Vec<u8>>,
    back: Option<Vec<u8>>,
    is_finished: bool,
}

/// A range that is being read.
pub(super) struct ScanMark {
    reads: Arc<Reads>,
    partition: PartitionId,
    index: usize,
}

impl Reads {
    /// Notes that `key` was looked up. Returns `true` if it is locked: then it is read now, and not in the snapshot, which
    /// may be older than the lock, and the requirement of the lock is the one of this read as well.
    pub(super) fn note_key(&self, partition: &Arc<PartitionState>, key: &[u8]) -> bool {
        // By stored keys, as the requirements are checked: memtables and tables know no other form.
        let stored = partition.key_form.stored(key.to_vec());
        let mut partitions = self.0.lock();
        let reads = reads_of(&mut partitions, partition);
        let is_locked = reads.locked.contains_key(&stored);
        if !is_locked {
            reads.keys.insert(stored);
        }
        is_locked
    }

    /// Notes that `stored`, a stored key, is locked, and is read at or after `seq`.
    pub(super) fn note_locked(&self, partition: &Arc<PartitionState>, stored: Vec<u8>, seq: SeqNo) {
        let mut partitions = self.0.lock();
        // Of several reads the first counts: what it returned may have been used.
        reads_of(&mut partitions, partition).locked.entry(stored).or_insert(seq);
    }

    /// Returns `true` if a locked key was read, and not only the snapshot.
    pub(super) fn has_locked(&self) -> bool {
        self.0.lock().values().any(|reads| !reads.locked.is_empty())
    }

    /// Notes a range without any reads yet.
    pub(super) fn begin_scan(
        reads: &Arc<Reads>,
        partition: &Arc<PartitionState>,
        bounds: &Bounds,
    ) -> ScanMark {
        let mut partitions = reads.0.lock();
        let scans = &mut reads_of(&mut partitions, partition).scans;
        let bounds = stored_bounds(partition.key_form, bounds.clone());
        scans.push(Scan { bounds, front: None, back: None, is_finished: false });
        ScanMark { reads: reads.clone(), partition: partition.id, index: scans.len() - 1 }
    }

    /// The requirements that nothing has changed since the snapshot `at`, and no locked key since its read.
    pub(super) fn requirements(&self, at: SeqNo) -> Vec<Requirement> {
        let mut requirements = Vec::new();
        for reads in self.0.lock().values() {
            let keys = reads.keys.iter().map(|key| (Subject::key(key.clone()), at));
            let locked = reads.locked.iter().map(|(key, seq)| (Subject::key(key.clone()), *seq));
            let ranges = reads.scans.iter().flat_map(Scan::seen);
            let ranges = ranges.map(|range| (Subject::Range(range), at));
            let all = keys.chain(locked).chain(ranges);
            requirements.extend(all.map(|(subject, at_most)| Requirement {
                partition: reads.partition.clone(),
                subject,
                at_most,
                // The snapshot is not newer than any of them.
                is_held: true,
            }));
        }
        requirements
    }
}

fn reads_of<'a>(
    partitions: &'a mut BTreeMap<PartitionId, PartitionReads>,
    partition: &Arc<PartitionState>,
) -> &'a mut PartitionReads {
    partitions.entry(partition.id).or_insert_with(|| PartitionReads {
        partition: partition.clone(),
        keys: BTreeSet::new(),
        locked: BTreeMap::new(),
        scans: Vec::new(),
    })
}

impl Scan {
    /// The parts of the range whose content was read.
    fn seen(&self) -> Vec<Bounds> {
        // All of the range is one requirement then, including the parts without a key.
        if self.is_finished {
            return vec![self.bounds.clone()];
        }
        let (lower, upper) = &self.bounds;
        // From each end up to a key. The part between the two was not read and may change.
        let front = self.front.iter().map(|key| (lower.clone(), Bound::Included(key.clone())));
        let back = self.back.iter().map(|key| (Bound::Included(key.clone()), upper.clone()));
        front.chain(back).collect()
    }
}

impl ScanMark {
    /// Notes that `key` was read, and that nothing else lies between `end` and it.
    pub(super) fn reach(&self, end: RangeEnd, key: &[u8]) {
        self.change(|scan, form| {
            let reached = match end {
                RangeEnd::Front => scan.front.get_or_insert_default(),
                RangeEnd::Back => scan.back.get_or_insert_default(),
            };
            // The buffer is used again: an iterator calls this at every step.
            reached.clear();
            form.with_stored(key, |key| reached.extend_from_slice(key));
        });
    }

    /// Notes that the whole range is read.
    pub(super) fn finish(&self) {
        self.change(|scan, _| scan.is_finished = true);
    }

    fn change(&self, change: impl FnOnce(&mut Scan, KeyForm)) {
        let mut partitions = self.reads.0.lock();
        let reads = partitions.get_mut(&self.partition).expect("the scan was noted in it");
        change(&mut reads.scans[self.index], reads.partition.key_form);
    }
}
