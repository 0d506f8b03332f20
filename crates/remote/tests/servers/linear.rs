//! The linearizability of writes and strong reads. Writers and readers are processes; each primary has several threads,
//! and is killed, stopped or left alone while the next one takes over; three processes read, and are stopped and killed, too.
//!
//! This process makes each call by a line to a child, and notes the time before and after it.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use remote::{Remote, Store, StoreResult};
use siltstone::secondary::{Level, ReadOptions, SecondaryPartition};
use siltstone::{Durability, ErrorKind, Partition};
use testkit::Rng;
use testkit::linear::{INITIAL, Operation, RegisterCall, check_registers};

use crate::store_layer::{Layered, StoreLayer};
use crate::{Place, Talker, child_arguments, rounds_or, said};

/// Takeovers, unless `ROUNDS` is another number.
const ROUNDS: u64 = 3;
const KEYS: u64 = 6;
const READERS: usize = 3;
/// Calls that a process has at the same time.
const WRITER_THREADS: usize = 4;
const READER_THREADS: usize = 2;

/// A call in a child: the answer to a line.
type Answer = Box<dyn FnMut(&str) -> String + Send>;

fn key_and_value(line: &str) -> (&str, &str) {
    line.split_once(' ').unwrap_or((line, ""))
}

fn put(users: &Partition, line: &str) -> String {
    let (key, value) = key_and_value(line);
    match users.put_with(key, value, Durability::Sync) {
        Ok(_) => "ok".to_owned(),
        Err(error) if error.kind() == ErrorKind::Fenced => "fenced".to_owned(),
        Err(error) => format!("error {error}"),
    }
}

fn get(users: &SecondaryPartition, line: &str) -> String {
    // The run may be stopped as a whole.
    let strong = ReadOptions::new(Level::Strong).wait(Duration::from_secs(600));
    match users.read(&strong).and_then(|now| now.get(line)) {
        Ok(Some(value)) => format!("value {}", String::from_utf8_lossy(&value)),
        Ok(None) => format!("value {INITIAL}"),
        Err(error) => format!("error {error}"),
    }
}

/// Answers the lines of a parent, each thread its own.
#[expect(clippy::print_stdout, reason = "the parent waits for it")]
fn serve(answers: Vec<Answer>) {
    let senders = answers.into_iter().enumerate().map(|(thread, mut answer)| {
        let (sender, lines): (Sender<String>, _) = channel();
        std::thread::spawn(move || {
            for line in lines {
                let said = format!("> {thread} {}\n", answer(&line));
                // A whole line in one write, so that a kill leaves no half of one.
                let mut out = std::io::stdout().lock();
                out.write_all(said.as_bytes()).and_then(|()| out.flush()).unwrap();
            }
        });
        sender
    });
    let senders: Vec<_> = senders.collect();
    println!("> open");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let (thread, rest) = key_and_value(&line);
        senders[thread.parse::<usize>().unwrap()].send(rest.to_owned()).unwrap();
    }
}

/// A primary: does nothing unless a parent starts it.
#[test]
fn child_that_writes() {
    let Some(arguments) = child_arguments() else { return };
    let remote = Remote::url(&arguments[0]).unwrap().interval(Duration::from_millis(20));
    let primary = remote.patience(Duration::from_secs(24 * 3600)).take_over(&arguments[1]).unwrap();
    let db = primary.builder().write_buffer_bytes(64 << 10).open().unwrap();
    let users = db.partition("users").unwrap();
    let answers = (0..WRITER_THREADS).map(|_| {
        let users = users.clone();
        Box::new(move |line: &str| put(&users, line)) as Answer
    });
    serve(answers.collect());
}

/// A reader: does nothing unless a parent starts it.
#[test]
fn child_that_reads() {
    let Some(arguments) = child_arguments() else { return };
    let is_deaf = arguments.get(1).is_some_and(|word| word == "deaf");
    let deaf = Layered::new(Deaf {
        store: Remote::url(&arguments[0]).unwrap().store(),
        is_deaf: AtomicBool::new(false),
    });
    let remote = Remote::with_store(deaf.clone()).patience(Duration::from_secs(24 * 3600));
    let reader = remote.reader().unwrap();
    let secondary = reader.secondary().open().unwrap();
    let users = secondary.partition("users").unwrap();
    deaf.is_deaf.store(is_deaf, Ordering::Relaxed);
    let answers = (0..READER_THREADS).map(|_| {
        let users = users.clone();
        Box::new(move |line: &str| get(&users, line)) as Answer
    });
    serve(answers.collect());
}

/// A store that says of each journal object that it does not exist: a reader then answers from the state that it has.
struct Deaf {
    store: Arc<dyn Store>,
    is_deaf: AtomicBool,
}

impl StoreLayer for Deaf {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        if self.is_deaf.load(Ordering::Relaxed) && name.starts_with("journal/") {
            return Ok(None);
        }
        self.store.get(name)
    }
}

/// A child that answers lines.
struct Server {
    talker: Mutex<Talker>,
    answers: Vec<Mutex<Receiver<String>>>,
}

impl Server {
    fn start(child: &str, arguments: &[&str], threads: usize) -> Server {
        let mut talker = Talker::start(&format!("linear::{child}"), arguments);
        talker.hear("open");
        let (senders, answers): (Vec<_>, Vec<_>) = (0..threads).map(|_| channel()).unzip();
        let (_, none) = channel();
        let lines = std::mem::replace(&mut talker.lines, none);
        std::thread::spawn(move || {
            for line in lines {
                let Some((thread, answer)) = said(&line, "").and_then(|it| it.split_once(' '))
                else {
                    continue;
                };
                if let Ok(thread) = thread.parse::<usize>() {
                    // The test may have ended.
                    let _ = senders[thread].send(answer.to_owned());
                }
            }
        });
        let answers = answers.into_iter().map(Mutex::new).collect();
        Server { talker: Mutex::new(talker), answers }
    }

    /// Makes a call; `None` if the child has ended.
    fn call(&self, thread: usize, line: &str) -> Option<String> {
        let asked = writeln!(self.talker.lock().unwrap().input, "{thread} {line}");
        asked.ok()?;
        self.answers[thread].lock().unwrap().recv().ok()
    }

    fn signal(&self, signal: &str) {
        let pid = self.talker.lock().unwrap().child.id().to_string();
        let sent = std::process::Command::new("kill").args([signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    fn kill(&self) {
        self.talker.lock().unwrap().child.kill().unwrap();
    }
}

/// All that has happened.
#[derive(Default)]
struct Recorder {
    clock: AtomicU64,
    values: AtomicU64,
    history: Mutex<Vec<Operation>>,
    is_over: AtomicBool,
}

impl Recorder {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn note(&self, key: u64, call: RegisterCall, begun: u64, ended: Option<u64>) {
        self.history.lock().unwrap().push(Operation { key, call, begun, ended });
    }

    /// Writes to the key 1, in this process.
    fn put_here(&self, users: &Partition, value: u64) {
        let begun = self.tick();
        assert_eq!(put(users, &format!("key1 {value}")), "ok");
        self.note(1, RegisterCall::Write(value), begun, Some(self.tick()));
    }

    /// Writes until the primary is fenced, killed, or the run is over. Sends a word for each write.
    fn write(&self, writer: &Server, thread: usize, mut rng: Rng, done: &Sender<()>) {
        while !self.is_over.load(Ordering::Relaxed) {
            let key = rng.below(KEYS);
            let value = INITIAL + 1 + self.values.fetch_add(1, Ordering::Relaxed);
            let begun = self.tick();
            let answer = writer.call(thread, &format!("key{key} {value}"));
            let is_done = answer.as_deref() == Some("ok");
            let ended = is_done.then(|| self.tick());
            self.note(key, RegisterCall::Write(value), begun, ended);
            if !is_done {
                // The outcome is open.
                assert!(answer.as_deref().is_none_or(|it| it == "fenced"), "{answer:?}");
                return;
            }
            // No one waits at the end.
            let _ = done.send(());
        }
    }

    /// Reads until the reader is killed, or the run is over.
    fn read(&self, reader: &Server, thread: usize, mut rng: Rng) {
        while !self.is_over.load(Ordering::Relaxed) {
            if !self.read_once(reader, thread, rng.below(KEYS)) {
                return;
            }
        }
    }

    /// Returns `false` if the reader has ended.
    fn read_once(&self, reader: &Server, thread: usize, key: u64) -> bool {
        let begun = self.tick();
        let Some(answer) = reader.call(thread, &format!("key{key}")) else { return false };
        let ended = self.tick();
        let value = answer.strip_prefix("value ").unwrap_or_else(|| panic!("{answer}"));
        self.note(key, RegisterCall::Read(value.parse().unwrap()), begun, Some(ended));
        true
    }
}

type Scope<'scope, 'env> = &'scope std::thread::Scope<'scope, 'env>;

/// A run. A process ends with the last thread that uses it. A run that fails ends them all: else its threads would wait
/// for their answers.
struct Run<'scope, 'env> {
    scope: Scope<'scope, 'env>,
    place: &'env Place,
    recorder: Arc<Recorder>,
    rng: Rng,
    servers: Vec<Weak<Server>>,
}

impl Drop for Run<'_, '_> {
    fn drop(&mut self) {
        self.recorder.is_over.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            self.servers.iter().filter_map(Weak::upgrade).for_each(|server| server.kill());
        }
    }
}

impl Run<'_, '_> {
    fn start(&mut self, child: &str, arguments: &[&str], threads: usize) -> Arc<Server> {
        let server = Arc::new(Server::start(child, arguments, threads));
        self.servers.push(Arc::downgrade(&server));
        server
    }

    fn start_writer(&mut self, number: u64) -> (Arc<Server>, Receiver<()>) {
        let folder = self.place.dir(&number.to_string());
        let arguments = [&self.place.url, folder.to_str().unwrap()];
        let writer = self.start("child_that_writes", &arguments, WRITER_THREADS);
        let (sender, done) = channel();
        for thread in 0..WRITER_THREADS {
            let rng = self.rng.fork();
            let recorder = self.recorder.clone();
            let writer = writer.clone();
            let sender = sender.clone();
            self.scope.spawn(move || recorder.write(&writer, thread, rng, &sender));
        }
        (writer, done)
    }

    fn start_reader(&mut self) -> Arc<Server> {
        let url = self.place.url.clone();
        let reader = self.start("child_that_reads", &[&url], READER_THREADS);
        for thread in 0..READER_THREADS {
            let rng = self.rng.fork();
            let recorder = self.recorder.clone();
            let reader = reader.clone();
            self.scope.spawn(move || recorder.read(&reader, thread, rng));
        }
        reader
    }
}

fn wait(done: &Receiver<()>, writes: u64) {
    (0..writes).for_each(|_| done.recv().expect("nothing fences the last writer"));
}

#[test]
fn writes_and_strong_reads_of_all_processes_are_linearizable() {
    let rng = Rng::from_env_or(1);
    let place = Place::new("linear");
    let recorder = Arc::new(Recorder::default());
    std::thread::scope(|scope| {
        let servers = Vec::new();
        let mut run = Run { scope, place: &place, recorder: recorder.clone(), rng, servers };
        let mut writer = run.start_writer(0);
        wait(&writer.1, 1);
        let mut readers: Vec<_> = (0..READERS).map(|_| run.start_reader()).collect();
        for round in 1..=rounds_or(ROUNDS) {
            wait(&writer.1, run.rng.range(10..60));
            let stops = run.rng.chance(1, 3);
            if stops {
                writer.0.signal("-STOP");
            } else if run.rng.chance(1, 2) {
                writer.0.kill();
            }
            // Else it writes during the takeover.
            let reader = run.rng.index(READERS);
            let is_reader_killed = run.rng.chance(1, 3);
            if is_reader_killed {
                readers[reader].kill();
            } else {
                readers[reader].signal("-STOP");
            }
            let next = run.start_writer(round);
            wait(&next.1, run.rng.range(1..20));
            if stops {
                writer.0.signal("-CONT");
            }
            if is_reader_killed {
                readers[reader] = run.start_reader();
            } else {
                readers[reader].signal("-CONT");
            }
            writer = next;
        }
        wait(&writer.1, 20);
    });
    check(&recorder);
}

#[expect(clippy::print_stdout, reason = "a run shows its place and its size")]
fn check(recorder: &Recorder) {
    let history = recorder.history.lock().unwrap();
    let reads = history.iter().filter(|it| matches!(it.call, RegisterCall::Read(_))).count();
    let open = history.iter().filter(|it| it.ended.is_none()).count();
    let writes = history.len() - reads - open;
    println!("{writes} writes, {open} of unknown outcome, {reads} strong reads");
    if let Err(violation) = check_registers(&history) {
        panic!("{violation}");
    }
}

#[test]
fn a_reader_that_does_not_ask_the_bucket_is_found() {
    for (word, is_sound) in [("", true), ("deaf", false)] {
        let place = Place::new("deaf");
        let primary = place.remote().primary(place.dir("0")).unwrap();
        let db = primary.builder().open().unwrap();
        let users = db.partition("users").unwrap();
        let recorder = Recorder::default();
        recorder.put_here(&users, 1);
        let reader = Server::start("child_that_reads", &[&place.url, word], READER_THREADS);
        assert!(recorder.read_once(&reader, 0, 1));
        recorder.put_here(&users, 2);
        assert!(recorder.read_once(&reader, 1, 1));
        let history = recorder.history.into_inner().unwrap();
        assert_eq!(check_registers(&history).is_ok(), is_sound, "{history:?}");
    }
}
