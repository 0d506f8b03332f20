//! [`WriteBudget`]: memory for the memtables of many databases.
//!
//! Made by `resources.rs`. Each database has a [`BudgetShare`]. After each group of writes, `sealing.rs` notes there how
//! much memory the active memtables of the database have. When all databases together have too much, the one with most
//! is *asked* to seal its largest memtable: by its next writer, or on its flush thread. No writer waits for that, and
//! none takes a lock of another database.
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
    shares: Mutex<BTreeMap<u64, Weak<BudgetShare>>>,
}

/// The part of a [`WriteBudget`] that one database uses.
pub(super) struct BudgetShare {
    budget: Arc<WriteBudget>,
    number: u64,
    /// Woken when it is asked.
    background: Arc<Background>,
    // As noted last; the sums of the budget have them. Relaxed, as these.
    active: AtomicU64,
    sealed: AtomicU64,
    /// It is to seal its largest memtable.
    is_asked: AtomicBool,
    has_left: AtomicBool,
}

/// Replaces `noted` by `bytes`, and the part of it in `sum`.
fn replace(noted: &AtomicU64, sum: &AtomicU64, bytes: u64) {
    let before = noted.swap(bytes, Ordering::Relaxed);
    // It wraps if there is less than before.
    sum.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
}

impl WriteBudget {
    /// A budget of so many bytes for active memtables.
    pub(super) fn new(bytes_max: u64) -> WriteBudget {
        WriteBudget {
            bytes_max,
            active: AtomicU64::new(0),
            sealed: AtomicU64::new(0),
            shares: Mutex::default(),
        }
    }

    /// The most that active memtables should have.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The memory of active memtables, and of sealed ones.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [&self.active, &self.sealed].map(|sum| sum.load(Ordering::Relaxed))
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
            is_asked: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
        });
        shares.insert(number, Arc::downgrade(&share));
        share
    }

    /// Asks the databases with most memory, one after the other, until the rest is within the budget.
    fn ask(&self) -> Vec<Arc<BudgetShare>> {
        let shares: Vec<_> = self.shares.lock().values().filter_map(Weak::upgrade).collect();
        let mut asked = Vec::new();
        // What was asked for counts as freed: a database that is slow to free it is not asked again in its place.
        let due = shares.iter().filter(|share| share.is_asked.load(Ordering::Relaxed));
        let due: u64 = due.map(|share| share.active.load(Ordering::Relaxed)).sum();
        let mut left = self.active.load(Ordering::Relaxed).saturating_sub(due);
        while left >= self.bytes_max {
            let others = shares.iter().filter(|share| !share.is_asked.load(Ordering::Relaxed));
            let largest = others.max_by_key(|share| share.active.load(Ordering::Relaxed));
            let Some(largest) = largest else { break };
            let bytes = largest.active.load(Ordering::Relaxed);
            if bytes == 0 {
                break;
            }
            largest.is_asked.store(true, Ordering::Relaxed);
            asked.push(largest.clone());
            left = left.saturating_sub(bytes);
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
        if self.budget.active.load(Ordering::Relaxed) >= self.budget.bytes_max {
            self.ask_largest();
        }
        self.take_asked()
    }

    /// Notes the memory of the active memtables of the database.
    #[inline]
    pub(super) fn set_active(&self, bytes: u64) {
        if !self.has_left.load(Ordering::Relaxed) {
            replace(&self.active, &self.budget.active, bytes);
        }
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
        self.is_asked.load(Ordering::Relaxed) && self.is_asked.swap(false, Ordering::Relaxed)
    }

    /// Notes the memory of the sealed memtables of the database. Returns that of all databases, if it concerns this
    /// one: if it has some.
    pub(super) fn note_sealed(&self, bytes: u64) -> u64 {
        if self.has_left.load(Ordering::Relaxed) {
            return 0;
        }
        replace(&self.sealed, &self.budget.sealed, bytes);
        if bytes == 0 { 0 } else { self.budget.sealed.load(Ordering::Relaxed) }
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
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.leave();
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
        assert_eq!(budget.bytes(), [50, 0]);
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
        assert_eq!(budget.bytes(), [0, 0]);
        second.note_active(7);
        drop(second);
        assert_eq!(budget.bytes(), [0, 0]);
    }
}
