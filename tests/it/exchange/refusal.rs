//! Exports that must be refused: damaged, cut, of another store, too new, too large.

use std::path::{Path, PathBuf};

use lsm_core::codec::checksum64;
use lsm_core::fs::{Fs, MemFs};
use siltstone::{Db, ErrorKind, Options, Partition};

use super::{Content, check_no_orphans, content, exported, names, open, options, small};

/// A store with some entries, and an export next to it.
fn store() -> (MemFs, Db, Partition) {
    let fs = MemFs::new();
    exported(&fs, 10..60, &"value ".repeat(9), "/export");
    let db = open(&fs, "/db", 2);
    let p = db.partition_with("p", small()).unwrap();
    for n in 0..20_u32 {
        p.put(n.to_be_bytes(), "mine").unwrap();
    }
    (fs, db, p)
}

fn files(fs: &MemFs) -> Vec<PathBuf> {
    let names = names(fs, "/export").into_iter();
    names.map(|name| Path::new("/export").join(name)).collect()
}

/// Tries to ingest. Returns the refusal, after a check that nothing changed.
#[track_caller]
fn refused(fs: &MemFs, db: &Db, p: &Partition, before: &Content) -> siltstone::Error {
    let seq = db.visible_seq();
    let listed = names(fs, "/db");
    let error = p.ingest("/export").unwrap_err();
    assert_eq!((db.visible_seq(), names(fs, "/db")), (seq, listed));
    assert_eq!(&content(p), before);
    error
}

#[test]
fn a_flipped_bit_anywhere_in_an_export_is_refused() {
    let (fs, db, p) = store();
    let before = content(&p);
    for path in files(&fs) {
        let bytes = fs.read_raw(&path).unwrap();
        let step = if bytes.len() > 400 { 7 } else { 1 };
        for at in (0..bytes.len()).step_by(step) {
            fs.corrupt(&path, at as u64, 1 << (at % 8)).unwrap();
            let error = refused(&fs, &db, &p, &before);
            let kinds = [ErrorKind::Corruption, ErrorKind::Unsupported];
            assert!(kinds.contains(&error.kind()), "{} {at}: {error}", path.display());
            if let Some(damage) = error.damage() {
                assert_eq!(damage.file, path, "{error}");
            }
            fs.write_raw(&path, &bytes).unwrap();
        }
    }
    assert_eq!(p.ingest("/export").unwrap().entries, 50);
}

#[test]
fn a_cut_a_grown_or_a_missing_file_is_refused() {
    let (fs, db, p) = store();
    let before = content(&p);
    for path in files(&fs) {
        let bytes = fs.read_raw(&path).unwrap();
        let len = bytes.len() as u64;
        for new in [0, 1, 8, 71, 80, len / 2, len - 9, len - 1, len + 1, len + 5000] {
            fs.truncate_raw(&path, new).unwrap();
            let error = refused(&fs, &db, &p, &before);
            assert!(error.is_corruption(), "{} {new}: {error}", path.display());
            fs.write_raw(&path, &bytes).unwrap();
        }
        fs.remove_raw(&path).unwrap();
        let error = refused(&fs, &db, &p, &before);
        let is_description = path.ends_with("EXPORT");
        let kind = if is_description { ErrorKind::InvalidArgument } else { ErrorKind::Corruption };
        assert_eq!(error.kind(), kind, "{error}");
        fs.write_raw(&path, &bytes).unwrap();
    }
    p.ingest("/export").unwrap();
    db.wait_idle().unwrap();
    check_no_orphans(&fs, "/db", &db);
}

#[test]
fn tables_in_each_others_place_are_refused() {
    let (fs, db, p) = store();
    let before = content(&p);
    let tables: Vec<_> = files(&fs).into_iter().filter(|path| !path.ends_with("EXPORT")).collect();
    assert!(tables.len() > 1);
    let [a, b] = [0, 1].map(|n| fs.read_raw(&tables[n]).unwrap());
    fs.write_raw(&tables[0], &b).unwrap();
    fs.write_raw(&tables[1], &a).unwrap();
    assert!(refused(&fs, &db, &p, &before).is_corruption());
}

#[test]
fn an_export_of_newer_code_is_refused_with_an_error_that_says_so() {
    let (fs, db, p) = store();
    let before = content(&p);
    let path = Path::new("/export/EXPORT");
    let bytes = fs.read_raw(path).unwrap();
    // Format version, checksum id, an incompatible feature.
    for at in [8, 12, 32] {
        let mut newer = bytes.clone();
        newer[at] += 1;
        let checksum = checksum64(&newer[..64]);
        newer[64..72].copy_from_slice(&checksum.to_le_bytes());
        fs.write_raw(path, &newer).unwrap();
        let error = refused(&fs, &db, &p, &before);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

#[test]
fn a_value_beyond_this_databases_limit_is_refused() {
    let (fs, db, p) = store();
    let before = content(&p);
    drop(p);
    db.close().unwrap();
    let tight = |most| -> (Db, Partition) {
        let options: Options = options().value_bytes_max(most);
        let db = Db::builder("/db").options(options).fs(std::sync::Arc::new(fs.clone()));
        let db = db.background(siltstone::BackgroundMode::Stepped).open().unwrap();
        let p = db.partition("p").unwrap();
        (db, p)
    };
    let (db, p) = tight(53);
    let error = refused(&fs, &db, &p, &before);
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    drop(p);
    db.close().unwrap();
    assert_eq!(tight(54).1.ingest("/export").unwrap().entries, 50);
}

#[test]
fn a_closed_database_and_a_dropped_partition_refuse() {
    let (fs, db, p) = store();
    let other = db.partition("other").unwrap();
    db.drop_partition("other").unwrap();
    assert_eq!(other.ingest("/export").unwrap_err().kind(), ErrorKind::PartitionNotFound);
    assert_eq!(other.export(.., "/new").unwrap_err().kind(), ErrorKind::PartitionNotFound);
    db.clone().close().unwrap();
    assert_eq!(p.ingest("/export").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(p.export(.., "/new").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(db.checkpoint("/new").unwrap_err().kind(), ErrorKind::Closed);
    assert!(fs.list(Path::new("/new"), "").is_err());
}

#[test]
fn an_empty_range_makes_an_export_that_changes_nothing() {
    let (fs, db, p) = store();
    let before = content(&p);
    for (n, range) in [("x".."x"), ("z".."a")].into_iter().enumerate() {
        let dir = format!("/empty{n}");
        let summary = p.export(range, &dir).unwrap();
        assert_eq!((summary.tables, summary.entries, summary.bytes), (0, 0, 0));
        let seq = db.visible_seq();
        let summary = p.ingest(&dir).unwrap();
        assert_eq!((summary.tables, summary.seq, db.visible_seq()), (0, seq, seq));
        assert_eq!(names(&fs, &dir), ["EXPORT"]);
    }
    assert_eq!(content(&p), before);
}
