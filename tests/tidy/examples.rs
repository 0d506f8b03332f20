//! Examples: each call of the types that users work with shows one.

use crate::check;
use crate::source::{Source, sources};

/// The files of the main types, with all files in the folders of the same names.
const FILES: [&str; 12] = [
    "src/db",
    "src/builder",
    "src/partition",
    "src/options",
    "src/batch",
    "src/snapshot",
    "src/transaction",
    "src/large",
    "src/following",
    "crates/secondary/src/secondary",
    "crates/secondary/src/partition",
    "crates/secondary/src/reading",
];
/// Calls without an example: file and name. Two take code of the application, which the page of `hooks`
/// describes; the others are in the example of the call next to them. The list only shrinks.
const WITHOUT: [(&str, &str); 6] = [
    ("src/builder.rs", "hooks"),
    ("src/options/hooks.rs", "value_store"),
    ("src/large.rs", "len"),
    ("src/db/streams.rs", "import_stream"),
    ("crates/secondary/src/partition.rs", "followed"),
    ("crates/secondary/src/reading.rs", "read_point"),
];

/// The public calls of `source` whose docs have no example. A getter of options (`get_`) is in the example
/// of its setter.
fn calls_without_example(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut has_example = false;
    for (number, line) in source.raw.lines().enumerate() {
        let text = line.trim_start();
        if text.starts_with("///") {
            has_example |= text.starts_with("/// ```");
        } else if let Some(rest) = line.strip_prefix("    pub fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            if !has_example && !name.starts_with("get_") {
                found.push((number + 1, name.to_owned()));
            }
            has_example = false;
        } else if !text.starts_with("#[") {
            has_example = false;
        }
    }
    found
}

fn is_main(path: &str) -> bool {
    FILES.iter().any(|file| {
        let rest = path.strip_prefix(file);
        rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    })
}

#[test]
fn each_call_of_the_main_types_shows_an_example() {
    let mut breaches = Vec::new();
    let mut unused = WITHOUT.to_vec();
    for source in sources().iter().filter(|source| is_main(&source.path)) {
        for (line, name) in calls_without_example(source) {
            let call = (source.path.as_str(), name.as_str());
            if !WITHOUT.contains(&call) {
                breaches.push(format!("{}:{line}: {name} shows no example", source.path));
            }
            unused.retain(|listed| *listed != call);
        }
    }
    for (path, name) in unused {
        breaches.push(format!("{path}:1: {name} shows an example; strike its exception"));
    }
    check(breaches);
}

#[test]
fn examples_are_seen_in_docs() {
    let text = "/// A.\n/// ```\n/// ```\n    #[inline]\n    pub fn a() {}\n\n    /// B.\n    pub fn b<T>() {}\n\
                /// C.\n    pub fn get_c() {}\n    pub(crate) fn d() {}\n";
    let source = Source::from_text("src/db.rs", text);
    assert_eq!(calls_without_example(&source), [(8, "b".to_owned())]);
    assert!(is_main("src/db.rs") && is_main("src/db/inspect.rs") && !is_main("src/dbx.rs"));
}
