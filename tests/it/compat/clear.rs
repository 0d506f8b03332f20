//! A store with partitions that were cleared: `tests/fixtures/clear/`, of the first version that
//! could clear. One clear is in the manifest, above tables that a snapshot kept; the other is only
//! in the log.
//!
//! `BLESS_FIXTURE=clear cargo test fixture_of_a_clear` writes it again. Do this only before its
//! format is released.

use super::*;

/// A store whose writer died. Two partitions lost their old entries: one by an operation in the manifest, above
/// tables that a snapshot kept, the other by one in the log.
pub(super) fn write_erased(
    erase_flushed: impl FnOnce(Batch, &Partition) -> Batch,
    erase_logged: impl FnOnce(Batch, &Partition) -> Batch,
) -> MemFs {
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
    let batch = erase_flushed(db.batch(), &flushed);
    batch.put(&flushed, [3], "new").commit(Durability::Os).unwrap();
    flushed.flush().unwrap();
    assert_eq!(snapshot.iter(&flushed).count(), 30);
    let batch = db.batch().put(&logged, [9], "gone");
    erase_logged(batch, &logged).commit(Durability::Os).unwrap();
    logged.put([4], "new").unwrap();
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

/// Opens the fixture twice: it has these keys, and shows nothing of what was erased.
pub(super) fn check_erased(fixture: &str, flushed: &[u8], logged: &[u8]) {
    let dir = fixtures::on_disk(fixture);
    for _ in 0..2 {
        let db = Db::open(dir.path()).unwrap();
        for (name, keys) in [("flushed", flushed), ("logged", logged)] {
            let p = db.partition(name).unwrap();
            let found: Vec<_> = p.keys().map(|key| key.unwrap()[0]).collect();
            assert_eq!(found, keys, "{name}");
            assert_eq!((p.get([7]).unwrap(), p.get([9]).unwrap()), (None, None));
            p.compact(..).unwrap();
        }
        db.close().unwrap();
    }
}

#[test]
fn a_fixture_of_a_clear_opens_and_shows_nothing_below() {
    fixtures::bless("clear", || write_erased(Batch::clear, Batch::clear));
    check_erased("clear", &[3], &[4]);
}
