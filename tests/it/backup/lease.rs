//! A primary takes the lease of a backup, or of a checkpoint of its folder, away while it is made: that begins again, and
//! never has files that may be gone.

use std::sync::Mutex;

use lsm_core::fs::{FaultFs, FsOp, OpKind};
use siltstone::SeqNo;
use siltstone::backup::BackupInfo;

use super::*;

/// The pieces that are put and the leases that are taken, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Lease,
    Piece,
}

/// Makes a backup, as another process does, whose lease is taken away before the `nth` piece is put, and before every
/// later one unless `is_once` is set.
fn disturbed(mem: &MemFs, nth: usize, is_once: bool) -> (Result<BackupInfo>, Vec<Event>) {
    let fault = FaultFs::over_mem(mem.clone());
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    let below = mem.clone();
    fault.set_observer(Arc::new(move |op: &FsOp| {
        let mut seen = seen.lock().unwrap();
        if op.kind == OpKind::Lock && is_lease(&op.path) {
            seen.push(Event::Lease);
        }
        if op.kind == OpKind::PutIfAbsent && op.path.starts_with("/backups/shared") {
            let pieces = seen.iter().filter(|event| **event == Event::Piece).count();
            if pieces == nth || pieces > nth && !is_once {
                below.paths().iter().filter(|path| is_lease(path)).for_each(|path| {
                    below.remove_raw(path).unwrap();
                });
            }
            seen.push(Event::Piece);
        }
    }));
    let made = engine(&fs).create_backup_of(Db::builder(DIR).fs(fs.clone()));
    fault.clear_observer();
    let events = events.lock().unwrap().clone();
    (made, events)
}

fn is_lease(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("reader-"))
}

fn prepared() -> (MemFs, Db) {
    let (mem, fs) = memory();
    let db = create(&fs, DIR, 1);
    let mut rng = Rng::new(6);
    for _ in 0..2 {
        write(&db, &mut rng);
        db.flush().unwrap();
    }
    write(&db, &mut rng);
    db.partition("unlogged").unwrap().flush().unwrap();
    (mem, db)
}

#[test]
fn a_backup_that_loses_its_lease_begins_again() {
    let mut disturbances = 0;
    for nth in 0.. {
        let (mem, db) = prepared();
        let (made, events) = disturbed(&mem, nth, true);
        let made = made.unwrap();
        let pieces = events.iter().filter(|event| **event == Event::Piece).count();
        if pieces <= nth {
            assert_eq!(events.iter().filter(|event| **event == Event::Lease).count(), 1);
            break;
        }
        disturbances += 1;
        // The piece that was under way is put, and no other before the next lease.
        let lease = events.iter().rposition(|event| *event == Event::Lease).unwrap();
        let before = events[..lease].iter().filter(|event| **event == Event::Piece).count();
        assert_eq!(before, nth + 1, "{nth}: {events:?}");
        let fs: Arc<dyn Fs> = Arc::new(mem.clone());
        assert!(engine(&fs).verify(None).unwrap().is_sound());
        assert!(restored(&fs, &mem, made.backup_id).unwrap() == state(&db), "{nth}");
    }
    assert!(disturbances > 3, "{disturbances} pieces");
}

#[test]
fn a_backup_whose_lease_is_always_taken_away_is_refused_and_the_next_one_goes_on() {
    let (mem, db) = prepared();
    let (refused, _) = disturbed(&mem, 0, false);
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LeaseLost, "{refused}");
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    assert_eq!(engine(&fs).info().unwrap(), [], "no backup is added");
    let copied = shared_files(&mem).len();
    assert!(copied > 1, "what was copied stays");
    let made = engine(&fs).create_backup(&db).unwrap();
    assert!(made.new_bytes < made.size, "{made:?}");
    assert!(restored(&fs, &mem, made.backup_id).unwrap() == state(&db));
}

/// Makes a checkpoint of the folder, as another process does, whose lease is taken away before the `nth` file of the copy
/// is made. Returns the number of files that were begun, of all attempts.
fn disturbed_checkpoint(mem: &MemFs, nth: usize) -> (Result<SeqNo>, usize) {
    let fault = FaultFs::over_mem(mem.clone());
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    let begun = Arc::new(Mutex::new(0));
    let seen = begun.clone();
    let below = mem.clone();
    fault.set_observer(Arc::new(move |op: &FsOp| {
        let is_made = matches!(op.kind, OpKind::Link | OpKind::Create);
        let is_manifest = op.path.extension().is_some_and(|it| it == "manifest");
        if is_made && op.path.starts_with(NEW) && !is_manifest {
            let mut begun = seen.lock().unwrap();
            if *begun == nth {
                below.paths().iter().filter(|path| is_lease(path)).for_each(|path| {
                    below.remove_raw(path).unwrap();
                });
            }
            *begun += 1;
        }
    }));
    let made = Db::builder(DIR).fs(fs.clone()).checkpoint(NEW);
    fault.clear_observer();
    let begun = *begun.lock().unwrap();
    (made.map(|it| it.seq), begun)
}

#[test]
fn a_checkpoint_of_a_folder_that_loses_its_lease_begins_again() {
    let (mem, _db) = prepared();
    let (made, undisturbed) = disturbed_checkpoint(&mem, usize::MAX);
    made.unwrap();
    assert!(undisturbed > 3, "{undisturbed} files");
    for nth in 0..undisturbed - 1 {
        let (mem, db) = prepared();
        let (made, begun) = disturbed_checkpoint(&mem, nth);
        assert_eq!(made.unwrap(), db.visible_seq());
        // The file that was under way is made, and no other before the next lease.
        assert_eq!(begun, nth + 1 + undisturbed, "{nth}");
        let fs: Arc<dyn Fs> = Arc::new(mem.clone());
        assert!(state(&open(&fs, NEW, 9).unwrap()) == state(&db), "{nth}");
    }
}
