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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use siltstone::clock::{Clock, SystemClock};
use siltstone::{Error, ErrorKind};

/// The form of the lines on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for people
    Text,
    /// An object a line: `time` in seconds since 1970, `level` (`info` or `error`) and `message`
    Json,
}

/// One form for the process, set before its first line. Relaxed: nothing depends on the order.
static IS_JSON_LOG: AtomicBool = AtomicBool::new(false);

/// Sets the form of the lines on standard error.
pub(crate) fn set_log_format(format: LogFormat) {
    IS_JSON_LOG.store(format == LogFormat::Json, Ordering::Relaxed);
}

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
            log("error", format_args!("error: {text}"));
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
    log("info", text);
}

fn log(level: &str, text: impl Display) {
    // There is no place to report a failed report.
    let _ = if IS_JSON_LOG.load(Ordering::Relaxed) {
        writeln!(
            io::stderr(),
            "{}",
            entry(level, &text.to_string(), SystemClock::new().unix_time())
        )
    } else {
        writeln!(io::stderr(), "{text}")
    };
}

/// A line of the log as JSON. The words before the first colon are for people.
fn entry(level: &str, text: &str, now: Duration) -> Value {
    let message = text.strip_prefix("siltstone: ").or(text.strip_prefix("error: ")).unwrap_or(text);
    let milliseconds = now.as_millis() as f64;
    json!({ "time": milliseconds / 1e3, "level": level, "message": message })
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

    #[test]
    fn a_line_of_the_log_is_one_object_whatever_it_says() {
        let now = Duration::from_millis(1_764_445_212_125);
        let line = entry("error", "error: no \"a\"\nor b", now).to_string();
        let expected = r#"{"level":"error","message":"no \"a\"\nor b","time":1764445212.125}"#;
        assert_eq!(line, expected);
        assert_eq!(entry("info", "siltstone: a: b", now)["message"], "a: b");
        assert_eq!(entry("info", "12 entries", now)["message"], "12 entries");
    }
}
