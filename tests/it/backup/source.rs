//! Damage and changes in the folder of a database and in that of its backups, which a backup may not copy as if nothing
//! had happened.

use lsm_core::fs::{FaultFs, OpKind};

use super::*;

fn chunk_files(mem: &MemFs) -> Vec<PathBuf> {
    let mut files = files_in(mem, DIR);
    files.retain(|path| path.extension().is_some_and(|it| it == "chunk"));
    files
}

/// A database with large values in tables, and others in the log only.
fn with_large_values(fs: &Arc<dyn Fs>) -> Db {
    let db = create(fs, DIR, 1);
    let large = db.partition("large").unwrap();
    for n in 0..8_u64 {
        large.put(n.to_be_bytes(), vec![n as u8; 20_000]).unwrap();
    }
    db.flush().unwrap();
    for n in 8..12_u64 {
        large.put(n.to_be_bytes(), vec![n as u8; 20_000]).unwrap();
    }
    db
}

/// The end of the file, after the values that tables name, may be half written when a backup reads it, and be whole at
/// the next one.
#[test]
fn the_end_of_a_chunk_file_is_read_for_every_backup() {
    let (mem, fs) = memory();
    let db = with_large_values(&fs);
    let [path] = &chunk_files(&mem)[..] else { panic!("{:?}", chunk_files(&mem)) };
    let whole = mem.read_raw(path).unwrap();
    // The second of the values that no table names, between two others.
    let at = whole.windows(100).position(|bytes| bytes == [9; 100]).unwrap() + 5000;
    let mut half = whole.clone();
    half[at..at + 5000].fill(0);
    mem.write_raw(path, &half).unwrap();
    let first = engine(&fs).create_backup(&db).unwrap();
    mem.write_raw(path, &whole).unwrap();
    let second = engine(&fs).create_backup(&db).unwrap();
    assert!(second.new_bytes > 5000, "{second:?} after {first:?}");
    assert!(restored(&fs, &mem, second.backup_id).unwrap() == state(&db));
}

#[test]
fn a_chunk_file_that_is_missing_or_short_ends_a_backup() {
    for is_missing in [true, false] {
        let (mem, fs) = memory();
        let db = with_large_values(&fs);
        engine(&fs).create_backup(&db).unwrap();
        let path = chunk_files(&mem).swap_remove(0);
        if is_missing {
            mem.remove_raw(&path).unwrap();
        } else {
            mem.truncate_raw(&path, 30_000).unwrap();
        }
        let refused = engine(&fs).create_backup(&db).unwrap_err();
        assert!(refused.is_corruption(), "{refused}");
        assert_eq!(refused.damage().unwrap().file, path);
        assert_eq!(engine(&fs).info().unwrap().len(), 1);
    }
}

/// On a medium without locks two processes may choose one number.
#[test]
fn a_number_that_another_process_takes_is_left_to_it() {
    let mem = MemFs::new();
    let fault = FaultFs::over_mem(mem.clone());
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    let db = create(&fs, DIR, 1);
    write(&db, &mut Rng::new(1));
    engine(&fs).create_backup(&db).unwrap();
    engine(&fs).create_backup(&db).unwrap();
    // Another process publishes this record just before this one does.
    let path = Path::new("/backups/backup-0000000002");
    let taken = mem.read_raw(path).unwrap();
    mem.remove_raw(path).unwrap();
    let below = mem.clone();
    let record = taken.clone();
    fault.set_observer(Arc::new(move |op| {
        if op.kind == OpKind::PutIfAbsent && op.path.ends_with("backup-0000000002") {
            below.write_raw(&op.path, &record).unwrap();
        }
    }));
    let made = engine(&fs).create_backup(&db).unwrap();
    fault.clear_observer();
    assert_eq!(made.backup_id, 3);
    assert!(mem.read_raw(path).unwrap() == taken);
    assert_eq!(engine(&fs).info().unwrap().len(), 3);
    assert!(restored(&fs, &mem, 3).unwrap() == state(&db));
}

/// A restored database was closed at the commit of its backup, so its log may not end earlier.
#[test]
fn a_restored_log_that_has_lost_its_end_is_refused() {
    let (mem, fs) = memory();
    let db = create(&fs, DIR, 1);
    write(&db, &mut Rng::new(1));
    engine(&fs).create_backup(&db).unwrap();
    engine(&fs).restore(1, NEW).unwrap();
    let mut logs = files_in(&mem, NEW);
    logs.retain(|path| path.extension().is_some_and(|it| it == "wal"));
    let last = logs.last().unwrap();
    let len = mem.read_raw(last).unwrap().len() as u64;
    mem.truncate_raw(last, len - 20).unwrap();
    let refused = open(&fs, NEW, 2).err().unwrap();
    assert!(refused.is_corruption(), "{refused}");
    assert_eq!(refused.damage().unwrap().file, *last);
}
