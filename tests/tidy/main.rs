//! The repository read as data: the rules of STYLE.md and ARCHITECTURE.md that a machine can see.
//!
//! Each rule is a test of its own and prints every breach as `file:line: what`. A reader that
//! knows a little Rust blanks comments and strings and finds the parts that exist only for tests;
//! it is no compiler, and a rule that would need one does not belong here.
//!
//! Invariant: the lists of exceptions only shrink. An entry that is larger than it must be fails.

#![expect(clippy::disallowed_methods, reason = "it reads the repository, not a database")]

mod counts;
mod cycles;
mod dependencies;
mod docs;
mod examples;
mod layers;
mod metrics;
mod names;
mod packages;
mod promises;
mod seeded;
mod source;
mod unused;
mod words;

use std::collections::BTreeSet;

use layers::names_after;
use source::{Source, item_end, sources};

/// The engine: the storage seam, the tree, and the database. A path in a list is of one of them.
const ENGINE: [&str; 3] = ["crates/lsm-core/src/", "crates/storage/src/", "crates/tree/src/"];
/// The only files of the engine that may hold `unsafe`.
const UNSAFE_FILES: [&str; 15] = [
    "fs/map.rs",
    "fs/shared_map.rs",
    "fs/sys/win32.rs",
    "fs/writeback.rs",
    "memory/block_buffer.rs",
    "memory/prefetch.rs",
    "memory/slab.rs",
    "memtable/arena.rs",
    "memtable/skiplist.rs",
    "memtable/skiplist/cursor.rs",
    "memtable/skiplist/lanes.rs",
    "memtable/skiplist/node.rs",
    "memtable/skiplist/version.rs",
    "memtable/skiplist/writer.rs",
    "types/process.rs",
];
/// Calls of the C libraries of other engines; users do not get these files.
const FOREIGN_CALLS_FILES: [&str; 3] = [
    "benches/peers/src/engines/berkeley.rs",
    "benches/peers/src/engines/leveldb.rs",
    "benches/peers/src/engines/lmdb.rs",
];
/// Functions that another language calls.
const BINDING_FILES: [&str; 19] = [
    "bindings/c/src/backup.rs",
    "bindings/c/src/batch.rs",
    "bindings/c/src/changes.rs",
    "bindings/c/src/db.rs",
    "bindings/c/src/error.rs",
    "bindings/c/src/exchange.rs",
    "bindings/c/src/hooks.rs",
    "bindings/c/src/iter.rs",
    "bindings/c/src/listener.rs",
    "bindings/c/src/options.rs",
    "bindings/c/src/partition.rs",
    "bindings/c/src/raw.rs",
    "bindings/c/src/resources.rs",
    "bindings/c/src/scan.rs",
    "bindings/c/src/secondary.rs",
    "bindings/c/src/stream.rs",
    "bindings/c/src/transaction.rs",
    "bindings/c/src/value.rs",
    "bindings/python/src/value.rs",
];
/// Copies a process, which no safe call does.
const FORKING_TESTS: [&str; 1] = ["tests/fork/main.rs"];
const FS_FILES: [&str; 8] = [
    "fs/os.rs",
    "fs/sys/linux.rs",
    "fs/sys/paths.rs",
    "fs/sys/plain.rs",
    "fs/sys/unix.rs",
    "fs/sys/unknown.rs",
    "fs/sys/win32.rs",
    "fs/sys/windows.rs",
];
const BANNED_NAMES: [&str; 7] = ["util", "utils", "helper", "helpers", "common", "misc", "manager"];

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
/// Files that are longer: path, lines.
const LONG_FILES: [(&str, usize); 0] = [];
/// Functions that are longer: path, name, lines.
const LONG_FUNCTIONS: [(&str, &str, usize); 0] = [];

fn check(breaches: Vec<String>) {
    assert!(breaches.is_empty(), "{} breaches\n{}", breaches.len(), breaches.join("\n"));
}

#[test]
fn every_file_opens_by_saying_what_it_is() {
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|source| !source.raw.starts_with("//!")) {
        breaches.push(source.at(0, "does not open with `//!`"));
    }
    check(breaches);
}

#[test]
fn files_fit_their_limit() {
    let mut breaches = Vec::new();
    let mut listed: BTreeSet<&str> = LONG_FILES.iter().map(|(path, _)| *path).collect();
    for source in &sources() {
        // A file of tests is read like any other; tests inside a file of the product do not count.
        let all = source.raw.lines().count();
        let tests = source.is_test[..all].iter().filter(|is_test| **is_test).count();
        let lines = if tests == all { all } else { all - tests };
        let entry = LONG_FILES.iter().find(|(path, _)| *path == source.path);
        listed.remove(source.path.as_str());
        breaches.extend(
            ratchet(lines, FILE_LINES_MAX, entry.map(|entry| entry.1))
                .map(|what| source.at(0, &what)),
        );
    }
    breaches.extend(listed.iter().map(|path| format!("{path}:1: is gone; strike its exception")));
    check(breaches);
}

#[test]
fn functions_fit_on_a_screen() {
    let mut breaches = Vec::new();
    let mut listed: BTreeSet<(&str, &str)> =
        LONG_FUNCTIONS.iter().map(|(path, name, _)| (*path, *name)).collect();
    for source in sources().iter().filter(|source| source.is_production()) {
        for at in source.words("fn").filter(|&at| !source.is_test_at(at)) {
            let name: String = source.code[at + 2..]
                .trim_start()
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            let end = item_end(&source.code, at);
            if name.is_empty() || source.code.as_bytes().get(end) != Some(&b'}') {
                continue;
            }
            let lines = source.line_of(end) - source.line_of(at) + 1;
            let entry = LONG_FUNCTIONS
                .iter()
                .find(|(path, listed, _)| *path == source.path && *listed == name);
            // A name may occur twice in a file; the entry is for the long one.
            let entry = entry.filter(|_| lines > FUNCTION_LINES_MAX);
            if let Some((path, name, _)) = entry {
                listed.remove(&(*path, *name));
            }
            breaches.extend(
                ratchet(lines, FUNCTION_LINES_MAX, entry.map(|entry| entry.2))
                    .map(|what| source.at(at, &format!("fn {name} {what}"))),
            );
        }
    }
    for (path, name) in listed {
        breaches.push(format!("{path}:1: fn {name} is gone or short; strike its exception"));
    }
    check(breaches);
}

/// Says how `lines` breaks `limit`, unless an exception allows more.
fn ratchet(lines: usize, limit: usize, exception: Option<usize>) -> Option<String> {
    match exception {
        None if lines > limit => Some(format!("has {lines} lines, the limit is {limit}")),
        Some(_) if lines <= limit => Some(format!("has {lines} lines; strike its exception")),
        Some(most) if lines > most => Some(format!("has {lines} lines, its exception is {most}")),
        Some(most) if lines < most => Some(format!("has {lines} lines; lower its exception")),
        _ => None,
    }
}

/// Breaches for every occurrence of a word in the code for which `is_wrong` is true.
fn words_where(word: &str, what: &str, is_wrong: impl Fn(&Source, usize) -> bool) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in sources() {
        let wrong = source.words(word).filter(|&at| is_wrong(&source, at));
        breaches.extend(wrong.map(|at| source.at(at, what)));
    }
    breaches
}

/// The path of a file of the engine below its crate's `src/`.
fn engine_path(source: &Source) -> Option<&str> {
    ENGINE.iter().find_map(|folder| source.path.strip_prefix(folder))
}

fn is_engine_file(source: &Source, files: &[&str]) -> bool {
    engine_path(source).is_some_and(|path| files.contains(&path))
}

#[test]
fn unsafe_code_stays_where_it_is_argued() {
    let mut breaches =
        words_where("unsafe", "`unsafe` outside of the files that may", |source, _| {
            !is_engine_file(source, &UNSAFE_FILES)
                && !FOREIGN_CALLS_FILES.contains(&source.path.as_str())
                && !BINDING_FILES.contains(&source.path.as_str())
                && !FORKING_TESTS.contains(&source.path.as_str())
        });
    for file in UNSAFE_FILES.into_iter().chain(BINDING_FILES) {
        let is_needed = sources().iter().any(|source| {
            let is_it = is_engine_file(source, &[file]) || source.path == file;
            is_it && source.words("unsafe").next().is_some()
        });
        if !is_needed {
            breaches.push(format!("{file}:1: is not there or not unsafe; strike its exception"));
        }
    }
    check(breaches);
}

#[test]
fn nothing_is_unwrapped_outside_of_tests() {
    check(words_where("unwrap", "`unwrap()`; use `?` or `expect` with a reason", |source, at| {
        let is_call = source.code[..at].ends_with('.') && source.code[at..].starts_with("unwrap()");
        is_call && !source.is_test_at(at)
    }));
}

#[test]
fn files_are_touched_through_the_seam_alone() {
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|source| source.is_production()) {
        if source.path.starts_with("crates/cli/") || is_engine_file(source, &FS_FILES) {
            continue;
        }
        let named = names_after(&source.code, "std::");
        let wrong = named.iter().filter(|(at, name)| name == "fs" && !source.is_test_at(*at));
        breaches.extend(wrong.map(|(at, _)| source.at(*at, "`std::fs`; go through `fs::Fs`")));
    }
    check(breaches);
}

#[test]
fn nothing_is_left_to_be_done() {
    let mut breaches = Vec::new();
    // Written in two parts, so that this file is not its own breach.
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("to", "do!"),
        concat!("unimpl", "emented!"),
    ];
    for source in sources() {
        for mark in marks {
            let found = source.raw.match_indices(mark);
            breaches.extend(found.map(|(at, _)| source.at(at, &format!("`{mark}`"))));
        }
    }
    check(breaches);
}

#[test]
fn no_name_says_nothing() {
    let mut breaches = Vec::new();
    for source in sources() {
        let mut parts = source.path.trim_end_matches(".rs").split('/');
        if let Some(part) = parts.find(|part| BANNED_NAMES.contains(part)) {
            breaches.push(source.at(0, &format!("`{part}` says nothing")));
        }
        for at in source.words("mod") {
            let name = source.code[at + 3..].trim_start();
            let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next();
            if let Some(name) = name.filter(|name| BANNED_NAMES.contains(name)) {
                breaches.push(source.at(at, &format!("`mod {name}` says nothing")));
            }
        }
    }
    check(breaches);
}

#[test]
fn sources_are_ascii() {
    let mut breaches = Vec::new();
    for source in sources() {
        for (number, line) in source.raw.lines().enumerate() {
            if let Some(c) = line.chars().find(|c| !c.is_ascii()) {
                breaches.push(format!("{}:{}: {c:?} is not ASCII", source.path, number + 1));
            }
        }
    }
    check(breaches);
}

#[test]
fn an_exception_is_no_larger_than_it_must_be() {
    assert_eq!(ratchet(80, 70, Some(80)), None);
    assert!(ratchet(79, 70, Some(80)).is_some() && ratchet(71, 70, None).is_some());
}
