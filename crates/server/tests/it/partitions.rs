//! Guarantees over partitions of the network: between clients, router, nodes and bucket, in one direction or in both, while
//! primaries are killed and taken over, and readers start and stop.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::park_timeout;
use std::time::Duration;

use remote::{Remote, Store, Timer};
use server::{
    Acknowledge, Cluster, ClusterOptions, Limits, Nodes, Options, Place, Policy, Role, Router,
    Server,
};
use siltstone::clock::{Clock, SystemClock};
use testkit::Rng;
use testkit::linear::{Operation, RegisterCall, check_registers};

use crate::client::{Client, options, until};
use crate::histories::{checked, last_value, value};
use crate::linear::now;
use crate::network::{CUT, Caller, CutStore, DELAY, DROP, HOLD, Link, PASS};
use crate::newest::run;

const NODES: usize = 4;
pub(crate) const THREADS: usize = 4;
pub(crate) const LEASE: Duration = Duration::from_millis(300);
/// The bound of reads at level 2.
const AGE: Duration = Duration::from_millis(400);
const ROUND: Duration = Duration::from_secs(6);
/// The seconds of all rounds; `PARTITION_SECONDS` sets another number.
const SECONDS: u64 = 30;

/// A node, its way to the bucket, and the proxy before it.
pub(crate) struct Node {
    pub(crate) store: Arc<CutStore>,
    folder: tempfile::TempDir,
    pub(crate) server: Option<Server>,
    address: SocketAddr,
    pub(crate) link: Link,
    /// That of its database.
    shard: Option<&'static str>,
}

fn reached(store: Arc<CutStore>, lease: Duration) -> Remote {
    let remote = Remote::with_store(store).read_lease(lease).patience(LEASE);
    remote.interval(Duration::from_millis(20))
}

fn start(remote: Remote, folder: &Path, role: Role, mut options: Options) -> Server {
    options.acknowledge = Acknowledge::Sync;
    options.limits = Limits { drain: Duration::ZERO, ..Limits::default() };
    options.follow = Some(Duration::from_millis(20));
    options.wait = LEASE;
    options.http = Some("127.0.0.1:0".to_owned());
    Server::start(Place::bucket(remote, Some(folder.to_owned())), role, options).unwrap()
}

impl Node {
    pub(crate) fn new(
        bucket: &Arc<dyn Store>,
        role: Role,
        shard: Option<&'static str>,
        lease: Duration,
    ) -> Node {
        let store = CutStore::new(bucket.clone());
        let folder = tempfile::tempdir().unwrap();
        let link = Link::unled();
        // Readers ask it through the link, too.
        let announce = Some(link.address.to_string());
        let options = Options { shard: shard.map(str::to_owned), announce, ..options() };
        let server = start(reached(store.clone(), lease), folder.path(), role, options);
        let address = server.address();
        link.lead_to(address);
        Node { store, folder, server: Some(server), address, link, shard }
    }

    /// Ends the node, as a kill does: with its bucket cut off, so that nothing of it is stored any more.
    pub(crate) fn kill(&mut self) {
        self.store.modes.set(CUT, CUT);
        drop(self.server.take());
        self.store.modes.set(PASS, PASS);
    }

    pub(crate) fn restart(&mut self) {
        if self.server.is_none() {
            // A start that the bucket does not answer fails.
            self.store.modes.set(PASS, PASS);
            let remote = reached(self.store.clone(), LEASE);
            let shard = self.shard.map(str::to_owned);
            let announce = Some(self.link.address.to_string());
            let listen = self.address.to_string();
            let options = Options { listen, announce, shard, ..options() };
            self.server = Some(start(remote, self.folder.path(), Role::Reader, options));
        }
    }

    pub(crate) fn promote(&self) -> Option<String> {
        Caller::new(self.address, 20 * LEASE).ask("SCID.PROMOTE")
    }
}

/// The counter of one client, which it alone writes, in two keys.
///
/// A write whose outcome is not known may come at any time, also after later ones. So the counter goes on in other keys then.
#[derive(Clone, Default)]
struct Counter {
    /// That of the keys.
    generation: u64,
    /// The values that are surely there, and since when.
    sure: Vec<(Duration, u64)>,
    /// The last one that may be there.
    most: u64,
    /// That of the last sure one.
    token: Option<String>,
}

impl Counter {
    /// Its keys, as the one of the client `thread`.
    fn keys(&self, thread: usize) -> [String; 2] {
        ["a", "b"].map(|name| format!("{name}{}{{t{thread}}}", self.generation))
    }

    fn sure_at(&self, time: Duration) -> u64 {
        self.sure.iter().rev().find(|(at, _)| *at <= time).map_or(0, |(_, value)| *value)
    }
}

/// The observations of the clients of a round.
pub(crate) struct Histories {
    clock: SystemClock,
    pub(crate) registers: Mutex<Vec<Operation>>,
    counters: Vec<Mutex<Counter>>,
    pub(crate) is_over: AtomicBool,
    pub(crate) replies: AtomicU64,
}

/// Returns whether a write is surely not there.
fn is_refused(reply: &str) -> bool {
    const WORDS: [&str; 5] =
        ["-READONLY this server is a", "-MOVED ", "-TRYAGAIN ", "-CLUSTERDOWN ", "-CROSSSLOT "];
    WORDS.iter().any(|word| reply.starts_with(word))
}

impl Histories {
    pub(crate) fn new() -> Histories {
        Histories {
            clock: SystemClock::new(),
            registers: Mutex::default(),
            counters: (0..THREADS).map(|_| Mutex::default()).collect(),
            is_over: AtomicBool::new(false),
            replies: AtomicU64::new(0),
        }
    }

    /// Calls of one client until the round is over. Half of them go the first of its ways, through a router.
    pub(crate) fn calls(&self, callers: &mut [Caller], rng: &mut Rng, thread: usize) {
        for next in (1 + thread as u64..).step_by(THREADS) {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let way = if rng.chance(1, 2) { 0 } else { rng.index(callers.len()) };
            let caller = &mut callers[way];
            match rng.below(5) {
                0 => self.count(caller, thread, next),
                1 => self.look(caller, rng),
                _ => self.register(caller, rng, next),
            }
        }
    }

    /// A write, or a read at level 1, of a register.
    fn register(&self, caller: &mut Caller, rng: &mut Rng, next: u64) {
        let key = rng.below(3);
        let begun = now();
        let (call, is_known) = if rng.chance(1, 2) {
            let found = value(caller.ask(&format!("SCID.GET k{{t{key}}} LEVEL 1")));
            let Some(found) = found else { return };
            (RegisterCall::Read(found), true)
        } else {
            let reply = caller.ask(&format!("SET k{{t{key}}} {next}"));
            if reply.as_ref().is_some_and(|it| is_refused(it)) {
                return;
            }
            (RegisterCall::Write(next), reply.as_deref() == Some("OK"))
        };
        let ended = is_known.then(now);
        self.replies.fetch_add(u64::from(is_known), Ordering::SeqCst);
        self.registers.lock().unwrap().push(Operation { key, call, begun, ended });
    }

    /// Counts the own counter up.
    fn count(&self, caller: &mut Caller, thread: usize, next: u64) {
        let mut own = self.counters[thread].lock().unwrap();
        own.most = next;
        let [a, b] = own.keys(thread);
        // Others read the bounds meanwhile.
        drop(own);
        let reply = caller.ask(&format!("MSET {a} {next} {b} {next}"));
        if reply.as_deref() != Some("OK") {
            if !reply.is_some_and(|it| is_refused(&it)) {
                own = self.counters[thread].lock().unwrap();
                own.generation += 1;
                own.sure.clear();
                own.token = None;
            }
            return;
        }
        let token = caller.ask("SCID.TOKEN").filter(|it| !it.starts_with('-') && it != "nil");
        own = self.counters[thread].lock().unwrap();
        own.sure.push((self.clock.now(), next));
        // Without one, the token of a value before is that of less.
        own.token = token;
    }

    /// A read of a counter at level 2 or 3, or of both of its keys at level 4.
    fn look(&self, caller: &mut Caller, rng: &mut Rng) {
        let other = rng.index(THREADS);
        let before = self.counters[other].lock().unwrap().clone();
        let [a, b] = before.keys(other);
        let begun = self.clock.now();
        let (least, found) = match rng.below(3) {
            0 => {
                let line = format!("SCID.GET {a} LEVEL 2 MAXAGE {}", AGE.as_millis());
                (before.sure_at(begun.saturating_sub(AGE)), value(caller.ask(&line)))
            }
            1 => {
                let Some(token) = &before.token else { return };
                let least = before.sure_at(begun);
                (least, value(caller.ask(&format!("SCID.GET {a} TOKEN {token}"))))
            }
            _ => {
                if caller.ask("SCID.LEVEL 4").as_deref() != Some("OK") {
                    return;
                }
                let both = caller.ask(&format!("MGET {a} {b}"));
                caller.ask("SCID.LEVEL AUTO");
                let Some(both) = both.filter(|it| it.starts_with('[')) else { return };
                let words: Vec<&str> = both.trim_matches(['[', ']']).split(' ').collect();
                assert_eq!(words[0], words[1], "half of a commit is seen");
                (0, value(Some(words[0].to_owned())))
            }
        };
        let Some(found) = found else { return };
        let most = self.counters[other].lock().unwrap().most;
        assert!((least..=most).contains(&found), "{found} is not within {least} and {most}");
        self.replies.fetch_add(1, Ordering::SeqCst);
    }
}

/// A random mode: mostly one that lets pass.
pub(crate) fn mode(rng: &mut Rng) -> u8 {
    *rng.pick(&[PASS, PASS, DELAY, HOLD, DROP, CUT])
}

/// Breaks links, kills, promotes and restarts nodes until the round is over, and heals all then.
fn disturb(nodes: &mut [Node], front: &Link, rng: &mut Rng, histories: &Histories) {
    // Also after a panic: the clients would go on for ever.
    let _over = SetAtEnd(&histories.is_over);
    let clock = SystemClock::new();
    while clock.now() < ROUND {
        let at = rng.index(nodes.len());
        match rng.below(8) {
            0 | 1 => nodes[at].link.modes.set(mode(rng), mode(rng)),
            2 | 3 => nodes[at].store.modes.set(mode(rng), mode(rng)),
            4 => front.modes.set(mode(rng), mode(rng)),
            5 => drop(nodes[at].promote()),
            6 => nodes[at].kill(),
            _ => {
                nodes.iter_mut().for_each(Node::restart);
                heal(nodes, front);
            }
        }
        park_timeout(Duration::from_millis(rng.range(20..250)));
        if rng.chance(1, 3) {
            nodes.iter().for_each(|node| node.link.modes.set(PASS, PASS));
            front.modes.set(PASS, PASS);
        }
    }
    heal(nodes, front);
    nodes.iter_mut().for_each(Node::restart);
}

pub(crate) struct SetAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub(crate) fn heal(nodes: &[Node], front: &Link) {
    front.modes.set(PASS, PASS);
    for node in nodes {
        node.link.modes.set(PASS, PASS);
        node.store.modes.set(PASS, PASS);
    }
}

/// One round on services of its own. Returns the calls with a known outcome.
fn round(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let bucket = Remote::memory().unwrap().store();
    let mut nodes: Vec<Node> = (0..NODES)
        .map(|at| {
            Node::new(&bucket, if at == 0 { Role::Primary } else { Role::Reader }, None, LEASE)
        })
        .collect();
    let listed = nodes.iter().map(|node| node.link.address.to_string()).collect();
    let mut options = ClusterOptions::new(Nodes::List(listed));
    options.policy = *rng.pick(&[Policy::Cost, Policy::Offloaded, Policy::Optimal]);
    options.wait = 2 * LEASE;
    options.reply = 2 * LEASE;
    let cluster = Cluster::new(options).unwrap();
    let router = Router::start("127.0.0.1:0", cluster, Limits::default()).unwrap();
    let front = Link::new(router.address());
    let histories = Histories::new();
    let ways: Vec<SocketAddr> =
        [front.address].into_iter().chain(nodes.iter().map(|it| it.link.address)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut rng = rng.fork();
            let histories = &histories;
            let ways = &ways;
            scope.spawn(move || {
                let mut callers: Vec<Caller> =
                    ways.iter().map(|way| Caller::new(*way, 3 * LEASE)).collect();
                histories.calls(&mut callers, &mut rng, thread);
            });
        }
        disturb(&mut nodes, &front, &mut rng, &histories);
    });
    promoted(&nodes[0]);
    last_look(nodes[0].address, &histories);
    router.stop();
    let history = histories.registers.into_inner().unwrap();
    checked(&history, &format!("partitions-{seed}"));
    histories.replies.into_inner()
}

/// Makes a node the primary, after the partitions.
pub(crate) fn promoted(node: &Node) {
    until("a promotion after the partitions", || {
        node.promote().is_some_and(|it| !it.starts_with('-'))
    });
}

/// Everything that was acknowledged is there in the end.
pub(crate) fn last_look(address: SocketAddr, histories: &Histories) {
    for key in 0..3 {
        let begun = now();
        let found = last_value(address, &format!("k{{t{key}}}"));
        let call = RegisterCall::Read(found);
        let ended = Some(now());
        histories.registers.lock().unwrap().push(Operation { key, call, begun, ended });
    }
    for (thread, counter) in histories.counters.iter().enumerate() {
        let counter = counter.lock().unwrap();
        let found = last_value(address, &counter.keys(thread)[0]);
        let least = counter.sure_at(Duration::MAX);
        assert!((least..=counter.most).contains(&found), "{found}, {least}, {}", counter.most);
    }
}

/// It comes after a later one that was acknowledged: so both are there, and a reader of the later one has not lost it.
#[test]
fn a_write_without_an_outcome_may_come_late() {
    let folder = tempfile::tempdir().unwrap();
    let server = crate::client::primary(folder.path());
    let link = Link::new(server.address());
    link.modes.set(HOLD, PASS);
    let histories = Histories::new();
    histories.count(&mut Caller::new(link.address, LEASE), 0, 1);
    let mut direct = Caller::new(server.address(), 20 * LEASE);
    histories.count(&mut direct, 0, 5);
    link.modes.set(PASS, PASS);
    let first = Counter::default().keys(0)[0].clone();
    until("the first write comes", || direct.ask(&format!("GET {first}")).as_deref() == Some("1"));
    last_look(server.address(), &histories);
}

#[test]
fn the_levels_hold_over_partitions_of_the_network() {
    let wanted = std::env::var("PARTITION_SECONDS").ok();
    let seconds = wanted.map_or(SECONDS, |text| text.parse().expect("a number"));
    let mut rng = Rng::from_env_or(44);
    let clock = SystemClock::new();
    let mut rounds = 0;
    let mut replies = 0;
    while clock.now() < Duration::from_secs(seconds) {
        let seed = rng.next_u64();
        println!("round {rounds} of seed {seed}, {replies} calls with an outcome so far");
        replies += round(seed);
        rounds += 1;
    }
    println!("{rounds} rounds, {replies} calls with an outcome");
    assert!(replies > 0);
}

/// A clock that stands still while its machine is suspended: the assumption that it breaks is that of read leases.
struct StoppedTimer(SystemClock, Mutex<Rng>);

impl Timer for StoppedTimer {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn since_boot(&self) -> Option<Duration> {
        Some(Duration::from_secs(1))
    }

    fn wait(&self, time: Duration) {
        park_timeout(time);
    }

    fn random(&self) -> u64 {
        self.1.lock().unwrap().next_u64()
    }
}

/// Makes a call, and notes it if it has an outcome.
fn noted(history: &mut Vec<Operation>, server: &Server, line: &str, write: Option<RegisterCall>) {
    let begun = now();
    let reply = Client::new(server).text(line);
    let ended = Some(now());
    let found = value(Some(reply.clone())).map(RegisterCall::Read);
    if let Some(call) = write.filter(|_| reply == "OK").or(found) {
        history.push(Operation { key: 0, call, begun, ended });
    }
}

/// A primary is cut off from its bucket, another one takes over and writes, and the first is read: a history of three
/// calls, or of two if the read is refused.
fn zombie(has_stopped_clock: bool) -> Vec<Operation> {
    let bucket = Remote::memory().unwrap().store();
    let store = CutStore::new(bucket.clone());
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut remote = Remote::with_store(store.clone()).read_lease(LEASE).patience(LEASE);
    if has_stopped_clock {
        remote = remote.timer(Arc::new(StoppedTimer(SystemClock::new(), Mutex::new(Rng::new(7)))));
    }
    let old = start(remote, folders[0].path(), Role::Primary, options());
    let new =
        start(reached(CutStore::new(bucket), LEASE), folders[1].path(), Role::Reader, options());
    let mut history = Vec::new();
    noted(&mut history, &old, "SET k 1", Some(RegisterCall::Write(1)));
    let mut client = Client::new(&old);
    assert_eq!(client.text("SET text a"), "OK");
    let newest = format!("SCID.NEWEST {}", run(&mut client));
    assert!(client.text(&newest).starts_with("1-"));
    store.modes.set(CUT, CUT);
    noted(&mut history, &new, "SCID.PROMOTE", None);
    noted(&mut history, &new, "SET k 2", Some(RegisterCall::Write(2)));
    noted(&mut history, &old, "SCID.GET k LEVEL 1", None);
    // A reader would call what it has the newest state.
    assert_eq!(client.text(&newest).starts_with("1-"), has_stopped_clock);
    // Commands that write nothing, but whose replies are what was read.
    for empty in ["DEL x y", "SET k 3 NX", "INCR text"] {
        let reply = client.text(empty);
        // On a slow machine the patience for the bucket ends before: then no command that may write is served at all.
        if reply.starts_with("-READONLY a sync of the log failed") {
            return history;
        }
        let is_served =
            !reply.starts_with('-') || reply.starts_with("-ERR value is not an integer");
        assert_eq!(is_served, has_stopped_clock, "{empty}: {reply}");
    }
    let replies = client.pipeline(&["MULTI", "GET k", "DEL x", "EXEC"]);
    assert_eq!(replies[3].starts_with('-'), !has_stopped_clock, "{replies:?}");
    history
}

#[test]
fn a_zombie_that_serves_old_data_at_level_1_is_found() {
    let history = zombie(false);
    assert_eq!(history.len(), 2, "the read of the zombie is refused: {history:?}");
    check_registers(&history).unwrap();
    let history = zombie(true);
    assert_eq!(history.len(), 3, "{history:?}");
    check_registers(&history).unwrap_err();
}
