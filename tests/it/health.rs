//! Failures: their meaning, the reports of `Db::health`, the writers that wait, the listeners that
//! are notified.
//!
//! The table of failures is tested row by row: each cell is made to happen, and the writers and the
//! recovery of the store must behave as the table states.

mod listeners;
mod stall;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind};
use lsm_core::hooks::{CompactionFilter, CompactionFilterFactory, Job};
use lsm_core::internals::rule;
use siltstone::{
    BackgroundMode, Class, Compression, Db, Durability, ErrorKind, Event, EventListener, Hooks,
    Options, Partition, PartitionOptions, PrefixDropFilter, Reason, Resume, Severity,
};
use testkit::Rng;

use crate::clock::ManualClock;
use crate::sim::is_table;
use crate::store::stepped;
use crate::test_value_store::{FailureMode, Fuse, TestValueStore};

const DIR: &str = "/db";

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Event>>>);

impl Heard {
    fn any(&self, wanted: impl Fn(&Event) -> bool) -> bool {
        self.0.lock().unwrap().iter().any(wanted)
    }
}

impl EventListener for Heard {
    fn on_event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

struct Store {
    mem: MemFs,
    fs: FaultFs,
    clock: ManualClock,
    heard: Heard,
    /// The hooks of the partition, if it has any.
    fuse: Fuse,
    db: Db,
    p: Partition,
}

/// Fails to start.
struct Starter(Fuse);

impl CompactionFilterFactory for Starter {
    fn name(&self) -> &'static str {
        "starter"
    }

    fn start(&self, job: &Job<'_>) -> siltstone::Result<Box<dyn CompactionFilter>> {
        self.0.pass("start")?;
        PrefixDropFilter::new(["no such key"]).start(job)
    }
}

fn small() -> Options {
    let options = Options::new().cache_bytes(64 << 10).write_buffer_bytes(16 << 10);
    options.wal_segment_bytes(8 << 10).wal_bytes_max(64 << 10)
}

fn store(mode: BackgroundMode) -> Store {
    store_with(mode, &TestValueStore::default(), Hooks::new())
}

/// A store whose partition has a compaction filter and a value store.
fn hooked_store() -> Store {
    let shelf = TestValueStore::default();
    let hooks = Hooks::new().filter(Arc::new(Starter(shelf.fuse.clone())));
    store_with(BackgroundMode::Stepped, &shelf, hooks.value_store(Arc::new(shelf.clone())))
}

fn store_with(mode: BackgroundMode, shelf: &TestValueStore, hooks: Hooks) -> Store {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let clock = ManualClock::default();
    let heard = Heard::default();
    let mut random = Rng::new(1);
    let db = Db::builder(Path::new(DIR))
        .options(small())
        .fs(Arc::new(fs.clone()))
        .clock(Arc::new(clock.clone()))
        .background(mode)
        .random(move || random.next_u64())
        .listener(Arc::new(heard.clone()))
        .open()
        .unwrap();
    let options = PartitionOptions::new().level0_tables(2).block_bytes(512);
    let p = db.partition_with("p", options.hooks(hooks)).unwrap();
    Store { mem, fs, clock, heard, fuse: shelf.fuse.clone(), db, p }
}

impl Store {
    fn break_at(&self, kind: OpKind, suffix: &str, action: FaultAction) {
        let at = FaultAt::Nth { kind, suffix: suffix.to_owned(), nth: 0 };
        self.fs.add_rule(FaultRule::sticky(at, action));
    }

    /// Writes until a memtable is sealed.
    fn seal(&self) {
        while self.db.stats().partitions.iter().all(|p| p.sealed_memtable_count == 0) {
            self.p.put("filler", [7; 500]).unwrap();
        }
    }

    /// Steps until a step fails.
    fn fail(&self) -> ErrorKind {
        for _ in 0..100 {
            if let Err(error) = self.db.step() {
                return error.kind();
            }
        }
        panic!("nothing failed");
    }

    /// Makes background work due that will fail.
    fn prepare(&self, reason: Reason) {
        match reason {
            Reason::WalAppend | Reason::WalSync => {}
            Reason::ReserveSegment => {
                while self.db.stats().wal_segment_count < 2 {
                    self.p.put("filler", [7; 500]).unwrap();
                }
                // Synced: the reserve is what the log needs next.
                self.db.wait_durable(self.db.visible_seq()).unwrap();
            }
            Reason::Flush => self.seal(),
            Reason::Manifest => {
                self.seal();
                // Synced, although the flush does not need it, so that the log needs an edit next
                // as well.
                self.db.wait_durable(self.db.visible_seq()).unwrap();
            }
            _ => {
                // One table for a reader: no compaction meets its damage. Its entries are too long
                // for a flush to put them into the cache, where a reader would not meet the damage.
                let is_read = reason == Reason::Read;
                let value = vec![7; if is_read { 600 } else { 100 }];
                for round in 0..if is_read { 1 } else { 3_u8 } {
                    self.p.put("a", &value).unwrap();
                    self.p.put([b'b', round], &value).unwrap();
                    self.db.flush().unwrap();
                }
            }
        }
    }

    fn first_table(&self) -> std::path::PathBuf {
        self.mem.paths().into_iter().find(|path| is_table(path)).unwrap()
    }

    /// Makes the storage, or a hook, fail in this way from now on.
    fn inject(&self, reason: Reason, class: Class) {
        use FaultAction::{Eio, Enospc, Panic, SyncReverted};
        let suffix = match reason {
            Reason::WalAppend | Reason::WalSync | Reason::ReserveSegment => ".wal",
            Reason::Manifest => ".manifest",
            _ => ".sst",
        };
        match (reason, class) {
            (Reason::WalSync, Class::Hook) => self.fuse.set("sync", FailureMode::Panic),
            (Reason::Obsolete, Class::Hook) => self.fuse.set("reclaim", FailureMode::Panic),
            (Reason::Read, Class::Hook) => self.fuse.set("read", FailureMode::Panic),
            (_, Class::Hook) => self.fuse.set("start", FailureMode::Panic),
            (Reason::WalSync, Class::Panic) => self.break_at(OpKind::Sync, suffix, Panic),
            (Reason::Obsolete, Class::Panic) => self.break_at(OpKind::Delete, suffix, Panic),
            (Reason::Obsolete, _) => self.break_at(OpKind::Delete, suffix, Eio),
            (_, Class::Panic) => self.break_at(OpKind::Create, suffix, Panic),
            (_, Class::Corruption) => self.mem.corrupt(&self.first_table(), 20, 1).unwrap(),
            (Reason::Read, _) => self.break_at(OpKind::Read, suffix, Eio),
            (_, Class::FailedSync) => self.break_at(OpKind::Sync, suffix, SyncReverted),
            (Reason::ReserveSegment, Class::NoSpace) => {
                self.break_at(OpKind::Preallocate, suffix, Enospc);
            }
            (Reason::ReserveSegment, _) => self.break_at(OpKind::Create, suffix, Eio),
            (_, Class::NoSpace) => self.break_at(OpKind::Append, suffix, Enospc),
            _ => self.break_at(OpKind::Append, suffix, Eio),
        }
    }

    fn heal(&self) {
        self.fs.heal();
        self.fuse.clear();
    }
}

fn check_cell(reason: Reason, class: Class, severity: Severity, resume: Resume) {
    let store = match class {
        Class::Hook => hooked_store(),
        _ => store(BackgroundMode::Stepped),
    };
    store.p.put("k", "v").unwrap();
    store.prepare(reason);
    assert!(store.db.health().is_healthy(), "{}", store.db.health());
    store.inject(reason, class);
    let put = |durability| store.db.batch().put(&store.p, "k", "w").commit(durability);
    match (reason, resume) {
        (Reason::WalAppend, Resume::NextCall) => assert!(put(Durability::Os).is_err()),
        (Reason::Read, Resume::NextCall) => assert!(store.p.get("a").is_err()),
        (_, Resume::NextCall) => panic!("no call of this kind is reported"),
        (_, Resume::Rewrite) => {
            assert_eq!(put(Durability::Sync).unwrap_err().kind(), ErrorKind::ReadOnly);
            let _ = store.db.step();
            assert!(store.heard.any(|event: &Event| matches!(event, Event::BackgroundError(_))));
        }
        (_, Resume::Retry) => {
            store.fail();
            store.clock.pass(5);
            let health = store.db.health();
            // A manifest fails for flushes and for the log.
            let failing = if reason == Reason::Manifest { 2 } else { 1 };
            assert_eq!(health.background_errors.len(), failing, "{class:?}: {health}");
            for failure in &health.background_errors {
                assert_eq!((failure.reason, failure.class), (reason, class), "{failure}");
                assert_eq!((failure.severity, failure.resume), (severity, resume));
                assert_eq!(failure.since, Duration::from_secs(5));
            }
            assert!(store.heard.any(|event| matches!(event, Event::BackgroundError(_))));
        }
        (_, _) => {
            while store.db.step().unwrap() {}
            assert!(store.db.health().damage.is_some(), "{}", store.db.health());
            assert!(store.heard.any(|event| matches!(event, Event::Corruption(_))));
        }
    }
    let is_reported = store.db.health().is_healthy() == (resume == Resume::NextCall);
    assert!(is_reported, "{}", store.db.health());
    check_writers(&store, reason, severity);
    store.heal();
    if resume != Resume::LeftAlone {
        while store.db.step().unwrap() {}
        assert!(store.db.health().is_healthy(), "{}", store.db.health());
    }
    let resumed = store.heard.any(|event| matches!(event, Event::Resumed));
    assert_eq!(resumed, resume == Resume::Rewrite);
    put(Durability::Sync).unwrap();
    assert_eq!(store.p.get("k").unwrap().as_deref(), Some(&b"w"[..]));
}

/// The effect of a lasting failure on writers.
fn check_writers(store: &Store, reason: Reason, severity: Severity) {
    match severity {
        // An append that keeps failing fails each commit, and nothing else.
        Severity::Soft if reason == Reason::WalAppend => store.fs.heal(),
        Severity::Soft => {}
        Severity::ReadOnly => {
            assert_eq!(store.p.put("k", "w").unwrap_err().kind(), ErrorKind::ReadOnly);
            assert!(store.db.health().read_only.is_some());
            assert!(store.p.get("k").unwrap().is_some());
            return;
        }
        Severity::Hard => {
            store.p.put("k", "w").unwrap();
            let mut puts = (0..10_000).map(|_| store.p.put("filler", [7; 500]));
            let stopped = puts.find_map(Result::err).expect("memory is full some time");
            let stopped = stopped.to_string();
            if reason == Reason::Manifest && !stopped.contains("writes are stopped") {
                // The next segment of the log could not be listed.
                assert!(stopped.contains(".manifest"), "{stopped}");
            } else {
                assert!(stopped.contains("memtables that wait for a flush"), "{stopped}");
            }
            return;
        }
        _ => panic!("a severity without a check"),
    }
    for _ in 0..10 {
        store.p.put("k", "w").unwrap();
    }
}

#[test]
fn the_store_behaves_as_every_row_of_the_table_states() {
    let mut cells = 0;
    for reason in Reason::ALL {
        for class in Class::ALL {
            let Some(rule) = rule(reason, class) else { continue };
            println!("{reason:?} {class:?}: {rule:?}");
            check_cell(reason, class, rule.severity, rule.resume);
            cells += 1;
        }
    }
    assert_eq!(cells, 29, "each of them was made to happen");
}

#[test]
fn no_writer_waits_after_the_reason_is_gone() {
    // In steps: the writer itself does the pending work, and nothing else.
    let stepped = store(BackgroundMode::Stepped);
    for _ in 0..2_000 {
        stepped.p.put("k", [7; 500]).unwrap();
    }
    assert_eq!(stepped.db.stats().stalled, Duration::ZERO);
    // With threads: a stopped writer continues when a flush works again, although no clock moves
    // and nothing else is written.
    let threads = store(BackgroundMode::Threads);
    threads.break_at(OpKind::Append, ".sst", FaultAction::Eio);
    let mut refused = None;
    for _ in 0..10_000 {
        refused = threads.p.put("k", [7; 500]).err();
        if refused.is_some() {
            break;
        }
    }
    assert!(refused.unwrap().to_string().contains("memtables"));
    threads.fs.heal();
    threads.db.flush().unwrap();
    threads.db.wait_idle().unwrap();
    for _ in 0..2_000 {
        threads.p.put("k", [7; 500]).unwrap();
    }
    threads.db.wait_idle().unwrap();
    assert!(threads.db.health().stalls.is_empty(), "{}", threads.db.health());
    assert_eq!(threads.db.stats().stalled, Duration::ZERO, "by a clock that stands still");
}

#[test]
fn memory_stays_within_its_budget_under_load() {
    let store = store(BackgroundMode::Stepped);
    let q = store.db.partition("q").unwrap();
    let mut rng = Rng::new(5);
    let mut most = 0;
    for round in 0..4_000_u32 {
        let key = (rng.below(500) as u32).to_be_bytes();
        let partition = if round % 3 == 0 { &q } else { &store.p };
        partition.put(key, rng.bytes(400)).unwrap();
        partition.get((rng.below(500) as u32).to_be_bytes()).unwrap();
        let stats = store.db.stats();
        most = most.max(stats.memtable_bytes + stats.cache_bytes);
        // A batch, and the Bloom filters of such small memtables.
        let filters: u64 =
            1 + stats.partitions.iter().map(|p| 1 + p.sealed_memtable_count).sum::<u64>();
        let most_allowed = stats.memory_budget_bytes + 1000 + filters * (4 << 10);
        assert!(stats.memory_used_bytes <= most_allowed, "{stats:?}");
    }
    // It was a real load: it filled the cache and more than one memtable.
    assert!(most > (64 << 10) + 2 * (16 << 10), "{most}");
    let budget = store.db.stats();
    assert_eq!(budget.memory_budget_bytes, (3 * (16 << 10)) + (64 << 10) + budget.open_table_bytes);
}

#[test]
fn a_thread_that_read_once_and_sleeps_pins_nothing() {
    let store = store(BackgroundMode::Threads);
    store.prepare(Reason::Compaction);
    let (wake, asleep) = mpsc::channel::<()>();
    let (tell, read) = mpsc::channel();
    let p = store.p.clone();
    let sleeper = std::thread::spawn(move || {
        let got = p.get("a").unwrap().map(|value| value.len());
        let first = p.iter().next().map(|entry| entry.unwrap().0.len());
        tell.send((got, first)).unwrap();
        let _ = asleep.recv();
    });
    assert_eq!(read.recv().unwrap(), (Some(100), Some(1)));
    let tables =
        || -> Vec<_> { store.mem.paths().into_iter().filter(|path| is_table(path)).collect() };
    let before = tables();
    store.p.put("a", [9; 100]).unwrap();
    store.p.compact(..).unwrap();
    store.db.wait_idle().unwrap();
    let after = tables();
    assert!(!after.iter().any(|table| before.contains(table)), "{before:?} {after:?}");
    assert_eq!(store.db.health().pinned_obsolete_bytes, 0);
    // An iterator does pin, and the figures show it.
    let held = store.p.iter();
    store.p.put("a", [8; 100]).unwrap();
    store.p.compact(..).unwrap();
    store.db.wait_idle().unwrap();
    assert!(store.db.health().pinned_obsolete_bytes > 0);
    drop(held);
    store.db.wait_idle().unwrap();
    assert_eq!(store.db.health().pinned_obsolete_bytes, 0);
    drop(wake);
    sleeper.join().unwrap();
}

/// A thousand keys, each with its number in its value.
fn check_thousand(p: &Partition) {
    for n in 0..1000_u32 {
        assert_eq!(p.get(n.to_be_bytes()).unwrap().as_deref(), Some(&[n as u8; 4096][..]), "{n}");
    }
}

/// The system reports once a page that it could not write. The next sync of the table finds no
/// error.
#[test]
fn a_compaction_that_the_device_fails_on_the_way_loses_nothing() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = stepped(Arc::new(fs.clone()), DIR, 1).open().unwrap();
    let options = PartitionOptions::new().compression(Compression::None).level0_tables(8);
    let p = db.partition_with("p", options).unwrap();
    for half in [0_u32, 1] {
        for n in (half..1000).step_by(2) {
            p.put(n.to_be_bytes(), [n as u8; 4096]).unwrap();
        }
        p.flush().unwrap();
    }
    let second = FaultAt::Nth { kind: OpKind::BeginNextSync, suffix: String::new(), nth: 1 };
    fs.add_rule(FaultRule::once(second, FaultAction::Eio));
    assert_eq!(p.compact(..).unwrap_err().kind(), ErrorKind::Io);
    check_thousand(&p);
    p.compact(..).unwrap();
    check_thousand(&p);
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

#[test]
fn health_knows_the_age_of_the_oldest_snapshot() {
    let store = store(BackgroundMode::Stepped);
    store.p.put("k", "v").unwrap();
    assert_eq!(store.db.health().oldest_snapshot, None);
    let old = store.db.snapshot();
    store.clock.pass(60);
    store.p.put("k", "w").unwrap();
    let new = store.db.snapshot();
    store.clock.pass(5);
    assert_eq!(store.db.health().oldest_snapshot, Some(Duration::from_secs(65)));
    drop(old);
    assert_eq!(store.db.health().oldest_snapshot, Some(Duration::from_secs(5)));
    drop(new);
    assert_eq!(store.db.health().oldest_snapshot, None);
}
