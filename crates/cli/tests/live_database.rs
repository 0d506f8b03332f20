//! The reading subcommands while this process has the database open for writing.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::process::{Command, Output};

use siltstone::{Db, Durability, LargeValueOptions, PartitionOptions};

const SILTSTONE: &str = env!("CARGO_BIN_EXE_siltstone");

fn run(args: &[&str]) -> Output {
    Command::new(SILTSTONE).args(args).output().expect("the command can be started")
}

#[track_caller]
fn read(args: &[&str], expected: &str) {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{args:?}");
    assert!(errors.contains("another process writes"), "{args:?}: {errors}");
}

/// The arguments with the folder after the verb, for the partition `users`.
fn in_users<'a>(path: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&args[..1], &[path], &args[1..], &["--partition", "users"]].concat()
}

#[test]
fn committed_entries_are_read_while_the_writer_has_the_database_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let db = Db::open(path).unwrap();
    let users = db.partition("users").unwrap();
    users.put("alice", "admin").unwrap();
    db.flush().unwrap();
    users.put("bob", "author").unwrap();
    read(&in_users(path, &["get", "alice"]), "admin\n");
    read(&in_users(path, &["get", "bob"]), "author\n");
    read(&in_users(path, &["scan", "--reverse"]), "bob\tauthor\nalice\tadmin\n");
    read(&in_users(path, &["count"]), "2\n");
    read(&["partitions", path], "default\nusers\n");
    assert_eq!(run(&in_users(path, &["get", "carol"])).status.code(), Some(1));
    let elsewhere = run(&["get", path, "alice", "--partition", "none"]);
    assert_eq!(elsewhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&elsewhere.stderr).contains("no partition \"none\""));
    assert!(!run(&["put", path, "a", "b"]).status.success(), "the writer is another");

    users.delete("alice").unwrap();
    assert_eq!(run(&in_users(path, &["get", "alice"])).status.code(), Some(1));
    let followed = run(&in_users(path, &["secondary", "--json"]));
    let text = String::from_utf8_lossy(&followed.stdout);
    assert!(followed.status.success() && text.contains("\"has_live_primary\":true"), "{text}");
    every_look_at_the_database(path);
    db.close().unwrap();
    let closed = run(&in_users(path, &["get", "bob"]));
    assert_eq!(String::from_utf8_lossy(&closed.stdout), "author\n");
    assert!(closed.stderr.is_empty(), "there is no writer any more");
}

/// A value whose end is damaged is printed up to the damage: it is not read into memory first.
#[test]
#[expect(clippy::disallowed_methods, reason = "damages a file from outside")]
fn a_large_value_is_streamed_while_the_writer_has_the_database_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let db = Db::open(path).unwrap();
    let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    let users = db.partition_with("users", options).unwrap();
    let value = vec![b'v'; 5 << 20];
    users.put("film", &value).unwrap();
    let whole = run(&in_users(path, &["get", "film", "--raw"]));
    assert!(whole.status.success() && whole.stdout == value);
    let chunk = &users.chunks().unwrap()[0];
    let mut file = File::options().write(true).open(&chunk.path).unwrap();
    file.seek(SeekFrom::Start(chunk.last_offset - (1 << 10))).unwrap();
    file.write_all(b"w").unwrap();
    let torn = run(&in_users(path, &["get", "film", "--raw"]));
    assert_eq!(torn.status.code(), Some(1));
    let len = torn.stdout.len();
    assert!((1 << 20..5 << 20).contains(&len) && value.starts_with(&torn.stdout), "{len} bytes");
    db.close().unwrap();
}

#[track_caller]
fn say(args: &[&str]) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    assert!(errors.contains("another process writes"), "{args:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The subcommands that read the whole database, without writes in the meantime.
#[expect(clippy::unwrap_used, reason = "a test that fails should say where")]
#[expect(clippy::disallowed_methods, reason = "looks for files as a user does")]
fn every_look_at_the_database(path: &str) {
    let stats = say(&["stats", path, "--json"]);
    assert!(stats.contains("\"partition\":\"users\""), "{stats}");
    assert!(say(&["levels", path]).contains("users"));
    let explained = say(&in_users(path, &["explain", "alice"]));
    assert!(explained.contains("2 versions"), "{explained}");
    assert!(say(&["verify", path]).contains("no damage"));
    say(&["scrub", path]);
    let readers = say(&["readers", path]);
    assert!(readers.starts_with("0 secondaries hold"), "{readers}");
    for entry in std::fs::read_dir(path).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".sst") || name.ends_with(".wal") || name.ends_with(".manifest") {
            let dumped = run(&["dump", file.to_str().unwrap()]);
            assert!(dumped.status.success(), "{name}");
        }
    }
}

#[test]
fn commits_are_watched_while_the_writer_has_the_database_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let db = Db::open(path).unwrap();
    let users = db.partition("users").unwrap();
    users.put("alice", "admin").unwrap();
    let batch = db.batch().delete(&users, "alice").put(&users, "bob", "author");
    batch.commit(Durability::Sync).unwrap();
    users.delete_range_with("a".."c", Durability::Sync).unwrap();
    db.close().unwrap();
    let db = Db::open(path).unwrap();
    let closed = run(&["watch", path, "--from", "0", "--once"]);
    assert_eq!(closed.status.code(), Some(1), "the log of the first open is gone");
    assert!(String::from_utf8_lossy(&closed.stderr).contains("begins after sequence number 4"));
    let users = db.partition("users").unwrap();
    users.put_with("carol", "editor", Durability::Sync).unwrap();
    users.clear_with(Durability::Sync).unwrap();
    users.put_with("dave", "reader", Durability::Sync).unwrap();
    // A writer that rests attests its last sync.
    db.flush().unwrap();
    let args = ["watch", path, "--from", "4", "--once", "--partition", "users"];
    let text = String::from_utf8(run(&args).stdout).unwrap();
    assert_eq!(
        text,
        "5\tusers\tput\tcarol\teditor\n6\tusers\tclear\n7\tusers\tput\tdave\treader\n"
    );
    let json = run(&[&args[..], &["--prefix", "d", "--json"]].concat()).stdout;
    let lines = String::from_utf8(json).unwrap();
    let last = lines.lines().last().unwrap();
    assert_eq!(
        last,
        "{\"changes\":[{\"key\":\"dave\",\"operation\":\"put\",\"partition\":\"users\",\"value\":\"reader\"}],\"seq\":7}"
    );
    assert_eq!(lines.lines().count(), 2, "a clear is of all keys: {lines}");
    let none = run(&["watch", path, "--once"]);
    assert!(none.status.success() && none.stdout.is_empty());
}
