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
fn a_page_of_a_walk_is_within_the_limit_of_a_reply() {
    let (_folder, server) = limited(Limits { reply_bytes: 2500, ..Limits::default() });
    let mut client = Client::new(&server);
    let long = "k".repeat(1000);
    for number in 0..7 {
        assert_eq!(client.text(&format!("SET {number}{long} x")), "OK");
    }
    let mut cursor = "0".to_owned();
    let mut found = Vec::new();
    loop {
        let Frame::Array(Some(page)) = client.run(&format!("SCAN {cursor} COUNT 100")) else {
            panic!("no page")
        };
        let Frame::Array(Some(keys)) = &page[1] else { panic!("no keys") };
        let bytes: usize = keys.iter().map(|key| text(key).len()).sum();
        // The key that exceeds the limit is the last one.
        assert!(bytes <= 2500 + 1001, "{bytes}");
        found.extend(keys.iter().map(|key| text(key)[..1].to_owned()));
        cursor = text(&page[0]);
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found.concat(), "0123456");
    server.stop().unwrap();
}

#[test]
fn a_transaction_of_a_reader_has_the_limit_of_a_reply() {
    let (folder, server) = limited(Limits::default());
    let mut options = options();
    options.limits = Limits { reply_bytes: 2500, ..Limits::default() };
    let follower = Server::start(Place::folder(folder.path()), Role::Reader, options).unwrap();
    check(&mut Client::new(&server), &[(&format!("SET a {}", "x".repeat(1000)), "OK")]);
    let two = [("MULTI", "OK"), ("GET a", "QUEUED"), ("GET a", "QUEUED")];
    let mut client = Client::new(&follower);
    check(&mut client, &two);
    check(&mut client, &[("EXEC", "[xxx~")]);
    check(&mut client, &two);
    check(&mut client, &[("GET a", "QUEUED"), ("EXEC", "-LIMIT the reply~"), ("GET a", "xxx~")]);
    follower.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn what_waits_for_exec_is_bounded() {
    let limits = Limits {
        request_bytes: 1 << 20,
        argument_bytes: 1 << 20,
        incomplete_bytes: 1 << 20,
        ..Limits::default()
    };
    let (_folder, server) = limited(limits);
    let mut client = Client::new(&server);
    // Also arguments without bytes take memory.
    let mut empty = vec!["MGET"];
    empty.resize(2000, "");
    check(&mut client, &[("MULTI", "OK")]);
    let refused = (0..100).position(|_| text(&client.call(&empty)).starts_with("-LIMIT"));
    assert!(refused.is_some());
    check(&mut client, &[("EXEC", "-EXECABORT~")]);
    // Two are too many for a transaction, and not for all connections: that would end this one.
    let long = "k".repeat(520 << 10);
    check(&mut client, &[(&format!("WATCH {long}"), "OK"), (&format!("WATCH {long}"), "-LIMIT~")]);
    check(&mut client, &[("UNWATCH", "OK"), (&format!("WATCH {long}"), "OK"), ("UNWATCH", "OK")]);
    let name = "n".repeat(1000);
    check(&mut client, &[(&format!("CLIENT SETNAME {name}"), "-LIMIT~")]);
    check(&mut client, &[(&format!("HELLO 2 SETNAME {name}"), "-LIMIT~")]);
    // A transaction counts as a request that is not complete.
    let queued = format!("SET a {}", "v".repeat(600 << 10));
    check(&mut client, &[("MULTI", "OK"), (&queued, "QUEUED")]);
    let mut second = Client::new(&server);
    check(&mut second, &[("MULTI", "OK")]);
    // What the client sends after the error does not destroy it.
    let request = encoded(&queued.split(' ').collect::<Vec<_>>());
    second.send(&request.repeat(20));
    let replies: Vec<String> =
        std::iter::from_fn(|| second.receive()).map(|it| text(&it)).collect();
    assert!(replies.last().unwrap().starts_with("-LIMIT the requests of all"), "{replies:?}");
    check(&mut client, &[("EXEC", "[OK]")]);
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
fn a_client_that_sends_after_the_end_of_its_connection_keeps_no_place() {
    let limits =
        Limits { clients: 1, argument_bytes: 100, incomplete_bytes: 1 << 10, ..Limits::default() };
    let (_folder, server) = limited(limits);
    let mut sender = Client::new(&server);
    sender.send(b"*x\r\n");
    assert!(text(&sender.receive().unwrap()).starts_with('-'));
    assert_eq!(sender.receive(), None);
    // It never closes its side, and it sends on until the server has closed the other one.
    let stream = sender.stream().try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let mut stream = stream;
        while std::io::Write::write(&mut stream, b"x").is_ok() {
            std::thread::yield_now();
        }
    });
    loop {
        let mut client = Client::new(&server);
        client.send(&encoded(&["PING"]));
        if client.receive() == Some(Frame::SimpleString("PONG".into())) {
            break;
        }
    }
    sending.join().unwrap();
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
