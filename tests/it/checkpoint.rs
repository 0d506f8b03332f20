//! Checkpoints of partitions whose values live in a value store: round trips, refusals, and the
//! state after a power cut or a fault at any operation.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lsm_core::fs::{
    CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, Fs, FsOp, MemFs, OpKind,
};
use lsm_core::hooks::{
    HookProvider, PendingHandle, StoreContext, StoreEdit, StoreFigures, StoreSection,
    StoreSnapshot, StoredValue, ValueStore, ValueStoreFactory,
};
use siltstone::{
    Db, Durability, ErrorKind, Hooks, Options, Partition, PartitionOptions, Result, TtlFilter,
    TtlRule, ValueStoreStats,
};
use testkit::Rng;

use crate::store::stepped;
use crate::test_value_store::{FailureMode, NoHooks, ShelfProvider, TestValueStore};

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

const COPY: &str = "/copy";

fn open_with(fs: &Arc<dyn Fs>, dir: &str, provider: Arc<dyn HookProvider>) -> Result<Db> {
    let options = Options::new().wal_segment_bytes(8 << 10).write_buffer_bytes(64 << 10);
    let builder = stepped(fs.clone(), dir, 23).options(options.manifest_bytes_max(4 << 10));
    builder.hooks(provider).open()
}

fn open(fs: &Arc<dyn Fs>, dir: &str, shelf: &TestValueStore) -> Result<Db> {
    open_with(fs, dir, Arc::new(ShelfProvider(shelf.clone())))
}

fn small() -> PartitionOptions {
    PartitionOptions::new().block_bytes(128).table_bytes(1 << 10).level0_tables(2)
}

fn read(partition: &Partition) -> Content {
    partition.iter().map(|kv| kv.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect()
}

/// The contents of the partitions of a database.
fn contents(db: &Db) -> [Content; 3] {
    ["p", "unlogged", "plain"].map(|name| read(&db.partition(name).unwrap()))
}

/// A store with values in two partitions, in tables, memtables and the log, and a third partition
/// without a value store.
fn prepare(fs: &Arc<dyn Fs>, shelf: &TestValueStore) -> Db {
    let db = open(fs, "/db", shelf).unwrap();
    let hooks = || Hooks::new().value_store(Arc::new(shelf.clone()));
    let p = db.partition_with("p", small().hooks(hooks())).unwrap();
    let options = small().logged(false);
    let unlogged = db.partition_with("unlogged", options.hooks(hooks())).unwrap();
    let plain = db.partition_with("plain", small()).unwrap();
    for round in 0..4_u8 {
        for n in 0..12_u8 {
            p.put([n], vec![round; 110 + usize::from(n)]).unwrap();
            unlogged.put([n, 1], vec![round; 130]).unwrap();
            plain.put([n], vec![round; 130]).unwrap();
        }
        p.delete([round]).unwrap();
        if round < 3 {
            db.flush().unwrap();
        }
        if round == 1 {
            db.wait_idle().unwrap();
        }
    }
    db.wait_durable(db.visible_seq()).unwrap();
    db
}

fn memory() -> (MemFs, Arc<dyn Fs>, TestValueStore) {
    let mem = MemFs::new();
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    (mem, fs, TestValueStore::with_files())
}

fn names(fs: &dyn Fs, dir: &str) -> Vec<String> {
    let entries = fs.list(Path::new(dir), "").unwrap_or_default();
    entries.into_iter().map(|entry| entry.name).collect()
}

/// Opens the checkpoint with its own value store.
fn open_copy(fs: &Arc<dyn Fs>) -> Result<(Db, TestValueStore)> {
    let shelf = TestValueStore::open(&**fs, Path::new(COPY))?;
    Ok((open(fs, COPY, &shelf)?, shelf))
}

#[test]
fn a_checkpoint_includes_the_value_store_and_is_independent() {
    let (_, fs, shelf) = memory();
    let db = prepare(&fs, &shelf);
    let before = contents(&db);
    let last = db.visible_seq();
    assert_eq!(db.checkpoint(COPY).unwrap(), last);
    let p = db.partition("p").unwrap();
    for n in 0..12_u8 {
        p.put([n], [99; 200]).unwrap();
    }
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    let after = contents(&db);
    let (copy, copied) = open_copy(&fs).unwrap();
    assert_eq!((contents(&copy), copy.visible_seq()), (before, last));
    let p = copy.partition("p").unwrap();
    for n in 0..6_u8 {
        p.delete([n]).unwrap();
    }
    p.put("own", [7; 150]).unwrap();
    for name in ["p", "unlogged"] {
        copy.partition(name).unwrap().compact(..).unwrap();
    }
    copy.wait_idle().unwrap();
    assert_eq!(copied.live(), 6 + 1 + 12, "values go in the copy when nothing refers to them");
    assert_eq!(p.get("own").unwrap().as_deref(), Some(&[7; 150][..]));
    assert_eq!(contents(&db), after);
    drop(p);
    copy.close().unwrap();
}

#[test]
fn values_deleted_during_a_checkpoint_are_in_it() {
    let (_, fs, shelf) = memory();
    let db = prepare(&fs, &shelf);
    db.flush().unwrap();
    // A new generation of the manifest, whose version is not the version of the partition.
    let generation =
        |fs: &dyn Fs| names(fs, "/db").into_iter().filter(|name| name.ends_with(".manifest")).max();
    let before = generation(&*fs);
    while generation(&*fs) == before {
        db.partition("comes").unwrap();
        db.drop_partition("comes").unwrap();
    }
    let before = contents(&db);
    let other = db.clone();
    let live = shelf.clone();
    shelf.call_in_checkpoint(move || {
        let p = other.partition("p").unwrap();
        for n in 0..12_u8 {
            p.delete([n]).unwrap();
        }
        p.compact(..).unwrap();
        other.wait_idle().unwrap();
        assert!(live.live() >= 24, "they wait for the checkpoint");
    });
    db.checkpoint(COPY).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(shelf.live(), 12, "and for nothing else");
    let (copy, _) = open_copy(&fs).unwrap();
    assert_eq!(contents(&copy), before);
    assert!(contents(&db)[0].is_empty());
}

/// A value store that makes no checkpoints. No value is large enough for it.
struct Attic;

impl ValueStoreFactory for Attic {
    fn name(&self) -> &'static str {
        "attic"
    }

    fn threshold_bytes(&self) -> u64 {
        u64::MAX
    }

    fn open(&self, _: StoreContext, _: &[StoreSection]) -> Result<Arc<dyn ValueStore>> {
        Ok(Arc::new(Attic))
    }
}

impl ValueStore for Attic {
    fn put(&self, _key: &[u8], _value: &[u8]) -> Result<PendingHandle> {
        unreachable!("it wants nothing")
    }

    fn value(&self, _handle: &[u8]) -> Result<Box<dyn StoredValue + '_>> {
        unreachable!("there are no handles")
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn edit(&self, _edit: StoreEdit<'_>) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn apply(&self, _number: u64, _section: &[u8]) -> Result<u64> {
        Ok(0)
    }

    fn snapshot(&self) -> StoreSnapshot {
        StoreSnapshot::default()
    }

    fn reclaim(&self, _number: u64) -> Result<()> {
        Ok(())
    }

    fn stats(&self, _: StoreFigures) -> ValueStoreStats {
        ValueStoreStats::default()
    }
}

fn check_refused(fs: &dyn Fs, db: &Db, kind: ErrorKind, what: &str) {
    let refused = db.checkpoint(COPY).unwrap_err();
    assert_eq!(refused.kind(), kind, "{refused}");
    assert!(refused.to_string().contains(what), "{refused}");
    assert_eq!(names(fs, COPY), Vec::<String>::new(), "nothing is left");
}

#[test]
fn a_value_store_that_makes_no_checkpoints_refuses_them() {
    let (_, fs, shelf) = memory();
    let db = prepare(&fs, &shelf);
    let hooks = Hooks::new().value_store(Arc::new(Attic));
    let attic = db.partition_with("attic", small().hooks(hooks)).unwrap();
    db.checkpoint("/none").unwrap();
    attic.put("k", "v").unwrap();
    check_refused(&*fs, &db, ErrorKind::Unsupported, "\"attic\"");
    let before = contents(&db);
    db.drop_partition("attic").unwrap();
    db.checkpoint(COPY).unwrap();
    assert_eq!(contents(&open_copy(&fs).unwrap().0), before);
}

#[test]
fn a_value_store_that_is_not_there_refuses_checkpoints() {
    let (_, fs, shelf) = memory();
    prepare(&fs, &shelf).close().unwrap();
    let db = open_with(&fs, "/db", Arc::new(NoHooks)).unwrap();
    check_refused(&*fs, &db, ErrorKind::Unsupported, "\"p\"");
}

#[test]
fn a_value_store_that_fails_leaves_nothing_of_a_checkpoint() {
    let (_, fs, shelf) = memory();
    let db = prepare(&fs, &shelf);
    for (blow, kind) in
        [(FailureMode::Fail, ErrorKind::Io), (FailureMode::Panic, ErrorKind::HookPanicked)]
    {
        shelf.fuse.set("named_chunks", blow);
        check_refused(&*fs, &db, kind, "the fuse of named_chunks");
    }
    shelf.fuse.clear();
    db.checkpoint(COPY).unwrap();
    assert_eq!(contents(&open_copy(&fs).unwrap().0), contents(&db));
}

// ---- cuts and faults --------------------------------------------------------------------------

/// Checks that the source is unchanged, and that the checkpoint is complete, as it must be if
/// `done`, or no database.
fn check_image(mem: &MemFs, shelf: TestValueStore, expected: &[Content; 3], done: bool) {
    let fs: Arc<dyn Fs> = Arc::new(mem.clone());
    let listed = names(&*fs, COPY);
    let has = |ending: &str| listed.iter().any(|name| name.ends_with(ending));
    if has(".manifest") {
        let (copy, _) = open_copy(&fs).unwrap();
        assert_eq!(contents(&copy), *expected);
    } else {
        assert!(!done);
        let refused = open(&fs, COPY, &shelf).map(drop);
        assert!(!has(".sst") || refused.is_err(), "half a checkpoint is no database");
    }
    let db = open(&fs, "/db", &shelf).unwrap();
    let [p, _, plain] = contents(&db);
    assert_eq!([&p, &plain], [&expected[0], &expected[2]]);
    db.checkpoint("/again").unwrap();
}

#[test]
fn a_power_cut_at_any_operation_leaves_all_values_or_no_checkpoint() {
    let mem = MemFs::new();
    let faulty = FaultFs::over_mem(mem.clone());
    let fs: Arc<dyn Fs> = Arc::new(faulty.clone());
    let shelf = TestValueStore::with_files();
    let db = prepare(&fs, &shelf);
    let expected = contents(&db);
    let images: Arc<Mutex<Vec<(String, MemFs, TestValueStore)>>> = Arc::default();
    let taken = images.clone();
    let seen = mem.clone();
    let live = shelf.clone();
    let rng = Mutex::new(Rng::new(11));
    faulty.set_observer(Arc::new(move |op| {
        let outcomes = if op.mutates() { &CrashOutcome::ALL[..] } else { &[] };
        for outcome in outcomes {
            let image = seen.crash_clone(*outcome, &mut || rng.lock().unwrap().next_u64());
            let what = format!("{outcome:?} before {op:?}");
            taken.lock().unwrap().push((what, image, live.cut()));
        }
    }));
    db.checkpoint(COPY).unwrap();
    faulty.clear_observer();
    let images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 20 * CrashOutcome::ALL.len(), "{}", images.len());
    for (what, image, shelf) in images {
        let checked = AssertUnwindSafe(|| check_image(&image, shelf, &expected, false));
        assert!(catch_unwind(checked).is_ok(), "{what}");
    }
    for outcome in CrashOutcome::ALL {
        let image = mem.crash_clone(outcome, &mut || 5);
        check_image(&image, shelf.cut(), &expected, true);
    }
}

/// Makes a checkpoint with one operation broken. Returns `false` if it has no such operation.
fn run_with_fault(nth: u64, action: FaultAction) -> bool {
    let mem = MemFs::new();
    let faulty = FaultFs::over_mem(mem.clone());
    let fs: Arc<dyn Fs> = Arc::new(faulty.clone());
    let shelf = TestValueStore::with_files();
    let db = prepare(&fs, &shelf);
    let expected = contents(&db);
    let at = faulty.op_count() + nth;
    faulty.add_rule(FaultRule::once(FaultAt::Op(at), action));
    let made = db.checkpoint(COPY);
    let reached = faulty.op_count() > at;
    faulty.heal();
    let checked = AssertUnwindSafe(|| {
        match &made {
            Ok(_) => assert_eq!(contents(&open_copy(&fs).unwrap().0), expected),
            Err(_) => assert_eq!(names(&*fs, COPY), Vec::<String>::new()),
        }
        db.wait_idle().unwrap();
        assert_eq!(contents(&db), expected);
        let p = db.partition("p").unwrap();
        db.batch().put(&p, "k", [7; 150]).commit(Durability::Sync).unwrap();
        p.delete("k").unwrap();
        db.checkpoint("/again").unwrap();
        drop((db, p));
        for outcome in [CrashOutcome::Nothing, CrashOutcome::Everything] {
            let image = mem.crash_clone(outcome, &mut || nth);
            let after: Arc<dyn Fs> = Arc::new(image.clone());
            let left = open(&after, "/db", &shelf.cut()).unwrap();
            assert_eq!(left.partition("plain").unwrap().iter().count(), 12);
            let p = read(&left.partition("p").unwrap());
            assert!(expected[0].iter().all(|(key, value)| p.get(key) == Some(value)));
        }
    });
    assert!(catch_unwind(checked).is_ok(), "{action:?} at {nth}: {made:?}");
    reached
}

#[test]
fn a_fault_at_any_operation_leaves_all_values_or_no_checkpoint() {
    for action in [FaultAction::Eio, FaultAction::Enospc, FaultAction::SyncLost] {
        let reached = (0..u64::MAX).take_while(|nth| run_with_fault(*nth, action)).count();
        assert!(reached > 30, "{reached} operations");
    }
}

/// An application that repeats a request calls twice with one folder.
#[test]
fn a_checkpoint_that_fails_leaves_the_files_of_another_one_in_its_folder() {
    let fault = FaultFs::over_mem(MemFs::new());
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    let shelf = TestValueStore::default();
    let db = open(&fs, "/db", &shelf).unwrap();
    let p = db.partition_with("p", small()).unwrap();
    for n in 0..300_u32 {
        p.put(n.to_be_bytes(), [1; 50]).unwrap();
    }
    let first = Mutex::new(true);
    let again = db.clone();
    fault.set_observer(Arc::new(move |op: &FsOp| {
        let is_first = op.kind == OpKind::Link && std::mem::take(&mut *first.lock().unwrap());
        if is_first {
            again.checkpoint(COPY).unwrap();
        }
    }));
    let error = db.checkpoint(COPY).unwrap_err();
    fault.clear_observer();
    assert!(error.to_string().contains(COPY), "{error}");
    let copy = open(&fs, COPY, &shelf).unwrap();
    assert_eq!(read(&copy.open_partition("p").unwrap()), read(&p));
}

/// The flush of the checkpoint begins with the old hooks, and installs nothing.
#[test]
fn a_checkpoint_during_which_hooks_change_has_each_batch_whole() {
    let fault = FaultFs::over_mem(MemFs::new());
    let db = stepped(Arc::new(fault.clone()), "/db", 1).open().unwrap();
    let [a, b] = ["a", "b"].map(|name| db.partition(name).unwrap());
    db.batch().put(&a, "k", "1").put(&b, "k", "2").commit(Durability::Sync).unwrap();
    let writer = db.clone();
    let tables = AtomicU64::new(0);
    fault.set_observer(Arc::new(move |op: &FsOp| {
        let is_table =
            op.kind == OpKind::Create && op.path.extension().is_some_and(|it| it == "sst");
        // That of the second partition.
        if is_table && tables.fetch_add(1, Ordering::Relaxed) == 1 {
            let rule = TtlFilter::stored(&TtlRule::in_value(0));
            let options = PartitionOptions::new().filter(Arc::new(rule));
            writer.partition_with("b", options).unwrap();
        }
    }));
    db.checkpoint(COPY).unwrap();
    fault.clear_observer();
    let copy = stepped(Arc::new(fault), COPY, 2).open().unwrap();
    assert_eq!(copy.partition("a").unwrap().get("k").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(copy.partition("b").unwrap().get("k").unwrap().as_deref(), Some(&b"2"[..]));
}
