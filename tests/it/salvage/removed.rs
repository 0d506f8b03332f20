//! Tables, partitions and entries that a manifest has removed: they stay away, although the manifest does not open and
//! the files are back.

use super::*;

fn put_all(db: &Db, name: &str, keys: &[&str]) {
    let partition = db.partition(name).unwrap();
    for key in keys {
        partition.put(key, name).unwrap();
    }
    partition.flush().unwrap();
}

/// The tables that are in `before` and not in `after`, with their bytes.
fn gone(before: &MemFs, after: &MemFs) -> Vec<(PathBuf, Vec<u8>)> {
    let mut tables = before.paths();
    tables.retain(|path| kind_of(path) == Some(FileKind::Sst) && after.read_raw(path).is_err());
    tables.into_iter().map(|path| (path.clone(), before.read_raw(&path).unwrap())).collect()
}

/// Writes and flushes until no segment of the log has earlier entries, which would hide a lost deletion.
pub fn forget_log(db: &Db) {
    let filler = db.partition("filler").unwrap();
    for n in 0..40_u32 {
        filler.put(n.to_be_bytes(), vec![1; 300]).unwrap();
    }
    db.flush().unwrap();
    while db.step().unwrap() {}
}

/// A database whose manifest has lost the frame of the partition `victim`.
fn damaged() -> (MemFs, Vec<(PathBuf, Vec<u8>)>) {
    let fs = MemFs::new();
    let db = builder(&fs, DIR, 1).open().unwrap();
    db.partition("victim").unwrap();
    put_all(&db, "gone", &["a", "b"]);
    put_all(&db, "merged", &["dead", "lives"]);
    db.partition("merged").unwrap().delete("dead").unwrap();
    put_all(&db, "cleared", &["a", "b"]);
    let before = copy_of(&fs);
    let snapshot = db.snapshot();
    db.partition("cleared").unwrap().clear().unwrap();
    db.flush().unwrap();
    db.drop_partition("gone").unwrap();
    drop(snapshot);
    db.partition("merged").unwrap().compact(..).unwrap();
    forget_log(&db);
    db.partition("logged").unwrap().put("a", "logged").unwrap();
    while db.step().unwrap() {}
    let after = copy_of(&fs);
    // Without the table of the deletion, which would hide it that the other one is back.
    let tables = gone(&before, &after);
    for manifest in after.paths().iter().filter(|path| kind_of(path) == Some(FileKind::Manifest)) {
        let bytes = after.read_raw(manifest).unwrap();
        if let Some(at) = bytes.windows(6).position(|window| window == b"victim") {
            after.corrupt(manifest, at as u64, 1).unwrap();
        }
    }
    (after, tables)
}

#[test]
fn tables_partitions_and_clears_that_an_edit_removed_stay_away() {
    let (fs, tables) = damaged();
    assert!(builder(&fs, DIR, 2).open().unwrap_err().is_corruption());
    assert!(tables.len() >= 3, "tables of a dropped partition, of a compaction and below a clear");
    for (path, bytes) in tables {
        fs.write_raw(&path, &bytes).unwrap();
    }
    let report = repair(&fs).unwrap();
    assert!(!report.is_complete());
    let db = builder(&fs, NEW, 9).open().unwrap();
    let names = db.partition_names();
    for (name, keys) in
        [("merged", &["lives"][..]), ("cleared", &[]), ("logged", &["a"]), ("victim", &[])]
    {
        // The partition whose frame is lost had nothing.
        assert!(name == "victim" || names.iter().any(|it| it == name), "{name} of {names:?}");
        let found: Vec<Vec<u8>> = content(&db.partition(name).unwrap()).into_keys().collect();
        assert_eq!(
            found,
            keys.iter().map(|key| key.as_bytes().to_vec()).collect::<Vec<_>>(),
            "{name}"
        );
    }
    assert!(names.iter().all(|name| !name.starts_with("gone")), "{names:?}");
}

/// The manifest, and the end of its last edit.
fn manifest_end(fs: &MemFs) -> (PathBuf, u64) {
    let path =
        fs.paths().into_iter().find(|path| kind_of(path) == Some(FileKind::Manifest)).unwrap();
    let bytes = fs.read_raw(&path).unwrap();
    let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
    (path, (bytes.len() - zeros) as u64)
}

/// Damages the edits from `at` to `end`, puts the lost tables back, and repairs.
fn repaired_without_edits(
    fs: &MemFs,
    (manifest, at): (PathBuf, u64),
    end: u64,
    tables: Vec<(PathBuf, Vec<u8>)>,
) -> Db {
    assert!(manifest_end(fs).1 > end, "there is an edit after them");
    for place in at + 12..end {
        fs.corrupt(&manifest, place, 0x11).unwrap();
    }
    assert!(!tables.is_empty());
    for (path, bytes) in tables {
        fs.write_raw(&path, &bytes).unwrap();
    }
    assert!(builder(fs, DIR, 2).open().unwrap_err().is_corruption());
    assert!(!repair(fs).unwrap().is_complete());
    builder(fs, NEW, 9).open().unwrap()
}

#[test]
fn a_dropped_partition_stays_away_although_the_edit_of_its_table_is_lost() {
    let fs = MemFs::new();
    let db = builder(&fs, DIR, 1).open().unwrap();
    db.partition("gone").unwrap();
    let lost = manifest_end(&fs);
    put_all(&db, "gone", &["a", "b"]);
    // The first of them lists a segment of the log, and another one the table.
    let end = manifest_end(&fs).1;
    let before = copy_of(&fs);
    db.drop_partition("gone").unwrap();
    forget_log(&db);
    let tables = gone(&before, &fs);
    let new = repaired_without_edits(&copy_of(&fs), lost, end, tables);
    assert!(new.partition_names().iter().all(|name| !name.starts_with("gone")));
}

#[test]
fn cleared_keys_stay_away_although_the_edit_that_removed_their_tables_is_lost() {
    let fs = MemFs::new();
    let db = builder(&fs, DIR, 1).open().unwrap();
    put_all(&db, "cleared", &["a", "b"]);
    let before = copy_of(&fs);
    let snapshot = db.snapshot();
    db.partition("cleared").unwrap().clear().unwrap();
    forget_log(&db);
    let lost = manifest_end(&fs);
    drop(snapshot);
    while db.step().unwrap() {}
    let end = manifest_end(&fs);
    assert!(end.1 > lost.1, "the tables go now");
    db.partition("logged").unwrap().put("a", "logged").unwrap();
    let tables = gone(&before, &fs);
    let new = repaired_without_edits(&copy_of(&fs), lost, end.1, tables);
    assert!(content(&new.partition("cleared").unwrap()).is_empty());
}
