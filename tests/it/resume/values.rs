//! After a failed sync, with a value store: the sync of the value store or that of the log.
//!
//! The values of one partition are in a value store in memory, those of another in tables, and each
//! batch writes both. So a handle without its value is found, and so is half a batch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, FsOp, MemFs, OpKind};
use siltstone::{Db, Durability, ErrorKind, Hooks, Options, Partition, PartitionOptions, Result};
use testkit::Rng;

use crate::crash::seed_or;
use crate::store::stepped;
use crate::test_value_store::{FailureMode, ShelfProvider, TestValueStore};

const KEYS: u64 = 12;

/// Keys and the numbers of the writes whose values they have.
type Content = BTreeMap<Vec<u8>, u64>;

/// A batch: a key, and whether it is set or deleted.
type Write = (u64, bool);

/// The content after the first `count` writes.
fn content_after(writes: &[Write], count: usize) -> Content {
    let mut content = Content::new();
    for (number, (key, is_set)) in writes[..count].iter().enumerate() {
        let key = key.to_be_bytes().to_vec();
        match is_set {
            true => content.insert(key, number as u64),
            false => content.remove(&key),
        };
    }
    content
}

fn value(number: u64) -> Vec<u8> {
    [&number.to_be_bytes()[..], &[7; 120]].concat()
}

/// The first failure.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Log(FaultAction),
    Store(FailureMode),
}

const FAILURES: [Failure; 5] = [
    Failure::Log(FaultAction::Eio),
    Failure::Log(FaultAction::SyncLost),
    Failure::Log(FaultAction::SyncReverted),
    Failure::Store(FailureMode::Fail),
    Failure::Store(FailureMode::Panic),
];

/// The state of a store at one time.
#[derive(Clone, Default)]
struct Committed {
    /// Visible, in order.
    writes: Vec<Write>,
    /// The number of them that are synced.
    synced: usize,
}

/// The image that a power cut leaves, and the state of the store at that time.
type Image = (String, MemFs, TestValueStore, Committed);

struct Harness {
    mem: MemFs,
    fs: FaultFs,
    shelf: TestValueStore,
    db: Db,
    p: Partition,
    q: Partition,
    committed: Arc<Mutex<Committed>>,
    rng: Rng,
}

fn open(fs: Arc<dyn lsm_core::fs::Fs>, shelf: &TestValueStore) -> Result<Db> {
    let options = Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(8 << 10);
    let builder = stepped(fs, "/db", 17).options(options);
    builder.hooks(Arc::new(ShelfProvider(shelf.clone()))).open()
}

/// The keys of a partition, and the number that begins each value.
fn numbers(partition: &Partition) -> Content {
    let pairs = partition.iter().map(|pair| {
        let (key, value) = pair.unwrap();
        (key.to_vec(), u64::from_be_bytes(*value.first_chunk().unwrap()))
    });
    pairs.collect()
}

fn read(p: &Partition, q: &Partition) -> Content {
    let content = numbers(p);
    assert_eq!(content, numbers(q), "half a batch");
    content
}

impl Harness {
    /// A store with tables and memtables, some writes synced and some not, whose log or value store
    /// has just failed to sync.
    fn failed(failure: Failure, seed: u64, moves: bool) -> Harness {
        let mem = MemFs::new();
        let shelf = TestValueStore::moving(moves);
        let fs = FaultFs::over_mem(mem.clone());
        let db = open(Arc::new(fs.clone()), &shelf).unwrap();
        let tables = PartitionOptions::new().block_bytes(128).table_bytes(1 << 10);
        let hooks = Hooks::new().value_store(Arc::new(shelf.clone()));
        let p = db.partition_with("p", tables.clone().level0_tables(2).hooks(hooks)).unwrap();
        let q = db.partition_with("q", tables.level0_tables(2)).unwrap();
        let committed = Arc::default();
        let rng = Rng::new(seed);
        let mut harness = Harness { mem, fs, shelf, db, p, q, committed, rng };
        for _ in 0..40 {
            match harness.rng.below(12) {
                0 => harness.db.flush().unwrap(),
                1 => harness.p.compact(..).unwrap(),
                2 => drop(harness.db.step().unwrap()),
                3 => harness.write(Durability::Sync).unwrap(),
                _ => harness.write(Durability::Os).unwrap(),
            }
        }
        harness.write(Durability::Sync).unwrap();
        harness.write(Durability::Os).unwrap();
        match failure {
            Failure::Log(action) => {
                let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".wal".to_owned(), nth: 0 };
                harness.fs.add_rule(FaultRule::once(at, action));
            }
            Failure::Store(blow) => harness.shelf.fuse.set("sync", blow),
        }
        let refused = harness.write(Durability::Sync).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
        // It is visible anyway, together with its value; later writes are refused, and leave no
        // value.
        assert_eq!(read(&harness.p, &harness.q), harness.content());
        let live = harness.shelf.live();
        for durability in [Durability::Os, Durability::Sync] {
            let batch =
                harness.db.batch().put(&harness.p, "late", value(0)).put(&harness.q, "late", "");
            assert_eq!(batch.commit(durability).unwrap_err().kind(), ErrorKind::ReadOnly);
            assert!(harness.p.put("late", value(0)).is_err());
        }
        assert_eq!(harness.shelf.live(), live, "a refused write leaves no value");
        harness.shelf.fuse.clear();
        harness
    }

    fn committed(&self) -> Committed {
        self.committed.lock().unwrap().clone()
    }

    fn content(&self) -> Content {
        let committed = self.committed();
        content_after(&committed.writes, committed.writes.len())
    }

    /// A batch over both partitions. It counts as visible if its error says so.
    fn write(&mut self, durability: Durability) -> Result<()> {
        let key = self.rng.below(KEYS);
        let is_set = self.rng.chance(5, 6);
        let name = key.to_be_bytes();
        let number = self.committed.lock().unwrap().writes.len() as u64;
        let batch = self.db.batch();
        let batch = match is_set {
            true => batch.put(&self.p, name, value(number)).put(&self.q, name, &value(number)[..9]),
            false => batch.delete(&self.p, name).delete(&self.q, name),
        };
        let before = self.db.visible_seq();
        let done = batch.commit(durability);
        let mut committed = self.committed.lock().unwrap();
        if self.db.visible_seq() > before {
            committed.writes.push((key, is_set));
        }
        if done.is_ok() && durability == Durability::Sync {
            committed.synced = committed.writes.len();
        }
        done.map(drop)
    }

    /// The store continues, and nothing is lost, neither now nor later.
    fn check_resumed(mut self) {
        self.fs.heal();
        self.shelf.fuse.clear();
        self.db.wait_idle().unwrap();
        assert!(self.db.health().is_healthy(), "{}", self.db.health());
        for durability in [Durability::Sync, Durability::Os, Durability::Sync] {
            self.write(durability).unwrap();
        }
        assert_eq!(read(&self.p, &self.q), self.content());
        for outcome in CrashOutcome::ALL {
            let image = self.mem.crash_clone(outcome, &mut || self.rng.next_u64());
            check_cut(&image, self.shelf.cut(), &self.committed());
        }
        self.p.compact(..).unwrap();
        self.db.wait_idle().unwrap();
        let content = self.content();
        assert_eq!(self.shelf.live(), content.len(), "values that nothing refers to are gone");
        let Harness { mem, shelf, db, p, q, .. } = self;
        drop((p, q));
        db.close().unwrap();
        let db = open(Arc::new(mem), &shelf).unwrap();
        let p = db.partition("p").unwrap();
        let q = db.partition("q").unwrap();
        assert_eq!(read(&p, &q), content);
    }
}

/// The image of a power cut opens, and is a state at or after the last one that was synced.
fn check_cut(image: &MemFs, shelf: TestValueStore, committed: &Committed) {
    let db = open(Arc::new(image.clone()), &shelf).unwrap();
    let p = db.partition("p").unwrap();
    let q = db.partition("q").unwrap();
    let found = read(&p, &q);
    let mut states = committed.synced..=committed.writes.len();
    let is_state = states.any(|count| content_after(&committed.writes, count) == found);
    assert!(is_state, "{found:?} after {:?}, {} synced", committed.writes, committed.synced);
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(read(&p, &q), found);
}

fn each_failure(check: impl Fn(Failure, u64)) {
    for seed in seed_or(3)..seed_or(3) + 6 {
        FAILURES.iter().for_each(|failure| check(*failure, seed));
    }
}

#[test]
fn a_cut_while_a_store_with_values_resumes_keeps_what_was_synced() {
    each_failure(|failure, seed| {
        let harness = Harness::failed(failure, seed, seed.is_multiple_of(2));
        let images: Arc<Mutex<Vec<Image>>> = Arc::default();
        let taken = images.clone();
        let mem = harness.mem.clone();
        let shelf = harness.shelf.clone();
        let committed = harness.committed.clone();
        let rng = Mutex::new(Rng::new(seed));
        harness.fs.set_observer(Arc::new(move |op: &FsOp| {
            let outcomes = if op.mutates() { &CrashOutcome::ALL[..] } else { &[] };
            for outcome in outcomes {
                let left = mem.crash_clone(*outcome, &mut || rng.lock().unwrap().next_u64());
                let what = format!("{op:?}, {outcome:?}");
                let committed = committed.lock().unwrap().clone();
                taken.lock().unwrap().push((what, left, shelf.cut(), committed));
            }
        }));
        assert!(harness.db.step().unwrap());
        harness.fs.clear_observer();
        let images = std::mem::take(&mut *images.lock().unwrap());
        assert!(images.len() > 7 * CrashOutcome::ALL.len());
        for (what, image, shelf, committed) in images {
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                check_cut(&image, shelf, &committed);
            }));
            assert!(checked.is_ok(), "{failure:?}, SEED={seed}: cut before {what}");
        }
        harness.check_resumed();
    });
}

/// Steps with a second fault set, cuts the power after each step, then removes the fault.
fn check_second_fault(harness: Harness, seed: u64, what: &str) {
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut rng = Rng::new(seed);
        for _ in 0..3 {
            let _ = harness.db.step();
            let image = harness.mem.crash_clone(CrashOutcome::Subset, &mut || rng.next_u64());
            check_cut(&image, harness.shelf.cut(), &harness.committed());
            assert_eq!(read(&harness.p, &harness.q), harness.content());
        }
        harness.check_resumed();
    }));
    assert!(checked.is_ok(), "SEED={seed}: {what}");
}

#[test]
fn a_second_fault_while_a_store_with_values_resumes_is_got_over() {
    each_failure(|failure, seed| {
        let harness = Harness::failed(failure, seed, false);
        let first = harness.fs.op_count();
        harness.db.step().unwrap();
        let count = harness.fs.op_count() - first;
        drop(harness);
        for nth in 0..count {
            for (action, sticky) in [(FaultAction::Eio, false), (FaultAction::SyncReverted, true)] {
                let harness = Harness::failed(failure, seed, false);
                assert_eq!(harness.fs.op_count(), first);
                harness.fs.add_rule(FaultRule { at: FaultAt::Op(first + nth), action, sticky });
                check_second_fault(
                    harness,
                    seed,
                    &format!("{failure:?}, then {action:?} at {nth}"),
                );
            }
        }
    });
}

/// A job syncs values in the meantime and gets the failure. The values of the tables may have been
/// in that sync.
#[test]
fn tables_whose_values_were_in_the_failed_sync_of_another_are_not_installed() {
    each_failure(|failure, seed| {
        let harness = Harness::failed(failure, seed, false);
        let shelf = Mutex::new(Some(harness.shelf.clone()));
        harness.fs.set_observer(Arc::new(move |op: &FsOp| {
            let is_table = op.path.extension().is_some_and(|ending| ending == "sst");
            let is_written = op.kind == OpKind::Sync && is_table;
            let once = if is_written { shelf.lock().unwrap().take() } else { None };
            once.iter().for_each(TestValueStore::note_failed_sync);
        }));
        let _ = harness.db.step();
        harness.fs.clear_observer();
        assert!(!harness.db.health().is_healthy(), "{failure:?}, SEED={seed}: it has gone on");
        harness.check_resumed();
    });
}

#[test]
fn a_value_store_that_fails_while_the_store_resumes_is_got_over() {
    each_failure(|failure, seed| {
        for call in ["relocate", "edit", "apply", "reclaim", "sync"] {
            for blow in [FailureMode::Fail, FailureMode::Panic] {
                let harness = Harness::failed(failure, seed, false);
                harness.shelf.fuse.set(call, blow);
                check_second_fault(harness, seed, &format!("{failure:?}, then {blow:?} in {call}"));
            }
        }
    });
}
