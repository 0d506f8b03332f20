//! Public items of the engine's lower crates that no product uses.
//!
//! The compiler names unused items of one crate. It cannot see that a public item of `storage` or `tree` is used by
//! no other crate, so this file counts words: an item is unused if its name stands nowhere but where it is defined,
//! in imports, and in tests. An item whose name is that of another one is not found.

use std::collections::BTreeMap;

use crate::check;
use crate::source::{Source, item_end, sources};

/// The crates whose interface is for this repository.
const CRATES: [&str; 2] = ["crates/storage/src/", "crates/tree/src/"];
/// File systems for tests, and doors of the fuzz targets, which no product uses.
const FOR_TESTS: [&str; 3] = ["/fs/fault/", "/fs/mem/", "/decoders.rs"];
const KEYWORDS: [&str; 7] = ["fn", "struct", "enum", "trait", "const", "static", "type"];
/// Words between `pub` and the keyword.
const MODIFIERS: [&str; 2] = ["unsafe", "async"];

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The ranges of code for tests alone, and of imports.
fn left_out(source: &Source) -> Vec<std::ops::Range<usize>> {
    let code = source.code.as_str();
    let mut left_out: Vec<std::ops::Range<usize>> = Vec::new();
    for start in ["#[cfg(test)]\nmod ", "#[cfg(any(test", "pub mod internals"] {
        left_out.extend(code.match_indices(start).map(|(at, _)| at..item_end(code, at)));
    }
    for at in source.words("use") {
        left_out.push(at..at + code[at..].find(';').unwrap_or(0));
    }
    left_out
}

/// The words of the code that users get, but for imports.
fn words(source: &Source) -> Vec<&str> {
    let code = source.code.as_str();
    let left_out = left_out(source);
    let mut found = Vec::new();
    let mut at = 0;
    for word in code.split(|c| !is_name(c)) {
        if !word.is_empty() && !left_out.iter().any(|range| range.contains(&at)) {
            found.push(word);
        }
        at += word.len();
        at += code[at..].chars().next().map_or(0, char::len_utf8);
    }
    found
}

/// The name of the item that begins after `pub`; `None` for `pub(super)` and for imports.
fn item_name(after_pub: &str) -> Option<&str> {
    let mut is_item = false;
    for token in after_pub.split_whitespace() {
        let end = token.find(|c: char| !is_name(c)).unwrap_or(token.len());
        match &token[..end] {
            word if KEYWORDS.contains(&word) => is_item = true,
            word if MODIFIERS.contains(&word) => {}
            "" => return None,
            name => return is_item.then_some(name),
        }
    }
    None
}

/// The names of the public items that are not for tests, with their places.
fn public_items(source: &Source) -> Vec<(usize, &str)> {
    let left_out = left_out(source);
    let places = source.words("pub").filter(|&at| !source.is_test_at(at));
    let places = places.filter(|at| !left_out.iter().any(|range| range.contains(at)));
    places.filter_map(|at| Some((at, item_name(&source.code[at + 3..])?))).collect()
}

#[test]
fn public_items_of_the_lower_crates_are_used() {
    let sources = sources();
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    let mut items: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test.iter().all(|is_test| *is_test)) {
        for word in words(source) {
            *uses.entry(word).or_default() += 1;
        }
        let is_ours = CRATES.iter().any(|folder| source.path.starts_with(folder))
            && !FOR_TESTS.iter().any(|part| source.path.contains(part));
        for (at, name) in public_items(source).into_iter().filter(|_| is_ours) {
            items
                .entry(name)
                .or_default()
                .push(source.at(at, &format!("no product uses `{name}`")));
        }
    }
    let unused = items.into_iter().filter(|(name, places)| uses[name] == places.len());
    check(unused.flat_map(|(_, places)| places).collect());
}

#[test]
fn public_items_are_read_as_written() {
    let source = Source::from_text(
        "crates/tree/src/a.rs",
        "use b::C;\npub const D: u8 = 1;\npub const fn e() {}\npub struct F;\n\
         #[cfg(any(test, feature = \"internals\"))]\npub fn g() {}\npub(super) fn h() {}\n#[cfg(test)]\nmod tests {\n    pub fn i() {}\n}\n",
    );
    let names: Vec<&str> = public_items(&source).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["D", "e", "F"]);
    assert!(!words(&source).iter().any(|word| ["C", "g", "i"].contains(word)));
}
