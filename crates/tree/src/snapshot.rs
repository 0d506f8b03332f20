//! The list of snapshots that compactions must respect.
//!
//! A snapshot is a sequence number. It is loaded and registered under the lock under which jobs
//! read the list, so a job can never miss one that a reader already holds.
//!
//! A job whose filters decide (remove, replace) goes further than the survival rules: it changes
//! the version that is visible now. Snapshots registered before it are respected by the rules;
//! one that is taken while it runs keeps the view that the partition had, for its life. A dropped
//! partition's last view is kept here for the snapshots before the drop.
//!
//! Invariant: the list that a job gets always contains the visible sequence at its start; else it
//! would drop what a snapshot taken a moment later must see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use parking_lot::Mutex;

use crate::partition::{PartitionState, ReadView};
use crate::types::{PartitionId, Process, SeqNo};

#[derive(Default)]
struct Registered {
    /// A record of each sequence number that a living snapshot has; nothing of released ones.
    held: BTreeMap<SeqNo, HeldSeq>,
    /// Partitions with deciding jobs under way, and how many.
    deciding: BTreeMap<PartitionId, (Arc<PartitionState>, usize)>,
    /// The number of snapshots that were ever taken. It shows which of them came before a drop. Sequence
    /// numbers do not show that: there may be no write between a drop and the next snapshot.
    taken: u64,
    /// Of each living snapshot, the number of those that were taken before it.
    orders: BTreeSet<u64>,
    /// The last views of dropped partitions that a living snapshot was taken before, by the number of snapshots that
    /// were. Those that no one reads any more are the first.
    retired: BTreeMap<(u64, PartitionId), Arc<ReadView>>,
}

/// A sequence number that snapshots have.
struct HeldSeq {
    /// The number of those snapshots.
    count: usize,
    /// The time at which the first of them was taken.
    since: Duration,
}

/// All registered snapshots of a database. Taking and releasing one costs a search among the
/// others, however many there are.
pub struct Snapshots {
    /// No other one takes the lock.
    process: Process,
    state: Mutex<Registered>,
}

impl Default for Snapshots {
    fn default() -> Snapshots {
        Snapshots { process: Process::current(), state: Mutex::default() }
    }
}

impl Snapshots {
    /// Registers the sequence number that `visible` loads, until the result is dropped. `now` is
    /// asked for the time if no snapshot has that number yet.
    pub fn register(
        self: &Arc<Self>,
        visible: impl FnOnce() -> SeqNo,
        now: impl FnOnce() -> Duration,
    ) -> RegisteredSnapshot {
        if !self.process.is_current() {
            // Every read of it is refused.
            let list = self.clone();
            return RegisteredSnapshot {
                seq: SeqNo::ZERO,
                unix_time: None,
                order: 0,
                pinned: BTreeMap::new(),
                list,
            };
        }
        let mut state = self.state.lock();
        // Under the lock: between a load before it and the entry in the list, a job could drop what
        // the snapshot sees.
        let seq = visible();
        state.held.entry(seq).or_insert_with(|| HeldSeq { count: 0, since: now() }).count += 1;
        // A deciding filter may remove the version that is visible now. A snapshot that is taken
        // meanwhile keeps the view from before the job.
        let pinned = state.deciding.iter().map(|(id, (partition, _))| (*id, partition.pin()));
        let pinned = pinned.collect();
        let order = state.taken;
        state.taken += 1;
        state.orders.insert(order);
        RegisteredSnapshot { seq, unix_time: None, order, pinned, list: self.clone() }
    }

    /// Returns what a job starting now must respect.
    pub fn for_job(&self, visible: impl FnOnce() -> SeqNo) -> JobSnapshots {
        self.state.lock().for_job(visible())
    }

    /// As [`Snapshots::for_job`], for a job over `partition` whose filters decide: until the
    /// result is dropped, new snapshots keep the partition's view.
    pub fn for_deciding_job(
        self: &Arc<Self>,
        partition: &Arc<PartitionState>,
        visible: impl FnOnce() -> SeqNo,
    ) -> (JobSnapshots, DecidingJob) {
        let mut state = self.state.lock();
        let visible = visible();
        let running = state.deciding.entry(partition.id);
        // In the same step as the list is read: a snapshot is in the list, or it keeps the view.
        running.or_insert_with(|| (partition.clone(), 0)).1 += 1;
        let job = DecidingJob { partition: partition.id, list: self.clone() };
        (state.for_job(visible), job)
    }

    /// Returns the oldest sequence number that a snapshot has or may yet get: `visible` loads the
    /// one that the next snapshot gets at least.
    pub fn oldest(&self, visible: impl FnOnce() -> SeqNo) -> SeqNo {
        let state = self.state.lock();
        let visible = visible();
        // The next snapshot gets the visible number or a later one.
        state.held.first_key_value().map_or(visible, |(oldest, _)| visible.min(*oldest))
    }

    /// Returns the sequence number of the oldest snapshot, if there is one.
    pub fn oldest_held(&self) -> Option<SeqNo> {
        if !self.process.is_current() {
            return None;
        }
        self.state.lock().held.first_key_value().map(|(oldest, _)| *oldest)
    }

    /// Returns the time at which the oldest snapshot was taken, if there is one.
    pub fn oldest_since(&self) -> Option<Duration> {
        self.state.lock().held.first_key_value().map(|(_, held)| held.since)
    }

    /// Marks a partition as dropped: its handles release its memtables and tables. These live as long as an
    /// earlier snapshot, or an existing iterator, may read them. Under the commit path's lock.
    pub fn retire(&self, partition: &PartitionState) {
        let mut state = self.state.lock();
        // Without a snapshot no one can ask for the view again, and its memory is free at once.
        if !state.orders.is_empty() {
            // The view of now, with all that the partition ever had: its snapshots see no later
            // one.
            let key = (state.taken, partition.id);
            state.retired.insert(key, partition.pin());
        }
        // Under this lock, so that every snapshot comes before the drop or after it.
        partition.mark_dropped(state.taken);
        drop(state);
        // After the lock is released: the drop frees memory, and a snapshot that is taken now sees the mark.
        partition.release_data();
    }

    /// Returns the number of different sequence numbers that are registered.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.state.lock().held.len()
    }
}

impl Registered {
    /// Notes that a snapshot is released that `order` others were taken before; takes out the views
    /// that no snapshot reads any more.
    fn release(&mut self, order: u64) -> Vec<Arc<ReadView>> {
        self.orders.remove(&order);
        let oldest = self.orders.first().copied().unwrap_or(u64::MAX);
        let mut unread = Vec::new();
        while let Some(first) = self.retired.first_entry().filter(|it| it.key().0 <= oldest) {
            unread.push(first.remove());
        }
        unread
    }

    fn for_job(&self, visible: SeqNo) -> JobSnapshots {
        let registered: Vec<SeqNo> = self.held.keys().copied().collect();
        let mut respected = registered.clone();
        if let Err(at) = respected.binary_search(&visible) {
            respected.insert(at, visible);
        }
        JobSnapshots { registered, respected }
    }
}

/// Sequence numbers that a job respects, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSnapshots {
    /// The registered snapshots: deciding filters respect them.
    pub registered: Vec<SeqNo>,
    /// The registered ones and the visible sequence: the survival rules respect all of them.
    pub respected: Vec<SeqNo>,
}

/// A deciding job under way; dropped, it is over.
pub struct DecidingJob {
    partition: PartitionId,
    list: Arc<Snapshots>,
}

impl Drop for DecidingJob {
    fn drop(&mut self) {
        let mut state = self.list.state.lock();
        let running = state.deciding.get_mut(&self.partition).expect("it was entered");
        running.1 -= 1;
        if running.1 == 0 {
            state.deciding.remove(&self.partition);
        }
    }
}

/// A registered sequence number; dropped, it is released.
pub struct RegisteredSnapshot {
    seq: SeqNo,
    /// The time by which entries have expired for it; `None` if no partition had a rule for its readers.
    unix_time: Option<Duration>,
    /// The number of snapshots that were taken before it.
    order: u64,
    /// Views that deciding jobs were about to replace.
    pinned: BTreeMap<PartitionId, Arc<ReadView>>,
    list: Arc<Snapshots>,
}

impl RegisteredSnapshot {
    /// The sequence number.
    pub fn seq(&self) -> SeqNo {
        self.seq
    }

    /// The same, at a time that was looked at after the registration: what jobs removed before had expired by it.
    #[must_use]
    pub fn at(mut self, unix_time: Option<Duration>) -> RegisteredSnapshot {
        self.unix_time = unix_time;
        self
    }

    /// The time since 1970 by which entries have expired for it.
    pub fn unix_time(&self) -> Option<Duration> {
        self.unix_time
    }

    /// The number of snapshots that were taken before it.
    pub fn order(&self) -> u64 {
        self.order
    }

    /// The view to read a partition through; `None` if it was dropped before.
    pub fn view_of(&self, partition: &PartitionState) -> Option<Guard<Arc<ReadView>>> {
        if let Some(view) = self.pinned.get(&partition.id) {
            return Some(Guard::from_inner(view.clone()));
        }
        // The view first: a drop marks the partition before it takes the view away.
        let view = partition.view();
        let Some(taken_before) = partition.dropped_after() else { return Some(view) };
        let state = self.list.state.lock();
        let retired = state.retired.get(&(taken_before, partition.id)).cloned();
        retired.filter(|_| self.order < taken_before).map(Guard::from_inner)
    }
}

impl Drop for RegisteredSnapshot {
    fn drop(&mut self) {
        if !self.list.process.is_current() {
            return;
        }
        let mut state = self.list.state.lock();
        let held = state.held.get_mut(&self.seq).expect("it was registered");
        held.count -= 1;
        if held.count == 0 {
            state.held.remove(&self.seq);
        }
        let unread = state.release(self.order);
        // Freeing memtables takes its time: not under the lock.
        drop(state);
        drop(unread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::drawing::draw;
    use crate::hooks::PartitionHooks;
    use crate::version::PartitionVersion;

    fn seq(n: u64) -> SeqNo {
        SeqNo::new(n).unwrap()
    }

    /// The sequence numbers that a job starting at `visible` respects.
    fn respected(list: &Snapshots, visible: u64) -> Vec<SeqNo> {
        list.for_job(|| seq(visible)).respected
    }

    #[test]
    fn a_job_respects_what_is_registered_and_what_is_visible() {
        let list = Arc::new(Snapshots::default());
        let a = list.register(|| seq(3), || Duration::from_secs(1));
        let b = list.register(|| seq(3), || Duration::from_secs(2));
        let c = list.register(|| seq(7), || Duration::from_secs(3));
        assert_eq!(respected(&list, 9), [seq(3), seq(7), seq(9)]);
        assert_eq!(respected(&list, 7), [seq(3), seq(7)]);
        assert_eq!(list.for_job(|| seq(9)).registered, [seq(3), seq(7)]);
        drop((a, c));
        assert_eq!(respected(&list, 9), [seq(3), seq(9)]);
        assert_eq!(b.seq(), seq(3));
        drop(b);
        assert_eq!(list.count(), 0);
        assert_eq!(respected(&list, 9), [seq(9)]);
    }

    /// The release of any snapshot walked over all of them.
    #[test]
    fn the_view_of_a_dropped_partition_goes_with_the_last_snapshot_from_before() {
        let list = Arc::new(Snapshots::default());
        let partitions = [1, 2].map(|id| {
            let version = PartitionVersion { id: PartitionId(id), ..draw("L6: 1:a-b") };
            PartitionState::alone(version, PartitionHooks::default())
        });
        let first = list.register(|| seq(1), || Duration::ZERO);
        list.retire(&partitions[0]);
        let second = list.register(|| seq(1), || Duration::ZERO);
        list.retire(&partitions[1]);
        let view = first.view_of(&partitions[0]).expect("it was taken before");
        assert_eq!(view.version.levels[6].tables().len(), 1);
        drop(view);
        assert!(second.view_of(&partitions[0]).is_none());
        drop(list.register(|| seq(1), || Duration::ZERO));
        assert_eq!(list.state.lock().retired.len(), 2);
        drop(first);
        assert_eq!(list.state.lock().retired.len(), 1);
        assert!(second.view_of(&partitions[1]).is_some());
        drop(second);
        assert!(list.state.lock().retired.is_empty());
    }

    /// An earlier form kept the times apart from the list, and released none after that of the oldest
    /// snapshot: while one was held, each later one left an entry.
    #[test]
    fn released_snapshots_leave_nothing_while_an_older_one_is_held() {
        let list = Arc::new(Snapshots::default());
        let oldest = list.register(|| seq(1), || Duration::from_secs(1));
        for n in 2..1000 {
            drop(list.register(|| seq(n), || Duration::from_secs(n)));
            assert_eq!(list.count(), 1);
            assert_eq!(list.oldest(|| seq(n)), seq(1));
            assert_eq!(list.oldest_since(), Some(Duration::from_secs(1)));
        }
        let newest = list.register(|| seq(1000), || Duration::from_secs(7));
        drop(oldest);
        assert_eq!(list.oldest(|| seq(1001)), seq(1000));
        assert_eq!(list.oldest_since(), Some(Duration::from_secs(7)));
        drop(newest);
        assert_eq!(list.oldest(|| seq(1001)), seq(1001));
        assert_eq!(list.oldest_since(), None);
    }
}
