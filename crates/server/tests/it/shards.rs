//! Shards: slots, their refusals, and moves.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use server::{
    Acknowledge, Maps, Mover, MoverOptions, Options, Place, Policy, Role, Router, Server, Shard,
    SlotSet, slot_of,
};
use siltstone::{Error, ErrorKind};

use crate::client::{self, Client};
use crate::pages::get;
use crate::shards_linear::routed;

/// A node of the shard `name`.
pub(crate) fn node(folder: &Path, role: Role, name: &str) -> Server {
    let options = Options { shard: Some(name.to_owned()), ..client::options() };
    Server::start(Place::folder(folder), role, options).unwrap()
}

pub(crate) fn shard(name: &str, nodes: &[&Server]) -> Shard {
    let nodes = nodes.iter().map(|node| node.address().to_string()).collect();
    Shard { name: name.to_owned(), nodes }
}

pub(crate) fn maps(folder: &Path) -> Maps {
    Maps::open(folder.to_str().unwrap()).unwrap()
}

pub(crate) fn mover(folder: &Path) -> Mover {
    Mover::new(maps(folder), MoverOptions::default()).unwrap()
}

/// A mover that waits for so long at most, and ends before its step with the number `ends_at`, counted from 0 in `steps`.
pub(crate) fn mover_that_ends(
    folder: &Path,
    ends_at: Option<u64>,
    wait: Duration,
    steps: &Arc<AtomicU64>,
) -> Mover {
    let steps = steps.clone();
    steps.store(0, Ordering::SeqCst);
    let options = MoverOptions {
        wait,
        on_step: Arc::new(move |step| {
            let at = steps.fetch_add(1, Ordering::SeqCst);
            match ends_at == Some(at) {
                true => Err(Error::new(ErrorKind::Closed, format!("ended before {step}"))),
                false => Ok(()),
            }
        }),
        ..MoverOptions::default()
    };
    Mover::new(maps(folder), options).unwrap()
}

pub(crate) fn slots(text: &str) -> SlotSet {
    SlotSet::parse(text).unwrap()
}

/// Two shards, a router, and the folder of their maps.
pub(crate) struct Service {
    pub(crate) nodes: Vec<Server>,
    pub(crate) router: Router,
    mover: Mover,
    pub(crate) folder: tempfile::TempDir,
}

pub(crate) fn service(options: impl Fn(Options) -> Options) -> Service {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(|name| {
        let options = options(Options { shard: Some(name.to_owned()), ..client::options() });
        Server::start(Place::folder(folder.path().join(name)), Role::Primary, options).unwrap()
    });
    let map = folder.path().join("map");
    let mover = mover(&map);
    mover.create(vec![shard("a", &[&nodes[0]]), shard("b", &[&nodes[1]])]).unwrap();
    let router = routed(&map, Policy::Cost);
    Service { nodes: nodes.into(), router, mover, folder }
}

/// bar, hello: slots of a; foo, somekey: slots of b.
#[test]
fn each_request_of_a_run_with_keys_of_another_shard_has_its_own_reply() {
    let service = service(|options| options);
    service.mover.move_slots(&slots("12182"), "a").unwrap();
    let mut client = Client::new(&service.nodes[1]);
    let moved = "-MOVED 12182 a";
    let lines = ["SET somekey 1", "SET foo 2", "SET {somekey}b 3", "SET bar 4", "SET somekey 5"];
    let unowned = "-CLUSTERDOWN Hash slot 5061 is not served by shard b";
    assert_eq!(client.pipeline(&lines), ["OK", moved, "OK", unowned, "OK"]);
    let lines = ["GET somekey", "GET foo", "GET {somekey}b", "GET bar", "GET somekey"];
    assert_eq!(client.pipeline(&lines), ["5", moved, "3", unowned, "5"]);
}

#[test]
fn a_router_splits_and_merges_requests_over_shards() {
    let service = service(|options| options);
    let mut client = Client::at(service.router.address());
    // bar, hello: slots of a; foo, somekey: slots of b.
    for key in ["bar", "foo", "hello", "somekey"] {
        assert_eq!(client.text(&format!("SET {key} {key}1")), "OK");
    }
    assert_eq!(client.text("MGET foo bar none somekey"), "[foo1 bar1 nil somekey1]");
    assert_eq!(client.text("EXISTS foo bar none bar"), "3");
    assert_eq!(client.text("DBSIZE"), "4");
    assert_eq!(client.text("DEL foo bar none"), "2");
    assert!(client.text("MSET foo 1 bar 1").starts_with("-CROSSSLOT "));
    assert_eq!(client.text("MSET {foo}a 1 foo 1"), "OK");
    let replies =
        client.pipeline(&["SET bar 2", "GET foo", "GET bar", "PING", "INCR foo", "GET none"]);
    assert_eq!(replies, ["OK", "1", "2", "PONG", "2", "nil"]);
    let mut keys = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let page = client.text(&format!("SCAN {cursor} COUNT 1 MATCH *o*"));
        let (next, found) = page[1..page.len() - 2].split_once(" [").unwrap();
        keys.extend(found.split(' ').filter(|key| !key.is_empty()).map(str::to_owned));
        cursor = next.to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(keys, ["hello", "foo", "somekey", "{foo}a"]);
    // The first page passes the shard of bar, where nothing begins with x.
    let page = client.text("SCAN 0 COUNT 10 MATCH x*");
    let cursor = page[1..].split(' ').next().unwrap();
    let page = client.text(&format!("SCAN {cursor} COUNT 10 MATCH b*"));
    assert!(page.ends_with(" [bar]]"), "{page}");
    assert!(client.text("SCAN 12345").starts_with("-ERR this cursor is unknown"));
    let map = client.text("SCID.MAP");
    assert!(map.starts_with("[number 1 shards [[shard a slots 0-8191 "), "{map}");
    let nodes = client.text("SCID.NODES");
    assert_eq!(nodes.matches("role primary").count(), 2, "{nodes}");
}

#[test]
fn a_transaction_is_of_one_shard() {
    let service = service(|options| options);
    let mut client = Client::at(service.router.address());
    let replies = client.pipeline(&["MULTI", "PING", "SET foo 1", "INCR {foo}n", "EXEC"]);
    assert_eq!(replies, ["OK", "QUEUED", "QUEUED", "QUEUED", "[PONG OK 1]"]);
    let replies = client.pipeline(&["MULTI", "SET foo 2", "SET bar 2", "EXEC", "MGET foo bar"]);
    assert!(
        replies[2].starts_with("-CROSSSLOT ") && replies[3].starts_with("-EXECABORT"),
        "{replies:?}"
    );
    assert_eq!(replies[4], "[1 nil]");
    assert_eq!(client.pipeline(&["MULTI", "PING", "EXEC"])[2], "[PONG]");
    assert_eq!(client.pipeline(&["MULTI", "PING", "DISCARD", "GET foo"])[2..], ["OK", "1"]);
    let replies =
        client.pipeline(&["WATCH foo", "WATCH bar", "GET bar", "MULTI", "SET foo 3", "EXEC"]);
    assert!(replies[1].starts_with("-CROSSSLOT "), "{replies:?}");
    assert_eq!(replies[2..], ["nil", "OK", "QUEUED", "[OK]"]);
    // The slot of a watched key goes and comes back, and the key is as it was.
    let mut other = Client::at(service.router.address());
    assert_eq!(client.text("WATCH {foo}gone"), "OK");
    service.mover.move_slots(&slots("12182"), "a").unwrap();
    assert_eq!(other.pipeline(&["SET {foo}gone 1", "DEL {foo}gone"]), ["OK", "1"]);
    service.mover.move_slots(&slots("12182"), "b").unwrap();
    assert_eq!(client.pipeline(&["MULTI", "SET foo 4", "EXEC"])[2], "nil");
    // A slot moves between MULTI and EXEC: nothing is done, and the next attempt finds it.
    assert_eq!(client.pipeline(&["MULTI", "SET foo 5"]), ["OK", "QUEUED"]);
    service.mover.move_slots(&slots("12182"), "a").unwrap();
    assert_eq!(client.text("EXEC"), "-MOVED 12182 a");
    assert_eq!(client.pipeline(&["MULTI", "SET foo 5", "EXEC"])[2], "[OK]");
}

#[test]
fn times_large_values_and_partitions_move_with_their_slots() {
    let service = service(|options| Options { expiring: vec!["due".to_owned()], ..options });
    let mut client = Client::at(service.router.address());
    let large = "x".repeat(3 << 20);
    assert_eq!(client.text(&format!("SET foo {large}")), "OK");
    assert_eq!(
        client.pipeline(&["SELECT due", "SET foo 1 EX 1000", "SET {foo}b 2"])[1..],
        ["OK", "OK"]
    );
    let moved = service.mover.move_slots(&slots("12182"), "a").unwrap();
    assert_eq!(moved.entries, 3);
    assert!(moved.bytes > 3 << 20);
    assert_eq!(client.text("SET foo 3 KEEPTTL GET"), "1");
    let stored = service.nodes[0].address();
    let mut direct = Client::at(stored);
    assert_eq!(direct.pipeline(&["SELECT due", "MGET foo {foo}b"])[1], "[3 2]");
    assert_eq!(client.pipeline(&["SELECT 0", "STRLEN foo"])[1], large.len().to_string());
    let mut old = Client::at(service.nodes[1].address());
    assert_eq!(old.text("GET foo"), "-MOVED 12182 a");
    // Its entries go, in the background.
    while old.text("SCID.MAP").contains("leftover 12182") {
        std::thread::yield_now();
    }
}

#[test]
fn a_deleted_key_does_not_come_back_with_its_slot() {
    let service = service(|options| options);
    let mut client = Client::at(service.router.address());
    for round in 0..3 {
        // More than the background removes before the slot is back.
        for key in 0..50 {
            assert_eq!(client.text(&format!("SET {{foo}}{key} {round}")), "OK");
        }
        service.mover.move_slots(&slots("12182"), "a").unwrap();
        assert_eq!(client.text("DEL {foo}7 {foo}8"), "2");
        service.mover.move_slots(&slots("12182"), "b").unwrap();
        assert_eq!(client.text("MGET {foo}7 {foo}8 {foo}9"), format!("[nil nil {round}]"));
    }
}

#[test]
fn slots_of_buckets_move_and_their_readers_follow() {
    let folder = tempfile::tempdir().unwrap();
    let roles = [Role::Primary, Role::Reader];
    let a = roles.map(|role| in_bucket(folder.path(), "a", role));
    let b = roles.map(|role| in_bucket(folder.path(), "b", role));
    let maps = Maps::open(&format!("file://{}", folder.path().join("maps").display())).unwrap();
    let mover = Mover::new(maps, MoverOptions::default()).unwrap();
    mover.create(vec![shard("a", &[&a[0], &a[1]]), shard("b", &[&b[0], &b[1]])]).unwrap();
    let router = routed(&folder.path().join("maps"), Policy::Cost);
    let mut client = Client::at(router.address());
    assert_eq!(client.pipeline(&["SET foo 1", "SET bar 2"]), ["OK", "OK"]);
    mover.move_slots(&slots("12182"), "a").unwrap();
    for (line, expected) in [
        ("SCID.GET foo LEVEL 1", "1"),
        ("SCID.GET foo LEVEL 3", "1"),
        ("GET foo", "1"),
        ("MGET bar foo", "[2 1]"),
        ("INCR foo", "2"),
        ("SCID.GET foo LEVEL 1", "2"),
        ("SCID.GET foo LEVEL 2 MAXAGE 0", "2"),
    ] {
        assert_eq!(client.text(line), expected, "{line}");
    }
    assert_eq!(Client::new(&b[1]).text("SCID.GET foo LEVEL 1"), "-MOVED 12182 a");
    let said = Client::new(&b[1]).text("SCID.MAP");
    assert!(said.starts_with("[shard b slots 8192-12181,12183-16383 "), "{said}");
}

/// A node of a shard whose database is in a bucket.
fn in_bucket(folder: &Path, name: &str, role: Role) -> Server {
    let url = format!("file://{}", folder.join(format!("bucket-{name}")).display());
    let local = (role == Role::Primary).then(|| folder.join(name));
    let place = Place::bucket(remote::Remote::url(&url).unwrap(), local);
    let options = Options { shard: Some(name.to_owned()), ..client::options() };
    Server::start(place, role, Options { acknowledge: Acknowledge::Sync, ..options }).unwrap()
}

#[test]
fn a_partition_that_expires_on_one_side_alone_is_not_moved() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        shard: Some("a".to_owned()),
        expiring: vec!["due".to_owned()],
        ..client::options()
    };
    let a = Server::start(Place::folder(folder.path().join("a")), Role::Primary, options).unwrap();
    let b = node(&folder.path().join("b"), Role::Primary, "b");
    let map = folder.path().join("map");
    mover(&map).create(vec![shard("a", &[&a]), shard("b", &[&b])]).unwrap();
    let mut client = Client::new(&a);
    assert_eq!(client.pipeline(&["SELECT due", "SET bar 1 EX 100"])[1], "OK");
    let refused = mover(&map).move_slots(&slots("5061"), "b").unwrap_err().to_string();
    assert!(refused.contains("--expire due"), "{refused}");
    let second = mover(&map).move_slots(&slots("5062"), "b").unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Conflict, "{second}");
    assert_eq!(client.text("GET bar"), "1");
    assert_eq!(mover(&map).resume(true).unwrap(), None);
    assert_eq!(mover(&map).move_slots(&slots("5062"), "b").unwrap().entries, 0);
}

#[test]
fn a_database_with_keys_becomes_the_only_shard_first() {
    let folder = tempfile::tempdir().unwrap();
    let one = crate::client::primary(&folder.path().join("a"));
    let mut client = Client::new(&one);
    assert_eq!(client.pipeline(&["SET foo 1", "SET bar 2"]), ["OK", "OK"]);
    assert_eq!(client.text("SCID.MAP"), "nil");
    assert!(client.text("SCID.SLOTS SET 1 0-1").contains("--shard"));
    drop(client);
    drop(one);
    let a = node(&folder.path().join("a"), Role::Primary, "a");
    let b = node(&folder.path().join("b"), Role::Primary, "b");
    let map = folder.path().join("map");
    let both = vec![shard("a", &[&a]), shard("b", &[&b])];
    let refused = mover(&folder.path().join("other")).create(both).unwrap_err().to_string();
    assert!(refused.contains("a key of another slot, foo in partition default"), "{refused}");
    mover(&map).create(vec![shard("a", &[&a])]).unwrap();
    assert_eq!(Client::new(&a).text("MGET foo bar"), "[1 2]");
    let wrong = mover(&map).add(shard("c", &[&b]));
    assert!(wrong.is_err());
    mover(&map).add(shard("b", &[&b])).unwrap();
    mover(&map).move_slots(&slots("8192-16383"), "b").unwrap();
    assert_eq!(Client::new(&b).text("GET foo"), "1");
    let (_, said) = mover(&map).show().unwrap();
    assert!(said[0].contains("slots=0-8191"), "{said:?}");
    // The name of a shard is in its database.
    drop(b);
    let options = Options { shard: Some("c".to_owned()), ..client::options() };
    let refused =
        Server::start(Place::folder(folder.path().join("b")), Role::Primary, options).err();
    assert!(refused.unwrap().to_string().contains("this database is shard b, and not c"));
    // It is one without the option, too.
    let b = crate::client::primary(&folder.path().join("b"));
    assert!(Client::new(&b).text("GET bar").starts_with("-CLUSTERDOWN "));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it damages objects of a folder")]
fn damaged_and_missing_maps_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let a = node(&folder.path().join("a"), Role::Primary, "a");
    let map = folder.path().join("map");
    mover(&map).create(vec![shard("a", &[&a])]).unwrap();
    mover(&map).add(shard("a", &[&a])).unwrap();
    let first = map.join(format!("shards/{:020}", 1));
    let second = map.join(format!("shards/{:020}", 2));
    let sound = std::fs::read(&second).unwrap();
    std::fs::write(&second, &sound[..30]).unwrap();
    let error = maps(&map).latest().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.to_string().contains("shards/00000000000000000002"), "{error}");
    std::fs::write(&second, &sound).unwrap();
    std::fs::rename(&first, map.join("kept")).unwrap();
    let error = maps(&map).latest().unwrap_err().to_string();
    assert!(
        error.contains("the object is missing") && error.contains("shards/00000000000000000001"),
        "{error}"
    );
}

#[test]
fn pages_show_shards_and_slots() {
    let service = service(|options| Options { http: Some("127.0.0.1:0".to_owned()), ..options });
    let text = get(service.nodes[0].http_address().unwrap(), "/metrics");
    assert!(
        text.contains("siltstone_server_shard_slots{shard=\"a\",state=\"owned\"} 8192"),
        "{text}"
    );
    let text = get(service.nodes[1].http_address().unwrap(), "/");
    assert!(text.contains("Slots of shard b") && text.contains("8192-16383"), "{text}");
    service.mover.move_slots(&slots("0-9"), "b").unwrap();
    // The router reads the map after a refusal.
    let mut client = Client::at(service.router.address());
    let mut keys = (0..100_000).map(|at| format!("key{at}"));
    let key = keys.find(|it| slot_of(it.as_bytes()) < 10).unwrap();
    assert_eq!(client.text(&format!("GET {key}")), "nil");
    let pages = service.router.http_address().unwrap();
    let text = get(pages, "/metrics");
    for line in ["map_number 4", "moving_slots 0", "shard_slots{shard=\"b\"} 8202"] {
        assert!(text.contains(&format!("siltstone_router_{line}\n")), "{line}: {text}");
    }
    assert!(!text.contains("siltstone_router_moved_requests_total 0\n"), "{text}");
    let text = get(pages, "/");
    assert!(text.contains("Shards") && text.contains("0-9,8192-16383"), "{text}");
}

#[test]
fn a_shard_refuses_keys_of_other_slots() {
    let folder = tempfile::tempdir().unwrap();
    let a = node(&folder.path().join("a"), Role::Primary, "a");
    let reader = node(&folder.path().join("a"), Role::Reader, "a");
    let b = node(&folder.path().join("b"), Role::Primary, "b");
    let mut to_a = Client::new(&a);
    assert_eq!(to_a.text("SET foo 1"), "-CLUSTERDOWN Hash slot 12182 is not served by shard a");
    let mover = mover(&folder.path().join("map"));
    mover.create(vec![shard("a", &[&a, &reader]), shard("b", &[&b])]).unwrap();
    // bar has slot 5061, foo 12182.
    assert_eq!(to_a.text("SET bar 1"), "OK");
    assert_eq!(to_a.text("GET foo"), "-CLUSTERDOWN Hash slot 12182 is not served by shard a");
    assert!(to_a.text("MGET foo bar").starts_with("-CROSSSLOT "));
    assert_eq!(to_a.text("MGET bar {bar}x"), "[1 nil]");
    assert_eq!(
        to_a.pipeline(&["MULTI", "SET bar 2", "SET foo 1", "EXEC"])[2..][..1][0][..12],
        *"-CLUSTERDOWN"
    );
    assert_eq!(to_a.text("GET bar"), "1");
    let mut to_reader = Client::new(&reader);
    assert_eq!(to_reader.text("GET bar"), "1");
    assert_eq!(to_reader.text("GET foo"), "-CLUSTERDOWN Hash slot 12182 is not served by shard a");
    let mut to_b = Client::new(&b);
    assert_eq!(to_b.text("SET foo 1"), "OK");
    let moved = mover.move_slots(&slots("5000-5100"), "b").unwrap();
    assert_eq!(moved.entries, 1);
    assert_eq!(slot_of(b"bar"), 5061);
    for client in [&mut to_a, &mut to_reader] {
        assert_eq!(client.text("GET bar"), "-MOVED 5061 b");
    }
    assert_eq!(to_b.text("MGET bar foo"), "[1 1]");
    assert_eq!(to_b.text("SCAN 0"), "[0 [bar foo]]");
    assert_eq!(to_a.text("SCAN 0"), "[0 []]");
}

#[test]
fn a_node_of_another_shard_takes_nothing_over() {
    let folder = tempfile::tempdir().unwrap();
    let a = folder.path().join("a");
    let one = crate::client::primary(&a);
    // It is no shard yet.
    let early = node(&a, Role::Reader, "b");
    drop(one);
    let one = node(&a, Role::Primary, "a");
    mover(&folder.path().join("map")).create(vec![shard("a", &[&one])]).unwrap();
    let mut client = Client::new(&one);
    assert_eq!(client.text("SET foo 1"), "OK");
    let wrong = "this database is shard a, and not b";
    assert!(Client::new(&early).text("SCID.PROMOTE").contains(wrong));
    assert_eq!(client.text("SET foo 2"), "OK");
    let options = Options { shard: Some("b".to_owned()), ..client::options() };
    let refused = Server::start(Place::folder(&a), Role::Reader, options).err();
    assert!(refused.unwrap().to_string().contains(wrong));
    assert_eq!(client.text("INCR foo"), "3");
}
