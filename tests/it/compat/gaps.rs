//! A store that kept a gap: `tests/fixtures/gap/`, of the first version with gaps.
//!
//! `BLESS_FIXTURE=gap cargo test fixture_of_a_gap` writes it again. Do this only before its format
//! is released.

use metahive::{MetaHiveOptions, RepairOptions};

use super::*;
use crate::rot::rot_newest;

const KEYS: u32 = 40;

fn key(n: u32) -> String {
    format!("key {n:03}")
}

/// Two generations of the same keys. The data of the newer table is destroyed and compacted.
fn write_gap() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let repair = RepairOptions { log: false, ..RepairOptions::default() };
    let hive = MetaHiveOptions::new().repair_options(repair);
    let options = PartitionOptions::new().compression(Compression::None).level0_tables(100);
    let p = db.partition_with("p", options.metahive(hive)).unwrap();
    for n in 0..KEYS {
        p.put(key(n), format!("old {n}")).unwrap();
    }
    p.compact(..).unwrap();
    for n in 10..KEYS - 10 {
        p.put(key(n), format!("new {n}")).unwrap();
    }
    db.flush().unwrap();
    rot_newest(&fs, &p);
    p.compact(..).unwrap();
    assert_eq!(p.gaps().len(), 1);
    p.put(key(20), "written into the gap").unwrap();
    drop(p);
    db.close().unwrap();
    fs
}

#[test]
fn a_fixture_of_a_gap_opens_and_keeps_it() {
    fixtures::bless("gap", write_gap);
    let dir = fixtures::on_disk("gap");
    let db = Db::open(dir.path()).unwrap();
    let p = db.partition("p").unwrap();
    assert_eq!(p.gaps().len(), 1);
    for n in 0..KEYS {
        let found = p.get(key(n));
        match n {
            20 => assert_eq!(found.unwrap().as_deref(), Some(&b"written into the gap"[..])),
            10..30 => assert!(found.unwrap_err().is_corruption(), "{n}"),
            _ => assert_eq!(found.unwrap().as_deref(), Some(format!("old {n}").as_bytes())),
        }
    }
    p.compact(..).unwrap();
    assert!(p.get(key(11)).is_err() && p.iter().any(|pair| pair.is_err()));
    p.accept_loss(..).unwrap();
    assert_eq!(p.iter().map(Result::unwrap).count() as u32, KEYS - 20 + 1);
}
