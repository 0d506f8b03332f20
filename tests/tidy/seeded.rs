//! The deliberate defects of `tests/seeded/`: each must fit the code, so that `scripts/seeded-bugs.sh` can build
//! them all into one copy of it.
//!
//! A defect begins with `# what is wrong`. Then come `file PATH`, `run PACKAGE TARGET [FILTER]` for the tests that
//! should catch it, and the old lines with `-` before the new ones with `+`. The old text occurs once in the file,
//! and may begin and end within a line. `BUG` in the new one is a call that returns `true` if the defect is chosen.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::check;
use crate::source::{files_below, read};

const FOLDER: &str = "tests/seeded";
/// The file with the choice of a defect: a module that all crates of the engine see.
const CHOICE: &str = "crates/storage/src/limits.rs";
/// The number of defects that there are at least.
const COUNT_MIN: usize = 60;
/// The code that the copy of the engine gets.
const CHOSEN: &str = "
/// Returns `true` if `SEEDED_BUG` is `number`.
#[doc(hidden)]
#[allow(missing_docs, clippy::all)]
pub fn seeded_bug(number: u32) -> bool {
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var(\"SEEDED_BUG\").ok().and_then(|it| it.parse().ok()).unwrap_or(0)) == number
}
";

#[derive(Default)]
struct SeededBug {
    title: String,
    file: String,
    runs: Vec<String>,
    old: Vec<String>,
    new: Vec<String>,
}

impl SeededBug {
    /// Replaces its text in `code`. Fails if it does not occur once.
    fn apply(&self, number: usize, code: &str) -> Result<String, String> {
        let old = self.old.join("\n");
        let found = code.matches(&old).count();
        if found != 1 || old.is_empty() {
            return Err(format!("{}: {:?} occurs {found} times", self.file, self.title));
        }
        let path = match self.file.split('/').nth(1) {
            Some("storage" | "lsm-core" | "tree") => "crate::limits",
            Some("server") => "storage::limits",
            _ => "lsm_core::limits",
        };
        let chosen = format!("{path}::seeded_bug({number})");
        let new = self.new.join("\n").replace("BUG", &chosen);
        Ok(code.replacen(&old, &new, 1))
    }
}

fn parse(text: &str) -> Vec<SeededBug> {
    let mut bugs: Vec<SeededBug> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            bugs.push(SeededBug { title: title.to_owned(), ..SeededBug::default() });
        }
        let Some(bug) = bugs.last_mut() else { continue };
        let parts = [("-", &mut bug.old), ("+", &mut bug.new), ("run ", &mut bug.runs)];
        for (mark, lines) in parts {
            lines.extend(line.strip_prefix(mark).map(str::to_owned));
        }
        if let Some(file) = line.strip_prefix("file ") {
            file.clone_into(&mut bug.file);
        }
    }
    bugs
}

/// The files with all defects in them, by their paths, and what does not fit.
fn with_bugs(bugs: &[SeededBug]) -> (BTreeMap<&str, String>, Vec<String>) {
    let mut files = BTreeMap::from([(CHOICE, read(CHOICE) + CHOSEN)]);
    let mut misfits = Vec::new();
    for (at, bug) in bugs.iter().enumerate() {
        if bug.runs.is_empty() || !bug.new.iter().any(|line| line.contains("BUG")) {
            misfits.push(format!("{:?} lacks its tests or `BUG`", bug.title));
        }
        let code = files.entry(&bug.file).or_insert_with(|| read(&bug.file));
        match bug.apply(at + 1, code) {
            Ok(changed) => *code = changed,
            Err(misfit) => misfits.push(misfit),
        }
    }
    (files, misfits)
}

/// With `SEEDED_INTO` it writes the files into that copy of the repository, and a list of the defects.
#[test]
fn every_seeded_bug_fits_the_code() {
    let mut paths = Vec::new();
    files_below(FOLDER, ".txt", &mut paths);
    paths.sort();
    let bugs: Vec<SeededBug> = paths.iter().flat_map(|path| parse(&read(path))).collect();
    assert!(bugs.len() >= COUNT_MIN, "{} seeded bugs", bugs.len());
    let (files, misfits) = with_bugs(&bugs);
    check(misfits);
    let Some(copy) = std::env::var_os("SEEDED_INTO") else { return };
    let copy = Path::new(&copy);
    for (path, code) in files {
        std::fs::write(copy.join(path), code).unwrap();
    }
    let mut list = String::new();
    for (at, bug) in bugs.iter().enumerate() {
        writeln!(list, "{}\t{}\t{}", at + 1, bug.title, bug.runs.join(";")).unwrap();
    }
    std::fs::write(copy.join("seeded-bugs.tsv"), list).unwrap();
}
