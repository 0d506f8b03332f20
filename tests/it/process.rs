//! A process and its open databases: it ends in every way, its threads end, it starts other programs, it has
//! limits, and it opens one folder by several paths.
//!
//! Kills are in `kill.rs`, forks in `tests/fork/`, file handles in `tests/few_files.rs`, each call of a hook that
//! panics in `panics.rs`.

#![expect(
    clippy::disallowed_methods,
    reason = "it looks at folders without a call of the database"
)]

mod callbacks;
mod memory;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use siltstone::{Db, Durability, ErrorKind, Options, Partition};

use crate::sim::oracle::check_sound;

const FOLDER: &str = "SILTSTONE_PROCESS_FOLDER";
/// The way in which a child ends.
const ENDING: &str = "SILTSTONE_PROCESS_ENDING";
/// A child has acknowledged so many writes when it ends.
const WRITES: u64 = 300;

fn options() -> Options {
    Options::new().write_buffer_bytes(32 << 10).wal_segment_bytes(16 << 10).cache_bytes(1 << 20)
}

fn open(folder: &Path) -> siltstone::Result<Db> {
    Db::builder(folder).options(options()).open()
}

fn value(number: u64) -> Vec<u8> {
    [&number.to_be_bytes()[..], &[number as u8; 200]].concat()
}

/// The binary of this test again, as the child `test` under the limits of a shell.
fn child(limits: &str, test: &str, folder: &Path) -> Command {
    let mut command = Command::new("sh");
    let run = format!("{limits} exec \"$0\" --exact process::{test} --nocapture --test-threads=1");
    command.arg("-c").arg(run).arg(std::env::current_exe().unwrap()).env(FOLDER, folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn folder_of_child() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// The child has run its test, which is not named wrongly, and the test has passed.
fn assert_passed(done: &Output) {
    let said = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).join("\n");
    assert!(done.status.success() && said.contains("1 passed"), "{}\n{said}", done.status);
}

/// The largest number in the lines `ack NUMBER` of `lines`.
fn last_ack(lines: impl BufRead) -> u64 {
    let acks = lines.lines().map_while(Result::ok);
    let acks = acks.filter_map(|line| line.rsplit_once("ack ")?.1.parse().ok());
    acks.max().unwrap_or(0)
}

/// Everything that was acknowledged is there, and the folder has no file too many.
fn check(folder: &Path, acked: u64) {
    let db = open(folder).unwrap();
    let words = db.partition("words").unwrap();
    for number in 1..=acked {
        let found = words.get(number.to_be_bytes()).unwrap();
        assert_eq!(found.as_deref(), Some(&value(number)[..]), "{number} of {acked}");
    }
    check_sound(&db).unwrap();
    db.close().unwrap();
}

#[expect(clippy::print_stdout, reason = "for the parent")]
fn acknowledge(number: u64) {
    println!("ack {number}");
}

fn write(words: &Partition, number: u64) -> siltstone::Result<()> {
    words.put_with(number.to_be_bytes(), value(number), Durability::Os)?;
    acknowledge(number);
    Ok(())
}

/// Ends this process. Returns if it is to end by itself.
fn end(how: &str) {
    match how {
        "exit" => std::process::exit(0),
        "abort" => std::process::abort(),
        // Of the main thread of the test: the handles are dropped while it unwinds, and others are not.
        "panic" => panic!("the end of this child"),
        _ => {}
    }
}

#[test]
fn child_that_ends() {
    let Some(folder) = folder_of_child() else { return };
    let how = std::env::var(ENDING).unwrap();
    let db = open(&folder).unwrap();
    let words = db.partition("words").unwrap();
    // Handles of every kind are there when it ends.
    let snapshot = db.snapshot();
    let transaction = db.transaction();
    let mut scan = words.iter();
    for number in 1..=WRITES {
        write(&words, number).unwrap();
        let _ = scan.next();
    }
    end(&how);
    std::mem::forget((snapshot, transaction, scan, words, db));
}

#[test]
fn a_process_that_ends_without_destructors_loses_nothing() {
    for how in ["exit", "abort", "panic", "return"] {
        let dir = tempfile::tempdir().unwrap();
        for round in 1..=2 {
            let done = child("", "child_that_ends", dir.path()).env(ENDING, how).output().unwrap();
            let acked = last_ack(&done.stdout[..]);
            assert_eq!(acked, WRITES, "{how}: {}", String::from_utf8_lossy(&done.stderr));
            if round == 2 {
                check(dir.path(), acked);
            }
        }
    }
}

#[test]
fn child_that_writes_on() {
    let Some(folder) = folder_of_child() else { return };
    let db = open(&folder).unwrap();
    let words = db.partition("words").unwrap();
    for number in 1.. {
        write(&words, number).unwrap();
    }
}

/// Starts a writer, sends it `signals` after some of its writes, and returns how it ended, with its last
/// acknowledgement.
fn signalled(folder: &Path, signals: &[rustix::process::Signal]) -> (ExitStatus, u64) {
    use rustix::process::{Pid, kill_process};
    let mut writer =
        child("", "child_that_writes_on", folder).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap());
    let mut acked = 0;
    for signal in signals {
        let mut line = String::new();
        while !line.contains("ack ") {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "the writer ended by itself");
        }
        acked = acked.max(last_ack(line.as_bytes()));
        kill_process(Pid::from_child(&writer), *signal).unwrap();
    }
    let acked = acked.max(last_ack(lines));
    (writer.wait().unwrap(), acked)
}

/// Returns `true` if this process ignores the signal, as its children then do: for example under `nohup`.
fn is_ignored(signal: rustix::process::Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal.as_raw() - 1) != 0)
}

#[test]
fn signals_that_stop_continue_or_end_a_process_lose_nothing() {
    use std::os::unix::process::ExitStatusExt as _;

    use rustix::process::Signal;
    for last in [Signal::TERM, Signal::HUP, Signal::INT] {
        if is_ignored(last) {
            println!("SKIPPED: {last:?} is ignored here");
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        // Ignored by default, so that only the calls notice them.
        let mut signals = vec![Signal::CHILD, Signal::WINCH, Signal::URG];
        (0..40).for_each(|_| signals.extend([Signal::CHILD, Signal::CONT]));
        signals.push(last);
        let (status, acked) = signalled(dir.path(), &signals);
        assert_eq!(status.signal(), Some(last.as_raw()), "{status}");
        assert!(acked > 0);
        check(dir.path(), acked);
    }
}

/// Writes until a write fails; then a limit is lifted, and the writes go on without an open.
#[test]
fn child_with_short_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Some(folder) = folder_of_child() else { return };
    let options = options().wal_segment_bytes(4 << 20).write_buffer_bytes(8 << 20);
    let db = Db::builder(folder).options(options).open().unwrap();
    let words = db.partition("words").unwrap();
    let mut number = 1;
    let refused = loop {
        match write(&words, number) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 100_000, "no file has reached its limit");
    };
    assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
    assert!(refused.to_string().contains(".wal"), "{refused}");
    assert_eq!(words.get(1_u64.to_be_bytes()).unwrap().as_deref(), Some(&value(1)[..]));
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: maximum, maximum }).unwrap();
    // The store begins new files by itself, in the background or in a call.
    let mut tries = 0;
    while let Err(error) = write(&words, number) {
        tries += 1;
        assert!(tries < 1_000_000, "{error}");
        std::thread::yield_now();
    }
    for number in number + 1..number + 100 {
        write(&words, number).unwrap();
    }
    db.close().unwrap();
}

/// `ulimit -f`: the signal that the system sends before the error is ignored, as services do.
#[test]
fn a_limit_of_the_length_of_files_refuses_writes_until_it_is_lifted() {
    let dir = tempfile::tempdir().unwrap();
    let limits = "trap '' XFSZ; ulimit -S -f 512;";
    let done = child(limits, "child_with_short_files", dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}\n{said}", done.status);
    let acked = last_ack(&done.stdout[..]);
    assert!(acked > 100);
    check(dir.path(), acked);
}

/// A program that was started while the database was open has none of its files, and keeps no lock.
#[test]
fn a_program_that_is_started_keeps_no_file_and_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let db = open(&dir).unwrap();
    let words = db.partition("words").unwrap();
    for number in 1..=WRITES {
        words.put(number.to_be_bytes(), value(number)).unwrap();
    }
    db.flush().unwrap();
    words.iter().for_each(|entry| drop(entry.unwrap()));
    let mut program =
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // It answers, so it is `cat` and no copy of this process any more.
    program.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    program.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    for entry in std::fs::read_dir(format!("/proc/{}/fd", program.id())).unwrap() {
        let target = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
        assert!(!target.starts_with(&dir), "{}", target.display());
    }
    drop((words, db));
    check(&dir, WRITES);
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

#[test]
fn child_that_opens_the_folder_again() {
    let Some(folder) = folder_of_child() else { return };
    std::env::set_current_dir(folder.join("inner")).unwrap();
    for path in ["../db", "../link", "./../db/", "../db/.", "../inner/../link/."] {
        let refused = open(Path::new(path)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Locked, "{path}: {refused}");
    }
}

/// Case does not matter here: a file system that ignores it hands out the same folder, like a link.
#[test]
fn one_folder_by_several_paths_is_one_database() {
    let scene = tempfile::tempdir().unwrap();
    let [dir, link, inner] = ["db", "link", "inner"].map(|name| scene.path().join(name));
    std::fs::create_dir(&inner).unwrap();
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    // By the link first: nothing is there yet that it leads to.
    let db = open(&dir).unwrap();
    let words = db.partition("words").unwrap();
    words.put(1_u64.to_be_bytes(), value(1)).unwrap();
    for path in
        [dir.clone(), link.clone(), dir.join("."), inner.join("../db"), inner.join("../link/")]
    {
        let refused = open(&path).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Locked, "{}: {refused}", path.display());
        let reader = Db::builder(&path).read_only(true).open().unwrap_err();
        assert_eq!(reader.kind(), ErrorKind::Locked, "{}: {reader}", path.display());
    }
    let done = child("", "child_that_opens_the_folder_again", scene.path()).output().unwrap();
    assert_passed(&done);
    drop((words, db));
    check(&link, 1);
}

/// Threads that panic, or that end with handles in their thread-local variables.
#[test]
fn threads_that_end_with_handles_hold_nothing() {
    use std::cell::RefCell;
    thread_local! {
        static HELD: RefCell<Vec<Box<dyn std::any::Any>>> = const { RefCell::new(Vec::new()) };
    }
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path()).unwrap();
    let words = db.partition("words").unwrap();
    words.put(1_u64.to_be_bytes(), value(1)).unwrap();
    for panics in [true, false] {
        let own = (db.clone(), words.clone());
        let ended = std::thread::spawn(move || {
            let (db, words) = own;
            let mut transaction = db.transaction();
            transaction.get_for_update(&words, 1_u64.to_be_bytes()).unwrap();
            let batch = db.batch().put(&words, "never", "committed");
            let held = (words.iter(), db.snapshot(), batch);
            assert!(!panics, "the end of a thread");
            HELD.with_borrow_mut(|all| {
                all.extend([Box::new(held) as Box<dyn std::any::Any>, Box::new(transaction)]);
            });
        });
        assert_eq!(ended.join().is_err(), panics);
        // The lock of the key is free, and no snapshot holds old entries.
        let mut transaction = db.transaction();
        transaction.get_for_update(&words, 1_u64.to_be_bytes()).unwrap();
        transaction.put(&words, 1_u64.to_be_bytes(), value(1));
        transaction.commit(Durability::Os).unwrap();
    }
    assert!(words.get("never").unwrap().is_none());
    assert!(db.health().oldest_snapshot.is_none());
    drop(words);
    db.close().unwrap();
    check(dir.path(), 1);
}
