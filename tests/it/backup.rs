//! Backups: what they share, what they read, and what a restored database has. The model test makes backups between
//! its operations, too.

mod crash;
mod damage;
mod lease;
mod linked;
mod pace;
mod shared;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_core::fs::{Fs, MemFs};
use siltstone::backup::BackupEngine;
use siltstone::{
    Compression, Db, ErrorKind, LargeValueOptions, Options, PartitionOptions, Result, VerifyOptions,
};
use testkit::Rng;

use crate::store::{Content, content, stepped};

const DIR: &str = "/db";
const BACKUPS: &str = "/backups";
const NEW: &str = "/new";

/// The partitions: plain, with large values, and without a log.
const PARTITIONS: [&str; 3] = ["plain", "large", "unlogged"];

type State = BTreeMap<&'static str, Content>;

fn options() -> Options {
    Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(8 << 10)
}

fn open(fs: &Arc<dyn Fs>, dir: &str, seed: u64) -> Result<Db> {
    stepped(fs.clone(), dir, seed).options(options()).open()
}

fn engine(fs: &Arc<dyn Fs>) -> BackupEngine {
    BackupEngine::open(BACKUPS).fs(fs.clone())
}

fn partition_options(name: &str) -> PartitionOptions {
    let options = PartitionOptions::new().block_bytes(128).table_bytes(1 << 10).level0_tables(2);
    match name {
        "large" => options.large_values(LargeValueOptions::default().threshold_bytes(256)),
        "unlogged" => options.logged(false),
        _ => options,
    }
}

fn create(fs: &Arc<dyn Fs>, dir: &str, seed: u64) -> Db {
    let db = open(fs, dir, seed).unwrap();
    for name in PARTITIONS {
        db.partition_with(name, partition_options(name)).unwrap();
    }
    db
}

/// Writes some keys of each partition.
fn write(db: &Db, rng: &mut Rng) {
    for n in 0..24 {
        let name = PARTITIONS[n % 3];
        let key = format!("k{:02}", rng.next_u64() % 40);
        let len = if name == "large" { 200 + rng.next_u64() % 400 } else { 30 };
        let value: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        db.partition(name).unwrap().put(key, value).unwrap();
    }
}

fn state(db: &Db) -> State {
    PARTITIONS.map(|name| (name, content(&db.partition(name).unwrap()))).into()
}

/// Restores a backup, and returns what the database has.
fn restored(fs: &Arc<dyn Fs>, mem: &MemFs, id: u32) -> Result<State> {
    remove(mem, NEW);
    engine(fs).restore(id, NEW)?;
    let db = open(fs, NEW, 9)?;
    let state = state(&db);
    assert!(db.verify(VerifyOptions::new()).unwrap().is_sound());
    db.close()?;
    Ok(state)
}

fn remove(mem: &MemFs, dir: &str) {
    for path in files_in(mem, dir) {
        mem.remove_raw(&path).unwrap();
    }
}

fn files_in(mem: &MemFs, dir: &str) -> Vec<PathBuf> {
    mem.paths().into_iter().filter(|path| path.starts_with(dir)).collect()
}

fn shared_files(mem: &MemFs) -> Vec<PathBuf> {
    files_in(mem, "/backups/shared")
}

fn memory() -> (MemFs, Arc<dyn Fs>) {
    let mem = MemFs::new();
    (mem.clone(), Arc::new(mem))
}

#[test]
fn each_backup_is_whole_after_the_others_are_deleted() {
    let (mem, fs) = memory();
    let db = create(&fs, DIR, 1);
    let mut rng = Rng::new(1);
    let mut states = Vec::new();
    for round in 0..5 {
        write(&db, &mut rng);
        if round % 2 == 0 {
            db.flush().unwrap();
        }
        let backup = engine(&fs).create_backup(&db).unwrap();
        assert_eq!((backup.backup_id, backup.seq), (round + 1, db.visible_seq()));
        assert_eq!(backup.unlogged, ["unlogged"]);
        states.push(state(&db));
        db.wait_idle().unwrap();
    }
    for id in [3, 1, 5] {
        engine(&fs).delete(id).unwrap();
    }
    assert!(engine(&fs).verify(None).unwrap().is_sound());
    for id in [2, 4] {
        assert!(restored(&fs, &mem, id).unwrap() == states[id as usize - 1], "{id}");
    }
    let purged = engine(&fs).purge_old(0).unwrap();
    assert_eq!(purged.backups, [2, 4]);
    assert_eq!(shared_files(&mem), Vec::<PathBuf>::new(), "nothing needs them");
    let missing = engine(&fs).restore(2, "/other").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::InvalidArgument, "{missing}");
    assert_eq!(
        engine(&fs).restore_latest("/other").unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn a_restore_into_a_folder_with_files_is_refused_and_changes_nothing() {
    let (mem, fs) = memory();
    let db = create(&fs, DIR, 1);
    write(&db, &mut Rng::new(1));
    engine(&fs).create_backup(&db).unwrap();
    let before: Vec<_> = mem.paths().iter().map(|path| mem.read_raw(path).unwrap()).collect();
    let refused = engine(&fs).restore(1, DIR).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    let after: Vec<_> = mem.paths().iter().map(|path| mem.read_raw(path).unwrap()).collect();
    assert!(before == after);
}

#[test]
fn one_folder_has_backups_of_one_database() {
    let (_, fs) = memory();
    let db = create(&fs, DIR, 1);
    engine(&fs).create_backup(&db).unwrap();
    let other = create(&fs, "/other", 2);
    let refused = engine(&fs).create_backup(&other).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    let none = engine(&fs).create_backup_of(stepped(fs.clone(), "/none", 3)).unwrap_err();
    assert!(none.is_missing(), "{none}");
    assert_eq!(engine(&fs).info().unwrap().len(), 1);
}

#[test]
fn processes_that_change_or_read_the_folder_exclude_each_other() {
    let (_, fs) = memory();
    let db = create(&fs, DIR, 1);
    engine(&fs).create_backup(&db).unwrap();
    let making = fs.try_lock(Path::new("/backups/LOCK")).unwrap().unwrap();
    assert_eq!(engine(&fs).create_backup(&db).unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(engine(&fs).purge_old(0).unwrap_err().kind(), ErrorKind::Locked);
    engine(&fs).restore(1, NEW).unwrap();
    drop(making);
    let reading = fs.try_lock_shared(Path::new("/backups/READING")).unwrap().unwrap();
    assert_eq!(engine(&fs).purge_old(0).unwrap_err().kind(), ErrorKind::Locked);
    engine(&fs).create_backup(&db).unwrap();
    assert!(engine(&fs).verify(None).unwrap().is_sound());
    drop(reading);
    let deleting = fs.try_lock(Path::new("/backups/READING")).unwrap().unwrap();
    assert_eq!(engine(&fs).restore(1, "/other").unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(engine(&fs).verify(None).unwrap_err().kind(), ErrorKind::Locked);
    drop(deleting);
}

fn value(n: u64) -> Vec<u8> {
    n.to_be_bytes().repeat(if n.is_multiple_of(5) { 60 } else { 4 })
}

/// A backup that is made while another thread writes has a prefix of its writes, which holds all that had returned.
#[test]
fn a_backup_next_to_a_live_writer_has_a_prefix_of_its_commits() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("db");
    let db = Db::builder(&dir).options(options()).open().unwrap();
    let p = db.partition_with("p", partition_options("large")).unwrap();
    let begun = db.visible_seq().get();
    let backups = BackupEngine::open(folder.path().join("backups"));
    let mut made = Vec::new();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 0..3000_u64 {
                p.put(n.to_be_bytes(), value(n)).unwrap();
            }
        });
        loop {
            let is_last = writer.is_finished();
            let before = db.visible_seq();
            let backup = backups.create_backup_of(Db::builder(&dir)).unwrap();
            assert!(backup.seq >= before);
            made.push(backup);
            if is_last {
                break;
            }
        }
    });
    assert_eq!(made.last().unwrap().seq.get(), begun + 3000);
    for backup in made {
        let into = folder.path().join(format!("restored-{}", backup.backup_id));
        backups.restore(backup.backup_id, &into).unwrap();
        let restored = Db::open(&into).unwrap();
        let found = content(&restored.partition("p").unwrap());
        let count = backup.seq.get() - begun;
        let expected: Content = (0..count).map(|n| (n.to_be_bytes().to_vec(), value(n))).collect();
        assert!(found == expected, "backup {}: {} of {count}", backup.backup_id, found.len());
    }
}
