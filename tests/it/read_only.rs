//! Databases that are opened read-only: nothing is written, and everything is read.

use std::io;
use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, Fs, MemFs, OpKind};
use siltstone::{Builder, Db, Durability, Error, ErrorKind, Options, PartitionOptions};

use crate::store::{Content, content, stepped};

const DIR: &str = "/db";

fn builder(fs: impl Fs) -> Builder {
    let options = Options::new().write_buffer_bytes(64 << 10).cache_bytes(1 << 20);
    stepped(Arc::new(fs), DIR, 1).options(options)
}

/// A store with a table, a deletion of its content, and entries that are only in the log.
fn fill(mem: &MemFs) -> Content {
    let db = builder(mem.clone()).open().unwrap();
    let p = db.partition("p").unwrap();
    for number in 0..200u32 {
        p.put(number.to_be_bytes(), format!("first {number}")).unwrap();
    }
    db.flush().unwrap();
    for number in 100..300u32 {
        p.put(number.to_be_bytes(), format!("second {number}")).unwrap();
    }
    p.delete(7u32.to_be_bytes()).unwrap();
    let expected = content(&p);
    db.close().unwrap();
    expected
}

fn kind_of<T>(result: Result<T, Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn a_read_only_open_reads_everything_and_writes_nothing() {
    let mem = MemFs::new();
    let expected = fill(&mem);
    let fs = FaultFs::over_mem(mem);
    let db = builder(fs.clone()).read_only(true).open().unwrap();
    let p = db.partition("p").unwrap();
    assert_eq!(content(&p), expected);
    assert_eq!(p.get(7u32.to_be_bytes()).unwrap(), None);
    assert_eq!(p.get(299u32.to_be_bytes()).unwrap().as_deref(), Some(&b"second 299"[..]));
    let snapshot = db.snapshot();
    assert_eq!(snapshot.range(&p, ..).count(), expected.len());
    assert!(db.verify(Default::default()).unwrap().is_sound());
    assert!(!db.step().unwrap());
    db.wait_idle().unwrap();
    let health = db.health();
    assert!(health.read_only.is_some() && !health.is_healthy());
    assert_eq!(db.stats().read_only_because, health.read_only);
    db.wait_durable(db.visible_seq()).unwrap();
    drop((p, snapshot));
    db.close().unwrap();
    assert_eq!(fs.mutation_count(), 0);
}

/// An open used to open each segment a second time, only for the statistics, and failed if that
/// failed.
#[test]
fn an_open_reads_each_segment_of_the_log_once() {
    let mem = MemFs::new();
    let expected = fill(&mem);
    let segments = mem.list(Path::new(DIR), "").unwrap();
    let segments = segments.iter().filter(|entry| entry.name.ends_with(".wal"));
    let bytes: u64 = segments.clone().map(|entry| entry.len).sum();
    let fs = FaultFs::over_mem(mem.clone());
    let nth = segments.count() as u64;
    let at = FaultAt::Nth { kind: OpKind::OpenRead, suffix: ".wal".to_owned(), nth };
    fs.add_rule(FaultRule::sticky(at, FaultAction::Eio));
    let db = builder(fs.clone()).read_only(true).open().unwrap();
    assert!(nth > 0 && fs.fault_count() == 0);
    assert_eq!(content(&db.partition("p").unwrap()), expected);
    assert_eq!(db.stats().wal_disk_bytes, bytes);
}

#[test]
fn writes_say_that_the_database_was_opened_read_only() {
    let mem = MemFs::new();
    fill(&mem);
    let fs = FaultFs::over_mem(mem.clone());
    let db = builder(fs.clone()).read_only(true).open().unwrap();
    let p = db.partition("p").unwrap();
    let read_only = Some(ErrorKind::ReadOnly);
    assert_eq!(kind_of(p.put("a", "b")), read_only);
    assert_eq!(kind_of(p.delete("a")), read_only);
    assert_eq!(kind_of(db.batch().put(&p, "a", "b").commit(Durability::Sync)), read_only);
    assert_eq!(kind_of(db.flush()), read_only);
    assert_eq!(kind_of(p.flush()), read_only);
    assert_eq!(kind_of(p.compact(..)), read_only);
    assert_eq!(kind_of(db.partition("new")), read_only);
    assert_eq!(kind_of(db.drop_partition("p")), read_only);
    let other = PartitionOptions::new().bloom_bits_per_key(3);
    assert_eq!(kind_of(db.partition_with("p", other)), read_only);
    assert_eq!(kind_of(db.checkpoint("/copy")), read_only);
    assert_eq!(p.get("a").unwrap(), None);
    drop(p);
    db.close().unwrap();
    assert_eq!(fs.mutation_count(), 0);
}

/// No open used to succeed after a disk was full, so that the data could not even be copied.
#[test]
fn a_full_disk_is_read_and_exported_to_another_one() {
    let mem = MemFs::new();
    let expected = fill(&mem);
    let fs = FaultFs::over_mem(mem.clone());
    fs.add_rule(FaultRule::sticky(FaultAt::Mutation(0), FaultAction::Enospc));
    assert_eq!(kind_of(builder(fs.clone()).open()), Some(ErrorKind::NoSpace));
    let before = mem.list(Path::new(DIR), "").unwrap();
    let db = builder(fs.clone()).read_only(true).open().unwrap();
    assert_eq!(content(&db.partition("p").unwrap()), expected);
    drop(db);
    assert_eq!(mem.list(Path::new(DIR), "").unwrap(), before);
    let db = builder(mem.clone()).read_only(true).open().unwrap();
    db.partition("p").unwrap().export(.., "/out").unwrap();
    drop(db);
    assert_eq!(mem.list(Path::new(DIR), "").unwrap(), before);
    let copy = Db::builder("/copy").fs(Arc::new(mem.clone())).open().unwrap();
    let p = copy.partition("p").unwrap();
    p.ingest("/out").unwrap();
    assert_eq!(content(&p), expected);
}

/// Each attempt to open used to write the replayed log to a table, and left it there when the
/// manifest had no room: each attempt used more of the disk.
#[test]
fn an_open_that_fails_for_want_of_space_leaves_no_tables() {
    let mem = MemFs::new();
    let expected = fill(&mem);
    let before = mem.list(Path::new(DIR), "").unwrap();
    let mut failures = 0;
    for mutation in 0.. {
        let fs = FaultFs::over_mem(mem.clone());
        fs.add_rule(FaultRule::sticky(FaultAt::Mutation(mutation), FaultAction::Enospc));
        match builder(fs).open() {
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
            Ok(_) => break,
        }
        failures += 1;
        // A new generation of the manifest is published last; from then on no file may be deleted.
        let mut after = mem.list(Path::new(DIR), "").unwrap();
        // Words in memory, which the next open creates again.
        after.retain(|entry| !entry.name.starts_with("cursor-"));
        let published = after.iter().any(|entry| {
            entry.name.ends_with(".manifest") && before.iter().all(|old| old.name != entry.name)
        });
        if published {
            break;
        }
        assert_eq!(after, before, "a fault at change {mutation}");
    }
    assert!(failures >= 5, "{failures} failures");
    let db = builder(mem).open().unwrap();
    assert_eq!(content(&db.partition("p").unwrap()), expected);
}

/// Root can write to every folder; the test checks that no write is tried.
#[test]
fn a_folder_that_takes_no_change_is_read() {
    let mem = MemFs::new();
    let expected = fill(&mem);
    let fs = FaultFs::over_mem(mem);
    fs.add_rule(FaultRule::sticky(FaultAt::Mutation(0), FaultAction::Eio));
    assert_eq!(kind_of(builder(fs.clone()).open()), Some(ErrorKind::Io));
    let tried = fs.mutation_count();
    let db = builder(fs.clone()).read_only(true).open().unwrap();
    assert_eq!(content(&db.partition("p").unwrap()), expected);
    db.close().unwrap();
    assert_eq!(fs.mutation_count(), tried);
}

#[test]
fn readers_share_the_lock_and_exclude_writers() {
    let mem = MemFs::new();
    let expected = fill(&mem);
    let readers = [(); 2].map(|()| builder(mem.clone()).read_only(true).open().unwrap());
    assert_eq!(kind_of(builder(mem.clone()).open()), Some(ErrorKind::Locked));
    for db in readers {
        assert_eq!(content(&db.partition("p").unwrap()), expected);
    }
    let writer = builder(mem.clone()).open().unwrap();
    assert_eq!(kind_of(builder(mem.clone()).read_only(true).open()), Some(ErrorKind::Locked));
    drop(writer);
    // A copy without the lock file.
    mem.delete(&Path::new(DIR).join("LOCK")).unwrap();
    let db = builder(mem.clone()).read_only(true).open().unwrap();
    assert_eq!(content(&db.partition("p").unwrap()), expected);
}

#[test]
fn there_must_be_a_database_and_it_must_be_sound() {
    let mem = MemFs::new();
    let none = builder(mem.clone()).read_only(true).open().unwrap_err();
    assert_eq!(none.io_source().map(io::Error::kind), Some(io::ErrorKind::NotFound), "{none}");
    assert!(mem.list(Path::new(DIR), "").is_err(), "no folder is made");
    fill(&mem);
    let names = mem.list(Path::new(DIR), "").unwrap();
    let log = names.iter().find(|entry| entry.name.ends_with(".wal")).unwrap();
    let log = Path::new(DIR).join(&log.name);
    // After what is flushed.
    let end = mem.read_raw(&log).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
    mem.corrupt(&log, end as u64 - 200, 1).unwrap();
    let damaged = builder(mem.clone()).read_only(true).open().unwrap_err();
    assert_eq!(damaged.kind(), ErrorKind::Corruption, "{damaged}");
}

#[test]
fn a_log_beyond_the_memory_budget_is_refused_and_named() {
    let mem = MemFs::new();
    let db = builder(mem.clone()).write_buffer_bytes(1 << 20).open().unwrap();
    let p = db.partition("p").unwrap();
    for number in 0..100u32 {
        p.put(number.to_be_bytes(), [1; 5000]).unwrap();
    }
    drop((p, db));
    let refused = builder(mem.clone()).read_only(true).open().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert!(refused.to_string().contains("write_buffer_bytes"), "{refused}");
    let db = builder(mem).write_buffer_bytes(1 << 20).read_only(true).open().unwrap();
    assert_eq!(content(&db.partition("p").unwrap()).len(), 100);
}

/// A program that passes all options on, with their defaults, must not open for writing what it asked to read.
#[test]
fn an_option_that_is_off_does_not_undo_another_one() {
    let mem = MemFs::new();
    drop(fill(&mem));
    for options in [
        |it: Builder| it.read_only(true).beside_writer(false),
        |it: Builder| it.beside_writer(false).read_only(true),
        |it: Builder| it.beside_writer(true).read_only(false),
        |it: Builder| it.read_only(false).beside_writer(true),
        |it: Builder| it.beside_writer(true).read_only(true),
    ] {
        let db = options(builder(mem.clone())).open().unwrap();
        let refused = db.partition("p").unwrap().put("key", "value").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    }
    let writer = builder(mem.clone()).open().unwrap();
    for options in [
        |it: Builder| it.beside_writer(true).read_only(true),
        |it: Builder| it.read_only(true).beside_writer(true),
    ] {
        options(builder(mem.clone())).open().expect("it reads next to the writer");
    }
    drop(writer);
    let db = builder(mem).read_only(true).read_only(false).open().unwrap();
    db.partition("p").unwrap().put("key", "value").unwrap();
}
