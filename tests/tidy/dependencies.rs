//! The crates that siltstone depends on: few, without C, one version each, under permitted
//! licences.
//!
//! Known advisories are not checked here: the list of them is not part of the repository. `.ci/run`
//! asks cargo-deny for them where it is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::check;
use crate::source::root;

/// Most crates that a program gets with `siltstone`, our own included.
const CRATES_MAX: usize = 30;
/// Crates that compile or bind C, C++ or assembler when something is built.
const FOREIGN_BUILDERS: [&str; 6] = ["cc", "cmake", "bindgen", "pkg-config", "vcpkg", "nasm-rs"];
/// Named like a binding, but only numbers and types in Rust.
const PURE_RUST: [&str; 1] = ["linux-raw-sys"];
/// Licences that a user of `MIT OR Apache-2.0` can live with.
const LICENCES: [&str; 6] =
    ["MIT", "Apache-2.0", "BSL-1.0", "Unlicense", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"];
/// Crates that may be there in two versions: the parser of procedural macros, which no product links. The crates
/// of `object_store` use both.
const TWICE: [&str; 1] = ["syn"];

/// A crate of a tree: name, version, licence.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Dependency {
    name: String,
    version: String,
    licence: String,
}

/// The crates that `cargo tree` prints with `arguments`, each once.
fn tree(arguments: &[&str]) -> BTreeSet<Dependency> {
    let mut command = Command::new(env!("CARGO"));
    command.arg("tree").args(["--offline", "--locked", "--prefix", "none"]);
    command.args(["--format", "{p}|{l}|"]).args(arguments).current_dir(root());
    let output = command.output().expect("cargo can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    let text = String::from_utf8(output.stdout).expect("names and licences are UTF-8");
    text.lines().filter_map(dependency).collect()
}

/// Reads `name v1.2.3 (more)|licence|`.
fn dependency(line: &str) -> Option<Dependency> {
    let mut columns = line.split('|');
    let mut words = columns.next()?.split_whitespace();
    let name = words.next()?.to_owned();
    let version = words.next()?.to_owned();
    Some(Dependency { name, version, licence: columns.next()?.to_owned() })
}

/// Returns whether a licence expression can be met by [`LICENCES`].
fn is_free(expression: &str) -> bool {
    let expression = expression.replace(['(', ')'], "").replace('/', " OR ");
    // Read as a product of sums: right for `(A OR B) AND C`, the only mixed form in use.
    expression
        .split(" AND ")
        .all(|either| either.split(" OR ").any(|one| LICENCES.contains(&one.trim())))
}

#[test]
fn the_default_build_is_small_and_has_no_c() {
    let crates = tree(&["-p", "siltstone", "-e", "normal,build"]);
    let mut breaches = foreign(&crates);
    if crates.len() > CRATES_MAX {
        let number = crates.len();
        breaches.push(format!("Cargo.toml:1: siltstone needs {number} crates, not {CRATES_MAX}"));
    }
    check(breaches);
}

/// Returns `true` for a crate that compiles or binds what is not Rust.
fn is_foreign(name: &str) -> bool {
    let is_binding = name.ends_with("-sys") && !PURE_RUST.contains(&name);
    is_binding || FOREIGN_BUILDERS.contains(&name)
}

/// A breach for each crate that needs more than Rust.
fn foreign(crates: &BTreeSet<Dependency>) -> Vec<String> {
    let found = crates.iter().filter(|found| is_foreign(&found.name));
    found
        .map(|found| format!("Cargo.toml:1: {} {} needs a C toolchain", found.name, found.version))
        .collect()
}

/// README's two commands run on a machine with a Rust toolchain alone.
#[test]
fn commands_and_tests_compile_no_c() {
    check(foreign(&tree(&["--workspace", "-e", "normal,build,dev"])));
}

#[test]
fn every_crate_has_a_licence_that_fits() {
    let crates = tree(&["--workspace", "-e", "normal,build,dev"]);
    assert!(crates.len() > 20, "cargo tree prints {crates:?}");
    let wrong = crates.iter().filter(|dependency| !is_free(&dependency.licence));
    let breaches = wrong.map(|found| {
        format!("Cargo.lock:1: {} {} is under {:?}", found.name, found.version, found.licence)
    });
    check(breaches.collect());
}

#[test]
fn every_crate_is_there_once() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for found in tree(&["--workspace", "-e", "normal,build"]) {
        versions.entry(found.name).or_default().insert(found.version);
    }
    let twice = versions.iter().filter(|(_, versions)| versions.len() > 1);
    let wrong = twice.filter(|(name, _)| !TWICE.contains(&name.as_str()));
    check(
        wrong
            .map(|(name, versions)| format!("Cargo.lock:1: {name} is there as {versions:?}"))
            .collect(),
    );
}

#[test]
fn licences_and_lines_are_read_as_written() {
    assert!(is_free("MIT OR Apache-2.0") && is_free("Apache-2.0/MIT") && is_free("BSL-1.0"));
    assert!(is_free("(MIT OR Apache-2.0) AND Unicode-3.0") && is_free("GPL-3.0 OR MIT"));
    assert!(!is_free("GPL-3.0") && !is_free("MIT AND GPL-3.0") && !is_free(""));
    let found = dependency("log v0.4.1 (proc-macro)|MIT| (*)").expect("a line of a tree");
    assert_eq!((&*found.name, &*found.version, &*found.licence), ("log", "v0.4.1", "MIT"));
    assert_eq!(dependency(""), None);
}
