//! [`DeadRanges`]: ranges of a partition in which no reader sees an entry, from walks over tombstones.
//!
//! Shared by the successive memtables of a partition. Cursors look up and add ranges through their
//! view (`read/dead.rs`); the writer of the active memtable removes the keys that it puts values
//! into.
//!
//! Invariants:
//! 1. A reader at `seq` sees no entry in a range with `since <= seq`. The walk that found the range
//!    saw none from `since` to its own sequence number. After that, no value was put into the range
//!    before it was added: the active memtable is searched for one under the writer's lock, the
//!    view's memtable still is the active one, and its epoch the present one. And each later value
//!    cuts the range before it is visible.
//! 2. An epoch ends when entries may become visible that no writer of a memtable inserted: an
//!    ingest, repaired entries, the tables of a follower. It ends together with the previous view:
//!    `partition/mod.rs`.
//! 3. A view may be older than its reader's number: then it shows the partition as it was when its
//!    memtable was sealed, and so do its ranges.
//! 4. Ranges do not touch: those that would are joined, with the newer `since`.
//! 5. A tombstone never cuts a range, and neither does a flush, a compaction or a clear: they only
//!    remove entries.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Memtable;
use crate::iter::DeadRange;
use crate::types::{MemtableId, SeqNo};

/// If there are more ranges, the least recently used are forgotten.
const RANGES_MAX: usize = 1024;
/// Longer keys are not remembered, so that the ranges of a partition take less than 2 MiB.
const KEY_BYTES_MAX: usize = 1024;
/// At most so many newer keys are compared under the writer's lock: twice the keys of a piece of a
/// walk.
const COMPARED_MAX: usize = 512;

/// The other fields of a range, under its start.
struct DeadRest {
    end: Vec<u8>,
    since: SeqNo,
    /// [`DeadState::now`] at its last use.
    used: u64,
}

struct DeadState {
    /// By start.
    ranges: BTreeMap<Vec<u8>, DeadRest>,
    /// The memtable that takes writes.
    active: MemtableId,
    /// See invariant 2.
    epoch: u64,
    is_closed: bool,
    /// Counts the uses.
    now: u64,
    /// [`DeadState::now`] at the last switch of memtables.
    switched: u64,
}

/// The dead ranges of a partition, shared by its successive memtables.
pub struct DeadRanges {
    /// `true` if there is a range. Relaxed: it is set under the lock of the memtable's writer, which the
    /// writer takes before it looks.
    is_used: AtomicBool,
    state: Mutex<DeadState>,
}

impl DeadRanges {
    /// No range; `active` takes writes.
    pub(super) fn new(active: MemtableId) -> DeadRanges {
        let ranges = BTreeMap::new();
        let state = DeadState { ranges, active, epoch: 0, is_closed: false, now: 0, switched: 0 };
        DeadRanges { is_used: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Returns `true` if a put may have to [cut](DeadRanges::cut) a range.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// The present epoch, for a view that is made now.
    pub fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// The range around `user` that a reader at `seq` may skip, in a view of `epoch` whose active
    /// memtable is `memtable`.
    pub(super) fn find(
        &self,
        memtable: &Memtable,
        epoch: u64,
        user: &[u8],
        seq: SeqNo,
    ) -> Option<DeadRange> {
        if !self.is_used() {
            return None;
        }
        let mut state = self.state.lock();
        if state.epoch != epoch {
            return None;
        }
        let is_active = state.active == memtable.id;
        let seq = if is_active { seq } else { seq.min(memtable.last_seq()) };
        state.now += 1;
        let now = state.now;
        let (start, rest) = state.ranges.range_mut::<[u8], _>(up_to(user)).next_back()?;
        if user >= &rest.end[..] || rest.since > seq {
            return None;
        }
        rest.used = now;
        Some(DeadRange { start: start.clone(), end: rest.end.clone(), since: rest.since })
    }

    /// Removes a key, to which a value is put. Called by the writer of the active memtable, before
    /// the value is visible.
    #[cold]
    pub(super) fn cut(&self, user: &[u8]) {
        let mut state = self.state.lock();
        let Some((start, rest)) = state.ranges.range_mut::<[u8], _>(up_to(user)).next_back() else {
            return;
        };
        if user >= &rest.end[..] {
            return;
        }
        let mut after = user.to_vec();
        after.push(0);
        let later = DeadRest { end: std::mem::take(&mut rest.end), ..*rest };
        rest.end.extend_from_slice(user);
        if *start == *user {
            let start = start.clone();
            state.ranges.remove(&start);
        }
        if after < later.end {
            state.ranges.insert(after, later);
        }
        self.is_used.store(!state.ranges.is_empty(), Ordering::Relaxed);
    }

    /// Ends the epoch.
    pub fn forget(&self) {
        let mut state = self.state.lock();
        state.epoch += 1;
        state.ranges.clear();
        self.is_used.store(false, Ordering::Relaxed);
    }

    /// Takes no further range: the memtable is shared by partitions.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Makes `active` the memtable that takes writes. No insertion runs. Ranges that no walk has
    /// used since the last switch are forgotten: as long as there are any, each put looks for its
    /// key among them.
    pub(super) fn switch(&self, active: MemtableId) {
        let mut state = self.state.lock();
        state.active = active;
        let before = state.switched;
        state.ranges.retain(|_, rest| rest.used > before);
        state.switched = state.now;
        self.is_used.store(!state.ranges.is_empty(), Ordering::Relaxed);
    }

    /// Adds a range that a reader at `seq` has walked over in a view of `epoch` whose active
    /// memtable is `memtable`.
    pub(super) fn remember(&self, memtable: &Memtable, epoch: u64, range: &DeadRange, seq: SeqNo) {
        let is_long = range.start.len() > KEY_BYTES_MAX || range.end.len() > KEY_BYTES_MAX;
        // A reader of everything sees values that are not visible yet, and nothing is known about
        // later ones.
        if is_long || range.start >= range.end || seq == SeqNo::MAX {
            return;
        }
        // Without the lock, a value could be put between the comparison and the insertion of the
        // range, and not cut it.
        let writer = memtable.writer();
        let mut state = self.state.lock();
        if state.active != memtable.id
            || state.epoch != epoch
            || state.is_closed
            || !writer.is_older(&range.start, &range.end, seq, COMPARED_MAX)
        {
            return;
        }
        state.add(range);
        self.is_used.store(true, Ordering::Relaxed);
    }
}

impl DeadState {
    fn add(&mut self, range: &DeadRange) {
        self.now += 1;
        let DeadRange { mut start, mut end, mut since } = range.clone();
        // Ranges that begin inside of it or at its end, and the previous one, if it ends inside of
        // it or at its start.
        while let Some((first, rest)) = self.ranges.range::<[u8], _>(up_to(&end)).next_back()
            && rest.end >= start
        {
            let first = first.clone();
            let rest = self.ranges.remove(&first).expect("it was just found");
            start = start.min(first);
            end = end.max(rest.end);
            since = since.max(rest.since);
        }
        self.ranges.insert(start, DeadRest { end, since, used: self.now });
        if self.ranges.len() > RANGES_MAX {
            self.forget_half();
        }
    }

    #[cold]
    fn forget_half(&mut self) {
        let mut uses: Vec<_> = self.ranges.values().map(|rest| rest.used).collect();
        let middle = uses.len() / 2;
        let (_, middle, _) = uses.select_nth_unstable(middle);
        let middle = *middle;
        self.ranges.retain(|_, rest| rest.used > middle);
    }
}

/// Starts that are not after `user`.
fn up_to(user: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, Bound::Included(user))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memtable::SlabPool;
    use crate::memtable::tests::insert;
    use crate::types::EntryKind;

    fn seq(n: u64) -> SeqNo {
        SeqNo::new(n).unwrap()
    }

    fn table() -> Memtable {
        Memtable::new(MemtableId(1), &Arc::new(SlabPool::new(0)))
    }

    fn range(start: &str, end: &str, since: u64) -> DeadRange {
        DeadRange { start: start.into(), end: end.into(), since: seq(since) }
    }

    fn put(table: &Memtable, n: u64, key: &str) {
        insert(table, n, 0, EntryKind::Value, key.as_bytes(), b"value");
    }

    fn delete(table: &Memtable, n: u64, key: &str) {
        insert(table, n, 0, EntryKind::Tombstone, key.as_bytes(), b"");
    }

    /// Checks the ranges that readers at 1000 and at 9 find at each letter.
    #[track_caller]
    fn check(table: &Memtable, expected: &str) {
        let mut found = String::new();
        for letter in 'a'..='i' {
            let user = letter.to_string();
            let here = table.find_dead(0, user.as_bytes(), seq(1000));
            found.push(if here.is_some() { letter } else { '.' });
            if let Some(here) = here {
                assert!(here.start[..] <= *user.as_bytes() && *user.as_bytes() < here.end[..]);
                assert!(here.since >= seq(10));
            }
            assert_eq!(table.find_dead(0, user.as_bytes(), seq(9)), None, "an older reader");
        }
        assert_eq!(found, expected);
        assert_eq!(table.dead().is_used(), found.contains(char::is_alphabetic));
    }

    #[test]
    fn ranges_that_touch_are_one_for_the_readers_of_both() {
        let table = table();
        table.remember_dead(0, &range("b", "d", 10), seq(100));
        check(&table, ".bc......");
        table.remember_dead(0, &range("d", "f", 30), seq(100));
        check(&table, ".bcde....");
        assert_eq!(table.find_dead(0, b"b", seq(29)), None);
        assert_eq!(table.find_dead(0, b"b", seq(30)), Some(range("b", "f", 30)));
        table.remember_dead(0, &range("h", "i", 10), seq(100));
        table.remember_dead(0, &range("a", "c", 10), seq(100));
        check(&table, "abcde..h.");
        table.remember_dead(0, &range("c", "z", 20), seq(100));
        assert_eq!(table.find_dead(0, b"y", seq(40)), Some(range("a", "z", 30)));
    }

    #[test]
    fn a_value_cuts_its_key_out_and_a_tombstone_does_not() {
        let table = table();
        table.remember_dead(0, &range("b", "g", 10), seq(100));
        put(&table, 101, "d");
        check(&table, ".bc.ef...");
        delete(&table, 102, "e");
        put(&table, 103, "b");
        check(&table, "..c.ef...");
        put(&table, 104, "f");
        check(&table, "..c.e....");
        put(&table, 105, "g");
        put(&table, 106, "a");
        check(&table, "..c.e....");
        put(&table, 107, "c");
        put(&table, 108, "e");
        assert!(table.find_dead(0, b"ea", seq(1000)).is_some(), "after the key");
        assert!(table.find_dead(0, b"e", seq(1000)).is_none());
    }

    /// The value was written before the range was added: nothing would cut it any more.
    #[test]
    fn a_range_is_refused_if_a_newer_value_is_in_it() {
        let table = table();
        put(&table, 20, "d");
        table.remember_dead(0, &range("b", "g", 10), seq(19));
        check(&table, ".........");
        table.remember_dead(0, &range("b", "d", 10), seq(19));
        table.remember_dead(0, &range("e", "g", 10), seq(19));
        check(&table, ".bc.ef...");
        // Too many keys to compare under the lock.
        for n in 0..COMPARED_MAX as u64 {
            put(&table, n + 21, &format!("h{n:04}"));
        }
        let after = seq(COMPARED_MAX as u64 + 20);
        table.remember_dead(0, &range("h", "i", 10), after.previous());
        check(&table, ".bc.ef...");
        // Known without a comparison.
        table.remember_dead(0, &range("h", "i", 10), after);
        check(&table, ".bc.ef.h.");
    }

    #[test]
    fn a_reader_of_everything_adds_nothing() {
        let table = table();
        table.remember_dead(0, &range("b", "g", 10), SeqNo::MAX);
        check(&table, ".........");
    }

    #[test]
    fn an_epoch_ends_with_its_views() {
        let table = table();
        table.remember_dead(0, &range("b", "g", 10), seq(100));
        table.dead().forget();
        check(&table, ".........");
        table.remember_dead(0, &range("b", "g", 10), seq(100));
        check(&table, ".........");
        assert_eq!(table.dead().epoch(), 1);
        table.remember_dead(1, &range("b", "g", 10), seq(100));
        assert!(table.find_dead(1, b"c", seq(100)).is_some());
        check_no_view_of(&table, 0);
    }

    #[track_caller]
    fn check_no_view_of(table: &Memtable, epoch: u64) {
        assert_eq!(table.find_dead(epoch, b"c", seq(1000)), None);
    }

    #[test]
    fn a_view_with_a_sealed_memtable_adds_nothing_and_is_as_old_as_that() {
        let old = table();
        put(&old, 50, "x");
        let new = old.successor(MemtableId(2));
        new.begin();
        old.remember_dead(0, &range("b", "g", 10), seq(100));
        check(&new, ".........");
        // Deleted after the seal: the old view still shows it.
        new.remember_dead(0, &range("b", "g", 60), seq(100));
        assert_eq!(old.find_dead(0, b"c", seq(100)), None);
        assert!(new.find_dead(0, b"c", seq(100)).is_some());
        new.remember_dead(0, &range("h", "i", 40), seq(100));
        assert!(old.find_dead(0, b"h", seq(100)).is_some());
    }

    #[test]
    fn ranges_that_no_one_used_go_at_the_second_switch() {
        let first = table();
        put(&first, 5, "x");
        first.remember_dead(0, &range("b", "c", 10), seq(100));
        first.remember_dead(0, &range("e", "f", 10), seq(100));
        let second = first.successor(MemtableId(2));
        second.begin();
        assert!(second.find_dead(0, b"e", seq(100)).is_some());
        let third = second.successor(MemtableId(3));
        third.begin();
        check(&third, "....e....");
    }

    #[test]
    fn the_ranges_that_were_used_longest_ago_make_room() {
        let table = table();
        for n in 0..=RANGES_MAX {
            let start = format!("{n:05}");
            table.remember_dead(0, &range(&start, &format!("{start}a"), 10), seq(100));
            assert!(table.find_dead(0, b"00000", seq(100)).is_some(), "it is in use");
        }
        let state = table.dead().state.lock();
        assert!(state.ranges.len() <= RANGES_MAX / 2 + 1, "{}", state.ranges.len());
        assert!(state.ranges.contains_key(format!("{RANGES_MAX:05}").as_bytes()));
    }

    #[test]
    fn long_keys_and_shared_memtables_have_no_ranges() {
        let table = table();
        let long = "b".repeat(KEY_BYTES_MAX + 1);
        table.remember_dead(0, &range("a", &long, 10), seq(100));
        check(&table, ".........");
        let shared = table.without_dead();
        shared.remember_dead(0, &range("b", "g", 10), seq(100));
        check(&shared, ".........");
    }
}
