//! The layers of the engine: a module imports from its own layer and from lower ones, and the pages that list the
//! layers agree.
//!
//! ARCHITECTURE.md is the place where a module is put in a layer; this file reads it there.

use crate::source::{block_end, read, root, sources};
use crate::{ENGINE, check, engine_path};

/// The layer of the formats: none imports another.
const FORMATS_LAYER: usize = 2;
/// The only files of `compaction` that may import what touches files, and what they may import.
const COMPACTION_FILES: [&str; 3] =
    ["compaction/damaged.rs", "compaction/inputs.rs", "compaction/outputs.rs"];
const COMPACTION_FILES_IMPORT: [&str; 3] = ["fs", "cache", "sstable"];

/// The modules of each layer, lowest first, as the lines of `page` draw them: the layer's number,
/// its modules, what they are for, with two spaces or more between any two of them.
fn layers_in(page: &str) -> Vec<Vec<String>> {
    let mut layers = Vec::new();
    for line in page.lines() {
        let line = line.trim_start_matches("//!").trim();
        let mut columns = line.split("  ").map(str::trim).filter(|column| !column.is_empty());
        let layer = columns.next().and_then(|number| number.parse::<usize>().ok());
        let mut modules: Vec<String> = columns.map(str::to_owned).collect();
        // The last column says what the modules are for. The lock order is numbered from 1 up,
        // the layers from the top down to 0.
        modules.pop();
        if layer.is_some() && !modules.is_empty() && modules.iter().all(|module| is_name(module)) {
            modules.sort();
            layers.push((layer, modules));
        }
    }
    layers.sort();
    let numbers = layers.iter().enumerate().all(|(at, (layer, _))| *layer == Some(at));
    assert!(numbers && !layers.is_empty(), "the page draws the layers 0 and up, each once");
    layers.into_iter().map(|(_, modules)| modules).collect()
}

fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

fn layer_of(layers: &[Vec<String>], module: &str) -> Option<usize> {
    layers.iter().position(|layer| layer.iter().any(|listed| listed == module))
}

/// The identifier that `text` begins with.
fn ident(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The top modules that `code` names after `root_path` (`crate::`, `std::`), with their places.
pub(crate) fn names_after(code: &str, root_path: &str) -> Vec<(usize, String)> {
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

fn import_breach(layers: &[Vec<String>], path: &str, module: &str, name: &str) -> Option<String> {
    let layer = layer_of(layers, module)?;
    // What lib.rs lifts to the top is the error type.
    let name = if name.starts_with(char::is_uppercase) { "error" } else { name };
    let Some(target) = layer_of(layers, name) else {
        return Some(format!("imports `{name}`, which is in no layer"));
    };
    if name == module {
        return None;
    }
    let in_compaction = module == "compaction" && !COMPACTION_FILES.contains(&path);
    if in_compaction && COMPACTION_FILES_IMPORT.contains(&name) {
        return Some(format!("only {COMPACTION_FILES:?} may import `{name}`"));
    }
    if target > layer || (target == layer && layer == FORMATS_LAYER) {
        return Some(format!("`{module}` (layer {layer}) imports `{name}` (layer {target})"));
    }
    None
}

#[test]
fn imports_only_go_to_lower_layers() {
    let layers = layers_in(&read("ARCHITECTURE.md"));
    let mut breaches = Vec::new();
    for source in sources() {
        let Some(path) = engine_path(&source).filter(|path| *path != "lib.rs") else {
            continue;
        };
        let module = path.split(['/', '.']).next().expect("a split yields something");
        if layer_of(&layers, module).is_none() {
            breaches.push(source.at(0, "is in no layer; see ARCHITECTURE.md"));
        }
        for (at, name) in names_after(&source.code, "crate::") {
            if !source.is_test_at(at)
                && let Some(what) = import_breach(&layers, path, module, &name)
            {
                breaches.push(source.at(at, &what));
            }
        }
    }
    check(breaches);
}

#[test]
fn the_pages_draw_the_same_layers() {
    let drawn = layers_in(&read("ARCHITECTURE.md"));
    assert_eq!(layers_in(&read("crates/lsm-core/src/lib.rs")), drawn, "lib.rs of lsm-core");
    let mut breaches = Vec::new();
    for module in drawn.iter().flatten() {
        let mut paths = ENGINE.iter().map(|folder| root().join(folder).join(module));
        if !paths.any(|path| path.exists() || path.with_extension("rs").exists()) {
            breaches.push(format!("ARCHITECTURE.md: `{module}` is no module of the engine"));
        }
    }
    check(breaches);
}

#[test]
fn the_layers_are_read_from_a_page_and_hold() {
    let page = "2  wal  sstable  formats\n1  fs      contracts\n0  error   the vocabulary\n\
                5  compaction  pure\n4  version  files\n3  cache  blocks\n1  Db::lock   closing";
    let layers = layers_in(page);
    assert_eq!(layers[2], ["sstable", "wal"]);
    assert!(import_breach(&layers, "wal/mod.rs", "wal", "sstable").is_some());
    assert!(import_breach(&layers, "wal/mod.rs", "wal", "fs").is_none());
    assert!(import_breach(&layers, "fs/mod.rs", "fs", "wal").is_some());
    assert!(import_breach(&layers, "compaction/picker.rs", "compaction", "fs").is_some());
    assert!(import_breach(&layers, COMPACTION_FILES[0], "compaction", "fs").is_none());
    let names = names_after("use crate::{a::{b, c}, d}; crate::e(); $crate::f", "crate::");
    let names: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["a", "d", "e"]);
}
