//! `siltstone backup`: next to the process that writes, which is this one, and of a database that nothing has open.

#![expect(clippy::disallowed_methods, reason = "the tests damage a file, and look at a folder")]

mod runner;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use siltstone::Db;
use testkit::Rng;

use runner::ended;

#[track_caller]
fn printed(at: &Path, args: &[&str], code: i32) -> String {
    String::from_utf8(ended(at, args, code).stdout).expect("it prints UTF-8")
}

#[test]
fn backups_are_made_next_to_a_writer_listed_verified_restored_and_purged() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let db = Db::open(at.join("db")).unwrap();
    let users = db.partition("users").unwrap();
    users.put("alice", "admin").unwrap();
    let made = printed(at, &["backup", "create", "db", "backups", "--json"], 0);
    assert!(made.contains("\"backup\":1,") && made.contains("\"sequence\":1,"), "{made}");
    users.put("bob", "author").unwrap();
    let made = printed(at, &["backup", "create", "db", "backups", "--rate", "100000000"], 0);
    assert!(made.starts_with("backup 2: sequence 2, "), "{made}");
    db.close().unwrap();
    let made = printed(at, &["backup", "create", "db", "backups"], 0);
    assert!(made.starts_with("backup 3: sequence 2, "), "{made}");
    assert_eq!(printed(at, &["backup", "list", "backups"], 0).lines().count(), 3);

    printed(at, &["backup", "restore", "backups", "one", "--id", "1"], 0);
    assert_eq!(printed(at, &["scan", "one", "--partition", "users"], 0), "alice\tadmin\n");
    printed(at, &["backup", "restore", "backups", "last"], 0);
    assert_eq!(printed(at, &["count", "last", "--partition", "users"], 0), "2\n");
    // A folder with files, a backup that is not there, and a database that is not there.
    printed(at, &["backup", "restore", "backups", "last"], 2);
    printed(at, &["backup", "restore", "backups", "other", "--id", "9"], 2);
    printed(at, &["backup", "create", "nothing", "backups"], 1);
    printed(at, &["backup", "purge", "backups"], 2);

    let sound = printed(at, &["backup", "verify", "backups"], 0);
    assert!(sound.starts_with("3 backups, ") && sound.ends_with(": 0 damaged\n"), "{sound}");
    let purged = printed(at, &["backup", "purge", "backups", "--keep", "2"], 0);
    assert!(purged.starts_with("1 backups deleted, "), "{purged}");
    let record = at.join("backups").join("backup-0000000002");
    let mut bytes = std::fs::read(&record).unwrap();
    bytes[50] ^= 1;
    std::fs::write(&record, bytes).unwrap();
    let list = printed(at, &["backup", "list", "backups"], 0);
    assert!(list.contains("backup 2 is damaged: "), "{list}");
    let damaged = printed(at, &["backup", "verify", "backups"], 1);
    assert!(damaged.contains("backup-0000000002, of backup 2: "), "{damaged}");
    printed(at, &["backup", "purge", "backups", "--id", "2"], 0);
    assert_eq!(printed(at, &["backup", "list", "backups"], 0).lines().count(), 1);
}

#[test]
fn backups_are_kept_in_a_bucket_too() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let db = Db::open(at.join("db")).unwrap();
    db.partition("users").unwrap().put("alice", "admin").unwrap();
    db.close().unwrap();
    std::fs::create_dir(at.join("bucket")).unwrap();
    let url = format!("file://{}/users", at.join("bucket").display());
    for number in 1..=2 {
        let made = printed(at, &["backup", "create", "db", &url], 0);
        assert!(made.starts_with(&format!("backup {number}: sequence 1, ")), "{made}");
    }
    assert!(printed(at, &["backup", "verify", &url], 0).starts_with("2 backups, "));
    printed(at, &["backup", "restore", &url, "one"], 0);
    assert_eq!(printed(at, &["scan", "one", "--partition", "users"], 0), "alice\tadmin\n");
    assert!(printed(at, &["backup", "purge", &url, "--keep", "1"], 0).starts_with("1 backups "));
    assert_eq!(printed(at, &["backup", "list", &url], 0).lines().count(), 1);
    // A database in a bucket has its history there.
    let refused = ended(at, &["backup", "create", &url, "backups"], 2).stderr;
    assert!(String::from_utf8_lossy(&refused).contains("remote restore"));
}

/// A folder or bucket of backups.
struct Place<'a> {
    at: &'a Path,
    /// As the command takes it.
    name: String,
    shared: PathBuf,
}

impl Place<'_> {
    /// The number of shared files, finished or not.
    fn shared(&self) -> usize {
        std::fs::read_dir(&self.shared).map_or(0, Iterator::count)
    }

    /// The output of a subcommand of `backup`.
    fn printed(&self, args: &[&str]) -> String {
        printed(self.at, &self.args(args), 0)
    }

    /// The arguments, with the name of the place in the place of `BACKUPS`.
    fn args<'s>(&'s self, args: &[&'s str]) -> Vec<&'s str> {
        let args = args.iter().map(|it| if *it == "BACKUPS" { &self.name } else { *it });
        std::iter::once("backup").chain(args).collect()
    }

    fn started(&self, args: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
        command
            .current_dir(self.at)
            .args(self.args(args))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.spawn().expect("the command can be started")
    }

    /// Runs a process, which is killed once so many shared files were made or deleted, next to another one that makes a
    /// backup. Returns `true` if the first one was killed or refused.
    fn is_killed(&self, args: &[&str], changes: usize) -> bool {
        let before = self.shared();
        let mut child = self.started(args);
        let other = self.started(&["create", "db", "BACKUPS"]);
        let is_killed = loop {
            if let Some(status) = child.try_wait().expect("it is a child") {
                break !status.success();
            }
            if self.shared().abs_diff(before) >= changes {
                child.kill().expect("it is a child");
                child.wait().expect("it is a child");
                break true;
            }
            std::thread::yield_now();
        };
        let other = other.wait_with_output().expect("it is a child");
        let said = String::from_utf8_lossy(&other.stderr);
        assert!(other.status.success() || said.contains("another process"), "{said}");
        is_killed
    }
}

#[test]
fn backups_stay_whole_while_processes_that_make_and_purge_them_are_killed() {
    for is_bucket in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let place = if is_bucket {
            let bucket = at.join("bucket");
            std::fs::create_dir(&bucket).unwrap();
            let name = format!("file://{}/users", bucket.display());
            Place { at, name, shared: bucket.join("users/backups/shared") }
        } else {
            Place { at, name: "backups".to_owned(), shared: at.join("backups/shared") }
        };
        check_kills(&place);
    }
}

fn check_kills(place: &Place<'_>) {
    let at = place.at;
    let db = Db::open(at.join("db")).expect("the folder is new");
    let users = db.partition("users").expect("it is made");
    let mut rng = Rng::from_env_or(5);
    let mut written = 0;
    // The number of keys at each backup that was made.
    let mut made = BTreeMap::new();
    let mut kills = 0;
    let mut purges = 0;
    for round in 0..24 {
        for _ in 0..=rng.below(4) {
            users
                .put(format!("{written:04}"), vec![rng.next_u64() as u8; 40_000])
                .expect("it is put");
            written += 1;
        }
        db.flush().expect("it is flushed");
        let changes = rng.index(6);
        if rng.chance(1, 4) {
            let args = ["purge", "BACKUPS", "--keep", "2"];
            kills += usize::from(place.is_killed(&args, changes));
            purges += 1;
        } else if rng.chance(1, 2) {
            let threads = (1 + rng.below(3)).to_string();
            let args = ["create", "db", "BACKUPS", "--threads", &threads];
            kills += usize::from(place.is_killed(&args, changes));
        } else {
            place.printed(&["create", "db", "BACKUPS"]);
            let list = place.printed(&["list", "BACKUPS", "--json"]);
            let newest = list.lines().last().expect("one is there");
            assert!(newest.contains(&format!("\"sequence\":{written},")), "{newest}");
        }
        place.printed(&["verify", "BACKUPS"]);
        let list = place.printed(&["list", "BACKUPS"]);
        for line in list.lines() {
            let id: String = line
                .trim_start_matches("backup ")
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            let sequence = line.split("sequence ").nth(1).expect("it has one");
            let sequence = sequence.split(',').next().expect("it has one").to_owned();
            assert_eq!(made.entry(id).or_insert(sequence.clone()), &sequence, "round {round}");
        }
    }
    assert!(kills > 3 && purges > 2, "{kills} kills, {purges} purges");
    let list = place.printed(&["list", "BACKUPS"]);
    assert!(list.lines().count() > 1, "{list}");
    for (id, sequence) in made {
        if list.contains(&format!("backup {id}: ")) {
            let into = format!("restored-{id}");
            place.printed(&["restore", "BACKUPS", &into, "--id", &id]);
            let count = printed(at, &["count", &into, "--partition", "users"], 0);
            assert_eq!(count.trim(), sequence, "backup {id}");
        }
    }
}
