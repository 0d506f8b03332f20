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

/// A read at level 1 of a random server, or a write at the server that was the primary last.
fn call(
    rng: &mut Rng,
    clients: &mut [Client],
    primary: &mut usize,
    value: u64,
) -> Option<Operation> {
    let key = rng.below(3);
    let begun = now();
    if rng.chance(1, 2) {
        let at = rng.index(clients.len());
        let found = clients[at].text(&format!("SCID.GET k{key} LEVEL 1"));
        let ended = Some(now());
        if found.starts_with("-NOTYET") || found.starts_with("-ERR") {
            // While a promotion runs. Such a read has seen nothing.
            return None;
        }
        assert!(!found.starts_with('-'), "{found}");
        let call = RegisterCall::Read(found.parse().unwrap_or(0));
        return Some(Operation { key, call, begun, ended });
    }
    let call = RegisterCall::Write(value);
    let reply = clients[*primary].text(&format!("SET k{key} {value}"));
    let ended = Some(now());
    match reply.as_str() {
        "OK" => Some(Operation { key, call, begun, ended }),
        _ if reply.starts_with("-READONLY") => {
            *primary = (*primary + 1) % clients.len();
            None
        }
        _ => panic!("{reply}"),
    }
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
                let mut primary = 0;
                // A call that a promotion refuses has no outcome. A slow promotion refuses many.
                let mut left = rounds;
                for value in (1 + thread..).step_by(4) {
                    assert!(value < ATTEMPTS_MAX, "{left} of {rounds} calls have no outcome");
                    if let Some(operation) = call(&mut rng, &mut clients, &mut primary, value) {
                        history.lock().unwrap().push(operation);
                        left -= 1;
                    }
                    if left == 0 {
                        break;
                    }
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
