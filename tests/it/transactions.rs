//! Read, modify, write: counters, requirements of batches, and transactions.
//!
//! `model.rs` predicts every conflict of interleaved transactions on one thread; `history.rs`
//! checks that the transactions committed by threads are serializable.

mod history;
mod locks;
mod model;
mod races;
mod streamed;
mod transact;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use lsm_core::fs::{CrashOutcome, MemFs};
use siltstone::{
    Db, Durability, ErrorKind, MetaHiveOptions, Options, Partition, PartitionOptions, Readable,
    Result, Slice, Swap,
};
use testkit::Rng;

use crate::store;

/// Options with which a few kilobytes are flushed and compacted many times.
fn small() -> Options {
    Options::new()
        .write_buffer_bytes(16 << 10)
        .wal_segment_bytes(8 << 10)
        .cache_bytes(64 << 10)
        .compaction_threads(1)
}

fn open(fs: &MemFs) -> Db {
    Db::builder("/db").options(small()).fs(Arc::new(fs.clone())).open().unwrap()
}

/// Options with which nothing is flushed unless the test does it.
fn stepped(fs: &MemFs) -> Db {
    store::stepped(Arc::new(fs.clone()), "/db", 7).open().unwrap()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

fn is_conflict<T>(answer: &Result<T>) -> bool {
    matches!(answer, Err(error) if error.kind() == ErrorKind::Conflict)
}

/// Runs `add` so often on each of eight threads, while others flush, compact and write other keys.
/// Checks that the counter has all additions.
fn check_counter(add: impl Fn(&Db, &Partition) + Sync) {
    const THREADS: u64 = 8;
    const EACH: u64 = 150;
    let db = open(&MemFs::new());
    let page = db.partition("page").unwrap();
    let left = AtomicU64::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    add(&db, &page);
                }
                left.fetch_sub(1, Ordering::Release);
            });
        }
        scope.spawn(|| {
            let mut at = 0_u64;
            while left.load(Ordering::Acquire) > 0 {
                at += 1;
                page.put((at % 97).to_be_bytes(), [7; 300]).unwrap();
                if at.is_multiple_of(50) {
                    page.compact(..).unwrap();
                }
            }
        });
    });
    assert_eq!(number(&page.get("counter").unwrap().unwrap()), THREADS * EACH);
    db.close().unwrap();
}

#[test]
fn eight_threads_that_update_one_counter_lose_nothing() {
    check_counter(|_, page| {
        page.update("counter", |old| Some((old.map_or(0, number) + 1).to_be_bytes())).unwrap();
    });
}

#[test]
fn eight_threads_that_compare_and_set_one_counter_lose_nothing() {
    check_counter(|_, page| {
        let mut old = page.get("counter").unwrap();
        loop {
            let new = (old.as_deref().map_or(0, number) + 1).to_be_bytes();
            match page.compare_and_set("counter", old.as_deref(), Some(&new)).unwrap() {
                Swap::Done(_) => return,
                Swap::Differs(present) => old = present,
            }
        }
    });
}

#[test]
fn eight_threads_with_transactions_on_one_counter_lose_nothing() {
    check_counter(|db, page| {
        loop {
            let mut transaction = db.transaction();
            let old = transaction.get(page, "counter").unwrap();
            let new = old.as_deref().map_or(0, number) + 1;
            transaction.put(page, "counter", new.to_be_bytes());
            match transaction.commit(Durability::Os) {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
                Ok(_) => return,
            }
        }
    });
}

#[test]
fn update_and_compare_and_set_treat_absence_as_a_value() {
    let db = stepped(&MemFs::new());
    let p = db.partition("default").unwrap();
    let nothing: Option<&str> = None;
    let before = db.visible_seq();
    p.update("k", |old| old.map(<[u8]>::to_vec)).unwrap();
    assert_eq!(db.visible_seq(), before, "nothing was there and nothing is written");
    let first = p.update("k", |old| old.is_none().then_some("a")).unwrap();
    assert_eq!((first.old, first.new), (None, Some("a")));
    assert_eq!(first.commit.seq, db.visible_seq());
    assert_eq!(p.get("k").unwrap().unwrap(), b"a");
    p.update("k", |old| old.is_none().then_some("b")).unwrap();
    assert!(!p.contains("k").unwrap());

    assert_eq!(p.compare_and_set("k", Some(b"a"), Some(b"b")).unwrap(), Swap::Differs(None));
    assert!(p.compare_and_set("k", None, Some(b"b")).unwrap().is_done());
    let differs = Swap::Differs(Some(Slice::from("b")));
    assert_eq!(p.compare_and_set("k", None, Some(b"c")).unwrap(), differs);
    assert!(p.compare_and_set("k", Some(b"b"), None).unwrap().is_done());
    assert!(p.compare_and_set("k", None, None).unwrap().is_done());
    assert!(!p.contains("k").unwrap());
    let synced = Durability::Sync;
    assert!(p.compare_and_set_with("k", None, Some(b"d"), synced).unwrap().is_done());
    let deleted = p.update_with("k", synced, |_| nothing).unwrap();
    assert_eq!(deleted.commit.seq, db.durable_seq());
    assert_eq!((deleted.old.as_deref(), deleted.new), (Some(&b"d"[..]), None));
}

/// A write between the read and the write is neither lost nor overwritten.
#[test]
fn a_conflicting_update_is_computed_again() {
    let db = stepped(&MemFs::new());
    let p = db.partition("p").unwrap();
    p.put("k", "1").unwrap();
    for is_flushed in [false, true] {
        let mut seen = Vec::new();
        let updated = p.update("k", |old| {
            let old = String::from_utf8(old.unwrap().to_vec()).unwrap();
            seen.push(old.clone());
            if seen.len() == 1 {
                p.put("k", "2").unwrap();
                if is_flushed {
                    p.flush().unwrap();
                }
            }
            Some(format!("{old}+"))
        });
        let updated = updated.unwrap();
        assert_eq!(updated.old.as_deref(), Some(&b"2"[..]), "of the round that was committed");
        assert_eq!(updated.new.as_deref(), Some("2+"));
        assert_eq!(seen.last().unwrap(), "2");
        assert_eq!(p.get("k").unwrap().unwrap(), b"2+");
    }
}

/// A requirement that there is no newer operation on a key has the same effect wherever the newest
/// one is stored.
#[test]
fn a_requirement_sees_memtables_tables_deletions_and_ingests() {
    let fs = MemFs::new();
    let db = stepped(&fs);
    let p = db.partition("p").unwrap();
    let source = db.partition("source").unwrap();
    p.put("k", "1").unwrap();
    source.put("k", "from afar").unwrap();
    source.export(.., "/export").unwrap();
    let places: [(&str, &dyn Fn()); 6] = [
        ("memtable", &|| {
            p.put("k", "2").unwrap();
        }),
        ("table", &|| {
            p.put("k", "3").unwrap();
            p.flush().unwrap();
        }),
        ("table at the bottom", &|| {
            p.put("k", "4").unwrap();
            p.compact(..).unwrap();
        }),
        ("deleted and compacted away", &|| {
            p.delete("k").unwrap();
            p.compact(..).unwrap();
        }),
        ("ingested", &|| {
            p.ingest("/export").unwrap();
        }),
        ("written by a batch", &|| {
            db.batch().put(&p, "j", "").put(&p, "k", "5").commit(Durability::Os).unwrap();
        }),
    ];
    for (place, write) in places {
        let before = db.visible_seq();
        write();
        let late = db.batch().require(&p, "k", before).put(&p, "late", place);
        let error = late.commit(Durability::Os).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{place}");
        assert!(error.to_string().contains("partition \"p\": key \"k\""), "{error}");
        assert!(!p.contains("late").unwrap());
        let in_time = db.batch().require(&p, "k", db.visible_seq()).put(&p, "in time", place);
        in_time.commit(Durability::Os).unwrap();
        // Operations on other keys have no effect, in memory or in tables.
        let seq = db.visible_seq();
        p.put("i", "").unwrap();
        p.put("l", "").unwrap();
        p.flush().unwrap();
        p.put("i", "").unwrap();
        if p.contains("k").unwrap() {
            db.batch().require(&p, "k", seq).put(&p, "m", "").commit(Durability::Os).unwrap();
        }
    }
    // A batch that only requires writes nothing, and reports whether it could.
    let seq = db.visible_seq();
    assert_eq!(db.batch().require(&p, "k", seq).commit(Durability::Os).unwrap().seq, seq);
    p.put("k", "6").unwrap();
    assert!(is_conflict(&db.batch().require(&p, "k", seq).commit(Durability::Os)));
}

/// A key that ends in a byte of 1 is stored with a zero byte after it.
#[test]
fn a_scan_covers_the_last_key_that_it_read_however_it_is_stored() {
    let db = stepped(&MemFs::new());
    let options = PartitionOptions::new().metahive(MetaHiveOptions::default());
    let p = db.partition_with("p", options).unwrap();
    p.put(b"a\x01", "1").unwrap();
    p.put("b", "2").unwrap();
    let mut transaction = db.transaction();
    assert_eq!(transaction.range(&p, ..).take(1).count(), 1);
    p.put(b"a\x01", "3").unwrap();
    transaction.put(&p, "c", "4");
    assert!(is_conflict(&transaction.commit(Durability::Os)));
}

#[test]
fn a_range_that_was_read_lets_no_phantom_in() {
    let db = stepped(&MemFs::new());
    let p = db.partition("p").unwrap();
    for key in ["b", "d", "f", "h"] {
        p.put(key, "old").unwrap();
    }
    // The reads of the transaction, the key that is written, whether they conflict.
    type Read<'a> = &'a dyn Fn(&siltstone::Transaction);
    let whole: Read<'_> = &|tx| assert_eq!(tx.range(&p, "b".."g").count(), 3);
    let first_two: Read<'_> = &|tx| assert_eq!(tx.range(&p, "b".."g").take(2).count(), 2);
    let last: Read<'_> = &|tx| {
        let last = tx.range(&p, "b".."g").next_back().unwrap().unwrap();
        assert_eq!(last.0, "f");
    };
    let both_ends: Read<'_> = &|tx| {
        let mut range = tx.range(&p, "b".."g");
        assert_eq!(range.next().unwrap().unwrap().0, "b");
        assert_eq!(range.next_back().unwrap().unwrap().0, "f");
    };
    let cases: [(&str, Read<'_>, &str, bool); 14] = [
        ("whole", whole, "c", true),
        ("whole", whole, "b", true),
        ("whole", whole, "fz", true),
        ("whole", whole, "g", false),
        ("whole", whole, "a", false),
        ("first two", first_two, "c", true),
        ("first two", first_two, "d", true),
        ("first two", first_two, "e", false),
        ("last", last, "fa", true),
        ("last", last, "f", true),
        ("last", last, "e", false),
        ("both ends", both_ends, "b", true),
        ("both ends", both_ends, "fb", true),
        ("both ends", both_ends, "d", false),
    ];
    for is_flushed in [false, true] {
        for (name, read, comes_in, expected) in cases {
            let mut transaction = db.transaction();
            read(&transaction);
            transaction.put(&p, "written", name);
            p.put(comes_in, "phantom").unwrap();
            if is_flushed {
                p.compact(..).unwrap();
            }
            let refused = is_conflict(&transaction.commit(Durability::Os));
            assert_eq!(refused, expected, "{name}, {comes_in}, flushed: {is_flushed}");
            if !["b", "d", "f"].contains(&comes_in) {
                p.delete(comes_in).unwrap();
            }
        }
    }
}

fn texts(range: &mut dyn Iterator<Item = Result<(Slice, Slice)>>) -> Vec<String> {
    range.map(|entry| entry.unwrap()).map(|(k, v)| format!("{k:?}={v:?}")).collect()
}

#[test]
fn a_transaction_reads_its_own_writes_and_no_later_ones() {
    let db = stepped(&MemFs::new());
    let p = db.partition("p").unwrap();
    for key in ["a", "c", "e"] {
        p.put(key, "stored").unwrap();
    }
    let mut tx = db.transaction();
    p.put("b", "too late").unwrap();
    tx.put(&p, "d", "own");
    tx.put(&p, "e", "own");
    tx.delete(&p, "a");
    let expected = ["b\"c\"=b\"stored\"", "b\"d\"=b\"own\"", "b\"e\"=b\"own\""];
    assert_eq!(texts(&mut tx.iter(&p)), expected);
    let mut backwards = texts(&mut tx.iter(&p).rev());
    backwards.reverse();
    assert_eq!(backwards, expected);
    assert_eq!(texts(&mut tx.prefix(&p, "d")), expected[1..2]);
    assert_eq!(texts(&mut tx.range(&p, "x".."b")), [""; 0]);
    let view = tx.of(&p);
    assert_eq!(view.first().unwrap().unwrap().0, "c");
    assert_eq!((view.contains("a").unwrap(), view.contains("b").unwrap()), (false, false));
    // A range continues with the content at its begin.
    let mut range = tx.iter(&p);
    assert_eq!(range.next().unwrap().unwrap().0, "c");
    tx.put(&p, "cc", "newer than the range");
    assert_eq!(texts(&mut range).len(), 2);
    assert!(tx.contains(&p, "cc").unwrap());
    // No other reader sees any of it.
    assert!(p.contains("a").unwrap() && !p.contains("d").unwrap());
    drop(tx);
    assert!(!p.contains("d").unwrap());
}

#[test]
fn a_transaction_that_writes_nothing_never_conflicts() {
    let db = stepped(&MemFs::new());
    let p = db.partition("p").unwrap();
    p.put("k", "1").unwrap();
    let tx = db.transaction();
    let began = db.visible_seq();
    assert_eq!(tx.get(&p, "k").unwrap().unwrap(), b"1");
    p.put("k", "2").unwrap();
    assert_eq!(tx.get(&p, "k").unwrap().unwrap(), b"1");
    assert_eq!(tx.commit(Durability::Sync).unwrap().seq, began);
    // Nor does one that reads nothing.
    let mut tx = db.transaction();
    tx.put(&p, "k", "4");
    p.put("k", "3").unwrap();
    tx.commit(Durability::Os).unwrap();
    assert_eq!(p.get("k").unwrap().unwrap(), b"4");
}

#[test]
fn a_dropped_partition_refuses_whoever_read_or_wrote_it() {
    let db = stepped(&MemFs::new());
    let other = stepped(&MemFs::new());
    let p = db.partition("p").unwrap();
    let q = db.partition("q").unwrap();
    let mut tx = db.transaction();
    let _ = tx.get(&p, "k").unwrap();
    tx.put(&q, "k", "1");
    let required = db.batch().require(&p, "k", db.visible_seq()).put(&q, "k", "2");
    db.drop_partition("p").unwrap();
    db.partition("p").unwrap().put("k", "of another partition").unwrap();
    assert!(tx.get(&p, "k").unwrap().is_none(), "its snapshot is older than the drop");
    let error = tx.commit(Durability::Os).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PartitionNotFound);
    let error = required.commit(Durability::Os).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PartitionNotFound);
    assert!(!q.contains("k").unwrap());
    // Nor can one transaction have partitions of two databases.
    let foreign = other.partition("default").unwrap();
    let mut tx = db.transaction();
    assert_eq!(tx.get(&foreign, "k").unwrap_err().kind(), ErrorKind::InvalidArgument);
    tx.put(&foreign, "k", "1");
    assert_eq!(tx.commit(Durability::Os).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let required = db.batch().require(&foreign, "k", db.visible_seq());
    assert_eq!(required.commit(Durability::Os).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// The reads of the foreign partition used to replace those of the own partition with the same
/// number, so that the conflict was not found.
#[test]
fn a_range_of_another_database_is_an_error_and_changes_nothing() {
    let db = stepped(&MemFs::new());
    let other = stepped(&MemFs::new());
    let own = db.partition("default").unwrap();
    let foreign = other.partition("default").unwrap();
    let mut tx = db.transaction();
    let error = tx.range(&foreign, ..).next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(tx.get(&own, "k").unwrap().is_none());
    tx.put(&own, "seen", "nothing");
    own.put("k", "1").unwrap();
    assert!(is_conflict(&tx.commit(Durability::Os)));
}

/// Keys of such partitions are stored with a byte after them.
#[test]
fn transactions_span_partitions_with_metadata_for_any_key() {
    let db = stepped(&MemFs::new());
    let options = siltstone::MetaHiveOptions::default();
    let hive = db.partition_with("hive", PartitionOptions::new().metahive(options)).unwrap();
    let plain = db.partition("plain").unwrap();
    let key = [1, 2, 3, 255];
    hive.update(key, |_| Some("1")).unwrap();
    let mut tx = db.transaction();
    assert_eq!(tx.get(&hive, key).unwrap().unwrap(), b"1");
    assert_eq!(tx.range(&hive, [1]..[2]).count(), 1);
    tx.put(&plain, key, "2");
    db.batch().put(&hive, [1, 2, 3], "a phantom").commit(Durability::Os).unwrap();
    hive.flush().unwrap();
    let error = tx.commit(Durability::Os).unwrap_err();
    assert!(error.to_string().contains("\"\\x01\\x02\\x03\" was written"), "{error}");
    assert!(hive.compare_and_set(key, Some(b"1"), Some(b"2")).unwrap().is_done());
}

/// A refused batch is in no log: no crash brings it back, and no acknowledged batch is lost.
#[test]
fn what_was_refused_does_not_appear_after_a_crash() {
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 40;
    let mut rng = Rng::from_env_or(24);
    for outcome in CrashOutcome::ALL {
        let fs = MemFs::new();
        let db = open(&fs);
        let p = db.partition("p").unwrap();
        let refused = Mutex::new(Vec::new());
        let all_have_read = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let db = &db;
                let p = &p;
                let refused = &refused;
                let all_have_read = &all_have_read;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let read_at = db.visible_seq();
                        let old = p.get("counter").unwrap().map_or(0, |old| number(&old));
                        all_have_read.wait();
                        let name = format!("{thread}/{round}");
                        let batch = db
                            .batch()
                            .require(p, "counter", read_at)
                            .put(p, "counter", (old + 1).to_be_bytes())
                            .put(p, &name, "");
                        let answer = batch.commit(Durability::Sync);
                        if is_conflict(&answer) {
                            refused.lock().unwrap().push(name);
                        } else {
                            answer.unwrap();
                        }
                        all_have_read.wait();
                    }
                });
            }
        });
        let refused = refused.into_inner().unwrap();
        // One of each round.
        assert_eq!(refused.len() as u64, (THREADS - 1) * ROUNDS);
        let after = fs.crash_clone(outcome, &mut || rng.next_u64());
        drop((p, db));
        let db = open(&after);
        let p = db.partition("p").unwrap();
        assert_eq!(number(&p.get("counter").unwrap().unwrap()), ROUNDS, "{outcome:?}");
        assert_eq!(p.iter().count() as u64, ROUNDS + 1);
        assert!(refused.iter().all(|name| !p.contains(name).unwrap()), "{outcome:?}");
    }
}
