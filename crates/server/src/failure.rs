//! [`Failure`]: the reasons why a command has no ordinary reply, and their texts.

use std::borrow::Cow;

use siltstone::{Error, ErrorKind};

use crate::reply::Reply;

/// The reason why a command has no ordinary reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The engine refused or failed.
    Engine(Error),
    /// The command is refused with this text, which begins with the kind of the error.
    Refused(Cow<'static, str>),
    /// Nothing was done: the command may wait, and is to run on a thread that may.
    MayWait,
    /// As `MayWait`. With the newest commit of the primary, the command may be run again on this thread: a strong read of a reader
    /// of a bucket.
    NeedsNewest,
    /// Another process has taken the database over.
    Fenced,
}

/// The right of a command to wait for a disk, a stall or another process, by the thread that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    MustNotWait,
    MayWait,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error.kind() {
            ErrorKind::Fenced => Failure::Fenced,
            _ => Failure::Engine(error),
        }
    }
}

impl Failure {
    /// Returns `true` for a refusal by what the data are, or by the command itself.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Failure::Refused(_))
    }

    pub(crate) fn error(text: impl Into<String>) -> Failure {
        Failure::Refused(Cow::Owned(format!("ERR {}", text.into())))
    }

    pub(crate) const fn fixed(text: &'static str) -> Failure {
        Failure::Refused(Cow::Borrowed(text))
    }

    pub(crate) const SYNTAX: Failure = Failure::fixed("ERR syntax error");
    /// Writes were committed, and the next primary may be without them.
    pub(crate) const TAKEN_OVER: Failure = Failure::fixed(
        "UNKNOWN this server was taken over by another primary, and it is unknown whether that has the last writes",
    );
    pub(crate) const NOT_AN_INTEGER: Failure =
        Failure::fixed("ERR value is not an integer or out of range");

    /// The reply.
    pub(crate) fn reply(&self) -> Reply {
        match self {
            Failure::Refused(text) => Reply::Error(text.clone()),
            Failure::Engine(error) => {
                Reply::Error(format!("{} {error}", word(error.kind())).into())
            }
            Failure::MayWait | Failure::NeedsNewest => {
                Reply::Error("ERR the command could not be run".into())
            }
            Failure::Fenced => {
                let text = "READONLY this server was taken over by another primary";
                Reply::Error(text.into())
            }
        }
    }
}

/// The first word of the reply, to branch on.
fn word(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Behind => "NOTYET",
        ErrorKind::SessionLost => "SESSIONLOST",
        ErrorKind::Unsupported | ErrorKind::NotLogged => "UNSUPPORTED",
        ErrorKind::LimitExceeded | ErrorKind::ReservedKey | ErrorKind::InvalidArgument => "LIMIT",
        ErrorKind::Corruption => "CORRUPTION",
        ErrorKind::NoSpace => "NOSPACE",
        ErrorKind::ReadOnly | ErrorKind::Fenced => "READONLY",
        ErrorKind::Closed => "CLOSED",
        _ => "ERR",
    }
}
