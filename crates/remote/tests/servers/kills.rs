//! Primaries in processes of their own, under load, which are killed, stopped or left alone while the next one takes the
//! database over, again and again.
//!
//! Each writer prints a line for a commit before it makes it, and one when it is acknowledged. At the end everything
//! acknowledged must be there, nothing that was begun after the writer was fenced, and nothing that no writer has begun.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use remote::Remote;
use siltstone::{Durability, ErrorKind, VerifyOptions};
use testkit::Rng;

use crate::{Place, Talker, child_arguments, rounds_or, said};

/// Takeovers, unless `ROUNDS` is another number.
const ROUNDS: u64 = 4;
const THREADS: u64 = 4;

/// A whole line in one write, so that a kill leaves no half of one.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("> {line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// A writer: does nothing unless a parent starts it.
#[test]
fn child_that_writes_until_it_is_fenced_or_killed() {
    let Some(arguments) = child_arguments() else { return };
    let [url, folder, name] = &arguments[..] else { panic!("{arguments:?}") };
    let remote = Remote::url(url).unwrap().interval(std::time::Duration::from_millis(20));
    let primary = remote.take_over(folder).unwrap();
    let db = primary.builder().write_buffer_bytes(64 << 10).open().unwrap();
    let users = db.partition("users").unwrap();
    say("open");
    let is_fenced = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let users = &users;
            let is_fenced = &is_fenced;
            scope.spawn(move || {
                for number in 0.. {
                    let key = format!("{name}-{thread}-{number}");
                    say(&format!("try {key}"));
                    match users.put_with(&key, "x".repeat(500), Durability::Sync) {
                        Ok(_) => say(&format!("ack {key}")),
                        // It was in progress during the takeover: its outcome is open.
                        Err(error) if error.kind() == ErrorKind::Fenced => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                is_fenced.store(true, Ordering::Release);
                for number in 0..3 {
                    let key = format!("{name}-{thread}-late{number}");
                    say(&format!("refused {key}"));
                    let refused = users.put_with(&key, "x", Durability::Sync).unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::Fenced);
                }
            });
        }
    });
    assert!(is_fenced.load(Ordering::Acquire) && db.is_fenced());
    say("fenced");
}

#[derive(Default)]
struct Outcomes {
    tried: BTreeSet<String>,
    acknowledged: BTreeSet<String>,
    refused: BTreeSet<String>,
}

impl Outcomes {
    fn note(&mut self, line: &str) {
        for (word, keys) in [
            ("try ", &mut self.tried),
            ("ack ", &mut self.acknowledged),
            ("refused ", &mut self.refused),
        ] {
            if let Some(key) = said(line, word) {
                keys.insert(key.to_owned());
            }
        }
    }
}

/// The treatment of a writer before the next one takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    /// It goes on after the takeover.
    Stopped,
    /// It writes during the takeover.
    Alive,
}

fn signal(writer: &Talker, signal: &str) {
    let pid = writer.child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

fn start(place: &Place, name: u64, outcomes: &mut Outcomes) -> Talker {
    let folder = place.dir(&name.to_string());
    let arguments = [place.url.as_str(), folder.to_str().unwrap(), &name.to_string()];
    let child = "kills::child_that_writes_until_it_is_fenced_or_killed";
    let writer = Talker::start(child, &arguments);
    loop {
        let line = writer.lines.recv().expect("a writer opens the database");
        outcomes.note(&line);
        if said(&line, "open").is_some() {
            return writer;
        }
    }
}

/// Waits for so many more acknowledgements.
fn wait(writer: &Talker, commits: u64, outcomes: &mut Outcomes) {
    let mut left = commits;
    while left > 0 {
        let line = writer.lines.recv().expect("nothing fences the last writer");
        left -= u64::from(said(&line, "ack ").is_some());
        outcomes.note(&line);
    }
}

/// Notes the rest of what a writer has said, up to its end.
fn finish(writer: &mut Talker, fate: Fate, outcomes: &mut Outcomes) {
    let mut is_fenced = false;
    for line in &writer.lines {
        outcomes.note(&line);
        is_fenced |= said(&line, "fenced").is_some();
    }
    let status = writer.child.wait().unwrap();
    if fate != Fate::Killed {
        assert!(is_fenced && status.success(), "{fate:?}: {status}");
    }
}

#[test]
fn acknowledged_commits_outlive_kills_and_stops() {
    let mut rng = Rng::from_env_or(1);
    let place = Place::new("kills");
    let mut outcomes = Outcomes::default();
    let mut writer = start(&place, 0, &mut outcomes);
    for round in 1..=rounds_or(ROUNDS) {
        wait(&writer, rng.range(1..60), &mut outcomes);
        let fate = [Fate::Killed, Fate::Stopped, Fate::Alive][rng.index(3)];
        match fate {
            Fate::Killed => writer.child.kill().unwrap(),
            Fate::Stopped => signal(&writer, "-STOP"),
            Fate::Alive => {}
        }
        let next = start(&place, round, &mut outcomes);
        let mut before = std::mem::replace(&mut writer, next);
        wait(&writer, rng.range(1..10), &mut outcomes);
        if fate == Fate::Stopped {
            signal(&before, "-CONT");
        }
        finish(&mut before, fate, &mut outcomes);
        std::fs::remove_dir_all(place.dir(&(round - 1).to_string())).unwrap();
    }
    writer.child.kill().unwrap();
    finish(&mut writer, Fate::Killed, &mut outcomes);
    check(&place, &outcomes);
}

#[expect(clippy::print_stdout, reason = "a run shows its place and its size")]
fn check(place: &Place, outcomes: &Outcomes) {
    let primary = place.remote().take_over(place.dir("check")).unwrap();
    let db = primary.builder().open().unwrap();
    let users = db.partition("users").unwrap();
    let found: BTreeSet<String> =
        users.iter().map(|entry| String::from_utf8(entry.unwrap().0.to_vec()).unwrap()).collect();
    let lost: Vec<_> = outcomes.acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "{} acknowledged commits are lost: {lost:?}", lost.len());
    let appeared: Vec<_> = outcomes.refused.intersection(&found).collect();
    assert!(appeared.is_empty(), "refused commits are there: {appeared:?}");
    let invented: Vec<_> = found.difference(&outcomes.tried).collect();
    assert!(invented.is_empty(), "no writer has begun {invented:?}");
    assert!(db.verify(VerifyOptions::default()).unwrap().damage().is_empty());
    println!(
        "{} commits acknowledged, {} refused, journal object {}",
        outcomes.acknowledged.len(),
        outcomes.refused.len(),
        primary.status().number
    );
}
