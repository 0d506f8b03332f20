//! The session of a client of the router: its token over lost links, and reads at level 3.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use server::Policy;

use crate::client::{Client, primary, reader};
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

#[test]
fn a_lost_token_stays_lost_after_a_request_through_a_new_link() {
    let syncs = Arc::new(AtomicU64::new(0));
    let second = syncing(syncs.clone());
    let router = routed(vec![losing(), second], Policy::Offloaded);
    let mut client = Client::at(router.address());
    check(&mut client, &[("SET a 1", "OK"), ("WATCH a", "OK"), ("UNWATCH", "OK")]);
    check(&mut client, &[("SCID.GET a LEVEL 3", "1"), ("SCID.TOKEN", "1-9")]);
    // Now it is known.
    check(&mut client, &[("SCID.GET a LEVEL 3", "1")]);
    assert_eq!(syncs.load(Ordering::SeqCst), 1);
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
