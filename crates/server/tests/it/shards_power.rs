//! A move of slots between two databases that lose their power at any storage operation of either one.
//!
//! One move runs to its end, with writes before each of its steps. Before each operation that changes a disk, both disks
//! and the maps are taken as a power cut at this moment could leave them. Later each such moment is started again.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use server::{Acknowledge, Mover, MoverOptions, Options, Place, Role, Server, slot_of};
use siltstone::clock::SystemClock;
use siltstone::fs::{CrashOutcome, MemFs};
use storage::fs::FaultFs;
use testkit::Rng;

use crate::client::{self, Client};
use crate::shards::{maps, mover, shard, slots};

/// The keys of one slot, which moves.
const KEYS: [&str; 3] = ["{foo}0", "{foo}1", "{foo}2"];

/// The values that a key may have: the one that was acknowledged, and one whose request runs.
type Values = [[String; 2]; KEYS.len()];

/// A moment at which the power fails.
struct Cut {
    disks: [MemFs; 2],
    /// The folder of the maps, as it was.
    map: tempfile::TempDir,
    values: Values,
    operation: String,
}

fn start(disk: MemFs, name: &str, address: Option<SocketAddr>) -> Server {
    start_on(FaultFs::over_mem(disk), name, address)
}

fn start_on(disk: FaultFs, name: &str, address: Option<SocketAddr>) -> Server {
    let mut options = Options { shard: Some(name.to_owned()), ..client::options() };
    options.acknowledge = Acknowledge::Sync;
    if let Some(address) = address {
        options.listen = address.to_string();
    }
    let place = Place::folder_on("/db", Arc::new(disk), Arc::new(SystemClock::new()));
    Server::start(place, Role::Primary, options).unwrap()
}

fn copied(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_into(folder, copy.path());
    copy
}

#[expect(clippy::disallowed_methods, reason = "the maps are files of the operating system")]
fn copy_into(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_into(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Writes each key, and one deletion now and then, before a step of the move.
fn meddle(client: &mut Client, values: &Mutex<Values>, step: u64) {
    for (at, key) in KEYS.iter().enumerate() {
        let is_deletion = (step + at as u64).is_multiple_of(3);
        let value = if is_deletion { "nil".to_owned() } else { step.to_string() };
        let line = if is_deletion { format!("DEL {key}") } else { format!("SET {key} {step}") };
        values.lock().unwrap()[at][1].clone_from(&value);
        let reply = client.text(&line);
        let mut values = values.lock().unwrap();
        if reply.starts_with('-') {
            // It was refused, and has no effect.
            assert!(reply.starts_with("-MOVED "), "{reply}");
            let before = values[at][0].clone();
            values[at][1] = before;
        } else {
            values[at][0] = value;
        }
    }
}

/// Runs a move, and returns its moments and the addresses of the shards.
fn moments(rng: Rng) -> (Vec<Cut>, [SocketAddr; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("map");
    let disks = [MemFs::new(), MemFs::new()];
    let faults = disks.clone().map(FaultFs::over_mem);
    let a = start_on(faults[0].clone(), "a", None);
    let b = start_on(faults[1].clone(), "b", None);
    mover(&map).create(vec![shard("a", &[&a]), shard("b", &[&b])]).unwrap();
    let values: Arc<Mutex<Values>> =
        Arc::new(Mutex::new(std::array::from_fn(|_| ["nil", "nil"].map(str::to_owned))));
    let cuts = Arc::new(Mutex::new(Vec::new()));
    let rng = Arc::new(Mutex::new(rng));
    for (fault, name) in faults.iter().zip(["a", "b"]) {
        let disks = disks.clone();
        let map = map.clone();
        let values = values.clone();
        let cuts = cuts.clone();
        let rng = rng.clone();
        fault.set_observer(Arc::new(move |operation| {
            if !operation.mutates() {
                return;
            }
            // One moment at a time.
            let mut cuts = cuts.lock().unwrap();
            let values = values.lock().unwrap().clone();
            let mut rng = rng.lock().unwrap();
            let disks = disks.each_ref().map(|disk| {
                let outcome = *rng.pick(&CrashOutcome::ALL);
                disk.crash_clone(outcome, &mut || rng.next_u64())
            });
            let operation = format!("{name}: {operation:?}");
            cuts.push(Cut { disks, map: copied(&map), values, operation });
        }));
    }
    let client = Mutex::new((Client::new(&b), 0));
    let meddled = values.clone();
    let options = MoverOptions {
        on_step: Arc::new(move |_| {
            let (client, step) = &mut *client.lock().unwrap();
            *step += 1;
            meddle(client, &meddled, *step);
            Ok(())
        }),
        ..MoverOptions::default()
    };
    Mover::new(maps(&map), options).unwrap().move_slots(&slots("12182"), "a").unwrap();
    faults.iter().for_each(FaultFs::clear_observer);
    let addresses = [a.address(), b.address()];
    a.stop().unwrap();
    b.stop().unwrap();
    let cuts = std::mem::take(&mut *cuts.lock().unwrap());
    (cuts, addresses)
}

/// The replies of both shards to a read of `key`: those that serve it.
fn served(clients: &mut [Client; 2], key: &str) -> Vec<String> {
    let replies = clients.each_mut().map(|client| client.text(&format!("GET {key}")));
    replies.into_iter().filter(|reply| !reply.starts_with('-')).collect()
}

fn check(cut: Cut, addresses: [SocketAddr; 2], undoes: bool) {
    let Cut { disks: [a, b], map, values, operation } = cut;
    let servers = [start(a, "a", Some(addresses[0])), start(b, "b", Some(addresses[1]))];
    let mut clients = servers.each_ref().map(Client::new);
    for key in KEYS {
        let found = served(&mut clients, key);
        assert!(found.len() <= 1, "{operation}: both shards serve {key}: {found:?}");
    }
    let mover = mover(map.path());
    // An undo may come too late.
    if !undoes || mover.resume(true).is_err() {
        mover.resume(false).unwrap_or_else(|error| panic!("{operation}: {error}"));
    }
    for (key, values) in KEYS.iter().zip(&values) {
        let found = served(&mut clients, key);
        let is_right = matches!(&found[..], [value] if values.contains(value));
        assert!(is_right, "{operation}: {key} is {found:?}, and {values:?} was written");
    }
    for server in servers {
        server.stop().unwrap();
    }
}

#[test]
fn each_write_is_at_one_shard_after_a_power_cut_at_any_operation_of_a_move() {
    assert_eq!(KEYS.map(|key| slot_of(key.as_bytes())), [12182; 3]);
    let mut rng = Rng::from_env_or(46);
    let (cuts, addresses) = moments(rng.fork());
    println!("{} operations change a disk", cuts.len());
    assert!(cuts.len() > 20, "{}", cuts.len());
    for cut in cuts {
        check(cut, addresses, rng.chance(1, 3));
    }
}
