//! After a failed sync of the log the store writes its memtables to new files and continues.
//!
//! This is tested with a second fault at each of its operations, and with a power cut before each:
//! writes that were synced before the failure are never lost, readers see the same, and when the
//! faults are over the store accepts writes again without being reopened.

use std::path::Path;
use std::sync::{Arc, Mutex};

use lsm_core::fs::{
    CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, Fs, FsOp, MemFs, OpKind,
};
use lsm_core::hooks::{Event, EventListener};
use siltstone::{BackgroundMode, Db, Durability, ErrorKind, Options};
use testkit::Rng;

use crate::crash::{for_each_of, for_each_variant, seed_or};
use crate::fault::with_faults;
use crate::sim::oracle::{check_files, check_goes_on, check_prefix, guarded, observe};
use crate::sim::script::{ScriptStep, Variant, Writer, variants};
use crate::sim::{DIR, RecordPosition, Simulation, WriteRecord, context};
use crate::store::stepped;

mod values;

const STEPS: usize = 30;

/// Fails a sync of the log after `before` others.
fn failed_sync(action: FaultAction, before: u64) -> FaultRule {
    let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".wal".to_owned(), nth: before };
    FaultRule::once(at, action)
}

/// Returns `true` if the last operations that change anything make a segment, fail to sync it, and delete it. The reads
/// after them look whether the write is visible.
fn begins_a_segment(log: &[FsOp]) -> bool {
    let changes: Vec<_> = log.iter().filter(|op| op.mutates()).collect();
    let Some([sync, delete]) = changes.last_chunk() else { return false };
    let is_made = log.iter().any(|op| op.kind == OpKind::Create && op.path == delete.path);
    sync.kind == OpKind::Sync
        && delete.kind == OpKind::Delete
        && sync.path == delete.path
        && is_made
        && !log.iter().any(|op| op.kind == OpKind::Append)
}

/// A simulation whose script has run, with writes that were synced and writes that were not, whose
/// log fails its next sync.
fn failed(variant: &Variant, action: FaultAction, seed: u64) -> Result<Simulation, String> {
    let mut rng = Rng::new(seed);
    let mut simulation = Simulation::new(variant, MemFs::new(), WriteRecord::default(), rng.fork());
    simulation.open().map_err(context("open"))?;
    simulation.prepare().map_err(context("prepare"))?;
    simulation.act(&ScriptStep::Create("p")).map_err(context("create"))?;
    for step in Writer::new(variant, &["p"], rng.fork()).script(STEPS) {
        simulation.act(&step).map_err(context("a step on a sound store"))?;
    }
    if !simulation.db().partition_names().contains(&"p".to_owned()) {
        simulation.act(&ScriptStep::Create("p")).map_err(context("create"))?;
    }
    let both = |key| vec![("default", key, Some(30)), ("p", key, Some(30))];
    let act = |simulation: &mut Simulation, key, sync| {
        simulation.act(&ScriptStep::Commit { ops: both(key), sync })
    };
    act(&mut simulation, 1, true).map_err(context("a synced write"))?;
    act(&mut simulation, 2, false).map_err(context("a write"))?;
    simulation.fs.add_rule(failed_sync(action, 0));
    simulation.fs.start_log();
    let mut refused = act(&mut simulation, 3, true).err().map(|error| error.kind());
    if refused == Some(ErrorKind::Io) && begins_a_segment(&simulation.fs.take_log()) {
        // That was no sync of the log yet: the new segment is gone, and nothing was written.
        simulation.record().refused = None;
        let seen = observe(simulation.db())?.logged;
        if seen != simulation.record().visible(&seen) {
            return Err("a write for which no segment could begin is visible".to_owned());
        }
        // The next write begins a segment again.
        simulation.fs.add_rule(failed_sync(action, 1));
        refused = act(&mut simulation, 3, true).err().map(|error| error.kind());
    }
    if refused != Some(ErrorKind::ReadOnly) {
        return Err(format!("a write whose sync failed gave {refused:?}"));
    }
    let refused = act(&mut simulation, 4, false).err().map(|error| error.kind());
    if refused != Some(ErrorKind::ReadOnly) {
        return Err(format!("a write after the failed sync gave {refused:?}"));
    }
    simulation.record().refused = None;
    Ok(simulation)
}

/// The store continues, and what it acknowledges from now on lasts.
fn check_resumed(
    variant: &Variant,
    simulation: &mut Simulation,
    rng: &mut Rng,
) -> Result<(), String> {
    simulation.act(&ScriptStep::Settle).map_err(context("background work after the faults"))?;
    if let Some(why) = simulation.db().stats().read_only_because {
        return Err(format!("still read-only: {why}"));
    }
    if simulation.db().durable_seq() != simulation.db().visible_seq() && !variant.has_unlogged {
        return Err("what was written to tables is not called durable".to_owned());
    }
    for (key, sync) in [(5, true), (6, false), (7, true)] {
        let put =
            ScriptStep::Commit { ops: vec![("default", key, Some(9)), ("p", key, None)], sync };
        simulation.act(&put).map_err(context("a write after resuming"))?;
    }
    let seen = observe(simulation.db())?;
    if seen.logged != simulation.record().visible(&seen.logged) {
        return Err("a reader sees something else than what was written".to_owned());
    }
    for outcome in CrashOutcome::ALL {
        let left = simulation.mem.crash_clone(outcome, &mut || rng.next_u64());
        let seen = check_goes_on(variant, &left, false)?;
        let record = simulation.record();
        check_prefix(&record, &record.position(), &seen)
            .map_err(|what| format!("cut after resuming, {outcome:?}: {what}"))?;
    }
    simulation.act(&ScriptStep::Reopen).map_err(context("closing and opening"))?;
    let seen = observe(simulation.db())?.logged;
    if seen != simulation.record().visible(&seen) {
        return Err("the next open lost something".to_owned());
    }
    check_files(variant, &simulation.mem)
}

fn each_variant(check: impl Fn(&Variant, FaultAction, u64) -> Result<(), String> + Sync) {
    for_each_variant(2, seed_or(3), |variant, rng| with_each_action(&check, variant, rng));
    // The write that fails needs a segment, and its key is in a table.
    let compactions = variants().into_iter().find(|variant| variant.name == "compactions");
    let of_table = 3 ^ 20 << 32;
    for_each_of(&[compactions.expect("there is one")], 1, of_table, |variant, rng| {
        with_each_action(&check, variant, rng)
    });
}

fn with_each_action(
    check: &impl Fn(&Variant, FaultAction, u64) -> Result<(), String>,
    variant: &Variant,
    rng: &mut Rng,
) -> Result<(), String> {
    let variant = &with_faults(variant);
    for action in [FaultAction::Eio, FaultAction::SyncLost, FaultAction::SyncReverted] {
        guarded(|| check(variant, action, rng.next_u64()))
            .map_err(|what| format!("{action:?}: {what}"))?;
    }
    Ok(())
}

fn table_count(mem: &MemFs) -> usize {
    let entries = mem.list(Path::new("/db"), "").unwrap().into_iter();
    entries.filter(|entry| entry.name.ends_with(".sst")).count()
}

/// The tables are complete when the sync of the log fails; no edit names them.
#[test]
fn a_flush_whose_sync_of_the_log_fails_removes_its_tables() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let db = stepped(Arc::new(fs.clone()), "/db", 1).open().unwrap();
    let p = db.partition("p").unwrap();
    // The flush of one partition has to wait for the batch of the other.
    db.partition("q").unwrap().put("k", "not synced").unwrap();
    p.put("k", "not synced").unwrap();
    fs.add_rule(failed_sync(FaultAction::Eio, 0));
    let failed = p.flush().unwrap_err();
    assert_eq!((failed.kind(), table_count(&mem)), (ErrorKind::ReadOnly, 0), "{failed}");
    db.flush().unwrap();
    assert_eq!((p.get("k").unwrap().as_deref(), table_count(&mem)), (Some(&b"not synced"[..]), 2));
}

#[test]
fn a_power_cut_at_any_operation_of_resuming_keeps_what_was_synced() {
    each_variant(|variant, action, seed| {
        let mut simulation = failed(variant, action, seed)?;
        let images: Arc<Mutex<Vec<(String, MemFs, RecordPosition)>>> = Arc::default();
        let taken = images.clone();
        let mem = simulation.mem.clone();
        let record = simulation.record.clone();
        let rng = Mutex::new(Rng::new(seed));
        simulation.fs.set_observer(Arc::new(move |op: &FsOp| {
            let outcomes = if op.mutates() { &CrashOutcome::ALL[..] } else { &[] };
            for outcome in outcomes {
                let left = mem.crash_clone(*outcome, &mut || rng.lock().unwrap().next_u64());
                let position = record.lock().unwrap().position();
                taken.lock().unwrap().push((format!("{op:?}, {outcome:?}"), left, position));
            }
        }));
        simulation.act(&ScriptStep::Step(1)).map_err(context("resuming"))?;
        simulation.fs.clear_observer();
        let images = std::mem::take(&mut *images.lock().unwrap());
        if images.is_empty() {
            return Err("nothing was written".to_owned());
        }
        for (what, left, position) in &images {
            let seen = check_goes_on(variant, left, false);
            seen.and_then(|seen| check_prefix(&simulation.record(), position, &seen))
                .map_err(|error| format!("cut before {what}: {error}"))?;
        }
        check_resumed(variant, &mut simulation, &mut Rng::new(seed))
    });
}

#[test]
fn a_second_fault_while_resuming_is_got_over() {
    each_variant(|variant, action, seed| {
        let simulation = failed(variant, action, seed)?;
        simulation.fs.start_log();
        simulation.db().step().map_err(context("resuming"))?;
        let log = simulation.fs.take_log();
        let first = log.first().ok_or("nothing was written")?.index;
        drop(simulation);
        // A mapped log and a written one take turns at the operations.
        for at in (u64::from(variant.options.wal_mapped)..log.len() as u64).step_by(2) {
            for (second, sticky) in [
                (FaultAction::Eio, false),
                (FaultAction::Enospc, true),
                (FaultAction::SyncReverted, true),
                (FaultAction::ShortWrite(9), false),
            ] {
                let mut simulation = failed(variant, action, seed)?;
                let rule = FaultRule { at: FaultAt::Op(first + at), action: second, sticky };
                simulation.fs.add_rule(rule.clone());
                let reported_of = |what| format!("{:?}, {rule:?}: {what}", log[at as usize]);
                let mut rng = Rng::new(seed);
                for _ in 0..3 {
                    let _ = simulation.act(&ScriptStep::Step(1));
                    let left =
                        simulation.mem.crash_clone(CrashOutcome::Subset, &mut || rng.next_u64());
                    let seen = check_goes_on(variant, &left, false).map_err(reported_of)?;
                    let record = simulation.record();
                    check_prefix(&record, &record.position(), &seen).map_err(reported_of)?;
                }
                simulation.fs.heal();
                check_resumed(variant, &mut simulation, &mut rng).map_err(reported_of)?;
            }
        }
        Ok(())
    });
}

/// Sends the events on.
struct Forwarder(std::sync::mpsc::Sender<Event>);

impl EventListener for Forwarder {
    fn on_event(&self, event: &Event) {
        let _ = self.0.send(event.clone());
    }
}

#[test]
fn threads_resume_by_themselves() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let (context, events) = std::sync::mpsc::channel();
    let db = Db::builder(Path::new(DIR))
        .fs(Arc::new(fs.clone()))
        .background(BackgroundMode::Threads)
        .listener(Arc::new(Forwarder(context)))
        .open()
        .unwrap();
    let users = db.partition("users").unwrap();
    for round in 0..4 {
        db.batch().put(&users, "synced", [round]).commit(Durability::Sync).unwrap();
        fs.add_rule(failed_sync(FaultAction::SyncReverted, 0));
        let lost = db.batch().put(&users, "lost", [round]).commit(Durability::Sync);
        // The store may have recovered before the writer looked, and then the write is durable.
        assert!(lost.is_ok() || lost.is_err_and(|error| error.kind() == ErrorKind::ReadOnly));
        let resumed = events.iter().find(|event| matches!(event, Event::Resumed));
        assert!(resumed.is_some());
        users.put("after", [round]).unwrap();
        let left = mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
        let left = Db::builder(Path::new(DIR)).fs(Arc::new(left)).open().unwrap();
        let left = left.partition("users").unwrap();
        for key in ["synced", "lost"] {
            assert_eq!(left.get(key).unwrap().as_deref(), Some(&[round][..]), "{key}");
        }
    }
    let names = fs.list(Path::new(DIR), "").unwrap();
    let segments = names.iter().filter(|entry| entry.name.ends_with(".wal"));
    assert!(segments.count() <= 2, "condemned segments are deleted");
}

/// Writers continue through failures of the log, of its new segments and of the tables, in small
/// segments and memtables, while partitions are created and dropped.
#[test]
fn threads_resume_while_others_write() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let options = Options::new().write_buffer_bytes(8 << 10).wal_segment_bytes(4 << 10);
    let builder = Db::builder(Path::new(DIR)).options(options.wal_bytes_max(16 << 10));
    let (context, events) = std::sync::mpsc::channel();
    let builder = builder.fs(Arc::new(fs.clone())).listener(Arc::new(Forwarder(context)));
    let db = builder.sync_interval_ms(1).open().unwrap();
    let p = db.partition("p").unwrap();
    let q = db.partition("q").unwrap();
    let write = &|writer: u64| {
        let mut synced = Vec::new();
        for number in 0..1_000_u64 {
            let key = [writer, number].map(u64::to_be_bytes).concat();
            // Both or none, in two partitions.
            let batch = || db.batch().put(&p, &key, [3; 60]).put(&q, &key, [3; 60]);
            let sync = (number + writer).is_multiple_of(3);
            let durability = if sync { Durability::Sync } else { Durability::Os };
            while batch().commit(durability).is_err() {
                std::thread::yield_now();
            }
            if sync {
                synced.push(key);
            }
        }
        synced
    };
    let synced: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3).map(|writer| scope.spawn(move || write(writer))).collect();
        let mut rng = Rng::new(seed_or(9));
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            // One fault at a time: the next one comes when the store has recovered from the last
            // one.
            fs.heal();
            let suffix = (*rng.pick(&[".wal", ".wal", ".wal", ".sst", ".manifest"])).to_owned();
            let at = FaultAt::Nth { kind: OpKind::Sync, suffix, nth: rng.below(3) };
            fs.add_rule(FaultRule::once(at, FaultAction::SyncReverted));
            let _ = db.flush();
            let _ = db.partition("r").and_then(|_| db.drop_partition("r"));
            // A cut in the middle: both halves of each batch, or neither.
            let left = mem.crash_clone(CrashOutcome::Subset, &mut || rng.next_u64());
            let left = Db::builder(Path::new(DIR)).fs(Arc::new(left)).open().unwrap();
            let keys = |name: &str| -> Vec<_> {
                left.partition(name).unwrap().keys().map(|key| key.unwrap()).collect()
            };
            assert_eq!(keys("p"), keys("q"));
        }
        fs.heal();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let left = mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    let left = Db::builder(Path::new(DIR)).fs(Arc::new(left)).open().unwrap();
    for key in &synced {
        assert!(left.partition("p").unwrap().contains(key).unwrap());
    }
    db.wait_idle().unwrap();
    assert!(db.health().read_only.is_none());
    let resumed = events.try_iter().filter(|event| matches!(event, Event::Resumed)).count();
    println!("resumed {resumed} times");
    assert_eq!((p.iter().count(), q.iter().count()), (3_000, 3_000));
}
