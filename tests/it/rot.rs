//! Damage in one partition has no effect on the others.

use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{Fs, MemFs};
use siltstone::{BackgroundMode, Db, Durability, Error, Options, Partition, PartitionOptions};

fn open(fs: &MemFs) -> Db {
    open_with(fs, BackgroundMode::Threads)
}

fn open_with(fs: &MemFs, mode: BackgroundMode) -> Db {
    Db::builder("/db")
        .fs(Arc::new(fs.clone()))
        .background(mode)
        .options(Options::new().write_buffer_bytes(16 << 10).cache_bytes(0))
        .random(|| 7)
        .open()
        .unwrap()
}

fn small() -> PartitionOptions {
    PartitionOptions::new().table_bytes(8 << 10).block_bytes(512).level0_tables(2)
}

/// Writes the same keys over and over. Returns the first error.
fn write(p: &Partition, count: u32) -> Result<(), Error> {
    for n in 0..count {
        p.put((n % 50).to_be_bytes(), vec![n as u8; 1000])?;
    }
    Ok(())
}

/// Destroys the data of every table.
fn rot(fs: &MemFs) {
    for entry in fs.list(Path::new("/db"), "").unwrap() {
        if entry.name.ends_with(".sst") {
            for offset in 0..256 {
                fs.corrupt(&Path::new("/db").join(&entry.name), offset, 0x55).unwrap();
            }
        }
    }
}

/// Destroys the data of the only table on level 0.
pub fn rot_newest(fs: &MemFs, p: &Partition) {
    let walk = p.walk().unwrap();
    let newest = walk.tables().find(|table| table.level() == 0).unwrap();
    let path = newest.path();
    for offset in 0..newest.properties().unwrap().data_bytes {
        fs.corrupt(&path, offset, 0x55).unwrap();
    }
}

fn pressure(db: &Db, name: &str) -> u64 {
    let stats = db.stats();
    let partition = stats.partitions.iter().find(|partition| partition.name == name);
    u64::from(partition.unwrap().pressure_permille)
}

/// One damaged table, whose merge fails again and again, used to delay the writers of every
/// partition, also after its partition was dropped.
#[test]
fn damage_in_one_partition_fails_no_write_in_others_and_goes_with_it() {
    let fs = MemFs::new();
    let db = open(&fs);
    let rotten = db.partition_with("rotten", small()).unwrap();
    let sound = db.partition_with("sound", small()).unwrap();
    write(&rotten, 20).unwrap();
    db.flush().unwrap();
    rot(&fs);
    let refused = write(&rotten, 4000).unwrap_err();
    assert!(refused.is_corruption(), "{refused}");
    assert!(refused.to_string().contains("rotten"), "{refused}");
    assert!(pressure(&db, "rotten") >= 1000);
    write(&sound, 4000).unwrap();
    assert!(pressure(&db, "sound") < 1000);
    assert!(write(&rotten, 1).unwrap_err().is_corruption());
    db.drop_partition("rotten").unwrap();
    write(&sound, 4000).unwrap();
    let again = db.partition_with("rotten", small()).unwrap();
    write(&again, 4000).unwrap();
    db.wait_idle().unwrap();
    assert!(db.verify(Default::default()).unwrap().is_sound());
    assert!(db.stats().background_error.is_none());
}

/// A partition with a table that a compaction found damaged; `count` more values.
fn damaged(fs: &MemFs, count: u32) -> (Db, Partition, Result<(), Error>) {
    let db = open_with(fs, BackgroundMode::Stepped);
    let p = db.partition_with("p", small()).unwrap();
    write(&p, 20).unwrap();
    db.flush().unwrap();
    rot(fs);
    let written = write(&p, count);
    db.wait_idle().unwrap();
    assert!(db.health().damage.is_some());
    (db, p, written)
}

/// All goes on after the deletion of what the damaged table has.
fn check_healed(db: &Db, p: &Partition) {
    write(p, 4000).unwrap();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(db.health().damage, None);
    assert!(db.verify(Default::default()).unwrap().is_sound());
    assert_eq!(p.iter().count(), 50);
}

/// It kept its place, and the tables that were merged with it theirs, until the next open.
#[test]
fn a_damaged_table_that_no_reader_sees_holds_nothing_up() {
    for clears in [true, false] {
        let fs = MemFs::new();
        let (db, p, written) = damaged(&fs, 40);
        written.unwrap();
        let snapshot = db.snapshot();
        let range = 0_u32.to_be_bytes()..20_u32.to_be_bytes();
        if clears { p.clear() } else { p.delete_range(range) }.unwrap();
        db.wait_idle().unwrap();
        assert!(db.health().damage.is_some(), "the snapshot sees it");
        drop(snapshot);
        check_healed(&db, &p);
    }
}

/// Clears were refused as puts are, so that only a drop of the partition was left.
#[test]
fn deletions_pass_where_damage_stops_writes() {
    for reopens in [false, true] {
        for clears in [true, false] {
            let fs = MemFs::new();
            let (mut db, mut p, written) = damaged(&fs, 4000);
            written.unwrap_err();
            if reopens {
                drop((p, db));
                db = open_with(&fs, BackgroundMode::Stepped);
                p = db.partition("p").unwrap();
            }
            let both = db.batch().clear(&p).put(&p, "key", "value");
            both.commit(Durability::Os).unwrap_err();
            let range = 0_u32.to_be_bytes()..50_u32.to_be_bytes();
            if clears { p.clear() } else { p.delete_range(range) }.unwrap();
            check_healed(&db, &p);
        }
    }
}
