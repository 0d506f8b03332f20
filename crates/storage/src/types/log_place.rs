//! Places in the log, as the log and the manifest name them: [`Lsn`], [`LogPlace`], [`LogPosition`], [`MustReach`].

use std::fmt;
use std::path::PathBuf;

use super::{FileNo, SeqNo};
use crate::error::Error;

/// A place in the log: the byte offset over all segments of the database, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The place `bytes` further on, or `None` beyond 64 bits.
    pub fn checked_plus(self, bytes: u64) -> Option<Lsn> {
        self.0.checked_add(bytes).map(Lsn)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A place in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPlace {
    /// Number of the segment.
    pub segment: FileNo,
    /// Byte offset in it.
    pub offset: u64,
}

impl LogPlace {
    /// Returns the error of a log that ends here, in the file `path`, although its writer has committed
    /// up to `reach`.
    pub fn too_short_for(self, path: impl Into<PathBuf>, reach: Lsn) -> Error {
        let what = format!("the log ends here, but its writer has committed up to {reach}");
        Error::corruption(path, self.offset, what)
    }
}

/// A place where reading begins or continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    /// End of the last frame read.
    pub place: LogPlace,
    /// Last logged sequence up to there.
    pub last_seq: SeqNo,
}

/// The ends that a log is known to have passed. By default nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MustReach {
    /// The place where a clean close ended the log, as the manifest says.
    pub closed: Option<LogPlace>,
    /// The last sequence that was durable in the log when a flush was installed.
    pub flushed: SeqNo,
    /// The place through which the writer has committed, or the log attests that it is durable.
    pub committed: Lsn,
}
