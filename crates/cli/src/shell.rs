//! `shell`: subcommands without the name of the database, line by line.
//!
//! Each line runs this command again, with the folder of the database and the current partition added, and its output goes
//! through a pager. So the shell knows every subcommand, holds nothing open between two lines, and Ctrl-C ends a line and
//! not the shell. With the feature `shell` lines are edited, kept in a history, and completed (`shell/edited.rs`); without
//! it they are read as they come, also from a script.
//!
//! Invariant: a line that names a database itself is refused by the parser, as any argument too many is.

#[cfg(any(feature = "shell", test))]
mod candidates;
#[cfg(feature = "shell")]
mod edited;

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use crate::bucket::ReadLength;
use crate::files::hand_keys_to;
use crate::output::Failure;
use crate::progress;
use crate::source::Source;
use clap::Command;

/// Arguments of `shell`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database, or URL of its bucket
    database: PathBuf,
    /// Partition to begin with
    #[arg(long, default_value = "default")]
    partition: String,
}

/// The database and the current partition.
#[derive(Clone)]
struct Shell {
    database: PathBuf,
    partition: String,
    commands: Command,
}

/// Runs lines until the end of the input, or `exit`. Returns a failure if the last line had one.
pub(crate) fn run(args: &Args, commands: Command) -> Result<(), Failure> {
    let mut shell =
        Shell { database: args.database.clone(), partition: args.partition.clone(), commands };
    // It must be there, and a partition that is not is better reported now.
    let source = Source::open(&shell.database, ReadLength::Short)?;
    source.partition(&shell.partition)?;
    source.close()?;
    progress::ignore_interrupts()?;
    let mut last = Ok(());
    #[cfg(feature = "shell")]
    if io::stdin().is_terminal() {
        return edited::run(&mut shell);
    }
    let is_terminal = io::stdin().is_terminal();
    let mut lines = io::stdin().lock().lines();
    loop {
        if is_terminal {
            write!(io::stdout(), "{}", shell.prompt())?;
            io::stdout().flush()?;
        }
        let Some(line) = lines.next() else { return last };
        let line = line.map_err(|e| Failure::Io(format!("cannot read a line: {e}")))?;
        match shell.line(&line) {
            Ok(true) => last = Ok(()),
            Ok(false) => return last,
            Err(failure) => {
                failure.report();
                last = Err(Failure::Reported);
            }
        }
    }
}

impl Shell {
    fn prompt(&self) -> String {
        format!("{}> ", self.partition)
    }

    /// Runs one line; returns `false` for the last one.
    fn line(&mut self, line: &str) -> Result<bool, Failure> {
        let words = split(line)?;
        let Some(first) = words.first() else { return Ok(true) };
        match (first.as_str(), &words[1..]) {
            ("exit" | "quit", []) => return Ok(false),
            ("help", []) => run_child(&["help".to_owned()])?,
            ("use", [name]) => {
                let source = Source::open(&self.database, ReadLength::Short)?;
                source.partition(name)?;
                source.close()?;
                self.partition.clone_from(name);
            }
            ("use", _) => {
                return Err(Failure::Usage("use NAME: the partition of the next lines".to_owned()));
            }
            (word, _) if word.starts_with('#') => {}
            _ => run_child(&self.completed(&words))?,
        }
        Ok(true)
    }

    /// The arguments of the command for `words`: with the database in front of the other arguments, and with the partition.
    fn completed(&self, words: &[String]) -> Vec<String> {
        let mut command = &self.commands;
        let mut depth = 0;
        while let Some(next) = words.get(depth).and_then(|word| command.find_subcommand(word)) {
            command = next;
            depth += 1;
        }
        let mut completed = words[..depth].to_vec();
        let takes_database = command
            .get_positionals()
            .next()
            .is_some_and(|first| ["database", "left"].contains(&first.get_id().as_str()));
        if takes_database {
            completed.push(self.database.to_string_lossy().into_owned());
        }
        completed.extend_from_slice(&words[depth..]);
        // A stream names its partitions: `import` with one puts the entries of all of them into it.
        let takes_partition = command.get_name() != "import"
            && command.get_arguments().any(|argument| argument.get_id() == "partition");
        let is_given = words.iter().any(|word| {
            ["--partition", "--all", "--all-partitions"].contains(&word.as_str())
                || word.starts_with("--partition=")
        });
        // A verb without it means all partitions, or the default one; that is asked for by `use`.
        if takes_partition && !is_given && self.partition != "default" {
            completed.push("--partition".to_owned());
            completed.push(self.partition.clone());
        }
        completed
    }
}

/// Runs this command with `arguments`. Its own report is on standard error already.
fn run_child(arguments: &[String]) -> Result<(), Failure> {
    let program =
        std::env::current_exe().map_err(|e| Failure::io("find", Path::new("siltstone"), &e))?;
    let mut child = Process::new(&program);
    child.args(arguments).stdin(Stdio::null());
    hand_keys_to(&mut child);
    let pager = if io::stdout().is_terminal() { pager() } else { None };
    let Some((mut pager, pages)) = pager else {
        let status = child.status().map_err(|e| Failure::io("run", &program, &e))?;
        return if status.success() { Ok(()) } else { Err(Failure::Reported) };
    };
    let status = child.stdout(pages).status();
    // It keeps the other end of the pipe.
    drop(child);
    pager.wait().map_err(|e| Failure::Io(format!("cannot wait for the pager: {e}")))?;
    let status = status.map_err(|e| Failure::io("run", &program, &e))?;
    if status.success() { Ok(()) } else { Err(Failure::Reported) }
}

/// The program of `PAGER`, or `less`, which ends at once if everything fits on the screen; `None` if there is none.
fn pager() -> Option<(std::process::Child, Stdio)> {
    let named = std::env::var("PAGER").unwrap_or_default();
    let mut words = named.split_whitespace();
    let mut pager = match words.next() {
        Some(program) => Process::new(program),
        None => Process::new("less"),
    };
    if named.is_empty() {
        pager.arg("-FRX");
    }
    let mut started = pager.args(words).stdin(Stdio::piped()).spawn().ok()?;
    let pages = started.stdin.take()?.into();
    Some((started, pages))
}

/// The words of a line. Double quotes hold blanks together; a backslash takes the next character as it is.
fn split(line: &str) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '\\' => match chars.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err(Failure::Usage("the line ends with a backslash".to_owned())),
            },
            c if c.is_whitespace() && !is_quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    if is_quoted {
        return Err(Failure::Usage("a quote is not closed".to_owned()));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    pub(super) fn shell(database: &Path) -> Shell {
        let partition = "users".to_owned();
        Shell { database: database.to_owned(), partition, commands: crate::Cli::command() }
    }

    #[track_caller]
    fn check(line: &str, arguments: &[&str]) {
        let words = split(line).unwrap();
        assert_eq!(shell(Path::new("db")).completed(&words), arguments, "{line}");
    }

    #[test]
    fn a_line_gets_the_database_and_the_partition_where_they_belong() {
        check("get alice", &["get", "db", "alice", "--partition", "users"]);
        check("put \"a b\" c\\ d \"\"", &["put", "db", "a b", "c d", "", "--partition", "users"]);
        check("scan --partition other", &["scan", "db", "--partition", "other"]);
        check("partitions", &["partitions", "db"]);
        check(
            "partition set users --bloom-bits 1",
            &["partition", "set", "db", "users", "--bloom-bits", "1"],
        );
        check("gaps list", &["gaps", "list", "db", "--partition", "users"]);
        check("diff copy", &["diff", "db", "copy", "--partition", "users"]);
        check("compact --all", &["compact", "db", "--all"]);
        check(
            "export out --format stream --all-partitions",
            &["export", "db", "out", "--format", "stream", "--all-partitions"],
        );
        check("import posts.stream", &["import", "db", "posts.stream"]);
        check(
            "load rows --format csv",
            &["load", "db", "rows", "--format", "csv", "--partition", "users"],
        );
        check("dump file", &["dump", "file"]);
        check("nothing", &["nothing"]);
        for wrong in ["get \"a", "get a\\"] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }
}
