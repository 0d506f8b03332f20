//! One history with everything at once: two shards in buckets, two routers, and clients, while the network is divided,
//! nodes are killed, cut off and taken over, readers start and stop, and slots move by movers that end at any step.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::park_timeout;
use std::time::Duration;

use remote::Remote;
use server::{
    ClusterOptions, Mover, Nodes, Policy, Role, Router, RouterOptions, Shard, Shards, SlotSet,
    slot_of,
};
use siltstone::clock::{Clock, SystemClock};

use testkit::Rng;

use crate::client::until;
use crate::histories::checked;
use crate::network::{Caller, HOLD, Link, PASS};
use crate::partitions::{
    Histories, LEASE, Node, SetAtEnd, THREADS, heal, last_look, mode, promoted,
};
use crate::shards::{maps, mover_that_ends};

const NODES: usize = 3;
const ROUND: Duration = Duration::from_secs(8);
/// The seconds of all rounds; `HISTORY_SECONDS` sets another number.
const SECONDS: u64 = 20;

/// The nodes of one shard; the first one is the primary at the begin.
struct ShardNodes {
    name: &'static str,
    nodes: Vec<Node>,
}

impl ShardNodes {
    fn new(name: &'static str) -> ShardNodes {
        let bucket = Remote::memory().unwrap().store();
        let roles = (0..NODES).map(|at| if at == 0 { Role::Primary } else { Role::Reader });
        let nodes = roles.map(|role| Node::new(&bucket, role, Some(name), LEASE)).collect();
        ShardNodes { name, nodes }
    }

    /// As the map has it: movers and routers reach the nodes through their links.
    fn described(&self) -> Shard {
        let nodes = self.nodes.iter().map(|node| node.link.address.to_string()).collect();
        Shard { name: self.name.to_owned(), nodes }
    }
}

fn routed(map: &Path, policy: Policy) -> Router {
    let mut options = ClusterOptions::new(Nodes::List(Vec::new()));
    options.policy = policy;
    options.wait = 2 * LEASE;
    options.reply = 2 * LEASE;
    let shards = Shards::open(maps(map), options).unwrap();
    let listening = RouterOptions { listen: "127.0.0.1:0".to_owned(), ..RouterOptions::default() };
    Router::start_shards(shards, listening).unwrap()
}

fn mover(map: &Path, ends_at: Option<u64>) -> Mover {
    mover_that_ends(map, ends_at, 4 * LEASE, &Arc::default())
}

/// Moves the slot of a client's keys to the other shard, or goes on with a move that a mover has left. Returns whether it
/// came to its end.
fn move_once(map: &Path, rng: &mut Rng) -> bool {
    let ends_at = rng.chance(1, 2).then(|| rng.below(24));
    let known = maps(map).latest().unwrap().unwrap();
    if known.moving_text().is_some() {
        return mover(map, ends_at).resume(rng.chance(1, 4)).is_ok();
    }
    let slot = slot_of(format!("{{t{}}}", rng.below(THREADS as u64)).as_bytes());
    let owner = (0..2).find(|place| known.slots_of(*place).contains(slot)).unwrap();
    let slots = match rng.chance(1, 2) {
        true => SlotSet::parse(&slot.to_string()).unwrap(),
        false => known.slots_of(owner),
    };
    mover(map, ends_at).move_slots(&slots, &known.shards()[1 - owner].name).is_ok()
}

/// Breaks links, kills, stops, promotes and restarts nodes until the round is over, and heals all then.
fn disturb(shards: &mut [ShardNodes; 2], front: &Link, rng: &mut Rng, histories: &Histories) {
    // Also after a panic: the clients would go on for ever.
    let _over = SetAtEnd(&histories.is_over);
    let clock = SystemClock::new();
    while clock.now() < ROUND {
        let nodes = &mut shards[rng.index(2)].nodes;
        let at = rng.index(NODES);
        let node = &mut nodes[at];
        match rng.below(9) {
            0 | 1 => node.link.modes.set(mode(rng), mode(rng)),
            2 => node.store.modes.set(mode(rng), mode(rng)),
            3 => front.modes.set(mode(rng), mode(rng)),
            4 => drop(node.promote()),
            5 => node.kill(),
            6 => {
                // As others see a process that is stopped: for longer than its lease.
                node.link.modes.set(HOLD, HOLD);
                node.store.modes.set(HOLD, HOLD);
                park_timeout(LEASE + Duration::from_millis(rng.range(0..200)));
                node.store.modes.set(PASS, PASS);
                node.link.modes.set(PASS, PASS);
            }
            _ => {
                nodes.iter_mut().for_each(Node::restart);
                heal(nodes, front);
            }
        }
        park_timeout(Duration::from_millis(rng.range(20..200)));
        if rng.chance(1, 3) {
            shards.iter().for_each(|shard| heal(&shard.nodes, front));
        }
    }
    for shard in shards {
        heal(&shard.nodes, front);
        shard.nodes.iter_mut().for_each(Node::restart);
        promoted(&shard.nodes[0]);
    }
}

/// The results of a round: calls with an outcome, and moves that came to their end.
struct Counts {
    calls: u64,
    moves: u64,
}

/// One round on a service of its own.
fn round(seed: u64) -> Counts {
    let mut rng = Rng::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path();
    let mut shards = ["a", "b"].map(ShardNodes::new);
    mover(map, None).create(shards.iter().map(ShardNodes::described).collect()).unwrap();
    let policies = [Policy::Cost, Policy::Offloaded, Policy::Optimal];
    let routers = [(); 2].map(|()| routed(map, *rng.pick(&policies)));
    let front = Link::new(routers[0].address());
    let ways: [SocketAddr; 2] = [front.address, routers[1].address()];
    let histories = Histories::new();
    let moves = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut rng = rng.fork();
            let histories = &histories;
            scope.spawn(move || {
                let mut callers = ways.map(|way| Caller::new(way, 3 * LEASE));
                histories.calls(&mut callers, &mut rng, thread);
            });
        }
        let mut moving = rng.fork();
        let histories = &histories;
        let moves = &moves;
        scope.spawn(move || {
            while !histories.is_over.load(Ordering::SeqCst) {
                moves.fetch_add(u64::from(move_once(map, &mut moving)), Ordering::SeqCst);
            }
        });
        disturb(&mut shards, &front, &mut rng, histories);
    });
    // Also without a move it gives primaries slots that they were not there to take.
    until("the last move ends", || mover(map, None).resume(false).is_ok());
    last_look(routers[1].address(), &histories);
    routers.into_iter().for_each(Router::stop);
    let history = histories.registers.into_inner().unwrap();
    checked(&history, &format!("together-{seed}"));
    Counts { calls: histories.replies.into_inner(), moves: moves.into_inner() }
}

#[test]
fn the_levels_hold_with_everything_at_once() {
    let wanted = std::env::var("HISTORY_SECONDS").ok();
    let seconds = wanted.map_or(SECONDS, |text| text.parse().expect("a number"));
    let mut rng = Rng::from_env_or(4405);
    let clock = SystemClock::new();
    let mut all = Counts { calls: 0, moves: 0 };
    let mut rounds = 0;
    while clock.now() < Duration::from_secs(seconds) {
        let seed = rng.next_u64();
        println!("round {rounds} of seed {seed}: {} calls, {} moves so far", all.calls, all.moves);
        let counts = round(seed);
        all.calls += counts.calls;
        all.moves += counts.moves;
        rounds += 1;
    }
    println!("{rounds} rounds, {} calls with an outcome, {} moves", all.calls, all.moves);
    assert!(all.calls > 0 && all.moves > 0);
}
