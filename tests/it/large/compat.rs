//! A store with large values that was written by version 1 of the chunk format:
//! `tests/fixtures/large-v1/`. Every later version must open it. `BLESS_FIXTURE=large-v1
//! cargo test large::compat` writes it anew; do that only for a format that was never shipped.

use lsm_core::fs::MemFs;

use super::{open, options};
use crate::fixtures;

/// Values in two chunks and in the log, one deleted, one overwritten.
fn write() -> MemFs {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
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
    fixtures::bless("large-v1", write);
    let fs = fixtures::in_memory("large-v1");
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
