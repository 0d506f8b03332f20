//! Locks of keys that transactions take on request, together with writes that take none.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use lsm_core::fs::{FaultFs, FsOp, MemFs, OpKind};
use siltstone::{
    Db, Durability, Error, ErrorKind, MetaHiveOptions, Options, PartitionOptions, Result,
    Transaction,
};

use super::{check_counter, is_conflict, number, open, stepped};

/// Longer than any test runs: a wait of a test ends by the end of the owner.
const LONG: Duration = Duration::from_secs(600);

fn kind<T>(answer: Result<T>) -> Option<ErrorKind> {
    answer.err().map(|error| error.kind())
}

#[test]
fn eight_threads_with_locks_on_one_counter_lose_nothing_and_never_repeat() {
    let attempts = AtomicU32::new(0);
    check_counter(|db, page| {
        db.transact(|transaction| {
            attempts.fetch_add(1, Ordering::Relaxed);
            transaction.set_lock_timeout(LONG);
            let old = transaction.get_for_update(page, "counter")?;
            let new = old.as_deref().map_or(0, number) + 1;
            transaction.put(page, "counter", new.to_be_bytes());
            Ok::<_, Error>(())
        })
        .unwrap();
    });
    assert_eq!(attempts.into_inner(), 8 * 150);
}

/// Threads that lock, threads that do not, and plain updates lose none of each other's additions.
#[test]
fn locks_and_optimism_on_one_counter_lose_nothing() {
    let turn = AtomicU32::new(0);
    check_counter(|db, page| {
        let way = turn.fetch_add(1, Ordering::Relaxed) % 3;
        if way == 0 {
            page.update("counter", |old| Some((old.map_or(0, number) + 1).to_be_bytes())).unwrap();
            return;
        }
        let added = db.transact(|transaction| {
            transaction.set_lock_timeout(LONG);
            let old = match way {
                1 => transaction.get_for_update(page, "counter")?,
                _ => transaction.get(page, "counter")?,
            };
            let new = old.as_deref().map_or(0, number) + 1;
            transaction.put(page, "counter", new.to_be_bytes());
            Ok::<_, Error>(())
        });
        added.unwrap();
    });
}

/// Two that lock the same keys in different order: one is refused, and its repetition succeeds.
#[test]
fn a_deadlock_is_found_and_resolved_by_repetition() {
    let db = open(&MemFs::new());
    let p = db.partition("p").unwrap();
    let both = Barrier::new(2);
    let deadlocks = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for keys in [["a", "b"], ["b", "a"]] {
            let db = &db;
            let p = &p;
            let both = &both;
            let deadlocks = &deadlocks;
            scope.spawn(move || {
                let mut is_first = true;
                let done = db.transact(|transaction| {
                    transaction.set_lock_timeout(LONG);
                    let first = transaction.get_for_update(p, keys[0])?;
                    if std::mem::take(&mut is_first) {
                        both.wait();
                    }
                    let second = transaction.get_for_update(p, keys[1]).inspect_err(|error| {
                        assert_eq!(error.kind(), ErrorKind::Deadlock);
                        assert!(
                            error.to_string().contains(&format!("key \"{}\"", keys[1])),
                            "{error}"
                        );
                        deadlocks.fetch_add(1, Ordering::Relaxed);
                    })?;
                    for (key, old) in keys.into_iter().zip([first, second]) {
                        let new = old.as_deref().map_or(0, number) + 1;
                        transaction.put(p, key, new.to_be_bytes());
                    }
                    Ok::<_, Error>(())
                });
                done.unwrap();
            });
        }
    });
    // More than one if the refused one comes back before the other is awake.
    let deadlocks = deadlocks.into_inner();
    assert!(deadlocks > 0);
    let stats = db.stats();
    assert_eq!((stats.deadlock_count, stats.lock_timeout_count), (deadlocks.into(), 0));
    assert!(stats.lock_wait_count > 0, "the other one waited: {stats}");
    for key in ["a", "b"] {
        assert_eq!(number(&p.get(key).unwrap().unwrap()), 2);
    }
}

/// A transaction that waits for no lock.
fn impatient(db: &Db) -> Transaction {
    let mut transaction = db.transaction();
    transaction.set_lock_timeout(Duration::ZERO);
    transaction
}

#[test]
fn a_lock_is_free_when_its_transaction_ends() {
    let db = stepped(&MemFs::new());
    let p = db.partition("p").unwrap();
    let q = db.partition("q").unwrap();
    for ends in 0..4 {
        let mut first = impatient(&db);
        first.get_for_update(&p, "k").unwrap();
        let mut second = impatient(&db);
        let before = db.stats();
        let refused = second.get_for_update(&p, "k").unwrap_err();
        assert!(refused.kind() == ErrorKind::LockTimeout && refused.is_retryable());
        let stats = db.stats();
        assert_eq!(stats.lock_wait_count, before.lock_wait_count + 1);
        assert_eq!(stats.lock_timeout_count, before.lock_timeout_count + 1);
        assert!(refused.to_string().contains("partition \"p\": key \"k\" is locked"), "{refused}");
        // Another key, and the same one of another partition.
        second.get_for_update(&p, "kk").unwrap();
        second.get_for_update(&q, "k").unwrap();
        match ends {
            0 => drop(first),
            1 => drop(first.commit(Durability::Os).unwrap()),
            2 => {
                p.put("k", "theirs").unwrap();
                first.put(&p, "k", "mine");
                assert!(is_conflict(&first.commit(Durability::Os)));
            }
            _ => {
                first.put(&p, vec![0; 1 << 16], "too long");
                assert_eq!(kind(first.commit(Durability::Os)), Some(ErrorKind::LimitExceeded));
            }
        }
        second.get_for_update(&p, "k").unwrap();
    }
}

/// The value is the newest one, which a snapshot from before the wait does not have.
#[test]
fn a_locked_read_sees_newest_and_own_values_and_is_validated_from_then_on() {
    let db = stepped(&MemFs::new());
    let hive = PartitionOptions::new().metahive(MetaHiveOptions::default());
    for p in [db.partition("p").unwrap(), db.partition_with("hive", hive).unwrap()] {
        // A key that has another form in tables of a partition with MetaHive.
        for key in [&b"k"[..], b"k\x01"] {
            p.put(key, "1").unwrap();
            let mut transaction = db.transaction();
            p.put(key, "2").unwrap();
            p.flush().unwrap();
            assert_eq!(transaction.get_for_update(&p, key).unwrap().unwrap(), b"2");
            transaction.put(&p, key, "3");
            assert_eq!(transaction.get_for_update(&p, key).unwrap().unwrap(), b"3");
            transaction.delete(&p, key);
            assert_eq!(transaction.get_for_update(&p, key).unwrap(), None);
            transaction.put(&p, key, "4");
            transaction.commit(Durability::Os).unwrap();
            assert_eq!(p.get(key).unwrap().unwrap(), b"4");

            // A write in between conflicts, wherever it lies then, and also if nothing is written.
            for (is_flushed, has_writes) in
                [(false, false), (false, true), (true, false), (true, true)]
            {
                let mut transaction = db.transaction();
                transaction.get_for_update(&p, key).unwrap();
                p.delete(key).unwrap();
                if is_flushed {
                    p.compact(..).unwrap();
                }
                // The first read counts, not this one.
                assert_eq!(transaction.get_for_update(&p, key).unwrap(), None);
                if has_writes {
                    transaction.put(&p, "other", "");
                }
                assert!(
                    is_conflict(&transaction.commit(Durability::Os)),
                    "{is_flushed} {has_writes}"
                );
                p.put(key, "5").unwrap();
            }
            // Later gets are of the lock. A range is of the snapshot, and a write since then conflicts.
            for is_scanned in [false, true] {
                let mut transaction = db.transaction();
                p.put(key, "6").unwrap();
                transaction.get_for_update(&p, key).unwrap();
                assert_eq!(transaction.get(&p, key).unwrap().unwrap(), b"6");
                assert!(transaction.contains(&p, key).unwrap());
                let values = transaction.multi_get(&p, &[key, b"none"]).unwrap();
                assert_eq!((values[0].as_deref(), values[1].as_deref()), (Some(&b"6"[..]), None));
                if is_scanned {
                    assert_eq!(transaction.range(&p, key..).next().unwrap().unwrap().1, b"5");
                }
                transaction.put(&p, "other", "");
                assert_eq!(is_conflict(&transaction.commit(Durability::Os)), is_scanned);
                p.put(key, "5").unwrap();
                p.delete("other").unwrap();
            }
        }
    }
}

#[test]
fn locks_of_other_databases_dropped_partitions_and_impossible_keys_are_refused() {
    let db = stepped(&MemFs::new());
    let other_db = stepped(&MemFs::new());
    let p = db.partition("p").unwrap();
    let foreign = other_db.partition("p").unwrap();
    let mut transaction = db.transaction();
    assert_eq!(kind(transaction.get_for_update(&foreign, "k")), Some(ErrorKind::InvalidArgument));
    assert_eq!(
        kind(transaction.get_for_update(&p, vec![0; 1 << 16])),
        Some(ErrorKind::LimitExceeded)
    );
    db.drop_partition("p").unwrap();
    assert_eq!(kind(db.transaction().get_for_update(&p, "k")), Some(ErrorKind::PartitionNotFound));
    drop(transaction);
    db.clone().close().unwrap();
    assert_eq!(kind(db.transaction().get_for_update(&p, "k")), Some(ErrorKind::Closed));
}

/// The answers to an impatient transaction that asks for the key while the log does this, in a commit with `durability` by its owner.
fn asked_during(kind: OpKind, durability: Durability) -> Vec<Result<Vec<u8>, ErrorKind>> {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = crate::store::stepped(Arc::new(fs.clone()), "/db", 1)
        .options(Options::new().wal_mapped(false))
        .open()
        .unwrap();
    let p = db.partition("p").unwrap();
    // The first write makes a segment of the log.
    p.put_with("other", "", Durability::Sync).unwrap();
    let mut owner = impatient(&db);
    owner.get_for_update(&p, "k").unwrap();
    owner.put(&p, "k", "first");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let next = (db.clone(), p.clone(), seen.clone());
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let (db, p, seen) = &next;
        if op.kind == kind && op.path.extension().is_some_and(|kind| kind == "wal") {
            let value = impatient(db).get_for_update(p, "k");
            let value = value.map(|value| value.unwrap().to_vec());
            seen.lock().unwrap().push(value.map_err(|error| error.kind()));
        }
    }));
    let commit = owner.commit(durability).unwrap();
    fs.clear_observer();
    assert!(durability == Durability::Os || db.durable_seq() >= commit.seq);
    std::mem::take(&mut *seen.lock().unwrap())
}

/// So that one sync makes the commits of several owners durable.
#[test]
fn a_lock_is_free_after_the_write_of_its_commit_and_before_the_sync() {
    let first = Ok(b"first".to_vec());
    assert_eq!(asked_during(OpKind::Sync, Durability::Sync), [first]);
    for durability in [Durability::Os, Durability::Sync] {
        let asked = asked_during(OpKind::Append, durability);
        assert_eq!(asked, [Err(ErrorKind::LockTimeout)], "{durability:?}");
    }
}

#[test]
fn an_owner_without_writes_syncs_what_it_read() {
    let db = stepped(&MemFs::new());
    let p = db.partition("p").unwrap();
    let written = p.put("k", "v").unwrap();
    assert!(db.durable_seq() < written.seq);
    let mut owner = impatient(&db);
    owner.get_for_update(&p, "k").unwrap();
    owner.commit(Durability::Sync).unwrap();
    assert!(db.durable_seq() >= written.seq);
}
