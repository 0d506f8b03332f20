//! The floors of lsm-core: imports go down, and the pages that draw the floors agree.
//!
//! ARCHITECTURE.md is the place where a module is put on a floor; this file reads it there.

use crate::source::{block_end, read, root, sources};
use crate::{CORE, check};

/// The floor of the formats: none imports another.
const FORMATS_FLOOR: usize = 2;
/// The only files of `compaction` that may import what touches files, and what they may import.
const COMPACTION_FILES: [&str; 2] = ["compaction/inputs.rs", "compaction/outputs.rs"];
const COMPACTION_FILES_IMPORT: [&str; 3] = ["fs", "cache", "sstable"];

/// The modules of each floor, lowest first, as the lines of `page` draw them: the floor's number,
/// its modules, what they are for, with two spaces or more between any two of them.
fn floors_in(page: &str) -> Vec<Vec<String>> {
    let mut floors = Vec::new();
    for line in page.lines() {
        let line = line.trim_start_matches("//!").trim();
        let mut columns = line.split("  ").map(str::trim).filter(|column| !column.is_empty());
        let floor = columns.next().and_then(|number| number.parse::<usize>().ok());
        let mut modules: Vec<String> = columns.map(str::to_owned).collect();
        // The last column says what the modules are for. The lock order is numbered from 1 up,
        // the floors from the top down to 0.
        modules.pop();
        if floor.is_some() && !modules.is_empty() && modules.iter().all(|module| is_name(module)) {
            modules.sort();
            floors.push((floor, modules));
        }
    }
    floors.sort();
    let numbers = floors.iter().enumerate().all(|(at, (floor, _))| *floor == Some(at));
    assert!(numbers && !floors.is_empty(), "the page draws the floors 0 and up, each once");
    floors.into_iter().map(|(_, modules)| modules).collect()
}

fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

fn floor_of(floors: &[Vec<String>], module: &str) -> Option<usize> {
    floors.iter().position(|floor| floor.iter().any(|listed| listed == module))
}

/// The identifier that `text` begins with.
fn ident(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The top modules that `code` names after `root_path` (`crate::`, `std::`), with their places.
pub(crate) fn names_behind(code: &str, root_path: &str) -> Vec<(usize, String)> {
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

fn import_breach(floors: &[Vec<String>], path: &str, module: &str, name: &str) -> Option<String> {
    let floor = floor_of(floors, module)?;
    // What lib.rs lifts to the top is the error type.
    let name = if name.starts_with(char::is_uppercase) { "error" } else { name };
    let Some(target) = floor_of(floors, name) else {
        return Some(format!("imports `{name}`, which stands on no floor"));
    };
    if name == module {
        return None;
    }
    let in_compaction = module == "compaction" && !COMPACTION_FILES.contains(&path);
    if in_compaction && COMPACTION_FILES_IMPORT.contains(&name) {
        return Some(format!("only {COMPACTION_FILES:?} may import `{name}`"));
    }
    if target > floor || (target == floor && floor == FORMATS_FLOOR) {
        return Some(format!("`{module}` (floor {floor}) imports `{name}` (floor {target})"));
    }
    None
}

#[test]
fn imports_only_go_down_the_floors() {
    let floors = floors_in(&read("ARCHITECTURE.md"));
    let mut breaches = Vec::new();
    for source in sources() {
        let Some(path) = source.path.strip_prefix(CORE).filter(|path| *path != "lib.rs") else {
            continue;
        };
        let module = path.split(['/', '.']).next().expect("a split yields something");
        if floor_of(&floors, module).is_none() {
            breaches.push(source.at(0, "stands on no floor; see ARCHITECTURE.md"));
        }
        for (at, name) in names_behind(&source.code, "crate::") {
            if !source.is_test_at(at)
                && let Some(what) = import_breach(&floors, path, module, &name)
            {
                breaches.push(source.at(at, &what));
            }
        }
    }
    check(breaches);
}

#[test]
fn the_pages_draw_the_same_floors() {
    let drawn = floors_in(&read("ARCHITECTURE.md"));
    assert_eq!(floors_in(&read("crates/lsm-core/src/lib.rs")), drawn, "lib.rs of lsm-core");
    let mut breaches = Vec::new();
    for module in drawn.iter().flatten() {
        let path = root().join(CORE).join(module);
        if !path.exists() && !path.with_extension("rs").exists() {
            breaches.push(format!("ARCHITECTURE.md: `{module}` is no module of lsm-core"));
        }
    }
    check(breaches);
}

#[test]
fn the_floors_are_read_from_a_page_and_hold() {
    let page = "2  wal  sstable  formats\n1  fs      contracts\n0  error   the vocabulary\n\
                5  compaction  pure\n4  version  files\n3  cache  blocks\n1  Db::lock   closing";
    let floors = floors_in(page);
    assert_eq!(floors[2], ["sstable", "wal"]);
    assert!(import_breach(&floors, "wal/mod.rs", "wal", "sstable").is_some());
    assert!(import_breach(&floors, "wal/mod.rs", "wal", "fs").is_none());
    assert!(import_breach(&floors, "fs/mod.rs", "fs", "wal").is_some());
    assert!(import_breach(&floors, "compaction/picker.rs", "compaction", "fs").is_some());
    assert!(import_breach(&floors, COMPACTION_FILES[0], "compaction", "fs").is_none());
    let names = names_behind("use crate::{a::{b, c}, d}; crate::e(); $crate::f", "crate::");
    let names: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["a", "d", "e"]);
}
