//! [`WriteBudget`]: memory for the memtables of many databases.
//!
//! Made by `resources.rs`. Each database has a [`BudgetShare`]. After each group of writes, `sealing.rs` notes there how
//! much memory the active memtables of the database have. When all databases together have too much, the one with most
//! is *asked* to seal its largest memtable: by its next writer, or on its flush thread. No writer waits for that, and
//! none takes a lock of another database.
//!
//! The memtables of secondaries count as well, up to half of the budget: a secondary drops a memtable when its primary has
//! flushed it, and no one can make it drop one earlier. So it never waits, delays no writer, and does not ask any database. The
//! databases are asked earlier by as much, and have half of the budget at least.
//!
//! Sealed memory is noted by `stall.rs`. If all databases together have too much of it, the writers of those are
//! delayed that have some themselves.
//!
//! Invariants:
//! 1. A writer waits for flushes of its own database alone. Another one, whose disk is full, never stops it for good.
//! 2. The sums are those of the open databases: one that closes takes its share out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::background::Background;

/// Memory for the memtables of many databases.
pub(super) struct WriteBudget {
    bytes_max: u64,
    // Relaxed: sums that decide only when memory is freed.
    active: AtomicU64,
    sealed: AtomicU64,
    followed: AtomicU64,
    /// The part of the active memory whose databases were asked to seal it, and did not begin yet.
    asked: AtomicU64,
    shares: Mutex<BTreeMap<u64, Weak<BudgetShare>>>,
}

/// The part of a [`WriteBudget`] that one database uses.
pub(super) struct BudgetShare {
    budget: Arc<WriteBudget>,
    number: u64,
    /// Woken when it is asked.
    background: Arc<Background>,
    // As noted last; the sums of the budget have them.
    active: AtomicU64,
    sealed: AtomicU64,
    /// Not 0 if it is to seal its largest memtable: what it had when it was asked.
    asked: AtomicU64,
    has_left: AtomicBool,
}

/// Replaces `noted` by `bytes`, and the part of it in `sum`. Returns what was noted before.
#[inline]
fn replace(noted: &AtomicU64, sum: &AtomicU64, bytes: u64) -> u64 {
    // A note that comes after that of `BudgetShare::leave` sees that the database has left.
    let before = noted.swap(bytes, Ordering::AcqRel);
    // It wraps if there is less than before.
    sum.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    before
}

impl WriteBudget {
    /// A budget of so many bytes for active memtables.
    pub(super) fn new(bytes_max: u64) -> WriteBudget {
        WriteBudget {
            bytes_max,
            active: AtomicU64::new(0),
            sealed: AtomicU64::new(0),
            followed: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            shares: Mutex::default(),
        }
    }

    /// The most that active memtables should have.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The memory of active memtables, of sealed ones, and of those of secondaries.
    pub(super) fn bytes(&self) -> [u64; 3] {
        [&self.active, &self.sealed, &self.followed].map(|sum| sum.load(Ordering::Relaxed))
    }

    /// Begins to count the memtables of a database.
    pub(super) fn enter(self: &Arc<Self>, background: Arc<Background>) -> Arc<BudgetShare> {
        let mut shares = self.shares.lock();
        let number = shares.last_key_value().map_or(0, |(number, _)| number + 1);
        let share = Arc::new(BudgetShare {
            budget: self.clone(),
            number,
            background,
            active: AtomicU64::new(0),
            sealed: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            has_left: AtomicBool::new(false),
        });
        shares.insert(number, Arc::downgrade(&share));
        share
    }

    /// The memory of active memtables that no database was asked to seal, and of secondaries. What was asked for counts as
    /// freed: a database that is slow to free it is not asked again, nor another one in its place.
    #[inline]
    fn unasked(&self) -> u64 {
        let asked = self.asked.load(Ordering::Relaxed);
        let unasked = self.active.load(Ordering::Relaxed).saturating_sub(asked);
        // More of it would make the databases write tiny tables, and free nothing.
        let followed = self.followed.load(Ordering::Relaxed).min(self.bytes_max / 2);
        unasked.saturating_add(followed)
    }

    /// Asks the databases with most memory, one after the other, until the rest is within the budget.
    fn ask(&self) -> Vec<Arc<BudgetShare>> {
        // Dropped without the lock, which the drop of a share takes.
        let mut all = Vec::new();
        let mut asked = Vec::new();
        // Held to the end: a share that has left is not asked any more.
        let shares = self.shares.lock();
        all.extend(shares.values().filter_map(Weak::upgrade));
        while self.unasked() >= self.bytes_max {
            let others = all.iter().filter(|share| share.asked.load(Ordering::Relaxed) == 0);
            let largest = others.max_by_key(|share| share.active.load(Ordering::Relaxed));
            let Some(largest) = largest else { break };
            let bytes = largest.active.load(Ordering::Relaxed);
            if bytes == 0 {
                break;
            }
            replace(&largest.asked, &self.asked, bytes);
            asked.push(largest.clone());
        }
        asked
    }
}

impl BudgetShare {
    /// Notes the memory of the active memtables of the database, after a group of its writes. Returns `true` if it
    /// is to seal its largest one.
    #[inline]
    pub(super) fn note_active(&self, bytes: u64) -> bool {
        self.set_active(bytes);
        if self.budget.unasked() >= self.budget.bytes_max {
            self.ask_largest();
        }
        self.take_asked()
    }

    /// Notes the memory of the active memtables of the database.
    #[inline]
    pub(super) fn set_active(&self, bytes: u64) {
        self.note(&self.active, &self.budget.active, bytes);
    }

    /// Replaces `noted`, unless the database has left; returns `false` then.
    #[inline]
    fn note(&self, noted: &AtomicU64, sum: &AtomicU64, bytes: u64) -> bool {
        replace(noted, sum, bytes);
        // Looked at afterwards: a database may leave during the note.
        let has_left = self.has_left.load(Ordering::Relaxed);
        if has_left {
            replace(noted, sum, 0);
        }
        !has_left
    }

    #[cold]
    fn ask_largest(&self) {
        for asked in self.budget.ask() {
            // This one looks for itself, under the lock that the sealing needs.
            if asked.number != self.number {
                asked.background.wake_all();
            }
        }
    }

    /// Returns `true` once after the database was asked to seal its largest memtable.
    pub(super) fn take_asked(&self) -> bool {
        // Loaded first: a swap at each group of writes would be an exclusive access to the line.
        self.asked.load(Ordering::Relaxed) > 0 && replace(&self.asked, &self.budget.asked, 0) > 0
    }

    /// Notes the memory of the sealed memtables of the database. Returns that of all databases, if it concerns this
    /// one: if it has some.
    pub(super) fn note_sealed(&self, bytes: u64) -> u64 {
        let is_noted = self.note(&self.sealed, &self.budget.sealed, bytes);
        if is_noted && bytes > 0 { self.budget.sealed.load(Ordering::Relaxed) } else { 0 }
    }

    /// The budget.
    pub(super) fn budget(&self) -> &WriteBudget {
        &self.budget
    }

    /// Ends the count of a database that is closed. Its handles may keep memtables for a while.
    pub(super) fn leave(&self) {
        // Once: another database may have the number by now.
        if self.has_left.swap(true, Ordering::Relaxed) {
            return;
        }
        self.budget.shares.lock().remove(&self.number);
        replace(&self.active, &self.budget.active, 0);
        replace(&self.sealed, &self.budget.sealed, 0);
        replace(&self.asked, &self.budget.asked, 0);
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Memtables of a secondary, in the budget that it shares if it shares one.
#[derive(Default)]
pub(crate) struct FollowedMemory {
    budget: Option<Arc<WriteBudget>>,
    /// As noted last; the sum of the budget has them.
    bytes: AtomicU64,
}

impl FollowedMemory {
    /// No memtables yet.
    pub(super) fn new(budget: Option<Arc<WriteBudget>>) -> FollowedMemory {
        FollowedMemory { budget, bytes: AtomicU64::new(0) }
    }

    /// As [`FollowedMemory::new`], in the same budget.
    pub(crate) fn another(&self) -> FollowedMemory {
        FollowedMemory::new(self.budget.clone())
    }

    /// Notes their memory.
    pub(crate) fn note(&self, bytes: u64) {
        if let Some(budget) = &self.budget {
            replace(&self.bytes, &budget.followed, bytes);
        }
    }
}

impl Drop for FollowedMemory {
    fn drop(&mut self) {
        self.note(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::db::background::BackgroundMode;
    use crate::db::events::Events;

    fn share(budget: &Arc<WriteBudget>) -> Arc<BudgetShare> {
        let clock = Arc::new(SystemClock::new());
        let events = Arc::new(Events::default());
        budget.enter(Arc::new(Background::new(BackgroundMode::Stepped, clock, events)))
    }

    #[test]
    fn the_database_with_most_memory_is_asked() {
        let budget = Arc::new(WriteBudget::new(100));
        let shares = [share(&budget), share(&budget), share(&budget)];
        assert!(!shares[0].note_active(60));
        assert!(!shares[1].note_active(30));
        // The budget is full, and another database has most.
        assert!(!shares[2].note_active(10));
        // It was woken, and once is enough.
        assert_eq!(shares[0].background.wakes(), 1);
        assert!(!shares[2].note_active(20));
        assert_eq!(shares[0].background.wakes(), 1);
        assert!(shares[0].take_asked() && !shares[0].take_asked());
        shares[0].note_active(0);
        assert_eq!(budget.bytes(), [50, 0, 0]);
        // Its own writer seals at once.
        assert!(shares[1].note_active(90));
    }

    #[test]
    fn a_database_that_frees_nothing_is_not_waited_for() {
        let budget = Arc::new(WriteBudget::new(100));
        let stuck = share(&budget);
        let other = share(&budget);
        stuck.note_active(99);
        assert!(!other.note_active(1));
        // As if the stuck one had been freed: the other one has a budget of its own.
        assert!(!other.note_active(99));
        assert!(other.note_active(100));
    }

    #[test]
    fn who_writes_until_the_asked_one_seals_walks_over_no_share() {
        let budget = Arc::new(WriteBudget::new(100));
        let asked = share(&budget);
        let other = share(&budget);
        asked.note_active(99);
        assert!(!other.note_active(1));
        let walk = budget.shares.lock();
        // It would wait here for the lock of a walk.
        assert!(!other.note_active(2));
        drop(walk);
        assert!(asked.take_asked());
        assert_eq!(budget.unasked(), 101);
    }

    #[test]
    fn a_note_during_the_close_counts_for_nothing() {
        let budget = Arc::new(WriteBudget::new(u64::MAX));
        for _ in 0..300 {
            let closed = share(&budget);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for bytes in 1..200 {
                        closed.note_active(bytes);
                        closed.note_sealed(bytes);
                    }
                });
                closed.note_active(7);
                closed.leave();
                writer.join().expect("it does not panic");
            });
            assert_eq!(budget.bytes(), [0, 0, 0]);
        }
    }

    #[test]
    fn sealed_memory_of_others_concerns_only_those_that_have_some() {
        let budget = Arc::new(WriteBudget::new(100));
        let full = share(&budget);
        let other = share(&budget);
        full.note_sealed(1000);
        assert_eq!(other.note_sealed(0), 0);
        assert_eq!(other.note_sealed(5), 1005);
    }

    #[test]
    fn a_database_that_closes_takes_its_share_out() {
        let budget = Arc::new(WriteBudget::new(100));
        let first = share(&budget);
        let second = share(&budget);
        first.note_active(50);
        first.note_sealed(50);
        first.leave();
        // Late notes of a closed database do not count.
        assert!(!first.note_active(200));
        assert_eq!(first.note_sealed(200), 0);
        assert_eq!(budget.bytes(), [0, 0, 0]);
        second.note_active(7);
        drop(second);
        assert_eq!(budget.bytes(), [0, 0, 0]);
    }

    #[test]
    fn secondaries_count_up_to_half_of_the_budget() {
        let budget = Arc::new(WriteBudget::new(100));
        let followed = FollowedMemory::new(Some(budget.clone()));
        let other = followed.another();
        let share = share(&budget);
        followed.note(20);
        other.note(10);
        assert_eq!(budget.bytes(), [0, 0, 30]);
        assert!(!share.note_active(69));
        assert!(share.note_active(70), "with the secondaries it is full");
        // However much they have, no database is asked for a small memtable.
        share.note_active(0);
        followed.note(5000);
        assert!(!share.note_active(49));
        assert!(share.note_active(50));
        drop(followed);
        assert_eq!(budget.bytes(), [50, 0, 10]);
        share.note_active(0);
        assert!(!share.note_active(89));
        drop(other);
        assert_eq!(budget.bytes(), [89, 0, 0]);
        FollowedMemory::default().note(7);
    }
}
