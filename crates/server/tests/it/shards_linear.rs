//! Guarantees of shards, while slots move back and forth, movers end at every step, and primaries are promoted and killed:
//! level 1 is linearizable, level 3 keeps sessions over routers, level 4 sees prefixes, walks show each key once.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use server::{
    ClusterOptions, Limits, Mover, MoverOptions, Nodes, Options, Place, Policy, Role, Router,
    RouterOptions, Server, ShardMap, Shards, SlotSet, slot_of,
};
use siltstone::ErrorKind;
use testkit::Rng;
use testkit::linear::{Operation, RegisterCall, check_registers};

use crate::client::{Client, options};
use crate::linear::now;
use crate::route_linear::{Progress, Running, promote};
use crate::shards::{maps, mover_that_ends, shard};

const THREADS: u64 = 4;
const ATTEMPTS_MAX: u64 = 1 << 20;
/// Keys that no one changes, for walks.
const RESTING: usize = 60;

/// A node that does not wait for its connections at the end: it is killed.
fn start(folder: &Path, name: &str, role: Role, address: Option<SocketAddr>) -> Server {
    let mut options = Options { shard: Some(name.to_owned()), ..options() };
    options.limits = Limits { drain: Duration::ZERO, ..Limits::default() };
    options.follow = Some(Duration::from_millis(5));
    if let Some(address) = address {
        options.listen = address.to_string();
    }
    Server::start(Place::folder(folder), role, options).unwrap()
}

/// A router of the shards.
pub(crate) fn routed(folder: &Path, policy: Policy) -> Router {
    let mut options = ClusterOptions::new(Nodes::List(Vec::new()));
    options.policy = policy;
    let shards = Shards::open(maps(folder), options).unwrap();
    let any = "127.0.0.1:0".to_owned();
    let listening = RouterOptions { listen: any.clone(), http: Some(any), ..Default::default() };
    Router::start_shards(shards, listening).unwrap()
}

/// The nodes of one shard.
struct Nodes2 {
    folder: PathBuf,
    name: &'static str,
    nodes: [Option<Server>; 2],
    primary: usize,
}

impl Nodes2 {
    fn new(folder: &Path, name: &'static str) -> Nodes2 {
        let folder = folder.join(name);
        let roles = [Role::Primary, Role::Reader];
        let nodes = roles.map(|role| Some(start(&folder, name, role, None)));
        Nodes2 { folder, name, nodes, primary: 0 }
    }

    fn restart(&mut self, at: usize) {
        let address = self.nodes[at].as_ref().map(Server::address);
        drop(self.nodes[at].take());
        self.nodes[at] = Some(start(&self.folder, self.name, Role::Reader, address));
    }

    /// Kills or promotes a node.
    fn disturb(&mut self, rng: &mut Rng) {
        let other = 1 - self.primary;
        match rng.below(4) {
            0 => self.restart(other),
            at => {
                if at == 1 {
                    self.restart(self.primary);
                }
                let reply = promote(self.nodes[other].as_ref());
                assert!(!reply.starts_with('-') || reply.contains("take"), "{reply}");
                self.primary = other;
            }
        }
    }
}

fn mover(folder: &Path, ends_at: Option<u64>, steps: &Arc<AtomicU64>) -> Mover {
    mover_that_ends(folder, ends_at, Duration::from_secs(5), steps)
}

fn slots(first: u16, last: u16) -> SlotSet {
    SlotSet::parse(&format!("{first}-{last}")).unwrap()
}

/// A mover that another one takes over before its step with the number `at`, and that goes on all the same.
fn replaced(folder: &Path, at: u64) -> Mover {
    let steps = AtomicU64::new(0);
    let place = folder.to_owned();
    let options = MoverOptions {
        wait: Duration::from_secs(5),
        on_step: Arc::new(move |_| {
            if steps.fetch_add(1, Ordering::SeqCst) == at {
                // It may fail: a primary is killed. Then there is one more attempt, or none.
                let _ = mover(&place, None, &Arc::default()).resume(false);
            }
            Ok(())
        }),
        ..MoverOptions::default()
    };
    Mover::new(maps(folder), options).unwrap()
}

/// Moves slots around `slot` to the other shard, and brings moves to their end or undoes them, whatever ends before.
fn move_once(folder: &Path, rng: &mut Rng, slot: u16) {
    let steps = Arc::new(AtomicU64::new(0));
    let map: ShardMap = maps(folder).latest().unwrap().unwrap();
    let owner = (0..2).find(|place| map.slots_of(*place).contains(slot)).unwrap();
    let to = &map.shards()[1 - owner].name;
    let ends_at = rng.chance(1, 2).then(|| rng.below(24));
    let slots = if rng.chance(1, 2) { slots(slot, slot) } else { map.slots_of(owner) };
    let first = match rng.chance(1, 4) {
        true => replaced(folder, rng.below(16)),
        false => mover(folder, ends_at, &steps),
    };
    let mut moved = first.move_slots(&slots, to).map(Some);
    let mut tries = 0;
    while let Err(error) = moved {
        tries += 1;
        assert!(tries < 60, "{error}");
        let ends_at = rng.chance(1, 3).then(|| rng.below(24));
        let undoes = rng.chance(1, 4);
        moved = mover(folder, ends_at, &steps).resume(undoes);
        if undoes && moved.as_ref().is_err_and(|it| it.kind() == ErrorKind::InvalidArgument) {
            moved = mover(folder, None, &steps).resume(false);
        }
    }
}

/// Runs clients of two routers, each with `work`, which returns `false` if the call had no outcome.
fn check(
    policy: Policy,
    rounds: u64,
    seed: u64,
    work: impl Fn(&mut [Client; 2], &mut Rng, u64, u64) -> bool + Sync,
) {
    let place = tempfile::tempdir().unwrap();
    let map = place.path().join("map");
    let mut shards = ["a", "b"].map(|name| Nodes2::new(place.path(), name));
    let described = shards.iter().map(|it| {
        let nodes: Vec<&Server> = it.nodes.iter().flatten().collect();
        shard(it.name, &nodes)
    });
    mover(&map, None, &Arc::default()).create(described.collect()).unwrap();
    let routers = [routed(&map, policy), routed(&map, policy)];
    let mut client = Client::at(routers[0].address());
    for key in 0..RESTING {
        assert_eq!(client.text(&format!("SET resting{key} 1")), "OK");
    }
    let progress = Progress { running: AtomicU64::new(THREADS), calls: AtomicU64::new(0) };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let addresses = [routers[0].address(), routers[1].address()];
            let progress = &progress;
            let work = &work;
            scope.spawn(move || {
                let _running = Running(progress);
                let mut rng = Rng::from_env_or(seed + thread);
                let mut clients = addresses.map(Client::at);
                let mut left = rounds;
                for value in (1 + thread..).step_by(THREADS as usize) {
                    assert!(value < ATTEMPTS_MAX, "{left} of {rounds} calls have no outcome");
                    left -= u64::from(work(&mut clients, &mut rng, thread, value));
                    progress.calls.fetch_add(1, Ordering::SeqCst);
                    if left == 0 {
                        break;
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut rng = Rng::from_env_or(seed ^ 0xff);
            while progress.calls().is_some() {
                let slot = slot_of(format!("{{t{}}}", rng.below(THREADS)).as_bytes());
                move_once(&map, &mut rng, slot);
            }
        });
        let mut rng = Rng::from_env_or(seed ^ 0xfff);
        while let Some(before) = progress.calls() {
            shards[rng.index(2)].disturb(&mut rng);
            while progress.calls().is_some_and(|now| now < before + 25) {
                std::thread::yield_now();
            }
        }
    });
    routers.into_iter().for_each(Router::stop);
}

/// Refusals after which nothing was done.
fn is_refused(reply: &str) -> bool {
    let words = [
        "NOTYET",
        "READONLY",
        "SESSIONLOST",
        "MOVED",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "CROSSSLOT",
        "ERR",
    ];
    words.iter().any(|word| reply.strip_prefix('-').is_some_and(|it| it.starts_with(word)))
}

/// The value of a read; `None` if it was refused.
fn value(reply: &str) -> Option<u64> {
    match reply {
        "nil" => Some(0),
        _ if reply.starts_with('-') => {
            assert!(is_refused(reply), "{reply}");
            None
        }
        _ => Some(reply.parse().unwrap()),
    }
}

/// Returns whether a write is there; `None` if that is unknown.
fn is_written(reply: &str) -> Option<bool> {
    match reply {
        "OK" | "[OK OK]" => Some(true),
        _ if reply.starts_with("-UNKNOWN") => None,
        _ => {
            assert!(is_refused(reply) || reply.starts_with("-EXECABORT"), "{reply}");
            Some(false)
        }
    }
}

fn level_1_is_linearizable(policy: Policy, seed: u64) {
    let history = Mutex::new(Vec::new());
    check(policy, 150, seed, |clients, rng, _, written| {
        let client = &mut clients[rng.index(2)];
        let key = rng.below(THREADS);
        let begun = now();
        let (call, is_known) = if rng.chance(1, 2) {
            let reply = client.text(&format!("SCID.GET k{{t{key}}} LEVEL 1"));
            let Some(value) = value(&reply) else { return false };
            (RegisterCall::Read(value), true)
        } else {
            let set = format!("SET k{{t{key}}} {written}");
            let is_transaction = rng.chance(1, 4);
            let reply = match is_transaction {
                true => client.pipeline(&["MULTI", &set, &set, "EXEC"]).pop().unwrap(),
                false => client.text(&set),
            };
            let is_written = is_written(&reply);
            if is_written == Some(false) {
                return false;
            }
            (RegisterCall::Write(written), is_written.is_some())
        };
        let ended = is_known.then(now);
        history.lock().unwrap().push(Operation { key, call, begun, ended });
        true
    });
    let history = history.into_inner().unwrap();
    check_registers(&history).unwrap_or_else(|violation| panic!("{violation}"));
}

#[test]
fn level_1_is_linearizable_while_slots_move() {
    level_1_is_linearizable(Policy::Cost, 160);
    level_1_is_linearizable(Policy::Offloaded, 170);
}

/// Walks over all keys, and returns them; `None` if a page was refused.
fn walk(client: &mut Client) -> Option<Vec<String>> {
    let mut keys = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let page = client.text(&format!("SCAN {cursor} COUNT 7"));
        if page.starts_with('-') {
            assert!(is_refused(&page), "{page}");
            return None;
        }
        let page = page.strip_prefix('[').and_then(|page| page.strip_suffix("]]")).unwrap();
        let (next, found) = page.split_once(" [").unwrap();
        keys.extend(found.split(' ').filter(|key| !key.is_empty()).map(str::to_owned));
        if next == "0" {
            return Some(keys);
        }
        next.clone_into(&mut cursor);
    }
}

#[test]
fn walks_show_each_key_once_while_slots_move() {
    check(Policy::Cost, 12, 190, |clients, rng, thread, value| {
        let client = &mut clients[rng.index(2)];
        let _ = client.text(&format!("SET k{{t{thread}}} {value}"));
        let Some(mut keys) = walk(client) else { return false };
        keys.sort_unstable();
        let resting = keys.iter().filter(|key| key.starts_with("resting")).count();
        keys.dedup();
        let apart = keys.iter().filter(|key| key.starts_with("resting")).count();
        assert_eq!((resting, apart), (RESTING, RESTING));
        true
    });
}

/// Each client counts up its own two keys in one commit, and passes its token to the others, also over routers.
#[test]
fn sessions_and_prefixes_are_kept_while_slots_move() {
    let written: Vec<Mutex<(u64, u64, String)>> =
        (0..THREADS).map(|_| Mutex::new((0, 0, String::new()))).collect();
    let seen: Vec<Mutex<Vec<u64>>> =
        (0..THREADS).map(|_| Mutex::new(vec![0; THREADS as usize])).collect();
    check(Policy::Offloaded, 150, 200, |clients, rng, thread, next| {
        let own = &written[thread as usize];
        let at = rng.index(2);
        match rng.below(4) {
            0 => {
                own.lock().unwrap().1 = next;
                let set = format!("MSET a{{t{thread}}} {next} b{{t{thread}}} {next}");
                let reply = clients[at].text(&set);
                if is_written(&reply) == Some(true) {
                    let token = clients[at].text("SCID.TOKEN");
                    *own.lock().unwrap() = (next, next, token);
                }
            }
            1 | 2 => {
                // What it or another one has written before, by the token, and never less than before.
                let other = rng.below(THREADS);
                let (sure, _, token) = written[other as usize].lock().unwrap().clone();
                let before = seen[thread as usize].lock().unwrap()[other as usize];
                let own_token = clients[1 - at].text("SCID.TOKEN");
                for token in [token, own_token].iter().filter(|it| it.contains('/')) {
                    assert_eq!(clients[at].text(&format!("SCID.TOKEN {token}")), "OK");
                }
                let reply = clients[at].text(&format!("SCID.GET a{{t{other}}} LEVEL 3"));
                let Some(found) = value(&reply) else { return false };
                let most = written[other as usize].lock().unwrap().1;
                assert!(
                    found >= sure.max(before) && found <= most,
                    "{found} of {sure}, {before}, {most}"
                );
                seen[thread as usize].lock().unwrap()[other as usize] = found;
            }
            _ => {
                let other = rng.below(THREADS);
                clients[at].run("SCID.LEVEL 4");
                let both = clients[at].text(&format!("MGET a{{t{other}}} b{{t{other}}}"));
                clients[at].run("SCID.LEVEL 3");
                if both.starts_with('-') {
                    return value(&both).is_some();
                }
                let words: Vec<&str> = both.trim_matches(['[', ']']).split(' ').collect();
                assert_eq!(words[0], words[1], "half of a commit is seen");
            }
        }
        true
    });
}
