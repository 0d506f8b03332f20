//! The log and tables through mappings, on the real file system: when they are used, and the effect
//! of a failed sync and of damage. Other tests check crashes, faults and damage both with mappings
//! and without them.

use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{AppendMode, FaultAction, FaultAt, FaultFs, FaultRule, Fs, OpKind, OsFs};
use siltstone::{
    BackgroundMode, Compression, Db, Durability, ErrorKind, Options, Partition, PartitionOptions,
    VerifyOptions,
};

use crate::store::stepped;

fn open(folder: &Path, fs: Arc<dyn Fs>, is_mapped: bool) -> Db {
    let options = Options::new().wal_mapped(is_mapped).sync_interval_ms(0).cache_bytes(1 << 20);
    stepped(fs, folder, 1).options(options).open().unwrap()
}

/// Puts until the log has grown by `bytes`, without a sync.
fn put_bytes(partition: &Partition, first: usize, bytes: usize) -> usize {
    let mut number = first;
    for _ in 0..bytes / 200 {
        partition.put(format!("{number:08}"), vec![b'x'; 200]).unwrap();
        number += 1;
    }
    number
}

/// Returns `true` if a segment of the log in `folder` is mapped into this process.
fn is_mapped(folder: &Path) -> bool {
    maps_of(folder, ".wal") > 0
}

/// The number of mappings of files in `folder` whose names end in `suffix`.
fn maps_of(folder: &Path, suffix: &str) -> usize {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return 0 };
    let folder = folder.to_str().unwrap();
    maps.lines().filter(|line| line.contains(folder) && line.contains(suffix)).count()
}

/// Returns `true` if files on the file system of `folder` are mapped.
fn is_borne(folder: &Path) -> bool {
    let file = OsFs.open_append(&folder.join("probe"), AppendMode::IfAbsent).unwrap();
    file.preallocate(1 << 20).unwrap();
    file.map_appends()
}

#[test]
fn the_log_is_mapped_where_supported_until_a_sync_is_requested() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let is_borne = is_borne(&dir);
    for is_asked in [true, false] {
        let folder = dir.join(format!("mapped-{is_asked}"));
        let db = open(&folder, Arc::new(OsFs), is_asked);
        let partition = db.partition("p").unwrap();
        for number in 0..100 {
            let batch = db.batch().put(&partition, format!("{number}"), vec![b'x'; 1000]);
            batch.commit(Durability::Sync).unwrap();
        }
        assert!(!is_mapped(&folder), "each write was synced");
        let next = put_bytes(&partition, 0, 200 << 10);
        // The first segments are short: the end of one is written.
        let last = (0..600).any(|more| {
            put_bytes(&partition, next + more, 200);
            is_mapped(&folder)
        });
        assert_eq!(last, is_borne && is_asked, "asked for: {is_asked}");
        db.wait_durable(db.visible_seq()).unwrap();
        let count = partition.iter().map(Result::unwrap).count();
        db.close().unwrap();
        assert!(!is_mapped(&folder), "closed");
        let db = open(&folder, Arc::new(OsFs), !is_asked);
        assert_eq!(db.partition("p").unwrap().iter().map(Result::unwrap).count(), count);
    }
}

#[test]
fn a_failed_sync_of_a_mapped_log_is_reported_and_the_store_goes_on_in_a_new_file() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("db");
    let fs = FaultFs::new(Arc::new(OsFs));
    let db = open(&folder, Arc::new(fs.clone()), true);
    let partition = db.partition("p").unwrap();
    let next = put_bytes(&partition, 0, 300 << 10);
    let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".wal".to_owned(), nth: 0 };
    fs.add_rule(FaultRule::once(at, FaultAction::Eio));
    let batch = db.batch().put(&partition, "synced", "x");
    assert_eq!(batch.commit(Durability::Sync).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(partition.put("refused", "x").unwrap_err().kind(), ErrorKind::ReadOnly);
    db.wait_idle().unwrap();
    let end = put_bytes(&partition, next, 300 << 10);
    db.wait_durable(db.visible_seq()).unwrap();
    drop(partition);
    drop(db);
    let db = open(&folder, Arc::new(OsFs), true);
    let partition = db.partition("p").unwrap();
    assert_eq!(
        partition.iter().map(Result::unwrap).count(),
        end + 1,
        "and the one that was visible"
    );
    assert!(partition.get("synced").unwrap().is_some());
}

/// Opens a database whose tables are mapped, if that is requested and the medium supports it.
fn open_tables(folder: &Path, is_asked: bool) -> Db {
    let options = Options::new().tables_mapped(is_asked).cache_bytes(8 << 20).wal_mapped(false);
    let builder = Db::builder(folder).options(options);
    builder.background(BackgroundMode::Stepped).open().unwrap()
}

fn key_of(n: u32) -> String {
    format!("{n:06}")
}

/// A partition with one table of 5,000 keys.
fn partition_of(db: &Db, name: &str, compression: Compression) -> Partition {
    let options = PartitionOptions::new().compression(compression);
    let partition = db.partition_with(name, options).unwrap();
    for n in 0..5000 {
        partition.put(key_of(n), [n as u8; 50]).unwrap();
    }
    partition.compact(..).unwrap();
    partition
}

/// Reads every key by a get and by a scan.
fn read_all(partition: &Partition) {
    for n in 0..5000 {
        assert_eq!(*partition.get(key_of(n)).unwrap().unwrap(), [n as u8; 50]);
        assert!(partition.get(format!("{n:06}x")).unwrap().is_none());
    }
    let mut count = 0;
    for (n, pair) in partition.iter().enumerate() {
        let (key, value) = pair.unwrap();
        assert_eq!((&*key, &*value), (key_of(n as u32).as_bytes(), &[n as u8; 50][..]));
        count += 1;
    }
    assert_eq!(count, 5000);
}

#[test]
fn tables_are_mapped_where_supported_until_their_last_reader_ends() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let is_borne = is_borne(&dir);
    for is_asked in [true, false] {
        let folder = dir.join(format!("tables-{is_asked}"));
        let db = open_tables(&folder, is_asked);
        let plain = partition_of(&db, "plain", Compression::None);
        read_all(&plain);
        let stats = db.stats();
        let is_mapped = is_asked && is_borne;
        assert_eq!(stats.mapped_table_bytes > 5000 * 50, is_mapped);
        assert!(stats.mapped_table_bytes < stats.table_bytes);
        assert_eq!(maps_of(&folder, ".sst"), usize::from(is_mapped));
        assert_eq!(stats.cache_bytes == 0, is_mapped, "their blocks take no room in the cache");
        // Compressed blocks are read and kept in the cache.
        let packed = partition_of(&db, "packed", Compression::Lz4);
        read_all(&packed);
        assert_eq!(db.stats().mapped_table_bytes, stats.mapped_table_bytes);
        assert!(db.stats().cache_bytes > 0);
        // The table of a reader stays, although it is deleted.
        let mut rest = plain.iter();
        let first = rest.next().unwrap().unwrap();
        assert_eq!(&*first.0, key_of(0).as_bytes());
        plain.clear().unwrap();
        plain.compact(..).unwrap();
        assert_eq!(rest.map(Result::unwrap).count(), 4999);
        db.wait_idle().unwrap();
        assert_eq!((maps_of(&folder, ".sst"), db.stats().mapped_table_bytes), (0, 0));
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the file is damaged in place")]
fn damage_of_a_mapped_table_names_its_keys_and_leaves_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let db = open_tables(dir.path(), true);
    let partition = partition_of(&db, "p", Compression::None);
    drop(partition);
    db.close().unwrap();
    let files = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path());
    let table = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "sst"));
    let table = table.unwrap();
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[100_000] ^= 1;
    std::fs::write(&table, &bytes).unwrap();
    let db = open_tables(dir.path(), true);
    let partition = db.partition("p").unwrap();
    // Twice: a block whose checksum did not match is verified again.
    for _ in 0..2 {
        let mut lost = 0;
        for n in 0..5000 {
            match partition.get(key_of(n)) {
                Ok(value) => assert_eq!(*value.unwrap(), [n as u8; 50]),
                Err(error) => {
                    let damage = error.damage().unwrap();
                    assert_eq!(damage.file, table);
                    assert_eq!(damage.key.as_deref(), Some(key_of(n).as_bytes()));
                    lost += 1;
                }
            }
        }
        assert!((30..90).contains(&lost), "{lost} keys are in a block");
        let error = partition.iter().find_map(Result::err).unwrap();
        assert_eq!(error.damage().unwrap().file, table);
    }
    assert!(!db.verify(VerifyOptions::new()).unwrap().damage().is_empty());
}
