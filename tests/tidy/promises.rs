//! The promises of the pages: each names a test that exists, or says that it has none.
//!
//! `docs/promises.md` has a chapter for each page with promises, which the page links, and in it a table
//! `promise | test` with a row for each. A test is named by the file that holds it and its function,
//! `file::function`, as cargo filters tests. The pages of faults and of bugs of other engines have such rows, too,
//! and some that are out of scope, with the reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::check;
use crate::source::{Source, files_below, read, sources};

/// The pages with promises, and the chapter of `docs/promises.md` with their tests.
const CHAPTERS: [(&str, &str); 13] = [
    ("docs/backup.md", "Backups"),
    ("docs/changes.md", "Changes"),
    ("docs/encryption.md", "Encryption"),
    ("docs/large-values.md", "Large values"),
    ("docs/MEDIA.md", "Media"),
    ("docs/metahive.md", "MetaHive"),
    ("docs/operations.md", "Operations"),
    ("docs/RECOVERY.md", "Recovery"),
    ("docs/remote.md", "Remote storage"),
    ("docs/secondary.md", "Secondaries"),
    ("docs/service.md", "The service"),
    ("docs/shards.md", "Shards"),
    ("docs/tuning.md", "Tuning"),
];
const PROMISES: &str = "docs/promises.md";
/// The other tables of tests: their pages and headings.
const TABLES: [(&str, &str); 6] = [
    ("docs/TESTING.md", "Features and their tests"),
    (FAULTS, "Faults"),
    (SCENARIOS, BUGS[0]),
    (SCENARIOS, BUGS[1]),
    (SCENARIOS, BUGS[2]),
    (SCENARIOS, BUGS[3]),
];
const FAULTS: &str = "docs/faults.md";
const SCENARIOS: &str = "docs/scenarios.md";
/// The pages that name tests. The others are for users.
const OF_TESTS: [&str; 4] = [PROMISES, FAULTS, SCENARIOS, "docs/TESTING.md"];
/// The tables of the bugs of other engines, which are numbered over all of them.
const BUGS: [&str; 4] = [
    "The log and commits",
    "Manifest, folder and file numbers",
    "Flushes, compactions and visibility",
    "Clears, imports, copies and garbage",
];
/// The promises without a test, in all pages. The number only shrinks.
const WITHOUT_TEST_MAX: usize = 1;
/// The rows that are out of scope, in all pages. The number only shrinks.
const OUT_OF_SCOPE_MAX: usize = 2;
/// The faults and scenarios of the page, which are numbered from 1.
const FAULT_COUNT: usize = 42;
const SCENARIO_COUNT: usize = 78;

/// The functions of tests in `source`.
fn tests_of(source: &Source) -> impl Iterator<Item = &str> {
    let marks =
        source.code.match_indices("#[test]").chain(source.code.match_indices("#[tokio::test"));
    marks.filter_map(|(at, _)| {
        let (_, rest) = source.code[at..].split_once("fn ")?;
        rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
    })
}

/// The name that a path gives its module: `a` for `x/a.rs` and for `x/a/mod.rs`.
fn module_of(path: &str) -> &str {
    let path = path.trim_end_matches(".rs");
    path.trim_end_matches("/mod").rsplit('/').next().unwrap_or(path)
}

/// For each name of a test the modules that hold one of this name.
fn tests() -> BTreeMap<String, BTreeSet<String>> {
    let mut tests: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in &sources() {
        for name in tests_of(source) {
            tests.entry(name.to_owned()).or_default().insert(module_of(&source.path).to_owned());
        }
    }
    tests
}

/// The rows of the table below `heading`, with the numbers of their lines.
fn rows<'a>(page: &'a str, heading: &str) -> Vec<(usize, &'a str)> {
    let lines = page.lines().enumerate();
    let below = lines.skip_while(|(_, line)| line.trim_start_matches('#').trim() != heading);
    let below = below.skip(1).take_while(|(_, line)| !line.starts_with('#'));
    let rows = below.filter(|(_, line)| line.starts_with("| "));
    rows.skip(2).map(|(at, line)| (at + 1, line)).collect()
}

/// The reasons for a row without a test, with which its cell begins.
const NO_TEST: &str = "none: ";
const OUT_OF_SCOPE: &str = "out of scope: ";

/// Every text of `line` in backquotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn is_test(name: &str, tests: &BTreeMap<String, BTreeSet<String>>) -> bool {
    let parts = name.split_once("::");
    parts.is_some_and(|(module, test)| tests.get(test).is_some_and(|found| found.contains(module)))
}

/// The breaches of the tests that a row names, and `true` if it names any.
fn breaches_of(cell: &str, tests: &BTreeMap<String, BTreeSet<String>>) -> (Vec<String>, bool) {
    let named: Vec<&str> = quoted(cell).collect();
    let wrong = named.iter().filter(|name| !is_test(name, tests));
    let mut breaches: Vec<String> =
        wrong.map(|name| format!("there is no test `{name}`")).collect();
    let has_reason = [NO_TEST, OUT_OF_SCOPE].iter().any(|start| cell.trim().starts_with(start));
    if named.is_empty() && !has_reason {
        breaches.push("names no test, and does not say that there is none".to_owned());
    }
    (breaches, !named.is_empty())
}

#[test]
fn each_promise_names_a_test_that_exists() {
    let tests = tests();
    let mut breaches = Vec::new();
    let mut without_test = 0;
    let mut out_of_scope = 0;
    for (page, heading) in CHAPTERS {
        let anchor = heading.to_lowercase().replace(' ', "-");
        if !read(page).contains(&format!("](promises.md#{anchor})")) {
            breaches.push(format!("{page}:1: does not link its tests in {PROMISES}"));
        }
    }
    let chapters = CHAPTERS.map(|(_, heading)| (PROMISES, heading));
    for (path, heading) in chapters.into_iter().chain(TABLES) {
        let page = read(path);
        let rows = rows(&page, heading);
        if rows.len() < 10 {
            breaches.push(format!("{path}:1: has no table of tests below {heading:?}"));
        }
        for (number, row) in rows {
            let cell = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
            let (wrong, has_test) = breaches_of(cell, &tests);
            let is_outside = !has_test && cell.trim().starts_with(OUT_OF_SCOPE);
            out_of_scope += usize::from(is_outside);
            without_test += usize::from(!has_test && !is_outside);
            breaches.extend(wrong.iter().map(|what| format!("{path}:{number}: {what}")));
        }
    }
    if without_test != WITHOUT_TEST_MAX {
        breaches.push(format!("{without_test} promises have no test, not {WITHOUT_TEST_MAX}"));
    }
    if out_of_scope != OUT_OF_SCOPE_MAX {
        breaches.push(format!("{out_of_scope} rows are out of scope, not {OUT_OF_SCOPE_MAX}"));
    }
    check(breaches);
}

#[test]
fn pages_for_users_name_no_tests() {
    let tests = tests();
    let mut pages = vec!["README.md".to_owned()];
    files_below("docs", ".md", &mut pages);
    pages.retain(|page| !page.starts_with("docs/design/") && !OF_TESTS.contains(&page.as_str()));
    let mut breaches = Vec::new();
    for page in pages {
        for (number, line) in read(&page).lines().enumerate() {
            let named = quoted(line).filter(|name| is_test(name, &tests));
            let place = format!("{page}:{}", number + 1);
            breaches.extend(named.map(|name| format!("{place}: `{name}` belongs in {PROMISES}")));
        }
    }
    check(breaches);
}

/// The first cells of the rows below `heading`.
fn first_cells<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let rows = rows(page, heading);
    rows.iter().filter_map(|(_, row)| row.split('|').nth(1)).map(str::trim).collect()
}

#[test]
fn each_fault_and_each_scenario_has_a_row() {
    let faults: Vec<String> = (1..=FAULT_COUNT).map(|number| format!("F{number:02}")).collect();
    assert_eq!(first_cells(&read(FAULTS), "Faults"), faults, "{FAULTS}");
    let page = read(SCENARIOS);
    let scenarios: Vec<String> = (1..=SCENARIO_COUNT).map(|number| number.to_string()).collect();
    assert_eq!(BUGS.map(|heading| first_cells(&page, heading)).concat(), scenarios, "{SCENARIOS}");
}

/// The names of the features that `readme` lists: what is bold at the begin of each point.
fn features(readme: &str) -> Vec<&str> {
    let below = readme.split_once("\n## Features\n").map_or("", |(_, below)| below);
    let points = below.split("\n## ").next().unwrap_or_default().lines();
    points.filter_map(|line| line.strip_prefix("- **")?.split("**").next()).collect()
}

#[test]
fn each_feature_of_the_readme_has_a_row() {
    let readme = read("README.md");
    let page = read("docs/TESTING.md");
    let listed = BTreeSet::from_iter(first_cells(&page, "Features and their tests"));
    let features = features(&readme);
    assert!(features.len() > 10, "README.md lists {features:?}");
    assert_eq!(BTreeSet::from_iter(features), listed, "README.md and docs/TESTING.md");
}

#[test]
fn tests_and_tables_are_read_as_written() {
    let text =
        "#[test]\n#[cfg(unix)]\nfn one() {}\n#[tokio::test]\nasync fn two() {}\nfn three() {}";
    let source = Source::from_text("tests/it/a/mod.rs", text);
    assert_eq!(tests_of(&source).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!((module_of("tests/it/a/mod.rs"), module_of("a/b.rs")), ("a", "b"));
    let page =
        "# A\n| x | y |\n\n## T\n\n| p | t |\n| --- | --- |\n| p | `a::one` |\n\n## U\n| q | t |\n";
    assert_eq!(rows(page, "T"), [(8, "| p | `a::one` |")]);
    assert_eq!(first_cells(page, "T"), ["p"]);
    let tests = BTreeMap::from([("one".to_owned(), BTreeSet::from(["a".to_owned()]))]);
    assert_eq!(breaches_of(" `a::one` ", &tests), (vec![], true));
    assert_eq!(breaches_of(" `b::one`, `a::two` ", &tests).0.len(), 2);
    assert_eq!(breaches_of(" none: a reason ", &tests), (vec![], false));
    assert_eq!(breaches_of(" out of scope: a reason ", &tests), (vec![], false));
    assert_eq!(breaches_of(" out of scope ", &tests).0.len(), 1);
    assert_eq!(breaches_of(" later ", &tests).0.len(), 1);
    assert_eq!(
        features("a\n## Features\n\n- **One** of\n- **Two**: b\n## C\n- **D**"),
        ["One", "Two"]
    );
}
