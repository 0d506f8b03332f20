//! A second process follows a database while the first one writes, reads its own writes, and takes
//! the database over in the end.
//!
//! `cargo run --example reader_process`
//!
//! The program starts itself again as the reader. The writer sends it the token of each commit
//! through a pipe; the reader answers with the value that it reads at that token. When the pipe
//! ends, the reader becomes the primary, although the writer still has the database open.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use siltstone::secondary::{Level, Target};
use siltstone::{Commit, Db, Epoch, ErrorKind, Result, SeqNo};

const FOLDER: &str = "READER_PROCESS_FOLDER";

fn main() -> Result<()> {
    match std::env::var_os(FOLDER) {
        Some(folder) => read(Path::new(&folder)),
        None => write(),
    }
}

/// The first process: writes, and asks the second one for the value that it reads.
fn write() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-reader-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let orders = db.partition("orders")?;
    let program = std::env::current_exe()?;
    let mut reader = Command::new(program)
        .env(FOLDER, &folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut tokens = reader.stdin.take().expect("it is piped");
    let mut answers = BufReader::new(reader.stdout.take().expect("it is piped"));
    for number in 1..=5 {
        let commit = orders.put("newest", number.to_string())?;
        writeln!(tokens, "{} {}", commit.seq, commit.epoch)?;
        let mut answer = String::new();
        answers.read_line(&mut answer)?;
        assert_eq!(answer.trim(), number.to_string(), "a session reads its own writes");
        println!("order {number} is seen by process {}", reader.id());
    }
    drop(tokens);
    assert!(reader.wait()?.success());
    // The second process has the database now, and nothing that it did not see acknowledged.
    let refused =
        orders.put("newest", "7").expect_err("another process has taken the database over");
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    println!("process {}: {refused}", std::process::id());
    drop(orders);
    drop(db);
    let db = Db::open(&folder)?;
    let newest = db.partition("orders")?.get("newest")?;
    assert_eq!(newest.as_deref(), Some(&b"6"[..]), "the second process wrote it");
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}

/// The second process: reads at each token that it receives.
fn read(folder: &Path) -> Result<()> {
    let secondary = Db::secondary(folder)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (seq, epoch) = line.split_once(' ').expect("a token is two numbers");
        let token = Commit {
            seq: SeqNo::new(seq.parse().expect("a number")).expect("a sequence number"),
            epoch: Epoch(epoch.parse().expect("a number")),
        };
        let orders = secondary.partition("orders")?;
        let reading = orders.at(Level::Session(token))?;
        let newest = reading.get("newest")?.expect("it was committed");
        println!("{}", String::from_utf8_lossy(&newest));
    }
    // All partitions together, at one commit.
    secondary.sync(Target::Latest)?;
    assert!(secondary.cut().as_of().is_some());
    // The first process lives, and is fenced. It could also be stopped, or dead.
    let db = Db::promote(&secondary)?;
    drop(secondary);
    db.partition("orders")?.put("newest", "6")?;
    db.close()
}
