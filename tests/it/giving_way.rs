//! A deep merge is interrupted: level-0 merges that become due run in the middle of it.
//!
//! Background work runs in steps. A filter in the deep merge writes to another partition and
//! flushes, so that level 0 of that partition is due while the merge runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lsm_core::fs::{CrashOutcome, FaultFs, Fs, FsOp, MemFs};
use lsm_core::hooks::{
    CompactionFilter, CompactionFilterFactory, Decision, Entry, Event, EventListener, Job, JobKind,
};
use siltstone::{Db, Error, ErrorKind, Partition, PartitionOptions, Result};
use testkit::Rng;

use crate::clock::ManualClock;
use crate::store::stepped;

/// Called with the number of each entry of a deep merge.
type Action = Box<dyn FnMut(u64) + Send>;

/// Makes the next deep merge of its partition run an action.
#[derive(Default)]
struct Interrupter(Mutex<Option<Action>>);

struct Interrupted {
    entries: u64,
    action: Option<Action>,
}

impl CompactionFilterFactory for Interrupter {
    fn name(&self) -> &'static str {
        "interrupter"
    }

    fn start(&self, job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        let is_deep = job.kind == JobKind::Compaction && job.level_from > 0;
        let action = if is_deep { self.0.lock().unwrap().take() } else { None };
        Ok(Box::new(Interrupted { entries: 0, action }))
    }
}

impl CompactionFilter for Interrupted {
    fn decide(&mut self, _: Entry<'_>) -> Result<Decision> {
        self.entries += 1;
        if let Some(action) = &mut self.action {
            action(self.entries);
        }
        Ok(Decision::Keep)
    }
}

/// Called at the start of each merge.
struct AtStart(Box<dyn Fn() -> Result<()> + Send + Sync>);

struct Nothing;

impl CompactionFilter for Nothing {}

impl CompactionFilterFactory for AtStart {
    fn name(&self) -> &'static str {
        "at-start"
    }

    fn start(&self, job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        if job.kind == JobKind::Compaction {
            (self.0)()?;
        }
        Ok(Box::new(Nothing))
    }
}

/// The merges in the order in which they ended: partition and upper level.
#[derive(Clone, Default)]
struct Ended(Arc<Mutex<Vec<String>>>);

impl Ended {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl EventListener for Ended {
    fn on_event(&self, event: &Event) {
        if let Event::Compacted { partition, level_from, .. } = event {
            self.0.lock().unwrap().push(format!("{partition} {level_from}"));
        }
    }
}

/// A store with a deep merge due in partition `deep` that reads more than 8,000 entries, and the
/// partition `other`.
struct Case {
    db: Db,
    deep: Partition,
    other: Partition,
    interrupter: Arc<Interrupter>,
    clock: ManualClock,
    ended: Ended,
}

const ENTRIES: u64 = 9000;
/// The keys of the other partition after two interruptions.
const OTHERS: [u64; 8] = [1500, 1501, 1502, 1503, 5000, 5001, 5002, 5003];
/// The order in which they are written.
const WRITTEN: [u64; 8] = [1500, 1502, 1501, 1503, 5000, 5002, 5001, 5003];

fn open(fs: Arc<dyn Fs>, clock: &ManualClock, ended: &Ended) -> Db {
    let builder = stepped(fs, "/db", 5).clock(Arc::new(clock.clone()));
    builder.listener(Arc::new(ended.clone())).open().unwrap()
}

fn deep_options(interrupter: &Arc<Interrupter>) -> PartitionOptions {
    PartitionOptions::new().level0_tables(2).level_base_bytes(16 << 10).filter(interrupter.clone())
}

/// Writes the keys as two tables that overlap.
fn fill(db: &Db, partition: &Partition, keys: impl Iterator<Item = u64> + Clone) {
    for half in 0..2 {
        for key in keys.clone().skip(half).step_by(2) {
            partition.put(key.to_be_bytes(), key.to_le_bytes()).unwrap();
        }
        db.flush().unwrap();
    }
}

impl Case {
    fn new(fs: Arc<dyn Fs>, other_options: PartitionOptions, clock: &ManualClock) -> Case {
        let interrupter = Arc::new(Interrupter::default());
        let ended = Ended::default();
        let db = open(fs, clock, &ended);
        let deep = db.partition_with("deep", deep_options(&interrupter)).unwrap();
        let other = db.partition_with("other", other_options.level0_tables(2)).unwrap();
        fill(&db, &deep, (0..ENTRIES).filter(|key| key % 3 > 0));
        db.wait_idle().unwrap();
        fill(&db, &deep, (0..ENTRIES).step_by(3));
        assert!(db.step().unwrap(), "level 0 into the base level");
        assert_eq!(ended.take().last().unwrap(), "deep 0");
        Case { db, deep, other, interrupter, clock: clock.clone(), ended }
    }

    /// Makes the deep merge call `make_due` at each of these entries, with its number.
    fn interrupt(&self, at: &'static [u64], mut make_due: impl FnMut(u64) + Send + 'static) {
        *self.interrupter.0.lock().unwrap() = Some(Box::new(move |entry| {
            if at.contains(&entry) {
                make_due(entry);
            }
        }));
    }

    /// As `interrupt`, with level 0 of the other partition.
    fn make_other_due(&self, at: &'static [u64]) {
        let db = self.db.clone();
        let other = self.other.clone();
        self.interrupt(at, move |entry| fill(&db, &other, entry..entry + 4));
    }

    fn check(&self, others: &[u64]) {
        assert_eq!(keys(&self.deep), (0..ENTRIES).collect::<Vec<_>>());
        assert_eq!(keys(&self.other), others);
    }
}

fn keys(partition: &Partition) -> Vec<u64> {
    let entries = partition.iter().map(|entry| entry.unwrap());
    entries
        .map(|(key, value)| {
            let key = u64::from_be_bytes(key[..].try_into().unwrap());
            assert_eq!(value[..], key.to_le_bytes());
            key
        })
        .collect()
}

#[test]
fn level_0_that_becomes_due_is_merged_in_the_middle_of_a_deep_merge() {
    let case = Case::new(Arc::new(MemFs::new()), PartitionOptions::new(), &ManualClock::default());
    case.make_other_due(&[1500, 5000]);
    assert!(case.db.step().unwrap());
    assert_eq!(case.ended.take(), ["other 0", "other 0", "deep 5"]);
    case.check(&OTHERS);
    assert!(case.db.health().background_errors.is_empty());
    case.db.wait_idle().unwrap();
}

/// A deep merge that is always interrupted would never end while an application writes.
#[test]
fn interruptions_take_no_more_time_than_the_deep_merge() {
    let clock = ManualClock::default();
    let slow = clock.clone();
    let pass = AtStart(Box::new(move || {
        slow.pass(100);
        Ok(())
    }));
    let options = PartitionOptions::new().filter(Arc::new(pass));
    let case = Case::new(Arc::new(MemFs::new()), options, &clock);
    case.make_other_due(&[1500, 5000]);
    assert!(case.db.step().unwrap());
    assert_eq!(case.ended.take(), ["other 0", "deep 5"], "100 seconds were given");
    assert!(case.db.step().unwrap());
    assert_eq!(case.ended.take(), ["other 0"]);
    case.check(&OTHERS);
    // The second time the deep merge has run for as many seconds itself.
    fill(&case.db, &case.deep, (0..ENTRIES).step_by(2));
    assert!(case.db.step().unwrap());
    assert_eq!(case.ended.take(), ["deep 0"]);
    let db = case.db.clone();
    let other = case.other.clone();
    let passing = case.clock.clone();
    case.interrupt(&[1500, 3000, 5000], move |entry| match entry {
        3000 => passing.pass(100),
        _ => fill(&db, &other, entry..entry + 4),
    });
    assert!(case.db.step().unwrap());
    assert_eq!(case.ended.take(), ["other 0", "other 0", "deep 5"]);
    case.check(&OTHERS);
}

#[test]
fn a_merge_that_fails_in_the_middle_of_another_fails_alone() {
    let is_broken = Arc::new(Mutex::new(true));
    let asked = is_broken.clone();
    let refuse = AtStart(Box::new(move || match *asked.lock().unwrap() {
        true => Err(Error::new(ErrorKind::Io, "not now")),
        false => Ok(()),
    }));
    let options = PartitionOptions::new().filter(Arc::new(refuse));
    let case = Case::new(Arc::new(MemFs::new()), options, &ManualClock::default());
    case.make_other_due(&[1500, 5000]);
    assert!(case.db.step().unwrap(), "the deep merge works");
    assert_eq!(case.ended.take(), ["deep 5"]);
    let error = case.db.wait_idle().unwrap_err();
    assert!(error.to_string().contains("not now"), "{error}");
    *is_broken.lock().unwrap() = false;
    case.db.wait_idle().unwrap();
    assert_eq!(case.ended.take(), ["other 0", "other 0"], "two ranges");
    case.check(&OTHERS);
}

#[test]
fn a_power_cut_during_both_merges_loses_nothing() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let case = Case::new(Arc::new(fs.clone()), PartitionOptions::new(), &ManualClock::default());
    case.make_other_due(&[1500, 5000]);
    let images = Arc::new(Mutex::new(Vec::new()));
    let taken = images.clone();
    let rng = Mutex::new(Rng::new(11));
    fs.set_observer(Arc::new(move |op: &FsOp| {
        if op.mutates() {
            let mut rng = rng.lock().unwrap();
            let outcome = *rng.pick(&CrashOutcome::ALL);
            let image = mem.crash_clone(outcome, &mut || rng.next_u64());
            let what = format!("before op {} {:?}, {outcome:?}", op.index, op.kind);
            taken.lock().unwrap().push((what, image));
        }
    }));
    assert!(case.db.step().unwrap());
    fs.clear_observer();
    assert_eq!(case.ended.take(), ["other 0", "other 0", "deep 5"]);
    let images = std::mem::take(&mut *images.lock().unwrap());
    let mut seen = BTreeMap::new();
    for (what, image) in images {
        let hooks = Arc::new(Interrupter::default());
        let db = open(Arc::new(image), &ManualClock::default(), &Ended::default());
        let deep = db.partition_with("deep", deep_options(&hooks)).unwrap();
        let other = db.partition("other").unwrap();
        for _ in 0..2 {
            assert_eq!(keys(&deep), (0..ENTRIES).collect::<Vec<_>>(), "{what}");
            let present = keys(&other);
            let mut expected = WRITTEN[..present.len()].to_vec();
            expected.sort_unstable();
            assert_eq!(present, expected, "{what}");
            *seen.entry(present.len()).or_insert(0) += 1;
            db.wait_idle().unwrap();
        }
    }
    assert!(seen.contains_key(&0) && seen.contains_key(&4) && seen.contains_key(&8), "{seen:?}");
}
