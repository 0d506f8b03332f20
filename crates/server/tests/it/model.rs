//! Random histories of several connections, whose replies are compared with the model.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use resp_rs::resp3::Frame;
use server::{Acknowledge, Place, Role, Server};
use testkit::Rng;

use crate::client::{Client, encoded, options, primary, text};
use crate::model_state::{Connection, Expected, State};

fn expected_of(frame: &Frame) -> Expected {
    match frame {
        Frame::SimpleString(bytes) | Frame::BulkString(Some(bytes)) => {
            Expected::Text(bytes.to_vec())
        }
        Frame::Integer(number) => Expected::Number(*number),
        Frame::Null | Frame::BulkString(None) | Frame::Array(None) => Expected::Nil,
        Frame::Array(Some(items)) => Expected::List(items.iter().map(expected_of).collect()),
        Frame::Error(_) => Expected::Error,
        other => panic!("{other:?}"),
    }
}

fn key(rng: &mut Rng) -> Vec<u8> {
    match rng.below(8) {
        7 => Vec::new(),
        n => format!("k{n}").into_bytes(),
    }
}

fn value(rng: &mut Rng) -> Vec<u8> {
    if rng.chance(1, 2) {
        return (rng.below(2000).cast_signed() - 1000).to_string().into_bytes();
    }
    let len = rng.index(40);
    rng.bytes(len)
}

/// A random request.
fn request(rng: &mut Rng) -> Vec<Vec<u8>> {
    let name = *rng.pick(&[
        "GET", "GET", "SET", "SET", "SET", "MGET", "MSET", "DEL", "UNLINK", "EXISTS", "APPEND",
        "STRLEN", "GETRANGE", "INCR", "DECR", "INCRBY", "DECRBY", "MULTI", "MULTI", "EXEC", "EXEC",
        "EXEC", "DISCARD", "WATCH", "WATCH", "UNWATCH", "SELECT",
    ]);
    let mut request = vec![name.as_bytes().to_vec()];
    match name {
        "MULTI" | "EXEC" | "DISCARD" | "UNWATCH" => {}
        "SELECT" => request.push(rng.pick(&["default", "1", "users"]).as_bytes().to_vec()),
        "MGET" | "DEL" | "UNLINK" | "EXISTS" | "WATCH" => {
            request.extend((0..rng.range(1..4)).map(|_| key(rng)));
        }
        "MSET" => (0..rng.range(1..4)).for_each(|_| request.extend([key(rng), value(rng)])),
        _ => request.push(key(rng)),
    }
    match name {
        "SET" => {
            request.push(value(rng));
            let options = ["NX", "XX", "GET"].into_iter().filter(|_| rng.chance(1, 4));
            request.extend(options.map(|option| option.as_bytes().to_vec()));
        }
        "APPEND" | "INCRBY" | "DECRBY" => request.push(value(rng)),
        "GETRANGE" => {
            let start = rng.below(10);
            request.push(start.to_string().into_bytes());
            request.push((start + rng.below(10)).to_string().into_bytes());
        }
        _ => {}
    }
    request
}

/// Random requests that are sent together. Many follow a plain one of the same name, and are a run with it.
fn pipeline(rng: &mut Rng) -> Vec<Vec<Vec<u8>>> {
    let count = if rng.chance(1, 3) { rng.range(2..80) } else { 1 };
    let mut requests = vec![request(rng)];
    while requests.len() < count as usize {
        let is_set = requests.last().is_some_and(|last| last[0] == b"SET");
        requests.push(match rng.chance(7, 8) {
            true if is_set => vec![b"SET".to_vec(), key(rng), value(rng)],
            true => vec![b"GET".to_vec(), key(rng)],
            false => request(rng),
        });
    }
    requests
}

/// All entries, as a walk returns them.
fn walk(client: &mut Client, partition: &str) -> Vec<String> {
    assert_eq!(client.text(&format!("SELECT {partition}")), "OK");
    let mut cursor = "0".to_owned();
    let mut found = Vec::new();
    loop {
        let Frame::Array(Some(reply)) = client.run(&format!("SCAN {cursor} COUNT 3")) else {
            panic!("no array")
        };
        let Frame::Array(Some(keys)) = &reply[1] else { panic!("no keys") };
        found.extend(keys.iter().map(text));
        cursor = text(&reply[0]);
        if cursor == "0" {
            return found;
        }
    }
}

fn check(seed: u64, steps: usize, acknowledge: Acknowledge) {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::from_env_or(seed);
    let mut options = options();
    options.acknowledge = acknowledge;
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    let mut state = State::default();
    let mut connections: Vec<(Client, Connection)> = (0..3)
        .map(|at| {
            let mut client = Client::new(&server);
            client.run(if at == 1 { "HELLO 3" } else { "HELLO 2" });
            (client, Connection::new())
        })
        .collect();
    let mut step = 0;
    while step < steps {
        let at = rng.index(connections.len());
        let (client, connection) = &mut connections[at];
        let requests = pipeline(&mut rng);
        let bytes: Vec<Bytes> = requests.iter().map(|request| encoded(request)).collect();
        client.send(&bytes.concat());
        for request in requests {
            let expected = state.run(connection, &request);
            let reply = client.receive().expect("the server answers");
            let shown: Vec<String> =
                request.iter().map(|word| word.escape_ascii().to_string()).collect();
            let found = expected_of(&reply);
            assert_eq!(
                found,
                expected,
                "step {step}, connection {at}: {shown:?}: {}",
                text(&reply)
            );
            step += 1;
        }
    }
    let mut client = Client::new(&server);
    for partition in ["default", "1", "users"] {
        let keys = state.entries.keys().filter(|(of, _)| of == partition);
        let keys: Vec<String> =
            keys.map(|(_, key)| String::from_utf8(key.clone()).unwrap()).collect();
        assert_eq!(walk(&mut client, partition), keys);
        assert_eq!(client.text("DBSIZE"), keys.len().to_string());
    }
    server.stop().unwrap();
}

#[test]
fn replies_are_those_of_the_model() {
    check(11, 2500, Acknowledge::Os);
}

#[test]
fn replies_of_synced_writes_are_those_of_the_model() {
    check(12, 600, Acknowledge::Sync);
}

#[test]
fn increments_of_many_connections_are_all_there() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let retries = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for at in 0..6 {
            let retries = &retries;
            let server = &server;
            scope.spawn(move || {
                let mut client = Client::new(server);
                for _ in 0..60 {
                    if at % 2 == 0 {
                        client.run("INCR n");
                        continue;
                    }
                    // The same by hand, until nothing came between.
                    loop {
                        client.run("WATCH n");
                        let seen: u64 = client.text("GET n").parse().unwrap_or(0);
                        client.run("MULTI");
                        client.run(&format!("SET n {}", seen + 1));
                        if client.run("EXEC") != Frame::Array(None) {
                            break;
                        }
                        retries.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(Client::new(&server).text("GET n"), "360");
    server.stop().unwrap();
}
