//! Chunk files that the device cannot read: only their keys are affected.

use std::collections::BTreeSet;

use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, OpKind};

use super::*;

struct Broken {
    fs: FaultFs,
    mem: MemFs,
    clock: ManualClock,
    db: Db,
    p: Partition,
}

/// The keys of values that are not deleted.
fn kept() -> impl Iterator<Item = u8> {
    (0..40_u8).filter(|n| n % 3 != 2)
}

impl Broken {
    /// Every file has garbage, and the values in files whose calls of `kind` fail are to be moved.
    fn new(kind: OpKind, nth_chunk: usize) -> Broken {
        let mem = MemFs::new();
        let fs = FaultFs::over_mem(mem.clone());
        let clock = ManualClock::default();
        let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
        let p = db.partition_with("p", options()).unwrap();
        for n in 0..40_u8 {
            p.put([n], vec![n; 900]).unwrap();
        }
        p.flush().unwrap();
        for n in (0..40_u8).filter(|n| n % 3 == 2) {
            p.delete([n]).unwrap();
        }
        p.compact(..).unwrap();
        let chunk = p.chunks().unwrap().swap_remove(nth_chunk);
        let suffix = chunk.path.file_name().unwrap().to_str().unwrap().to_owned();
        // No file is open at this point.
        db.close().unwrap();
        let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
        let p = db.partition("p").unwrap();
        fs.add_rule(FaultRule::sticky(FaultAt::Nth { kind, suffix, nth: 0 }, FaultAction::Eio));
        Broken { fs, mem, clock, db, p }
    }

    /// The number of values that cannot be read.
    fn unreadable(&self) -> usize {
        let read = kept().map(|n| (n, self.p.get([n])));
        let failed = read.filter(|(n, read)| match read {
            Ok(found) => {
                assert_eq!(found.as_deref(), Some(&vec![*n; 900][..]));
                false
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                true
            }
        });
        failed.count()
    }
}

/// Otherwise compactions over its keys would fail as long as the device does, and writers would
/// wait for them.
#[test]
fn a_file_that_cannot_be_read_keeps_no_tables_from_being_merged() {
    for kind in [OpKind::Read, OpKind::OpenRead] {
        let broken = Broken::new(kind, 2);
        let Broken { fs, mem, clock, db, p } = &broken;
        for round in 0..20_u8 {
            for n in 0..40_u8 {
                p.put([n, 1], [round]).unwrap();
            }
            p.flush().unwrap();
            clock.pass(1);
            db.wait_idle().unwrap();
        }
        p.compact(..).unwrap();
        let stats = db.stats().partitions.into_iter().find(|stats| stats.name == "p").unwrap();
        assert!(stats.levels[0].table_count < 4, "{kind:?}: {:?}", stats.levels);
        assert!((1..5).contains(&broken.unreadable()), "{kind:?}");
        // The other files release the space of their garbage.
        let space = p.space().unwrap();
        assert!(space.dead_bytes * 3 < space.total_bytes, "{space:?}");
        let health = db.health();
        assert!(!health.is_healthy() && health.to_string().contains("garbage stays"), "{health}");
        assert_eq!(p.reclaim().unwrap_err().kind(), ErrorKind::Io);
        fs.heal();
        // At least twice as long as the last pause.
        for _ in 0..40 {
            clock.pass(10);
            db.wait_idle().unwrap();
        }
        assert!(db.health().is_healthy(), "{}", db.health());
        assert_eq!(broken.unreadable(), 0);
        let space = p.space().unwrap();
        assert_eq!(space.total_bytes, chunk_bytes(mem, "/db"));
        assert!(space.dead_bytes * 4 < space.total_bytes, "{space:?}");
        assert!(db.verify(Default::default()).unwrap().is_sound());
    }
}

/// Values that are no longer large would go back into tables.
#[test]
fn values_that_cannot_be_read_stay_apart_when_large_values_are_switched_off() {
    let broken = Broken::new(OpKind::Read, 2);
    let off = broken.p.options().large_values(LargeValueOptions::off());
    let p = broken.db.partition_with("p", off).unwrap();
    p.compact(..).unwrap();
    assert!((1..5).contains(&broken.unreadable()));
    broken.fs.heal();
    p.compact(..).unwrap();
    broken.db.wait_idle().unwrap();
    assert_eq!((broken.unreadable(), chunk_bytes(&broken.mem, "/db")), (0, 0));
}

/// A value of a table becomes a large one, and there is no room for it.
#[test]
fn values_stay_in_tables_if_they_cannot_be_written_apart() {
    for action in [FaultAction::Eio, FaultAction::Enospc] {
        let mem = MemFs::new();
        let fs = FaultFs::over_mem(mem.clone());
        let clock = ManualClock::default();
        let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
        let p = db.partition_with("p", PartitionOptions::new().table_bytes(1 << 10)).unwrap();
        for n in 0..40_u8 {
            p.put([n], vec![n; 900]).unwrap();
        }
        let p = db.partition_with("p", p.options().large_values(tiny())).unwrap();
        let at = FaultAt::Nth { kind: OpKind::Append, suffix: ".chunk".to_owned(), nth: 4 };
        fs.add_rule(FaultRule::sticky(at, action));
        p.compact(..).unwrap();
        let live = p.space().unwrap().live_bytes;
        assert!((900..5000).contains(&live), "{live}");
        assert!(value_store(&db).created_count < 4, "no file for each value");
        fs.heal();
        clock.pass(2);
        p.compact(..).unwrap();
        assert!(p.space().unwrap().live_bytes > 40 * 900);
        assert_eq!(content(&p).len(), 40);
        assert!(db.verify(Default::default()).unwrap().is_sound());
    }
}

/// Otherwise the database would accept no write as long as the device cannot read one value.
#[test]
fn a_value_in_doubt_that_cannot_be_read_keeps_nothing_from_being_written_again() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..3_u8 {
        // Each in a file of its own.
        p.put([n], vec![n; 2000]).unwrap();
    }
    let chunk = p.chunks().unwrap().swap_remove(0);
    let suffix = chunk.path.file_name().unwrap().to_str().unwrap().to_owned();
    let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".chunk".to_owned(), nth: 0 };
    fs.add_rule(FaultRule::once(at, FaultAction::Eio));
    let at = FaultAt::Nth { kind: OpKind::Read, suffix, nth: 0 };
    fs.add_rule(FaultRule::sticky(at, FaultAction::Eio));
    db.batch().put(&p, "synced", "1").commit(Durability::Sync).unwrap_err();
    for _ in 0..20 {
        clock.pass(1);
        let _ = db.wait_idle();
    }
    p.put("more", "1").unwrap();
    assert_eq!(p.get([0]).unwrap_err().kind(), ErrorKind::Io);
    for n in 1..3_u8 {
        assert_eq!(p.get([n]).unwrap().unwrap(), vec![n; 2000]);
    }
    fs.heal();
    p.compact(..).unwrap();
    assert_eq!(p.get([0]).unwrap().unwrap(), vec![0; 2000]);
}

/// The names of all chunk files.
fn chunks(mem: &MemFs) -> BTreeSet<String> {
    let all = mem.list("/db".as_ref(), "").unwrap().into_iter().map(|entry| entry.name);
    all.filter(|name| name.ends_with(".chunk")).collect()
}

/// The name of the chunk file that `make` creates.
fn chunk_of(mem: &MemFs, make: impl FnOnce()) -> String {
    let before = chunks(mem);
    make();
    chunks(mem).difference(&before).next().unwrap().clone()
}

/// A folder that was left without a close, whose log names a value in each of three files. An older
/// value of `k` is in a table. Returns the name of the file of the newest `k`.
fn left() -> (MemFs, String) {
    let mem = MemFs::new();
    let db = open(&mem);
    let p = db.partition_with("p", options()).unwrap();
    p.put("k", vec![1; 2000]).unwrap();
    p.flush().unwrap();
    p.put("before", vec![2; 2000]).unwrap();
    let chunk = chunk_of(&mem, || {
        p.put("k", vec![3; 2000]).unwrap();
    });
    p.put("after", vec![4; 2000]).unwrap();
    p.put("small", "5").unwrap();
    (mem.crash_clone(CrashOutcome::Everything, &mut || 0), chunk)
}

fn check_left(p: &Partition, reads_k: bool, context: &str) {
    for (key, byte) in [("before", 2), ("after", 4)] {
        assert_eq!(p.get(key).unwrap().unwrap(), vec![byte; 2000], "{context}");
    }
    assert_eq!(p.get("small").unwrap().unwrap(), b"5", "{context}");
    match p.get("k") {
        Ok(found) => assert!(reads_k && found.unwrap() == vec![3; 2000], "{context}"),
        Err(error) => assert!(!reads_k && error.kind() == ErrorKind::Io, "{context}: {error}"),
    }
}

/// One file that the device cannot read used to make every open of the database fail.
#[test]
fn a_value_of_the_log_that_cannot_be_read_keeps_no_database_from_being_opened() {
    for kind in [OpKind::Read, OpKind::OpenRead, OpKind::OpenExisting] {
        for is_read_only in [true, false] {
            let context = format!("{kind:?}, read only {is_read_only}");
            let (mem, chunk) = left();
            let fs = FaultFs::over_mem(mem.clone());
            let at = FaultAt::Nth { kind, suffix: chunk, nth: 0 };
            fs.add_rule(FaultRule::sticky(at, FaultAction::Eio));
            let clock = ManualClock::default();
            let db = match is_read_only {
                true => Db::builder("/db").fs(Arc::new(fs.clone())).read_only(true).open(),
                false => open_with(Arc::new(fs.clone()), "/db", &clock),
            };
            let db = db.unwrap_or_else(|error| panic!("{context}: {error}"));
            let p = db.partition("p").unwrap();
            // Never the older value.
            check_left(&p, kind == OpKind::OpenExisting, &context);
            fs.heal();
            check_left(&p, true, &context);
            db.close().unwrap();
            let db = open(&mem);
            check_left(&db.partition("p").unwrap(), true, &context);
            assert!(db.verify(Default::default()).unwrap().is_sound(), "{context}");
        }
    }
}

/// After a failed sync it is unknown which bytes the device has. The error names the file.
#[test]
fn a_value_of_the_log_that_cannot_be_synced_refuses_the_open_and_changes_nothing() {
    let (mem, chunk) = left();
    let fs = FaultFs::over_mem(mem.clone());
    let at = FaultAt::Nth { kind: OpKind::Sync, suffix: chunk.clone(), nth: 0 };
    fs.add_rule(FaultRule::once(at, FaultAction::Eio));
    let before = mem.paths();
    let refused = open_with(Arc::new(fs), "/db", &ManualClock::default()).err().unwrap();
    assert!(refused.is_failed_sync() && refused.to_string().contains(&chunk), "{refused}");
    assert_eq!(mem.paths(), before);
    check_left(&open(&mem).partition("p").unwrap(), true, "the next open");
}
