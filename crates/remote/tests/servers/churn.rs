//! Churn with deletion on: a primary overwrites, deletes, drops and makes partitions, with little history, while readers
//! with and without leases come, go and die, restores look at moments of the past, and other machines take over.
//!
//! `CHURN_MINUTES` sets a time; without it a run has a few hundred commits. A model knows the content of each partition
//! after each commit. At the end the bucket has nothing but the newest state and its small history.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use remote::{BucketStatus, Primary, Remote, RestoreTarget};
use siltstone::clock::{Clock, SystemClock};
use siltstone::{Db, Durability, ErrorKind, LargeValueOptions, PartitionOptions, VerifyOptions};
use testkit::Rng;

use crate::churn_model::{Content, Counted, History, LAST, scan};
use crate::churn_readers::{read_on, restore_and_check, restore_on};
use crate::store_layer::Layered;
use crate::{Place, Talker, child_arguments};

pub const LARGE: &str = "large";
/// It is dropped and made all the time.
pub const FLEETING: &str = "fleeting";
pub const NAMES: [&str; 5] = ["0", "1", "2", LARGE, FLEETING];
const KEYS: u64 = 500;
const LARGE_KEYS: u64 = 16;

/// The times of a run.
#[derive(Clone, Copy)]
pub struct Pace {
    time: Option<Duration>,
    pub retention: Duration,
    grace: Duration,
    pub lease: Duration,
    /// Commits between two takeovers, two restores, and two looks of a reader.
    takeover: u64,
    restore: u64,
    look: u64,
}

const COMMITS: u64 = 400;
const QUICK: Pace = Pace {
    time: None,
    retention: Duration::from_secs(1),
    grace: Duration::from_millis(500),
    lease: Duration::from_millis(500),
    takeover: 80,
    restore: 100,
    look: 5,
};
const LONG: Pace = Pace {
    time: None,
    retention: Duration::from_secs(30),
    grace: Duration::from_secs(10),
    lease: Duration::from_secs(10),
    takeover: 1000,
    restore: 1000,
    look: 20,
};

impl Pace {
    fn from_env() -> Pace {
        let Ok(minutes) = std::env::var("CHURN_MINUTES") else { return QUICK };
        Pace { time: Some(Duration::from_secs(60 * minutes.parse::<u64>().unwrap())), ..LONG }
    }

    fn has_ended(&self, clock: &SystemClock, commits: u64) -> bool {
        self.time.map_or(commits >= COMMITS, |time| clock.now() >= time)
    }
}

/// The parts of a run that its threads share.
pub struct Shared {
    pub remote: Remote,
    pub history: Mutex<History>,
    pub pace: Pace,
    /// It was zero when the run began.
    pub clock: SystemClock,
}

/// A machine with the database.
struct Machine(Option<(Db, Primary)>);

impl Machine {
    fn new(primary: Primary) -> Machine {
        let db = primary.builder().write_buffer_bytes(256 << 10).open().unwrap();
        Machine(Some((db, primary)))
    }

    fn db(&self) -> &Db {
        &self.0.as_ref().unwrap().0
    }

    fn primary(&self) -> &Primary {
        &self.0.as_ref().unwrap().1
    }

    fn restart(&mut self, remote: &Remote, folder: &Path) {
        self.0 = None;
        *self = Machine::new(remote.primary(folder).unwrap());
    }
}

enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// The writer, on whichever machine it is.
struct Writer<'a> {
    shared: &'a Shared,
    place: &'a Place,
    rng: Rng,
    contents: BTreeMap<&'static str, Content>,
    machine: Machine,
    /// The machine before, whose threads go on.
    zombie: Option<Machine>,
    machines: u64,
    commits: u64,
    takeovers: u64,
    restarts: u64,
    counted: Arc<Layered<Counted>>,
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

impl<'a> Writer<'a> {
    fn new(
        shared: &'a Shared,
        place: &'a Place,
        rng: Rng,
        counted: Arc<Layered<Counted>>,
    ) -> Writer<'a> {
        let machine = Machine::new(shared.remote.primary(place.dir("0")).unwrap());
        let contents = BTreeMap::new();
        let mut writer = Writer {
            shared,
            place,
            rng,
            contents,
            machine,
            zombie: None,
            machines: 1,
            commits: 0,
            takeovers: 0,
            restarts: 0,
            counted,
        };
        NAMES.iter().for_each(|name| writer.make(name));
        writer
    }

    /// Makes a partition, and its first commit.
    fn make(&mut self, name: &'static str) {
        let large = LargeValueOptions::new().threshold_bytes(16 << 10).chunk_bytes(1 << 20);
        let options = match name {
            LARGE => PartitionOptions::new().large_values(large),
            _ => PartitionOptions::new(),
        };
        let mut history = self.shared.history.lock();
        let number = history.take_number();
        history.note(name, number, Some(0));
        drop(history);
        self.machine.db().partition_with(name, options).unwrap();
        self.contents.insert(name, Content::default());
        self.commit(vec![(name, Vec::new())], Durability::Sync);
    }

    /// Makes a commit, which puts its number into each partition that it touches.
    fn commit(&mut self, changes: Vec<(&'static str, Vec<Change>)>, durability: Durability) {
        let mut history = self.shared.history.lock();
        let number = history.take_number();
        let mut batch = self.machine.db().batch();
        for (name, changes) in &changes {
            let partition = self.machine.db().open_partition(name).unwrap();
            let content = self.contents.get_mut(name).unwrap();
            for change in changes {
                batch = match change {
                    Change::Put(key, value) => {
                        content.put(key, value);
                        batch.put(&partition, key, value)
                    }
                    Change::Delete(key) => {
                        content.delete(key);
                        batch.delete(&partition, key)
                    }
                    Change::DeleteRange(begin, end) => {
                        content.delete_range(begin..end);
                        batch.delete_range(&partition, &begin[..]..&end[..])
                    }
                };
            }
            content.put(LAST, &number.to_be_bytes());
            batch = batch.put(&partition, LAST, number.to_be_bytes());
        }
        let touched: Vec<_> =
            changes.iter().map(|(name, _)| (*name, &self.contents[name])).collect();
        history.begin(number, &touched);
        drop(history);
        let began = self.shared.clock.unix_time();
        batch.commit(durability).unwrap();
        if durability == Durability::Sync {
            let ended = self.shared.clock.unix_time();
            self.shared.history.lock().acknowledge(number, began..ended);
        }
        self.commits += 1;
    }

    fn value(&mut self, bytes: std::ops::Range<u64>) -> Vec<u8> {
        let len = self.rng.range(bytes) as usize;
        self.rng.bytes(len)
    }

    fn puts(&mut self) -> Vec<Change> {
        let puts = (0..self.rng.range(1..8)).map(|_| {
            let key = key(self.rng.below(KEYS));
            Change::Put(key, self.value(50..800))
        });
        puts.collect()
    }

    fn change(&mut self) -> Vec<Change> {
        let at = self.rng.below(KEYS);
        match self.rng.below(10) {
            0..=6 => self.puts(),
            7..=8 => vec![Change::Delete(key(at))],
            _ => vec![Change::DeleteRange(key(at), key(at + self.rng.range(1..60)))],
        }
    }

    fn large_change(&mut self) -> Change {
        let key = key(self.rng.below(LARGE_KEYS));
        if self.rng.chance(1, 4) {
            Change::Delete(key)
        } else {
            Change::Put(key, self.value(10_000..120_000))
        }
    }

    fn step(&mut self) {
        let name = NAMES[self.rng.index(3)];
        match self.rng.below(100) {
            0..=69 => {
                let durability =
                    if self.rng.chance(3, 4) { Durability::Sync } else { Durability::Os };
                let changes = vec![(name, self.change())];
                self.commit(changes, durability);
            }
            70..=79 => {
                let changes = vec![("0", self.change()), ("1", self.change())];
                self.commit(changes, Durability::Sync);
            }
            80..=87 => {
                let changes = vec![(LARGE, vec![self.large_change()])];
                self.commit(changes, Durability::Sync);
            }
            88..=91 => {
                let changes = vec![(FLEETING, self.puts())];
                self.commit(changes, Durability::Sync);
            }
            92..=93 => self.drop_and_make(),
            94..=96 => self.machine.db().flush().unwrap(),
            97 => self.machine.db().open_partition(name).unwrap().compact(..).unwrap(),
            98 => drop(self.machine.primary().collect().unwrap()),
            _ => self.machine.primary().restore().unwrap(),
        }
    }

    fn drop_and_make(&mut self) {
        let mut history = self.shared.history.lock();
        let number = history.take_number();
        history.note(FLEETING, number, None);
        drop(history);
        self.machine.db().drop_partition(FLEETING).unwrap();
        self.make(FLEETING);
    }

    /// Another machine takes over, or this one starts again with its folder.
    fn move_on(&mut self) {
        self.commit(vec![("0", Vec::new())], Durability::Sync);
        if self.rng.chance(1, 4) {
            let folder = self.place.dir(&(self.machines - 1).to_string());
            self.machine.restart(&self.shared.remote, &folder);
            self.restarts += 1;
        } else {
            let folder = self.place.dir(&self.machines.to_string());
            let next = Machine::new(self.shared.remote.take_over(folder).unwrap());
            let before = std::mem::replace(&mut self.machine, next);
            check_fenced(&before);
            if self.zombie.replace(before).is_some() {
                let folder = self.place.dir(&(self.machines - 2).to_string());
                std::fs::remove_dir_all(folder).unwrap();
            }
            self.machines += 1;
            self.takeovers += 1;
        }
        self.check("a takeover or a restart");
    }

    fn check(&self, whence: &str) {
        for (name, content) in &self.contents {
            let partition = self.machine.db().open_partition(name).unwrap();
            assert_eq!(scan(&partition).unwrap().sum, content.sum(), "{whence}: {name}");
        }
    }
}

fn check_fenced(machine: &Machine) {
    let partition = machine.db().open_partition("0").unwrap();
    let refused = partition.put_with("of a zombie", "x", Durability::Sync).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    let refused = machine.primary().collect().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
}

/// A reader that is killed: its lease expires. Does nothing unless a parent starts it.
#[test]
fn child_that_holds_a_lease() {
    let Some(arguments) = child_arguments() else { return };
    let [url, lease_ms] = &arguments[..] else { panic!("{arguments:?}") };
    let lease = Duration::from_millis(lease_ms.parse().unwrap());
    let _reader = Remote::url(url).unwrap().lease(Some(lease)).reader().unwrap();
    println!("> open");
    let _ = std::io::stdin().lines().next();
}

fn kill_a_reader(place: &Place, pace: &Pace) {
    let lease_ms = pace.lease.as_millis().to_string();
    Talker::start("churn::child_that_holds_a_lease", &[&place.url, &lease_ms]).hear("open");
}

/// Asks for a look, unless the thread is at one.
fn ask(sender: &SyncSender<()>) {
    let sent = sender.try_send(());
    assert!(!matches!(sent, Err(TrySendError::Disconnected(()))), "a reader has failed");
}

#[test]
fn churn_with_deletion_keeps_what_is_needed_and_nothing_else() {
    let place = Place::new("churn");
    let counted = Counted::new(place.remote().store());
    let pace = Pace::from_env();
    let remote = Remote::with_store(counted.clone())
        .interval(Duration::from_millis(20))
        // A run may be stopped for as long as one likes.
        .patience(Duration::from_secs(24 * 3600))
        .retention(pace.retention)
        .grace(pace.grace)
        .lease(Some(pace.lease));
    let history = Mutex::default();
    let shared = Shared { remote, history, pace, clock: SystemClock::new() };
    let mut rng = Rng::from_env_or(1);
    let mut writer = Writer::new(&shared, &place, rng.fork(), counted);
    std::thread::scope(|scope| {
        let mut lookers = Vec::new();
        for has_lease in [true, true, false] {
            let (sender, looks) = sync_channel(1);
            lookers.push(sender);
            let rng = rng.fork();
            let shared = &shared;
            scope.spawn(move || read_on(shared, rng, has_lease, &looks));
        }
        let (restorer, looks) = sync_channel(1);
        let of_restorer = rng.fork();
        let folder = place.dir("restored");
        let of_all = &shared;
        scope.spawn(move || restore_on(of_all, of_restorer, folder, &looks));
        let mut figures = Figures::default();
        let mut moved = 0;
        while !pace.has_ended(&shared.clock, writer.commits) {
            writer.step();
            if writer.commits.is_multiple_of(pace.look) {
                lookers.iter().for_each(ask);
            }
            if writer.commits.is_multiple_of(pace.restore) {
                ask(&restorer);
                kill_a_reader(&place, &pace);
                figures.look(&writer);
            }
            if writer.commits / pace.takeover > moved {
                moved = writer.commits / pace.takeover;
                writer.move_on();
            }
        }
        drop(lookers);
        drop(restorer);
        figures.check();
    });
    settle(&mut writer);
    check_end(&writer);
}

/// Looks at the bucket during a run.
#[derive(Default)]
struct Figures {
    /// The most bytes in the bucket, in each minute.
    most: Vec<u64>,
}

impl Figures {
    fn look(&mut self, writer: &Writer<'_>) {
        let status = writer.shared.remote.status().unwrap();
        let bytes = bytes_of(&status);
        let minute = writer.shared.clock.now().as_secs() / 60;
        if self.most.len() as u64 <= minute {
            self.most.resize(minute as usize + 1, 0);
            print_look(writer, &status);
        }
        let most = &mut self.most[minute as usize];
        *most = bytes.max(*most);
    }

    /// A bucket does not grow: the second half of a run has about as many bytes as the first.
    fn check(&self) {
        let (first, second) = self.most.split_at(self.most.len() / 2);
        let Some(before) = first.iter().max() else { return };
        let after = second.iter().max().unwrap();
        assert!(*after <= 2 * before, "the bucket grows: {:?}", self.most);
    }
}

/// Nothing is there without a reason, or for a lease.
fn is_clean(status: &BucketStatus) -> bool {
    status.garbage.objects == 0 && status.leased.objects == 0 && status.leases.is_empty()
}

fn bytes_of(status: &BucketStatus) -> u64 {
    status.live.bytes + status.retained.bytes + status.leased.bytes + status.garbage.bytes
}

#[expect(clippy::print_stdout, reason = "a run shows its place and its size")]
fn print_look(writer: &Writer<'_>, status: &BucketStatus) {
    let Counted { puts, bytes, deletions, .. } = &**writer.counted;
    let [puts, bytes, deletions] = [puts, bytes, deletions].map(|it| it.load(Ordering::Relaxed));
    println!(
        "{:?}: {} commits, {} takeovers, {} restarts; put {puts} objects, {bytes} bytes, deleted {deletions}; \
         live {:?}, retained {:?}, leased {:?}, garbage {:?}, {} leases",
        writer.shared.clock.now(),
        writer.commits,
        writer.takeovers,
        writer.restarts,
        status.live,
        status.retained,
        status.leased,
        status.garbage,
        status.leases.len(),
    );
}

/// Goes on until a base has all of the churn, and all is deleted that only states before it need.
fn settle(writer: &mut Writer<'_>) {
    drop(writer.zombie.take());
    // A base is due after 256 journal objects.
    for _ in 0..300 {
        writer.commit(vec![("0", Vec::new())], Durability::Sync);
    }
    writer.machine.primary().ship().unwrap();
    let pace = writer.shared.pace;
    // The leases of killed readers expire; then objects of fenced writers are found, and deleted after the grace.
    let until = writer.shared.clock.now() + 20 * (pace.retention + pace.grace + 5 * pace.lease);
    loop {
        writer.machine.primary().collect().unwrap();
        let status = writer.shared.remote.status().unwrap();
        if is_clean(&status) && status.retained.bytes <= status.live.bytes {
            print_look(writer, &status);
            return;
        }
        assert!(writer.shared.clock.now() < until, "it is never deleted: {status:?}");
    }
}

/// Nothing is missing: for the bucket, for a restore, and for another machine.
fn check_end(writer: &Writer<'_>) {
    let Writer { shared, place, .. } = writer;
    let report = shared.remote.verify().unwrap();
    assert!(report.is_sound(), "{report:?}");
    let last = restore_and_check(shared, &place.dir("last"), RestoreTarget::Latest).unwrap();
    assert_eq!(last, shared.history.lock().acknowledged("0"), "the last commit is there");
    writer.check("the end");
    let verified = writer.machine.db().verify(VerifyOptions::default()).unwrap();
    assert!(verified.damage().is_empty(), "{verified:?}");
}
