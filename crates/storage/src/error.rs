//! The one error type of the engine: a kind to branch on, a place to look, a source.
//!
//! Every layer returns it; context is added once, where it is known. An [`Error`] is cheap to
//! clone, because one failed append is the answer to every writer of its group.
//!
//! Invariants:
//! 1. Bytes that a disk, a caller or another process can produce end here, never in a panic.
//! 2. [`ErrorKind::Corruption`] always carries a [`Damage`] that names a file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::machine;

/// The result of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure, in the words that a caller branches on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file operation failed. The store is still usable, unless later calls return
    /// [`ErrorKind::ReadOnly`].
    Io,
    /// The device is full. Reads continue; writes succeed again when there is space.
    NoSpace,
    /// Stored bytes differ from the written bytes. [`Error::damage`] returns the place.
    Corruption,
    /// Another process (or another handle) has the database open for writing.
    Locked,
    /// A key, value, batch or count exceeds a limit; nothing was written.
    LimitExceeded,
    /// An argument or a combination of options is invalid; nothing was done.
    InvalidArgument,
    /// The key has an ending that the partition reserves; nothing was written.
    ReservedKey,
    /// The call would have to wait for compactions; nothing was written. Only `try_` calls return
    /// this kind.
    WouldStall,
    /// Another writer changed data that the batch or transaction depends on; nothing was written.
    /// Repeat the work, including its reads.
    Conflict,
    /// Another transaction has the lock of a key, and did not end within the time limit of the request;
    /// nothing was done. The message names the key. The transaction may go on, or end and be repeated.
    LockTimeout,
    /// The transaction waits for the lock of a key whose owner waits for the transaction, directly or through
    /// others; nothing was done. The message names the key. Drop the transaction, which frees its locks, and repeat
    /// the work.
    Deadlock,
    /// The partition does not exist, or was dropped.
    PartitionNotFound,
    /// The store refuses writes: it was opened read-only, or a sync of its log failed. The source
    /// names the failed sync. After a failed sync the store writes its memtables to new files and
    /// then accepts writes again.
    ReadOnly,
    /// The database was closed.
    Closed,
    /// A compaction filter or a value store panicked; the message names partition, hook and call.
    /// The job or call failed as a whole. Later jobs and calls use the hook again.
    HookPanicked,
    /// Code of the engine panicked in background work, or code that the engine calls and that is no hook,
    /// such as a file system or a clock; the message names the work. This is a bug of that code. The work has
    /// no effect and is tried again. After a panic in the middle of a change of the manifest the database
    /// changes no files until it is opened again.
    Internal,
    /// The files need a newer version of the code, or a feature that this version does not know.
    Unsupported,
    /// The primary deleted a file that a secondary reads, because no lease held the file. The
    /// secondary continues from a newer state; existing iterators and snapshots end.
    FileGone,
    /// The manifest that a secondary reads is older than the state that the log requires, or older
    /// than a state that the secondary has read, or the files changed all the time while they were read. They
    /// are read again first; this error means that this did not help yet.
    NeedsManifest,
    /// The token names a commit that this database will never have: the commit was lost in a crash,
    /// or belongs to another history.
    SessionLost,
    /// A secondary lost its lease, and with it files that it read. The secondary takes a new lease;
    /// existing views and iterators end.
    LeaseLost,
    /// The log does not reach back to the token of a feed of changes any more. The message names the number after
    /// which it begins. Read a snapshot, and begin again with its sequence number.
    TooOld,
    /// The partition has no log: a secondary sees it only as of its last flush.
    NotLogged,
    /// A secondary could not catch up to the requested position within its time limit.
    Behind,
    /// Another process has taken the database over, for example by a promotion of a secondary. Nothing was
    /// written (a file system that ships the log elsewhere may have stored a commit that was in progress), and no write of this handle will ever succeed again. Commits that were acknowledged
    /// before are in the database of the new primary. Reads of this handle may go on; a file that the
    /// new primary has deleted is [`ErrorKind::FileGone`].
    Fenced,
}

/// The place of damaged bytes, as precisely as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Damage {
    /// Name of the partition, where the file belongs to one.
    pub partition: Option<String>,
    /// Path of the damaged file.
    pub file: PathBuf,
    /// Byte offset of the damaged region in the file.
    pub offset: Option<u64>,
    /// The affected user key, if it is known.
    pub key: Option<Vec<u8>>,
    /// First and last user key of the range that may be affected, if the key is not known.
    pub keys: Option<(Vec<u8>, Vec<u8>)>,
    /// Level of the damaged table, if it is known.
    pub level: Option<usize>,
    /// The defect, in one phrase.
    pub what: String,
}

impl Damage {
    /// Returns the damage of `file` that `error` describes: the damage of the error if it is
    /// corruption, otherwise the reason why the file cannot be read, or another file that the error names.
    pub fn of(error: &Error, file: &Path) -> Damage {
        match error.damage() {
            Some(damage) => damage.clone(),
            None => Damage::new(error.path().unwrap_or(file), None, error.to_string()),
        }
    }

    /// Damage in `file` at `offset`; the other places are unknown.
    pub fn new(
        file: impl Into<PathBuf>,
        offset: impl Into<Option<u64>>,
        what: impl Into<String>,
    ) -> Damage {
        Damage {
            partition: None,
            file: file.into(),
            offset: offset.into(),
            key: None,
            keys: None,
            level: None,
            what: what.into(),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.what, self.file.display())?;
        if let Some(offset) = self.offset {
            write!(f, " at offset {offset}")?;
        }
        if let Some(partition) = &self.partition {
            write!(f, ", partition {partition:?}")?;
        }
        if let Some(level) = self.level {
            write!(f, ", level {level}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ", key \"{}\"", key.escape_ascii())?;
        }
        if let Some((first, last)) = &self.keys {
            write!(f, ", keys \"{}\" to \"{}\"", first.escape_ascii(), last.escape_ascii())?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Facts {
    kind: ErrorKind,
    message: String,
    damage: Option<Damage>,
    source: Option<ErrorCause>,
}

#[derive(Clone, Debug)]
enum ErrorCause {
    /// `path` is not known for an error that was converted.
    Io {
        error: Arc<io::Error>,
        path: Option<PathBuf>,
        is_sync: bool,
    },
    Own(Error),
}

/// An error of the engine. [`ErrorKind`] describes the possible reactions.
///
/// The text of an error contains its cause. So [`source`](std::error::Error::source) returns nothing:
/// otherwise a program that prints a chain of causes, as `anyhow` does for `{:#}`, would print the
/// cause twice. [`Error::io_source`] returns the error of the operating system.
#[derive(Clone)]
pub struct Error(Arc<Facts>);

impl Error {
    fn build(
        kind: ErrorKind,
        message: String,
        damage: Option<Damage>,
        source: Option<ErrorCause>,
    ) -> Self {
        Error(Arc::new(Facts { kind, message, damage, source }))
    }

    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::build(kind, message.into(), None, None)
    }

    /// A failed file operation: `operation` is a verb ("append to", "sync"), `path` its object.
    pub fn io(operation: &str, path: &Path, source: io::Error) -> Self {
        let message = format!("cannot {operation} {}: {source}", path.display());
        // By the operation: the system reports a failed sync as any other error, and it means that earlier
        // writes may be lost. Without a handle the folder was not opened, so no sync was begun.
        let is_sync = operation.starts_with("sync") && !machine::is_out_of_handles(&source);
        let kind = kind_of_io(&source);
        let source = ErrorCause::Io { error: source.into(), path: Some(path.to_owned()), is_sync };
        Self::build(kind, message, None, Some(source))
    }

    /// Damaged bytes in `file`.
    pub fn corruption(
        file: impl Into<PathBuf>,
        offset: impl Into<Option<u64>>,
        what: impl Into<String>,
    ) -> Self {
        let damage = Damage::new(file, offset, what);
        Self::build(ErrorKind::Corruption, String::new(), Some(damage), None)
    }

    /// Sound bytes in `file` that this build cannot read, or is not able to write there.
    pub fn unsupported_in(file: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        // A place as that of damage, so that all who name the partition of damage name it here as well.
        let place = Damage::new(file, None, what);
        Self::build(ErrorKind::Unsupported, String::new(), Some(place), None)
    }

    /// A limit was passed: `what` of `got`, where at most `limit` is allowed.
    pub fn limit(what: &str, got: u64, limit: u64) -> Self {
        Self::new(ErrorKind::LimitExceeded, format!("{what} is {got}, the limit is {limit}"))
    }

    /// A call of a database that was closed.
    pub fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the database is closed")
    }

    /// A write to a database that was opened read-only.
    pub fn read_only() -> Self {
        Self::new(ErrorKind::ReadOnly, "the database was opened read-only")
    }

    /// This error with context: the same kind and damage, with `message` in front.
    pub fn because(kind: ErrorKind, message: impl Into<String>, source: Error) -> Self {
        // The place of what is not supported stays one only under that kind: it is no damage.
        let is_place = source.0.kind == ErrorKind::Unsupported && kind != ErrorKind::Unsupported;
        let damage = source.0.damage.clone().filter(|_| !is_place);
        Self::build(kind, message.into(), damage, Some(ErrorCause::Own(source)))
    }

    fn map_damage(self, edit: &dyn Fn(&mut Damage)) -> Self {
        let Some(mut damage) = self.0.damage.clone() else { return self };
        edit(&mut damage);
        let source = match &self.0.source {
            // Its text is part of this error's, so it has to say the same.
            Some(ErrorCause::Own(error)) => Some(ErrorCause::Own(error.clone().map_damage(edit))),
            source => source.clone(),
        };
        Self::build(self.0.kind, self.0.message.clone(), Some(damage), source)
    }

    /// Adds the partition to a corruption, or to what is not supported in a file, that does not name one yet.
    #[must_use]
    pub fn in_partition(self, name: &str) -> Self {
        self.map_damage(&|d| {
            // The first layer that knew it stays: it is the closest to the damage.
            d.partition.get_or_insert_with(|| name.to_owned());
        })
    }

    /// Adds the user key to a corruption that does not name one yet.
    #[must_use]
    pub fn at_key(self, key: &[u8]) -> Self {
        self.map_damage(&|d| {
            d.key.get_or_insert_with(|| key.to_vec());
        })
    }

    /// Adds the keys that may be affected to a corruption that does not name them yet.
    #[must_use]
    pub fn between_keys(self, first: &[u8], last: &[u8]) -> Self {
        self.map_damage(&|d| {
            d.keys.get_or_insert_with(|| (first.to_vec(), last.to_vec()));
        })
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns `true` if stored bytes were found damaged.
    pub fn is_corruption(&self) -> bool {
        self.0.kind == ErrorKind::Corruption
    }

    /// Returns `true` if the same call may succeed later without any other action.
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::{
            Behind, LockTimeout, Locked, NeedsManifest, NoSpace, ReadOnly, WouldStall,
        };
        match self.0.kind {
            NoSpace | Locked | LockTimeout | WouldStall | Behind | NeedsManifest => true,
            // Until the store has written its data to new files.
            ReadOnly => self.is_failed_sync(),
            _ => false,
        }
    }

    /// Returns the place of the damage, for corruption.
    pub fn damage(&self) -> Option<&Damage> {
        // What is not supported has a place, and is no damage.
        self.0.damage.as_ref().filter(|_| self.0.kind != ErrorKind::Unsupported)
    }

    /// Returns the error of the operating system that caused this error, if there is one.
    pub fn io_source(&self) -> Option<&io::Error> {
        match self.0.source.as_ref()? {
            ErrorCause::Io { error, .. } => Some(error),
            ErrorCause::Own(e) => e.io_source(),
        }
    }

    /// Returns `true` if a file or folder does not exist, and this caused the error.
    pub fn is_missing(&self) -> bool {
        self.io_source().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Returns the file or folder whose operation failed, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match self.0.source.as_ref()? {
            ErrorCause::Io { path, .. } => path.as_deref(),
            ErrorCause::Own(e) => e.path(),
        }
    }

    /// Returns `true` if a failed sync of a file or folder caused this error.
    pub fn is_failed_sync(&self) -> bool {
        match &self.0.source {
            Some(ErrorCause::Io { is_sync, .. }) => *is_sync,
            Some(ErrorCause::Own(e)) => e.is_failed_sync(),
            None => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match (&self.0.source, &self.0.damage) {
            (Some(ErrorCause::Own(e)), _) => write!(f, ": {e}"),
            (_, Some(place)) if self.0.kind == ErrorKind::Unsupported => write!(f, "{place}"),
            (_, Some(damage)) if self.0.message.is_empty() => write!(f, "corruption: {damage}"),
            (_, Some(damage)) => write!(f, ": {damage}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl std::error::Error for Error {}

/// Equal are errors of one kind that say the same.
impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        let is_same = Arc::ptr_eq(&self.0, &other.0);
        is_same || (self.0.kind == other.0.kind && self.to_string() == other.to_string())
    }
}

impl Eq for Error {}

fn kind_of_io(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    }
}

impl From<io::Error> for Error {
    /// Returns the error of the engine that was made an [`io::Error`], if it is one.
    fn from(error: io::Error) -> Error {
        // An error of the engine that came through `Read` or `Write` of the standard library keeps
        // its kind and its damage.
        if let Some(own) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            return own.clone();
        }
        let kind = kind_of_io(&error);
        let message = error.to_string();
        let source = ErrorCause::Io { error: error.into(), path: None, is_sync: false };
        Error::build(kind, message, None, Some(source))
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match (error.io_source(), error.kind()) {
            (Some(source), _) => source.kind(),
            (None, ErrorKind::NoSpace) => io::ErrorKind::StorageFull,
            (None, ErrorKind::Corruption) => io::ErrorKind::InvalidData,
            (None, ErrorKind::Locked) => io::ErrorKind::ResourceBusy,
            (None, ErrorKind::ReadOnly) => io::ErrorKind::ReadOnlyFilesystem,
            (None, ErrorKind::LimitExceeded) => io::ErrorKind::InvalidInput,
            (None, ErrorKind::InvalidArgument) => io::ErrorKind::InvalidInput,
            (None, ErrorKind::ReservedKey) => io::ErrorKind::InvalidInput,
            (None, ErrorKind::WouldStall) => io::ErrorKind::WouldBlock,
            (None, ErrorKind::PartitionNotFound) => io::ErrorKind::NotFound,
            (None, ErrorKind::Unsupported) => io::ErrorKind::Unsupported,
            (None, _) => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Error {
    /// An error is its kind, its text and its damage.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        let mut fields = serializer.serialize_struct("Error", 3)?;
        fields.serialize_field("kind", &self.0.kind)?;
        fields.serialize_field("message", &self.to_string())?;
        fields.serialize_field("damage", &self.0.damage)?;
        fields.end()
    }
}

#[cfg(test)]
mod tests;
