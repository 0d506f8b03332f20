//! Stores with large values: `tests/fixtures/large-v1/` has handles of version 1, and `large-v2/`
//! has handles of version 2, which are those of compressed values. Every later version must open
//! them. `BLESS_FIXTURE=large-v1 cargo test large::compat` writes it again. Do this only for a
//! format that was never released.

use lsm_core::fs::MemFs;

use siltstone::PartitionOptions;

use super::{compressed, open, options};
use crate::fixtures;

/// Values in two chunks and in the log, one deleted, one overwritten.
fn write(options: PartitionOptions) -> MemFs {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options).unwrap();
    for n in 0..8_u8 {
        p.put([n], vec![n; 250 + usize::from(n) * 300]).unwrap();
    }
    p.flush().unwrap();
    p.delete([7]).unwrap();
    p.put([6], vec![66; 1000]).unwrap();
    db.close().unwrap();
    fs
}

#[test]
fn a_store_of_version_1_opens_and_lives_on() {
    fixtures::bless("large-v1", || write(options()));
    check("large-v1");
}

#[test]
fn a_store_with_compressed_values_of_version_2_opens_and_lives_on() {
    fixtures::bless("large-v2", || write(compressed()));
    check("large-v2");
}

fn check(fixture: &str) {
    let fs = fixtures::in_memory(fixture);
    let db = open(&fs);
    let p = db.partition("p").unwrap();
    for n in 0..8_u8 {
        let expected = match n {
            6 => Some(vec![66; 1000]),
            7 => None,
            _ => Some(vec![n; 250 + usize::from(n) * 300]),
        };
        assert_eq!(p.get([n]).unwrap().map(|value| value.to_vec()), expected);
    }
    p.put([7], vec![77; 777]).unwrap();
    p.compact(..).unwrap();
    assert!(db.verify(Default::default()).unwrap().is_sound());
}
