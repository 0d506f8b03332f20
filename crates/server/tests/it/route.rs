//! The router: choices of nodes, order, outcomes, and the loss of nodes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use resp_rs::resp2::{self, Frame};
use server::{Cluster, ClusterOptions, Limits, Nodes, Policy, Router, Server};

use crate::client::{Client, encoded, primary, reader, text, until};
use crate::commands::check;

pub(crate) fn routed(addresses: Vec<SocketAddr>, policy: Policy) -> Router {
    let addresses = addresses.iter().map(SocketAddr::to_string).collect();
    let mut options = ClusterOptions::new(Nodes::List(addresses));
    options.policy = policy;
    Router::start("127.0.0.1:0", Cluster::new(options).unwrap(), Limits::default()).unwrap()
}

pub(crate) fn of_servers(servers: &[Server], policy: Policy) -> Router {
    routed(servers.iter().map(Server::address).collect(), policy)
}

#[test]
fn requests_go_to_a_node_that_serves_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut servers = vec![primary(folder.path()), reader(folder.path()), reader(folder.path())];
    servers.swap(0, 1);
    let router = of_servers(&servers, Policy::Optimal);
    let mut client = Client::at(router.address());
    check(
        &mut client,
        &[
            ("PING", "PONG"),
            ("SCID.TOKEN", "nil"),
            ("SCID.LAST", "nil"),
            ("SET a 1", "OK"),
            ("SCID.TOKEN", "1-~"),
            ("GET a", "1"),
            ("SCID.LAST", "[level 1~"),
            ("SCID.ROUTE", "optimal"),
            ("SCID.ROUTE other", "-ERR a policy~"),
            ("SCID.GET a LEVEL 3", "1"),
            ("SCID.GET a LEVEL 9", "-ERR a level~"),
            ("SCID.GET a ROUTE other", "-ERR syntax error"),
            ("INCR a", "2"),
            ("INCR b x", "-ERR wrong number~"),
            ("NOTHING", "-ERR unknown command~"),
            ("SELECT users", "OK"),
            ("GET a", "nil"),
            ("SET a 7", "OK"),
            ("SCID.GET a LEVEL 1 ROUTE OFFLOADED", "7"),
            ("SCID.PROMOTE", "-ERR SCID.PROMOTE is for one node~"),
            ("EXEC", "-ERR EXEC without MULTI"),
            ("INFO", "# Server~"),
            ("COMMAND COUNT", "45"),
        ],
    );
    for (line, expected) in [
        ("SCID.GET a LEVEL 1", "primary]"),
        ("SCID.GET a LEVEL 1 ROUTE offloaded", "reader]"),
        ("SCID.GET a LEVEL 5", "reader]"),
        ("SCID.GET a LEVEL 4", "reader]"),
    ] {
        client.text(line);
        let last = client.text("SCID.LAST");
        assert!(last.ends_with(expected), "{line}: {last}");
    }
    // A node counts as down until it has answered a first time.
    let nodes = loop {
        let nodes = client.text("SCID.NODES");
        if !nodes.contains("role down") {
            break nodes;
        }
        std::thread::yield_now();
    };
    assert_eq!(nodes.matches("role reader").count(), 2, "{nodes}");
    assert_eq!(nodes.matches("role primary").count(), 1, "{nodes}");
    client.run("HELLO 3");
    let token = client.text("SCID.TOKEN");
    assert_eq!(client.run("GET nothing"), resp_rs::resp3::Frame::Null);
    check(&mut client, &[(&format!("SCID.GET a TOKEN {token}"), "7"), ("QUIT", "OK")]);
    assert_eq!(client.receive(), None);
    router.stop();
}

#[test]
fn a_pipeline_keeps_its_order_over_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [primary(folder.path()), reader(folder.path()), reader(folder.path())];
    let router = of_servers(&servers, Policy::Offloaded);
    let mut client = Client::at(router.address());
    let mut bytes = Vec::new();
    for number in 0..50 {
        let value = number.to_string();
        bytes.extend_from_slice(&encoded(&["SET", "a", &value]));
        bytes.extend_from_slice(&encoded(&["GET", "a"]));
        bytes.extend_from_slice(&encoded(&["SCID.GET", "a", "LEVEL", "3"]));
        bytes.extend_from_slice(&encoded(&["INCR", "n"]));
    }
    client.send(&bytes);
    for number in 0..50 {
        let replies: Vec<String> = (0..4).map(|_| text(&client.receive().unwrap())).collect();
        let number_text = number.to_string();
        let counted = (number + 1).to_string();
        assert_eq!(replies, ["OK", &number_text, &number_text, &counted]);
    }
    // More than the buffers of the router and of the system.
    assert_eq!(client.text(&format!("SET large {}", "x".repeat(1 << 20))), "OK");
    let gets = vec!["GET large"; 40];
    assert!(client.pipeline(&gets).iter().all(|value| value.len() == 1 << 20));
    router.stop();
}

#[test]
fn transactions_and_walks_stay_at_their_node() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [primary(folder.path()), reader(folder.path()), reader(folder.path())];
    let router = of_servers(&servers, Policy::Offloaded);
    let mut client = Client::at(router.address());
    let mut other = Client::at(router.address());
    check(
        &mut client,
        &[
            ("SET a 1", "OK"),
            ("WATCH a", "OK"),
            ("GET a", "1"),
            ("MULTI", "OK"),
            ("GET a", "QUEUED"),
            ("INCR a", "QUEUED"),
            ("SCID.TOKEN", "-ERR SCID.TOKEN is not supported in a transaction"),
            ("EXEC", "-EXECABORT~"),
            ("WATCH a", "OK"),
        ],
    );
    check(&mut other, &[("INCR a", "2")]);
    check(
        &mut client,
        &[
            ("MULTI", "OK"),
            ("INCR a", "QUEUED"),
            ("EXEC", "nil"),
            ("MULTI", "OK"),
            ("INCR a", "QUEUED"),
            ("GET a", "QUEUED"),
            ("EXEC", "[3 3]"),
            ("GET a", "3"),
        ],
    );
    (0..200).for_each(|number| assert_eq!(client.text(&format!("SET k{number:03} x")), "OK"));
    check(&mut client, &[("SCID.LEVEL 1", "OK")]);
    let mut cursor = "0".to_owned();
    let mut found = Vec::new();
    loop {
        // Each page through another connection.
        let mut client = Client::at(router.address());
        let page = client.run(&format!("SCAN {cursor} MATCH k* COUNT 7"));
        let resp_rs::resp3::Frame::Array(Some(page)) = page else { panic!("{page:?}") };
        let resp_rs::resp3::Frame::Array(Some(keys)) = &page[1] else { panic!("{page:?}") };
        found.extend(keys.iter().map(text));
        cursor = text(&page[0]);
        if cursor == "0" {
            break;
        }
    }
    let expected: Vec<String> = (0..200).map(|number| format!("k{number:03}")).collect();
    assert_eq!(found, expected);
    router.stop();
}

/// A node that answers as a test says; `None` ends the connection.
pub(crate) fn node(
    answer: impl Fn(&[String]) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            std::thread::spawn(move || drop(serve(&stream.unwrap(), &*answer)));
        }
    });
    address
}

fn serve(
    mut stream: &std::net::TcpStream,
    answer: &dyn Fn(&[String]) -> Option<Vec<u8>>,
) -> std::io::Result<()> {
    let mut parser = resp2::Parser::new();
    let mut bytes = [0; 4096];
    loop {
        let len = stream.read(&mut bytes)?;
        if len == 0 {
            return Ok(());
        }
        parser.feed(Bytes::copy_from_slice(&bytes[..len]));
        while let Some(Frame::Array(Some(items))) = parser.next_frame().unwrap() {
            let words = items.into_iter().map(|item| item.into_bulk_string().unwrap());
            let words: Vec<String> =
                words.map(|word| String::from_utf8(word.to_vec()).unwrap()).collect();
            let Some(reply) = answer(&words) else { return Ok(()) };
            stream.write_all(&reply)?;
        }
    }
}

/// The answers of every node: its role, and a token.
pub(crate) fn usual(role: &str, words: &[String]) -> Vec<u8> {
    match words[0].as_str() {
        "INFO" => {
            let info = format!("role:{role}\r\nscid_token:1-5\r\n");
            format!("${}\r\n{info}\r\n", info.len()).into_bytes()
        }
        "SCID.TOKEN" | "SCID.SYNC" => b"$3\r\n1-5\r\n".to_vec(),
        _ => b"+OK\r\n".to_vec(),
    }
}

#[test]
fn a_write_whose_outcome_is_unknown_is_not_sent_again() {
    let writes = Arc::new(AtomicU64::new(0));
    let seen = writes.clone();
    let address = node(move |words| {
        if words[0] != "SET" && words[0] != "EXEC" {
            return Some(usual("master", words));
        }
        seen.fetch_add(1, Ordering::SeqCst);
        None
    });
    let router = routed(vec![address], Policy::Cost);
    let mut client = Client::at(router.address());
    let unknown = format!("-UNKNOWN the connection to {address} was lost~");
    check(&mut client, &[("SET a 1", &unknown), ("SET a 2", &unknown), ("INCR a", "OK")]);
    assert_eq!(writes.load(Ordering::SeqCst), 2);
    check(&mut client, &[("GET a", "OK")]);
    // What was sent after it is lost with it.
    let replies = client.pipeline(&["SET a 3", "GET a", "INCR a", "PING"]);
    assert!(
        replies[0].starts_with("-UNKNOWN") && replies[2].starts_with("-UNKNOWN"),
        "{replies:?}"
    );
    assert_eq!([&replies[1], &replies[3]], ["OK", "PONG"]);
    assert_eq!(writes.load(Ordering::SeqCst), 3);
    // A transaction is lost, or its outcome is unknown.
    check(&mut client, &[("MULTI", "OK"), ("INCR a", "OK"), ("EXEC", &unknown), ("GET a", "OK")]);
    let replies = client.pipeline(&["MULTI", "INCR a", "EXEC"]);
    assert!(replies[2].starts_with("-UNKNOWN"), "{replies:?}");
    check(&mut client, &[("INCR a", "OK")]);
    assert_eq!(writes.load(Ordering::SeqCst), 5);
    router.stop();
}

#[test]
fn a_transaction_whose_node_is_lost_is_refused() {
    let counter = AtomicU64::new(0);
    let increments = Arc::new(AtomicU64::new(0));
    let seen = increments.clone();
    let address = node(move |words| {
        match words[0].as_str() {
            "INCR" => drop(seen.fetch_add(1, Ordering::SeqCst)),
            "GET" if counter.fetch_add(1, Ordering::SeqCst) < 2 => return None,
            _ => {}
        }
        Some(usual("master", words))
    });
    let router = routed(vec![address], Policy::Cost);
    let mut client = Client::at(router.address());
    let lost = format!("-ERR the connection to {address} was lost in the transaction");
    let refused = format!("-EXECABORT the connection to {address} was lost, and nothing was done");
    check(
        &mut client,
        &[
            ("MULTI", "OK"),
            ("GET a", &lost),
            ("INCR a", &lost),
            ("EXEC", &refused),
            ("WATCH a", "OK"),
            ("GET a", "OK"),
            ("MULTI", "OK"),
            ("INCR a", &lost),
            ("EXEC", &refused),
            ("INCR a", "OK"),
        ],
    );
    assert_eq!(increments.load(Ordering::SeqCst), 1);
    router.stop();
}

#[test]
fn reads_go_to_another_node_and_writes_to_the_new_primary() {
    let refusals = AtomicU64::new(0);
    // It refuses reads, and takes writes for a primary that was taken over, until it is asked again.
    let first = node(move |words| match words[0].as_str() {
        "GET" => Some(b"-NOTYET wait\r\n".to_vec()),
        "SCID.GET" => None,
        "INFO" if refusals.load(Ordering::SeqCst) > 0 => Some(usual("slave", words)),
        "SET" => {
            refusals.fetch_add(1, Ordering::SeqCst);
            Some(b"-READONLY this server is a reader\r\n".to_vec())
        }
        _ => Some(usual("master", words)),
    });
    let second = node(|words| match words[0].as_str() {
        "GET" | "SCID.GET" => Some(b"$1\r\n2\r\n".to_vec()),
        "INFO" => {
            let info = "role:master\r\nscid_token:0-5\r\n";
            Some(format!("${}\r\n{info}\r\n", info.len()).into_bytes())
        }
        _ => Some(usual("slave", words)),
    });
    let router = routed(vec![first, second], Policy::Optimal);
    let mut client = Client::at(router.address());
    check(&mut client, &[("SET a 1", "OK"), ("SET a 1", "OK"), ("GET a", "2")]);
    router.stop();

    let refusing = node(|words| match words[0].as_str() {
        "GET" => Some(b"-NOTYET wait\r\n".to_vec()),
        "SCID.GET" => None,
        _ => Some(usual("slave", words)),
    });
    let router = routed(vec![refusing, second], Policy::Offloaded);
    let mut client = Client::at(router.address());
    for _ in 0..4 {
        check(&mut client, &[("GET a", "2"), ("SCID.GET a LEVEL 5", "2")]);
    }
    router.stop();

    let mut options = ClusterOptions::new(Nodes::List(vec![refusing.to_string()]));
    options.wait = Duration::from_millis(1);
    let router =
        Router::start("127.0.0.1:0", Cluster::new(options).unwrap(), Limits::default()).unwrap();
    let mut client = Client::at(router.address());
    let named = format!("-NOTYET wait (node {refusing})");
    let no_primary = format!("-NOTYET no primary is known: {refusing} is a reader");
    check(&mut client, &[("GET a", &named), ("SET a 1", &no_primary)]);
    // No part of a transaction runs alone, if the primary comes in the middle of it.
    let lost = "-ERR the connection to its node was lost in the transaction";
    check(&mut client, &[("MULTI", "OK"), ("SET a 1", lost), ("EXEC", "-EXECABORT~")]);
    check(&mut client, &[("SET a 1", &no_primary), ("GET a", &named)]);
    router.stop();
}

#[test]
fn nodes_are_added_while_the_router_runs() {
    let folder = tempfile::tempdir().unwrap();
    let list = tempfile::NamedTempFile::new().unwrap();
    let first = primary(folder.path());
    let mut file = list.reopen().unwrap();
    writeln!(file, "# nodes\n{}", first.address()).unwrap();
    let options = ClusterOptions::new(Nodes::File(list.path().to_owned()));
    let router =
        Router::start("127.0.0.1:0", Cluster::new(options).unwrap(), Limits::default()).unwrap();
    let mut client = Client::at(router.address());
    check(&mut client, &[("SET a 1", "OK")]);
    let second = reader(folder.path());
    writeln!(file, "{}", second.address()).unwrap();
    while !client.text("SCID.NODES").contains("role reader") {
        std::thread::yield_now();
    }
    check(&mut client, &[("SCID.GET a LEVEL 1 ROUTE OFFLOADED", "1"), ("SCID.LAST", "[level 1~")]);
    router.stop();
    assert!(Cluster::new(ClusterOptions::new(Nodes::List(Vec::new()))).is_err());
    second.stop().unwrap();
    first.stop().unwrap();
}

/// A reader that counts its reads.
fn counting(reads: Arc<AtomicU64>) -> SocketAddr {
    node(move |words| match words[0].as_str() {
        "GET" | "SCID.GET" => {
            reads.fetch_add(1, Ordering::SeqCst);
            Some(b"$1\r\n1\r\n".to_vec())
        }
        "SCAN" => Some(b"*2\r\n$1\r\n7\r\n*0\r\n".to_vec()),
        _ => Some(usual("slave", words)),
    })
}

pub(crate) fn write_list(list: &tempfile::NamedTempFile, nodes: &[SocketAddr]) {
    let lines: Vec<String> = nodes.iter().map(SocketAddr::to_string).collect();
    let mut file = list.reopen().unwrap();
    file.set_len(0).unwrap();
    file.write_all(lines.join("\n").as_bytes()).unwrap();
}

#[test]
fn a_node_that_leaves_the_list_gets_no_new_request() {
    let reads: [Arc<AtomicU64>; 2] = Default::default();
    let nodes = reads.clone().map(counting);
    let list = tempfile::NamedTempFile::new().unwrap();
    write_list(&list, &nodes[..1]);
    let options = ClusterOptions::new(Nodes::File(list.path().to_owned()));
    let router =
        Router::start("127.0.0.1:0", Cluster::new(options).unwrap(), Limits::default()).unwrap();
    let mut client = Client::at(router.address());
    check(&mut client, &[("GET a", "1"), ("SCID.GET a LEVEL 4", "1"), ("SCAN 0", "[7168 []]")]);
    write_list(&list, &nodes[1..]);
    until("the other node is the reader", || {
        let described = client.text("SCID.NODES");
        described.contains("role leaving") && described.contains("role reader")
    });
    (0..8).for_each(|_| check(&mut client, &[("GET a", "1"), ("SCID.GET a LEVEL 4", "1")]));
    assert_eq!(reads.each_ref().map(|it| it.load(Ordering::SeqCst)), [2, 16]);
    // A walk goes on where it is. A file that is being written changes nothing.
    check(&mut client, &[("SCAN 7168", "[7168 []]")]);
    write_list(&list, &[]);
    check(&mut client, &[("GET a", "1")]);
    write_list(&list, &nodes);
    until("both are readers", || client.text("SCID.NODES").matches("role reader").count() == 2);
    router.stop();
}

#[test]
fn a_program_chooses_nodes_as_the_router_does() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [primary(folder.path()), reader(folder.path())];
    let addresses = servers.iter().map(|server| server.address().to_string()).collect();
    let cluster = Cluster::new(ClusterOptions::new(Nodes::List(addresses))).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = server::Client::new(Arc::new(cluster), 1);
        assert_eq!(client.call(&["SET", "a", "1"]).await, "+OK\r\n");
        assert_eq!(client.call(&["SCID.GET", "a", "LEVEL", "3"]).await, "$1\r\n1\r\n");
    });
}

#[test]
fn a_session_whose_commit_was_not_named_syncs_before_it_reads() {
    // It is lost before it names the commit of the write that it has acknowledged.
    let first = node(|words| match words[0].as_str() {
        "SCID.TOKEN" => None,
        _ => Some(usual("master", words)),
    });
    let syncs = AtomicU64::new(0);
    let second = node(move |words| match words[0].as_str() {
        "SCID.SYNC" => {
            syncs.fetch_add(1, Ordering::SeqCst);
            Some(b"$3\r\n1-9\r\n".to_vec())
        }
        "SCID.GET" => Some(format!("${}\r\n{}\r\n", 1, syncs.load(Ordering::SeqCst)).into_bytes()),
        _ => Some(usual("slave", words)),
    });
    let router = routed(vec![first, second], Policy::Offloaded);
    let mut client = Client::at(router.address());
    check(&mut client, &[("SET a 1", "OK"), ("SCID.GET a LEVEL 3", "1"), ("SCID.TOKEN", "1-9")]);
    // Now it is known.
    check(&mut client, &[("SCID.GET a LEVEL 3", "1")]);
    router.stop();
}

#[test]
fn a_refused_write_is_not_sent_again_after_a_later_one() {
    let writes = Arc::new(AtomicU64::new(0));
    let seen = writes.clone();
    let address = node(move |words| match words[0].as_str() {
        "SET" if seen.fetch_add(1, Ordering::SeqCst) == 0 => {
            Some(b"-READONLY this server is becoming the primary\r\n".to_vec())
        }
        _ => Some(usual("master", words)),
    });
    let router = routed(vec![address], Policy::Cost);
    let mut client = Client::at(router.address());
    let replies = client.pipeline(&["SET a 1", "SET a 2"]);
    // Otherwise 1 would be the last value.
    assert!(replies[0].starts_with("-READONLY") && replies[1] == "OK", "{replies:?}");
    assert_eq!(writes.load(Ordering::SeqCst), 2);
    router.stop();
}

#[test]
fn a_node_that_hangs_is_left() {
    let hanging = node(|words| match words[0].as_str() {
        "GET" => loop {
            std::thread::park();
        },
        _ => Some(usual("slave", words)),
    });
    let other = node(|words| Some(usual("slave", words)));
    let addresses = vec![hanging.to_string(), other.to_string()];
    let mut options = ClusterOptions::new(Nodes::List(addresses));
    options.reply = Duration::from_millis(50);
    let router =
        Router::start("127.0.0.1:0", Cluster::new(options).unwrap(), Limits::default()).unwrap();
    let mut client = Client::at(router.address());
    (0..8).for_each(|_| check(&mut client, &[("GET a", "OK")]));
    router.stop();
}
