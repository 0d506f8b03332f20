//! A writing process under load, stopped, continued and killed again and again; a reading process
//! that is killed with it; and secondaries in this process that read all the time.
//!
//! The test binary starts itself again as the writer, which prints each acknowledgement to a pipe.
//! A strong read must see the commits that were acknowledged before it began, whatever happens to
//! the writer. `ROUNDS` is the number of writers, one after another; `scripts/secondary-soak.sh`
//! uses many.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lsm_core::ErrorKind;
use lsm_core::options::Durability;
use rustix::process::{Pid, Signal, kill_process};
use secondary::{Level, ReadOptions, SecondaryPartition, Target};
use testkit::Rng;

use super::*;

const FOLDER: &str = "SILTSTONE_PRIMARY_FOLDER";
const READER_FOLDER: &str = "SILTSTONE_SECONDARY_FOLDER";
pub(super) const SLOTS: u64 = 200;
/// Writers, one after another, unless `ROUNDS` is another number.
const ROUNDS: u64 = 6;
/// Reads during each stop of the writer.
const READS_WHILE_STOPPED: u64 = 30;
pub(super) const NAMES: [&str; 2] = ["left", "right"];

pub(super) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

pub(super) fn open(folder: &Path) -> lsm_core::Result<Db> {
    let options = options().write_buffer_bytes(24 << 10).wal_segment_bytes(8 << 10);
    Db::builder(folder).options(options.manifest_bytes_max(8 << 10)).open()
}

/// Makes a database with the partitions, and closes it.
pub(super) fn make(folder: &Path) {
    let db = open(folder).unwrap();
    NAMES.iter().for_each(|name| drop(db.partition(name).unwrap()));
    db.close().unwrap();
}

pub(super) fn slot(number: u64) -> String {
    format!("slot{:04}", number % SLOTS)
}

pub(super) fn value(number: u64) -> String {
    format!("{number}:{}", "x".repeat((number % 97) as usize))
}

/// The number that a value was written with, after a check of the value.
pub(super) fn number_in(found: &[u8]) -> u64 {
    let text = std::str::from_utf8(found).unwrap();
    let number = text.split(':').next().unwrap().parse().unwrap();
    assert_eq!(text, value(number), "no writer wrote this");
    number
}

/// The writer: does nothing unless a parent starts it.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let db = open(Path::new(&folder)).unwrap();
    let partitions = NAMES.map(|name| db.partition(name).unwrap());
    let count = partitions[0].get("count").unwrap();
    let mut number = count.map_or(0, |count| number_in(&count));
    loop {
        number += 1;
        let mut batch = db.batch();
        for partition in &partitions {
            batch.add_put(partition, slot(number).as_bytes(), value(number).as_bytes());
            batch.add_put(partition, b"count", value(number).as_bytes());
        }
        let durability = if number % 50 == 0 { Durability::Sync } else { Durability::Os };
        batch.commit(durability).unwrap();
        println!("ack {number}");
        match number % 500 {
            100 => drop(db.partition("passing").unwrap().put("k", "v").unwrap()),
            300 if db.has_partition("passing") => db.drop_partition("passing").unwrap(),
            400 => partitions[1].compact(..).unwrap(),
            _ => {}
        }
    }
}

/// The reader: does nothing unless a parent starts it.
#[test]
fn child_that_reads_until_it_is_killed() {
    let Some(folder) = std::env::var_os(READER_FOLDER) else { return };
    let shared = Shared::default();
    println!("reading");
    read(Path::new(&folder), &shared, 7);
}

/// This binary again, as the child that the named test is.
pub(super) fn start_as(test: &str, variable: &str, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn start(folder: &Path) -> (Child, impl BufRead) {
    let mut child = start_as("processes::child_that_writes_until_it_is_killed", FOLDER, folder);
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// The number in a complete line, if it is an acknowledgement.
pub(super) fn acknowledged(line: &str) -> Option<u64> {
    let (_, number) = line.strip_suffix('\n')?.rsplit_once("ack ")?;
    number.parse().ok()
}

/// The state that the readers share with the parent.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) acknowledged: AtomicU64,
    pub(super) is_over: AtomicBool,
    pub(super) reads: AtomicU64,
}

/// The count at level 1; `None` if the writer is stopped between two steps of a commit.
fn strong_count(partition: &SecondaryPartition) -> Option<u64> {
    let options = ReadOptions::new(Level::Strong).wait(Duration::from_millis(20));
    match partition.read(&options) {
        Err(error) if error.kind() == ErrorKind::Behind => None,
        reading => {
            let count = reading.unwrap().get("count").unwrap();
            Some(count.map_or(0, |count| number_in(&count)))
        }
    }
}

/// Reads until the flag is set.
pub(super) fn read(folder: &Path, shared: &Shared, seed: u64) {
    let mut rng = Rng::from_env_or(seed);
    let options = options().open_files_max(4);
    let follower = Secondary::builder(folder).options(options).open().unwrap();
    let partitions = NAMES.map(|name| follower.partition(name).unwrap());
    let mut newest = [0; 2];
    while !shared.is_over.load(Ordering::Acquire) {
        let which = rng.index(2);
        let partition = &partitions[which];
        let before = shared.acknowledged.load(Ordering::Acquire);
        match rng.below(4) {
            0 => {
                if let Some(found) = strong_count(partition) {
                    assert!(found >= before, "{found} is older than {before}: acknowledged");
                    assert!(found >= newest[which], "{found} after {}", newest[which]);
                    newest[which] = found;
                }
            }
            1 => {
                follower.sync(Target::Latest).unwrap();
                let cut = follower.cut();
                let [left, right] = partitions.each_ref().map(|partition| {
                    let reading = cut.partition(partition).unwrap();
                    let count = reading.get("count").unwrap().map_or(0, |c| number_in(&c));
                    // Everything up to the count, and nothing else.
                    for number in (count.saturating_sub(SLOTS - 1)).max(1)..=count {
                        let found = reading.get(slot(number)).unwrap().unwrap();
                        assert_eq!(number_in(&found), number);
                    }
                    count
                });
                assert_eq!(left, right, "a batch is torn");
            }
            2 => {
                let reading = partition.at(Level::Eventual).unwrap();
                let numbers: Vec<u64> =
                    reading.prefix("slot").map(|entry| number_in(&entry.unwrap().1)).collect();
                let newest = numbers.iter().max().copied().unwrap_or_default();
                assert!(numbers.len() as u64 == newest.min(SLOTS), "{} of {newest}", numbers.len());
            }
            _ => {
                let found = partition.get("count").unwrap().map_or(0, |count| number_in(&count));
                assert!(found >= newest[which], "{found} after {}", newest[which]);
                newest[which] = found;
            }
        }
        shared.reads.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn secondaries_read_while_a_writer_is_killed_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    make(folder);
    let shared = Shared::default();
    let mut rng = Rng::from_env_or(3);
    let watcher = Secondary::builder(folder).options(options()).open().unwrap();
    let watched = NAMES.map(|name| watcher.partition(name).unwrap());
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2_u64)
            .map(|seed| {
                let shared = &shared;
                scope.spawn(move || read(folder, shared, seed))
            })
            .collect();
        let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
        for _ in 0..rounds.unwrap_or(ROUNDS) {
            let (mut child, mut lines) = start(folder);
            let reader = "processes::child_that_reads_until_it_is_killed";
            let mut reader = start_as(reader, READER_FOLDER, folder);
            let wanted = 1 + rng.below(2_000);
            let pause_at = rng.below(wanted);
            let mut line = String::new();
            let mut got = 0;
            while got < wanted && readers.iter().all(|reader| !reader.is_finished()) {
                line.clear();
                assert!(lines.read_line(&mut line).unwrap() > 0, "the writer died by itself");
                if let Some(number) = acknowledged(&line) {
                    shared.acknowledged.store(number, Ordering::Release);
                    got += 1;
                }
                if got == pause_at {
                    signal(&child, Signal::STOP);
                    let until = shared.reads.load(Ordering::Relaxed) + READS_WHILE_STOPPED;
                    while shared.reads.load(Ordering::Relaxed) < until
                        && readers.iter().all(|reader| !reader.is_finished())
                    {
                        std::thread::yield_now();
                    }
                    signal(&child, Signal::CONT);
                }
            }
            let ended = reader.try_wait().unwrap();
            assert!(ended.is_none(), "the reading process ended by itself: {ended:?}");
            for child in [&mut child, &mut reader] {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            // The writer was killed somewhere in a commit.
            let acknowledged = shared.acknowledged.load(Ordering::Relaxed);
            for partition in &watched {
                let found = strong_count(partition);
                let is_right = found.is_some_and(|found| found >= acknowledged);
                // The readers end before this panics.
                shared.is_over.fetch_or(!is_right, Ordering::AcqRel);
                assert!(
                    is_right,
                    "{found:?} after {acknowledged}: a dead writer is not waited for"
                );
            }
        }
        shared.is_over.store(true, Ordering::Release);
    });
    let reads = shared.reads.load(Ordering::Relaxed);
    assert!(reads > 100, "{reads} reads");
    println!("{reads} reads, {} commits", shared.acknowledged.load(Ordering::Relaxed));
    drop((watched, watcher));
    // The files that the readers held are released.
    let db = open(folder).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(db.stats().leased_bytes, 0);
}
