//! Bulk loads: which entries they accept, which they refuse, and what readers see of them.

use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, Fs, MemFs, OpKind};
use siltstone::metahive::{ScrubOptions, VerifiedBy};
use siltstone::{
    Durability, Error, ErrorKind, LargeValueOptions, MetaHiveOptions, Partition, PartitionOptions,
};

use super::{Content, check, content, open, small};

fn key(number: u32) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

fn entries(numbers: impl Iterator<Item = u32>, value: &str) -> Content {
    numbers.map(|number| (key(number), format!("{value} {number}").into_bytes())).collect()
}

fn put_all(p: &Partition, entries: &Content) {
    for (key, value) in entries {
        p.put(key, value).unwrap();
    }
}

#[test]
fn a_bulk_load_is_newer_than_earlier_writes_and_older_than_later_ones() {
    let fs = MemFs::new();
    let db = open(&fs, "/db", 1);
    let p = db.partition_with("p", small()).unwrap();
    let mut expected = entries(0..300, "in a table");
    put_all(&p, &expected);
    db.flush().unwrap();
    let in_memory = entries(250..500, "in memory");
    put_all(&p, &in_memory);
    expected.extend(in_memory);
    p.delete(key(7)).unwrap();
    expected.remove(&key(7));
    let before = db.snapshot();
    let seen_before = expected.clone();

    let loaded = entries((0..1000).filter(|n| n % 3 == 1), "loaded");
    let summary = p.bulk_load(&loaded).unwrap();
    assert_eq!(summary.entries, loaded.len() as u64);
    assert!(summary.tables > 3 && summary.seq == db.visible_seq(), "{summary:?}");
    expected.extend(loaded);
    check(&p, &expected, &[key(7), key(2000)]);
    assert_eq!(super::collect(before.range(&p, ..)), seen_before);
    let after = p.put(key(10), "after").unwrap();
    assert!(after.seq > summary.seq);
    expected.insert(key(10), b"after".to_vec());
    drop(before);
    p.compact(..).unwrap();
    check(&p, &expected, &[key(2)]);
    assert!(db.verify(Default::default()).unwrap().is_sound());
    drop((p, db));
    check(&open(&fs, "/db", 2).partition("p").unwrap(), &expected, &[]);
}

/// Checks the error, the key that it names, and that nothing of the load is left.
#[track_caller]
fn refused(fs: &MemFs, names: &str, kind: ErrorKind, load: &[(&str, &[u8])]) {
    let db = open(fs, "/db", 3);
    let p = db.partition("p").unwrap();
    let before = content(&p);
    let listed = fs.list(Path::new("/db"), "").unwrap();
    let seq = db.visible_seq();
    let error = p.bulk_load(load.iter().copied()).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(names), "{error}");
    assert_eq!((content(&p), db.visible_seq()), (before, seq));
    assert_eq!(fs.list(Path::new("/db"), "").unwrap(), listed);
    p.put("a", "still writable").unwrap();
}

#[test]
fn an_unsorted_bulk_load_is_refused_and_leaves_nothing() {
    let fs = MemFs::new();
    drop(open(&fs, "/db", 1).partition_with("p", small()).unwrap());
    let large = [7; 3000];
    let unsorted = [("a", &large[..]), ("c", &large), ("e", &large), ("b\0", &large)];
    refused(&fs, "\"b\\x00\"", ErrorKind::InvalidArgument, &unsorted);
    let twice = [("a", &large[..]), ("c", &large), ("c", &large)];
    refused(&fs, "\"c\" comes twice", ErrorKind::InvalidArgument, &twice);
    let twice = [("", &large[..]), ("", &large)];
    refused(&fs, "\"\" comes twice", ErrorKind::InvalidArgument, &twice);
    let db = open(&fs, "/db", 4);
    let p = db.partition("p").unwrap();
    let seq = db.visible_seq();
    let empty = p.bulk_load([("", ""); 0]).unwrap();
    assert_eq!((empty.tables, empty.seq, db.visible_seq()), (0, seq, seq));
    let listed = fs.list(Path::new("/db"), "").unwrap();
    let stopped: Result<_, Error> = p.bulk_load_by(|load| {
        load.put("k", [1; 5000])?;
        Err(Error::new(ErrorKind::WouldStall, "the source ended"))
    });
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::WouldStall);
    assert!(!p.contains("k").unwrap());
    assert_eq!(fs.list(Path::new("/db"), "").unwrap(), listed);
    db.drop_partition("p").unwrap();
    assert_eq!(p.bulk_load([("a", "b")]).unwrap_err().kind(), ErrorKind::PartitionNotFound);
}

#[test]
fn a_load_keeps_to_the_limits_and_the_reserved_keys_of_a_put() {
    let fs = MemFs::new();
    let db = open(&fs, "/db", 1);
    let p = db.partition_with("p", small()).unwrap();
    p.put("a", "before the rules").unwrap();
    // A partition that exists stores keys unchanged, so that some keys are reserved from now on.
    db.partition_with("p", small().metahive(MetaHiveOptions::new())).unwrap();
    let most = vec![7; 64 << 20];
    let beyond = vec![7; (64 << 20) + 1];
    let cases: [(&str, &[u8], Option<ErrorKind>); 4] = [
        ("k\x01", b"", Some(ErrorKind::ReservedKey)),
        ("k\x02", b"", None),
        ("l", &beyond, Some(ErrorKind::LimitExceeded)),
        ("l", &most, None),
    ];
    for (key, value, expected) in cases {
        let refused = p.bulk_load([(key, value)]).map_err(|error| error.kind()).err();
        assert_eq!(refused, expected, "{key:?}");
        assert_eq!(p.put(key, value).map_err(|error| error.kind()).err(), expected, "{key:?}");
    }
}

#[test]
fn a_load_into_a_partition_that_is_dropped_meanwhile_ends_soon() {
    for dropped_after in [0, 6000] {
        let fs = MemFs::new();
        let db = open(&fs, "/db", 1);
        let p = db.partition_with("p", small()).unwrap();
        let mut taken = 0;
        let stopped: Result<_, Error> = p.bulk_load_by(|load| {
            for number in 0..20_000 {
                load.put(key(number), "")?;
                if number == dropped_after {
                    db.drop_partition("p")?;
                }
                taken = number;
            }
            Ok(())
        });
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::PartitionNotFound);
        let late = taken - dropped_after;
        assert!(late < 5000, "{late} entries were taken after the drop");
    }
}

/// The keys of a load are checked against the rules at its end as well: the rules may have changed
/// in the meantime.
#[test]
fn a_load_with_a_key_that_is_reserved_meanwhile_is_refused() {
    let fs = MemFs::new();
    let db = open(&fs, "/db", 1);
    let p = db.partition_with("p", small()).unwrap();
    p.put("a", "before the rules").unwrap();
    for (key, expected) in [("k\x01", Some(ErrorKind::ReservedKey)), ("k\x02", None)] {
        let loaded: Result<_, Error> = p.bulk_load_by(|load| {
            load.put(key, "loaded")?;
            let sealed = small().metahive(MetaHiveOptions::new());
            db.partition_with("p", sealed).map(drop)
        });
        assert_eq!(loaded.map_err(|error| error.kind()).err(), expected, "{key:?}");
    }
    assert_eq!(content(&p).len(), 2);
    assert_eq!(p.get("k\x02").unwrap().as_deref(), Some(&b"loaded"[..]));
}

/// The tables are complete and durable when the sync of the log fails; no edit names them.
#[test]
fn a_bulk_load_that_fails_after_its_tables_removes_them() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let db = super::try_open(Arc::new(fs.clone()), "/db", 1).unwrap();
    let p = db.partition_with("p", small()).unwrap();
    p.put("z", "in the log, not synced").unwrap();
    let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".wal".to_owned(), nth: 0 };
    fs.add_rule(FaultRule::once(at, FaultAction::Eio));
    let failed = p.bulk_load(entries(0..100, "loaded")).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::ReadOnly, "{failed}");
    let left = mem.list(Path::new("/db"), "").unwrap();
    assert_eq!(left.iter().filter(|entry| entry.name.ends_with(".sst")).count(), 0);
}

/// The closure may ignore the error of a put. Such a load used to be installed without the entry.
#[test]
fn a_bulk_load_with_a_failed_put_is_refused_whatever_its_closure_returns() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let db = super::try_open(Arc::new(fs.clone()), "/db", 1).unwrap();
    let p = db.partition_with("p", small()).unwrap();
    let listed = mem.list(Path::new("/db"), "").unwrap();
    let unsorted: Result<_, Error> = p.bulk_load_by(|load| {
        load.put("b", "first")?;
        let refused = load.put("a", "second").unwrap_err();
        let again = load.put("c", "third").unwrap_err();
        assert_eq!(again.to_string(), refused.to_string());
        Ok(())
    });
    assert_eq!(unsorted.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let at = FaultAt::Nth { kind: OpKind::Append, suffix: ".sst".to_owned(), nth: 1 };
    fs.add_rule(FaultRule::once(at, FaultAction::Eio));
    let broken: Result<_, Error> = p.bulk_load_by(|load| {
        let failed = (0..10_000).filter(|n| load.put(key(*n), [7; 300]).is_err()).count();
        assert!(failed > 1, "every put after the one that failed fails");
        Ok(())
    });
    assert_eq!(broken.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(p.iter().count(), 0);
    let left = mem.list(Path::new("/db"), "").unwrap();
    assert_eq!(left, listed, "nothing is left");
}

/// Loaded entries get their metadata as flushed entries do, and keep it when they are merged.
#[test]
fn a_load_into_a_partition_with_metahive_is_sealed() {
    let fs = MemFs::new();
    let db = open(&fs, "/db", 1);
    let sealed = PartitionOptions::new().table_bytes(4 << 10).block_bytes(256);
    let p = db.partition_with("p", sealed.metahive(MetaHiveOptions::default())).unwrap();
    p.put(key(5), "first").unwrap();
    let mut expected = entries(0..400, "loaded");
    // Any key is accepted, also those whose stored form is longer.
    for tail in [&b"\0"[..], b"\0\0", b"\x01", b"\x02"] {
        expected.insert([&key(33)[..], tail].concat(), tail.to_vec());
    }
    p.bulk_load(&expected).unwrap();
    for _ in 0..2 {
        check(&p, &expected, &[key(999)]);
        let report = p.scrub(ScrubOptions::new()).unwrap();
        assert!(
            report.is_sound() && report.is_sealed() && report.counts.entries >= 400,
            "{report}"
        );
        for (key, value) in &expected {
            let found = p.verified_get(key).unwrap().unwrap();
            assert!(found.by == VerifiedBy::Metadata && *found.value == value[..]);
        }
        p.put(key(9), "later").unwrap();
        expected.insert(key(9), b"later".to_vec());
        p.compact(..).unwrap();
    }
}

#[test]
fn a_load_needs_no_log() {
    let fs = MemFs::new();
    let db = open(&fs, "/db", 1);
    let p = db.partition_with("p", small().logged(false)).unwrap();
    let before = db.stats().wal_bytes;
    let expected = entries(0..200, "loaded");
    p.bulk_load(&expected).unwrap();
    assert_eq!(db.stats().wal_bytes, before);
    let image = fs.crash_clone(lsm_core::fs::CrashOutcome::Nothing, &mut || 0);
    assert_eq!(content(&open(&image, "/db", 2).partition("p").unwrap()), expected);
}

fn chunk_bytes(fs: &MemFs) -> u64 {
    let all = fs.list(Path::new("/db"), "").unwrap();
    all.iter().filter(|entry| entry.name.ends_with(".chunk")).map(|entry| entry.len).sum()
}

/// Values that belong in chunk files go there at once; those of a load that fails are released.
#[test]
fn large_values_of_a_bulk_load_go_to_chunk_files() {
    let fs = MemFs::new();
    let sizes = LargeValueOptions::new().threshold_bytes(256).chunk_bytes(4 << 10);
    let options = small().large_values(sizes.sub_block_bytes(256));
    let db = open(&fs, "/db", 1);
    let p = db.partition_with("p", options).unwrap();
    let small_values = entries(0..100, "small");
    let mut expected: Content =
        (0..100).map(|n| (key(n), vec![n as u8; if n % 5 == 0 { 2000 } else { 9 }])).collect();
    p.bulk_load(&expected).unwrap();
    assert!(chunk_bytes(&fs) >= 20 * 2000 && db.stats().table_bytes < 8000, "{:?}", db.stats());
    check(&p, &expected, &[]);
    let failed: Result<_, Error> = p.bulk_load_by(|load| {
        (0..40).try_for_each(|n| load.put(key(n), [7; 3000]))?;
        Err(Error::new(ErrorKind::WouldStall, "the source ended"))
    });
    failed.unwrap_err();
    check(&p, &expected, &[]);
    let image = fs.crash_clone(lsm_core::fs::CrashOutcome::Nothing, &mut || 0);
    let after = open(&image, "/db", 2);
    let p_after = after.partition("p").unwrap();
    check(&p_after, &expected, &[]);
    assert!(after.verify(Default::default()).unwrap().is_sound());
    // Later writes shadow them, and their chunks become garbage.
    p.bulk_load(&small_values).unwrap();
    expected.extend(small_values);
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    check(&p, &expected, &[]);
    assert_eq!(chunk_bytes(&fs), 0);
}

#[test]
fn a_load_conflicts_with_a_transaction_that_read_its_keys() {
    let fs = MemFs::new();
    let db = open(&fs, "/db", 1);
    let p = db.partition_with("p", small()).unwrap();
    p.put(key(5), "first").unwrap();
    let mut transaction = db.transaction();
    transaction.get(&p, key(5)).unwrap();
    transaction.put(&p, key(6), "seen");
    let at_most = db.visible_seq();
    let summary = p.bulk_load(entries(0..10, "loaded")).unwrap();
    assert_eq!(transaction.commit(Durability::Os).unwrap_err().kind(), ErrorKind::Conflict);
    let late = db.batch().put(&p, "x", "y").require(&p, key(5), at_most).commit(Durability::Os);
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Conflict);
    db.batch().put(&p, "x", "y").require(&p, key(5), summary.seq).commit(Durability::Os).unwrap();
}
