//! The commands whose replies the model does not have: the connection, tools, expiry, and refusals.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use resp_rs::resp3::Frame;
use server::{Place, Role, Server};
use siltstone::clock::Clock;
use siltstone::fs::OsFs;

use crate::client::{Client, encoded, options, primary, text};

/// Runs each line, and compares its reply.
pub(crate) fn check(client: &mut Client, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        let reply = client.text(line);
        let is_met = match expected.strip_suffix('~') {
            Some(begin) => reply.starts_with(begin),
            None => reply == *expected,
        };
        assert!(is_met, "{line}: {reply}, expected {expected}");
    }
}

#[test]
fn connections_are_named_and_choose_a_version() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    check(
        &mut client,
        &[
            ("PING", "PONG"),
            ("ping hello", "hello"),
            ("ECHO a", "a"),
            ("CLIENT GETNAME", "nil"),
            ("CLIENT SETNAME me", "OK"),
            ("CLIENT GETNAME", "me"),
            ("CLIENT SETINFO LIB-NAME test", "OK"),
            ("CLIENT KILL 1", "-ERR CLIENT KILL is not supported"),
            ("GET a", "nil"),
            ("HELLO 4", "-NOPROTO~"),
            ("HELLO 2", "[server siltstone~"),
            ("HELLO 3", "{server=siltstone~"),
            ("SCID.LEVEL", "AUTO"),
            ("SCID.LEVEL 6", "-ERR a level is~"),
            ("SCID.LEVEL 3", "OK"),
            ("SCID.LEVEL", "3"),
            ("SCID.TOKEN", "1-~"),
        ],
    );
    assert_eq!(client.run("GET a"), Frame::Null);
    check(&mut client, &[("QUIT", "OK")]);
    assert_eq!(client.receive(), None);
    server.stop().unwrap();
}

#[test]
fn tools_find_what_they_ask_for() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    check(
        &mut client,
        &[
            ("CONFIG GET save", "[save ]"),
            ("CONFIG GET appendonly", "[appendonly yes]"),
            ("CONFIG SET save x", "-ERR CONFIG SET is not supported~"),
            ("COMMAND COUNT", "45"),
            ("COMMAND DOCS", "[]"),
            ("COMMAND INFO get nothing", "[[get 2 [readonly] 1 1 1] nil]"),
            ("LPUSH a b", "-ERR unknown command 'LPUSH': this server does not support it"),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            ("GET a b", "-ERR wrong number of arguments for 'get' command"),
            ("SET a b BAD", "-ERR syntax error"),
            ("SET a b EX 10", "-ERR the entries of this partition do not expire~"),
            ("GET a", "nil"),
            ("INCR a", "1"),
            ("SET a x", "OK"),
            ("INCR a", "-ERR value is not an integer~"),
            ("SET b 9223372036854775807", "OK"),
            ("INCR b", "-ERR increment or decrement would overflow"),
            ("SCAN x", "-ERR invalid cursor"),
            ("SCAN 77", "-ERR this cursor is unknown~"),
        ],
    );
    let info = client.text("INFO");
    assert!(info.contains("\r\nloading:0\r\n"), "{info}");
    assert!(info.contains("role:master\r\n") && info.contains("scid_token:"), "{info}");
    server.stop().unwrap();
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options();
    options.acknowledge = server::Acknowledge::Sync;
    options.limits.pipeline = 7;
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    let mut client = Client::new(&server);
    let mut bytes = Vec::new();
    for number in 0..100 {
        bytes.extend_from_slice(&encoded(&["SET", "k", &number.to_string()]));
        bytes.extend_from_slice(&encoded(&["GET", "k"]));
    }
    client.send(&bytes);
    for number in 0..100 {
        assert_eq!(text(&client.receive().unwrap()), "OK");
        assert_eq!(text(&client.receive().unwrap()), number.to_string());
    }
    server.stop().unwrap();
}

/// A calendar that the test sets.
#[derive(Default)]
struct Calendar(AtomicU64);

impl Clock for Calendar {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_time(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

#[test]
fn entries_expire_at_their_time_and_never_before() {
    let folder = tempfile::tempdir().unwrap();
    let calendar = Arc::new(Calendar(AtomicU64::new(1_000_000)));
    let mut options = options();
    options.expiring = vec!["sessions".to_owned()];
    options.clock = calendar.clone();
    let place = Place::folder_on(folder.path(), Arc::new(OsFs), calendar.clone());
    let server = Server::start(place, Role::Primary, options).unwrap();
    let mut client = Client::new(&server);
    check(
        &mut client,
        &[
            ("SELECT sessions", "OK"),
            ("SET a 1 EX 10", "OK"),
            ("SET b 2 PX 10001", "OK"),
            ("SET c 3", "OK"),
            ("SET d 4 EX 10", "OK"),
            ("SET d 5 KEEPTTL", "OK"),
            ("SET e 6 EX 10", "OK"),
            ("APPEND e 7", "2"),
            ("SET f 8 EX 10", "OK"),
            ("SET f 9", "OK"),
            ("SET g 1 EX 0", "-ERR invalid expire time~"),
            ("SET g 1 EX 10 KEEPTTL", "-ERR syntax error"),
            ("SET h 1 EX 9223372036854775807", "-ERR invalid expire time~"),
        ],
    );
    calendar.0.store(1_009_999, Ordering::Relaxed);
    check(&mut client, &[("MGET a b c d e f", "[1 2 3 5 67 9]"), ("DBSIZE", "6")]);
    calendar.0.store(1_010_000, Ordering::Relaxed);
    check(
        &mut client,
        &[
            ("MGET a b c d e f", "[nil 2 3 nil nil 9]"),
            ("EXISTS a b", "1"),
            ("DBSIZE", "3"),
            ("SCAN 0", "[0 [b c f]]"),
            ("DEL a", "0"),
            ("SET a 2 NX", "OK"),
            ("GET a", "2"),
        ],
    );
    server.stop().unwrap();
}

#[test]
fn a_walk_returns_each_key_that_stays_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    for number in 0..200 {
        client.run(&format!("SET stays:{number:03} x"));
    }
    let mut cursor = "0".to_owned();
    let mut found = Vec::new();
    let mut step = 0;
    loop {
        let Frame::Array(Some(reply)) = client.run(&format!("SCAN {cursor} COUNT 7")) else {
            panic!("no array")
        };
        cursor = text(&reply[0]);
        let Frame::Array(Some(keys)) = &reply[1] else { panic!("no keys") };
        found.extend(keys.iter().map(text).filter(|key| key.starts_with("stays:")));
        // Keys come and go between the steps.
        client.run(&format!("SET stays:{step:03}.new x"));
        client.run(&format!("DEL stays:{step:03}.new"));
        client.run(&format!("SET other:{step} x"));
        step += 1;
        if cursor == "0" {
            break;
        }
    }
    let expected: Vec<String> = (0..200).map(|number| format!("stays:{number:03}")).collect();
    assert_eq!(found, expected);
    check(
        &mut client,
        &[("SCAN 0 MATCH stays:01[0-2] COUNT 1000", "[0 [stays:010 stays:011 stays:012]]")],
    );
    server.stop().unwrap();
}

#[test]
fn a_walk_with_another_pattern_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    check(&mut client, &[("MSET aa 1 ab 1 ba 1 bb 1", "OK")]);
    let page = client.text("SCAN 0 MATCH a* COUNT 1");
    let cursor = page[1..].split(' ').next().unwrap();
    for (pattern, expected) in [("a", "ab"), ("b", "ba bb"), ("", "ab ba bb"), ("aa", "")] {
        let line = format!("SCAN {cursor} MATCH {pattern}* COUNT 10");
        check(&mut client, &[(&line, &format!("[0 [{expected}]]"))]);
    }
    server.stop().unwrap();
}

/// A batch keeps a refused operation for its commit, and has no operation then.
#[test]
fn a_key_that_the_engine_refuses_is_no_empty_change() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    let long = "k".repeat(70_000);
    let key = long.as_bytes();
    for words in [&[b"SET", key, b"1"][..], &[b"INCR", key], &[b"APPEND", key, b"1"]] {
        client.send(&encoded(words));
        let reply = text(&client.receive().unwrap());
        assert!(reply.starts_with("-LIMIT"), "{reply}");
    }
    client.send(&encoded(&[b"EXISTS", key]));
    assert_eq!(text(&client.receive().unwrap()), "0");
    server.stop().unwrap();
}

#[test]
fn the_empty_key_is_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    for (words, expected) in [
        (&[&b"SET"[..], b"", b"1"][..], "OK"),
        (&[b"INCR", b""], "2"),
        (&[b"APPEND", b"", b"0"], "2"),
        (&[b"GET", b""], "20"),
        (&[b"SET", b"a", b"x"], "OK"),
        (&[b"SCAN", b"0"], "[0 [ a]]"),
        (&[b"DEL", b""], "1"),
        (&[b"EXISTS", b""], "0"),
    ] {
        client.send(&encoded(words));
        assert_eq!(text(&client.receive().unwrap()), expected, "{words:?}");
    }
    server.stop().unwrap();
}
