//! `siltstone backup`: next to the process that writes, which is this one, and of a database that nothing has open.

#![expect(clippy::disallowed_methods, reason = "the test damages a file")]

mod runner;

use std::path::Path;

use siltstone::Db;

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
