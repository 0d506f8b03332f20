//! [`Processes`]: a launcher that runs readers as processes of this machine.
//!
//! Each reader is `siltstone serve DATABASE` with free ports, in a process group of its own, so that Ctrl-C reaches the operator
//! alone. A file next to the list of nodes names them. An operator that starts takes over the readers of this file that still
//! run.
//!
//! Invariant: no signal goes to a process that is not known to be a reader of this operator. A child is not waited for
//! before its end was seen; a process of an earlier operator has named its number at its address.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::control::{Addresses, Instance, Launcher};
use super::figures::{Asker, Silence};
use super::nodes::{replace, with_ending};
use super::readers::ReadersFile;
use crate::output::Failure;

/// The readers' command line.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) program: PathBuf,
    /// Folder, from the root on, or URL of a bucket.
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
    file: ReadersFile,
    running: BTreeMap<String, Running>,
    /// Addresses of readers that have ended as they were asked to: routers know them already.
    free: Vec<Addresses>,
}

impl Spec {
    /// The arguments of every reader.
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec!["serve".into(), self.database.clone().into_os_string()];
        if self.is_folder {
            arguments.push("--secondary".into());
        }
        arguments.extend(self.more.iter().map(OsString::from));
        arguments
    }
}

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
    /// Those of [`ReadersFile::left`].
    pub(super) fn new(spec: Spec, nodes: PathBuf) -> Result<Processes, Failure> {
        let file = ReadersFile::new(&nodes, &spec.arguments(), spec.asker.clone());
        let mut running = BTreeMap::new();
        for (pid, addresses) in file.left()? {
            let process = Process::Adopted(pid);
            let name = addresses.requests.clone();
            running.insert(name, Running { process, addresses, is_ending: false });
        }
        let processes = Processes { spec, nodes, file, running, free: Vec::new() };
        processes.save()?;
        Ok(processes)
    }

    /// Writes the file of the readers.
    fn save(&self) -> Result<(), Failure> {
        self.file.write(self.running.values().map(|it| (it.number(), &it.addresses)))
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

impl Launcher for Processes {
    fn start(&mut self) -> Result<String, Failure> {
        let addresses = self.addresses()?;
        let log = self.log_of(&addresses);
        replace(&log, "")?;
        let file = std::fs::File::options();
        let file = open_to_append(file, &log)?;
        let spec = &self.spec;
        let mut command = Command::new(&spec.program);
        command.args(spec.arguments());
        command.args(["--listen", &addresses.requests, "--http", &addresses.figures]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
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
