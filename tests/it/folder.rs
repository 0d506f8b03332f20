//! The folder of an open database: it stays the folder that was opened, whatever happens to its
//! name and to the working folder of the process.

#![expect(clippy::disallowed_methods, reason = "it moves folders without a call of the database")]

use std::path::Path;
use std::process::Command;

use lsm_core::internals::names;
use lsm_core::types::Epoch;
use siltstone::Db;

const SCENE: &str = "SILTSTONE_FOLDER_SCENE";

/// Runs only in a process of its own, because the working folder belongs to the whole process.
#[test]
fn child_that_changes_its_working_folder() {
    let Some(scene) = std::env::var_os(SCENE) else { return };
    let scene = Path::new(&scene);
    std::env::set_current_dir(scene.join("first")).unwrap();
    let db = Db::open("db").unwrap();
    let users = db.partition("users").unwrap();
    users.put("before", "1").unwrap();
    std::env::set_current_dir(scene.join("second")).unwrap();
    users.put("after", "2").unwrap();
    db.flush().unwrap();
    users.compact(..).unwrap();
    drop(users);
    db.close().unwrap();
}

fn files_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// All calls used to return `Ok`, the table was in the other folder, and flushed data was missing.
#[test]
fn a_relative_path_does_not_follow_the_working_folder() {
    let scene = tempfile::tempdir().unwrap();
    let other = scene.path().join("second/db");
    std::fs::create_dir(scene.path().join("first")).unwrap();
    std::fs::create_dir_all(&other).unwrap();
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["folder::child_that_changes_its_working_folder", "--exact", "--nocapture"])
        .env(SCENE, scene.path())
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(files_in(&other), 0);
    let db = Db::open(scene.path().join("first/db")).unwrap();
    let users = db.partition("users").unwrap();
    assert_eq!(users.get("before").unwrap().unwrap(), b"1");
    assert_eq!(users.get("after").unwrap().unwrap(), b"2");
}

#[test]
fn a_folder_that_is_renamed_while_it_is_open_stays_the_database() {
    let scene = tempfile::tempdir().unwrap();
    let old = scene.path().join("old");
    let new = scene.path().join("new");
    let db = Db::open(&old).unwrap();
    let users = db.partition("users").unwrap();
    users.put("before", "1").unwrap();
    db.flush().unwrap();
    std::fs::rename(&old, &new).unwrap();
    // Another folder with the same name must not get any file.
    std::fs::create_dir(&old).unwrap();
    users.put("after", "2").unwrap();
    db.flush().unwrap();
    users.compact(..).unwrap();
    assert_eq!(users.get("before").unwrap().unwrap(), b"1");
    drop(users);
    db.close().unwrap();
    assert_eq!(files_in(&old), 0);
    let db = Db::open(&new).unwrap();
    let users = db.partition("users").unwrap();
    assert_eq!(users.get("before").unwrap().unwrap(), b"1");
    assert_eq!(users.get("after").unwrap().unwrap(), b"2");
}

/// Writes go to deleted files, and nothing fails before the next file is created.
#[test]
fn health_says_that_the_folder_was_deleted() {
    let scene = tempfile::tempdir().unwrap();
    for whole in [true, false] {
        let dir = scene.path().join("db");
        let db = Db::open(&dir).unwrap();
        let users = db.partition("users").unwrap();
        users.put("k", "v").unwrap();
        assert!(db.health().is_healthy(), "{}", db.health());
        if whole {
            std::fs::remove_dir_all(&dir).unwrap();
        } else {
            for file in std::fs::read_dir(&dir).unwrap() {
                std::fs::remove_file(file.unwrap().path()).unwrap();
            }
        }
        let health = db.health();
        assert!(!health.is_healthy() && health.deleted.is_some(), "{health}");
        assert!(health.to_string().contains("were deleted"), "{health}");
    }
}

/// Otherwise secondaries would refuse strong reads without a reason.
#[test]
fn health_says_that_there_is_no_commit_cursor() {
    let scene = tempfile::tempdir().unwrap();
    let dir = scene.path().join("db");
    Db::open(&dir).unwrap().close().unwrap();
    let epoch = Db::open(&dir).unwrap().partition("users").unwrap().put("k", "v").unwrap().epoch;
    // Something that no open deletes has the name of the next cursor.
    let taken = dir.join(names::cursor(Epoch(epoch.0 + 1)));
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("file"), "of another program").unwrap();
    let db = Db::open(&dir).unwrap();
    let health = db.health();
    assert!(!health.is_healthy() && health.cursor_failure.is_some(), "{health}");
    assert!(health.to_string().contains("no commit cursor"), "{health}");
    db.partition("users").unwrap().put("k", "w").unwrap();
    db.close().unwrap();
    let db = Db::open(&dir).unwrap();
    assert!(db.health().is_healthy(), "{}", db.health());
}
