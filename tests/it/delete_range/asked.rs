//! The space of short deleted ranges, which comes back when the application asks for it.

use super::*;

/// Entries of all tables of a partition, tombstones included.
fn entries(p: &Partition) -> u64 {
    p.stats().levels.iter().map(|level| level.entry_count).sum()
}

/// Background work leaves a table in which ranges hide little.
#[test]
fn a_compaction_that_was_asked_for_drops_what_a_short_range_hides() {
    for reopens in [false, true] {
        let fs = MemFs::new();
        let clock = ManualClock::default();
        let mut db = open_on(Arc::new(fs.clone()), "/db", &clock);
        let options = PartitionOptions::new().block_bytes(256);
        let p = db.partition_with("p", options).unwrap();
        fill(&p, 0..400, "first");
        p.compact(..).unwrap();
        let snapshot = db.snapshot();
        p.delete_range(key(200)..key(203)).unwrap();
        db.flush().unwrap();
        p.compact(..).unwrap();
        assert_eq!(entries(&p), 400, "the snapshot sees them");
        drop(snapshot);
        idle(&db, &clock);
        assert_eq!(entries(&p), 400, "they are few");
        drop(p);
        if reopens {
            db.close().unwrap();
            db = open_on(Arc::new(fs.clone()), "/db", &clock);
        }
        let p = db.partition("p").unwrap();
        p.compact(key(500)..).unwrap();
        assert_eq!(entries(&p), 400, "no table of it was asked for");
        p.compact(key(10)..key(20)).unwrap();
        assert_eq!(entries(&p), 397);
        assert_eq!(content(&p).len(), 397);
        let count = db.stats().compaction_count;
        p.compact(..).unwrap();
        assert_eq!(db.stats().compaction_count, count, "nothing is left to do");
        idle(&db, &clock);
        assert_eq!(p.stats().deleted_range_count, 0, "nothing lies below it any more");
    }
}

#[test]
fn reclaim_gives_back_the_large_values_of_a_short_range() {
    let fs = MemFs::new();
    let db = open(&fs);
    let large = LargeValueOptions::new().threshold_bytes(256).chunk_bytes(4 << 10);
    let p = db.partition_with("p", PartitionOptions::new().large_values(large)).unwrap();
    for number in 0..400 {
        let bytes = if (200..203).contains(&number) { 40_000 } else { 10 };
        p.put(key(number), vec![7; bytes]).unwrap();
    }
    p.compact(..).unwrap();
    assert!(p.space().unwrap().total_bytes > 120_000);
    p.delete_range(key(200)..key(203)).unwrap();
    p.reclaim().unwrap();
    assert_eq!(p.space().unwrap().total_bytes, 0);
    assert_eq!(content(&p).len(), 397);
}
