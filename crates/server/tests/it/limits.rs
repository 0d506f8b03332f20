//! Limits: each is answered with an error, and the connection goes on where it can.

use std::time::Duration;

use resp_rs::resp3::Frame;
use server::{Limits, Place, Role, Server};

use crate::client::{Client, encoded, options, text};
use crate::commands::check;

fn limited(limits: Limits) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options();
    options.limits = limits;
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    (folder, server)
}

#[test]
fn requests_and_replies_above_a_limit_are_refused() {
    let limits = Limits {
        arguments: 5,
        argument_bytes: 1000,
        request_bytes: 1500,
        reply_bytes: 2500,
        transaction_commands: 3,
        ..Limits::default()
    };
    let (_folder, server) = limited(limits);
    let mut client = Client::new(&server);
    let most = "x".repeat(1000);
    let above = "x".repeat(1001);
    check(
        &mut client,
        &[
            (&format!("SET a {most}"), "OK"),
            (&format!("SET a {above}"), "-LIMIT an argument has 1001 bytes, the limit is 1000"),
            ("MGET a a a", "-LIMIT the reply has more than 2500 bytes"),
            ("MGET a a", "[xxx~"),
            ("MGET a a a a a", "-LIMIT the request has 6 arguments, the limit is 5"),
            (&format!("MSET a {most} b {most}"), "-LIMIT the request has~"),
            ("MULTI", "OK"),
            (&format!("SET b {above}"), "-LIMIT~"),
            ("EXEC", "-EXECABORT~"),
            ("MULTI", "OK"),
            ("GET a", "QUEUED"),
            ("GET a", "QUEUED"),
            ("GET a", "QUEUED"),
            ("GET a", "-LIMIT the transaction~"),
            ("DISCARD", "OK"),
            ("MULTI", "OK"),
            ("GET a", "QUEUED"),
            ("MGET a a", "QUEUED"),
            ("EXEC", "-LIMIT the reply~"),
        ],
    );
    server.stop().unwrap();
}

#[test]
fn a_client_too_many_is_refused_and_a_place_comes_back() {
    let limits = Limits { clients: 2, ..Limits::default() };
    let (_folder, server) = limited(limits);
    let mut clients = [Client::new(&server), Client::new(&server)];
    clients.iter_mut().for_each(|client| check(client, &[("PING", "PONG")]));
    let mut refused = Client::new(&server);
    assert_eq!(text(&refused.receive().unwrap()), "-ERR max number of clients reached");
    assert_eq!(refused.receive(), None);
    check(&mut clients[0], &[("QUIT", "OK")]);
    // The place is free once the server has seen the end.
    loop {
        let mut client = Client::new(&server);
        client.send(&encoded(&["PING"]));
        if client.receive() == Some(Frame::SimpleString("PONG".into())) {
            break;
        }
    }
    server.stop().unwrap();
}

#[test]
fn an_idle_client_gets_an_error_and_one_that_does_not_read_is_ended() {
    let time = Duration::from_millis(20);
    let (_folder, server) = limited(Limits { idle: Some(time), ..Limits::default() });
    let mut idle = Client::new(&server);
    assert_eq!(text(&idle.receive().unwrap()), "-ERR the connection was idle for too long");
    assert_eq!(idle.receive(), None);
    server.stop().unwrap();
    let (_folder, server) = limited(Limits { write: time, ..Limits::default() });
    let mut slow = Client::new(&server);
    let value = "x".repeat(1 << 20);
    check(&mut slow, &[(&format!("SET a {value}"), "OK")]);
    // More than the buffers of the system hold, and none of it is read before the server has ended the connection.
    let request = encoded(&["GET", "a"]);
    slow.stream().set_nonblocking(true).unwrap();
    let mut stream = slow.stream();
    let mut other = 0;
    while !std::io::Write::write(&mut stream, &request)
        .is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
    {
        other += 1;
        std::thread::yield_now();
    }
    assert!(other > 0);
    server.stop().unwrap();
}

#[test]
fn values_of_many_megabytes_come_back() {
    let (_folder, server) = limited(Limits::default());
    let mut client = Client::new(&server);
    let mut value = vec![b'v'; 6 << 20];
    value[1 << 20] = b'\n';
    let key = b"large".to_vec();
    assert_eq!(text(&client.call(&[b"SET".to_vec(), key.clone(), value.clone()])), "OK");
    let Frame::BulkString(Some(found)) = client.call(&[b"GET".to_vec(), key]) else {
        panic!("no value")
    };
    assert!(found == value);
    check(&mut client, &[("STRLEN large", "6291456"), ("GETRANGE large 1048575 1048577", "v\nv")]);
    server.stop().unwrap();
}

fn is_answered(client: &Client) -> bool {
    client.stream().peek(&mut [0]).is_ok()
}

#[test]
fn incomplete_requests_of_all_connections_are_bounded() {
    let limits = Limits { incomplete_bytes: 1 << 20, ..Limits::default() };
    let (_folder, server) = limited(limits);
    let value = "x".repeat(700 << 10);
    let half = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${}\r\n{value}", value.len());
    let mut first = Client::new(&server);
    first.send(half.as_bytes());
    let mut refused = Client::new(&server);
    // The second one is above the bound once both are there, whichever that is.
    refused.send(half.as_bytes());
    let mut other = Client::new(&server);
    check(&mut other, &[("PING", "PONG")]);
    first.stream().set_nonblocking(true).unwrap();
    refused.stream().set_nonblocking(true).unwrap();
    let ended = loop {
        match (is_answered(&first), is_answered(&refused)) {
            (false, false) => std::thread::yield_now(),
            found => break found,
        }
    };
    assert!(ended.0 != ended.1, "{ended:?}");
    let (mut ended, mut kept) = if ended.0 { (first, refused) } else { (refused, first) };
    ended.stream().set_nonblocking(false).unwrap();
    kept.stream().set_nonblocking(false).unwrap();
    assert!(text(&ended.receive().unwrap()).starts_with("-LIMIT the requests of all"));
    assert_eq!(ended.receive(), None);
    // Its bytes are free again.
    kept.send(b"\r\n");
    assert_eq!(text(&kept.receive().unwrap()), "OK");
    kept.send(half.as_bytes());
    kept.send(b"\r\n");
    assert_eq!(text(&kept.receive().unwrap()), "OK");
    server.stop().unwrap();
}

#[test]
fn a_client_that_ends_in_the_middle_of_a_request_leaves_nothing() {
    let limits = Limits { clients: 1, ..Limits::default() };
    let (_folder, server) = limited(limits);
    for half in
        ["*3\r\n$3\r\nSET\r\n$1\r\na\r\n$10\r\nabc", "*1\r\n$9", "SET a ", "*1\r\n$4\r\nPING\r\n*1"]
    {
        // The place of the one before may not be free at once.
        loop {
            let mut client = Client::new(&server);
            client.send(&encoded(&["PING"]));
            if client.receive() == Some(Frame::SimpleString("PONG".into())) {
                client.send(half.as_bytes());
                break;
            }
        }
    }
    loop {
        let mut client = Client::new(&server);
        client.send(&encoded(&["GET", "a"]));
        match client.receive() {
            Some(Frame::Error(_)) | None => {}
            found => {
                assert_eq!(found, Some(Frame::BulkString(None)));
                break;
            }
        }
    }
    server.stop().unwrap();
}
