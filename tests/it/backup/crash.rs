//! Backups, purges, restores, and checkpoints of a folder, with the power cut before every operation, with every
//! operation failing, and on a full disk.

use std::sync::Mutex;

use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, OpKind};

use super::*;

/// The call under test, on a folder with two backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Create,
    Purge,
    Restore,
    /// Of the folder, next to its writer.
    Checkpoint,
}

/// Each with its number of threads. A purge has one.
const CALLS: [(Call, usize); 6] = [
    (Call::Create, 1),
    (Call::Create, 3),
    (Call::Purge, 1),
    (Call::Restore, 1),
    (Call::Restore, 3),
    (Call::Checkpoint, 1),
];

struct Prepared {
    mem: MemFs,
    fault: FaultFs,
    fs: Arc<dyn Fs>,
    db: Db,
    /// The content of each backup, and of a third one.
    states: Vec<State>,
}

fn prepare() -> Prepared {
    let mem = MemFs::new();
    let fault = FaultFs::over_mem(mem.clone());
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    let db = create(&fs, DIR, 1);
    let mut rng = Rng::new(2);
    let mut states = Vec::new();
    for round in 0..3 {
        write(&db, &mut rng);
        db.partition("unlogged").unwrap().flush().unwrap();
        states.push(state(&db));
        if round < 2 {
            engine(&fs).create_backup(&db).unwrap();
        }
    }
    db.wait_durable(db.visible_seq()).unwrap();
    Prepared { mem, fault, fs, db, states }
}

impl Call {
    fn run(self, threads: usize, fs: &Arc<dyn Fs>, db: &Db) -> Result<()> {
        let engine = engine(fs).threads(threads);
        match self {
            Call::Create => engine.create_backup(db).map(drop),
            Call::Purge => engine.purge_old(1).map(drop),
            Call::Restore => engine.restore(2, NEW).map(drop),
            Call::Checkpoint => Db::builder(DIR).fs(fs.clone()).checkpoint(NEW).map(drop),
        }
    }

    /// The state of the database that it makes in a new folder.
    fn made(self, states: &[State]) -> Option<&State> {
        match self {
            Call::Create | Call::Purge => None,
            Call::Restore => Some(&states[1]),
            Call::Checkpoint => Some(&states[2]),
        }
    }
}

/// Every backup that is listed is whole, and those that must be there are listed; the call can be repeated.
fn check(mem: &MemFs, call: Call, states: &[State], done: bool) {
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let listed: Vec<u32> = engine(&fs).info().unwrap().iter().map(|it| it.backup_id).collect();
    assert!(engine(&fs).corrupted().unwrap().is_empty());
    assert!(engine(&fs).verify(None).unwrap().is_sound(), "{listed:?}");
    match (call, done) {
        (Call::Create, true) => assert_eq!(listed, [1, 2, 3]),
        (Call::Create, false) => assert!(listed == [1, 2] || listed == [1, 2, 3], "{listed:?}"),
        (Call::Purge, true) => assert_eq!(listed, [2]),
        (Call::Purge, false) => assert!(listed == [2] || listed == [1, 2], "{listed:?}"),
        (Call::Restore | Call::Checkpoint, _) => assert_eq!(listed, [1, 2]),
    }
    if let Some(made) = call.made(states) {
        match open(&fs, NEW, 5) {
            Ok(db) if files_in(mem, NEW).iter().any(|path| path.ends_with("LOCK")) && !done => {
                // An empty folder becomes a new database.
                let is_new = db.partition_names() == ["default"];
                assert!(is_new || state(&db) == *made, "half of {call:?}");
            }
            Ok(db) => assert!(state(&db) == *made, "half of {call:?}"),
            Err(error) => assert!(!done, "{error}"),
        }
    }
    for id in listed {
        assert!(restored(&fs, mem, id).unwrap() == states[id as usize - 1], "{id}");
    }
    engine(&fs).purge_old(1).unwrap();
    let db = open(&fs, DIR, 6).unwrap();
    let again = engine(&fs).create_backup(&db).unwrap();
    assert!(restored(&fs, mem, again.backup_id).unwrap() == state(&db));
}

#[test]
fn a_power_cut_at_any_operation_keeps_every_backup_whole() {
    for (call, threads) in CALLS {
        let Prepared { mem, fault, fs, db, states } = prepare();
        let images = Arc::new(Mutex::new(Vec::new()));
        let taken = images.clone();
        let seen = mem.clone();
        let seed = Mutex::new(Rng::new(11));
        fault.set_observer(Arc::new(move |op| {
            if op.mutates() {
                let mut rng = seed.lock().unwrap();
                for outcome in
                    [CrashOutcome::Nothing, CrashOutcome::Subset, CrashOutcome::Everything]
                {
                    let image = seen.crash_clone(outcome, &mut || rng.next_u64());
                    taken.lock().unwrap().push((image, format!("{outcome:?} before {op:?}")));
                }
            }
        }));
        call.run(threads, &fs, &db).unwrap();
        fault.clear_observer();
        let images = std::mem::take(&mut *images.lock().unwrap());
        assert!(images.len() > 9, "{call:?} has {} images", images.len());
        for (image, what) in images {
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                check(&image, call, &states, false);
            }));
            assert!(checked.is_ok(), "{call:?}: {what}");
        }
        let mut rng = Rng::new(3);
        let image = mem.crash_clone(CrashOutcome::Nothing, &mut || rng.next_u64());
        check(&image, call, &states, true);
    }
}

#[test]
fn a_fault_at_any_operation_keeps_every_backup_whole() {
    for (call, threads) in CALLS {
        for action in [FaultAction::Eio, FaultAction::Enospc, FaultAction::SyncLost] {
            let mut reached = 0;
            for nth in 0.. {
                let Prepared { mem, fault, fs, db, states } = prepare();
                // A read fails in one way only.
                let (at, counted) = match action {
                    FaultAction::Eio => (FaultAt::Op(fault.op_count() + nth), fault.op_count()),
                    _ => {
                        let count = fault.mutation_count();
                        (FaultAt::Mutation(count + nth), count)
                    }
                };
                fault.add_rule(FaultRule::once(at, action));
                let result = call.run(threads, &fs, &db);
                let count = match action {
                    FaultAction::Eio => fault.op_count(),
                    _ => fault.mutation_count(),
                };
                if count <= counted + nth {
                    break;
                }
                reached += 1;
                fault.heal();
                drop(db);
                if call.made(&states).is_some() && result.is_err() {
                    assert_eq!(files_in(&mem, NEW), Vec::<PathBuf>::new(), "{action:?} at {nth}");
                }
                let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    check(&mem, call, &states, result.is_ok());
                }));
                assert!(checked.is_ok(), "{call:?} with {action:?} at {nth}: {result:?}");
            }
            assert!(reached > 4, "{call:?} has {reached} operations");
        }
    }
}

#[test]
fn a_full_disk_ends_a_backup_and_the_next_one_goes_on() {
    let Prepared { mem, fs, db, states, .. } = prepare();
    let used: u64 = mem.paths().iter().map(|it| mem.read_raw(it).unwrap().len() as u64).sum();
    let mut refused = 0;
    for room in (0..40).map(|step| step * 1500) {
        mem.set_capacity(Some(used + room));
        match engine(&fs).create_backup(&db) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
        }
        refused += 1;
        assert_eq!(engine(&fs).info().unwrap().len(), 2);
        assert!(engine(&fs).verify(None).unwrap().is_sound(), "room {room}");
    }
    assert!(refused > 0, "the disk was full");
    mem.set_capacity(None);
    if engine(&fs).info().unwrap().len() == 2 {
        engine(&fs).create_backup(&db).unwrap();
    }
    for id in 1..=3 {
        assert!(restored(&fs, &mem, id).unwrap() == states[id as usize - 1], "{id}");
    }
}

#[test]
fn a_full_disk_ends_a_checkpoint_of_a_folder_without_a_trace() {
    let Prepared { mem, fs, db, states, .. } = prepare();
    let used: u64 = mem.paths().iter().map(|it| mem.read_raw(it).unwrap().len() as u64).sum();
    let mut refused = 0;
    for room in (0..40).map(|step| step * 1500) {
        mem.set_capacity(Some(used + room));
        match Db::builder(DIR).fs(fs.clone()).checkpoint(NEW) {
            Ok(copied) => {
                assert_eq!(copied.seq, db.visible_seq());
                break;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
        }
        refused += 1;
        assert_eq!(files_in(&mem, NEW), Vec::<PathBuf>::new(), "room {room}");
    }
    assert!(refused > 0, "the disk was full");
    mem.set_capacity(None);
    assert!(state(&open(&fs, NEW, 9).unwrap()) == states[2]);
    assert!(state(&db) == states[2]);
}

#[test]
fn an_interrupted_backup_is_not_copied_again() {
    let Prepared { mem, fault, fs, db, states } = prepare();
    engine(&fs).purge_old(0).unwrap();
    let before = shared_files(&mem).len();
    assert_eq!(before, 0);
    // Fails at the record.
    fault.add_rule(FaultRule::once(
        FaultAt::Nth { kind: OpKind::PutIfAbsent, suffix: "backup-0000000004".to_owned(), nth: 0 },
        FaultAction::Eio,
    ));
    engine(&fs).create_backup(&db).unwrap_err();
    fault.heal();
    assert!(!shared_files(&mem).is_empty());
    let resumed = engine(&fs).create_backup(&db).unwrap();
    assert_eq!(resumed.new_bytes, 0, "{resumed:?}");
    assert!(restored(&fs, &mem, resumed.backup_id).unwrap() == states[2]);
}
