//! `siltstone shards` with real processes: movers, primaries and routers that are killed.

#![cfg(all(feature = "server", unix))]

mod runner;
mod running;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use runner::{ended, siltstone};
use running::Running;

const COMMAND: &str = env!("CARGO_BIN_EXE_siltstone");
const COUNTERS: usize = 40;

/// A connection, for commands with replies of one line.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn new(address: &str) -> Connection {
        Connection(BufReader::new(TcpStream::connect(address).expect("the server listens")))
    }

    fn call(&mut self, line: &str) -> String {
        write!(self.0.get_mut(), "{line}\r\n").expect("the server reads");
        let mut reply = String::new();
        self.0.read_line(&mut reply).expect("the server answers");
        reply.trim_end().to_owned()
    }
}

/// Counts up through a router until the end: the increments that are surely there, and those that may be.
fn count_up(address: &str, is_over: &AtomicBool, calls: &AtomicU64) -> Vec<(u64, u64)> {
    let mut counted = vec![(0, 0); COUNTERS];
    let mut connection = Connection::new(address);
    for at in (0..COUNTERS).cycle() {
        let reply = connection.call(&format!("INCR counter{at}"));
        match reply.as_bytes()[0] {
            b':' => counted[at].0 += 1,
            _ if reply.starts_with("-UNKNOWN") => counted[at].1 += 1,
            _ => assert!(reply.starts_with("-NOTYET") || reply.starts_with("-READONLY"), "{reply}"),
        }
        calls.fetch_add(1, Ordering::SeqCst);
        if is_over.load(Ordering::SeqCst) {
            break;
        }
    }
    counted
}

/// Starts a move, and kills its process after some time. Then it is resumed.
fn killed_move(at: &Path, slots: &str, to: &str, after: Duration) {
    let mut command = Command::new(COMMAND);
    let command =
        command.current_dir(at).args(["shards", "move", "maps", "--slots", slots, "--to", to]);
    let mut mover = command.stdout(Stdio::null()).spawn().expect("the command can be started");
    std::thread::park_timeout(after);
    let _ = mover.kill();
    mover.wait().expect("it ends");
    ended(at, &["shards", "resume", "maps"], 0);
}

/// Kills the primary of the shard a, and promotes its reader.
fn take_over(primary: Running, reader: &str) {
    drop(primary);
    assert!(Connection::new(reader).call("SCID.PROMOTE").starts_with('$'));
}

#[test]
fn no_increment_is_lost_while_movers_and_primaries_are_killed() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = folder.path();
    let first = Running::start(at, &["serve", "a", "--shard", "a"]);
    let second = Running::start(at, &["serve", "a", "--shard", "a", "--secondary"]);
    let third = Running::start(at, &["serve", "b", "--shard", "b"]);
    let a = format!("a={},{}", first.address, second.address);
    ended(at, &["shards", "create", "maps", &a, &format!("b={}", third.address)], 0);
    let refused = siltstone(at, &["shards", "create", "maps", &a]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    ended(at, &["shards", "move", "maps", "--slots", "0-16384", "--to", "b"], 2);
    let router = Running::start(at, &["route", "--shards", "maps"]);
    let is_over = AtomicBool::new(false);
    let calls = AtomicU64::new(0);
    let counted = std::thread::scope(|scope| {
        let counting = scope.spawn(|| count_up(&router.address, &is_over, &calls));
        for (round, to) in ["b", "a", "b", "a"].into_iter().enumerate() {
            killed_move(at, "0-8191", to, Duration::from_millis(3 + 9 * round as u64));
            let resumed =
                siltstone(at, &["shards", "move", "maps", "--slots", "0-8191", "--to", to]);
            // The killed one had come to its begin, or not.
            assert!(resumed.status.code() != Some(1), "{resumed:?}");
        }
        take_over(first, &second.address);
        ended(at, &["shards", "move", "maps", "--slots", "0-8191", "--to", "b"], 0);
        let before = calls.load(Ordering::SeqCst);
        while calls.load(Ordering::SeqCst) < before + 2 * COUNTERS as u64 && !counting.is_finished()
        {
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::SeqCst);
        counting.join().expect("no increment fails")
    });
    let shown = ended(at, &["shards", "show", "maps"], 0);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("a\t0 slots") && shown.contains("b\t16384 slots\t0-16383"), "{shown}");
    let mut direct = Connection::new(&third.address);
    for (at, (sure, possible)) in counted.iter().enumerate() {
        // One more than there are.
        let reply = direct.call(&format!("INCR counter{at}"));
        let found: u64 = reply[1..].parse().expect("an integer");
        assert!(
            (sure + 1..=sure + possible + 1).contains(&found),
            "{found} of {sure} to {possible} more"
        );
    }
    assert!(counted.iter().all(|(sure, _)| *sure > 0), "{counted:?}");
    for node in [router, second, third] {
        node.end();
    }
}
