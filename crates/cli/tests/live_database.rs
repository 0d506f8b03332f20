//! The reading subcommands, and copies, while this process has the database open for writing.

#[cfg(target_os = "linux")]
mod interrupt;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

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
    let page = run(&["secondary", path, "--prometheus"]);
    let text = String::from_utf8_lossy(&page.stdout);
    let seq = "siltstone_secondary_partition_seq{partition=\"users\"} ";
    assert!(text.contains("siltstone_secondary_live_primary 1\n") && text.contains(seq), "{text}");
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

#[expect(clippy::unwrap_used, reason = "a test that fails should say where")]
fn keys(db: &Db, partition: &str) -> Vec<String> {
    let keys = db.partition(partition).unwrap().iter().keys();
    keys.map(|key| String::from_utf8(key.unwrap().to_vec()).unwrap()).collect()
}

#[test]
fn a_checkpoint_is_made_while_the_writer_has_the_database_open() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["db", "copy", "other", "none", "new"];
    let paths = names.map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let [path, copy, other, none, new] = paths;
    let db = Db::open(&path).unwrap();
    let large = PartitionOptions::new().large_values(LargeValueOptions::default());
    let users = db.partition_with("users", large).unwrap();
    let cache = db.partition_with("cache", PartitionOptions::new().logged(false)).unwrap();
    for (partition, key) in [(&users, "flushed"), (&cache, "flushed")] {
        partition.put(key, vec![b'f'; 100_000]).unwrap();
    }
    db.flush().unwrap();
    cache.put("in memory", "1").unwrap();
    let commit = users.put("in the log", vec![b'l'; 100_000]).unwrap();
    let printed = say(&["checkpoint", &path, &copy]);
    assert_eq!(printed, format!("checkpoint in {copy}: sequence {}\n", commit.seq.get()));
    let json = run(&["checkpoint", &path, &other, "--json"]);
    let [text, errors] = [&json.stdout, &json.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(text.contains("\"unlogged\":[\"cache\"]"), "{text}");
    assert!(errors.contains("only what was flushed is in it: cache"), "{errors}");
    let backups = folder.path().join("backups");
    let backup = run(&["backup", "create", &path, backups.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&backup.stderr);
    assert!(errors.contains("only what was flushed is in it: cache"), "{errors}");
    // Refused, with nothing changed: the copy is opened below.
    let refused = run(&["checkpoint", &path, &copy]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is not empty"));
    assert_eq!(run(&["checkpoint", &none, &new]).status.code(), Some(1));
    assert!(!Path::new(&new).exists());

    users.put("later", "1").unwrap();
    let copied = Db::open(&copy).unwrap();
    assert_eq!(copied.visible_seq(), commit.seq);
    assert_eq!(keys(&copied, "users"), ["flushed", "in the log"]);
    assert_eq!(keys(&copied, "cache"), ["flushed"]);
    assert!(copied.verify(Default::default()).unwrap().is_sound());
}

/// A database whose log takes a while to copy.
#[expect(clippy::unwrap_used, reason = "a test that fails should say where")]
fn with_a_long_log(path: &Path) -> Db {
    let db = Db::open(path).unwrap();
    let users = db.partition("users").unwrap();
    for n in 0..40_u32 {
        users.put(n.to_be_bytes(), vec![n as u8; 1 << 19]).unwrap();
    }
    db
}

/// The folder of an interrupted copy is no database, or is the whole. The database and its writer are as before.
#[expect(clippy::unwrap_used, reason = "a test that fails should say where")]
fn check_interrupted(db: &Db, copy: &Path) {
    let path = copy.to_str().unwrap();
    let counted = run(&["count", path, "--partition", "users"]);
    let is_whole = counted.status.success() && counted.stdout == b"40\n";
    let has_manifest = files_in(copy).iter().any(|name| name.ends_with(".manifest"));
    assert!(is_whole || !counted.status.success() && !has_manifest, "{counted:?}");
    let users = db.partition("users").unwrap();
    users.put(0_u32.to_be_bytes(), [0; 9]).unwrap();
    assert_eq!(users.iter().keys().count(), 40);
}

#[expect(clippy::disallowed_methods, reason = "looks for files as a user does")]
fn files_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_checkpoint_that_is_killed_beside_a_writer_leaves_no_half_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let db = with_a_long_log(&path);
    let mut kills = 0;
    for round in 0..6 {
        let copy = folder.path().join(format!("copy-{round}"));
        let mut command = Command::new(SILTSTONE);
        command.arg("checkpoint").args([&path, &copy]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the command can be started");
        while files_in(&copy).len() < 1 + round / 3 && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        kills += usize::from(!child.wait().unwrap().success());
        check_interrupted(&db, &copy);
    }
    assert!(kills > 0, "each was done before");
    let copy = folder.path().join("copy");
    say(&["checkpoint", path.to_str().unwrap(), copy.to_str().unwrap()]);
    assert_eq!(Db::open(&copy).unwrap().partition("users").unwrap().iter().keys().count(), 40);
}

#[test]
#[cfg(target_os = "linux")]
fn an_interrupted_checkpoint_says_what_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let db = with_a_long_log(&at.join("db"));
    let output = interrupt::interrupted(at, &["checkpoint", "db", "copy"], b"");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    assert!(errors.contains("interrupted; db stays as it is"), "{errors}");
    check_interrupted(&db, &at.join("copy"));
}

/// The command ends by Ctrl-C, and says this.
#[cfg(target_os = "linux")]
fn check_end(at: &Path, args: &[&str], said: &str) {
    let output = interrupt::interrupted(at, args, b"");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{args:?}: {errors}");
    assert!(errors.contains(&format!("interrupted; {said}")), "{args:?}: {errors}");
}

#[cfg(target_os = "linux")]
fn whole(at: &Path, args: &[&str]) {
    let output = Command::new(SILTSTONE).current_dir(at).args(args).output();
    assert!(output.is_ok_and(|it| it.status.success()), "{args:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn interrupted_copies_of_a_database_say_what_they_leave() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    with_a_long_log(&at.join("db")).close().unwrap();
    let slow = ["--rate", "1000"];
    let create = ["backup", "create", "db", "backups"];
    let restore = ["backup", "restore", "backups", "restored"];
    let repair = ["repair", "db", "--into", "repaired"];
    // More than a pipe holds, so that the export has not ended.
    let export = ["export", "db", "-", "--format", "stream", "--all-partitions"];
    check_end(at, &[&create[..], &slow].concat(), "the backups in backups stay as they are");
    check_end(at, &export, "the export in - is not complete");
    check_end(at, &repair, "db is not changed, and repaired is no database");
    whole(at, &create);
    check_end(
        at,
        &[&restore[..], &slow].concat(),
        "the backups in backups stay as they are, and restored",
    );
    // The interrupt may come before the folder is made.
    let _ = std::fs::remove_dir_all(at.join("restored"));
    whole(at, &restore);
    whole(at, &repair);
    for copy in ["db", "restored", "repaired"] {
        let counted = run(&in_users(at.join(copy).to_str().unwrap(), &["count"]));
        assert_eq!(counted.stdout, b"40\n", "{copy}: {counted:?}");
    }
}
