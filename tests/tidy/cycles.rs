//! Import cycles: files of one crate that import each other, over one or several steps.
//!
//! An arrow goes from a file to each file that defines an item which it imports or names by a
//! path. A re-export is followed to the definition; `pub use` by itself is no arrow. Not seen are
//! methods of values, names that only a macro makes, and modules inside of a file.

use std::collections::{BTreeMap, BTreeSet};

use crate::check;
use crate::source::{Source, sources};

/// Files that may import each other in a circle: a type, its cursor and its parts.
const CYCLE_FILES_MAX: usize = 3;

type Names = Vec<String>;

/// The modules of a crate, by their paths from its root.
#[derive(Default)]
struct Crate {
    /// The file of each module.
    files: BTreeMap<Names, usize>,
    /// The names that each module imports, with the path of each; `None` from another crate.
    names: BTreeMap<Names, BTreeMap<String, Option<Names>>>,
    /// The names of the items that each module defines.
    defined: BTreeMap<Names, BTreeSet<String>>,
    /// The modules whose items each module imports with `*`.
    globs: BTreeMap<Names, Vec<Names>>,
    /// The paths that each file imports or names.
    uses: Vec<BTreeSet<Names>>,
}

impl Crate {
    fn new(files: &[(Names, String)]) -> Crate {
        let modules = files.iter().map(|(module, _)| module.clone());
        let mut all = Crate { files: modules.zip(0..).collect(), ..Crate::default() };
        for (module, code) in files {
            let mut rest = code.clone();
            let mut uses = BTreeSet::new();
            let uses_at = word_starts(code, "use").into_iter();
            // `impl Trait + use<>` imports nothing.
            for at in uses_at.filter(|at| !code[at + 3..].starts_with('<')) {
                let end = at + code[at..].find(';').unwrap_or(code.len() - at);
                for (path, name) in use_paths(&code[at + 3..end], &[]) {
                    let target = all.absolute(&path, module);
                    if !is_public(&code[..at]) {
                        uses.extend(target.clone());
                    }
                    if name != "*" {
                        all.names.entry(module.clone()).or_default().insert(name, target);
                    } else if let Some(target) = target {
                        let globs = all.globs.entry(module.clone()).or_default();
                        globs.push(target[..target.len() - 1].to_vec());
                    }
                }
                rest.replace_range(at..end, &" ".repeat(end - at));
            }
            all.defined.insert(module.clone(), definitions_in(&rest));
            uses.extend(paths_in(&rest).iter().filter_map(|path| all.absolute(path, module)));
            all.uses.push(uses);
        }
        all
    }

    /// The path from the root of the crate; `None` for one into another crate.
    fn absolute(&self, path: &[String], module: &Names) -> Option<Names> {
        let ups = path.iter().take_while(|name| *name == "super").count();
        let skipped = if path[0] == "self" { 1 } else { ups };
        if path[0] == "crate" {
            return Some(path[1..].to_vec());
        }
        let inside = [&module[..module.len().saturating_sub(ups)], &path[skipped..]].concat();
        let child = [module, &path[..1]].concat();
        let imported = self.names.get(module).is_some_and(|names| names.contains_key(&path[0]));
        (skipped > 0 || imported || self.files.contains_key(&child)).then_some(inside)
    }

    /// The file that defines the item at `path`; `None` for a module and for other crates.
    fn file_of(&self, path: &[String], depth: usize) -> Option<usize> {
        let cut = (0..=path.len()).rev().find(|&cut| self.files.contains_key(&path[..cut]))?;
        let module = &path[..cut];
        let name = path.get(cut)?;
        let origin = match self.names.get(module).and_then(|names| names.get(name)) {
            Some(origin) => origin.clone()?,
            None => self.through_glob(module, name).unwrap_or_else(|| path[..=cut].to_vec()),
        };
        if depth == 8 || origin == path[..=cut] {
            return Some(self.files[module]);
        }
        self.file_of(&[&origin, &path[cut + 1..]].concat(), depth + 1)
    }

    fn through_glob(&self, module: &[String], name: &String) -> Option<Names> {
        let mut globs = self.globs.get(module)?.iter();
        let glob = globs.find(|&glob| {
            let is_imported = self.names.get(glob).is_some_and(|names| names.contains_key(name));
            is_imported || self.defined.get(glob).is_some_and(|names| names.contains(name))
        })?;
        Some([glob, std::slice::from_ref(name)].concat())
    }

    /// The groups of files that reach each other.
    fn cycles(&self) -> BTreeSet<BTreeSet<usize>> {
        let mut reach: Vec<BTreeSet<usize>> = self.uses.iter().map(|_| BTreeSet::new()).collect();
        for (file, paths) in self.uses.iter().enumerate() {
            reach[file].extend(paths.iter().filter_map(|path| self.file_of(path, 0)));
            reach[file].remove(&file);
        }
        for middle in 0..reach.len() {
            let beyond = reach[middle].clone();
            for files in reach.iter_mut().filter(|files| files.contains(&middle)) {
                files.extend(&beyond);
            }
        }
        let groups = reach.iter().enumerate().map(|(file, files)| {
            files.iter().copied().filter(|&other| reach[other].contains(&file)).collect()
        });
        groups.filter(|group: &BTreeSet<usize>| group.len() > 1).collect()
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The starts of `word` in `code`, as a whole word.
fn word_starts(code: &str, word: &str) -> Vec<usize> {
    let starts = code.match_indices(word).map(|(at, _)| at);
    let whole = starts.filter(|&at| {
        !code[..at].ends_with(is_word) && !code[at + word.len()..].starts_with(is_word)
    });
    whole.collect()
}

fn definitions_in(code: &str) -> BTreeSet<String> {
    let keywords = ["fn", "struct", "enum", "trait", "type", "const", "static", "macro_rules!"];
    let mut names = BTreeSet::new();
    for keyword in keywords {
        names.extend(word_starts(code, keyword).into_iter().map(|at| {
            let rest = code[at + keyword.len()..].trim_start();
            rest.chars().take_while(|c| is_word(*c)).collect::<String>()
        }));
    }
    names
}

fn is_public(before: &str) -> bool {
    let before = before.trim_end();
    let head = if before.ends_with(')') { before.rsplit_once('(') } else { None };
    head.map_or(before, |(head, _)| head).ends_with("pub")
}

/// The names of `a::b::c`, with spaces anywhere.
fn names_of(path: &str) -> Names {
    let names = path.split("::").map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// The (path, local name) of each import of a use tree.
fn use_paths(tree: &str, prefix: &[String]) -> Vec<(Names, String)> {
    let mut found = Vec::new();
    let mut depth = 0usize;
    let parts = tree.split(|c: char| {
        depth = (depth + usize::from(c == '{')) - usize::from(c == '}');
        c == ',' && depth == 0
    });
    for part in parts.map(str::trim).filter(|part| !part.is_empty()) {
        if let Some((head, group)) = part.split_once('{') {
            let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
            found.extend(use_paths(group, &[prefix, &names_of(head)].concat()));
            continue;
        }
        let (path, alias) = part.split_once(" as ").unwrap_or((part, ""));
        let mut path = [prefix, &names_of(path)].concat();
        if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
            path.pop();
        }
        let name =
            if alias.is_empty() { path[path.len() - 1].clone() } else { alias.trim().to_owned() };
        found.push((path, name));
    }
    found
}

/// The paths of two and more names in `code`.
fn paths_in(code: &str) -> Vec<Names> {
    let runs = code.split(|c: char| !is_word(c) && c != ':');
    let paths = runs.map(|run| names_of(run.trim_end_matches(':')));
    paths
        .filter(|path| path.len() > 1 && path.iter().all(|name| name.chars().all(is_word)))
        .collect()
}

/// The crates of the product, by their source folders: of each file its module, its path, its code.
fn crates() -> BTreeMap<String, Vec<(Names, String, String)>> {
    let mut crates: BTreeMap<String, Vec<(Names, String, String)>> = BTreeMap::new();
    for source in sources().iter().filter(|source| !source.is_test.iter().all(|is_test| *is_test)) {
        let Some((folder, path)) = source
            .path
            .rsplit_once("src/")
            .filter(|(folder, _)| folder.is_empty() || folder.ends_with('/'))
        else {
            continue;
        };
        let module = path.trim_end_matches(".rs").split('/');
        let mut module: Names = module.map(str::to_owned).collect();
        if module.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
            module.pop();
        }
        let files = crates.entry(format!("{folder}src")).or_default();
        files.push((module, source.path.clone(), product_code(source)));
    }
    crates
}

/// The code without what exists only for tests.
fn product_code(source: &Source) -> String {
    let lines = source.code.lines().zip(&source.is_test);
    lines.map(|(line, is_test)| if *is_test { "\n" } else { line }.to_owned() + "\n").collect()
}

#[test]
fn few_files_import_each_other() {
    let mut breaches = Vec::new();
    for files in crates().into_values() {
        let modules: Vec<(Names, String)> =
            files.iter().map(|(module, _, code)| (module.clone(), code.clone())).collect();
        for cycle in Crate::new(&modules).cycles() {
            if cycle.len() > CYCLE_FILES_MAX {
                let paths: Vec<&str> = cycle.iter().map(|&file| files[file].1.as_str()).collect();
                breaches.push(format!(
                    "{} files import each other: {}",
                    paths.len(),
                    paths.join(" ")
                ));
            }
        }
    }
    check(breaches);
}

#[test]
fn a_cycle_is_found_through_groups_paths_and_re_exports() {
    let root = ("", "mod a; pub use a::A;");
    let a = ("a", "use super::{b::{self, B as Other}, c::C}; pub struct A(Other);");
    let c = ("c", "pub struct C;");
    check_cycles(&[root, a, ("b", "use crate::A; pub struct B;"), c], &[2]);
    check_cycles(&[root, a, ("b", "pub struct B; fn f() { crate::a::g::<u8>(); }"), c], &[2]);
    check_cycles(&[root, a, ("b", "use std::fmt; pub struct B; fn f() { fmt::g(); }"), c], &[]);
    check_cycles(&[root, a, ("b", "pub use super::a::A; pub struct B;"), c], &[]);
    let glob = ("", "mod a; pub use a::*;");
    check_cycles(&[glob, a, ("b", "use crate::A; pub struct B;"), c], &[2]);
    let b = ("b", "use super::c::C; pub struct B;");
    check_cycles(&[root, a, b, ("c", "use crate::A; pub struct C;")], &[3]);
}

fn check_cycles(files: &[(&str, &str)], sizes: &[usize]) {
    let files: Vec<(Names, String)> =
        files.iter().map(|(module, code)| (names_of(module), (*code).to_owned())).collect();
    let cycles = Crate::new(&files).cycles();
    assert_eq!(cycles.iter().map(BTreeSet::len).collect::<Vec<_>>(), sizes, "{files:?}");
}
