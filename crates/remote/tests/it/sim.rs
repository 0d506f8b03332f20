//! Primaries, zombies, claimants and readers on one simulated store, with a model of the commits.
//!
//! The model knows of each commit whether it was acknowledged, refused, or failed with an unknown outcome. It
//! checks after each takeover, and at each reader: nothing acknowledged is lost, nothing refused appears, and
//! what a reader has seen stays.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use remote::{Primary, RemoteReader};
use siltstone::fs::{CrashOutcome, MemFs};
use siltstone::secondary::{Level, Secondary, Target};
use siltstone::{
    BackgroundMode, Db, Durability, ErrorKind, Partition, PartitionOptions, Readable, Result,
};
use testkit::Rng;

use crate::sim_store::{Objects, SimStore, remote_of};

/// Takeovers in a normal run; `REMOTE_TAKEOVERS` sets another number.
const TAKEOVERS: u64 = 150;

/// The fate of each commit, by its number.
#[derive(Default)]
struct Commits {
    next: u64,
    acknowledged: BTreeSet<u64>,
    refused: BTreeSet<u64>,
    /// Its call failed: it may be there or not.
    unknown: BTreeSet<u64>,
}

impl Commits {
    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Checks what a reader sees. With `is_all` it must see every acknowledged commit.
    fn check(&mut self, seen: &BTreeSet<u64>, is_all: bool, whence: &str) {
        let wrong: Vec<_> = seen.intersection(&self.refused).collect();
        assert!(wrong.is_empty(), "{whence}: refused commits appear: {wrong:?}");
        let last = if is_all { u64::MAX } else { seen.last().copied().unwrap_or(0) };
        let lost: Vec<_> =
            self.acknowledged.iter().filter(|n| **n <= last && !seen.contains(n)).collect();
        assert!(lost.is_empty(), "{whence}: acknowledged commits are lost: {lost:?}");
        // What was seen is in the journal, and no takeover removes it.
        let known: Vec<u64> = self.unknown.intersection(seen).copied().collect();
        for number in known {
            self.unknown.remove(&number);
            self.acknowledged.insert(number);
        }
    }

    /// After a takeover, or an open of the own folder: what is not there never appears.
    fn settle(&mut self, seen: &BTreeSet<u64>, whence: &str) {
        self.check(seen, true, whence);
        self.refused.append(&mut self.unknown);
    }
}

/// A machine with an open database.
struct Machine {
    fs: MemFs,
    store: Arc<SimStore>,
    primary: Primary,
    db: Db,
}

impl Machine {
    fn open(store: Arc<SimStore>, fs: MemFs, takes_over: bool, rng: &mut Rng) -> Result<Machine> {
        let remote = remote_of(&store, &fs, rng);
        let primary = match takes_over {
            true => remote.take_over("/db")?,
            false => remote.primary("/db")?,
        };
        let db = primary.builder().background(BackgroundMode::Stepped).write_buffer_bytes(64 << 10);
        let db = db.open()?;
        Ok(Machine { fs, store, primary, db })
    }

    fn commits(&self) -> Result<Partition> {
        self.db.partition("commits")
    }

    /// Makes a commit: a small value, or a large one in a chunk file.
    fn commit(&self, number: u64, durability: Durability, is_large: bool) -> Result<()> {
        let large = PartitionOptions::new().large_values(siltstone::LargeValueOptions::default());
        let values = self.db.partition_with("values", large)?;
        let len = if is_large { 100_000 } else { 20 };
        let batch = self.db.batch().put(&self.commits()?, number.to_be_bytes(), b"x");
        let batch = batch.put(&values, number.to_be_bytes(), vec![number as u8; len]);
        batch.commit(durability).map(drop)
    }

    fn seen(&self) -> BTreeSet<u64> {
        let values = self.db.partition("values");
        let seen = numbers(&self.commits().expect("the partition is there"));
        for number in &seen {
            let value = values.as_ref().expect("it is there").get(number.to_be_bytes());
            let value = value.expect("it is read").expect("both are in one batch");
            assert!(value.iter().all(|byte| *byte == *number as u8));
        }
        seen
    }
}

fn numbers(reader: &impl Readable) -> BTreeSet<u64> {
    let keys = reader.keys();
    keys.map(|key| {
        let key = key.expect("the key is read");
        u64::from_be_bytes(key.as_ref().try_into().expect("it is a number"))
    })
    .collect()
}

/// A commit of a primary that another machine may have fenced.
fn commit_meanwhile(machine: &Machine, commits: &Mutex<Commits>) {
    let number = commits.lock().take_number();
    let committed = machine.commit(number, Durability::Sync, false);
    let mut commits = commits.lock();
    match committed {
        Ok(()) => commits.acknowledged.insert(number),
        Err(error) if error.kind() == ErrorKind::Fenced => commits.refused.insert(number),
        Err(_) => commits.unknown.insert(number),
    };
}

struct World {
    rng: Rng,
    objects: Objects,
    commits: Arc<Mutex<Commits>>,
    machine: Arc<Machine>,
    zombies: Vec<Arc<Machine>>,
    /// Disks of machines that were off.
    old_disks: Vec<MemFs>,
    readers: Vec<(RemoteReader, Secondary)>,
    takeovers: u64,
}

impl World {
    fn new(mut rng: Rng) -> World {
        let objects = Objects::default();
        let store = SimStore::new(objects.clone(), rng.fork());
        let machine = Machine::open(store, MemFs::new(), false, &mut rng).expect("a first open");
        machine.commit(0, Durability::Sync, false).expect("a first commit");
        let mut commits = Commits { next: 1, ..Commits::default() };
        commits.acknowledged.insert(0);
        World {
            rng,
            objects,
            commits: Arc::new(Mutex::new(commits)),
            machine: Arc::new(machine),
            zombies: Vec::new(),
            old_disks: Vec::new(),
            readers: Vec::new(),
            takeovers: 0,
        }
    }

    fn store(&mut self) -> Arc<SimStore> {
        let store = SimStore::new(self.objects.clone(), self.rng.fork());
        store.fails_one_of.store(*self.rng.pick(&[0, 0, 40, 8]), Ordering::Relaxed);
        store
    }

    /// A commit on the primary, which nothing has fenced.
    fn commit(&mut self) {
        let number = self.commits.lock().take_number();
        let is_synced = self.rng.chance(3, 4);
        let durability = if is_synced { Durability::Sync } else { Durability::Os };
        let committed = self.machine.commit(number, durability, self.rng.chance(1, 8));
        let mut commits = self.commits.lock();
        match committed {
            Ok(()) if is_synced => {
                // A synced commit takes all before it along.
                commits.acknowledged.insert(number);
            }
            Ok(()) => drop(commits.unknown.insert(number)),
            Err(error) => {
                assert_ne!(error.kind(), ErrorKind::Fenced, "no other writer has claimed");
                commits.unknown.insert(number);
            }
        }
    }

    /// A zombie writes; nothing of it may ever appear.
    fn wake_zombie(&mut self) {
        if self.zombies.is_empty() {
            return;
        }
        let zombie = self.rng.index(self.zombies.len());
        let zombie = &self.zombies[zombie];
        let mut commits = self.commits.lock();
        for durability in [Durability::Os, Durability::Sync] {
            let number = commits.take_number();
            commits.refused.insert(number);
            let committed = zombie.commit(number, durability, false);
            assert!(
                committed.is_ok() <= (durability == Durability::Os),
                "a zombie acknowledges {number}"
            );
        }
        let _ = zombie.db.flush();
        let _ = zombie.db.step();
        let _ = zombie.primary.ship();
    }

    /// Another machine takes over, after the old one has died at some call, or while it lives.
    fn take_over(&mut self) {
        self.takeovers += 1;
        let dies = self.rng.chance(1, 2);
        if dies {
            let calls = self.rng.below(6);
            self.machine.store.die_in(calls);
            for _ in 0..3 {
                self.commit();
                let _ = self.machine.primary.ship();
                let _ = self.machine.db.flush();
            }
        }
        let is_new_disk = self.old_disks.is_empty() || self.rng.chance(1, 2);
        let disk = if is_new_disk { MemFs::new() } else { self.old_disks.swap_remove(0) };
        let rival = if dies { None } else { Some(self.machine.clone()) };
        let machine = self.claim(disk, true, rival);
        let old = std::mem::replace(&mut self.machine, machine);
        let seen = self.machine.seen();
        self.commits.lock().settle(&seen, "a takeover");
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
    /// `rival` makes a commit in one of its calls.
    fn claim(
        &mut self,
        disk: MemFs,
        takes_over: bool,
        rival: Option<Arc<Machine>>,
    ) -> Arc<Machine> {
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
            let opened = Machine::open(store.clone(), disk.clone(), takes_over, &mut self.rng);
            match opened {
                Ok(machine) if !store.is_dead() => {
                    machine.store.die_in(u64::MAX - 1);
                    machine.store.pause_in(u64::MAX, || {});
                    return Arc::new(machine);
                }
                Ok(machine) => drop(machine),
                Err(error) => {
                    let kind = error.kind();
                    let is_named =
                        matches!(kind, ErrorKind::Io | ErrorKind::Fenced | ErrorKind::ReadOnly);
                    assert!(
                        is_named
                            && (store.is_dead()
                                || kind == ErrorKind::Fenced
                                || kind == ErrorKind::Io),
                        "{error}"
                    );
                }
            }
            // The claim may have been stored, without a marker in the folder.
            takes_over = true;
        }
    }

    /// The machine is killed, or loses its power, and comes back with its own disk.
    fn restart(&mut self) {
        let is_kill = self.rng.chance(1, 2);
        let outcome =
            if is_kill { CrashOutcome::Everything } else { *self.rng.pick(&CrashOutcome::ALL) };
        let rng = &mut self.rng;
        let disk = self.machine.fs.crash_clone(outcome, &mut || rng.next_u64());
        // What the drop writes comes too late.
        self.machine.store.die_in(0);
        let machine = self.claim(disk, false, None);
        self.machine = machine;
        let seen = self.machine.seen();
        self.commits.lock().settle(&seen, "a restart");
    }

    fn read(&mut self) {
        if self.readers.len() < 3 {
            let store = SimStore::new(self.objects.clone(), self.rng.fork());
            let reader =
                remote_of(&store, &MemFs::new(), &mut self.rng).cache_bytes(300_000).reader();
            let reader = reader.expect("a reader opens");
            let secondary = reader.secondary().open().expect("a secondary opens");
            self.readers.push((reader, secondary));
        }
        let at = self.rng.index(self.readers.len());
        let (reader, secondary) = &self.readers[at];
        let commits = secondary.partition("commits").expect("it is known");
        let is_strong = self.rng.chance(1, 2);
        let view = if is_strong {
            commits.at(Level::Strong).expect("the bucket answers")
        } else {
            secondary.sync(Target::Latest).expect("the bucket answers");
            commits.at(Level::Eventual).expect("it is read")
        };
        let seen = numbers(&view);
        self.commits.lock().check(&seen, is_strong, "a reader");
        assert!(reader.cache_bytes() <= 300_000);
        if self.rng.chance(1, 10) {
            self.readers.remove(at);
        }
    }

    /// The primary stops in a call of the store. Another machine takes over and commits; then the first goes on.
    fn take_over_in_a_call(&mut self) {
        self.takeovers += 1;
        let store = self.store();
        let taken: Arc<Mutex<Option<Machine>>> = Arc::default();
        let mut rng = self.rng.fork();
        let commits = self.commits.clone();
        let slot = taken.clone();
        let pause = move || {
            let machine = Machine::open(store, MemFs::new(), true, &mut rng);
            let Ok(machine) = machine else { return };
            let seen = machine.seen();
            let mut commits = commits.lock();
            commits.check(&seen, true, "a takeover in a call");
            let number = commits.take_number();
            match machine.commit(number, Durability::Sync, false) {
                Ok(()) => commits.acknowledged.insert(number),
                Err(_) => commits.unknown.insert(number),
            };
            *slot.lock() = Some(machine);
        };
        self.machine.store.pause_in(self.rng.below(4), pause);
        for _ in 0..6 {
            if taken.lock().is_some() {
                break;
            }
            commit_meanwhile(&self.machine, &self.commits);
        }
        let Some(machine) = taken.lock().take() else { return };
        let old = std::mem::replace(&mut self.machine, Arc::new(machine));
        let seen = self.machine.seen();
        self.commits.lock().settle(&seen, "a takeover in a call");
        self.zombies.push(old);
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..=44 => self.commit(),
            45..=54 => self.read(),
            55..=62 => drop(self.machine.primary.ship()),
            63..=68 => drop(self.machine.db.flush()),
            69..=74 => drop(self.machine.db.step()),
            75..=79 => self.wake_zombie(),
            80..=82 => {
                let _ = self.machine.primary.restore();
            }
            83..=86 => self.restart(),
            87..=91 => self.take_over_in_a_call(),
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
    // A world of its own now and then, so that no history grows without bound.
    while done < wanted {
        let mut world = World::new(rng.fork());
        while world.takeovers < 25.min(wanted - done) {
            world.step();
        }
        done += world.takeovers;
        // At the end everything that was acknowledged is read by a new machine.
        world.take_over();
        world.read();
    }
}
