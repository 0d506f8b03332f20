//! Users, metrics, health, many connections, and the end of a server.

use std::net::TcpStream;

use server::{Place, Role, Server, Users};

use crate::client::{Client, encoded, options, primary, reader, text};
use crate::commands::check;
use crate::pages::{get, http};

#[test]
fn users_do_what_they_may() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options();
    options.users =
        Users::parse("alice secret read=users write=posts\nroot key write=*\n").unwrap();
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    let mut client = Client::new(&server);
    check(
        &mut client,
        &[
            ("GET a", "-NOAUTH~"),
            ("PING", "-NOAUTH~"),
            ("SCID.PROMOTE", "-NOAUTH~"),
            ("HELLO 3", "-NOAUTH~"),
            ("AUTH alice wrong", "-WRONGPASS~"),
            ("AUTH secret", "-WRONGPASS~"),
            ("HELLO 2 AUTH alice secret", "[server~"),
            ("GET a", "-NOPERM this user may not read partition \"default\""),
            ("SELECT users", "OK"),
            ("GET a", "nil"),
            ("SET a 1", "-NOPERM~"),
            ("MULTI", "OK"),
            ("SET a 1", "-NOPERM~"),
            ("EXEC", "-EXECABORT~"),
            ("SELECT posts", "OK"),
            ("SET a 1", "OK"),
            ("GET a", "1"),
            ("SCID.LAG users", "-ERR there is no partition~"),
            ("SCID.LAG default", "-NOPERM~"),
            ("SCID.LAG", "[posts~"),
            ("SCID.PROMOTE", "-NOPERM~"),
            ("AUTH root key", "OK"),
            ("SCID.PROMOTE", "1-~"),
            ("SCID.LAG", "[default~"),
        ],
    );
    server.stop().unwrap();
}

#[test]
fn the_rate_of_background_writes_is_that_of_each_primary() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options();
    options.http = Some("127.0.0.1:0".to_owned());
    options.background_bytes_per_second = 1 << 20;
    let server =
        Server::start(Place::folder(folder.path()), Role::Primary, options.clone()).unwrap();
    let follower =
        Server::start(Place::folder(folder.path()), Role::Reader, options.clone()).unwrap();
    let line = "\nsiltstone_background_rate_bytes 1048576\n";
    let text = get(server.http_address().unwrap(), "/metrics");
    assert!(text.contains(line), "{text}");
    check(&mut Client::new(&follower), &[("SCID.PROMOTE", "~")]);
    let text = get(follower.http_address().unwrap(), "/metrics");
    assert!(text.contains(line), "{text}");
    follower.stop().unwrap();
    server.stop().unwrap();
    options.background_bytes_per_second = 1;
    let refused =
        Server::start(Place::folder(folder.path()), Role::Primary, options).err().unwrap();
    assert_eq!(refused.kind(), siltstone::ErrorKind::InvalidArgument, "{refused}");
}

#[test]
fn figures_and_health_are_on_their_port() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options();
    options.http = Some("127.0.0.1:0".to_owned());
    let server =
        Server::start(Place::folder(folder.path()), Role::Primary, options.clone()).unwrap();
    let follower = Server::start(Place::folder(folder.path()), Role::Reader, options).unwrap();
    let address = server.http_address().unwrap();
    let mut client = Client::new(&server);
    check(
        &mut client,
        &[("SET a 1", "OK"), ("GET a", "1"), ("GET a", "1"), ("INCR b", "1"), ("SET b x", "OK")],
    );
    check(&mut client, &[("INCR b", "-ERR~"), ("SCID.GET a LEVEL 5", "1")]);
    let text = get(address, "/metrics");
    for line in [
        "siltstone_server_up 1",
        "siltstone_server_primary 1",
        "siltstone_server_clients 1",
        "siltstone_server_reads_total{level=\"1\"} 2",
        "siltstone_server_reads_total{level=\"5\"} 1",
        "siltstone_server_errors_total{command=\"INCR\"} 1",
        "siltstone_server_command_seconds_count{command=\"INCR\"} 2",
        "siltstone_server_command_seconds_bucket{command=\"GET\",le=\"+Inf\"} 2",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
    }
    let process = format!("siltstone_server_process_id {}", std::process::id());
    assert!(text.lines().any(|it| it == process), "{text}");
    // Those of the engine, too.
    assert!(text.contains("\nsiltstone_batches_total "), "{text}");
    check(&mut Client::new(&follower), &[("SCID.GET a LEVEL 1", "1")]);
    let of_reader = get(follower.http_address().unwrap(), "/metrics");
    assert!(
        of_reader.contains("siltstone_server_lag_operations{partition=\"default\"} 0"),
        "{of_reader}"
    );
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(get(address, "/readyz?x=1").ends_with("ready\n"));
    assert!(get(address, "/other").starts_with("HTTP/1.1 404"));
    assert!(http(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(http(address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    check(&mut Client::new(&follower), &[("SCID.PROMOTE", "~")]);
    assert!(get(address, "/readyz").starts_with("HTTP/1.1 503"));
    follower.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn hundreds_of_connections_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    // Two handles for each, in one process.
    let mut clients: Vec<Client> = (0..400).map(|_| Client::new(&server)).collect();
    let request = encoded(&["INCR", "n"]);
    clients.iter_mut().for_each(|client| client.send(&request));
    let mut found: Vec<u64> = clients
        .iter_mut()
        .map(|client| text(&client.receive().unwrap()).parse().unwrap())
        .collect();
    found.sort_unstable();
    assert_eq!(found, (1..=400).collect::<Vec<u64>>());
    server.stop().unwrap();
}

/// The mark is there while the server still answers, so that a proxy sends nothing more.
#[test]
fn a_server_that_ends_says_so_until_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options();
    options.http = Some("127.0.0.1:0".to_owned());
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    let address = server.http_address().unwrap();
    let mut client = Client::new(&server);
    let value = "x".repeat(16 << 20);
    check(&mut client, &[(&format!("SET a {value}"), "OK")]);
    assert!(get(address, "/metrics").contains("\nsiltstone_server_up 1\n"));
    // More than the buffers of the system hold: the end waits until it is read.
    client.send(&encoded(&["GET", "a"]));
    client.stream().peek(&mut [0]).unwrap();
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| server.stop());
        while get(address, "/readyz").starts_with("HTTP/1.1 200") {
            std::thread::yield_now();
        }
        assert!(get(address, "/readyz").ends_with("\r\n\r\nthe server ends\n"));
        assert!(get(address, "/healthz").starts_with("HTTP/1.1 200"));
        assert!(get(address, "/metrics").contains("\nsiltstone_server_up 0\n"));
        assert!(text(&client.receive().unwrap()) == value);
        assert_eq!(client.receive(), None);
        ending.join().unwrap().unwrap();
    });
}

#[test]
fn what_was_received_before_the_end_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    let mut idle = Client::new(&server);
    check(&mut idle, &[("PING", "PONG")]);
    let mut bytes = Vec::new();
    (0..500).for_each(|_| bytes.extend_from_slice(&encoded(&["INCR", "n"])));
    client.send(&bytes);
    assert_eq!(text(&client.receive().unwrap()), "1");
    let address = server.address();
    server.stop().unwrap();
    assert_eq!(idle.receive(), None);
    let mut last = 1;
    while let Some(reply) = client.receive() {
        last = text(&reply).parse().unwrap();
    }
    // All of it had arrived.
    assert_eq!(last, 500);
    let server = reader(folder.path());
    check(&mut Client::new(&server), &[("SCID.GET n LEVEL 1", "500")]);
    assert!(TcpStream::connect(address).is_err());
    server.stop().unwrap();
}
