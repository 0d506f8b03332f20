//! A program that has closed its standard streams: no file of a database gets their descriptors, so
//! that no database file contains text that the program prints.
//!
//! The test binary starts itself again, because a process has these streams once.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use siltstone::secondary::Target;
use siltstone::{
    Db, Durability, LargeValueOptions, Options, Partition, PartitionOptions, VerifyOptions,
};

/// The environment variable with the folder of the child.
const FOLDER: &str = "SILTSTONE_TEST_CLOSED_STREAMS";
const WRITES: u32 = 3_000;
/// No status with which the test harness ends.
const DONE: i32 = 42;

fn options() -> Options {
    Options::new().write_buffer_bytes(128 << 10).wal_segment_bytes(64 << 10)
}

fn large_values() -> PartitionOptions {
    PartitionOptions::new().large_values(LargeValueOptions::default())
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Prints all the time, as a program does that does not know that its streams are closed.
fn print(is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        // The text may be refused or lost.
        let _ = writeln!(std::io::stdout(), "a line of text that is in no file of a database");
        let _ = writeln!(std::io::stderr(), "another one");
        // Other threads work in the meantime, on a machine with few cores, too.
        std::thread::park_timeout(std::time::Duration::from_micros(20));
    }
}

fn write_all(dir: &Path, words: &Partition, media: &Partition) {
    for number in 0..WRITES {
        let durability = if number % 500 == 0 { Durability::Sync } else { Durability::Os };
        words.put_with(key(number), [7; 100], durability).unwrap();
        if number % 1000 == 0 {
            media.put(key(number), vec![number as u8; 100_000]).unwrap();
            words.export(.., dir.join(format!("export{number}"))).unwrap();
        }
    }
}

/// The files below `dir` that have the descriptors of the standard streams.
fn taken(dir: &Path) -> Vec<PathBuf> {
    let files = (0..3).filter_map(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok());
    files.filter(|file| file.starts_with(dir)).collect()
}

/// Does nothing unless it is the child.
#[test]
fn child_without_standard_streams() {
    let Some(dir) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    for fd in 0..3 {
        nix::unistd::close(fd).unwrap();
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let printing = std::thread::spawn({
        let is_over = is_over.clone();
        move || print(&is_over)
    });
    let path = dir.join("db");
    let db = Db::builder(&path).options(options()).open().unwrap();
    let words = db.partition("words").unwrap();
    let media = db.partition_with("media", large_values()).unwrap();
    let secondary = Db::secondary(&path).unwrap();
    write_all(&dir, &words, &media);
    secondary.sync(Target::Latest).unwrap();
    db.checkpoint(dir.join("checkpoint")).unwrap();
    let while_open = taken(&dir);
    drop((secondary, words, media));
    db.close().unwrap();
    is_over.store(true, Ordering::Relaxed);
    printing.join().unwrap();
    check(&path);
    check(&dir.join("checkpoint"));
    // The harness would print.
    std::process::exit(if while_open.is_empty() { DONE } else { 1 });
}

fn check(dir: &Path) {
    let db = Db::open(dir).unwrap();
    let words = db.partition("words").unwrap();
    let media = db.partition_with("media", large_values()).unwrap();
    for number in 0..WRITES {
        assert_eq!(words.get(key(number)).unwrap().unwrap(), [7; 100], "{number}");
        if number % 1000 == 0 {
            assert_eq!(media.get(key(number)).unwrap().unwrap(), vec![number as u8; 100_000]);
        }
    }
    let report = db.verify(VerifyOptions::default()).unwrap();
    assert!(report.damage().is_empty(), "{:?}", report.damage());
    drop((words, media));
    db.close().unwrap();
}

#[test]
fn what_a_program_prints_to_closed_streams_is_in_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_without_standard_streams", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(DONE), "{status}");
    check(&folder.path().join("db"));
}
