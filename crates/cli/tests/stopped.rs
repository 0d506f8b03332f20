//! Level 1 while processes of the service are stopped by SIGSTOP and wake later: a primary that slept through a takeover serves no
//! old state as level 1, and nothing that it acknowledged is lost.

#![cfg(all(feature = "server", unix))]
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]
#![expect(clippy::disallowed_methods, reason = "the processes have the clock of the machine")]
#![expect(clippy::print_stdout, reason = "it prints how much ran")]

mod running;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use running::Running;
use rustix::process::{Pid, Signal, kill_process};
use testkit::Rng;
use testkit::linear::{Operation, RegisterCall, check_registers};

const NODES: usize = 3;
const THREADS: u64 = 4;
/// A client that gets no answer asks again, so one is asking when a stopped process wakes.
const PATIENCE: Duration = Duration::from_millis(400);
/// The seconds of each kind of storage; `STOP_SECONDS` sets another number.
const SECONDS: u64 = 4;
/// Reads that must have an answer, and the time that they may take if the machine is slow.
const READS: usize = 20;
const LIMIT: Duration = Duration::from_secs(120);

/// A client of one node.
struct Caller<'a> {
    address: &'a str,
    patience: Duration,
    open: Option<BufReader<TcpStream>>,
}

impl<'a> Caller<'a> {
    fn new(address: &'a str, patience: Duration) -> Caller<'a> {
        Caller { address, patience, open: None }
    }

    /// The reply without its length; `None` if there is none in time.
    fn ask(&mut self, line: &str) -> Option<String> {
        let reply = self.try_ask(line);
        if reply.is_none() {
            self.open = None;
        }
        reply
    }

    fn try_ask(&mut self, line: &str) -> Option<String> {
        if self.open.is_none() {
            let stream = TcpStream::connect(self.address).ok()?;
            stream.set_read_timeout(Some(self.patience)).ok()?;
            self.open = Some(BufReader::new(stream));
        }
        let stream = self.open.as_mut()?;
        write!(stream.get_mut(), "{line}\r\n").ok()?;
        let mut reply = String::new();
        stream.read_line(&mut reply).ok().filter(|len| *len > 0)?;
        if reply.starts_with('$') && reply != "$-1\r\n" {
            reply.clear();
            stream.read_line(&mut reply).ok().filter(|len| *len > 0)?;
        }
        Some(reply.trim_end().to_owned())
    }
}

/// The calls of clients and their outcomes, in the order of a clock that all share.
#[derive(Default)]
struct History {
    time: AtomicU64,
    operations: Mutex<Vec<Operation>>,
    is_over: AtomicBool,
}

impl History {
    fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::SeqCst)
    }

    /// Calls of one client until the end, at all nodes: half are reads at level 1.
    fn calls(&self, nodes: &[Running], mut rng: Rng, thread: u64) {
        let mut callers: Vec<Caller<'_>> =
            nodes.iter().map(|node| Caller::new(&node.address, PATIENCE)).collect();
        for value in (1 + thread..).step_by(THREADS as usize) {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let caller = &mut callers[rng.index(NODES)];
            let key = rng.below(3);
            let begun = self.now();
            let (call, is_known) = if rng.chance(1, 2) {
                let reply = caller.ask(&format!("SCID.GET k{key} LEVEL 1"));
                let found =
                    reply.and_then(|it| if it == "$-1" { Some(0) } else { it.parse().ok() });
                let Some(found) = found else { continue };
                (RegisterCall::Read(found), true)
            } else {
                let reply = caller.ask(&format!("SET k{key} {value}"));
                if reply.as_ref().is_some_and(|it| it.starts_with("-READONLY this server is a")) {
                    continue;
                }
                (RegisterCall::Write(value), reply.as_deref() == Some("+OK"))
            };
            let ended = is_known.then(|| self.now());
            self.operations.lock().unwrap().push(Operation { key, call, begun, ended });
        }
    }

    fn reads_at_least(&self, count: usize) -> bool {
        let operations = self.operations.lock().unwrap();
        let reads = operations.iter().filter(|it| matches!(it.call, RegisterCall::Read(_)));
        reads.count() >= count
    }
}

/// Ends the clients also after a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn send(node: &Running, signal: Signal) {
    kill_process(Pid::from_child(&node.child), signal).expect("the process runs");
}

/// Stops the primary, has another node take over meanwhile, or not, and wakes it, until the time is over. Returns the number of
/// the takeovers from a process that slept.
fn disturb(nodes: &[Running], rng: &mut Rng, history: &History) -> u64 {
    let _over = Over(&history.is_over);
    let seconds = std::env::var("STOP_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let begun = Instant::now();
    let mut primary = 0;
    let mut takeovers = 0;
    while begun.elapsed() < time || !history.reads_at_least(READS) {
        assert!(begun.elapsed() < time + LIMIT, "less than {READS} reads have an answer");
        let stopped = if rng.chance(4, 5) { primary } else { rng.index(NODES) };
        send(&nodes[stopped], Signal::STOP);
        // Readers at level 1 wait for a stopped primary in vain: a claim ends that.
        park_timeout(Duration::from_millis(rng.range(0..150)));
        if rng.chance(3, 4) {
            let next = (stopped + 1 + rng.index(NODES - 1)) % NODES;
            let mut caller = Caller::new(&nodes[next].address, Duration::from_secs(30));
            if caller.ask("SCID.PROMOTE").is_some_and(|reply| !reply.starts_with('-')) {
                takeovers += u64::from(stopped == primary && next != primary);
                primary = next;
            }
            // Others write at the new primary before the old one wakes.
            park_timeout(Duration::from_millis(rng.range(20..200)));
        }
        send(&nodes[stopped], Signal::CONT);
        park_timeout(Duration::from_millis(rng.range(20..300)));
    }
    takeovers
}

fn check(nodes: Vec<Running>) {
    let mut rng = Rng::from_env_or(4406);
    let history = History::default();
    // 0 is the time of nothing.
    history.now();
    let takeovers = std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let history = &history;
            let nodes = &nodes;
            let rng = rng.fork();
            scope.spawn(move || history.calls(nodes, rng, thread));
        }
        disturb(&nodes, &mut rng, &history)
    });
    let operations = history.operations.into_inner().unwrap();
    let known = operations.iter().filter(|it| it.ended.is_some()).count();
    println!("{takeovers} takeovers from a process that slept, {known} calls with an outcome");
    assert!(takeovers > 0);
    check_registers(&operations).unwrap_or_else(|violation| panic!("{violation}"));
    for node in nodes {
        node.end();
    }
}

#[test]
fn a_primary_of_a_folder_that_slept_serves_nothing_old() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let readers = (1..NODES).map(|_| ["serve", "db", "--secondary"]);
    let mut nodes = vec![Running::start(folder.path(), &["serve", "db"])];
    nodes.extend(readers.map(|args| Running::start(folder.path(), &args)));
    check(nodes);
}

#[test]
fn a_primary_of_a_bucket_that_slept_serves_nothing_old() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let bucket = format!("file://{}", folder.path().join("bucket").display());
    let nodes: Vec<Running> = (0..NODES)
        .map(|at| {
            let name = format!("db{at}");
            let role = if at == 0 { "--remote" } else { "--replica-of" };
            let args = ["serve", &name, role, &bucket, "--read-lease", "300"];
            Running::start(folder.path(), &args)
        })
        .collect();
    check(nodes);
}
