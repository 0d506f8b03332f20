//! Words that stop a reader from another country, counted in comments, docs and strings.
//!
//! Each has a plain word of its own, which `instead` names. The counts are of the whole repository
//! and only shrink: whoever rewrites a sentence lowers the number. Identifiers are not counted. The
//! pages have none of these words.

use crate::check;
use crate::source::{Source, files_below, read, sources};

struct Word {
    /// In lower case; several words are a phrase.
    text: &'static str,
    instead: &'static str,
    /// The most occurrences that the repository may have.
    at_most: usize,
}

const fn word(text: &'static str, instead: &'static str, at_most: usize) -> Word {
    Word { text, instead, at_most }
}

const WORDS: [Word; 10] = [
    word("behind", "`after`, unless one falls behind another", 25),
    word("told", "`returned`, `reported`, `notified`", 1),
    word("nobody", "`no one`, or the caller by its name", 5),
    word("anew", "`again`, `from the beginning`", 0),
    word("beside", "`in addition to`, `next to`, `while another process writes`", 15),
    word("of which", "`whose`, or a second sentence", 12),
    word("owed", "`due`, `pending`", 0),
    word("goes by", "`uses`, `follows`", 0),
    word("let go", "`released`, `dropped`", 1),
    word("see the module", "what the type is", 1),
];

/// The text of comments and strings, in lower case, with single spaces: a phrase may wrap.
fn prose(source: &Source) -> String {
    let mut prose = String::new();
    for (raw, code) in source.raw.lines().zip(source.code.lines()) {
        let text: Vec<u8> = raw
            .bytes()
            .zip(code.bytes())
            .map(|(raw, code)| if code == b' ' { raw.to_ascii_lowercase() } else { b' ' })
            .collect();
        let text = String::from_utf8_lossy(&text);
        let text = text.trim_start().trim_start_matches(['/', '!']);
        for part in text.split_whitespace().filter(|part| *part != "\\") {
            prose.push_str(part);
            prose.push(' ');
        }
    }
    prose
}

fn is_part(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn count(prose: &str, word: &str) -> usize {
    let bytes = prose.as_bytes();
    let starts = prose.match_indices(word).map(|(at, _)| at);
    let whole = starts.filter(|&at| {
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        !is_part(before) && !is_part(bytes.get(at + word.len()))
    });
    whole.count()
}

#[test]
fn words_that_stop_a_reader_only_shrink() {
    let mut sources = sources();
    // This file names the words.
    sources.retain(|source| source.path != "tests/tidy/words.rs");
    let prose: Vec<String> = sources.iter().map(prose).collect();
    let mut breaches = Vec::new();
    for Word { text, instead, at_most } in WORDS {
        let found: usize = prose.iter().map(|prose| count(prose, text)).sum();
        if found > at_most {
            breaches.push(format!(
                "`{text}` occurs {found} times in comments and strings, at most {at_most} may: \
                 write {instead}"
            ));
        }
    }
    check(breaches);
}

#[test]
fn the_pages_use_plain_words() {
    let mut pages = Vec::new();
    files_below("", ".md", &mut pages);
    // The change log and the design notes are records; STYLE.md names the words.
    pages.retain(|page| page != "CHANGELOG.md" && page != "STYLE.md");
    pages.retain(|page| !page.starts_with("docs/design/"));
    assert!(pages.len() > 20, "{pages:?}");
    let mut breaches = Vec::new();
    for page in pages {
        let lines = read(&page).to_lowercase();
        let text: Vec<&str> = lines.split_whitespace().collect();
        let text = text.join(" ");
        // A writer may fall behind, and a secondary is some operations behind.
        for word in WORDS.iter().filter(|word| word.text != "behind") {
            if count(&text, word.text) > 0 {
                let Word { text, instead, .. } = word;
                breaches.push(format!("{page}:1: has `{text}`: write {instead}"));
            }
        }
    }
    check(breaches);
}

#[test]
fn a_word_counts_in_comments_and_strings_alone() {
    let source = Source::from_text(
        "tests/x.rs",
        "/// Told, and is told\n/// of\n/// which. Untold.\nfn told() { f(\"behind \\\n  told\"); }\n",
    );
    let prose = prose(&source);
    assert_eq!(count(&prose, "told"), 3);
    assert_eq!(count(&prose, "of which"), 1);
    assert_eq!(count(&prose, "behind"), 1);
}
