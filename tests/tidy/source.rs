//! The repository's files, and a reader that knows a little Rust: it blanks comments and strings,
//! and finds the parts that exist only for tests. It is no compiler.

use std::fs;
use std::path::Path;

/// A Rust file.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) raw: String,
    /// The same text, comments and the insides of strings replaced by spaces.
    pub(crate) code: String,
    /// For each line, whether it exists only for tests.
    pub(crate) is_test: Vec<bool>,
}

impl Source {
    pub(crate) fn from_text(path: &str, raw: &str) -> Source {
        let code = blank(raw);
        let mut is_test = vec![false; raw.lines().count() + 1];
        for (at, _) in code.match_indices("#[cfg(test)]") {
            is_test[lines_before(&code, at)..=lines_before(&code, item_end(&code, at))].fill(true);
        }
        Source { path: path.to_owned(), raw: raw.to_owned(), code, is_test }
    }

    pub(crate) fn line_of(&self, at: usize) -> usize {
        1 + lines_before(&self.code, at)
    }

    pub(crate) fn is_test_at(&self, at: usize) -> bool {
        self.is_test.get(self.line_of(at) - 1).copied().unwrap_or(false)
    }

    pub(crate) fn at(&self, at: usize, what: &str) -> String {
        format!("{}:{}: {what}", self.path, self.line_of(at))
    }

    /// Returns whether users get the file, as opposed to tests, benches and tools for them.
    pub(crate) fn is_production(&self) -> bool {
        (self.path.starts_with("src/") || self.path.contains("/src/"))
            && !self.path.starts_with("crates/testkit/")
            && !self.path.starts_with("benches/")
    }

    /// Positions of `word` in the code, as a whole word.
    pub(crate) fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        let is_part =
            |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        let bytes = self.code.as_bytes();
        self.code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
            let before = at.checked_sub(1).and_then(|at| bytes.get(at));
            !is_part(before) && !is_part(bytes.get(at + word.len()))
        })
    }
}

fn lines_before(text: &str, at: usize) -> usize {
    text[..at].bytes().filter(|&byte| byte == b'\n').count()
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Paths below `folder` of the repository, with `/`, that end in `ending`.
pub(crate) fn files_below(folder: &str, ending: &str, found: &mut Vec<String>) {
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

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub(crate) fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    files_below("", ".rs", &mut paths);
    paths.sort();
    let mut sources: Vec<Source> = paths.into_iter().map(parse).collect();
    let test_modules: Vec<String> = sources.iter().flat_map(test_modules).collect();
    for source in &mut sources {
        let in_tests = test_modules.iter().any(|module| {
            source.path == format!("{module}.rs") || source.path.starts_with(&format!("{module}/"))
        });
        if in_tests || !source.is_production() {
            source.is_test.fill(true);
        }
    }
    assert!(sources.len() > 20, "the repository has more than {} files", sources.len());
    sources
}

fn parse(path: String) -> Source {
    let raw = read(&path);
    Source::from_text(&path, &raw)
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

/// The end of the item at `start`: its first `;`, or the end of its first block. Those in
/// brackets belong to types.
pub(crate) fn item_end(code: &str, start: usize) -> usize {
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

/// The end of the block that opens at `start`.
pub(crate) fn block_end(code: &str, start: usize) -> usize {
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
    let follows_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match &bytes[at..] {
        [b'/', b'/', ..] => end_of_next(bytes, at + 2, b"\n"),
        [b'/', b'*', ..] => end_of_next(bytes, at + 2, b"*/"),
        [b'"', ..] => string_end(bytes, at + 1),
        [b'\'', b'\\', ..] => end_of_next(bytes, at + 3, b"'"),
        [b'\'', _, b'\'', ..] => at + 3,
        [b'b', b'r', ..] if !follows_word => raw_string_end(bytes, at, 2),
        [b'r', ..] if !follows_word => raw_string_end(bytes, at, 1),
        _ => at,
    }
}

/// The end of the first `what` from `at` on; that of `bytes` without one.
fn end_of_next(bytes: &[u8], at: usize, what: &[u8]) -> usize {
    let offset = bytes[at..].windows(what.len()).position(|window| window == what);
    offset.map_or(bytes.len(), |offset| at + offset + what.len())
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
    end_of_next(bytes, body, &close)
}

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
}
