//! A server or a router as a process: started, asked for its address, and ended.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A process that says nothing for so long does not start, and the test fails.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A process that is woken and killed at its end.
pub struct Running {
    pub child: Child,
    pub address: String,
    /// Collects what the process says.
    said: Option<JoinHandle<String>>,
}

impl Running {
    /// Starts the command at a port that is free, and waits until it says where it is.
    pub fn start(at: &Path, args: &[&str]) -> Running {
        let command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
        let running =
            Running::start_by(command, at, &[args, &["--listen", "127.0.0.1:0"]].concat());
        let address = running.address.parse::<SocketAddr>();
        assert!(address.is_ok(), "{args:?}: its first line ends in {:?}", running.address);
        running
    }

    /// Starts it by `command`, with arguments that name its port if it has one, and waits for its first line.
    pub fn start_by(mut command: Command, at: &Path, args: &[&str]) -> Running {
        let command = command.current_dir(at).args(args);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the command can be started");
        let errors = child.stderr.take().expect("it is a pipe");
        let (sender, receiver) = channel();
        let said = std::thread::spawn(move || listen(errors, &sender));
        let mut running = Running { child, address: String::new(), said: Some(said) };
        let address = receiver.recv_timeout(START_LIMIT);
        running.address = address.unwrap_or_else(|e| panic!("{args:?} says no address: {e}"));
        running
    }

    /// Ends it, and returns what it has said besides its address.
    pub fn end(mut self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("the command runs");
        let is_success = self.child.wait().expect("the command ends").success();
        let said = self.said.take().expect("it is joined once").join().expect("it reads");
        assert!(is_success, "{said}");
        said
    }
}

/// Reads what a process says: the address goes to `sender`, the rest is returned. Also if the test needs none of it: a process
/// ends by a line that no one reads.
fn listen(errors: ChildStderr, sender: &Sender<String>) -> String {
    let mut said = String::new();
    let mut is_named = false;
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        // Keys of a repository can be read by all; a warning says so first.
        if is_named || line.contains(" TLS: ") {
            said += &format!("{line}\n");
        } else {
            let address = line.rsplit(' ').next().expect("a line has a word");
            is_named = sender.send(address.to_owned()).is_ok();
        }
    }
    said
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::CONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
