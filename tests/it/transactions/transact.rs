//! Transactions with little ceremony: repetition after conflicts.

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
