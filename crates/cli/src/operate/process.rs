//! [`Processes`]: a launcher that runs readers as processes of this machine.
//!
//! Each reader is `siltstone serve DATABASE` with free ports, in a process group of its own, so that Ctrl-C reaches the operator
//! alone. A file next to the list of nodes names them, one a line: process, address of the protocol, address of the metrics.
//! An operator that starts takes over the readers of this file that still run.
//!
//! Invariant: no signal goes to a process that is not known to be a reader of this operator. A child is not waited for
//! before its end was seen; a process of an earlier operator has named its number at its address.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::control::{Addresses, Instance, Launcher};
use super::figures::{Asker, Silence};
use super::nodes::{replace, with_ending};
use crate::output::{Failure, note};

/// The readers' command line.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) program: PathBuf,
    /// Folder, or URL of a bucket.
    pub(super) database: PathBuf,
    pub(super) is_folder: bool,
    /// The host of the addresses.
    pub(super) host: String,
    pub(super) more: Vec<String>,
    /// For their figures.
    pub(super) asker: Asker,
}

#[derive(Debug)]
enum Process {
    Child(Child),
    /// Of an earlier operator.
    Adopted(Pid),
}

#[derive(Debug)]
struct Running {
    process: Process,
    addresses: Addresses,
    /// It was asked to end.
    is_ending: bool,
}

/// Readers that are processes of this machine.
pub(super) struct Processes {
    spec: Spec,
    nodes: PathBuf,
    running: BTreeMap<String, Running>,
    /// Addresses of readers that have ended as they were asked to: routers know them already.
    free: Vec<Addresses>,
}

/// The times that a reader of the file which does not listen yet gets, one each tenth of a second.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

impl Running {
    fn number(&self) -> Pid {
        match &self.process {
            Process::Child(child) => Pid::from_child(child),
            Process::Adopted(pid) => *pid,
        }
    }

    /// Returns how it ended, once it has.
    fn end(&mut self, asker: &Asker) -> Option<String> {
        match &mut self.process {
            Process::Child(child) => match child.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(status.to_string()),
                Err(error) => Some(error.to_string()),
            },
            // A process that no one waits for keeps its number, but not its port.
            Process::Adopted(pid) => {
                let is_gone = test_kill_process(*pid) == Err(rustix::io::Errno::SRCH)
                    || asker.figures_of(&self.addresses.figures) == Err(Silence::Refused);
                is_gone.then(|| "its process is gone".to_owned())
            }
        }
    }
}

impl Processes {
    /// Takes over the readers that an earlier operator has left.
    ///
    /// # Errors
    /// A reader of the file that has a process and does not answer: it may be one, and must not be lost.
    pub(super) fn new(spec: Spec, nodes: PathBuf) -> Result<Processes, Failure> {
        let path = with_ending(&nodes, ".readers");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Failure::io("read", &path, &error)),
        };
        let mut running = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let (pid, addresses) = parse(line).ok_or_else(|| {
                let at = format!("{}:{}", path.display(), number + 1);
                Failure::Usage(format!("{at}: a line is PROCESS ADDRESS ADDRESS, not {line:?}"))
            })?;
            if !is_reader(&spec.asker, pid, &addresses, &path)? {
                continue;
            }
            let process = Process::Adopted(pid);
            let name = addresses.requests.clone();
            running.insert(name, Running { process, addresses, is_ending: false });
        }
        let processes = Processes { spec, nodes, running, free: Vec::new() };
        processes.save()?;
        Ok(processes)
    }

    /// Writes the file of the readers.
    fn save(&self) -> Result<(), Failure> {
        let lines = self.running.values().map(|it| {
            let Addresses { requests, figures } = &it.addresses;
            format!("{} {requests} {figures}\n", it.number().as_raw_nonzero())
        });
        replace(&with_ending(&self.nodes, ".readers"), &lines.collect::<String>())
    }

    /// Two addresses at which no process listens. Another process may take them; the reader fails then, and is started again.
    fn addresses(&mut self) -> Result<Addresses, Failure> {
        let host = &self.spec.host;
        while let Some(addresses) = self.free.pop() {
            if bind(&addresses.requests).is_ok() && bind(&addresses.figures).is_ok() {
                return Ok(addresses);
            }
        }
        let any = format!("{host}:0");
        let listeners = [bind(&any)?, bind(&any)?];
        let mut names = Vec::new();
        for listener in &listeners {
            let address = listener.local_addr();
            let address =
                address.map_err(|e| Failure::Io(format!("cannot listen at {any}: {e}")))?;
            names.push(format!("{host}:{}", address.port()));
        }
        let [requests, figures] = [names.remove(0), names.remove(0)];
        Ok(Addresses { requests, figures })
    }

    fn log_of(&self, addresses: &Addresses) -> PathBuf {
        let port = addresses.requests.rsplit(':').next().unwrap_or_default();
        with_ending(&self.nodes, &format!(".{port}.log"))
    }

    /// The last line that a reader has written.
    fn last_line(&self, addresses: &Addresses) -> Option<String> {
        let text = std::fs::read_to_string(self.log_of(addresses)).ok()?;
        text.lines().last().map(str::to_owned)
    }

    fn signal(&mut self, name: &str, signal: Signal) -> Result<(), Failure> {
        let Some(running) = self.running.get_mut(name) else { return Ok(()) };
        running.is_ending = true;
        // A child that has ended keeps its number until it is waited for, which `readers` does.
        if running.end(&self.spec.asker).is_some() {
            return Ok(());
        }
        match kill_process(running.number(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Failure::Io(format!("cannot signal reader {name}: {error}"))),
        }
    }
}

fn bind(address: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|e| Failure::Io(format!("cannot listen at {address}: {e}")))
}

/// Reads a line of the file of readers.
fn parse(line: &str) -> Option<(Pid, Addresses)> {
    let mut words = line.split_whitespace().map(str::to_owned);
    let pid = words.next()?.parse().ok().filter(|pid| *pid > 1).and_then(Pid::from_raw)?;
    let addresses = Addresses { requests: words.next()?, figures: words.next()? };
    words.next().is_none().then_some((pid, addresses))
}

/// Returns whether process `pid` serves at the address; a process that does not listen gets some time to begin.
fn is_reader(
    asker: &Asker,
    pid: Pid,
    addresses: &Addresses,
    path: &std::path::Path,
) -> Result<bool, Failure> {
    for _ in 0..TRIES {
        if test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
            return Ok(false);
        }
        match asker.figures_of(&addresses.figures) {
            Ok(figures) => {
                return Ok(figures.process == u32::try_from(pid.as_raw_nonzero().get()).ok());
            }
            Err(Silence::Refused) => std::thread::park_timeout(PAUSE),
            Err(Silence::Other(what)) => {
                let text = format!(
                    "process {} of {} is at {} and gives no figures ({what}): end it, or strike its line",
                    pid.as_raw_nonzero(),
                    path.display(),
                    addresses.figures
                );
                return Err(Failure::Io(text));
            }
        }
    }
    note(format_args!(
        "siltstone: process {} does not listen at {}, and is no reader",
        pid.as_raw_nonzero(),
        addresses.figures
    ));
    Ok(false)
}

impl Launcher for Processes {
    fn start(&mut self) -> Result<String, Failure> {
        let addresses = self.addresses()?;
        let log = self.log_of(&addresses);
        replace(&log, "")?;
        let file = std::fs::File::options();
        let file = open_to_append(file, &log)?;
        let spec = &self.spec;
        let mut command = Command::new(&spec.program);
        command.arg("serve").arg(&spec.database);
        if spec.is_folder {
            command.arg("--secondary");
        }
        command.args(["--listen", &addresses.requests, "--http", &addresses.figures]);
        command.args(&spec.more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = command.process_group(0).spawn();
        let child = child.map_err(|e| Failure::io("start", &spec.program, &e))?;
        let name = addresses.requests.clone();
        let process = Process::Child(child);
        self.running.insert(name.clone(), Running { process, addresses, is_ending: false });
        self.save()?;
        Ok(name)
    }

    fn readers(&mut self) -> Result<Vec<Instance>, Failure> {
        let mut instances = Vec::new();
        for (name, running) in &mut self.running {
            let addresses = Some(running.addresses.clone());
            instances.push(Instance {
                name: name.clone(),
                addresses,
                end: running.end(&self.spec.asker),
            });
        }
        let mut has_changed = false;
        for instance in instances.iter_mut().filter(|it| it.end.is_some()) {
            let Some(ended) = self.running.remove(&instance.name) else { continue };
            has_changed = true;
            if ended.is_ending {
                self.free.push(ended.addresses);
            } else if let Some(line) = self.last_line(&ended.addresses) {
                instance.end = instance.end.take().map(|end| format!("{end}; {line}"));
            }
        }
        if has_changed {
            self.save()?;
        }
        Ok(instances)
    }

    fn end(&mut self, name: &str) -> Result<(), Failure> {
        self.signal(name, Signal::TERM)
    }

    fn kill(&mut self, name: &str) -> Result<(), Failure> {
        self.signal(name, Signal::KILL)
    }

    /// The lock of the list of nodes is held until the end.
    fn is_replaced(&self) -> bool {
        false
    }
}

#[expect(clippy::disallowed_methods, reason = "the log of a process, no file of a database")]
fn open_to_append(
    mut options: std::fs::OpenOptions,
    path: &std::path::Path,
) -> Result<std::fs::File, Failure> {
    options.append(true).open(path).map_err(|e| Failure::io("open", path, &e))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// Answers one request with a page.
    fn answering(page: &'static str) -> (Addresses, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let figures = listener.local_addr().unwrap().to_string();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1000];
            assert!(stream.read(&mut request).unwrap() > 0);
            write!(stream, "HTTP/1.1 200 OK\r\n\r\n{page}").unwrap();
        });
        (Addresses { requests: "127.0.0.1:1".to_owned(), figures }, thread)
    }

    #[test]
    fn only_a_process_that_names_its_number_is_taken_over() {
        let path = std::path::Path::new("nodes.readers");
        // This process lives, and is no reader.
        let own = rustix::process::getpid();
        let (addresses, thread) =
            answering("siltstone_server_up 1\nsiltstone_server_process_id 1\n");
        assert!(!is_reader(&Asker::default(), own, &addresses, path).unwrap());
        thread.join().unwrap();
        let (addresses, thread) = answering("hello");
        let Err(Failure::Io(text)) = is_reader(&Asker::default(), own, &addresses, path) else {
            panic!("a reader that gives no figures is lost")
        };
        assert!(text.contains("nodes.readers") && text.contains("strike its line"), "{text}");
        thread.join().unwrap();
    }

    #[test]
    fn lines_of_readers_are_read_as_written() {
        let (pid, addresses) = parse("77 127.0.0.1:1 127.0.0.1:2").unwrap();
        assert_eq!(pid.as_raw_nonzero().get(), 77);
        assert_eq!((&*addresses.requests, &*addresses.figures), ("127.0.0.1:1", "127.0.0.1:2"));
        // A signal to 0 or to a negative number would reach a whole group of processes.
        for wrong in ["", "77 a", "77 a b c", "0 a b", "-5 a b", "1 a b", "x a b"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
