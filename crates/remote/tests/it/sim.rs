//! Primaries, zombies, claimants and readers on one simulated store, with a model of the commits.
//!
//! The model knows of each commit whether it was acknowledged, refused, or failed with an unknown outcome. It
//! checks after each takeover, and at each reader: nothing acknowledged is lost, nothing refused appears, and
//! what a reader has seen stays; and a primary that calls its state the newest one has all that is acknowledged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use remote::{Ack, Primary, Remote, RemoteReader, RestoreTarget};
use siltstone::fs::{CrashOutcome, MemFs};
use siltstone::secondary::{Level, Reading, Secondary, Target};
use siltstone::{BackgroundMode, Db, Durability, ErrorKind, Partition, PartitionOptions, Result};
use testkit::Rng;

use crate::sim_model::{Commits, MARK, mark_of, numbers, try_numbers};
use crate::sim_store::{Objects, SimStore, new_bucket, with_poor_clock};

/// Takeovers in a normal run; `REMOTE_TAKEOVERS` sets another number.
const TAKEOVERS: u64 = 2000;
const MINUTE: Duration = Duration::from_secs(60);
/// The renewals of leases, and the time for which one surely counts.
const LEASE: Duration = Duration::from_secs(3600);
const LEASE_COUNTS: Duration = Duration::from_secs(4 * 3600);

/// The remote of a machine: with little history, so that much is deleted.
fn remote_of(store: &Arc<SimStore>, fs: &MemFs, ack: Ack, rng: &mut Rng) -> Remote {
    let lease = *rng.pick(&[0, 50, 5_000, 60_000]);
    let remote = with_poor_clock(store, fs, rng).read_lease(Duration::from_millis(lease));
    remote.ack(ack).retention(120 * MINUTE).grace(10 * MINUTE)
}

/// A machine with an open database.
struct Machine {
    fs: MemFs,
    store: Arc<SimStore>,
    primary: Primary,
    db: Db,
    is_local: bool,
}

impl Machine {
    fn open(
        store: Arc<SimStore>,
        fs: MemFs,
        ack: Ack,
        takes_over: bool,
        rng: &mut Rng,
    ) -> Result<Machine> {
        let remote = remote_of(&store, &fs, ack, rng);
        let primary = match takes_over {
            true => remote.take_over("/db")?,
            false => remote.primary("/db")?,
        };
        let db = primary.builder().background(BackgroundMode::Stepped).write_buffer_bytes(64 << 10);
        let db = db.open()?;
        Ok(Machine { fs, store, primary, db, is_local: ack == Ack::Local })
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
        // Of all marks, only that of the last commit stays.
        let mark = mark_of(number);
        let batch = batch.delete_range(&self.commits()?, [MARK].as_slice()..&mark);
        let batch = batch.put(&self.commits()?, mark, b"last");
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

/// A read of a primary, which may be a zombie: if it calls its state the newest one, then it is.
fn read_newest(machine: &Machine, commits: &Mutex<Commits>) {
    machine.db.newest_seq();
    let Ok(seen) = machine.commits().and_then(|it| try_numbers(&it)) else { return };
    let is_stored = machine.db.wait_durable(machine.db.visible_seq()).is_ok();
    if is_stored && !machine.is_local && machine.primary.confirm(MINUTE).is_ok() {
        commits.lock().check(&seen, true, "a read of a primary");
    }
}

/// A commit of a primary that another machine may have fenced.
fn commit_meanwhile(machine: &Machine, commits: &Mutex<Commits>) {
    let number = commits.lock().take_number();
    let committed = machine.commit(number, Durability::Sync, false);
    commits.lock().note(number, committed, machine.is_local);
    if machine.is_local {
        // Only then it finds another writer.
        let _ = machine.primary.ship();
    }
}

/// A reader, and a view that it keeps under its lease.
struct SimReader {
    reader: RemoteReader,
    secondary: Secondary,
    has_lease: bool,
    view: Option<(Reading, BTreeSet<u64>, Duration)>,
}

struct World {
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
    takeovers: u64,
}

impl World {
    fn new(mut rng: Rng) -> World {
        let objects = new_bucket(&mut rng);
        let store = SimStore::new(objects.clone(), rng.fork());
        let ack = if rng.chance(1, 3) { Ack::Local } else { Ack::Stored };
        let machine = Machine::open(store, MemFs::new(), ack, false, &mut rng);
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
        if committed.is_ok() && is_synced {
            self.ask(number);
        }
        let mut commits = self.commits.lock();
        match committed {
            Ok(()) if is_synced && self.machine.is_local => drop(commits.local.insert(number)),
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
        let zombie = self.rng.index(self.zombies.len());
        read_newest(&self.zombies[zombie], &self.commits);
        let is_large = self.rng.chance(1, 8);
        let zombie = &self.zombies[zombie];
        let mut commits = self.commits.lock();
        for durability in [Durability::Os, Durability::Sync] {
            let number = commits.take_number();
            commits.refused.insert(number);
            let committed = zombie.commit(number, durability, is_large);
            assert!(
                committed.is_ok() <= (durability == Durability::Os || zombie.is_local),
                "a zombie acknowledges {number}"
            );
            if let Err(error) = committed
                && zombie.store.fails_one_of.load(Ordering::Relaxed) == 0
            {
                assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
            }
        }
        let _ = zombie.db.flush();
        let _ = zombie.db.step();
        let _ = zombie.primary.ship();
        let _ = zombie.primary.collect();
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
            let ack = self.ack;
            let opened = Machine::open(store.clone(), disk.clone(), ack, takes_over, &mut self.rng);
            match opened {
                Ok(machine) if !store.is_dead() => {
                    machine.store.die_in(u64::MAX - 1);
                    machine.store.pause_in(u64::MAX, || {});
                    return Arc::new(machine);
                }
                Ok(machine) => drop(machine),
                Err(error) => {
                    let kind = error.kind();
                    // After a power cut the folder may have commits that the bucket lacks.
                    let is_cut = kind == ErrorKind::InvalidArgument && ack == Ack::Local;
                    let is_dead = kind == ErrorKind::ReadOnly && store.is_dead();
                    let is_named = matches!(kind, ErrorKind::Io | ErrorKind::Fenced);
                    assert!(is_named || is_dead || is_cut && !takes_over, "{error}");
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
        if is_kill {
            self.commits.lock().store_local();
        }
        // What the drop writes comes too late.
        self.machine.store.die_in(0);
        let machine = self.claim(disk, false, None);
        self.machine = machine;
        let seen = self.machine.seen();
        self.take_noticed();
        let mut commits = self.commits.lock();
        if !is_kill {
            let local = std::mem::take(&mut commits.local);
            commits.unknown.extend(local);
        }
        commits.settle(&seen, "a restart");
    }

    fn open_reader(&mut self) -> SimReader {
        let store = SimStore::new(self.objects.clone(), self.rng.fork());
        let remote = remote_of(&store, &MemFs::new(), self.ack, &mut self.rng);
        let has_lease = self.rng.chance(1, 2);
        let remote = remote.cache_bytes(300_000).lease(has_lease.then_some(LEASE));
        let reader = remote.reader().expect("a reader opens");
        let secondary = reader.secondary().open().expect("a secondary opens");
        SimReader { reader, secondary, has_lease, view: None }
    }

    fn read(&mut self) {
        if self.readers.len() < 3 {
            let reader = self.open_reader();
            self.readers.push(reader);
        }
        let at = self.rng.index(self.readers.len());
        let SimReader { reader, secondary, has_lease, view } = &mut self.readers[at];
        let now = self.objects.true_time();
        view.take_if(|(.., until)| *until < now);
        if let Some((kept, seen, _)) = view {
            assert_eq!(numbers(kept), *seen, "a view under a lease stays as it is");
        }
        let commits = secondary.partition("commits").expect("it is known");
        let is_strong = self.ack == Ack::Stored && self.rng.chance(1, 2);
        let reading = if is_strong {
            commits.at(Level::Strong).expect("the bucket answers")
        } else {
            secondary.sync(Target::Latest).expect("the bucket answers");
            commits.at(Level::Eventual).expect("it is read")
        };
        let seen = numbers(&reading);
        self.commits.lock().check(&seen, is_strong, "a reader");
        assert!(reader.cache_bytes() <= 300_000);
        if *has_lease {
            reader.renew_lease().expect("the bucket answers");
            let until = now + LEASE_COUNTS;
            match view {
                Some((.., kept_until)) if self.rng.chance(2, 3) => *kept_until = until,
                _ => *view = Some((reading, seen, until)),
            }
        }
        if self.rng.chance(1, 10) {
            self.readers.remove(at);
        }
    }

    /// The clock of the store jumps: leases may expire.
    fn jump(&mut self) {
        self.objects.jump(MINUTE * self.rng.below(6000) as u32);
        self.readers.iter_mut().for_each(|reader| reader.view = None);
    }

    fn ship(&mut self) {
        if self.machine.primary.ship().is_ok() {
            self.commits.lock().store_local();
        }
    }

    /// Everything that is acknowledged is there, for a new machine and for a restore; and nothing is missing in
    /// the bucket.
    fn check_all(&mut self) {
        self.take_over();
        self.read();
        let disk = MemFs::new();
        let store = SimStore::new(self.objects.clone(), self.rng.fork());
        let remote = remote_of(&store, &disk, self.ack, &mut self.rng);
        let report = remote.verify().expect("the bucket answers");
        assert!(report.is_sound(), "{report:?}");
        remote.restore("/restored", RestoreTarget::Latest).expect("it is restored");
        let db = Db::builder("/restored").fs(Arc::new(disk)).background(BackgroundMode::Stepped);
        let seen =
            numbers(&db.open().expect("it opens").partition("commits").expect("it is there"));
        self.commits.lock().check(&seen, self.ack == Ack::Stored, "a restore");
    }

    /// The primary stops in a call of the store. Another machine takes over and commits; then the first goes on.
    fn take_over_in_a_call(&mut self) {
        self.takeovers += 1;
        let store = self.store();
        let taken: Arc<Mutex<Option<Machine>>> = Arc::default();
        let mut rng = self.rng.fork();
        let commits = self.commits.clone();
        let slot = taken.clone();
        let ack = self.ack;
        let pause = move || {
            let machine = Machine::open(store, MemFs::new(), ack, true, &mut rng);
            let Ok(machine) = machine else { return };
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
        self.take_noticed();
        self.commits.lock().settle(&seen, "a takeover in a call");
        read_newest(&old, &self.commits);
        self.zombies.push(old);
    }

    fn step(&mut self) {
        self.take_noticed();
        self.objects.advance(MINUTE * self.rng.below(12) as u32);
        self.objects.take_effect_late(&mut self.rng);
        match self.rng.below(112) {
            0..=41 => self.commit(),
            42..=51 => self.read(),
            52..=59 => self.ship(),
            60..=65 => drop(self.machine.db.flush()),
            66..=71 => drop(self.machine.db.step()),
            72..=76 => self.wake_zombie(),
            77..=79 => {
                let _ = self.machine.primary.restore();
            }
            80..=89 => drop(self.machine.primary.collect()),
            90 => self.jump(),
            91..=94 => self.restart(),
            95..=98 => self.take_over_in_a_call(),
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
    // A world of its own now and then, so that no history grows without bound.
    while done < wanted {
        let mut world = World::new(rng.fork());
        while world.takeovers < 25.min(wanted - done) {
            world.step();
        }
        done += world.takeovers;
        world.check_all();
    }
}
