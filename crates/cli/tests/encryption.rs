//! `--key-file` and `siltstone encryption`: databases and backups with keys, the keys of files, a change of the key.

#![cfg(feature = "encryption")]
#![expect(clippy::disallowed_methods, reason = "the test writes files of keys")]

mod runner;

use std::path::Path;

use runner::{ended, siltstone};

#[track_caller]
fn printed(at: &Path, args: &[&str], code: i32) -> String {
    String::from_utf8(ended(at, args, code).stdout).expect("it prints UTF-8")
}

#[track_caller]
fn refused(at: &Path, args: &[&str], code: i32, what: &str) {
    let errors = String::from_utf8(ended(at, args, code).stderr).expect("it prints UTF-8");
    assert!(errors.contains(what), "{args:?}: {errors}");
}

/// A folder with a file `keys` of one key.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let line = printed(folder.path(), &["encryption", "new-key", "2026-11"], 0);
    assert!(line.starts_with("2026-11 ") && line.len() == 8 + 64 + 1, "{line}");
    std::fs::write(folder.path().join("keys"), line).expect("the folder can be written");
    folder
}

/// The output with the keys of the file `keys`.
#[track_caller]
fn with(at: &Path, args: &[&str]) -> String {
    printed(at, &[args, &["--key-file", "keys"]].concat(), 0)
}

#[test]
fn subcommands_open_an_encrypted_database_with_its_keys_alone() {
    let folder = folder();
    let at = folder.path();
    with(at, &["put", "db", "alice", "a secret of alice"]);
    with(at, &["partition", "create", "db", "large", "--large-values"]);
    assert_eq!(with(at, &["get", "db", "alice"]), "a secret of alice\n");
    assert_eq!(with(at, &["count", "db"]), "1\n");
    with(at, &["compact", "db", "--all"]);
    with(at, &["verify", "db"]);
    assert!(with(at, &["stats", "db"]).contains("encryption           all files are encrypted"));
    printed(at, &["put", "plain", "alice", "admin"], 0);
    assert!(!printed(at, &["stats", "plain"], 0).contains("encrypt"));
    with(at, &["checkpoint", "db", "copy"]);
    with(at, &["backup", "create", "db", "backups"]);
    with(at, &["backup", "restore", "backups", "restored"]);
    for database in ["copy", "restored"] {
        assert_eq!(with(at, &["scan", database]), "alice\ta secret of alice\n");
    }
    for entry in std::fs::read_dir(at.join("db")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        assert!(!bytes.windows(8).any(|part| part == b"a secret"), "{}", path.display());
        if path.extension().is_some_and(|it| it == "manifest") {
            let name = path.to_str().unwrap();
            assert!(with(at, &["dump", name]).starts_with("manifest, "));
            refused(at, &["dump", name], 2, "is encrypted, and was opened without keys");
        }
    }
    refused(at, &["get", "db", "alice"], 2, "is encrypted, and was opened without keys");
    // A variable names the file, too.
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_siltstone"));
    command.current_dir(at).env("SILTSTONE_KEY_FILE", "keys").args(["get", "db", "alice"]);
    assert_eq!(command.output().unwrap().stdout, b"a secret of alice\n");
    std::fs::write(at.join("other"), format!("2026-11 {}\n", "5e".repeat(32))).unwrap();
    refused(at, &["get", "db", "alice", "--key-file", "other"], 2, "another key than the one");
    std::fs::write(at.join("bad"), "2026-11 5e5e\n").unwrap();
    refused(at, &["get", "db", "alice", "--key-file", "bad"], 2, "bad: line 1 of the keys");
    refused(at, &["get", "db", "alice", "--key-file", "none"], 1, "cannot read none");
}

/// The bytes of all files below `dir`, with their names.
fn all_files(dir: &Path, all: &mut Vec<(std::path::PathBuf, Vec<u8>)>) {
    for entry in std::fs::read_dir(dir).expect("the folder is there") {
        let path = entry.expect("it is listed").path();
        match path.is_dir() {
            true => all_files(&path, all),
            false => all.push((path.clone(), std::fs::read(&path).expect("it is read"))),
        }
    }
}

#[test]
fn a_bucket_and_its_backups_are_encrypted_by_the_keys_and_rotated() {
    let folder = folder();
    let at = folder.path();
    std::fs::create_dir(at.join("bucket")).unwrap();
    std::fs::create_dir(at.join("saved")).unwrap();
    let url = format!("file://{}", at.join("bucket").display());
    let saved = format!("file://{}", at.join("saved").display());
    with(at, &["put", "db", "alice", "a secret of alice", "--remote", &url]);
    with(at, &["partition", "create", "db", "large", "--large-values", "--remote", &url]);
    assert_eq!(with(at, &["get", &url, "alice"]), "a secret of alice\n");
    // The folder stands for its bucket.
    let status = with(at, &["remote", "status", "db"]);
    assert!(status.contains("acknowledged when stored"), "{status}");
    assert!(with(at, &["stats", &url]).contains("all files are encrypted"));
    with(at, &["remote", "verify", &url]);
    with(at, &["remote", "restore", &url, "restored"]);
    assert_eq!(with(at, &["scan", "restored"]), "alice\ta secret of alice\n");
    with(at, &["backup", "create", "restored", &saved]);
    with(at, &["backup", "restore", &saved, "again"]);
    assert_eq!(with(at, &["scan", "again"]), "alice\ta secret of alice\n");
    let mut files = Vec::new();
    ["db", "bucket", "saved", "restored"]
        .iter()
        .for_each(|dir| all_files(&at.join(dir), &mut files));
    for (path, bytes) in files {
        assert!(!bytes.windows(8).any(|part| part == b"a secret"), "{}", path.display());
    }
    let what = "the bucket is encrypted, and was opened without keys";
    refused(at, &["get", &url, "alice"], 2, what);
    refused(at, &["backup", "list", &saved], 2, what);
    refused(at, &["remote", "status", "db"], 2, "remote-url is encrypted");

    let old = std::fs::read_to_string(at.join("keys")).unwrap();
    let new = printed(at, &["encryption", "new-key", "2026-12"], 0);
    std::fs::write(at.join("both"), format!("{old}{new}")).unwrap();
    std::fs::write(at.join("new"), &new).unwrap();
    assert_eq!(printed(at, &["encryption", "keys", &url], 0), format!("2026-11\t{url}\n"));
    refused(at, &["encryption", "rotate", &url], 2, "rotate needs --key-file");
    refused(at, &["encryption", "rotate", &url, "--key-file", "new"], 2, "the key 2026-11");
    for (place, said) in [(&url, "now"), (&saved, "now"), (&url, "before")] {
        let text = printed(at, &["encryption", "rotate", place, "--key-file", "both"], 0);
        assert!(text.contains("the key 2026-12") && text.contains(said), "{text}");
    }
    assert_eq!(printed(at, &["encryption", "keys", &url], 0), format!("2026-12\t{url}\n"));
    let read = printed(at, &["get", &url, "alice", "--key-file", "new"], 0);
    assert_eq!(read, "a secret of alice\n");
    printed(at, &["backup", "verify", &saved, "--key-file", "new"], 0);
    refused(at, &["get", &url, "alice", "--key-file", "keys"], 2, "the key 2026-12");
}

#[test]
fn a_key_is_changed_without_new_data() {
    let folder = folder();
    let at = folder.path();
    printed(at, &["put", "db", "alice", "admin", "--key-file", "keys"], 0);
    printed(at, &["backup", "create", "db", "backups", "--key-file", "keys"], 0);
    let old = std::fs::read_to_string(at.join("keys")).unwrap();
    let new = printed(at, &["encryption", "new-key", "2026-12"], 0);
    std::fs::write(at.join("both"), format!("{old}{new}")).unwrap();
    std::fs::write(at.join("new"), &new).unwrap();
    for place in ["db", "backups"] {
        let listed = printed(at, &["encryption", "keys", place], 0);
        assert!(listed.contains("2026-11\t") && !listed.contains("2026-12"), "{listed}");
        refused(at, &["encryption", "rotate", place], 2, "rotate needs --key-file");
        refused(at, &["encryption", "rotate", place, "--key-file", "new"], 2, "the key 2026-11");
        let said = printed(at, &["encryption", "rotate", place, "--key-file", "both"], 0);
        assert!(said.contains("belong to the key 2026-12 now, 0 did before"), "{said}");
        let listed = printed(at, &["encryption", "keys", place, "--json"], 0);
        assert!(listed.contains("[\"2026-12\"]") && !listed.contains("2026-11"), "{listed}");
    }
    assert_eq!(printed(at, &["get", "db", "alice", "--key-file", "new"], 0), "admin\n");
    printed(at, &["backup", "verify", "backups", "--key-file", "new"], 0);
    assert!(!siltstone(at, &["get", "db", "alice", "--key-file", "keys"]).status.success());
    refused(at, &["encryption", "keys", "nothing"], 1, "no folder nothing");
}
