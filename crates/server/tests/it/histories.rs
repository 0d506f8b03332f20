//! Checking histories of registers, and writing them to files for another checker.
//!
//! With `HISTORY_FILES=FOLDER` each history goes to a file, and so do copies of it in which reads have other values. The
//! first line is the verdict of this checker; `scripts/histories.sh` compares it with that of porcupine.

use std::collections::HashSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use siltstone::clock::{Clock, SystemClock};
use testkit::Rng;
use testkit::linear::{INITIAL, Operation, RegisterCall, check_registers};

use crate::client::Client;

/// Copies of each history in which a read has another value.
const COPIES: u64 = 8;

/// Checks a history, with this name.
#[track_caller]
pub(crate) fn checked(history: &[Operation], name: &str) {
    if let Some(folder) = std::env::var_os("HISTORY_FILES") {
        write_all(Path::new(&folder), history, name);
    }
    check_registers(history).unwrap_or_else(|violation| panic!("{name}: {violation}"));
}

/// The value of a read; `None` if it has none.
pub(crate) fn value(reply: Option<String>) -> Option<u64> {
    match reply?.as_str() {
        "nil" => Some(0),
        reply => reply.parse().ok(),
    }
}

/// A value at level 1, which is to be had without partitions.
pub(crate) fn last_value(address: SocketAddr, key: &str) -> u64 {
    let mut client = Client::at(address);
    let clock = SystemClock::new();
    loop {
        let reply = client.text(&format!("SCID.GET {key} LEVEL 1"));
        if let Some(found) = value(Some(reply.clone())) {
            return found;
        }
        assert!(
            clock.now() < Duration::from_secs(60),
            "in vain: a read at level 1 of {key}: {reply}"
        );
    }
}

#[expect(clippy::disallowed_methods, reason = "no file of a database")]
fn write_all(folder: &Path, history: &[Operation], name: &str) {
    std::fs::create_dir_all(folder).unwrap();
    write(folder, history, name);
    let mut rng = Rng::new(history.len() as u64);
    for copy in 0..COPIES {
        write(folder, &changed(history, &mut rng), &format!("{name}-{copy}"));
    }
}

/// A copy in which one read, or two, has a value of a moment before or after: mostly no order explains it.
fn changed(history: &[Operation], rng: &mut Rng) -> Vec<Operation> {
    let mut copy = history.to_vec();
    for _ in 0..rng.range(1..3) {
        let at = rng.index(copy.len());
        let key = copy[at].key;
        let near = at.saturating_sub(40)..(at + 40).min(copy.len());
        let written = copy[near].iter().filter_map(|it| match it.call {
            RegisterCall::Write(value) if it.key == key => Some(value),
            _ => None,
        });
        let values: Vec<u64> = written.chain([INITIAL]).collect();
        if let RegisterCall::Read(value) = &mut copy[at].call {
            *value = *rng.pick(&values);
        }
    }
    copy
}

#[expect(clippy::disallowed_methods, reason = "no file of a database")]
fn write(folder: &Path, history: &[Operation], name: &str) {
    let read: HashSet<(u64, u64)> = history
        .iter()
        .filter_map(|it| match it.call {
            RegisterCall::Read(value) => Some((it.key, value)),
            RegisterCall::Write(_) => None,
        })
        .collect();
    let verdict = if check_registers(history).is_ok() { "linearizable" } else { "wrong" };
    let mut text = format!("{verdict}\n");
    for it in history {
        let (call, value) = match it.call {
            RegisterCall::Write(value) => ("write", value),
            RegisterCall::Read(value) => ("read", value),
        };
        // A write without an outcome that no one has seen may never have been done.
        if it.ended.is_none() && !read.contains(&(it.key, value)) {
            continue;
        }
        let ended = it.ended.map_or("-".to_owned(), |ended| ended.to_string());
        writeln!(text, "{} {call} {value} {} {ended}", it.key, it.begun).unwrap();
    }
    std::fs::write(folder.join(format!("{name}.history")), text).unwrap();
}

fn operation(call: RegisterCall, at: u64) -> Operation {
    Operation { key: 1, call, begun: 2 * at, ended: Some(2 * at + 1) }
}

#[test]
fn copies_with_other_values_are_found() {
    let pairs = (1..200).flat_map(|at| {
        [operation(RegisterCall::Write(at), 2 * at), operation(RegisterCall::Read(at), 2 * at + 1)]
    });
    let history: Vec<Operation> = pairs.collect();
    check_registers(&history).unwrap();
    let mut rng = Rng::new(3);
    let wrong = (0..40).filter(|_| check_registers(&changed(&history, &mut rng)).is_err());
    assert!(wrong.count() > 10);
}
