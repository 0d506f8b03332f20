//! The promises on a real server, with several processes. `scripts/servers.sh` starts the servers.
//!
//! `SILTSTONE_REMOTE_URL` names a place in a store, below which each test takes a prefix of its own. Without it the
//! tests run in a local folder, which shows that they work, and nothing of a server. `ROUNDS` is the number of
//! takeovers.

#![expect(clippy::unwrap_used, reason = "a test that unwraps in vain has failed")]

mod calls;
mod churn;
mod churn_model;
mod churn_readers;
mod kills;
mod linear;
mod readers;
#[path = "../it/store_layer.rs"]
mod store_layer;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use remote::Remote;
use tempfile::TempDir;

const URL: &str = "SILTSTONE_REMOTE_URL";
/// In a child: its arguments, one a line.
const CHILD: &str = "SILTSTONE_REMOTE_CHILD";

/// A place for one test.
struct Place {
    url: String,
    /// Folders of primaries, and the store if no server is named.
    folder: TempDir,
}

impl Place {
    #[expect(clippy::print_stdout, reason = "a run shows its place and its size")]
    fn new(test: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let url = match std::env::var(URL) {
            Ok(url) => {
                // A prefix that no earlier run has used.
                let unique = folder.path().file_name().unwrap().to_str().unwrap();
                format!("{}/{test}{unique}", url.trim_end_matches('/')).replace("/.", "/")
            }
            Err(_) => {
                println!("{URL} is not set: no server is tested, only a local folder");
                let store = folder.path().join("store");
                siltstone::fs::Fs::create_dir(&siltstone::fs::OsFs, &store).unwrap();
                format!("file://{}", store.display())
            }
        };
        Place { url, folder }
    }

    fn remote(&self) -> Remote {
        Remote::url(&self.url).unwrap().interval(Duration::from_millis(20))
    }

    fn dir(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }
}

/// A child that prints lines, and takes some.
struct Talker {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Talker {
    /// This binary again, as the child that the named test is.
    fn start(test: &str, arguments: &[&str]) -> Talker {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(CHILD, arguments.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8(line).unwrap();
                // The receiver may be gone: the test has failed or does not ask any more.
                let _ = sender.send(line);
            }
        });
        Talker { child, input, lines }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The rest of the next line that begins with `word`.
    fn hear(&self, word: &str) -> String {
        loop {
            let line =
                self.lines.recv().unwrap_or_else(|_| panic!("a child ended before {word:?}"));
            if let Some(rest) = said(&line, word) {
                return rest.to_owned();
            }
        }
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rest of a line after `word`; the test runner may have printed before it.
fn said<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("> {word}"))?;
    Some(rest.trim_start())
}

/// The arguments of a child; `None` under the test runner.
fn child_arguments() -> Option<Vec<String>> {
    let arguments = std::env::var(CHILD).ok()?;
    Some(arguments.split('\n').map(str::to_owned).collect())
}

fn rounds_or(rounds: u64) -> u64 {
    std::env::var("ROUNDS").map_or(rounds, |rounds| rounds.parse().unwrap())
}
