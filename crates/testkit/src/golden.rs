//! Text files with the expected output of the code.
//!
//! Tests call [`assert_golden`]; `BLESS=1 cargo test` rewrites the files, and the diff is then
//! reviewed like code. A missing file fails: a golden without a review checks nothing.

use std::fmt::Write as _;
use std::path::PathBuf;

const CONTEXT_LINES: usize = 3;

/// Compares `actual` with the file `path` in the folder `testdata/` of the package under test.
///
/// # Panics
/// If they differ, with the lines that do; if the file is missing or cannot be written.
#[expect(clippy::disallowed_methods, reason = "goldens are outside every database")]
pub fn assert_golden(path: &str, actual: &str) {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(PathBuf::new, PathBuf::from);
    let file = root.join("testdata").join(path);
    if std::env::var_os("BLESS").is_some() {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).expect("the folder of goldens can be made");
        }
        std::fs::write(&file, actual).expect("the golden can be written");
        return;
    }
    match std::fs::read_to_string(&file) {
        Ok(expected) if expected == actual => {}
        Ok(expected) => panic!(
            "{} differs (- expected, + actual); BLESS=1 rewrites it\n{}",
            file.display(),
            diff(&expected, actual)
        ),
        Err(e) => panic!("{}: {e}; BLESS=1 writes it\n{actual}", file.display()),
    }
}

/// The lines between the first and the last difference, with a little context.
fn diff(expected: &str, actual: &str) -> String {
    let old: Vec<&str> = expected.lines().collect();
    let new: Vec<&str> = actual.lines().collect();
    let same_head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - same_head;
    let same_tail =
        old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    if same_head == old.len() && old.len() == new.len() {
        return "only the line ends differ\n".to_owned();
    }

    let first = same_head.saturating_sub(CONTEXT_LINES);
    let mut text = format!("@@ line {} @@\n", first + 1);
    let mut add = |mark: char, lines: &[&str]| {
        for line in lines {
            writeln!(text, "{mark} {line}").expect("a string takes everything");
        }
    };
    add(' ', &old[first..same_head]);
    add('-', &old[same_head..old.len() - same_tail]);
    add('+', &new[same_head..new.len() - same_tail]);
    let tail = &old[old.len() - same_tail..];
    add(' ', &tail[..tail.len().min(CONTEXT_LINES)]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_diff_shows_what_changed_between_its_neighbours() {
        let expected = "a\nb\nc\nd\ne\nf\n";
        assert_eq!(
            diff(expected, "a\nb\nc\nd\nE\ne2\nf\n"),
            "@@ line 2 @@\n  b\n  c\n  d\n- e\n+ E\n+ e2\n  f\n"
        );
        assert_eq!(diff("a\na\n", "a\n"), "@@ line 1 @@\n  a\n- a\n");
        assert_eq!(diff("a\n", "a"), "only the line ends differ\n");
    }

    #[test]
    fn a_missing_golden_fails() {
        if std::env::var_os("BLESS").is_none() {
            let outcome = std::panic::catch_unwind(|| assert_golden("no such file", "x"));
            assert!(outcome.is_err());
        }
    }
}
