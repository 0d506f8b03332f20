//! Deleted ranges of keys: which readers see them, what survives, and when the space comes back.

mod asked;
mod transactions;

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_core::fs::{CrashOutcome, FaultFs, FsOp, MemFs, OpKind};

use siltstone::metahive::ScrubOptions;
use siltstone::operators::AppendOperator;
use siltstone::secondary::{Level, Secondary, SecondaryPartition};
use siltstone::{
    Db, Durability, ErrorKind, LargeValueOptions, MetaHiveOptions, Partition, PartitionOptions,
    Readable,
};
use testkit::Rng;

use crate::clock::ManualClock;
use crate::filled::{content, files, fill, filled, idle, key, open, open_on, pair, small};
use crate::store::Content;

fn without(content: &Content, numbers: std::ops::Range<u32>) -> Content {
    let mut content = content.clone();
    numbers.for_each(|number| drop(content.remove(key(number).as_bytes())));
    content
}

#[test]
fn a_deleted_range_hides_earlier_entries_but_not_from_snapshots() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = filled(&db, small());
    let before = content(&p);
    let snapshot = db.snapshot();
    let mut cursor = p.cursor();
    let commit = p.delete_range(key(50)..key(320)).unwrap();
    assert_eq!(commit.seq, db.visible_seq());
    assert_eq!(commit.seq.get(), snapshot.seq().get() + 1, "one number however much it covers");
    let mut expected = without(&before, 50..320);
    assert_eq!(content(&p), expected);
    cursor.seek(key(60)).unwrap();
    assert_eq!(cursor.key(), key(60).as_bytes(), "it was opened before");
    // In the order of the batch.
    let mut batch = db.batch().put(&p, key(60), "lost").delete_range(&p, key(55)..=key(70));
    batch
        .of(&p)
        .put(key(61), "kept")
        .delete(key(62))
        .put(key(63), "kept")
        .delete_prefix("key 0063");
    batch.commit(Durability::Os).unwrap();
    let later = db.snapshot();
    expected.insert(key(61).into(), b"kept".to_vec());
    let at_later = expected.clone();
    p.put(key(64), "after").unwrap();
    p.delete_range(key(10)..key(11)).unwrap();
    expected.insert(key(64).into(), b"after".to_vec());
    expected.remove(key(10).as_bytes());
    for round in 0..3 {
        assert_eq!(content(&p), expected, "round {round}");
        assert_eq!(snapshot.iter(&p).map(pair).collect::<Content>(), before);
        assert_eq!(snapshot.iter(&p).rev().map(pair).collect::<Content>(), before);
        for (key, value) in &before {
            assert_eq!(snapshot.get(&p, key).unwrap().as_deref(), Some(&value[..]));
        }
        assert_eq!(later.iter(&p).map(pair).collect::<Content>(), at_later);
        assert!(p.stats().deleted_range_count > 0);
        db.flush().unwrap();
        p.compact(..).unwrap();
        db.wait_idle().unwrap();
    }
    assert!(db.verify(Default::default()).unwrap().is_sound());
    drop((snapshot, later, cursor, p));
    db.close().unwrap();
    let db = open(&fs);
    assert_eq!(content(&db.partition("p").unwrap()), expected);
}

/// As a scan of the same bounds: the bounds say which keys go.
#[test]
fn bounds_delete_what_a_scan_of_them_returns() {
    let keys: [&[u8]; 8] =
        [b"\0", b"a", b"a\0", b"a\0\0", b"ab", b"b\xff", b"b\xff\xff", b"\xff\xff"];
    let mut bounds = vec![Bound::Unbounded];
    for key in keys.iter().copied().chain([&b""[..], b"b"]) {
        bounds.extend([Bound::Included(key), Bound::Excluded(key)]);
    }
    for options in [small(), small().metahive(MetaHiveOptions::default())] {
        let db = open(&MemFs::new());
        let p = db.partition_with("p", options).unwrap();
        for lower in &bounds {
            for upper in &bounds {
                for key in keys {
                    p.put(key, "value").unwrap();
                }
                let range = (*lower, *upper);
                let inside: Vec<_> = p.range(range).map(|pair| pair.unwrap().0).collect();
                p.delete_range(range).unwrap();
                assert_eq!(p.range(range).count(), 0, "{range:?}");
                let left = keys.iter().filter(|key| p.contains(key).unwrap()).count();
                assert_eq!(left + inside.len(), keys.len(), "{range:?}");
            }
        }
        for prefix in [&b""[..], b"a", b"a\0", b"b\xff", b"\xff", b"\xff\xff", b"c"] {
            for key in keys {
                p.put(key, "value").unwrap();
            }
            p.delete_prefix(prefix).unwrap();
            let left: Vec<_> = p.keys().map(Result::unwrap).collect();
            let kept = keys.iter().filter(|key| !key.starts_with(prefix));
            assert!(left.iter().map(|key| &key[..]).eq(kept.copied()), "{prefix:?}: {left:?}");
        }
    }
}

/// Nothing lies in an inverted range, and nothing is written for it.
#[test]
fn an_empty_range_is_no_operation_and_a_long_bound_an_error() {
    let db = open(&MemFs::new());
    let p = db.partition("p").unwrap();
    let put = p.put("key", "value").unwrap();
    for range in [("b", "a"), ("a", "a")] {
        assert_eq!(p.delete_range(range.0..range.1).unwrap().seq, put.seq);
        let mut transaction = db.transaction();
        transaction.delete_range(&p, range.0..range.1);
        assert_eq!(transaction.commit(Durability::Os).unwrap().seq, put.seq);
    }
    let long = vec![b'k'; siltstone::limits::USER_KEY_BYTES_MAX];
    p.put(&long, "value").unwrap();
    p.delete_range(&long[..]..=&long[..]).unwrap();
    assert!(!p.contains(&long).unwrap() && p.contains("key").unwrap());
    let longer = vec![b'k'; siltstone::limits::USER_KEY_BYTES_MAX + 10];
    let error = p.delete_range(..&longer[..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    p.put("after", "value").unwrap();
}

#[test]
fn covered_tables_are_deleted_unread() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let clock = ManualClock::default();
    let db = open_on(Arc::new(fs.clone()), "/db", &clock);
    let p = filled(&db, small());
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert!(files(&mem, "/db", ".sst") > 3);
    let reads = Arc::new(AtomicU64::new(0));
    let seen = reads.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let is_table = op.path.extension().is_some_and(|kind| kind == "sst");
        if is_table && op.kind == OpKind::Read {
            seen.fetch_add(1, Ordering::SeqCst);
        }
    }));
    // No one flushes: the database seals the memtable itself.
    p.delete_range("key ".."kez").unwrap();
    db.wait_idle().unwrap();
    assert_eq!((files(&mem, "/db", ".sst"), reads.load(Ordering::SeqCst)), (0, 0));
    let stats = db.stats();
    assert_eq!((stats.table_bytes, stats.partitions[0].deleted_range_count), (0, 0));
    fs.clear_observer();
    assert_eq!((p.keys().count(), p.first().unwrap()), (0, None));
}

/// Each deletion sealed a memtable for a table that an unflushed deletion covered already.
#[test]
fn what_is_deleted_again_before_a_flush_seals_one_memtable() {
    let db = open(&MemFs::new());
    let p = filled(&db, small());
    db.flush().unwrap();
    for _ in 0..20 {
        p.delete_range(key(0)..key(10_000)).unwrap();
        assert_eq!(p.stats().sealed_memtable_count, 1);
    }
    p.clear().unwrap();
    for _ in 0..20 {
        p.delete_range(key(0)..key(9999)).unwrap();
        assert_eq!(p.stats().sealed_memtable_count, 2);
    }
}

#[test]
fn the_space_of_a_part_of_a_partition_comes_back_by_itself() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_on(Arc::new(fs.clone()), "/db", &clock);
    let p = filled(&db, small());
    let before = content(&p);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let held = db.stats().table_bytes;
    let snapshot = db.snapshot();
    p.delete_range(key(17)..key(333)).unwrap();
    db.flush().unwrap();
    idle(&db, &clock);
    assert!(db.stats().table_bytes >= held, "the snapshot sees all of it");
    assert_eq!(snapshot.iter(&p).map(pair).collect::<Content>(), before);
    assert_eq!(p.stats().deleted_range_count, 1);
    drop(snapshot);
    idle(&db, &clock);
    assert_eq!(content(&p), without(&before, 17..333));
    assert!(db.stats().table_bytes * 4 < held, "{} of {held}", db.stats().table_bytes);
    assert_eq!(p.stats().deleted_range_count, 0, "nothing lies below it any more");
}

/// The range is in the log, in the manifest, or in neither. One half of the batch is never there without the other.
#[test]
fn a_power_cut_keeps_a_deleted_range_with_its_batch_or_loses_both() {
    for flushes in 0..3 {
        for outcome in CrashOutcome::ALL {
            let fs = MemFs::new();
            let db = open(&fs);
            let p = filled(&db, small());
            let other = db.partition("other").unwrap();
            other.put("erased", "not yet").unwrap();
            db.wait_durable(db.visible_seq()).unwrap();
            let before = content(&p);
            let batch = db.batch().put(&other, "erased", "yes");
            let batch = batch.delete_range(&p, key(20)..key(340)).put(&p, key(50), "new");
            batch.commit(if flushes == 1 { Durability::Sync } else { Durability::Os }).unwrap();
            if flushes == 2 {
                p.flush().unwrap();
                db.wait_idle().unwrap();
            }
            let mut expected = without(&before, 20..340);
            expected.insert(key(50).into(), b"new".to_vec());
            let mut rng = Rng::new(5);
            let image = fs.crash_clone(outcome, &mut || rng.next_u64());
            for _ in 0..2 {
                let db = open(&image);
                let p = db.partition("p").unwrap();
                let erased = db.partition("other").unwrap().get("erased").unwrap().unwrap();
                if &*erased == b"yes" {
                    assert_eq!(content(&p), expected);
                } else {
                    assert!(flushes == 0 && content(&p) == before, "{outcome:?}");
                }
                db.wait_idle().unwrap();
                p.compact(..).unwrap();
                db.close().unwrap();
            }
        }
    }
}

#[test]
fn a_partition_without_a_log_loses_its_range_when_it_is_flushed() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = filled(&db, small().logged(false));
    let expected = without(&content(&p), 3..100);
    p.delete_range(key(3)..key(100)).unwrap();
    assert_eq!(content(&p), expected);
    p.flush().unwrap();
    let image = fs.crash_clone(CrashOutcome::Nothing, &mut || 0);
    assert_eq!(content(&open(&image).partition("p").unwrap()), expected);
}

#[test]
fn checkpoints_exports_and_readers_see_a_deleted_range() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = filled(&db, small());
    let snapshot = db.snapshot();
    p.delete_range(key(5)..key(120)).unwrap();
    db.flush().unwrap();
    p.delete_range(key(140)..key(340)).unwrap();
    fill(&p, 20..40, "after");
    let expected = content(&p);
    let image = fs.crash_clone(CrashOutcome::Everything, &mut || 0);
    let reader = Db::builder("/db").fs(Arc::new(image)).read_only(true).open().unwrap();
    assert_eq!(content(&reader.open_partition("p").unwrap()), expected);
    p.export(.., "/export").unwrap();
    db.checkpoint("/copy").unwrap();
    let into = db.partition("into").unwrap();
    fill(&into, 0..5, "own");
    into.delete_range(..key(4)).unwrap();
    into.delete(key(4)).unwrap();
    into.ingest("/export").unwrap();
    assert_eq!(content(&into), expected, "what is ingested later is above");
    let copy = open_on(Arc::new(fs.clone()), "/copy", &ManualClock::default());
    assert_eq!(content(&copy.partition("p").unwrap()), expected);
    drop(snapshot);
}

/// Reads everything in every way.
fn seen(follower: &SecondaryPartition) -> Content {
    let reading = follower.at(Level::Strong).unwrap();
    let forward: Content = reading.iter().map(pair).collect();
    assert_eq!(reading.iter().rev().map(pair).collect::<Content>(), forward);
    let keys: Vec<_> = (0..400).map(key).collect();
    let together = reading.multi_get(&keys).unwrap();
    for (key, together) in keys.iter().zip(together) {
        let expected = forward.get(key.as_bytes()).map(Vec::as_slice);
        assert_eq!(reading.get(key).unwrap().as_deref(), expected);
        assert_eq!(
            (together.as_deref(), reading.contains(key).unwrap()),
            (expected, expected.is_some())
        );
    }
    forward
}

#[test]
fn a_secondary_follows_deleted_ranges_through_log_and_manifest() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = filled(&db, small());
    let secondary = Secondary::builder("/db").fs(Arc::new(fs.clone())).open().unwrap();
    let follower = secondary.partition("p").unwrap();
    assert_eq!(seen(&follower), content(&p));
    let held = db.snapshot();
    for round in 0..4 {
        p.delete_range(key(60 * round)..key(60 * round + 40)).unwrap();
        p.put(key(60 * round + 7), "after").unwrap();
        assert_eq!(seen(&follower), content(&p), "from the log, round {round}");
        if round % 2 == 1 {
            db.flush().unwrap();
            assert_eq!(seen(&follower), content(&p), "from the manifest, round {round}");
        }
    }
    drop(held);
    p.compact(..).unwrap();
    assert_eq!(seen(&follower), content(&p), "from tables");
}

#[test]
fn the_space_of_large_values_in_a_deleted_range_is_reclaimed() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_on(Arc::new(fs.clone()), "/db", &clock);
    let large = LargeValueOptions::new().threshold_bytes(256).chunk_bytes(4 << 10);
    let options = small().large_values(large.sub_block_bytes(256));
    let p = db.partition_with("p", options).unwrap();
    for number in 0..40u32 {
        p.put(number.to_be_bytes(), vec![number as u8; 2000]).unwrap();
        if number % 15 == 14 {
            db.flush().unwrap();
        }
    }
    p.delete_range(2u32.to_be_bytes()..39u32.to_be_bytes()).unwrap();
    db.flush().unwrap();
    idle(&db, &clock);
    db.flush().unwrap();
    idle(&db, &clock);
    assert_eq!(p.iter().count(), 3);
    assert!(files(&fs, "/db", ".chunk") <= 3, "{} chunks", files(&fs, "/db", ".chunk"));
    drop(p);
    db.close().unwrap();
    let p = open(&fs).partition("p").unwrap();
    assert_eq!(p.get(1u32.to_be_bytes()).unwrap().unwrap().len(), 2000);
}

#[test]
fn verified_reads_and_scrubs_respect_a_deleted_range() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = filled(&db, small().metahive(MetaHiveOptions::default()));
    let snapshot = db.snapshot();
    p.delete_range(key(1)..key(345)).unwrap();
    for round in 0..3 {
        assert_eq!(p.verified_get(key(1)).unwrap(), None);
        assert_eq!(p.verified_range(..).count(), 6);
        let seen = snapshot.verified_get(&p, key(1)).unwrap().unwrap();
        assert_eq!(&*seen.value, b"first", "round {round}");
        assert!(p.scrub(ScrubOptions::new()).unwrap().is_sound());
        let explained = p.explain(key(1)).unwrap().to_string();
        assert!(explained.contains("a range with the key was deleted at"), "{explained}");
        db.flush().unwrap();
        p.compact(..).unwrap();
    }
    drop(snapshot);
    fill(&p, 7..8, "after");
    p.compact(..).unwrap();
    assert_eq!(p.verified_range(..).count(), 7);
    assert!(p.scrub(ScrubOptions::new()).unwrap().is_sealed());
}

#[test]
fn verified_reads_find_nothing_of_operands_in_a_deleted_range() {
    let options = small().metahive(MetaHiveOptions::default());
    let options = options.merge_operator(Arc::new(AppendOperator::default()));
    for is_cleared in [false, true] {
        let fs = MemFs::new();
        let db = open(&fs);
        let p = db.partition_with("merged", options.clone()).unwrap();
        p.merge("k", "a").unwrap();
        if is_cleared {
            p.clear().unwrap();
        } else {
            p.delete_range("a".."z").unwrap();
        }
        for round in 0..2 {
            assert_eq!(p.get("k").unwrap(), None);
            assert!(p.verified_get("k").unwrap().is_none(), "round {round}");
            assert_eq!(p.verified_range(..).count(), 0);
            db.flush().unwrap();
        }
        p.merge("k", "b").unwrap();
        assert_eq!(&*p.verified_get("k").unwrap().unwrap().value, b"b");
    }
}

/// A queue that is cut at its growing front: each range holds the one before.
#[test]
fn many_ranges_come_to_few() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_on(Arc::new(fs.clone()), "/db", &clock);
    let p = filled(&db, small());
    db.flush().unwrap();
    db.wait_idle().unwrap();
    for number in 0..300 {
        p.delete_range(..key(number)).unwrap();
        p.put(key(number), "again").unwrap();
    }
    let expected: Content = p.iter().map(pair).collect();
    assert_eq!(expected.len(), 51);
    db.flush().unwrap();
    idle(&db, &clock);
    assert_eq!(content(&p), expected);
    let left = p.stats().deleted_range_count;
    assert!(left <= 1, "{left} ranges");
}

/// A queue: new keys come between the same bounds, and go.
#[test]
fn a_range_that_is_deleted_again_and_again_is_kept_once() {
    let fs = MemFs::new();
    let db = open(&fs);
    let options = PartitionOptions::new().block_bytes(256).level0_tables(100);
    let p = db.partition_with("p", options).unwrap();
    fill(&p, 0..300, "first");
    p.compact(..).unwrap();
    let expected = without(&content(&p), 10..12);
    let range = key(10)..key(12);
    let mut snapshot = None;
    for round in 0..20 {
        fill(&p, 10..12, "an item");
        p.delete_range(range.clone()).unwrap();
        p.delete_range(range.clone()).unwrap();
        p.flush().unwrap();
        let kept = p.stats().deleted_range_count;
        assert_eq!(kept, if round > 8 { 2 } else { 1 }, "round {round}");
        if round == 8 {
            snapshot = Some(db.snapshot());
            fill(&p, 10..12, "after the snapshot");
        }
        assert_eq!(
            snapshot.as_ref().map_or(0, |snapshot| snapshot.range(&p, range.clone()).count()),
            0
        );
    }
    drop((snapshot, p));
    db.close().unwrap();
    assert_eq!(content(&open(&fs).partition("p").unwrap()), expected);
}

/// Makes the writes before so old that a walk over them is remembered.
fn pass(other: &Partition) {
    (0..30).for_each(|_| assert!(other.put("other", "value").is_ok()));
}

/// A walk that passed over a deleted range in one seek must not say to earlier snapshots that nothing is there.
#[test]
fn a_remembered_walk_over_a_range_hides_nothing_from_earlier_snapshots() {
    let db = open(&MemFs::new());
    let other = db.partition("other").unwrap();
    // A walk is remembered in pieces of 256 keys, and a piece may begin next to the range.
    for count in std::iter::once(40).chain(255..270) {
        for is_backward in [true, false] {
            let name = format!("{count} {is_backward}");
            let p = db.partition_with(&name, small()).unwrap();
            // With a key outside of the range, so that the table stays.
            p.put("0", "first").unwrap();
            (0..50).for_each(|n| assert!(p.put(format!("m{n:03}"), "value").is_ok()));
            p.compact(..).unwrap();
            for n in 0..count {
                p.delete(format!("a{n:03}")).unwrap();
                p.delete(format!("z{n:03}")).unwrap();
            }
            pass(&other);
            let snapshot = db.snapshot();
            p.delete_range("m".."n").unwrap();
            pass(&other);
            for _ in 0..2 {
                let seen = if is_backward { p.keys().rev().count() } else { p.keys().count() };
                assert_eq!(seen, 1, "{name}");
            }
            assert_eq!(snapshot.keys(&p).rev().count(), 51, "{name}");
            assert_eq!(snapshot.keys(&p).count(), 51, "{name}");
        }
    }
}
