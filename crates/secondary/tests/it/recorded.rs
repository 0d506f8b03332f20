//! Recorded histories of one writer and several readers on threads of their own, checked by
//! `checker.rs`. The writer is closed, and killed at random operations, and opens the database
//! again.
//!
//! The seed decides what each thread does; the operating system decides how they interleave.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lsm_core::clock::Clock;
use lsm_core::db::Commit;
use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule};
use lsm_core::options::Durability;
use lsm_core::{ErrorKind, Result};
use secondary::{Level, ReadOptions, SecondaryPartition, Target};
use testkit::Rng;

use super::checker::{Cut, History, PARTITIONS, Read, Write};
use super::*;

const NAMES: [&str; PARTITIONS] = ["a", "b", "c"];
/// Keys in addition to "number", each with the last commit whose number has its remainder.
const SLOTS: u64 = 8;
const WRITES: u64 = 700;

/// The ticks of a history, in microseconds. Each look at the clock is a tick.
#[derive(Default)]
struct Ticks(AtomicU64);

impl Ticks {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

impl Clock for Ticks {
    fn now(&self) -> Duration {
        Duration::from_micros(self.next())
    }
}

/// The state that the threads share.
#[derive(Default)]
struct Recorded {
    ticks: Arc<Ticks>,
    history: Mutex<History>,
    /// The last token that was acknowledged.
    token: Mutex<Option<Commit>>,
    is_over: AtomicBool,
}

impl Recorded {
    fn reads(&self) -> u64 {
        self.history.lock().unwrap().reads.len() as u64
    }
}

/// The writer, and the file system that fails at random.
struct Writer<'a> {
    fault: FaultFs,
    watched: Arc<dyn Fs>,
    db: Option<Db>,
    rng: Rng,
    recorded: &'a Recorded,
}

impl Writer<'_> {
    /// Opens the database again after it was closed, or after the file system refused everything.
    fn reopen(&mut self, is_closed: bool) {
        let db = self.db.take().unwrap();
        if is_closed {
            // A fault may still be due.
            let _ = db.close();
        } else {
            let at = FaultAt::Op(self.fault.op_count());
            self.fault.add_rule(FaultRule::sticky(at, FaultAction::Eio));
            drop(db);
        }
        self.fault.heal();
        self.db = Some(primary(&self.watched));
    }

    /// Makes one commit and some other work.
    fn step(&mut self, number: u64) {
        let is_hit = self.rng.chance(1, 25);
        if is_hit {
            let at = FaultAt::Op(self.fault.op_count() + self.rng.below(8));
            self.fault.add_rule(FaultRule::sticky(at, FaultAction::Eio));
        }
        let db = self.db.as_ref().unwrap();
        let mut touched = [false; PARTITIONS];
        touched[self.rng.index(PARTITIONS)] = true;
        touched[self.rng.index(PARTITIONS)] = true;
        let partitions = NAMES.map(|name| db.partition(name).unwrap());
        let mut batch = db.batch();
        for (partition, _) in partitions.iter().zip(touched).filter(|(_, is_touched)| *is_touched) {
            let value = format!("{number} {}", "x".repeat(self.rng.index(200)));
            batch.add_put(partition, b"number", number.to_string().as_bytes());
            batch.add_put(partition, (number % SLOTS).to_string().as_bytes(), value.as_bytes());
        }
        let durability = if self.rng.chance(1, 4) { Durability::Sync } else { Durability::Os };
        let began = self.recorded.ticks.next();
        let committed = batch.commit(durability);
        // Handles keep a database open.
        drop(partitions);
        let mut write = Write { number, touched, began, ended: 0, is_lost: false, token: None };
        match committed {
            Ok(token) => {
                write.token = Some(token);
                *self.recorded.token.lock().unwrap() = Some(token);
            }
            Err(_) => {
                // The next epoch decides.
                self.reopen(false);
                let db = self.db.as_ref().unwrap();
                let known = NAMES.map(|name| number_of(&db.partition(name).unwrap()));
                write.is_lost = !known.contains(&number);
            }
        }
        write.ended = self.recorded.ticks.next();
        self.recorded.history.lock().unwrap().writes.push(write);
        self.churn();
        if is_hit {
            self.reopen(false);
        }
    }

    fn churn(&mut self) {
        let db = self.db.as_ref().unwrap();
        let name = NAMES[self.rng.index(PARTITIONS)];
        // A fault may make any of them fail.
        match self.rng.below(40) {
            0..=3 => drop(db.partition(name).and_then(|partition| partition.flush())),
            4..=5 => drop(db.partition(name).and_then(|partition| partition.compact(..))),
            6..=7 => drop(db.wait_idle()),
            8 => self.reopen(true),
            9 => self.reopen(false),
            _ => {}
        }
    }
}

fn number_of(partition: &lsm_core::Partition) -> u64 {
    let found = partition.get("number").unwrap();
    found.map_or(0, |number| parse(&number))
}

fn parse(bytes: &[u8]) -> u64 {
    let text = std::str::from_utf8(bytes).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// The last commit that a reading sees, after a check that the reading is a state of the partition:
/// a slot holds the commit with its remainder, so none is later than the number.
fn seen_by(reading: &Reading) -> u64 {
    let content = content(reading);
    let number = content.get(&b"number"[..]).map_or(0, |number| parse(number));
    let mut newest = 0;
    for (key, value) in content.iter().filter(|(key, _)| key.as_slice() != b"number") {
        let found = parse(value);
        assert_eq!(found % SLOTS, parse(key), "not what was written");
        newest = newest.max(found);
    }
    assert_eq!(newest, number, "a torn state");
    number
}

/// One reader: its secondary, which another reader may share, and its last place.
struct Reader<'a> {
    follower: Secondary,
    secondary: usize,
    partitions: [SecondaryPartition; PARTITIONS],
    rng: Rng,
    recorded: &'a Recorded,
    last: [Option<Commit>; PARTITIONS],
}

impl Reader<'_> {
    fn run(mut self) {
        while !self.recorded.is_over.load(Ordering::Acquire) {
            if self.rng.chance(1, 6) {
                self.read_cut();
            } else {
                self.read();
            }
        }
    }

    fn level(&mut self, partition: usize) -> Level {
        let acknowledged = *self.recorded.token.lock().unwrap();
        let operations = Some(self.rng.below(12));
        let age = Some(Duration::from_micros(self.rng.below(400)));
        match self.rng.below(6) {
            0 => Level::Bounded { operations, age: None },
            1 => Level::Bounded { operations: None, age },
            2 => acknowledged.map_or(Level::Eventual, Level::Session),
            3 => self.last[partition].map_or(Level::Strong, Level::Session),
            4 => Level::Eventual,
            _ => Level::Strong,
        }
    }

    fn read(&mut self) {
        let partition = self.rng.index(PARTITIONS);
        let level = self.level(partition);
        let began = self.recorded.ticks.next();
        let options = ReadOptions::new(level).wait(Duration::from_micros(50));
        let Some(reading) = served(self.partitions[partition].read(&options)) else { return };
        let seen = seen_by(&reading);
        let as_of = reading.as_of();
        let ended = self.recorded.ticks.next();
        self.last[partition] = Some(as_of);
        let secondary = self.secondary;
        let read = Read { secondary, level, partition, began, ended, seen, as_of };
        self.recorded.history.lock().unwrap().reads.push(read);
    }

    fn read_cut(&mut self) {
        let began = self.recorded.ticks.next();
        let target = if self.rng.chance(1, 3) { Target::Durable } else { Target::Latest };
        self.follower.sync(target).unwrap();
        let cut = self.follower.cut();
        let seen = self.partitions.each_ref().map(|it| seen_by(&cut.partition(it).unwrap()));
        let ended = self.recorded.ticks.next();
        let cut = Cut { secondary: self.secondary, began, ended, seen };
        self.recorded.history.lock().unwrap().cuts.push(cut);
    }
}

/// The reading, unless the primary is between two steps or two epochs.
fn served(read: Result<Reading>) -> Option<Reading> {
    match read {
        Ok(reading) => Some(reading),
        Err(error) => {
            let expected = [ErrorKind::Behind, ErrorKind::Unsupported, ErrorKind::SessionLost];
            assert!(expected.contains(&error.kind()), "{error:?}");
            None
        }
    }
}

fn open_reader(fs: &Arc<dyn Fs>, ticks: &Arc<Ticks>) -> Secondary {
    let builder = Secondary::builder(DIR).fs(fs.clone()).options(options());
    builder.clock(ticks.clone()).open().unwrap()
}

#[test]
fn a_recorded_history_keeps_what_the_levels_promise() {
    let mut rng = Rng::from_env_or(13);
    let mem = MemFs::new();
    let fault = FaultFs::over_mem(mem.clone());
    let watched: Arc<dyn Fs> = Arc::new(fault.clone());
    let plain: Arc<dyn Fs> = Arc::new(mem);
    let db = primary(&watched);
    NAMES.iter().for_each(|name| drop(db.partition(name).unwrap()));
    let recorded = Recorded::default();
    let shared = open_reader(&plain, &recorded.ticks);
    let own = open_reader(&plain, &recorded.ticks);
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for (follower, secondary) in [(&shared, 0), (&shared, 0), (&own, 1)] {
            let reader = Reader {
                follower: follower.clone(),
                secondary,
                partitions: NAMES.map(|name| follower.partition(name).unwrap()),
                rng: rng.fork(),
                recorded: &recorded,
                last: [None; PARTITIONS],
            };
            readers.push(scope.spawn(move || reader.run()));
        }
        let mut writer =
            Writer { fault, watched, db: Some(db), rng: rng.fork(), recorded: &recorded };
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 1..=WRITES {
                writer.step(number);
                while recorded.reads() < number
                    && !readers.iter().any(std::thread::ScopedJoinHandle::is_finished)
                {
                    std::thread::yield_now();
                }
            }
        }));
        recorded.is_over.store(true, Ordering::Release);
        written.unwrap();
    });
    let history = recorded.history.into_inner().unwrap();
    history.check().unwrap();
    let strong = history.reads.iter().filter(|read| read.level == Level::Strong).count();
    let lost = history.writes.iter().filter(|write| write.is_lost).count();
    let counts = (history.reads.len(), strong, history.cuts.len(), lost);
    assert!(strong > 20 && history.cuts.len() > 20, "{counts:?}");
}
