//! Level 1 through TCP is linearizable, on the primary and on readers, also over promotions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use server::Server;
use testkit::Rng;
use testkit::linear::{Operation, RegisterCall, check_registers};

use crate::client::{Client, primary, reader};

/// The calls of all clients of a check.
const ATTEMPTS_MAX: u64 = 1 << 20;

/// The order of what the clients see.
static TIME: AtomicU64 = AtomicU64::new(1);

pub(crate) fn now() -> u64 {
    TIME.fetch_add(1, Ordering::SeqCst)
}

/// Reads at level 1 of a random server, or writes at the server that was the primary last. Some are sent together.
fn calls(
    rng: &mut Rng,
    clients: &mut [Client],
    primary: &mut usize,
    values: std::ops::Range<u64>,
) -> Vec<Operation> {
    let calls: Vec<(u64, u64, u64)> = values.map(|value| (rng.below(3), value, now())).collect();
    let is_read = rng.chance(1, 2);
    let at = if is_read { rng.index(clients.len()) } else { *primary };
    let lines: Vec<String> = calls
        .iter()
        .map(|(key, value, _)| match is_read {
            true => format!("GET k{key}"),
            false => format!("SET k{key} {value}"),
        })
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let replies = clients[at].pipeline(&lines);
    let mut known = Vec::new();
    for ((key, value, begun), reply) in calls.into_iter().zip(replies) {
        let ended = Some(now());
        let call = match is_read {
            // While a promotion runs. Such a read has seen nothing.
            true if reply.starts_with("-NOTYET") || reply.starts_with("-ERR") => continue,
            true => {
                assert!(!reply.starts_with('-'), "{reply}");
                RegisterCall::Read(reply.parse().unwrap_or(0))
            }
            false if reply.starts_with("-READONLY") => {
                *primary = (at + 1) % clients.len();
                continue;
            }
            false => {
                assert_eq!(reply, "OK");
                RegisterCall::Write(value)
            }
        };
        known.push(Operation { key, call, begun, ended });
    }
    known
}

fn check(servers: &[Server], rounds: u64, promotes: bool) -> usize {
    let history = Mutex::new(Vec::new());
    let running = AtomicU64::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let history = &history;
            let running = &running;
            scope.spawn(move || {
                let mut rng = Rng::from_env_or(40 + thread);
                let mut clients: Vec<Client> = servers.iter().map(Client::new).collect();
                for client in &mut clients {
                    assert_eq!(client.text("SCID.LEVEL 1"), "OK");
                }
                let mut primary = 0;
                // A call that a promotion refuses has no outcome. A slow promotion refuses many.
                let mut left = rounds;
                let mut next = 1 + (thread << 32);
                while left > 0 {
                    assert!(
                        next & (ATTEMPTS_MAX - 1) < ATTEMPTS_MAX / 2,
                        "{left} of {rounds} calls have no outcome"
                    );
                    let count = if rng.chance(1, 2) { 1 } else { rng.range(2..6) }.min(left);
                    let operations =
                        calls(&mut rng, &mut clients, &mut primary, next..next + count);
                    next += count;
                    left -= operations.len() as u64;
                    history.lock().unwrap().extend(operations);
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        if promotes {
            let mut at = 1;
            while running.load(Ordering::SeqCst) > 0 {
                let before = history.lock().unwrap().len();
                let reply = Client::new(&servers[at]).text("SCID.PROMOTE");
                assert!(!reply.starts_with('-') || reply.contains("take"), "{reply}");
                at = (at + 1) % servers.len();
                // Until the clients have gone on.
                while running.load(Ordering::SeqCst) > 0
                    && history.lock().unwrap().len() < before + 25
                {
                    std::thread::yield_now();
                }
            }
        }
    });
    let history = history.into_inner().unwrap();
    check_registers(&history).unwrap_or_else(|violation| panic!("{violation}"));
    history.len()
}

#[test]
fn level_1_is_linearizable_through_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [primary(folder.path()), reader(folder.path()), reader(folder.path())];
    assert_eq!(check(&servers, 150, false), 600);
}

#[test]
fn level_1_is_linearizable_over_promotions() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [primary(folder.path()), reader(folder.path()), reader(folder.path())];
    assert_eq!(check(&servers, 100, true), 400);
}
