//! Long values that a router reads from several nodes at once.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use server::{
    Cluster, ClusterOptions, Limits, Nodes, Options, Place, Policy, Role, Router, RouterOptions,
    Server, Users,
};
use testkit::Rng;

use crate::client::{Client, encoded, text, until};
use crate::pages::get;
use crate::route::{node, usual};
use crate::streams::{bytes, large, long, small};

const MIB: usize = 1 << 20;

fn start(folder: &Path, role: Role) -> Server {
    let limits = Limits { drain: Duration::ZERO, ..small() };
    let options = Options { follow: Some(Duration::from_millis(5)), ..large(limits) };
    Server::start(Place::folder(folder), role, options).unwrap()
}

/// A primary and three readers.
fn nodes(folder: &Path) -> Vec<Server> {
    let roles = [Role::Primary, Role::Reader, Role::Reader, Role::Reader];
    roles.map(|role| start(folder, role)).into()
}

/// A router that reads values from 2 MiB on from up to four nodes.
fn routed(nodes: &[Server], policy: Policy) -> Router {
    let addresses = nodes.iter().map(|it| it.address().to_string()).collect();
    let mut options = ClusterOptions::new(Nodes::List(addresses));
    options.policy = policy;
    options.parallel_bytes = 2 << 20;
    let any = "127.0.0.1:0".to_owned();
    let listening = RouterOptions { listen: any.clone(), http: Some(any), ..Default::default() };
    let router = Router::start_with(Cluster::new(options).unwrap(), listening).unwrap();
    let mut client = Client::at(router.address());
    until("the router knows its nodes", || {
        let known = client.text("SCID.NODES");
        known.matches("role reader").count() + known.matches("role primary").count() == nodes.len()
    });
    router
}

fn set(client: &mut Client, key: &str, value: &[u8]) {
    client.send(&encoded(&[b"SET", key.as_bytes(), value]));
    assert_eq!(text(&client.receive().unwrap()), "OK");
}

/// The sample of a page that begins with `name`; 0 without one.
fn sample(http: Option<SocketAddr>, name: &str) -> u64 {
    let page = get(http.unwrap(), "/metrics");
    let line = page.lines().find(|line| line.starts_with(name));
    line.map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

fn parts(server: &Server) -> u64 {
    sample(server.http_address(), "siltstone_server_command_seconds_count{command=\"SCID.PART\"}")
}

fn parallel_reads(router: &Router) -> u64 {
    sample(router.http_address(), "siltstone_router_parallel_reads_total")
}

#[test]
fn a_long_value_comes_from_several_nodes_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = nodes(folder.path());
    let router = routed(&nodes, Policy::Optimal);
    let mut client = Client::at(router.address());
    let value = long(1, 6 * MIB + 1);
    set(&mut client, "a", &value);
    until("each node has sent parts", || {
        assert!(bytes(Some(client.run("SCID.GET a LEVEL 1"))) == value);
        assert!(client.text("SCID.LAST").contains("level 1"), "that of the first node");
        nodes.iter().all(|node| parts(node) > 0)
    });
    let before = parallel_reads(&router);
    assert!(bytes(Some(client.run("GET a"))) == value);
    for (begin, end) in [(1, 3 * MIB), (MIB - 1, 5 * MIB), (3 * MIB + 7, value.len() - 1)] {
        let found = bytes(Some(client.run(&format!("GETRANGE a {begin} {end}"))));
        assert!(found == value[begin..=end], "{begin} {end}");
    }
    assert_eq!(parallel_reads(&router), before + 4);
    // These are of one node: pipelines, short parts, a reply with an attribute, reads of a transaction.
    client.send(&[encoded(&["GET", "a"]), encoded(&["GET", "a"])].concat());
    assert!((0..2).all(|_| bytes(client.receive()) == value));
    assert!(bytes(Some(client.run("GETRANGE a 5 2000000"))) == value[5..=2_000_000]);
    assert!(bytes(Some(client.run("SCID.GET a ATTRIBUTE"))) == value);
    assert_eq!(client.text("WATCH a"), "OK");
    assert!(bytes(Some(client.run("GET a"))) == value);
    assert_eq!(client.text("UNWATCH"), "OK");
    assert_eq!(parallel_reads(&router), before + 4);
    assert!(bytes(Some(client.run("GET a"))) == value);
    assert_eq!(parallel_reads(&router), before + 5);
    router.stop();
}

/// The value of the key `a` at a time: words of its number and of their place.
fn written(number: u64) -> Vec<u8> {
    (0..400_000_u64).flat_map(|place| (number << 32 | place).to_le_bytes()).collect()
}

/// The number of a value that is of one write.
fn number_of(value: &[u8]) -> u64 {
    let words: Vec<u64> =
        value.as_chunks().0.iter().map(|word: &[u8; 8]| u64::from_le_bytes(*word)).collect();
    let number = words[0] >> 32;
    let is_one = (0..400_000).zip(&words).all(|(place, word)| *word == number << 32 | place);
    assert!(is_one && words.len() == 400_000, "parts of value {number} and of others");
    number
}

fn refused_parts(routers: &[Router]) -> u64 {
    let name = "siltstone_router_refused_parts_total";
    routers.iter().map(|router| sample(router.http_address(), name)).sum()
}

#[test]
fn parts_of_two_versions_are_never_mixed() {
    const ROUNDS: u64 = 25;
    // As many as it takes until a node has another version.
    const ROUNDS_MAX: u64 = 2000;
    let folder = tempfile::tempdir().unwrap();
    let nodes = nodes(folder.path());
    let routers = [Policy::Optimal, Policy::Offloaded].map(|policy| routed(&nodes, policy));
    set(&mut Client::new(&nodes[0]), "a", &written(0));
    // A read at level 5 sees it at each reader from then on.
    for node in &nodes {
        assert!(!Client::new(node).text("SCID.SYNC").starts_with('-'));
    }
    // The last value that is surely there.
    let sure = AtomicU64::new(0);
    let readers = AtomicU64::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let address = routers[thread % 2].address();
            let sure = &sure;
            let readers = &readers;
            let routers = &routers;
            scope.spawn(move || {
                let _running = Running(readers);
                let mut client = Client::at(address);
                let mut rng = Rng::from_env_or(thread as u64);
                for round in 0..ROUNDS_MAX {
                    if round >= ROUNDS && refused_parts(routers) > 0 {
                        break;
                    }
                    let before = sure.load(Ordering::SeqCst);
                    let is_strong = rng.chance(1, 2);
                    let line = if is_strong { "SCID.GET a LEVEL 1" } else { "SCID.GET a LEVEL 5" };
                    let number = number_of(&bytes(Some(client.run(line))));
                    assert!(!is_strong || number >= before, "{number} of {before} at level 1");
                }
            });
        }
        let mut client = Client::new(&nodes[0]);
        for number in 1.. {
            if readers.load(Ordering::SeqCst) == 0 {
                break;
            }
            set(&mut client, "a", &written(number));
            sure.store(number, Ordering::SeqCst);
        }
    });
    assert!(routers.iter().all(|router| parallel_reads(router) > 0));
    assert!(refused_parts(&routers) > 0, "some node had another version");
    routers.into_iter().for_each(Router::stop);
}

/// A thread that reads, until it ends or fails.
struct Running<'a>(&'a AtomicU64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn part(version: &str, begin: usize, end: usize) -> String {
    format!("SCID.PART a {version} {begin} {end}")
}

#[test]
fn a_part_is_of_the_version_that_was_announced() {
    let folder = tempfile::tempdir().unwrap();
    let primary = start(folder.path(), Role::Primary);
    let options = Options { follow: None, ..large(small()) };
    let reader = Server::start(Place::folder(folder.path()), Role::Reader, options).unwrap();
    let mut client = Client::new(&primary);
    let [old, new] = [1, 2].map(|seed| long(seed, 3 * MIB));
    set(&mut client, "a", &old);
    assert_eq!(client.text("SCID.PARTS 2000000"), "OK");
    let announced = client.text("GET a");
    let version = announced.trim_start_matches('[').split(' ').next().unwrap().to_owned();
    assert_eq!(announced, format!("[{version} 0 3145728]"));
    let mut other = Client::new(&primary);
    set(&mut other, "a", &new);
    // The connection that announced it has it still, and no other.
    let middle = bytes(Some(client.run(&part(&version, MIB, 2 * MIB))));
    assert!(middle == old[MIB..2 * MIB]);
    assert!(other.text(&part(&version, 0, MIB)).starts_with("-CHANGED "));
    for (begin, end, refusal) in [
        (0, MIB + 1, "-LIMIT a part has at most 1048576 bytes"),
        (3 * MIB - 1, 3 * MIB + 1, "-ERR the value has no such part"),
        (2, 1, "-ERR the value has no such part"),
    ] {
        assert_eq!(client.text(&part(&version, begin, end)), refusal);
    }
    assert_eq!(client.text("PING"), "PONG");
    assert!(
        client.text(&part(&version, 0, MIB)).starts_with("-CHANGED "),
        "another command gives it up"
    );
    // A reader that is late catches up with the token.
    let announced = client.text("GET a");
    let version = announced.trim_start_matches('[').split(' ').next().unwrap().to_owned();
    let token = client.text("SCID.TOKEN");
    let line = format!("SCID.PART a {version} 0 1048576");
    let mut reading = Client::new(&reader);
    assert_eq!(reading.text("SCID.LEVEL 5"), "OK");
    assert!(reading.text(&line).starts_with("-CHANGED "));
    assert!(bytes(Some(reading.run(&format!("{line} TOKEN {token}")))) == new[..MIB]);
    assert_eq!(client.text("SCID.PARTS 0"), "OK");
    assert!(bytes(Some(client.run("GET a"))) == new);
    reader.stop().unwrap();
    primary.stop().unwrap();
}

#[test]
fn parts_need_the_right_to_read() {
    let folder = tempfile::tempdir().unwrap();
    let users = Users::parse("one a read=posts\ntwo b write=*").unwrap();
    let options = Options { users, ..large(small()) };
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    let mut client = Client::new(&server);
    assert!(client.text("SCID.PART a 0 0 1").starts_with("-NOAUTH"));
    assert_eq!(client.text("AUTH one a"), "OK");
    assert!(client.text("SCID.PART a 0 0 1").starts_with("-NOPERM"));
    assert_eq!(client.text("AUTH two b"), "OK");
    assert!(client.text("SCID.PART a 0 0 1").starts_with("-CHANGED"));
    assert_eq!(client.text("MULTI"), "OK");
    assert!(client.text("SCID.PART a 0 0 1").starts_with("-ERR SCID.PART is not supported in a"));
    server.stop().unwrap();
}

/// A client that has read a part of a long value.
fn begun(router: &Router, level: &str) -> (Client, Vec<u8>) {
    use std::io::Read;
    let client = Client::at(router.address());
    client.stream().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut client = client;
    client.send(&encoded(&["SCID.GET", "a", "LEVEL", level]));
    let mut begin = vec![0; MIB];
    let mut stream = client.stream();
    stream.read_exact(&mut begin).unwrap();
    (client, begin)
}

fn rest(client: &Client) -> Vec<u8> {
    use std::io::Read;
    let mut found = Vec::new();
    let mut bytes = vec![0; MIB];
    let mut stream = client.stream();
    loop {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return found,
            Ok(len) => found.extend_from_slice(&bytes[..len]),
        }
        if found.ends_with(b"the end\r\n") {
            return found;
        }
    }
}

#[test]
fn a_value_comes_whole_as_long_as_one_of_its_nodes_lives() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = nodes(folder.path());
    let router = routed(&nodes, Policy::Optimal);
    let mut value = long(3, 40 * MIB);
    value[40 * MIB - 7..].copy_from_slice(b"the end");
    set(&mut Client::new(&nodes[0]), "a", &value);
    let expected = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    let read_before = parallel_reads(&router);
    let (client, mut found) = begun(&router, "1");
    // The one that was asked for it, and two of the readers.
    drop(nodes.drain(..3));
    found.extend(rest(&client));
    assert!(found == expected, "{} of {} bytes", found.len(), expected.len());
    assert_eq!(parallel_reads(&router), read_before + 1);
    nodes.push(start(folder.path(), Role::Reader));
    router.stop();
    // Without any of them the connection ends, and what came is the begin of the value.
    let router = routed(&nodes, Policy::Offloaded);
    let (client, mut found) = begun(&router, "5");
    nodes.clear();
    found.extend(rest(&client));
    assert!(found.len() < expected.len() && expected.starts_with(&found));
    router.stop();
}

/// A node that announces the value `abcde` of a key, and sends it in parts.
fn announcing(words: &[String]) -> Vec<u8> {
    match words[0].as_str() {
        "GET" => b"*3\r\n$1\r\nv\r\n:0\r\n:5\r\n".to_vec(),
        "SCID.PART" => b"$5\r\nabcde\r\n".to_vec(),
        _ => usual("master", words),
    }
}

/// A reader that has a value of so many bytes.
fn having(len: usize) -> SocketAddr {
    node(move |words| match words[0].as_str() {
        "GET" | "SCID.GET" => {
            Some([format!("${len}\r\n").as_bytes(), &vec![b'x'; len], b"\r\n"].concat())
        }
        _ => Some(usual("slave", words)),
    })
}

/// A router of a node that announces values, and of a reader.
fn routed_to(nodes: [SocketAddr; 2]) -> Router {
    let mut options = ClusterOptions::new(Nodes::List(nodes.map(|it| it.to_string()).into()));
    options.policy = Policy::Optimal;
    let listening = RouterOptions { listen: "127.0.0.1:0".to_owned(), ..Default::default() };
    let router = Router::start_with(Cluster::new(options).unwrap(), listening).unwrap();
    let mut client = Client::at(router.address());
    until("the router knows its nodes", || !client.text("SCID.NODES").contains("role down"));
    router
}

#[test]
fn a_read_whose_node_is_lost_after_its_announcement_is_made_again() {
    let gets = AtomicU64::new(0);
    let first = node(move |words| match words[0].as_str() {
        "GET" if gets.fetch_add(1, Ordering::SeqCst) > 0 => Some(b"$5\r\nabcde\r\n".to_vec()),
        // It comes with the first GET, after it.
        "SCID.TOKEN" if gets.load(Ordering::SeqCst) == 1 => None,
        _ => Some(announcing(words)),
    });
    let router = routed_to([first, having(5)]);
    let mut client = Client::at(router.address());
    let found = client.text("GET a");
    assert!(["abcde", "xxxxx"].contains(&found.as_str()), "{found}");
    router.stop();
}

#[test]
fn an_announcement_is_no_reply_also_if_much_waits_for_the_client() {
    let len = MIB - 22;
    let router = routed_to([node(|words| Some(announcing(words))), having(len)]);
    let mut client = Client::at(router.address());
    client.send(&[encoded(&["SCID.GET", "b", "LEVEL", "5"]), encoded(&["GET", "a"])].concat());
    assert_eq!(bytes(client.receive()).len(), len);
    assert_eq!(&bytes(client.receive())[..], b"abcde");
    router.stop();
}

/// Its reply would be waited for until the end of the test.
#[test]
fn a_part_comes_from_another_node_if_one_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let first = start(folder.path(), Role::Primary);
    let hanging = node(|words| match words[0].as_str() {
        "SCID.PART" => loop {
            std::thread::park();
        },
        _ => Some(usual("slave", words)),
    });
    let nodes = [first.address(), hanging].map(|it| it.to_string());
    let mut options = ClusterOptions::new(Nodes::List(nodes.into()));
    options.policy = Policy::Optimal;
    options.parallel_bytes = 2 << 20;
    options.reply = Duration::from_secs(600);
    let router =
        Router::start("127.0.0.1:0", Cluster::new(options).unwrap(), Limits::default()).unwrap();
    let mut client = Client::at(router.address());
    until("the router knows its nodes", || !client.text("SCID.NODES").contains("role down"));
    let value = long(4, 12 * MIB);
    set(&mut client, "a", &value);
    client.stream().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert!(bytes(Some(client.run("SCID.GET a LEVEL 1"))) == value);
    // The connection is sound.
    assert_eq!(client.text("STRLEN a"), value.len().to_string());
    router.stop();
}
