//! The storage fails at every operation, in every way, once and until it is healed.
//!
//! A script runs without a fault to count its operations, then again and again with a fault at each
//! of them. A fault must be reported: as the error of a call, or in the statistics; or it is on the
//! list of harmless ones ([`harmless`]). Acknowledged writes read back during the fault, after it,
//! and after a power cut; refused writes never come back; when the fault is healed the store
//! recovers by itself. After a failed sync of the log it is read-only and reports why, until it has
//! written its memtables to new files.

mod kinds;
mod stacked;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, FsOp, MemFs, OpKind};
use siltstone::ErrorKind;
use testkit::Rng;

use kinds::{actions, harmless, is_made_up_for};

use crate::crash::{for_each_of, for_each_variant, seed_or};
use crate::sim::features::{difference, remove_leases};
use crate::sim::oracle::{check_files, check_goes_on, check_prefix, check_sound, guarded, observe};
use crate::sim::script::{ScriptStep, Variant, Writer, with_features};
use crate::sim::{Simulation, WriteRecord, context};
use crate::store::stepped;

const STEPS: usize = 36;
/// A fault that lasts is healed after so many steps.
const DEEDS_UNTIL_HEALED: usize = 4;
/// More operations than any run needs: a run that reaches it does not end.
const OPS_MOST: u64 = 100_000;

/// After a failed sync the log begins again, and nothing of it is kept.
pub fn with_faults(variant: &Variant) -> Variant {
    let mut variant = variant.clone();
    variant.may_lose_log = true;
    variant
}

/// A run of a script with a fault.
struct Run {
    simulation: Simulation,
    variant: Variant,
    rng: Rng,
    surfaced: bool,
    /// The reads of a secondary are compared. A failed sync that takes its bytes back leaves them to the primary alone.
    is_followed: bool,
}

impl Run {
    fn new(variant: &Variant, seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        // A fault is met at the operation of the same number only if nothing is left of an earlier run.
        let variant = if variant.resources.is_some() { variant.shared() } else { variant.clone() };
        let variant = variant.at_the_begin();
        let record = WriteRecord::default();
        let simulation = Simulation::new(&variant, MemFs::new(), record, rng.fork());
        simulation.fs.set_observer(Arc::new(|op: &FsOp| assert!(op.index < OPS_MOST, "no end")));
        Run { simulation, variant, rng, surfaced: false, is_followed: true }
    }

    /// Opens, runs the script and reads now and then. Returns after how many steps the fault was
    /// healed.
    fn script(&mut self) -> Result<(), String> {
        if self.simulation.open().is_err() {
            self.surfaced = true;
            self.mend()?;
        }
        if self.simulation.prepare().is_err() {
            self.surfaced = true;
        }
        let script = Writer::new(&self.variant, &[], self.rng.fork()).script(STEPS);
        let mut since_fault = 0;
        for (at, step) in script.iter().enumerate() {
            self.step(step, at).map_err(|what| format!("step {at}, {step:?}: {what}"))?;
            if self.simulation.fs.fault_count() > 0 {
                if since_fault == 0 {
                    self.check_cut("cut after the fault")?;
                }
                since_fault += 1;
                if since_fault == DEEDS_UNTIL_HEALED {
                    self.simulation.fs.heal();
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &ScriptStep, at: usize) -> Result<(), String> {
        if self.simulation.act(step).is_err() {
            self.surfaced = true;
        }
        if !self.simulation.is_open() {
            self.mend()?;
        } else if matches!(step, ScriptStep::Reopen) && self.simulation.record().is_doubtful() {
            self.take_in()?;
        }
        let stats = self.simulation.db().stats();
        self.surfaced |= stats.background_error.is_some() || stats.read_only_because.is_some();
        if at.is_multiple_of(5) {
            match observe(self.simulation.db()) {
                Ok(seen) => {
                    self.check_seen(&seen)?;
                    self.check_secondary()?;
                }
                Err(_) if self.simulation.fs.fault_count() > 0 => self.surfaced = true,
                Err(what) => return Err(what),
            }
        }
        Ok(())
    }

    fn check_secondary(&mut self) -> Result<(), String> {
        // In each run, because its lease is read by the store.
        let checked = self.simulation.check_secondary();
        if self.is_followed { checked } else { Ok(()) }
    }

    fn check_seen(&self, seen: &crate::sim::oracle::Seen) -> Result<(), String> {
        let record = self.simulation.record();
        if let Some(what) = difference(&seen.logged, &record.visible(&seen.logged)) {
            return Err(format!("a reader sees something else than what was written: {what}"));
        }
        if seen.unlogged != record.visible_unlogged() {
            return Err(
                "a reader sees something else than what was written without a log".to_owned()
            );
        }
        Ok(())
    }

    /// A close or an open failed: heals the fault, opens again, and takes the state found as the
    /// expected one.
    fn mend(&mut self) -> Result<(), String> {
        self.simulation.fs.heal();
        self.simulation.open().map_err(context("open after healing"))?;
        self.take_in()
    }

    /// Takes the state found after opening as the expected one, if it is allowed.
    fn take_in(&mut self) -> Result<(), String> {
        let seen = observe(self.simulation.db())?;
        let position = self.simulation.record().position();
        check_prefix(&self.simulation.record(), &position, &seen)
            .map_err(|what| format!("opened after a failure: {what}"))?;
        let mut record = self.simulation.record();
        *record = WriteRecord::of(&seen, record.clock.clone());
        drop(record);
        Ok(())
    }

    /// A cut now leaves a prefix of the commits, and the store continues from it.
    fn check_cut(&mut self, when: &str) -> Result<(), String> {
        let outcomes = [CrashOutcome::Nothing, CrashOutcome::Everything, CrashOutcome::Subset];
        for outcome in outcomes {
            let left = self.simulation.mem.crash_clone(outcome, &mut || self.rng.next_u64());
            remove_leases(&left);
            let checked = check_goes_on(&self.variant, &left, false).and_then(|seen| {
                let record = self.simulation.record();
                check_prefix(&record, &record.position(), &seen)
            });
            checked.map_err(|what| format!("{when}, {outcome:?}: {what}"))?;
        }
        Ok(())
    }

    /// The fault is over: the store recovers, and nothing is lost.
    fn after(&mut self, rule: &FaultRule, op: &FsOp) -> Result<(), String> {
        self.simulation.fs.heal();
        let stats = self.simulation.db().stats();
        if let Some(why) = stats.read_only_because {
            self.while_read_only(&why, rule, op)?;
        }
        self.settle().map_err(context("background work after healing"))?;
        let put = ScriptStep::Commit { ops: vec![("default", 99, Some(9))], sync: true };
        self.simulation.act(&put).map_err(context("a write after healing"))?;
        let stats = self.simulation.db().stats();
        if let Some(error) = stats.background_error.or(stats.read_only_because) {
            return Err(format!("still reported after healing: {error}"));
        }
        self.check_seen(&observe(self.simulation.db())?)?;
        self.check_secondary()?;
        // Its lease would hold files that an open deletes.
        self.simulation.secondary = None;
        self.check_cut("cut after healing")?;
        self.simulation.act(&ScriptStep::Flush).map_err(context("flush after healing"))?;
        self.simulation
            .act(&ScriptStep::Reopen)
            .map_err(context("closing and opening after healing"))?;
        self.check_seen(&observe(self.simulation.db())?)?;
        check_sound(self.simulation.db())?;
        check_files(&self.variant, &self.simulation.mem)
    }

    /// Does what is due. Some of it is tried again only after a time.
    fn settle(&mut self) -> siltstone::Result<()> {
        for _ in 0..20 {
            let settled = self.simulation.act(&ScriptStep::Settle);
            let Some(clock) = self.variant.clock.as_ref().filter(|_| settled.is_err()) else {
                return settled;
            };
            clock.pass(1);
        }
        self.simulation.act(&ScriptStep::Settle)
    }

    /// Readers continue, writers get the error, and a cut leaves what was durable.
    fn while_read_only(&mut self, why: &str, rule: &FaultRule, op: &FsOp) -> Result<(), String> {
        let of_log = op.path.to_string_lossy().ends_with(".wal") && op.kind == OpKind::Sync;
        let of_values = why.contains("a sync of a chunk file failed");
        if !(of_log || of_values || rule.sticky) || !why.contains("sync") {
            return Err(format!("read-only for no good reason: {why}"));
        }
        self.check_seen(&observe(self.simulation.db())?)?;
        let default = self.simulation.db().partition("default").map_err(context("partition"))?;
        let refused = default.put("k", "v").err().map(|error| error.kind());
        if refused != Some(ErrorKind::ReadOnly) {
            return Err(format!("read-only, but a write gave {refused:?}"));
        }
        drop(default);
        self.check_cut("cut while read-only")
    }
}

/// Runs all faults of every second operation of one script. A mapped log and a written one take
/// turns, so that both meet each kind of operation in the time of one.
fn run_faults(variant: &Variant, seed: u64, count: &AtomicU64) -> Result<(), String> {
    run_some_faults(variant, seed, 2, count)
}

/// Runs all faults of every `step`th operation of one script.
fn run_some_faults(
    variant: &Variant,
    seed: u64,
    step: usize,
    count: &AtomicU64,
) -> Result<(), String> {
    let mut clean = Run::new(variant, seed);
    clean.simulation.fs.start_log();
    clean.script()?;
    let log = clean.simulation.fs.take_log();
    let first = usize::from(variant.options.wal_mapped);
    let mut failures = Vec::new();
    for (at, op) in log.iter().enumerate().skip(first).step_by(step) {
        for action in actions(op) {
            for sticky in [false, true] {
                let rule = FaultRule { at: FaultAt::Op(op.index), action, sticky };
                if let Err(what) = run_fault(variant, seed, &log, at, &rule) {
                    failures.push(format!("{op:?}, {rule:?}, script of {seed}: {what}"));
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn run_fault(
    variant: &Variant,
    seed: u64,
    log: &[FsOp],
    at: usize,
    rule: &FaultRule,
) -> Result<(), String> {
    guarded(|| {
        let mut run = Run::new(variant, seed);
        run.simulation.fs.add_rule(rule.clone());
        // Without a cursor it cannot know of the last commits.
        let of_cursor = log[at].path.to_string_lossy().contains("cursor-");
        run.is_followed = rule.action != FaultAction::SyncReverted && !of_cursor;
        run.script()?;
        if run.simulation.fs.fault_count() == 0 {
            return Err("the fault was never met".to_owned());
        }
        if !run.surfaced && harmless(log, at).is_none() && !is_made_up_for(&log[at], rule) {
            return Err("the fault was reported nowhere".to_owned());
        }
        run.after(rule, &log[at])?;
        let resources = run.variant.resources.clone();
        drop(run);
        let Some(usage) = resources.map(|it| it.usage()) else { return Ok(()) };
        let left = [usage.active_memtable_bytes, usage.sealed_memtable_bytes, usage.open_files];
        if left == [0; 3] { Ok(()) } else { Err(format!("closed databases keep {usage:?}")) }
    })
}

#[test]
fn every_fault_is_reported_and_the_store_recovers() {
    let count = AtomicU64::new(0);
    let seed = seed_or(11);
    for_each_variant(2, seed, |variant, rng| {
        run_faults(&with_faults(variant), rng.next_u64(), &count)
    });
    println!("{} faults, SEED={seed}", count.load(Ordering::Relaxed));
}

/// The same with transactions, expiry, a FIFO, ingests, streams and a secondary in one history.
#[test]
fn every_fault_of_a_store_with_all_features_is_reported_and_the_store_recovers() {
    let count = AtomicU64::new(0);
    let seed = seed_or(15);
    for_each_of(&[with_features()], 2, seed, |variant, rng| {
        run_some_faults(&with_faults(variant), rng.next_u64(), 4, &count)
    });
    let count = count.load(Ordering::Relaxed);
    println!("{count} faults, SEED={seed}");
    assert!(count > 500, "{count}");
}

/// Under encryption the faults are those of the file system below.
#[test]
fn every_fault_of_an_encrypted_store_is_reported_and_the_store_recovers() {
    let count = AtomicU64::new(0);
    for_each_variant(1, seed_or(12), |variant, rng| match variant.name {
        "manifest" => run_faults(&with_faults(&variant.encrypted()), rng.next_u64(), &count),
        _ => Ok(()),
    });
    let count = count.load(Ordering::Relaxed);
    println!("{count} faults");
    assert!(count > 300 || std::env::var("VARIANT").is_ok(), "{count}");
}

/// The faults are those of one database of two that share resources: the other one, which writes, flushes and reads between
/// the steps, meets none of them.
#[test]
fn every_fault_of_a_store_that_shares_resources_is_its_own() {
    let count = AtomicU64::new(0);
    for_each_variant(1, seed_or(13), |variant, rng| match variant.name {
        "manifest" => run_some_faults(&with_faults(&variant.shared()), rng.next_u64(), 11, &count),
        _ => Ok(()),
    });
    let count = count.load(Ordering::Relaxed);
    println!("{count} faults");
    assert!(count > 50 || std::env::var("VARIANT").is_ok(), "{count}");
}

/// The same with tables that have a dictionary of zstd.
#[test]
#[cfg(feature = "zstd")]
fn every_fault_of_a_store_with_dictionaries_is_reported_and_the_store_recovers() {
    let count = AtomicU64::new(0);
    for_each_variant(1, seed_or(14), |variant, rng| match variant.name {
        "compactions" => {
            let variant = with_faults(&variant.with_dictionaries());
            run_some_faults(&variant, rng.next_u64(), 5, &count)
        }
        _ => Ok(()),
    });
    let count = count.load(Ordering::Relaxed);
    println!("{count} faults");
    assert!(count > 50 || std::env::var("VARIANT").is_ok(), "{count}");
}

#[test]
fn a_full_disk_stops_writes_until_there_is_space_again() {
    let seed = seed_or(5);
    for_each_variant(2, seed, |variant, rng| full_disk(&with_faults(variant), rng.next_u64()));
}

/// Fills a disk several times. Each time space is freed the store recovers without being reopened.
fn full_disk(variant: &Variant, seed: u64) -> Result<(), String> {
    let mut run = Run::new(variant, seed);
    run.simulation.fs.clear_observer();
    run.simulation.open().map_err(context("open"))?;
    run.simulation.prepare().map_err(context("prepare"))?;
    for round in 0..4 {
        run.simulation.mem.set_capacity(Some((round + 1) * (200 << 10)));
        let mut refused = 0;
        for at in 0..1000 {
            let op = ("default", at, Some(1500));
            match run.simulation.act(&ScriptStep::Commit { ops: vec![op], sync: at % 3 == 0 }) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NoSpace => refused += 1,
                Err(error) => return Err(format!("round {round}, put {at}: {error}")),
            }
            if refused == 20 {
                break;
            }
        }
        let settled = run.simulation.act(&ScriptStep::Settle);
        let stuck = settled.is_err_and(|error| error.kind() == ErrorKind::NoSpace);
        if refused < 20 && !stuck {
            return Err(format!("round {round}: the disk never filled"));
        }
        run.check_seen(&observe(run.simulation.db())?)?;
        run.simulation.mem.set_capacity(None);
        let put = ScriptStep::Commit { ops: vec![("default", 7, Some(9))], sync: true };
        run.simulation.act(&put).map_err(context("a write when there is space"))?;
        run.simulation
            .act(&ScriptStep::Settle)
            .map_err(context("background work when there is space"))?;
        run.check_seen(&observe(run.simulation.db())?)?;
        run.check_cut("cut when there was space again")?;
    }
    run.simulation.act(&ScriptStep::Reopen).map_err(context("close and open"))?;
    run.check_seen(&observe(run.simulation.db())?)?;
    check_files(variant, &run.simulation.mem)
}

/// Readers see a commit once the log has it: a crash of the process takes nothing back that was seen, and a refused
/// one was never there.
#[test]
fn a_commit_is_visible_only_after_the_log_has_it() {
    let fs = FaultFs::over_mem(MemFs::new());
    let db = stepped(Arc::new(fs.clone()), "/db", 1).open().unwrap();
    let p = db.partition("p").unwrap();
    p.put("a", "1").unwrap();
    let before = db.visible_seq();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let appends = seen.clone();
    let reader = db.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        if op.kind == OpKind::Append && op.path.extension().is_some_and(|it| it == "wal") {
            appends.lock().unwrap().push(reader.visible_seq());
        }
    }));
    p.put("b", "2").unwrap();
    assert_eq!((&seen.lock().unwrap()[..], db.visible_seq()), (&[before][..], before.plus(1)));
    let at = FaultAt::Nth { kind: OpKind::Append, suffix: ".wal".to_owned(), nth: 0 };
    fs.add_rule(FaultRule::once(at, FaultAction::Eio));
    p.put("c", "3").unwrap_err();
    fs.clear_observer();
    assert_eq!(seen.lock().unwrap()[1], before.plus(1));
    assert_eq!(p.get("c").unwrap(), None);
}
