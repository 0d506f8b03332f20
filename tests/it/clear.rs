//! Clears of a partition: which readers see them, what survives, and when the space comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_core::fs::{CrashOutcome, FaultFs, FsOp, MemFs, OpKind};
use siltstone::metahive::ScrubOptions;
use siltstone::{
    Db, Durability, ErrorKind, LargeValueOptions, MetaHiveOptions, Partition, PartitionOptions,
    Result, SeqNo,
};
use testkit::Rng;

use crate::clock::ManualClock;
use crate::filled::{content, files, fill, filled, idle, open, open_on, pair, small};
use crate::store::Content;

fn of(numbers: std::ops::Range<u32>, value: &str) -> Content {
    numbers.map(|n| (format!("key {n:04}").into_bytes(), value.as_bytes().to_vec())).collect()
}

#[test]
fn a_clear_hides_earlier_entries_but_not_from_snapshots() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = filled(&db, small());
    let before = content(&p);
    let snapshot = db.snapshot();
    let mut cursor = p.cursor();
    let commit = p.clear().unwrap();
    assert_eq!(commit.seq, db.visible_seq());
    assert_eq!((content(&p), p.first().unwrap(), p.len_approx().unwrap()), (of(0..0, ""), None, 0));
    assert_eq!((p.keys().count(), p.last().unwrap()), (0, None));
    cursor.seek_to_first().unwrap();
    assert!(cursor.valid(), "it was opened before");
    let mut batch = db.batch().put(&p, "key 0001", "lost").clear(&p);
    batch.of(&p).put("key 0002", "kept").put("key 0003", "kept");
    batch.commit(Durability::Os).unwrap();
    let later = db.snapshot();
    fill(&p, 3..5, "after");
    let mut expected = of(2..3, "kept");
    expected.extend(of(3..5, "after"));
    for _ in 0..3 {
        assert_eq!(content(&p), expected);
        let seen: Content = snapshot.iter(&p).map(pair).collect();
        assert_eq!(seen, before);
        for (key, value) in &before {
            assert_eq!(snapshot.get(&p, key).unwrap().as_deref(), Some(&value[..]));
        }
        assert_eq!(later.iter(&p).map(pair).collect::<Content>(), of(2..4, "kept"));
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

#[test]
fn cleared_tables_are_deleted_unread_with_the_last_snapshot() {
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
    p.clear().unwrap();
    db.wait_idle().unwrap();
    assert_eq!((files(&mem, "/db", ".sst"), reads.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(db.stats().table_bytes, 0);
    fs.clear_observer();
    fill(&p, 0..300, "again");
    db.flush().unwrap();
    let snapshot = db.snapshot();
    p.clear().unwrap();
    fill(&p, 10..12, "after");
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(snapshot.iter(&p).map(pair).collect::<Content>(), of(0..300, "again"));
    let held = db.stats().table_bytes;
    drop(snapshot);
    idle(&db, &clock);
    assert!(db.stats().table_bytes * 4 < held, "{} of {held}", db.stats().table_bytes);
    assert_eq!(content(&p), of(10..12, "after"));
}

/// Nothing is written in the meantime, and no one calls the database.
#[test]
fn cleared_tables_are_deleted_after_the_release_of_their_snapshot() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_on(Arc::new(fs.clone()), "/db", &clock);
    let p = filled(&db, small());
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let held = files(&fs, "/db", ".sst");
    let snapshot = db.snapshot();
    p.clear().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(files(&fs, "/db", ".sst"), held);
    assert!(held > 3 && content(&p).is_empty());
    drop(snapshot);
    idle(&db, &clock);
    assert_eq!(files(&fs, "/db", ".sst"), 0);
}

/// The clear sequence is in the log, in the manifest, or in neither. One half of the batch is never there
/// without the other.
#[test]
fn a_power_cut_keeps_a_clear_with_its_batch_or_loses_both() {
    for flushes in 0..3 {
        for outcome in CrashOutcome::ALL {
            let fs = MemFs::new();
            let db = open(&fs);
            let p = filled(&db, small());
            let other = db.partition("other").unwrap();
            other.put("cleared", "not yet").unwrap();
            db.wait_durable(db.visible_seq()).unwrap();
            let before = content(&p);
            let batch = db.batch().put(&other, "cleared", "yes").clear(&p).put(&p, "new", "one");
            batch.commit(if flushes == 1 { Durability::Sync } else { Durability::Os }).unwrap();
            if flushes == 2 {
                p.flush().unwrap();
                db.wait_idle().unwrap();
            }
            let mut rng = Rng::new(5);
            let image = fs.crash_clone(outcome, &mut || rng.next_u64());
            for _ in 0..2 {
                let db = open(&image);
                let p = db.partition("p").unwrap();
                let cleared = db.partition("other").unwrap().get("cleared").unwrap().unwrap();
                if &*cleared == b"yes" {
                    assert_eq!(content(&p), Content::from([(b"new".to_vec(), b"one".to_vec())]));
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
fn a_partition_without_a_log_is_cleared_when_it_is_flushed() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = filled(&db, small().logged(false));
    p.clear().unwrap();
    fill(&p, 1..2, "after");
    assert_eq!(content(&p), of(1..2, "after"));
    p.flush().unwrap();
    let image = fs.crash_clone(CrashOutcome::Nothing, &mut || 0);
    assert_eq!(content(&open(&image).partition("p").unwrap()), of(1..2, "after"));
}

#[test]
fn checkpoints_exports_and_secondaries_see_a_clear() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = filled(&db, small());
    let snapshot = db.snapshot();
    p.clear().unwrap();
    fill(&p, 20..40, "after");
    let expected = of(20..40, "after");
    let image = fs.crash_clone(CrashOutcome::Everything, &mut || 0);
    let reader = Db::builder("/db").fs(Arc::new(image)).read_only(true).open().unwrap();
    assert_eq!(content(&reader.open_partition("p").unwrap()), expected);
    p.export(.., "/export").unwrap();
    db.checkpoint("/copy").unwrap();
    let into = db.partition("into").unwrap();
    fill(&into, 0..5, "own");
    into.clear().unwrap();
    into.ingest("/export").unwrap();
    assert_eq!(content(&into), expected, "what is ingested later is above");
    into.clear().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(content(&into), of(0..0, ""));
    let copy = open_on(Arc::new(fs.clone()), "/copy", &ManualClock::default());
    assert_eq!(content(&copy.partition("p").unwrap()), expected);
    drop(snapshot);
}

#[test]
fn requirements_and_transactions_conflict_with_a_clear() {
    for flushes in [false, true] {
        let fs = MemFs::new();
        let db = open(&fs);
        let p = filled(&db, small());
        let at = db.visible_seq();
        let mut reads_key = db.transaction();
        reads_key.get(&p, "key 0001").unwrap();
        reads_key.put(&p, "x", "y");
        let mut reads_range = db.transaction();
        reads_range.range(&p, "key 0001".."key 0003").for_each(drop);
        reads_range.put(&p, "x", "y");
        p.clear().unwrap();
        if flushes {
            db.flush().unwrap();
            p.compact(..).unwrap();
        }
        let late = db.batch().require(&p, "key 0001", at).put(&p, "x", "y");
        // It writes nothing, so that no leader of a commit group checks it.
        let only_asks = db.batch().require(&p, "key 0001", at);
        let refused = [
            only_asks.commit(Durability::Os).unwrap_err(),
            late.commit(Durability::Os).unwrap_err(),
            reads_key.commit(Durability::Os).unwrap_err(),
            reads_range.commit(Durability::Os).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        }
        p.update("key 0001", |old| {
            assert_eq!(old, None);
            Some("made")
        })
        .unwrap();
        assert_eq!(p.get("key 0001").unwrap().as_deref(), Some(&b"made"[..]));
    }
}

#[test]
fn the_space_of_cleared_large_values_is_reclaimed() {
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
    p.clear().unwrap();
    p.put("one", vec![1; 1000]).unwrap();
    for _ in 0..30 {
        clock.pass(1);
        db.wait_idle().unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(p.iter().count(), 1);
    assert!(files(&fs, "/db", ".chunk") <= 1, "{} chunks", files(&fs, "/db", ".chunk"));
    drop(p);
    db.close().unwrap();
    let p = open(&fs).partition("p").unwrap();
    assert_eq!(p.get("one").unwrap().unwrap().len(), 1000);
}

#[test]
fn verified_reads_and_scrubs_respect_a_clear() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = filled(&db, small().metahive(MetaHiveOptions::default()));
    let snapshot = db.snapshot();
    p.clear().unwrap();
    for round in 0..3 {
        assert_eq!(p.verified_get("key 0001").unwrap(), None);
        assert_eq!(p.verified_range(..).count(), 0);
        let seen = snapshot.verified_get(&p, "key 0001").unwrap().unwrap();
        assert_eq!(&*seen.value, b"first", "round {round}");
        assert!(p.scrub(ScrubOptions::new()).unwrap().is_sound());
        db.flush().unwrap();
        p.compact(..).unwrap();
    }
    drop(snapshot);
    fill(&p, 7..8, "after");
    p.compact(..).unwrap();
    assert_eq!(content(&p), of(7..8, "after"));
    assert!(p.scrub(ScrubOptions::new()).unwrap().is_sealed());
}

/// A million clears of an empty partition use bounded memory, and no clear waits for another.
#[test]
fn clears_in_a_row_leave_one_clear_sequence() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = filled(&db, small());
    for _ in 0..20_000 {
        p.clear().unwrap();
    }
    assert_eq!(p.stats().sealed_memtable_count, 1, "the first of them had it sealed");
    fill(&p, 0..3, "after");
    db.wait_idle().unwrap();
    assert_eq!(content(&p), of(0..3, "after"));
    p.flush().unwrap();
    let manifest = db.stats().manifest_disk_bytes;
    assert!(manifest < 64 << 10, "{manifest} bytes");
    // Tables below a clear sequence that only a snapshot holds are no reason for a flush.
    let snapshot = db.snapshot();
    p.clear().unwrap();
    db.wait_idle().unwrap();
    for _ in 0..100 {
        p.clear().unwrap();
    }
    assert_eq!(p.stats().sealed_memtable_count, 0);
    assert_eq!(snapshot.iter(&p).map(pair).collect::<Content>(), of(0..3, "after"));
    assert_eq!(content(&p), of(0..0, ""));
}

/// Clears a partition and loads the same entries into it again and again, in two threads. A reader
/// sees all of a load or nothing of it, and the sequence numbers say which call was the last.
fn clear_while_loading(
    options: PartitionOptions,
    loaded: &Content,
    load: impl Fn(&Partition) -> Result<SeqNo> + Sync,
) {
    const ROUNDS: usize = 15;
    let fs = MemFs::new();
    let db = Db::builder("/db").fs(Arc::new(fs.clone())).open().unwrap();
    let from = db.partition_with("from", small()).unwrap();
    for (key, value) in loaded {
        from.put(key, value).unwrap();
    }
    from.export(.., "/export").unwrap();
    let p = &db.partition_with("p", options).unwrap();
    let [cleared, filled] = std::thread::scope(|scope| {
        let clears = scope.spawn(|| (0..ROUNDS).map(|_| p.clear().unwrap().seq).max());
        let loads = scope.spawn(|| (0..ROUNDS).map(|_| load(p).unwrap()).max());
        while !clears.is_finished() || !loads.is_finished() {
            let seen: Content = db.snapshot().iter(p).map(pair).collect();
            assert!(seen.is_empty() || seen == *loaded, "{} entries", seen.len());
        }
        [clears, loads].map(|thread| thread.join().unwrap())
    });
    let expected = if filled > cleared { loaded.clone() } else { Content::new() };
    assert!(content(p) == expected, "{filled:?} after {cleared:?}");
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert!(content(p) == expected && db.verify(Default::default()).unwrap().is_sound());
    drop(from);
    db.close().unwrap();
    let db = Db::builder("/db").fs(Arc::new(fs)).open().unwrap();
    let p = db.partition("p").unwrap();
    assert!(content(&p) == expected, "lost by the next open");
    // One after the other, the order is known.
    let seq = load(&p).unwrap();
    assert!(content(&p) == *loaded && p.clear().unwrap().seq > seq);
    assert!(content(&p).is_empty());
}

#[test]
fn a_clear_and_a_load_at_the_same_time_have_one_order() {
    let loaded = of(0..100, &"loaded ".repeat(60));
    clear_while_loading(small(), &loaded, |p| Ok(p.ingest("/export")?.seq));
    let large = LargeValueOptions::new().threshold_bytes(256).chunk_bytes(16 << 10);
    let large = small().large_values(large.sub_block_bytes(256));
    clear_while_loading(large, &loaded, |p| Ok(p.bulk_load(&loaded)?.seq));
}
