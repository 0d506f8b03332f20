//! The words that may stand at the end of a line of the shell: subcommands, options, partitions and keys.

use siltstone::Readable;

use super::Shell;
use crate::bucket::ReadLength;
use crate::output::Failure;
use crate::source::Source;

/// Keys that a completion offers, at most.
const CANDIDATES_MAX: usize = 50;
/// The words that only the shell knows.
const OWN_WORDS: [&str; 4] = ["use", "help", "exit", "quit"];

impl Shell {
    /// Returns the place where the last word of `line` begins, and the words that it may become.
    pub(super) fn candidates(&self, line: &str) -> (usize, Vec<String>) {
        let (start, word) = last_word(line);
        let word = word.as_str();
        let before: Vec<&str> = line[..start].split_whitespace().collect();
        let mut command = &self.commands;
        for word in &before {
            command = command.find_subcommand(word).unwrap_or(command);
        }
        let mut found: Vec<String> = match before.last() {
            None | Some(&("partition" | "gaps" | "remote")) => {
                let visible = command.get_subcommands().filter(|verb| !verb.is_hide_set());
                let mut names: Vec<String> =
                    visible.map(|verb| verb.get_name().to_owned()).collect();
                if before.is_empty() {
                    names.extend(OWN_WORDS.map(str::to_owned));
                }
                names
            }
            Some(&("use" | "--partition" | "show" | "set" | "drop" | "clear")) => {
                self.stored(|source| Ok(source.partition_names()))
            }
            Some(_) if word.starts_with("--") => command
                .get_arguments()
                .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
                .collect(),
            Some(_) => self.stored(|source| {
                let partition = source.partition(&self.partition)?;
                let keys = partition.prefix(word).keys().take(CANDIDATES_MAX);
                let keys = keys.collect::<siltstone::Result<Vec<_>>>()?;
                // A line is text. Keys of other bytes are typed as hex.
                Ok(keys.iter().filter_map(|key| printable(key)).collect())
            }),
        };
        found.retain(|candidate| candidate.starts_with(word));
        (start, found.iter().map(|candidate| escaped(candidate)).collect())
    }

    /// Names in the database. A failure is no reason to end the line: the line reports it.
    fn stored(&self, names: impl Fn(&Source) -> Result<Vec<String>, Failure>) -> Vec<String> {
        let opened = Source::open(&self.database, ReadLength::Short);
        let found = opened.and_then(|source| {
            let found = names(&source);
            source.close()?;
            found
        });
        found.unwrap_or_default()
    }
}

/// The place where the last word of a line begins, and the word, read as `split` reads it.
fn last_word(line: &str) -> (usize, String) {
    let mut start = 0;
    let mut word = String::new();
    let mut is_quoted = false;
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => is_quoted = !is_quoted,
            '\\' => word.extend(chars.next().map(|(_, next)| next)),
            c if c.is_whitespace() && !is_quoted => {
                start = at + c.len_utf8();
                word.clear();
            }
            c => word.push(c),
        }
    }
    (start, word)
}

/// A key as text, if it has nothing but printable characters.
fn printable(key: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(key).ok()?;
    (!text.contains(char::is_control)).then(|| text.to_owned())
}

/// A word as `split` reads it back.
fn escaped(word: &str) -> String {
    let mut escaped = String::new();
    for c in word.chars() {
        if c.is_whitespace() || ['"', '\\'].contains(&c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::tests::shell;

    #[test]
    fn verbs_partitions_options_and_keys_complete_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let db = siltstone::Db::open(folder.path()).unwrap();
        let users = db.partition("users").unwrap();
        for key in ["alice", "alina", "bob", "c \"d\" e", "c\u{1}"] {
            users.put(key, "1").unwrap();
        }
        db.close().unwrap();
        let shell = shell(folder.path());
        for (line, start, expected) in [
            ("pa", 0, &["partitions", "partition"][..]),
            ("use u", 4, &["users"]),
            ("get ali", 4, &["alice", "alina"]),
            ("partition cl", 10, &["clear"]),
            ("scan --pre", 5, &["--prefix"]),
            ("get c", 4, &["c\\ \\\"d\\\"\\ e"]),
            ("get c\\ \\\"", 4, &["c\\ \\\"d\\\"\\ e"]),
            ("get \"c ", 4, &["c\\ \\\"d\\\"\\ e"]),
            ("get x", 4, &[]),
        ] {
            let (at, found) = shell.candidates(line);
            assert_eq!(
                (at, found.iter().map(String::as_str).collect()),
                (start, expected.to_vec()),
                "{line}"
            );
        }
    }
}
