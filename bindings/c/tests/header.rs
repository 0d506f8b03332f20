//! The header that is committed is the one that cbindgen makes of the functions now.
//!
//! `BLESS=1 cargo test --test header` writes it.

#![expect(clippy::disallowed_methods, reason = "it reads and writes the header, not a database")]

use std::collections::BTreeSet;
use std::path::Path;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn committed() -> String {
    std::fs::read_to_string(folder().join("include/siltstone.h")).unwrap_or_default()
}

#[test]
fn the_header_is_that_of_the_functions() {
    let bindings = cbindgen::generate(folder()).expect("cbindgen reads the crate");
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).expect("the sources are ASCII");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(folder().join("include/siltstone.h"), &made).expect("the header is written");
    }
    let differs = committed().lines().zip(made.lines()).position(|(old, new)| old != new);
    assert!(committed() == made, "line {differs:?} of the header differs; BLESS=1 writes it");
}

/// The names that `text` declares or defines, after each `mark`.
fn names(text: &str, mark: &str) -> BTreeSet<String> {
    let rest = text.split(mark).skip(1);
    rest.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        rest[..end.unwrap_or(rest.len())].to_owned()
    })
    .collect()
}

#[test]
fn each_function_is_called_by_the_test_in_c() {
    let header = committed();
    let declared: BTreeSet<String> = header
        .lines()
        .filter(|line| !line.starts_with("//") && line.contains('('))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .filter_map(|name| name.strip_prefix("siltstone_").map(str::to_owned))
        .collect();
    assert!(declared.len() > 120, "{} functions", declared.len());
    let mut called = BTreeSet::new();
    for name in ["tests/check.h", "tests/test.c", "tests/parts.c", "tests/hooks.c", "tests/scans.c"]
    {
        let test = std::fs::read_to_string(folder().join(name)).expect("a test in C");
        called.append(&mut names(&test, "siltstone_"));
    }
    let missing: Vec<&String> = declared.difference(&called).collect();
    assert!(missing.is_empty(), "no test in C calls {missing:?}");
}
