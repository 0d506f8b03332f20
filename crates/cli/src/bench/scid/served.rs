//! [`ServedNode`]: a server of the experiment, `siltstone serve`, as its client reaches it over TCP.
//!
//! A server has two connections: one whose reads are at level 1, and one whose reads are at level 5. In the baseline, which
//! stands in for synchronous replication, a write is done when both readers have answered `EXISTS` at level 1: that catches
//! up with the primary before it answers, on the thread that read the request, and its reply has four bytes. So it is the
//! cheapest request by which a reader can say that it has applied a write.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use super::link::Link;
use crate::bench::tcp::Connection;
use crate::output::Failure;

/// The time between two looks at the processor time of a server.
const LOOK: Duration = Duration::from_millis(100);
/// Looks until a server counts as idle, whatever it does.
const LOOKS_MAX: usize = 20;
/// Nanoseconds of a tick of the processor time that the system shows of other processes.
const TICK_NANOS: u64 = 10_000_000;

/// A server of the experiment.
pub(super) struct ServedNode {
    child: Child,
    /// Open until the end, so that the server can write to it.
    _errors: BufReader<ChildStderr>,
    strong: Connection,
    weak: Connection,
}

fn broken(action: &str, e: &std::io::Error) -> Failure {
    Failure::Io(format!("cannot {action} a server of the experiment: {e}"))
}

/// The address in the line of a server that is ready.
fn address_in(line: &str) -> Option<&str> {
    let is_ready = ["siltstone: primary of ", "siltstone: reader of "];
    let is_ready = is_ready.iter().any(|begin| line.starts_with(begin));
    line.trim_end().rsplit_once(" at ").map(|(_, address)| address).filter(|_| is_ready)
}

impl ServedNode {
    /// Starts the primary of a folder, which ships to `remote`.
    pub(super) fn primary(folder: &Path, remote: Option<&str>) -> Result<ServedNode, Failure> {
        let mut command = serve(folder)?;
        if let Some(url) = remote {
            command.args(["--remote", url]);
        }
        ServedNode::start(command)
    }

    /// Starts a reader of a folder, or of `remote`.
    pub(super) fn reader(folder: &Path, remote: Option<&str>) -> Result<ServedNode, Failure> {
        let Some(url) = remote else {
            let mut command = serve(folder)?;
            command.arg("--secondary");
            return ServedNode::start(command);
        };
        ServedNode::start(serve(Path::new(url))?)
    }

    fn start(mut command: Command) -> Result<ServedNode, Failure> {
        let mut child = command.spawn().map_err(|e| broken("start", &e))?;
        let errors = child.stderr.take().expect("it is piped");
        let mut errors = BufReader::new(errors);
        let mut said = String::new();
        let connected = loop {
            let from = said.len();
            match errors.read_line(&mut said) {
                Ok(0) => {
                    break Err(Failure::Io(format!("a server of the experiment says: {said}")));
                }
                Err(e) => break Err(broken("hear", &e)),
                Ok(_) => {}
            }
            if let Some(address) = address_in(&said[from..]) {
                break connections(address).map_err(|e| broken("reach", &e));
            }
        };
        match connected {
            Ok([strong, weak]) => Ok(ServedNode { child, _errors: errors, strong, weak }),
            Err(failure) => {
                end(&mut child);
                Err(failure)
            }
        }
    }
}

fn serve(database: &Path) -> Result<Command, Failure> {
    let program = std::env::current_exe().map_err(|e| broken("find", &e))?;
    let mut command = Command::new(program);
    command.arg("serve").arg(database).args(["--listen", "127.0.0.1:0"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Ok(command)
}

/// A connection at level 1, and one at level 5.
fn connections(address: &str) -> std::io::Result<[Connection; 2]> {
    let mut both = [Connection::new(address)?, Connection::new(address)?];
    for (connection, level) in both.iter_mut().zip(["1", "5"]) {
        connection.send([&b"SCID.LEVEL"[..], level.as_bytes()].into_iter())?;
        connection.value()?;
    }
    Ok(both)
}

impl Link for ServedNode {
    /// Its key.
    type Written = Vec<u8>;

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<u8>, Failure> {
        let sent = self.strong.send([&b"SET"[..], key, value].into_iter());
        sent.and_then(|()| self.strong.value()).map_err(|e| broken("ask", &e))?;
        Ok(key.to_vec())
    }

    fn fill(&mut self, records: &[(Vec<u8>, &[u8])]) -> Result<Option<Vec<u8>>, Failure> {
        let mut words = vec![&b"MSET"[..]];
        words.extend(records.iter().flat_map(|(key, value)| [&key[..], value]));
        let sent = self.strong.send(words.into_iter());
        sent.and_then(|()| self.strong.value()).map_err(|e| broken("fill", &e))?;
        Ok(records.last().map(|(key, _)| key.clone()))
    }

    fn get(&mut self, is_strong: bool, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let connection = if is_strong { &mut self.strong } else { &mut self.weak };
        let sent = connection.send([&b"GET"[..], key].into_iter());
        let is_found = sent.and_then(|()| connection.value()).map_err(|e| broken("ask", &e))?;
        Ok(is_found.then(|| connection.value.clone()))
    }

    fn ask_to_reach(&mut self, written: &Vec<u8>) -> Result<(), Failure> {
        let sent = self.strong.send([&b"EXISTS"[..], written].into_iter());
        sent.map_err(|e| broken("ask", &e))
    }

    fn reached(&mut self) -> Result<(), Failure> {
        self.strong.value().map(drop).map_err(|e| broken("hear", &e))
    }

    fn rest(&mut self) -> Result<(), Failure> {
        let mut before = self.processor_time()?;
        for _ in 0..LOOKS_MAX {
            std::thread::park_timeout(LOOK);
            let now = self.processor_time()?;
            if now <= before + TICK_NANOS {
                break;
            }
            before = now;
        }
        Ok(())
    }

    fn processor_time(&mut self) -> Result<u64, Failure> {
        let path = format!("/proc/{}/stat", self.child.id());
        // Zero where the system does not show it.
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        Ok(ticks(&stat).unwrap_or(0) * TICK_NANOS)
    }

    fn stop(self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Its end is not measured, and its database is not used again. A failure elsewhere leaves no server.
impl Drop for ServedNode {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    // It may have ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// The ticks in user mode and in the kernel of a process, in a line of `/proc/PID/stat`.
fn ticks(stat: &str) -> Option<u64> {
    // The name of the program, in parentheses, may have blanks.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some(user + kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_that_of_the_line_of_a_server_that_is_ready() {
        let line = "siltstone: reader of /tmp/a at b at 127.0.0.1:4711\n";
        assert_eq!(address_in(line), Some("127.0.0.1:4711"));
        assert_eq!(address_in("error: nothing at 127.0.0.1:4711"), None);
    }

    #[test]
    fn the_processor_time_of_a_process_is_that_of_user_and_kernel() {
        let stat = "42 (a ) b) S 1 2 3 4 5 6 7 8 9 10 700 30 0 0";
        assert_eq!(ticks(stat), Some(730));
        assert_eq!(ticks(""), None);
    }
}
