//! The empty key: a key as any other, the first one in the order. The random histories are in `model`.

use std::ops::Bound;
use std::sync::Arc;

use lsm_core::fs::MemFs;
use siltstone::changes::{FeedItem, KeyChange};
use siltstone::metahive::ScrubOptions;
use siltstone::operators::AppendOperator;
use siltstone::secondary::Level;
use siltstone::stream::{StreamExport, StreamFormat, StreamImport};
use siltstone::{
    Db, Durability, ErrorKind, LargeValueOptions, MetaHiveOptions, Partition, PartitionOptions,
    PrefixExtractor, Readable, VerifyOptions,
};

use crate::store::stepped;

/// Long enough to lie in a chunk file, where there are any.
const VALUE: [u8; 300] = [7; 300];

fn open(fs: &MemFs) -> Db {
    stepped(Arc::new(fs.clone()), "/db", 1).open().unwrap()
}

/// Sorts of partitions, with what each stores a key or a value as.
fn sorts() -> [PartitionOptions; 5] {
    let plain = PartitionOptions::new().block_bytes(64);
    [
        plain.clone(),
        plain.clone().metahive(MetaHiveOptions::new()),
        plain.clone().large_values(LargeValueOptions::default().threshold_bytes(256)),
        plain.clone().prefix_extractor(PrefixExtractor::Fixed(2)),
        plain.merge_operator(Arc::new(AppendOperator::new(","))),
    ]
}

fn keys(range: impl Iterator<Item = siltstone::Result<siltstone::Slice>>) -> Vec<Vec<u8>> {
    range.map(|key| key.unwrap().to_vec()).collect()
}

/// Every read of a partition with the keys "", "\0", "\x01\x02" and "b".
fn check(p: &impl Readable, value: &[u8]) {
    let all: [&[u8]; 4] = [b"", b"\0", b"\x01\x02", b"b"];
    assert_eq!(p.get("").unwrap().as_deref(), Some(value));
    assert!(p.contains("").unwrap());
    let many = p.multi_get(&all).unwrap();
    assert!(many.iter().all(Option::is_some));
    assert_eq!(keys(p.keys()), all);
    assert_eq!(keys(p.prefix("").map(|pair| pair.map(|(key, _)| key))), all);
    let mut back = keys(p.iter().rev().map(|pair| pair.map(|(key, _)| key)));
    back.reverse();
    assert_eq!(back, all);
    type Bounds = (Bound<&'static str>, Bound<&'static str>);
    let ranges: [(Bounds, &[&[u8]]); 6] = [
        ((Bound::Included(""), Bound::Unbounded), &all),
        ((Bound::Excluded(""), Bound::Unbounded), &all[1..]),
        ((Bound::Unbounded, Bound::Included("")), &all[..1]),
        ((Bound::Unbounded, Bound::Excluded("")), &[]),
        ((Bound::Unbounded, Bound::Excluded("\0")), &all[..1]),
        ((Bound::Included("\0"), Bound::Excluded("b")), &all[1..3]),
    ];
    for (range, expected) in ranges {
        let found = keys(p.range(range).map(|pair| pair.map(|(key, _)| key)));
        assert_eq!(found, expected, "{range:?}");
    }
}

fn check_cursor(p: &Partition) {
    let mut cursor = p.cursor();
    cursor.seek("").unwrap();
    assert_eq!((cursor.valid(), cursor.key()), (true, &b""[..]));
    cursor.next().unwrap();
    assert_eq!(cursor.key(), b"\0");
    cursor.prev().unwrap();
    assert_eq!(cursor.key(), b"");
    cursor.prev().unwrap();
    assert!(!cursor.valid());
    cursor.seek_before("\0").unwrap();
    assert_eq!((cursor.valid(), cursor.key()), (true, &b""[..]));
    cursor.seek_before("").unwrap();
    assert!(!cursor.valid(), "no key is before it");
    cursor.seek_to_first().unwrap();
    assert_eq!(cursor.key(), b"");
}

#[test]
fn every_read_of_every_sort_of_partition_finds_the_empty_key() {
    let fs = MemFs::new();
    let mut db = open(&fs);
    for (number, options) in sorts().into_iter().enumerate() {
        let name = format!("p{number}");
        let p = db.partition_with(&name, options).unwrap();
        for key in [&b"b"[..], b"\x01\x02", b"\0", b""] {
            p.put(key, VALUE).unwrap();
        }
        // In memory, in a table, in a table below, and from the log.
        for round in 0..4 {
            check(&p, &VALUE);
            check_cursor(&p);
            let snapshot = db.snapshot();
            assert_eq!(keys(snapshot.keys(&p)).len(), 4, "{name}, round {round}");
            match round {
                0 => db.flush().unwrap(),
                1 => p.compact(..).unwrap(),
                2 => drop(p.put("", VALUE).unwrap()),
                _ => {}
            }
        }
    }
    drop(db);
    db = open(&fs);
    let secondary = Db::secondary_builder("/db").fs(Arc::new(fs.clone())).open().unwrap();
    for name in db.partition_names().iter().filter(|name| name.starts_with('p')) {
        check(&db.partition(name).unwrap(), &VALUE);
        let reading = secondary.partition(name).unwrap().at(Level::Strong).unwrap();
        check(&reading, &VALUE);
    }
    assert!(db.verify(VerifyOptions::default()).unwrap().is_sound());
    let sealed = db.partition("p1").unwrap();
    assert!(sealed.scrub(ScrubOptions::new()).unwrap().is_sound());
    assert_eq!(sealed.verified_get("").unwrap().unwrap().value[..], VALUE);
    assert!(!db.partition("p0").unwrap().versions("").unwrap().is_empty());
}

fn get(p: &Partition) -> Option<Vec<u8>> {
    p.get("").unwrap().map(|value| value.to_vec())
}

#[test]
fn every_write_takes_the_empty_key() {
    let db = open(&MemFs::new());
    for (number, options) in sorts().into_iter().enumerate() {
        let p = db.partition_with(&format!("p{number}"), options).unwrap();
        db.batch().put(&p, "", "1").put(&p, "a", "1").commit(Durability::Os).unwrap();
        assert_eq!(get(&p).unwrap(), b"1");
        p.delete("").unwrap();
        assert_eq!((get(&p), p.get("a").unwrap().is_some()), (None, true));
        p.update("", |old| old.is_none().then_some(b"2")).unwrap();
        assert_eq!(get(&p).unwrap(), b"2");
        // The range of this key alone, and ranges that begin with it and after it.
        p.delete_range("".."\0").unwrap();
        assert_eq!((get(&p), p.get("a").unwrap().is_some()), (None, true));
        p.put("", "3").unwrap();
        p.delete_range((Bound::Excluded(""), Bound::Unbounded)).unwrap();
        assert_eq!((get(&p).unwrap(), p.get("a").unwrap()), (b"3".to_vec(), None));
        p.delete_range(..="").unwrap();
        assert_eq!(get(&p), None);
        p.put("", "4").unwrap();
        p.delete_range(.."").unwrap();
        assert_eq!(get(&p).unwrap(), b"4", "nothing is before it");
        p.delete_prefix("").unwrap();
        assert_eq!(get(&p), None);
        p.put("", "5").unwrap();
        p.clear().unwrap();
        assert_eq!(get(&p), None);
        db.flush().unwrap();
        p.compact(..).unwrap();
        assert_eq!(p.iter().count(), 0);
    }
    let lists = db.partition("p4").unwrap();
    lists.merge("", "1").unwrap();
    db.flush().unwrap();
    lists.merge("", "2").unwrap();
    assert_eq!(lists.get("").unwrap().unwrap(), b"1,2"[..]);
}

#[test]
fn transactions_conflict_over_the_empty_key() {
    let db = open(&MemFs::new());
    let p = db.partition("p").unwrap();
    p.put("", "1").unwrap();
    let mut first = db.transaction();
    assert!(first.get(&p, "").unwrap().is_some());
    first.put(&p, "b", "1");
    p.put("", "2").unwrap();
    assert_eq!(first.commit(Durability::Os).unwrap_err().kind(), ErrorKind::Conflict);
    let mut second = db.transaction();
    assert!(second.get_for_update(&p, "").unwrap().is_some());
    second.put(&p, "", "3");
    second.delete_range(&p, "\0"..);
    assert_eq!(second.get(&p, "").unwrap().unwrap(), b"3"[..]);
    second.commit(Durability::Os).unwrap();
    let mut third = db.transaction();
    third.delete_range(&p, .."\0");
    assert_eq!(third.get(&p, "").unwrap(), None);
    third.put(&p, "", "4");
    assert_eq!(keys(third.iter(&p).map(|pair| pair.map(|(key, _)| key))), [b""]);
    third.commit(Durability::Os).unwrap();
    assert_eq!(p.get("").unwrap().unwrap(), b"4"[..]);
    let newest = db.visible_seq();
    let required = db.batch().require(&p, "", newest).put(&p, "", "5");
    p.put("", "6").unwrap();
    assert_eq!(required.commit(Durability::Os).unwrap_err().kind(), ErrorKind::Conflict);
}

fn check_copy(db: &Db) {
    let found = db.partition("p").unwrap();
    assert_eq!(keys(found.keys()), [&b""[..], b"b"]);
    assert_eq!(found.get("").unwrap().unwrap(), b"first"[..]);
}

#[test]
fn the_empty_key_leaves_and_enters_with_every_copy() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition("p").unwrap();
    p.put("", "first").unwrap();
    p.put_with("b", "second", Durability::Sync).unwrap();
    let mut feed = db.changes(siltstone::SeqNo::ZERO).unwrap();
    let first = feed.try_next().unwrap();
    let Some(FeedItem::Commit(batch)) = &first else { panic!("{first:?}") };
    assert!(matches!(&batch.changes[0].1, KeyChange::Put { key, .. } if key.is_empty()));
    db.checkpoint("/copy").unwrap();
    check_copy(&stepped(Arc::new(fs.clone()), "/copy", 1).open().unwrap());
    p.export("".."c", "/tables").unwrap();
    let other = stepped(Arc::new(fs.clone()), "/other", 1).open().unwrap();
    other.partition("p").unwrap().ingest("/tables").unwrap();
    check_copy(&other);
    for format in [StreamFormat::Checked, StreamFormat::BerkeleyText] {
        let mut stream = Vec::new();
        db.export_stream(&mut stream, &StreamExport::new().format(format)).unwrap();
        let other = open(&MemFs::new());
        other.import_stream(&stream[..], &StreamImport::new()).unwrap();
        check_copy(&other);
    }
    let loaded = open(&MemFs::new());
    let q = loaded.partition("p").unwrap();
    q.bulk_load([("", "first"), ("b", "second")]).unwrap();
    check_copy(&loaded);
    db.close().unwrap();
    stepped(Arc::new(fs.clone()), "/db", 1).repair_into("/new").unwrap();
    check_copy(&stepped(Arc::new(fs), "/new", 1).open().unwrap());
}
