//! Transactions with little ceremony: repetition after conflicts, savepoints, clears and requirements.

use std::cell::Cell;

use lsm_core::fs::MemFs;
use siltstone::{Db, Durability, Error, ErrorKind, Partition, TransactOptions};

use super::stepped;

fn scene() -> (Db, Partition) {
    let db = stepped(&MemFs::new());
    let p = db.partition("p").unwrap();
    (db, p)
}

/// The error of an application.
#[derive(Debug)]
enum Failure {
    Store(Error),
    Poor(u32),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Store(error)
    }
}

#[test]
fn work_is_repeated_until_no_one_else_comes_first() {
    let (db, p) = scene();
    let attempts = Cell::new(0);
    let answer = db.transact_with(Durability::Sync, |transaction| {
        attempts.set(attempts.get() + 1);
        let seen = transaction.get(&p, "k")?.is_some();
        transaction.put(&p, "k", "mine");
        transaction.put(&p, format!("attempt {}", attempts.get()), "");
        if attempts.get() < 5 {
            p.put("k", "theirs")?;
        }
        Ok::<_, Failure>(seen)
    });
    let (seen, commit) = answer.unwrap();
    assert!(seen && attempts.get() == 5);
    assert_eq!(p.get("k").unwrap().unwrap(), b"mine");
    assert_eq!(p.prefix("attempt").count(), 1, "the other attempts left nothing");
    assert_eq!(commit.seq, db.durable_seq());
}

#[test]
fn attempts_are_limited_and_other_errors_end_the_work() {
    let (db, p) = scene();
    let attempts = Cell::new(0);
    for (limit, made) in [(3, 3), (1, 1), (0, 1)] {
        attempts.set(0);
        let options = TransactOptions::new().attempts_max(limit);
        let refused = db.transact_with(options, |late| {
            attempts.set(attempts.get() + 1);
            late.get(&p, "k")?;
            late.put(&p, "k", "mine");
            p.put("k", "theirs")?;
            Ok::<_, Failure>(())
        });
        let Err(Failure::Store(error)) = refused else { panic!("{refused:?}") };
        assert_eq!((error.kind(), attempts.get()), (ErrorKind::Conflict, made), "{limit}");
    }
    attempts.set(0);
    let poor = db.transact(|transaction| {
        attempts.set(attempts.get() + 1);
        transaction.put(&p, "k", "mine");
        Err::<(), _>(Failure::Poor(7))
    });
    assert!(matches!(poor, Err(Failure::Poor(7))) && attempts.get() == 1);
    assert_eq!(p.get("k").unwrap().unwrap(), b"theirs", "an error writes nothing");
    // An error of the commit that is no conflict.
    let long = db.transact(|transaction| {
        attempts.set(attempts.get() + 1);
        transaction.put(&p, vec![0; 1 << 16], "");
        Ok::<_, Error>(())
    });
    assert_eq!((long.unwrap_err().kind(), attempts.get()), (ErrorKind::LimitExceeded, 2));
}

#[test]
fn a_rollback_takes_back_writes_requirements_and_refusals() {
    let (db, p) = scene();
    let other_db = stepped(&MemFs::new());
    let foreign = other_db.partition("p").unwrap();
    let before = p.put("stored", "1").unwrap().seq;
    p.put("stored", "2").unwrap();

    let mut transaction = db.transaction();
    assert_eq!(transaction.rollback_to_savepoint().unwrap_err().kind(), ErrorKind::InvalidArgument);
    transaction.put(&p, "a", "1");
    transaction.delete_range(&p, "x".."y");
    let range = transaction.range(&p, ..);
    transaction.set_savepoint();
    transaction.put(&p, "a", "2");
    transaction.put(&p, "a", "3");
    transaction.set_savepoint();
    transaction.delete(&p, "a");
    transaction.put(&p, "b", "4");
    transaction.clear(&p);
    transaction.put(&p, "c", "5");
    transaction.put(&foreign, "d", "6");
    transaction.require(&p, "stored", before);
    assert!(transaction.get(&p, "stored").unwrap().is_none());
    transaction.rollback_to_savepoint().unwrap();
    assert_eq!(transaction.get(&p, "a").unwrap().unwrap(), b"3");
    assert_eq!(transaction.keys(&p).count(), 2, "a and stored");
    transaction.set_savepoint();
    transaction.put(&p, "e", "7");
    transaction.pop_savepoint().unwrap();
    transaction.rollback_to_savepoint().unwrap();
    assert!(transaction.get(&p, "e").unwrap().is_none(), "the outer savepoint holds it, too");
    assert_eq!(range.count(), 2);
    transaction.commit(Durability::Os).unwrap();
    let entries: Vec<_> = p.iter().map(|entry| entry.unwrap()).collect();
    assert_eq!(entries, [("a".into(), "1".into()), ("stored".into(), "2".into())]);
}

/// It was validated as one with writes, because a partition without any was left.
#[test]
fn a_transaction_that_took_all_back_has_no_conflict() {
    let (db, p) = scene();
    let mut transaction = db.transaction();
    transaction.get(&p, "k").unwrap();
    transaction.set_savepoint();
    transaction.put(&p, "k", "mine");
    transaction.rollback_to_savepoint().unwrap();
    p.put("k", "theirs").unwrap();
    let at = transaction.snapshot().seq();
    assert_eq!(transaction.commit(Durability::Os).unwrap().seq, at);
}

/// The caller knows a read after a savepoint, and it may be the reason for later writes.
#[test]
fn reads_that_were_rolled_back_conflict() {
    let (db, p) = scene();
    let mut transaction = db.transaction();
    transaction.set_savepoint();
    transaction.get(&p, "k").unwrap();
    transaction.rollback_to_savepoint().unwrap();
    transaction.put(&p, "other", "");
    p.put("k", "theirs").unwrap();
    assert_eq!(transaction.commit(Durability::Os).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn a_clear_in_a_transaction_deletes_what_others_put_meanwhile() {
    let (db, p) = scene();
    p.put("a", "1").unwrap();
    let mut transaction = db.transaction();
    transaction.put(&p, "lost", "2");
    transaction.clear(&p);
    transaction.put(&p, "kept", "3");
    // The own state alone: a read of a stored key would conflict.
    assert!(transaction.get(&p, "lost").unwrap().is_none());
    assert!(transaction.get(&p, "a").unwrap().is_none());
    p.put("b", "4").unwrap();
    transaction.commit(Durability::Os).unwrap();
    assert_eq!(p.keys().map(|key| key.unwrap()).collect::<Vec<_>>(), [b"kept"]);
}

#[test]
fn a_requirement_of_a_transaction_counts_with_and_without_writes() {
    let (db, p) = scene();
    let old = p.put("k", "1").unwrap().seq;
    let new = p.put("k", "2").unwrap().seq;
    for has_writes in [false, true] {
        for (at_most, is_refused) in [(old, true), (new, false)] {
            let mut transaction = db.transaction();
            transaction.require(&p, "k", at_most);
            if has_writes {
                transaction.put(&p, "other", "");
            }
            let answer = transaction.commit(Durability::Os);
            assert_eq!(super::is_conflict(&answer), is_refused, "{has_writes}: {answer:?}");
        }
    }
}
