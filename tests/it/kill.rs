//! A real process is killed with SIGKILL while it writes, round after round in one folder.
//!
//! The test binary starts itself again as the writer, which prints each acknowledgement into a
//! pipe. All acknowledged writes must be there afterwards, batches complete, and the lock free at
//! once. A write of the default durability survives this; other tests check what survives a power
//! cut.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, Fs, MemFs, OsFs};
use siltstone::{Db, Durability, ErrorKind, Options};
use testkit::Rng;

use crate::sim::oracle::check_sound;
use crate::store::stepped;

const FOLDER: &str = "SILTSTONE_KILL_FOLDER";
const WRITTEN: &str = "SILTSTONE_KILL_WRITTEN";
const WRITERS: usize = 2;
const SLOTS: u64 = 120;
const ROUNDS: usize = 50;

fn open(folder: &Path) -> siltstone::Result<Db> {
    // Small, so that segments, flushes and compactions occur between two kills. A log that is
    // written through a mapping needs longer segments for that.
    let is_mapped = std::env::var_os(WRITTEN).is_none();
    let segment_bytes = if is_mapped { 48 << 10 } else { 8 << 10 };
    let options = Options::new()
        .write_buffer_bytes(24 << 10)
        .wal_segment_bytes(segment_bytes)
        .wal_bytes_max(8 * segment_bytes)
        .wal_mapped(is_mapped)
        .log_retained_bytes(2 * segment_bytes)
        .cache_bytes(1 << 20);
    Db::builder(folder).options(options).open()
}

/// The content of the store when nothing may be written, and the names in its folder, which stay.
fn shown_read_only(folder: &Path) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let names = || OsFs.list(folder, "").unwrap();
    let before = names();
    let db = Db::builder(folder).read_only(true).open().unwrap();
    let shown = everything(&db);
    db.close().unwrap();
    assert_eq!(names(), before);
    shown
}

fn everything(db: &Db) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    for name in db.partition_names() {
        let partition = db.partition(&name).unwrap();
        for entry in partition.iter() {
            let (key, value) = entry.unwrap();
            all.push((name.clone(), key.to_vec(), value.to_vec()));
        }
    }
    all
}

fn slot_key(writer: usize, number: u64) -> String {
    format!("writer{writer}-slot{:04}", number % SLOTS)
}

fn count_key(writer: usize) -> String {
    format!("writer{writer}-count")
}

fn value(writer: usize, number: u64) -> String {
    format!("{writer}:{number}:{}", "x".repeat((number % 97) as usize))
}

/// The number of the last batch of `writer` in the store, after a check that all batches up to it
/// are complete, in both partitions, and that no later one is there.
fn check_writer(db: &Db, writer: usize) -> u64 {
    let partitions = ["left", "right"].map(|name| db.partition(name).unwrap());
    let counts = partitions.each_ref().map(|partition| {
        let count = partition.get(count_key(writer)).unwrap();
        count.map_or(0, |count| std::str::from_utf8(&count).unwrap().parse::<u64>().unwrap())
    });
    assert_eq!(counts[0], counts[1], "a batch was split");
    let last = counts[0];
    for partition in &partitions {
        for number in last.saturating_sub(SLOTS - 1).max(1)..=last {
            let found = partition.get(slot_key(writer, number)).unwrap();
            let found = found.as_deref().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            assert_eq!(found, Some(value(writer, number)), "batch {number} of {last}");
        }
        let kept = partition.prefix(format!("writer{writer}-slot")).map(Result::unwrap).count();
        assert_eq!(kept as u64, last.min(SLOTS));
    }
    last
}

/// The writer: does nothing unless a parent starts it.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let db = open(Path::new(&folder)).unwrap();
    println!("ready");
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let db = db.clone();
            scope.spawn(move || write_for_ever(&db, writer));
        }
    });
}

#[expect(clippy::print_stdout, reason = "acknowledgements for the parent")]
fn write_for_ever(db: &Db, writer: usize) {
    let [left, right] = ["left", "right"].map(|name| db.partition(name).unwrap());
    let mut number = check_writer(db, writer);
    loop {
        number += 1;
        let mut batch = db.batch();
        for partition in [&left, &right] {
            batch = batch.put(partition, slot_key(writer, number), value(writer, number)).put(
                partition,
                count_key(writer),
                number.to_string(),
            );
        }
        batch.commit(Durability::Os).unwrap();
        println!("ack {writer} {number}");
    }
}

/// Starts a writer, whose log is written with calls or through a mapping.
fn start(folder: &Path, is_written: bool) -> (Child, BufReader<ChildStdout>) {
    let mut command = child_test("kill::child_that_writes_until_it_is_killed", FOLDER, folder);
    if is_written {
        command.env(WRITTEN, "1");
    }
    spawned(command)
}

/// This process again, as one test that reads the folder from the variable `name`.
pub fn child_test(test: &str, name: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(name, folder).stdout(Stdio::piped());
    command
}

pub fn spawned(mut command: Command) -> (Child, BufReader<ChildStdout>) {
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// Kills a writer after `wanted` acknowledgements. Calls `note` with each acknowledgement, also
/// with later ones.
pub fn kill_after(
    (mut child, mut lines): (Child, BufReader<ChildStdout>),
    wanted: u64,
    mut note: impl FnMut(usize, u64),
) {
    let mut line = String::new();
    let mut heard = 0;
    while heard < wanted {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the writer died by itself");
        if let Some((writer, number)) = acknowledged(&line) {
            note(writer, number);
            heard += 1;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The lines that it printed before it died are in the pipe.
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    for (writer, number) in rest.split_inclusive('\n').filter_map(acknowledged) {
        note(writer, number);
    }
}

/// Reads lines until one is `word`; `false` at the end of the pipe.
fn wait_for(lines: &mut BufReader<ChildStdout>, word: &str) -> bool {
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        if line.contains(word) {
            return true;
        }
        line.clear();
    }
    false
}

/// The acknowledgement in a complete line, if the line is one.
fn acknowledged(line: &str) -> Option<(usize, u64)> {
    let (_, ack) = line.strip_suffix('\n')?.rsplit_once("ack ")?;
    let (writer, number) = ack.split_once(' ')?;
    Some((writer.parse().ok()?, number.parse().ok()?))
}

#[test]
fn killed_writers_lose_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::from_env_or(11);
    let mut acks = [0; WRITERS];
    let mut total = 0;
    // Writers killed since the last look into the store: each may have had a batch in progress.
    let mut killed = 0;
    for round in 0..ROUNDS {
        let started = start(dir.path(), round % 2 == 1);
        // Sometimes while it opens or recovers, otherwise after that many acknowledgements.
        let wanted = if round % 10 == 9 { 0 } else { 1 + rng.next_u64() % 400 };
        kill_after(started, wanted, |writer, number| acks[writer] = number);
        killed += 1;
        if round % 3 == 2 {
            continue; // The next writer recovers from what two kills left.
        }
        // Before the first open has finished there may be no database yet.
        let shown = (total > 0).then(|| shown_read_only(dir.path()));
        let db = open(dir.path()).unwrap();
        if let Some(shown) = shown {
            assert!(everything(&db) == shown, "round {round}: read-only shows another state");
        }
        for (writer, acked) in acks.iter_mut().enumerate() {
            let found = check_writer(&db, writer);
            let allowed = *acked..=*acked + killed;
            assert!(allowed.contains(&found), "round {round}: {found} of {allowed:?}");
            *acked = found;
        }
        killed = 0;
        total = acks.iter().sum();
        check_sound(&db).unwrap();
        if round % 2 == 0 {
            db.close().unwrap();
        }
    }
    assert!(total > ROUNDS as u64);
    println!("{ROUNDS} kills, {total} batches");
}

#[test]
fn a_second_process_gets_a_locked_error() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, mut lines) = start(dir.path(), false);
    assert!(wait_for(&mut lines, "ready"));
    for round in 0..3 {
        // A process that is stopped keeps its lock.
        #[cfg(target_os = "linux")]
        if round == 2 {
            use rustix::process::{Pid, Signal, kill_process};
            kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        }
        let refused = open(dir.path()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Locked, "{refused}");
        assert!(refused.is_retryable(), "round {round}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let db = open(dir.path()).unwrap();
    assert_eq!(open(dir.path()).unwrap_err().kind(), ErrorKind::Locked, "in one process as well");
    drop(db);
    open(dir.path()).unwrap().close().unwrap();
}

fn open_in_memory(fs: &MemFs) -> Db {
    let options = Options::new().wal_segment_bytes(4 << 10).write_buffer_bytes(1 << 20);
    stepped(Arc::new(fs.clone()), "/db", 1).options(options).open().unwrap()
}

/// A batch larger than a segment gets a segment of its own. The reserve that was ready at that time
/// had a lower number and was used after it, so that the next open, which reads segments by number,
/// reported the log as broken and refused it.
#[test]
fn a_batch_larger_than_a_segment_keeps_the_log_in_order() {
    let fs = MemFs::new();
    let db = open_in_memory(&fs);
    let p = db.partition("p").unwrap();
    let mut count = 0;
    let mut put = |bytes: usize| {
        p.put(format!("{count:04}"), vec![b'x'; bytes]).unwrap();
        count += 1;
        count
    };
    for _ in 0..3 {
        for _ in 0..12 {
            put(1000);
        }
        db.wait_idle().unwrap();
        put(10_000);
    }
    let count = put(1000);
    let left = fs.crash_clone(CrashOutcome::Everything, &mut || 0);
    let db = open_in_memory(&left);
    assert_eq!(db.partition("p").unwrap().iter().map(Result::unwrap).count(), count);
}

/// The writer is another process.
#[test]
fn checkpoints_beside_a_live_writer_have_a_prefix_with_everything_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("db");
    let (mut child, mut lines) = start(&folder, false);
    let mut acks = [0; WRITERS];
    let mut line = String::new();
    for round in 0..40 {
        for _ in 0..100 {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "the writer died by itself");
            if let Some((writer, number)) = acknowledged(&line) {
                acks[writer] = number;
            }
        }
        let copy = dir.path().join(format!("copy-{round}"));
        let copied = Db::builder(&folder).checkpoint(&copy).unwrap();
        let db = open(&copy).unwrap();
        assert_eq!(db.visible_seq(), copied.seq, "round {round}");
        for (writer, acked) in acks.iter().enumerate() {
            let last = check_writer(&db, writer);
            assert!(last >= *acked, "round {round}: {last} of {acked}");
        }
        check_sound(&db).unwrap();
        db.close().unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let db = open(&folder).unwrap();
    for (writer, acked) in acks.iter().enumerate() {
        assert!(check_writer(&db, writer) >= *acked);
    }
}
