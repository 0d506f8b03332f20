//! `siltstone promote`: an operator takes a database from a process that writes it, which is this
//! one.

mod runner;

use siltstone::{Db, ErrorKind};

use runner::ended;

fn stdout(output: std::process::Output) -> String {
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn a_database_is_taken_from_the_process_that_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let old = Db::open(at.join("db")).unwrap();
    let users = old.partition("users").unwrap();
    users.put("alice", "admin").unwrap();
    ended(at, &["put", "db", "bob", "author", "--partition", "users"], 1);
    let said = stdout(ended(at, &["promote", "db"], 0));
    assert_eq!(said, "taken over at sequence 1; the old primary is fenced\n");
    let refused = users.put("bob", "author").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    // The database is closed, and any process may open it.
    ended(at, &["put", "db", "carol", "editor", "--partition", "users"], 0);
    let found = stdout(ended(at, &["scan", "db", "--partition", "users"], 0));
    assert_eq!(found, "alice\tadmin\ncarol\teditor\n");
    drop(users);
    assert_eq!(old.close().unwrap_err().kind(), ErrorKind::Fenced);
}

#[test]
fn a_closed_database_is_opened_and_closed_and_none_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    ended(at, &["put", "db", "a", "1"], 0);
    let said = stdout(ended(at, &["promote", "db", "--json"], 0));
    assert_eq!(said, "{\"sequence\":1}\n");
    assert_eq!(stdout(ended(at, &["get", "db", "a"], 0)), "1\n");
    ended(at, &["promote", "nothing"], 1);
    assert!(!at.join("nothing").exists());
}
