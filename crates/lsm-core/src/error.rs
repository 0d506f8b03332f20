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

/// The result of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure, in the words that a caller branches on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused or failed a file operation. The store is still usable unless
    /// it says [`ErrorKind::ReadOnly`] from then on.
    Io,
    /// The device is full. Reads go on; writes resume by themselves when space is back.
    NoSpace,
    /// Stored bytes are not what was written. [`Error::damage`] says where.
    Corruption,
    /// Another process (or another handle) has the database open for writing.
    Locked,
    /// A key, value, batch or count is beyond a limit; nothing was written.
    LimitExceeded,
    /// An argument or a combination of options makes no sense; nothing was done.
    InvalidArgument,
    /// The key has an ending that the partition reserves; nothing was written.
    ReservedKey,
    /// Writers would have to wait; nothing was written. From the `try_` calls alone.
    WouldStall,
    /// Somebody else wrote what the batch or transaction relies on; nothing was written. It
    /// succeeds if it is done again from its reads on.
    Conflict,
    /// The partition does not exist, or was dropped.
    PartitionNotFound,
    /// The store takes no writes: it was opened read-only, or a sync of its log failed, which the
    /// source names. In the second case it takes writes again when it has written what it holds in
    /// memory to new files, which it does by itself.
    ReadOnly,
    /// The database was closed.
    Closed,
    /// A compaction filter or a value store panicked; the message names partition, hook and call.
    /// The work that it took part in failed as a whole. Calls of the same kind go on being made.
    HookPanicked,
    /// The files need a newer version of the code, or a feature that it does not know.
    Unsupported,
    /// A file that a secondary reads is gone: the primary deleted it because no lease held it. The
    /// secondary looks again from a newer state; from an iterator or a snapshot it is the end.
    FileGone,
    /// The manifest that a secondary finds is older than the log says it must be, or older than
    /// itself. It is read again; this comes out only where that does not help.
    NeedsManifest,
    /// A token of a commit that this database does not have and never will: it was lost in a crash,
    /// or is of another history.
    SessionLost,
    /// A secondary's lease was taken away, and with it files that it read. It takes another one
    /// by itself; views and iterators that exist are at their end.
    LeaseLost,
    /// A partition without a log: a secondary sees it as of its last flush, and cannot be
    /// brought further.
    NotLogged,
    /// A secondary could not be brought as far as a read asked within its time.
    Behind,
}

/// The place of damaged bytes, as precisely as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Damage {
    /// Name of the partition, where the file belongs to one.
    pub partition: Option<String>,
    /// Path of the damaged file.
    pub file: PathBuf,
    /// Byte offset of the damaged region in the file.
    pub offset: Option<u64>,
    /// The user key that is affected, where it is known.
    pub key: Option<Vec<u8>>,
    /// First and last user key of those that may be affected, where more is not known.
    pub keys: Option<(Vec<u8>, Vec<u8>)>,
    /// Level of the damaged table, where it is known.
    pub level: Option<usize>,
    /// The defect, in one phrase.
    pub what: String,
}

impl Damage {
    /// Returns what `error` says of `file`: its own account if it is corruption, or why the file
    /// cannot be read.
    pub fn of(error: &Error, file: &Path) -> Damage {
        match error.damage() {
            Some(damage) => damage.clone(),
            None => Damage::new(file, None, error.to_string()),
        }
    }

    fn new(
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

/// An error of the engine. See [`ErrorKind`] for what to do about it.
///
/// Its text contains its cause. So [`source`](std::error::Error::source) returns nothing: who
/// prints a chain of causes, as `anyhow` does for `{:#}`, would print the cause twice. The
/// operating system's error is [`Error::io_source`].
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

    /// A failed file operation: `deed` is the verb ("append to", "sync"), `path` its object.
    pub fn io(deed: &str, path: &Path, source: io::Error) -> Self {
        let message = format!("cannot {deed} {}: {source}", path.display());
        let is_sync = deed.starts_with("sync");
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

    /// A limit was passed: `what` of `got`, where at most `limit` is allowed.
    pub fn limit(what: &str, got: u64, limit: u64) -> Self {
        Self::new(ErrorKind::LimitExceeded, format!("{what} is {got}, the limit is {limit}"))
    }

    /// A call of a database that was closed.
    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the database is closed")
    }

    /// A write to a database that was opened read-only.
    pub(crate) fn read_only() -> Self {
        Self::new(ErrorKind::ReadOnly, "the database was opened read-only")
    }

    /// This error, told at another place: same kind and damage, `message` in front.
    pub fn because(kind: ErrorKind, message: impl Into<String>, source: Error) -> Self {
        let damage = source.damage().cloned();
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

    /// Adds the partition to a corruption that does not name one yet.
    #[must_use]
    pub fn in_partition(self, name: &str) -> Self {
        self.map_damage(&|d| {
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

    /// Returns `true` if the same call may succeed later without anything else being done.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::NoSpace | ErrorKind::Locked | ErrorKind::WouldStall | ErrorKind::Behind
        )
    }

    /// Returns the place of the damage, for corruption.
    pub fn damage(&self) -> Option<&Damage> {
        self.0.damage.as_ref()
    }

    /// The operating system's error, where one is at the root.
    pub fn io_source(&self) -> Option<&io::Error> {
        match self.0.source.as_ref()? {
            ErrorCause::Io { error, .. } => Some(error),
            ErrorCause::Own(e) => e.io_source(),
        }
    }

    /// The file or folder whose operation failed, where one is at the root.
    pub fn path(&self) -> Option<&Path> {
        match self.0.source.as_ref()? {
            ErrorCause::Io { path, .. } => path.as_deref(),
            ErrorCause::Own(e) => e.path(),
        }
    }

    /// Returns `true` if a sync of a file or folder is at the root.
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
mod tests {
    use super::*;

    /// The text of an error and of its causes, as `anyhow` prints it for `{:#}`.
    fn chain(error: &dyn std::error::Error) -> String {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            text += &format!(": {next}");
            cause = next.source();
        }
        text
    }

    #[test]
    fn a_chain_of_causes_names_each_cause_once() {
        let io = Error::io("sync", Path::new("x"), io::Error::other("the device is gone"));
        assert_eq!(chain(&io), "cannot sync x: the device is gone");
        let told = Error::because(ErrorKind::ReadOnly, "no writes", io);
        assert_eq!(chain(&told), "no writes: cannot sync x: the device is gone");
        let damage = Error::corruption("a.sst", 17, "bad checksum");
        let told = Error::because(ErrorKind::Corruption, "compaction failed", damage);
        let told = told.in_partition("p");
        let text = "compaction failed: corruption: bad checksum in a.sst at offset 17, \
                    partition \"p\"";
        assert_eq!(chain(&told), text);
        assert_eq!(told.damage().and_then(|damage| damage.partition.as_deref()), Some("p"));
    }

    #[test]
    fn errors_go_to_io_errors_and_back() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = Error::io("append to", Path::new("x"), full);
        let io = io::Error::from(error.clone());
        assert_eq!(io.kind(), io::ErrorKind::StorageFull);
        assert_eq!(io.to_string(), error.to_string());
        assert_eq!(Error::from(io), error);
        let rotten = io::Error::from(Error::corruption("a.sst", 17, "bad checksum"));
        assert_eq!(rotten.kind(), io::ErrorKind::InvalidData);
        let foreign = Error::from(io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!((foreign.kind(), foreign.path()), (ErrorKind::Io, None));
        let source = foreign.io_source().map(io::Error::kind);
        assert_eq!(source, Some(io::ErrorKind::PermissionDenied));
    }

    #[test]
    fn errors_are_equal_if_they_say_the_same() {
        let one = Error::limit("key length", 7, 6);
        assert_eq!(one, Error::limit("key length", 7, 6));
        assert_ne!(one, Error::limit("key length", 8, 6));
        assert_ne!(one, Error::new(ErrorKind::InvalidArgument, one.to_string()));
    }

    #[test]
    fn corruption_names_file_offset_partition_and_key() {
        let e = Error::corruption("a.sst", 17, "bad checksum").in_partition("users").at_key(b"k\0");
        assert_eq!(
            e.to_string(),
            "corruption: bad checksum in a.sst at offset 17, partition \"users\", key \"k\\x00\""
        );
        assert!(e.is_corruption() && !e.is_retryable());
        let told = Error::because(ErrorKind::Corruption, "compaction failed", e);
        assert_eq!(told.damage().map(|d| d.offset), Some(Some(17)));
    }

    #[test]
    fn a_full_disk_has_its_own_kind() {
        let e = Error::io("sync", Path::new("x"), io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(e.kind(), ErrorKind::NoSpace);
        assert!(e.is_retryable() && e.io_source().is_some());
        let told = Error::because(ErrorKind::ReadOnly, "refused", e);
        assert!(told.is_failed_sync() && told.path() == Some(Path::new("x")));
    }
}
