//! Maps, printed against the table of their bytes; and hostile bytes with a right checksum.

use storage::codec::SUM_BYTES;
use testkit::{Rng, annotate, assert_golden};

use super::*;

fn shard(name: &str) -> Shard {
    Shard { name: name.to_owned(), nodes: vec![format!("10.0.0.1:{}", name.len())] }
}

/// Two shards, and slots on their way.
fn map() -> ShardMap {
    let map = ShardMap::first(vec![shard("a"), shard("bc")]).unwrap();
    let slots = SlotSet::parse("100-199,5000").unwrap();
    let moving = Move { step: Step::Copying, from: 0, to: 1, slots };
    let copying = map.with_move(Some(moving.clone())).unwrap();
    let given = copying.with_move(Some(Move { step: Step::Given, ..moving })).unwrap();
    let floor = Commit { seq: SeqNo::new(1_042).unwrap(), epoch: Epoch(3) };
    given.with_floor(1, floor).with_put_id(0x1d)
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() - SUM_BYTES);
    put_sum(&mut bytes);
    bytes
}

#[test]
fn the_bytes_of_a_map_are_those_of_the_table() {
    let bytes = map().encode();
    let starts = [0, 8, 12, 16, 24, 40, 41, 75, 76, 93, 94, 95, 96, 97, 100, bytes.len() - 8];
    let names = [
        "magic",
        "version",
        "zero",
        "number",
        "put id",
        "count of shards",
        "shards",
        "count of ranges",
        "ranges: last slot, shard",
        "step of the move",
        "from",
        "to",
        "count of ranges",
        "range",
        "range",
        "checksum",
    ];
    let ends = starts[1..].iter().copied().chain([bytes.len()]);
    let notes: Vec<_> = starts
        .into_iter()
        .zip(ends)
        .zip(names)
        .map(|((from, to), name)| (from..to, name))
        .collect();
    assert_golden("shard-map.txt", &annotate(&bytes, &notes));
    let again = ShardMap::decode("shards/3", 3, &bytes).unwrap();
    assert_eq!(again, map());
    assert_eq!((again.floor(0), again.floor(2)), (NO_FLOOR, NO_FLOOR));
}

/// The map in `testdata/` is of the first version, and every later one reads it.
#[test]
fn a_map_of_version_1_is_read() {
    let stored = include_bytes!("../../../testdata/shard-map-1");
    assert_eq!(ShardMap::decode("shards/3", 3, stored).unwrap(), map());
}

fn refused(bytes: &[u8], expected: &str) {
    let error = ShardMap::decode("shards/3", 3, bytes).unwrap_err().to_string();
    assert!(error.contains("shards/3") && error.contains(expected), "{error}");
}

#[test]
fn damaged_and_newer_maps_are_refused_by_name() {
    let bytes = map().encode();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        refused(&damaged, "checksum");
        refused(&bytes[..at], if at < SUM_BYTES { "too few" } else { "checksum" });
    }
    let mut newer = bytes.clone();
    newer[8] = 2;
    refused(&sealed(newer), "newer siltstone");
    let mut other = bytes;
    other[16] = 4;
    refused(&sealed(other), "number of another map");
}

#[test]
fn hostile_maps_never_panic_and_take_no_memory() {
    let mut rng = Rng::from_env_or(11);
    let bytes = map().encode();
    for _ in 0..2_000 {
        let mut hostile = bytes.clone();
        for _ in 0..rng.range(1..4) {
            let at = 40 + rng.index(hostile.len() - 40);
            hostile[at] = rng.below(256) as u8;
        }
        if let Ok(map) = ShardMap::decode("shards/3", 3, &sealed(hostile)) {
            let again = ShardMap::decode("shards/3", 3, &map.encode()).unwrap();
            assert_eq!(again, map);
        }
    }
}

#[test]
fn a_map_that_contradicts_itself_is_refused() {
    let first = ShardMap::first(vec![shard("a"), shard("bc")]).unwrap();
    assert!(ShardMap::first(Vec::new()).is_err() && ShardMap::first(vec![shard("a"); 2]).is_err());
    assert!(
        ShardMap::first(vec![shard("a b")]).is_err() && ShardMap::first(vec![shard("")]).is_err()
    );
    let slots = SlotSet::parse("0-9").unwrap();
    let moving = Move { step: Step::Copying, from: 1, to: 0, slots: slots.clone() };
    assert!(first.with_move(Some(moving.clone())).is_err(), "slots of another shard");
    let same = Move { from: 0, to: 0, ..moving.clone() };
    let beyond = Move { from: 0, to: 2, ..moving.clone() };
    let none = Move { from: 0, to: 1, slots: SlotSet::default(), ..moving };
    for moving in [same, beyond, none] {
        assert!(first.with_move(Some(moving.clone())).is_err(), "{moving:?}");
    }
}
