//! Long values: they stream into chunk files and out of them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use resp_rs::resp3::Frame;
use server::{Cluster, ClusterOptions, Limits, Mover, MoverOptions, Nodes, Options, Place, Role};
use server::{Router, Server, Users};
use siltstone::{Db, LargeValueOptions, PartitionOptions};
use testkit::Rng;

use crate::client::{Client, encoded, options, text, until};
use crate::pages::get;
use crate::shards::{maps, mover, service, slots};

/// Limits that hold no long value in memory.
pub(crate) fn small() -> Limits {
    Limits {
        argument_bytes: 1 << 20,
        request_bytes: 2 << 20,
        reply_bytes: 1 << 20,
        streamed_bytes: 64 << 20,
        ..Limits::default()
    }
}

pub(crate) fn large(limits: Limits) -> Options {
    let http = Some("127.0.0.1:0".to_owned());
    let large_values = vec!["default".to_owned()];
    Options { limits, http, large_values, ..options() }
}

fn start(folder: &Path, limits: Limits) -> Server {
    Server::start(Place::folder(folder), Role::Primary, large(limits)).unwrap()
}

pub(crate) fn long(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

fn set(key: &str, value: &[u8], options: &[&str]) -> Bytes {
    let mut words: Vec<&[u8]> = vec![b"SET", key.as_bytes(), value];
    words.extend(options.iter().map(|word| word.as_bytes()));
    encoded(&words)
}

pub(crate) fn bytes(frame: Option<Frame>) -> Bytes {
    let Some(Frame::BulkString(Some(bytes))) = frame else { panic!("no value: {frame:?}") };
    bytes
}

/// A request whose value lacks bytes.
fn half(key: &str, value: &[u8]) -> Bytes {
    let request = set(key, value, &[]);
    request.slice(..request.len() - value.len() / 2)
}

#[test]
fn long_values_come_back_whole_and_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), small());
    let reader = Server::start(Place::folder(folder.path()), Role::Reader, large(small())).unwrap();
    let mut client = Client::new(&server);
    let value = long(1, 9_000_001);
    client
        .send(&[set("before", b"1", &[]), set("a", &value, &[]), set("after", b"2", &[])].concat());
    assert!((0..3).all(|_| text(&client.receive().unwrap()) == "OK"));
    let commit = client.text("SCID.TOKEN");
    let mut reading = Client::new(&reader);
    assert_eq!(reading.text(&format!("SCID.TOKEN {commit}")), "OK");
    assert_eq!(reading.text("SCID.LEVEL 3"), "OK");
    for client in [&mut client, &mut reading] {
        let words = [&["GET", "before"][..], &["GET", "a"], &["GET", "after"]];
        client.send(&words.map(encoded).concat());
        assert_eq!(text(&client.receive().unwrap()), "1");
        assert!(bytes(client.receive()) == value);
        assert_eq!(text(&client.receive().unwrap()), "2");
        assert_eq!(client.text("STRLEN a"), "9000001");
        for (begin, end) in
            [(0, 0), (262_143, 262_144), (-1, -1), (100, 3_000_000), (1, -1), (9, 8)]
        {
            let found = bytes(Some(client.run(&format!("GETRANGE a {begin} {end}"))));
            let [begin, end] = [begin, end].map(|at: isize| match usize::try_from(at) {
                Ok(at) => at,
                Err(_) => value.len() - at.unsigned_abs(),
            });
            assert!(found == value[begin..(end + 1).max(begin)], "{begin} {end}");
        }
    }
    // The attribute comes before the value.
    client.send(&encoded(&["HELLO", "3"]));
    client.receive().unwrap();
    client.send(&encoded(&["SCID.GET", "a", "LEVEL", "1", "ATTRIBUTE"]));
    assert!(matches!(client.receive(), Some(Frame::Attribute(_))));
    assert!(bytes(client.receive()) == value);
    reader.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn the_options_after_a_long_value_decide_about_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), small());
    let mut client = Client::new(&server);
    let [first, second] = [1, 2].map(|seed| long(seed, 2 << 20));
    for (value, options, reply, kept) in [
        (&first, &["XX"][..], "nil", None),
        (&first, &["NX"], "OK", Some(&first)),
        (&second, &["NX"], "nil", Some(&first)),
        (&second, &["EX", "5"], "-ERR the entries of this partition do not expire", Some(&first)),
        (&second, &["NX", "XX"], "-ERR syntax error", Some(&first)),
        (&second, &["XX"], "OK", Some(&second)),
    ] {
        client.send(&set("a", value, options));
        let found = text(&client.receive().unwrap());
        assert!(found.starts_with(reply), "{options:?}: {found}");
        match kept {
            None => assert_eq!(client.text("EXISTS a"), "0"),
            Some(kept) => assert!(bytes(Some(client.run("GET a"))) == kept),
        }
    }
    assert_eq!(client.text("SET b small"), "OK");
    client.send(&set("b", &second, &["GET"]));
    assert_eq!(text(&client.receive().unwrap()), "small");
    assert!(bytes(Some(client.run("GET b"))) == second);
    server.stop().unwrap();
}

#[test]
fn nothing_is_left_of_a_value_whose_client_ends_in_the_middle() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), Limits { write: Duration::from_millis(300), ..small() });
    let mut client = Client::new(&server);
    assert_eq!(client.text("SET a old"), "OK");
    let value = long(3, 6 << 20);
    let mut dying = Client::new(&server);
    dying.send(&half("a", &value));
    drop(dying);
    // This one says nothing more.
    let mut silent = Client::new(&server);
    silent.send(&half("a", &value));
    assert!(text(&silent.receive().unwrap()).starts_with("-ERR the connection was idle"));
    assert_eq!(client.text("GET a"), "old");
    // The end of the server waits for none.
    let mut last = Client::new(&server);
    last.send(&half("a", &value));
    server.stop().unwrap();
    assert!(last.receive().is_none());
    let db = Db::open(folder.path()).unwrap();
    let partition = db.partition("default").unwrap();
    assert_eq!(partition.get("a").unwrap().unwrap(), "old");
    let space = partition.space().unwrap();
    assert_eq!((space.live_bytes, space.pending_bytes), (0, 0));
}

#[test]
fn long_values_have_limits_and_the_connection_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { streamed_bytes: 4 << 20, ..small() };
    let users = Users::parse("alice secret write=*\nbob secret read=*\n").unwrap();
    let options = Options { users, ..large(limits) };
    let db = Db::open(folder.path()).unwrap();
    for values in [LargeValueOptions::default(), LargeValueOptions::off()] {
        db.partition_with("off", PartitionOptions::new().large_values(values)).unwrap();
    }
    db.close().unwrap();
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    let mut client = Client::new(&server);
    let value = long(4, 5 << 20);
    client.send(&set("a", &value[..3 << 20], &[]));
    assert!(text(&client.receive().unwrap()).starts_with("-NOAUTH"));
    assert_eq!(client.text("AUTH bob secret"), "OK");
    client.send(&set("a", &value[..3 << 20], &[]));
    assert!(text(&client.receive().unwrap()).starts_with("-NOPERM"));
    assert_eq!(client.text("AUTH alice secret"), "OK");
    client.send(&set("a", &value, &[]));
    assert_eq!(
        text(&client.receive().unwrap()),
        "-LIMIT the value has 5242880 bytes, the limit is 4194304"
    );
    // What EXEC runs is in memory, within the limits of memory.
    assert_eq!(client.text("MULTI"), "OK");
    client.send(&set("a", &value[..1 << 20], &[]));
    assert_eq!(text(&client.receive().unwrap()), "QUEUED");
    assert_eq!(client.text("EXEC"), "[OK]");
    assert_eq!(client.text("MULTI"), "OK");
    client.send(&set("a", &value[..3 << 20], &[]));
    assert!(text(&client.receive().unwrap()).starts_with("-LIMIT an argument has"));
    assert!(client.text("EXEC").starts_with("-EXECABORT"));
    assert!(bytes(Some(client.run("GET a"))) == value[..1 << 20]);
    // Commands that need a value as a whole refuse a long one, and change nothing.
    client.send(&set("b", &value[..3 << 20], &[]));
    assert_eq!(text(&client.receive().unwrap()), "OK");
    for whole in ["APPEND b x", "SET b x GET", "MGET b", "INCR b"] {
        let reply = client.text(whole);
        assert!(reply.starts_with("-LIMIT the value has 3145728 bytes"), "{whole}: {reply}");
    }
    client.send(&set("a", &value[..1 << 20], &[]));
    assert_eq!(text(&client.receive().unwrap()), "OK");
    assert!(client.text("APPEND a x").starts_with("-LIMIT the value has 1048577 bytes"));
    assert_eq!(client.text("STRLEN a"), "1048576");
    // One that is not read needs no room.
    let lines = ["MULTI", "EXISTS b", "SET b x NX", "GET b", "SET b 1", "GET b", "DEL b", "EXEC"];
    let replies = client.pipeline(&lines);
    let long = "-LIMIT the value has 3145728 bytes, the limit of this command is 1048576";
    assert_eq!(replies[7], format!("[1 nil {long} OK 1 1]"));
    // As in a partition without large values, or where they are turned off.
    for partition in ["other", "off"] {
        assert_eq!(client.text(&format!("SELECT {partition}")), "OK");
        client.send(&set("a", &value[..3 << 20], &[]));
        assert!(text(&client.receive().unwrap()).starts_with("-LIMIT an argument has"));
        assert_eq!(client.text("GET a"), "nil");
    }
    server.stop().unwrap();
}

#[test]
fn a_reader_of_a_long_value_that_stops_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), Limits { write: Duration::from_millis(200), ..small() });
    let mut client = Client::new(&server);
    let value = long(5, 32 << 20);
    client.send(&set("a", &value, &[]));
    assert_eq!(text(&client.receive().unwrap()), "OK");
    let mut slow = TcpStream::connect(server.address()).unwrap();
    slow.write_all(&encoded(&["GET", "a"])).unwrap();
    slow.read_exact(&mut [0; 10]).unwrap();
    // It is the value as of its read, whatever happens meanwhile.
    assert_eq!(client.text("DEL a"), "1");
    let http = server.http_address().unwrap();
    until("the slow one is ended", || {
        get(http, "/metrics").contains("\nsiltstone_server_slow_connections_total 1\n")
    });
    server.stop().unwrap();
}

#[test]
fn a_value_that_comes_over_a_promotion_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), small());
    let reader = Server::start(Place::folder(folder.path()), Role::Reader, large(small())).unwrap();
    let mut client = Client::new(&server);
    let value = long(6, 3 << 20);
    let request = set("a", &value, &[]);
    let begin = request.len() - value.len() / 2;
    client.send(&request[..begin]);
    assert!(!Client::new(&reader).text("SCID.PROMOTE").starts_with('-'));
    // The old primary learns of it here.
    assert!(Client::new(&server).text("SET b 1").starts_with("-READONLY"));
    client.send(&request[begin..]);
    let reply = text(&client.receive().unwrap());
    assert!(reply.starts_with("-READONLY"), "{reply}");
    assert_eq!(client.text("PING"), "PONG");
    assert_eq!(Client::new(&reader).text("EXISTS a"), "0");
    // The same between the value and the options after it.
    let mut client = Client::new(&reader);
    let request = set("a", &value, &["NX"]);
    client.send(&request[..request.len() - 8]);
    assert!(!Client::new(&server).text("SCID.PROMOTE").starts_with('-'));
    assert!(Client::new(&reader).text("SET b 1").starts_with("-READONLY"));
    let mut queued = Client::new(&reader);
    assert_eq!(queued.text("MULTI"), "OK");
    assert_eq!(queued.text("EXISTS a"), "QUEUED");
    queued.send(&set("b", &long(7, 3 << 20), &[]));
    assert!(text(&queued.receive().unwrap()).starts_with('-'));
    assert!(queued.text("EXEC").starts_with("-EXECABORT"));
    client.send(&request[request.len() - 8..]);
    assert!(text(&client.receive().unwrap()).starts_with("-READONLY"));
    // Nothing of it is left for the next command.
    assert!(!client.text("SCID.PROMOTE").starts_with('-'));
    assert_eq!(client.text("SET c 1"), "OK");
    assert_eq!(client.text("GET c"), "1");
    assert_eq!(client.text("EXISTS a"), "0");
    reader.stop().unwrap();
    server.stop().unwrap();
}

fn routed(nodes: &[&Server]) -> Router {
    let nodes = nodes.iter().map(|node| node.address().to_string()).collect();
    let cluster = Cluster::new(ClusterOptions::new(Nodes::List(nodes))).unwrap();
    Router::start("127.0.0.1:0", cluster, small()).unwrap()
}

/// Sends long values in both directions in one pipeline, and small ones around them.
fn converse(client: &mut Client, keys: [&str; 2]) {
    let [first, second] = [7, 8].map(|seed| long(seed, (5 << 20) + seed as usize));
    let [one, other] = keys;
    let mut requests = vec![set(one, &first, &[]), set(other, &second, &["NX"])];
    requests.push(encoded(&["INCR", "{foo}n"]));
    for key in [one, other, one] {
        requests.push(encoded(&["GET", key]));
        requests.push(encoded(&["INCR", "{bar}n"]));
    }
    requests.push(encoded(&["GETRANGE", other, "1000", "-1001"]));
    requests.push(set(other, &first, &["NX"]));
    // The replies fill the buffers of the system: the requests come on while they are read.
    let mut stream = client.stream().try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stream.write_all(&requests.concat()).unwrap());
        assert!((0..2).all(|_| text(&client.receive().unwrap()) == "OK"));
        assert_eq!(text(&client.receive().unwrap()), "1");
        for (at, value) in [&first, &second, &first].into_iter().enumerate() {
            assert!(bytes(client.receive()) == value, "{at}");
            assert_eq!(text(&client.receive().unwrap()), (at + 1).to_string());
        }
        assert!(bytes(client.receive()) == second[1000..second.len() - 1000]);
        assert_eq!(text(&client.receive().unwrap()), "nil");
    });
}

#[test]
fn long_values_go_through_a_router() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), small());
    let reader = Server::start(Place::folder(folder.path()), Role::Reader, large(small())).unwrap();
    let router = routed(&[&reader, &server]);
    let mut client = Client::at(router.address());
    converse(&mut client, ["a", "b"]);
    // What its client has written is there for a session.
    assert_eq!(client.text("SCID.LEVEL 3"), "OK");
    assert!(bytes(Some(client.run("GET a"))) == long(7, (5 << 20) + 7));
    // A value too long for the node, and one for the router.
    let value = long(9, 65 << 20);
    client.send(&set("a", &value, &[]));
    let reply = text(&client.receive().unwrap());
    assert_eq!(reply, "-LIMIT the value has 68157440 bytes, the limit is 67108864");
    assert_eq!(client.text("MULTI"), "OK");
    client.send(&set("a", &value[..3 << 20], &[]));
    assert!(text(&client.receive().unwrap()).starts_with("-LIMIT an argument has"));
    assert!(client.text("EXEC").starts_with("-EXECABORT"));
    // Nothing is left of a client that ends in the middle.
    let mut dying = Client::at(router.address());
    dying.send(&half("a", &value[..6 << 20]));
    drop(dying);
    assert_eq!(client.text("STRLEN a"), (7 + (5 << 20)).to_string());
    router.stop();
    reader.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn an_upload_whose_node_ends_is_refused_and_the_connection_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), small());
    let router = routed(&[&server]);
    let mut client = Client::at(router.address());
    assert_eq!(client.text("SET a old"), "OK");
    let value = long(10, 20 << 20);
    let request = set("a", &value, &[]);
    let begin = request.len() - value.len() / 2;
    client.send(&request[..begin]);
    server.stop().unwrap();
    let server = start(folder.path(), small());
    client.send(&request[begin..]);
    let reply = text(&client.receive().unwrap());
    assert!(
        reply.ends_with("was lost before the whole value was sent; nothing was written"),
        "{reply}"
    );
    assert_eq!(client.text("PING"), "PONG");
    assert_eq!(Client::new(&server).text("GET a"), "old");
    router.stop();
    server.stop().unwrap();
}

#[test]
fn long_values_of_a_pipeline_over_shards_stream() {
    let service = service(|options| Options {
        large_values: vec!["default".to_owned()],
        limits: small(),
        ..options
    });
    let mut client = Client::at(service.router.address());
    converse(&mut client, ["foo", "bar"]);
}

/// The values are longer than what a request may hold, so they can move in pieces alone.
#[test]
fn long_values_move_with_their_slots() {
    let service = service(|options| Options {
        limits: Limits { streamed_bytes: 8 << 20, ..small() },
        large_values: if options.shard.as_deref() == Some("b") {
            vec!["default".to_owned()]
        } else {
            Vec::new()
        },
        ..options
    });
    let mut client = Client::at(service.router.address());
    let [first, second] = [11, 12].map(|seed| long(seed, 5 << 20));
    client.send(&[set("foo", &first, &[]), set("{foo}b", &first, &[])].concat());
    assert!((0..2).all(|_| text(&client.receive().unwrap()) == "OK"));
    assert_eq!(client.text("SET {foo}c small"), "OK");
    // One of them changes after it was copied.
    let address = service.router.address();
    let map = service.folder.path().join("map");
    let changed = second.clone();
    let options = MoverOptions {
        on_step: Arc::new(move |step| {
            if step == "give" {
                let mut other = Client::at(address);
                other.send(&set("{foo}b", &changed, &[]));
                assert_eq!(text(&other.receive().unwrap()), "OK");
            }
            Ok(())
        }),
        ..MoverOptions::default()
    };
    let moved = Mover::new(maps(&map), options).unwrap().move_slots(&slots("12182"), "a").unwrap();
    assert!(moved.entries >= 4 && moved.bytes > 15 << 20, "{moved:?}");
    assert!(bytes(Some(client.run("GET foo"))) == first);
    assert!(bytes(Some(client.run("GET {foo}b"))) == second);
    assert_eq!(client.text("GET {foo}c"), "small");
    // And back, with both shards as they are.
    mover(&map).move_slots(&slots("12182"), "b").unwrap();
    assert!(bytes(Some(client.run("GET {foo}b"))) == second);
}
