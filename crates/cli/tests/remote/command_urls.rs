//! URLs of buckets in the place of folders, and `--remote`. The bucket is a folder.

use remote::Remote;
use siltstone::{Db, Durability};

use crate::bucket::{Place, assert_narrow, files_below, url_in};
use crate::runner::ended;

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
    assert!(place.refused(&["export", url, "tables"], 2).contains("another --format than tables"));
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
        (&["merge", url, "a", "1"], "--remote"),
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
        let refusal = place.refused(&["remote", verb, "db"], 2);
        assert!(refusal.contains("db is neither the URL of a bucket"), "{refusal}");
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
            assert_narrow(&refusal);
        }
    }
    for url in ["ftp://host/users", "file:///users?secret", "s3://user:secret@host/users"] {
        let refusal = place.refused(&["scan", url], 2);
        assert!(!refusal.contains("secret"), "{refusal}");
        assert_narrow(&refusal);
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
fn a_claim_that_failed_leaves_a_folder_that_is_no_other() {
    let place = Place::new();
    place.put("a", "1");
    // The bucket is that of another folder.
    place.refused(&["put", "second", "b", "2", "--remote", &place.url], 1);
    assert!(place.at().join("second/remote-lock").exists());
    let other = url_in(place.at(), "other");
    place.said(&["put", "second", "b", "2", "--remote", &other]);
    assert_eq!(place.said(&["scan", &other]), "b\t2\n");
}

#[test]
fn a_folder_that_is_shipped_is_not_written_without_its_bucket() {
    let place = Place::new();
    place.put("alice", "admin");
    let before = files_below(&place.at().join("db"));
    for args in [&["put", "db", "b", "2"][..], &["delete", "db", "alice"], &["compact", "db"]] {
        let refusal = place.refused(args, 2);
        assert!(refusal.contains("db is shipped to a bucket"), "{refusal}");
        assert!(refusal.contains(&format!("--remote {}", place.url)), "{refusal}");
    }
    let refusal = place.refused(&["checkpoint", "db", "copy"], 2);
    assert!(refusal.contains("remote restore") && !refusal.contains("--remote"), "{refusal}");
    // Commands that read change nothing in it.
    std::fs::write(place.at().join("lines"), "alice\tadmin\n").unwrap();
    for args in [
        &["scan", "db"][..],
        &["stats", "db"],
        &["verify", "db"],
        &["partitions", "db"],
        &["load", "db", "lines", "--format", "lines", "--check"],
    ] {
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
    assert!(place.said(&["remote", "status", url]).contains("acknowledged when local"));
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
