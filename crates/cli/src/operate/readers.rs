//! [`ReadersFile`]: the readers of an operator that are processes, for the next operator.
//!
//! The first line is the arguments of all of them, the others are one reader each: process, address of the protocol, address
//! of the metrics.
//!
//! Invariant: a process is taken for a reader only if it has named its number at its address. Numbers are given again.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, test_kill_process};
use siltstone::clock::Clock;

use super::control::Addresses;
use super::figures::{Asker, Silence};
use super::nodes::{replace, with_ending};
use crate::output::{Failure, note};

/// The time between two questions to a reader that does not answer yet.
const PAUSE: Duration = Duration::from_millis(100);

/// The file next to a list of nodes that names the readers.
#[derive(Debug)]
pub(super) struct ReadersFile {
    path: PathBuf,
    /// The first line.
    arguments: String,
    asker: Asker,
}

impl ReadersFile {
    /// The file next to `nodes` of readers with these arguments.
    pub(super) fn new(nodes: &Path, arguments: &[OsString], asker: Asker) -> ReadersFile {
        // As a list of literals it is one line, whatever is in the arguments.
        let arguments = format!("{arguments:?}");
        ReadersFile { path: with_ending(nodes, ".readers"), arguments, asker }
    }

    /// The readers that an earlier operator has left, and that still run. All together have the time `limit` to answer.
    ///
    /// # Errors
    /// A process of the file that lives and does not answer: it may be a reader, and must not be lost. Readers that run with
    /// other arguments: they serve another database, or other users.
    pub(super) fn left(
        &self,
        limit: Duration,
        clock: &dyn Clock,
    ) -> Result<Vec<(Pid, Addresses)>, Failure> {
        let path = &self.path;
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Failure::io("read", path, &error)),
        };
        let end = clock.now().saturating_add(limit);
        let mut left = Vec::new();
        let mut lines = text.lines().enumerate();
        let arguments = lines.next().map_or("", |(_, line)| line);
        if !text.is_empty() && !arguments.starts_with('[') {
            let text = format!(
                "{}:1: the first line is the arguments of the readers, not {arguments:?}",
                path.display()
            );
            return Err(Failure::Usage(text));
        }
        for (number, line) in lines {
            let (pid, addresses) = parse(line).ok_or_else(|| {
                let at = format!("{}:{}", path.display(), number + 1);
                Failure::Usage(format!("{at}: a line is PROCESS ADDRESS ADDRESS, not {line:?}"))
            })?;
            if self.is_reader(pid, &addresses, end, clock)? {
                left.push((pid, addresses));
            }
        }
        if !left.is_empty() && arguments != self.arguments {
            let text = format!(
                "{}: its readers run with {arguments}, and not with {}: end them by an operator with their arguments, \
                 or take another list of nodes",
                path.display(),
                self.arguments
            );
            return Err(Failure::Usage(text));
        }
        Ok(left)
    }

    /// Replaces the file.
    pub(super) fn write<'a>(
        &self,
        readers: impl Iterator<Item = (Pid, &'a Addresses)>,
    ) -> Result<(), Failure> {
        let lines = readers.map(|(pid, Addresses { requests, figures })| {
            format!("{} {requests} {figures}\n", pid.as_raw_nonzero())
        });
        let text = format!("{}\n{}", self.arguments, lines.collect::<String>());
        replace(&self.path, &text)
    }

    /// Returns whether process `pid` serves at the address. One that does not answer is asked until `end`: it may still open
    /// its database.
    fn is_reader(
        &self,
        pid: Pid,
        addresses: &Addresses,
        end: Duration,
        clock: &dyn Clock,
    ) -> Result<bool, Failure> {
        let number = pid.as_raw_nonzero();
        let address = &addresses.figures;
        let named = format!("process {number} of {}", self.path.display());
        let mut has_waited = false;
        loop {
            if test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
                return Ok(false);
            }
            let silence = match self.asker.figures_of(address) {
                Ok(figures) => return Ok(figures.process == u32::try_from(number.get()).ok()),
                Err(silence) => silence,
            };
            let is_late = clock.now() >= end;
            let what = match silence {
                Silence::Foreign => "another program answers there".to_owned(),
                Silence::Failed(what) if is_late => what,
                Silence::Refused if is_late => {
                    note(format_args!(
                        "siltstone: {named} does not listen at {address}, and is no reader"
                    ));
                    return Ok(false);
                }
                Silence::Failed(_) | Silence::Refused => {
                    if !has_waited {
                        note(format_args!("siltstone: waits for {named} to answer at {address}"));
                    }
                    has_waited = true;
                    std::thread::park_timeout(PAUSE);
                    continue;
                }
            };
            return Err(Failure::Io(format!(
                "{named} is at {address} and gives no figures ({what}): end it, or strike its line"
            )));
        }
    }
}

/// Reads a line.
fn parse(line: &str) -> Option<(Pid, Addresses)> {
    let mut words = line.split_whitespace().map(str::to_owned);
    let pid = words.next()?.parse().ok().filter(|pid| *pid > 1).and_then(Pid::from_raw)?;
    let addresses = Addresses { requests: words.next()?, figures: words.next()? };
    words.next().is_none().then_some((pid, addresses))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use siltstone::clock::SystemClock;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn file(nodes: &Path, arguments: &[OsString]) -> ReadersFile {
        ReadersFile::new(nodes, arguments, Asker::default())
    }

    /// Answers one request with a page.
    fn answering(
        page: impl std::fmt::Display + Send + 'static,
    ) -> (Addresses, std::thread::JoinHandle<()>) {
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
        let file = file(Path::new("nodes"), &[]);
        // This process lives, and is no reader.
        let own = rustix::process::getpid();
        let (addresses, thread) =
            answering("siltstone_server_up 1\nsiltstone_server_process_id 1\n");
        assert!(!file.is_reader(own, &addresses, Duration::ZERO, &SystemClock::new()).unwrap());
        thread.join().unwrap();
        let (addresses, thread) = answering("hello");
        let Err(Failure::Io(text)) =
            file.is_reader(own, &addresses, Duration::MAX, &SystemClock::new())
        else {
            panic!("a reader that gives no figures is lost")
        };
        assert!(text.contains("nodes.readers") && text.contains("strike its line"), "{text}");
        thread.join().unwrap();
    }

    /// A file with this process as a reader, which serves with `arguments`; and the thread that answers for it.
    fn file_with_reader(nodes: &Path, arguments: &[OsString]) -> std::thread::JoinHandle<()> {
        let own = rustix::process::getpid();
        let (addresses, thread) = answering(format!(
            "siltstone_server_up 1\nsiltstone_server_process_id {}\n",
            own.as_raw_nonzero()
        ));
        file(nodes, arguments).write([(own, &addresses)].into_iter()).unwrap();
        thread
    }

    #[test]
    fn readers_with_other_arguments_are_not_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = folder.path().join("nodes");
        let users: Vec<OsString> = ["serve", "/users\n"].map(OsString::from).to_vec();
        let posts: Vec<OsString> = ["serve", "/posts"].map(OsString::from).to_vec();
        let thread = file_with_reader(&nodes, &users);
        let Err(Failure::Usage(text)) = file(&nodes, &posts).left(LIMIT, &SystemClock::new())
        else {
            panic!("readers of another database are taken over")
        };
        assert!(
            text.contains("nodes.readers: its readers run with") && text.contains("/posts"),
            "{text}"
        );
        assert!(text.contains(r"/users\n"), "{text}");
        thread.join().unwrap();
        let thread = file_with_reader(&nodes, &users);
        assert_eq!(file(&nodes, &users).left(LIMIT, &SystemClock::new()).unwrap().len(), 1);
        thread.join().unwrap();
        // Those that do not run any more are of no account.
        file(&nodes, &users).write(std::iter::empty()).unwrap();
        assert!(file(&nodes, &posts).left(LIMIT, &SystemClock::new()).unwrap().is_empty());
    }

    #[test]
    fn a_reader_that_does_not_answer_in_time_is_not_lost() {
        let own = rustix::process::getpid();
        let file = file(Path::new("nodes"), &[]);
        // It has connections, and answers none.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let figures = listener.local_addr().unwrap().to_string();
        let addresses = Addresses { requests: "127.0.0.1:1".to_owned(), figures };
        let clock = SystemClock::new();
        let Err(Failure::Io(text)) = file.is_reader(own, &addresses, Duration::ZERO, &clock) else {
            panic!("a reader that hangs is lost")
        };
        assert!(text.contains("strike its line"), "{text}");
        // Nothing is there: it is another process by now.
        drop(listener);
        assert!(!file.is_reader(own, &addresses, Duration::ZERO, &clock).unwrap());
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
