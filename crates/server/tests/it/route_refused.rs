//! A router and a node have one idea of a session, also after commands that the node refuses.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use server::{
    Cluster, ClusterOptions, Limits, Nodes, Options, Place, Policy, Role, Router, Server, Users,
};

use crate::client::{Client, encoded, options, primary, text, until};
use crate::commands::check;
use crate::route::{node, of_servers, routed, usual};
use crate::shards;

#[test]
fn a_command_with_wrong_arguments_ends_and_begins_no_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [primary(folder.path())];
    let router = of_servers(&servers, Policy::Optimal);
    let mut client = Client::at(router.address());
    let aborted = "-EXECABORT~";
    check(
        &mut client,
        &[
            ("MULTI", "OK"),
            ("SET a 1", "QUEUED"),
            ("EXEC x", "-ERR wrong number~"),
            ("EXEC", aborted),
            ("SET a 2", "OK"),
            ("GET a", "2"),
            ("MULTI", "OK"),
            ("DISCARD x", "-ERR wrong number~"),
            ("EXEC", aborted),
            ("SET a 3", "OK"),
            ("GET a", "3"),
            ("WATCH a", "OK"),
            ("MULTI x", "-ERR wrong number~"),
            ("SELECT other", "OK"),
            ("EXEC", "-ERR EXEC without MULTI"),
            ("SELECT 0", "OK"),
            ("SET k 1", "OK"),
        ],
    );
    let lines = ["WATCH a", "MULTI x", "SELECT other", "EXEC", "SELECT 0", "SET l 1"];
    assert_eq!(client.pipeline(&lines)[5], "OK");
    let lines = ["MULTI", "EXEC x", "EXEC", "SET m 1", "GET m"];
    assert_eq!(client.pipeline(&lines)[3..], ["OK", "1"]);
    let mut direct = Client::new(&servers[0]);
    check(&mut direct, &[("MGET k l m", "[1 1 1]"), ("SELECT other", "OK"), ("DBSIZE", "0")]);
    router.stop();
}

/// Options with the user `ann`.
fn guarded() -> Options {
    Options { users: Users::parse("ann secret write=*\n").unwrap(), ..options() }
}

fn start(folder: &Path, role: Role) -> Server {
    Server::start(Place::folder(folder), role, guarded()).unwrap()
}

/// A router that asks the nodes for their roles as this user.
fn of_guarded(servers: &[Server]) -> Router {
    let nodes = servers.iter().map(|server| server.address().to_string()).collect();
    let mut options = ClusterOptions::new(Nodes::List(nodes));
    options.policy = Policy::Offloaded;
    options.login = Some(("ann".to_owned(), "secret".to_owned()));
    Router::start("127.0.0.1:0", Cluster::new(options).unwrap(), Limits::default()).unwrap()
}

/// The session before the login is that after it.
#[test]
fn what_a_node_refuses_before_the_login_is_not_taken_for_known() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [start(folder.path(), Role::Primary)];
    let router = of_guarded(&servers);
    let mut client = Client::at(router.address());
    check(
        &mut client,
        &[
            ("SELECT other", "OK"),
            ("SCID.LEVEL 5", "OK"),
            ("GET k", "-NOAUTH~"),
            ("AUTH ann secret", "OK"),
            ("SET k 1", "OK"),
            ("GET k", "1"),
            ("SCID.LAST", "[level 5~"),
        ],
    );
    let mut direct = Client::new(&servers[0]);
    check(&mut direct, &[("AUTH ann secret", "OK"), ("GET k", "nil")]);
    check(&mut direct, &[("SELECT other", "OK"), ("GET k", "1")]);
    // A transaction that is refused has not begun.
    let mut client = Client::at(router.address());
    check(&mut client, &[("MULTI", "-NOAUTH~"), ("WATCH k", "-NOAUTH~"), ("PING", "PONG")]);
    let replies = client.pipeline(&["MULTI", "SCID.ROUTE", "PING"]);
    assert!(
        replies[0].starts_with("-NOAUTH") && replies[1..] == ["offloaded", "PONG"],
        "{replies:?}"
    );
    let lines = ["MULTI", "SELECT other", "AUTH ann secret", "SET k 2", "EXEC", "GET k"];
    let replies = client.pipeline(&lines);
    assert!(replies[0].starts_with("-NOAUTH"), "{replies:?}");
    assert_eq!(replies[1..], ["OK", "OK", "OK", "-ERR EXEC without MULTI", "2"]);
    check(&mut direct, &[("GET k", "2")]);
    router.stop();
}

#[test]
fn a_login_is_that_of_all_nodes_or_of_none() {
    let folder = tempfile::tempdir().unwrap();
    let roles = [Role::Primary, Role::Reader, Role::Reader, Role::Reader];
    let servers = roles.map(|role| start(folder.path(), role));
    let syntax = "-ERR syntax error";
    let mut direct = Client::new(&servers[0]);
    check(&mut direct, &[("HELLO 3 AUTH ann secret WRONG", syntax), ("GET a", "-NOAUTH~")]);
    let long = "n".repeat(256);
    let refused = format!("HELLO 3 AUTH ann secret SETNAME {long}");
    check(&mut direct, &[(&refused, "-LIMIT~"), ("GET a", "-NOAUTH~")]);
    let router = of_guarded(&servers);
    let mut client = Client::at(router.address());
    until("the router knows its nodes", || {
        client.text("SCID.NODES").matches("role reader").count() == 3
    });
    for _ in 0..8 {
        let mut client = Client::at(router.address());
        check(&mut client, &[("HELLO 3 AUTH ann secret WRONG", syntax)]);
        (0..4).for_each(|_| check(&mut client, &[("SCID.GET a LEVEL 5", "-NOAUTH~")]));
        check(&mut client, &[("SET a 1", "-NOAUTH~"), ("AUTH ann secret", "OK")]);
        // Each may go to a node that does not know the client yet.
        (0..4).for_each(|_| assert!(client.text("HELLO 3").starts_with('{')));
        let mut client = Client::at(router.address());
        // The name is no option.
        assert!(client.text("HELLO 2 SETNAME AUTH AUTH ann secret").starts_with('['));
        check(&mut client, &[("SET a 1", "OK"), ("SCID.GET a LEVEL 1", "1")]);
    }
    router.stop();
}

#[test]
fn a_transaction_of_shards_that_is_not_at_one_yet_is_as_others() {
    let service = shards::service(|options| options);
    let mut client = Client::at(service.router.address());
    for wrong in ["GET", "EXEC x", "NOTHING"] {
        let replies = client.pipeline(&["MULTI", wrong, "SET foo 1", "EXEC", "GET foo"]);
        assert!(replies[1].starts_with("-ERR "), "{replies:?}");
        assert!(replies[3].starts_with("-EXECABORT "), "{wrong}: {replies:?}");
        assert_eq!(replies[4], "nil", "{wrong}");
    }
    let replies = client.pipeline(&["MULTI", "SELECT other", "EXEC", "SET foo 1", "SELECT 0"]);
    assert_eq!(replies[1], "-ERR SELECT is not supported in a transaction");
    assert!(replies[2].starts_with("-EXECABORT "), "{replies:?}");
    assert_eq!(client.text("GET foo"), "1");
}

/// A node that counts how often it is asked for its role.
fn asked(role: &'static str, count: &Arc<AtomicU64>) -> std::net::SocketAddr {
    let count = count.clone();
    node(move |words| {
        count.fetch_add(u64::from(words[0] == "INFO"), Ordering::SeqCst);
        Some(usual(role, words))
    })
}

#[test]
fn a_long_value_waits_for_no_other_node_than_its_own() {
    let counts: [Arc<AtomicU64>; 2] = Default::default();
    let nodes = vec![asked("master", &counts[0]), asked("slave", &counts[1])];
    let router = routed(nodes, Policy::Optimal);
    let mut client = Client::at(router.address());
    until("the router knows its nodes", || client.text("SCID.NODES").contains("role primary"));
    let value = "x".repeat(1 << 20);
    let before = counts.each_ref().map(|count| count.load(Ordering::SeqCst));
    for _ in 0..5 {
        client.send(&encoded(&["SET", "a", &value]));
        assert_eq!(text(&client.receive().unwrap()), "OK");
    }
    let after = counts.each_ref().map(|count| count.load(Ordering::SeqCst));
    // Both are asked in turns, too: a turn may have reached one of them.
    assert!(after[0] - before[0] + 1 >= after[1] - before[1] + 5, "{before:?} {after:?}");
    router.stop();
}
