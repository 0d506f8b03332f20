//! Values whose entries are lost with a table.

use lsm_core::fs::{CrashOutcome, FaultFs, FsOp, OpKind};
use metahive::RepairOptions;

use super::*;
use crate::rot::rot_newest;

/// Deletes the remaining values, and checks that no value of a lost entry keeps its space.
fn check_space(db: &Db, fs: &MemFs, clock: &ManualClock, what: &str) {
    let p = db.partition("p").unwrap();
    if !p.gaps().is_empty() {
        p.accept_loss(..).unwrap();
    }
    p.compact(..).unwrap();
    rest(db, clock);
    assert_eq!(content(&p).len(), 20, "{what}");
    let used = chunk_bytes(fs, "/db");
    assert!((20_000..26_000).contains(&used), "{what}: {used} bytes");
    for n in 0..20_u8 {
        p.delete([n]).unwrap();
    }
    rest(db, clock);
    assert_eq!(chunk_bytes(fs, "/db"), 0, "{what}: {:?}", p.space());
    assert!(db.verify(Default::default()).unwrap().is_sound(), "{what}");
}

/// A database whose partition `p` has lost 20 of 40 large values with a table.
struct Lossy {
    mem: MemFs,
    fs: FaultFs,
    clock: ManualClock,
    db: Db,
    p: Partition,
}

impl Lossy {
    fn new() -> Lossy {
        let mem = MemFs::new();
        let fs = FaultFs::over_mem(mem.clone());
        let clock = ManualClock::default();
        let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
        let repair = RepairOptions { log: false, ..RepairOptions::default() };
        let hive = MetaHiveOptions::new().repair_options(repair);
        let options = options().table_bytes(1 << 20).level0_tables(100).metahive(hive);
        let p = db.partition_with("p", options).unwrap();
        for n in 0..20_u8 {
            p.put([n], vec![n; 1000]).unwrap();
        }
        p.compact(..).unwrap();
        for n in 20..40_u8 {
            p.put([n], vec![n; 1000]).unwrap();
        }
        p.flush().unwrap();
        rot_newest(&mem, &p);
        p.compact(..).unwrap();
        assert!(!p.gaps().is_empty());
        rest(&db, &clock);
        Lossy { mem, fs, clock, db, p }
    }
}

/// A count reads all tables of its partition. Background work used to wait until it ended.
#[test]
fn a_count_does_not_delay_garbage_collection_of_other_partitions() {
    let Lossy { mem: _, fs, clock, db, p } = Lossy::new();
    let q = db.partition_with("q", options()).unwrap();
    for n in 0..20_u8 {
        q.put([n], vec![n; 1000]).unwrap();
    }
    q.flush().unwrap();
    for n in 0..20_u8 {
        q.delete([n]).unwrap();
    }
    let db = Mutex::new(Some(db));
    let tended = q.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let is_table = op.path.extension().is_some_and(|ending| ending == "sst");
        let is_read = op.kind == OpKind::Read && is_table;
        let once = if is_read { db.lock().unwrap().take() } else { None };
        if let Some(db) = once {
            rest(&db, &clock);
            assert_eq!(tended.space().unwrap().total_bytes, 0);
        }
    }));
    assert!(q.space().unwrap().total_bytes > 20_000);
    p.accept_loss(..).unwrap();
    fs.clear_observer();
    assert_eq!(q.space().unwrap().total_bytes, 0);
}

#[test]
fn the_values_of_lost_entries_go_once_the_loss_is_accepted() {
    let Lossy { mem, fs, clock, db, p } = Lossy::new();
    assert!(chunk_bytes(&mem, "/db") > 40_000, "they were not given up");
    // The power may be cut before each operation.
    let images = Arc::new(Mutex::new(Vec::new()));
    let taken = images.clone();
    let image = mem.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        if op.mutates() {
            let what = format!("op {} ({:?} at {})", op.index, op.kind, op.path.display());
            let cut = image.crash_clone(CrashOutcome::Everything, &mut || 0);
            taken.lock().unwrap().push((what, cut));
        }
    }));
    p.accept_loss(..).unwrap();
    assert!(p.space().unwrap().live_bytes < 26_000, "they are garbage at once");
    let used = chunk_bytes(&mem, "/db");
    assert!(used < 30_000, "files without other values are gone, too: {used} bytes");
    fs.clear_observer();
    check_space(&db, &mem, &clock, "no cut");
    let images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 3, "{} images", images.len());
    for (what, cut) in images {
        let clock = ManualClock::default();
        let db = open_with(Arc::new(cut.clone()), "/db", &clock).unwrap();
        check_space(&db, &cut, &clock, &what);
    }
}
