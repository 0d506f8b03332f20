//! Operands over long values, in memory and in chunk files.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{Fs, MemFs};
use siltstone::{Db, ErrorKind, LargeValueOptions};

use super::{check, list, live_operands, of};
use crate::filled::open;

/// Each 64th operand copied the whole value, which was counted as memory and thrown away: after some thousands the
/// memtable was flushed.
#[test]
fn short_operands_of_a_long_value_are_not_folded_by_their_insertion() {
    let db = Db::builder("/db").fs(Arc::new(MemFs::new())).open().unwrap();
    let p = db.partition_with("p", list()).unwrap();
    p.put("key", vec![b'x'; 1 << 20]).unwrap();
    for _ in 0..5000 {
        p.merge("key", "0123456789").unwrap();
    }
    assert_eq!((p.stats().operands_folded, db.stats().flush_count), (0, 0));
    assert_eq!(p.get("key").unwrap().unwrap().len(), (1 << 20) + 5000 * 11);
}

#[test]
fn operands_are_folded_into_large_values_by_compactions() {
    let fs = MemFs::new();
    let db = open(&fs);
    let large = LargeValueOptions::default().threshold_bytes(256);
    let p = db.partition_with("p", list().large_values(large)).unwrap();
    let base = "b".repeat(300);
    p.put("large", &base).unwrap();
    p.merge("large", "1").unwrap();
    p.merge("grown", "g".repeat(160)).unwrap();
    p.merge("grown", "g".repeat(160)).unwrap();
    let expected =
        of(&[("grown", &format!("{0},{0}", "g".repeat(160))), ("large", &format!("{base},1"))]);
    check(&p, &expected);
    db.flush().unwrap();
    check(&p, &expected);
    p.compact(..).unwrap();
    check(&p, &expected);
    db.wait_idle().unwrap();
    assert_eq!(live_operands(&p), 0);
    let space = p.space().unwrap();
    assert!(p.stat_blob("grown").unwrap().is_some_and(|it| it.len == 321), "{space:?}");
    let mut read = String::new();
    p.open_blob("large").unwrap().unwrap().read_to_string(&mut read).unwrap();
    assert_eq!(read, format!("{base},1"));
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

/// Of the keys around it nothing may be kept from compactions.
#[test]
fn a_damaged_large_value_below_an_operand_stops_no_compaction() {
    let fs = MemFs::new();
    let db = open(&fs);
    let large = LargeValueOptions::default().threshold_bytes(256);
    let p = db.partition_with("p", list().large_values(large)).unwrap();
    p.put("large", "b".repeat(300)).unwrap();
    p.put("other", "0").unwrap();
    db.flush().unwrap();
    p.merge("large", "1").unwrap();
    p.merge("other", "1").unwrap();
    let names = fs.list(Path::new("/db"), "").unwrap();
    let chunk = names.iter().find(|entry| entry.name.ends_with(".chunk")).unwrap();
    let path = Path::new("/db").join(&chunk.name);
    fs.corrupt(&path, 200, 1).unwrap();
    for _ in 0..2 {
        p.compact(..).unwrap();
        let error = p.get("large").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert_eq!(error.damage().unwrap().file, path);
        assert_eq!(p.get("other").unwrap().as_deref(), Some(&b"0,1"[..]));
    }
    assert_eq!(p.stats().levels[0].table_count, 0, "it was compacted");
    // A damage of the device that goes away, or a repair.
    fs.corrupt(&path, 200, 1).unwrap();
    check(&p, &of(&[("large", &format!("{},1", "b".repeat(300))), ("other", "0,1")]));
    p.compact(..).unwrap();
    assert_eq!(live_operands(&p), 0);
}
