//! Databases that share resources: what they use together, what stays their own, and what closing gives back.

mod closing;
mod followed;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, Fs, MemFs, OpKind};
use lsm_core::hooks::{
    CompactionFilter, CompactionFilterFactory, Decision, Entry, Event, EventListener, Job,
};
use siltstone::backup::BackupEngine;
use siltstone::secondary::Secondary;
use siltstone::{
    Db, ErrorKind, Hooks, Options, Partition, PartitionOptions, ResourceOptions, ResourceUsage,
    Resources, Result,
};
use testkit::Rng;

use crate::clock::ManualClock;
use crate::store::{settle, stepped};

fn resources(options: ResourceOptions) -> Resources {
    Resources::new(options.flush_threads(2).compaction_threads(1)).unwrap()
}

fn open(resources: &Resources) -> Db {
    open_in(Arc::new(MemFs::new()), resources)
}

fn open_in(fs: Arc<dyn Fs>, resources: &Resources) -> Db {
    Db::builder("/db").fs(fs).resources(resources).open().unwrap()
}

fn default_of(db: &Db) -> Partition {
    db.partition("default").unwrap()
}

/// Puts so many values of a KiB, which name their `owner`.
fn fill(partition: &Partition, owner: u8, count: u32) {
    for key in 0..count {
        partition.put(key.to_be_bytes(), [owner; 1000]).unwrap();
    }
}

fn assert_filled(partition: &Partition, owner: u8, count: u32) {
    for key in 0..count {
        let value = partition.get(key.to_be_bytes()).unwrap().unwrap();
        assert_eq!(value[..], [owner; 1000], "key {key} of {owner}");
    }
}

/// The usage without options and memory that is kept free.
fn used(resources: &Resources) -> [u64; 4] {
    let ResourceUsage {
        databases, active_memtable_bytes, sealed_memtable_bytes, open_files, ..
    } = resources.usage();
    [databases, active_memtable_bytes, sealed_memtable_bytes, open_files]
}

#[test]
fn many_databases_take_the_threads_the_cache_and_the_files_of_one() {
    let options = ResourceOptions::new().cache_bytes(8 << 20).write_buffer_bytes(256 << 10);
    let resources = resources(options.open_files_max(10));
    let databases: Vec<Db> = (0..30).map(|_| open(&resources)).collect();
    for _ in 0..3 {
        for (owner, db) in databases.iter().enumerate() {
            fill(&default_of(db), owner as u8, 40);
            db.flush().unwrap();
        }
    }
    databases.iter().for_each(|db| db.wait_idle().unwrap());
    // All of them have files of the same numbers, with the same keys.
    for _ in 0..2 {
        for (owner, db) in databases.iter().enumerate() {
            assert_filled(&default_of(db), owner as u8, 40);
        }
    }
    let usage = resources.usage();
    assert_eq!((usage.databases, usage.threads), (30, 5));
    assert!(usage.open_files <= usage.open_files_max, "{usage:?}");
    let text = usage.to_string();
    assert!(text.starts_with("databases: 30, 5 threads\nblock cache: "), "{text}");
    assert!(text.contains(" of 10 open\n") && text.ends_with("writes: no limit"), "{text}");
    assert!(usage.cache_bytes > 1 << 20 && usage.cache_bytes <= usage.cache_bytes_max, "{usage:?}");
    let parts: u64 = databases.iter().map(|db| db.stats().cache_bytes).sum();
    assert!(parts <= usage.cache_bytes && databases[3].stats().cache_hits > 0);
    // One of them gives back what it has.
    let of_first = databases[0].stats().cache_bytes;
    assert!(of_first > 0);
    let mut databases = databases.into_iter();
    let first = databases.next().unwrap();
    let handle = default_of(&first);
    first.close().unwrap();
    assert_eq!(handle.get("k").unwrap_err().kind(), ErrorKind::Closed);
    let left: u64 = databases.as_slice().iter().map(|db| db.stats().cache_bytes).sum();
    assert_eq!(left, parts - of_first);
    databases.for_each(|db| db.close().unwrap());
    drop(handle);
    assert_eq!(used(&resources), [0; 4]);
}

#[test]
fn the_database_with_most_memory_is_flushed_though_nobody_writes_to_it() {
    let resources = resources(ResourceOptions::new().write_buffer_bytes(1 << 20));
    let large = open(&resources);
    let small = open(&resources);
    fill(&default_of(&large), 1, 600);
    let mut count = 0;
    while large.stats().flush_count == 0 {
        count += 1;
        small.partition("default").unwrap().put(count.to_string(), [2; 1000]).unwrap();
        assert!(count < 100_000, "{:?}", resources.usage());
    }
    large.wait_idle().unwrap();
    // If the flush begins late, the small one has as much meanwhile, and is asked too.
    assert!(small.stats().flush_count == 0 || count > 900, "{count}");
    assert_filled(&default_of(&large), 1, 600);
    assert!(resources.usage().active_memtable_bytes < 1 << 20);
}

/// The same in steps: no thread is needed, and each step of the large database may do it.
#[test]
fn a_stepped_database_is_asked_as_well() {
    let resources = resources(ResourceOptions::new().write_buffer_bytes(1 << 20));
    let databases = [1, 2].map(|seed| {
        let builder = stepped(Arc::new(MemFs::new()), "/db", seed);
        builder.resources(&resources).open().unwrap()
    });
    fill(&default_of(&databases[0]), 1, 600);
    fill(&default_of(&databases[1]), 2, 500);
    databases.iter().for_each(settle);
    assert_eq!(databases.each_ref().map(|db| db.stats().flush_count), [1, 0]);
}

#[test]
fn a_full_disk_of_one_database_stops_no_other() {
    let options = ResourceOptions::new().write_buffer_bytes(256 << 10);
    let resources = resources(options);
    let faults = FaultFs::over_mem(MemFs::new());
    let small = Options::new().write_buffer_bytes(64 << 10);
    let full = Db::builder("/db").fs(Arc::new(faults.clone())).resources(&resources);
    let full = full.options(small).open().unwrap();
    let p = default_of(&full);
    let tables = FaultAt::Nth { kind: OpKind::Append, suffix: ".sst".to_owned(), nth: 0 };
    faults.add_rule(FaultRule::sticky(tables, FaultAction::Enospc));
    // Its own writers get the error in the end.
    let refused = (0..u32::MAX).find_map(|key| p.put(key.to_be_bytes(), [7; 1000]).err());
    assert!(refused.is_some());
    let stuck = resources.usage().sealed_memtable_bytes;
    assert!(stuck >= 128 << 10, "{stuck}");
    let other = open(&resources);
    fill(&default_of(&other), 2, 3000);
    other.flush().unwrap();
    other.wait_idle().unwrap();
    assert_filled(&default_of(&other), 2, 3000);
    // The disk has space again.
    faults.heal();
    full.wait_idle().unwrap();
    assert!(resources.usage().sealed_memtable_bytes < stuck);
    assert_eq!(p.get(0_u32.to_be_bytes()).unwrap().unwrap()[..], [7; 1000]);
}

/// A filter whose jobs panic.
struct Panics;

impl CompactionFilter for Panics {
    fn decide(&mut self, _: Entry<'_>) -> Result<Decision> {
        panic!("the hook of one database");
    }
}

impl CompactionFilterFactory for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn start(&self, _: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        Ok(Box::new(Panics))
    }
}

/// A listener that panics at each event.
struct PanicsAtEvents;

impl EventListener for PanicsAtEvents {
    fn on_event(&self, _: &Event) {
        panic!("the listener of one database");
    }
}

#[test]
fn panics_of_one_database_end_no_thread_of_others() {
    let options = ResourceOptions::new().write_buffer_bytes(64 << 10);
    let resources = Resources::new(options.flush_threads(1).compaction_threads(1)).unwrap();
    let builder = Db::builder("/db").fs(Arc::new(MemFs::new())).resources(&resources);
    let panicking = builder.listener(Arc::new(PanicsAtEvents)).open().unwrap();
    let hooks = Hooks { filters: vec![Arc::new(Panics)], ..Hooks::default() };
    let p = panicking.partition_with("p", PartitionOptions::new().hooks(hooks)).unwrap();
    while panicking.stats().background_error.is_none() {
        // Refused once too much memory waits for the flush.
        let _ = p.put("key", [0; 1000]);
    }
    let other = open(&resources);
    fill(&default_of(&other), 1, 1000);
    other.wait_idle().unwrap();
    assert!(other.stats().flush_count > 0);
    assert_filled(&default_of(&other), 1, 1000);
}

#[test]
fn resources_and_databases_go_in_any_order() {
    for seed in 0..20 {
        let mut random = Rng::new(seed);
        let resources = resources(ResourceOptions::new().write_buffer_bytes(16 << 10));
        let mut databases: Vec<Db> = (0..4).map(|_| open(&resources)).collect();
        for db in &databases {
            fill(&default_of(db), 1, 20);
        }
        let mut resources = Some(resources);
        let mut closed = Vec::new();
        let turn = random.next_u64() % 5;
        for round in 0.. {
            if round == turn {
                resources = None;
            }
            if databases.is_empty() {
                break;
            }
            let db = databases.remove((random.next_u64() % databases.len() as u64) as usize);
            let held = default_of(&db);
            if random.next_u64().is_multiple_of(2) {
                db.flush().unwrap();
                assert_filled(&held, 1, 20);
                db.close().unwrap();
                // Nothing reads it any more, but handles stay.
                closed.push(held);
            } else {
                drop(db);
                assert_filled(&held, 1, 20);
            }
            databases.iter().for_each(|db| assert_filled(&default_of(db), 1, 20));
        }
        if let Some(resources) = resources {
            assert_eq!(used(&resources), [0; 4], "seed {seed}");
        }
    }
}

#[test]
fn readers_share_the_cache_and_the_files() {
    let resources = resources(ResourceOptions::new().cache_bytes(8 << 20).open_files_max(3));
    let fs = Arc::new(MemFs::new());
    let db = open_in(fs.clone(), &resources);
    for _ in 0..6 {
        fill(&default_of(&db), 1, 60);
        db.flush().unwrap();
    }
    let builder = Secondary::builder("/db").fs(fs.clone()).resources(&resources);
    let secondary = builder.open().unwrap();
    let beside = Db::builder("/db").fs(fs).beside_writer(true).resources(&resources);
    let beside = beside.open().unwrap();
    let before = resources.usage().cache_bytes;
    for key in 0..60_u32 {
        let key = key.to_be_bytes();
        assert!(secondary.partition("default").unwrap().get(key).unwrap().is_some());
        assert!(beside.open_partition("default").unwrap().contains(key).unwrap());
    }
    let usage = resources.usage();
    assert!(usage.cache_bytes > before && usage.open_files <= 3, "{usage:?}");
    // They write nothing, so that no thread works for them.
    assert_eq!(usage.databases, 1);
    drop(secondary);
    beside.close().unwrap();
    db.close().unwrap();
    assert_eq!(used(&resources), [0; 4]);
}

#[test]
fn a_restored_database_uses_the_shared_cache() {
    let resources = resources(ResourceOptions::new().cache_bytes(8 << 20));
    let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
    let backups = BackupEngine::open("/backups").fs(fs.clone());
    let db = open_in(fs.clone(), &resources);
    fill(&default_of(&db), 1, 100);
    backups.create_backup(&db).unwrap();
    backups.restore_latest("/restored").unwrap();
    let restored = Db::builder("/restored").fs(fs).resources(&resources).open().unwrap();
    // Into a table with a number that is far from those of the backup.
    fill(&default_of(&restored), 2, 200);
    restored.flush().unwrap();
    default_of(&restored).compact(..).unwrap();
    let before = restored.stats();
    for _ in 0..2 {
        assert_filled(&default_of(&restored), 2, 200);
    }
    let after = restored.stats();
    assert!(after.cache_hits - before.cache_hits >= 200, "{after:?}");
    assert!(after.cache_bytes >= 200 << 10, "{after:?}");
}

/// A clock that each look moves on.
struct Ticking(AtomicU64);

impl siltstone::clock::Clock for Ticking {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(250, Ordering::Relaxed))
    }
}

#[test]
fn flushes_of_all_databases_share_a_rate() {
    let options = ResourceOptions::new().background_bytes_per_second(64 << 10);
    let clock = Arc::new(Ticking(AtomicU64::new(1_000_000)));
    let resources = Resources::with_clock(options, clock).unwrap();
    let databases = [open(&resources), open(&resources)];
    for db in &databases {
        fill(&default_of(db), 1, 300);
    }
    databases.iter().for_each(|db| db.flush().unwrap());
    let waited: Duration = databases.iter().map(|db| db.stats().background_waited).sum();
    // Each has less than 512 KiB, and the last piece is within the limit only later.
    assert!(waited >= Duration::from_secs(4), "{waited:?}");
}

#[test]
fn the_rate_of_one_database_keeps_no_thread_from_others() {
    let options = ResourceOptions::new().flush_threads(1).compaction_threads(1);
    let resources = Resources::new(options).unwrap();
    let options = Options::new().background_bytes_per_second(64 << 10);
    // Its clock stands still, so that all that it writes is beyond its rate for ever.
    let limited = Db::builder("/db").fs(Arc::new(MemFs::new())).resources(&resources);
    let limited = limited.clock(Arc::new(ManualClock::default()));
    let limited = limited.options(options.write_buffer_bytes(256 << 10)).open().unwrap();
    let other = open(&resources);
    for db in [&limited, &other] {
        let p = db.partition_with("p", PartitionOptions::new().level0_tables(2)).unwrap();
        // Each is one table: more of them would delay writers, for whom compactions run.
        for _ in 0..4 {
            fill(&p, 1, 200);
            db.flush().unwrap();
        }
    }
    other.wait_idle().unwrap();
    assert!(other.stats().compaction_count > 0);
    assert_eq!(limited.stats().compaction_count, 0);
    // Once writers are delayed, compactions do not rest.
    while limited.stats().compaction_count == 0 {
        fill(&limited.partition("p").unwrap(), 1, 500);
        limited.flush().unwrap();
    }
    limited.set_background_bytes_per_second(0).unwrap();
    limited.wait_idle().unwrap();
    assert!(limited.stats().compaction_count > 0);
}

/// A filter that writes to another database as long as that takes it.
struct WritesTo(Partition, Arc<AtomicBool>);

impl CompactionFilter for WritesTo {
    fn decide(&mut self, _: Entry<'_>) -> Result<Decision> {
        while !self.1.load(Ordering::Relaxed) {
            if let Err(error) = self.0.put("key", [0; 1000]) {
                self.1.store(error.kind() == ErrorKind::WouldStall, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(Decision::Keep)
    }
}

impl CompactionFilterFactory for WritesTo {
    fn name(&self) -> &'static str {
        "writes-to"
    }

    fn start(&self, _: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        Ok(Box::new(WritesTo(self.0.clone(), self.1.clone())))
    }
}

/// Calls `step` on a partition with this filter until a write of the filter was refused. Returns the database and that of
/// the filter, at rest.
fn until_refused(step: impl Fn(&Partition)) -> [Db; 2] {
    let options = ResourceOptions::new().write_buffer_bytes(64 << 10);
    let resources = Resources::new(options.flush_threads(1).compaction_threads(1)).unwrap();
    let target = open(&resources);
    let was_refused = Arc::new(AtomicBool::new(false));
    let filter = WritesTo(default_of(&target), was_refused.clone());
    let hooks = Hooks { filters: vec![Arc::new(filter)], ..Hooks::default() };
    let db = open(&resources);
    let p = db.partition_with("p", PartitionOptions::new().hooks(hooks)).unwrap();
    while !was_refused.load(Ordering::Relaxed) {
        step(&p);
    }
    let both = [db, target];
    both.iter().for_each(|db| db.wait_idle().unwrap());
    both
}

#[test]
fn a_filter_that_writes_to_another_database_waits_for_no_thread() {
    // The flush needs the only thread that can flush what its filter writes.
    let both = until_refused(|p| drop(p.put("key", [0; 1000])));
    assert!(both.iter().all(|db| db.stats().flush_count > 0));
}

#[test]
fn a_filter_in_a_flush_of_the_caller_waits_for_no_thread() {
    // The thread that could flush the target may wait for the end of this flush.
    until_refused(|p| {
        let _ = p.put("key", [0; 1000]);
        let _ = p.flush();
    });
}

#[test]
fn a_change_of_the_rate_and_a_close_end_the_waits_for_it() {
    let options = ResourceOptions::new().background_bytes_per_second(64 << 10);
    // The clock stands still, so that nothing else ends them.
    let clock = Arc::new(ManualClock::default());
    let resources = Resources::with_clock(options, clock).unwrap();
    let databases = [open(&resources), open(&resources)];
    let flushes = databases.each_ref().map(|db| {
        fill(&default_of(db), 1, 1024);
        let db = db.clone();
        std::thread::spawn(move || db.flush())
    });
    let [closed, other] = databases;
    closed.close().unwrap();
    while other.stats().flush_count == 0 {
        resources.set_background_bytes_per_second(0).unwrap();
    }
    for flush in flushes {
        if let Err(error) = flush.join().unwrap() {
            assert_eq!(error.kind(), ErrorKind::Closed);
        }
    }
    let refused = resources.set_background_bytes_per_second(1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn options_out_of_their_range_are_refused() {
    let options = ResourceOptions::new;
    for (options, name) in [
        (options().write_buffer_bytes(100), "write_buffer_bytes is 100"),
        (options().flush_threads(0), "flush_threads is 0"),
        (options().compaction_threads(0), "compaction_threads is 0"),
        (options().open_files_max(0), "open_files_max is 0"),
        (options().background_bytes_per_second(9), "background_bytes_per_second is 9"),
    ] {
        let refused = Resources::new(options).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains(name), "{refused}");
    }
}
