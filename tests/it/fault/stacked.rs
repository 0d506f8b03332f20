//! One fault after another: the power is cut, and then the storage fails while the next open recovers;
//! and syncs that report success and do nothing, before the power is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use lsm_core::fs::FaultFs;
use siltstone::{Db, Error};
use testkit::model::Step;

use crate::crash::{for_each_variant, seed_or};
use crate::sim::oracle::{Seen, reopen};
use crate::sim::{DIR, open};

use super::*;

/// Images of a script that are opened with faults.
const IMAGES: usize = 5;

/// Runs a script, and returns images of cuts before some of its operations that change the storage.
fn images_of_a_script(variant: &Variant, rng: &mut Rng) -> Result<Vec<MemFs>, String> {
    let mut simulation = Simulation::new(variant, MemFs::new(), WriteRecord::default(), rng.fork());
    let images: Arc<Mutex<Vec<MemFs>>> = Arc::default();
    let taken = images.clone();
    let mem = simulation.mem.clone();
    let own = Mutex::new(rng.fork());
    simulation.open().map_err(context("open"))?;
    simulation.prepare().map_err(context("prepare"))?;
    simulation.fs.set_observer(Arc::new(move |op: &FsOp| {
        let mut rng = own.lock().unwrap();
        if op.mutates() && rng.chance(1, 6) {
            let outcome = *rng.pick(&CrashOutcome::ALL);
            taken.lock().unwrap().push(mem.crash_clone(outcome, &mut || rng.next_u64()));
        }
    }));
    for step in Writer::new(variant, &[], rng.fork()).script(2 * STEPS) {
        simulation.act(&step).map_err(context("a step on a sound store"))?;
    }
    simulation.fs.clear_observer();
    let mut images = std::mem::take(&mut *images.lock().unwrap());
    // The last ones have the most in them.
    let first = images.len().saturating_sub(3 * IMAGES);
    Ok(images.drain(first..).step_by(3).collect())
}

fn copy(mem: &MemFs) -> MemFs {
    mem.crash_clone(CrashOutcome::Everything, &mut || 0)
}

fn check_same(found: &Seen, expected: &Seen, when: &str) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("another state {when}")) }
}

/// Opens the image with a fault, and then without: the state is that of an open without a fault,
/// also after another cut.
fn recover_with_fault(
    variant: &Variant,
    image: &MemFs,
    expected: &Seen,
    rule: &FaultRule,
    rng: &mut Rng,
) -> Result<(), String> {
    let mem = copy(image);
    let fs = FaultFs::over_mem(mem.clone());
    fs.set_observer(Arc::new(|op: &FsOp| assert!(op.index < OPS_MOST, "no end")));
    fs.add_rule(rule.clone());
    let opened = open(variant, Arc::new(fs.clone()), 5);
    if fs.fault_count() == 0 {
        return Err("the fault was never met".to_owned());
    }
    for outcome in [CrashOutcome::Nothing, CrashOutcome::Subset, CrashOutcome::Everything] {
        let left = mem.crash_clone(outcome, &mut || rng.next_u64());
        let when = format!("after a second cut, {outcome:?}");
        let (_db, found) = reopen(variant, &left, 6).map_err(|what| format!("{when}: {what}"))?;
        check_same(&found, expected, &when)?;
    }
    fs.heal();
    if let Ok(db) = opened {
        check_same(&observe(&db)?, expected, "in the open that succeeded")?;
    }
    let (_db, found) = reopen(variant, &mem, 7).map_err(|what| format!("healed: {what}"))?;
    check_same(&found, expected, "after healing")
}

fn recover_with_faults(variant: &Variant, rng: &mut Rng, count: &AtomicU64) -> Result<(), String> {
    for image in images_of_a_script(variant, rng)? {
        let (db, expected) = reopen(variant, &copy(&image), 5)?;
        drop(db);
        let clean = FaultFs::over_mem(copy(&image));
        clean.start_log();
        let db = open(variant, Arc::new(clean.clone()), 5).map_err(context("open"))?;
        // Without the operations of its end.
        let log = clean.take_log();
        drop(db);
        for op in log.iter().skip(rng.index(4)).step_by(4) {
            for action in actions(op) {
                for sticky in [false, true] {
                    let rule = FaultRule { at: FaultAt::Op(op.index), action, sticky };
                    guarded(|| recover_with_fault(variant, &image, &expected, &rule, rng))
                        .map_err(|what| format!("{op:?}, {rule:?}: {what}"))?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_fault_while_recovering_from_a_power_cut_changes_no_state() {
    let count = AtomicU64::new(0);
    let seed = seed_or(29);
    for_each_variant(1, seed, |variant, rng| {
        recover_with_faults(&super::with_faults(variant), rng, &count)
    });
    let count = count.load(Ordering::Relaxed);
    println!("{count} faults, SEED={seed}");
    assert!(count > 1000 || std::env::var("VARIANT").is_ok(), "{count}");
}

/// Every value that was ever written to a key, by partition.
type Written = BTreeMap<(String, Vec<u8>), BTreeSet<Vec<u8>>>;

fn written(record: &WriteRecord) -> Written {
    let mut written = Written::new();
    for step in record.model.log().iter().chain(&record.in_flight).chain(&record.refused) {
        let Step::Commit(ops) = step else { continue };
        for op in ops {
            let values = written.entry((op.partition.clone(), op.key.clone())).or_default();
            values.extend(op.value.as_ref().map(|value| value.to_vec()));
        }
    }
    for (key, value) in &record.unlogged {
        let key = (crate::sim::script::UNLOGGED.to_owned(), key.clone());
        written.entry(key).or_default().extend(value.as_ref().map(|value| value.to_vec()));
    }
    written
}

/// The outcomes of opens after syncs that did nothing.
#[derive(Debug, Default)]
struct Outcomes {
    whole: AtomicU64,
    refused: AtomicU64,
    unreadable: AtomicU64,
}

fn check_damage(error: &Error, what: &str) -> Result<(), String> {
    let names_file = error.damage().is_some_and(|damage| damage.file.starts_with(DIR));
    if error.is_corruption() && names_file { Ok(()) } else { Err(format!("{what}: {error}")) }
}

fn check_value(written: &Written, name: &str, key: &[u8], value: &[u8]) -> Result<(), String> {
    let values = written.get(&(name.to_owned(), key.to_vec()));
    if values.is_some_and(|values| values.contains(value)) {
        return Ok(());
    }
    Err(format!("{name}/{} has a foreign value", key.escape_ascii()))
}

/// Every key has a value that was written to it, or none, or a read reports damage.
fn check_values(db: &Db, written: &Written) -> Result<(), String> {
    for (name, key) in written.keys() {
        if !db.has_partition(name) {
            continue;
        }
        let partition = db.partition(name).map_err(context("partition"))?;
        match partition.get(key) {
            Ok(None) => {}
            Ok(Some(value)) => check_value(written, name, key, &value)?,
            Err(error) => check_damage(&error, "get")?,
        }
    }
    Ok(())
}

/// Checks one image of a cut after syncs that did nothing. No promise holds then: the state may be no
/// prefix of the commits. But no value is wrong.
fn check_lied(
    variant: &Variant,
    mem: &MemFs,
    record: &WriteRecord,
    outcomes: &Outcomes,
) -> Result<(), String> {
    let db = match open(variant, Arc::new(mem.clone()), 8) {
        Ok(db) => db,
        Err(error) => {
            outcomes.refused.fetch_add(1, Ordering::Relaxed);
            return check_damage(&error, "open");
        }
    };
    let written = written(record);
    let mut is_damaged = false;
    for name in db.partition_names() {
        let partition = db.partition(&name).map_err(context("partition"))?;
        for entry in partition.iter() {
            match entry {
                Ok((key, value)) => check_value(&written, &name, &key, &value)?,
                Err(error) => {
                    is_damaged = true;
                    check_damage(&error, "scan")?;
                }
            }
        }
    }
    let outcome = if is_damaged { &outcomes.unreadable } else { &outcomes.whole };
    outcome.fetch_add(1, Ordering::Relaxed);
    check_values(&db, &written)
}

fn lie_about_syncs(variant: &Variant, rng: &mut Rng, outcomes: &Outcomes) -> Result<(), String> {
    let seed = rng.next_u64();
    let mut clean = Run::new(variant, seed);
    clean.script()?;
    let ops = clean.simulation.fs.op_count();
    for _ in 0..12 {
        let mut run = Run::new(variant, seed);
        let at = FaultAt::Op(rng.below(ops));
        run.simulation.fs.add_rule(FaultRule::sticky(at.clone(), FaultAction::SyncLie));
        run.simulation.open().map_err(context("open"))?;
        run.simulation.prepare().map_err(context("prepare"))?;
        for step in Writer::new(variant, &[], run.rng.fork()).script(STEPS) {
            run.simulation.act(&step).map_err(context("a step"))?;
        }
        for outcome in CrashOutcome::ALL.into_iter().chain(CrashOutcome::ALL) {
            let left = run.simulation.mem.crash_clone(outcome, &mut || rng.next_u64());
            guarded(|| check_lied(variant, &left, &run.simulation.record(), outcomes))
                .map_err(|what| format!("{at:?}, {outcome:?}, script of {seed}: {what}"))?;
        }
    }
    Ok(())
}

#[test]
fn after_syncs_that_did_nothing_each_value_was_written_or_damage_is_reported() {
    let outcomes = Outcomes::default();
    let seed = seed_or(31);
    for_each_variant(2, seed, |variant, rng| {
        lie_about_syncs(&super::with_faults(variant), rng, &outcomes)
    });
    println!("{outcomes:?}, SEED={seed}");
    let Outcomes { whole, refused, unreadable } = outcomes;
    let counts = [whole, refused, unreadable].map(AtomicU64::into_inner);
    assert!(counts.into_iter().all(|n| n > 0) || std::env::var("VARIANT").is_ok(), "{counts:?}");
}
