//! Lines that are edited: history in `~/.siltstone_history`, and completion by the Tab key.

use std::borrow::Cow;
use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Editor, Helper};

use super::Shell;
use crate::output::Failure;

impl Completer for Shell {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.candidates(&line[..position]))
    }
}

impl Hinter for Shell {
    type Hint = String;
}

impl Highlighter for Shell {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        Cow::Borrowed(line)
    }
}

impl Validator for Shell {}

impl Helper for Shell {}

/// Runs lines until Ctrl-D or `exit`.
pub(super) fn run(shell: &mut Shell) -> Result<(), Failure> {
    let mut editor = Editor::<Shell, _>::new().map_err(|error| failed(&error))?;
    let history =
        std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".siltstone_history"));
    if let Some(history) = &history {
        // The first run has none.
        let _ = editor.load_history(history);
    }
    loop {
        // With the current partition, whose keys are completed.
        editor.set_helper(Some(shell.clone()));
        let line = match editor.readline(&shell.prompt()) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(failed(&error)),
        };
        editor.add_history_entry(&line).map_err(|error| failed(&error))?;
        match shell.line(&line) {
            Ok(true) => {}
            Ok(false) => break,
            Err(failure) => failure.report(),
        }
    }
    if let Some(history) = &history {
        editor.save_history(history).map_err(|error| failed(&error))?;
    }
    Ok(())
}

fn failed(error: &ReadlineError) -> Failure {
    Failure::Io(format!("cannot read a line: {error}"))
}
