//! Folders of backups: `tests/fixtures/backups/`, of the first version that makes them, and `tests/fixtures/purges/`, of
//! the first one with purge records.
//!
//! `BLESS_FIXTURE=purges cargo test fixture_of_a_purge` writes the latter again, and so on. Do this only before its
//! format is released.

use siltstone::LargeValueOptions;
use siltstone::backup::BackupEngine;

use super::*;

/// Two backups: of a table, a large value and the log, and then of another table.
fn write_backups() -> MemFs {
    write_backups_and(|_| {})
}

/// The same, and `then` after each of them.
fn write_backups_and(then: impl Fn(&BackupEngine)) -> MemFs {
    let fs = MemFs::new();
    let db = builder(&MemFs::new()).open().unwrap();
    let options = PartitionOptions::new().compression(Compression::None);
    let large = options.large_values(LargeValueOptions::default().threshold_bytes(256));
    let p = db.partition_with("p", large).unwrap();
    let backups = BackupEngine::open(DIR).fs(Arc::new(fs.clone()));
    for (flushed, logged) in [("a", "b"), ("c", "d")] {
        p.put(flushed, [b'x'; 300]).unwrap();
        db.flush().unwrap();
        p.put(logged, "small").unwrap();
        backups.create_backup(&db).unwrap();
        then(&backups);
    }
    fs
}

#[test]
fn a_fixture_of_a_purge_is_read_and_continued() {
    // The first backup keeps its number, the second one has files that are made after a purge; 2 and 4 are purges.
    fixtures::bless("purges", || write_backups_and(|backups| drop(backups.purge_old(1).unwrap())));
    let dir = fixtures::on_disk("purges");
    let backups = BackupEngine::open(dir.path());
    assert!(backups.verify(None).unwrap().is_sound());
    let ids: Vec<u32> = backups.info().unwrap().iter().map(|it| it.backup_id).collect();
    assert_eq!(ids, [2]);
    let into = tempfile::tempdir().unwrap();
    backups.restore(2, into.path().join("restored")).unwrap();
    let db = stepped(Arc::new(OsFs), into.path().join("restored"), 1).open().unwrap();
    let found: Vec<_> = db.open_partition("p").unwrap().keys().map(Result::unwrap).collect();
    assert_eq!(found, ["a", "b", "c", "d"]);
    assert_eq!(backups.create_backup(&db).unwrap().backup_id, 4);
    assert_eq!(backups.purge_old(1).unwrap().backups, [2]);
    assert!(backups.verify(None).unwrap().is_sound());
}

#[test]
fn a_fixture_of_backups_is_verified_restored_and_continued() {
    fixtures::bless("backups", write_backups);
    let dir = fixtures::on_disk("backups");
    let backups = BackupEngine::open(dir.path());
    assert!(backups.verify(None).unwrap().is_sound());
    let seqs: Vec<u64> = backups.info().unwrap().iter().map(|it| it.seq.get()).collect();
    assert_eq!(seqs, [2, 4]);
    let into = tempfile::tempdir().unwrap();
    for (id, keys) in [(1, ["a", "b"].as_slice()), (2, &["a", "b", "c", "d"])] {
        let restored = into.path().join(id.to_string());
        backups.restore(id, &restored).unwrap();
        let db = stepped(Arc::new(OsFs), &restored, 1).open().unwrap();
        let p = db.open_partition("p").unwrap();
        let found: Vec<_> = p.keys().map(Result::unwrap).collect();
        assert_eq!(found, keys);
        assert_eq!(p.get("a").unwrap().unwrap(), [b'x'; 300]);
        assert!(db.verify(VerifyOptions::default()).unwrap().is_sound());
        backups.create_backup(&db).unwrap();
    }
    assert_eq!(backups.purge_old(1).unwrap().backups, [1, 2, 3]);
    assert!(backups.verify(None).unwrap().is_sound());
}
