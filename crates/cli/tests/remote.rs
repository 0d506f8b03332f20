//! Databases in buckets: `--remote`, URLs in the place of folders, and `siltstone remote`. The bucket is a folder.

#![expect(
    clippy::disallowed_methods,
    reason = "sources and buckets are files outside every database"
)]

mod runner;

use std::path::{Path, PathBuf};

use remote::Remote;
use serde_json::Value;
use siltstone::{Db, Durability, ErrorKind};

use runner::ended;

/// A folder, with the URL of a bucket in it.
struct Place {
    folder: tempfile::TempDir,
    url: String,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("there is a place for it");
        let url = url_in(folder.path(), "bucket");
        Place { folder, url }
    }

    fn at(&self) -> &Path {
        self.folder.path()
    }

    fn bucket(&self) -> PathBuf {
        self.at().join("bucket")
    }

    /// Ends with success and without a note; returns standard output.
    #[track_caller]
    fn said(&self, args: &[&str]) -> String {
        let output = ended(self.at(), args, 0);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
        String::from_utf8(output.stdout).expect("it prints text")
    }

    /// Ends with `code`; returns standard error.
    #[track_caller]
    fn refused(&self, args: &[&str], code: i32) -> String {
        let output = ended(self.at(), args, code);
        String::from_utf8(output.stderr).expect("it prints text")
    }

    #[track_caller]
    fn put(&self, key: &str, value: &str) {
        assert_eq!(self.said(&["put", "db", key, value, "--remote", &self.url]), "");
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.said(args)).expect("it prints one object")
    }

    fn objects(&self, dir: &str) -> Vec<PathBuf> {
        files_below(&self.bucket().join(dir))
    }
}

fn url_in(folder: &Path, name: &str) -> String {
    format!("file://{}/{name}", folder.display())
}

/// The files below `dir`, in order.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("the folder is listed").path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("the object is there");
    bytes[at] ^= 1;
    std::fs::write(path, bytes).expect("the object can be replaced");
}

#[track_caller]
fn assert_narrow(text: &str) {
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn what_is_put_with_a_remote_is_read_by_its_url() {
    let place = Place::new();
    let at = place.at();
    let url = &*place.url;
    place.put("alice", "admin");
    place.put("bob", "author");
    assert_eq!(place.said(&["get", url, "alice"]), "admin\n");
    assert_eq!(place.said(&["get", url, "alice", "--raw"]), "admin");
    assert_eq!(place.said(&["scan", url, "--reverse"]), "bob\tauthor\nalice\tadmin\n");
    assert_eq!(place.said(&["count", url, "--json"]), "{\"count\":2}\n");
    assert_eq!(place.said(&["partitions", url]), "default\n");
    assert!(place.refused(&["get", url, "carol"], 1).contains("no key carol"));
    assert!(place.refused(&["get", url, "a", "--partition", "none"], 1).contains("no partition"));

    assert_eq!(place.said(&["delete", "db", "bob", "--remote", url]), "");
    assert_eq!(place.said(&["scan", url]), "alice\tadmin\n");
    std::fs::write(at.join("words"), "carol\teditor\ndave\treader\n").unwrap();
    place.said(&["load", "db", "words", "--format", "lines", "--remote", url]);
    assert_eq!(place.said(&["count", url]), "3\n");
    place.said(&["delete", "db", "--prefix", "d", "--remote", url]);
    assert_eq!(place.said(&["compact", "db", "--remote", url]), "compacted default\n");
    assert_eq!(place.said(&["scan", url, "--keys"]), "alice\ncarol\n");
    assert!(place.refused(&["export", url, "tables"], 2).contains("--format stream"));
    place.said(&["export", "db", "tables"]);
    place.said(&["ingest", "db", "tables", "--partition", "copy", "--remote", url]);
    place.said(&["export", url, "stream", "--format", "stream", "--json"]);
    place.said(&["import", "db", "stream", "--remote", url]);
    assert_eq!(place.said(&["partitions", url]), "copy\ndefault\n");
    assert_eq!(place.said(&["count", url, "--partition", "copy"]), "2\n");
    assert!(place.objects("lease").is_empty(), "each command has given its lease up");
}

#[test]
fn every_look_at_a_database_takes_a_url() {
    let place = Place::new();
    let url = &*place.url;
    place.put("alice", "admin");
    place.said(&["compact", "db", "--remote", url]);
    place.put("bob", "author");
    for args in [
        &["stats", url][..],
        &["levels", url, "--tables"],
        &["verify", url],
        &["scrub", url],
        &["explain", url, "alice"],
        &["explain", url, "bob"],
        &["secondary", url, "--json"],
    ] {
        let text = place.said(args);
        assert!(!text.is_empty(), "{args:?}");
    }
    assert!(place.said(&["verify", url]).starts_with("no damage"));
    assert!(place.refused(&["chunks", url], 2).contains("no large values"));
    place.said(&["export", url, "out", "--format", "stream"]);
    place.said(&["import", "other", "out"]);
    assert_eq!(place.said(&["scan", "other"]), "alice\tadmin\nbob\tauthor\n");
    assert!(place.objects("lease").is_empty(), "each command has given its lease up");
}

#[test]
fn verbs_that_need_a_folder_refuse_a_url_by_their_name() {
    let place = Place::new();
    let url = &*place.url;
    for (args, instead) in [
        (&["put", url, "a", "b"][..], "--remote"),
        (&["delete", url, "a"], "--remote"),
        (&["load", url, "-", "--format", "lines"], "--remote"),
        (&["load", url, "-", "--format", "lines", "--check"], "--remote"),
        (&["compact", url], "--remote"),
        (&["ingest", url, "out"], "--remote"),
        (&["import", url, "-"], "--remote"),
        (&["checkpoint", url, "out"], "remote restore"),
        (&["readers", url], "remote status"),
        (&["promote", url], "remote take-over"),
        (&["dump", url], "remote restore"),
    ] {
        let refusal = place.refused(args, 2);
        assert!(refusal.contains(&format!("{} needs a folder", args[0])), "{refusal}");
        assert!(refusal.contains(instead) && !refusal.contains("://"), "{refusal}");
    }
    for verb in ["status", "verify"] {
        assert!(place.refused(&["remote", verb, "db"], 2).contains("db is no URL"), "{verb}");
    }
    assert_eq!(std::fs::read_dir(place.at()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn a_url_that_this_build_does_not_know_is_wrong_usage() {
    let place = Place::new();
    for (url, feature, is_built) in [
        ("s3://bucket/users", "s3", cfg!(feature = "s3")),
        ("gs://bucket/users", "gcs", cfg!(feature = "gcs")),
        ("az://bucket/users", "azure", cfg!(feature = "azure")),
        ("hdfs://host:9000/users", "hdfs", cfg!(feature = "hdfs")),
    ] {
        if is_built {
            continue;
        }
        for args in [
            &["get", url, "key"][..],
            &["stats", url],
            &["remote", "status", url],
            &["remote", "copy", &place.url, url],
            &["put", "db", "key", "value", "--remote", url],
        ] {
            let refusal = place.refused(args, 2);
            assert!(refusal.contains(&format!("feature \"{feature}\"")), "{refusal}");
            assert!(refusal.contains("siltstone-cli"), "{refusal}");
        }
    }
    for url in ["ftp://host/users", "file:///users?secret", "s3://user:secret@host/users"] {
        let refusal = place.refused(&["scan", url], 2);
        assert!(!refusal.contains("secret"), "{refusal}");
    }
    assert_eq!(std::fs::read_dir(place.at()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn an_empty_bucket_has_no_database() {
    let place = Place::new();
    let url = &*place.url;
    for args in [
        &["get", url, "key"][..],
        &["scan", url],
        &["partitions", url],
        &["stats", url],
        &["verify", url],
        &["secondary", url],
        &["remote", "status", url],
        &["remote", "verify", url],
        &["remote", "take-over", url, "db"],
    ] {
        let refusal = place.refused(args, 1);
        assert!(refusal.contains(&format!("no database in {url}")), "{args:?}: {refusal}");
    }
    let other = url_in(place.at(), "other");
    for args in [&["remote", "restore", url, "folder"][..], &["remote", "copy", url, &other]] {
        let refusal = place.refused(args, 2);
        assert!(refusal.contains("the bucket has no database"), "{args:?}: {refusal}");
    }
    assert!(!place.at().join("db").exists());
}

#[test]
fn the_status_names_bytes_by_reason() {
    let place = Place::new();
    let url = &*place.url;
    place.put("alice", "admin");
    place.said(&["compact", "db", "--remote", url]);
    let text = place.said(&["remote", "status", url]);
    assert_narrow(&text);
    for word in ["live", "retained", "leased", "garbage", "all", "oldest", "newest", "writer"] {
        assert!(text.lines().any(|line| line.starts_with(word)), "{word}: {text}");
    }
    let lease = Remote::url(url).unwrap().reader().unwrap();
    let json = place.json(&["remote", "status", url, "--json"]);
    assert_eq!(json["acknowledged"], "stored");
    assert_eq!(json["oldest"]["number"], 1);
    assert_eq!(json["leases"].as_array().unwrap().len(), 1);
    let objects: u64 = ["live", "retained", "leased", "garbage"]
        .iter()
        .map(|reason| json["reasons"][reason]["objects"].as_u64().unwrap())
        .sum();
    assert_eq!(objects, files_below(&place.bucket()).len() as u64);
    assert_narrow(&place.said(&["remote", "status", url]));
    drop(lease);
    place.said(&["remote", "status", url, "--retention", "7d"]);
    place.refused(&["remote", "status", url, "--retention", "1"], 2);
}

#[test]
fn a_restore_makes_the_state_of_a_number_or_a_moment() {
    let place = Place::new();
    let at = place.at();
    let url = &*place.url;
    place.put("a", "1");
    let first = place.json(&["remote", "status", url, "--json"]);
    let moment = first["newest"]["stored"].as_str().unwrap().to_owned();
    place.put("b", "2");
    place.put("c", "3");

    let text = place.said(&["remote", "restore", url, "latest"]);
    assert_narrow(&text);
    assert!(text.starts_with("restored and verified latest\n  sequence number 3"), "{text}");
    assert_eq!(place.said(&["scan", "latest", "--keys"]), "a\nb\nc\n");
    let json = place.json(&["remote", "restore", url, "second", "--seq", "2", "--json"]);
    assert_eq!((&json["sequence"], &json["folder"]), (&Value::from(2), &Value::from("second")));
    assert_eq!(place.said(&["scan", "second", "--keys"]), "a\nb\n");
    place.said(&["remote", "restore", url, "by-time", "--time", &moment]);
    assert_eq!(place.said(&["get", "by-time", "a"]), "1\n");
    place.said(&["verify", "by-time"]);

    let outside = place.refused(&["remote", "restore", url, "none", "--seq", "9"], 2);
    assert!(outside.contains("the newest is sequence number 3"), "{outside}");
    let outside = place.refused(&["remote", "restore", url, "none", "--time", "1.5"], 2);
    assert!(outside.contains("the oldest is sequence number"), "{outside}");
    let full = place.refused(&["remote", "restore", url, "latest"], 2);
    assert!(full.contains("is not empty"), "{full}");
    assert_eq!(place.said(&["scan", "latest", "--keys"]), "a\nb\nc\n");
    place.refused(&["remote", "restore", url, "none", "--time", "yesterday"], 2);
    place.refused(&["remote", "restore", url, "none", "--time", &moment, "--seq", "1"], 2);
    assert!(std::fs::read_dir(at.join("none")).unwrap().next().is_none());
    assert!(place.objects("lease").is_empty());
}

#[test]
fn damage_in_a_bucket_is_named_and_is_the_exit_status() {
    let place = Place::new();
    let url = &*place.url;
    place.put("alice", "admin");
    place.said(&["compact", "db", "--remote", url]);
    // Its open drops the log with the first entry, so that reads need the table.
    place.put("bob", "author");
    let sound = place.json(&["remote", "verify", url, "--json"]);
    assert!(
        sound["objects"].as_u64().unwrap() > 2 && sound["damage"].as_array().unwrap().is_empty()
    );

    let table = place.objects("table").pop().unwrap();
    flip(&table, 20);
    let output = ended(place.at(), &["remote", "verify", url], 1);
    let text = String::from_utf8_lossy(&output.stdout);
    let file = table.parent().unwrap().file_name().unwrap().to_str().unwrap();
    assert!(text.starts_with("damage in 1 place") && text.contains(file), "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is damaged"));
    let refused = place.refused(&["get", url, "alice"], 1);
    assert!(refused.contains(file), "{refused}");
    assert!(place.refused(&["remote", "restore", url, "damaged"], 1).contains(file));
    let found = ended(place.at(), &["verify", url], 1);
    assert!(String::from_utf8_lossy(&found.stdout).contains(file));
    flip(&table, 20);

    // An open reads the newest base, and the journal after it, if there is one.
    let status = place.json(&["remote", "status", url, "--json"]);
    let has_journal = status["base"] != status["newest"]["number"];
    let last = place.objects(if has_journal { "journal" } else { "base" }).pop().unwrap();
    flip(&last, 30);
    let name = last.strip_prefix(place.bucket()).unwrap().to_str().unwrap();
    let found = ended(place.at(), &["remote", "verify", url, "--json"], 1);
    let json: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(json["damage"][0]["name"], name);
    for args in [
        &["get", url, "alice"][..],
        &["stats", url],
        &["put", "db", "a", "b", "--remote", url],
        &["remote", "status", url],
    ] {
        assert!(place.refused(args, 1).contains(name), "{args:?}");
    }
    let found = ended(place.at(), &["verify", url], 1);
    assert!(String::from_utf8_lossy(&found.stdout).contains(name));
}

#[test]
fn a_copy_opens_in_the_other_bucket() {
    let place = Place::new();
    let url = &*place.url;
    place.put("alice", "admin");
    let other = url_in(place.at(), "other");
    let json = place.json(&["remote", "copy", url, &other, "--json"]);
    assert!(json["objects"].as_u64().unwrap() > 0 && json["bytes"].as_u64().unwrap() > 0);
    assert_eq!(place.said(&["get", &other, "alice"]), "admin\n");
    place.said(&["remote", "verify", &other]);
    assert_narrow(&place.said(&["remote", "status", &other]));
    let again = place.refused(&["remote", "copy", url, &other], 2);
    assert!(again.contains("has a database already"), "{again}");
    // The folder is the primary of the first bucket only.
    let refused = place.refused(&["put", "db", "a", "b", "--remote", &other], 1);
    assert!(refused.contains("remote take-over"), "{refused}");
}

#[test]
fn a_takeover_fences_a_primary_that_lives() {
    let place = Place::new();
    let at = place.at();
    let url = &*place.url;
    let remote = Remote::url(url).unwrap();
    let primary = remote.primary(at.join("db")).unwrap();
    let db = primary.builder().open().unwrap();
    let users = db.partition("users").unwrap();
    users.put_with("alice", "admin", Durability::Sync).unwrap();
    db.flush().unwrap();
    users.put_with("bob", "author", Durability::Sync).unwrap();
    let in_use = place.refused(&["put", "db", "k", "v", "--remote", url], 1);
    assert!(in_use.contains("another process has the database"), "{in_use}");
    let elsewhere = place.refused(&["put", "empty", "k", "v", "--remote", url], 1);
    assert!(elsewhere.contains("remote take-over"), "{elsewhere}");
    assert_eq!(place.said(&["count", url, "--partition", "users"]), "2\n");

    let text = place.said(&["remote", "take-over", url, "new"]);
    assert_eq!(text, "taken over at sequence 2; the old primary is fenced\n");
    let refused = users.put_with("carol", "editor", Durability::Sync).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    // The folder has all files, and continues with and without the bucket.
    assert_eq!(place.said(&["count", "new", "--partition", "users"]), "2\n");
    place.said(&["put", "new", "dave", "reader", "--partition", "users", "--remote", url]);
    assert_eq!(place.said(&["count", url, "--partition", "users"]), "3\n");
    drop((users, db, primary));
    let returned = place.refused(&["put", "db", "k", "v", "--remote", url], 1);
    assert!(returned.contains("another writer has taken the database over"), "{returned}");
    let json = place.json(&["remote", "take-over", url, "db", "--json"]);
    assert!(json["sequence"].as_u64().unwrap() >= 3, "{json}");
    assert_eq!(place.said(&["get", "db", "dave", "--partition", "users"]), "reader\n");
}

#[test]
fn a_database_that_was_never_shipped_is_shipped_and_not_replaced() {
    let place = Place::new();
    let url = &*place.url;
    place.said(&["put", "db", "old", "1"]);
    place.put("new", "2");
    assert_eq!(place.said(&["scan", url, "--keys"]), "new\nold\n");
    place.said(&["put", "other", "mine", "3"]);
    let refused = place.refused(&["remote", "take-over", url, "other"], 2);
    assert!(refused.contains("never shipped"), "{refused}");
    assert_eq!(place.said(&["get", "other", "mine"]), "3\n");
}

#[test]
fn a_folder_that_is_shipped_is_not_written_without_its_bucket() {
    let place = Place::new();
    place.put("alice", "admin");
    let before = files_below(&place.at().join("db"));
    for args in [&["put", "db", "b", "2"][..], &["delete", "db", "alice"], &["compact", "db"]] {
        let refusal = place.refused(args, 2);
        assert!(refusal.contains("db is shipped to a bucket"), "{refusal}");
    }
    // Commands that read change nothing in it.
    for args in [&["scan", "db"][..], &["stats", "db"], &["verify", "db"], &["partitions", "db"]] {
        place.said(args);
    }
    assert_eq!(files_below(&place.at().join("db")), before);
    place.put("bob", "author");
    assert_eq!(place.said(&["count", &place.url]), "2\n");
    // The bucket is given up.
    for file in files_below(&place.at().join("db")) {
        if file.file_name().unwrap().to_str().unwrap().starts_with("remote-") {
            std::fs::remove_file(file).unwrap();
        }
    }
    place.said(&["put", "db", "carol", "editor"]);
    assert_eq!(place.said(&["count", "db"]), "3\n");
}

#[test]
fn a_reader_notes_a_writer_that_does_not_wait_for_the_bucket() {
    let place = Place::new();
    let url = &*place.url;
    let remote = Remote::url(url).unwrap().ack(remote::Ack::Local);
    let primary = remote.primary(place.at().join("db")).unwrap();
    let db = primary.builder().open().unwrap();
    db.partition("default").unwrap().put_with("alice", "admin", Durability::Sync).unwrap();
    primary.ship().unwrap();
    for args in [&["get", url, "alice"][..], &["stats", url]] {
        let output = ended(place.at(), args, 0);
        let note = String::from_utf8_lossy(&output.stderr);
        assert!(note.contains("the newest commits of the writer may be missing"), "{note}");
    }
    let json = place.json(&["remote", "status", url, "--json"]);
    assert_eq!(json["acknowledged"], "local");
}

#[test]
fn a_bucket_that_cannot_be_written_is_read_without_a_lease() {
    let place = Place::new();
    let url = &*place.url;
    place.put("alice", "admin");
    // A file in the place of the folder of leases: no lease can be put there.
    let leases = place.bucket().join("lease");
    let _ = std::fs::remove_dir_all(&leases);
    std::fs::write(&leases, "").unwrap();
    assert_eq!(place.said(&["get", url, "alice"]), "admin\n");
    for args in [&["scan", url][..], &["verify", url], &["remote", "restore", url, "restored"]] {
        let output = ended(place.at(), args, 0);
        let note = String::from_utf8_lossy(&output.stderr);
        assert!(note.contains("reading without a lease"), "{args:?}: {note}");
    }
    assert!(Db::open(place.at().join("restored")).is_ok());
}
