//! A store with partitions that were cleared: `tests/fixtures/clear/`, of the first version that
//! could clear. One clear is in the manifest, above tables that a snapshot kept; the other is only
//! in the log.
//!
//! `BLESS_FIXTURE=clear cargo test fixture_of_a_clear` writes it again. Do this only before its
//! format is released.

use super::*;

fn write_clear() -> MemFs {
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
    db.batch().clear(&flushed).put(&flushed, [3], "new").commit(Durability::Os).unwrap();
    flushed.flush().unwrap();
    assert_eq!(snapshot.iter(&flushed).count(), 30);
    db.batch().put(&logged, [9], "gone").clear(&logged).commit(Durability::Os).unwrap();
    logged.put([4], "new").unwrap();
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

#[test]
fn a_fixture_of_a_clear_opens_and_shows_nothing_below() {
    fixtures::bless("clear", write_clear);
    let dir = fixtures::on_disk("clear");
    for _ in 0..2 {
        let db = Db::open(dir.path()).unwrap();
        for (name, key) in [("flushed", 3u8), ("logged", 4)] {
            let p = db.partition(name).unwrap();
            let found: Vec<_> = p.iter().map(|pair| pair.unwrap().0.to_vec()).collect();
            assert_eq!(found, [[key]], "{name}");
            assert_eq!((p.get([7]).unwrap(), p.get([9]).unwrap()), (None, None));
            p.compact(..).unwrap();
        }
        db.close().unwrap();
    }
}
