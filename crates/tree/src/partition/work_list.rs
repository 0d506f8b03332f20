//! [`WorkList`]: the partitions that have work, so that no thread has to look at all partitions to
//! find it.
//!
//! There is one for each database. Every partition notes the content of its view whenever that
//! changes. The commit path asks which memtable to seal, flushes ask which to flush, compactions
//! ask which to compact, and the log asks which of its frames are only in memory.
//!
//! Invariants:
//! 1. A partition is noted under the lock that guards its view, so the last note is that of the
//!    present view.
//! 2. A memtable is noted before its first entry is visible. So if the list names nothing below a
//!    place in the log, no memtable had an entry below it when that place was applied.
//! 3. The cost of a note is the logarithm of the number of partitions: with 65,536 it is about that
//!    with one.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::ReadView;
use crate::types::{MemtableId, PartitionId};

/// The partitions that have work.
#[derive(Default)]
pub struct WorkList {
    state: Mutex<WorkState>,
    /// `true` once a partition had a rule by which readers do not see expired entries: a snapshot notes its time then.
    /// Relaxed, because a snapshot that is taken while the rule comes sees everything.
    had_expiry: AtomicBool,
}

#[derive(Default)]
struct WorkState {
    held: HashMap<PartitionId, NotedMemory>,
    /// Active memtables that have entries, by [`size_class`].
    by_size: BTreeSet<(u32, PartitionId)>,
    /// The first place in the log of each active memtable.
    active_pins: BTreeSet<(u64, PartitionId)>,
    /// The same of sealed ones.
    sealed_pins: BTreeSet<(u64, PartitionId, MemtableId)>,
    /// Bytes of the sealed memtables of a partition, if it has some.
    by_sealed: BTreeSet<(u64, PartitionId)>,
    /// Partitions whose tables or hooks changed since the last call of `take_changed`.
    changed: BTreeSet<PartitionId>,
    /// Partitions that have a value store.
    stores: BTreeSet<PartitionId>,
}

/// The memory of a partition, as it is noted.
#[derive(Default)]
struct NotedMemory {
    is_logged: bool,
    size: Option<u32>,
    pin: Option<u64>,
    sealed: Vec<(Option<u64>, MemtableId)>,
    sealed_bytes: u64,
}

impl NotedMemory {
    fn of(view: &ReadView, is_logged: bool) -> NotedMemory {
        let sealed = view.sealed.iter().map(|memtable| (memtable.first_lsn(), memtable.id));
        NotedMemory {
            is_logged,
            // The class and not the bytes: a note of exact sizes would be out of date after the
            // next insert.
            size: (!view.active.is_empty()).then(|| size_class(view.active.bytes())),
            pin: view.active.first_lsn(),
            sealed: sealed.collect(),
            sealed_bytes: view.sealed.iter().map(|memtable| memtable.bytes()).sum(),
        }
    }

    fn is_nothing(&self) -> bool {
        self.size.is_none() && self.sealed.is_empty()
    }
}

/// The size classes of memtables: powers of two. A memtable that grows is noted a few times in its
/// life and not at every write.
pub fn size_class(bytes: u64) -> u32 {
    u64::BITS - bytes.leading_zeros()
}

impl WorkState {
    fn forget(&mut self, id: PartitionId) {
        let Some(held) = self.held.remove(&id) else { return };
        if let Some(size) = held.size {
            self.by_size.remove(&(size, id));
        }
        if let Some(pin) = held.pin {
            self.active_pins.remove(&(pin, id));
        }
        for (pin, memtable) in held.sealed {
            if let Some(pin) = pin {
                self.sealed_pins.remove(&(pin, id, memtable));
            }
            // All memtables of a partition share one entry, so all but the first removal find
            // nothing.
            self.by_sealed.remove(&(held.sealed_bytes, id));
        }
    }

    fn note(&mut self, id: PartitionId, held: NotedMemory) {
        // Replaced as a whole. Changes are rare, and the difference of two notes is easy to get
        // wrong.
        self.forget(id);
        if held.is_nothing() {
            return;
        }
        if let Some(size) = held.size {
            self.by_size.insert((size, id));
        }
        if let Some(pin) = held.pin {
            self.active_pins.insert((pin, id));
        }
        for (pin, memtable) in &held.sealed {
            if let Some(pin) = pin {
                self.sealed_pins.insert((*pin, id, *memtable));
            }
            self.by_sealed.insert((held.sealed_bytes, id));
        }
        self.held.insert(id, held);
    }
}

impl WorkList {
    /// Notes what a partition holds in memory.
    pub(super) fn note(&self, id: PartitionId, view: &ReadView, is_logged: bool) {
        self.state.lock().note(id, NotedMemory::of(view, is_logged));
    }

    /// Notes that a partition has other tables or hooks than before.
    pub(super) fn note_changed(&self, id: PartitionId) {
        self.state.lock().changed.insert(id);
    }

    /// Notes that a partition has a rule by which readers do not see expired entries.
    pub(super) fn note_expiry(&self) {
        self.had_expiry.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a partition has or had such a rule.
    pub fn has_expiry(&self) -> bool {
        self.had_expiry.load(Ordering::Relaxed)
    }

    /// Notes that a partition has a value store.
    pub(super) fn note_store(&self, id: PartitionId) {
        self.state.lock().stores.insert(id);
    }

    /// Forgets a partition that was dropped.
    pub(super) fn forget(&self, id: PartitionId) {
        let mut noted = self.state.lock();
        noted.forget(id);
        noted.changed.remove(&id);
        noted.stores.remove(&id);
    }

    /// The partition with the largest active memtable, or with one of more than half its size.
    pub fn largest_active(&self) -> Option<PartitionId> {
        self.state.lock().by_size.last().map(|(_, id)| *id)
    }

    /// The partitions whose active memtable has an entry that lies before `place` in the log.
    pub fn active_before(&self, place: u64) -> Vec<PartitionId> {
        let noted = self.state.lock();
        // Partition 0 is the smallest id, so a pin at `place` itself is not among them.
        noted.active_pins.range(..(place, PartitionId(0))).map(|(_, id)| *id).collect()
    }

    /// The first place in the log that a memtable needs. The memtables of one partition through the
    /// given one are excluded: a flush is about to write them to tables.
    pub fn first_pin(&self, flushing: Option<(PartitionId, MemtableId)>) -> Option<u64> {
        let noted = self.state.lock();
        let active = noted.active_pins.first().map(|(pin, _)| *pin);
        // At most the memtables of one partition are passed over, so this is no walk over all.
        let mut sealed = noted.sealed_pins.iter().filter(|(_, id, memtable)| {
            !flushing.is_some_and(|(flushed, through)| *id == flushed && *memtable <= through)
        });
        let sealed = sealed.next().map(|(pin, ..)| *pin);
        [active, sealed].into_iter().flatten().min()
    }

    /// The partition with the most sealed memory of those that `wanted` accepts, by id and whether
    /// the log has it; `None` if none of these has any.
    ///
    /// # Cost
    /// One step for each that is not accepted.
    pub fn most_sealed(&self, wanted: impl Fn(PartitionId, bool) -> bool) -> Option<PartitionId> {
        let noted = self.state.lock();
        let mut ids = noted.by_sealed.iter().rev().map(|(_, id)| *id);
        ids.find(|id| wanted(*id, noted.held.get(id).is_some_and(|held| held.is_logged)))
    }

    /// Returns `true` if a memtable waits for its flush.
    pub fn has_sealed(&self) -> bool {
        !self.state.lock().by_sealed.is_empty()
    }

    /// Takes the partitions whose tables or hooks changed since the last call.
    pub fn take_changed(&self) -> BTreeSet<PartitionId> {
        std::mem::take(&mut self.state.lock().changed)
    }

    /// The partitions that have a value store.
    pub fn stores(&self) -> Vec<PartitionId> {
        self.state.lock().stores.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> PartitionId {
        PartitionId(n)
    }

    fn active(bytes: u64, pin: u64) -> NotedMemory {
        NotedMemory {
            is_logged: true,
            size: Some(size_class(bytes)),
            pin: Some(pin),
            ..NotedMemory::default()
        }
    }

    fn sealed(bytes: u64, pins: &[(u64, u64)], is_logged: bool) -> NotedMemory {
        let sealed = pins.iter().map(|(pin, memtable)| (Some(*pin), MemtableId(*memtable)));
        NotedMemory {
            is_logged,
            sealed: sealed.collect(),
            sealed_bytes: bytes,
            ..NotedMemory::default()
        }
    }

    #[test]
    fn the_largest_active_memtable_is_found_within_a_factor_of_two() {
        let list = WorkList::default();
        assert_eq!(list.largest_active(), None);
        list.state.lock().note(id(1), active(1000, 5));
        list.state.lock().note(id(2), active(5000, 7));
        list.state.lock().note(id(3), active(10, 1));
        assert_eq!(list.largest_active(), Some(id(2)));
        list.state.lock().note(id(2), NotedMemory::default());
        assert_eq!(list.largest_active(), Some(id(1)));
    }

    #[test]
    fn the_first_pin_is_that_of_what_is_not_being_flushed() {
        let list = WorkList::default();
        assert_eq!(list.first_pin(None), None);
        list.state.lock().note(id(1), sealed(10, &[(30, 3), (20, 2), (10, 1)], true));
        list.state.lock().note(id(2), active(1, 25));
        assert_eq!(list.first_pin(None), Some(10));
        assert_eq!(list.first_pin(Some((id(1), MemtableId(1)))), Some(20));
        assert_eq!(list.first_pin(Some((id(1), MemtableId(3)))), Some(25));
        assert_eq!(list.first_pin(Some((id(2), MemtableId(9)))), Some(10));
        assert_eq!(list.active_before(25), []);
        assert_eq!(list.active_before(26), [id(2)]);
        list.forget(id(1));
        list.forget(id(2));
        assert_eq!(list.first_pin(None), None);
    }

    #[test]
    fn the_most_sealed_memory_is_found_among_those_that_are_wanted() {
        let list = WorkList::default();
        list.state.lock().note(id(1), sealed(10, &[(1, 1)], true));
        list.state.lock().note(id(2), sealed(30, &[(2, 1)], true));
        list.state.lock().note(id(3), sealed(20, &[(3, 1)], false));
        assert_eq!(list.most_sealed(|_, _| true), Some(id(2)));
        assert_eq!(list.most_sealed(|found, _| found != id(2)), Some(id(3)));
        assert_eq!(list.most_sealed(|found, is_logged| is_logged && found != id(2)), Some(id(1)));
        assert!(list.has_sealed());
        (1..4).for_each(|n| list.state.lock().note(id(n), NotedMemory::default()));
        assert!(!list.has_sealed() && list.state.lock().held.is_empty());
    }

    #[test]
    fn what_changed_is_reported_once() {
        let list = WorkList::default();
        list.note_changed(id(4));
        list.note_changed(id(4));
        assert_eq!(list.take_changed(), BTreeSet::from([id(4)]));
        assert_eq!(list.take_changed(), BTreeSet::new());
    }
}
