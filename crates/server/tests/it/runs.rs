//! Requests of a pipeline that the server answers together: each has the reply that it would have alone.

use std::sync::Arc;

use server::{Limits, Options, Place, Role, Server, Users};
use siltstone::clock::SystemClock;
use storage::fs::{FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind};

use crate::client::{Client, options, primary, reader};
use crate::pages::get;

#[test]
fn a_request_that_is_refused_leaves_the_others_of_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    let long = "k".repeat(70_000);
    let lines = [
        "SET a 1",
        "SET b 2",
        &format!("SET {long} 3"),
        "SET c 3",
        "SET a 4",
        "GET a",
        "get b",
        "GET c",
        &format!("GET {long}"),
        "GET d",
        "GET a b",
        "GET b",
    ];
    let replies = client.pipeline(&lines);
    let begins: Vec<&str> = replies.iter().map(|reply| &reply[..reply.len().min(6)]).collect();
    assert_eq!(
        begins,
        ["OK", "OK", "-LIMIT", "OK", "OK", "4", "2", "3", "nil", "nil", "-ERR w", "2"]
    );
    server.stop().unwrap();
}

/// A second attempt could undo a write that another client has made meanwhile.
#[test]
fn a_run_whose_commit_has_an_unknown_outcome_is_not_written_again() {
    let fs = FaultFs::over_mem(MemFs::new());
    let place = Place::folder_on("/db", Arc::new(fs.clone()), Arc::new(SystemClock::new()));
    let server = Server::start(place, Role::Primary, options()).unwrap();
    let mut client = Client::new(&server);
    assert_eq!(client.text("SET a 0"), "OK");
    let at = FaultAt::Nth { kind: OpKind::Append, suffix: ".wal".into(), nth: 0 };
    fs.add_rule(FaultRule::once(at, FaultAction::Eio));
    let replies = client.pipeline(&["SET a 1", "SET b 2", "SET c 3"]);
    assert_eq!(fs.fault_count(), 1);
    assert!(replies.iter().all(|reply| reply.starts_with("-ERR ")), "{replies:?}");
    assert!(replies.iter().all(|reply| *reply == replies[0]), "{replies:?}");
}

fn long_value(key: usize) -> String {
    key.to_string().repeat(700)
}

#[test]
fn replies_of_a_run_keep_to_the_bound_of_a_round() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options();
    options.limits = Limits { output_bytes: 1000, ..Limits::default() };
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    let mut client = Client::new(&server);
    let keys = 0..40;
    let sets: Vec<String> =
        keys.clone().map(|key| format!("SET k{key} {}", long_value(key))).collect();
    let gets: Vec<String> = keys.clone().map(|key| format!("GET k{key}")).collect();
    let lines: Vec<&str> = sets.iter().chain(&gets).map(String::as_str).collect();
    let replies = client.pipeline(&lines);
    let expected = keys.clone().map(|_| "OK".to_owned()).chain(keys.map(long_value));
    assert_eq!(replies, expected.collect::<Vec<_>>());
    server.stop().unwrap();
}

#[test]
fn each_request_of_a_run_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { http: Some("127.0.0.1:0".to_owned()), ..options() };
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    let mut client = Client::new(&server);
    client.pipeline(&["SET a 1"; 30]);
    client.pipeline(&["GET a"; 50]);
    let metrics = get(server.http_address().unwrap(), "/metrics");
    for expected in [
        "siltstone_server_command_seconds_count{command=\"SET\"} 30",
        "siltstone_server_command_seconds_count{command=\"GET\"} 50",
        "siltstone_server_reads_total{level=\"1\"} 50",
        "siltstone_server_read_seconds_count{partition=\"default\",level=\"1\"} 50",
    ] {
        assert!(metrics.lines().any(|line| line == expected), "{expected} is not in {metrics}");
    }
    server.stop().unwrap();
}

#[test]
fn a_run_has_the_rights_and_the_level_of_its_connection() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options();
    options.users = Users::parse("default secret read=*").unwrap();
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    let mut client = Client::new(&server);
    let replies =
        client.pipeline(&["GET a", "GET a", "AUTH secret", "SET a 1", "SET a 1", "GET a", "GET a"]);
    let begins: Vec<&str> = replies.iter().map(|reply| &reply[..reply.len().min(7)]).collect();
    assert_eq!(begins, ["-NOAUTH", "-NOAUTH", "OK", "-NOPERM", "-NOPERM", "nil", "nil"]);
    let follower = reader(folder.path());
    let mut client = Client::new(&follower);
    let lines = ["SCID.LEVEL 5", "GET a", "GET a", "SCID.LAST", "SET a 1", "SET a 1"];
    let replies = client.pipeline(&lines);
    assert_eq!(replies[1..3], ["nil", "nil"]);
    assert!(replies[3].starts_with("[level 5"), "{}", replies[3]);
    assert!(replies[4..].iter().all(|reply| reply.starts_with("-READONLY")), "{replies:?}");
    follower.stop().unwrap();
    server.stop().unwrap();
}
