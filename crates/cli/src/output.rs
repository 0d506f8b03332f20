//! The output of the command, and its exit status.
//!
//! Every subcommand writes through [`Output`] and fails with a [`Failure`]. Keys and values become
//! text in `bytes.rs`.
//!
//! Invariant: a reader that closes the pipe (`| head`) ends the command quietly.

use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;
use siltstone::{Error, ErrorKind};

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The engine refused or failed.
    Engine(Error),
    /// The key, partition, database or file does not exist; or a comparison found differences.
    NotFound(String),
    /// The arguments or the input make no sense.
    Usage(String),
    /// A file operation outside the database failed.
    Io(String),
    /// The reader of the output has closed it.
    PipeClosed,
    /// Another process of this command has reported it.
    Reported,
}

impl Failure {
    /// A failed operation on `path`.
    pub(crate) fn io(deed: &str, path: &Path, e: &io::Error) -> Failure {
        Failure::Io(format!("cannot {deed} {}: {e}", path.display()))
    }

    /// Prints it on standard error. A failure of that is ignored.
    pub(crate) fn report(&self) {
        if let Some(text) = self.text() {
            note(format_args!("error: {text}"));
        }
    }

    /// Its text; `None` if there is nothing to report.
    pub(crate) fn text(&self) -> Option<&dyn Display> {
        match self {
            Failure::Engine(e) => Some(e),
            Failure::NotFound(text) | Failure::Usage(text) | Failure::Io(text) => Some(text),
            Failure::PipeClosed | Failure::Reported => None,
        }
    }

    /// See the invariants of `main.rs`.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            // `siltstone scan | head` did all that was asked of it.
            Failure::PipeClosed => ExitCode::SUCCESS,
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Engine(e)
                if matches!(e.kind(), ErrorKind::InvalidArgument | ErrorKind::LimitExceeded) =>
            {
                ExitCode::from(2)
            }
            Failure::Engine(_) | Failure::NotFound(_) | Failure::Io(_) | Failure::Reported => {
                ExitCode::from(1)
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Engine(e)
    }
}

impl From<io::Error> for Failure {
    /// For standard output only; other files name their path with [`Failure::io`].
    fn from(e: io::Error) -> Failure {
        match e.kind() {
            // Rust ignores the signal of a closed pipe, so it comes as an error of the next write.
            io::ErrorKind::BrokenPipe => Failure::PipeClosed,
            _ => Failure::Io(format!("cannot write to standard output: {e}")),
        }
    }
}

/// One line on standard error.
pub(crate) fn note(text: impl Display) {
    // There is no place to report a failed report.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Standard output, as text or as JSON.
#[derive(Debug)]
pub(crate) struct Output {
    out: BufWriter<StdoutLock<'static>>,
    is_json: bool,
}

impl Output {
    /// Standard output; `json` by the flag.
    pub(crate) fn new(json: bool) -> Output {
        Output { out: BufWriter::new(io::stdout().lock()), is_json: json }
    }

    /// Prints one result: `text`, or `json` on one line.
    pub(crate) fn line(&mut self, text: impl Display, json: &Value) -> Result<(), Failure> {
        if self.is_json {
            // One line for each object, so that a reader needs no end of a list to begin.
            writeln!(self.out, "{json}")?;
        } else {
            writeln!(self.out, "{text}")?;
        }
        Ok(())
    }

    /// Prints bytes and nothing else.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
    }

    /// Everything printed so far leaves this process.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    /// Must be called last: a dropped buffer hides its errors.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_usage_and_damage_is_not() {
        let limit = Failure::from(Error::limit("key length", 9, 8));
        let damage = Failure::from(Error::corruption("a", 1, "bad"));
        assert_eq!(format!("{:?}", limit.exit_code()), format!("{:?}", ExitCode::from(2)));
        assert_eq!(format!("{:?}", damage.exit_code()), format!("{:?}", ExitCode::from(1)));
    }
}
