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
//!    waits for. So a search at the begin of each wait finds every deadlock.
//! 3. An entry of the map has an owner or a waiter.
//! 4. A key that is free and has waiters has a waiter that was woken and has not run yet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::partition::PartitionState;
use crate::types::PartitionId;

/// So often a key passes over its waiters to an owner that came later and runs already: each change of threads
/// costs more than a whole transaction. Then the key waits for a waiter.
const PASSED_OVER_MAX: u32 = 64;

/// A key in its stored form.
type LockedKey = (PartitionId, Box<[u8]>);

/// A transaction that has or wants locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LockOwner(u64);

/// A key that is owned or waited for.
#[derive(Default)]
struct KeyLock {
    owner: Option<LockOwner>,
    waiters: u32,
    /// The number of times that it went to an owner that did not wait, while others did.
    passed_over: u32,
    /// `true` if a waiter was woken and has not run yet: one is enough.
    is_waking: bool,
    changed: Arc<Condvar>,
}

#[derive(Default)]
struct LockState {
    keys: HashMap<LockedKey, KeyLock>,
    /// The key that an owner waits for.
    waits: HashMap<LockOwner, LockedKey>,
    owners: u64,
}

/// The locks of a database.
pub(super) struct LockTable {
    state: Mutex<LockState>,
    clock: Arc<dyn Clock>,
}

/// The locks of one transaction; dropping it frees them.
pub(super) struct HeldLocks {
    table: Arc<LockTable>,
    owner: LockOwner,
    keys: Vec<LockedKey>,
}

/// The outcome of a request that did not wait.
enum LockAnswer {
    /// The owner has it since now.
    Taken,
    /// The owner had it before.
    Held,
    /// It has to wait.
    Busy(Arc<Condvar>),
}

impl KeyLock {
    /// Lets `owner` have the key if it is free for it. `has_waited` is `true` for one of its waiters.
    fn ask(&mut self, owner: LockOwner, has_waited: bool) -> LockAnswer {
        match self.owner {
            Some(present) if present == owner => LockAnswer::Held,
            None if has_waited || self.waiters == 0 || self.passed_over < PASSED_OVER_MAX => {
                let passes = !has_waited && self.waiters > 0;
                self.passed_over = if passes { self.passed_over + 1 } else { 0 };
                self.owner = Some(owner);
                LockAnswer::Taken
            }
            _ => LockAnswer::Busy(self.changed.clone()),
        }
    }

    /// Wakes a waiter, unless one is woken already.
    fn wake(&mut self) {
        if self.waiters > 0 && !self.is_waking {
            self.is_waking = true;
            self.changed.notify_one();
        }
    }
}

impl LockState {
    /// Returns `true` if a wait of `owner` for `key` could never end: the owner of the key waits for `owner`.
    fn closes_chain(&self, owner: LockOwner, key: &LockedKey) -> bool {
        let mut key = key;
        loop {
            let Some(next) = self.keys.get(key).and_then(|lock| lock.owner) else {
                return false;
            };
            if next == owner {
                return true;
            }
            match self.waits.get(&next) {
                Some(wanted) => key = wanted,
                None => return false,
            }
        }
    }

    /// Removes the entry of a key that no one has and no one wants.
    fn tidy(&mut self, key: &LockedKey) {
        if self.keys.get(key).is_some_and(|lock| lock.owner.is_none() && lock.waiters == 0) {
            self.keys.remove(key);
        }
    }
}

impl LockTable {
    /// Without any lock. Waits end by `clock`.
    pub(super) fn new(clock: Arc<dyn Clock>) -> LockTable {
        LockTable { state: Mutex::default(), clock }
    }

    /// The locks of a new owner, none yet.
    pub(super) fn owner(self: &Arc<Self>) -> HeldLocks {
        let mut state = self.state.lock();
        state.owners += 1;
        HeldLocks { table: self.clone(), owner: LockOwner(state.owners), keys: Vec::new() }
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
        let key = (partition.id, Box::from(stored));
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
        let lock = state.keys.entry(key.clone()).or_default();
        let changed = match lock.ask(*owner, false) {
            LockAnswer::Taken => return Ok(true),
            LockAnswer::Held => return Ok(false),
            LockAnswer::Busy(changed) => changed,
        };
        if state.closes_chain(*owner, key) {
            return Err(ErrorKind::Deadlock);
        }
        let end = table.clock.now().saturating_add(timeout);
        state.waits.insert(*owner, key.clone());
        lock_of(&mut state, key).waiters += 1;
        let is_taken = loop {
            let left = end.saturating_sub(table.clock.now());
            let is_over = left.is_zero() || changed.wait_for(&mut state, left).timed_out();
            let lock = lock_of(&mut state, key);
            // It runs now, or ends. If another waiter was woken and not this one, one more is woken in vain.
            lock.is_waking = false;
            match lock.ask(*owner, true) {
                LockAnswer::Taken => break true,
                // A wake may have come together with the end of the time: the key is still taken then.
                _ if is_over => break false,
                _ => {}
            }
        };
        state.waits.remove(owner);
        // The entry stays: whether this owner has the key or another one, it has an owner.
        lock_of(&mut state, key).waiters -= 1;
        if is_taken { Ok(true) } else { Err(ErrorKind::LockTimeout) }
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

/// The entry of a key that the caller owns or waits for.
fn lock_of<'a>(state: &'a mut LockState, key: &LockedKey) -> &'a mut KeyLock {
    state.keys.get_mut(key).expect("a key with an owner or a waiter has an entry")
}

impl Drop for HeldLocks {
    fn drop(&mut self) {
        // Without one, which is usual, no lock of the table either.
        if self.keys.is_empty() {
            return;
        }
        let mut state = self.table.state.lock();
        for key in &self.keys {
            let lock = lock_of(&mut state, key);
            debug_assert_eq!(lock.owner, Some(self.owner));
            lock.owner = None;
            lock.wake();
            state.tidy(key);
        }
    }
}

#[cfg(test)]
impl LockTable {
    /// The number of keys that are owned or waited for.
    fn len(&self) -> usize {
        self.state.lock().keys.len()
    }
}

#[cfg(test)]
mod tests;
