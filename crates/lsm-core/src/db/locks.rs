//! The locks of keys that transactions take on request: who holds which key, who waits, and which waits can never
//! end.
//!
//! Locks are of this process alone, in memory, and between transactions that ask for them: writes take none, and
//! the commit path does not know them. A commit validates locked reads as it validates others.
//!
//! Invariants:
//! 1. An owner waits for one key at a time, and a key has one owner. So the owners and their keys form chains,
//!    and a deadlock is a chain that comes back to its begin.
//! 2. A chain closes only when an owner begins to wait. An owner that waits already gets no key but the one that it
//!    waits for, and with it its wait ends. So a search at the begin of each wait finds every deadlock.
//! 3. A queue has a waiter.
//! 4. A key that is free and has waiters has a first waiter that was woken and has not run yet.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::partition::PartitionState;
use crate::stats::Counters;
use crate::types::{PartitionId, Process};

/// The keys that are freed under one lock of the table. Others that lock a key wait for so many at most.
const FREED_TOGETHER: usize = 1024;
/// The table keeps memory for so many keys.
const PLACES_KEPT: usize = 1 << 11;

/// A key in its stored form.
type LockedKey = (PartitionId, Arc<[u8]>);

/// A transaction that has or wants locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LockOwner(u64);

/// An owner that waits for a key. Each has a condition of its own, so that the first one is woken and no other.
struct Waiter {
    owner: LockOwner,
    changed: Arc<Condvar>,
}

/// The state of the first waiter of a queue.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum FirstWaiter {
    #[default]
    Asleep,
    /// It was woken because the key was free, and has not run since. Meanwhile the key goes to whoever asks for
    /// it: each change of threads costs more than a short transaction.
    Woken,
    /// It was woken in vain. It gets the key next.
    Due,
}

/// The owners that wait for a key, in their order.
#[derive(Default)]
struct LockQueue {
    waiters: VecDeque<Waiter>,
    first: FirstWaiter,
}

#[derive(Default)]
struct LockState {
    /// The keys that are owned.
    owners: HashMap<LockedKey, LockOwner>,
    /// The keys that are waited for.
    queues: HashMap<LockedKey, LockQueue>,
    /// The key that an owner waits for.
    waits: HashMap<LockOwner, LockedKey>,
    /// The number of the newest owner.
    newest: u64,
}

/// The locks of a database.
pub(super) struct LockTable {
    state: Mutex<LockState>,
    clock: Arc<dyn Clock>,
    counters: Arc<Counters>,
    process: Process,
}

/// The locks of one transaction; dropping it frees them.
pub(super) struct HeldLocks {
    table: Arc<LockTable>,
    owner: LockOwner,
    keys: Vec<LockedKey>,
}

impl LockState {
    /// Returns `true` if a wait of `owner` for `key` could never end: the owner of the key waits for `owner`.
    fn closes_chain(&self, owner: LockOwner, key: &LockedKey) -> bool {
        let mut key = key;
        loop {
            let Some(next) = self.owners.get(key) else {
                return false;
            };
            if *next == owner {
                return true;
            }
            match self.waits.get(next) {
                Some(wanted) => key = wanted,
                None => return false,
            }
        }
    }

    /// Adds `owner` to the waiters for `key`.
    fn join(&mut self, owner: LockOwner, key: &LockedKey, changed: Arc<Condvar>) {
        self.waits.insert(owner, key.clone());
        let queue = self.queues.entry(key.clone()).or_default();
        queue.waiters.push_back(Waiter { owner, changed });
    }

    /// Removes `owner` from the waiters for `key`.
    fn leave(&mut self, owner: LockOwner, key: &LockedKey) {
        self.waits.remove(&owner);
        let Some(queue) = self.queues.get_mut(key) else { return };
        if queue.waiters.front().is_some_and(|first| first.owner == owner) {
            queue.first = FirstWaiter::Asleep;
        }
        queue.waiters.retain(|waiter| waiter.owner != owner);
        if queue.waiters.is_empty() {
            self.queues.remove(key);
        }
    }

    /// Gives `key` to `owner`, a waiter for it, if it is free. Returns `true` if `owner` has it now.
    fn try_end_wait(&mut self, owner: LockOwner, key: &LockedKey) -> bool {
        if let Some(present) = self.owners.get(key) {
            // A release may have handed it over.
            return *present == owner;
        }
        self.leave(owner, key);
        self.owners.insert(key.clone(), owner);
        true
    }

    /// Notes that the first waiter for `key` was woken, and another owner was faster.
    fn note_vain_wake(&mut self, key: &LockedKey) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.first = FirstWaiter::Due;
        }
    }

    /// Frees `key` for its first waiter, if that is due, or for whoever comes first.
    fn free(&mut self, key: &LockedKey) {
        self.owners.remove(key);
        let Some(queue) = self.queues.get_mut(key) else { return };
        let Some(first) = queue.waiters.front() else { return };
        match queue.first {
            FirstWaiter::Woken => {}
            FirstWaiter::Asleep => {
                queue.first = FirstWaiter::Woken;
                first.changed.notify_one();
            }
            FirstWaiter::Due => {
                let owner = first.owner;
                first.changed.notify_one();
                self.leave(owner, key);
                self.owners.insert(key.clone(), owner);
            }
        }
    }

    /// Gives the memory of freed keys back, if most of it is unused.
    fn shrink(&mut self) {
        let places = self.owners.capacity();
        let used = self.owners.len();
        if places > 2 * PLACES_KEPT && used < places / 8 {
            self.owners.shrink_to(PLACES_KEPT.max(2 * used));
        }
    }
}

impl LockTable {
    /// Without any lock. Waits end by `clock`.
    pub(super) fn new(clock: Arc<dyn Clock>, counters: Arc<Counters>) -> LockTable {
        LockTable { state: Mutex::default(), clock, counters, process: Process::current() }
    }

    /// The locks of a new owner, none yet.
    pub(super) fn owner(self: &Arc<Self>) -> HeldLocks {
        let mut state = self.state.lock();
        state.newest += 1;
        HeldLocks { table: self.clone(), owner: LockOwner(state.newest), keys: Vec::new() }
    }

    /// Waits until `owner` has `key`, which another one has; `false` if that takes longer than `timeout`.
    fn wait(
        &self,
        mut state: MutexGuard<'_, LockState>,
        owner: LockOwner,
        key: &LockedKey,
        timeout: Duration,
    ) -> bool {
        let end = self.clock.now().saturating_add(timeout);
        let changed = Arc::new(Condvar::new());
        state.join(owner, key, changed.clone());
        loop {
            let left = end.saturating_sub(self.clock.now());
            let is_over = left.is_zero() || changed.wait_for(&mut state, left).timed_out();
            // A wake may have come together with the end of the time.
            if state.try_end_wait(owner, key) {
                return true;
            }
            if is_over {
                state.leave(owner, key);
                return false;
            }
            state.note_vain_wake(key);
        }
    }
}

impl HeldLocks {
    /// Locks `stored`, a key of `partition` in its stored form, until these locks are dropped. A key that is
    /// locked already stays so.
    ///
    /// # Errors
    /// [`ErrorKind::Deadlock`] at once if the wait would never end; [`ErrorKind::LockTimeout`] if the key is not
    /// free after `timeout`. Other locks stay.
    pub(super) fn lock(
        &mut self,
        partition: &PartitionState,
        stored: &[u8],
        timeout: Duration,
    ) -> Result<()> {
        let key = (partition.id, Arc::from(stored));
        match self.take(&key, timeout) {
            Ok(true) => self.keys.push(key),
            Ok(false) => {}
            Err(kind) => return Err(refused(kind, partition, stored, timeout)),
        }
        Ok(())
    }

    /// Returns `false` if it had the key before.
    fn take(&self, key: &LockedKey, timeout: Duration) -> Result<bool, ErrorKind> {
        let HeldLocks { table, owner, .. } = self;
        let mut state = table.state.lock();
        match state.owners.entry(key.clone()) {
            Entry::Vacant(free) => {
                free.insert(*owner);
                return Ok(true);
            }
            Entry::Occupied(present) if present.get() == owner => return Ok(false),
            Entry::Occupied(_) => {}
        }
        if state.closes_chain(*owner, key) {
            table.counters.deadlocks.add(1);
            return Err(ErrorKind::Deadlock);
        }
        table.counters.lock_waits.add(1);
        if table.wait(state, *owner, key, timeout) {
            return Ok(true);
        }
        table.counters.lock_timeouts.add(1);
        Err(ErrorKind::LockTimeout)
    }
}

/// The error of a request for `stored`, a key of `partition`.
#[cold]
fn refused(kind: ErrorKind, partition: &PartitionState, stored: &[u8], timeout: Duration) -> Error {
    let name = &partition.name;
    let key = partition.key_form.user(stored).escape_ascii();
    let reason = match kind {
        ErrorKind::Deadlock => "is locked by a transaction that waits for this one".to_owned(),
        _ => format!("is locked, and was not free within {timeout:?}"),
    };
    Error::new(kind, format!("partition {name:?}: key \"{key}\" {reason}"))
}

impl Drop for HeldLocks {
    fn drop(&mut self) {
        // In a child of the process, the lock of the table may never be free.
        if !self.table.process.is_current() {
            return;
        }
        for keys in self.keys.chunks(FREED_TOGETHER) {
            let mut state = self.table.state.lock();
            for key in keys {
                debug_assert_eq!(state.owners.get(key), Some(&self.owner));
                state.free(key);
            }
            state.shrink();
        }
    }
}

#[cfg(test)]
impl LockTable {
    /// The number of keys that are owned or waited for.
    fn len(&self) -> usize {
        let state = self.state.lock();
        assert!(state.queues.keys().all(|key| state.owners.contains_key(key)));
        state.owners.len()
    }
}

#[cfg(test)]
mod tests;
