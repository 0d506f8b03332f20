//! Stores with MetaHive: `tests/fixtures/column/`, of the first version with metadata in a column;
//! `tests/fixtures/metahive/`, of the first version with 3 bytes of the checksum of a checksum; and
//! `tests/fixtures/keys/`, of an earlier one, which stored all 8 bytes.
//!
//! `BLESS_FIXTURE=column cargo test fixtures_of_short_metadata` writes the first one again. Do this
//! only before its format is released.

use std::collections::BTreeSet;

use lsm_core::raw::RawMode;
use metahive::payload::PAYLOAD_BYTES;
use metahive::{MetaHiveOptions, ScrubOptions};
use siltstone::Partition;

use super::*;

const KEYS: u32 = 60;
/// Length of the payload in tables of earlier versions.
const LONG_BYTES: usize = 24;
/// Offset of the incompatible features in the footer, from the end of the table.
const FEATURES_AT: usize = 152 - 16;

fn key(n: u32) -> String {
    format!("key {n:03}")
}

fn value(n: u32) -> String {
    format!("value {n}")
}

/// Two tables of one partition, with deletions, and with versions that a snapshot kept.
fn write_column() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let options = PartitionOptions::new().block_bytes(512).level0_tables(100);
    let p = db.partition_with("p", options.metahive(MetaHiveOptions::new())).unwrap();
    for n in 0..KEYS {
        p.put(key(n), "old").unwrap();
    }
    let before = db.snapshot();
    for n in 0..KEYS / 2 {
        p.put(key(n), value(n)).unwrap();
    }
    db.flush().unwrap();
    drop(before);
    for n in KEYS / 2..KEYS {
        p.put(key(n), value(n)).unwrap();
    }
    p.put("gone", "soon").unwrap();
    p.delete("gone").unwrap();
    db.flush().unwrap();
    drop(p);
    db.close().unwrap();
    fs
}

/// The lengths of all metadata entries in the tables of a partition.
fn payloads(p: &Partition) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    for table in p.walk().unwrap().tables() {
        let mut entries = table.walk(RawMode::default()).unwrap();
        while let Some(entry) = entries.next().unwrap() {
            if entry.hidden {
                found.insert(entry.value.len());
            }
        }
    }
    found
}

/// Metadata is read in the form in which it is stored, and compactions write it in the short form.
fn check_compacted(p: &Partition, before: usize) {
    let found = payloads(p);
    assert!(found.contains(&before), "{found:?}");
    assert!(p.scrub(ScrubOptions::new()).unwrap().is_sound());
    p.compact(..).unwrap();
    assert_eq!(payloads(p), BTreeSet::from([PAYLOAD_BYTES]));
    assert!(p.scrub(ScrubOptions::new()).unwrap().is_sound());
}

#[test]
fn fixtures_of_short_metadata_open_and_verify() {
    fixtures::bless("column", write_column);
    for name in ["column", "metahive"] {
        check_short(name);
    }
}

fn check_short(name: &str) {
    let dir = fixtures::on_disk(name);
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition("p").unwrap();
    for is_compacted in [false, true] {
        for n in 0..KEYS {
            let found = p.verified_get(key(n)).unwrap().unwrap();
            assert_eq!(found.value[..], *value(n).as_bytes());
        }
        assert_eq!((p.get("gone").unwrap(), p.iter().count() as u32), (None, KEYS));
        if !is_compacted {
            check_compacted(&p, PAYLOAD_BYTES);
        }
    }
}

#[test]
fn metadata_of_an_earlier_version_is_compacted_into_the_short_form() {
    let dir = fixtures::on_disk("keys");
    let db = Db::open(dir.path()).unwrap();
    for name in ["escaped", "terminated"] {
        let p = db.partition(name).unwrap();
        check_compacted(&p, LONG_BYTES);
    }
}

/// Code that does not know the short form or the column refuses the table with `Unsupported`, and
/// not as damaged.
#[test]
fn tables_say_which_forms_of_hidden_entries_they_have() {
    for (name, expected) in [("keys", 1), ("metahive", 3), ("column", 7)] {
        let fs = fixtures::in_memory(name);
        let tables =
            fs.paths().into_iter().filter(|path| path.extension().is_some_and(|it| it == "sst"));
        let features: BTreeSet<u8> = tables
            .map(|path| {
                let bytes = fs.read_raw(&path).unwrap();
                bytes[bytes.len() - FEATURES_AT]
            })
            .collect();
        assert_eq!(features, BTreeSet::from([expected]), "{name}");
    }
}
