//! Guarantees through the router, while readers are killed and primaries promoted or killed: level 1 is linearizable,
//! level 3 keeps sessions, level 4 sees prefixes.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use server::{Limits, Place, Policy, Role, Server};
use testkit::Rng;
use testkit::linear::{Operation, RegisterCall, check_registers};

use crate::client::{Client, options};
use crate::linear::now;
use crate::route::routed;

const THREADS: u64 = 4;
/// The calls of a client that a check makes at most.
const ATTEMPTS_MAX: u64 = 1 << 20;

/// Without waiting for its connections at the end: it is killed.
fn start(folder: &Path, role: Role, address: Option<SocketAddr>) -> Server {
    let mut options = options();
    options.limits = Limits { drain: Duration::ZERO, ..Limits::default() };
    options.follow = Some(Duration::from_millis(5));
    if let Some(address) = address {
        options.listen = address.to_string();
    }
    Server::start(Place::folder(folder), role, options).unwrap()
}

/// The calls of all clients.
pub(crate) struct Progress {
    pub(crate) running: AtomicU64,
    pub(crate) calls: AtomicU64,
}

impl Progress {
    /// The calls so far; `None` once no client runs.
    pub(crate) fn calls(&self) -> Option<u64> {
        (self.running.load(Ordering::SeqCst) > 0).then(|| self.calls.load(Ordering::SeqCst))
    }
}

/// A client that runs, until it ends or fails.
pub(crate) struct Running<'a>(pub(crate) &'a Progress);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Kills and promotes nodes until no client runs. The first node is the primary at the begin.
fn disturb(folder: &Path, nodes: &mut [Option<Server>], rng: &mut Rng, progress: &Progress) {
    let mut primary = 0;
    while let Some(before) = progress.calls() {
        let at = rng.index(nodes.len());
        match rng.below(3) {
            0 if at != primary => {
                let reply = promote(nodes[at].as_ref());
                assert!(!reply.starts_with('-') || reply.contains("take"), "{reply}");
                primary = at;
            }
            // A primary that is killed has a successor at once.
            1 if at == primary => {
                let next = (at + 1) % nodes.len();
                restart(folder, &mut nodes[at]);
                let reply = promote(nodes[next].as_ref());
                assert!(!reply.starts_with('-'), "{reply}");
                primary = next;
            }
            _ if at != primary => restart(folder, &mut nodes[at]),
            _ => {}
        }
        // Until the clients have gone on.
        while progress.calls().is_some_and(|now| now < before + 15) {
            std::thread::yield_now();
        }
    }
}

pub(crate) fn promote(node: Option<&Server>) -> String {
    Client::new(node.unwrap()).text("SCID.PROMOTE")
}

/// Kills a node, and starts a reader in its place.
fn restart(folder: &Path, node: &mut Option<Server>) {
    let address = node.as_ref().map(Server::address);
    drop(node.take());
    *node = Some(start(folder, Role::Reader, address));
}

/// Runs clients of a router, each with `work`, which returns `false` if the call had no outcome.
fn check(
    policy: Policy,
    rounds: u64,
    seed: u64,
    work: impl Fn(&mut Client, &mut Rng, u64, u64) -> bool + Sync,
) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let roles = [Role::Primary, Role::Reader, Role::Reader];
    let mut nodes = roles.map(|role| Some(start(folder, role, None)));
    let router = routed(nodes.iter().flatten().map(Server::address).collect(), policy);
    let progress = Progress { running: AtomicU64::new(THREADS), calls: AtomicU64::new(0) };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let address = router.address();
            let progress = &progress;
            let work = &work;
            scope.spawn(move || {
                let _running = Running(progress);
                let mut rng = Rng::from_env_or(seed + thread);
                let mut client = Client::at(address);
                let mut left = rounds;
                for value in (1 + thread..).step_by(THREADS as usize) {
                    assert!(value < ATTEMPTS_MAX, "{left} of {rounds} calls have no outcome");
                    left -= u64::from(work(&mut client, &mut rng, thread, value));
                    progress.calls.fetch_add(1, Ordering::SeqCst);
                    if left == 0 {
                        break;
                    }
                }
            });
        }
        disturb(folder, &mut nodes, &mut Rng::from_env_or(seed), &progress);
    });
    router.stop();
}

/// The value of a read; `None` if it was refused, and has seen nothing.
fn value(reply: &str) -> Option<u64> {
    match reply {
        "nil" => Some(0),
        _ if reply.starts_with('-') => {
            assert!(reply.starts_with("-NOTYET") || reply.starts_with("-ERR"), "{reply}");
            None
        }
        _ => Some(reply.parse().unwrap()),
    }
}

/// Returns whether a write is there; `None` if that is unknown.
fn is_written(reply: &str) -> Option<bool> {
    match reply {
        "OK" => Some(true),
        _ if reply.starts_with("-UNKNOWN") => None,
        _ => {
            assert!(reply.starts_with("-READONLY") || reply.starts_with("-NOTYET"), "{reply}");
            Some(false)
        }
    }
}

fn level_1_is_linearizable(policy: Policy, seed: u64) {
    let history = Mutex::new(Vec::new());
    check(policy, 120, seed, |client, rng, _, written| {
        let key = rng.below(3);
        let begun = now();
        let (call, is_known) = if rng.chance(1, 2) {
            let reply = client.text(&format!("SCID.GET k{key} LEVEL 1"));
            let Some(value) = value(&reply) else { return false };
            (RegisterCall::Read(value), true)
        } else {
            let reply = client.text(&format!("SET k{key} {written}"));
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
fn level_1_is_linearizable_through_the_router() {
    level_1_is_linearizable(Policy::Cost, 60);
    level_1_is_linearizable(Policy::Offloaded, 70);
    level_1_is_linearizable(Policy::Optimal, 80);
}

/// Each client counts up its own two keys in one commit, and passes its token to the others at times.
#[test]
fn sessions_and_prefixes_are_kept_through_the_router() {
    // The last value that is surely there, the last that may be, and the token of the first.
    let written: Vec<Mutex<(u64, u64, String)>> =
        (0..THREADS).map(|_| Mutex::new((0, 0, "0-0".to_owned()))).collect();
    let seen: Vec<Mutex<Vec<u64>>> =
        (0..THREADS).map(|_| Mutex::new(vec![0; THREADS as usize])).collect();
    check(Policy::Offloaded, 150, 90, |client, rng, thread, next| {
        let own = &written[thread as usize];
        match rng.below(4) {
            0 => {
                own.lock().unwrap().1 = next;
                let reply = client.text(&format!("MSET a{thread} {next} b{thread} {next}"));
                if is_written(&reply) == Some(true) {
                    let token = client.text("SCID.TOKEN");
                    *own.lock().unwrap() = (next, next, token);
                }
            }
            1 => {
                let (sure, _, _) = own.lock().unwrap().clone();
                let reply = client.text(&format!("SCID.GET a{thread} LEVEL 3"));
                let Some(found) = value(&reply) else { return false };
                assert!(found >= sure, "own write {sure} is not seen: {found}");
            }
            2 => {
                // What another client has written before, by its token, and never less than before.
                let other = rng.below(THREADS);
                let (sure, _, token) = written[other as usize].lock().unwrap().clone();
                assert_eq!(client.text(&format!("SCID.TOKEN {token}")), "OK");
                let reply = client.text(&format!("SCID.GET a{other} LEVEL 3"));
                let Some(found) = value(&reply) else { return false };
                let most = written[other as usize].lock().unwrap().1;
                let mut seen = seen[thread as usize].lock().unwrap();
                let before = seen[other as usize];
                assert!(
                    found >= sure.max(before) && found <= most,
                    "{found} of {sure}, {before}, {most}"
                );
                seen[other as usize] = found;
            }
            _ => {
                let other = rng.below(THREADS);
                client.run("SCID.LEVEL 4");
                let both = client.text(&format!("MGET a{other} b{other}"));
                client.run("SCID.LEVEL 3");
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
