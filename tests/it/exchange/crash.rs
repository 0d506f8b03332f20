//! Checkpoint, export and ingest with the power cut before every operation, and with every
//! operation failing: all of the call or nothing takes effect, and no file is left over.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lsm_core::fs::{
    AppendMode, CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, File, Fs, MemFs, OpKind,
};
use siltstone::{Db, Partition, Result};
use testkit::Rng;

use crate::forward::{forward_file, forward_fs};

use super::{Content, check_no_orphans, content, exported, names, open, small, try_open};

const KEYS: u32 = 40;

/// The call under test, on a store with entries in memtables and in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Checkpoint,
    Export,
    Ingest,
    /// A bulk load of the same entries as the ingest.
    Load,
}

const CALLS: [Call; 4] = [Call::Checkpoint, Call::Export, Call::Ingest, Call::Load];

impl Call {
    fn run(self, db: &Db, p: &Partition) -> Result<()> {
        match self {
            Call::Checkpoint => db.checkpoint("/copy").map(drop),
            Call::Export => p.export(.., "/copy").map(drop),
            Call::Ingest => p.ingest("/export").map(drop),
            Call::Load => {
                let value = "ingested".repeat(8);
                p.bulk_load((20..KEYS + 20).map(|n| (n.to_be_bytes(), &value))).map(drop)
            }
        }
    }

    /// Returns `true` if it changes the store.
    fn brings(self) -> bool {
        matches!(self, Call::Ingest | Call::Load)
    }
}

/// The content of the store before and after the call.
struct Expected {
    before: Content,
    after: Content,
}

/// A store over `fs`; its state so far is durable.
fn prepare(fs: &FaultFs, mem: &MemFs) -> (Db, Partition, Expected) {
    exported(mem, 20..KEYS + 20, &"ingested".repeat(8), "/synced");
    // Another process brings the export here and does not sync it.
    mem.create_dir(Path::new("/export")).unwrap();
    for name in names(mem, "/synced") {
        let bytes = mem.read_raw(&Path::new("/synced").join(&name)).unwrap();
        let file = mem.open_append(&Path::new("/export").join(&name), AppendMode::IfAbsent);
        file.unwrap().append(&bytes).unwrap();
    }
    let db = try_open(Arc::new(fs.clone()), "/db", 2).unwrap();
    let p = db.partition_with("p", small()).unwrap();
    for n in 0..KEYS {
        p.put(n.to_be_bytes(), "mine".repeat(20)).unwrap();
        if n == KEYS / 2 {
            db.flush().unwrap();
        }
    }
    db.wait_durable(db.visible_seq()).unwrap();
    let before = content(&p);
    let mut after = before.clone();
    for n in 20..KEYS + 20 {
        after.insert(n.to_be_bytes().to_vec(), "ingested".repeat(8).into_bytes());
    }
    (db, p, Expected { before, after })
}

/// The store after a crash or a fault: before the call or after it; after it if `done`, which means
/// that the call returned `Ok`.
fn check_store(mem: &MemFs, call: Call, expected: &Expected, done: bool) {
    let db = open(mem, "/db", 5);
    check_no_orphans(mem, "/db", &db);
    let p = db.partition("p").unwrap();
    let found = content(&p);
    let is_after = found == expected.after;
    match (call.brings(), done) {
        (true, true) => assert!(is_after, "{call:?} was acknowledged and is lost"),
        (true, false) => assert!(is_after || found == expected.before, "half of {call:?}"),
        (false, _) => assert_eq!(found, expected.before),
    }
    p.put("still", "writable").unwrap();
    p.ingest("/synced").unwrap();
    p.compact(..).unwrap();
    let mut all = expected.after.clone();
    all.insert(b"still".to_vec(), b"writable".to_vec());
    assert_eq!(content(&p), all);
    p.delete("still").unwrap();
}

/// The folder of a checkpoint or an export: complete, or refused; complete if `done`.
fn check_copy(mem: &MemFs, call: Call, expected: &Expected, done: bool) {
    let listed = mem.list(Path::new("/copy"), "").unwrap_or_default();
    let is_whole = |ending: &str| listed.iter().any(|entry| entry.name.ends_with(ending));
    match call {
        Call::Checkpoint if is_whole(".manifest") => {
            let copy = open(mem, "/copy", 6);
            assert_eq!(content(&copy.partition("p").unwrap()), expected.before);
            check_no_orphans(mem, "/copy", &copy);
        }
        Call::Checkpoint if !listed.is_empty() => {
            let refused = try_open(Arc::new(mem.clone()), "/copy", 6).map(drop);
            let has_tables = is_whole(".sst");
            assert!(!has_tables || refused.is_err(), "half a checkpoint is no database");
            assert!(!done);
        }
        Call::Export => {
            let p = open(mem, "/fresh", 7).partition("p").unwrap();
            match p.ingest("/copy") {
                Ok(_) => assert_eq!(content(&p), expected.before),
                Err(error) => assert!(!is_whole("EXPORT") && !done, "{error}"),
            }
        }
        _ => assert!(!done),
    }
}

#[test]
fn a_power_cut_at_any_operation_leaves_all_or_nothing() {
    for call in CALLS {
        let mem = MemFs::new();
        let fs = FaultFs::over_mem(mem.clone());
        let (db, p, expected) = prepare(&fs, &mem);
        let images = Arc::new(Mutex::new(Vec::new()));
        let taken = images.clone();
        let seen = mem.clone();
        let seed = Mutex::new(Rng::new(11));
        fs.set_observer(Arc::new(move |op| {
            if op.mutates() {
                let mut rng = seed.lock().unwrap();
                for outcome in CrashOutcome::ALL {
                    let image = seen.crash_clone(outcome, &mut || rng.next_u64());
                    taken.lock().unwrap().push((image, format!("{outcome:?} before {op:?}")));
                }
            }
        }));
        call.run(&db, &p).unwrap();
        fs.clear_observer();
        let count = images.lock().unwrap().len();
        assert!(count > 7 * 5, "{call:?} has {count} images");
        for (image, what) in images.lock().unwrap().drain(..) {
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                if !call.brings() {
                    check_copy(&image, call, &expected, false);
                }
                check_store(&image, call, &expected, false);
            }));
            assert!(checked.is_ok(), "{call:?}: {what}");
        }
        for outcome in CrashOutcome::ALL {
            let mut rng = Rng::new(3);
            let image = mem.crash_clone(outcome, &mut || rng.next_u64());
            if !call.brings() {
                check_copy(&image, call, &expected, true);
            }
            check_store(&image, call, &expected, true);
        }
    }
}

/// Makes the call with one operation broken, then checks the live store and the state that a crash
/// leaves. Returns `false` if the call has no such operation.
fn run_with_fault(call: Call, nth: u64, action: FaultAction) -> bool {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let (db, p, expected) = prepare(&fs, &mem);
    let at = fs.op_count() + nth;
    let faults = fs.fault_count();
    fs.add_rule(FaultRule::once(FaultAt::Op(at), action));
    let result = call.run(&db, &p);
    let reached = fs.op_count() > at;
    let hit = fs.fault_count() > faults;
    fs.heal();
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let found = content(&p);
        let done = call.brings() && result.is_ok();
        assert!(if done { found == expected.after } else { found == expected.before });
        if !call.brings() {
            check_copy(&mem, call, &expected, result.is_ok());
            if result.is_err() {
                assert_eq!(mem.list(Path::new("/copy"), "").unwrap_or_default(), []);
            }
        }
        assert!(hit || result.is_ok(), "{result:?}");
        drop((db, p));
        // A crash after the failure, and a plain reopening.
        for outcome in [CrashOutcome::Nothing, CrashOutcome::Subset, CrashOutcome::Everything] {
            let mut rng = Rng::new(nth);
            let image = mem.crash_clone(outcome, &mut || rng.next_u64());
            check_store(&image, call, &expected, result.is_ok());
        }
    }));
    assert!(
        checked.is_ok(),
        "{call:?} with {action:?} at {nth}: {result:?}; {:?}",
        names(&mem, "/db")
    );
    reached
}

#[test]
fn a_fault_at_any_operation_leaves_all_or_nothing() {
    for call in CALLS {
        for action in [FaultAction::Eio, FaultAction::Enospc, FaultAction::SyncLost] {
            let reached =
                (0..u64::MAX).take_while(|nth| run_with_fault(call, *nth, action)).count();
            assert!(reached > 9, "{call:?} has {reached} operations");
        }
    }
}

#[test]
fn a_write_that_slips_in_while_an_ingest_flushes_is_shadowed_by_it() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let (db, p, _) = prepare(&fs, &mem);
    p.put(30_u32.to_be_bytes(), "before").unwrap();
    let writer = p.clone();
    let wrote = AtomicBool::new(false);
    fs.set_observer(Arc::new(move |op| {
        // The sync of the log for the flush, or the one before the edit: the call has already
        // looked at the memtables.
        let is_log = op.path.extension().is_some_and(|kind| kind == "wal");
        if op.kind == OpKind::Sync && is_log && !wrote.swap(true, Ordering::Relaxed) {
            writer.put(31_u32.to_be_bytes(), "between").unwrap();
        }
    }));
    let seq = p.ingest("/export").unwrap().seq;
    fs.clear_observer();
    let ingested = "ingested".repeat(8).into_bytes();
    for round in 0..2 {
        for n in [30_u32, 31] {
            assert_eq!(p.get(n.to_be_bytes()).unwrap().as_deref(), Some(&ingested[..]), "{round}");
        }
        assert_eq!(content(&p)[&31_u32.to_be_bytes().to_vec()], ingested);
        p.compact(..).unwrap();
    }
    let after = p.put(31_u32.to_be_bytes(), "after").unwrap();
    assert!(after.seq > seq);
    assert_eq!(p.get(31_u32.to_be_bytes()).unwrap().as_deref(), Some(&b"after"[..]));
    drop(db);
}

#[test]
fn no_power_cut_keeps_an_ingest_and_loses_a_write_before_it() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let (db, p, _) = prepare(&fs, &mem);
    db.flush().unwrap();
    // In a memtable that the ingest need not flush, in the log but not synced.
    p.put(9000_u32.to_be_bytes(), "others").unwrap();
    p.ingest("/synced").unwrap();
    for outcome in CrashOutcome::ALL {
        let mut rng = Rng::new(8);
        let image = mem.crash_clone(outcome, &mut || rng.next_u64());
        let p = open(&image, "/db", 5).partition("p").unwrap();
        assert!(p.contains(50_u32.to_be_bytes()).unwrap(), "{outcome:?}");
        assert!(p.contains(9000_u32.to_be_bytes()).unwrap(), "{outcome:?}");
    }
}

/// A file system that calls a function after each sync of a file.
struct AfterSync {
    mem: MemFs,
    then: Arc<dyn Fn(&Path) + Send + Sync>,
}

struct AfterSyncFile {
    file: Arc<dyn File>,
    path: PathBuf,
    then: Arc<dyn Fn(&Path) + Send + Sync>,
}

impl Fs for AfterSync {
    forward_fs!(mem);

    fn open_append(&self, path: &Path, mode: AppendMode) -> Result<Arc<dyn File>> {
        let file = self.mem.open_append(path, mode)?;
        let then = self.then.clone();
        Ok(Arc::new(AfterSyncFile { file, path: path.to_owned(), then }))
    }

    fn open_read(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.mem.open_read(path)
    }
}

impl File for AfterSyncFile {
    forward_file!();

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file.read_at_uncached(offset, buf)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()?;
        (self.then)(&self.path);
        Ok(())
    }
}

/// A write comes after the sync of the log that an ingest makes and before the ingest takes the
/// lock of the commit path. It has a smaller sequence number than the ingest, so a cut must not
/// lose it and keep the ingest.
#[test]
fn a_write_after_the_first_sync_of_an_ingest_is_as_durable_as_the_ingest() {
    for call in [Call::Ingest, Call::Load] {
        let mem = MemFs::new();
        drop(prepare(&FaultFs::over_mem(mem.clone()), &mem));
        let writer: Arc<Mutex<Option<Partition>>> = Arc::default();
        let taken = writer.clone();
        let then = Arc::new(move |path: &Path| {
            let is_log = path.extension().is_some_and(|kind| kind == "wal");
            let writer = if is_log { taken.lock().unwrap().take() } else { None };
            if let Some(writer) = writer {
                writer.put(9001_u32.to_be_bytes(), "slipped in").unwrap();
            }
        });
        let fs = AfterSync { mem: mem.clone(), then };
        let db = try_open(Arc::new(fs), "/db", 2).unwrap();
        let p = db.partition("p").unwrap();
        p.put(9000_u32.to_be_bytes(), "before").unwrap();
        *writer.lock().unwrap() = Some(p.clone());
        call.run(&db, &p).unwrap();
        assert!(writer.lock().unwrap().is_none(), "nothing slipped in");
        for outcome in CrashOutcome::ALL {
            let mut rng = Rng::new(8);
            let image = mem.crash_clone(outcome, &mut || rng.next_u64());
            let p = open(&image, "/db", 5).partition("p").unwrap();
            assert!(p.contains(50_u32.to_be_bytes()).unwrap(), "{call:?}, {outcome:?}");
            assert!(p.contains(9001_u32.to_be_bytes()).unwrap(), "{call:?}, {outcome:?}");
        }
    }
}
