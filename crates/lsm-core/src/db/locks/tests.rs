//! Locks of keys: chains of waits, times that are over, and the order of waiters. No thread sleeps: a test waits until
//! the table shows that another thread waits.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::clock::SystemClock;
use crate::db::testing::partition_with;

const LONG: Duration = Duration::from_secs(600);

fn table() -> Arc<LockTable> {
    Arc::new(LockTable::new(Arc::new(SystemClock::new()), Arc::default()))
}

fn partition() -> Arc<PartitionState> {
    partition_with(7, true)
}

/// Waits until `count` owners wait.
fn until_waiting(table: &LockTable, count: usize) {
    while table.state.lock().waits.len() != count {
        std::thread::yield_now();
    }
}

#[test]
fn a_key_has_one_owner_and_is_free_after_it() {
    let table = table();
    let users = partition();
    let mut first = table.owner();
    let mut second = table.owner();
    first.lock(&users, b"a", LONG).unwrap();
    first.lock(&users, b"a", LONG).unwrap();
    second.lock(&users, b"b", LONG).unwrap();
    let refused = second.lock(&users, b"a", Duration::ZERO).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LockTimeout);
    assert!(
        refused.to_string().contains("partition \"partition-7\": key \"a\" is locked"),
        "{refused}"
    );
    drop(first);
    second.lock(&users, b"a", Duration::ZERO).unwrap();
    assert_eq!(table.len(), 2);
    drop(second);
    assert_eq!(table.len(), 0);
}

#[test]
fn a_wait_ends_with_the_owner() {
    let table = table();
    let users = partition();
    let mut first = table.owner();
    first.lock(&users, b"a", LONG).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| table.owner().lock(&users, b"a", LONG));
        until_waiting(&table, 1);
        drop(first);
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(table.len(), 0);
}

/// Three owners in a circle: the last to ask is refused, and the others go on when it ends.
#[test]
fn a_circle_of_waits_is_refused_at_its_last_request() {
    let table = table();
    let users = partition();
    let keys = [b"a", b"b", b"c"];
    let [mut first, mut second, mut third] = keys.map(|key| {
        let mut owner = table.owner();
        owner.lock(&users, key, LONG).unwrap();
        owner
    });
    std::thread::scope(|scope| {
        let users = &users;
        let first = scope.spawn(move || first.lock(users, keys[1], LONG));
        until_waiting(&table, 1);
        let second = scope.spawn(move || second.lock(users, keys[2], LONG));
        until_waiting(&table, 2);
        let refused = third.lock(users, keys[0], LONG).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Deadlock);
        let reason = "key \"a\" is locked by a transaction that waits for this one";
        assert!(refused.to_string().contains(reason), "{refused}");
        // An owner outside of the circle waits as usual.
        let apart = table.owner().lock(users, keys[0], Duration::ZERO).unwrap_err();
        assert_eq!(apart.kind(), ErrorKind::LockTimeout);
        drop(third);
        second.join().unwrap().unwrap();
        first.join().unwrap().unwrap();
    });
    assert_eq!(table.len(), 0);
}

/// Owners that wait, and what their threads would do next. Nothing runs.
struct Scene {
    state: LockState,
    key: LockedKey,
}

impl Scene {
    /// The first of these owners has the key, and the others wait for it.
    fn new(owners: u64) -> Scene {
        let key: LockedKey = (PartitionId(7), Arc::from(&b"a"[..]));
        let mut state = LockState::default();
        state.owners.insert(key.clone(), LockOwner(0));
        for owner in 1..owners {
            state.join(LockOwner(owner), &key, Arc::default());
        }
        Scene { state, key }
    }

    fn free(&mut self) {
        self.state.free(&self.key);
    }

    /// An owner that does not wait takes the key if it is free.
    fn ask(&mut self, owner: u64) -> bool {
        let owner = LockOwner(owner);
        *self.state.owners.entry(self.key.clone()).or_insert(owner) == owner
    }

    /// A waiter runs after a wake.
    fn wake(&mut self, owner: u64) -> bool {
        let has_key = self.state.try_end_wait(LockOwner(owner), &self.key);
        if !has_key {
            self.state.note_vain_wake(&self.key);
        }
        has_key
    }
}

/// An owner that runs gets a free key before one that has to be woken, until that one has run.
#[test]
fn a_waiter_that_was_woken_in_vain_is_the_next_owner() {
    let mut scene = Scene::new(3);
    for n in 10..100 {
        scene.free();
        assert!(scene.ask(n), "{n}: no waiter has run");
    }
    assert!(!scene.wake(1));
    scene.free();
    assert!(!scene.ask(100), "it was handed over");
    // Handed over, and not awake yet: it waits for no one.
    assert_eq!(scene.state.waits.len(), 1);
    assert!(!scene.state.closes_chain(LockOwner(100), &scene.key));
    assert!(scene.state.try_end_wait(LockOwner(1), &scene.key));
    // The next one is not due, because it has not run.
    scene.free();
    assert!(scene.ask(101));
    scene.free();
    assert!(scene.wake(2));
    scene.free();
    assert!(scene.state.owners.is_empty() && scene.state.queues.is_empty());
}

/// A waiter whose time is over, at each moment, keeps no other one from the key.
#[test]
fn waiters_whose_time_is_over_lose_no_wake() {
    // Of two waiters either gives up: before the key is free, after it was taken again, when it is due.
    for gone in [1, 2] {
        let left = 3 - gone;
        for moment in 0..3 {
            let mut scene = Scene::new(3);
            if moment > 0 {
                scene.free();
                assert!(scene.ask(9));
            }
            if moment > 1 {
                assert!(!scene.wake(1));
            }
            scene.state.leave(LockOwner(gone), &scene.key);
            scene.free();
            let is_due = moment == 2 && gone == 2;
            assert_eq!(scene.ask(10), !is_due, "{gone} {moment}");
            let queue = scene.state.queues.get(&scene.key);
            assert!(is_due || queue.is_some_and(|queue| queue.first == FirstWaiter::Woken));
            if !is_due {
                assert!(!scene.wake(left));
                scene.free();
            }
            assert!(scene.state.try_end_wait(LockOwner(left), &scene.key), "{gone} {moment}");
            assert!(scene.state.queues.is_empty() && scene.state.waits.is_empty());
        }
    }
}

#[test]
fn the_table_gives_its_memory_back() {
    let table = table();
    let users = partition();
    let mut many = table.owner();
    for n in 0..100_000_u32 {
        many.lock(&users, &n.to_be_bytes(), LONG).unwrap();
    }
    let mut one = table.owner();
    one.lock(&users, b"stays", LONG).unwrap();
    drop(many);
    assert_eq!(table.len(), 1);
    let places = table.state.lock().owners.capacity();
    assert!(places <= 2 * PLACES_KEPT, "{places} places");
}

/// Numbers that differ by seed, of a linear congruential generator.
struct Steps(u64);

impl Steps {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Threads that lock two of three keys in any order: each pair is held by one at a time, each refused one starts
/// again, and all come to their end.
#[test]
fn shuffled_owners_exclude_each_other_and_all_end() {
    let table = table();
    let users = partition();
    let inside: [AtomicU32; 3] = Default::default();
    std::thread::scope(|scope| {
        for seed in 1..5 {
            let mut rng = Steps(seed);
            let table = &table;
            let users = &users;
            let inside = &inside;
            scope.spawn(move || {
                let mut done = 0;
                while done < 300 {
                    let mut owner = table.owner();
                    let picked = [rng.below(3), rng.below(3)];
                    let timeout = if rng.below(8) == 0 { Duration::ZERO } else { LONG };
                    let locked = picked.iter().try_for_each(|at| {
                        owner.lock(users, &[*at as u8], timeout)?;
                        std::thread::yield_now();
                        Ok(())
                    });
                    match locked {
                        Ok(()) => done += 1,
                        Err::<(), Error>(error) => match error.kind() {
                            ErrorKind::Deadlock => continue,
                            kind => {
                                assert_eq!(
                                    (kind, timeout),
                                    (ErrorKind::LockTimeout, Duration::ZERO)
                                );
                                continue;
                            }
                        },
                    }
                    let distinct: BTreeSet<_> = picked.into();
                    for at in &distinct {
                        assert_eq!(inside[*at].fetch_add(1, Ordering::SeqCst), 0);
                    }
                    std::thread::yield_now();
                    for at in distinct {
                        inside[at].fetch_sub(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!(table.len(), 0);
}
