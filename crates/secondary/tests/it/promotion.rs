//! A process takes the database over from a primary that lives: the primary is stopped at every one
//! of its storage operations, and continues when the next primary has opened.
//!
//! The two work on one file system in memory: the old primary on an observed one, the new one on
//! the plain one. A check tests what must hold in every case: the old primary's readers see exactly
//! the content of the new primary, which has everything that the old one settled and nothing that
//! it refused.

mod claimants;
mod folders;
mod late_cursor;
mod readers;
mod room;
mod witnesses;

use std::sync::Mutex;

use lsm_core::ErrorKind;
use lsm_core::db::{Commit, VerifyOptions};
use lsm_core::error::Result;
use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, OpKind};
use lsm_core::options::{Durability, PartitionOptions};
use secondary::{Level, ReadOptions, Target};
use testkit::Rng;

use super::*;

const PARTITIONS: [&str; 2] = ["a", "b"];
const DEEDS: u64 = 26;

/// Both partitions.
type State = [Content; 2];

/// Opens the database in place of its current primary.
fn take_over(fs: &Arc<dyn Fs>) -> Result<Db> {
    let builder = Db::builder(DIR).fs(fs.clone()).options(options()).take_over(true);
    builder.background(BackgroundMode::Stepped).open()
}

fn open(fs: &Arc<dyn Fs>) -> Result<Db> {
    let builder = Db::builder(DIR).fs(fs.clone()).options(options());
    builder.background(BackgroundMode::Stepped).open()
}

fn state_of(db: &Db) -> State {
    PARTITIONS.map(|name| content_of(&db.open_partition(name).unwrap()))
}

/// Makes a random write.
fn random_write(db: &Db, rng: &mut Rng, number: u64) -> Result<()> {
    let [a, b] = PARTITIONS.map(|name| db.open_partition(name).unwrap());
    match rng.below(12) {
        0 => a.flush(),
        1 => b.compact(..),
        2 => db.wait_idle(),
        3 => db.step().map(drop),
        4 => {
            let name = format!("passing {}", number % 3);
            if db.has_partition(&name) {
                return db.drop_partition(&name);
            }
            db.partition(&name)?.put("k", "v").map(drop)
        }
        5 => {
            let entries = (0..20).map(|key| (format!("{key:02}"), format!("{number} bulk")));
            a.bulk_load(entries).map(drop)
        }
        _ => {
            let key = format!("{:02}", rng.below(30)).into_bytes();
            let value = format!("{number} {}", "x".repeat(rng.index(900))).into_bytes();
            let mut batch = db.batch();
            for partition in [&a, &b] {
                if rng.chance(1, 12) {
                    batch.add_clear(partition);
                }
                if rng.chance(1, 8) {
                    let last = format!("{:02}", rng.below(33)).into_bytes();
                    batch.add_delete_range(partition, &key[..]..&last[..]);
                }
                match rng.chance(1, 5) {
                    true => batch.add_delete(partition, &key),
                    false => batch.add_put(partition, &key, &value),
                }
            }
            let durability = if rng.chance(1, 3) { Durability::Sync } else { Durability::Os };
            batch.commit(durability).map(drop)
        }
    }
}

/// A primary whose every storage operation is observed, and the file system of everything else.
struct Stage {
    old: Db,
    fault: FaultFs,
    mem: MemFs,
    plain: Arc<dyn Fs>,
}

impl Stage {
    fn new() -> Stage {
        let mem = MemFs::new();
        let fault = FaultFs::over_mem(mem.clone());
        let old = primary(&(Arc::new(fault.clone()) as Arc<dyn Fs>));
        PARTITIONS.iter().for_each(|name| drop(old.partition(name).unwrap()));
        let plain: Arc<dyn Fs> = Arc::new(mem.clone());
        Stage { old, fault, mem, plain }
    }

    /// Calls `act` once, before the operation that is `after` operations from here.
    fn before_op(&self, after: u64, act: impl Fn() + Send + Sync + 'static) {
        let at = self.fault.op_count() + after;
        let fault = self.fault.clone();
        let is_done = Mutex::new(false);
        self.fault.set_observer(Arc::new(move |_| {
            let mut is_done = is_done.lock().unwrap();
            if fault.op_count() >= at && !*is_done {
                *is_done = true;
                act();
            }
        }));
    }
}

/// Checks that the new primary has everything that the old one had acknowledged, also after it was
/// written to and opened again.
fn check_taken_over(stage: Stage, new: Db, context: &str) {
    let Stage { old, plain, .. } = stage;
    let kept = state_of(&new);
    assert!(state_of(&old) == kept, "{context}: the old primary reads something else");
    let refused = old.open_partition("a").unwrap().put("late", "v").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{context}");
    assert!(old.is_fenced(), "{context}");
    for refused in [old.flush(), old.wait_idle(), old.drop_partition("a"), old.step().map(drop)] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Fenced, "{context}");
    }
    assert!(state_of(&new) == kept, "{context}: the old primary has changed something");
    let [a, b] = PARTITIONS.map(|name| new.open_partition(name).unwrap());
    a.put("new", "1").unwrap();
    b.flush().unwrap();
    a.compact(..).unwrap();
    assert_eq!(old.close().unwrap_err().kind(), ErrorKind::Fenced, "{context}");
    b.put("new", "2").unwrap();
    let written = state_of(&new);
    let report = new.verify(VerifyOptions::default()).unwrap();
    assert!(report.damage().is_empty(), "{context}: {:?}", report.damage());
    new.close().unwrap();
    let again = open(&plain).unwrap();
    assert!(state_of(&again) == written, "{context}: lost by the next open");
}

/// Runs a primary that is stopped before its operation `after`, and taken over. Returns `false` if
/// it has no such operation.
fn stop_and_take_over(seed: u64, after: u64, faults: bool) -> bool {
    let stage = Stage::new();
    let mut rng = Rng::from_env_or(seed);
    if faults {
        let at = FaultAt::Op(stage.fault.op_count() + rng.below(after + 1));
        let action = match rng.below(4) {
            0 => FaultAction::ShortWrite(rng.below(400)),
            1 => FaultAction::ShortWrite(u64::MAX),
            _ => FaultAction::Eio,
        };
        stage.fault.add_rule(FaultRule::once(at, action));
    }
    let taken = Arc::new(Mutex::new(None));
    let slot = taken.clone();
    let plain = stage.plain.clone();
    stage.before_op(after, move || *slot.lock().unwrap() = Some(take_over(&plain).unwrap()));
    for number in 0..DEEDS {
        let was_taken = taken.lock().unwrap().is_some();
        let done = random_write(&stage.old, &mut rng, number);
        if let (true, Ok(())) = (was_taken, &done) {
            panic!("seed {seed}, operation {after}: write {number} of a fenced primary");
        }
        let is_taken = taken.lock().unwrap().is_some();
        if let Err(error) = done {
            let is_fenced = error.kind() == ErrorKind::Fenced;
            assert!(is_fenced || faults, "seed {seed}, operation {after}: {error}");
            assert!(is_taken || faults, "seed {seed}, operation {after}: {error}");
            stage.fault.heal();
        }
    }
    stage.fault.clear_observer();
    let Some(new) = taken.lock().unwrap().take() else { return false };
    check_taken_over(stage, new, &format!("seed {seed}, operation {after}"));
    true
}

/// Stops a primary at each of its operations. Returns their number.
fn operations_of(seed: u64, faults: bool) -> u64 {
    let mut after = 0;
    while stop_and_take_over(seed, after, faults) {
        after += 1;
    }
    after
}

#[test]
fn a_primary_is_taken_over_at_each_of_its_storage_operations() {
    let mut operations = 0;
    for seed in 0..3 {
        let count = operations_of(seed, false);
        assert!(count > 60, "{count} operations");
        operations += count;
    }
    println!("{operations} promotions");
}

#[test]
fn a_primary_whose_storage_fails_is_taken_over_at_each_operation() {
    for seed in 10..14 {
        let count = operations_of(seed, true);
        assert!(count > 40, "{count} operations");
    }
}

/// A frame whose bytes are in the file, partly or completely, and whose write is refused.
#[test]
fn a_frame_whose_write_was_refused_is_in_neither_history_at_any_byte() {
    for bytes in 0..160 {
        let stage = Stage::new();
        let partition = stage.old.open_partition("a").unwrap();
        partition.put("k", "1").unwrap();
        let suffix = ".wal".to_owned();
        let at = FaultAt::Nth { kind: OpKind::Append, suffix, nth: 0 };
        stage.fault.add_rule(FaultRule::once(at, FaultAction::ShortWrite(bytes)));
        let taken = Arc::new(Mutex::new(None));
        let slot = taken.clone();
        let plain = stage.plain.clone();
        // The operation after the append.
        stage.before_op(1, move || *slot.lock().unwrap() = Some(take_over(&plain).unwrap()));
        partition.put("k", "2").unwrap_err();
        stage.fault.clear_observer();
        let new = taken.lock().unwrap().take().unwrap();
        let found = new.open_partition("a").unwrap().get("k").unwrap().unwrap();
        assert_eq!(&*found, b"1", "{bytes} bytes");
        check_taken_over(stage, new, &format!("{bytes} bytes"));
    }
}

#[test]
fn a_primary_is_taken_over_at_each_operation_of_its_close() {
    for after in 0.. {
        let stage = Stage::new();
        let mut rng = Rng::from_env_or(8);
        for number in 0..DEEDS {
            random_write(&stage.old, &mut rng, number).unwrap();
        }
        let kept = state_of(&stage.old);
        let taken = Arc::new(Mutex::new(None));
        let slot = taken.clone();
        let plain = stage.plain.clone();
        stage.before_op(after, move || *slot.lock().unwrap() = Some(take_over(&plain)));
        let Stage { old, plain, .. } = stage;
        let closed = old.close();
        let Some(new) = taken.lock().unwrap().take() else {
            assert!(after > 5, "{after} operations");
            return;
        };
        // A primary that has announced its close may still hold its lock.
        let new = match new {
            Err(error) if error.kind() == ErrorKind::Locked => open(&plain).unwrap(),
            new => {
                assert_eq!(closed.unwrap_err().kind(), ErrorKind::Fenced, "operation {after}");
                new.unwrap()
            }
        };
        assert!(state_of(&new) == kept, "operation {after}");
        new.close().unwrap();
        assert!(state_of(&open(&plain).unwrap()) == kept, "operation {after}");
    }
}

/// Promotes the database elsewhere, and closes the old primary, before each operation of `open` in
/// turn: `open` must fail. There are more operations than `operations_min`.
fn check_open_during_a_promotion(operations_min: u64, open: impl Fn(&Arc<dyn Fs>) -> Result<Db>) {
    for after in 0.. {
        let Stage { old, plain, mem, .. } = Stage::new();
        old.open_partition("a").unwrap().put("k", "1").unwrap();
        let slow = FaultFs::over_mem(mem);
        let taken = Arc::new(Mutex::new(None));
        let slot = taken.clone();
        let there = plain.clone();
        let count = slow.clone();
        let old = Mutex::new(Some(old));
        slow.set_observer(Arc::new(move |_| {
            if count.op_count() >= after
                && let Some(old) = old.lock().unwrap().take()
            {
                *slot.lock().unwrap() = Some(take_over(&there).unwrap());
                old.close().unwrap_err();
            }
        }));
        let opened = open(&(Arc::new(slow.clone()) as Arc<dyn Fs>));
        slow.clear_observer();
        let Some(new) = taken.lock().unwrap().take() else {
            assert!(after > operations_min, "{after} operations");
            return;
        };
        assert_eq!(opened.err().unwrap().kind(), ErrorKind::Locked, "operation {after}");
        new.open_partition("a").unwrap().put("k", "2").unwrap();
    }
}

/// An open that has looked for claims and found none may get the lock that the old primary
/// releases.
#[test]
fn an_open_during_a_promotion_does_not_get_an_old_lock() {
    check_open_during_a_promotion(2, open);
}

#[test]
fn a_promotion_writes_no_file_of_an_older_epoch() {
    let stage = Stage::new();
    let mut rng = Rng::from_env_or(9);
    for number in 0..DEEDS {
        random_write(&stage.old, &mut rng, number).unwrap();
    }
    let watched = FaultFs::over_mem(stage.mem.clone());
    watched.start_log();
    let new = take_over(&(Arc::new(watched.clone()) as Arc<dyn Fs>)).unwrap();
    let written = watched.take_log().into_iter().filter(|op| {
        let is_old = op.path.to_string_lossy().contains("-00000001.");
        is_old && matches!(op.kind, OpKind::Append | OpKind::Punch | OpKind::Preallocate)
    });
    let written: Vec<_> = written.map(|op| op.path).collect();
    assert!(written.is_empty(), "{written:?}");
    drop(new);
}

#[test]
fn a_primary_that_was_promoted_is_taken_over_in_turn() {
    let stage = Stage::new();
    let first = &stage.old;
    first.open_partition("a").unwrap().put("k", "1").unwrap();
    let second = take_over(&stage.plain).unwrap();
    second.open_partition("a").unwrap().put("k", "2").unwrap();
    let third = take_over(&stage.plain).unwrap();
    for fenced in [first, &second] {
        let refused = fenced.open_partition("a").unwrap().put("k", "old").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced);
    }
    third.open_partition("b").unwrap().put("k", "3").unwrap();
    let kept = state_of(&third);
    assert_eq!(open(&stage.plain).err().unwrap().kind(), ErrorKind::Locked);
    third.close().unwrap();
    // The two that are fenced still hold the older locks.
    let fourth = open(&stage.plain).unwrap();
    assert!(state_of(&fourth) == kept);
    let claims = stage.plain.list_names(DIR.as_ref(), "epoch-").unwrap();
    assert_eq!(claims, ["epoch-00000003"], "older claims are gone");
}

#[test]
fn a_secondary_follows_across_a_promotion() {
    let stage = Stage::new();
    let a = stage.old.open_partition("a").unwrap();
    let kept: Commit = a.put("k", "1").unwrap();
    let follower = secondary(&stage.plain);
    let followed = follower.partition("a").unwrap();
    assert_eq!(content(&followed.at(Level::Strong).unwrap()), content_of(&a));
    let new = take_over(&stage.plain).unwrap();
    a.put("k", "refused").unwrap_err();
    followed.at(Level::Session(kept)).unwrap();
    let lost = Commit { seq: kept.seq.plus(1), epoch: kept.epoch };
    assert_eq!(followed.at(Level::Session(lost)).err().unwrap().kind(), ErrorKind::SessionLost);
    let next = new.open_partition("a").unwrap().put("l", "2").unwrap();
    let reading = followed.at(Level::Session(next)).unwrap();
    assert_eq!(reading.get("k").unwrap().as_deref(), Some(&b"1"[..]));
    let strong = content(&followed.at(Level::Strong).unwrap());
    assert_eq!(strong, content_of(&new.open_partition("a").unwrap()));
    follower.sync(Target::Latest).unwrap();
    let late = secondary(&stage.plain);
    let found = content(&late.partition("a").unwrap().at(Level::Strong).unwrap());
    assert_eq!(found, strong);
}

/// Writes that are not in the log are lost as by a crash, and no others.
#[test]
fn of_a_partition_without_a_log_what_is_flushed_is_kept() {
    let stage = Stage::new();
    let unlogged = PartitionOptions::default().logged(false);
    let p = stage.old.partition_with("unlogged", unlogged, None).unwrap();
    p.put("flushed", "1").unwrap();
    p.flush().unwrap();
    p.put("in memory", "2").unwrap();
    stage.old.open_partition("a").unwrap().put("k", "3").unwrap();
    let new = take_over(&stage.plain).unwrap();
    assert_eq!(p.put("late", "4").unwrap_err().kind(), ErrorKind::Fenced);
    let taken = new.open_partition("unlogged").unwrap();
    assert_eq!(content_of(&taken).into_keys().collect::<Vec<_>>(), [b"flushed".to_vec()]);
    assert_eq!(new.open_partition("a").unwrap().get("k").unwrap().as_deref(), Some(&b"3"[..]));
}

#[test]
fn without_a_cursor_a_living_primary_is_not_fenced() {
    let stage = Stage::new();
    delete_cursor(&stage.plain);
    assert_eq!(take_over(&stage.plain).err().unwrap().kind(), ErrorKind::Unsupported);
    assert_eq!(stage.plain.list_names(DIR.as_ref(), "epoch-").unwrap(), [""; 0]);
    stage.old.open_partition("a").unwrap().put("k", "1").unwrap();
    stage.old.close().unwrap();
    // A dead primary needs no fence.
    let new = take_over(&stage.plain).unwrap();
    assert_eq!(new.open_partition("a").unwrap().get("k").unwrap().as_deref(), Some(&b"1"[..]));
}
