//! The session of a client of the router: its token over lost links, and reads at level 3.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use server::{Place, Policy, Role, Server, Wanted};

use crate::client::{Client, options, primary, reader, until};
use crate::commands::check;
use crate::route::{node, of_servers, routed, usual};

/// A reader that answers `SCID.SYNC` with `1-9`, and a read with the number of syncs before it.
fn syncing(syncs: Arc<AtomicU64>) -> SocketAddr {
    node(move |words| match words[0].as_str() {
        "SCID.SYNC" => {
            syncs.fetch_add(1, Ordering::SeqCst);
            Some(b"$3\r\n1-9\r\n".to_vec())
        }
        "SCID.GET" => Some(format!("$1\r\n{}\r\n", syncs.load(Ordering::SeqCst)).into_bytes()),
        _ => Some(usual("slave", words)),
    })
}

/// A partition has level 3 at the node, and the router does not know it.
#[test]
fn a_read_at_the_level_of_its_partition_sees_what_its_session_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let writer = primary(folder.path());
    let mut third = options();
    third.levels.insert("default".to_owned(), Wanted::Number(3));
    let follower = Server::start(Place::folder(folder.path()), Role::Reader, third).unwrap();
    let servers = [writer, follower];
    let router = of_servers(&servers, Policy::Offloaded);
    let mut client = Client::at(router.address());
    while client.text("SCID.NODES").contains("role down") {
        std::thread::yield_now();
    }
    check(&mut client, &[("SET a 1", "OK"), ("GET a", "1"), ("SET a 2", "OK"), ("GET a", "2")]);
    check(&mut client, &[("SCID.LAST", "[level 3~")]);
    // In a pipeline, too.
    assert_eq!(client.pipeline(&["SET a 3", "GET a", "GET a"]), ["OK", "3", "3"]);
    router.stop();
}

#[test]
fn a_lost_token_stays_lost_after_a_request_through_a_new_link() {
    let syncs = Arc::new(AtomicU64::new(0));
    let second = syncing(syncs.clone());
    let router = routed(vec![losing(), second], Policy::Offloaded);
    let mut client = Client::at(router.address());
    check(&mut client, &[("SET a 1", "OK"), ("WATCH a", "OK"), ("UNWATCH", "OK")]);
    // A token of another connection covers something else.
    check(&mut client, &[("SCID.TOKEN 1-1", "OK")]);
    check(&mut client, &[("SCID.GET a LEVEL 3", "1"), ("SCID.TOKEN", "1-9")]);
    // Now it is known.
    check(&mut client, &[("SCID.GET a LEVEL 3", "1")]);
    assert_eq!(syncs.load(Ordering::SeqCst), 1);
    router.stop();
}

/// A node that loses its connection once, before it names the commit of a write.
fn losing() -> SocketAddr {
    let is_lost = AtomicBool::new(false);
    node(move |words| match words[0].as_str() {
        "SCID.TOKEN" if !is_lost.swap(true, Ordering::SeqCst) => None,
        "SCID.TOKEN" => Some(b"$-1\r\n".to_vec()),
        "SCID.SYNC" => Some(b"-ERR SCID.SYNC is not supported in a transaction\r\n".to_vec()),
        _ => Some(usual("master", words)),
    })
}

/// The nodes know the level of the partition, and the router does not.
#[test]
fn a_lost_token_is_no_token_at_a_level_3_that_the_router_does_not_know() {
    let folder = tempfile::tempdir().unwrap();
    let writer = primary(folder.path());
    let mut other = Client::new(&writer);
    check(&mut other, &[("SET a old", "OK"), ("SELECT open", "OK"), ("SET a open", "OK")]);
    let mut third = options();
    third.levels.insert("default".to_owned(), Wanted::Number(3));
    let follower = Server::start(Place::folder(folder.path()), Role::Reader, third).unwrap();
    let mut direct = Client::new(&follower);
    let strong = "SCID.GET a LEVEL 1";
    check(&mut direct, &[(strong, "old"), ("SELECT open", "OK"), (strong, "open")]);
    // It refuses the sync, so nothing names the token.
    let router = routed(vec![losing(), follower.address()], Policy::Optimal);
    let mut client = Client::at(router.address());
    while client.text("SCID.NODES").contains("role down") {
        std::thread::yield_now();
    }
    let read = "SCID.GET a ROUTE OFFLOADED";
    check(&mut client, &[(read, "old"), ("SET a 1", "OK")]);
    // Otherwise the follower would sync.
    while client.text("SCID.NODES").contains("role down") {
        std::thread::yield_now();
    }
    check(&mut client, &[(read, "OK"), (read, "OK")]);
    // No one has asked for a predicted level, so it refuses nothing.
    let predicted = "SCID.GET a PREDICTED 3 ROUTE OFFLOADED";
    check(&mut client, &[("SELECT open", "OK"), (predicted, "open"), ("SCID.LAST", "[level 5~")]);
    router.stop();
}

#[test]
fn a_level_of_sessions_does_not_break_a_transaction() {
    let syncs = Arc::new(AtomicU64::new(0));
    // All goes to the first one.
    let router = routed(vec![losing(), syncing(syncs)], Policy::Optimal);
    let mut client = Client::at(router.address());
    let lines = ["SET a 1", "SCID.LEVEL 3", "MULTI", "GET a", "INCR a", "EXEC"];
    lines.iter().for_each(|line| check(&mut client, &[(line, "OK")]));
    assert_eq!(client.pipeline(&["MULTI", "GET a", "EXEC"]), ["OK", "OK", "OK"]);
    router.stop();

    let folder = tempfile::tempdir().unwrap();
    let servers = [primary(folder.path()), reader(folder.path())];
    let router = of_servers(&servers, Policy::Offloaded);
    let mut client = Client::at(router.address());
    check(
        &mut client,
        &[
            ("SET a 1", "OK"),
            ("SCID.LEVEL 3", "OK"),
            ("MULTI", "OK"),
            ("GET a", "QUEUED"),
            ("INCR a", "QUEUED"),
            ("EXEC", "[1 2]"),
            ("GET a", "2"),
        ],
    );
    assert_eq!(client.pipeline(&["MULTI", "GET a", "EXEC", "GET a"])[2..], ["[2]", "2"]);
    router.stop();
}

/// Each one would wait at it for as long as a read may.
#[test]
fn a_reader_that_does_not_catch_up_gets_no_further_read_until_it_moves() {
    let reads = Arc::new(AtomicU64::new(0));
    let position = Arc::new(AtomicU64::new(4));
    let seen = (reads.clone(), position.clone());
    let stuck = node(move |words| match words[0].as_str() {
        "SCID.GET" => {
            seen.0.fetch_add(1, Ordering::SeqCst);
            Some(b"-NOTYET wait\r\n".to_vec())
        }
        "INFO" => {
            let at = seen.1.load(Ordering::SeqCst);
            let info = format!("role:slave\r\nscid_token:1-{at}\r\n");
            Some(format!("${}\r\n{info}\r\n", info.len()).into_bytes())
        }
        _ => Some(usual("slave", words)),
    });
    let primary = node(|words| match words[0].as_str() {
        "SCID.GET" => Some(b"$1\r\n2\r\n".to_vec()),
        _ => Some(usual("master", words)),
    });
    let router = routed(vec![primary, stuck], Policy::Offloaded);
    let mut client = Client::at(router.address());
    let expected = [("SCID.GET a LEVEL 1", "2"), ("SCID.GET a TOKEN 1-5", "2")];
    check(&mut client, &expected);
    assert_eq!(reads.load(Ordering::SeqCst), 1);
    for _ in 0..3 {
        check(&mut client, &expected[1..]);
    }
    assert_eq!(reads.load(Ordering::SeqCst), 1);
    position.store(3, Ordering::SeqCst);
    until("a read after a change of the position", || {
        check(&mut client, &expected[1..]);
        reads.load(Ordering::SeqCst) > 1
    });
    router.stop();
}
