//! Order, adjacency and completeness of what the filter emits, for keys of every shape.

use lsm_core::hooks::Sealer;
use lsm_core::types::SeqNo;
use metahive::payload::PAYLOAD_BYTES;
use metahive::{GROUP_BYTES_MAX, GROUP_OTHER_BYTES_MAX, MetaHive, MetaHiveOptions};
use proptest::prelude::*;

use crate::engine::{Engine, Stored, Table, check_sealed, seq};

fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => Just(0u8), 3 => Just(1), 2 => Just(2), 1 => Just(0xff)];
    prop::collection::vec(byte, 0..6)
}

/// Batches of keys with a mark for deletions; sequence numbers follow.
fn batches() -> impl Strategy<Value = Vec<Vec<(Vec<u8>, bool)>>> {
    prop::collection::vec(prop::collection::vec((key(), prop::bool::weighted(0.2)), 1..40), 1..5)
}

fn entries(batch: &[(Vec<u8>, bool)], any_key: bool, next: &mut u64) -> Vec<Stored> {
    let mut entries = Vec::new();
    for (key, is_deletion) in batch {
        let mut key = key.clone();
        if any_key {
            key.push(0);
        } else if key.ends_with(&[1]) {
            *key.last_mut().unwrap() = 3;
        }
        *next += 1;
        entries.push(match is_deletion {
            true => Stored::deletion(&key, *next),
            false => Stored::value(&key, *next, &next.to_le_bytes()[..(*next % 9) as usize]),
        });
    }
    entries
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_key_is_sealed_in_order_in_its_block_through_flushes_and_compactions(
        batches in batches(),
        any_key: bool,
        snapshots in prop::collection::btree_set(1u64..100, 0..4),
        table_bytes in 100usize..2000,
    ) {
        let hive = MetaHive::new(MetaHiveOptions::new().any_key(any_key));
        let mut engine = Engine { table_bytes, ..Engine::default() };
        engine.snapshots = snapshots.iter().map(|n| seq(*n)).chain([seq(1000)]).collect();
        let mut next = 0;
        let mut tables = Vec::new();
        let mut data = Vec::new();
        for batch in &batches {
            let entries = entries(batch, any_key, &mut next);
            let mut flush = Engine { snapshots: engine.snapshots.clone(), ..Engine::default() };
            let mut table = flush.flush(&hive, entries);
            table.file = tables.len() as u64;
            prop_assert_eq!(check_sealed(std::slice::from_ref(&table)), 0);
            data.extend(table.data());
            tables.push(table);
        }
        let merged = engine.compact(&hive, &tables);
        prop_assert_eq!(check_sealed(&merged), 0);
        // The same data without metadata comes to the same data.
        let plain = engine.compact(&hive, &[Table::new(7, data)]);
        let of = |tables: &[Table]| tables.iter().flat_map(Table::data).collect::<Vec<_>>();
        prop_assert_eq!(of(&merged), of(&plain));
        // Nothing changes any more, table by table.
        for table in &merged {
            let again = engine.compact(&hive, std::slice::from_ref(table));
            check_sealed(&again);
            prop_assert_eq!(of(&again), table.data());
        }
        let counts = hive.counts();
        prop_assert_eq!(counts.faults + counts.split_pairs, 0);
    }
}

/// A key, and so many keys between it and its metadata.
fn row(between: usize, value_len: usize) -> Vec<Stored> {
    let mut entries = vec![Stored::value(b"T", 1, b"row"), Stored::value(b"T", 2, b"newer")];
    for i in 0..between {
        let column = [b"T\0", &(i as u32 + 0x0202_0202).to_be_bytes()[..], b"c"].concat();
        entries.push(Stored::value(&column, 3 + i as u64, &vec![7; value_len]));
    }
    entries.push(Stored::value(b"U", 1_000_000, b"behind"));
    entries
}

#[test]
fn a_group_stays_whole_up_to_its_bounds_and_is_split_and_counted_beyond() {
    let both = |between: usize, value_len: usize| {
        let hive = MetaHive::default();
        let mut engine = Engine { block_bytes: 4096, ..Engine::default() };
        engine.snapshots = vec![seq(1), SeqNo::MAX];
        let table = engine.flush(&hive, row(between, value_len));
        let apart = check_sealed(std::slice::from_ref(&table));
        let merged = engine.compact(&hive, &[table]);
        assert_eq!(check_sealed(&merged), apart);
        assert_eq!(hive.counts().split_pairs, 2 * apart as u64);
        apart
    };
    let entry_bytes = 7 + 100 + 8 + PAYLOAD_BYTES;
    let fitting = GROUP_OTHER_BYTES_MAX as usize / entry_bytes;
    assert_eq!(both(fitting - 1, 100), 0);
    assert_eq!(both(fitting + 40, 100), 2);
    assert_eq!(both(1, 2 * GROUP_OTHER_BYTES_MAX as usize), 0, "it has no cut to allow");
    assert_eq!(both(2, 2 * GROUP_OTHER_BYTES_MAX as usize), 2);
    // Many versions of one key fill the megabyte by themselves.
    let hive = MetaHive::default();
    let mut engine = Engine { snapshots: (1..20).map(seq).collect(), ..Engine::default() };
    let mut entries: Vec<Stored> =
        (1..20).map(|n| Stored::value(b"T", n, &vec![1; GROUP_BYTES_MAX as usize / 16])).collect();
    entries.push(Stored::value(b"T\0x", 30, b"between"));
    let table = engine.flush(&hive, entries);
    assert_eq!(table.seal().unwrap().split_pairs, 19);
    check_sealed(&[table]);
}

#[test]
fn tables_cut_inside_a_group_are_verified_one_by_one() {
    let hive = MetaHive::default();
    let mut engine = Engine { block_bytes: 4096, table_bytes: 30_000, ..Engine::default() };
    engine.snapshots = vec![seq(1), SeqNo::MAX];
    let flushed = engine.flush(&hive, row(0, 0));
    let plain = Table::new(5, row(2000, 100));
    let mut tables = engine.compact(&hive, &[plain, flushed]);
    assert!(tables.len() > 3);
    assert_eq!(tables[0].seal().unwrap().open.len(), 2, "newest version and the one before");
    assert!(check_sealed(&tables) > 0);
    for table in &tables {
        check_sealed(&engine.compact(&hive, std::slice::from_ref(table)));
    }
    assert_eq!(hive.counts().faults, 0);
    // What the properties keep is compared as well.
    tables[0].entries[0].value[0] ^= 1;
    let faults = engine.faults(&hive, &tables[..1]);
    assert_eq!((faults.len(), &faults[0].key[..]), (1, &b"T"[..]));
}

/// A forced cut concerns the pairs that it may have come between. It used to count every pair after it
/// in the table as well.
#[test]
fn blocks_that_had_to_be_cut_are_counted() {
    let keys = [&b"k"[..], b"l", b"m", b"m\0", b"n"];
    let entries: Vec<Stored> =
        (1..).zip(keys).map(|(n, key)| Stored::value(key, n, b"v")).collect();
    // A cut after "m\0" comes between "m" and its metadata as well.
    for (forced_at, split) in [(0, 0), (1, 1), (3, 1), (4, 2), (5, 1), (6, 0)] {
        let hive = MetaHive::default();
        let mut engine = Engine { forced_at: Some(forced_at), ..Engine::default() };
        let table = engine.flush(&hive, entries.clone());
        assert_eq!(table.seal().unwrap().split_pairs, split, "at {forced_at}");
        check_sealed(&[table]);
    }
}

#[test]
fn a_million_versions_take_sixteen_bytes_each_and_tables_join_where_pairs_are_cut() {
    // The bound itself is asserted at compile time beside the slot; here it runs.
    let hive = MetaHive::default();
    let mut engine = Engine { block_bytes: 4096, ..Engine::default() };
    engine.snapshots = (0..20_000).map(seq).collect();
    let versions = (1..20_000).map(|n| Stored::value(b"k", n, b"v")).collect();
    let table = engine.flush(&hive, versions);
    let merged = engine.compact(&hive, &[table]);
    check_sealed(&merged);
    assert_eq!(hive.counts().verified, 19_999);
    assert!(hive.joined(b"k", b"k\x01"));
}
