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
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use siltstone::clock::Clock;

use super::control::{Addresses, Instance, Launcher};
use super::figures::{Asker, is_refused};
use super::nodes::{replace, with_ending};
use super::readers::ReadersFile;
use crate::files::hand_keys_to;
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
    /// Addresses of readers that have ended: routers know them already.
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
    fn end(&mut self) -> Option<String> {
        match &mut self.process {
            Process::Child(child) => match child.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(status.to_string()),
                Err(error) => Some(error.to_string()),
            },
            // A process that no one waits for keeps its number, but not its port.
            Process::Adopted(pid) => {
                let is_gone = test_kill_process(*pid) == Err(rustix::io::Errno::SRCH)
                    || is_refused(&self.addresses.figures);
                is_gone.then(|| "its process is gone".to_owned())
            }
        }
    }
}

impl Processes {
    /// Takes over the readers that an earlier operator has left; they have the time `limit` to answer.
    ///
    /// # Errors
    /// Those of [`ReadersFile::left`].
    pub(super) fn new(
        spec: Spec,
        nodes: PathBuf,
        limit: Duration,
        clock: &dyn Clock,
    ) -> Result<Processes, Failure> {
        let file = ReadersFile::new(&nodes, &spec.arguments(), spec.asker.clone());
        let mut running = BTreeMap::new();
        for (pid, addresses) in file.left(limit, clock)? {
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
        if let Some(at) = self.free.iter().rposition(is_free) {
            return Ok(self.free.remove(at));
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

    /// Starts a process that serves at the addresses.
    fn spawn(&self, addresses: &Addresses) -> Result<Child, Failure> {
        let log = self.log_of(addresses);
        replace(&log, "")?;
        let file = std::fs::File::options();
        let file = open_to_append(file, &log)?;
        let spec = &self.spec;
        let mut command = Command::new(&spec.program);
        command.args(spec.arguments());
        command.args(["--listen", &addresses.requests, "--http", &addresses.figures]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        hand_keys_to(&mut command);
        let child = command.process_group(0).spawn();
        child.map_err(|e| Failure::io("start", &spec.program, &e))
    }

    /// Kills a reader that has just been started.
    fn undo(&mut self, name: &str) {
        let Some(Running { process, addresses, .. }) = self.running.remove(name) else { return };
        if let Process::Child(mut child) = process {
            // It fails only for a child that was waited for, which this one was not.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.free.push(addresses);
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
        if running.end().is_some() {
            return Ok(());
        }
        match kill_process(running.number(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Failure::Io(format!("cannot signal reader {name}: {error}"))),
        }
    }
}

fn is_free(addresses: &Addresses) -> bool {
    bind(&addresses.requests).is_ok() && bind(&addresses.figures).is_ok()
}

fn bind(address: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|e| Failure::Io(format!("cannot listen at {address}: {e}")))
}

impl Launcher for Processes {
    fn start(&mut self) -> Result<String, Failure> {
        let addresses = self.addresses()?;
        let child = match self.spawn(&addresses) {
            Ok(child) => child,
            Err(failure) => {
                self.free.push(addresses);
                return Err(failure);
            }
        };
        let name = addresses.requests.clone();
        let process = Process::Child(child);
        self.running.insert(name.clone(), Running { process, addresses, is_ending: false });
        if let Err(failure) = self.save() {
            // A reader that the file does not name would be lost at the end of this operator.
            self.undo(&name);
            return Err(failure);
        }
        Ok(name)
    }

    fn readers(&mut self) -> Result<Vec<Instance>, Failure> {
        let mut instances = Vec::new();
        for (name, running) in &mut self.running {
            let addresses = Some(running.addresses.clone());
            let end = running.end();
            instances.push(Instance { name: name.clone(), addresses, end, trouble: None });
        }
        let mut has_changed = false;
        for instance in instances.iter_mut().filter(|it| it.end.is_some()) {
            let Some(ended) = self.running.remove(&instance.name) else { continue };
            has_changed = true;
            if !ended.is_ending
                && let Some(line) = self.last_line(&ended.addresses)
            {
                instance.end = instance.end.take().map(|end| format!("{end}; {line}"));
            }
            self.free.push(ended.addresses);
        }
        if has_changed && let Err(failure) = self.save() {
            // The next operator asks each process of the file, and finds those that have ended.
            failure.report();
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
#[expect(clippy::disallowed_methods, reason = "the files are outside every database")]
mod tests {
    use std::path::Path;

    use super::*;

    /// Readers of the folder that run until they are killed.
    fn processes(folder: &Path) -> Processes {
        let program = folder.join("program");
        // Another process writes it: a program that this process may have open for writing cannot be started.
        let script = format!(
            "printf '#!/bin/sh\\nexec sleep 600\\n' > {0}; chmod +x {0}",
            program.display()
        );
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        let database = folder.join("db");
        let host = "127.0.0.1".to_owned();
        let asker = Asker::default();
        let spec = Spec { program, database, is_folder: true, host, more: Vec::new(), asker };
        let clock = siltstone::clock::SystemClock::new();
        Processes::new(spec, folder.join("nodes"), Duration::ZERO, &clock).unwrap()
    }

    /// Rounds until a reader has ended, and the way in which it did.
    fn end_of(processes: &mut Processes, name: &str) -> String {
        loop {
            let instances = processes.readers().unwrap();
            let end = instances.into_iter().find(|it| it.name == name).and_then(|it| it.end);
            if let Some(end) = end {
                return end;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_reader_that_no_file_names_is_killed_and_gives_its_addresses_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut processes = processes(folder.path());
        let file = folder.path().join("nodes.readers");
        // A folder in its place: the file cannot be replaced.
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let Err(Failure::Io(text)) = processes.start() else { panic!("a reader is lost") };
        assert!(text.contains("nodes.readers"), "{text}");
        assert!(processes.running.is_empty());
        let free = processes.free[0].clone();
        if cfg!(target_os = "linux") {
            assert_eq!(writers_of(&processes.log_of(&free)), 0);
        }
        std::fs::remove_dir(&file).unwrap();
        assert_eq!(processes.start().unwrap(), free.requests);
        processes.kill(&free.requests).unwrap();
        end_of(&mut processes, &free.requests);
    }

    #[test]
    fn a_reader_that_died_and_one_that_cannot_start_give_their_addresses_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut processes = processes(folder.path());
        let name = processes.start().unwrap();
        let reader = processes.running[&name].number();
        kill_process(reader, Signal::KILL).unwrap();
        assert!(end_of(&mut processes, &name).contains("signal: 9"));
        let listener = TcpListener::bind(&name).unwrap();
        let other = processes.start().unwrap();
        assert_ne!(other, name);
        drop(listener);
        std::fs::remove_file(folder.path().join("program")).unwrap();
        processes.start().unwrap_err();
        assert_eq!(processes.free[0].requests, name);
        processes.kill(&other).unwrap();
        end_of(&mut processes, &other);
        assert_eq!(processes.free.len(), 2);
    }

    /// The processes that write to `log`.
    fn writers_of(log: &Path) -> usize {
        let log = log.canonicalize().unwrap();
        let processes = std::fs::read_dir("/proc").unwrap().map(|it| it.unwrap().path());
        let errors = processes.filter_map(|it| std::fs::read_link(it.join("fd/2")).ok());
        errors.filter(|it| *it == log).count()
    }
}
