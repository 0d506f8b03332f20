//! Disks with little room: values move as far as there is room, and errors state how much room the
//! rest needs.

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, OpKind};

use super::*;

const VALUE_BYTES: usize = 16 << 10;
const CHUNK_BYTES: u64 = 256 << 10;

/// A new database on a disk whose free space the test sets.
fn on_disk() -> (MemFs, ManualClock, Db) {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    (fs, clock, db)
}

/// A new database on a disk whose operations the test can make fail.
fn on_failing_disk() -> (MemFs, FaultFs, ManualClock, Db) {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    (mem, fs, clock, db)
}

/// Ten chunk files of 256 KiB, with 160 values.
fn ten_chunks(db: &Db) -> Partition {
    let large = LargeValueOptions::new().threshold_bytes(4096).chunk_bytes(CHUNK_BYTES);
    let p = db.partition_with("p", PartitionOptions::new().large_values(large)).unwrap();
    for n in 0..160_u8 {
        p.put([n], vec![n; VALUE_BYTES]).unwrap();
    }
    p.flush().unwrap();
    p
}

/// Leaves so much free space on the disk.
fn leave_room(fs: &MemFs, bytes: u64) {
    fs.set_capacity(Some(1 << 40));
    let used = (1 << 40) - fs.free_bytes("/db".as_ref()).unwrap();
    fs.set_capacity(Some(used + bytes));
}

fn delete_every_second(p: &Partition) {
    for n in (0..160_u8).step_by(2) {
        p.delete([n]).unwrap();
    }
}

/// Moves the clock; work that finds no space is no error here.
fn work(db: &Db, clock: &ManualClock, seconds: u64) {
    for _ in 0..seconds {
        clock.pass(1);
        if let Err(error) = db.wait_idle() {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        }
    }
}

fn check_odd(p: &Partition) {
    for n in 0..160_u8 {
        let expected = (n % 2 == 1).then(|| Slice::from(vec![n; VALUE_BYTES]));
        assert!(p.get([n]).unwrap() == expected, "{n}");
    }
}

#[test]
fn garbage_comes_back_on_a_disk_with_room_for_a_part_of_the_values() {
    let (fs, clock, db) = on_disk();
    let p = ten_chunks(&db);
    delete_every_second(&p);
    leave_room(&fs, 2 * CHUNK_BYTES);
    work(&db, &clock, 50);
    let space = p.space().unwrap();
    assert!(space.dead_bytes < CHUNK_BYTES, "{space:?}");
    let moved = value_store(&db).moved_bytes;
    assert_eq!(moved, 80 * VALUE_BYTES as u64, "each value is copied once");
    check_odd(&p);
    assert!(db.health().is_healthy(), "{}", db.health());
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

#[test]
fn reclaim_says_how_much_room_it_needs_and_copies_nothing_without_it() {
    let (fs, clock, db) = on_disk();
    let p = ten_chunks(&db);
    delete_every_second(&p);
    leave_room(&fs, CHUNK_BYTES / 4);
    for _ in 0..3 {
        let refused = p.reclaim().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        let text = refused.to_string();
        let needed = 8 * (VALUE_BYTES as u64 + 70);
        let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [needs, free] = numbers[..] else { panic!("{text}") };
        assert!((needed..needed + needed / 4).contains(&needs), "{text}");
        assert!(free < needed, "{text}");
    }
    work(&db, &clock, 50);
    let stats = value_store(&db);
    assert_eq!((stats.moved_bytes, stats.written_bytes), (0, stats.bytes));
    let health = db.health();
    assert!(!health.is_healthy() && health.to_string().contains("bytes are free"), "{health}");
    leave_room(&fs, CHUNK_BYTES);
    p.reclaim().unwrap();
    assert!(p.space().unwrap().dead_bytes < CHUNK_BYTES);
    check_odd(&p);
    assert!(db.health().is_healthy(), "{}", db.health());
}

/// Later compactions used to move the values that were chosen, although they need no space of their
/// own.
#[test]
fn deletes_free_space_after_a_reallocation_that_found_none() {
    let (fs, clock, db) = on_disk();
    let p = ten_chunks(&db);
    leave_room(&fs, CHUNK_BYTES);
    let refused = p.reallocate(..).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(refused.to_string().contains("bytes are free"), "{refused}");
    assert!(p.chunks().unwrap().iter().all(|chunk| !chunk.is_moving));
    delete_every_second(&p);
    p.compact(..).unwrap();
    assert_eq!(value_store(&db).moved_bytes, 0);
    for n in 0..160_u8 {
        p.delete([n]).unwrap();
    }
    p.compact(..).unwrap();
    work(&db, &clock, 20);
    assert_eq!(chunk_bytes(&fs, "/db"), 0);
}

/// Other files use the space while values are moved: moved values stay moved, and the rest stays
/// where it is.
#[test]
fn values_stay_where_they_are_if_the_disk_fills_up_while_they_are_moved() {
    for reallocated in [false, true] {
        let (mem, fs, clock, db) = on_failing_disk();
        let p = ten_chunks(&db);
        delete_every_second(&p);
        p.compact(..).unwrap();
        // Some values are moved, then none; there is room for tables.
        let kind = OpKind::Append;
        let full = FaultAt::Nth { kind, suffix: ".chunk".to_owned(), nth: 30 };
        fs.add_rule(FaultRule::sticky(full, FaultAction::Enospc));
        let refused = if reallocated { p.reallocate(..) } else { p.reclaim() };
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace);
        check_odd(&p);
        let moved = value_store(&db).moved_bytes;
        assert!(moved > 5 * VALUE_BYTES as u64, "{moved}");
        assert!(p.chunks().unwrap().iter().all(|chunk| !chunk.is_moving));
        for n in 0..160_u8 {
            p.put([n], "small").unwrap();
        }
        work(&db, &clock, 20);
        assert_eq!(chunk_bytes(&mem, "/db"), 0);
        assert!(db.verify(Default::default()).unwrap().is_sound());
    }
}

/// There is no room for the tables: values are not copied again and again for them.
#[test]
fn values_are_not_copied_again_and_again_for_tables_that_fail() {
    for action in [FaultAction::Enospc, FaultAction::Eio] {
        let (_, fs, clock, db) = on_failing_disk();
        let p = ten_chunks(&db);
        delete_every_second(&p);
        p.compact(..).unwrap();
        let at = FaultAt::Nth { kind: OpKind::Append, suffix: ".sst".to_owned(), nth: 0 };
        fs.add_rule(FaultRule::sticky(at, action));
        for _ in 0..60 {
            clock.pass(1);
            let _ = db.wait_idle();
        }
        let moved = value_store(&db).moved_bytes;
        assert!(moved < 4 * 80 * VALUE_BYTES as u64, "{moved}");
        fs.heal();
        p.reclaim().unwrap();
        assert!(p.space().unwrap().dead_bytes < CHUNK_BYTES);
        check_odd(&p);
    }
}

/// The application puts only large values, so that nothing else fails.
#[test]
fn health_says_that_large_values_are_refused_until_there_is_room() {
    let (fs, _, db) = on_disk();
    let p = ten_chunks(&db);
    leave_room(&fs, CHUNK_BYTES);
    for streamed in [false, true] {
        let big = vec![7; 3 * CHUNK_BYTES as usize];
        let refused = if streamed {
            let mut writer = p.put_stream("big", None).unwrap();
            writer.write_all(&big).map_err(siltstone::Error::from).unwrap_err()
        } else {
            p.put("big", &big).unwrap_err()
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        let health = db.health();
        assert!(!health.is_healthy(), "{health}");
        assert!(health.to_string().contains("large values are refused"), "{health}");
        if streamed {
            // Another value fits.
            p.put("small", vec![1; VALUE_BYTES]).unwrap();
        } else {
            leave_room(&fs, 4 * CHUNK_BYTES);
        }
        assert!(db.health().is_healthy(), "{}", db.health());
        leave_room(&fs, CHUNK_BYTES);
    }
}

/// The device fails, and space is not the reason.
#[test]
fn health_says_that_large_values_are_refused_until_one_is_written() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let db = open_with(Arc::new(fs.clone()), "/db", &ManualClock::default()).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    let at = FaultAt::Nth { kind: OpKind::Create, suffix: ".chunk".to_owned(), nth: 0 };
    fs.add_rule(FaultRule::sticky(at, FaultAction::Eio));
    p.put("k", vec![1; 1000]).unwrap_err();
    p.put("small", "1").unwrap();
    assert!(db.health().to_string().contains("large values are refused"), "{}", db.health());
    fs.heal();
    assert!(!db.health().is_healthy());
    p.put("k", vec![1; 1000]).unwrap();
    assert!(db.health().is_healthy(), "{}", db.health());
}

/// The figures are those of the folder at all times.
#[test]
fn files_in_flight_are_in_the_figures() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    let mut writer = p.put_stream("film", None).unwrap();
    for n in 1..=40_u64 {
        writer.write_all(&[3; 1000]).unwrap();
        let space = p.space().unwrap();
        let on_disk = chunk_bytes(&fs, "/db");
        assert!(on_disk + 256 > n * 1000, "{on_disk}");
        assert_eq!((space.total_bytes, value_store(&db).bytes), (on_disk, on_disk));
        assert_eq!((space.pending_bytes, space.dead_bytes), (on_disk - 64, 0));
    }
    let pending = writer.finish().unwrap();
    let space = p.space().unwrap();
    assert_eq!((space.total_bytes, space.dead_bytes), (chunk_bytes(&fs, "/db"), 0));
    assert_eq!(space.pending_bytes, space.total_bytes - 64);
    drop(pending);
    assert_eq!(p.space().unwrap().total_bytes, 0);
    // A part of a value in a file that holds other values too.
    p.put("first", vec![1; 300]).unwrap();
    let mut writer = p.put_stream("second", Some(600)).unwrap();
    writer.write_all(&[3; 512]).unwrap();
    let space = p.space().unwrap();
    assert_eq!((space.total_bytes, space.dead_bytes), (chunk_bytes(&fs, "/db"), 0));
    drop(writer);
    let space = p.space().unwrap();
    assert_eq!(space.total_bytes, chunk_bytes(&fs, "/db"));
    assert!(space.dead_bytes > 512, "{space:?}");
}

#[test]
fn the_file_of_a_dropped_stream_that_cannot_be_removed_is_counted_and_removed_later() {
    let (mem, fs, clock, db) = on_failing_disk();
    let p = db.partition_with("p", options()).unwrap();
    for finished in [false, true] {
        let at = FaultAt::Nth { kind: OpKind::Delete, suffix: ".chunk".to_owned(), nth: 0 };
        fs.add_rule(FaultRule::sticky(at, FaultAction::Eio));
        let mut writer = p.put_stream("film", None).unwrap();
        writer.write_all(&[3; 9000]).unwrap();
        match finished {
            true => drop(writer.finish().unwrap()),
            false => drop(writer),
        }
        let on_disk = chunk_bytes(&mem, "/db");
        assert!(on_disk > 8000);
        for _ in 0..3 {
            let space = p.space().unwrap();
            assert_eq!((space.total_bytes, space.dead_bytes), (on_disk, on_disk));
            let stats = value_store(&db);
            assert_eq!((stats.bytes, stats.chunk_count), (on_disk, 1));
            clock.pass(1);
            assert_eq!(db.step().unwrap_err().kind(), ErrorKind::Io);
            assert!(!db.health().is_healthy());
        }
        fs.heal();
        clock.pass(1);
        db.wait_idle().unwrap();
        assert_eq!((chunk_bytes(&mem, "/db"), p.space().unwrap().total_bytes), (0, 0));
        assert!(db.health().is_healthy(), "{}", db.health());
    }
}

/// The log takes the small values, which are in no value store.
#[test]
fn health_says_that_small_values_are_refused_until_there_is_room() {
    let (fs, clock, db) = on_disk();
    let p = db.partition_with("p", options()).unwrap();
    leave_room(&fs, 0);
    let refused = (0..1000).find_map(|n: u32| p.put(n.to_be_bytes(), [7; 100]).err());
    assert_eq!(refused.unwrap().kind(), ErrorKind::NoSpace);
    for _ in 0..2 {
        let health = db.health();
        assert!(!health.is_healthy() && health.to_string().contains("writes are refused"));
        work(&db, &clock, 2);
    }
    leave_room(&fs, 1 << 20);
    assert!(db.health().is_healthy(), "{}", db.health());
    p.put("k", "v").unwrap();
    work(&db, &clock, 2);
    assert!(db.health().is_healthy(), "{}", db.health());
}
