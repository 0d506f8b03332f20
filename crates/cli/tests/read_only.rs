//! The reading subcommands if nothing can be written: a full disk, a read-only medium, a folder of
//! another user.

#![cfg(unix)]
#![expect(clippy::disallowed_methods, reason = "folders and mounts are outside every database")]
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

mod mount;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mount::{Mount, skipped};

const SILTSTONE: &str = env!("CARGO_BIN_EXE_siltstone");
/// A user who owns nothing.
const NOBODY: &str = "65534";

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("the program can be started")
}

#[track_caller]
fn succeed(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn names(folder: &Path) -> Vec<(PathBuf, u64)> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let mut names: Vec<_> =
        entries.map(|entry| (entry.path(), entry.metadata().unwrap().len())).collect();
    names.sort();
    names
}

/// Makes a database at `db` with an entry that only the log has.
fn fill(db: &str) {
    succeed(SILTSTONE, &["put", db, "in the log", "value"]);
}

/// Runs every subcommand that reads, by `run`, and looks for the note that names the kind of open.
#[track_caller]
fn check_reading_verbs(db: &str, run: impl Fn(&[&str]) -> Output) {
    let before = names(Path::new(db));
    let verbs: [(&[&str], &str); 7] = [
        (&["get", db, "in the log"], "value\n"),
        (&["scan", db], "in the log\tvalue\n"),
        (&["count", db], "1\n"),
        (&["partitions", db], "default\n"),
        (&["stats", db], ""),
        (&["levels", db], ""),
        (&["verify", db], ""),
    ];
    for (args, expected) in verbs {
        let output = run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(expected.is_empty() || text == expected, "{args:?}: {text}");
        assert!(errors.contains("opened read-only"), "{args:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{args:?}: {errors}");
    }
    let refused = run(&["put", db, "a", "b"]);
    assert!(!refused.status.success(), "a write is no reading verb");
    assert_eq!(names(Path::new(db)), before);
}

#[test]
fn a_full_disk_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(&folder.path().join("disk"), "tmpfs", 4 << 20) else {
        return skipped("no file system may be mounted");
    };
    let db = mount.0.join("db");
    fill(db.to_str().unwrap());
    let full = vec![0; 8 << 20];
    assert!(std::fs::write(mount.0.join("filler"), full).is_err(), "the disk is small");
    check_reading_verbs(db.to_str().unwrap(), |args| run(SILTSTONE, args));
    let out = folder.path().join("out");
    succeed(SILTSTONE, &["export", db.to_str().unwrap(), out.to_str().unwrap()]);
    let copy = folder.path().join("copy");
    let copy = copy.to_str().unwrap();
    succeed(SILTSTONE, &["put", copy, "own", "1"]);
    succeed(SILTSTONE, &["ingest", copy, out.to_str().unwrap()]);
    assert_eq!(succeed(SILTSTONE, &["count", copy]), "2\n");
}

#[test]
fn a_read_only_medium_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(&folder.path().join("disk"), "tmpfs", 4 << 20) else {
        return skipped("no file system may be mounted");
    };
    let db = mount.0.join("db");
    fill(db.to_str().unwrap());
    succeed("mount", &["-o", "remount,ro", mount.0.to_str().unwrap()]);
    check_reading_verbs(db.to_str().unwrap(), |args| run(SILTSTONE, args));
}

fn as_nobody(args: &[&str]) -> Output {
    let who = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", SILTSTONE];
    run("setpriv", &[&who, args].concat())
}

#[test]
fn a_folder_without_write_permission_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("db");
    let db = db.to_str().unwrap();
    fill(db);
    for path in [folder.path(), Path::new(db)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o555)).unwrap();
    }
    for (path, _) in names(Path::new(db)) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o444)).unwrap();
    }
    let is_root = succeed("id", &["-u"]) == "0\n";
    if !is_root {
        check_reading_verbs(db, |args| run(SILTSTONE, args));
    } else if run("setpriv", &["--version"]).status.success()
        && as_nobody(&["--version"]).status.success()
    {
        check_reading_verbs(db, as_nobody);
    } else {
        return skipped("root may write everywhere, and there is no way to become another user");
    }
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(db, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn damage_is_reported_on_a_full_disk_too() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(&folder.path().join("disk"), "tmpfs", 4 << 20) else {
        return skipped("no file system may be mounted");
    };
    let db = mount.0.join("db");
    fill(db.to_str().unwrap());
    let names = names(&db);
    let log = names.iter().map(|(path, _)| path).find(|path| path.extension().unwrap() == "wal");
    let log = log.expect("the entry is in the log");
    let mut bytes = std::fs::read(log).unwrap();
    let at = bytes.windows(5).position(|bytes| bytes == b"value").unwrap();
    bytes[at] ^= 1;
    std::fs::write(log, bytes).unwrap();
    let _ = std::fs::write(mount.0.join("filler"), vec![0; 8 << 20]);
    let output = run(SILTSTONE, &["get", db.to_str().unwrap(), "in the log"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("corruption"), "{errors}");
}
