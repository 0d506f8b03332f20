//! The output of the command, and its exit status.
//!
//! Every subcommand writes through [`Output`] and fails with a [`Failure`]. Keys and values are
//! printed escaped or in hex, so that a terminal never sees raw bytes unless `--raw` asks.
//!
//! Invariant: a reader that closes the pipe (`| head`) ends the command quietly.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;
use siltstone::{Error, ErrorKind};

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The engine refused or failed.
    Engine(Error),
    /// The key, partition, database or file is not there; or a comparison found differences.
    NotFound(String),
    /// The arguments or the input make no sense.
    Usage(String),
    /// A file operation outside the database failed.
    Io(String),
    /// Nobody reads the output any more.
    PipeClosed,
}

impl Failure {
    /// A failed operation on `path`.
    pub(crate) fn io(deed: &str, path: &Path, e: &io::Error) -> Failure {
        Failure::Io(format!("cannot {deed} {}: {e}", path.display()))
    }

    /// Says it on standard error. Nothing can be done if that is gone, too.
    pub(crate) fn tell(&self) {
        let told: &dyn Display = match self {
            Failure::Engine(e) => e,
            Failure::NotFound(text) | Failure::Usage(text) | Failure::Io(text) => text,
            Failure::PipeClosed => return,
        };
        note(format_args!("error: {told}"));
    }

    /// See the invariants of `main.rs`.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Failure::PipeClosed => ExitCode::SUCCESS,
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Engine(e)
                if matches!(e.kind(), ErrorKind::InvalidArgument | ErrorKind::LimitExceeded) =>
            {
                ExitCode::from(2)
            }
            Failure::Engine(_) | Failure::NotFound(_) | Failure::Io(_) => ExitCode::from(1),
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
            io::ErrorKind::BrokenPipe => Failure::PipeClosed,
            _ => Failure::Io(format!("cannot write to standard output: {e}")),
        }
    }
}

/// One line on standard error.
pub(crate) fn note(text: impl Display) {
    // Where should a failure to complain be told?
    let _ = writeln!(io::stderr(), "{text}");
}

/// The form of printed bytes and of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// Printable ASCII as it is, the rest as `\xNN`; arguments are taken as they are.
    Escaped,
    /// Two digits a byte, both ways.
    Hex,
}

impl Bytes {
    /// By the flag `--hex`.
    pub(crate) fn new(hex: bool) -> Bytes {
        if hex { Bytes::Hex } else { Bytes::Escaped }
    }

    /// `bytes` as text.
    pub(crate) fn text(self, bytes: &[u8]) -> String {
        match self {
            Bytes::Escaped => bytes.escape_ascii().to_string(),
            Bytes::Hex => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    /// The bytes that an argument stands for.
    pub(crate) fn argument(self, text: &OsStr) -> Result<Vec<u8>, Failure> {
        match self {
            Bytes::Escaped => Ok(text.as_encoded_bytes().to_vec()),
            Bytes::Hex => from_hex(text.as_encoded_bytes()).ok_or_else(|| {
                Failure::Usage(format!("{text:?} is not a row of pairs of hex digits"))
            }),
        }
    }
}

/// The bytes of a row of pairs of hex digits.
pub(crate) fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    text.chunks(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
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
    fn hex_reads_back_and_half_a_byte_is_refused() {
        let bytes = [0, 0x7f, 0xff, b'a'];
        let text = Bytes::Hex.text(&bytes);
        assert_eq!(text, "007fff61");
        assert_eq!(Bytes::Hex.argument(OsStr::new(&text)).ok(), Some(bytes.to_vec()));
        for wrong in ["0", "0g", "+1", "00f"] {
            assert!(matches!(Bytes::Hex.argument(OsStr::new(wrong)), Err(Failure::Usage(_))));
        }
        assert_eq!(Bytes::Escaped.text(b"a\t\xff"), "a\\t\\xff");
    }

    #[test]
    fn limits_are_usage_and_damage_is_not() {
        let code = |e: Error| format!("{:?}", Failure::from(e).exit_code());
        assert_eq!(code(Error::limit("key length", 9, 8)), format!("{:?}", ExitCode::from(2)));
        assert_eq!(code(Error::corruption("a", 1, "bad")), format!("{:?}", ExitCode::from(1)));
    }
}
