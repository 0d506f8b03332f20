//! Whole stores on the encrypted file system: no file shows the data, every part of the store works, and each change
//! of a file is found or has no effect. `crash.rs` and `model.rs` run their scripts on it, too.

mod changed;

use std::sync::Arc;

use encryption::{EncryptedFs, EncryptionKey, KeyId, KeyRing};
use lsm_core::fs::{ENCRYPTED_MAGIC, Fs, MemFs, OsFs};
use siltstone::backup::BackupEngine;
use siltstone::metahive::ScrubOptions;
use siltstone::secondary::{Secondary, Target};
use siltstone::{
    Compression, Db, Durability, ErrorKind, LargeValueOptions, MetaHiveOptions, Options, Partition,
    PartitionOptions, Slice, VerifyOptions,
};

use crate::store::{content, settle, stepped};

const DIR: &str = "/db";
/// In each key and value.
const MARKER: &str = "marker of the plain text";

fn ring() -> KeyRing {
    KeyRing::new(KeyId::new("first").unwrap(), EncryptionKey::new([1; 32]))
}

fn over(mem: &MemFs, keys: &KeyRing) -> Arc<dyn Fs> {
    Arc::new(EncryptedFs::new(Arc::new(mem.clone()), Arc::new(keys.clone())))
}

fn open(fs: &Arc<dyn Fs>, dir: &str) -> siltstone::Result<Db> {
    let options = Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(16 << 10);
    stepped(fs.clone(), dir, 1).options(options).open()
}

fn large() -> PartitionOptions {
    let large = LargeValueOptions::default().threshold_bytes(256).chunk_bytes(1 << 20);
    PartitionOptions::new().large_values(large)
}

/// Partitions of all sorts: plain, with large values, with metadata.
fn create(fs: &Arc<dyn Fs>, dir: &str) -> Db {
    let db = open(fs, dir).unwrap();
    let small = PartitionOptions::new().block_bytes(256).compression(Compression::None);
    db.partition_with("plain", small).unwrap();
    db.partition_with("large", large()).unwrap();
    let sealed = PartitionOptions::new().metahive(MetaHiveOptions::default());
    db.partition_with("sealed", sealed).unwrap();
    db
}

const PARTITIONS: [&str; 3] = ["plain", "large", "sealed"];

fn value(number: usize) -> Vec<u8> {
    format!("{MARKER} {number} ").repeat(1 + number % 40).into_bytes()
}

fn fill(db: &Db, numbers: std::ops::Range<usize>) {
    for name in PARTITIONS {
        let partition = db.partition(name).unwrap();
        for number in numbers.clone() {
            let key = format!("{MARKER} {number:05}");
            let batch = db.batch().put(&partition, key, value(number));
            batch.commit(if number % 7 == 0 { Durability::Sync } else { Durability::Os }).unwrap();
        }
    }
}

fn check(partition: &Partition, count: usize) {
    let content = content(partition);
    assert_eq!(content.len(), count, "{}", partition.name());
    for (number, (_, found)) in content.iter().enumerate() {
        assert!(*found == value(number), "{} {number}", partition.name());
    }
}

fn check_all(db: &Db, count: usize) {
    PARTITIONS.iter().for_each(|name| check(&db.partition(name).unwrap(), count));
}

/// No file has a part of the marker, and each one that has bytes begins as an encrypted one.
fn check_hidden(mem: &MemFs) {
    let mut count = 0;
    for path in mem.paths() {
        let bytes = mem.read_raw(&path).unwrap();
        let shows = bytes.windows(8).any(|part| MARKER.as_bytes().windows(8).any(|it| it == part));
        assert!(!shows, "{} shows the data", path.display());
        if !bytes.is_empty() {
            assert!(bytes.starts_with(&ENCRYPTED_MAGIC), "{} is not encrypted", path.display());
            count += 1;
        }
    }
    assert!(count >= 4, "{count} files");
}

#[test]
fn no_file_shows_the_data_and_every_part_of_a_store_reads_it() {
    let mem = MemFs::new();
    let fs = over(&mem, &ring());
    let db = create(&fs, DIR);
    fill(&db, 0..150);
    db.flush().unwrap();
    settle(&db);
    fill(&db, 150..200);
    check_all(&db, 200);
    check_hidden(&mem);
    let report = db.verify(VerifyOptions::default()).unwrap();
    assert!(report.is_sound(), "{report}");
    let sealed = db.partition("sealed").unwrap();
    assert!(sealed.scrub(ScrubOptions::new()).unwrap().is_sound());
    db.checkpoint("/checkpoint").unwrap();
    db.partition("plain").unwrap().export(.., "/export").unwrap();
    db.partition("large").unwrap().export(.., "/export-large").unwrap();
    let backups = BackupEngine::open("/backups").fs(fs.clone());
    backups.create_backup(&db).unwrap();
    check_hidden(&mem);
    db.close().unwrap();
    check_hidden(&mem);

    check_all(&open(&fs, "/checkpoint").unwrap(), 200);
    backups.restore(1, "/restored").unwrap();
    check_all(&open(&fs, "/restored").unwrap(), 200);
    let again = open(&fs, DIR).unwrap();
    check_all(&again, 200);
    again.partition("new").unwrap().ingest("/export").unwrap();
    check(&again.partition("new").unwrap(), 200);
    again.partition_with("new large", large()).unwrap().ingest("/export-large").unwrap();
    check(&again.partition("new large").unwrap(), 200);
    check_hidden(&mem);
}

/// A value as the secondary reads it now.
fn followed(secondary: &Secondary, number: usize) -> Option<Slice> {
    let partition = secondary.partition("large").unwrap();
    partition.sync(Target::Latest).unwrap();
    partition.get(format!("{MARKER} {number:05}")).unwrap()
}

#[test]
fn a_secondary_follows_an_encrypted_primary() {
    let mem = MemFs::new();
    let fs = over(&mem, &ring());
    let db = create(&fs, DIR);
    fill(&db, 0..50);
    // Its own file system, as that of another process.
    let secondary = Db::secondary_builder(DIR).fs(over(&mem, &ring())).open().unwrap();
    assert_eq!(followed(&secondary, 49).as_deref(), Some(&value(49)[..]));
    for round in 1..6 {
        fill(&db, 50 * round..50 * (round + 1));
        if round % 2 == 0 {
            db.flush().unwrap();
            settle(&db);
        }
        let last = 50 * (round + 1) - 1;
        assert_eq!(followed(&secondary, last).as_deref(), Some(&value(last)[..]));
        assert!(followed(&secondary, last + 1).is_none());
    }
    check_hidden(&mem);
}

#[test]
fn space_of_large_values_is_reclaimed_on_an_encrypted_store() {
    let mem = MemFs::new();
    let fs = over(&mem, &ring());
    let db = open(&fs, DIR).unwrap();
    let partition = db.partition_with("large", large()).unwrap();
    let value = MARKER.repeat(2000);
    for round in 0..3 {
        for number in 0..100 {
            partition.put(format!("{number:03}"), format!("{round}{value}")).unwrap();
        }
        db.flush().unwrap();
    }
    let before: usize = mem.paths().iter().map(|path| mem.read_raw(path).unwrap().len()).sum();
    partition.compact(..).unwrap();
    partition.reclaim().unwrap();
    settle(&db);
    let after: usize = mem.paths().iter().map(|path| mem.read_raw(path).unwrap().len()).sum();
    assert!(after < before / 2, "{before} {after}");
    for number in 0..100 {
        let mut bytes = Vec::new();
        let key = format!("{number:03}");
        let mut reader = partition.open_blob(key.as_bytes()).unwrap().unwrap();
        std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
        assert!(bytes == format!("2{value}").as_bytes());
        let lent = partition.get_ref(key.as_bytes()).unwrap().unwrap();
        assert!(lent[..] == bytes);
    }
    db.close().unwrap();
    check_hidden(&mem);
}

fn refusal(opened: siltstone::Result<Db>) -> String {
    let Err(error) = opened else { panic!("it opens") };
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    error.to_string()
}

#[test]
fn a_store_opens_with_its_keys_alone_and_says_what_is_missing() {
    let mem = MemFs::new();
    let fs = over(&mem, &ring());
    let db = create(&fs, DIR);
    fill(&db, 0..20);
    db.close().unwrap();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let said = refusal(open(&plain, DIR));
    assert!(said.contains(".manifest is encrypted, and was opened without keys"), "{said}");
    let wrong = KeyRing::new(KeyId::new("first").unwrap(), EncryptionKey::new([2; 32]));
    let said = refusal(open(&over(&mem, &wrong), DIR));
    assert!(
        said.contains(".manifest") && said.contains("another key than the one given as first"),
        "{said}"
    );
    let missing = KeyRing::new(KeyId::new("second").unwrap(), EncryptionKey::new([1; 32]));
    let said = refusal(open(&over(&mem, &missing), DIR));
    assert!(said.contains("with the key first, which is not given"), "{said}");
    // Nothing was changed by these.
    check_all(&open(&fs, DIR).unwrap(), 20);

    let mem = MemFs::new();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let db = create(&plain, DIR);
    fill(&db, 0..20);
    db.close().unwrap();
    let said = refusal(open(&over(&mem, &ring()), DIR));
    assert!(said.contains(".manifest is not encrypted, and was opened with keys"), "{said}");
    check_all(&open(&plain, DIR).unwrap(), 20);
}

#[test]
fn a_new_key_is_used_for_new_files_and_compactions_leave_the_old_one() {
    let mem = MemFs::new();
    let keys = ring();
    let fs = over(&mem, &keys);
    let db = create(&fs, DIR);
    fill(&db, 0..60);
    db.flush().unwrap();
    keys.rotate_to(KeyId::new("second").unwrap(), EncryptionKey::random().unwrap());
    fill(&db, 60..120);
    check_all(&db, 120);
    db.close().unwrap();
    let db = open(&fs, DIR).unwrap();
    check_all(&db, 120);
    db.flush().unwrap();
    for name in PARTITIONS {
        db.partition(name).unwrap().compact(..).unwrap();
    }
    settle(&db);
    // What is left of the old key is chunk files, which are kept while they have live values.
    for path in mem.paths() {
        let bytes = mem.read_raw(&path).unwrap();
        let is_old = bytes.len() > 32 && bytes[17..22] == *b"first";
        assert!(!is_old || path.extension().is_some_and(|it| it == "chunk"), "{}", path.display());
    }
    check_all(&db, 120);
}

/// Names, lengths and the words that processes share are not encrypted: the page says so.
#[test]
fn the_cursor_of_an_encrypted_store_has_no_key_and_no_value() {
    let dir = tempfile::tempdir().unwrap();
    let fs: Arc<dyn Fs> = Arc::new(EncryptedFs::new(Arc::new(OsFs), Arc::new(ring())));
    let path = dir.path().to_str().unwrap();
    let db = create(&fs, path);
    fill(&db, 0..100);
    let mut count = 0;
    for entry in OsFs.list(dir.path(), "").unwrap() {
        let file = dir.path().join(entry.name);
        let mut bytes = vec![0; entry.len as usize];
        OsFs.open_read(&file).unwrap().read_at(0, &mut bytes).unwrap();
        let shows = bytes.windows(8).any(|part| MARKER.as_bytes().windows(8).any(|it| it == part));
        assert!(!shows, "{} shows the data", file.display());
        count += 1;
    }
    assert!(count > 5);
    check_all(&db, 100);
    db.close().unwrap();
    let read_only = Db::builder(path).fs(fs).read_only(true).open().unwrap();
    check_all(&read_only, 100);
}

#[test]
fn a_file_in_the_place_of_another_is_found() {
    let mem = MemFs::new();
    let fs = over(&mem, &ring());
    let db = create(&fs, DIR);
    for range in [0..40, 40..80] {
        fill(&db, range);
        db.flush().unwrap();
    }
    db.close().unwrap();
    let tables: Vec<_> = mem
        .paths()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|it| it == "sst"))
        .collect();
    let one = mem.read_raw(&tables[0]).unwrap();
    mem.write_raw(&tables[0], &mem.read_raw(&tables[1]).unwrap()).unwrap();
    mem.write_raw(&tables[1], &one).unwrap();
    let found = open(&fs, DIR).and_then(|db| {
        for name in PARTITIONS {
            db.partition(name)?.iter().try_for_each(|entry| entry.map(drop))?;
        }
        Ok(())
    });
    let error = found.unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains(".sst"), "{error}");
}
