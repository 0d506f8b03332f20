//! The repository read as data: the rules of STYLE.md and ARCHITECTURE.md that a machine can see.
//!
//! Each rule is a test of its own and prints every breach as `file:line: what`. A reader that
//! knows a little Rust blanks comments and strings and finds the parts that exist only for tests;
//! it is no compiler, and a rule that would need one does not belong here.
//!
//! Invariant: the lists of exceptions only shrink. An entry that is larger than it must be fails.

#![expect(clippy::disallowed_methods, reason = "it reads the repository, not a database")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Floors of lsm-core. Imports go down; see ARCHITECTURE.md.
const FLOORS: [&[&str]; 8] = [
    &["types", "codec", "error", "limits", "options"],
    &["fs", "iter", "hooks", "clock", "stats"],
    &["wal", "sstable", "memtable", "batch", "filters"],
    &["cache"],
    &["version"],
    &["partition", "compaction"],
    &["read", "replay", "flush", "snapshot", "raw"],
    &["db"],
];
/// The floor of the formats: none imports another.
const FORMATS_FLOOR: usize = 2;
/// The only file of `compaction` that may import what touches files, and what it may import.
const COMPACTION_EXECUTOR: &str = "compaction/executor.rs";
const EXECUTOR_IMPORTS: [&str; 3] = ["fs", "cache", "sstable"];

const CORE: &str = "crates/lsm-core/src/";
const UNSAFE_FILES: [&str; 3] = ["memtable/arena.rs", "memtable/skiplist.rs", "fs/map.rs"];
/// Calls a rival's C library; no part of what users get.
const FOREIGN_CALLS_FILE: &str = "benches/peers/src/engines/leveldb.rs";
const FS_FILES: [&str; 1] = ["fs/os.rs"];
const BANNED_NAMES: [&str; 7] = ["util", "utils", "helper", "helpers", "common", "misc", "manager"];

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
/// Files that are longer: path, production lines.
const LONG_FILES: [(&str, usize); 0] = [];
/// Functions that are longer: path, name, lines.
const LONG_FUNCTIONS: [(&str, &str, usize); 0] = [];

// ---- reading ----------------------------------------------------------------------------------

/// A Rust file.
struct Source {
    path: String,
    raw: String,
    /// The same text, comments and the insides of strings replaced by spaces.
    code: String,
    /// For each line, whether it exists only for tests.
    is_test: Vec<bool>,
}

impl Source {
    fn line_of(&self, at: usize) -> usize {
        1 + self.code[..at].bytes().filter(|&byte| byte == b'\n').count()
    }

    fn is_test_at(&self, at: usize) -> bool {
        self.is_test.get(self.line_of(at) - 1).copied().unwrap_or(false)
    }

    fn at(&self, at: usize, what: &str) -> String {
        format!("{}:{}: {what}", self.path, self.line_of(at))
    }

    /// Whether the file belongs to what users get, as opposed to tests, benches and tools for them.
    fn is_production(&self) -> bool {
        (self.path.starts_with("src/") || self.path.contains("/src/"))
            && !self.path.starts_with("crates/testkit/")
            && !self.path.starts_with("fuzz/")
            && !self.path.starts_with("benches/")
    }

    /// Positions of `word` in the code, as a whole word.
    fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        let is_part =
            |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        let bytes = self.code.as_bytes();
        self.code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
            let before = at.checked_sub(1).and_then(|at| bytes.get(at));
            !is_part(before) && !is_part(bytes.get(at + word.len()))
        })
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Paths below `folder` of the repository, with `/`, that end in `ending`.
fn files_below(folder: &str, ending: &str, found: &mut Vec<String>) {
    let Ok(names) = fs::read_dir(root().join(folder)) else { return };
    for name in names {
        let name = name.expect("the repository can be listed");
        let text = name.file_name().into_string().expect("names of the repository are UTF-8");
        let path = if folder.is_empty() { text.clone() } else { format!("{folder}/{text}") };
        if name.path().is_dir() {
            if text != "target" && !text.starts_with('.') {
                files_below(&path, ending, found);
            }
        } else if text.ends_with(ending) {
            found.push(path);
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    files_below("", ".rs", &mut paths);
    paths.sort();
    let mut sources: Vec<Source> = paths.into_iter().map(parse).collect();
    let test_modules: Vec<String> = sources.iter().flat_map(test_modules).collect();
    for source in &mut sources {
        let belongs = |module: &String| {
            source.path == format!("{module}.rs") || source.path.starts_with(&format!("{module}/"))
        };
        if !source.is_production() || test_modules.iter().any(belongs) {
            source.is_test.fill(true);
        }
    }
    assert!(sources.len() > 20, "the repository has more than {} files", sources.len());
    sources
}

fn parse(path: String) -> Source {
    let raw = read(&path);
    let code = blank(&raw);
    let mut is_test = vec![false; raw.lines().count() + 1];
    for (at, _) in code.match_indices("#[cfg(test)]") {
        let line = |at: usize| code[..at].bytes().filter(|&byte| byte == b'\n').count();
        is_test[line(at)..=line(item_end(&code, at))].fill(true);
    }
    Source { path, raw, code, is_test }
}

/// The folder-like paths of the modules that `source` declares for tests alone.
fn test_modules(source: &Source) -> Vec<String> {
    let (folder, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let stem = file.trim_end_matches(".rs");
    let owner = match stem {
        "mod" | "lib" | "main" => folder.to_owned(),
        _ => format!("{folder}/{stem}"),
    };
    let mut modules = Vec::new();
    for at in source.words("mod").filter(|&at| source.is_test_at(at)) {
        let rest = &source.code[at + 3..];
        if let Some((name, _)) = rest.split_once(';')
            && !name.contains('{')
        {
            modules.push(format!("{owner}/{}", name.trim()));
        }
    }
    modules
}

/// Where the item at `start` ends: at its first `;`, or at the end of its first block. Those in
/// brackets belong to types.
fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return block_end(code, at),
            b';' if depth == 0 => return at,
            _ => {}
        }
    }
    code.len()
}

/// Where the block that opens at `start` closes.
fn block_end(code: &str, start: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    code.len()
}

/// Replaces comments and the insides of string and character literals by spaces, byte for byte.
fn blank(raw: &str) -> String {
    let bytes = raw.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_or_comment_end(bytes, at);
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// The end of the comment or literal that begins at `at`; `at` itself if none does.
fn literal_or_comment_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let find = |from: usize, what: &[u8]| {
        let offset = rest[from..].windows(what.len()).position(|window| window == what);
        offset.map_or(bytes.len(), |offset| at + from + offset + what.len())
    };
    let follows_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match rest {
        [b'/', b'/', ..] => find(2, b"\n"),
        [b'/', b'*', ..] => find(2, b"*/"),
        [b'"', ..] => string_end(bytes, at + 1),
        [b'\'', b'\\', ..] => find(3, b"'"),
        [b'\'', _, b'\'', ..] => at + 3,
        [b'b', b'r', ..] if !follows_word => raw_string_end(bytes, at, 2),
        [b'r', ..] if !follows_word => raw_string_end(bytes, at, 1),
        _ => at,
    }
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_string_end(bytes: &[u8], start: usize, mark_len: usize) -> usize {
    let hashes = bytes[start + mark_len..].iter().take_while(|&&byte| byte == b'#').count();
    if bytes.get(start + mark_len + hashes) != Some(&b'"') {
        return start;
    }
    let close = [&b"\""[..], &b"#".repeat(hashes)].concat();
    let body = start + mark_len + hashes + 1;
    let offset = bytes[body..].windows(close.len()).position(|window| window == close);
    offset.map_or(bytes.len(), |offset| body + offset + close.len())
}

#[track_caller]
fn check(breaches: Vec<String>) {
    assert!(breaches.is_empty(), "{} breaches\n{}", breaches.len(), breaches.join("\n"));
}

// ---- rules ------------------------------------------------------------------------------------

/// The top modules that `code` names behind `root_path` (`crate::`, `std::`), with their places.
fn names_behind(code: &str, root_path: &str) -> Vec<(usize, String)> {
    let ident = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut names = Vec::new();
    for (at, _) in code.match_indices(root_path) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &code[at + root_path.len()..];
        if !rest.starts_with('{') {
            names.push((at, ident(rest)));
            continue;
        }
        let group = &rest[1..block_end(rest, 0).min(rest.len())];
        let mut depth = 0;
        let mut starts = vec![0];
        for (offset, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => starts.push(offset + 1),
                _ => {}
            }
        }
        names.extend(starts.into_iter().map(|start| (at, ident(&group[start..]))));
    }
    names.retain(|(_, name)| !name.is_empty());
    names
}

fn floor_of(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

fn import_breach(path: &str, module: &str, floor: usize, name: &str) -> Option<String> {
    // What lib.rs lifts to the top is the error type.
    let name = if name.starts_with(char::is_uppercase) { "error" } else { name };
    let Some(target) = floor_of(name) else {
        return Some(format!("imports `{name}`, which stands on no floor"));
    };
    if name == module {
        return None;
    }
    let in_compaction = module == "compaction" && path != COMPACTION_EXECUTOR;
    if in_compaction && EXECUTOR_IMPORTS.contains(&name) {
        return Some(format!("only {COMPACTION_EXECUTOR} may import `{name}`"));
    }
    if target > floor || (target == floor && floor == FORMATS_FLOOR) {
        return Some(format!("`{module}` (floor {floor}) imports `{name}` (floor {target})"));
    }
    None
}

#[test]
fn imports_only_go_down_the_floors() {
    let mut breaches = Vec::new();
    for source in sources() {
        let Some(path) = source.path.strip_prefix(CORE).filter(|path| *path != "lib.rs") else {
            continue;
        };
        let module = path.split(['/', '.']).next().expect("a split yields something");
        let Some(floor) = floor_of(module) else {
            breaches.push(source.at(0, "stands on no floor; see FLOORS in tests/tidy.rs"));
            continue;
        };
        for (at, name) in names_behind(&source.code, "crate::") {
            if !source.is_test_at(at)
                && let Some(what) = import_breach(path, module, floor, &name)
            {
                breaches.push(source.at(at, &what));
            }
        }
    }
    check(breaches);
}

#[test]
fn every_file_opens_by_saying_what_it_is() {
    let silent = |source: Source| {
        (!source.raw.starts_with("//!")).then(|| source.at(0, "does not open with `//!`"))
    };
    check(sources().into_iter().filter_map(silent).collect());
}

#[test]
fn files_fit_their_limit() {
    let mut breaches = Vec::new();
    let mut listed: BTreeSet<&str> = LONG_FILES.iter().map(|(path, _)| *path).collect();
    for source in sources().iter().filter(|source| source.is_production()) {
        let lines =
            source.raw.lines().zip(&source.is_test).filter(|(_, is_test)| !**is_test).count();
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
    let unused = |(path, name): &(&str, &str)| {
        format!("{path}:1: fn {name} is gone or short; strike its exception")
    };
    breaches.extend(listed.iter().map(unused));
    check(breaches);
}

/// What is wrong with `lines`, where `limit` holds unless an exception allows more.
fn ratchet(lines: usize, limit: usize, exception: Option<usize>) -> Option<String> {
    match exception {
        None if lines > limit => Some(format!("has {lines} lines, the limit is {limit}")),
        Some(_) if lines <= limit => Some(format!("has {lines} lines; strike its exception")),
        Some(most) if lines > most => Some(format!("has {lines} lines, its exception is {most}")),
        Some(most) if lines < most => Some(format!("has {lines} lines; lower its exception")),
        _ => None,
    }
}

/// Breaches for every occurrence that `is_wrong` says, of a word in the code.
fn words_where(word: &str, what: &str, is_wrong: impl Fn(&Source, usize) -> bool) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in sources() {
        let wrong = source.words(word).filter(|&at| is_wrong(&source, at));
        breaches.extend(wrong.map(|at| source.at(at, what)));
    }
    breaches
}

fn is_core_file(source: &Source, files: &[&str]) -> bool {
    source.path.strip_prefix(CORE).is_some_and(|path| files.contains(&path))
}

#[test]
fn unsafe_code_stays_where_it_is_argued() {
    check(words_where("unsafe", "`unsafe` outside of the files that may", |source, _| {
        !is_core_file(source, &UNSAFE_FILES) && source.path != FOREIGN_CALLS_FILE
    }));
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
        if source.path.starts_with("crates/cli/") || is_core_file(source, &FS_FILES) {
            continue;
        }
        let named = names_behind(&source.code, "std::");
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
fn design_notes_are_numbered_and_dated() {
    let mut notes = Vec::new();
    files_below("docs/design", ".md", &mut notes);
    notes.sort();
    let mut breaches = Vec::new();
    let mut numbers = BTreeSet::new();
    for path in &notes {
        let name = path.rsplit('/').next().expect("a split yields something");
        let number = name.split_once('-').map(|(number, _)| number);
        let number = number.filter(|n| n.len() == 4 && n.bytes().all(|b| b.is_ascii_digit()));
        match number {
            None => breaches.push(format!("{path}:1: is not named NNNN-title.md")),
            Some(number) if !numbers.insert(number.to_owned()) => {
                breaches.push(format!("{path}:1: number {number} is taken"));
            }
            Some(_) => {}
        }
        if !read(path).lines().take(6).any(has_date) {
            breaches.push(format!("{path}:1: no date (YYYY-MM-DD) in the first 6 lines"));
        }
    }
    check(breaches);
}

fn has_date(line: &str) -> bool {
    line.as_bytes().windows(10).any(|window| {
        window.iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        })
    })
}

#[test]
fn the_index_of_formats_names_every_magic() {
    let index = read("docs/FORMATS.md");
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|source| source.is_production()) {
        for (at, _) in source.code.match_indices("MAGIC") {
            let line = source.line_of(at);
            let text = source.raw.lines().nth(line - 1).unwrap_or_default();
            if !text.contains("const ") || source.is_test_at(at) {
                continue;
            }
            let value = text.split_once('=').map_or("", |(_, value)| value);
            let quoted = value.split('"').nth(1);
            let value = quoted.unwrap_or_else(|| value.trim_matches([' ', ';']));
            if value.is_empty() || !index.contains(value) {
                breaches.push(source.at(at, &format!("docs/FORMATS.md does not name {value:?}")));
            }
        }
    }
    check(breaches);
}

// ---- the reader itself ------------------------------------------------------------------------

#[test]
fn the_reader_knows_comments_strings_and_tests() {
    let raw = "a // unsafe\n/* { */ b \"un\\\"safe{\" r#\"x\"{\"# 'x' '\\'' b'{' fn<'a>() {}\n";
    let code = blank(raw);
    assert_eq!(code.len(), raw.len());
    assert!(!code.contains("unsafe") && !code.contains("safe"));
    assert_eq!(code.matches('{').count(), 1);
    assert!(code.contains("fn<'a>() {}"));
    let function = "fn f(a: [u8; 4]) -> [u8; 2] { g(); }";
    assert_eq!(item_end(function, 0), function.len() - 1);
    assert_eq!(item_end("fn f(); fn g() {}", 0), 6);
    let names = names_behind("use crate::{a::{b, c}, d}; crate::e(); $crate::f", "crate::");
    let names: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["a", "d", "e"]);
    assert!(import_breach("wal/mod.rs", "wal", 2, "sstable").is_some());
    assert!(import_breach("wal/mod.rs", "wal", 2, "fs").is_none());
    assert!(import_breach("compaction/picker.rs", "compaction", 5, "fs").is_some());
    assert!(import_breach("compaction/executor.rs", "compaction", 5, "fs").is_none());
    assert_eq!(ratchet(80, 70, Some(80)), None);
    assert!(ratchet(79, 70, Some(80)).is_some() && ratchet(71, 70, None).is_some());
    assert!(has_date("Date: 2026-01-31") && !has_date("2026-1-31 or so"));
}
