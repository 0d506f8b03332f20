//! `siltstone operate` with real processes: a primary, a router, and readers that follow the load.

#![cfg(all(feature = "server", unix))]
#![expect(clippy::disallowed_methods, reason = "the files are outside every database")]

mod running;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use running::Running;
use rustix::process::{Pid, Signal, kill_process};

const COMMAND: &str = env!("CARGO_BIN_EXE_siltstone");
/// Requests of a pipeline of the load.
const PIPELINE: usize = 50;

/// An operator that is killed if the test fails.
struct Operator(Child);

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Operator {
    fn end(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("the command runs");
        assert!(self.0.wait().expect("the command ends").success());
    }
}

/// Kills the readers of a list that are left if the test fails.
struct Readers<'a>(&'a Path);

impl Drop for Readers<'_> {
    fn drop(&mut self) {
        for process in processes(self.0).iter().filter_map(|it| it.parse().ok()) {
            let _ = Pid::from_raw(process).map(|pid| kill_process(pid, Signal::KILL));
        }
    }
}

const OPERATE: [&str; 19] = [
    "operate",
    "db",
    "--nodes",
    "nodes",
    "--operations",
    "100",
    "--max",
    "3",
    "--interval",
    "50",
    "--up-cooldown",
    "100",
    "--down-window",
    "1000",
    "--quiet",
    "1000",
    "--",
    "--follow",
    "100",
];

fn operator(at: &Path, primary: &str) -> Command {
    let mut command = Command::new(COMMAND);
    let [before @ .., _, _, _] = &OPERATE;
    command.current_dir(at).args(before).args(["--node", primary]).args(&OPERATE[16..]);
    command
}

fn operate(at: &Path, primary: &str) -> Operator {
    let log = std::fs::File::options().create(true).append(true).open(at.join("operator.log"));
    let log = log.expect("a log can be made");
    Operator(operator(at, primary).stderr(log).spawn().expect("the command can be started"))
}

fn lines(at: &Path, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(at.join(name)).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

fn log(at: &Path) -> String {
    std::fs::read_to_string(at.join("operator.log")).unwrap_or_default()
}

/// The processes of the readers.
fn processes(at: &Path) -> Vec<String> {
    let lines = lines(at, "nodes.readers");
    // The first line is the arguments.
    lines.iter().skip(1).filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
}

fn connect(address: &str) -> TcpStream {
    TcpStream::connect(address).expect("the server listens")
}

fn call(stream: &mut TcpStream, line: &str, expected: &str) {
    write!(stream, "{line}\r\n").expect("the server reads");
    let mut reply = vec![0; expected.len()];
    stream.read_exact(&mut reply).expect("the server answers");
    assert_eq!(String::from_utf8_lossy(&reply), expected, "{line}");
}

/// Reads until `is_done`: every read must be right.
fn read_until(stream: &mut TcpStream, pause: Duration, mut is_done: impl FnMut() -> bool) {
    while !is_done() {
        call(stream, "GET alice", "$5\r\nadmin\r\n");
        // A load below that of one reader; nothing waits for this time.
        std::thread::park_timeout(pause);
    }
}

/// Reads as fast as it goes until `ends`.
fn press(address: &str, ends: &AtomicBool, reads: &AtomicUsize) {
    let mut stream = connect(address);
    let request = "GET alice\r\n".repeat(PIPELINE);
    let expected = "$5\r\nadmin\r\n".repeat(PIPELINE);
    while !ends.load(Ordering::Relaxed) {
        stream.write_all(request.as_bytes()).expect("the router reads");
        let mut replies = vec![0; expected.len()];
        stream.read_exact(&mut replies).expect("the router answers");
        assert_eq!(String::from_utf8_lossy(&replies), expected);
        reads.fetch_add(PIPELINE, Ordering::Relaxed);
    }
}

fn refused(output: &Output, code: i32, text: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(text), "{said}");
}

#[test]
fn readers_follow_the_load_and_no_read_fails() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = folder.path();
    let _readers = Readers(at);
    let primary = Running::start(at, &["serve", "db"]);
    let running = operate(at, &primary.address);
    while lines(at, "nodes").len() < 2 {
        std::thread::yield_now();
    }
    let router = Running::start(at, &["route", "--nodes", "nodes", "--policy", "offloaded"]);
    let mut client = connect(&router.address);
    call(&mut client, "SET alice admin", "+OK\r\n");
    let slow = Duration::from_millis(20);

    // The load rises, and falls.
    let ends = AtomicBool::new(false);
    let reads = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let pressing: Vec<_> =
            (0..3).map(|_| scope.spawn(|| press(&router.address, &ends, &reads))).collect();
        read_until(&mut client, slow, || {
            pressing.iter().any(ScopedJoinHandle::is_finished) || lines(at, "nodes").len() == 4
        });
        ends.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 0);
    read_until(&mut client, slow, || processes(at).len() == 1 && lines(at, "nodes").len() == 2);

    refused(
        &operator(at, &primary.address).output().expect("it ends"),
        1,
        "another operator writes nodes",
    );

    // An operator that was killed leaves its reader to the next one.
    let before = processes(at);
    drop(running);
    call(&mut client, "GET alice", "$5\r\nadmin\r\n");
    let mut other = operator(at, &primary.address);
    other.args(["--level", "posts=3"]);
    refused(&other.output().expect("it ends"), 2, "nodes.readers: its readers run with");
    let running = operate(at, &primary.address);
    read_until(&mut client, slow, || log(at).contains("takes over reader"));
    assert_eq!(processes(at), before);

    // A reader that died is replaced.
    let pid = before[0].parse().ok().and_then(Pid::from_raw).expect("it is a process");
    kill_process(pid, Signal::KILL).expect("the reader runs");
    read_until(&mut client, slow, || {
        let now = processes(at);
        now.len() == 1 && now != before && lines(at, "nodes").len() == 2
    });

    // The end of the operator is that of its readers.
    running.end();
    assert_eq!(lines(at, "nodes"), [&*primary.address]);
    assert!(processes(at).is_empty(), "{}", log(at));
    call(&mut client, "GET alice", "$5\r\nadmin\r\n");
    assert!(!log(at).contains("kills it") && !log(at).contains("may still get"), "{}", log(at));
    router.end();
    primary.end();
}

#[test]
fn a_second_signal_leaves_a_reader_that_hangs() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = folder.path();
    let _readers = Readers(at);
    let primary = Running::start(at, &["serve", "db"]);
    let mut running = operate(at, &primary.address);
    while lines(at, "nodes").len() < 2 {
        std::thread::yield_now();
    }
    let before = processes(at);
    let reader = before[0].parse().ok().and_then(Pid::from_raw).expect("it is a process");
    kill_process(reader, Signal::STOP).expect("the reader runs");
    kill_process(Pid::from_child(&running.0), Signal::TERM).expect("the operator runs");
    while lines(at, "nodes").len() == 2 {
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&running.0), Signal::TERM).expect("the operator runs");
    assert_eq!(running.0.wait().expect("it ends").code(), Some(1), "{}", log(at));
    assert!(log(at).contains("ended by a second signal"), "{}", log(at));
    // The file still names it for the next operator.
    assert_eq!(processes(at), before);
    primary.end();
}

#[test]
fn a_reader_that_hangs_is_waited_for_and_taken_over() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = folder.path();
    let _readers = Readers(at);
    let primary = Running::start(at, &["serve", "db"]);
    let running = operate(at, &primary.address);
    while lines(at, "nodes").len() < 2 {
        std::thread::yield_now();
    }
    let before = processes(at);
    let reader = before[0].parse().ok().and_then(Pid::from_raw).expect("it is a process");
    drop(running);
    // After the end of its parent: a system ends a process that is stopped before.
    kill_process(reader, Signal::STOP).expect("the reader runs");
    let running = operate(at, &primary.address);
    while !log(at).contains("waits for process") {
        assert!(!log(at).contains("gives no figures"), "{}", log(at));
        std::thread::yield_now();
    }
    kill_process(reader, Signal::CONT).expect("the reader is there");
    while !log(at).contains("takes over reader") {
        assert_eq!(log(at).matches("starts 1").count(), 1, "{}", log(at));
        std::thread::yield_now();
    }
    assert_eq!(processes(at), before);
    running.end();
    assert!(processes(at).is_empty(), "{}", log(at));
    primary.end();
}

fn run(at: &Path, line: &str) -> Output {
    let mut command = Command::new(COMMAND);
    command.current_dir(at).args(["operate", "db", "--nodes", "nodes"]);
    command.args(line.split_whitespace()).output().expect("the command ends")
}

#[test]
fn wrong_arguments_and_readers_that_do_not_start_are_named() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = folder.path();
    for (line, text) in [
        ("", "a target is needed"),
        ("--operations 0", "greater than 0"),
        ("--p99 NaN", "greater than 0"),
        ("--p99 1 --min 0", "--min is at least 1"),
        ("--p99 1 --min 3 --max 2", "--max is less than --min"),
        ("--p99 1 --interval 0", "--interval is at least 1"),
    ] {
        refused(&run(at, line), 2, text);
    }
    for (text, place) in [("2 a b\n", "nodes.readers:1"), ("[]\n1 a\n", "nodes.readers:2")] {
        std::fs::write(at.join("nodes.readers"), text).expect("a file can be written");
        refused(&run(at, "--p99 1"), 2, place);
    }
    std::fs::remove_file(at.join("nodes.readers")).expect("it is there");

    // There is no database to follow.
    let _readers = Readers(at);
    let running = operate(at, "127.0.0.1:1");
    while !log(at).contains("died: exit status: 1; error:") {
        std::thread::yield_now();
    }
    running.end();
    assert!(processes(at).is_empty());
}

#[test]
fn pods_need_a_feature() {
    let help = Command::new(COMMAND).args(["operate", "--help"]).output();
    let help = help.expect("the command ends").stdout;
    let help = String::from_utf8_lossy(&help);
    if cfg!(feature = "pods") {
        assert!(help.contains("--pods <TEMPLATE>"), "{help}");
        return;
    }
    println!(
        "skipped: the launcher of pods is tested with the feature `pods`, as scripts/kubernetes.sh does"
    );
    assert!(!help.contains("--pods"), "{help}");
}

/// The arguments of a container are a list after `args:`, each with a line of its own.
#[test]
fn the_manifests_call_the_command_as_it_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes.yaml");
    let manifests = std::fs::read_to_string(path).expect("it is in the repository");
    let mut verbs = Vec::new();
    let mut lines =
        manifests.lines().map(str::trim).filter(|line| !line.starts_with('#')).peekable();
    while let Some(line) = lines.next() {
        // Without a tag the default is to pull an image that no registry has.
        if line == "image: siltstone" {
            assert_eq!(lines.next(), Some("imagePullPolicy: IfNotPresent"));
        }
        if line != "args:" {
            continue;
        }
        let mut args = Vec::new();
        while let Some(arg) = lines.next_if(|line| line.starts_with("- ")) {
            args.push(arg.trim_start_matches("- "));
        }
        verbs.push(args[0]);
        if args[0] == "operate" && !cfg!(feature = "pods") {
            continue;
        }
        let help = Command::new(COMMAND).args(&args).arg("--help").output();
        let help = help.expect("the command ends");
        assert!(help.status.success(), "{args:?}: {}", String::from_utf8_lossy(&help.stderr));
    }
    assert_eq!(verbs, ["serve", "serve", "operate", "route"]);
    assert_eq!(manifests.matches("path: /readyz").count(), 3);
}
