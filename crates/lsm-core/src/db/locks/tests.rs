//! Locks of keys: chains of waits, times that are over, and the order of waiters. No thread sleeps: a test waits until
//! the table shows that another thread waits.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::clock::SystemClock;
use crate::db::testing::partition_with;

const LONG: Duration = Duration::from_secs(600);

fn table() -> Arc<LockTable> {
    Arc::new(LockTable::new(Arc::new(SystemClock::new())))
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

/// An owner that runs gets a free key before one that has to be woken, but not for ever.
#[test]
fn a_key_passes_over_its_waiters_only_so_often() {
    let mut lock = KeyLock { waiters: 1, is_waking: true, ..KeyLock::default() };
    for n in 0..PASSED_OVER_MAX {
        assert!(matches!(lock.ask(LockOwner(1), false), LockAnswer::Taken), "{n}");
        lock.owner = None;
    }
    assert!(matches!(lock.ask(LockOwner(1), false), LockAnswer::Busy(_)));
    assert!(matches!(lock.ask(LockOwner(2), true), LockAnswer::Taken));
    lock.owner = None;
    assert!(matches!(lock.ask(LockOwner(1), false), LockAnswer::Taken));
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
