//! The pages: the files and items that they name exist, and their numbers are right.

use std::collections::BTreeSet;

use crate::source::{files_below, read, sources};
use crate::{BINDING_FILES, UNSAFE_FILES, check};

/// Endings of names that a page may only give to files of the repository.
const ENDINGS: [&str; 7] = [".rs", ".md", ".sh", ".svg", ".toml", ".json", ".lock"];
/// Names that stand for files of a user or for any file of a sort.
const EXAMPLES: [&str; 3] = ["NNNN-title.md", "design/NNNN-title.md", "levels.svg"];
/// The list of the design notes.
const DESIGN_INDEX: &str = "docs/design/README.md";

fn pages() -> Vec<String> {
    let mut pages = Vec::new();
    files_below("", ".md", &mut pages);
    pages.sort();
    pages
}

/// Every file name on `line`, with as much of its folder as the line gives.
fn file_names(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && !"_-./".contains(c));
    let words = words.map(|word| word.trim_end_matches('.'));
    words.filter(|word| {
        let name = word.rsplit('/').next().unwrap_or(word);
        ENDINGS.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending))
    })
}

/// Returns whether one of `files` has this name, or ends with this path.
fn is_there(files: &[String], name: &str) -> bool {
    let name = name.trim_start_matches("../").trim_start_matches("./");
    let below = format!("/{name}");
    files.iter().any(|file| file == name || file.ends_with(&below))
}

#[test]
fn the_pages_name_files_that_exist() {
    let mut files = Vec::new();
    files_below("", "", &mut files);
    let mut breaches = Vec::new();
    for page in pages() {
        for (number, line) in read(&page).lines().enumerate() {
            for name in file_names(line) {
                if !EXAMPLES.contains(&name) && !line.contains("://") && !is_there(&files, name) {
                    breaches.push(format!("{page}:{}: there is no `{name}`", number + 1));
                }
            }
        }
    }
    check(breaches);
}

/// Every path of Rust in backquotes on `line`: a type with its method, option or variant.
fn item_names(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let words = quoted
        .flat_map(|code| code.split(|c: char| !c.is_ascii_alphanumeric() && !"_:".contains(c)));
    words.map(|word| word.trim_end_matches(':')).filter(|word| word.contains("::"))
}

/// All names in the code of the repository, and those of its files.
fn words_of_the_code() -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for source in sources() {
        let split = source.code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.extend(split.map(str::to_owned));
        let file = source.path.rsplit('/').next().unwrap_or_default();
        words.insert(file.trim_end_matches(".rs").to_owned());
    }
    words
}

#[test]
fn the_pages_name_items_that_exist() {
    let words = words_of_the_code();
    let mut breaches = Vec::new();
    // The changelog names items that were removed.
    for page in pages().into_iter().filter(|page| page != "CHANGELOG.md") {
        for (number, line) in read(&page).lines().enumerate() {
            for name in item_names(line) {
                if name.split("::").any(|part| !words.contains(part)) {
                    breaches.push(format!("{page}:{}: no code has `{name}`", number + 1));
                }
            }
        }
    }
    check(breaches);
}

/// The name under which a heading can be linked to.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn has_anchor(page: &str, name: &str) -> bool {
    let mut headings = page.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| anchor(line.trim_start_matches('#')) == name)
}

/// The file to which a link on `page` to `path` leads.
fn resolved(page: &str, path: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn links_lead_somewhere() {
    let mut files = Vec::new();
    files_below("", "", &mut files);
    let mut breaches = Vec::new();
    for page in pages() {
        for (number, line) in read(&page).lines().enumerate() {
            for rest in line.split("](").skip(1) {
                let link = rest.split(')').next().unwrap_or_default();
                let found = link.split_once('#');
                let path = match found.map_or(link, |(path, _)| path) {
                    "" => page.clone(),
                    path => resolved(&page, path),
                };
                let is_there =
                    files.contains(&path) || files.iter().any(|file| in_folder(file, &path));
                let goes = link.contains("://")
                    || is_there && found.is_none_or(|(_, name)| has_anchor(&read(&path), name));
                if !goes {
                    breaches.push(format!("{page}:{}: {link} leads nowhere", number + 1));
                }
            }
        }
    }
    check(breaches);
}

/// Returns whether `file` is below `folder`.
fn in_folder(file: &str, folder: &str) -> bool {
    let below = file.strip_prefix(folder.trim_end_matches('/'));
    below.is_some_and(|rest| rest.starts_with('/'))
}

/// The part of `page` below the heading `heading`, up to the next heading.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let below = page.split_once(&format!("\n{heading}\n")).map_or("", |(_, below)| below);
    below.split("\n#").next().unwrap_or_default()
}

#[test]
fn the_architecture_names_the_files_with_unsafe_code() {
    let page = read("ARCHITECTURE.md");
    let named: BTreeSet<&str> = section(&page, "### Unsafe code")
        .lines()
        .flat_map(file_names)
        .filter(|name| name.ends_with(".rs"))
        .collect();
    let may: BTreeSet<&str> = UNSAFE_FILES.into_iter().chain(BINDING_FILES).collect();
    assert_eq!(named, may, "ARCHITECTURE.md, UNSAFE_FILES and BINDING_FILES");
}

#[test]
fn design_notes_are_numbered_and_dated() {
    let mut notes = Vec::new();
    files_below("docs/design", ".md", &mut notes);
    notes.retain(|path| path != DESIGN_INDEX);
    notes.sort();
    let index = read(DESIGN_INDEX);
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
        if !index.contains(&format!("]({name})")) {
            breaches.push(format!("{path}:1: {DESIGN_INDEX} does not list it"));
        }
        if !read(path).lines().take(6).any(has_date) {
            breaches.push(format!("{path}:1: no date (YYYY-MM-DD) in the first 6 lines"));
        }
    }
    check(breaches);
}

/// Messages whose text is not in the code as a whole, and the reason.
const COMPOSED_MESSAGES: [(&str, &str); 3] = [
    ("No space left on device", "it is a text of the operating system"),
    ("writes are slowed down: too many", "a part of it depends on the pressure"),
    ("writes are stopped: too many", "a part of it depends on the pressure"),
];

/// The code of the product in one text, with each string on one line.
fn code_with_joined_strings() -> String {
    let mut joined = String::new();
    for source in sources().iter().filter(|source| source.is_production()) {
        for line in source.raw.lines() {
            match line.strip_suffix('\\') {
                Some(begin) => joined.push_str(begin.trim_start()),
                None => {
                    joined.push_str(line.trim_start());
                    joined.push('\n');
                }
            }
        }
    }
    joined
}

/// The fixed parts of a message in which dots (`\u{2026}`), `FILE`, `N` and `M` stand for values.
fn fixed_parts(message: &str) -> Vec<&str> {
    let parts = message
        .split('\u{2026}')
        .flat_map(|part| part.split(" FILE"))
        .flat_map(|part| part.split(" N"));
    let parts = parts.flat_map(|part| part.split(" M"));
    parts
        .map(|part| part.trim_matches([' ', ',', '(', ')']))
        .filter(|part| !part.is_empty())
        .collect()
}

#[test]
fn the_messages_that_a_page_explains_are_in_the_code() {
    let code = code_with_joined_strings();
    let page = read("docs/operations.md");
    let rows: Vec<&str> =
        section(&page, "## Messages").lines().filter(|line| line.starts_with("| \"")).collect();
    assert!(rows.len() > 30, "{} rows", rows.len());
    let mut breaches = Vec::new();
    for row in rows {
        let cell = row.split('|').nth(1).unwrap_or_default();
        for part in cell.split('"').skip(1).step_by(2).flat_map(fixed_parts) {
            let is_composed = COMPOSED_MESSAGES.iter().any(|(text, _)| *text == part);
            if !is_composed && !code.contains(part) {
                breaches.push(format!("docs/operations.md:1: no message has \"{part}\""));
            }
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

#[test]
fn the_index_of_formats_has_its_columns_in_order() {
    let mut breaches = Vec::new();
    let index = read("docs/FORMATS.md");
    let files = index.split("## Parts of files").next().unwrap_or_default();
    let rows = files.lines().enumerate().filter(|(_, line)| line.starts_with("| ")).skip(2);
    for (number, row) in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [_, _, _, version, bytes, golden, since] = cells[..] else {
            breaches.push(format!("docs/FORMATS.md:{}: not seven columns", number + 1));
            continue;
        };
        if version != "-" && version.parse::<u32>().is_err() {
            breaches.push(format!("docs/FORMATS.md:{}: version {version:?}", number + 1));
        }
        let paths =
            [bytes, golden].map(|cell| cell == "-" || cell.trim_matches('`').ends_with(".rs"));
        if paths != [true; 2] || !since.starts_with(|c: char| c.is_ascii_digit()) {
            breaches.push(format!("docs/FORMATS.md:{}: columns out of order", number + 1));
        }
    }
    check(breaches);
}

#[test]
fn the_pages_are_read_as_written() {
    let line = "see `db/open.rs`, docs/MEDIA.md. Not v1.rs/x, a.txt or 2.5";
    assert_eq!(file_names(line).collect::<Vec<_>>(), ["db/open.rs", "docs/MEDIA.md"]);
    let line = "`Db::open(path)` or `Level::Strong`, not ::x, a::b or `wal::`";
    assert_eq!(item_names(line).collect::<Vec<_>>(), ["Db::open", "Level::Strong"]);
    assert_eq!(anchor(" When to use it, and when not"), "when-to-use-it-and-when-not");
    assert!(has_anchor("# A\n## The way\n", "the-way") && !has_anchor("The way", "the-way"));
    assert_eq!(resolved("docs/design/1.md", "../a.md"), "docs/a.md");
    assert_eq!(resolved("README.md", "docs/a.md"), "docs/a.md");
    assert_eq!(section("# A\n## B\nb\n### C\nc\n", "## B"), "b");
    assert!(in_folder("docs/design/a.md", "docs/design/") && !in_folder("docsx", "docs"));
    assert!(has_date("Date: 2026-01-31") && !has_date("2026-1-31 or so"));
}
