//! The pages of routers and servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use server::{Cluster, ClusterOptions, Nodes, Policy, Router, RouterOptions};

use crate::client::{Client, primary, reader};
use crate::commands::check;
use crate::route::{node, usual};

pub(crate) fn http(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    http(address, &format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"))
}

/// A router with pages for these nodes.
fn routed(nodes: Vec<SocketAddr>, policy: Policy) -> Router {
    let addresses = nodes.iter().map(SocketAddr::to_string).collect();
    let mut options = ClusterOptions::new(Nodes::List(addresses));
    options.policy = policy;
    let listening = RouterOptions {
        listen: "127.0.0.1:0".to_owned(),
        http: Some("127.0.0.1:0".to_owned()),
        ..RouterOptions::default()
    };
    Router::start_with(Cluster::new(options).unwrap(), listening).unwrap()
}

/// The line of the requests of a node at a level.
fn count(node: SocketAddr, level: &str, count: u64) -> String {
    format!("siltstone_router_request_seconds_count{{node=\"{node}\",level=\"{level}\"}} {count}")
}

/// A node with this role and token.
fn node_at(role: &'static str, token: &'static str) -> SocketAddr {
    node(move |words| match words[0].as_str() {
        "INFO" => {
            let info = format!("role:{role}\r\nscid_token:{token}\r\n");
            Some(format!("${}\r\n{info}\r\n", info.len()).into_bytes())
        }
        _ => Some(usual(role, words)),
    })
}

#[track_caller]
fn has(text: &str, lines: &[String]) {
    for line in lines {
        assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_router_counts_requests_by_node_and_level() {
    let folder = tempfile::tempdir().unwrap();
    let writer = primary(folder.path());
    let follower = reader(folder.path());
    let router = routed(vec![writer.address(), follower.address()], Policy::Offloaded);
    let at = router.http_address().unwrap();
    let mut client = Client::at(router.address());
    check(&mut client, &[("SET a 1", "OK"), ("SET b x", "OK"), ("INCR b", "-ERR~")]);
    // A node counts as down until it has answered a first time.
    while client.text("SCID.NODES").contains("role down") {
        std::thread::yield_now();
    }
    check(&mut client, &[("GET a", "1"), ("SCID.GET a LEVEL 1", "1"), ("SCID.GET a LEVEL 5", "1")]);
    check(&mut client, &[("SCID.GET a LEVEL 4", "1"), ("SCID.GET a LEVEL 3", "1")]);
    check(&mut client, &[("MULTI", "OK"), ("EXEC", "[]")]);
    let metrics = get(at, "/metrics");
    let one = writer.address();
    let other = follower.address();
    has(
        &metrics,
        &[
            "siltstone_router_up 1".to_owned(),
            "siltstone_router_clients 1".to_owned(),
            format!("siltstone_router_node_up{{node=\"{one}\",role=\"primary\"}} 1"),
            format!("siltstone_router_node_up{{node=\"{other}\",role=\"reader\"}} 1"),
            format!("siltstone_router_node_requests{{node=\"{one}\"}} 0"),
            format!("siltstone_router_errors_total{{node=\"{one}\"}} 1"),
            format!("siltstone_router_errors_total{{node=\"{other}\"}} 0"),
            count(one, "write", 3),
            count(one, "none", 2),
            count(other, "strong", 2),
            count(other, "3", 1),
            count(other, "4", 1),
            count(other, "5", 1),
        ],
    );
    assert!(get(at, "/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(get(at, "/readyz").ends_with("\r\n\r\nready\n"));
    assert!(get(at, "/other").starts_with("HTTP/1.1 404"));
    router.stop();
}

#[test]
fn a_router_counts_what_did_not_go_as_it_should() {
    let reads = AtomicU64::new(0);
    // The first read ends its connection, and so does each write.
    let first = node(move |words| match words[0].as_str() {
        "GET" if reads.fetch_add(1, Ordering::SeqCst) == 0 => None,
        "SET" => None,
        _ => Some(usual("master", words)),
    });
    let router = routed(vec![first], Policy::Optimal);
    let at = router.http_address().unwrap();
    let mut client = Client::at(router.address());
    check(&mut client, &[("GET a", "OK"), ("SET a 1", "-UNKNOWN~"), ("GET a", "OK")]);
    let metrics = get(at, "/metrics");
    has(
        &metrics,
        &[
            "siltstone_router_unknown_writes_total 1".to_owned(),
            "siltstone_router_refused_requests_total 0".to_owned(),
            format!("siltstone_router_returned_requests_total{{node=\"{first}\"}} 2"),
            format!("siltstone_router_lost_connections_total{{node=\"{first}\"}} 2"),
        ],
    );
    assert!(!metrics.contains("siltstone_router_waits_total 0"), "{metrics}");
    router.stop();
}

#[test]
fn a_router_shows_the_lag_of_readers() {
    let nodes = [node_at("master", "2-900"), node_at("slave", "2-850"), node_at("slave", "1-899")];
    let router = routed(nodes.to_vec(), Policy::Cost);
    let mut client = Client::at(router.address());
    while client.text("SCID.NODES").contains("role down") {
        std::thread::yield_now();
    }
    let metrics = get(router.http_address().unwrap(), "/metrics");
    let lags: Vec<&str> =
        metrics.lines().filter(|it| it.starts_with("siltstone_router_node_lag_")).collect();
    // The last one is of an earlier epoch: its distance is not known.
    let expected = format!("siltstone_router_node_lag_operations{{node=\"{}\"}} 50", nodes[1]);
    assert_eq!(lags, [expected]);
    router.stop();
}

#[test]
fn a_router_without_a_node_is_not_ready() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let absent = listener.local_addr().unwrap();
    drop(listener);
    let router = routed(vec![absent], Policy::Cost);
    let at = router.http_address().unwrap();
    assert!(get(at, "/readyz").ends_with("\r\n\r\nno node is up\n"));
    assert!(get(at, "/readyz").starts_with("HTTP/1.1 503"));
    assert!(get(at, "/healthz").starts_with("HTTP/1.1 200"));
    has(
        &get(at, "/metrics"),
        &[format!("siltstone_router_node_up{{node=\"{absent}\",role=\"down\"}} 0")],
    );
    router.stop();
}
