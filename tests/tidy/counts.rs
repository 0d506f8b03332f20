//! Habits that make code shorter and harder to read, counted. The counts only shrink.
//!
//! Three are counted for each part of the repository:
//!
//! - *tuples*: `let (a, b) = (x, y);`, where two statements say the same;
//! - *closures* bound by `let`, where a named function or a plain statement does;
//! - *questions*: doc lines that begin with What, Who, Where, How or Whether instead of the thing
//!   that they describe. A line may begin so in the middle of a sentence; that is counted, too.

use crate::check;
use crate::source::{Source, sources};

const QUESTIONS: [&str; 5] = ["What", "Who", "Where", "How", "Whether"];

/// One part of the repository, and the most that it may have.
struct Part {
    folder: &'static str,
    is_test: bool,
    tuples: usize,
    closures: usize,
    questions: usize,
}

const fn users(folder: &'static str, counts: [usize; 3]) -> Part {
    let [tuples, closures, questions] = counts;
    Part { folder, is_test: false, tuples, closures, questions }
}

const fn tests(folder: &'static str, counts: [usize; 3]) -> Part {
    Part { is_test: true, ..users(folder, counts) }
}

/// Tuples, closures and questions: of that which users get, and of tests, benches and tools.
const PARTS: [Part; 28] = [
    users("src/", [0, 0, 0]),
    users("crates/encryption/", [0, 0, 0]),
    users("crates/lsm-core/", [0, 8, 0]),
    users("crates/metahive/", [0, 2, 0]),
    users("crates/largeval/", [0, 3, 0]),
    users("crates/remote/", [0, 0, 0]),
    users("crates/secondary/", [0, 0, 0]),
    users("crates/server/", [0, 0, 0]),
    users("crates/storage/", [0, 0, 0]),
    users("crates/streams/", [0, 0, 0]),
    users("crates/tree/", [0, 3, 0]),
    users("crates/typed/", [0, 0, 0]),
    users("crates/cli/", [0, 13, 0]),
    tests("crates/encryption/", [0, 0, 0]),
    tests("crates/lsm-core/", [0, 5, 0]),
    tests("crates/metahive/", [0, 11, 0]),
    tests("crates/largeval/", [0, 0, 0]),
    tests("crates/remote/", [0, 1, 0]),
    tests("crates/secondary/", [0, 8, 0]),
    tests("crates/server/", [0, 0, 0]),
    tests("crates/storage/", [0, 4, 0]),
    tests("crates/cli/", [0, 5, 0]),
    tests("crates/tree/", [0, 19, 0]),
    tests("crates/typed/", [0, 0, 0]),
    tests("crates/testkit/", [0, 13, 0]),
    tests("tests/", [0, 83, 0]),
    tests("benches/", [0, 18, 0]),
    tests("examples/", [0, 2, 0]),
];

/// Places of the statements `let (a, b) = (x, y);`.
fn tuples(source: &Source) -> Vec<usize> {
    source.words("let").filter(|&at| is_tuple_let(&source.code, at)).collect()
}

fn is_tuple_let(code: &str, at: usize) -> bool {
    let Some(pattern_end) = tuple_end(code, at + "let".len()) else { return false };
    let rest = code[pattern_end..].trim_start();
    let rest = match rest.strip_prefix(':') {
        Some(of_type) => of_type.find('=').map_or("", |equals| &of_type[equals..]),
        None => rest,
    };
    let Some(value) = rest.strip_prefix('=') else { return false };
    let Some(value_end) = tuple_end(value, 0) else { return false };
    value[value_end..].trim_start().starts_with(';')
}

/// The end of the tuple of two or more that follows `at` and blanks.
fn tuple_end(code: &str, at: usize) -> Option<usize> {
    let start = at + (code[at..].len() - code[at..].trim_start().len());
    code[start..].strip_prefix('(')?;
    let mut depth = 0usize;
    let mut is_tuple = false;
    for (offset, byte) in code[start..].bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 1 => is_tuple = true,
            _ => {}
        }
        if depth == 0 {
            return is_tuple.then_some(start + offset + 1);
        }
    }
    None
}

/// Places of closures that `let` binds.
fn closures(source: &Source) -> Vec<usize> {
    source.words("let").filter(|&at| is_closure_let(&source.code, at)).collect()
}

fn is_closure_let(code: &str, at: usize) -> bool {
    let statement = code[at..].split(['\n', ';']).next().unwrap_or_default();
    let Some((pattern, value)) = statement.split_once(" =") else { return false };
    // A value on the next line is the same statement.
    let value = if value.trim().is_empty() {
        code[at + pattern.len() + " =".len()..].trim_start()
    } else {
        value.trim_start()
    };
    let value = value.trim_start_matches('&').trim_start_matches("mut ");
    value.trim_start_matches("move ").starts_with('|')
}

/// Places of the doc lines that begin with a question word.
fn questions(source: &Source) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    for line in source.raw.split_inclusive('\n') {
        let text = line.trim_start();
        let text = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"));
        let word = text.and_then(|text| text.split_whitespace().next()).unwrap_or_default();
        if QUESTIONS.contains(&word.trim_end_matches(|c: char| !c.is_alphanumeric())) {
            found.push(at);
        }
        at += line.len();
    }
    found
}

/// Breaches where `found` is not the number that a part is allowed to have.
fn compare(part: &Part, what: &str, allowed: usize, found: &[String]) -> Vec<String> {
    let number = found.len();
    let folder = part.folder;
    let code = if part.is_test { "tests" } else { "code" };
    if number > allowed {
        let places = found.join("\n    ");
        return vec![format!(
            "{folder} ({code}) has {number} {what}, not {allowed}:\n    {places}"
        )];
    }
    if number < allowed {
        // Otherwise the list would keep room for the next one.
        return vec![format!(
            "{folder} ({code}) has {number} {what}, not {allowed}: lower its number"
        )];
    }
    Vec::new()
}

/// Those of the positions `found` that belong to `part`, as places.
fn places(source: &Source, part: &Part, mut found: Vec<usize>) -> Vec<String> {
    found.retain(|&at| source.is_test_at(at) == part.is_test);
    found.iter().map(|&at| format!("{}:{}", source.path, source.line_of(at))).collect()
}

#[test]
fn habits_that_shorten_and_obscure_only_shrink() {
    let sources = sources();
    let mut breaches = Vec::new();
    for part in &PARTS {
        let mut tuples_found = Vec::new();
        let mut closures_found = Vec::new();
        let mut questions_found = Vec::new();
        for source in sources.iter().filter(|source| source.path.starts_with(part.folder)) {
            tuples_found.extend(places(source, part, tuples(source)));
            closures_found.extend(places(source, part, closures(source)));
            questions_found.extend(places(source, part, questions(source)));
        }
        breaches.extend(compare(part, "tuple assignments", part.tuples, &tuples_found));
        breaches.extend(compare(part, "closures bound by let", part.closures, &closures_found));
        breaches.extend(compare(
            part,
            "docs that begin with a question",
            part.questions,
            &questions_found,
        ));
    }
    check(breaches);
}

#[test]
fn the_habits_are_recognised() {
    let source = Source::from_text(
        "tests/x.rs",
        "/// Where it is.\n//! Whether, or not.\n/// Whatever it is.\n// How\nfn f() {\n\
         let (a, b) = (1, (2, 3));\nlet (c, d): (u8, u8) = (f(4), 5);\nlet (e, f) = g(1, 2);\n\
         let (g, h) = (x.y)(1);\nif let (Some(a), b) = (c, d) {}\n\
         let (Some(i), j) = (c, d) else { return };\n\
         let k = |l| l;\nlet mut m: N =\n    move || 1;\nlet o = p(|q| q);\nlet r = a || b;\n}\n",
    );
    assert_eq!(tuples(&source).len(), 2);
    assert_eq!(closures(&source).len(), 2);
    assert_eq!(questions(&source).len(), 2);
}
