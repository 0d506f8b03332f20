//! Transactions of several threads, with and without locks: the result must be that of the same transactions one after
//! another, in the order of their sequence numbers.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use lsm_core::fs::MemFs;
use siltstone::{Db, Durability, ErrorKind, Partition, Slice};
use testkit::Rng;

use super::open;

const KEYS: u64 = 16;
const THREADS: usize = 5;
const EACH: usize = 120;

/// A committed transaction: its reads and its writes.
#[derive(Default)]
struct Committed {
    /// Its position in the order of all.
    seq: u64,
    gets: Vec<(usize, String, Option<Slice>)>,
    scans: Vec<Scan>,
    writes: Vec<(usize, String, Option<Slice>)>,
}

/// A range that was read to its end.
struct Scan {
    partition: usize,
    first: String,
    last: String,
    found: Vec<(String, Slice)>,
}

/// The content of both partitions.
type State = [BTreeMap<String, Slice>; 2];

impl Committed {
    /// Checks the reads against the state before it, and writes.
    fn replay(&self, state: &mut State) {
        for (partition, key, value) in &self.gets {
            assert_eq!(state[*partition].get(key), value.as_ref(), "{key}, #{}", self.seq);
        }
        for Scan { partition, first, last, found } in &self.scans {
            let expected = state[*partition].range(first.clone()..=last.clone());
            let expected: Vec<_> = expected.map(|(k, v)| (k.clone(), v.clone())).collect();
            assert_eq!(expected, *found, "{first} to {last}, #{}", self.seq);
        }
        for (partition, key, value) in &self.writes {
            match value {
                Some(value) => state[*partition].insert(key.clone(), value.clone()),
                None => state[*partition].remove(key),
            };
        }
    }
}

fn key(n: u64) -> String {
    format!("key-{n:03}")
}

/// Runs a transaction; `None` if it was refused.
fn run(db: &Db, partitions: &[Partition; 2], rng: &mut Rng, name: &str) -> Option<Committed> {
    let mut transaction = db.transaction();
    // Longer than the test: a wait ends when the owner ends, or is refused as a deadlock.
    transaction.set_lock_timeout(Duration::from_secs(600));
    let mut done = Committed::default();
    for _ in 0..rng.below(4) {
        let partition = rng.index(2);
        let key = key(rng.below(KEYS));
        let value = if rng.chance(1, 3) {
            match transaction.get_for_update(&partitions[partition], &key) {
                Ok(value) => value,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Deadlock);
                    return None;
                }
            }
        } else {
            transaction.get(&partitions[partition], &key).unwrap()
        };
        done.gets.push((partition, key, value));
    }
    if rng.chance(1, 2) {
        let partition = rng.index(2);
        let first = rng.below(KEYS);
        let last = first + rng.below(4);
        let range = key(first)..=key(last);
        let found = transaction.range(&partitions[partition], range).map(|entry| {
            let (key, value) = entry.unwrap();
            (String::from_utf8(key.to_vec()).unwrap(), value)
        });
        let found = found.collect();
        done.scans.push(Scan { partition, first: key(first), last: key(last), found });
    }
    let mut writes = BTreeMap::new();
    for n in 0..=rng.below(3) {
        let target = (rng.index(2), key(rng.below(KEYS)));
        let value = format!("{name}.{n}{}", "-".repeat(rng.index(200)));
        let value = rng.chance(4, 5).then(|| Slice::from(value));
        match &value {
            Some(value) => transaction.put(&partitions[target.0], &target.1, value),
            None => transaction.delete(&partitions[target.0], &target.1),
        }
        writes.insert(target, value);
        if rng.chance(1, 4) {
            transaction.set_savepoint();
            transaction.put(&partitions[0], key(rng.below(KEYS)), "taken back");
            transaction.delete_range(&partitions[1], key(rng.below(KEYS))..);
            transaction.rollback_to_savepoint().unwrap();
        }
    }
    done.writes = writes.into_iter().map(|((p, key), value)| (p, key, value)).collect();
    match transaction.commit(Durability::Os) {
        Ok(commit) => {
            done.seq = commit.seq.get();
            Some(done)
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Conflict);
            None
        }
    }
}

#[test]
fn transactions_of_threads_are_serializable() {
    let mut rng = Rng::from_env_or(11);
    for round in 0..6 {
        let db = open(&MemFs::new());
        let partitions = ["p", "q"].map(|name| db.partition(name).unwrap());
        let history = Mutex::new(Vec::new());
        let forks: Vec<Rng> = (0..THREADS).map(|_| rng.fork()).collect();
        std::thread::scope(|scope| {
            for (thread, mut rng) in forks.into_iter().enumerate() {
                let db = &db;
                let partitions = &partitions;
                let history = &history;
                scope.spawn(move || {
                    for count in 0..EACH {
                        let name = format!("{round}/{thread}/{count}");
                        let done = run(db, partitions, &mut rng, &name);
                        history.lock().unwrap().extend(done);
                        if rng.chance(1, 40) {
                            partitions[rng.index(2)].compact(..).unwrap();
                        }
                    }
                });
            }
        });
        let mut history = history.into_inner().unwrap();
        assert!(history.len() > 100, "{} of {} committed", history.len(), THREADS * EACH);
        history.sort_by_key(|done| done.seq);
        let mut state = State::default();
        for done in &history {
            done.replay(&mut state);
        }
        for (partition, expected) in partitions.iter().zip(&state) {
            let found: BTreeMap<String, Slice> = partition
                .iter()
                .map(|entry| entry.unwrap())
                .map(|(key, value)| (String::from_utf8(key.to_vec()).unwrap(), value))
                .collect();
            assert_eq!(found, *expected);
        }
        db.close().unwrap();
    }
}
