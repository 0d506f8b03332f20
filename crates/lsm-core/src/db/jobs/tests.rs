//! Picks and claims over partitions of drawings, and the turn to flush.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::batch::{SectionBuilder, SectionReader};
use crate::compaction::drawing::draw;
use crate::error::ErrorKind;
use crate::hooks::{CompactionFilter, CompactionFilterFactory, Expiry, Job, PartitionHooks};
use crate::types::EntryKind;
use crate::version::{ExpiryNotes, Kept, Level, Table};

/// Two compactions are due: level 0 alone, and a level that is too large.
const BOTH_DUE: &str = "L0: 2:a-b 1:a-b\nL5: 5:p-q*2000\nL6: 6:p-q*9000";

/// Partitions, held snapshots, the time.
struct Host {
    partitions: Vec<Arc<PartitionState>>,
    held: Mutex<Vec<SeqNo>>,
    now: Mutex<Duration>,
    changed: Mutex<BTreeSet<PartitionId>>,
    /// The number of lookups of partitions.
    looks: AtomicU64,
}

fn env(partitions: Vec<Arc<PartitionState>>) -> Arc<Host> {
    let changed = partitions.iter().map(|partition| partition.id).collect();
    Arc::new(Host {
        partitions,
        held: Mutex::default(),
        now: Mutex::default(),
        changed: Mutex::new(changed),
        looks: AtomicU64::new(0),
    })
}

impl JobsEnv for Host {
    fn partition(&self, id: PartitionId) -> Option<Arc<PartitionState>> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.partitions.iter().find(|partition| partition.id == id).cloned()
    }

    fn take_changed(&self) -> BTreeSet<PartitionId> {
        std::mem::take(&mut *self.changed.lock())
    }

    fn has_sealed(&self) -> bool {
        false
    }

    fn oldest_snapshot(&self) -> SeqNo {
        SeqNo::MAX
    }

    fn held_snapshots(&self) -> Vec<SeqNo> {
        self.held.lock().clone()
    }

    fn now(&self) -> Duration {
        *self.now.lock()
    }

    fn unix_time(&self) -> Duration {
        *self.now.lock()
    }
}

fn partition(id: u32, drawing: &str) -> Arc<PartitionState> {
    let version = PartitionVersion { id: PartitionId(id), ..draw(drawing) };
    Arc::new(PartitionState::alone(version, PartitionHooks::default()))
}

fn pick(jobs: &Jobs) -> Option<Claimed> {
    jobs.pick().expect("no hooks")
}

#[test]
fn what_is_claimed_is_not_picked_again_until_it_is_given_back() {
    let env = env(vec![partition(1, "L0: 2:a-c 1:b-d")]);
    let jobs = Jobs::new(env.clone());
    let claimed = pick(&jobs).expect("level 0 has too many tables");
    assert!(pick(&jobs).is_none() && jobs.is_running() && jobs.has_work());
    let failed = Error::new(ErrorKind::Io, "no");
    jobs.finish(&claimed, Err(&failed));
    assert!(!jobs.is_running());
    assert!(pick(&jobs).is_some(), "it failed, and is tried again");
}

#[test]
fn damaged_inputs_stay_claimed_and_the_rest_goes_on() {
    let env = env(vec![partition(1, BOTH_DUE)]);
    let jobs = Jobs::new(env.clone());
    let damaged = pick(&jobs).expect("two are due");
    let rotten = Error::corruption("/db/1.sst", 0, "rotten");
    jobs.finish(&damaged, Err(&rotten));
    assert!(jobs.damage().expect("it is reported").is_corruption());
    let other = pick(&jobs).expect("the other is sound");
    assert_ne!(other.compaction.level_from, damaged.compaction.level_from);
    jobs.finish(&other, Err(&Error::new(ErrorKind::Io, "no")));
    let again = pick(&jobs).expect("its inputs were given back");
    assert_eq!(again.compaction.level_from, other.compaction.level_from);
}

#[test]
fn the_sound_inputs_of_a_damaged_compaction_are_given_back() {
    let env = env(vec![partition(1, "L5: 5:a-c*2000 6:d-f*2000\nL6: 7:a-f*9000")]);
    let jobs = Jobs::new(env.clone());
    let damaged = pick(&jobs).expect("level 5 is due");
    let (_, table) = damaged.compaction.tables().next().expect("it has inputs");
    assert_eq!(table.meta.file, FileNo(5));
    let rotten = Error::corruption(format!("/db/{}", table.meta.file_name()), 0, "rotten");
    jobs.finish(&damaged, Err(&rotten));
    let other = pick(&jobs).expect("level 5 is due");
    let inputs: Vec<_> = other.compaction.tables().map(|(_, table)| table.meta.file.0).collect();
    assert_eq!(inputs, [6, 7]);
}

/// One damaged table failed each write that met a stall, however short, until the next open.
#[test]
fn damage_is_in_the_way_only_if_nothing_else_runs_or_is_due() {
    let env = env(vec![partition(1, BOTH_DUE)]);
    let partition = &env.partitions[0];
    let jobs = Jobs::new(env.clone());
    let damaged = pick(&jobs).expect("two are due");
    jobs.finish(&damaged, Err(&Error::corruption("/db/1.sst", 0, "rotten")));
    assert!(jobs.failure_of(partition).is_none(), "another one is due");
    let other = pick(&jobs).expect("the other is sound");
    assert!(jobs.failure_of(partition).is_none(), "another one runs");
    jobs.finish(&other, Err(&Error::corruption("/db/6.sst", 0, "rotten")));
    assert!(jobs.failure_of(partition).expect("nothing is left").is_corruption());
    assert!(pick(&jobs).is_none());
}

#[test]
fn a_partition_whose_last_compaction_failed_comes_last() {
    let heavy = "L0: 4:a-b 3:a-b 2:a-b 1:a-b";
    let light = "L0: 2:a-b 1:a-b";
    let env = env(vec![partition(1, heavy), partition(2, light)]);
    let jobs = Jobs::new(env.clone());
    let first = pick(&jobs).expect("both are due");
    assert_eq!(first.partition.id, PartitionId(1), "it is more overdue");
    jobs.finish(&first, Err(&Error::new(ErrorKind::Io, "no")));
    let next = pick(&jobs).expect("both are due");
    assert_eq!(next.partition.id, PartitionId(2));
}

#[test]
fn what_failed_is_passed_over_by_who_looks_for_sound_partitions() {
    let env = env(vec![partition(1, "L0: 2:a-b 1:a-b"), partition(2, "L0: 4:a-b 3:a-b")]);
    let jobs = Jobs::new(env.clone());
    let failed = Error::new(ErrorKind::Io, "no");
    let HealthyPick::Due(first) = jobs.pick_healthy() else { panic!("both are due") };
    jobs.finish(&first, Err(&failed));
    let HealthyPick::Due(second) = jobs.pick_healthy() else { panic!("one is sound") };
    assert_ne!(first.partition.id, second.partition.id);
    assert!(matches!(jobs.pick_healthy(), HealthyPick::OnlyFailing));
    jobs.finish(&second, Err(&failed));
    assert!(matches!(jobs.pick_healthy(), HealthyPick::OnlyFailing));
    assert!(jobs.has_work(), "nothing was claimed");
    let retried = [pick(&jobs), pick(&jobs)].map(|it| it.expect("both are due"));
    for claimed in &retried {
        jobs.finish(claimed, Ok(&[]));
    }
    assert!(matches!(jobs.pick_healthy(), HealthyPick::Due(_)), "it did not fail again");
    let empty = Jobs::new(self::env(Vec::new()));
    assert!(matches!(empty.pick_healthy(), HealthyPick::Nothing));
}

#[test]
fn level_0_is_picked_by_itself_and_nothing_else_is_forgotten() {
    let deep = "L5: 5:p-q*9000\nL6: 6:p-q*9000";
    let worse = "L0: 3:a-b 2:a-b 1:a-b";
    let drawings = [deep, "L0: 2:a-b 1:a-b", worse, "L0: 1:a-b"];
    let env = env((1..).zip(drawings).map(|(id, drawing)| partition(id, drawing)).collect());
    let jobs = Jobs::new(env.clone());
    let before = jobs.news();
    let first = jobs.pick_level0().expect("level 0 is due in two partitions");
    assert_eq!((first.partition.id, first.compaction.score), (PartitionId(3), 1.5));
    let second = jobs.pick_level0().expect("level 0 is due in another one");
    assert_eq!(second.partition.id, PartitionId(2));
    assert!(jobs.pick_level0().is_none() && jobs.news() == before);
    jobs.finish(&second, Err(&Error::new(ErrorKind::Io, "no")));
    assert!(jobs.pick_level0().is_none(), "what failed is for the threads to try again");
    assert_ne!(jobs.news(), before, "a claim was given back");
    let picked = [pick(&jobs), pick(&jobs)];
    assert_eq!(picked.map(|it| it.expect("both are due").partition.id.0), [1, 2]);
}

#[test]
fn claims_of_a_dropped_partition_go_with_what_runs_last_in_it() {
    let env = env(vec![partition(1, BOTH_DUE)]);
    let jobs = Jobs::new(env.clone());
    let claimed = pick(&jobs).expect("two are due");
    let entered = jobs.enter(&claimed.partition);
    claimed.partition.mark_dropped(0);
    jobs.finish(&claimed, Err(&Error::corruption("/db/1.sst", 0, "rotten")));
    assert!(jobs.is_running(), "an ingest is under way in it");
    drop(entered);
    assert!(jobs.state.lock().claims.is_empty() && jobs.damage().is_none());
}

#[test]
fn compactions_keep_clear_of_levels_that_an_ingest_has_reserved() {
    let env = env(vec![partition(1, "L0: 2:a-c 1:b-d")]);
    let jobs = Jobs::new(env.clone());
    let arriving = crate::compaction::drawing::table("9:x-z");
    let partition = &env.partitions[0];
    let one = std::slice::from_ref(&arriving);
    assert_eq!(jobs.reserve_levels(partition, one), [6]);
    let inside = crate::compaction::drawing::table("10:y-y");
    assert_eq!(jobs.reserve_levels(partition, std::slice::from_ref(&inside)), [0]);
    jobs.release_levels(partition, one);
    assert_eq!(jobs.reserve_levels(partition, std::slice::from_ref(&inside)), [6]);
}

#[test]
fn a_table_is_due_some_time_after_the_snapshot_that_it_kept_much_for_is_released() {
    let mut meta = crate::compaction::drawing::table("1:a-z");
    meta.kept = [Kept { snapshot: SeqNo::new(5).unwrap(), entries: 11 }].into();
    let mut version = draw("");
    version.levels[6] = Level::sorted(vec![Arc::new(Table::new(meta))]).unwrap();
    let env = env(vec![Arc::new(PartitionState::alone(version, PartitionHooks::default()))]);
    let jobs = Jobs::new(env.clone());
    env.held.lock().push(SeqNo::new(5).unwrap());
    assert!(pick(&jobs).is_none() && jobs.waits_for_time());
    env.held.lock().clear();
    assert!(pick(&jobs).is_none(), "others may be released soon");
    *env.now.lock() += triggers::RELEASE_DELAY;
    let claimed = pick(&jobs).expect("11 of 100 entries could go");
    assert_eq!((claimed.compaction.level_from, claimed.compaction.level_to), (6, 6));
}

/// A filter that panics when its expiry rule is read.
struct Unsteady;

impl Expiry for Unsteady {
    fn expires_at(&self, _: &[u8], _: Option<&[u8]>) -> Option<u64> {
        None
    }

    fn now(&self, _: Duration) -> u64 {
        0
    }

    fn stays_for(&self) -> Option<u64> {
        panic!("it does not know")
    }
}

impl CompactionFilterFactory for Unsteady {
    fn name(&self) -> &'static str {
        "unsteady"
    }

    fn expiry(&self) -> Option<Arc<dyn Expiry>> {
        Some(Arc::new(Unsteady))
    }

    fn start(&self, _: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        unreachable!("nothing is compacted")
    }
}

/// The panic used to end the thread, and the candidates that the pick had taken out were lost.
#[test]
fn a_filter_that_panics_about_its_times_fails_the_pick_of_its_partition_alone() {
    let hooks = PartitionHooks { filters: vec![Arc::new(Unsteady)], ..PartitionHooks::default() };
    let mut meta = crate::compaction::drawing::table("1:a-z");
    let mut notes = ExpiryNotes::default();
    notes.note(5);
    meta.expiries = Some(notes.take(hooks.ageing().expect("it has times").rule));
    let mut version = PartitionVersion { id: PartitionId(1), ..draw("") };
    version.levels[6] = Level::sorted(vec![Arc::new(Table::new(meta))]).unwrap();
    let unsteady = Arc::new(PartitionState::alone(version, hooks));
    let env = env(vec![unsteady, partition(2, BOTH_DUE), partition(3, BOTH_DUE)]);
    let jobs = Jobs::new(env.clone());
    let mut picked = Vec::new();
    for _ in 0..4 {
        picked.push(pick(&jobs).expect("two are due in each").partition.id.0);
    }
    picked.sort_unstable();
    assert_eq!(picked, [2, 2, 3, 3]);
    let refused = jobs.pick().err().expect("nothing else is due");
    assert_eq!(refused.kind(), ErrorKind::HookPanicked, "{refused}");
    assert!(jobs.has_work(), "the partition is looked at again");
    assert!(jobs.failure_of(&env.partitions[0]).is_some());
}

/// A pick looked at every partition, and at every table of each.
#[test]
fn a_pick_looks_only_where_something_changed_or_is_due() {
    let due = partition(0, "L0: 4:a-b 3:a-b 2:a-b 1:a-b");
    let quiet = (1..1000).map(|id| partition(id, "L6: 1:a-b"));
    let env = env(std::iter::once(due).chain(quiet).collect());
    let jobs = Jobs::new(env.clone());
    let claimed = pick(&jobs).expect("level 0 has too many tables");
    assert_eq!(env.looks.swap(0, Ordering::Relaxed), 1000, "the first pick");
    assert!(pick(&jobs).is_none() && jobs.has_work());
    jobs.finish(&claimed, Err(&Error::new(ErrorKind::Io, "no")));
    let again = pick(&jobs).expect("it failed, and is due again");
    jobs.finish(&again, Err(&Error::new(ErrorKind::Io, "no")));
    env.changed.lock().insert(PartitionId(7));
    assert!(pick(&jobs).is_some());
    let looks = env.looks.load(Ordering::Relaxed);
    assert!(looks <= 5, "{looks} looks at a thousand partitions of which two changed");
}

/// Partitions with one sealed memtable each, that holds a value of so many bytes.
fn sealed(lens: &[(u32, usize)]) -> (Arc<WorkList>, Vec<Arc<PartitionState>>) {
    let work = Arc::default();
    let slabs = Arc::new(crate::memtable::SlabPool::new(0));
    let partitions = lens.iter().map(|(id, len)| {
        let version = Arc::new(PartitionVersion { id: PartitionId(*id), ..draw("") });
        let partition = PartitionState::new(version, PartitionHooks::default(), &slabs, &work);
        let mut section = SectionBuilder::default();
        section.push(EntryKind::Value, b"key", &vec![7; *len]);
        let operation = SectionReader::new(section.bytes()).next_operation().unwrap().unwrap();
        let seq = SeqNo::new(1).unwrap();
        let (bytes, sums, _) = section.lend();
        partition.view().active.writer().insert(seq, 0, sums[0], &bytes, &operation).unwrap();
        partition.seal();
        Arc::new(partition)
    });
    let partitions = partitions.collect();
    (work, partitions)
}

#[test]
fn the_most_sealed_memory_is_flushed_first_and_what_failed_last() {
    let (work, partitions) = sealed(&[(1, 10_000), (2, 100_000), (3, 10)]);
    let jobs = Jobs::new(env(Vec::new()));
    let mut turn = jobs.flush_turn();
    assert_eq!(turn.largest(&work, true), Some(PartitionId(2)));
    turn.note(&partitions[1], false);
    assert_eq!(turn.largest(&work, true), Some(PartitionId(1)));
    turn.note(&partitions[1], true);
    assert_eq!(turn.largest(&work, true), Some(PartitionId(2)));
    (1..4).for_each(|id| turn.note(&partitions[id - 1], false));
    assert_eq!(turn.largest(&work, true), Some(PartitionId(2)), "all of them failed");
    assert_eq!(turn.largest(&work, false), None, "all of them need the log");
}
