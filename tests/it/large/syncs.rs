//! Failed syncs of chunk files: the values in doubt are written again, and all partitions continue.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, FsOp, OpKind};

use super::*;

/// Failures after which the bytes can still be read.
const ACTIONS: [FaultAction; 2] = [FaultAction::Eio, FaultAction::SyncLost];

/// More than a writer appends before it notifies its store.
static LONG: [u8; 5 << 20] = [4; 5 << 20];

/// A database with large values in `p` and a partition `q` without them.
struct Pair {
    mem: MemFs,
    fs: FaultFs,
    clock: ManualClock,
    db: Db,
    p: Partition,
    q: Partition,
}

impl Pair {
    fn new(options: PartitionOptions) -> Pair {
        let mem = MemFs::new();
        let fs = FaultFs::over_mem(mem.clone());
        let clock = ManualClock::default();
        // By default it is what the process may have open, and such a sync comes sooner with few.
        let engine = small_buffers().open_files_max(1024);
        let builder = stepped(Arc::new(fs.clone()), "/db", 7).clock(Arc::new(clock.clone()));
        let db = builder.options(engine).open().unwrap();
        let p = db.partition_with("p", options).unwrap();
        let q = db.partition("q").unwrap();
        Pair { mem, fs, clock, db, p, q }
    }

    /// Breaks the next sync of a chunk file.
    fn break_sync(&self, action: FaultAction) {
        let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".chunk".to_owned(), nth: 0 };
        self.fs.add_rule(FaultRule::once(at, action));
    }

    /// Streams a value, which gets a file of its own.
    fn stream(&self, n: u8) -> Result<()> {
        let mut writer = self.p.put_stream([n], None)?;
        writer.write_all(&[n; 2000]).unwrap();
        writer.commit(Durability::Os).map(drop)
    }

    /// Puts values, and deletes every second of them.
    fn half_delete(&self) {
        for n in 0..20_u8 {
            self.p.put([n], vec![n; 1000]).unwrap();
        }
        self.p.flush().unwrap();
        for n in (0..20_u8).step_by(2) {
            self.p.delete([n]).unwrap();
        }
        self.p.flush().unwrap();
        self.db.wait_idle().unwrap();
    }

    /// Calls `call` before the next operation of this kind on a table.
    fn call_once(&self, kind: OpKind, call: fn(&Partition)) {
        let p = Mutex::new(Some(self.p.clone()));
        self.fs.set_observer(Arc::new(move |op: &FsOp| {
            let is_table = op.path.extension().is_some_and(|ending| ending == "sst");
            let is_next = op.kind == kind && is_table;
            let once = if is_next { p.lock().unwrap().take() } else { None };
            once.iter().for_each(call);
        }));
    }

    /// Calls `check` with the state that each power cut would leave of the database now.
    fn each_crash(&self, check: impl Fn(&Db, CrashOutcome)) {
        let mut rng = Rng::new(4);
        for outcome in CrashOutcome::ALL {
            let left = self.mem.crash_clone(outcome, &mut || rng.next_u64());
            let db = open(&left);
            check(&db, outcome);
            assert!(db.verify(Default::default()).unwrap().is_sound(), "{outcome:?}");
        }
    }

    /// Checks that the current content outlives a power cut, and that its space comes back.
    fn check_durable(&self) {
        let large = content(&self.p);
        let small = content(&self.q);
        self.each_crash(|db, outcome| {
            assert!(content(&db.partition("p").unwrap()) == large, "{outcome:?}");
            assert!(content(&db.partition("q").unwrap()) == small, "{outcome:?}");
        });
        assert_eq!(value_store(&self.db).failure, None);
        for key in large.keys() {
            self.p.delete(key).unwrap();
        }
        rest(&self.db, &self.clock);
        assert_eq!(chunk_bytes(&self.mem, "/db"), 0, "{:?}", self.p.space());
    }
}

#[test]
fn after_a_failed_sync_values_are_written_again_and_all_partitions_go_on() {
    for action in ACTIONS {
        let it = Pair::new(options());
        for n in 0..10_u8 {
            it.p.put([n], vec![n; 1000]).unwrap();
            it.q.put([n], "small").unwrap();
        }
        it.p.put_with("synced", vec![50; 900], Durability::Sync).unwrap();
        for n in 10..20_u8 {
            it.p.put([n], vec![n; 1000]).unwrap();
        }
        it.break_sync(action);
        it.p.put_with([20], vec![20; 1000], Durability::Sync).unwrap_err();
        assert_eq!(it.q.put("small", "now").unwrap_err().kind(), ErrorKind::ReadOnly);
        assert!(value_store(&it.db).failure.is_some());
        let health = it.db.health();
        assert!(!health.is_healthy() && health.to_string().contains("in doubt: "), "{health}");
        it.db.wait_idle().unwrap();
        assert_eq!(it.db.stats().read_only_because, None);
        it.q.put_with("small", "later", Durability::Sync).unwrap();
        it.p.put_with([21], vec![21; 1000], Durability::Sync).unwrap();
        assert_eq!(content(&it.p).len(), 23);
        it.check_durable();
    }
}

#[test]
fn a_value_from_before_a_failed_sync_is_not_committed_after_it() {
    for action in ACTIONS {
        let it = Pair::new(options());
        let mut writer = it.p.put_stream("finished", None).unwrap();
        writer.write_all(&[1; 2000]).unwrap();
        let finished = writer.finish().unwrap();
        let mut streaming = it.p.put_stream("streaming", None).unwrap();
        streaming.write_all(&[2; 2000]).unwrap();
        let mut long = it.p.put_stream("long", None).unwrap();
        long.write_all(&LONG).unwrap();
        it.break_sync(action);
        it.p.put_with("synced", vec![3; 1000], Durability::Sync).unwrap_err();
        it.db.wait_idle().unwrap();
        let refused = it.db.batch().put_blob(finished).commit(Durability::Os).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
        long.write_all(&LONG).unwrap_err();
        drop(long);
        // The failed sync contained nothing of this write.
        streaming.commit(Durability::Sync).unwrap();
        it.q.put_with("after it", "x", Durability::Sync).unwrap();
        assert_eq!(it.p.get("finished").unwrap(), None);
        it.check_durable();
    }
}

/// Each stream has a file, and a limited number may wait for a sync: one more stream syncs them,
/// although no call requested that.
#[test]
fn an_automatic_sync_that_fails_is_reported() {
    for action in ACTIONS {
        let it = Pair::new(options());
        it.break_sync(action);
        let failed = (0..100).find(|n| it.stream(*n).is_err()).unwrap();
        assert!((50..100).contains(&failed), "{failed} streams");
        it.q.put_with("small", "x", Durability::Sync).unwrap_err();
        it.db.wait_idle().unwrap();
        it.q.put_with("small", "y", Durability::Sync).unwrap();
        assert_eq!(content(&it.p).len(), usize::from(failed));
        it.check_durable();
    }
}

#[test]
fn values_whose_move_was_not_synced_stay_where_they_were() {
    for action in ACTIONS {
        let it = Pair::new(options());
        it.half_delete();
        it.break_sync(action);
        // A value is put in the meantime, and is in the sync that the move makes.
        it.call_once(OpKind::Create, |p| {
            p.put("meanwhile", vec![99; 1000]).unwrap();
        });
        it.p.reclaim().unwrap_err();
        it.fs.clear_observer();
        it.db.wait_idle().unwrap();
        it.p.reclaim().unwrap();
        it.q.put_with("small", "x", Durability::Sync).unwrap();
        assert_eq!(content(&it.p).len(), 11);
        it.check_durable();
    }
}

/// The edit may be on the device, so the output of the job stays until the manifest takes edits
/// again.
#[test]
fn values_of_a_move_whose_edit_failed_go_with_the_next_edit() {
    let mut moves = 0;
    // Not every edit is the edit of a move.
    for nth in 0..6 {
        let it = Pair::new(options());
        it.half_delete();
        let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".manifest".to_owned(), nth };
        it.fs.add_rule(FaultRule::once(at, FaultAction::Eio));
        if it.p.reclaim().is_ok() {
            continue;
        }
        moves += u64::from(it.p.space().unwrap().pending_bytes > 0);
        it.each_crash(|db, outcome| {
            assert_eq!(content(&db.partition("p").unwrap()).len(), 10, "{outcome:?}");
        });
        it.p.reclaim().unwrap();
        it.db.wait_idle().unwrap();
        let space = it.p.space().unwrap();
        assert_eq!(space.pending_bytes, 0, "{space:?}");
        assert_eq!(content(&it.p).len(), 10);
        it.check_durable();
    }
    assert!(moves > 0, "an edit that failed was that of a move");
}

/// The edit may be on the device, as after an error.
#[test]
fn values_of_a_move_whose_edit_a_panic_interrupted_are_there_after_the_next_open() {
    let mut moves = 0;
    for nth in 0..6 {
        let it = Pair::new(options());
        it.half_delete();
        let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".manifest".to_owned(), nth };
        it.fs.add_rule(FaultRule::once(at, FaultAction::Panic));
        let reclaimed = catch_unwind(AssertUnwindSafe(|| it.p.reclaim()));
        if it.fs.fault_count() == 0 {
            reclaimed.unwrap().unwrap();
            it.fs.heal();
            continue;
        }
        moves += u64::from(it.p.space().unwrap().pending_bytes > 0);
        let mem = it.mem.clone();
        drop(it);
        let db = open(&mem);
        assert_eq!(content(&db.partition("p").unwrap()).len(), 10, "edit {nth}");
        assert!(db.verify(Default::default()).unwrap().is_sound());
    }
    assert!(moves > 0, "an edit that was interrupted was that of a move");
}

/// The sync of another thread fails, so that nothing is left to sync when the table is installed.
#[test]
fn values_whose_move_was_in_the_failed_sync_of_another_stay_where_they_were() {
    for action in ACTIONS {
        let it = Pair::new(options());
        it.half_delete();
        it.break_sync(action);
        it.call_once(OpKind::Sync, |p| {
            p.put_with("meanwhile", vec![99; 1000], Durability::Sync).unwrap_err();
        });
        it.p.reclaim().unwrap_err();
        it.fs.clear_observer();
        // No table names the moved values yet: a power cut may have lost them.
        it.each_crash(|db, outcome| {
            let mut left = content(&db.partition("p").unwrap());
            left.remove(&b"meanwhile"[..]);
            assert_eq!(left.len(), 10, "{outcome:?}");
        });
        it.db.wait_idle().unwrap();
        it.p.reclaim().unwrap();
        it.q.put_with("small", "x", Durability::Sync).unwrap();
        it.check_durable();
    }
}

/// The edit may be on the device although its sync failed: values that its tables name stay. Values
/// of an attempt that has no edit are deleted.
#[test]
fn an_attempt_to_go_on_that_fails_loses_no_value_and_keeps_no_space() {
    for action in ACTIONS {
        for (kind, suffix) in [(OpKind::Sync, ".manifest"), (OpKind::Create, ".wal")] {
            let it = Pair::new(options());
            for n in 0..10_u8 {
                it.p.put([n], vec![n; 1000]).unwrap();
            }
            it.break_sync(action);
            it.p.put_with([10], vec![10; 1000], Durability::Sync).unwrap_err();
            let before = it.fs.fault_count();
            let at = FaultAt::Nth { kind, suffix: suffix.to_owned(), nth: 0 };
            it.fs.add_rule(FaultRule::once(at, FaultAction::Eio));
            let has_failed = (0..100).any(|_| {
                let _ = it.db.step();
                it.fs.fault_count() > before
            });
            assert!(has_failed, "{kind:?} {suffix}");
            it.each_crash(|db, _| {
                content(&db.partition("p").unwrap());
            });
            it.clock.pass(10);
            it.db.wait_idle().unwrap();
            assert_eq!(content(&it.p).len(), 11);
            it.check_durable();
        }
    }
}

/// As after a crash, the next open decides whether the edit is there.
#[test]
fn a_database_that_is_dropped_between_attempts_loses_no_value() {
    for action in ACTIONS {
        let it = Pair::new(options());
        it.p.put("k", vec![1; 1000]).unwrap();
        it.break_sync(action);
        it.p.put_with("l", vec![2; 1000], Durability::Sync).unwrap_err();
        let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".manifest".to_owned(), nth: 0 };
        it.fs.add_rule(FaultRule::sticky(at, FaultAction::Eio));
        let before = it.fs.fault_count();
        assert!((0..100).any(|_| it.db.step().is_err() || it.fs.fault_count() > before));
        let mem = it.mem.clone();
        drop(it);
        let db = open(&mem);
        assert_eq!(content(&db.partition("p").unwrap()).len(), 2, "{action:?}");
        assert!(db.verify(Default::default()).unwrap().is_sound());
    }
}

#[test]
fn a_partition_without_a_log_writes_its_values_again_when_it_is_flushed() {
    for action in ACTIONS {
        let it = Pair::new(options().logged(false));
        for n in 0..10_u8 {
            it.p.put([n], vec![n; 1000]).unwrap();
        }
        it.break_sync(action);
        it.p.flush().unwrap_err();
        it.db.wait_idle().unwrap();
        it.p.flush().unwrap();
        it.q.put_with("small", "x", Durability::Sync).unwrap();
        assert_eq!(content(&it.p).len(), 10);
        it.check_durable();
    }
}

/// On some file systems reads lose the bytes too. Then the values of these bytes are damaged, and
/// nothing else.
#[test]
fn values_that_a_failed_sync_took_away_are_damage_of_their_keys() {
    let it = Pair::new(options());
    it.p.put_with("before", vec![1; 2000], Durability::Sync).unwrap();
    it.p.put("lost", vec![2; 2000]).unwrap();
    it.break_sync(FaultAction::SyncReverted);
    it.q.put_with("small", "x", Durability::Sync).unwrap_err();
    it.db.wait_idle().unwrap();
    it.q.put_with("small", "y", Durability::Sync).unwrap();
    it.p.put_with("later", vec![3; 2000], Durability::Sync).unwrap();
    assert_eq!(it.p.get("before").unwrap().unwrap(), vec![1; 2000]);
    assert!(it.p.get("lost").unwrap_err().is_corruption());
    it.p.put_with("lost", vec![4; 2000], Durability::Sync).unwrap();
    // The damaged version is dropped, as every overwritten one.
    it.p.compact(..).unwrap();
    it.check_durable();
}

/// The device works on both at the same time. The values are synced last, because their sync waits
/// longest.
#[test]
fn a_synced_put_has_the_device_begin_with_the_value_before_the_log_is_synced() {
    let it = Pair::new(options());
    // Both are in one file, so that the folder has no new name to sync.
    it.p.put_with("first", vec![1; 700], Durability::Sync).unwrap();
    it.fs.start_log();
    it.p.put_with("k", vec![2; 700], Durability::Sync).unwrap();
    let log = it.fs.take_log();
    let steps = log.iter().map(|op| {
        let name = op.path.extension().unwrap().to_str().unwrap();
        format!("{:?} {name}", op.kind)
    });
    let steps: Vec<String> = steps.collect();
    let expected = ["Append wal", "BeginSync chunk", "Sync wal", "Sync chunk"];
    assert_eq!(steps[steps.len() - 4..], expected, "{steps:?}");
}

/// A writer syncs its store when too many bytes wait, and that fails while another thread syncs the
/// log: the frames of the log now name values that are in doubt.
#[test]
fn a_sync_that_waits_for_one_that_fails_fails_too() {
    for action in ACTIONS {
        let it = Pair::new(options());
        it.p.put("first", vec![1; 2000]).unwrap();
        it.break_sync(action);
        let q = Mutex::new(Some(it.q.clone()));
        let other = Arc::new(Mutex::new(None));
        let started = other.clone();
        let log_syncs = Arc::new(AtomicU32::new(0));
        it.fs.set_observer(Arc::new(move |op: &FsOp| {
            let ending = op.path.extension().and_then(|ending| ending.to_str());
            if op.kind != OpKind::Sync {
                return;
            }
            if ending == Some("wal") {
                log_syncs.fetch_add(1, Ordering::SeqCst);
            }
            let Some(q) = q.lock().unwrap().take_if(|_| ending == Some("chunk")) else { return };
            let before = log_syncs.load(Ordering::SeqCst);
            let put = std::thread::spawn(move || q.put_with("small", "x", Durability::Sync));
            *started.lock().unwrap() = Some(put);
            // The log is synced first, so the other thread waits for the store now or very soon.
            while log_syncs.load(Ordering::SeqCst) == before {
                std::thread::yield_now();
            }
            (0..1000).for_each(|_| std::thread::yield_now());
        }));
        let puts = (0..14_u8).map(|n| it.p.put([n], &LONG[..]));
        // The put whose sync failed, and those until the database has resumed.
        assert!(puts.filter(Result::is_err).count() >= 1);
        let other = other.lock().unwrap().take().unwrap();
        let error = other.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("sync of a chunk file failed"), "{error}");
        it.fs.clear_observer();
        it.db.wait_idle().unwrap();
        it.p.put_with("synced", vec![2; 2000], Durability::Sync).unwrap();
        assert_eq!(it.p.get("first").unwrap().unwrap(), vec![1; 2000]);
        it.check_durable();
    }
}

/// The frame is on the device before the value, and a power cut comes in between: then the key
/// keeps its earlier value.
#[test]
fn a_power_cut_between_the_sync_of_the_log_and_that_of_the_value_takes_the_write_away() {
    let it = Pair::new(options());
    it.p.put_with("k", vec![1; 2000], Durability::Sync).unwrap();
    let mem = it.mem.clone();
    let cuts = Arc::new(Mutex::new(Vec::new()));
    let taken = cuts.clone();
    it.fs.set_observer(Arc::new(move |op: &FsOp| {
        if op.kind == OpKind::Sync && op.path.extension().is_some_and(|ending| ending == "chunk") {
            let mut rng = Rng::new(9);
            let outcomes = CrashOutcome::ALL.into_iter();
            let left = outcomes.map(|outcome| mem.crash_clone(outcome, &mut || rng.next_u64()));
            taken.lock().unwrap().extend(left);
        }
    }));
    it.p.put_with("k", vec![2; 2000], Durability::Sync).unwrap();
    it.fs.clear_observer();
    let cuts = std::mem::take(&mut *cuts.lock().unwrap());
    assert_eq!(cuts.len(), CrashOutcome::ALL.len());
    let mut old = 0;
    for mem in cuts {
        let db = open(&mem);
        let found = db.partition("p").unwrap().get("k").unwrap().unwrap();
        assert!(found == vec![1; 2000] || found == vec![2; 2000]);
        old += usize::from(found[0] == 1);
        assert!(db.verify(Default::default()).unwrap().is_sound());
    }
    assert!(old > 0, "one of them loses what was not synced");
    it.check_durable();
}

/// The space of a long value is reserved before it is written. A disk without room for it refuses
/// the value, and everything before and after it is there.
#[test]
fn a_long_value_has_its_space_reserved_or_is_refused() {
    let it = Pair::new(PartitionOptions::new().large_values(LargeValueOptions::default()));
    it.p.put("before", vec![1; 100_000]).unwrap();
    let at = FaultAt::Nth { kind: OpKind::Preallocate, suffix: ".chunk".to_owned(), nth: 0 };
    it.fs.add_rule(FaultRule::once(at, FaultAction::Enospc));
    let refused = it.p.put("long", vec![2; 2_000_000]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    it.p.put("long", vec![3; 2_000_000]).unwrap();
    it.p.put_with("behind", vec![4; 100_000], Durability::Sync).unwrap();
    assert_eq!(content(&it.p).len(), 3);
    assert_eq!(it.p.get("long").unwrap().unwrap(), vec![3; 2_000_000]);
    let live: u64 = it.p.chunks().unwrap().iter().map(|chunk| chunk.pending_bytes + 64).sum();
    assert_eq!(chunk_bytes(&it.mem, "/db"), live, "nothing more is reserved");
    it.check_durable();
}

/// Recovery verifies the values of all frames that no sync of the log proves durable. Nothing else
/// requests a sync here.
#[test]
fn the_log_is_synced_after_values_that_a_store_syncs_by_itself() {
    let never = Options::new().sync_interval_ms(0).wal_segment_bytes(1 << 20);
    let builder = Db::builder("/db").fs(Arc::new(MemFs::new())).options(never);
    // Its clock stands still: age makes no flush due.
    let builder = builder.clock(Arc::new(ManualClock::default()));
    let db = builder.background(BackgroundMode::Threads).open().unwrap();
    let p = db.partition_with("p", options()).unwrap();
    let seqs: Vec<_> = (0..14_u8).map(|n| p.put([n], &LONG[..]).unwrap().seq).collect();
    // A limit for a test that fails. The thread needs a few milliseconds.
    let is_durable = (0..20_000_000).any(|_| {
        std::thread::yield_now();
        db.durable_seq() >= seqs[11]
    });
    assert!(is_durable, "{:?} of {seqs:?}", db.durable_seq());
}
