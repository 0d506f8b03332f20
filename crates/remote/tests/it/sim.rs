//! Primaries, zombies, claimants and readers on one simulated store, with a model of the commits.
//!
//! The model knows of each commit whether it was acknowledged, refused, or failed with an unknown outcome. It
//! checks after each takeover, and at each reader: nothing acknowledged is lost, nothing refused appears, and
//! what a reader has seen stays; and a primary that calls its state the newest one has all that is acknowledged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use remote::{Ack, RestoreTarget};
use siltstone::fs::{CrashOutcome, MemFs};
use siltstone::{BackgroundMode, Db, Durability, ErrorKind};
use testkit::Rng;

use crate::sim_machine::{CommitShape, MINUTE, Machine, commit_meanwhile, read_newest, remote_of};
use crate::sim_model::Commits;
use crate::sim_reader::SimReader;
use crate::sim_store::{Objects, SimClock, SimStore, journal_name, new_late_bucket};

/// Takeovers in a normal run; `REMOTE_TAKEOVERS` sets another number.
const TAKEOVERS: u64 = 2000;

pub struct World {
    rng: Rng,
    objects: Objects,
    commits: Arc<Mutex<Commits>>,
    /// Commits that a notice has called stored. Taken into the model before each check.
    noticed: Arc<Mutex<BTreeSet<u64>>>,
    machine: Arc<Machine>,
    zombies: Vec<Arc<Machine>>,
    /// Disks of machines that were off.
    old_disks: Vec<MemFs>,
    readers: Vec<SimReader>,
    ack: Ack,
    shape: CommitShape,
    takeovers: u64,
}

impl World {
    pub fn new(mut rng: Rng) -> World {
        let objects = new_late_bucket(&mut rng);
        let store = SimStore::new(objects.clone(), rng.fork());
        let ack = if rng.chance(1, 3) { Ack::Local } else { Ack::Stored };
        let shape = CommitShape::new(&mut rng);
        let machine = Machine::open(store, MemFs::new(), (ack, shape), false, &mut rng);
        let machine = machine.expect("a first open");
        machine.commit(0, Durability::Sync, false).expect("a first commit");
        machine.primary.ship().expect("it is stored");
        let mut commits = Commits { next: 1, ..Commits::default() };
        commits.acknowledged.insert(0);
        World {
            rng,
            objects,
            commits: Arc::new(Mutex::new(commits)),
            noticed: Arc::default(),
            machine: Arc::new(machine),
            zombies: Vec::new(),
            old_disks: Vec::new(),
            readers: Vec::new(),
            ack,
            shape,
            takeovers: 0,
        }
    }

    fn store(&mut self) -> Arc<SimStore> {
        let store = SimStore::new(self.objects.clone(), self.rng.fork());
        store.fails_one_of.store(*self.rng.pick(&[0, 0, 40, 8]), Ordering::Relaxed);
        store
    }

    /// A commit on the primary, which a claim without a machine may have fenced.
    pub fn commit(&mut self) {
        let was_fenced = self.machine.is_fenced();
        let number = self.commits.lock().take_number();
        let is_synced = self.rng.chance(3, 4);
        let durability = if is_synced { Durability::Sync } else { Durability::Os };
        let committed = self.machine.commit(number, durability, self.rng.chance(1, 8));
        if committed.is_ok() && is_synced {
            self.ask(number);
        }
        let is_local = self.machine.is_local;
        if let Err(error) = &committed {
            assert!(self.machine.is_named(error), "{error}");
        }
        let mut commits = self.commits.lock();
        match committed {
            committed if was_fenced => {
                let is_acknowledged = committed.is_ok() && is_synced && !is_local;
                assert!(!is_acknowledged, "a fenced primary acknowledges {number}");
                commits.refused.insert(number)
            }
            Ok(()) if is_synced && is_local => commits.local.insert(number),
            // A synced commit takes all before it along.
            Ok(()) if is_synced => commits.acknowledged.insert(number),
            Ok(()) | Err(_) => commits.unknown.insert(number),
        };
    }

    /// Asks for a notice of the last commit.
    fn ask(&self, number: u64) {
        let noticed = self.noticed.clone();
        let Machine { primary, db, .. } = &*self.machine;
        let asked = primary.on_stored(db, db.visible_seq(), move |outcome| {
            if outcome.is_ok() {
                noticed.lock().insert(number);
            }
        });
        asked.expect("the commit is written");
    }

    fn take_noticed(&self) {
        let noticed = std::mem::take(&mut *self.noticed.lock());
        let mut commits = self.commits.lock();
        noticed.into_iter().for_each(|number| commits.note_stored(number));
    }

    /// A zombie writes; nothing of it may ever appear.
    fn wake_zombie(&mut self) {
        if self.zombies.is_empty() {
            return;
        }
        let zombie = self.zombies[self.rng.index(self.zombies.len())].clone();
        read_newest(&zombie, &self.commits);
        let is_large = self.rng.chance(1, 8);
        for durability in [Durability::Os, Durability::Sync] {
            self.refuse(&zombie, durability, is_large);
        }
        let _ = zombie.db.flush();
        let _ = zombie.db.step();
        let _ = zombie.primary.ship();
        let _ = zombie.primary.collect();
        if self.rng.chance(1, 4) {
            self.heal(&zombie);
        }
    }

    /// A commit of a zombie. Returns the kind of its error.
    fn refuse(
        &self,
        zombie: &Machine,
        durability: Durability,
        is_large: bool,
    ) -> Option<ErrorKind> {
        let mut commits = self.commits.lock();
        let number = commits.take_number();
        commits.refused.insert(number);
        let committed = zombie.commit(number, durability, is_large);
        let may_be_ok = durability == Durability::Os || zombie.is_local;
        assert!(committed.is_ok() <= may_be_ok, "a zombie acknowledges {number}");
        let error = committed.err()?;
        assert!(zombie.is_named(&error), "{error}");
        Some(error.kind())
    }

    /// The store answers a zombie again: it learns that it is fenced, whatever has failed before.
    fn heal(&self, zombie: &Machine) {
        zombie.store.fails_one_of.store(0, Ordering::Relaxed);
        for _ in 0..3 {
            self.refuse(zombie, Durability::Sync, false);
            let _ = zombie.primary.ship();
            let _ = zombie.db.step();
        }
        let refused = self.refuse(zombie, Durability::Sync, false);
        assert_eq!(refused, Some(ErrorKind::Fenced), "a zombie ends as one");
    }

    /// Work of the primary, which may die in one of its calls.
    fn work(&mut self) {
        match self.rng.below(8) {
            0..=2 => self.commit(),
            3 => self.ship(),
            4 => drop(self.machine.db.flush()),
            5 => drop(self.machine.db.step()),
            6 => drop(self.machine.primary.restore()),
            _ => drop(self.machine.primary.collect()),
        }
    }

    /// The bucket is away for some work of the primary.
    fn lose_bucket(&mut self) {
        let store = self.machine.store.clone();
        store.be_away(|| (0..4).for_each(|_| self.work()));
    }

    /// Another machine takes over, after the old one has died at some call, or while it lives.
    pub fn take_over(&mut self) {
        self.takeovers += 1;
        let dies = self.rng.chance(1, 2);
        if dies {
            let calls_max = *self.rng.pick(&[6, 40]);
            self.machine.store.die_in(self.rng.below(calls_max));
            for _ in 0..6 {
                self.work();
            }
        }
        let is_new_disk = self.old_disks.is_empty() || self.rng.chance(1, 2);
        let disk = if is_new_disk { MemFs::new() } else { self.old_disks.swap_remove(0) };
        let rival = if dies { None } else { Some(self.machine.clone()) };
        let (machine, _) = self.claim(disk, true, rival);
        let old = std::mem::replace(&mut self.machine, machine);
        let seen = self.machine.seen();
        self.take_noticed();
        self.commits.lock().settle(&seen, "a takeover");
        if !dies {
            commit_meanwhile(&self.machine, &self.commits);
            read_newest(&old, &self.commits);
        }
        if dies || self.zombies.len() > 2 {
            let outcome = *self.rng.pick(&CrashOutcome::ALL);
            let rng = &mut self.rng;
            self.old_disks.push(old.fs.crash_clone(outcome, &mut || rng.next_u64()));
            old.store.die_in(0);
        } else {
            self.zombies.push(old);
        }
        if self.zombies.len() > 2 {
            self.zombies.remove(0);
        }
    }

    /// Opens the database on `disk`; a claimant may die, and another one comes. Meanwhile the living primary
    /// `rival` makes a commit in one of its calls. Returns whether the last claimant has taken over: without
    /// `takes_over` it opens the own folder as long as that is not refused, and perhaps after that.
    fn claim(
        &mut self,
        disk: MemFs,
        takes_over: bool,
        rival: Option<Arc<Machine>>,
    ) -> (Arc<Machine>, bool) {
        let mut takes_over = takes_over;
        loop {
            let store = self.store();
            if let Some(rival) = rival.clone() {
                let commits = self.commits.clone();
                store.pause_in(self.rng.below(40), move || commit_meanwhile(&rival, &commits));
            }
            let is_mortal = self.rng.chance(1, 4);
            if is_mortal {
                store.die_in(self.rng.below(40));
            }
            let kind = (self.ack, self.shape);
            let disk = disk.clone();
            let opened = Machine::open(store.clone(), disk, kind, takes_over, &mut self.rng);
            match opened {
                Ok(machine) if !store.is_dead() => {
                    machine.store.spare();
                    return (Arc::new(machine), takes_over);
                }
                Ok(machine) => drop(machine),
                Err(error) => {
                    let kind = error.kind();
                    // After a power cut the folder may have commits that the bucket lacks.
                    let is_cut = kind == ErrorKind::InvalidArgument && self.ack == Ack::Local;
                    let is_dead = kind == ErrorKind::ReadOnly && store.is_dead();
                    let is_named = matches!(kind, ErrorKind::Io | ErrorKind::Fenced);
                    assert!(is_named || is_dead || is_cut && !takes_over, "{error}");
                }
            }
            takes_over = takes_over || self.rng.chance(1, 2);
        }
    }

    /// The machine is killed, or loses its power, and comes back with its own disk.
    fn restart(&mut self) {
        let is_kill = self.rng.chance(1, 2);
        let outcome =
            if is_kill { CrashOutcome::Everything } else { *self.rng.pick(&CrashOutcome::ALL) };
        let rng = &mut self.rng;
        let disk = self.machine.fs.crash_clone(outcome, &mut || rng.next_u64());
        let was_fenced = self.machine.is_fenced();
        let late_claims = self.objects.late_claims();
        // What the drop writes comes too late.
        self.machine.store.die_in(0);
        let (machine, has_taken_over) = self.claim(disk, false, None);
        self.machine = machine;
        let seen = self.machine.seen();
        self.take_noticed();
        let is_disturbed = was_fenced || self.objects.late_claims() > late_claims;
        let mut commits = self.commits.lock();
        if is_kill && !(is_disturbed && has_taken_over) {
            commits.store_local();
        } else {
            let local = std::mem::take(&mut commits.local);
            commits.unknown.extend(local);
        }
        commits.settle(&seen, "a restart");
    }

    fn read(&mut self) {
        let kind = (self.ack, self.shape);
        if self.readers.len() < 3
            && let Some(reader) = SimReader::open(&self.objects, kind, &mut self.rng)
        {
            self.readers.push(reader);
        }
        if self.readers.is_empty() {
            return;
        }
        let at = self.rng.index(self.readers.len());
        self.readers[at].read(self.ack, &self.commits, &mut self.rng);
        if self.readers[at].is_dead() || self.rng.chance(1, 10) {
            self.readers.remove(at);
        }
    }

    /// The clock of the store jumps. No lease expires by that.
    fn jump(&mut self) {
        let time = MINUTE * self.rng.below(6000) as u32;
        match self.rng.chance(1, 2) {
            true => self.objects.jump(time),
            false => self.objects.jump_back(time),
        }
    }

    fn ship(&mut self) {
        if self.machine.primary.ship().is_ok() {
            self.commits.lock().store_local();
        }
    }

    /// Everything that is acknowledged is there, for a new machine and for a restore; and nothing is missing in
    /// the bucket.
    pub fn check_all(&mut self) {
        self.take_over();
        self.read();
        let disk = MemFs::new();
        let store = SimStore::new(self.objects.clone(), self.rng.fork());
        let remote = remote_of(&store, &disk, self.ack, &mut self.rng);
        let report = remote.verify().expect("the bucket answers");
        assert!(report.is_sound(), "{report:?}");
        remote.restore("/restored", RestoreTarget::Latest).expect("it is restored");
        let clock = Arc::new(SimClock(self.objects.clone()));
        let db = Db::builder("/restored").fs(Arc::new(disk)).clock(clock);
        let db = db.background(BackgroundMode::Stepped).open().expect("it opens");
        let begun = self.objects.calendar();
        let seen = self.shape.look(&self.objects, begun, |name| db.partition(name));
        let seen = seen.expect("the partitions are read");
        self.commits.lock().check(&seen, self.ack == Ack::Stored, "a restore");
    }

    /// The primary stops in a call of the store. Another machine takes over and commits; then the first goes on.
    fn take_over_in_a_call(&mut self) {
        self.takeovers += 1;
        let store = self.store();
        if self.rng.chance(1, 8) {
            store.die_in(self.rng.below(60));
        }
        let taken: Arc<Mutex<Option<Machine>>> = Arc::default();
        let mut rng = self.rng.fork();
        let commits = self.commits.clone();
        let slot = taken.clone();
        let kind = (self.ack, self.shape);
        let pause = move || {
            let machine = Machine::open(store.clone(), MemFs::new(), kind, true, &mut rng);
            let Ok(machine) = machine else { return };
            if store.is_dead() {
                return;
            }
            store.spare();
            let seen = machine.seen();
            let mut commits = commits.lock();
            commits.check(&seen, true, "a takeover in a call");
            let number = commits.take_number();
            let committed = machine.commit(number, Durability::Sync, false);
            let stored = committed.and_then(|()| machine.primary.ship());
            commits.note(number, stored, false);
            drop(commits);
            *slot.lock() = Some(machine);
        };
        let commits_only = self.rng.chance(1, 2);
        let calls_max = if commits_only { 4 } else { 40 };
        self.machine.store.pause_in(self.rng.below(calls_max), pause);
        for _ in 0..6 {
            if taken.lock().is_some() {
                break;
            }
            let Machine { primary, db, .. } = &*self.machine;
            match self.rng.below(5) {
                0 if !commits_only => drop(primary.collect()),
                1 if !commits_only => drop(primary.restore()),
                2 if !commits_only => drop(db.flush()),
                _ => commit_meanwhile(&self.machine, &self.commits),
            }
        }
        self.machine.store.spare();
        let Some(machine) = taken.lock().take() else { return };
        let old = std::mem::replace(&mut self.machine, Arc::new(machine));
        let seen = self.machine.seen();
        self.take_noticed();
        self.commits.lock().settle(&seen, "a takeover in a call");
        read_newest(&old, &self.commits);
        self.zombies.push(old);
    }

    /// A claimant dies in the put of its claim, which has its effect now, later, or never; and no other one comes. The
    /// primary goes on, and is fenced by no one, once the claim is there.
    fn claim_in_vain(&mut self) {
        let store = self.store();
        let next = journal_name(self.machine.primary.status().number + 1);
        let dying = store.clone();
        store.pause_before_put(&next, move || dying.die_in(0));
        let kind = (self.ack, self.shape);
        // If the name is that of an object of the primary whose answer was lost, the claimant lives. It ends here.
        let _ = Machine::open(store, MemFs::new(), kind, true, &mut self.rng);
    }

    /// The operator of a primary that a claim without a machine has fenced notices it in the end.
    fn end_fenced(&mut self) {
        if self.machine.is_fenced() && self.rng.chance(1, 4) {
            match self.rng.chance(1, 2) {
                true => self.restart(),
                false => self.take_over(),
            }
        }
    }

    fn step(&mut self) {
        self.take_noticed();
        self.objects.advance(MINUTE * self.rng.below(12) as u32);
        self.objects.take_effect_late(&mut self.rng);
        self.end_fenced();
        match self.rng.below(110) {
            0..=38 => self.commit(),
            39..=48 => self.read(),
            49..=55 => self.ship(),
            56 => self.lose_bucket(),
            57..=62 => drop(self.machine.db.flush()),
            63..=68 => drop(self.machine.db.step()),
            69..=73 => self.wake_zombie(),
            74..=76 => {
                let _ = self.machine.primary.restore();
            }
            77..=85 => drop(self.machine.primary.collect()),
            86..=87 => self.jump(),
            88..=91 => self.restart(),
            92..=95 => self.take_over_in_a_call(),
            96..=98 => self.claim_in_vain(),
            104.. => read_newest(&self.machine, &self.commits),
            _ => self.take_over(),
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_refused_appears() {
    let wanted = std::env::var("REMOTE_TAKEOVERS").ok();
    let wanted = wanted.map_or(TAKEOVERS, |text| text.parse().expect("a number"));
    let mut rng = Rng::from_env_or(20_261_128);
    let mut done = 0;
    let mut late_claims = 0;
    // A world of its own now and then, so that no history grows without bound.
    while done < wanted {
        let mut world = World::new(rng.fork());
        while world.takeovers < 25.min(wanted - done) {
            world.step();
        }
        done += world.takeovers;
        late_claims += world.objects.late_claims();
        world.check_all();
    }
    assert!(late_claims > 0 || wanted < TAKEOVERS, "no claim has taken effect late");
}
