//! `multi_get`: the gets of many keys at one moment, in every place that a key can lie in.

use std::sync::Arc;

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind};
use siltstone::secondary::{Level, ReadOptions};
use siltstone::{
    Db, ErrorKind, LargeValueOptions, MetaHiveOptions, Options, Partition, PartitionOptions,
    Readable,
};
use testkit::Rng;

use crate::store::{content, settle, stepped};

/// Keys in an order of their own: those of `partition`, some twice, and as many that are missing.
fn drawn(partition: &Partition, rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = content(partition).into_keys().collect();
    keys.extend(keys.clone().into_iter().map(|key| [&key[..], b"!"].concat()));
    let drawn = (0..keys.len() * 2).map(|_| keys[rng.index(keys.len())].clone());
    drawn.collect()
}

/// Compares calls of many sizes with single gets.
fn check(partition: &impl Readable, keys: &[Vec<u8>]) {
    let expected: Vec<_> = keys.iter().map(|key| partition.get(key).unwrap()).collect();
    for size in [1, 2, 63, 64, 65, 129, keys.len()] {
        for (keys, expected) in keys.chunks(size).zip(expected.chunks(size)) {
            assert_eq!(partition.multi_get(keys).unwrap(), expected, "{size} keys");
        }
    }
    assert!(partition.multi_get::<&str>(&[]).unwrap().is_empty());
}

/// Compares visits of many sizes, which end at some place, with single gets.
fn check_visits(partition: &Partition, keys: &[Vec<u8>], rng: &mut Rng) {
    for size in [1, 16, 64, 200] {
        for keys in keys.chunks(size) {
            let end = rng.index(keys.len());
            let mut seen = vec![false; keys.len()];
            let mut places = Vec::new();
            let visited = partition.multi_get_each(keys, |at, value| {
                assert_eq!(value, partition.get(&keys[at]).unwrap());
                assert!(!std::mem::replace(&mut seen[at], true), "place {at} is visited twice");
                places.push(at);
                places.len() <= end
            });
            visited.unwrap();
            assert_eq!(places.len(), end + 1);
            assert!(places.chunks(64).all(<[usize]>::is_sorted), "{places:?}");
        }
    }
}

/// Partitions with entries in memtables, on level 0 and on deeper levels, and deleted ones in each.
#[test]
fn many_keys_are_read_as_single_ones_are() {
    for (seed, is_mapped) in [(1, false), (2, true), (3, false)] {
        let mut rng = Rng::new(seed);
        let fs = Arc::new(MemFs::new());
        let db = stepped(fs.clone(), "/db", seed);
        let db = db.options(Options::new().tables_mapped(is_mapped)).open().unwrap();
        let options = PartitionOptions::new().block_bytes(512);
        let large = LargeValueOptions::default().threshold_bytes(300);
        let options = [
            options.clone(),
            options.clone().large_values(large),
            options.metahive(MetaHiveOptions::default()),
        ];
        for (number, options) in options.into_iter().enumerate() {
            let partition = db.partition_with(&format!("p{number}"), options).unwrap();
            let mut snapshots = Vec::new();
            for round in 0..6 {
                for _ in 0..150 {
                    // Also keys that a partition with MetaHive stores in another form.
                    let key = [&rng.below(400).to_be_bytes()[6..], &[rng.below(3) as u8]].concat();
                    if rng.chance(1, 5) {
                        partition.delete(key).unwrap();
                    } else {
                        partition.put(key, vec![round; rng.index(500)]).unwrap();
                    }
                }
                match round {
                    0 | 2 => db.flush().unwrap(),
                    1 => partition.compact(..).unwrap(),
                    3 => settle(&db),
                    _ => snapshots.push(db.snapshot()),
                }
            }
            let keys = drawn(&partition, &mut rng);
            check(&partition, &keys);
            check_visits(&partition, &keys, &mut rng);
            snapshots.iter().for_each(|snapshot| check(&snapshot.of(&partition), &keys));
            let mut transaction = db.transaction();
            for key in keys.iter().step_by(3) {
                transaction.put(&partition, key, "own");
            }
            check(&transaction.of(&partition), &keys);
            db.flush().unwrap();
            let secondary = Db::secondary_builder("/db").fs(fs.clone()).open().unwrap();
            let followed = secondary.partition(partition.name()).unwrap();
            check(&followed.at(Level::Strong).unwrap(), &keys);
            let options = ReadOptions::new(Level::Strong);
            assert_eq!(
                followed.multi_get(&keys, &options).unwrap(),
                partition.multi_get(&keys).unwrap()
            );
        }
    }
}

#[test]
fn a_block_that_cannot_be_read_fails_the_call_as_a_get() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = stepped(Arc::new(fs.clone()), "/db", 1).cache_bytes(0).open().unwrap();
    let users = db.partition("users").unwrap();
    let keys: Vec<_> = (0..200_u8).map(|n| [n, n]).collect();
    for key in &keys {
        users.put(key, [key[0]; 200]).unwrap();
    }
    db.flush().unwrap();
    assert_eq!(users.multi_get(&keys).unwrap().len(), 200);
    let at = FaultAt::Nth { kind: OpKind::Read, suffix: ".sst".to_owned(), nth: 3 };
    fs.add_rule(FaultRule::sticky(at, FaultAction::Eio));
    let error = users.multi_get(&keys).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert_eq!(error.to_string(), users.get(keys[0]).unwrap_err().to_string());
    fs.heal();
    assert_eq!(users.multi_get(&keys).unwrap().iter().flatten().count(), 200);
}

#[test]
fn a_dropped_partition_and_a_snapshot_of_another_database_are_refused() {
    let [db, other] =
        [1, 2].map(|seed| stepped(Arc::new(MemFs::new()), "/db", seed).open().unwrap());
    let users = db.partition("users").unwrap();
    users.put("k", "v").unwrap();
    let error = other.snapshot().multi_get(&users, &["k"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let transaction = other.transaction();
    assert!(transaction.multi_get(&users, &["k"]).is_err());
    db.drop_partition("users").unwrap();
    assert_eq!(users.multi_get(&["k"]).unwrap_err().kind(), ErrorKind::PartitionNotFound);
}

/// Blocks that are not in the cache at first, and then are.
#[test]
fn a_block_that_a_call_looks_for_counts_once() {
    let fs = Arc::new(MemFs::new());
    let keys: Vec<[u8; 2]> = (0..200_u16).map(u16::to_be_bytes).collect();
    let db = stepped(fs.clone(), "/db", 1).open().unwrap();
    let partition = db.partition_with("p", PartitionOptions::new().block_bytes(512)).unwrap();
    for key in &keys {
        partition.put(key, [7; 100]).unwrap();
    }
    db.flush().unwrap();
    drop(partition);
    db.close().unwrap();
    let db = stepped(fs, "/db", 1).open().unwrap();
    let partition = db.partition("p").unwrap();
    for round in 0..3 {
        let before = db.stats().cache_hits + db.stats().cache_misses;
        assert!(partition.multi_get(&keys).unwrap().iter().all(Option::is_some));
        let looks = db.stats().cache_hits + db.stats().cache_misses - before;
        assert_eq!(looks, keys.len() as u64, "round {round}");
    }
}
