//! A store with deleted ranges of keys: `tests/fixtures/ranges/`, of the first version that could delete one. One
//! range is in the manifest, above tables that a snapshot kept; others are only in the log.
//!
//! `BLESS_FIXTURE=ranges cargo test fixture_of_deleted_ranges` writes it again. Do this only before its format is
//! released.

use super::*;

fn write_ranges() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let flushed = db.partition("flushed").unwrap();
    let logged = db.partition("logged").unwrap();
    for n in 0..30u8 {
        flushed.put([n], "old").unwrap();
        logged.put([n], "old").unwrap();
    }
    db.flush().unwrap();
    let snapshot = db.snapshot();
    let batch = db.batch().delete_range(&flushed, [2u8]..[28]);
    batch.put(&flushed, [3], "new").commit(Durability::Os).unwrap();
    flushed.flush().unwrap();
    assert_eq!(snapshot.iter(&flushed).count(), 30);
    let batch = db.batch().put(&logged, [9], "gone").delete_range(&logged, [1u8]..=[20]);
    batch.delete_range(&logged, [25u8]..).commit(Durability::Os).unwrap();
    logged.put([4], "new").unwrap();
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

#[test]
fn a_fixture_of_deleted_ranges_opens_and_shows_nothing_below() {
    fixtures::bless("ranges", write_ranges);
    let dir = fixtures::on_disk("ranges");
    for _ in 0..2 {
        let db = Db::open(dir.path()).unwrap();
        let expected: [(&str, &[u8]); 2] =
            [("flushed", &[0, 1, 3, 28, 29]), ("logged", &[0, 4, 21, 22, 23, 24])];
        for (name, keys) in expected {
            let p = db.partition(name).unwrap();
            let found: Vec<_> = p.keys().map(|key| key.unwrap()[0]).collect();
            assert_eq!(found, keys, "{name}");
            assert_eq!((p.get([7]).unwrap(), p.get([9]).unwrap()), (None, None));
            p.compact(..).unwrap();
        }
        db.close().unwrap();
    }
}
