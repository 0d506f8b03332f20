//! A router and clients over TLS to nodes with TLS.

use std::path::Path;
use std::sync::Arc;

use server::{
    Client, Cluster, ClusterOptions, Limits, NodeTls, Nodes, Place, Policy, Role, Router,
    RouterOptions, Server,
};

use crate::tls_client::{Secure, file, get, log, metric, of_nodes, of_server, secure};

fn node(folder: &Path, role: Role) -> Server {
    let mut tls = of_server("server");
    tls.client_ca = Some(file("ca.pem"));
    Server::start(Place::folder(folder), role, secure(tls, Limits::default())).unwrap()
}

fn cluster(nodes: &[&Server], tls: NodeTls) -> Cluster {
    let addresses = nodes.iter().map(|node| node.address().to_string()).collect();
    let mut options = ClusterOptions::new(Nodes::List(addresses));
    options.policy = Policy::Offloaded;
    options.wait = std::time::Duration::from_millis(100);
    options.tls = Some(tls);
    Cluster::new(options).unwrap()
}

fn route(cluster: Cluster) -> Router {
    let listening = RouterOptions {
        listen: "127.0.0.1:0".to_owned(),
        http: Some("127.0.0.1:0".to_owned()),
        tls: Some(of_server("renewed")),
        ..RouterOptions::default()
    };
    Router::start_with(cluster, listening).unwrap()
}

#[test]
fn a_router_speaks_tls_to_clients_and_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let primary = node(folder.path(), Role::Primary);
    let reader = node(folder.path(), Role::Reader);
    let router = route(cluster(&[&primary, &reader], of_nodes(Some("client"))));
    let mut client = Secure::connect(router.address(), None).unwrap();
    client.call("SET alice admin", "+OK\r\n").unwrap();
    client.call("SCID.GET alice LEVEL 1", "$5\r\nadmin\r\n").unwrap();
    client.call("SCID.LAST", "*6\r\n$5\r\nlevel\r\n:1\r\n").unwrap();
    // Values that come and go in many records.
    let mut client = Secure::connect(router.address(), None).unwrap();
    let value = "v".repeat(3 << 20);
    client.send(&crate::client::encoded(&["SET", "large", &value]));
    assert_eq!(client.receive(5).unwrap(), b"+OK\r\n");
    client.send(b"GET large\r\n");
    let expected = format!("${}\r\n{value}\r\n", value.len());
    assert!(client.receive(expected.len()).unwrap() == expected.as_bytes());
    let http = router.http_address().unwrap();
    assert!(metric(http, "siltstone_router_node_tls_handshakes_total") >= 2);
    assert!(metric(http, "siltstone_router_tls_handshakes_total") >= 2);
    assert!(get(http, "/readyz").ends_with("\r\n\r\nready\n"));
    // It ends as a server does.
    router.stop();
    assert_eq!(client.rest(), "");
    reader.stop().unwrap();
    primary.stop().unwrap();
}

#[test]
fn a_router_refuses_nodes_that_it_cannot_verify_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let primary = node(folder.path(), Role::Primary);
    let wrong_name = NodeTls { name: Some("other.test".to_owned()), ..of_nodes(Some("client")) };
    let wrong_ca = NodeTls { ca: file("other-ca.pem"), ..of_nodes(Some("client")) };
    // Without a certificate the node refuses the router, after the router's handshake.
    for (tls, reason) in
        [(wrong_name, "certificate"), (wrong_ca, "certificate"), (of_nodes(None), "refused")]
    {
        let (taken, lines) = log();
        let router = route(cluster(&[&primary], NodeTls { log: Some(taken), ..tls }));
        let mut client = Secure::connect(router.address(), None).unwrap();
        client.call("GET a", "-NOTYET no node can serve this read").unwrap();
        let name = "siltstone_router_node_tls_handshake_failures_total";
        let http = router.http_address().unwrap();
        assert!(metric(http, &format!("{name}{{reason=\"{reason}\"}}")) > 0);
        let lines = lines.lock().unwrap().join("\n");
        assert!(lines.contains(&format!("with node {}", primary.address())), "{lines}");
        router.stop();
    }
    primary.stop().unwrap();
}

#[test]
fn new_cas_of_nodes_are_taken_up() {
    let folder = tempfile::tempdir().unwrap();
    let primary = node(&folder.path().join("db"), Role::Primary);
    let ca = folder.path().join("ca");
    std::fs::copy(file("other-ca.pem"), &ca).unwrap();
    let interval = std::time::Duration::from_millis(10);
    let tls = NodeTls { ca: ca.clone(), interval, ..of_nodes(Some("client")) };
    let router = route(cluster(&[&primary], tls));
    let mut client = Secure::connect(router.address(), None).unwrap();
    client.call("GET a", "-NOTYET no node can serve this read").unwrap();
    std::fs::copy(file("ca.pem"), &ca).unwrap();
    let http = router.http_address().unwrap();
    while metric(http, "siltstone_router_node_tls_renewals_total") == 0 {
        std::thread::yield_now();
    }
    let mut client = Secure::connect(router.address(), None).unwrap();
    client.call("SET a 1", "+OK\r\n").unwrap();
    router.stop();
    primary.stop().unwrap();
}

#[test]
fn nodes_may_have_one_name() {
    let folder = tempfile::tempdir().unwrap();
    let primary = node(folder.path(), Role::Primary);
    let tls = NodeTls { name: Some("nodes.test".to_owned()), ..of_nodes(Some("client")) };
    let router = route(cluster(&[&primary], tls));
    let mut client = Secure::connect(router.address(), None).unwrap();
    client.call("SET a 1", "+OK\r\n").unwrap();
    router.stop();
    primary.stop().unwrap();
}

#[test]
fn a_program_reaches_nodes_over_tls_without_a_router() {
    let folder = tempfile::tempdir().unwrap();
    let primary = node(folder.path(), Role::Primary);
    let cluster = Arc::new(cluster(&[&primary], of_nodes(Some("client"))));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = Client::new(cluster, 1);
        assert_eq!(&client.call(&["SET", "alice", "admin"]).await[..], b"+OK\r\n");
        assert_eq!(&client.call(&["GET", "alice"]).await[..], b"$5\r\nadmin\r\n");
    });
    primary.stop().unwrap();
}
