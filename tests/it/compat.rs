//! Stores that earlier versions wrote, kept as files, and formats that later versions may write.
//!
//! `tests/fixtures/v1/` to `v6/` hold two stores of each format version of the log: one
//! that was closed, and one whose writer died. Every later version must open them.
//! `BLESS_FIXTURE=v6/closed cargo test fixtures_of_every_version` writes the closed one again from
//! [`write`], and `v6/crashed` the other. Do this only for a format that was never released.
//! [`expected`] is their content; it must never change.
//!
//! In version 2 frames of the manifest have a checksum of their header, and long headers of the log
//! a short check; the salts of log segments are computed from the segments. In version 3 an
//! operation of the log may clear a partition, in version 4 delete a range of keys,
//! in version 5 merge an operand, in version 6 write to the empty key.
//!
//! `promotion/` holds two databases that were taken over, see `compat/promotion.rs`.

mod backups;
mod clear;
mod cuts;
mod empty_key;
mod encrypted;
mod fifo;
mod flush_beyond_sync;
mod gaps;
mod keys;
mod metadata;
mod operands;
mod prefixes;
mod promotion;
mod ranges;
mod replay;
mod retained;
mod sections;
mod ttl;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use lsm_core::codec::{checksum64, checksum64_seeded, put_bytes, put_u32, put_u64, put_varint};
use lsm_core::fs::{CrashOutcome, Fs, MemFs, OsFs};
use lsm_core::internals::names::{FileKind, FileName};
use siltstone::secondary::{Level, Secondary, Target};
use siltstone::{
    Batch, Builder, Compression, Db, Durability, ErrorKind, Options, Partition, PartitionOptions,
    Range, Readable, VerifyOptions,
};

use crate::fixtures;
use crate::store::stepped;

const DIR: &str = "/db";
const FIXTURES: [(&str, bool); 2] = [("closed", true), ("crashed", false)];

type Content = BTreeMap<&'static str, BTreeMap<Vec<u8>, Vec<u8>>>;

/// The versions that were written; the current one is last.
const VERSIONS: [&str; 6] = ["v1", "v2", "v3", "v4", "v5", "v6"];

fn name_of(version: &str, name: &str) -> String {
    format!("{version}/{name}")
}

fn builder(fs: &MemFs) -> Builder {
    builder_on(Arc::new(fs.clone()))
}

fn builder_on(fs: Arc<dyn Fs>) -> Builder {
    let options = Options::new()
        .wal_segment_bytes(4 << 10)
        .write_buffer_bytes(1 << 20)
        .cache_bytes(1 << 20)
        .compaction_threads(1);
    stepped(fs, DIR, 1).options(options)
}

/// One operation of the fixture: partition, key, and a value or a deletion.
type Operation = (&'static str, Vec<u8>, Option<Vec<u8>>);

/// The batches of the fixture, in order. They were frozen with format version 1.
fn batches() -> Vec<Vec<Operation>> {
    let mut batches = Vec::new();
    for n in 0..240 {
        let key = format!("key {:03}", n * 37 % 90).into_bytes();
        let partition = if n % 3 == 0 { "plain" } else { "packed" };
        let value = (n % 7 != 5)
            .then(|| format!("value {n} {}", "sand and silt ".repeat(n % 9)).into_bytes());
        let mut batch = vec![(partition, key.clone(), value)];
        if n % 10 == 0 {
            batch.push(("default", key, Some(n.to_string().into_bytes())));
        }
        batches.push(batch);
    }
    batches[50].push(("default", b"empty value".to_vec(), Some(Vec::new())));
    batches[60].push(("default", b"\0\xff".to_vec(), Some(b"bytes\0\xff".to_vec())));
    batches[70].push(("packed", b"long key ".repeat(100), Some(b"l".to_vec())));
    batches[80].push(("packed", b"long value".to_vec(), Some(b"0123456789abcdef".repeat(400))));
    // In the log at the end, and longer than a segment.
    batches[210].push(("plain", b"longer than a segment".to_vec(), Some(vec![7; 6000])));
    batches
}

/// The content of the fixtures. It was frozen with format version 1.
fn expected() -> Content {
    let names = ["default", "packed", "plain", "unlogged"];
    let mut content: Content = names.map(|name| (name, BTreeMap::new())).into();
    for (partition, key, value) in batches().into_iter().flatten() {
        let partition = content.get_mut(partition).unwrap();
        match value {
            Some(value) => drop(partition.insert(key, value)),
            None => drop(partition.remove(&key)),
        }
    }
    let unlogged = content.get_mut("unlogged").unwrap();
    (0..20u8).for_each(|n| drop(unlogged.insert(vec![n], vec![n; 10])));
    content
}

/// Writes the fixture: three epochs, tables on several levels, a log of several segments.
fn write(is_closed: bool) -> MemFs {
    let fs = MemFs::new();
    let small = PartitionOptions::new()
        .block_bytes(512)
        .table_bytes(2 << 10)
        .level0_tables(2)
        .level_base_bytes(2 << 10)
        .level_multiplier(2);
    let batches = batches();
    let mut written = 0;
    for (epoch, end) in [90, 170, 240].into_iter().enumerate() {
        let db = builder(&fs).open().unwrap();
        db.partition_with("packed", small.clone().compression(Compression::Lz4)).unwrap();
        db.partition_with("plain", small.clone().compression(Compression::None)).unwrap();
        if epoch == 0 {
            db.partition("dropped").unwrap().put("gone", "for good").unwrap();
            let options = PartitionOptions::new().logged(false);
            let unlogged = db.partition_with("unlogged", options).unwrap();
            for n in 0..20u8 {
                unlogged.put([n], [n; 10]).unwrap();
            }
        }
        for (number, operations) in batches.iter().enumerate().take(end).skip(written) {
            let mut batch = db.batch();
            for (partition, key, value) in operations {
                let partition = db.partition(partition).unwrap();
                batch = match value {
                    Some(value) => batch.put(&partition, key, value),
                    None => batch.delete(&partition, key),
                };
            }
            batch.commit(Durability::Os).unwrap();
            if number % 30 == 20 && number < 200 {
                db.flush().unwrap();
            }
            if number % 25 == 24 {
                db.wait_idle().unwrap();
            }
        }
        if epoch == 1 {
            db.drop_partition("dropped").unwrap();
            db.partition("plain").unwrap().compact(..).unwrap();
        }
        written = end;
        if end < batches.len() || is_closed {
            db.close().unwrap();
        } else {
            return fs.crash_clone(CrashOutcome::Everything, &mut || 0);
        }
    }
    fs
}

fn check(db: &Db, expected: &Content) {
    let names: Vec<_> = expected.keys().copied().collect();
    assert_eq!(db.partition_names(), names);
    for (name, content) in expected {
        let partition = db.partition(name).unwrap();
        let pairs = partition.iter().map(|pair| {
            let (key, value) = pair.unwrap();
            (key.to_vec(), value.to_vec())
        });
        let pairs: BTreeMap<_, _> = pairs.collect();
        assert!(pairs == *content, "{name} has {} keys of {}", pairs.len(), content.len());
        for (key, value) in content {
            assert_eq!(partition.get(key).unwrap().as_deref(), Some(&value[..]));
        }
    }
}

/// The files of a fixture of version 1 in memory.
fn load(name: &str) -> MemFs {
    fixtures::in_memory(&name_of("v1", name))
}

#[test]
fn fixtures_of_every_version_open_and_accept_writes() {
    for (name, is_closed) in FIXTURES {
        let present = VERSIONS[VERSIONS.len() - 1];
        fixtures::bless(&name_of(present, name), || write(is_closed));
    }
    for (version, (name, _)) in
        VERSIONS.into_iter().flat_map(|version| FIXTURES.map(|fixture| (version, fixture)))
    {
        let dir = fixtures::on_disk(&name_of(version, name));
        let mut content = expected();
        let db = Db::open(dir.path()).unwrap();
        check(&db, &content);
        for name in ["default", "plain"] {
            db.partition(name).unwrap().put("key 001", "written by a later version").unwrap();
            let value = b"written by a later version".to_vec();
            content.get_mut(name).unwrap().insert(b"key 001".to_vec(), value);
        }
        for name in content.keys() {
            db.partition(name).unwrap().compact(..).unwrap();
        }
        check(&db, &content);
        db.close().unwrap();
        let db = Db::open(dir.path()).unwrap();
        check(&db, &content);
    }
}

#[test]
fn the_generator_of_the_fixture_writes_what_it_says() {
    for (_, is_closed) in FIXTURES {
        let fs = write(is_closed);
        let files =
            |end: &str| fs.paths().iter().filter(|p| p.to_string_lossy().ends_with(end)).count();
        assert!(files(".sst") >= 6 && files(".wal") >= 2 && files(".manifest") == 1);
        let bytes: usize = fs.paths().iter().map(|path| fs.read_raw(path).unwrap().len()).sum();
        assert!(bytes < 100 << 10, "{bytes} bytes");
        check(&builder(&fs).open().unwrap(), &expected());
    }
}

fn files(fs: &MemFs, kind: FileKind) -> Vec<PathBuf> {
    let mut paths = fs.paths();
    paths.retain(|path| {
        let name = path.file_name().and_then(|name| FileName::parse(name.to_str()?));
        name.is_some_and(|name| name.kind == kind)
    });
    paths
}

/// Opens the store and reads everything. Returns the first error.
fn read_all(fs: &MemFs) -> siltstone::Result<()> {
    let db = builder(fs).open()?;
    for name in db.partition_names() {
        for pair in db.partition(&name)?.iter() {
            pair?;
        }
    }
    Ok(())
}

/// Patches the first file of `kind` with `edit`. The store must be refused as too new, with a
/// message that names the file and contains `said`.
fn check_refused(kind: FileKind, said: &str, edit: impl Fn(&mut Vec<u8>)) {
    for (name, _) in FIXTURES {
        let fs = load(name);
        let path = files(&fs, kind).remove(0);
        let mut bytes = fs.read_raw(&path).unwrap();
        edit(&mut bytes);
        fs.write_raw(&path, &bytes).unwrap();
        let error = read_all(&fs).expect_err(said);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let message = error.to_string();
        assert!(message.contains(said), "{message:?} does not say {said:?}");
        assert!(message.contains(path.to_str().unwrap()), "{message:?} names no file");
    }
}

fn seal(bytes: &mut [u8], at: usize) {
    let sum = checksum64(&bytes[..at]);
    bytes[at..at + 8].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn a_manifest_of_a_newer_version_or_with_unknown_features_is_refused() {
    check_refused(FileKind::Manifest, "version 3", |bytes| {
        bytes[8] = 3;
        seal(bytes, 72);
    });
    check_refused(FileKind::Manifest, "features 0x10000", |bytes| {
        bytes[34] = 1;
        seal(bytes, 72);
    });
    check_refused(FileKind::Manifest, "checksum 9", |bytes| {
        bytes[12] = 9;
        seal(bytes, 72);
    });
}

#[test]
fn a_segment_of_a_newer_version_or_with_unknown_features_is_refused() {
    check_refused(FileKind::Wal, "version 7", |bytes| {
        bytes[8] = 7;
        seal(bytes, 120);
    });
    check_refused(FileKind::Wal, "features 0x100", |bytes| {
        bytes[25] = 1;
        seal(bytes, 120);
    });
    check_refused(FileKind::Wal, "checksum 9", |bytes| {
        bytes[12] = 9;
        seal(bytes, 120);
    });
}

fn seal_table(bytes: &mut [u8]) {
    let len = bytes.len();
    let start = bytes.len() - 152;
    let sum = checksum64_seeded(&bytes[start..len - 8], len as u64);
    bytes[len - 8..].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn a_table_of_a_newer_version_or_with_unknown_features_is_refused() {
    check_refused(FileKind::Sst, "version 2", |bytes| {
        let at = bytes.len() - 152 + 132;
        bytes[at] = 2;
        seal_table(bytes);
    });
    check_refused(FileKind::Sst, "features 0x80", |bytes| {
        let at = bytes.len() - 152 + 16;
        bytes[at] = 0x80;
        seal_table(bytes);
    });
    check_refused(FileKind::Sst, "checksum 9", |bytes| {
        let at = bytes.len() - 152 + 24;
        bytes[at] = 9;
        seal_table(bytes);
    });
}

/// Appends an edit with one change, whose number is `tag`, to a manifest.
fn append_change(bytes: &mut Vec<u8>, tag: u64) {
    // Walk the frames to find the number of the last edit.
    let mut at = 80;
    let mut number = 0;
    while at < bytes.len() {
        let field = |from: usize, len: usize| {
            let mut word = [0; 8];
            word[..len].copy_from_slice(&bytes[at + from..at + from + len]);
            u64::from_le_bytes(word)
        };
        number = field(12, 8);
        at += 20 + field(8, 4) as usize;
    }
    let mut payload = Vec::new();
    put_varint(&mut payload, tag);
    put_bytes(&mut payload, b"from the future");
    let mut frame = Vec::new();
    put_u32(&mut frame, payload.len() as u32);
    put_u64(&mut frame, number + 1);
    frame.extend_from_slice(&payload);
    // The seed of the checksum: database id, generation, offset of the frame.
    let mut place = bytes[40..64].to_vec();
    put_u64(&mut place, bytes.len() as u64);
    put_u64(bytes, checksum64_seeded(&frame, checksum64(&place)));
    bytes.extend_from_slice(&frame);
}

#[test]
fn a_change_that_is_not_known_is_refused_unless_it_may_be_skipped() {
    check_refused(FileKind::Manifest, "change 99", |bytes| append_change(bytes, 99 << 1));
    let fs = load("closed");
    let path = files(&fs, FileKind::Manifest).remove(0);
    let mut bytes = fs.read_raw(&path).unwrap();
    append_change(&mut bytes, 99 << 1 | 1);
    fs.write_raw(&path, &bytes).unwrap();
    check(&builder(&fs).open().unwrap(), &expected());
}

#[test]
fn a_feature_that_only_writers_must_know_stops_writers() {
    let fs = load("closed");
    let path = files(&fs, FileKind::Manifest).remove(0);
    let mut bytes = fs.read_raw(&path).unwrap();
    bytes[24] = 4;
    seal(&mut bytes, 72);
    fs.write_raw(&path, &bytes).unwrap();
    let error = read_all(&fs).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // A compatible feature stops no one.
    bytes[24] = 0;
    bytes[16] = 4;
    seal(&mut bytes, 72);
    fs.write_raw(&path, &bytes).unwrap();
    check(&builder(&fs).open().unwrap(), &expected());
}

/// A write of a fixture: partition, key and value.
type Write = (&'static str, u8, String);

fn write_all(db: &Db, writes: &[Write]) {
    for (name, key, value) in writes {
        db.partition(name).unwrap().put([*key], value).unwrap();
    }
}

/// Checks that a secondary without a primary, and then an open, find the data of these writes.
fn check_followed_and_opened(fs: &MemFs, writes: &[Write]) {
    let names: BTreeSet<_> = writes.iter().map(|(name, ..)| *name).collect();
    let secondary = Secondary::builder(DIR).fs(Arc::new(fs.clone())).open().unwrap();
    secondary.sync(Target::Latest).unwrap();
    for name in &names {
        let reading = secondary.partition(name).unwrap().at(Level::Eventual).unwrap();
        check_partition(&reading, name, writes);
    }
    let db = builder(fs).open().unwrap();
    for name in &names {
        check_partition(&db.partition(name).unwrap(), name, writes);
    }
}

fn check_partition(found: &impl Readable<Range = Range>, name: &str, writes: &[Write]) {
    let found = found.iter().map(|pair| pair.unwrap());
    let found: Vec<_> = found.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    let own = writes.iter().filter(|(partition, ..)| *partition == name);
    let own: Vec<_> = own.map(|(_, key, value)| (vec![*key], value.clone().into_bytes())).collect();
    assert_eq!(found, own, "{name}");
}
