//! A process that may open few files: nothing that a database does needs an open file for each of its partitions,
//! streams or segments, and running out of files has no effect that lasts.
//!
//! The test binary starts itself again, because the limit is one of the process.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use lsm_core::db::InMemory;
use rustix::process::{Resource, Rlimit, setrlimit};
use siltstone::secondary::{Level, Secondary, Target};
use siltstone::{
    Db, Durability, LargeValueOptions, Options, Partition, PartitionOptions, VerifyOptions,
};
use testkit::child::child_folder;

/// Runs a test of this binary as a child with a folder of its own.
fn run_child(test: &str) {
    testkit::child::run_child(test, tempfile::tempdir().unwrap().path());
}

/// The folder of a child that may open `files` files; `None` in the test that starts it.
fn folder(files: u64) -> Option<PathBuf> {
    let folder = child_folder()?;
    let limit = Rlimit { current: Some(files), maximum: Some(files) };
    setrlimit(Resource::Nofile, limit).unwrap();
    Some(folder)
}

fn large_values() -> PartitionOptions {
    PartitionOptions::new().large_values(LargeValueOptions::default())
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 100_000]
}

fn check_healthy(db: &Db) {
    let health = db.health();
    assert!(health.is_healthy(), "{health}");
    let report = db.verify(VerifyOptions::default()).unwrap();
    assert!(report.damage().is_empty(), "{:?}", report.damage());
}

fn partition(db: &Db, number: u32) -> Partition {
    db.partition_with(&format!("p{number}"), large_values()).unwrap()
}

fn check_partitions(db: &Db, count: u32) {
    for number in 0..count {
        assert_eq!(partition(db, number).get("k").unwrap().unwrap(), value(number), "{number}");
    }
}

/// Does nothing unless it is the child.
#[test]
fn child_with_many_partitions() {
    let Some(dir) = folder(64) else { return };
    let count = 80;
    let db = Db::open(&dir).unwrap();
    for number in 0..count {
        partition(&db, number).put("k", value(number)).unwrap();
    }
    db.partition("words").unwrap().put_with("k", "v", Durability::Sync).unwrap();
    check_partitions(&db, count);
    // Their files take further values.
    for number in 0..count {
        partition(&db, number).put("other", value(number)).unwrap();
    }
    db.flush().unwrap();
    let chunks: usize = (0..count).map(|n| partition(&db, n).chunks().unwrap().len()).sum();
    assert_eq!(chunks, count as usize, "each has one file");
    check_healthy(&db);
    db.close().unwrap();
    let db = Db::open(&dir).unwrap();
    check_partitions(&db, count);
    check_healthy(&db);
    db.close().unwrap();
}

#[test]
fn partitions_with_large_values_need_no_open_file_each() {
    run_child("child_with_many_partitions");
}

/// Opens a database of so many partitions, each with a large value and a stream, and a secondary in
/// the same process. Neither has an open file for each of them.
fn check_many_partitions(dir: &Path, count: u32) {
    let db = Db::open(dir).unwrap();
    for number in 0..count {
        partition(&db, number).put("k", short_value(number)).unwrap();
    }
    let writers = (0..count).step_by(3).map(|number| {
        let mut writer = partition(&db, number).put_stream("stream", None).unwrap();
        writer.write_all(&short_value(number)).unwrap();
        writer
    });
    let writers: Vec<_> = writers.collect();
    for writer in writers {
        writer.commit(Durability::Os).unwrap();
    }
    db.partition("words").unwrap().put_with("k", "v", Durability::Sync).unwrap();
    let secondary = Db::secondary(dir).unwrap();
    check_secondary(&secondary, count);
    check_short_values(&db, count);
    db.flush().unwrap();
    // Merges of the tables, and values in the same chunk files as before.
    for number in 0..count {
        partition(&db, number).put("other", short_value(number)).unwrap();
    }
    db.flush().unwrap();
    (0..count).step_by(10).for_each(|number| partition(&db, number).compact(..).unwrap());
    check_secondary(&secondary, count);
    check_short_values(&db, count);
    check_healthy(&db);
    // Nothing of this is in a table: as in a process that is killed.
    for number in 0..count {
        partition(&db, number).put("unflushed", short_value(number)).unwrap();
    }
    db.partition("words").unwrap().put_with("k", "w", Durability::Sync).unwrap();
    drop(secondary);
    let left = dir.with_extension("copy");
    db.wait_idle().unwrap();
    // The log may get a segment in the meantime, and the last files of the secondary may be deleted.
    while !copy_folder(dir, &left) {}
    db.close().unwrap();
    for dir in [dir, &left] {
        let db = Db::open(dir).unwrap();
        check_short_values(&db, count);
        for number in 0..count {
            let found = partition(&db, number).get("unflushed").unwrap().unwrap();
            assert_eq!(found, short_value(number), "{number}");
        }
        check_healthy(&db);
        db.close().unwrap();
    }
}

fn short_value(number: u32) -> Vec<u8> {
    vec![number as u8; 20_000]
}

fn check_short_values(db: &Db, count: u32) {
    for number in 0..count {
        assert_eq!(partition(db, number).get("k").unwrap().unwrap(), short_value(number));
    }
    for number in (0..count).step_by(3) {
        assert_eq!(partition(db, number).get("stream").unwrap().unwrap(), short_value(number));
    }
}

fn check_secondary(secondary: &Secondary, count: u32) {
    for number in 0..count {
        let partition = secondary.partition(&format!("p{number}")).unwrap();
        partition.sync(Target::Latest).unwrap();
        let read = partition.at(Level::Strong).unwrap();
        assert_eq!(read.get("k").unwrap().unwrap(), short_value(number), "{number}");
    }
}

/// Copies the files of a folder as a killed process leaves them. Returns `false` if a file was added or deleted
/// in the meantime, or has grown: then the copies are of different moments.
#[expect(clippy::disallowed_methods, reason = "the bytes are copied without the engine")]
fn copy_folder(from: &Path, to: &Path) -> bool {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).unwrap();
    let before = lengths(from);
    for (name, _) in &before {
        match std::fs::copy(from.join(name), to.join(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return false,
            copied => copied.unwrap(),
        };
    }
    lengths(from) == before
}

/// The files of a folder, with their lengths.
#[expect(clippy::disallowed_methods, reason = "the folder is read without the engine")]
fn lengths(folder: &Path) -> Vec<(OsString, u64)> {
    let files = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    // One that is deleted in the meantime is none.
    let files = files.filter_map(|file| Some((file.file_name(), file.metadata().ok()?.len())));
    let mut files: Vec<_> = files.collect();
    files.sort();
    files
}

/// Does nothing unless it is the child.
#[test]
fn child_with_400_partitions() {
    let Some(dir) = folder(256) else { return };
    check_many_partitions(&dir.join("db"), 400);
}

/// Does nothing unless it is the child.
#[test]
fn child_with_1000_partitions() {
    let Some(dir) = folder(256) else { return };
    check_many_partitions(&dir.join("db"), 1000);
}

#[test]
fn four_hundred_partitions_with_large_values_work_with_256_files() {
    run_child("child_with_400_partitions");
}

#[test]
fn a_thousand_partitions_with_large_values_work_with_256_files() {
    run_child("child_with_1000_partitions");
}

/// Does nothing unless it is the child.
#[test]
fn child_with_several_databases() {
    let Some(dir) = folder(64) else { return };
    let count = 40;
    let mut all = Vec::new();
    for dir in ["a", "b", "c"].map(|name| dir.join(name)) {
        let db = Db::open(&dir).unwrap();
        for number in 0..count {
            partition(&db, number).put("k", short_value(number)).unwrap();
        }
        db.flush().unwrap();
        all.push((db, Db::secondary(&dir).unwrap()));
    }
    for (db, secondary) in &all {
        for number in 0..count {
            assert_eq!(partition(db, number).get("k").unwrap().unwrap(), short_value(number));
        }
        check_secondary(secondary, count);
    }
    // What one of them has open keeps the other ones from nothing: files, folders, locks.
    std::thread::scope(|scope| {
        for (number, (db, secondary)) in all.iter().enumerate() {
            let checkpoint = dir.join(format!("checkpoint-{number}"));
            scope.spawn(move || {
                for number in 0..count {
                    partition(db, number).put("other", short_value(number)).unwrap();
                }
                db.partition("words").unwrap().put_with("k", "v", Durability::Sync).unwrap();
                db.flush().unwrap();
                partition(db, 0).compact(..).unwrap();
                db.checkpoint(checkpoint).unwrap();
                secondary.sync(Target::Latest).unwrap();
                check_healthy(db);
            });
        }
    });
}

#[test]
fn several_databases_of_one_process_lend_each_other_file_handles() {
    run_child("child_with_several_databases");
}

/// Does nothing unless it is the child.
#[test]
fn child_that_syncs_nothing() {
    let Some(dir) = folder(64) else { return };
    let options = Options::new().wal_segment_bytes(8 << 10).write_buffer_bytes(16 << 20);
    // Only what needs a sync of the log makes one.
    let options = options.sync_interval_ms(0);
    let db = Db::builder(dir.join("db")).options(options).open().unwrap();
    let words = db.partition("words").unwrap();
    for number in 0..4000_u32 {
        words.put_with(number.to_be_bytes(), [7; 400], Durability::Os).unwrap();
    }
    check_healthy(&db);
    drop(words);
    // Without a close, which would flush: as in a process that is killed.
    std::mem::forget(db);
    while !copy_folder(&dir.join("db"), &dir.join("left")) {}
    let db = Db::open(dir.join("left")).unwrap();
    assert_eq!(db.partition("words").unwrap().iter().count(), 4000);
}

#[test]
fn a_log_that_nothing_syncs_needs_no_open_file_for_each_segment() {
    run_child("child_that_syncs_nothing");
}

/// Does nothing unless it is the child.
#[test]
fn child_that_recovers_many_partitions() {
    let Some(dir) = folder(64) else { return };
    let count = 200_u32;
    let db = Db::open(dir.join("db")).unwrap();
    for number in 0..count {
        db.partition(&format!("p{number}")).unwrap().put("k", number.to_be_bytes()).unwrap();
    }
    db.partition("words").unwrap().put_with("k", "v", Durability::Sync).unwrap();
    while !copy_folder(&dir.join("db"), &dir.join("left")) {}
    let left = Db::open(dir.join("left")).unwrap();
    for number in 0..count {
        let found = left.partition(&format!("p{number}")).unwrap().get("k").unwrap();
        assert_eq!(found.unwrap(), number.to_be_bytes());
    }
    check_healthy(&left);
}

/// Each of them gets a table, and up to 64 tables wait for one sync.
#[test]
fn a_recovery_needs_no_open_file_for_each_partition() {
    run_child("child_that_recovers_many_partitions");
}

/// Does nothing unless it is the child.
#[test]
fn child_with_many_streams() {
    let Some(dir) = folder(64) else { return };
    let db = Db::open(&dir).unwrap();
    let media = db.partition_with("media", large_values()).unwrap();
    // Some streams are written a part at a time, in turns.
    let mut open: Vec<_> =
        (0..80_u32).map(|number| media.put_stream(number.to_be_bytes(), None).unwrap()).collect();
    for _ in 0..2 {
        for (number, writer) in open.iter_mut().enumerate() {
            writer.write_all(&vec![number as u8; 100_000]).unwrap();
        }
    }
    // Other streams that nothing syncs.
    for number in 100..170_u32 {
        let mut writer = media.put_stream(number.to_be_bytes(), None).unwrap();
        writer.write_all(&value(number)).unwrap();
        writer.commit(Durability::Os).unwrap();
    }
    for writer in open {
        writer.commit(Durability::Os).unwrap();
    }
    db.partition("words").unwrap().put_with("k", "v", Durability::Sync).unwrap();
    check_streams(&media);
    check_healthy(&db);
    drop(media);
    db.close().unwrap();
    let db = Db::open(&dir).unwrap();
    check_streams(&db.partition_with("media", large_values()).unwrap());
    db.close().unwrap();
}

fn check_streams(media: &Partition) {
    for number in 0..60_u32 {
        let value = media.get(number.to_be_bytes()).unwrap().unwrap();
        assert!(value.len() == 200_000 && value.iter().all(|byte| *byte == number as u8));
    }
    for number in 100..170_u32 {
        assert_eq!(media.get(number.to_be_bytes()).unwrap().unwrap(), value(number));
    }
}

#[test]
fn streams_that_nothing_syncs_need_no_open_file_each() {
    run_child("child_with_many_streams");
}

/// Does nothing unless it is the child.
#[test]
fn child_without_a_file_left() {
    let Some(dir) = folder(64) else { return };
    let db = Db::open(&dir).unwrap();
    let words = db.partition("words").unwrap();
    let media = db.partition_with("media", large_values()).unwrap();
    words.put("k", "v").unwrap();
    media.put("k", value(1)).unwrap();
    // The application takes all that are left.
    let mut taken = Vec::new();
    while let Ok(file) = open_pipe() {
        taken.push(file);
    }
    // The result of these calls does not matter; it must not last.
    for number in 0..5_u32 {
        let _ = words.put_with(number.to_be_bytes(), "v", Durability::Sync);
        let _ = media.put_with(number.to_be_bytes(), value(number), Durability::Sync);
        let _ = media.put_stream("stream", None).and_then(|mut stream| {
            stream
                .write_all(&value(2))
                .map_err(|error| siltstone::Error::io("write", &dir, error))?;
            stream.commit(Durability::Sync)
        });
        let _ = db.flush();
        let _ = db.partition("more");
    }
    assert!(db.health().read_only.is_none(), "{}", db.health());
    drop(taken);
    words.put_with("after", "v", Durability::Sync).unwrap();
    media.put_with("after", value(3), Durability::Sync).unwrap();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(media.get("k").unwrap().unwrap(), value(1));
    check_healthy(&db);
    drop((words, media));
    db.close().unwrap();
    let db = Db::open(&dir).unwrap();
    let media = db.partition_with("media", large_values()).unwrap();
    assert_eq!(media.get("after").unwrap().unwrap(), value(3));
    check_healthy(&db);
}

/// An open file that belongs to no database.
fn open_pipe() -> std::io::Result<File> {
    let (reader, writer) = std::io::pipe()?;
    drop(writer);
    Ok(File::from(std::os::fd::OwnedFd::from(reader)))
}

#[test]
fn running_out_of_files_has_no_effect_that_lasts() {
    run_child("child_without_a_file_left");
}

/// Does nothing unless it is the child.
#[test]
fn child_that_follows_many_segments() {
    let Some(dir) = folder(64) else { return };
    // Without a close, which would flush: as a process that is killed.
    std::mem::forget(write_segments(&dir));
    let secondary = Db::secondary(&dir).unwrap();
    let words = secondary.partition("words").unwrap();
    words.sync(Target::Latest).unwrap();
    let read = words.at(Level::Eventual).unwrap();
    assert_eq!(read.iter().count(), 2000);
}

/// A database with a log of many segments, and no tables.
fn write_segments(dir: &Path) -> Db {
    let options = Options::new().wal_segment_bytes(8 << 10).write_buffer_bytes(16 << 20);
    let db = Db::builder(dir).options(options).open().unwrap();
    write_words(&db);
    db
}

fn write_words(db: &Db) {
    let words = db.partition("words").unwrap();
    for number in 0..2000_u32 {
        // Those that are not durable yet are open here.
        let durability = if number % 100 == 0 { Durability::Sync } else { Durability::Os };
        words.put_with(number.to_be_bytes(), [7; 400], durability).unwrap();
    }
}

#[test]
fn a_secondary_needs_no_open_file_for_each_segment() {
    run_child("child_that_follows_many_segments");
}

/// Does nothing unless it is the child.
#[test]
fn child_that_takes_over_a_long_log() {
    let Some(dir) = folder(64) else { return };
    let secondary = Db::secondary(dir.join("db")).unwrap();
    let followed = secondary.partition("words").unwrap();
    followed.sync(Target::Latest).unwrap();
    assert_eq!(followed.at(Level::Strong).unwrap().iter().count(), 2000);
    let db = Db::promote(&secondary).unwrap();
    let words = db.partition("words").unwrap();
    assert_eq!(words.iter().count(), 2000);
    check_healthy(&db);
    words.put_with("after", "v", Durability::Sync).unwrap();
    followed.sync(Target::Latest).unwrap();
    assert_eq!(followed.at(Level::Strong).unwrap().iter().count(), 2001);
}

/// The old primary lives, so the log is read up to the place where it is fenced.
#[test]
fn a_promotion_needs_no_open_file_for_each_segment_of_a_live_primary() {
    let folder = tempfile::tempdir().unwrap();
    let db = write_segments(&folder.path().join("db"));
    testkit::child::run_child("child_that_takes_over_a_long_log", folder.path());
    assert!(db.is_fenced());
}

/// Does nothing unless it is the child.
#[test]
fn child_that_mends_from_a_long_log() {
    let Some(dir) = folder(64) else { return };
    let options = Options::new().wal_segment_bytes(8 << 10).write_buffer_bytes(16 << 20);
    let builder = Db::builder(&dir).options(options).inject_in_memory(|at, bytes| {
        // Of each put whose key ends in 7, more bits than a search without the log undoes.
        if at == InMemory::Memtable && bytes.len() > 400 && bytes[5] == 7 {
            bytes[200] ^= 0b11;
            bytes[300] ^= 0b1000;
        }
    });
    let db = builder.open().unwrap();
    write_words(&db);
    db.flush().unwrap();
    let words = db.partition("words").unwrap();
    assert!(words.iter().all(|pair| *pair.unwrap().1 == [7; 400]));
    check_healthy(&db);
}

#[test]
fn a_search_in_the_log_needs_no_open_file_for_each_segment() {
    run_child("child_that_mends_from_a_long_log");
}
