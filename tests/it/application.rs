//! Calls that make the code of an application shorter: partitions that must exist, reads through a
//! trait, batches filled in place, conversions.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{AppendMode, File, HeldDir};
use siltstone::fs::{Fs, MemFs};
use siltstone::{
    Builder, Db, Durability, Error, ErrorKind, Options, Partition, PartitionOptions, ReadCursor,
    Readable, Result, Slice,
};

use crate::store::stepped;

fn open() -> (tempfile::TempDir, Db, Partition) {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path()).unwrap();
    let p = db.partition("p").unwrap();
    (folder, db, p)
}

#[test]
fn a_partition_that_must_exist_is_not_created() {
    let (_folder, db, _p) = open();
    assert!(db.has_partition("p") && !db.has_partition("q"));
    assert_eq!(db.open_partition("q").unwrap_err().kind(), ErrorKind::PartitionNotFound);
    assert_eq!(db.partition_names(), ["default", "p"]);
    assert_eq!(db.open_partition("p").unwrap().name(), "p");
    db.drop_partition("p").unwrap();
    assert!(!db.has_partition("p"));
    assert_eq!(db.open_partition("p").unwrap_err().kind(), ErrorKind::PartitionNotFound);
}

#[test]
fn a_database_returns_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::builder(folder.path()).write_buffer_bytes(123 << 10).open().unwrap();
    assert_eq!(db.options().write_buffer_bytes, 123 << 10);
}

#[test]
fn a_batch_is_filled_in_place_and_in_a_chain() {
    let (_folder, db, p) = open();
    let q = db.partition("q").unwrap();
    let mut batch = db.batch().put(&p, "chained", "1");
    for n in 0..5_u8 {
        batch.of(&p).put([n], [n]).delete([n + 1]);
        batch.of(&q).put([n], "");
    }
    assert_eq!(batch.len(), 16);
    assert_eq!(p.iter().count(), 0);
    batch.commit(Durability::Os).unwrap();
    let keys: Vec<Slice> = p.keys().map(|key| key.unwrap()).collect();
    assert_eq!(keys, [&[0][..], &[1], &[2], &[3], &[4], b"chained"]);
    assert_eq!(q.iter().count(), 5);
    let mut refused = db.batch();
    refused.of(&p).put(vec![0; 65_535], "a long key").put("k", "v");
    assert_eq!(refused.commit(Durability::Os).unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert!(!p.contains("k").unwrap());
}

#[test]
fn one_write_is_as_durable_as_it_asks() {
    let (_folder, db, p) = open();
    let put = p.put_with("k", "v", Durability::Sync).unwrap();
    assert!(db.durable_seq() >= put.seq);
    let deleted = p.delete_with("k", Durability::Sync).unwrap();
    assert!(db.durable_seq() >= deleted.seq && !p.contains("k").unwrap());
    let bare = db.partition_with("bare", PartitionOptions::new().logged(false)).unwrap();
    bare.put_with("k", "v", Durability::Os).unwrap();
    let refused = bare.put_with("k", "w", Durability::Sync).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert_eq!(bare.get("k").unwrap().unwrap(), "v");
}

/// Reads through the trait only.
fn summary(keys: &impl Readable) -> Result<(Vec<Slice>, Option<Slice>, bool, usize)> {
    let all: Result<Vec<Slice>> = keys.iter().map(|item| item.map(|(key, _)| key)).collect();
    let ends = keys.first()?.map(|(key, _)| key);
    assert_eq!(ends.as_ref(), all.as_ref().ok().and_then(|all| all.first()));
    let last = keys.last()?.map(|(key, _)| key);
    let alone: Result<Vec<Slice>> = keys.keys().collect();
    assert_eq!(alone.as_ref().ok(), all.as_ref().ok());
    walk(keys, all.as_ref().unwrap())?;
    Ok((all?, last, keys.contains("b")?, keys.prefix("b").count()))
}

/// Moves cursors of a trait over all of `keys`, forwards, backwards and within bounds.
fn walk(readable: &impl Readable, keys: &[Slice]) -> Result<()> {
    let mut cursor = readable.cursor();
    assert!(!cursor.valid());
    cursor.seek_to_first()?;
    for key in keys {
        assert_eq!(cursor.key(), &**key);
        assert_eq!(readable.get(key)?.as_deref(), Some(cursor.value()?));
        cursor.next()?;
    }
    assert!(!cursor.valid());
    cursor.seek_to_last()?;
    for (at, key) in keys.iter().enumerate().rev() {
        assert_eq!(cursor.key(), &**key);
        if at > 0 {
            cursor.prev()?;
            cursor.next()?;
            assert_eq!(cursor.key(), &**key, "there and back");
        }
        cursor.prev()?;
    }
    assert!(!cursor.valid());
    for (at, key) in keys.iter().enumerate() {
        cursor.seek(key)?;
        assert_eq!(cursor.key(), &**key);
        cursor.seek_after(key)?;
        assert_eq!(cursor.valid().then(|| cursor.key()), keys.get(at + 1).map(|key| &**key));
        cursor.seek_before(key)?;
        assert_eq!(cursor.valid(), at > 0);
        let mut alone = readable.cursor_in(key..=key);
        alone.seek("")?;
        assert_eq!(alone.key(), &**key);
        alone.next()?;
        assert!(!alone.valid());
        alone.seek_before(b"\xff")?;
        assert_eq!(alone.key(), &**key);
        alone.prev()?;
        assert!(!alone.valid());
    }
    Ok(())
}

#[test]
fn a_partition_and_a_snapshot_of_it_are_read_by_the_same_code() {
    let (_folder, db, p) = open();
    assert_eq!(summary(&p).unwrap(), (vec![], None, false, 0));
    p.put("a", "1").unwrap();
    p.put("b", "2").unwrap();
    let snapshot = db.snapshot();
    p.delete("b").unwrap();
    p.put("c", "3").unwrap();
    let now = ["a", "c"].map(Slice::from).to_vec();
    assert_eq!(summary(&p).unwrap(), (now, Some("c".into()), false, 0));
    let then = ["a", "b"].map(Slice::from).to_vec();
    let seen = snapshot.of(&p);
    assert_eq!(summary(&seen).unwrap(), (then.clone(), Some("b".into()), true, 1));
    let keys: Vec<Slice> = snapshot.keys(&p).map(|key| key.unwrap()).collect();
    assert_eq!(keys, then);
    assert!(snapshot.contains(&p, "b").unwrap() && !snapshot.contains(&p, "c").unwrap());
    let mut transaction = db.transaction();
    transaction.put(&p, "b", "own");
    transaction.delete(&p, "a");
    let seen = ["b", "c"].map(Slice::from).to_vec();
    assert_eq!(summary(&transaction.of(&p)).unwrap(), (seen.clone(), Some("c".into()), true, 1));
    // The entries that a cursor passes count as read.
    for (key, conflicts) in [("bc", true), ("d", false)] {
        let mut transaction = db.transaction();
        let mut cursor = transaction.cursor(&p);
        cursor.seek("bb").unwrap();
        assert_eq!(cursor.key(), b"c");
        drop(cursor);
        transaction.put(&p, "own", "");
        p.put(key, "of another").unwrap();
        p.delete(key).unwrap();
        assert_eq!(transaction.commit(Durability::Os).is_err(), conflicts);
    }
}

#[test]
fn a_cursor_stays_within_its_range_and_seeks_after_a_key() {
    let (_folder, db, p) = open();
    for key in ["a", "b", "b\0", "c", "d"] {
        p.put(key, "").unwrap();
    }
    let snapshot = db.snapshot();
    p.delete("c").unwrap();
    for (mut cursor, keys) in [
        (p.cursor_in("b".."d"), vec!["b", "b\0"]),
        (snapshot.cursor_in(&p, "b".."d"), vec!["b", "b\0", "c"]),
        (p.cursor_in((Bound::Excluded("b"), Bound::Unbounded)), vec!["b\0", "d"]),
    ] {
        cursor.seek_to_first().unwrap();
        let mut found = Vec::new();
        while cursor.valid() {
            found.push(String::from_utf8(cursor.key().to_vec()).unwrap());
            cursor.next().unwrap();
        }
        assert_eq!(found, keys);
        cursor.seek("a").unwrap();
        assert_eq!(cursor.key(), keys[0].as_bytes());
        cursor.seek_to_last().unwrap();
        assert_eq!(cursor.key(), keys[keys.len() - 1].as_bytes());
    }
    let mut cursor = p.cursor();
    for (after, next) in [("a", "b"), ("b", "b\0"), ("b\0", "d"), ("0", "a")] {
        cursor.seek_after(after).unwrap();
        assert_eq!(cursor.key(), next.as_bytes(), "after {after:?}");
    }
    cursor.seek_after("d").unwrap();
    assert!(!cursor.valid());
}

#[test]
fn the_ends_and_the_length_of_a_partition() {
    let (_folder, db, p) = open();
    assert_eq!((p.first().unwrap(), p.last().unwrap(), p.len_approx().unwrap()), (None, None, 0));
    for n in 0..100_u8 {
        p.put([n], [n]).unwrap();
    }
    assert_eq!(p.first().unwrap(), Some(([0].into(), [0].into())));
    assert_eq!(p.last().unwrap(), Some(([99].into(), [99].into())));
    assert_eq!(p.len_approx().unwrap(), 100);
    p.flush().unwrap();
    for n in 0..50_u8 {
        p.delete([n]).unwrap();
    }
    p.compact(..).unwrap();
    assert_eq!(p.len_approx().unwrap(), 50);
    assert_eq!(p.first().unwrap(), Some(([50].into(), [50].into())));
    db.drop_partition("p").unwrap();
    assert_eq!(p.len_approx().unwrap_err().kind(), ErrorKind::PartitionNotFound);
}

#[test]
fn one_partition_is_flushed_and_the_others_are_not() {
    let (_folder, db, p) = open();
    let q = db.partition("q").unwrap();
    p.put("k", "v").unwrap();
    q.put("k", "v").unwrap();
    p.flush().unwrap();
    let stats = db.stats();
    let tables: Vec<u64> =
        stats.partitions.iter().map(|partition| partition.levels[0].table_count).collect();
    assert_eq!(tables, [0, 1, 0]);
    db.close().unwrap();
    assert_eq!(p.flush().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn statistics_health_and_errors_are_serialized() {
    let (_folder, db, p) = open();
    p.put("k", "v").unwrap();
    let stats = serde_json::to_value(db.stats()).unwrap();
    assert_eq!(stats["partitions"][1]["name"], "p");
    assert_eq!(stats["batch_count"], 1);
    let health = serde_json::to_value(db.health()).unwrap();
    assert_eq!(health["read_only"], serde_json::Value::Null);
    let error = serde_json::to_value(Error::corruption("a.sst", 17, "bad checksum")).unwrap();
    assert_eq!(error["kind"], "Corruption");
    assert_eq!(error["damage"]["offset"], 17);
}

#[test]
fn a_value_becomes_bytes_without_a_copy() {
    let (_folder, _db, p) = open();
    p.put("k", vec![7; 5000]).unwrap();
    let value = p.get("k").unwrap().unwrap();
    let at = value.as_ptr();
    let bytes = bytes::Bytes::from(value);
    assert_eq!((bytes.as_ptr(), bytes.len()), (at, 5000));
}

/// The figures are updated when files are created and deleted; this compares them with the folder.
#[test]
fn bytes_on_disk_are_those_of_all_files() {
    let fs = Arc::new(MemFs::new());
    let options = Options::new().wal_segment_bytes(64 << 10).write_buffer_bytes(256 << 10);
    let db = stepped(fs.clone(), "/db", 1).options(options.clone()).open().unwrap();
    let p = db.partition("p").unwrap();
    for round in 0..40_u32 {
        for n in 0..50_u32 {
            p.put((n * 7 + round).to_be_bytes(), vec![7; 1000]).unwrap();
        }
        if round % 5 == 4 {
            db.wait_idle().unwrap();
        }
        check_disk_bytes(&db, &fs);
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    p.put("last", "in the log").unwrap();
    check_disk_bytes(&db, &fs);
    let stats = db.stats();
    assert!(stats.wal_disk_bytes > 0 && stats.manifest_disk_bytes > 0 && stats.table_bytes > 0);
    drop((p, db));
    let reader = Db::builder("/db").options(options).fs(fs.clone()).read_only(true).open().unwrap();
    // A closed database has no commit cursor of its own.
    assert_eq!(reader.stats().disk_bytes, sum(&fs, "") - sum_of_cursors(&fs));
    assert!(reader.stats().wal_disk_bytes > 0);
}

#[track_caller]
fn check_disk_bytes(db: &Db, fs: &MemFs) {
    let stats = db.stats();
    assert_eq!(stats.wal_disk_bytes, sum(fs, ".wal"));
    assert_eq!(stats.manifest_disk_bytes, sum(fs, ".manifest"));
    assert_eq!(stats.disk_bytes, sum(fs, ""));
}

/// The total size of the files whose names have this ending.
fn sum(fs: &MemFs, ending: &str) -> u64 {
    let files = fs.list(Path::new("/db"), "").unwrap();
    files.iter().filter(|file| file.name.ends_with(ending)).map(|file| file.len).sum()
}

fn sum_of_cursors(fs: &MemFs) -> u64 {
    let files = fs.list(Path::new("/db"), "").unwrap();
    files.iter().filter(|file| file.name.starts_with("cursor-")).map(|file| file.len).sum()
}

fn builder(fs: &MemFs) -> Builder {
    Db::builder("/db").fs(Arc::new(fs.clone()))
}

fn io_kind(refused: &Error) -> Option<std::io::ErrorKind> {
    assert_eq!(refused.kind(), ErrorKind::Io);
    refused.io_source().map(std::io::Error::kind)
}

#[test]
fn a_mistyped_path_makes_no_database() {
    let fs = MemFs::new();
    let refused = builder(&fs).create_if_missing(false).open().err().unwrap();
    assert_eq!(io_kind(&refused), Some(std::io::ErrorKind::NotFound));
    assert!(fs.list(Path::new("/db"), "").is_err(), "not even the folder");
    // A folder with files of somebody else.
    fs.create_dir(Path::new("/db")).unwrap();
    fs.put_if_absent(Path::new("/db/notes"), b"not ours").unwrap();
    let refused = builder(&fs).create_if_missing(false).open().err().unwrap();
    assert_eq!(io_kind(&refused), Some(std::io::ErrorKind::NotFound));
    assert_eq!(fs.list(Path::new("/db"), "").unwrap().len(), 1, "no lock, either");
    // What exists opens, and a lost manifest is damage, with or without the option.
    builder(&fs).open().unwrap().partition("p").unwrap().put("k", "v").unwrap();
    let db = builder(&fs).create_if_missing(false).open().unwrap();
    assert!(db.open_partition("p").unwrap().contains("k").unwrap());
    drop(db);
    for file in fs.list(Path::new("/db"), "").unwrap() {
        if file.name.ends_with(".manifest") {
            fs.delete(&Path::new("/db").join(file.name)).unwrap();
        }
    }
    let damaged = builder(&fs).create_if_missing(false).open().err().unwrap();
    assert_eq!(damaged.kind(), ErrorKind::Corruption);
}

#[test]
fn an_existing_database_is_refused_and_left_alone() {
    let fs = MemFs::new();
    let db = builder(&fs).error_if_exists(true).open().unwrap();
    let p = db.partition("p").unwrap();
    p.put("k", "v").unwrap();
    let before = fs.list(Path::new("/db"), "").unwrap();
    // Also if the open would take it over: its writer is not fenced.
    for takes_over in [false, true] {
        let refused =
            builder(&fs).error_if_exists(true).take_over(takes_over).open().err().unwrap();
        assert_eq!(io_kind(&refused), Some(std::io::ErrorKind::AlreadyExists));
    }
    assert_eq!(fs.list(Path::new("/db"), "").unwrap(), before);
    p.put("k", "w").unwrap();
    let reading = [builder(&fs).read_only(true), builder(&fs).beside_writer(true)];
    for reading in reading.map(|reading| reading.take_over(true)) {
        assert_eq!(reading.open().err().unwrap().kind(), ErrorKind::InvalidArgument);
    }
    p.put("k", "w").unwrap();
    // Neither option has a meaning for a reader.
    let reader = builder(&fs).error_if_exists(true).beside_writer(true).open().unwrap();
    assert!(reader.open_partition("p").unwrap().contains("k").unwrap());
}

#[test]
fn iterators_of_a_dropped_snapshot_show_what_it_showed() {
    let (_folder, db, p) = open();
    p.put("a", "1").unwrap();
    let snapshot = db.snapshot();
    let mut range = snapshot.range(&p, ..);
    let mut cursor = snapshot.cursor(&p);
    p.put("a", "2").unwrap();
    drop(snapshot);
    p.compact(..).unwrap();
    drop((db, p));
    let (_, value) = range.next().unwrap().unwrap();
    assert_eq!(value, b"1");
    cursor.seek("").unwrap();
    assert_eq!(cursor.value().unwrap(), b"1");
}

/// A file system on which another process comes first: after the look at the folder, and before its lock.
struct Raced {
    mem: MemFs,
    first: fn(&MemFs),
}

impl Fs for Raced {
    crate::forward::forward_fs!(mem);

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        self.mem.open_append(path, mode)
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.mem.open_read(path)
    }

    fn hold_dir(&self, dir: &Path) -> Result<HeldDir> {
        (self.first)(&self.mem);
        self.mem.hold_dir(dir)
    }
}

fn make(fs: &MemFs) {
    builder(fs).open().unwrap().partition("p").unwrap().put("k", "v").unwrap();
}

fn remove(fs: &MemFs) {
    for file in fs.list(Path::new("/db"), "").unwrap() {
        fs.delete(&Path::new("/db").join(file.name)).unwrap();
    }
}

#[test]
fn a_database_that_comes_or_goes_before_the_lock_is_seen_under_it() {
    let mem = MemFs::new();
    let raced = Raced { mem: mem.clone(), first: make };
    let open = Db::builder("/db").fs(Arc::new(raced)).error_if_exists(true).open();
    assert_eq!(io_kind(&open.err().unwrap()), Some(std::io::ErrorKind::AlreadyExists));
    assert!(builder(&mem).open().unwrap().partition("p").unwrap().contains("k").unwrap());

    let raced = Raced { mem: mem.clone(), first: remove };
    let open = Db::builder("/db").fs(Arc::new(raced)).create_if_missing(false).open();
    assert_eq!(io_kind(&open.err().unwrap()), Some(std::io::ErrorKind::NotFound));
}
