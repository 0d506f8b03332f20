//! TLS of a server: the paths of plain connections, refusals, and handshakes that do not end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use server::{Limits, TlsClient, Users};

use crate::client::{Client, encoded, primary, text};
use crate::tls_client::{Secure, failures, get, log, metric, of_nodes, of_server, serve};

#[test]
fn requests_and_pages_go_over_tls() {
    let (_folder, server) = serve(of_server("server"), Limits::default());
    let mut client = Secure::connect(server.address(), None).unwrap();
    client.call("SET alice admin", "+OK\r\n").unwrap();
    client.call("GET alice", "$5\r\nadmin\r\n").unwrap();
    // A pipeline in one record, and in many.
    client.send(&encoded(&["INCR", "n"]).repeat(300));
    (0..300).for_each(|_| client.send(&encoded(&["INCR", "n"])));
    let expected: String = (1..=600).map(|number| format!(":{number}\r\n")).collect();
    assert_eq!(client.receive(expected.len()).unwrap(), expected.as_bytes());
    let http = server.http_address().unwrap();
    assert!(get(http, "/readyz").ends_with("\r\n\r\nready\n"));
    assert_eq!(metric(http, "siltstone_server_clients"), 1);
    assert!(metric(http, "siltstone_server_tls_handshakes_total") >= 3);
    assert_eq!(metric(http, "siltstone_server_tls_certificate_expiry_seconds"), 4_733_510_400);
    server.stop().unwrap();
}

#[test]
fn values_of_many_megabytes_go_over_tls() {
    let (_folder, server) = serve(of_server("server"), Limits::default());
    let mut client = Secure::connect(server.address(), None).unwrap();
    let value: Vec<u8> = (0..6 << 20).map(|at: u32| (at % 251) as u8).collect();
    client.send(&encoded(&[b"SET".as_slice(), b"large", &value]));
    assert_eq!(client.receive(5).unwrap(), b"+OK\r\n");
    client.send(&encoded(&["GET", "large"]));
    let expected = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    assert!(client.receive(expected.len()).unwrap() == expected);
    server.stop().unwrap();
}

#[test]
fn certificates_of_another_ca_or_name_are_refused() {
    let (_folder, server) = serve(of_server("server"), Limits::default());
    let at = server.address();
    assert!(Secure::trusting("other-ca.pem", "localhost", at, None).is_err());
    assert!(Secure::trusting("ca.pem", "other.test", at, None).is_err());
    Secure::trusting("ca.pem", "127.0.0.1", at, None).unwrap().call("PING", "+PONG\r\n").unwrap();
    while failures(&server, "refused") < 2 {
        std::thread::yield_now();
    }
    server.stop().unwrap();
}

#[test]
fn clients_show_the_certificate_that_is_asked_for() {
    let mut tls = of_server("server");
    tls.client_ca = Some(crate::tls_client::file("ca.pem"));
    let (_folder, server) = serve(tls, Limits::default());
    for (identity, reason) in [(None, "no_certificate"), (Some("other-client"), "certificate")] {
        // In TLS 1.3 the client's handshake ends before that of the server.
        let client = Secure::connect(server.address(), identity);
        assert!(client.and_then(|mut client| client.call("PING", "+PONG\r\n")).is_err());
        assert_eq!(failures(&server, reason), 1, "{reason}");
    }
    // A certificate for servers is none for clients.
    let client = Secure::connect(server.address(), Some("renewed"));
    assert!(client.and_then(|mut client| client.call("PING", "+PONG\r\n")).is_err());
    let mut client = Secure::connect(server.address(), Some("client")).unwrap();
    client.call("PING", "+PONG\r\n").unwrap();
    assert!(get(server.http_address().unwrap(), "/healthz").ends_with("\r\n\r\nok\n"));
    server.stop().unwrap();
}

#[test]
fn plain_text_on_a_port_of_tls_ends_at_once() {
    let mut tls = of_server("server");
    let (taken, lines) = log();
    tls.log = Some(taken);
    let (_folder, server) = serve(tls, Limits::default());
    let mut client = Client::new(&server);
    client.send(&encoded(&["PING"]));
    assert_eq!(
        text(&client.receive().unwrap()),
        "-ERR this port speaks TLS, and these bytes are none"
    );
    assert_eq!(client.receive(), None);
    let answer = crate::pages::get(server.http_address().unwrap(), "/metrics");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("use https"), "{answer}");
    assert_eq!(failures(&server, "plain"), 2);
    let lines = lines.lock().unwrap().join("\n");
    assert!(lines.contains("TLS: no handshake with 127.0.0.1:"), "{lines}");
    assert!(lines.contains("it speaks no TLS (plain)"), "{lines}");
    server.stop().unwrap();
}

#[test]
fn tls_on_a_plain_port_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let Err(error) = Secure::connect(server.address(), None) else { panic!("it is no TLS") };
    assert!(error.to_string().contains("InvalidContentType"), "{error}");
    let address = server.address().to_string();
    let stream = TcpStream::connect(server.address()).unwrap();
    let tls = TlsClient::new(of_nodes(None)).unwrap();
    let mut stream = tls.connect(&address, stream).unwrap();
    let error = stream.write_all(b"PING\r\n").and_then(|()| stream.read(&mut [0])).unwrap_err();
    assert!(error.to_string().contains("InvalidContentType"), "{error}");
    server.stop().unwrap();
}

#[test]
fn handshakes_that_do_not_end_stop_no_one() {
    let mut tls = of_server("server");
    tls.handshakes = 20;
    tls.handshake = Duration::from_secs(600);
    let (_folder, server) = serve(tls, Limits { clients: 2, ..Limits::default() });
    let mut silent = Vec::new();
    for round in 0..10 {
        for number in 0..20 {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            if number % 2 == 0 {
                // The begin of a handshake, and nothing more.
                stream.write_all(&[22, 3, 1]).unwrap();
            }
            silent.push(stream);
        }
        let mut client = Secure::connect(server.address(), None).unwrap();
        client.call("PING", "+PONG\r\n").unwrap();
        client.call("QUIT", "+OK\r\n").unwrap();
        assert_eq!(client.rest(), "", "{round}");
    }
    let http = server.http_address().unwrap();
    assert!(failures(&server, "evicted") >= 180);
    assert!(metric(http, "siltstone_server_tls_handshakes") <= 21);
    assert_eq!(metric(http, "siltstone_server_refused_connections_total"), 0);
    // The first one was the oldest.
    assert!(matches!(silent[0].read(&mut [0]), Ok(0) | Err(_)));
    // The end of the server does not wait for the others.
    server.stop().unwrap();
}

#[test]
fn a_handshake_has_a_time_limit() {
    let mut tls = of_server("server");
    // Others of this test need less.
    tls.handshake = Duration::from_secs(1);
    let (_folder, server) = serve(tls, Limits::default());
    for address in [server.address(), server.http_address().unwrap()] {
        let mut silent = TcpStream::connect(address).unwrap();
        silent.write_all(&[22, 3]).unwrap();
        assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)));
    }
    while failures(&server, "time") < 2 {
        std::thread::yield_now();
    }
    server.stop().unwrap();
}

#[test]
fn a_client_too_many_is_refused_after_its_handshake() {
    let (_folder, server) = serve(of_server("server"), Limits { clients: 1, ..Limits::default() });
    let mut first = Secure::connect(server.address(), None).unwrap();
    first.call("PING", "+PONG\r\n").unwrap();
    let mut second = Secure::connect(server.address(), None).unwrap();
    assert_eq!(second.receive(36).unwrap(), b"-ERR max number of clients reached\r\n");
    assert!(second.receive(1).is_err());
    first.call("PING", "+PONG\r\n").unwrap();
    server.stop().unwrap();
}

#[test]
fn users_and_the_idle_time_are_those_of_plain_connections() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { idle: Some(Duration::from_millis(200)), ..Limits::default() };
    let mut options = crate::tls_client::secure(of_server("server"), limits);
    options.users = Users::parse("alice secret write=*\n").unwrap();
    let place = server::Place::folder(folder.path());
    let server = server::Server::start(place, server::Role::Primary, options).unwrap();
    let mut client = Secure::connect(server.address(), None).unwrap();
    client.call("GET a", "-NOAUTH").unwrap();
    drop(client);
    let mut client = Secure::connect(server.address(), None).unwrap();
    client.call("AUTH alice secret", "+OK\r\n").unwrap();
    client.call("SET a 1", "+OK\r\n").unwrap();
    assert_eq!(client.rest(), "-ERR the connection was idle for too long\r\n");
    server.stop().unwrap();
}

#[test]
fn a_client_that_does_not_read_is_ended() {
    let limits = Limits { write: Duration::from_millis(20), ..Limits::default() };
    let (_folder, server) = serve(of_server("server"), limits);
    let mut slow = Secure::connect(server.address(), None).unwrap();
    let value = "x".repeat(1 << 20);
    slow.call(&format!("SET a {}", &value[..60_000]), "+OK\r\n").unwrap();
    slow.send(&encoded(&["GET", "a"]).repeat(1_000));
    let http = server.http_address().unwrap();
    while metric(http, "siltstone_server_slow_connections_total") == 0 {
        std::thread::yield_now();
    }
    server.stop().unwrap();
}

#[test]
fn what_was_received_over_tls_before_the_end_is_answered() {
    let (folder, server) = serve(of_server("server"), Limits::default());
    let mut client = Secure::connect(server.address(), None).unwrap();
    let mut idle = Secure::connect(server.address(), None).unwrap();
    idle.call("PING", "+PONG\r\n").unwrap();
    let mut half = TcpStream::connect(server.address()).unwrap();
    half.write_all(&[22]).unwrap();
    client.send(&encoded(&["INCR", "n"]).repeat(500));
    assert_eq!(client.receive(4).unwrap(), b":1\r\n");
    server.stop().unwrap();
    // The end is announced by TLS, so that no one can cut a reply.
    assert_eq!(idle.rest(), "");
    assert!(client.rest().ends_with("\r\n:500\r\n"));
    let db = siltstone::Db::open(folder.path()).unwrap();
    assert_eq!(db.partition("default").unwrap().get("n").unwrap().as_deref(), Some(&b"500"[..]));
}
