//! The pages of routers and servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use server::{
    Cluster, ClusterOptions, Nodes, Options, Place, Policy, Role, Router, RouterOptions, Server,
};

use crate::client::{Client, options, primary, reader, until};
use crate::commands::check;
use crate::route::{node, usual, write_list};

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

#[test]
fn the_page_of_a_server_shows_role_levels_lag_and_health() {
    let folder = tempfile::tempdir().unwrap();
    let writer = with_pages(folder.path(), Role::Primary);
    let mut client = Client::new(&writer);
    check(&mut client, &[("SET a 1", "OK"), ("GET a", "1"), ("GET a", "1"), ("INCR a x", "-ERR~")]);
    let follower = with_pages(folder.path(), Role::Reader);
    check(&mut Client::new(&follower), &[("SCID.GET a LEVEL 1", "1")]);
    let page = get(writer.http_address().unwrap(), "/");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    for part in [
        "Content-Type: text/html; charset=utf-8\r\n",
        "\r\nContent-Security-Policy: default-src 'none'; style-src 'sha256-",
        "\r\nX-Content-Type-Options: nosniff\r\n",
        &format!("<h1>siltstone primary at {}</h1>", writer.address()),
        "<meta http-equiv=\"refresh\" content=\"2\">",
        "<p class=\"good\">ready</p>",
        "<h2>Health of the database</h2>\n<p class=\"good\">healthy</p>",
        "<tr><td>1</td><td>2</td></tr>",
        "<tr><td>GET</td><td>2</td><td>0</td>",
        "<tr><td>INCR</td><td>1</td><td>1</td>",
        "<tr><td>default</td>",
    ] {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
    let page = get(follower.http_address().unwrap(), "/");
    for part in [
        &format!("<h1>siltstone reader at {}</h1>", follower.address()),
        "<th>lag in operations</th>",
        "<tr><td>default</td><td>0</td>",
        "<tr><td>1</td><td>1</td></tr>",
    ] {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
    follower.stop().unwrap();
    writer.stop().unwrap();
}

#[test]
fn reads_are_timed_by_partition_and_level() {
    let folder = tempfile::tempdir().unwrap();
    let writer = with_pages(folder.path(), Role::Primary);
    let mut client = Client::new(&writer);
    let at = writer.http_address().unwrap();
    check(&mut client, &[("SET a 1", "OK"), ("GET a", "1"), ("MGET a b", "[1 nil]")]);
    check(&mut client, &[("SCID.GET a LEVEL 5", "1"), ("GET a b", "-ERR~"), ("MULTI", "OK")]);
    check(&mut client, &[("GET a", "QUEUED"), ("EXEC", "[1]"), ("SELECT users", "OK")]);
    // A partition that does not exist is one of the rest.
    check(&mut client, &[("GET a", "nil"), ("SET a 1", "OK"), ("GET a", "1"), ("GET a", "1")]);
    let metrics = get(at, "/metrics");
    let begin = "siltstone_server_read_seconds_count{";
    let counts: Vec<&str> = metrics.lines().filter_map(|it| it.strip_prefix(begin)).collect();
    let expected = [
        "partition=\"default\",level=\"1\"} 2",
        "partition=\"default\",level=\"5\"} 1",
        "partition=\"users\",level=\"1\"} 2",
        "partition=\"\",level=\"1\"} 1",
    ];
    assert_eq!(counts, expected);
    let page = get(at, "/");
    for row in [
        "<tr><td>default</td><td>1</td><td>2</td><td>",
        "<tr><td>users</td><td>1</td><td>2</td><td>",
        "<tr><td>all others</td><td>1</td><td>1</td><td>",
    ] {
        assert!(page.contains(row), "{row} is not in\n{page}");
    }
    writer.stop().unwrap();
}

#[test]
fn pages_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let old = with_pages(folder.path(), Role::Primary);
    check(&mut Client::new(&old), &[("SET a 1", "OK")]);
    let next = with_pages(folder.path(), Role::Reader);
    check(&mut Client::new(&next), &[("SCID.PROMOTE", "~")]);
    let page = get(old.http_address().unwrap(), "/");
    let bad = "<p class=\"bad\">another primary has taken the database over</p>";
    assert_eq!(page.matches(bad).count(), 2, "not ready and not healthy: {page}");
    assert!(!page.contains("healthy</p>"), "{page}");
    let info = Client::new(&old).text("INFO");
    assert!(info.contains("scid_health:another primary has taken the database over\r\n"), "{info}");
    let info = Client::new(&next).text("INFO");
    assert!(info.contains("scid_health:ok\r\n"), "{info}");
    next.stop().unwrap();
    old.stop().unwrap();
}

#[test]
fn the_page_of_a_router_shows_nodes_and_the_health_of_their_databases() {
    let sick = node(|words| match words[0].as_str() {
        "INFO" => {
            let info = "role:slave\r\nscid_token:1-3\r\nscid_health:<b>read-only</b>\r\n";
            Some(format!("${}\r\n{info}\r\n", info.len()).into_bytes())
        }
        _ => Some(usual("slave", words)),
    });
    let well = node(|words| Some(usual("master", words)));
    let router = routed(vec![well, sick], Policy::Optimal);
    let mut client = Client::at(router.address());
    check(&mut client, &[("SET a 1", "OK"), ("GET a", "OK")]);
    while client.text("SCID.NODES").contains("role down") {
        std::thread::yield_now();
    }
    let page = get(router.http_address().unwrap(), "/");
    for part in [
        "<h1>siltstone router</h1>",
        "<p class=\"good\">ready</p>",
        &format!("<tr><td>{well}</td><td>primary</td><td>1-5</td><td>0</td>"),
        &format!("<tr><td>{sick}</td><td>reader</td><td>1-3</td><td>2</td>"),
        &format!("<tr><td>{well}</td><td>unknown</td></tr>"),
        &format!("<tr><td>{sick}</td><td>&lt;b&gt;read-only&lt;/b&gt;</td></tr>"),
        &format!("<tr><td>{well}</td><td>1</td><td>1</td><td>0</td>"),
    ] {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
    router.stop();
}

/// Returns whether a server has so many connections, without those of its pages.
fn clients(pages: SocketAddr, count: u32) -> bool {
    let line = format!("siltstone_server_clients {count}");
    get(pages, "/metrics").lines().any(|it| it == line)
}

#[test]
fn a_node_that_leaves_is_left_and_is_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let writer = primary(folder.path());
    let leaving = with_pages(folder.path(), Role::Reader);
    let stays = reader(folder.path());
    let list = tempfile::NamedTempFile::new().unwrap();
    write_list(&list, &[leaving.address(), writer.address(), stays.address()]);
    let mut options = ClusterOptions::new(Nodes::File(list.path().to_owned()));
    options.wait = Duration::from_millis(1);
    let listening = RouterOptions {
        listen: "127.0.0.1:0".to_owned(),
        http: Some("127.0.0.1:0".to_owned()),
        ..RouterOptions::default()
    };
    let router = Router::start_with(Cluster::new(options).unwrap(), listening).unwrap();
    let at = router.http_address().unwrap();
    let mut client = Client::at(router.address());
    until("all nodes are up", || !client.text("SCID.NODES").contains("role down"));
    check(&mut client, &[("SET a 1", "OK"), ("SCID.GET a LEVEL 1 ROUTE OFFLOADED", "1")]);
    // The test alone has a connection to the pages.
    let pages = leaving.http_address().unwrap();
    until("both of the router are open", || {
        client.text("SCID.GET a LEVEL 5");
        clients(pages, 2)
    });
    write_list(&list, &[stays.address()]);
    until("the nodes leave", || client.text("SCID.NODES").matches("role leaving").count() == 2);
    let last = get(at, "/").find(&format!("<td>{}</td><td>leaving</td>", leaving.address()));
    let first = get(at, "/").find(&format!("<td>{}</td><td>reader</td>", stays.address()));
    assert!(first.unwrap() < last.unwrap(), "{}", get(at, "/"));
    let metrics = get(at, "/metrics");
    assert_eq!(metrics.matches("siltstone_router_node_up{").count(), 1, "{metrics}");
    let only = format!("-NOTYET no primary is known: {} is a reader", stays.address());
    check(&mut client, &[("SET a 2", &only), ("SCID.GET a LEVEL 1", "1")]);
    until("no link is open", || clients(pages, 0));
    router.stop();
}

#[test]
fn no_name_becomes_markup_on_a_page() {
    let name = "<script>alert('1')</script>";
    let folder = tempfile::tempdir().unwrap();
    let writer = with_pages(folder.path(), Role::Primary);
    let mut client = Client::new(&writer);
    client.call(&["SELECT", name]);
    check(&mut client, &[("SET a 1", "OK")]);
    let nodes = Nodes::List(vec![name.to_owned()]);
    let listening = RouterOptions {
        listen: "127.0.0.1:0".to_owned(),
        http: Some("127.0.0.1:0".to_owned()),
        ..RouterOptions::default()
    };
    let cluster = Cluster::new(ClusterOptions::new(nodes)).unwrap();
    let router = Router::start_with(cluster, listening).unwrap();
    for at in [writer.http_address().unwrap(), router.http_address().unwrap()] {
        let page = get(at, "/");
        let safe = "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;";
        assert!(page.contains(safe) && !page.contains("<script"), "{page}");
    }
    router.stop();
    writer.stop().unwrap();
}

/// A server with pages.
fn with_pages(folder: &std::path::Path, role: Role) -> Server {
    let options = Options { http: Some("127.0.0.1:0".to_owned()), ..options() };
    Server::start(Place::folder(folder), role, options).unwrap()
}
