//! The storage fails at every operation, in every way, once and until it is healed.
//!
//! A script runs without a fault to count its operations, then again and again with a fault at each
//! of them. A fault must be reported: as the error of a call, or in the statistics; or it is on the
//! list of harmless ones ([`harmless`]). Acknowledged writes read back during the fault, after it,
//! and after a power cut; refused writes never come back; when the fault is healed the store
//! recovers by itself. After a failed sync of the log it is read-only and reports why, until it has
//! written its memtables to new files.

mod stacked;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lsm_core::fs::{CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, FsOp, MemFs, OpKind};
use siltstone::ErrorKind;
use testkit::Rng;

use crate::crash::{for_each_variant, seed_or};
use crate::sim::oracle::{check_files, check_goes_on, check_prefix, check_sound, guarded, observe};
use crate::sim::script::{ScriptStep, Variant, Writer};
use crate::sim::{Simulation, WriteRecord, context};
use crate::store::stepped;

const STEPS: usize = 36;
/// A fault that lasts is healed after so many steps.
const DEEDS_UNTIL_HEALED: usize = 4;
/// More operations than any run needs: a run that reaches it does not end.
const OPS_MOST: u64 = 100_000;

/// The faults that an operation can have.
fn actions(op: &FsOp) -> Vec<FaultAction> {
    use FaultAction::{Eio, Enospc, ShortWrite, ShortWriteNoSpace, SyncLost, SyncReverted};
    match op.kind {
        OpKind::Append => vec![
            Eio,
            Enospc,
            ShortWrite(op.len / 2),
            ShortWrite(u64::MAX),
            ShortWriteNoSpace(op.len * 3 / 4),
        ],
        OpKind::Sync | OpKind::SyncDir | OpKind::PutIfAbsent => {
            vec![Eio, Enospc, SyncLost, SyncReverted]
        }
        OpKind::Create | OpKind::Preallocate => vec![Eio, Enospc],
        _ => vec![Eio],
    }
}

/// The reason why a fault at `log[at]` need not be reported; `None` if it must be.
fn harmless(log: &[FsOp], at: usize) -> Option<&'static str> {
    let kind_before = |back: usize| at.checked_sub(back).map(|at| log[at].kind);
    let of_manifest = log[at].path.to_string_lossy().ends_with(".manifest");
    match log[at].kind {
        OpKind::Map => Some("appends to the log are written then"),
        OpKind::BeginSync => Some("the sync that follows has more to do"),
        OpKind::Delete => Some("nothing needs the file, and the next open removes it"),
        OpKind::List => Some("what leases may hold stays, and they are looked for again"),
        OpKind::SyncDir if kind_before(1) == Some(OpKind::Delete) => {
            Some("the removed files come back after a crash, and the next open removes them")
        }
        OpKind::PutIfAbsent | OpKind::OpenExisting | OpKind::Len if of_manifest => {
            Some("the present generation of the manifest takes edits all the same")
        }
        OpKind::Append if of_manifest && kind_before(1) == Some(OpKind::Len) => {
            Some("a generation that could not name its successor counts until that has an edit")
        }
        OpKind::Sync if of_manifest && kind_before(2) == Some(OpKind::Len) => {
            Some("as for the append before it")
        }
        OpKind::Append if is_index_at_close(log, at) => {
            Some("a segment without an index is walked, and there is no one to report to")
        }
        _ => None,
    }
}

fn is_segment(op: &FsOp) -> bool {
    op.path.extension().is_some_and(|it| it == "wal")
}

/// Returns `true` if `log[at]` appends to a segment after a later one has begun, and no sync of the log comes until
/// the next open. A frame goes to the last segment, and a close syncs it.
fn is_index_at_close(log: &[FsOp], at: usize) -> bool {
    let mut before = log[..at].iter();
    let mut after = log[at + 1..].iter().take_while(|op| op.kind != OpKind::Lock);
    is_segment(&log[at])
        && before.any(|op| op.kind == OpKind::Create && is_segment(op) && op.path > log[at].path)
        && !after.any(|op| op.kind == OpKind::Sync && is_segment(op))
}

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
}

impl Run {
    fn new(variant: &Variant, seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        // A fault is met at the operation of the same number only if nothing is left of an earlier run.
        let variant = if variant.resources.is_some() { variant.shared() } else { variant.clone() };
        let record = WriteRecord::default();
        let simulation = Simulation::new(&variant, MemFs::new(), record, rng.fork());
        simulation.fs.set_observer(Arc::new(|op: &FsOp| assert!(op.index < OPS_MOST, "no end")));
        Run { simulation, variant, rng, surfaced: false }
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
            self.step(step, at)?;
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
        } else if matches!(step, ScriptStep::Reopen)
            && !self.simulation.record().doubtful.is_empty()
        {
            self.take_in()?;
        }
        let stats = self.simulation.db().stats();
        self.surfaced |= stats.background_error.is_some() || stats.read_only_because.is_some();
        if at.is_multiple_of(5) {
            match observe(self.simulation.db()) {
                Ok(seen) => self.check_seen(&seen)?,
                Err(_) if self.simulation.fs.fault_count() > 0 => self.surfaced = true,
                Err(what) => return Err(what),
            }
        }
        Ok(())
    }

    fn check_seen(&self, seen: &crate::sim::oracle::Seen) -> Result<(), String> {
        let record = self.simulation.record();
        if seen.logged != record.visible() || seen.unlogged != record.visible_unlogged() {
            return Err("a reader sees something else than what was written".to_owned());
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
        *self.simulation.record() = WriteRecord::of(&seen);
        Ok(())
    }

    /// A cut now leaves a prefix of the commits, and the store continues from it.
    fn check_cut(&mut self, when: &str) -> Result<(), String> {
        let outcomes = [CrashOutcome::Nothing, CrashOutcome::Everything, CrashOutcome::Subset];
        for outcome in outcomes {
            let left = self.simulation.mem.crash_clone(outcome, &mut || self.rng.next_u64());
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
        self.simulation
            .act(&ScriptStep::Settle)
            .map_err(context("background work after healing"))?;
        let put = ScriptStep::Commit { ops: vec![("default", 99, Some(9))], sync: true };
        self.simulation.act(&put).map_err(context("a write after healing"))?;
        let stats = self.simulation.db().stats();
        if let Some(error) = stats.background_error.or(stats.read_only_because) {
            return Err(format!("still reported after healing: {error}"));
        }
        self.check_seen(&observe(self.simulation.db())?)?;
        self.check_cut("cut after healing")?;
        self.simulation.act(&ScriptStep::Flush).map_err(context("flush after healing"))?;
        self.simulation
            .act(&ScriptStep::Reopen)
            .map_err(context("closing and opening after healing"))?;
        self.check_seen(&observe(self.simulation.db())?)?;
        check_sound(self.simulation.db())?;
        check_files(&self.variant, &self.simulation.mem)
    }

    /// Readers continue, writers get the error, and a cut leaves what was durable.
    fn while_read_only(&mut self, why: &str, rule: &FaultRule, op: &FsOp) -> Result<(), String> {
        let of_log = op.path.to_string_lossy().ends_with(".wal") && op.kind == OpKind::Sync;
        if !(of_log || rule.sticky) || !why.contains("sync") {
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
    for (at, op) in log.iter().enumerate().skip(first).step_by(step) {
        for action in actions(op) {
            for sticky in [false, true] {
                let rule = FaultRule { at: FaultAt::Op(op.index), action, sticky };
                run_fault(variant, seed, &log, at, &rule)
                    .map_err(|what| format!("{op:?}, {rule:?}, script of {seed}: {what}"))?;
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Returns `true` if the store compensates for the fault: the log creates a shorter segment where
/// the disk has no room for one of the usual length; the space reserved after a closed log is freed
/// with its file; and secondaries read the log where the commit cursor has no lock, and its file is
/// created again at once.
fn is_made_up_for(op: &FsOp, rule: &FaultRule) -> bool {
    if op.path.to_string_lossy().contains("cursor-") {
        return op.kind == OpKind::Lock || (op.kind == OpKind::MapWords && !rule.sticky);
    }
    let no_room = op.kind == OpKind::Preallocate && rule.action == FaultAction::Enospc;
    // The header of an encrypted segment, which goes before the space that is reserved.
    let is_header =
        op.kind == OpKind::Append && op.len == 256 && rule.action == FaultAction::Enospc;
    op.kind == OpKind::Punch || ((no_room || is_header) && !rule.sticky)
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
