//! Damage in a folder of backups: found, named with the backups that need it, and no other backup is touched.

use std::sync::Mutex;

use lsm_core::codec::checksum64;
use lsm_core::fs::{AppendMode, FaultFs, File, FsOp, OpKind};
use siltstone::Error;

use super::*;
use crate::forward::forward_fs;

/// Three backups, and what each has.
fn three() -> (MemFs, Arc<dyn Fs>, Db, Vec<State>) {
    let (mem, fs) = memory();
    let db = create(&fs, DIR, 1);
    let mut rng = Rng::new(4);
    let mut states = Vec::new();
    for _ in 0..3 {
        write(&db, &mut rng);
        db.flush().unwrap();
        engine(&fs).create_backup(&db).unwrap();
        states.push(state(&db));
        db.wait_idle().unwrap();
    }
    (mem, fs, db, states)
}

fn copy_of(mem: &MemFs) -> (MemFs, Arc<dyn Fs>) {
    let copy = MemFs::new();
    for path in mem.paths() {
        copy.create_dir(path.parent().unwrap()).unwrap();
        copy.write_raw(&path, &mem.read_raw(&path).unwrap()).unwrap();
    }
    (copy.clone(), Arc::new(copy))
}

#[test]
fn a_flipped_bit_is_found_and_named_with_the_backups_that_need_the_file() {
    let (mem, _, db, states) = three();
    db.close().unwrap();
    let mut shared_by_some = 0;
    for (n, path) in shared_files(&mem).iter().enumerate() {
        let (mem, fs) = copy_of(&mem);
        let len = mem.read_raw(path).unwrap().len() as u64;
        let at = [3, 20, 45, len - 1][n % 4];
        match n % 5 {
            0 => mem.truncate_raw(path, len - 1).unwrap(),
            1 => mem.remove_raw(path).unwrap(),
            _ => mem.corrupt(path, at, 4).unwrap(),
        }
        let report = engine(&fs).verify(None).unwrap();
        let [damaged] = &report.damaged[..] else { panic!("{path:?}: {report:?}") };
        assert_eq!(damaged.path, *path);
        assert!(!damaged.backups.is_empty());
        shared_by_some += usize::from(damaged.backups.len() > 1);
        for id in 1..=3 {
            let is_needed = damaged.backups.contains(&id);
            assert_eq!(engine(&fs).verify(Some(id)).unwrap().is_sound(), !is_needed);
            match restored(&fs, &mem, id) {
                Ok(state) => assert!(!is_needed && state == states[id as usize - 1], "{id}"),
                Err(error) => {
                    assert!(is_needed && error.is_corruption(), "{error}");
                    assert_eq!(error.damage().unwrap().file, *path);
                    assert_eq!(files_in(&mem, NEW), Vec::<PathBuf>::new());
                }
            }
        }
    }
    assert!(shared_by_some > 0, "backups share files");
}

#[test]
fn a_deleted_damaged_file_is_copied_again() {
    let (mem, fs, db, states) = three();
    let record = engine(&fs).info().unwrap().len();
    let files = shared_files(&mem);
    for path in &files {
        mem.remove_raw(path).unwrap();
    }
    assert!(!engine(&fs).verify(None).unwrap().is_sound());
    engine(&fs).create_backup(&db).unwrap();
    assert!(engine(&fs).verify(Some(record as u32 + 1)).unwrap().is_sound());
    assert!(restored(&fs, &mem, 4).unwrap() == states[2]);
}

/// The end of a piece may be lost with its length: on a medium that does not publish files whole.
#[test]
fn a_piece_of_another_length_is_copied_again() {
    let (mem, fs, db, states) = three();
    for path in shared_files(&mem) {
        let len = mem.read_raw(&path).unwrap().len() as u64;
        mem.truncate_raw(&path, len - 1).unwrap();
    }
    engine(&fs).create_backup(&db).unwrap();
    assert!(engine(&fs).verify(Some(4)).unwrap().is_sound());
    assert!(restored(&fs, &mem, 4).unwrap() == states[2]);
}

#[test]
fn a_damaged_record_is_named_and_the_others_stay() {
    let (mem, fs, _db, states) = three();
    let path = Path::new("/backups/backup-0000000002");
    mem.corrupt(path, 70, 1).unwrap();
    let ids: Vec<u32> = engine(&fs).info().unwrap().iter().map(|it| it.backup_id).collect();
    assert_eq!(ids, [1, 3]);
    let corrupted = engine(&fs).corrupted().unwrap();
    assert_eq!(corrupted.len(), 1);
    assert_eq!((corrupted[0].0, &*corrupted[0].1.damage().unwrap().file), (2, path));
    let report = engine(&fs).verify(None).unwrap();
    assert_eq!((&*report.damaged[0].path, &report.damaged[0].backups[..]), (path, &[2][..]));
    assert!(engine(&fs).restore(2, NEW).unwrap_err().is_corruption());
    let files = shared_files(&mem);
    let refused = engine(&fs).delete(1).unwrap_err();
    assert!(refused.is_corruption() && refused.to_string().contains("backup 2"), "{refused}");
    assert_eq!(shared_files(&mem), files, "which files backup 2 needs is not known");
    engine(&fs).delete(2).unwrap();
    assert!(shared_files(&mem).len() < files.len());
    assert!(restored(&fs, &mem, 3).unwrap() == states[2]);
}

/// With a checksum that agrees, so that every field is read.
#[test]
fn hostile_records_end_in_errors() {
    let (mem, _, db, _) = three();
    db.close().unwrap();
    let path = Path::new("/backups/backup-0000000003");
    let sound = mem.read_raw(path).unwrap();
    let mut rng = Rng::new(8);
    for n in 0..250 {
        let (mem, fs) = copy_of(&mem);
        let mut bytes = sound.clone();
        let covered = bytes.len() - 8;
        if n % 7 == 6 {
            bytes.truncate(rng.next_u64() as usize % covered + 8);
        } else {
            bytes[rng.next_u64() as usize % covered] = [0, 0xff, 0x80, rng.next_u64() as u8][n % 4];
        }
        let covered = bytes.len() - 8;
        let sum = checksum64(&bytes[..covered]).to_le_bytes();
        bytes[covered..].copy_from_slice(&sum);
        mem.write_raw(path, &bytes).unwrap();
        let listed = engine(&fs).info().unwrap().len() + engine(&fs).corrupted().unwrap().len();
        assert_eq!(listed, 3);
        engine(&fs).verify(None).unwrap();
        if engine(&fs).restore(3, NEW).is_ok()
            && let Ok(db) = open(&fs, NEW, 3)
        {
            drop(db.verify(siltstone::VerifyOptions::new()));
        }
    }
}

/// A file system that lists the second record, and does not find it.
struct StaleList(MemFs);

impl Fs for StaleList {
    forward_fs!(0);

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        self.0.open_append(path, mode)
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        if path.ends_with("backup-0000000002") {
            return Err(Error::io("open", path, std::io::ErrorKind::NotFound.into()));
        }
        self.0.open_read(path)
    }
}

#[test]
fn a_record_that_is_listed_and_missing_is_a_damaged_one() {
    let (mem, _, db, _) = three();
    db.close().unwrap();
    let engine = engine(&(Arc::new(StaleList(mem)) as Arc<dyn Fs>));
    assert_eq!(engine.info().unwrap().iter().map(|it| it.backup_id).collect::<Vec<_>>(), [1, 3]);
    let [(2, error)] = &engine.corrupted().unwrap()[..] else { panic!("it is named") };
    assert!(error.is_missing() && error.to_string().contains("backup-0000000002"), "{error}");
    assert!(engine.purge_old(2).is_err(), "it may need any file");
}

/// An application that repeats a request calls twice with one folder.
#[test]
fn a_restore_that_fails_leaves_the_files_of_another_one_in_its_folder() {
    let (mem, _, db, states) = three();
    db.close().unwrap();
    let fault = FaultFs::over_mem(mem);
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    let again = engine(&fs);
    let first = Mutex::new(true);
    fault.set_observer(Arc::new(move |op: &FsOp| {
        let is_made = op.kind == OpKind::Create && op.path.starts_with(NEW);
        if is_made && std::mem::take(&mut *first.lock().unwrap()) {
            again.restore(3, NEW).unwrap();
        }
    }));
    engine(&fs).restore(3, NEW).unwrap_err();
    fault.clear_observer();
    assert_eq!(state(&open(&fs, NEW, 5).unwrap()), states[2]);
}
