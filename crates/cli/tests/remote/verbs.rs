//! `siltstone remote`: looks, restores, verifications, copies and takeovers. The bucket is a folder.

use std::path::Path;

use remote::Remote;
use serde_json::Value;
use siltstone::{Durability, ErrorKind};

use crate::bucket::{Place, assert_narrow, files_below, url_in};
use crate::runner::ended;

/// The one object that the command prints.
#[track_caller]
fn json(place: &Place, args: &[&str]) -> Value {
    serde_json::from_str(&place.said(args)).expect("it prints one object")
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("the object is there");
    bytes[at] ^= 1;
    std::fs::write(path, bytes).expect("the object can be replaced");
}

/// The moment of the newest state.
#[track_caller]
fn newest(place: &Place) -> String {
    let status = json(place, &["remote", "status", &place.url, "--json"]);
    status["newest"]["stored"].as_str().expect("it is text").to_owned()
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
    let json = json(&place, &["remote", "status", url, "--json"]);
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
    let moment = newest(&place);
    place.put("b", "2");
    place.put("c", "3");

    let text = place.said(&["remote", "restore", url, "latest"]);
    assert_narrow(&text);
    assert!(text.starts_with("restored and verified latest\n  sequence number 3"), "{text}");
    assert_eq!(place.said(&["scan", "latest", "--keys"]), "a\nb\nc\n");
    let json = json(&place, &["remote", "restore", url, "second", "--seq", "2", "--json"]);
    assert_eq!((&json["sequence"], &json["folder"]), (&Value::from(2), &Value::from("second")));
    assert_eq!(place.said(&["scan", "second", "--keys"]), "a\nb\n");
    place.said(&["remote", "restore", url, "by-time", "--time", &moment]);
    assert_eq!(place.said(&["get", "by-time", "a"]), "1\n");
    place.said(&["verify", "by-time"]);

    let outside = place.refused(&["remote", "restore", url, "none", "--seq", "9"], 2);
    assert!(outside.contains("the newest is sequence number 3"), "{outside}");
    // A moment is printed as --time takes it.
    assert!(outside.contains(&format!("stored {}", newest(&place))), "{outside}");
    assert_narrow(&outside);
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
    let sound = json(&place, &["remote", "verify", url, "--json"]);
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
    let status = json(&place, &["remote", "status", url, "--json"]);
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
fn a_folder_that_is_shipped_stands_for_its_bucket() {
    let place = Place::new();
    let url = &*place.url;
    place.put("alice", "admin");
    let of_url = place.said(&["remote", "status", url]);
    assert_eq!(place.said(&["remote", "status", "db"]), of_url);
    assert!(place.said(&["remote", "verify", "db"]).starts_with("no damage"));
    place.said(&["remote", "restore", "db", "restored"]);
    assert_eq!(place.said(&["get", "restored", "alice"]), "admin\n");
    let refusal = place.refused(&["remote", "status", "restored"], 2);
    assert!(refusal.contains("nor a folder that is shipped to one"), "{refusal}");
    let other = url_in(place.at(), "other");
    place.said(&["remote", "copy", "db", &other]);
    place.said(&["remote", "take-over", "db", "new"]);
    assert_eq!(place.said(&["remote", "status", "new"]), place.said(&["remote", "status", url]));
}

#[cfg(target_os = "linux")]
#[test]
fn after_ctrl_c_a_command_says_what_it_leaves() {
    let place = Place::new();
    let at = place.at();
    let url = &*place.url;
    place.put("alice", "admin");
    place.said(&["compact", "db", "--remote", url]);
    place.put("bob", "author");
    let other = url_in(at, "other");
    // A table that leads to itself: each get of it fails, and is tried again for a minute.
    let table = place.objects("table").pop().unwrap();
    let kept = std::fs::read(&table).unwrap();
    std::fs::remove_file(&table).unwrap();
    std::os::unix::fs::symlink(&table, &table).unwrap();
    for (args, left) in [
        (&["remote", "restore", url, "restored"][..], "restored has"),
        (&["remote", "verify", url], "nothing was changed"),
        (&["remote", "copy", url, &other], "another copy puts them again"),
        (&["remote", "take-over", url, "new"], "the same command continues"),
    ] {
        let output = crate::interrupt::interrupted(at, args, b"");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("interrupted; ") && said.contains(left), "{said}");
    }
    assert!(place.objects("lease").is_empty(), "each command has given its lease up");
    assert!(place.refused(&["count", "restored"], 1).contains("no database"));
    std::fs::remove_file(&table).unwrap();
    std::fs::write(&table, kept).unwrap();
    place.said(&["remote", "copy", url, &other]);
    place.said(&["remote", "take-over", url, "new"]);
    for database in [url, &*other, "new"] {
        assert_eq!(place.said(&["scan", database, "--keys"]), "alice\nbob\n");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_load_that_ctrl_c_ends_reports_nothing_and_is_shipped_by_the_next_command() {
    let place = Place::new();
    let at = place.at();
    let url = &*place.url;
    // Some batches, and a pipe full of rows.
    let rows: String = (0..40_000).map(|n| format!("{n:08}\t{n:055}\n")).collect();
    let args = ["load", "db", "-", "--format", "lines", "--remote", url];
    let output = crate::interrupt::interrupted(at, &args, rows.as_bytes());
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("interrupted; the bucket may lack some of these writes"), "{said}");
    assert!(said.contains("the next command with --remote ships them"), "{said}");
    assert_narrow(&said);
    let local = place.said(&["count", "db"]);
    assert!(local.trim().parse::<u64>().unwrap() > 10_000, "{local}");
    place.put("last", "1");
    let keys = place.said(&["scan", url, "--keys"]);
    assert_eq!(place.said(&["scan", "db", "--keys"]), keys);
    assert!(keys.starts_with("00000000\n") && keys.ends_with("\nlast\n"));
}

/// A read that Ctrl-C ends is no damage.
#[cfg(target_os = "linux")]
#[test]
fn a_verification_of_a_url_that_is_interrupted_leaves_its_mark() {
    let place = Place::new();
    let at = place.at();
    let url = &*place.url;
    let rows: String = (0..1000).map(|n| format!("key{n:05}\tvalue of {n}\n")).collect();
    std::fs::write(at.join("rows"), rows).unwrap();
    for partition in ["default", "users"] {
        let load = ["load", "db", "rows", "--format", "lines", "--partition", partition];
        place.said(&[&load[..], &["--remote", url]].concat());
    }
    // So slow that it cannot end before the signal.
    let slow = ["--resume", "mark", "--rate", "16KiB"];
    let output = crate::interrupt::interrupted(at, &[&["verify", url][..], &slow].concat(), b"");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*said), (Some(0), ""));
    assert!(at.join("mark").exists());
    let rest = json(&place, &["verify", url, "--json", "--resume", "mark"]);
    let all = json(&place, &["verify", url, "--json"]);
    assert!(rest["files"].as_u64().unwrap() < all["files"].as_u64().unwrap(), "{rest}");
    assert!(place.objects("lease").is_empty(), "it has given its lease up");
}

#[test]
fn a_copy_opens_in_the_other_bucket() {
    let place = Place::new();
    let url = &*place.url;
    place.put("alice", "admin");
    let other = url_in(place.at(), "other");
    let json = json(&place, &["remote", "copy", url, &other, "--json"]);
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
    let json = json(&place, &["remote", "take-over", url, "db", "--json"]);
    assert!(json["sequence"].as_u64().unwrap() >= 3, "{json}");
    assert_eq!(place.said(&["get", "db", "dave", "--partition", "users"]), "reader\n");
}
