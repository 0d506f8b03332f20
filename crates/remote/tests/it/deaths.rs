//! A machine dies at each call of the store in turn, within deletion, a base, a restore and a takeover. Whoever comes after
//! it has all that was acknowledged, and the bucket ends as it should.

use std::sync::Arc;
use std::time::Duration;

use remote::{Primary, Remote, RestoreTarget};
use siltstone::fs::{CrashOutcome, MemFs};
use siltstone::{
    BackgroundMode, Db, Durability, LargeValueOptions, Partition, PartitionOptions, Result,
};
use testkit::Rng;

use crate::deletion::HOUR;
use crate::sim_store::{Objects, SimStore, with_clock};

/// The work in which a machine dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Deletion,
    Base,
    Restore,
    RestoreToMoment,
    Takeover,
}

/// A machine, and whether its calls end.
struct Machine {
    store: Arc<SimStore>,
    remote: Remote,
    fs: MemFs,
}

impl Machine {
    fn new(objects: &Objects, fs: MemFs, rng: &mut Rng) -> Machine {
        let store = SimStore::new(objects.clone(), rng.fork());
        let remote = with_clock(&store, &fs, rng).retention(2 * HOUR).grace(HOUR);
        Machine { store, remote, fs }
    }

    fn open(&self, takes_over: bool) -> Result<(Primary, Db)> {
        let primary = match takes_over {
            true => self.remote.take_over("/db")?,
            false => self.remote.primary("/db")?,
        };
        let db = primary.builder().background(BackgroundMode::Stepped).open()?;
        Ok((primary, db))
    }
}

fn values(db: &Db) -> Partition {
    let large = PartitionOptions::new().large_values(LargeValueOptions::default());
    db.partition_with("values", large).unwrap()
}

/// Commits with small and large values, in a table and in the log. Those of earlier calls go.
fn write(db: &Db, primary: &Primary, round: u8) {
    values(db).clear().unwrap();
    for number in 0..8 {
        let len = if number % 4 == 0 { 100_000 } else { 20 };
        values(db).put_with([round, number], vec![number; len], Durability::Sync).unwrap();
        if number == 4 {
            db.flush().unwrap();
        }
    }
    while db.step().unwrap() {}
    primary.ship().unwrap();
}

fn check(db: &Db, round: u8) {
    let found = values(db).iter().map(|it| it.map(|(key, _)| key.to_vec()));
    let found: Vec<_> = found.collect::<Result<_>>().unwrap();
    let expected: Vec<_> = (0..8).map(|number| vec![round, number]).collect();
    assert_eq!(found, expected);
}

/// The bucket of a scene, and the machine that has written last.
struct Scene {
    objects: Objects,
    rng: Rng,
    last: Machine,
    opened: Option<(Primary, Db)>,
}

impl Scene {
    /// A bucket with two bases, and with garbage of each kind.
    fn new() -> Scene {
        let mut rng = Rng::new(91);
        let objects = Objects::default();
        let first = Machine::new(&objects, MemFs::new(), &mut rng);
        let (primary, db) = first.open(true).unwrap();
        write(&db, &primary, 1);
        let reader = Machine::new(&objects, MemFs::new(), &mut rng);
        let opened = reader.remote.clone().lease(Some(Duration::from_secs(60))).reader().unwrap();
        reader.store.die_in(0);
        drop(opened);
        let claimant = first.remote.status().unwrap().claimant;
        let orphan =
            format!("table/00000000000000ff-00000001.sst/{:016x}-{:016x}-{:016x}", 0, 9, 1);
        objects.lock().insert(format!("{orphan}-{claimant:032x}"), vec![1; 9].into());
        objects.lock().insert("probe/0123".to_owned(), vec![1].into());
        drop((primary, db));
        let last = Machine::new(&objects, MemFs::new(), &mut rng);
        let opened = last.open(true).unwrap();
        write(&opened.1, &opened.0, 2);
        Scene { objects, rng, last, opened: Some(opened) }
    }

    /// Another machine takes over, or the last one comes back with its disk.
    fn reopen(&mut self, takes_over: bool) {
        let rng = &mut self.rng;
        let disk = match takes_over {
            true => MemFs::new(),
            false => self.last.fs.crash_clone(CrashOutcome::Everything, &mut || rng.next_u64()),
        };
        self.last.store.die_in(0);
        self.opened = None;
        self.last = Machine::new(&self.objects, disk, &mut self.rng);
        self.opened = Some(self.last.open(takes_over).unwrap());
    }

    /// Does `work` until the machine dies after `calls`. Returns the machine.
    fn die(&mut self, work: Work, calls: u64) -> Arc<SimStore> {
        let mut rng = self.rng.fork();
        let other = Machine::new(&self.objects, MemFs::new(), &mut rng);
        let (primary, _) = self.opened.as_ref().unwrap();
        match work {
            Work::Deletion => {
                // The first round puts the boundary. Those after it delete, what was put in vain last.
                for round in 0..3 {
                    self.objects.advance(4 * HOUR);
                    let _ = primary.collect();
                    if round == 0 {
                        self.last.store.die_in(calls);
                    }
                }
            }
            Work::Base => {
                self.reopen(false);
                let (primary, db) = self.opened.as_ref().unwrap();
                values(db).put_with([2, 7], vec![7; 90_000], Durability::Os).unwrap();
                self.last.store.die_in(calls);
                let _ = primary.ship();
            }
            Work::Restore => {
                self.reopen(true);
                self.last.store.die_in(calls);
                let _ = self.opened.as_ref().unwrap().0.restore();
            }
            Work::RestoreToMoment => {
                other.store.die_in(calls);
                let _ = other.remote.restore("/restored", RestoreTarget::Latest);
                return other.store;
            }
            Work::Takeover => {
                other.store.die_in(calls);
                let _ = other.open(true).map(|(primary, _)| primary.ship());
                return other.store;
            }
        }
        self.last.store.clone()
    }
}

/// Returns `false` if the work has no so many calls.
fn survives(work: Work, calls: u64) -> bool {
    let mut scene = Scene::new();
    let died = scene.die(work, calls).is_dead();
    let takes_over = work == Work::Takeover || calls % 2 == 1;
    scene.reopen(takes_over);
    check(&scene.opened.as_ref().unwrap().1, 2);
    // Later rounds delete what is left, and nothing else.
    for round in 3..6 {
        let (primary, db) = scene.opened.as_ref().unwrap();
        write(db, primary, round);
        for _ in 0..3 {
            scene.objects.advance(HOUR);
            primary.collect().unwrap();
        }
        scene.reopen(round == 4);
        let (primary, db) = scene.opened.as_ref().unwrap();
        check(db, round);
        primary.ship().unwrap();
        scene.objects.advance(9 * HOUR);
        for _ in 0..3 {
            primary.collect().unwrap();
            scene.objects.advance(HOUR);
        }
    }
    let report = scene.last.remote.verify().unwrap();
    assert!(report.is_sound(), "{work:?}, call {calls}: {report:?}");
    let status = scene.last.remote.status().unwrap();
    assert_eq!(status.garbage.objects, 0, "{work:?}, call {calls}: {status:?}");
    assert!(status.leases.is_empty(), "{work:?}, call {calls}: {status:?}");
    died
}

fn calls_of(work: Work) -> usize {
    (0..1000).take_while(|calls| survives(work, *calls)).count()
}

#[test]
fn a_death_in_each_call_of_deletion_leaves_all_that_is_needed_and_no_garbage() {
    assert!(calls_of(Work::Deletion) > 40);
}

#[test]
fn a_death_in_each_call_of_a_base_or_a_restore_loses_nothing() {
    for work in [Work::Base, Work::Restore, Work::RestoreToMoment] {
        let calls = calls_of(work);
        assert!(calls > 1, "{work:?}: {calls} calls");
    }
}

#[test]
fn a_death_in_each_call_of_a_takeover_loses_nothing() {
    assert!(calls_of(Work::Takeover) > 20);
}
