//! A writing process under load whose database this process takes over, while others read: the
//! writer continues, or is stopped and continued after the promotion, or killed.
//!
//! The writer prints each acknowledgement to a pipe. The last one, even if it is printed after the
//! promotion, must be exactly the state that the new primary found: nothing acknowledged is lost,
//! and nothing refused is there. `ROUNDS` is the number of promotions.

use std::io::{BufRead, Write};
use std::process::Child;
use std::sync::atomic::Ordering;

use lsm_core::ErrorKind;
use lsm_core::db::VerifyOptions;
use lsm_core::error::Result;
use lsm_core::options::Durability;
use rustix::process::Signal;
use testkit::Rng;

use super::processes::{
    NAMES, SLOTS, Shared, acknowledged, make, number_in, open, read, signal, slot, start_as, value,
};
use super::*;

const FOLDER: &str = "SILTSTONE_OLD_PRIMARY_FOLDER";
/// Promotions, one after another, unless `ROUNDS` is another number.
const ROUNDS: u64 = 6;

/// Prints a line for the parent.
fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
}

/// Writes a batch over both partitions.
fn commit(db: &Db, number: u64) -> Result<()> {
    let partitions = NAMES.map(|name| db.open_partition(name).unwrap());
    let mut batch = db.batch();
    for partition in &partitions {
        batch.add_put(partition, slot(number).as_bytes(), value(number).as_bytes());
        batch.add_put(partition, b"count", value(number).as_bytes());
    }
    let durability = if number.is_multiple_of(50) { Durability::Sync } else { Durability::Os };
    batch.commit(durability).map(drop)
}

/// Sometimes creates and deletes files.
fn churn(db: &Db, number: u64) -> Result<()> {
    match number % 500 {
        100 => db.partition("passing")?.put("k", "v").map(drop),
        300 if db.has_partition("passing") => db.drop_partition("passing"),
        400 => db.open_partition(NAMES[1])?.compact(..),
        _ => Ok(()),
    }
}

/// The writer: does nothing unless a parent starts it.
#[test]
fn child_that_writes_until_it_is_fenced() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let db = open(Path::new(&folder)).unwrap();
    let count = db.partition(NAMES[0]).unwrap().get("count").unwrap();
    let mut number = count.map_or(0, |count| number_in(&count));
    let fenced = loop {
        number += 1;
        if let Err(error) = commit(&db, number) {
            break error;
        }
        tell(&format!("ack {number}"));
        if let Err(error) = churn(&db, number) {
            break error;
        }
    };
    assert_eq!(fenced.kind(), ErrorKind::Fenced, "{fenced}");
    // Permanently, and for every call that writes.
    assert_eq!(commit(&db, number).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(db.flush().unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Fenced);
    tell("fenced");
}

fn take_over(folder: &Path) -> Db {
    let mut attempts = 0;
    loop {
        let follower = Secondary::builder(folder).options(options()).open().unwrap();
        let promoted = follower.promotion().options(options()).open();
        match promoted {
            Ok(db) => return db,
            // The writer has just begun, or is about to.
            Err(error) if error.kind() == ErrorKind::Locked && attempts < 1000 => attempts += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Checks that both partitions are as of one number, which is returned, and have only what was
/// written.
fn check_content(db: &Db) -> u64 {
    let counts = NAMES.map(|name| {
        let partition = db.open_partition(name).unwrap();
        let count = number_in(&partition.get("count").unwrap().unwrap());
        for number in (count.saturating_sub(SLOTS - 1)).max(1)..=count {
            let found = partition.get(slot(number)).unwrap().unwrap();
            assert_eq!(number_in(&found), number);
        }
        let slots = partition.prefix("slot").map(Result::unwrap).count() as u64;
        assert_eq!(slots, count.min(SLOTS));
        count
    });
    assert_eq!(counts[0], counts[1], "a batch is torn");
    counts[0]
}

/// The fate of the old primary.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It continues.
    Runs,
    /// It is stopped before the promotion and continues after it.
    WakesUp,
    /// It is stopped before the promotion and killed after it.
    IsKilled,
}

/// Reads the rest of the pipe. Returns the last acknowledgement in it, and whether the writer was
/// fenced.
fn rest_of(lines: &mut impl BufRead, last: u64) -> (u64, bool) {
    let mut text = String::new();
    lines.read_to_string(&mut text).unwrap();
    let acknowledged_last = text.split_inclusive('\n').filter_map(acknowledged).max();
    (acknowledged_last.unwrap_or(last).max(last), text.contains("fenced"))
}

fn start(folder: &Path) -> (Child, impl BufRead) {
    let mut child = start_as("takeover::child_that_writes_until_it_is_fenced", FOLDER, folder);
    let lines = std::io::BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// One writer, and its end.
fn round(folder: &Path, shared: &Shared, wanted: u64, fate: Fate) {
    let (mut child, mut lines) = start(folder);
    let mut line = String::new();
    let mut last = 0;
    let mut got = 0;
    while got < wanted {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the writer died by itself");
        if let Some(number) = acknowledged(&line) {
            shared.acknowledged.store(number, Ordering::Release);
            last = number;
            got += 1;
        }
    }
    if !matches!(fate, Fate::Runs) {
        signal(&child, Signal::STOP);
    }
    let db = take_over(folder);
    let found = check_content(&db);
    assert!(found >= last, "{fate:?}: {found} after {last}");
    shared.acknowledged.store(found, Ordering::Release);
    // The new primary continues while the old one wakes up.
    let after: Vec<u64> = (found + 1..found + 100).collect();
    for number in &after[..50] {
        commit(&db, *number).and_then(|()| churn(&db, *number)).unwrap();
        shared.acknowledged.store(*number, Ordering::Release);
    }
    match fate {
        Fate::Runs => {}
        Fate::WakesUp => signal(&child, Signal::CONT),
        Fate::IsKilled => child.kill().unwrap(),
    }
    for number in &after[50..] {
        commit(&db, *number).and_then(|()| churn(&db, *number)).unwrap();
        shared.acknowledged.store(*number, Ordering::Release);
    }
    let (acknowledged_last, is_fenced) = rest_of(&mut lines, last);
    let status = child.wait().unwrap();
    match fate {
        Fate::IsKilled => assert!(
            acknowledged_last <= found,
            "{acknowledged_last} was acknowledged, {found} is there"
        ),
        Fate::Runs | Fate::WakesUp => {
            assert!(status.success() && is_fenced, "{fate:?}: {status}");
            assert_eq!(acknowledged_last, found, "{fate:?}: acknowledged, and found");
        }
    }
    assert_eq!(check_content(&db), found + 99, "{fate:?}");
    db.partition(NAMES[0]).unwrap().compact(..).unwrap();
    let report = db.verify(VerifyOptions::default()).unwrap();
    assert!(report.damage().is_empty(), "{fate:?}: {:?}", report.damage());
    assert_eq!(check_content(&db), found + 99, "{fate:?}");
    db.close().unwrap();
}

#[test]
fn a_writer_under_load_is_taken_over_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    make(folder);
    let shared = Shared::default();
    let mut rng = Rng::from_env_or(4);
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(folder, &shared, 1));
        for number in 0..rounds.unwrap_or(ROUNDS) {
            let fate = [Fate::WakesUp, Fate::Runs, Fate::IsKilled][(number % 3) as usize];
            let wanted = 1 + rng.below(1_500);
            let outcome = std::panic::catch_unwind(|| round(folder, &shared, wanted, fate));
            // The reader ends before this panics.
            let is_over = outcome.is_err() || reader.is_finished();
            shared.is_over.fetch_or(is_over, Ordering::AcqRel);
            assert!(outcome.is_ok() && !reader.is_finished(), "round {number}, {fate:?}");
        }
        shared.is_over.store(true, Ordering::Release);
    });
    let reads = shared.reads.load(Ordering::Relaxed);
    assert!(reads > 50, "{reads} reads");
    println!("{reads} reads, {} commits", shared.acknowledged.load(Ordering::Relaxed));
}
