//! Chunk files that the device does not give back: their keys alone are affected.

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, OpKind};

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
    /// Every file has garbage, and those whose calls of `kind` fail are to be moved.
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
        // No file is open then.
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

/// Compactions over its keys would otherwise fail as long as the device does, and writers would wait for them.
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
        // The other files give their garbage back.
        let space = p.space().unwrap();
        assert!(space.dead_bytes * 3 < space.total_bytes, "{space:?}");
        let health = db.health();
        assert!(!health.is_healthy() && health.to_string().contains("garbage stays"), "{health}");
        assert_eq!(p.reclaim().unwrap_err().kind(), ErrorKind::Io);
        fs.heal();
        // Twice as long as the last rest, at least.
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

/// Values that are large no more would go back into tables.
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

/// A value of a table that becomes a large one, and has no room for that.
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

/// The database would accept no write as long as the device does not give one value back.
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
